#ifndef DML_KERNELS_CONV2D_WEIGHTS_C
#define DML_KERNELS_CONV2D_WEIGHTS_C

#include "kernels/conv2d_weights.h"

#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_tall.h"
#include "kernels/finish.h"
#include "kernels/pack.h"
#include "thread/pool_internal.h"

#include <string.h>

/* The micro-kernel's rows are filters, its columns the channels under a tap (or, where there are few, the
   channels under a line of taps), its k pixels of dy, and its blocks lines of them. The sum over pixels is
   cut into strips, each of which is one chain of multiply-adds: a strip of x is copied into panels of
   channels with the padding's zeros around it, one of dy into panels of filters. A small dw has too few tiles
   to share among threads: the strips then are shared out in chunks, whose partial sums are added up in order.
   Strips and chunks depend on the shape alone.

   Few channels under a line of taps leave lanes empty, where filters may fill them: 9 floats take two vectors
   of 8. Then the roles change: rows are the elements of a patch, columns filters, and the sums are turned on
   their way to dw. Each is the same chain of multiply-adds, so the bits stay. */
#define DML__WGRAD_STRIP 256 /* pixels of dy */
#define DML__WGRAD_CHUNKS 16
#define DML__WGRAD_CHUNKED 65536  /* floats of a dw that is summed in chunks */
#define DML__WGRAD_PARTIAL 262144 /* floats of all partial sums, about */
#define DML__WGRAD_ADDED 2048     /* floats of dw whose partial sums a task adds */
#define DML__WGRAD_FILTERS 256    /* of dy that are packed at once */
#define DML__WGRAD_COPY 49152     /* floats of x that are copied at once, where that is a panel or more */
#define DML__WGRAD_COPY_MOST 262144
#define DML__WGRAD_STACK_TILES 8
#define DML__WGRAD_GATHERED 16  /* floats of a line of taps that is gathered, which is copied in one piece */
#define DML__WGRAD_TURNED 16384 /* floats of a dw that is computed turned, which stays in a level-2 cache */

typedef struct dml__wgrad_plan {
    const dml__wgrad *job;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t full, rows;       /* of a tile */
    ptrdiff_t row_tiles, patch; /* patch = taps_h taps_w channels: a line of dw */
    bool lines_of_taps;         /* a tile's columns run through (taps_w, channels), not channels */
    bool turned;                /* a tile's columns are filters, in whole vectors */
    ptrdiff_t
        patch_w; /* a tile's columns run through (taps_h, taps_w, channels), gathered in so many floats */
    ptrdiff_t panels;        /* of channels; of whole lines 1 */
    ptrdiff_t lines, pieces; /* a strip is that many lines of dy, or one of that many pieces of a line */
    ptrdiff_t strips, chunks;
    bool in_place;                      /* x is used where it is */
    ptrdiff_t step_h, step_w;           /* strides in the copy */
    ptrdiff_t copy_w, copy_lines;       /* pixels of a line of the copy, lines at most */
    ptrdiff_t panels_at_once;           /* that are copied */
    ptrdiff_t filters_at_once;          /* that are packed, in whole tiles */
    ptrdiff_t panel_shares, row_shares; /* tasks: chunks times these */
    float *partial; /* (chunks, filters, patch), turned (chunks, patch, filters), of several chunks */
} dml__wgrad_plan;

static ptrdiff_t dml__wgrad_strip_w(const dml__wgrad_plan *plan)
{
    return dml__quotient_up(plan->job->out_w, plan->pieces);
}

/* Columns that the micro-kernel computes for so many of dw. */
static int dml__wgrad_tile_columns(const dml__wgrad_plan *plan, int count)
{
    return plan->kernel->least_columns == 1 ? count : (int)dml__round_up(count, plan->kernel->lanes);
}

static void dml__wgrad_plan_strips(dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t all = j->batch * j->out_h, dw = j->filters * plan->patch;
    plan->pieces = dml__quotient_up(j->out_w, DML__WGRAD_STRIP);
    plan->lines = dml__larger(1, DML__WGRAD_STRIP / j->out_w);
    plan->strips = dml__quotient_up(all, plan->lines) * plan->pieces;
    plan->chunks = 1;
    if (dw <= DML__WGRAD_CHUNKED)
        plan->chunks =
            dml__smaller(dml__smaller(DML__WGRAD_CHUNKS, plan->strips / 2), DML__WGRAD_PARTIAL / dw);
    plan->chunks = dml__larger(1, plan->chunks);
}

static void dml__wgrad_plan_copies(dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t reach_h = (j->taps_h - 1) * j->dilation_h + 1,
                    reach_w = (j->taps_w - 1) * j->dilation_w + 1;
    const bool inside = j->pad_h == 0 && j->pad_w == 0 && (j->out_h - 1) * j->stride_h + reach_h <= j->in_h &&
                        (j->out_w - 1) * j->stride_w + reach_w <= j->in_w;
    /* What one tap passes over need not be copied. */
    plan->step_h = j->taps_h == 1 ? 1 : j->stride_h;
    plan->step_w = j->taps_w == 1 ? 1 : j->stride_w;
    plan->copy_w = (dml__wgrad_strip_w(plan) - 1) * plan->step_w + reach_w;
    const ptrdiff_t images =
        dml__smaller(dml__smaller(plan->lines, j->batch), (plan->lines - 1) / j->out_h + 2);
    plan->copy_lines = (plan->lines - images) * plan->step_h + images * reach_h;
    if (plan->step_h > reach_h) plan->copy_lines = plan->lines * plan->step_h; /* a bound */
    /* Two or three tiles of filters are no reason to copy x. */
    plan->in_place =
        inside && !plan->lines_of_taps && j->channels % plan->kernel->lanes == 0 && plan->row_tiles < 4;
    const ptrdiff_t panel =
        plan->copy_lines * plan->copy_w * (plan->lines_of_taps ? j->channels : plan->full);
    plan->panels_at_once = dml__smaller(plan->panels, dml__larger(1, DML__WGRAD_COPY / panel));
    const ptrdiff_t parts = dml__quotient_up(plan->row_tiles * plan->rows, DML__WGRAD_FILTERS);
    plan->filters_at_once = dml__quotient_up(plan->row_tiles, parts) * plan->rows;
}

static void dml__wgrad_plan_shares(dml__wgrad_plan *plan, int threads)
{
    const dml__wgrad *j = plan->job;
    const double work =
        (double)j->batch * (double)(j->out_h * j->out_w) * (double)plan->patch * (double)j->filters;
    ptrdiff_t wanted = 1;
    plan->panel_shares = plan->row_shares = 1;
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK) wanted = 2 * threads;
    if (plan->chunks >= wanted || plan->turned) return;
    plan->panel_shares = dml__smaller(plan->panels, dml__quotient_up(wanted, plan->chunks));
    if (plan->chunks * plan->panel_shares < wanted)
        plan->row_shares =
            dml__smaller(plan->row_tiles, dml__quotient_up(wanted, plan->chunks * plan->panel_shares));
}

/* What a line of so many vectors costs, in thirds of a vector: one alone doesn't keep the processor busy. */
static ptrdiff_t dml__wgrad_line_cost(ptrdiff_t floats, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = dml__quotient_up(floats, lanes);
    return 3 * vectors + vectors % 2;
}

/* Whether a turned tile may be tall: of one vector of filters, under elements of lines of taps. */
static bool dml__wgrad_is_tall(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    return j->filters <= plan->kernel->lanes && j->taps_w * j->channels >= DML__TALL_LEAST &&
           dml__tall_is_there(dml__pool_machine(plan->pool).isa);
}

static bool dml__wgrad_is_turned(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t lanes = plan->kernel->lanes, line = j->taps_w * j->channels;
    if (!plan->lines_of_taps || plan->patch > DML__WGRAD_TURNED / j->filters || j->filters > DML__WGRAD_ADDED)
        return false;
    const ptrdiff_t lines = j->filters * j->taps_h * dml__wgrad_line_cost(line, lanes);
    if (dml__wgrad_is_tall(plan)) return 3 * j->taps_h * dml__tall_cost(line, j->filters < lanes) < lines;
    return j->filters % lanes == 0 && plan->patch * dml__wgrad_line_cost(j->filters, lanes) < lines;
}

/* Floats between patches where they are gathered, or 0. Short lines of taps leave most lanes empty: then
   that takes less than it saves. */
static ptrdiff_t dml__wgrad_gathers(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t line = j->taps_w * j->channels, lanes = plan->kernel->lanes;
    if (!plan->lines_of_taps || plan->turned || line > DML__WGRAD_GATHERED) return 0;
    const ptrdiff_t lines = j->taps_h * dml__wgrad_line_cost(line, lanes),
                    patches = dml__wgrad_line_cost(plan->patch, lanes);
    return plan->row_tiles * (lines - patches) > 2 * j->taps_h
               ? dml__round_up(plan->patch - line + (line <= 8 ? 8 : DML__WGRAD_GATHERED), 16)
               : 0;
}

static dml__wgrad_plan dml__wgrad_plan_of(dml_pool *pool, const dml__wgrad *job, int threads)
{
    dml__wgrad_plan plan;
    memset(&plan, 0, sizeof plan);
    plan.job = job;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(dml__pool_machine(pool).isa);
    plan.full = plan.kernel->lanes * plan.kernel->vectors;
    plan.rows = plan.kernel->rows;
    plan.row_tiles = dml__quotient_up(job->filters, plan.rows);
    plan.patch = job->taps_h * job->taps_w * job->channels;
    plan.lines_of_taps = job->channels < plan.full && job->taps_w > 1 && job->dilation_w == 1;
    plan.turned = dml__wgrad_is_turned(&plan);
    plan.patch_w = dml__wgrad_gathers(&plan);
    plan.panels = plan.lines_of_taps ? 1 : dml__quotient_up(job->channels, plan.full);
    dml__wgrad_plan_strips(&plan);
    dml__wgrad_plan_copies(&plan);
    dml__wgrad_plan_shares(&plan, threads);
    return plan;
}

static ptrdiff_t dml__wgrad_lines_floats(const dml__wgrad_plan *plan)
{
    const ptrdiff_t pixels = plan->copy_lines * plan->copy_w;
    if (plan->in_place) return 0;
    return plan->lines_of_taps
               ? pixels * plan->job->channels + dml__larger(plan->full, DML__WGRAD_GATHERED) /* overhang */
               : pixels * plan->full * plan->panels_at_once;
}

static ptrdiff_t dml__wgrad_copy_floats(const dml__wgrad_plan *plan)
{
    const ptrdiff_t lines = dml__wgrad_lines_floats(plan);
    return plan->patch_w ? dml__round_up(lines, 16) + DML__WGRAD_STRIP * plan->patch_w : lines;
}

static ptrdiff_t dml__wgrad_worker_floats(const dml__wgrad_plan *plan)
{
    return dml__round_up(dml__wgrad_copy_floats(plan), 16) +
           (plan->turned ? (DML__WGRAD_STRIP + plan->patch) * plan->job->filters
                         : DML__WGRAD_STRIP * plan->filters_at_once);
}

/* Pixels x0 .. x0 + w - 1 of lines line0 .. of dy, all images' lines counted through. */
typedef struct dml__wgrad_strip {
    ptrdiff_t line0, lines, x0, w;
} dml__wgrad_strip;

static dml__wgrad_strip dml__wgrad_strip_at(const dml__wgrad_plan *plan, ptrdiff_t index)
{
    const dml__wgrad *j = plan->job;
    dml__wgrad_strip strip;
    const ptrdiff_t piece = index % plan->pieces;
    strip.line0 = index / plan->pieces * plan->lines;
    strip.lines = dml__smaller(plan->lines, j->batch * j->out_h - strip.line0);
    strip.x0 = piece * j->out_w / plan->pieces;
    strip.w = (piece + 1) * j->out_w / plan->pieces - strip.x0;
    return strip;
}

/* Some columns of dw: those from `first` on of the line `tap_h` of its taps. */
typedef struct dml__wgrad_columns {
    ptrdiff_t tap_h, first;
    int count;
} dml__wgrad_columns;

/* The floats that a tile's columns run through, and how many times a panel has such: the lines of taps. */
static ptrdiff_t dml__wgrad_line(const dml__wgrad_plan *plan)
{
    return plan->patch_w ? plan->patch : plan->job->taps_w * plan->job->channels;
}

static ptrdiff_t dml__wgrad_tiles_across(const dml__wgrad_plan *plan)
{
    return plan->lines_of_taps ? dml__quotient_up(dml__wgrad_line(plan), plan->full) : plan->job->taps_w;
}

/* A panel's tiles: of each line of taps so many. */
static ptrdiff_t dml__wgrad_tiles(const dml__wgrad_plan *plan)
{
    return (plan->patch_w ? 1 : plan->job->taps_h) * dml__wgrad_tiles_across(plan);
}

static dml__wgrad_columns dml__wgrad_columns_at(const dml__wgrad_plan *plan, ptrdiff_t panel, ptrdiff_t tile)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t across = dml__wgrad_tiles_across(plan), at = tile % across;
    dml__wgrad_columns columns;
    columns.tap_h = tile / across;
    if (plan->lines_of_taps) {
        columns.first = at * plan->full;
        columns.count = (int)dml__smaller(plan->full, dml__wgrad_line(plan) - columns.first);
    } else {
        columns.first = at * j->channels + panel * plan->full;
        columns.count = (int)dml__smaller(plan->full, j->channels - panel * plan->full);
    }
    return columns;
}

/* Where a filter's weight at the first of the columns lies, in dw or in partial sums. */
static float *dml__wgrad_element(const dml__wgrad_plan *plan, float *dw, ptrdiff_t filter,
                                 const dml__wgrad_columns *columns)
{
    return dw + filter * plan->patch + columns->tap_h * plan->job->taps_w * plan->job->channels +
           columns->first;
}

/* --- strips of x and dy --- */

/* A strip of x: where its panels lie, and where in them the first taps of the lines of dy are. */
typedef struct dml__wgrad_view {
    const float *base;
    ptrdiff_t panel_step, line_step, pixel_step, dilation_step; /* dilation_step: of a tap to the right */
    ptrdiff_t at[DML__WGRAD_STRIP];                             /* (strip.lines) */
} dml__wgrad_view;

/* Copies pixels of a line of x into line `line` of the panels, each (copy_lines, copy_w, its width). */
static void dml__wgrad_copy_line(const dml__wgrad_plan *plan, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                 ptrdiff_t pixels, ptrdiff_t c0, ptrdiff_t channels, ptrdiff_t panel_step,
                                 float *copy, ptrdiff_t line_to)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t step = plan->step_w == j->stride_w ? 1 : j->stride_w; /* between pixels that are copied */
    for (ptrdiff_t c = 0; c < channels; c += plan->full, copy += panel_step) {
        const ptrdiff_t count = dml__smaller(plan->full, channels - c);
        const ptrdiff_t width = plan->lines_of_taps ? count : dml__round_up(count, plan->kernel->lanes);
        float *to = copy + line_to * plan->copy_w * width;
        if (y < 0 || y >= j->in_h) {
            dml__conv_zero(to, pixels * width);
            continue;
        }
        const float *line = j->x + (n * j->in_h + y) * j->in_w * j->x_pixel + c0 + c;
        if (step == 1 && count == j->x_pixel && width == count) { /* pixels lie side by side in both */
            const ptrdiff_t before = x >= 0 ? 0 : dml__smaller(-x, pixels);
            const ptrdiff_t end = dml__larger(before, dml__smaller(pixels, j->in_w - x));
            dml__conv_zero(to, before * width);
            dml__conv_copy(to + before * width, line + (x + before) * width, (end - before) * width);
            dml__conv_zero(to + end * width, (pixels - end) * width);
            continue;
        }
        for (ptrdiff_t i = 0, at = x; i < pixels; i++, at += step) {
            float *pixel = to + i * width;
            if (at < 0 || at >= j->in_w) {
                dml__conv_zero(pixel, width);
            } else {
                const float *from = line + at * j->x_pixel;
                if (count == 16)
                    memcpy(pixel, from, 16 * sizeof *pixel);
                else
                    dml__conv_copy(pixel, from, count);
                if (count < width) dml__conv_zero(pixel + count, width - count);
            }
        }
    }
}

/* Copies lines of taps to under the pixels of a line; what is too much of one is overwritten by the next. */
static void dml__wgrad_gather_line(const dml__wgrad_plan *plan, const float *from, ptrdiff_t pixel,
                                   ptrdiff_t tap_step, ptrdiff_t pixels, float *to)
{
    const ptrdiff_t line = plan->job->taps_w * plan->job->channels, step = plan->patch_w;
    for (ptrdiff_t tap = 0; tap < plan->job->taps_h; tap++, from += tap_step, to += line) {
        if (line <= 8)
            for (ptrdiff_t i = 0; i < pixels; i++) memcpy(to + i * step, from + i * pixel, 8 * sizeof *to);
        else
            for (ptrdiff_t i = 0; i < pixels; i++)
                memcpy(to + i * step, from + i * pixel, DML__WGRAD_GATHERED * sizeof *to);
    }
}

static void dml__wgrad_gather_patches(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, float *to,
                                      dml__wgrad_view *view)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t line_step = view->line_step * j->channels;
    for (ptrdiff_t l = 0; l < strip->lines; l++) {
        dml__wgrad_gather_line(plan, view->base + view->at[l] * line_step, view->pixel_step * j->channels,
                               j->dilation_h * line_step, strip->w, to + l * strip->w * plan->patch_w);
        view->at[l] = l;
    }
    view->base = to;
    view->line_step = strip->w;
    view->pixel_step = 1;
}

/* Copies panels `first` .. of a strip of x, or looks at it in place. */
static void dml__wgrad_view_strip(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t first,
                                  ptrdiff_t panels, float *copy, dml__wgrad_view *view)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t reach_h = (j->taps_h - 1) * j->dilation_h + 1;
    const ptrdiff_t c0 = first * plan->full, channels = dml__smaller(panels * plan->full, j->channels - c0);
    const ptrdiff_t x = strip->x0 * j->stride_w - j->pad_w;
    if (plan->in_place) {
        view->base = j->x + c0 + x * j->x_pixel;
        view->panel_step = plan->full;
        view->line_step = j->in_w * j->x_pixel;
        view->pixel_step = j->stride_w * j->x_pixel;
        view->dilation_step = j->dilation_w * j->x_pixel;
        for (ptrdiff_t l = 0; l < strip->lines; l++) {
            const ptrdiff_t line = strip->line0 + l;
            view->at[l] = (line / j->out_h * j->in_h + line % j->out_h * j->stride_h) * view->line_step;
        }
        return;
    }
    /* The last panel may be narrower than the others. */
    const ptrdiff_t width = plan->lines_of_taps ? j->channels : plan->full;
    const ptrdiff_t step = plan->step_h == j->stride_h ? 1 : j->stride_h;
    view->base = copy;
    view->panel_step = plan->copy_lines * plan->copy_w * width;
    view->line_step = plan->copy_w;
    view->pixel_step = plan->step_w;
    view->dilation_step = j->dilation_w;
    const ptrdiff_t pixels = (strip->w - 1) * plan->step_w + (j->taps_w - 1) * j->dilation_w + 1;
    ptrdiff_t copied = 0;
    for (ptrdiff_t l = 0; l < strip->lines;) {
        const ptrdiff_t n = (strip->line0 + l) / j->out_h, y0 = (strip->line0 + l) % j->out_h;
        const ptrdiff_t lines = dml__smaller(strip->lines - l, j->out_h - y0);
        const ptrdiff_t count = (lines - 1) * plan->step_h + reach_h;
        for (ptrdiff_t i = 0; i < lines; i++) view->at[l + i] = copied + i * plan->step_h;
        for (ptrdiff_t i = 0; i < count; i++)
            dml__wgrad_copy_line(plan, n, y0 * j->stride_h - j->pad_h + i * step, x, pixels, c0, channels,
                                 view->panel_step, copy, copied + i);
        copied += count;
        l += lines;
    }
    if (plan->patch_w)
        dml__wgrad_gather_patches(plan, strip, copy + dml__round_up(dml__wgrad_lines_floats(plan), 16), view);
}

/* Tiles t0 .. t1 - 1 of filters, each even shares of them all. */
static ptrdiff_t dml__wgrad_row(const dml__wgrad_plan *plan, ptrdiff_t tile)
{
    return tile * plan->job->filters / plan->row_tiles;
}

/* Where few cache lines hold all filters of a pixel, or few tiles use them, packing costs more than it saves.
 */
static bool dml__wgrad_packs_dy(const dml__wgrad_plan *plan)
{
    const ptrdiff_t uses = plan->panels_at_once * dml__wgrad_tiles(plan);
    return uses >= 3 && plan->job->dy_pixel > 32;
}

/* Packs a strip of dy as panels of tiles, (pixels, rows of the tile) one behind the other. */
static void dml__wgrad_pack_dy(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t tile0,
                               ptrdiff_t tile1, float *out)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t pixels = strip->lines * strip->w;
    const float *from = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    for (ptrdiff_t t = tile0; t < tile1; t++) {
        const ptrdiff_t row = dml__wgrad_row(plan, t), rows = dml__wgrad_row(plan, t + 1) - row;
        const float *at = from + row;
        if (row + 8 <= j->filters &&
            rows < 8) { /* what is copied too much is overwritten by the next pixel */
            for (ptrdiff_t i = 1; i < pixels; i++, at += j->dy_pixel, out += rows)
                memcpy(out, at, 8 * sizeof *out);
            dml__conv_copy(out, at, rows);
            out += rows;
        } else {
            for (ptrdiff_t i = 0; i < pixels; i++, at += j->dy_pixel, out += rows)
                dml__conv_copy(out, at, rows);
        }
    }
}

/* --- tasks --- */

typedef struct dml__wgrad_part {
    ptrdiff_t chunk, panel0, panel1, tile0, tile1;
    float *dw; /* the caller's, or partial sums */
    float beta;
} dml__wgrad_part;

/* One strip's share of some panels' and tiles' dw; dy is packed, or NULL. */
static void dml__wgrad_multiply(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                const dml__wgrad_view *view, const dml__wgrad_part *part, const float *packed,
                                float beta)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t tiles = dml__wgrad_tiles(plan), pixels = strip->lines * strip->w;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.beta = beta;
    tile.k = (int)strip->w;
    tile.blocks = (int)strip->lines;
    for (ptrdiff_t panel = part->panel0; panel < part->panel1; panel++) {
        dml__wgrad_columns next = dml__wgrad_columns_at(plan, panel, 0);
        const ptrdiff_t width = plan->in_place        ? 1
                                : plan->patch_w       ? plan->patch_w
                                : plan->lines_of_taps ? j->channels
                                                      : dml__round_up(next.count, plan->kernel->lanes);
        tile.b_step = view->pixel_step * width;
        for (ptrdiff_t l = 0; l < strip->lines; l++)
            b_at[l] = view->at[l] * (plan->in_place ? 1 : view->line_step * width);
        for (ptrdiff_t t = part->tile0; t < part->tile1; t++) {
            const ptrdiff_t row = dml__wgrad_row(plan, t);
            tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
            const float *a = packed;
            tile.a_step = tile.rows;
            tile.a_packed = packed != NULL;
            if (packed)
                a += (row - dml__wgrad_row(plan, part->tile0)) * pixels;
            else
                a = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel + row,
                tile.a_step = j->dy_pixel;
            for (int i = 0; i < tile.rows; i++) tile.a[i] = a + i;
            const ptrdiff_t a_line = packed ? strip->w * tile.a_step : j->out_w * tile.a_step;
            for (ptrdiff_t l = 0; l < strip->lines; l++) a_at[l] = l * a_line;
            for (ptrdiff_t at = 0; at < tiles; at++) {
                const dml__wgrad_columns columns = next;
                float *c = dml__wgrad_element(plan, part->dw, row, &columns);
                for (int i = 0; i < tile.rows; i++) tile.c[i] = c + i * plan->patch;
                /* The tiles of a large dw are far from each other, and come from memory. */
                next = dml__wgrad_columns_at(plan, panel, at + 1 < tiles ? at + 1 : 0);
                if (at + 1 < tiles || t + 1 < part->tile1) {
                    const ptrdiff_t next_row = at + 1 < tiles ? row : row + tile.rows;
                    const float *ahead = dml__wgrad_element(plan, part->dw, next_row, &next);
                    for (int i = 0; i < tile.rows && next_row + i < j->filters; i++)
                        DML__PREFETCH(ahead + i * plan->patch);
                }
                tile.columns = dml__wgrad_tile_columns(plan, columns.count);
                tile.b = view->base + (panel - part->panel0) * view->panel_step +
                         columns.tap_h * j->dilation_h * view->line_step * width;
                tile.b += plan->lines_of_taps ? columns.first
                                              : columns.first / j->channels * view->dilation_step * width;
                dml__conv_tile(plan->kernel, &tile, columns.count);
            }
        }
    }
}

/* Packs a strip of dy as panels of filters, (pixels, columns) one behind the other. */
static void dml__wgrad_pack_turned(const dml__wgrad_plan *plan, const float *from, ptrdiff_t pixels,
                                   float *out)
{
    const dml__wgrad *j = plan->job;
    for (ptrdiff_t i = 0; i < pixels; i++, from += j->dy_pixel) /* which are best read from end to end */
        for (ptrdiff_t f = 0; f < j->filters; f += plan->full) {
            const ptrdiff_t count = dml__smaller(plan->full, j->filters - f);
            if (count == 16)
                memcpy(out + f * pixels + i * 16, from + f, 16 * sizeof *out);
            else
                dml__conv_copy(out + f * pixels + i * count, from + f, count);
        }
}

/* One strip's share of dw turned, (patch, filters), in tall tiles. */
static void dml__wgrad_multiply_tall(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                     const dml__wgrad_view *view, float beta, float *sums)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t line = j->taps_w * j->channels, a_line = view->line_step * j->channels;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tall_tile tall;
    tall.columns = (int)j->filters;
    tall.b_narrow = j->filters < plan->kernel->lanes;
    tall.size = dml__tall_size(line, tall.b_narrow);
    tall.blocks = (int)strip->lines;
    tall.k = (int)strip->w;
    tall.a_at = a_at, tall.b_at = b_at;
    tall.a_step = view->pixel_step * j->channels;
    tall.row_step = 1;
    tall.c_step = j->filters;
    tall.b = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    tall.b_step = j->dy_pixel;
    tall.beta = beta;
    tall.bias = NULL;
    tall.relu = false;
    tall.groups = 0;
    for (ptrdiff_t l = 0; l < strip->lines; l++)
        a_at[l] = view->at[l] * a_line, b_at[l] = l * strip->w * j->dy_pixel;
    for (ptrdiff_t tap = 0; tap < j->taps_h; tap++)
        dml__tall_add(&tall, view->base + tap * j->dilation_h * a_line, sums + tap * line * j->filters, line);
    dml__tall_end(&tall);
}

/* The same, in others. */
static void dml__wgrad_multiply_turned(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                       const dml__wgrad_view *view, float *packed, float beta, float *sums)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t pixels = strip->lines * strip->w, line = j->taps_w * j->channels,
                    tiles = dml__quotient_up(plan->patch, plan->rows);
    const float *dy = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    const bool in_place = j->filters <= plan->full;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.beta = beta;
    tile.k = (int)strip->w;
    tile.blocks = (int)strip->lines;
    tile.a_step = view->pixel_step * j->channels;
    for (ptrdiff_t l = 0; l < strip->lines; l++) a_at[l] = view->at[l] * view->line_step * j->channels;
    if (!in_place) dml__wgrad_pack_turned(plan, dy, pixels, packed);
    for (ptrdiff_t f = 0; f < j->filters; f += tile.columns) {
        tile.columns = (int)dml__smaller(plan->full, j->filters - f);
        tile.b = in_place ? dy : packed + f * pixels;
        tile.b_step = in_place ? j->dy_pixel : tile.columns;
        for (ptrdiff_t l = 0; l < strip->lines; l++) b_at[l] = l * strip->w * tile.b_step;
        for (ptrdiff_t t = 0; t < tiles; t++) {
            const ptrdiff_t row = t * plan->patch / tiles;
            tile.rows = (int)((t + 1) * plan->patch / tiles - row);
            for (int i = 0; i < tile.rows; i++) {
                const ptrdiff_t tap_h = (row + i) / line;
                tile.a[i] = view->base + tap_h * j->dilation_h * view->line_step * j->channels +
                            (row + i - tap_h * line);
                tile.c[i] = sums + (row + i) * j->filters + f;
            }
            plan->kernel->run(&tile);
        }
    }
}

/* All of a chunk; of several, its partial sums stay turned. */
static void dml__wgrad_turned_run(const dml__wgrad_plan *plan, const dml__wgrad_part *part, float *scratch)
{
    const dml__wgrad *j = plan->job;
    float *packed = scratch + dml__round_up(dml__wgrad_copy_floats(plan), 16);
    float *sums = plan->chunks > 1 ? part->dw : packed + DML__WGRAD_STRIP * j->filters;
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    dml__wgrad_view view;
    float beta = part->beta;
    if (beta != 0)
        dml__pack_transposed(part->dw, plan->patch, (int)j->filters, (int)plan->patch, (int)j->filters, sums);
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_view_strip(plan, &strip, 0, 1, scratch, &view);
        if (dml__wgrad_is_tall(plan))
            dml__wgrad_multiply_tall(plan, &strip, &view, beta, sums);
        else
            dml__wgrad_multiply_turned(plan, &strip, &view, packed, beta, sums);
    }
    if (plan->chunks == 1)
        dml__pack_transposed(sums, j->filters, (int)plan->patch, (int)j->filters, (int)plan->patch, part->dw);
}

static void dml__wgrad_part_run(const dml__wgrad_plan *plan, const dml__wgrad_part *part, float *scratch)
{
    float *packed = scratch + dml__round_up(dml__wgrad_copy_floats(plan), 16);
    const ptrdiff_t row_tiles = plan->filters_at_once / plan->rows;
    const bool pack = dml__wgrad_packs_dy(plan);
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    dml__wgrad_view view;
    float beta = part->beta;
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_part some = *part;
        for (some.panel0 = part->panel0; some.panel0 < part->panel1; some.panel0 = some.panel1) {
            some.panel1 = dml__smaller(some.panel0 + plan->panels_at_once, part->panel1);
            dml__wgrad_view_strip(plan, &strip, some.panel0, some.panel1 - some.panel0, scratch, &view);
            for (some.tile0 = part->tile0; some.tile0 < part->tile1; some.tile0 = some.tile1) {
                some.tile1 = dml__smaller(some.tile0 + row_tiles, part->tile1);
                if (pack) dml__wgrad_pack_dy(plan, &strip, some.tile0, some.tile1, packed);
                dml__wgrad_multiply(plan, &strip, &view, &some, pack ? packed : NULL, beta);
            }
        }
    }
}

/* The columns under the pixels of a strip, (pixels, width): what is computed on the stack gathers them. */
static void dml__wgrad_gather(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                              const dml__wgrad_columns *columns, ptrdiff_t width, float *to)
{
    const dml__wgrad *j = plan->job;
    for (ptrdiff_t l = 0; l < strip->lines; l++) {
        const ptrdiff_t n = (strip->line0 + l) / j->out_h;
        const ptrdiff_t y0 = (strip->line0 + l) % j->out_h * j->stride_h - j->pad_h;
        for (ptrdiff_t i = 0; i < strip->w; i++, to += width) {
            const ptrdiff_t x0 = (strip->x0 + i) * j->stride_w - j->pad_w;
            for (ptrdiff_t done = 0; done < columns->count;) {
                const ptrdiff_t line = j->taps_w * j->channels, at = columns->first + done;
                const ptrdiff_t y = y0 + (columns->tap_h + at / line) * j->dilation_h;
                const ptrdiff_t tap = at % line / j->channels, c = at % j->channels;
                const ptrdiff_t count = dml__smaller(j->channels - c, columns->count - done);
                const ptrdiff_t x = x0 + tap * j->dilation_w;
                if (y < 0 || y >= j->in_h || x < 0 || x >= j->in_w)
                    dml__conv_zero(to + done, count);
                else
                    dml__conv_copy(to + done, j->x + ((n * j->in_h + y) * j->in_w + x) * j->x_pixel + c,
                                   count);
                done += count;
            }
            dml__conv_zero(to + columns->count, width - columns->count);
        }
    }
}

/* One chunk's sums of one tile of columns for some tiles of filters, with what the stack has room for. */
typedef struct dml__wgrad_piece {
    ptrdiff_t panel, at, tile0, tile1, chunk;
    float *c; /* (filters of the tiles, ldc), from the first column on */
    ptrdiff_t ldc;
    float beta;
} dml__wgrad_piece;

DML__NOINLINE static void dml__wgrad_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_piece *piece)
{
    const dml__wgrad *j = plan->job;
    const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece->panel, piece->at);
    const ptrdiff_t width = dml__round_up(columns.count, plan->kernel->lanes);
    const ptrdiff_t end = (piece->chunk + 1) * plan->strips / plan->chunks;
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece->tile0);
    float patches[DML__WGRAD_STRIP * DML__CONV_COLUMNS]; /* (pixels, width) */
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.a_step = j->dy_pixel;
    tile.b = patches;
    tile.b_step = width;
    tile.columns = (int)width;
    tile.beta = piece->beta;
    for (ptrdiff_t s = piece->chunk * plan->strips / plan->chunks; s < end; s++, tile.beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_gather(plan, &strip, &columns, width, patches);
        tile.blocks = (int)strip.lines;
        tile.k = (int)strip.w;
        for (ptrdiff_t l = 0; l < strip.lines; l++) {
            a_at[l] = l * j->out_w * j->dy_pixel;
            b_at[l] = l * strip.w * width;
        }
        for (ptrdiff_t t = piece->tile0; t < piece->tile1; t++) {
            const ptrdiff_t row = dml__wgrad_row(plan, t);
            tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
            for (int i = 0; i < tile.rows; i++) {
                tile.a[i] = j->dy + (strip.line0 * j->out_w + strip.x0) * j->dy_pixel + row + i;
                tile.c[i] = piece->c + (row + i - row0) * piece->ldc;
            }
            dml__conv_tile(plan->kernel, &tile, columns.count);
        }
    }
}

/* The same of all chunks, whose sums are added in the order in which dml__wgrad_add_task adds them. */
static void dml__wgrad_stack_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const dml__wgrad *j = plan->job;
    const ptrdiff_t tiles = dml__wgrad_tiles(plan), groups = plan->row_shares;
    const ptrdiff_t group = task % groups, column_tile = task / groups;
    float sums[2][DML__WGRAD_STACK_TILES * DML__CONV_ROWS * DML__CONV_COLUMNS]; /* (filters, columns) */
    dml__wgrad_piece piece;
    (void)worker;
    piece.panel = column_tile / tiles, piece.at = column_tile % tiles;
    piece.tile0 = group * plan->row_tiles / groups, piece.tile1 = (group + 1) * plan->row_tiles / groups;
    const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece.panel, piece.at);
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece.tile0), row1 = dml__wgrad_row(plan, piece.tile1);
    float *dw = dml__wgrad_element(plan, j->dw, row0, &columns);
    const bool direct = plan->chunks == 1;
    piece.beta = direct ? j->beta : 0;
    piece.ldc = direct ? plan->patch : columns.count;
    for (piece.chunk = 0; piece.chunk < plan->chunks; piece.chunk++) {
        piece.c = direct ? dw : sums[piece.chunk > 0];
        dml__wgrad_on_stack(plan, &piece);
        for (ptrdiff_t i = 0; piece.chunk && i < (row1 - row0) * columns.count; i++) sums[0][i] += sums[1][i];
    }
    const dml__finish add = { 1, 0, 1, j->beta, NULL, false };
    for (ptrdiff_t row = 0; !direct && row < row1 - row0; row++)
        dml__finish_line(dml__pool_machine(plan->pool).isa, (size_t)columns.count, &add,
                         sums[0] + row * columns.count, dw + row * plan->patch);
}

/* Writes a tile's sums where those of a turned part lie. */
static void dml__wgrad_turn(const dml__wgrad_plan *plan, const dml__wgrad_piece *piece,
                            const dml__wgrad_columns *columns, float *dw)
{
    const ptrdiff_t filters = plan->job->filters, row0 = dml__wgrad_row(plan, piece->tile0);
    const ptrdiff_t rows = dml__wgrad_row(plan, piece->tile1) - row0;
    const ptrdiff_t first = dml__wgrad_element(plan, dw, 0, columns) - dw;
    dml__pack_transposed(piece->c, piece->ldc, (int)rows, columns->count, (int)filters,
                         dw + first * filters + row0);
}

static void dml__wgrad_part_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_part *part)
{
    const ptrdiff_t tiles = dml__wgrad_tiles(plan);
    const bool turned = plan->turned && plan->chunks > 1;
    float sums[DML__CONV_ROWS * DML__CONV_COLUMNS];
    dml__wgrad_piece piece;
    piece.chunk = part->chunk;
    piece.beta = part->beta;
    for (piece.panel = part->panel0; piece.panel < part->panel1; piece.panel++)
        for (piece.at = 0; piece.at < tiles; piece.at++)
            for (piece.tile0 = part->tile0; piece.tile0 < part->tile1; piece.tile0 = piece.tile1) {
                const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece.panel, piece.at);
                piece.tile1 = turned ? piece.tile0 + 1 : part->tile1;
                piece.ldc = turned ? columns.count : plan->patch;
                piece.c =
                    turned ? sums
                           : dml__wgrad_element(plan, part->dw, dml__wgrad_row(plan, piece.tile0), &columns);
                dml__wgrad_on_stack(plan, &piece);
                if (turned) dml__wgrad_turn(plan, &piece, &columns, part->dw);
            }
}

static void dml__wgrad_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const ptrdiff_t row_share = task % plan->row_shares, rest = task / plan->row_shares;
    const ptrdiff_t panel_share = rest % plan->panel_shares;
    dml__wgrad_part part;
    part.chunk = rest / plan->panel_shares;
    part.panel0 = panel_share * plan->panels / plan->panel_shares;
    part.panel1 = (panel_share + 1) * plan->panels / plan->panel_shares;
    part.tile0 = row_share * plan->row_tiles / plan->row_shares;
    part.tile1 = (row_share + 1) * plan->row_tiles / plan->row_shares;
    part.dw =
        plan->chunks > 1 ? plan->partial + part.chunk * plan->job->filters * plan->patch : plan->job->dw;
    part.beta = plan->chunks > 1 ? 0 : plan->job->beta;
    float *scratch = (float *)dml_pool_scratch(plan->pool, worker);
    if (scratch && plan->turned)
        dml__wgrad_turned_run(plan, &part, scratch);
    else if (scratch)
        dml__wgrad_part_run(plan, &part, scratch);
    else /* a host that numbers its workers wrongly */
        dml__wgrad_part_on_stack(plan, &part);
}

/* Some of dw from partial sums. */
static void dml__wgrad_add_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const ptrdiff_t all = plan->job->filters * plan->patch, first = task * DML__WGRAD_ADDED;
    const size_t count = (size_t)dml__smaller(DML__WGRAD_ADDED, all - first);
    const dml__finish add = { (int)plan->chunks, all, 1, plan->job->beta, NULL, false };
    (void)worker;
    dml__finish_line(dml__pool_machine(plan->pool).isa, count, &add, plan->partial + first,
                     plan->job->dw + first);
}

/* The same of sums that are turned: some elements of each filter's patch. */
static void dml__wgrad_add_turned_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const dml__wgrad *j = plan->job;
    const dml_isa isa = dml__pool_machine(plan->pool).isa;
    const ptrdiff_t filters = j->filters, most = DML__WGRAD_ADDED / filters, first = task * most;
    const ptrdiff_t rows = dml__smaller(most, plan->patch - first);
    const dml__finish add = { (int)plan->chunks, filters * plan->patch, 1, 0, NULL, false };
    const dml__finish end = { 1, 0, 1, j->beta, NULL, false };
    float sums[DML__WGRAD_ADDED], across[DML__WGRAD_ADDED];
    (void)worker;
    dml__finish_line(isa, (size_t)(rows * filters), &add, plan->partial + first * filters, sums);
    dml__pack_transposed(sums, filters, (int)rows, (int)filters, (int)rows, across);
    for (ptrdiff_t f = 0; f < filters; f++)
        dml__finish_line(isa, (size_t)rows, &end, across + f * rows, j->dw + f * plan->patch + first);
}

static size_t dml__wgrad_partial_bytes(const dml__wgrad_plan *plan)
{
    return plan->chunks == 1 ? 0 : (size_t)(plan->chunks * plan->job->filters * plan->patch) * sizeof(float);
}

DML__LOCAL dml_scratch dml__wgrad_scratch(const dml__wgrad *job)
{
    dml_scratch scratch = { 0, 0 };
    if (job->batch < 1) return scratch;
    const dml__wgrad_plan plan = dml__wgrad_plan_of(NULL, job, 1);
    if (dml__wgrad_copy_floats(&plan) > DML__WGRAD_COPY_MOST) return scratch;
    scratch.worker = (size_t)dml__wgrad_worker_floats(&plan) * sizeof(float);
    scratch.shared = dml__wgrad_partial_bytes(&plan);
    return scratch;
}

DML__LOCAL void dml__wgrad_run(dml_pool *pool, const dml__wgrad *job)
{
    dml__wgrad_plan plan = dml__wgrad_plan_of(pool, job, dml_pool_threads(pool));
    if (job->batch < 1) {
        for (ptrdiff_t i = 0; i < job->filters * plan.patch; i++)
            job->dw[i] = job->beta == 0 ? 0 : job->beta * job->dw[i];
        return;
    }
    const dml_scratch scratch = dml_pool_scratch_bytes(pool);
    if (scratch.worker < (size_t)dml__wgrad_worker_floats(&plan) * sizeof(float) ||
        scratch.shared < dml__wgrad_partial_bytes(&plan)) {
        const ptrdiff_t column_tiles = plan.panels * dml__wgrad_tiles(&plan);
        plan.row_shares = dml__quotient_up(plan.row_tiles, DML__WGRAD_STACK_TILES);
        dml_pool_run(pool, (int)(column_tiles * plan.row_shares), dml__wgrad_stack_task, &plan);
        return;
    }
    plan.partial = (float *)dml_pool_shared_scratch(pool);
    const ptrdiff_t tasks = plan.chunks * plan.panel_shares * plan.row_shares;
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__wgrad_task, &plan);
    if (plan.chunks == 1) return;
    const int shares = (int)(plan.turned ? dml__quotient_up(plan.patch, DML__WGRAD_ADDED / job->filters)
                                         : dml__quotient_up(job->filters * plan.patch, DML__WGRAD_ADDED));
    dml_pool_run(shares > 1 ? pool : NULL, shares,
                 plan.turned ? dml__wgrad_add_turned_task : dml__wgrad_add_task, &plan);
}

#endif
