/* op_matmul.h: products of matrices that are both computed, one or a batch of them. */
#ifndef DML_OPS_OP_MATMUL_H
#define DML_OPS_OP_MATMUL_H

#include "graph/graph.h"

typedef struct dml_matmul_options {
    bool transpose_a, transpose_b; /* the matrix is the transpose of what lies there */
    float scale;                   /* of the products, such as 1 / sqrt(K); 0: 1 */
} dml_matmul_options;

/* a (..., M, K) x b (..., K, N) -> (..., M, N): the matrices are the last two dimensions, (..., K, M) and
   (..., N, K) where they are transposed. The dimensions before them, counted from the last, are the same in
   both, or 1 or missing in one, which is then repeated, as in NumPy; and where only one of a and b is of each
   sample, the other is the same for all. What is repeated takes the sum of its gradients. DML_ERROR_SHAPE
   where M, K and N or the dimensions before them don't fit; DML_ERROR_ARGUMENT for a scale that isn't finite.

   Each element is summed in the order of K. A gradient of what is repeated is summed over its matrices in
   their order. Several matrices that one is multiplied with are one product, where they lie in a row. */
DML_API dml_node *dml_matmul(dml_node *a, dml_node *b);
DML_API dml_node *dml_matmul_with(dml_node *a, dml_node *b, const dml_matmul_options *options);

#endif
