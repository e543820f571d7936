#ifndef DML_COMM_BRUCK_C
#define DML_COMM_BRUCK_C

#include "comm/algorithms.h"

/* Each rank sends to one at a distance that doubles and receives from the other side: ceil(log2(m)) messages
   of each rank, for any m. Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all
   communications in multiport message-passing systems", IEEE TPDS 8 (1997). */

/* SCRATCH is OUT turned so that the own part comes first; 4 ranks, the parts that each holds:

       0: 0          1: 1          2: 2          3: 3          each receives what the next one has
       0: 0 1        1: 1 2        2: 2 3        3: 3 0        what the one after the next has
       0: 0 1 2 3    1: 1 2 3 0    2: 2 3 0 1    3: 3 0 1 2    turned back into OUT

   Cost: log2(m) a + (m - 1) n b. */
DML__LOCAL void dml__write_bruck_all_gather(const dml__collective *c, dml__schedule *s)
{
    const uint64_t n = c->count;
    int after[DML__STEP_AFTER] = { -1, -1,
                                   -1 }; /* the steps that have touched each of the parts that are here */
    if (!n) return;
    after[0] = dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, n, DML__SPACE_IN, 0);
    for (int have = 1; have < c->size; have *= 2) {
        const int more = have < c->size - have ? have : c->size - have;
        const int send = dml__add_send(s, dml__rank_at(c, -have), DML__SPACE_SCRATCH, 0, (uint64_t)more * n);
        const int got = dml__add_receive(s, dml__rank_at(c, have), DML__STEP_RECEIVE, DML__SPACE_SCRATCH,
                                         (uint64_t)have * n, (uint64_t)more * n);
        dml__add_after(s, send, after[0]);
        dml__add_after(s, send, after[1]);
        /* A send that has touched all there was stands for those who brought it. */
        if (more == have) {
            after[0] = send;
            after[1] = got;
        } else {
            after[2] = got;
        }
    }
    const uint64_t turned = (uint64_t)(c->size - c->rank) * n, rest = (uint64_t)c->rank * n;
    const int high = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, rest, turned, DML__SPACE_SCRATCH, 0);
    const int low = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, rest, DML__SPACE_SCRATCH, turned);
    for (int i = 0; i < DML__STEP_AFTER; i++) {
        dml__add_after(s, high, after[i]);
        dml__add_after(s, low, after[i]);
    }
}

/* Moves every second run of `run` blocks (those whose number has that bit) from SCRATCH to the beginning of
   OUT, or from `from` in OUT back; how many blocks. */
static int dml__add_runs(const dml__collective *c, dml__schedule *s, int run, bool back, uint64_t from)
{
    int moved = 0;
    for (int i = run; i < c->size; i += 2 * run) {
        const int length = run < c->size - i ? run : c->size - i;
        const uint64_t block = (uint64_t)i * c->count, packed = from + (uint64_t)moved * c->count;
        const uint64_t count = (uint64_t)length * c->count;
        const int step =
            back
                ? dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, block, count, DML__SPACE_OUT, packed)
                : dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, packed, count, DML__SPACE_SCRATCH, block);
        dml__add_after(s, step, DML__ALL_BEFORE);
        moved += length;
    }
    return moved;
}

/* Block i in SCRATCH is what has to go i ranks further on; at distance d go all blocks whose i has the bit d.
   4 ranks, the blocks of rank 0 as from>to:

       here              0>0  0>1  0>2  0>3
       1 and 3 go 1 on   0>0  3>0  0>2  3>2
       2 and 3 go 2 on   0>0  3>0  2>0  1>0    block i is from i ranks before

   They are packed and received in the two halves of OUT. Cost: log2(m) (a + m / 2 n b). */
DML__LOCAL void dml__write_bruck_all_to_all(const dml__collective *c, dml__schedule *s)
{
    const uint64_t n = c->count, half = (uint64_t)(c->size / 2) * n;
    const uint64_t turned = (uint64_t)(c->size - c->rank) * n, rest = (uint64_t)c->rank * n;
    if (!n) return;
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, turned, DML__SPACE_IN, rest);
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, turned, rest, DML__SPACE_IN, 0);
    for (int run = 1; run < c->size; run *= 2) {
        const uint64_t count = (uint64_t)dml__add_runs(c, s, run, false, 0) * n;
        const int packed = s->count - 1;
        dml__add_after(s, dml__add_send(s, dml__rank_at(c, run), DML__SPACE_OUT, 0, count), DML__ALL_BEFORE);
        const int got =
            dml__add_receive(s, dml__rank_at(c, -run), DML__STEP_RECEIVE, DML__SPACE_OUT, half, count);
        dml__add_after(s, got, packed); /* which came after all that used this half before */
        dml__add_runs(c, s, run, true, half);
    }
    for (int i = 0; i < c->size; i++) {
        const uint64_t place = (uint64_t)dml__rank_at(c, -i) * n;
        const int step =
            dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, place, n, DML__SPACE_SCRATCH, (uint64_t)i * n);
        dml__add_after(s, step, DML__ALL_BEFORE);
    }
}

/* A signal at each distance, sent when all before have come:

       0 -> 1 -> 2 -> 3 -> 0    each now knows of 2 ranks
       0 -> 2, 1 -> 3, 2 -> 0, 3 -> 1    of 4

   Cost: log2(m) a. Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization",
   International Journal of Parallel Programming 17 (1988). */
DML__LOCAL void dml__write_dissemination_barrier(const dml__collective *c, dml__schedule *s)
{
    int sent = -1, came = -1;
    for (int distance = 1; distance < c->size; distance *= 2) {
        const int send = dml__add_signal(s, dml__rank_at(c, distance));
        dml__add_after(s, send, sent); /* which waited for those that came before `came` */
        dml__add_after(s, send, came);
        sent = send;
        came = dml__add_wait_signal(s, dml__rank_at(c, -distance));
    }
}

#endif
