/* slice2d_cases.h: the kernels of slice2d.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_SLICE2D_CASES_H
#define DML_TESTS_GPU_SLICE2D_CASES_H

#include "kernel_cases.h"

/* Places begin, begin + step, ... of each axis, between zeros. */
typedef struct slice {
    int batch, in[3], begin[3], step[3], count[3], before[3], after[3];
} slice;

static const slice slices[] = {
    { 1, { 1, 1, 1 }, { 0, 0, 0 }, { 1, 1, 1 }, { 1, 1, 1 }, { 0, 0, 0 }, { 0, 0, 0 } },
    { 3, { 7, 6, 5 }, { 1, 0, 2 }, { 2, 3, 1 }, { 3, 2, 3 }, { 0, 1, 2 }, { 2, 0, 3 } },
    { 2, { 9, 8, 16 }, { 0, 0, 0 }, { 2, 2, 1 }, { 5, 4, 16 }, { 0, 0, 8 }, { 0, 0, 8 } },
    { 2, { 4, 5, 9 }, { 0, 4, 1 }, { 1, 9, 4 }, { 4, 1, 2 }, { 3, 0, 0 }, { 0, 0, 1 } },
};
enum { SLICES = sizeof slices / sizeof slices[0] };

static void slice_case(const slice *s, bool forward)
{
    int out[3];
    size_t nx = (size_t)s->batch, ny = nx, taken = nx, first = 0;
    dml_launch launch = { .kernel = forward ? "slice2d_forward" : "slice2d_backward",
                          .integer = { s->batch } };
    for (int a = 0; a < 3; a++) {
        out[a] = s->before[a] + s->count[a] + s->after[a];
        nx *= (size_t)s->in[a], ny *= (size_t)out[a], taken *= (size_t)s->count[a];
        first = first * (size_t)s->in[a] + (size_t)s->begin[a];
        const int each[] = { s->in[a], out[a], s->step[a], s->count[a], s->before[a] };
        for (int i = 0; i < 5; i++) launch.integer[1 + 5 * a + i] = each[i];
    }
    float *x = numbers(nx), *y = forward ? output(ny, 0) : numbers(ny);
    double *want_x = malloc(nx * sizeof *want_x), *want_y = calloc(ny, sizeof *want_y);
    for (size_t i = 0; i < nx; i++) want_x[i] = (double)x[i];
    for (int n = 0; n < s->batch; n++)
        for (int h = 0; h < s->count[0]; h++)
            for (int w = 0; w < s->count[1]; w++)
                for (int c = 0; c < s->count[2]; c++) {
                    const int ih = s->begin[0] + h * s->step[0], iw = s->begin[1] + w * s->step[1];
                    const int from =
                        ((n * s->in[0] + ih) * s->in[1] + iw) * s->in[2] + s->begin[2] + c * s->step[2];
                    const int to = ((n * out[0] + s->before[0] + h) * out[1] + s->before[1] + w) * out[2] +
                                   s->before[2] + c;
                    want_y[to] = (double)x[from];
                    want_x[from] += (double)y[to];
                }
    array ax = upload(x, nx), ay = upload(y, ny);
    dml_ref of_x = at(ax);
    of_x.offset += first * 4;
    launch.size[0] = forward ? ny : taken;
    launch.size[1] = 1;
    launch.buffer[forward ? 0 : 1] = of_x;
    launch.buffer[forward ? 1 : 0] = at(ay);
    launch_ok(launch);
    download(ax, x), download(ay, y);
    if (forward)
        check("slice2d_forward", y, want_y, ny, 1);
    else
        check("slice2d_backward", x, want_x, nx, 1);
    free(x), free(y), free(want_x), free(want_y);
}

static void test_slice2d_forward(void)
{
    for (int s = quick; s < upto(SLICES); s++) slice_case(&slices[s], true);
}

static void test_slice2d_backward(void)
{
    for (int s = quick; s < upto(SLICES); s++) slice_case(&slices[s], false);
}

#endif
