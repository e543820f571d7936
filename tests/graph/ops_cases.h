/* ops_cases.h: small models, each with an op in some situation, for tests that run all of them. */
#ifndef DML_TESTS_GRAPH_OPS_CASES_H
#define DML_TESTS_GRAPH_OPS_CASES_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_recurrent.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "ops/op_slice2d.h"
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

/* Sequences that depend on parameters. */
static dml_node *sequence(dml_graph *g, int steps, int features)
{
    return dml_dense(dml_input(g, NULL, DML_F32, steps, 2), features);
}
static dml_node *rnn_plain(dml_graph *g)
{
    return dml_rnn(sequence(g, 4, 3), 5, NULL);
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
    CASE(max_pool2d, max_pool, 3),
    CASE(max_pool2d, max_pool_overlapping, 2),
    CASE(max_pool2d, max_pool_gaps, 2),
    CASE(avg_pool2d, avg_pool, 3),
    CASE(avg_pool2d, avg_pool_overlapping, 2),
    CASE(avg_pool2d, avg_pool_two_consumers, 3),
    CASE(avg_pool2d, avg_pool_global, 3),
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
    CASE(rnn, rnn_plain, 5),
    CASE(rnn, rnn_relu, 3),
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
    CASE(dropout, dropout_row, 5),
    CASE(dropout, dropout_image, 3),
    CASE(dropout, dropout_nothing, 2),
    CASE(dropout, dropout_parameter, 4),
    CASE(reshape, reshape_image, 3),
    CASE(reshape, reshape_parameter, 2),
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
};
enum { CASES = sizeof cases / sizeof cases[0] };

#endif
