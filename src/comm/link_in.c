#ifndef DML_COMM_LINK_IN_C
#define DML_COMM_LINK_IN_C

#include <string.h>

#include "base/copy.h"
#include "comm/job.h"
#include "comm/trace.h"

/* Frames in: into place, into what they are reduced with, or into the store (store.c). By which rules they
   come says link_out.c. */

DML__LOCAL dml__flow *dml__find_flow(dml__flow *list, const dml__frame *frame)
{
    for (dml__flow *flow = list; flow; flow = flow->next)
        if (flow->request->comm->id == frame->communicator && flow->request->sequence == frame->sequence &&
            dml__is_pair(flow->request->call.signature.operation) == dml__is_pair(frame->signature.operation))
            return flow;
    return NULL;
}

static dml_status dml__nonsense(dml__comm_job *job, int rank)
{
    return dml__job_fail(job, rank, DML_ERROR_FORMAT,
                         "rank %d sent rank %d something that is no message of this protocol", rank,
                         job->rank);
}

static dml_status dml__take_grant(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__flow *flow = dml__find_flow(job->links[rank].sending, frame);
    dml_status status;
    if (!flow) {
        if (dml__is_pair(frame->signature.operation)) return DML_OK;
        if (!dml__is_early(job, rank, frame, &status)) return status;
        return dml__begin_storing(job, rank, frame);
    }
    status = dml__check_frame(job, rank, flow->request, frame);
    if (status) return status;
    /* The receiver may have all of a round before this rank knows that it has gone. */
    if (dml__is_later_round(flow->request, frame)) return dml__begin_storing(job, rank, frame);
    if (frame->message > flow->granted_message ||
        (frame->message == flow->granted_message && frame->offset > flow->granted_bytes)) {
        flow->granted_message = frame->message;
        flow->granted_bytes = frame->offset;
    }
    return DML_OK;
}

/* Begins to take a message's payload to where its step wants it. */
static dml_status dml__take_payload(dml__comm_job *job, int rank, dml__flow *flow, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    dml_request *request = flow->request;
    const size_t bytes = dml__step_bytes(request, flow->step);
    const size_t element = dml_dtype_size(request->reduction.dtype);
    const uint64_t done = request->states[flow->step].done * element;
    char text[DML__SIGNATURE_TEXT];
    if (frame->message != flow->message || frame->offset != done || frame->bytes > bytes - done ||
        (frame->kind == DML__FRAME_EAGER && frame->bytes != bytes) || frame->bytes % element)
        return dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                             "rank %d and rank %d cut %s into different pieces", rank, job->rank,
                             dml__signature_text(&request->call.signature, text));
    if (frame->kind == DML__FRAME_EAGER) {
        if (!dml__is_free(request, flow->step)) return dml__begin_storing(job, rank, frame);
        link->consumed += dml__eager_charge(frame->bytes);
    }
    if (job->trace) dml__trace_step_begins(job, flow);
    link->taking = flow;
    link->target = frame->bytes ? dml__step_data(request, flow->step) + done : NULL;
    link->mode = request->schedule.steps[flow->step].kind == DML__STEP_RECEIVE && !link->swapped
                     ? DML__TAKE_WRITE
                     : DML__TAKE_REDUCE;
    return DML_OK;
}

static dml_status dml__take_message_frame(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    dml__flow *flow = dml__find_flow(link->receiving, frame);
    dml_status status = DML_OK;
    if (!flow && frame->kind != DML__FRAME_DATA && dml__is_pair(frame->signature.operation)) {
        dml_request *request = dml__match_message(job, rank, frame);
        if (!request) return dml__begin_storing(job, rank, frame);
        if (!dml__take_message(job, request, rank, frame)) return job->error.status;
        flow = dml__find_flow(link->receiving, frame);
    }
    if (!flow) {
        if (frame->kind == DML__FRAME_DATA && dml__is_pair(frame->signature.operation))
            return dml__nonsense(job, rank);
        if (!dml__is_early(job, rank, frame, &status)) return status;
        return frame->kind == DML__FRAME_DATA ? dml__nonsense(job, rank)
                                              : dml__begin_storing(job, rank, frame);
    }
    status = dml__check_frame(job, rank, flow->request, frame);
    if (status) return status;
    if (frame->kind == DML__FRAME_ANNOUNCE) {
        if (frame->message != flow->message) return dml__begin_storing(job, rank, frame);
        link->consumed += DML__FRAME_BYTES;
        flow->announced = true;
        return DML_OK;
    }
    if (frame->kind == DML__FRAME_EAGER && frame->message != flow->message)
        return dml__begin_storing(job, rank, frame);
    /* What came before it may have been on its way into the store when its flow began. */
    if (frame->message != flow->message) status = dml__take_stored(job, flow);
    return status ? status : dml__take_payload(job, rank, flow, frame);
}

static void dml__end_payload(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__flow *flow = link->taking;
    const dml__take_mode mode = link->mode;
    link->mode = DML__TAKE_NO_PAYLOAD;
    link->taking = NULL;
    if (link->frame.kind == DML__FRAME_DATA || link->frame.kind == DML__FRAME_EAGER) {
        link->traffic->bytes_received += link->frame.bytes;
        link->traffic->messages_received++;
    }
    if (mode == DML__TAKE_STORE) {
        dml__end_storing(job, rank);
        return;
    }
    dml_request *request = flow->request;
    dml__step_state *state = &request->states[flow->step];
    uint64_t done = state->done;
    if (mode == DML__TAKE_WRITE) {
        const dml__step *step = &request->schedule.steps[flow->step];
        done = (link->frame.offset + link->frame.bytes) / dml_dtype_size(request->reduction.dtype);
        if (step->completes && request->reduction.op == DML_MEAN)
            dml__apply(request, flow->step, dml__step_data(request, flow->step) + link->frame.offset,
                       done - state->done);
    }
    dml__step_moved(job, request, flow->step, done);
}

static dml_status dml__begin_frame(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__frame *frame = &link->frame;
    link->header_bytes = 0;
    if (!dml__decode_frame(link->header, frame)) return dml__nonsense(job, rank);
    if (frame->consumed - link->credited > link->charged - link->credited) return dml__nonsense(job, rank);
    link->credited = frame->consumed;
    link->frames_come++;
    job->progress++;
    link->payload_left = frame->bytes;
    link->padding_left = dml__padded(frame->bytes) - frame->bytes;
    link->partial_bytes = 0;
    link->mode = DML__TAKE_NO_PAYLOAD;
    link->taking = NULL;
    dml_status status = DML_OK;
    if (frame->kind == DML__FRAME_GRANT)
        status = dml__take_grant(job, rank, frame);
    else if (frame->kind != DML__FRAME_CREDIT)
        status = dml__take_message_frame(job, rank, frame);
    if (!status && (link->taking || link->mode == DML__TAKE_STORE) && !link->payload_left)
        dml__end_payload(job, rank);
    return status;
}

/* Reduces what has come, whole elements at a time; an element of which a part is missing waits. */
static void dml__reduce_some(dml__comm_job *job, dml__link *link, const char *data, size_t bytes)
{
    dml_request *request = link->taking->request;
    const int step = link->taking->step;
    const dml_dtype dtype = request->reduction.dtype;
    const size_t element = dml_dtype_size(dtype);
    while (bytes) {
        const bool straight =
            !link->partial_bytes && bytes >= element && (uintptr_t)data % element == 0 && !link->swapped;
        const size_t room = DML__STAGE_BYTES - link->partial_bytes;
        const size_t now = straight || bytes < room ? bytes : room;
        const char *from = data;
        size_t have = now;
        if (!straight) {
            memmove(job->stage, link->partial, link->partial_bytes);
            if (job->stage + link->partial_bytes != data)
                memmove(job->stage + link->partial_bytes, data, now);
            have += link->partial_bytes;
            from = job->stage;
        }
        const size_t whole = have / element;
        link->partial_bytes = have - whole * element;
        memmove(link->partial, from + whole * element, link->partial_bytes);
        if (link->swapped) dml__swap_elements(job->stage, job->stage, whole, dtype);
        if (whole) {
            dml__apply(request, step, from, whole);
            request->states[step].done += whole;
            request->dirty = request->moved = true;
        }
        data += now;
        bytes -= now;
    }
}

/* Who forwards a frame of several segments needn't wait for its end. */
static void dml__part_written(const dml__comm_job *job, const dml__link *link)
{
    dml_request *request = link->taking->request;
    dml__step_state *state = &request->states[link->taking->step];
    const size_t come = link->frame.bytes - link->payload_left;
    if (link->frame.bytes <= job->segment_bytes || !link->payload_left ||
        request->schedule.steps[link->taking->step].completes)
        return;
    state->done = (link->frame.offset + come) / dml_dtype_size(request->reduction.dtype);
    request->dirty = true;
}

static void dml__payload_came(dml__comm_job *job, dml__link *link, size_t bytes)
{
    link->payload_left -= bytes;
    if (link->mode == DML__TAKE_WRITE) dml__part_written(job, link);
    if (link->mode != DML__TAKE_REDUCE) link->target += bytes;
    if (link->taking) link->taking->request->moved = true;
    job->progress++;
}

/* Takes what lies in memory; DML_OK or the error that ends the job. All of it is taken. */
static dml_status dml__take_bytes(dml__comm_job *job, int rank, const char *data, size_t bytes)
{
    dml__link *link = &job->links[rank];
    while (bytes) {
        size_t now = bytes;
        if (link->payload_left) {
            if (now > link->payload_left) now = link->payload_left;
            if (link->mode == DML__TAKE_REDUCE)
                dml__reduce_some(job, link, data, now);
            else
                dml__copy_bytes(link->target, data, now);
            dml__payload_came(job, link, now);
            if (!link->payload_left) dml__end_payload(job, rank);
        } else if (link->padding_left) {
            if (now > link->padding_left) now = link->padding_left;
            link->padding_left -= now;
        } else {
            if (now > DML__FRAME_BYTES - link->header_bytes) now = DML__FRAME_BYTES - link->header_bytes;
            memcpy(link->header + link->header_bytes, data, now);
            link->header_bytes += now;
            if (link->header_bytes == DML__FRAME_BYTES) {
                const dml_status status = dml__begin_frame(job, rank);
                if (status) return status;
            }
        }
        data += now;
        bytes -= now;
    }
    return DML_OK;
}

/* By copying: payload to its place or to the stage, and what follows it, if anything, behind. */
static dml_status dml__receive_copied(dml__comm_job *job, int rank, bool *more)
{
    dml__link *link = &job->links[rank];
    const bool reduce = link->mode == DML__TAKE_REDUCE;
    dml__span spans[2];
    int count = 0;
    size_t asked = link->payload_left, room;
    if (reduce && asked > DML__STAGE_BYTES - sizeof link->partial)
        asked = DML__STAGE_BYTES - sizeof link->partial;
    else if (asked > job->segment_bytes)
        asked = job->segment_bytes;
    if (asked) {
        spans[count].data = reduce ? job->stage + link->partial_bytes : link->target;
        spans[count++].bytes = asked;
    }
    room = asked;
    if (asked == link->payload_left) {
        spans[count].data = link->ahead;
        spans[count++].bytes = sizeof link->ahead;
        room += sizeof link->ahead;
    }
    const ptrdiff_t got =
        job->transport->calls->receive(job->transport, rank, DML__CHANNEL_DATA, spans, count);
    if (got == DML__GONE) return dml__link_gone(job, rank);
    *more = (size_t)got == room; /* else all that had come was taken */
    const size_t payload = (size_t)got < asked ? (size_t)got : asked;
    if (payload) {
        if (reduce) dml__reduce_some(job, link, job->stage + link->partial_bytes, payload);
        dml__payload_came(job, link, payload);
        if (!link->payload_left) dml__end_payload(job, rank);
    }
    return dml__take_bytes(job, rank, (const char *)link->ahead, (size_t)got - payload);
}

/* From a transport that lends straight from where it lies; what has a place to be copied to goes there, since
   a transport may read it from the sender's memory in one piece. */
static dml_status dml__receive_some(dml__comm_job *job, int rank, bool *more)
{
    const dml__transport_calls *calls = job->transport->calls;
    const dml__link *link = &job->links[rank];
    const bool in_place = link->payload_left && link->mode != DML__TAKE_REDUCE;
    const void *data;
    const ptrdiff_t lent =
        calls->lend && !in_place ? calls->lend(job->transport, rank, &data) : (ptrdiff_t)DML__LENDS_NOTHING;
    if (lent == DML__LENDS_NOTHING) return dml__receive_copied(job, rank, more);
    if (lent == DML__GONE) return dml__link_gone(job, rank);
    *more = lent > 0;
    if (!lent) return DML_OK;
    const dml_status status = dml__take_bytes(job, rank, (const char *)data, (size_t)lent);
    calls->consume(job->transport, rank, (size_t)lent);
    return status;
}

DML__LOCAL dml_status dml__receive_on(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool more = true; /* may have come */
    dml_status status = DML_OK;
    if (link->gone) return link->receiving ? dml__link_gone(job, rank) : DML_OK;
    /* Not for ever, so that the other links have their turns, nor what nobody has asked for yet: it would
       have to be kept and copied. */
    for (int i = 0; i < 16 && more && !status && !link->gone; i++) {
        status = dml__receive_some(job, rank, &more);
        more = more && dml__link_is_awaited(job, rank);
    }
    if (!status) dml__expect_no_more(job, rank);
    return status;
}

DML__LOCAL bool dml__link_is_awaited(const dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    return link->receiving || link->sending || link->payload_left || link->padding_left ||
           link->header_bytes || job->unmatched || job->look_around || job->probing;
}

DML__LOCAL uint8_t dml__link_wishes(const dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    if (link->gone) return 0;
    return link->out_total ? DML__WISH_SEND | DML__WISH_RECEIVE : DML__WISH_RECEIVE;
}

#endif
