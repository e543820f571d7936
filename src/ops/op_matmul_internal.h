/* op_matmul_internal.h: what others ask of a product of two nodes. */
#ifndef DML_OPS_OP_MATMUL_INTERNAL_H
#define DML_OPS_OP_MATMUL_INTERNAL_H

#include "graph/node.h"

/* Whether a product's first factor is rows as they lie, and nothing scales them; and whether its second one
   is transposed. */
DML__LOCAL bool dml__matmul_of_rows(const dml_node *node, bool *transposed);

#endif
