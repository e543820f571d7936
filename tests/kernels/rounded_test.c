/* Products whose factors a pool rounds to bf16 or f16, against float64 on every instruction set for them. */
#include "kernels/rounded.h"

#include "kernels/conv2d.h"
#include "kernels/conv2d_internal.h"
#include "kernels/gemm.h"
#include "kernels/half_internal.h"

#include "exact.h"
#include "kernel_test.h"

static const dml_dtype types[] = { DML_BF16, DML_F16 };

static void round_pools(dml_dtype dtype)
{
    for (int p = 0; p < KERNEL_POOLS; p++) {
        dml__pool_round_to(kernel_pools[p], dtype);
        CHECK_INT(dml__pool_rounds_to(kernel_pools[p]), p ? dtype : DML_F32);
    }
}

static float *rounded_copy(const float *x, size_t n, dml_dtype dtype)
{
    float *copy = kernel_copy(x, n);
    dml__round_line(DML_ISA_SCALAR, dtype, n, copy);
    return copy;
}

static exact_matrix matrix(const float *x, bool transposed, int rows, int columns)
{
    const exact_matrix m = { x, transposed ? 1 : (size_t)columns, transposed ? (size_t)rows : 1 };
    return m;
}

static void check_product(const int size[3], int form, dml_dtype dtype, unsigned *state)
{
    const int m = size[0], n = size[1], k = size[2];
    const bool ta = form & 1, tb = form & 2;
    const size_t a_count = (size_t)m * (size_t)k, b_count = (size_t)k * (size_t)n,
                 count = (size_t)m * (size_t)n;
    const float alpha = form ? 1.0f : -0.75f, beta = form == 3 ? 0.5f : 0.0f;
    float *a = kernel_array(a_count, state), *b = kernel_array(b_count, state),
          *c = kernel_array(count, state);
    float *bias = kernel_array((size_t)n, state), *first = kernel_copy(c, count);
    float *near_a = rounded_copy(a, a_count, dtype), *near_b = rounded_copy(b, b_count, dtype);
    const dml_epilogue epilogue = { bias, form == 1 ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    for (int round = 1; round < 2 * KERNEL_POOLS; round++) {
        dml_pool *pool = kernel_pools[round % KERNEL_POOLS];
        if (!pool) continue; /* which doesn't round */
        float *got = kernel_copy(c, count);
        if (round > KERNEL_POOLS) CHECK_INT(dml_pool_reserve(pool, dml__rounded_scratch()), DML_OK);
        CHECK_INT(dml_sgemm_fused(pool, ta ? DML_TRANS : DML_NO_TRANS, tb ? DML_TRANS : DML_NO_TRANS, m, n, k,
                                  alpha, a, ta ? m : k, b, tb ? k : n, beta, got, n, &epilogue),
                  DML_OK);
        for (size_t at = 0; at < count && round == 1; at++) {
            const size_t i = at / (size_t)n, j = at % (size_t)n;
            const exact_sum sum =
                exact_product(matrix(near_a, ta, m, k), matrix(near_b, tb, k, n), i, j, (size_t)k);
            double want = (double)alpha * sum.value + (double)beta * (double)c[at] + (double)bias[j];
            const double all =
                fabs((double)alpha) * sum.size + fabs((double)beta * (double)c[at]) + fabs((double)bias[j]);
            if (form == 1 && want < 0) want = 0;
            CHECK_MESSAGE(fabs((double)got[at] - want) <= 2.0 * (k + 4) * ldexp(all, -24) + 1e-37,
                          "%d x %d x %d in %s: %.9g instead of %.9g", m, n, k, dml_dtype_name(dtype),
                          (double)got[at], want);
        }
        if (round == 1) memcpy(first, got, count * sizeof *got);
        CHECK_MESSAGE(kernel_same(got, first, count), "%d x %d x %d differs in round %d", m, n, k, round);
        kernel_free(got);
    }
    kernel_free(a), kernel_free(b), kernel_free(c), kernel_free(bias), kernel_free(first);
    kernel_free(near_a), kernel_free(near_b);
}

static void all_shapes(void)
{
    static const int sizes[][3] = { { 1, 1, 1 },      { 3, 5, 2 },    { 17, 33, 31 },   { 33, 31, 65 },
                                    { 1, 70, 100 },   { 70, 1, 100 }, { 5, 100, 600 },  { 64, 48, 1030 },
                                    { 97, 65, 47 },   { 8, 9, 1 },    { 40, 130, 513 }, { 130, 6, 90 },
                                    { 20, 20, 3000 }, { 4, 257, 1 } };
    const bool fewer = TEST_EMULATOR || KERNEL_BEST_ALONE;
    unsigned state = 3;
    for (int t = 0; t < 2; t++) {
        round_pools(types[t]);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int form = fewer ? (int)s % 4 : 0; form < 4; form += fewer ? 4 : 1)
                check_product(sizes[s], form, types[t], &state);
    }
    round_pools(DML_F32);
}

/* Whatever goes through the same loop: many small products, and convolutions of one tap, with strides. */
static void other_products(void)
{
    enum { COUNT = 5, M = 7, N = 9, K = 11, PIXELS = 2 * 5 * 5, TAKEN = 2 * 3 * 3, IN = 6, OUT = 8 };
    unsigned state = 8;
    float *a = kernel_array(COUNT * M * K, &state), *b = kernel_array(COUNT * K * N, &state);
    float *x = kernel_array(PIXELS * IN, &state), *w = kernel_array(OUT * IN, &state);
    dml_conv2d_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.batch = 2, shape.height = shape.width = 5, shape.channels = IN, shape.filters = OUT;
    shape.kernel_h = shape.kernel_w = 1, shape.stride_h = shape.stride_w = 2;
    for (int t = 0; t < 2; t++) {
        float *near_a = rounded_copy(a, COUNT * M * K, types[t]),
              *near_b = rounded_copy(b, COUNT * K * N, types[t]);
        float *near_x = rounded_copy(x, PIXELS * IN, types[t]), *near_w = rounded_copy(w, OUT * IN, types[t]);
        float got[COUNT * M * N], y[TAKEN * OUT];
        round_pools(types[t]);
        CHECK_INT(dml_sgemm_batched(kernel_pools[3], DML_NO_TRANS, DML_NO_TRANS, M, N, K, 1, a, K, M * K, b,
                                    N, K * N, 0, got, N, M * N, COUNT),
                  DML_OK);
        CHECK_INT(dml_conv2d_forward(kernel_pools[2], &shape, x, w, NULL, y), DML_OK);
        round_pools(DML_F32);
        for (int i = 0; i < COUNT * M * N; i++) {
            const int at = i / (M * N);
            const exact_sum sum = exact_product(matrix(near_a + at * M * K, false, M, K),
                                                matrix(near_b + at * K * N, false, K, N), (size_t)(i / N % M),
                                                (size_t)(i % N), K);
            CHECK(fabs((double)got[i] - sum.value) <= exact_sum_bound(sum.size, K));
        }
        for (int i = 0; i < TAKEN * OUT; i++) {
            const int pixel = i / OUT, image = pixel / 9, line = pixel / 3 % 3, column = pixel % 3;
            double want = 0, size = 0;
            for (int k = 0; k < IN; k++) {
                const double term = (double)near_x[((image * 5 + 2 * line) * 5 + 2 * column) * IN + k] *
                                    (double)near_w[i % OUT * IN + k];
                want += term, size += fabs(term);
            }
            CHECK(fabs((double)y[i] - want) <= exact_sum_bound(size, IN));
        }
        kernel_free(near_a), kernel_free(near_b), kernel_free(near_x), kernel_free(near_w);
    }
    kernel_free(a), kernel_free(b), kernel_free(x), kernel_free(w);
}

static void check_sums(const char *what, int which, const float *got, const exact_sum *want,
                       const float *before, float beta, size_t n, double k)
{
    for (size_t i = 0; i < n; i++) {
        const double old = beta == 0 ? 0 : (double)beta * (double)before[i];
        const double size = want[i].size + fabs(old);
        CHECK_MESSAGE(fabs((double)got[i] - (want[i].value + old)) <= exact_sum_bound(size, k) + 1e-37,
                      "%s of convolution %d: element %d is %.9g instead of %.9g", what, which, (int)i,
                      (double)got[i], want[i].value + old);
    }
}

/* y as the forward pass finishes it: + bias, and a relu for every other convolution. */
static void finish(exact_sum *y, size_t n, const dml_conv2d_shape *s, int which, const float *bias,
                   const float *before, float beta)
{
    for (size_t i = 0; i < n; i++) {
        const double old = beta == 0 ? 0 : (double)beta * (double)before[i];
        y[i].value += old + (double)bias[i % (size_t)s->filters];
        y[i].size += fabs(old) + fabs((double)bias[i % (size_t)s->filters]);
        if (which % 2 && y[i].value < 0) y[i].value = 0;
    }
}

/* Convolutions of several taps, with a beta of 0, 1 and 0.5, bare and with bias and relu. */
static void check_convolution(const dml_conv2d_shape *s, int which, dml_dtype dtype, bool rounded)
{
    unsigned state = 21;
    const int out_h = exact_conv2d_output(s->height, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h);
    const int out_w = exact_conv2d_output(s->width, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w);
    const size_t nx = (size_t)(s->batch * s->height * s->width * s->channels);
    const size_t ny = (size_t)(s->batch * out_h * out_w * s->filters);
    const size_t nw =
        (size_t)(s->filters * s->kernel_h * s->kernel_w * s->channels / exact_or_one(s->groups));
    const size_t all = 2 * ny + nx + nw;
    float *x = kernel_array(nx, &state), *w = kernel_array(nw, &state), *dy = kernel_array(ny, &state);
    float *old = kernel_array(all, &state), *bias = kernel_array((size_t)s->filters, &state), *first = NULL;
    exact_sum *y = (exact_sum *)calloc(nx + ny + nw, sizeof *y), *dx = y + ny, *dw = dx + nx;
    float *near_x = rounded ? rounded_copy(x, nx, dtype) : kernel_copy(x, nx),
          *near_w = rounded ? rounded_copy(w, nw, dtype) : kernel_copy(w, nw),
          *near_dy = rounded ? rounded_copy(dy, ny, dtype) : kernel_copy(dy, ny);
    const dml_epilogue none = { NULL, DML_ACTIVATION_NONE };
    const dml_epilogue whole = { bias, which % 2 ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    exact_conv2d(s, near_x, near_w, near_dy, y, dx, dw);
    for (int p = 1; p < 2 * KERNEL_POOLS; p++) {
        const float beta = which % 3 ? 1.0f / (float)(which % 3) : 0;
        dml_pool *pool = kernel_pools[p % KERNEL_POOLS];
        const dml_scratch need = dml_conv2d_scratch(s, true);
        if (!pool) continue; /* which doesn't round */
        float *got = kernel_copy(old, all);
        if (p > KERNEL_POOLS) {
            const dml_scratch some[] = { { 150000, 1048576 }, { 40000, 0 }, { 300000, 100000 } };
            CHECK_INT(dml_pool_reserve(pool, p < 2 * KERNEL_POOLS - 1 ? some[p - KERNEL_POOLS - 1]
                                                                      : dml__rounded_scratch()),
                      DML_OK);
            if (p == 2 * KERNEL_POOLS - 1) CHECK_INT(dml_pool_reserve(pool, need), DML_OK);
        }
        CHECK_INT(dml_conv2d_forward_fused(pool, s, x, w, beta, &none, got), DML_OK);
        CHECK_INT(dml_conv2d_backward_input(pool, s, dy, w, beta, got + ny), DML_OK);
        CHECK_INT(dml_conv2d_backward_weights(pool, s, x, dy, beta, got + ny + nx), DML_OK);
        CHECK_INT(dml_conv2d_forward_fused(pool, s, x, w, beta, &whole, got + ny + nx + nw), DML_OK);
        if (!first) {
            const double taps = s->kernel_h * s->kernel_w;
            check_sums("y", which, got, y, old, beta, ny, taps * s->channels);
            check_sums("dx", which, got + ny, dx, old + ny, beta, nx, taps * s->filters);
            check_sums("dw", which, got + ny + nx, dw, old + ny + nx, beta, nw, s->batch * out_h * out_w);
            finish(y, ny, s, which, bias, old + ny + nx + nw, beta);
            check_sums("finished y", which, got + ny + nx + nw, y, old, 0, ny, taps * s->channels);
            first = kernel_copy(got, all);
        }
        CHECK_MESSAGE(kernel_same(got, first, all), "convolution %d differs with pool %d", which, p);
        kernel_free(got);
    }
    kernel_free(x), kernel_free(w), kernel_free(dy), kernel_free(old), kernel_free(first), kernel_free(bias);
    kernel_free(near_x), kernel_free(near_w), kernel_free(near_dy);
    free(y);
}

/* Pools as they were opened: checks before may have left them scratch. */
static void fresh_pools(dml_dtype dtype)
{
    kernel_pools_close();
    kernel_pools_open();
    round_pools(dtype);
}

static void convolutions(void)
{
    /* batch, height, width, channels, filters, kernel, stride, padding, dilation, groups, out_h, out_w */
    static const dml_conv2d_shape shapes[] = {
        { 2, 7, 9, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 1, 8, 6, 4, 6, 3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 0 },
        { 3, 5, 5, 7, 4, 5, 5, 1, 1, 2, 2, 1, 1, 1, 0, 0 },
        { 2, 9, 8, 10, 4, 3, 2, 2, 3, 0, 1, 2, 1, 2, 0, 0 },
        { 1, 13, 11, 17, 33, 3, 3, 1, 2, 2, 1, 2, 2, 1, 0, 0 },
        { 2, 4, 4, 16, 8, 4, 4, 4, 4, 3, 3, 1, 1, 4, 0, 0 },
        { 2, 3, 20, 4, 1, 1, 3, 1, 1, 0, 0, 1, 3, 1, 0, 0 },
        { 1, 5, 37, 16, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },  /* tiles that reach beyond a line */
        { 33, 4, 4, 8, 9, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },    /* strips of several images */
        { 2, 20, 20, 36, 40, 3, 3, 2, 2, 1, 1, 1, 1, 1, 0, 0 }, /* panels that aren't full, phases */
        { 1, 4, 340, 4, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },   /* lines that are too long for a strip */
        { 1, 6, 200, 6, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },   /* strips of two lines */
        { 1, 11, 9, 4, 4, 2, 2, 5, 5, 0, 0, 1, 1, 1, 0, 0 },    /* a stride beyond the kernel, and long */
        { 1, 9, 13, 12, 20, 1, 1, 3, 2, 1, 0, 1, 1, 1, 0, 0 },
        { 3, 3, 3, 144, 132, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 }, /* several parts */
        { 1, 3, 120, 40, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },  /* lines that are too long for 40 KB */
        { 2, 4, 5, 8, 2, 3, 3, 1, 1, 1, 1, 1, 1, 2, 0, 0 },     /* groups of one filter */
        { 2, 7, 9, 3, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 },     /* from here on too few channels */
        { 2, 6, 6, 4, 8, 3, 3, 1, 1, 1, 1, 1, 1, 4, 0, 0 },
    };
    enum { SHAPES = sizeof shapes / sizeof shapes[0], ROUNDED = SHAPES - 2 };
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < SHAPES; i++) {
            if (TEST_EMULATOR && (shapes[i].channels > 100 || (!KERNEL_BEST_ALONE && i % 3))) continue;
            fresh_pools(types[t]);
            check_convolution(&shapes[i], i, types[t], i < ROUNDED);
        }
    round_pools(DML_F32);
    CHECK(!dml__conv2d_is_rounded(kernel_pools[1], &shapes[0]) && !dml__conv2d_is_rounded(NULL, &shapes[0]));
}

/* What isn't a number stays in its group, where a pixel of two groups of one filter looks like one of a pair.
 */
static void groups_apart(void)
{
    const dml_conv2d_shape shape = { 2, 5, 6, 8, 2, 3, 3, 1, 1, 1, 1, 1, 1, 2, 0, 0 };
    unsigned state = 6;
    float *dy = kernel_array(2 * 5 * 6 * 2, &state), *w = kernel_array(2 * 9 * 4, &state);
    float dx[2 * 5 * 6 * 8];
    for (int i = 0; i < 2 * 5 * 6; i++) dy[2 * i + 1] = NAN;
    round_pools(DML_BF16);
    for (int p = 1; p <= 2; p++) {
        if (p == 2) CHECK_INT(dml_pool_reserve(kernel_pools[p], dml__rounded_scratch()), DML_OK);
        CHECK_INT(dml_conv2d_backward_input(kernel_pools[p], &shape, dy, w, 0, dx), DML_OK);
        for (int i = 0; i < 2 * 5 * 6 * 8; i++)
            CHECK_MESSAGE(isnan(dx[i]) == (i % 8 >= 4), "element %d with pool %d is %g", i, p, (double)dx[i]);
    }
    round_pools(DML_F32);
    kernel_free(dy), kernel_free(w);
}

/* A host that numbers its workers wrongly gets slower convolutions, no wrong ones. */
static void lend_wrongly(void *host, int workers, int tasks, dml_pool_task task, void *argument)
{
    (void)host;
    for (int i = 0; i < tasks; i++) task(argument, i, i % 3 == 0 ? -1 - i : i % 3 == 1 ? workers + i : 0);
}

static void wrong_workers(void)
{
    const dml_conv2d_shape shape = { 9, 12, 12, 36, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0 };
    const size_t nx = (size_t)9 * 12 * 12 * 36, ny = (size_t)9 * 12 * 12 * 40, nw = (size_t)40 * 9 * 36;
    unsigned state = 4;
    float *x = kernel_array(nx, &state), *dy = kernel_array(ny, &state), *w = kernel_array(nw, &state);
    float *want = kernel_copy(w, nw), *got = kernel_copy(w, nw), *y = kernel_copy(dy, ny),
          *y_got = kernel_copy(dy, ny);
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = 2;
    options.host_parallel = lend_wrongly;
    options.scratch = dml__rounded_scratch();
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    dml__pool_round_to(pool, DML_BF16);
    round_pools(DML_BF16);
    CHECK_INT(dml_conv2d_backward_weights(kernel_pools[1], &shape, x, dy, 0, want), DML_OK);
    CHECK_INT(dml_conv2d_backward_weights(pool, &shape, x, dy, 0, got), DML_OK);
    CHECK_INT(dml_conv2d_forward(kernel_pools[1], &shape, x, w, NULL, y), DML_OK);
    CHECK_INT(dml_conv2d_forward(pool, &shape, x, w, NULL, y_got), DML_OK);
    CHECK(kernel_same(got, want, nw));
    CHECK(kernel_same(y_got, y, ny));
    round_pools(DML_F32);
    dml_pool_destroy(pool);
    kernel_free(x), kernel_free(dy), kernel_free(w), kernel_free(want), kernel_free(got), kernel_free(y),
        kernel_free(y_got);
}

/* By every way that this machine has, and the emulated variant has all of AVX-512's. */
static void by_every_way(void)
{
    int before = -1;
    static const char *const ways[] = { "scalar", "avx2", "avx512", "avx512_bf16", "" };
    for (size_t w = KERNEL_BEST_ALONE ? 2 : 0; w < sizeof ways / sizeof ways[0]; w++) {
        if (ways[w][0])
            setenv("DML_ISA", ways[w], 1);
        else
            unsetenv("DML_ISA");
        const int way = 8 * (int)dml_cpu_isa() + (int)dml__cpu_bf16(dml_cpu_isa());
        if (way == before) continue;
        before = way;
        kernel_pools_close(); /* pools remember what the processor has */
        kernel_pools_open();
        all_shapes();
        other_products();
        convolutions();
        wrong_workers();
        groups_apart();
    }
}

/* What no rounding can make finite stays what it is. */
static void beyond_the_numbers(void)
{
    float a[4] = { 70000, 1, NAN, -HUGE_VALF }, one = 1, c[4];
    round_pools(DML_F16);
    CHECK_INT(dml_sgemm(kernel_pools[1], DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 4, 1, 1, 1, a, 1, &one, 1,
                        0, c, 1),
              DML_OK);
    CHECK(isinf(c[0]) && c[0] > 0 && c[1] == 1 && isnan(c[2]) && isinf(c[3]) && c[3] < 0);
    round_pools(DML_F32);
    CHECK_INT(dml_sgemm(kernel_pools[1], DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 4, 1, 1, 1, a, 1, &one, 1,
                        0, c, 1),
              DML_OK);
    CHECK(c[0] == 70000);
}

int main(void)
{
    kernel_pools_open();
    RUN(by_every_way);
    kernel_pools_reopen();
    RUN(beyond_the_numbers);
    kernel_pools_close();
    return test_report("kernels/rounded");
}
