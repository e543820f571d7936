#ifndef DML_DIST_MODEL_RANKS_C
#define DML_DIST_MODEL_RANKS_C

#include "dist/model_ranks.h"

#include "base/memory.h"
#include "comm/job.h"
#include "graph/node.h"
#include "graph/program_internal.h"

#include <string.h>

#define DML__STAGED ((size_t)1 << 18) /* floats in a piece */

typedef struct dml__model {
    dml_comm *comm;
    dml__memory *memory;
    float *sent, *there; /* (DML__STAGED) each */
    void *pass;          /* of a pipeline, that its program runs in now; NULL: another program, or trainer */
} dml__model;

static dml_status dml__sum_of_model(void *user, double *values, size_t count, dml__error *error)
{
    dml_comm *comm = ((const dml__model *)user)->comm;
    if (dml_comm_all_reduce(comm, values, count, DML_F64, DML_SUM) == DML_OK) return DML_OK;
    return dml__fail(error, dml_comm_status(comm), "the norm over the model's ranks: %s",
                     dml_comm_error(comm));
}

static dml_status dml__compare_in_model(void *user, const double *values, size_t count, size_t *unlike,
                                        double range[2], dml__error *error)
{
    dml_comm *comm = ((const dml__model *)user)->comm;
    double most[2 * DML__MOST_COMPARED];
    DML_ASSERT(count <= DML__MOST_COMPARED);
    for (size_t i = 0; i < count; i++) {
        most[i] = values[i];
        most[count + i] = -values[i];
    }
    if (dml_comm_all_reduce(comm, most, 2 * count, DML_F64, DML_MAX) != DML_OK)
        return dml__fail(error, dml_comm_status(comm), "a model's ranks at their first step: %s",
                         dml_comm_error(comm));
    for (*unlike = 0; *unlike < count && most[*unlike] == -most[count + *unlike];) ++*unlike;
    if (*unlike < count) {
        range[0] = -most[count + *unlike];
        range[1] = most[*unlike];
    }
    return DML_OK;
}

static void dml__abort_model(void *user, const char *reason)
{
    dml_comm_abort(((const dml__model *)user)->comm, reason);
}

static void dml__leave_model(void *user)
{
    dml__model *model = (dml__model *)user;
    dml__comm_let_go(model->comm);
    dml__release(model->memory, model);
}

/* Messages of a pipeline's passes go on while a stage computes. */
static void dml__progress_in_model(void *user)
{
    const dml__model *model = (const dml__model *)user;
    if (model->pass) dml__comm_progress(model->comm);
}

static const dml__model_calls dml__calls = { dml__sum_of_model, dml__compare_in_model, dml__progress_in_model,
                                             dml__abort_model, dml__leave_model };

/* Of a graph's parts or its stages. */
static dml_comm *dml__comm_of(const dml__model_ranks *ranks)
{
    return ranks->user ? ((const dml__model *)ranks->user)->comm : NULL;
}

DML__LOCAL dml_comm *dml__model_comm(const dml_graph *graph)
{
    return dml__comm_of(&graph->model);
}

DML__LOCAL dml_comm *dml__stages_comm(const dml_graph *graph)
{
    return dml__comm_of(&graph->stages);
}

DML__LOCAL void *dml__stage_pass_of(const dml_graph *graph)
{
    return graph->stages.user ? ((const dml__model *)graph->stages.user)->pass : NULL;
}

DML__LOCAL void dml__set_stage_pass(dml_graph *graph, void *pass)
{
    if (graph->stages.user) ((dml__model *)graph->stages.user)->pass = pass;
}

static dml_status dml__join(dml_graph *graph, dml__model_ranks *ranks, dml_comm *comm, const char *what)
{
    dml__error *error = &graph->context->error;
    dml__memory *memory = &graph->context->memory;
    if (error->status != DML_OK) return error->status;
    if (!comm)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s: its communicator is NULL: none was given, or there was no memory left to open "
                         "one",
                         what);
    if (dml_comm_status(comm) != DML_OK)
        return dml__fail(error, dml_comm_status(comm), "%s: %s", what, dml_comm_error(comm));
    const bool alone = dml_comm_world_size(comm) == 1;
    if (ranks->user ? dml__comm_of(ranks) != comm : ranks->alone && !alone)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s: its communicator is another one than that of the graph's other such nodes; a "
                         "graph is cut over one",
                         what);
    ranks->alone = alone;
    if (ranks->user || alone) return DML_OK;
    if (graph->programs > 0)
        return dml__fail(error, DML_ERROR_STATE,
                         "%s: a first such node after the graph was compiled; build the whole model first",
                         what);
    dml__model *model =
        (dml__model *)dml__allocate_unset(memory, sizeof *model + 2 * DML__STAGED * sizeof(float));
    if (!model) return dml__fail(error, DML_ERROR_MEMORY, "%s: no memory left for what ranks exchange", what);
    model->comm = comm;
    model->memory = memory;
    model->pass = NULL;
    model->sent = (float *)(void *)(model + 1);
    model->there = model->sent + DML__STAGED;
    dml__comm_keep(comm);
    ranks->rank = dml_comm_rank(comm);
    ranks->ranks = dml_comm_world_size(comm);
    ranks->user = model;
    ranks->calls = &dml__calls;
    return DML_OK;
}

DML__LOCAL dml_status dml__join_model(dml_graph *graph, dml_comm *comm, const char *what)
{
    return dml__join(graph, &graph->model, comm, what);
}

DML__LOCAL dml_status dml__join_stages(dml_graph *graph, dml_comm *comm, const char *what)
{
    return dml__join(graph, &graph->stages, comm, what);
}

/* ---- what nodes exchange ---- */

static dml_status dml__exchange_failed(const dml__run *run, const dml_node *node, const dml_comm *comm)
{
    return dml__fail(run->error, dml_comm_status(comm), "%s '%s' in %s: %s", node->op->name, node->name,
                     run->backward ? "backward" : "forward", dml_comm_error(comm));
}

static dml_status dml__all_reduce_of(const dml__run *run, const dml_node *node, float *data, size_t n)
{
    dml_comm *comm = dml__model_comm(node->graph);
    return dml_comm_all_reduce(comm, data, n, DML_F32, DML_SUM) == DML_OK
               ? DML_OK
               : dml__exchange_failed(run, node, comm);
}

DML__LOCAL dml_status dml__gather_over_model(const dml__run *run, const dml_node *node, size_t n,
                                             const float *from, float *all)
{
    dml_comm *comm = dml__model_comm(node->graph);
    return dml_comm_all_gather(comm, from, n, DML_F32, all) == DML_OK ? DML_OK
                                                                      : dml__exchange_failed(run, node, comm);
}

DML__LOCAL dml_status dml__put_floats(const dml__run *run, size_t n, float *from, float *there, float beta,
                                      dml_ref to)
{
    const dml_backend *backend = run->device->backend;
    dml_status status = DML_OK;
    if (!to.buffer) return DML_OK;
    if (beta != 0.0f) {
        status = backend->read(run->device, there, to, n * sizeof(float));
        for (size_t i = 0; i < n; i++) from[i] += beta * there[i];
    }
    return status == DML_OK ? backend->write(run->device, to, from, n * sizeof(float)) : status;
}

/* By way of the host. */
static dml_status dml__sum_staged(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                  float beta, dml_ref to)
{
    const dml__model *model = (const dml__model *)node->graph->model.user;
    dml_status status = run->device->backend->read(run->device, model->sent, from, n * sizeof(float));
    if (status == DML_OK) status = dml__all_reduce_of(run, node, model->sent, n);
    return status == DML_OK ? dml__put_floats(run, n, model->sent, model->there, beta, to) : status;
}

/* In place, where that is the host's memory. */
static dml_status dml__sum_piece(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                 float beta, dml_ref to)
{
    if (!run->device->host_memory || beta != 0.0f) return dml__sum_staged(run, node, n, from, beta, to);
    if (dml__host(from) != dml__host(to)) memcpy(dml__host(to), dml__host(from), n * sizeof(float));
    return dml__all_reduce_of(run, node, (float *)dml__host(to), n);
}

/* In the same pieces on all ranks, whatever devices they have. */
DML__LOCAL dml_status dml__sum_over_model(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                          float beta, dml_ref to)
{
    dml_status status = DML_OK;
    for (size_t at = 0; at < n && status == DML_OK; at += DML__STAGED) {
        const dml_ref read = { from.buffer, from.offset + at * sizeof(float) };
        const dml_ref write = { to.buffer, to.offset + at * sizeof(float) };
        status = dml__sum_piece(run, node, n - at < DML__STAGED ? n - at : DML__STAGED, read, beta, write);
    }
    return status;
}

DML__LOCAL dml_status dml__send_to_stage(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                         int stage, int tag)
{
    const dml__model *stages = (const dml__model *)node->graph->stages.user;
    dml_status status = DML_OK;
    for (size_t at = 0; at < n && status == DML_OK; at += DML__STAGED) {
        const size_t count = n - at < DML__STAGED ? n - at : DML__STAGED;
        const dml_ref read = { from.buffer, from.offset + at * sizeof(float) };
        status = run->device->backend->read(run->device, stages->sent, read, count * sizeof(float));
        if (status == DML_OK &&
            dml_comm_send(stages->comm, stages->sent, count, DML_F32, stage, tag) != DML_OK)
            status = dml__exchange_failed(run, node, stages->comm);
    }
    return status;
}

DML__LOCAL dml_status dml__receive_from_stage(const dml__run *run, const dml_node *node, size_t n, int stage,
                                              int tag, float beta, dml_ref to)
{
    const dml__model *stages = (const dml__model *)node->graph->stages.user;
    dml_status status = DML_OK;
    for (size_t at = 0; at < n && status == DML_OK; at += DML__STAGED) {
        const size_t count = n - at < DML__STAGED ? n - at : DML__STAGED;
        const dml_ref write = { to.buffer, to.offset + at * sizeof(float) };
        status = dml_comm_receive(stages->comm, stages->sent, count, DML_F32, stage, tag, NULL) == DML_OK
                     ? dml__put_floats(run, count, stages->sent, stages->there, beta, write)
                     : dml__exchange_failed(run, node, stages->comm);
    }
    return status;
}

DML__LOCAL dml_status dml__wait_for_stage(const dml__run *run, const dml_node *node, dml_request **request)
{
    dml_comm *comm = dml__stages_comm(node->graph);
    const dml_status status = *request ? dml_comm_wait(comm, *request) : dml_comm_status(comm);
    *request = NULL;
    return status == DML_OK ? DML_OK : dml__exchange_failed(run, node, comm);
}

#endif
