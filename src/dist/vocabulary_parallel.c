#ifndef DML_DIST_VOCABULARY_PARALLEL_C
#define DML_DIST_VOCABULARY_PARALLEL_C

#include "dist/vocabulary_parallel.h"

#include "dist/model_ranks.h"
#include "dist/tensor_parallel.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/program_internal.h"
#include "ops/op_cross_entropy_internal.h"
#include "ops/op_embedding.h"
#include "ops/table.h"

#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

DML_API dml_node *dml_parallel_embedding_with(dml_node *indices, dml_node *table, dml_comm *comm)
{
    static const char what[] = "parallel_embedding";
    if (!indices || !table) return dml_embedding_with(indices, table); /* which says what is missing */
    if (dml__join_model(indices->graph, comm, what) != DML_OK) return NULL;
    const dml__shard *part = dml__shard_of(table);
    if (dml_comm_world_size(comm) > 1 && (!part || part->axis != 0)) {
        dml__fail(
            &dml__node_context(indices)->error, DML_ERROR_ARGUMENT,
            "%s: its table '%s' isn't cut by rows; it takes one that dml_parallel_parameter has cut along "
            "axis 0",
            what, table->name);
        return NULL;
    }
    if (indices->partial) {
        dml__fail(&dml__node_context(indices)->error, DML_ERROR_ARGUMENT,
                  "%s: each rank has '%s' of its own; indices are alike on all", what, indices->name);
        return NULL;
    }
    dml_node *last = indices->graph->last;
    dml_node *own = dml_embedding_with(indices, table);
    dml_node *sum = own ? dml_parallel_sum(own, comm) : NULL;
    if (own && !sum) dml__graph_drop_after(indices->graph, last);
    return sum;
}

DML_API dml_node *dml_parallel_embedding(dml_node *indices, int count, int width, dml_comm *comm)
{
    static const char what[] = "parallel_embedding";
    char layer[DML_NAME_BYTES], name[2 * DML_NAME_BYTES];
    if (!indices || dml__join_model(indices->graph, comm, what) != DML_OK) return NULL;
    dml_graph *graph = indices->graph;
    const int ranks = dml_comm_world_size(comm);
    if (count < 1 || width < 1 || count % ranks) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
                  "%s: a table of %d x %d asked for over %d ranks; it takes 1 or more of both, and rows that "
                  "are a multiple of the ranks: fill it up",
                  what, count, width, ranks);
        return NULL;
    }
    if (dml__layer_name(graph, dml__embedding_op(), layer) != DML_OK) return NULL;
    snprintf(name, sizeof name, "%s.weight", layer);
    dml_node *last = graph->last;
    dml_node *table =
        dml_parallel_parameter(graph, name, dml_init_normal(0, 1), dml_shape_of(count, width), 0, comm);
    dml_node *sum = table ? dml_parallel_embedding_with(indices, table, comm) : NULL;
    if (!sum) dml__graph_drop_after(graph, last);
    return sum;
}

/* ---- the loss ---- */

static dml_status dml__parallel_loss_infer(dml_node *node)
{
    const dml_node *logits = node->input[0], *labels = node->input[1];
    const int ranks = node->graph->model.ranks;
    if (!logits->partial)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "its logits '%s' are alike on all ranks; it takes each one's stretch of the "
                              "classes, as a column-parallel layer gives them",
                              logits->name);
    for (int i = 1; i < node->inputs; i++)
        if (node->input[i]->partial)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "each rank has '%s' of its own; labels and weights are those of all ranks",
                                  node->input[i]->name);
    if (labels->dtype == DML_F32)
        return dml__node_fail(node, DML_ERROR_UNSUPPORTED,
                              "its target '%s' is f32; where classes are cut it takes i32 labels, and "
                              "dml_softmax_cross_entropy_with probabilities of classes that are whole",
                              labels->name);
    if (dml__classes_of(logits) > INT32_MAX / ranks)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "%d classes on each of %d ranks; it takes %d in all",
                              dml__classes_of(logits), ranks, INT32_MAX);
    node->sums = true;
    return dml__softmax_cross_entropy_infer(node);
}

/* What ranks have of each row (ranks, DML_CROSS_ENTROPY_PART, rows); on a device with memory of its own
   behind what is kept there of its own part, with the scale and the loss. */
static dml_scratch dml__parallel_loss_scratch(const dml_node *node, int samples, bool training)
{
    const size_t rows = dml__cross_entropy_rows(node, samples);
    const bool here = dml__node_context(node)->device.host_memory;
    dml_scratch scratch = { 0, 0 };
    (void)training;
    scratch.shared = (size_t)node->graph->model.ranks * DML_CROSS_ENTROPY_PART * rows * sizeof(float);
    if (!here) scratch.shared += (DML_CROSS_ENTROPY_KEPT * rows + 1) * sizeof(float);
    return scratch;
}

/* One exchange: of what each rank knows of its classes, of which all make the same loss. */
static float dml__parallel_loss_join(const dml__run *run, const dml_node *node, dml_pool *pool,
                                     const dml_cross_entropy *problem, float *parts, float *scale,
                                     dml_status *status)
{
    *status = dml__gather_over_model(run, node, DML_CROSS_ENTROPY_PART * problem->rows, problem->kept, parts);
    if (*status != DML_OK) return 0;
    return dml_cross_entropy_join(pool, problem, parts, node->graph->model.ranks,
                                  dml__cross_entropy_is_mean(node), scale);
}

/* The rows' numbers by way of the host, and the logits where they are. */
static dml_status dml__parallel_loss_on_device(const dml__run *run, const dml_node *node)
{
    const dml_backend *backend = run->device->backend;
    dml_cross_entropy problem;
    memset(&problem, 0, sizeof problem);
    problem.rows = dml__cross_entropy_rows(node, run->rows);
    problem.classes = (size_t)dml__classes_of(node->input[0]);
    problem.kept = (float *)dml_pool_shared_scratch(run->program->own_pool);
    const size_t kept = DML_CROSS_ENTROPY_KEPT * problem.rows;
    float *scale = problem.kept + kept, *parts = scale + 1;
    dml_status status = dml__cross_entropy_launch_rows(run, node);
    if (status == DML_OK)
        status = backend->read(run->device, problem.kept, dml__saved(run, node), kept * sizeof(float));
    if (status != DML_OK) return status;
    const float loss = dml__parallel_loss_join(run, node, NULL, &problem, parts, scale, &status);
    if (status == DML_OK)
        status = backend->write(run->device, dml__saved(run, node), problem.kept, (kept + 1) * sizeof(float));
    return status == DML_OK ? backend->write(run->device, dml__value(run, node), &loss, sizeof loss) : status;
}

static dml_status dml__parallel_loss_forward(const dml__run *run, const dml_node *node)
{
    dml_status status;
    if (!run->device->host_memory) return dml__parallel_loss_on_device(run, node);
    const dml_cross_entropy problem = dml__cross_entropy_problem(run, node);
    float *scale = (float *)dml__host(dml__cross_entropy_scale(run, node));
    dml_cross_entropy_forward_part(run->pool, &problem);
    *dml__host_value(run, node) = dml__parallel_loss_join(
        run, node, run->pool, &problem, (float *)dml_pool_shared_scratch(run->pool), scale, &status);
    return status;
}

static const dml__op *dml__parallel_loss_op(void)
{
    static const dml__op op = { "parallel_softmax_cross_entropy",
                                dml__parallel_loss_infer,
                                dml__parallel_loss_forward,
                                dml__softmax_cross_entropy_op_backward,
                                DML__CROSS_ENTROPY_NEEDS | DML__ON_HOST,
                                dml__softmax_cross_entropy_saved_bytes,
                                false,
                                false,
                                dml__softmax_cross_entropy_describe,
                                dml__softmax_cross_entropy_flops,
                                dml__parallel_loss_scratch };
    return &op;
}

DML_API dml_node *dml_parallel_softmax_cross_entropy_with(dml_node *logits, dml_node *labels,
                                                          const dml_cross_entropy_options *options,
                                                          dml_comm *comm)
{
    const dml__op *op = dml__parallel_loss_op();
    if (!logits || dml__join_model(logits->graph, comm, op->name) != DML_OK) return NULL;
    if (dml_comm_world_size(comm) == 1) return dml_softmax_cross_entropy_with(logits, labels, options);
    if (options && options->class_weights) {
        dml__fail(
            &dml__node_context(logits)->error, DML_ERROR_UNSUPPORTED,
            "%s: class weights asked for; dml_softmax_cross_entropy_with takes them, of classes that are "
            "whole on all ranks",
            op->name);
        return NULL;
    }
    return dml__cross_entropy_node(op, logits, labels, options);
}

DML_API dml_node *dml_parallel_softmax_cross_entropy(dml_node *logits, dml_node *labels, dml_comm *comm)
{
    return dml_parallel_softmax_cross_entropy_with(logits, labels, NULL, comm);
}

#endif
