/* immintrin.h: the AVX, AVX-512 and AMX intrinsics that the kernels use, in plain C, as Intel's Intrinsics
   Guide describes them. The variant `emulated` compiles with it in place of the compiler's, so that the code
   for processors with these instructions runs on every machine. */
#ifndef DML_TESTS_EMULATED_IMMINTRIN_H
#define DML_TESTS_EMULATED_IMMINTRIN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <emmintrin.h>

typedef float emulated__256 __attribute__((vector_size(32)));
typedef float emulated__512 __attribute__((vector_size(64)));
typedef int32_t emulated__256i __attribute__((vector_size(32)));
typedef int32_t emulated__512i __attribute__((vector_size(64)));
#define __m256 emulated__256
#define __m512 emulated__512
#define __m512bh emulated__512
#define __m512i emulated__512i
#define __m256i emulated__256i
#define __mmask16 uint16_t
#define __mmask32 uint32_t

#define EMULATED static inline __attribute__((always_inline, unused))

#define EMULATED_VECTOR(prefix, vector, integers, lanes)                                                     \
    EMULATED vector prefix##_loadu_ps(const void *from)                                                      \
    {                                                                                                        \
        vector value;                                                                                        \
        memcpy(&value, from, sizeof value);                                                                  \
        return value;                                                                                        \
    }                                                                                                        \
    EMULATED void prefix##_storeu_ps(void *to, vector value)                                                 \
    {                                                                                                        \
        memcpy(to, &value, sizeof value);                                                                    \
    }                                                                                                        \
    EMULATED void prefix##_stream_ps(void *to, vector value)                                                 \
    {                                                                                                        \
        memcpy(to, &value, sizeof value);                                                                    \
    }                                                                                                        \
    EMULATED vector prefix##_set1_ps(float x)                                                                \
    {                                                                                                        \
        vector value;                                                                                        \
        for (int i = 0; i < lanes; i++) value[i] = x;                                                        \
        return value;                                                                                        \
    }                                                                                                        \
    EMULATED vector prefix##_setzero_ps(void)                                                                \
    {                                                                                                        \
        return prefix##_set1_ps(0);                                                                          \
    }                                                                                                        \
    EMULATED vector prefix##_mul_ps(vector a, vector b)                                                      \
    {                                                                                                        \
        return a * b;                                                                                        \
    }                                                                                                        \
    EMULATED vector prefix##_add_ps(vector a, vector b)                                                      \
    {                                                                                                        \
        return a + b;                                                                                        \
    }                                                                                                        \
    EMULATED vector prefix##_fmadd_ps(vector a, vector b, vector c)                                          \
    {                                                                                                        \
        for (int i = 0; i < lanes; i++) c[i] = fmaf(a[i], b[i], c[i]);                                       \
        return c;                                                                                            \
    }
EMULATED_VECTOR(_mm256, __m256, emulated__256i, 8)
EMULATED_VECTOR(_mm512, __m512, emulated__512i, 16)

EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *from)
{
    __m512 value = _mm512_setzero_ps();
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) value[i] = ((const float *)from)[i];
    return value;
}

EMULATED void _mm512_mask_storeu_ps(void *to, __mmask16 mask, __m512 value)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) ((float *)to)[i] = value[i];
}

/* --- AVX --- */

#define _CMP_LE_OQ 0x12
#define _CMP_NLE_UQ 0x16
#define _CMP_GT_OQ 0x1e
#define _CMP_UNORD_Q 0x03

EMULATED __m256 _mm256_cmp_ps(__m256 a, __m256 b, int how)
{
    const emulated__256i mask = how == _CMP_LE_OQ ? (emulated__256i)(a <= b) : ~(emulated__256i)(a <= b);
    return (__m256)mask;
}

EMULATED __m256 _mm256_and_ps(__m256 a, __m256 b)
{
    return (__m256)((emulated__256i)a & (emulated__256i)b);
}

EMULATED __m256 _mm256_andnot_ps(__m256 a, __m256 b)
{
    return (__m256)(~(emulated__256i)a & (emulated__256i)b);
}

EMULATED __m256 _mm256_hadd_ps(__m256 a, __m256 b)
{
    const __m256 sums = { a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3],
                          a[4] + a[5], a[6] + a[7], b[4] + b[5], b[6] + b[7] };
    return sums;
}

EMULATED __m128 _mm256_castps256_ps128(__m256 a)
{
    const __m128 low = { a[0], a[1], a[2], a[3] };
    return low;
}

EMULATED __m128 _mm256_extractf128_ps(__m256 a, int half)
{
    const __m128 part = { a[4 * half], a[4 * half + 1], a[4 * half + 2], a[4 * half + 3] };
    return part;
}

/* --- AVX-512 --- */

EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    __mmask16 mask = 0;
    for (int i = 0; i < 16; i++)
        if (how == _CMP_UNORD_Q ? a[i] != a[i] || b[i] != b[i]
            : how == _CMP_GT_OQ ? a[i] > b[i]
                                : (a[i] <= b[i]) == (how == _CMP_LE_OQ))
            mask = (__mmask16)(mask | 1u << i);
    return mask;
}

EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a)
{
    for (int i = 0; i < 16; i++)
        if (!(mask >> i & 1)) a[i] = 0;
    return a;
}

EMULATED __mmask16 _mm512_movepi32_mask(__m512i a)
{
    __mmask16 mask = 0;
    for (int i = 0; i < 16; i++)
        if (a[i] < 0) mask = (__mmask16)(mask | 1u << i);
    return mask;
}

EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) a[i] = b[i];
    return a;
}

EMULATED __m512 _mm512_mask_add_ps(__m512 others, __mmask16 mask, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(mask, others, a + b);
}

EMULATED __m512 _mm512_mask_mul_ps(__m512 others, __mmask16 mask, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(mask, others, a * b);
}

/* The second where one is a NaN. */
EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}

EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}

EMULATED __m512 _mm512_permutex2var_ps(__m512 a, __m512i which, __m512 b)
{
    __m512 value;
    for (int i = 0; i < 16; i++) value[i] = which[i] & 16 ? b[which[i] & 15] : a[which[i] & 15];
    return value;
}

/* a 2^floor(b) */
EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 b)
{
    for (int i = 0; i < 16; i++) {
        const float power = floorf(b[i]);
        a[i] = power != power ? power : ldexpf(a[i], power < -999 ? -999 : power > 999 ? 999 : (int)power);
    }
    return a;
}

#define _MM_MANT_NORM_1_2 0
#define _MM_MANT_SIGN_nan 2

EMULATED __m512 _mm512_getexp_ps(__m512 a)
{
    for (int i = 0; i < 16; i++) a[i] = logbf(a[i]);
    return a;
}

/* 1 to 2; 1 for 0 and infinity. */
EMULATED __m512 _mm512_getmant_ps(__m512 a, int interval, int sign)
{
    if (interval != _MM_MANT_NORM_1_2 || sign != _MM_MANT_SIGN_nan) __builtin_trap();
    for (int i = 0; i < 16; i++) {
        int exponent;
        if (a[i] < 0)
            a[i] = NAN;
        else if (a[i] == 0 || isinf(a[i]))
            a[i] = a[i] == 0 && signbit(a[i]) ? -1.0f : 1.0f;
        else
            a[i] = 2 * frexpf(a[i], &exponent);
    }
    return a;
}

/* --- bf16: pairs in the halves of 32 bits; denormals count as 0 --- */

EMULATED float emulated__bf16(uint32_t half)
{
    float x;
    half <<= 16;
    memcpy(&x, &half, sizeof x);
    return fabsf(x) < 1.17549435e-38f ? 0 : x;
}

EMULATED float emulated__add_pair(float sum, const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    /* the upper half first */
    sum = fmaf(emulated__bf16(x >> 16), emulated__bf16(y >> 16), sum);
    return fmaf(emulated__bf16(x & 0xFFFF), emulated__bf16(y & 0xFFFF), sum);
}

EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    float x[16], y[16];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 16; i++) sum[i] = emulated__add_pair(sum[i], &x[i], &y[i]);
    return sum;
}

/* --- AMX: eight tiles, whose shapes a configuration of 64 bytes sets --- */

typedef struct emulated__tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} emulated__tile_config;

static __thread __attribute__((unused)) struct {
    emulated__tile_config config;
    uint8_t bytes[8][16][64];
} emulated__tiles;

EMULATED void _tile_loadconfig(const void *config)
{
    memset(&emulated__tiles, 0, sizeof emulated__tiles);
    memcpy(&emulated__tiles.config, config, sizeof emulated__tiles.config);
    /* the processor refuses others by an exception */
    if (emulated__tiles.config.palette != 1) __builtin_trap();
    for (int t = 0; t < 16; t++)
        if (emulated__tiles.config.row_bytes[t] > 64 || emulated__tiles.config.rows[t] > 16 ||
            (t >= 8 && (emulated__tiles.config.row_bytes[t] || emulated__tiles.config.rows[t])))
            __builtin_trap();
}

EMULATED void _tile_release(void)
{
    memset(&emulated__tiles, 0, sizeof emulated__tiles);
}

EMULATED void emulated__check_tile(int t)
{
    if (emulated__tiles.config.palette != 1 || !emulated__tiles.config.rows[t]) __builtin_trap();
}

EMULATED void _tile_zero(int t)
{
    emulated__check_tile(t);
    memset(emulated__tiles.bytes[t], 0, sizeof emulated__tiles.bytes[t]);
}

EMULATED void _tile_loadd(int t, const void *from, long stride)
{
    emulated__check_tile(t);
    for (int r = 0; r < emulated__tiles.config.rows[t]; r++)
        memcpy(emulated__tiles.bytes[t][r], (const char *)from + r * stride,
               emulated__tiles.config.row_bytes[t]);
}

EMULATED void _tile_stored(int t, void *to, long stride)
{
    emulated__check_tile(t);
    for (int r = 0; r < emulated__tiles.config.rows[t]; r++)
        memcpy((char *)to + r * stride, emulated__tiles.bytes[t][r], emulated__tiles.config.row_bytes[t]);
}

/* sum (M, N) += a (M, K pairs) b (K pairs, N) */
EMULATED void _tile_dpbf16ps(int sum, int a, int b)
{
    emulated__check_tile(sum), emulated__check_tile(a), emulated__check_tile(b);
    if (a == b || sum == a || sum == b) __builtin_trap();
    for (int m = 0; m < emulated__tiles.config.rows[sum]; m++)
        for (int k = 0; k < emulated__tiles.config.row_bytes[a] / 4; k++)
            for (int n = 0; n < emulated__tiles.config.row_bytes[sum] / 4; n++) {
                float value;
                memcpy(&value, &emulated__tiles.bytes[sum][m][4 * n], sizeof value);
                value = emulated__add_pair(value, &emulated__tiles.bytes[a][m][4 * k],
                                           &emulated__tiles.bytes[b][k][4 * n]);
                memcpy(&emulated__tiles.bytes[sum][m][4 * n], &value, sizeof value);
            }
}

/* --- packing pairs of bf16 --- */

/* In each quarter of 16 bytes; of the last two of a's and two of b's. */
#define EMULATED_QUARTERS(prefix, vector, lanes)                                                             \
    EMULATED vector prefix##_unpacklo_ps(vector a, vector b)                                                 \
    {                                                                                                        \
        vector value;                                                                                        \
        for (int i = 0; i < lanes; i++) value[i] = (i & 1 ? b : a)[i / 4 * 4 + i % 4 / 2];                   \
        return value;                                                                                        \
    }                                                                                                        \
    EMULATED vector prefix##_unpackhi_ps(vector a, vector b)                                                 \
    {                                                                                                        \
        vector value;                                                                                        \
        for (int i = 0; i < lanes; i++) value[i] = (i & 1 ? b : a)[i / 4 * 4 + 2 + i % 4 / 2];               \
        return value;                                                                                        \
    }                                                                                                        \
    EMULATED vector prefix##_shuffle_ps(vector a, vector b, int which)                                       \
    {                                                                                                        \
        vector value;                                                                                        \
        for (int i = 0; i < lanes; i++) value[i] = (i & 2 ? b : a)[i / 4 * 4 + (which >> i % 4 * 2 & 3)];    \
        return value;                                                                                        \
    }
EMULATED_QUARTERS(_mm256, __m256, 8)
EMULATED_QUARTERS(_mm512, __m512, 16)

EMULATED __m256 _mm256_castps128_ps256(__m128 a)
{
    __m256 value = _mm256_setzero_ps();
    memcpy(&value, &a, sizeof a);
    return value;
}

EMULATED __m256 _mm256_insertf128_ps(__m256 a, __m128 b, int half)
{
    for (int i = 0; i < 4; i++) a[half * 4 + i] = b[i];
    return a;
}

EMULATED __m512 _mm512_castps128_ps512(__m128 a)
{
    __m512 value = _mm512_setzero_ps();
    memcpy(&value, &a, sizeof a);
    return value;
}

EMULATED __m512 _mm512_insertf32x4(__m512 a, __m128 b, int quarter)
{
    for (int i = 0; i < 4; i++) a[quarter * 4 + i] = b[i];
    return a;
}

EMULATED __m256 _mm512_castps512_ps256(__m512 a)
{
    __m256 value;
    memcpy(&value, &a, sizeof value);
    return value;
}

EMULATED __m256 _mm512_extractf32x8_ps(__m512 a, int half)
{
    __m256 value;
    for (int i = 0; i < 8; i++) value[i] = a[half * 8 + i];
    return value;
}

/* Two quarters of a and two of b. */
EMULATED __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int which)
{
    __m512 value;
    for (int i = 0; i < 16; i++) value[i] = (i & 8 ? b : a)[(which >> i / 4 * 2 & 3) * 4 + i % 4];
    return value;
}

EMULATED __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void *from)
{
    uint16_t lanes[32];
    __m512i value;
    for (int i = 0; i < 32; i++) lanes[i] = mask >> i & 1 ? ((const uint16_t *)from)[i] : 0;
    memcpy(&value, lanes, sizeof value);
    return value;
}

EMULATED __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *from)
{
    uint16_t lanes[16];
    __m256i value;
    for (int i = 0; i < 16; i++) lanes[i] = mask >> i & 1 ? ((const uint16_t *)from)[i] : 0;
    memcpy(&value, lanes, sizeof value);
    return value;
}

EMULATED void _mm512_mask_storeu_epi16(void *to, __mmask32 mask, __m512i a)
{
    uint16_t lanes[32];
    memcpy(lanes, &a, sizeof lanes);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ((uint16_t *)to)[i] = lanes[i];
}

EMULATED __m512i _mm512_cvtepu16_epi32(__m256i narrow)
{
    uint16_t from[16];
    __m512i value;
    memcpy(from, &narrow, sizeof from);
    for (int i = 0; i < 16; i++) value[i] = from[i];
    return value;
}

EMULATED __m512i _mm512_slli_epi32(__m512i a, int count)
{
    for (int i = 0; i < 16; i++) a[i] = (int32_t)((uint32_t)a[i] << count);
    return a;
}

EMULATED __m512i _mm512_permutexvar_epi16(__m512i which, __m512i a)
{
    uint16_t from[32], index[32], to[32];
    memcpy(from, &a, sizeof from);
    memcpy(index, &which, sizeof index);
    for (int i = 0; i < 32; i++) to[i] = from[index[i] & 31];
    memcpy(&a, to, sizeof to);
    return a;
}

/* b in the lower half, to nearest, ties to even; denormals become 0, and a NaN quiet. */
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 a, __m512 b)
{
    uint16_t narrow[32];
    __m512bh value;
    for (int i = 0; i < 32; i++) {
        const float x = i < 16 ? b[i] : a[i - 16];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (x != x)
            bits |= 0x400000u;
        else if ((bits & 0x7F800000u) == 0)
            bits &= 0x80000000u;
        else
            bits += 0x7FFFu + (bits >> 16 & 1);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    memcpy(&value, narrow, sizeof value);
    return value;
}

/* --- bf16 widened by AVX2 --- */

EMULATED emulated__256i _mm256_cvtepu16_epi32(__m128i narrow)
{
    uint16_t from[8];
    emulated__256i value;
    memcpy(from, &narrow, sizeof from);
    for (int i = 0; i < 8; i++) value[i] = from[i];
    return value;
}

EMULATED emulated__256i _mm256_slli_epi32(emulated__256i a, int count)
{
    emulated__256i value;
    for (int i = 0; i < 8; i++) value[i] = (int32_t)((uint32_t)a[i] << count);
    return value;
}

EMULATED __m256 _mm256_castsi256_ps(emulated__256i a)
{
    return (__m256)a;
}

/* --- integers of 8 bits --- */

EMULATED __m512i _mm512_cvtepi8_epi32(__m128i narrow)
{
    int8_t from[16];
    __m512i value;
    memcpy(from, &narrow, sizeof from);
    for (int i = 0; i < 16; i++) value[i] = from[i];
    return value;
}

EMULATED __m512 _mm512_cvtepi32_ps(__m512i a)
{
    __m512 value;
    for (int i = 0; i < 16; i++) value[i] = (float)a[i];
    return value;
}

EMULATED emulated__256i _mm256_cvtepi8_epi32(__m128i narrow)
{
    int8_t from[16];
    emulated__256i value;
    memcpy(from, &narrow, sizeof from);
    for (int i = 0; i < 8; i++) value[i] = from[i];
    return value;
}

EMULATED __m256 _mm256_cvtepi32_ps(emulated__256i a)
{
    __m256 value;
    for (int i = 0; i < 8; i++) value[i] = (float)a[i];
    return value;
}

#endif
