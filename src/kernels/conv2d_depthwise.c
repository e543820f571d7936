#ifndef DML_KERNELS_CONV2D_DEPTHWISE_C
#define DML_KERNELS_CONV2D_DEPTHWISE_C

#include "kernels/conv2d_depthwise.h"

#include "base/pause.h"
#include "kernels/conv2d_depthwise_line.h"
#include "kernels/finish.h"
#include "kernels/pack.h"
#include "thread/pool_internal.h"

#include "base/memory.h"
#include "kernels/vector.h"

#include <string.h>

#define DML__DEPTHWISE_WEIGHTS 9216 /* floats of the transposed weights, or of their gradient */
#define DML__DEPTHWISE_IMAGE 1024   /* pixels for which they are transposed once, about */
#define DML__DEPTHWISE_SERIAL_WORK 100000.0

/* Arrays of more level-2 caches' size than that come from too far for what a processor looks ahead by itself;
   for smaller ones asking costs a sixth of the time. */
#define DML__DEPTHWISE_NEAR 16

/* The part of the first cache that holds the lines that come again for the next line of the result. Fewer
   channels are no block of their own. Vectors of less than a line of the caches go through whole lines
   always: what a processor looks ahead by itself wants long runs (a Zen 3, AVX2: blocks take 1.1 times as
   long, 14 x 14 x 576 1.2). */
#define DML__DEPTHWISE_L1 0.6
#define DML__DEPTHWISE_RUN 64
#define DML__DEPTHWISE_RUN_NEAR 32

/* A third cache of more bytes is spread over so many cores that it is far from each. There vectors of 16
   leave no time to wait: arrays that come from it are gone through in whole lines, and with strides, where
   few lines come again, what the processor looks ahead by itself is more than what would be asked for. */
#define DML__DEPTHWISE_THIRD ((size_t)64 << 20)
#define DML__DEPTHWISE_OWN 1.5 /* second caches a worker: of arrays of that size most is still in one */

/* Whole lines, too, of arrays of so many second caches' size where the first cache has no more bytes than
   that: the runs of blocks would be too short for the third cache. Nearer arrays are read once into a
   block's. */
#define DML__DEPTHWISE_FIRST ((size_t)32 << 10)
#define DML__DEPTHWISE_WHOLE 6

/* The lines of taps l, l0 <= l < l1, that find something: 0 <= at + l * dilation < size. */
typedef struct dml__depthwise_lines {
    ptrdiff_t l0, l1;
} dml__depthwise_lines;

DML__DRIVERS_BEGIN

static dml__depthwise_lines dml__depthwise_inside(ptrdiff_t at, ptrdiff_t dilation, ptrdiff_t lines,
                                                  ptrdiff_t size)
{
    dml__depthwise_lines inside;
    inside.l0 = at >= 0 ? 0 : dml__smaller(lines, (dilation - 1 - at) / dilation);
    inside.l1 =
        at >= size ? inside.l0 : dml__larger(inside.l0, dml__smaller(lines, (size - 1 - at) / dilation + 1));
    return inside;
}

/* --- forward and input gradient --- */

typedef struct dml__depthwise_loop {
    const dml__conv_pass *passes; /* (count) */
    int count;
    dml_isa isa;
    bool distant, stream;
    ptrdiff_t images, lines, channels; /* of a task */
    ptrdiff_t bands_down, blocks;      /* tasks: image groups, times these */
} dml__depthwise_loop;

/* What the lines of a pass have in common; packs the weights of `channels` channels from c0 on. */
static dml__depthwise_row dml__depthwise_row_of(const dml__conv_pass *p, ptrdiff_t c0, ptrdiff_t channels,
                                                bool ask, bool stream, float *weights)
{
    dml__depthwise_row row;
    dml__conv_pass packed = *p;
    const ptrdiff_t taps = p->taps_h * p->taps_w;
    /* Of taps from the last to the first, which the gradient of the input has, all are packed at once. */
    const bool reversed = p->weights_tap_w == -1 && p->weights_tap_h == -p->taps_w;
    if (reversed) packed.weights -= taps - 1, packed.weights_tap_w = 1, packed.weights_tap_h = p->taps_w;
    row.channels = channels, row.grid_w = p->grid_w;
    row.source_pixel = p->source_pixel, row.source_w = p->source_w, row.origin = p->origin_x;
    row.taps = p->taps_w, row.stride = p->stride_w, row.dilation = p->dilation_w;
    row.source_line = p->source_w * p->source_pixel, row.line = p->dilation_h * row.source_line;
    row.source_end = p->source + p->batch * p->source_h * row.source_line;
    row.ask = ask, row.stream = stream;
    row.width = dml__round_up(channels, DML__DEPTHWISE_LINE);
    row.target_pixel = p->target_pixel, row.target_line = p->target_line;
    row.bias = p->bias ? p->bias + c0 : NULL, row.beta = p->beta, row.relu = p->relu;
    row.weights = weights;
    dml__conv_pass_pack(&packed, c0, channels, row.width, 0, taps, weights);
    if (reversed) row.weights += (taps - 1) * row.width, row.width = -row.width;
    return row;
}

/* A line of the grid; `first` are the weights of the first line of taps. */
static void dml__depthwise_pass_line(dml_isa isa, const dml__conv_pass *p, dml__depthwise_row *row,
                                     float *first, ptrdiff_t n, ptrdiff_t y, ptrdiff_t c0)
{
    const ptrdiff_t top = p->origin_y + y * p->stride_h;
    const dml__depthwise_lines down = dml__depthwise_inside(top, p->dilation_h, p->taps_h, p->source_h);
    const float *line =
        p->source + (n * p->source_h + top) * row->source_line + p->origin_x * p->source_pixel + c0;
    row->source = line + down.l0 * row->line;
    row->ahead = (p->taps_h - 1 - down.l0) * row->line + row->source_line;
    row->tap_lines = down.l1 - down.l0;
    row->weights = first + down.l0 * p->taps_w * row->width;
    row->target = p->target + n * p->target_image + y * p->target_line + c0;
    dml__depthwise_line(isa, row, DML__DEPTHWISE_RESULT);
}

static void dml__depthwise_task(void *argument, int task, int worker)
{
    const dml__depthwise_loop *loop = (const dml__depthwise_loop *)argument;
    const dml__conv_pass *p = loop->passes;
    DML__OWN_LINE float weights[DML__DEPTHWISE_WEIGHTS]; /* of each pass (taps_h, taps_w, width) */
    dml__depthwise_row rows[DML__DEPTHWISE_PASSES];
    float *first[DML__DEPTHWISE_PASSES]; /* of the first tap */
    const ptrdiff_t rest = task / loop->blocks, c0 = task % loop->blocks * loop->channels;
    const ptrdiff_t n0 = rest / loop->bands_down * loop->images;
    const ptrdiff_t n1 = dml__smaller(p->batch, n0 + loop->images);
    const ptrdiff_t y0 = rest % loop->bands_down * loop->lines;
    const ptrdiff_t channels = dml__smaller(loop->channels, p->columns - c0);
    float *to = weights;
    (void)worker;
    for (int i = 0; i < loop->count; i++) {
        rows[i] = dml__depthwise_row_of(&p[i], c0, channels, loop->distant, loop->stream, to);
        first[i] = rows[i].weights;
        to += p[i].taps_h * p[i].taps_w * dml__round_up(channels, DML__DEPTHWISE_LINE);
    }
    for (ptrdiff_t n = n0; n < n1; n++)
        for (ptrdiff_t y = y0; y < y0 + loop->lines; y++)
            for (int i = 0; i < loop->count; i++)
                if (y < p[i].grid_h) dml__depthwise_pass_line(loop->isa, &p[i], &rows[i], first[i], n, y, c0);
    if (loop->stream) DML__STREAM_FENCE();
}

/* Where the arrays lie. */
typedef struct dml__depthwise_place {
    bool near;    /* in the second cache, or in one that is as good */
    bool whole;   /* lines are gone through as a whole */
    bool distant; /* beyond the caches */
} dml__depthwise_place;

static dml__depthwise_place dml__depthwise_place_of(dml_pool *pool, ptrdiff_t batch, ptrdiff_t source_image,
                                                    ptrdiff_t target_image, ptrdiff_t stride)
{
    const dml__machine machine = dml__pool_machine(pool);
    const double bytes = (double)sizeof(float) * (double)batch * (double)(source_image + target_image);
    const double size = bytes / (double)dml__larger(1, (ptrdiff_t)machine.caches.l2); /* level-2 caches */
    const bool wide = machine.isa == DML_ISA_AVX512;
    const bool spread = machine.caches.l3 > DML__DEPTHWISE_THIRD;
    dml__depthwise_place place;
    place.near = size <= 1 || !spread;
    const bool far = wide && spread && size > DML__DEPTHWISE_OWN * dml_pool_threads(pool);
    place.whole = !wide || far || (machine.caches.l1 <= DML__DEPTHWISE_FIRST && size > DML__DEPTHWISE_WHOLE);
    place.distant = size > DML__DEPTHWISE_NEAR && !(far && stride > 1);
    return place;
}

/* Channels of a task, of which the weights have so much room; `floats` of each come again. */
static ptrdiff_t dml__depthwise_channels(dml_pool *pool, const dml__depthwise_place *place,
                                         ptrdiff_t channels, ptrdiff_t taps, ptrdiff_t blocks,
                                         ptrdiff_t floats)
{
    const ptrdiff_t most = DML__DEPTHWISE_WEIGHTS / dml__larger(1, taps) / DML__DEPTHWISE_LINE;
    const double l1 = DML__DEPTHWISE_L1 / sizeof(float) * (double)dml__pool_machine(pool).caches.l1;
    const ptrdiff_t fitting = (ptrdiff_t)(l1 / (double)dml__larger(1, floats));
    blocks = dml__larger(blocks, dml__quotient_up(channels, most * DML__DEPTHWISE_LINE));
    if (!place->whole && fitting >= (place->near ? DML__DEPTHWISE_RUN_NEAR : DML__DEPTHWISE_RUN))
        blocks = dml__larger(blocks, dml__quotient_up(channels, fitting));
    return dml__round_up(dml__quotient_up(channels, blocks), DML__DEPTHWISE_LINE);
}

/* Whether the results go past the caches, a line of them at a time. */
static bool dml__depthwise_streams(dml_pool *pool, const dml__conv_pass *passes, int count)
{
    const dml__machine machine = dml__pool_machine(pool);
    double floats = 0;
    for (int i = 0; i < count; i++) {
        const dml__conv_pass *p = &passes[i];
        if (p->beta != 0 || (intptr_t)p->target % DML__ALIGNMENT ||
            (p->columns | p->target_pixel | p->target_line | p->target_image) % DML__DEPTHWISE_LINE)
            return false;
        floats += (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)p->columns;
    }
    return dml__microkernel_streams(machine.isa, machine.caches.l3, floats, passes->taps_h * passes->taps_w);
}

DML__LOCAL void dml__depthwise_passes(dml_pool *pool, const dml__conv_pass *passes, int count)
{
    dml__depthwise_loop loop;
    const dml__conv_pass *p = passes; /* the first, which is the largest */
    const ptrdiff_t threads = dml_pool_threads(pool), pixels = p->grid_h * p->grid_w * count;
    ptrdiff_t taps = 0, lines = 0; /* of a line's sources */
    for (int i = 0; i < count; i++) {
        taps += passes[i].taps_h * passes[i].taps_w;
        lines = dml__larger(lines, passes[i].taps_h + 1);
    }
    const double work =
        (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)taps * (double)p->columns;
    if (p->batch < 1 || p->grid_h < 1 || p->grid_w < 1) return;
    const ptrdiff_t wanted = threads == 1 || work < DML__DEPTHWISE_SERIAL_WORK ? 1 : 4 * threads;
    loop.passes = passes;
    loop.count = count;
    loop.isa = dml__pool_machine(pool).isa;
    const dml__depthwise_place place = dml__depthwise_place_of(
        pool, p->batch, p->source_h * p->source_w * p->source_pixel, p->target_image, p->stride_w);
    loop.distant = place.distant;
    loop.stream = dml__depthwise_streams(pool, p, count);
    loop.channels = dml__depthwise_channels(pool, &place, p->columns, taps, 1, lines * p->source_w);
    loop.blocks = dml__quotient_up(p->columns, loop.channels);
    loop.lines = p->grid_h;
    loop.images = dml__larger(1, DML__DEPTHWISE_IMAGE / pixels);
    while (loop.images > 1 && dml__quotient_up(p->batch, loop.images) * loop.blocks < wanted)
        loop.images /= 2;
    while (loop.images == 1 && loop.lines > 4 &&
           p->batch * loop.blocks * dml__quotient_up(p->grid_h, loop.lines) < wanted)
        loop.lines = dml__quotient_up(loop.lines, 2);
    loop.bands_down = dml__quotient_up(p->grid_h, loop.lines);
    const ptrdiff_t tasks = dml__quotient_up(p->batch, loop.images) * loop.bands_down * loop.blocks;
    dml_pool_run(wanted > 1 ? pool : NULL, (int)tasks, dml__depthwise_task, &loop);
}

/* --- weight gradient --- */

/* Lines of all images come in groups, each with sums of its own, which are added up in order: threads then
   have lines of their own, not channels, whose pieces of a pixel lie apart. How many depends on the shape
   alone. */
#define DML__DEPTHWISE_GROUPS 16
#define DML__DEPTHWISE_GROUP_PIXELS 512 /* of one at least: fewer don't repay the sums */

typedef struct dml__depthwise_weights_loop {
    const dml__wgrad *job;
    dml_isa isa;
    bool distant;
    ptrdiff_t channels, blocks; /* of a task; of the layer */
    ptrdiff_t groups;
    float *partial;  /* (groups, taps_h, taps_w, width), or NULL: a task goes through all groups */
    ptrdiff_t width; /* of all channels, in whole lines of the caches */
} dml__depthwise_weights_loop;

static ptrdiff_t dml__depthwise_groups(const dml__wgrad *job)
{
    const ptrdiff_t lines = job->batch * job->out_h;
    const ptrdiff_t most = lines * job->out_w / DML__DEPTHWISE_GROUP_PIXELS;
    return dml__larger(1, dml__smaller(dml__smaller(most, lines), DML__DEPTHWISE_GROUPS));
}

DML__LOCAL size_t dml__depthwise_weights_scratch(const dml__wgrad *job)
{
    const ptrdiff_t groups = dml__depthwise_groups(job),
                    width = dml__round_up(job->filters, DML__DEPTHWISE_LINE);
    return groups == 1 ? 0 : (size_t)(groups * job->taps_h * job->taps_w * width) * sizeof(float);
}

/* The sums of a group's lines over some channels (taps_h, taps_w, width); those of the first begin with what
   dw is to keep. */
static void dml__depthwise_group(const dml__depthwise_weights_loop *loop, ptrdiff_t group, ptrdiff_t c0,
                                 ptrdiff_t channels, float *sums, ptrdiff_t width)
{
    const dml__wgrad *j = loop->job;
    const ptrdiff_t taps = j->taps_h * j->taps_w, x_line = j->in_w * j->x_pixel, lines = j->batch * j->out_h;
    dml__depthwise_row row;
    row.channels = channels, row.grid_w = j->out_w;
    row.source_pixel = j->x_pixel, row.source_w = j->in_w, row.origin = -j->pad_w;
    row.taps = j->taps_w, row.stride = j->stride_w, row.dilation = j->dilation_w;
    row.source_end = j->x + j->batch * j->in_h * x_line;
    row.ask = loop->distant, row.stream = false, row.source_line = x_line, row.line = j->dilation_h * x_line;
    row.width = width;
    row.target_pixel = j->dy_pixel, row.target_line = j->out_w * j->dy_pixel;
    row.bias = NULL, row.beta = 0, row.relu = false;
    for (ptrdiff_t t = 0; t < taps; t++)
        memset(sums + t * width, 0, (size_t)dml__round_up(channels, DML__DEPTHWISE_LINE) * sizeof *sums);
    if (j->beta != 0 && group == 0) {
        dml__pack_transposed(j->dw + c0 * taps, taps, (int)channels, (int)taps, (int)width, sums);
        for (ptrdiff_t t = 0; j->beta != 1 && t < taps; t++)
            for (ptrdiff_t c = 0; c < channels; c++) sums[t * width + c] *= j->beta;
    }
    for (ptrdiff_t l = group * lines / loop->groups; l < (group + 1) * lines / loop->groups; l++) {
        const ptrdiff_t n = l / j->out_h, top = l % j->out_h * j->stride_h - j->pad_h;
        const dml__depthwise_lines down = dml__depthwise_inside(top, j->dilation_h, j->taps_h, j->in_h);
        const float *line = j->x + (n * j->in_h + top) * x_line - j->pad_w * j->x_pixel + c0;
        row.source = line + down.l0 * row.line;
        row.ahead = (j->taps_h - 1 - down.l0) * row.line + x_line;
        row.tap_lines = down.l1 - down.l0;
        row.weights = sums + down.l0 * j->taps_w * width;
        row.target = (float *)j->dy + l * row.target_line + c0;
        dml__depthwise_line(loop->isa, &row, DML__DEPTHWISE_GRADIENT);
    }
}

static void dml__depthwise_group_task(void *argument, int index, int worker)
{
    const dml__depthwise_weights_loop *loop = (const dml__depthwise_weights_loop *)argument;
    const dml__wgrad *j = loop->job;
    const ptrdiff_t group = index / loop->blocks, c0 = index % loop->blocks * loop->channels;
    (void)worker;
    dml__depthwise_group(loop, group, c0, dml__smaller(loop->channels, j->filters - c0),
                         loop->partial + group * j->taps_h * j->taps_w * loop->width + c0, loop->width);
}

/* sums += more, both (taps, width). */
static void dml__depthwise_add(const dml__depthwise_weights_loop *loop, ptrdiff_t taps, ptrdiff_t channels,
                               ptrdiff_t width, float *sums, const float *more)
{
    const dml__finish add = { 1, 0, 1, 1, NULL, false };
    for (ptrdiff_t t = 0; t < taps; t++)
        dml__finish_line(loop->isa, (size_t)channels, &add, more + t * width, sums + t * width);
}

/* A block of channels: adds up the groups' sums that there are, or computes them one after the other. */
static void dml__depthwise_weights_task(void *argument, int index, int worker)
{
    const dml__depthwise_weights_loop *loop = (const dml__depthwise_weights_loop *)argument;
    const dml__wgrad *j = loop->job;
    DML__OWN_LINE float room[DML__DEPTHWISE_WEIGHTS];
    const ptrdiff_t taps = j->taps_h * j->taps_w, c0 = index * loop->channels;
    const ptrdiff_t channels = dml__smaller(loop->channels, j->filters - c0);
    const ptrdiff_t width = loop->partial ? loop->width : dml__round_up(channels, DML__DEPTHWISE_LINE);
    float *sums = loop->partial ? loop->partial + c0 : room; /* (taps_h, taps_w, width) */
    (void)worker;
    if (!loop->partial) dml__depthwise_group(loop, 0, c0, channels, sums, width);
    for (ptrdiff_t g = 1; g < loop->groups; g++) {
        float *more = loop->partial ? sums + g * taps * width : room + taps * width;
        if (!loop->partial) dml__depthwise_group(loop, g, c0, channels, more, width);
        dml__depthwise_add(loop, taps, channels, width, sums, more);
    }
    dml__pack_transposed(sums, width, (int)taps, (int)channels, (int)taps, j->dw + c0 * taps);
}

DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job)
{
    dml__depthwise_weights_loop loop;
    const ptrdiff_t threads = dml_pool_threads(pool);
    const size_t bytes = dml__depthwise_weights_scratch(job);
    loop.job = job;
    loop.isa = dml__pool_machine(pool).isa;
    loop.groups = dml__depthwise_groups(job);
    loop.width = dml__round_up(job->filters, DML__DEPTHWISE_LINE);
    loop.partial = NULL;
    if (bytes && dml_pool_scratch_bytes(pool).shared >= bytes)
        loop.partial = (float *)dml_pool_shared_scratch(pool);
    const ptrdiff_t taps = job->taps_h * job->taps_w, together = loop.partial ? loop.groups : 1;
    const ptrdiff_t room = loop.groups > 1 && !loop.partial ? 2 * taps : taps; /* on the stack, or as much */
    const dml__depthwise_place place =
        dml__depthwise_place_of(pool, job->batch, job->in_h * job->in_w * job->x_pixel,
                                job->out_h * job->out_w * job->dy_pixel, job->stride_w);
    loop.distant = place.distant;
    loop.channels = dml__depthwise_channels(pool, &place, job->filters, room,
                                            threads == 1  ? 1
                                            : place.whole ? dml__quotient_up(threads, together)
                                                          : dml__quotient_up(2 * threads, together),
                                            (job->taps_h + 1) * job->in_w + taps);
    loop.blocks = dml__quotient_up(job->filters, loop.channels);
    if (loop.partial) dml_pool_run(pool, (int)(loop.groups * loop.blocks), dml__depthwise_group_task, &loop);
    dml_pool_run(pool, (int)loop.blocks, dml__depthwise_weights_task, &loop);
}

DML__DRIVERS_END

#endif
