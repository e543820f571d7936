/* Rotary positions on raw arrays against float64. */
#include "kernels/rotary.h"

#include "kernel_test.h"

/* rows, positions, heads, width, turned heads */
static const size_t shapes[][5] = { { 0, 1, 1, 2, 1 },  { 1, 1, 1, 2, 1 },    { 6, 3, 4, 10, 3 },
                                    { 35, 5, 2, 6, 2 }, { 40, 40, 3, 64, 2 }, { 700, 70, 5, 34, 1 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void shape_case(const size_t *at, bool interleaved, float beta)
{
    const dml_rotary_shape s = { at[0], at[1], at[2], at[3], at[4], interleaved, NULL };
    const size_t row = s.heads * s.width, n = s.rows * row, half = s.width / 2;
    const int offset = 3;
    const double base = 500;
    unsigned state = 1 + (unsigned)n;
    float *x = kernel_array(n, &state), *old = kernel_array(n, &state), *y = NULL;
    float *table = kernel_array(s.positions * s.width, &state);
    dml_rotary_table(s.positions, s.width, offset, base, table);
    for (size_t i = 0; i < n && beta == 0; i++) old[i] = NAN;
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *to = kernel_copy(old, n), *over = kernel_copy(x, n);
        dml_rotary_apply(kernel_pools[p], &s, table, false, x, beta, to);
        dml_rotary_apply(kernel_pools[p], &s, table, false, over, 0, over);
        if (beta == 0) CHECK(kernel_same(over, to, n));
        dml_rotary_apply(kernel_pools[p], &s, table, true, over, 0, over);
        for (size_t i = 0; i < n; i++) CHECK_NEAR(over[i], x[i], 6e-7);
        if (y) CHECK(kernel_same(y, to, n));
        kernel_free(over);
        if (y) kernel_free(y);
        y = to;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % s.width, pair = interleaved ? c / 2 : c % half;
        const bool second = interleaved ? c % 2 : c >= half;
        const size_t apart = interleaved ? 1 : half, other = second ? i - apart : i + apart;
        const double angle =
            ((double)(i / row % s.positions) + offset) * pow(base, -2.0 * (double)pair / (double)s.width);
        double want = (double)x[i] * cos(angle) + (second ? 1 : -1) * (double)x[other] * sin(angle);
        if (i / s.width % s.heads >= s.rotated) want = x[i];
        CHECK_NEAR(y[i], want + (beta == 0 ? 0 : (double)beta * (double)old[i]), 4e-7);
    }
    kernel_free(x), kernel_free(old), kernel_free(y), kernel_free(table);
}

static void all(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int how = 0; how < 4; how++) shape_case(shapes[i], how % 2, how < 2 ? 0 : 0.5f);
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
    return test_report("kernels/rotary");
}
