#ifndef DML_KERNELS_CONV2D_DEPTHWISE_C
#define DML_KERNELS_CONV2D_DEPTHWISE_C

#include "kernels/conv2d_depthwise.h"

#include "kernels/vector.h"
#include "thread/pool_internal.h"

#include <string.h>

/* Vectors lie along channels. Taps in the padding are left out, not multiplied by zeros: along a line by
   which taps are taken at its first and last pixels, down by which lines of taps. Nothing is copied but the
   weights, which are transposed on the stack. */

#define DML__DEPTHWISE_WEIGHTS 2048 /* floats of the transposed weights */
#define DML__DEPTHWISE_PIXELS 1024  /* for which they are transposed once, about */
#define DML__DEPTHWISE_SERIAL_WORK 100000.0
#define DML__DEPTHWISE_BLOCK 16 /* channels whose lines are kept in the level-1 cache */

/* The taps t, t0 <= t < t1, of which pixel x finds something: 0 <= at + t * dilation < size. */
typedef struct dml__taps {
    ptrdiff_t t0, t1;
} dml__taps;

static dml__taps dml__taps_inside(ptrdiff_t at, ptrdiff_t dilation, ptrdiff_t taps, ptrdiff_t size)
{
    dml__taps inside;
    inside.t0 = at >= 0 ? 0 : dml__conv_smaller(taps, (-at + dilation - 1) / dilation);
    inside.t1 = at >= size
                    ? inside.t0
                    : dml__conv_larger(inside.t0, dml__conv_smaller(taps, (size - 1 - at) / dilation + 1));
    return inside;
}

/* The pixels of a line that find all of their taps: x0 <= x < x1. */
static dml__taps dml__whole_pixels(ptrdiff_t origin, ptrdiff_t stride, ptrdiff_t reach, ptrdiff_t size,
                                   ptrdiff_t grid)
{
    dml__taps whole;
    const ptrdiff_t last = size - reach - origin; /* of stride * x */
    whole.t0 = origin >= 0 ? 0 : dml__conv_smaller(grid, (-origin + stride - 1) / stride);
    whole.t1 = last < 0 ? whole.t0 : dml__conv_larger(whole.t0, dml__conv_smaller(grid, last / stride + 1));
    return whole;
}

/* --- forward and input gradient --- */

typedef struct dml__depthwise_band {
    const dml__conv_pass *pass;
    ptrdiff_t n0, n1, y0, y1, c0, channels;
    const float *weights; /* (taps_h, taps_w, width) */
    ptrdiff_t width;
} dml__depthwise_band;

/* Some pixels beside each other, `vectors` vectors of each, all with the same taps; `count` lanes of the
 * last. */
DML__BODY void dml__depthwise_pixels(const dml__depthwise_band *band, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                     ptrdiff_t c, dml__taps down, dml__taps across, const int pixels,
                                     const int vectors, size_t count)
{
    const dml__conv_pass *p = band->pass;
    const ptrdiff_t step = p->stride_w * p->source_pixel, tap_step = p->dilation_w * p->source_pixel;
    const ptrdiff_t line = p->source_w * p->source_pixel;
    const ptrdiff_t top = p->origin_y + y * p->stride_h, left = p->origin_x + x * p->stride_w;
    dml__vf sum[4][2] = { { { 0 } } };
    for (ptrdiff_t ty = down.t0; ty < down.t1; ty++) {
        const float *from = p->source + (n * p->source_h + top + ty * p->dilation_h) * line +
                            (left + across.t0 * p->dilation_w) * p->source_pixel + band->c0 + c;
        const float *weights = band->weights + (ty * p->taps_w + across.t0) * band->width + c;
        for (ptrdiff_t tx = across.t0; tx < across.t1; tx++, from += tap_step, weights += band->width) {
            DML__UNROLLED
            for (int v = 0; v < vectors; v++) {
                const dml__vf weight = DML__LOAD(weights + v * DML__LANES);
                DML__UNROLLED
                for (int i = 0; i < pixels; i++) {
                    dml__vf value;
                    dml__load_some(&value, from + i * step + v * DML__LANES, count);
                    sum[i][v] += value * weight;
                }
            }
        }
    }
    float *to = p->target + n * p->target_image + y * p->target_line + x * p->target_pixel + band->c0 + c;
    dml__vf zero, beta;
    dml__splat(&zero, 0);
    dml__splat(&beta, p->beta);
    DML__UNROLLED
    for (int i = 0; i < pixels; i++, to += p->target_pixel) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++) {
            dml__vf other = zero;
            if (p->beta != 0) {
                dml__load_some(&other, to + v * DML__LANES, count);
                sum[i][v] += beta * other;
            }
            if (p->bias) {
                dml__load_some(&other, p->bias + band->c0 + c + v * DML__LANES, count);
                sum[i][v] += other;
            }
            if (p->relu) sum[i][v] = DML__SELECT(sum[i][v] <= zero, zero, sum[i][v]);
            dml__store_some(to + v * DML__LANES, &sum[i][v], count);
        }
    }
}

DML__BODY void dml__depthwise_line(const dml__depthwise_band *band, ptrdiff_t n, ptrdiff_t y, ptrdiff_t c,
                                   dml__taps whole, const int vectors, size_t count)
{
    const dml__conv_pass *p = band->pass;
    const dml__taps down =
        dml__taps_inside(p->origin_y + y * p->stride_h, p->dilation_h, p->taps_h, p->source_h);
    dml__taps across = { 0, p->taps_w };
    ptrdiff_t x = 0;
    while (x < p->grid_w) {
        if (x >= whole.t0 && x + 4 <= whole.t1) {
            across.t0 = 0, across.t1 = p->taps_w;
            dml__depthwise_pixels(band, n, y, x, c, down, across, 4, vectors, count);
            x += 4;
        } else {
            across = dml__taps_inside(p->origin_x + x * p->stride_w, p->dilation_w, p->taps_w, p->source_w);
            dml__depthwise_pixels(band, n, y, x, c, down, across, 1, vectors, count);
            x++;
        }
    }
}

DML__BODY void dml__depthwise_lines_body(const dml__depthwise_band *band)
{
    const dml__conv_pass *p = band->pass;
    const dml__taps whole = dml__whole_pixels(p->origin_x, p->stride_w, (p->taps_w - 1) * p->dilation_w + 1,
                                              p->source_w, p->grid_w);
    for (ptrdiff_t n = band->n0; n < band->n1; n++)
        for (ptrdiff_t c = 0; c < band->channels;) {
            const ptrdiff_t rest = band->channels - c;
            for (ptrdiff_t y = band->y0; y < band->y1; y++) {
                if (rest >= 2 * DML__LANES)
                    dml__depthwise_line(band, n, y, c, whole, 2, DML__LANES);
                else if (rest >= DML__LANES)
                    dml__depthwise_line(band, n, y, c, whole, 1, DML__LANES);
                else
                    dml__depthwise_line(band, n, y, c, whole, 1, (size_t)rest);
            }
            c += rest >= 2 * DML__LANES ? 2 * DML__LANES : DML__LANES;
        }
}

DML__PER_ISA(dml__depthwise_lines, (const dml__depthwise_band *band), (band))

typedef struct dml__depthwise_loop {
    const dml__conv_pass *pass;
    dml_isa isa;
    ptrdiff_t images, lines, channels; /* of a task */
    ptrdiff_t bands_down, blocks;      /* tasks: image groups, times these */
} dml__depthwise_loop;

static void dml__depthwise_task(void *argument, int task, int worker)
{
    const dml__depthwise_loop *loop = (const dml__depthwise_loop *)argument;
    const dml__conv_pass *p = loop->pass;
    float weights[DML__DEPTHWISE_WEIGHTS + DML__DEPTHWISE_TAPS * DML__LANES]; /* (taps, width) */
    dml__depthwise_band band;
    const ptrdiff_t block = task % loop->blocks, rest = task / loop->blocks;
    (void)worker;
    band.pass = p;
    band.n0 = rest / loop->bands_down * loop->images;
    band.n1 = dml__conv_smaller(p->batch, band.n0 + loop->images);
    band.y0 = rest % loop->bands_down * loop->lines;
    band.y1 = dml__conv_smaller(p->grid_h, band.y0 + loop->lines);
    band.c0 = block * loop->channels;
    band.channels = dml__conv_smaller(loop->channels, p->columns - band.c0);
    band.width = dml__conv_round_up(band.channels, DML__LANES);
    band.weights = weights;
    dml__conv_pass_pack(p, band.c0, band.channels, band.width, 0, p->taps_h * p->taps_w, weights);
    dml__depthwise_lines(loop->isa, &band);
}

DML__LOCAL void dml__depthwise_pass(dml_pool *pool, const dml__conv_pass *pass)
{
    dml__depthwise_loop loop;
    const ptrdiff_t taps = pass->taps_h * pass->taps_w, threads = dml_pool_threads(pool);
    const ptrdiff_t most = dml__conv_larger(1, DML__DEPTHWISE_WEIGHTS / dml__conv_larger(1, taps) / 16) * 16;
    const double work =
        (double)pass->batch * (double)(pass->grid_h * pass->grid_w) * (double)taps * (double)pass->columns;
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return;
    const ptrdiff_t wanted = threads == 1 || work < DML__DEPTHWISE_SERIAL_WORK ? 1 : 4 * threads;
    loop.pass = pass;
    loop.isa = dml__pool_machine(pool).isa;
    loop.blocks = dml__conv_quotient_up(pass->columns, most);
    loop.channels = dml__conv_round_up(dml__conv_quotient_up(pass->columns, loop.blocks), 16);
    loop.blocks = dml__conv_quotient_up(pass->columns, loop.channels);
    loop.lines = pass->grid_h;
    loop.images = dml__conv_larger(1, DML__DEPTHWISE_PIXELS / (pass->grid_h * pass->grid_w));
    while (loop.images > 1 && dml__conv_quotient_up(pass->batch, loop.images) * loop.blocks < wanted)
        loop.images /= 2;
    while (loop.images == 1 && loop.lines > 4 &&
           pass->batch * loop.blocks * dml__conv_quotient_up(pass->grid_h, loop.lines) < wanted)
        loop.lines = dml__conv_quotient_up(loop.lines, 2);
    loop.bands_down = dml__conv_quotient_up(pass->grid_h, loop.lines);
    const ptrdiff_t tasks = dml__conv_quotient_up(pass->batch, loop.images) * loop.bands_down * loop.blocks;
    dml_pool_run(wanted > 1 ? pool : NULL, (int)tasks, dml__depthwise_task, &loop);
}

/* --- weight gradient --- */

/* Adds a line's share of up to three taps beside each other to `sums` (taps, width), pixels x0 <= x < x1,
   which find all of them. */
DML__BODY void dml__depthwise_add(const dml__wgrad *j, const float *x, const float *dy, ptrdiff_t x0,
                                  ptrdiff_t x1, float *sums, const int taps, const int vectors, size_t count)
{
    const ptrdiff_t step = j->stride_w * j->x_pixel, tap_step = j->dilation_w * j->x_pixel;
    dml__vf sum[3][2];
    DML__UNROLLED
    for (int t = 0; t < taps; t++) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++)
            sum[t][v] = DML__LOAD(sums + t * DML__DEPTHWISE_BLOCK + v * DML__LANES);
    }
    x += x0 * step;
    dy += x0 * j->dy_pixel;
    for (ptrdiff_t i = x0; i < x1; i++, x += step, dy += j->dy_pixel) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++) {
            dml__vf gradient, value;
            dml__load_some(&gradient, dy + v * DML__LANES, count);
            DML__UNROLLED
            for (int t = 0; t < taps; t++) {
                dml__load_some(&value, x + t * tap_step + v * DML__LANES, count);
                sum[t][v] += gradient * value;
            }
        }
    }
    DML__UNROLLED
    for (int t = 0; t < taps; t++) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++)
            DML__STORE(sums + t * DML__DEPTHWISE_BLOCK + v * DML__LANES, sum[t][v]);
    }
}

typedef struct dml__depthwise_sums {
    const dml__wgrad *job;
    ptrdiff_t c0, channels;
    float *sums; /* (taps, DML__DEPTHWISE_BLOCK) */
} dml__depthwise_sums;

/* A line of dy and a line of taps. */
DML__BODY void dml__depthwise_taps(const dml__wgrad *j, const float *x, const float *dy, float *sums,
                                   const int vectors, size_t count)
{
    for (ptrdiff_t t = 0; t < j->taps_w; t += 3) {
        const int taps = (int)dml__conv_smaller(3, j->taps_w - t);
        const ptrdiff_t first = t * j->dilation_w - j->pad_w, reach = (taps - 1) * j->dilation_w + 1;
        const dml__taps whole = dml__whole_pixels(first, j->stride_w, reach, j->in_w, j->out_w);
        const float *from = x + first * j->x_pixel;
        float *to = sums + t * DML__DEPTHWISE_BLOCK;
        if (taps == 3)
            dml__depthwise_add(j, from, dy, whole.t0, whole.t1, to, 3, vectors, count);
        else if (taps == 2)
            dml__depthwise_add(j, from, dy, whole.t0, whole.t1, to, 2, vectors, count);
        else
            dml__depthwise_add(j, from, dy, whole.t0, whole.t1, to, 1, vectors, count);
        for (int one = 0; one < taps && taps > 1; one++) { /* the pixels that find some of the taps */
            const ptrdiff_t at = first + one * j->dilation_w;
            const dml__taps own = dml__whole_pixels(at, j->stride_w, 1, j->in_w, j->out_w);
            const float *own_x = x + at * j->x_pixel;
            float *own_to = to + one * DML__DEPTHWISE_BLOCK;
            const ptrdiff_t left = dml__conv_smaller(own.t1, whole.t0),
                            right = dml__conv_larger(own.t0, dml__conv_larger(left, whole.t1));
            dml__depthwise_add(j, own_x, dy, own.t0, left, own_to, 1, vectors, count);
            dml__depthwise_add(j, own_x, dy, right, own.t1, own_to, 1, vectors, count);
        }
    }
}

DML__BODY void dml__depthwise_sum_body(const dml__depthwise_sums *task)
{
    const dml__wgrad *j = task->job;
    for (ptrdiff_t n = 0; n < j->batch; n++)
        for (ptrdiff_t y = 0; y < j->out_h; y++) {
            const ptrdiff_t top = y * j->stride_h - j->pad_h;
            const dml__taps down = dml__taps_inside(top, j->dilation_h, j->taps_h, j->in_h);
            const float *dy = j->dy + (n * j->out_h + y) * j->out_w * j->dy_pixel + task->c0;
            for (ptrdiff_t t = down.t0; t < down.t1; t++) {
                const float *x =
                    j->x + (n * j->in_h + top + t * j->dilation_h) * j->in_w * j->x_pixel + task->c0;
                float *sums = task->sums + t * j->taps_w * DML__DEPTHWISE_BLOCK;
                if (task->channels == 2 * DML__LANES) {
                    dml__depthwise_taps(j, x, dy, sums, 2, DML__LANES);
                    continue;
                }
                for (ptrdiff_t c = 0; c < task->channels; c += DML__LANES) {
                    const ptrdiff_t rest = task->channels - c;
                    if (rest >= DML__LANES)
                        dml__depthwise_taps(j, x + c, dy + c, sums + c, 1, DML__LANES);
                    else
                        dml__depthwise_taps(j, x + c, dy + c, sums + c, 1, (size_t)rest);
                }
            }
        }
}

DML__PER_ISA(dml__depthwise_sum, (const dml__depthwise_sums *task), (task))

typedef struct dml__depthwise_weights_loop {
    const dml__wgrad *job;
    dml_isa isa;
} dml__depthwise_weights_loop;

static void dml__depthwise_weights_task(void *argument, int index, int worker)
{
    const dml__depthwise_weights_loop *loop = (const dml__depthwise_weights_loop *)argument;
    const dml__wgrad *j = loop->job;
    const ptrdiff_t taps = j->taps_h * j->taps_w;
    float sums[DML__DEPTHWISE_TAPS * DML__DEPTHWISE_BLOCK];
    dml__depthwise_sums task;
    (void)worker;
    task.job = j;
    task.c0 = (ptrdiff_t)index * DML__DEPTHWISE_BLOCK;
    task.channels = dml__conv_smaller(DML__DEPTHWISE_BLOCK, j->filters - task.c0);
    task.sums = sums;
    dml__conv_zero(sums, taps * DML__DEPTHWISE_BLOCK);
    dml__depthwise_sum(loop->isa, &task);
    for (ptrdiff_t c = 0; c < task.channels; c++)
        for (ptrdiff_t t = 0; t < taps; t++) {
            float *to = j->dw + (task.c0 + c) * taps + t;
            *to = sums[t * DML__DEPTHWISE_BLOCK + c] + (j->beta == 0 ? 0 : j->beta * *to);
        }
}

DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job)
{
    dml__depthwise_weights_loop loop = { job, dml__pool_machine(pool).isa };
    dml_pool_run(pool, (int)dml__conv_quotient_up(job->filters, DML__DEPTHWISE_BLOCK),
                 dml__depthwise_weights_task, &loop);
}

#endif
