#ifndef DML_OPS_OP_EMBEDDING_C
#define DML_OPS_OP_EMBEDDING_C

#include "ops/op_embedding.h"

#include "graph/gradient_rows.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/embedding.h"

static dml_status dml__embedding_infer(dml_node *node)
{
    const dml_node *indices = node->input[0], *table = node->input[1];
    char text[DML_SHAPE_TEXT];
    if (indices->dtype != DML_I32 || indices->shape.ndim == DML_MAX_DIMS)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its indices are %s %s; they must be an input of i32 with at most %d dimensions",
            dml_dtype_name(indices->dtype), dml_shape_format(&indices->shape, text), DML_MAX_DIMS - 1);
    if (table->dtype != DML_F32 || table->batched || table->shape.ndim != 2)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its table is %s %s%s; it must be f32 count x width",
                              dml_dtype_name(table->dtype), dml_shape_format(&table->shape, text),
                              table->batched ? " a sample" : "");
    node->limit = table->shape.dims[0];
    node->batched = indices->batched;
    node->shape = indices->shape;
    node->shape.dims[node->shape.ndim++] = table->shape.dims[1];
    return DML_OK;
}

static dml_status dml__embedding_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *indices = node->input[0], *table = node->input[1];
    const size_t count = dml__count(run, indices), width = (size_t)table->shape.dims[1];
    if (run->device->host_memory) {
        dml_embedding_forward(run->pool, count, width, (const int32_t *)dml__host(dml__value(run, indices)),
                              dml__host_value(run, table), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch("embedding_forward", count * width, 1);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__value(run, table);
    launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)count;
    launch.integer[1] = (int32_t)width;
    return dml__submit(run->device, &launch);
}

/* On a GPU: where each index is met again, and whether it was met before. */
static size_t dml__embedding_saved_bytes(const dml_node *node, int rows)
{
    const dml_node *indices = node->input[0];
    if (dml__node_context(node)->device.host_memory) return 0;
    return 2 * dml_shape_count(&indices->shape) * (indices->batched ? (size_t)rows : 1) * sizeof(int32_t);
}

static dml_status dml__embedding_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *indices = node->input[0], *table = node->input[1];
    const size_t count = dml__count(run, indices), width = (size_t)table->shape.dims[1];
    if (!dml__wants_gradient(run, node, 1)) return DML_OK;
    if (run->device->host_memory) {
        const int32_t *at = (const int32_t *)dml__host(dml__value(run, indices));
        dml__begin_gradient_rows(run, node, 1, count, at);
        dml_embedding_backward(run->pool, count, width, at, dml__host_gradient(run, node),
                               (size_t)table->shape.dims[0], 1.0f, dml__host_gradient(run, table));
        return DML_OK;
    }
    dml_status status = DML_OK;
    if (dml__beta(run, node, 1) == 0)
        status = run->device->backend->zero(run->device, dml__gradient(run, table),
                                            dml_shape_count(&table->shape) * sizeof(float));
    if (status != DML_OK) return status;
    dml_launch launch = dml__launch("embedding_links", count, 1);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__saved(run, node);
    launch.integer[0] = (int32_t)count;
    status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__launch("embedding_backward", count * width, 1);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__saved(run, node);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, table);
    launch.integer[0] = (int32_t)count;
    launch.integer[1] = (int32_t)width;
    return dml__submit(run->device, &launch);
}

DML__LOCAL const dml__op *dml__embedding_op(void)
{
    static const dml__op op = { "embedding",
                                dml__embedding_infer,
                                dml__embedding_op_forward,
                                dml__embedding_op_backward,
                                DML__NEEDS_INPUT(0) | DML__LOOKS_UP,
                                dml__embedding_saved_bytes,
                                false,
                                false,
                                NULL,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_embedding_with(dml_node *indices, dml_node *table)
{
    dml_node *const inputs[] = { indices, table };
    return dml__node_create(dml__embedding_op(), 2, inputs, NULL, 0);
}

DML_API dml_node *dml_embedding(dml_node *indices, int count, int width)
{
    if (!indices) return NULL;
    if (count < 1 || width < 1) {
        dml__fail(&dml__node_context(indices)->error, DML_ERROR_ARGUMENT,
                  "embedding: a table of %d x %d asked for, it takes 1 or more of both", count, width);
        return NULL;
    }
    dml_node *last = indices->graph->last;
    dml_node *table = dml__layer_parameter(indices->graph, dml__embedding_op(), "weight",
                                           dml_init_normal(0, 1), dml_shape_of(count, width));
    dml_node *layer = table ? dml_embedding_with(indices, table) : NULL;
    if (!layer) dml__graph_drop_after(indices->graph, last);
    return layer;
}

#endif
