/* gemm_internal.h: what the products of all types ask of their arguments. */
#ifndef DML_KERNELS_GEMM_INTERNAL_H
#define DML_KERNELS_GEMM_INTERNAL_H

#include "base/status.h"
#include "kernels/epilogue.h"
#include "kernels/gemm.h"

/* The arguments of a row-major product besides its numbers; A and B of any type. */
typedef struct dml__gemm_arguments {
    dml_transpose trans_a, trans_b;
    int m, n, k;
    bool reads; /* alpha isn't 0: A and B count, if k does */
    const void *a, *b, *c;
    int lda, ldb, ldc;
    const dml_epilogue *epilogue; /* or NULL */
} dml__gemm_arguments;

/* DML_ERROR_ARGUMENT for a negative size, a leading dimension that is too small, an array that is NULL though
   it would be read or written, and a transpose or an activation that there isn't. */
DML__LOCAL dml_status dml__check_gemm(const dml__gemm_arguments *arguments);

#endif
