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

/* A bias and the relu ride along; and in shares of k, each of which has a C of its own. */
static void gemm_rides_case(const char *kernel, int m, int n, int k, bool ta, bool tb, int shares)
{
    const size_t na = (size_t)(m * k), nb = (size_t)(k * n), nc = (size_t)(m * n);
    const bool rides = shares == 0;
    const size_t all = rides ? nc : (size_t)shares * nc;
    const float beta = shares == 1 ? 0.5f : 0.0f;
    float *a = numbers(na), *b = numbers(nb), *bias = numbers((size_t)n), *c = output(all, beta);
    double *want = malloc(nc * sizeof *want);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = rides ? (double)bias[j] : 0;
            for (int p = 0; p < k; p++)
                sum += (double)a[ta ? p * m + i : i * k + p] * (double)b[tb ? j * k + p : p * n + j];
            sum += kept(beta, c[i * n + j]);
            want[i * n + j] = rides && sum <= 0 ? 0 : sum;
        }
    array da = upload(a, na), db = upload(b, nb), dbias = upload(bias, (size_t)n), dc = upload(c, all);
    dml_launch launch = { .kernel = kernel,
                          .size = { (size_t)n, (size_t)m },
                          .buffer = { at(da), at(db), at(dc) },
                          .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n },
                          .real = { 1, beta, rides } };
    if (rides) launch.buffer[3] = at(dbias);
    if (!rides) launch.integer[13] = shares, launch.size[1] = (size_t)(shares * ((m + 127) / 128 * 128));
    launch_ok(launch);
    download(da, NULL), download(db, NULL), download(dbias, NULL), download(dc, c);
    for (size_t i = nc; i < all; i++) c[i % nc] += c[i];
    check(kernel, c, want, nc, 1 + sqrt((double)k));
    free(a), free(b), free(bias), free(c), free(want);
}

/* Matrices along four axes: of all, of A and C (B is repeated), of A and B (summed over), and of B and C. */
static void gemm_of_many(const char *kernel, int m, int n, int k, bool ta, bool tb, float beta)
{
    const size_t all_of = quick ? 1 : 2, a_and_c = quick ? 2 : 3, summed = 2, b_and_c = 2;
    const size_t na = (size_t)(m * k), nb = (size_t)(k * n), nc = (size_t)(m * n);
    const size_t all_a = all_of * a_and_c * summed * na, all_b = all_of * summed * b_and_c * nb;
    const size_t all_c = all_of * a_and_c * b_and_c * nc;
    float *a = numbers(all_a), *b = numbers(all_b), *c = output(all_c, beta);
    double *want = malloc(all_c * sizeof *want);
    for (size_t e = 0; e < all_c; e++) {
        const int j = (int)(e % (size_t)n), i = (int)(e / (size_t)n % (size_t)m);
        const size_t w = e / nc % b_and_c, u = e / nc / b_and_c % a_and_c, all = e / nc / b_and_c / a_and_c;
        double sum = 0;
        for (size_t v = 0; v < summed; v++)
            for (int p = 0; p < k; p++) {
                const float *at_a = a + ((all * a_and_c + u) * summed + v) * na;
                const float *at_b = b + ((all * summed + v) * b_and_c + w) * nb;
                sum += (double)at_a[ta ? p * m + i : i * k + p] * (double)at_b[tb ? j * k + p : p * n + j];
            }
        want[e] = 0.5 * sum + kept(beta, c[e]);
    }
    array da = upload(a, all_a), db = upload(b, all_b), dc = upload(c, all_c);
    const size_t rows = ((size_t)m + 63) / 64 * 64;
    launch_ok(
        (dml_launch){ .kernel = kernel,
                      .size = { (size_t)n, all_of * a_and_c * b_and_c * rows },
                      .buffer = { at(da), at(db), at(dc) },
                      .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n, (int)all_of, (int)a_and_c,
                                   (int)summed, (int)b_and_c, 7 | 5 << 3 | 3 << 6 | 6 << 9 },
                      .real = { 0.5f, beta } });
    download(da, NULL), download(db, NULL), download(dc, c);
    check(kernel, c, want, all_c, 1 + sqrt((double)k * (double)summed));
    free(a), free(b), free(c), free(want);
}

/* Where it is slow: two tiles along each axis, of which the second is cut, and two pieces of k, of which the
 * second is. */
static void gemm_few_cases(const char *kernel)
{
    int rows = 1, columns = 1; /* of a tile; of the large ones, a part has to do */
    sscanf(strrchr(kernel, '_'), "_%dx%d", &rows, &columns);
    if (is_large(kernel)) rows = columns = 64;
    if (!is_large(kernel)) gemm_of_many(kernel, 3, 2, 5, false, false, 0);
    gemm_rides_case(kernel, 1, columns + 3, 5, false, false, 0);
    gemm_rides_case(kernel, rows + 2, columns + 2, 20, true, false, 1);
    gemm_case(kernel, rows + 1, 3, 17, false, false, 1.0f, betas[1]);
    gemm_case(kernel, 5, columns + 3, 17, true, true, 1.0f, betas[2]);
}

static void gemm_cases(const char *kernel)
{
    if (quick || TEST_SLOW) {
        gemm_few_cases(kernel);
        return;
    }
    if (!is_large(kernel)) {
        gemm_of_many(kernel, 3, 2, 5, false, false, 0);
        gemm_of_many(kernel, 66, 3, 17, true, false, 1);
        gemm_of_many(kernel, 2, 65, 3, false, true, 0.5f);
        gemm_of_many(kernel, 65, 1, 1, true, true, 1);
    }
    for (int s = 0; s < 5; s++)
        gemm_rides_case(kernel, 1 + 65 * (s % 3), 67 - s, 5 + 70 * s, s & 1, s & 2, s);
    static const int shapes[][3] = { { 1, 1, 1 },   { 65, 67, 17 }, { 65, 70, 67 }, { 3, 130, 16 },
                                     { 64, 64, 0 }, { 33, 5, 47 },  { 129, 2, 20 } };
    for (int s = 0; s < 7; s++)
        for (int t = 0; t < 4; t++) /* each of A and B in both ways */
            gemm_case(kernel, shapes[s][0], shapes[s][1], shapes[s][2], t & 1, t & 2, t == 1 ? -0.5f : 1.0f,
                      betas[(s + t) % BETAS]);
}

TEST_FAMILY(gemm, gemm_cases)

#endif
