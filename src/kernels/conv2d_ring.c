#ifndef DML_KERNELS_CONV2D_RING_C
#define DML_KERNELS_CONV2D_RING_C

#include "kernels/conv2d_ring.h"

#include "kernels/conv2d_ring_line.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

#include <string.h>

/* Vectors lie along channels, sixteen of which are a unit: a line of the caches. The lines of the source that
   a line of the result meets are copied into a ring in the first cache, each once, with the padding around
   them as zeros, one unit behind the other, and pixels that meet the same tap beside each other. There any
   tap of any kernel, stride and dilation is an address: seven pixels of a unit stay in registers while the
   taps go by, each an instruction a vector, which loads and multiplies. The gradient of the weights is the
   same loop, in which the pixels are dy's and the taps' sums come and go. */

#define DML__CONV2D_RING_POSITIONS 384 /* pixels of a unit in the ring: three quarters of a first cache */
#define DML__CONV2D_RING_WEIGHTS 9216  /* floats of the transposed weights, or of their gradient */
#define DML__CONV2D_RING_IMAGE 1024    /* pixels for which they are transposed once, about */
#define DML__CONV2D_RING_SERIAL_WORK 100000.0

DML__DRIVERS_BEGIN

/* --- where taps find pixels --- */

/* The places of a target along an axis: place p = j * up + phase meets tap t where the phase is the tap's, at
   j * step + offset of the source. Forward there is one phase; the gradient of the input has one for each
   place of the stride. */
typedef struct dml__conv2d_ring_axis {
    ptrdiff_t target, source, taps, up, step, dilation, pad;
    bool flipped;
} dml__conv2d_ring_axis;

typedef struct dml__conv2d_ring_place {
    ptrdiff_t phase, offset;
} dml__conv2d_ring_place;

static dml__conv2d_ring_place dml__conv2d_ring_find(const dml__conv2d_ring_axis *axis, ptrdiff_t tap)
{
    dml__conv2d_ring_place place = { 0, tap * axis->dilation - axis->pad };
    if (axis->flipped) {
        const ptrdiff_t behind = place.offset % axis->up;
        place.phase = behind < 0 ? behind + axis->up : behind;
        place.offset = (place.phase - place.offset) / axis->up;
    }
    return place;
}

/* Pixels of the source beside each other in the ring: residue + step * (first + j), j < count. */
typedef struct dml__conv2d_ring_segment {
    ptrdiff_t residue, first, count, at;
} dml__conv2d_ring_segment;

/* Lines are cut into bands, for which the ring has room. */
typedef struct dml__conv2d_ring_band {
    ptrdiff_t pixels;    /* of a phase */
    ptrdiff_t positions; /* of a line of the ring */
    /* Of a line's taps in the order of their phases, and there of the places where they find pixel 0: the
       tap, that place, and the taps from there on of which each is one place behind the one before it, up to
       a run; 0 for those within such a run. */
    ptrdiff_t tap[DML__CONV2D_RING_TAPS], column[DML__CONV2D_RING_TAPS], run[DML__CONV2D_RING_TAPS];
    ptrdiff_t phase[DML__CONV2D_RING_TAPS];
    dml__conv2d_ring_segment segments[DML__CONV2D_RING_TAPS];
    ptrdiff_t segment_count;
} dml__conv2d_ring_band;

static void dml__conv2d_ring_lay(dml__conv2d_ring_band *band, const dml__conv2d_ring_axis *axis,
                                 ptrdiff_t pixels)
{
    const ptrdiff_t width = dml__round_up(pixels, DML__CONV2D_RING_PIXELS);
    ptrdiff_t within[DML__CONV2D_RING_TAPS];
    band->pixels = pixels, band->positions = 0, band->segment_count = 0;
    for (ptrdiff_t i = 0; i < axis->taps; i++) {
        const ptrdiff_t tap = axis->flipped ? axis->taps - 1 - i : i;
        const dml__conv2d_ring_place place = dml__conv2d_ring_find(axis, tap);
        const ptrdiff_t behind = place.offset % axis->step,
                        residue = behind < 0 ? behind + axis->step : behind;
        const ptrdiff_t index = (place.offset - residue) / axis->step;
        dml__conv2d_ring_segment *s = band->segments, *const end = s + band->segment_count;
        while (s < end && (s->residue != residue || index < s->first || index > s->first + s->count)) s++;
        if (s == end) {
            s->residue = residue, s->first = index, s->count = 0;
            band->segment_count++;
        }
        s->count = dml__larger(s->count, index - s->first + width);
        within[i] = s - band->segments;
        band->tap[i] = tap, band->phase[i] = place.phase, band->column[i] = index - s->first;
    }
    for (ptrdiff_t i = 0; i < band->segment_count; i++) {
        band->segments[i].at = band->positions;
        band->positions += band->segments[i].count;
    }
    for (ptrdiff_t i = 0; i < axis->taps; i++) {
        const ptrdiff_t tap = band->tap[i], phase = band->phase[i];
        const ptrdiff_t column = band->column[i] + band->segments[within[i]].at;
        ptrdiff_t j = i;
        for (; j > 0 &&
               (phase < band->phase[j - 1] || (phase == band->phase[j - 1] && column < band->column[j - 1]));
             j--)
            band->tap[j] = band->tap[j - 1], band->phase[j] = band->phase[j - 1],
            band->column[j] = band->column[j - 1];
        band->tap[j] = tap, band->phase[j] = phase, band->column[j] = column;
    }
    for (ptrdiff_t i = 0, taps; i < axis->taps; i += taps) {
        for (taps = 1; taps < DML__CONV2D_RING_RUN && i + taps < axis->taps; taps++)
            if (band->phase[i + taps] != band->phase[i] || band->column[i + taps] != band->column[i] + taps)
                break;
        band->run[i] = taps;
    }
}

/* --- what is computed --- */

typedef struct dml__conv2d_ring_job {
    ptrdiff_t batch, channels; /* of the target */
    dml__conv2d_ring_axis down, across;
    ptrdiff_t depth,
        repeat; /* channel c of the target is of channels c * depth .. of the source, or of c / repeat */
    const float *source; /* (batch, down.source, across.source, channels * depth / repeat) */
    float *target;       /* (batch, down.target, across.target, channels) */
    const float *w;      /* (channels * depth, taps) */
    const float *bias;
    float beta;
    bool relu;
    dml__conv2d_ring_role role;
    float *dw; /* (channels, taps) */

    dml__conv2d_ring_kernels kernels;
    dml__conv2d_ring_band band;
    ptrdiff_t taps;                 /* of a unit: depth, lines and columns */
    ptrdiff_t slot, unit, units;    /* floats of a line in the ring and of a unit, and units at once */
    ptrdiff_t slot_step;            /* lines of the source that a line of the target meets lie so far apart */
    ptrdiff_t block, images, lines; /* of a task: channels, ... */
    ptrdiff_t blocks, bands_down;   /* tasks: image groups, times these */
} dml__conv2d_ring_job;

static dml__conv2d_ring_axis dml__conv2d_ring_axis_of(ptrdiff_t in, ptrdiff_t out, ptrdiff_t taps,
                                                      ptrdiff_t stride, ptrdiff_t pad, ptrdiff_t dilation,
                                                      bool flipped)
{
    const dml__conv2d_ring_axis axis = { flipped ? in : out,   flipped ? out : in, taps, flipped ? stride : 1,
                                         flipped ? 1 : stride, dilation,           pad,  flipped };
    return axis;
}

/* False where the ring has no room. */
static bool dml__conv2d_ring_plan(dml__conv2d_ring_job *job, const dml_conv2d_shape *s, bool flipped)
{
    const ptrdiff_t multiplier = s->filters / s->channels;
    memset(job, 0, sizeof *job);
    job->batch = s->batch, job->channels = flipped ? s->channels : s->filters;
    job->depth = flipped ? multiplier : 1, job->repeat = flipped ? 1 : multiplier;
    job->down = dml__conv2d_ring_axis_of(s->height, s->out_h, s->kernel_h, s->stride_h, s->pad_h,
                                         s->dilation_h, flipped);
    job->across = dml__conv2d_ring_axis_of(s->width, s->out_w, s->kernel_w, s->stride_w, s->pad_w,
                                           s->dilation_w, flipped);
    job->taps = job->depth * s->kernel_h * s->kernel_w;
    const ptrdiff_t lines = job->depth * s->kernel_h;
    const ptrdiff_t width = dml__quotient_up(job->across.target, job->across.up);
    for (ptrdiff_t parts = 1, pixels;; parts *= 2) {
        pixels = dml__smaller(width, dml__round_up(dml__quotient_up(width, parts), DML__CONV2D_RING_PIXELS));
        dml__conv2d_ring_lay(&job->band, &job->across, pixels);
        if (lines * job->band.positions <= DML__CONV2D_RING_POSITIONS) break;
        if (pixels <= DML__CONV2D_RING_PIXELS) return false;
    }
    /* Units a multiple of a page apart would meet in the same sets of the cache. */
    const ptrdiff_t positions = lines * job->band.positions;
    job->slot = job->band.positions * DML__CONV2D_RING_UNIT;
    job->unit = (positions % 64 ? positions : positions + 1) * DML__CONV2D_RING_UNIT;
    job->units = dml__larger(1, DML__CONV2D_RING_POSITIONS * DML__CONV2D_RING_UNIT / job->unit);
    job->slot_step = s->dilation_h / (flipped ? dml__common_divisor(s->stride_h, s->dilation_h) : 1);
    return true;
}

DML__LOCAL bool dml__conv2d_ring_fits(const dml_conv2d_shape *s)
{
    dml__conv2d_ring_job job;
    if (s->groups < 2 || s->groups != s->channels) return false;
    const int64_t taps = (int64_t)s->kernel_h * s->kernel_w;
    if (taps > DML__CONV2D_RING_TAPS || taps * (s->filters / s->channels) > DML__CONV2D_RING_TAPS)
        return false;
    return dml__conv2d_ring_plan(&job, s, false) && dml__conv2d_ring_plan(&job, s, true);
}

DML__DRIVERS_END

/* The copy of a line of the source, of which one unit's depth z begins z * slots behind the first. */
static void dml__conv2d_ring_copy_line(const dml__conv2d_ring_job *job, const float *line, ptrdiff_t x0,
                                       ptrdiff_t c0, ptrdiff_t channels, float *slot)
{
    const dml__conv2d_ring_axis *across = &job->across;
    const ptrdiff_t pixel = job->channels * job->depth / job->repeat, step = across->step * pixel;
    const bool plain = job->depth == 1 && job->repeat == 1;
    const ptrdiff_t whole = plain ? channels / DML__CONV2D_RING_UNIT : 0;
    const ptrdiff_t units = dml__quotient_up(channels, DML__CONV2D_RING_UNIT);
    for (ptrdiff_t i = 0; i < job->band.segment_count; i++) {
        const dml__conv2d_ring_segment *s = &job->band.segments[i];
        const ptrdiff_t first = (x0 + s->first) * across->step + s->residue;
        const ptrdiff_t before =
            first >= 0 ? 0 : dml__smaller(s->count, dml__quotient_up(-first, across->step));
        const ptrdiff_t inside = first < across->source ? (across->source - 1 - first) / across->step + 1 : 0;
        const ptrdiff_t end = dml__larger(before, dml__smaller(s->count, inside));
        const float *from = line + (first + before * across->step) * pixel;
        float *to = slot + s->at * DML__CONV2D_RING_UNIT;
        if (whole)
            job->kernels.copy(from + c0, step, job->slot_step * across->source * pixel, end - before, whole,
                              to + before * DML__CONV2D_RING_UNIT, job->unit);
        for (ptrdiff_t u = 0; u < units; u++, to += job->unit)
            for (ptrdiff_t z = 0; z < job->depth; z++) {
                float *at = to + z * job->down.taps * job->slot;
                const size_t zeros = (size_t)DML__CONV2D_RING_UNIT * sizeof *at;
                const ptrdiff_t c = c0 + u * DML__CONV2D_RING_UNIT;
                const ptrdiff_t count =
                    dml__smaller(DML__CONV2D_RING_UNIT, channels - u * DML__CONV2D_RING_UNIT);
                if (before) memset(at, 0, (size_t)before * zeros);
                if (end < s->count)
                    memset(at + end * DML__CONV2D_RING_UNIT, 0, (size_t)(s->count - end) * zeros);
                if (u < whole) continue;
                at += before * DML__CONV2D_RING_UNIT;
                if (count < DML__CONV2D_RING_UNIT) memset(at, 0, (size_t)(end - before) * zeros);
                if (plain) {
                    dml__conv2d_ring_move(from + c, step, end - before, count, at, DML__CONV2D_RING_UNIT);
                    continue;
                }
                ptrdiff_t lane[DML__CONV2D_RING_UNIT];
                for (ptrdiff_t j = 0; j < count; j++) lane[j] = (c + j) * job->depth / job->repeat + z;
                for (ptrdiff_t x = 0; x < end - before; x++)
                    for (ptrdiff_t j = 0; j < count; j++)
                        at[x * DML__CONV2D_RING_UNIT + j] = from[x * step + lane[j]];
            }
    }
}

/* Lines y0 .. y1 of an image, for channels c0 .. c0 + channels; weights (units, taps, unit). */
static void dml__conv2d_ring_walk(const dml__conv2d_ring_job *job, ptrdiff_t n, ptrdiff_t y0, ptrdiff_t y1,
                                  ptrdiff_t x0, ptrdiff_t c0, ptrdiff_t channels, float *weights)
{
    /* One more unit, since it begins at a line of the caches: no vector lies across two. */
    float room[(DML__CONV2D_RING_POSITIONS + 2) * DML__CONV2D_RING_UNIT];
    float *const ring =
        room + (64 - (uintptr_t)room % 64) / sizeof *room; /* (units, depth, slots, positions, unit) */
    ptrdiff_t held[DML__CONV2D_RING_TAPS];                 /* the line in each slot */
    const dml__conv2d_ring_axis *down = &job->down, *across = &job->across;
    const ptrdiff_t source_line = across->source * (job->channels * job->depth / job->repeat);
    const ptrdiff_t target_line = across->target * job->channels;
    /* Lines that meet the same ones follow each other. */
    const ptrdiff_t leap = down->step == 1 && down->up == 1 ? down->dilation : 1;
    dml__conv2d_ring_row row;
    row.unit_source = job->unit, row.unit_weights = job->taps * DML__CONV2D_RING_UNIT;
    row.channels = channels, row.target_pixel = across->up * job->channels;
    row.bias = job->bias ? job->bias + c0 : NULL, row.beta = job->beta, row.relu = job->relu;
    dml__conv2d_ring_place places[DML__CONV2D_RING_TAPS]; /* of the lines of taps */
    for (ptrdiff_t l = 0; l < down->taps; l++) held[l] = -1, places[l] = dml__conv2d_ring_find(down, l);
    for (ptrdiff_t start = y0; start < y1 && start < y0 + leap; start++)
        for (ptrdiff_t y = start; y < y1; y += leap) {
            ptrdiff_t lines[DML__CONV2D_RING_TAPS], slots[DML__CONV2D_RING_TAPS], line_count = 0, slot = 0;
            const ptrdiff_t down_phase = y % down->up, first = y / down->up * down->step;
            for (ptrdiff_t l = 0; l < down->taps; l++) {
                const ptrdiff_t line = first + places[l].offset;
                if (places[l].phase != down_phase || line < 0 || line >= down->source) continue;
                /* The next line has the slot beside this one's: divisions would take as long as the line. */
                if (!line_count)
                    slot = line / job->slot_step % down->taps;
                else if (down->flipped)
                    slot = slot ? slot - 1 : down->taps - 1;
                else
                    slot = slot + 1 < down->taps ? slot + 1 : 0;
                if (held[slot] != line)
                    dml__conv2d_ring_copy_line(job, job->source + (n * down->source + line) * source_line, x0,
                                               c0, channels, ring + slot * job->slot);
                held[slot] = line;
                lines[line_count] = l, slots[line_count++] = slot;
            }
            for (ptrdiff_t phase = 0; phase < across->up && phase < across->target; phase++) {
                const ptrdiff_t width = dml__quotient_up(across->target - phase, across->up);
                row.pixels = dml__smaller(job->band.pixels, width - x0);
                row.target = job->target + (n * down->target + y) * target_line + x0 * row.target_pixel +
                             phase * job->channels + c0;
                for (int i = 0; i < DML__CONV2D_RING_RUN; i++) row.runs[i].count = 0;
                for (ptrdiff_t z = 0; z < job->depth; z++)
                    for (ptrdiff_t l = 0; l < line_count; l++) {
                        const float *in_ring = ring + (z * down->taps + slots[l]) * job->slot;
                        float *weight =
                            weights + (z * down->taps + lines[l]) * across->taps * DML__CONV2D_RING_UNIT;
                        for (ptrdiff_t t = 0; t < across->taps; t += job->band.run[t]) {
                            if (job->band.phase[t] != phase) continue;
                            dml__conv2d_ring_runs *runs = &row.runs[job->band.run[t] - 1];
                            runs->run[runs->count].source =
                                in_ring + job->band.column[t] * DML__CONV2D_RING_UNIT;
                            runs->run[runs->count++].weights = weight + t * DML__CONV2D_RING_UNIT;
                        }
                    }
                if (job->role == DML__CONV2D_RING_RESULT)
                    job->kernels.result(&row);
                else
                    job->kernels.gradient(&row);
            }
        }
}

DML__DRIVERS_BEGIN

/* Images n0 .. n1 in the order in which bands and units of an image are taken. */
static void dml__conv2d_ring_images(const dml__conv2d_ring_job *job, ptrdiff_t n0, ptrdiff_t n1, ptrdiff_t y0,
                                    ptrdiff_t y1, ptrdiff_t c0, ptrdiff_t channels, float *weights)
{
    const ptrdiff_t width = dml__quotient_up(job->across.target, job->across.up);
    const ptrdiff_t at_once = job->units * DML__CONV2D_RING_UNIT;
    for (ptrdiff_t n = n0; n < n1; n++)
        for (ptrdiff_t x0 = 0; x0 < width; x0 += job->band.pixels)
            for (ptrdiff_t c = 0; c < channels; c += at_once)
                dml__conv2d_ring_walk(job, n, y0, y1, x0, c0 + c, dml__smaller(at_once, channels - c),
                                      weights + c * job->taps);
}

/* Channels of a task, of which the weights have so much room. */
static ptrdiff_t dml__conv2d_ring_block(ptrdiff_t channels, ptrdiff_t taps, ptrdiff_t blocks)
{
    const ptrdiff_t most = DML__CONV2D_RING_WEIGHTS / taps / DML__CONV2D_RING_UNIT;
    blocks = dml__larger(blocks, dml__quotient_up(channels, most * DML__CONV2D_RING_UNIT));
    return dml__round_up(dml__quotient_up(channels, blocks), DML__CONV2D_RING_UNIT);
}

/* --- forward and input gradient --- */

static void dml__conv2d_ring_task(void *argument, int task, int worker)
{
    const dml__conv2d_ring_job *job = (const dml__conv2d_ring_job *)argument;
    float weights[DML__CONV2D_RING_WEIGHTS]; /* (units, taps, unit) */
    const ptrdiff_t c0 = task % job->blocks * job->block, rest = task / job->blocks;
    const ptrdiff_t channels = dml__smaller(job->block, job->channels - c0);
    const ptrdiff_t n0 = rest / job->bands_down * job->images, y0 = rest % job->bands_down * job->lines;
    (void)worker;
    for (ptrdiff_t c = 0; c < dml__round_up(channels, DML__CONV2D_RING_UNIT); c++) {
        float *to = weights + c / DML__CONV2D_RING_UNIT * DML__CONV2D_RING_UNIT * job->taps +
                    c % DML__CONV2D_RING_UNIT;
        const float *from = job->w + (c0 + c) * job->taps;
        for (ptrdiff_t l = 0; l < job->taps; l += job->across.taps)
            for (ptrdiff_t t = 0; t < job->across.taps; t++, to += DML__CONV2D_RING_UNIT)
                *to = c < channels ? from[l + job->band.tap[t]] : 0;
    }
    dml__conv2d_ring_images(job, n0, dml__smaller(job->batch, n0 + job->images), y0,
                            dml__smaller(job->down.target, y0 + job->lines), c0, channels, weights);
}

static void dml__conv2d_ring_share(dml_pool *pool, dml__conv2d_ring_job *job)
{
    const ptrdiff_t threads = dml_pool_threads(pool), pixels = job->down.target * job->across.target;
    const double work = (double)job->batch * (double)pixels * (double)job->taps * (double)job->channels;
    const ptrdiff_t wanted = threads == 1 || work < DML__CONV2D_RING_SERIAL_WORK ? 1 : 4 * threads;
    if (job->batch < 1) return;
    job->role = DML__CONV2D_RING_RESULT;
    job->kernels = dml__conv2d_ring_kernels_of(dml__pool_machine(pool).isa);
    job->block = dml__conv2d_ring_block(job->channels, job->taps, 1);
    job->blocks = dml__quotient_up(job->channels, job->block);
    job->lines = job->down.target;
    job->images = dml__larger(1, DML__CONV2D_RING_IMAGE / pixels);
    while (job->images > 1 && dml__quotient_up(job->batch, job->images) * job->blocks < wanted)
        job->images /= 2;
    while (job->images == 1 && job->lines > 4 &&
           job->batch * job->blocks * dml__quotient_up(job->down.target, job->lines) < wanted)
        job->lines = dml__quotient_up(job->lines, 2);
    job->bands_down = dml__quotient_up(job->down.target, job->lines);
    const ptrdiff_t tasks = dml__quotient_up(job->batch, job->images) * job->bands_down * job->blocks;
    dml_pool_run(wanted > 1 ? pool : NULL, (int)tasks, dml__conv2d_ring_task, job);
}

DML__LOCAL void dml__conv2d_ring_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                         const float *w, float beta, const dml_epilogue *epilogue, float *y)
{
    dml__conv2d_ring_job job;
    dml__conv2d_ring_plan(&job, shape, false);
    job.source = x, job.w = w, job.beta = beta, job.target = y;
    if (epilogue) job.bias = epilogue->bias, job.relu = epilogue->activation == DML_ACTIVATION_RELU;
    dml__conv2d_ring_share(pool, &job);
}

DML__LOCAL void dml__conv2d_ring_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                       const float *w, float beta, float *dx)
{
    dml__conv2d_ring_job job;
    dml__conv2d_ring_plan(&job, shape, true);
    job.source = dy, job.w = w, job.beta = beta, job.target = dx;
    dml__conv2d_ring_share(pool, &job);
}

/* --- weight gradient --- */

static void dml__conv2d_ring_weights_task(void *argument, int task, int worker)
{
    const dml__conv2d_ring_job *job = (const dml__conv2d_ring_job *)argument;
    float sums[DML__CONV2D_RING_WEIGHTS]; /* (units, taps, unit) */
    const ptrdiff_t c0 = task * job->block, channels = dml__smaller(job->block, job->channels - c0);
    (void)worker;
    memset(sums, 0, (size_t)(job->taps * dml__round_up(channels, DML__CONV2D_RING_UNIT)) * sizeof *sums);
    dml__conv2d_ring_images(job, 0, job->batch, 0, job->down.target, c0, channels, sums);
    for (ptrdiff_t c = 0; c < channels; c++) {
        const float *from =
            sums + c / DML__CONV2D_RING_UNIT * DML__CONV2D_RING_UNIT * job->taps + c % DML__CONV2D_RING_UNIT;
        float *to = job->dw + (c0 + c) * job->taps;
        for (ptrdiff_t l = 0; l < job->taps; l += job->across.taps)
            for (ptrdiff_t t = 0; t < job->across.taps; t++, from += DML__CONV2D_RING_UNIT) {
                float *at = to + l + job->band.tap[t];
                *at = *from + (job->beta == 0 ? 0 : job->beta * *at);
            }
    }
}

DML__LOCAL void dml__conv2d_ring_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                         const float *dy, float beta, float *dw)
{
    dml__conv2d_ring_job job;
    const ptrdiff_t threads = dml_pool_threads(pool);
    dml__conv2d_ring_plan(&job, shape, false);
    job.role = DML__CONV2D_RING_GRADIENT;
    job.kernels = dml__conv2d_ring_kernels_of(dml__pool_machine(pool).isa);
    job.source = x, job.target = (float *)dy, job.beta = beta, job.dw = dw;
    job.block = dml__conv2d_ring_block(job.channels, job.taps, threads == 1 ? 1 : 2 * threads);
    dml_pool_run(pool, (int)dml__quotient_up(job.channels, job.block), dml__conv2d_ring_weights_task, &job);
}

DML__DRIVERS_END

#endif
