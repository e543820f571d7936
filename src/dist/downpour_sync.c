#ifndef DML_DIST_DOWNPOUR_SYNC_C
#define DML_DIST_DOWNPOUR_SYNC_C

#include "dist/downpour_sync.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/cluster_internal.h"
#include "dist/parameter_server_internal.h"
#include "dist/parameter_server_optimizer.h"
#include "dist/replicas.h"
#include "train/optimizer_internal.h"
#include "train/trainer_internal.h"

#include <string.h>

#define DML__DOWNPOUR_TAG 1 /* of worker 0's word that it is warm */

typedef struct dml__downpour {
    dml__memory memory;
    dml_comm *comm;
    dml_cluster cluster;
    dml_downpour_options options;
    dml_ps *ps;
    float *sum; /* (count): of the gradients since the last push */
    uint64_t steps, unpushed;
    uint64_t taken; /* the servers' updates: before this run, and about as many as all workers' pushes */
    const dml__optimizer_row *row; /* the servers' optimizer */
    int states;
    bool others_wait; /* at worker 0, for the warm start */
    bool follows;     /* the servers' learning rate is the trainer's; */
    double rate;      /* else this */
} dml__downpour;

static dml_status dml__downpour_fetch(dml__downpour *d, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, n);
    if (!w) return dml_status_of(dml_trainer_context(trainer));
    dml_ps_pull(d->ps, w, 0, n);
    if (dml_ps_wait(d->ps, DML_PS_ALL) != DML_OK) return dml__sync_failed(trainer, d->comm);
    return dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
}

/* Worker 0 has trained alone for long enough; the others begin with what it has learnt. */
static dml_status dml__downpour_warm(dml__downpour *d, dml_trainer *trainer)
{
    dml_comm *workers = dml_ps_workers_comm(d->ps);
    uint8_t word = 1;
    if (d->cluster.rank > 0) {
        if (dml_comm_receive(workers, &word, 1, DML_U8, 0, DML__DOWNPOUR_TAG, NULL) != DML_OK)
            return dml__sync_failed(trainer, d->comm);
        return dml__downpour_fetch(d, trainer);
    }
    d->others_wait = false;
    for (int w = 1; w < d->cluster.workers; w++)
        if (dml_comm_send(workers, &word, 1, DML_U8, w, DML__DOWNPOUR_TAG) != DML_OK)
            return dml__sync_failed(trainer, d->comm);
    return DML_OK;
}

/* What a checkpoint has brought of the same optimizer: worker 0's, before any other can push. */
static dml_status dml__downpour_give_state(dml__downpour *d, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    for (int i = 0; i < d->states; i++)
        dml_ps_push_to(d->ps, 1 + i, trainer->away.state + (size_t)i * n, 0, n);
    dml_ps_fence(d->ps);
    return dml_ps_wait(d->ps, DML_PS_ALL) == DML_OK ? DML_OK : dml__sync_failed(trainer, d->comm);
}

/* What all workers need alike, beside what the servers compare. */
static void dml__downpour_list(const dml_downpour_options *o, const dml_optimizer *optimizer,
                               dml__option_list *list)
{
    memset(list, 0, sizeof *list);
    dml__list_number(list, "fetch_every", (double)o->fetch_every);
    dml__list_number(list, "push_every", (double)o->push_every);
    dml__list_number(list, "warm_steps", (double)o->warm_steps);
    dml__list_optimizer(list, "optimizer", optimizer);
}

static dml_status dml__downpour_start(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    const dml_downpour_options *o = &d->options;
    dml_optimizer optimizer = o->optimizer;
    dml_ps_options options;
    dml__option_list list;
    if (optimizer.kind == DML_SGD && optimizer.lr == 0.0f && optimizer.momentum == 0.0f)
        optimizer = dml_adagrad(0);
    d->follows = optimizer.lr == 0.0f;
    if (d->follows) optimizer.lr = dml_trainer_lr(trainer);
    if (dml__complete_optimizer(&optimizer, NULL) != DML_OK || o->fetch_every < 0 || o->push_every < 0 ||
        o->warm_steps < 0) {
        dml__ps_fail(
            d->comm, DML_ERROR_ARGUMENT,
            "Downpour with fetch_every %d, push_every %d, warm_steps %d and an optimizer of learning rate "
            "%g: none may be less than 0, nor may the optimizer's numbers be out of range",
            o->fetch_every, o->push_every, o->warm_steps, (double)optimizer.lr);
        return dml__sync_failed(trainer, d->comm);
    }
    d->rate = (double)optimizer.lr;
    memset(&options, 0, sizeof options);
    options.consistency = DML_PS_ASYNCHRONOUS;
    options.push_dtype = o->push_dtype;
    options.pull_dtype = o->pull_dtype;
    options.threshold = o->threshold;
    options.idle_s = o->idle_s;
    options.allocator = o->allocator;
    d->sum =
        (float *)dml__allocate_array(&d->memory, dml_trainer_count(trainer, DML_GRADIENTS), sizeof(float));
    if (!d->sum) {
        dml__ps_fail(d->comm, DML_ERROR_MEMORY, "no memory for Downpour");
        return dml__sync_failed(trainer, d->comm);
    }
    d->row = dml__optimizer_row_of(optimizer.kind);
    d->states = dml_optimizer_states(&optimizer);
    const bool goes_on = trainer->away.row == d->row && trainer->away.states == d->states;
    d->taken = goes_on ? trainer->away.steps : 0;
    dml_status status = dml__ps_attach(&d->ps, d->comm, &d->cluster, trainer, &optimizer, d->taken, &options);
    if (status == DML_OK && goes_on && d->cluster.rank == 0) status = dml__downpour_give_state(d, trainer);
    if (d->follows) optimizer.lr = 0; /* which worker 0's is only about to be, for all */
    dml__downpour_list(o, &optimizer, &list);
    if (status == DML_OK)
        status = dml__start_replicas(dml_ps_workers_comm(d->ps), trainer, "dml_downpour_sync", &list);
    if (status != DML_OK || !o->warm_steps) return status;
    d->others_wait = d->cluster.rank == 0;
    return d->others_wait ? DML_OK : dml__downpour_warm(d, trainer);
}

static dml_status dml__downpour_push(dml__downpour *d, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_ps_set_rate(d->ps, d->follows ? (double)dml_trainer_lr(trainer) : d->rate);
    dml_ps_push(d->ps, d->sum, 0, n, 1);
    dml_ps_clock(d->ps);
    if (dml_ps_wait(d->ps, DML_PS_ALL) != DML_OK) return dml__sync_failed(trainer, d->comm);
    memset(d->sum, 0, n * sizeof *d->sum);
    d->unpushed = 0;
    d->taken += (uint64_t)d->cluster.workers;
    return DML_OK;
}

/* Whether this step, counted from 1, is one of every so many. */
static bool dml__downpour_due(uint64_t step, int every)
{
    return step % (uint64_t)(every ? every : 1) == 0;
}

static dml_status dml__downpour_update(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    for (size_t i = 0; i < n; i++) d->sum[i] += g[i];
    d->steps++;
    d->unpushed++;
    const bool fetches = dml__downpour_due(d->steps, d->options.fetch_every);
    dml_status status = fetches ? DML_OK : dml_trainer_update_range(trainer, 0, n);
    if (status == DML_OK && dml__downpour_due(d->steps, d->options.push_every))
        status = dml__downpour_push(d, trainer);
    if (status == DML_OK && fetches) status = dml__downpour_fetch(d, trainer);
    if (status == DML_OK && d->others_wait && d->steps >= (uint64_t)d->options.warm_steps)
        status = dml__downpour_warm(d, trainer);
    return status;
}

/* What wasn't pushed yet is; then this worker has what the servers have. */
static dml_status dml__downpour_gather(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = d->unpushed ? dml__downpour_push(d, trainer) : DML_OK;
    dml__away away;
    if (status != DML_OK) return status;
    memset(&away, 0, sizeof away);
    away.row = d->row;
    away.states = d->states;
    away.steps = d->taken;
    if (!dml__away_make(trainer, &away))
        return dml_trainer_fail(trainer, DML_ERROR_MEMORY,
                                "no memory left for the servers' optimizer's state");
    dml__away_put(trainer, &away);
    for (int i = 0; i < away.states; i++) dml_ps_pull_from(d->ps, 1 + i, away.state + (size_t)i * n, 0, n);
    status = dml__downpour_fetch(d, trainer);
    if (status != DML_OK) dml__away_put(trainer, NULL);
    return status;
}

/* What wasn't pushed yet is, and nobody is left waiting. */
static void dml__downpour_destroy(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    if (d->ps && d->unpushed && dml_comm_status(d->comm) == DML_OK) dml__downpour_push(d, trainer);
    if (d->ps && d->others_wait && dml_comm_status(d->comm) == DML_OK) dml__downpour_warm(d, trainer);
    dml_ps_close(d->ps);
    dml__release(&d->memory, d->sum);
    dml__end_strategy(d, d->memory, d->comm);
}

DML_API dml_sync dml_downpour_sync(dml_comm *comm, const dml_cluster *cluster,
                                   const dml_downpour_options *options)
{
    dml__memory memory;
    dml_sync sync =
        dml__make_strategy(comm, options ? &options->allocator : NULL, sizeof(dml__downpour), &memory);
    dml__downpour *state = (dml__downpour *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->comm = comm;
    state->cluster = dml__cluster_given(cluster);
    if (options) state->options = *options;
    sync.start = dml__downpour_start;
    sync.update = dml__downpour_update;
    sync.gather = dml__downpour_gather;
    sync.destroy = dml__downpour_destroy;
    sync.ranks = cluster ? cluster->workers : 0;
    sync.rank = cluster ? cluster->rank : 0;
    sync.keeps = true;
    return sync;
}

#endif
