/* isa_vectors.h: the vectors of each instruction set under one set of names: dml__<isa>_load, _store, _splat,
   _multiply, _add, _fma (a * b + c), _relu (which keeps a NaN), _sums (of the lanes of four vectors), and
   with masks _load_some and _store_some (of lanes 0, 1, ... where bits 0, 1, ... are set), for loops that are
   written once as a macro and compiled for each; where there are no masks, all lanes are loaded and stored.
   Their targets are their own, so that -O2 alone gives full speed; what is inlined must have the same target
   as what it is inlined into. (vector.h is for kernels that wait for memory.) */
#ifndef DML_KERNELS_ISA_VECTORS_H
#define DML_KERNELS_ISA_VECTORS_H

#include "base/cpu.h"
#include "base/simd.h"

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define DML__UNROLL _Pragma("clang loop unroll(full)")
#else
#define DML__UNROLL _Pragma("GCC unroll 16")
#endif

/* A loop that gcc lets begin anywhere in a cache line is up to a fifth slower where two threads share a core;
   and it reads ahead into more registers than there are, unless it is kept from moving loads. */
#if defined(__GNUC__) && !defined(__clang__)
#define DML__ALIGNED_LOOPS __attribute__((optimize("align-loops=64")))
#define DML__IN_ORDER(index) __asm__ volatile("" : "+r"(index) : : "memory")
#else
#define DML__ALIGNED_LOOPS
#define DML__IN_ORDER(index) (void)0
#endif
/* The plain copies are for x86 processors without AVX2, and elsewhere for all. */
#if defined(DML__HAS_AVX2)
#define DML__PASSES_plain DML__COLD
#else
#define DML__PASSES_plain
#endif
#define DML__PASSES_avx2
#define DML__PASSES_avx512
#define DML__PASSES_pairs
#define DML__PASSES_neon

/* --- plain C: four lanes of whatever the compiler has --- */

#define dml__plain_load_some(from, mask) ((void)(mask), dml__plain_load(from))
#define dml__plain_stream(to, value) dml__plain_store(to, value)
#define dml__plain_store_some(to, mask, value) ((void)(mask), dml__plain_store(to, value))

DML__INLINE dml__v4 dml__plain_splat(float x)
{
    const dml__v4 value = { x, x, x, x };
    return value;
}

DML__INLINE dml__v4 dml__plain_multiply(dml__v4 a, dml__v4 b)
{
    return a * b;
}

DML__INLINE dml__v4 dml__plain_add(dml__v4 a, dml__v4 b)
{
    return a + b;
}

DML__INLINE dml__v4 dml__plain_fma(dml__v4 a, dml__v4 b, dml__v4 c)
{
    return a * b + c;
}

DML__INLINE dml__v4 dml__plain_relu(dml__v4 a)
{
    return (dml__v4)((dml__v4_mask)a & ~(a <= 0.0f)); /* keeps a NaN */
}

DML__INLINE void dml__plain_sums(dml__v4 a, dml__v4 b, dml__v4 c, dml__v4 d, float sums[4])
{
    sums[0] = (a[0] + a[2]) + (a[1] + a[3]);
    sums[1] = (b[0] + b[2]) + (b[1] + b[3]);
    sums[2] = (c[0] + c[2]) + (c[1] + c[3]);
    sums[3] = (d[0] + d[2]) + (d[1] + d[3]);
}

#if defined(DML__HAS_AVX2)

/* --- AVX2 with FMA --- */

#define DML__AVX2 DML__TARGET("avx2,fma")
#define dml__avx2_load(from) _mm256_loadu_ps(from)
#define dml__avx2_load_some(from, mask) ((void)(mask), _mm256_loadu_ps(from))
#define dml__avx2_store_some(to, mask, value) ((void)(mask), _mm256_storeu_ps(to, value))
#define dml__avx2_store(to, value) _mm256_storeu_ps(to, value)
#define dml__avx2_stream(to, value) _mm256_stream_ps(to, value)
#define dml__avx2_splat(x) _mm256_set1_ps(x)
#define dml__avx2_multiply(a, b) _mm256_mul_ps(a, b)
#define dml__avx2_add(a, b) _mm256_add_ps(a, b)
/* Of the intrinsic gcc 12 makes the forms that overwrite a factor too, and then runs out of registers: a loop
   that spills one of its sums is 6 % slower. Its operands stand for either syntax (-masm=intel). */
#if defined(__GNUC__) && !defined(__clang__) && !defined(DML__EMULATED)
DML__AVX2 DML__INLINE __m256 dml__avx2_fma(__m256 a, __m256 b, __m256 c)
{
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c) : "x"(a), "x"(b));
    return c;
}
#else
#define dml__avx2_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#endif

DML__AVX2 DML__INLINE __m256 dml__avx2_relu(__m256 a)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LE_OQ), a); /* keeps a NaN */
}

DML__AVX2 DML__INLINE void dml__avx2_sums(__m256 a, __m256 b, __m256 c, __m256 d, float sums[4])
{
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

#endif
#if defined(DML__HAS_AVX512)

/* --- AVX-512 --- */

#define DML__AVX512 DML__TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#define dml__avx512_load(from) _mm512_loadu_ps(from)
#define dml__avx512_load_some(from, mask) _mm512_maskz_loadu_ps((__mmask16)(mask), from)
#define dml__avx512_store_some(to, mask, value) _mm512_mask_storeu_ps(to, (__mmask16)(mask), value)
#define dml__avx512_store(to, value) _mm512_storeu_ps(to, value)
#define dml__avx512_stream(to, value) _mm512_stream_ps(to, value)
#define dml__avx512_splat(x) _mm512_set1_ps(x)
#define dml__avx512_multiply(a, b) _mm512_mul_ps(a, b)
#define dml__avx512_add(a, b) _mm512_add_ps(a, b)
#define dml__avx512_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
/* Keeps a NaN. */
#define dml__avx512_relu(a) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NLE_UQ), a)

/* gcc lets what is used twice be loaded twice. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(DML__EMULATED)
#define DML__IN_REGISTER(vector) __asm__("" : "+v"(vector))
#else
#define DML__IN_REGISTER(vector) (void)0
#endif

/* The two halves added. */
DML__AVX512 DML__INLINE __m256 dml__avx512_fold(__m512 a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}

DML__AVX512 DML__INLINE void dml__avx512_sums(__m512 a, __m512 b, __m512 c, __m512 d, float sums[4])
{
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = dml__avx512_fold(all);
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

#endif
#if defined(__aarch64__)

/* --- NEON --- */

#define dml__neon_load(from) vld1q_f32(from)
#define dml__neon_load_some(from, mask) ((void)(mask), vld1q_f32(from))
#define dml__neon_store_some(to, mask, value) ((void)(mask), vst1q_f32(to, value))
#define dml__neon_store(to, value) vst1q_f32(to, value)
#define dml__neon_stream(to, value) vst1q_f32(to, value)
#define dml__neon_splat(x) vdupq_n_f32(x)
#define dml__neon_multiply(a, b) vmulq_f32(a, b)
#define dml__neon_add(a, b) vaddq_f32(a, b)
#define dml__neon_fma(a, b, c) vfmaq_f32(c, a, b)

DML__INLINE float32x4_t dml__neon_relu(float32x4_t a)
{
    const uint32x4_t positive_or_nan = vmvnq_u32(vcleq_f32(a, vdupq_n_f32(0)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), positive_or_nan));
}

DML__INLINE void dml__neon_sums(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float sums[4])
{
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

#endif

#endif
