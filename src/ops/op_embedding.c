#ifndef DML_OPS_OP_EMBEDDING_C
#define DML_OPS_OP_EMBEDDING_C

#include "ops/op_embedding.h"

#include "graph/gradient_rows.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/embedding.h"
#include "kernels/embedding_bag.h"

/* A table of which this rank has a part of the rows; NULL: it has all of them. */
static const dml__shard *dml__embedding_part(const dml_node *node)
{
    const dml__shard *part = dml__shard_of(node->input[1]);
    return part && part->axis == 0 ? part : NULL;
}

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
    const dml__shard *part = dml__embedding_part(node);
    node->limit = table->shape.dims[0] * (part ? part->ranks : 1);
    node->batched = indices->batched;
    node->shape = indices->shape;
    node->shape.dims[node->shape.ndim++] = table->shape.dims[1];
    return DML_OK;
}

/* The indices, or where each is in this rank's part of the table, which forward saves; -1: in another's. */
static const int32_t *dml__embedding_rows(const dml__run *run, const dml_node *node)
{
    const int32_t *indices = (const int32_t *)dml__host(dml__value(run, node->input[0]));
    const dml__shard *part = dml__embedding_part(node);
    if (!part) return indices;
    int32_t *row = (int32_t *)dml__host(dml__saved(run, node));
    const int32_t rows = node->input[1]->shape.dims[0], first = part->rank * rows;
    const size_t count = dml__count(run, node->input[0]);
    for (size_t i = 0; i < count && !run->backward; i++)
        row[i] = indices[i] >= first && indices[i] - first < rows ? indices[i] - first : -1;
    return row;
}

static void dml__embedding_forward_here(const dml__run *run, const dml_node *node, size_t count, size_t width)
{
    const int32_t *rows = dml__embedding_rows(run, node);
    const float *table = dml__host_value(run, node->input[1]);
    if (dml__embedding_part(node)) /* a bag of one, or of none */
        dml_embedding_bag_forward(run->pool, count, 1, width, false, rows, NULL, table,
                                  dml__host_value(run, node));
    else
        dml_embedding_forward(run->pool, count, width, rows, table, dml__host_value(run, node));
}

/* Its integers. */
static dml_launch dml__embedding_launch(const dml_node *node, const char *kernel, size_t size, size_t count)
{
    const dml__shard *part = dml__embedding_part(node);
    const dml_shape *table = &node->input[1]->shape;
    dml_launch launch = dml__launch(kernel, size, 1);
    launch.integer[0] = (int32_t)count;
    launch.integer[1] = table->dims[1];
    if (part) {
        launch.integer[2] = part->rank * table->dims[0];
        launch.integer[3] = table->dims[0];
    }
    return launch;
}

static dml_status dml__embedding_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *indices = node->input[0], *table = node->input[1];
    const size_t count = dml__count(run, indices), width = (size_t)table->shape.dims[1];
    if (run->device->host_memory) {
        dml__embedding_forward_here(run, node, count, width);
        return DML_OK;
    }
    dml_launch launch = dml__embedding_launch(node, "embedding_forward", count * width, count);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__value(run, table);
    launch.buffer[2] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* On a GPU: where each index is met again, and whether it was met before. On the host: of a part, where it
 * is.
 */
static size_t dml__embedding_saved_bytes(const dml_node *node, int rows)
{
    const dml_node *indices = node->input[0];
    const size_t count = dml_shape_count(&indices->shape) * (indices->batched ? (size_t)rows : 1);
    if (!dml__node_context(node)->device.host_memory) return 2 * count * sizeof(int32_t);
    return dml__embedding_part(node) ? count * sizeof(int32_t) : 0;
}

static dml_status dml__embedding_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *indices = node->input[0], *table = node->input[1];
    const size_t count = dml__count(run, indices), width = (size_t)table->shape.dims[1];
    if (!dml__wants_gradient(run, node, 1)) return DML_OK;
    if (run->device->host_memory) {
        const int32_t *at = dml__embedding_rows(run, node);
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
    dml_launch launch = dml__embedding_launch(node, "embedding_links", count, count);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__saved(run, node);
    status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__embedding_launch(node, "embedding_backward", count * width, count);
    launch.buffer[0] = dml__value(run, indices);
    launch.buffer[1] = dml__saved(run, node);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, table);
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
