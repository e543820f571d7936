/* op_shape_internal.h: the attributes of slice, pad and concat, for the tests' references. Those of permute
   are its order, a dml_shape. */
#ifndef DML_OPS_OP_SHAPE_INTERNAL_H
#define DML_OPS_OP_SHAPE_INTERNAL_H

typedef struct dml__axis_part {
    int axis;
    int begin, end;    /* slice */
    int before, after; /* pad */
} dml__axis_part;

#endif
