#ifndef DML_COMM_EXCHANGE_C
#define DML_COMM_EXCHANGE_C

#include "comm/comm_internal.h"

/* One direction of a plan: a row of pieces, each a header and then a payload. */
typedef struct dml__flow {
    uint64_t piece, pieces; /* the one that moves now; of how many */
    size_t done;            /* bytes of it that have moved, header included */
    uint8_t header[DML__PIECE_HEADER_BYTES];
} dml__flow;

/* Where a piece lies. */
typedef struct dml__extent {
    char *data;
    size_t count, bytes;
} dml__extent;

static uint64_t dml__segment_elements(const dml_comm *comm, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    return size ? comm->segment_bytes / size : 1;
}

DML__LOCAL uint64_t dml__pieces_of(const dml_comm *comm, uint64_t elements, dml_dtype dtype)
{
    const uint64_t segment = dml__segment_elements(comm, dtype);
    return elements ? (elements - 1) / segment + 1 : 1;
}

/* Piece `piece` of the row. Chunk c begins at c * (count / chunks) + min(c, count % chunks): the first of
   them are longer by one. */
static dml__extent dml__locate(const dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                               uint64_t piece, bool receiving)
{
    const uint64_t step = piece / plan->pieces + (receiving && !plan->chain);
    const uint64_t chunk = (plan->first + plan->chunks * 2 - step % plan->chunks) % plan->chunks;
    const uint64_t part = plan->count / plan->chunks, longer = plan->count % plan->chunks;
    const uint64_t begin = chunk * part + (chunk < longer ? chunk : longer);
    const uint64_t elements = part + (chunk < longer);
    const uint64_t segment = dml__segment_elements(comm, signature->dtype);
    const uint64_t skip = piece % plan->pieces * segment;
    const uint64_t left = skip < elements ? elements - skip : 0;
    const size_t size = dml_dtype_size(signature->dtype);
    dml__extent extent;
    extent.count = (size_t)(left < segment ? left : segment);
    extent.bytes = extent.count * size;
    extent.data = extent.count ? plan->data + (begin + skip) * size : NULL;
    return extent;
}

static dml_status dml__send_some(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                 dml__flow *flow, bool *moved)
{
    const dml__extent extent = dml__locate(comm, signature, plan, flow->piece, false);
    if (flow->done == 0) {
        dml__piece_header header;
        header.signature = *signature;
        header.algorithm = plan->algorithm;
        header.sequence = comm->sequence;
        header.piece = flow->piece;
        header.bytes = (uint32_t)extent.bytes;
        dml__encode_piece_header(&header, flow->header);
        if (comm->outgoing) dml__to_wire(comm->outgoing, extent.data, extent.count, signature->dtype);
    }
    char *const source = comm->outgoing ? comm->outgoing : extent.data;
    const size_t of_header = flow->done < sizeof flow->header ? flow->done : sizeof flow->header;
    const size_t of_data = flow->done - of_header;
    dml__span spans[2];
    spans[0].data = flow->header + of_header;
    spans[0].bytes = sizeof flow->header - of_header;
    spans[1].data = source ? source + of_data : NULL;
    spans[1].bytes = extent.bytes - of_data;
    const ptrdiff_t sent =
        comm->transport->calls->send(comm->transport, plan->to, DML__CHANNEL_DATA, spans, 2);
    if (sent == DML__GONE) return dml__data_gone(comm, signature, plan->to);
    *moved = *moved || sent > 0;
    flow->done += (size_t)sent;
    if (flow->done == sizeof flow->header + extent.bytes) {
        flow->piece++;
        flow->done = 0;
    }
    return DML_OK;
}

/* Whether two ranks' calls are the two ends of one. */
static bool dml__signatures_match(const dml__signature *mine, const dml__signature *theirs, int me)
{
    if (mine->count != theirs->count) return false;
    if (mine->operation == DML__CALL_RECEIVE)
        return theirs->operation == DML__CALL_SEND && theirs->root == me && mine->dtype == theirs->dtype;
    return mine->operation == theirs->operation && mine->dtype == theirs->dtype &&
           mine->reduce == theirs->reduce && mine->root == theirs->root;
}

/* Checks the header of a piece against what this rank is doing. */
static dml_status dml__check_header(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                    const dml__flow *flow, size_t bytes)
{
    dml__piece_header header;
    if (!dml__decode_piece_header(flow->header, &header))
        return dml__comm_fail(comm, plan->from, DML_ERROR_FORMAT,
                              "rank %d sent rank %d something that is no message of this protocol",
                              plan->from, comm->rank);
    char mine[DML__SIGNATURE_TEXT], theirs[DML__SIGNATURE_TEXT];
    if (!dml__signatures_match(signature, &header.signature, comm->rank))
        return dml__comm_fail(
            comm, plan->from, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s", plan->from,
            dml__signature_text(&header.signature, theirs), comm->rank, dml__signature_text(signature, mine));
    if (header.sequence != comm->sequence)
        return dml__comm_fail(
            comm, plan->from, DML_ERROR_MISMATCH,
            "rank %d called %s after %llu collectives, rank %d after %llu: one of them left out a call",
            plan->from, dml__signature_text(&header.signature, theirs), (unsigned long long)header.sequence,
            comm->rank, (unsigned long long)comm->sequence);
    if (header.algorithm != plan->algorithm || header.piece != flow->piece || header.bytes != bytes)
        return dml__comm_fail(comm, plan->from, DML_ERROR_MISMATCH,
                              "rank %d and rank %d cut %s into different pieces", plan->from, comm->rank,
                              dml__signature_text(signature, mine));
    return DML_OK;
}

static dml_status dml__receive_some(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                    dml__flow *flow, bool *moved)
{
    const dml__extent extent = dml__locate(comm, signature, plan, flow->piece, true);
    const uint64_t step = flow->piece / plan->pieces;
    const bool reduce = step < plan->reduce_steps;
    char *const target = reduce ? comm->segment : extent.data;
    const size_t of_header = flow->done < sizeof flow->header ? flow->done : sizeof flow->header;
    const size_t of_data = flow->done - of_header;
    /* Header and payload in one call, since what the payload's size must be is known beforehand. If the
       header then turns out wrong, the data is lost, as it is after any error. */
    dml__span spans[2];
    spans[0].data = flow->header + of_header;
    spans[0].bytes = sizeof flow->header - of_header;
    spans[1].data = target ? target + of_data : NULL;
    spans[1].bytes = extent.bytes - of_data;
    const ptrdiff_t got =
        comm->transport->calls->receive(comm->transport, plan->from, DML__CHANNEL_DATA, spans, 2);
    if (got == DML__GONE) return dml__data_gone(comm, signature, plan->from);
    *moved = *moved || got > 0;
    flow->done += (size_t)got;
    if (of_header < sizeof flow->header && flow->done >= sizeof flow->header) {
        const dml_status status = dml__check_header(comm, signature, plan, flow, extent.bytes);
        if (status) return status;
    }
    if (flow->done < sizeof flow->header + extent.bytes) return DML_OK;
    if (comm->outgoing) dml__from_wire(target, target, extent.count, signature->dtype);
    if (reduce && extent.count) {
        dml__reduce_into(extent.data, comm->segment, extent.count, signature->dtype, signature->reduce);
        if (signature->reduce == DML_MEAN && step + 1 == plan->reduce_steps)
            dml__finish_mean(extent.data, extent.count, signature->dtype, comm->world);
    }
    flow->piece++;
    flow->done = 0;
    return DML_OK;
}

DML__LOCAL dml_status dml__run_plan(dml_comm *comm, const dml__signature *signature, const dml__plan *plan)
{
    dml__flow out, in;
    out.piece = in.piece = 0;
    out.done = in.done = 0;
    out.pieces = plan->send_steps * plan->pieces;
    in.pieces = plan->receive_steps * plan->pieces;
    while (out.piece < out.pieces || in.piece < in.pieces) {
        const bool sending =
            out.piece < out.pieces && (out.piece < plan->lead || out.piece - plan->lead < in.piece);
        const bool receiving = in.piece < in.pieces;
        bool moved = false;
        dml_status status = DML_OK;
        if (sending) status = dml__send_some(comm, signature, plan, &out, &moved);
        if (!status && receiving) status = dml__receive_some(comm, signature, plan, &in, &moved);
        if (!status && !moved)
            status =
                dml__comm_wait_ready(comm, signature, sending ? plan->to : -1, receiving ? plan->from : -1);
        if (status) return status;
    }
    return DML_OK;
}

#endif
