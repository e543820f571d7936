/* What reductions and softmax refuse, the shapes they give, and what ops_test can't see: integers and shared
 * gradients.
 */
#include "ops/op_reduce.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_embedding.h"
#include "ops/op_shape.h"
#include "ops/op_softmax.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void check_node(const dml_node *node, const char *want_shape, const char *want_words)
{
    char text[DML_SHAPE_TEXT], words[64];
    const dml_shape shape = dml_node_shape(node);
    CHECK_STRING(dml_shape_format(&shape, text), want_shape);
    if (want_words) CHECK_STRING(dml_node_describe(node, words, sizeof words), want_words);
}

static void shapes(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6),
             *p = dml_parameter(graph, "p", dml_init_constant(0), 3, 2);
    check_node(dml_sum(x, dml_shape_of(1), false), "4 x 6", "axis 1");
    check_node(dml_mean(x, dml_shape_of(-1), true), "4 x 5 x 1", "axis 2, kept");
    check_node(dml_max(x, dml_shape_of(2, 1), false), "4", "axes 1 to 2");
    check_node(dml_min(x, dml_shape_of(2, 0), false), "5", "axes 1 to 2");
    check_node(dml_min(x, dml_shape_of(2, 0), true), "1 x 5 x 1", NULL);
    check_node(dml_norm(x, 2, dml_all_axes(), false), "scalar", "order 2, axes 0 to 2");
    check_node(dml_norm(x, 1, dml_all_axes(), true), "1 x 1 x 1", "order 1, axes 0 to 2, kept");
    check_node(dml_norm(x, INFINITY, dml_shape_of(0), false), "5 x 6", "axis 0");
    check_node(dml_argmax(x, 0, true), "1 x 5 x 6", NULL);
    check_node(dml_argmax(x, -1, false), "4 x 5", "axis 2");
    check_node(dml_argmin(x, -2, false), "4 x 6", NULL);
    CHECK(dml_argmax(x, 1, true)->dtype == DML_I32);
    CHECK(!dml_sum(p, dml_all_axes(), false)->batched && dml_sum(x, dml_all_axes(), false)->batched);
    dml_node *scalar = dml_input(graph, "scalar", DML_F32);
    check_node(dml_sum(scalar, dml_all_axes(), true), "scalar", NULL);
    CHECK(dml_node_flops(dml_sum(x, dml_shape_of(1), false)) == 120);
    CHECK(dml_node_flops(dml_max(x, dml_shape_of(1), false)) == 0);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void refusals(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6), *t = dml_input(graph, "t", DML_I32, 4, 2, 3);
    dml_node *scalar = dml_input(graph, "scalar", DML_F32);
    const dml_shape long_list = { 6, { 0, 1, 2, 0, 0 } }, negative = { -1, { 0 } };
    CHECK(!dml_sum(NULL, dml_all_axes(), false) && !dml_norm(NULL, 2, dml_all_axes(), false));
    CHECK(!dml_argmax(NULL, 0, false) && !dml_argmin(NULL, 0, false));
    CHECK_STRING(dml_error(context), "");
    REFUSED(
        dml_sum(x, dml_shape_of(3), false), DML_ERROR_ARGUMENT,
        "sum: of axes of 'x', which is 4 x 5 x 6, a list that names one twice, or one that isn't in -3 .. 2");
    REFUSED(dml_mean(x, dml_shape_of(-4), false), DML_ERROR_ARGUMENT, "mean: of axes of 'x'");
    REFUSED(dml_max(x, dml_shape_of(1, -2), false), DML_ERROR_ARGUMENT, "names one twice");
    REFUSED(dml_min(x, long_list, false), DML_ERROR_ARGUMENT, "min: ");
    REFUSED(dml_min(x, negative, false), DML_ERROR_ARGUMENT, "min: ");
    REFUSED(dml_sum(t, dml_shape_of(0), false), DML_ERROR_ARGUMENT, "its input is i32, it takes f32");
    REFUSED(dml_sum(t, dml_shape_of(0, 2), false), DML_ERROR_ARGUMENT, "sum 'sum_1': its input is i32");
    REFUSED(dml_norm(x, 3, dml_shape_of(0), false), DML_ERROR_ARGUMENT, "of 'x' that of order 3 asked for");
    REFUSED(dml_norm(x, INFINITY, dml_shape_of(3), false), DML_ERROR_ARGUMENT, "of axes of 'abs_1'");
    REFUSED(dml_norm(x, NAN, dml_shape_of(0), false), DML_ERROR_ARGUMENT, "it takes 1, 2 and INFINITY");
    CHECK(!dml_softmax(NULL, 0) && !dml_log_softmax(NULL, 0));
    REFUSED(dml_softmax(x, 3), DML_ERROR_ARGUMENT,
            "softmax 'softmax_1': axis 3 asked for, of an input of 4 x 5 x 6: it must be in -3 .. 2");
    REFUSED(dml_log_softmax(x, -4), DML_ERROR_ARGUMENT, "log_softmax 'log_softmax_1': axis -4");
    REFUSED(dml_softmax(t, 0), DML_ERROR_ARGUMENT, "its input is i32, it takes f32");
    REFUSED(dml_argmax(x, 3, false), DML_ERROR_ARGUMENT, "argmax: of axes");
    REFUSED(dml_argmin(x, -4, false), DML_ERROR_ARGUMENT, "argmax: of axes");
    REFUSED(dml_argmax(t, 0, false), DML_ERROR_ARGUMENT, "i32");
    REFUSED(dml_softmax(scalar, -1), DML_ERROR_ARGUMENT,
            "softmax 'softmax_1': axis -1 asked for, of a scalar, which has no axis");
    REFUSED(dml_log_softmax(scalar, 0), DML_ERROR_ARGUMENT, "axis 0 asked for, of a scalar, which has no");
    REFUSED(dml_argmax(scalar, -1, false), DML_ERROR_ARGUMENT,
            "argmax: axis -1 of 'scalar' asked for, which is a scalar and has no axis");
    REFUSED(dml_sum(scalar, dml_shape_of(0), false), DML_ERROR_ARGUMENT, "sum: axis 0 of 'scalar'");
    CHECK(dml_sum(scalar, dml_all_axes(), false));
    dml_close(context);
}

/* Places in i32, the first of equals, along an axis that isn't the last. */
static void places(void)
{
    enum { ROWS = 2 };
    static const float x[ROWS][3][2] = { { { 1, 5 }, { 3, -2 }, { 3, 5 } },
                                         { { 0, 0 }, { NAN, 0 }, { 9, -1 } } };
    static const int32_t want[ROWS][2] = { { 1, 0 }, { 1, 0 } }, want_min[ROWS][2] = { { 0, 1 }, { 1, 2 } };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *in = dml_input(graph, "x", DML_F32, 3, 2);
    dml_program *largest = dml_compile(dml_argmax(in, 0, false), &(dml_program_options){ .batch = ROWS });
    dml_program *smallest = dml_compile(dml_argmin(in, 0, true), &(dml_program_options){ .batch = ROWS });
    CHECK_STRING(dml_error(context), "");
    int32_t got[ROWS][2];
    CHECK_INT(dml_program_run(largest, ROWS, DML_INPUTS(x), got), DML_OK);
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_INT(dml_program_run(smallest, ROWS, DML_INPUTS(x), got), DML_OK);
    CHECK(memcmp(got, want_min, sizeof got) == 0);
    dml_close(context);
}
EACH_BACKEND(places)

/* Indices that an op makes can't be checked in a run, so they are when the program is compiled. */
static void computed_indices(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5), *place = dml_argmax(x, -1, true);
    dml_node *fits = dml_embedding(place, 5, 2),
             *beyond = dml_embedding(dml_reshape(place, dml_shape_of(4)), 4, 2);
    CHECK(dml_compile(fits, &(dml_program_options){ .batch = 1 }));
    CHECK(!dml_compile(beyond, &(dml_program_options){ .batch = 1 }));
    CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(
        dml_error(context),
        "embedding 'embedding_2': it indexes with 'argmax_1', up to 4; its indices must be in 0 .. 3");
    dml_close(context);
}

/* Ties share the gradient, and a norm of 0 gives none. */
static void shared_gradients(void)
{
    enum { N = 6 };
    static const float w[N] = { 2, -1, 2, 0, 2, -1 }, zero[N] = { 0 };
    static const float want[4][N] = {
        { 1 / 3.0f, 0, 1 / 3.0f, 0, 1 / 3.0f, 0 }, { 0, 0.5f, 0, 0, 0, 0.5f }, { 1, -1, 1, 0, 1, -1 }, { 0 }
    };
    for (int k = 0; k < 4; k++) {
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *p = dml_parameter(graph, "p", dml_init_constant(0), N);
        dml_node *y = k == 0   ? dml_max(p, dml_all_axes(), false)
                      : k == 1 ? dml_min(p, dml_all_axes(), false)
                               : dml_norm(p, k == 2 ? 1 : 2, dml_all_axes(), false);
        dml_program *program = dml_compile(y, &(dml_program_options){ .batch = 1, .training = true });
        CHECK_STRING(dml_error(context), "");
        CHECK_INT(dml_parameter_write(p, k == 3 ? zero : w, N), DML_OK);
        const dml__training training = { 0, 0, 1.0f, false, NULL };
        float loss, g[N];
        CHECK_INT(dml__program_train(program, 1, NULL, &training, &loss), DML_OK);
        read_floats(context, g, program->g, N);
        for (int i = 0; i < N; i++) CHECK_NEAR(g[i], want[k][i], 1e-7);
        dml_close(context);
    }
}
EACH_BACKEND(shared_gradients)

int main(void)
{
    RUN(shapes);
    RUN(refusals);
    RUN(computed_indices);
    RUN_EACH(places);
    RUN_EACH(shared_gradients);
    return test_report("ops/op_reduce");
}
