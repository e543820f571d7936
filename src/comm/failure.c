#ifndef DML_COMM_FAILURE_C
#define DML_COMM_FAILURE_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "comm/waiting.h"
#include "net/net.h"

/* Failing together. Every rank has a control stream to every other. Whoever finds an error tells all ranks
   who is to blame, so that all end with the same sentence. A rank that dies is seen by whoever needs it, as
   its streams end. A rank that freezes is found by asking (waiting.c). */

DML__LOCAL dml__control dml__control_message(dml__control_kind kind)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = (int)kind;
    return control;
}

DML__LOCAL void dml__tell_all(dml__comm_job *job, const dml__control *control)
{
    for (int rank = 0; job->transport && rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].gone) dml__send_control(job->transport, rank, control, 0);
}

static dml__control dml__abort_message(int culprit, dml_status status, const char *text)
{
    dml__control control = dml__control_message(DML__ABORT);
    control.rank = culprit;
    control.status = status;
    dml__set_control_text(&control, text);
    return control;
}

DML__LOCAL dml_status dml__job_fail(dml__comm_job *job, int culprit, dml_status status, const char *format,
                                    ...)
{
    char text[DML__NET_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dml__fail(&job->error, status, "%s", text);
    status = job->error.status;
    if (job->aborted) return status;
    job->aborted = true;
    job->culprit = culprit;
    dml__log(&job->logger, DML_LOG_ERROR, "%s", text);
    const dml__control control = dml__abort_message(culprit, status, text);
    dml__tell_all(job, &control);
    if (job->transport && job->transport->calls->withdraw) job->transport->calls->withdraw(job->transport);
    dml__nccl_abort(job);
    return status;
}

DML__LOCAL dml__control dml__failure_message(const dml__comm_job *job)
{
    return dml__abort_message(job->culprit, job->error.status, job->error.text);
}

DML__LOCAL void dml__say_goodbye(dml__comm_job *job, bool last)
{
    dml__control control = dml__control_message(last ? DML__FAREWELL : DML__GOODBYE);
    control.bytes = sizeof(uint64_t);
    for (int rank = 0; job->transport && rank < job->world; rank++) {
        if (rank == job->rank || job->peers[rank].gone) continue;
        dml__store64(control.body, job->links[rank].frames_sent);
        dml__send_control(job->transport, rank, &control, 0);
    }
}

/* ---- hearing ---- */

DML__LOCAL void dml__expect_no_more(dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    if (!job->peers[rank].goodbye || link->frames_come < job->peers[rank].frames || link->payload_left)
        return;
    const double soon = dml_seconds() + job->grace;
    for (const dml__flow *flow = link->receiving; flow; flow = flow->next)
        if (flow->request->moved || flow->request->deadline > soon) {
            flow->request->moved = false;
            flow->request->deadline = soon;
        }
    for (dml_request *r = job->unmatched; r; r = r->next)
        if ((dml__waits_for(r) == rank || dml__nobody_sends(job, r)) && (r->moved || r->deadline > soon)) {
            r->moved = false;
            r->deadline = soon;
        }
}

static dml_status dml__take_control(dml__comm_job *job, int rank, const dml__control *control)
{
    dml__peer *peer = &job->peers[rank];
    char text[DML__CONTROL_BODY];
    switch (control->kind) {
    case DML__ABORT:
        dml__control_text(control, text);
        return dml__job_fail(job, control->rank, control->status ? control->status : DML_ERROR_PEER, "%s",
                             text);
    case DML__ASK:
    case DML__ANSWER:
        if (!dml__take_waiting(job, rank, control)) break;
        return DML_OK;
    case DML__ASK_CALL:
    case DML__SAY_CALL:
        if (!dml__take_call(job, rank, control)) break;
        return DML_OK;
    case DML__GOODBYE:
        if (control->bytes != sizeof(uint64_t)) break;
        peer->goodbye = true;
        peer->frames = dml__load64(control->body);
        dml__expect_no_more(job, rank);
        return DML_OK;
    case DML__FAREWELL: peer->farewell = true; return DML_OK;
    case DML__ADDRESSES:
        if (job->meeting && dml__take_addresses(job->meeting, rank, control)) return DML_OK;
        break;
    default: break;
    }
    return dml__job_fail(job, rank, DML_ERROR_FORMAT, "rank %d sent rank %d a message that makes no sense",
                         rank, job->rank);
}

static dml_status dml__read_control_of(dml__comm_job *job, int rank)
{
    dml__peer *peer = &job->peers[rank];
    for (;;) {
        dml__span span;
        span.data = peer->control + peer->control_bytes;
        span.bytes = sizeof peer->control - peer->control_bytes;
        const ptrdiff_t got =
            job->transport->calls->receive(job->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (got == 0) return DML_OK;
        if (got == DML__GONE) {
            /* No error yet: what it has completed it may have left for the others to complete. */
            peer->gone = true;
            return DML_OK;
        }
        peer->control_bytes += (size_t)got;
        if (peer->control_bytes < sizeof peer->control) continue;
        peer->control_bytes = 0;
        dml__control control;
        if (!dml__decode_control(peer->control, &control))
            return dml__job_fail(job, rank, DML_ERROR_FORMAT,
                                 "rank %d sent rank %d something that is no message of this protocol", rank,
                                 job->rank);
        const dml_status status = dml__take_control(job, rank, &control);
        if (status) return status;
    }
}

DML__LOCAL dml_status dml__read_control(dml__comm_job *job)
{
    dml_status status = DML_OK;
    job->heard_at = dml_seconds();
    for (int rank = 0; rank < job->world && !status; rank++)
        if (rank != job->rank && !job->peers[rank].gone) status = dml__read_control_of(job, rank);
    return status;
}

DML__LOCAL dml_status dml__hear_last_words(dml__comm_job *job, int rank)
{
    const double until = dml_seconds() + job->grace;
    dml_status status = dml__read_control(job);
    for (int r = 0; r < job->world; r++) job->wishes[r] = 0;
    while (!status && !job->peers[rank].gone && !job->peers[rank].goodbye && dml_seconds() < until) {
        const int ready = job->transport->calls->wait(job->transport, job->wishes, until - dml_seconds());
        if (ready == DML__GONE) break;
        status = dml__read_control(job);
    }
    return status;
}

DML__LOCAL void dml__end_pairs_with(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml_request *lists[2];
    lists[0] = job->active;
    lists[1] = job->unmatched;
    link->gone = true;
    link->out_total = link->header_bytes = link->payload_left = link->padding_left = link->storing = 0;
    link->taking = link->out_flow = NULL;
    link->mode = DML__TAKE_NO_PAYLOAD;
    for (int i = 0; i < 2; i++)
        for (dml_request *r = lists[i], *next; r; r = next) {
            next = r->next;
            if (!dml__is_pair(r->call.signature.operation)) continue;
            if ((r->flow_count ? r->flows[0].rank : dml__waits_for(r)) == rank)
                dml__end_request(job, r, DML_ERROR_PEER);
        }
}

DML__LOCAL dml_status dml__data_gone(dml__comm_job *job, const dml_request *request, int rank)
{
    char text[DML__WAITING_TEXT];
    int extra = -1;
    dml_status status = dml__hear_last_words(job, rank);
    if (!status && job->peers[rank].goodbye && !dml__is_pair(request->call.signature.operation)) {
        status = dml__compare_calls(request->comm, request->sequence);
        if (!status) extra = dml__one_too_many(request->comm);
    }
    if (status) return status;
    if (job->outlives && dml__is_pair(request->call.signature.operation)) {
        dml__end_pairs_with(job, rank);
        return DML_OK;
    }
    dml__waiting waiting = dml__waiting_of(job, request);
    waiting.communicator = request->comm->id;
    dml__waiting_text(&waiting, text);
    if (extra >= 0)
        return dml__job_fail(job, extra, DML_ERROR_PEER,
                             "rank %d called %s, while more ranks, rank %d among them, have closed their "
                             "communicators without it",
                             extra, text, rank);
    if (job->peers[rank].goodbye)
        return dml__job_fail(job, rank, DML_ERROR_PEER,
                             "rank %d closed its communicator while rank %d was in %s", rank, job->rank,
                             text);
    if (job->peers[rank].gone)
        return dml__job_fail(job, rank, DML_ERROR_PEER,
                             "rank %d of %d died: its connection ended without a goodbye", rank, job->world);
    return dml__job_fail(job, rank, DML_ERROR_PEER, "rank %d lost its connection to rank %d in %s", rank,
                         job->rank, text);
}

#endif
