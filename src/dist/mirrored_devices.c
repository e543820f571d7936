#ifndef DML_DIST_MIRRORED_DEVICES_C
#define DML_DIST_MIRRORED_DEVICES_C

#include "dist/mirrored_internal.h"

#include "base/cpu.h"
#include "graph/clone.h"
#include "graph/node.h"
#include "graph/program.h"
#include "thread/pool.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "cpu" or "cpu*3": how many threads, 0 for any; -1: another device. */
static int dml__cpu_threads(const char *device)
{
    char *end;
    if (strcmp(device, "cpu") == 0 || strcmp(device, "cpu:0") == 0) return 0;
    if (strncmp(device, "cpu*", 4) != 0) return -1;
    const long threads = strtol(device + 4, &end, 10);
    return end != device + 4 && !*end && threads >= 1 && threads <= DML_POOL_MOST ? (int)threads : -1;
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
        if (threads < 0 && strncmp(device, "cpu*", 4) == 0)
            return dml__fail(
                &all->context->error, DML_ERROR_ARGUMENT,
                "device %d of %d is '%s': behind the * stands how many threads it takes, a whole "
                "number from 1 to %d",
                i + 1, all->count, device, DML_POOL_MOST);
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
    options.allow_tf32 = all->context->device.allow_tf32;
    options.allocator = all->options.allocator;
    options.pin = -1; /* pools pin to the first processors, all to the same */
    replica->context = dml_open(&options);
    if (dml_status_of(replica->context) != DML_OK)
        return dml__fail(&all->context->error, dml_status_of(replica->context), "replica %d: %s", i,
                         dml_error(replica->context));
    const dml_device *device = &replica->context->device;
    if (!device->host_memory)
        snprintf(replica->device, sizeof replica->device, "%s:%d", device->backend->name, device->index);
    if (all->options.cross_device == DML_CROSS_NCCL && !device->backend->lend)
        return dml__fail(&all->context->error, DML_ERROR_UNSUPPORTED,
                         "cross_device NCCL, but device %d of %d is %s, which is no card of NVIDIA's", i + 1,
                         all->count, replica->device);
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

DML__LOCAL dml_status dml__open_replicas(dml_mirrored *all, const dml_node *loss, const char *const *devices)
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

#endif
