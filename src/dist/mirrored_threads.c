#ifndef DML_DIST_MIRRORED_THREADS_C
#define DML_DIST_MIRRORED_THREADS_C

#include "dist/lent.h"
#include "dist/mirrored_internal.h"

#include <stdio.h>
#include <string.h>

/* A thread a replica, which sleeps until the caller orders something of all of them, and does it on its own
   trainer. Between two orders everything is the caller's: it opens the contexts, looks at the trainers and
   hands out the batch. */

/* ---- a replica's thread ---- */

static dml_status dml__replica_attach(dml__replica *replica)
{
    dml_sync none;
    memset(&none, 0, sizeof none);
    dml_status status = dml_trainer_sync(replica->trainer, none); /* `timed` is the old one's till then */
    if (status == DML_OK && replica->place.nccl)
        status = dml__open_nccl(replica->place.inside, replica->trainer);
    if (status != DML_OK) return status;
    return dml_trainer_sync(replica->trainer,
                            dml__time_sync(&replica->timed, dml__mirrored_sync(&replica->place)));
}

/* The caller may have changed the first's. */
static dml_status dml__replica_take_gradient(dml__replica *replica)
{
    if (!replica->all->sends_gradient) return DML_OK;
    return dml__send_from_first(replica->place.inside, replica->trainer, DML_GRADIENTS);
}

static dml_status dml__replica_backward(dml__replica *replica)
{
    const dml_mirrored *all = replica->all;
    dml_status status = DML_OK;
    replica->timed.seconds = 0;
    if (replica->place.late)
        status = dml__send_from_first(replica->place.inside, replica->trainer, DML_PARAMETERS);
    if (status == DML_OK) status = dml__replica_take_gradient(replica);
    if (status != DML_OK) return status;
    return dml_trainer_backward(replica->trainer, replica->rows, replica->inputs, all->inputs, all->flags,
                                all->wants_loss ? &replica->loss : NULL);
}

/* Whoever waits for this replica, here or in another process, need not any more. */
static void dml__replica_failed(dml__replica *replica)
{
    const char *why = dml_error(replica->context);
    const dml_status status = replica->status;
    replica->own = dml_comm_status(replica->place.inside) == DML_OK;
    snprintf(replica->text, sizeof replica->text, "replica %d (%s): %.440s", replica->index, replica->device,
             *why ? why : dml_status_string(status));
    if (replica->own) dml__end_comm(replica->place.inside, status, replica->text);
    if (replica->place.outside && dml_comm_status(replica->place.outside) == DML_OK)
        dml__end_comm(replica->place.outside, status, dml_comm_error(replica->place.inside));
}

static void dml__replica_obey(dml__replica *replica, dml__order order)
{
    dml_status status = DML_OK;
    if (order == DML__ORDER_LEAVE) {
        dml_trainer_destroy(replica->trainer);
        dml_comm_close(replica->place.inside);
        return;
    }
    if (order == DML__ORDER_ATTACH) status = dml__replica_attach(replica);
    if (order == DML__ORDER_BACKWARD || order == DML__ORDER_STEP) status = dml__replica_backward(replica);
    if (order == DML__ORDER_UPDATE) status = dml__replica_take_gradient(replica);
    if ((order == DML__ORDER_UPDATE || order == DML__ORDER_STEP) && status == DML_OK)
        status = dml_trainer_update(replica->trainer);
    replica->status = status;
    if (status != DML_OK) dml__replica_failed(replica);
}

static void dml__replica_main(void *argument)
{
    dml__replica *replica = (dml__replica *)argument;
    dml_mirrored *all = replica->all;
    unsigned seen = 0;
    dml__order order;
    do {
        dml__mutex_lock(&all->mutex);
        while (all->orders == seen) dml__cond_wait(&all->asked, &all->mutex, -1);
        seen = all->orders;
        order = all->order;
        dml__mutex_unlock(&all->mutex);
        dml__replica_obey(replica, order);
        dml__mutex_lock(&all->mutex);
        if (--all->busy == 0) dml__cond_signal_all(&all->answered);
        dml__mutex_unlock(&all->mutex);
    } while (order != DML__ORDER_LEAVE);
}

/* ---- orders ---- */

static void dml__give_order(dml_mirrored *all, dml__order order)
{
    dml__mutex_lock(&all->mutex);
    all->order = order;
    all->busy = all->started;
    all->orders++;
    dml__cond_signal_all(&all->asked);
    while (all->busy) dml__cond_wait(&all->answered, &all->mutex, -1);
    dml__mutex_unlock(&all->mutex);
}

/* The sentence of the replica that failed by itself; else a communicator has found out who is missing, and
   knows ranks, so the devices are listed. */
static dml_status dml__judge_replicas(dml_mirrored *all)
{
    const dml__replica *blamed = NULL;
    for (int i = all->count - 1; i >= 0; i--) {
        const dml__replica *replica = &all->replica[i];
        if (replica->status != DML_OK && (replica->own || !blamed || !blamed->own)) blamed = replica;
    }
    if (!blamed) return DML_OK;
    all->status = blamed->status;
    int used = snprintf(all->text, sizeof all->text, "%.400s", blamed->text);
    for (int i = 0; i < all->count && !blamed->own && used < (int)sizeof all->text; i++)
        used += snprintf(all->text + used, sizeof all->text - (size_t)used, "%s%s",
                         i ? ", " : "; the ranks are ", all->replica[i].device);
    return dml__fail(&all->context->error, all->status, "%s", all->text);
}

DML__LOCAL dml_status dml__order_all(dml_mirrored *all, dml__order order)
{
    dml__give_order(all, order);
    return dml__judge_replicas(all);
}

/* ---- their beginning and end ---- */

DML__LOCAL dml_status dml__start_replica_threads(dml_mirrored *all)
{
    for (; all->started < all->count; all->started++) {
        dml__replica *replica = &all->replica[all->started];
        if (!dml__thread_start(&replica->thread, dml__replica_main, replica))
            return dml__fail(&all->context->error, DML_ERROR_MEMORY,
                             "no thread can be had for replica %d of %d", all->started, all->count);
    }
    return DML_OK;
}

/* The communicators close together, each in its thread; those without a thread tell the others not to wait.
 */
DML__LOCAL void dml__end_replicas(dml_mirrored *all)
{
    for (int i = all->started; i < all->count; i++)
        if (all->replica[i].place.inside)
            dml__end_comm(all->replica[i].place.inside, DML_ERROR_STATE, "a replica has no thread");
    if (all->started) dml__give_order(all, DML__ORDER_LEAVE);
    for (int i = 0; i < all->count; i++) {
        if (i < all->started)
            dml__thread_join(&all->replica[i].thread);
        else
            dml_comm_close(all->replica[i].place.inside);
    }
}

#endif
