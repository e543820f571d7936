/* gemm_cases.h: the products of matrices of tiles.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_GEMM_CASES_H
#define DML_TESTS_GPU_GEMM_CASES_H

#include "kernel_cases.h"

static void gemm_case(const char *kernel, int m, int n, int k, bool ta, bool tb, float alpha, float beta)
{
    const int lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 2, ldc = n + 1;
    const size_t na = (size_t)((ta ? k : m) * lda), nb = (size_t)((tb ? n : k) * ldb), nc = (size_t)(m * ldc);
    float *a = numbers(na), *b = numbers(nb), *c = output(nc, beta);
    float *between = malloc(nc * sizeof *between); /* what lies between the rows must stay */
    double *want = malloc(nc * sizeof *want);
    for (size_t i = 0; i < nc; i++)
        if ((int)i % ldc >= n) c[i] = 3;
    memcpy(between, c, nc * sizeof *c);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int p = 0; p < k; p++)
                sum += (double)a[ta ? p * lda + i : i * lda + p] * (double)b[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = (double)alpha * sum + kept(beta, c[i * ldc + j]);
        }
        want[i * ldc + n] = 3;
    }
    array da = upload(a, na), db = upload(b, nb), dc = upload(c, nc);
    launch_ok((dml_launch){ .kernel = kernel,
                            .size = { (size_t)n, (size_t)m },
                            .buffer = { at(da), at(db), at(dc) },
                            .integer = { m, n, k, ta, tb, lda, ldb, ldc },
                            .real = { alpha, beta } });
    download(da, NULL), download(db, NULL), download(dc, c);
    check(kernel, c, want, nc, 1 + sqrt((double)k));
    free(a), free(b), free(c), free(between), free(want);
}

/* Matrices along four axes: of all, of A and C (B is repeated), of A and B (summed over), and of B and C. */
static void gemm_of_many(const char *kernel, int m, int n, int k, bool ta, bool tb, float beta)
{
    enum { ALL = 2, A_AND_C = 3, SUMMED = 2, B_AND_C = 2 };
    const size_t na = (size_t)(m * k), nb = (size_t)(k * n), nc = (size_t)(m * n);
    const size_t all_a = ALL * A_AND_C * SUMMED * na, all_b = ALL * SUMMED * B_AND_C * nb;
    const size_t all_c = ALL * A_AND_C * B_AND_C * nc;
    float *a = numbers(all_a), *b = numbers(all_b), *c = output(all_c, beta);
    double *want = malloc(all_c * sizeof *want);
    for (size_t e = 0; e < all_c; e++) {
        const int j = (int)(e % (size_t)n), i = (int)(e / (size_t)n % (size_t)m), w = (int)(e / nc % B_AND_C);
        const int u = (int)(e / nc / B_AND_C % A_AND_C), all = (int)(e / nc / B_AND_C / A_AND_C);
        double sum = 0;
        for (int v = 0; v < SUMMED; v++)
            for (int p = 0; p < k; p++) {
                const float *at_a = a + (size_t)((all * A_AND_C + u) * SUMMED + v) * na;
                const float *at_b = b + (size_t)((all * SUMMED + v) * B_AND_C + w) * nb;
                sum += (double)at_a[ta ? p * m + i : i * k + p] * (double)at_b[tb ? j * k + p : p * n + j];
            }
        want[e] = 0.5 * sum + kept(beta, c[e]);
    }
    array da = upload(a, all_a), db = upload(b, all_b), dc = upload(c, all_c);
    const size_t rows = ((size_t)m + 63) / 64 * 64;
    launch_ok((dml_launch){ .kernel = kernel,
                            .size = { (size_t)n, ALL * A_AND_C * B_AND_C * rows },
                            .buffer = { at(da), at(db), at(dc) },
                            .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n, ALL, A_AND_C, SUMMED,
                                         B_AND_C, 7 | 5 << 3 | 3 << 6 | 6 << 9 },
                            .real = { 0.5f, beta } });
    download(da, NULL), download(db, NULL), download(dc, c);
    check(kernel, c, want, all_c, 1 + sqrt((double)k * SUMMED));
    free(a), free(b), free(c), free(want);
}

static void gemm_cases(const char *kernel)
{
    if (!device_has(kernel)) return;
    gemm_of_many(kernel, 3, 2, 5, false, false, 0);
    gemm_of_many(kernel, 66, 3, 17, true, false, 1);
    gemm_of_many(kernel, 2, 65, 3, false, true, 0.5f);
    if (!quick) gemm_of_many(kernel, 65, 1, 1, true, true, 1);
    static const int shapes[][3] = {
        { 1, 1, 1 }, { 65, 70, 67 }, { 3, 130, 16 }, { 64, 64, 0 }, { 33, 5, 47 }
    };
    for (int s = quick; s < upto(5); s++)
        for (int t = 0; t < 4; t++)
            gemm_case(kernel, shapes[s][0], shapes[s][1], shapes[s][2], t & 1, t & 2, t == 1 ? -0.5f : 1.0f,
                      betas[(s + t) % BETAS]);
}

static void test_gemm_tiles(void)
{
    gemm_cases("gemm_tiles");
    gemm_case("gemm", 5, 4, 3, false, false, 1, 0);
}

static void test_gemm_solo(void)
{
    gemm_cases("gemm_solo");
}

#endif
