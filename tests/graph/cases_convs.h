/* cases_convs.h: cases of convolutions of every kind (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_CONVS_H
#define DML_TESTS_GRAPH_CASES_CONVS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_local2d.h"
#include "ops/op_shape.h"

#include "case_nodes.h"

static dml_node *conv(dml_node *x, dml_conv2d_options options)
{
    return dml_conv2d(x, &options);
}
static dml_node *conv_default(dml_graph *g)
{
    return conv(image(g, 6, 5, 3), (dml_conv2d_options){ .filters = 4 });
}
static dml_node *conv_padded_stride(dml_graph *g)
{
    return conv(image(g, 7, 8, 2),
                (dml_conv2d_options){ .filters = 5, .stride = { 2, 2 }, .padding = { 1, 1 } });
}
static dml_node *conv_uneven(dml_graph *g)
{
    return conv(
        image(g, 5, 9, 3),
        (dml_conv2d_options){
            .filters = 2, .kernel = { 2, 5 }, .stride = { 1, 3 }, .padding = { 0, 2 }, .no_bias = true });
}
static dml_node *conv_dilated(dml_graph *g)
{
    return conv(
        image(g, 8, 7, 3),
        (dml_conv2d_options){ .filters = 4, .stride = { 2, 1 }, .padding = { 2, 1 }, .dilation = { 3, 2 } });
}
static dml_node *conv_groups(dml_graph *g)
{
    return conv(image(g, 5, 6, 6), (dml_conv2d_options){ .filters = 4, .padding = { 1, 1 }, .groups = 2 });
}
static dml_node *conv_depthwise(dml_graph *g)
{
    return conv(image(g, 6, 7, 9),
                (dml_conv2d_options){ .filters = 9, .stride = { 2, 2 }, .padding = { 1, 1 }, .groups = 9 });
}
static dml_node *conv_whole_image(dml_graph *g)
{
    return conv(image(g, 4, 3, 2), (dml_conv2d_options){ .filters = 3, .kernel = { 4, 3 } });
}
static dml_node *conv_gaps(dml_graph *g)
{
    return conv(image(g, 7, 7, 1),
                (dml_conv2d_options){ .filters = 1, .kernel = { 2, 2 }, .stride = { 3, 3 } });
}
static dml_node *conv_much_padding(dml_graph *g)
{
    return conv(image(g, 2, 1, 2), (dml_conv2d_options){ .filters = 3, .padding = { 4, 3 } });
}
static dml_node *parameter4(dml_graph *g, int filters, int height, int width, int channels)
{
    return dml_parameter(g, NULL, dml_init_constant(0), filters, height, width, channels);
}
static dml_node *conv_padding_of_the_kernel(dml_graph *g)
{
    return conv(image(g, 3, 4, 2),
                (dml_conv2d_options){ .filters = 2, .kernel = { 2, 3 }, .padding = { 2, 3 } });
}
/* The same weights on images of two sizes, with a bias, without one, and with another stride and padding. */
static dml_node *conv_shared_weights(dml_graph *g)
{
    dml_node *w = parameter4(g, 3, 3, 2, 3), *bias = parameter(g, 1, 3, 0);
    const dml_conv2d_options wide = { .stride = { 2, 1 }, .padding = { 1, 1 } };
    dml_node *h = dml_tanh(dml_conv2d_with(image(g, 6, 5, 3), w, bias, NULL));
    return dml_conv2d_with(dml_tanh(dml_conv2d_with(h, w, NULL, &wide)), w, bias, &wide);
}
static dml_node *conv_twice_on_one_image(dml_graph *g)
{
    dml_node *w = parameter4(g, 2, 2, 2, 2), *bias = parameter(g, 1, 2, 0), *x = image(g, 4, 4, 2);
    return dml_add(dml_conv2d_with(x, w, bias, NULL), dml_relu(dml_conv2d_with(x, w, bias, NULL)));
}
static dml_node *conv_computed_weights(dml_graph *g)
{
    dml_node *w = dml_tanh(parameter4(g, 2, 3, 1, 2));
    return dml_conv2d_with(dml_input(g, "x", DML_F32, 4, 3, 2), w, dml_flatten(parameter(g, 2, 2, 1)), NULL);
}
static dml_node *conv_two_consumers(dml_graph *g)
{
    dml_node *x = image(g, 5, 5, 3);
    const dml_conv2d_options options = { .filters = 3, .padding = { 1, 1 } };
    return dml_add(dml_add(dml_conv2d(x, &options), dml_relu(dml_conv2d(x, &options))), x);
}
static dml_node *conv_sides(dml_graph *g)
{
    return conv(image(g, 6, 7, 3), (dml_conv2d_options){ .filters = 4,
                                                         .kernel = { 3, 2 },
                                                         .stride = { 1, 2 },
                                                         .padding_sides = { 2, 0, 1, 3 },
                                                         .dilation = { 2, 1 } });
}
static dml_node *conv_same(dml_graph *g)
{
    dml_node *x = image(g, 6, 5, 2);
    x = conv(x, (dml_conv2d_options){ .filters = 3, .kernel = { 4, 3 }, .same = true });
    x = conv(x, (dml_conv2d_options){ .filters = 6, .stride = { 2, 2 }, .groups = 3, .same = true });
    x = conv(x, (dml_conv2d_options){ .filters = 6, .stride = { 2, 3 }, .groups = 6, .same = true });
    return conv(x,
                (dml_conv2d_options){ .filters = 2, .kernel = { 1, 1 }, .stride = { 2, 1 }, .same = true });
}
static dml_node *conv1d_lines(dml_graph *g)
{
    const dml_conv1d_options o = { .filters = 5 },
                             p = { .filters = 3, .kernel = 4, .stride = 2, .padding = 3 };
    return dml_conv1d(dml_relu(dml_conv1d(line(g, 11, 3), &o)), &p);
}
static dml_node *conv1d_causal(dml_graph *g)
{
    const dml_conv1d_options o = { .filters = 4, .kernel = 3, .dilation = 2, .causal = true };
    const dml_conv1d_options p = { .filters = 4, .kernel = 2, .groups = 2, .no_bias = true, .same = true };
    return dml_conv1d(dml_conv1d(line(g, 7, 4), &o), &p);
}
static dml_node *conv1d_shared(dml_graph *g)
{
    dml_node *w = dml_parameter(g, NULL, dml_init_constant(0), 4, 3, 4), *b = parameter(g, 1, 4, 0);
    const dml_conv1d_options o = { .padding_sides = { 0, 2 } };
    dml_node *h = dml_conv1d_with(line(g, 5, 4), w, b, &o);
    return dml_conv1d_with(dml_tanh(h), w, NULL, &(dml_conv1d_options){ .stride = 2, .causal = true });
}

static dml_node *transpose(dml_node *x, dml_conv_transpose2d_options options)
{
    return dml_conv_transpose2d(x, &options);
}
static dml_node *transpose_default(dml_graph *g)
{
    return transpose(image(g, 4, 3, 3), (dml_conv_transpose2d_options){ .filters = 2 });
}
static dml_node *transpose_strided(dml_graph *g)
{
    return transpose(image(g, 3, 4, 2), (dml_conv_transpose2d_options){ .filters = 5,
                                                                        .kernel = { 3, 4 },
                                                                        .stride = { 2, 3 },
                                                                        .padding = { 1, 2 },
                                                                        .output_padding = { 1, 2 } });
}
static dml_node *transpose_groups(dml_graph *g)
{
    dml_node *x = image(g, 4, 2, 6);
    x = transpose(x, (dml_conv_transpose2d_options){
                         .filters = 4, .groups = 2, .dilation = { 3, 2 }, .output_padding = { 2, 1 } });
    return transpose(
        x, (dml_conv_transpose2d_options){
               .filters = 4, .kernel = { 2, 2 }, .stride = { 2, 2 }, .groups = 4, .no_bias = true });
}
/* Fewer lines than the kernel, gaps between the windows, and all of a window but one tap left out. */
static dml_node *transpose_sparse(dml_graph *g)
{
    dml_node *x = image(g, 2, 1, 2);
    x = transpose(x, (dml_conv_transpose2d_options){ .filters = 3, .kernel = { 1, 2 }, .stride = { 3, 4 } });
    return transpose(x,
                     (dml_conv_transpose2d_options){ .filters = 2, .kernel = { 3, 3 }, .padding = { 2, 1 } });
}
/* A 1 x 1 kernel, whose weights are a matrix, on an image that another layer reads too. */
static dml_node *transpose_pointwise(dml_graph *g)
{
    dml_node *w = parameter4(g, 3, 1, 1, 3), *b = parameter(g, 1, 3, 0), *x = image(g, 3, 4, 3);
    dml_node *h = dml_add(dml_conv_transpose2d_with(x, w, b, NULL), x);
    return dml_conv_transpose2d_with(dml_relu(h), w, NULL,
                                     &(dml_conv_transpose2d_options){ .stride = { 2, 2 } });
}
static dml_node *transpose1d_lines(dml_graph *g)
{
    const dml_conv_transpose1d_options o = { .filters = 4, .stride = 2, .padding = 1, .output_padding = 1 };
    const dml_conv_transpose1d_options p = {
        .filters = 6, .kernel = 2, .dilation = 3, .groups = 2, .no_bias = true
    };
    return dml_conv_transpose1d(dml_relu(dml_conv_transpose1d(line(g, 5, 3), &o)), &p);
}
static dml_node *transpose1d_shared(dml_graph *g)
{
    dml_node *w = dml_parameter(g, NULL, dml_init_constant(0), 4, 3, 4), *b = parameter(g, 1, 4, 0);
    dml_node *h = dml_tanh(dml_conv_transpose1d_with(line(g, 5, 4), w, b, NULL));
    return dml_add(dml_conv_transpose1d_with(h, w, b, &(dml_conv_transpose1d_options){ .padding = 1 }), h);
}

static dml_node *local_default(dml_graph *g)
{
    return dml_local2d(image(g, 5, 6, 2), &(dml_local2d_options){ .filters = 3 });
}
static dml_node *local_strided(dml_graph *g)
{
    const dml_local2d_options o = { .filters = 2, .kernel = { 2, 4 }, .stride = { 3, 1 }, .no_bias = true };
    return dml_local2d(image(g, 6, 7, 3), &o);
}
static dml_node *local_shared(dml_graph *g)
{
    const dml_local2d_options o = { .kernel = { 2, 2 }, .stride = { 1, 2 } };
    dml_node *w = parameter4(g, 2, 2, 4, 12), *b = dml_parameter(g, NULL, dml_init_constant(0), 2, 2, 4);
    dml_node *x = image(g, 3, 4, 3);
    dml_node *h = dml_tanh(dml_local2d_with(x, w, b, &o));
    return dml_add(dml_mul(dml_local2d_with(x, w, NULL, &o), h),
                   dml_slice(dml_slice(dml_pad(x, 2, 0, 1), 0, 0, 2), 1, 0, 2));
}

/* X(op, what builds it, samples) */
#define CONVS_CASE_LIST(X)                                                                                   \
    X(conv2d, conv_default, 3)                                                                               \
    X(conv2d, conv_padded_stride, 3)                                                                         \
    X(conv2d, conv_uneven, 2)                                                                                \
    X(conv2d, conv_dilated, 3)                                                                               \
    X(conv2d, conv_groups, 3)                                                                                \
    X(conv2d, conv_depthwise, 3)                                                                             \
    X(conv2d, conv_whole_image, 5)                                                                           \
    X(conv2d, conv_gaps, 2)                                                                                  \
    X(conv2d, conv_much_padding, 2)                                                                          \
    X(conv2d, conv_two_consumers, 3)                                                                         \
    X(conv2d, conv_padding_of_the_kernel, 2)                                                                 \
    X(conv2d, conv_shared_weights, 2)                                                                        \
    X(conv2d, conv_twice_on_one_image, 3)                                                                    \
    X(conv2d, conv_computed_weights, 3)                                                                      \
    X(conv2d, conv_sides, 2)                                                                                 \
    X(conv2d, conv_same, 3)                                                                                  \
    X(conv1d, conv1d_lines, 3)                                                                               \
    X(conv1d, conv1d_causal, 3)                                                                              \
    X(conv1d, conv1d_shared, 2)                                                                              \
    X(conv_transpose2d, transpose_default, 3)                                                                \
    X(conv_transpose2d, transpose_strided, 2)                                                                \
    X(conv_transpose2d, transpose_groups, 2)                                                                 \
    X(conv_transpose2d, transpose_sparse, 2)                                                                 \
    X(conv_transpose2d, transpose_pointwise, 3)                                                              \
    X(conv_transpose1d, transpose1d_lines, 3)                                                                \
    X(conv_transpose1d, transpose1d_shared, 2)                                                               \
    X(local2d, local_default, 3)                                                                             \
    X(local2d, local_strided, 2)                                                                             \
    X(local2d, local_shared, 3)

#endif
