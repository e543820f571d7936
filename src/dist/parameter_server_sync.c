#ifndef DML_DIST_PARAMETER_SERVER_SYNC_C
#define DML_DIST_PARAMETER_SERVER_SYNC_C

#include "dist/parameter_server_sync.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/cluster_internal.h"
#include "dist/parameter_server_optimizer.h"
#include "dist/replicas.h"

#include <string.h>

typedef struct dml__ps_sync {
    dml__memory memory;
    dml_comm *comm;
    dml_cluster cluster;
    dml_ps_options options;
    dml_ps *ps;
    uint64_t first; /* the trainer's step at which it was attached */
    double samples; /* that g is the mean of */
    bool gathered;  /* the optimizer's state is here, too, and not on the servers alone */
} dml__ps_sync;

/* The optimizer's state lies in the servers' vectors 1 and up; here it is only for a checkpoint. */
static dml_status dml__ps_leave_state(dml__ps_sync *sync, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = DML_OK;
    for (int v = DML_OPTIMIZER_STATE; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        status = dml_trainer_forget(trainer, v, 0, n);
    sync->gathered = false;
    return status;
}

/* Worker 0's, before any other can push a gradient. */
static dml_status dml__ps_give_state(dml__ps_sync *sync, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    for (int v = DML_OPTIMIZER_STATE; v < dml_trainer_vectors(trainer); v++) {
        const float *state = dml_trainer_get(trainer, v, 0, n);
        if (!state) return dml_status_of(dml_trainer_context(trainer));
        dml_ps_push_to(sync->ps, 1 + v - DML_OPTIMIZER_STATE, state, 0, n);
    }
    dml_ps_fence(sync->ps);
    return dml_ps_wait(sync->ps, DML_PS_ALL) == DML_OK ? DML_OK : dml__sync_failed(trainer, sync->comm);
}

static dml_status dml__ps_sync_start(void *user, dml_trainer *trainer)
{
    dml__ps_sync *sync = (dml__ps_sync *)user;
    const dml_trainer_run run = dml_trainer_get_run(trainer);
    /* Where each worker's push is an update by itself, there are as many of them in a step. */
    const int updates = sync->options.consistency == DML_PS_SYNCHRONOUS ? 1 : sync->cluster.workers;
    dml_status status = dml__ps_attach(&sync->ps, sync->comm, &sync->cluster, trainer, &run.optimizer,
                                       run.steps * (uint64_t)updates, &sync->options);
    if (status == DML_OK && sync->cluster.rank == 0) status = dml__ps_give_state(sync, trainer);
    if (status != DML_OK) return status;
    status = dml__start_run(dml_ps_workers_comm(sync->ps), trainer, "dml_parameter_server_sync", NULL);
    if (status == DML_OK)
        status = dml__broadcast_vector(dml_ps_workers_comm(sync->ps), trainer, DML_PARAMETERS);
    sync->first = dml_trainer_steps(trainer);
    return status == DML_OK ? dml__ps_leave_state(sync, trainer) : status;
}

/* A worker that the others didn't wait for goes on at their step, of which the caller counts the last ones.
 */
static dml_status dml__ps_catch_up(const dml__ps_sync *sync, dml_trainer *trainer, uint64_t counted_later)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    if (!sync->options.backup) return DML_OK;
    run.steps = sync->first + dml_ps_clocks(sync->ps) - counted_later;
    return dml_trainer_set_run(trainer, &run);
}

static dml_status dml__ps_sync_begin(void *user, dml_trainer *trainer, double samples)
{
    (void)trainer;
    ((dml__ps_sync *)user)->samples = samples;
    return DML_OK;
}

/* The pull follows the push to each server, which answers when all workers' have come. */
static dml_status dml__ps_sync_update(void *user, dml_trainer *trainer)
{
    dml__ps_sync *sync = (dml__ps_sync *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, n);
    if (!g || !w) return dml_status_of(dml_trainer_context(trainer));
    if (sync->gathered && dml__ps_leave_state(sync, trainer) != DML_OK)
        return dml_status_of(dml_trainer_context(trainer));
    dml_ps_set_rate(sync->ps, (double)dml_trainer_lr(trainer));
    /* A push that is applied by itself is a mean already. */
    const double weight = sync->options.consistency == DML_PS_SYNCHRONOUS ? sync->samples : 1;
    if (sync->samples > 0) dml_ps_push(sync->ps, g, 0, n, weight);
    dml_ps_clock(sync->ps);
    dml_ps_pull(sync->ps, w, 0, n);
    if (dml_ps_wait(sync->ps, DML_PS_ALL) != DML_OK || dml_comm_status(sync->comm) != DML_OK)
        return dml__sync_failed(trainer, sync->comm);
    const dml_status status = dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
    return status == DML_OK ? dml__ps_catch_up(sync, trainer, 1) : status;
}

/* What the servers have now: in synchrony, what they had when w came. */
static dml_status dml__ps_sync_gather(void *user, dml_trainer *trainer)
{
    dml__ps_sync *sync = (dml__ps_sync *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = DML_OK;
    for (int v = 0; v < dml_trainer_vectors(trainer); v++) {
        float *to = v == DML_GRADIENTS ? NULL : dml_trainer_host(trainer, v, 0, n);
        if (to) dml_ps_pull_from(sync->ps, v == DML_PARAMETERS ? 0 : 1 + v - DML_OPTIMIZER_STATE, to, 0, n);
    }
    if (dml_ps_wait(sync->ps, DML_PS_ALL) != DML_OK || dml_comm_status(sync->comm) != DML_OK)
        return dml__sync_failed(trainer, sync->comm);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml_trainer_put(trainer, v, 0, n);
    sync->gathered = status == DML_OK;
    return status == DML_OK ? dml__ps_catch_up(sync, trainer, 0) : status;
}

static void dml__ps_sync_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__ps_sync *sync = (dml__ps_sync *)user;
    dml_ps_close(sync->ps);
    dml__end_strategy(sync, sync->memory, sync->comm);
}

DML_API dml_sync dml_parameter_server_sync(dml_comm *comm, const dml_cluster *cluster,
                                           const dml_ps_options *options)
{
    dml__memory memory;
    dml_sync sync =
        dml__make_strategy(comm, options ? &options->allocator : NULL, sizeof(dml__ps_sync), &memory);
    dml__ps_sync *state = (dml__ps_sync *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->comm = comm;
    state->cluster = dml__cluster_given(cluster);
    if (options) state->options = *options;
    sync.start = dml__ps_sync_start;
    sync.begin = dml__ps_sync_begin;
    sync.update = dml__ps_sync_update;
    sync.gather = dml__ps_sync_gather;
    sync.destroy = dml__ps_sync_destroy;
    sync.ranks = cluster ? cluster->workers : 0;
    sync.rank = cluster ? cluster->rank : 0;
    sync.keeps = true;
    return sync;
}

#endif
