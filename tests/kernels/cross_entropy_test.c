#include "kernels/cross_entropy.h"

#include "exact.h"
#include "kernel_test.h"

static const size_t shapes[][2] = { { 1, 1 },    { 1, 2 },   { 3, 7 },    { 5, 8 },  { 4, 9 },    { 64, 10 },
                                    { 2, 1000 }, { 17, 33 }, { 700, 10 }, { 9, 32 }, { 3, 20001 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

enum { LABELS = 1, CLASS_WEIGHTS = 2, ROW_WEIGHTS = 4, SMOOTH = 8, IGNORES = 16, OPTIONS = 32 };

typedef struct problem {
    size_t n;
    dml_cross_entropy p;
    float *logits, *target, *of_class, *of_row, *gradient, *gradient_target;
    int32_t *labels;
} problem;

static problem problem_create(size_t rows, size_t classes, int options, unsigned *state)
{
    problem a;
    memset(&a, 0, sizeof a);
    a.n = rows * classes;
    a.p.rows = rows, a.p.classes = classes, a.p.each = rows % 2 ? 1 : 2;
    a.logits = kernel_array(a.n, state);
    a.target = kernel_array(a.n, state);
    a.of_class = kernel_array(classes, state);
    a.of_row = kernel_array(rows, state);
    a.gradient = kernel_array(a.n, state);
    a.gradient_target = kernel_array(a.n, state);
    a.p.kept = kernel_array(DML_CROSS_ENTROPY_KEPT * rows, state);
    a.labels = (int32_t *)malloc((rows + 1) * sizeof(int32_t));
    for (size_t i = 0; i < a.n; i++) a.logits[i] *= 8, a.target[i] = fabsf(a.target[i]);
    for (size_t c = 0; c < classes; c++) a.of_class[c] = fabsf(a.of_class[c]);
    for (size_t r = 0; r < rows; r++) {
        a.of_row[r] = fabsf(a.of_row[r]);
        a.labels[r] = (int32_t)(test_random(state) % classes);
        if ((options & IGNORES) && (options & LABELS) && r % 3 == 1) a.labels[r] = -100;
    }
    a.p.logits = a.logits;
    if (options & LABELS)
        a.p.labels = a.labels;
    else
        a.p.target = a.target;
    if (options & CLASS_WEIGHTS) a.p.class_weights = a.of_class;
    if (options & ROW_WEIGHTS) a.p.row_weights = a.of_row;
    if (options & SMOOTH) a.p.smoothing = 0.3f;
    a.p.ignores = (options & IGNORES) != 0;
    a.p.ignored = -100;
    return a;
}

static void problem_destroy(problem *a)
{
    kernel_free(a->logits), kernel_free(a->target), kernel_free(a->of_class), kernel_free(a->of_row);
    kernel_free(a->gradient), kernel_free(a->gradient_target), kernel_free(a->p.kept);
    free(a->labels);
}

/* The loss, and the gradients of the sum over rows of weight x loss, in float64. */
static double exact_cross_entropy(const dml_cross_entropy *p, bool mean, double *divisor, double *gradient,
                                  double *gradient_target)
{
    double total = 0;
    double *softmax = (double *)malloc(p->classes * sizeof *softmax);
    *divisor = 0;
    for (size_t r = 0; r < p->rows; r++) {
        const float *x = p->logits + r * p->classes;
        const double log_sum = exact_softmax(p->classes, x, softmax);
        double weight = p->row_weights ? (double)p->row_weights[r / p->each] : 1, whole = 0;
        const int label = p->labels ? p->labels[r] : -1;
        if (p->labels && p->ignores && label == p->ignored) weight = 0;
        for (size_t c = 0; c < p->classes; c++) {
            const double t = p->labels ? (int)c == label : (double)p->target[r * p->classes + c];
            const double w = p->class_weights ? (double)p->class_weights[c] : 1, s = (double)p->smoothing;
            const double q = w * (t * (1 - s) + s / (double)p->classes);
            const size_t i = r * p->classes + c;
            whole += q;
            total += weight * q * (log_sum - (double)x[c]);
            gradient[i] = -weight * q;
            gradient_target[i] = weight * w * (1 - s) * (log_sum - (double)x[c]);
        }
        for (size_t c = 0; c < p->classes; c++) gradient[r * p->classes + c] += weight * whole * softmax[c];
        if (weight != 0)
            *divisor += weight * (p->labels && p->class_weights ? (double)p->class_weights[label] : 1);
    }
    free(softmax);
    if (!mean) *divisor = 1;
    return *divisor == 0 ? 0 : total / *divisor;
}

static double worst_error(const float *got, const double *want, const float *old, float beta, double scale,
                          size_t n)
{
    double worst = 0, largest = 0.05;
    for (size_t i = 0; i < n; i++) {
        const double value = scale * want[i] + (beta == 0 ? 0 : (double)beta * (double)old[i]);
        const double error = fabs((double)got[i] - value);
        largest = fmax(largest, fabs(value));
        if (!(error <= worst)) worst = error;
    }
    return worst / largest;
}

static void matches_float64(void)
{
    unsigned state = 1;
    for (int s = 0; s < SHAPES; s++)
        for (int options = 0; options < OPTIONS; options++) {
            if (TEST_EMULATOR && s + options > 1 && (s * 7 + options) % 11) continue;
            if (shapes[s][0] * shapes[s][1] > 3000 && options % 7 != 1) continue;
            problem a = problem_create(shapes[s][0], shapes[s][1], options, &state);
            const float beta = options % 3 == 2 ? 0.25f : 0;
            const bool mean = options % 5 != 4;
            float *old = kernel_copy(a.gradient, a.n), *old_target = kernel_copy(a.gradient_target, a.n),
                  scale;
            double *want = (double *)malloc((a.n + 1) * sizeof *want), divisor;
            double *want_target = (double *)malloc((a.n + 1) * sizeof *want_target);
            for (size_t i = 0; s % 2 && i < a.n; i++) a.logits[i] += 1e4f;
            for (size_t i = 0; beta == 0 && i < a.n; i++) a.gradient[i] = a.gradient_target[i] = NAN;
            const double want_loss = exact_cross_entropy(&a.p, mean, &divisor, want, want_target);
            const float loss = dml_cross_entropy_forward(NULL, &a.p, mean, &scale);
            CHECK_NEAR(loss, want_loss, exact_roundings(EXACT_LOSS, 1 + want_loss) * fmax(1, 1 / divisor));
            CHECK_NEAR(scale, divisor == 0 ? 0 : 1 / divisor, 1e-6 * fmax(1, 1 / divisor));
            dml_cross_entropy_backward(NULL, &a.p, 0.5f, beta, a.gradient);
            dml_cross_entropy_backward_target(NULL, &a.p, 0.5f, beta, a.gradient_target);
            const double worst = worst_error(a.gradient, want, old, beta, 0.5, a.n);
            const double worst_target =
                worst_error(a.gradient_target, want_target, old_target, beta, 0.5, a.n);
            CHECK_MESSAGE(worst < 1e-6 && worst_target < 1e-6, "%zu x %zu, options %d: errors %g, %g",
                          a.p.rows, a.p.classes, options, worst, worst_target);
            if (beta == 0) {
                dml_cross_entropy_backward(kernel_pools[2], &a.p, 0.5f, 0, a.logits);
                CHECK(kernel_same(a.logits, a.gradient, a.n));
            }
            free(want), free(want_target);
            kernel_free(old), kernel_free(old_target);
            problem_destroy(&a);
        }
    dml_cross_entropy none;
    float scale = NAN;
    memset(&none, 0, sizeof none);
    CHECK(dml_cross_entropy_forward(NULL, &none, true, &scale) == 0 && scale == 0);
    dml_cross_entropy_backward(NULL, &none, 1, 0, NULL);
}

/* A row's last vector reaches into the next row: it must come out the same wherever the row lies, also beside
   one of NaNs. */
static void rows_stay_apart(void)
{
    unsigned state = 4;
    for (int s = 0; s < SHAPES; s++) {
        problem a = problem_create(shapes[s][0], shapes[s][1], LABELS, &state);
        const size_t classes = a.p.classes;
        float scale, *one = kernel_array(classes, &state), kept[DML_CROSS_ENTROPY_KEPT];
        dml_cross_entropy_forward(NULL, &a.p, true, &scale);
        dml_cross_entropy_backward(NULL, &a.p, 1, 0, a.gradient);
        for (size_t r = 0; r < a.p.rows; r += 1 + a.p.rows / 9) {
            dml_cross_entropy p = a.p;
            p.rows = 1, p.logits += r * classes, p.labels += r, p.kept = kept;
            dml_cross_entropy_forward(NULL, &p, true, &scale);
            dml_cross_entropy_backward(NULL, &p, 1, 0, one);
            CHECK(kernel_same(one, a.gradient + r * classes, classes));
        }
        for (size_t i = 0; i < a.n; i++)
            if (i / classes % 2 == 0) a.logits[i] = NAN;
        float *before = kernel_copy(a.gradient, a.n);
        CHECK(isnan(dml_cross_entropy_forward(NULL, &a.p, true, &scale)));
        dml_cross_entropy_backward(NULL, &a.p, 1, 0, a.gradient);
        for (size_t i = 0; i < a.n; i++)
            CHECK(i / classes % 2 ? a.gradient[i] == before[i] : isnan(a.gradient[i]));
        kernel_free(one), kernel_free(before);
        problem_destroy(&a);
    }
}

static float loss_of(const float *x, int32_t label, float *gradient)
{
    float kept[DML_CROSS_ENTROPY_KEPT], scale;
    dml_cross_entropy p;
    memset(&p, 0, sizeof p);
    p.rows = p.each = 1, p.classes = 3, p.logits = x, p.labels = &label, p.kept = kept;
    p.ignores = true, p.ignored = -1;
    const float loss = dml_cross_entropy_forward(NULL, &p, true, &scale);
    dml_cross_entropy_backward(NULL, &p, scale, 0, gradient);
    return loss;
}

static void special_values(void)
{
    const float huge[3] = { 3e38f, -3e38f, 1e38f }, apart[3] = { 0, 200, -INFINITY }, bad[3] = { 1, NAN, 2 };
    float d[3];
    CHECK(loss_of(huge, 0, d) == 0 && d[0] == 0 && d[1] == 0 && d[2] == 0);
    CHECK(loss_of(apart, 0, d) == 200 && d[0] == -1 && d[1] == 1 && d[2] == 0);
    CHECK(loss_of(apart, 1, d) == 0 && d[0] < 1e-30f);
    CHECK(isinf(loss_of(apart, 2, d)));
    CHECK(isnan(loss_of(bad, 0, d)) && isnan(d[0]) && isnan(d[2]));
    CHECK(loss_of(bad, -1, d) == 0 && d[0] == 0 && d[1] == 0 &&
          d[2] == 0); /* what is ignored isn't looked at */
}

/* Rows whose class weighs nothing aren't looked at, unless they are smoothed. */
static void classes_of_no_weight(void)
{
    static const float rows[][4] = { { NAN, 1, 0.5f, 2 },
                                     { -INFINITY, 1, 0.5f, 2 },
                                     { INFINITY, 1, 0.5f, 2 } };
    static const int32_t labels[][2] = { { 0, 1 }, { 0, 1 }, { 0, 0 } };
    static const float of_class[2] = { 0, 1 };
    for (int i = 0; i < 6; i++) {
        float kept[2 * DML_CROSS_ENTROPY_KEPT], d[4], scale;
        dml_cross_entropy p;
        memset(&p, 0, sizeof p);
        p.rows = p.classes = 2, p.each = 1, p.logits = rows[i % 3], p.labels = labels[i % 3], p.kept = kept;
        p.class_weights = of_class, p.smoothing = i / 3 ? 0.5f : 0;
        const float loss = dml_cross_entropy_forward(NULL, &p, false, &scale);
        dml_cross_entropy_backward(NULL, &p, scale, 0, d);
        if (i == 3) CHECK(isnan(loss));
        if (i >= 3) continue;
        CHECK_NEAR(loss, i == 2 ? 0 : 0.2014133, 1e-6);
        CHECK(d[0] == 0 && d[1] == 0);
        CHECK_NEAR(d[2], i == 2 ? 0 : 0.1824255, 1e-6);
    }
}

static void the_same_for_any_threads(void)
{
    unsigned state = 3;
    problem a = problem_create(5003, 11, LABELS | SMOOTH | ROW_WEIGHTS, &state);
    float *old = kernel_copy(a.gradient, a.n), scale;
    const float want_loss = dml_cross_entropy_forward(NULL, &a.p, true, &scale);
    dml_cross_entropy_backward(NULL, &a.p, 0.1f, 0.7f, a.gradient);
    float *want = kernel_copy(a.gradient, a.n);
    for (int p = 1; p < KERNEL_POOLS; p++) {
        memcpy(a.gradient, old, a.n * sizeof(float));
        CHECK(dml_cross_entropy_forward(kernel_pools[p], &a.p, true, &scale) == want_loss);
        dml_cross_entropy_backward(kernel_pools[p], &a.p, 0.1f, 0.7f, a.gradient);
        CHECK(kernel_same(a.gradient, want, a.n));
    }
    kernel_free(want), kernel_free(old);
    problem_destroy(&a);
}

static void all(void)
{
    matches_float64();
    rows_stay_apart();
    special_values();
    classes_of_no_weight();
    the_same_for_any_threads();
}

static void cross_entropy(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(cross_entropy);
    kernel_pools_close();
    return test_report("kernels/cross_entropy");
}
