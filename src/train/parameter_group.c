#ifndef DML_TRAIN_PARAMETER_GROUP_C
#define DML_TRAIN_PARAMETER_GROUP_C

#include "train/parameter_group.h"

#include "graph/node.h"
#include "graph/op.h"

#define DML__MOST_SCALE 1e6f

static dml_status dml__set_scale(dml_node *parameter, float *place, const char *what, float scale)
{
    if (parameter->op != dml__parameter_op())
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter has a scale of its %s", what);
    if (!(scale >= 0.0f && scale <= DML__MOST_SCALE))
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT,
                              "a scale of its %s of %g asked for, it must be in "
                              "0 .. %g",
                              what, (double)scale, (double)DML__MOST_SCALE);
    dml__settle(parameter->graph->context);
    *place = scale;
    return DML_OK;
}

DML_API float dml_parameter_lr_scale(const dml_node *parameter)
{
    return parameter ? parameter->lr_scale : 0.0f;
}

DML_API float dml_parameter_decay_scale(const dml_node *parameter)
{
    return parameter ? parameter->decay_scale : 0.0f;
}

DML_API dml_status dml_parameter_set_lr_scale(dml_node *parameter, float scale)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    return dml__set_scale(parameter, &parameter->lr_scale, "learning rate", scale);
}

DML_API dml_status dml_parameter_set_decay_scale(dml_node *parameter, float scale)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    return dml__set_scale(parameter, &parameter->decay_scale, "weight decay", scale);
}

DML_API dml_status dml_graph_decay_matrices_only(dml_graph *graph)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    dml__settle(graph->context);
    for (dml_node *node = graph->first; node; node = node->next)
        if (node->op == dml__parameter_op() && node->shape.ndim < 2) node->decay_scale = 0.0f;
    return DML_OK;
}

#endif
