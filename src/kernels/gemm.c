#ifndef DML_KERNELS_GEMM_C
#define DML_KERNELS_GEMM_C

#include "kernels/gemm.h"

#include "kernels/product.h"

#include <string.h>

static bool dml__sgemm_fits(dml_transpose trans, int rows, int columns, int ld)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return ld >= (inner > 1 ? inner : 1);
}

static bool dml__is_transpose(dml_transpose trans)
{
    return trans == DML_NO_TRANS || trans == DML_TRANS;
}

/* The numbers of a row-major product; where its arrays are is added. */
static dml__product dml__row_major_product(dml__matrix factors[2], dml_transpose trans_a,
                                           dml_transpose trans_b, int m, int n, int k, const float *a,
                                           int lda, const float *b, int ldb)
{
    const dml__matrix left = { a, lda, 1 }, right = { b, 1, ldb };
    dml__product product;
    memset(&product, 0, sizeof product);
    factors[0] = left;
    factors[1] = right;
    if (trans_a == DML_TRANS) factors[0].lane_step = 1, factors[0].k_step = lda;
    if (trans_b == DML_TRANS) factors[1].lane_step = ldb, factors[1].k_step = 1;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = product.b.pack = dml__pack_matrix;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    return product;
}

DML_API dml_status dml_sgemm_fused(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                   int k, float alpha, const float *a, int lda, const float *b, int ldb,
                                   float beta, float *c, int ldc, const dml_epilogue *epilogue)
{
    if (!dml__is_transpose(trans_a) || !dml__is_transpose(trans_b) || m < 0 || n < 0 || k < 0 ||
        !dml__sgemm_fits(trans_a, m, k, lda) || !dml__sgemm_fits(trans_b, k, n, ldb) ||
        !dml__sgemm_fits(DML_NO_TRANS, m, n, ldc))
        return DML_ERROR_ARGUMENT;
    if (m == 0 || n == 0) return DML_OK;
    if (!c || (k > 0 && alpha != 0 && (!a || !b))) return DML_ERROR_ARGUMENT;
    dml__matrix factors[2];
    dml__product product = dml__row_major_product(factors, trans_a, trans_b, m, n, k, a, lda, b, ldb);
    product.alpha = alpha;
    product.beta = beta;
    product.c = c;
    product.ldc = ldc;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc)
{
    if (layout == DML_ROW_MAJOR)
        return dml_sgemm_fused(pool, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, NULL);
    /* A matrix in column-major order is its transpose in row-major order: C^T = op(B)^T op(A)^T. */
    if (layout == DML_COL_MAJOR)
        return dml_sgemm_fused(pool, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc, NULL);
    return DML_ERROR_ARGUMENT;
}

DML_API dml_scratch dml_sgemm_scratch(dml_transpose trans_a, dml_transpose trans_b, int m, int n, int k)
{
    const dml_scratch none = { 0, 0 };
    if (m < 1 || n < 1 || k < 1) return none;
    dml__matrix factors[2];
    const dml__product product =
        dml__row_major_product(factors, trans_a, trans_b, m, n, k, NULL, trans_a == DML_TRANS ? m : k, NULL,
                               trans_b == DML_TRANS ? k : n);
    return dml__product_scratch(&product);
}

#endif
