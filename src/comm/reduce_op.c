#ifndef DML_COMM_REDUCE_OP_C
#define DML_COMM_REDUCE_OP_C

#include "comm/reduce_op.h"

#include "base/float16.h"
#include "base/simd.h"

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#endif

/* Loops over vectors of 32 bytes, compiled for AVX2 and for what every processor of the kind has, where the
   compiler makes two, or scalars, of each. A rest goes through a padded vector: so a result doesn't depend on
   where in the array it is. */
#define DML__REDUCE_BYTES 32
#define DML__REDUCE_VECTOR(name, type)                                                                       \
    typedef type dml__reduce_##name __attribute__((vector_size(DML__REDUCE_BYTES)))
DML__REDUCE_VECTOR(f32, float);
DML__REDUCE_VECTOR(f64, double);
DML__REDUCE_VECTOR(u8, uint8_t);
DML__REDUCE_VECTOR(u16, uint16_t);
DML__REDUCE_VECTOR(u32, uint32_t);
DML__REDUCE_VECTOR(u64, uint64_t);
DML__REDUCE_VECTOR(i8, int8_t);
DML__REDUCE_VECTOR(i16, int16_t);
DML__REDUCE_VECTOR(i32, int32_t);
DML__REDUCE_VECTOR(i64, int64_t);
#undef DML__REDUCE_VECTOR

typedef struct dml__reduce_numbers {
    /* How bits become integers that are in the order of their numbers: those below 0 are xored with `flip`,
       then `bias` is added, wrapping around. `other`, all ones or zero, takes the other one: the least. */
    uint64_t flip, bias, other;
    int ranks; /* of a mean */
} dml__reduce_numbers;

/* out = x and y (bytes, a multiple of DML__REDUCE_BYTES); of x alone, if it is a mean. */
typedef void (*dml__reduce_op_kernel)(char *out, const char *x, const char *y, size_t bytes,
                                      const dml__reduce_numbers *numbers);
#define DML__REDUCE_PARAMETERS                                                                               \
    (char *out, const char *x, const char *y, size_t bytes, const dml__reduce_numbers *numbers)

/* `statement` makes c of a and b. */
#define DML__REDUCE_LOOP(vector, statement)                                                                  \
    for (; bytes; bytes -= DML__REDUCE_BYTES) {                                                              \
        vector a, b, c;                                                                                      \
        memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b);                                                    \
        statement;                                                                                           \
        memcpy(out, &c, sizeof c);                                                                           \
        x += sizeof a, y += sizeof b, out += sizeof c;                                                       \
    }

/* Where there is more to compute, what is to come isn't asked of the memory early enough: 15 % slower. */
#define DML__REDUCE_AHEAD(pointer) DML__PREFETCH((const void *)((uintptr_t)(pointer) + 1024))

/* A kernel for each instruction set, of name_body; and both, where the base is for few processors. */
#ifdef DML__HAS_AVX2
#define DML__REDUCE_BY(name)                                                                                 \
    DML__COLD static void name##_base DML__REDUCE_PARAMETERS                                                 \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }                                                                                                        \
    DML__TARGET("avx2") static void name##_avx2 DML__REDUCE_PARAMETERS                                       \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }
#define DML__REDUCE_BOTH(name)                                                                               \
    {                                                                                                        \
        name##_base, name##_avx2                                                                             \
    }
#else
#define DML__REDUCE_BY(name)                                                                                 \
    static void name##_base DML__REDUCE_PARAMETERS                                                           \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }
#define DML__REDUCE_BOTH(name)                                                                               \
    {                                                                                                        \
        name##_base, name##_base                                                                             \
    }
#endif

/* Integers are added and multiplied as unsigned ones, which wrap around. */
#define DML__REDUCE_SUMS(suffix)                                                                             \
    DML__INLINE void dml__reduce_sum_##suffix##_body DML__REDUCE_PARAMETERS                                  \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        DML__REDUCE_LOOP(dml__reduce_##suffix, c = a + b);                                                   \
    }                                                                                                        \
    DML__INLINE void dml__reduce_prod_##suffix##_body DML__REDUCE_PARAMETERS                                 \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        DML__REDUCE_LOOP(dml__reduce_##suffix, c = a * b);                                                   \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_sum_##suffix)                                                                 \
    DML__REDUCE_BY(dml__reduce_prod_##suffix)

DML__REDUCE_SUMS(f32)
DML__REDUCE_SUMS(f64)
DML__REDUCE_SUMS(u8)
DML__REDUCE_SUMS(u32)
DML__REDUCE_SUMS(u64)

#define DML__REDUCE_MEAN(suffix, type)                                                                       \
    DML__INLINE void dml__reduce_mean_##suffix##_body DML__REDUCE_PARAMETERS                                 \
    {                                                                                                        \
        const dml__reduce_##suffix zero = { 0 }, ranks = zero + (type)numbers->ranks;                        \
        DML__REDUCE_LOOP(dml__reduce_##suffix, (void)b; c = a / ranks);                                      \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_mean_##suffix)

DML__REDUCE_MEAN(f32, float)
DML__REDUCE_MEAN(f64, double)

/* To nearest, of two as near to the even one, in the upper halves. A NaN among the sums and products of bf16
   has zeros below, as each of them has, and so has the one that x86 and AArch64 make themselves: it stays as
   it is. Others make one of ones only, which a carry would turn into -0. */
DML__INLINE void dml__reduce_round_bf16(dml__reduce_u32 *x)
{
    const dml__reduce_u32 nearest = *x + 0x7FFFu + (*x >> 16 & 1u);
#if defined(__SSE2__) || defined(__aarch64__)
    *x = nearest;
#else
    const dml__reduce_i32 nan = (dml__reduce_i32)(*x & 0x7FFFFFFFu) > 0x7F800000;
    *x = nearest ^ ((nearest ^ *x) & (dml__reduce_u32)nan);
#endif
}

/* Two numbers in each word, in f32, with whose 24 bits to round twice is to round once. */
DML__INLINE void dml__reduce_words(const dml__reduce_u32 *a, const dml__reduce_u32 *b, dml__reduce_u32 *c,
                                   bool product)
{
    const dml__reduce_f32 low_a = (dml__reduce_f32)(*a << 16), low_b = (dml__reduce_f32)(*b << 16);
    const dml__reduce_f32 high_a = (dml__reduce_f32)(*a & 0xFFFF0000u),
                          high_b = (dml__reduce_f32)(*b & 0xFFFF0000u);
    dml__reduce_u32 low = (dml__reduce_u32)(product ? low_a * low_b : low_a + low_b);
    dml__reduce_u32 high = (dml__reduce_u32)(product ? high_a * high_b : high_a + high_b);
    dml__reduce_round_bf16(&low);
    dml__reduce_round_bf16(&high);
    *c = low >> 16 | (high & 0xFFFF0000u);
}

DML__INLINE void dml__reduce_sum_bf16_body DML__REDUCE_PARAMETERS
{
    (void)numbers;
    DML__REDUCE_LOOP(dml__reduce_u32,
                     (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y), dml__reduce_words(&a, &b, &c, false)));
}
DML__INLINE void dml__reduce_prod_bf16_body DML__REDUCE_PARAMETERS
{
    (void)numbers;
    DML__REDUCE_LOOP(dml__reduce_u32,
                     (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y), dml__reduce_words(&a, &b, &c, true)));
}
DML__REDUCE_BY(dml__reduce_sum_bf16)
DML__REDUCE_BY(dml__reduce_prod_bf16)

/* Minima and maxima of every dtype compare integers: so NaNs have their place too, and no option of the
   compiler can take them for numbers. */
#define DML__REDUCE_KEY(bits, z) ((z ^ (dml__reduce_u##bits)(((dml__reduce_i##bits)z < zero) & flip)) + bias)
#define DML__REDUCE_LATER(bits)                                                                              \
    ((dml__reduce_u##bits)((dml__reduce_i##bits)DML__REDUCE_KEY(bits, b) >                                   \
                           (dml__reduce_i##bits)DML__REDUCE_KEY(bits, a)) ^                                  \
     other)
#define DML__REDUCE_EXTREME(bits)                                                                            \
    DML__INLINE void dml__reduce_extreme_##bits##_body DML__REDUCE_PARAMETERS                                \
    {                                                                                                        \
        const dml__reduce_i##bits zero = { 0 }, flip = zero + (int##bits##_t)numbers->flip;                  \
        const dml__reduce_u##bits none = { 0 }, bias = none + (uint##bits##_t)numbers->bias,                 \
                                  other = none + (uint##bits##_t)numbers->other;                             \
        DML__REDUCE_LOOP(dml__reduce_u##bits, (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y),                   \
                                               c = a ^ ((a ^ b) & DML__REDUCE_LATER(bits))));                \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_extreme_##bits)

DML__REDUCE_EXTREME(8)
DML__REDUCE_EXTREME(16)
DML__REDUCE_EXTREME(32)
DML__REDUCE_EXTREME(64)

/* f16 is added in f32 too: by the instructions that every processor with AVX2 has, or a block at a time. */
#define DML__REDUCE_BLOCK ((size_t)512)

static void dml__reduce_f16_blocks(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t count,
                                   dml__reduce_op_kernel kernel)
{
    float a[DML__REDUCE_BLOCK], b[DML__REDUCE_BLOCK];
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < DML__REDUCE_BLOCK ? count - i : DML__REDUCE_BLOCK;
        dml__widen_line(DML_ISA_SCALAR, DML_F16, n, x + i, a);
        dml__widen_line(DML_ISA_SCALAR, DML_F16, n, y + i, b);
        kernel((char *)a, (const char *)a, (const char *)b, n * sizeof *a, NULL);
        dml__narrow_line(DML_ISA_SCALAR, DML_F16, n, a, out + i);
    }
}

#define DML__REDUCE_F16_BASE(name)                                                                           \
    static void dml__reduce_##name##_f16_base DML__REDUCE_PARAMETERS                                         \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        dml__reduce_f16_blocks((uint16_t *)(void *)out, (const uint16_t *)(const void *)x,                   \
                               (const uint16_t *)(const void *)y, bytes / 2, dml__reduce_##name##_f32_base); \
    }
DML__REDUCE_F16_BASE(sum)
DML__REDUCE_F16_BASE(prod)

#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
#define DML__REDUCE_F16C DML__TARGET("avx2,f16c")
DML__REDUCE_F16C DML__INLINE void dml__reduce_eight_f16(char *out, const char *x, const char *y, bool product)
{
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
    const __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)y));
    const __m256 c = product ? _mm256_mul_ps(a, b) : _mm256_add_ps(a, b);
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_cvtps_ph(c, 0));
}

#define DML__REDUCE_F16_AVX2(name, product)                                                                  \
    DML__REDUCE_F16C static void dml__reduce_##name##_f16_avx2 DML__REDUCE_PARAMETERS                        \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        for (size_t i = 0; i < bytes; i += DML__REDUCE_BYTES) {                                              \
            DML__REDUCE_AHEAD(x + i), DML__REDUCE_AHEAD(y + i);                                              \
            dml__reduce_eight_f16(out + i, x + i, y + i, product);                                           \
            dml__reduce_eight_f16(out + i + 16, x + i + 16, y + i + 16, product);                            \
        }                                                                                                    \
    }
DML__REDUCE_F16_AVX2(sum, false)
DML__REDUCE_F16_AVX2(prod, true)
#define DML__REDUCE_BOTH_F16(name) DML__REDUCE_BOTH(name)
#else
#define DML__REDUCE_BOTH_F16(name)                                                                           \
    {                                                                                                        \
        name##_base, name##_base                                                                             \
    }
#endif

/* For each dtype, by its number, sums, products and extremes: the base's and AVX2's. */
#define DML__REDUCE_ROW(suffix, bits)                                                                        \
    {                                                                                                        \
        DML__REDUCE_BOTH(dml__reduce_sum_##suffix), DML__REDUCE_BOTH(dml__reduce_prod_##suffix),             \
            DML__REDUCE_BOTH(dml__reduce_extreme_##bits)                                                     \
    }
static const dml__reduce_op_kernel dml__reduce_kernels[DML__DTYPE_COUNT][3][2] = {
    DML__REDUCE_ROW(f32, 32),
    DML__REDUCE_ROW(f64, 64),
    DML__REDUCE_ROW(u32, 32),
    DML__REDUCE_ROW(u64, 64),
    DML__REDUCE_ROW(u8, 8),
    DML__REDUCE_ROW(bf16, 16),
    { DML__REDUCE_BOTH_F16(dml__reduce_sum_f16), DML__REDUCE_BOTH_F16(dml__reduce_prod_f16),
      DML__REDUCE_BOTH(dml__reduce_extreme_16) },
    DML__REDUCE_ROW(u8, 8),
};
static const dml__reduce_op_kernel dml__mean_kernels[2][2] = { DML__REDUCE_BOTH(dml__reduce_mean_f32),
                                                               DML__REDUCE_BOTH(dml__reduce_mean_f64) };

#undef DML__REDUCE_ROW
#undef DML__REDUCE_BOTH_F16
#undef DML__REDUCE_F16_BASE
#undef DML__REDUCE_MEAN
#undef DML__REDUCE_BOTH
#undef DML__REDUCE_EXTREME
#undef DML__REDUCE_LATER
#undef DML__REDUCE_KEY
#undef DML__REDUCE_SUMS
#undef DML__REDUCE_PARAMETERS
#undef DML__REDUCE_BY
#undef DML__REDUCE_LOOP

/* Above the numbers that are above 0, and below those below, floats have NaNs. For the maximum the lower ones
   are moved above the upper ones, for the minimum these below the lower ones: a NaN always wins. */
static dml__reduce_numbers dml__reduce_order(dml_dtype dtype, bool least)
{
    dml__reduce_numbers order = { 0, 0, 0, 0 };
    int fraction = 0; /* bits */
    switch (dtype) {
    case DML_F32: fraction = 23; break;
    case DML_F64: fraction = 52; break;
    case DML_BF16: fraction = 7; break;
    case DML_F16: fraction = 10; break;
    case DML_U8: order.bias = 0x80; break;
    default: break;
    }
    if (fraction) {
        const uint64_t nans = ((uint64_t)1 << fraction) - 1;
        order.flip = ((uint64_t)1 << (8 * dml_dtype_size(dtype) - 1)) - 1;
        order.bias = least ? nans : 0 - nans;
    }
    if (least) order.other = ~(uint64_t)0;
    return order;
}

static void dml__reduce_run(dml__reduce_op_kernel kernel, char *out, const char *x, const char *y,
                            size_t bytes, const dml__reduce_numbers *numbers)
{
    const size_t rest = bytes % DML__REDUCE_BYTES, whole = bytes - rest;
    if (whole) kernel(out, x, y, whole, numbers);
    if (rest == 0) return;
    uint16_t a[DML__REDUCE_BYTES / 2] = { 0 }, b[DML__REDUCE_BYTES / 2] = { 0 };
    memcpy(a, x + whole, rest), memcpy(b, y + whole, rest);
    kernel((char *)a, (const char *)a, (const char *)b, sizeof a, numbers);
    memcpy(out + whole, a, rest);
}

static void dml__reduce_by_user(const dml__reduction *how, void *out, const void *a, const void *b,
                                size_t count)
{
    if (out != a && out != b) memcpy(out, a, count * dml_dtype_size(how->dtype));
    how->function(out, out == b ? a : b, count, how->dtype, how->user);
}

/* A loss or two: to pad them takes longer than to add them. */
static void dml__sum_few(float *out, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

DML__LOCAL void dml__reduce_elements(const dml__reduction *how, void *out, const void *a, const void *b,
                                     size_t count)
{
    const bool least = how->op == DML_MIN;
    const int kind = how->op == DML_PROD ? 1 : least || how->op == DML_MAX ? 2 : 0;
    DML_ASSERT((unsigned)how->dtype < DML__DTYPE_COUNT);
    if (count == 0) return;
    if (how->function) {
        dml__reduce_by_user(how, out, a, b, count);
        return;
    }
    if (kind == 0 && how->dtype == DML_F32 && count < DML__REDUCE_BYTES / sizeof(float)) {
        dml__sum_few((float *)out, (const float *)a, (const float *)b, count);
        return;
    }
    const dml__reduce_numbers order = dml__reduce_order(how->dtype, least);
    dml__reduce_run(dml__reduce_kernels[how->dtype][kind][how->isa >= DML_ISA_AVX2], (char *)out,
                    (const char *)a, (const char *)b, count * dml_dtype_size(how->dtype), &order);
}

static void dml__mean_of_floats(const dml__reduction *how, void *data, size_t bytes, int ranks)
{
    const dml__reduce_numbers numbers = { 0, 0, 0, ranks };
    dml__reduce_run(dml__mean_kernels[how->dtype == DML_F64][how->isa >= DML_ISA_AVX2], (char *)data,
                    (const char *)data, (const char *)data, bytes, &numbers);
}

static void dml__mean_of_halves(const dml__reduction *how, uint16_t *data, size_t count, int ranks)
{
    const dml__reduction in_f32 = { DML_F32, DML_MEAN, how->isa, NULL, NULL };
    float wide[DML__REDUCE_BLOCK];
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < DML__REDUCE_BLOCK ? count - i : DML__REDUCE_BLOCK;
        dml__widen_line(how->isa, how->dtype, n, data + i, wide);
        dml__mean_of_floats(&in_f32, wide, n * sizeof *wide, ranks);
        dml__narrow_line(how->isa, how->dtype, n, wide, data + i);
    }
}

#define DML__MEAN(type)                                                                                      \
    for (size_t i = 0; i < count; i++) ((type *)data)[i] = (type)(((type *)data)[i] / ranks)

DML__LOCAL void dml__finish_mean(const dml__reduction *how, void *data, size_t count, int ranks)
{
    switch (how->dtype) {
    case DML_F32:
    case DML_F64: dml__mean_of_floats(how, data, count * dml_dtype_size(how->dtype), ranks); break;
    case DML_I8: DML__MEAN(int8_t); break;
    case DML_U8: DML__MEAN(uint8_t); break;
    case DML_I32: DML__MEAN(int32_t); break;
    case DML_I64: DML__MEAN(int64_t); break;
    case DML_BF16:
    case DML_F16: dml__mean_of_halves(how, (uint16_t *)data, count, ranks); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

#undef DML__MEAN

#endif
