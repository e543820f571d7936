/* L-BFGS on functions whose minimum is known. */
#include "train/lbfgs.h"

#include "train/trainer.h"

#include "small_model.h"

/* Rosenbrock's valley in pairs of variables; its minimum is 0, where all are 1. */
typedef struct valley {
    size_t n;
    int calls;
} valley;

static double rosenbrock(void *user, const float *x, float *g)
{
    valley *v = (valley *)user;
    double sum = 0;
    v->calls++;
    for (size_t i = 0; i + 1 < v->n; i += 2) {
        const double a = (double)x[i], b = (double)x[i + 1], bend = b - a * a;
        sum += 100 * bend * bend + (1 - a) * (1 - a);
        g[i] = (float)(-400 * a * bend - 2 * (1 - a));
        g[i + 1] = (float)(200 * bend);
    }
    return sum;
}

static void valleys(void)
{
    static float x[40000];
    const size_t sizes[] = { 2, 100, 40000 };
    for (int s = 0; s < 3; s++) {
        valley v = { sizes[s], 0 };
        dml_lbfgs_result r;
        for (size_t i = 0; i < v.n; i++) x[i] = i % 2 ? 1 : -1.2f;
        CHECK_INT(dml_lbfgs_minimize(v.n, x, rosenbrock, &v, NULL, &r), DML_OK);
        CHECK_MESSAGE(
            r.end == DML_LBFGS_CONVERGED && r.gradient <= 1e-5f && r.value < 1e-11 + 1e-12 * (double)v.n,
            "n %d: end %d, value %g, gradient %g", (int)v.n, (int)r.end, r.value, (double)r.gradient);
        CHECK_MESSAGE(r.iterations < 60 && r.evaluations < 90, "%d iterations, %d evaluations", r.iterations,
                      r.evaluations);
        CHECK_INT(r.evaluations, v.calls);
        for (size_t i = 0; i < v.n; i++) CHECK_NEAR(x[i], 1, 1e-4);
    }
}

/* sum of i (x_i - i)^2 / 2: condition number n */
static double bowl(void *user, const float *x, float *g)
{
    double sum = 0;
    for (int i = 0; i < *(int *)user; i++) {
        const double d = (double)x[i] - i;
        sum += (i + 1) * d * d / 2;
        g[i] = (float)((i + 1) * d);
    }
    return sum;
}

static void bowls(void)
{
    int n = 300;
    float x[300] = { 0 };
    dml_lbfgs_result r;
    const dml_lbfgs_options options = { .history = 3, .iterations = 500, .tolerance = 1e-2f };
    CHECK_INT(dml_lbfgs_minimize(300, x, bowl, &n, &options, &r), DML_OK);
    CHECK_MESSAGE(r.end == DML_LBFGS_CONVERGED, "end %d after %d, gradient %g", (int)r.end, r.iterations,
                  (double)r.gradient);
    for (int i = 0; i < n; i++) CHECK_NEAR(x[i], i, 1.1e-2 / (i + 1) + 1e-5 * i);
}

/* x - log x, only for x above 0; its minimum is 1 at 1. A step of -1 leads out of it. */
static double partly(void *user, const float *x, float *g)
{
    (void)user;
    g[0] = 1 - 1 / x[0];
    return x[0] > 0 ? (double)x[0] - log((double)x[0]) : NAN;
}

static double without_a_slope(void *user, const float *x, float *gradient)
{
    (void)user;
    gradient[0] = NAN;
    gradient[1] = 0;
    return (double)x[0];
}

static void a_gradient_that_is_no_number(void)
{
    float x[2] = { 1, 2 };
    dml_lbfgs_result result;
    CHECK_INT(dml_lbfgs_minimize(2, x, without_a_slope, NULL, NULL, &result), DML_OK);
    CHECK(result.end == DML_LBFGS_STALLED && isnan(result.gradient) && x[0] == 1 && x[1] == 2);
}

static void where_the_function_is_not_defined(void)
{
    const float from[] = { 0.01f, 0.5f, 1.5f, 30 };
    for (int i = 0; i < 4; i++) {
        float x = from[i];
        dml_lbfgs_result r;
        CHECK_INT(dml_lbfgs_minimize(1, &x, partly, NULL, NULL, &r), DML_OK);
        CHECK_MESSAGE(r.end == DML_LBFGS_CONVERGED, "from %g: end %d at %g", (double)from[i], (int)r.end,
                      (double)x);
        CHECK_NEAR(x, 1, 1e-4);
    }
    float x = -1;
    CHECK_INT(dml_lbfgs_minimize(1, &x, partly, NULL, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK(x == -1);
}

static double slope(void *user, const float *x, float *g)
{
    (void)user;
    g[0] = 1;
    return (double)x[0];
}
static double flat(void *user, const float *x, float *g)
{
    (void)user, (void)x;
    g[0] = 0;
    return 7;
}
static double liar(void *user, const float *x, float *g) /* the gradient's sign is wrong */
{
    (void)user;
    g[0] = -2 * x[0];
    return (double)x[0] * (double)x[0];
}

static void ends(void)
{
    float y[] = { -1.2f, 1 }, x = 0;
    valley v = { 2, 0 };
    dml_lbfgs_result r;
    const dml_lbfgs_options few = { .iterations = 3 };
    CHECK_INT(dml_lbfgs_minimize(1, &x, flat, NULL, NULL, &r), DML_OK);
    CHECK(r.end == DML_LBFGS_CONVERGED && r.iterations == 0 && r.evaluations == 1 && r.value == 7);
    CHECK_INT(dml_lbfgs_minimize(1, &x, slope, NULL, &few, &r), DML_OK);
    CHECK(r.end != DML_LBFGS_CONVERGED && r.iterations <= 3 && x < -100); /* it has no bottom */
    CHECK(r.value == (double)x);
    CHECK_INT(dml_lbfgs_minimize(2, y, rosenbrock, &v, &few, &r), DML_OK);
    CHECK(r.end == DML_LBFGS_INTERRUPTED && r.iterations == 3 && r.value < 24);
    x = 1;
    CHECK_INT(dml_lbfgs_minimize(1, &x, liar, NULL, NULL, &r), DML_OK);
    CHECK(r.end == DML_LBFGS_STALLED && x == 1 && r.value == 1);
}

static void bits_for_any_threads(void)
{
    enum { N = 70000 };
    float *x[3];
    for (int threads = 1; threads <= 3; threads++) {
        valley v = { N, 0 };
        dml_pool_options options;
        memset(&options, 0, sizeof options);
        options.threads = threads;
        dml_lbfgs_options o = { .iterations = 8, .pool = dml_pool_create(&options) };
        x[threads - 1] = malloc(N * sizeof(float));
        for (size_t i = 0; i < N; i++) x[threads - 1][i] = i % 2 ? 0.5f : -1.2f + (float)i / N;
        CHECK_INT(dml_lbfgs_minimize(N, x[threads - 1], rosenbrock, &v, &o, NULL), DML_OK);
        CHECK(memcmp(x[threads - 1], x[0], N * sizeof(float)) == 0);
        dml_pool_destroy(o.pool);
    }
    for (int i = 0; i < 3; i++) free(x[i]);
}

/* A model by way of its trainer's flat vectors, on the device. */
static double loss_of(void *user, const float *x, float *g)
{
    dml_trainer *t = (dml_trainer *)user;
    float loss = NAN;
    memcpy(dml_trainer_host(t, DML_PARAMETERS, 0, COUNT), x, COUNT * sizeof *x);
    dml_trainer_put(t, DML_PARAMETERS, 0, COUNT);
    dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, &loss);
    memcpy(g, dml_trainer_get(t, DML_GRADIENTS, 0, COUNT), COUNT * sizeof *g);
    return (double)loss;
}

static void a_model(void)
{
    dml_trainer *t = small_trainer(1, 0);
    float x[COUNT];
    dml_lbfgs_result r;
    const dml_lbfgs_options options = { .iterations = 30 };
    copy_vector(t, DML_PARAMETERS, x);
    CHECK_INT(dml_lbfgs_minimize(COUNT, x, loss_of, t, &options, &r), DML_OK);
    CHECK_MESSAGE(r.value < 1e-3, "loss %g after %d iterations", r.value, r.iterations);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}
EACH_BACKEND(a_model)

static void *no_memory(void *user, size_t bytes)
{
    (void)user, (void)bytes;
    return NULL;
}
static void no_release(void *user, void *memory)
{
    (void)user, (void)memory;
}

static void refused(void)
{
    float x[2] = { 1, 2 };
    valley v = { 2, 0 };
    const dml_lbfgs_options bad[] = {
        { .history = -1 }, { .history = 101 }, { .iterations = -1 }, { .tolerance = -1 }, { .tolerance = NAN }
    };
    for (int i = 0; i < 5; i++)
        CHECK_INT(dml_lbfgs_minimize(2, x, rosenbrock, &v, &bad[i], NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_lbfgs_minimize(0, x, rosenbrock, &v, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_lbfgs_minimize(2, NULL, rosenbrock, &v, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_lbfgs_minimize(2, x, NULL, &v, NULL, NULL), DML_ERROR_ARGUMENT);
    const dml_lbfgs_options none = { .allocator = { no_memory, no_release, NULL } };
    CHECK_INT(dml_lbfgs_minimize(2, x, rosenbrock, &v, &none, NULL), DML_ERROR_MEMORY);
    CHECK(v.calls == 0 && x[0] == 1 && x[1] == 2);
}

int main(void)
{
    RUN(valleys);
    RUN(bowls);
    RUN(a_gradient_that_is_no_number);
    RUN(where_the_function_is_not_defined);
    RUN(ends);
    RUN(bits_for_any_threads);
    RUN_EACH(a_model);
    RUN(refused);
    return test_report("train/lbfgs");
}
