/* broadcast.h: operands that are smaller than the result, and the sums that are their gradients. */
#ifndef DML_KERNELS_BROADCAST_H
#define DML_KERNELS_BROADCAST_H

#include "thread/pool.h"

#define DML__BROADCAST_DIMS 6

/* Where the operand's element for each element of the result lies: the result's dimensions, outermost first,
   with the operand's stride in each, 0 where it is repeated. Neighbours that one stride serves are one. */
typedef struct dml__broadcast {
    int dims; /* at least 1 */
    size_t size[DML__BROADCAST_DIMS], stride[DML__BROADCAST_DIMS];
} dml__broadcast;

/* Of the result's `dims` sizes, and the operand's in the same places: the same, or 1. */
DML__LOCAL dml__broadcast dml__broadcast_of(int dims, const size_t *result, const size_t *operand);

/* Whether the operand has the result's elements in their order. */
static inline bool dml__broadcast_is_plain(const dml__broadcast *broadcast)
{
    return broadcast->dims == 1 && broadcast->stride[0] == 1;
}

/* to[0 .. count - 1] = the operand's for elements begin .. begin + count - 1 of the result. */
DML__LOCAL void dml__broadcast_copy(const dml__broadcast *broadcast, const float *operand, size_t begin,
                                    size_t count, float *to);

/* Sums over repeated dimensions happen one at a time, innermost first: y[o][i] = sum over k of x[o][k][i]. */
typedef struct dml__broadcast_sum {
    size_t outer, n, inner;
} dml__broadcast_sum;

/* The sums that make of an array like the result one like the operand, in order; returns how many. Each but
   the last is written elsewhere: it has outer x inner elements, at most half as many as it sums. */
DML__LOCAL int dml__broadcast_sums(const dml__broadcast *broadcast,
                                   dml__broadcast_sum sums[DML__BROADCAST_DIMS]);

/* How many floats of scratch dml__sum_broadcast takes. */
DML__LOCAL size_t dml__sum_broadcast_scratch(const dml__broadcast *broadcast);

/* y = the sum of x, which is like the result, over all elements that share one of the operand's, + beta y. */
DML__LOCAL void dml__sum_broadcast(dml_pool *pool, const dml__broadcast *broadcast, const float *x,
                                   float *scratch, float beta, float *y);

#endif
