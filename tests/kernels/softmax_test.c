#include "kernels/softmax.h"

#include "exact.h"
#include "kernel_test.h"

/* Rows shorter and longer than a vector and a chunk; columns fewer than a vector, and more than are done at
   once. */
static const size_t shapes[][3] = { { 0, 3, 1 },  { 3, 1, 1 },   { 7, 3, 1 },  { 65, 8, 1 },
                                    { 5, 33, 1 }, { 3, 300, 1 }, { 2, 5, 2 },  { 3, 40, 9 },
                                    { 2, 3, 64 }, { 1, 70, 65 }, { 2, 1, 200 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct problem {
    bool logs;
    size_t outer, n, inner, all;
    float *x, *y, *dy, *dx, *old;
} problem;

static problem problem_create(const size_t *shape, bool logs, unsigned *state)
{
    problem p = { logs, shape[0], shape[1], shape[2], shape[0] * shape[1] * shape[2],
                  NULL, NULL,     NULL,     NULL,     NULL };
    p.x = kernel_array(p.all, state), p.y = kernel_array(p.all, state);
    p.dy = kernel_array(p.all, state), p.dx = kernel_array(p.all, state);
    p.old = kernel_copy(p.dx, p.all);
    for (size_t i = 0; i < p.all; i++)
        p.x[i] = p.x[i] * 20 - (i % 3 ? 0 : 1e4f * (float)(i / p.inner / p.n % 2));
    return p;
}

static void problem_destroy(problem *p)
{
    kernel_free(p->x), kernel_free(p->y), kernel_free(p->dy), kernel_free(p->dx), kernel_free(p->old);
}

static void forward(dml_pool *pool, problem *p)
{
    dml_softmax_forward(pool, p->logs, p->outer, p->n, p->inner, p->x, p->y);
}

static void backward(dml_pool *pool, problem *p, float beta)
{
    dml_softmax_backward(pool, p->logs, p->outer, p->n, p->inner, p->y, p->dy, beta, p->dx);
}

/* What is left of a row's largest is rounded, which is as much of the result as it is itself. */
static void matches_float64(void)
{
    unsigned state = 1;
    for (int s = 0; s < 2 * SHAPES; s++) {
        problem p = problem_create(shapes[s / 2], s % 2, &state);
        forward(NULL, &p);
        for (int b = 0; b < 3; b++) {
            const float beta = (float)b / 2;
            for (size_t i = 0; i < p.all; i++) p.dx[i] = b ? p.old[i] : NAN;
            backward(NULL, &p, beta);
            double worst = 0, worst_slope = 0;
            for (size_t i = 0; i < p.all; i++) {
                const size_t first = i / p.inner / p.n * p.n * p.inner + i % p.inner;
                double largest = -HUGE_VAL, sum = 0, products = 0, size = 0;
                for (size_t k = 0; k < p.n; k++) largest = fmax(largest, (double)p.x[first + k * p.inner]);
                for (size_t k = 0; k < p.n; k++) sum += exp((double)p.x[first + k * p.inner] - largest);
                for (size_t k = 0; k < p.n; k++) {
                    const size_t at = first + k * p.inner;
                    const double term = (double)p.dy[at] * (p.logs ? 1 : (double)p.y[at]);
                    products += term, size += fabs(term);
                }
                const double log_of = (double)p.x[i] - largest - log(sum), d = p.dy[i];
                const double want = p.logs ? log_of : exp(log_of);
                const double error = fabs((double)p.y[i] - want) /
                                     (p.logs ? 1 + fabs(want) : want * (1 + fabs(log_of)) + 1e-40);
                if (!(error <= worst)) worst = error;
                const double slope =
                    p.logs ? d - exp((double)p.y[i]) * products : (double)p.y[i] * (d - products);
                const double before = b ? (double)beta * (double)p.old[i] : 0;
                const double slope_error = fabs((double)p.dx[i] - slope - before) / (1 + fabs(before) + size);
                if (!(slope_error <= worst_slope)) worst_slope = slope_error;
            }
            CHECK_MESSAGE(worst <= exact_roundings(EXACT_SOFTMAX, 1), "%zu x %zu x %zu, logs %d: error %g",
                          p.outer, p.n, p.inner, p.logs, worst);
            CHECK_MESSAGE(worst_slope <= exact_roundings(EXACT_SOFTMAX, 1),
                          "%zu x %zu x %zu, logs %d, beta %g: the gradient's error %g", p.outer, p.n, p.inner,
                          p.logs, (double)beta, worst_slope);
        }
        problem_destroy(&p);
    }
}

/* Over the input and over the gradient, on any threads: the same bits. */
static void the_same_everywhere(void)
{
    static const size_t large[][3] = { { 5003, 11, 1 }, { 40, 700, 1 }, { 90, 30, 13 }, { 3, 70, 131 } };
    unsigned state = 2;
    for (int s = 0; s < 8; s++) {
        problem p = problem_create(large[s / 2], s % 2, &state);
        forward(NULL, &p);
        backward(NULL, &p, 0);
        float *y = kernel_copy(p.y, p.all), *dx = kernel_copy(p.dx, p.all), *x = p.x, *dy = p.dy;
        for (int t = 1; t < KERNEL_POOLS; t++) {
            forward(kernel_pools[t], &p);
            backward(kernel_pools[t], &p, 0);
            CHECK(kernel_same(y, p.y, p.all) && kernel_same(dx, p.dx, p.all));
        }
        memcpy(p.y, x, p.all * sizeof(float));
        p.x = p.y;
        forward(kernel_pools[2], &p);
        CHECK(kernel_same(y, p.y, p.all));
        memcpy(p.dx, dy, p.all * sizeof(float));
        p.dy = p.dx;
        backward(kernel_pools[2], &p, 0);
        CHECK(kernel_same(dx, p.dx, p.all));
        p.x = x, p.dy = dy;
        kernel_free(y), kernel_free(dx);
        problem_destroy(&p);
    }
}

/* A NaN makes its row or column NaN and no other; minus infinity has no share. */
static void special_values(void)
{
    unsigned state = 3;
    for (int s = 2; s < 2 * SHAPES; s++) {
        problem p = problem_create(shapes[s / 2], s % 2, &state);
        for (int round = 0; round < 3; round++) {
            const size_t i = test_random(&state) % p.all;
            const float old = p.x[i];
            p.x[i] = NAN;
            forward(NULL, &p);
            for (size_t k = 0; k < p.all; k++) {
                const bool same = k / p.inner / p.n == i / p.inner / p.n && k % p.inner == i % p.inner;
                CHECK(!isnan(p.y[k]) == !same);
            }
            p.x[i] = p.n > 1 ? -INFINITY : old;
            forward(NULL, &p);
            if (p.n > 1) CHECK(p.y[i] == (p.logs ? -INFINITY : 0));
            for (size_t k = 0; k < p.all; k++) CHECK(k == i || isfinite(p.y[k]));
            p.x[i] = old;
        }
        problem_destroy(&p);
    }
}

/* Differences that overflow have no share; one that underflows has its logarithm still. */
static void huge_values(void)
{
    const float huge[3] = { 3e38f, -3e38f, 1e38f }, apart[3] = { 0, 200, -INFINITY };
    float y[3];
    dml_softmax_forward(NULL, false, 1, 3, 1, huge, y);
    CHECK(y[0] == 1 && y[1] == 0 && y[2] == 0);
    dml_softmax_forward(NULL, true, 1, 3, 1, apart, y);
    CHECK(y[0] == -200 && y[1] == 0 && y[2] == -INFINITY);
}

static void all(void)
{
    huge_values();
    matches_float64();
    the_same_everywhere();
    special_values();
}

static void softmax(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(softmax);
    kernel_pools_close();
    return test_report("kernels/softmax");
}
