/* blas_shim: dml_sgemm under the names and with the error exits of the reference BLAS, for its own test
   programs (LD_PRELOAD). BLAS_SHIM_THREADS: of the pool; 1. BLAS_SHIM_CALLS: a file that gets the number of
   calls. */
#define DML_IMPLEMENTATION
#define DML_STATIC
#include "dml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* The test programs bring these. A name's length follows in Fortran. */
void xerbla_(const char *name, const int *argument, size_t name_length) __attribute__((weak));
void cblas_xerbla(int argument, const char *name, const char *format, ...) __attribute__((weak));

/* A variable of the reference CBLAS that its test program reads. */
EXPORTED int RowMajorStrg;

static dml_pool *pool;
static long calls;

static void __attribute__((constructor)) begin(void)
{
    const char *threads = getenv("BLAS_SHIM_THREADS");
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = threads ? atoi(threads) : 1;
    options.scratch.worker = 2 << 20; /* more than dml_sgemm_scratch asks for at the tests' sizes */
    options.scratch.shared = 1 << 20;
    pool = dml_pool_create(&options);
}

static void __attribute__((destructor)) end(void)
{
    const char *path = getenv("BLAS_SHIM_CALLS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", calls);
        fclose(file);
    }
    dml_pool_destroy(pool);
}

static int known(int transpose)
{
    return transpose >= 111 && transpose <= 113;
}

/* CblasConjTrans (113) is a transposition too. */
static dml_transpose plain(int transpose)
{
    return transpose == DML_NO_TRANS ? DML_NO_TRANS : DML_TRANS;
}

/* The first bad argument of SGEMM, counted from 1; 0: none. `a` and `b` are transposed where those aren't 0.
 */
static int bad_argument(int a, int b, int m, int n, int k, int lda, int ldb, int ldc)
{
    const int rows_a = a ? k : m, rows_b = b ? n : k;
    if (m < 0) return 3;
    if (n < 0) return 4;
    if (k < 0) return 5;
    if (lda < (rows_a > 1 ? rows_a : 1)) return 8;
    if (ldb < (rows_b > 1 ? rows_b : 1)) return 10;
    if (ldc < (m > 1 ? m : 1)) return 13;
    return 0;
}

static void multiply(dml_layout layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                     const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    calls++;
    if (dml_sgemm(pool, layout, plain(trans_a), plain(trans_b), m, n, k, alpha, a, lda, b, ldb, beta, c,
                  ldc) != DML_OK)
        fprintf(stderr, "blas_shim: dml_sgemm refuses what the reference takes\n");
#ifdef BLAS_SHIM_WRONG
    if (m > 2 && n > 2) c[0] += 0.001f;
#endif
}

/* 111, 112 or 113; 0: unknown. */
static int transposition(char letter)
{
    switch (letter) {
    case 'n':
    case 'N': return 111;
    case 't':
    case 'T': return 112;
    case 'c':
    case 'C': return 113;
    default: return 0;
    }
}

EXPORTED void sgemm_(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k,
                     const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
                     const float *beta, float *c, const int *ldc)
{
    const int ta = transposition(*trans_a), tb = transposition(*trans_b);
    const int bad = !ta ? 1 : !tb ? 2 : bad_argument(ta != 111, tb != 111, *m, *n, *k, *lda, *ldb, *ldc);
    if (bad) {
        if (xerbla_) xerbla_("SGEMM ", &bad, 6);
        return;
    }
    multiply(DML_COL_MAJOR, ta, tb, *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc);
}

/* The reference makes a row-major product the column-major one with the matrices exchanged, and says which
   argument of that is bad: so does this. Its numbers are one more than SGEMM's. */
EXPORTED void cblas_sgemm(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                          const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    const bool rows = layout == DML_ROW_MAJOR;
    int bad = 0;
    RowMajorStrg = rows;
    if (!rows && layout != DML_COL_MAJOR)
        bad = 1;
    else if (!known(trans_a))
        bad = 2;
    else if (!known(trans_b))
        bad = 3;
    else if (rows)
        bad = bad_argument(trans_b != 111, trans_a != 111, n, m, k, ldb, lda, ldc);
    else
        bad = bad_argument(trans_a != 111, trans_b != 111, m, n, k, lda, ldb, ldc);
    if (bad >= 3 && known(trans_a) && known(trans_b)) bad++;
    if (bad) {
        if (cblas_xerbla) cblas_xerbla(bad, "cblas_sgemm", "");
        RowMajorStrg = 0;
        return;
    }
    multiply((dml_layout)layout, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    RowMajorStrg = 0;
}
