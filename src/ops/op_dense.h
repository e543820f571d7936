/* op_dense.h: the fully connected layer. */
#ifndef DML_OPS_OP_DENSE_H
#define DML_OPS_OP_DENSE_H

#include "graph/graph.h"

/* A layer with parameters of its own: x (..., in) -> x w^T + bias (..., units), the same for each row of a
   sample, w [units, in] He-initialised, bias zero. For one row of all that a sample has: dml_flatten first.
 */
DML_API dml_node *dml_dense(dml_node *x, int units);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w (units,
   in), bias (units) or NULL for none. */
DML_API dml_node *dml_dense_with(dml_node *x, dml_node *w, dml_node *bias);

#endif
