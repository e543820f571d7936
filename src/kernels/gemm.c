#ifndef DML_KERNELS_GEMM_C
#define DML_KERNELS_GEMM_C

#include "kernels/gemm.h"

#include "kernels/gemm_internal.h"
#include "kernels/product.h"

#include <string.h>

static bool dml__gemm_fits(dml_transpose trans, int rows, int columns, int ld)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return ld >= (inner > 1 ? inner : 1);
}

static bool dml__is_transpose(dml_transpose trans)
{
    return trans == DML_NO_TRANS || trans == DML_TRANS;
}

DML__LOCAL dml_status dml__check_gemm(const dml__gemm_arguments *g)
{
    if (!dml__is_transpose(g->trans_a) || !dml__is_transpose(g->trans_b) || g->m < 0 || g->n < 0 ||
        g->k < 0 || !dml__gemm_fits(g->trans_a, g->m, g->k, g->lda) ||
        !dml__gemm_fits(g->trans_b, g->k, g->n, g->ldb) || !dml__gemm_fits(DML_NO_TRANS, g->m, g->n, g->ldc))
        return DML_ERROR_ARGUMENT;
    if (!dml__epilogue_is_known(g->epilogue)) return DML_ERROR_ARGUMENT;
    const bool empty = g->m == 0 || g->n == 0, reads = !empty && g->k > 0 && g->reads;
    return (!empty && !g->c) || (reads && (!g->a || !g->b)) ? DML_ERROR_ARGUMENT : DML_OK;
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
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, epilogue };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
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

typedef struct dml__gemm_batch {
    dml_pool *pool;
    dml__product product; /* the first */
    dml__matrix factors[2];
    ptrdiff_t stride_a, stride_b, stride_c;
} dml__gemm_batch;

/* Product i of a batch, by a worker, or with the whole pool for -1. */
static bool dml__multiply_one(const dml__gemm_batch *batch, int i, int worker)
{
    dml__matrix factors[2] = { batch->factors[0], batch->factors[1] };
    dml__product product = batch->product;
    factors[0].x += i * batch->stride_a;
    factors[1].x += i * batch->stride_b;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    product.c += i * batch->stride_c;
    if (worker >= 0) return dml__multiply_alone(batch->pool, worker, &product);
    dml__multiply(batch->pool, &product);
    return true;
}

static void dml__batch_task(void *argument, int task, int worker)
{
    dml__multiply_one((const dml__gemm_batch *)argument, task + 1, worker);
}

/* Products of at least so many multiply-adds are shared out one by one. */
#define DML__SHARED_PRODUCT 4e6

DML_API dml_status dml_sgemm_batched(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m,
                                     int n, int k, float alpha, const float *a, int lda, ptrdiff_t stride_a,
                                     const float *b, int ldb, ptrdiff_t stride_b, float beta, float *c,
                                     int ldc, ptrdiff_t stride_c, int count)
{
    if (count < 0) return DML_ERROR_ARGUMENT;
    if (count == 0) return DML_OK;
    dml__gemm_batch batch;
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, NULL };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    batch.pool = pool;
    batch.product = dml__row_major_product(batch.factors, trans_a, trans_b, m, n, k, a, lda, b, ldb);
    batch.product.alpha = alpha;
    batch.product.beta = beta;
    batch.product.c = c;
    batch.product.ldc = ldc;
    batch.stride_a = stride_a;
    batch.stride_b = stride_b;
    batch.stride_c = stride_c;
    /* The first says whether one worker can do it. */
    if ((double)m * n * k < DML__SHARED_PRODUCT && dml__multiply_one(&batch, 0, 0))
        dml_pool_run(pool, count - 1, dml__batch_task, &batch);
    else
        for (int i = 0; i < count; i++) dml__multiply_one(&batch, i, -1);
    return DML_OK;
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
