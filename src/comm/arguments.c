#ifndef DML_COMM_ARGUMENTS_C
#define DML_COMM_ARGUMENTS_C

#include "comm/job.h"

#include <stdio.h>

/* Whether a call's arguments are such as it takes. */

static bool dml__needs_root(dml__comm_operation operation)
{
    return operation == DML__CALL_REDUCE || operation == DML__CALL_BROADCAST ||
           operation == DML__CALL_SCATTER || operation == DML__CALL_GATHER || dml__is_pair(operation);
}

/* Elements of the array that has a part for each rank: up to the end of the last. */
static uint64_t dml__spread(const dml_comm *comm, const dml__comm_call *call, const size_t *counts,
                            const size_t *offsets)
{
    uint64_t end = 0;
    if (!counts) return call->signature.count * (uint64_t)comm->size;
    for (int r = 0; r < comm->size; r++)
        if (offsets[r] + counts[r] > end) end = offsets[r] + counts[r];
    return end;
}

/* How many elements of its two arrays a call touches at this rank. */
static void dml__extents(const dml_comm *comm, const dml__comm_call *call, uint64_t *in, uint64_t *out)
{
    const bool root = comm->rank == call->signature.root;
    const uint64_t one = call->counts ? call->counts[comm->rank] : call->signature.count;
    const uint64_t all = dml__spread(comm, call, call->counts, call->offsets);
    *in = 0;
    *out = one;
    switch (call->signature.operation) {
    case DML__CALL_SCATTER: *in = root ? all : 0; break;
    case DML__CALL_GATHER:
        *in = one;
        *out = root ? all : 0;
        break;
    case DML__CALL_ALL_GATHER:
        *in = one;
        *out = all;
        break;
    case DML__CALL_REDUCE_SCATTER: *in = all; break;
    case DML__CALL_ALL_TO_ALL:
        *in = call->in_counts ? dml__spread(comm, call, call->in_counts, call->in_offsets) : all;
        *out = all;
        break;
    default: break;
    }
}

/* Whether the two arrays lie apart, or one is this rank's own part of the other, or of all-to-all the other.
 */
static bool dml__apart(const dml_comm *comm, const dml__comm_call *call, uint64_t in, uint64_t out)
{
    const size_t element = dml_dtype_size(call->signature.dtype);
    const uintptr_t a = (uintptr_t)call->in, b = (uintptr_t)call->out;
    const uint64_t own =
        (call->offsets ? call->offsets[comm->rank] : call->signature.count * (uint64_t)comm->rank) * element;
    if (!in || !out || a >= b + out * element || b >= a + in * element) return true;
    if (call->signature.operation == DML__CALL_ALL_TO_ALL) return a == b && !call->in_counts;
    return in > out ? b == a + own : in < out ? a == b + own : a == b;
}

static const char *dml__root_fault(const dml_comm *comm, const dml__comm_call *call)
{
    const int root = call->signature.root;
    const dml__comm_operation operation = call->signature.operation;
    if (operation == DML__CALL_RECEIVE && root == DML_ANY_SOURCE)
        return comm->size > 1 ? NULL : "there is no other rank";
    if (root < 0 || root >= comm->size) return "it must be a rank of the communicator";
    return dml__is_pair(operation) && root == comm->rank ? "it must be another rank" : NULL;
}

static bool dml__parts_fit(int size, const size_t *counts, const size_t *offsets, uint64_t most)
{
    for (int r = 0; counts && r < size; r++)
        if (counts[r] > most || offsets[r] > most - counts[r]) return false;
    return true;
}

static const char *dml__size_fault(const dml_comm *comm, const dml__comm_call *call, size_t element)
{
    const double all = (double)call->signature.count * (double)comm->size; /* a division takes longer */
    if (all * (double)element > (double)(SIZE_MAX / 2) && !call->counts) return "more than fits into memory";
    const uint64_t most = call->counts ? SIZE_MAX / 2 / element : 0;
    if (!dml__parts_fit(comm->size, call->counts, call->offsets, most) ||
        !dml__parts_fit(comm->size, call->in_counts, call->in_offsets, most))
        return "more than fits into memory";
    if (call->in_counts && call->in_counts[comm->rank] != call->counts[comm->rank])
        return "what it has for itself and what it takes from itself must be as many elements";
    return NULL;
}

/* Of the parts before part r the first that it overlaps; -1: none. */
static int dml__overlapped_part(const size_t *counts, const size_t *offsets, int r)
{
    for (int q = 0; q < r; q++)
        if (counts[q] && offsets[q] < offsets[r] + counts[r] && offsets[r] < offsets[q] + counts[q]) return q;
    return -1;
}

/* Parts of an array that is written: which of two there is read later would depend on who came first. Those
   that lie behind or before all the ones before them, as usual, need no comparison with each. */
static const char *dml__overlap_fault(const dml_comm *comm, const dml__comm_call *call,
                                      char text[DML__FAULT_TEXT])
{
    const dml__comm_operation operation = call->signature.operation;
    const size_t *counts = call->counts, *offsets = call->offsets;
    size_t begin = SIZE_MAX, end = 0; /* of all before */
    if (!counts || operation == DML__CALL_SCATTER) return NULL;
    if (operation == DML__CALL_GATHER && comm->rank != call->signature.root) return NULL;
    for (int r = 0; r < comm->size; r++) {
        if (!counts[r]) continue;
        const bool apart = offsets[r] >= end || offsets[r] + counts[r] <= begin;
        const int q = apart ? -1 : dml__overlapped_part(counts, offsets, r);
        if (q >= 0) {
            snprintf(text, DML__FAULT_TEXT,
                     "parts %d (%zu elements from %zu on) and %d (%zu from %zu on) of its %s overlap", q,
                     counts[q], offsets[q], r, counts[r], offsets[r],
                     operation == DML__CALL_REDUCE_SCATTER ? "input" : "output");
            return text;
        }
        if (offsets[r] < begin) begin = offsets[r];
        if (offsets[r] + counts[r] > end) end = offsets[r] + counts[r];
    }
    return NULL;
}

/* The owners are working memory that the call's own steps write. */
static const char *dml__leaves_fault(const dml__comm_call *call, size_t element)
{
    const size_t bytes = (size_t)call->signature.count * element;
    const uintptr_t out = (uintptr_t)call->out;
    if (call->signature.root < 0) return "there can be 2^31 - 1 leaves at most, and these are more (-1)";
    if (call->signature.root < 1) return "there must be 1 leaf or more";
    if (!call->leaves || !call->owners) return "NULL for its leaves or owners";
    if ((uintptr_t)call->owners % sizeof(int64_t) || (uintptr_t)call->leaves % sizeof(void *))
        return "its leaves or owners must begin at a multiple of 8";
    if (call->signature.count > SIZE_MAX / 2 / element) return "more than fits into memory";
    if (bytes && out % element) return "its arrays must begin at a multiple of the element's size";
    for (int i = 0; bytes && i < call->signature.root; i++) {
        const uintptr_t leaf = (uintptr_t)call->leaves[i];
        if (leaf % element) return "its arrays must begin at a multiple of the element's size";
        if (leaf && leaf != out && leaf < out + bytes && out < leaf + bytes)
            return "its output overlaps a leaf that it isn't";
    }
    return NULL;
}

DML__LOCAL const char *dml__call_fault(const dml_comm *comm, const dml__comm_call *call,
                                       char text[DML__FAULT_TEXT])
{
    const dml__signature *signature = &call->signature;
    const size_t element = dml_dtype_size(signature->dtype);
    uint64_t in, out;
    if (!element) return "the dtype must be one of dml_dtype";
    if (call->parts_missing) return "NULL for its counts";
    if (signature->operation == DML__CALL_ALL_REDUCE_LEAVES) {
        const char *fault = dml__leaves_fault(call, element);
        if (fault) return fault;
    }
    if ((unsigned)signature->reduce >= (unsigned)(DML__REDUCE_OP_COUNT + comm->function_count))
        return "the op must be DML_SUM, DML_MEAN, DML_MIN, DML_MAX, DML_PROD or what dml_comm_add_reduce "
               "gave";
    if (dml__needs_root(signature->operation)) {
        const char *fault = dml__root_fault(comm, call);
        if (fault) return fault;
    }
    if (dml__is_pair(signature->operation) && call->tag < 0 &&
        (signature->operation == DML__CALL_SEND || call->tag != DML_ANY_TAG))
        return "the tag must be 0 or more";
    const char *fault = dml__size_fault(comm, call, element);
    if (!fault) fault = dml__overlap_fault(comm, call, text);
    if (fault) return fault;
    dml__extents(comm, call, &in, &out);
    if (in && !call->in) return "NULL for its input";
    if (out && !call->out) return in ? "NULL for its output" : "NULL for its data";
    const uintptr_t odd = element - 1; /* the bits that a place of elements doesn't have: a power of two */
    if ((in && ((uintptr_t)call->in & odd)) || (out && ((uintptr_t)call->out & odd)))
        return "its arrays must begin at a multiple of the element's size";
    return dml__apart(comm, call, in, out) ? NULL : "its input and its output overlap";
}

#endif
