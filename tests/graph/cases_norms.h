/* cases_norms.h: cases of normalisations (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_NORMS_H
#define DML_TESTS_GRAPH_CASES_NORMS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_norm.h"
#include "ops/op_sample_norm.h"

#include "case_nodes.h"

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

/* X(op, what builds it, samples) */
#define NORMS_CASE_LIST(X)                                                                                   \
    X(batch_norm, batch_norm_rows, 7)                                                                        \
    X(batch_norm, batch_norm_image, 3)                                                                       \
    X(batch_norm, batch_norm_frozen, 3)                                                                      \
    X(batch_norm, batch_norm_input, 2)                                                                       \
    X(batch_norm, batch_norm_chain, 3)                                                                       \
    X(batch_norm, batch_norm_shared, 2)                                                                      \
    X(layer_norm, layer_norm_rows, 3)                                                                        \
    X(layer_norm, layer_norm_image, 3)                                                                       \
    X(layer_norm, layer_norm_input, 2)                                                                       \
    X(layer_norm, layer_norm_wide, 2)                                                                        \
    X(layer_norm, layer_norm_shared, 4)                                                                      \
    X(rms_norm, rms_norm_rows, 3)                                                                            \
    X(rms_norm, rms_norm_image, 3)                                                                           \
    X(group_norm, group_norm_image, 3)                                                                       \
    X(group_norm, group_norm_instances, 3)                                                                   \
    X(group_norm, group_norm_whole, 2)                                                                       \
    X(group_norm, group_norm_row, 2)                                                                         \
    X(group_norm, group_norm_parameters, 3)

#endif
