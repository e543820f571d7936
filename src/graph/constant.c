#ifndef DML_GRAPH_CONSTANT_C
#define DML_GRAPH_CONSTANT_C

#include "graph/graph.h"

#include "graph/node.h"
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

/* Into the arena in each run, where ops may write over it as over any value. */
static dml_status dml__constant_forward(const dml__run *run, const dml_node *node)
{
    return run->device->backend->write(run->device, dml__value(run, node), node->attributes,
                                       dml__count(run, node) * sizeof(float));
}

static void dml__constant_describe(const dml_node *node, char *text, size_t bytes)
{
    if (node->shape.ndim == 0) snprintf(text, bytes, "%g", (double)*(const float *)node->attributes);
}

DML__LOCAL const dml__op *dml__constant_op(void)
{
    static const dml__op op = { "constant",
                                NULL,
                                dml__constant_forward,
                                NULL,
                                DML__COMPARES, /* it is as exact as a parameter */
                                NULL,
                                false,
                                false,
                                dml__constant_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

/* 0 for what is no shape, which is refused later. */
static size_t dml__constant_bytes(const dml_shape *shape)
{
    size_t bytes = sizeof(float);
    if (shape->ndim < 0 || shape->ndim > DML_MAX_DIMS) return 0;
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] < 1 || bytes > SIZE_MAX / 2 / (size_t)shape->dims[i]) return 0;
        bytes *= (size_t)shape->dims[i];
    }
    return bytes;
}

DML_API dml_node *dml_constant(dml_graph *graph, const float *values, dml_shape shape)
{
    if (!graph) return NULL;
    if (!values) {
        dml__fail_null(&graph->context->error, "dml_constant", "values");
        return NULL;
    }
    return dml__leaf_create(graph, dml__constant_op(), NULL, DML_F32, shape, values,
                            dml__constant_bytes(&shape));
}

DML_API dml_node *dml_scalar(dml_graph *graph, float value)
{
    dml_shape scalar;
    memset(&scalar, 0, sizeof scalar);
    return dml_constant(graph, &value, scalar);
}

#endif
