#include "kernels/elementwise.h"

#include "kernel_test.h"

/* Every kernel under one signature: `a` and `b` are the inputs, `y` the output. */
typedef struct elementwise_case {
    const char *name;
    void (*run)(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y);
    double (*want)(double a, double b); /* for beta = 0 */
    bool has_beta;
    double tolerance; /* relative to max(1, |want|) */
} elementwise_case;

static const float alpha = 0.7f;

static void run_fill(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)
{
    (void)a, (void)b, (void)beta;
    dml_fill(pool, n, alpha, y);
}

static double want_fill(double a, double b)
{
    (void)a, (void)b;
    return (double)alpha;
}

static void run_axpby(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)
{
    (void)b;
    dml_axpby(pool, n, alpha, a, beta, y);
}

static double want_scaled(double a, double b)
{
    (void)b;
    return (double)alpha * a;
}

static void run_scale(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)
{
    (void)b, (void)beta;
    if (n && y != a) memcpy(y, a, n * sizeof(float));
    dml_scale(pool, n, alpha, y);
}

static void run_add(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)
{
    (void)beta;
    dml_add_forward(pool, n, a, b, y);
}

static double want_add(double a, double b)
{
    return a + b;
}

static void run_add_relu(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)
{
    (void)beta;
    dml_add_relu_forward(pool, n, a, b, y);
}

static double want_add_relu(double a, double b)
{
    return a + b <= 0 ? 0 : a + b;
}

#define FORWARD(name)                                                                                        \
    static void run_##name(dml_pool *pool, size_t n, const float *a, const float *b, float beta, float *y)   \
    {                                                                                                        \
        (void)b, (void)beta;                                                                                 \
        dml_##name##_forward(pool, n, a, y);                                                                 \
    }
#define BACKWARD(name)                                                                                       \
    static void run_##name##_backward(dml_pool *pool, size_t n, const float *a, const float *b, float beta,  \
                                      float *y)                                                              \
    {                                                                                                        \
        dml_##name##_backward(pool, n, a, b, beta, y);                                                       \
    }
FORWARD(exp)
FORWARD(erf)
FORWARD(relu)
FORWARD(tanh)
FORWARD(sigmoid)
BACKWARD(relu)
BACKWARD(tanh)
BACKWARD(sigmoid)

static double want_relu(double a, double b)
{
    (void)b;
    return a > 0 ? a : 0;
}

static double want_relu_backward(double a, double b)
{
    return a > 0 ? b : 0;
}

static double want_exp(double a, double b)
{
    (void)b;
    return exp(a);
}

static double want_erf(double a, double b)
{
    (void)b;
    return erf(a);
}

static double want_tanh(double a, double b)
{
    (void)b;
    return tanh(a);
}

static double want_tanh_backward(double a, double b)
{
    return (1 - a * a) * b;
}

static double want_sigmoid(double a, double b)
{
    (void)b;
    return 1 / (1 + exp(-a));
}

static double want_sigmoid_backward(double a, double b)
{
    return a * (1 - a) * b;
}

static const elementwise_case cases[] = {
    { "fill", run_fill, want_fill, false, 0 },
    { "axpby", run_axpby, want_scaled, true, 2e-7 },
    { "scale", run_scale, want_scaled, false, 1e-7 },
    { "add", run_add, want_add, false, 1e-7 },
    { "add_relu", run_add_relu, want_add_relu, false, 1e-7 },
    { "relu", run_relu, want_relu, false, 0 },
    { "relu_backward", run_relu_backward, want_relu_backward, true, 2e-7 },
    { "exp", run_exp, want_exp, false, 2e-7 },
    { "erf", run_erf, want_erf, false, 2e-7 },
    { "tanh", run_tanh, want_tanh, false, 2e-7 },
    { "tanh_backward", run_tanh_backward, want_tanh_backward, true, 3e-7 },
    { "sigmoid", run_sigmoid, want_sigmoid, false, 2e-7 },
    { "sigmoid_backward", run_sigmoid_backward, want_sigmoid_backward, true, 3e-7 },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Against float64, for every size; with beta = 0 the output starts as NaN. */
static void matches_float64(void)
{
    unsigned state = 1;
    for (int c = 0; c < CASES; c++) {
        for (int s = 0; s < KERNEL_SIZES; s++) {
            const size_t n = kernel_sizes[s];
            for (int with_beta = 0; with_beta <= (int)cases[c].has_beta; with_beta++) {
                const float beta = with_beta ? -1.5f : 0;
                float *a = kernel_array(n, &state), *b = kernel_array(n, &state),
                      *y = kernel_array(n, &state);
                float *old = kernel_copy(y, n);
                if (!with_beta)
                    for (size_t i = 0; i < n; i++) y[i] = NAN;
                cases[c].run(NULL, n, a, b, beta, y);
                double worst = 0;
                for (size_t i = 0; i < n; i++) {
                    const double want = cases[c].want((double)a[i], (double)b[i]) +
                                        (with_beta ? (double)beta * (double)old[i] : 0);
                    const double error = fabs((double)y[i] - want) / fmax(1, fabs(want));
                    if (!(error <= worst)) worst = error;
                }
                CHECK_MESSAGE(worst <= cases[c].tolerance, "%s of %zu, beta %g: error %g", cases[c].name, n,
                              (double)beta, worst);
                kernel_free(a), kernel_free(b), kernel_free(y), kernel_free(old);
            }
        }
    }
}

static void the_same_for_any_threads(void)
{
    unsigned state = 2;
    const size_t n = KERNEL_MOST;
    float *a = kernel_array(n, &state), *b = kernel_array(n, &state), *old = kernel_array(n, &state);
    for (int c = 0; c < CASES; c++) {
        float *want = kernel_copy(old, n);
        cases[c].run(NULL, n, a, b, 0.3f, want);
        for (int p = 1; p < KERNEL_POOLS; p++) {
            float *y = kernel_copy(old, n);
            cases[c].run(kernel_pools[p], n, a, b, 0.3f, y);
            CHECK_MESSAGE(kernel_same(y, want, n), "%s with pool %d", cases[c].name, p);
            kernel_free(y);
        }
        kernel_free(want);
    }
    kernel_free(a), kernel_free(b), kernel_free(old);
}

/* An element's result must not depend on where it lies: each of a few elements at each place of a short
   array, and alone. */
static void the_same_at_any_place(void)
{
    enum { N = 37 };
    unsigned state = 3;
    for (int c = 0; c < CASES; c++) {
        float *a = kernel_array(N, &state), *b = kernel_array(N, &state), *old = kernel_array(N, &state);
        float all[N];
        memcpy(all, old, sizeof all);
        cases[c].run(NULL, N, a, b, 0.3f, all);
        for (int i = 0; i < N; i++) {
            float one = old[i];
            cases[c].run(NULL, 1, a + i, b + i, 0.3f, &one);
            CHECK_MESSAGE(kernel_same(&one, &all[i], 1), "%s at %d", cases[c].name, i);
        }
        kernel_free(a), kernel_free(b), kernel_free(old);
    }
}

/* Arrays beyond the caches are written in another way, which only x86-64 has: the same bits, at aligned
 * places and others. */
static void large_arrays(void)
{
    enum { N = (4 << 20) + 13, PART = 50000 };
    unsigned state = 6;
    float *a = kernel_array(N + 3, &state), *b = kernel_array(N + 3, &state),
          *y = kernel_array(N + 3, &state);
    for (int c = 0; c < CASES; c++) {
        if (cases[c].run == run_scale) continue;     /* always in place */
        for (int shift = 0; shift < 4; shift += 3) { /* kernel_array begins 4 bytes off */
            float want[PART];
            cases[c].run(kernel_pools[2], N, a, b, 0, y + shift);
            for (size_t i = 0; i < N; i += PART) {
                const size_t n = N - i < PART ? N - i : PART;
                cases[c].run(NULL, n, a + i, b + i, 0, want);
                CHECK_MESSAGE(kernel_same(want, y + shift + i, n), "%s of %d from %zu on", cases[c].name, N,
                              i);
            }
        }
    }
    kernel_free(a), kernel_free(b), kernel_free(y);
}

static void works_in_place(void)
{
    unsigned state = 4;
    for (int c = 0; c < CASES; c++) {
        for (int s = 0; s < KERNEL_SIZES; s++) {
            const size_t n = kernel_sizes[s];
            float *a = kernel_array(n, &state), *b = kernel_array(n, &state), *y = kernel_array(n, &state);
            cases[c].run(NULL, n, a, b, 0, y);
            float *over_a = kernel_copy(a, n), *over_b = kernel_copy(b, n);
            cases[c].run(kernel_pools[3], n, over_a, b, 0, over_a);
            cases[c].run(kernel_pools[3], n, a, over_b, 0, over_b);
            CHECK_MESSAGE(kernel_same(over_a, y, n), "%s of %zu over its first input", cases[c].name, n);
            CHECK_MESSAGE(kernel_same(over_b, y, n), "%s of %zu over its second input", cases[c].name, n);
            kernel_free(a), kernel_free(b), kernel_free(y), kernel_free(over_a), kernel_free(over_b);
        }
    }
}

static float tanh_of(float x)
{
    float y;
    dml_tanh_forward(NULL, 1, &x, &y);
    return y;
}

static float sigmoid_of(float x)
{
    float y;
    dml_sigmoid_forward(NULL, 1, &x, &y);
    return y;
}

static float relu_of(float x)
{
    float y;
    dml_relu_forward(NULL, 1, &x, &y);
    return y;
}

static void special_values(void)
{
    CHECK(tanh_of(INFINITY) == 1 && tanh_of(-INFINITY) == -1);
    CHECK(tanh_of(1e30f) == 1 && tanh_of(-1e30f) == -1 && tanh_of(100) == 1);
    CHECK(isnan(tanh_of(NAN)) && isnan(tanh_of(-NAN)));
    CHECK(tanh_of(0) == 0 && !signbit(tanh_of(0)) && signbit(tanh_of(-0.0f)));
    CHECK(tanh_of(1e-40f) == 1e-40f && tanh_of(-1e-20f) == -1e-20f);
    CHECK(sigmoid_of(INFINITY) == 1 && sigmoid_of(-INFINITY) == 0);
    CHECK(sigmoid_of(3e38f) == 1 && sigmoid_of(-3e38f) == 0);
    CHECK(sigmoid_of(0) == 0.5f && sigmoid_of(1e-40f) == 0.5f);
    CHECK(isnan(sigmoid_of(NAN)));
    CHECK(relu_of(INFINITY) == INFINITY && relu_of(-INFINITY) == 0);
    CHECK(isnan(relu_of(NAN)) && isnan(relu_of(-NAN)));
    CHECK(relu_of(-0.0f) == 0 && relu_of(1e-40f) == 1e-40f);
}

static void bias_add(void)
{
    static const size_t shapes[][2] = { { 0, 5 }, { 5, 0 },  { 1, 1 },    { 3, 7 },
                                        { 4, 8 }, { 5, 33 }, { 3000, 10 } };
    unsigned state = 5;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s][0], columns = shapes[s][1], n = rows * columns;
        float *bias = kernel_array(columns, &state), *old = kernel_array(n, &state);
        for (int p = 0; p < KERNEL_POOLS; p++) {
            float *y = kernel_copy(old, n);
            dml_bias_add(kernel_pools[p], rows, columns, bias, y);
            for (size_t i = 0; i < n; i++) CHECK(y[i] == old[i] + bias[i % columns]);
            kernel_free(y);
        }
        kernel_free(bias), kernel_free(old);
    }
}

static void all(void)
{
    matches_float64();
    the_same_for_any_threads();
    the_same_at_any_place();
    works_in_place();
    special_values();
    bias_add();
}

static void elementwise(void)
{
    kernel_each_isa(all);
}

static void large_arrays_on_each_isa(void)
{
    if (TEST_EMULATOR || KERNEL_BEST_ALONE)
        SKIP("only vectors of x86-64 write past the caches, and threads share large arrays as they do small "
             "ones");
    else
        kernel_each_isa(large_arrays);
}

int main(void)
{
    kernel_pools_open();
    RUN(elementwise);
    RUN(large_arrays_on_each_isa);
    kernel_pools_close();
    return test_report("kernels/elementwise");
}
