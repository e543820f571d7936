#ifndef DML_COMM_COMM_C
#define DML_COMM_COMM_C

#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/clock_internal.h"
#include "comm/job.h"

/* The calls. */

/* ---- after a fork, and after the end ---- */

/* In the child of the process that opened it: there is no helper thread here, a lock may be held by a thread
   that isn't there, and the connections are the parent's. Nothing may be touched. */
DML__LOCAL bool dml__is_copy(const dml__comm_job *job)
{
    return job->mark ? !__atomic_load_n(job->mark, __ATOMIC_RELAXED) : job->process != (long)getpid();
}

DML__LOCAL bool dml__is_gone(const dml_comm *comm)
{
    return comm->closed || dml__is_copy(comm->job);
}

static const char *dml__gone_text(const dml_comm *comm)
{
    dml__comm_job *job = comm->job;
    if (comm->closed)
        snprintf(
            job->gone_error, sizeof job->gone_error,
            "rank %d's communicator is closed, and is still used: end what uses it first (a trainer that "
            "was given it, or its context)",
            job->rank);
    else
        snprintf(
            job->gone_error, sizeof job->gone_error,
            "rank %d's communicator was opened in process %ld and called in process %ld, after a fork: open "
            "one in each process",
            job->rank, job->process, (long)getpid());
    return job->gone_error;
}

/* ---- making a call ---- */

static dml__comm_call dml__make_call(dml__comm_operation operation, const void *in, void *out, size_t count,
                                     dml_dtype dtype, dml_reduce_op reduce, int root)
{
    dml__comm_call
        call; /* one by one: gcc clears so many bytes by `rep stos`, which takes a while to begin */
    call.signature.operation = operation;
    call.signature.dtype = dtype;
    call.signature.reduce = reduce;
    call.signature.root = root;
    call.signature.count = count;
    call.signature.variant = DML__PLAIN;
    call.in = (void *)(uintptr_t)in; /* written only by the calls that took it as not const */
    call.out = out;
    call.counts = call.offsets = NULL;
    call.in_counts = call.in_offsets = NULL;
    call.parts_missing = false;
    call.leaves = NULL;
    call.owners = NULL;
    call.tag = call.priority = 0;
    call.reduction.dtype = dtype;
    call.reduction.op = reduce;
    call.reduction.isa = DML_ISA_SCALAR;
    call.reduction.function = NULL;
    call.reduction.user = NULL;
    return call;
}

static dml_status dml__bad_call(const dml_comm *comm, const dml__signature *signature, const char *what)
{
    char text[DML__SIGNATURE_TEXT], where[DML__COMMUNICATOR_TEXT];
    return dml__job_fail(comm->job, comm->job->rank, DML_ERROR_ARGUMENT, "rank %d called %s%s: %s",
                         comm->job->rank, dml__signature_text(signature, text),
                         dml__communicator_text(comm->id, where), what);
}

static void dml__set_reduction(const dml_comm *comm, dml__comm_call *call)
{
    const int custom = (int)call->signature.reduce - DML__REDUCE_OP_COUNT;
    call->reduction.dtype = call->signature.dtype;
    call->reduction.op = call->signature.reduce;
    call->reduction.isa = comm->job->isa;
    call->priority = comm->priority;
    if (custom < 0) return;
    call->reduction.function = comm->functions[custom];
    call->reduction.user = comm->function_users[custom];
}

/* FNV-1a over whole counts, of which the upper half is mixed best. */
static uint32_t dml__counts_variant(const size_t *counts, int size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int r = 0; r < size; r++) hash = (hash ^ counts[r]) * UINT64_C(0x100000001b3);
    return (uint32_t)(hash >> 32) | UINT32_C(1) << 31; /* DML__WITH_COUNTS or more */
}

/* A call whose parts differ: `count` is their sum, and their places lie behind each other where nobody said.
 */
static dml__comm_call dml__make_parts_call(dml_comm *comm, dml__comm_operation operation, const void *in,
                                           void *out, const size_t *counts, const size_t *offsets,
                                           dml_dtype dtype, dml_reduce_op op, int root)
{
    dml__comm_call call = dml__make_call(operation, in, out, 0, dtype, op, root);
    call.signature.variant = DML__WITH_COUNTS;
    if (!comm || !counts) {
        call.parts_missing = true;
        return call;
    }
    call.counts = counts;
    call.signature.variant = dml__counts_variant(counts, comm->size);
    call.offsets = offsets ? offsets : comm->offsets;
    for (int r = 0; r < comm->size; r++) {
        if (!offsets) comm->offsets[r] = (size_t)call.signature.count;
        call.signature.count += counts[r];
    }
    return call;
}

/* `count` is 0: no two ranks need to have the same counts but for their part of each other. */
static dml__comm_call dml__make_exchange_call(dml_comm *comm, const void *in, const size_t *in_counts,
                                              const size_t *in_offsets, dml_dtype dtype, void *out,
                                              const size_t *out_counts, const size_t *out_offsets)
{
    dml__comm_call call =
        dml__make_parts_call(comm, DML__CALL_ALL_TO_ALL, in, out, out_counts, out_offsets, dtype, DML_SUM, 0);
    call.signature.count = 0;
    call.signature.variant = DML__WITH_COUNTS;
    if (call.parts_missing || !in_counts) {
        call.parts_missing = true;
        return call;
    }
    call.in_counts = in_counts;
    call.in_offsets = in_offsets ? in_offsets : comm->offsets + comm->size;
    size_t offset = 0;
    for (int r = 0; r < comm->size && !in_offsets; offset += in_counts[r++])
        comm->offsets[comm->size + r] = offset;
    return call;
}

static dml__comm_call dml__make_leaves_call(void *const *leaves, int64_t *owners, size_t total, void *out,
                                            size_t count, dml_dtype dtype, dml_reduce_op op)
{
    dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE_LEAVES, NULL, out, count, dtype, op,
                                         total > 0x7fffffffu ? -1 : (int)total);
    call.leaves = leaves;
    call.owners = owners;
    return call;
}

/* ---- starting ---- */

/* With the turn. */
static dml_request *dml__start_checked(dml_comm *comm, dml__comm_call *call, bool blocking)
{
    dml__comm_job *job = comm->job;
    char text[DML__SIGNATURE_TEXT], told[DML__FAULT_TEXT];
    job->probed = false;
    if (job->transport) job->clock = dml__about_seconds();
    if (job->transport && job->clock - job->heard_at > 2e-3) dml__come_back(job);
    if (job->error.status) return NULL;
    const char *fault = dml__call_fault(comm, call, told);
    if (fault) {
        dml__bad_call(comm, &call->signature, fault);
        return NULL;
    }
    if (call->signature.operation == DML__CALL_ALL_TO_ALL && call->signature.count && call->in == call->out)
        call->signature.variant = DML__IN_PLACE;
    if (comm->within && !dml__is_pair(call->signature.operation)) call->signature.variant = comm->within;
    dml__set_reduction(comm, call);
    dml_request *request = dml__start(comm, call, blocking);
    if (!request)
        dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "rank %d started %s while all %d requests were out: wait for those that were started, with "
            "dml_comm_wait or dml_comm_wait_all, or open the communicator with more max_requests",
            job->rank, dml__signature_text(&call->signature, text), job->max_requests);
    return request;
}

static dml_request *dml__call_later(dml_comm *comm, dml__comm_call *call)
{
    if (!comm || dml__is_gone(comm)) return NULL;
    dml__enter_job(comm->job);
    dml_request *request = dml__start_checked(comm, call, false);
    if (request && dml__make_progress(comm->job)) dml__note_time(comm->job, dml_seconds());
    dml__leave_job(comm->job);
    return request;
}

static dml_status dml__call_now(dml_comm *comm, dml__comm_call *call, dml_message *message)
{
    if (!comm) return DML_ERROR_ARGUMENT;
    dml__comm_job *job = comm->job;
    if (dml__is_gone(comm)) return DML_ERROR_STATE;
    dml__enter_job(job);
    dml_request *request = dml__start_checked(comm, call, true);
    dml_status status = job->error.status;
    if (request) {
        dml__wait_for(job, request);
        status = request->state == DML__REQUEST_DONE ? request->status : job->error.status;
        if (message) *message = request->message;
        if (message && status) message->source = -1;
        if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, status);
        dml__free_request(job, request);
    }
    dml__leave_job(job);
    return status;
}

DML__LOCAL void dml__go_within(dml_comm *comm, dml__call_variant variant)
{
    dml__enter_job(comm->job);
    comm->within = variant;
    dml__leave_job(comm->job);
}

/* ---- the calls themselves: X(name, parameters, arguments, what makes the call) ---- */

/* Both forms of a call from one description of it. */
#define DML__COMM_CALL(name, parameters, make)                                                               \
    DML_API dml_status dml_comm_##name parameters                                                            \
    {                                                                                                        \
        dml__comm_call call = make;                                                                          \
        return dml__call_now(comm, &call, NULL);                                                             \
    }                                                                                                        \
    DML_API dml_request *dml_comm_##name##_start parameters                                                  \
    {                                                                                                        \
        dml__comm_call call = make;                                                                          \
        return dml__call_later(comm, &call);                                                                 \
    }

DML__COMM_CALL(all_reduce, (dml_comm * comm, void *data, size_t count, dml_dtype dtype, dml_reduce_op op),
               dml__make_call(DML__CALL_ALL_REDUCE, NULL, data, count, dtype, op, 0))
DML__COMM_CALL(all_reduce_leaves,
               (dml_comm * comm, void *const *leaves, int64_t *owners, size_t total, void *out, size_t count,
                dml_dtype dtype, dml_reduce_op op),
               dml__make_leaves_call(leaves, owners, total, out, count, dtype, op))
DML__COMM_CALL(reduce,
               (dml_comm * comm, void *data, size_t count, dml_dtype dtype, dml_reduce_op op, int root),
               dml__make_call(DML__CALL_REDUCE, NULL, data, count, dtype, op, root))
DML__COMM_CALL(broadcast, (dml_comm * comm, void *data, size_t count, dml_dtype dtype, int root),
               dml__make_call(DML__CALL_BROADCAST, NULL, data, count, dtype, DML_SUM, root))
DML__COMM_CALL(scatter, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out, int root),
               dml__make_call(DML__CALL_SCATTER, in, out, count, dtype, DML_SUM, root))
DML__COMM_CALL(gather, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out, int root),
               dml__make_call(DML__CALL_GATHER, in, out, count, dtype, DML_SUM, root))
DML__COMM_CALL(all_gather, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out),
               dml__make_call(DML__CALL_ALL_GATHER, in, out, count, dtype, DML_SUM, 0))
DML__COMM_CALL(reduce_scatter,
               (dml_comm * comm, void *in, size_t count_per_rank, dml_dtype dtype, dml_reduce_op op,
                void *out),
               dml__make_call(DML__CALL_REDUCE_SCATTER, in, out, count_per_rank, dtype, op, 0))
DML__COMM_CALL(all_to_all, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out),
               dml__make_call(DML__CALL_ALL_TO_ALL, in, out, count, dtype, DML_SUM, 0))
DML__COMM_CALL(all_to_allv,
               (dml_comm * comm, const void *in, const size_t *in_counts, const size_t *in_offsets,
                dml_dtype dtype, void *out, const size_t *out_counts, const size_t *out_offsets),
               dml__make_exchange_call(comm, in, in_counts, in_offsets, dtype, out, out_counts, out_offsets))
DML__COMM_CALL(barrier, (dml_comm * comm),
               dml__make_call(DML__CALL_BARRIER, NULL, NULL, 0, DML_U8, DML_SUM, 0))
DML__COMM_CALL(scatterv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out, int root),
               dml__make_parts_call(comm, DML__CALL_SCATTER, in, out, counts, offsets, dtype, DML_SUM, root))
DML__COMM_CALL(gatherv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out, int root),
               dml__make_parts_call(comm, DML__CALL_GATHER, in, out, counts, offsets, dtype, DML_SUM, root))
DML__COMM_CALL(all_gatherv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out),
               dml__make_parts_call(comm, DML__CALL_ALL_GATHER, in, out, counts, offsets, dtype, DML_SUM, 0))
DML__COMM_CALL(reduce_scatterv,
               (dml_comm * comm, void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                dml_reduce_op op, void *out),
               dml__make_parts_call(comm, DML__CALL_REDUCE_SCATTER, in, out, counts, offsets, dtype, op, 0))

#undef DML__COMM_CALL

static dml__comm_call dml__make_pair(dml__comm_operation operation, const void *data, size_t count,
                                     dml_dtype dtype, int other, int tag)
{
    dml__comm_call call =
        dml__make_call(operation, NULL, (void *)(uintptr_t)data, count, dtype, DML_SUM, other);
    call.tag = tag;
    return call;
}

DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to,
                                 int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_SEND, data, count, dtype, to, tag);
    return dml__call_now(comm, &call, NULL);
}

DML_API dml_request *dml_comm_send_start(dml_comm *comm, const void *data, size_t count, dml_dtype dtype,
                                         int to, int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_SEND, data, count, dtype, to, tag);
    return dml__call_later(comm, &call);
}

DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from,
                                    int tag, dml_message *message)
{
    dml__comm_call call = dml__make_pair(DML__CALL_RECEIVE, data, count, dtype, from, tag);
    return dml__call_now(comm, &call, message);
}

DML_API dml_request *dml_comm_receive_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                            int from, int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_RECEIVE, data, count, dtype, from, tag);
    return dml__call_later(comm, &call);
}

/* ---- what a communicator says of itself ---- */

DML_API dml_status dml_comm_status(const dml_comm *comm)
{
    if (!comm) return DML_ERROR_ARGUMENT;
    if (dml__is_gone(comm)) return DML_ERROR_STATE;
    dml__mutex_lock(&comm->job->mutex);
    const dml_status status = comm->job->error.status;
    dml__mutex_unlock(&comm->job->mutex);
    return status;
}

DML_API const char *dml_comm_error(const dml_comm *comm)
{
    if (!comm)
        return "no communicator (NULL): dml_comm_split gives that to ranks of negative color, and "
               "dml_comm_open "
               "when there is no memory for one";
    if (dml__is_gone(comm)) return dml__gone_text(comm);
    return dml_comm_status(comm) ? comm->job->error.text : "";
}

DML_API int dml_comm_culprit(const dml_comm *comm)
{
    if (!comm || dml__is_gone(comm)) return -1;
    dml__mutex_lock(&comm->job->mutex);
    const int culprit = comm->job->aborted ? comm->job->culprit : -1;
    dml__mutex_unlock(&comm->job->mutex);
    return culprit < 0 ? -1 : dml__group_rank(comm, culprit);
}

DML_API int dml_comm_rank(const dml_comm *comm)
{
    return comm ? comm->rank : 0;
}

DML_API int dml_comm_world_size(const dml_comm *comm)
{
    return comm ? comm->size : 1;
}

DML_API int dml_comm_strangers(const dml_comm *comm)
{
    return comm ? comm->job->strangers : 0;
}

DML_API void dml_comm_get_stats(dml_comm *comm, dml_comm_stats *stats)
{
    if (!stats) return;
    memset(stats, 0, sizeof *stats);
    if (!comm || dml__is_gone(comm)) return;
    dml__enter_job(comm->job);
    *stats = comm->job->stats;
    stats->strangers = comm->job->strangers;
    dml__leave_job(comm->job);
}

DML_API void dml_comm_outlive(dml_comm *comm)
{
    if (!comm || dml__is_gone(comm) || comm->job->engine) return;
    dml__enter_job(comm->job);
    comm->job->outlives = true;
    comm->patient = true;
    dml__leave_job(comm->job);
}

DML_API dml_status dml_comm_abort(dml_comm *comm, const char *reason)
{
    if (!comm || dml__is_gone(comm)) return dml_comm_status(comm);
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    const dml_status status = dml__job_fail(job, job->rank, DML_ERROR_PEER, "rank %d of %d gave up%s%s",
                                            job->rank, job->world, reason ? ": " : "", reason ? reason : "");
    dml__leave_job(job);
    return status;
}

DML_API void dml_comm_set_priority(dml_comm *comm, int priority)
{
    if (comm) comm->priority = priority;
}

DML_API void dml_comm_set_stream(dml_comm *comm, void *stream)
{
    if (comm) comm->stream = stream;
}

DML_API dml_reduce_op dml_comm_add_reduce(dml_comm *comm, dml_reduce_function function, void *user)
{
    const int none = DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS;
    if (!comm || !function || comm->function_count == DML__MOST_FUNCTIONS) return (dml_reduce_op)none;
    comm->functions[comm->function_count] = function;
    comm->function_users[comm->function_count] = user;
    return (dml_reduce_op)(DML__REDUCE_OP_COUNT + comm->function_count++);
}

#endif
