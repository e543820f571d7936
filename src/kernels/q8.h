/* q8.h: matrices of 8-bit numbers with a scale for each block of a column, for products that wait for what
   they read of one factor: about a quarter of the bytes of f32. */
#ifndef DML_KERNELS_Q8_H
#define DML_KERNELS_Q8_H

#include "base/status.h"
#include "kernels/epilogue.h"
#include "kernels/gemm.h"
#include "thread/pool.h"

/* k's of a column that share a scale; the last ones of a column may be fewer. */
#define DML_Q8_BLOCK 64

/* Bytes of a matrix (k, n) in 8 bits: 1 1/16 an element, of k's and n's rounded up to whole blocks and fours;
   0 where one of them is below 1. */
DML_API size_t dml_q8_bytes(int n, int k);

/* op(B) (k, n), row-major as in dml_sgemm, becomes q8 (dml_q8_bytes, aligned as a float is): each element a
   number in -127 .. 127 times its block's scale, which is the block's largest magnitude / 127, so that none
   is further off than half a scale, but for rounding (linear quantization, symmetric, as ggml's Q8_0 with
   blocks of 32). A block with an infinity or a NaN becomes NaN, one of magnitudes below 127 / FLT_MAX
   (3.74e-37) zeros. How they lie is for dml_q8gemm alone. Allocates nothing. DML_ERROR_ARGUMENT as for
   dml_sgemm. */
DML_API dml_status dml_q8_from_f32(dml_pool *pool, dml_transpose trans_b, int n, int k, const float *b,
                                   int ldb, void *q8);

/* b (n, k): the transpose of the matrix that q8 stands for. DML_ERROR_ARGUMENT for a negative size, or NULL
   for what isn't empty. */
DML_API dml_status dml_q8_to_f32(int n, int k, const void *q8, float *b);

/* C (m, ldc) = activation(A B + bias) of A (m, lda) in f32 and the matrix (k, n) that q8 stands for; a NULL
   epilogue is none. All arithmetic is f32's: with e = 2^-24, |C - exact| <= 2 (k + 4) e (|A| |B| + |bias|).
   For few rows B is widened as it is read, for more while it is packed. Bitwise the same for any number of
   threads and any scratch. Allocates nothing. DML_ERROR_ARGUMENT as for dml_sgemm_fused. */
DML_API dml_status dml_q8gemm(dml_pool *pool, int m, int n, int k, const float *a, int lda, const void *q8,
                              float *c, int ldc, const dml_epilogue *epilogue);

/* The scratch with which it is fastest; none for few rows. */
DML_API dml_scratch dml_q8gemm_scratch(int m, int n, int k);

#endif
