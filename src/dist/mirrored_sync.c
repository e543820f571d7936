#ifndef DML_DIST_MIRRORED_SYNC_C
#define DML_DIST_MIRRORED_SYNC_C

#include "dist/mirrored_sync.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/all_reduce_sync.h"
#include "dist/buckets.h"
#include "dist/replicas.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <string.h>

/* What goes by way of the first replica: buckets of gradients are reduced to it while backward runs, summed
   there over the processes, and spread again; or it alone updates w. Every replica starts the same
   collectives in the same order on the communicator inside: those of a bucket when it is full, whatever comes
   back in `finish`, in the buckets' order. The first one moves a bucket on to the other processes as soon as
   it has it, also in order, the number of samples before all buckets. */

#define DML__FIRST_BUCKETS 64

typedef struct dml__first_bucket {
    size_t begin, end; /* of g, in elements */
    dml_request *inside, *outside;
} dml__first_bucket;

typedef struct dml__first_state {
    dml__memory memory;
    dml__mirrored_place place;
    bool first;
    dml__filling filling;
    double samples; /* this replica's, then those inside, then over all processes */
    dml_request *samples_inside;
    dml__roll_call call; /* of the processes */
    int buckets, gone;   /* that were started inside; that have gone on outside */
    bool samples_gone;
    dml__first_bucket bucket[DML__FIRST_BUCKETS];
} dml__first_state;

static dml_status dml__inside_failed(const dml__first_state *state, dml_trainer *trainer)
{
    return dml__sync_failed(trainer, state->place.inside);
}

static dml_status dml__wait_first(dml_comm *comm, dml_request **request)
{
    dml_request *waiting = *request;
    *request = NULL;
    return waiting ? dml_comm_wait(comm, waiting) : DML_OK;
}

DML__LOCAL void dml__end_comm(dml_comm *comm, dml_status status, const char *text)
{
    dml__enter_job(comm->job);
    dml__job_fail(comm->job, comm->job->rank, status, "%s", text);
    dml__leave_job(comm->job);
}

/* ---- the start ---- */

static dml_status dml__send_range_from_first(dml_comm *inside, dml_trainer *trainer, int vector, size_t count)
{
    const bool first = dml_comm_rank(inside) == 0;
    float *data = (first ? dml_trainer_get : dml_trainer_host)(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_broadcast(inside, data, count, DML_F32, 0) != DML_OK)
        return dml__sync_failed(trainer, inside);
    return first ? DML_OK : dml_trainer_put(trainer, vector, 0, count);
}

DML__LOCAL dml_status dml__send_from_first(dml_comm *inside, dml_trainer *trainer, int vector)
{
    return dml__send_range_from_first(inside, trainer, vector, dml_trainer_count(trainer, vector));
}

/* The others keep no optimizer's state, so of the first's run they get all but the optimizer. */
static dml_status dml__follow_run(dml__first_state *state, dml_trainer *trainer)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    int64_t whole[4] = { (int64_t)run.seed, (int64_t)run.steps, (int64_t)run.scaled_steps,
                         (int64_t)run.skipped };
    dml__begin_sum_unit(trainer, dml_comm_world_size(state->place.inside));
    float scale[2] = { run.loss_scale, trainer->sum_unit };
    if (dml_comm_broadcast(state->place.inside, whole, 4, DML_I64, 0) != DML_OK ||
        dml_comm_broadcast(state->place.inside, scale, 2, DML_F32, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    run.seed = (uint64_t)whole[0];
    run.steps = (uint64_t)whole[1];
    run.scaled_steps = (uint64_t)whole[2];
    run.skipped = (uint64_t)whole[3];
    run.loss_scale = scale[0];
    trainer->sum_unit = scale[1];
    return state->first ? DML_OK : dml_trainer_set_run(trainer, &run);
}

static dml_status dml__first_start(void *user, dml_trainer *trainer)
{
    dml__first_state *state = (dml__first_state *)user;
    dml__bound_buckets(&state->filling, trainer, DML__FIRST_BUCKETS);
    if (dml_comm_start_progress_thread(state->place.inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (state->place.outside) {
        if (dml_comm_start_progress_thread(state->place.outside) != DML_OK)
            return dml__sync_failed(trainer, state->place.outside);
        dml__option_list options;
        memset(&options, 0, sizeof options);
        dml__list_word(&options, "placement",
                       state->place.late      ? "each step"
                       : state->place.central ? "central"
                                              : "mirrored");
        dml__list_number(&options, "bucket_bytes", (double)state->filling.asked);
        const dml_status status =
            dml__start_replicas(state->place.outside, trainer, "dml_mirrored", &options);
        if (status != DML_OK) return status;
    }
    if (!state->place.central) return dml__start_replicas(state->place.inside, trainer, "dml_mirrored", NULL);
    const dml_status status = dml__follow_run(state, trainer);
    return status == DML_OK ? dml__send_from_first(state->place.inside, trainer, DML_PARAMETERS) : status;
}

/* ---- gradients to the first ---- */

/* Every wait has its deadline. */
static void dml__drain_first(dml__first_state *state, dml_trainer *trainer)
{
    (void)dml__send_buckets(&state->filling, trainer);
    dml__wait_first(state->place.inside, &state->samples_inside);
    dml__drop_roll_call(state->place.outside, &state->call);
    for (int b = 0; b < state->buckets; b++) {
        dml__wait_first(state->place.inside, &state->bucket[b].inside);
        dml__wait_first(state->place.outside, &state->bucket[b].outside);
    }
    state->buckets = state->gone = 0;
    state->samples_gone = false;
}

static dml_status dml__first_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__first_state *state = (dml__first_state *)user;
    dml__drain_first(state, trainer);
    dml__begin_filling(&state->filling, trainer);
    state->samples = samples;
    state->samples_inside =
        dml_comm_all_reduce_start(state->place.inside, &state->samples, 1, DML_F64, DML_SUM);
    return state->samples_inside ? DML_OK : dml__inside_failed(state, trainer);
}

/* Whether what `request` inside gives is here: if it isn't and need not be waited for, it isn't looked at. */
static dml_status dml__take_inside(dml__first_state *state, dml_trainer *trainer, dml_request **request,
                                   bool wait, bool *here)
{
    *here = !*request || wait || dml_comm_done(state->place.inside, *request);
    if (!*here || dml__wait_first(state->place.inside, request) == DML_OK) return DML_OK;
    return dml__inside_failed(state, trainer);
}

static dml_status dml__send_samples_outside(dml__first_state *state, dml_trainer *trainer)
{
    state->samples_gone = true;
    return dml__start_roll_call(state->place.outside, trainer, state->samples, &state->call);
}

static dml_status dml__send_bucket_outside(dml__first_state *state, dml_trainer *trainer)
{
    dml__first_bucket *bucket = &state->bucket[state->gone++];
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    bucket->outside =
        dml_comm_all_reduce_start(state->place.outside, g, bucket->end - bucket->begin, DML_F32, DML_SUM);
    return dml_comm_status(state->place.outside);
}

/* At the first replica of several processes: what has been reduced inside goes on; `wait`: all of it does. */
static dml_status dml__move_on(dml__first_state *state, dml_trainer *trainer, bool wait)
{
    bool here = true;
    if (!state->place.outside) return DML_OK;
    while (here && (!state->samples_gone || state->gone < state->buckets)) {
        dml_request **request =
            state->samples_gone ? &state->bucket[state->gone].inside : &state->samples_inside;
        dml_status status = dml__take_inside(state, trainer, request, wait, &here);
        if (status == DML_OK && here)
            status = state->samples_gone ? dml__send_bucket_outside(state, trainer)
                                         : dml__send_samples_outside(state, trainer);
        if (status == DML_OK) continue;
        return dml_comm_status(state->place.inside) ? status
                                                    : dml__sync_failed(trainer, state->place.outside);
    }
    return DML_OK;
}

static dml_status dml__send_bucket_inside(void *user, dml_trainer *trainer, float *g, size_t begin,
                                          size_t end)
{
    dml__first_state *state = (dml__first_state *)user;
    DML_ASSERT(state->buckets < DML__FIRST_BUCKETS);
    dml__first_bucket *bucket = &state->bucket[state->buckets];
    bucket->begin = begin;
    bucket->end = end;
    bucket->inside = dml_comm_reduce_start(state->place.inside, g, end - begin, DML_F32, DML_SUM, 0);
    if (!bucket->inside) return dml__inside_failed(state, trainer);
    state->buckets++;
    return DML_OK;
}

static dml_status dml__first_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__first_state *state = (dml__first_state *)user;
    const dml_status status = dml__fill_bucket(&state->filling, trainer, begin, end);
    return status == DML_OK ? dml__move_on(state, trainer, false) : status;
}

/* ---- and back ---- */

static dml_status dml__finish_samples(dml__first_state *state, dml_trainer *trainer, double *samples)
{
    dml_comm *outside = state->place.outside;
    if (dml__wait_first(state->place.inside, &state->samples_inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    const dml_status status =
        outside ? dml__end_roll_call(outside, trainer, &state->call, &state->samples) : DML_OK;
    if (status != DML_OK) return status;
    if (state->place.processes &&
        dml_comm_broadcast(state->place.inside, &state->samples, 1, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    *samples = state->samples;
    return DML_OK;
}

/* A bucket's sum, which the first replica's host has now, becomes its device's, and goes to the others. */
static dml_status dml__finish_bucket(dml__first_state *state, dml_trainer *trainer, dml__first_bucket *bucket)
{
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    if (dml__wait_first(state->place.inside, &bucket->inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (dml__wait_first(state->place.outside, &bucket->outside) != DML_OK)
        return dml__sync_failed(trainer, state->place.outside);
    if (!state->place.central) {
        bucket->inside =
            dml_comm_broadcast_start(state->place.inside, g, bucket->end - bucket->begin, DML_F32, 0);
        if (!bucket->inside) return dml__inside_failed(state, trainer);
    }
    return state->first ? dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end) : DML_OK;
}

/* Where the first alone has the gradient, the others learn from it whether a step will be skipped: what the
   trainer will find when it has made the mean of the sum, or, where a device squares floats, would find near
   there. */
static dml_status dml__agree_on_overflow(dml__first_state *state, dml_trainer *trainer, double samples)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    if (!(trainer->loss_scale > 0.0f) || !count) return DML_OK;
    const float factor = (float)(1 / (samples * dml__loss_factor(trainer)));
    const double most = trainer->context->device.host_memory ? (double)INFINITY : 1e38;
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, 0, count);
    double squares = 0, skipped = 0;
    for (size_t i = 0; i < count && state->first; i++) {
        const float mean = g[i] * factor;
        squares += (double)mean * (double)mean;
    }
    if (state->first && !(squares < most)) skipped = 1;
    if (dml_comm_broadcast(state->place.inside, &skipped, 1, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (state->first && skipped == 0) return DML_OK;
    if (!state->first) memset(g, 0, count * sizeof *g);
    if (skipped != 0) g[0] = NAN;
    return dml_trainer_put(trainer, DML_GRADIENTS, 0, count);
}

static dml_status dml__first_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__first_state *state = (dml__first_state *)user;
    dml_status status = dml__send_buckets(&state->filling, trainer);
    if (status == DML_OK) status = dml__move_on(state, trainer, true);
    if (status == DML_OK) status = dml__finish_samples(state, trainer, samples);
    for (int b = 0; b < state->buckets && status == DML_OK; b++)
        status = dml__finish_bucket(state, trainer, &state->bucket[b]);
    for (int b = 0; b < state->buckets && status == DML_OK; b++) {
        dml__first_bucket *bucket = &state->bucket[b];
        if (!bucket->inside) continue; /* of what is spread */
        if (dml__wait_first(state->place.inside, &bucket->inside) != DML_OK)
            return dml__inside_failed(state, trainer);
        if (!state->first) status = dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    }
    return status == DML_OK && state->place.central ? dml__agree_on_overflow(state, trainer, *samples)
                                                    : status;
}

/* ---- the rest ---- */

static dml_status dml__first_update(void *user, dml_trainer *trainer)
{
    dml__first_state *state = (dml__first_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const dml_status status = state->first ? dml_trainer_update_range(trainer, 0, count) : DML_OK;
    if (status != DML_OK || state->place.late) return status;
    return dml__send_range_from_first(state->place.inside, trainer, DML_PARAMETERS, count);
}

static dml_status dml__first_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__first_state *state = (dml__first_state *)user;
    dml_status status = dml__send_buckets(&state->filling, trainer);
    if (status == DML_OK) status = dml__sync_sum(state->place.inside, trainer, values, count);
    if (status == DML_OK && state->place.processes && state->first)
        status = dml__sync_sum(state->place.outside_sums, trainer, values, count);
    if (status != DML_OK || !state->place.processes) return status;
    if (dml_comm_broadcast(state->place.inside, values, count, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    return DML_OK;
}

static void dml__first_failed(void *user, dml_trainer *trainer)
{
    dml__drain_first((dml__first_state *)user, trainer);
}

static void dml__first_destroy(void *user, dml_trainer *trainer)
{
    dml__first_state *state = (dml__first_state *)user;
    dml__drain_first(state, trainer);
    dml__end_strategy(state, state->memory, NULL);
}

static dml_sync dml__through_first_sync(const dml__mirrored_place *place)
{
    dml__memory memory;
    dml_sync sync = dml__make_strategy(NULL, &place->allocator, sizeof(dml__first_state), &memory);
    dml__first_state *state = (dml__first_state *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->place = *place;
    state->first = dml_comm_rank(place->inside) == 0;
    state->filling.send = dml__send_bucket_inside;
    state->filling.user = state;
    dml__ask_buckets(&state->filling, place->bucket_bytes, (size_t)1 << 18);
    sync.start = dml__first_start;
    sync.begin = dml__first_begin;
    sync.ready = dml__first_ready;
    sync.finish = dml__first_finish;
    sync.failed = dml__first_failed;
    sync.destroy = dml__first_destroy;
    sync.ranks = place->ranks;
    sync.rank = place->rank;
    sync.all_reduce = dml__first_sum;
    sync.update = place->central ? dml__first_update : NULL;
    return sync;
}

DML__LOCAL dml_sync dml__mirrored_sync(const dml__mirrored_place *place)
{
    dml_all_reduce_sync_options options;
    if (place->processes || place->central) return dml__through_first_sync(place);
    memset(&options, 0, sizeof options);
    options.bucket_bytes = place->bucket_bytes;
    options.allocator = place->allocator;
    return dml_all_reduce_sync(place->inside, &options);
}

#endif
