/* bf16.h: bfloat16, the upper half of an f32, and matrix products of it with f32 sums. */
#ifndef DML_KERNELS_BF16_H
#define DML_KERNELS_BF16_H

#include "base/status.h"
#include "kernels/epilogue.h"
#include "kernels/gemm.h"
#include "thread/pool.h"

/* The bits: a sign, 8 of an exponent, 7 of a fraction. */
typedef uint16_t dml_bf16;

/* y = x, rounded to nearest, ties to even; a NaN stays one. And back, exactly. n elements each. */
DML_API void dml_bf16_from_f32(dml_pool *pool, size_t n, const float *x, dml_bf16 *y);
DML_API void dml_bf16_to_f32(dml_pool *pool, size_t n, const dml_bf16 *x, float *y);

/* C = activation(alpha op(A) op(B) + beta C + bias), A and B of bf16, C and bias f32, all row-major, else as
   dml_sgemm_fused; a NULL epilogue is none. Products of bf16 are exact in f32; the sums are f32's. Three ways
   are taken, by what the processor has: AMX, AVX512-BF16, and for every other one bf16 widened to f32 while
   it is packed, which takes up to a quarter longer than dml_sgemm on f32 for large products. A few rows or
   columns are widened as they are read: a single row takes no longer than with dml_sgemm. For each, with e =
   2^-24, |C - exact| <= 2 (k + 4) e (|alpha| |op(A)| |op(B)| + |beta C| + |bias|), but for denormals, which
   AMX and AVX512-BF16 may take for 0. For one of them, bitwise the same for any number of threads and any
   scratch. The environment variable DML_ISA lowers the choice: "avx512_bf16" leaves AMX out, "avx512" both.
   Allocates nothing. DML_ERROR_ARGUMENT as for dml_sgemm_fused. */
DML_API dml_status dml_bf16gemm(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                int k, float alpha, const dml_bf16 *a, int lda, const dml_bf16 *b, int ldb,
                                float beta, float *c, int ldc, const dml_epilogue *epilogue);

/* The scratch with which it is fastest: at most 1.3 MB a worker, and 256 KiB shared. */
DML_API dml_scratch dml_bf16gemm_scratch(int m, int n, int k);

/* Which of the three ways such a pool's products take: "amx", "avx512_bf16" or "widened". NULL is, as in
   dml_bf16gemm, the calling thread alone: what a pool that is made now would take. */
DML_API const char *dml_bf16gemm_isa(dml_pool *pool);

#endif
