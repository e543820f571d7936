#ifndef DML_KERNELS_BATCH_REDUCE_C
#define DML_KERNELS_BATCH_REDUCE_C

#include "kernels/batch_reduce.h"

#include "base/cpu.h"

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* One body, written over a vector type and a few functions on it (dml__<isa>_load, ...), makes the kernel of
   each instruction set. It is inlined with the numbers of rows and vectors constant into the cases of a
   switch: all its loops but those over the blocks and over p are then unrolled, which puts the accumulators
   into registers. The targets are the functions' own, so that -O2 alone gives full speed; what is inlined
   must have the same target as what it is inlined into. */
#if defined(__clang__)
#define DML__N_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DML__N_UNROLL _Pragma("GCC unroll 16")
#endif
#define DML__N_INLINE static inline __attribute__((always_inline))
#define DML__N_TARGET(isa) __attribute__((target(isa)))

#define DML__N_EACH(statement)                                                                               \
    {                                                                                                        \
        DML__N_UNROLL                                                                                        \
        for (int i = 0; i < rows; i++) {                                                                     \
            DML__N_UNROLL                                                                                    \
            for (int j = 0; j < vectors; j++) statement;                                                     \
        }                                                                                                    \
    }
#define DML__N_DEFINE_COMPUTE(isa, target, vector, lanes, most_rows)                                         \
    target DML__N_INLINE void dml__n_compute_##isa(const dml__n_tile *tile, const int rows,                  \
                                                   const int vectors)                                        \
    {                                                                                                        \
        vector sum[most_rows][DML__N_TILE_VECTORS], line[DML__N_TILE_VECTORS];                               \
        const float *a[most_rows];                                                                           \
        const ptrdiff_t a_step = tile->a_step, b_step = tile->b_step;                                        \
        DML__N_UNROLL                                                                                        \
        for (int i = 0; i < rows; i++) {                                                                     \
            a[i] = tile->a[i];                                                                               \
            DML__N_UNROLL                                                                                    \
            for (int j = 0; j < vectors; j++) sum[i][j] = dml__n_##isa##_splat(0);                           \
        }                                                                                                    \
        for (int t = 0; t < tile->blocks; t++) {                                                             \
            const float *b = tile->b + tile->b_at[t];                                                        \
            ptrdiff_t at = tile->a_at[t]; /* one index for all rows */                                       \
            for (int p = tile->k; p > 0; p--, at += a_step, b += b_step) {                                   \
                DML__N_UNROLL                                                                                \
                for (int j = 0; j < vectors; j++) line[j] = dml__n_##isa##_load(b + lanes * j);              \
                DML__N_UNROLL                                                                                \
                for (int i = 0; i < rows; i++) {                                                             \
                    const vector value = dml__n_##isa##_splat(a[i][at]);                                     \
                    DML__N_UNROLL                                                                            \
                    for (int j = 0; j < vectors; j++)                                                        \
                        sum[i][j] = dml__n_##isa##_fma(value, line[j], sum[i][j]);                           \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        if (tile->alpha != 1)                                                                                \
            DML__N_EACH(sum[i][j] = dml__n_##isa##_multiply(dml__n_##isa##_splat(tile->alpha), sum[i][j]))   \
        if (tile->beta != 0)                                                                                 \
            DML__N_EACH(sum[i][j] =                                                                          \
                            dml__n_##isa##_fma(dml__n_##isa##_splat(tile->beta),                             \
                                               dml__n_##isa##_load(tile->c[i] + lanes * j), sum[i][j]))      \
        if (tile->bias)                                                                                      \
            DML__N_EACH(sum[i][j] =                                                                          \
                            dml__n_##isa##_add(sum[i][j], dml__n_##isa##_load(tile->bias + lanes * j)))      \
        if (tile->relu) DML__N_EACH(sum[i][j] = dml__n_##isa##_relu(sum[i][j]))                              \
        DML__N_EACH(dml__n_##isa##_store(tile->c[i] + lanes * j, sum[i][j]))                                 \
    }

/* What is computed for a tile of r rows and v vectors; a few rows take more vectors, so that there are enough
   accumulators to hide the latency of the multiply-adds. */
#define DML__N_TILE_CODE(r, v) ((r)*8 + (v))
#define DML__N_TILE_CASE(isa, r, v)                                                                          \
    case DML__N_TILE_CODE(r, v):                                                                             \
        dml__n_compute_##isa(tile, r, v);                                                                    \
        break;
#define DML__N_TILE_CASES(isa, r) DML__N_TILE_CASE(isa, r, 1) DML__N_TILE_CASE(isa, r, 2)
#define DML__N_TILE_THIN_CASES(isa)                                                                          \
    DML__N_TILE_CASE(isa, 1, 3)                                                                              \
    DML__N_TILE_CASE(isa, 1, 4)                                                                              \
    DML__N_TILE_CASE(isa, 2, 3)                                                                              \
    DML__N_TILE_CASE(isa, 2, 4) DML__N_TILE_CASE(isa, 3, 3) DML__N_TILE_CASE(isa, 3, 4)
#define DML__N_THIN_ROWS 3
#define DML__N_THIN_VECTORS 4

/* --- plain C: four lanes of whatever the compiler has --- */

typedef float dml__n_v4 __attribute__((vector_size(16)));

DML__N_INLINE dml__n_v4 dml__n_plain_load(const float *from)
{
    dml__n_v4 value;
    memcpy(&value, from, sizeof value);
    return value;
}

DML__N_INLINE dml__n_v4 dml__n_plain_splat(float x)
{
    const dml__n_v4 value = { x, x, x, x };
    return value;
}

DML__N_INLINE dml__n_v4 dml__n_plain_multiply(dml__n_v4 a, dml__n_v4 b)
{
    return a * b;
}

DML__N_INLINE dml__n_v4 dml__n_plain_add(dml__n_v4 a, dml__n_v4 b)
{
    return a + b;
}

DML__N_INLINE dml__n_v4 dml__n_plain_fma(dml__n_v4 a, dml__n_v4 b, dml__n_v4 c)
{
    return a * b + c;
}

typedef int32_t dml__n_v4_mask __attribute__((vector_size(16)));

DML__N_INLINE dml__n_v4 dml__n_plain_relu(dml__n_v4 a)
{
    return (dml__n_v4)((dml__n_v4_mask)a & ~(a <= 0.0f)); /* keeps a NaN */
}

DML__N_INLINE void dml__n_plain_store(float *to, dml__n_v4 value)
{
    memcpy(to, &value, sizeof value);
}

DML__N_DEFINE_COMPUTE(plain, , dml__n_v4, 4, 4)

static void dml__n_run_plain(const dml__n_tile *tile)
{
    switch (DML__N_TILE_CODE(tile->rows, tile->columns / 4)) {
        DML__N_TILE_CASES(plain, 1)
        DML__N_TILE_CASES(plain, 2)
        DML__N_TILE_CASES(plain, 3)
        DML__N_TILE_CASES(plain, 4)
        DML__N_TILE_THIN_CASES(plain)
    }
}

#if defined(DML__HAS_AVX2)

/* --- AVX2: 6 x 2 accumulators, 2 vectors of B and one of A take 15 of 16 registers --- */

#define DML__N_AVX2 DML__N_TARGET("avx2,fma")
#define dml__n_avx2_load(from) _mm256_loadu_ps(from)
#define dml__n_avx2_store(to, value) _mm256_storeu_ps(to, value)
#define dml__n_avx2_splat(x) _mm256_set1_ps(x)
#define dml__n_avx2_multiply(a, b) _mm256_mul_ps(a, b)
#define dml__n_avx2_add(a, b) _mm256_add_ps(a, b)
#define dml__n_avx2_fma(a, b, c) _mm256_fmadd_ps(a, b, c)

DML__N_AVX2 DML__N_INLINE __m256 dml__n_avx2_relu(__m256 a)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LE_OQ), a); /* keeps a NaN */
}

DML__N_DEFINE_COMPUTE(avx2, DML__N_AVX2, __m256, 8, 6)

DML__N_AVX2 static void dml__n_run_avx2(const dml__n_tile *tile)
{
    switch (DML__N_TILE_CODE(tile->rows, tile->columns / 8)) {
        DML__N_TILE_CASES(avx2, 1)
        DML__N_TILE_CASES(avx2, 2)
        DML__N_TILE_CASES(avx2, 3)
        DML__N_TILE_CASES(avx2, 4)
        DML__N_TILE_CASES(avx2, 5)
        DML__N_TILE_CASES(avx2, 6)
        DML__N_TILE_THIN_CASES(avx2)
    }
}

#endif
#if defined(DML__HAS_AVX512)

/* --- AVX-512: 8 x 2 accumulators; more rows would need more pointers than there are registers --- */

#define DML__N_AVX512 DML__N_TARGET("avx512f,avx512vl,avx512bw,avx512dq")
#define dml__n_avx512_load(from) _mm512_loadu_ps(from)
#define dml__n_avx512_store(to, value) _mm512_storeu_ps(to, value)
#define dml__n_avx512_splat(x) _mm512_set1_ps(x)
#define dml__n_avx512_multiply(a, b) _mm512_mul_ps(a, b)
#define dml__n_avx512_add(a, b) _mm512_add_ps(a, b)
#define dml__n_avx512_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
/* Keeps a NaN. */
#define dml__n_avx512_relu(a) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NLE_UQ), a)

DML__N_DEFINE_COMPUTE(avx512, DML__N_AVX512, __m512, 16, 8)

DML__N_AVX512 static void dml__n_run_avx512(const dml__n_tile *tile)
{
    switch (DML__N_TILE_CODE(tile->rows, tile->columns / 16)) {
        DML__N_TILE_CASES(avx512, 1)
        DML__N_TILE_CASES(avx512, 2)
        DML__N_TILE_CASES(avx512, 3)
        DML__N_TILE_CASES(avx512, 4)
        DML__N_TILE_CASES(avx512, 5)
        DML__N_TILE_CASES(avx512, 6)
        DML__N_TILE_CASES(avx512, 7)
        DML__N_TILE_CASES(avx512, 8)
        DML__N_TILE_THIN_CASES(avx512)
    }
}

#endif
#if defined(__aarch64__)

/* --- NEON: 8 x 2 accumulators --- */

#define dml__n_neon_load(from) vld1q_f32(from)
#define dml__n_neon_store(to, value) vst1q_f32(to, value)
#define dml__n_neon_splat(x) vdupq_n_f32(x)
#define dml__n_neon_multiply(a, b) vmulq_f32(a, b)
#define dml__n_neon_add(a, b) vaddq_f32(a, b)
#define dml__n_neon_fma(a, b, c) vfmaq_f32(c, a, b)

DML__N_INLINE float32x4_t dml__n_neon_relu(float32x4_t a)
{
    const uint32x4_t positive_or_nan = vmvnq_u32(vcleq_f32(a, vdupq_n_f32(0)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), positive_or_nan));
}

DML__N_DEFINE_COMPUTE(neon, , float32x4_t, 4, 8)

static void dml__n_run_neon(const dml__n_tile *tile)
{
    switch (DML__N_TILE_CODE(tile->rows, tile->columns / 4)) {
        DML__N_TILE_CASES(neon, 1)
        DML__N_TILE_CASES(neon, 2)
        DML__N_TILE_CASES(neon, 3)
        DML__N_TILE_CASES(neon, 4)
        DML__N_TILE_CASES(neon, 5)
        DML__N_TILE_CASES(neon, 6)
        DML__N_TILE_CASES(neon, 7)
        DML__N_TILE_CASES(neon, 8)
        DML__N_TILE_THIN_CASES(neon)
    }
}

#endif

DML__LOCAL const dml__n_microkernel *dml__n_microkernel_get(void)
{
    static const dml__n_microkernel plain = {
        4, 2, 4, DML__N_THIN_ROWS, DML__N_THIN_VECTORS, dml__n_run_plain
    };
#if defined(DML__HAS_AVX512)
    static const dml__n_microkernel avx512 = {
        8, 2, 16, DML__N_THIN_ROWS, DML__N_THIN_VECTORS, dml__n_run_avx512
    };
    if (dml_cpu_isa() == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__n_microkernel avx2 = {
        6, 2, 8, DML__N_THIN_ROWS, DML__N_THIN_VECTORS, dml__n_run_avx2
    };
    if (dml_cpu_isa() == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__n_microkernel neon = {
        8, 2, 4, DML__N_THIN_ROWS, DML__N_THIN_VECTORS, dml__n_run_neon
    };
    if (dml_cpu_isa() == DML_ISA_NEON) return &neon;
#endif
    return &plain;
}

#endif
