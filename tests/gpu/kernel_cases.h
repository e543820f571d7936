/* kernel_cases.h: what the cases of kernels have in common: numbers, their sizes, and how results are
 * compared. */
#ifndef DML_TESTS_GPU_KERNEL_CASES_H
#define DML_TESTS_GPU_KERNEL_CASES_H

#include "devices.h"

static unsigned seed = 1;

/* Where it is slow (Oclgrind, the thread sanitizer), or DML_TEST_QUICK is set: only some of the cases. */
static int quick;

static int upto(int n)
{
    return quick ? 2 : n;
}

/* beta's special values and one other; where beta is 0, outputs start as NaN, and must not be read. */
static const float betas[] = { 0.0f, 1.0f, 0.5f };
enum { BETAS = sizeof betas / sizeof betas[0] };

static float *numbers(size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    test_fill(&seed, x, n);
    return x;
}

static float *output(size_t n, float beta)
{
    float *x = numbers(n);
    if (beta == 0)
        for (size_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}

/* beta old, 0 where old is not to be read */
static double kept(float beta, float old)
{
    return beta == 0 ? 0 : (double)beta * (double)old;
}

/* `scale` is the size of what was added up to make the numbers. */
static void check(const char *kernel, const float *got, const double *want, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - want[i]) <= 2e-6 * (scale + fabs(want[i]))) continue;
        CHECK_MESSAGE(false, "%s: element %d of %d is %.9g, not %.9g", kernel, (int)i, (int)n, (double)got[i],
                      want[i]);
        return;
    }
}

/* Whether it has tiles that are only for launches of one product. */
static bool is_large(const char *kernel)
{
    return strstr(kernel, "_128x") != NULL;
}

/* Only devices that are CPUs have the solo kernels. */
static bool device_has(const char *kernel)
{
    const dml_launch nothing = { .kernel = kernel };
    return device.backend->launch(&device, &nothing) == DML_OK;
}

/* The tests of a family's kernels: in each shape of tiles, and of one item a group. */
#define TEST_FAMILY(family, cases)                                                                           \
    TEST_OF_FAMILY(family##_128x128, cases)                                                                  \
    TEST_OF_FAMILY(family##_128x64, cases)                                                                   \
    TEST_OF_FAMILY(family##_64x64, cases)                                                                    \
    TEST_OF_FAMILY(family##_64x16, cases)                                                                    \
    TEST_OF_FAMILY(family##_16x64, cases)                                                                    \
    TEST_OF_FAMILY(family##_16x16, cases)                                                                    \
    TEST_OF_FAMILY(family##_solo, cases)
#define TEST_OF_FAMILY(kernel, cases)                                                                        \
    static void test_##kernel(void)                                                                          \
    {                                                                                                        \
        if (device_has(#kernel)) cases(#kernel);                                                             \
    }

/* The same of a pair. */
#define TEST_PAIR(pair, cases)                                                                               \
    TEST_OF_FAMILY(pair##_team, cases)                                                                       \
    TEST_OF_FAMILY(pair##_solo, cases)

static const int sizes[] = { 1, 257, 255, 1025, 1024, 1023, 4099 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

#endif
