#ifndef DML_COMM_JUDGE_C
#define DML_COMM_JUDGE_C

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/nccl_engine.h"
#include "comm/waiting.h"

/* Who is to blame. The chain of who waits for whom ends at a rank that doesn't answer or is absent, which is
   to blame, or it is a circle: as long as something moves in it the network is slow and nobody is. */

/* Marks the members of a communicator that a rank waits in; of one that isn't known here, all ranks. */
static void dml__reach_group(dml__comm_job *job, int from, uint32_t id)
{
    const dml_comm *comm = dml__find_comm_of(job, id, from);
    const int size = comm ? comm->size : job->world;
    for (int r = 0; r < size; r++) {
        dml__peer *peer = &job->peers[comm ? comm->world_ranks[r] : r];
        if (!peer->reach) peer->reach = DML__REACHED;
    }
}

/* Marks all whom those wait for that are marked, and whom those wait for: of a collective and of a receive
   from any rank all of the communicator. Returns when something moved last among them. */
static double dml__reach_all(dml__comm_job *job)
{
    double moved_at = 0;
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
            if (peer->waits_for < 0 || !dml__is_pair(peer->waits_in.call.operation))
                dml__reach_group(job, rank, peer->waits_in.communicator);
        }
    }
    return moved_at;
}

/* Whether a rank has nothing to say to what was asked. */
static bool dml__is_silent(const dml__comm_job *job, int rank)
{
    return rank != job->rank && (!job->peers[rank].answered || job->peers[rank].goodbye);
}

/* Marks a circle from one of it on; how many are in it. */
static int dml__mark_circle(dml__comm_job *job, int rank)
{
    int count = 0;
    for (; job->peers[rank].reach != DML__IN_CIRCLE; rank = job->peers[rank].waits_for, count++)
        job->peers[rank].reach = DML__IN_CIRCLE;
    return count;
}

/* Marks the circle to which the ways of all lead who wait for it, and whom those in it wait for, so that all
   who judge it judge the same ranks. Returns how many are in it; 0: this rank's way leads to none. */
static int dml__reach_circle(dml__comm_job *job)
{
    int rank = job->rank;
    for (int i = 0; i < job->world && rank >= 0; i++)
        rank = dml__is_silent(job, rank) ? -1 : job->peers[rank].waits_for;
    if (rank < 0) return 0;
    dml__mark_circle(job, rank);
    for (int r = 0; r < job->world; r++)
        job->peers[r].reach = job->peers[r].reach == DML__IN_CIRCLE ? DML__REACHED : DML__NOT_REACHED;
    dml__reach_all(job);
    return dml__mark_circle(job, rank);
}

/* Whether two ranks that wait for each other are in calls that don't belong together. */
static bool dml__calls_differ(const dml__waiting *a, const dml__waiting *b)
{
    const bool pair = dml__is_pair(a->call.operation), both = pair == dml__is_pair(b->call.operation);
    if (both && !pair && a->communicator != b->communicator) return true;
    if (both && !pair && a->sequence == b->sequence) return !dml__same_call(&a->call, &b->call);
    return a->call.operation != b->call.operation;
}

/* Of those that are reached so far at least, whoever waits in one call. */
static bool dml__is_judged(const dml__peer *peer, dml__reach reach)
{
    const dml__signature *call = &peer->waits_in.call;
    const bool from_any = call->operation == DML__CALL_RECEIVE && call->root < 0;
    return peer->reach >= reach && peer->answered && (peer->waits_for >= 0 || from_any);
}

/* The first of these ranks, and the first whose call differs from its. False: all are in the same. */
static bool dml__find_different(const dml__comm_job *job, dml__reach reach, int *first, int *other)
{
    *first = 0;
    while (*first < job->world && !dml__is_judged(&job->peers[*first], reach)) ++*first;
    for (*other = *first + 1; *other < job->world; ++*other)
        if (dml__is_judged(&job->peers[*other], reach) &&
            dml__calls_differ(&job->peers[*first].waits_in, &job->peers[*other].waits_in))
            return true;
    return false;
}

/* How many of those that were reached are in the same call as this one. */
static int dml__count_same(const dml__comm_job *job, int rank)
{
    int count = 0;
    for (int r = 0; r < job->world; r++)
        count += dml__is_judged(&job->peers[r], DML__REACHED) &&
                 !dml__calls_differ(&job->peers[r].waits_in, &job->peers[rank].waits_in);
    return count;
}

DML__LOCAL const char *dml__waiting_text(const dml__waiting *waiting, char text[DML__WAITING_TEXT])
{
    char call[DML__SIGNATURE_TEXT], tag[24] = "", where[DML__COMMUNICATOR_TEXT] = "", lies[80] = "";
    dml__signature_text(&waiting->call, call);
    if (waiting->tag > 0) snprintf(tag, sizeof tag, " with tag %d", waiting->tag);
    if (waiting->communicator != DML__ALL_COMMUNICATORS) dml__communicator_text(waiting->communicator, where);
    if (waiting->lies_tag >= 0)
        snprintf(lies, sizeof lies, " (a message from %d with tag %d lies there unreceived)",
                 waiting->lies_from, waiting->lies_tag);
    snprintf(text, DML__WAITING_TEXT, "%s%s%s%s", call, tag, where, lies);
    return text;
}

/* Whether a rank is known to wait in that place of a communicator. */
static bool dml__waits_at(const dml__peer *peer, const dml_comm *comm, uint64_t sequence)
{
    const dml__waiting *waiting = &peer->waits_in;
    return dml__is_judged(peer, DML__REACHED) && !dml__is_pair(waiting->call.operation) &&
           waiting->communicator == comm->id && waiting->sequence == sequence;
}

/* The first place of a communicator that a rank waits in. False: none waits in a collective of it. */
static bool dml__first_place(const dml_comm *comm, uint64_t *sequence)
{
    bool found = false;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &comm->job->peers[comm->world_ranks[r]];
        const dml__waiting *waiting = &peer->waits_in;
        if (!dml__is_judged(peer, DML__REACHED) || dml__is_pair(waiting->call.operation) ||
            waiting->communicator != comm->id || (found && waiting->sequence >= *sequence))
            continue;
        *sequence = waiting->sequence;
        found = true;
    }
    return found;
}

/* The next of a rank's communicators by number after this one; NULL: there is none. */
static const dml_comm *dml__next_comm(const dml__comm_job *job, const dml_comm *after)
{
    const dml_comm *next = NULL;
    for (const dml_comm *comm = job->comms; comm; comm = comm->next)
        if ((!after || comm->id > after->id) && (!next || comm->id < next->id)) next = comm;
    return next;
}

/* How many erred if those did who called what is waited for in a place, or those who haven't come to it. */
static void dml__count_erring(const dml_comm *comm, uint64_t sequence)
{
    dml__peer *peers = comm->job->peers;
    int said = 0;
    bool passed = false;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &peers[comm->world_ranks[r]];
        said += peer->said;
        passed = passed || (peer->said && !dml__waits_at(peer, comm, sequence));
    }
    for (int r = 0; r < comm->size; r++) {
        dml__peer *peer = &peers[comm->world_ranks[r]];
        if (!peer->said && comm->size - said < peer->missed) peer->missed = comm->size - said;
        if (!dml__waits_at(peer, comm, sequence)) continue;
        peer->called = said;
        peer->passed = passed;
    }
}

/* Who waits where others have passed has come as far as it could, and is missed elsewhere for that. */
static int dml__erring(const dml__peer *peer)
{
    return peer->passed || peer->called < peer->missed ? peer->called : peer->missed;
}

/* Who waits for each other may have parted in a call that some have behind them: they are asked what they
   called in the first place of a communicator that somebody waits in. DML_OK: the same. Then those erred who
   are in one call, or those who should have come to another. */
static dml_status dml__compare_places(const dml__comm_job *job)
{
    dml_status status = DML_OK;
    uint64_t sequence = 0;
    for (int r = 0; r < job->world; r++) {
        dml__peer *peer = &job->peers[r];
        peer->called = dml__is_judged(peer, DML__REACHED) ? dml__count_same(job, r) : job->world;
        peer->missed = job->world;
        peer->passed = false;
    }
    for (const dml_comm *comm = dml__next_comm(job, NULL); comm && !status; comm = dml__next_comm(job, comm))
        if (dml__first_place(comm, &sequence)) {
            status = dml__compare_calls(comm, sequence);
            if (!status) dml__count_erring(comm, sequence);
        }
    return status;
}

/* Of these ranks, which are in calls that don't belong together, the one that erred with the fewest; of such
   the one whose call fewer are in, then `other`. */
static int dml__find_erring(const dml__comm_job *job, dml__reach reach, int other)
{
    const dml__peer *peers = job->peers;
    int culprit = other;
    for (int r = 0; r < job->world; r++) {
        const int erring = dml__erring(&peers[r]), least = dml__erring(&peers[culprit]);
        if (!dml__is_judged(&peers[r], reach) || erring > least) continue;
        if (erring < least || dml__count_same(job, r) < dml__count_same(job, culprit)) culprit = r;
    }
    return culprit;
}

static dml_status dml__blame_different(dml__comm_job *job, dml__reach reach, int first, int other)
{
    const dml__peer *peers = job->peers;
    char text[DML__WAITING_TEXT], against_text[DML__WAITING_TEXT];
    const int culprit = dml__find_erring(job, reach, other), waits_for = peers[culprit].waits_for;
    int against = waits_for;
    if (against < 0 || !dml__is_judged(&peers[against], DML__REACHED) ||
        !dml__calls_differ(&peers[against].waits_in, &peers[culprit].waits_in))
        against = dml__calls_differ(&peers[first].waits_in, &peers[culprit].waits_in) ? first : other;
    return dml__job_fail(job, culprit, DML_ERROR_MISMATCH,
                         "rank %d called %s while rank %d called %s: they wait for each other", culprit,
                         dml__waiting_text(&peers[culprit].waits_in, text), against,
                         dml__waiting_text(&peers[against].waits_in, against_text));
}

/* Whether somebody waits in a collective of a communicator that this rank isn't in, whose members know more
   of it. */
static bool dml__members_know(const dml__comm_job *job)
{
    for (int r = 0; r < job->world; r++) {
        const dml__waiting *waiting = &job->peers[r].waits_in;
        if (dml__is_judged(&job->peers[r], DML__REACHED) && !dml__is_pair(waiting->call.operation) &&
            waiting->communicator != DML__ALL_COMMUNICATORS &&
            !dml__find_comm_of(job, waiting->communicator, r))
            return true;
    }
    return false;
}

/* All wait in a circle: because of different calls, or because the network is slow; or in the same calls, of
   which none is more to blame than the others. */
static dml_status dml__blame_circle(dml__comm_job *job, int waits_for)
{
    char text[DML__WAITING_TEXT], other_text[DML__WAITING_TEXT];
    int first, other;
    const int around = dml__reach_circle(job);
    const dml_status status = dml__compare_places(job);
    if (status) return status;
    if (around && dml__find_different(job, DML__IN_CIRCLE, &first, &other))
        return dml__blame_different(job, DML__IN_CIRCLE, first, other);
    if (dml__find_different(job, DML__REACHED, &first, &other))
        return dml__blame_different(job, DML__REACHED, first, other);
    first = around ? 0 : job->rank;
    while (around && job->peers[first].reach != DML__IN_CIRCLE) first++;
    other = around ? job->peers[first].waits_for : waits_for < 0 ? first : waits_for;
    dml__waiting_text(&job->peers[first].waits_in, text);
    if (dml__nccl_is_busy(job)) /* and says nothing of where */
        return dml__job_fail(
            job, -1, DML_ERROR_TIMEOUT,
            "%s did not end within %g s, though no rank is missing: NCCL stands still in it at "
            "some rank; if the links are just slow, raise timeout_s",
            text, job->timeout);
    if (around == 2)
        return dml__job_fail(job, -1, DML_ERROR_TIMEOUT,
                             "%s did not end within %g s, though no rank is missing: rank %d in it and rank "
                             "%d in %s wait for each other; if the network is just slow, raise timeout_s",
                             text, job->timeout, first, other,
                             dml__waiting_text(&job->peers[other].waits_in, other_text));
    if (other == first)
        return dml__job_fail(job, -1, DML_ERROR_TIMEOUT,
                             "%s did not end within %g s, though no rank is missing: nobody sends what rank "
                             "%d waits for; if the network is just slow, raise timeout_s",
                             text, job->timeout, first);
    return dml__job_fail(job, -1, DML_ERROR_TIMEOUT,
                         "%s did not end within %g s, though no rank is missing: ranks %d and %d and others "
                         "wait for each other; if the network is just slow, raise timeout_s",
                         text, job->timeout, first, other);
}

static bool dml__needs(dml_request *request, int rank)
{
    return dml__is_pair(request->call.signature.operation) ? dml__waits_for(request) == rank
                                                           : dml__group_rank(request->comm, rank) >= 0;
}

/* Whether it is one without which the request can't go on, and is in no call; of requests between others
   those know. */
static bool dml__is_absent_from(const dml__comm_job *job, int rank, dml_request *request)
{
    return rank != job->rank && job->peers[rank].absent && dml__needs(request, rank);
}

/* The call that misses a rank: this request's, or that of another rank on the way to it. */
static const char *dml__missing_call(const dml__comm_job *job, dml_request *request, int rank,
                                     char text[DML__WAITING_TEXT])
{
    dml__waiting waiting = dml__waiting_of(job, request);
    waiting.communicator = request->comm->id;
    if (dml__needs(request, rank)) return dml__waiting_text(&waiting, text);
    for (int r = 0; r < job->world; r++)
        if (job->peers[r].reach && job->peers[r].waits_for == rank)
            return dml__waiting_text(&job->peers[r].waits_in, text);
    return "what others wait for";
}

static dml_status dml__blame_silent(dml__comm_job *job, dml_request *request, int rank)
{
    const dml__peer *peer = &job->peers[rank];
    char text[DML__WAITING_TEXT];
    if (peer->goodbye || peer->gone) return dml__data_gone(job, request, rank);
    return dml__job_fail(
        job, rank, DML_ERROR_TIMEOUT, "rank %d of %d took no part in %s within %g s: it is %s", rank,
        job->world, dml__missing_call(job, request, rank, text), job->timeout,
        peer->absent == DML__IS_PROBING ? "waiting for a message in dml_comm_probe"
        : peer->answered ? "busy with something else, in no call: only its progress thread answers; for what "
                           "takes longer there is a larger timeout_s (DML_TIMEOUT)"
                         : "frozen, busy with something else or unreachable");
}

static void dml__note_own_wait(dml__comm_job *job, const dml_request *request, int waits_for)
{
    dml__peer *own = &job->peers[job->rank];
    own->waits_for = waits_for;
    own->waits_in = dml__waiting_of(job, request);
    own->moved_at = job->moved_at;
    own->answered = true;
}

/* Follows who waits for whom to a rank that is silent or absent, and returns it; this rank or any: round a
   circle; -1: to one that waits for any. Of several that a rank waits for it names one, so the way may lead
   round a circle although one in it waits for a silent rank, too. */
static int dml__follow_waits(dml__comm_job *job, int waits_for, double *moved_at)
{
    int rank = waits_for, steps = 0;
    for (int r = 0; r < job->world; r++) job->peers[r].reach = DML__NOT_REACHED;
    while (rank >= 0 && rank != job->rank && !dml__is_silent(job, rank) && steps++ < job->world) {
        dml__peer *peer = &job->peers[rank];
        peer->reach = DML__REACHED;
        if (peer->moved_at > *moved_at) *moved_at = peer->moved_at;
        if (peer->absent) break;
        rank = peer->waits_for;
    }
    return rank;
}

/* Whether some other rank knows better than this one: an absent rank is judged by those who wait for it, and
   one that is away itself has no call that would wait. */
static bool dml__others_know(const dml__comm_job *job, dml_request *request)
{
    for (int r = 0; r < job->world; r++)
        if (job->peers[r].reach && job->peers[r].absent && !dml__is_absent_from(job, r, request)) return true;
    return dml__is_away(job);
}

/* The first member that a collective misses; -1: none, or it is none. */
static int dml__missing_member(const dml__comm_job *job, dml_request *request)
{
    for (int r = 0; r < request->comm->size && !dml__is_pair(request->call.signature.operation); r++) {
        const int member = request->comm->world_ranks[r];
        if (dml__is_silent(job, member) || dml__is_absent_from(job, member, request)) return member;
    }
    return -1;
}

/* The rank without which those that were reached can't go on: one that a collective misses, or one that is
   silent. Who said goodbye can't help any more; who is just silent might, so the others don't wait for each
   other alone. -1: there is none. */
static int dml__find_missing(const dml__comm_job *job, dml_request *request)
{
    const int missing = dml__missing_member(job, request);
    if (missing >= 0) return missing;
    for (int r = 0; r < job->world; r++)
        if (job->peers[r].reach && dml__is_silent(job, r) && !job->peers[r].goodbye) return r;
    return -1;
}

/* Who probes for a message may wait for a rank that is silent. */
static void dml__excuse_probing(dml__comm_job *job)
{
    bool silent = false;
    for (int r = 0; r < job->world; r++) silent = silent || dml__is_silent(job, r);
    for (int r = 0; silent && r < job->world; r++)
        if (job->peers[r].absent == DML__IS_PROBING) job->peers[r].absent = DML__IS_THERE;
}

/* All others have closed: of two that one, of more this rank, whose receive is one too many. */
static dml_status dml__blame_last(dml__comm_job *job, const dml_request *request)
{
    const dml_comm *comm = request->comm;
    char text[DML__WAITING_TEXT];
    dml__waiting waiting = dml__waiting_of(job, request);
    if (comm->size == 2) return dml__data_gone(job, request, comm->world_ranks[!comm->rank]);
    waiting.communicator = comm->id;
    return dml__job_fail(job, job->rank, DML_ERROR_PEER,
                         "rank %d called %s, which nobody sends any more: all other ranks have closed their "
                         "communicators",
                         job->rank, dml__waiting_text(&waiting, text));
}

DML__LOCAL dml_status dml__judge_waits(dml__comm_job *job, dml_request *request)
{
    if (dml__nobody_sends(job, request)) return dml__blame_last(job, request);
    dml__excuse_probing(job);
    /* Who waits for any of several is kept waiting by nobody as long as something moves here; one of the
       operations may have stood still all the same. So it may while no call waits. */
    const bool any = dml__waits_for_any(job), alone = any || !job->waiting;
    const int waits_for = dml__waits_for(request);
    const double now = dml_seconds();
    double moved_at = alone ? request->deadline - job->timeout : job->moved_at;
    dml__note_own_wait(job, request, any ? -1 : waits_for);
    const int end = dml__follow_waits(job, waits_for, &moved_at);
    const bool silent = end >= 0 && dml__is_silent(job, end);
    const bool late = moved_at + job->timeout <= now;
    if (silent && (late || end == waits_for || job->peers[end].goodbye || job->peers[end].gone))
        return dml__blame_silent(job, request, end);
    if (late && end >= 0 && dml__is_absent_from(job, end, request))
        return dml__blame_silent(job, request, end);
    const int member = alone && request->deadline <= now ? dml__missing_member(job, request) : -1;
    if (member >= 0 && (!job->peers[member].answered || job->peers[member].moved_at + job->timeout <= now))
        return dml__blame_silent(job, request, member);
    if (!job->outlives || !dml__is_pair(request->call.signature.operation)) {
        job->peers[job->rank].reach = DML__REACHED;
        const double moved = dml__reach_all(job);
        if (moved > moved_at) moved_at = moved;
    }
    if (dml__others_know(job, request)) moved_at += job->timeout;
    if (moved_at + job->timeout > now) {
        request->deadline = moved_at + job->timeout;
        return DML_OK;
    }
    const int missing = dml__find_missing(job, request);
    if (missing >= 0) return dml__blame_silent(job, request, missing);
    /* A call that waits for something else, and may still do so for a while, keeps the others waiting. */
    const dml_request *waited = dml__waited(job);
    if (waited && waited != request && waited->deadline > now) {
        const double most = now + job->timeout;
        request->deadline = waited->deadline < most ? waited->deadline : most;
        return DML_OK;
    }
    if (dml__members_know(job) && moved_at + 2 * job->timeout > now) {
        request->deadline = moved_at + 2 * job->timeout;
        return DML_OK;
    }
    return dml__blame_circle(job, any ? -1 : waits_for);
}

#endif
