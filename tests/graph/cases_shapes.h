/* cases_shapes.h: cases of ops that move, cut and join (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_SHAPES_H
#define DML_TESTS_GRAPH_CASES_SHAPES_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_pool2d.h"
#include "ops/op_shape.h"
#include "ops/op_slice2d.h"

#include "case_nodes.h"

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
static dml_node *upsample_image(dml_graph *g)
{
    dml_node *x = dml_tanh(image(g, 2, 3, 2));
    return dml_add(dml_upsample2d(x, 2), dml_upsample2d(dml_slice2d(x, NULL), 2));
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

/* X(op, what builds it, samples) */
#define SHAPES_CASE_LIST(X)                                                                                  \
    X(flatten, flatten_image, 3)                                                                             \
    X(flatten, flatten_output, 2)                                                                            \
    X(flatten, flatten_twice, 3)                                                                             \
    X(flatten, flatten_parameter, 4)                                                                         \
    X(reshape, reshape_image, 3)                                                                             \
    X(reshape, reshape_parameter, 2)                                                                         \
    X(stop_gradient, stop_input, 3)                                                                          \
    X(stop_gradient, stop_first, 3)                                                                          \
    X(stop_gradient, stop_parameter, 2)                                                                      \
    X(permute, permute_image, 3)                                                                             \
    X(permute, permute_five, 2)                                                                              \
    X(permute, permute_back, 2)                                                                              \
    X(permute, permute_parameter, 3)                                                                         \
    X(slice, slice_last, 3)                                                                                  \
    X(slice, slice_overlapping, 2)                                                                           \
    X(slice, slice_parameter, 2)                                                                             \
    X(slice, slice_split, 4)                                                                                 \
    X(pad, pad_middle, 3)                                                                                    \
    X(pad, pad_both, 3)                                                                                      \
    X(concat, concat_channels, 3)                                                                            \
    X(concat, upsample_image, 3)                                                                             \
    X(concat, concat_many, 2)                                                                                \
    X(concat, concat_parameters, 2)                                                                          \
    X(slice2d, slice_nothing, 2)                                                                             \
    X(slice2d, slice_part, 3)                                                                                \
    X(slice2d, slice_padded, 2)                                                                              \
    X(slice2d, slice_input, 2)                                                                               \
    X(slice2d, slice_shortcut, 3)

#endif
