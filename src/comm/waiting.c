#ifndef DML_COMM_WAITING_C
#define DML_COMM_WAITING_C

#include "comm/waiting.h"

#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/net.h"

/* Who waits for whom. Whoever has waited for the whole timeout without any progress asks all ranks what they
   wait for and how long ago something last moved there. Each rank that is in a call answers, and so does a
   progress thread, which adds whether its rank is absent: in no call, and without having begun what was asked
   about; who probes for a message is so, too. judge.c follows the answers. */

/* The body of ASK and ANSWER: 0 signature:20 20 communicator:4 24 sequence:8 32 quiet:8, in microseconds,
   40 1 + tag:4 44 absent:4 48 lies_from:4 52 1 + lies_tag:4 */
#define DML__WAITING_BYTES 56

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
    if (request->queues && request->comm->sharing)
        request = request->comm->sharing; /* (none after an error) */
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

DML__LOCAL dml_request *dml__waited(const dml__comm_job *job)
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

DML__LOCAL bool dml__waits_for_any(const dml__comm_job *job)
{
    if (!job->waits_for_any) return false;
    const int first = job->active || job->unmatched ? dml__waits_for(dml__awaited_request(job)) : -1;
    for (int list = 0; list < 2; list++)
        for (dml_request *r = list ? job->unmatched : job->active; r; r = r->next)
            if (dml__waits_for(r) != first) return true;
    return false;
}

/* The communicator among whose ranks is whoever may end the wait. */
static uint32_t dml__waits_in(const dml__comm_job *job, const dml_request *request)
{
    for (int list = 0; list < 2 && dml__waits_for_any(job); list++)
        for (const dml_request *r = list ? job->unmatched : job->active; r; r = r->next)
            if (r->comm != request->comm) return DML__ALL_COMMUNICATORS;
    return request->comm->id;
}

/* What came for a receive but for its tag. */
static void dml__find_other_tag(const dml__comm_job *job, const dml_request *request, dml__waiting *waiting)
{
    dml__frame frame;
    int rank;
    if (request->call.signature.operation != DML__CALL_RECEIVE || request->flow_count || job->engine ||
        !dml__find_stored(job, request->comm, request->call.signature.root, DML_ANY_TAG, &rank, &frame))
        return;
    waiting->lies_from = dml__group_rank(request->comm, rank);
    waiting->lies_tag = frame.tag;
}

DML__LOCAL dml__waiting dml__waiting_of(const dml__comm_job *job, const dml_request *request)
{
    dml__waiting waiting;
    memset(&waiting, 0, sizeof waiting);
    waiting.communicator = DML__ALL_COMMUNICATORS;
    waiting.lies_tag = -1;
    if (!request) return waiting;
    waiting.call = request->call.signature;
    waiting.communicator = dml__waits_in(job, request);
    waiting.sequence = request->sequence;
    waiting.tag = request->call.tag;
    dml__find_other_tag(job, request, &waiting);
    return waiting;
}

static dml__control dml__waiting_message(dml__comm_job *job, dml__control_kind kind, dml_request *request,
                                         dml__absence absent)
{
    dml__control control = dml__control_message(kind);
    const double now = dml_seconds();
    dml__note_time(job, now); /* what a progress thread moved, which looks at the clock where nothing does */
    const double quiet = now - job->moved_at;
    control.rank = request && !dml__waits_for_any(job) ? dml__waits_for(request) : -1;
    control.bytes = DML__WAITING_BYTES;
    const dml__waiting waiting = dml__waiting_of(job, request);
    dml__encode_signature(&waiting.call, control.body);
    dml__store32(control.body + 20, waiting.communicator);
    dml__store32(control.body + 44, (uint32_t)absent);
    dml__store64(control.body + 24, waiting.sequence);
    dml__store64(control.body + 32, quiet > 0 ? (uint64_t)(quiet * 1e6) : 0);
    dml__store32(control.body + 40, (uint32_t)waiting.tag + 1);
    dml__store32(control.body + 48, (uint32_t)waiting.lies_from);
    dml__store32(control.body + 52, (uint32_t)waiting.lies_tag + 1);
    return control;
}

static bool dml__decode_waiting(const dml__control *control, dml__waiting *waiting)
{
    waiting->communicator = dml__load32(control->body + 20);
    waiting->sequence = dml__load64(control->body + 24);
    const uint32_t tag = dml__load32(control->body + 40), lies = dml__load32(control->body + 52);
    waiting->tag = tag ? (int)((tag - 1) & 0x7fffffff) : DML_ANY_TAG;
    waiting->lies_from = (int)(dml__load32(control->body + 48) & 0x7fffffff);
    waiting->lies_tag = lies ? (int)((lies - 1) & 0x7fffffff) : -1;
    return control->bytes == DML__WAITING_BYTES && dml__decode_signature(control->body, &waiting->call);
}

DML__LOCAL bool dml__nobody_sends(const dml__comm_job *job, const dml_request *request)
{
    const dml_comm *comm = request->comm;
    if (request->call.signature.operation != DML__CALL_RECEIVE || request->call.signature.root >= 0 ||
        request->flow_count || job->engine || job->outlives)
        return false;
    for (int r = 0; r < comm->size; r++) {
        const int rank = comm->world_ranks[r];
        const dml__link *link = &job->links[rank];
        if (rank != job->rank &&
            (!job->peers[rank].goodbye || link->frames_come < job->peers[rank].frames || link->payload_left))
            return false;
    }
    return true;
}

DML__LOCAL bool dml__is_away(const dml__comm_job *job)
{
    return job->helper_started && !job->waiting && dml_seconds() > job->called_at + job->grace;
}

/* Who probes, or does so again and again while nothing is under way, waits for nothing that the others would
   know of. */
static dml__absence dml__absence_of(const dml__comm_job *job)
{
    if (job->probing && !dml__waited(job)) return DML__IS_PROBING;
    if (job->probed && !job->active && !job->unmatched) return DML__IS_PROBING;
    return dml__is_away(job) ? DML__IS_AWAY : DML__IS_THERE;
}

static bool dml__same_tag(int a, int b)
{
    return a == b || a == DML_ANY_TAG || b == DML_ANY_TAG;
}

/* Whether this rank has begun its part of what another waits for. */
static bool dml__has_begun(const dml__comm_job *job, int asking, const dml__waiting *waiting)
{
    const dml_comm *comm = dml__find_comm_of(job, waiting->communicator, asking);
    if (!comm) return false;
    if (!dml__is_pair(waiting->call.operation)) return comm->sequence > waiting->sequence;
    const bool sends = waiting->call.operation == DML__CALL_RECEIVE;
    if (sends && waiting->sequence < job->links[asking].messages) return true;
    for (int list = 0; list < 2; list++)
        for (const dml_request *r = list ? job->unmatched : job->active; r; r = r->next) {
            const dml__signature *call = &r->call.signature;
            if (r->comm == comm && call->operation == (sends ? DML__CALL_SEND : DML__CALL_RECEIVE) &&
                (call->root < 0 || comm->world_ranks[call->root] == asking) &&
                dml__same_tag(r->call.tag, waiting->tag))
                return true;
        }
    return false;
}

DML__LOCAL bool dml__take_waiting(dml__comm_job *job, int rank, const dml__control *control)
{
    dml__peer *peer = &job->peers[rank];
    dml__waiting waiting;
    if (!dml__decode_waiting(control, &waiting) || control->rank < -1 || control->rank >= job->world)
        return false;
    const bool asks = control->kind == DML__ASK;
    const uint32_t absent = dml__load32(control->body + 44);
    if (absent > DML__IS_PROBING) return false;
    if (asks) {
        const dml__absence missing =
            dml__has_begun(job, rank, &waiting) ? DML__IS_THERE : dml__absence_of(job);
        const dml__control answer =
            dml__waiting_message(job, DML__ANSWER, dml__awaited_request(job), missing);
        dml__send_control(job->transport, rank, &answer, 0);
        if (absent) return true; /* it will answer, and say of what */
    }
    peer->waits_for = control->rank;
    peer->waits_in = waiting;
    peer->moved_at = dml_seconds() - (double)dml__load64(control->body + 32) * 1e-6;
    peer->answered = true;
    peer->absent = (dml__absence)absent;
    return true;
}

/* ---- asking ---- */

static bool dml__all_answered(const dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].answered && !job->peers[rank].gone) return false;
    return true;
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

/* About one operation: the answers say whether it has begun. */
static void dml__ask_all(dml__comm_job *job, dml_request *request)
{
    for (int rank = 0; rank < job->world; rank++) {
        job->peers[rank].answered = false;
        job->peers[rank].absent = DML__IS_THERE;
    }
    const dml__control control =
        dml__waiting_message(job, DML__ASK, request, dml__is_away(job) ? DML__IS_AWAY : DML__IS_THERE);
    job->asked_at = dml_seconds();
    dml__tell_all(job, &control);
}

DML__LOCAL dml_status dml__look_for_culprit(dml__comm_job *job, dml_request *request)
{
    const double now = dml_seconds();
    dml_request *waited = dml__waited(job);
    if (job->answer_until <= 0) {
        dml__ask_all(job, waited ? waited : request);
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
    dml__ask_all(job, dml__awaited_request(job));
    dml__wait_until(job, dml__have_answered, NULL, dml_seconds() + job->grace);
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &job->peers[comm->world_ranks[r]];
        answered[r] = r == comm->rank || (peer->answered && peer->absent != DML__IS_AWAY);
    }
    dml__leave_job(job);
}

#endif
