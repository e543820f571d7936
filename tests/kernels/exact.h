/* exact.h: what the kernels compute, in float64, and what an error is measured in. For the tests, which hold
   bounds, and for bench/numerics, which reports errors. To be included after the kernels' headers, or after
   dml.h. */
#ifndef DML_TESTS_KERNELS_EXACT_H
#define DML_TESTS_KERNELS_EXACT_H

#include <math.h>
#include <stddef.h>

#if defined(__GNUC__)
#define EXACT__UNUSED __attribute__((unused))
#else
#define EXACT__UNUSED
#endif

/* --- errors --- */

/* The distance from the float of that size to the next: a unit in the last place. Beyond the floats lies
   2^128, which is what would come after the largest one. */
EXACT__UNUSED static double exact_unit(double want)
{
    const double size = fmin(fabs(want), ldexp(1, 128));
    const int exponent = size == 0 ? -126 : ilogb(size);
    return ldexp(1, (exponent < -126 ? -126 : exponent) - 23);
}

/* The error as a multiple of what is allowed: infinite where one of the two is a NaN, or an infinity, and
   the other isn't. */
EXACT__UNUSED static double exact_ratio(float got, double want, double allowed)
{
    const double beyond = ldexp(1, 128);
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : INFINITY;
    if (isinf(want)) return (double)got == want ? 0 : INFINITY;
    const double exact = fmin(fmax(want, -beyond), beyond), value = fmin(fmax((double)got, -beyond), beyond);
    if (value == exact) return 0;
    return allowed > 0 ? fabs(value - exact) / allowed : INFINITY;
}

/* What a float sum of k products may be off by, as testers of BLAS have it, and k roundings of denormals;
   `size` is the sum of the terms' sizes. */
EXACT__UNUSED static double exact_sum_bound(double size, double k)
{
    return 2 * (k + 4) * ldexp(size, -24) + (k + 4) * ldexp(1, -149);
}

/* What else the tests allow, in roundings (2^-24) of what the comment says. */
#define EXACT_POINTWISE 5 /* additions, gradients of functions, optimizers: the terms' sizes */
#define EXACT_SUM 40      /* dml_sum_all, dml_dot, dml_squared_distance: the sum of the terms' sizes */
#define EXACT_SUM_ROWS 7  /* dml_sum_rows: the same */
#define EXACT_MEAN 4      /* dml_batch_statistics: the mean's size and the deviation */
#define EXACT_VARIANCE 34 /* the variance */
#define EXACT_NORM 5      /* dml_batch_norm_forward: the distance from the mean, in deviations, and 1 */
#define EXACT_SOFTMAX 17  /* each probability */
#define EXACT_LOSS 5      /* a row's loss and 1 */

EXACT__UNUSED static double exact_roundings(double count, double of)
{
    return count * ldexp(of, -24);
}

/* --- sums --- */

/* A sum and that of its terms' sizes. */
typedef struct exact_sum {
    double value, size;
} exact_sum;

EXACT__UNUSED static void exact_add(exact_sum *sum, double term)
{
    sum->value += term;
    sum->size += fabs(term);
}

/* Element (i, j) lies at x[i * row + j * column]. */
typedef struct exact_matrix {
    const float *x;
    size_t row, column;
} exact_matrix;

/* Element (i, j) of A B, with k columns of A. */
EXACT__UNUSED static exact_sum exact_product(exact_matrix a, exact_matrix b, size_t i, size_t j, size_t k)
{
    exact_sum sum = { 0, 0 };
    const float *left = a.x + i * a.row, *right = b.x + j * b.column;
    for (size_t p = 0; p < k; p++) exact_add(&sum, (double)left[p * a.column] * (double)right[p * b.row]);
    return sum;
}

/* --- functions --- */

EXACT__UNUSED static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

#ifdef DML_KERNELS_ELEMENTWISE_H
typedef struct exact_function {
    const char *name;
    void (*run)(dml_pool *pool, size_t n, const float *x, float *y);
    double (*want)(double x);
    double bound; /* in units in the last place */
} exact_function;

EXACT__UNUSED static const exact_function exact_functions[] = {
    { "exp", dml_exp_forward, exp, 1.25 },
    { "log", dml_log_forward, log, 1 },
    { "erf", dml_erf_forward, erf, 2 },
    { "tanh", dml_tanh_forward, tanh, 2 },
    { "sigmoid", dml_sigmoid_forward, exact_sigmoid, 2.5 },
};
enum { EXACT_FUNCTIONS = sizeof exact_functions / sizeof exact_functions[0] };
#endif

/* Softmax of a row, and the logarithm of the sum of its exponentials. */
EXACT__UNUSED static double exact_softmax(size_t classes, const float *x, double *probabilities)
{
    double sum = 0, largest = (double)x[0];
    for (size_t c = 0; c < classes; c++) largest = fmax(largest, (double)x[c]);
    for (size_t c = 0; c < classes; c++) sum += exp((double)x[c] - largest);
    for (size_t c = 0; c < classes; c++) probabilities[c] = exp((double)x[c] - largest) / sum;
    return largest + log(sum);
}

/* The mean and the variance of channel c of x (rows, channels), in two passes. */
EXACT__UNUSED static void exact_statistics(size_t rows, size_t channels, const float *x, size_t c,
                                           double *mean, double *variance)
{
    *mean = *variance = 0;
    for (size_t r = 0; r < rows; r++) *mean += (double)x[r * channels + c] / (double)rows;
    for (size_t r = 0; r < rows; r++) {
        const double distance = (double)x[r * channels + c] - *mean;
        *variance += distance * distance / (double)rows;
    }
}

/* --- convolution and pooling --- */

#ifdef DML_KERNELS_CONV2D_H
EXACT__UNUSED static int exact_or_one(int x)
{
    return x ? x : 1;
}

EXACT__UNUSED static int exact_conv2d_output(int in, int kernel, int stride, int pad, int dilation)
{
    return (in + 2 * pad - (kernel - 1) * exact_or_one(dilation) - 1) / stride + 1;
}

/* Every product of the definition, once, added to all three results: y of (x, w), dx of (dy, w), dw of
   (x, dy). */
EXACT__UNUSED static void exact_conv2d(const dml_conv2d_shape *s, const float *x, const float *w,
                                       const float *dy, exact_sum *y, exact_sum *dx, exact_sum *dw)
{
    const int groups = exact_or_one(s->groups), of_group = s->channels / groups;
    const int out_h = s->out_h
                          ? s->out_h
                          : exact_conv2d_output(s->height, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h);
    const int out_w = s->out_w
                          ? s->out_w
                          : exact_conv2d_output(s->width, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w);
    for (int n = 0; n < s->batch; n++)
        for (int oy = 0; oy < out_h; oy++)
            for (int ox = 0; ox < out_w; ox++)
                for (int kh = 0; kh < s->kernel_h; kh++)
                    for (int kw = 0; kw < s->kernel_w; kw++) {
                        const int iy = oy * s->stride_h - s->pad_h + kh * exact_or_one(s->dilation_h);
                        const int ix = ox * s->stride_w - s->pad_w + kw * exact_or_one(s->dilation_w);
                        if (iy < 0 || iy >= s->height || ix < 0 || ix >= s->width) continue;
                        for (int f = 0; f < s->filters; f++)
                            for (int c = 0; c < of_group; c++) {
                                const int group = f / (s->filters / groups);
                                const int yi = ((n * out_h + oy) * out_w + ox) * s->filters + f;
                                const int xi = ((n * s->height + iy) * s->width + ix) * s->channels +
                                               group * of_group + c;
                                const int wi = ((f * s->kernel_h + kh) * s->kernel_w + kw) * of_group + c;
                                exact_add(&y[yi], (double)x[xi] * (double)w[wi]);
                                exact_add(&dx[xi], (double)dy[yi] * (double)w[wi]);
                                exact_add(&dw[wi], (double)dy[yi] * (double)x[xi]);
                            }
                    }
}
#endif

#ifdef DML_KERNELS_POOL2D_H
/* The window of element `out` of y: its sum, its size, and the place h * W + w of its largest, of equals the
   first; a NaN is the largest. */
typedef struct exact_window {
    exact_sum sum;
    int size, place; /* size: what the mean is of */
    double largest;
} exact_window;

EXACT__UNUSED static exact_window exact_pool2d(const dml_pool2d_shape *s, const float *x, size_t out)
{
    const int out_h = s->out_h ? s->out_h : (s->height + 2 * s->pad_h - s->kernel_h) / s->stride_h + 1;
    const int out_w = s->out_w ? s->out_w : (s->width + 2 * s->pad_w - s->kernel_w) / s->stride_w + 1;
    const int c = (int)(out % (size_t)s->channels), ox = (int)(out / (size_t)s->channels) % out_w;
    const int oy = (int)(out / (size_t)(s->channels * out_w)) % out_h;
    const int n = (int)(out / (size_t)(s->channels * out_w * out_h));
    exact_window window = { { 0, 0 }, 0, -1, 0 };
    int inside = 0;
    for (int h = oy * s->stride_h - s->pad_h; h < oy * s->stride_h - s->pad_h + s->kernel_h; h++)
        for (int w = ox * s->stride_w - s->pad_w; w < ox * s->stride_w - s->pad_w + s->kernel_w; w++) {
            if (h < s->height + s->pad_h && w < s->width + s->pad_w) window.size += s->count_padding;
            if (h < 0 || w < 0 || h >= s->height || w >= s->width) continue;
            const double value = (double)x[((n * s->height + h) * s->width + w) * s->channels + c];
            if (inside++ == 0 || value > window.largest || (isnan(value) && !isnan(window.largest)))
                window.largest = value, window.place = h * s->width + w;
            exact_add(&window.sum, value);
            window.size += !s->count_padding;
        }
    return window;
}
#endif

#endif
