/* Layer, RMS and group normalization on raw arrays against float64. */
#include "kernels/row_norm.h"

#include "kernels/group_norm.h"

#include "kernel_test.h"

/* Rows of a part of a vector, of a strip, of several chunks; for one task and for many. */
static const size_t shapes[][2] = { { 0, 5 },    { 3, 0 },    { 1, 1 },    { 3, 7 },    { 5, 8 },
                                    { 33, 31 },  { 200, 32 }, { 700, 45 }, { 64, 768 }, { 40, 1031 },
                                    { 2, 5000 }, { 300, 1 },  { 1, 20000 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const float epsilon = 1e-3f;
static double largest_inverse; /* of a case */

/* `of` numbers of which those with `same` are normalized together: their mean and 1 / deviation. */
static void statistics64(const float *x, const size_t *place, size_t count, bool by_square, double out[2])
{
    double mean = 0, square = 0;
    for (size_t i = 0; i < count && !by_square; i++) mean += (double)x[place[i]] / (double)count;
    for (size_t i = 0; i < count; i++) square += pow((double)x[place[i]] - mean, 2) / (double)count;
    out[0] = mean;
    out[1] = 1 / sqrt(square + (double)epsilon);
}

/* What both kernels compute, for one group; `channel` of a place is its rest by `channels`. Adds to dscale
   and dshift. */
static void exact_group(const float *x, const float *dy, const float *scale, const float *shift,
                        const size_t *place, size_t count, size_t channels, bool by_square, double *y,
                        double *dx, double *dscale, double *dshift)
{
    double s[2], sum = 0, product = 0;
    statistics64(x, place, count, by_square, s);
    if (s[1] > largest_inverse) largest_inverse = s[1];
    for (size_t i = 0; i < count; i++) {
        const size_t p = place[i], c = p % channels;
        const double hat = ((double)x[p] - s[0]) * s[1], g = (double)dy[p] * (scale ? (double)scale[c] : 1);
        y[p] = hat * (scale ? (double)scale[c] : 1) + (shift ? (double)shift[c] : 0);
        dshift[c] += (double)dy[p];
        dscale[c] += (double)dy[p] * hat;
        sum += by_square ? 0 : g / (double)count;
        product += g * hat / (double)count;
    }
    for (size_t i = 0; i < count; i++) {
        const size_t p = place[i];
        const double hat = ((double)x[p] - s[0]) * s[1];
        const double g = (double)dy[p] * (scale ? (double)scale[p % channels] : 1);
        dx[p] = s[1] * (g - sum - hat * product);
    }
}

typedef struct data {
    size_t n, channels;
    float *x, *dy, *dx, *y, *scale, *shift;
    double *want_y, *want_dx, *dscale, *dshift;
    size_t *place;
} data;

static data data_create(size_t rows, size_t channels, float offset)
{
    data d;
    largest_inverse = 1;
    unsigned state = 3 + (unsigned)rows;
    d.n = rows * channels, d.channels = channels;
    d.x = kernel_array(d.n, &state), d.dy = kernel_array(d.n, &state), d.dx = kernel_array(d.n, &state);
    d.y = kernel_array(d.n, &state), d.scale = kernel_array(channels, &state);
    d.shift = kernel_array(channels, &state);
    for (size_t i = 0; i < d.n; i++) d.x[i] += offset;
    d.want_y = (double *)calloc(d.n + 1, sizeof(double)),
    d.want_dx = (double *)calloc(d.n + 1, sizeof(double));
    d.dscale = (double *)calloc(channels + 1, sizeof(double));
    d.dshift = (double *)calloc(channels + 1, sizeof(double));
    d.place = (size_t *)malloc((d.n + 1) * sizeof(size_t));
    return d;
}

static void data_destroy(data *d)
{
    kernel_free(d->x), kernel_free(d->dy), kernel_free(d->dx), kernel_free(d->y), kernel_free(d->scale);
    kernel_free(d->shift), free(d->want_y), free(d->want_dx), free(d->dscale), free(d->dshift);
    free(d->place);
}

/* In roundings of 1 and of what x is off by, in deviations: the distances from the mean are differences of
   such numbers. */
static void check_all(const data *d, const float *dx, float beta, double offset)
{
    const double size = ldexp(20 + 2 * offset * largest_inverse, -24);
    for (size_t i = 0; i < d->n; i++) {
        CHECK_NEAR(d->y[i], d->want_y[i], size * (2 + fabs(d->want_y[i])) * 2);
        CHECK_NEAR(dx[i], d->want_dx[i] + (double)beta * (double)d->dx[i],
                   size * (3 * largest_inverse + fabs(d->want_dx[i])) * 2);
    }
}

static void check_parameters(const data *d, const float *parts, size_t count, size_t rows, double offset)
{
    for (size_t c = 0; c < d->channels; c++) {
        double shift = 0, scale = 0;
        for (size_t p = 0; p < count; p++) {
            shift += (double)parts[p * d->channels + c];
            scale += (double)parts[(count + p) * d->channels + c];
        }
        CHECK_NEAR(shift, d->dshift[c], 1e-6 * ((double)rows + 1));
        CHECK_NEAR(scale, d->dscale[c], (1e-6 + offset * 2e-7 * largest_inverse) * ((double)rows + 1));
    }
}

static void rows_case(const size_t *shape, bool by_square, bool affine, float offset)
{
    const size_t rows = shape[0], columns = shape[1], count = columns ? dml_row_norm_parts(rows, columns) : 0;
    data d = data_create(rows, columns, offset);
    const dml_row_normalization by = { affine ? d.scale : NULL, affine ? d.shift : NULL, epsilon, by_square };
    unsigned state = 9;
    float *statistics = kernel_array(2 * rows, &state), *parts = kernel_array(2 * count * columns, &state);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) d.place[c] = r * columns + c;
        exact_group(d.x, d.dy, by.scale, by.shift, d.place, columns, columns, by_square, d.want_y, d.want_dx,
                    d.dscale, d.dshift);
    }
    for (size_t i = 0; i < d.n; i++) d.y[i] = NAN;
    dml_row_norm_forward(NULL, rows, columns, d.x, &by, statistics, d.y);
    for (int with_beta = 0; with_beta < 2; with_beta++) {
        const float beta = with_beta ? 0.5f : 0;
        float *dx = kernel_copy(d.dx, d.n), *in_place = kernel_copy(d.dy, d.n);
        for (size_t k = 0; !with_beta && k < d.n; k++) dx[k] = NAN;
        dml_row_norm_backward(NULL, rows, columns, d.x, &by, statistics, d.dy, beta, dx, parts);
        check_all(&d, dx, beta, (double)offset);
        check_parameters(&d, parts, count, rows, (double)offset);
        if (!with_beta) { /* over dy, and dx alone */
            dml_row_norm_backward(NULL, rows, columns, d.x, &by, statistics, in_place, 0, in_place, NULL);
            CHECK(kernel_same(dx, in_place, d.n));
        }
        for (int p = 1; p < KERNEL_POOLS; p++) {
            float *y = kernel_copy(d.x, d.n), *dx2 = kernel_copy(with_beta ? d.dx : d.dy, d.n);
            float *statistics2 = kernel_copy(statistics, 2 * rows);
            float *parts2 = kernel_copy(parts, 2 * count * columns);
            for (size_t k = 0; k < 2 * rows; k++) statistics2[k] = NAN;
            dml_row_norm_forward(kernel_pools[p], rows, columns, y, &by, statistics2, y);
            dml_row_norm_backward(kernel_pools[p], rows, columns, d.x, &by, statistics2,
                                  with_beta ? d.dy : dx2, beta, dx2, parts2);
            CHECK(kernel_same(y, d.y, d.n) && kernel_same(dx2, dx, d.n));
            if (columns) CHECK(kernel_same(statistics, statistics2, 2 * rows));
            CHECK(kernel_same(parts, parts2, 2 * count * columns));
            kernel_free(y), kernel_free(dx2), kernel_free(statistics2), kernel_free(parts2);
        }
        kernel_free(dx), kernel_free(in_place);
    }
    kernel_free(statistics), kernel_free(parts);
    data_destroy(&d);
}

static void rows_are_close(void)
{
    for (int i = 0; i < SHAPES; i++)
        for (int how = 0; how < 4; how++) {
            if (TEST_EMULATOR && how == 3) continue;
            rows_case(shapes[i], how == 1, how != 2, how == 3 ? 300.0f : 0.5f);
        }
}

/* samples, pixels, channels, groups */
static const size_t group_shapes[][4] = {
    { 0, 3, 4, 2 },   { 1, 1, 1, 1 },    { 3, 20, 6, 2 },   { 2, 35, 12, 12 },
    { 2, 49, 33, 1 }, { 1, 900, 24, 3 }, { 3, 2, 1200, 5 }, { 2, 1, 1100, 550 },
};
enum { GROUP_SHAPES = sizeof group_shapes / sizeof group_shapes[0] };

static void groups_case(const size_t *shape, bool affine, float offset)
{
    const dml_group_norm_shape s = { shape[0], shape[1], shape[2], shape[3] };
    const size_t rows = s.samples * s.pixels, width = s.channels / s.groups, np = 2 * s.samples * s.channels;
    data d = data_create(rows, s.channels, offset);
    const float *scale = affine ? d.scale : NULL, *shift = affine ? d.shift : NULL;
    unsigned state = 9;
    float *statistics = kernel_array(np, &state), *parts = kernel_array(np, &state);
    for (size_t g = 0; g < s.samples * s.groups; g++) {
        const size_t first = g / s.groups * s.pixels * s.channels + g % s.groups * width;
        for (size_t k = 0; k < s.pixels * width; k++) d.place[k] = first + k / width * s.channels + k % width;
        exact_group(d.x, d.dy, scale, shift, d.place, s.pixels * width, s.channels, false, d.want_y,
                    d.want_dx, d.dscale, d.dshift);
    }
    dml_group_norm_forward(NULL, &s, d.x, scale, shift, epsilon, statistics, d.y);
    for (int with_beta = 0; with_beta < 2; with_beta++) {
        const float beta = with_beta ? 0.5f : 0;
        float *dx = kernel_copy(d.dx, d.n);
        for (size_t k = 0; !with_beta && k < d.n; k++) dx[k] = NAN;
        dml_group_norm_backward(NULL, &s, d.x, scale, epsilon, statistics, d.dy, parts, beta, dx);
        check_all(&d, dx, beta, (double)offset);
        check_parameters(&d, parts, s.samples, rows, (double)offset);
        for (int p = 1; p < KERNEL_POOLS; p++) {
            float *y = kernel_copy(d.x, d.n), *dx2 = kernel_copy(with_beta ? d.dx : d.dy, d.n);
            float *statistics2 = kernel_copy(statistics, np), *parts2 = kernel_copy(parts, np);
            dml_group_norm_forward(kernel_pools[p], &s, y, scale, shift, epsilon, statistics2, y);
            dml_group_norm_backward(kernel_pools[p], &s, d.x, scale, epsilon, statistics2,
                                    with_beta ? d.dy : dx2, parts2, beta, dx2);
            CHECK(kernel_same(y, d.y, d.n) && kernel_same(dx2, dx, d.n));
            CHECK(kernel_same(statistics, statistics2, np) && kernel_same(parts, parts2, np));
            kernel_free(y), kernel_free(dx2), kernel_free(statistics2), kernel_free(parts2);
        }
        kernel_free(dx);
    }
    kernel_free(statistics), kernel_free(parts);
    data_destroy(&d);
}

static void groups_are_close(void)
{
    for (int i = 0; i < GROUP_SHAPES; i++)
        for (int how = 0; how < 3; how++) groups_case(group_shapes[i], how != 1, how == 2 ? 300.0f : 0.5f);
}

/* A NaN or an infinity spoils its row and no other; large and small numbers don't overflow the sums. */
static void special_values(void)
{
    enum { ROWS = 5, N = 37 };
    float x[ROWS * N], y[ROWS * N], statistics[2 * ROWS];
    unsigned state = 5;
    const dml_row_normalization by = { NULL, NULL, epsilon, false };
    test_fill(&state, x, ROWS * N);
    x[N + 36] = NAN, x[2 * N] = INFINITY;
    for (int i = 0; i < N; i++) x[3 * N + i] = 1e4f, x[4 * N + i] *= 1e15f;
    dml_row_norm_forward(NULL, ROWS, N, x, &by, statistics, y);
    for (int i = 0; i < N; i++) {
        CHECK(isfinite(y[i]) && isnan(y[N + i]) && isnan(y[2 * N + i]));
        CHECK(y[3 * N + i] == 0 && isfinite(y[4 * N + i]) && fabsf(y[4 * N + i]) < 6);
    }
}

static void all(void)
{
    rows_are_close();
    groups_are_close();
    special_values();
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
    return test_report("kernels/row_norm");
}
