#ifndef DML_KERNELS_CONV2D_AMX_C
#define DML_KERNELS_CONV2D_AMX_C

#include "kernels/conv2d_amx.h"

#include "kernels/amx.h"
#include "kernels/isa_vectors.h"
#include "kernels/pack_pairs.h"
#include "thread/pool_internal.h"

#include <string.h>

#if defined(DML__HAS_AMX)

/* A band of the grid, some images, lines of one, or tiles of a line, is copied: each pixel's channels as
   pairs of bf16, with zeros around the images. Taps that are neighbours lie side by side in the copy, so k,
   of the order (taps_h, taps_w, depth), is some runs of pairs, each cut into blocks of the same length, which
   are lines of A's tiles. The rows of such a tile are pixels of one line, the same distance apart; the last
   tile of a line reaches beyond it, and what is computed there goes nowhere. */

/* Floats of a band's copy at most: a quarter of a second cache. */
#define DML__AMX_BAND 131072
/* Columns that are gone through together. */
#define DML__AMX_COLUMNS 32

typedef struct dml__amx_pass {
    const dml__conv_pass *pass;
    dml_pool *pool;
    ptrdiff_t depth;               /* pairs of a pixel in the copy */
    ptrdiff_t across, pieces, k;   /* runs of a line of taps; blocks of a run; pairs in all */
    int length;                    /* pairs of a block: 1 .. 16 */
    ptrdiff_t tiles;               /* of a line of the grid, */
    int rows;                      /* each so many pixels */
    ptrdiff_t images, lines, wide; /* of a band: whole images, or lines of one; tiles of a line */
    ptrdiff_t bands;
    ptrdiff_t copy_w;    /* pixels of a copied line */
    bool copies;         /* workers have scratch for a band and, if they aren't packed, two panels */
    const float *packed; /* (panels, k, 16) pairs of the weights, or NULL */
} dml__amx_pass;

/* A task's part. */
typedef struct dml__amx_band {
    ptrdiff_t n0, images, y0, lines, tile0, tiles;
    const float *copy;               /* (images, source lines, copy_w, depth) pairs, or NULL */
    ptrdiff_t line_step, image_step; /* of the copy, floats */
} dml__amx_band;

DML__LOCAL bool dml__conv_has_amx(dml_pool *pool)
{
    return dml__pool_rounds_to(pool) == DML_BF16 && dml__pool_bf16(pool) == DML__BF16_AMX;
}

/* --- how k and the grid are cut --- */

/* As few blocks as can be, of one length: a few zeros more for a pixel may save some. */
static void dml__amx_cut_k(dml__amx_pass *plan)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t least = p->depth / 2 + p->depth % 2;
    plan->across = p->dilation_w == 1 ? 1 : p->taps_w;
    const ptrdiff_t taps = p->taps_w / plan->across;
    plan->pieces = dml__round_up(least, 16) / 16 * taps + 1; /* more than with all blocks of 16 */
    for (ptrdiff_t depth = least; depth < least + 16; depth++) {
        const ptrdiff_t run = depth * taps;
        ptrdiff_t pieces = dml__quotient_up(run, 16);
        while (pieces < plan->pieces && run % pieces) pieces++;
        if (pieces >= plan->pieces) continue;
        plan->pieces = pieces;
        plan->depth = depth;
        plan->length = (int)(run / pieces);
    }
    plan->k = p->taps_h * p->taps_w * plan->depth;
}

static ptrdiff_t dml__amx_source_lines(const dml__conv_pass *p, ptrdiff_t lines)
{
    return (lines - 1) * p->stride_h + (p->taps_h - 1) * p->dilation_h + 1;
}

/* Pixels of the source under so many tiles of a line, of which the last may reach beyond the grid. */
static ptrdiff_t dml__amx_source_pixels(const dml__amx_pass *plan, ptrdiff_t tiles)
{
    const dml__conv_pass *p = plan->pass;
    return (tiles * plan->rows - 1) * p->stride_w + (p->taps_w - 1) * p->dilation_w + 1;
}

static ptrdiff_t dml__amx_copy_floats(const dml__amx_pass *plan, ptrdiff_t images, ptrdiff_t lines,
                                      ptrdiff_t wide)
{
    return images * dml__amx_source_lines(plan->pass, lines) * dml__amx_source_pixels(plan, wide) *
           plan->depth;
}

/* Bands that fit, and are enough for the threads. */
static void dml__amx_cut_grid(dml__amx_pass *plan)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t has = (ptrdiff_t)(dml_pool_scratch_bytes(plan->pool).worker / sizeof(float)),
                    panels = plan->packed ? 0 : plan->k * DML__AMX_COLUMNS,
                    room = dml__smaller(DML__AMX_BAND, has - panels);
    const double work = (double)(p->batch * p->grid_h * p->grid_w) * (double)plan->k * (double)p->columns;
    const int threads = dml_pool_threads(plan->pool);
    const ptrdiff_t wanted = threads > 1 && work > DML__CONV_SERIAL_WORK ? 4 * threads : 1;
    plan->images = 1, plan->lines = p->grid_h, plan->wide = plan->tiles;
    while (plan->images < p->batch / wanted &&
           dml__amx_copy_floats(plan, plan->images + 1, p->grid_h, plan->tiles) <= room)
        plan->images++;
    if (p->batch < wanted) plan->lines = dml__quotient_up(p->grid_h, dml__quotient_up(wanted, p->batch));
    while (plan->lines > 1 && dml__amx_copy_floats(plan, 1, plan->lines, plan->tiles) > room)
        plan->lines = dml__quotient_up(plan->lines, 2);
    while (plan->wide > 1 && dml__amx_copy_floats(plan, 1, plan->lines, plan->wide) > room)
        plan->wide = dml__quotient_up(plan->wide, 2);
    plan->copy_w = dml__amx_source_pixels(plan, plan->wide);
    plan->copies = dml__amx_copy_floats(plan, plan->images, plan->lines, plan->wide) <= room;
    plan->bands = dml__quotient_up(p->batch, plan->images) * dml__quotient_up(p->grid_h, plan->lines) *
                  dml__quotient_up(plan->tiles, plan->wide);
}

static dml__amx_pass dml__amx_plan(dml_pool *pool, const dml__conv_pass *pass)
{
    dml__amx_pass plan;
    memset(&plan, 0, sizeof plan);
    plan.pass = pass;
    plan.pool = pool;
    plan.tiles = dml__quotient_up(pass->grid_w, 16);
    plan.rows = (int)dml__quotient_up(pass->grid_w, plan.tiles);
    dml__amx_cut_k(&plan);
    return plan;
}

/* --- the weights --- */

/* The pairs of up to 16 columns from j0 on, out[k * 16 + column], with zeros behind the last. */
static void dml__amx_pack_panel(const dml__amx_pass *plan, ptrdiff_t j0, float *out)
{
    const dml__conv_pass *p = plan->pass;
    const int columns = (int)dml__smaller(16, p->columns - j0), pairs = (int)(p->depth / 2 + p->depth % 2);
    for (ptrdiff_t tap = 0; tap < p->taps_h * p->taps_w; tap++, out += plan->depth * 16) {
        const dml__pairs_source taps = { p->weights + tap / p->taps_w * p->weights_tap_h +
                                             tap % p->taps_w * p->weights_tap_w,
                                         true, p->weights_column, p->weights_depth, p->depth };
        dml__factor_of_pairs(&taps).pack(&taps, j0, columns, 0, pairs, 16, out);
        memset(out + pairs * 16, 0, (size_t)(plan->depth - pairs) * 16 * sizeof *out);
    }
}

static void dml__amx_pack_task(void *argument, int task, int worker)
{
    const dml__amx_pass *plan = (const dml__amx_pass *)argument;
    (void)worker;
    dml__amx_pack_panel(plan, (ptrdiff_t)task * 16,
                        (float *)dml_pool_shared_scratch(plan->pool) + task * plan->k * 16);
}

static void dml__amx_pack(dml__amx_pass *plan)
{
    const ptrdiff_t panels = dml__quotient_up(plan->pass->columns, 16);
    if (dml_pool_scratch_bytes(plan->pool).shared < (size_t)(panels * plan->k) * 16 * sizeof(float)) return;
    plan->packed = (const float *)dml_pool_shared_scratch(plan->pool);
    dml_pool_run(panels > 1 ? plan->pool : NULL, (int)panels, dml__amx_pack_task, plan);
}

/* --- the copy of a band --- */

/* Pixels of a source line from `x` on, which may lie outside, as the line may. */
DML__AMX static void dml__amx_copy_line(const dml__amx_pass *plan, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                        uint16_t *to)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t numbers = 2 * plan->depth, count = plan->copy_w;
    const bool inside = y >= 0 && y < p->source_h;
    const ptrdiff_t before = !inside ? count : x >= 0 ? 0 : dml__smaller(-x, count);
    const ptrdiff_t end = inside ? dml__larger(dml__smaller(count, p->source_w - x), before) : count;
    const float *from = p->source + ((n * p->source_h + y) * p->source_w + x + before) * p->source_pixel;
    memset(to, 0, (size_t)(before * numbers) * sizeof *to);
    memset(to + end * numbers, 0, (size_t)((count - end) * numbers) * sizeof *to);
    to += before * numbers;
    if (p->source_pixel == p->depth && p->depth == numbers) {
        dml__narrow_run(from, (end - before) * numbers, to);
        return;
    }
    for (ptrdiff_t i = before; i < end; i++, from += p->source_pixel, to += numbers) {
        dml__narrow_run(from, p->depth, to);
        for (ptrdiff_t d = p->depth; d < numbers; d++) to[d] = 0;
    }
}

static dml__amx_band dml__amx_band_at(const dml__amx_pass *plan, ptrdiff_t index, float *copy)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t of_image = dml__quotient_up(p->grid_h, plan->lines),
                    of_line = dml__quotient_up(plan->tiles, plan->wide);
    dml__amx_band band;
    band.tile0 = index % of_line * plan->wide;
    band.tiles = dml__smaller(plan->wide, plan->tiles - band.tile0);
    index /= of_line;
    band.n0 = index / of_image * plan->images;
    band.images = dml__smaller(plan->images, p->batch - band.n0);
    band.y0 = index % of_image * plan->lines;
    band.lines = dml__smaller(plan->lines, p->grid_h - band.y0);
    const ptrdiff_t lines = dml__amx_source_lines(p, band.lines);
    band.line_step = plan->copy_w * plan->depth;
    band.image_step = lines * band.line_step;
    band.copy = copy;
    if (!copy) return band;
    for (ptrdiff_t n = 0; n < band.images; n++)
        for (ptrdiff_t line = 0; line < lines; line++, copy += band.line_step)
            dml__amx_copy_line(plan, band.n0 + n, p->origin_y + band.y0 * p->stride_h + line,
                               p->origin_x + band.tile0 * plan->rows * p->stride_w, (uint16_t *)(void *)copy);
    return band;
}

/* --- tiles --- */

/* Up to 2 x 2 tiles of sums: of pixels, of which `valid` are of the line, and of columns. */
typedef struct dml__amx_tiles {
    int a_tiles, b_tiles;
    const float *a[2], *b[2];   /* in the copy, and (k, 16) */
    ptrdiff_t n[2], y[2], x[2]; /* the first pixel of each */
    int valid[2], columns[2];
    float *c[2]; /* the first pixel's first column */
} dml__amx_tiles;

/* All blocks of k, from the copy and packed weights. */
DML__AMX static void dml__amx_multiply(const dml__amx_pass *plan, const dml__amx_band *band,
                                       const dml__amx_tiles *t)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t a_line = p->stride_w * plan->depth * (ptrdiff_t)sizeof(float), length = plan->length;
    const float *low = t->a_tiles > 1 ? t->a[1] : NULL, *b = t->b[0],
                *right = t->b_tiles > 1 ? t->b[1] : NULL;
    for (ptrdiff_t ty = 0; ty < p->taps_h; ty++)
        for (ptrdiff_t tx = 0; tx < plan->across; tx++) {
            ptrdiff_t at = ty * p->dilation_h * band->line_step + tx * p->dilation_w * plan->depth;
            for (ptrdiff_t piece = 0; piece < plan->pieces; piece++, at += length, b += length * 16) {
                dml__amx_add(t->a[0] + at, low ? low + at : NULL, a_line, b, right, 64);
                if (right) right += length * 16;
            }
        }
}

/* The number of the source that pair `pair` of k meets in the pixel at (n, y, x), the first or the second, or
 * 0. */
static float dml__amx_source_at(const dml__amx_pass *plan, const dml__amx_tiles *t, int tile, int row,
                                ptrdiff_t pair, int second)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t tap = pair / plan->depth, d = pair % plan->depth * 2 + second;
    const ptrdiff_t y = p->origin_y + t->y[tile] * p->stride_h + tap / p->taps_w * p->dilation_h;
    const ptrdiff_t x = p->origin_x + (t->x[tile] + row) * p->stride_w + tap % p->taps_w * p->dilation_w;
    if (d >= p->depth || y < 0 || y >= p->source_h || x < 0 || x >= p->source_w) return 0;
    return p->source[((t->n[tile] * p->source_h + y) * p->source_w + x) * p->source_pixel + d];
}

static float dml__amx_weight_at(const dml__amx_pass *plan, ptrdiff_t column, ptrdiff_t pair, int second)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t tap = pair / plan->depth, d = pair % plan->depth * 2 + second;
    if (d >= p->depth || column >= p->columns) return 0;
    return p->weights[tap / p->taps_w * p->weights_tap_h + tap % p->taps_w * p->weights_tap_w +
                      d * p->weights_depth + column * p->weights_column];
}

/* The same without scratch, a block at a time. */
DML__AMX static void dml__amx_multiply_gathered(const dml__amx_pass *plan, ptrdiff_t j0,
                                                const dml__amx_tiles *t)
{
    float wide[32];
    uint16_t a[2][16][32], b[2][16][32]; /* (tile, row, pairs), (tile, pair, columns) */
    memset(a, 0, sizeof a), memset(b, 0, sizeof b);
    for (ptrdiff_t k = 0; k < plan->k; k += plan->length) {
        for (int tile = 0; tile < t->a_tiles; tile++)
            for (int row = 0; row < plan->rows; row++) {
                for (int i = 0; i < 2 * plan->length; i++)
                    wide[i] = dml__amx_source_at(plan, t, tile, row, k + i / 2, i % 2);
                dml__narrow_run(wide, 2 * plan->length, a[tile][row]);
            }
        for (int tile = 0; tile < t->b_tiles; tile++)
            for (int pair = 0; pair < plan->length; pair++) {
                for (int i = 0; i < 32; i++)
                    wide[i] = dml__amx_weight_at(plan, j0 + 16 * tile + i / 2, k + pair, i % 2);
                dml__narrow_run(wide, 32, b[tile][pair]);
            }
        dml__amx_add((const float *)(const void *)a[0], (const float *)(const void *)a[1], 64,
                     (const float *)(const void *)b[0], (const float *)(const void *)b[1], 64);
    }
}

/* The target's rows from sums (rows, 16) on the side. */
DML__AMX static void dml__amx_finish(const dml__conv_pass *p, ptrdiff_t j0, const float *sums, int rows,
                                     int columns, float *c)
{
    const __mmask16 mask = (__mmask16)((1u << columns) - 1);
    const __m512 bias = p->bias ? _mm512_maskz_loadu_ps(mask, p->bias + j0) : _mm512_setzero_ps();
    for (int i = 0; i < rows; i++, sums += 16, c += p->target_pixel) {
        __m512 value = _mm512_loadu_ps(sums);
        if (p->beta != 0)
            value = _mm512_fmadd_ps(_mm512_set1_ps(p->beta), _mm512_maskz_loadu_ps(mask, c), value);
        if (p->bias) value = _mm512_add_ps(value, bias);
        if (p->relu) value = dml__avx512_relu(value);
        _mm512_mask_storeu_ps(c, mask, value);
    }
}

/* Sums to which nothing is to be done are begun in the target, and stored there. */
DML__AMX static void dml__amx_compute(const dml__amx_pass *plan, const dml__amx_band *band, ptrdiff_t j0,
                                      const dml__amx_tiles *t)
{
    const dml__conv_pass *p = plan->pass;
    const bool bare = (p->beta == 0 || p->beta == 1) && !p->bias && !p->relu;
    float side[4][16 * 16]; /* (tile, rows, 16) */
    dml__amx_sum sums[4];
    for (int i = 0; i < 4; i++) {
        const int a = i / 2, b = i % 2;
        const bool there = a < t->a_tiles && b < t->b_tiles;
        const bool direct = there && bare && t->valid[a] == plan->rows && t->columns[b] == 16;
        sums[i].at = direct ? t->c[a] + 16 * b : there ? side[i] : NULL;
        sums[i].line = direct ? p->target_pixel * (ptrdiff_t)sizeof(float) : 64;
        sums[i].loads = direct && p->beta == 1;
    }
    dml__amx_begin(sums);
    if (band->copy)
        dml__amx_multiply(plan, band, t);
    else
        dml__amx_multiply_gathered(plan, j0, t);
    dml__amx_end(sums);
    for (int a = 0; a < t->a_tiles; a++)
        for (int b = 0; b < t->b_tiles; b++)
            if (sums[2 * a + b].at == side[2 * a + b])
                dml__amx_finish(p, j0 + 16 * b, side[2 * a + b], t->valid[a], t->columns[b],
                                t->c[a] + 16 * b);
}

/* Up to 32 columns, whose weights are `panels`, of all pixels of a band. */
static void dml__amx_sweep(const dml__amx_pass *plan, const dml__amx_band *band, ptrdiff_t j0,
                           const float *panels)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t tiles = band->images * band->lines * band->tiles;
    dml__amx_tiles t;
    t.b_tiles = p->columns - j0 > 16 ? 2 : 1;
    for (int i = 0; i < 2; i++) {
        t.columns[i] = (int)dml__smaller(16, p->columns - j0 - 16 * i);
        t.b[i] = panels ? panels + i * plan->k * 16 : NULL;
    }
    for (ptrdiff_t tile = 0; tile < tiles; tile += t.a_tiles) {
        t.a_tiles = tiles - tile > 1 ? 2 : 1;
        for (int i = 0; i < t.a_tiles; i++) {
            const ptrdiff_t line = (tile + i) / band->tiles, along = (tile + i) % band->tiles * plan->rows;
            const ptrdiff_t n = line / band->lines, y = line % band->lines,
                            x = band->tile0 * plan->rows + along;
            t.n[i] = band->n0 + n, t.y[i] = band->y0 + y, t.x[i] = x;
            t.valid[i] = (int)dml__smaller(plan->rows, p->grid_w - x);
            t.c[i] =
                p->target + t.n[i] * p->target_image + t.y[i] * p->target_line + x * p->target_pixel + j0;
            t.a[i] = band->copy ? band->copy + n * band->image_step + y * p->stride_h * band->line_step +
                                      along * p->stride_w * plan->depth
                                : NULL;
        }
        dml__amx_compute(plan, band, j0, &t);
    }
}

static void dml__amx_pass_task(void *argument, int task, int worker)
{
    const dml__amx_pass *plan = (const dml__amx_pass *)argument;
    const dml__conv_pass *p = plan->pass;
    float *own = plan->copies ? (float *)dml_pool_scratch(plan->pool, worker) : NULL;
    float *panels = plan->packed ? NULL : own;
    const dml__amx_band band =
        dml__amx_band_at(plan, task, own && panels ? own + plan->k * DML__AMX_COLUMNS : own);
    dml__amx_configure(plan->rows, plan->rows, plan->length);
    for (ptrdiff_t j0 = 0; j0 < p->columns; j0 += DML__AMX_COLUMNS) {
        for (ptrdiff_t j = j0; panels && j < dml__smaller(p->columns, j0 + DML__AMX_COLUMNS); j += 16)
            dml__amx_pack_panel(plan, j, panels + (j - j0) * plan->k);
        dml__amx_sweep(plan, &band, j0, plan->packed ? plan->packed + j0 * plan->k : panels);
    }
    dml__amx_release();
}

DML__LOCAL void dml__amx_pass_run(dml_pool *pool, const dml__conv_pass *pass)
{
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return;
    if (pass->taps_h * pass->taps_w == 0) { /* a phase without taps: nothing to multiply */
        dml__conv_pass_run(pool, pass);
        return;
    }
    dml__amx_pass plan = dml__amx_plan(pool, pass);
    dml__amx_pack(&plan);
    dml__amx_cut_grid(&plan);
    dml_pool_run(plan.bands > 1 ? pool : NULL, (int)plan.bands, dml__amx_pass_task, &plan);
}

#else

DML__LOCAL bool dml__conv_has_amx(dml_pool *pool)
{
    (void)pool;
    return false;
}

DML__LOCAL void dml__amx_pass_run(dml_pool *pool, const dml__conv_pass *pass)
{
    (void)pool, (void)pass;
}

#endif
#endif
