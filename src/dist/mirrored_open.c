#ifndef DML_DIST_MIRRORED_OPEN_C
#define DML_DIST_MIRRORED_OPEN_C

#include "dist/mirrored_internal.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/same_strategy.h"
#include "graph/node.h"
#include "train/trainer_internal.h"

#include <string.h>

#define DML__MOST_REPLICAS 64

/* ---- their communicators ---- */

/* Replicas of all processes are numbered process by process. */
static dml_status dml__join_processes(dml_mirrored *all)
{
    dml_comm *comm = all->options.comm;
    const int world = comm ? dml_comm_world_size(comm) : 1;
    const int64_t mine = all->count;
    int64_t before = 0, ranks = mine;
    if (comm) {
        char sentence[DML__SAME_STRATEGY_BYTES];
        dml_status status = dml__same_strategy(comm, "dml_mirrored", sentence);
        if (status != DML_OK)
            return dml__fail(&all->context->error, status, "%s",
                             sentence[0] ? sentence : dml_comm_error(comm));
        int64_t *counts =
            (int64_t *)dml__allocate_array(&all->context->memory, (size_t)world, sizeof *counts);
        if (!counts)
            return dml__fail(&all->context->error, DML_ERROR_MEMORY, "no memory left for %d ranks", world);
        status = dml_comm_all_gather(comm, &mine, 1, DML_I64, counts);
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
        if (status != DML_OK) return dml__fail(&all->context->error, status, "%s", dml_comm_error(comm));
    }
    for (int i = 0; i < all->count; i++) {
        dml__mirrored_place *place = &all->replica[i].place;
        place->outside = i == 0 && world > 1 ? comm : NULL;
        place->outside_sums = i == 0 ? all->outside_sums : NULL;
        place->processes = world > 1;
        place->central = all->options.placement != DML_PLACE_MIRRORED;
        place->nccl = all->options.cross_device == DML_CROSS_NCCL;
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
                                              "all_reduce=master_worker,reduce=direct,broadcast=direct",
                                              NULL };
    dml_comm *comms[DML__MOST_REPLICAS];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.algorithm = algorithms[all->options.cross_device];
    options.timeout_s = all->options.timeout_s;
    if (all->options.comm && options.timeout_s == 0) options.timeout_s = 2 * all->options.comm->job->timeout;
    options.allocator = all->options.allocator;
    options.engine = "dml";
    options.trace = ""; /* the job's has the same file names */
    dml__error error;
    memset(&error, 0, sizeof error);
    const dml_status status = dml__comm_open_local(comms, all->count, &options, &error);
    for (int i = 0; i < all->count && status == DML_OK; i++) all->replica[i].place.inside = comms[i];
    if (status == DML_OK) return DML_OK;
    return dml__fail(&all->context->error, status, "no communicator of %d replicas can be had: %.400s",
                     all->count, error.text);
}

/* ---- creating and destroying ---- */

static void dml__mirrored_destroy_owned(dml__owned *owned)
{
    dml_mirrored *all = (dml_mirrored *)(void *)owned;
    dml__memory *memory = &all->context->memory;
    dml__disown(all->context, owned);
    all->graph->programs--;
    if (all->replica) dml__end_replicas(all);
    for (int i = 0; all->replica && i < all->count; i++) dml_close(all->replica[i].context);
    if (all->outside_sums) dml_comm_close(all->outside_sums);
    dml__comm_let_go(all->options.comm);
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

/* What NCCL can't do, but for devices that are none of NVIDIA's. */
static dml_status dml__check_cross_nccl(dml__error *error, const dml_mirrored_options *options)
{
    if (options->cross_device != DML_CROSS_NCCL) return DML_OK;
#ifndef DML_NCCL
    return dml__fail(error, DML_ERROR_UNSUPPORTED,
                     "cross_device NCCL, but dml_comm.h was compiled without -DDML_NCCL");
#endif
    if (options->comm)
        return dml__fail(error, DML_ERROR_UNSUPPORTED,
                         "cross_device NCCL is for the replicas of one process; in several, give each card a "
                         "rank with a trainer and dml_all_reduce_sync over engine \"nccl\"");
    if (options->placement != DML_PLACE_MIRRORED)
        return dml__fail(
            error, DML_ERROR_UNSUPPORTED,
            "cross_device NCCL is for parameters on each device, and placement %d keeps them on one",
            (int)options->placement);
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
    if ((unsigned)options->cross_device > DML_CROSS_NCCL)
        return dml__fail(error, DML_ERROR_ARGUMENT, "there is no cross_device %d",
                         (int)options->cross_device);
    if (options->trainer.batch < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a batch of %d asked for; it must be 1 or more",
                         options->trainer.batch);
    if (options->trainer.watch_count)
        return dml__fail(error, DML_ERROR_UNSUPPORTED,
                         "%d nodes to watch were named: each replica has nodes of its own, which it doesn't "
                         "keep",
                         options->trainer.watch_count);
    if (options->comm && dml_comm_status(options->comm))
        return dml__fail(error, dml_comm_status(options->comm), "%s", dml_comm_error(options->comm));
    return dml__check_cross_nccl(error, options);
}

static dml_mirrored *dml__mirrored_create_in(dml_node *loss, const char *const *devices, int count,
                                             const dml_mirrored_options *options)
{
    dml_context *context = loss->graph->context;
    if (dml__check_mirrored(context, devices, count, options) != DML_OK) return NULL;
    if (dml__graph_cuts(loss->graph)) {
        dml__fail(&context->error, DML_ERROR_UNSUPPORTED,
                  "replicas asked for, of a model that is cut over %d ranks: each rank has one device",
                  dml__graph_cuts(loss->graph));
        return NULL;
    }
    dml_mirrored *all = (dml_mirrored *)dml__allocate(&context->memory, sizeof *all);
    if (!all) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for replicas");
        return NULL;
    }
    all->context = context;
    all->graph = loss->graph;
    all->options = *options;
    dml__comm_keep(options->comm);
    all->count = count;
    all->shared_rows = -1;
    all->graph->programs++;
    dml__own(context, &all->owned, dml__mirrored_destroy_owned);
    dml_status status = dml__mirrored_allocate(all);
    if (status == DML_OK) status = dml__open_replicas(all, loss, devices);
    if (status == DML_OK) status = dml__join_processes(all);
    if (status == DML_OK) status = dml__open_inside(all);
    if (status == DML_OK) status = dml__start_replica_threads(all);
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
