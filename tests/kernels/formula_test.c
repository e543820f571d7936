/* Every function of kernels/formulas.h against float64: values and gradients, with each kind of operand. */
#include "kernels/formula.h"

#include "formula_exact.h"
#include "kernel_test.h"

static unsigned seed = 1;

static float *numbers_for(const formula_exact *f, size_t n)
{
    float *x = kernel_array(n, &seed);
    for (size_t i = 0; i < n; i++) x[i] = f->positive ? fabsf(x[i]) * 4 + 0.125f : x[i] * 4;
    return x;
}

static double largest_error(const float *got, const double *want, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)got[i] - want[i]) / fmax(1, fabs(want[i]));
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

typedef struct operands {
    size_t n;
    float *in[3], *dy;
    dml__formula_call call;
} operands;

static operands open_operands(int formula, size_t n)
{
    const formula_exact *f = &formulas[formula];
    operands o;
    memset(&o, 0, sizeof o);
    o.n = n;
    for (int i = 0; i < 3; i++) o.in[i] = numbers_for(f, n);
    o.dy = kernel_array(n, &seed);
    for (size_t i = 0; i < n && formula >= DML__FORMULA_where; i += 3) o.in[0][i] = i % 2 ? 0 : o.in[1][i];
    o.call =
        dml__formula_plain(formula, n, o.in[0], dml__formula_row_of(formula)->inputs > 1 ? o.in[1] : NULL);
    if (dml__formula_row_of(formula)->inputs > 2) o.call.in[2] = o.in[2];
    o.call.p = f->p;
    o.call.q = f->q;
    return o;
}

static void close_operands(operands *o)
{
    for (int i = 0; i < 3; i++) kernel_free(o->in[i]);
    kernel_free(o->dy);
}

static void check_values(int formula, size_t n, bool relu)
{
    const formula_exact *f = &formulas[formula];
    operands o = open_operands(formula, n);
    float *y = kernel_array(n, &seed);
    double *want = (double *)calloc(n + 1, sizeof *want);
    for (size_t i = 0; i < n; i++) {
        want[i] =
            f->of((double)o.in[0][i], (double)o.in[1][i], (double)o.in[2][i], (double)f->p, (double)f->q);
        if (relu && want[i] < 0) want[i] = 0;
    }
    dml__formula_forward(kernel_pools[n % KERNEL_POOLS], &o.call, relu, y);
    const double error = largest_error(y, want, n);
    CHECK_MESSAGE(error <= f->tolerance, "%s of %zu elements, relu %d: error %g", f->name, n, relu, error);
    dml__formula_forward(NULL, &o.call, relu, o.in[0]); /* in place */
    CHECK_MESSAGE(kernel_same(o.in[0], y, n), "%s of %zu elements differs in place", f->name, n);
    kernel_free(y), free(want);
    close_operands(&o);
}

/* `both`: the gradients of two inputs in one call, the first over dy. */
static void check_gradients(int formula, size_t n, float beta, bool both)
{
    const formula_exact *f = &formulas[formula];
    const dml__formula_row *row = dml__formula_row_of(formula);
    operands o = open_operands(formula, n);
    float *y = kernel_array(n, &seed), *g[2] = { kernel_array(n, &seed), kernel_array(n, &seed) };
    double *want[2];
    dml__formula_forward(NULL, &o.call, false, y);
    for (int k = 0; k < 2; k++) {
        want[k] = (double *)malloc((n + 1) * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            want[k][i] = formula_slope(f, row->first + k < 3 ? row->first + k : 0, (double)o.in[0][i],
                                       (double)o.in[1][i], (double)o.in[2][i], (double)o.dy[i]);
            if (beta != 0 && !(both && k == 0)) want[k][i] += (double)beta * (double)g[k][i];
            if (beta == 0) g[k][i] = NAN;
        }
    }
    for (int i = 0; i < 3; i++)
        if (i > 1 || !(row->needs & (1u << i))) o.call.in[i] = NULL;
    for (int k = 0; k < row->gradients; k++) {
        float *const one[2] = { k == 0 ? g[0] : NULL, k == 1 ? g[1] : NULL };
        float *const two[2] = { o.dy, g[1] };
        const float betas[2] = { both ? 0 : beta, beta };
        if (both && k > 0) break;
        dml__formula_backward(kernel_pools[n % KERNEL_POOLS], &o.call, row->needs & DML__NEEDS_Y ? y : NULL,
                              o.dy, both ? two : one, betas);
    }
    for (int k = 0; k < row->gradients; k++) {
        const double error = largest_error(both && k == 0 ? o.dy : g[k], want[k], n);
        CHECK_MESSAGE(error <= 2e-6, "gradient %d of %s of %zu elements, beta %g: error %g", k, f->name, n,
                      (double)beta, error);
        free(want[k]);
    }
    for (int k = row->gradients; k < 2; k++) free(want[k]);
    kernel_free(y), kernel_free(g[0]), kernel_free(g[1]);
    close_operands(&o);
}

/* Far from 0 a gelu is the identity or 0, and so is its gradient, whose terms overflow or vanish. */
static void gelu_far_out(void)
{
    static const float far[] = { 9, 12, 100, 1e10f, 1e30f, 3e38f, NAN };
    enum { FAR = sizeof far / sizeof far[0] };
    for (int kind = 0; kind < 2; kind++) {
        const int formula = kind ? DML__FORMULA_gelu_tanh : DML__FORMULA_gelu;
        float a[2 * FAR], dy[2 * FAR], y[2 * FAR], d[2 * FAR], *const to[2] = { d, NULL };
        const float beta[2] = { 0, 0 };
        for (int i = 0; i < 2 * FAR; i++) a[i] = i % 2 ? -far[i / 2] : far[i / 2], dy[i] = 2;
        dml__formula_call call = dml__formula_plain(formula, 2 * FAR, a, NULL);
        dml__formula_forward(NULL, &call, false, y);
        dml__formula_backward(NULL, &call, NULL, dy, to, beta);
        for (int i = 0; i < 2 * FAR - 2; i++) {
            CHECK_MESSAGE(i % 2 ? fabsf(y[i]) < 1e-15f : y[i] == a[i], "%d: gelu of %g is %g", kind,
                          (double)a[i], (double)y[i]);
            CHECK_MESSAGE(fabs((double)d[i] - (i % 2 ? 0 : 2)) < 1e-14, "%d: gradient at %g is %g", kind,
                          (double)a[i], (double)d[i]);
        }
        CHECK(isnan(y[2 * FAR - 1]) && isnan(d[2 * FAR - 1]) && isnan(d[2 * FAR - 2]));
    }
}

static void match_float64(void)
{
    static const size_t sizes[] = { 0, 1, 7, 8, 255, 256, 257, 1000 };
    CHECK_INT(FORMULAS, DML__FORMULA_COUNT);
    for (int k = 0; k < DML__FORMULA_COUNT; k++) {
        const dml__formula_row *row = dml__formula_row_of(k);
        CHECK_STRING(row->name, formulas[k].name);
        for (int s = 0; s < 8; s++) check_values(k, sizes[s], s % 2);
        for (int s = 0; s < 8 && row->gradients; s++) {
            check_gradients(k, sizes[s], s % 2 ? 0.5f : 0, false);
            if (row->gradients > 1) check_gradients(k, sizes[s], s % 2 ? 0.5f : 0, true);
        }
    }
    check_values(DML__FORMULA_mul, KERNEL_MOST, false);
    check_gradients(DML__FORMULA_mul, KERNEL_MOST, 0, true);
}

/* Where infinities and what is not a number go. */
static void special_values(void)
{
    static const struct {
        int formula;
        float a, b, want;
    } cases[] = {
        { DML__FORMULA_relu, NAN, 0, NAN },
        { DML__FORMULA_relu, -INFINITY, 0, 0 },
        { DML__FORMULA_leaky_relu, NAN, 0, NAN },
        { DML__FORMULA_elu, -INFINITY, 0, -1.25f },
        { DML__FORMULA_elu, INFINITY, 0, INFINITY },
        { DML__FORMULA_elu, NAN, 0, NAN },
        { DML__FORMULA_silu, INFINITY, 0, INFINITY },
        { DML__FORMULA_softplus, 200, 0, 200 },
        { DML__FORMULA_softplus, INFINITY, 0, INFINITY },
        { DML__FORMULA_softplus, -INFINITY, 0, 0 },
        { DML__FORMULA_softplus, NAN, 0, NAN },
        { DML__FORMULA_log, 0, 0, -INFINITY },
        { DML__FORMULA_log, -1, 0, NAN },
        { DML__FORMULA_sqrt, -1, 0, NAN },
        { DML__FORMULA_sqrt, INFINITY, 0, INFINITY },
        { DML__FORMULA_sin, INFINITY, 0, NAN },
        { DML__FORMULA_sin, 1e6f, 0, -0.349993502f }, /* 159,154 turns and more */
        { DML__FORMULA_cos, -INFINITY, 0, NAN },
        { DML__FORMULA_cos, 3e9f, 0, -0.160690248f },
        { DML__FORMULA_abs, -INFINITY, 0, INFINITY },
        { DML__FORMULA_clamp, NAN, 0, NAN },
        { DML__FORMULA_clamp, INFINITY, 0, 0.5f },
        { DML__FORMULA_maximum, NAN, 1, NAN },
        { DML__FORMULA_maximum, 1, NAN, NAN },
        { DML__FORMULA_minimum, 1, NAN, NAN },
        { DML__FORMULA_minimum, -INFINITY, 1, -INFINITY },
        { DML__FORMULA_div, 1, 0, INFINITY },
        { DML__FORMULA_equal, NAN, NAN, 0 },
        { DML__FORMULA_not_equal, NAN, NAN, 1 },
        { DML__FORMULA_less, NAN, 1, 0 },
        { DML__FORMULA_less_equal, INFINITY, INFINITY, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float y = 7;
        dml__formula_call call = dml__formula_plain(cases[i].formula, 1, &cases[i].a, &cases[i].b);
        call.p = formulas[cases[i].formula].p;
        call.q = formulas[cases[i].formula].q;
        dml__formula_forward(NULL, &call, false, &y);
        CHECK_MESSAGE(y == cases[i].want || (isnan(y) && isnan(cases[i].want)),
                      "%s of %g and %g is %g, not %g", formulas[cases[i].formula].name, (double)cases[i].a,
                      (double)cases[i].b, (double)y, (double)cases[i].want);
    }
    const float zeros[2] = { 0, 2 }, ones[2] = { 1, 1 };
    float slope[2] = { 7, 7 };
    float *const slopes[2] = { slope, NULL };
    const float no_betas[2] = { 0, 0 };
    dml__formula_call power = dml__formula_plain(DML__FORMULA_pow, 2, zeros, NULL);
    dml__formula_backward(NULL, &power, NULL, ones, slopes, no_betas); /* x^0 is 1 everywhere */
    CHECK(slope[0] == 0 && slope[1] == 0);
    float tiny[2] = { 1e-6f, 1e-4f }, y[2]; /* what e^x - 1 and log(1 + e^x) lose when they are written so */
    for (int i = 0; i < 2; i++) tiny[i] = -tiny[i];
    dml__formula_call call = dml__formula_plain(DML__FORMULA_elu, 2, tiny, NULL);
    call.p = 1;
    dml__formula_forward(NULL, &call, false, y);
    for (int i = 0; i < 2; i++) CHECK_NEAR(y[i], expm1((double)tiny[i]), 1e-6 * fabs((double)tiny[i]));
    tiny[0] = -20, tiny[1] = -80;
    call = dml__formula_plain(DML__FORMULA_softplus, 2, tiny, NULL);
    dml__formula_forward(NULL, &call, false, y);
    for (int i = 0; i < 2; i++) CHECK_NEAR(y[i], log1p(exp((double)tiny[i])), 1e-6 * exp((double)tiny[i]));
}

/* Outputs beyond the caches, which are written past them where nobody reads them. */
static void large_outputs(void)
{
    const size_t n = ((size_t)3 << 20) + 5;
    float *memory = (float *)malloc(3 * (n + 16) * sizeof(float));
    float *a = memory, *b = a + n + 16, *y = b + n + 16;
    if (TEST_EMULATOR || !memory) {
        free(memory);
        return;
    }
    while ((uintptr_t)y % 16) y++;
    for (size_t i = 0; i < n; i++) a[i] = (float)(i % 1000), b[i] = (float)(i % 7);
    const dml__formula_call call = dml__formula_plain(DML__FORMULA_sub, n, a, b);
    dml__formula_forward(kernel_pools[2], &call, false, y);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += y[i] != a[i] - b[i];
    CHECK_INT(wrong, 0);
    free(memory);
}

static void threads_change_nothing(void)
{
    const size_t n = KERNEL_MOST;
    for (int k = 0; k < DML__FORMULA_COUNT; k += 3) {
        operands o = open_operands(k, n);
        float *want = kernel_array(n, &seed), *got = kernel_array(n, &seed);
        dml__formula_forward(NULL, &o.call, false, want);
        for (int p = 1; p < KERNEL_POOLS; p++) {
            dml__formula_forward(kernel_pools[p], &o.call, false, got);
            CHECK(kernel_same(got, want, n));
        }
        kernel_free(want), kernel_free(got);
        close_operands(&o);
    }
}

/* Each way of repeating an operand: values and the sums that are its gradient. */
static void repeated_operands(void)
{
    enum { DIMS = 4 };
    static const size_t result[DIMS] = { 3, 5, 4, 67 };
    const size_t n = result[0] * result[1] * result[2] * result[3];
    const formula_exact *f = &formulas[DML__FORMULA_mul];
    float *x = numbers_for(f, n), *a = numbers_for(f, n), *y = kernel_array(n, &seed),
          *g = kernel_array(n, &seed);
    float *scratch = kernel_array(2 * n, &seed), *sum = kernel_array(n, &seed);
    double *want = (double *)malloc(n * sizeof *want);
    for (int repeated = 0; repeated < 1 << DIMS; repeated++) {
        size_t operand[DIMS], elements = 1, wrong = 0;
        for (int d = 0; d < DIMS; d++) {
            operand[d] = repeated >> d & 1 ? 1 : result[d];
            elements *= operand[d];
        }
        dml__formula_call call = dml__formula_plain(DML__FORMULA_mul, n, a, x);
        call.layout[1] = dml__broadcast_of(DIMS, result, operand);
        dml__formula_forward(kernel_pools[repeated % KERNEL_POOLS], &call, false, y);
        for (size_t e = 0; e < elements; e++) want[e] = 0.5 * (sum[e] = (float)(e % 5));
        for (size_t i = 0; i < n; i++) {
            size_t left = i, from = 0, stride = 1;
            for (int d = DIMS - 1; d >= 0; d--) {
                from += operand[d] > 1 ? left % result[d] * stride : 0;
                stride *= operand[d];
                left /= result[d];
            }
            wrong += y[i] != a[i] * x[from];
            want[from] += (double)a[i] * (double)y[i];
        }
        CHECK_MESSAGE(wrong == 0, "repeated %d: %zu elements differ", repeated, wrong);
        float *const gradient[2] = { NULL, g };
        const float betas[2] = { 0, 0 };
        dml__formula_backward(NULL, &call, NULL, y, gradient, betas);
        for (size_t e = 0; e < 2 * n; e++) scratch[e] = NAN;
        CHECK(dml__sum_broadcast_scratch(&call.layout[1]) <= n);
        if (!dml__broadcast_is_plain(&call.layout[1]))
            dml__sum_broadcast(kernel_pools[repeated % KERNEL_POOLS], &call.layout[1], g, scratch, 0.5f, sum);
        else
            for (size_t e = 0; e < n; e++) sum[e] = 0.5f * sum[e] + g[e];
        double error = 0, scale = 0;
        for (size_t e = 0; e < elements; e++) error = fmax(error, fabs((double)sum[e] - want[e]));
        for (size_t e = 0; e < elements; e++) scale = fmax(scale, fabs(want[e]));
        CHECK_MESSAGE(error <= 2e-6 * scale, "repeated %d: sums differ by %g of %g", repeated, error, scale);
    }
    kernel_free(x), kernel_free(a), kernel_free(y), kernel_free(g), kernel_free(scratch), kernel_free(sum);
    free(want);
}

/* Three sums, one after another: every element of ones is counted. */
static void three_sums(void)
{
    static const size_t result[6] = { 2, 3, 4, 5, 6, 7 }, operand[6] = { 1, 3, 1, 5, 1, 7 };
    enum { N = 2 * 3 * 4 * 5 * 6 * 7, OPERAND = 3 * 5 * 7, SCRATCH = 2 * 3 * 4 * 5 * 7 + 2 * 3 * 5 * 7 };
    static float x[N], scratch[SCRATCH + 1], y[OPERAND];
    const dml__broadcast layout = dml__broadcast_of(6, result, operand);
    for (int i = 0; i < N; i++) x[i] = 1;
    scratch[SCRATCH] = 7;
    CHECK_INT(layout.dims, 6);
    CHECK_INT(dml__sum_broadcast_scratch(&layout), SCRATCH);
    dml__sum_broadcast(NULL, &layout, x, scratch, 0, y);
    for (int i = 0; i < OPERAND; i++) CHECK(y[i] == 2 * 4 * 6);
    CHECK(scratch[SCRATCH] == 7);
}

static void all(void)
{
    match_float64();
    gelu_far_out();
    special_values();
    threads_change_nothing();
    repeated_operands();
}

static void every_isa(void)
{
    kernel_each_isa(all);
}

/* Sums of values that are not kept, weighed or not, and gradients whose dy is repeated. */
static void totals(void)
{
    static const size_t sizes[] = { 1, 7, 300, 70001 };
    for (int s = 0; s < 4; s++)
        for (int weighted = 0; weighted < 2; weighted++) {
            const size_t n = sizes[s], each = n % 7 == 0 ? 7 : 1;
            const size_t result[2] = { n / each, each }, operand[2] = { n / each, 1 }, one[2] = { 1, 1 };
            const dml__broadcast layout = dml__broadcast_of(2, result, weighted ? operand : one);
            operands o = open_operands(DML__FORMULA_mean_squared_error, n);
            float *weights = kernel_array(n, &seed), *got = kernel_array(n, &seed),
                  *want = kernel_array(n, &seed);
            double exact = 0, size = 0;
            for (size_t i = 0; i < n; i++) {
                const double e = (double)o.in[0][i] - (double)o.in[1][i];
                exact += e * e * (weighted ? (double)weights[i / each] : 1);
                size += e * e * (weighted ? fabs((double)weights[i / each]) : 1);
                o.dy[i] = weights[weighted ? i / each : 0];
            }
            const float beta[DML__FORMULA_GRADIENTS] = { 0, 0 };
            float *const to_want[DML__FORMULA_GRADIENTS] = { want, NULL };
            float *const to_got[DML__FORMULA_GRADIENTS] = { got, NULL };
            dml__formula_backward(NULL, &o.call, NULL, o.dy, to_want, beta);
            o.call.repeated_dy = &layout;
            const double total = dml__formula_total(NULL, &o.call, weighted ? weights : NULL, &layout);
            CHECK_NEAR(total, exact, 3e-6 * size);
            for (int p = 0; p < KERNEL_POOLS; p++) {
                CHECK(dml__formula_total(kernel_pools[p], &o.call, weighted ? weights : NULL, &layout) ==
                      total);
                dml__formula_backward(kernel_pools[p], &o.call, NULL, weights, to_got, beta);
                CHECK(kernel_same(got, want, n));
            }
            kernel_free(weights), kernel_free(got), kernel_free(want);
            close_operands(&o);
        }
}

int main(void)
{
    kernel_pools_open();
    RUN(every_isa);
    RUN(large_outputs);
    RUN(three_sums);
    RUN(totals);
    kernel_pools_close();
    return test_report("kernels/formula");
}
