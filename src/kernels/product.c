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

/* A worker's scratch holds a panel of A and behind it panels of B, of this many columns at most; the shared
   scratch holds the partial sums of the chunks. */
#define DML__PACK_COLUMNS 752

/* Where the scratch is too small, the stack of whoever computes holds one full panel of each factor; what
   needs little takes little of it. */
#define DML__STACK_FLOATS (DML__PRODUCT_KC * (DML__TILE_ROWS + DML__TILE_COLUMNS))
#define DML__SMALL_STACK_FLOATS 1536
#define DML__STACK_SLACK (DML__ALIGNMENT / sizeof(float))

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

static ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return a / b + (a % b != 0);
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

/* What is computed: the product, or, for a narrow C, the transposed one: vectors are then made of C's rows,
   which there are more of than of columns. The caller's C stays as it is. */
typedef struct dml__job {
    dml__product product;
    const dml__microkernel *kernel;
    bool transposed; /* product.c is then the transpose of the caller's C, and product.bias goes along rows */
} dml__job;

static dml__job dml__plan_product(const dml__product *product)
{
    const dml__job plain = { *product, dml__microkernel_get(), false };
    const dml__microkernel *kernel = plain.kernel;
    if (product->n > kernel->rows || product->n >= product->m) return plain;
    if (product->n * 4 > dml__round_up(product->n, kernel->lanes) * 3) return plain;
    dml__job job = plain;
    job.transposed = true;
    job.product.m = product->n;
    job.product.n = product->m;
    job.product.a = product->b;
    job.product.b = product->a;
    return job;
}

/* Where element (i, j) of the job's product lies. */
static inline float *dml__job_c(const dml__job *job, ptrdiff_t i, ptrdiff_t j)
{
    return job->product.c + (job->transposed ? j * job->product.ldc + i : i * job->product.ldc + j);
}

/* A tile that sticks out of C, or lies across it, is computed on the side by the very same instructions. */
static void dml__side_tile(const dml__job *job, const dml__tile *tile, int rows, int columns)
{
    float side[DML__TILE_ROWS * DML__TILE_COLUMNS];
    const int vectors = (columns + job->kernel->lanes - 1) / job->kernel->lanes;
    const ptrdiff_t width = (ptrdiff_t)vectors * job->kernel->lanes;
    const ptrdiff_t row_step = job->transposed ? 1 : tile->ldc, column_step = job->transposed ? tile->ldc : 1;
    dml__tile whole = *tile;
    whole.c = side;
    whole.ldc = width;
    if (tile->beta != 0) {
        memset(side, 0, (size_t)rows * (size_t)width * sizeof *side);
        for (int j = 0; j < columns; j++)
            for (int i = 0; i < rows; i++) side[i * width + j] = tile->c[i * row_step + j * column_step];
    }
    job->kernel->run(&whole, rows, vectors);
    for (int j = 0; j < columns; j++)
        for (int i = 0; i < rows; i++) tile->c[i * row_step + j * column_step] = side[i * width + j];
}

/* C = bias, in a tile. */
static void dml__bias_tile(const dml__job *job, ptrdiff_t i0, int rows, ptrdiff_t j0, int columns)
{
    const float *bias = job->product.bias + (job->transposed ? i0 : j0);
    const int lines = job->transposed ? columns : rows, length = job->transposed ? rows : columns;
    float *line = dml__job_c(job, i0, j0);
    for (int l = 0; l < lines; l++, line += job->product.ldc)
        memcpy(line, bias, (size_t)length * sizeof *bias);
}

/* The columns of B can be used in place; packing them pays only when several panels of A use them. */
static bool dml__use_in_place(const dml__job *job, const dml__range *range)
{
    const dml__factor *b = &job->product.b;
    return b->pack == dml__pack_matrix && ((const dml__matrix *)b->source)->lane_step == 1 &&
           range->i1 - range->i0 <= 2 * job->kernel->rows;
}

/* Floats of a panel of A of this height, up to where the panels of B begin: aligned, or loads would cross
   cache lines. */
static ptrdiff_t dml__panel_a_floats(ptrdiff_t kc, ptrdiff_t rows)
{
    return dml__round_up(kc * rows, DML__ALIGNMENT / (ptrdiff_t)sizeof(float));
}

/* How many columns of B to pack at most. Where A is a single panel, that is packed again for each piece of B,
   which with 16 columns a row is next to nothing; so not all of B, which may be a layer's weights, need be
   held. */
static ptrdiff_t dml__columns_at_most(const dml__job *job)
{
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, most = DML__PACK_COLUMNS / full * full;
    return job->product.m > kernel->rows ? most
                                         : dml__smaller(most, dml__round_up(16 * job->product.m, full));
}

/* Floats that a range takes when its columns are packed `columns` at a time. */
static ptrdiff_t dml__range_floats(const dml__microkernel *kernel, ptrdiff_t rows, ptrdiff_t columns,
                                   ptrdiff_t k)
{
    const ptrdiff_t kc = dml__smaller(k, DML__PRODUCT_KC);
    return dml__panel_a_floats(kc, dml__smaller(rows, kernel->rows)) +
           kc * dml__round_up(columns, kernel->lanes);
}

/* Computes a range whose panels of B for one block of k fit behind a panel of A in `panels`. */
static void dml__multiply_range(const dml__job *job, const dml__range *range, float *panels)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const int full = kernel->lanes * kernel->vectors;
    const bool in_place = dml__use_in_place(job, range);
    const ptrdiff_t most_k = dml__smaller(DML__PRODUCT_KC, range->k1 - range->k0);
    float *panel_a = panels; /* (kc, rows) */
    float *panels_b = panels + dml__panel_a_floats(most_k, dml__smaller(kernel->rows, range->i1 - range->i0));
    /* (columns / full, kc, full) */
    for (ptrdiff_t k0 = range->k0; k0 < range->k1; k0 += DML__PRODUCT_KC) {
        const bool first = k0 == range->k0;
        dml__tile tile;
        tile.k = (int)dml__smaller(DML__PRODUCT_KC, range->k1 - k0);
        tile.alpha = product->alpha;
        tile.beta = first && !product->bias ? product->beta : 1;
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
                tile.c = dml__job_c(job, i, j);
                if (first && product->bias) dml__bias_tile(job, i, rows, j, columns);
                if (columns == width && !job->transposed)
                    kernel->run(&tile, rows, width / kernel->lanes);
                else
                    dml__side_tile(job, &tile, rows, columns);
            }
        }
    }
}

static float *dml__aligned_floats(float *memory)
{
    return memory + (size_t)(-(intptr_t)memory & (DML__ALIGNMENT - 1)) / sizeof *memory;
}

/* Computes any range with room for `floats`, which take at least one full panel of B: as many columns at a
   time as fit. */
static void dml__multiply_within(const dml__job *job, const dml__range *range, float *panels,
                                 ptrdiff_t floats)
{
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors;
    const ptrdiff_t kc = dml__smaller(DML__PRODUCT_KC, range->k1 - range->k0);
    const ptrdiff_t panel_a = dml__panel_a_floats(kc, dml__smaller(kernel->rows, range->i1 - range->i0));
    /* Whole vectors, since that is what a panel of fewer columns is padded to. */
    ptrdiff_t step = (floats - panel_a) / kc / kernel->lanes * kernel->lanes;
    step = dml__smaller(step, dml__columns_at_most(job));
    if (step < range->j1 - range->j0) step = step < full ? full : step / full * full;
    dml__range part = *range;
    for (part.j0 = range->j0; part.j0 < range->j1; part.j0 = part.j1) {
        part.j1 = dml__smaller(part.j0 + step, range->j1);
        dml__multiply_range(job, &part, panels);
    }
}

/* Stack frames that only who needs them pays for. */
DML__NOINLINE static void dml__multiply_on_stack(const dml__job *job, const dml__range *range)
{
    float panels[DML__STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, range, dml__aligned_floats(panels), DML__STACK_FLOATS);
}

DML__NOINLINE static void dml__multiply_on_small_stack(const dml__job *job, const dml__range *range)
{
    float panels[DML__SMALL_STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, range, dml__aligned_floats(panels), DML__SMALL_STACK_FLOATS);
}

/* Computes any range, with the worker's scratch if that is enough. */
static void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range)
{
    const ptrdiff_t full = job->kernel->lanes * job->kernel->vectors, k = range->k1 - range->k0;
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    const ptrdiff_t whole = dml__range_floats(job->kernel, rows, columns, k);
    float *scratch = (float *)dml_pool_scratch(pool, worker);
    const ptrdiff_t floats = scratch ? (ptrdiff_t)(dml_pool_scratch_bytes(pool).worker / sizeof *scratch) : 0;
    if (floats >= whole && columns <= full)
        dml__multiply_range(job, range, scratch);
    else if (floats >= dml__range_floats(job->kernel, rows, dml__smaller(columns, full), k))
        dml__multiply_within(job, range, scratch, floats);
    else if (whole <= DML__SMALL_STACK_FLOATS)
        dml__multiply_on_small_stack(job, range);
    else
        dml__multiply_on_stack(job, range);
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
    const dml__job *job;
    dml_pool *pool;
    ptrdiff_t mc, nc, columns_of_blocks;
} dml__block_loop;

static void dml__block_task(void *argument, int task, int worker)
{
    const dml__block_loop *loop = (const dml__block_loop *)argument;
    const dml__product *product = &loop->job->product;
    const ptrdiff_t i = task / loop->columns_of_blocks, j = task % loop->columns_of_blocks;
    const dml__range range = { i * loop->mc,
                               dml__smaller(product->m, (i + 1) * loop->mc),
                               j * loop->nc,
                               dml__smaller(product->n, (j + 1) * loop->nc),
                               0,
                               product->k };
    dml__multiply_as(loop->pool, worker, loop->job, &range);
}

/* The columns of C as even shares of what is packed at once, in panels. */
static ptrdiff_t dml__panels_at_once(const dml__job *job)
{
    const ptrdiff_t n = job->product.n;
    return dml__quotient_up(dml__quotient_up(n, job->kernel->lanes * job->kernel->vectors),
                            dml__quotient_up(n, dml__columns_at_most(job)));
}

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, rows = kernel->rows;
    /* Panels, not elements: even shares, then halves of the longer side until there is enough to share out.
     */
    ptrdiff_t wide = dml__panels_at_once(job);
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
    dml__block_loop loop = { job, pool, high * rows, wide * full, 0 };
    loop.columns_of_blocks = dml__quotient_up(product->n, loop.nc);
    const ptrdiff_t tasks = dml__quotient_up(product->m, loop.mc) * loop.columns_of_blocks;
    if (wanted > 1)
        dml_pool_run(pool, (int)tasks, dml__block_task, &loop);
    else
        for (ptrdiff_t task = 0; task < tasks; task++) dml__block_task(&loop, (int)task, 0);
}

/* --- sharing k, in chunks --- */

static bool dml__is_chunked(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    return k >= 4 * DML__PRODUCT_KC && m <= DML__CHUNKED_C / n;
}

/* How much of k a chunk takes, a multiple of DML__PRODUCT_KC. */
static ptrdiff_t dml__chunk_size(ptrdiff_t k)
{
    const ptrdiff_t blocks = dml__quotient_up(k, DML__PRODUCT_KC);
    return dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__PRODUCT_KC;
}

typedef struct dml__chunk_loop {
    const dml__product *product;
    dml__job job; /* its partial sums, dense; C is set for each chunk */
    dml_pool *pool;
    ptrdiff_t chunk; /* of k */
    int chunks;
    float *partial;                      /* (chunks, m, n), or NULL: */
    ptrdiff_t mc, nc, columns_of_blocks; /* the blocks of the job's C that are computed through all chunks */
} dml__chunk_loop;

/* Chunk c's partial sums (m, n) in a block of C; the range's k is set here. */
static void dml__compute_chunk(const dml__chunk_loop *loop, int c, dml__range range, float *partial,
                               int worker)
{
    dml__job job = loop->job;
    job.product.c = partial;
    range.k0 = c * loop->chunk;
    range.k1 = dml__smaller(job.product.k, range.k0 + loop->chunk);
    dml__multiply_as(loop->pool, worker, &job, &range);
}

static void dml__chunk_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__range all = { 0, loop->job.product.m, 0, loop->job.product.n, 0, 0 };
    dml__compute_chunk(loop, task, all, loop->partial + task * loop->product->m * loop->product->n, worker);
}

/* Adds chunk c's partial sums (m, n) to columns j0 .. j1 - 1 of row i of C; chunk 0 begins with
   beta C + bias. */
static void dml__add_chunk(const dml__product *product, int c, ptrdiff_t i, ptrdiff_t j0, ptrdiff_t j1,
                           const float *partial)
{
    float *row = product->c + i * product->ldc;
    for (ptrdiff_t j = j0; j < j1; j++) {
        float old = c || product->beta != 0 ? row[j] : 0;
        if (c == 0 && product->bias)
            old = product->bias[j];
        else if (c == 0)
            old *= product->beta;
        row[j] = old + product->alpha * partial[i * product->n + j];
    }
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    (void)worker;
    for (int c = 0; c < loop->chunks; c++)
        dml__add_chunk(product, c, task, 0, product->n, loop->partial + c * product->m * product->n);
}

/* A block of C through all chunks, their partial sums on the stack: packs more often than the chunks do. */
static void dml__chunked_block_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__job *job = &loop->job;
    const ptrdiff_t i = task / loop->columns_of_blocks * loop->mc,
                    j = task % loop->columns_of_blocks * loop->nc;
    const dml__range range = { i, dml__smaller(i + loop->mc, job->product.m),
                               j, dml__smaller(j + loop->nc, job->product.n),
                               0, 0 };
    float partial[DML__CHUNKED_C];
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(loop, c, range, partial, worker);
        if (job->transposed)
            for (ptrdiff_t row = range.j0; row < range.j1; row++)
                dml__add_chunk(loop->product, c, row, range.i0, range.i1, partial);
        else
            for (ptrdiff_t row = range.i0; row < range.i1; row++)
                dml__add_chunk(loop->product, c, row, range.j0, range.j1, partial);
    }
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    part.bias = NULL;
    part.ldc = part.n;
    const ptrdiff_t chunk = dml__chunk_size(product->k);
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = { product, dml__plan_product(&part), pool, chunk, chunks, NULL, 0, 0, 0 };
    const dml__job *job = &loop.job;
    const size_t partial_bytes = (size_t)chunks * (size_t)(product->m * product->n) * sizeof(float);
    if (dml_pool_scratch_bytes(pool).shared >= partial_bytes) {
        loop.partial = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
        dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
        return;
    }
    const bool alone = dml_pool_threads(pool) == 1;
    loop.mc = alone ? job->product.m : job->kernel->rows;
    loop.nc = alone ? job->product.n : job->kernel->lanes * job->kernel->vectors;
    loop.columns_of_blocks = dml__quotient_up(job->product.n, loop.nc);
    dml_pool_run(pool, (int)(dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks),
                 dml__chunked_block_task, &loop);
}

DML__LOCAL dml_scratch dml__product_scratch(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    dml_scratch scratch = { 0, 0 };
    if (m <= 0 || n <= 0 || k <= 0) return scratch;
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    const dml__job job = dml__plan_product(&product);
    const ptrdiff_t full = job.kernel->lanes * job.kernel->vectors;
    ptrdiff_t columns = dml__panels_at_once(&job) * full;
    if (dml__is_chunked(m, n, k)) {
        columns = dml__columns_at_most(&job);
        scratch.shared = (size_t)(dml__quotient_up(k, dml__chunk_size(k)) * m * n) * sizeof(float);
    }
    columns = dml__smaller(job.product.n, columns);
    scratch.worker = (size_t)dml__range_floats(job.kernel, job.product.m, columns, k) * sizeof(float);
    return scratch;
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__is_chunked(product->m, product->n, product->k)) {
        dml__multiply_chunks(pool, product);
    } else {
        const dml__job job = dml__plan_product(product);
        dml__multiply_blocks(pool, &job);
    }
}

#endif
