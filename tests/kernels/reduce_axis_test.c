#include "kernels/reduce_axis.h"

#include "exact.h"
#include "kernel_test.h"

/* Of one column, fewer than a vector, many that a strip holds, and many it doesn't; long and short axes. */
static const size_t shapes[][3] = { { 0, 3, 2 },    { 3, 1, 1 },     { 5, 7, 1 },    { 300, 10, 1 },
                                    { 2, 2500, 1 }, { 1, 40000, 1 }, { 4, 3, 2 },    { 7, 5, 9 },
                                    { 2, 700, 3 },  { 3, 9, 64 },    { 2, 33, 130 }, { 2, 5, 300 },
                                    { 1, 9, 1025 }, { 2, 3, 2500 },  { 1, 300, 40 }, { 3, 1, 50 },
                                    { 900, 2, 5 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = DML_REDUCE_NORM2 + 1 };

typedef struct problem {
    size_t outer, n, inner, in, out;
    float *x, *y, *ties, *dy, *dx, *old;
} problem;

/* Of few different numbers, so that extremes have ties. */
static problem problem_create(const size_t *shape, unsigned *state)
{
    problem p = { shape[0], shape[1], shape[2], 0, 0, NULL, NULL, NULL, NULL, NULL, NULL };
    p.in = p.outer * p.n * p.inner, p.out = p.outer * p.inner;
    p.x = kernel_array(p.in, state), p.dx = kernel_array(p.in, state);
    p.y = kernel_array(p.out, state), p.ties = kernel_array(p.out, state), p.dy = kernel_array(p.out, state);
    p.old = kernel_copy(p.dx, p.in);
    for (size_t i = 0; i < p.in; i++) p.x[i] = floorf(p.x[i] * 64) / 32;
    return p;
}

static void problem_destroy(problem *p)
{
    kernel_free(p->x), kernel_free(p->y), kernel_free(p->ties);
    kernel_free(p->dy), kernel_free(p->dx), kernel_free(p->old);
}

/* What kind `kind` makes of result r, and the sum of what is added up. */
static double reduced(const problem *p, int kind, size_t r, double *size, double *ties)
{
    double sum = 0, sizes = 0, squares = 0, largest = -HUGE_VAL, smallest = HUGE_VAL;
    const float *x = p->x + r / p->inner * p->n * p->inner + r % p->inner;
    for (size_t k = 0; k < p->n; k++) {
        const double v = x[k * p->inner];
        sum += v, sizes += fabs(v), squares += v * v;
        largest = fmax(largest, v), smallest = fmin(smallest, v);
    }
    const double all[KINDS] = { sum, largest, smallest, sizes, sqrt(squares) };
    *size = kind == DML_REDUCE_SUM || kind == DML_REDUCE_NORM1 ? sizes
            : kind == DML_REDUCE_NORM2                         ? all[kind]
                                                               : 0;
    *ties = 0;
    for (size_t k = 0; k < p->n; k++) *ties += (double)x[k * p->inner] == all[kind];
    return all[kind];
}

static double slope(int kind, double x, double y, double ties, double dy)
{
    if (kind == DML_REDUCE_NORM1) return x > 0 ? dy : x < 0 ? -dy : 0;
    if (kind == DML_REDUCE_NORM2) return y > 0 ? x * dy / y : 0;
    if (kind == DML_REDUCE_SUM) return dy;
    return x == y ? dy / ties : 0;
}

static void matches_float64(void)
{
    unsigned state = 1;
    for (int s = 0; s < SHAPES; s++)
        for (int kind = TEST_EMULATOR ? s % 3 : 0; kind < KINDS; kind += 1 + 2 * TEST_EMULATOR) {
            problem p = problem_create(shapes[s], &state);
            const float scale = kind == DML_REDUCE_SUM && s % 2 ? 0.5f : 1;
            if (kind == DML_REDUCE_NORM2 && p.inner > 1) /* norms of 0 */
                for (size_t i = 0; i < p.in; i += p.inner) p.x[i] = 0;
            dml_reduce_axis(NULL, (dml_reduction)kind, p.outer, p.n, p.inner, p.x, scale, p.y);
            const bool extreme = kind == DML_REDUCE_MAX || kind == DML_REDUCE_MIN;
            dml_reduce_axis_ties(NULL, p.outer, p.n, p.inner, p.x, p.y, p.ties);
            for (size_t r = 0; r < p.out; r++) {
                double size, ties;
                const double want = (double)scale * reduced(&p, kind, r, &size, &ties);
                CHECK_MESSAGE(fabs((double)p.y[r] - want) <= exact_roundings(EXACT_SUM, size),
                              "kind %d, %zu x %zu x %zu, result %zu: %.9g, not %.9g", kind, p.outer, p.n,
                              p.inner, r, (double)p.y[r], want);
                if (extreme) CHECK_NEAR(p.ties[r], ties, 0);
            }
            for (int b = 0; b < 3; b++) {
                const float beta = (float)b / 2;
                for (size_t i = 0; i < p.in; i++) p.dx[i] = b ? p.old[i] : NAN;
                dml_reduce_axis_backward(NULL, (dml_reduction)kind, p.outer, p.n, p.inner, p.x, p.y, p.ties,
                                         p.dy, scale, beta, p.dx);
                for (size_t i = 0; i < p.in; i++) {
                    const size_t r = i / p.inner / p.n * p.inner + i % p.inner;
                    const double d = (double)scale * slope(kind, p.x[i], p.y[r], p.ties[r], p.dy[r]);
                    const double want = d + (b ? (double)beta * (double)p.old[i] : 0);
                    CHECK_MESSAGE(fabs((double)p.dx[i] - want) <=
                                      exact_roundings(EXACT_POINTWISE, 1 + fabs(d)),
                                  "kind %d, %zu x %zu x %zu, beta %g, element %zu: %.9g, not %.9g", kind,
                                  p.outer, p.n, p.inner, (double)beta, i, (double)p.dx[i], want);
                }
            }
            problem_destroy(&p);
        }
}

static void the_same_for_any_threads(void)
{
    static const size_t large[][3] = { { 3000, 11, 1 }, { 40, 30, 33 }, { 3, 7, 3000 }, { 1, 100003, 1 } };
    unsigned state = 2;
    for (int s = 0; s < 4; s++)
        for (int kind = TEST_EMULATOR ? s : 0; kind < KINDS; kind += 1 + 4 * TEST_EMULATOR) {
            problem p = problem_create(large[s], &state);
            float *y = kernel_copy(p.y, p.out), *ties = kernel_copy(p.ties, p.out),
                  *dx = kernel_copy(p.dx, p.in);
            for (int t = 0; t < KERNEL_POOLS; t++) {
                dml_reduce_axis(kernel_pools[t], (dml_reduction)kind, p.outer, p.n, p.inner, p.x, 1, p.y);
                dml_reduce_axis_ties(kernel_pools[t], p.outer, p.n, p.inner, p.x, p.y, p.ties);
                memcpy(p.dx, p.old, p.in * sizeof(float));
                dml_reduce_axis_backward(kernel_pools[t], (dml_reduction)kind, p.outer, p.n, p.inner, p.x,
                                         p.y, p.ties, p.dy, 1, 0.5f, p.dx);
                if (t > 0)
                    CHECK_MESSAGE(kernel_same(y, p.y, p.out) && kernel_same(ties, p.ties, p.out) &&
                                      kernel_same(dx, p.dx, p.in),
                                  "kind %d, shape %d, pool %d", kind, s, t);
                memcpy(y, p.y, p.out * sizeof(float));
                memcpy(ties, p.ties, p.out * sizeof(float));
                memcpy(dx, p.dx, p.in * sizeof(float));
            }
            kernel_free(y), kernel_free(ties), kernel_free(dx);
            problem_destroy(&p);
        }
}

/* A NaN gets through wherever it lies, infinities too, and its column alone has it. */
static void special_values(void)
{
    unsigned state = 3;
    for (int s = 1; s < SHAPES; s++)
        for (int kind = TEST_EMULATOR ? s % 3 : 0; kind < KINDS; kind += 1 + 2 * TEST_EMULATOR) {
            problem p = problem_create(shapes[s], &state);
            for (int k = 0; k < 3; k++) {
                const size_t i = test_random(&state) % p.in, r = i / p.inner / p.n * p.inner + i % p.inner;
                const float old = p.x[i];
                p.x[i] = k % 3 ? NAN : INFINITY;
                dml_reduce_axis(kernel_pools[2], (dml_reduction)kind, p.outer, p.n, p.inner, p.x, 1, p.y);
                for (size_t at = 0; at < p.out; at++) {
                    const bool reached = at == r && (kind != DML_REDUCE_MIN || k % 3 || p.n == 1);
                    CHECK_MESSAGE(reached ? (k % 3 ? isnan(p.y[at]) : p.y[at] == INFINITY)
                                          : isfinite(p.y[at]),
                                  "kind %d, %zu x %zu x %zu: %g at %zu made %g of %zu", kind, p.outer, p.n,
                                  p.inner, (double)p.x[i], i, (double)p.y[at], at);
                }
                p.x[i] = old;
            }
            problem_destroy(&p);
        }
}

static void all(void)
{
    matches_float64();
    the_same_for_any_threads();
    special_values();
}

static void reduce_axis(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(reduce_axis);
    kernel_pools_close();
    return test_report("kernels/reduce_axis");
}
