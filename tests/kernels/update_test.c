#include "kernels/update.h"

#include "kernel_test.h"

static const float lr = 0.1f, weight_decay = 0.01f;

/* Three steps in float64 beside ours. */
static void check_steps(size_t n, float momentum, bool nesterov, bool with_v)
{
    unsigned state = 1 + (unsigned)n;
    float *w = kernel_array(n, &state), *v = kernel_array(n, &state), *g = kernel_array(n, &state);
    double *want_w = (double *)malloc((n + 1) * sizeof *want_w), *want_v = (double *)malloc((n + 1) * 8);
    for (size_t i = 0; i < n; i++) want_w[i] = (double)w[i], want_v[i] = (double)(v[i] = 0);
    double worst = 0;
    for (int step = 0; step < 3; step++) {
        dml_sgd_update(NULL, n, w, g, with_v ? v : NULL, lr, momentum, weight_decay, nesterov);
        for (size_t i = 0; i < n; i++) {
            const double d = (double)g[i] + (double)weight_decay * want_w[i];
            want_v[i] = (double)momentum * want_v[i] + d;
            want_w[i] -= (double)lr * (nesterov ? d + (double)momentum * want_v[i] : want_v[i]);
            const double error =
                fmax(fabs(want_w[i] - (double)w[i]), with_v ? fabs(want_v[i] - (double)v[i]) : 0);
            if (!(error <= worst)) worst = error;
        }
        test_fill(&state, g, n);
    }
    CHECK_MESSAGE(worst < 1e-6, "n %zu, momentum %g, nesterov %d, v %d: error %g", n, (double)momentum,
                  nesterov, with_v, worst);
    kernel_free(w), kernel_free(v), kernel_free(g), free(want_w), free(want_v);
}

static void matches_float64(void)
{
    for (int s = 0; s < KERNEL_SIZES; s++) {
        check_steps(kernel_sizes[s], 0.9f, false, true);
        check_steps(kernel_sizes[s], 0.9f, true, true);
        check_steps(kernel_sizes[s], 0, false, true);
        check_steps(kernel_sizes[s], 0, false, false);
    }
}

/* Also for any cut into ranges, since a bucket or a shard is updated by itself. */
static void the_same_for_any_threads_and_ranges(void)
{
    const size_t n = KERNEL_MOST;
    unsigned state = 2;
    float *w0 = kernel_array(n, &state), *v0 = kernel_array(n, &state), *g = kernel_array(n, &state);
    float *want_w = kernel_copy(w0, n), *want_v = kernel_copy(v0, n);
    dml_sgd_update(NULL, n, want_w, g, want_v, lr, 0.9f, weight_decay, true);
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *w = kernel_copy(w0, n), *v = kernel_copy(v0, n);
        const size_t cut = (size_t)p * (n / KERNEL_POOLS) + 7;
        dml_sgd_update(kernel_pools[p], cut, w, g, v, lr, 0.9f, weight_decay, true);
        dml_sgd_update(kernel_pools[p], n - cut, w + cut, g + cut, v + cut, lr, 0.9f, weight_decay, true);
        CHECK(kernel_same(w, want_w, n) && kernel_same(v, want_v, n));
        kernel_free(w), kernel_free(v);
    }
    kernel_free(w0), kernel_free(v0), kernel_free(g), kernel_free(want_w), kernel_free(want_v);
}

static void all(void)
{
    matches_float64();
    the_same_for_any_threads_and_ranges();
}

static void sgd(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(sgd);
    kernel_pools_close();
    return test_report("kernels/update");
}
