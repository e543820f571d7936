/* Batch normalization over many steps: which statistics are used, how the running ones move, and that they
   travel with the model. Its values and gradients are ops_test's. */
#include "ops/op_norm.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_slice2d.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

#include <unistd.h>

enum { BATCH = 6, IN = 3, CLASSES = 2 };

typedef struct model {
    dml_context *context;
    dml_graph *graph;
    dml_node *norm, *mean, *variance, *logits;
    dml_trainer *trainer;
    dml_program *predict;
} model;

static model build(const dml_batch_norm_options *options, uint64_t seed)
{
    model m;
    m.context = open_here(&(dml_options){ .threads = 2, .seed = seed });
    m.graph = dml_graph_create(m.context);
    dml_node *x = dml_input(m.graph, "x", DML_F32, IN), *t = dml_input(m.graph, "t", DML_I32);
    m.norm = dml_batch_norm(x, options);
    m.mean = dml_graph_find(m.graph, "batch_norm_1.running_mean");
    m.variance = dml_graph_find(m.graph, "batch_norm_1.running_var");
    m.logits = dml_dense(m.norm, CLASSES);
    m.trainer =
        dml_trainer_create(dml_softmax_cross_entropy(m.logits, t),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0.9f) });
    m.predict = dml_compile(m.norm, &(dml_program_options){ .batch = BATCH });
    CHECK_STRING(dml_error(m.context), "");
    return m;
}

static void make_rows(unsigned state, float x[BATCH * IN], int32_t t[BATCH])
{
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH * IN; i++) x[i] = 3 * x[i] + (float)(i % IN);
    for (int i = 0; i < BATCH; i++) t[i] = (int32_t)(test_random(&state) % CLASSES);
}

/* PyTorch's rule. */
static void expect_moved(const float *x, int rows, double momentum, double mean[IN], double variance[IN])
{
    for (int c = 0; c < IN; c++) {
        double middle = 0, square = 0;
        for (int r = 0; r < rows; r++) middle += (double)x[r * IN + c] / rows;
        for (int r = 0; r < rows; r++) square += pow((double)x[r * IN + c] - middle, 2);
        mean[c] += momentum * (middle - mean[c]);
        if (rows > 1) variance[c] += momentum * (square / (rows - 1) - variance[c]);
    }
}

static void check_statistics(model m, const double mean[IN], const double variance[IN])
{
    float got[2][IN];
    CHECK_INT(dml_parameter_read(m.mean, got[0], IN), DML_OK);
    CHECK_INT(dml_parameter_read(m.variance, got[1], IN), DML_OK);
    for (int c = 0; c < IN; c++) {
        CHECK_NEAR(got[0][c], mean[c], 2e-6 * (1 + fabs(mean[c])));
        CHECK_NEAR(got[1][c], variance[c], 2e-6 * (1 + fabs(variance[c])));
    }
}

static void they_move_in_training_alone(void)
{
    const dml_batch_norm_options options = { .momentum = 0.25f, .epsilon = 0.01f };
    double mean[IN] = { 0, 0, 0 }, variance[IN] = { 1, 1, 1 };
    model m = build(&options, 1);
    float x[BATCH * IN], y[BATCH * IN], loss;
    int32_t t[BATCH];
    CHECK_INT(dml_graph_trained_count(m.graph), 2 * IN + IN * CLASSES + CLASSES);
    CHECK_INT(dml_graph_parameter_count(m.graph), 4 * IN + IN * CLASSES + CLASSES);
    check_statistics(m, mean, variance);
    for (unsigned step = 0; step < 5; step++) {
        make_rows(step, x, t);
        CHECK_INT(dml_trainer_step(m.trainer, BATCH, DML_INPUTS(x, t), NULL), DML_OK);
        expect_moved(x, BATCH, 0.25, mean, variance);
        check_statistics(m, mean, variance);
    }
    /* Each pass of a step in pieces, smaller ones and one of a single row too, which has no variance. */
    CHECK_INT(dml_trainer_backward(m.trainer, 4, DML_INPUTS(x, t), DML_MORE, NULL), DML_OK);
    expect_moved(x, 4, 0.25, mean, variance);
    CHECK_INT(dml_trainer_backward(m.trainer, 1, DML_INPUTS(x, t), DML_ADD, NULL), DML_OK);
    expect_moved(x, 1, 0.25, mean, variance);
    CHECK_INT(dml_trainer_update(m.trainer), DML_OK);
    check_statistics(m, mean, variance);

    /* Predicting uses them and leaves them, on the trainer's program too. */
    float w[2][4 * IN + IN * CLASSES + CLASSES], scale[IN], shift[IN];
    const size_t count = dml_graph_parameter_count(m.graph);
    memcpy(w[0], dml_graph_get(m.graph, 0, count), sizeof w[0]);
    make_rows(77, x, t);
    CHECK_INT(dml_program_run(m.predict, BATCH, DML_INPUTS(x), y), DML_OK);
    CHECK_INT(dml_parameter_read(dml_graph_find(m.graph, "batch_norm_1.weight"), scale, IN), DML_OK);
    CHECK_INT(dml_parameter_read(dml_graph_find(m.graph, "batch_norm_1.bias"), shift, IN), DML_OK);
    for (int i = 0; i < BATCH * IN; i++) {
        const int c = i % IN;
        const double want = (double)scale[c] * ((double)x[i] - mean[c]) / sqrt(variance[c] + 0.01);
        CHECK_NEAR(y[i], want + (double)shift[c], 1e-5);
    }
    float alone[IN];
    CHECK_INT(dml_program_run(m.predict, 1, DML_INPUTS(x + IN), alone), DML_OK);
    CHECK(memcmp(alone, y + IN, sizeof alone) == 0); /* whatever else is in the batch */
    CHECK_INT(dml_program_run(dml_trainer_program(m.trainer), BATCH, DML_INPUTS(x, t), &loss), DML_OK);
    memcpy(w[1], dml_graph_get(m.graph, 0, count), sizeof w[1]);
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0);
    CHECK_STRING(dml_error(m.context), "");
    dml_close(m.context);
}
EACH_BACKEND(they_move_in_training_alone)

/* A batch that isn't finite moves nothing: the model outlives a step that is skipped. */
static void they_stay_finite(void)
{
    const dml_batch_norm_options options = { .momentum = 0.25f };
    model m = build(&options, 1);
    float x[BATCH * IN], at[2][2][IN];
    int32_t t[BATCH];
    make_rows(3, x, t);
    x[1] = INFINITY, x[IN + 2] = 1e30f;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(dml_parameter_read(m.mean, at[i][0], IN), DML_OK);
        CHECK_INT(dml_parameter_read(m.variance, at[i][1], IN), DML_OK);
        if (i == 0)
            CHECK_INT(dml_trainer_backward(m.trainer, BATCH, DML_INPUTS(x, t), DML_OVERWRITE, NULL), DML_OK);
    }
    CHECK(at[0][0][0] != at[1][0][0] && at[0][1][0] != at[1][1][0]);
    for (int c = 1; c < IN; c++) CHECK(at[0][0][c] == at[1][0][c] && at[0][1][c] == at[1][1][c]);
    dml_close(m.context);
}
EACH_BACKEND(they_stay_finite)

/* Of large numbers that differ by little: their squares are beyond f32, and their variance isn't. */
static void large_means(void)
{
    const float large = 1e25f, larger = nextafterf(large, INFINITY);
    const float x[4] = { large, larger, large, larger }, sign[4] = { -1, 1, -1, 1 };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *y = dml_batch_norm(dml_input(graph, "x", DML_F32, 1), NULL);
    dml_node *loss = dml_batch_mean(dml_mul(y, dml_input(graph, "sign", DML_F32, 1)), NULL);
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = 4, .optimizer = dml_sgd(0.1f, 0) });
    float got = NAN;
    CHECK_INT(dml_trainer_backward(trainer, 4, DML_INPUTS(x, sign), 0, &got), DML_OK);
    CHECK_NEAR(got, 1, 1e-5);
    dml_close(context);
}
EACH_BACKEND(large_means)

static void frozen_ones_stay(void)
{
    const dml_batch_norm_options options = { .frozen = true };
    const double mean[IN] = { 0.5, -1, 2 }, variance[IN] = { 0.25, 1, 4 };
    const float start[2][IN] = { { 0.5f, -1, 2 }, { 0.25f, 1, 4 } };
    model m = build(&options, 1);
    float x[BATCH * IN], got = 0, want = 0;
    int32_t t[BATCH];
    CHECK_INT(dml_parameter_write(m.mean, start[0], IN), DML_OK);
    CHECK_INT(dml_parameter_write(m.variance, start[1], IN), DML_OK);
    make_rows(3, x, t);
    CHECK_INT(dml_program_run(dml_trainer_program(m.trainer), BATCH, DML_INPUTS(x, t), &want), DML_OK);
    CHECK_INT(dml_trainer_step(m.trainer, BATCH, DML_INPUTS(x, t), &got), DML_OK);
    CHECK(got == want); /* training computes what predicting does */
    check_statistics(m, mean, variance);
    dml_close(m.context);
}
EACH_BACKEND(frozen_ones_stay)

static void they_travel_with_the_model(void)
{
    char path[256];
    float x[BATCH * IN], y[2][BATCH * IN], loss[2];
    int32_t t[BATCH];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_norm_test.%ld", folder ? folder : "/tmp", (long)getpid());
    model a = build(NULL, 1), b = build(NULL, 2), c = build(NULL, 3);
    for (unsigned step = 0; step < 3; step++) {
        make_rows(step, x, t);
        CHECK_INT(dml_trainer_step(a.trainer, BATCH, DML_INPUTS(x, t), NULL), DML_OK);
    }
    CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
    CHECK_INT(dml_graph_save(a.graph, path), DML_OK);
    CHECK_INT(dml_graph_load(c.graph, path), DML_OK);
    CHECK_INT(dml_program_run(a.predict, BATCH, DML_INPUTS(x), y[0]), DML_OK);
    CHECK_INT(dml_program_run(c.predict, BATCH, DML_INPUTS(x), y[1]), DML_OK);
    CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
    for (unsigned step = 3; step < 6; step++) { /* as if it had never stopped */
        make_rows(step, x, t);
        CHECK_INT(dml_trainer_step(a.trainer, BATCH, DML_INPUTS(x, t), &loss[0]), DML_OK);
        CHECK_INT(dml_trainer_step(b.trainer, BATCH, DML_INPUTS(x, t), &loss[1]), DML_OK);
        CHECK(loss[0] == loss[1]);
    }
    const size_t count = dml_graph_parameter_count(a.graph);
    CHECK(memcmp(dml_graph_get(a.graph, 0, count), dml_graph_get(b.graph, 0, count), count * sizeof(float)) ==
          0);
    unlink(path);
    dml_close(a.context), dml_close(b.context), dml_close(c.context);
}
EACH_BACKEND(they_travel_with_the_model)

/* A training pass writes them, so it may not run beside programs that predict on threads of their own. */
static void predicting_beside_training(void)
{
    backend_here = find_backend("cpu");
    const dml_batch_norm_options frozen = { .frozen = true };
    float x[BATCH * IN];
    int32_t t[BATCH];
    make_rows(3, x, t);
    for (int which = 0; which < 2; which++) {
        model m = build(which ? &frozen : NULL, 1);
        m.graph->readers = 1;
        CHECK_INT(dml_trainer_backward(m.trainer, BATCH, DML_INPUTS(x, t), 0, NULL),
                  which ? DML_OK : DML_ERROR_STATE);
        if (!which) CHECK_CONTAINS(dml_error(m.context), "while programs predict on other threads");
        CHECK_INT(m.graph->readers, 1);
        m.graph->readers = 0;
        dml_close(m.context);
    }
}

/* A second rank that has the same samples: what is summed over both is twice as much. */
typedef struct twin {
    int calls, fails_at;
} twin;

static dml_status twin_sum(void *state, dml_trainer *trainer, double *values, size_t count)
{
    twin *t = (twin *)state;
    for (size_t i = 0; i < count; i++) values[i] *= 2;
    return ++t->calls == t->fails_at ? dml_trainer_fail(trainer, DML_ERROR_PEER, "no twin") : DML_OK;
}

static dml_status twin_finish(void *state, dml_trainer *trainer, double *samples)
{
    (void)state, (void)trainer, (void)samples;
    return DML_OK;
}

/* Mean and variance are those of one rank, whose unbiased variance is that of twice as many rows; so is dx.
 */
static void statistics_of_two_ranks(void)
{
    const dml_batch_norm_options options = { .epsilon = 0.1f, .momentum = 1, .all_ranks = true };
    float x[BATCH * IN], g[2][2 * IN + CLASSES * IN + CLASSES], running[2][IN];
    int32_t t[BATCH];
    make_rows(21, x, t);
    for (int ranks = 1; ranks <= 2; ranks++) {
        model m = build(&options, 4);
        twin other = { 0, 0 };
        const dml_sync sync = {
            .state = &other, .finish = twin_finish, .ranks = ranks, .rank = 0, .all_reduce = twin_sum
        };
        if (ranks == 2) CHECK_INT(dml_trainer_sync(m.trainer, sync), DML_OK);
        CHECK_INT(dml_trainer_backward(m.trainer, BATCH, DML_INPUTS(x, t), 0, NULL), DML_OK);
        const size_t count = dml_trainer_count(m.trainer, DML_GRADIENTS);
        CHECK_INT(count, sizeof g[0] / sizeof g[0][0]);
        memcpy(g[ranks - 1], dml_trainer_get(m.trainer, DML_GRADIENTS, 0, count), sizeof g[0]);
        CHECK_INT(dml_parameter_read(m.variance, running[ranks - 1], IN), DML_OK);
        if (ranks == 2) {
            CHECK_INT(other.calls, 1); /* x takes no gradient */
            other.fails_at = 2;
            CHECK_INT(dml_trainer_step(m.trainer, BATCH, DML_INPUTS(x, t), NULL), DML_ERROR_PEER);
            CHECK_STRING(dml_error(m.context), "no twin");
            dml_clear_error(m.context);
            CHECK_INT(dml_trainer_sync(m.trainer, (dml_sync){ .ranks = 2 }), DML_OK);
            CHECK_INT(dml_trainer_step(m.trainer, BATCH, DML_INPUTS(x, t), NULL), DML_ERROR_UNSUPPORTED);
            CHECK_CONTAINS(dml_error(m.context), "the sync strategy has no all_reduce");
        }
        dml_close(m.context);
    }
    for (size_t i = 0; i < sizeof g[0] / sizeof g[0][0]; i++)
        CHECK_NEAR(g[1][i], g[0][i], 1e-5 * fmax(1, fabs((double)g[0][i])));
    for (int c = 0; c < IN; c++)
        CHECK_NEAR(running[1][c], (double)running[0][c] * (BATCH - 1) / BATCH * (2 * BATCH) / (2 * BATCH - 1),
                   1e-4);
}
EACH_BACKEND(statistics_of_two_ranks)

static void bad_norms(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer one = dml_init_constant(1);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 3), *p[4], *trained, *four;
    for (int i = 0; i < 4; i++) p[i] = dml_parameter(graph, NULL, one, 3);
    trained = dml_parameter(graph, "trained", one, 3);
    four = dml_parameter(graph, "four", one, 4);
    CHECK_INT(dml_parameter_train(p[2], false), DML_OK);
    CHECK_INT(dml_parameter_train(p[3], false), DML_OK);
    dml_node *whole = dml_input(graph, "whole", DML_I32, 3), *scalar = dml_input(graph, "scalar", DML_F32);
    dml_node *computed = dml_flatten(p[3]), *b = dml_input(graph, "b", DML_F32, 3);
    CHECK(!dml_batch_norm(NULL, NULL));
    REFUSED(dml_batch_norm(whole, NULL), DML_ERROR_SHAPE, "its input is i32");
    REFUSED(dml_batch_norm(scalar, NULL), DML_ERROR_SHAPE, "last dimension");
    REFUSED(dml_batch_norm(p[0], NULL), DML_ERROR_SHAPE, "its input is f32 3;");
    static const dml_batch_norm_options bad[] = { { .epsilon = -1e-5f },   { .epsilon = NAN },
                                                  { .epsilon = INFINITY }, { .momentum = -0.1f },
                                                  { .momentum = 1.5f },    { .momentum = NAN } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        REFUSED(dml_batch_norm(x, &bad[i]), DML_ERROR_ARGUMENT, "a momentum above 0 and at most 1");
    const dml_batch_norm_options both = { .frozen = true, .all_ranks = true };
    REFUSED(dml_batch_norm(x, &both), DML_ERROR_ARGUMENT, "frozen and all_ranks asked for");
    REFUSED(dml_batch_norm_with(x, four, p[1], p[2], p[3], NULL), DML_ERROR_SHAPE,
            "its weight is f32 4, it must be f32 3");
    REFUSED(dml_batch_norm_with(x, p[0], b, p[2], p[3], NULL), DML_ERROR_SHAPE, "its bias is f32 3 a sample");
    REFUSED(dml_batch_norm_with(x, p[0], p[1], trained, p[3], NULL), DML_ERROR_ARGUMENT,
            "its running mean 'trained' is trained; it must be a parameter for which dml_parameter_train");
    REFUSED(dml_batch_norm_with(x, p[0], p[1], p[2], trained, NULL), DML_ERROR_ARGUMENT, "running variance");
    REFUSED(dml_batch_norm_with(x, p[0], p[1], p[2], computed, NULL), DML_ERROR_ARGUMENT, "is computed");
    REFUSED(dml_batch_norm_with(x, p[0], p[1], p[2], NULL, NULL), DML_ERROR_ARGUMENT, "input 5 of 5 is NULL");
    CHECK(dml_batch_norm_with(x, p[0], p[1], p[2], p[3], NULL));
    CHECK_INT(dml_parameter_train(p[2], true), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "an op takes it as a running statistic");
    dml_clear_error(context);
    CHECK_INT(dml_parameter_train(p[2], false), DML_OK);
    const dml_batch_norm_options frozen = { .frozen = true };
    dml_batch_norm(x, &frozen);
    CHECK_INT(dml_parameter_train(dml_graph_find(graph, "batch_norm_2.running_mean"), true),
              DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "parameter 'batch_norm_2.running_mean': an op takes it as");
    dml_clear_error(context);
    CHECK_INT(dml_parameter_train(dml_graph_find(graph, "batch_norm_2.running_var"), true),
              DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_parameter_train(dml_graph_find(graph, "batch_norm_2.weight"), false), DML_OK);
    CHECK_INT(dml_parameter_train(p[0], false), DML_OK); /* a layer whose weight isn't trained */
    CHECK(dml_batch_norm(x, NULL));
    CHECK(!dml_parameter_trained(dml_graph_find(graph, "batch_norm_3.running_var")));
    CHECK(dml_parameter_trained(dml_graph_find(graph, "batch_norm_3.bias")));
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void bad_slices(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 3), *r = dml_input(graph, "r", DML_F32, 3);
    static const dml_slice2d_options bad[] = {
        { .begin = { 4 } },          { .begin = { -1 } },
        { .end = { 0, 6 } },         { .begin = { 0, 3 }, .end = { 0, 3 } },
        { .end = { -1 } },           { .step = { -1 } },
        { .before = { 0, 0, -1 } },  { .after = { -1 } },
        { .before = { INT32_MAX } }, { .end = { INT32_MIN } }
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        REFUSED(dml_slice2d(x, &bad[i]), DML_ERROR_ARGUMENT, "slice2d 'slice2d_1': ");
    REFUSED(dml_slice2d(x, &(dml_slice2d_options){ .before = { 60000, 60000, 0 } }), DML_ERROR_SHAPE,
            "elements");
    REFUSED(dml_slice2d(r, NULL), DML_ERROR_SHAPE, "height x width x channels");
    REFUSED(dml_padded_shortcut2d(r, 2, 6), DML_ERROR_SHAPE, "height x width x channels");
    REFUSED(dml_padded_shortcut2d(r, 1, 3), DML_ERROR_SHAPE, "height x width x channels");
    REFUSED(dml_padded_shortcut2d(x, 0, 3), DML_ERROR_ARGUMENT, "stride 0");
    REFUSED(dml_padded_shortcut2d(x, 2, 1), DML_ERROR_ARGUMENT, "2 to 1 channels asked for, of 3");
    REFUSED(dml_padded_shortcut2d(x, 1, INT32_MIN), DML_ERROR_ARGUMENT, "channels can't be left out");
    CHECK(!dml_slice2d(NULL, NULL) && !dml_padded_shortcut2d(NULL, 1, 1));
    CHECK(dml_padded_shortcut2d(x, 1, 3) == x);
    dml_node *y = dml_padded_shortcut2d(x, 2, 8);
    const dml_shape shape = dml_node_shape(y);
    CHECK(shape.dims[0] == 2 && shape.dims[1] == 3 && shape.dims[2] == 8);
    const dml_slice2d_options *o = (const dml_slice2d_options *)y->attributes;
    CHECK(o->before[2] == 2 && o->after[2] == 3);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

int main(void)
{
    RUN_EACH(they_move_in_training_alone);
    RUN_EACH(they_stay_finite);
    RUN_EACH(large_means);
    RUN_EACH(frozen_ones_stay);
    RUN_EACH(they_travel_with_the_model);
    RUN(predicting_beside_training);
    RUN_EACH(statistics_of_two_ranks);
    RUN(bad_norms);
    RUN(bad_slices);
    return test_report("ops/op_norm");
}
