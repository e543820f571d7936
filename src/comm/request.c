#ifndef DML_COMM_REQUEST_C
#define DML_COMM_REQUEST_C

#include "base/clock.h"
#include "base/os_thread.h"
#include "comm/comm.h"
#include "comm/job.h"
#include "comm/trace.h"

/* What was started: looked at, waited for, taken back or cancelled; and messages that nobody has asked for.
 */

static bool dml__request_done(dml__comm_job *job, void *user)
{
    (void)job;
    return ((const dml_request *)user)->state != DML__REQUEST_ACTIVE;
}

/* With the turn. */
DML__LOCAL void dml__wait_for(dml__comm_job *job, dml_request *request)
{
    const double before = job->stats.waited_s;
    request->waits++;
    dml__wait_until(job, dml__request_done, request, -1);
    request->waits--;
    if (job->trace) dml__trace_waited(job, request, job->stats.waited_s - before);
}

/* Whether it is a place in job->requests. */
static bool dml__is_own_request(const dml__comm_job *job, const dml_request *request)
{
    const uintptr_t offset = (uintptr_t)request - (uintptr_t)job->requests;
    return offset < (uintptr_t)job->max_requests * sizeof *request && offset % sizeof *request == 0;
}

/* With the turn. */
static void dml__progress_between(dml__comm_job *job)
{
    if (dml__make_progress(job)) dml__note_time(job, dml_seconds());
    dml__keep_watch(job);
}

DML__LOCAL void dml__comm_progress(dml_comm *comm)
{
    if (dml__is_gone(comm)) return;
    dml__enter_job(comm->job);
    if (!comm->job->error.status) dml__progress_between(comm->job);
    dml__leave_job(comm->job);
}

/* So many looks in vain take a microsecond or two: whoever goes on looking may share a processor with the
   rank that it looks for, which would have to wait for the end of its share. */
#define DML__VAIN_LOOKS 16

/* With the turn. */
static void dml__looked(dml__comm_job *job, bool in_vain)
{
    if (!in_vain)
        job->vain_looks = 0;
    else if (job->yields || job->vain_looks == DML__VAIN_LOOKS)
        dml__thread_yield();
    else
        job->vain_looks++;
}

DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request)
{
    if (!comm || !request || dml__is_gone(comm) || !dml__is_own_request(comm->job, request)) return true;
    dml__enter_job(comm->job);
    if (request->state == DML__REQUEST_ACTIVE && !comm->job->error.status) dml__progress_between(comm->job);
    const bool done = request->state != DML__REQUEST_ACTIVE || comm->job->error.status;
    dml__looked(comm->job, !done);
    dml__leave_job(comm->job);
    return done;
}

/* With the turn; what became of it. */
static dml_status dml__take_back(dml__comm_job *job, dml_request *request, dml_message *message)
{
    dml_status status = job->error.status;
    if (request->state == DML__REQUEST_FREE)
        return dml__job_fail(job, job->rank, DML_ERROR_STATE,
                             "rank %d waited for a request that isn't out: it waited twice for the same one, "
                             "or had cancelled it or closed its communicator",
                             job->rank);
    if (request->state == DML__REQUEST_DONE) status = request->status;
    if (message) *message = request->message;
    if (message && status) message->source = -1;
    if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, status);
    dml__free_request(job, request);
    return status;
}

DML_API dml_status dml_comm_wait_message(dml_comm *comm, dml_request *request, dml_message *message)
{
    if (!comm || !request || dml__is_gone(comm)) return dml_comm_status(comm);
    dml__comm_job *job = comm->job;
    dml_status status;
    dml__enter_job(job);
    if (!dml__is_own_request(job, request)) {
        status = dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                               "rank %d waited for a request that another communicator gave out", job->rank);
    } else {
        dml__wait_for(job, request);
        status = dml__take_back(job, request, message);
    }
    dml__leave_job(job);
    return status;
}

DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request)
{
    return dml_comm_wait_message(comm, request, NULL);
}

typedef struct dml__any {
    dml_request **requests;
    int count, found;
} dml__any;

static bool dml__any_done(dml__comm_job *job, void *user)
{
    dml__any *any = (dml__any *)user;
    int waiting = 0;
    for (any->found = 0; any->found < any->count; any->found++) {
        const dml_request *request = any->requests[any->found];
        if (!request) continue;
        if (!dml__is_own_request(job, request) || request->state != DML__REQUEST_ACTIVE) return true;
        waiting++;
    }
    return !waiting;
}

DML_API int dml_comm_wait_any_message(dml_comm *comm, dml_request **requests, int count, dml_message *message)
{
    if (!comm || !requests || dml__is_gone(comm)) return -1;
    dml__comm_job *job = comm->job;
    dml__any any;
    any.requests = requests;
    any.count = count;
    any.found = count;
    int index = -1;
    dml__enter_job(job);
    job->waits_for_any = count > 1;
    const bool ended = dml__wait_until(job, dml__any_done, &any, -1);
    job->waits_for_any = false;
    if (ended && any.found < count) {
        if (!dml__is_own_request(job, requests[any.found])) {
            dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                          "rank %d waited for a request that another communicator gave out", job->rank);
        } else {
            index = any.found;
            dml__take_back(job, requests[index], message);
            requests[index] = NULL;
        }
    }
    dml__leave_job(job);
    return index;
}

DML_API int dml_comm_wait_any(dml_comm *comm, dml_request **requests, int count)
{
    return dml_comm_wait_any_message(comm, requests, count, NULL);
}

DML_API dml_status dml_comm_wait_all(dml_comm *comm)
{
    if (!comm || dml__is_gone(comm)) return dml_comm_status(comm);
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    dml__wait_until(job, dml__none_active, NULL, -1);
    for (int i = 0; job->requests && i < job->max_requests; i++)
        if (job->requests[i].state != DML__REQUEST_FREE) dml__take_back(job, &job->requests[i], NULL);
    dml__leave_job(job);
    return dml_comm_status(comm);
}

DML_API bool dml_comm_cancel(dml_comm *comm, dml_request *request)
{
    if (!comm || !request || dml__is_gone(comm) || !dml__is_own_request(comm->job, request)) return false;
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    const bool can = request->state == DML__REQUEST_ACTIVE && request->algorithm < 0 &&
                     request->call.signature.operation == DML__CALL_RECEIVE && !request->flow_count &&
                     (!job->engine || (!job->error.status && job->engine->cancel(job, request)));
    if (can) {
        dml__end_request(job, request, DML_OK);
        dml__free_request(job, request);
    }
    dml__leave_job(job);
    return can;
}

typedef struct dml__probing {
    dml_comm *comm;
    int from, tag;
    dml_message message;
} dml__probing;

static bool dml__probe_found(dml__comm_job *job, void *user)
{
    dml__probing *probing = (dml__probing *)user;
    dml_comm *comm = probing->comm;
    dml__frame frame;
    int rank;
    if (job->engine) return job->engine->probe(job, comm, probing->from, probing->tag, &probing->message);
    if (!dml__find_stored(job, comm, probing->from, probing->tag, &rank, &frame)) return false;
    probing->message.source = dml__group_rank(comm, rank);
    probing->message.tag = frame.tag;
    probing->message.count = (size_t)frame.signature.count;
    probing->message.dtype = frame.signature.dtype;
    return true;
}

DML_API bool dml_comm_probe(dml_comm *comm, int from, int tag, double seconds, dml_message *message)
{
    if (!comm || dml__is_gone(comm)) return false;
    dml__comm_job *job = comm->job;
    dml__probing probing;
    probing.comm = comm;
    probing.from = from;
    probing.tag = tag;
    dml__enter_job(job);
    if (from < DML_ANY_SOURCE || from >= comm->size || tag < DML_ANY_TAG)
        dml__job_fail(
            job, job->rank, DML_ERROR_ARGUMENT,
            "rank %d asked for a message from %d with tag %d: there are ranks 0 to %d and no tags below 0",
            comm->rank, from, tag, comm->size - 1);
    if (job->error.status || !job->transport) {
        dml__leave_job(job);
        return false;
    }
    job->clock = dml_seconds();
    const double until = job->clock + (seconds > 0 ? seconds : 0);
    job->probing++;
    if (job->clock - job->heard_at > 2e-3) dml__come_back(job);
    job->look_around = true;
    dml__make_progress(job);
    const bool found = dml__wait_until(job, dml__probe_found, &probing, until);
    job->probing--;
    job->probed = !found;
    if (seconds <= 0) dml__looked(job, !found);
    if (found && message) *message = probing.message;
    dml__leave_job(job);
    return found;
}

#endif
