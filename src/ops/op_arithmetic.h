/* op_arithmetic.h: sums and changes of shape. */
#ifndef DML_OPS_OP_ARITHMETIC_H
#define DML_OPS_OP_ARITHMETIC_H

#include "graph/graph.h"

/* a + b, of the same shape; also for scalar losses. DML_ERROR_SHAPE when they differ. */
DML_API dml_node *dml_add(dml_node *a, dml_node *b);

/* (d0, d1, ...) as (d0 d1 ...): no data moves. */
DML_API dml_node *dml_flatten(dml_node *x);

#endif
