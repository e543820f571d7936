/* half: f16 over all values, and what programs and products share of both 16-bit types. */
#include "kernels/half.h"

#include "kernels/bf16.h"
#include "kernels/half_internal.h"
#include "kernel_test.h"

#include <math.h>

enum { ALL = 65536 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* As IEEE 754 defines it. */
static double exact_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : HUGE_VAL)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

static void every_f16_comes_back(void)
{
    static dml_f16 x[ALL], back[ALL];
    static float wide[ALL];
    for (int i = 0; i < ALL; i++) x[i] = (dml_f16)i;
    dml_f16_to_f32(kernel_pools[2], ALL, x, wide);
    dml_f16_from_f32(kernel_pools[3], ALL, wide, back);
    for (int i = 0; i < ALL; i++) {
        const double want = exact_f16(x[i]);
        CHECK_INT(bits_of(wide[i]) >> 31, (uint32_t)i >> 15);
        if (isnan(want)) {
            CHECK(isnan(wide[i]));
            CHECK((back[i] & 0x7C00) == 0x7C00 && (back[i] & 0x200) && back[i] >> 15 == x[i] >> 15);
        } else {
            CHECK((double)wide[i] == want);
            CHECK_INT(back[i], x[i]);
        }
    }
}

static void what_is_finite_stays_so(void)
{
    static const float x[] = { 65504, 65519, 65520, -65520, 3e38f, -3e38f, 1, 0, HUGE_VALF, -HUGE_VALF };
    static const uint16_t f16[] = {
        0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0x7BFF, 0xFBFF, 0x3C00, 0, 0x7C00, 0xFC00
    };
    enum { N = sizeof x / sizeof *x, LONG = 40000 };
    static float wide[LONG];
    static uint16_t y[LONG], want[LONG];
    dml__saturate_floats(NULL, DML_F16, N, x, y);
    for (int i = 0; i < N; i++) CHECK_INT(y[i], f16[i]);
    wide[0] = NAN;
    dml__saturate_floats(NULL, DML_F16, 1, wide, y);
    CHECK((y[0] & 0x7C00) == 0x7C00 && (y[0] & 0x3FF));
    for (int i = 0; i < LONG; i++) wide[i] = x[i % N];
    dml__saturate_floats(kernel_pools[3], DML_F16, LONG, wide, y);
    for (int i = 0; i < LONG; i++) CHECK_INT(y[i], f16[i % N]);
    dml__saturate_floats(kernel_pools[3], DML_BF16, LONG, wide, y); /* which has f32's range */
    dml__narrow_floats(NULL, DML_BF16, LONG, wide, want);
    CHECK(memcmp(y, want, sizeof y) == 0);
}

/* Of NaNs, too, that signal or carry something. */
static void the_same_bits_of_each_isa(void)
{
    static const dml_dtype types[] = { DML_BF16, DML_F16 };
    static uint16_t x[ALL], narrow[2][ALL];
    static float wide[2][ALL], rounded[2][ALL];
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++)
        for (int isa = 0; isa <= (int)dml_cpu_isa(); isa++) {
            const int own = isa > 0;
            for (uint32_t i = 0; i < ALL; i++) { /* the lower half has no place in 16 bits */
                const uint32_t bits = i << 16 | i;
                memcpy(&rounded[own][i], &bits, sizeof bits);
            }
            dml__widen_line((dml_isa)isa, types[t], ALL, x, wide[own]);
            dml__narrow_line((dml_isa)isa, types[t], ALL, rounded[own], narrow[own]);
            dml__round_line((dml_isa)isa, types[t], ALL, rounded[own]);
            CHECK(memcmp(wide[0], wide[own], sizeof wide[0]) == 0);
            CHECK(memcmp(narrow[0], narrow[own], sizeof narrow[0]) == 0);
            CHECK(memcmp(rounded[0], rounded[own], sizeof rounded[0]) == 0);
        }
}

static uint16_t f16_of(float x)
{
    dml_f16 y;
    dml_f16_from_f32(NULL, 1, &x, &y);
    return y;
}

/* Nearest, and of two as near the even one: at the middle between neighbours, and next to it. */
static void rounds_to_nearest(void)
{
    for (uint16_t h = 0; h < 0x7C00; h++) {
        const double above = h == 0x7BFF ? 65536 : exact_f16((uint16_t)(h + 1));
        const float middle = (float)((exact_f16(h) + above) / 2); /* exact */
        CHECK_INT(f16_of(middle), h % 2 ? h + 1 : h);
        CHECK_INT(f16_of(nextafterf(middle, 0)), h);
        CHECK_INT(f16_of(nextafterf(middle, HUGE_VALF)), h + 1);
        CHECK_INT(f16_of(-middle), 0x8000 | (h % 2 ? h + 1 : h));
    }
    CHECK_INT(f16_of(1e30f), 0x7C00);
    CHECK_INT(f16_of(-HUGE_VALF), 0xFC00);
    CHECK_INT(f16_of(1e-30f), 0);
    CHECK_INT(f16_of(-1e-45f), 0x8000);
}

static void every_size_and_place(void)
{
    static const dml_dtype types[] = { DML_BF16, DML_F16 };
    unsigned state = 5;
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < KERNEL_SIZES; s++) {
            const size_t n = kernel_sizes[s];
            float *x = kernel_array(n, &state);
            if (n > 2) x[n / 2] = NAN, x[n - 1] = -HUGE_VALF;
            float *rounded = kernel_copy(x, n);
            uint16_t *first = (uint16_t *)malloc((n + 1) * sizeof *first);
            dml__narrow_line(DML_ISA_SCALAR, types[t], n, x, first);
            dml__round_line(DML_ISA_SCALAR, types[t], n, rounded);
            float *by_best = kernel_copy(x, n);
            dml__round_line(dml_cpu_isa(), types[t], n, by_best);
            CHECK(kernel_same(by_best, rounded, n));
            kernel_free(by_best);
            for (int p = 0; p < KERNEL_POOLS; p++) {
                uint16_t *narrow = (uint16_t *)malloc((n + 1) * sizeof *narrow);
                float *wide = kernel_copy(x, n);
                dml__narrow_floats(kernel_pools[p], types[t], n, x, narrow);
                dml__widen_floats(kernel_pools[p], types[t], n, narrow, wide);
                CHECK(n == 0 || memcmp(narrow, first, n * sizeof *narrow) == 0);
                CHECK(kernel_same(wide, rounded, n));
                kernel_free(wide);
                free(narrow);
            }
            for (size_t i = 0; i < n; i++)
                CHECK(isnan(x[i])   ? isnan(rounded[i])
                      : isinf(x[i]) ? isinf(rounded[i])
                                    : fabs((double)rounded[i] - (double)x[i]) <=
                                          fabs((double)x[i]) * (t ? ldexp(1, -11) : ldexp(1, -8)) +
                                              (t ? ldexp(1, -25) : 0));
            free(first);
            kernel_free(rounded), kernel_free(x);
        }
}

static void every_case(void)
{
    every_f16_comes_back();
    rounds_to_nearest();
    every_size_and_place();
}

static void by_every_isa(void)
{
    kernel_each_isa(every_case);
}

int main(void)
{
    kernel_pools_open();
    RUN(by_every_isa);
    RUN(what_is_finite_stays_so);
    RUN(the_same_bits_of_each_isa);
    kernel_pools_close();
    return test_report("kernels/half");
}
