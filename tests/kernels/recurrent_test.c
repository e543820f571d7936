/* Recurrent cells over sequences: the outputs beside float64, the gradients beside the change of float64's
   outputs along a random direction, the same bits for any number of threads and any scratch. */
#include "kernels/recurrent.h"

#include "kernel_test.h"

typedef struct sequence {
    dml_recurrent_shape shape;
    bool bias, lengths, shared_state; /* one initial state for all samples */
} sequence;

static const sequence sequences[] = {
    { { DML_CELL_LSTM, false, 1, 1, 1, 1 }, true, false, false },
    { { DML_CELL_LSTM, false, 3, 4, 5, 9 }, true, true, false },
    { { DML_CELL_LSTM, true, 14, 5, 3, 17 }, false, true, true },
    { { DML_CELL_LSTM, false, 26, 3, 20, 64 }, true, false, false },
    { { DML_CELL_LSTM, false, 2, 2, 7, 130 }, true, true, false }, /* few steps of few samples */
    { { DML_CELL_GRU, false, 1, 1, 1, 1 }, false, false, false },
    { { DML_CELL_GRU, true, 13, 5, 4, 11 }, true, true, false },
    { { DML_CELL_GRU, false, 5, 4, 3, 70 }, true, false, true },
    { { DML_CELL_GRU, false, 1, 3, 9, 100 }, false, false, false },
    { { DML_CELL_TANH, false, 1, 6, 2, 1 }, true, true, false },
    { { DML_CELL_TANH, true, 25, 4, 6, 33 }, true, true, false },
    { { DML_CELL_RELU, false, 7, 3, 5, 12 }, true, false, false },
    { { DML_CELL_TANH, false, 2, 4, 3, 530 }, true, false, false }, /* several blocks of k */
};
enum { SEQUENCES = sizeof sequences / sizeof sequences[0] };

enum { X, W_IH, W_HH, B_IH, B_HH, H0, C0, ARRAYS };
typedef struct values {
    size_t count[ARRAYS];
    float *at[ARRAYS]; /* NULL: not there */
    float *gradient[ARRAYS];
    int32_t *lengths;
    size_t ny, nn;          /* of y, and of each last state */
    float *y, *n, *dy, *dn; /* n: h, then c, side by side for each sample */
} values;

static size_t size_of(int n)
{
    return (size_t)n;
}

static values values_open(const sequence *q, unsigned seed)
{
    const dml_recurrent_shape *s = &q->shape;
    const size_t gates = s->cell == DML_CELL_LSTM ? 4 : s->cell == DML_CELL_GRU ? 3 : 1;
    const size_t units = size_of(s->units), batch = size_of(s->batch), steps = size_of(s->steps);
    const size_t state = (q->shared_state ? 1 : batch) * units;
    const size_t count[ARRAYS] = {
        batch * steps * size_of(s->inputs),  gates * units * size_of(s->inputs), gates * units * units,
        q->bias ? gates * units : 0,         q->bias ? gates * units : 0,        state,
        s->cell == DML_CELL_LSTM ? state : 0
    };
    values v;
    memset(&v, 0, sizeof v);
    for (int a = 0; a < ARRAYS; a++) {
        v.count[a] = count[a];
        if (!count[a]) continue;
        v.at[a] = kernel_array(count[a], &seed);
        v.gradient[a] = kernel_array(count[a], &seed);
        for (size_t i = 0; a == W_HH && i < count[a]; i++) v.at[a][i] *= 1.5f / sqrtf((float)s->units);
    }
    v.lengths = (int32_t *)malloc((batch + 1) * sizeof *v.lengths);
    for (size_t b = 0; b < batch; b++) v.lengths[b] = (int32_t)((b * 3 + 1) % (steps + 1));
    v.ny = batch * steps * units;
    v.nn = batch * units * 2;
    v.y = kernel_array(v.ny, &seed), v.dy = kernel_array(v.ny, &seed);
    v.n = kernel_array(v.nn, &seed), v.dn = kernel_array(v.nn, &seed);
    return v;
}

static void values_close(values *v)
{
    for (int a = 0; a < ARRAYS; a++)
        if (v->at[a]) kernel_free(v->at[a]), kernel_free(v->gradient[a]);
    kernel_free(v->y), kernel_free(v->n), kernel_free(v->dy), kernel_free(v->dn);
    free(v->lengths);
}

static dml_recurrent_arrays arrays_of(const sequence *q, const values *v, float *work)
{
    const size_t units = size_of(q->shape.units);
    dml_recurrent_arrays a;
    a.x = v->at[X], a.w_ih = v->at[W_IH], a.w_hh = v->at[W_HH];
    a.b_ih = v->at[B_IH], a.b_hh = v->at[B_HH], a.h0 = v->at[H0], a.c0 = v->at[C0];
    a.h0_step = a.c0_step = q->shared_state ? 0 : units;
    a.lengths = q->lengths ? v->lengths : NULL;
    a.y = v->y, a.y_step = size_of(q->shape.steps) * units;
    a.h_n = v->n, a.c_n = q->shape.cell == DML_CELL_LSTM ? v->n + units : NULL, a.n_step = 2 * units;
    a.work = work;
    return a;
}

/* A pass there and back on a pool; gradients begin as they are, and beta is 0.5. */
static void run(dml_pool *pool, const sequence *q, values *v)
{
    const bool lstm = q->shape.cell == DML_CELL_LSTM;
    const size_t n = dml_recurrent_work(&q->shape);
    float *work = (float *)malloc((n + 1) * sizeof *work);
    for (size_t i = 0; i < n; i++) work[i] = NAN;
    const dml_recurrent_arrays a = arrays_of(q, v, work);
    dml_recurrent_gradients g;
    memset(&g, 0, sizeof g);
    g.dy = v->dy, g.dh_n = v->dn, g.dc_n = lstm ? v->dn + q->shape.units : NULL;
    g.dx = v->gradient[X], g.dw_ih = v->gradient[W_IH], g.dw_hh = v->gradient[W_HH];
    g.db_ih = v->gradient[B_IH], g.db_hh = v->gradient[B_HH];
    g.dh0 = v->gradient[H0], g.dc0 = v->gradient[C0];
    g.beta.x = g.beta.w_ih = g.beta.w_hh = g.beta.b_ih = g.beta.b_hh = g.beta.h0 = g.beta.c0 = 0.5f;
    dml_recurrent_forward(pool, &q->shape, &a);
    dml_recurrent_backward(pool, &q->shape, &a, &g);
    free(work);
}

/* ---- in float64 ---- */

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* The outputs of all samples, y and n as in values. */
static void exact(const sequence *q, const values *v, double *const *at, double *y, double *n)
{
    const dml_recurrent_shape *s = &q->shape;
    const int units = s->units, gates = s->cell == DML_CELL_LSTM ? 4 : s->cell == DML_CELL_GRU ? 3 : 1;
    double *h = (double *)malloc(size_of(units) * 3 * sizeof *h), *c = h + units, *next = c + units;
    for (int b = 0; b < s->batch; b++) {
        const int length = q->lengths ? v->lengths[b] : s->steps;
        for (int j = 0; j < units; j++) {
            h[j] = at[H0][(q->shared_state ? 0 : b * units) + j];
            c[j] = at[C0] ? at[C0][(q->shared_state ? 0 : b * units) + j] : 0;
        }
        for (int i = 0; i < s->steps * units; i++) y[b * s->steps * units + i] = 0;
        for (int k = 0; k < length; k++) {
            const int t = s->reverse ? length - 1 - k : k;
            const double *x = at[X] + (b * s->steps + t) * s->inputs;
            for (int j = 0; j < units; j++) {
                double ih[4] = { 0 }, hh[4] = { 0 };
                for (int g = 0; g < gates; g++) {
                    const int row = g * units + j;
                    if (at[B_IH]) ih[g] = at[B_IH][row], hh[g] = at[B_HH][row];
                    for (int i = 0; i < s->inputs; i++) ih[g] += at[W_IH][row * s->inputs + i] * x[i];
                    for (int i = 0; i < units; i++) hh[g] += at[W_HH][row * units + i] * h[i];
                }
                if (s->cell == DML_CELL_LSTM) {
                    c[j] = logistic(ih[1] + hh[1]) * c[j] + logistic(ih[0] + hh[0]) * tanh(ih[2] + hh[2]);
                    next[j] = logistic(ih[3] + hh[3]) * tanh(c[j]);
                } else if (s->cell == DML_CELL_GRU) {
                    const double z = logistic(ih[1] + hh[1]);
                    next[j] = (1 - z) * tanh(ih[2] + logistic(ih[0] + hh[0]) * hh[2]) + z * h[j];
                } else {
                    next[j] = s->cell == DML_CELL_TANH ? tanh(ih[0] + hh[0]) : fmax(ih[0] + hh[0], 0);
                }
            }
            for (int j = 0; j < units; j++) h[j] = y[(b * s->steps + t) * units + j] = next[j];
        }
        for (int j = 0; j < units; j++) n[b * 2 * units + j] = h[j], n[b * 2 * units + units + j] = c[j];
    }
    free(h);
}

/* What the gradients of y and n make of the outputs, with everything moved by `distance` along `direction`.
 */
static double loss_at(const sequence *q, const values *v, float *const *direction, double distance)
{
    double *at[ARRAYS] = { NULL }, loss = 0;
    double *y = (double *)malloc((v->ny + 1) * sizeof *y), *n = (double *)malloc((v->nn + 1) * sizeof *n);
    for (int a = 0; a < ARRAYS; a++) {
        if (!v->count[a]) continue;
        at[a] = (double *)malloc(v->count[a] * sizeof(double));
        for (size_t i = 0; i < v->count[a]; i++)
            at[a][i] = (double)v->at[a][i] + distance * (double)direction[a][i];
    }
    exact(q, v, at, y, n);
    const size_t units = size_of(q->shape.units);
    for (size_t i = 0; i < v->ny; i++) loss += y[i] * (double)v->dy[i];
    for (size_t i = 0; i < v->nn; i++)
        if (q->shape.cell == DML_CELL_LSTM || i % (2 * units) < units) loss += n[i] * (double)v->dn[i];
    for (int a = 0; a < ARRAYS; a++) free(at[a]);
    free(y), free(n);
    return loss;
}

/* Along a direction in which one array alone moves, so that a mistake in a small one shows. */
static void check_gradients(const sequence *q, const values *v, float *const *old, int index)
{
    for (int moved = 0; moved < ARRAYS; moved++) {
        float *direction[ARRAYS] = { NULL };
        unsigned seed = 31;
        double got = 0, size = 1e-3;
        if (!v->count[moved]) continue;
        for (int a = 0; a < ARRAYS; a++) {
            direction[a] = (float *)calloc(v->count[a] + 1, sizeof(float));
            if (a == moved) test_fill(&seed, direction[a], v->count[a]);
        }
        for (size_t i = 0; i < v->count[moved]; i++) {
            const double g = (double)v->gradient[moved][i] - 0.5 * (double)old[moved][i];
            got += g * (double)direction[moved][i];
            size += fabs(g * (double)direction[moved][i]);
        }
        const double h = 1e-6, want = (loss_at(q, v, direction, h) - loss_at(q, v, direction, -h)) / (2 * h);
        CHECK_MESSAGE(fabs(got - want) <= 2e-6 * (size + fabs(want)) + 1e-6,
                      "sequence %d: the gradient of array %d is off by %.2g of %.2g", index, moved,
                      got - want, size);
        for (int a = 0; a < ARRAYS; a++) free(direction[a]);
    }
}

static void beside_float64(void)
{
    for (int k = 0; k < SEQUENCES; k += TEST_EMULATOR ? 2 : 1) {
        const sequence *q = &sequences[k];
        values v = values_open(q, 77);
        float *old[ARRAYS] = { NULL };
        double *at[ARRAYS] = { NULL };
        double *y = (double *)malloc((v.ny + 1) * sizeof *y), *n = (double *)malloc((v.nn + 1) * sizeof *n);
        for (int a = 0; a < ARRAYS; a++) {
            if (!v.count[a]) continue;
            old[a] = kernel_copy(v.gradient[a], v.count[a]);
            at[a] = (double *)malloc(v.count[a] * sizeof(double));
            for (size_t i = 0; i < v.count[a]; i++) at[a][i] = (double)v.at[a][i];
        }
        run(kernel_pools[2], q, &v);
        exact(q, &v, at, y, n);
        double error = 0, largest = 1;
        for (size_t i = 0; i < v.ny; i++) {
            error = fmax(error, isfinite(v.y[i]) ? fabs((double)v.y[i] - y[i]) : HUGE_VAL);
            largest = fmax(largest, fabs(y[i])); /* of relu */
        }
        CHECK_MESSAGE(error <= 2e-6 * largest, "sequence %d: its output is off by %.2g", k, error);
        error = 0;
        for (size_t i = 0; i < v.nn; i++) {
            if (q->shape.cell != DML_CELL_LSTM &&
                i % (2 * size_of(q->shape.units)) >= size_of(q->shape.units))
                continue;
            error = fmax(error, isfinite(v.n[i]) ? fabs((double)v.n[i] - n[i]) : HUGE_VAL);
        }
        CHECK_MESSAGE(error <= 4e-6 * largest, "sequence %d: its last states are off by %.2g", k, error);
        check_gradients(q, &v, old, k);
        for (int a = 0; a < ARRAYS; a++)
            if (old[a]) kernel_free(old[a]), free(at[a]);
        free(y), free(n);
        values_close(&v);
    }
}

static void each_isa(void)
{
    kernel_each_isa(beside_float64);
}

/* ---- the same bits ---- */

static void check_same(const values *a, const values *b, int index, const char *how)
{
    bool same = kernel_same(a->y, b->y, a->ny) && kernel_same(a->n, b->n, a->nn);
    for (int i = 0; i < ARRAYS; i++) same = same && kernel_same(a->gradient[i], b->gradient[i], a->count[i]);
    CHECK_MESSAGE(same, "sequence %d: other bits with %s", index, how);
}

static void any_pool_makes_the_same(void)
{
    for (int k = 0; k < SEQUENCES; k += TEST_EMULATOR ? 3 : 1) {
        const sequence *q = &sequences[k];
        values first = values_open(q, 5);
        run(NULL, q, &first); /* without scratch */
        for (int p = 1; p < KERNEL_POOLS; p++) {
            values other = values_open(q, 5);
            run(kernel_pools[p], q, &other);
            check_same(&first, &other, k, "threads");
            values_close(&other);
        }
        const dml_scratch most = dml_recurrent_scratch(&q->shape, true);
        for (int part = 1; part <= 3; part++) {
            dml_pool_options options;
            memset(&options, 0, sizeof options);
            options.threads = 2;
            options.scratch.worker = most.worker * size_of(part) / 3 / 4 * 4;
            options.scratch.shared = most.shared * size_of(part) / 3 / 4 * 4;
            dml_pool *pool = dml_pool_create(&options);
            values other = values_open(q, 5);
            CHECK(pool);
            run(pool, q, &other);
            check_same(&first, &other, k, "scratch");
            values_close(&other);
            dml_pool_destroy(pool);
        }
        values_close(&first);
    }
}

/* ---- the rest ---- */

/* Of a sample that holds a NaN or an infinity, and the one after it. */
static void special_values(void)
{
    for (int cell = 0; cell < 4; cell++) {
        const sequence q = { { (dml_cell)cell, false, 2, 3, 2, 5 }, true, false, false };
        values v = values_open(&q, 3), clean = values_open(&q, 3);
        float *work = (float *)malloc(dml_recurrent_work(&q.shape) * sizeof *work);
        dml_recurrent_arrays a = arrays_of(&q, &v, work), b = arrays_of(&q, &clean, work);
        dml_recurrent_forward(NULL, &q.shape, &b);
        v.at[X][2] = NAN; /* step 1 of sample 0 */
        dml_recurrent_forward(NULL, &q.shape, &a);
        CHECK(kernel_same(v.y, clean.y, 5) && kernel_same(v.y + 15, clean.y + 15, 15));
        for (int i = 5; i < 15; i++) CHECK(isnan(v.y[i]));
        v.at[X][2] = HUGE_VALF;
        dml_recurrent_forward(NULL, &q.shape, &a);
        CHECK(kernel_same(v.y, clean.y, 5) && kernel_same(v.y + 15, clean.y + 15, 15));
        for (int i = 5; i < 10; i++) CHECK(cell == DML_CELL_RELU || fabsf(v.y[i]) <= 1);
        free(work);
        values_close(&v), values_close(&clean);
    }
}

/* Nothing is read or written where there is nothing; gradients that aren't wanted aren't. */
static void nothing(void)
{
    static const dml_recurrent_shape none[] = { { DML_CELL_LSTM, false, 0, 3, 2, 5 },
                                                { DML_CELL_GRU, true, 2, 0, 2, 5 },
                                                { DML_CELL_TANH, false, 2, 3, 2, 0 } };
    dml_recurrent_arrays a;
    dml_recurrent_gradients g;
    memset(&a, 0, sizeof a);
    memset(&g, 0, sizeof g);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(dml_recurrent_work(&none[i]), 0);
        CHECK_INT(dml_recurrent_scratch(&none[i], true).worker, 0);
        dml_recurrent_forward(NULL, &none[i], &a);
        dml_recurrent_backward(NULL, &none[i], &a, &g);
    }
    const sequence q = { { DML_CELL_LSTM, false, 3, 2, 2, 5 }, true, false, false };
    values v = values_open(&q, 8);
    float *work = (float *)malloc(dml_recurrent_work(&q.shape) * sizeof *work);
    a = arrays_of(&q, &v, work);
    a.y = a.h_n = a.c_n = NULL;
    dml_recurrent_forward(NULL, &q.shape, &a);
    dml_recurrent_backward(NULL, &q.shape, &a, &g); /* zeros of no outputs, wanted by nobody */
    g.dw_ih = v.gradient[W_IH];
    for (size_t i = 0; i < v.count[W_IH]; i++) v.gradient[W_IH][i] = NAN;
    dml_recurrent_forward(NULL, &q.shape, &a);
    dml_recurrent_backward(NULL, &q.shape, &a, &g);
    for (size_t i = 0; i < v.count[W_IH]; i++) CHECK(v.gradient[W_IH][i] == 0);
    free(work);
    values_close(&v);
    const dml_recurrent_shape most = { DML_CELL_LSTM, false, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX };
    CHECK(dml_recurrent_work(&most) == SIZE_MAX / 8);
}

int main(void)
{
    kernel_pools_open();
    RUN(each_isa);
    RUN(any_pool_makes_the_same);
    RUN(special_values);
    RUN(nothing);
    kernel_pools_close();
    return test_report("kernels/recurrent");
}
