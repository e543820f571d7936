#include "kernels/update.h"

#include "../train/update_reference.h"
#include "kernel_test.h"

/* The vectors of one optimizer: w, then its state, zeros at first. */
typedef struct vectors {
    float *w, *state[2];
} vectors;

static vectors make_vectors(size_t n, unsigned seed)
{
    vectors v = { kernel_array(n, &seed), { kernel_array(n, &seed), kernel_array(n, &seed) } };
    for (int s = 0; s < 2 && n; s++) memset(v.state[s], 0, n * sizeof(float));
    return v;
}

static void free_vectors(vectors *v)
{
    kernel_free(v->w), kernel_free(v->state[0]), kernel_free(v->state[1]);
}

/* Steps in float64 beside ours. */
static void check_steps(const dml_optimizer *o, size_t n)
{
    unsigned random = 1 + (unsigned)n;
    const int states = dml_optimizer_states(o);
    vectors v = make_vectors(n, 5);
    float *g = kernel_array(n, &random);
    double *want[3];
    for (int k = 0; k < 3; k++) {
        want[k] = (double *)malloc((n + 1) * sizeof *want[k]);
        for (size_t i = 0; i < n; i++) want[k][i] = k == 0 ? (double)v.w[i] : 0;
    }
    double worst = 0;
    for (uint64_t step = 0; step < 3; step++) {
        CHECK_INT(dml_optimizer_update(o, NULL, step, n, v.w, g, v.state), DML_OK);
        reference_update(o, (double)step + 1, n, want[0], want[1], want[2], g);
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k <= states; k++) {
                const double error = fabs(want[k][i] - (double)(k ? v.state[k - 1] : v.w)[i]);
                if (!(error <= worst * fmax(1, fabs(want[k][i])))) worst = error / fmax(1, fabs(want[k][i]));
            }
        test_fill(&random, g, n);
    }
    CHECK_MESSAGE(worst < 2e-6, "kind %d, n %zu: error %g", (int)o->kind, n, worst);
    for (int k = 0; k < 3; k++) free(want[k]);
    free_vectors(&v), kernel_free(g);
}

static void matches_float64(void)
{
    for (int s = 0; s < KERNEL_SIZES; s++)
        for (int o = 0; o < UPDATE_VARIANTS; o++) check_steps(&update_variants[o], kernel_sizes[s]);
}

/* Also for any cut into ranges, since a bucket or a shard is updated by itself. */
static void check_threads_and_ranges(const dml_optimizer *o)
{
    const size_t n = KERNEL_MOST;
    unsigned random = 2;
    float *g = kernel_array(n, &random);
    vectors want = make_vectors(n, 3);
    for (uint64_t step = 0; step < 2; step++) dml_optimizer_update(o, NULL, step, n, want.w, g, want.state);
    for (int p = 0; p < KERNEL_POOLS; p++) {
        vectors got = make_vectors(n, 3);
        const size_t cut = (size_t)p * (n / KERNEL_POOLS) + 7;
        float *rest[2] = { got.state[0] + cut, got.state[1] + cut };
        for (uint64_t step = 0; step < 2; step++) {
            dml_optimizer_update(o, kernel_pools[p], step, cut, got.w, g, got.state);
            dml_optimizer_update(o, kernel_pools[p], step, n - cut, got.w + cut, g + cut, rest);
        }
        CHECK(kernel_same(got.w, want.w, n));
        for (int s = 0; s < dml_optimizer_states(o); s++) CHECK(kernel_same(got.state[s], want.state[s], n));
        free_vectors(&got);
    }
    free_vectors(&want), kernel_free(g);
}

static void the_same_for_any_threads_and_ranges(void)
{
    for (int o = 0; o < UPDATE_VARIANTS; o++) check_threads_and_ranges(&update_variants[o]);
}

/* What is no number stays in its place; where there is neither gradient nor decay nothing moves; the
   smallest numbers divide nothing by 0. */
static void special_values(void)
{
    enum { N = 21 };
    for (int k = 0; k < UPDATE_VARIANTS; k++) {
        const dml_optimizer *o = &update_variants[k];
        vectors v = make_vectors(N, 4);
        float g[N], before[N];
        memcpy(before, v.w, sizeof before);
        for (int i = 0; i < N; i++) g[i] = i % 2 ? 0.5f : 0;
        g[2] = NAN, g[5] = INFINITY, g[8] = -INFINITY, g[17] = 1e-40f, g[20] = -1e-42f;
        for (uint64_t step = 0; step < 2; step++) dml_optimizer_update(o, NULL, step, N, v.w, g, v.state);
        for (int i = 0; i < N; i++) {
            const bool spoiled = i == 2 || i == 5 || i == 8;
            CHECK_MESSAGE(spoiled ? !isfinite(v.w[i]) || i != 2 : isfinite(v.w[i]), "variant %d: w[%d] is %g",
                          k, i, (double)v.w[i]);
            if (!spoiled && g[i] == 0 && o->weight_decay == 0) CHECK(v.w[i] == before[i]);
        }
        free_vectors(&v);
    }
}

/* LAMB's direction: for any threads, and beside float64. */
static void lamb_direction(void)
{
    const float number[DML__UPDATE_NUMBERS] = { 0.5f, 1e-3f, 0.25f, 0.875f, 0.125f, 0.0625f };
    for (int s = 0; s < KERNEL_SIZES; s++) {
        const size_t n = kernel_sizes[s];
        float *want = NULL;
        for (int p = 0; p < KERNEL_POOLS; p++) {
            unsigned random = 12;
            vectors v = make_vectors(n, 7);
            float *g = kernel_array(n, &random);
            double *r = (double *)malloc((n + 1) * sizeof *r), worst = 0;
            for (size_t i = 0; i < n; i++) {
                const double d = (double)g[i], m = 0.25 * d, square = 0.125 * d * d;
                v.state[0][i] = v.state[1][i] = 0;
                r[i] = 0.5 * m / (sqrt(square) + 1e-3) + 0.0625 * (double)v.w[i];
            }
            dml__lamb_direction(kernel_pools[p], n, v.w, g, v.state[0], v.state[1], number);
            for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)g[i] - r[i]));
            CHECK_MESSAGE(worst < 1e-6, "n %zu: error %g", n, worst);
            if (!want) want = kernel_copy(g, n);
            CHECK(kernel_same(g, want, n));
            kernel_free(g);
            free(r), free_vectors(&v);
        }
        kernel_free(want);
    }
}

/* The one that is given its numbers apart. */
static void sgd_by_itself(void)
{
    enum { N = 37 };
    const dml_optimizer *o = &update_variants[5];
    unsigned random = 8;
    float g[N], *state[2] = { NULL, NULL };
    vectors a = make_vectors(N, 6), b = make_vectors(N, 6);
    test_fill(&random, g, N);
    for (uint64_t step = 0; step < 3; step++) {
        dml_optimizer_update(o, NULL, step, N, a.w, g, a.state);
        dml_sgd_update(NULL, N, b.w, g, b.state[0], o->lr, o->momentum, o->weight_decay, o->nesterov);
    }
    CHECK(kernel_same(a.w, b.w, N) && kernel_same(a.state[0], b.state[0], N));
    dml_optimizer_update(&update_variants[1], NULL, 0, N, a.w, g, state);
    dml_sgd_update(NULL, N, b.w, g, NULL, update_variants[1].lr, 0, update_variants[1].weight_decay, false);
    CHECK(kernel_same(a.w, b.w, N));
    free_vectors(&a), free_vectors(&b);
}

static void values_are_cut(void)
{
    for (int s = 0; s < KERNEL_SIZES; s++) {
        const size_t n = kernel_sizes[s];
        unsigned random = 7;
        float *x = kernel_array(n, &random);
        if (n > 16) x[3] = NAN, x[5] = INFINITY, x[9] = -INFINITY, x[11] = -0.0f, x[16] = 0.5f;
        float *want = kernel_copy(x, n);
        for (size_t i = 0; i < n; i++) {
            if (want[i] > 0.5f) want[i] = 0.5f;
            if (want[i] < -0.5f) want[i] = -0.5f;
        }
        dml_clip_values(kernel_pools[s % KERNEL_POOLS], n, 0.5f, x);
        CHECK(kernel_same(x, want, n));
        kernel_free(x), kernel_free(want);
    }
}

static void all(void)
{
    values_are_cut();
    lamb_direction();
    matches_float64();
    the_same_for_any_threads_and_ranges();
    special_values();
    sgd_by_itself();
}

static void every_rule(void)
{
    kernel_each_isa(all);
}

static void refused_alone(void)
{
    float w = 1, g = 1, *state[2] = { &g, &g };
    dml_optimizer o = dml_adam(0.1f);
    o.beta2 = 1;
    CHECK_INT(dml_optimizer_update(&o, NULL, 0, 1, &w, &g, state), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_optimizer_update(NULL, NULL, 0, 1, &w, &g, state), DML_ERROR_ARGUMENT);
    o.kind = (dml_optimizer_kind)99;
    CHECK_INT(dml_optimizer_update(&o, NULL, 0, 1, &w, &g, state), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_optimizer_states(&o), 0);
    CHECK_INT(dml_optimizer_states(NULL), 0);
    CHECK(w == 1);
}

/* What fades away doesn't end in denormals, with which an update takes fifty times as long; and
   they are there again afterwards. */
static void fading(void)
{
#if defined(__x86_64__)
    enum { N = 37 };
    float w[N], g[N], m[N], v[N], *adam[2] = { m, v };
    volatile float tiny = 1e-39f;
    for (int i = 0; i < N; i++) w[i] = 1, g[i] = 0, m[i] = 1.2e-38f, v[i] = 1e-39f;
    for (int step = 0; step < 3; step++) dml_sgd_update(NULL, N, w, g, m, 0.1f, 0.9f, 0, step & 1);
    for (int i = 0; i < N; i++) CHECK(m[i] == 0 && w[i] == 1);
    const dml_optimizer o = dml_adam(0.1f);
    for (int i = 0; i < N; i++) m[i] = 1.2e-38f;
    CHECK_INT(dml_optimizer_update(&o, NULL, 5, N, w, g, adam), DML_OK);
    for (int i = 0; i < N; i++) CHECK((m[i] == 0 || m[i] >= 1.17549435e-38f) && v[i] == 0);
    CHECK(tiny * 0.5f > 0);
#else
    SKIP("denormals cost nothing here");
#endif
}

int main(void)
{
    kernel_pools_open();
    RUN(every_rule);
    RUN(fading);
    RUN(refused_alone);
    kernel_pools_close();
    return test_report("kernels/update");
}
