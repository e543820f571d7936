/* What take and gather refuse: when they are built, and of indices before anything is run. Their values and
   gradients are ops_test's. */
#include "ops/op_gather.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_reduce.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void refusals(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6), *i = dml_input(graph, "i", DML_I32, 3);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(0), 4, 3),
             *wide = dml_input(graph, "wide", DML_I32, 2, 2, 2, 2);
    CHECK(!dml_take(NULL, NULL, 0) && !dml_gather(NULL, NULL, 0));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_take(x, NULL, 0), DML_ERROR_ARGUMENT, "its input 2 of 2 is NULL");
    REFUSED(dml_take(x, x, 0), DML_ERROR_ARGUMENT,
            "take 'take_1': its input is f32 and its indices f32; it takes f32");
    REFUSED(dml_take(i, i, 0), DML_ERROR_ARGUMENT, "its input is i32");
    REFUSED(dml_take(x, i, 3), DML_ERROR_ARGUMENT, "axis 3 asked for, of an input of 4 x 5 x 6");
    REFUSED(dml_take(p, i, 0), DML_ERROR_SHAPE,
            "its numbers are for the whole batch and its indices a sample's");
    dml_node *same = dml_argmax(p, -1, false), *j = dml_input(graph, "j", DML_I32, 4, 5, 5);
    REFUSED(dml_take(x, same, 0), DML_ERROR_SHAPE,
            "its indices are for the whole batch and its numbers a sample's");
    REFUSED(dml_take(x, wide, 0), DML_ERROR_SHAPE, "its indices 2 x 2 x 2 x 2, whose 4 dimensions");
    REFUSED(dml_gather(x, i, 0), DML_ERROR_SHAPE,
            "gather 'gather_1': its input is 4 x 5 x 6 and its indices 3; they must be of one shape, but for "
            "axis 0");
    REFUSED(dml_gather(x, j, 1), DML_ERROR_SHAPE, "but for axis 1");
    dml_close(context);
}

static void indices_out_of_range(void)
{
    enum { ROWS = 3, K = 2, N = 5 };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_dense(dml_input(graph, "x", DML_F32, 1), N), *i = dml_input(graph, "i", DML_I32, K);
    dml_node *y = dml_add(dml_take(x, i, 0), dml_gather(x, i, 0));
    dml_node *loss = dml_mean_squared_error(y, dml_input(graph, "t", DML_F32, K));
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_sgd(0.1f, 0) });
    dml_program *program = dml_compile(y, &(dml_program_options){ .batch = ROWS });
    CHECK_STRING(dml_error(context), "");
    const float one[ROWS] = { 1, 1, 1 }, t[ROWS * K] = { 0 };
    int32_t index[ROWS * K] = { 0, 4, 2, 2, 1, 3 };
    float out[ROWS * K], before[N], after[N];
    dml_node *weight = dml_graph_find(graph, "dense_1.weight");
    CHECK_INT(dml_parameter_read(weight, before, N), DML_OK);
    CHECK_INT(dml_program_run(program, ROWS, DML_INPUTS(one, index), out), DML_OK);
    for (int k = 0; k < ROWS * K; k++) CHECK_NEAR(out[k], 2 * before[index[k]], 1e-6);
    static const int32_t bad[] = { N, -1, INT32_MAX, INT32_MIN };
    for (int b = 0; b < 4; b++) {
        index[3] = bad[b];
        for (int k = 0; k < ROWS * K; k++) out[k] = 7;
        CHECK_INT(dml_program_run(program, ROWS, DML_INPUTS(one, index), out), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "input 'i': sample 1 of the batch is ");
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 4");
        for (int k = 0; k < ROWS * K; k++) CHECK(out[k] == 7);
        dml_clear_error(context);
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(one, index, t), NULL), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
        CHECK_INT(dml_parameter_read(weight, after, N), DML_OK);
        CHECK(memcmp(before, after, sizeof before) == 0);
    }
    dml_close(context);
}
EACH_BACKEND(indices_out_of_range)

int main(void)
{
    RUN(refusals);
    RUN_EACH(indices_out_of_range);
    return test_report("ops/op_gather");
}
