/* gemm.h: matrix products on raw arrays. */
#ifndef DML_KERNELS_GEMM_H
#define DML_KERNELS_GEMM_H

#include "base/status.h"
#include "kernels/epilogue.h"
#include "thread/pool.h"

/* The numbers are those of CBLAS. */
typedef enum dml_layout { DML_ROW_MAJOR = 101, DML_COL_MAJOR = 102 } dml_layout;
typedef enum dml_transpose { DML_NO_TRANS = 111, DML_TRANS = 112 } dml_transpose;

/* C = alpha op(A) op(B) + beta C, with op(A) m x k, op(B) k x n, C m x n: the arguments of cblas_sgemm behind
   a pool (NULL: the caller alone). With beta = 0, C is not read. The result is bitwise the same for any
   number of threads and any scratch of the pool. Allocates nothing. DML_ERROR_ARGUMENT for a negative size, a
   leading dimension that is too small, an array that is NULL though it would be read or written, or an
   unknown layout or transpose; C is then untouched. */
DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc);

/* The same in row-major order, with an epilogue: C = activation(alpha op(A) op(B) + beta C + bias), bias (n).
   NULL: none. A residual that is added before the activation is what C holds with beta = 1. */
DML_API dml_status dml_sgemm_fused(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                   int k, float alpha, const float *a, int lda, const float *b, int ldb,
                                   float beta, float *c, int ldc, const dml_epilogue *epilogue);

/* `count` row-major products of one shape, product i of a + i stride_a and b + i stride_b into c + i stride_c
   (elements; a factor that is the same for all has stride 0, and the C's must not overlap): C = alpha op(A)
   op(B) + beta C. Each is bitwise what dml_sgemm makes of it. Small ones are shared out whole among the
   threads; a call costs each
   something besides its arithmetic, so the very smallest are faster in a plain loop. The scratch is that of
   one of them, of dml_sgemm_scratch. */
DML_API dml_status dml_sgemm_batched(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m,
                                     int n, int k, float alpha, const float *a, int lda, ptrdiff_t stride_a,
                                     const float *b, int ldb, ptrdiff_t stride_b, float beta, float *c,
                                     int ldc, ptrdiff_t stride_c, int count);

/* The scratch with which a row-major product is fastest, for dml_pool_reserve; it depends on dml_cpu_isa. (A
   column-major product is the row-major one of the factors swapped.) At most 1.3 MB a worker, and, of a
   long k, 8 MiB shared; little for small products; zeros where a size is below 1. A smaller product may want
   more, by little: reserve for each. */
DML_API dml_scratch dml_sgemm_scratch(dml_transpose trans_a, dml_transpose trans_b, int m, int n, int k);

#endif
