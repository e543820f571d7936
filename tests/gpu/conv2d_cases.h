/* conv2d_cases.h: the kernels of conv2d.cl, for kernels_test.c, and the shapes of images. */
#ifndef DML_TESTS_GPU_CONV2D_CASES_H
#define DML_TESTS_GPU_CONV2D_CASES_H

#include "kernel_cases.h"

/* batch, height, width, channels, filters, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
   dilation_w, groups (the last three: 0 is 1) */
typedef struct shape {
    int n, h, w, c, f, kh, kw, sh, sw, ph, pw, dh, dw, g;
} shape;

static int or_one(int x)
{
    return x ? x : 1;
}

/* Along an axis of channels or filters: tiles of 64 don't reach from one group into another. */
static size_t tiled(int size, int groups)
{
    return groups <= 1 ? (size_t)size : (size_t)groups * (((size_t)(size / groups) + 63) / 64 * 64);
}

static int conv_out_h(const shape *s)
{
    return (s->h + 2 * s->ph - (s->kh - 1) * or_one(s->dh) - 1) / s->sh + 1;
}

static int conv_out_w(const shape *s)
{
    return (s->w + 2 * s->pw - (s->kw - 1) * or_one(s->dw) - 1) / s->sw + 1;
}

static int out_size(int in, int kernel, int stride, int pad)
{
    return (in + 2 * pad - kernel) / stride + 1;
}

static const shape conv_shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0 },     { 4, 7, 5, 3, 4, 3, 3, 1, 1, 1, 1, 0, 0, 0 },
    { 3, 9, 8, 2, 70, 3, 2, 2, 3, 0, 1, 0, 0, 0 },    { 2, 6, 7, 66, 5, 1, 3, 1, 2, 0, 2, 0, 0, 0 },
    { 1, 5, 5, 1, 2, 5, 5, 4, 4, 2, 2, 0, 0, 0 },     { 2, 9, 8, 3, 4, 3, 2, 2, 1, 2, 1, 2, 3, 0 },
    { 2, 5, 6, 6, 9, 3, 3, 1, 1, 1, 1, 1, 1, 3 },     { 1, 6, 7, 70, 70, 3, 3, 2, 2, 1, 1, 1, 1, 70 },
    { 1, 4, 5, 132, 136, 1, 1, 1, 1, 0, 0, 1, 1, 2 },
};
enum { CONV_SHAPES = sizeof conv_shapes / sizeof conv_shapes[0] };

/* Calls visit for every product of the convolution, with the indices of x, w and y that it joins. */
static void conv_products(const shape *s, void (*visit)(void *at, int x, int w, int y), void *to)
{
    const int oh = conv_out_h(s), ow = conv_out_w(s);
    const int channels = s->c / or_one(s->g), filters = s->f / or_one(s->g);
    for (int n = 0; n < s->n; n++)
        for (int y = 0; y < oh; y++)
            for (int x = 0; x < ow; x++)
                for (int f = 0; f < s->f; f++)
                    for (int i = 0; i < s->kh; i++)
                        for (int j = 0; j < s->kw; j++)
                            for (int c = 0; c < channels; c++) {
                                const int h = y * s->sh - s->ph + i * or_one(s->dh);
                                const int w = x * s->sw - s->pw + j * or_one(s->dw);
                                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                                visit(to, ((n * s->h + h) * s->w + w) * s->c + f / filters * channels + c,
                                      ((f * s->kh + i) * s->kw + j) * channels + c,
                                      ((n * oh + y) * ow + x) * s->f + f);
                            }
}

typedef struct conv_reference {
    const float *x, *w, *y;
    double *out;
} conv_reference;

static void add_to_y(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[y] += (double)r->x[x] * (double)r->w[w];
}

static void add_to_x(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[x] += (double)r->y[y] * (double)r->w[w];
}

static void add_to_w(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[w] += (double)r->y[y] * (double)r->x[x];
}

/* The ints of the convolutions and pools. */
static void set_shape(dml_launch *launch, const shape *s)
{
    const int all[] = { s->n,  s->h,  s->w,  s->c,          s->f,          s->kh, s->kw, s->sh,
                        s->sw, s->ph, s->pw, conv_out_h(s), conv_out_w(s), s->dh, s->dw, s->g };
    for (int i = 0; i < 16; i++) launch->integer[i] = all[i];
}

/* The sums of y's columns, + beta what is there. */
static double *sums_of(const float *y, size_t n, size_t columns, const float *old, float beta)
{
    double *sums = malloc(columns * sizeof *sums);
    for (size_t i = 0; i < columns; i++) sums[i] = kept(beta, old[i]);
    for (size_t i = 0; i < n; i++) sums[i % columns] += (double)y[i];
    return sums;
}

/* Runs one of the three: inputs at buffer 0 and 1, the output last; `visit` makes the reference. */
static void conv_case(const char *kernel, const shape *s, float beta, bool with_bias)
{
    const bool to_x = strstr(kernel, "input"), to_w = strstr(kernel, "weights"), to_y = !to_x && !to_w;
    const int oh = conv_out_h(s), ow = conv_out_w(s);
    const size_t nx = (size_t)(s->n * s->h * s->w * s->c),
                 nw = (size_t)(s->f * s->kh * s->kw * s->c / or_one(s->g));
    const size_t ny = (size_t)(s->n * oh * ow * s->f), nf = (size_t)s->f;
    float *x = to_x ? output(nx, beta) : numbers(nx), *w = to_w ? output(nw, beta) : numbers(nw);
    float *y = to_y ? output(ny, beta) : numbers(ny), *bias = numbers(nf);
    const size_t n = to_x ? nx : to_w ? nw : ny;
    float *out = to_x ? x : to_w ? w : y;
    double *want = calloc(n, sizeof *want);
    conv_reference reference = { x, w, y, want };
    conv_products(s, to_x ? add_to_x : to_w ? add_to_w : add_to_y, &reference);
    const bool relu = to_y && s->h % 2;
    for (size_t i = 0; i < n; i++) {
        want[i] += (to_y && with_bias ? (double)bias[i % nf] : 0) + kept(beta, out[i]);
        if (relu && want[i] <= 0) want[i] = 0;
    }
    array ax = upload(x, nx), aw = upload(w, nw), ab = upload(bias, nf), ay = upload(y, ny);
    dml_launch launch = { .kernel = kernel, .real = { beta, relu } };
    set_shape(&launch, s);
    if (to_y) {
        launch.size[0] = tiled(s->f, s->g), launch.size[1] = (size_t)(s->n * oh * ow);
        launch.buffer[0] = at(ax), launch.buffer[1] = at(aw), launch.buffer[3] = at(ay);
        if (with_bias) launch.buffer[2] = at(ab);
    } else if (to_x) {
        launch.size[0] = tiled(s->c, s->g), launch.size[1] = (size_t)(s->n * s->h * s->w);
        launch.buffer[0] = at(ay), launch.buffer[1] = at(aw), launch.buffer[2] = at(ax);
    } else {
        launch.size[0] = nw / nf + with_bias, launch.size[1] = tiled(s->f, s->g);
        launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(aw);
        if (with_bias) launch.buffer[3] = at(ab), launch.real[2] = 0.5f;
    }
    launch_ok(launch);
    double *sums = sums_of(y, ny, nf, bias, 0.5f);
    download(ax, x), download(aw, w), download(ab, bias), download(ay, y);
    check(kernel, out, want, n, 8);
    if (to_w && with_bias) check(kernel, bias, sums, nf, 8);
    free(sums);
    free(x), free(w), free(y), free(bias), free(want);
}

/* A weights' gradient in shares, of which the last may be empty, and the sums of y. */
static void shares_case(const char *kernel, const shape *s, int shares)
{
    const size_t nx = (size_t)(s->n * s->h * s->w * s->c), nf = (size_t)s->f;
    const size_t nw = (size_t)(s->f * s->kh * s->kw * s->c / or_one(s->g)), all = (size_t)shares * nw;
    const size_t ny = (size_t)(s->n * conv_out_h(s) * conv_out_w(s)) * nf, all_sums = (size_t)shares * nf;
    float *x = numbers(nx), *y = numbers(ny), *w = output(all, 0), *b = output(all_sums, 0);
    double *want = calloc(nw, sizeof *want), *sums = sums_of(y, ny, nf, b, 0);
    conv_reference reference = { x, NULL, y, want };
    conv_products(s, add_to_w, &reference);
    array ax = upload(x, nx), ay = upload(y, ny), aw = upload(w, all), ab = upload(b, all_sums);
    dml_launch launch = { .kernel = kernel,
                          .size = { (size_t)shares * ((nw / nf + 1 + 127) / 128 * 128), tiled(s->f, s->g) },
                          .buffer = { at(ax), at(ay), at(aw), at(ab) },
                          .real = { 0, (float)shares, 0 } };
    set_shape(&launch, s);
    launch_ok(launch);
    download(ax, NULL), download(ay, NULL), download(aw, w), download(ab, b);
    for (size_t i = nw; i < all; i++) w[i % nw] += w[i];
    for (size_t i = nf; i < all_sums; i++) b[i % nf] += b[i];
    check(kernel, w, want, nw, 8);
    check(kernel, b, sums, nf, 8);
    free(x), free(y), free(w), free(b), free(want), free(sums);
}

/* Every shape with every beta, but of shapes of tiles only one: the others differ in nothing about
 * beta. */
static void conv_cases(const char *kernel)
{
    const bool all = strstr(kernel, "_64x64") || strstr(kernel, "_solo");
    const bool weights = strstr(kernel, "weights") != NULL;
    for (int i = quick; i < upto(CONV_SHAPES); i++) {
        shape s = conv_shapes[i];
        if (is_large(kernel) && or_one(s.g) > 1) continue;
        if (quick && weights) s.n = 2; /* they are summed over */
        for (int b = 0; b < upto(BETAS); b++)
            if (all || b == i % BETAS) conv_case(kernel, &s, betas[b], (b + i) % 2);
        if (weights) shares_case(kernel, &s, 2 + i % 3);
    }
}

TEST_FAMILY(conv2d_forward, conv_cases)
TEST_FAMILY(conv2d_backward_input, conv_cases)
TEST_FAMILY(conv2d_backward_weights, conv_cases)

#endif
