#ifndef DML_COMM_ALGORITHMS_C
#define DML_COMM_ALGORITHMS_C

#include "comm/algorithms.h"

#include <string.h>

/* The table of the algorithms, and their figures: m ranks, n elements of the call. */

static uint64_t dml__no_elements(int m, uint64_t n)
{
    (void)m, (void)n;
    return 0;
}
static uint64_t dml__n_once(int m, uint64_t n)
{
    return m > 1 ? n : 0;
}
static uint64_t dml__n_per_rank(int m, uint64_t n)
{
    return (uint64_t)m * n;
}
static uint64_t dml__n_per_rank_of_many(int m, uint64_t n)
{
    return m > 1 ? (uint64_t)m * n : 0;
}
static uint64_t dml__n_to_neighbours(int m, uint64_t n)
{
    return m < 3 ? (uint64_t)(m - 1) * n : 2 * n;
}
static uint64_t dml__n_per_other(int m, uint64_t n)
{
    return (uint64_t)(m - 1) * n;
}
static uint64_t dml__n_per_level(int m, uint64_t n)
{
    return (uint64_t)dml__log2_over(m) * n;
}
/* What the largest subtree of a binomial tree has: of the place with the highest bit, or with the bit below
 * it. */
static uint64_t dml__n_per_place(int m, uint64_t n)
{
    const int top = dml__power_over(m) / 2, places = m - top > top / 2 ? m - top : top / 2;
    return (uint64_t)(m > 1 ? places : 0) * n;
}
static uint64_t dml__half_per_level(int m, uint64_t n)
{
    uint64_t blocks = 0;
    for (int distance = 1; distance < m; distance *= 2)
        for (int i = 1; i < m; i++) blocks += (i & distance) != 0;
    return blocks * n;
}
/* Twice all but one's own chunk. */
static uint64_t dml__both_ways(int m, uint64_t n)
{
    return 2 * (n - n / (uint64_t)m);
}
static uint64_t dml__slots_of_chunks(int m, uint64_t n)
{
    return (uint64_t)(m - 1) * (n / (uint64_t)m + (n % (uint64_t)m != 0));
}
static uint64_t dml__tree_elements(int m, uint64_t n)
{
    return m < 2 ? 0 : m == 2 ? n : m == 3 ? n + n / 2 : 2 * n;
}

/* Whether some ranks let others take part for them. */
static bool dml__folds(int m)
{
    return (m & (m - 1)) != 0;
}
static int dml__fold_levels(int m)
{
    return dml__log2_over(m) - dml__folds(m);
}
static uint64_t dml__butterfly_elements(int m, uint64_t n)
{
    return (uint64_t)(dml__fold_levels(m) + dml__folds(m)) * n;
}
static uint64_t dml__halving_doubling_elements(int m, uint64_t n)
{
    return 2 * (n - (n >> dml__fold_levels(m))) + (dml__folds(m) ? n : 0);
}
static uint64_t dml__halving_elements(int m, uint64_t n)
{
    return (uint64_t)(m - !dml__folds(m)) * n;
}

static uint64_t dml__one_message(int m)
{
    return m > 1;
}
static uint64_t dml__message_per_neighbour(int m)
{
    return m < 3 ? (uint64_t)(m - 1) : 2;
}
static uint64_t dml__message_per_other(int m)
{
    return (uint64_t)(m - 1);
}
static uint64_t dml__message_per_rank(int m)
{
    return m > 1 ? (uint64_t)m : 0;
}
static uint64_t dml__two_per_other(int m)
{
    return 2 * (uint64_t)(m - 1);
}
static uint64_t dml__four_per_other(int m)
{
    return 4 * (uint64_t)(m - 1);
}
static uint64_t dml__message_per_level(int m)
{
    return (uint64_t)dml__log2_over(m);
}
static uint64_t dml__scatter_all_gather_messages(int m)
{
    return (uint64_t)(dml__log2_over(m) + m - 1);
}
static uint64_t dml__butterfly_messages(int m)
{
    return (uint64_t)(dml__fold_levels(m) + dml__folds(m));
}
static uint64_t dml__halving_doubling_messages(int m)
{
    return (uint64_t)(2 * dml__fold_levels(m) + dml__folds(m));
}
static uint64_t dml__tree_messages(int m)
{
    return m < 4 ? (uint64_t)(m > 1) * (uint64_t)m : 4;
}

/* Of an operation's, those come first that were the best in the worst case, where ranks share processors and
   prices can't tell (choice_table.h): whose dependent messages are few, and which send on what is still in a
   cache.

   name, operation, write, equal_parts, rank_order, scratch, elements_sent, messages_sent */
static const dml__algorithm_info dml__algorithm_table[] = {
    { "shared", DML__CALL_ALL_REDUCE, dml__write_shared_all_reduce, false, true, NULL, dml__no_elements,
      dml__two_per_other },
    { "halving_doubling", DML__CALL_ALL_REDUCE, dml__write_halving_doubling_all_reduce, false, false, NULL,
      dml__halving_doubling_elements, dml__halving_doubling_messages },
    { "ring_segmented", DML__CALL_ALL_REDUCE, dml__write_two_rings_all_reduce, false, false, NULL,
      dml__both_ways, dml__four_per_other },
    { "ring", DML__CALL_ALL_REDUCE, dml__write_ring_all_reduce, false, false, NULL, dml__both_ways,
      dml__two_per_other },
    { "master_worker", DML__CALL_ALL_REDUCE, dml__write_master_worker_all_reduce, false, true, NULL,
      dml__n_per_other, dml__message_per_other },
    { "chain", DML__CALL_ALL_REDUCE, dml__write_chain_all_reduce, false, true, NULL, dml__n_to_neighbours,
      dml__message_per_neighbour },
    { "tree", DML__CALL_ALL_REDUCE, dml__write_double_tree_all_reduce, false, false, NULL, dml__tree_elements,
      dml__tree_messages },
    { "butterfly", DML__CALL_ALL_REDUCE, dml__write_butterfly_all_reduce, false, false, dml__n_once,
      dml__butterfly_elements, dml__butterfly_messages },
    { "all_to_all", DML__CALL_ALL_REDUCE, dml__write_all_to_all_all_reduce, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "round_robin", DML__CALL_ALL_REDUCE, dml__write_round_robin_all_reduce, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "direct", DML__CALL_ALL_REDUCE, dml__write_direct_all_reduce, false, true, dml__slots_of_chunks,
      dml__both_ways, dml__two_per_other },

    { "direct", DML__CALL_REDUCE, dml__write_direct_reduce, false, true, dml__n_once, dml__n_once,
      dml__one_message },
    { "binomial", DML__CALL_REDUCE, dml__write_binomial_reduce, false, false, NULL, dml__n_once,
      dml__one_message },
    { "ring", DML__CALL_REDUCE, dml__write_ring_reduce, false, false, NULL, dml__n_once,
      dml__message_per_rank },
    { "chain", DML__CALL_REDUCE, dml__write_chain_reduce, false, true, NULL, dml__n_once, dml__one_message },

    { "chain", DML__CALL_BROADCAST, dml__write_chain_broadcast, false, false, NULL, dml__n_once,
      dml__one_message },
    { "binomial", DML__CALL_BROADCAST, dml__write_binomial_broadcast, false, false, NULL, dml__n_per_level,
      dml__message_per_level },
    { "direct", DML__CALL_BROADCAST, dml__write_direct_broadcast, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "scatter_all_gather", DML__CALL_BROADCAST, dml__write_scatter_all_gather_broadcast, false, false, NULL,
      dml__both_ways, dml__scatter_all_gather_messages },

    { "binomial", DML__CALL_SCATTER, dml__write_binomial_scatter, true, false, dml__n_per_place,
      dml__n_per_other, dml__message_per_level },
    { "direct", DML__CALL_SCATTER, dml__write_direct_scatter, false, false, NULL, dml__n_per_other,
      dml__message_per_other },

    { "direct", DML__CALL_GATHER, dml__write_direct_gather, false, false, NULL, dml__n_once,
      dml__one_message },
    { "binomial", DML__CALL_GATHER, dml__write_binomial_gather, true, false, dml__n_per_place,
      dml__n_per_place, dml__one_message },

    { "bruck", DML__CALL_ALL_GATHER, dml__write_bruck_all_gather, true, false, dml__n_per_rank,
      dml__n_per_other, dml__message_per_level },
    { "shared", DML__CALL_ALL_GATHER, dml__write_shared_all_gather, true, false, NULL, dml__no_elements,
      dml__message_per_other },
    { "direct", DML__CALL_ALL_GATHER, dml__write_direct_all_gather, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "ring", DML__CALL_ALL_GATHER, dml__write_ring_all_gather, false, false, NULL, dml__n_per_other,
      dml__message_per_other },

    { "shared", DML__CALL_REDUCE_SCATTER, dml__write_shared_reduce_scatter, true, true, NULL,
      dml__no_elements, dml__message_per_other },
    { "direct", DML__CALL_REDUCE_SCATTER, dml__write_direct_reduce_scatter, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "halving", DML__CALL_REDUCE_SCATTER, dml__write_halving_reduce_scatter, true, false, NULL,
      dml__halving_elements, dml__butterfly_messages },
    { "ring", DML__CALL_REDUCE_SCATTER, dml__write_ring_reduce_scatter, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "chain", DML__CALL_REDUCE_SCATTER, dml__write_chain_reduce_scatter, false, true, NULL,
      dml__n_per_rank_of_many, dml__message_per_rank },

    { "bruck", DML__CALL_ALL_TO_ALL, dml__write_bruck_all_to_all, true, false, dml__n_per_rank,
      dml__half_per_level, dml__message_per_level },
    { "direct", DML__CALL_ALL_TO_ALL, dml__write_direct_all_to_all, true, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "pairwise", DML__CALL_ALL_TO_ALL, dml__write_pairwise_all_to_all, true, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "in_place", DML__CALL_ALL_TO_ALL, dml__write_in_place_all_to_all, true, false, dml__n_to_neighbours,
      dml__n_per_other, dml__message_per_other },

    { "dissemination", DML__CALL_BARRIER, dml__write_dissemination_barrier, true, false, NULL,
      dml__no_elements, dml__message_per_level },
    { "tree", DML__CALL_BARRIER, dml__write_tree_barrier, true, false, NULL, dml__no_elements,
      dml__message_per_level },
};

DML__LOCAL const dml__algorithm_info *dml__algorithms(int *count)
{
    *count = (int)(sizeof dml__algorithm_table / sizeof *dml__algorithm_table);
    return dml__algorithm_table;
}

DML__LOCAL int dml__find_algorithm(dml__comm_operation operation, const char *name)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++)
        if (table[i].operation == operation && strcmp(table[i].name, name) == 0) return i;
    return -1;
}

/* Two rings write 8 (m - 1). Bruck's all-to-all writes 2 at first, m at last, and for each distance a message
   each way and two copies of each run of blocks, of which there are less than m in all. */
DML__LOCAL int dml__most_steps(int size)
{
    const int rings = 8 * (size - 1), bruck = 3 * size + 2 * dml__log2_over(size) + 2;
    return rings > bruck ? rings : bruck;
}

#endif
