/* The parts of a step: backward in pieces, what the caller does to g, and updates of one's own. */
#include "train/trainer.h"

#include "base/os_thread.h"
#include "graph/node.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "graph/program_internal.h"

#include "small_model.h"

/* Rows [from, from + n) of the batch. */
static dml_status backward(dml_trainer *t, int from, int n, int flags, float *loss)
{
    return dml_trainer_backward(t, n, DML_INPUTS(rows + 2 * from, labels + from), flags, loss);
}

#define BACKWARD(from, n, flags) CHECK_INT(backward(t, from, n, flags, NULL), DML_OK)

static void check_same(const float *got, const float *want, double tolerance)
{
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], want[i], tolerance);
}

/* g and w after one step on rows [from, from + n) at once. */
static void step_at_once(int from, int n, float momentum, float g[COUNT], float w[COUNT])
{
    dml_trainer *t = small_trainer(0.5f, momentum);
    BACKWARD(from, n, DML_OVERWRITE);
    copy_vector(t, DML_GRADIENTS, g);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, w);
    dml_close(context);
}

/* ---- pieces ---- */

static void pieces_make_one_batch(void)
{
    static const int pieces[][4] = { { 1, 3 }, { 3, 1 }, { 2, 2 }, { 1, 2, 1 }, { 1, 1, 1, 1 } };
    float g[COUNT], w[COUNT], got[COUNT], loss[2], whole;
    step_at_once(0, BATCH, 0.9f, g, w);
    const int variants = slow_here() ? 2 : 5;
    for (int v = 0; v < variants; v++) {
        dml_trainer *t = small_trainer(0.5f, 0.9f);
        int from = 0;
        for (int i = 0; from < BATCH; from += pieces[v][i++]) {
            const bool more = i % 2 && from + pieces[v][i] < BATCH; /* which here only forbids the update */
            BACKWARD(from, pieces[v][i], DML_ADD | (more ? DML_MORE : 0));
            CHECK_INT(dml_trainer_steps(t), 0);
            if (!more) continue;
            CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
            CHECK_CONTAINS(dml_error(context), "without DML_MORE");
            dml_clear_error(context);
        }
        copy_vector(t, DML_GRADIENTS, got);
        check_same(got, g, 2e-7);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        CHECK_INT(dml_trainer_steps(t), 1);
        copy_vector(t, DML_PARAMETERS, got);
        check_same(got, w, 2e-7);
        dml_close(context);
    }
    dml_trainer *t = small_trainer(0.5f, 0.9f); /* each loss is of its own piece */
    CHECK_INT(backward(t, 0, 1, DML_ADD, &loss[0]), DML_OK);
    CHECK_INT(backward(t, 1, 3, DML_ADD, &loss[1]), DML_OK);
    CHECK_INT(backward(t, 0, BATCH, DML_OVERWRITE, &whole), DML_OK);
    CHECK_NEAR(whole, (loss[0] + 3 * loss[1]) / 4, 1e-6);
    dml_close(context);
}
EACH_BACKEND(pieces_make_one_batch)

/* A parameter whose gradient three ops add up: each adds to what g holds too, the first to write it included.
   The loss is the same whatever the batch, and so is the mean. */
static void pieces_of_shared_parameters(void)
{
    enum { N = 7 };
    float g[N], got[N], squares = 0;
    context = open_here(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_uniform(-1, 1), N);
    dml_node *l = dml_mean_squared_error(dml_add(dml_tanh(p), p), dml_sigmoid(p));
    dml_trainer *t = dml_trainer_create(l, &(dml_trainer_options){ .batch = BATCH });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    for (int i = 0; i < 4; i++) {
        CHECK_INT(dml_trainer_backward(t, 1 + i % 3, NULL, 0, i ? DML_ADD : 0, NULL), DML_OK);
        memcpy(got, dml_trainer_get(t, DML_GRADIENTS, 0, N), sizeof got);
        if (i == 0) memcpy(g, got, sizeof g);
        for (int k = 0; k < N; k++) CHECK_NEAR(got[k], g[k], 2e-7);
    }
    for (int k = 0; k < N; k++) squares += g[k] * g[k];
    CHECK(squares > 0.01f);
    dml_close(context);
}
EACH_BACKEND(pieces_of_shared_parameters)

static void when_adding_begins_anew(void)
{
    float first[COUNT], second[COUNT], w[COUNT], got[COUNT], want[COUNT];
    step_at_once(0, 1, 0, first, w);
    dml_trainer *t = small_trainer(0.5f, 0);
    BACKWARD(0, 1, DML_ADD); /* nothing is held: as DML_OVERWRITE, to the bit */
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, first, sizeof got) == 0);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, w, sizeof got) == 0);

    BACKWARD(1, 2, DML_OVERWRITE); /* at this w */
    copy_vector(t, DML_GRADIENTS, second);
    BACKWARD(3, 1, DML_OVERWRITE);
    BACKWARD(1, 2, DML_OVERWRITE); /* whatever was held is gone */
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, second, sizeof got) == 0);
    CHECK_INT(dml_trainer_advance(t), DML_OK); /* a step, though w stayed */
    BACKWARD(1, 2, DML_ADD);
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, second, sizeof got) == 0);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ 0 }), DML_OK); /* so it does after a change of strategy */
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);       /* g was made for another one */
    dml_clear_error(dml_trainer_context(t));
    BACKWARD(1, 2, DML_ADD);
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, second, sizeof got) == 0);

    CHECK_INT(dml_trainer_advance(t), DML_OK);
    dml_trainer_get(t, DML_GRADIENTS, 0, COUNT)[4] = NAN; /* nor does it matter what g is then */
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
    BACKWARD(1, 2, DML_ADD);
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, second, sizeof got) == 0);

    BACKWARD(3, 1, DML_ADD);                                  /* 3 held; ... */
    CHECK_INT(dml_trainer_update_range(t, 0, COUNT), DML_OK); /* ... ranges count no step ... */
    copy_vector(t, DML_PARAMETERS, w);
    copy_vector(t, DML_GRADIENTS, got);
    BACKWARD(0, 1, DML_ADD); /* ... so this is still added */
    copy_vector(t, DML_GRADIENTS, second);
    BACKWARD(0, 1, DML_OVERWRITE);
    copy_vector(t, DML_GRADIENTS, first);
    for (int i = 0; i < COUNT; i++) want[i] = (3 * got[i] + first[i]) / 4;
    check_same(second, want, 2e-7);
    CHECK_INT(dml_trainer_steps(t), 3);
    dml_close(context);
}
EACH_BACKEND(when_adding_begins_anew)

static void a_refused_backward_changes_nothing(void)
{
    static const int32_t wrong[BATCH] = { 0, 3, 0, 0 };
    const void *const bad_labels[] = { rows, wrong };
    const struct {
        int rows;
        const void *const *inputs;
        int count, flags;
        const char *part;
    } bad[] = { { 2, bad_labels, 2, DML_ADD, "it must be in 0 .. 2" },
                { 2, bad_labels, 2, DML_OVERWRITE, "sample 1 of the batch is 3" },
                { 2, inputs, 1, DML_ADD, "1 inputs were given, the program takes 2: x, label" },
                { 2, inputs, 3, DML_OVERWRITE, "3 inputs were given" },
                { 0, inputs, 2, DML_ADD, "a run of 0 samples" },
                { BATCH + 1, inputs, 2, DML_ADD, "1 to 4" },
                { 2, inputs, 2, 4, "flags 4; there are DML_ADD and DML_MORE" },
                { 2, inputs, 2, -1, "flags -1" } };
    float g[COUNT], got[COUNT], whole[COUNT], w[COUNT];
    step_at_once(0, BATCH, 0, whole, w);
    dml_trainer *t = small_trainer(0.5f, 0);
    BACKWARD(0, 3, DML_OVERWRITE);
    copy_vector(t, DML_GRADIENTS, g);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float loss = 7;
        CHECK_INT(dml_trainer_backward(t, bad[i].rows, bad[i].inputs, bad[i].count, bad[i].flags, &loss),
                  DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), bad[i].part);
        CHECK_INT(backward(t, 0, 1, DML_OVERWRITE, &loss), DML_ERROR_ARGUMENT); /* until it is cleared */
        CHECK_INT(dml_trainer_update(t), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_trainer_update_range(t, 0, 1), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_trainer_advance(t), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
        copy_vector(t, DML_GRADIENTS, got);
        CHECK(memcmp(got, g, sizeof g) == 0 && loss == 7);
    }
    CHECK_INT(dml_trainer_steps(t), 0);
    BACKWARD(3, 1, DML_ADD);
    copy_vector(t, DML_GRADIENTS, got);
    check_same(got, whole, 2e-7);
    dml_close(context);
    CHECK_INT(dml_trainer_backward(NULL, 1, inputs, 2, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_update(NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_update_range(NULL, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_advance(NULL), DML_ERROR_ARGUMENT);
}
EACH_BACKEND(a_refused_backward_changes_nothing)

/* ---- updates ---- */

static void ranges_and_advance_are_an_update(void)
{
    static const struct {
        size_t begin, end;
    } bad[] = { { 0, COUNT + 1 }, { 5, 4 }, { COUNT + 1, COUNT + 1 }, { SIZE_MAX, 3 }, { 3, SIZE_MAX } };
    float g[COUNT], w[COUNT], before[COUNT], got[COUNT];
    step_at_once(0, BATCH, 0.9f, g, w);
    dml_trainer *t = small_trainer(0.5f, 0.9f);
    copy_vector(t, DML_PARAMETERS, before);
    BACKWARD(0, BATCH, 0);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(dml_trainer_update_range(t, bad[i].begin, bad[i].end), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "there are 33 trained ones");
        dml_clear_error(context);
    }
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, before, sizeof got) == 0);
    CHECK_INT(dml_trainer_update_range(t, 20, COUNT), DML_OK);
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, before, 20 * sizeof *got) == 0 && memcmp(got + 20, w + 20, 13 * sizeof *got) == 0);
    CHECK_INT(dml_trainer_update_range(t, COUNT, COUNT), DML_OK);
    CHECK_INT(dml_trainer_update_range(t, 0, 20), DML_OK);
    CHECK_INT(dml_trainer_steps(t), 0);
    CHECK_INT(dml_trainer_advance(t), DML_OK);
    CHECK_INT(dml_trainer_steps(t), 1);
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, w, sizeof got) == 0);
    dml_close(context);
}
EACH_BACKEND(ranges_and_advance_are_an_update)

static void clip(dml_trainer *t, double most)
{
    float *g = dml_trainer_get(t, DML_GRADIENTS, 0, COUNT);
    double squares = 0;
    for (int i = 0; i < COUNT; i++) squares += (double)g[i] * g[i];
    const double norm = sqrt(squares);
    CHECK(norm > most);
    for (int i = 0; i < COUNT; i++) g[i] = (float)(g[i] * most / norm);
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
}

static void clipping_is_of_the_gradient_applied(void)
{
    float g[COUNT], w[COUNT], before[COUNT];
    double squares = 0;
    step_at_once(0, BATCH, 0, g, w);
    for (int i = 0; i < COUNT; i++) squares += (double)g[i] * g[i];
    for (int in_pieces = 0; in_pieces < 2; in_pieces++) {
        mock m;
        dml_trainer *t = small_trainer(0.5f, 0);
        copy_vector(t, DML_PARAMETERS, before);
        if (in_pieces) CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK); /* the same under a strategy */
        BACKWARD(0, in_pieces ? 3 : 4, in_pieces ? DML_MORE : 0);
        if (in_pieces) BACKWARD(3, 1, DML_ADD);
        clip(t, 0.1);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        copy_vector(t, DML_PARAMETERS, w);
        for (int i = 0; i < COUNT; i++) CHECK_NEAR(w[i], before[i] - 0.5 * 0.1 * g[i] / sqrt(squares), 2e-7);
        dml_close(context);
    }
}
EACH_BACKEND(clipping_is_of_the_gradient_applied)

/* Sign descent, of the caller's own. */
static void an_optimizer_of_ones_own(void)
{
    float w[COUNT], g[COUNT], got[COUNT], loss[2];
    dml_trainer *t = small_trainer(0.5f, 0);
    copy_vector(t, DML_PARAMETERS, w);
    for (int step = 0; step < 2; step++) {
        CHECK_INT(backward(t, 0, BATCH, DML_ADD, &loss[step]), DML_OK);
        copy_vector(t, DML_GRADIENTS, g);
        float *mine = dml_trainer_get(t, DML_PARAMETERS, 0, COUNT);
        for (int i = 0; i < COUNT; i++) {
            mine[i] -= g[i] > 0 ? 0.01f : -0.01f;
            w[i] -= g[i] > 0 ? 0.01f : -0.01f;
        }
        CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 0, COUNT), DML_OK);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
        copy_vector(t, DML_PARAMETERS, got);
        CHECK(memcmp(got, w, sizeof w) == 0);
    }
    CHECK_INT(dml_trainer_steps(t), 2);
    CHECK(loss[1] < loss[0]);
    BACKWARD(0, BATCH, DML_ADD); /* at the w that was put */
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, g, sizeof g) != 0);
    dml_close(context);
}
EACH_BACKEND(an_optimizer_of_ones_own)

/* ---- pieces under a strategy ---- */

static void a_strategy_sees_sums_of_pieces(void)
{
    mock m;
    float whole[COUNT], w[COUNT], got[COUNT], part[COUNT];
    step_at_once(0, BATCH, 0, whole, w);
    dml_trainer *t = small_trainer(0.5f, 0);
    BACKWARD(0, 1, 0);
    copy_vector(t, DML_GRADIENTS, part);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    BACKWARD(0, 1, DML_ADD | DML_MORE);
    CHECK_STRING(m.events, "start ");
    copy_vector(t, DML_GRADIENTS, got); /* until the last, the sum of this rank's own */
    check_same(got, part, 1e-7);
    BACKWARD(1, 2, DML_ADD | DML_MORE);
    CHECK_STRING(m.events, "start ");
    for (int part_of_update = 0; part_of_update < 3; part_of_update++) {
        CHECK_INT(part_of_update == 0   ? dml_trainer_update(t)
                  : part_of_update == 1 ? dml_trainer_update_range(t, 0, 1)
                                        : dml_trainer_advance(t),
                  DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "the gradient waits for more");
        CHECK_CONTAINS(dml_error(context), "without DML_MORE");
        dml_clear_error(context);
        CHECK_INT(dml_trainer_steps(t), 0);
    }
    BACKWARD(3, 1, DML_ADD);
    CHECK_STRING(m.events, "start begin ready ready finish ");
    CHECK(m.samples == 4);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(m.g[i], 4 * whole[i], 1e-6);
    copy_vector(t, DML_GRADIENTS, got);
    check_same(got, whole, 2e-7);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, got);
    check_same(got, w, 2e-7);

    BACKWARD(0, 4, DML_MORE); /* dropped: */
    BACKWARD(0, 2, DML_OVERWRITE);
    CHECK(m.samples == 2);
    CHECK_INT(dml_trainer_update(t), DML_OK); /* which waits for nothing any more */
    BACKWARD(0, 4, DML_MORE);                 /* so is this, by a step */
    CHECK_INT(dml_trainer_step(t, 3, inputs, 2, NULL), DML_OK);
    CHECK(m.samples == 3);
    CHECK_INT(dml_trainer_steps(t), 3);
    dml_close(context);
}
EACH_BACKEND(a_strategy_sees_sums_of_pieces)

/* Three ranks, of which this is one. What was combined before is a mean over the samples of all; of its sum
   each rank passes on a third. */
static void what_ranks_hold_together(void)
{
    mock m;
    float a[COUNT], b[COUNT], got[COUNT];
    dml_trainer *t = small_trainer(0.5f, 0);
    BACKWARD(0, 2, 0);
    copy_vector(t, DML_GRADIENTS, a); /* means */
    BACKWARD(2, 2, 0);
    copy_vector(t, DML_GRADIENTS, b);
    dml_sync sync = sync_with(&m);
    sync.ranks = 3;
    CHECK_INT(dml_trainer_sync(t, sync), DML_OK);
    m.all_samples = 7; /* the others had 5, and gradients of 0 */
    BACKWARD(0, 2, DML_ADD);
    CHECK(m.samples == 2);
    copy_vector(t, DML_GRADIENTS, got); /* what finish said decides */
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], a[i] * 2 / 7, 2e-7);

    m.all_samples = 11;
    m.most_samples = 7 / 3.0 + 2;
    BACKWARD(2, 2, DML_ADD);
    CHECK_NEAR(m.samples, 7 / 3.0 + 2, 1e-12);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(m.g[i], a[i] * 2 / 3 + b[i] * 2, 1e-6);
    copy_vector(t, DML_GRADIENTS, got);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], (a[i] * 2 / 3 + b[i] * 2) / 11, 2e-7);

    m.all_samples = 0;
    m.most_samples = 11 / 3.0 + 4;
    BACKWARD(0, 2, DML_ADD | DML_MORE); /* a third of what all hold, once */
    for (int i = 0; i < COUNT; i++) got[i] = (a[i] * 2 / 3 + b[i] * 2) / 3 + a[i] * 2;
    check_same(dml_trainer_get(t, DML_GRADIENTS, 0, COUNT), got, 1e-6);
    BACKWARD(2, 2, DML_ADD);
    CHECK_NEAR(m.samples, 11 / 3.0 + 4, 1e-12);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(m.g[i], got[i] + b[i] * 2, 2e-6);

    m.most_samples = m.samples / 3; /* no samples, but a part of what is held */
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, DML_ADD, NULL), DML_OK);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(m.g[i], (got[i] + b[i] * 2) / 3, 1e-6);
    dml_close(context);
}
EACH_BACKEND(what_ranks_hold_together)

static void pieces_without_samples(void)
{
    mock m;
    float want[COUNT], w[COUNT], got[COUNT], loss = 7;
    step_at_once(0, 2, 0, want, w);
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, DML_ADD | DML_MORE, &loss), DML_OK);
    CHECK(loss == 0);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE); /* the other ranks wait */
    dml_clear_error(context);
    BACKWARD(0, 2, DML_ADD | DML_MORE);
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, DML_ADD, &loss), DML_OK);
    CHECK(m.samples == 2);
    CHECK_STRING(m.events, "start begin ready ready finish ");
    copy_vector(t, DML_GRADIENTS, got);
    check_same(got, want, 2e-7);
    CHECK_INT(dml_trainer_update(t), DML_OK);

    copy_vector(t, DML_PARAMETERS, w);
    m.events[0] = '\0';
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, DML_ADD, &loss), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "a global batch of 0 samples");
    CHECK_STRING(m.events, "begin ready ready finish failed ");
    dml_clear_error(context);
    BACKWARD(0, 1, DML_MORE | DML_ADD);
    m.fail = "ready";
    CHECK_INT(backward(t, 1, 1, DML_ADD, NULL), DML_ERROR_PEER);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_advance(t), DML_OK); /* g isn't left waiting, ... */
    BACKWARD(0, 1, DML_MORE | DML_ADD);
    m.fail = "finish";
    CHECK_INT(backward(t, 1, 1, DML_ADD, NULL), DML_ERROR_PEER);
    dml_clear_error(context);
    BACKWARD(0, 1, DML_ADD); /* ... nor was anything kept of what failed; one sample is enough */
    CHECK(m.samples == 1);
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, w, sizeof w) == 0);
    dml_close(context);
}
EACH_BACKEND(pieces_without_samples)

/* ---- company ---- */

static void another_thread_is_in_the_context(void)
{
    backend_here = find_backend("cpu");
    mock m, second;
    float w[COUNT], g[COUNT], got[COUNT], loss = 7;
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    BACKWARD(0, 2, 0);
    copy_vector(t, DML_PARAMETERS, w);
    copy_vector(t, DML_GRADIENTS, g);
    m.events[0] = '\0';
    context->inside = dml__thread_self() + 1;
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_ERROR_STATE);
    CHECK_INT(backward(t, 0, 2, DML_ADD, &loss), DML_ERROR_STATE);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
    CHECK_INT(dml_trainer_update_range(t, 0, 3), DML_ERROR_STATE);
    CHECK_INT(dml_trainer_advance(t), DML_ERROR_STATE);
    CHECK_INT(dml_trainer_sync(t, sync_with(&second)), DML_ERROR_STATE);
    CHECK_STRING(second.events, "destroy ");
    CHECK_STRING(m.events, ""); /* the strategy attached stays so */
    CHECK(!dml_trainer_create(dml_trainer_program(t)->output, &(dml_trainer_options){ .batch = 1 }));
    CHECK(context->inside == dml__thread_self() + 1);
    context->inside = 0;
    CHECK_CONTAINS(dml_error(context), "another thread is in a call"); /* for this one alone */
    CHECK(loss == 7 && dml_trainer_steps(t) == 0);
    copy_vector(t, DML_PARAMETERS, got);
    CHECK(memcmp(got, w, sizeof w) == 0);
    copy_vector(t, DML_GRADIENTS, got);
    CHECK(memcmp(got, g, sizeof g) == 0);
    BACKWARD(2, 2, DML_ADD);
    CHECK(m.samples == BATCH); /* still held */
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK(context->inside == 0 && dml_trainer_program(t)->graph->readers == 0);
    dml_close(context);
}

static void programs_predict_on_other_threads(void)
{
    backend_here = find_backend("cpu");
    mock m;
    float w[COUNT], g[COUNT], got[COUNT];
    dml_trainer *t = small_trainer(0.5f, 0);
    int *readers = &dml_trainer_program(t)->graph->readers;
    BACKWARD(0, 2, 0);
    copy_vector(t, DML_PARAMETERS, w);
    copy_vector(t, DML_GRADIENTS, g);
    *readers = 2;
    for (int i = 0; i < 5; i++) {
        CHECK_INT(i == 0   ? dml_trainer_step(t, BATCH, inputs, 2, NULL)
                  : i == 1 ? dml_trainer_update(t)
                  : i == 2 ? dml_trainer_update_range(t, 0, 3)
                  : i == 3 ? dml_trainer_advance(t)
                           : dml_trainer_sync(t, sync_with(&m)),
                  DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "while programs predict on other threads");
        CHECK(*readers == 2 && context->inside == 0 && dml_trainer_steps(t) == 0);
        dml_clear_error(context);
        copy_vector(t, DML_PARAMETERS, got);
        CHECK(memcmp(got, w, sizeof w) == 0);
        copy_vector(t, DML_GRADIENTS, got);
        CHECK(memcmp(got, g, sizeof g) == 0);
    }
    CHECK_STRING(m.events, "destroy ");
    BACKWARD(2, 2, DML_ADD); /* w stays, so it may */
    *readers = 0;
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK_INT(*readers, 0);
    CHECK_INT(dml_trainer_update_range(t, 0, COUNT + 1), DML_ERROR_ARGUMENT); /* a failure lets go too */
    CHECK_INT(*readers, 0);
    dml_close(context);
}

/* Frozen parameters lie behind the trained ones, and no part of a step touches them. */
static void frozen_parameters(void)
{
    enum { FROZEN = 3 * WIDTH, TRAINED = COUNT - FROZEN };
    float w[COUNT], got[COUNT];
    context = open_here(NULL);
    dml_node *loss = small_loss();
    CHECK_INT(dml_parameter_train(dml_graph_find(loss->graph, "dense_1.weight"), false), DML_OK);
    CHECK_INT(dml_parameter_train(dml_graph_find(loss->graph, "dense_1.bias"), false), DML_OK);
    const dml_optimizer optimizer = {
        .kind = DML_SGD, .lr = 0.5f, .momentum = 0.9f, .weight_decay = 0.1f
    }; /* decay would move them */
    dml_trainer *t =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = BATCH, .optimizer = optimizer });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    CHECK_INT(dml_trainer_count(t, DML_PARAMETERS), COUNT);
    CHECK_INT(dml_trainer_count(t, DML_GRADIENTS), TRAINED);
    CHECK_INT(dml_trainer_count(t, DML_OPTIMIZER_STATE), TRAINED);
    copy_vector(t, DML_PARAMETERS, w);
    BACKWARD(0, 3, DML_ADD);
    BACKWARD(3, 1, DML_ADD);
    CHECK_INT(dml_trainer_update_range(t, 0, TRAINED + 1), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "there are 18 trained ones");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, got);
    for (int i = 0; i < COUNT; i++) CHECK_MESSAGE((got[i] == w[i]) == (i >= TRAINED), "w[%d]", i);
    dml_close(context);
}
EACH_BACKEND(frozen_parameters)

static void runs_are_taken_on(void)
{
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0.9f);
    dml_trainer_run run = {
        { .kind = DML_SGD, .lr = 0.25f, .momentum = 0.5f, .weight_decay = 0.125f, .nesterov = true },
        3,
        UINT64_MAX,
        0,
        0,
        7
    };
    CHECK_INT(dml_trainer_set_run(t, &run), DML_OK);
    const dml_trainer_run first = dml_trainer_get_run(t);
    const dml_optimizer *o = &first.optimizer;
    CHECK(o->kind == DML_SGD && o->lr == 0.25f && o->momentum == 0.5f && o->weight_decay == 0.125f &&
          o->nesterov && first.seed == 3 && first.steps == UINT64_MAX && first.skipped == 7 &&
          context->seed == 3);
    const dml_optimizer bad[] = { { .kind = DML_SGD, .lr = 0.1f },
                                  { .kind = DML_SGD, .lr = -1, .momentum = 0.5f },
                                  { .kind = (dml_optimizer_kind)7, .lr = 0.1f, .momentum = 0.5f } };
    const char *parts[] = { "with momentum 0 can't go on by sgd with momentum 0.5", "lr -1", "kind 7" };
    for (int i = 0; i < 3; i++) {
        run.optimizer = bad[i];
        run.seed = run.steps = run.skipped = 9;
        CHECK_INT(dml_trainer_set_run(t, &run), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), parts[i]);
        dml_clear_error(context);
        const dml_trainer_run now = dml_trainer_get_run(t);
        CHECK(now.optimizer.lr == 0.25f && now.optimizer.momentum == 0.5f && now.seed == 3 &&
              now.steps == UINT64_MAX && now.skipped == 7);
    }
    CHECK_INT(dml_trainer_set_run(t, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_set_run(NULL, &run), DML_ERROR_ARGUMENT);
    CHECK(dml_trainer_get_run(NULL).steps == 0);
    dml_close(context);
}

/* A gradient that a failure left half-made is never applied; the caller's own may be. */
static void a_spoiled_gradient_is_not_applied(void)
{
    mock m;
    float before[COUNT], after[COUNT];
    backend_here = find_backend("cpu");
    device_here = 0;
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    copy_vector(t, DML_PARAMETERS, before);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "no backward pass was made");
    dml_clear_error(context);
    m.fail = "ready";
    CHECK_INT(dml_trainer_backward(t, 2, inputs, 2, DML_OVERWRITE, NULL), DML_ERROR_PEER);
    m.fail = NULL;
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "the last one failed");
    dml_clear_error(context);
    copy_vector(t, DML_PARAMETERS, after);
    CHECK(memcmp(before, after, sizeof before) == 0 && dml_trainer_steps(t) == 0);
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK_INT(dml_trainer_step(t, 2, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_trainer_steps(t), 2);
    dml_close(context);
}

/* As one that waits for several pieces, of which a later one fails. */
static dml_status put_and_fail(void *state, dml_trainer *trainer, double *samples)
{
    (void)state, (void)samples;
    CHECK_INT(dml_trainer_put(trainer, DML_GRADIENTS, 0, 3), DML_OK);
    return dml_trainer_fail(trainer, DML_ERROR_PEER, "the rest didn't come");
}

static void a_gradient_put_in_part_is_not_applied(void)
{
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ .finish = put_and_fail }), DML_OK);
    CHECK_INT(backward(t, 0, 2, DML_OVERWRITE, NULL), DML_ERROR_PEER);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "the last one failed");
    dml_close(context);
}

/* ---- a strategy that updates ---- */

/* The first half by the optimizer, the second left as it is. */
static dml_status update_half(void *state, dml_trainer *trainer)
{
    ++*(int *)state;
    return dml_trainer_update_range(trainer, 0, COUNT / 2);
}

static void a_strategy_updates_instead(void)
{
    float g[COUNT], w[COUNT], first[COUNT], got[COUNT];
    int calls = 0;
    step_at_once(0, BATCH, 0.9f, g, w);
    dml_trainer *t = small_trainer(0.5f, 0.9f);
    copy_vector(t, DML_PARAMETERS, first);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ .state = &calls, .update = update_half }), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, DML_INPUTS(rows, labels), NULL), DML_OK);
    CHECK_INT(calls, 1);
    CHECK_INT(dml_trainer_steps(t), 1);
    copy_vector(t, DML_PARAMETERS, got);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], i < COUNT / 2 ? w[i] : first[i], 0);
    BACKWARD(0, BATCH, DML_OVERWRITE);
    CHECK_INT(dml_trainer_update_range(t, 0, 1), DML_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dml_error(context), "elements 0 to 1");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK_INT(calls, 2);
    CHECK_INT(dml_trainer_steps(t), 2);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(pieces_make_one_batch);
    RUN_EACH(pieces_of_shared_parameters);
    RUN_EACH(when_adding_begins_anew);
    RUN_EACH(a_refused_backward_changes_nothing);
    RUN_EACH(ranges_and_advance_are_an_update);
    RUN_EACH(clipping_is_of_the_gradient_applied);
    RUN_EACH(an_optimizer_of_ones_own);
    RUN_EACH(a_strategy_sees_sums_of_pieces);
    RUN_EACH(what_ranks_hold_together);
    RUN_EACH(pieces_without_samples);
    RUN(another_thread_is_in_the_context);
    RUN(programs_predict_on_other_threads);
    RUN_EACH(frozen_parameters);
    RUN(runs_are_taken_on);
    RUN(a_strategy_updates_instead);
    RUN(a_spoiled_gradient_is_not_applied);
    RUN(a_gradient_put_in_part_is_not_applied);
    return test_report("train/parts");
}
