/* reduce_cases.h: the cases of reductions along an axis, softmax and gather; included by kernels_test.c. */
#ifndef DML_TESTS_GPU_REDUCE_CASES_H
#define DML_TESTS_GPU_REDUCE_CASES_H

#include "kernel_cases.h"

/* The rows of one in parts, of which the last has fewer, and one has none. */
static void sum_rows_in_parts(void)
{
    enum { ROWS = 100, PART = 21, PARTS = 6, COLUMNS = 5 };
    float *x = numbers(ROWS * COLUMNS), *y = output(PARTS * COLUMNS, 0);
    double want[PARTS * COLUMNS] = { 0 };
    for (int i = 0; i < ROWS * COLUMNS; i++) want[i / COLUMNS / PART * COLUMNS + i % COLUMNS] += (double)x[i];
    array a = upload(x, ROWS * COLUMNS), d = upload(y, PARTS * COLUMNS);
    launch_ok((dml_launch){ .kernel = "sum_rows",
                            .size = { COLUMNS, PARTS },
                            .buffer = { at(a), at(d) },
                            .integer = { PART, COLUMNS, PARTS, ROWS } });
    download(a, NULL), download(d, y);
    check("sum_rows in parts", y, want, PARTS * COLUMNS, 5);
    free(x), free(y);
}

static void test_sum_rows(void)
{
    static const int shapes[][3] = { { 1, 1, 1 },   { 100, 37, 3 }, { 15, 16, 1 },
                                     { 3, 50, 2 },  { 0, 5, 2 },    { 3001, 3, 1 },
                                     { 129, 8, 2 }, { 700, 1, 2 },  { 257, 130, 1 } };
    for (int s = quick; s < upto(9); s++) {
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t rows = (size_t)shapes[s][0], columns = (size_t)shapes[s][1];
            const size_t outer = (size_t)shapes[s][2], n = outer * rows * columns;
            float *x = numbers(n), *y = output(outer * columns, betas[b]);
            double *want = malloc(outer * columns * sizeof *want);
            for (size_t i = 0; i < outer * columns; i++) want[i] = kept(betas[b], y[i]);
            for (size_t i = 0; i < n; i++) want[i / columns / rows * columns + i % columns] += (double)x[i];
            array a = upload(x, n), d = upload(y, outer * columns);
            launch_ok((dml_launch){ .kernel = "sum_rows",
                                    .size = { columns, outer },
                                    .buffer = { at(a), at(d) },
                                    .integer = { (int)rows, (int)columns, (int)outer },
                                    .real = { betas[b] } });
            download(a, NULL), download(d, y);
            check("sum_rows", y, want, outer * columns, 5 + 0.01 * (double)rows);
            free(x), free(y), free(want);
        }
    }
    sum_rows_in_parts();
}

static void test_argmax(void)
{
    static const int shapes[][2] = { { 1, 1 }, { 37, 10 }, { 16, 16 }, { 5, 100 }, { 3, 17 } };
    for (int s = quick; s < upto(5); s++) {
        const size_t rows = (size_t)shapes[s][0], columns = (size_t)shapes[s][1];
        float *x = numbers(rows * columns);
        int *out = calloc(rows, sizeof *out);
        for (size_t i = 0; i < rows * columns; i++) {
            x[i] = floorf(x[i] * 4); /* many equals */
            if (i / columns == 1) x[i] = -INFINITY;
            if (i / columns == 2 && i % columns % 7 == 3) x[i] = NAN; /* counts as the largest */
        }
        array a = upload(x, rows * columns), b = upload(out, rows);
        launch_ok((dml_launch){ .kernel = "argmax",
                                .size = { rows, 1 },
                                .buffer = { at(a), at(b) },
                                .integer = { (int)rows, (int)columns } });
        download(a, NULL), download(b, out);
        for (size_t r = 0; r < rows; r++) {
            const float *row = x + r * columns;
            size_t best = 0;
            for (size_t c = 1; c < columns; c++)
                if (row[c] > row[best] || (isnan(row[c]) && !isnan(row[best]))) best = c;
            CHECK_INT(out[r], best);
        }
        free(x), free(out);
    }
}

static const int reduce_shapes[][3] = { { 1, 1, 1 },   { 37, 20, 1 }, { 3, 17, 5 },
                                        { 5, 16, 16 }, { 2, 300, 1 }, { 1, 3, 40 } };
enum { REDUCE_SHAPES = sizeof reduce_shapes / sizeof reduce_shapes[0] };

/* Forward and backward of one kind; 5 is how many are `of`. */
static void reduce_case(const int *shape, int kind, float beta)
{
    const size_t n = (size_t)shape[1], inner = (size_t)shape[2], ny = (size_t)shape[0] * inner, nx = ny * n;
    const float scale = kind == 0 ? 0.5f : 1;
    float *x = numbers(nx), *y = output(ny, 0), *of = numbers(ny), *dy = numbers(ny), *dx = output(nx, beta);
    double *want = malloc(ny * sizeof *want), *want_dx = malloc(nx * sizeof *want_dx);
    for (size_t i = 0; i < nx; i++) x[i] = floorf(x[i] * 8) / 4;
    for (size_t r = 0; r < ny; r++) {
        const float *from = x + r / inner * n * inner + r % inner;
        double sum = 0, sizes = 0, squares = 0, largest = -HUGE_VAL, smallest = HUGE_VAL, equal = 0;
        for (size_t k = 0; k < n; k++) {
            const double v = from[k * inner];
            sum += v, sizes += fabs(v), squares += v * v;
            largest = fmax(largest, v), smallest = fmin(smallest, v);
        }
        of[r] = (float)(r % 2 ? largest : smallest);
        for (size_t k = 0; k < n; k++) equal += from[k * inner] == of[r];
        const double all[] = { (double)scale * sum, largest, smallest, sizes, sqrt(squares), equal };
        want[r] = all[kind];
    }
    array ax = upload(x, nx), ay = upload(y, ny), ao = upload(of, ny);
    dml_launch launch = { .kernel = "reduce_axis",
                          .size = { ny, 1 },
                          .buffer = { at(ax), at(ay), at(ao) },
                          .integer = { kind, (int)n, (int)inner, (int)ny },
                          .real = { scale } };
    launch_ok(launch);
    download(ax, NULL), download(ay, y), download(ao, NULL);
    check("reduce_axis", y, want, ny, 5);
    if (kind < 5) {
        for (size_t r = 0; r < ny; r++) {
            of[r] = 0;
            for (size_t k = 0; k < n; k++) of[r] += x[r / inner * n * inner + r % inner + k * inner] == y[r];
        }
        for (size_t i = 0; i < nx; i++) {
            const size_t r = i / inner / n * inner + i % inner;
            const double v = x[i], d = (double)scale * (double)dy[r];
            const double all[] = { d, v == (double)y[r] ? d / (double)of[r] : 0, 0,
                                   v > 0   ? d
                                   : v < 0 ? -d
                                           : 0,
                                   y[r] > 0 ? v * d / (double)y[r] : 0 };
            want_dx[i] = all[kind == 2 ? 1 : kind] + kept(beta, dx[i]);
        }
        ax = upload(x, nx), ay = upload(y, ny), ao = upload(of, ny);
        array ad = upload(dy, ny), ag = upload(dx, nx);
        launch.kernel = "reduce_axis_backward";
        launch.size[0] = nx;
        launch.buffer[2] = at(ao), launch.buffer[0] = at(ax), launch.buffer[1] = at(ay);
        launch.buffer[3] = at(ad), launch.buffer[4] = at(ag);
        launch.integer[3] = (int)nx;
        launch.real[1] = beta;
        launch_ok(launch);
        download(ax, NULL), download(ay, NULL), download(ao, NULL), download(ad, NULL), download(ag, dx);
        check("reduce_axis_backward", dx, want_dx, nx, 1);
    }
    free(x), free(y), free(of), free(dy), free(dx), free(want), free(want_dx);
}

static void test_reduce_axis(void)
{
    for (int s = quick; s < upto(REDUCE_SHAPES); s++)
        for (int kind = 0; kind < 6; kind++) reduce_case(reduce_shapes[s], kind, 0);
    float x[2] = { 1, NAN }, y = 0; /* the largest, and the smallest */
    for (int kind = 1; kind < 3; kind++) {
        array ax = upload(x, 2), ay = upload(&y, 1);
        launch_ok((dml_launch){ .kernel = "reduce_axis",
                                .size = { 1, 1 },
                                .buffer = { at(ax), at(ay) },
                                .integer = { kind, 2, 1, 1 },
                                .real = { 1 } });
        download(ax, NULL), download(ay, &y);
        CHECK(isnan(y));
    }
}

static void test_reduce_axis_backward(void)
{
    for (int kind = 0; kind < 5; kind++) reduce_case(reduce_shapes[2], kind, betas[1 + kind % 2]);
}

/* The last axis with 16 and with 256 items a row, and others. */
static void softmax_axis_case(const int *shape, int logs, int lanes, float beta, bool backward)
{
    const size_t n = (size_t)shape[1], inner = (size_t)shape[2], rows = (size_t)shape[0] * inner,
                 all = rows * n;
    const size_t in_group = (size_t)(256 / lanes);
    float *x = numbers(all), *y = output(all, 0), *dy = numbers(all), *dx = output(all, beta);
    double *want = malloc(all * sizeof *want);
    for (size_t i = 0; i < all; i++) x[i] = x[i] * 4 + 1e3f;
    for (size_t i = 0; i < all; i++) {
        const size_t first = i / inner / n * n * inner + i % inner;
        double sum = 0, largest = -HUGE_VAL, products = 0;
        for (size_t k = 0; k < n; k++) largest = fmax(largest, (double)x[first + k * inner]);
        for (size_t k = 0; k < n; k++) sum += exp((double)x[first + k * inner] - largest);
        for (size_t k = 0; k < n; k++)
            products += (double)dy[first + k * inner] *
                        (logs ? 1 : exp((double)x[first + k * inner] - largest) / sum);
        const double p = exp((double)x[i] - largest) / sum, d = dy[i];
        want[i] = logs ? log(p) : p;
        y[i] = backward ? (float)want[i] : NAN;
        if (backward) want[i] = (logs ? d - p * products : p * (d - products)) + kept(beta, dx[i]);
    }
    array ax = upload(x, all), ay = upload(y, all), ad = upload(dy, all), ag = upload(dx, all);
    dml_launch launch = { .kernel = backward ? "softmax_backward" : "softmax_forward",
                          .size = { rows / in_group + (rows % in_group != 0), 1 },
                          .buffer = { at(ax), at(ay) },
                          .integer = { (int)n, (int)inner, (int)rows, logs, lanes },
                          .real = { beta } };
    if (backward) launch.buffer[0] = at(ay), launch.buffer[1] = at(ad), launch.buffer[2] = at(ag);
    launch_ok(launch);
    download(ax, NULL), download(ay, y), download(ad, NULL), download(ag, dx);
    check(launch.kernel, backward ? dx : y, want, all, backward ? 5 : 0.5);
    free(x), free(y), free(dy), free(dx), free(want);
}

/* A row that begins with minus infinities, more than an item reads at once. */
static void softmax_of_masked_row(void)
{
    enum { N = 5000, MASKED = 4800 };
    float *x = numbers(N), *y = output(N, 0);
    double *want = malloc(N * sizeof *want), sum = 0;
    for (int i = 0; i < MASKED; i++) x[i] = -INFINITY;
    for (int i = 0; i < N; i++) sum += exp((double)x[i]);
    for (int i = 0; i < N; i++) want[i] = exp((double)x[i]) / sum;
    array ax = upload(x, N), ay = upload(y, N);
    launch_ok((dml_launch){ .kernel = "softmax_forward",
                            .size = { 1, 1 },
                            .buffer = { at(ax), at(ay) },
                            .integer = { N, 1, 1, 0, 256 } });
    download(ax, NULL), download(ay, y);
    check("softmax_forward of a masked row", y, want, N, 0.5);
    free(x), free(y), free(want);
}

static void softmax_axis(bool backward)
{
    for (int s = quick; s < upto(REDUCE_SHAPES); s++)
        for (int logs = 0; logs < 2; logs++) {
            softmax_axis_case(reduce_shapes[s], logs, 16, betas[s % BETAS], backward);
            if (reduce_shapes[s][2] == 1) softmax_axis_case(reduce_shapes[s], logs, 256, 0, backward);
        }
    static const int long_rows[][4] = { { 3, 1025, 1, 64 }, { 2, 4096, 1, 256 }, { 2, 4099, 1, 256 },
                                        { 2, 257, 3, 16 },  { 3, 513, 1, 16 },   { 2, 9000, 1, 64 } };
    for (int s = 0; s < upto(6); s++)
        softmax_axis_case(long_rows[s], s % 2, long_rows[s][3], betas[s % 3], backward);
    if (!backward) softmax_of_masked_row();
}

static void test_softmax_forward(void)
{
    softmax_axis(false);
}

static void test_softmax_backward(void)
{
    softmax_axis(true);
}

/* outer, n, inner, m, group */
static const int gather_shapes[][5] = {
    { 1, 1, 1, 1, 1 }, { 6, 5, 7, 9, 2 }, { 4, 30, 1, 3, 4 }, { 30, 2, 5, 4, 1 }
};
enum { GATHER_SHAPES = sizeof gather_shapes / sizeof gather_shapes[0] };

static void gather_case(const int *shape, int elements, float beta, bool backward)
{
    const size_t outer = (size_t)shape[0], n = (size_t)shape[1], inner = (size_t)shape[2],
                 m = (size_t)shape[3];
    const size_t nx = outer * n * inner, ny = outer * m * inner, to = backward ? nx : ny;
    const size_t ni = elements ? ny : outer / (size_t)shape[4] * m;
    int32_t *indices = malloc((ni + 1) * sizeof *indices);
    float *x = numbers(backward ? ny : nx), *y = output(to, backward ? beta : 0);
    double *want = malloc(to * sizeof *want);
    for (size_t i = 0; i < ni; i++) indices[i] = (int32_t)(test_random(&seed) % n);
    for (size_t i = 0; backward && i < nx; i++) want[i] = kept(beta, y[i]);
    for (size_t i = 0; i < ny; i++) {
        const size_t o = i / inner / m, j = i / inner % m;
        const size_t k = (size_t)indices[elements ? i : o / (size_t)shape[4] * m + j];
        const size_t place = (o * n + k) * inner + i % inner;
        if (backward)
            want[place] += (double)x[i];
        else
            want[i] = (double)x[place];
    }
    array ai = upload(indices, ni), ax = upload(x, backward ? ny : nx), ay = upload(y, to);
    launch_ok((dml_launch){ .kernel = backward ? "gather_backward" : "gather_forward",
                            .size = { to, 1 },
                            .buffer = { at(ai), at(ax), at(ay) },
                            .integer = { shape[1], shape[2], shape[3], shape[4], elements, (int)to },
                            .real = { beta } });
    download(ai, NULL), download(ax, NULL), download(ay, y);
    check(backward ? "gather_backward" : "gather_forward", y, want, to, backward ? 5 : 0);
    free(indices), free(x), free(y), free(want);
}

static void test_gather_forward(void)
{
    for (int s = quick; s < upto(GATHER_SHAPES); s++)
        for (int elements = 0; elements < 2; elements++) gather_case(gather_shapes[s], elements, 0, false);
}

static void test_gather_backward(void)
{
    for (int s = quick; s < upto(GATHER_SHAPES); s++)
        for (int elements = 0; elements < 2; elements++)
            gather_case(gather_shapes[s], elements, betas[(s + elements) % BETAS], true);
}

#endif
