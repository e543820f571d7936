/* op_softmax.h: softmax and its logarithm. */
#ifndef DML_OPS_OP_SOFTMAX_H
#define DML_OPS_OP_SOFTMAX_H

#include "graph/graph.h"

/* exp(x) / the sum of exp(x) along an axis, mostly the last: -1. Axes count from 0, or from the last by -1,
   -2,
   ...; the batch axis isn't one of them. Nothing overflows. For a loss, dml_softmax_cross_entropy takes the
   logits themselves. DML_ERROR_ARGUMENT for an axis that isn't there. */
DML_API dml_node *dml_softmax(dml_node *x, int axis);

/* Its logarithm, finite where the softmax itself rounds to 0. */
DML_API dml_node *dml_log_softmax(dml_node *x, int axis);

#endif
