/* local2d_cases.h: the kernels of local2d.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_LOCAL2D_CASES_H
#define DML_TESTS_GPU_LOCAL2D_CASES_H

#include "conv2d_cases.h"
#include "kernel_cases.h"

static const shape local_shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0 },
    { 2, 7, 6, 3, 5, 3, 2, 2, 1, 0, 0, 0, 0, 0 },
    { 3, 5, 9, 2, 4, 2, 3, 1, 4, 0, 0, 0, 0, 0 },
};
enum { LOCAL_SHAPES = sizeof local_shapes / sizeof local_shapes[0] };

/* `role` is what is computed: 0: y, 1: dx, 2: dw. */
static void local_case(const char *kernel, int role, const shape *s, float beta)
{
    const int oh = (s->h - s->kh) / s->sh + 1, ow = (s->w - s->kw) / s->sw + 1, taps = s->kh * s->kw * s->c;
    const size_t count[3] = { (size_t)(s->n * oh * ow * s->f), (size_t)(s->n * s->h * s->w * s->c),
                              (size_t)(oh * ow * s->f * taps) };
    float *value[3];
    for (int i = 0; i < 3; i++) value[i] = i == role ? output(count[i], beta) : numbers(count[i]);
    double *want = calloc(count[role], sizeof *want);
    for (size_t i = 0; i < count[role]; i++) want[i] = kept(beta, value[role][i]);
    for (int y = 0; y < (int)count[0]; y++)
        for (int t = 0; t < taps; t++) {
            const int place = y / s->f % (oh * ow), n = y / s->f / (oh * ow);
            const int h = place / ow * s->sh + t / (s->kw * s->c), w = place % ow * s->sw + t / s->c % s->kw;
            const int at[3] = { y, ((n * s->h + h) * s->w + w) * s->c + t % s->c,
                                (place * s->f + y % s->f) * taps + t };
            const int a = role == 0, b = role == 2 ? 1 : 2;
            want[at[role]] += (double)value[a][at[a]] * (double)value[b][at[b]];
        }
    array on[3];
    for (int i = 0; i < 3; i++) on[i] = upload(value[i], count[i]);
    dml_launch launch = { .kernel = kernel, .size = { count[role], 1 }, .real = { beta } };
    set_shape(&launch, s);
    launch.integer[11] = oh, launch.integer[12] = ow;
    launch.buffer[0] = at(on[role == 1 ? 0 : 1]);
    launch.buffer[1] = at(on[role == 2 ? 0 : 2]);
    launch.buffer[2] = at(on[role]);
    launch_ok(launch);
    for (int i = 0; i < 3; i++) download(on[i], i == role ? value[i] : NULL);
    check(kernel, value[role], want, count[role], 6);
    for (int i = 0; i < 3; i++) free(value[i]);
    free(want);
}

static void test_local2d_forward(void)
{
    for (int s = quick; s < upto(LOCAL_SHAPES); s++) local_case("local2d_forward", 0, &local_shapes[s], 0);
}

static void test_local2d_backward_input(void)
{
    for (int s = quick; s < upto(LOCAL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++)
            local_case("local2d_backward_input", 1, &local_shapes[s], betas[b]);
}

static void test_local2d_backward_weights(void)
{
    for (int s = quick; s < upto(LOCAL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++)
            local_case("local2d_backward_weights", 2, &local_shapes[s], betas[b]);
}

#endif
