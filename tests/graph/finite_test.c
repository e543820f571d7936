/* The check for numbers that aren't finite: what it finds first, what it says, and that nothing else
   changes. */
#include "graph/program.h"

#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_shape.h"
#include "train/trainer.h"

#include "backends.h"

#include <stdint.h>

enum { BATCH = 3 };

static dml_context *context;

#define SAYS(call, words)                                                                                    \
    do {                                                                                                     \
        CHECK_INT(call, DML_ERROR_NUMBER);                                                                   \
        CHECK_CONTAINS(dml_error(context), words);                                                           \
    } while (0)

/* log(x) through a parameter, an exp that may overflow, a difference of that with itself. */
static dml_node *chain(void)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 4);
    dml_node *h = dml_mul(x, dml_parameter(g, "scale", dml_init_constant(1), 4));
    dml_node *big = dml_exp(dml_log(h)), *bigger = dml_mul(big, big);
    return dml_mean_squared_error(dml_sub(bigger, bigger), dml_input(g, "t", DML_F32, 4));
}

static dml_program *program_of(dml_node *output, dml_check check, bool training)
{
    dml_program *p =
        dml_compile(output, &(dml_program_options){ .batch = BATCH, .training = training, .check = check });
    CHECK_MESSAGE(p, "%s", dml_error(context));
    return p;
}

static void forward_is_looked_at(void)
{
    float x[BATCH * 4], t[BATCH * 4] = { 0 };
    const void *inputs[] = { x, t };
    context = open_here(NULL);
    dml_node *loss = chain();
    dml_program *off = program_of(loss, DML_CHECK_NOTHING, false),
                *nan = program_of(loss, DML_CHECK_NAN, false),
                *finite = program_of(loss, DML_CHECK_FINITE, false);
    for (int i = 0; i < BATCH * 4; i++) x[i] = (float)(i + 1);
    CHECK_INT(dml_program_run(nan, BATCH, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_program_run(finite, BATCH, inputs, 2, NULL), DML_OK);
    x[9] = -2;
    SAYS(dml_program_run(nan, BATCH, inputs, 2, NULL),
         "log 'log_1' computed, going forward, NaN at element 1 of sample 2; of 12 elements 1 are NaN and 0 "
         "infinite; it was given 'mul_1' -2 .. 12");
    dml_clear_error(context);
    CHECK_INT(dml_program_run(nan, 2, inputs, 2, NULL), DML_OK); /* without that sample */
    CHECK_INT(dml_program_run(off, BATCH, inputs, 2, NULL), DML_OK);
    x[9] = 1e30f;
    SAYS(dml_program_run(finite, BATCH, inputs, 2, NULL),
         "mul 'mul_2' computed, going forward, inf at element 1");
    dml_clear_error(context);
    SAYS(dml_program_run(nan, BATCH, inputs, 2, NULL),
         "sub 'sub_1' computed, going forward, NaN at element 1 of sample 2; of 12 elements 1 are NaN and 0 "
         "infinite; it was given 'mul_2' 1 .. 144 with 0 NaN and 1 infinite");
    dml_clear_error(context);
    x[9] = NAN, x[11] = INFINITY;
    SAYS(dml_program_run(nan, BATCH, inputs, 2, NULL),
         "input 'x' holds NaN at element 1 of sample 2; of 12 elements 1 are NaN and 1 infinite");
    dml_clear_error(context);
    x[9] = -INFINITY;
    SAYS(dml_program_run(finite, BATCH, inputs, 2, NULL), "input 'x' holds -inf at element 1 of sample 2");
    dml_clear_error(context);
    x[9] = x[11] = 1;
    float scale[4] = { 1, 1, 1, NAN };
    CHECK_INT(dml_parameter_write(dml_graph_find(dml_node_graph(loss), "scale"), scale, 4), DML_OK);
    SAYS(dml_program_run(finite, BATCH, inputs, 2, NULL), "parameter 'scale' holds NaN at element 3; of 4");
    dml_close(context);
}
EACH_BACKEND(forward_is_looked_at)

/* The root of 0 has a value but no slope. */
static void backward_is_looked_at(void)
{
    const float x[BATCH * 2] = { 1, 2, 3, 0, 5, 6 }, t[BATCH * 2] = { 9, 9, 9, 9, 9, 9 };
    float before[2], after[2];
    context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *scale = dml_parameter(g, "scale", dml_init_constant(1), 2);
    dml_node *root = dml_sqrt(dml_mul(dml_input(g, "x", DML_F32, 2), scale));
    dml_node *loss = dml_mean_squared_error(root, dml_input(g, "t", DML_F32, 2));
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = BATCH, .check = DML_CHECK_FINITE });
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    CHECK_INT(dml_parameter_read(scale, before, 2), DML_OK);
    SAYS(dml_trainer_step(trainer, BATCH, DML_INPUTS(x, t), NULL),
         "sqrt 'sqrt_1' computed, going backward, a gradient of 'mul_1' with -inf at element 1 of sample 1; "
         "of "
         "6 elements 0 are NaN and 1 infinite; it was given its output's gradient -3 .. -2.1");
    dml_clear_error(context);
    CHECK_INT(dml_parameter_read(scale, after, 2), DML_OK);
    CHECK(memcmp(before, after, sizeof before) == 0 && dml_trainer_steps(trainer) == 0);
    CHECK_INT(dml_trainer_update(trainer), DML_ERROR_STATE); /* there is no gradient */
    dml_clear_error(context);
    CHECK_INT(dml_trainer_step(trainer, 1, DML_INPUTS(x, t), NULL), DML_OK);
    dml_close(context);
}
EACH_BACKEND(backward_is_looked_at)

/* Beyond what is read at once. */
static void large_tensors(void)
{
    enum { N = 5000 };
    static float x[N];
    context = open_here(NULL);
    dml_node *in = dml_input(dml_graph_create(context), "x", DML_F32, N);
    dml_program *p = dml_compile(dml_log(in), &(dml_program_options){ .batch = 1, .check = DML_CHECK_NAN });
    for (int i = 0; i < N; i++) x[i] = 1;
    x[2048] = x[4999] = -1;
    SAYS(dml_program_run(p, 1, DML_INPUTS(x), NULL),
         "NaN at element 2048 of sample 0; of 5000 elements 2 are");
    dml_clear_error(context);
    x[2048] = 1;
    SAYS(dml_program_run(p, 1, DML_INPUTS(x), NULL), "NaN at element 4999 of sample 0");
    dml_close(context);
}
EACH_BACKEND(large_tensors)

/* Ops that else work as one or in place: the same bits. */
static void train_some(dml_check check, float *loss, float *w, size_t *count)
{
    float x[BATCH * 36];
    const int32_t t[BATCH] = { 0, 2, 1 };
    unsigned seed = 7;
    context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_input(g, "x", DML_F32, 6, 6, 1), *label = dml_input(g, "t", DML_I32);
    h = dml_relu(dml_batch_norm(dml_conv2d(h, &(dml_conv2d_options){ .filters = 3 }), NULL));
    h = dml_flatten(dml_max_pool2d(h, NULL));
    h = dml_dropout(dml_relu(dml_dense(h, 6)), 0.25f);
    h = dml_add(h, dml_tanh(h));
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(dml_dense(h, 3), label),
                                              &(dml_trainer_options){ .batch = BATCH, .check = check });
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    for (int step = 0; step < 3; step++) {
        test_fill(&seed, x, BATCH * 36);
        CHECK_INT(dml_trainer_step(trainer, BATCH - step % 2, DML_INPUTS(x, t), &loss[step]), DML_OK);
    }
    *count = dml_trainer_count(trainer, DML_PARAMETERS);
    CHECK(*count <= 400);
    memcpy(w, dml_trainer_get(trainer, DML_PARAMETERS, 0, *count), *count * sizeof *w);
    dml_close(context);
}

static void nothing_else_changes(void)
{
    float loss[2][3], w[2][400];
    size_t count[2];
    train_some(DML_CHECK_NOTHING, loss[0], w[0], &count[0]);
    train_some(DML_CHECK_FINITE, loss[1], w[1], &count[1]);
    CHECK(memcmp(loss[0], loss[1], sizeof loss[0]) == 0);
    CHECK(count[0] == count[1] && memcmp(w[0], w[1], count[0] * sizeof(float)) == 0);
}
EACH_BACKEND(nothing_else_changes)

/* A program with a thread of its own tells its own errors. */
static void on_its_own_thread(void)
{
    const float x[] = { -1 };
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *in = dml_input(dml_graph_create(context), "x", DML_F32, 1);
    dml_program *p = dml_compile(
        dml_log(in), &(dml_program_options){ .batch = 1, .own_thread = true, .check = DML_CHECK_NAN });
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(x), NULL), DML_ERROR_NUMBER);
    CHECK_CONTAINS(dml_program_error(p), "log 'log_1' computed");
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void refused(void)
{
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = chain();
    for (int bad = -1; bad < 4; bad += 4) {
        CHECK(!dml_compile(loss, &(dml_program_options){ .batch = 1, .check = (dml_check)bad }));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "a check of kind");
        dml_clear_error(context);
    }
    dml_close(context);
}

int main(void)
{
    RUN_EACH(forward_is_looked_at);
    RUN_EACH(backward_is_looked_at);
    RUN_EACH(large_tensors);
    RUN_EACH(nothing_else_changes);
    RUN(on_its_own_thread);
    RUN(refused);
    return test_report("graph/finite");
}
