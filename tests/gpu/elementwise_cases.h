/* elementwise_cases.h: the kernels of elementwise.cl, formula.cl and dropout.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_ELEMENTWISE_CASES_H
#define DML_TESTS_GPU_ELEMENTWISE_CASES_H

#include "base/philox.h"

#include "../kernels/formula_exact.h"
#include "kernel_cases.h"

static void test_axpby(void)
{
    for (int s = quick; s < upto(SIZES); s++) {
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)sizes[s];
            const float beta = betas[b], alpha = 1.25f;
            float *x = numbers(n), *y = output(n, beta);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++) want[i] = (double)alpha * (double)x[i] + kept(beta, y[i]);
            array dx = upload(x, n), dy = upload(y, n);
            launch_ok((dml_launch){ .kernel = "axpby",
                                    .size = { n, 1 },
                                    .buffer = { at(dx), at(dy) },
                                    .integer = { (int)n },
                                    .real = { alpha, beta } });
            download(dx, NULL), download(dy, y);
            check("axpby", y, want, n, 1);
            free(x), free(y), free(want);
        }
    }
}

/* Numbers of the kind that a formula takes. */
static float *numbers_for(const formula_exact *f, size_t n)
{
    float *x = numbers(n);
    for (size_t i = 0; f->positive && i < n; i++) x[i] = fabsf(x[i]) + 0.125f;
    return x;
}

/* Where y is 1, 1 - y^2 is 0: no gradient gets through. */
static void test_saturated_tanh(void)
{
    float x[6] = { 9.5f, -9.5f, 500, -500, INFINITY, -INFINITY };
    array dx = upload(x, 6);
    launch_ok((dml_launch){ .kernel = "formula_forward",
                            .size = { 6, 1 },
                            .buffer = { at(dx), { NULL, 0 }, { NULL, 0 }, at(dx) },
                            .integer = { 6, DML__FORMULA_tanh } });
    download(dx, x);
    for (int i = 0; i < 6; i++)
        CHECK_MESSAGE(x[i] == (i % 2 ? -1.0f : 1.0f), "tanh %d is %.9g", i, (double)x[i]);
}

/* Every formula, its operands in as many buffers. */
static void test_formula_forward(void)
{
    for (int k = 0; k < FORMULAS; k += quick ? 5 : 1) {
        const formula_exact *f = &formulas[k];
        const size_t n = (size_t)sizes[1 + k % (SIZES - 1)];
        float *a = numbers_for(f, n), *b = numbers_for(f, n), *c = numbers_for(f, n), *y = output(n, 0);
        double *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i += 3) a[i] = k >= DML__FORMULA_where ? (i % 2 ? 0 : b[i]) : a[i];
        for (size_t i = 0; i < n; i++)
            want[i] = f->of((double)a[i], (double)b[i], (double)c[i], (double)f->p, (double)f->q);
        array da = upload(a, n), db = upload(b, n), dc = upload(c, n), dy = upload(y, n);
        launch_ok((dml_launch){ .kernel = "formula_forward",
                                .size = { n, 1 },
                                .buffer = { at(da), at(db), at(dc), at(dy) },
                                .integer = { (int)n, k },
                                .real = { f->p, f->q } });
        download(da, NULL), download(db, NULL), download(dc, NULL), download(dy, y);
        check(f->name, y, want, n, 0.5);
        free(a), free(b), free(c), free(y), free(want);
    }
    static const int keeps_a_nan[] = { DML__FORMULA_relu, DML__FORMULA_tanh, DML__FORMULA_sigmoid,
                                       DML__FORMULA_maximum };
    for (int k = 0; k < 4; k++) {
        float x = NAN, one = 1;
        array dx = upload(&x, 1), d1 = upload(&one, 1);
        launch_ok((dml_launch){ .kernel = "formula_forward",
                                .size = { 1, 1 },
                                .buffer = { at(dx), at(d1), { NULL, 0 }, at(dx) },
                                .integer = { 1, keeps_a_nan[k] } });
        download(dx, &x), download(d1, NULL);
        CHECK_MESSAGE(isnan(x), "%s made %g of a NaN", formulas[keeps_a_nan[k]].name, (double)x);
    }
    test_saturated_tanh();
}

/* Both gradients, one of them over dy, and with each beta. */
static void test_formula_backward(void)
{
    for (int k = 0; k < DML__FORMULA_equal; k += quick ? 5 : 1) {
        const formula_exact *f = &formulas[k];
        const size_t n = (size_t)sizes[1 + k % (SIZES - 1)];
        const int pair = k >= DML__FORMULA_add, first = k == DML__FORMULA_where;
        const float beta = betas[k % BETAS];
        float *a = numbers_for(f, n), *b = numbers_for(f, n), *y = numbers(n), *dy = numbers(n);
        float *g1 = output(n, beta);
        double *want = malloc(2 * n * sizeof *want);
        for (size_t i = 0; i < n; i++) {
            const double x[3] = { a[i], b[i], 0.5 };
            y[i] = (float)f->of(x[0], x[1], x[2], (double)f->p, (double)f->q);
            want[i] = formula_slope(f, first, x[0], x[1], x[2], (double)dy[i]);
            if (pair) want[n + i] = formula_slope(f, first + 1, x[0], x[1], x[2], (double)dy[i]);
            want[n + i] = pair ? want[n + i] + kept(beta, g1[i]) : 0;
        }
        array da = upload(a, n), db = upload(b, n), dv = upload(y, n), dd = upload(dy, n), d1 = upload(g1, n);
        launch_ok((dml_launch){
            .kernel = "formula_backward",
            .size = { n, 1 },
            .buffer = { at(da), at(db), at(dv), at(dd), at(dd), pair ? at(d1) : (dml_ref){ NULL, 0 } },
            .integer = { (int)n, k },
            .real = { f->p, f->q, 0, beta } });
        download(da, NULL), download(db, NULL), download(dv, NULL), download(dd, dy), download(d1, g1);
        check(f->name, dy, want, n, 2);
        if (pair) check(f->name, g1, want + n, n, 2);
        free(a), free(b), free(y), free(dy), free(g1), free(want);
    }
}

static void test_broadcast(void)
{
    enum { A = 3, B = 5, C = 7, D = 2 };
    float *x = numbers(A * C), *y = output(A * B * C * D, 0);
    double want[A * B * C * D];
    for (int i = 0; i < A * B * C * D; i++) want[i] = x[i / (B * C * D) * C + i / D % C];
    array dx = upload(x, A * C), dy = upload(y, A * B * C * D);
    launch_ok((dml_launch){ .kernel = "broadcast",
                            .size = { A * B * C * D, 1 },
                            .buffer = { at(dx), at(dy) },
                            .integer = { A * B * C * D, 4, A, B, C, D, 0, 0, C, 0, 1, 0 } });
    download(dx, NULL), download(dy, y);
    check("broadcast", y, want, A * B * C * D, 0);
    free(x), free(y);
}

static void test_sum_few(void)
{
    static const int inners[] = { 300, 300, 100, 3, 1 };
    for (int b = quick; b < upto(5); b++) {
        enum { N = 300, FEW = 7 };
        const float beta = betas[b % BETAS];
        const int inner = inners[b];
        float *x = numbers(N * FEW), *y = output(N, beta);
        double want[N];
        for (int i = 0; i < N; i++) want[i] = kept(beta, y[i]);
        for (int i = 0; i < N * FEW; i++) want[i / (FEW * inner) * inner + i % inner] += (double)x[i];
        array ax = upload(x, N * FEW), ay = upload(y, N);
        launch_ok((dml_launch){ .kernel = "sum_few",
                                .size = { N, 1 },
                                .buffer = { at(ax), at(ay) },
                                .integer = { N, FEW, inner },
                                .real = { beta } });
        download(ax, NULL), download(ay, y);
        check("sum_few", y, want, N, FEW);
        free(x), free(y);
    }
}

static void test_bias_add(void)
{
    static const int shapes[][2] = { { 1, 1 }, { 7, 37 }, { 256, 3 } };
    for (int i = 4 * quick; i < (quick ? 8 : 12); i++) {
        const int *shape = shapes[i / 4], relu = i % 2, biased = i % 4 < 2;
        const size_t rows = (size_t)shape[0], columns = (size_t)shape[1], n = rows * columns;
        float *bias = numbers(columns), *y = numbers(n);
        double *want = malloc(n * sizeof *want);
        for (size_t j = 0; j < n; j++) {
            want[j] = (double)y[j] + (biased ? (double)bias[j % columns] : 0);
            if (relu && want[j] <= 0) want[j] = 0;
        }
        array a = upload(bias, columns), b = upload(y, n);
        launch_ok((dml_launch){ .kernel = "bias_add",
                                .size = { n, 1 },
                                .buffer = { biased ? at(a) : (dml_ref){ NULL, 0 }, at(b) },
                                .integer = { (int)rows, (int)columns, relu } });
        download(a, NULL), download(b, y);
        check("bias_add", y, want, n, 1);
        free(bias), free(y), free(want);
    }
}

static void test_dropout(void)
{
    const dml_random random = { 0x123456789abcdef0u, 0x80000007u, 0xfffffff1u };
    for (int s = quick; s < upto(SIZES); s++)
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)sizes[s];
            const uint32_t part = b == 1 ? 0x20000003u : 0, threshold = b == 2 ? 0xf0000000u : 0x40000000u;
            float *x = numbers(n), *y = output(n, betas[b]);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++)
                want[i] = (dml_random_bits(&random, part * ((uint64_t)1 << 34) + i) < threshold
                               ? 0
                               : 1.25 * (double)x[i]) +
                          kept(betas[b], y[i]);
            array ax = upload(x, n), ay = upload(y, n);
            launch_ok((dml_launch){ .kernel = "dropout",
                                    .size = { (n + 3) / 4, 1 },
                                    .buffer = { at(ax), at(ay) },
                                    .integer = { (int)n, (int)(uint32_t)random.seed,
                                                 (int)(uint32_t)(random.seed >> 32), (int)random.stream,
                                                 (int)random.step, (int)threshold, (int)part },
                                    .real = { 1.25f, betas[b] } });
            download(ax, NULL), download(ay, y);
            check("dropout", y, want, n, 1);
            free(x), free(y), free(want);
        }
}

#endif
