/* The check of gradients: right ones pass, each kind of wrong one is found, and all is as it was. */
#include "train/gradient_check.h"

#include "base/philox.h"
#include "graph/op.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "kernels/elementwise.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dropout.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_reduce.h"
#include "ops/op_sample_norm.h"

#include "small_model.h"

#include <string.h>

/* ---- models whose gradients are right ---- */

static float images[BATCH * 36];

static dml_node *images_loss(void)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_input(g, "x", DML_F32, 6, 6, 1), *t = dml_input(g, "t", DML_I32);
    h = dml_relu(dml_batch_norm(dml_conv2d(h, &(dml_conv2d_options){ .filters = 3 }), NULL));
    h = dml_flatten(dml_max_pool2d(h, NULL));
    h = dml_dropout(dml_gelu(dml_dense(h, 8)), 0.25f);
    return dml_softmax_cross_entropy(dml_dense(h, 3), t);
}

static void describe(const dml_gradient_check *c)
{
    if (c->parameter)
        printf("%s[%ld]: backward %g, differences %g, allowed %g; %d checked, %d failed, %d unsure\n",
               dml_node_name(c->parameter), (long)c->index, c->backward, c->numeric, c->allowed, c->checked,
               c->failed, c->unsure);
}

static void right_ones(void)
{
    dml_gradient_check c;
    unsigned seed = 4;
    test_fill(&seed, images, BATCH * 36);
    context = open_here(NULL);
    dml_node *loss = small_loss();
    CHECK_INT(dml_check_gradients(loss, BATCH, inputs, 2, NULL, &c), DML_OK);
    CHECK(c.failed == 0 && c.checked == 8 + WIDTH + 8 + 3 + 4 && c.unsure == 0);
    CHECK(c.parameter && c.allowed > 0 && fabs(c.backward - c.numeric) <= c.allowed);
    if (c.failed) describe(&c);
    loss = images_loss();
    dml_graph *g = dml_node_graph(loss);
    const size_t n = dml_graph_parameter_count(g);
    float *before = malloc(n * sizeof *before);
    const dml_gradient_check_options options = { .samples = slow_here() ? 2 : 20 };
    memcpy(before, dml_graph_get(g, 0, n), n * sizeof *before);
    CHECK_INT(dml_check_gradients(loss, BATCH, DML_INPUTS(images, labels), &options, &c), DML_OK);
    CHECK(c.failed == 0 && c.checked > 10 && c.unsure < c.checked / 2);
    if (c.failed) describe(&c);
    CHECK(memcmp(before, dml_graph_get(g, 0, n), n * sizeof *before) == 0); /* statistics too */
    free(before);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}
EACH_BACKEND(right_ones)

/* Of 32 samples a relu's kinks lie close to any weights, at all distances. */
static void kinks_nearby(void)
{
    enum { SEEDS = 60, ROWS = 32, IN = 8 };
    float x[ROWS][IN], target[ROWS];
    int unsure = 0, checked = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        const dml_random random = { (uint64_t)seed, 77, 0 };
        dml_gradient_check c;
        for (int i = 0; i < ROWS; i++) {
            for (int k = 0; k < IN; k++) x[i][k] = dml_random_normal(&random, (uint64_t)(i * IN + k));
            target[i] = dml_random_normal(&random, (uint64_t)(1000 + i));
        }
        context = dml_open(&(dml_options){ .seed = (uint64_t)seed, .threads = 1 });
        dml_graph *g = dml_graph_create(context);
        dml_node *h = dml_relu(dml_dense(dml_input(g, "x", DML_F32, IN), 16));
        dml_node *loss = dml_mean_squared_error(dml_dense(h, 1), dml_input(g, "t", DML_F32, 1));
        CHECK_INT(dml_check_gradients(loss, ROWS, DML_INPUTS(x, target), NULL, &c), DML_OK);
        CHECK_MESSAGE(c.failed == 0, "seed %d: %d failed", seed, c.failed);
        if (c.failed) describe(&c);
        unsure += c.unsure;
        checked += c.checked;
        dml_close(context);
    }
    CHECK_MESSAGE(unsure < checked / 50, "%d of %d are unsure", unsure, checked);
}

/* ---- a tanh whose gradient is wrong in a way of the test's choosing ---- */

typedef enum wrong { RIGHT, TWICE, OTHER_SIGN, ONE_ELEMENT, SLIGHTLY, NOT_A_NUMBER } wrong;
static wrong how;

static dml_status wrong_infer(dml_node *node)
{
    node->dtype = DML_F32;
    node->shape = node->input[0]->shape;
    node->batched = node->input[0]->batched;
    return DML_OK;
}

static dml_status wrong_forward(const dml__run *run, const dml_node *node)
{
    const float *x = dml__host_value(run, node->input[0]);
    for (size_t i = 0; i < dml__count(run, node); i++) dml__host_value(run, node)[i] = tanhf(x[i]);
    return DML_OK;
}

static dml_status wrong_backward(const dml__run *run, const dml_node *node)
{
    const float *y = dml__host_value(run, node), *dy = dml__host_gradient(run, node);
    float *dx = dml__host_gradient(run, node->input[0]);
    const float beta = dml__beta(run, node, 0);
    for (size_t i = 0; i < dml__count(run, node); i++) {
        float d = dy[i] * (1 - y[i] * y[i]);
        if (how == TWICE) d *= 2;
        if (how == OTHER_SIGN) d = -d;
        if (how == ONE_ELEMENT && i % WIDTH == 1) d = 0;
        if (how == SLIGHTLY) d *= 1.1f;
        if (how == NOT_A_NUMBER) d = NAN;
        dx[i] = d + (beta ? beta * dx[i] : 0);
    }
    return DML_OK;
}

static dml_node *wrong_tanh(dml_node *x)
{
    static const dml__op op = { "wrong_tanh", wrong_infer, wrong_forward, wrong_backward, DML__NEEDS_OUTPUT,
                                NULL,         false,       false,         NULL,           NULL,
                                NULL };
    return dml__node_create(&op, 1, &x, NULL, 0);
}

/* A norm makes the rounding of what it reads larger, so that losses jump by more than their last places: what
   that hides is unsure, and not wrong. */
static void norms_that_round(void)
{
    static const int seeds[] = { 7, 448, 449 };
    static float x[8][300], t[8];
    for (int i = 0; i < 8 * 300; i++) x[i / 300][i % 300] = sinf((float)i * 1.37f);
    for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) {
        context = dml_open(&(dml_options){ .seed = (uint64_t)seeds[s], .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *h = dml_input(graph, "x", DML_F32, 10, 10, 3);
        h = dml_conv2d(h, &(dml_conv2d_options){ .filters = 8, .same = true });
        h = dml_dense(dml_flatten(dml_silu(dml_group_norm(h, 2, NULL))), 1);
        dml_node *loss =
            dml_mean_squared_error(dml_sum(h, dml_all_axes(), false), dml_input(graph, "t", DML_F32));
        dml_gradient_check found;
        CHECK_INT(dml_check_gradients(loss, 8, DML_INPUTS(x, t), NULL, &found), DML_OK);
        CHECK_MESSAGE(found.failed == 0 && found.unsure <= 3 && found.checked >= 30,
                      "seed %d: %d of %d failed, %d unsure", seeds[s], found.failed, found.checked,
                      found.unsure);
        dml_close(context);
    }
}

static void wrong_ones(void)
{
    dml_gradient_check c;
    backend_here = find_backend("cpu");
    for (int h = RIGHT; h <= NOT_A_NUMBER; h++) {
        how = (wrong)h;
        context = open_here(NULL);
        dml_graph *g = dml_graph_create(context);
        dml_node *hidden = wrong_tanh(dml_dense(dml_input(g, "x", DML_F32, 2), WIDTH));
        dml_node *loss = dml_softmax_cross_entropy(dml_dense(hidden, 3), dml_input(g, "label", DML_I32));
        CHECK_INT(dml_check_gradients(loss, BATCH, inputs, 2, NULL, &c), DML_OK);
        CHECK_MESSAGE((c.failed > 0) == (how != RIGHT), "wrong gradient %d: %d of %d fail", h, c.failed,
                      c.checked);
        if (how == RIGHT) continue;
        CHECK_MESSAGE(strncmp(dml_node_name(c.parameter), "dense_1.", 8) == 0, "%d: found in %s", h,
                      dml_node_name(c.parameter)); /* what is behind it is right */
        CHECK(!(fabs(c.backward - c.numeric) <= c.allowed));
        if (how == TWICE) CHECK_NEAR(c.backward / c.numeric, 2, 0.1);
        if (how == OTHER_SIGN && c.index != DML_WHOLE_PARAMETER) CHECK_NEAR(c.backward / c.numeric, -1, 0.1);
        dml_close(context);
        context = NULL;
    }
}

/* Gradients so small that no single element tells: together they do. */
static void many_small_ones(void)
{
    enum { N = 4000 };
    static float x[N];
    const float t[1] = { 1.5f };
    dml_gradient_check c;
    unsigned seed = 2;
    backend_here = find_backend("cpu");
    test_fill(&seed, x, N);
    for (int i = 0; i < N; i++) x[i] *= 2e-5f;
    for (int h = RIGHT; h <= TWICE; h++) {
        how = (wrong)h;
        context = open_here(NULL);
        dml_graph *g = dml_graph_create(context);
        dml_node *w = dml_parameter(g, "w", dml_init_normal(0, 1), 1, N);
        dml_node *y = wrong_tanh(dml_dense_with(dml_input(g, "x", DML_F32, N), w, NULL));
        dml_node *loss = dml_mean_squared_error(y, dml_input(g, "t", DML_F32, 1));
        CHECK_INT(dml_check_gradients(loss, 1, DML_INPUTS(x, t), NULL, &c), DML_OK);
        CHECK_INT(c.failed, how == TWICE);
        if (c.failed) CHECK(c.parameter == w && c.index == DML_WHOLE_PARAMETER);
        dml_close(context);
    }
}

/* Where there is no derivative, none is compared. */
static void kinks(void)
{
    const float x[2] = { 0, 0 }, t[2] = { -1, 2 };
    dml_gradient_check c;
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *h =
        dml_relu(dml_add(dml_input(g, "x", DML_F32, 2), dml_parameter(g, "b", dml_init_constant(0), 2)));
    dml_node *loss = dml_mean_squared_error(h, dml_input(g, "t", DML_F32, 2));
    CHECK_INT(dml_check_gradients(loss, 1, DML_INPUTS(x, t), NULL, &c), DML_OK);
    CHECK_MESSAGE(c.checked == 0 && c.unsure > 0 && c.failed == 0 && !c.parameter, "%d checked, %d unsure",
                  c.checked, c.unsure);
    dml_close(context);
}

/* Steeper than the differences are close: each is a chord of the step, half as far twice as steep, and says
   nothing of the tangent. */
static void too_steep_for_it(void)
{
    const float t[2] = { 1, 0.3f };
    dml_gradient_check c;
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *y = dml_tanh(dml_affine(dml_parameter(g, "p", dml_init_constant(0), 2), 30000, 0));
    dml_node *loss = dml_batch_mean(dml_mul(y, dml_input(g, "t", DML_F32, 2)), NULL);
    CHECK_INT(dml_check_gradients(loss, 1, DML_INPUTS(t), NULL, &c), DML_OK);
    CHECK_MESSAGE(c.failed == 0 && c.unsure > 0, "%d failed, %d unsure", c.failed, c.unsure);
    dml_close(context);
}

static void frozen_ones_are_left_out(void)
{
    dml_gradient_check c;
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = small_loss();
    dml_parameter_train(dml_graph_find(dml_node_graph(loss), "dense_1.weight"), false);
    CHECK_INT(dml_check_gradients(loss, 2, inputs, 2, NULL, &c), DML_OK);
    CHECK_INT(c.checked, WIDTH + 8 + 3 + 3);
    CHECK_INT(c.failed, 0);
    dml_close(context);
}

static void refused(void)
{
    const dml_gradient_check_options bad[] = { { .epsilon = -1 },       { .epsilon = NAN },
                                               { .epsilon = INFINITY }, { .tolerance = 1 },
                                               { .tolerance = NAN },    { .samples = -1 } };
    dml_gradient_check c;
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = small_loss();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(dml_check_gradients(loss, 1, inputs, 2, &bad[i], &c), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "a check of gradients with epsilon");
        dml_clear_error(context);
    }
    CHECK_INT(dml_check_gradients(NULL, 1, inputs, 2, NULL, &c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_check_gradients(loss, 1, inputs, 2, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "dml_check_gradients was given no result");
    dml_clear_error(context);
    CHECK_INT(dml_check_gradients(loss, 0, inputs, 2, NULL, &c), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "a batch of 0");
    dml_clear_error(context);
    CHECK_INT(dml_check_gradients(loss, 1, inputs, 1, NULL, &c), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "1 inputs were given");
    dml_clear_error(context);
    CHECK_INT(dml_check_gradients(dml_node_input(loss, 0), 1, inputs, 2, NULL, &c), DML_ERROR_SHAPE);
    dml_clear_error(context);
    CHECK_INT(dml_check_gradients(loss, 1, inputs, 2, NULL, &c), DML_OK);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(right_ones);
    RUN(kinks_nearby);
    RUN(norms_that_round);
    RUN(wrong_ones);
    RUN(many_small_ones);
    RUN(kinks);
    RUN(too_steep_for_it);
    RUN(frozen_ones_are_left_out);
    RUN(refused);
    return test_report("train/gradient_check");
}
