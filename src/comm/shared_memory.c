#ifndef DML_COMM_SHARED_MEMORY_C
#define DML_COMM_SHARED_MEMORY_C

#include "comm/shared_memory.h"

#include "base/cpu_internal.h"
#include "comm/algorithms.h"

#include <string.h>

#define DML__SHARED_PART ((size_t)256 << 10) /* bytes that a rank gives at once, at most, */
#define DML__SHARED_MOST ((size_t)8 << 20)   /* and of the memory in all */
#define DML__SHARED_RANKS 64                 /* of more, each would look at many small chunks */
#define DML__SHARED_LINE ((size_t)64)

/* How a call's spaces lie in the memory. On Intel's processors each is a half of it: what stays in the second
   caches is fastest. On others one comes behind the other, all around: a line that another processor's second
   cache still has comes slower from there than from the third, which they share (between two ranks of a Zen 4
   halves take 2 to 2.5 times as long). */
enum { DML__SHARED_NOWHERE, DML__SHARED_IN_HALVES, DML__SHARED_ALL_AROUND };

/* Of the largest, there is room for three where they lie all around: else one that begins anew at the
   beginning might lie in the one before it. */
static size_t dml__shared_spaces_of(int way)
{
    return way == DML__SHARED_ALL_AROUND ? 3 : 2;
}

/* So few that those of all ranks stay in the caches, and so many that the messages, of which a round takes
   two to each other rank, cost little. */
static size_t dml__shared_room(int size, int way)
{
    size_t part = DML__SHARED_PART;
    while (dml__shared_spaces_of(way) * (size_t)size * part > DML__SHARED_MOST) part /= 2;
    return part;
}

static size_t dml__shared_bytes(int size, int way)
{
    if (way == DML__SHARED_ALL_AROUND) return DML__SHARED_MOST;
    return dml__shared_spaces_of(way) * (size_t)size * dml__shared_room(size, way);
}

static bool dml__may_share(const dml_comm *comm)
{
    const dml__comm_job *job = comm->job;
    bool may = job->transport->calls->shared && comm->size <= DML__SHARED_RANKS;
    for (int r = 0; r < comm->size && may; r++)
        may = r == comm->rank || job->links[comm->world_ranks[r]].at_once;
    return may;
}

static void dml__have_shared(dml_comm *comm, void *memory, int way)
{
    comm->shared = (char *)memory;
    comm->shared_bytes = memory ? dml__shared_bytes(comm->size, way) : 0;
    comm->shared_at = 0;
    comm->shared_halves = way == DML__SHARED_IN_HALVES;
    comm->model.shared = memory ? dml__shared_room(comm->size, way) : 0;
    comm->job->choices++;
}

DML__LOCAL dml_status dml__share_memory(dml_comm *comm)
{
    dml__transport *transport = comm->job->transport;
    uint8_t place[DML__SHARED_PLACE + 1]; /* and which way */
    int way = dml__is_intel() ? DML__SHARED_IN_HALVES : DML__SHARED_ALL_AROUND;
    size_t bytes = dml__shared_bytes(comm->size, way);
    void *memory = NULL;
    memset(place, 0, sizeof place);
    dml__have_shared(comm, NULL, DML__SHARED_NOWHERE);
    if (comm->job->local || comm->size == 1) return DML_OK; /* threads read each other's memory as it is */
    if (comm->rank == 0 && dml__may_share(comm))
        memory = transport->calls->shared->make(transport, bytes, place);
    place[DML__SHARED_PLACE] = (uint8_t)(memory ? way : DML__SHARED_NOWHERE);
    dml_status status = dml_comm_broadcast(comm, place, sizeof place, DML_U8, 0);
    if (!status && place[DML__SHARED_PLACE]) {
        way = place[DML__SHARED_PLACE];
        bytes = dml__shared_bytes(comm->size, way);
        if (comm->rank && dml__may_share(comm))
            memory = transport->calls->shared->find(transport, bytes, place);
        int32_t all = memory != NULL;
        status = dml_comm_all_reduce(comm, &all, 1, DML_I32, DML_MIN);
        if (!status && all) {
            dml__have_shared(comm, memory, way);
            return DML_OK;
        }
    }
    if (memory) transport->calls->shared->drop(transport, memory, bytes);
    return status;
}

DML__LOCAL void dml__unshare_memory(dml_comm *comm)
{
    dml__transport *transport = comm->job->transport;
    if (comm->shared) transport->calls->shared->drop(transport, comm->shared, comm->shared_bytes);
    comm->shared = NULL;
}

DML__LOCAL size_t dml__shared_pitch(const dml_request *request, const dml__algorithm_info *info)
{
    const dml_comm *comm = request->comm;
    const size_t element = dml_dtype_size(request->reduction.dtype);
    const size_t row = (size_t)dml__shared_row(info, comm->size, request->round_count) * element;
    if (comm->shared_halves) return comm->model.shared;
    return (row + DML__SHARED_LINE - 1) / DML__SHARED_LINE * DML__SHARED_LINE;
}

/* Never in the one before it, which others may be reading. */
DML__LOCAL void dml__lay_shared(dml_request *request, const dml__algorithm_info *info)
{
    dml_comm *comm = request->comm;
    if (!dml__is_shared(info)) return;
    const size_t bytes = (size_t)comm->size * dml__shared_pitch(request, info);
    if (comm->shared_at + bytes > comm->shared_bytes) comm->shared_at = 0;
    request->spaces[DML__SPACE_SHARED] = comm->shared + comm->shared_at;
    comm->shared_at += bytes;
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
