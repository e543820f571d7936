/* kernel_test.h: what the kernels' tests share: sizes, pools of several thread counts, every instruction set.
 */
#ifndef DML_TESTS_KERNELS_KERNEL_TEST_H
#define DML_TESTS_KERNELS_KERNEL_TEST_H

#include "base/cpu.h"
#include "thread/pool.h"

#include "../test.h"

enum { KERNEL_MOST = TEST_EMULATOR ? 32769 : 65537 };

static const size_t kernel_sizes[] = { 0, 1, 2, 3, 15, 16, 17, 31, 33, 100, 1000, KERNEL_MOST };
enum { KERNEL_SIZES = sizeof kernel_sizes / sizeof kernel_sizes[0] };

/* Pool 0 is NULL, the others have 1, 2, 3 and 5 threads. */
enum { KERNEL_POOLS = 5 };
static dml_pool *kernel_pools[KERNEL_POOLS];

TEST__UNUSED static void kernel_pools_open(void)
{
    static const int threads[KERNEL_POOLS] = { 0, 1, 2, 3, 5 };
    for (int p = 1; p < KERNEL_POOLS; p++) {
        dml_pool_options options;
        memset(&options, 0, sizeof options);
        options.threads = threads[p];
        kernel_pools[p] = dml_pool_create(&options);
        if (!kernel_pools[p]) printf("no pool of %d threads\n", threads[p]);
    }
}

TEST__UNUSED static void kernel_pools_close(void)
{
    for (int p = 1; p < KERNEL_POOLS; p++) {
        dml_pool_destroy(kernel_pools[p]);
        kernel_pools[p] = NULL;
    }
}

/* A pool remembers the instruction set of when it was made. */
TEST__UNUSED static void kernel_pools_reopen(void)
{
    if (!kernel_pools[1]) return;
    kernel_pools_close();
    kernel_pools_open();
}

/* The emulated build is there for AVX-512, and which threads meet where doesn't depend on the set: the best
 * alone. */
#if defined(DML__EMULATED) || defined(__SANITIZE_THREAD__)
enum { KERNEL_BEST_ALONE = 1 };
#else
enum { KERNEL_BEST_ALONE = 0 };
#endif

/* Runs the test once for each instruction set that this machine has, with pools that know it; a failure
   names it. */
TEST__UNUSED static void kernel_each_isa(void (*test)(void))
{
    unsetenv("DML_ISA");
    const dml_isa best = dml_cpu_isa();
    for (int isa = KERNEL_BEST_ALONE ? (int)best : 0; isa <= (int)best; isa++) {
        setenv("DML_ISA", dml_isa_name((dml_isa)isa), 1);
        if (dml_cpu_isa() != (dml_isa)isa) continue;
        kernel_pools_reopen();
        const bool ok = test__ok;
        test__ok = true;
        test();
        if (!test__ok) printf("    with DML_ISA=%s\n", dml_isa_name((dml_isa)isa));
        test__ok = test__ok && ok;
    }
    unsetenv("DML_ISA");
    kernel_pools_reopen();
}

/* An array of exactly n floats, so that a sanitizer sees a step beyond it. At an odd place: unaligned. */
TEST__UNUSED static float *kernel_array(size_t n, unsigned *state)
{
    char *memory = (char *)malloc((n + 1) * sizeof(float));
    float *x = (float *)(void *)memory + 1;
    test_fill(state, x, n);
    return x;
}

TEST__UNUSED static void kernel_free(float *x)
{
    free(x - 1);
}

TEST__UNUSED static float *kernel_copy(const float *x, size_t n)
{
    unsigned state = 1;
    float *copy = kernel_array(n, &state);
    memcpy(copy, x, n * sizeof(float));
    return copy;
}

TEST__UNUSED static bool kernel_same(const float *a, const float *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof(float)) == 0;
}

#endif
