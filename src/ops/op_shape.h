/* op_shape.h: the same numbers in another order or shape, parts of them, and several side by side. Axes count
   from 0, or from the last by -1, -2, ...; the batch axis isn't one of them. */
#ifndef DML_OPS_OP_SHAPE_H
#define DML_OPS_OP_SHAPE_H

#include "graph/graph.h"

/* x under another shape of as many elements: no data moves. One dimension may be -1: what is left over.
   dml_reshape(x, dml_shape_of(4, -1)) */
DML_API dml_node *dml_reshape(dml_node *x, dml_shape shape);

/* x, but to gradients a constant: none flows to it, and for what only it needs nothing is computed or kept.
   Elsewhere this is called detach. */
DML_API dml_node *dml_stop_gradient(dml_node *x);

/* The axes in another order: axis i of the result is axis order.dims[i] of x. (H, W, C) -> (C, H, W) by
   dml_permute(x, dml_shape_of(2, 0, 1)). */
DML_API dml_node *dml_permute(dml_node *x, dml_shape order);

/* Two axes exchanged: (..., M, N) -> (..., N, M) by dml_swap_axes(x, -1, -2). */
DML_API dml_node *dml_swap_axes(dml_node *x, int a, int b);

/* The places begin .. end - 1 along an axis, at least one. */
DML_API dml_node *dml_slice(dml_node *x, int axis, int begin, int end);

/* Cuts an axis into `count` equal parts, in order, into parts[0 .. count - 1]; NULLs, with the error
   recorded, when it can't be cut so, and then DML_ERROR_ARGUMENT. */
DML_API dml_status dml_split(dml_node *x, int axis, int count, dml_node **parts);

/* Zeros before and after x along an axis. */
DML_API dml_node *dml_pad(dml_node *x, int axis, int before, int after);

/* Several of the same shape, but for the axis along which they come behind each other. NULL for
   `nodes` of NULL and a `count` below 1, where there is no graph to record an error on. */
DML_API dml_node *dml_concat(dml_node *const *nodes, int count, int axis);

#endif
