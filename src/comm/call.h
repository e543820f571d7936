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

/* Whether its data run one way, from a root or to it: many of these, one after the other, overlap, since one
   can begin before the one before it has ended everywhere. */
static inline bool dml__has_root(dml__comm_operation operation)
{
    return operation == DML__CALL_REDUCE || operation == DML__CALL_BROADCAST ||
           operation == DML__CALL_SCATTER || operation == DML__CALL_GATHER;
}

static inline bool dml__is_pair(dml__comm_operation operation)
{
    return operation == DML__CALL_SEND || operation == DML__CALL_RECEIVE;
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

/* What a collective is beside its operation: itself, an all_to_all in place, a part of another call, or, from
   the last on, one with a count for each rank (all_gatherv and its like), of which it is a hash. */
typedef enum dml__call_variant {
    DML__PLAIN,
    DML__IN_PLACE,
    DML__IN_SPLIT,
    DML__IN_TUNE,
    DML__WITH_COUNTS
} dml__call_variant;

/* What all ranks must agree on. */
typedef struct dml__signature {
    dml__comm_operation operation;
    dml_dtype dtype;
    dml_reduce_op reduce;
    int root;         /* or the other rank of a send or receive, or how many leaves there are */
    uint64_t count;   /* with a count for each rank their sum; of all_to_allv 0, and in the frames of a part
                         that part's */
    uint32_t variant; /* dml__call_variant; 0 of sends and receives */
} dml__signature;

/* Whether it is all_to_allv, of which no rank knows all the parts. */
static inline bool dml__is_by_parts(const dml__signature *signature)
{
    return signature->operation == DML__CALL_ALL_TO_ALL && signature->variant >= DML__WITH_COUNTS;
}

/* Whether two ranks that say so make the same call of a collective. */
DML__LOCAL bool dml__same_call(const dml__signature *a, const dml__signature *b);

/* "all_reduce(f32, 100, sum)", cut to the size of the buffer; returns it. */
#define DML__SIGNATURE_TEXT 112
DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT]);

/* " in communicator 2", whose ranks a signature's numbers are; nothing of the first one. */
enum { DML__COMMUNICATOR_TEXT = 32 };
DML__LOCAL const char *dml__communicator_text(uint32_t id, char text[DML__COMMUNICATOR_TEXT]);

/* What sets two calls apart that doesn't show in their texts; "": nothing. */
DML__LOCAL const char *dml__apart_text(const dml__signature *a, const dml__signature *b);

#endif
