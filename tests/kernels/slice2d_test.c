#include "kernels/slice2d.h"

#include "kernel_test.h"

/*   batch, then for each axis: in, out, begin, step, count, before */
static const dml_slice2d_shape shapes[] = {
    { 1, { { 1, 1, 0, 1, 1, 0 }, { 1, 1, 0, 1, 1, 0 }, { 1, 1, 0, 1, 1, 0 } } },
    { 2, { { 32, 16, 0, 2, 16, 0 }, { 31, 16, 0, 2, 16, 0 }, { 16, 32, 0, 1, 16, 8 } } },
    { 3, { { 7, 6, 1, 2, 3, 2 }, { 6, 5, 0, 3, 2, 1 }, { 9, 7, 2, 3, 3, 0 } } },
    { 0, { { 4, 4, 0, 1, 4, 0 }, { 4, 4, 0, 1, 4, 0 }, { 4, 4, 0, 1, 4, 0 } } },
    { 2, { { 4, 3, 0, 1, 0, 0 }, { 4, 4, 0, 1, 4, 0 }, { 4, 4, 0, 1, 4, 0 } } }, /* nothing but zeros */
    { 1, { { 5, 9, 0, 1, 5, 4 }, { 5, 1, 4, 7, 1, 0 }, { 3, 40, 0, 1, 3, 37 } } },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static size_t size_of(const dml_slice2d_shape *s, bool in)
{
    size_t size = (size_t)s->batch;
    for (int a = 0; a < 3; a++) size *= (size_t)(in ? s->axis[a].in : s->axis[a].out);
    return size;
}

/* Calls visit for each place that is taken, with its indices in x and y. */
static void each_taken(const dml_slice2d_shape *s, void (*visit)(void *at, size_t x, size_t y), void *at)
{
    const dml_slice2d_axis *a = s->axis;
    for (int n = 0; n < s->batch; n++)
        for (int h = 0; h < a[0].count; h++)
            for (int w = 0; w < a[1].count; w++)
                for (int c = 0; c < a[2].count; c++) {
                    const int xh = n * a[0].in + a[0].begin + h * a[0].step;
                    const int xw = xh * a[1].in + a[1].begin + w * a[1].step;
                    const int yw = (n * a[0].out + a[0].before + h) * a[1].out + a[1].before + w;
                    visit(at, (size_t)(xw * a[2].in + a[2].begin + c * a[2].step),
                          (size_t)(yw * a[2].out + a[2].before + c));
                }
}

typedef struct arrays {
    float *x, *y;
} arrays;

static void take(void *at, size_t x, size_t y)
{
    const arrays *a = (const arrays *)at;
    a->y[y] = a->x[x];
}

static void give_back(void *at, size_t x, size_t y)
{
    const arrays *a = (const arrays *)at;
    a->x[x] += a->y[y];
}

static void matches_the_definition(void)
{
    for (int i = 0; i < SHAPES; i++) {
        const dml_slice2d_shape *s = &shapes[i];
        unsigned state = 3;
        const size_t nx = size_of(s, true), ny = size_of(s, false);
        float *x = kernel_array(nx, &state), *y = kernel_array(ny, &state), *got = kernel_copy(y, ny);
        arrays want = { x, y };
        if (nx) x[nx / 2] = NAN;
        memset(y, 0, ny * sizeof *y);
        each_taken(s, take, &want);
        for (int p = 0; p < KERNEL_POOLS; p++) {
            for (size_t k = 0; k < ny; k++) got[k] = NAN;
            CHECK_INT(dml_slice2d_forward(kernel_pools[p], s, x, got), DML_OK);
            CHECK(kernel_same(got, y, ny));
        }
        kernel_free(got);
        test_fill(&state, y, ny);
        static const float betas[] = { 0, 1, 0.5f };
        for (int b = 0; b < 3; b++) {
            test_fill(&state, x, nx);
            float *old = kernel_copy(x, nx);
            for (size_t k = 0; k < nx; k++) x[k] = betas[b] == 0 ? 0 : betas[b] * x[k];
            each_taken(s, give_back, &want);
            for (int p = 0; p < KERNEL_POOLS; p++) {
                float *dx = kernel_copy(old, nx);
                for (size_t k = 0; betas[b] == 0 && k < nx; k++) dx[k] = NAN;
                CHECK_INT(dml_slice2d_backward(kernel_pools[p], s, y, betas[b], dx), DML_OK);
                CHECK(kernel_same(dx, x, nx));
                kernel_free(dx);
            }
            kernel_free(old);
        }
        kernel_free(x), kernel_free(y);
    }
}

static void refuses_places_that_are_not_there(void)
{
    const dml_slice2d_axis good = { 4, 4, 1, 2, 2, 1 };
    float x[64], y[64];
    for (int bad = 0; bad < 15; bad++) {
        dml_slice2d_shape s = { 1, { good, good, good } };
        dml_slice2d_axis *a = &s.axis[bad % 3];
        switch (bad) {
        case 0: s.batch = -1; break;
        case 1: a->in = 0; break;
        case 2: a->out = 0; break;
        case 3: a->begin = -1; break;
        case 4: a->begin = 2; break;
        case 5: a->step = 0; break;
        case 6: a->step = 3; break;
        case 7: a->step = INT32_MAX; break;
        case 8: a->count = -1; break;
        case 9: a->count = 3; break;
        case 10: a->before = -1; break;
        case 11: a->before = 3; break;
        case 12: a->before = INT32_MAX; break;
        case 13: s.batch = s.axis[0].in = 1 << 20; break;
        default: s.batch = s.axis[1].in = s.axis[2].out = INT32_MAX; break;
        }
        for (int i = 0; i < 64; i++) y[i] = x[i] = 7;
        CHECK_INT(dml_slice2d_forward(NULL, &s, x, y), DML_ERROR_ARGUMENT);
        CHECK_INT(dml_slice2d_backward(NULL, &s, x, 0, y), DML_ERROR_ARGUMENT);
        for (int i = 0; i < 64; i++) CHECK(y[i] == 7);
    }
}

int main(void)
{
    kernel_pools_open();
    RUN(matches_the_definition);
    RUN(refuses_places_that_are_not_there);
    kernel_pools_close();
    return test_report("kernels/slice2d");
}
