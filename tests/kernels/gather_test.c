#include "kernels/gather.h"

#include "kernel_test.h"

/* outer, n, inner, m, group */
static const size_t shapes[][5] = { { 0, 3, 2, 2, 1 },    { 1, 1, 1, 1, 1 },  { 6, 5, 9, 7, 3 },
                                    { 300, 40, 1, 3, 1 }, { 2, 4, 64, 0, 2 }, { 8, 30, 33, 50, 4 },
                                    { 700, 3, 17, 5, 7 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int32_t *indices_create(size_t count, size_t n, unsigned *state)
{
    int32_t *indices = (int32_t *)malloc((count + 1) * sizeof *indices);
    for (size_t i = 0; i < count; i++) indices[i] = (int32_t)(test_random(state) % (unsigned)n);
    return indices;
}

static void by_its_definition(void)
{
    unsigned state = 1;
    for (int s = 0; s < 2 * SHAPES; s++) {
        const size_t *d = shapes[s / 2];
        const dml_gather_shape shape = { d[0], d[1], d[2], d[3], d[4], s % 2 };
        const size_t nx = d[0] * d[1] * d[2], ny = d[0] * d[3] * d[2];
        int32_t *indices = indices_create(s % 2 ? ny : d[0] / d[4] * d[3], d[1], &state);
        float *x = kernel_array(nx, &state), *y = kernel_array(ny, &state), *want = kernel_array(ny, &state);
        float *dx = kernel_array(nx, &state), *old = kernel_copy(dx, nx), *want_dx = kernel_array(nx, &state);
        for (int b = 0; b < 3; b++) {
            const float beta = (float)b / 2;
            for (size_t i = 0; i < nx; i++) want_dx[i] = b ? beta * old[i] : 0;
            for (size_t i = 0; i < ny; i++) {
                const size_t o = i / d[2] / d[3], j = i / d[2] % d[3];
                const size_t k = (size_t)indices[s % 2 ? i : o / d[4] * d[3] + j];
                want[i] = x[(o * d[1] + k) * d[2] + i % d[2]];
                want_dx[(o * d[1] + k) * d[2] + i % d[2]] += want[i];
            }
            for (int p = 0; p < KERNEL_POOLS; p++) {
                for (size_t i = 0; i < nx; i++) dx[i] = b ? old[i] : NAN;
                dml_gather_forward(kernel_pools[p], &shape, indices, x, y);
                dml_gather_backward(kernel_pools[p], &shape, indices, y, beta, dx);
                CHECK_MESSAGE(kernel_same(y, want, ny), "shape %d, pool %d", s, p);
                CHECK_MESSAGE(kernel_same(dx, want_dx, nx), "shape %d, pool %d, beta %g", s, p, (double)beta);
            }
        }
        kernel_free(x), kernel_free(y), kernel_free(want), kernel_free(dx), kernel_free(old),
            kernel_free(want_dx);
        free(indices);
    }
}

static void gather(void)
{
    kernel_each_isa(by_its_definition);
}

int main(void)
{
    kernel_pools_open();
    RUN(gather);
    kernel_pools_close();
    return test_report("kernels/gather");
}
