#ifndef DML_COMM_FAILURE_C
#define DML_COMM_FAILURE_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "net/net.h"

/* Failing together. Every rank has a control stream to every other. Whoever finds an error tells all ranks
   who is to blame, so that all end with the same sentence. A rank that dies is seen by whoever needs it, as
   its streams end. A rank that freezes is found by asking: whoever has waited for the whole timeout without
   any progress asks all ranks what they wait for and how long ago something last moved there; each rank that
   is in a call answers. The chain of who waits for whom ends at a rank that doesn't answer, which is to
   blame, or it is a circle: as long as something moves in it the network is slow and nobody is to blame. */

typedef enum dml__control_kind {
    DML__ABORT = DML__CONTROL_KINDS, /* the job is over: rank is to blame, status and text say why */
    DML__ASK,                        /* what do you wait for? With what the asking rank waits for */
    DML__ANSWER,                     /* rank is waited for, or -1 */
    DML__GOODBYE,                    /* closes its communicator in good order: it starts nothing any more */
    DML__FAREWELL                    /* has heard everybody's goodbye, and nothing was left over */
} dml__control_kind;

/* The body of ASK and ANSWER: 0 signature:16 16 communicator:4 20 zero:4 24 sequence:8 32 quiet:8, in
   microseconds */
#define DML__WAITING_BYTES 40
#define DML__ALL_COMMUNICATORS UINT32_MAX /* none has that number */

static dml__control dml__control_message(dml__control_kind kind)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = (int)kind;
    return control;
}

static void dml__tell_all(dml__comm_job *job, const dml__control *control)
{
    for (int rank = 0; job->transport && rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].gone) dml__send_control(job->transport, rank, control, 0);
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
    dml__control control = dml__control_message(DML__ABORT);
    control.rank = culprit;
    control.status = status;
    dml__set_control_text(&control, text);
    dml__tell_all(job, &control);
    if (job->transport && job->transport->calls->withdraw) job->transport->calls->withdraw(job->transport);
    dml__nccl_abort(job);
    return status;
}

DML__LOCAL void dml__say_goodbye(dml__comm_job *job, bool last)
{
    const dml__control control = dml__control_message(last ? DML__FAREWELL : DML__GOODBYE);
    dml__tell_all(job, &control);
}

/* ---- who waits for whom ---- */

/* A receive that has met no message, or whatever another engine carries out: of a collective a rank that is
   missing, or else any. */
static int dml__waits_without_flow(const dml_request *request)
{
    const dml_comm *comm = request->comm;
    const dml__comm_job *job = comm->job;
    const int root = request->call.signature.root;
    if (dml__is_pair(request->call.signature.operation)) return root < 0 ? -1 : comm->world_ranks[root];
    if (!job->engine && !request->on_device) return -1;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &job->peers[comm->world_ranks[r]];
        if (r != comm->rank && (peer->goodbye || peer->gone || !peer->answered)) return comm->world_ranks[r];
    }
    return comm->size > 1 ? comm->world_ranks[(comm->rank + 1) % comm->size] : -1;
}

DML__LOCAL int dml__waits_for(dml_request *request)
{
    const dml__flow *best = NULL;
    if (!request->flow_count) return dml__waits_without_flow(request);
    /* What hasn't come before what can't go, and of that what could be taken now. */
    for (int f = 0; f < request->flow_count; f++) {
        const dml__flow *flow = &request->flows[f];
        if (flow->step < 0) continue;
        if (!flow->sending && dml__is_free(request, flow->step)) return flow->rank;
        if (!best || (best->sending && !flow->sending)) best = flow;
    }
    return best ? best->rank : -1;
}

/* The first operation that a call waits for by itself; NULL: none. */
static dml_request *dml__waited(const dml__comm_job *job)
{
    for (int list = 0; list < 2; list++)
        for (dml_request *r = list ? job->unmatched : job->active; r; r = r->next)
            if (r->waits > 0) return r;
    return NULL;
}

/* What keeps this rank: that, since the rest of what was started keeps nobody from going on, or else the
   operation that came first of those that aren't done. */
static dml_request *dml__awaited_request(const dml__comm_job *job)
{
    dml_request *waited = dml__waited(job);
    return waited ? waited : job->active ? job->active : job->unmatched;
}

/* Whether the operations wait for different ranks, so that a wait for any of them may end by each. */
static bool dml__differ(const dml__comm_job *job)
{
    const int first = job->active || job->unmatched ? dml__waits_for(dml__awaited_request(job)) : -1;
    for (int list = 0; list < 2; list++)
        for (dml_request *r = list ? job->unmatched : job->active; r; r = r->next)
            if (dml__waits_for(r) != first) return true;
    return false;
}

/* The communicator among whose ranks is whoever may end the wait. */
static uint32_t dml__waits_in(const dml__comm_job *job, const dml_request *request)
{
    for (int list = 0; list < 2 && job->waits_for_any; list++)
        for (const dml_request *r = list ? job->unmatched : job->active; r; r = r->next)
            if (r->comm != request->comm) return DML__ALL_COMMUNICATORS;
    return request->comm->id;
}

static dml__control dml__waiting_message(const dml__comm_job *job, dml__control_kind kind)
{
    dml_request *request = dml__awaited_request(job);
    dml__control control = dml__control_message(kind);
    const double quiet = dml_seconds() - job->moved_at;
    control.rank = request && !(job->waits_for_any && dml__differ(job)) ? dml__waits_for(request) : -1;
    control.bytes = DML__WAITING_BYTES;
    if (request) {
        dml__encode_signature(&request->call.signature, control.body);
        dml__store32(control.body + 16, dml__waits_in(job, request));
        dml__store64(control.body + 24, request->sequence);
    }
    dml__store64(control.body + 32, quiet > 0 ? (uint64_t)(quiet * 1e6) : 0);
    return control;
}

static bool dml__take_waiting(dml__comm_job *job, dml__peer *peer, const dml__control *control)
{
    if (control->bytes != DML__WAITING_BYTES || control->rank < -1 || control->rank >= job->world ||
        !dml__decode_signature(control->body, &peer->waits_in))
        return false;
    peer->waits_for = control->rank;
    peer->waits_communicator = dml__load32(control->body + 16);
    peer->waits_sequence = dml__load64(control->body + 24);
    peer->moved_at = dml_seconds() - (double)dml__load64(control->body + 32) * 1e-6;
    peer->answered = true;
    return true;
}

/* ---- hearing ---- */

/* It takes nothing any more, and what it sent may still be on its way: not for long. */
static void dml__take_goodbye(dml__comm_job *job, int rank)
{
    const double soon = dml_seconds() + job->grace;
    job->peers[rank].goodbye = true;
    for (const dml__flow *flow = job->links[rank].receiving; flow; flow = flow->next)
        if (flow->request->moved || flow->request->deadline > soon) {
            flow->request->moved = false;
            flow->request->deadline = soon;
        }
    for (dml_request *r = job->outlives ? job->unmatched : NULL; r; r = r->next)
        if (dml__waits_for(r) == rank) {
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
        if (!dml__take_waiting(job, peer, control)) break;
        if (control->kind == DML__ASK) {
            const dml__control answer = dml__waiting_message(job, DML__ANSWER);
            dml__send_control(job->transport, rank, &answer, 0);
        }
        return DML_OK;
    case DML__GOODBYE: dml__take_goodbye(job, rank); return DML_OK;
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

/* ---- judging ---- */

static bool dml__all_answered(const dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].answered && !job->peers[rank].gone) return false;
    return true;
}

/* Marks the members of a communicator that a rank waits in; of one that isn't known here, all ranks. */
static void dml__reach_group(dml__comm_job *job, int from, uint32_t id)
{
    const dml_comm *comm = job->comms;
    while (comm && comm->id != id) comm = comm->next;
    if (comm && dml__group_rank(comm, from) < 0) comm = NULL; /* another group with that number */
    const int size = comm ? comm->size : job->world;
    for (int r = 0; r < size; r++) {
        dml__peer *peer = &job->peers[comm ? comm->world_ranks[r] : r];
        if (!peer->reach) peer->reach = DML__REACHED;
    }
}

/* Marks all whom this rank waits for, and whom those wait for: of a collective and of a receive from any rank
   all of the communicator. Returns when something moved last among them. */
static double dml__reach_all(dml__comm_job *job, const dml_request *request, int waits_for)
{
    double moved_at = job->moved_at;
    dml__peer *own = &job->peers[job->rank];
    own->waits_for = waits_for;
    own->waits_communicator = dml__waits_in(job, request);
    own->waits_in = request->call.signature;
    own->moved_at = job->moved_at;
    own->answered = true;
    own->reach = DML__REACHED;
    for (bool more = true; more;) {
        more = false;
        for (int rank = 0; rank < job->world; rank++) {
            dml__peer *peer = &job->peers[rank];
            if (peer->reach != DML__REACHED) continue;
            peer->reach = DML__FOLLOWED;
            more = true;
            if (!peer->answered || peer->goodbye) continue;
            if (peer->moved_at > moved_at) moved_at = peer->moved_at;
            if (peer->waits_for >= 0 && !job->peers[peer->waits_for].reach)
                job->peers[peer->waits_for].reach = DML__REACHED;
            if (peer->waits_for < 0 || !dml__is_pair(peer->waits_in.operation))
                dml__reach_group(job, rank, peer->waits_communicator);
        }
    }
    return moved_at;
}

/* All wait in a circle: because of different calls, or because the network is slow. */
static dml_status dml__blame_circle(dml__comm_job *job, const dml_request *request, int waits_for)
{
    char mine[DML__SIGNATURE_TEXT], other[DML__SIGNATURE_TEXT];
    const dml__signature *signature = &request->call.signature;
    dml__signature_text(signature, mine);
    for (int rank = 0; rank < job->world; rank++) {
        const dml__peer *peer = &job->peers[rank];
        if (rank == job->rank || !peer->reach || !peer->answered || peer->waits_for < 0) continue;
        const bool same_place = peer->waits_communicator == request->comm->id &&
                                peer->waits_sequence == request->sequence &&
                                !dml__is_pair(signature->operation);
        const bool other_call = same_place ? memcmp(&peer->waits_in, signature, sizeof *signature) != 0
                                           : peer->waits_in.operation != signature->operation;
        if (other_call)
            return dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                                 "rank %d called %s while rank %d called %s: they wait for each other", rank,
                                 dml__signature_text(&peer->waits_in, other), job->rank, mine);
    }
    return dml__job_fail(job, waits_for, DML_ERROR_TIMEOUT,
                         "%s did not end within %g s, though no rank is missing: ranks %d and %d and others "
                         "wait for each other; if the network is just slow, raise timeout_s",
                         mine, job->timeout, job->rank, waits_for < 0 ? job->rank : waits_for);
}

/* Whether a rank has nothing to say to what was asked. */
static bool dml__is_silent(const dml__comm_job *job, int rank)
{
    return rank != job->rank && (!job->peers[rank].answered || job->peers[rank].goodbye);
}

static dml_status dml__blame_silent(dml__comm_job *job, const dml_request *request, int rank)
{
    char mine[DML__SIGNATURE_TEXT];
    if (job->peers[rank].goodbye || job->peers[rank].gone) return dml__data_gone(job, request, rank);
    return dml__job_fail(job, rank, DML_ERROR_TIMEOUT,
                         "rank %d of %d took no part in %s within %g s: it is frozen, busy with something "
                         "else or unreachable",
                         rank, job->world, dml__signature_text(&request->call.signature, mine), job->timeout);
}

/* Follows who waits for whom from this rank on. Of several that a rank waits for it names one, so the way may
   lead round a circle although one in it waits for a silent rank, too. */
static dml_status dml__judge_waits(dml__comm_job *job, dml_request *request)
{
    const int waits_for = job->waits_for_any && dml__differ(job) ? -1 : dml__waits_for(request);
    double moved_at = job->moved_at;
    int rank = waits_for, steps = 0;
    for (int r = 0; r < job->world; r++) job->peers[r].reach = DML__NOT_REACHED;
    while (rank >= 0 && rank != job->rank && !dml__is_silent(job, rank) && steps++ < job->world) {
        dml__peer *peer = &job->peers[rank];
        peer->reach = DML__REACHED;
        if (peer->moved_at > moved_at) moved_at = peer->moved_at;
        rank = peer->waits_for;
    }
    const bool silent = rank >= 0 && dml__is_silent(job, rank);
    const bool late = moved_at + job->timeout <= dml_seconds();
    if (silent && (late || rank == waits_for || job->peers[rank].goodbye || job->peers[rank].gone))
        return dml__blame_silent(job, request, rank);
    if (!job->outlives || !dml__is_pair(request->call.signature.operation)) {
        const double moved = dml__reach_all(job, request, waits_for);
        if (moved > moved_at) moved_at = moved;
    }
    if (moved_at + job->timeout > dml_seconds()) {
        request->deadline = moved_at + job->timeout;
        return DML_OK;
    }
    for (int r = 0; r < request->comm->size && !dml__is_pair(request->call.signature.operation); r++)
        if (dml__is_silent(job, request->comm->world_ranks[r]))
            return dml__blame_silent(job, request, request->comm->world_ranks[r]);
    /* Who said goodbye can't help any more; who is just silent might, so the others don't wait for each other
       alone. */
    for (int r = 0; r < job->world; r++)
        if (job->peers[r].reach && dml__is_silent(job, r) && !job->peers[r].goodbye)
            return dml__blame_silent(job, request, r);
    /* A call that waits for something else, and may still do so for a while, keeps the others waiting. */
    const dml_request *waited = dml__waited(job);
    const double now = dml_seconds();
    if (waited && waited != request && waited->deadline > now) {
        const double most = now + job->timeout;
        request->deadline = waited->deadline < most ? waited->deadline : most;
        return DML_OK;
    }
    return dml__blame_circle(job, request, waits_for);
}

/* Whether the question still travels to a rank that hasn't answered: on a slow link it lies behind whatever
   was sent before it, by this rank or by others, for longer than an answer may take, or is lost and sent
   again. What this rank sent before may have been confirmed long ago, so the question has four times as long
   as an answer to be confirmed itself. The confirmations of a host that is cut off end, and to a rank that is
   frozen nothing is on its way once its system has all it takes. */
static bool dml__question_travels(const dml__comm_job *job)
{
    const dml__transport *transport = job->transport;
    if (!transport || !transport->calls->confirmed) return false;
    const bool asked_lately = dml_seconds() - job->asked_at < 4 * job->grace;
    for (int rank = 0; rank < job->world; rank++) {
        if (rank == job->rank || job->peers[rank].answered || job->peers[rank].gone) continue;
        const double confirmed = transport->calls->confirmed(transport, rank);
        if (confirmed >= 0 && (asked_lately || confirmed < job->timeout)) return true;
    }
    return false;
}

static void dml__ask_all(dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++) job->peers[rank].answered = false;
    const dml__control control = dml__waiting_message(job, DML__ASK);
    job->asked_at = dml_seconds();
    dml__tell_all(job, &control);
}

DML__LOCAL dml_status dml__look_for_culprit(dml__comm_job *job, dml_request *request)
{
    const double now = dml_seconds();
    if (job->answer_until <= 0) {
        dml__ask_all(job);
        job->answer_until = now + job->grace;
        job->question_travels = false;
        return DML_OK;
    }
    if (now < job->answer_until && !dml__all_answered(job)) return DML_OK;
    /* Whoever has a question late has as long to answer as others. */
    const bool travelled = job->question_travels;
    job->question_travels = dml__question_travels(job);
    if (!dml__all_answered(job) && (travelled || job->question_travels)) {
        job->answer_until = now + job->grace;
        return DML_OK;
    }
    job->answer_until = 0;
    dml_request *waited = dml__waited(job);
    return dml__judge_waits(job, waited && now >= waited->deadline ? waited : request);
}

static bool dml__have_answered(dml__comm_job *job, void *user)
{
    (void)user;
    return dml__all_answered(job);
}

DML__LOCAL void dml__ask_ranks(dml_comm *comm, bool *answered)
{
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    dml__ask_all(job);
    dml__wait_until(job, dml__have_answered, NULL, dml_seconds() + job->grace);
    for (int r = 0; r < comm->size; r++)
        answered[r] = r == comm->rank || job->peers[comm->world_ranks[r]].answered;
    dml__leave_job(job);
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
    char text[DML__SIGNATURE_TEXT];
    const dml_status status = dml__hear_last_words(job, rank);
    if (status) return status;
    if (job->outlives && dml__is_pair(request->call.signature.operation)) {
        dml__end_pairs_with(job, rank);
        return DML_OK;
    }
    dml__signature_text(&request->call.signature, text);
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
