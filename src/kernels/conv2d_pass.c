#ifndef DML_KERNELS_CONV2D_PASS_C
#define DML_KERNELS_CONV2D_PASS_C

#include "kernels/conv2d_pass.h"

#include "base/float16.h"
#include "kernels/conv2d_pass_plan.h"
#include "kernels/conv2d_tall.h"
#include "kernels/pack.h"
#include "kernels/vector.h"
#include "thread/pool_internal.h"
#include "thread/scratch.h"

#include <string.h>

/* The micro-kernel's rows are pixels of the grid, in order through lines and images; its columns are filters,
   of which up to a vector take tall tiles (conv2d_tall.h); its blocks are taps, or lines of taps where those
   lie side by side. Where taps reach outside of the image, pixels that meet the same taps are taken together,
   and the taps outside are left out: the middle of all images of a band, their corners, the rest of their
   edges. Where that would be single pixels, a band of lines, or of whole images, is copied into the worker's
   scratch with zeros around it. The weights are packed into panels (k, lanes * vectors) with k in the order
   of the taps; once for all bands in the shared scratch, or block by block where they are used. */

/* One line of a copied band may take more than DML__CONV_BAND; where it takes more than this, the patches are
   gathered tile by tile. */
#define DML__CONV_BAND_MOST 262144
#define DML__CONV_PANELS 4096 /* floats of panels, which stay in a level-1 cache */

DML__LOCAL void dml__conv_copy(float *to, const float *from, ptrdiff_t count)
{
    if (count >= 128) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    for (; count >= 8; count -= 8, to += 8, from += 8) memcpy(to, from, 8 * sizeof *to);
    for (; count > 0; count--) *to++ = *from++;
}

DML__LOCAL void dml__conv_zero(float *to, ptrdiff_t count)
{
    if (count > 0) memset(to, 0, (size_t)count * sizeof *to);
}

DML__LOCAL void dml__conv_tile(const dml__microkernel *kernel, const dml__tile *tile, int columns)
{
    if (columns == tile->columns) {
        kernel->run(tile);
        return;
    }
    if (columns >= kernel->least_columns) {
        dml__tile some = *tile;
        some.columns = columns;
        kernel->run(&some);
        return;
    }
    float side[DML__CONV_ROWS * DML__CONV_COLUMNS];
    dml__tile whole = *tile;
    for (int i = 0; i < tile->rows; i++) {
        whole.c[i] = side + i * tile->columns;
        if (tile->beta != 0) {
            dml__conv_zero(whole.c[i], tile->columns);
            dml__conv_copy(whole.c[i], tile->c[i], columns);
        }
    }
    kernel->run(&whole);
    for (int i = 0; i < tile->rows; i++) dml__conv_copy(tile->c[i], whole.c[i], columns);
}

DML__LOCAL void dml__conv_round(dml_pool *pool, dml_dtype dtype, ptrdiff_t count, float *x)
{
    if (dtype != DML_F32) dml__round_line(dml__pool_machine(pool).isa, dtype, (size_t)count, x);
}

/* --- the weights --- */

/* Weights of more floats come from far, in lines that lie too far apart for the processor to look ahead by
   itself: so many of a panel's k's ahead they are asked for; at its end, those of the next panel. */
#define DML__CONV_NEAR_WEIGHTS 65536
#define DML__CONV_ROWS_AHEAD 16
#define DML__CONV_LINES_AHEAD 32

/* Columns lie side by side, one k's behind the other's. */
static void dml__conv_pass_pack_rows(const float *from, ptrdiff_t k_step, ptrdiff_t count, ptrdiff_t columns,
                                     ptrdiff_t width, float *out)
{
    for (ptrdiff_t k = 0; k < count; k++, from += k_step, out += width) {
        const float *ahead = from + DML__CONV_ROWS_AHEAD * k_step;
        if (k + DML__CONV_ROWS_AHEAD >= count) ahead += columns - count * k_step;
        DML__PREFETCH(ahead);
        DML__PREFETCH(ahead + 16);
        if (columns == 16)
            memcpy(out, from, 16 * sizeof *out);
        else
            dml__conv_copy(out, from, columns);
    }
}

/* A column's k's lie side by side. */
static void dml__conv_pass_pack_lines(const float *from, ptrdiff_t column_step, ptrdiff_t count,
                                      ptrdiff_t columns, ptrdiff_t width, bool far, float *out)
{
    for (ptrdiff_t k = 0; k < count; k += 16, out += 16 * width) {
        const float *ahead = from + k + DML__CONV_LINES_AHEAD;
        if (k + DML__CONV_LINES_AHEAD >= count) ahead += columns * column_step - count;
        for (ptrdiff_t j = 0; far && j < columns; j++) DML__PREFETCH(ahead + j * column_step);
        dml__pack_transposed(from + k, column_step, (int)columns, (int)dml__smaller(16, count - k), width,
                             out);
    }
}

DML__LOCAL void dml__conv_pass_pack(const dml__conv_pass *p, ptrdiff_t j0, ptrdiff_t columns, ptrdiff_t width,
                                    ptrdiff_t k0, ptrdiff_t k1, float *out)
{
    const bool far = p->taps_h * p->taps_w * p->depth * p->columns > DML__CONV_NEAR_WEIGHTS;
    if (columns < width) dml__conv_zero(out, (k1 - k0) * width);
    while (k0 < k1) { /* a tap at a time */
        const ptrdiff_t tap = k0 / p->depth, d = k0 % p->depth;
        ptrdiff_t count = dml__smaller(p->depth - d, k1 - k0);
        const float *from = p->weights + tap / p->taps_w * p->weights_tap_h +
                            tap % p->taps_w * p->weights_tap_w + d * p->weights_depth +
                            j0 * p->weights_column;
        if (p->weights_column == 1) {
            dml__conv_pass_pack_rows(from, p->weights_depth, count, columns, width, out);
        } else {
            /* The forward weights of a filter lie side by side for all taps. */
            if (p->weights_tap_w == p->depth && p->weights_tap_h == p->taps_w * p->depth) count = k1 - k0;
            dml__conv_pass_pack_lines(from, p->weights_column, count, columns, width, far, out);
        }
        out += count * width;
        k0 += count;
    }
}

static ptrdiff_t dml__conv_pass_panel_columns(const dml__conv_pass_plan *plan, ptrdiff_t panel)
{
    return dml__smaller(plan->full, plan->pass->columns - panel * plan->full);
}

static void dml__conv_pass_pack_task(void *argument, int task, int worker)
{
    const dml__conv_pass_plan *plan = (const dml__conv_pass_plan *)argument;
    const ptrdiff_t columns = dml__conv_pass_panel_columns(plan, task),
                    width = dml__round_up(columns, plan->kernel->lanes);
    float *panel = plan->packed + task * plan->full * plan->k;
    (void)worker;
    dml__conv_pass_pack(plan->pass, task * plan->full, columns, width, 0, plan->k, panel);
    dml__conv_round(plan->pool, plan->pass->rounds_to, plan->k * width, panel);
}

/* --- the bands --- */

/* The part of the grid that a task computes, and where its pixels' first taps are found. */
typedef struct dml__conv_pass_band {
    ptrdiff_t n0, images, y0, lines;
    const float *base;                           /* NULL: patches are gathered */
    ptrdiff_t image_step, line_step, pixel_step; /* of the source, or of its copy */
} dml__conv_pass_band;

/* Copies the pixels of a source line from `x` on, which may lie outside, with zeros there. */
static void dml__conv_pass_copy_pixels(const dml__conv_pass *p, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                       ptrdiff_t count, float *to)
{
    const ptrdiff_t depth = p->depth;
    if (y < 0 || y >= p->source_h) {
        dml__conv_zero(to, count * depth);
        return;
    }
    const float *line = p->source + (n * p->source_h + y) * p->source_w * p->source_pixel;
    const ptrdiff_t before = x >= 0 ? 0 : dml__smaller(-x, count);
    const ptrdiff_t end = dml__larger(dml__smaller(count, p->source_w - x), before);
    dml__conv_zero(to, before * depth);
    if (p->source_pixel == depth)
        dml__conv_copy(to + before * depth, line + (x + before) * depth, (end - before) * depth);
    else
        for (ptrdiff_t i = before; i < end; i++)
            dml__conv_copy(to + i * depth, line + (x + i) * p->source_pixel, depth);
    dml__conv_zero(to + end * depth, (count - end) * depth);
}

static dml__conv_pass_band dml__conv_pass_band_at(const dml__conv_pass_plan *plan, ptrdiff_t index,
                                                  int worker)
{
    const dml__conv_pass *p = plan->pass;
    dml__conv_pass_band band;
    const ptrdiff_t of_image = dml__quotient_up(p->grid_h, plan->lines);
    if (of_image == 1) {
        band.n0 = index * plan->images;
        band.images = dml__smaller(plan->images, p->batch - band.n0);
        band.y0 = 0, band.lines = p->grid_h;
    } else { /* even shares of an image */
        band.n0 = index / of_image;
        band.images = 1;
        band.y0 = index % of_image * p->grid_h / of_image;
        band.lines = (index % of_image + 1) * p->grid_h / of_image - band.y0;
    }
    const ptrdiff_t y = p->origin_y + band.y0 * p->stride_h,
                    lines = dml__conv_pass_source_lines(p, band.lines);
    band.pixel_step = p->source_pixel;
    band.line_step = p->source_w * p->source_pixel;
    band.image_step = p->source_h * band.line_step;
    band.base = p->source;
    if (plan->k == 0) return band;
    if (!plan->copy) {
        band.base += band.n0 * band.image_step;
        if (!plan->exact) band.base += y * band.line_step + p->origin_x * band.pixel_step;
        return band;
    }
    float *copy = (float *)dml_pool_scratch(plan->pool, worker);
    const size_t bytes = (size_t)(band.images * lines * plan->copy_w * p->depth) * sizeof(float);
    band.base = NULL;
    if (!copy || dml_pool_scratch_bytes(plan->pool).worker < bytes) return band;
    band.base = copy;
    band.pixel_step = p->depth;
    band.line_step = plan->copy_w * p->depth;
    band.image_step = lines * band.line_step;
    for (ptrdiff_t n = 0; n < band.images; n++)
        for (ptrdiff_t line = 0; line < lines; line++, copy += band.line_step)
            dml__conv_pass_copy_pixels(p, band.n0 + n, y + line, p->origin_x, plan->copy_w, copy);
    dml__conv_round(plan->pool, p->rounds_to, band.images * band.image_step,
                    copy - band.images * band.image_step);
    return band;
}

/* --- tiles --- */

/* Where a pixel of a band lies: counted along its lines, through the images. */
typedef struct dml__conv_pass_pixel {
    ptrdiff_t n, y, x;
} dml__conv_pass_pixel;

/* A chunk of the patch of a pixel, where no padded copy is there to find it in. */
static void dml__conv_pass_gather(const dml__conv_pass *p, const dml__conv_pass_band *band,
                                  dml__conv_pass_pixel at, const dml__conv_pass_chunk *chunk, float *to)
{
    const ptrdiff_t y0 = p->origin_y + (band->y0 + at.y) * p->stride_h, x0 = p->origin_x + at.x * p->stride_w;
    for (ptrdiff_t k = chunk->k0; k < chunk->k1;) {
        const ptrdiff_t tap = k / p->depth, d = k % p->depth;
        const ptrdiff_t count = dml__smaller(p->depth - d, chunk->k1 - k);
        const ptrdiff_t y = y0 + tap / p->taps_w * p->dilation_h, x = x0 + tap % p->taps_w * p->dilation_w;
        if (y < 0 || y >= p->source_h || x < 0 || x >= p->source_w)
            dml__conv_zero(to, count);
        else
            dml__conv_copy(
                to,
                p->source + (((band->n0 + at.n) * p->source_h + y) * p->source_w + x) * p->source_pixel + d,
                count);
        to += count;
        k += count;
    }
}

/* One chunk of some panels for all pixels of a band, or of some of its lines and columns. */
typedef struct dml__conv_pass_sweep {
    const dml__conv_pass_plan *plan;
    dml__conv_pass_band band;
    dml__conv_pass_chunk chunk;
    ptrdiff_t x0, x1;              /* the columns */
    dml__conv_pass_taps rows, row; /* the taps that are met: lines of them, and of a line */
    ptrdiff_t j0, k0;              /* where the tile's columns and its weights begin */
    int columns;                   /* of the panel that count */
    dml__tile tile;
} dml__conv_pass_sweep;

static void dml__conv_pass_gather_tile(dml__conv_pass_sweep *sweep, ptrdiff_t pixel, int rows,
                                       float *gathered)
{
    const ptrdiff_t lines = sweep->band.lines, width = sweep->plan->pass->grid_w;
    for (int i = 0; i < rows; i++, pixel++, gathered += DML__CONV_KC) {
        const dml__conv_pass_pixel at = { pixel / width / lines, pixel / width % lines, pixel % width };
        dml__conv_pass_gather(sweep->plan->pass, &sweep->band, at, &sweep->chunk, gathered);
        dml__conv_round(sweep->plan->pool, sweep->plan->pass->rounds_to, sweep->chunk.k1 - sweep->chunk.k0,
                        gathered);
        sweep->tile.a[i] = gathered;
    }
}

/* Whether pixels of a line, or of a column, may be computed in tall tiles. */
static bool dml__conv_pass_is_tall(const dml__conv_pass_sweep *sweep)
{
    return sweep->columns <= sweep->plan->kernel->lanes && sweep->band.base &&
           dml__larger(sweep->x1 - sweep->x0, sweep->band.lines) >= DML__TALL_LEAST &&
           dml__tall_is_there(dml__pool_machine(sweep->plan->pool).isa);
}

/* Runs along lines, or along columns where lines are too short. */
static void dml__conv_pass_sweep_tall(const dml__conv_pass_sweep *sweep)
{
    const dml__conv_pass *p = sweep->plan->pass;
    const dml__conv_pass_band *band = &sweep->band;
    const dml__tile *tile = &sweep->tile;
    const ptrdiff_t width = sweep->x1 - sweep->x0, a_pixel = p->stride_w * band->pixel_step,
                    a_line = p->stride_h * band->line_step;
    const bool along = width >= DML__TALL_LEAST;
    const ptrdiff_t rows = along ? width : band->lines, runs = along ? band->lines : width;
    const ptrdiff_t a_run = along ? a_line : a_pixel, c_run = along ? p->target_line : p->target_pixel;
    dml__tall_tile tall;
    tall.columns = sweep->columns;
    tall.size = dml__tall_size(rows, band->images * runs, false);
    tall.blocks = tile->blocks, tall.k = tile->k;
    tall.a_at = tile->a_at, tall.b_at = tile->b_at;
    tall.a_step = tile->a_step, tall.row_step = along ? a_pixel : a_line;
    tall.c_step = along ? p->target_pixel : p->target_line;
    tall.b = tile->b, tall.b_step = tile->b_step, tall.b_narrow = false;
    tall.beta = tile->beta, tall.bias = tile->bias, tall.relu = tile->relu;
    tall.groups = 0;
    for (ptrdiff_t n = 0; n < band->images; n++) {
        const float *a = (band->base ? band->base : p->source) + n * band->image_step;
        float *c = p->target + (band->n0 + n) * p->target_image + band->y0 * p->target_line +
                   sweep->x0 * p->target_pixel + sweep->j0;
        for (ptrdiff_t run = 0; run < runs; run++, a += a_run, c += c_run) dml__tall_add(&tall, a, c, rows);
    }
    dml__tall_end(&tall);
}

/* How many tiles from tile t on, which begins at that pixel, have as many rows and lie in `left` pixels of a
 * line. */
static int dml__conv_pass_below(ptrdiff_t t, ptrdiff_t tiles, ptrdiff_t pixels, ptrdiff_t pixel, int rows,
                                ptrdiff_t left)
{
    ptrdiff_t below = dml__smaller(left / rows, tiles - t);
    while (below > 1 && (t + below) * pixels / tiles != pixel + below * rows) below--;
    return (int)dml__larger(1, below);
}

static void dml__conv_pass_sweep_tiles(dml__conv_pass_sweep *sweep)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__conv_pass *p = plan->pass;
    const dml__conv_pass_band *band = &sweep->band;
    dml__tile *tile = &sweep->tile;
    const ptrdiff_t pixels = band->images * band->lines * (sweep->x1 - sweep->x0);
    const ptrdiff_t tiles = dml__quotient_up(pixels, plan->kernel->rows);
    const ptrdiff_t a_pixel = p->stride_w * band->pixel_step, a_line = p->stride_h * band->line_step;
    const ptrdiff_t a_image = band->image_step - (band->lines - 1) * a_line, c_pixel = p->target_pixel,
                    c_image = p->target_image - (band->lines - 1) * p->target_line;
    float gathered[DML__CONV_ROWS * DML__CONV_KC];
    const float *a_line_at = band->base ? band->base : p->source, *a = a_line_at;
    float *c_line_at = p->target + band->n0 * p->target_image + band->y0 * p->target_line +
                       sweep->x0 * c_pixel + sweep->j0,
          *c = c_line_at;
    const bool alike = band->base && !plan->spill && sweep->columns >= plan->kernel->least_columns;
    dml__conv_pass_pixel at = { 0, 0, sweep->x0 };
    for (ptrdiff_t t = 0, pixel = 0; t < tiles; t += tile->below) {
        const int rows = (int)((t + 1) * pixels / tiles - pixel);
        tile->below = alike ? dml__conv_pass_below(t, tiles, pixels, pixel, rows, sweep->x1 - at.x) : 1;
        tile->a_below = rows * a_pixel, tile->c_below = rows * c_pixel;
        const ptrdiff_t more = (ptrdiff_t)(tile->below - 1) * rows, end = pixel + rows + more;
        for (int i = 0; i < rows;) {
            const int line_end = (int)dml__smaller(rows, i + sweep->x1 - at.x);
            at.x += line_end - i + more;
            for (; i < line_end; i++, a += a_pixel, c += c_pixel) tile->a[i] = a, tile->c[i] = c;
            a += more * a_pixel, c += more * c_pixel;
            if (at.x < sweep->x1) break;
            at.x = sweep->x0;
            const bool last = ++at.y == band->lines;
            if (last) at.y = 0, at.n++;
            a = a_line_at += last ? a_image : a_line;
            c = c_line_at += last ? c_image : p->target_line;
        }
        if (!band->base) dml__conv_pass_gather_tile(sweep, pixel, rows, gathered);
        pixel = end;
        tile->rows = rows;
        const bool spill = plan->spill && (pixels - end) * sweep->columns >= tile->columns;
        dml__conv_tile(plan->kernel, tile, spill ? tile->columns : sweep->columns);
    }
}

/* Sets where the blocks of a sweep's chunk lie. */
static void dml__conv_pass_blocks(dml__conv_pass_sweep *sweep, ptrdiff_t *a_at, ptrdiff_t *b_at)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__conv_pass *p = plan->pass;
    const dml__conv_pass_chunk *chunk = &sweep->chunk;
    const dml__conv_pass_band *band = &sweep->band;
    dml__tile *tile = &sweep->tile;
    const ptrdiff_t b0 = (chunk->k0 - sweep->k0) * tile->b_step;
    tile->a_at = a_at;
    tile->b_at = b_at;
    if (!band->base) {
        tile->blocks = 1;
        tile->k = (int)(chunk->k1 - chunk->k0);
        a_at[0] = 0;
        b_at[0] = b0;
        return;
    }
    const ptrdiff_t across = plan->runs == p->taps_h ? 1 : p->taps_w;
    /* Of runs that are lines of taps, what is met is a part of each. */
    const ptrdiff_t begin = across > 1 ? 0 : sweep->row.t0 * p->depth,
                    end = across > 1 ? plan->run : sweep->row.t1 * p->depth;
    const ptrdiff_t from = dml__larger(chunk->offset, begin);
    tile->k = (int)dml__larger(0, dml__smaller(chunk->offset + chunk->length, end) - from);
    tile->blocks = 0;
    for (int r = 0; tile->k > 0 && r < chunk->runs; r++) {
        const ptrdiff_t line = (chunk->run0 + r) / across, tap = (chunk->run0 + r) % across;
        if (across > 1 && (tap < sweep->row.t0 || tap >= sweep->row.t1)) continue;
        a_at[tile->blocks] = (line - sweep->rows.t0) * p->dilation_h * band->line_step + from - begin;
        if (across > 1) a_at[tile->blocks] += (tap - sweep->row.t0) * p->dilation_w * band->pixel_step;
        b_at[tile->blocks++] = b0 + (r * (ptrdiff_t)chunk->length + from - chunk->offset) * tile->b_step;
    }
}

/* Where the first of the taps that the sweep's first pixel meets lies. */
static const float *dml__conv_pass_base(const dml__conv_pass_sweep *sweep, const dml__conv_pass_band *band,
                                        ptrdiff_t y)
{
    const dml__conv_pass *p = sweep->plan->pass;
    if (!band->base || sweep->tile.blocks == 0) return p->source;
    if (!sweep->plan->exact)
        return band->base + y * p->stride_h * band->line_step + sweep->x0 * p->stride_w * band->pixel_step;
    const ptrdiff_t line = p->origin_y + (band->y0 + y) * p->stride_h + sweep->rows.t0 * p->dilation_h;
    return band->base + line * band->line_step +
           (p->origin_x + sweep->x0 * p->stride_w + sweep->row.t0 * p->dilation_w) * band->pixel_step;
}

/* Sweeps over a band in parts of lines, and of columns, that meet the same of a chunk. */
static void dml__conv_pass_sweep_band(dml__conv_pass_sweep *sweep, const dml__conv_pass_band *band,
                                      const dml__conv_pass_chunk *chunk)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__conv_pass *p = plan->pass;
    const dml__tile *tile = &sweep->tile;
    const dml__conv_pass_taps lines_of_taps = { 0, p->taps_h }, taps = { 0, p->taps_w };
    ptrdiff_t a_at[DML__CONV_KC], b_at[DML__CONV_KC];
    sweep->band = *band;
    for (ptrdiff_t y = 0, end; y < band->lines; y = end) {
        sweep->chunk = dml__conv_pass_chunk_of_line(plan, chunk, band->y0 + y);
        sweep->rows = plan->exact ? dml__conv_pass_taps_of_line(p, band->y0 + y) : lines_of_taps;
        end = plan->clips ? y + 1 : band->lines;
        for (; end < band->lines; end++) {
            const dml__conv_pass_chunk next = dml__conv_pass_chunk_of_line(plan, chunk, band->y0 + end);
            if (next.run0 != sweep->chunk.run0 || next.runs != sweep->chunk.runs) break;
        }
        for (sweep->x0 = 0; sweep->x0 < p->grid_w; sweep->x0 = sweep->x1) {
            sweep->row = plan->exact ? dml__conv_pass_taps_of_column(p, sweep->x0) : taps;
            sweep->x1 = plan->exact ? sweep->x0 + 1 : p->grid_w;
            for (; sweep->x1 < p->grid_w; sweep->x1++) {
                const dml__conv_pass_taps next = dml__conv_pass_taps_of_column(p, sweep->x1);
                if (next.t0 != sweep->row.t0 || next.t1 != sweep->row.t1) break;
            }
            sweep->band = *band;
            sweep->band.y0 += y, sweep->band.lines = end - y;
            dml__conv_pass_blocks(sweep, a_at, b_at);
            if (plan->k && tile->blocks == 0 && tile->beta == 1 && !tile->bias && !tile->relu) continue;
            if (band->base) sweep->band.base = dml__conv_pass_base(sweep, band, y);
            if (dml__conv_pass_is_tall(sweep))
                dml__conv_pass_sweep_tall(sweep);
            else
                dml__conv_pass_sweep_tiles(sweep);
        }
    }
}

/* How many panels from that one on are gone through with each row of tiles: so many as stay in the level-1
 * cache. */
static ptrdiff_t dml__conv_pass_panels_at(const dml__conv_pass_plan *plan, ptrdiff_t panel, ptrdiff_t end,
                                          const dml__conv_pass_chunk *chunk)
{
    const ptrdiff_t whole = dml__smaller(end, plan->pass->columns / plan->full) - panel;
    const ptrdiff_t most = DML__CONV_PANELS / dml__larger(1, (chunk->k1 - chunk->k0) * plan->full);
    return dml__larger(1, dml__smaller(whole, most));
}

/* A chunk of some panels for a whole band. */
static void dml__conv_pass_panels(const dml__conv_pass_plan *plan, const dml__conv_pass_band *band,
                                  ptrdiff_t panel, ptrdiff_t panels, const dml__conv_pass_chunk *chunk,
                                  bool first, bool last)
{
    const dml__conv_pass *p = plan->pass;
    float block[DML__CONV_KC * DML__CONV_COLUMNS], bias[DML__CONV_COLUMNS]; /* (panels, k, width), (width) */
    dml__conv_pass_sweep sweep;
    dml__tile *tile = &sweep.tile;
    sweep.plan = plan;
    sweep.j0 = panel * plan->full;
    sweep.columns = (int)dml__conv_pass_panel_columns(plan, panel);
    const ptrdiff_t width = dml__round_up(sweep.columns, plan->kernel->lanes);
    sweep.k0 = chunk->k0;
    dml__tile_init(tile);
    tile->panels = (int)panels;
    tile->columns = plan->kernel->least_columns == 1 ? sweep.columns : (int)width;
    tile->a_step = 1;
    tile->b_step = width;
    if (plan->packed) {
        tile->b = plan->packed + sweep.j0 * plan->k + chunk->k0 * width;
        tile->b_panel = plan->full * plan->k;
    } else {
        tile->b = block;
        tile->b_panel = plan->full * (chunk->k1 - chunk->k0);
        for (ptrdiff_t i = 0; i < panels; i++)
            dml__conv_pass_pack(p, sweep.j0 + i * plan->full, sweep.columns, width, chunk->k0, chunk->k1,
                                block + i * tile->b_panel);
        dml__conv_round(plan->pool, p->rounds_to,
                        (panels - 1) * tile->b_panel + (chunk->k1 - chunk->k0) * width, block);
    }
    tile->beta = first ? p->beta : 1;
    tile->relu = last && p->relu;
    tile->stream = plan->stream;
    if (last && p->bias) {
        tile->bias = p->bias + sweep.j0;
        if (sweep.columns < tile->columns) { /* vectors are read of it */
            for (ptrdiff_t j = 0; j < width; j++) bias[j] = j < sweep.columns ? p->bias[sweep.j0 + j] : 0;
            tile->bias = bias;
        }
    }
    dml__conv_pass_sweep_band(&sweep, band, chunk);
}

static void dml__conv_pass_task(void *argument, int task, int worker)
{
    const dml__conv_pass_plan *plan = (const dml__conv_pass_plan *)argument;
    const ptrdiff_t group = task % plan->groups;
    const dml__conv_pass_band band = dml__conv_pass_band_at(plan, task / plan->groups, worker);
    const ptrdiff_t end = (group + 1) * plan->panels / plan->groups;
    /* A chunk's part of the band is used for all panels before the next. */
    for (ptrdiff_t c = 0; c < plan->chunks; c++) {
        const dml__conv_pass_chunk chunk = dml__conv_pass_chunk_at(plan, c);
        ptrdiff_t panels;
        for (ptrdiff_t panel = group * plan->panels / plan->groups; panel < end; panel += panels) {
            panels = dml__conv_pass_panels_at(plan, panel, end, &chunk);
            dml__conv_pass_panels(plan, &band, panel, panels, &chunk, c == 0, c == plan->chunks - 1);
        }
    }
    if (plan->stream) DML__STREAM_FENCE();
}

static size_t dml__conv_pass_packed_bytes(const dml__conv_pass_plan *plan)
{
    return (size_t)(plan->k * dml__round_up(plan->pass->columns, plan->kernel->lanes)) * sizeof(float);
}

static dml_scratch dml__conv_pass_scratch_of(const dml__conv_pass *pass)
{
    dml_scratch scratch = { 0, 0 };
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return scratch;
    const dml__conv_pass_plan plan = dml__conv_pass_plan_of(NULL, pass, 1);
    const ptrdiff_t band = dml__conv_pass_band_floats(&plan, plan.most_images, plan.lines);
    if (plan.copy && band <= DML__CONV_BAND_MOST) scratch.worker = (size_t)band * sizeof(float);
    const size_t packed = dml__conv_pass_packed_bytes(&plan);
    if (plan.bands > 1 || packed <= DML__CONV_BAND * sizeof(float)) scratch.shared = packed;
    return scratch;
}

DML__LOCAL dml_scratch dml__conv_pass_scratch(const dml__conv_pass *pass)
{
    dml__conv_pass few = *pass; /* whose pixels without some taps are copied sooner */
    few.batch = dml__smaller(few.batch, DML__CONV_FEW_IMAGES - 1);
    return dml__larger_scratch(dml__conv_pass_scratch_of(pass), dml__conv_pass_scratch_of(&few));
}

DML__LOCAL void dml__conv_pass_run(dml_pool *pool, const dml__conv_pass *pass)
{
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return;
    dml__conv_pass_plan plan = dml__conv_pass_plan_of(pool, pass, dml_pool_threads(pool));
    const ptrdiff_t tasks = plan.bands * plan.groups;
    if (plan.bands > 1 && dml_pool_scratch_bytes(pool).shared >= dml__conv_pass_packed_bytes(&plan)) {
        plan.packed = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(tasks > 1 ? pool : NULL, plan.packed ? (int)plan.panels : 0, dml__conv_pass_pack_task,
                     &plan);
    }
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__conv_pass_task, &plan);
}

#endif
