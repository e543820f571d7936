/* The two ends of a stage (dist/pipeline.h), each other's adjoint on neighbouring ranks. */
#ifndef DML_DIST_PIPELINE_OPS_C
#define DML_DIST_PIPELINE_OPS_C

#include "dist/pipeline_internal.h"

#include "dist/model_ranks.h"
#include "graph/node.h"
#include "graph/program_internal.h"

#include <string.h>

/* ---- of a micro-batch on its way ---- */

static dml__stage_pass *dml__pass_of(const dml__run *run)
{
    return (dml__stage_pass *)dml__stage_pass_of(run->program->graph);
}

/* Starts to send what was computed, when the last message from there has gone. */
static dml_status dml__start_to_stage(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                      float *by, int stage, int tag, dml_request **sent)
{
    dml_comm *comm = dml__stages_comm(node->graph);
    dml_status status = dml__wait_for_stage(run, node, sent);
    if (status == DML_OK) status = run->device->backend->read(run->device, by, from, n * sizeof *by);
    if (status != DML_OK) return status;
    *sent = dml_comm_send_start(comm, by, n, DML_F32, stage, tag);
    return *sent ? DML_OK : dml__wait_for_stage(run, node, sent);
}

/* ---- the input ---- */

static dml_status dml__pipeline_input_forward(const dml__run *run, const dml_node *node)
{
    dml__stage_pass *pass = dml__pass_of(run);
    const size_t n = dml__count(run, node);
    const int before = node->graph->stages.rank - 1;
    if (!pass)
        return dml__receive_from_stage(run, node, n, before, DML__STAGE_VALUE, 0, dml__value(run, node));
    const dml_status status = dml__wait_for_stage(run, node, &pass->value_came);
    return status == DML_OK ? dml__put_floats(run, n, pass->value_in, NULL, 0, dml__value(run, node))
                            : status;
}

static dml_status dml__pipeline_input_backward(const dml__run *run, const dml_node *node)
{
    dml__stage_pass *pass = dml__pass_of(run);
    const size_t n = dml__count(run, node);
    const int before = node->graph->stages.rank - 1;
    const dml_ref gradient = dml__gradient(run, node);
    if (!pass) return dml__send_to_stage(run, node, n, gradient, before, DML__STAGE_GRADIENT);
    return dml__start_to_stage(run, node, n, gradient, pass->gradient_out, before, DML__STAGE_GRADIENT,
                               &pass->gradient_sent);
}

DML__LOCAL const dml__op *dml__pipeline_input_op(void)
{
    static const dml__op op = { "pipeline_input",
                                NULL,
                                dml__pipeline_input_forward,
                                dml__pipeline_input_backward,
                                DML__IS_SOURCE,
                                NULL,
                                false,
                                false,
                                NULL,
                                dml__no_flops,
                                NULL };
    return &op;
}

/* ---- the output ---- */

static dml_status dml__pipeline_output_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || !x->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its input is %s %s%s; it takes f32 for each sample",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text),
                              x->batched ? "" : " for the whole batch");
    if (x->partial)
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "each rank of the model has a value of its own here; what goes to the next stage is "
            "alike on all of them");
    node->dtype = DML_F32;
    return DML_OK;
}

static dml_status dml__pipeline_output_forward(const dml__run *run, const dml_node *node)
{
    dml__stage_pass *pass = dml__pass_of(run);
    const dml_node *x = node->input[0];
    const size_t n = dml__count(run, x);
    const int next = node->graph->stages.rank + 1;
    const dml_status status = run->device->backend->zero(run->device, dml__value(run, node), sizeof(float));
    if (status != DML_OK) return status;
    if (!pass) return dml__send_to_stage(run, node, n, dml__value(run, x), next, DML__STAGE_VALUE);
    pass->gradient_came = dml_comm_receive_start(dml__stages_comm(node->graph), pass->gradient_in, n, DML_F32,
                                                 next, DML__STAGE_GRADIENT);
    return dml__start_to_stage(run, node, n, dml__value(run, x), pass->value_out, next, DML__STAGE_VALUE,
                               &pass->value_sent);
}

/* What comes back is taken also where nothing here is trained by it. */
static dml_status dml__pipeline_output_backward(const dml__run *run, const dml_node *node)
{
    dml__stage_pass *pass = dml__pass_of(run);
    const dml_node *x = node->input[0];
    const size_t n = dml__count(run, x);
    const bool wanted = dml__wants_gradient(run, node, 0);
    const float beta = wanted ? dml__beta(run, node, 0) : 0;
    const dml_ref none = { NULL, 0 }, to = wanted ? dml__gradient(run, x) : none;
    const int next = node->graph->stages.rank + 1;
    if (!pass) return dml__receive_from_stage(run, node, n, next, DML__STAGE_GRADIENT, beta, to);
    dml_status status = dml__wait_for_stage(run, node, &pass->gradient_came);
    /* The value has gone: its gradient has come. */
    if (status == DML_OK) status = dml__wait_for_stage(run, node, &pass->value_sent);
    return status == DML_OK ? dml__put_floats(run, n, pass->gradient_in, pass->value_out, beta, to) : status;
}

DML__LOCAL const dml__op *dml__pipeline_output_op(void)
{
    static const dml__op op = { "pipeline_output",
                                dml__pipeline_output_infer,
                                dml__pipeline_output_forward,
                                dml__pipeline_output_backward,
                                DML__IS_SOURCE,
                                NULL,
                                false,
                                false,
                                NULL,
                                dml__no_flops,
                                NULL };
    return &op;
}

/* ---- building ---- */

static bool dml__has_node_of(const dml_graph *graph, const dml__op *op)
{
    const dml_node *node = graph->first;
    while (node && node->op != op) node = node->next;
    return node != NULL;
}

/* Of a stage's end: it has a neighbour there, and no other such node. */
static dml_status dml__check_stage_end(dml_graph *graph, dml_comm *comm, const dml__op *op, bool last)
{
    dml__error *error = &graph->context->error;
    const dml_status status = dml__join_stages(graph, comm, op->name);
    if (status != DML_OK) return status;
    const int stage = dml_comm_rank(comm), stages = dml_comm_world_size(comm);
    if (stage == (last ? stages - 1 : 0))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s: asked for on rank %d of %d, the %s stage, which has none %s it", op->name,
                         stage, stages, last ? "last" : "first", last ? "behind" : "before");
    if (dml__has_node_of(graph, op))
        return dml__fail(error, DML_ERROR_ARGUMENT, "%s: a second one asked for; a stage has one", op->name);
    return DML_OK;
}

/* What the next stage is told of this one: the shape, and how many elements of parameters and how many nodes
   come before its own. */
enum { DML__STAGE_FACTS = DML_MAX_DIMS + 3 };

static dml_status dml__stage_failed(dml_graph *graph, const dml_comm *comm, const dml__op *op)
{
    return dml__fail(&graph->context->error, dml_comm_status(comm), "%s: %s", op->name, dml_comm_error(comm));
}

DML_API dml_node *dml_pipeline_input(dml_graph *graph, dml_comm *comm)
{
    const dml__op *op = dml__pipeline_input_op();
    int64_t facts[DML__STAGE_FACTS];
    dml_shape shape;
    if (!graph || dml__check_stage_end(graph, comm, op, false) != DML_OK) return NULL;
    if (graph->keys > 0) {
        dml__fail(&graph->context->error, DML_ERROR_STATE,
                  "%s: asked for after other nodes; a stage builds it first, behind inputs alone", op->name);
        return NULL;
    }
    if (dml_comm_receive(comm, facts, DML__STAGE_FACTS, DML_I64, dml_comm_rank(comm) - 1, DML__STAGE_BEGINS,
                         NULL) != DML_OK) {
        dml__stage_failed(graph, comm, op);
        return NULL;
    }
    memset(&shape, 0, sizeof shape);
    shape.ndim = (int)facts[0];
    for (int i = 0; i < shape.ndim; i++) shape.dims[i] = (int)facts[1 + i];
    graph->place_before = graph->whole_count = (size_t)facts[DML_MAX_DIMS + 1];
    graph->keys_before = graph->keys = (int)facts[DML_MAX_DIMS + 2];
    dml_node *node = dml__leaf_create(graph, op, NULL, DML_F32, shape, NULL, 0);
    if (node) dml__node_is_extra(node);
    return node;
}

DML_API dml_node *dml_pipeline_output(dml_node *x, dml_comm *comm)
{
    const dml__op *op = dml__pipeline_output_op();
    int64_t facts[DML__STAGE_FACTS] = { 0 };
    if (!x || dml__check_stage_end(x->graph, comm, op, true) != DML_OK) return NULL;
    dml_node *node = dml__node_create(op, 1, &x, NULL, 0);
    if (!node) return NULL;
    dml__node_is_extra(node);
    facts[0] = x->shape.ndim;
    for (int i = 0; i < x->shape.ndim; i++) facts[1 + i] = x->shape.dims[i];
    facts[DML_MAX_DIMS + 1] = (int64_t)x->graph->whole_count;
    facts[DML_MAX_DIMS + 2] = x->graph->keys;
    if (dml_comm_send(comm, facts, DML__STAGE_FACTS, DML_I64, dml_comm_rank(comm) + 1, DML__STAGE_BEGINS) ==
        DML_OK)
        return node;
    dml__stage_failed(x->graph, comm, op);
    return NULL;
}

#endif
