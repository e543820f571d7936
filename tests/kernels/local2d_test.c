#include "kernels/local2d.h"

#include "kernels/conv2d.h"

#include "exact.h"
#include "kernel_test.h"

/*                                  N, H, W, C, F, kernel, stride */
static const dml_local2d_shape shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 1 },    { 3, 5, 6, 2, 4, 3, 3, 1, 1 }, { 2, 7, 9, 3, 5, 3, 2, 2, 1 },
    { 0, 4, 4, 2, 3, 2, 2, 1, 1 },    { 4, 6, 7, 1, 9, 2, 5, 1, 2 }, { 17, 3, 8, 5, 2, 1, 2, 1, 3 },
    { 2, 9, 5, 4, 3, 2, 2, 3, 4 },    { 5, 4, 4, 7, 6, 4, 4, 1, 1 }, { 9, 6, 10, 8, 16, 3, 3, 1, 1 },
    { 33, 5, 5, 16, 24, 2, 3, 1, 1 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct data {
    dml_local2d_shape s;
    int oh, ow, taps;
    size_t nx, nw, ny;
    float *x, *w, *y; /* y is dy too */
    exact_sum *want_y, *want_x, *want_w;
} data;

static exact_sum *sums(size_t n)
{
    return (exact_sum *)calloc(n + 1, sizeof(exact_sum));
}

/* Every product of the definition, once. */
static data data_create(dml_local2d_shape s)
{
    data d;
    unsigned state = 3 + (unsigned)(s.width * s.channels);
    d.s = s, d.oh = (s.height - s.kernel_h) / s.stride_h + 1, d.ow = (s.width - s.kernel_w) / s.stride_w + 1;
    d.taps = s.kernel_h * s.kernel_w * s.channels;
    d.nx = (size_t)(s.batch * s.height * s.width * s.channels),
    d.nw = (size_t)(d.oh * d.ow * s.filters * d.taps);
    d.ny = (size_t)(s.batch * d.oh * d.ow * s.filters);
    d.x = kernel_array(d.nx, &state), d.w = kernel_array(d.nw, &state), d.y = kernel_array(d.ny, &state);
    d.want_x = sums(d.nx), d.want_w = sums(d.nw), d.want_y = sums(d.ny);
    for (size_t y = 0; y < d.ny; y++)
        for (int t = 0; t < d.taps; t++) {
            const int f = (int)(y % (size_t)s.filters), place = (int)(y / (size_t)s.filters) % (d.oh * d.ow);
            const int n = (int)(y / (size_t)(s.filters * d.oh * d.ow));
            const int h = place / d.ow * s.stride_h + t / (s.kernel_w * s.channels);
            const int w = place % d.ow * s.stride_w + t / s.channels % s.kernel_w;
            const int at = ((n * s.height + h) * s.width + w) * s.channels + t % s.channels;
            const int by = (place * s.filters + f) * d.taps + t;
            exact_add(&d.want_y[y], (double)d.x[at] * (double)d.w[by]);
            exact_add(&d.want_x[at], (double)d.y[y] * (double)d.w[by]);
            exact_add(&d.want_w[by], (double)d.y[y] * (double)d.x[at]);
        }
    return d;
}

static void data_destroy(data *d)
{
    kernel_free(d->x), kernel_free(d->w), kernel_free(d->y);
    free(d->want_x), free(d->want_y), free(d->want_w);
}

static dml_status call(dml_pool *pool, const data *d, int direction, float beta, float *result)
{
    if (direction == 0) return dml_local2d_forward(pool, &d->s, d->x, d->w, result);
    if (direction == 1) return dml_local2d_backward_input(pool, &d->s, d->y, d->w, beta, result);
    return dml_local2d_backward_weights(pool, &d->s, d->x, d->y, beta, result);
}

/* With scratch and without, where beta is 0 over NaNs. */
static void check_direction(const data *d, int direction, float beta)
{
    const size_t n = direction == 0 ? d->ny : direction == 1 ? d->nx : d->nw;
    const exact_sum *want = direction == 0 ? d->want_y : direction == 1 ? d->want_x : d->want_w;
    unsigned state = 9;
    float *old = kernel_array(n, &state), *first = NULL;
    for (int p = 0; p < KERNEL_POOLS; p++) {
        float *got = kernel_copy(old, n);
        if (beta == 0)
            for (size_t i = 0; i < n; i++) got[i] = NAN;
        CHECK_INT(call(kernel_pools[p], d, direction, beta, got), DML_OK);
        for (size_t i = 0; !first && i < n; i++) {
            const double exact = want[i].value + (beta == 0 ? 0 : (double)beta * (double)old[i]);
            const double bound = 1.2e-7 * (want[i].size + fabs((double)old[i])) + 1e-12;
            CHECK_MESSAGE(fabs((double)got[i] - exact) <= 4 * bound, "%d: element %zu is %g, not %g",
                          direction, i, (double)got[i], exact);
        }
        if (first) CHECK_MESSAGE(kernel_same(first, got, n), "pool %d computes something else", p);
        if (first)
            kernel_free(got);
        else
            first = got;
    }
    kernel_free(old), kernel_free(first);
}

static void by_the_definition(void)
{
    static const float betas[] = { 0, 1, 0.5f };
    for (int i = 0; i < SHAPES; i++) {
        data d = data_create(shapes[i]);
        for (int p = 3; p < KERNEL_POOLS; p++) /* the others have no scratch */
            CHECK_INT(dml_pool_reserve(kernel_pools[p], dml_local2d_scratch(&shapes[i])), DML_OK);
        for (int direction = 0; direction < 3; direction++)
            for (int b = 0; b < (direction ? 3 : 1); b++) check_direction(&d, direction, betas[b]);
        data_destroy(&d);
    }
}

/* A NaN reaches what its window makes, and nothing else. */
static void strange_numbers(void)
{
    data d = data_create(shapes[1]);
    float *y = kernel_copy(d.y, d.ny);
    d.x[0] = NAN;
    CHECK_INT(call(NULL, &d, 0, 0, y), DML_OK);
    for (size_t i = 0; i < d.ny; i++) CHECK(isnan(y[i]) == (i < (size_t)d.s.filters));
    kernel_free(y);
    data_destroy(&d);
}

static void bad_shapes(void)
{
    enum { MOST = 2147483647 };
    const dml_local2d_shape good = { 1, 4, 4, 2, 3, 3, 3, 1, 1 };
    const float x[128] = { 1 };
    float y[128] = { 7 };
    for (int field = 0; field < 14; field++) {
        dml_local2d_shape s = good;
        int *const fields[] = { &s.batch,    &s.height,   &s.width,    &s.channels, &s.filters,
                                &s.kernel_h, &s.kernel_w, &s.stride_h, &s.stride_w };
        if (field < 9) *fields[field] = field ? 0 : -1;
        if (field == 9) s.kernel_h = 5;
        if (field == 10) s.width = s.channels = 1 << 16;
        if (field == 11) s.height = MOST;
        if (field == 12) s.filters = MOST;
        if (field == 13)
            s.batch = MOST, s.height = 1 << 28, s.width = s.kernel_w = s.kernel_h = 1, s.filters = 7;
        if (field == 13 && sizeof(ptrdiff_t) > 4) continue; /* fits there */
        CHECK_MESSAGE(dml_local2d_forward(NULL, &s, x, x, y) == DML_ERROR_ARGUMENT, "field %d", field);
        CHECK_INT(dml_local2d_backward_input(NULL, &s, x, x, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_local2d_backward_weights(NULL, &s, x, x, 0, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_local2d_scratch(&s).worker, 0);
        CHECK(y[0] == 7);
    }
    CHECK_INT(dml_local2d_forward(NULL, NULL, x, x, y), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_local2d_scratch(NULL).worker, 0);
}

static void all_isas(void)
{
    by_the_definition();
    strange_numbers();
}
static void on_each_isa(void)
{
    kernel_each_isa(all_isas);
}

int main(void)
{
    kernel_pools_open();
    RUN(on_each_isa);
    RUN(bad_shapes);
    kernel_pools_close();
    return test_report("kernels/local2d");
}
