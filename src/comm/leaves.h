/* leaves.h: sums whose bits don't depend on how many ranks there are, nor on who has what.

   What is summed are `leaves` arrays (gradients of parts of a batch, say), numbered from 0, each of which one
   rank has. They are the leaves of one binary tree, whoever has them: neighbours are added in pairs, the sums
   in pairs again, and the last one, where it has no neighbour, goes up as it is. So the node at height h that
   begins at leaf b is the sum of leaves [b, b + 2^h), as far as there are any. For 5 leaves:

       ((0 + 1) + (2 + 3)) + 4

   The sum of a node takes the place of one of its leaves, at the rank that has that: where two ranks meet,
   one sends, and the other adds. Which one, each chunk of the elements has by a bit of its number, another
   one at each height, so that both send half. In the end each chunk's sum goes from where it is to all ranks.
   For 4 leaves at 4 ranks, and 4 chunks (0: where the sum of chunk 0 is):

       height 0                           height 1                     then
       0 -> 1: 1 3    1 -> 0: 0 2         0 -> 2: 2    2 -> 0: 0       0 -> all: 0    1 -> all: 1
       2 -> 3: 1 3    3 -> 2: 0 2         1 -> 3: 3    3 -> 1: 1       2 -> all: 2    3 -> all: 3

   Nothing is needed beside the leaves' own arrays. Where each of m ranks has as many leaves in a row, both
   powers of two, it costs (log2(m) + 1) a + 2 (m - 1) / m n b, and what halving and doubling adds. Sources:
   the pairwise sum, Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14 (1993);
   recursive halving, Rabenseifner, "Optimization of collective reduction operations" (2004). */
#ifndef DML_COMM_LEAVES_H
#define DML_COMM_LEAVES_H

#include "comm/schedule.h"

/* A call, seen from one rank, and how far its steps have been written. */
typedef struct dml__leaf_sums {
    int leaves, rank, size;
    int chunks; /* a power of two */
    uint64_t count;
    size_t element;      /* bytes */
    void *const *arrays; /* (leaves) of (count), NULL where another rank has it; undefined afterwards */
    void *out;           /* (count), which may be one of them */
    char *base;          /* what all of them lie behind: space IN */
    int64_t *owners;     /* (leaves) */
    int height, chunk;   /* of the node that comes next; of the sum that goes to all next */
    uint64_t begin;
} dml__leaf_sums;

/* owners[i] as this rank knows it, and what all ranks know together: a dml_reduce_function of i64. */
DML__LOCAL void dml__say_owners(void *const *arrays, int leaves, int rank, int64_t *owners);
DML__LOCAL void dml__join_owners(void *into, const void *from, size_t count, dml_dtype dtype, void *user);

/* The ranks that say that they have a leaf, the first and the last of them; 0: nobody does. */
DML__LOCAL int dml__claims_of(int64_t owner, int *first, int *last);

/* All owners are known: what is set is everything but base, height, begin and chunk. */
DML__LOCAL void dml__begin_leaf_sums(dml__leaf_sums *sums);

/* Steps of this rank for as many nodes as there is room for at every rank. Of a mean, what goes to all is
   completed before. */
DML__LOCAL void dml__write_leaf_steps(dml__leaf_sums *sums, dml__schedule *schedule);
DML__LOCAL bool dml__leaf_sums_end(const dml__leaf_sums *sums);

#endif
