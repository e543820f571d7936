/* op_reduce.h: sums, means, extremes and norms over axes.

   `axes` are listed in any order, each once, and count from 0, or from the last by -1, -2, ...; the batch
   axis isn't one of them, so each sample has results of its own, and those of a parameter are the same for
   all. The axes are left out of the result's shape, or stay as 1 with `keep_dims`, so that it broadcasts:

       dml_node *centred = dml_sub(x, dml_mean(x, dml_shape_of(-1), true));

   dml_all_axes() stands for all of them. DML_ERROR_ARGUMENT for an axis that isn't there or comes twice. */
#ifndef DML_OPS_OP_REDUCE_H
#define DML_OPS_OP_REDUCE_H

#include "graph/graph.h"

static inline dml_shape dml_all_axes(void)
{
    const dml_shape none = { 0, { 0, 0, 0, 0, 0 } };
    return none;
}

DML_API dml_node *dml_sum(dml_node *x, dml_shape axes, bool keep_dims);
DML_API dml_node *dml_mean(dml_node *x, dml_shape axes, bool keep_dims);

/* The largest and the smallest; NaN where there is one. Of equals, each gets the same share of the gradient,
   as of dml_maximum. */
DML_API dml_node *dml_max(dml_node *x, dml_shape axes, bool keep_dims);
DML_API dml_node *dml_min(dml_node *x, dml_shape axes, bool keep_dims);

/* Of order 1, the sum of sizes; of order 2 the Euclidean norm, the square root of the sum of squares; of
   order INFINITY the largest size. The gradient where the norm is 0 is 0. DML_ERROR_ARGUMENT for another
   order. */
DML_API dml_node *dml_norm(dml_node *x, float order, dml_shape axes, bool keep_dims);

/* The place of the largest and of the smallest along one axis, the first of equals, in i32; no gradient flows
   through it. A NaN counts as the largest, and as the smallest. */
DML_API dml_node *dml_argmax(dml_node *x, int axis, bool keep_dims);
DML_API dml_node *dml_argmin(dml_node *x, int axis, bool keep_dims);

#endif
