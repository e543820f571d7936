#ifndef DML_DIST_ZERO_SYNC_C
#define DML_DIST_ZERO_SYNC_C

#include "dist/zero_sync.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/replicas.h"
#include "graph/weights.h"
#include "train/trainer_internal.h"

#include <string.h>

/* No more are on their way at once: that bounds what of g is in memory. */
#define DML__ZERO_BUCKETS 4

typedef struct dml__zero_bucket {
    size_t begin, end; /* of g, in elements */
    dml_request *request;
} dml__zero_bucket;

/* A range of w that an op reads. */
typedef struct dml__zero_use {
    size_t begin, end;
    dml_request *request; /* that brings it; NULL: it is here, or nobody has asked for it */
} dml__zero_use;

typedef struct dml__zero_state {
    dml__memory memory;
    dml_comm *comm;
    int stage, ranks, rank;
    bool drops; /* the vectors lie where memory can be given back */
    bool whole; /* stage 3: dml_trainer_gather has filled w in; the next op to use some of it forgets the rest
                 */
    size_t bucket_elements;
    size_t *border;                /* (ranks + 1): rank r owns elements [border[r], border[r + 1]) */
    size_t *counts, *offsets;      /* (ranks): of the collective that is being started */
    size_t filled_from, filled_to; /* g[from, to) is final and in no bucket yet */
    int buckets, oldest;           /* on their way; the first of them, in a ring */
    dml__zero_bucket bucket[DML__ZERO_BUCKETS];
    dml__roll_call call;
    /* Stage 3: what a pass uses of w, forward and then backward, in its order, which is the same on all
       ranks. Of it [held, next) is in use, and [next, ahead) has been asked for. */
    dml__zero_use *use; /* (uses) */
    size_t uses, held, next, ahead;
    uint64_t pass; /* which one that is of */
} dml__zero_state;

/* ---- who owns what ---- */

/* Under an optimizer that looks at whole parameters, where the one that lies at `at` begins. */
static size_t dml__zero_cut(const dml_trainer *trainer, size_t at)
{
    const dml_node *p = trainer->row->whole ? trainer->program->graph->first_parameter : NULL;
    for (; p; p = p->next_parameter)
        if (!p->frozen && p->offset <= at && at < p->offset + dml_shape_count(&p->shape)) return p->offset;
    return at;
}

static dml_status dml__zero_share_out(dml__zero_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS), ranks = (size_t)state->ranks;
    for (size_t r = 0; r <= ranks; r++) {
        const size_t even = count / ranks * r + (r < count % ranks ? r : count % ranks);
        state->border[r] = dml__zero_cut(trainer, even);
    }
    return dml_trainer_own(trainer, state->border[state->rank], state->border[state->rank + 1]);
}

/* What of [begin, end) rank r owns. */
static dml__zero_bucket dml__zero_part(const dml__zero_state *state, int r, size_t begin, size_t end)
{
    dml__zero_bucket part = { state->border[r], state->border[r + 1], NULL };
    if (part.begin < begin) part.begin = begin;
    if (part.begin > end) part.begin = end;
    if (part.end > end) part.end = end;
    if (part.end < part.begin) part.end = part.begin;
    return part;
}

/* Fills in counts and offsets for a collective over [begin, end); returns this rank's part. */
static dml__zero_bucket dml__zero_parts(dml__zero_state *state, size_t begin, size_t end)
{
    for (int r = 0; r < state->ranks; r++) {
        const dml__zero_bucket part = dml__zero_part(state, r, begin, end);
        state->counts[r] = part.end - part.begin;
        state->offsets[r] = part.begin - begin;
    }
    return dml__zero_part(state, state->rank, begin, end);
}

/* What of [begin, end) is other ranks'. */
static dml_status dml__zero_forget(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                   size_t end)
{
    const dml__zero_bucket own = dml__zero_part(state, state->rank, begin, end);
    const dml_status status = dml_trainer_forget(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_forget(trainer, vector, own.end, end) : status;
}

/* Each rank gets what of [begin, end) is others'. NULL, with the error recorded. */
static dml_request *dml__zero_collect_start(dml__zero_state *state, dml_trainer *trainer, int vector,
                                            size_t begin, size_t end)
{
    const dml__zero_bucket own = dml__zero_parts(state, begin, end);
    const float *mine = dml_trainer_get(trainer, vector, own.begin, own.end);
    float *all = dml_trainer_host(trainer, vector, begin, end);
    if (!mine || !all) return NULL;
    dml_request *request =
        dml_comm_all_gatherv_start(state->comm, mine, state->counts, state->offsets, DML_F32, all);
    if (!request) dml__sync_failed(trainer, state->comm);
    return request;
}

static dml_status dml__zero_collect_end(dml__zero_state *state, dml_trainer *trainer, int vector,
                                        size_t begin, size_t end, dml_request *request)
{
    const dml__zero_bucket own = dml__zero_part(state, state->rank, begin, end);
    if (dml_comm_wait(state->comm, request) != DML_OK) return dml__sync_failed(trainer, state->comm);
    const dml_status status = dml_trainer_put(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_put(trainer, vector, own.end, end) : status;
}

static dml_status dml__zero_collect(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                    size_t end)
{
    dml_request *request = dml__zero_collect_start(state, trainer, vector, begin, end);
    return request ? dml__zero_collect_end(state, trainer, vector, begin, end, request)
                   : dml_status_of(dml_trainer_context(trainer));
}

/* ---- beginning ---- */

/* Lists what a pass will use; with `to` NULL it is only counted. */
static size_t dml__zero_list_uses(const dml_program *program, dml__zero_use *to)
{
    dml__w_range range[DML__MAX_INPUTS];
    size_t uses = 0;
    for (int i = 0; i < 2 * program->slots; i++) {
        const bool backward = i >= program->slots;
        const int slot = backward ? 2 * program->slots - 1 - i : i;
        const int count = dml__ranges_read(program, &program->slot[slot], backward, range);
        for (int r = 0; r < count; r++, uses++) {
            if (!to) continue;
            to[uses].begin = range[r].begin;
            to[uses].end = range[r].end;
        }
    }
    return uses;
}

static dml_status dml__zero_foresee(dml__zero_state *state, dml_trainer *trainer)
{
    if (state->stage != 3) return DML_OK;
    state->uses = dml__zero_list_uses(trainer->program, NULL);
    state->use = (dml__zero_use *)dml__allocate_array(&state->memory, state->uses + 1, sizeof *state->use);
    if (!state->use) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    dml__zero_list_uses(trainer->program, state->use);
    return DML_OK;
}

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
        end = count - begin < state->bucket_elements ? count : begin + state->bucket_elements;
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
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    state->drops = dml_context_device(dml_trainer_context(trainer))->host_memory;
    dml_status status = dml__zero_check(state, trainer);
    if (status == DML_OK) status = dml__zero_foresee(state, trainer);
    if (status != DML_OK) return status;
    /* While backward computes, buckets move on. */
    if (dml_comm_start_progress_thread(state->comm) != DML_OK) return dml__sync_failed(trainer, state->comm);
    const double how[2] = { (double)state->stage, (double)state->bucket_elements };
    status = dml__start_run(state->comm, trainer, "dml_zero_sync", dml__mark_numbers(0, how, 2));
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
    const dml__zero_bucket bucket = state->bucket[state->oldest];
    state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    state->buckets--;
    if (dml_comm_wait(state->comm, bucket.request) != DML_OK) return dml__sync_failed(trainer, state->comm);
    const dml__zero_bucket own = dml__zero_part(state, state->rank, bucket.begin, bucket.end);
    const dml_status status = dml_trainer_put(trainer, DML_GRADIENTS, own.begin, own.end);
    if (status != DML_OK || !state->drops || state->stage == 1) return status;
    return dml__zero_forget(state, trainer, DML_GRADIENTS, bucket.begin, bucket.end);
}

static dml_status dml__zero_send_bucket(dml__zero_state *state, dml_trainer *trainer)
{
    dml_status status = DML_OK;
    while (state->buckets && status == DML_OK &&
           (state->buckets == DML__ZERO_BUCKETS ||
            dml_comm_done(state->comm, state->bucket[state->oldest].request)))
        status = dml__zero_take_bucket(state, trainer);
    if (status != DML_OK) return status;
    dml__zero_bucket bucket = { state->filled_from, state->filled_to, NULL };
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, bucket.begin, bucket.end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    const dml__zero_bucket own = dml__zero_parts(state, bucket.begin, bucket.end);
    bucket.request = dml_comm_reduce_scatterv_start(state->comm, g, state->counts, state->offsets, DML_F32,
                                                    DML_SUM, g + (own.begin - bucket.begin));
    if (!bucket.request) return dml__sync_failed(trainer, state->comm);
    state->bucket[(state->oldest + state->buckets++) % DML__ZERO_BUCKETS] = bucket;
    state->filled_to = state->filled_from;
    return DML_OK;
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__zero_drain(dml__zero_state *state)
{
    for (; state->buckets > 0; state->buckets--) {
        dml_comm_wait(state->comm, state->bucket[state->oldest].request);
        state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    }
    dml__drop_roll_call(state->comm, &state->call);
}

static dml_status dml__zero_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state);
    state->filled_from = state->filled_to = dml_trainer_count(trainer, DML_GRADIENTS);
    return dml__start_roll_call(state->comm, trainer, samples, &state->call);
}

static dml_status dml__zero_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    DML_ASSERT(end == state->filled_from);
    (void)end;
    state->filled_from = begin;
    const bool full = state->filled_to - begin >= state->bucket_elements;
    return full || begin == 0 ? dml__zero_send_bucket(state, trainer) : DML_OK;
}

static dml_status dml__zero_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml_status status = dml__end_roll_call(state->comm, trainer, &state->call, samples);
    while (state->buckets && status == DML_OK) status = dml__zero_take_bucket(state, trainer);
    return status;
}

static dml_status dml__zero_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    return dml__sync_sum(((dml__zero_state *)user)->comm, trainer, values, count);
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

/* What was asked for and nobody will use. */
static dml_status dml__zero_drop_ahead(dml__zero_state *state, dml_trainer *trainer)
{
    dml_status status = DML_OK;
    for (size_t i = state->held; i < state->ahead; i++) {
        dml__zero_use *use = &state->use[i];
        if (use->request) dml_comm_wait(state->comm, use->request);
        use->request = NULL;
        if (trainer && status == DML_OK)
            status = dml__zero_forget(state, trainer, DML_PARAMETERS, use->begin, use->end);
    }
    state->held = state->next = state->ahead = 0;
    return status;
}

/* Whether one more range can come while others are in use or on their way: it is apart from them, and what
   comes before its time is at most a bucket, or this range alone. */
static bool dml__zero_has_room(const dml__zero_state *state)
{
    const dml__zero_use *more = &state->use[state->ahead];
    size_t early = more->end - more->begin;
    for (size_t i = state->held; i < state->ahead; i++) {
        const dml__zero_use *other = &state->use[i];
        if (more->begin < other->end && other->begin < more->end) return false;
        if (i > state->next) early += other->end - other->begin;
    }
    return state->ahead <= state->next + 1 || early <= state->bucket_elements;
}

static dml_status dml__zero_ask(dml__zero_state *state, dml_trainer *trainer)
{
    dml__zero_use *use = &state->use[state->ahead];
    use->request = dml__zero_collect_start(state, trainer, DML_PARAMETERS, use->begin, use->end);
    if (!use->request) return dml_status_of(dml_trainer_context(trainer));
    state->ahead++;
    return DML_OK;
}

/* A pass that failed has left off anywhere. */
static dml_status dml__zero_find_place(dml__zero_state *state, dml_trainer *trainer, size_t begin, size_t end)
{
    const uint64_t pass = (dml__trainer_tried(trainer) << 32) + trainer->passes;
    const dml__zero_use *use = &state->use[state->next];
    if (pass == state->pass && state->next < state->uses && use->begin == begin && use->end == end)
        return DML_OK;
    state->pass = pass;
    return dml__zero_drop_ahead(state, trainer);
}

static dml_status dml__zero_use_range(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = dml__zero_find_place(state, trainer, begin, end);
    if (status == DML_OK && state->whole) status = dml__zero_forget(state, trainer, DML_PARAMETERS, 0, count);
    state->whole = false;
    if (status == DML_OK && state->ahead == state->next) status = dml__zero_ask(state, trainer);
    while (status == DML_OK && state->ahead < state->uses && dml__zero_has_room(state))
        status = dml__zero_ask(state, trainer);
    if (status != DML_OK) return status;
    dml_request *request = state->use[state->next].request;
    state->use[state->next++].request = NULL;
    return request ? dml__zero_collect_end(state, trainer, DML_PARAMETERS, begin, end, request) : DML_OK;
}

/* What the next op uses again stays. */
static dml_status dml__zero_used_range(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const dml__zero_use *next = &state->use[state->next];
    const bool again = state->next < state->uses && next->begin >= begin && next->end <= end;
    state->held++;
    if (!again || state->ahead > state->next)
        return dml__zero_forget(state, trainer, DML_PARAMETERS, begin, end);
    state->ahead++;
    const dml_status status = dml__zero_forget(state, trainer, DML_PARAMETERS, begin, next->begin);
    return status == DML_OK ? dml__zero_forget(state, trainer, DML_PARAMETERS, next->end, end) : status;
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
    dml__zero_drain(state);
    dml__zero_drop_ahead(state, NULL);
    if (state->stage == 3 && !state->whole)
        dml__zero_forget(state, trainer, DML_PARAMETERS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

static void dml__zero_destroy(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    (void)trainer;
    if (!state) return;
    dml__zero_drain(state);
    dml__zero_drop_ahead(state, NULL);
    dml__comm_let_go(state->comm);
    dml__memory memory = state->memory;
    dml__release(&memory, state->use);
    dml__release(&memory, state->border);
    dml__release(&memory, state);
}

static dml__zero_state *dml__zero_create(dml_comm *comm, const dml_zero_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__zero_state *state = (dml__zero_state *)dml__allocate(&memory, sizeof *state);
    if (!state) return NULL;
    const size_t bytes = options && options->bucket_bytes ? options->bucket_bytes : (size_t)1 << 20;
    state->memory = memory;
    state->comm = comm;
    state->stage = options && options->stage ? options->stage : 2;
    state->ranks = dml_comm_world_size(comm);
    state->rank = dml_comm_rank(comm);
    state->bucket_elements = bytes < sizeof(float) ? 1 : bytes / sizeof(float);
    const size_t each = (size_t)state->ranks + 1;
    state->border = (size_t *)dml__allocate_array(&memory, 3 * each, sizeof *state->border);
    if (state->border) {
        state->counts = state->border + each;
        state->offsets = state->counts + each;
        dml__comm_keep(comm);
        return state;
    }
    dml__release(&memory, state);
    return NULL;
}

DML_API dml_sync dml_zero_sync(dml_comm *comm, const dml_zero_options *options)
{
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    dml__zero_state *state = dml__zero_create(comm, options);
    sync.state = state;
    sync.start = dml__zero_start;
    sync.begin = dml__zero_begin;
    sync.ready = dml__zero_ready;
    sync.finish = dml__zero_finish;
    sync.failed = dml__zero_failed;
    sync.destroy = dml__zero_destroy;
    sync.ranks = dml_comm_world_size(comm);
    sync.rank = dml_comm_rank(comm);
    sync.all_reduce = dml__zero_sum;
    sync.update = dml__zero_update;
    if (state && state->stage == 3) {
        sync.use = dml__zero_use_range;
        sync.used = dml__zero_used_range;
    }
    sync.gather = dml__zero_gather;
    return sync;
}

#endif
