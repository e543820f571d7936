#ifndef DML_COMM_LINK_OUT_C
#define DML_COMM_LINK_OUT_C

#include <string.h>

#include "comm/job.h"
#include "comm/trace.h"

/* Frames out.

   Nothing is sent that could block a stream: a message that is larger than job->eager_bytes goes when its
   receiver has granted it, which it does as soon as the receiving step could take it. A smaller one goes at
   once, as long as the receiver has room to keep it (the sender counts: `charged` less `credited`); when it
   hasn't, an announcement goes instead, and the message when it is granted. So whatever is at the front of a
   stream can be taken off it, in whatever order two ranks call what they call. */

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

DML__LOCAL dml_status dml__link_gone(dml__comm_job *job, int rank)
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

#endif
