#include "kernels/loss.h"

#include "exact.h"
#include "kernel_test.h"

static const size_t shapes[][2] = { { 1, 1 },   { 1, 2 },    { 3, 7 },   { 5, 8 },     { 4, 9 },
                                    { 64, 10 }, { 2, 1000 }, { 17, 33 }, { 4000, 10 }, { 3, 20001 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct problem {
    size_t rows, classes, n;
    float *logits, *probabilities, *row_loss;
    int32_t *labels;
} problem;

static problem problem_create(size_t rows, size_t classes, unsigned *state)
{
    problem p;
    p.rows = rows, p.classes = classes, p.n = rows * classes;
    p.logits = kernel_array(p.n, state);
    p.probabilities = kernel_array(p.n, state);
    p.row_loss = kernel_array(rows, state);
    p.labels = (int32_t *)malloc((rows + 1) * sizeof(int32_t));
    for (size_t i = 0; i < p.n; i++) p.logits[i] *= 8;
    for (size_t r = 0; r < rows; r++) p.labels[r] = (int32_t)(test_random(state) % classes);
    return p;
}

static void problem_destroy(problem *p)
{
    kernel_free(p->logits), kernel_free(p->probabilities), kernel_free(p->row_loss);
    free(p->labels);
}

static float forward(dml_pool *pool, problem *p)
{
    return dml_softmax_cross_entropy_forward(pool, p->rows, p->classes, p->logits, p->labels,
                                             p->probabilities, p->row_loss);
}

/* Also with logits far from 0, which are subtracted from each other before anything else is done to them. */
static void softmax_matches_float64(void)
{
    static const float offsets[] = { 0, 1e4f, -1e4f };
    unsigned state = 1;
    for (int s = 0; s < 3 * SHAPES; s++) {
        problem p = problem_create(shapes[s / 3][0], shapes[s / 3][1], &state);
        for (size_t i = 0; i < p.n; i++) p.logits[i] += offsets[s % 3];
        const float loss = forward(NULL, &p);
        double *want = (double *)malloc(p.classes * sizeof *want);
        double want_loss = 0, worst = 0, worst_loss = 0;
        for (size_t r = 0; r < p.rows; r++) {
            const float *x = p.logits + r * p.classes;
            const double log_sum = exact_softmax(p.classes, x, want);
            for (size_t c = 0; c < p.classes; c++) {
                const double error = fabs((double)p.probabilities[r * p.classes + c] / want[c] - 1);
                if (!(error <= worst)) worst = error;
            }
            const double row_loss = log_sum - (double)x[p.labels[r]];
            const double error = fabs((double)p.row_loss[r] - row_loss) / (1 + row_loss);
            if (!(error <= worst_loss)) worst_loss = error;
            want_loss += row_loss;
        }
        want_loss /= (double)p.rows;
        CHECK_MESSAGE(worst <= exact_roundings(EXACT_SOFTMAX, 1), "%zu x %zu: relative error %g", p.rows,
                      p.classes, worst);
        CHECK_MESSAGE(worst_loss <= exact_roundings(EXACT_LOSS, 1), "%zu x %zu: a row's loss is off by %g",
                      p.rows, p.classes, worst_loss);
        CHECK_NEAR(loss, want_loss, exact_roundings(EXACT_LOSS, 1 + want_loss));
        free(want);
        problem_destroy(&p);
    }
    CHECK(dml_softmax_cross_entropy_forward(NULL, 0, 3, NULL, NULL, NULL, NULL) == 0);
}

/* A row's vectors reach into the next row: it must come out the same over the logits, and wherever the row
   lies, also beside one of NaNs. */
static void softmax_rows_stay_apart(void)
{
    unsigned state = 4;
    for (int s = 0; s < SHAPES; s++) {
        problem p = problem_create(shapes[s][0], shapes[s][1], &state);
        float *in_place = kernel_copy(p.logits, p.n), *row_loss = kernel_copy(p.row_loss, p.rows);
        float *one = kernel_copy(p.logits, p.classes), loss;
        const float want = forward(NULL, &p);
        CHECK(dml_softmax_cross_entropy_forward(kernel_pools[2], p.rows, p.classes, in_place, p.labels,
                                                in_place, row_loss) == want);
        CHECK(kernel_same(in_place, p.probabilities, p.n) && kernel_same(row_loss, p.row_loss, p.rows));
        for (size_t r = 0; r < p.rows; r += 1 + p.rows / 9) {
            dml_softmax_cross_entropy_forward(NULL, 1, p.classes, p.logits + r * p.classes, p.labels + r, one,
                                              &loss);
            CHECK(kernel_same(one, p.probabilities + r * p.classes, p.classes) && loss == p.row_loss[r]);
        }
        for (size_t r = 0; r < p.rows; r += 2)
            for (size_t c = 0; c < p.classes; c++) p.logits[r * p.classes + c] = NAN;
        float *before = kernel_copy(p.probabilities, p.n);
        forward(NULL, &p);
        for (size_t i = 0; i < p.n; i++)
            CHECK(i / p.classes % 2 ? p.probabilities[i] == before[i] : isnan(p.probabilities[i]));
        kernel_free(in_place), kernel_free(row_loss), kernel_free(one), kernel_free(before);
        problem_destroy(&p);
    }
}

static void softmax_special_values(void)
{
    float huge[3] = { 3e38f, -3e38f, 1e38f }, apart[3] = { 0, 200, -200 };
    float out[3], loss[1];
    const int32_t first = 0, second = 1;
    CHECK(dml_softmax_cross_entropy_forward(NULL, 1, 3, huge, &first, out, loss) == 0);
    CHECK(out[0] == 1 && out[1] == 0 && out[2] == 0);
    CHECK(dml_softmax_cross_entropy_forward(NULL, 1, 3, apart, &first, out, loss) == 200);
    CHECK(dml_softmax_cross_entropy_forward(NULL, 1, 3, apart, &second, out, loss) == 0);
    apart[2] = -INFINITY;
    CHECK(dml_softmax_cross_entropy_forward(NULL, 1, 3, apart, &second, out, loss) == 0 && out[2] == 0);
    for (int i = 0; i < 3; i++) {
        float with_nan[3] = { 1, 2, 3 };
        with_nan[i] = NAN;
        CHECK(isnan(dml_softmax_cross_entropy_forward(NULL, 1, 3, with_nan, &first, out, loss)));
        CHECK(isnan(out[0]) && isnan(out[1]) && isnan(out[2]));
    }
}

static void the_same_for_any_threads(void)
{
    unsigned state = 3;
    problem a = problem_create(5003, 11, &state);
    const float want_loss = forward(NULL, &a);
    float *want = kernel_copy(a.probabilities, a.n);
    for (int p = 1; p < KERNEL_POOLS; p++) {
        CHECK(forward(kernel_pools[p], &a) == want_loss);
        CHECK(kernel_same(a.probabilities, want, a.n));
    }
    kernel_free(want);
    problem_destroy(&a);
}

static void all(void)
{
    softmax_matches_float64();
    softmax_special_values();
    softmax_rows_stay_apart();
    the_same_for_any_threads();
}

static void loss(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(loss);
    kernel_pools_close();
    return test_report("kernels/loss");
}
