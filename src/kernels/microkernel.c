#ifndef DML_KERNELS_MICROKERNEL_C
#define DML_KERNELS_MICROKERNEL_C

#include "kernels/microkernel.h"

#include "base/cpu.h"

#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Each instruction set has one function, written for any number of rows and vectors, and inlined with both
   constant into the cases of a switch. All its loops but the one over p are then unrolled, which puts the
   accumulators into registers. The targets are the functions' own, so that -O2 alone gives full speed; what
   is inlined must have the same target as what it is inlined into. */
#if defined(__clang__)
#define DML__UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DML__UNROLL _Pragma("GCC unroll 16")
#else
#define DML__UNROLL
#endif
#if defined(__GNUC__)
#define DML__INLINE static inline __attribute__((always_inline))
#define DML__TARGET(isa) __attribute__((target(isa)))
#else
#define DML__INLINE static inline
#define DML__TARGET(isa)
#endif

#define DML__TILE_CASE(compute, r)                                                                           \
    case r:                                                                                                  \
        if (vectors == 1)                                                                                    \
            compute(tile, r, 1);                                                                             \
        else                                                                                                 \
            compute(tile, r, 2);                                                                             \
        break;

/* Plain C; four columns make a vector for compilers that can see one. */
DML__INLINE void dml__compute_scalar(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    float sum[4][4] = { { 0 } };
    (void)vectors;
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            DML__UNROLL
            for (int j = 0; j < 4; j++) sum[i][j] += a[i] * b[j];
        }
    }
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < 4; j++) {
            const float old = tile->beta == 0 ? 0 : tile->beta * c[j];
            c[j] = tile->alpha * sum[i][j] + old;
        }
    }
}

static void dml__run_scalar(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_scalar, 1)
        DML__TILE_CASE(dml__compute_scalar, 2)
        DML__TILE_CASE(dml__compute_scalar, 3)
        DML__TILE_CASE(dml__compute_scalar, 4)
    }
}

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one broadcast of A: 15 of 16 registers. */
DML__TARGET("avx2,fma")
DML__INLINE void dml__compute_avx2(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    __m256 sum[6][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_setzero_ps();
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = _mm256_loadu_ps(b + 8 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            const __m256 value = _mm256_broadcast_ss(a + i);
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_fmadd_ps(value, row[j], sum[i][j]);
        }
    }
    const __m256 alpha = _mm256_set1_ps(tile->alpha), beta = _mm256_set1_ps(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            __m256 result = _mm256_mul_ps(alpha, sum[i][j]);
            if (tile->beta != 0) result = _mm256_fmadd_ps(beta, _mm256_loadu_ps(c + 8 * j), result);
            _mm256_storeu_ps(c + 8 * j, result);
        }
    }
}

DML__TARGET("avx2,fma") static void dml__run_avx2(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_avx2, 1)
        DML__TILE_CASE(dml__compute_avx2, 2)
        DML__TILE_CASE(dml__compute_avx2, 3)
        DML__TILE_CASE(dml__compute_avx2, 4)
        DML__TILE_CASE(dml__compute_avx2, 5)
        DML__TILE_CASE(dml__compute_avx2, 6)
    }
}

#endif
#if defined(DML__HAS_AVX512)

#define DML__AVX512 "avx512f,avx512vl,avx512bw,avx512dq"

/* 14 x 2 accumulators, 2 vectors of B and one broadcast of A: 31 of 32 registers. */
DML__TARGET(DML__AVX512)
DML__INLINE void dml__compute_avx512(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    __m512 sum[14][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_setzero_ps();
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = _mm512_loadu_ps(b + 16 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            const __m512 value = _mm512_set1_ps(a[i]);
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_fmadd_ps(value, row[j], sum[i][j]);
        }
    }
    const __m512 alpha = _mm512_set1_ps(tile->alpha), beta = _mm512_set1_ps(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            __m512 result = _mm512_mul_ps(alpha, sum[i][j]);
            if (tile->beta != 0) result = _mm512_fmadd_ps(beta, _mm512_loadu_ps(c + 16 * j), result);
            _mm512_storeu_ps(c + 16 * j, result);
        }
    }
}

DML__TARGET(DML__AVX512) static void dml__run_avx512(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_avx512, 1)
        DML__TILE_CASE(dml__compute_avx512, 2)
        DML__TILE_CASE(dml__compute_avx512, 3)
        DML__TILE_CASE(dml__compute_avx512, 4)
        DML__TILE_CASE(dml__compute_avx512, 5)
        DML__TILE_CASE(dml__compute_avx512, 6)
        DML__TILE_CASE(dml__compute_avx512, 7)
        DML__TILE_CASE(dml__compute_avx512, 8)
        DML__TILE_CASE(dml__compute_avx512, 9)
        DML__TILE_CASE(dml__compute_avx512, 10)
        DML__TILE_CASE(dml__compute_avx512, 11)
        DML__TILE_CASE(dml__compute_avx512, 12)
        DML__TILE_CASE(dml__compute_avx512, 13)
        DML__TILE_CASE(dml__compute_avx512, 14)
    }
}

#endif
#if defined(__aarch64__)

/* 12 x 2 accumulators, 2 vectors of B and 3 of A: 29 of 32 registers. */
DML__INLINE void dml__compute_neon(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    float32x4_t sum[12][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = vdupq_n_f32(0);
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = vld1q_f32(b + 4 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = vfmaq_n_f32(sum[i][j], row[j], a[i]);
        }
    }
    const float32x4_t alpha = vdupq_n_f32(tile->alpha), beta = vdupq_n_f32(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            float32x4_t result = vmulq_f32(alpha, sum[i][j]);
            if (tile->beta != 0) result = vfmaq_f32(result, beta, vld1q_f32(c + 4 * j));
            vst1q_f32(c + 4 * j, result);
        }
    }
}

static void dml__run_neon(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_neon, 1)
        DML__TILE_CASE(dml__compute_neon, 2)
        DML__TILE_CASE(dml__compute_neon, 3)
        DML__TILE_CASE(dml__compute_neon, 4)
        DML__TILE_CASE(dml__compute_neon, 5)
        DML__TILE_CASE(dml__compute_neon, 6)
        DML__TILE_CASE(dml__compute_neon, 7)
        DML__TILE_CASE(dml__compute_neon, 8)
        DML__TILE_CASE(dml__compute_neon, 9)
        DML__TILE_CASE(dml__compute_neon, 10)
        DML__TILE_CASE(dml__compute_neon, 11)
        DML__TILE_CASE(dml__compute_neon, 12)
    }
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_get(void)
{
    static const dml__microkernel scalar = { 4, 1, 4, dml__run_scalar };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = { 14, 2, 16, dml__run_avx512 };
    if (dml_cpu_isa() == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2 };
    if (dml_cpu_isa() == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 12, 2, 4, dml__run_neon };
    if (dml_cpu_isa() == DML_ISA_NEON) return &neon;
#endif
    return &scalar;
}

#endif
