#ifndef DML_COMM_OPERATION_C
#define DML_COMM_OPERATION_C

#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "comm/shared_memory.h"
#include "comm/trace.h"

/* Operations as state machines: a schedule, how far each of its steps is, and the flows of messages that they
   make. */

static size_t dml__element_bytes(const dml_request *request)
{
    return dml_dtype_size(request->reduction.dtype);
}

DML__LOCAL size_t dml__step_bytes(const dml_request *request, int step)
{
    return (size_t)request->schedule.steps[step].count * dml__element_bytes(request);
}

static char *dml__place(const dml_request *request, int space, uint64_t element)
{
    return request->spaces[space] ? request->spaces[space] + (size_t)element * dml__element_bytes(request)
                                  : NULL;
}

DML__LOCAL char *dml__step_data(const dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    return dml__place(request, s->space, s->offset);
}

/* ---- what waits for what ---- */

static bool dml__all_past_before(dml_request *request, int step)
{
    while (request->first_open < step && request->states[request->first_open].past) request->first_open++;
    return request->first_open >= step;
}

DML__LOCAL uint64_t dml__allowed(dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    uint64_t allowed = UINT64_MAX;
    for (int i = 0; i < DML__STEP_AFTER && allowed && s->after[i] != -1; i++) { /* the first are set */
        const int earlier = s->after[i];
        uint64_t limit = UINT64_MAX;
        if (earlier == DML__ALL_BEFORE)
            limit = dml__all_past_before(request, step) ? UINT64_MAX : 0;
        else if (!request->states[earlier].past)
            limit =
                dml__step_limit(s, &request->schedule.steps[earlier], request->states[earlier].done, false);
        if (limit < allowed) allowed = limit;
    }
    return allowed;
}

DML__LOCAL bool dml__is_free(dml_request *request, int step)
{
    const uint64_t count = request->schedule.steps[step].count, allowed = dml__allowed(request, step);
    return allowed >= (count ? count : 1);
}

/* ---- moving on ---- */

static void dml__unlink_flow(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__flow **at = flow->sending ? &link->sending : &link->receiving;
    while (*at && *at != flow) at = &(*at)->next;
    if (*at) *at = flow->next;
}

static void dml__flow_past(dml__comm_job *job, dml_request *request, int step)
{
    for (int f = 0; f < request->flow_count; f++) {
        dml__flow *flow = &request->flows[f];
        if (flow->step != step) continue;
        if (job->trace) dml__trace_step_past(job, flow, dml_seconds());
        flow->step = request->states[step].next;
        flow->message++;
        if (flow->sending) flow->announced = false;
        if (flow->step < 0) dml__unlink_flow(job, flow);
        return;
    }
}

DML__LOCAL void dml__step_moved(dml__comm_job *job, dml_request *request, int step, uint64_t done)
{
    const dml__step *s = &request->schedule.steps[step];
    dml__step_state *state = &request->states[step];
    state->done = done;
    request->dirty = request->moved = true;
    job->progress++;
    if (done < s->count) return;
    state->past = true;
    request->steps_left--;
    if (s->peer >= 0) dml__flow_past(job, request, step);
}

/* Of how many the mean is. */
static int dml__sums_parts(const dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    return signature->operation == DML__CALL_ALL_REDUCE_LEAVES ? signature->root : request->comm->size;
}

DML__LOCAL void dml__apply(dml_request *request, int step, const void *from, uint64_t count)
{
    const dml__step *s = &request->schedule.steps[step];
    char *to = dml__place(request, s->space, s->offset + request->states[step].done);
    const size_t bytes = (size_t)count * dml__element_bytes(request);
    if (!count) return;
    if (dml__does_reduce(s->kind))
        dml__reduce_elements(&request->reduction, to, to, from, (size_t)count);
    else if (to != (const char *)from)
        dml__copy_bytes(to, from, bytes);
    if (s->completes && request->reduction.op == DML_MEAN)
        dml__finish_mean(&request->reduction, to, (size_t)count, dml__sums_parts(request));
}

#define DML__TWICE_PIECE ((size_t)8 << 10) /* bytes that the first cache still has when they are copied */

DML__LOCAL void dml__apply_local(dml_request *request, int step, uint64_t upto)
{
    const dml__step *s = &request->schedule.steps[step];
    const size_t element = dml__element_bytes(request);
    const bool twice = s->kind == DML__STEP_REDUCE_BOTH || s->kind == DML__STEP_REDUCE_OUT;
    uint64_t *const done = &request->states[step].done;
    while (*done < upto) {
        uint64_t count = upto - *done;
        if (twice && count > DML__TWICE_PIECE / element) count = DML__TWICE_PIECE / element;
        char *const source = dml__place(request, s->source_space, s->source + *done);
        dml__apply(request, step, source, count);
        if (twice)
            dml__copy_bytes(s->kind == DML__STEP_REDUCE_OUT ? dml__place(request, DML__SPACE_OUT, *done)
                                                            : source,
                            dml__place(request, s->space, s->offset + *done), (size_t)count * element);
        *done += count;
    }
}

/* As much of a local step as may go. */
static bool dml__run_local(dml__comm_job *job, dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    if (request->states[step].past) return false;
    const uint64_t done = request->states[step].done, allowed = dml__allowed(request, step);
    const uint64_t upto = allowed < s->count ? allowed : s->count;
    if (s->count ? upto == done : !allowed) return false;
    const double begin = job->trace ? dml_seconds() : 0;
    dml__apply_local(request, step, upto);
    dml__step_moved(job, request, step, upto);
    if (job->trace) dml__trace_local(job, request, step, begin);
    return true;
}

/* ---- rounds ---- */

static dml__flow *dml__flow_of(dml_request *request, int rank, bool sending)
{
    for (int f = 0; f < request->flow_count; f++)
        if (request->flows[f].rank == rank && request->flows[f].sending == sending) return &request->flows[f];
    dml__flow *flow = &request->flows[request->flow_count++];
    memset(flow, 0, sizeof *flow);
    flow->request = request;
    flow->step = flow->last = flow->granting = -1;
    flow->rank = rank;
    flow->sending = sending;
    flow->message = flow->granted_message = flow->told_message = (uint64_t)request->round << 16;
    return flow;
}

/* Strings the steps of each flow, and the local ones, together. */
static void dml__string_steps(dml__comm_job *job, dml_request *request)
{
    int last_local = -1;
    request->flow_count = request->first_open = 0;
    request->first_local = -1;
    request->steps_left = request->schedule.count;
    for (int i = 0; i < request->schedule.count; i++) {
        const dml__step *s = &request->schedule.steps[i];
        dml__step_state *state = &request->states[i];
        state->done = 0;
        state->next = -1;
        state->past = false;
        int *first, *last;
        if (s->peer < 0) {
            first = &request->first_local;
            last = &last_local;
        } else {
            dml__flow *flow =
                dml__flow_of(request, request->comm->world_ranks[s->peer], s->kind == DML__STEP_SEND);
            if (dml__step_bytes(request, i) > job->eager_bytes) flow->large = true;
            first = &flow->step;
            last = &flow->last;
        }
        if (*last < 0)
            *first = i;
        else
            request->states[*last].next = i;
        *last = i;
    }
}

/* Messages of a communicator and tag are matched in the order in which they come. */
static bool dml__in_turn(const dml__flow *a, const dml__flow *b)
{
    const dml__comm_call *first = &a->request->call, *second = &b->request->call;
    return dml__is_pair(first->signature.operation) && dml__is_pair(second->signature.operation) &&
           a->request->comm == b->request->comm && first->tag == second->tag;
}

/* Behind the flows of the same or a higher priority, and behind what must come first. */
static void dml__link_flow(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__flow **at = flow->sending ? &link->sending : &link->receiving;
    while (*at && (*at)->request->call.priority >= flow->request->call.priority) at = &(*at)->next;
    for (dml__flow **later = at; flow->sending && *later; later = &(*later)->next)
        if (dml__in_turn(*later, flow)) at = &(*later)->next;
    flow->next = *at;
    *at = flow;
}

DML__LOCAL void dml__begin_steps(dml__comm_job *job, dml_request *request)
{
    dml__string_steps(job, request);
    for (int f = 0; f < request->flow_count; f++) {
        request->flows[f].granting = request->flows[f].step;
        dml__link_flow(job, &request->flows[f]);
    }
    request->dirty = true;
}

static const dml__algorithm_info *dml__algorithm_of(const dml_request *request)
{
    int count;
    return &dml__algorithms(&count)[request->algorithm];
}

/* ---- sums of leaves: round 0 tells who has which, and each round after it adds some of them ---- */

static void dml__begin_owners(dml__comm_job *job, dml_request *request)
{
    const dml__comm_call *call = &request->call;
    const dml_comm *comm = request->comm;
    dml__collective c;
    memset(&c, 0, sizeof c);
    c.operation = DML__CALL_ALL_REDUCE;
    c.rank = comm->rank;
    c.size = comm->size;
    c.count = (uint64_t)call->signature.root;
    request->reduction.dtype = DML_I64;
    request->reduction.op = DML_SUM;
    request->reduction.function = dml__join_owners;
    dml__say_owners(call->leaves, call->signature.root, comm->rank, call->owners);
    request->schedule.count = 0;
    request->written.comm = NULL;
    request->spaces[DML__SPACE_OUT] = (char *)call->owners;
    request->algorithm = dml__find_algorithm(DML__CALL_ALL_REDUCE, "tree"); /* any that needs no scratch */
    dml__algorithm_of(request)->write(&c, &request->schedule);
    dml__begin_steps(job, request);
}

/* Each leaf must be at one rank. */
static bool dml__check_owners(dml__comm_job *job, const dml_request *request)
{
    const dml_comm *comm = request->comm;
    char text[DML__SIGNATURE_TEXT];
    for (int i = 0; i < request->call.signature.root; i++) {
        int first, last;
        const int claims = dml__claims_of(request->call.owners[i], &first, &last);
        if (claims == 1) continue;
        dml__signature_text(&request->call.signature, text);
        if (claims == 0)
            dml__job_fail(job, -1, DML_ERROR_MISMATCH,
                          "%s: no rank gave leaf %d: each of the leaves has to be at one rank", text, i);
        else
            dml__job_fail(job, comm->world_ranks[last], DML_ERROR_MISMATCH,
                          "%s: leaf %d was given by rank %d and by rank %d: each of the leaves has to be at "
                          "one rank",
                          text, i, comm->world_ranks[first], comm->world_ranks[last]);
        return false;
    }
    return true;
}

static void dml__begin_leaves(dml_request *request)
{
    const dml__comm_call *call = &request->call;
    dml__leaf_sums *sums = &request->leaf_sums;
    sums->leaves = call->signature.root;
    sums->rank = request->comm->rank;
    sums->size = request->comm->size;
    sums->count = call->signature.count;
    sums->element = dml_dtype_size(call->signature.dtype);
    sums->arrays = call->leaves;
    sums->out = call->out;
    sums->owners = call->owners;
    dml__begin_leaf_sums(sums);
    request->reduction = call->reduction;
    request->spaces[DML__SPACE_IN] = sums->base;
}

static void dml__next_sums(dml__comm_job *job, dml_request *request)
{
    if (request->round == 0) {
        if (!dml__check_owners(job, request)) return;
        dml__begin_leaves(request);
    }
    if (dml__leaf_sums_end(&request->leaf_sums)) {
        dml__end_request(job, request, DML_OK);
        return;
    }
    request->round++;
    request->schedule.count = 0;
    dml__write_leaf_steps(&request->leaf_sums, &request->schedule);
    dml__begin_steps(job, request);
}

/* ---- rounds of the others ---- */

/* Whether this is a call like the one that the steps that are there were written for, as most are: then the
   algorithm is the same, too. */
static bool dml__is_again(const dml__comm_job *job, const dml_request *request)
{
    const dml__written *written = &request->written;
    const dml__comm_call *call = &request->call;
    const dml__signature *a = &written->signature, *b = &call->signature;
    return written->comm == request->comm && written->communicator == request->comm->id &&
           written->choices == job->choices && written->in_place == (call->in == call->out) &&
           a->operation == b->operation && a->dtype == b->dtype && a->root == b->root &&
           a->count == b->count && !call->counts;
}

/* False: there are too many steps. */
static bool dml__write_round(const dml__comm_job *job, dml_request *request)
{
    const dml__comm_call *call = &request->call;
    const dml_comm *comm = request->comm;
    dml__collective c;
    if (request->again && request->written.count == request->round_count) return true;
    memset(&c, 0, sizeof c);
    c.operation = call->signature.operation;
    c.rank = comm->rank;
    c.size = comm->size;
    c.root = call->signature.root;
    c.count = call->counts ? dml__largest_part(comm, call) : request->round_count;
    c.row = call->signature.count;
    c.counts = call->counts;
    c.offsets = call->offsets;
    c.in_counts = call->in_counts;
    c.in_offsets = call->in_offsets;
    c.shared = comm->model.shared / dml__element_bytes(request);
    request->schedule.count = 0;
    request->schedule.overflowed = false;
    dml__algorithm_of(request)->write(&c, &request->schedule);
    if (request->schedule.overflowed) return false;
    request->written.comm = call->counts ? NULL : comm;
    request->written.communicator = comm->id;
    request->written.in_place = call->in == call->out;
    request->written.algorithm = request->algorithm;
    request->written.signature = call->signature;
    request->written.count = request->round_count;
    request->written.round_most = request->round_most;
    request->written.is_short = !call->counts && dml__has_short_steps(job, request);
    request->again = !call->counts;
    return true;
}

/* Whether it is one that somebody waits for, and nothing else is under way. */
static bool dml__is_short(const dml__comm_job *job, const dml_request *request)
{
    return request->written.is_short && request == &job->requests[job->max_requests] &&
           request->round_count == request->call.signature.count && job->active == request &&
           !request->next && !request->queues && !job->unmatched && !job->trace && !job->helper_started;
}

static void dml__begin_round(dml__comm_job *job, dml_request *request)
{
    const dml__comm_call *call = &request->call;
    request->spaces[DML__SPACE_OUT] = (char *)call->out;
    request->spaces[DML__SPACE_IN] = (char *)call->in;
    request->spaces[DML__SPACE_SCRATCH] = request->scratch;
    dml__lay_shared(request, dml__algorithm_of(request));
    if (request->round_begin) {
        const size_t begin = (size_t)request->round_begin * dml__element_bytes(request);
        request->spaces[DML__SPACE_OUT] += begin;
        if (call->in) request->spaces[DML__SPACE_IN] += begin;
    }
    if (!dml__write_round(job, request)) {
        char text[DML__SIGNATURE_TEXT];
        dml__job_fail(job, job->rank, DML_ERROR_STATE, "rank %d: %s has more steps than were planned for",
                      job->rank, dml__signature_text(&call->signature, text));
        return;
    }
    if (dml__is_short(job, request))
        dml__run_short(job, request);
    else
        dml__begin_steps(job, request);
}

/* As many elements at once as stay in the caches where that pays, and as SCRATCH has room for. What doesn't
   go in rounds was chosen so that it has room. */
static uint64_t dml__round_most(const dml__comm_job *job, const dml_request *request)
{
    const dml__signature *call = &request->call.signature;
    const dml__algorithm_info *info = dml__algorithm_of(request);
    const uint64_t room = job->scratch_bytes / dml__element_bytes(request);
    uint64_t most = dml__cached_round(call->operation, request->comm->size, call->count, job->round_part,
                                      dml__element_bytes(request));
    if (info->scratch && dml__goes_in_rounds(info))
        while (most > 1 && info->scratch(request->comm->size, most) > room) most = most / 2;
    return dml__shared_round(info, request->comm->size, most,
                             request->comm->model.shared / dml__element_bytes(request));
}

static void dml__end_round(dml__comm_job *job, dml_request *request)
{
    const uint64_t count = request->call.signature.count;
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__next_sums(job, request);
        return;
    }
    request->round_begin += request->round_count;
    if (request->round_begin >= count || dml__is_pair(request->call.signature.operation)) {
        dml__end_request(job, request, DML_OK);
        return;
    }
    request->round++;
    const uint64_t left = count - request->round_begin;
    request->round_count = left < request->round_most ? left : request->round_most;
    dml__begin_round(job, request);
}

DML__LOCAL void dml__advance_request(dml__comm_job *job, dml_request *request)
{
    while (request->dirty && request->state == DML__REQUEST_ACTIVE) {
        request->dirty = false;
        for (int step = request->first_local; step >= 0; step = request->states[step].next)
            if (dml__run_local(job, request, step)) request->dirty = true;
        for (int f = 0; f < request->flow_count; f++)
            if (request->flows[f].step >= 0 && job->links[request->flows[f].rank].store_used)
                if (dml__take_stored(job, &request->flows[f])) return;
        if (!request->steps_left) dml__end_round(job, request);
    }
}

/* ---- requests ---- */

DML__LOCAL void dml__free_request(dml__comm_job *job, dml_request *request)
{
    request->state = DML__REQUEST_FREE;
    request->next = NULL;
    if (request == &job->requests[job->max_requests]) return;
    /* Put back at the end, so that who waits twice meets a free one, not another's. */
    if (job->last_free)
        job->last_free->next = request;
    else
        job->free_requests = request;
    job->last_free = request;
}

static dml_request *dml__new_request(dml__comm_job *job, bool blocking)
{
    dml_request *own = &job->requests[job->max_requests];
    if (blocking && own->state == DML__REQUEST_FREE) return own;
    dml_request *request = job->free_requests;
    if (!request) return NULL;
    job->free_requests = request->next;
    if (!job->free_requests) job->last_free = NULL;
    return request;
}

static void dml__unlist(dml_request **list, const dml_request *request)
{
    while (*list && *list != request) list = &(*list)->next;
    if (*list) *list = request->next;
}

static void dml__enlist(dml_request **list, dml_request *request)
{
    while (*list) list = &(*list)->next;
    request->next = NULL;
    *list = request;
}

DML__LOCAL void dml__end_request(dml__comm_job *job, dml_request *request, dml_status status)
{
    if (job->trace) dml__trace_end(job, request, status);
    for (int f = 0; f < request->flow_count; f++) dml__unlink_flow(job, &request->flows[f]);
    dml__unlist(&job->active, request);
    dml__unlist(&job->unmatched, request);
    request->flow_count = 0;
    job->progress++;
    if (!status) job->stats.done++;
    request->status = status;
    request->state = DML__REQUEST_DONE;
    dml_request *next = dml__pass_shared(request);
    if (!next) return;
    dml__begin_round(job, next); /* by the engine, in which this one has ended: queues says so still */
    next->queues = false;
    next->moved = true;
}

DML__LOCAL void dml__begin_pair(dml__comm_job *job, dml_request *request, int rank, uint64_t sequence,
                                uint64_t count)
{
    const bool sends = request->call.signature.operation == DML__CALL_SEND;
    dml__schedule *schedule = &request->schedule;
    dml__unlist(&job->unmatched, request);
    dml__enlist(&job->active, request);
    request->sequence = sequence;
    request->moved = true;
    request->spaces[DML__SPACE_OUT] = (char *)request->call.out;
    schedule->count = 1;
    request->written.comm = NULL;
    dml__step *step = &schedule->steps[0];
    memset(step, 0, sizeof *step);
    step->kind = sends ? DML__STEP_SEND : DML__STEP_RECEIVE;
    step->count = count;
    for (int i = 0; i < DML__STEP_AFTER; i++) step->after[i] = -1;
    step->peer = dml__group_rank(request->comm, rank);
    dml__begin_steps(job, request);
}

/* Its place among the collectives of its communicator. */
static void dml__number_call(dml_request *request)
{
    dml_comm *comm = request->comm;
    request->sequence = comm->sequence++;
    const size_t place = (size_t)(request->sequence % DML__REMEMBERED);
    comm->past[place] = request->call.signature;
    if (request->call.signature.variant < DML__WITH_COUNTS || !request->call.counts) return;
    for (int r = 0; r < comm->said_counts; r++)
        comm->past_counts[place * (size_t)comm->said_counts + (size_t)r] = request->call.counts[r];
}

static void dml__begin_collective(dml__comm_job *job, dml_request *request)
{
    dml_comm *comm = request->comm;
    dml__number_call(request);
    dml__enlist(&job->active, request);
    request->on_device = dml__nccl_takes(job, &request->call, comm);
    if (job->error.status) return; /* which memory it is about, the host's code can't take */
    if (request->on_device) {
        dml__check_stored(job, request);
        dml__nccl_start(job, request);
        return;
    }
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__begin_owners(job, request);
        dml__check_stored(job, request);
        return;
    }
    request->again = dml__is_again(job, request);
    request->written.choices = job->choices;
    request->algorithm =
        request->again ? request->written.algorithm : dml__choose_algorithm(comm, &request->call);
    if (request->call.counts) request->schedule.count = 0; /* an earlier call's */
    dml__check_stored(job, request);
    request->round_most = request->again ? request->written.round_most : dml__round_most(job, request);
    request->round_count = request->round_most;
    if (dml__is_shared(dml__algorithm_of(request)) && !dml__take_shared(request)) return;
    dml__begin_round(job, request);
}

DML__LOCAL dml_request *dml__start(dml_comm *comm, const dml__comm_call *call, bool blocking)
{
    dml__comm_job *job = comm->job;
    dml_request *request = dml__new_request(job, blocking);
    if (!request) return NULL;
    job->stats.started++;
    request->call = *call;
    request->reduction = call->reduction;
    request->comm = comm;
    request->algorithm = -1;
    request->state = DML__REQUEST_ACTIVE;
    request->status = DML_OK;
    request->dirty = request->on_device = request->queues = false;
    request->moved = job->started = true;
    if (job->trace) dml__trace_start(job, request, dml_seconds());
    request->next = NULL;
    request->round = 0;
    request->round_begin = request->round_count = 0;
    request->flow_count = request->steps_left = 0;
    request->first_local = -1;
    memset(&request->message, 0, sizeof request->message);
    if (job->engine) {
        if (!dml__is_pair(call->signature.operation)) dml__number_call(request);
        dml__enlist(&job->active, request);
        job->engine->start(job, request);
    } else if (dml__is_pair(call->signature.operation) && dml__nccl_takes(job, call, comm)) {
        dml__enlist(&job->active, request);
        dml__nccl_start(job, request);
    } else if (call->signature.operation == DML__CALL_SEND) {
        const int rank = comm->world_ranks[call->signature.root];
        dml__begin_pair(job, request, rank, job->links[rank].messages++, call->signature.count);
    } else if (call->signature.operation == DML__CALL_RECEIVE) {
        request->sequence = UINT64_MAX; /* until its message says */
        dml__enlist(&job->unmatched, request);
        const int from = dml__match_stored(job, request) ? -1 : dml__waits_for(request);
        if (from >= 0 && job->links[from].gone) dml__data_gone(job, request, from);
    } else {
        dml__begin_collective(job, request);
    }
    return request;
}

#endif
