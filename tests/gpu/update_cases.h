/* update_cases.h: the kernels of update.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_UPDATE_CASES_H
#define DML_TESTS_GPU_UPDATE_CASES_H

#include "../train/update_reference.h"
#include "kernel_cases.h"

/* Two updates in a row, from a state that isn't zero. */
static void update_case(const dml_optimizer *optimizer, size_t n)
{
    const dml__optimizer_row *row = dml__optimizer_row_of(optimizer->kind);
    const int states = row->states(optimizer);
    float *w = numbers(n), *g = numbers(n), *state[2] = { numbers(n), numbers(n) };
    double *want_w = malloc(n * sizeof *want_w), *want[2];
    for (int s = 0; s < 2; s++) {
        want[s] = malloc(n * sizeof *want[s]);
        for (size_t i = 0; i < n; i++) want[s][i] = (double)(state[s][i] = fabsf(state[s][i]));
    }
    for (size_t i = 0; i < n; i++) want_w[i] = (double)w[i];
    array a = upload(w, n), b = upload(g, n), c = upload(state[0], n), d = upload(state[1], n);
    for (int t = 3; t < 5; t++) {
        dml_launch launch = { .kernel = row->kernel,
                              .size = { n, 1 },
                              .buffer = { at(a), at(b), states > 0 ? at(c) : (dml_ref){ NULL, 0 },
                                          states > 1 ? at(d) : (dml_ref){ NULL, 0 } },
                              .integer = { (int)n } };
        row->numbers(optimizer, t, launch.real);
        launch_ok(launch);
        reference_update(optimizer, t, n, want_w, want[0], want[1], g);
    }
    download(a, w), download(b, NULL), download(c, state[0]), download(d, state[1]);
    check(row->kernel, w, want_w, n, 1);
    for (int s = 0; s < states; s++) check(row->kernel, state[s], want[s], n, 1);
    free(w), free(g), free(want_w);
    for (int s = 0; s < 2; s++) free(state[s]), free(want[s]);
}

static void update(const char *kernel)
{
    for (int v = 0; v < UPDATE_VARIANTS; v++) {
        if (strcmp(dml__optimizer_row_of(update_variants[v].kind)->kernel, kernel) != 0) continue;
        for (int s = quick; s < upto(SIZES); s++) update_case(&update_variants[v], (size_t)sizes[s]);
    }
}

static void test_sgd_update(void)
{
    update("sgd_update");
}

static void test_adam_update(void)
{
    update("adam_update");
}

static void test_rmsprop_update(void)
{
    update("rmsprop_update");
}

static void test_adagrad_update(void)
{
    update("adagrad_update");
}

static void test_lamb_direction(void)
{
    const float by[] = { 0.5f, 1e-3f, 0.25f, 0.875f, 0.125f, 0.0625f };
    for (int s = quick; s < upto(SIZES); s++) {
        const size_t n = (size_t)sizes[s];
        float *x[4]; /* w, g, m, v */
        double *want[4];
        array d[4];
        dml_launch launch = { .kernel = "lamb_direction", .size = { n, 1 }, .integer = { (int)n } };
        for (int k = 0; k < 4; k++) x[k] = numbers(n), want[k] = malloc(n * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            const double g = (double)x[1][i];
            x[3][i] = fabsf(x[3][i]);
            want[0][i] = (double)x[0][i];
            want[2][i] = (double)x[2][i] + 0.25 * (g - (double)x[2][i]);
            want[3][i] = 0.875 * (double)x[3][i] + 0.125 * g * g;
            want[1][i] = 0.5 * want[2][i] / (sqrt(want[3][i]) + (double)by[1]) + 0.0625 * want[0][i];
        }
        for (int k = 0; k < 4; k++) d[k] = upload(x[k], n), launch.buffer[k] = at(d[k]);
        memcpy(launch.real, by, sizeof by);
        launch_ok(launch);
        for (int k = 0; k < 4; k++) {
            download(d[k], x[k]);
            check("lamb_direction", x[k], want[k], n, 1);
            free(x[k]), free(want[k]);
        }
    }
}

static void trust_case(size_t n, int groups, int zero)
{
    const float trust = 0.5f, decay = 0.25f, epsilon = 0.125f;
    float *w = numbers(n), *g = numbers(n), *sums[2] = { numbers(256), numbers(256) };
    double *want = malloc(n * sizeof *want), norm[2] = { 0, 0 }, factor = 1;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < groups; i++) norm[k] += (double)(sums[k][i] = k == zero ? 0 : fabsf(sums[k][i]));
        norm[k] = sqrt(norm[k]);
    }
    if (norm[0] > 0 && norm[1] > 0)
        factor = (double)trust * norm[0] / (norm[1] + (double)decay * norm[0] + (double)epsilon);
    for (size_t i = 0; i < n; i++) want[i] = factor * ((double)g[i] + (double)decay * (double)w[i]);
    array a = upload(w, n), b = upload(g, n), c = upload(sums[0], 256), d = upload(sums[1], 256);
    launch_ok((dml_launch){ .kernel = "trust",
                            .size = { n, 1 },
                            .buffer = { at(a), at(b), at(c), at(d) },
                            .integer = { (int)n, groups },
                            .real = { trust, decay, epsilon } });
    download(a, NULL), download(b, g), download(c, NULL), download(d, NULL);
    check("trust", g, want, n, 1);
    free(w), free(g), free(sums[0]), free(sums[1]), free(want);
}

static void test_trust(void)
{
    trust_case(300, 256, -1);
    if (quick) return;
    trust_case(5, 1, -1);
    trust_case(257, 0, -1); /* no norms: a factor of 1 */
    trust_case(10, 7, 0);
    trust_case(10, 7, 1);
}

static void test_sum_squares(void)
{
    static const int lengths[] = { 4000, 0, 1, 300, 3 * 2048, 20001 };
    for (int s = quick; s < upto(6); s++) {
        const size_t n = (size_t)lengths[s], groups = n / 2048 + 1;
        float *x = numbers(n), *y = output(groups, 0);
        double want[16] = { 0 };
        for (size_t i = 0; i < n; i++) want[i / 256 % groups] += (double)x[i] * (double)x[i];
        array a = upload(x, n), b = upload(y, groups);
        launch_ok((dml_launch){ .kernel = "sum_squares",
                                .size = { groups, 1 },
                                .buffer = { at(a), at(b) },
                                .integer = { (int)n, (int)groups } });
        download(a, NULL), download(b, y);
        check("sum_squares", y, want, groups, 1);
        free(x), free(y);
    }
}

static void test_clip_norm(void)
{
    static const float most[] = { 2, 1e6f, 0.5f };
    for (int s = quick; s < upto(SIZES); s++) {
        for (int m = 0; m < upto(3); m++) {
            const size_t n = (size_t)sizes[s];
            const int groups = s == 1 ? 256 : 3 * s + 1;
            float *x = numbers(n), *sums = numbers(256);
            double *want = malloc(n * sizeof *want), norm = 0;
            for (int i = 0; i < groups; i++) norm += (double)(sums[i] = fabsf(sums[i]));
            const double factor = (double)most[m] / (sqrt(norm) + 1e-6);
            for (size_t i = 0; i < n; i++) want[i] = (double)x[i] * fmin(1, factor);
            array a = upload(x, n), b = upload(sums, 256);
            launch_ok((dml_launch){ .kernel = "clip_norm",
                                    .size = { n, 1 },
                                    .buffer = { at(a), at(b) },
                                    .integer = { (int)n, groups },
                                    .real = { most[m] } });
            download(a, x), download(b, NULL);
            check("clip_norm", x, want, n, 1);
            free(x), free(sums), free(want);
        }
    }
}

static void test_clip_values(void)
{
    for (int s = quick; s < upto(SIZES); s++) {
        const size_t n = (size_t)sizes[s];
        float *x = numbers(n);
        double *want = malloc(n * sizeof *want);
        if (n > 3) x[0] = INFINITY, x[1] = -INFINITY, x[2] = 0.25f;
        for (size_t i = 0; i < n; i++) want[i] = fmax(-0.25, fmin(0.25, (double)x[i]));
        const bool spoiled = n > 5;
        if (spoiled) x[4] = NAN;
        array a = upload(x, n);
        launch_ok((dml_launch){ .kernel = "clip_values",
                                .size = { n, 1 },
                                .buffer = { at(a) },
                                .integer = { (int)n },
                                .real = { 0.25f } });
        download(a, x);
        if (spoiled) CHECK(isnan(x[4]));
        if (spoiled) x[4] = 0, want[4] = 0;
        check("clip_values", x, want, n, 1);
        free(x), free(want);
    }
}

#endif
