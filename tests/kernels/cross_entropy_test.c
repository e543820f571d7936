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

/* ---- classes in parts ---- */

enum { MOST_PARTS = 4 };

/* The same problem with the classes in as many parts, each of which has arrays of its own. */
typedef struct parts {
    int count;
    size_t rows, first[MOST_PARTS + 1];
    dml_cross_entropy p[MOST_PARTS];
    float *logits[MOST_PARTS], *gradient[MOST_PARTS];
    float *known; /* (count, DML_CROSS_ENTROPY_PART, rows) */
} parts;

/* Of unlike widths, where there are enough classes. */
static parts parts_create(const problem *a, int count)
{
    parts s;
    memset(&s, 0, sizeof s);
    s.count = count;
    s.rows = a->p.rows;
    const size_t classes = a->p.classes;
    for (int k = 1; k <= count; k++)
        s.first[k] = k == count
                         ? classes
                         : (classes - (size_t)count) * (size_t)(k * k) / (size_t)(count * count) + (size_t)k;
    s.known = (float *)malloc((size_t)count * DML_CROSS_ENTROPY_PART * s.rows * sizeof(float));
    for (int k = 0; k < count; k++) {
        const size_t wide = s.first[k + 1] - s.first[k];
        unsigned state = 5;
        s.logits[k] = kernel_array(s.rows * wide, &state);
        s.gradient[k] = kernel_array(s.rows * wide, &state);
        s.p[k] = a->p;
        s.p[k].classes = wide;
        s.p[k].first = s.first[k];
        s.p[k].all = classes;
        s.p[k].logits = s.logits[k];
        s.p[k].kept = kernel_array(DML_CROSS_ENTROPY_KEPT * s.rows, &state);
        for (size_t i = 0; i < s.rows * wide; i++) {
            const size_t whole = i / wide * classes + s.first[k] + i % wide;
            s.logits[k][i] = a->logits[whole];
            s.gradient[k][i] = a->gradient[whole];
        }
    }
    return s;
}

static void parts_destroy(parts *s)
{
    for (int k = 0; k < s->count; k++)
        kernel_free(s->logits[k]), kernel_free(s->gradient[k]), kernel_free(s->p[k].kept);
    free(s->known);
}

/* What each part makes of them all, which is the same for all. */
static float parts_loss(const parts *s, dml_pool *pool, bool mean, float *scale)
{
    float loss = 0;
    for (int k = 0; k < s->count; k++) {
        dml_cross_entropy_forward_part(pool, &s->p[k]);
        memcpy(s->known + (size_t)k * DML_CROSS_ENTROPY_PART * s->rows, s->p[k].kept,
               DML_CROSS_ENTROPY_PART * s->rows * sizeof(float));
    }
    for (int k = 0; k < s->count; k++) {
        float scale_here;
        const float here = dml_cross_entropy_join(pool, &s->p[k], s->known, s->count, mean, &scale_here);
        if (k == 0) loss = here, *scale = scale_here;
        CHECK(kernel_same(&here, &loss, 1) && kernel_same(&scale_here, scale, 1));
    }
    return loss;
}

static void parts_are_the_whole(void)
{
    unsigned state = 8;
    for (int s = 0; s < SHAPES; s++)
        for (int options = 0; options < 8; options++) {
            const int count = 1 + (s + options) % MOST_PARTS;
            if (shapes[s][1] < (size_t)count || (TEST_EMULATOR && (s * 7 + options) % 5)) continue;
            const int asked = LABELS | (options & 1 ? ROW_WEIGHTS : 0) | (options & 2 ? SMOOTH : 0) |
                              (options & 4 ? IGNORES : 0);
            problem a = problem_create(shapes[s][0], shapes[s][1], asked, &state);
            const float beta = options % 3 == 2 ? 0.25f : 0;
            const bool mean = options % 5 != 4;
            for (size_t i = 0; s % 2 && i < a.n; i++) a.logits[i] += 1e4f;
            parts p = parts_create(&a, count);
            double *want = (double *)malloc((a.n + 1) * sizeof *want), divisor;
            double *unused = (double *)malloc((a.n + 1) * sizeof *unused);
            const double want_loss = exact_cross_entropy(&a.p, mean, &divisor, want, unused);
            float scale, *all = kernel_array(a.n, &state);
            const float loss = parts_loss(&p, kernel_pools[options % 2 ? 2 : 0], mean, &scale);
            CHECK_NEAR(loss, want_loss, exact_roundings(EXACT_LOSS, 1 + want_loss) * fmax(1, 1 / divisor));
            CHECK_NEAR(scale, divisor == 0 ? 0 : 1 / divisor, 1e-6 * fmax(1, 1 / divisor));
            for (int k = 0; k < count; k++) {
                const size_t wide = p.p[k].classes;
                dml_cross_entropy_backward(NULL, &p.p[k], 0.5f, beta, p.gradient[k]);
                for (size_t i = 0; i < p.rows * wide; i++)
                    all[i / wide * a.p.classes + p.first[k] + i % wide] = p.gradient[k][i];
                if (beta != 0) continue;
                dml_cross_entropy_backward(NULL, &p.p[k], 0.5f, 0, p.logits[k]);
                CHECK(kernel_same(p.logits[k], p.gradient[k], p.rows * wide));
            }
            const double worst = worst_error(all, want, a.gradient, beta, 0.5, a.n);
            CHECK_MESSAGE(worst < 1e-6, "%zu x %zu in %d, options %d: error %g", a.p.rows, a.p.classes, count,
                          options, worst);
            free(want), free(unused), kernel_free(all);
            parts_destroy(&p);
            problem_destroy(&a);
        }
}

/* Two parts of two classes each, with that label. */
static float loss_in_parts(const float x[4], int32_t label, float d[4])
{
    dml_cross_entropy whole;
    float kept[2][DML_CROSS_ENTROPY_KEPT], known[2 * DML_CROSS_ENTROPY_PART], loss = 0, scale = 0;
    memset(&whole, 0, sizeof whole);
    whole.rows = whole.each = 1, whole.classes = 2, whole.labels = &label, whole.all = 4;
    whole.ignores = true, whole.ignored = -1;
    dml_cross_entropy p[2] = { whole, whole };
    for (int k = 0; k < 2; k++) {
        p[k].first = (size_t)(2 * k), p[k].logits = x + 2 * k, p[k].kept = kept[k];
        dml_cross_entropy_forward_part(NULL, &p[k]);
        memcpy(known + k * DML_CROSS_ENTROPY_PART, kept[k], DML_CROSS_ENTROPY_PART * sizeof(float));
    }
    for (int k = 0; k < 2; k++) {
        loss = dml_cross_entropy_join(NULL, &p[k], known, 2, true, &scale);
        dml_cross_entropy_backward(NULL, &p[k], scale, 0, d + 2 * k);
    }
    return loss;
}

static void special_values_in_parts(void)
{
    const float filled[4] = { 0, 0, -INFINITY, -INFINITY }, bad[4] = { 0, 1, NAN, NAN };
    const float hidden[4] = { -INFINITY, -INFINITY, -INFINITY, NAN }, huge[4] = { 3e38f, 0, -3e38f, 1e38f };
    float d[4];
    CHECK_NEAR(loss_in_parts(filled, 1, d), 0.6931472, 1e-6);
    CHECK_NEAR(d[0], 0.5, 1e-6);
    CHECK_NEAR(d[1], -0.5, 1e-6);
    CHECK(d[2] == 0 && d[3] == 0);
    CHECK(isnan(loss_in_parts(bad, 0, d)) && isnan(d[0]) && isnan(d[2]));
    CHECK(isnan(loss_in_parts(hidden, 0, d)) && isnan(d[0]));
    const float masked[4] = { -INFINITY, -INFINITY, 0, 0 };
    CHECK(isinf(loss_in_parts(masked, 0, d)) && d[0] == -1 && d[1] == 0);
    CHECK_NEAR(loss_in_parts(masked, 2, d), 0.6931472, 1e-6);
    CHECK(loss_in_parts(bad, -1, d) == 0 && d[0] == 0 && d[2] == 0);
    CHECK(loss_in_parts(huge, 0, d) == 0 && d[0] == 0 && d[1] == 0 && d[2] == 0 && d[3] == 0);
    CHECK(loss_in_parts(huge, 1, d) > 2.9e38f && d[0] == 1 && d[1] == -1 && d[2] == 0 && d[3] == 0);
    dml_cross_entropy none;
    float scale = NAN;
    memset(&none, 0, sizeof none);
    dml_cross_entropy_forward_part(NULL, &none);
    CHECK(dml_cross_entropy_join(NULL, &none, NULL, 2, true, &scale) == 0 && scale == 0);
}

static void parts_for_any_threads(void)
{
    unsigned state = 3;
    problem a = problem_create(5003, 11, LABELS | SMOOTH | ROW_WEIGHTS, &state);
    parts s = parts_create(&a, 3);
    float scale;
    const float want = parts_loss(&s, NULL, true, &scale);
    for (int p = 1; p < KERNEL_POOLS; p++) CHECK(parts_loss(&s, kernel_pools[p], true, &scale) == want);
    parts_destroy(&s);
    problem_destroy(&a);
}

static void all(void)
{
    matches_float64();
    rows_stay_apart();
    special_values();
    classes_of_no_weight();
    the_same_for_any_threads();
    parts_are_the_whole();
    special_values_in_parts();
    parts_for_any_threads();
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
