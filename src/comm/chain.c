#ifndef DML_COMM_CHAIN_C
#define DML_COMM_CHAIN_C

#include "comm/algorithms.h"

/* Along the ranks, from 0 to the last: what comes from the rank before is added to what this one has (a + b
   is b + a to the bit), and goes on. So the sum is that of (((x0 + x1) + x2) + ...), without SCRATCH and at a
   ring's speed, once the pipeline is full. */

/* Adds what comes from the rank before to a stretch of `space`, completes it at the last rank, and sends it
   to `to`, or to nobody (-1). The last step of the stretch here. */
static int dml__add_link(const dml__collective *c, dml__schedule *s, dml__space space, dml__stretch stretch,
                         int to)
{
    int last = -1;
    if (c->rank > 0)
        last =
            dml__add_receive(s, c->rank - 1, DML__STEP_RECEIVE_REDUCE, space, stretch.offset, stretch.count);
    if (c->rank == c->size - 1) dml__set_completes(s, last);
    if (to < 0 || to == c->rank) return last;
    const int send = dml__add_send(s, to, space, stretch.offset, stretch.count);
    dml__add_after(s, send, last);
    return send;
}

/* 0 -> 1 -> 2 -> 3 adds, 3 -> 2 -> 1 -> 0 replaces; the two go on at once, in opposite directions. The sum
   comes back only after the rank behind has taken what it is made of. Cost: 2 (m - 1) a + n b + n g and the
   way back of a segment, at twice what a link carries in one direction. */
DML__LOCAL void dml__write_chain_all_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__stretch all;
    all.offset = 0;
    all.count = c->count;
    const bool ends = c->rank == c->size - 1;
    int last = dml__add_link(c, s, DML__SPACE_OUT, all, ends ? -1 : c->rank + 1);
    if (!ends) last = dml__add_receive(s, c->rank + 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    if (c->rank > 0) dml__add_after(s, dml__add_send(s, c->rank - 1, DML__SPACE_OUT, 0, c->count), last);
}

/* Root 1 of 4: 0 -> 1 -> 2 -> 3 adds, 3 -> 1. Cost: m a + n b + n g. */
DML__LOCAL void dml__write_chain_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__stretch all;
    all.offset = 0;
    all.count = c->count;
    const int last = c->size - 1;
    dml__add_link(c, s, DML__SPACE_OUT, all, c->rank == last ? c->root : c->rank + 1);
    if (c->rank == c->root && c->rank != last)
        dml__add_receive(s, last, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
}

/* 0 -> 1 -> 2 -> 3 adds all parts, 3 -> 0, 1, 2: each its own. OUT may lie in IN, so it is written when
   everything else is over. Cost: m a + (m + 1) n b + m n g. */
DML__LOCAL void dml__write_chain_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    const bool ends = c->rank == c->size - 1;
    for (int rank = 0; rank < c->size; rank++)
        dml__add_link(c, s, DML__SPACE_IN, dml__block_of(c, rank), ends ? rank : c->rank + 1);
    const int out = ends ? dml__copy_own(c, s, false)
                         : dml__add_receive(s, c->size - 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0,
                                            dml__part_count(c, c->rank));
    dml__add_after(s, out, DML__ALL_BEFORE);
}

#endif
