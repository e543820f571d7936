/* half_cases.h: cases of gpu/half.cl for kernels_test.c. */
#ifndef DML_TESTS_GPU_HALF_CASES_H
#define DML_TESTS_GPU_HALF_CASES_H

#include "kernels/half_internal.h"

#include "kernel_cases.h"

/* Bits of numbers of every size, and of what isn't one; and of what lies between two in 16 bits. */
static void half_numbers(float *x, size_t n)
{
    static const uint32_t special[] = { 0,           0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u,
                                        0xFF800001u, 0x477FEFFFu, 0x477FF000u, 0x33000000u, 0x33000001u,
                                        0x387FE000u, 0x38800000u, 0x7F7FFFFFu, 0x3F808000u, 0x3F801000u };
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = test_random(&seed) ^ test_random(&seed) << 16;
        if (i % 2)
            bits = (bits & 0x80FFFFFFu) + (0x31000000u + (uint32_t)(i % 23 << 24)); /* of f16's sizes */
        if (i < sizeof special / sizeof special[0]) bits = special[i];
        if ((bits & 0x7F800000u) == 0) bits &= 0x80000000u; /* a device may take denormals for 0 */
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void test_half_narrow(void)
{
    for (int s = quick; s < upto(SIZES); s++)
        for (int f16 = 0; f16 < 2; f16++) {
            const size_t n = (size_t)sizes[s], words = (n + 1) / 2;
            float *x = numbers(n), *y = numbers(words);
            uint16_t *want = malloc(2 * words * sizeof *want);
            half_numbers(x, n);
            memcpy(want, y, words * 4);
            dml__narrow_line(DML_ISA_SCALAR, f16 ? DML_F16 : DML_BF16, n, x, want);
            array ax = upload(x, n), ay = upload(y, words);
            launch_ok((dml_launch){ .kernel = "half_narrow",
                                    .size = { n, 1 },
                                    .buffer = { at(ax), at(ay) },
                                    .integer = { (int)n, f16 } });
            download(ax, NULL), download(ay, y);
            CHECK_MESSAGE(memcmp(y, want, words * 4) == 0, "half_narrow of %d differs", (int)n);
            free(x), free(y), free(want);
        }
}

static void test_half_widen(void)
{
    for (int s = quick; s < upto(SIZES); s++)
        for (int f16 = 0; f16 < 2; f16++) {
            const size_t n = (size_t)sizes[s], words = (n + 1) / 2;
            float *x = numbers(words), *y = numbers(n), *want = numbers(n);
            uint16_t *halves = malloc(2 * words * sizeof *halves);
            for (size_t i = 0; i < 2 * words; i++) halves[i] = (uint16_t)test_random(&seed);
            memcpy(x, halves, words * 4);
            dml__widen_line(DML_ISA_SCALAR, f16 ? DML_F16 : DML_BF16, n, halves, want);
            array ax = upload(x, words), ay = upload(y, n);
            launch_ok((dml_launch){ .kernel = "half_widen",
                                    .size = { n, 1 },
                                    .buffer = { at(ax), at(ay) },
                                    .integer = { (int)n, f16 } });
            download(ax, NULL), download(ay, y);
            for (size_t i = 0; i < n; i++)
                CHECK_MESSAGE(memcmp(&y[i], &want[i], 4) == 0 || (isnan(y[i]) && isnan(want[i])) ||
                                  (y[i] == 0 && fabsf(want[i]) < 2e-38f),
                              "half_widen of %04x is %.9g, not %.9g", halves[i], (double)y[i],
                              (double)want[i]);
            free(x), free(y), free(want), free(halves);
        }
}

#endif
