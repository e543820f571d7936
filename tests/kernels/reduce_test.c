#include "kernels/reduce.h"

#include "exact.h"
#include "kernel_test.h"

static double sum64(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

static void check_sums(dml_pool *pool, size_t n, const float *x, const float *y)
{
    double dot = 0, distance = 0, x_size = 0, dot_size = 0;
    for (size_t i = 0; i < n; i++) {
        const double product = (double)x[i] * (double)y[i], difference = (double)x[i] - (double)y[i];
        dot += product, dot_size += fabs(product);
        distance += difference * difference;
        x_size += fabs((double)x[i]);
    }
    CHECK_NEAR(dml_sum_all(pool, n, x), sum64(x, n), exact_roundings(EXACT_SUM, x_size));
    CHECK_NEAR(dml_dot(pool, n, x, y), dot, exact_roundings(EXACT_SUM, dot_size));
    CHECK_NEAR(dml_squared_distance(pool, n, x, y), distance, exact_roundings(EXACT_SUM, distance));
}

static void sums_match_float64(void)
{
    unsigned state = 1;
    for (int s = 0; s < KERNEL_SIZES; s++) {
        const size_t n = kernel_sizes[s];
        float *x = kernel_array(n, &state), *y = kernel_array(n, &state);
        check_sums(NULL, n, x, y);
        kernel_free(x), kernel_free(y);
    }
}

/* Up to a few million. One value again and again is the worst: all roundings are to the same side, and adding
   one by one in float would be off by 1e-4 and more. */
static void long_sums_are_accurate(void)
{
    static const size_t sizes[] = { 5000, 16384, 100001, 1000000, 3000017 };
    unsigned state = 2;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int kind = 0; kind < 3; kind++) {
            const size_t n = sizes[s];
            float *x = kernel_array(n, &state), *y = kernel_array(n, &state);
            for (size_t i = 0; i < n && kind; i++) {
                x[i] = kind == 1 ? 0.1f : 10 + 0.01f * x[i];
                y[i] = kind == 1 ? -0.3f : 1 + y[i];
            }
            check_sums(kernel_pools[2], n, x, y);
            kernel_free(x), kernel_free(y);
        }
}

static void the_same_for_any_threads(void)
{
    enum { N = 200009, COLUMNS = 700 };
    unsigned state = 3;
    float *x = kernel_array(N, &state), *y = kernel_array(N, &state);
    const float sum = dml_sum_all(NULL, N, x), dot = dml_dot(NULL, N, x, y);
    const float distance = dml_squared_distance(NULL, N, x, y), max = dml_max_all(NULL, N, x);
    for (int p = 1; p < KERNEL_POOLS; p++) {
        CHECK(dml_sum_all(kernel_pools[p], N, x) == sum);
        CHECK(dml_dot(kernel_pools[p], N, x, y) == dot);
        CHECK(dml_squared_distance(kernel_pools[p], N, x, y) == distance);
        CHECK(dml_max_all(kernel_pools[p], N, x) == max);
        for (size_t columns = 1; columns <= COLUMNS; columns += 97) {
            float want[COLUMNS], got[COLUMNS];
            dml_sum_rows(NULL, N / columns, columns, x, 0, want);
            dml_sum_rows(kernel_pools[p], N / columns, columns, x, 0, got);
            CHECK_MESSAGE(kernel_same(got, want, columns), "sum_rows of %zu columns, pool %d", columns, p);
        }
    }
    kernel_free(x), kernel_free(y);
}

static void maximum(void)
{
    unsigned state = 4;
    CHECK(dml_max_all(NULL, 0, NULL) == -INFINITY);
    for (int s = 1; s < KERNEL_SIZES; s++) {
        const size_t n = kernel_sizes[s];
        float *x = kernel_array(n, &state);
        for (size_t k = 0; k < 40; k++) {
            const size_t at = k < n ? k : test_random(&state) % n;
            const float old = x[at];
            x[at] = 5;
            CHECK(dml_max_all(kernel_pools[2], n, x) == 5);
            x[at] = NAN;
            CHECK(isnan(dml_max_all(kernel_pools[2], n, x)));
            x[at] = old;
        }
        for (size_t i = 0; i < n; i++) x[i] = -INFINITY;
        CHECK(dml_max_all(NULL, n, x) == -INFINITY);
        kernel_free(x);
    }
}

static const size_t shapes[][2] = { { 0, 3 },     { 1, 1 },     { 2, 3 },    { 1, 100 },   { 100, 1 },
                                    { 7, 8 },     { 129, 31 },  { 700, 10 }, { 2600, 32 }, { 513, 33 },
                                    { 300, 257 }, { 300, 600 }, { 5, 1030 }, { 20001, 3 } };

static void sum_rows_matches_float64(void)
{
    unsigned state = 5;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s][0], columns = shapes[s][1];
        for (int with_beta = 0; with_beta < 2; with_beta++) {
            const float beta = with_beta ? 0.5f : 0;
            float *x = kernel_array(rows * columns, &state), *y = kernel_array(columns, &state);
            float *old = kernel_copy(y, columns);
            if (!with_beta)
                for (size_t c = 0; c < columns; c++) y[c] = NAN;
            dml_sum_rows(NULL, rows, columns, x, beta, y);
            for (size_t c = 0; c < columns; c++) {
                double want = with_beta ? (double)beta * (double)old[c] : 0, size = fabs(want);
                for (size_t r = 0; r < rows; r++) {
                    want += (double)x[r * columns + c];
                    size += fabs((double)x[r * columns + c]);
                }
                CHECK_MESSAGE(fabs((double)y[c] - want) <= exact_roundings(EXACT_SUM_ROWS, size),
                              "%zu x %zu, column %zu: %g, not %g", rows, columns, c, (double)y[c], want);
            }
            kernel_free(x), kernel_free(y), kernel_free(old);
        }
    }
}

/* Few rows of each are summed in another way than many. */
static void sum_axis_matches_float64(void)
{
    static const size_t rows[] = { 0, 1, 2, 3, 32, 33 }, inners[] = { 1, 2, 3, 8, 9, 16, 31, 70 };
    unsigned state = 6;
    for (size_t i = 0; i < 6 * 8 * 4; i++) {
        const size_t n = rows[i % 6], inner = inners[i / 6 % 8], outer = 1 + i / 48 % 2 * 4;
        const float beta = i / 96 ? 0.5f : 0;
        float *x = kernel_array(outer * n * inner, &state), *y = kernel_array(outer * inner, &state);
        float *old = kernel_copy(y, outer * inner);
        for (size_t c = 0; beta == 0 && c < outer * inner; c++) y[c] = NAN;
        dml_sum_axis(NULL, outer, n, inner, x, beta, y);
        for (size_t c = 0; c < outer * inner; c++) {
            double want = beta != 0 ? (double)beta * (double)old[c] : 0, size = fabs(want);
            for (size_t k = 0; k < n; k++) {
                const double more = (double)x[(c / inner * n + k) * inner + c % inner];
                want += more;
                size += fabs(more);
            }
            CHECK_MESSAGE(fabs((double)y[c] - want) <= exact_roundings(EXACT_SUM_ROWS, size),
                          "%zu x %zu x %zu, element %zu: %g, not %g", outer, n, inner, c, (double)y[c], want);
        }
        kernel_free(x), kernel_free(y), kernel_free(old);
    }
    float none = 7;
    dml_sum_axis(NULL, 1, 4, 0, &none, 0, &none);
    dml_sum_axis(NULL, 3, 4, 0, &none, 0, &none);
    CHECK(none == 7);
}

static void argmax_takes_the_first(void)
{
    unsigned state = 6;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s][0], columns = shapes[s][1];
        float *x = kernel_array(rows * columns, &state);
        int32_t *want = (int32_t *)malloc((rows + 1) * sizeof *want),
                *got = (int32_t *)malloc((rows + 1) * 4);
        for (size_t r = 0; r < rows; r++) {
            float *row = x + r * columns;
            const size_t first = test_random(&state) % columns;
            const size_t again = first + test_random(&state) % (columns - first);
            row[first] = row[again] = r % 3 ? 2 : NAN;
            if (r % 3 == 0 && first > 0) row[0] = 7; /* a NaN wins against any number */
            want[r] = (int32_t)first;
        }
        for (int p = 0; p < KERNEL_POOLS; p++) {
            dml_argmax_rows(kernel_pools[p], rows, columns, x, got);
            for (size_t r = 0; r < rows; r++) CHECK_INT(got[r], want[r]);
        }
        kernel_free(x), free(want), free(got);
    }
    const float lowest[3] = { -INFINITY, -INFINITY, -INFINITY };
    int32_t place = 9;
    dml_argmax_rows(NULL, 1, 3, lowest, &place);
    CHECK_INT(place, 0);
}

static void special_values(void)
{
    float x[40];
    for (int i = 0; i < 40; i++) x[i] = 1;
    for (int i = 0; i < 40; i += 13) {
        x[i] = INFINITY;
        CHECK(dml_sum_all(NULL, 40, x) == INFINITY);
        x[i] = NAN;
        CHECK(isnan(dml_sum_all(NULL, 40, x)) && isnan(dml_dot(NULL, 40, x, x)));
        x[i] = 1;
    }
    CHECK(dml_sum_all(NULL, 0, NULL) == 0 && dml_dot(NULL, 0, NULL, NULL) == 0);
}

static void all(void)
{
    sums_match_float64();
    long_sums_are_accurate();
    the_same_for_any_threads();
    maximum();
    sum_rows_matches_float64();
    sum_axis_matches_float64();
    argmax_takes_the_first();
    special_values();
}

static void reduce(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(reduce);
    kernel_pools_close();
    return test_report("kernels/reduce");
}
