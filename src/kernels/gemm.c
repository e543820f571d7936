#ifndef DML_KERNELS_GEMM_C
#define DML_KERNELS_GEMM_C

#include "kernels/gemm.h"

#include "kernels/product.h"

static bool dml__sgemm_fits(dml_transpose trans, int rows, int columns, int ld)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return ld >= (inner > 1 ? inner : 1);
}

static bool dml__is_transpose(dml_transpose trans)
{
    return trans == DML_NO_TRANS || trans == DML_TRANS;
}

DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc)
{
    /* A matrix in column-major order is its transpose in row-major order: C^T = op(B)^T op(A)^T. */
    if (layout == DML_COL_MAJOR)
        return dml_sgemm(pool, DML_ROW_MAJOR, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
    if (layout != DML_ROW_MAJOR || !dml__is_transpose(trans_a) || !dml__is_transpose(trans_b) || m < 0 ||
        n < 0 || k < 0 || !dml__sgemm_fits(trans_a, m, k, lda) || !dml__sgemm_fits(trans_b, k, n, ldb) ||
        !dml__sgemm_fits(DML_NO_TRANS, m, n, ldc))
        return DML_ERROR_ARGUMENT;
    dml__matrix left = { a, lda, 1 }, right = { b, 1, ldb };
    if (trans_a == DML_TRANS) left.lane_step = 1, left.k_step = lda;
    if (trans_b == DML_TRANS) right.lane_step = ldb, right.k_step = 1;
    const dml__product product = {
        m, n, k, { dml__pack_matrix, &left }, { dml__pack_matrix, &right }, alpha, beta, NULL, c, ldc
    };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_sgemm_scratch(int m, int n, int k)
{
    return dml__product_scratch(m, n, k);
}

#endif
