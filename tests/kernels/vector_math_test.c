#include "kernels/elementwise.h"

#include "exact.h"
#include "kernel_test.h"

/* Every STRIDEth float, and all floats near those where something changes, against float64. */
enum { STRIDE = 4001, BLOCK = 4096, NEAR = 300 };

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* In units in the last place of `want`; zeros have signs, too. */
static double units_off(float y, double want)
{
    if ((double)y == want && !signbit(y) != !signbit(want)) return INFINITY;
    return exact_ratio(y, want, exact_unit(want));
}

static void check_block(const exact_function *f, const float *x, size_t n)
{
    float y[BLOCK];
    double worst = 0;
    size_t at = 0;
    f->run(NULL, n, x, y);
    for (size_t i = 0; i < n; i++) {
        const double units = units_off(y[i], f->want((double)x[i]));
        if (units > worst) worst = units, at = i;
    }
    CHECK_MESSAGE(worst <= f->bound, "%s(%a) = %a, %g units in the last place off", f->name, (double)x[at],
                  (double)y[at], worst);
}

static void over_all_floats(void)
{
    float x[BLOCK];
    for (int f = 0; f < EXACT_FUNCTIONS; f++) {
        size_t n = 0;
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STRIDE) {
            x[n++] = float_of((uint32_t)bits);
            if (n < BLOCK && bits + STRIDE <= UINT32_MAX) continue;
            check_block(&exact_functions[f], x, n);
            n = 0;
        }
    }
}

static void near_special_values(void)
{
    static const float special[] = {
        0,
        1.17549435e-38f,
        1,
        0.5f,
        0.70710678f,
        1.41421356f,
        2,
        0.625f,
        0.046875f,
        0.25f,
        9.99f,
        0.9f,
        3.95f,
        9.01f,
        17,
        88.7228394f,
        89,
        104,
        87.3365479f,
        103.972076f,
        0.346573591f,
        3.40282347e+38f,
        16777216,
        1e-20f,
        6e-39f,
        2.80259693e-45f,
        0.693147182f,
        INFINITY,
    };
    float x[2 * NEAR + 1];
    for (int f = 0; f < EXACT_FUNCTIONS; f++) {
        for (size_t s = 0; s < sizeof special / sizeof special[0]; s++) {
            uint32_t bits;
            memcpy(&bits, &special[s], sizeof bits);
            for (int sign = 0; sign < 2; sign++) {
                for (int i = -NEAR; i <= NEAR; i++)
                    x[i + NEAR] = float_of((bits + (uint32_t)i) ^ (uint32_t)sign << 31);
                check_block(&exact_functions[f], x, 2 * NEAR + 1);
            }
        }
    }
}

static float of(const exact_function *f, float x)
{
    float y;
    f->run(NULL, 1, &x, &y);
    return y;
}

static void special_values(void)
{
    const exact_function *const e = &exact_functions[0], *const ln = &exact_functions[1],
                                *const er = &exact_functions[2];
    CHECK(of(e, 0) == 1 && of(e, -0.0f) == 1 && of(e, INFINITY) == INFINITY && of(e, -INFINITY) == 0);
    CHECK(of(e, 3e38f) == INFINITY && of(e, -3e38f) == 0 && of(e, -103) > 0);
    CHECK(of(ln, 0) == -INFINITY && of(ln, -0.0f) == -INFINITY && of(ln, INFINITY) == INFINITY);
    CHECK(of(ln, 1) == 0 && !signbit(of(ln, 1)) && isnan(of(ln, -1e-45f)) && isnan(of(ln, -INFINITY)));
    CHECK(of(er, INFINITY) == 1 && of(er, -INFINITY) == -1 && signbit(of(er, -0.0f)) && of(er, 5) == 1);
    for (int f = 0; f < EXACT_FUNCTIONS; f++)
        CHECK(isnan(of(&exact_functions[f], NAN)) && isnan(of(&exact_functions[f], -NAN)));
}

/* s s - s s, of which one product is rounded and the other isn't. A compiler that keeps to ISO C, as -std=c99
   asks gcc to, would round both; so do -O1 and sanitizers. */
static void products_are_fused(void)
{
#ifdef TEST_FUSES
    const float s = 1 + 0x1p-12f, x[3] = { s, s, s };
    float y[3] = { -s, -s, -s };
    if (dml_cpu_isa() < DML_ISA_AVX2) return;
    dml_axpby(NULL, 3, s, x, s, y);
    CHECK(y[0] != 0 && y[1] == y[0] && y[2] == y[0]);
#endif
}

static void all(void)
{
    products_are_fused();
    special_values();
    near_special_values();
    over_all_floats();
}

static void vector_math(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    RUN(vector_math);
    return test_report("kernels/vector_math");
}
