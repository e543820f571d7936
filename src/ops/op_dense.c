#ifndef DML_OPS_OP_DENSE_C
#define DML_OPS_OP_DENSE_C

#include "ops/op_dense.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/epilogue.h"
#include "kernels/gemm.h"
#include "kernels/q8.h"
#include "kernels/reduce.h"
#include "thread/scratch.h"

static dml_status dml__dense_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    char x_text[DML_SHAPE_TEXT], w_text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || x->shape.ndim < 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s %s; it takes f32 with at least one dimension",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, x_text));
    const int in = x->shape.dims[x->shape.ndim - 1];
    if (w->dtype != DML_F32 || w->batched || w->shape.ndim != 2 || w->shape.dims[1] != in)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s and its weights %s %s%s; they must be f32 units x %d%s",
                              dml_shape_format(&x->shape, x_text), dml_dtype_name(w->dtype),
                              dml_shape_format(&w->shape, w_text), w->batched ? " a sample" : "", in,
                              x->shape.ndim > 1 ? ", for the input's last dimension (dml_flatten makes one "
                                                  "row of a sample)"
                                                : "");
    if (bias && (bias->dtype != DML_F32 || bias->batched || bias->shape.ndim != 1 ||
                 bias->shape.dims[0] != w->shape.dims[0]))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s %s%s, it must be f32 %d",
                              dml_dtype_name(bias->dtype), dml_shape_format(&bias->shape, x_text),
                              bias->batched ? " a sample" : "", w->shape.dims[0]);
    node->batched = x->batched;
    node->shape = x->shape;
    node->shape.dims[x->shape.ndim - 1] = w->shape.dims[0];
    return DML_OK;
}

/* The rows of x, all samples' under each other, as the products count them. */
static size_t dml__dense_rows_of(const dml_node *node, int samples)
{
    const dml_node *x = node->input[0];
    return dml_shape_count(&x->shape) / (size_t)node->input[1]->shape.dims[1] *
           (x->batched ? (size_t)samples : 1);
}

static dml_status dml__dense_rows(const dml__run *run, const dml_node *node, int *rows)
{
    const size_t count = dml__dense_rows_of(node, run->rows);
    *rows = (int)count;
    if (count <= INT32_MAX) return DML_OK;
    return dml__fail(run->error, DML_ERROR_UNSUPPORTED,
                     "dense '%s': products of %zu rows; they count to %d: use smaller batches", node->name,
                     count, INT32_MAX);
}

/* c (m, n) = op(a) op(b) + beta c, all dense and row-major, k summed. */
static dml_status dml__dense_gemm(const dml__run *run, bool trans_a, bool trans_b, int m, int n, int k,
                                  dml_ref a, dml_ref b, float beta, dml_ref c)
{
    const int lda = trans_a ? m : k, ldb = trans_b ? k : n;
    if (run->device->host_memory)
        return dml_sgemm(run->pool, DML_ROW_MAJOR, trans_a ? DML_TRANS : DML_NO_TRANS,
                         trans_b ? DML_TRANS : DML_NO_TRANS, m, n, k, 1.0f, (const float *)dml__host(a), lda,
                         (const float *)dml__host(b), ldb, beta, (float *)dml__host(c), n);
    dml_launch launch = dml__launch("gemm", (size_t)n, (size_t)m);
    const int32_t integers[] = { m, n, k, trans_a, trans_b, lda, ldb, n };
    for (int i = 0; i < 8; i++) launch.integer[i] = integers[i];
    launch.buffer[0] = a;
    launch.buffer[1] = b;
    launch.buffer[2] = c;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

/* y (rows, units) = x w^T + bias, and its relu, where the device has memory of its own. */
static dml_status dml__dense_forward_launch(const dml__run *run, const dml_node *node, int rows)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const int units = w->shape.dims[0], in = w->shape.dims[1];
    const int32_t integers[] = { rows, units, in, 0, 1, in, in, units };
    dml_launch launch = dml__launch("gemm", (size_t)units, (size_t)rows);
    for (int i = 0; i < 8; i++) launch.integer[i] = integers[i];
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__value(run, node);
    if (bias) launch.buffer[3] = dml__value(run, bias);
    launch.real[0] = 1.0f;
    launch.real[2] = dml__ends_in_relu(run, node) ? 1.0f : 0.0f;
    return dml__submit(run->device, &launch);
}

/* Of a device with memory of its own: the bias' gradient for each part of the rows. */
static size_t dml__dense_saved_bytes(const dml_node *node, int samples)
{
    if (dml__node_context(node)->device.host_memory || !node->input[2]) return 0;
    return dml__sum_parts_bytes(dml__dense_rows_of(node, samples), (size_t)node->input[1]->shape.dims[0]);
}

static dml_status dml__dense_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const int units = w->shape.dims[0], in = w->shape.dims[1];
    int rows;
    dml_status status = dml__dense_rows(run, node, &rows);
    if (status != DML_OK) return status;
    if (run->device->host_memory) {
        dml_epilogue epilogue = { NULL, DML_ACTIVATION_NONE };
        if (bias) epilogue.bias = dml__host_value(run, bias);
        if (dml__ends_in_relu(run, node)) epilogue.activation = DML_ACTIVATION_RELU;
        const dml__q8_parameter *q8 = dml__weights_in_q8(run, w, true);
        if (q8)
            return dml_q8gemm(run->pool, rows, units, in, dml__host_value(run, x), in, q8->q8,
                              dml__host_value(run, node), units, &epilogue);
        return dml_sgemm_fused(run->pool, DML_NO_TRANS, DML_TRANS, rows, units, in, 1.0f,
                               dml__host_value(run, x), in, dml__host_value(run, w), in, 0.0f,
                               dml__host_value(run, node), units, &epilogue);
    }
    return dml__dense_forward_launch(run, node, rows);
}

static dml_status dml__dense_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const int units = w->shape.dims[0], in = w->shape.dims[1];
    int rows;
    dml_status status = dml__dense_rows(run, node, &rows);
    if (status == DML_OK && dml__wants_gradient(run, node, 0)) /* dx (rows, in) = dy w */
        status = dml__dense_gemm(run, false, false, rows, in, units, dml__gradient(run, node),
                                 dml__value(run, w), dml__beta(run, node, 0), dml__gradient(run, x));
    if (status == DML_OK && dml__wants_gradient(run, node, 1)) /* dw (units, in) = dy^T x */
        status = dml__dense_gemm(run, true, false, units, in, rows, dml__gradient(run, node),
                                 dml__value(run, x), dml__beta(run, node, 1), dml__gradient(run, w));
    if (status == DML_OK && bias && dml__wants_gradient(run, node, 2))
        status =
            dml__sum_rows_into_gradient(run, node, 2, (size_t)rows, (size_t)units, dml__saved(run, node));
    return status;
}

static double dml__dense_flops(const dml_node *node)
{
    const dml_shape *w = &node->input[1]->shape;
    const double rows = (double)dml__dense_rows_of(node, 1);
    return rows * (2.0 * w->dims[0] * w->dims[1] + (node->input[2] ? w->dims[0] : 0));
}

/* Of its three products. */
static dml_scratch dml__dense_scratch(const dml_node *node, int samples, bool training)
{
    const size_t count = dml__dense_rows_of(node, samples);
    const int rows = count < INT32_MAX ? (int)count : INT32_MAX; /* more are refused */
    const int units = node->input[1]->shape.dims[0], in = node->input[1]->shape.dims[1];
    dml_scratch most = dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, rows, units, in);
    if (!training) return most;
    most = dml__larger_scratch(most, dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, rows, in, units));
    return dml__larger_scratch(most, dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, units, in, rows));
}

DML__LOCAL const dml__op *dml__dense_op(void)
{
    static const dml__op op = { "dense",
                                dml__dense_infer,
                                dml__dense_op_forward,
                                dml__dense_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU_ANYWHERE |
                                    DML__WORKS_IN_BACKWARD,
                                dml__dense_saved_bytes,
                                false,
                                false,
                                NULL,
                                dml__dense_flops,
                                dml__dense_scratch };
    return &op;
}

DML_API dml_node *dml_dense_with(dml_node *x, dml_node *w, dml_node *bias)
{
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(dml__dense_op(), bias ? 3 : 2, inputs, NULL, 0);
}

DML_API dml_node *dml_dense(dml_node *x, int units)
{
    if (!x) return NULL;
    if (units < 1) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "dense: %d units asked for, it takes 1 or more", units);
        return NULL;
    }
    const int in = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    dml_node *last = x->graph->last;
    dml_node *w =
        dml__layer_parameter(x->graph, dml__dense_op(), "weight", dml_init_he(in), dml_shape_of(units, in));
    dml_node *bias =
        dml__layer_parameter(x->graph, dml__dense_op(), "bias", dml_init_constant(0), dml_shape_of(units));
    dml_node *layer = bias ? dml_dense_with(x, w, bias) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif
