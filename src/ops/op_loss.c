#ifndef DML_OPS_OP_LOSS_C
#define DML_OPS_OP_LOSS_C

#include "ops/op_loss.h"

#include "base/memory.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/loss.h"

static dml_status dml__softmax_cross_entropy_infer(dml_node *node)
{
    dml_node *logits = node->input[0], *labels = node->input[1];
    char logits_text[DML_SHAPE_TEXT], labels_text[DML_SHAPE_TEXT];
    if (logits->dtype != DML_F32 || !logits->batched || logits->shape.ndim != 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its logits are %s %s; they must be one row of f32 a sample",
                              dml_dtype_name(logits->dtype), dml_shape_format(&logits->shape, logits_text));
    if (labels->op != dml__input_op() || labels->dtype != DML_I32 || labels->shape.ndim != 0)
        return dml__node_fail(
            node, DML_ERROR_SHAPE, "its labels are %s %s %s; they must be an input of one i32 a sample",
            labels->op->name, dml_dtype_name(labels->dtype), dml_shape_format(&labels->shape, labels_text));
    node->limit = logits->shape.dims[0];
    return DML_OK; /* shape and batched are zero: one scalar */
}

/* Saved: the probabilities (rows, classes), then each row's loss (rows). */
static size_t dml__probability_bytes(const dml_node *node, int rows)
{
    return dml__align_up((size_t)node->input[0]->shape.dims[0] * (size_t)rows * sizeof(float));
}

static size_t dml__softmax_cross_entropy_saved_bytes(const dml_node *node, int rows)
{
    return dml__probability_bytes(node, rows) + (size_t)rows * sizeof(float);
}

static dml_status dml__softmax_cross_entropy_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *logits = node->input[0], *labels = node->input[1];
    const int classes = logits->shape.dims[0];
    const dml_ref probabilities = dml__saved(run, node);
    dml_ref row_loss = probabilities;
    row_loss.offset += dml__probability_bytes(node, run->rows);
    if (run->device->host_memory) {
        *dml__host_value(run, node) = dml_softmax_cross_entropy_forward(
            run->pool, (size_t)run->rows, (size_t)classes, dml__host_value(run, logits),
            (const int32_t *)dml__host(dml__value(run, labels)), (float *)dml__host(probabilities),
            (float *)dml__host(row_loss));
        return DML_OK;
    }
    dml_launch launch = dml__launch("softmax_cross_entropy_forward", (size_t)run->rows, 1);
    launch.buffer[0] = dml__value(run, logits);
    launch.buffer[1] = dml__value(run, labels);
    launch.buffer[2] = probabilities;
    launch.buffer[3] = row_loss;
    launch.integer[0] = run->rows;
    launch.integer[1] = classes;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__launch("mean", 1, 1);
    launch.buffer[0] = row_loss;
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = run->rows;
    return dml__submit(run->device, &launch);
}

static dml_status dml__softmax_cross_entropy_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *logits = node->input[0], *labels = node->input[1];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const int classes = logits->shape.dims[0];
    const float scale = 1.0f / (float)run->rows, beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        dml_softmax_cross_entropy_backward(
            run->pool, (size_t)run->rows, (size_t)classes, (const float *)dml__host(dml__saved(run, node)),
            (const int32_t *)dml__host(dml__value(run, labels)), scale * *dml__host_gradient(run, node), beta,
            dml__host_gradient(run, logits));
        return DML_OK;
    }
    dml_launch launch = dml__launch("softmax_cross_entropy_backward", dml__count(run, logits), 1);
    launch.buffer[0] = dml__saved(run, node);
    launch.buffer[1] = dml__value(run, labels);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, logits);
    launch.integer[0] = run->rows;
    launch.integer[1] = classes;
    launch.real[0] = scale;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

/* Of each logit: minus the largest, exp, plus the others, divided. */
static double dml__softmax_cross_entropy_flops(const dml_node *node)
{
    return 4.0 * node->input[0]->shape.dims[0];
}

DML__LOCAL const dml__op *dml__softmax_cross_entropy_op(void)
{
    static const dml__op op = { "softmax_cross_entropy",
                                dml__softmax_cross_entropy_infer,
                                dml__softmax_cross_entropy_op_forward,
                                dml__softmax_cross_entropy_op_backward,
                                DML__NEEDS_INPUT(1),
                                dml__softmax_cross_entropy_saved_bytes,
                                false,
                                false,
                                NULL,
                                dml__softmax_cross_entropy_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels)
{
    dml_node *const inputs[] = { logits, labels };
    return dml__node_create(dml__softmax_cross_entropy_op(), 2, inputs, NULL, 0);
}

static dml_status dml__mean_squared_error_infer(dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    if (a->dtype != DML_F32 || b->dtype != DML_F32 || !dml_shape_equal(&a->shape, &b->shape) ||
        a->batched != b->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its inputs are %s %s and %s %s, they must be f32 of one shape",
                              dml_dtype_name(a->dtype), dml_shape_format(&a->shape, a_text),
                              dml_dtype_name(b->dtype), dml_shape_format(&b->shape, b_text));
    return DML_OK;
}

static dml_status dml__mean_squared_error_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    const size_t n = dml__count(run, a);
    if (run->device->host_memory) {
        *dml__host_value(run, node) =
            dml_mse_forward(run->pool, n, dml__host_value(run, a), dml__host_value(run, b));
        return DML_OK;
    }
    if (n > INT32_MAX)
        return dml_device_fail(run->device, DML_ERROR_UNSUPPORTED,
                               "mse_forward over %zu: the kernels count to %d; use smaller batches", n,
                               INT32_MAX);
    dml_launch launch = dml__launch("mse_forward", 1, 1);
    launch.buffer[0] = dml__value(run, a);
    launch.buffer[1] = dml__value(run, b);
    launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__mean_squared_error_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    for (int i = 0; i < 2 && status == DML_OK; i++) {
        if (!dml__wants_gradient(run, node, i)) continue;
        const dml_node *self = node->input[i], *other = node->input[1 - i];
        const size_t n = dml__count(run, self);
        const float scale = 2.0f / (float)n, beta = dml__beta(run, node, i);
        if (run->device->host_memory) {
            dml_mse_backward(run->pool, n, dml__host_value(run, self), dml__host_value(run, other),
                             scale * *dml__host_gradient(run, node), beta, dml__host_gradient(run, self));
            continue;
        }
        dml_launch launch = dml__launch("mse_backward", n, 1);
        launch.buffer[0] = dml__value(run, self);
        launch.buffer[1] = dml__value(run, other);
        launch.buffer[2] = dml__gradient(run, node);
        launch.buffer[3] = dml__gradient(run, self);
        launch.integer[0] = (int32_t)n;
        launch.real[0] = scale;
        launch.real[1] = beta;
        status = dml__submit(run->device, &launch);
    }
    return status;
}

static double dml__mean_squared_error_flops(const dml_node *node)
{
    return 3.0 * (double)dml_shape_count(&node->input[0]->shape);
}

DML__LOCAL const dml__op *dml__mean_squared_error_op(void)
{
    static const dml__op op = { "mean_squared_error",
                                dml__mean_squared_error_infer,
                                dml__mean_squared_error_op_forward,
                                dml__mean_squared_error_op_backward,
                                DML__NEEDS_INPUTS,
                                NULL,
                                false,
                                false,
                                NULL,
                                dml__mean_squared_error_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b)
{
    dml_node *const inputs[] = { a, b };
    return dml__node_create(dml__mean_squared_error_op(), 2, inputs, NULL, 0);
}

#endif
