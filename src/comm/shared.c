#ifndef DML_COMM_SHARED_C
#define DML_COMM_SHARED_C

#include "comm/algorithms.h"

/* Through memory that all ranks of a host share. A message only says that something lies there, and that the
   rank that sends it has read whatever it was told of in the call or round before. Source: Graham, Shipman,
   "MPI support for multi-core architectures: optimized shared memory collectives", EuroPVM/MPI (2008). */

/* What of the call's arrays is about that rank. A round of a call with parts is columns of them. */
static dml__stretch dml__shared_stretch(const dml__collective *c, int rank)
{
    dml__stretch part = dml__block_of(c, rank);
    if (c->row && !dml__is_elementwise(c->operation)) part.offset = (uint64_t)rank * c->row;
    return part;
}

/* Where what `from` gives to `to` lies: in the row of the one, at the place of the other's part. */
static uint64_t dml__given_at(const dml__collective *c, int from, int to)
{
    return (uint64_t)from * c->shared + dml__block_of(c, to).offset;
}

/* Gives each other rank what of `space` is for it to sum, and adds what all have given of this rank's own: in
   the order of the ranks, so what comes before this rank's is summed where rank 0 gave its own, since nobody
   else looks at that, then added to this rank's (a + b is b + a to the bit), and then what comes after it.
   The last step, or -1. */
static int dml__sum_shared(const dml__collective *c, dml__schedule *s, dml__space space)
{
    const dml__stretch own = dml__shared_stretch(c, c->rank);
    const uint64_t begin = dml__given_at(c, 0, c->rank);
    for (int i = 1; i < c->size; i++) {
        const int to = dml__rank_at(c, i);
        const dml__stretch part = dml__shared_stretch(c, to);
        const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_FRESH, dml__given_at(c, c->rank, to),
                                        part.count, space, part.offset);
        dml__add_after(s, dml__add_signal(s, to), copy);
    }
    const int first = s->count;
    for (int i = 1; i < c->size; i++) dml__add_wait_signal(s, dml__rank_at(c, -i));
    int last = -1;
    for (int rank = 0; rank < c->size; rank++) {
        const bool lower = rank < c->rank, is_own = rank == c->rank;
        const int come = is_own ? -1 : first + (c->rank - rank + c->size) % c->size - 1;
        if (rank == 0) {
            last = come;
            continue;
        }
        const int step =
            dml__add_local(s, DML__STEP_REDUCE, lower ? DML__SPACE_FRESH : space, lower ? begin : own.offset,
                           own.count, DML__SPACE_FRESH, is_own ? begin : dml__given_at(c, rank, c->rank));
        dml__add_after(s, step, last);
        dml__add_after(s, step, come);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

/* Copies what lies at the beginning of the others' rows to OUT, as each says that it is there. */
static void dml__take_shared_parts(const dml__collective *c, dml__schedule *s, dml__space space)
{
    for (int i = 1; i < c->size; i++) {
        const int from = dml__rank_at(c, -i);
        const dml__stretch part = dml__shared_stretch(c, from);
        const int come = dml__add_wait_signal(s, from);
        const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, part.offset, part.count, space,
                                        (uint64_t)from * c->shared);
        dml__add_after(s, copy, come);
    }
}

static void dml__signal_all(const dml__collective *c, dml__schedule *s, int after)
{
    for (int i = 1; i < c->size; i++) dml__add_after(s, dml__add_signal(s, dml__rank_at(c, i)), after);
}

/* Rank r sums chunk r, in the order of the ranks. 4 ranks, what rank 1 does:

       fresh[1] = out but for chunk 1;   a signal to 2, 3 and 0
       signals from 0, 3 and 2;          chunk 1 of out = ((fresh[0] + it) + fresh[2]) + fresh[3]
       later[1] = chunk 1 of out;        a signal to 2, 3 and 0
       signals from 0, 3 and 2;          chunks 0, 3 and 2 of out = later[0, 3 and 2]

   By its second signal a rank has read what it was given. Cost: 2 a, and by each rank at once n copied there,
   (m - 1) / m n summed and (m - 1) / m n copied from there. */
DML__LOCAL void dml__write_shared_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    const int sum = dml__sum_shared(c, s, DML__SPACE_OUT);
    if (c->size == 1) return;
    const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_LATER, (uint64_t)c->rank * c->shared,
                                    own.count, DML__SPACE_OUT, own.offset);
    dml__add_after(s, copy, sum);
    dml__signal_all(c, s, copy);
    dml__take_shared_parts(c, s, DML__SPACE_LATER);
}

/* The first half of it, on parts. OUT may lie in IN, so it is written when everything else is over. Cost: a,
   and by each rank at once (m - 1) n copied there and (m - 1) n summed. */
DML__LOCAL void dml__write_shared_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__shared_stretch(c, c->rank);
    dml__sum_shared(c, s, DML__SPACE_IN);
    const int copy =
        dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, own.count, DML__SPACE_IN, own.offset);
    dml__add_after(s, copy, DML__ALL_BEFORE);
}

/* The second half. Cost: a, and by each rank at once n copied there and (m - 1) n from there. */
DML__LOCAL void dml__write_shared_all_gather(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__shared_stretch(c, c->rank);
    const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_FRESH, (uint64_t)c->rank * c->shared,
                                    c->count, DML__SPACE_IN, 0);
    dml__signal_all(c, s, copy);
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, own.offset, own.count, DML__SPACE_IN, 0);
    dml__take_shared_parts(c, s, DML__SPACE_FRESH);
}

#endif
