#ifndef DML_COMM_SHARED_C
#define DML_COMM_SHARED_C

#include "comm/algorithms.h"

/* Through memory that all ranks of a host share. A message only says that something lies there. */

/* What a rank gives, and behind it what it has summed. */
static uint64_t dml__shared_in(const dml__collective *c, int rank)
{
    return 2 * (uint64_t)rank * c->shared;
}
static uint64_t dml__shared_sum(const dml__collective *c, int rank)
{
    return dml__shared_in(c, rank) + c->shared;
}

/* Adds what the others have given of this rank's chunk, each once its message, of those from `first` on, has
   come, in the order of the ranks: what comes before this rank's is summed where rank 0 gave its own, since
   nobody else looks at that, then added to this rank's (a + b is b + a to the bit), and then what comes after
   it. The last step, or -1. */
static int dml__add_shared(const dml__collective *c, dml__schedule *s, dml__stretch own, int first)
{
    const uint64_t begin = dml__shared_in(c, 0) + own.offset;
    int last = -1;
    for (int rank = 0; rank < c->size; rank++) {
        const int come = rank == c->rank ? -1 : first + (c->rank - rank + c->size) % c->size - 1;
        if (rank == 0) {
            last = come;
            continue;
        }
        const bool lower = rank < c->rank;
        const uint64_t given = rank == c->rank ? begin : dml__shared_in(c, rank) + own.offset;
        const int step = dml__add_local(s, DML__STEP_REDUCE, lower ? DML__SPACE_SHARED : DML__SPACE_OUT,
                                        lower ? begin : own.offset, own.count, DML__SPACE_SHARED, given);
        dml__add_after(s, step, last);
        dml__add_after(s, step, come);
        last = step;
    }
    return last;
}

/* Rank r sums chunk r, in the order of the ranks. 4 ranks, what rank 1 does:

       shared[1].in = out but for chunk 1;   a signal to 2, 3 and 0
       signals from 0, 3 and 2;              chunk 1 of out = (shared[0].in + it) + shared[2].in +
   shared[3].in shared[1].sum = chunk 1 of out;       a signal to 2, 3 and 0 signals from 0, 3 and 2; chunks
   0, 3 and 2 of out = shared[0, 3 and 2].sum

   Whoever gets a rank's second signal knows that it has read what it was given, and a rank's first signal of
   the next call, or round, says that it has read the sums: so nothing is written before it was read, as long
   as those go one after the other. Cost: 2 a, and of the memory of a host that all of its ranks use
   (2 - 1/m) n copied there, (m - 1) / m n summed and (m - 1) / m n copied from there by each. Source: Graham,
   Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", EuroPVM/MPI
   (2008). */
DML__LOCAL void dml__write_shared_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    for (int i = 1; i < c->size; i++) {
        const int to = dml__rank_at(c, i);
        const dml__stretch block = dml__block_of(c, to);
        const int copy =
            dml__add_local(s, DML__STEP_COPY, DML__SPACE_SHARED, dml__shared_in(c, c->rank) + block.offset,
                           block.count, DML__SPACE_OUT, block.offset);
        dml__add_after(s, dml__add_signal(s, to), copy);
    }
    const int first = s->count;
    for (int i = 1; i < c->size; i++) dml__add_wait_signal(s, dml__rank_at(c, -i));
    const int sum = dml__add_shared(c, s, own, first);
    dml__set_completes(s, sum);
    if (c->size == 1) return;
    const int told = dml__add_local(s, DML__STEP_COPY, DML__SPACE_SHARED, dml__shared_sum(c, c->rank),
                                    own.count, DML__SPACE_OUT, own.offset);
    dml__add_after(s, told, sum);
    for (int i = 1; i < c->size; i++) dml__add_after(s, dml__add_signal(s, dml__rank_at(c, i)), told);
    for (int i = 1; i < c->size; i++) {
        const int from = dml__rank_at(c, -i);
        const dml__stretch block = dml__block_of(c, from);
        const int come = dml__add_wait_signal(s, from);
        dml__add_after(s,
                       dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, block.offset, block.count,
                                      DML__SPACE_SHARED, dml__shared_sum(c, from)),
                       come);
    }
}

#endif
