/* case_nodes.h: what the cases of ops (ops_cases.h) are built from. */
#ifndef DML_TESTS_GRAPH_CASE_NODES_H
#define DML_TESTS_GRAPH_CASE_NODES_H

#include "graph/weights.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_shape.h"

#include "subject.h"

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

static dml_node *line(dml_graph *g, int length, int channels)
{
    return dml_dense(dml_input(g, NULL, DML_F32, length, 2), channels);
}

#endif
