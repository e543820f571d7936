#ifndef DML_COMM_COLLECTIVES_C
#define DML_COMM_COLLECTIVES_C

#include <string.h>

#include "comm/comm_internal.h"

/* The ring engine. Every collective is one or a few plans: which chunks go where in which order is worked out
   here; exchange.c then moves the pieces. */

/* A ring of all ranks, each sending to the next, in as many steps each way. While a piece of one step is
   under way, the pieces of the step before it are already going on to the next rank. */
static dml__plan dml__ring_plan(const dml_comm *comm, void *data, uint64_t count, dml_dtype dtype)
{
    const uint64_t world = (uint64_t)comm->world;
    dml__plan plan;
    memset(&plan, 0, sizeof plan);
    plan.algorithm = DML__BY_RING;
    plan.data = (char *)data;
    plan.count = count;
    plan.to = (comm->rank + 1) % comm->world;
    plan.from = (comm->rank + comm->world - 1) % comm->world;
    plan.chunks = world;
    plan.first = (uint64_t)comm->rank;
    plan.send_steps = plan.receive_steps = world - 1;
    plan.pieces = dml__pieces_of(comm, count / world + (count % world != 0), dtype);
    plan.lead = plan.pieces;
    return plan;
}

/* Ring all-reduce: world - 1 steps of reduce-scatter, then world - 1 of all-gather. With 3 ranks, each
   holding chunks a, b, c, an arrow saying what the rank on its left sends to the one on its right, and a
   capital what is complete:

       step      rank 0 -> rank 1     rank 1 -> rank 2     rank 2 -> rank 0
       0         a0                   b1                   c2                   reduced into the receiver's
       1         c2+c0                a0+a1                b1+b2
       2         B                    C                    A                    replace the receiver's
       3         A                    B                    C

   Each chunk is summed by one rank in one order, so all get the same bits. Moves 2 (n - 1) / n of the data
   through each rank, the least there is. Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms
   for clusters of workstations", JPDC 69 (2009). */
static dml_status dml__ring_all_reduce(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    dml__plan plan = dml__ring_plan(comm, call->in, signature->count, signature->dtype);
    plan.send_steps *= 2;
    plan.receive_steps *= 2;
    plan.reduce_steps = (uint64_t)comm->world - 1;
    return dml__run_plan(comm, signature, &plan);
}

/* The first half of it, begun one rank earlier so that rank r ends with chunk r. */
static dml_status dml__ring_reduce_scatter(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    dml__plan plan =
        dml__ring_plan(comm, call->in, signature->count * (uint64_t)comm->world, signature->dtype);
    plan.first = (uint64_t)plan.from;
    plan.reduce_steps = (uint64_t)comm->world - 1;
    const dml_status status = dml__run_plan(comm, signature, &plan);
    const size_t bytes = (size_t)signature->count * dml_dtype_size(signature->dtype);
    if (!status && bytes) memmove(call->out, (char *)call->in + (size_t)comm->rank * bytes, bytes);
    return status;
}

/* The second half of it. */
static dml_status dml__ring_all_gather(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    const size_t bytes = (size_t)signature->count * dml_dtype_size(signature->dtype);
    char *const place = (char *)call->out + (size_t)comm->rank * bytes;
    if (bytes && place != (char *)call->in) memcpy(place, call->in, bytes);
    const dml__plan plan =
        dml__ring_plan(comm, call->out, signature->count * (uint64_t)comm->world, signature->dtype);
    return dml__run_plan(comm, signature, &plan);
}

/* One stream of pieces from rank to rank: from -1 this rank begins it, to -1 it ends here. */
static dml_status dml__run_chain(dml_comm *comm, const dml__comm_call *call, dml__comm_algorithm algorithm,
                                 int from, int to)
{
    dml__plan plan;
    memset(&plan, 0, sizeof plan);
    plan.algorithm = algorithm;
    plan.data = (char *)call->in;
    plan.count = call->signature.count;
    plan.to = to;
    plan.from = from;
    plan.chunks = 1;
    plan.send_steps = to >= 0;
    plan.receive_steps = from >= 0;
    plan.pieces = dml__pieces_of(comm, call->signature.count, call->signature.dtype);
    plan.lead = from >= 0 ? 0 : plan.pieces;
    plan.chain = true;
    return dml__run_plan(comm, &call->signature, &plan);
}

/* Broadcast: a chain from the root through all ranks in a ring, each handing on a piece as soon as it has it.
   With p pieces it takes p + n - 2 piece times, for long messages the least there is.

       time      root -> +1      +1 -> +2      +2 -> +3
       0         p0
       1         p1              p0
       2         p2              p1            p0       */
static dml_status dml__chain_broadcast(dml_comm *comm, const dml__comm_call *call)
{
    const int root = call->signature.root, next = (comm->rank + 1) % comm->world;
    const int before = (comm->rank + comm->world - 1) % comm->world;
    return dml__run_chain(comm, call, DML__BY_CHAIN, comm->rank == root ? -1 : before,
                          next == root ? -1 : next);
}

/* Dissemination barrier: in round k each rank tells the one 2^k further, and hears from the one 2^k before,
   that it has come. After ceil(log2 n) rounds each has heard, through others, from all. Source: Hensgen,
   Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988). */
static dml_status dml__dissemination_barrier(dml_comm *comm, const dml__comm_call *call)
{
    dml_status status = DML_OK;
    for (int distance = 1; distance < comm->world && !status; distance *= 2) {
        dml__plan plan = dml__ring_plan(comm, NULL, 0, DML_U8);
        plan.algorithm = DML__BY_DISSEMINATION;
        plan.to = (comm->rank + distance) % comm->world;
        plan.from = (comm->rank + comm->world - distance) % comm->world;
        plan.send_steps = plan.receive_steps = 1;
        status = dml__run_plan(comm, &call->signature, &plan);
    }
    return status;
}

static dml_status dml__ring_run(dml_comm *comm, const dml__comm_call *call)
{
    switch (call->signature.operation) {
    case DML__CALL_ALL_REDUCE: return dml__ring_all_reduce(comm, call);
    case DML__CALL_BROADCAST: return dml__chain_broadcast(comm, call);
    case DML__CALL_ALL_GATHER: return dml__ring_all_gather(comm, call);
    case DML__CALL_REDUCE_SCATTER: return dml__ring_reduce_scatter(comm, call);
    case DML__CALL_BARRIER: return dml__dissemination_barrier(comm, call);
    case DML__CALL_SEND: return dml__run_chain(comm, call, DML__BY_DIRECT, -1, call->signature.root);
    case DML__CALL_RECEIVE: return dml__run_chain(comm, call, DML__BY_DIRECT, call->signature.root, -1);
    default: DML_ASSERT(0 && "an operation without an algorithm"); return DML_ERROR_STATE;
    }
}

DML__LOCAL const dml__comm_engine *dml__ring_engine(void)
{
    static const dml__comm_engine engine = { "ring", dml__ring_run };
    return &engine;
}

#endif
