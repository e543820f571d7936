#ifndef DML_DIST_ZERO_SYNC_C
#define DML_DIST_ZERO_SYNC_C

#include "dist/zero_sync.h"

#include "comm/job.h"
#include "dist/lent.h"
#include "dist/zero_internal.h"

#include <string.h>

/* ---- beginning ---- */

/* Rank 0's vector, in pieces, so that what is other ranks' never lies here as a whole. */
static dml_status dml__zero_start_vector(dml__zero_state *state, dml_trainer *trainer, int vector)
{
    const size_t trained = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t count = dml_trainer_count(trainer, vector);
    const bool drops = state->drops && (vector != DML_PARAMETERS || state->stage == 3);
    dml_status status = DML_OK;
    float *data = dml_trainer_get(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    for (size_t begin = 0, end; begin < count && status == DML_OK; begin = end) {
        end = count - begin < state->filling.elements ? count : begin + state->filling.elements;
        if (dml_comm_broadcast(state->comm, data + begin, end - begin, DML_F32, 0) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        if (drops && begin < trained)
            status = dml__zero_forget(state, trainer, vector, begin, end < trained ? end : trained);
    }
    return status == DML_OK ? dml_trainer_put(trainer, vector, 0, count) : status;
}

static dml_status dml__zero_check(const dml__zero_state *state, dml_trainer *trainer)
{
    if (state->stage < 1 || state->stage > 3)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "stage %d of ZeRO asked for; there are 1, 2 and 3", state->stage);
    if (state->stage == 3 && !state->drops)
        return dml_trainer_fail(
            trainer, DML_ERROR_UNSUPPORTED,
            "stage 3 of ZeRO is for the CPU: a device with memory of its own would keep all parameters; take "
            "stage 1 or 2");
    return DML_OK;
}

static dml_status dml__zero_start(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    state->drops = dml_context_device(dml_trainer_context(trainer))->host_memory;
    dml_status status = dml__zero_check(state, trainer);
    if (status == DML_OK) status = dml__zero_make_room(state, trainer);
    if (status == DML_OK) dml__zero_foresee(state, trainer);
    /* Whoever can't says so as all meet. While backward computes, buckets move on. */
    if (dml_comm_start_progress_thread(state->comm) != DML_OK) return dml__sync_failed(trainer, state->comm);
    dml__option_list options;
    memset(&options, 0, sizeof options);
    dml__list_number(&options, "stage", (double)state->stage);
    dml__list_number(&options, "bucket_bytes", (double)state->filling.asked);
    status = dml__start_run(state->comm, trainer, "dml_zero_sync", &options);
    if (status == DML_OK) status = dml__agree_to_lend(state->comm, trainer, &state->filling);
    if (status == DML_OK) status = dml__zero_share_out(state, trainer);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml__zero_start_vector(state, trainer, v);
    if (status != DML_OK || !state->drops || state->stage == 1) return status;
    return dml_trainer_forget(trainer, DML_GRADIENTS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

/* ---- gradients ---- */

/* Waits for the oldest bucket; of it, this rank goes on with its own part. */
static dml_status dml__zero_take_bucket(dml__zero_state *state, dml_trainer *trainer)
{
    const dml__zero_range bucket = state->bucket[state->oldest];
    state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    state->buckets--;
    if (dml_comm_wait(state->comm, bucket.request) != DML_OK) return dml__sync_failed(trainer, state->comm);
    const dml__zero_range own = dml__zero_part(state, state->rank, bucket.begin, bucket.end);
    const dml_status status = dml__put_bucket(&state->filling, trainer, own.begin, own.end);
    if (status != DML_OK || !state->drops || state->stage == 1) return status;
    return dml__zero_forget(state, trainer, DML_GRADIENTS, bucket.begin, bucket.end);
}

static dml_status dml__zero_send(void *user, dml_trainer *trainer, float *g, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml_status status = DML_OK;
    while (state->buckets && status == DML_OK &&
           (state->buckets == DML__ZERO_BUCKETS ||
            dml_comm_done(state->comm, state->bucket[state->oldest].request)))
        status = dml__zero_take_bucket(state, trainer);
    if (status != DML_OK) return status;
    dml__zero_range bucket = { begin, end, NULL };
    const dml__zero_range own = dml__zero_parts(state, bucket.begin, bucket.end);
    void *const stream = dml__follow_stream(state->comm, state->filling.stream);
    bucket.request = dml_comm_reduce_scatterv_start(state->comm, g, state->counts, state->offsets, DML_F32,
                                                    DML_SUM, g + (own.begin - bucket.begin));
    dml__follow_stream(state->comm, stream);
    if (!bucket.request) return dml__sync_failed(trainer, state->comm);
    state->bucket[(state->oldest + state->buckets++) % DML__ZERO_BUCKETS] = bucket;
    return DML_OK;
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__zero_drain(dml__zero_state *state, dml_trainer *trainer)
{
    (void)dml__send_buckets(&state->filling, trainer);
    for (; state->buckets > 0; state->buckets--) {
        dml_comm_wait(state->comm, state->bucket[state->oldest].request);
        state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    }
    dml__drop_roll_call(state->comm, &state->call);
}

static dml_status dml__zero_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state, trainer);
    dml__begin_filling(&state->filling, trainer);
    return dml__start_roll_call(state->comm, trainer, samples, &state->call);
}

static dml_status dml__zero_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    return dml__fill_bucket(&state->filling, trainer, begin, end);
}

static dml_status dml__zero_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml_status status = dml__send_buckets(&state->filling, trainer);
    if (status == DML_OK) status = dml__end_roll_call(state->comm, trainer, &state->call, samples);
    while (state->buckets && status == DML_OK) status = dml__zero_take_bucket(state, trainer);
    return status;
}

static dml_status dml__zero_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const dml_status status = dml__send_buckets(&state->filling, trainer);
    return status == DML_OK ? dml__sync_sum(state->comm, trainer, values, count) : status;
}

/* ---- parameters ---- */

static dml_status dml__zero_update(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const dml_status status =
        dml_trainer_update_range(trainer, state->border[state->rank], state->border[state->rank + 1]);
    if (status != DML_OK || state->stage == 3) return status;
    return dml__zero_collect(state, trainer, DML_PARAMETERS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

static dml_status dml__zero_gather(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = dml__zero_drop_ahead(state, trainer);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v >= DML_OPTIMIZER_STATE || (v == DML_PARAMETERS && state->stage == 3))
            status = dml__zero_collect(state, trainer, v, 0, count);
    state->whole = status == DML_OK;
    return status;
}

/* ---- ending ---- */

/* The op that failed may have been using parameters. */
static void dml__zero_failed(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state, trainer);
    dml__zero_drop_ahead(state, NULL);
    if (state->stage == 3 && !state->whole)
        dml__zero_forget(state, trainer, DML_PARAMETERS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

static void dml__zero_destroy(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state, trainer);
    dml__zero_drop_ahead(state, NULL);
    dml__release(&state->memory, state->use);
    dml__release(&state->memory, state->border);
    dml__end_strategy(state, state->memory, state->comm);
}

DML_API dml_sync dml_zero_sync(dml_comm *comm, const dml_zero_options *options)
{
    dml__memory memory;
    dml_sync sync =
        dml__make_strategy(comm, options ? &options->allocator : NULL, sizeof(dml__zero_state), &memory);
    dml__zero_state *state = (dml__zero_state *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->comm = comm;
    state->stage = options && options->stage ? options->stage : 2;
    state->ranks = sync.ranks;
    state->rank = sync.rank;
    state->filling.send = dml__zero_send;
    state->filling.user = state;
    dml__ask_buckets(&state->filling, options ? options->bucket_bytes : 0, (size_t)1 << 18);
    sync.start = dml__zero_start;
    sync.begin = dml__zero_begin;
    sync.ready = dml__zero_ready;
    sync.finish = dml__zero_finish;
    sync.failed = dml__zero_failed;
    sync.destroy = dml__zero_destroy;
    sync.all_reduce = dml__zero_sum;
    sync.update = dml__zero_update;
    if (state->stage == 3) {
        sync.use = dml__zero_use_range;
        sync.used = dml__zero_used_range;
    }
    sync.gather = dml__zero_gather;
    return sync;
}

#endif
