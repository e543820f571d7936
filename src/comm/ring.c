#ifndef DML_COMM_RING_C
#define DML_COMM_RING_C

#include "comm/algorithms.h"

/* Each rank sends to the next and receives from the one before: every link carries as much as any other. */

/* A ring over `count` elements at `offset` of OUT. */
typedef struct dml__ring {
    int rank, size; /* the place along the ring */
    int to, from;
    uint64_t offset, count;
    int received; /* the last receive */
} dml__ring;

static dml__ring dml__ring_of(const dml__collective *c, bool backwards, uint64_t offset, uint64_t count)
{
    dml__ring ring;
    ring.rank = backwards ? c->size - 1 - c->rank : c->rank;
    ring.size = c->size;
    ring.to = dml__rank_at(c, backwards ? -1 : 1);
    ring.from = dml__rank_at(c, backwards ? 1 : -1);
    ring.offset = offset;
    ring.count = count;
    ring.received = -1;
    return ring;
}

static dml__stretch dml__ring_chunk(const dml__ring *ring, int index)
{
    const int chunk = (index + 2 * ring->size) % ring->size;
    dml__stretch block = dml__chunks(ring->count, ring->size, chunk, chunk + 1);
    block.offset += ring->offset;
    return block;
}

/* Step k of 2 (m - 1): in the first half chunks are summed on their way, in the second their sums go round.
 */
static void dml__ring_step(dml__ring *ring, dml__schedule *s, int k)
{
    const dml__stretch goes = dml__ring_chunk(ring, ring->rank - k);
    const dml__stretch comes = dml__ring_chunk(ring, ring->rank - k - 1);
    const dml__step_kind kind = k < ring->size - 1 ? DML__STEP_RECEIVE_REDUCE : DML__STEP_RECEIVE;
    const int send = dml__add_send(s, ring->to, DML__SPACE_OUT, goes.offset, goes.count);
    dml__add_after(s, send, ring->received);
    ring->received = dml__add_receive(s, ring->from, kind, DML__SPACE_OUT, comes.offset, comes.count);
    if (k == ring->size - 2) dml__set_completes(s, ring->received);
}

/* Four ranks, each holding chunks 0 to 3; what each sends to the next, with the ranks whose numbers are in
   it:

       step   0 sends         1 sends         2 sends         3 sends
       0      0:{0}           1:{1}           2:{2}           3:{3}           added
       1      3:{3,0}         0:{0,1}         1:{1,2}         2:{2,3}         added
       2      2:{2,3,0}       3:{3,0,1}       0:{0,1,2}       1:{1,2,3}       added: complete
       3      1:all           2:all           3:all           0:all           replaces
       4      0:all           1:all           2:all           3:all           replaces
       5      3:all           0:all           1:all           2:all           replaces

   A chunk comes back as a sum of all only after the next rank took this rank's share of it, so the receives
   of the second half wait for nothing. Each chunk is summed once, in the order of the ring: all get the same
   bits. Cost: 2 (m - 1) a + 2 (m - 1) / m n b + (m - 1) / m n g; no all-reduce moves less. Source: Patarasuk,
   Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009). */
DML__LOCAL void dml__write_ring_all_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__ring ring = dml__ring_of(c, false, 0, c->count);
    for (int k = 0; k < 2 * (c->size - 1); k++) dml__ring_step(&ring, s, k);
}

/* Half of the data goes one way round, half the other:

       0 -> 1 -> 2 -> 3 -> 0    elements [0, n / 2)
       0 <- 1 <- 2 <- 3 <- 0    elements [n / 2, n)

   Cost: as of one ring, but with both directions of each pair's link in use: 2 (m - 1) a + (m - 1) / m n b
   where those are links of their own. Source: as above; the two directions: Jain, Sabharwal, "Optimal bucket
   algorithms for large MPI collectives on torus interconnects", ICS (2010). */
DML__LOCAL void dml__write_two_rings_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch there = dml__chunks(c->count, 2, 0, 1), back = dml__chunks(c->count, 2, 1, 2);
    dml__ring forwards = dml__ring_of(c, false, there.offset, there.count);
    dml__ring backwards = dml__ring_of(c, true, back.offset, back.count);
    for (int k = 0; k < 2 * (c->size - 1); k++) {
        dml__ring_step(&forwards, s, k);
        dml__ring_step(&backwards, s, k);
    }
}

/* The whole vectors go round; what comes is passed on as it is and kept in SCRATCH:

       step   0 sends   1 sends   2 sends   3 sends
       0      0         1         2         3
       1      3         0         1         2
       2      2         3         0         1

   Then each rank adds all of them in the order of the ranks, so that all get the same bits. Cost: (m - 1) a +
   (m - 1) n b + (m - 1) n g. Source: the "ring" of Thakur, Rabenseifner, Gropp, "Optimization of collective
   communication operations in MPICH", IJHPCA 19 (2005), of vectors that are summed. */
DML__LOCAL void dml__write_round_robin_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const int first = s->count + 1, to = dml__rank_at(c, 1), from = dml__rank_at(c, -1);
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const uint64_t slot = (uint64_t)k * c->count;
        const int send = k == 0 ? dml__add_send(s, to, DML__SPACE_OUT, 0, c->count)
                                : dml__add_send(s, to, DML__SPACE_SCRATCH, slot - c->count, c->count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_SCRATCH, slot, c->count);
    }
    dml__add_slots(c, s, DML__SPACE_OUT, dml__chunks(c->count, 1, 0, 1), first, 2, DML__ALL_BEFORE);
}

/* The first half of the ring's all-reduce, after which rank r has the sum of chunk r + 1; all of them then go
   to the root:

       ranks:   0          1          2          3 = root
       sums:    chunk 1    chunk 2    chunk 3    chunk 0
                `----------`----------`--------->

   Cost: m a + 2 (m - 1) / m n b + (m - 1) / m n g. Source: as the ring's all-reduce; gathered: Thakur,
   Rabenseifner, Gropp (2005), section 4.4. */
DML__LOCAL void dml__write_ring_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__ring ring = dml__ring_of(c, false, 0, c->count);
    for (int k = 0; k < c->size - 1; k++) dml__ring_step(&ring, s, k);
    for (int i = 1; i < c->size && c->rank == c->root; i++) {
        const int rank = dml__rank_at(c, i);
        const dml__stretch chunk = dml__block_of(c, (rank + 1) % c->size);
        dml__add_receive(s, rank, DML__STEP_RECEIVE, DML__SPACE_OUT, chunk.offset, chunk.count);
    }
    if (c->rank == c->root) return;
    const dml__stretch chunk = dml__block_of(c, dml__rank_at(c, 1));
    dml__add_after(s, dml__add_send(s, c->root, DML__SPACE_OUT, chunk.offset, chunk.count), ring.received);
}

/* The second half of the ring's all-reduce; the numbers are parts:

       step   0 sends   1 sends   2 sends   3 sends
       0      0         1         2         3
       1      3         0         1         2
       2      2         3         0         1

   Cost: (m - 1) a + (m - 1) n b. Source: Thakur, Rabenseifner, Gropp (2005), section 4.1. */
DML__LOCAL void dml__write_ring_all_gather(const dml__collective *c, dml__schedule *s)
{
    const int to = dml__rank_at(c, 1), from = dml__rank_at(c, -1);
    dml__copy_own(c, s, true);
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const dml__stretch goes = dml__block_of(c, dml__rank_at(c, -k));
        const dml__stretch comes = dml__block_of(c, dml__rank_at(c, -k - 1));
        const int send = k == 0 ? dml__add_send(s, to, DML__SPACE_IN, 0, goes.count)
                                : dml__add_send(s, to, DML__SPACE_OUT, goes.offset, goes.count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_OUT, comes.offset, comes.count);
    }
}

/* The first half of the ring's all-reduce, begun one rank earlier so that rank r ends with part r:

       step   0 sends         1 sends         2 sends         3 sends
       0      3:{0}           0:{1}           1:{2}           2:{3}
       1      2:{3,0}         3:{0,1}         0:{1,2}         1:{2,3}
       2      1:{2,3,0}       2:{3,0,1}       3:{0,1,2}       0:{1,2,3}

   OUT may lie in IN, so it is written when everything else is over. Cost: (m - 1) a + (m - 1) n b +
   (m - 1) n g. Source: as the ring's all-reduce. */
DML__LOCAL void dml__write_ring_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const dml__stretch goes = dml__block_of(c, dml__rank_at(c, -k - 1));
        const dml__stretch comes = dml__block_of(c, dml__rank_at(c, -k - 2));
        const int send = dml__add_send(s, dml__rank_at(c, 1), DML__SPACE_IN, goes.offset, goes.count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, dml__rank_at(c, -1), DML__STEP_RECEIVE_REDUCE, DML__SPACE_IN,
                                    comes.offset, comes.count);
    }
    dml__set_completes(s, received);
    dml__add_after(s, dml__copy_own(c, s, false), DML__ALL_BEFORE);
}

/* Root 2 of 4: 2 -> 3 -> 0 -> 1, each passing on what has come so far. Cost: (m - 1) a + n b, the least a
   long broadcast can take; short ones wait for all the links. Source: Watts, van de Geijn, "A pipelined
   broadcast for multidimensional meshes", Parallel Processing Letters 5 (1995). */
DML__LOCAL void dml__write_chain_broadcast(const dml__collective *c, dml__schedule *s)
{
    const int next = dml__rank_at(c, 1);
    int received = -1;
    if (c->rank != c->root)
        received = dml__add_receive(s, dml__rank_at(c, -1), DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    if (next != c->root) dml__add_after(s, dml__add_send(s, next, DML__SPACE_OUT, 0, c->count), received);
}

#endif
