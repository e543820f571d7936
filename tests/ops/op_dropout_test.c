/* Dropout over steps: another mask in each, and of each node and seed; none in predicting. Its values and
   gradients, with masks that are the same on every backend, are ops_test's. */
#include "ops/op_dropout.h"

#include "graph/node.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"

enum { N = 64 };

/* Of w = 1 against zeros, the loss is the share of those that are kept times 4, the gradient 0 where left
 * out. */
static void mask_of(uint64_t seed, int dropouts, uint32_t step, uint32_t part, bool kept[N])
{
    dml_context *context = open_here(&(dml_options){ .threads = 2, .seed = seed });
    dml_graph *graph = dml_graph_create(context);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(1), N), *y = NULL;
    dml_node *zero = dml_parameter(graph, "zero", dml_init_constant(0), N);
    CHECK_INT(dml_parameter_train(zero, false), DML_OK);
    for (int i = 0; i < dropouts; i++) y = dml_dropout(w, 0.5f); /* the last of them */
    dml_program *p =
        dml_compile(dml_mean_squared_error(y, zero), &(dml_program_options){ .batch = 1, .training = true });
    const dml__training training = { step, part, 1.0f, false, NULL };
    float g[N], loss[3];
    int count = 0;
    CHECK_MESSAGE(p, "%s", dml_error(context));
    CHECK_INT(dml__program_train(p, 1, NULL, &training, &loss[0]), DML_OK);
    read_floats(context, g, p->g, N);
    CHECK_INT(dml__program_train(p, 1, NULL, &training, &loss[1]), DML_OK);
    CHECK_INT(dml_program_run(p, 1, NULL, 0, &loss[2]), DML_OK);
    for (int i = 0; i < N; i++) count += kept[i] = g[i] != 0;
    CHECK(count > N / 4 && count < 3 * N / 4);
    CHECK_NEAR(loss[0], 4.0 * count / N, 1e-6);
    CHECK(loss[0] == loss[1]);
    CHECK_NEAR(loss[2], 1, 1e-6);
    dml_close(context);
}

static void masks(void)
{
    bool kept[7][N];
    mask_of(1, 1, 0, 0, kept[0]);
    mask_of(1, 1, 1, 0, kept[1]);
    mask_of(1, 2, 0, 0, kept[2]);
    mask_of(2, 1, 0, 0, kept[3]);
    mask_of(1 + ((uint64_t)1 << 40), 1, 0, 0, kept[4]);
    mask_of(1, 1, 0, 1, kept[5]);
    mask_of(1, 1, 0, 0x20000000u, kept[6]);
    for (int a = 0; a < 7; a++)
        for (int b = 0; b < a; b++) CHECK(memcmp(kept[a], kept[b], sizeof kept[a]) != 0);
}
EACH_BACKEND(masks)

/* What is kept of a parameter in the next pass of a trainer. */
static void next_mask(dml_trainer *trainer, int flags, bool kept[N])
{
    const float *g;
    CHECK_INT(dml_trainer_backward(trainer, 1, NULL, 0, flags, NULL), DML_OK);
    g = dml_trainer_get(trainer, DML_GRADIENTS, 0, N);
    for (int i = 0; i < N; i++) kept[i] = g && g[i] != 0;
}

/* Each pass of a step, and each rank, leaves out others; the same ones when the step is made again. */
static void masks_of_passes_and_ranks(void)
{
    bool kept[5][N];
    for (int rank = 0; rank < 2; rank++) {
        dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 5 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *w = dml_parameter(graph, "w", dml_init_constant(1), N);
        dml_node *zero = dml_parameter(graph, "zero", dml_init_constant(0), N);
        CHECK_INT(dml_parameter_train(zero, false), DML_OK);
        dml_node *loss = dml_mean_squared_error(dml_dropout(w, 0.5f), zero);
        dml_trainer *trainer = dml_trainer_create(loss, &(dml_trainer_options){ .batch = 1 });
        CHECK_INT(dml_trainer_sync(trainer, (dml_sync){ .ranks = 2, .rank = rank }), DML_OK);
        next_mask(trainer, 0, kept[2 * rank]);
        next_mask(trainer, 0, kept[2 * rank + 1]);
        CHECK_INT(dml_trainer_update(trainer), DML_OK);
        if (rank == 0) next_mask(trainer, 0, kept[4]);
        CHECK_STRING(dml_error(context), "");
        dml_close(context);
    }
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < a; b++) CHECK(memcmp(kept[a], kept[b], sizeof kept[a]) != 0);
}

static void bad_dropouts(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 3), *t = dml_input(graph, "t", DML_I32, 3);
    static const float bad[] = { -0.1f, 1, 2, NAN, INFINITY };
    char text[32];
    CHECK(!dml_dropout(NULL, 0.5f));
    for (int i = 0; i < 5; i++) {
        CHECK(!dml_dropout(x, bad[i]));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "dropout 'dropout_1': a probability of ");
        dml_clear_error(context);
    }
    CHECK(!dml_dropout(t, 0.5f));
    CHECK_CONTAINS(dml_error(context), "its input is i32, it takes f32");
    dml_clear_error(context);
    CHECK_STRING(dml_node_describe(dml_dropout(x, 0.25f), text, sizeof text), "p 0.25");
    dml_close(context);
}

int main(void)
{
    RUN_EACH(masks);
    backend_here = find_backend("cpu");
    RUN(masks_of_passes_and_ranks);
    RUN(bad_dropouts);
    return test_report("ops/op_dropout");
}
