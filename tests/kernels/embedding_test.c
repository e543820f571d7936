/* Rows of a table by number, on raw arrays. */
#include "kernels/embedding.h"

#include "kernel_test.h"

/* count, width, rows */
static const size_t shapes[][3] = { { 0, 5, 3 },      { 1, 1, 1 },    { 7, 3, 5 },     { 100, 64, 3 },
                                    { 500, 129, 40 }, { 33, 700, 9 }, { 20000, 2, 11 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void shape_case(size_t count, size_t width, size_t rows, float beta)
{
    unsigned state = 1 + (unsigned)count;
    int32_t *indices = (int32_t *)malloc((count + 1) * sizeof *indices);
    for (size_t i = 0; i < count; i++) indices[i] = (int32_t)(test_random(&state) % (unsigned)rows);
    const size_t n = count * width, nt = rows * width;
    float *table = kernel_array(nt, &state), *dy = kernel_array(n, &state), *y = kernel_array(n, &state);
    float *old = kernel_array(nt, &state), *want = kernel_copy(old, nt);
    for (size_t i = 0; i < nt; i++) want[i] = beta != 0 ? beta * want[i] : 0;
    for (size_t i = 0; i < nt && beta == 0; i++) old[i] = NAN;
    for (size_t i = 0; i < n; i++) want[(size_t)indices[i / width] * width + i % width] += dy[i];
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *dtable = kernel_copy(old, nt);
        for (size_t i = 0; i < n; i++) y[i] = NAN;
        dml_embedding_forward(kernel_pools[p], count, width, indices, table, y);
        for (size_t i = 0; i < n; i++) CHECK(y[i] == table[(size_t)indices[i / width] * width + i % width]);
        dml_embedding_backward(kernel_pools[p], count, width, indices, dy, rows, beta, dtable);
        CHECK(kernel_same(dtable, want, nt)); /* in the order of the indices: the same bits */
        kernel_free(dtable);
    }
    kernel_free(table), kernel_free(dy), kernel_free(y), kernel_free(old), kernel_free(want), free(indices);
}

static void all(void)
{
    static const float betas[] = { 0, 1, 0.5f };
    for (int i = 0; i < SHAPES; i++)
        for (int b = 0; b < 3; b++) shape_case(shapes[i][0], shapes[i][1], shapes[i][2], betas[b]);
}

static void every_isa(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(every_isa);
    kernel_pools_close();
    return test_report("kernels/embedding");
}
