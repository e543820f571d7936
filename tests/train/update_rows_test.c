/* Sparse parameters: their gradient is that of others at all times, whoever writes to it, and their update
   leaves rows without a gradient alone. */
#include "train/trainer.h"

#include "graph/gradient_rows.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_loss.h"
#include "train/trainer_internal.h"

#include "../graph/backends.h"

enum { ROWS = 40, L = 3, BATCH = 4, MOST_WIDTH = 70, MOST = ROWS * MOST_WIDTH + 128 };

/* How the table is read besides by bags. */
enum { BY_BAGS, BY_WORDS_TOO, BY_A_PRODUCT_TOO, WAYS };

typedef struct twin {
    dml_context *context;
    dml_trainer *trainer;
    dml_node *table;
    size_t count;
} twin;

static twin open_twin(int width, int way, bool sparse, int threads, dml_trainer_options options)
{
    twin t;
    t.context = open_here(&(dml_options){ .threads = threads, .seed = 5 });
    dml_graph *g = dml_graph_create(t.context);
    dml_node *x = dml_dense(dml_input(g, "x", DML_F32, 2), 1), *at = dml_input(g, "at", DML_I32, L);
    t.table = dml_parameter(g, "table", dml_init_normal(0, 1), ROWS, width);
    CHECK_INT(dml_parameter_set_sparse(t.table, sparse), DML_OK);
    dml_node *y = dml_embedding_bag_with(at, dml_input(g, "by", DML_F32, L), t.table, NULL);
    if (way == BY_WORDS_TOO) y = dml_add(y, dml_embedding_with(dml_input(g, "word", DML_I32), t.table));
    if (way == BY_A_PRODUCT_TOO) y = dml_dense_with(y, t.table, NULL);
    y = dml_add(dml_dense(y, 1), x);
    options.batch = BATCH;
    t.trainer = dml_trainer_create(dml_mean_squared_error(y, dml_input(g, "t", DML_F32, 1)), &options);
    CHECK_MESSAGE(t.trainer, "%s", dml_error(t.context));
    t.count = dml_graph_trained_count(g);
    CHECK(t.count <= MOST);
    return t;
}

static unsigned state;

typedef struct samples {
    float x[BATCH * 2], by[BATCH * L], t[BATCH];
    int32_t at[BATCH * L], word[BATCH];
} samples;

static samples random_samples(void)
{
    samples s;
    test_fill(&state, s.x, BATCH * 2), test_fill(&state, s.by, BATCH * L), test_fill(&state, s.t, BATCH);
    for (int i = 0; i < BATCH * L; i++) s.at[i] = (int32_t)(test_random(&state) % (ROWS + 1)) - 1;
    for (int i = 0; i < BATCH; i++) s.word[i] = (int32_t)(test_random(&state) % ROWS);
    return s;
}

static dml_status backward(const twin *t, const samples *s, int way, int rows, int flags)
{
    if (way == BY_WORDS_TOO)
        return dml_trainer_backward(t->trainer, rows, DML_INPUTS(s->x, s->at, s->by, s->word, s->t), flags,
                                    NULL);
    return dml_trainer_backward(t->trainer, rows, DML_INPUTS(s->x, s->at, s->by, s->t), flags, NULL);
}

static void check_same(const twin *a, const twin *b, int vector, const char *when)
{
    static float copy[MOST];
    memcpy(copy, dml_trainer_get(a->trainer, vector, 0, a->count), a->count * sizeof copy[0]);
    const float *other = dml_trainer_get(b->trainer, vector, 0, b->count);
    for (size_t i = 0; i < a->count; i++)
        CHECK_MESSAGE(copy[i] == other[i] || (isnan(copy[i]) && isnan(other[i])),
                      "%s: vector %d, [%zu]: %g and %g", when, vector, i, (double)copy[i], (double)other[i]);
}

/* Adds to some elements of g, as a strategy or a caller does. */
static void change_gradient(const twin *t, size_t place)
{
    float *g = dml_trainer_get(t->trainer, DML_GRADIENTS, 0, t->count);
    g[place] += 0.5f, g[t->count - 1] += 0.25f;
    CHECK_INT(dml_trainer_put(t->trainer, DML_GRADIENTS, 0, t->count), DML_OK);
}

static dml_status spread(void *place, dml_trainer *trainer, double *samples)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    g[*(size_t *)place] += 2;
    CHECK(*samples > 0);
    dml_device *device = &trainer->context->device;
    return device->host_memory ? DML_OK
                               : device->backend->write(device, dml__trainer_ref(trainer, DML_GRADIENTS, 0),
                                                        g, n * sizeof *g);
}

/* What happens in a step besides. */
enum { NOTHING, ADDS, CHANGES, SHARES, SWAPS, SPOILS, UPDATES_TWICE, EVENTS };

static void run_events(int width, int way, dml_trainer_options options)
{
    twin a = open_twin(width, way, true, 2, options), b = open_twin(width, way, false, 1, options);
    const twin *both[] = { &a, &b };
    const bool averages = options.average > 0;
    state = 3;
    for (int step = 0; step < 3 * EVENTS; step++) {
        const int event = step < EVENTS ? step : (int)(test_random(&state) % EVENTS);
        const size_t place = test_random(&state) % a.count;
        const samples s = random_samples(), more = random_samples(), most = random_samples();
        for (int i = 0; i < 2; i++) {
            dml_trainer *t = both[i]->trainer;
            if (event ==
                SPOILS) { /* a NaN, which goes everywhere if norms are clipped; no element is updated */
                samples nan = s;
                nan.t[0] = NAN;
                CHECK_INT(backward(both[i], &nan, way, BATCH, DML_OVERWRITE), DML_OK);
                CHECK_INT(dml_trainer_update_range(t, 0, 0), DML_OK);
            }
            if (event == SHARES) {
                size_t at = place;
                const dml_sync sync = { .state = &at, .finish = spread, .ranks = 1 };
                CHECK_INT(dml_trainer_sync(t, sync), DML_OK);
                CHECK_INT(backward(both[i], &more, way, 2, DML_OVERWRITE), DML_OK);
                CHECK_INT(dml_trainer_sync(t, (dml_sync){ .ranks = 0 }), DML_OK);
            }
            CHECK_INT(backward(both[i], &s, way, 1 + step % BATCH, DML_OVERWRITE), DML_OK);
            if (event == ADDS) {
                CHECK_INT(backward(both[i], &more, way, BATCH, DML_ADD), DML_OK);
                CHECK_INT(backward(both[i], &most, way, BATCH, DML_ADD), DML_OK);
            }
            if (event == CHANGES) change_gradient(both[i], place);
        }
        check_same(&a, &b, DML_GRADIENTS, "after backward");
        for (int i = 0; i < 2; i++) {
            dml_trainer *t = both[i]->trainer;
            const size_t cut = a.trainer->row->whole ? 0 : a.count / 3;
            CHECK_INT(dml_trainer_update_range(t, cut, a.count), DML_OK);
            CHECK_INT(dml_trainer_update_range(t, 0, cut), DML_OK);
            CHECK_INT(dml_trainer_advance(t), DML_OK);
            if (event == UPDATES_TWICE && !a.trainer->row->whole) CHECK_INT(dml_trainer_update(t), DML_OK);
            if (averages && event == SWAPS) {
                CHECK_INT(dml_trainer_swap_average(t), DML_OK);
                CHECK_INT(dml_trainer_swap_average(t), DML_OK);
            }
        }
        for (int v = 0; v < a.trainer->vectors; v++)
            if (v != DML_GRADIENTS) check_same(&a, &b, v, "after the update");
    }
    dml_close(a.context), dml_close(b.context);
}

/* By rules that leave alone what has no gradient, a sparse parameter's numbers are any other's. */
static void as_any_other(void)
{
    static const int widths[] = { 1, 5, 70 };
    for (int w = 0; w < 3; w++)
        for (int way = 0; way < WAYS; way++) {
            if (slow_here() && w + way != 2) continue;
            if (way == BY_A_PRODUCT_TOO && w == 0) continue;
            dml_trainer_options options = { .optimizer =
                                                way == BY_WORDS_TOO ? dml_adagrad(0.1f) : dml_sgd(0.05f, 0) };
            if (way == BY_BAGS) options.clip_norm = 0.5f, options.average = 0.75f;
            run_events(widths[w], way, options);
        }
    run_events(2, BY_BAGS, (dml_trainer_options){ .optimizer = dml_lars(0.01f, 0.5f) });
}
EACH_BACKEND(as_any_other)

/* By the others, rows without a gradient stay, and the rest are what the rule makes of all, for any number of
   threads and wherever a range is cut. */
static void rows_stay(void)
{
    static const int widths[] = { 1, 5, 70 };
    for (int w = 0; w < 3; w++) {
        const dml_optimizer optimizers[] = { dml_adamw(0.01f, 0.1f), dml_sgd(0.1f, 0.5f),
                                             dml_rmsprop(0.01f) };
        const dml_optimizer o = optimizers[w];
        twin t[3];
        static float want[4][MOST];
        for (int k = 0; k < 3; k++)
            t[k] = open_twin(widths[w], BY_BAGS, true, k + 1, (dml_trainer_options){ .optimizer = o });
        const size_t count = t[0].count, begin = dml_parameter_offset(t[0].table), width = (size_t)widths[w];
        const int vectors = t[0].trainer->vectors;
        state = 9;
        for (int step = 0; step < 5; step++) {
            const samples s = random_samples();
            for (int k = 0; k < 3; k++) CHECK_INT(backward(&t[k], &s, BY_BAGS, BATCH, DML_OVERWRITE), DML_OK);
            for (int v = 0; v < vectors; v++)
                memcpy(want[v], dml_trainer_get(t[0].trainer, v, 0, count), count * sizeof(float));
            float *const of[2] = { want[DML_OPTIMIZER_STATE], want[DML_OPTIMIZER_STATE + 1] };
            CHECK_INT(dml_optimizer_update(&o, NULL, (uint64_t)step, count, want[0], want[1], of), DML_OK);
            int stayed = 0;
            for (size_t i = 0; i < count; i++) { /* those that stay */
                bool zero = i >= begin && i < begin + ROWS * width;
                for (size_t c = 0; zero && c < width; c++)
                    zero = want[1][begin + (i - begin) / width * width + c] == 0;
                for (int v = 0; zero && v < vectors; v++)
                    want[v][i] = dml_trainer_get(t[0].trainer, v, i, i + 1)[0];
                stayed += zero;
            }
            CHECK(stayed >= (ROWS - BATCH * L) * widths[w]);
            const size_t cut = begin + (size_t)(step + 3) * width + width / 2;
            for (int k = 0; k < 3; k++) {
                if (k) CHECK_INT(dml_trainer_update_range(t[k].trainer, cut, count), DML_OK);
                CHECK_INT(dml_trainer_update_range(t[k].trainer, 0, k ? cut : count), DML_OK);
                CHECK_INT(dml_trainer_advance(t[k].trainer), DML_OK);
            }
            for (int v = 0; v < vectors; v++) {
                const float *got = dml_trainer_get(t[0].trainer, v, 0, count);
                for (size_t i = 0; i < count; i++)
                    CHECK_MESSAGE(fabsf(got[i] - want[v][i]) <= 1e-6f * fmaxf(1, fabsf(want[v][i])),
                                  "width %d, step %d: vector %d, [%zu] is %g, not %g", widths[w], step, v, i,
                                  (double)got[i], (double)want[v][i]);
                for (int k = 1; k < 3; k++) check_same(&t[0], &t[k], v, "threads");
            }
        }
        for (int k = 0; k < 3; k++) dml_close(t[k].context);
    }
}
EACH_BACKEND(rows_stay)

/* What isn't met is neither cleared nor looked at, on a device where that is known. */
static void absent_rows_are_not_touched(void)
{
    backend_here = find_backend("cpu");
    twin t = open_twin(2, BY_WORDS_TOO, true, 1, (dml_trainer_options){ .optimizer = dml_adam(0.1f) });
    const size_t begin = dml_parameter_offset(t.table), last = begin + (ROWS - 1) * 2;
    float *g = dml_trainer_host(t.trainer, DML_GRADIENTS, 0, t.count);
    samples s = random_samples();
    for (int i = 0; i < BATCH * L; i++) s.at[i] %= ROWS - 1;
    for (int i = 0; i < BATCH; i++) s.word[i] %= ROWS - 1;
    g[last] = NAN; /* unsaid */
    for (int step = 0; step < 3; step++) {
        CHECK_INT(backward(&t, &s, BY_WORDS_TOO, BATCH, DML_OVERWRITE), DML_OK);
        CHECK_INT(dml_trainer_update(t.trainer), DML_OK);
    }
    CHECK(isnan(g[last]));
    CHECK(isfinite(dml_trainer_get(t.trainer, DML_PARAMETERS, last, last + 1)[0]));
    CHECK_INT(dml_trainer_put(t.trainer, DML_GRADIENTS, 0, t.count), DML_OK); /* said */
    CHECK_INT(backward(&t, &s, BY_WORDS_TOO, BATCH, DML_OVERWRITE), DML_OK);
    CHECK(g[last] == 0);
    dml_close(t.context);
}

int main(void)
{
    RUN_EACH(as_any_other);
    RUN_EACH(rows_stay);
    RUN(absent_rows_are_not_touched);
    return test_report("train/update_rows");
}
