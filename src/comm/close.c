#ifndef DML_COMM_CLOSE_C
#define DML_COMM_CLOSE_C

#include <stdio.h>

#include "base/clock.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "comm/shared_memory.h"
#include "comm/trace.h"

/* Closing: in good order, or as far as it goes. */

static bool dml__all_said_goodbye(dml__comm_job *job, void *user)
{
    const bool last = *(const bool *)user;
    for (int rank = 0; rank < job->world; rank++) {
        const dml__peer *peer = &job->peers[rank];
        if (rank != job->rank && !peer->gone && !(last ? peer->farewell : peer->goodbye)) return false;
    }
    return true;
}

/* False: the job has failed. */
static bool dml__take_leave(dml__comm_job *job, bool last, double until)
{
    if (job->error.status) return false;
    dml__say_goodbye(job, last);
    dml__wait_until(job, dml__all_said_goodbye, &last, until);
    return !job->error.status;
}

static void dml__judge_unreceived(dml__comm_job *job)
{
    dml_message message;
    if (job->engine->probe(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &message))
        dml__job_fail(job, message.source, DML_ERROR_MISMATCH,
                      "rank %d called send(%s, %llu, to %d) with tag %d, which rank %d never received",
                      message.source, dml_dtype_name(message.dtype), (unsigned long long)message.count,
                      job->rank, message.tag, job->rank);
}

/* What came and was never asked for. */
static void dml__judge_leftovers(dml__comm_job *job)
{
    dml__frame frame;
    int rank;
    char text[DML__SIGNATURE_TEXT];
    if (job->engine) {
        dml__judge_unreceived(job);
        return;
    }
    if (!dml__find_stored(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &rank, &frame)) return;
    dml__signature_text(&frame.signature, text);
    if (dml__is_pair(frame.signature.operation))
        dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                      "rank %d called %s with tag %d, which rank %d never received", rank, text, frame.tag,
                      job->rank);
    else
        dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                      "rank %d called %s and rank %d closed its communicator without calling it", rank, text,
                      job->rank);
}

static void dml__close_in_order(dml__comm_job *job)
{
    dml__wait_until(job, dml__none_active, NULL, -1);
    /* Who waits in a call that never ends says so after the timeout, and a search. */
    const double until = dml_seconds() + job->timeout + 2 * job->grace;
    if (!dml__take_leave(job, false, until)) return;
    job->look_around = true;
    dml__make_progress(job);
    for (int rank = 0; job->outlives && !job->engine && rank < job->world; rank++)
        if (job->links[rank].gone) job->links[rank].store_used = 0; /* who died couldn't know */
    dml__judge_leftovers(job);
    dml__take_leave(job, true, until);
}

static bool dml__comm_is_idle(dml__comm_job *job, void *user)
{
    const dml_comm *comm = (const dml_comm *)user;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->comm == comm) return false;
    for (const dml_request *r = job->unmatched; r; r = r->next)
        if (r->comm == comm) return false;
    return true;
}

/* What was started on one of several communicators ends, and its requests are free again. */
static void dml__finish_comm(dml__comm_job *job, dml_comm *comm)
{
    dml__wait_until(job, dml__comm_is_idle, comm, -1);
    for (int i = 0; i < job->max_requests; i++) {
        dml_request *request = &job->requests[i];
        if (request->comm != comm || request->state == DML__REQUEST_FREE) continue;
        if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, job->error.status);
        dml__free_request(job, request);
    }
}

static void dml__unshare_all(dml__comm_job *job)
{
    for (dml_comm *comm = job->comms; comm; comm = comm->next) dml__unshare_memory(comm);
}

static bool dml__is_last_open(const dml__comm_job *job, const dml_comm *comm)
{
    for (const dml_comm *other = job->comms; other; other = other->next)
        if (other != comm && !other->closed) return false;
    return true;
}

static bool dml__is_kept(const dml__comm_job *job)
{
    return __atomic_load_n(&job->kept, __ATOMIC_ACQUIRE) > 0;
}

/* The last communicators that were closed stay until the job ends: other ranks may still ask what this one
   called in them, and whoever uses them is told that they are closed. So do all that a strategy may use. */
#define DML__CLOSED_REMEMBERED 16

static void dml__forget_closed(dml__comm_job *job)
{
    for (dml_comm *comm = job->comms, *next; comm && !dml__is_kept(job); comm = next) {
        next = comm->next;
        if (comm->closed && comm->closed + DML__CLOSED_REMEMBERED <= job->closings) dml__free_comm(job, comm);
    }
}

static void dml__shut_comm(dml__comm_job *job, dml_comm *comm)
{
    dml__leave_beneath(job, comm);
    comm->closed = ++job->closings;
    dml__forget_closed(job);
}

static void dml__shut_job(dml__comm_job *job, dml_comm *comm)
{
    if (!dml__is_kept(job)) {
        dml__destroy_job(job);
        return;
    }
    dml__shut_comm(job, comm);
    dml__nccl_close(job);
    job->transport = NULL;
    job->local = NULL;
    job->closed = true;
}

DML__LOCAL void dml__comm_keep(dml_comm *comm)
{
    if (comm) __atomic_fetch_add(&comm->job->kept, 1, __ATOMIC_RELAXED);
}

DML__LOCAL void dml__comm_let_go(dml_comm *comm)
{
    if (!comm || __atomic_sub_fetch(&comm->job->kept, 1, __ATOMIC_ACQ_REL) > 0) return;
    dml__comm_job *job = comm->job;
    if (job->closed) {
        dml__destroy_job(job);
    } else if (!dml__is_copy(job)) {
        dml__enter_job(job);
        dml__forget_closed(job);
        dml__leave_job(job);
    }
}

DML_API dml_status dml_comm_close(dml_comm *comm)
{
    return dml_comm_close_error(comm, NULL, 0);
}

DML_API dml_status dml_comm_close_error(dml_comm *comm, char *text, size_t bytes)
{
    if (!text) bytes = 0;
    if (bytes) text[0] = 0;
    if (!comm) return DML_OK;
    dml__comm_job *job = comm->job;
    if (comm->closed) {
        if (bytes) snprintf(text, bytes, "%s", dml_comm_error(comm));
        return DML_ERROR_STATE;
    }
    const bool last = dml__is_last_open(job, comm);
    if (dml__is_copy(job)) {
        if (bytes) snprintf(text, bytes, "%s", dml_comm_error(comm));
        /* Mutexes and the condition stay as the fork found them: destroying them would wait for threads. */
        if (last) dml__unshare_all(job);
        if (last && job->transport) job->transport->calls->abandon(job->transport);
        if (last) job->transport = NULL;
        if (last && !dml__is_kept(job))
            dml__release_job(job);
        else
            dml__shut_comm(job, comm);
        return DML_ERROR_STATE;
    }
    dml__enter_job(job);
    if (!last) {
        if (job->requests) dml__finish_comm(job, comm);
        const dml_status status = job->error.status;
        if (bytes && status) snprintf(text, bytes, "%s", job->error.text);
        dml__shut_comm(job, comm);
        dml__leave_job(job);
        return status;
    }
    if (job->transport) dml__close_in_order(job);
    dml__error error = job->error;
    dml__stop_helper(job);
    if (job->trace) dml__write_trace(job, &error); /* which an error before goes before */
    if (bytes && error.status) snprintf(text, bytes, "%s", error.text);
    dml__unshare_all(job);
    if (job->transport) job->transport->calls->close(job->transport);
    dml__mutex_unlock(&job->mutex);
    struct dml__local_job *local = job->local;
    dml__shut_job(job, comm);
    if (local) dml__leave_local(local);
    return error.status;
}

#endif
