/* What layer, RMS and group norm refuse, and how they name and describe themselves. Their values and
   gradients are ops_test's. */
#include "ops/op_sample_norm.h"

#include "device/context_internal.h"
#include "graph/node.h"
#include "graph/weights.h"

#include "../test.h"
#include "../graph/refused.h"

static void bad_norms(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer one = dml_init_constant(1);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6), *whole = dml_input(graph, "whole", DML_I32, 6);
    dml_node *scalar = dml_input(graph, "scalar", DML_F32), *b = dml_input(graph, "b", DML_F32, 6);
    dml_node *six = dml_parameter(graph, "six", one, 6), *five = dml_parameter(graph, "five", one, 5);
    dml_node *flat = dml_parameter(graph, "flat", one, 2, 3);
    CHECK(!dml_layer_norm(NULL, NULL) && !dml_rms_norm(NULL, NULL) && !dml_group_norm(NULL, 2, NULL));
    CHECK(!dml_layer_norm_with(NULL, NULL, NULL, NULL));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_layer_norm(whole, NULL), DML_ERROR_SHAPE, "layer_norm 'layer_norm_1': its input is i32 6;");
    REFUSED(dml_rms_norm(scalar, NULL), DML_ERROR_SHAPE, "at least one dimension");
    REFUSED(dml_group_norm(scalar, 1, NULL), DML_ERROR_SHAPE, "its input is f32 scalar");
    static const float bad[] = { -1e-5f, NAN, INFINITY };
    for (int i = 0; i < 3; i++)
        REFUSED(dml_layer_norm(x, &(dml_sample_norm_options){ .epsilon = bad[i] }), DML_ERROR_ARGUMENT,
                "it must be above 0");
    static const int cuts[] = { 0, -2, 4, 7 };
    for (int i = 0; i < 4; i++)
        REFUSED(dml_group_norm(x, cuts[i], NULL), DML_ERROR_ARGUMENT, "6 channels can't be cut into");
    REFUSED(dml_group_norm(x, 0, NULL), DML_ERROR_ARGUMENT, "6 channels can't be cut into 0 equal groups");
    REFUSED(dml_group_norm_with(x, 0, six, NULL, NULL), DML_ERROR_ARGUMENT, "cut into 0 equal groups");
    REFUSED(dml_layer_norm_with(x, five, NULL, NULL), DML_ERROR_SHAPE,
            "its weight is f32 5, it must be f32 6: one for each channel");
    REFUSED(dml_layer_norm_with(x, six, flat, NULL), DML_ERROR_SHAPE, "its bias is f32 2 x 3,");
    REFUSED(dml_group_norm_with(x, 2, b, NULL, NULL), DML_ERROR_SHAPE, "its weight is f32 6 a sample");
    REFUSED(dml_layer_norm_with(x, NULL, six, NULL), DML_ERROR_ARGUMENT, "a bias without a weight");
    REFUSED(dml_layer_norm_with(NULL, six, NULL, NULL), DML_ERROR_ARGUMENT, "input 1 of 2 is NULL");
    dml_close(context);
}

static void names_and_words(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 6);
    dml_node *a = dml_layer_norm(x, NULL),
             *r = dml_rms_norm(a, &(dml_sample_norm_options){ .epsilon = 0.5f });
    dml_node *g = dml_group_norm(r, 3, &(dml_sample_norm_options){ .no_bias = true });
    dml_node *bare = dml_layer_norm(g, &(dml_sample_norm_options){ .no_weight = true });
    char text[64];
    CHECK(dml_graph_find(graph, "layer_norm_1.weight") && dml_graph_find(graph, "layer_norm_1.bias"));
    CHECK(dml_graph_find(graph, "rms_norm_1.weight") && dml_graph_find(graph, "group_norm_1.weight"));
    CHECK_INT(dml_graph_parameter_count(graph), 4 * 6);
    CHECK_INT(dml_node_inputs(bare), 1);
    CHECK_STRING(dml_node_describe(a, text, sizeof text), "epsilon 1e-05");
    CHECK_STRING(dml_node_describe(r, text, sizeof text), "epsilon 0.5");
    CHECK_STRING(dml_node_describe(g, text, sizeof text), "3 groups, epsilon 1e-05");
    CHECK(dml_node_flops(a) == 7 * 120 && dml_node_flops(r) == 4 * 120 && dml_node_flops(bare) == 5 * 120);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

int main(void)
{
    RUN(bad_norms);
    RUN(names_and_words);
    return test_report("ops/op_sample_norm");
}
