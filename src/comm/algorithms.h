/* algorithms.h: the algorithms of the collectives, each a function that writes the steps of one rank
   (comm/schedule.h), and what the families of them share.

   Costs are in seconds until the last rank has its result: a is the time of a message's way (alpha), b the
   time of an element through a link (beta), g the time to reduce an element (gamma), m the number of ranks, n
   the elements of the call. A pipeline's segments are taken as short: their times through are left out. */
#ifndef DML_COMM_ALGORITHMS_H
#define DML_COMM_ALGORITHMS_H

#include "comm/schedule.h"

typedef struct dml__stretch {
    uint64_t offset, count;
} dml__stretch;

/* Chunks [first, end) of `count` elements cut into `chunks`. */
static inline dml__stretch dml__chunks(uint64_t count, int chunks, int first, int end)
{
    dml__stretch block;
    block.offset = dml__chunk_begin(count, chunks, first);
    block.count = dml__chunk_begin(count, chunks, end) - block.offset;
    return block;
}

/* What of the array that is spread over the ranks is that rank's: its part, or where the operation has no
   parts its chunk. */
static inline dml__stretch dml__block_of(const dml__collective *c, int rank)
{
    if (dml__is_elementwise(c->operation)) return dml__chunks(c->count, c->size, rank, rank + 1);
    dml__stretch block;
    block.offset = dml__part_offset(c, rank);
    block.count = dml__part_count(c, rank);
    return block;
}

/* What of all-to-all's IN goes to that rank. */
static inline dml__stretch dml__in_part(const dml__collective *c, int rank)
{
    dml__stretch part;
    if (!c->in_counts) return dml__block_of(c, rank);
    part.offset = c->in_offsets[rank];
    part.count = c->in_counts[rank];
    return part;
}

/* The rank `distance` further on, which is in (-2 size, 2 size). */
static inline int dml__rank_at(const dml__collective *c, int distance)
{
    return (c->rank + distance + 2 * c->size) % c->size;
}

/* Copies this rank's own part from IN to its place in OUT, or the other way round. */
static inline int dml__copy_own(const dml__collective *c, dml__schedule *s, bool out_has_parts)
{
    const uint64_t place = dml__part_offset(c, c->rank);
    return dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, out_has_parts ? place : 0,
                          dml__part_count(c, c->rank), DML__SPACE_IN, out_has_parts ? 0 : place);
}

/* The least power of two that isn't less than size. */
static inline int dml__power_over(int size)
{
    int power = 1;
    while (power < size) power *= 2;
    return power;
}

static inline int dml__log2_over(int size)
{
    int log = 0;
    while (1 << log < size) log++;
    return log;
}

/* ring.c */
DML__LOCAL void dml__write_ring_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_two_rings_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_round_robin_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_reduce_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_broadcast(const dml__collective *c, dml__schedule *s);

/* chain.c */
DML__LOCAL void dml__write_chain_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_reduce_scatter(const dml__collective *c, dml__schedule *s);

/* tree.c */
DML__LOCAL void dml__write_double_tree_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_scatter_all_gather_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_tree_barrier(const dml__collective *c, dml__schedule *s);

/* butterfly.c */
DML__LOCAL void dml__write_butterfly_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_halving_doubling_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_halving_reduce_scatter(const dml__collective *c, dml__schedule *s);

/* bruck.c */
DML__LOCAL void dml__write_bruck_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_bruck_all_to_all(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_dissemination_barrier(const dml__collective *c, dml__schedule *s);

/* direct.c */
DML__LOCAL void dml__write_all_to_all_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_master_worker_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_reduce_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_to_all(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_pairwise_all_to_all(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_in_place_all_to_all(const dml__collective *c, dml__schedule *s);

/* shared.c */
DML__LOCAL void dml__write_shared_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_shared_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_shared_reduce_scatter(const dml__collective *c, dml__schedule *s);

/* Whether a call is about memory that all ranks share. */
static inline bool dml__is_shared(const dml__algorithm_info *info)
{
    return info->write == dml__write_shared_all_reduce || info->write == dml__write_shared_all_gather ||
           info->write == dml__write_shared_reduce_scatter;
}

/* As many of `most` elements of a call as go at once, where a rank has room for `shared` in such memory. */
static inline uint64_t dml__shared_round(const dml__algorithm_info *info, int size, uint64_t most,
                                         uint64_t shared)
{
    if (!dml__is_shared(info)) return most;
    if (info->write == dml__write_shared_reduce_scatter && size > 1) shared /= (uint64_t)size - 1;
    return most < shared ? most : shared;
}

/* The one that is for calls whose arrays are one, and isn't the cheapest of any other. */
static inline bool dml__is_in_place(const dml__algorithm_info *info)
{
    return info->write == dml__write_in_place_all_to_all;
}

#define DML__MOST_ROUNDS 32768 /* about: messages are numbered from round << 16 on */

#define DML__ROUND_LEAST ((size_t)512 << 10)
#define DML__ROUND_PART ((size_t)128 << 10)        /* for each rank */
#define DML__ROUND_PART_COPIED ((size_t)512 << 10) /* the same by sockets, whose latencies are larger */

/* As many elements at once as stay in the caches from when an all-reduce reduces them until it sends them
   (else each byte comes from memory at each step): `part` bytes for each rank; all of them where that is 0,
   or of other calls. */
static inline uint64_t dml__cached_round(dml__comm_operation operation, int size, uint64_t count, size_t part,
                                         size_t element_bytes)
{
    const size_t bytes = part * (size_t)size < DML__ROUND_LEAST ? DML__ROUND_LEAST : part * (size_t)size;
    uint64_t most = count;
    if (!part || operation != DML__CALL_ALL_REDUCE) return count;
    while (most > bytes / element_bytes && count / most < DML__MOST_ROUNDS) most -= most / 2;
    return most;
}

/* Whether a call that needs more room than there is may be run in rounds. */
static inline bool dml__goes_in_rounds(const dml__algorithm_info *info)
{
    return dml__is_elementwise(info->operation) || dml__is_in_place(info) || dml__is_shared(info);
}

/* The slots of SCRATCH, as many elements each as the stretch has, hold what came from all other ranks: from
   the one before this rank first, then the one before that, by receives that are steps first, first + stride,
   ... Adds them to the stretch of `space` in the order of the ranks, once `before` is out of the way; the
   last step. */
DML__LOCAL int dml__add_slots(const dml__collective *c, dml__schedule *s, dml__space space,
                              dml__stretch stretch, int first, int stride, int before);

#endif
