/* Leaving elements out at random, on raw arrays. */
#include "kernels/dropout.h"

#include "kernel_test.h"

static void sizes(void)
{
    static const float chance[] = { 0, 0.1f, 0.5f, 0.999f }, betas[] = { 0, 1, 0.5f };
    const dml_random random = { 0x123456789abcdef0u, 3, 77 };
    for (int s = 0; s < KERNEL_SIZES; s++)
        for (int k = 0; k < 4; k++) {
            const size_t n = kernel_sizes[s];
            const float p = chance[k], beta = betas[k % 3];
            const uint64_t from = k == 2 ? ((uint64_t)5 << 34) - 24 : k % 2 ? ((uint64_t)5 << 34) + 8 : 0;
            unsigned state = 5;
            float *x = kernel_array(n, &state), *old = kernel_array(n, &state), *first = kernel_copy(old, n);
            for (size_t i = 0; i < n && beta == 0; i++) first[i] = NAN;
            dml_dropout_apply(NULL, n, &random, from, p, x, beta, first);
            for (size_t i = 0; i < n; i++) {
                const bool out = dml_random_bits(&random, from + i) < (double)p * 4294967296.0;
                const double want =
                    (out ? 0 : (double)x[i] / (1 - (double)p)) + (double)beta * (double)old[i];
                CHECK_NEAR(first[i], want, 3e-7 * (fabs(want) + 1));
            }
            for (int q = 1; q < KERNEL_POOLS; q++) {
                float *y = kernel_copy(beta == 0 ? x : old, n);
                dml_dropout_apply(kernel_pools[q], n, &random, from, p, beta == 0 ? y : x, beta, y);
                CHECK(kernel_same(y, first, n));
                kernel_free(y);
            }
            kernel_free(x), kernel_free(old), kernel_free(first);
        }
}

/* As many as p says, to within five deviations. */
static void chances(void)
{
    enum { N = 40000 };
    static const float chance[] = { 0.01f, 0.3f, 0.5f, 0.9f };
    float *x = (float *)malloc(N * sizeof *x), *y = (float *)malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) x[i] = 1;
    for (int k = 0; k < 4; k++) {
        const dml_random random = { 1, 2, (uint32_t)k };
        double out = 0;
        dml_dropout_apply(NULL, N, &random, 0, chance[k], x, 0, y);
        for (int i = 0; i < N; i++) out += y[i] == 0;
        const double p = (double)chance[k];
        CHECK_NEAR(out, p * N, 5 * sqrt(p * (1 - p) * N));
    }
    free(x), free(y);
}

static void every_isa(void)
{
    kernel_each_isa(sizes);
}

int main(void)
{
    kernel_pools_open();
    RUN(every_isa);
    RUN(chances);
    kernel_pools_close();
    return test_report("kernels/dropout");
}
