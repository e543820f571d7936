/* op_reduce_internal.h: the attributes of reductions, for the tests' references. */
#ifndef DML_OPS_OP_REDUCE_INTERNAL_H
#define DML_OPS_OP_REDUCE_INTERNAL_H

#include "graph/shape.h"
#include "kernels/reduce_axis.h"

/* Axes first .. first + count - 1, which are neighbours: others were moved there by a permute before it. */
typedef struct dml__reduced_axes {
    int first, count;
    bool keep;
    dml_reduction kind;
    bool mean; /* a sum over their number */
} dml__reduced_axes;

#endif
