#ifndef DML_COMM_LEAVES_C
#define DML_COMM_LEAVES_C

#include "comm/leaves.h"

/* The leaves of the node that begins at `begin`, which is a multiple of `size`, a power of two. */
static uint64_t dml__subtree_end(uint64_t leaves, uint64_t begin, uint64_t size)
{
    return leaves - begin < size ? leaves : begin + size;
}

/* Whether they are the two children of a node. */
static bool dml__subtrees_pair(uint64_t leaves, dml__subtree a, dml__subtree b)
{
    const uint64_t size = a.end - a.begin; /* not a power of two: it has no neighbour */
    return (size & (size - 1)) == 0 && (a.begin & size) == 0 &&
           b.end == dml__subtree_end(leaves, b.begin, size);
}

DML__LOCAL void dml__begin_sums(dml__leaf_sums *sums, uint64_t leaves)
{
    sums->leaves = leaves;
    sums->count = 0;
}

DML__LOCAL int dml__add_subtree(dml__leaf_sums *sums, dml__subtree subtree)
{
    dml__subtree *const top = sums->subtrees;
    int added = 0;
    top[sums->count++] = subtree;
    while (sums->count > 1 && dml__subtrees_pair(sums->leaves, top[sums->count - 2], top[sums->count - 1])) {
        top[sums->count - 2].end = top[sums->count - 1].end;
        sums->count--;
        added++;
    }
    return added;
}

DML__LOCAL int dml__subtrees_of(uint64_t leaves, uint64_t begin, uint64_t end,
                                dml__subtree subtrees[DML__MOST_SUBTREES])
{
    int count = 0;
    while (begin < end) {
        uint64_t size = 1;
        while ((begin & size) == 0 && dml__subtree_end(leaves, begin, size) < end &&
               dml__subtree_end(leaves, begin, 2 * size) <= end)
            size *= 2;
        subtrees[count].begin = begin;
        begin = subtrees[count].end = dml__subtree_end(leaves, begin, size);
        count++;
    }
    return count;
}

DML__LOCAL int dml__arrays_for_leaves(uint64_t leaves, uint64_t begin, uint64_t end)
{
    dml__leaf_sums sums;
    int most = 0;
    dml__begin_sums(&sums, leaves);
    for (dml__subtree leaf; begin < end; begin++) {
        leaf.begin = begin;
        leaf.end = begin + 1;
        if (sums.count + 1 > most) most = sums.count + 1;
        dml__add_subtree(&sums, leaf);
    }
    return most;
}

/* ---- the steps ---- */

static int dml__subtrees_of_rank(const dml__leaf_call *call, int rank,
                                 dml__subtree subtrees[DML__MOST_SUBTREES])
{
    return dml__subtrees_of(call->leaves, call->begins[rank], call->begins[rank + 1], subtrees);
}

static int dml__subtrees_of_all(const dml__collective *c, const dml__leaf_call *call)
{
    dml__subtree subtrees[DML__MOST_SUBTREES];
    int count = 0;
    for (int rank = 0; rank < c->size; rank++) count += dml__subtrees_of_rank(call, rank, subtrees);
    return count;
}

DML__LOCAL uint64_t dml__leaves_scratch(const dml__collective *c, const dml__leaf_call *call)
{
    dml__subtree subtrees[DML__MOST_SUBTREES];
    const int own = dml__subtrees_of_rank(call, c->rank, subtrees);
    const uint64_t chunk =
        dml__chunk_begin(c->count, c->size, c->rank + 1) - dml__chunk_begin(c->count, c->size, c->rank);
    return (uint64_t)(dml__subtrees_of_all(c, call) - own) * chunk;
}

DML__LOCAL int dml__leaves_steps(const dml__collective *c, const dml__leaf_call *call)
{
    dml__subtree subtrees[DML__MOST_SUBTREES];
    const int own = dml__subtrees_of_rank(call, c->rank, subtrees), all = dml__subtrees_of_all(c, call);
    /* Received, sent, added, copied; then what is done. */
    return (all - own) + own * (c->size - 1) + (all - 1) + 1 + 2 * (c->size - 1);
}

/* Where the sum of a subtree is, and which step put it there; -1: it was there. */
typedef struct dml__leaf_sum {
    dml__space space;
    uint64_t offset;
    int step;
} dml__leaf_sum;

/* Adds what the last arrays hold to those before them. */
static void dml__add_sums(dml__schedule *s, dml__leaf_sum *sums, int count, int added, uint64_t elements)
{
    for (int last = count - 1; added > 0; added--, last--) {
        dml__leaf_sum *const left = &sums[last - 1];
        const dml__leaf_sum *const right = &sums[last];
        const int step = dml__add_local(s, DML__STEP_REDUCE, left->space, left->offset, elements,
                                        right->space, right->offset);
        dml__add_after(s, step, left->step);
        dml__add_after(s, step, right->step);
        left->step = step;
    }
}

/* Receives the chunk of each subtree, in the order of the leaves, and adds them as the tree says; where the
   sum of all is. */
static dml__leaf_sum dml__write_leaf_sums(const dml__collective *c, const dml__leaf_call *call,
                                          uint64_t chunk, uint64_t elements, dml__schedule *s)
{
    dml__leaf_sum at[DML__MOST_SUBTREES];
    dml__subtree subtrees[DML__MOST_SUBTREES];
    dml__leaf_sums sums;
    uint64_t slot = 0;
    dml__begin_sums(&sums, call->leaves);
    for (int rank = 0; rank < c->size; rank++) {
        const int count = dml__subtrees_of_rank(call, rank, subtrees);
        for (int i = 0; i < count; i++) {
            dml__leaf_sum *const last = &at[sums.count];
            const bool own = rank == c->rank;
            last->space = own ? DML__SPACE_IN : DML__SPACE_SCRATCH;
            last->offset = own ? (uint64_t)i * c->count + chunk : slot;
            last->step =
                own ? -1 : dml__add_receive(s, rank, DML__STEP_RECEIVE, DML__SPACE_SCRATCH, slot, elements);
            if (!own) slot += elements;
            const int before = sums.count + 1;
            dml__add_sums(s, at, before, dml__add_subtree(&sums, subtrees[i]), elements);
        }
    }
    return at[0];
}

DML__LOCAL void dml__write_leaves_all_reduce(const dml__collective *c, const dml__leaf_call *call,
                                             dml__schedule *s)
{
    dml__subtree subtrees[DML__MOST_SUBTREES];
    const int own = dml__subtrees_of_rank(call, c->rank, subtrees);
    const uint64_t chunk = dml__chunk_begin(c->count, c->size, c->rank);
    const uint64_t elements = dml__chunk_begin(c->count, c->size, c->rank + 1) - chunk;
    for (int i = 1; i < c->size; i++) {
        const int to = (c->rank + i) % c->size;
        const uint64_t begin = dml__chunk_begin(c->count, c->size, to);
        for (int j = 0; j < own; j++)
            dml__add_send(s, to, DML__SPACE_IN, (uint64_t)j * c->count + begin,
                          dml__chunk_begin(c->count, c->size, to + 1) - begin);
    }
    int sum = -1;
    if (elements) {
        const dml__leaf_sum all = dml__write_leaf_sums(c, call, chunk, elements, s);
        sum = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, chunk, elements, all.space, all.offset);
        dml__add_after(s, sum, all.step);
    }
    /* What comes replaces a chunk that its owner has taken from here before, where OUT is the first of IN. */
    for (int i = 1; i < c->size; i++) {
        const int from = (c->rank + c->size - i) % c->size;
        const uint64_t begin = dml__chunk_begin(c->count, c->size, from);
        dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_OUT, begin,
                         dml__chunk_begin(c->count, c->size, from + 1) - begin);
        dml__add_after(s, dml__add_send(s, (c->rank + i) % c->size, DML__SPACE_OUT, chunk, elements), sum);
    }
}

#endif
