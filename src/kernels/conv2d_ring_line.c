#ifndef DML_KERNELS_CONV2D_RING_LINE_C
#define DML_KERNELS_CONV2D_RING_LINE_C

#include "kernels/conv2d_ring_line.h"

#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"

#include <string.h>

#define DML__CONV2D_RING_FEW 4 /* for what is left of a line */

/* Some pixels of some of a unit's vectors: where they lie, `pixel` floats apart, and how many there are. */
typedef struct dml__conv2d_ring_part {
    ptrdiff_t source, weights; /* behind those of the taps */
    float *target;
    ptrdiff_t pixel, count;
    const float *bias;
} dml__conv2d_ring_part;

DML__LOCAL void dml__conv2d_ring_move(const float *from, ptrdiff_t from_pixel, ptrdiff_t pixels,
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

DML__DRIVERS_BEGIN

DML__LOCAL dml__conv2d_ring_kernels dml__conv2d_ring_kernels_of(dml_isa isa)
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

DML__DRIVERS_END

#endif
