#ifndef DML_KERNELS_PRODUCT_C
#define DML_KERNELS_PRODUCT_C

#include "kernels/product.h"

#include "base/memory.h"
#include "kernels/microkernel.h"

#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* A small C under a long k has too few tiles to share among threads. Its k is then cut into at most
   DML__CHUNKS chunks, whose partial sums are added up in order. Whether and where to cut depends on the sizes
   alone. */
#define DML__CHUNKS 16
#define DML__CHUNKED_C 4096 /* elements of C, at most */

/* Each worker's scratch holds packed panels; behind them, the first worker's holds the partial sums. Without
   a pool, the stack holds one panel of each factor, or in chunked products a partial sum too. */
#define DML__PARTIAL_BYTES (DML__CHUNKED_C * sizeof(float))
#define DML__PACK_BYTES (DML_POOL_SCRATCH_BYTES - DML__CHUNKS * DML__PARTIAL_BYTES)
#define DML__STACK_FLOATS (DML__PRODUCT_KC * (DML__TILE_ROWS + DML__TILE_COLUMNS))

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

static ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return (a + b - 1) / b;
}

static ptrdiff_t dml__round_up(ptrdiff_t a, ptrdiff_t b)
{
    return dml__quotient_up(a, b) * b;
}

/* to[k * width + lane] = from[lane * step + k] for 4 x 4. */
static inline void dml__transpose_4x4(const float *from, ptrdiff_t step, float *to, int width)
{
#if defined(__SSE__)
    __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + step);
    __m128 r2 = _mm_loadu_ps(from + 2 * step), r3 = _mm_loadu_ps(from + 3 * step);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(to, r0);
    _mm_storeu_ps(to + width, r1);
    _mm_storeu_ps(to + 2 * width, r2);
    _mm_storeu_ps(to + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 4; lane++) to[k * width + lane] = from[lane * step + k];
#endif
}

DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out)
{
    int lane = 0;
    for (; lane + 4 <= lanes; lane += 4) {
        const float *from = x + lane * lane_step;
        int k = 0;
        for (; k + 4 <= kc; k += 4) dml__transpose_4x4(from + k, lane_step, out + k * width + lane, width);
        for (; k < kc; k++)
            for (int l = 0; l < 4; l++) out[k * width + lane + l] = from[l * lane_step + k];
    }
    for (; lane < lanes; lane++)
        for (int k = 0; k < kc; k++) out[k * width + lane] = x[lane * lane_step + k];
}

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out)
{
    const dml__matrix *m = (const dml__matrix *)matrix;
    const float *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    if (m->lane_step != 1)
        dml__pack_transposed(x, m->lane_step, lanes, kc, width, out);
    else
        for (int k = 0; k < kc; k++, x += m->k_step, out += width)
            memcpy(out, x, (size_t)lanes * sizeof *out);
}

/* The rows and columns of C, and the part of k, that one task computes. */
typedef struct dml__range {
    ptrdiff_t i0, i1, j0, j1, k0, k1;
} dml__range;

/* A tile that sticks out of C goes through a whole one on the side, so that each element is computed by the
   same instructions wherever it lies. */
static void dml__ragged_tile(const dml__microkernel *kernel, const dml__tile *tile, int rows, int columns)
{
    float side[DML__TILE_ROWS * DML__TILE_COLUMNS];
    const int vectors = (columns + kernel->lanes - 1) / kernel->lanes;
    const size_t bytes = (size_t)columns * sizeof *side;
    dml__tile whole = *tile;
    whole.c = side;
    whole.ldc = (ptrdiff_t)vectors * kernel->lanes;
    if (tile->beta != 0) {
        memset(side, 0, (size_t)rows * (size_t)whole.ldc * sizeof *side);
        for (int i = 0; i < rows; i++) memcpy(side + i * whole.ldc, tile->c + i * tile->ldc, bytes);
    }
    kernel->run(&whole, rows, vectors);
    for (int i = 0; i < rows; i++) memcpy(tile->c + i * tile->ldc, side + i * whole.ldc, bytes);
}

/* The columns of B that can be used in place: packing them pays only when several panels of A use them. */
static bool dml__use_in_place(const dml__product *product, const dml__microkernel *kernel,
                              const dml__range *range)
{
    return product->b.pack == dml__pack_matrix && ((const dml__matrix *)product->b.source)->lane_step == 1 &&
           range->i1 - range->i0 <= 2 * kernel->rows;
}

/* Computes a range whose panels of B for one block of k fit behind a panel of A in `panels`. */
static void dml__multiply_range(const dml__product *product, const dml__microkernel *kernel,
                                const dml__range *range, float *panels)
{
    const int full = kernel->lanes * kernel->vectors;
    const bool in_place = dml__use_in_place(product, kernel, range);
    float *panel_a = panels;                                     /* (kc, rows) */
    float *panels_b = panels + DML__PRODUCT_KC * DML__TILE_ROWS; /* (columns / full, kc, full) */
    for (ptrdiff_t k0 = range->k0; k0 < range->k1; k0 += DML__PRODUCT_KC) {
        dml__tile tile;
        tile.k = (int)dml__smaller(DML__PRODUCT_KC, range->k1 - k0);
        tile.alpha = product->alpha;
        tile.beta = k0 == range->k0 && !product->bias ? product->beta : 1;
        tile.ldc = product->ldc;
        for (ptrdiff_t i = range->i0; i < range->i1; i += kernel->rows) {
            const int rows = (int)dml__smaller(kernel->rows, range->i1 - i);
            product->a.pack(product->a.source, i, rows, k0, tile.k, rows, panel_a);
            tile.a = panel_a;
            for (ptrdiff_t j = range->j0; j < range->j1; j += full) {
                const int columns = (int)dml__smaller(full, range->j1 - j);
                const int width = (int)dml__round_up(columns, kernel->lanes);
                float *panel_b = panels_b + (j - range->j0) * tile.k;
                tile.b = panel_b;
                tile.b_step = width;
                if (in_place && columns == width) {
                    const dml__matrix *b = (const dml__matrix *)product->b.source;
                    tile.b = b->x + j + k0 * b->k_step;
                    tile.b_step = b->k_step;
                } else if (i == range->i0) {
                    product->b.pack(product->b.source, j, columns, k0, tile.k, width, panel_b);
                }
                tile.c = product->c + i * product->ldc + j;
                if (k0 == range->k0 && product->bias)
                    for (int r = 0; r < rows; r++)
                        memcpy(tile.c + r * tile.ldc, product->bias + j, (size_t)columns * sizeof(float));
                if (columns == width)
                    kernel->run(&tile, rows, width / kernel->lanes);
                else
                    dml__ragged_tile(kernel, &tile, rows, columns);
            }
        }
    }
}

/* C = beta C + bias, for a product without terms. */
static void dml__scale_c(const dml__product *product)
{
    for (ptrdiff_t i = 0; i < product->m; i++) {
        float *row = product->c + i * product->ldc;
        for (ptrdiff_t j = 0; j < product->n; j++) {
            if (product->bias)
                row[j] = product->bias[j];
            else
                row[j] = product->beta == 0 ? 0 : product->beta * row[j];
        }
    }
}

/* --- sharing C among the workers, in blocks of rows and columns --- */

typedef struct dml__block_loop {
    const dml__product *product;
    const dml__microkernel *kernel;
    dml_pool *pool;
    ptrdiff_t mc, nc, columns_of_blocks;
} dml__block_loop;

static void dml__block_task(void *argument, int task, int worker)
{
    const dml__block_loop *loop = (const dml__block_loop *)argument;
    const dml__product *product = loop->product;
    const ptrdiff_t i = task / loop->columns_of_blocks, j = task % loop->columns_of_blocks;
    const dml__range range = { i * loop->mc,
                               dml__smaller(product->m, (i + 1) * loop->mc),
                               j * loop->nc,
                               dml__smaller(product->n, (j + 1) * loop->nc),
                               0,
                               product->k };
    dml__multiply_range(product, loop->kernel, &range, (float *)dml_pool_scratch(loop->pool, worker));
}

/* Panels that `bytes` hold, given as the columns of B that fit behind a panel of A. */
static ptrdiff_t dml__columns_that_fit(size_t bytes, const dml__microkernel *kernel)
{
    const ptrdiff_t floats = (ptrdiff_t)(bytes / sizeof(float));
    const ptrdiff_t full = kernel->lanes * kernel->vectors;
    return (floats / DML__PRODUCT_KC - DML__TILE_ROWS) / full * full;
}

static void dml__multiply_blocks(dml_pool *pool, const dml__product *product, const dml__microkernel *kernel)
{
    const ptrdiff_t full = kernel->lanes * kernel->vectors, rows = kernel->rows;
    const ptrdiff_t fit = dml__columns_that_fit(DML__PACK_BYTES, kernel);
    /* Panels, not elements: even shares, then halves of the longer side until there is enough to share out.
     */
    ptrdiff_t wide = dml__quotient_up(dml__quotient_up(product->n, full), dml__quotient_up(product->n, fit));
    ptrdiff_t high = dml__quotient_up(product->m, rows);
    const double work = (double)product->m * (double)product->n * (double)product->k;
    const ptrdiff_t wanted =
        work < DML__SERIAL_WORK || dml_pool_threads(pool) == 1 ? 1 : 4 * dml_pool_threads(pool);
    while (dml__quotient_up(product->m, high * rows) * dml__quotient_up(product->n, wide * full) < wanted &&
           high * rows * wide * full > 4 * rows * full) {
        if (high * rows >= wide * full)
            high = dml__quotient_up(high, 2);
        else
            wide = dml__quotient_up(wide, 2);
    }
    dml__block_loop loop = { product, kernel, pool, high * rows, wide * full, 0 };
    loop.columns_of_blocks = dml__quotient_up(product->n, loop.nc);
    const ptrdiff_t tasks = dml__quotient_up(product->m, loop.mc) * loop.columns_of_blocks;
    if (wanted > 1)
        dml_pool_run(pool, (int)tasks, dml__block_task, &loop);
    else
        for (ptrdiff_t task = 0; task < tasks; task++) dml__block_task(&loop, (int)task, 0);
}

static void dml__multiply_alone(const dml__product *product, const dml__microkernel *kernel)
{
    float panels[DML__STACK_FLOATS];
    const ptrdiff_t nc = dml__columns_that_fit(sizeof panels, kernel);
    for (ptrdiff_t j = 0; j < product->n; j += nc) {
        const dml__range range = { 0, product->m, j, dml__smaller(product->n, j + nc), 0, product->k };
        dml__multiply_range(product, kernel, &range, panels);
    }
}

/* --- sharing k, in chunks --- */

typedef struct dml__chunk_loop {
    const dml__product *product;
    const dml__microkernel *kernel;
    dml_pool *pool;
    ptrdiff_t chunk; /* of k, a multiple of DML__PRODUCT_KC */
    int chunks;
    float *partial; /* (chunks, m, n) */
} dml__chunk_loop;

static void dml__chunk_range(const dml__chunk_loop *loop, int c, float *partial, float *panels, size_t bytes)
{
    dml__product part = *loop->product;
    part.alpha = 1;
    part.beta = 0;
    part.bias = NULL;
    part.c = partial;
    part.ldc = part.n;
    const ptrdiff_t nc = dml__columns_that_fit(bytes, loop->kernel);
    for (ptrdiff_t j = 0; j < part.n; j += nc) {
        const dml__range range = { 0,
                                   part.m,
                                   j,
                                   dml__smaller(part.n, j + nc),
                                   c * loop->chunk,
                                   dml__smaller(part.k, (c + 1) * loop->chunk) };
        dml__multiply_range(&part, loop->kernel, &range, panels);
    }
}

static void dml__chunk_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    dml__chunk_range(loop, task, loop->partial + task * loop->product->m * loop->product->n,
                     (float *)dml_pool_scratch(loop->pool, worker), DML__PACK_BYTES);
}

/* Adds chunk c's partial sums of row i to C; chunk 0 begins with beta C + bias. */
static void dml__add_chunk(const dml__product *product, int c, ptrdiff_t i, const float *partial)
{
    float *row = product->c + i * product->ldc;
    for (ptrdiff_t j = 0; j < product->n; j++) {
        float old = row[j];
        if (c == 0 && product->bias)
            old = product->bias[j];
        else if (c == 0)
            old = product->beta == 0 ? 0 : product->beta * old;
        row[j] = old + product->alpha * partial[j];
    }
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    (void)worker;
    for (int c = 0; c < loop->chunks; c++)
        dml__add_chunk(product, c, task, loop->partial + (c * product->m + task) * product->n);
}

static void dml__chunk_alone(const dml__chunk_loop *loop)
{
    float panels[DML__STACK_FLOATS], partial[DML__CHUNKED_C];
    for (int c = 0; c < loop->chunks; c++) {
        dml__chunk_range(loop, c, partial, panels, sizeof panels);
        for (ptrdiff_t i = 0; i < loop->product->m; i++)
            dml__add_chunk(loop->product, c, i, partial + i * loop->product->n);
    }
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product, const dml__microkernel *kernel)
{
    const ptrdiff_t blocks = dml__quotient_up(product->k, DML__PRODUCT_KC);
    dml__chunk_loop loop = { product, kernel, pool, 0, 0, NULL };
    loop.chunk = dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__PRODUCT_KC;
    loop.chunks = (int)dml__quotient_up(product->k, loop.chunk);
    if (!pool) {
        dml__chunk_alone(&loop);
        return;
    }
    loop.partial = (float *)(void *)((char *)dml_pool_scratch(pool, 0) + DML__PACK_BYTES);
    dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
    dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
        return;
    }
    const dml__microkernel *kernel = dml__microkernel_get();
    if (product->k >= 4 * DML__PRODUCT_KC && product->m <= DML__CHUNKED_C / product->n)
        dml__multiply_chunks(pool, product, kernel);
    else if (pool)
        dml__multiply_blocks(pool, product, kernel);
    else
        dml__multiply_alone(product, kernel);
}

#endif
