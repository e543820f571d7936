/* What dml_custom refuses, what a function that fails does to a run, and what backward may and may not see.
   Values and gradients are ops_test's. */
#include "ops/op_custom.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "kernels/gemm.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "train/gradient_check.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

/* sin, and what it is told to get wrong. */
typedef struct sine {
    dml_status forward_says, backward_says;
    float slope; /* of the gradient, 1 if it is right */
    int calls, backward_calls;
} sine;

static dml_status sine_forward(const dml_custom_call *call)
{
    sine *s = (sine *)call->user;
    const float *x = (const float *)call->input[0];
    s->calls++;
    for (size_t i = 0; i < call->output_count; i++) call->output[i] = sinf(x[i]);
    return s->forward_says;
}

static dml_status sine_backward(const dml_custom_call *call)
{
    sine *s = (sine *)call->user;
    const float *x = (const float *)call->input[0];
    s->backward_calls++;
    for (size_t i = 0; call->input_gradient[0] && i < call->output_count; i++)
        call->input_gradient[0][i] += s->slope * call->output_gradient[i] * cosf(x[i]);
    return s->backward_says;
}

static dml_custom_options sine_of(const dml_node *x, sine *s)
{
    const dml_custom_options options = {
        .shape = dml_node_shape(x), .forward = sine_forward, .backward = sine_backward, .user = s
    };
    return options;
}

static void refusals(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context), *other = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4), *of[] = { x, x, x, x, x, x, x, x, x };
    dml_node *gap[] = { NULL, x, NULL }, *mixed[] = { x, dml_input(other, "x", DML_F32, 4) };
    sine s = { .slope = 1 };
    dml_custom_options o = sine_of(x, &s);
    CHECK(!dml_custom(NULL, 1, &o) && !dml_custom(of, 0, &o) && !dml_custom(of, -1, &o) &&
          !dml_custom(gap, 1, &o));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_custom(of, 1, NULL), DML_ERROR_ARGUMENT, "custom: asked for without a forward");
    REFUSED(dml_custom(of, 9, &o), DML_ERROR_ARGUMENT, "custom: 9 inputs asked for, it takes 1 to 8");
    REFUSED(dml_custom(gap, 3, &o), DML_ERROR_ARGUMENT, "custom: its input 1 of 3 is NULL");
    REFUSED(dml_custom(mixed, 2, &o), DML_ERROR_ARGUMENT, "its inputs are of different graphs");
    o.shape = dml_shape_of(2, 0);
    REFUSED(dml_custom(of, 1, &o), DML_ERROR_SHAPE,
            "custom 'custom_1': dimension 1 is 0, it must be 1 or more");
    o.shape.ndim = DML_MAX_DIMS + 1;
    REFUSED(dml_custom(of, 1, &o), DML_ERROR_SHAPE, "6 dimensions asked for, 0 to 5");
    o.shape = dml_shape_of(4);
    o.forward = NULL;
    REFUSED(dml_custom(of, 1, &o), DML_ERROR_ARGUMENT, "without a forward");
    o.forward = sine_forward;
    o.name = "x";
    REFUSED(dml_custom(of, 1, &o), DML_ERROR_ARGUMENT, "x");
    o.name = "wave";
    CHECK_STRING(dml_node_name(dml_custom(of, 8, &o)), "wave");
    o.name = NULL;
    o.saved_bytes = SIZE_MAX / 2; /* of two samples nobody can count them */
    dml_node *huge = dml_custom(of, 1, &o);
    CHECK_STRING(dml_node_name(huge), "custom_2");
    CHECK(!dml_compile(huge, &(dml_program_options){ .batch = 3 }));
    CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
    dml_close(context);
}

/* A model whose loss goes through sin, on the backend under test. */
typedef struct setup {
    dml_context *context;
    sine sine;
    dml_node *x, *y, *loss;
    float in[3][2], target[3][2];
} setup;

static void open_setup(setup *t, bool trained)
{
    memset(t, 0, sizeof *t);
    t->sine.slope = 1;
    t->context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(t->context);
    t->x = dml_input(graph, "x", DML_F32, 2);
    dml_node *h = trained ? dml_dense(t->x, 2) : t->x;
    const dml_custom_options o = sine_of(h, &t->sine);
    t->y = dml_custom(&h, 1, &o);
    t->loss = dml_mean_squared_error(dml_dense(t->y, 2), dml_input(graph, "t", DML_F32, 2));
    for (int i = 0; i < 6; i++) {
        t->in[i / 2][i % 2] = 0.3f * (float)i - 0.7f;
        t->target[i / 2][i % 2] = 0.5f - 0.1f * (float)i;
    }
}

/* Either way the run ends with that status and names who said it; the next one is as if nothing had been. */
static void failures(void)
{
    setup t;
    open_setup(&t, true);
    const dml_trainer_options how = { .batch = 3, .optimizer = dml_sgd(0.1f, 0) };
    dml_trainer *trainer = dml_trainer_create(t.loss, &how);
    float loss = 0;
    CHECK_INT(dml_trainer_step(trainer, 3, DML_INPUTS(t.in, t.target), &loss), DML_OK);
    t.sine.forward_says = DML_ERROR_IO;
    CHECK_INT(dml_trainer_step(trainer, 3, DML_INPUTS(t.in, t.target), &loss), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(t.context), "custom 'custom_1': its forward returned");
    dml_clear_error(t.context);
    t.sine.forward_says = DML_OK;
    t.sine.backward_says = (dml_status)77;
    CHECK_INT(dml_trainer_step(trainer, 3, DML_INPUTS(t.in, t.target), &loss), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(t.context), "custom 'custom_1': its backward returned 77 (which is no status)");
    dml_clear_error(t.context);
    t.sine.backward_says = DML_OK;
    const int before = t.sine.calls;
    CHECK_INT(dml_trainer_step(trainer, 3, DML_INPUTS(t.in, t.target), &loss), DML_OK);
    CHECK_INT(t.sine.calls, before + 1);
    dml_close(t.context);
}
EACH_BACKEND(failures)

/* A wrong backward is found; a right one isn't. */
static void gradient_checks(void)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        setup t;
        dml_gradient_check check;
        open_setup(&t, true);
        t.sine.slope = wrong ? 1.25f : 1;
        CHECK_INT(dml_check_gradients(t.loss, 3, DML_INPUTS(t.in, t.target), NULL, &check), DML_OK);
        CHECK_MESSAGE((check.failed > 0) == wrong, "slope %g: %d failed", (double)t.sine.slope, check.failed);
        dml_close(t.context);
    }
}
EACH_BACKEND(gradient_checks)

/* Where nothing before it is trained, backward isn't called; without a backward nothing before it is. */
static void constants(void)
{
    setup t;
    float loss;
    open_setup(&t, false);
    const dml_trainer_options how = { .batch = 3, .optimizer = dml_sgd(0.1f, 0) };
    dml_trainer *trainer = dml_trainer_create(t.loss, &how);
    CHECK_INT(dml_trainer_step(trainer, 3, DML_INPUTS(t.in, t.target), &loss), DML_OK);
    CHECK_INT(t.sine.calls, 1);
    CHECK_INT(t.sine.backward_calls, 0);
    dml_close(t.context);

    open_setup(&t, true);
    dml_graph *graph = dml_node_graph(t.x);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(0.5f), 2);
    dml_node *h = dml_mul(t.x, w);
    dml_custom_options o = sine_of(h, &t.sine);
    o.backward = NULL;
    dml_node *bias = dml_parameter(graph, "bias", dml_init_constant(0.5f), 2);
    dml_node *other = dml_mean_squared_error(dml_add(dml_custom(&h, 1, &o), bias), t.x);
    dml_trainer *constant = dml_trainer_create(other, &how);
    CHECK_MESSAGE(constant, "%s", dml_error(t.context));
    CHECK_INT(dml_trainer_step(constant, 3, DML_INPUTS(t.in), &loss), DML_OK);
    const float *all = dml_graph_get(graph, 0, graph->parameter_count);
    CHECK(all && all[w->offset] == 0.5f && all[w->offset + 1] == 0.5f);
    CHECK(all && all[bias->offset] != 0.5f);
    dml_close(t.context);
}
EACH_BACKEND(constants)

/* Kernels may use the pool: what a device lends isn't in its scratch. */
enum { SIDE = 48, SAMPLES = 3 };

static dml_status product_forward(const dml_custom_call *call)
{
    const float *a = (const float *)call->input[0], *b = (const float *)call->input[1];
    const dml_scratch scratch = dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, SIDE, SIDE, SIDE);
    CHECK_INT(dml_pool_reserve(call->pool, scratch), DML_OK);
    for (int r = 0; r < call->rows; r++)
        dml_sgemm(call->pool, DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, SIDE, SIDE, SIDE, 1,
                  a + r * SIDE * SIDE, SIDE, b, SIDE, 0, call->output + r * SIDE * SIDE, SIDE);
    return DML_OK;
}

static void kernels_inside(void)
{
    static float a[SAMPLES][SIDE][SIDE], b[SIDE][SIDE], got[SAMPLES][SIDE][SIDE];
    unsigned seed = 9;
    test_fill(&seed, a[0][0], SAMPLES * SIDE * SIDE);
    test_fill(&seed, b[0], SIDE * SIDE);
    dml_context *context = open_here(&(dml_options){ .threads = 2 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *of[] = { dml_input(graph, "a", DML_F32, SIDE, SIDE),
                       dml_constant(graph, b[0], dml_shape_of(SIDE, SIDE)) };
    const dml_custom_options options = { .shape = dml_shape_of(SIDE, SIDE), .forward = product_forward };
    dml_program *p = dml_compile(dml_custom(of, 2, &options), &(dml_program_options){ .batch = SAMPLES });
    CHECK_MESSAGE(p, "%s", dml_error(context));
    for (int again = 0; again < 2; again++) {
        int wrong = 0;
        memset(got, 0, sizeof got);
        CHECK_INT(dml_program_run(p, SAMPLES, DML_INPUTS(a), got), DML_OK);
        for (int i = 0; i < SAMPLES * SIDE * SIDE; i++) {
            const int r = i / (SIDE * SIDE), row = i / SIDE % SIDE, column = i % SIDE;
            double want = 0;
            for (int k = 0; k < SIDE; k++) want += (double)a[r][row][k] * b[k][column];
            wrong += !(fabs(got[r][row][column] - want) <= 1e-5);
        }
        CHECK_MESSAGE(wrong == 0, "%d elements are wrong", wrong);
    }
    dml_close(context);
}
EACH_BACKEND(kernels_inside)

int main(void)
{
    RUN(refusals);
    RUN_EACH(failures);
    RUN_EACH(gradient_checks);
    RUN_EACH(constants);
    RUN_EACH(kernels_inside);
    return test_report("ops/op_custom");
}
