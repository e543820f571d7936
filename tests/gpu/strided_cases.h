/* strided_cases.h: the kernels of strided.cl, for kernels_test.c. */
#ifndef DML_TESTS_GPU_STRIDED_CASES_H
#define DML_TESTS_GPU_STRIDED_CASES_H

#include "kernel_cases.h"

/* count and step of each dimension */
static const int strided_shapes[][2][6] = {
    { { 1, 1, 1, 1, 1, 1 }, { 1, 0, 0, 0, 0, 0 } },
    { { 3, 2, 1, 5, 4, 3 }, { 200, 5, 0, 40, 10, 1 } },
    { { 2, 1, 1, 1, 19, 17 }, { 400, 0, 0, 0, 1, 19 } },
};
enum { STRIDED_SHAPES = sizeof strided_shapes / sizeof strided_shapes[0] };

static void strided_case(const int shape[2][6], bool unpacks, float beta)
{
    size_t n = 1, most = 1;
    for (int d = 0; d < 6; d++) {
        n *= (size_t)shape[0][d];
        most += (size_t)((shape[0][d] - 1) * shape[1][d]);
    }
    const size_t n_to = unpacks ? most : n, n_from = unpacks ? n : most;
    float *from = numbers(n_from), *to = unpacks ? numbers(n_to) : output(n_to, beta);
    double *want = malloc(n_to * sizeof *want);
    for (size_t i = 0; i < n_to; i++) want[i] = (double)to[i];
    for (size_t i = 0; i < n; i++) {
        size_t rest = i, place = 0;
        for (int d = 5; d >= 0; d--) {
            place += rest % (size_t)shape[0][d] * (size_t)shape[1][d];
            rest /= (size_t)shape[0][d];
        }
        const size_t at_to = unpacks ? place : i;
        if (beta == 0) to[at_to] = NAN;
        want[at_to] = (double)from[unpacks ? i : place] + kept(beta, to[at_to]);
    }
    array af = upload(from, n_from), at_to = upload(to, n_to);
    dml_launch launch = { .kernel = unpacks ? "strided_unpack" : "strided_pack",
                          .size = { n, 1 },
                          .buffer = { at(af), at(at_to) },
                          .integer = { (int)n },
                          .real = { beta } };
    for (int d = 1; d < 6; d++) launch.integer[d] = shape[0][d];
    for (int d = 0; d < 6; d++) launch.integer[6 + d] = shape[1][d];
    launch_ok(launch);
    download(af, NULL), download(at_to, to);
    check(launch.kernel, to, want, n_to, 1);
    free(from), free(to), free(want);
}

static void test_strided_pack(void)
{
    for (int s = quick; s < upto(STRIDED_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) strided_case(strided_shapes[s], false, betas[b]);
}

static void test_strided_unpack(void)
{
    for (int s = quick; s < upto(STRIDED_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) strided_case(strided_shapes[s], true, betas[b]);
}

#endif
