#ifndef DML_KERNELS_CONV2D_DEPTHWISE_C
#define DML_KERNELS_CONV2D_DEPTHWISE_C

#include "kernels/conv2d_depthwise.h"

#include "kernels/vector.h"
#include "thread/pool_internal.h"

#include <string.h>

/* Vectors lie along channels. Taps in the padding are left out, not multiplied by zeros: along a line by
   which taps are taken at its first and last pixels, down by which lines of taps. Nothing is copied but the
   weights, which are transposed on the stack. */

#define DML__DEPTHWISE_WEIGHTS                                                                               \
    2048 /* floats of the transposed weights, or of their gradient: 16 of each tap at least */
#define DML__DEPTHWISE_PIXELS 1024 /* for which they are transposed once, about */
#define DML__DEPTHWISE_SERIAL_WORK 100000.0
/* clang unrolls the three taps by itself, and complains where there are more. */
#if defined(__GNUC__) && !defined(__clang__)
#define DML__UNROLLED_TAPS _Pragma("GCC unroll 3")
#else
#define DML__UNROLLED_TAPS
#endif
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

/* Where the pixels of a line are found: the first tap of pixel 0, and what leads on from there. */
typedef struct dml__depthwise_row {
    const float *source, *weights, *bias;
    ptrdiff_t tap_lines, line, step, tap, weights_line, width; /* line: of taps */
    float *target;
    ptrdiff_t target_pixel;
    float beta;
    bool plain, relu; /* plain: neither beta nor relu */
} dml__depthwise_row;

/* Finishes and stores `pixels` pixels beside each other, `vectors` vectors of each. */
DML__BODY void dml__depthwise_store(const dml__depthwise_row *row, dml__vf (*sum)[2], ptrdiff_t x,
                                    ptrdiff_t c, const int pixels, const int vectors)
{
    float *to = row->target + x * row->target_pixel + c;
    if (!row->plain) {
        dml__vf zero, beta;
        dml__splat(&zero, 0);
        dml__splat(&beta, row->beta);
        DML__UNROLLED
        for (int i = 0; i < pixels; i++) {
            DML__UNROLLED
            for (int v = 0; v < vectors; v++) {
                dml__vf other = zero;
                if (row->beta != 0) {
                    other = DML__LOAD(to + i * row->target_pixel + v * DML__LANES);
                    sum[i][v] += beta * other;
                }
                if (row->relu) sum[i][v] = DML__SELECT(sum[i][v] <= zero, zero, sum[i][v]);
            }
        }
    }
    DML__UNROLLED
    for (int i = 0; i < pixels; i++) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++) DML__STORE(to + i * row->target_pixel + v * DML__LANES, sum[i][v]);
    }
}

/* Channels from c on of pixels from x on, all with taps t0 <= t < t0 + taps of each line. */
DML__BODY void dml__depthwise_pixels(const dml__depthwise_row *row, ptrdiff_t x, ptrdiff_t c, ptrdiff_t t0,
                                     const ptrdiff_t taps, const int pixels, const int vectors)
{
    const ptrdiff_t step = row->step, tap = row->tap, width = row->width;
    const float *from = row->source + x * step + t0 * tap + c, *weights = row->weights + t0 * width + c;
    dml__vf sum[4][2] = { { { 0 } } };
    DML__UNROLLED
    for (int v = 0; v < 2; v++) {
        dml__vf begin;
        dml__splat(&begin, 0);
        if (v < vectors && row->bias) begin = DML__LOAD(row->bias + c + v * DML__LANES);
        DML__UNROLLED
        for (int i = 0; i < 4; i++) sum[i][v] = begin;
    }
    for (ptrdiff_t ty = row->tap_lines; ty > 0; ty--, from += row->line, weights += row->weights_line) {
        DML__UNROLLED_TAPS
        for (ptrdiff_t tx = 0; tx < taps; tx++) {
            DML__UNROLLED
            for (int v = 0; v < vectors; v++) {
                const dml__vf weight = DML__LOAD(weights + tx * width + v * DML__LANES);
                DML__UNROLLED
                for (int i = 0; i < pixels; i++) {
                    const dml__vf value = DML__LOAD(from + tx * tap + i * step + v * DML__LANES);
                    sum[i][v] += value * weight;
                }
            }
        }
    }
    dml__depthwise_store(row, sum, x, c, pixels, vectors);
}

/* The channels behind the last whole vector, one by one. */
DML__NOINLINE static void dml__depthwise_rest(const dml__depthwise_row *row, ptrdiff_t x, ptrdiff_t c,
                                              ptrdiff_t channels, ptrdiff_t t0, ptrdiff_t taps)
{
    for (; c < channels; c++) {
        const float *from = row->source + x * row->step + t0 * row->tap + c;
        const float *weights = row->weights + t0 * row->width + c;
        float *to = row->target + x * row->target_pixel + c;
        float sum = row->bias ? row->bias[c] : 0;
        for (ptrdiff_t ty = row->tap_lines; ty > 0; ty--, from += row->line, weights += row->weights_line)
            for (ptrdiff_t tx = 0; tx < taps; tx++) sum += from[tx * row->tap] * weights[tx * row->width];
        if (row->beta != 0) sum += row->beta * *to;
        *to = row->relu && sum <= 0 ? 0 : sum;
    }
}

/* All channels of the pixels. */
DML__BODY void dml__depthwise_channels(const dml__depthwise_row *row, ptrdiff_t x, ptrdiff_t channels,
                                       ptrdiff_t t0, const ptrdiff_t taps, const int pixels)
{
    ptrdiff_t c = 0;
    for (; c + 2 * DML__LANES <= channels; c += 2 * DML__LANES)
        dml__depthwise_pixels(row, x, c, t0, taps, pixels, 2);
    for (; c + DML__LANES <= channels; c += DML__LANES) dml__depthwise_pixels(row, x, c, t0, taps, pixels, 1);
    for (int i = 0; c < channels && i < pixels; i++) dml__depthwise_rest(row, x + i, c, channels, t0, taps);
}

DML__BODY void dml__depthwise_line(const dml__depthwise_band *band, ptrdiff_t n, ptrdiff_t y, dml__taps whole)
{
    const dml__conv_pass *p = band->pass;
    const ptrdiff_t top = p->origin_y + y * p->stride_h, line = p->source_w * p->source_pixel;
    const dml__taps down = dml__taps_inside(top, p->dilation_h, p->taps_h, p->source_h);
    dml__depthwise_row row;
    row.source = p->source + (n * p->source_h + top + down.t0 * p->dilation_h) * line +
                 p->origin_x * p->source_pixel + band->c0;
    row.width = band->width;
    row.weights_line = p->taps_w * band->width;
    row.weights = band->weights + down.t0 * row.weights_line;
    row.bias = p->bias ? p->bias + band->c0 : NULL;
    row.tap_lines = down.t1 - down.t0;
    row.line = p->dilation_h * line;
    row.step = p->stride_w * p->source_pixel;
    row.tap = p->dilation_w * p->source_pixel;
    row.target = p->target + n * p->target_image + y * p->target_line + band->c0;
    row.target_pixel = p->target_pixel;
    row.beta = p->beta;
    row.relu = p->relu;
    row.plain = p->beta == 0 && !p->relu;
    for (ptrdiff_t x = 0; x < p->grid_w;) {
        if (x >= whole.t0 && x + 4 <= whole.t1 && p->taps_w == 3) {
            dml__depthwise_channels(&row, x, band->channels, 0, 3, 4);
            x += 4;
        } else if (x >= whole.t0 && x + 4 <= whole.t1) {
            dml__depthwise_channels(&row, x, band->channels, 0, p->taps_w, 4);
            x += 4;
        } else {
            const dml__taps across =
                dml__taps_inside(p->origin_x + x * p->stride_w, p->dilation_w, p->taps_w, p->source_w);
            dml__depthwise_channels(&row, x, band->channels, across.t0, across.t1 - across.t0, 1);
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
        for (ptrdiff_t y = band->y0; y < band->y1; y++) dml__depthwise_line(band, n, y, whole);
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

/* A block of x, with the padding's zeros around it, and of dy: some lines and pixels, DML__DEPTHWISE_BLOCK
 * channels. */
typedef struct dml__depthwise_block {
    const dml__wgrad *job;
    ptrdiff_t lines, pixels; /* of dy */
    ptrdiff_t x_line;        /* pixels of a line of x */
    const float *x;          /* (lines of x, x_line, DML__DEPTHWISE_BLOCK) */
    const float *dy;         /* (lines, out_w, dy_pixel) */
    ptrdiff_t channels;
    float *sums; /* (taps, DML__DEPTHWISE_BLOCK) */
} dml__depthwise_block;

/* Adds the block's share of `taps` taps beside each other to their sums. */
DML__BODY void dml__depthwise_add(const dml__depthwise_block *block, const float *x, float *sums,
                                  const int taps, const int vectors)
{
    const dml__wgrad *j = block->job;
    const ptrdiff_t step = j->stride_w * DML__DEPTHWISE_BLOCK,
                    tap_step = j->dilation_w * DML__DEPTHWISE_BLOCK;
    const ptrdiff_t line = j->stride_h * block->x_line * DML__DEPTHWISE_BLOCK;
    const float *dy = block->dy;
    dml__vf sum[3][2];
    DML__UNROLLED
    for (int t = 0; t < taps; t++) {
        DML__UNROLLED
        for (int v = 0; v < vectors; v++)
            sum[t][v] = DML__LOAD(sums + t * DML__DEPTHWISE_BLOCK + v * DML__LANES);
    }
    for (ptrdiff_t l = 0; l < block->lines; l++, x += line, dy += j->out_w * j->dy_pixel) {
        const float *at = x, *gradients = dy;
        for (ptrdiff_t i = block->pixels; i > 0; i--, at += step, gradients += j->dy_pixel) {
            DML__UNROLLED
            for (int v = 0; v < vectors; v++) {
                const dml__vf gradient = DML__LOAD(gradients + v * DML__LANES);
                DML__UNROLLED
                for (int t = 0; t < taps; t++)
                    sum[t][v] += gradient * DML__LOAD(at + t * tap_step + v * DML__LANES);
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

DML__BODY void dml__depthwise_taps(const dml__depthwise_block *block, ptrdiff_t c, const int vectors)
{
    const dml__wgrad *j = block->job;
    dml__depthwise_block some = *block;
    some.dy += c;
    for (ptrdiff_t ty = 0; ty < j->taps_h; ty++)
        for (ptrdiff_t tx = 0; tx < j->taps_w; tx += 3) {
            const float *x =
                block->x + (ty * j->dilation_h * block->x_line + tx * j->dilation_w) * DML__DEPTHWISE_BLOCK +
                c;
            float *sums = block->sums + (ty * j->taps_w + tx) * DML__DEPTHWISE_BLOCK + c;
            if (tx + 3 <= j->taps_w)
                dml__depthwise_add(&some, x, sums, 3, vectors);
            else if (tx + 2 <= j->taps_w)
                dml__depthwise_add(&some, x, sums, 2, vectors);
            else
                dml__depthwise_add(&some, x, sums, 1, vectors);
        }
}

/* The channels behind the last whole vector, one by one. */
DML__NOINLINE static void dml__depthwise_sum_rest(const dml__depthwise_block *block, ptrdiff_t c)
{
    const dml__wgrad *j = block->job;
    for (; c < block->channels; c++)
        for (ptrdiff_t tap = 0; tap < j->taps_h * j->taps_w; tap++) {
            const ptrdiff_t ty = tap / j->taps_w, tx = tap % j->taps_w;
            const float *x =
                block->x + (ty * j->dilation_h * block->x_line + tx * j->dilation_w) * DML__DEPTHWISE_BLOCK +
                c;
            float sum = block->sums[tap * DML__DEPTHWISE_BLOCK + c];
            for (ptrdiff_t l = 0; l < block->lines; l++)
                for (ptrdiff_t i = 0; i < block->pixels; i++)
                    sum += x[(l * j->stride_h * block->x_line + i * j->stride_w) * DML__DEPTHWISE_BLOCK] *
                           block->dy[(l * j->out_w + i) * j->dy_pixel + c];
            block->sums[tap * DML__DEPTHWISE_BLOCK + c] = sum;
        }
}

DML__BODY void dml__depthwise_sum_body(const dml__depthwise_block *block)
{
    ptrdiff_t c = 0;
    if (block->channels == 2 * DML__LANES) {
        dml__depthwise_taps(block, 0, 2);
        return;
    }
    for (; c + DML__LANES <= block->channels; c += DML__LANES) dml__depthwise_taps(block, c, 1);
    dml__depthwise_sum_rest(block, c);
}

DML__PER_ISA(dml__depthwise_sum, (const dml__depthwise_block *block), (block))

static ptrdiff_t dml__reach(ptrdiff_t outputs, ptrdiff_t stride, ptrdiff_t taps, ptrdiff_t dilation)
{
    return (outputs - 1) * stride + (taps - 1) * dilation + 1;
}

/* Copies the channels from c0 on of the part of x that a block of dy at (n, y, x) meets. */
static void dml__depthwise_copy(const dml__depthwise_block *block, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                ptrdiff_t c0, float *to)
{
    const dml__wgrad *j = block->job;
    const ptrdiff_t lines = dml__reach(block->lines, j->stride_h, j->taps_h, j->dilation_h);
    const ptrdiff_t top = y * j->stride_h - j->pad_h, left = x * j->stride_w - j->pad_w;
    const ptrdiff_t before = left >= 0 ? 0 : dml__conv_smaller(-left, block->x_line);
    const ptrdiff_t end = dml__conv_larger(before, dml__conv_smaller(block->x_line, j->in_w - left));
    for (ptrdiff_t l = top; l < top + lines; l++, to += block->x_line * DML__DEPTHWISE_BLOCK) {
        if (l < 0 || l >= j->in_h) {
            dml__conv_zero(to, block->x_line * DML__DEPTHWISE_BLOCK);
            continue;
        }
        const float *from = j->x + ((n * j->in_h + l) * j->in_w + left + before) * j->x_pixel + c0;
        dml__conv_zero(to, before * DML__DEPTHWISE_BLOCK);
        dml__conv_zero(to + end * DML__DEPTHWISE_BLOCK, (block->x_line - end) * DML__DEPTHWISE_BLOCK);
        if (block->channels == DML__DEPTHWISE_BLOCK)
            for (ptrdiff_t i = before; i < end; i++, from += j->x_pixel) {
                DML__PREFETCH(from + DML__DEPTHWISE_BLOCK); /* what the next block of channels copies */
                memcpy(to + i * DML__DEPTHWISE_BLOCK, from, DML__DEPTHWISE_BLOCK * sizeof *to);
            }
        else
            for (ptrdiff_t i = before; i < end; i++, from += j->x_pixel)
                dml__conv_copy(to + i * DML__DEPTHWISE_BLOCK, from, block->channels);
    }
}

typedef struct dml__depthwise_weights_loop {
    const dml__wgrad *job;
    dml_isa isa;
    ptrdiff_t lines, pixels; /* of a block */
    ptrdiff_t channels;      /* of a task */
} dml__depthwise_weights_loop;

static void dml__depthwise_weights_task(void *argument, int index, int worker)
{
    const dml__depthwise_weights_loop *loop = (const dml__depthwise_weights_loop *)argument;
    const dml__wgrad *j = loop->job;
    const ptrdiff_t taps = j->taps_h * j->taps_w, first = index * loop->channels;
    const ptrdiff_t end = dml__conv_smaller(first + loop->channels, j->filters);
    float sums[DML__DEPTHWISE_WEIGHTS]; /* (blocks of channels, taps, DML__DEPTHWISE_BLOCK) */
    float copy[DML__DEPTHWISE_COPY * DML__DEPTHWISE_BLOCK];
    dml__depthwise_block block;
    (void)worker;
    block.job = j;
    block.x = copy;
    memset(sums, 0, sizeof sums);
    memset(copy, 0, sizeof copy);
    for (ptrdiff_t n = 0; n < j->batch; n++)
        for (ptrdiff_t y = 0; y < j->out_h; y += block.lines) {
            block.lines = dml__conv_smaller(loop->lines, j->out_h - y);
            for (ptrdiff_t x = 0; x < j->out_w; x += block.pixels) {
                block.pixels = dml__conv_smaller(loop->pixels, j->out_w - x);
                block.x_line = dml__reach(block.pixels, j->stride_w, j->taps_w, j->dilation_w);
                for (ptrdiff_t c = first; c < end; c += DML__DEPTHWISE_BLOCK) {
                    block.channels = dml__conv_smaller(DML__DEPTHWISE_BLOCK, end - c);
                    block.sums = sums + (c - first) * taps;
                    block.dy = j->dy + ((n * j->out_h + y) * j->out_w + x) * j->dy_pixel + c;
                    dml__depthwise_copy(&block, n, y, x, c, copy);
                    dml__depthwise_sum(loop->isa, &block);
                }
            }
        }
    for (ptrdiff_t c = 0; c < end - first; c++)
        for (ptrdiff_t t = 0; t < taps; t++) {
            const ptrdiff_t block_at = c / DML__DEPTHWISE_BLOCK * DML__DEPTHWISE_BLOCK;
            float *to = j->dw + (first + c) * taps + t;
            *to = sums[block_at * taps + t * DML__DEPTHWISE_BLOCK + c - block_at] +
                  (j->beta == 0 ? 0 : j->beta * *to);
        }
}

DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job)
{
    dml__depthwise_weights_loop loop;
    const ptrdiff_t reach_h = dml__reach(1, job->stride_h, job->taps_h, job->dilation_h);
    const ptrdiff_t most = DML__DEPTHWISE_WEIGHTS / (job->taps_h * job->taps_w);
    loop.job = job;
    loop.isa = dml__pool_machine(pool).isa;
    loop.lines = job->out_h, loop.pixels = job->out_w;
    while (loop.pixels > 1 && reach_h * dml__reach(loop.pixels, job->stride_w, job->taps_w, job->dilation_w) >
                                  DML__DEPTHWISE_COPY)
        loop.pixels = dml__conv_quotient_up(loop.pixels, 2);
    const ptrdiff_t line = dml__reach(loop.pixels, job->stride_w, job->taps_w, job->dilation_w);
    const ptrdiff_t more = (DML__DEPTHWISE_COPY / line - reach_h) / job->stride_h;
    loop.lines = dml__conv_smaller(job->out_h, 1 + dml__conv_larger(0, more));
    loop.channels = dml__conv_smaller(most, dml__conv_quotient_up(job->filters, 2 * dml_pool_threads(pool)));
    loop.channels = dml__conv_larger(1, loop.channels / DML__DEPTHWISE_BLOCK) * DML__DEPTHWISE_BLOCK;
    dml_pool_run(pool, (int)dml__conv_quotient_up(job->filters, loop.channels), dml__depthwise_weights_task,
                 &loop);
}

#endif
