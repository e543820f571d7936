#ifndef DML_OPS_OP_ARITHMETIC_C
#define DML_OPS_OP_ARITHMETIC_C

#include "ops/op_arithmetic.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/elementwise.h"

static dml_status dml__add_infer(dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    if (a->dtype != DML_F32 || b->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "it adds f32, not %s and %s",
                              dml_dtype_name(a->dtype), dml_dtype_name(b->dtype));
    if (!dml_shape_equal(&a->shape, &b->shape) || a->batched != b->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its inputs are %s%s and %s%s, they must be the same",
                              dml_shape_format(&a->shape, a_text), a->batched ? "" : " for the whole batch",
                              dml_shape_format(&b->shape, b_text), b->batched ? "" : " for the whole batch");
    node->shape = a->shape;
    node->batched = a->batched;
    return DML_OK;
}

static dml_status dml__add_op_forward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node);
    if (run->device->host_memory) {
        (dml__ends_in_relu(run, node) ? dml_add_relu_forward : dml_add_forward)(
            run->pool, n, dml__host_value(run, node->input[0]), dml__host_value(run, node->input[1]),
            dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch("add", n, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node->input[1]);
    launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__add_op_backward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node);
    dml_status status = DML_OK;
    for (int i = 0; i < 2 && status == DML_OK; i++) {
        if (!dml__wants_gradient(run, node, i)) continue;
        const float beta = dml__beta(run, node, i);
        if (run->device->host_memory) {
            const float *from = dml__host_gradient(run, node);
            float *to = dml__host_gradient(run, node->input[i]);
            if (to != from || beta != 0) dml_axpby(run->pool, n, 1.0f, from, beta, to);
            continue;
        }
        dml_launch launch = dml__launch("axpby", n, 1);
        launch.buffer[0] = dml__gradient(run, node);
        launch.buffer[1] = dml__gradient(run, node->input[i]);
        launch.integer[0] = (int32_t)n;
        launch.real[0] = 1.0f;
        launch.real[1] = beta;
        status = dml__submit(run->device, &launch);
    }
    return status;
}

DML__LOCAL const dml__op *dml__add_op(void)
{
    static const dml__op op = { "add",
                                dml__add_infer,
                                dml__add_op_forward,
                                dml__add_op_backward,
                                DML__TAKES_RELU | DML__PASSES_GRADIENT,
                                NULL,
                                false,
                                true,
                                NULL,
                                NULL,
                                NULL };
    return &op;
}

DML_API dml_node *dml_add(dml_node *a, dml_node *b)
{
    dml_node *const inputs[] = { a, b };
    return dml__node_create(dml__add_op(), 2, inputs, NULL, 0);
}

static dml_status dml__flatten_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    node->dtype = x->dtype;
    node->batched = x->batched;
    node->shape.ndim = 1;
    node->shape.dims[0] = (int)dml_shape_count(&x->shape);
    return DML_OK;
}

DML__LOCAL const dml__op *dml__flatten_op(void)
{
    static const dml__op op = { "flatten", dml__flatten_infer, NULL, NULL, 0, NULL, true, false,
                                NULL,      dml__no_flops,      NULL };
    return &op;
}

DML_API dml_node *dml_flatten(dml_node *x)
{
    return dml__node_create(dml__flatten_op(), 1, &x, NULL, 0);
}

#endif
