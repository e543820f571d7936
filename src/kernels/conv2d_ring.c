#ifndef DML_KERNELS_CONV2D_RING_C
#define DML_KERNELS_CONV2D_RING_C

#include "kernels/conv2d_ring.h"

#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

#include <string.h>

/* Vectors lie along channels, sixteen of which are a unit: a line of the caches. The lines of the source that
   a line of the result meets are copied into a ring in the first cache, each once, with the padding around
   them as zeros, one unit behind the other, and pixels that meet the same tap beside each other. There any
   tap of any kernel, stride and dilation is an address: seven pixels of a unit stay in registers while the
   taps go by, each an instruction a vector, which loads and multiplies. The gradient of the weights is the
   same loop, in which the pixels are dy's and the taps' sums come and go. */

#define DML__CONV2D_RING_UNIT 16
#define DML__CONV2D_RING_TAPS 128      /* the most, of kernels and lines */
#define DML__CONV2D_RING_POSITIONS 384 /* pixels of a unit in the ring: three quarters of a first cache */
#define DML__CONV2D_RING_WEIGHTS 9216  /* floats of the transposed weights, or of their gradient */
#define DML__CONV2D_RING_IMAGE 1024    /* pixels for which they are transposed once, about */
#define DML__CONV2D_RING_SERIAL_WORK 100000.0
#define DML__CONV2D_RING_PIXELS 7 /* the sides of images are often multiples of it: 224, 112, ... */
#define DML__CONV2D_RING_FEW 4    /* for what is left of a line */

typedef enum dml__conv2d_ring_role {
    DML__CONV2D_RING_RESULT,  /* of weights and a source: the forward result, or the gradient of the input */
    DML__CONV2D_RING_GRADIENT /* of the weights */
} dml__conv2d_ring_role;

/* --- a line, for each instruction set --- */

/* Taps whose pixels and weights lie behind each other. */
#define DML__CONV2D_RING_RUN 3

typedef struct dml__conv2d_ring_run {
    const float *source; /* what the first tap finds for pixel 0 of the first unit */
    float *weights;      /* (taps, unit), or the gradient's sums */
} dml__conv2d_ring_run;

typedef struct dml__conv2d_ring_runs {
    ptrdiff_t count;
    dml__conv2d_ring_run run[DML__CONV2D_RING_TAPS];
} dml__conv2d_ring_runs;

/* Pixels of a line of the result, or of dy, for some units; the last of them may have fewer channels. */
typedef struct dml__conv2d_ring_row {
    dml__conv2d_ring_runs runs[DML__CONV2D_RING_RUN]; /* of 1, 2, ... taps */
    ptrdiff_t unit_source, unit_weights;              /* floats from a unit's to the next one's */
    ptrdiff_t channels, pixels;
    float *target; /* (pixels, target_pixel); dy is only read */
    ptrdiff_t target_pixel;
    const float *bias; /* (channels), or NULL */
    float beta;
    bool relu;
} dml__conv2d_ring_row;

/* Some pixels of some of a unit's vectors: where they lie, `pixel` floats apart, and how many there are. */
typedef struct dml__conv2d_ring_part {
    ptrdiff_t source, weights; /* behind those of the taps */
    float *target;
    ptrdiff_t pixel, count;
    const float *bias;
} dml__conv2d_ring_part;

/* The first `channels`, fewer than a unit, of pixels. */
static void dml__conv2d_ring_move(const float *from, ptrdiff_t from_pixel, ptrdiff_t pixels,
                                  ptrdiff_t channels, float *to, ptrdiff_t to_pixel)
{
    for (; pixels > 0; pixels--, from += from_pixel, to += to_pixel) {
        ptrdiff_t c = 0;
        if (channels & 8) memcpy(to, from, 8 * sizeof *to), c = 8;
        if (channels & 4) memcpy(to + c, from + c, 4 * sizeof *to), c += 4;
        for (; c < channels; c++) to[c] = from[c];
    }
}

#define DML__CONV2D_RING_TAKE(isa, vector, lanes, taps)                                                      \
    for (ptrdiff_t i = 0; i < row->runs[taps - 1].count; i++) {                                              \
        const float *from = row->runs[taps - 1].run[i].source + source;                                      \
        float *at = row->runs[taps - 1].run[i].weights + weights;                                            \
        DML__IN_ORDER(from);                                                                                 \
        DML__IN_ORDER(at);                                                                                   \
        DML__UNROLL                                                                                          \
        for (int v = 0; v < vectors; v++, from += lanes, at += lanes) {                                      \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < taps; t++) {                                                                 \
                DML__IN_ORDER(at);                                                                           \
                vector weight = dml__##isa##_load(at + t * DML__CONV2D_RING_UNIT);                           \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) {                                                           \
                    const vector value = dml__##isa##_load(from + (p + t) * DML__CONV2D_RING_UNIT);          \
                    if (role == DML__CONV2D_RING_GRADIENT)                                                   \
                        weight = dml__##isa##_fma(value, sum[v][p], weight);                                 \
                    else                                                                                     \
                        sum[v][p] = dml__##isa##_fma(value, weight, sum[v][p]);                              \
                }                                                                                            \
                if (role == DML__CONV2D_RING_GRADIENT)                                                       \
                    dml__##isa##_store(at + t * DML__CONV2D_RING_UNIT, weight);                              \
            }                                                                                                \
        }                                                                                                    \
    }

/* Bias is where a sum begins. */
#define DML__DEFINE_RING(isa, target_isa, vector, lanes)                                                     \
    target_isa DML__INLINE void dml__conv2d_ring_tile_##isa(                                                 \
        const dml__conv2d_ring_row *row, const dml__conv2d_ring_part *part, const int vectors,               \
        const int pixels, const dml__conv2d_ring_role role)                                                  \
    {                                                                                                        \
        vector sum[DML__CONV2D_RING_UNIT / lanes][DML__CONV2D_RING_PIXELS];                                  \
        const ptrdiff_t source = part->source, weights = part->weights, pixel = part->pixel;                 \
        const ptrdiff_t count = part->count;                                                                 \
        const float beta = row->beta;                                                                        \
        float *target = part->target;                                                                        \
        DML__UNROLL                                                                                          \
        for (int v = 0; v < vectors; v++) {                                                                  \
            vector first = dml__##isa##_splat(0);                                                            \
            if (role == DML__CONV2D_RING_RESULT && part->bias)                                               \
                first = dml__##isa##_load(part->bias + v * lanes);                                           \
            DML__UNROLL                                                                                      \
            for (int p = 0; p < pixels; p++) sum[v][p] = first;                                              \
        }                                                                                                    \
        if (role == DML__CONV2D_RING_GRADIENT || beta != 0) {                                                \
            const vector scale = dml__##isa##_splat(beta);                                                   \
            DML__UNROLL                                                                                      \
            for (int p = 0; p < pixels; p++) {                                                               \
                if (p >= count) break;                                                                       \
                DML__UNROLL                                                                                  \
                for (int v = 0; v < vectors; v++) {                                                          \
                    const vector value = dml__##isa##_load(target + p * pixel + v * lanes);                  \
                    sum[v][p] = role == DML__CONV2D_RING_GRADIENT                                            \
                                    ? value                                                                  \
                                    : dml__##isa##_fma(scale, value, sum[v][p]);                             \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        DML__CONV2D_RING_TAKE(isa, vector, lanes, 3)                                                         \
        DML__CONV2D_RING_TAKE(isa, vector, lanes, 2)                                                         \
        DML__CONV2D_RING_TAKE(isa, vector, lanes, 1)                                                         \
        if (role == DML__CONV2D_RING_GRADIENT) return;                                                       \
        if (row->relu) {                                                                                     \
            DML__UNROLL                                                                                      \
            for (int v = 0; v < vectors; v++) {                                                              \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) sum[v][p] = dml__##isa##_relu(sum[v][p]);                   \
            }                                                                                                \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int p = 0; p < pixels; p++) {                                                                   \
            if (p >= count) break;                                                                           \
            DML__UNROLL                                                                                      \
            for (int v = 0; v < vectors; v++) dml__##isa##_store(target + p * pixel + v * lanes, sum[v][p]); \
        }                                                                                                    \
    }                                                                                                        \
    target_isa DML__INLINE void dml__conv2d_ring_units_##isa(const dml__conv2d_ring_row *row,                \
                                                             const dml__conv2d_ring_role role)               \
    {                                                                                                        \
        for (ptrdiff_t c = 0; c < row->channels; c += DML__CONV2D_RING_UNIT) {                               \
            const ptrdiff_t unit = c / DML__CONV2D_RING_UNIT, channels = row->channels - c;                  \
            float few[DML__CONV2D_RING_PIXELS * DML__CONV2D_RING_UNIT], bias[DML__CONV2D_RING_UNIT] = { 0 }; \
            for (ptrdiff_t x = 0; x < row->pixels; x += DML__CONV2D_RING_PIXELS) {                           \
                float *const to = row->target + x * row->target_pixel + c;                                   \
                dml__conv2d_ring_part part = { unit * row->unit_source + x * DML__CONV2D_RING_UNIT,          \
                                               unit * row->unit_weights,                                     \
                                               to,                                                           \
                                               row->target_pixel,                                            \
                                               dml__smaller(row->pixels - x, DML__CONV2D_RING_PIXELS),       \
                                               row->bias ? row->bias + c : NULL };                           \
                if (channels >= DML__CONV2D_RING_UNIT && part.count > DML__CONV2D_RING_FEW) {                \
                    dml__conv2d_ring_tile_##isa(row, &part, DML__CONV2D_RING_UNIT / lanes,                   \
                                                DML__CONV2D_RING_PIXELS, role);                              \
                    continue;                                                                                \
                }                                                                                            \
                if (channels >= DML__CONV2D_RING_UNIT) {                                                     \
                    dml__conv2d_ring_tile_##isa(row, &part, DML__CONV2D_RING_UNIT / lanes,                   \
                                                DML__CONV2D_RING_FEW, role);                                 \
                    continue;                                                                                \
                }                                                                                            \
                memset(few, 0, sizeof few);                                                                  \
                if (role == DML__CONV2D_RING_GRADIENT || row->beta != 0)                                     \
                    dml__conv2d_ring_move(to, row->target_pixel, part.count, channels, few,                  \
                                          DML__CONV2D_RING_UNIT);                                            \
                if (row->bias) dml__conv2d_ring_move(row->bias + c, 0, 1, channels, bias, 0);                \
                part.pixel = DML__CONV2D_RING_UNIT;                                                          \
                for (ptrdiff_t l = 0; l < channels; l += lanes) {                                            \
                    part.target = few + l, part.bias = bias + l;                                             \
                    dml__conv2d_ring_tile_##isa(row, &part, 1, DML__CONV2D_RING_PIXELS, role);               \
                    part.source += lanes, part.weights += lanes;                                             \
                }                                                                                            \
                if (role == DML__CONV2D_RING_RESULT)                                                         \
                    dml__conv2d_ring_move(few, DML__CONV2D_RING_UNIT, part.count, channels, to,              \
                                          row->target_pixel);                                                \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    target_isa DML__PASSES_##isa static void dml__conv2d_ring_result_##isa(const dml__conv2d_ring_row *row)  \
    {                                                                                                        \
        dml__conv2d_ring_units_##isa(row, DML__CONV2D_RING_RESULT);                                          \
    }                                                                                                        \
    target_isa DML__PASSES_##isa static void dml__conv2d_ring_gradient_##isa(                                \
        const dml__conv2d_ring_row *row)                                                                     \
    {                                                                                                        \
        dml__conv2d_ring_units_##isa(row, DML__CONV2D_RING_GRADIENT);                                        \
    }                                                                                                        \
    /* Whole units of `count` pixels, `step` apart, into the ring, where they lie `pitch` apart; what lies   \
       `ahead` of them is asked for. */                                                                      \
    target_isa DML__PASSES_##isa static void dml__conv2d_ring_copy_##isa(                                    \
        const float *from, ptrdiff_t step, ptrdiff_t ahead, ptrdiff_t count, ptrdiff_t units, float *to,     \
        ptrdiff_t pitch)                                                                                     \
    {                                                                                                        \
        for (; count > 0; count--, from += step, to += DML__CONV2D_RING_UNIT) {                              \
            const float *at = from;                                                                          \
            float *unit = to;                                                                                \
            for (ptrdiff_t u = units; u > 0; u--, at += DML__CONV2D_RING_UNIT, unit += pitch) {              \
                DML__PREFETCH(at + ahead);                                                                   \
                DML__UNROLL                                                                                  \
                for (int l = 0; l < DML__CONV2D_RING_UNIT; l += lanes)                                       \
                    dml__##isa##_store(unit + l, dml__##isa##_load(at + l));                                 \
            }                                                                                                \
        }                                                                                                    \
    }

#if defined(DML__HAS_AVX2)
DML__DEFINE_RING(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(__aarch64__)
DML__DEFINE_RING(neon, , float32x4_t, 4)
#else
DML__DEFINE_RING(plain, , dml__v4, 4)
#endif

typedef struct dml__conv2d_ring_kernels {
    void (*result)(const dml__conv2d_ring_row *row);
    void (*gradient)(const dml__conv2d_ring_row *row);
    void (*copy)(const float *from, ptrdiff_t step, ptrdiff_t ahead, ptrdiff_t count, ptrdiff_t units,
                 float *to, ptrdiff_t pitch);
} dml__conv2d_ring_kernels;

DML__DRIVERS_BEGIN

static dml__conv2d_ring_kernels dml__conv2d_ring_kernels_of(dml_isa isa)
{
#if defined(__aarch64__)
    const dml__conv2d_ring_kernels base = { dml__conv2d_ring_result_neon, dml__conv2d_ring_gradient_neon,
                                            dml__conv2d_ring_copy_neon };
#else
    const dml__conv2d_ring_kernels base = { dml__conv2d_ring_result_plain, dml__conv2d_ring_gradient_plain,
                                            dml__conv2d_ring_copy_plain };
#endif
#if defined(DML__HAS_AVX2)
    const dml__conv2d_ring_kernels avx2 = { dml__conv2d_ring_result_avx2, dml__conv2d_ring_gradient_avx2,
                                            dml__conv2d_ring_copy_avx2 };
    if (isa >= DML_ISA_AVX2) return avx2;
#endif
    (void)isa;
    return base;
}

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
