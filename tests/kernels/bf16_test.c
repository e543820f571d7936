/* bf16: conversion over all values, and products against float64 on every instruction set for them. */
#include "kernels/bf16.h"

#include "base/cpu_bf16.h"
#include "exact.h"
#include "kernel_test.h"

#include <math.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void every_bf16_comes_back(void)
{
    enum { ALL = 65536 };
    static dml_bf16 x[ALL], back[ALL];
    static float wide[ALL];
    for (int i = 0; i < ALL; i++) x[i] = (dml_bf16)i;
    dml_bf16_to_f32(kernel_pools[2], ALL, x, wide);
    dml_bf16_from_f32(kernel_pools[3], ALL, wide, back);
    for (int i = 0; i < ALL; i++) {
        CHECK(bits_of(wide[i]) == (uint32_t)i << 16);
        if (isnan(wide[i]))
            CHECK((back[i] & 0x7F80) == 0x7F80 && (back[i] & 0x40) && (back[i] >> 15) == (x[i] >> 15));
        else
            CHECK_INT(back[i], x[i]);
    }
}

/* Nearest, and of two as near the even one. */
static void rounds_to_nearest(void)
{
    for (uint32_t upper = 0; upper < 0x7F80; upper += 7)
        for (uint32_t lower = 0; lower < 0x10000; lower += 0x1FFF) {
            const float x = float_of(upper << 16 | lower);
            const double below = (double)float_of(upper << 16);
            const double above = upper == 0x7F7F ? ldexp(1, 128) : (double)float_of((upper + 1) << 16);
            dml_bf16 got, negative;
            const float minus = -x;
            dml_bf16_from_f32(NULL, 1, &x, &got);
            dml_bf16_from_f32(NULL, 1, &minus, &negative);
            const double down = (double)x - below, up = above - (double)x;
            const uint32_t want = down < up || (down == up && upper % 2 == 0) ? upper : upper + 1;
            CHECK_INT(got, want);
            CHECK_INT(negative, want | 0x8000);
        }
}

typedef struct product {
    dml_transpose trans_a, trans_b;
    int m, n, k, pad;
    float alpha, beta;
    bool bias, relu;
} product;

static int leading(dml_transpose trans, int rows, int columns, int pad)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return (inner ? inner : 1) + pad;
}

static size_t extent(dml_transpose trans, int ld, int rows, int columns)
{
    const int lines = trans == DML_NO_TRANS ? rows : columns, inner = trans == DML_NO_TRANS ? columns : rows;
    return lines && inner ? (size_t)(lines - 1) * (size_t)ld + (size_t)inner : 0;
}

static float *widened(const dml_bf16 *x, size_t n)
{
    float *wide = (float *)malloc(n ? n * sizeof *wide : 1);
    for (size_t i = 0; i < n; i++) wide[i] = float_of((uint32_t)x[i] << 16);
    return wide;
}

static exact_matrix matrix(const float *x, dml_transpose trans, int ld)
{
    const exact_matrix m = { x, trans == DML_TRANS ? 1 : (size_t)ld, trans == DML_TRANS ? (size_t)ld : 1 };
    return m;
}

static dml_bf16 *new_bf16(size_t n, unsigned *state)
{
    float *x = kernel_array(n, state);
    dml_bf16 *narrow = (dml_bf16 *)malloc(n ? n * sizeof *narrow : 1);
    dml_bf16_from_f32(NULL, n, x, narrow);
    kernel_free(x);
    return narrow;
}

static void check_product(const product *p, unsigned *state)
{
    const int lda = leading(p->trans_a, p->m, p->k, p->pad), ldb = leading(p->trans_b, p->k, p->n, p->pad);
    const int ldc = (p->n ? p->n : 1) + p->pad;
    const size_t c_count = extent(DML_NO_TRANS, ldc, p->m, p->n);
    /* An array may begin between two floats. */
    const size_t skip_a = p->pad == 2, skip_b = p->relu;
    dml_bf16 *all_a = new_bf16(skip_a + extent(p->trans_a, lda, p->m, p->k), state), *a = all_a + skip_a;
    dml_bf16 *all_b = new_bf16(skip_b + extent(p->trans_b, ldb, p->k, p->n), state), *b = all_b + skip_b;
    float *wide_a = widened(a, extent(p->trans_a, lda, p->m, p->k));
    float *wide_b = widened(b, extent(p->trans_b, ldb, p->k, p->n));
    float *bias = kernel_array((size_t)p->n, state), *c = kernel_array(c_count, state);
    float *first = kernel_copy(c, c_count);
    const dml_epilogue epilogue = { p->bias ? bias : NULL,
                                    p->relu ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    if (p->beta == 0)
        for (int i = 0; i < p->m; i++)
            for (int j = 0; j < p->n; j++) c[(size_t)i * (size_t)ldc + (size_t)j] = NAN;
    for (int round = 0; round < 2 * KERNEL_POOLS; round++) {
        float *got = kernel_copy(c, c_count);
        dml_pool *pool = kernel_pools[round % KERNEL_POOLS];
        if (round == KERNEL_POOLS)
            for (int i = 1; i < KERNEL_POOLS; i++)
                CHECK_INT(dml_pool_reserve(kernel_pools[i], dml_bf16gemm_scratch(p->m, p->n, p->k)), DML_OK);
        CHECK_INT(dml_bf16gemm(pool, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, a, lda, b, ldb,
                               p->beta, got, ldc, &epilogue),
                  DML_OK);
        if (round == 0) {
            for (int i = 0; i < p->m; i++)
                for (int j = 0; j < p->n; j++) {
                    const size_t at = (size_t)i * (size_t)ldc + (size_t)j;
                    const exact_sum sum =
                        exact_product(matrix(wide_a, p->trans_a, lda), matrix(wide_b, p->trans_b, ldb),
                                      (size_t)i, (size_t)j, (size_t)p->k);
                    double want = (double)p->alpha * sum.value, size = fabs((double)p->alpha) * sum.size;
                    if (p->beta != 0)
                        want += (double)p->beta * (double)c[at],
                            size += fabs((double)p->beta * (double)c[at]);
                    if (p->bias) want += (double)bias[j], size += fabs((double)bias[j]);
                    if (p->relu && want < 0) want = 0;
                    const double bound = 2.0 * (p->k + 4) * ldexp(1, -24) * size;
                    CHECK_MESSAGE(fabs((double)got[at] - want) <= bound + 1e-37,
                                  "%d x %d x %d, (%d, %d): %.9g instead of %.9g", p->m, p->n, p->k, i, j,
                                  (double)got[at], want);
                }
            memcpy(first, got, c_count * sizeof *got);
        } else {
            CHECK_MESSAGE(kernel_same(got, first, c_count), "%d x %d x %d differs in round %d", p->m, p->n,
                          p->k, round);
        }
        kernel_free(got);
    }
    kernel_free(first), kernel_free(c), kernel_free(bias);
    free(all_a), free(all_b), free(wide_a), free(wide_b);
}

static void all_shapes(void)
{
    static const int sizes[][3] = { { 1, 1, 1 },      { 3, 5, 2 },       { 16, 16, 32 },   { 17, 33, 31 },
                                    { 32, 32, 64 },   { 33, 31, 65 },    { 1, 70, 100 },   { 70, 1, 100 },
                                    { 5, 100, 600 },  { 64, 48, 1030 },  { 97, 65, 47 },   { 8, 9, 0 },
                                    { 0, 4, 4 },      { 4, 0, 4 },       { 40, 130, 513 }, { 130, 6, 90 },
                                    { 20, 20, 3000 }, { 33, 1100, 530 }, { 200, 18, 70 },  { 64, 64, 768 },
                                    { 9, 70, 900 },   { 64, 40, 2048 } };
    unsigned state = 3;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s += 1 + TEST_EMULATOR)
        for (int form = TEST_EMULATOR ? (int)s / 2 % 2 : 0; form < 4; form += 1 + TEST_EMULATOR) {
            const int f = form + (int)s;
            const product p = { form & 1 ? DML_TRANS : DML_NO_TRANS,
                                form & 2 ? DML_TRANS : DML_NO_TRANS,
                                sizes[s][0],
                                sizes[s][1],
                                sizes[s][2],
                                f % 3,
                                f % 2 ? 1.0f : -0.75f,
                                f % 3 == 0   ? 0
                                : f % 3 == 1 ? 1.0f
                                             : 0.5f,
                                f % 4 > 1,
                                f % 5 == 0 };
            check_product(&p, &state);
        }
}

/* Those that are not packed: sums of lines, dot products, and what lies just beyond. */
static void few_rows(void)
{
    static const int sizes[][3] = { { 1, 1030, 71 }, { 2, 301, 40 },  { 3, 64, 9 },    { 4, 257, 33 },
                                    { 7, 300, 219 }, { 8, 520, 130 }, { 9, 300, 219 }, { 1, 4100, 17 },
                                    { 1, 37, 203 },  { 5, 70, 64 },   { 16, 33, 100 }, { 100, 3, 130 },
                                    { 40, 8, 45 },   { 1, 16, 1 } };
    unsigned state = 6;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s += 1 + TEST_EMULATOR)
        for (int form = TEST_EMULATOR ? (int)s / 2 % 2 : 0; form < 4; form += 1 + TEST_EMULATOR) {
            const product p = { form & 1 ? DML_TRANS : DML_NO_TRANS,
                                form & 2 ? DML_TRANS : DML_NO_TRANS,
                                sizes[s][0],
                                sizes[s][1],
                                sizes[s][2],
                                form,
                                s % 2 ? 1.0f : -0.75f,
                                (float)(s % 3) * 0.5f,
                                s % 2 == 0,
                                s % 3 == 0 };
            check_product(&p, &state);
        }
}

static void bad_arguments(void)
{
    dml_bf16 a[4] = { 0 }, b[4] = { 0 };
    float c[4] = { 1, 2, 3, 4 };
#define CALL(ta, tb, m, n, k, a, lda, b, ldb, c, ldc)                                                        \
    dml_bf16gemm(NULL, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc, NULL)
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, -1, 2, 2, a, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, -1, 2, a, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, -1, a, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, a, 1, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, a, 2, b, 1, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, a, 2, b, 2, c, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, NULL, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, a, 2, NULL, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, DML_NO_TRANS, 2, 2, 2, a, 2, b, 2, NULL, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL((dml_transpose)0, DML_NO_TRANS, 2, 2, 2, a, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK_INT(CALL(DML_NO_TRANS, (dml_transpose)5, 2, 2, 2, a, 2, b, 2, c, 2), DML_ERROR_ARGUMENT);
    CHECK(c[0] == 1 && c[3] == 4);
    CHECK_INT(dml_bf16gemm_scratch(0, 1, 1).worker, 0);
    CHECK(dml_bf16gemm_scratch(4000, 4000, 4000).worker <= 1310000);
}

/* By every way that this machine has, and the emulated variant has all of AVX-512's. */
static void shapes_by_every_way(void)
{
    int before = -1;
    static const char *const ways[] = { "scalar", "avx2", "avx512", "avx512_bf16", "" };
    for (size_t w = KERNEL_BEST_ALONE ? 2 : 0; w < sizeof ways / sizeof ways[0]; w++) {
        if (ways[w][0])
            setenv("DML_ISA", ways[w], 1);
        else
            unsetenv("DML_ISA");
        const int way = 8 * (int)dml_cpu_isa() + (int)dml__cpu_bf16(dml_cpu_isa());
        if (way == before) continue;
        before = way;
        kernel_pools_close(); /* pools remember what the processor has */
        kernel_pools_open();
        all_shapes();
        few_rows();
    }
#if defined(DML__EMULATED)
    CHECK_INT(dml__cpu_bf16(dml_cpu_isa()), DML__BF16_AMX);
    setenv("DML_ISA", "avx512_bf16", 1);
    CHECK_INT(dml__cpu_bf16(dml_cpu_isa()), DML__BF16_AVX512);
    setenv("DML_ISA", "avx512", 1);
    CHECK_INT(dml__cpu_bf16(dml_cpu_isa()), DML__BF16_WIDENED);
    unsetenv("DML_ISA");
#endif
}

int main(void)
{
    kernel_pools_open();
    RUN(every_bf16_comes_back);
    RUN(rounds_to_nearest);
    RUN(bad_arguments);
    RUN(shapes_by_every_way);
    kernel_pools_close();
    return test_report("kernels/bf16");
}
