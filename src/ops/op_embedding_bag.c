#ifndef DML_OPS_OP_EMBEDDING_BAG_C
#define DML_OPS_OP_EMBEDDING_BAG_C

#include "ops/op_embedding_bag.h"

#include "graph/gradient_rows.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/weights.h"
#include "ops/table.h"
#include "kernels/embedding_bag.h"

#include <stdio.h>
#include <string.h>

enum { DML__BAG_INDICES, DML__BAG_TABLE, DML__BAG_WEIGHTS };

static bool dml__bag_is_mean(const dml_node *node)
{
    return ((const dml_embedding_bag_options *)node->attributes)->mode == DML_BAG_MEAN;
}

static dml_status dml__embedding_bag_infer(dml_node *node)
{
    const dml_embedding_bag_options *o = (const dml_embedding_bag_options *)node->attributes;
    const dml_node *indices = node->input[DML__BAG_INDICES], *table = node->input[DML__BAG_TABLE];
    const dml_node *weights = node->input[DML__BAG_WEIGHTS];
    char text[DML_SHAPE_TEXT], other[DML_SHAPE_TEXT];
    if (o->mode != DML_BAG_SUM && o->mode != DML_BAG_MEAN)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "no mode %d; there are DML_BAG_SUM and DML_BAG_MEAN",
                              (int)o->mode);
    if (weights && o->mode == DML_BAG_MEAN)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "weights and a mean asked for; weights are of a sum");
    if (indices->dtype != DML_I32 || indices->shape.ndim < 1)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its indices are %s %s; they must be an input of i32 with at least one dimension",
            dml_dtype_name(indices->dtype), dml_shape_format(&indices->shape, text));
    if (table->dtype != DML_F32 || table->batched || table->shape.ndim != 2)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its table is %s %s%s; it must be f32 rows x width",
                              dml_dtype_name(table->dtype), dml_shape_format(&table->shape, text),
                              table->batched ? " a sample" : "");
    if (weights && (weights->dtype != DML_F32 || weights->batched != indices->batched ||
                    !dml_shape_equal(&weights->shape, &indices->shape)))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its indices are %s%s and its weights %s %s%s; %s",
                              dml_shape_format(&indices->shape, text), indices->batched ? " a sample" : "",
                              dml_dtype_name(weights->dtype), dml_shape_format(&weights->shape, other),
                              weights->batched ? " a sample" : "", "they must be f32 of the same shape");
    node->limit = table->shape.dims[0];
    node->lowest = -1;
    node->batched = indices->batched;
    node->shape = indices->shape;
    node->shape.dims[node->shape.ndim - 1] = table->shape.dims[1];
    return DML_OK;
}

/* Of a run: places of all bags, those of one, and the table's columns. */
typedef struct dml__bag_sizes {
    size_t places, length, width;
} dml__bag_sizes;

static dml__bag_sizes dml__bag_sizes_of(const dml__run *run, const dml_node *node)
{
    const dml_node *indices = node->input[DML__BAG_INDICES];
    dml__bag_sizes sizes;
    sizes.places = dml__count(run, indices);
    sizes.length = (size_t)indices->shape.dims[indices->shape.ndim - 1];
    sizes.width = (size_t)node->input[DML__BAG_TABLE]->shape.dims[1];
    return sizes;
}

static const int32_t *dml__bag_host_indices(const dml__run *run, const dml_node *node)
{
    return (const int32_t *)dml__host(dml__value(run, node->input[DML__BAG_INDICES]));
}

static const float *dml__bag_host_weights(const dml__run *run, const dml_node *node)
{
    const dml_node *weights = node->input[DML__BAG_WEIGHTS];
    return weights ? dml__host_value(run, weights) : NULL;
}

static dml_ref dml__bag_weights_ref(const dml__run *run, const dml_node *node)
{
    const dml_ref none = { NULL, 0 };
    const dml_node *weights = node->input[DML__BAG_WEIGHTS];
    return weights ? dml__value(run, weights) : none;
}

/* With its integers, and the indices as buffer 0. */
static dml_launch dml__bag_launch(const dml__run *run, const dml_node *node, const char *kernel, size_t size)
{
    const dml__bag_sizes sizes = dml__bag_sizes_of(run, node);
    dml_launch launch = dml__launch(kernel, size, 1);
    launch.buffer[0] = dml__value(run, node->input[DML__BAG_INDICES]);
    launch.integer[0] = (int32_t)sizes.places;
    launch.integer[1] = (int32_t)sizes.width;
    launch.integer[2] = (int32_t)sizes.length;
    launch.integer[3] = dml__bag_is_mean(node);
    return launch;
}

static dml_status dml__embedding_bag_op_forward(const dml__run *run, const dml_node *node)
{
    const dml__bag_sizes sizes = dml__bag_sizes_of(run, node);
    const dml_node *table = node->input[DML__BAG_TABLE];
    if (run->device->host_memory) {
        dml_embedding_bag_forward(run->pool, sizes.places / sizes.length, sizes.length, sizes.width,
                                  dml__bag_is_mean(node), dml__bag_host_indices(run, node),
                                  dml__bag_host_weights(run, node), dml__host_value(run, table),
                                  dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__bag_launch(run, node, "embedding_bag_forward", dml__count(run, node));
    launch.buffer[1] = dml__bag_weights_ref(run, node);
    launch.buffer[2] = dml__value(run, table);
    launch.buffer[3] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* On a GPU: as an embedding's. */
static size_t dml__embedding_bag_saved_bytes(const dml_node *node, int rows)
{
    const dml_node *indices = node->input[DML__BAG_INDICES];
    if (dml__node_context(node)->device.host_memory) return 0;
    return 2 * dml_shape_count(&indices->shape) * (indices->batched ? (size_t)rows : 1) * sizeof(int32_t);
}

static dml_status dml__bag_backward_on_host(const dml__run *run, const dml_node *node)
{
    const dml__bag_sizes sizes = dml__bag_sizes_of(run, node);
    const size_t bags = sizes.places / sizes.length;
    const dml_node *table = node->input[DML__BAG_TABLE];
    const int32_t *indices = dml__bag_host_indices(run, node);
    const float *dy = dml__host_gradient(run, node);
    if (dml__wants_gradient(run, node, DML__BAG_TABLE)) {
        dml__begin_gradient_rows(run, node, DML__BAG_TABLE, sizes.places, indices);
        dml_embedding_bag_backward(run->pool, bags, sizes.length, sizes.width, dml__bag_is_mean(node),
                                   indices, dml__bag_host_weights(run, node), dy,
                                   dml__host_gradient(run, table));
    }
    if (node->input[DML__BAG_WEIGHTS] && dml__wants_gradient(run, node, DML__BAG_WEIGHTS))
        dml_embedding_bag_backward_weights(
            run->pool, bags, sizes.length, sizes.width, indices, dml__host_value(run, table), dy,
            dml__beta(run, node, DML__BAG_WEIGHTS), dml__host_gradient(run, node->input[DML__BAG_WEIGHTS]));
    return DML_OK;
}

static dml_status dml__bag_table_gradient(const dml__run *run, const dml_node *node)
{
    const dml__bag_sizes sizes = dml__bag_sizes_of(run, node);
    const dml_node *table = node->input[DML__BAG_TABLE];
    dml_status status = DML_OK;
    if (dml__beta(run, node, DML__BAG_TABLE) == 0)
        status = run->device->backend->zero(run->device, dml__gradient(run, table),
                                            dml_shape_count(&table->shape) * sizeof(float));
    if (status != DML_OK) return status;
    dml_launch launch = dml__bag_launch(run, node, "embedding_links", sizes.places);
    launch.buffer[1] = dml__saved(run, node);
    status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__bag_launch(run, node, "embedding_bag_backward", sizes.places * sizes.width);
    launch.buffer[1] = dml__saved(run, node);
    launch.buffer[2] = dml__bag_weights_ref(run, node);
    launch.buffer[3] = dml__gradient(run, node);
    launch.buffer[4] = dml__gradient(run, table);
    return dml__submit(run->device, &launch);
}

static dml_status dml__embedding_bag_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *weights = node->input[DML__BAG_WEIGHTS];
    if (run->device->host_memory) return dml__bag_backward_on_host(run, node);
    dml_status status = DML_OK;
    if (dml__wants_gradient(run, node, DML__BAG_TABLE)) status = dml__bag_table_gradient(run, node);
    if (status != DML_OK || !weights || !dml__wants_gradient(run, node, DML__BAG_WEIGHTS)) return status;
    dml_launch launch = dml__bag_launch(run, node, "embedding_bag_weights", dml__count(run, weights));
    launch.buffer[1] = dml__value(run, node->input[DML__BAG_TABLE]);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, weights);
    launch.real[0] = dml__beta(run, node, DML__BAG_WEIGHTS);
    return dml__submit(run->device, &launch);
}

static void dml__embedding_bag_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", dml__bag_is_mean(node) ? "mean" : "sum");
}

/* Of full bags. */
static double dml__embedding_bag_flops(const dml_node *node)
{
    const dml_shape *indices = &node->input[DML__BAG_INDICES]->shape;
    return (node->input[DML__BAG_WEIGHTS] ? 2.0 : 1.0) * (double)dml_shape_count(&node->shape) *
           indices->dims[indices->ndim - 1];
}

DML__LOCAL const dml__op *dml__embedding_bag_op(void)
{
    static const dml__op op = { "embedding_bag",
                                dml__embedding_bag_infer,
                                dml__embedding_bag_op_forward,
                                dml__embedding_bag_op_backward,
                                DML__NEEDS_INPUT(DML__BAG_INDICES) | DML__NEEDS_INPUT(DML__BAG_TABLE) |
                                    DML__NEEDS_INPUT(DML__BAG_WEIGHTS) | DML__LOOKS_UP,
                                dml__embedding_bag_saved_bytes,
                                false,
                                false,
                                dml__embedding_bag_describe,
                                dml__embedding_bag_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_embedding_bag_with(dml_node *indices, dml_node *weights, dml_node *table,
                                         const dml_embedding_bag_options *options)
{
    dml_node *const inputs[] = { indices, table, weights };
    dml_embedding_bag_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    return dml__node_create(dml__embedding_bag_op(), weights ? 3 : 2, inputs, &o, sizeof o);
}

DML_API dml_node *dml_embedding_bag(dml_node *indices, dml_node *weights, int rows, int width,
                                    const dml_embedding_bag_options *options)
{
    if (!indices) return NULL;
    if (rows < 1 || width < 1) {
        dml__fail(&dml__node_context(indices)->error, DML_ERROR_ARGUMENT,
                  "embedding_bag: a table of %d x %d asked for, it takes 1 or more of both", rows, width);
        return NULL;
    }
    dml_node *last = indices->graph->last;
    dml_node *table = dml__layer_parameter(indices->graph, dml__embedding_bag_op(), "weight",
                                           dml_init_normal(0, 1), dml_shape_of(rows, width));
    if (table && options && options->sparse) dml_parameter_set_sparse(table, true);
    dml_node *layer = table ? dml_embedding_bag_with(indices, weights, table, options) : NULL;
    if (!layer) dml__graph_drop_after(indices->graph, last);
    return layer;
}

#endif
