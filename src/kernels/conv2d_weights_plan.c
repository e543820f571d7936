#ifndef DML_KERNELS_CONV2D_WEIGHTS_PLAN_C
#define DML_KERNELS_CONV2D_WEIGHTS_PLAN_C

#include "kernels/conv2d_weights_plan.h"

#include "base/memory.h"
#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_tall.h"
#include "thread/pool_internal.h"

#include <string.h>

#define DML__WGRAD_CHUNKS 16
#define DML__WGRAD_CHUNKED 65536  /* floats of a dw that is summed in chunks */
#define DML__WGRAD_PARTIAL 262144 /* floats of all partial sums, about */
#define DML__WGRAD_FILTERS 256    /* of dy that are packed at once */
#define DML__WGRAD_COPY 49152     /* floats of x that are copied at once, where that is a panel or more */
#define DML__WGRAD_GATHERED 16  /* floats of a line of taps that is gathered, which is copied in one piece */
#define DML__WGRAD_ROOM 262144  /* floats of a strip of dy and of a dw that is computed turned */
#define DML__WGRAD_TURNED 16384 /* floats of a dw that is computed turned, which stays in a level-2 cache */

#define DML__WGRAD_STREAMED 64 /* pixels of dy at most, where a large dw goes past the caches */

static ptrdiff_t dml__wgrad_strip_w(const dml__wgrad_plan *plan)
{
    return dml__quotient_up(plan->job->out_w, plan->pieces);
}

DML__LOCAL int dml__wgrad_tile_columns(const dml__wgrad_plan *plan, int count)
{
    return plan->kernel->least_columns == 1 ? count : (int)dml__round_up(count, plan->kernel->lanes);
}

static void dml__wgrad_plan_strips(dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t all = j->batch * j->out_h, dw = j->filters * plan->patch;
    plan->pieces = dml__quotient_up(j->out_w, DML__WGRAD_STRIP);
    plan->lines = dml__larger(1, dml__smaller(all, DML__WGRAD_STRIP / j->out_w));
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
    plan->in_place = inside && j->rounds_to == DML_F32 && !plan->lines_of_taps &&
                     j->channels % plan->kernel->lanes == 0 && plan->row_tiles < 4;
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

/* Lines of a large dw, from memory, are far from each other and have few multiply-adds each. */
static bool dml__wgrad_streams(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const dml__machine machine = dml__pool_machine(plan->pool);
    return j->beta == 0 && j->batch * j->out_h * j->out_w <= DML__WGRAD_STREAMED &&
           j->channels % (DML__ALIGNMENT / (ptrdiff_t)sizeof(float)) == 0 &&
           (intptr_t)j->dw % DML__ALIGNMENT == 0 &&
           dml__microkernel_streams(machine.isa, machine.caches.l3, (double)j->filters * (double)plan->patch,
                                    1);
}

/* What a line of so many vectors costs, in thirds of a vector: one alone doesn't keep the processor busy. */
static ptrdiff_t dml__wgrad_line_cost(ptrdiff_t floats, ptrdiff_t lanes)
{
    const ptrdiff_t vectors = dml__quotient_up(floats, lanes);
    return 3 * vectors + vectors % 2;
}

/* Rows of a group where a turned tile may be tall: of one vector of filters, under elements of lines of taps.
 */
static int dml__wgrad_tall(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t line = j->taps_w * j->channels;
    const bool may = plan->lines_of_taps && j->filters <= plan->kernel->lanes && line >= DML__TALL_LEAST &&
                     dml__tall_is_there(dml__pool_machine(plan->pool).isa);
    return may ? dml__tall_size(line, j->taps_h, j->filters < plan->kernel->lanes) : 0;
}

static bool dml__wgrad_is_turned(const dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t lanes = plan->kernel->lanes, line = j->taps_w * j->channels;
    if (!plan->lines_of_taps || plan->patch > DML__WGRAD_TURNED / j->filters ||
        j->filters > DML__WGRAD_ADDED || (DML__WGRAD_STRIP + plan->patch) * j->filters > DML__WGRAD_ROOM)
        return false;
    const ptrdiff_t lines = j->filters * j->taps_h * dml__wgrad_line_cost(line, lanes);
    if (plan->tall) return 3 * j->taps_h * dml__round_up(line, plan->tall) < lines;
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

DML__LOCAL dml__wgrad_plan dml__wgrad_plan_of(dml_pool *pool, const dml__wgrad *job, int threads)
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
    plan.tall = dml__wgrad_tall(&plan);
    plan.turned = dml__wgrad_is_turned(&plan);
    plan.patch_w = dml__wgrad_gathers(&plan);
    plan.panels = plan.lines_of_taps ? 1 : dml__quotient_up(job->channels, plan.full);
    dml__wgrad_plan_strips(&plan);
    dml__wgrad_plan_copies(&plan);
    dml__wgrad_plan_shares(&plan, threads);
    plan.stream = dml__wgrad_streams(&plan);
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

DML__LOCAL ptrdiff_t dml__wgrad_copy_floats(const dml__wgrad_plan *plan)
{
    const ptrdiff_t lines = dml__wgrad_lines_floats(plan);
    return plan->patch_w ? dml__round_up(lines, 16) + DML__WGRAD_STRIP * plan->patch_w : lines;
}

DML__LOCAL ptrdiff_t dml__wgrad_worker_floats(const dml__wgrad_plan *plan)
{
    return dml__round_up(dml__wgrad_copy_floats(plan), 16) +
           (plan->turned ? (DML__WGRAD_STRIP + plan->patch) * plan->job->filters
                         : DML__WGRAD_STRIP * plan->filters_at_once);
}

DML__LOCAL ptrdiff_t dml__wgrad_most_floats(const dml__wgrad_plan *plan)
{
    const ptrdiff_t all = plan->copy_lines * plan->copy_w * plan->full * plan->panels;
    const ptrdiff_t copied = dml__wgrad_copy_floats(plan),
                    fewer = plan->in_place || plan->lines_of_taps ? 0 : dml__smaller(all, DML__WGRAD_COPY);
    return dml__wgrad_worker_floats(plan) - dml__round_up(copied, 16) +
           dml__round_up(dml__larger(copied, fewer), 16);
}

DML__LOCAL dml__wgrad_strip dml__wgrad_strip_at(const dml__wgrad_plan *plan, ptrdiff_t index)
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

/* The floats that a tile's columns run through, and how many times a panel has such: the lines of taps. */
static ptrdiff_t dml__wgrad_line(const dml__wgrad_plan *plan)
{
    return plan->patch_w ? plan->patch : plan->job->taps_w * plan->job->channels;
}

DML__LOCAL ptrdiff_t dml__wgrad_tiles_across(const dml__wgrad_plan *plan)
{
    return plan->lines_of_taps ? dml__quotient_up(dml__wgrad_line(plan), plan->full) : plan->job->taps_w;
}

/* A panel's tiles: of each line of taps so many. */
DML__LOCAL ptrdiff_t dml__wgrad_tiles(const dml__wgrad_plan *plan)
{
    return (plan->patch_w ? 1 : plan->job->taps_h) * dml__wgrad_tiles_across(plan);
}

DML__LOCAL dml__wgrad_columns dml__wgrad_columns_at(const dml__wgrad_plan *plan, ptrdiff_t panel,
                                                    ptrdiff_t tap_h, ptrdiff_t at)
{
    const dml__wgrad *j = plan->job;
    dml__wgrad_columns columns;
    columns.tap_h = tap_h;
    columns.tap_w = plan->lines_of_taps ? 0 : at;
    if (plan->lines_of_taps) {
        columns.first = at * plan->full;
        columns.count = (int)dml__smaller(plan->full, dml__wgrad_line(plan) - columns.first);
    } else {
        columns.first = at * j->channels + panel * plan->full;
        columns.count = (int)dml__smaller(plan->full, j->channels - panel * plan->full);
    }
    return columns;
}

DML__LOCAL float *dml__wgrad_element(const dml__wgrad_plan *plan, float *dw, ptrdiff_t filter,
                                     const dml__wgrad_columns *columns)
{
    return dw + filter * plan->patch + columns->tap_h * plan->job->taps_w * plan->job->channels +
           columns->first;
}

/* --- strips of x and dy --- */

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
            dml__conv_round(plan->pool, j->rounds_to, pixels * width, to);
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
        dml__conv_round(plan->pool, j->rounds_to, pixels * width, to);
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

DML__LOCAL void dml__wgrad_view_strip(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                      ptrdiff_t first, ptrdiff_t panels, float *copy, dml__wgrad_view *view)
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
DML__LOCAL ptrdiff_t dml__wgrad_row(const dml__wgrad_plan *plan, ptrdiff_t tile)
{
    return tile * plan->job->filters / plan->row_tiles;
}

/* Where few cache lines hold all filters of a pixel, or few tiles use them, packing costs more than it saves;
   but what is rounded has to be copied. */
DML__LOCAL bool dml__wgrad_packs_dy(const dml__wgrad_plan *plan)
{
    const ptrdiff_t uses = plan->panels_at_once * dml__wgrad_tiles(plan);
    return plan->job->rounds_to != DML_F32 || (uses >= 3 && plan->job->dy_pixel > 32);
}

/* Packs a strip of dy as panels of tiles, (pixels, rows of the tile) one behind the other. */
DML__LOCAL void dml__wgrad_pack_dy(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                   ptrdiff_t tile0, ptrdiff_t tile1, float *out)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t pixels = strip->lines * strip->w;
    const float *from = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    float *const packed = out;
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
    dml__conv_round(plan->pool, j->rounds_to, out - packed, packed);
}

#endif
