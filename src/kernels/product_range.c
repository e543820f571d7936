#ifndef DML_KERNELS_PRODUCT_RANGE_C
#define DML_KERNELS_PRODUCT_RANGE_C

#include "kernels/product_range.h"

#include "kernels/finish.h"
#include "kernels/product_plan.h"
#include "kernels/vector.h"

#include <string.h>

/* Where the scratch is too small, the stack of whoever computes holds one full panel of each factor; what
   needs little takes little of it. */
#define DML__STACK_FLOATS DML__PANEL_FLOATS
#define DML__SMALL_STACK_FLOATS 1536
#define DML__STACK_SLACK (DML__ALIGNMENT / sizeof(float))

/* Rows of A from memory are asked for at least so many bytes ahead: a few tiles, which stay in the first
   cache. */
#define DML__ASKING_NEAR ((ptrdiff_t)9216)

/* Columns of the tile at column j of a part that ends at `end`. A part is cut so that only its last tile
   isn't whole vectors, and is wider than one vector unless the part is narrower; the micro-kernel then needs
   no room beside it. */
static inline ptrdiff_t dml__columns_at(const dml__job *job, ptrdiff_t j, ptrdiff_t end)
{
    const ptrdiff_t columns = end - j, least = job->kernel->least_columns;
    if (columns <= job->full) return columns;
    return columns < job->full + least ? least : job->full;
}

/* Where tiles lie across C, the bias goes along rows. */
static void dml__add_bias_across(const dml__tile *tile, int width, float *side)
{
    for (int i = 0; i < tile->rows; i++)
        for (int j = 0; j < tile->columns; j++) {
            const float value = side[i * width + j] + tile->bias[i];
            side[i * width + j] = tile->relu && value <= 0 ? 0 : value;
        }
}

/* The sums are turned into C; and C before, where it is added to. */
static void dml__compute_across(const dml__job *job, const dml__tile *tile, dml__tile *whole, int width,
                                float *side, float *c)
{
    if (tile->beta != 0) {
        memset(side, 0, (size_t)(tile->rows * width) * sizeof *side);
        dml__pack_transposed(c, job->product.ldc, tile->columns, tile->rows, width, side);
    }
    whole->relu = tile->relu && !tile->bias;
    job->kernel->run(whole);
    if (tile->bias) dml__add_bias_across(tile, width, side);
    dml__pack_transposed(side, width, tile->rows, tile->columns, job->product.ldc, c);
}

/* A tile that sticks out of C, or lies across it, is computed on the side by the very same instructions:
   `side` is (rows, width). */
static void dml__compute_aside(const dml__job *job, const dml__tile *tile, ptrdiff_t i0, ptrdiff_t j0,
                               float *side)
{
    const int width = (int)dml__panel_width(job, tile->columns);
    float *c = dml__job_c(job, i0, j0);
    dml__tile whole = *tile;
    for (int i = 0; i < tile->rows; i++) whole.c[i] = side + i * width;
    whole.columns = width;
    whole.bias = NULL;
    if (job->transposed) {
        dml__compute_across(job, tile, &whole, width, side, c);
        return;
    }
    whole.beta = 0;
    whole.relu = false;
    job->kernel->run(&whole);
    const dml__finish finish = { 1, 0, 1, tile->beta, tile->bias, tile->relu };
    for (int i = 0; i < tile->rows; i++)
        dml__finish_line(job->isa, (size_t)tile->columns, &finish, side + i * width,
                         c + i * job->product.ldc);
}

/* Stack frames that only who needs them pays for. */
#define DML__SMALL_TILE_FLOATS 256
DML__NOINLINE static void dml__small_side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                               ptrdiff_t j0)
{
    float side[DML__SMALL_TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side);
}

DML__NOINLINE static void dml__side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                         ptrdiff_t j0)
{
    if (tile->rows * job->full <= DML__SMALL_TILE_FLOATS) {
        dml__small_side_tile(job, tile, i0, j0);
        return;
    }
    float side[DML__TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side);
}

/* The rows of a part: first high tiles, then tiles of about the same height, so many of `height` + 1 rows and
   so many of `height`; or in tall ones, and what is left in another. */
typedef struct dml__heights {
    ptrdiff_t high_until, height, higher_until, tall_until;
} dml__heights;

/* How many of a part's rows are in high tiles: one or two that would be left are too few for a tile. The rows
   of a tile that are used in place must not meet in one set of a first cache of eight lines a set. */
#define DML__EIGHT_WAYS 32768
static ptrdiff_t dml__high_rows(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const ptrdiff_t rows = part->i1 - part->i0, left = rows % DML__HIGH_ROWS;
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    if (!job->kernel->tall_rows || rows < DML__HIGH_ROWS || part->j1 - part->j0 < job->full ||
        (part->k1 - part->k0) % 4 != 0)
        return 0;
    if (job->l1 <= DML__EIGHT_WAYS && !blocking->pack_a && a->k_step == 1 && dml__collides(a->lane_step))
        return 0;
    return rows - left - (left == 1 || left == 2 ? DML__HIGH_ROWS : 0);
}

static dml__heights dml__divide_rows(const dml__job *job, const dml__blocking *blocking,
                                     const dml__range *part)
{
    const ptrdiff_t high = dml__high_rows(job, blocking, part), from = part->i0 + high;
    const ptrdiff_t rows = part->i1 - from, tiles = dml__larger(1, dml__quotient_up(rows, job->rows));
    const bool tall =
        !blocking->pack_a && part->j1 - part->j0 <= job->kernel->lanes && job->kernel->tall_rows;
    const dml__heights heights = { from, rows / tiles, from + rows % tiles * (rows / tiles + 1),
                                   tall ? part->i1 : 0 };
    return heights;
}

/* Rows of the tile that begins at row i. */
static inline int dml__height_at(const dml__job *job, const dml__heights *heights, ptrdiff_t i)
{
    const ptrdiff_t left = heights->tall_until - i;
    if (i < heights->high_until) return DML__HIGH_ROWS;
    if (left <= 0) return (int)(heights->height + (i < heights->higher_until));
    if (left >= job->kernel->tall_rows) return job->kernel->tall_rows;
    return (int)(left >= 10 ? 10 : left > job->rows ? left / 2 : left);
}

/* Which columns of B lie ready: at least a vector of a matrix whose lanes are side by side. */
static inline bool dml__b_lies_ready(const dml__job *job, const dml__blocking *blocking, ptrdiff_t columns)
{
    return !blocking->pack_b && columns >= job->kernel->least_columns;
}

/* Where B's columns are side by side: all full panels at once. Returns how many columns that were. */
static ptrdiff_t dml__pack_lines_of_b(const dml__job *job, const dml__blocking *blocking,
                                      const dml__range *part)
{
    const dml__factor *b = &job->product.b;
    const ptrdiff_t kc = part->k1 - part->k0, full = job->full, columns = part->j1 - part->j0;
    const ptrdiff_t rest = columns % full, least = job->kernel->least_columns;
    const ptrdiff_t whole = columns / full - (columns > full && rest > 0 && rest < least);
    const ptrdiff_t apart = full * dml__filled_k(job, kc);
    if (dml__packs_panels(b)) {
        b->packers->pack_panels(b->source, part->j0, whole, part->k0, (int)kc, (int)full, apart, blocking->b);
        for (ptrdiff_t panel = 0; panel < whole && apart > full * kc; panel++)
            memset(blocking->b + panel * apart + full * kc, 0, (size_t)(apart - full * kc) * sizeof(float));
    } else {
        const dml__matrix *m = (const dml__matrix *)b->source;
        dml__pack_panels(m->x + part->j0 + part->k0 * m->k_step, m->k_step, whole, kc, full, blocking->b);
    }
    return whole * full;
}

static void dml__pack_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0), filled = (int)dml__filled_k(job, kc);
    ptrdiff_t j = part->j0, columns;
    if (blocking->pack_b && (dml__packs_panels(&job->product.b) || dml__has_lanes(&job->product.b)))
        j += dml__pack_lines_of_b(job, blocking, part);
    for (; j < part->j1; j += columns) {
        columns = dml__columns_at(job, j, part->j1);
        const ptrdiff_t width = dml__panel_width(job, columns);
        if (dml__b_lies_ready(job, blocking, columns)) continue;
        float *panel = blocking->b + (blocking->pack_b ? (j - part->j0) * filled : 0);
        job->product.b.pack(job->product.b.source, j, (int)columns, part->k0, kc, (int)width, panel);
        if (filled > kc) memset(panel + kc * width, 0, (size_t)((filled - kc) * width) * sizeof *panel);
    }
}

static void dml__pack_lines_of_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const ptrdiff_t kc = part->k1 - part->k0, filled = dml__filled_k(job, kc);
    const dml__factor *a = &job->product.a;
    const bool together = a->packers && a->packers->pack_lines;
    float *line = blocking->a;
    if (together)
        a->packers->pack_lines(a->source, part->i0, (int)(part->i1 - part->i0), part->k0, (int)kc, filled,
                               line);
    for (ptrdiff_t i = part->i0; i < part->i1; i++, line += filled) {
        if (!together) a->pack(a->source, i, 1, part->k0, (int)kc, 1, line);
        if (filled > kc) memset(line + kc, 0, (size_t)(filled - kc) * sizeof *line);
    }
}

static void dml__pack_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0);
    const dml__heights heights = dml__divide_rows(job, blocking, part);
    if (blocking->lines) {
        dml__pack_lines_of_a(job, blocking, part);
        return;
    }
    ptrdiff_t i = part->i0;
    if (dml__has_lanes(&job->product.a) && heights.high_until > i) {
        const dml__matrix *a = (const dml__matrix *)job->product.a.source;
        dml__pack_panels(a->x + i + part->k0 * a->k_step, a->k_step,
                         (heights.high_until - i) / DML__HIGH_ROWS, kc, DML__HIGH_ROWS, blocking->a);
        i = heights.high_until;
    }
    for (ptrdiff_t rows; i < part->i1; i += rows) {
        rows = dml__height_at(job, &heights, i);
        job->product.a.pack(job->product.a.source, i, (int)rows, part->k0, kc, (int)rows,
                            blocking->a + (i - part->i0) * kc);
    }
}

/* So many full tiles lie beside each other, from column j on; or one of another width. */
static inline int dml__panels_at(const dml__job *job, ptrdiff_t j, ptrdiff_t end, ptrdiff_t columns)
{
    if (job->transposed || columns < job->full) return 1;
    const ptrdiff_t rest = (end - j) % job->full;
    return (int)((end - j) / job->full - (rest > 0 && rest < job->kernel->least_columns));
}

/* What a tile reads. */
static inline void dml__aim_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                              ptrdiff_t i, dml__tile *tile)
{
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    const float *row = blocking->a + (i - part->i0) * tile->k;
    ptrdiff_t row_step = 1;
    tile->a_step = tile->rows;
    tile->a_packed = blocking->pack_a && !blocking->lines;
    if (!blocking->pack_a) {
        row = a->x + i * a->lane_step + part->k0 * a->k_step;
        row_step = a->lane_step;
        tile->a_step = a->k_step;
        tile->row_step = a->lane_step;
        tile->a_packed = a->lane_step == 1;
    } else if (blocking->lines) {
        row_step = tile->k;
        tile->a_step = 1;
    }
    for (int r = 0; r < tile->rows; r++, row += row_step) tile->a[r] = row;
    tile->a_below = tile->rows * (blocking->pack_a ? tile->k : row_step);
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
        tile->b_step = dml__panel_width(job, tile->columns);
        tile->b_panel = tile->b_step * tile->k;
    }
}

/* The tile of C at (i, j), and those beside it. */
static inline void dml__run_tile(const dml__job *job, ptrdiff_t i, ptrdiff_t j, bool last, dml__tile *tile)
{
    const dml__product *product = &job->product;
    tile->bias = NULL;
    if (last && product->epilogue.bias) tile->bias = product->epilogue.bias + (job->transposed ? i : j);
    if (job->transposed || tile->columns < job->kernel->least_columns) {
        dml__side_tile(job, tile, i, j);
        return;
    }
    float *c = product->c + i * product->ldc + j;
    for (int r = 0; r < tile->rows; r++, c += product->ldc) tile->c[r] = c;
    tile->c_below = tile->rows * product->ldc;
    job->kernel->run(tile);
}

/* How many tiles of as many rows as the one at row i lie below each other, which the micro-kernel takes at
   once. */
static inline int dml__tiles_below(const dml__job *job, const dml__heights *heights, const dml__range *part,
                                   ptrdiff_t i, const dml__tile *tile)
{
    const ptrdiff_t end = i < heights->high_until     ? heights->high_until
                          : i < heights->higher_until ? heights->higher_until
                                                      : part->i1;
    if (heights->tall_until || job->kernel->k_multiple || job->transposed) return 1;
    return (int)((end - i) / tile->rows);
}

/* Asks for what lies ahead in an A that comes from memory and is used where it is, while the tile is
   computed. Of rows: a little, where tiles beside each other follow each other; else as much of the next part
   as will be there when its turn comes, a share for each panel. */
static void dml__ask_for_rows(const dml__job *job, const dml__blocking *blocking, ptrdiff_t i,
                              ptrdiff_t panel, ptrdiff_t panels, dml__tile *tile)
{
    const ptrdiff_t row = ((const dml__matrix *)job->product.a.source)->lane_step * (ptrdiff_t)sizeof(float);
    const ptrdiff_t step = dml__quotient_up(4 * (ptrdiff_t)sizeof(float) * tile->rows, panels);
    const ptrdiff_t share = tile->k / 4 * step;
    const ptrdiff_t ahead =
        blocking->across ? dml__larger(share, DML__ASKING_NEAR) : blocking->mc * row + panel * share;
    if (!blocking->across && i + blocking->mc + tile->rows > blocking->ask_until) return;
    tile->ask = (uintptr_t)tile->a[0] + (uintptr_t)ahead;
    tile->ask_step = step;
}

/* Of lines, the tiles of the first panel share the k's of the next block. */
static void dml__ask_for_lines(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                               ptrdiff_t i, dml__tile *tile)
{
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    const ptrdiff_t kc = dml__smaller(blocking->kc, blocking->ask_k - part->k1);
    const ptrdiff_t high = part->i1 - part->i0, at = i - part->i0, end = (at + tile->rows) * kc / high;
    ptrdiff_t k = at * kc / high;
    const float *line = a->x + part->i0 + (part->k1 + k) * a->k_step;
    if (job->kernel->asks && tile->rows == job->rows && a->k_step == high && tile->k >= 4) {
        tile->ask = (uintptr_t)line;
        tile->ask_step = dml__quotient_up((end - k) * high * (ptrdiff_t)sizeof(float), tile->k / 4);
        return;
    }
    for (; k < end; k++, line += a->k_step)
        for (ptrdiff_t r = 0; r < high; r += 16) DML__PREFETCH(line + r);
}

/* The rows of the tiles from row i on that are computed in one call. */
static void dml__aim_rows(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                          const dml__heights *heights, ptrdiff_t i, ptrdiff_t panel, ptrdiff_t panels,
                          dml__tile *tile)
{
    tile->rows = dml__height_at(job, heights, i);
    tile->below = 1;
    tile->ask_step = 0;
    dml__aim_a(job, blocking, part, i, tile);
    if (blocking->ask_until > 0)
        dml__ask_for_rows(job, blocking, i, panel, panels, tile);
    else if (panel == 0 && part->k1 < blocking->ask_k)
        dml__ask_for_lines(job, blocking, part, i, tile);
    else if (blocking->ask_k == 0 && tile->columns >= job->kernel->least_columns)
        tile->below = dml__tiles_below(job, heights, part, i, tile);
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
    tile.stream = blocking->stream;
    tile.relu = last && job->product.epilogue.activation == DML_ACTIVATION_RELU;
    const dml__heights heights = dml__divide_rows(job, blocking, part);
    if (blocking->across) {
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.below * tile.rows) {
            tile.columns = (int)dml__columns_at(job, part->j0, part->j1);
            dml__aim_rows(job, blocking, part, &heights, i, 0, 1, &tile);
            for (ptrdiff_t j = part->j0; j < part->j1; j += tile.panels * tile.columns) {
                tile.columns = (int)dml__columns_at(job, j, part->j1);
                tile.panels = dml__panels_at(job, j, part->j1, tile.columns);
                dml__aim_b(job, blocking, part, j, &tile);
                dml__run_tile(job, i, j, last, &tile);
            }
        }
        return;
    }
    const ptrdiff_t panels = dml__quotient_up(part->j1 - part->j0, job->full);
    for (ptrdiff_t j = part->j0; j < part->j1; j += tile.columns) {
        tile.columns = (int)dml__columns_at(job, j, part->j1);
        dml__aim_b(job, blocking, part, j, &tile);
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.below * tile.rows) {
            dml__aim_rows(job, blocking, part, &heights, i, (j - part->j0) / job->full, panels, &tile);
            dml__run_tile(job, i, j, last, &tile);
        }
    }
}

/* Where a block of k begins among panels that are packed ahead. */
static inline float *dml__panels_of(const dml__job *job, ptrdiff_t k0)
{
    return job->product.panels + k0 * dml__panel_width(job, job->product.n);
}

static void dml__ready_b(const dml__job *job, dml__blocking *blocking, const dml__range *part)
{
    if (job->product.panels)
        blocking->b = dml__panels_of(job, part->k0);
    else
        dml__pack_b(job, blocking, part);
}

static void dml__multiply_range(const dml__job *job, dml__blocking *blocking, const dml__range *range)
{
    dml__range part;
    for (part.j0 = range->j0; part.j0 < range->j1; part.j0 = part.j1) {
        part.j1 = dml__cut_columns(job, part.j0 + blocking->nc, range->j1);
        for (part.k0 = range->k0; part.k0 < range->k1; part.k0 = part.k1) {
            part.k1 = dml__smaller(part.k0 + blocking->kc, range->k1);
            dml__ready_b(job, blocking, &part);
            for (part.i0 = range->i0; part.i0 < range->i1; part.i0 = part.i1) {
                part.i1 = dml__smaller(part.i0 + blocking->mc, range->i1);
                if (blocking->pack_a) dml__pack_a(job, blocking, &part);
                dml__multiply_part(job, blocking, &part, part.k0 == range->k0, part.k1 == range->k1);
            }
        }
    }
    if (blocking->stream) DML__STREAM_FENCE();
}

/* Floats of the block of A, up to where the panels of B begin: aligned, or loads would cross cache lines. */
static ptrdiff_t dml__block_a_floats(const dml__job *job, const dml__blocking *blocking)
{
    return blocking->pack_a ? dml__round_up(dml__filled_k(job, blocking->kc) * blocking->mc,
                                            DML__ALIGNMENT / (ptrdiff_t)sizeof(float))
                            : 0;
}

static ptrdiff_t dml__blocking_floats(const dml__job *job, const dml__blocking *blocking)
{
    const ptrdiff_t columns = blocking->pack_b ? blocking->nc : dml__smaller(blocking->nc, job->full);
    if (job->product.panels) return dml__block_a_floats(job, blocking);
    return dml__block_a_floats(job, blocking) +
           dml__filled_k(job, blocking->kc) * dml__panel_width(job, columns);
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

DML__LOCAL void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range)
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

DML__LOCAL void dml__pack_ahead(const dml__job *job)
{
    const dml__product *product = &job->product;
    const dml__range all = { 0, product->m, 0, product->n, 0, product->k };
    dml__blocking blocking = dml__plan_blocking(job, &all);
    dml__range part = all;
    for (; part.k0 < all.k1; part.k0 = part.k1) {
        part.k1 = dml__smaller(part.k0 + blocking.kc, all.k1);
        blocking.b = dml__panels_of(job, part.k0);
        dml__pack_b(job, &blocking, &part);
    }
}

/* On any processor: a machine that isn't known has small caches, of which one with larger ones fills more,
   and packs a panel at a time wherever that does. */
DML__LOCAL size_t dml__range_scratch(const dml__job *job, const dml__range *range)
{
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    dml__blocking blocking = dml__plan_blocking(job, range);
    blocking.mc = dml__smaller(rows, dml__most_rows_at_once(job));
    if (!job->kernel->k_multiple && !dml__packs_one_panel(job, &blocking, rows))
        blocking.nc = dml__smaller(columns, DML__PACK_COLUMNS);
    return (size_t)dml__blocking_floats(job, &blocking) * sizeof(float);
}

#endif
