/* Constants: refused what they can't be, never moved, in no file, and otherwise as frozen parameters of the
   same numbers are, bit for bit. */
#include "graph/graph.h"

#include "graph/clone.h"
#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_shape.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

#include "backends.h"
#include "refused.h"

static dml_context *context;
static dml_graph *graph;

static void refusals(void)
{
    static const float numbers[6] = { 1, 2, 3, 4, 5, 6 };
    char text[32];
    context = dml_open(&(dml_options){ .threads = 1 });
    graph = dml_graph_create(context);
    CHECK(!dml_constant(NULL, numbers, dml_shape_of(6)) && !dml_scalar(NULL, 1));
    REFUSED(dml_constant(graph, NULL, dml_shape_of(6)), DML_ERROR_ARGUMENT,
            "dml_constant was given no values");
    REFUSED(dml_constant(graph, numbers, dml_shape_of(2, 0)), DML_ERROR_SHAPE,
            "constant 'constant_1': dimension 1 is 0");
    REFUSED(dml_constant(graph, numbers, dml_shape_of(-6)), DML_ERROR_SHAPE, "dimension 0 is -6");
    dml_shape odd = { 6, { 1, 1, 1, 1, 1 } };
    REFUSED(dml_constant(graph, numbers, odd), DML_ERROR_SHAPE, "6 dimensions asked for");
    odd.ndim = -1;
    REFUSED(dml_constant(graph, numbers, odd), DML_ERROR_SHAPE, "-1 dimensions asked for");
    dml_node *half = dml_scalar(graph, 0.5f), *table = dml_constant(graph, numbers, dml_shape_of(2, 3));
    CHECK_STRING(dml_node_name(half), "constant_1");
    CHECK_STRING(dml_node_describe(half, text, sizeof text), "0.5");
    CHECK_STRING(dml_node_describe(table, text, sizeof text), "");
    CHECK(!dml_node_batched(half) && dml_node_shape(half).ndim == 0 && dml_node_flops(table) == 0);
    REFUSED(dml_parameter_train(table, true) == DML_OK, DML_ERROR_ARGUMENT, "constant_2");
    dml_close(context);
}

/* max(q e, (q - 1) e) of each quantile q, by constants or by frozen parameters. */
static dml_node *pinball(dml_graph *g, bool constants)
{
    static const float levels[3] = { 0.1f, 0.5f, 0.9f }, one = 1;
    dml_node *x = dml_input(g, "x", DML_F32, 4), *t = dml_input(g, "t", DML_F32, 1);
    dml_node *y = dml_dense(dml_tanh(dml_dense(x, 5)), 3);
    dml_node *q =
        constants ? dml_constant(g, levels, dml_shape_of(3)) : dml_parameter(g, "q", dml_init_constant(0), 3);
    dml_node *o = constants ? dml_scalar(g, 1) : dml_parameter(g, "one", dml_init_constant(one), 1);
    if (!constants) dml_parameter_train(q, false), dml_parameter_train(o, false);
    dml_node *e = dml_sub(t, y);
    dml_node *loss = dml_batch_mean(dml_maximum(dml_mul(q, e), dml_mul(dml_sub(q, o), e)), NULL);
    if (!constants) dml_parameter_write(q, levels, 3);
    return loss;
}

enum { ROWS = 6, STEPS = 4 };

static void fill(float x[ROWS][4], float t[ROWS])
{
    unsigned seed = 5;
    test_fill(&seed, x[0], ROWS * 4);
    test_fill(&seed, t, ROWS);
}

static void as_frozen_parameters(void)
{
    static const dml_dtype dtypes[] = { DML_F32, DML_BF16, DML_F16 };
    float x[ROWS][4], t[ROWS];
    fill(x, t);
    for (int d = 0; d < 3; d++) {
        float loss[2][STEPS];
        for (int constants = 0; constants < 2; constants++) {
            context = open_here(&(dml_options){ .threads = 1 });
            dml_node *l = pinball(dml_graph_create(context), constants);
            const dml_trainer_options how = { .batch = ROWS,
                                              .optimizer = dml_sgd(0.1f, 0.9f),
                                              .dtype = dtypes[d] };
            dml_trainer *trainer = dml_trainer_create(l, &how);
            CHECK_MESSAGE(trainer, "%s", dml_error(context));
            for (int i = 0; i < STEPS; i++)
                CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(x, t), &loss[constants][i]), DML_OK);
            dml_close(context);
        }
        CHECK(memcmp(loss[0], loss[1], sizeof loss[0]) == 0);
    }
}
EACH_BACKEND(as_frozen_parameters)

/* Alone, under another shape, and where an op writes over what it reads. */
static void as_an_output(void)
{
    static const float numbers[6] = { -1, 2, -3, 4, -5, 6 };
    float got[6];
    context = open_here(&(dml_options){ .threads = 1 });
    graph = dml_graph_create(context);
    dml_node *c = dml_constant(graph, numbers, dml_shape_of(2, 3));
    dml_node *const outputs[] = { c, dml_reshape(c, dml_shape_of(6)), dml_relu(dml_relu(c)) };
    for (int o = 0; o < 3; o++) {
        dml_program *p = dml_compile(outputs[o], &(dml_program_options){ .batch = 2 });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        for (int again = 0; again < 2; again++) {
            memset(got, 0, sizeof got);
            CHECK_INT(dml_program_run(p, 2, NULL, 0, got), DML_OK);
            for (int i = 0; i < 6; i++) CHECK(got[i] == (o == 2 && numbers[i] < 0 ? 0 : numbers[i]));
        }
    }
    dml_close(context);
}
EACH_BACKEND(as_an_output)

/* What was trained with such a loss is loaded without it; a clone has the numbers. */
static void in_no_file(void)
{
    const char *path = "constant_test.tmp";
    float x[ROWS][4], t[ROWS], loss, again;
    fill(x, t);
    context = dml_open(&(dml_options){ .threads = 1 });
    dml_node *l = pinball(dml_graph_create(context), true);
    CHECK_INT((int)dml_graph_parameter_count(dml_node_graph(l)), 4 * 5 + 5 + 5 * 3 + 3);
    CHECK_INT(dml_graph_save(dml_node_graph(l), path), DML_OK);
    dml_graph *alone = dml_graph_create(context);
    dml_dense(dml_tanh(dml_dense(dml_input(alone, "x", DML_F32, 4), 5)), 3);
    CHECK_INT(dml_graph_load(alone, path), DML_OK);
    remove(path);

    dml_graph *clone = dml_graph_clone(dml_node_graph(l), context);
    CHECK_MESSAGE(clone, "%s", dml_error(context));
    dml_node *of_clone = dml_graph_find(clone, dml_node_name(l));
    const dml_program_options options = { .batch = ROWS };
    dml_program *p = dml_compile(l, &options), *q = dml_compile(of_clone, &options);
    CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(x, t), &loss), DML_OK);
    dml_program_destroy(p);
    dml_graph_destroy(dml_node_graph(l)); /* the clone's are its own */
    CHECK_INT(dml_program_run(q, ROWS, DML_INPUTS(x, t), &again), DML_OK);
    CHECK(loss == again);
    dml_close(context);
}

int main(void)
{
    RUN(refusals);
    RUN_EACH(as_frozen_parameters);
    RUN_EACH(as_an_output);
    RUN(in_no_file);
    return test_report("graph/constant");
}
