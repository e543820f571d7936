/* sample_norm_cases.h: the kernels of sample_norm.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_SAMPLE_NORM_CASES_H
#define DML_TESTS_GPU_SAMPLE_NORM_CASES_H

#include "kernel_cases.h"

/* samples, pixels, groups, width, rows of a part */
static const int sample_shapes[][5] = { { 1, 1, 1, 1, 64 },   { 2, 7, 3, 5, 4 },   { 3, 1, 1, 300, 2 },
                                        { 2, 150, 2, 2, 64 }, { 11, 2, 1, 48, 5 }, { 5, 1, 1, 1025, 3 },
                                        { 3, 1, 1, 1024, 3 }, { 2, 60, 3, 70, 8 }, { 130, 1, 1, 768, 129 } };
enum { SAMPLE_SHAPES = sizeof sample_shapes / sizeof sample_shapes[0] };

typedef struct sample_norm {
    int samples, pixels, groups, width, part, rows, channels, parts;
    size_t n, stats;
    bool by_square, affine;
    float *x, *dy, *weight, *bias, *statistics;
    double *mean, *inverse; /* (samples, groups) */
} sample_norm;

static const float sample_epsilon = 0.01f;

static size_t sample_group(const sample_norm *s, size_t i)
{
    const size_t row = i / (size_t)s->channels, channel = i % (size_t)s->channels;
    return row / (size_t)s->pixels * (size_t)s->groups + channel / (size_t)s->width;
}

static sample_norm sample_create(const int *shape, bool by_square, bool affine)
{
    sample_norm s;
    s.samples = shape[0], s.pixels = shape[1], s.groups = shape[2], s.width = shape[3], s.part = shape[4];
    s.rows = s.samples * s.pixels, s.channels = s.groups * s.width;
    s.parts = (s.rows + s.part - 1) / s.part;
    s.n = (size_t)(s.rows * s.channels), s.stats = (size_t)(s.samples * s.groups);
    s.by_square = by_square, s.affine = affine;
    s.x = numbers(s.n), s.dy = numbers(s.n), s.weight = numbers((size_t)s.channels);
    s.bias = numbers((size_t)s.channels), s.statistics = output(2 * s.stats, 0);
    s.mean = calloc(s.stats, sizeof *s.mean), s.inverse = calloc(s.stats, sizeof *s.inverse);
    for (size_t i = 0; i < s.n; i++) s.x[i] += by_square ? 0 : 30;
    for (size_t i = 0; i < s.n && !by_square; i++)
        s.mean[sample_group(&s, i)] += (double)s.x[i] / (s.pixels * s.width);
    for (size_t i = 0; i < s.n; i++)
        s.inverse[sample_group(&s, i)] +=
            pow((double)s.x[i] - s.mean[sample_group(&s, i)], 2) / (s.pixels * s.width);
    for (size_t i = 0; i < s.stats; i++) {
        s.inverse[i] = 1 / sqrt(s.inverse[i] + (double)sample_epsilon);
        s.statistics[2 * i] = (float)s.mean[i], s.statistics[2 * i + 1] = (float)s.inverse[i];
    }
    return s;
}

static void sample_destroy(sample_norm *s)
{
    free(s->x), free(s->dy), free(s->weight), free(s->bias), free(s->statistics), free(s->mean);
    free(s->inverse);
}

static dml_launch sample_launch(const sample_norm *s, const char *kernel)
{
    const bool is_long = s->pixels * s->width > 1024;
    return (dml_launch){ .kernel = kernel,
                         .size = { s->stats, is_long ? 4 : 1 },
                         .integer = { s->rows, s->channels, s->pixels, s->width, s->by_square, s->part,
                                      s->parts, is_long, s->channels / s->width, (int)s->stats } };
}

static void sample_forward_case(const char *kernel, sample_norm s)
{
    float *y = output(s.n, 0), *got = output(2 * s.stats, 0);
    double *want = malloc(s.n * sizeof *want), *statistics = malloc(2 * s.stats * sizeof *statistics);
    for (size_t i = 0; i < s.n; i++) {
        const size_t g = sample_group(&s, i), c = i % (size_t)s.channels;
        want[i] = ((double)s.x[i] - s.mean[g]) * s.inverse[g] * (s.affine ? (double)s.weight[c] : 1) +
                  (s.affine ? (double)s.bias[c] : 0);
        statistics[2 * g] = s.mean[g], statistics[2 * g + 1] = s.inverse[g];
    }
    array ax = upload(s.x, s.n), aw = upload(s.weight, (size_t)s.channels), ay = upload(y, s.n);
    array ab = upload(s.bias, (size_t)s.channels), as = upload(got, 2 * s.stats);
    dml_launch launch = sample_launch(&s, kernel);
    launch.buffer[0] = at(ax), launch.buffer[3] = at(as), launch.buffer[4] = at(ay);
    if (s.affine) launch.buffer[1] = at(aw), launch.buffer[2] = at(ab);
    launch.real[0] = sample_epsilon;
    launch_ok(launch);
    download(ax, NULL), download(aw, NULL), download(ab, NULL), download(as, got), download(ay, y);
    check(kernel, y, want, s.n, 30);
    check(kernel, got, statistics, 2 * s.stats, 30);
    free(y), free(got), free(want), free(statistics);
    sample_destroy(&s);
}

static void sample_forward_cases(const char *kernel)
{
    for (int s = quick; s < upto(SAMPLE_SHAPES); s++)
        for (int how = 0; how < 3; how++)
            sample_forward_case(kernel, sample_create(sample_shapes[s], how == 1, how != 2));
}

static void sample_backward_case(const char *kernel, sample_norm s, float beta)
{
    const size_t nc = (size_t)s.channels;
    float *dx = output(s.n, beta);
    double *want = malloc(s.n * sizeof *want), *sum = calloc(2 * s.stats, sizeof *sum);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < s.n; i++) {
            const size_t g = sample_group(&s, i);
            const double hat = ((double)s.x[i] - s.mean[g]) * s.inverse[g], count = s.pixels * s.width;
            const double d = (double)s.dy[i] * (s.affine ? (double)s.weight[i % nc] : 1);
            if (pass == 0) {
                sum[2 * g] += s.by_square ? 0 : d / count, sum[2 * g + 1] += d * hat / count;
                continue;
            }
            want[i] = s.inverse[g] * (d - sum[2 * g] - hat * sum[2 * g + 1]) + kept(beta, dx[i]);
        }
    array ax = upload(s.x, s.n), ay = upload(s.dy, s.n), aw = upload(s.weight, nc);
    array as = upload(s.statistics, 2 * s.stats), ad = upload(dx, s.n);
    dml_launch launch = sample_launch(&s, kernel);
    launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[3] = at(as);
    launch.buffer[4] = at(ad);
    if (s.affine) launch.buffer[2] = at(aw);
    launch.real[0] = beta;
    launch_ok(launch);
    download(ax, NULL), download(ay, NULL), download(aw, NULL), download(as, NULL), download(ad, dx);
    check(kernel, dx, want, s.n, 100);
    free(dx), free(want), free(sum);
    sample_destroy(&s);
}

static void sample_backward_cases(const char *kernel)
{
    for (int s = quick; s < upto(SAMPLE_SHAPES); s++)
        for (int how = 0; how < 3; how++)
            sample_backward_case(kernel, sample_create(sample_shapes[s], how == 1, how != 2),
                                 betas[how % BETAS]);
}

TEST_PAIR(sample_norm_forward, sample_forward_cases)
TEST_PAIR(sample_norm_backward, sample_backward_cases)

static void test_sample_norm_products(void)
{
    for (int k = quick; k < upto(SAMPLE_SHAPES); k++) {
        sample_norm s = sample_create(sample_shapes[k], false, true);
        const size_t nc = (size_t)s.channels, np = 2 * (size_t)s.parts * nc;
        float *parts = output(np, 0);
        double *want = calloc(np, sizeof *want);
        for (size_t i = 0; i < s.n; i++) {
            const size_t g = sample_group(&s, i), part = i / nc / (size_t)s.part;
            want[part * nc + i % nc] += (double)s.dy[i];
            want[((size_t)s.parts + part) * nc + i % nc] +=
                (double)s.dy[i] * ((double)s.x[i] - s.mean[g]) * s.inverse[g];
        }
        array ax = upload(s.x, s.n), ay = upload(s.dy, s.n), as = upload(s.statistics, 2 * s.stats);
        array ap = upload(parts, np);
        dml_launch launch = sample_launch(&s, "sample_norm_products");
        launch.size[0] = nc, launch.size[1] = (size_t)s.parts;
        launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(as);
        launch.buffer[3] = at(ap);
        launch_ok(launch);
        download(ax, NULL), download(ay, NULL), download(as, NULL), download(ap, parts);
        check("sample_norm_products", parts, want, np, 100);
        free(parts), free(want);
        sample_destroy(&s);
    }
}

#endif
