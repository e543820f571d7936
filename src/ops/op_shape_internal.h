/* op_shape_internal.h: what ops along an axis share; and the attributes of slice, pad and concat, for the
   tests' references. Those of permute are its order, a dml_shape. */
#ifndef DML_OPS_OP_SHAPE_INTERNAL_H
#define DML_OPS_OP_SHAPE_INTERNAL_H

#include "graph/node.h"

/* A reshape under another name: the last node of a layer that is made of others. */
DML__LOCAL const struct dml__op *dml__upsample2d_op(void);

/* The axis of input 0, counted from 0; -1, with the error recorded, when it hasn't it. */
DML__LOCAL int dml__find_axis(const dml_node *node, int axis);

/* All that lies before an axis, the samples too, the axis, and all behind it. */
typedef struct dml__axis_sizes {
    size_t outer, n, inner;
} dml__axis_sizes;
DML__LOCAL dml__axis_sizes dml__axis_sizes_of(const dml_node *x, int axis, int rows);

typedef struct dml__axis_part {
    int axis;
    int begin, end;    /* slice */
    int before, after; /* pad */
} dml__axis_part;

#endif
