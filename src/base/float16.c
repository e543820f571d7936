#ifndef DML_BASE_FLOAT16_C
#define DML_BASE_FLOAT16_C

#include "base/float16.h"

#include "base/simd.h"

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Four at a time, in the vectors that every processor has: a pass over memory waits for that anyway. No
   branches, so that a NaN takes no longer than a number; and on the bits, so that no option of the compiler
   makes sums of what must be rounded. */

/* The bits of an f32 without its sign, and the sign. */
#define DML__HALF_SIGN 0x80000000u
#define DML__HALF_INFINITY 0x7F800000u

DML__INLINE dml__v4_bits dml__half_splat(uint32_t x)
{
    const dml__v4_bits all = { x, x, x, x };
    return all;
}

/* Where the mask is all ones `a`, where it is zero `b`. */
DML__INLINE dml__v4_bits dml__half_choose(dml__v4_mask mask, dml__v4_bits a, dml__v4_bits b)
{
    return ((dml__v4_bits)mask & a) | (~(dml__v4_bits)mask & b);
}

/* To nearest, of two as near to the even one, in the bits above the lowest `bits`, which stay. */
DML__INLINE dml__v4_bits dml__half_nearest(dml__v4_bits x, int bits)
{
    return x + dml__half_splat((1u << (bits - 1)) - 1) + ((x >> bits) & dml__half_splat(1));
}

/* bf16 in the upper halves, with rubbish in the lower ones. */
DML__INLINE dml__v4_bits dml__bf16_bits(dml__v4_bits x)
{
    const dml__v4_mask nan = (dml__v4_mask)(x & ~dml__half_splat(DML__HALF_SIGN)) >
                             (dml__v4_mask)dml__half_splat(DML__HALF_INFINITY);
    return dml__half_choose(nan, x | dml__half_splat(0x400000u), dml__half_nearest(x, 16));
}

/* f16 in the lower halves, with the sign at the top of the word as well. */
DML__INLINE dml__v4_bits dml__f16_bits(dml__v4_bits x)
{
    const dml__v4_bits sign = x & dml__half_splat(DML__HALF_SIGN), size = x ^ sign,
                       half = dml__half_splat(0x3F000000u);
    /* 2^-24 is the last bit of what is from 0.5 to 1. */
    const dml__v4_bits small = (dml__v4_bits)((dml__v4)size + (dml__v4)half) - half;
    const dml__v4_bits normal = (dml__half_nearest(size, 13) >> 13) - dml__half_splat(112u << 10);
    const dml__v4_bits nan = dml__half_splat(0x7E00u) | ((size >> 13) & dml__half_splat(0x3FFu));
    dml__v4_bits out =
        dml__half_choose((dml__v4_mask)size < (dml__v4_mask)dml__half_splat(0x38800000u), small, normal);
    out = dml__half_choose((dml__v4_mask)out > (dml__v4_mask)dml__half_splat(0x7BFFu),
                           dml__half_splat(0x7C00u), out);
    out = dml__half_choose((dml__v4_mask)size > (dml__v4_mask)dml__half_splat(DML__HALF_INFINITY), nan, out);
    return out | sign | (sign >> 16);
}

/* The f32 of f16 in the lower halves; what is above doesn't count. */
DML__INLINE dml__v4_bits dml__f16_widened(dml__v4_bits x)
{
    const dml__v4_bits size = x & dml__half_splat(0x7FFFu), sign = (x & dml__half_splat(0x8000u)) << 16;
    const dml__v4_bits half = dml__half_splat(0x3F000000u), shifted = size << 13;
    const dml__v4_bits small = (dml__v4_bits)((dml__v4)(size | half) - (dml__v4)half);
    /* A NaN that signals is quiet from here on, as by the instruction for it. */
    const dml__v4_bits quiet = (dml__v4_bits)((dml__v4_mask)size > (dml__v4_mask)dml__half_splat(0x7C00u)) &
                               dml__half_splat(0x400000u);
    const dml__v4_bits infinite = (shifted + dml__half_splat(224u << 23)) | quiet;
    dml__v4_bits out = shifted + dml__half_splat(112u << 23);
    out = dml__half_choose((dml__v4_mask)size < (dml__v4_mask)dml__half_splat(0x400u), small, out);
    out = dml__half_choose((dml__v4_mask)size >= (dml__v4_mask)dml__half_splat(0x7C00u), infinite, out);
    return out | sign;
}

/* The upper or the lower halves of eight words. */
DML__INLINE void dml__half_store(dml__v4_bits a, dml__v4_bits b, bool upper, uint16_t *to)
{
#if defined(__SSE2__)
    __m128i low = (__m128i)a, high = (__m128i)b;
    if (!upper) low = _mm_slli_epi32(low, 16), high = _mm_slli_epi32(high, 16);
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm_packs_epi32(_mm_srai_epi32(low, 16), _mm_srai_epi32(high, 16)));
#else
    for (int i = 0; i < 4; i++) {
        to[i] = (uint16_t)(upper ? a[i] >> 16 : a[i]);
        to[4 + i] = (uint16_t)(upper ? b[i] >> 16 : b[i]);
    }
#endif
}

/* Four of them as the upper or the lower halves of words. */
DML__INLINE dml__v4_bits dml__half_load(const uint16_t *from, bool upper)
{
#if defined(__SSE2__)
    const __m128i four = _mm_loadl_epi64((const __m128i *)(const void *)from), zero = _mm_setzero_si128();
    return (dml__v4_bits)(upper ? _mm_unpacklo_epi16(zero, four) : _mm_unpacklo_epi16(four, zero));
#else
    const dml__v4_bits four = { from[0], from[1], from[2], from[3] };
    return upper ? four << 16 : four;
#endif
}

DML__INLINE dml__v4_bits dml__half_bits(bool bf16, dml__v4_bits x)
{
    return bf16 ? dml__bf16_bits(x) : dml__f16_bits(x);
}

DML__INLINE void dml__narrow_eights(bool bf16, size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8) {
        const dml__v4_bits low = (dml__v4_bits)dml__plain_load(x + i),
                           high = (dml__v4_bits)dml__plain_load(x + i + 4);
        dml__half_store(dml__half_bits(bf16, low), dml__half_bits(bf16, high), bf16, y + i);
    }
}

DML__INLINE void dml__widen_fours(bool bf16, size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i += 4) {
        const dml__v4_bits four = dml__half_load(x + i, bf16);
        dml__plain_store(y + i, (dml__v4)(bf16 ? four : dml__f16_widened(four)));
    }
}

DML__INLINE void dml__round_fours(bool bf16, size_t n, float *x)
{
    for (size_t i = 0; i < n; i += 4) {
        const dml__v4_bits bits = dml__half_bits(bf16, (dml__v4_bits)dml__plain_load(x + i));
        dml__plain_store(x + i,
                         (dml__v4)(bf16 ? bits & dml__half_splat(0xFFFF0000u) : dml__f16_widened(bits)));
    }
}

#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)

/* By AVX2, and by the instructions for f16 that every processor with AVX2 has. */
#define DML__F16C DML__TARGET("avx2,fma,f16c")
#define DML__HAS_F16C 1

DML__F16C static void dml__narrow_f16c(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
}

DML__F16C static void dml__widen_f16c(size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
}

DML__F16C static void dml__round_f16c(size_t n, float *x)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0)));
}

/* The upper halves are what bf16 rounds to; the lower ones are left over. */
DML__F16C DML__INLINE __m256i dml__bf16_bits_avx2(const float *x)
{
    const __m256i size = _mm256_set1_epi32(0x7FFFFFFF), infinity = _mm256_set1_epi32(0x7F800000);
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, size), infinity);
    return _mm256_blendv_epi8(nearest, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
}

DML__F16C static void dml__round_bf16_avx2(size_t n, float *x)
{
    const __m256i upper = _mm256_set1_epi32((int)0xFFFF0000u);
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_si256((__m256i *)(void *)(x + i), _mm256_and_si256(dml__bf16_bits_avx2(x + i), upper));
}

DML__F16C static void dml__narrow_bf16_avx2(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m256i upper = _mm256_srli_epi32(dml__bf16_bits_avx2(x + i), 16);
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)));
    }
}

DML__F16C static void dml__widen_bf16_avx2(size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        _mm256_storeu_si256((__m256i *)(void *)(y + i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
    }
}

#endif

static void dml__narrow_whole(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
#if defined(DML__HAS_F16C)
    if (isa >= DML_ISA_AVX2) {
        if (dtype == DML_BF16)
            dml__narrow_bf16_avx2(n, x, y);
        else
            dml__narrow_f16c(n, x, y);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__narrow_eights(true, n, x, y);
    else
        dml__narrow_eights(false, n, x, y);
}

static void dml__widen_whole(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y)
{
#if defined(DML__HAS_F16C)
    if (isa >= DML_ISA_AVX2) {
        if (dtype == DML_BF16)
            dml__widen_bf16_avx2(n, x, y);
        else
            dml__widen_f16c(n, x, y);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__widen_fours(true, n, x, y);
    else
        dml__widen_fours(false, n, x, y);
}

static void dml__round_whole(dml_isa isa, dml_dtype dtype, size_t n, float *x)
{
#if defined(DML__HAS_F16C)
    if (isa >= DML_ISA_AVX2) {
        if (dtype == DML_BF16)
            dml__round_bf16_avx2(n, x);
        else
            dml__round_f16c(n, x);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__round_fours(true, n, x);
    else
        dml__round_fours(false, n, x);
}

/* A rest goes through padded vectors. */
DML__LOCAL void dml__narrow_line(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    float wide[8] = { 0 };
    uint16_t narrow[8];
    dml__narrow_whole(isa, dtype, whole, x, y);
    if (!rest) return;
    memcpy(wide, x + whole, rest * sizeof *wide);
    dml__narrow_whole(isa, dtype, 8, wide, narrow);
    memcpy(y + whole, narrow, rest * sizeof *narrow);
}

DML__LOCAL void dml__widen_line(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    uint16_t narrow[8] = { 0 };
    float wide[8];
    dml__widen_whole(isa, dtype, whole, x, y);
    if (!rest) return;
    memcpy(narrow, x + whole, rest * sizeof *narrow);
    dml__widen_whole(isa, dtype, 8, narrow, wide);
    memcpy(y + whole, wide, rest * sizeof *wide);
}

DML__LOCAL void dml__round_line(dml_isa isa, dml_dtype dtype, size_t n, float *x)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    float wide[8] = { 0 };
    dml__round_whole(isa, dtype, whole, x);
    if (!rest) return;
    memcpy(wide, x + whole, rest * sizeof *wide);
    dml__round_whole(isa, dtype, 8, wide);
    memcpy(x + whole, wide, rest * sizeof *wide);
}

DML__LOCAL void dml__pair_line(size_t n, const float *even, const float *odd, float *pairs)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const dml__v4_bits low = dml__bf16_bits((dml__v4_bits)dml__plain_load(even + i));
        const dml__v4_bits high = dml__bf16_bits((dml__v4_bits)dml__plain_load(odd + i));
        dml__plain_store(pairs + i, (dml__v4)(low >> 16 | (high & dml__half_splat(0xFFFF0000u))));
    }
    for (; i < n; i++) {
        uint16_t two[2];
        dml__narrow_line(DML_ISA_SCALAR, DML_BF16, 1, even + i, &two[0]);
        dml__narrow_line(DML_ISA_SCALAR, DML_BF16, 1, odd + i, &two[1]);
        const uint32_t pair = (uint32_t)two[1] << 16 | two[0];
        memcpy(&pairs[i], &pair, sizeof pair);
    }
}

#endif
