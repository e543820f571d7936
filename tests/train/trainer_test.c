/* Trainers: what a step does, the flat vectors, sync strategies, threads. */
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_pool2d.h"

#include "small_model.h"

static void a_step(void)
{
    float before[COUNT], g[COUNT], after[COUNT], loss = 0, again = 0;
    dml_trainer *t = small_trainer(0.25f, 0);
    CHECK_INT(dml_trainer_count(t, DML_PARAMETERS), COUNT);
    CHECK_INT(dml_trainer_vectors(t), 2);
    CHECK(dml_trainer_context(t) == context && dml_program_inputs(dml_trainer_program(t)) == 2);
    copy_vector(t, DML_PARAMETERS, before);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_OK);
    copy_vector(t, DML_GRADIENTS, g);
    copy_vector(t, DML_PARAMETERS, after);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(after[i], before[i] - 0.25f * g[i], 1e-6);
    CHECK(loss > 0.1f && loss < 5);
    CHECK_INT(dml_trainer_steps(t), 1);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &again), DML_OK);
    CHECK(again < loss);
    dml_trainer_run run = dml_trainer_get_run(t);
    run.steps = 1000;
    CHECK_INT(dml_trainer_set_run(t, &run), DML_OK);
    CHECK_INT(dml_trainer_steps(t), 1000);
    dml_close(context);
}
EACH_BACKEND(a_step)

static void get_and_put(void)
{
    float w[COUNT], now[COUNT], loss[2];
    dml_trainer *t = small_trainer(0.1f, 0.9f);
    CHECK_INT(dml_trainer_vectors(t), 3);
    copy_vector(t, DML_OPTIMIZER_STATE, w);
    for (int i = 0; i < COUNT; i++) CHECK(w[i] == 0);
    copy_vector(t, DML_PARAMETERS, w);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss[0]), DML_OK);
    float *part = dml_trainer_get(t, DML_PARAMETERS, 7, 20); /* back to the start, in two parts */
    CHECK(part && memcmp(part, w + 7, 13 * sizeof *w) != 0);
    memcpy(part, w + 7, 13 * sizeof *w);
    CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 7, 20), DML_OK);
    copy_vector(t, DML_PARAMETERS, now);
    CHECK(memcmp(now + 7, w + 7, 13 * sizeof *w) == 0);
    CHECK(memcmp(now, w, sizeof now) != 0);
    float *all = dml_trainer_get(t, DML_PARAMETERS, 0, COUNT);
    memcpy(all, w, sizeof w);
    CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 0, COUNT), DML_OK);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss[1]), DML_OK);
    CHECK(loss[0] == loss[1]);
    CHECK(dml_trainer_get(t, DML_GRADIENTS, COUNT, COUNT)); /* empty ranges are ranges */
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 3, 3), DML_OK);
    dml_close(context);
}
EACH_BACKEND(get_and_put)

/* The driver's threads are the parent's. */
static void a_forked_device_is_left_alone(void)
{
    dml_trainer *t = small_trainer(0.1f, 0);
    dml_graph *graph = dml_trainer_program(t)->graph;
    CHECK(dml_trainer_get(t, DML_PARAMETERS, 0, COUNT) && dml_graph_get(graph, 0, COUNT));
    if (!context->device.host_memory) {
        context->process ^= 1;
        CHECK(!dml_trainer_get(t, DML_PARAMETERS, 0, COUNT) && !dml_graph_get(graph, 0, COUNT));
        CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "forked");
        CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 0, COUNT), DML_ERROR_STATE);
        CHECK_INT(dml_graph_put(graph, 0, COUNT), DML_ERROR_STATE);
        context->process ^= 1;
        dml_clear_error(context);
    }
    CHECK_INT(dml_trainer_put(t, DML_PARAMETERS, 0, COUNT), DML_OK);
    CHECK_INT(dml_graph_put(graph, 0, COUNT), DML_OK);
    dml_close(context);
}
EACH_BACKEND(a_forked_device_is_left_alone)

static void ranges_that_are_not_there(void)
{
    static const struct {
        int vector;
        size_t begin, end;
    } bad[] = { { 2, 0, 1 }, { -1, 0, 1 }, { 0, 5, 4 }, { 1, 0, COUNT + 1 }, { 0, SIZE_MAX, SIZE_MAX } };
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.1f, 0);
    for (int i = 0; i < 5; i++) {
        CHECK(!dml_trainer_get(t, bad[i].vector, bad[i].begin, bad[i].end));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "there are 2 vectors");
        dml_clear_error(context);
        CHECK_INT(dml_trainer_put(t, bad[i].vector, bad[i].begin, bad[i].end), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
    }
    dml_close(context);
}

static void bad_steps(void)
{
    backend_here = find_backend("cpu");
    float before[COUNT], after[COUNT], loss = 7;
    dml_trainer *t = small_trainer(0.1f, 0);
    const int32_t wrong[BATCH] = { 0, 3, 0, 0 };
    const void *bad_labels[] = { rows, wrong }, *no_labels[] = { rows, NULL };
    copy_vector(t, DML_PARAMETERS, before);
    const struct {
        int rows;
        const void *const *inputs;
        const char *part;
    } bad[] = { { 0, inputs, "a run of 0 samples" },
                { BATCH + 1, inputs, "1 to 4" },
                { -1, inputs, "-1 samples" },
                { BATCH, NULL, "input 'x': input 1 of 2 is NULL" },
                { BATCH, no_labels, "input 'label'" },
                { BATCH, bad_labels, "sample 1 of the batch is 3, it must be in 0 .. 2" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(dml_trainer_step(t, bad[i].rows, bad[i].inputs, 2, &loss), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), bad[i].part);
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, &loss), DML_ERROR_ARGUMENT); /* until it is cleared */
        dml_clear_error(context);
    }
    copy_vector(t, DML_PARAMETERS, after);
    CHECK(memcmp(before, after, sizeof before) == 0 && loss == 7 && dml_trainer_steps(t) == 0);
    CHECK(!dml_trainer_create(small_loss(), NULL));
    CHECK_CONTAINS(dml_error(context), "a batch of 0");
    dml_close(context);

    CHECK_INT(dml_trainer_step(NULL, 1, inputs, 2, &loss), DML_ERROR_ARGUMENT);
    CHECK(!dml_trainer_program(NULL) && !dml_trainer_context(NULL) && !dml_trainer_get(NULL, 0, 0, 0));
    CHECK_INT(dml_trainer_put(NULL, 0, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_sync(NULL, (dml_sync){ 0 }), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_fail(NULL, DML_ERROR_PEER, "%d", 1), DML_ERROR_PEER);
    CHECK(dml_trainer_steps(NULL) == 0 && dml_trainer_vectors(NULL) == 0 && dml_trainer_lr(NULL) == 0);
    dml_trainer_set_lr(NULL, 1);
    CHECK_INT(dml_trainer_set_run(NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_get_run(NULL).steps, 0);
    dml_trainer_destroy(NULL);
}

/* ---- learning ---- */

/* Three classes around three corners, far enough apart to be told apart. */
static float train_on_corners(int steps)
{
    enum { ROWS = 12 };
    float x[ROWS * 2], loss = NAN;
    int32_t label[ROWS];
    unsigned random = 17;
    context = open_here(NULL);
    dml_trainer *t = dml_trainer_create(
        small_loss(), &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_sgd(0.2f, 0.9f) });
    for (int step = 0; step < steps; step++) {
        test_fill(&random, x, ROWS * 2);
        for (int r = 0; r < ROWS; r++) {
            label[r] = (int32_t)(test_random(&random) % 3);
            x[2 * r] = 0.3f * x[2 * r] + (label[r] == 1 ? 1.0f : -1.0f);
            x[2 * r + 1] = 0.3f * x[2 * r + 1] + (label[r] == 2 ? 1.0f : -1.0f);
        }
        const void *const fed[] = { x, label };
        if (step < 2) CHECK_INT(dml_trainer_step(t, ROWS, fed, 2, &loss), DML_OK);
        if (step == 0) CHECK_NEAR(loss, log(3), 1);
        if (step >= 2) CHECK_INT(dml_trainer_step(t, ROWS - step % 3, fed, 2, &loss), DML_OK);
    }
    dml_close(context);
    return loss;
}

static void it_learns(void)
{
    if (!slow_here()) CHECK(train_on_corners(150) < 0.02);
    const dml_backend *backend = backend_here;
    const float here = train_on_corners(10);
    backend_here = find_backend("cpu");
    CHECK_NEAR(here, train_on_corners(10), 1e-4);
    backend_here = backend;
}
EACH_BACKEND(it_learns)

/* Large enough that every kernel shares its work out. */
enum { SIZE = 17, DEEP = 7, MANY = 13, STEPS = 3 };
static float big_losses[3][STEPS], *big_w[3];

static size_t train_with_threads(int threads)
{
    static float x[MANY * SIZE * SIZE * DEEP];
    int32_t label[MANY];
    unsigned random = 23;
    context = dml_open(&(dml_options){ .threads = threads });
    dml_graph *g = dml_graph_create(context);
    dml_node *image = dml_input(g, "x", DML_F32, SIZE, SIZE, DEEP);
    dml_node *h = dml_relu(dml_conv2d(image, &(dml_conv2d_options){ .filters = 11, .padding = { 1, 1 } }));
    h = dml_conv2d(dml_max_pool2d(h, NULL), &(dml_conv2d_options){ .filters = 19 });
    h = dml_tanh(dml_dense(dml_flatten(dml_add(h, dml_sigmoid(h))), 130));
    dml_node *l = dml_softmax_cross_entropy(dml_dense(h, 10), dml_input(g, "label", DML_I32));
    dml_trainer *t = dml_trainer_create(
        l, &(dml_trainer_options){ .batch = MANY, .optimizer = { DML_SGD, 0.05f, 0.9f, 1e-3f, true } });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    test_fill(&random, x, sizeof x / sizeof x[0]);
    for (int i = 0; i < MANY; i++) label[i] = i % 10;
    const void *const fed[] = { x, label };
    for (int s = 0; s < STEPS; s++)
        CHECK_INT(dml_trainer_step(t, MANY, fed, 2, &big_losses[threads - 1][s]), DML_OK);
    const size_t count = dml_trainer_count(t, DML_PARAMETERS), bytes = count * sizeof(float);
    big_w[threads - 1] = (float *)malloc(bytes);
    memcpy(big_w[threads - 1], dml_trainer_get(t, DML_PARAMETERS, 0, count), bytes);
    dml_close(context);
    return count;
}

static void the_same_for_any_threads(void)
{
    size_t count = 0;
    for (int threads = 1; threads <= 3; threads++) count = train_with_threads(threads);
    for (int i = 1; i < 3; i++) {
        CHECK(memcmp(big_losses[0], big_losses[i], sizeof big_losses[0]) == 0);
        CHECK(memcmp(big_w[0], big_w[i], count * sizeof(float)) == 0);
    }
    CHECK(big_losses[0][0] > 0 && big_losses[0][STEPS - 1] < big_losses[0][0]);
    for (int i = 0; i < 3; i++) free(big_w[i]);
}

/* ---- sync strategies ---- */

static void a_sync_sees_every_moment(void)
{
    mock m, second;
    float alone[COUNT], before[COUNT], w[COUNT], loss[2];
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_step(t, 3, inputs, 2, &loss[0]), DML_OK);
    copy_vector(t, DML_GRADIENTS, alone);
    dml_close(context);

    t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    copy_vector(t, DML_PARAMETERS, before);
    CHECK_INT(dml_trainer_step(t, 3, inputs, 2, &loss[1]), DML_OK);
    CHECK(loss[0] == loss[1]); /* still the mean over its samples */
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(m.g[i], 3 * alone[i], 1e-5); /* but g is of their sum */
    CHECK(memcmp(m.w_at_finish, before, sizeof before) == 0);
    copy_vector(t, DML_PARAMETERS, w);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(w[i], before[i] - 0.5f * alone[i], 1e-6); /* the mean again */
    CHECK_STRING(m.events, "start begin ready ready finish updated ");

    m.all_samples = 5; /* of another rank */
    loss[1] = 7;       /* no samples: a gradient of zero, and w stays */
    CHECK_INT(dml_trainer_step(t, 0, NULL, 0, &loss[1]), DML_OK);
    CHECK(loss[1] == 0);
    for (int i = 0; i < COUNT; i++) CHECK(m.g[i] == 0);
    copy_vector(t, DML_PARAMETERS, before);
    CHECK(memcmp(w, before, sizeof w) == 0);
    CHECK_STRING(m.events, "start begin ready ready finish updated begin ready ready finish updated ");
    CHECK_INT(dml_trainer_steps(t), 2);

    m.events[0] = '\0';
    CHECK_INT(dml_trainer_sync(t, sync_with(&second)), DML_OK);
    CHECK_STRING(m.events, "destroy ");
    CHECK_STRING(second.events, "start ");
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ 0 }), DML_OK); /* none again */
    CHECK_STRING(second.events, "start destroy ");
    CHECK_INT(dml_trainer_step(t, 0, inputs, 2, NULL), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
    dml_close(context); /* the trainer is destroyed through its context */
    CHECK_STRING(m.events, "start destroy ");
}
EACH_BACKEND(a_sync_sees_every_moment)

static void a_sync_may_fail_anywhere(void)
{
    static const struct {
        const char *event, *after;
        bool updated;
    } failures[] = { { "begin", "start begin failed ", false },
                     { "ready", "start begin ready failed ", false },
                     { "finish", "start begin ready ready finish failed ", false },
                     { "updated", "start begin ready ready finish updated ", true } };
    mock m;
    backend_here = find_backend("cpu");
    for (int i = 0; i < 4; i++) {
        float before[COUNT], after[COUNT];
        dml_trainer *t = small_trainer(0.5f, 0);
        CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
        m.fail = failures[i].event;
        copy_vector(t, DML_PARAMETERS, before);
        CHECK_INT(dml_trainer_step(t, 2, inputs, 2, NULL), DML_ERROR_PEER);
        CHECK_STRING(m.events, failures[i].after);
        CHECK_CONTAINS(dml_error(context), "rank 3 failed in");
        CHECK_CONTAINS(dml_error(context), failures[i].event);
        CHECK_INT(dml_status_of(context), DML_ERROR_PEER);
        copy_vector(t, DML_PARAMETERS, after);
        CHECK((memcmp(before, after, sizeof before) != 0) == failures[i].updated);
        CHECK_INT(dml_trainer_steps(t), failures[i].updated);
        CHECK_INT(dml_trainer_step(t, 2, inputs, 2, NULL), DML_ERROR_PEER); /* refused, nothing called */
        CHECK_STRING(m.events, failures[i].after);
        m.fail = NULL;
        m.events[0] = '\0';
        dml_clear_error(context);
        CHECK_INT(dml_trainer_step(t, 2, inputs, 2, NULL), DML_OK);
        CHECK_STRING(m.events, "begin ready ready finish updated ");
        dml_close(context);
    }
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_sync sync = sync_with(&m);
    m.fail = "start";
    CHECK_INT(dml_trainer_sync(t, sync), DML_ERROR_PEER);
    CHECK_STRING(m.events, "start destroy ");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_step(t, 2, inputs, 2, NULL), DML_OK); /* it trains on alone */
    CHECK_STRING(m.events, "start destroy ");
    dml_close(context);
}

static dml_status do_nothing(void *state, dml_trainer *t, double *samples)
{
    (void)state, (void)t, (void)samples;
    return DML_OK;
}

/* Strategies with some of the functions: for the caller g is the mean under each. */
static void partial_syncs(void)
{
    mock m;
    float mean[COUNT], g[COUNT];
    backend_here = find_backend("cpu");
    for (int kind = 0; kind < 4; kind++) { /* none, finish, ready, updated */
        dml_trainer *t = small_trainer(0.5f, 0);
        const dml_sync all = sync_with(&m);
        dml_sync some = { 0 };
        some.state = &m;
        if (kind == 1) some.finish = do_nothing;
        if (kind == 2) some.begin = all.begin, some.ready = all.ready;
        if (kind == 3) some.updated = all.updated;
        CHECK_INT(dml_trainer_sync(t, some), DML_OK);
        CHECK_INT(dml_trainer_step(t, 4, inputs, 2, NULL), DML_OK);
        copy_vector(t, DML_GRADIENTS, kind == 0 ? mean : g);
        for (int i = 0; i < COUNT && kind > 0; i++) CHECK_NEAR(g[i], mean[i], 1e-6);
        if (kind == 3) CHECK_INT(dml_trainer_step(t, 0, inputs, 2, NULL), DML_OK);
        if (kind == 1)
            CHECK_INT(dml_trainer_step(t, 0, inputs, 2, NULL), DML_ERROR_ARGUMENT); /* nobody had any */
        if (kind == 3) CHECK_STRING(m.events, "updated updated ");
        dml_close(context);
    }
}

static dml_status fail_silently(void *state, dml_trainer *t, double *samples)
{
    (void)state, (void)t, (void)samples;
    return DML_ERROR_PEER;
}

static void a_sync_that_fails_silently_gets_a_sentence(void)
{
    dml_trainer *t = small_trainer(0.5f, 0);
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.finish = fail_silently;
    CHECK_INT(dml_trainer_sync(t, sync), DML_OK);
    CHECK_INT(dml_trainer_step(t, 3, inputs, 2, NULL), DML_ERROR_PEER);
    CHECK_CONTAINS(dml_error(context), "the training step failed: another rank failed or left");
    dml_close(context);
}

int main(void)
{
    RUN_EACH(a_step);
    RUN_EACH(get_and_put);
    RUN_EACH(a_forked_device_is_left_alone);
    RUN(ranges_that_are_not_there);
    RUN(bad_steps);
    RUN_EACH(it_learns);
    RUN(the_same_for_any_threads);
    RUN_EACH(a_sync_sees_every_moment);
    RUN(a_sync_may_fail_anywhere);
    RUN(a_sync_that_fails_silently_gets_a_sentence);
    RUN(partial_syncs);
    return test_report("train/trainer");
}
