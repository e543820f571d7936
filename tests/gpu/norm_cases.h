/* norm_cases.h: the kernels of norm.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_NORM_CASES_H
#define DML_TESTS_GPU_NORM_CASES_H

#include "kernel_cases.h"

/* rows, channels, rows of a part */
static const int norm_shapes[][3] = { { 1, 1, 64 },    { 130, 37, 64 },   { 200, 16, 7 }, { 5, 100, 5 },
                                      { 300, 3, 100 }, { 1100, 20, 600 }, { 700, 5, 20 } };
enum { NORM_SHAPES = sizeof norm_shapes / sizeof norm_shapes[0] };

static dml_launch norm_launch(const char *kernel, const int *shape, size_t x, size_t y)
{
    return (dml_launch){ .kernel = kernel,
                         .size = { x, y },
                         .integer = { shape[0], shape[1], shape[2], (shape[0] + shape[2] - 1) / shape[2] } };
}

/* Of rows [from, to): the mean and the squares of the distances from it, or the sums of the two products. */
static void norm_part(const float *x, const float *dy, const float *mean, int channels, int from, int to,
                      int c, double sums[2])
{
    double middle = 0;
    sums[0] = sums[1] = 0;
    for (int r = from; r < to; r++) middle += (double)x[r * channels + c] / (to - from);
    if (!dy) sums[0] = middle;
    for (int r = from; r < to; r++) {
        const double distance = (double)x[r * channels + c] - (dy ? (double)mean[c] : middle);
        if (dy) sums[0] += (double)dy[r * channels + c];
        sums[1] += dy ? (double)dy[r * channels + c] * distance : distance * distance;
    }
}

/* batch_norm_moments and batch_norm_products. */
static void norm_parts_case(const int *shape, bool backward)
{
    const int rows = shape[0], channels = shape[1], count = (rows + shape[2] - 1) / shape[2];
    const size_t n = (size_t)(rows * channels), np = (size_t)(2 * count * channels);
    float *x = numbers(n), *dy = numbers(n), *mean = numbers((size_t)channels), *parts = output(np, 0);
    double *want = malloc(np * sizeof *want);
    for (size_t i = 0; i < n; i++) x[i] += 100; /* whose squares would eat up the distances */
    for (int c = 0; c < channels; c++) mean[c] += 100;
    for (int p = 0; p < count; p++)
        for (int c = 0; c < channels; c++) {
            const int from = p * shape[2], to = from + shape[2] < rows ? from + shape[2] : rows;
            double sums[2];
            norm_part(x, backward ? dy : NULL, mean, channels, from, to, c, sums);
            want[2 * p * channels + c] = sums[0], want[(2 * p + 1) * channels + c] = sums[1];
        }
    array ax = upload(x, n), ay = upload(dy, n), am = upload(mean, (size_t)channels), ap = upload(parts, np);
    dml_launch launch = norm_launch(backward ? "batch_norm_products" : "batch_norm_moments", shape,
                                    (size_t)channels, (size_t)count);
    launch.buffer[0] = at(ax);
    launch.buffer[1] = backward ? at(ay) : at(ap);
    if (backward) launch.buffer[2] = at(am), launch.buffer[3] = at(ap);
    launch_ok(launch);
    download(ax, NULL), download(ay, NULL), download(am, NULL), download(ap, parts);
    check(launch.kernel, parts, want, np, 10);
    free(x), free(dy), free(mean), free(parts), free(want);
}

static void test_batch_norm_moments(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_parts_case(norm_shapes[s], false);
}

static void test_batch_norm_products(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_parts_case(norm_shapes[s], true);
}

/* From the exact sums of the parts: statistics and running ones, or gradients and what dx is made of. */
static void norm_channels_case(const int *shape, bool backward, bool by_batch)
{
    const int rows = shape[0], channels = shape[1], count = (rows + shape[2] - 1) / shape[2];
    const size_t n = (size_t)(rows * channels), np = (size_t)(2 * count * channels), nc = (size_t)channels;
    const float epsilon = 0.01f, mean_share = 0.25f, variance_share = 0.125f, unbiased = 1.5f;
    float *x = numbers(n), *dy = numbers(n), *scale = numbers(nc), *mean = numbers(nc),
          *variance = numbers(nc);
    float *parts = numbers(np), *running = numbers(2 * nc), *out = output(6 * nc, 0);
    double *want = malloc(6 * nc * sizeof *want);
    for (int c = 0; c < channels; c++) {
        double all[2];
        variance[c] = fabsf(variance[c]) + 0.1f;
        norm_part(x, backward ? dy : NULL, mean, channels, 0, rows, c, all);
        for (int p = 0; p < count; p++) {
            const int from = p * shape[2], to = from + shape[2] < rows ? from + shape[2] : rows;
            double sums[2];
            norm_part(x, backward ? dy : NULL, mean, channels, from, to, c, sums);
            parts[2 * p * channels + c] = (float)sums[0], parts[(2 * p + 1) * channels + c] = (float)sums[1];
        }
        if (backward) {
            const double inverse = 1 / sqrt((double)variance[c] + (double)epsilon);
            const double factor = (double)scale[c] * inverse;
            const double rest[] = { all[1] * inverse,
                                    all[0],
                                    (double)mean[c],
                                    factor,
                                    by_batch ? -factor * inverse * inverse * all[1] / rows : 0,
                                    by_batch ? -factor * all[0] / rows : 0 };
            for (int i = 0; i < 6; i++) want[i * channels + c] = rest[i];
        } else {
            const double v = all[1] / rows;
            want[c] = all[0], want[channels + c] = v;
            want[2 * channels + c] =
                (1 - (double)mean_share) * (double)running[c] + (double)mean_share * all[0];
            want[3 * channels + c] = (1 - (double)variance_share) * (double)running[channels + c] +
                                     (double)variance_share * (double)unbiased * v;
        }
    }
    array ap = upload(parts, np), as = upload(scale, nc), am = upload(mean, nc), av = upload(variance, nc);
    array ar = upload(running, 2 * nc), ao = upload(out, 6 * nc);
    dml_launch launch =
        norm_launch(backward ? "batch_norm_gradients" : "batch_norm_statistics", shape, nc, 1);
    launch.buffer[0] = at(ap);
    if (backward) {
        launch.buffer[1] = at(as), launch.buffer[2] = at(am), launch.buffer[3] = at(av);
        launch.buffer[4] = at(ao);
        launch.integer[4] = by_batch;
        launch.real[0] = epsilon;
    } else {
        launch.buffer[1] = at(am), launch.buffer[2] = at(av), launch.buffer[3] = launch.buffer[4] = at(ar);
        launch.buffer[4].offset += nc * 4;
        launch.real[0] = mean_share, launch.real[1] = variance_share, launch.real[2] = unbiased;
    }
    launch_ok(launch);
    download(ap, NULL), download(as, NULL), download(am, mean), download(av, variance);
    download(ar, running), download(ao, out);
    if (backward) {
        check("batch_norm_gradients", out, want, 6 * nc, 10);
    } else {
        check("batch_norm_statistics's mean", mean, want, nc, 1);
        check("batch_norm_statistics's variance", variance, want + nc, nc, 1);
        check("batch_norm_statistics's running ones", running, want + 2 * nc, 2 * nc, 1);
    }
    free(x), free(dy), free(scale), free(mean), free(variance), free(parts), free(running), free(out),
        free(want);
}

static void test_batch_norm_statistics(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_channels_case(norm_shapes[s], false, true);
}

static void test_batch_norm_gradients(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++)
        for (int by_batch = 0; by_batch < 2; by_batch++) norm_channels_case(norm_shapes[s], true, by_batch);
}

static void norm_forward_case(const int *shape)
{
    const size_t n = (size_t)(shape[0] * shape[1]), nc = (size_t)shape[1];
    const float epsilon = 0.01f;
    float *x = numbers(n), *y = output(n, 0), *channel = numbers(4 * nc); /* scale, shift, mean, variance */
    double *want = malloc(n * sizeof *want);
    for (size_t c = 0; c < nc; c++) channel[3 * nc + c] = fabsf(channel[3 * nc + c]);
    for (size_t i = 0; i < n; i++) {
        const float *c = channel + i % nc;
        want[i] =
            ((double)x[i] - (double)c[2 * nc]) / sqrt((double)c[3 * nc] + (double)epsilon) * (double)c[0] +
            (double)c[nc];
    }
    array ax = upload(x, n), ay = upload(y, n), ac = upload(channel, 4 * nc);
    dml_launch launch = norm_launch("batch_norm_forward", shape, n, 1);
    launch.buffer[0] = at(ax);
    for (int i = 0; i < 4; i++)
        launch.buffer[1 + i] = (dml_ref){ ac.buffer, at(ac).offset + (size_t)i * nc * 4 };
    launch.buffer[5] = at(ay);
    launch.real[0] = epsilon;
    launch_ok(launch);
    download(ax, NULL), download(ac, NULL), download(ay, y);
    check("batch_norm_forward", y, want, n, 4);
    free(x), free(y), free(channel), free(want);
}

static void test_batch_norm_forward(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_forward_case(norm_shapes[s]);
}

static void test_batch_norm_backward(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)(norm_shapes[s][0] * norm_shapes[s][1]), nc = (size_t)norm_shapes[s][1];
            float *x = numbers(n), *dy = numbers(n), *dx = output(n, betas[b]), *by = numbers(4 * nc);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++) {
                const float *c = by + i % nc;
                want[i] = (double)c[nc] * (double)dy[i] + (double)c[2 * nc] * ((double)x[i] - (double)c[0]) +
                          (double)c[3 * nc] + kept(betas[b], dx[i]);
            }
            array ax = upload(x, n), ay = upload(dy, n), ab = upload(by, 4 * nc), ad = upload(dx, n);
            dml_launch launch = norm_launch("batch_norm_backward", norm_shapes[s], n, 1);
            launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(ab);
            launch.buffer[3] = at(ad);
            launch.real[0] = betas[b];
            launch_ok(launch);
            download(ax, NULL), download(ay, NULL), download(ab, NULL), download(ad, dx);
            check("batch_norm_backward", dx, want, n, 2);
            free(x), free(dy), free(dx), free(by), free(want);
        }
}

#endif
