#ifndef DML_COMM_MISMATCH_C
#define DML_COMM_MISMATCH_C

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "comm/waiting.h"

/* Calls that don't fit together: what a frame says of its sender's call is compared with this rank's. Where
   they differ, two ranks can't know which of them is in the wrong, so the members of the communicator are
   asked what they called in that place, and the majority is right. */

/* ---- asking ---- */

/* The body of ASK_CALL and SAY_CALL: 0 signature:20 20 communicator:4 24 sequence:8, which are
   DML__CALL_BYTES, 32 counts:8 each */

static void dml__send_call(dml__comm_job *job, int rank, dml__control_kind kind,
                           const dml__signature *signature, uint32_t communicator, uint64_t sequence,
                           const uint64_t *count, int counts)
{
    dml__control control = dml__control_message(kind);
    control.bytes = DML__CALL_BYTES + 8 * counts;
    for (int r = 0; r < counts; r++) dml__store64(control.body + DML__CALL_BYTES + 8 * r, count[r]);
    dml__encode_signature(signature, control.body);
    dml__store32(control.body + 20, communicator);
    dml__store64(control.body + 24, sequence);
    dml__send_control(job->transport, rank, &control, 0);
}

/* What this rank called there; NULL: it hasn't yet, or that is too long ago. */
static const dml__signature *dml__call_at(const dml_comm *comm, uint64_t sequence)
{
    return comm->sequence - sequence - 1 < DML__REMEMBERED ? &comm->past[sequence % DML__REMEMBERED] : NULL;
}

/* Its counts, if it has one for each rank: returns how many are known. */
static int dml__counts_at(const dml_comm *comm, uint64_t sequence, const uint64_t **count)
{
    const size_t place = (size_t)(sequence % DML__REMEMBERED);
    *count = comm->past_counts + place * (size_t)comm->said_counts;
    return comm->past[place].variant < DML__WITH_COUNTS ? 0 : comm->said_counts;
}

/* Who hasn't called it yet says nothing, and is asked again. */
DML__LOCAL bool dml__take_call(dml__comm_job *job, int rank, const dml__control *control)
{
    dml__peer *peer = &job->peers[rank];
    dml__signature signature;
    if (control->bytes < DML__CALL_BYTES || control->bytes % 8 ||
        !dml__decode_signature(control->body, &signature))
        return false;
    const uint32_t communicator = dml__load32(control->body + 20);
    const uint64_t sequence = dml__load64(control->body + 24);
    if (control->kind == DML__ASK_CALL) {
        const dml_comm *comm = dml__find_comm_of(job, communicator, rank);
        const dml__signature *call = comm ? dml__call_at(comm, sequence) : NULL;
        const uint64_t *count = NULL;
        const int counts = call ? dml__counts_at(comm, sequence, &count) : 0;
        if (call) dml__send_call(job, rank, DML__SAY_CALL, call, communicator, sequence, count, counts);
    } else if (job->disputes && communicator == job->disputed_in && sequence == job->disputed) {
        peer->said = true;
        peer->call = signature;
        peer->counts = (control->bytes - DML__CALL_BYTES) / 8;
        for (int r = 0; r < peer->counts; r++)
            peer->count[r] = dml__load64(control->body + DML__CALL_BYTES + 8 * r);
    }
    return true;
}

static bool dml__all_said(const dml_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &comm->job->peers[comm->world_ranks[r]];
        if (!peer->said && !peer->gone && comm->world_ranks[r] != comm->job->rank) return false;
    }
    return true;
}

static void dml__ask_silent(const dml_comm *comm)
{
    dml__comm_job *job = comm->job;
    dml__signature nothing;
    memset(&nothing, 0, sizeof nothing);
    for (int r = 0; r < comm->size; r++) {
        const int rank = comm->world_ranks[r];
        if (!job->peers[rank].said && !job->peers[rank].gone && rank != job->rank)
            dml__send_call(job, rank, DML__ASK_CALL, &nothing, job->disputed_in, job->disputed, NULL, 0);
    }
}

/* For as long as the search for a culprit may take. The members whose calls are known have said so then.
 * DML_OK, or the error that ends the job. */
static dml_status dml__ask_for_calls(const dml_comm *comm)
{
    dml__comm_job *job = comm->job;
    const double until = dml_seconds() + job->grace;
    dml_status status = DML_OK;
    for (int r = 0; r < job->world; r++) job->wishes[r] = 0;
    while (!status && !dml__all_said(comm) && dml_seconds() < until) {
        dml__ask_silent(comm);
        const double again = dml_seconds() + job->grace / 16;
        while (!status && !dml__all_said(comm) && dml_seconds() < again) {
            const int ready = job->transport->calls->wait(job->transport, job->wishes, again - dml_seconds());
            if (ready == DML__GONE) return DML_OK;
            status = dml__read_control(job);
        }
    }
    return status;
}

/* ---- judging ---- */

static int dml__count_calls(const dml_comm *comm, const dml__signature *call)
{
    int count = 0;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &comm->job->peers[comm->world_ranks[r]];
        count += peer->said && dml__same_call(&peer->call, call);
    }
    return count;
}

/* The first member in the call that most are in; of calls with as many, in that of the first member. */
static int dml__find_right(const dml_comm *comm)
{
    int best = -1, most = 0;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &comm->job->peers[comm->world_ranks[r]];
        const int count = peer->said ? dml__count_calls(comm, &peer->call) : 0;
        if (count > most) most = count, best = comm->world_ranks[r];
    }
    return best;
}

/* -1: all said the same. */
static int dml__find_wrong(const dml_comm *comm, int right)
{
    const dml__peer *peers = comm->job->peers;
    for (int r = 0; r < comm->size; r++) {
        const int rank = comm->world_ranks[r];
        if (peers[rank].said && !dml__same_call(&peers[rank].call, &peers[right].call)) return rank;
    }
    return -1;
}

/* Asks what the members called in a place; what is known of some is said already. DML_OK, or the error that
   ends the job. */
static dml_status dml__compare_with(const dml_comm *comm, uint64_t sequence, const dml__signature *mine)
{
    dml__comm_job *job = comm->job;
    dml__peer *self = &job->peers[job->rank];
    const uint64_t *count = NULL;
    if (mine) self->call = *mine;
    self->said = mine != NULL;
    self->counts = mine && dml__call_at(comm, sequence) ? dml__counts_at(comm, sequence, &count) : 0;
    if (self->counts) memcpy(self->count, count, (size_t)self->counts * sizeof *count);
    job->disputed_in = comm->id;
    job->disputed = sequence;
    job->disputes = true;
    const dml_status status = dml__ask_for_calls(comm);
    job->disputes = false;
    return status;
}

static void dml__forget_calls(dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++) {
        job->peers[rank].said = false;
        job->peers[rank].counts = 0;
    }
}

/* Two members whose calls in one place differ. */
typedef struct dml__dispute {
    int wrong, right;
    dml__signature wrong_call, right_call;
    char apart[160]; /* what sets them apart beside their texts; "": nothing */
} dml__dispute;

/* Where the counts differ, of those that both have said. */
static void dml__tell_apart(dml__dispute *dispute, const dml__peer *wrong, const dml__peer *right)
{
    const char *apart = dml__apart_text(&dispute->wrong_call, &dispute->right_call);
    const int said = wrong->counts < right->counts ? wrong->counts : right->counts;
    int r = 0;
    while (r < said && wrong->count[r] == right->count[r]) r++;
    if (!apart[0] || !said)
        snprintf(dispute->apart, sizeof dispute->apart, "%s", apart);
    else if (r == said)
        snprintf(dispute->apart, sizeof dispute->apart, "%s (the first %d are the same)", apart, said);
    else
        snprintf(dispute->apart, sizeof dispute->apart,
                 "%s (counts[%d] is %llu at rank %d and %llu at rank %d)", apart, r,
                 (unsigned long long)wrong->count[r], dispute->wrong, (unsigned long long)right->count[r],
                 dispute->right);
}

/* By what the members have said. False: all called the same. */
static bool dml__find_dispute(const dml_comm *comm, dml__dispute *dispute)
{
    const dml__peer *peers = comm->job->peers;
    const int right = dml__find_right(comm), wrong = dml__find_wrong(comm, right);
    if (wrong < 0) return false;
    dispute->wrong = wrong;
    dispute->right = right;
    dispute->wrong_call = peers[wrong].call;
    dispute->right_call = peers[right].call;
    dml__tell_apart(dispute, &peers[wrong], &peers[right]);
    return true;
}

/* What sends nothing may have been another call before that, without anybody's notice: where the ways parted
   first counts. Looks back for no longer than the search for a culprit may take. */
static dml_status dml__blame_first(const dml_comm *comm, uint64_t sequence, dml__dispute *dispute)
{
    dml__comm_job *job = comm->job;
    char wrong_text[DML__SIGNATURE_TEXT], right_text[DML__SIGNATURE_TEXT], where[DML__COMMUNICATOR_TEXT];
    const double until = dml_seconds() + job->grace;
    for (bool differ = true; differ && sequence && dml_seconds() < until; sequence--) {
        dml__forget_calls(job);
        const dml_status status = dml__compare_with(comm, sequence - 1, dml__call_at(comm, sequence - 1));
        if (status) return status;
        differ = dml__find_dispute(comm, dispute);
    }
    return dml__job_fail(job, dispute->wrong, DML_ERROR_MISMATCH,
                         "rank %d called %s while rank %d called %s%s%s", dispute->wrong,
                         dml__signature_text(&dispute->wrong_call, wrong_text), dispute->right,
                         dml__signature_text(&dispute->right_call, right_text), dispute->apart,
                         dml__communicator_text(comm->id, where));
}

/* Rank `rank` and this one made different calls of a communicator in the same place. */
static dml_status dml__blame_call(const dml_comm *comm, uint64_t sequence, int rank,
                                  const dml__signature *theirs, const dml__signature *mine)
{
    dml__comm_job *job = comm->job;
    dml__peer *peer = &job->peers[rank];
    dml__dispute dispute;
    dml__forget_calls(job);
    dispute.wrong = rank;
    dispute.right = job->rank;
    dispute.wrong_call = *theirs;
    dispute.right_call = *mine;
    dml__tell_apart(&dispute, peer, &job->peers[job->rank]);
    peer->call = *theirs;
    peer->said = !dispute.apart[0]; /* else it is asked for its counts, which no frame has */
    const dml_status status = dml__compare_with(comm, sequence, mine);
    if (status) return status;
    if (!peer->said) peer->call = *theirs;
    peer->said = true;
    dml__find_dispute(comm, &dispute);
    return dml__blame_first(comm, sequence, &dispute);
}

DML__LOCAL dml_status dml__compare_calls(const dml_comm *comm, uint64_t sequence)
{
    dml__dispute dispute;
    dml__forget_calls(comm->job);
    const dml_status status = dml__compare_with(comm, sequence, dml__call_at(comm, sequence));
    if (status || !dml__find_dispute(comm, &dispute)) return status;
    return dml__blame_first(comm, sequence, &dispute);
}

DML__LOCAL int dml__one_too_many(const dml_comm *comm)
{
    int closed = 0, came = 0, first = -1;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &comm->job->peers[comm->world_ranks[r]];
        closed += peer->goodbye && !peer->said;
        came += peer->said;
        if (peer->said && first < 0) first = comm->world_ranks[r];
    }
    return closed > came ? first : -1;
}

/* ---- looking at a frame ---- */

/* Whether two ranks agree about the part that goes from one to the other, where only they know it. */
static dml_status dml__check_exchanged(dml__comm_job *job, int rank, const dml_request *request,
                                       const dml__frame *frame)
{
    const bool sends = frame->kind == DML__FRAME_GRANT;
    const int sender = sends ? job->rank : rank, receiver = sends ? rank : job->rank;
    const int peer = dml__group_rank(request->comm, rank);
    const dml__step *step = request->schedule.steps, *const end = step + request->schedule.count;
    char text[DML__SIGNATURE_TEXT];
    while (step < end && (step->peer != peer || (step->kind == DML__STEP_SEND) != sends)) step++;
    if (step == end || frame->signature.count == step->count) return DML_OK;
    return dml__job_fail(job, sender, DML_ERROR_MISMATCH,
                         "rank %d has %llu elements for rank %d in %s, which takes %llu from it", sender,
                         (unsigned long long)(sends ? step->count : frame->signature.count), receiver,
                         dml__signature_text(&request->call.signature, text),
                         (unsigned long long)(sends ? frame->signature.count : step->count));
}

DML__LOCAL dml_status dml__check_frame(dml__comm_job *job, int rank, const dml_request *request,
                                       const dml__frame *frame)
{
    char text[DML__SIGNATURE_TEXT];
    const dml__signature *mine = &request->call.signature;
    if (dml__is_pair(mine->operation)) return DML_OK;
    if (!dml__same_call(mine, &frame->signature))
        return dml__blame_call(request->comm, request->sequence, rank, &frame->signature, mine);
    if (request->on_device)
        return dml__job_fail(
            job, rank, DML_ERROR_MISMATCH,
            "rank %d called %s with an array in the host's memory while rank %d's is in a GPU's", rank,
            dml__signature_text(mine, text), job->rank);
    if (frame->algorithm == request->algorithm)
        return dml__is_by_parts(mine) ? dml__check_exchanged(job, rank, request, frame) : DML_OK;
    return dml__job_fail(
        job, rank, DML_ERROR_MISMATCH,
        "rank %d and rank %d go about %s in different ways: open all ranks with the same options", rank,
        job->rank, dml__signature_text(mine, text));
}

DML__LOCAL bool dml__is_early(dml__comm_job *job, int rank, const dml__frame *frame, dml_status *status)
{
    const dml_comm *comm = dml__find_comm(job, frame->communicator);
    char text[DML__SIGNATURE_TEXT];
    *status = DML_OK;
    /* Whoever has closed a communicator needs no grants of it. */
    const bool over =
        comm ? comm->closed && frame->sequence >= comm->sequence : frame->communicator < job->next_id;
    if (over && frame->kind == DML__FRAME_GRANT) return false;
    if (!comm || frame->sequence >= comm->sequence) return true;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->comm == comm && r->sequence == frame->sequence && !dml__is_pair(r->call.signature.operation)) {
            /* A later round's, or of what hasn't begun: it has room, as all that is early. */
            if (frame->kind != DML__FRAME_DATA && (r->queues || dml__is_later_round(r, frame)) &&
                dml__same_call(&r->call.signature, &frame->signature))
                return true;
            *status = dml__check_frame(job, rank, r, frame);
            if (*status || frame->kind == DML__FRAME_GRANT) return false;
        }
    if (!*status && comm->sequence - frame->sequence <= DML__REMEMBERED) {
        const dml__signature *past = &comm->past[frame->sequence % DML__REMEMBERED];
        if (!dml__same_call(past, &frame->signature))
            *status = dml__blame_call(comm, frame->sequence, rank, &frame->signature, past);
    }
    if (!*status && frame->kind != DML__FRAME_GRANT)
        *status = dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                                "rank %d sent a part of %s (call %llu) that rank %d doesn't take in it", rank,
                                dml__signature_text(&frame->signature, text),
                                (unsigned long long)frame->sequence, job->rank);
    return false;
}

#endif
