/* collective.h: the collectives that benchmarks time, by name. */
#ifndef DML_BENCH_COLLECTIVE_H
#define DML_BENCH_COLLECTIVE_H

#include "comm/call.h"
#include "comm/comm.h"

#include "options.h"

typedef struct operation {
    const char *name;
    dml__comm_operation call;
    bool parts; /* `bytes` are of an array that has a part for each rank */
} operation;

static const operation operations[] = {
    { "all_reduce", DML__CALL_ALL_REDUCE, false },
    { "reduce", DML__CALL_REDUCE, false },
    { "broadcast", DML__CALL_BROADCAST, false },
    { "scatter", DML__CALL_SCATTER, true },
    { "gather", DML__CALL_GATHER, true },
    { "all_gather", DML__CALL_ALL_GATHER, true },
    { "reduce_scatter", DML__CALL_REDUCE_SCATTER, true },
    { "all_to_all", DML__CALL_ALL_TO_ALL, true },
};

enum { OPERATIONS = sizeof operations / sizeof *operations };

/* NULL: there is none of that name. */
static const operation *find_operation(const char *name)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (strcmp(operations[i].name, name) == 0) return &operations[i];
    return NULL;
}

/* One call, of sums and with root 0, where it has these; `count` floats of the whole array. */
static void call_operation(const operation *o, dml_comm *comm, float *in, float *out, size_t count)
{
    const size_t part = count / (size_t)dml_comm_world_size(comm);
    switch (o->call) {
    case DML__CALL_REDUCE: dml_comm_reduce(comm, out, count, DML_F32, DML_SUM, 0); break;
    case DML__CALL_BROADCAST: dml_comm_broadcast(comm, out, count, DML_F32, 0); break;
    case DML__CALL_SCATTER: dml_comm_scatter(comm, in, part, DML_F32, out, 0); break;
    case DML__CALL_GATHER: dml_comm_gather(comm, in, part, DML_F32, out, 0); break;
    case DML__CALL_ALL_GATHER: dml_comm_all_gather(comm, in, part, DML_F32, out); break;
    case DML__CALL_REDUCE_SCATTER: dml_comm_reduce_scatter(comm, in, part, DML_F32, DML_SUM, out); break;
    case DML__CALL_ALL_TO_ALL: dml_comm_all_to_all(comm, in, part, DML_F32, out); break;
    default: dml_comm_all_reduce(comm, out, count, DML_F32, DML_SUM); break;
    }
}

/* Pages that nobody has written are all one page of zeros, which is read from the first cache. Ends the
   program where there is no memory. */
static float *new_array(size_t count)
{
    float *array = (float *)malloc(count * sizeof *array);
    if (!array) {
        fprintf(stderr, "no memory left for %zu floats\n", count);
        exit(2);
    }
    for (size_t i = 0; i < count; i++) array[i] = 1;
    return array;
}

#endif
