#ifndef DML_COMM_LINK_C
#define DML_COMM_LINK_C

#include <string.h>

#include "base/copy.h"
#include "comm/job.h"
#include "comm/trace.h"

/* Frames out and in.

   Nothing is sent that could block a stream: a message that is larger than job->eager_bytes goes when its
   receiver has granted it, which it does as soon as the receiving step could take it. A smaller one goes at
   once, as long as the receiver has room to keep it (the sender counts: `charged` less `credited`); when it
   hasn't, an announcement goes instead, and the message when it is granted. So whatever is at the front of a
   stream can be taken off it, in whatever order two ranks call what they call. */

static size_t dml__eager_charge(size_t bytes)
{
    return DML__FRAME_BYTES + dml__padded(bytes);
}

/* ---- out ---- */

DML__LOCAL void dml__put_frame(dml__link *link, dml__frame *frame, char *payload)
{
    frame->consumed = link->consumed;
    link->told = link->consumed;
    dml__encode_frame(frame, link->out_header);
    link->out_payload = payload;
    link->out_begin = DML__FRAME_BYTES;
    link->out_bytes = link->out_counted = frame->bytes;
    if (frame->bytes && frame->bytes <= DML__SHORT_BYTES) {
        memcpy(link->out_header + DML__FRAME_BYTES, payload, frame->bytes);
        memset(link->out_header + DML__FRAME_BYTES + frame->bytes, 0,
               dml__padded(frame->bytes) - frame->bytes);
        link->out_begin += dml__padded(frame->bytes);
        link->out_payload = NULL;
        link->out_bytes = 0;
    }
    link->out_done = 0;
    link->out_total = DML__FRAME_BYTES + dml__padded(frame->bytes);
    link->out_flow = NULL;
    link->out_offered = false;
}

DML__LOCAL void dml__describe_call(const dml_request *request, dml__frame *frame)
{
    memset(frame, 0, sizeof *frame);
    frame->signature = request->call.signature;
    frame->algorithm = request->algorithm;
    frame->tag = request->call.tag;
    frame->communicator = request->comm->id;
    frame->sequence = request->sequence;
}

/* Of a call whose parts no rank knows all, a frame says how long its part is; there is one each way between
   two ranks. */
static void dml__describe_flow(const dml__flow *flow, dml__frame *frame)
{
    dml__describe_call(flow->request, frame);
    frame->message = flow->message;
    if (dml__is_by_parts(&frame->signature))
        frame->signature.count = flow->request->schedule.steps[flow->step].count;
}

/* Moves on what a flow may grant, and puts the grant into a frame if the sender needs to know. */
static bool dml__next_grant(dml__comm_job *job, dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    if (!flow->large && !flow->announced) return false;
    while (flow->granting >= 0 && dml__is_free(request, flow->granting)) {
        flow->granting = request->states[flow->granting].next;
        flow->granted_message++;
        flow->granted_bytes = 0;
    }
    /* (Of what wasn't announced yet, all or nothing: what it lacks might never be granted.) */
    if (flow->granting >= 0 && (flow->large || flow->granted_message == flow->message)) {
        const uint64_t allowed = dml__allowed(request, flow->granting);
        const size_t element = dml_dtype_size(request->reduction.dtype);
        flow->granted_bytes = allowed * element / job->segment_bytes * job->segment_bytes;
    }
    if (flow->granted_message == flow->told_message && flow->granted_bytes == flow->told_bytes) return false;
    flow->told_message = flow->granted_message;
    flow->told_bytes = flow->granted_bytes;
    if (flow->granted_message > flow->message) flow->announced = false; /* else more is to be granted */
    dml__describe_flow(flow, frame);
    frame->kind = DML__FRAME_GRANT;
    frame->message = flow->granted_message;
    frame->offset = flow->granted_bytes;
    job->stats.grants++;
    return true;
}

/* How many bytes of the flow's message the receiver has granted. */
static size_t dml__granted(const dml__flow *flow, size_t bytes)
{
    if (flow->message < flow->granted_message) return bytes;
    if (flow->message > flow->granted_message) return 0;
    return flow->granted_bytes < bytes ? (size_t)flow->granted_bytes : bytes;
}

DML__LOCAL bool dml__is_reader(const dml__comm_job *job, int rank)
{
    const dml__transport_calls *calls = job->transport->calls;
    return calls->reads && !job->links[rank].swapped && calls->reads(job->transport, rank);
}

/* Whether the other rank had better read this message's payload where it lies: it can, and only copies it.
   What is reduced it takes in smaller pieces, while they are in a cache of its sender's. What is larger than
   the caches comes sooner if both ends copy, unless both receive at the same time. Where ranks share
   processors only what nobody forwards is worth the wait until it was read. All of it was measured. */
static bool dml__is_offered(const dml__comm_job *job, const dml__flow *flow)
{
    const dml__comm_operation operation = flow->request->call.signature.operation;
    const bool exchange =
        operation == DML__CALL_ALL_TO_ALL || (operation == DML__CALL_ALL_GATHER && !job->yields);
    if (dml__adds(operation) || !dml__is_reader(job, flow->rank)) return false;
    if (job->yields && !exchange && operation != DML__CALL_SCATTER) return false;
    return exchange || dml__step_bytes(flow->request, flow->step) <= DML__OFFERED_BYTES;
}

/* The next part of a granted message: a whole segment, or its end; of what is offered, several: each is
   waited for. */
static bool dml__next_data(dml__comm_job *job, const dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    const size_t element = dml_dtype_size(request->reduction.dtype);
    const size_t bytes = dml__step_bytes(request, flow->step);
    const size_t done = (size_t)request->states[flow->step].done * element;
    const size_t granted = dml__granted(flow, bytes);
    const uint64_t allowed = dml__allowed(request, flow->step);
    size_t part = bytes - done < job->segment_bytes ? bytes - done : job->segment_bytes;
    if (bytes ? granted < done + part : flow->message >= flow->granted_message) return false;
    if (allowed < (bytes ? (done + part) / element : 1)) return false;
    for (int i = 1; i < DML__OFFERED_SEGMENTS && part && dml__is_offered(job, flow); i++) {
        const size_t left = bytes - done - part, more = left < job->segment_bytes ? left : job->segment_bytes;
        if (granted < done + part + more || allowed < (done + part + more) / element) break;
        part += more;
    }
    frame->kind = DML__FRAME_DATA;
    frame->offset = done;
    frame->bytes = (uint32_t)part;
    return true;
}

DML__LOCAL bool dml__charge_eager(const dml__comm_job *job, dml__link *link, size_t bytes)
{
    if (link->charged - link->credited + dml__eager_charge(bytes) > job->store_bytes / 2) return false;
    link->charged += dml__eager_charge(bytes);
    return true;
}

/* A message that may come unasked, or at least word of it. */
static bool dml__next_unasked(const dml__comm_job *job, dml__link *link, dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    const size_t bytes = dml__step_bytes(request, flow->step);
    const dml__signature *signature = &request->call.signature;
    const bool announces = dml__is_pair(signature->operation) || dml__is_by_parts(signature);
    const bool small = bytes <= job->eager_bytes;
    if (flow->announced || !(small || announces) || !dml__is_free(request, flow->step)) return false;
    if (request->states[flow->step].done)
        return false; /* a part was granted and has gone: so will the rest */
    if (small && dml__charge_eager(job, link, bytes)) {
        frame->kind = DML__FRAME_EAGER;
        frame->bytes = (uint32_t)bytes;
        return true;
    }
    frame->kind = DML__FRAME_ANNOUNCE;
    flow->announced = true;
    link->charged += DML__FRAME_BYTES;
    return true;
}

/* Elements as they go over the wire; on most machines, as they are. */
static char *dml__wire_payload(dml__link *link, const dml_request *request, char *data, size_t bytes)
{
    if (!link->swapped || !bytes) return data;
    const dml_dtype dtype = request->reduction.dtype;
    dml__swap_elements(link->swapped, data, bytes / dml_dtype_size(dtype), dtype);
    return (char *)link->swapped;
}

static bool dml__put_message(dml__comm_job *job, dml__link *link, dml__flow *flow)
{
    dml__frame frame;
    dml__describe_flow(flow, &frame);
    if (!dml__next_data(job, flow, &frame) && !dml__next_unasked(job, link, flow, &frame)) return false;
    const size_t element = dml_dtype_size(flow->request->reduction.dtype);
    char *data = frame.bytes ? dml__step_data(flow->request, flow->step) + frame.offset : NULL;
    dml__put_frame(link, &frame, dml__wire_payload(link, flow->request, data, frame.bytes));
    if (frame.kind == DML__FRAME_ANNOUNCE) return true;
    if (job->trace) dml__trace_step_begins(job, flow);
    link->out_flow = flow;
    link->out_offered = frame.kind == DML__FRAME_DATA && dml__is_offered(job, flow);
    link->out_elements = (frame.offset + frame.bytes) / element;
    return true;
}

/* What is to be sent next: grants, messages, credit. False: nothing now. */
static bool dml__next_frame(dml__comm_job *job, dml__link *link)
{
    dml__frame frame;
    for (dml__flow *flow = link->receiving; flow; flow = flow->next)
        if (dml__next_grant(job, flow, &frame)) {
            dml__put_frame(link, &frame, NULL);
            return true;
        }
    for (dml__flow *flow = link->sending; flow; flow = flow->next)
        if (dml__put_message(job, link, flow)) return true;
    if (link->consumed - link->told < job->store_bytes / 8) return false;
    memset(&frame, 0, sizeof frame);
    frame.kind = DML__FRAME_CREDIT;
    dml__put_frame(link, &frame, NULL);
    return true;
}

/* Header, payload and padding, without the first `done` bytes. */
static int dml__out_spans(const dml__link *link, dml__span spans[3])
{
    static const uint8_t zeros[8] = { 0 };
    const void *parts[3];
    const size_t sizes[3] = { link->out_begin, link->out_bytes,
                              link->out_total - link->out_begin - link->out_bytes };
    size_t skip = link->out_done;
    int count = 0;
    parts[0] = link->out_header;
    parts[1] = link->out_payload;
    parts[2] = zeros;
    for (int i = 0; i < 3; i++) {
        const size_t skipped = skip < sizes[i] ? skip : sizes[i];
        skip -= skipped;
        if (sizes[i] == skipped) continue;
        spans[count].data = (uint8_t *)(uintptr_t)parts[i] + skipped;
        spans[count++].bytes = sizes[i] - skipped;
    }
    return count;
}

static const dml_request *dml__request_on(const dml__link *link)
{
    return link->receiving ? link->receiving->request : link->sending ? link->sending->request : NULL;
}

static dml_status dml__link_gone(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    const dml_request *request = dml__request_on(link);
    link->gone = true;
    link->out_total = 0;
    for (const dml_request *r = job->unmatched; r && !request; r = r->next)
        if (dml__waits_for((dml_request *)(uintptr_t)r) == rank) request = r; /* nothing will come for it */
    return request ? dml__data_gone(job, request, rank) : DML_OK;
}

/* As much of the frame that is going out as goes; `whole`: all of it has gone. */
static dml_status dml__push_frame(dml__comm_job *job, int rank, bool *whole)
{
    dml__link *link = &job->links[rank];
    dml__span spans[3];
    *whole = false;
    const int count = dml__out_spans(link, spans);
    const ptrdiff_t sent =
        link->out_offered
            ? job->transport->calls->offer(job->transport, rank, spans, count)
            : job->transport->calls->send(job->transport, rank, DML__CHANNEL_DATA, spans, count);
    if (sent == DML__GONE) return dml__link_gone(job, rank);
    if (sent) job->progress++;
    link->out_done += (size_t)sent;
    if (link->out_done < link->out_total) return DML_OK;
    *whole = true;
    link->out_total = 0;
    link->frames_sent++;
    dml__flow *flow = link->out_flow;
    link->out_flow = NULL;
    if (!flow) return DML_OK;
    link->traffic->bytes_sent += link->out_counted;
    link->traffic->messages_sent++;
    dml__step_moved(job, flow->request, flow->step, link->out_elements);
    return DML_OK;
}

/* To a rank that takes nothing any more. What it sent before may say more; and of what was offered it may
   have taken all without this rank having heard so. */
static dml_status dml__send_to_leaver(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool whole;
    dml_status status = dml__receive_on(job, rank);
    if (!status && link->out_total) status = dml__push_frame(job, rank, &whole);
    return status ? status : link->sending ? dml__link_gone(job, rank) : DML_OK;
}

DML__LOCAL dml_status dml__send_on(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool whole = true;
    dml_status status = DML_OK;
    while (whole && !status) {
        if (link->gone) return link->sending ? dml__link_gone(job, rank) : DML_OK;
        if (job->peers[rank].goodbye && link->sending) return dml__send_to_leaver(job, rank);
        if (!link->out_total && !dml__next_frame(job, link)) return DML_OK;
        status = dml__push_frame(job, rank, &whole);
    }
    return status;
}

/* ---- in ---- */

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
           link->header_bytes || job->unmatched || job->look_around;
}

DML__LOCAL uint8_t dml__link_wishes(const dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    if (link->gone) return 0;
    return link->out_total ? DML__WISH_SEND | DML__WISH_RECEIVE : DML__WISH_RECEIVE;
}

#endif
