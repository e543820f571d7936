#ifndef DML_COMM_STORE_C
#define DML_COMM_STORE_C

#include <string.h>

#include "comm/job.h"

/* What came before anybody asked for it, for each link: entries of a header and a padded payload, in the
   order in which they came. Its size bounds it. Mostly the first is taken out first, which moves nothing;
   what is taken from between others moves those behind it. */

/* Where the entry `at` bytes behind the first one is. */
static uint8_t *dml__store_place(const dml__link *link, size_t at)
{
    return link->store + link->store_begin + at;
}

static uint8_t *dml__stored_entry(const dml__link *link, size_t at, dml__frame *frame)
{
    const bool ours = dml__decode_frame(dml__store_place(link, at), frame);
    DML_ASSERT(ours);
    (void)ours;
    return dml__store_place(link, at) + DML__FRAME_BYTES;
}

static void dml__drop_entry(dml__link *link, size_t at, size_t bytes)
{
    const size_t end = link->store_used + link->storing;
    link->store_used -= bytes;
    if (at == 0) {
        link->store_begin += bytes;
        return;
    }
    memmove(dml__store_place(link, at), dml__store_place(link, at + bytes), end - at - bytes);
    if (link->storing && link->mode == DML__TAKE_STORE) link->target -= bytes;
}

/* The place of a new entry behind the last. */
static uint8_t *dml__store_end(const dml__comm_job *job, dml__link *link, size_t bytes)
{
    if (link->store_used == 0) link->store_begin = 0;
    if (link->store_begin + link->store_used + bytes > job->store_bytes) {
        memmove(link->store, dml__store_place(link, 0), link->store_used);
        link->store_begin = 0;
    }
    return dml__store_place(link, link->store_used);
}

/* A later grant says all that an earlier one did. */
static bool dml__replace_grant(dml__link *link, const dml__frame *grant)
{
    dml__frame frame;
    for (size_t at = 0; at < link->store_used; at += dml__eager_charge(frame.bytes)) {
        dml__stored_entry(link, at, &frame);
        if (frame.kind != DML__FRAME_GRANT || frame.communicator != grant->communicator ||
            frame.sequence != grant->sequence)
            continue;
        dml__encode_frame(grant, dml__store_place(link, at));
        return true;
    }
    return false;
}

DML__LOCAL dml_status dml__begin_storing(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    if (frame->kind == DML__FRAME_GRANT && dml__replace_grant(link, frame)) return DML_OK;
    const size_t bytes = dml__eager_charge(frame->bytes);
    if (bytes > job->store_bytes - link->store_used) {
        char text[DML__SIGNATURE_TEXT];
        return dml__job_fail(
            job, rank, DML_ERROR_STATE,
            "rank %d has too much under way that rank %d hasn't asked for yet, the last of it "
            "%s: give all ranks the same max_requests, and a larger one",
            rank, job->rank, dml__signature_text(&frame->signature, text));
    }
    uint8_t *entry = dml__store_end(job, link, bytes);
    dml__encode_frame(frame, entry);
    link->storing = bytes;
    link->target = (char *)entry + DML__FRAME_BYTES;
    link->taking = NULL;
    link->mode = DML__TAKE_STORE;
    job->stats.early++;
    return DML_OK;
}

DML__LOCAL void dml__end_storing(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__frame frame;
    const size_t at = link->store_used;
    link->store_used += link->storing;
    link->storing = 0;
    dml__stored_entry(link, at, &frame);
    /* Somebody may have asked for it while it was coming in. */
    dml__flow *flow =
        dml__find_flow(frame.kind == DML__FRAME_GRANT ? link->sending : link->receiving, &frame);
    if (flow) flow->request->dirty = true;
    if (flow || frame.kind == DML__FRAME_GRANT || !dml__is_pair(frame.signature.operation)) return;
    dml_request *request = dml__match_message(job, rank, &frame);
    if (request) dml__take_message(job, request, rank, &frame);
}

/* One entry for a flow. Sets whether it can go. */
static dml_status dml__take_entry(dml__comm_job *job, dml__flow *flow, const dml__frame *frame,
                                  const uint8_t *payload, bool *taken)
{
    dml__link *link = &job->links[flow->rank];
    dml_request *request = flow->request;
    const bool turn = frame->message == flow->message && flow->step >= 0;
    const dml_status status = dml__check_frame(job, flow->rank, request, frame);
    *taken = false;
    if (status) return status;
    if (frame->kind == DML__FRAME_GRANT) {
        flow->granted_message = frame->message;
        flow->granted_bytes = frame->offset;
        *taken = true;
        return DML_OK;
    }
    if (!turn || (frame->kind == DML__FRAME_EAGER && !dml__is_free(request, flow->step))) return DML_OK;
    *taken = true;
    link->consumed += dml__eager_charge(frame->bytes);
    if (frame->kind == DML__FRAME_ANNOUNCE) {
        flow->announced = true;
        return DML_OK;
    }
    if (frame->bytes != dml__step_bytes(request, flow->step)) {
        char text[DML__SIGNATURE_TEXT];
        return dml__job_fail(job, flow->rank, DML_ERROR_MISMATCH,
                             "rank %d and rank %d cut %s into different pieces", flow->rank, job->rank,
                             dml__signature_text(&request->call.signature, text));
    }
    const int step = flow->step;
    const uint64_t count = request->schedule.steps[step].count;
    const dml_dtype dtype = request->reduction.dtype;
    const size_t element = dml_dtype_size(dtype);
    const uint64_t most = link->swapped ? DML__STAGE_BYTES / element : count;
    for (uint64_t done = 0, part; done < count || done == 0; done += part) { /* an empty one moves on too */
        part = count - done < most ? count - done : most;
        const uint8_t *piece = payload + (size_t)done * element;
        if (link->swapped) {
            dml__swap_elements(job->stage, piece, (size_t)part, dtype);
            piece = (const uint8_t *)job->stage;
        }
        dml__apply(request, step, piece, part);
        dml__step_moved(job, request, step, done + part);
        if (!part) break;
    }
    return DML_OK;
}

/* Grants are found by the flow that sends, messages by the one that receives. */
static bool dml__entry_is_for(const dml__flow *flow, const dml__frame *frame)
{
    const dml_request *request = flow->request;
    return frame->communicator == request->comm->id && frame->sequence == request->sequence &&
           (frame->kind == DML__FRAME_GRANT) == flow->sending &&
           dml__is_pair(frame->signature.operation) == dml__is_pair(request->call.signature.operation) &&
           frame->message >> 16 == request->round;
}

DML__LOCAL dml_status dml__take_stored(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__frame frame;
    size_t at = 0;
    while (at < link->store_used && flow->step >= 0) {
        const uint8_t *payload = dml__stored_entry(link, at, &frame);
        bool taken = false;
        if (dml__entry_is_for(flow, &frame)) {
            const dml_status status = dml__take_entry(job, flow, &frame, payload, &taken);
            if (status) return status;
        }
        if (taken)
            dml__drop_entry(link, at, dml__eager_charge(frame.bytes));
        else
            at += dml__eager_charge(frame.bytes);
    }
    return DML_OK;
}

DML__LOCAL void dml__check_stored(dml__comm_job *job, const dml_request *request)
{
    for (int r = 0; r < request->comm->size; r++) {
        const int rank = request->comm->world_ranks[r];
        const dml__link *link = &job->links[rank];
        dml__frame frame;
        for (size_t at = 0; at < link->store_used; at += dml__eager_charge(frame.bytes)) {
            dml__stored_entry(link, at, &frame);
            if (frame.communicator == request->comm->id && frame.sequence == request->sequence &&
                !dml__is_pair(frame.signature.operation) && dml__check_frame(job, rank, request, &frame))
                return;
        }
    }
}

DML__LOCAL bool dml__find_stored(const dml__comm_job *job, const dml_comm *comm, int from, int tag, int *rank,
                                 dml__frame *frame)
{
    for (int r = 0; r < job->world; r++) {
        const dml__link *link = &job->links[r];
        for (size_t at = 0; at < link->store_used; at += dml__eager_charge(frame->bytes)) {
            dml__stored_entry(link, at, frame);
            if (frame->kind == DML__FRAME_GRANT) continue;
            /* Of a collective that isn't to come; who is still in it has been told, and says so itself. */
            if (!dml__is_pair(frame->signature.operation) && (comm || !job->peers[r].goodbye)) continue;
            if (dml__find_flow(link->receiving, frame)) continue; /* a receive has it already */
            if (comm && !dml__message_fits(comm, from, tag, r, frame)) continue;
            *rank = r;
            return true;
        }
    }
    return false;
}

DML__LOCAL bool dml__match_stored(dml__comm_job *job, dml_request *request)
{
    dml__frame frame;
    int rank;
    if (!dml__find_stored(job, request->comm, request->call.signature.root, request->call.tag, &rank, &frame))
        return false;
    return dml__take_message(job, request, rank, &frame);
}

#endif
