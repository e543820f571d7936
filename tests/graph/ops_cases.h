/* ops_cases.h: small models, each with an op in some situation, for tests that run all of them. */
#ifndef DML_TESTS_GRAPH_OPS_CASES_H
#define DML_TESTS_GRAPH_OPS_CASES_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention.h"
#include "ops/op_conv2d.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_local2d.h"
#include "ops/op_gather.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_loss.h"
#include "ops/op_matmul.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_reduce.h"
#include "ops/op_rotary.h"
#include "ops/op_recurrent.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "ops/op_slice2d.h"
#include "ops/op_softmax.h"
#include "graph/weights.h"

#include "subject.h"

/* Each builds a graph on parameters and inputs and returns the node to check. */

static dml_node *parameter(dml_graph *g, int ndim, int a, int b)
{
    return dml_parameter_shaped(g, NULL, dml_init_constant(0), (dml_shape){ ndim, { a, b } });
}

/* Rows and images that depend on parameters, so that gradients flow through them. */
static dml_node *row(dml_graph *g, int width)
{
    return dml_dense(dml_input(g, NULL, DML_F32, 3), width);
}

static dml_node *image(dml_graph *g, int height, int width, int channels)
{
    const dml_conv2d_options one = { .filters = channels, .kernel = { 1, 1 } };
    return dml_conv2d(dml_input(g, NULL, DML_F32, height, width, 2), &one);
}

static dml_node *labels(dml_graph *g)
{
    return dml_input(g, "label", DML_I32);
}

static dml_node *add_rows(dml_graph *g)
{
    return dml_add(row(g, 17), row(g, 17));
}
static dml_node *add_itself(dml_graph *g)
{
    dml_node *h = row(g, 5);
    return dml_add(h, h);
}
static dml_node *add_input(dml_graph *g)
{
    return dml_add(dml_input(g, "x", DML_F32, 3, 5, 2), image(g, 3, 5, 2));
}
static dml_node *add_losses(dml_graph *g)
{
    dml_node *h = row(g, 4);
    return dml_add(dml_softmax_cross_entropy(h, labels(g)), dml_mean_squared_error(h, row(g, 4)));
}
static dml_node *add_parameters(dml_graph *g)
{
    dml_node *w = dml_add(parameter(g, 2, 5, 7), parameter(g, 2, 5, 7));
    return dml_dense_with(dml_input(g, "x", DML_F32, 7), w, NULL);
}

static dml_node *flatten_image(dml_graph *g)
{
    return dml_dense(dml_flatten(image(g, 3, 4, 2)), 5);
}
static dml_node *flatten_output(dml_graph *g)
{
    return dml_flatten(image(g, 3, 3, 3));
}
static dml_node *flatten_twice(dml_graph *g)
{
    dml_node *x = image(g, 3, 3, 2);
    dml_node *a = dml_dense(dml_flatten(dml_flatten(x)), 4), *b = dml_dense(dml_flatten(x), 4);
    return dml_add(dml_add(a, b), dml_dense(dml_flatten(dml_max_pool2d(x, NULL)), 4));
}
static dml_node *flatten_parameter(dml_graph *g)
{
    dml_node *p = parameter(g, 2, 1, 5), *x = dml_input(g, "x", DML_F32, 5);
    return dml_dense_with(dml_dense_with(x, p, NULL), parameter(g, 2, 5, 1), dml_flatten(p));
}

static dml_node *dense_small(dml_graph *g)
{
    return dml_dense(dml_dense(dml_input(g, "x", DML_F32, 1), 1), 1);
}
static dml_node *dense_odd(dml_graph *g)
{
    return dml_dense(row(g, 13), 7);
}
static dml_node *dense_large(dml_graph *g)
{
    return dml_dense_with(row(g, 37), parameter(g, 2, 21, 37), NULL);
}
static dml_node *dense_shared_weights(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 6, 6), *bias = parameter(g, 1, 6, 0);
    dml_node *h = dml_tanh(dml_dense_with(row(g, 6), w, bias));
    return dml_dense_with(dml_tanh(dml_dense_with(h, w, NULL)), w, bias);
}
static dml_node *dense_two_consumers(dml_graph *g)
{
    dml_node *h = row(g, 9);
    return dml_add(dml_dense(h, 5), dml_tanh(dml_dense(h, 5)));
}

static dml_node *dense_image(dml_graph *g)
{
    dml_node *x = dml_dense(image(g, 3, 5, 4), 6);
    return dml_add(dml_relu(dml_dense(dml_relu(dml_dense(x, 7)), 6)), x);
}
/* Of inputs that take no gradient, with two and four leading dimensions, weights shared. */
static dml_node *dense_leading(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 3, 5);
    dml_node *a = dml_dense_with(dml_input(g, "a", DML_F32, 7, 5), w, NULL);
    dml_node *b = dml_dense_with(dml_input(g, "b", DML_F32, 1, 2, 2, 3, 5), w, parameter(g, 1, 3, 0));
    return dml_add(dml_dense(dml_flatten(a), 2), dml_dense(dml_flatten(b), 2));
}
/* One sum of products for all samples: weights made of other weights. */
static dml_node *dense_of_parameters(dml_graph *g)
{
    return dml_dense_with(row(g, 3), dml_dense_with(parameter(g, 2, 4, 2), parameter(g, 2, 3, 2), NULL),
                          NULL);
}

/* Matrices of each sample that depend on parameters, of a shape; all of one input. */
static dml_node *matrices(dml_graph *g, dml_shape shape)
{
    dml_node *x = dml_graph_first(g);
    while (x && (strcmp(dml_node_op(x), "input") != 0 || dml_node_dtype(x) != DML_F32)) x = dml_node_next(x);
    if (!x) x = dml_input(g, NULL, DML_F32, 3);
    return dml_reshape(dml_dense_with(x, parameter(g, 2, (int)dml_shape_count(&shape), 3), NULL), shape);
}
static dml_node *weights(dml_graph *g, dml_shape shape)
{
    return dml_parameter_shaped(g, NULL, dml_init_constant(0), shape);
}
static dml_node *matmul_of(dml_node *a, dml_node *b, bool transpose_a, bool transpose_b, float scale)
{
    return dml_matmul_with(a, b, &(dml_matmul_options){ transpose_a, transpose_b, scale });
}
static dml_node *matmul_samples(dml_graph *g)
{
    dml_node *plain = dml_matmul(matrices(g, dml_shape_of(3, 5)), matrices(g, dml_shape_of(5, 2)));
    dml_node *a = matmul_of(matrices(g, dml_shape_of(4, 3)), matrices(g, dml_shape_of(4, 2)), true, false, 0);
    dml_node *b = matmul_of(plain, matrices(g, dml_shape_of(2, 2)), false, true, 2);
    dml_node *both =
        matmul_of(matrices(g, dml_shape_of(1, 3)), matrices(g, dml_shape_of(2, 1)), true, true, -0.5f);
    return dml_add(dml_add(plain, a), dml_add(b, both));
}
static dml_node *matmul_add_transposes(dml_graph *g, dml_shape a, dml_shape ta, dml_shape b, dml_shape tb,
                                       bool left, bool right)
{
    dml_node *sum = NULL;
    for (int t = 0; t < 4; t++) {
        dml_node *x = left ? matrices(g, t & 1 ? ta : a) : weights(g, t & 1 ? ta : a);
        dml_node *y = right ? matrices(g, t & 2 ? tb : b) : weights(g, t & 2 ? tb : b);
        dml_node *product = matmul_of(x, y, t & 1, t & 2, t == 3 ? 0.25f : 0);
        sum = sum ? dml_add(sum, product) : product;
    }
    return sum;
}
static dml_node *matmul_samples_by_weights(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 4), dml_shape_of(4, 3), dml_shape_of(4, 2),
                                 dml_shape_of(2, 4), true, false);
}
static dml_node *matmul_weights_by_samples(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 4), dml_shape_of(4, 3), dml_shape_of(4, 2),
                                 dml_shape_of(2, 4), false, true);
}
static dml_node *matmul_weights(dml_graph *g)
{
    dml_node *product = matmul_add_transposes(g, dml_shape_of(2, 3, 4), dml_shape_of(2, 4, 3),
                                              dml_shape_of(4, 2), dml_shape_of(2, 4), false, false);
    return dml_mul(product, matrices(g, dml_shape_of(2, 3, 2)));
}
static dml_node *matmul_heads(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(2, 3, 2), dml_shape_of(2, 2, 3), dml_shape_of(2, 2, 5),
                                 dml_shape_of(2, 5, 2), true, true);
}
static dml_node *matmul_heads_of_weights(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(2, 3), dml_shape_of(3, 2), dml_shape_of(4, 3, 2),
                                 dml_shape_of(4, 2, 3), true, false);
}
/* Both are repeated: a axis of one, an axis of the other, one that both have. */
static dml_node *matmul_repeated(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 1, 2, 3), dml_shape_of(3, 1, 3, 2),
                                 dml_shape_of(1, 2, 3, 1), dml_shape_of(3, 1, 1, 3), true, false);
}
static dml_node *matmul_itself(dml_graph *g)
{
    dml_node *x = matrices(g, dml_shape_of(3, 3)), *w = weights(g, dml_shape_of(3, 3));
    return dml_matmul(matmul_of(x, x, false, true, 0), matmul_of(dml_matmul(w, w), w, true, false, 0));
}
static dml_node *matmul_wide(dml_graph *g)
{
    return dml_matmul(dml_matmul(dml_input(g, "x", DML_F32, 2, 70, 3), weights(g, dml_shape_of(3, 65))),
                      weights(g, dml_shape_of(2, 65, 2)));
}

static dml_node *bag_of(dml_node *indices, dml_node *by, dml_node *table, dml_bag_mode mode)
{
    return dml_embedding_bag_with(indices, by, table, &(dml_embedding_bag_options){ .mode = mode });
}
static dml_node *bag_sum(dml_graph *g)
{
    return dml_dense(dml_embedding_bag(dml_input(g, "words", DML_I32, 5), NULL, 4, 3, NULL), 4);
}
static dml_node *bag_mean(dml_graph *g)
{
    return bag_of(dml_input(g, "words", DML_I32, 2, 3), NULL, weights(g, dml_shape_of(2, 70)), DML_BAG_MEAN);
}
static dml_node *bag_values(dml_graph *g)
{
    return dml_add(
        dml_embedding_bag(dml_input(g, "index", DML_I32, 9), dml_input(g, "value", DML_F32, 9), 20, 1, NULL),
        weights(g, dml_shape_of(1)));
}
static dml_node *bag_computed_weights(dml_graph *g)
{
    dml_node *words = dml_input(g, "words", DML_I32, 4), *table = dml_tanh(weights(g, dml_shape_of(6, 3)));
    dml_node *by = matrices(g, dml_shape_of(4));
    return dml_add(bag_of(words, by, table, DML_BAG_SUM), bag_of(words, dml_tanh(by), table, DML_BAG_SUM));
}
/* One table for bags and single words, whose indices then have no -1. */
static dml_node *bag_shared(dml_graph *g)
{
    dml_node *table = weights(g, dml_shape_of(5, 4)), *words = dml_input(g, "words", DML_I32, 3);
    dml_node *a = dml_flatten(dml_embedding_with(words, table)),
             *b = bag_of(words, NULL, table, DML_BAG_MEAN);
    return dml_add(dml_dense(a, 2), dml_dense(b, 2));
}

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

static dml_node *max_pool(dml_graph *g)
{
    return dml_max_pool2d(image(g, 7, 5, 3), NULL);
}
static dml_node *max_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 3 }, .stride = { 2, 1 }, .padding = { 1, 2 } };
    return dml_max_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *max_pool_gaps(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 1, 2 }, .stride = { 3, 4 } };
    dml_node *x = image(g, 7, 9, 3);
    return dml_add(dml_max_pool2d(x, &o), dml_avg_pool2d(x, &o));
}
static dml_node *avg_pool(dml_graph *g)
{
    return dml_avg_pool2d(image(g, 5, 7, 3), NULL);
}
static dml_node *avg_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 4 }, .stride = { 2, 1 }, .padding = { 2, 1 } };
    return dml_avg_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *avg_pool_two_consumers(dml_graph *g)
{
    dml_node *x = image(g, 4, 4, 3);
    const dml_pool2d_options whole = { .kernel = { 4, 4 } };
    return dml_add(dml_add(dml_avg_pool2d(x, &whole), dml_avg_pool2d(x, &whole)), dml_max_pool2d(x, &whole));
}

static dml_node *avg_pool_global(dml_graph *g)
{
    return dml_dense(dml_global_avg_pool2d(image(g, 5, 3, 7)), 4);
}

/* ---- what else convolutions and pooling can do ---- */

static dml_node *line(dml_graph *g, int length, int channels)
{
    return dml_dense(dml_input(g, NULL, DML_F32, length, 2), channels);
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

static dml_node *max_pool_rounded_up(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 2, 3 }, .stride = { 2, 2 }, .ceil_mode = true };
    const dml_pool2d_options p = { .kernel = { 3, 2 }, .padding = { 1, 1 }, .ceil_mode = true };
    return dml_max_pool2d(dml_max_pool2d(image(g, 9, 8, 3), &o), &p);
}
static dml_node *max_pool_same(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 2 }, .stride = { 2, 3 }, .same = true };
    return dml_flatten(dml_max_pool2d(dml_relu(image(g, 6, 8, 3)), &o));
}
static dml_node *max_pool_global(dml_graph *g)
{
    return dml_dense(dml_global_max_pool2d(image(g, 5, 3, 7)), 4);
}
static dml_node *avg_pool_counted(dml_graph *g)
{
    const dml_pool2d_options o = {
        .kernel = { 3, 4 }, .stride = { 2, 3 }, .padding = { 1, 2 }, .count_include_pad = true
    };
    const dml_pool2d_options p = {
        .kernel = { 2, 2 }, .padding = { 1, 1 }, .ceil_mode = true, .count_include_pad = true
    };
    return dml_avg_pool2d(dml_avg_pool2d(image(g, 8, 9, 3), &o), &p);
}
static dml_node *avg_pool_same(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 3 }, .stride = { 1, 2 }, .same = true };
    const dml_pool2d_options p = { .kernel = { 2, 2 }, .ceil_mode = true };
    dml_node *x = image(g, 5, 7, 2);
    return dml_avg_pool2d(dml_avg_pool2d(x, &o), &p);
}
static dml_node *max_pool1d_lines(dml_graph *g)
{
    const dml_pool1d_options o = { .kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true };
    dml_node *x = dml_max_pool1d(dml_relu(line(g, 8, 5)), &o);
    return dml_max_pool1d(dml_max_pool1d(x, &(dml_pool1d_options){ .stride = 1, .same = true }), NULL);
}
static dml_node *max_pool1d_global(dml_graph *g)
{
    return dml_dense(dml_global_max_pool1d(line(g, 6, 3)), 2);
}
static dml_node *avg_pool1d_lines(dml_graph *g)
{
    const dml_pool1d_options o = { .kernel = 4, .stride = 2, .padding = 1, .count_include_pad = true };
    dml_node *x = line(g, 9, 5);
    return dml_add(
        dml_flatten(dml_avg_pool1d(x, &o)),
        dml_flatten(dml_avg_pool1d(x, &(dml_pool1d_options){ .kernel = 4, .stride = 2, .ceil_mode = true })));
}
static dml_node *avg_pool1d_global(dml_graph *g)
{
    return dml_dense(dml_global_avg_pool1d(line(g, 6, 3)), 2);
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

/* Without a bias, whose gradient a batch norm after it makes zero: only rounding errors would be compared. */
static dml_node *even_row(dml_graph *g, int width)
{
    return dml_dense_with(dml_input(g, NULL, DML_F32, 3), parameter(g, 2, width, 3), NULL);
}
static dml_node *even_image(dml_graph *g, int height, int width, int channels)
{
    const dml_conv2d_options one = { .filters = channels, .kernel = { 1, 1 }, .no_bias = true };
    return dml_conv2d(dml_input(g, NULL, DML_F32, height, width, 2), &one);
}
static dml_node *batch_norm_rows(dml_graph *g)
{
    dml_node *h = even_row(g, 19); /* of one row the batch norm's own gradient is 0 */
    return dml_add(dml_batch_norm(h, &(dml_batch_norm_options){ .epsilon = 0.1f }), h);
}
static dml_node *batch_norm_image(dml_graph *g)
{
    return dml_batch_norm(even_image(g, 4, 5, 3),
                          &(dml_batch_norm_options){ .epsilon = 0.01f, .momentum = 1 });
}
static dml_node *batch_norm_frozen(dml_graph *g)
{
    return dml_batch_norm(image(g, 3, 3, 5), &(dml_batch_norm_options){ .frozen = true });
}
static dml_node *batch_norm_input(dml_graph *g)
{
    return dml_batch_norm(dml_input(g, "x", DML_F32, 4, 3, 9), NULL);
}
static dml_node *batch_norm_chain(dml_graph *g)
{
    dml_node *h = dml_batch_norm(even_image(g, 4, 4, 6), NULL);
    return dml_add(dml_batch_norm(dml_tanh(h), NULL), h);
}
/* One layer's parameters on two images, whose gradients add up, and one without trained parameters. */
static dml_node *batch_norm_shared(dml_graph *g)
{
    dml_node *w = parameter(g, 1, 4, 0), *b = parameter(g, 1, 4, 0);
    dml_node *mean = parameter(g, 1, 4, 0), *var = parameter(g, 1, 4, 0);
    dml_node *still = parameter(g, 1, 4, 0), *x = image(g, 3, 4, 4);
    dml_parameter_train(mean, false), dml_parameter_train(var, false), dml_parameter_train(still, false);
    const dml_batch_norm_options even = { .epsilon = 0.1f };
    dml_node *h = dml_batch_norm_with(x, w, b, mean, var, &even);
    return dml_add(dml_add(dml_batch_norm_with(h, w, b, mean, var, &even),
                           dml_batch_norm_with(x, still, still, mean, var, &even)),
                   x);
}

static dml_node *layer_norm_rows(dml_graph *g)
{
    return dml_layer_norm(row(g, 37), NULL);
}
static dml_node *layer_norm_image(dml_graph *g)
{
    dml_node *x = image(g, 2, 3, 7);
    return dml_add(dml_layer_norm(x, &(dml_sample_norm_options){ .epsilon = 0.1f }), x);
}
static dml_node *layer_norm_input(dml_graph *g)
{
    return dml_layer_norm(dml_input(g, "x", DML_F32, 2, 1, 2, 9),
                          &(dml_sample_norm_options){ .no_bias = true });
}
static dml_node *layer_norm_wide(dml_graph *g)
{
    return dml_layer_norm(row(g, 67), NULL);
}
/* One layer's parameters on two inputs, whose gradients add up; one that learns nothing, and one of a
   parameter, the same for every sample. */
static dml_node *layer_norm_shared(dml_graph *g)
{
    dml_node *w = parameter(g, 1, 5, 0), *b = parameter(g, 1, 5, 0), *still = parameter(g, 1, 5, 0);
    dml_parameter_train(still, false);
    const dml_sample_norm_options even = { .epsilon = 0.1f, .no_weight = true };
    dml_node *h = dml_layer_norm_with(row(g, 5), w, b, &even);
    h = dml_add(dml_tanh(dml_layer_norm(h, &even)), dml_layer_norm_with(h, w, b, &even));
    h = dml_add(h, dml_layer_norm_with(row(g, 5), still, b, &even));
    return dml_dense_with(h, dml_layer_norm(parameter(g, 2, 4, 5), &even), NULL);
}
static dml_node *rms_norm_rows(dml_graph *g)
{
    return dml_rms_norm(row(g, 37), NULL);
}
static dml_node *rms_norm_image(dml_graph *g)
{
    dml_node *x = image(g, 1, 3, 8);
    return dml_add(dml_rms_norm(x, &(dml_sample_norm_options){ .epsilon = 0.1f }),
                   dml_rms_norm(x, &(dml_sample_norm_options){ .no_weight = true }));
}
static dml_node *group_norm_image(dml_graph *g)
{
    return dml_group_norm(image(g, 5, 3, 6), 2, NULL);
}
static dml_node *group_norm_instances(dml_graph *g)
{
    dml_node *x = image(g, 5, 4, 5);
    return dml_add(dml_group_norm(x, 5, &(dml_sample_norm_options){ .epsilon = 0.1f }), x);
}
static dml_node *group_norm_whole(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 9);
    return dml_group_norm(dml_tanh(dml_group_norm(x, 1, &(dml_sample_norm_options){ .no_weight = true })), 3,
                          &(dml_sample_norm_options){ .no_bias = true });
}
static dml_node *group_norm_row(dml_graph *g)
{
    return dml_group_norm(row(g, 60), 3, NULL);
}
static dml_node *group_norm_parameters(dml_graph *g)
{
    dml_node *w = parameter(g, 1, 4, 0), *b = parameter(g, 1, 4, 0);
    dml_node *h = dml_group_norm_with(dml_input(g, "x", DML_F32, 3, 5, 4), 2, w, b, NULL);
    return dml_group_norm_with(h, 4, w, b, NULL);
}

static dml_node *embedding_words(dml_graph *g)
{
    return dml_dense(dml_embedding(dml_input(g, "words", DML_I32, 7), 5, 3), 4);
}
static dml_node *embedding_one(dml_graph *g)
{
    return dml_embedding(labels(g), 9, 70);
}
/* One table for words, for others of another shape, and as the weights of the last layer; a smaller one, so
   that the words must fit both. */
static dml_node *embedding_shared(dml_graph *g)
{
    dml_node *words = dml_input(g, "words", DML_I32, 2, 3), *table = parameter(g, 2, 11, 4);
    dml_node *a = dml_embedding_with(words, table), *b = dml_embedding(dml_flatten(words), 6, 4);
    dml_node *c = dml_embedding_with(dml_input(g, "word", DML_I32), table);
    a = dml_add(dml_flatten(a), dml_flatten(dml_tanh(b)));
    return dml_dense_with(dml_add(dml_dense(a, 4), c), table, NULL);
}
static dml_node *embedding_frozen(dml_graph *g)
{
    dml_node *table = parameter(g, 2, 6, 3);
    dml_parameter_train(table, false);
    return dml_dense(dml_embedding_with(dml_input(g, "words", DML_I32, 4), table), 2);
}
static dml_node *embedding_computed(dml_graph *g)
{
    return dml_embedding_with(dml_input(g, "words", DML_I32, 4), dml_tanh(parameter(g, 2, 6, 3)));
}

/* Positions that depend on parameters. */
static dml_node *positions(dml_graph *g, int count, int width)
{
    return dml_dense(dml_input(g, NULL, DML_F32, count, 3), width);
}
static dml_node *attention_causal(dml_graph *g)
{
    return dml_attention(positions(g, 5, 6), positions(g, 5, 6), positions(g, 5, 6), 2,
                         &(dml_attention_options){ .causal = true });
}
/* Of 0 keys too, heads that share keys, other values than keys in number of positions from the queries. */
static dml_node *attention_lengths(dml_graph *g)
{
    const dml_attention_options o = { .lengths = dml_input(g, "lengths", DML_I32),
                                      .kv_heads = 2,
                                      .scale = 0.3f };
    return dml_attention(positions(g, 3, 12), positions(g, 7, 6), positions(g, 7, 6), 4, &o);
}
static dml_node *attention_of_itself(dml_graph *g)
{
    dml_node *x = dml_reshape(positions(g, 6, 4), dml_shape_of(6, 4));
    dml_node *y = dml_attention(x, x, x, 1, &(dml_attention_options){ .window = 2 });
    return dml_add(dml_attention(y, x, x, 2, NULL), x);
}
static dml_node *attention_packed(dml_graph *g)
{
    const dml_attention_options o = { .causal = true, .window = 3, .kv_heads = 1 };
    dml_node *x = dml_attention_packed(positions(g, 9, 20), 2, &o);
    return dml_dense(dml_attention_packed(dml_dense(x, 15), 5, NULL), 2);
}
static dml_node *attention_parameters(dml_graph *g)
{
    dml_node *k = parameter(g, 2, 4, 2);
    dml_node *w = dml_attention(parameter(g, 2, 3, 2), k, dml_tanh(k), 1, NULL);
    return dml_dense_with(dml_input(g, "x", DML_F32, 2), w, NULL);
}
static dml_node *attention_input(dml_graph *g)
{
    dml_node *kv = dml_input(g, "kv", DML_F32, 4, 6);
    return dml_attention(positions(g, 2, 6), kv, kv, 3, NULL);
}
/* More positions than a tile of a GPU has, and wider heads; few parameters to be varied. */
static dml_node *attention_large(dml_graph *g)
{
    const dml_attention_options o = { .causal = true, .lengths = dml_input(g, "lengths", DML_I32) };
    dml_node *w = parameter(g, 2, 3 * 66, 2);
    dml_parameter_train(w, false);
    dml_node *x = dml_attention_packed(dml_dense_with(positions(g, 67, 2), w, NULL), 1, &o);
    return dml_slice(x, 1, 61, 66);
}
static dml_node *heads_causal(dml_graph *g)
{
    const dml_multi_head_attention_options o = { .causal = true, .rotary = true };
    return dml_multi_head_attention(dml_learned_positions(positions(g, 5, 8)), 2, &o);
}
static dml_node *heads_memory(dml_graph *g)
{
    const dml_multi_head_attention_options o = { .memory = positions(g, 6, 8),
                                                 .kv_heads = 2,
                                                 .rotary = true,
                                                 .rotary_base = 50,
                                                 .lengths = dml_input(g, "lengths", DML_I32) };
    return dml_multi_head_attention(positions(g, 3, 8), 4, &o);
}
static dml_node *heads_bare(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 12, 4), *out = parameter(g, 2, 4, 4), *x = positions(g, 4, 4);
    const dml_multi_head_attention_options o = { .window = 2 };
    x = dml_multi_head_attention_with(x, 1, w, NULL, out, NULL, &o);
    return dml_multi_head_attention_with(x, 2, w, NULL, out, NULL, &o);
}
static dml_node *rotary_halves(dml_graph *g)
{
    dml_node *x = positions(g, 7, 20);
    return dml_add(dml_rotary(x, 2, &(dml_rotary_options){ .offset = 1000 }), x);
}
static dml_node *rotary_pairs(dml_graph *g)
{
    dml_node *x = positions(g, 3, 24);
    const dml_rotary_options o = { .interleaved = true, .rotated = 3, .base = 20 };
    return dml_rotary(dml_rotary(dml_tanh(x), 4, &o), 6, &(dml_rotary_options){ .rotated = 2 });
}
static dml_node *rotary_parameter(dml_graph *g)
{
    return dml_dense_with(dml_input(g, "x", DML_F32, 2), dml_rotary(parameter(g, 2, 4, 2), 1, NULL), NULL);
}

static dml_node *dropout_row(dml_graph *g)
{
    return dml_dropout(row(g, 131), 0.5f);
}
static dml_node *dropout_image(dml_graph *g)
{
    dml_node *x = image(g, 3, 5, 7);
    return dml_add(dml_add(dml_dropout(x, 0.9f), x), dml_dropout(dml_relu(dml_dropout(x, 0.1f)), 0.25f));
}
static dml_node *dropout_nothing(dml_graph *g)
{
    dml_node *x = row(g, 6);
    return dml_add(dml_dropout(dml_dropout(x, 0), 0.3f), dml_dropout(x, 0));
}
static dml_node *dropout_parameter(dml_graph *g)
{
    return dml_dense_with(dml_dropout(dml_input(g, "x", DML_F32, 4), 0.4f),
                          dml_dropout(parameter(g, 2, 5, 4), 0.6f), NULL);
}

static dml_node *reshape_image(dml_graph *g)
{
    dml_node *h = dml_reshape(image(g, 3, 4, 2), dml_shape_of(2, -1, 3));
    return dml_reshape(dml_dense(dml_tanh(h), 2), dml_shape_of(16));
}
/* What is behind a stop moves the loss too: of these it comes from inputs alone, or comes to nothing. */
static dml_node *stop_input(dml_graph *g)
{
    dml_node *x = dml_tanh(dml_input(g, NULL, DML_F32, 5));
    return dml_add(dml_mul(dml_stop_gradient(x), row(g, 5)), dml_mul(x, row(g, 5)));
}
static dml_node *stop_first(dml_graph *g)
{
    dml_node *h = dml_relu(row(g, 5)), *stopped = dml_stop_gradient(h);
    return dml_sub(stopped, dml_sub(stopped, dml_add(h, row(g, 5))));
}
static dml_node *stop_parameter(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 4, 6), *stopped = dml_stop_gradient(dml_reshape(w, dml_shape_of(6, 4)));
    return dml_dense_with(row(g, 6), dml_add(w, dml_reshape(dml_sub(stopped, stopped), dml_shape_of(4, 6))),
                          NULL);
}
static dml_node *reshape_parameter(dml_graph *g)
{
    return dml_dense_with(row(g, 4), dml_reshape(parameter(g, 2, 2, 6), dml_shape_of(3, 4)), NULL);
}
static dml_node *permute_image(dml_graph *g)
{
    return dml_permute(image(g, 3, 5, 4), dml_shape_of(2, 0, 1));
}
static dml_node *permute_five(dml_graph *g)
{
    dml_node *x = dml_reshape(row(g, 120), dml_shape_of(2, 3, 1, 4, 5));
    dml_node *y = dml_permute(dml_tanh(x), dml_shape_of(3, 1, 4, 0, 2));
    return dml_add(dml_permute(y, dml_shape_of(0, 1, 2, 3, 4)), dml_permute(y, dml_shape_of(0, 1, 2, 3, 4)));
}
static dml_node *permute_back(dml_graph *g)
{
    dml_node *x = image(g, 2, 7, 3);
    return dml_add(dml_swap_axes(dml_swap_axes(x, 0, 2), -1, 0), x);
}
static dml_node *permute_parameter(dml_graph *g)
{
    return dml_dense_with(row(g, 4), dml_swap_axes(parameter(g, 2, 4, 3), 0, 1), NULL);
}
static dml_node *slice_last(dml_graph *g)
{
    return dml_slice(image(g, 3, 4, 5), -1, 1, 4);
}
static dml_node *slice_overlapping(dml_graph *g)
{
    dml_node *x = image(g, 5, 3, 2);
    return dml_add(dml_slice(x, 0, 0, 3),
                   dml_add(dml_slice(x, 0, 2, 5), dml_slice(dml_slice(x, 0, 1, 5), 0, 1, 4)));
}
static dml_node *slice_parameter(dml_graph *g)
{
    return dml_dense_with(row(g, 3), dml_slice(parameter(g, 2, 6, 3), 0, 2, 6), NULL);
}
static dml_node *slice_split(dml_graph *g)
{
    dml_node *part[3];
    dml_split(row(g, 12), 0, 3, part);
    return dml_add(dml_tanh(part[2]), dml_add(part[0], dml_relu(part[1])));
}
static dml_node *pad_middle(dml_graph *g)
{
    return dml_pad(image(g, 3, 4, 2), 1, 2, 1);
}
static dml_node *pad_both(dml_graph *g)
{
    dml_node *x = row(g, 7);
    return dml_add(dml_pad(dml_pad(x, 0, 1, 0), -1, 0, 3), dml_pad(x, 0, 4, 0));
}
static dml_node *concat_channels(dml_graph *g)
{
    dml_node *x = image(g, 3, 2, 4);
    dml_node *const parts[] = { x, image(g, 3, 2, 1), dml_input(g, "x", DML_F32, 3, 2, 2), x };
    return dml_concat(parts, 4, 2);
}
static dml_node *concat_many(dml_graph *g)
{
    dml_node *parts[11], *h = image(g, 2, 3, 2);
    for (int i = 0; i < 11; i++) parts[i] = i % 3 ? dml_tanh(h) : dml_slice(h, 0, 0, 1 + i % 2);
    return dml_concat(parts, 11, 0);
}
static dml_node *concat_parameters(dml_graph *g)
{
    dml_node *const parts[] = { parameter(g, 2, 2, 4), parameter(g, 2, 3, 4) };
    return dml_dense_with(row(g, 4), dml_concat(parts, 2, 0), NULL);
}

static dml_node *slice_nothing(dml_graph *g)
{
    return dml_slice2d(image(g, 3, 4, 5), NULL);
}
static dml_node *slice_part(dml_graph *g)
{
    const dml_slice2d_options o = { .begin = { 1, 0, 2 }, .end = { 6, 4, 0 }, .step = { 2, 3, 2 } };
    return dml_slice2d(image(g, 7, 5, 9), &o);
}
static dml_node *slice_padded(dml_graph *g)
{
    const dml_slice2d_options o = {
        .begin = { 0, 1, 1 }, .step = { 3, 1, 1 }, .before = { 1, 0, 2 }, .after = { 2, 3, 1 }
    };
    dml_node *x = image(g, 5, 4, 3);
    return dml_add(dml_slice2d(x, &o), dml_relu(dml_slice2d(x, &o)));
}
static dml_node *slice_input(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 3, 2, 4);
    return dml_add(dml_slice2d(x, &(dml_slice2d_options){ .after = { 1, 1, 1 } }), image(g, 4, 3, 5));
}
static dml_node *slice_shortcut(dml_graph *g)
{
    dml_node *x = image(g, 5, 6, 3);
    const dml_conv2d_options o = { .filters = 8, .stride = { 2, 2 }, .padding = { 1, 1 }, .no_bias = true };
    return dml_add(dml_conv2d(x, &o), dml_padded_shortcut2d(dml_padded_shortcut2d(x, 1, 3), 2, 8));
}

/* Each activation on a row, on an image, and on a node that another op uses too. */
#define ACTIVATION_CASES(name)                                                                               \
    static dml_node *name##_row(dml_graph *g)                                                                \
    {                                                                                                        \
        return dml_##name(row(g, 131));                                                                      \
    }                                                                                                        \
    static dml_node *name##_image(dml_graph *g)                                                              \
    {                                                                                                        \
        return dml_##name(image(g, 3, 5, 7));                                                                \
    }                                                                                                        \
    static dml_node *name##_two_consumers(dml_graph *g)                                                      \
    {                                                                                                        \
        dml_node *h = row(g, 6);                                                                             \
        return dml_add(dml_add(dml_##name(h), h), dml_##name(dml_##name(h)));                                \
    }                                                                                                        \
    static dml_node *name##_parameter(dml_graph *g)                                                          \
    {                                                                                                        \
        return dml_dense_with(row(g, 3), dml_##name(parameter(g, 2, 5, 3)), NULL);                           \
    }
ACTIVATION_CASES(relu)
ACTIVATION_CASES(tanh)
ACTIVATION_CASES(sigmoid)

/* The other functions of one element, on rows that other ops use too, which are above 0 where they have to
   be, and on a parameter. */
static dml_node *above_0(dml_node *x)
{
    return dml_affine(dml_sigmoid(x), 2, 0.5f);
}
#define FUNCTION_CASES(name, call)                                                                           \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *h = row(g, 35), *x = above_0(h), *y = call;                                                \
        x = dml_abs(y);                                                                                      \
        return dml_add(dml_add(y, h), call);                                                                 \
    }                                                                                                        \
    static dml_node *name##_of_a_parameter(dml_graph *g)                                                     \
    {                                                                                                        \
        dml_node *x = above_0(parameter(g, 2, 5, 3));                                                        \
        return dml_dense_with(row(g, 3), call, NULL);                                                        \
    }
#define SIGNED_CASES(name, call)                                                                             \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *h = row(g, 35), *x = h, *y = call;                                                         \
        x = y;                                                                                               \
        return dml_add(dml_add(call, h), y);                                                                 \
    }                                                                                                        \
    static dml_node *name##_of_a_parameter(dml_graph *g)                                                     \
    {                                                                                                        \
        dml_node *x = parameter(g, 2, 5, 3);                                                                 \
        return dml_dense_with(row(g, 3), call, NULL);                                                        \
    }
SIGNED_CASES(leaky_relu, dml_leaky_relu(x, 0.125f))
SIGNED_CASES(elu, dml_elu(x, 1.25f))
SIGNED_CASES(gelu, dml_gelu(x))
SIGNED_CASES(gelu_tanh, dml_gelu_tanh(x))
SIGNED_CASES(silu, dml_silu(x))
SIGNED_CASES(softplus, dml_softplus(x))
SIGNED_CASES(exp, dml_exp(x))
SIGNED_CASES(abs, dml_abs(x))
SIGNED_CASES(square, dml_square(x))
SIGNED_CASES(clamp, dml_clamp(x, -0.4f, 0.3f))
SIGNED_CASES(affine, dml_affine(x, -1.5f, 0.75f))
FUNCTION_CASES(log, dml_log(dml_affine(x, 1, 0.25f)))
FUNCTION_CASES(sqrt, dml_sqrt(dml_affine(x, 1, 0.25f)))
FUNCTION_CASES(pow, dml_pow(dml_affine(x, 1, 0.25f), 1.75f))

/* Two operands: of one shape, the same one, and each way in which one or both are repeated. The second is
   above 0. */
#define PAIR_CASES(name)                                                                                     \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        return dml_##name(row(g, 17), above_0(row(g, 17)));                                                  \
    }                                                                                                        \
    static dml_node *name##_itself(dml_graph *g)                                                             \
    {                                                                                                        \
        dml_node *h = above_0(row(g, 5));                                                                    \
        return dml_add(dml_##name(h, h), h);                                                                 \
    }                                                                                                        \
    static dml_node *name##_channels(dml_graph *g)                                                           \
    {                                                                                                        \
        return dml_##name(image(g, 3, 4, 5), above_0(parameter(g, 1, 5, 0)));                                \
    }                                                                                                        \
    static dml_node *name##_lines(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 3, 4, 5);                                                                     \
        return dml_add(dml_##name(parameter(g, 2, 4, 1), above_0(x)), x);                                    \
    }                                                                                                        \
    static dml_node *name##_outer(dml_graph *g)                                                              \
    {                                                                                                        \
        return dml_##name(image(g, 3, 1, 2), above_0(image(g, 1, 4, 2)));                                    \
    }                                                                                                        \
    static dml_node *name##_scalar(dml_graph *g)                                                             \
    {                                                                                                        \
        return dml_##name(row(g, 300), above_0(parameter(g, 1, 1, 0)));                                      \
    }
PAIR_CASES(sub)
PAIR_CASES(mul)
PAIR_CASES(div)
PAIR_CASES(maximum)
PAIR_CASES(minimum)
static dml_node *add_channels(dml_graph *g)
{
    return dml_relu(dml_add(image(g, 3, 4, 5), parameter(g, 1, 5, 0)));
}
static dml_node *add_outer(dml_graph *g)
{
    return dml_add(dml_add(image(g, 3, 1, 2), image(g, 1, 4, 2)), parameter(g, 2, 4, 1));
}
static dml_node *add_positions(dml_graph *g) /* as a transformer's */
{
    dml_node *x = dml_input(g, "x", DML_F32, 6, 4), *p = parameter(g, 2, 6, 4);
    return dml_mul(dml_add(x, p), dml_add(p, parameter(g, 2, 6, 1)));
}
static dml_node *where_rows(dml_graph *g)
{
    dml_node *a = row(g, 19), *b = row(g, 19);
    return dml_where(dml_less(a, b), dml_tanh(a), b);
}
static dml_node *where_repeated(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5);
    dml_node *positive = dml_less(dml_input(g, "zero", DML_F32, 4, 1), image(g, 1, 4, 5));
    return dml_add(dml_where(positive, parameter(g, 1, 5, 0), x),
                   dml_where(positive, x, parameter(g, 2, 4, 1)));
}
static dml_node *where_itself(dml_graph *g)
{
    dml_node *h = row(g, 9);
    return dml_where(dml_less_equal(row(g, 9), h), h, h);
}
#define COMPARISON_CASE(name)                                                                                \
    static dml_node *name##_gates(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *a = row(g, 21), *b = dml_input(g, "b", DML_F32, 21);                                       \
        return dml_mul(dml_##name(dml_clamp(a, 0, 9), dml_clamp(b, 0, 9)), dml_add(a, b));                   \
    }
COMPARISON_CASE(equal)
COMPARISON_CASE(not_equal)
COMPARISON_CASE(less)
COMPARISON_CASE(less_equal)

static dml_node *cross_entropy(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 10), labels(g));
}
static dml_node *cross_entropy_one_class(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 1), labels(g));
}
static dml_node *cross_entropy_many_classes(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 133), labels(g));
}
static dml_node *cross_entropy_large_logits(dml_graph *g)
{
    dml_node *h = row(g, 3);
    for (int i = 0; i < 7; i++) h = dml_add(h, h); /* times 128 */
    return dml_softmax_cross_entropy(h, labels(g));
}
static dml_node *cross_entropy_twice(dml_graph *g)
{
    dml_node *h = row(g, 5), *t = labels(g);
    return dml_add(dml_softmax_cross_entropy(h, t), dml_softmax_cross_entropy(dml_tanh(h), t));
}

static dml_node *cross_entropy_shared_labels(dml_graph *g)
{
    dml_node *t = labels(g); /* which must then fit both */
    return dml_add(dml_softmax_cross_entropy(row(g, 7), t), dml_softmax_cross_entropy(row(g, 3), t));
}

static dml_node *mse_of_both(dml_graph *g)
{
    return dml_mean_squared_error(row(g, 19), row(g, 19));
}
static dml_node *mse_images(dml_graph *g)
{
    return dml_mean_squared_error(dml_input(g, "x", DML_F32, 5, 3, 2), image(g, 5, 3, 2));
}
static dml_node *mse_of_itself(dml_graph *g)
{
    dml_node *h = row(g, 3);
    return dml_add(dml_mean_squared_error(h, h), dml_mean_squared_error(h, dml_relu(h)));
}
static dml_node *mse_parameters(dml_graph *g)
{
    return dml_mean_squared_error(parameter(g, 2, 3, 5), parameter(g, 2, 3, 5));
}

/* Rows of (2, 3) a sample, and what a loss of them takes: an input, or what is computed. */
static dml_node *rows23(dml_graph *g)
{
    return dml_reshape(row(g, 6), dml_shape_of(2, 3));
}
static dml_node *targets23(dml_graph *g)
{
    return dml_sigmoid(rows23(g));
}
static dml_node *positive(dml_graph *g, dml_shape shape)
{
    return dml_square(dml_input_shaped(g, "weight", DML_F32, shape));
}
static dml_node *mse_sum(dml_graph *g)
{
    return dml_mean_squared_error_with(rows23(g), rows23(g),
                                       &(dml_loss_options){ .reduction = DML_LOSS_SUM });
}
static dml_node *mse_weighted_samples(dml_graph *g)
{
    return dml_mean_squared_error_with(
        rows23(g), rows23(g), &(dml_loss_options){ .sample_weights = positive(g, (dml_shape){ 0, { 0 } }) });
}
static dml_node *mse_weighted_rows(dml_graph *g)
{
    return dml_mean_squared_error_with(rows23(g), rows23(g),
                                       &(dml_loss_options){ .sample_weights = positive(g, dml_shape_of(2)) });
}
/* Weights that depend on a parameter are weights all the same. */
static dml_node *mse_weighted_elements(dml_graph *g)
{
    dml_node *h = rows23(g), *mask = dml_less(h, rows23(g));
    const dml_loss_options o = { .sample_weights = dml_affine(mask, 0.5f, 0.25f), .reduction = DML_LOSS_SUM };
    return dml_add(dml_mean_squared_error_with(h, rows23(g), &o), dml_mean_squared_error(h, dml_tanh(h)));
}
static dml_node *loss_absolute(dml_graph *g)
{
    return dml_mean_absolute_error(rows23(g), rows23(g), NULL);
}
static dml_node *loss_huber(dml_graph *g)
{
    return dml_huber(rows23(g), rows23(g), &(dml_loss_options){ .delta = 0.5f });
}
static dml_node *loss_smooth_l1(dml_graph *g)
{
    return dml_smooth_l1(rows23(g), rows23(g), &(dml_loss_options){ .beta = 0.75f });
}
static dml_node *loss_binary(dml_graph *g)
{
    return dml_binary_cross_entropy(rows23(g), targets23(g), &(dml_loss_options){ .pos_weight = 3 });
}
static dml_node *loss_hinge(dml_graph *g)
{
    return dml_hinge(rows23(g), rows23(g), NULL);
}
static dml_node *loss_squared_hinge(dml_graph *g)
{
    return dml_hinge(rows23(g), rows23(g), &(dml_loss_options){ .squared = true });
}
static dml_node *batch_mean_of_own(dml_graph *g)
{
    dml_node *h = rows23(g), *distance = dml_norm(dml_sub(h, rows23(g)), 2, dml_shape_of(-1), false);
    const dml_loss_options o = { .sample_weights = positive(g, dml_shape_of(2)), .reduction = DML_LOSS_SUM };
    return dml_add(dml_batch_mean(distance, &o), dml_batch_mean(dml_square(h), NULL));
}
static dml_node *batch_mean_beside(dml_graph *g)
{
    dml_node *h = rows23(g);
    return dml_add(h, dml_tanh(dml_batch_mean(dml_tanh(h), NULL)));
}
static dml_node *loss_kl(dml_graph *g)
{
    const dml_loss_options o = { .sample_weights = positive(g, dml_shape_of(2)) };
    return dml_kl_divergence(rows23(g), targets23(g), &o);
}
static dml_node *loss_distillation(dml_graph *g)
{
    const dml_distillation_options o = { .temperature = 2, .sample_weights = positive(g, dml_shape_of(2)) };
    return dml_distillation(rows23(g), dml_input(g, NULL, DML_F32, 2, 3), dml_input(g, "label", DML_I32, 2),
                            &o);
}
static dml_node *cross_entropy_sequence(dml_graph *g)
{
    return dml_softmax_cross_entropy(rows23(g), dml_input(g, "label", DML_I32, 2));
}
static dml_node *cross_entropy_options(dml_graph *g)
{
    static const float of_class[3] = { 0.5f, 2, 0.25f };
    return dml_softmax_cross_entropy_with(
        rows23(g), dml_input(g, "label", DML_I32, 2),
        &(dml_cross_entropy_options){ .ignores = true,
                                      .ignore_index = 1,
                                      .label_smoothing = 0.25f,
                                      .class_weights = of_class,
                                      .sample_weights = positive(g, dml_shape_of(2)) });
}
static dml_node *cross_entropy_classes(dml_graph *g)
{
    static const float of_class[19] = { 0.5f, 2, 0.25f, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3 };
    return dml_softmax_cross_entropy_with(
        row(g, 19), labels(g),
        &(dml_cross_entropy_options){ .class_weights = of_class, .reduction = DML_LOSS_SUM });
}
static dml_node *cross_entropy_targets(dml_graph *g)
{
    static const float of_class[3] = { 0.5f, 2, 0.25f };
    return dml_softmax_cross_entropy_with(
        rows23(g), targets23(g),
        &(dml_cross_entropy_options){ .label_smoothing = 0.1f,
                                      .class_weights = of_class,
                                      .sample_weights = positive(g, (dml_shape){ 0, { 0 } }) });
}
static dml_node *cross_entropy_target_input(dml_graph *g)
{
    return dml_softmax_cross_entropy_with(row(g, 37), dml_input(g, "p", DML_F32, 37), NULL);
}
static dml_node *cross_entropy_of_itself(dml_graph *g)
{
    dml_node *h = dml_sigmoid(row(g, 5));
    return dml_softmax_cross_entropy_with(h, h, NULL);
}
/* The target's gradient is added to, the logits' written over them. */
static dml_node *cross_entropy_target_twice(dml_graph *g)
{
    dml_node *t = dml_sigmoid(row(g, 9));
    dml_node *loss = dml_softmax_cross_entropy_with(row(g, 9), t, NULL);
    return dml_add(loss, dml_mean_squared_error(t, row(g, 9)));
}

/* Each reduction over one axis, several, and some that aren't neighbours; of a parameter; and kept. */
#define REDUCE_CASES(name, call)                                                                             \
    static dml_node *name##_last(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *x = row(g, 37);                                                                            \
        const dml_shape axes = dml_shape_of(-1);                                                             \
        const bool keep = true;                                                                              \
        return dml_mul(x, call);                                                                             \
    }                                                                                                        \
    static dml_node *name##_first(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 5, 3, 4);                                                                     \
        const dml_shape axes = dml_shape_of(0);                                                              \
        const bool keep = false;                                                                             \
        return dml_add(call, dml_slice(x, 0, 0, 1));                                                         \
    }                                                                                                        \
    static dml_node *name##_apart(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 4, 3, 5);                                                                     \
        const dml_shape axes = dml_shape_of(2, -3);                                                          \
        const bool keep = true;                                                                              \
        return dml_add(call, x);                                                                             \
    }                                                                                                        \
    static dml_node *name##_all(dml_graph *g)                                                                \
    {                                                                                                        \
        dml_node *x = image(g, 3, 4, 5), *all;                                                               \
        const dml_shape axes = dml_all_axes();                                                               \
        const bool keep = false;                                                                             \
        all = call;                                                                                          \
        x = parameter(g, 2, 7, 9);                                                                           \
        return dml_mul(row(g, 3), dml_add(all, call));                                                       \
    }
REDUCE_CASES(sum, dml_sum(x, axes, keep))
REDUCE_CASES(mean, dml_mean(x, axes, keep))
REDUCE_CASES(max, dml_max(x, axes, keep))
REDUCE_CASES(min, dml_min(x, axes, keep))
REDUCE_CASES(norm, dml_norm(x, 2, axes, keep))
static dml_node *norm_of_sizes(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5);
    return dml_add(dml_norm(x, 1, dml_shape_of(1, 2), true), dml_norm(x, INFINITY, dml_shape_of(0), true));
}
/* Many columns, and more elements than fit into a strip. */
static dml_node *sum_wide(dml_graph *g)
{
    dml_node *x = dml_reshape(row(g, 1400), dml_shape_of(4, 350));
    return dml_add(dml_norm(x, 2, dml_shape_of(0), false),
                   dml_add(dml_max(x, dml_shape_of(0), false), dml_sum(x, dml_shape_of(0), false)));
}
/* Which must be in range by themselves. */
static dml_node *argmax_looked_up(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 5);
    dml_node *a = dml_embedding(dml_argmax(x, -1, false), 5, 2);
    dml_node *b = dml_embedding(dml_argmax(x, 0, true), 6, 2),
             *c = dml_embedding(dml_argmin(x, 1, false), 3, 2);
    return dml_add(dml_add(dml_slice(a, 1, 0, 1), dml_sum(b, dml_shape_of(0, 1), true)),
                   dml_slice(c, 1, 0, 1));
}

#define SOFTMAX_CASES(name)                                                                                  \
    static dml_node *name##_row(dml_graph *g)                                                                \
    {                                                                                                        \
        dml_node *h = row(g, 37);                                                                            \
        return dml_add(dml_##name(dml_##name(dml_tanh(h), 0), -1), h);                                       \
    }                                                                                                        \
    static dml_node *name##_middle(dml_graph *g)                                                             \
    {                                                                                                        \
        dml_node *x = image(g, 4, 3, 5);                                                                     \
        return dml_add(dml_##name(x, 1), dml_mul(dml_##name(x, -3), x));                                     \
    }                                                                                                        \
    static dml_node *name##_parameter(dml_graph *g)                                                          \
    {                                                                                                        \
        return dml_dense_with(row(g, 9), dml_##name(parameter(g, 2, 7, 9), -1), NULL);                       \
    }
SOFTMAX_CASES(softmax)
SOFTMAX_CASES(log_softmax)

/* Lists shorter and longer than the axis, in which some come twice. */
static dml_node *take_rows(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 11);
    dml_node *a = dml_take(x, dml_input(g, "a", DML_I32, 7), 0);
    return dml_add(dml_slice(a, 0, 0, 4), dml_tanh(x));
}
static dml_node *take_last(dml_graph *g)
{
    return dml_take(image(g, 2, 3, 5), dml_input(g, "a", DML_I32, 2, 4), -1);
}
static dml_node *take_one(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 2), *i = dml_input(g, "i", DML_I32);
    return dml_add(dml_take(x, i, 0), dml_take(dml_tanh(x), i, 0));
}
static dml_node *gather_last(dml_graph *g)
{
    return dml_gather(row(g, 13), dml_input(g, "a", DML_I32, 20), -1);
}
static dml_node *gather_middle(dml_graph *g)
{
    dml_node *x = image(g, 2, 5, 3);
    return dml_add(dml_gather(x, dml_input(g, "a", DML_I32, 2, 5, 3), 1), x);
}
/* What is picked is the largest. */
static dml_node *gather_largest(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5), *p = parameter(g, 2, 6, 4);
    dml_node *picked = dml_gather(x, dml_argmax(x, 0, true), 0);
    return dml_add(picked, dml_sum(dml_gather(p, dml_argmax(p, -1, true), -1), dml_all_axes(), false));
}

/* Sequences that depend on parameters. */
static dml_node *sequence(dml_graph *g, int steps, int features)
{
    return dml_dense(dml_input(g, NULL, DML_F32, steps, 2), features);
}
static dml_node *rnn_plain(dml_graph *g)
{
    return dml_rnn(sequence(g, 4, 3), 5, NULL);
}
static dml_node *gru_of_shared_parameters(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 9, 3), *b = parameter(g, 1, 9, 0);
    return dml_gru_with(sequence(g, 4, 3), w, w, b, b, NULL);
}
static dml_node *rnn_relu(dml_graph *g)
{
    return dml_rnn(sequence(g, 3, 2), 9, &(dml_recurrent_options){ .relu = true, .reverse = true });
}
static dml_node *rnn_masked(dml_graph *g)
{
    const dml_recurrent_options o = { .bidirectional = true,
                                      .no_bias = true,
                                      .lengths = dml_input(g, "lengths", DML_I32),
                                      .h0 = dml_reshape(row(g, 6), dml_shape_of(2, 3)) };
    return dml_rnn(sequence(g, 4, 2), 3, &o);
}
static dml_node *lstm_plain(dml_graph *g)
{
    return dml_lstm(sequence(g, 4, 3), 5, NULL);
}
static dml_node *lstm_stack(dml_graph *g)
{
    const dml_recurrent_options o = { .layers = 2, .bidirectional = true, .dropout = 0.3f };
    return dml_lstm(sequence(g, 3, 2), 3, &o);
}
/* Of an input that takes no gradient, only the last state, masked; weights shared by two of them. */
static dml_node *lstm_last(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 4, 3), *w = parameter(g, 2, 16, 3), *u = parameter(g, 2, 16, 4);
    dml_recurrent_options o = { .last_only = true, .lengths = dml_input(g, "lengths", DML_I32) };
    dml_node *a = dml_lstm_with(x, w, u, NULL, NULL, &o);
    o.reverse = true;
    return dml_add(a, dml_lstm_with(x, w, u, parameter(g, 1, 16, 0), parameter(g, 1, 16, 0), &o));
}
/* One sequence carried on by another, from a state that is trained, and all that it ends in. */
static dml_node *lstm_states(dml_graph *g)
{
    dml_node *h, *c;
    dml_recurrent_options o = {
        .h0 = parameter(g, 1, 3, 0), .c0 = parameter(g, 1, 3, 0), .h_n = &h, .c_n = &c
    };
    dml_node *y = dml_lstm(sequence(g, 2, 2), 3, &o);
    o = (dml_recurrent_options){ .layers = 2,
                                 .h0 = dml_concat((dml_node *const[]){ h, c }, 2, 0),
                                 .h_n = &h };
    y = dml_lstm(y, 3, &o);
    return dml_concat((dml_node *const[]){ y, h, c }, 3, 0);
}
static dml_node *lstm_last_states(dml_graph *g)
{
    dml_node *c, *lengths = dml_input(g, "lengths", DML_I32);
    const dml_recurrent_options o = {
        .last_only = true, .reverse = true, .c0 = row(g, 3), .lengths = lengths, .c_n = &c
    };
    dml_node *y = dml_lstm(sequence(g, 3, 2), 3, &o);
    return dml_add(y, dml_flatten(c));
}
static dml_node *lstm_one_step(dml_graph *g)
{
    return dml_lstm(sequence(g, 1, 1), 1, &(dml_recurrent_options){ .layers = 2 });
}
static dml_node *lstm_wide(dml_graph *g)
{
    return dml_lstm(dml_input(g, "x", DML_F32, 5, 2), 17, &(dml_recurrent_options){ .last_only = true });
}
static dml_node *gru_plain(dml_graph *g)
{
    return dml_gru(sequence(g, 4, 3), 5, NULL);
}
static dml_node *gru_masked(dml_graph *g)
{
    const dml_recurrent_options o = { .bidirectional = true, .lengths = dml_input(g, "lengths", DML_I32) };
    return dml_gru(sequence(g, 4, 2), 3, &o);
}
static dml_node *gru_last(dml_graph *g)
{
    dml_node *h, *h0 = parameter(g, 2, 2, 3);
    const dml_recurrent_options o = { .layers = 2, .last_only = true, .no_bias = true, .h0 = h0, .h_n = &h };
    dml_node *y = dml_gru(sequence(g, 3, 2), 3, &o);
    return dml_concat((dml_node *const[]){ dml_reshape(y, dml_shape_of(1, 3)), h }, 2, 0);
}
static dml_node *gru_wide(dml_graph *g)
{
    return dml_gru(dml_input(g, "x", DML_F32, 6, 2), 13, NULL);
}

typedef struct test_case {
    const char *op;
    model model;
} test_case;

#define CASE(op, build, batch)                                                                               \
    {                                                                                                        \
#op,                                                                                                 \
        {                                                                                                    \
#build, build, batch                                                                             \
        }                                                                                                    \
    }
static const test_case cases[] = {
    CASE(add, add_rows, 5),
    CASE(add, add_itself, 3),
    CASE(add, add_input, 2),
    CASE(add, add_losses, 5),
    CASE(add, add_parameters, 3),
    CASE(flatten, flatten_image, 3),
    CASE(flatten, flatten_output, 2),
    CASE(flatten, flatten_twice, 3),
    CASE(flatten, flatten_parameter, 4),
    CASE(dense, dense_small, 1),
    CASE(dense, dense_odd, 5),
    CASE(dense, dense_large, 9),
    CASE(dense, dense_shared_weights, 7),
    CASE(dense, dense_two_consumers, 4),
    CASE(dense, dense_image, 3),
    CASE(dense, dense_leading, 3),
    CASE(dense, dense_of_parameters, 3),
    CASE(conv2d, conv_default, 3),
    CASE(conv2d, conv_padded_stride, 3),
    CASE(conv2d, conv_uneven, 2),
    CASE(conv2d, conv_dilated, 3),
    CASE(conv2d, conv_groups, 3),
    CASE(conv2d, conv_depthwise, 3),
    CASE(conv2d, conv_whole_image, 5),
    CASE(conv2d, conv_gaps, 2),
    CASE(conv2d, conv_much_padding, 2),
    CASE(conv2d, conv_two_consumers, 3),
    CASE(conv2d, conv_padding_of_the_kernel, 2),
    CASE(conv2d, conv_shared_weights, 2),
    CASE(conv2d, conv_twice_on_one_image, 3),
    CASE(conv2d, conv_computed_weights, 3),
    CASE(conv2d, conv_sides, 2),
    CASE(conv2d, conv_same, 3),
    CASE(conv1d, conv1d_lines, 3),
    CASE(conv1d, conv1d_causal, 3),
    CASE(conv1d, conv1d_shared, 2),
    CASE(conv_transpose2d, transpose_default, 3),
    CASE(conv_transpose2d, transpose_strided, 2),
    CASE(conv_transpose2d, transpose_groups, 2),
    CASE(conv_transpose2d, transpose_sparse, 2),
    CASE(conv_transpose2d, transpose_pointwise, 3),
    CASE(conv_transpose1d, transpose1d_lines, 3),
    CASE(conv_transpose1d, transpose1d_shared, 2),
    CASE(local2d, local_default, 3),
    CASE(local2d, local_strided, 2),
    CASE(local2d, local_shared, 3),
    CASE(max_pool2d, max_pool, 3),
    CASE(max_pool2d, max_pool_overlapping, 2),
    CASE(max_pool2d, max_pool_gaps, 2),
    CASE(avg_pool2d, avg_pool, 3),
    CASE(avg_pool2d, avg_pool_overlapping, 2),
    CASE(avg_pool2d, avg_pool_two_consumers, 3),
    CASE(avg_pool2d, avg_pool_global, 3),
    CASE(max_pool2d, max_pool_rounded_up, 2),
    CASE(max_pool2d, max_pool_same, 3),
    CASE(max_pool2d, max_pool_global, 3),
    CASE(avg_pool2d, avg_pool_counted, 2),
    CASE(avg_pool2d, avg_pool_same, 2),
    CASE(max_pool1d, max_pool1d_lines, 3),
    CASE(max_pool1d, max_pool1d_global, 3),
    CASE(avg_pool1d, avg_pool1d_lines, 2),
    CASE(avg_pool1d, avg_pool1d_global, 2),
    CASE(batch_norm, batch_norm_rows, 7),
    CASE(batch_norm, batch_norm_image, 3),
    CASE(batch_norm, batch_norm_frozen, 3),
    CASE(batch_norm, batch_norm_input, 2),
    CASE(batch_norm, batch_norm_chain, 3),
    CASE(batch_norm, batch_norm_shared, 2),
    CASE(layer_norm, layer_norm_rows, 3),
    CASE(layer_norm, layer_norm_image, 3),
    CASE(layer_norm, layer_norm_input, 2),
    CASE(layer_norm, layer_norm_wide, 2),
    CASE(layer_norm, layer_norm_shared, 4),
    CASE(rms_norm, rms_norm_rows, 3),
    CASE(rms_norm, rms_norm_image, 3),
    CASE(group_norm, group_norm_image, 3),
    CASE(group_norm, group_norm_instances, 3),
    CASE(group_norm, group_norm_whole, 2),
    CASE(group_norm, group_norm_row, 2),
    CASE(group_norm, group_norm_parameters, 3),
    CASE(embedding, embedding_words, 3),
    CASE(embedding, embedding_one, 7),
    CASE(embedding, embedding_shared, 3),
    CASE(embedding, embedding_frozen, 2),
    CASE(embedding, embedding_computed, 3),
    CASE(dropout, dropout_row, 5),
    CASE(dropout, dropout_image, 3),
    CASE(dropout, dropout_nothing, 2),
    CASE(dropout, dropout_parameter, 4),
    CASE(reshape, reshape_image, 3),
    CASE(reshape, reshape_parameter, 2),
    CASE(stop_gradient, stop_input, 3),
    CASE(stop_gradient, stop_first, 3),
    CASE(stop_gradient, stop_parameter, 2),
    CASE(permute, permute_image, 3),
    CASE(permute, permute_five, 2),
    CASE(permute, permute_back, 2),
    CASE(permute, permute_parameter, 3),
    CASE(slice, slice_last, 3),
    CASE(slice, slice_overlapping, 2),
    CASE(slice, slice_parameter, 2),
    CASE(slice, slice_split, 4),
    CASE(pad, pad_middle, 3),
    CASE(pad, pad_both, 3),
    CASE(concat, concat_channels, 3),
    CASE(concat, concat_many, 2),
    CASE(concat, concat_parameters, 2),
    CASE(sum, sum_last, 5),
    CASE(sum, sum_first, 3),
    CASE(sum, sum_apart, 2),
    CASE(sum, sum_all, 3),
    CASE(mean, mean_last, 5),
    CASE(mean, mean_first, 3),
    CASE(mean, mean_apart, 2),
    CASE(mean, mean_all, 3),
    CASE(max, max_last, 5),
    CASE(max, max_first, 3),
    CASE(max, max_apart, 2),
    CASE(max, max_all, 3),
    CASE(min, min_last, 5),
    CASE(min, min_first, 3),
    CASE(min, min_apart, 2),
    CASE(min, min_all, 3),
    CASE(norm, norm_last, 5),
    CASE(norm, norm_first, 3),
    CASE(norm, norm_apart, 2),
    CASE(norm, norm_all, 3),
    CASE(norm, norm_of_sizes, 3),
    CASE(sum, sum_wide, 2),
    CASE(argmax, argmax_looked_up, 3),
    CASE(softmax, softmax_row, 5),
    CASE(softmax, softmax_middle, 3),
    CASE(softmax, softmax_parameter, 2),
    CASE(log_softmax, log_softmax_row, 5),
    CASE(log_softmax, log_softmax_middle, 3),
    CASE(log_softmax, log_softmax_parameter, 2),
    CASE(take, take_rows, 3),
    CASE(take, take_last, 2),
    CASE(take, take_one, 5),
    CASE(gather, gather_last, 4),
    CASE(gather, gather_middle, 3),
    CASE(gather, gather_largest, 3),
    CASE(slice2d, slice_nothing, 2),
    CASE(slice2d, slice_part, 3),
    CASE(slice2d, slice_padded, 2),
    CASE(slice2d, slice_input, 2),
    CASE(slice2d, slice_shortcut, 3),
    CASE(relu, relu_row, 5),
    CASE(relu, relu_image, 2),
    CASE(relu, relu_two_consumers, 4),
    CASE(relu, relu_parameter, 2),
    CASE(tanh, tanh_row, 5),
    CASE(tanh, tanh_image, 2),
    CASE(tanh, tanh_two_consumers, 4),
    CASE(tanh, tanh_parameter, 2),
    CASE(sigmoid, sigmoid_row, 5),
    CASE(sigmoid, sigmoid_image, 2),
    CASE(sigmoid, sigmoid_two_consumers, 4),
    CASE(sigmoid, sigmoid_parameter, 2),
    CASE(leaky_relu, leaky_relu_rows, 3),
    CASE(leaky_relu, leaky_relu_of_a_parameter, 2),
    CASE(elu, elu_rows, 3),
    CASE(elu, elu_of_a_parameter, 2),
    CASE(gelu, gelu_rows, 3),
    CASE(gelu, gelu_of_a_parameter, 2),
    CASE(gelu_tanh, gelu_tanh_rows, 3),
    CASE(gelu_tanh, gelu_tanh_of_a_parameter, 2),
    CASE(silu, silu_rows, 3),
    CASE(silu, silu_of_a_parameter, 2),
    CASE(softplus, softplus_rows, 3),
    CASE(softplus, softplus_of_a_parameter, 2),
    CASE(exp, exp_rows, 3),
    CASE(exp, exp_of_a_parameter, 2),
    CASE(abs, abs_rows, 3),
    CASE(abs, abs_of_a_parameter, 2),
    CASE(square, square_rows, 3),
    CASE(square, square_of_a_parameter, 2),
    CASE(clamp, clamp_rows, 3),
    CASE(clamp, clamp_of_a_parameter, 2),
    CASE(affine, affine_rows, 3),
    CASE(affine, affine_of_a_parameter, 2),
    CASE(log, log_rows, 3),
    CASE(log, log_of_a_parameter, 2),
    CASE(sqrt, sqrt_rows, 3),
    CASE(sqrt, sqrt_of_a_parameter, 2),
    CASE(pow, pow_rows, 3),
    CASE(pow, pow_of_a_parameter, 2),
    CASE(sub, sub_rows, 5),
    CASE(sub, sub_itself, 3),
    CASE(sub, sub_channels, 3),
    CASE(sub, sub_lines, 3),
    CASE(sub, sub_outer, 3),
    CASE(sub, sub_scalar, 3),
    CASE(mul, mul_rows, 5),
    CASE(mul, mul_itself, 3),
    CASE(mul, mul_channels, 3),
    CASE(mul, mul_lines, 3),
    CASE(mul, mul_outer, 3),
    CASE(mul, mul_scalar, 3),
    CASE(div, div_rows, 5),
    CASE(div, div_itself, 3),
    CASE(div, div_channels, 3),
    CASE(div, div_lines, 3),
    CASE(div, div_outer, 3),
    CASE(div, div_scalar, 3),
    CASE(maximum, maximum_rows, 5),
    CASE(maximum, maximum_itself, 3),
    CASE(maximum, maximum_channels, 3),
    CASE(maximum, maximum_lines, 3),
    CASE(maximum, maximum_outer, 3),
    CASE(maximum, maximum_scalar, 3),
    CASE(minimum, minimum_rows, 5),
    CASE(minimum, minimum_itself, 3),
    CASE(minimum, minimum_channels, 3),
    CASE(minimum, minimum_lines, 3),
    CASE(minimum, minimum_outer, 3),
    CASE(minimum, minimum_scalar, 3),
    CASE(add, add_channels, 3),
    CASE(add, add_outer, 3),
    CASE(add, add_positions, 3),
    CASE(where, where_rows, 3),
    CASE(where, where_repeated, 3),
    CASE(where, where_itself, 3),
    CASE(equal, equal_gates, 3),
    CASE(not_equal, not_equal_gates, 3),
    CASE(less, less_gates, 3),
    CASE(less_equal, less_equal_gates, 3),
    CASE(softmax_cross_entropy, cross_entropy, 17),
    CASE(softmax_cross_entropy, cross_entropy_one_class, 3),
    CASE(softmax_cross_entropy, cross_entropy_many_classes, 5),
    CASE(softmax_cross_entropy, cross_entropy_large_logits, 5),
    CASE(softmax_cross_entropy, cross_entropy_twice, 6),
    CASE(softmax_cross_entropy, cross_entropy_shared_labels, 6),
    CASE(mean_squared_error, mse_of_both, 7),
    CASE(mean_squared_error, mse_images, 3),
    CASE(mean_squared_error, mse_of_itself, 5),
    CASE(mean_squared_error, mse_parameters, 2),
    CASE(mean_squared_error, mse_sum, 3),
    CASE(mean_squared_error, mse_weighted_samples, 5),
    CASE(mean_squared_error, mse_weighted_rows, 3),
    CASE(mean_squared_error, mse_weighted_elements, 3),
    CASE(mean_absolute_error, loss_absolute, 3),
    CASE(huber, loss_huber, 3),
    CASE(huber, loss_smooth_l1, 3),
    CASE(binary_cross_entropy, loss_binary, 3),
    CASE(hinge, loss_hinge, 5),
    CASE(squared_hinge, loss_squared_hinge, 3),
    CASE(kl_divergence, loss_kl, 3),
    CASE(batch_mean, batch_mean_of_own, 3),
    CASE(batch_mean, batch_mean_beside, 3),
    CASE(kl_divergence, loss_distillation, 3),
    CASE(softmax_cross_entropy, cross_entropy_sequence, 5),
    CASE(softmax_cross_entropy, cross_entropy_options, 7),
    CASE(softmax_cross_entropy, cross_entropy_classes, 9),
    CASE(softmax_cross_entropy, cross_entropy_targets, 5),
    CASE(softmax_cross_entropy, cross_entropy_target_input, 3),
    CASE(softmax_cross_entropy, cross_entropy_of_itself, 3),
    CASE(softmax_cross_entropy, cross_entropy_target_twice, 3),
    CASE(attention, attention_causal, 3),
    CASE(attention, attention_lengths, 5),
    CASE(attention, attention_of_itself, 2),
    CASE(attention, attention_packed, 2),
    CASE(attention, attention_parameters, 2),
    CASE(attention, attention_input, 2),
    CASE(attention, attention_large, 2),
    CASE(attention, heads_causal, 2),
    CASE(attention, heads_memory, 3),
    CASE(attention, heads_bare, 2),
    CASE(rotary, rotary_halves, 2),
    CASE(rotary, rotary_pairs, 3),
    CASE(rotary, rotary_parameter, 2),
    CASE(rnn, rnn_plain, 5),
    CASE(rnn, rnn_relu, 3),
    CASE(gru, gru_of_shared_parameters, 3),
    CASE(rnn, rnn_masked, 3),
    CASE(lstm, lstm_plain, 13),
    CASE(lstm, lstm_stack, 3),
    CASE(lstm, lstm_last, 4),
    CASE(lstm, lstm_states, 3),
    CASE(lstm, lstm_last_states, 3),
    CASE(lstm, lstm_one_step, 2),
    CASE(lstm, lstm_wide, 2),
    CASE(gru, gru_plain, 14),
    CASE(gru, gru_masked, 5),
    CASE(gru, gru_last, 3),
    CASE(gru, gru_wide, 2),
    CASE(embedding_bag, bag_sum, 3),
    CASE(embedding_bag, bag_mean, 7),
    CASE(embedding_bag, bag_values, 5),
    CASE(embedding_bag, bag_computed_weights, 3),
    CASE(embedding_bag, bag_shared, 3),
    CASE(matmul, matmul_samples, 3),
    CASE(matmul, matmul_samples_by_weights, 3),
    CASE(matmul, matmul_weights_by_samples, 3),
    CASE(matmul, matmul_weights, 2),
    CASE(matmul, matmul_heads, 3),
    CASE(matmul, matmul_heads_of_weights, 3),
    CASE(matmul, matmul_repeated, 3),
    CASE(matmul, matmul_itself, 2),
    CASE(matmul, matmul_wide, 2),
};
enum { CASES = sizeof cases / sizeof cases[0] };

#endif
