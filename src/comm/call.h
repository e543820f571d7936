/* call.h: one call of a collective, as every rank that takes part in it sees it. */
#ifndef DML_COMM_CALL_H
#define DML_COMM_CALL_H

#include "base/dtype.h"
#include "base/platform.h"
#include "comm/comm.h"

/* The operations. X(NAME, "name", takes data, takes a reduce op, what its root is called or NULL). The
   numbers go over the wire: append, never reorder. */
#define DML__COMM_OPERATION_LIST(X)                                                                          \
    X(ALL_REDUCE, "all_reduce", true, true, NULL)                                                            \
    X(REDUCE, "reduce", true, true, "root")                                                                  \
    X(BROADCAST, "broadcast", true, false, "root")                                                           \
    X(SCATTER, "scatter", true, false, "root")                                                               \
    X(GATHER, "gather", true, false, "root")                                                                 \
    X(ALL_GATHER, "all_gather", true, false, NULL)                                                           \
    X(REDUCE_SCATTER, "reduce_scatter", true, true, NULL)                                                    \
    X(ALL_TO_ALL, "all_to_all", true, false, NULL)                                                           \
    X(BARRIER, "barrier", false, false, NULL)                                                                \
    X(SEND, "send", true, false, "to")                                                                       \
    X(RECEIVE, "receive", true, false, "from")                                                               \
    X(RENDEZVOUS, "dml_comm_open", false, false, NULL)                                                       \
    X(ALL_REDUCE_LEAVES, "all_reduce_leaves", true, true, "leaves")

typedef enum dml__comm_operation {
#define DML__COMM_OPERATION_ENUM(NAME, name, data, reduce, root) DML__CALL_##NAME,
    DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_ENUM)
#undef DML__COMM_OPERATION_ENUM
        DML__COMM_OPERATION_COUNT
} dml__comm_operation;

#define DML__MOST_FUNCTIONS                                                                                  \
    16 /* that a communicator can be given to reduce with: ops behind the named ones */

/* Whether an operation is about whole vectors, element by element, so that it can go in rounds over some of
   them at a time; the others have a part for each rank. */
static inline bool dml__is_elementwise(dml__comm_operation operation)
{
    return operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE ||
           operation == DML__CALL_BROADCAST;
}

/* Whether it adds, so that the order in which it does may show in the result. */
static inline bool dml__adds(dml__comm_operation operation)
{
#define DML__COMM_OPERATION_REDUCES(NAME, name, data, reduce, root)                                          \
    if (operation == DML__CALL_##NAME) return reduce;
    DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_REDUCES)
#undef DML__COMM_OPERATION_REDUCES
    return false;
}

/* What all ranks must agree on. */
typedef struct dml__signature {
    dml__comm_operation operation;
    dml_dtype dtype;
    dml_reduce_op reduce;
    int root; /* or the other rank of a send or receive, or how many leaves there are, or DML__BY_PARTS */
    uint64_t count; /* of all_to_allv 0, and in the frames of a part that part's */
} dml__signature;

/* In place of the root of all_to_all: all_to_allv, of which no rank knows all the parts. */
#define DML__BY_PARTS 1
static inline bool dml__is_by_parts(const dml__signature *signature)
{
    return signature->operation == DML__CALL_ALL_TO_ALL && signature->root == DML__BY_PARTS;
}

/* "all_reduce(f32, 100, sum)", cut to the size of the buffer; returns it. */
#define DML__SIGNATURE_TEXT 96
DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT]);

#endif
