#ifndef DML_KERNELS_PRODUCT_C
#define DML_KERNELS_PRODUCT_C

#include "kernels/product.h"

#include "base/memory.h"
#include "kernels/finish.h"
#include "kernels/microkernel.h"
#include "kernels/thin.h"
#include "thread/pool_internal.h"

#include <string.h>

/* A small C under a long k has too few tiles to share among threads. Its k is then cut into at most
   DML__CHUNKS chunks, whose partial sums are added up in order. Whether and where to cut depends on the sizes
   alone. */
#define DML__CHUNKS 16
#define DML__CHUNK_K 512      /* of which a chunk is a multiple */
#define DML__CHUNKED_C 4096   /* elements of C, at most */
#define DML__CHUNK_BLOCK 1024 /* elements of a block of C, where the chunks' sums are on the stack */

/* A worker's scratch holds a block of A and behind it panels of B, of this many rows and columns at most; the
   shared scratch holds the partial sums of the chunks. */
#define DML__PACK_ROWS 120
#define DML__PACK_COLUMNS 512

/* Panels of B that are no larger than this stay in the first cache all together; and where a tile has fewer
   k's than this, writing C takes longer than reading them. */
#define DML__ACROSS_FLOATS 4096
#define DML__ACROSS_KC 64

/* Where the scratch is too small, the stack of whoever computes holds one full panel of each factor; what
   needs little takes little of it. */
#define DML__STACK_FLOATS DML__PANEL_FLOATS
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

/* The rows and columns of C, and the part of k, that one task computes. */
typedef struct dml__range {
    ptrdiff_t i0, i1, j0, j1, k0, k1;
} dml__range;

/* What is computed: the product, or, for a narrow C, the transposed one, whose vectors are made of C's rows,
   which there are more of than of columns. The caller's C stays as it is. */
typedef struct dml__job {
    dml__product product;
    const dml__microkernel *kernel;
    dml_isa isa;
    ptrdiff_t l2;    /* bytes of the second cache */
    bool transposed; /* product.c is then the transpose of the caller's C, and the bias goes along rows */
    ptrdiff_t rows, full; /* of a tile at most; full columns are whole vectors */
} dml__job;

/* Whether the lanes of a factor lie side by side in memory, as vectors are loaded. */
static bool dml__has_lanes(const dml__factor *factor)
{
    return factor->pack == dml__pack_matrix && ((const dml__matrix *)factor->source)->lane_step == 1;
}

/* The share of a vector's lanes that `n` columns fill. */
static bool dml__fills_lanes(ptrdiff_t n, const dml__microkernel *kernel)
{
    return n * 4 > dml__round_up(n, kernel->lanes) * 3;
}

static bool dml__is_better_transposed(const dml__product *product, const dml__microkernel *kernel)
{
    return product->n < product->m && !dml__fills_lanes(product->n, kernel);
}

static dml__job dml__plan_product(dml__machine machine, const dml__product *product)
{
    dml__job job;
    job.product = *product;
    job.isa = machine.isa;
    job.l2 = (ptrdiff_t)machine.caches.l2;
    job.kernel = product->kernel ? product->kernel : dml__microkernel_get(job.isa);
    job.transposed = dml__is_better_transposed(product, job.kernel);
    if (job.transposed) {
        job.product.m = product->n;
        job.product.n = product->m;
        job.product.a = product->b;
        job.product.b = product->a;
    }
    job.rows = job.kernel->rows;
    job.full = (ptrdiff_t)job.kernel->lanes * job.kernel->vectors;
    return job;
}

/* The blocks of k: as many as needed, of about the same size, which the micro-kernel unrolls by 4. */
static ptrdiff_t dml__k_block(const dml__job *job, ptrdiff_t k)
{
    return dml__smaller(k, dml__round_up(dml__quotient_up(k, dml__quotient_up(k, job->kernel->k_block)), 4));
}

/* Where element (i, j) of the job's product lies. */
static inline float *dml__job_c(const dml__job *job, ptrdiff_t i, ptrdiff_t j)
{
    return job->product.c + (job->transposed ? j * job->product.ldc + i : i * job->product.ldc + j);
}

/* A tile that sticks out of C, or lies across it, is computed on the side by the very same instructions:
   `side` is (rows, width), `across` (columns, rows). */
static void dml__compute_aside(const dml__job *job, const dml__tile *tile, ptrdiff_t i0, ptrdiff_t j0,
                               float *side, float *across)
{
    const int lanes = job->kernel->lanes, width = (tile->columns + lanes - 1) / lanes * lanes;
    dml__tile whole = *tile;
    for (int i = 0; i < tile->rows; i++) whole.c[i] = side + i * width;
    whole.columns = width;
    whole.alpha = 1;
    whole.beta = 0;
    whole.bias = NULL;
    whole.relu = false;
    job->kernel->run(&whole);
    const dml__finish finish = { 1, 0, tile->alpha, tile->beta, tile->bias, tile->relu };
    if (!job->transposed) {
        for (int i = 0; i < tile->rows; i++)
            dml__finish_line(job->isa, (size_t)tile->columns, &finish, side + i * width,
                             dml__job_c(job, i0 + i, j0));
        return;
    }
    dml__pack_transposed(side, width, tile->rows, tile->columns, tile->rows, across);
    for (int j = 0; j < tile->columns; j++)
        dml__finish_line(job->isa, (size_t)tile->rows, &finish, across + j * tile->rows,
                         dml__job_c(job, i0, j0 + j));
}

/* Stack frames that only who needs them pays for. */
#define DML__SMALL_TILE_FLOATS 256
DML__NOINLINE static void dml__small_side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                               ptrdiff_t j0)
{
    float side[DML__SMALL_TILE_FLOATS], across[DML__SMALL_TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side, across);
}

DML__NOINLINE static void dml__side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                         ptrdiff_t j0)
{
    if (job->rows * job->full <= DML__SMALL_TILE_FLOATS) {
        dml__small_side_tile(job, tile, i0, j0);
        return;
    }
    float side[DML__TILE_FLOATS], across[DML__TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side, across);
}

/* How a range is computed: what is packed, and how much of it at once. */
typedef struct dml__blocking {
    bool pack_a, pack_b;
    bool across; /* tiles beside each other follow each other, and not those below each other */
    ptrdiff_t kc, mc, nc;
    float *a, *b; /* (mc, kc) in panels of a tile's rows; (kc, nc) in panels of its columns */
} dml__blocking;

/* The rows of a part in tiles of about the same height: so many of `height` + 1 rows, then so many of
 * `height`. */
typedef struct dml__heights {
    ptrdiff_t height, higher_until;
} dml__heights;

static dml__heights dml__divide_rows(const dml__job *job, const dml__range *part)
{
    const ptrdiff_t rows = part->i1 - part->i0, tiles = dml__quotient_up(rows, job->rows);
    const dml__heights heights = { rows / tiles, part->i0 + rows % tiles * (rows / tiles + 1) };
    return heights;
}

/* Rows of the tile that begins at row i. */
static inline int dml__height_at(const dml__heights *heights, ptrdiff_t i)
{
    return (int)(heights->height + (i < heights->higher_until));
}

/* Which columns of B lie ready: whole vectors of a matrix whose lanes are side by side. */
static inline bool dml__b_lies_ready(const dml__job *job, const dml__blocking *blocking, ptrdiff_t columns)
{
    return !blocking->pack_b && columns % job->kernel->lanes == 0;
}

/* Floats of k that a block takes, with the zeros that the micro-kernel wants behind it. */
static inline ptrdiff_t dml__filled_k(const dml__job *job, ptrdiff_t k)
{
    return job->kernel->k_multiple ? dml__round_up(k, job->kernel->k_multiple) : k;
}

/* Where B's columns are side by side: line by line, through all panels, since lines are best read from end to
 * end. */
static void dml__pack_lines_of_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const dml__matrix *b = (const dml__matrix *)job->product.b.source;
    const ptrdiff_t kc = part->k1 - part->k0, full = job->full, columns = part->j1 - part->j0;
    const ptrdiff_t whole = columns / full, rest = columns % full;
    const ptrdiff_t width = dml__round_up(rest, job->kernel->lanes);
    const float *line = b->x + part->j0 + part->k0 * b->k_step;
    for (ptrdiff_t k = 0; k < kc; k++, line += b->k_step) {
        float *to = blocking->b + k * full;
        if (full == 16)
            for (ptrdiff_t panel = 0; panel < whole; panel++, to += kc * full)
                memcpy(to, line + panel * 16, 16 * sizeof *to);
        else
            for (ptrdiff_t panel = 0; panel < whole; panel++, to += kc * full)
                memcpy(to, line + panel * full, (size_t)full * sizeof *to);
        if (!rest) continue;
        to = blocking->b + whole * kc * full + k * width;
        memcpy(to, line + whole * full, (size_t)rest * sizeof *to);
        memset(to + rest, 0, (size_t)(width - rest) * sizeof *to);
    }
}

static void dml__pack_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0), filled = (int)dml__filled_k(job, kc);
    if (blocking->pack_b && dml__has_lanes(&job->product.b)) {
        dml__pack_lines_of_b(job, blocking, part);
        return;
    }
    for (ptrdiff_t j = part->j0; j < part->j1; j += job->full) {
        const int columns = (int)dml__smaller(job->full, part->j1 - j);
        const ptrdiff_t width = dml__round_up(columns, job->kernel->lanes);
        if (dml__b_lies_ready(job, blocking, columns)) continue;
        float *panel = blocking->b + (blocking->pack_b ? (j - part->j0) * filled : 0);
        job->product.b.pack(job->product.b.source, j, columns, part->k0, kc, (int)width, panel);
        if (filled > kc) memset(panel + kc * width, 0, (size_t)((filled - kc) * width) * sizeof *panel);
    }
}

static void dml__pack_lines_of_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const ptrdiff_t kc = part->k1 - part->k0, filled = dml__filled_k(job, kc);
    float *line = blocking->a;
    for (ptrdiff_t i = part->i0; i < part->i1; i++, line += filled) {
        job->product.a.pack(job->product.a.source, i, 1, part->k0, (int)kc, 1, line);
        memset(line + kc, 0, (size_t)(filled - kc) * sizeof *line);
    }
}

static void dml__pack_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0);
    const dml__heights heights = dml__divide_rows(job, part);
    if (job->kernel->k_multiple) {
        dml__pack_lines_of_a(job, blocking, part);
        return;
    }
    for (ptrdiff_t i = part->i0, rows; i < part->i1; i += rows) {
        rows = dml__height_at(&heights, i);
        job->product.a.pack(job->product.a.source, i, (int)rows, part->k0, kc, (int)rows,
                            blocking->a + (i - part->i0) * kc);
    }
}

/* What a tile reads. */
static inline void dml__aim_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                              ptrdiff_t i, dml__tile *tile)
{
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    const float *row = blocking->a + (i - part->i0) * tile->k;
    ptrdiff_t row_step = 1;
    tile->a_step = tile->rows;
    tile->a_packed = blocking->pack_a && !job->kernel->k_multiple;
    if (!blocking->pack_a) {
        row = a->x + i * a->lane_step + part->k0 * a->k_step;
        row_step = a->lane_step;
        tile->a_step = a->k_step;
    } else if (job->kernel->k_multiple) {
        row_step = tile->k;
        tile->a_step = 1;
    }
    for (int r = 0; r < tile->rows; r++, row += row_step) tile->a[r] = row;
}

static inline void dml__aim_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                              ptrdiff_t j, dml__tile *tile)
{
    if (dml__b_lies_ready(job, blocking, tile->columns)) {
        const dml__matrix *b = (const dml__matrix *)job->product.b.source;
        tile->b = b->x + j + part->k0 * b->k_step;
        tile->b_step = b->k_step;
        tile->b_panel = tile->columns;
    } else {
        tile->b = blocking->b + (blocking->pack_b ? (j - part->j0) * tile->k : 0);
        tile->b_step = dml__round_up(tile->columns, job->kernel->lanes);
        tile->b_panel = tile->b_step * tile->k;
    }
}

/* The tile of C at (i, j), and those beside it. */
static inline void dml__run_tile(const dml__job *job, ptrdiff_t i, ptrdiff_t j, bool last, dml__tile *tile)
{
    const dml__product *product = &job->product;
    tile->bias = NULL;
    if (last && product->epilogue.bias) tile->bias = product->epilogue.bias + (job->transposed ? i : j);
    if (job->transposed || tile->columns % job->kernel->lanes) {
        dml__side_tile(job, tile, i, j);
        return;
    }
    float *c = product->c + i * product->ldc + j;
    for (int r = 0; r < tile->rows; r++, c += product->ldc) tile->c[r] = c;
    job->kernel->run(tile);
}

/* All tiles of a part of C, with A and B packed where they have to be. What the outer loop holds fixed stays
   in the first cache: a panel of B while the tiles below each other go over it, or a few rows of A. */
static void dml__multiply_part(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                               bool first, bool last)
{
    static const ptrdiff_t at_once[1] = { 0 };
    dml__tile tile;
    dml__tile_init(&tile);
    tile.blocks = 1;
    tile.a_at = tile.b_at = at_once;
    tile.k = (int)dml__filled_k(job, part->k1 - part->k0);
    tile.alpha = job->product.alpha;
    tile.beta = first ? job->product.beta : 1;
    tile.relu = last && job->product.epilogue.activation == DML_ACTIVATION_RELU;
    const dml__heights heights = dml__divide_rows(job, part);
    if (blocking->across) {
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.rows) {
            tile.rows = dml__height_at(&heights, i);
            dml__aim_a(job, blocking, part, i, &tile);
            for (ptrdiff_t j = part->j0; j < part->j1; j += tile.panels * tile.columns) {
                tile.columns = (int)dml__smaller(job->full, part->j1 - j);
                tile.panels = job->transposed ? 1 : (int)((part->j1 - j) / tile.columns);
                dml__aim_b(job, blocking, part, j, &tile);
                dml__run_tile(job, i, j, last, &tile);
            }
        }
        return;
    }
    for (ptrdiff_t j = part->j0; j < part->j1; j += job->full) {
        tile.columns = (int)dml__smaller(job->full, part->j1 - j);
        dml__aim_b(job, blocking, part, j, &tile);
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.rows) {
            tile.rows = dml__height_at(&heights, i);
            dml__aim_a(job, blocking, part, i, &tile);
            dml__run_tile(job, i, j, last, &tile);
        }
    }
}

static void dml__multiply_range(const dml__job *job, const dml__blocking *blocking, const dml__range *range)
{
    dml__range part;
    for (part.j0 = range->j0; part.j0 < range->j1; part.j0 = part.j1) {
        part.j1 = dml__smaller(part.j0 + blocking->nc, range->j1);
        for (part.k0 = range->k0; part.k0 < range->k1; part.k0 = part.k1) {
            part.k1 = dml__smaller(part.k0 + blocking->kc, range->k1);
            dml__pack_b(job, blocking, &part);
            for (part.i0 = range->i0; part.i0 < range->i1; part.i0 = part.i1) {
                part.i1 = dml__smaller(part.i0 + blocking->mc, range->i1);
                if (blocking->pack_a) dml__pack_a(job, blocking, &part);
                dml__multiply_part(job, blocking, &part, part.k0 == range->k0, part.k1 == range->k1);
            }
        }
    }
}

/* --- what is packed, and where --- */

/* Whether lines so far apart meet in the same sets of a first cache, which holds few of them at once. */
static bool dml__collides(ptrdiff_t line_step)
{
    const ptrdiff_t sets = 4096 / (ptrdiff_t)sizeof(float), near = 32;
    return (line_step + near) % sets <= 2 * near;
}

/* A factor is packed when it is no matrix; when its vectors don't lie ready; and when its lines are so far
   apart that a cache can't hold a block of them while it is used again and again, if it is used often enough.
 */
static bool dml__packs_a(const dml__factor *a, ptrdiff_t columns)
{
    if (a->pack != dml__pack_matrix) return true;
    const dml__matrix *matrix = (const dml__matrix *)a->source;
    if (matrix->k_step != 1) return columns >= 64;
    return columns >= (dml__collides(matrix->lane_step) ? 96 : 192);
}

static bool dml__packs_b(const dml__job *job, ptrdiff_t rows)
{
    return !dml__has_lanes(&job->product.b) || rows > 2 * job->rows;
}

/* So many rows of A that they take half of the second cache, which the rows of C and panels of B pass
 * through. */
static ptrdiff_t dml__rows_at_once(const dml__job *job, ptrdiff_t kc)
{
    const ptrdiff_t fitting = job->l2 / 2 / (kc * (ptrdiff_t)sizeof(float)) / job->rows;
    const ptrdiff_t most = DML__PACK_ROWS / job->rows;
    return (fitting < 1 ? 1 : dml__smaller(fitting, most)) * job->rows;
}

static dml__blocking dml__plan_blocking(const dml__job *job, const dml__range *range)
{
    dml__blocking blocking;
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    blocking.kc = dml__k_block(job, range->k1 - range->k0);
    blocking.pack_a = dml__packs_a(&job->product.a, columns);
    blocking.pack_b = dml__packs_b(job, rows);
    blocking.mc = dml__smaller(rows, dml__rows_at_once(job, blocking.kc));
    blocking.nc = columns;
    if (blocking.pack_b && columns > DML__PACK_COLUMNS)
        blocking.nc =
            dml__round_up(dml__quotient_up(columns, dml__quotient_up(columns, DML__PACK_COLUMNS)), job->full);
    blocking.across = job->kernel->k_multiple || blocking.kc <= DML__ACROSS_KC ||
                      blocking.kc * blocking.nc <= DML__ACROSS_FLOATS;
    blocking.a = blocking.b = NULL;
    return blocking;
}

/* Floats of the block of A, up to where the panels of B begin: aligned, or loads would cross cache lines.
   Lines are read by the whole tile. */
static ptrdiff_t dml__block_a_floats(const dml__job *job, const dml__blocking *blocking)
{
    const ptrdiff_t rows = job->kernel->k_multiple ? dml__round_up(blocking->mc, job->rows) : blocking->mc;
    return blocking->pack_a ? dml__round_up(dml__filled_k(job, blocking->kc) * rows,
                                            DML__ALIGNMENT / (ptrdiff_t)sizeof(float))
                            : 0;
}

static ptrdiff_t dml__blocking_floats(const dml__job *job, const dml__blocking *blocking)
{
    const ptrdiff_t columns = blocking->pack_b ? blocking->nc : dml__smaller(blocking->nc, job->full);
    return dml__block_a_floats(job, blocking) +
           dml__filled_k(job, blocking->kc) * dml__round_up(columns, job->kernel->lanes);
}

/* Computes a range with room for `floats`, which take at least a tile's panels of A and B. */
static void dml__multiply_within(const dml__job *job, dml__blocking *blocking, const dml__range *range,
                                 float *floats, ptrdiff_t count)
{
    if (blocking->pack_a && dml__blocking_floats(job, blocking) > count)
        blocking->mc = dml__smaller(blocking->mc, job->rows);
    blocking->a = floats;
    blocking->b = floats + dml__block_a_floats(job, blocking);
    const ptrdiff_t fitting = (count - dml__block_a_floats(job, blocking)) /
                              dml__filled_k(job, blocking->kc) / job->full * job->full;
    if (blocking->pack_b && dml__blocking_floats(job, blocking) > count) blocking->nc = fitting;
    dml__multiply_range(job, blocking, range);
}

static float *dml__aligned_floats(float *memory)
{
    return memory + (size_t)(-(intptr_t)memory & (DML__ALIGNMENT - 1)) / sizeof *memory;
}

DML__NOINLINE static void dml__multiply_on_stack(const dml__job *job, dml__blocking *blocking,
                                                 const dml__range *range)
{
    float panels[DML__STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, blocking, range, dml__aligned_floats(panels), DML__STACK_FLOATS);
}

DML__NOINLINE static void dml__multiply_on_small_stack(const dml__job *job, dml__blocking *blocking,
                                                       const dml__range *range)
{
    float panels[DML__SMALL_STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, blocking, range, dml__aligned_floats(panels), DML__SMALL_STACK_FLOATS);
}

/* Floats that the panels of one tile take. */
static ptrdiff_t dml__least_floats(const dml__job *job, const dml__blocking *blocking)
{
    dml__blocking least = *blocking;
    least.mc = dml__smaller(least.mc, job->rows);
    least.nc = dml__smaller(least.nc, job->full);
    return dml__blocking_floats(job, &least);
}

/* Computes any range, with the worker's scratch if that is enough. */
static void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range)
{
    dml__blocking blocking = dml__plan_blocking(job, range);
    const ptrdiff_t whole = dml__blocking_floats(job, &blocking);
    float *scratch = (float *)dml_pool_scratch(pool, worker);
    const ptrdiff_t floats = scratch ? (ptrdiff_t)(dml_pool_scratch_bytes(pool).worker / sizeof *scratch) : 0;
    if (floats >= whole || floats >= DML__STACK_FLOATS)
        dml__multiply_within(job, &blocking, range, scratch, floats);
    else if (whole <= DML__SMALL_STACK_FLOATS)
        dml__multiply_on_small_stack(job, &blocking, range);
    else if (floats >= dml__least_floats(job, &blocking))
        dml__multiply_within(job, &blocking, range, scratch, floats);
    else
        dml__multiply_on_stack(job, &blocking, range);
}

/* What the end of a line takes from a product whose sums were formed on the side: terms, `step` apart. */
static dml__finish dml__end_of(const dml__product *product, int terms, ptrdiff_t step)
{
    const dml__finish finish = { terms,
                                 step,
                                 product->alpha,
                                 product->beta,
                                 product->epilogue.bias,
                                 product->epilogue.activation == DML_ACTIVATION_RELU };
    return finish;
}

/* For a product without terms. */
static void dml__scale_c(const dml__product *product)
{
    for (ptrdiff_t i = 0; i < product->m; i++) {
        float *row = product->c + i * product->ldc;
        for (ptrdiff_t j = 0; j < product->n; j++) {
            float value = product->beta == 0 ? 0 : product->beta * row[j];
            if (product->epilogue.bias) value += product->epilogue.bias[j];
            row[j] = product->epilogue.activation == DML_ACTIVATION_RELU && value <= 0 ? 0 : value;
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

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const dml__product *product = &job->product;
    const ptrdiff_t rows = job->rows, full = job->full;
    const double work = (double)product->m * (double)product->n * (double)product->k;
    const ptrdiff_t wanted =
        work < DML__SERIAL_WORK || dml_pool_threads(pool) == 1 ? 1 : 4 * dml_pool_threads(pool);
    /* Tiles, not elements: halves of the longer side until there is enough to share out. */
    ptrdiff_t wide = dml__quotient_up(product->n, full), high = dml__quotient_up(product->m, rows);
    while (dml__quotient_up(product->m, high * rows) * dml__quotient_up(product->n, wide * full) < wanted &&
           high * wide > 4) {
        if (wide == 1 || high * rows >= wide * full)
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
    return k >= 2 * DML__CHUNK_K && m <= DML__CHUNKED_C / n;
}

static ptrdiff_t dml__chunk_size(ptrdiff_t k)
{
    const ptrdiff_t blocks = dml__quotient_up(k, DML__CHUNK_K);
    return dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__CHUNK_K;
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

/* Chunk c's partial sums of a range of the job's C, where that range's first element is to lie at `partial`.
 */
static void dml__compute_chunk(const dml__chunk_loop *loop, int c, dml__range range, float *partial,
                               int worker)
{
    dml__job job = loop->job;
    job.product.c = partial;
    job.product.c -= dml__job_c(&job, range.i0, range.j0) - partial;
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

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    const dml__finish finish = dml__end_of(product, loop->chunks, product->m * product->n);
    (void)worker;
    dml__finish_line(loop->job.isa, (size_t)product->n, &finish, loop->partial + task * product->n,
                     product->c + task * product->ldc);
}

/* A block of C through all chunks, with sums on the stack: packs more often than the chunks do. */
static void dml__chunked_block_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    dml__chunk_loop block = *loop;
    const dml__product *whole = &loop->job.product;
    const ptrdiff_t i = task / loop->columns_of_blocks * loop->mc,
                    j = task % loop->columns_of_blocks * loop->nc;
    const dml__range range = { i, dml__smaller(i + loop->mc, whole->m),
                               j, dml__smaller(j + loop->nc, whole->n),
                               0, 0 };
    const bool transposed = loop->job.transposed;
    const ptrdiff_t lines = transposed ? range.j1 - range.j0 : range.i1 - range.i0;
    const ptrdiff_t length = transposed ? range.i1 - range.i0 : range.j1 - range.j0;
    const ptrdiff_t line = transposed ? range.j0 : range.i0, first = transposed ? range.i0 : range.j0;
    static const dml__finish add = { 1, 0, 1, 1, NULL, false };
    dml__finish finish = dml__end_of(loop->product, 1, 0);
    float sum[DML__CHUNK_BLOCK], partial[DML__CHUNK_BLOCK]; /* (lines, length) */
    block.job.product.ldc = length;
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(&block, c, range, c ? partial : sum, worker);
        if (c) dml__finish_line(loop->job.isa, (size_t)(lines * length), &add, partial, sum);
    }
    if (finish.bias) finish.bias += first;
    for (ptrdiff_t l = 0; l < lines; l++)
        dml__finish_line(loop->job.isa, (size_t)length, &finish, sum + l * length,
                         loop->product->c + (line + l) * loop->product->ldc + first);
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    memset(&part.epilogue, 0, sizeof part.epilogue);
    part.ldc = part.n;
    const ptrdiff_t chunk = dml__chunk_size(product->k);
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = {
        product, dml__plan_product(dml__pool_machine(pool), &part), pool, chunk, chunks, NULL, 0, 0, 0
    };
    const dml__job *job = &loop.job;
    const size_t partial_bytes = (size_t)chunks * (size_t)(product->m * product->n) * sizeof(float);
    if (dml_pool_scratch_bytes(pool).shared >= partial_bytes) {
        loop.partial = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
        dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
        return;
    }
    loop.nc = job->full;
    loop.mc = DML__CHUNK_BLOCK / job->full / job->rows * job->rows;
    loop.columns_of_blocks = dml__quotient_up(job->product.n, loop.nc);
    dml_pool_run(pool, (int)(dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks),
                 dml__chunked_block_task, &loop);
}

DML__LOCAL dml_scratch dml__product_scratch(const dml__product *product)
{
    dml_scratch scratch = { 0, 0 };
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (m <= 0 || n <= 0 || k <= 0 || dml__thin_kind(product) != DML__NOT_THIN) return scratch;
    const dml__machine machine = dml__pool_machine(NULL);
    const dml__job job = dml__plan_product(machine, product);
    const dml__range all = { 0, job.product.m,
                             0, job.product.n,
                             0, dml__is_chunked(m, n, k) ? dml__chunk_size(k) : k };
    const dml__blocking blocking = dml__plan_blocking(&job, &all);
    scratch.worker = (size_t)dml__blocking_floats(&job, &blocking) * sizeof(float);
    if (dml__is_chunked(m, n, k))
        scratch.shared = (size_t)(dml__quotient_up(k, dml__chunk_size(k)) * m * n) * sizeof(float);
    return scratch;
}

DML__LOCAL bool dml__multiply_alone(dml_pool *pool, int worker, const dml__product *product)
{
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (m <= 0 || n <= 0) return true;
    if (k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product) != DML__NOT_THIN) {
        dml__multiply_thin(NULL, product);
    } else if (dml__is_chunked(m, n, k)) {
        return false;
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        const dml__range all = { 0, job.product.m, 0, job.product.n, 0, k };
        dml__multiply_as(pool, worker, &job, &all);
    }
    return true;
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product) != DML__NOT_THIN) {
        dml__multiply_thin(pool, product);
    } else if (dml__is_chunked(product->m, product->n, product->k)) {
        dml__multiply_chunks(pool, product);
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        dml__multiply_blocks(pool, &job);
    }
}

#endif
