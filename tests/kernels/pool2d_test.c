#include "kernels/pool2d.h"

#include "kernels/elementwise.h"

#include "exact.h"
#include "kernel_test.h"

/*                                 N, H,  W,  C, kernel, stride, pad */
static const dml_pool2d_shape shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, false },
    { 2, 4, 4, 1, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 3, 6, 5, 3, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 2, 7, 9, 8, 3, 3, 2, 2, 1, 1, 0, 0, false },
    { 1, 5, 6, 17, 3, 2, 1, 1, 2, 1, 0, 0, false },
    { 2, 8, 8, 16, 2, 3, 3, 1, 1, 2, 0, 0, false },
    { 1, 9, 3, 33, 4, 3, 2, 2, 3, 0, 0, 0, false },
    { 0, 4, 4, 2, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 1, 6, 6, 5, 2, 2, 3, 4, 0, 1, 0, 0, false },
    { 1, 3, 3, 100, 3, 3, 1, 1, 0, 0, 0, 0, false },
    { 4, 28, 28, 20, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 1, 64, 64, 6, 3, 3, 2, 2, 1, 1, 0, 0, false },
    { 9, 24, 24, 6, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 2, 9, 7, 12, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 3, 7, 8, 6, 3, 3, 3, 3, 0, 0, 0, 0, false },
    { 2, 7, 9, 6, 2, 2, 3, 3, 0, 0, 0, 0, false },
    { 2, 6, 6, 43, 6, 6, 6, 6, 0, 0, 0, 0, false },
    { 1, 5, 5, 3, 2, 2, 1, 1, 0, 0, 0, 0, false },
    { 2, 8, 8, 16, 2, 2, 2, 2, 0, 0, 0, 0, false },
    { 5, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, false },
    /* windows that end behind the image, and means that count padding */
    { 2, 7, 9, 8, 3, 3, 2, 2, 0, 0, 4, 5, false },
    { 1, 5, 5, 3, 2, 2, 2, 2, 0, 0, 3, 3, false },
    { 2, 5, 7, 16, 2, 2, 2, 2, 0, 0, 2, 4, true },
    { 2, 7, 7, 8, 3, 3, 3, 3, 0, 0, 3, 3, false },
    { 1, 4, 5, 9, 4, 3, 1, 2, 1, 1, 5, 2, true },
    { 2, 6, 6, 17, 3, 3, 2, 2, 1, 1, 4, 4, true },
    { 1, 6, 9, 7, 2, 3, 2, 2, 1, 2, 0, 0, true },
    { 1, 9, 9, 5, 2, 2, 2, 2, 0, 0, 3, 2, false },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int output_size(int in, int kernel, int stride, int pad)
{
    return (in + 2 * pad - kernel) / stride + 1;
}

typedef struct data {
    dml_pool2d_shape s;
    int oh, ow;
    size_t in, out; /* elements */
    float *x, *y, *dy, *dx;
    int32_t *argmax;
} data;

static data data_create(const dml_pool2d_shape *shape)
{
    data d;
    unsigned state = 1 + (unsigned)shape->channels;
    d.s = *shape;
    d.oh = shape->out_h ? shape->out_h
                        : output_size(shape->height, shape->kernel_h, shape->stride_h, shape->pad_h);
    d.ow = shape->out_w ? shape->out_w
                        : output_size(shape->width, shape->kernel_w, shape->stride_w, shape->pad_w);
    d.in = (size_t)(shape->batch * shape->height * shape->width * shape->channels);
    d.out = (size_t)(shape->batch * d.oh * d.ow * shape->channels);
    d.x = kernel_array(d.in, &state), d.dx = kernel_array(d.in, &state);
    d.y = kernel_array(d.out, &state), d.dy = kernel_array(d.out, &state);
    for (size_t i = 0; i < d.in; i++) d.x[i] = floorf(d.x[i] * 4); /* with many equals */
    d.argmax = (int32_t *)malloc((d.out + 1) * sizeof(int32_t));
    return d;
}

static void data_destroy(data *d)
{
    kernel_free(d->x), kernel_free(d->y), kernel_free(d->dx), kernel_free(d->dy), free(d->argmax);
}

/* Where output `out`'s input at place h * W + w lies in x. */
static size_t input_of(const data *d, size_t out, int place)
{
    const size_t image = out / (size_t)(d->s.channels * d->ow * d->oh);
    return (image * (size_t)(d->s.height * d->s.width) + (size_t)place) * (size_t)d->s.channels +
           out % (size_t)d->s.channels;
}

static void forward_matches_the_definition(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(&shapes[i]);
        if (d.in > 3) d.x[d.in / 2] = NAN, d.x[d.in / 3] = -INFINITY;
        CHECK_INT(dml_max_pool2d_forward(NULL, &d.s, d.x, d.y, d.argmax), DML_OK);
        float *average = kernel_copy(d.y, d.out), *without = kernel_copy(d.dy, d.out);
        CHECK_INT(dml_avg_pool2d_forward(NULL, &d.s, d.x, average), DML_OK);
        CHECK_INT(dml_max_pool2d_forward(NULL, &d.s, d.x, without, NULL), DML_OK);
        for (size_t o = 0; o < d.out; o++) {
            const exact_window window = exact_pool2d(&d.s, d.x, o);
            const double mean = window.sum.value / window.size;
            CHECK_INT(d.argmax[o], window.place);
            CHECK(kernel_same(&d.y[o], &d.x[input_of(&d, o, window.place)], 1) ||
                  d.y[o] == d.x[input_of(&d, o, window.place)]);
            CHECK_MESSAGE((isnan(mean) && isnan(average[o])) || (double)average[o] == mean ||
                              fabs((double)average[o] - mean) < 1e-6,
                          "mean %g, not %g", (double)average[o], mean);
        }
        CHECK(kernel_same(d.y, without, d.out));
        kernel_free(average), kernel_free(without);
        data_destroy(&d);
    }
}

/* As part of a relu's backward: the same bits as of a relu after it. */
static void gates_a_relu(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(&shapes[i]);
        if (d.in > 9) d.x[d.in / 2] = NAN, d.x[d.in / 4] = INFINITY;
        for (size_t k = 0; k < d.in; k++) d.x[k] = d.x[k] <= 0 ? 0 : d.x[k];
        for (size_t k = 0; k < d.in / 2; k++) d.x[k] = k % 5 ? 0 : d.x[k]; /* whole windows of zeros */
        dml_max_pool2d_forward(NULL, &d.s, d.x, d.y, d.argmax);
        float *want = kernel_copy(d.dx, d.in), *y = kernel_copy(d.dy, d.out);
        dml_max_pool2d_backward(NULL, &d.s, d.argmax, d.dy, 0, want);
        dml_relu_backward(NULL, d.in, d.x, want, 0, want);
        for (int p = 0; p < KERNEL_POOLS; p++) {
            float *dx = kernel_copy(d.dx, d.in);
            CHECK_INT(dml_max_pool2d_of_relu_forward(kernel_pools[p], &d.s, d.x, y, d.argmax), DML_OK);
            CHECK(kernel_same(y, d.y, d.out));
            for (size_t o = 0; o < d.out; o++) CHECK((d.argmax[o] == -1) == !(d.y[o] > 0));
            dml_max_pool2d_backward(NULL, &d.s, d.argmax, d.dy, 0, dx);
            CHECK(kernel_same(dx, want, d.in));
            CHECK_INT(dml_max_pool2d_of_relu_forward(kernel_pools[p], &d.s, d.x, y, NULL), DML_OK);
            CHECK(kernel_same(y, d.y, d.out));
            kernel_free(dx);
        }
        kernel_free(want), kernel_free(y);
        data_destroy(&d);
    }
}

static void backward_is_the_adjoint(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(&shapes[i]);
        double *want_max = (double *)calloc(d.in + 1, sizeof(double));
        double *want_avg = (double *)calloc(d.in + 1, sizeof(double));
        dml_max_pool2d_forward(NULL, &d.s, d.x, d.y, d.argmax);
        for (size_t o = 0; o < d.out; o++) {
            const int W = d.s.width;
            const exact_window window = exact_pool2d(&d.s, d.x, o);
            want_max[input_of(&d, o, window.place)] += (double)d.dy[o];
            const int ow = (int)(o / (size_t)d.s.channels) % d.ow;
            const int oh = (int)(o / (size_t)(d.s.channels * d.ow)) % d.oh;
            for (int h = oh * d.s.stride_h - d.s.pad_h; h < oh * d.s.stride_h - d.s.pad_h + d.s.kernel_h; h++)
                for (int w = ow * d.s.stride_w - d.s.pad_w; w < ow * d.s.stride_w - d.s.pad_w + d.s.kernel_w;
                     w++)
                    if (h >= 0 && w >= 0 && h < d.s.height && w < W)
                        want_avg[input_of(&d, o, h * W + w)] += (double)d.dy[o] / window.size;
        }
        for (int with_beta = 0; with_beta < 2; with_beta++) {
            const float beta = with_beta ? 0.5f : 0;
            float *max = kernel_copy(d.dx, d.in), *avg = kernel_copy(d.dx, d.in);
            if (!with_beta)
                for (size_t k = 0; k < d.in; k++) max[k] = avg[k] = NAN;
            CHECK_INT(dml_max_pool2d_backward(NULL, &d.s, d.argmax, d.dy, beta, max), DML_OK);
            CHECK_INT(dml_avg_pool2d_backward(NULL, &d.s, d.dy, beta, avg), DML_OK);
            for (size_t k = 0; k < d.in; k++) {
                const double old = with_beta ? 0.5 * (double)d.dx[k] : 0;
                CHECK_NEAR(max[k], want_max[k] + old, 2e-6);
                CHECK_NEAR(avg[k], want_avg[k] + old, 2e-6);
            }
            kernel_free(max), kernel_free(avg);
        }
        free(want_max), free(want_avg);
        data_destroy(&d);
    }
}

static void the_same_for_any_threads(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(&shapes[i]);
        float *average = kernel_copy(d.y, d.out), *got = kernel_copy(d.y, d.out);
        float *dmax = kernel_copy(d.dx, d.in), *davg = kernel_copy(d.dx, d.in);
        int32_t *argmax = (int32_t *)malloc((d.out + 1) * sizeof(int32_t));
        dml_max_pool2d_forward(NULL, &d.s, d.x, d.y, d.argmax);
        dml_avg_pool2d_forward(NULL, &d.s, d.x, average);
        dml_max_pool2d_backward(NULL, &d.s, d.argmax, d.dy, 0.5f, dmax);
        dml_avg_pool2d_backward(NULL, &d.s, d.dy, 0.5f, davg);
        for (int p = 1; p < KERNEL_POOLS; p++) {
            float *dx = kernel_copy(d.dx, d.in);
            dml_max_pool2d_forward(kernel_pools[p], &d.s, d.x, got, argmax);
            CHECK(kernel_same(got, d.y, d.out) && memcmp(argmax, d.argmax, d.out * 4) == 0);
            dml_avg_pool2d_forward(kernel_pools[p], &d.s, d.x, got);
            CHECK(kernel_same(got, average, d.out));
            dml_max_pool2d_backward(kernel_pools[p], &d.s, d.argmax, d.dy, 0.5f, dx);
            CHECK(kernel_same(dx, dmax, d.in));
            kernel_free(dx);
            dx = kernel_copy(d.dx, d.in);
            dml_avg_pool2d_backward(kernel_pools[p], &d.s, d.dy, 0.5f, dx);
            CHECK(kernel_same(dx, davg, d.in));
            kernel_free(dx);
        }
        kernel_free(average), kernel_free(got), kernel_free(dmax), kernel_free(davg), free(argmax);
        data_destroy(&d);
    }
}

/* One pixel under large windows that begin far before it. */
static dml_pool2d_shape outputs_of_one(int height, int width)
{
    const dml_pool2d_shape s = { 1, 1, 1, 1, height, width, 1, 1, height - 1, width - 1, 0, 0, false };
    return s;
}

static void refuses_null(void)
{
    const dml_pool2d_shape shape = { .batch = 1,
                                     .height = 2,
                                     .width = 2,
                                     .channels = 1,
                                     .kernel_h = 2,
                                     .kernel_w = 2,
                                     .stride_h = 2,
                                     .stride_w = 2 };
    float x[4] = { 0 }, y[1] = { 0 };
    int32_t argmax[1] = { 0 };
    CHECK_INT(dml_max_pool2d_forward(NULL, NULL, x, y, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_max_pool2d_forward(NULL, &shape, NULL, y, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_max_pool2d_forward(NULL, &shape, x, NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_max_pool2d_backward(NULL, &shape, NULL, y, 0, x), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_max_pool2d_backward(NULL, &shape, argmax, y, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_avg_pool2d_forward(NULL, NULL, x, y), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_avg_pool2d_backward(NULL, NULL, y, 0, x), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_max_pool2d_forward(NULL, &shape, x, y, NULL), DML_OK);
}

static void refuses_bad_shapes(void)
{
    const dml_pool2d_shape good = { 1, 4, 4, 1, 2, 2, 2, 2, 1, 1, 0, 0, false };
    float x[16], y[16];
    int32_t argmax[16];
    for (int bad = 0; bad < 23; bad++) {
        dml_pool2d_shape s = good;
        switch (bad) {
        case 0: s.batch = -1; break;
        case 1: s.height = 0; break;
        case 2: s.width = 0; break;
        case 3: s.channels = 0; break;
        case 4: s.kernel_h = 0; break;
        case 5: s.kernel_w = -2; break;
        case 6: s.stride_h = 0; break;
        case 7: s.stride_w = 0; break;
        case 8: s.pad_h = -1; break;
        case 9: s.pad_w = -1; break;
        case 10: s.pad_h = 2; break;
        case 11: s.pad_w = 3; break;
        case 12: s.kernel_h = 7; break;
        case 13: s.kernel_w = 7; break;
        case 14: s.height = s.width = 1 << 20; break;
        /* 50000 x 50000 outputs of one input, and then just one line too many */
        case 15: s = outputs_of_one(50000, 50000); break;
        case 16: s = outputs_of_one(32768, 65536); break;
        /* 2^62 floats of x; of y */
        case 18: s.out_h = -1; break;
        case 19: s.out_w = -3; break;
        case 20: s.out_h = 4; break; /* whose window begins at 5, behind 4 + 1 */
        case 21: s.out_w = INT32_MAX; break;
        case 17: s.batch = s.channels = INT32_MAX; break;
        default:
            s = outputs_of_one(30000, 30000);
            s.batch = s.channels = 1 << 17;
            break;
        }
        for (int i = 0; i < 16; i++) y[i] = 7;
        CHECK_INT(dml_max_pool2d_forward(NULL, &s, x, y, argmax), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_max_pool2d_of_relu_forward(NULL, &s, x, y, argmax), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_max_pool2d_backward(NULL, &s, argmax, x, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_avg_pool2d_forward(NULL, &s, x, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_avg_pool2d_backward(NULL, &s, x, 0, y), DML_ERROR_ARGUMENT);
        for (int i = 0; i < 16; i++) CHECK(y[i] == 7);
    }
}

/* Windows that are far larger, and farther apart, than the image: sums of sizes that no int holds. */
static void takes_huge_windows(void)
{
    const dml_pool2d_shape tall = { 1, 5, 1, 1, INT32_MAX, 1, INT32_MAX, 1, INT32_MAX - 1, 0, 0, 0, false };
    const dml_pool2d_shape apart = { 1, 5, 1, 1, 2, 1, INT32_MAX, 1, 0, 0, 0, 0, false };
    const float x[5] = { 3, 1, 2, 5, 4 }, dy[2] = { 10, 20 };
    float y[2], dx[5];
    int32_t argmax[2];
    CHECK_INT(dml_max_pool2d_forward(NULL, &tall, x, y, argmax), DML_OK);
    CHECK(y[0] == 3 && y[1] == 5 && argmax[0] == 0 && argmax[1] == 3);
    CHECK_INT(dml_max_pool2d_backward(NULL, &tall, argmax, dy, 0, dx), DML_OK);
    CHECK(dx[0] == 10 && dx[1] == 0 && dx[2] == 0 && dx[3] == 20 && dx[4] == 0);
    CHECK_INT(dml_avg_pool2d_forward(NULL, &tall, x, y), DML_OK);
    CHECK(y[0] == 3 && y[1] == 3);
    CHECK_INT(dml_avg_pool2d_backward(NULL, &tall, dy, 0, dx), DML_OK);
    CHECK(dx[0] == 10 && dx[1] == 5 && dx[2] == 5 && dx[3] == 5 && dx[4] == 5);
    CHECK_INT(dml_avg_pool2d_backward(NULL, &apart, dy, 0, dx), DML_OK);
    CHECK(dx[0] == 5 && dx[1] == 5 && dx[2] == 0 && dx[3] == 0 && dx[4] == 0);
}

static void all(void)
{
    forward_matches_the_definition();
    gates_a_relu();
    backward_is_the_adjoint();
    the_same_for_any_threads();
    refuses_bad_shapes();
    refuses_null();
    takes_huge_windows();
}

static void pool2d(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(pool2d);
    kernel_pools_close();
    return test_report("kernels/pool2d");
}
