#ifndef DML_COMM_SHARED_C
#define DML_COMM_SHARED_C

#include "comm/algorithms.h"

/* Through memory that all ranks of a host share. A message only says that something lies there, and that the
   rank that sends it has read all that it was told of in the call or round before: there the next but one may
   lie. Source: Graham, Shipman, "MPI support for multi-core architectures: optimized shared memory
   collectives", EuroPVM/MPI (2008). */

/* What of the call's arrays is about that rank. A round of a call with parts is columns of them. */
static dml__stretch dml__shared_stretch(const dml__collective *c, int rank)
{
    dml__stretch part = dml__block_of(c, rank);
    if (c->row && !dml__is_elementwise(c->operation)) part.offset = (uint64_t)rank * c->row;
    return part;
}

/* Where what `from` gives to `to` lies: in the row of the one, which has no place for its own part, at the
   place of the other's. */
static uint64_t dml__given_at(const dml__collective *c, int from, int to)
{
    const uint64_t own = to > from ? dml__block_of(c, from + 1).offset - dml__block_of(c, from).offset : 0;
    return (uint64_t)from * c->shared + dml__block_of(c, to).offset - own;
}

/* Where the sum of a rank's own part lies in the end: in what the last of the others gave it. */
static uint64_t dml__sum_at(const dml__collective *c, int rank)
{
    return dml__given_at(c, c->size - (rank < c->size - 1 ? 1 : 2), rank);
}

/* Whether what a rank adds last of its part is its own. */
static bool dml__adds_own_last(const dml__collective *c)
{
    return c->rank == c->size - 1 || c->size == 2;
}

/* Gives each other rank what of `space` is for it to sum, and sums what all have given of this rank's own, in
   the order of the ranks (a + b is b + a to the bit), each time there where what is added lies: lines that
   one processor has only read and another writes again take three times as long as those that the reader has
   written, where the two are far from each other (bench/lines on a Zen 4). The last step, which is of kind
   `last_kind`. */
static int dml__sum_shared(const dml__collective *c, dml__schedule *s, dml__space space,
                           dml__step_kind last_kind)
{
    const dml__stretch own = dml__shared_stretch(c, c->rank);
    for (int i = 1; i < c->size; i++) {
        const int to = dml__rank_at(c, i);
        const dml__stretch part = dml__shared_stretch(c, to);
        const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_SHARED, dml__given_at(c, c->rank, to),
                                        part.count, space, part.offset);
        dml__add_after(s, dml__add_signal(s, to), copy);
    }
    const int first = s->count;
    for (int i = 1; i < c->size; i++) dml__add_wait_signal(s, dml__rank_at(c, -i));
    int last = -1, sum = 0; /* in the row of that rank */
    for (int rank = 0; rank < c->size; rank++) {
        const bool is_own = rank == c->rank;
        const int come = is_own ? -1 : first + (c->rank - rank + c->size) % c->size - 1;
        if (rank == 0) {
            last = come;
            continue;
        }
        const bool adds_own = is_own || (c->rank == 0 && rank == 1);
        const bool is_last = rank == c->size - 1;
        const uint64_t added = dml__given_at(c, sum, c->rank);
        if (!is_own) sum = rank;
        const int step = dml__add_local(s, is_last ? last_kind : DML__STEP_REDUCE, DML__SPACE_SHARED,
                                        dml__given_at(c, sum, c->rank), own.count,
                                        adds_own ? space : DML__SPACE_SHARED, adds_own ? own.offset : added);
        dml__add_after(s, step, last);
        dml__add_after(s, step, come);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

static void dml__signal_all(const dml__collective *c, dml__schedule *s, int after)
{
    for (int i = 1; i < c->size; i++) dml__add_after(s, dml__add_signal(s, dml__rank_at(c, i)), after);
}

static void dml__copy_from_shared(const dml__collective *c, dml__schedule *s, int from, uint64_t at,
                                  int after)
{
    const dml__stretch part = dml__shared_stretch(c, from);
    const int copy =
        dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, part.offset, part.count, DML__SPACE_SHARED, at);
    dml__add_after(s, copy, after);
}

/* Rank r sums chunk r, in the order of the ranks. 4 ranks, what rank 1 does, all of chunk 1 but for the first
   line and the last:

       shared[1] = out but for chunk 1;   a signal to 2, 3 and 0
       signals from 0, 3 and 2;           shared[0] += out;   shared[2] += shared[0];   shared[3] += shared[2]
                                          a signal to 2, 3 and 0;   out = shared[3]
       signals from 0, 3 and 2;           chunks 0, 3 and 2 of out = shared[3, 2 and 3]

   Cost: 2 a, and by each rank at once (m - 1) / m n copied there, (m - 1) / m n summed and n copied from
   there. */
DML__LOCAL void dml__write_shared_all_reduce(const dml__collective *c, dml__schedule *s)
{
    if (c->size == 1) return;
    const bool both = dml__adds_own_last(c); /* which leaves the sum in OUT, too */
    const int sum = dml__sum_shared(c, s, DML__SPACE_OUT, both ? DML__STEP_REDUCE_BOTH : DML__STEP_REDUCE);
    dml__signal_all(c, s, sum);
    if (!both) dml__copy_from_shared(c, s, c->rank, dml__sum_at(c, c->rank), sum);
    for (int i = 1; i < c->size; i++) {
        const int from = dml__rank_at(c, -i);
        const int come = dml__add_wait_signal(s, from);
        dml__copy_from_shared(c, s, from, dml__sum_at(c, from), come);
    }
}

/* The first half of it, on parts. OUT may be this rank's part of IN, whose elements have been added when
   theirs of OUT are written. Cost: a, and by each rank at once (m - 1) n copied there and (m - 1) n summed.
 */
DML__LOCAL void dml__write_shared_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    const uint64_t count = dml__shared_stretch(c, c->rank).count;
    if (c->size == 1) {
        dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, count, DML__SPACE_IN, 0);
        return;
    }
    dml__sum_shared(c, s, DML__SPACE_IN, DML__STEP_REDUCE_OUT);
}

/* The second half. Cost: a, and by each rank at once n copied there and (m - 1) n from there. */
DML__LOCAL void dml__write_shared_all_gather(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__shared_stretch(c, c->rank);
    const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_SHARED, (uint64_t)c->rank * c->shared,
                                    c->count, DML__SPACE_IN, 0);
    dml__signal_all(c, s, copy);
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, own.offset, own.count, DML__SPACE_IN, 0);
    for (int i = 1; i < c->size; i++) {
        const int from = dml__rank_at(c, -i);
        const int come = dml__add_wait_signal(s, from);
        dml__copy_from_shared(c, s, from, (uint64_t)from * c->shared, come);
    }
}

#endif
