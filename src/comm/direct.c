#ifndef DML_COMM_DIRECT_C
#define DML_COMM_DIRECT_C

#include "comm/algorithms.h"

/* Without a detour: whoever has something sends it to whoever needs it. Each rank begins with the next one,
   so that not all send to the same rank first. What is added is added in the order of the ranks: the sums
   don't depend on which rank adds. */

/* The order is that of (((x0 + x1) + x2) + ...): what comes before this rank's is summed in the slot of rank
   0, then added to this rank's (a + b is b + a to the bit), and then what comes after it. 4 ranks, at rank 2:

       slot of 0 += slot of 1;   range += slot of 0;   range += slot of 3 */
DML__LOCAL int dml__add_slots(const dml__collective *c, dml__schedule *s, dml__space space,
                              dml__stretch stretch, int first, int stride, int before)
{
    int last = -1;
    for (int rank = 0; rank < c->size && stretch.count; rank++) {
        const int slot = (c->rank - 1 - rank + c->size) % c->size, begin = (c->rank - 1 + c->size) % c->size;
        const int received = first + slot * stride;
        if (rank == 0 && c->rank != 0) last = received; /* the sum's beginning */
        if (rank == 0) continue;
        const bool lower = rank < c->rank, own = rank == c->rank;
        const uint64_t source = (uint64_t)(own ? begin : slot) * stretch.count;
        const int step = dml__add_local(s, DML__STEP_REDUCE, lower ? DML__SPACE_SCRATCH : space,
                                        lower ? (uint64_t)begin * stretch.count : stretch.offset,
                                        stretch.count, DML__SPACE_SCRATCH, source);
        dml__add_after(s, step, last);
        if (!own) dml__add_after(s, step, received);
        if (rank == 1) dml__add_after(s, step, before);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

/* Receives what each of the others has for this rank, into slots of SCRATCH. */
static void dml__receive_slots(const dml__collective *c, dml__schedule *s, uint64_t count)
{
    for (int i = 1; i < c->size; i++)
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_SCRATCH,
                         (uint64_t)(i - 1) * count, count);
}

/* Each sends all it has to each, and sums what it gets. 4 ranks: 0 -> 1 2 3, 1 -> 2 3 0, 2 -> 3 0 1, 3 -> 0
   1 2. Cost: a + (m - 1) n b + (m - 1) n g. Source: what any text on all-reduce begins with. */
DML__LOCAL void dml__write_all_to_all_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const int first = s->count;
    dml__receive_slots(c, s, c->count);
    for (int i = 1; i < c->size; i++) dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, 0, c->count);
    dml__add_slots(c, s, DML__SPACE_OUT, dml__chunks(c->count, 1, 0, 1), first, 1, DML__ALL_BEFORE);
}

/* At the root: adds what comes to OUT, in the order of the ranks, what is before the root's in SCRATCH; the
   last step. */
static int dml__receive_in_order(const dml__collective *c, dml__schedule *s)
{
    int last = -1;
    for (int rank = 0; rank < c->size && c->count; rank++) {
        int step;
        if (rank == c->root)
            step =
                rank ? dml__add_local(s, DML__STEP_REDUCE, DML__SPACE_OUT, 0, c->count, DML__SPACE_SCRATCH, 0)
                     : -1;
        else
            step = dml__add_receive(s, rank, rank == 0 ? DML__STEP_RECEIVE : DML__STEP_RECEIVE_REDUCE,
                                    rank < c->root ? DML__SPACE_SCRATCH : DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, step, last);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

/* 1 -> 0, 2 -> 0, 3 -> 0, added in this order, then 0 -> 1 2 3. Cost: 2 a + 2 (m - 1) n b + (m - 1) n g, all
   of it at rank 0. Source: the parameter server with one server; Li and others, "Scaling distributed machine
   learning with the parameter server", OSDI (2014). */
DML__LOCAL void dml__write_master_worker_all_reduce(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != 0) {
        const int send = dml__add_send(s, 0, DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, dml__add_receive(s, 0, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count), send);
        return;
    }
    dml__collective reduce = *c;
    reduce.root = 0;
    const int last = dml__receive_in_order(&reduce, s);
    for (int rank = 1; rank < c->size; rank++)
        dml__add_after(s, dml__add_send(s, rank, DML__SPACE_OUT, 0, c->count), last);
}

/* Sends to each rank its block of `space`, and sums what comes for this one's own; the last step of that, or
 * -1. */
static int dml__write_direct_sums(const dml__collective *c, dml__schedule *s, dml__space space)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    const int first = s->count;
    dml__receive_slots(c, s, own.count);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_send(s, dml__rank_at(c, i), space, block.offset, block.count);
    }
    return dml__add_slots(c, s, space, own, first, 1, -1);
}

/* Rank r sums chunk r, in the order of the ranks, and sends the sum to all. 4 ranks, what each sends:

       0 -> 1: 1    0 -> 2: 2    0 -> 3: 3     1 -> 2: 2    1 -> 3: 3    1 -> 0: 0     and so on: added
       0 -> 1: 0    0 -> 2: 0    0 -> 3: 0     1 -> 2: 1    1 -> 3: 1    1 -> 0: 1     and so on: replaces

   A sum comes back only after its owner took this rank's share of it. Each chunk is summed once: all get the
   same bits, and the same whatever the algorithms' other choices are. Cost: 2 a + 2 (m - 1) / m n b +
   (m - 1) / m n g. Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations
   in MPICH", IJHPCA 19 (2005), section 4.3 (pairwise exchange). */
DML__LOCAL void dml__write_direct_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    const int sum = dml__write_direct_sums(c, s, DML__SPACE_OUT);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, -i));
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset,
                         block.count);
        dml__add_after(s, dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, own.offset, own.count), sum);
    }
}

/* The first half of it, on parts. OUT may lie in IN, so it is written when everything else is over. Cost:
   a + (m - 1) n b + (m - 1) n g. */
DML__LOCAL void dml__write_direct_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    dml__write_direct_sums(c, s, DML__SPACE_IN);
    dml__add_after(s, dml__copy_own(c, s, false), DML__ALL_BEFORE);
}

/* Root 2 of 4: 0 -> 2, 1 -> 2 and 3 -> 2, added as (((x0 + x1) + x2) + x3). Cost: a + (m - 1) n b +
   (m - 1) n g, all of it at the root. */
DML__LOCAL void dml__write_direct_reduce(const dml__collective *c, dml__schedule *s)
{
    if (c->rank == c->root)
        dml__receive_in_order(c, s);
    else
        dml__add_send(s, c->root, DML__SPACE_OUT, 0, c->count);
}

/* Root 0 of 4: 0 -> 1 2 3. Cost: a + (m - 1) n b, all of it at the root. */
DML__LOCAL void dml__write_direct_broadcast(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) dml__add_receive(s, c->root, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    for (int i = 1; i < c->size && c->rank == c->root; i++)
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, 0, c->count);
}

/* Root 0 of 4: 0 -> 1: part 1, 0 -> 2: part 2, 0 -> 3: part 3. Cost: a + (m - 1) n b, all of it at the root.
 */
DML__LOCAL void dml__write_direct_scatter(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) {
        dml__add_receive(s, c->root, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, dml__part_count(c, c->rank));
        return;
    }
    dml__copy_own(c, s, false);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_IN, block.offset, block.count);
    }
}

/* The same the other way round: 1 -> 0: part 1, 2 -> 0: part 2, 3 -> 0: part 3. */
DML__LOCAL void dml__write_direct_gather(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) {
        dml__add_send(s, c->root, DML__SPACE_IN, 0, dml__part_count(c, c->rank));
        return;
    }
    dml__copy_own(c, s, true);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_receive(s, dml__rank_at(c, i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset, block.count);
    }
}

/* Each sends its part to each: 0 -> 1 2 3, 1 -> 2 3 0, 2 -> 3 0 1, 3 -> 0 1 2. Cost: a + (m - 1) n b. */
DML__LOCAL void dml__write_direct_all_gather(const dml__collective *c, dml__schedule *s)
{
    dml__copy_own(c, s, true);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, -i));
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset,
                         block.count);
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_IN, 0, dml__part_count(c, c->rank));
    }
}

/* At step i each sends to the rank i further on, one step after the other if `paced`. */
static void dml__write_exchanges(const dml__collective *c, dml__schedule *s, bool paced)
{
    const dml__stretch own = dml__in_part(c, c->rank), place = dml__block_of(c, c->rank);
    int last = -1;
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, place.offset, place.count, DML__SPACE_IN, own.offset);
    for (int i = 1; i < c->size; i++) {
        const int to = dml__rank_at(c, i), from = dml__rank_at(c, -i);
        const dml__stretch in = dml__block_of(c, from), out = dml__in_part(c, to);
        int got = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_OUT, in.offset, in.count);
        int send = dml__add_send(s, to, DML__SPACE_IN, out.offset, out.count);
        /* Of parts that only two ranks know an empty one is told, too, in case the other expects more. */
        if (got < 0 && c->in_counts) got = dml__add_wait_signal(s, from);
        if (send < 0 && c->in_counts) send = dml__add_signal(s, to);
        if (paced) dml__add_after(s, send, last);
        last = got;
    }
}

/* All at once: what each rank has for each. Cost: a + (m - 1) n b. */
DML__LOCAL void dml__write_direct_all_to_all(const dml__collective *c, dml__schedule *s)
{
    dml__write_exchanges(c, s, false);
}

/* Each rank sends one message and receives one at a time, so that none is overrun by all the others:

       step 1    0 -> 1 -> 2 -> 3 -> 0
       step 2    0 -> 2, 1 -> 3, 2 -> 0, 3 -> 1
       step 3    0 -> 3, 1 -> 0, 2 -> 1, 3 -> 2

   Cost: (m - 1) (a + n b). Source: Thakur, Rabenseifner, Gropp (2005), section 4.6. */
DML__LOCAL void dml__write_pairwise_all_to_all(const dml__collective *c, dml__schedule *s)
{
    dml__write_exchanges(c, s, true);
}

/* IN may be OUT: at step i those whose numbers add up to i, or to i + m, exchange their parts for each other.
   What comes waits in SCRATCH until what was there has gone, in two slots by turns:

       step 0    1 <-> 3
       step 1    0 <-> 1, 2 <-> 3
       step 2    0 <-> 2
       step 3    0 <-> 3, 1 <-> 2

   Cost: m (a + n b), in rounds that SCRATCH has room for. */
DML__LOCAL void dml__write_in_place_all_to_all(const dml__collective *c, dml__schedule *s)
{
    const uint64_t n = c->count, row = c->row ? c->row : n, own = (uint64_t)c->rank * row;
    int copied[2] = { -1, -1 }, slot = 0;
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, own, n, DML__SPACE_IN, own);
    for (int i = 0; i < c->size && n; i++) {
        const int other = (i - c->rank + c->size) % c->size;
        const uint64_t place = (uint64_t)other * row;
        if (other == c->rank) continue;
        const int got =
            dml__add_receive(s, other, DML__STEP_RECEIVE, DML__SPACE_SCRATCH, (uint64_t)slot * n, n);
        const int sent = dml__add_send(s, other, DML__SPACE_IN, place, n);
        const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, place, n, DML__SPACE_SCRATCH,
                                        (uint64_t)slot * n);
        dml__add_after(s, got, copied[slot]);
        dml__add_after(s, copy, got);
        dml__add_after(s, copy, sent);
        copied[slot] = copy;
        slot = !slot;
    }
}

#endif
