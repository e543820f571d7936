/* op_gather.h: places along an axis, by number. Axes count from 0, or from the last by -1, -2, ...; the batch
   axis isn't one of them: each sample has indices of its own, an i32 input, or what dml_argmax gives.

   An index outside 0 .. that axis - 1 is found before anything is run (DML_ERROR_ARGUMENT), and none counts
   from the end. The gradient of a place is the sum over all times that it was taken, in their order. To look
   rows of a parameter up, there is dml_embedding_with. */
#ifndef DML_OPS_OP_GATHER_H
#define DML_OPS_OP_GATHER_H

#include "graph/graph.h"

/* The places that a list names, each whole, along an axis: of x (..., N, ...) and indices (K), (..., K, ...),
   as PyTorch's index_select and NumPy's take do in each sample; of indices (K, L), (..., K, L, ...). */
DML_API dml_node *dml_take(dml_node *x, dml_node *indices, int axis);

/* One element for each index, from its own place along all other axes: of x (..., N, ...) and indices
   (..., K, ...), like the indices, as PyTorch's gather and NumPy's take_along_axis do. */
DML_API dml_node *dml_gather(dml_node *x, dml_node *indices, int axis);

#endif
