#ifndef DML_OPS_OP_SOFTMAX_C
#define DML_OPS_OP_SOFTMAX_C

#include "ops/op_softmax.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"
#include "kernels/softmax.h"

#include <stdio.h>

static dml_status dml__softmax_infer(dml_node *node)
{
    int *axis = (int *)node->attributes;
    const dml_node *x = node->input[0];
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                              dml_dtype_name(x->dtype));
    *axis = dml__find_axis(node, *axis);
    node->batched = x->batched;
    node->shape = x->shape;
    return *axis < 0 ? DML_ERROR_ARGUMENT : DML_OK;
}

static bool dml__softmax_is_log(const dml_node *node)
{
    return node->op == dml__log_softmax_op();
}

/* A launch over all rows, of (outer, n, inner). */
static dml_launch dml__softmax_launch(const dml__axis_sizes *s, const dml_node *node, const char *kernel)
{
    const size_t rows = s->outer * s->inner, span = s->n * s->inner, larger = rows > span ? rows : span;
    const int lanes = s->inner == 1 ? dml__row_lanes(s->n) : 16;
    /* More rows than the kernels count to, or longer ones, are refused with a launch of so many. */
    dml_launch launch = dml__launch(kernel, larger > INT32_MAX ? larger : dml__row_groups(rows, lanes), 1);
    launch.integer[0] = (int32_t)s->n;
    launch.integer[1] = (int32_t)s->inner;
    launch.integer[2] = (int32_t)rows;
    launch.integer[3] = dml__softmax_is_log(node);
    launch.integer[4] = lanes;
    return launch;
}

static dml_status dml__softmax_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml__axis_sizes s = dml__axis_sizes_of(x, *(const int *)node->attributes, run->rows);
    if (run->device->host_memory) {
        dml_softmax_forward(run->pool, dml__softmax_is_log(node), s.outer, s.n, s.inner,
                            dml__host_value(run, x), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__softmax_launch(&s, node, "softmax_forward");
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__softmax_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml__axis_sizes s = dml__axis_sizes_of(x, *(const int *)node->attributes, run->rows);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    if (run->device->host_memory) {
        dml_softmax_backward(run->pool, dml__softmax_is_log(node), s.outer, s.n, s.inner,
                             dml__host_value(run, node), dml__host_gradient(run, node),
                             dml__beta(run, node, 0), dml__host_gradient(run, x));
        return DML_OK;
    }
    dml_launch launch = dml__softmax_launch(&s, node, "softmax_backward");
    launch.buffer[0] = dml__value(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = dml__beta(run, node, 0);
    return dml__submit(run->device, &launch);
}

static void dml__softmax_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "axis %d", *(const int *)node->attributes);
}

/* Of each element: less the largest, its exponential, added up, divided. */
static double dml__softmax_flops(const dml_node *node)
{
    return 4 * (double)dml_shape_count(&node->shape);
}

#define DML__SOFTMAX_OP(name)                                                                                \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__softmax_infer,                                                      \
                                    dml__softmax_op_forward,                                                 \
                                    dml__softmax_op_backward,                                                \
                                    DML__NEEDS_OUTPUT,                                                       \
                                    NULL,                                                                    \
                                    false,                                                                   \
                                    true,                                                                    \
                                    dml__softmax_describe,                                                   \
                                    dml__softmax_flops,                                                      \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }
DML__SOFTMAX_OP(softmax)
DML__SOFTMAX_OP(log_softmax)
#undef DML__SOFTMAX_OP

DML_API dml_node *dml_softmax(dml_node *x, int axis)
{
    return dml__node_create(dml__softmax_op(), 1, &x, &axis, sizeof axis);
}

DML_API dml_node *dml_log_softmax(dml_node *x, int axis)
{
    return dml__node_create(dml__log_softmax_op(), 1, &x, &axis, sizeof axis);
}

#endif
