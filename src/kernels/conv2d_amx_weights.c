#ifndef DML_KERNELS_CONV2D_AMX_WEIGHTS_C
#define DML_KERNELS_CONV2D_AMX_WEIGHTS_C

#include "kernels/conv2d_amx.h"

#include "kernels/amx.h"
#include "kernels/finish.h"
#include "kernels/pack_pairs.h"
#include "thread/pool_internal.h"

#include <string.h>

#if defined(DML__HAS_AMX)

/* A tile's rows are filters, its columns channels under a tap, and its k pairs of pixels. The sum goes by
   strips, lines of an image or whole images. A strip of dy is turned into lines of filters; one of x is
   copied into panels of 16 channels whose lines are pairs of pixels, once as they are and once from the
   second pixel on, for taps that begin at odd ones, and with strides once for each phase of them. All lines,
   of dy too, are filled up with zeros to the same length, so that a tap's pixels are those of dy, so many
   pairs further: lines follow each other, and k runs through all of an image's. Where dw is small, strips are
   shared out in chunks, whose partial sums are added in order. What an element's bits depend on, strips and
   chunks, depends on the shape alone. */

/* Pairs of pixels of a strip, and of its copy of x, at most. */
#define DML__AMX_STRIP 512
#define DML__AMX_STRIDE 4       /* longer ones are others' */
#define DML__AMX_AT_ONCE 128    /* filters and channels of a part */
#define DML__AMX_CHUNKS 8       /* at most, */
#define DML__AMX_PARTIAL 262144 /* of so many floats together */
#define DML__AMX_TAIL 16        /* pairs that are read beyond a copy */
/* What 16 filters and channels under one tap take, in floats. */
#define DML__AMX_STACK (16 * (4 * DML__AMX_STRIP + 2 * DML__AMX_TAIL))

/* Tap t of pixel i meets pixel (i + shift + low) stride + phase of x, where phase and shift are the tap's: 0
   <= phase < stride, 0 <= shift <= reach. */
typedef struct dml__amx_axis {
    ptrdiff_t stride, dilation, pad, taps, in, out, low, reach;
} dml__amx_axis;

typedef struct dml__amx_wgrad {
    const dml__wgrad *job;
    dml_pool *pool;
    dml__amx_axis v, h;
    ptrdiff_t patch;         /* taps channels: a line of dw */
    ptrdiff_t pairs;         /* of a line of the strips */
    ptrdiff_t lines, images; /* of a strip: lines of one image, or all of several */
    ptrdiff_t blocks;        /* of 16 pairs, of an image's part of a strip */
    ptrdiff_t strips, chunks;
    ptrdiff_t filters, channels; /* of a part, in sixteens */
    float *partial;              /* (chunks, filters, patch) */
} dml__amx_wgrad;

/* What a task computes: of a chunk's dw, filters f0 .., taps tap0 .. and channels c0 .. . */
typedef struct dml__amx_part {
    ptrdiff_t chunk, f0, filters, tap0, taps, c0, channels;
    float *dw; /* the first of them; the next filter's and tap's lie so much further */
    ptrdiff_t filter_step, tap_step;
    float beta;
} dml__amx_part;

/* Copies of x in a part's scratch: for each phase of lines, and each phase of columns and first pixel, of
   those that its taps meet. */
typedef struct dml__amx_views {
    int v[DML__AMX_STRIDE], h[2 * DML__AMX_STRIDE]; /* -1: not met */
    int rows, columns;                              /* how many are met */
} dml__amx_views;

/* Where a part's copies lie. */
typedef struct dml__amx_buffers {
    float *dy;      /* (filters in sixteens, line) pairs; what lies behind the last filter goes nowhere */
    ptrdiff_t line; /* an odd number of lines of the caches, or they would meet in few sets */
    float *narrow;  /* dy or x as bf16 */
    float *x;       /* (rows, columns, panels, panel) */
    ptrdiff_t panels, panel;
    dml__amx_views views;
} dml__amx_buffers;

typedef struct dml__amx_strip {
    ptrdiff_t n0, images, y0, lines;
} dml__amx_strip;

static ptrdiff_t dml__amx_floor(ptrdiff_t a, ptrdiff_t b)
{
    return a / b - (a % b < 0);
}

static ptrdiff_t dml__amx_tap_at(const dml__amx_axis *axis, ptrdiff_t tap)
{
    return tap * axis->dilation - axis->pad;
}

static ptrdiff_t dml__amx_shift(const dml__amx_axis *axis, ptrdiff_t tap)
{
    return dml__amx_floor(dml__amx_tap_at(axis, tap), axis->stride) - axis->low;
}

static ptrdiff_t dml__amx_phase(const dml__amx_axis *axis, ptrdiff_t tap)
{
    const ptrdiff_t at = dml__amx_tap_at(axis, tap);
    return at - dml__amx_floor(at, axis->stride) * axis->stride;
}

static dml__amx_axis dml__amx_axis_of(ptrdiff_t stride, ptrdiff_t dilation, ptrdiff_t pad, ptrdiff_t taps,
                                      ptrdiff_t in, ptrdiff_t out)
{
    dml__amx_axis axis = { stride, dilation, pad, taps, in, out, dml__amx_floor(-pad, stride), 0 };
    axis.reach = dml__amx_shift(&axis, taps - 1);
    return axis;
}

/* --- the plan --- */

static ptrdiff_t dml__amx_chunks(ptrdiff_t floats, ptrdiff_t strips)
{
    const ptrdiff_t most = dml__smaller(DML__AMX_CHUNKS, strips);
    return floats > DML__AMX_PARTIAL ? 1 : dml__larger(1, dml__smaller(most, DML__AMX_PARTIAL / floats));
}

/* strips = 0: one line is too much. */
static dml__amx_wgrad dml__amx_wgrad_plan(dml_pool *pool, const dml__wgrad *j)
{
    dml__amx_wgrad plan;
    memset(&plan, 0, sizeof plan);
    plan.job = j;
    plan.pool = pool;
    plan.v = dml__amx_axis_of(j->stride_h, j->dilation_h, j->pad_h, j->taps_h, j->in_h, j->out_h);
    plan.h = dml__amx_axis_of(j->stride_w, j->dilation_w, j->pad_w, j->taps_w, j->in_w, j->out_w);
    plan.patch = j->taps_h * j->taps_w * j->channels;
    plan.pairs = (j->out_w + plan.h.reach) / 2 + (j->out_w + plan.h.reach) % 2;
    if (plan.v.reach >= DML__AMX_STRIP || plan.pairs > DML__AMX_STRIP / (plan.v.reach + 1)) return plan;
    const ptrdiff_t most = DML__AMX_STRIP / plan.pairs - plan.v.reach; /* lines */
    plan.lines = dml__quotient_up(j->out_h, dml__quotient_up(j->out_h, most));
    plan.blocks = dml__quotient_up(plan.lines * plan.pairs, 16);
    plan.images = 1;
    if (plan.lines == j->out_h) {
        const ptrdiff_t image = dml__larger(16 * plan.blocks, (plan.lines + plan.v.reach) * plan.pairs);
        plan.images = dml__smaller(dml__larger(1, j->batch), dml__larger(1, DML__AMX_STRIP / image));
    }
    plan.strips = dml__quotient_up(j->batch, plan.images) * dml__quotient_up(j->out_h, plan.lines);
    plan.chunks = dml__amx_chunks(j->filters * plan.patch, plan.strips);
    return plan;
}

static dml__amx_views dml__amx_views_of(const dml__amx_wgrad *plan, const dml__amx_part *part)
{
    dml__amx_views views;
    memset(&views, -1, sizeof views);
    views.rows = views.columns = 0;
    for (ptrdiff_t tap = part->tap0; tap < part->tap0 + part->taps; tap++) {
        int *v = &views.v[dml__amx_phase(&plan->v, tap / plan->h.taps)];
        const ptrdiff_t tap_w = tap % plan->h.taps;
        int *h = &views.h[2 * dml__amx_phase(&plan->h, tap_w) + dml__amx_shift(&plan->h, tap_w) % 2];
        if (*v < 0) *v = views.rows++;
        if (*h < 0) *h = views.columns++;
    }
    return views;
}

/* Lays out a part's copies; NULL: only to say how many floats they take, together. */
static ptrdiff_t dml__amx_lay_out(const dml__amx_wgrad *plan, const dml__amx_part *part, float *memory,
                                  dml__amx_buffers *b)
{
    const ptrdiff_t strip = plan->lines * plan->pairs, copy = strip + plan->v.reach * plan->pairs;
    b->views = dml__amx_views_of(plan, part);
    b->line = (plan->images * plan->blocks | 1) * 16;
    b->panels = dml__quotient_up(part->channels, 16);
    b->panel = (plan->images * copy + DML__AMX_TAIL + plan->h.reach / 2) * 16;
    const ptrdiff_t dy = dml__round_up(part->filters, 16) * b->line;
    const ptrdiff_t narrow = dml__round_up(dml__larger(strip * part->filters, copy * part->channels), 16);
    b->dy = memory;
    b->narrow = memory ? memory + dy : NULL;
    b->x = memory ? b->narrow + narrow : NULL;
    return dy + narrow + (ptrdiff_t)b->views.rows * b->views.columns * b->panels * b->panel;
}

static ptrdiff_t dml__amx_part_floats(const dml__amx_wgrad *plan)
{
    const dml__amx_part part = {
        0, 0, plan->filters, 0, plan->job->taps_h * plan->job->taps_w, 0, plan->channels, NULL, 0, 0, 0
    };
    dml__amx_buffers buffers;
    return dml__amx_lay_out(plan, &part, NULL, &buffers);
}

/* Half of so many, in sixteens. */
static ptrdiff_t dml__amx_halved(ptrdiff_t n)
{
    return dml__round_up(n / 2, 16);
}

/* Parts that fit a worker's scratch, and are enough for the threads. Returns whether there are such. */
static bool dml__amx_cut_dw(dml__amx_wgrad *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t has = (ptrdiff_t)(dml_pool_scratch_bytes(plan->pool).worker / sizeof(float));
    const int threads = dml_pool_threads(plan->pool);
    plan->filters = dml__smaller(DML__AMX_AT_ONCE, dml__round_up(j->filters, 16));
    plan->channels = dml__smaller(DML__AMX_AT_ONCE, dml__round_up(j->channels, 16));
    for (;;) {
        const ptrdiff_t parts = plan->chunks * dml__quotient_up(j->filters, plan->filters) *
                                dml__quotient_up(j->channels, plan->channels);
        const bool fits = dml__amx_part_floats(plan) <= has, few = threads > 1 && parts < 2 * threads;
        if (fits && (!few || (plan->filters <= 32 && plan->channels <= 32))) return true;
        if (plan->filters <= 16 && plan->channels <= 16) return fits;
        if (plan->channels >= plan->filters)
            plan->channels = dml__amx_halved(plan->channels);
        else
            plan->filters = dml__amx_halved(plan->filters);
    }
}

static dml__amx_strip dml__amx_strip_at(const dml__amx_wgrad *plan, ptrdiff_t index)
{
    const ptrdiff_t of_image = dml__quotient_up(plan->job->out_h, plan->lines);
    dml__amx_strip strip;
    strip.n0 = index / of_image * plan->images;
    strip.images = dml__smaller(plan->images, plan->job->batch - strip.n0);
    strip.y0 = index % of_image * plan->lines;
    strip.lines = dml__smaller(plan->lines, plan->job->out_h - strip.y0);
    return strip;
}

/* --- copies of dy and x --- */

/* `count` pixels' numbers, from pixels `step` apart, as bf16. */
DML__AMX static void dml__amx_narrow_pixels(const float *from, ptrdiff_t step, ptrdiff_t count,
                                            ptrdiff_t numbers, uint16_t *to)
{
    if (step == numbers) {
        dml__narrow_run(from, count * numbers, to);
        return;
    }
    for (ptrdiff_t i = 0; i < count; i++, from += step, to += numbers) dml__narrow_run(from, numbers, to);
}

static void dml__amx_copy_dy(const dml__amx_wgrad *plan, const dml__amx_part *part,
                             const dml__amx_strip *strip, const dml__amx_buffers *b)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t filters = part->filters, line = 2 * plan->pairs * filters, taken = j->out_w * filters;
    uint16_t *narrow = (uint16_t *)(void *)b->narrow; /* (lines, 2 pairs, filters) */
    const dml__pairs_source turned = { narrow, false, 1, filters, strip->lines * 2 * plan->pairs };
    for (ptrdiff_t n = 0; n < strip->images; n++) {
        const float *from =
            j->dy + ((strip->n0 + n) * j->out_h + strip->y0) * j->out_w * j->dy_pixel + part->f0;
        for (ptrdiff_t y = 0; y < strip->lines; y++, from += j->out_w * j->dy_pixel) {
            dml__amx_narrow_pixels(from, j->dy_pixel, j->out_w, filters, narrow + y * line);
            memset(narrow + y * line + taken, 0, (size_t)(line - taken) * sizeof *narrow);
        }
        dml__factor_of_pairs(&turned).packers->pack_lines(
            &turned, 0, (int)filters, 0, (int)(16 * plan->blocks), b->line, b->dy + n * 16 * plan->blocks);
    }
}

/* A line of a phase of x, that which is line `y` of it. */
static void dml__amx_narrow_line(const dml__amx_wgrad *plan, const dml__amx_part *part, ptrdiff_t n,
                                 ptrdiff_t y, ptrdiff_t phase, uint16_t *to)
{
    const dml__wgrad *j = plan->job;
    const dml__amx_axis *h = &plan->h;
    const ptrdiff_t x0 = h->low * h->stride + phase, pixels = 2 * plan->pairs, channels = part->channels;
    ptrdiff_t begin = x0 < 0 ? dml__quotient_up(-x0, h->stride) : 0;
    ptrdiff_t end = x0 < j->in_w ? dml__quotient_up(j->in_w - x0, h->stride) : 0;
    if (y < 0 || y >= j->in_h) end = 0;
    end = dml__smaller(pixels, end);
    begin = dml__smaller(begin, end);
    memset(to, 0, (size_t)(begin * channels) * sizeof *to);
    if (begin < end)
        dml__amx_narrow_pixels(j->x + ((n * j->in_h + y) * j->in_w + x0 + begin * h->stride) * j->x_pixel +
                                   part->c0,
                               h->stride * j->x_pixel, end - begin, channels, to + begin * channels);
    memset(to + end * channels, 0, (size_t)((pixels - end) * channels) * sizeof *to);
}

/* Panels of an image's pairs, of pixels from the first on or from the second. */
static void dml__amx_pair_pixels(const dml__amx_wgrad *plan, const dml__amx_part *part,
                                 const dml__amx_buffers *b, ptrdiff_t lines, int second, float *out)
{
    const ptrdiff_t channels = part->channels, whole = channels / 16, pairs = lines * plan->pairs;
    const dml__pairs_source pixels = { (const uint16_t *)(const void *)b->narrow + second * channels, false,
                                       1, channels, 2 * pairs - second };
    const dml__factor factor = dml__factor_of_pairs(&pixels);
    if (whole) factor.packers->pack_panels(&pixels, 0, whole, 0, (int)pairs, 16, b->panel, out);
    if (whole * 16 < channels)
        factor.pack(&pixels, whole * 16, (int)(channels - whole * 16), 0, (int)pairs, 16,
                    out + whole * b->panel);
}

static float *dml__amx_view(const dml__amx_buffers *b, int row, int column)
{
    return b->x + ((ptrdiff_t)row * b->views.columns + column) * b->panels * b->panel;
}

static void dml__amx_copy_x(const dml__amx_wgrad *plan, const dml__amx_part *part,
                            const dml__amx_strip *strip, const dml__amx_buffers *b)
{
    const dml__amx_views *views = &b->views;
    const ptrdiff_t lines = strip->lines + plan->v.reach, used = lines * plan->pairs * 16;
    uint16_t *narrow = (uint16_t *)(void *)b->narrow; /* (lines, 2 pairs, channels) */
    for (ptrdiff_t row = 0; row < plan->v.stride; row++)
        for (ptrdiff_t column = 0; column < plan->h.stride && views->v[row] >= 0; column++) {
            const int *met = &views->h[2 * column];
            if (met[0] < 0 && met[1] < 0) continue;
            for (ptrdiff_t n = 0; n < strip->images; n++) {
                for (ptrdiff_t line = 0; line < lines; line++)
                    dml__amx_narrow_line(plan, part, strip->n0 + n,
                                         (strip->y0 + line + plan->v.low) * plan->v.stride + row, column,
                                         narrow + line * 2 * plan->pairs * part->channels);
                for (int second = 0; second < 2; second++)
                    if (met[second] >= 0)
                        dml__amx_pair_pixels(plan, part, b, lines, second,
                                             dml__amx_view(b, views->v[row], met[second]) + n * used);
            }
        }
    /* What is read beyond the last image meets zeros of dy. */
    for (ptrdiff_t panel = 0; panel < (ptrdiff_t)views->rows * views->columns * b->panels; panel++)
        memset(b->x + panel * b->panel + strip->images * used, 0,
               (size_t)(b->panel - strip->images * used) * sizeof *b->x);
}

/* --- products --- */

/* Up to 2 x 2 tiles of dw: their factors, and how many filters and channels each has. */
typedef struct dml__amx_wgrad_tiles {
    int a_tiles, b_tiles, rows[2], columns[2];
    const float *a[2], *b[2];
    float *c[2][2];
} dml__amx_wgrad_tiles;

static void dml__amx_copy_rows(int rows, int columns, const float *from, ptrdiff_t from_step, float *to,
                               ptrdiff_t to_step)
{
    for (int i = 0; i < rows; i++, from += from_step, to += to_step)
        memcpy(to, from, (size_t)columns * sizeof *to);
}

DML__AMX static void dml__amx_multiply_dw(const dml__amx_wgrad *plan, const dml__amx_buffers *b,
                                          const dml__amx_strip *strip, const dml__amx_wgrad_tiles *t,
                                          ptrdiff_t filter_step, bool begins)
{
    const ptrdiff_t a_line = b->line * (ptrdiff_t)sizeof(float);
    const ptrdiff_t b_image = (strip->lines + plan->v.reach) * plan->pairs * 16;
    const ptrdiff_t blocks = dml__quotient_up(strip->lines * plan->pairs, 16);
    const float *low = t->a_tiles > 1 ? t->a[1] : NULL, *right = t->b_tiles > 1 ? t->b[1] : NULL;
    float side[4][16 * 16]; /* (tile, filters, channels) */
    dml__amx_sum sums[4];
    for (int i = 0; i < 4; i++) {
        const bool there = i / 2 < t->a_tiles && i % 2 < t->b_tiles;
        const bool direct = there && t->rows[i / 2] == 16 && t->columns[i % 2] == 16;
        sums[i].at = direct ? t->c[i / 2][i % 2] : there ? side[i] : NULL;
        sums[i].line = (direct ? filter_step : 16) * (ptrdiff_t)sizeof(float);
        sums[i].loads = there && !begins;
        if (direct || !sums[i].loads) continue;
        memset(side[i], 0, sizeof side[i]);
        dml__amx_copy_rows(t->rows[i / 2], t->columns[i % 2], t->c[i / 2][i % 2], filter_step, side[i], 16);
    }
    dml__amx_begin(sums);
    for (ptrdiff_t n = 0; n < strip->images; n++)
        for (ptrdiff_t block = 0; block < blocks; block++) {
            const ptrdiff_t a_at = (n * plan->blocks + block) * 16, b_at = n * b_image + block * 256;
            dml__amx_add(t->a[0] + a_at, low ? low + a_at : NULL, a_line, t->b[0] + b_at,
                         right ? right + b_at : NULL, 64);
        }
    dml__amx_end(sums);
    for (int i = 0; i < 4; i++)
        if (sums[i].at == side[i])
            dml__amx_copy_rows(t->rows[i / 2], t->columns[i % 2], side[i], 16, t->c[i / 2][i % 2],
                               filter_step);
}

/* Where tile number `index` of a part's columns, taps of panels, finds its factor. */
static const float *dml__amx_columns_at(const dml__amx_wgrad *plan, const dml__amx_part *part,
                                        const dml__amx_buffers *b, ptrdiff_t index)
{
    const ptrdiff_t tap = part->tap0 + index / b->panels, panel = index % b->panels;
    const ptrdiff_t tap_h = tap / plan->h.taps, tap_w = tap % plan->h.taps;
    const ptrdiff_t shift = dml__amx_shift(&plan->h, tap_w);
    const int row = b->views.v[dml__amx_phase(&plan->v, tap_h)],
              column = b->views.h[2 * dml__amx_phase(&plan->h, tap_w) + shift % 2];
    return dml__amx_view(b, row, column) + panel * b->panel +
           (dml__amx_shift(&plan->v, tap_h) * plan->pairs + shift / 2) * 16;
}

static void dml__amx_multiply_strip(const dml__amx_wgrad *plan, const dml__amx_part *part,
                                    const dml__amx_buffers *b, const dml__amx_strip *strip, bool begins)
{
    const ptrdiff_t columns = part->taps * b->panels;
    dml__amx_wgrad_tiles t;
    for (ptrdiff_t f = 0; f < part->filters; f += 32)
        for (ptrdiff_t index = 0; index < columns; index += 2) {
            t.a_tiles = part->filters - f > 16 ? 2 : 1;
            t.b_tiles = columns - index > 1 ? 2 : 1;
            for (int i = 0; i < t.b_tiles; i++) {
                const ptrdiff_t tap = (index + i) / b->panels, c = (index + i) % b->panels * 16;
                t.b[i] = dml__amx_columns_at(plan, part, b, index + i);
                t.columns[i] = (int)dml__smaller(16, part->channels - c);
                for (int a = 0; a < t.a_tiles; a++)
                    t.c[a][i] = part->dw + (f + 16 * a) * part->filter_step + tap * part->tap_step + c;
            }
            for (int a = 0; a < t.a_tiles; a++) {
                t.a[a] = b->dy + (f + 16 * a) * b->line;
                t.rows[a] = (int)dml__smaller(16, part->filters - f - 16 * a);
            }
            dml__amx_multiply_dw(plan, b, strip, &t, part->filter_step, begins);
        }
}

static void dml__amx_scale_part(const dml__amx_part *part)
{
    for (ptrdiff_t f = 0; f < part->filters; f++)
        for (ptrdiff_t tap = 0; tap < part->taps; tap++) {
            float *dw = part->dw + f * part->filter_step + tap * part->tap_step;
            for (ptrdiff_t c = 0; c < part->channels; c++) dw[c] *= part->beta;
        }
}

static void dml__amx_part_run(const dml__amx_wgrad *plan, const dml__amx_part *part, float *memory)
{
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    bool begins = part->beta == 0;
    dml__amx_buffers buffers;
    dml__amx_lay_out(plan, part, memory, &buffers);
    if (part->beta != 0 && part->beta != 1) dml__amx_scale_part(part);
    dml__amx_configure(16, 16, 16);
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, begins = false) {
        const dml__amx_strip strip = dml__amx_strip_at(plan, s);
        dml__amx_copy_dy(plan, part, &strip, &buffers);
        dml__amx_copy_x(plan, part, &strip, &buffers);
        dml__amx_multiply_strip(plan, part, &buffers, &strip, begins);
    }
    dml__amx_release();
}

/* The same in small parts. */
DML__NOINLINE static void dml__amx_part_on_stack(const dml__amx_wgrad *plan, const dml__amx_part *part)
{
    float memory[DML__AMX_STACK];
    dml__amx_part small = *part;
    small.taps = 1;
    for (ptrdiff_t f = 0; f < part->filters; f += 16)
        for (ptrdiff_t tap = 0; tap < part->taps; tap++)
            for (ptrdiff_t c = 0; c < part->channels; c += 16) {
                small.f0 = part->f0 + f, small.tap0 = part->tap0 + tap, small.c0 = part->c0 + c;
                small.filters = dml__smaller(16, part->filters - f);
                small.channels = dml__smaller(16, part->channels - c);
                small.dw = part->dw + f * part->filter_step + tap * part->tap_step + c;
                dml__amx_part_run(plan, &small, memory);
            }
}

/* --- the whole --- */

static dml__amx_part dml__amx_part_at(const dml__amx_wgrad *plan, ptrdiff_t index)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t down = dml__quotient_up(j->filters, plan->filters),
                    across = dml__quotient_up(j->channels, plan->channels);
    dml__amx_part part;
    part.chunk = index / across / down;
    part.f0 = index / across % down * plan->filters;
    part.c0 = index % across * plan->channels;
    part.filters = dml__smaller(plan->filters, j->filters - part.f0);
    part.channels = dml__smaller(plan->channels, j->channels - part.c0);
    part.tap0 = 0;
    part.taps = j->taps_h * j->taps_w;
    part.filter_step = plan->patch;
    part.tap_step = j->channels;
    part.dw = (plan->chunks > 1 ? plan->partial + part.chunk * j->filters * plan->patch : j->dw) +
              part.f0 * plan->patch + part.c0;
    part.beta = plan->chunks > 1 ? 0 : j->beta;
    return part;
}

static void dml__amx_wgrad_task(void *argument, int task, int worker)
{
    const dml__amx_wgrad *plan = (const dml__amx_wgrad *)argument;
    const dml__amx_part part = dml__amx_part_at(plan, task);
    float *own = (float *)dml_pool_scratch(plan->pool, worker);
    if (own)
        dml__amx_part_run(plan, &part, own);
    else /* a host that numbers its workers wrongly */
        dml__amx_part_on_stack(plan, &part);
}

/* Without scratch: 16 filters' sums of 16 channels under a tap, chunk by chunk. */
static void dml__amx_wgrad_on_stack(dml__amx_wgrad *plan)
{
    const dml__wgrad *j = plan->job;
    float sums[DML__AMX_CHUNKS][16 * 16]; /* (chunk, filters, channels) */
    plan->filters = plan->channels = 16;
    const ptrdiff_t parts = dml__quotient_up(j->filters, 16) * dml__quotient_up(j->channels, 16);
    for (ptrdiff_t index = 0; index < parts * j->taps_h * j->taps_w; index++) {
        dml__amx_part part = dml__amx_part_at(plan, index % parts);
        float *dw = j->dw + part.f0 * plan->patch + index / parts * j->channels + part.c0;
        part.tap0 = index / parts, part.taps = 1;
        part.dw = plan->chunks > 1 ? sums[0] : dw;
        if (plan->chunks > 1) part.filter_step = 16;
        for (part.chunk = 0; part.chunk < plan->chunks; part.chunk++, part.dw += 16 * 16)
            dml__amx_part_on_stack(plan, &part);
        const dml__finish add = { (int)plan->chunks, 16 * 16, 1, j->beta, NULL, false };
        for (ptrdiff_t f = 0; f < part.filters && plan->chunks > 1; f++)
            dml__finish_line(dml__pool_machine(plan->pool).isa, (size_t)part.channels, &add, sums[0] + 16 * f,
                             dw + f * plan->patch);
    }
}

DML__LOCAL bool dml__amx_wgrad_run(dml_pool *pool, const dml__wgrad *job)
{
    if (job->batch < 1 || job->stride_h > DML__AMX_STRIDE || job->stride_w > DML__AMX_STRIDE) return false;
    dml__amx_wgrad plan = dml__amx_wgrad_plan(pool, job);
    if (plan.strips == 0) return false;
    const ptrdiff_t all = job->filters * plan.patch, partial = plan.chunks > 1 ? plan.chunks * all : 0;
    if (!dml__amx_cut_dw(&plan) || dml_pool_scratch_bytes(pool).shared < (size_t)partial * sizeof(float)) {
        dml__amx_wgrad_on_stack(&plan);
        return true;
    }
    plan.partial = (float *)dml_pool_shared_scratch(pool);
    const ptrdiff_t parts = plan.chunks * dml__quotient_up(job->filters, plan.filters) *
                            dml__quotient_up(job->channels, plan.channels);
    dml_pool_run(parts > 1 ? pool : NULL, (int)parts, dml__amx_wgrad_task, &plan);
    if (partial) dml__wgrad_add(pool, job, plan.chunks, plan.partial);
    return true;
}

#else

DML__LOCAL bool dml__amx_wgrad_run(dml_pool *pool, const dml__wgrad *job)
{
    (void)pool, (void)job;
    return false;
}

#endif
#endif
