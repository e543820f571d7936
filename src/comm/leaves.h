/* leaves.h: sums whose bits don't depend on how many ranks there are.

   What is summed are `leaves` arrays, fewer than 2^63 (gradients of parts of a batch, say), numbered from 0;
   each rank has some that follow each other, rank r those in [begins[r], begins[r + 1]). They are the leaves
   of one binary tree, whoever has them: neighbours are added in pairs, the sums in pairs again, and the last
   one, where it has no neighbour, goes up as it is. So the node at height h with number i is the sum of
   leaves [i 2^h, (i + 1) 2^h), as far as there are any. Each rank adds up the subtrees that it has all leaves
   of, as the leaves come; these sums, a few for each rank, go to the rank that owns the chunk, which adds
   them as the tree says.

   For 5 leaves, of which rank 0 has 0 to 2 and rank 1 has 3 and 4:

       ((0 + 1) + (2 + 3)) + 4       rank 0: 0 + 1, 2       rank 1: 3, 4

   With as many leaves for each of a power of two of ranks, and a power of two of them, each rank has just one
   sum: then it costs what the direct all-reduce does. Source: the pairwise sum, Higham, "The accuracy of
   floating point summation", SIAM J. Sci. Comput. 14 (1993). */
#ifndef DML_COMM_LEAVES_H
#define DML_COMM_LEAVES_H

#include "comm/schedule.h"

/* A node of the tree by its leaves, [begin, end). */
typedef struct dml__subtree {
    uint64_t begin, end;
} dml__subtree;

/* Which a rank may have at once: two of each height, and one that is just coming. */
#define DML__MOST_SUBTREES 129

/* Sums of subtrees, one after the other, each in an array of its own: array i holds subtrees[i]. */
typedef struct dml__leaf_sums {
    uint64_t leaves; /* of the whole tree */
    int count;
    dml__subtree subtrees[DML__MOST_SUBTREES];
} dml__leaf_sums;

DML__LOCAL void dml__begin_sums(dml__leaf_sums *sums, uint64_t leaves);

/* Array sums->count has got that subtree (a leaf i: [i, i + 1)), which begins where the last one ends.
   Returns how often the last array is now to be added to the one before it, and is free again: sums->count is
   what is left after that. */
DML__LOCAL int dml__add_subtree(dml__leaf_sums *sums, dml__subtree subtree);

/* What is left of the leaves [begin, end) in the end: the largest subtrees in it. Returns their count. */
DML__LOCAL int dml__subtrees_of(uint64_t leaves, uint64_t begin, uint64_t end,
                                dml__subtree subtrees[DML__MOST_SUBTREES]);

/* How many arrays it takes at most to add up leaves [begin, end) that come one after the other. */
DML__LOCAL int dml__arrays_for_leaves(uint64_t leaves, uint64_t begin, uint64_t end);

/* What the ranks have of the tree: all of it, in the order of the ranks; some may have nothing. */
typedef struct dml__leaf_call {
    uint64_t leaves;
    const uint64_t *begins; /* (size + 1), from 0 to leaves */
} dml__leaf_call;

/* The steps of one rank of c->size: IN (subtrees, count) are the sums of its subtrees, undefined afterwards;
   OUT (count) gets the sum of all leaves, and may be the first of IN. Any op but the mean, whose steps here
   complete nothing: divide by the number of leaves instead. Rank r adds chunk r:

       rank 0 has (0 1) 2, rank 1 has 3 4       0 -> 1: chunk 1 of (0 1), of 2      1 -> 0: chunk 0 of 3, of 4
                                                0 -> 1: chunk 0 of the sum          1 -> 0: chunk 1 of the sum

   Cost, with s subtrees for each of m ranks: 2 a + (s + 1) (m - 1) / m n b + (s - 1 / m) n g. */
DML__LOCAL void dml__write_leaves_all_reduce(const dml__collective *c, const dml__leaf_call *call,
                                             dml__schedule *s);

/* Elements of SCRATCH that it uses at that rank, and steps. */
DML__LOCAL uint64_t dml__leaves_scratch(const dml__collective *c, const dml__leaf_call *call);
DML__LOCAL int dml__leaves_steps(const dml__collective *c, const dml__leaf_call *call);

#endif
