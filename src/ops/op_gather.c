#ifndef DML_OPS_OP_GATHER_C
#define DML_OPS_OP_GATHER_C

#include "ops/op_gather.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"
#include "kernels/gather.h"

#include <stdio.h>

/* What both take; leaves the axis in the attributes. */
static dml_status dml__gather_check(dml_node *node)
{
    int *axis = (int *)node->attributes;
    const dml_node *x = node->input[0], *indices = node->input[1];
    if (x->dtype != DML_F32 || indices->dtype != DML_I32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "its input is %s and its indices %s; it takes f32 and i32",
                              dml_dtype_name(x->dtype), dml_dtype_name(indices->dtype));
    if (x->batched != indices->batched)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its %s are for the whole batch and its %s a sample's; both must be of one kind",
            x->batched ? "indices" : "numbers", x->batched ? "numbers" : "indices");
    *axis = dml__find_axis(node, *axis);
    if (*axis < 0) return DML_ERROR_ARGUMENT;
    node->limit = x->shape.dims[*axis];
    node->batched = x->batched;
    return DML_OK;
}

static dml_status dml__take_infer(dml_node *node)
{
    const dml_shape *x = &node->input[0]->shape, *indices = &node->input[1]->shape;
    char text[DML_SHAPE_TEXT], indices_text[DML_SHAPE_TEXT];
    const dml_status status = dml__gather_check(node);
    const int axis = *(const int *)node->attributes;
    if (status != DML_OK) return status;
    if (x->ndim - 1 + indices->ndim > DML_MAX_DIMS)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its input is %s and its indices %s, whose %d dimensions would take the place of one; "
            "there are at most %d",
            dml_shape_format(x, text), dml_shape_format(indices, indices_text), indices->ndim, DML_MAX_DIMS);
    for (int i = 0; i < x->ndim; i++) {
        if (i != axis) node->shape.dims[node->shape.ndim++] = x->dims[i];
        for (int k = 0; i == axis && k < indices->ndim; k++)
            node->shape.dims[node->shape.ndim++] = indices->dims[k];
    }
    return DML_OK;
}

static dml_status dml__gather_infer(dml_node *node)
{
    const dml_shape *x = &node->input[0]->shape, *indices = &node->input[1]->shape;
    char text[DML_SHAPE_TEXT], indices_text[DML_SHAPE_TEXT];
    const dml_status status = dml__gather_check(node);
    const int axis = *(const int *)node->attributes;
    if (status != DML_OK) return status;
    bool fits = x->ndim == indices->ndim;
    for (int i = 0; fits && i < x->ndim; i++) fits = i == axis || x->dims[i] == indices->dims[i];
    if (!fits)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its input is %s and its indices %s; they must be of one shape, but for axis %d",
            dml_shape_format(x, text), dml_shape_format(indices, indices_text), axis);
    node->shape = *indices;
    return DML_OK;
}

static dml_gather_shape dml__gather_shape_of(const dml_node *node, int rows)
{
    const dml_node *x = node->input[0], *indices = node->input[1];
    const int axis = *(const int *)node->attributes;
    const dml__axis_sizes s = dml__axis_sizes_of(x, axis, rows);
    const size_t samples = x->batched ? (size_t)rows : 1;
    dml_gather_shape shape = { s.outer, s.n, s.inner, 0, s.outer / samples, node->op == dml__gather_op() };
    shape.m = shape.elements ? (size_t)indices->shape.dims[axis] : dml_shape_count(&indices->shape);
    return shape;
}

static dml_launch dml__gather_launch(const dml_gather_shape *s, const char *kernel, size_t count)
{
    dml_launch launch = dml__launch(kernel, count, 1);
    launch.integer[0] = (int32_t)s->n;
    launch.integer[1] = (int32_t)s->inner;
    launch.integer[2] = (int32_t)s->m;
    launch.integer[3] = (int32_t)s->group;
    launch.integer[4] = s->elements;
    launch.integer[5] = (int32_t)count;
    return launch;
}

static dml_status dml__gather_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *indices = node->input[1];
    const dml_gather_shape s = dml__gather_shape_of(node, run->rows);
    if (run->device->host_memory) {
        dml_gather_forward(run->pool, &s, (const int32_t *)dml__host(dml__value(run, indices)),
                           dml__host_value(run, x), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__gather_launch(&s, "gather_forward", s.outer * s.m * s.inner);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__value(run, x);
    launch.buffer[2] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__gather_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *indices = node->input[1];
    const dml_gather_shape s = dml__gather_shape_of(node, run->rows);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    if (run->device->host_memory) {
        dml_gather_backward(run->pool, &s, (const int32_t *)dml__host(dml__value(run, indices)),
                            dml__host_gradient(run, node), dml__beta(run, node, 0),
                            dml__host_gradient(run, x));
        return DML_OK;
    }
    dml_launch launch = dml__gather_launch(&s, "gather_backward", s.outer * s.n * s.inner);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = dml__beta(run, node, 0);
    return dml__submit(run->device, &launch);
}

static void dml__gather_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "axis %d", *(const int *)node->attributes);
}

#define DML__GATHER_OP(name)                                                                                 \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__##name##_infer,                                                     \
                                    dml__gather_op_forward,                                                  \
                                    dml__gather_op_backward,                                                 \
                                    DML__NEEDS_INPUT(1),                                                     \
                                    NULL,                                                                    \
                                    false,                                                                   \
                                    false,                                                                   \
                                    dml__gather_describe,                                                    \
                                    dml__no_flops,                                                           \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }
DML__GATHER_OP(take)
DML__GATHER_OP(gather)
#undef DML__GATHER_OP

DML_API dml_node *dml_take(dml_node *x, dml_node *indices, int axis)
{
    dml_node *const inputs[] = { x, indices };
    return dml__node_create(dml__take_op(), 2, inputs, &axis, sizeof axis);
}

DML_API dml_node *dml_gather(dml_node *x, dml_node *indices, int axis)
{
    dml_node *const inputs[] = { x, indices };
    return dml__node_create(dml__gather_op(), 2, inputs, &axis, sizeof axis);
}

#endif
