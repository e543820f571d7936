/* pool2d_cases.h: the kernels of pool2d.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_POOL2D_CASES_H
#define DML_TESTS_GPU_POOL2D_CASES_H

#include "conv2d_cases.h"
#include "kernel_cases.h"

static const shape pool_shapes[] = {
    { 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0 },
    { 2, 7, 5, 3, 0, 2, 2, 2, 2, 0, 0, 0, 0, 0 },
    { 3, 9, 8, 5, 0, 3, 3, 2, 1, 1, 2, 0, 0, 0 },
    { 1, 6, 11, 7, 0, 2, 3, 3, 4, 1, 0, 0, 0, 0 },
    { 2, 9, 8, 5, 1, 3, 4, 2, 3, 2, 2, 0, 0, 0 },                 /* means that count padding */
    { 2, 11, 12, 3, 0, 2, 2, 3, 4, 1, 1, 0, 0, 0 },               /* rows and columns of no window */
    { 1, 6, 5, 2, 0, 2, 3, INT32_MAX, INT32_MAX, 1, 0, 0, 0, 0 }, /* a place plus a stride is no int */
};
enum { POOL_SHAPES = sizeof pool_shapes / sizeof pool_shapes[0] };

/* `apart`: the kernel for windows that have nothing in common. */
static void pool_case(const shape *s, bool max, bool apart, float beta, bool nans)
{
    const int oh = out_size(s->h, s->kh, s->sh, s->ph), ow = out_size(s->w, s->kw, s->sw, s->pw);
    const size_t nx = (size_t)(s->n * s->h * s->w * s->c), ny = (size_t)(s->n * oh * ow * s->c);
    float *x = numbers(nx), *y = output(ny, 0), *dy = numbers(ny), *dx = output(nx, beta);
    int *argmax = calloc(ny, sizeof *argmax), *want_argmax = calloc(ny, sizeof *want_argmax);
    double *want_y = calloc(ny, sizeof *want_y), *want_dx = calloc(nx, sizeof *want_dx);
    for (size_t i = 0; i < nx; i++) {
        x[i] = floorf(x[i] * 3); /* many equals */
        want_dx[i] = kept(beta, dx[i]);
    }
    if (nans)
        for (size_t i = 0; i < nx; i += 11) x[i] = i % 22 ? NAN : -INFINITY;
    for (int n = 0; n < s->n; n++)
        for (int i = 0; i < oh; i++)
            for (int j = 0; j < ow; j++)
                for (int c = 0; c < s->c; c++) {
                    const size_t out = (size_t)(((n * oh + i) * ow + j) * s->c + c);
                    int count = 0, best = -1;
                    double sum = 0, largest = 0;
                    for (int pass = 0; pass < 2; pass++)
                        for (int h = i * s->sh - s->ph; h < i * s->sh - s->ph + s->kh; h++)
                            for (int w = j * s->sw - s->pw; w < j * s->sw - s->pw + s->kw; w++) {
                                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                                const size_t in = (size_t)(((n * s->h + h) * s->w + w) * s->c + c);
                                const double value = (double)x[in];
                                if (pass == 1) {
                                    want_dx[in] += max ? (best == h * s->w + w ? (double)dy[out] : 0)
                                                       : (double)dy[out] / (s->f ? s->kh * s->kw : count);
                                    continue;
                                }
                                if (best < 0 || value > largest || (isnan(value) && !isnan(largest)))
                                    largest = value, best = h * s->w + w;
                                sum += value, count++;
                            }
                    want_argmax[out] = best;
                    want_y[out] = max ? largest : sum / (s->f ? s->kh * s->kw : count);
                }
    array ax = upload(x, nx), ay = upload(y, ny), aa = upload(argmax, ny);
    array ady = upload(dy, ny), adx = upload(dx, nx);
    dml_launch launch = { .kernel = max ? "max_pool2d_forward" : "avg_pool2d_forward",
                          .size = { ny, 1 },
                          .buffer = { at(ax), at(ay) } };
    set_shape(&launch, s);
    if (max) {
        launch_ok(launch); /* argmax is NULL */
        launch.buffer[2] = at(aa);
    }
    launch_ok(launch);
    if (max && nans) { /* of a relu */
        int *gated = calloc(ny, sizeof *gated);
        array ag = upload(gated, ny);
        launch.buffer[2] = at(ag);
        launch.integer[13] = 1;
        launch_ok(launch);
        download(ag, gated);
        for (size_t i = 0; i < ny; i++) CHECK_INT(gated[i], want_y[i] > 0 ? want_argmax[i] : -1);
        free(gated);
    }
    launch = (dml_launch){ .kernel = apart ? "max_pool2d_backward_apart"
                                     : max ? "max_pool2d_backward"
                                           : "avg_pool2d_backward",
                           .size = { apart ? ny : nx, 1 },
                           .real = { beta } };
    set_shape(&launch, s);
    int b = 0;
    if (max) launch.buffer[b++] = at(aa);
    launch.buffer[b++] = at(ady);
    launch.buffer[b++] = at(adx);
    launch_ok(launch);
    download(ax, NULL), download(ay, y), download(aa, argmax), download(ady, NULL), download(adx, dx);
    for (size_t i = 0; i < ny; i++) {
        if (max) CHECK_INT(argmax[i], want_argmax[i]);
        if ((isnan(want_y[i]) && isnan(y[i])) || (isinf(want_y[i]) && want_y[i] == (double)y[i]))
            y[i] = 0, want_y[i] = 0;
    }
    check(max ? "max_pool2d_forward" : "avg_pool2d_forward", y, want_y, ny, 3);
    check(launch.kernel, dx, want_dx, nx, 3);
    free(x), free(y), free(dy), free(dx), free(argmax), free(want_argmax), free(want_y), free(want_dx);
}

static void test_max_pool2d_forward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++) pool_case(&pool_shapes[s], true, false, 0, true);
}

static void test_max_pool2d_backward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) pool_case(&pool_shapes[s], true, false, betas[b], false);
}

static void test_max_pool2d_backward_apart(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++)
            if (pool_shapes[s].sh >= pool_shapes[s].kh && pool_shapes[s].sw >= pool_shapes[s].kw)
                pool_case(&pool_shapes[s], true, true, betas[b], false);
}

static void test_avg_pool2d_forward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++) pool_case(&pool_shapes[s], false, false, 0, true);
}

static void test_avg_pool2d_backward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) pool_case(&pool_shapes[s], false, false, betas[b], false);
}

#endif
