#ifndef DML_COMM_PAIR_C
#define DML_COMM_PAIR_C

#include <stdio.h>

#include "comm/job.h"

/* Sends and receives: who gets which message. A receive takes the first message of its communicator, sender
   and tag; a message goes to the first receive that takes it. */

DML__LOCAL int dml__group_rank(const dml_comm *comm, int world_rank)
{
    for (int r = 0; r < comm->size; r++)
        if (comm->world_ranks[r] == world_rank) return r;
    return -1;
}

DML__LOCAL dml_comm *dml__find_comm(const dml__comm_job *job, uint32_t id)
{
    dml_comm *comm = job->comms;
    while (comm && comm->id != id) comm = comm->next;
    return comm;
}

DML__LOCAL dml_comm *dml__find_comm_of(const dml__comm_job *job, uint32_t id, int world_rank)
{
    dml_comm *comm = dml__find_comm(job, id);
    return comm && dml__group_rank(comm, world_rank) >= 0 ? comm : NULL;
}

DML__LOCAL bool dml__message_fits(const dml_comm *comm, int from, int tag, int rank, const dml__frame *frame)
{
    return frame->communicator == comm->id && (tag == DML_ANY_TAG || tag == frame->tag) &&
           (from == DML_ANY_SOURCE || comm->world_ranks[from] == rank);
}

DML__LOCAL dml_request *dml__match_message(dml__comm_job *job, int rank, const dml__frame *frame)
{
    for (dml_request *request = job->unmatched; request; request = request->next)
        if (dml__message_fits(request->comm, request->call.signature.root, request->call.tag, rank, frame))
            return request;
    return NULL;
}

DML__LOCAL bool dml__take_message(dml__comm_job *job, dml_request *request, int rank, const dml__frame *frame)
{
    const dml__signature *mine = &request->call.signature, *theirs = &frame->signature;
    if (mine->dtype != theirs->dtype || mine->count < theirs->count) {
        char their_text[DML__SIGNATURE_TEXT], my_text[DML__SIGNATURE_TEXT], tag[24] = "";
        char where[DML__COMMUNICATOR_TEXT];
        if (frame->tag > 0) snprintf(tag, sizeof tag, " with tag %d", frame->tag);
        dml__job_fail(job, rank, DML_ERROR_MISMATCH, "rank %d called %s%s while rank %d called %s%s%s", rank,
                      dml__signature_text(theirs, their_text), tag, job->rank,
                      dml__signature_text(mine, my_text),
                      request->call.tag == DML_ANY_TAG ? " with any tag" : tag,
                      dml__communicator_text(frame->communicator, where));
        return false;
    }
    request->message.source = dml__group_rank(request->comm, rank);
    request->message.tag = frame->tag;
    request->message.count = (size_t)theirs->count;
    request->message.dtype = theirs->dtype;
    dml__begin_pair(job, request, rank, frame->sequence, theirs->count);
    return true;
}

#endif
