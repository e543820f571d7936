#include "kernels/norm.h"

#include "kernels/elementwise.h"

#include "exact.h"
#include "kernel_test.h"

/* Channels that fill no vector, one, several and more than are done at once; rows for one task and for many.
 */
static const size_t shapes[][2] = {
    { 0, 3 },    { 1, 1 },     { 1, 20 },   { 2, 7 },     { 5, 16 },     { 40, 1 },    { 33, 3 },
    { 1000, 5 }, { 2049, 16 }, { 700, 31 }, { 300, 32 },  { 3000, 33 },  { 5000, 64 }, { 200, 100 },
    { 70, 129 }, { 40, 523 },  { 3, 1100 }, { 70000, 2 }, { 20000, 24 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct data {
    size_t rows, channels, n;
    float *x, *dy, *dx, *scale, *shift, *mean, *variance, *y, *dscale, *dshift;
    double *mean64, *variance64;
} data;

static const float epsilon = 1e-3f;

static data data_create(size_t rows, size_t channels)
{
    data d;
    unsigned state = 1 + (unsigned)channels;
    d.rows = rows, d.channels = channels, d.n = rows * channels;
    d.x = kernel_array(d.n, &state), d.dy = kernel_array(d.n, &state), d.dx = kernel_array(d.n, &state);
    d.y = kernel_array(d.n, &state);
    d.scale = kernel_array(channels, &state), d.shift = kernel_array(channels, &state);
    d.mean = kernel_array(channels, &state), d.variance = kernel_array(channels, &state);
    d.dscale = kernel_array(channels, &state), d.dshift = kernel_array(channels, &state);
    d.mean64 = (double *)malloc(channels * sizeof(double));
    d.variance64 = (double *)malloc(channels * sizeof(double));
    return d;
}

static void data_destroy(data *d)
{
    kernel_free(d->x), kernel_free(d->dy), kernel_free(d->dx), kernel_free(d->y), kernel_free(d->scale);
    kernel_free(d->shift), kernel_free(d->mean), kernel_free(d->variance), kernel_free(d->dscale);
    kernel_free(d->dshift), free(d->mean64), free(d->variance64);
}

static dml_normalization by_of(const data *d, dml_activation activation)
{
    const dml_normalization by = { d->mean, d->variance, d->scale, d->shift, epsilon, activation };
    return by;
}

static void statistics64(data *d)
{
    for (size_t c = 0; c < d->channels; c++)
        exact_statistics(d->rows, d->channels, d->x, c, &d->mean64[c], &d->variance64[c]);
}

static void statistics_are_close(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i][0], shapes[i][1]);
        /* Means far from 0 by up to 300 deviations, deviations from 1e-6 to 1e6. */
        for (size_t k = 0; k < d.n; k++) {
            const size_t c = k % d.channels;
            d.x[k] = (d.x[k] + (float)((int)(c % 7) - 3) * 50) * powf(10, (float)((int)(c % 13) - 6));
        }
        statistics64(&d);
        dml_batch_statistics(NULL, d.rows, d.channels, d.x, d.mean, d.variance);
        for (size_t c = 0; c < d.channels; c++) {
            CHECK_NEAR(d.mean[c], d.mean64[c],
                       exact_roundings(EXACT_MEAN, fabs(d.mean64[c]) + sqrt(d.variance64[c])));
            CHECK_MESSAGE(fabs((double)d.variance[c] - d.variance64[c]) <=
                              exact_roundings(EXACT_VARIANCE, d.variance64[c]) + 1e-37,
                          "%zu x %zu: a variance of %.9g, not %.9g", d.rows, d.channels,
                          (double)d.variance[c], d.variance64[c]);
        }
        data_destroy(&d);
    }
}

/* Beginnings and single rows that have nothing to do with the rest. */
static void statistics_of_strange_data(void)
{
    enum { ROWS = 5000, CHANNELS = 8 };
    data d = data_create(ROWS, CHANNELS);
    for (size_t k = 0; k < d.n; k++) {
        const size_t r = k / CHANNELS;
        switch (k % CHANNELS) {
        case 0: d.x[k] = 12345.678f; break;                         /* always the same */
        case 1: d.x[k] = r < 100 ? 1e6f : d.x[k]; break;            /* another beginning */
        case 2: d.x[k] = r == ROWS / 32 ? 1e6f : d.x[k]; break;     /* an outlier where samples are taken */
        case 3: d.x[k] = r == ROWS / 32 + 1 ? 1e6f : d.x[k]; break; /* and where none are */
        case 4: d.x[k] = d.x[k] * 1e-42f; break;                    /* denormals */
        case 5: d.x[k] = (r % 2 ? 1e17f : -1e17f); break; /* their squares are near the largest float */
        case 6: d.x[k] = (float)r; break;
        default: d.x[k] = r == 77 ? NAN : d.x[k];
        }
    }
    statistics64(&d);
    dml_batch_statistics(NULL, d.rows, d.channels, d.x, d.mean, d.variance);
    CHECK(d.mean[0] == 12345.678f && d.variance[0] <= 1e-6f);
    for (int c = 1; c < 7; c++) {
        CHECK_NEAR(d.mean[c], d.mean64[c], 4e-6 * (fabs(d.mean64[c]) + sqrt(d.variance64[c])) + 2e-45);
        CHECK_NEAR(d.variance[c], d.variance64[c], 2e-5 * d.variance64[c] + 1e-37);
    }
    CHECK(isnan(d.mean[7]) && isnan(d.variance[7]));
    d.x[5 * CHANNELS + 1] = INFINITY;
    dml_batch_statistics(NULL, d.rows, d.channels, d.x, d.mean, d.variance);
    CHECK(!isfinite(d.mean[1]) && isnan(d.variance[1]));
    data_destroy(&d);
}

static void norm_is_its_definition(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i][0], shapes[i][1]);
        for (size_t c = 0; c < d.channels; c++) d.variance[c] = d.variance[c] * d.variance[c];
        dml_normalization by = by_of(&d, DML_ACTIVATION_NONE);
        dml_batch_norm_forward(NULL, d.rows, d.channels, d.x, &by, d.y);
        for (size_t k = 0; k < d.n; k++) {
            const size_t c = k % d.channels;
            const double distance =
                ((double)d.x[k] - (double)d.mean[c]) / sqrt((double)d.variance[c] + (double)epsilon);
            const double want = (double)d.scale[c] * distance + (double)d.shift[c];
            CHECK_NEAR(d.y[k], want, exact_roundings(EXACT_NORM, fabs(distance) + 1));
        }
        float *in_place = kernel_copy(d.x, d.n);
        dml_batch_norm_forward(NULL, d.rows, d.channels, in_place, &by, in_place);
        CHECK(kernel_same(in_place, d.y, d.n));
        by.activation = DML_ACTIVATION_RELU;
        dml_batch_norm_forward(NULL, d.rows, d.channels, d.x, &by, in_place);
        dml_relu_forward(NULL, d.n, d.y, d.y);
        CHECK(kernel_same(in_place, d.y, d.n));
        kernel_free(in_place);
        data_destroy(&d);
    }
}

/* A relu that is part of it, forward and backward, beside one that isn't: the same bits. */
static void relu_is_part_of_it(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i][0], shapes[i][1]), w = data_create(shapes[i][0], shapes[i][1]);
        dml_batch_statistics(NULL, d.rows, d.channels, d.x, d.mean, d.variance);
        if (d.n > 9) d.x[d.n / 2] = NAN, d.x[d.n / 3] = INFINITY, d.dy[d.n / 5] = -0.0f;
        for (size_t c = 0; c < d.channels; c += 3) /* many are 0: the sign of their zeros, and the gate */
            d.shift[c] = 0, d.scale[c] = c % 2 ? 0 : d.scale[c];
        const dml_normalization apart = by_of(&d, DML_ACTIVATION_NONE), by = by_of(&d, DML_ACTIVATION_RELU);
        dml_batch_norm_forward(NULL, d.rows, d.channels, d.x, &apart, w.y);
        dml_relu_forward(NULL, d.n, w.y, w.y);
        dml_batch_norm_forward(NULL, d.rows, d.channels, d.x, &by, d.y);
        CHECK(kernel_same(d.y, w.y, d.n));
        dml_relu_backward(NULL, d.n, w.y, d.dy, 0, w.dy);
        dml_batch_norm_backward_parameters(NULL, d.rows, d.channels, d.x, &apart, w.dy, w.dscale, w.dshift);
        dml_batch_norm_backward_parameters(NULL, d.rows, d.channels, d.x, &by, d.dy, d.dscale, d.dshift);
        CHECK(kernel_same(d.dscale, w.dscale, d.channels) && kernel_same(d.dshift, w.dshift, d.channels));
        for (int with_beta = 0; with_beta < 2; with_beta++) {
            memcpy(w.dx, d.dx, d.n * sizeof(float));
            float *dx = kernel_copy(d.dx, d.n);
            dml_batch_norm_backward_input(NULL, d.rows, d.channels, d.x, &apart, w.dy, w.dscale, w.dshift,
                                          with_beta ? 0.5f : 0, w.dx);
            dml_batch_norm_backward_input(NULL, d.rows, d.channels, d.x, &by, d.dy, d.dscale, d.dshift,
                                          with_beta ? 0.5f : 0, dx);
            CHECK(kernel_same(dx, w.dx, d.n));
            kernel_free(dx);
        }
        data_destroy(&d), data_destroy(&w);
    }
}

/* dx by its definition, from the batch's statistics or from constants. */
static double dx64(const data *d, size_t k, bool by_batch, const double *sum, const double *products)
{
    const size_t c = k % d->channels;
    const double inverse = 1 / sqrt((double)d->variance[c] + (double)epsilon);
    const double distance = ((double)d->x[k] - (double)d->mean[c]) * inverse;
    double dy = (double)d->dy[k];
    if (by_batch) dy -= (sum[c] + distance * products[c]) / (double)d->rows;
    return (double)d->scale[c] * inverse * dy;
}

static void backward_of(data *d, bool by_batch)
{
    double *sum = (double *)calloc(d->channels, sizeof *sum);
    double *products = (double *)calloc(d->channels, sizeof *products);
    for (size_t k = 0; k < d->n; k++) {
        const size_t c = k % d->channels;
        sum[c] += (double)d->dy[k];
        products[c] += (double)d->dy[k] * ((double)d->x[k] - (double)d->mean[c]) /
                       sqrt((double)d->variance[c] + (double)epsilon);
    }
    const dml_normalization by = by_of(d, DML_ACTIVATION_NONE);
    dml_batch_norm_backward_parameters(NULL, d->rows, d->channels, d->x, &by, d->dy, d->dscale, d->dshift);
    for (size_t c = 0; c < d->channels; c++) {
        const double most = 1e-6 * ((double)d->rows / sqrt((double)d->variance[c] + (double)epsilon) + 1);
        CHECK_NEAR(d->dshift[c], sum[c], 1e-6 * ((double)d->rows + 1));
        CHECK_NEAR(d->dscale[c], products[c], most);
    }
    for (int with_beta = 0; with_beta < 2; with_beta++) {
        const float beta = with_beta ? 0.5f : 0;
        float *dx = kernel_copy(d->dx, d->n), *in_place = kernel_copy(d->dy, d->n);
        for (size_t k = 0; !with_beta && k < d->n; k++) dx[k] = NAN;
        dml_batch_norm_backward_input(NULL, d->rows, d->channels, d->x, &by, d->dy,
                                      by_batch ? d->dscale : NULL, by_batch ? d->dshift : NULL, beta, dx);
        for (size_t k = 0; k < d->n; k++) {
            const double want = dx64(d, k, by_batch, sum, products);
            const double inverse = 1 / sqrt((double)d->variance[k % d->channels] + (double)epsilon);
            CHECK_NEAR(dx[k], want + (with_beta ? 0.5 * (double)d->dx[k] : 0),
                       2e-6 * (inverse * (1 + inverse) + 1));
        }
        dml_batch_norm_backward_input(NULL, d->rows, d->channels, d->x, &by, in_place,
                                      by_batch ? d->dscale : NULL, by_batch ? d->dshift : NULL, 0, in_place);
        CHECK(with_beta || kernel_same(in_place, dx, d->n));
        kernel_free(dx), kernel_free(in_place);
    }
    free(sum), free(products);
}

static void backward_is_its_definition(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i][0], shapes[i][1]);
        dml_batch_statistics(NULL, d.rows, d.channels, d.x, d.mean, d.variance);
        backward_of(&d, true);
        for (size_t c = 0; c < d.channels; c++) d.mean[c] = 0.25f, d.variance[c] = 0.5f;
        backward_of(&d, false);
        data_destroy(&d);
    }
}

static void the_same_for_any_threads(void)
{
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i][0], shapes[i][1]);
        data w = data_create(shapes[i][0], shapes[i][1]);
        dml_batch_statistics(NULL, d.rows, d.channels, d.x, w.mean, w.variance);
        dml_normalization by = by_of(&d, i % 2 ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE);
        by.mean = w.mean, by.variance = w.variance;
        dml_batch_norm_forward(NULL, d.rows, d.channels, d.x, &by, w.y);
        dml_batch_norm_backward_parameters(NULL, d.rows, d.channels, d.x, &by, d.dy, w.dscale, w.dshift);
        memcpy(w.dx, d.dx, d.n * sizeof(float));
        dml_batch_norm_backward_input(NULL, d.rows, d.channels, d.x, &by, d.dy, w.dscale, w.dshift, 0.5f,
                                      w.dx);
        by.mean = d.mean, by.variance = d.variance;
        for (int p = 1; p < KERNEL_POOLS; p++) {
            dml_pool *pool = kernel_pools[p];
            float *dx = kernel_copy(d.dx, d.n);
            dml_batch_statistics(pool, d.rows, d.channels, d.x, d.mean, d.variance);
            dml_batch_norm_forward(pool, d.rows, d.channels, d.x, &by, d.y);
            dml_batch_norm_backward_parameters(pool, d.rows, d.channels, d.x, &by, d.dy, d.dscale, d.dshift);
            dml_batch_norm_backward_input(pool, d.rows, d.channels, d.x, &by, d.dy, d.dscale, d.dshift, 0.5f,
                                          dx);
            CHECK(kernel_same(d.mean, w.mean, d.channels));
            CHECK(kernel_same(d.variance, w.variance, d.channels));
            CHECK(kernel_same(d.dscale, w.dscale, d.channels));
            CHECK(kernel_same(d.dshift, w.dshift, d.channels));
            CHECK(kernel_same(d.y, w.y, d.n) && kernel_same(dx, w.dx, d.n));
            kernel_free(dx);
        }
        data_destroy(&d), data_destroy(&w);
    }
}

static void all(void)
{
    statistics_are_close();
    statistics_of_strange_data();
    norm_is_its_definition();
    relu_is_part_of_it();
    backward_is_its_definition();
    the_same_for_any_threads();
}

static void norm(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(norm);
    kernel_pools_close();
    return test_report("kernels/norm");
}
