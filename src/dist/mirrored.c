#ifndef DML_DIST_MIRRORED_C
#define DML_DIST_MIRRORED_C

#include "dist/mirrored.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/os_thread.h"
#include "comm/job.h"
#include "dist/mirrored_clock.h"
#include "dist/mirrored_share.h"
#include "dist/mirrored_sync.h"
#include "graph/clone.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A thread a replica, which sleeps until the caller orders something of all of them, and does it on its own
   trainer. Between two orders everything is the caller's: it opens the contexts, looks at the trainers and
   hands out the batch. */

#define DML__MOST_REPLICAS 64
#define DML__MOST_PARTS 64 /* inputs of which a replica gets its part */
/* Another division of the batch must promise this much, or noise would move samples about. */
#define DML__SHARE_GAIN 1.05

typedef enum dml__order {
    DML__ORDER_ATTACH,
    DML__ORDER_BACKWARD,
    DML__ORDER_UPDATE,
    DML__ORDER_STEP,
    DML__ORDER_LEAVE
} dml__order;

typedef struct dml__replica {
    dml_mirrored *all;
    int index, threads;
    char device[48];
    dml_context *context;
    dml_trainer *trainer;
    dml__mirrored_place place;
    dml__timed_sync timed;
    dml__thread thread;
    /* The last order, and what came of it. */
    const void *inputs[DML__MOST_PARTS];
    int rows;
    float loss;
    dml_status status;
    bool own; /* the failure began here */
    char text[512];
} dml__replica;

struct dml_mirrored {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_graph *graph;
    dml_mirrored_options options;
    int count, started; /* replicas; those that have a thread */
    int inputs;
    dml__replica *replica;           /* (count) */
    dml__speed *speed;               /* (count) */
    int *most, *share, *other_share; /* (count): samples of each; a division that may be better */
    int shared_rows;                 /* what `share` divides; -1: nothing yet */
    dml_comm *outside_sums;
    bool holds, pending; /* the gradient of samples of all replicas; samples that wait for more */
    dml_status status;   /* not DML_OK: the replicas differ */
    char text[512];
    bool locks;
    dml__mutex mutex; /* of what follows */
    dml__cond asked, answered;
    dml__order order;
    unsigned orders; /* given so far */
    int busy;        /* replicas that haven't obeyed the last one */
    /* Of a pass. */
    int flags;
    bool wants_loss, sends_gradient;
};

/* ---- a replica's thread ---- */

static dml_status dml__replica_attach(dml__replica *replica)
{
    dml_sync none;
    memset(&none, 0, sizeof none);
    const dml_status status =
        dml_trainer_sync(replica->trainer, none); /* `timed` is the old one's till then */
    if (status != DML_OK) return status;
    return dml_trainer_sync(replica->trainer,
                            dml__time_sync(&replica->timed, dml__mirrored_sync(&replica->place)));
}

static dml_status dml__replica_backward(dml__replica *replica)
{
    const dml_mirrored *all = replica->all;
    dml_comm *inside = replica->place.inside;
    dml_status status = DML_OK;
    replica->timed.seconds = 0;
    if (replica->place.late) status = dml__send_from_first(inside, replica->trainer, DML_PARAMETERS);
    if (status == DML_OK && all->sends_gradient)
        status = dml__send_from_first(inside, replica->trainer, DML_GRADIENTS);
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

static dml_status dml__mirrored_fail(dml_mirrored *all, dml_status status, const char *text)
{
    return dml__fail(&all->context->error, status, "%s", text);
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
    return dml__mirrored_fail(all, all->status, all->text);
}

static dml_status dml__order_all(dml_mirrored *all, dml__order order)
{
    dml__give_order(all, order);
    return dml__judge_replicas(all);
}

/* What one trainer would refuse is refused before any replica moves, since those that did would differ from
   the rest. */
static dml_status dml__check_replicas(dml_mirrored *all)
{
    dml__error *error = &all->context->error;
    if (error->status != DML_OK) return error->status;
    if (all->status != DML_OK) return dml__mirrored_fail(all, all->status, all->text);
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (dml_status_of(replica->context) != DML_OK)
            return dml__fail(error, dml_status_of(replica->context), "replica %d (%s) has an error: %s", i,
                             replica->device, dml_error(replica->context));
        if (replica->trainer->swapped)
            return dml__fail(error, DML_ERROR_STATE,
                             "replica %d (%s) has the parameters' average in their place; call "
                             "dml_trainer_swap_average again first",
                             i, replica->device);
    }
    return DML_OK;
}

/* One thread at a time; the context of the loss is what it is kept from others by. */
static dml_status dml__enter_mirrored(dml_mirrored *all, dml__entry *entry)
{
    *entry = dml__enter(all->context);
    if (*entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__check_replicas(all);
    if (status != DML_OK) dml__leave(all->context, *entry);
    return status;
}

/* ---- the batch ---- */

static void dml__share_out(dml_mirrored *all, int rows)
{
    const dml__speed *speed = all->options.even ? NULL : all->speed;
    dml__share_rows(rows, all->count, speed, all->most, all->other_share);
    const bool same = rows == all->shared_rows &&
                      dml__share_seconds(all->count, all->speed, all->share) <=
                          DML__SHARE_GAIN * dml__share_seconds(all->count, all->speed, all->other_share);
    if (!same) memcpy(all->share, all->other_share, (size_t)all->count * sizeof *all->share);
    all->shared_rows = rows;
}

/* What a replica's context says of its part of the batch. */
static dml_status dml__check_part(dml_mirrored *all, dml__replica *replica, int rows,
                                  const void *const *inputs, int count, int first_row)
{
    char behind[64] = "";
    const dml_status status = dml__program_check(replica->trainer->program, rows, inputs, count);
    if (status == DML_OK) return DML_OK;
    if (first_row > 0)
        snprintf(behind, sizeof behind, "; the first of these samples is number %d", first_row);
    dml__fail(&all->context->error, status, "%.420s%s", dml_error(replica->context), behind);
    dml_clear_error(replica->context);
    return status;
}

static dml_status dml__hand_out(dml_mirrored *all, int rows, const void *const *inputs, int count)
{
    const int most = all->options.trainer.batch, least = all->options.comm ? 0 : 1;
    if (rows < least || rows > most)
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "a step of %d samples asked for; these replicas take %d to %d together", rows, least,
                         most);
    dml__share_out(all, rows);
    dml_status status = DML_OK;
    if (rows) /* the number of inputs, and what they all are, once */
        status = dml__check_part(all, &all->replica[0], all->share[0] ? all->share[0] : 1, inputs, count, 0);
    for (int i = 0, row = 0; i < all->count && status == DML_OK; i++) {
        dml__replica *replica = &all->replica[i];
        replica->rows = all->share[i];
        for (int k = 0; k < all->inputs && replica->rows; k++) {
            const dml_node *input = replica->trainer->program->input[k];
            const size_t sample = dml_shape_count(&input->shape) * dml_dtype_size(input->dtype);
            replica->inputs[k] = (const char *)inputs[k] + (size_t)row * sample;
        }
        if (i > 0 && replica->rows)
            status = dml__check_part(all, replica, replica->rows, replica->inputs, all->inputs, row);
        row += replica->rows;
    }
    return status;
}

static float dml__mean_loss(const dml_mirrored *all)
{
    double sum = 0, rows = 0;
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (!replica->rows) continue;
        sum += (double)replica->loss * replica->rows;
        rows += replica->rows;
    }
    return rows > 0 ? (float)(sum / rows) : 0.0f;
}

static dml_status dml__mirrored_pass(dml_mirrored *all, dml__order order, int rows, const void *const *inputs,
                                     int count, int flags, float *loss)
{
    if (flags & ~(DML_ADD | DML_MORE))
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "backward was given flags %d; there are DML_ADD and DML_MORE", flags);
    dml_status status = dml__hand_out(all, rows, inputs, count);
    if (status != DML_OK) return status;
    all->flags = flags;
    all->wants_loss = loss != NULL;
    all->sends_gradient = all->replica[0].place.central && all->holds && (flags & DML_ADD);
    status = dml__order_all(all, order);
    if (status != DML_OK) return status;
    for (int i = 0; i < all->count; i++)
        dml__speed_note(&all->speed[i], all->replica[i].rows, all->replica[i].timed.seconds);
    all->pending = (flags & DML_MORE) != 0;
    all->holds = !all->pending && order != DML__ORDER_STEP;
    if (loss) *loss = dml__mean_loss(all);
    return DML_OK;
}

/* ---- the calls ---- */

DML_API dml_status dml_mirrored_step(dml_mirrored *mirrored, int rows, const void *const *inputs, int count,
                                     float *loss)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__mirrored_pass(mirrored, DML__ORDER_STEP, rows, inputs, count, DML_OVERWRITE, loss);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_backward(dml_mirrored *mirrored, int rows, const void *const *inputs,
                                         int count, int flags, float *loss)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__mirrored_pass(mirrored, DML__ORDER_BACKWARD, rows, inputs, count, flags, loss);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_update(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    if (mirrored->pending)
        status = dml__fail(&mirrored->context->error, DML_ERROR_STATE,
                           "an update while the gradient waits for more: the last backward before it comes "
                           "without DML_MORE");
    else
        status = dml__order_all(mirrored, DML__ORDER_UPDATE);
    mirrored->holds = mirrored->holds && status != DML_OK;
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_spread(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    mirrored->holds = mirrored->pending = false;
    status = dml__order_all(mirrored, DML__ORDER_ATTACH);
    dml__leave(mirrored->context, entry);
    return status;
}

static dml_status dml__copy_back(dml_mirrored *all)
{
    const dml_graph *from = all->replica[0].trainer->program->graph;
    dml_status status = DML_OK;
    for (dml_node *p = from->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        dml_node *to = dml_graph_find(all->graph, p->name);
        const float *values = dml_graph_get(p->graph, p->offset, p->offset + count);
        if (!to) return dml_status_of(all->context);
        if (!values) return dml__mirrored_fail(all, dml_status_of(from->context), dml_error(from->context));
        status = dml_parameter_write(to, values, count);
    }
    return status;
}

DML_API dml_status dml_mirrored_copy_back(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__copy_back(mirrored);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_trainer *dml_mirrored_trainer(dml_mirrored *mirrored, int i)
{
    return mirrored && i >= 0 && i < mirrored->count ? mirrored->replica[i].trainer : NULL;
}

DML_API int dml_mirrored_replicas(const dml_mirrored *mirrored)
{
    return mirrored ? mirrored->count : 0;
}

DML_API dml_replica_report dml_mirrored_report(const dml_mirrored *mirrored, int i)
{
    dml_replica_report report;
    memset(&report, 0, sizeof report);
    if (!mirrored || i < 0 || i >= mirrored->count) return report;
    const dml__replica *replica = &mirrored->replica[i];
    report.device = replica->device;
    report.threads = replica->threads;
    report.rows = replica->rows;
    report.seconds = replica->timed.seconds;
    dml__speed_line(&mirrored->speed[i], &report.fixed_s, &report.each_s);
    return report;
}

/* ---- opening ---- */

/* "cpu" or "cpu*3": how many threads, 0 for any; -1: another device. */
static int dml__cpu_threads(const char *device)
{
    char *end;
    if (strcmp(device, "cpu") == 0 || strcmp(device, "cpu:0") == 0) return 0;
    if (strncmp(device, "cpu*", 4) != 0) return -1;
    const long threads = strtol(device + 4, &end, 10);
    return end != device + 4 && !*end && threads >= 1 && threads <= 4096 ? (int)threads : -1;
}

/* What a replica's context is opened with. A device that isn't the CPU needs one thread, which launches. */
static dml_status dml__name_devices(dml_mirrored *all, const char *const *devices)
{
    int left = dml_cpu_share(), sharers = 0;
    for (int i = 0; i < all->count; i++) {
        dml__replica *replica = &all->replica[i];
        dml_device_info best;
        const char *device = devices[i];
        if (!device)
            return dml__fail(&all->context->error, DML_ERROR_ARGUMENT, "device %d of %d is NULL", i + 1,
                             all->count);
        if (strcmp(device, "auto") == 0) {
            dml_devices(&best, 1);
            device = best.id;
        }
        const int threads = dml__cpu_threads(device);
        snprintf(replica->device, sizeof replica->device, "%s", threads >= 0 ? "cpu" : device);
        replica->threads = threads < 0 ? 1 : threads;
        if (threads == 0) sharers++;
        if (threads > 0) left -= threads;
    }
    for (int i = 0; i < all->count; i++) {
        dml__replica *replica = &all->replica[i];
        if (replica->threads) continue;
        const int part = left > 0 ? left / sharers : 0;
        replica->threads = part > 1 ? part : 1;
        left -= part;
        sharers--;
    }
    return DML_OK;
}

static dml_status dml__check_listed_once(dml_mirrored *all, int i)
{
    const dml_device *device = &all->replica[i].context->device;
    for (int j = 0; j < i && !device->host_memory; j++) {
        const dml_device *other = &all->replica[j].context->device;
        if (other->backend == device->backend && other->index == device->index)
            return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                             "devices %d and %d are both %s:%d; only the CPU may be listed more than once",
                             j + 1, i + 1, device->backend->name, device->index);
    }
    return DML_OK;
}

static dml_status dml__open_replica(dml_mirrored *all, int i)
{
    dml__replica *replica = &all->replica[i];
    dml_options options;
    memset(&options, 0, sizeof options);
    options.device = replica->device;
    options.threads = replica->threads;
    options.seed = all->context->seed;
    options.allocator = all->options.allocator;
    options.pin = -1; /* pools pin to the first processors, all to the same */
    replica->context = dml_open(&options);
    if (dml_status_of(replica->context) != DML_OK)
        return dml__fail(&all->context->error, dml_status_of(replica->context), "replica %d: %s", i,
                         dml_error(replica->context));
    const dml_device *device = &replica->context->device;
    if (!device->host_memory)
        snprintf(replica->device, sizeof replica->device, "%s:%d", device->backend->name, device->index);
    return dml__check_listed_once(all, i);
}

/* Those that receive w need nothing of an update's. */
static dml_trainer_options dml__replica_options(const dml_mirrored *all, int i)
{
    dml_trainer_options options = all->options.trainer;
    options.batch = all->most[i];
    if (all->options.placement == DML_PLACE_MIRRORED || i == 0) return options;
    options.optimizer = dml_sgd(0.01f, 0);
    options.clip_norm = options.clip_value = options.average = 0;
    memset(&options.schedule, 0, sizeof options.schedule);
    return options;
}

static dml_status dml__build_replica(dml_mirrored *all, const dml_node *loss, int i)
{
    dml__replica *replica = &all->replica[i];
    const dml_trainer_options options = dml__replica_options(all, i);
    dml_graph *graph = dml_graph_clone(all->graph, replica->context);
    if (graph) replica->trainer = dml_trainer_create(dml_graph_find(graph, loss->name), &options);
    if (replica->trainer) return DML_OK;
    return dml__fail(&all->context->error, dml_status_of(replica->context), "replica %d (%s): %s", i,
                     replica->device, dml_error(replica->context));
}

/* How many samples each has memory for. */
static dml_status dml__set_most(dml_mirrored *all)
{
    const dml_mirrored_options *options = &all->options;
    const int batch = options->trainer.batch, n = all->count;
    const int even = batch / n + (batch % n != 0);
    int most = options->most_rows;
    if (most == 0) most = options->even ? even : batch - even < even ? batch : 2 * even;
    if (most < even)
        return dml__fail(
            &all->context->error, DML_ERROR_ARGUMENT,
            "most_rows %d asked for, but %d replicas must have room for a batch of %d: %d or more",
            options->most_rows, n, batch, even);
    for (int i = 0; i < n; i++) all->most[i] = most < batch ? most : batch;
    return DML_OK;
}

static dml_status dml__open_replicas(dml_mirrored *all, const dml_node *loss, const char *const *devices)
{
    dml_status status = dml__name_devices(all, devices);
    if (status == DML_OK) status = dml__set_most(all);
    for (int i = 0; i < all->count && status == DML_OK; i++) status = dml__open_replica(all, i);
    for (int i = 0; i < all->count && status == DML_OK; i++) status = dml__build_replica(all, loss, i);
    if (status != DML_OK) return status;
    all->inputs = dml_program_inputs(all->replica[0].trainer->program);
    if (all->inputs <= DML__MOST_PARTS) return DML_OK;
    return dml__fail(&all->context->error, DML_ERROR_UNSUPPORTED, "%d inputs; replicas take at most %d",
                     all->inputs, DML__MOST_PARTS);
}

/* Replicas of all processes are numbered process by process. */
static dml_status dml__join_processes(dml_mirrored *all)
{
    dml_comm *comm = all->options.comm;
    const int world = comm ? dml_comm_world_size(comm) : 1;
    const int64_t mine = all->count;
    int64_t before = 0, ranks = mine;
    if (comm) {
        int64_t *counts =
            (int64_t *)dml__allocate_array(&all->context->memory, (size_t)world, sizeof *counts);
        if (!counts)
            return dml__fail(&all->context->error, DML_ERROR_MEMORY, "no memory left for %d ranks", world);
        dml_status status = dml_comm_all_gather(comm, &mine, 1, DML_I64, counts);
        if (status == DML_OK && world > 1) {
            all->outside_sums = dml_comm_split(comm, 0, 0);
            status = dml_comm_status(comm);
        }
        ranks = 0;
        for (int r = 0; r < world && status == DML_OK; r++) {
            if (r < dml_comm_rank(comm)) before += counts[r];
            ranks += counts[r];
        }
        dml__release(&all->context->memory, counts);
        if (status != DML_OK) return dml__mirrored_fail(all, status, dml_comm_error(comm));
    }
    for (int i = 0; i < all->count; i++) {
        dml__mirrored_place *place = &all->replica[i].place;
        place->outside = i == 0 && world > 1 ? comm : NULL;
        place->outside_sums = i == 0 ? all->outside_sums : NULL;
        place->processes = world > 1;
        place->central = all->options.placement != DML_PLACE_MIRRORED;
        place->late = all->options.placement == DML_PLACE_EACH_STEP;
        place->ranks = (int)ranks;
        place->rank = (int)before + i;
        place->bucket_bytes = all->options.bucket_bytes;
        place->allocator = all->options.allocator;
    }
    return DML_OK;
}

static dml_status dml__open_inside(dml_mirrored *all)
{
    static const char *const algorithms[] = { NULL, "all_reduce=ring,reduce=ring,broadcast=chain",
                                              "all_reduce=tree,reduce=binomial,broadcast=binomial",
                                              "all_reduce=master_worker,reduce=direct,broadcast=direct" };
    dml_comm *comms[DML__MOST_REPLICAS];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.algorithm = algorithms[all->options.cross_device];
    options.timeout_s = all->options.timeout_s;
    if (all->options.comm && options.timeout_s == 0) options.timeout_s = 2 * all->options.comm->job->timeout;
    options.allocator = all->options.allocator;
    options.engine = "dml";
    options.trace = ""; /* the job's has the same file names */
    const dml_status status = dml_comm_open_local(comms, all->count, &options);
    for (int i = 0; i < all->count && status == DML_OK; i++) all->replica[i].place.inside = comms[i];
    if (status == DML_OK) return DML_OK;
    return dml__fail(&all->context->error, status,
                     status == DML_ERROR_MEMORY ? "no memory left for a communicator of %d replicas"
                                                : "no communicator of %d replicas can be had: their timeout "
                                                  "and the environment's DML_ settings must make sense",
                     all->count);
}

static dml_status dml__start_threads(dml_mirrored *all)
{
    for (; all->started < all->count; all->started++) {
        dml__replica *replica = &all->replica[all->started];
        if (!dml__thread_start(&replica->thread, dml__replica_main, replica))
            return dml__fail(&all->context->error, DML_ERROR_MEMORY,
                             "no thread can be had for replica %d of %d", all->started, all->count);
    }
    return DML_OK;
}

/* ---- creating and destroying ---- */

/* The communicators close together, each in its thread; those without a thread tell the others not to wait.
 */
static void dml__end_replicas(dml_mirrored *all)
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

static void dml__mirrored_destroy_owned(dml__owned *owned)
{
    dml_mirrored *all = (dml_mirrored *)(void *)owned;
    dml__memory *memory = &all->context->memory;
    dml__disown(all->context, owned);
    all->graph->programs--;
    if (all->replica) dml__end_replicas(all);
    for (int i = 0; all->replica && i < all->count; i++) dml_close(all->replica[i].context);
    if (all->outside_sums) dml_comm_close(all->outside_sums);
    if (all->locks) {
        dml__cond_destroy(&all->answered);
        dml__cond_destroy(&all->asked);
        dml__mutex_destroy(&all->mutex);
    }
    dml__release(memory, all->other_share);
    dml__release(memory, all->share);
    dml__release(memory, all->most);
    dml__release(memory, all->speed);
    dml__release(memory, all->replica);
    dml__release(memory, all);
}

DML_API void dml_mirrored_destroy(dml_mirrored *mirrored)
{
    if (mirrored) dml__mirrored_destroy_owned(&mirrored->owned);
}

static bool dml__make_locks(dml_mirrored *all)
{
    if (!dml__mutex_init(&all->mutex)) return false;
    all->locks = dml__cond_init(&all->asked);
    if (all->locks && !dml__cond_init(&all->answered)) {
        dml__cond_destroy(&all->asked);
        all->locks = false;
    }
    if (!all->locks) dml__mutex_destroy(&all->mutex);
    return all->locks;
}

static dml_status dml__mirrored_allocate(dml_mirrored *all)
{
    dml__memory *memory = &all->context->memory;
    const size_t n = (size_t)all->count;
    all->replica = (dml__replica *)dml__allocate_array(memory, n, sizeof *all->replica);
    all->speed = (dml__speed *)dml__allocate_array(memory, n, sizeof *all->speed);
    all->most = (int *)dml__allocate_array(memory, n, sizeof(int));
    all->share = (int *)dml__allocate_array(memory, n, sizeof(int));
    all->other_share = (int *)dml__allocate_array(memory, n, sizeof(int));
    if (!all->replica || !all->speed || !all->most || !all->share || !all->other_share ||
        !dml__make_locks(all))
        return dml__fail(&all->context->error, DML_ERROR_MEMORY, "no memory left for %d replicas",
                         all->count);
    for (int i = 0; i < all->count; i++) {
        all->replica[i].all = all;
        all->replica[i].index = i;
    }
    return DML_OK;
}

static dml_status dml__check_mirrored(dml_context *context, const char *const *devices, int count,
                                      const dml_mirrored_options *options)
{
    dml__error *error = &context->error;
    if (error->status != DML_OK) return error->status;
#ifdef DML_NO_THREADS
    return dml__fail(error, DML_ERROR_UNSUPPORTED, "replicas need threads, and this is built without");
#endif
    if (!devices) return dml__fail_null(error, "dml_mirrored_create", "devices");
    if (!options) return dml__fail_null(error, "dml_mirrored_create", "options: there is no default batch");
    if (count < 1 || count > DML__MOST_REPLICAS)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%d devices given; 1 to %d are possible", count,
                         DML__MOST_REPLICAS);
    if ((unsigned)options->placement > DML_PLACE_EACH_STEP)
        return dml__fail(error, DML_ERROR_ARGUMENT, "there is no placement %d", (int)options->placement);
    if ((unsigned)options->cross_device > DML_CROSS_ONE_DEVICE)
        return dml__fail(error, DML_ERROR_ARGUMENT, "there is no cross_device %d",
                         (int)options->cross_device);
    if (options->trainer.batch < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a batch of %d asked for; it must be 1 or more",
                         options->trainer.batch);
    if (options->comm && dml_comm_status(options->comm))
        return dml__fail(error, dml_comm_status(options->comm), "%s", dml_comm_error(options->comm));
    return DML_OK;
}

static dml_mirrored *dml__mirrored_create_in(dml_node *loss, const char *const *devices, int count,
                                             const dml_mirrored_options *options)
{
    dml_context *context = loss->graph->context;
    if (dml__check_mirrored(context, devices, count, options) != DML_OK) return NULL;
    dml_mirrored *all = (dml_mirrored *)dml__allocate(&context->memory, sizeof *all);
    if (!all) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for replicas");
        return NULL;
    }
    all->context = context;
    all->graph = loss->graph;
    all->options = *options;
    all->count = count;
    all->shared_rows = -1;
    all->graph->programs++;
    dml__own(context, &all->owned, dml__mirrored_destroy_owned);
    dml_status status = dml__mirrored_allocate(all);
    if (status == DML_OK) status = dml__open_replicas(all, loss, devices);
    if (status == DML_OK) status = dml__join_processes(all);
    if (status == DML_OK) status = dml__open_inside(all);
    if (status == DML_OK) status = dml__start_threads(all);
    if (status == DML_OK) status = dml__order_all(all, DML__ORDER_ATTACH);
    if (status == DML_OK) return all;
    dml_mirrored_destroy(all);
    return NULL;
}

DML_API dml_mirrored *dml_mirrored_create(dml_node *loss, const char *const *devices, int count,
                                          const dml_mirrored_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_mirrored *mirrored = dml__mirrored_create_in(loss, devices, count, options);
    dml__leave(context, entry);
    return mirrored;
}

#endif
