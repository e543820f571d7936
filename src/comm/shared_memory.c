#ifndef DML_COMM_SHARED_MEMORY_C
#define DML_COMM_SHARED_MEMORY_C

#include "comm/shared_memory.h"

#include "comm/algorithms.h"

#include <string.h>

#define DML__SHARED_PART ((size_t)256 << 10) /* bytes that a rank gives at once, at most, */
#define DML__SHARED_MOST ((size_t)8 << 20)   /* and of the memory in all */
#define DML__SHARED_RANKS 64                 /* of more, each would look at many small chunks */
#define DML__SHARED_SPACES ((size_t)2)       /* of calls or rounds that take turns */

/* So few that those of all ranks stay in the caches, and so many that the messages, of which a round takes
   two to each other rank, cost little. */
static size_t dml__shared_room(int size)
{
    size_t part = DML__SHARED_PART;
    while (DML__SHARED_SPACES * (size_t)size * part > DML__SHARED_MOST) part /= 2;
    return part;
}

static size_t dml__shared_space(const dml_comm *comm)
{
    return (size_t)comm->size * dml__shared_room(comm->size);
}

static bool dml__may_share(const dml_comm *comm)
{
    const dml__comm_job *job = comm->job;
    bool may = job->transport->calls->shared && comm->size <= DML__SHARED_RANKS;
    for (int r = 0; r < comm->size && may; r++)
        may = r == comm->rank || job->links[comm->world_ranks[r]].at_once;
    return may;
}

static void dml__have_shared(dml_comm *comm, void *memory)
{
    comm->shared = (char *)memory;
    comm->shared_second = false;
    comm->model.shared = memory ? dml__shared_room(comm->size) : 0;
    comm->job->choices++;
}

DML__LOCAL dml_status dml__share_memory(dml_comm *comm)
{
    dml__transport *transport = comm->job->transport;
    uint8_t place[DML__SHARED_PLACE + 1]; /* and whether there is any */
    const size_t bytes = DML__SHARED_SPACES * dml__shared_space(comm);
    void *memory = NULL;
    memset(place, 0, sizeof place);
    dml__have_shared(comm, NULL);
    if (comm->job->local || comm->size == 1) return DML_OK; /* threads read each other's memory as it is */
    if (comm->rank == 0 && dml__may_share(comm))
        memory = transport->calls->shared->make(transport, bytes, place);
    place[DML__SHARED_PLACE] = memory != NULL;
    dml_status status = dml_comm_broadcast(comm, place, sizeof place, DML_U8, 0);
    if (!status && place[DML__SHARED_PLACE]) {
        if (comm->rank && dml__may_share(comm))
            memory = transport->calls->shared->find(transport, bytes, place);
        int32_t all = memory != NULL;
        status = dml_comm_all_reduce(comm, &all, 1, DML_I32, DML_MIN);
        if (!status && all) {
            dml__have_shared(comm, memory);
            return DML_OK;
        }
    }
    if (memory) transport->calls->shared->drop(transport, memory, bytes);
    return status;
}

DML__LOCAL void dml__unshare_memory(dml_comm *comm)
{
    dml__transport *transport = comm->job->transport;
    const size_t bytes = DML__SHARED_SPACES * dml__shared_space(comm);
    if (comm->shared) transport->calls->shared->drop(transport, comm->shared, bytes);
    comm->shared = NULL;
}

DML__LOCAL void dml__lay_shared(dml_request *request, const dml__algorithm_info *info)
{
    dml_comm *comm = request->comm;
    if (!dml__is_shared(info)) return;
    request->spaces[DML__SPACE_SHARED] = comm->shared + (comm->shared_second ? dml__shared_space(comm) : 0);
    comm->shared_second = !comm->shared_second;
}

DML__LOCAL bool dml__take_shared(dml_request *request)
{
    dml_comm *comm = request->comm;
    request->queues = comm->sharing != NULL;
    if (!request->queues) comm->sharing = request;
    return !request->queues;
}

DML__LOCAL dml_request *dml__pass_shared(const dml_request *request)
{
    dml_comm *comm = request->comm;
    if (comm->sharing != request) return NULL;
    dml_request *next = comm->job->error.status ? NULL : comm->job->active;
    while (next && !(next->queues && next->comm == comm)) next = next->next;
    comm->sharing = next;
    return next;
}

#endif
