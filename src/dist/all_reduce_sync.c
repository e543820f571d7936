#ifndef DML_DIST_ALL_REDUCE_SYNC_C
#define DML_DIST_ALL_REDUCE_SYNC_C

#include "dist/all_reduce_sync.h"

#include "base/clock.h"
#include "base/memory.h"
#include "comm/job.h"
#include "dist/buckets.h"
#include "dist/compress_sum.h"
#include "dist/lent.h"
#include "dist/replicas.h"
#include "train/trainer_internal.h"

#include <string.h>

/* However large the model, no more than this many buckets are on their way at once. */
#define DML__MAX_BUCKETS 64

typedef struct dml__all_reduce_state {
    dml__memory memory;
    dml_comm *comm;
    dml__filling filling; /* of 0 elements: to be chosen at the start */
    dml__roll_call call;
    double samples; /* of all ranks, once the call has ended */
    dml_compression compression;
    dml__compressor compressor;
    double traced_to; /* the end of what is in the timeline (dml_seconds) */
    bool across_steps;
    bool later;  /* the last step has ended before w has followed */
    int buckets; /* of the last step, zeros where taken */
    dml__coded_sum bucket[DML__MAX_BUCKETS];
} dml__all_reduce_state;

/* What this rank did since it was asked last, beside its collectives in their timeline. */
static void dml__trace_phase(dml__all_reduce_state *state, const char *name)
{
    const double now = dml_seconds();
    if (name) dml_comm_trace_span(state->comm, name, state->traced_to, now);
    state->traced_to = now;
}

/* ---- the start ---- */

static size_t dml__measured_bucket(const dml__all_reduce_state *state, size_t count)
{
    const dml_comm *comm = state->comm;
    const bool wires = comm->hosts > 1;
    return dml__bucket_elements(wires ? &comm->model.between : &comm->model.inside, wires, comm->size,
                                dml__compressor_bytes(&state->compressor), count);
}

/* Rank 0's, since rounding may differ between processors. */
static dml_status dml__choose_bucket(dml__all_reduce_state *state, dml_trainer *trainer)
{
    if (!state->filling.elements) {
        int64_t elements = (int64_t)dml__measured_bucket(state, dml_trainer_count(trainer, DML_GRADIENTS));
        if (dml_comm_broadcast(state->comm, &elements, 1, DML_I64, 0) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        state->filling.elements = (size_t)elements;
    }
    dml__bound_buckets(&state->filling, trainer, DML__MAX_BUCKETS);
    return DML_OK;
}

/* What all ranks need alike, else they would send other buckets. */
static void dml__all_reduce_list(const dml__all_reduce_state *state, dml__option_list *list)
{
    static const char *const kinds[] = { "none", "bf16", "f16", "quantise", "top k", "power" };
    const dml_compression *c = &state->compression;
    memset(list, 0, sizeof *list);
    dml__list_number(list, "bucket_bytes", (double)state->filling.asked);
    if ((unsigned)c->kind <= DML_COMPRESS_POWER)
        dml__list_word(list, "compression.kind", kinds[c->kind]);
    else
        dml__list_number(list, "compression.kind", (double)c->kind);
    dml__list_number(list, "compression.bits", (double)c->bits);
    dml__list_number(list, "compression.fraction", (double)c->fraction);
    dml__list_number(list, "compression.momentum", (double)c->momentum);
    dml__list_number(list, "compression.warm_up", (double)c->warm_up);
    dml__list_number(list, "compression.rank", (double)c->rank);
    dml__list_number(list, "across_steps", state->across_steps ? 1.0 : 0.0);
}

static dml_status dml__all_reduce_sync_start(void *user, dml_trainer *trainer)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    /* While backward computes, buckets move on. */
    if (dml_comm_start_progress_thread(state->comm) != DML_OK) return dml__sync_failed(trainer, state->comm);
    dml__option_list options;
    dml__all_reduce_list(state, &options);
    dml_status status = dml__start_replicas(state->comm, trainer, "dml_all_reduce_sync", &options);
    if (status == DML_OK) /* with the seed that all ranks now have */
        status = dml__compressor_open(&state->compressor, &state->memory, state->comm, trainer,
                                      &state->compression, DML__MAX_BUCKETS);
    if (status == DML_OK && state->compression.kind == DML_COMPRESS_NONE)
        status = dml__agree_to_lend(state->comm, trainer, &state->filling);
    return status == DML_OK ? dml__choose_bucket(state, trainer) : status;
}

/* ---- gradients on their way ---- */

/* Once in a step: who needs the number of samples first waits for it. */
static dml_status dml__take_samples(dml__all_reduce_state *state, dml_trainer *trainer)
{
    if (!state->call.request) return DML_OK;
    return dml__end_roll_call(state->comm, trainer, &state->call, &state->samples);
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__drain_requests(dml__all_reduce_state *state, dml_trainer *trainer)
{
    (void)dml__send_buckets(&state->filling, trainer);
    dml__drop_roll_call(state->comm, &state->call);
    for (int b = 0; b < state->buckets; b++) dml__coded_sum_drop(&state->compressor, &state->bucket[b]);
    state->buckets = 0;
}

/* What is started next goes before buckets of a lower rank, and what isn't a bucket before all. Returns what
   holds otherwise. */
static int dml__go_before(dml__all_reduce_state *state, int buckets)
{
    const int usual = state->comm->priority;
    if (state->across_steps) dml_comm_set_priority(state->comm, usual + buckets);
    return usual;
}

static dml_status dml__all_reduce_sync_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!trainer->late.take) dml__drain_requests(state, trainer);
    dml__trace_phase(state, NULL);
    dml__begin_filling(&state->filling, trainer);
    const int usual = dml__go_before(state, DML__MAX_BUCKETS + 1);
    const dml_status status = dml__start_roll_call(state->comm, trainer, samples, &state->call);
    dml_comm_set_priority(state->comm, usual);
    return status;
}

/* What the next step needs first becomes final last: each bucket goes before those that were sent. */
static dml_status dml__start_bucket(dml__all_reduce_state *state, float *g, size_t begin, size_t end)
{
    dml__coded_sum *bucket = &state->bucket[state->buckets++];
    const int usual = dml__go_before(state, state->buckets);
    void *const stream = dml__follow_stream(state->comm, state->filling.stream);
    const dml_status status = dml__coded_sum_start(&state->compressor, g, begin, end, bucket);
    dml__follow_stream(state->comm, stream);
    dml_comm_set_priority(state->comm, usual);
    return status;
}

static dml_status dml__all_reduce_send(void *user, dml_trainer *trainer, float *g, size_t begin, size_t end)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    DML_ASSERT(state->buckets < DML__MAX_BUCKETS);
    if (state->buckets == 0) {
        const bool asks = dml__compressor_asks(&state->compressor);
        const dml_status status = asks ? dml__take_samples(state, trainer) : DML_OK;
        if (status != DML_OK) return status;
        dml__compressor_begin(&state->compressor, trainer, asks ? state->samples : 0);
    }
    return dml__start_bucket(state, g, begin, end) == DML_OK ? DML_OK
                                                             : dml__sync_failed(trainer, state->comm);
}

static dml_status dml__all_reduce_sync_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    return dml__fill_bucket(&state->filling, trainer, begin, end);
}

/* Waits for a bucket, which is zeros then, and makes its sum the gradient; `samples` is what that is the sum
   over where w follows it, else 0. */
static dml_status dml__take_bucket(dml__all_reduce_state *state, dml_trainer *trainer, dml__coded_sum *bucket,
                                   double samples)
{
    const size_t begin = bucket->begin, end = bucket->end;
    /* What the host has, not dml_trainer_get, which would read the device's own values over it. */
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, begin, end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    dml_status status = dml__coded_sum_take(&state->compressor, g, bucket);
    memset(bucket, 0, sizeof *bucket);
    if (status != DML_OK) return dml__sync_failed(trainer, state->comm);
    status = dml__put_bucket(&state->filling, trainer, begin, end);
    return status == DML_OK && samples > 0 ? dml__follow_range(trainer, begin, end, samples) : status;
}

/* Of a step that has ended: the buckets that [begin, end) lies in. */
static dml_status dml__take_late_buckets(void *user, dml_trainer *trainer, double samples, size_t begin,
                                         size_t end)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml_status status = DML_OK;
    for (int b = state->buckets - 1; b >= 0 && status == DML_OK; b--) {
        dml__coded_sum *bucket = &state->bucket[b];
        if (bucket->begin >= end || bucket->end <= begin) continue;
        const double waits_from = dml_seconds();
        status = dml__take_bucket(state, trainer, bucket, samples);
        dml_comm_trace_span(state->comm, "waits for gradients and updates", waits_from, dml_seconds());
    }
    while (state->buckets > 0 && state->bucket[state->buckets - 1].end == 0) state->buckets--;
    return status;
}

/* POWER has calls of its own to start when sums arrive, which all ranks have to do at the same place. */
static bool dml__ends_later(const dml__all_reduce_state *state, const dml_trainer *trainer)
{
    return state->across_steps && state->compression.kind != DML_COMPRESS_POWER &&
           dml__may_follow_later(trainer);
}

static dml_status dml__all_reduce_sync_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__trace_phase(state, "forward and backward");
    dml_status status = dml__send_buckets(&state->filling, trainer);
    if (status == DML_OK) status = dml__take_samples(state, trainer);
    *samples = state->samples;
    const bool follows = status == DML_OK && *samples > 0 && dml__may_follow(trainer);
    if (follows && dml__ends_later(state, trainer)) {
        dml__follow_later(trainer, *samples, dml__take_late_buckets, state);
        state->later = true;
        return DML_OK;
    }
    for (int b = 0; b < state->buckets && status == DML_OK; b++)
        status = dml__take_bucket(state, trainer, &state->bucket[b], follows ? *samples : 0);
    dml__trace_phase(state, "waits for gradients");
    return status;
}

/* ---- the rest ---- */

static dml_status dml__all_reduce_sync_updated(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!state->later) dml__trace_phase(state, "update");
    state->later = false;
    return DML_OK;
}

static dml_status dml__all_reduce_sync_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml_status status = dml__send_buckets(&state->filling, trainer);
    if (status != DML_OK) return status;
    const int usual = dml__go_before(state, DML__MAX_BUCKETS + 1);
    status = dml__sync_sum(state->comm, trainer, values, count);
    dml_comm_set_priority(state->comm, usual);
    return status;
}

static void dml__all_reduce_sync_failed(void *user, dml_trainer *trainer)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__drain_requests(state, trainer);
    dml__compressor_forget(&state->compressor);
    state->later = false;
}

static void dml__all_reduce_sync_destroy(void *user, dml_trainer *trainer)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__drain_requests(state, trainer);
    dml__compressor_close(&state->compressor);
    dml__end_strategy(state, state->memory, state->comm);
}

DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options)
{
    dml__memory memory;
    dml_sync sync = dml__make_strategy(comm, options ? &options->allocator : NULL,
                                       sizeof(dml__all_reduce_state), &memory);
    dml__all_reduce_state *state = (dml__all_reduce_state *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->comm = comm;
    state->filling.send = dml__all_reduce_send;
    state->filling.user = state;
    if (options) {
        dml__ask_buckets(&state->filling, options->bucket_bytes, 0);
        state->compression = options->compression;
        state->across_steps = options->across_steps;
    }
    sync.start = dml__all_reduce_sync_start;
    sync.begin = dml__all_reduce_sync_begin;
    sync.ready = dml__all_reduce_sync_ready;
    sync.finish = dml__all_reduce_sync_finish;
    sync.failed = dml__all_reduce_sync_failed;
    sync.updated = dml__all_reduce_sync_updated;
    sync.destroy = dml__all_reduce_sync_destroy;
    sync.all_reduce = dml__all_reduce_sync_sum;
    return sync;
}

#endif
