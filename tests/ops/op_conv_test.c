/* What convolutions and pooling refuse, the shapes that they give and what they say of themselves. Their
   values and gradients are ops_test's. */
#include "ops/op_conv2d.h"

#include "graph/node.h"
#include "graph/print.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_local2d.h"
#include "ops/op_pool2d.h"

#include "../test.h"
#include "../graph/refused.h"

static void check_shape(const dml_node *node, const char *want)
{
    char text[DML_SHAPE_TEXT];
    const dml_shape shape = dml_node_shape(node);
    CHECK_STRING(dml_shape_format(&shape, text), want);
}

static void check_words(const dml_node *node, const char *want)
{
    char text[128];
    CHECK_STRING(dml_node_describe(node, text, sizeof text), want);
}

#define CONV2D(...) dml_conv2d(x, &(dml_conv2d_options){ .filters = 3, __VA_ARGS__ })
#define CONV1D(...) dml_conv1d(l, &(dml_conv1d_options){ .filters = 3, __VA_ARGS__ })

static void convolutions(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 6, 7, 4), *l = dml_input(graph, "l", DML_F32, 9, 4);
    check_shape(CONV2D(.same = true), "6 x 7 x 3");
    check_shape(CONV2D(.same = true, .stride = { 2, 2 }), "3 x 4 x 3");
    check_shape(CONV2D(.same = true, .kernel = { 9, 9 }, .stride = { 9, 9 }), "1 x 1 x 3");
    dml_node *c = CONV2D(.padding_sides = { 1, 2, 0, 3 }, .dilation = { 1, 2 }, .no_bias = true);
    check_shape(c, "7 x 6 x 3");
    check_words(c, "3 filters, kernel 3 x 3, stride 1 x 1, padding 1 + 2 x 0 + 3, dilation 1 x 2, no bias");
    check_words(CONV2D(.same = true), "3 filters, kernel 3 x 3, stride 1 x 1, padding same");
    check_shape(c = CONV1D(.stride = 2), "4 x 3");
    check_words(c, "3 filters, kernel 3, stride 2, padding 0");
    CHECK_STRING(dml_node_name(c), "conv1d_1");
    CHECK(dml_graph_find(graph, "conv1d_1.weight") && dml_graph_find(graph, "conv1d_1.bias"));
    check_shape(dml_graph_find(graph, "conv1d_1.weight"), "3 x 3 x 4");
    check_shape(c = CONV1D(.causal = true, .kernel = 4, .dilation = 3), "9 x 3");
    check_words(c, "3 filters, kernel 4, stride 1, padding 9 + 0, dilation 3");
    CHECK_STRING(dml_node_name(c), "conv1d_2");
    check_shape(CONV1D(.causal = true, .stride = 2), "5 x 3");
    check_shape(CONV1D(.padding_sides = { 0, 1 }, .kernel = 10), "1 x 3");
    dml_close(context);
}

static void bad_convolutions(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 6, 7, 4), *l = dml_input(graph, "l", DML_F32, 9, 4);
    const dml_initializer zero = dml_init_constant(0);
    dml_node *w3 = dml_parameter(graph, "w3", zero, 3, 2, 4),
             *w4 = dml_parameter(graph, "w4", zero, 3, 2, 2, 4), *w2 = dml_parameter(graph, "w2", zero, 6, 6);
    REFUSED(CONV2D(.same = true, .padding = { 0, 1 }), DML_ERROR_ARGUMENT, "more than one way");
    REFUSED(CONV2D(.same = true, .padding_sides = { 0, 1 }), DML_ERROR_ARGUMENT, "more than one way");
    REFUSED(CONV2D(.padding = { 1, 0 }, .padding_sides = { 0, 1 }), DML_ERROR_ARGUMENT, "more than one way");
    REFUSED(CONV2D(.padding_sides = { 0, 1, -2 }), DML_ERROR_ARGUMENT, "padding -2 asked for on a side");
    REFUSED(CONV2D(.padding_sides = { 0, 0, 0, 0 }, .kernel = { 7, 1 }), DML_ERROR_SHAPE, "doesn't fit");
    REFUSED(CONV2D(.same = true, .stride = { -1, 1 }), DML_ERROR_ARGUMENT, "stride -1");
    REFUSED(CONV2D(.same = true, .dilation = { 1, -1 }), DML_ERROR_ARGUMENT, "dilation -1");
    REFUSED(CONV2D(.same = true, .dilation = { 2147483647, 1 }), DML_ERROR_SHAPE, "doesn't fit");
    REFUSED(CONV2D(.padding_sides = { 2147483647, 2147483647 }), DML_ERROR_SHAPE, "conv2d");
    REFUSED(CONV2D(.padding = { 2147483647, 1 }), DML_ERROR_SHAPE, "with padding 2147483647 x 1 ");
    REFUSED(dml_conv1d(x, &(dml_conv1d_options){ .filters = 3 }), DML_ERROR_SHAPE,
            "its input is f32 6 x 7 x 4; it takes f32 lines of length x channels");
    REFUSED(dml_conv1d(l, NULL), DML_ERROR_ARGUMENT, "conv1d: 0 filters");
    REFUSED(dml_conv1d(NULL, NULL), DML_OK, "");
    REFUSED(dml_conv1d_with(NULL, w3, NULL, NULL), DML_ERROR_ARGUMENT, "conv1d: its input 1 of 2 is NULL");
    REFUSED(dml_conv1d_with(l, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "conv1d: its input 2 of 2 is NULL");
    REFUSED(dml_conv1d_with(l, w4, NULL, NULL), DML_ERROR_SHAPE, "its weights are 3 x 2 x 2 x 4");
    REFUSED(dml_conv2d_with(x, w3, NULL, NULL), DML_ERROR_SHAPE, "its weights are 3 x 2 x 4");
    REFUSED(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .kernel = { 2 } }), DML_ERROR_ARGUMENT,
            "2 filters of 2 x 0 asked for");
    REFUSED(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .stride = { 2 } }), DML_ERROR_ARGUMENT,
            "stride 0");
    REFUSED(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .dilation = { 0, 2 } }), DML_ERROR_ARGUMENT,
            "dilation 0");
    REFUSED(
        dml_conv2d_with(x, w2, NULL, NULL), DML_ERROR_SHAPE,
        "its weights are 6 x 6; they need 4 dimensions: filters x kernel height x kernel width x channels "
        "/ groups");
    REFUSED(dml_conv2d_with(x, w2, NULL, &(dml_conv2d_options){ .groups = 4 }), DML_ERROR_SHAPE,
            "they need 4 dimensions");
    REFUSED(dml_conv1d_with(l, w2, NULL, NULL), DML_ERROR_SHAPE,
            "its weights are 6 x 6; they need 3 dimensions: filters x kernel x channels / groups");
    REFUSED(dml_conv1d_with(l, w3, w3, NULL), DML_ERROR_SHAPE, "its bias is 3 x 2 x 4, it must be 3");
    REFUSED(dml_conv1d_with(l, w3, NULL, &(dml_conv1d_options){ .kernel = 3 }), DML_ERROR_SHAPE,
            "for 3 filters of 3 over 4 channels they must be 3 x 3 x 4");
    REFUSED(CONV1D(.causal = true, .same = true), DML_ERROR_ARGUMENT, "conv1d: causal and another padding");
    REFUSED(CONV1D(.causal = true, .padding = 1), DML_ERROR_ARGUMENT, "causal and another padding");
    REFUSED(CONV1D(.causal = true, .padding_sides = { 0, 1 }), DML_ERROR_ARGUMENT, "causal and another");
    REFUSED(CONV1D(.causal = true, .dilation = -1), DML_ERROR_ARGUMENT, "dilation -1");
    REFUSED(CONV1D(.kernel = 10), DML_ERROR_SHAPE,
            "a kernel of 10 doesn't fit an input of 9 x 4 (length x channels) with padding 0 and dilation 1");
    REFUSED(CONV1D(.kernel = 14, .padding_sides = { 1, 3 }), DML_ERROR_SHAPE, "with padding 1 + 3 and");
    REFUSED(
        CONV2D(.kernel = { 7, 9 }), DML_ERROR_SHAPE,
        "a kernel of 7 x 9 doesn't fit an input of 6 x 7 x 4 (height x width x channels) with padding 0 x "
        "0 and dilation 1 x 1");
    REFUSED(CONV2D(.padding = { 1000000000, 1000000000 }, .stride = { 1000000000, 1000000000 }),
            DML_ERROR_SHAPE,
            "conv2d 'conv2d_1': with padding 1000000000 x 1000000000 and stride 1000000000 x 1000000000 an "
            "input of 6 x 7 x 4 is more than there are addresses for");
    REFUSED(CONV1D(.kernel = -1), DML_ERROR_ARGUMENT, "conv1d: 3 filters of -1 asked for");
    REFUSED(CONV1D(.groups = 3), DML_ERROR_ARGUMENT, "3 groups asked for, of 4 channels and 3 filters");
    dml_close(context);
}

#define TRANSPOSE(...) dml_conv_transpose2d(x, &(dml_conv_transpose2d_options){ .filters = 4, __VA_ARGS__ })

static void transposed(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer zero = dml_init_constant(0);
    dml_node *x = dml_input(graph, "x", DML_F32, 3, 5, 6), *l = dml_input(graph, "l", DML_F32, 4, 6);
    dml_node *w = dml_parameter(graph, "w", zero, 6, 2, 3, 4), *t = dml_input(graph, "t", DML_I32, 4);
    dml_node *w2 = dml_parameter(graph, "w2", zero, 6, 6);
    check_shape(TRANSPOSE(.groups = 2), "5 x 7 x 4");
    check_shape(dml_graph_find(graph, "conv_transpose2d_1.weight"), "6 x 3 x 3 x 2");
    check_shape(dml_conv_transpose2d_with(x, w, NULL, NULL), "4 x 7 x 4");
    check_shape(dml_conv_transpose2d_with(x, w, NULL, &(dml_conv_transpose2d_options){ .groups = 3 }),
                "4 x 7 x 12");
    check_shape(dml_conv_transpose1d(l, &(dml_conv_transpose1d_options){ .filters = 2, .stride = 3 }),
                "12 x 2");
    check_shape(dml_graph_find(graph, "conv_transpose1d_1.weight"), "6 x 3 x 2");
    REFUSED(dml_conv_transpose2d(NULL, NULL), DML_OK, "");
    REFUSED(dml_conv_transpose2d(x, NULL), DML_ERROR_ARGUMENT, "conv_transpose2d: 0 filters of 3 x 3");
    REFUSED(TRANSPOSE(.kernel = { -1, 0 }), DML_ERROR_ARGUMENT, "4 filters of -1 x 0");
    REFUSED(TRANSPOSE(.stride = { -1, 0 }), DML_ERROR_ARGUMENT, "stride -1");
    REFUSED(TRANSPOSE(.padding = { 0, -3 }), DML_ERROR_ARGUMENT, "padding -3");
    REFUSED(TRANSPOSE(.dilation = { 1, -3 }), DML_ERROR_ARGUMENT, "dilation -3");
    REFUSED(TRANSPOSE(.groups = 3), DML_ERROR_ARGUMENT, "3 groups asked for, of 6 channels and 4 filters");
    REFUSED(TRANSPOSE(.groups = -2), DML_ERROR_ARGUMENT, "-2 groups");
    REFUSED(TRANSPOSE(.output_padding = { 1, 0 }), DML_ERROR_ARGUMENT, "output padding 1 asked for");
    REFUSED(TRANSPOSE(.output_padding = { 0, -1 }), DML_ERROR_ARGUMENT, "output padding -1 asked for");
    REFUSED(TRANSPOSE(.padding = { 3, 0 }), DML_ERROR_SHAPE, "of an input of 3 x 5 x 6 nothing is left");
    REFUSED(TRANSPOSE(.stride = { 2147483647, 1 }), DML_ERROR_SHAPE, "more than can be counted");
    REFUSED(TRANSPOSE(.stride = { 1000000000, 1000000000 }, .padding = { 1000000000, 2000000000 }),
            DML_ERROR_SHAPE,
            "with padding 1000000000 x 2000000000 and stride 1000000000 x 1000000000 an input");
    REFUSED(TRANSPOSE(.stride = { 1 << 20, 1 << 20 }), DML_ERROR_SHAPE, "conv_transpose2d");
    REFUSED(dml_conv_transpose2d(l, &(dml_conv_transpose2d_options){ .filters = 2 }), DML_ERROR_SHAPE,
            "its input is f32 4 x 6; it takes f32 images");
    REFUSED(dml_conv_transpose1d(x, &(dml_conv_transpose1d_options){ .filters = 2 }), DML_ERROR_SHAPE,
            "it takes f32 lines");
    REFUSED(dml_conv_transpose1d(t, &(dml_conv_transpose1d_options){ .filters = 2 }), DML_ERROR_SHAPE,
            "its input is i32 4");
    REFUSED(dml_conv_transpose2d_with(x, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    REFUSED(dml_conv_transpose2d_with(NULL, w, NULL, NULL), DML_ERROR_ARGUMENT, "input 1 of 2 is NULL");
    REFUSED(dml_conv_transpose2d_with(x, w, w, NULL), DML_ERROR_SHAPE,
            "its bias is 6 x 2 x 3 x 4, it must be 4");
    REFUSED(dml_conv_transpose2d_with(x, w, NULL, &(dml_conv_transpose2d_options){ .filters = 5 }),
            DML_ERROR_SHAPE, "for 5 filters of 2 x 3 over 6 channels they must be 6 x 2 x 3 x 5");
    REFUSED(dml_conv_transpose2d_with(x, w, NULL, &(dml_conv_transpose2d_options){ .groups = 1 << 30 }),
            DML_ERROR_ARGUMENT, "groups must divide both");
    REFUSED(dml_conv_transpose1d_with(l, w, NULL, NULL), DML_ERROR_SHAPE, "its weights are 6 x 2 x 3 x 4");
    REFUSED(
        dml_conv_transpose2d_with(x, w2, NULL, NULL), DML_ERROR_SHAPE,
        "its weights are 6 x 6; they need 4 dimensions: channels x kernel height x kernel width x filters "
        "/ groups");
    REFUSED(dml_conv_transpose1d_with(l, w2, NULL, NULL), DML_ERROR_SHAPE,
            "they need 3 dimensions: channels x kernel x filters / groups");
    REFUSED(
        dml_conv_transpose1d(l, &(dml_conv_transpose1d_options){ .filters = 2, .padding = 3 }),
        DML_ERROR_SHAPE,
        "of an input of 4 x 6 nothing is left, or more than can be counted, by a kernel of 3, stride 1 and "
        "padding 3");
    REFUSED(dml_conv_transpose1d(l, NULL), DML_ERROR_ARGUMENT, "conv_transpose1d: 0 filters of 3 asked for");
    dml_close(context);
}

#define AVG(...) dml_avg_pool2d(x, &(dml_pool2d_options){ __VA_ARGS__ })
#define MAX(...) dml_max_pool2d(x, &(dml_pool2d_options){ __VA_ARGS__ })
#define AVG1(...) dml_avg_pool1d(l, &(dml_pool1d_options){ __VA_ARGS__ })

static void pools(void)
{
    enum { MOST = 2147483647 };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 7, 8, 3), *l = dml_input(graph, "l", DML_F32, 9, 3);
    check_shape(MAX(.ceil_mode = true), "4 x 4 x 3");
    check_shape(MAX(.ceil_mode = true, .kernel = { 3, 3 }, .stride = { 4, 4 }), "2 x 2 x 3");
    check_shape(MAX(.ceil_mode = true, .kernel = { 1, 1 }, .stride = { 5, 9 }), "2 x 1 x 3");
    check_shape(AVG(.ceil_mode = true, .kernel = { 2, 2 }, .stride = { 4, 4 }, .padding = { 1, 1 }),
                "2 x 3 x 3");
    check_shape(AVG(.ceil_mode = true, .kernel = { 2, 9 }, .stride = { MOST, MOST }, .padding = { 0, 1 }),
                "1 x 1 x 3");
    check_shape(AVG(.same = true, .kernel = { 9, 2 }, .stride = { 3, 3 }), "3 x 3 x 3");
    check_shape(dml_global_max_pool2d(x), "3");
    check_shape(dml_global_max_pool1d(l), "3");
    check_shape(dml_global_avg_pool1d(l), "3");
    check_shape(AVG1(.kernel = 4), "2 x 3");
    check_shape(AVG1(.same = true), "5 x 3");
    REFUSED(AVG(.same = true, .padding = { 0, 1 }), DML_ERROR_ARGUMENT, "same and padding");
    REFUSED(AVG(.same = true, .ceil_mode = true), DML_ERROR_ARGUMENT, "same and padding, ceil_mode");
    REFUSED(AVG(.same = true, .count_include_pad = true), DML_ERROR_ARGUMENT, "same and padding");
    REFUSED(MAX(.count_include_pad = true), DML_ERROR_ARGUMENT, "padding never wins");
    check_shape(MAX(.ceil_mode = true, .kernel = { 8, 2 }), "1 x 4 x 3");
    REFUSED(MAX(.ceil_mode = true, .kernel = { 8, 1 }, .stride = { 1, 1 }), DML_ERROR_SHAPE,
            "doesn't fit an input of 7 x 8 x 3");
    REFUSED(AVG(.kernel = { -1, 1 }, .same = true), DML_ERROR_ARGUMENT, "kernel -1");
    REFUSED(AVG(.stride = { -1, 1 }, .same = true), DML_ERROR_ARGUMENT, "stride -1");
    REFUSED(AVG(.kernel = { 2 }), DML_ERROR_ARGUMENT, "kernel 0");
    REFUSED(AVG(.stride = { 2 }), DML_ERROR_ARGUMENT, "stride 0");
    REFUSED(AVG1(.padding = 2), DML_ERROR_ARGUMENT, "padding 2 asked for");
    REFUSED(AVG1(.kernel = 10), DML_ERROR_SHAPE, "a window of 10 doesn't fit an input of 9 x 3");
    REFUSED(dml_max_pool1d(x, NULL), DML_ERROR_SHAPE, "it takes f32 lines");
    REFUSED(dml_max_pool2d(l, NULL), DML_ERROR_SHAPE, "it takes f32 images");
    REFUSED(dml_global_max_pool2d(l), DML_ERROR_SHAPE, "it takes f32 images");
    REFUSED(dml_global_avg_pool1d(x), DML_ERROR_SHAPE, "it takes f32 lines");
    REFUSED(dml_max_pool1d(NULL, NULL), DML_OK, "");
    REFUSED(dml_global_max_pool2d(NULL), DML_OK, "");
    dml_close(context);
}

#define LOCAL(...) dml_local2d(x, &(dml_local2d_options){ __VA_ARGS__ })

static void locally_connected(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer zero = dml_init_constant(0);
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 5, 2), *l = dml_input(graph, "l", DML_F32, 9, 3);
    dml_node *w = dml_parameter(graph, "w", zero, 2, 3, 4, 18), *b = dml_parameter(graph, "b", zero, 4);
    check_shape(LOCAL(.filters = 4), "2 x 3 x 4");
    check_shape(dml_graph_find(graph, "local2d_1.weight"), "2 x 3 x 4 x 18");
    check_shape(dml_graph_find(graph, "local2d_1.bias"), "2 x 3 x 4");
    check_shape(dml_local2d_with(x, w, NULL, NULL), "2 x 3 x 4");
    REFUSED(dml_local2d(NULL, NULL), DML_OK, "");
    REFUSED(dml_local2d(x, NULL), DML_ERROR_ARGUMENT, "local2d: 0 filters of 3 x 3");
    REFUSED(LOCAL(.filters = 1, .kernel = { 5, 1 }), DML_ERROR_SHAPE, "1 filters of 5 x 1");
    REFUSED(LOCAL(.filters = 1, .stride = { -1, 1 }), DML_ERROR_SHAPE, "with stride -1 x 1");
    REFUSED(dml_local2d(l, &(dml_local2d_options){ .filters = 1 }), DML_ERROR_SHAPE, "over 9 x 3");
    REFUSED(dml_local2d_with(x, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    REFUSED(dml_local2d_with(NULL, w, NULL, NULL), DML_ERROR_ARGUMENT, "input 1 of 2 is NULL");
    REFUSED(dml_local2d_with(l, w, NULL, NULL), DML_ERROR_SHAPE, "it takes f32 images");
    REFUSED(dml_local2d_with(x, w, b, NULL), DML_ERROR_SHAPE, "its bias is 4, it must be 2 x 3 x 4");
    REFUSED(
        dml_local2d_with(x, b, NULL, &(dml_local2d_options){ .filters = 4 }), DML_ERROR_SHAPE,
        "its weights are 4; they need 4 dimensions: output height x output width x filters x weights of one");
    REFUSED(dml_local2d_with(x, w, NULL, &(dml_local2d_options){ .kernel = { 2, 3 } }), DML_ERROR_SHAPE,
            "they must be 3 x 3 x 4 x 12");
    REFUSED(dml_local2d_with(x, w, NULL, &(dml_local2d_options){ .kernel = { -2, 3 } }), DML_ERROR_ARGUMENT,
            "kernel -2");
    REFUSED(dml_local2d_with(x, w, NULL, &(dml_local2d_options){ .kernel = { 7, 3 } }), DML_ERROR_SHAPE,
            "a kernel of 7 x 3 doesn't fit an input of 4 x 5 x 2");
    dml_close(context);
}

int main(void)
{
    RUN(convolutions);
    RUN(bad_convolutions);
    RUN(transposed);
    RUN(pools);
    RUN(locally_connected);
    return test_report("ops/op_conv");
}
