/* Every kernel of gpu/kernel_list.h on every device against a float64 reference. A kernel without a case here
   doesn't compile. */
#include "gpu/kernel_list.h"

#include "base/philox.h"

#include "../kernels/formula_exact.h"
#include "../train/update_reference.h"
#include "devices.h"

static unsigned seed = 1;

/* Where it is slow (Oclgrind, the thread sanitizer), or DML_TEST_QUICK is set: only some of the cases. */
static int quick;

static int upto(int n)
{
    return quick ? 2 : n;
}

/* beta's special values and one other; where beta is 0, outputs start as NaN, and must not be read. */
static const float betas[] = { 0.0f, 1.0f, 0.5f };
enum { BETAS = sizeof betas / sizeof betas[0] };

static float *numbers(size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    test_fill(&seed, x, n);
    return x;
}

static float *output(size_t n, float beta)
{
    float *x = numbers(n);
    if (beta == 0)
        for (size_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}

/* beta old, 0 where old is not to be read */
static double kept(float beta, float old)
{
    return beta == 0 ? 0 : (double)beta * (double)old;
}

/* `scale` is the size of what was added up to make the numbers. */
static void check(const char *kernel, const float *got, const double *want, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - want[i]) <= 2e-6 * (scale + fabs(want[i]))) continue;
        CHECK_MESSAGE(false, "%s: element %d of %d is %.9g, not %.9g", kernel, (int)i, (int)n, (double)got[i],
                      want[i]);
        return;
    }
}

static const int sizes[] = { 1, 257, 255, 256, 1000 };
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void test_axpby(void)
{
    for (int s = quick; s < upto(SIZES); s++) {
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)sizes[s];
            const float beta = betas[b], alpha = 1.25f;
            float *x = numbers(n), *y = output(n, beta);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++) want[i] = (double)alpha * (double)x[i] + kept(beta, y[i]);
            array dx = upload(x, n), dy = upload(y, n);
            launch_ok((dml_launch){ .kernel = "axpby",
                                    .size = { n, 1 },
                                    .buffer = { at(dx), at(dy) },
                                    .integer = { (int)n },
                                    .real = { alpha, beta } });
            download(dx, NULL), download(dy, y);
            check("axpby", y, want, n, 1);
            free(x), free(y), free(want);
        }
    }
}

/* Numbers of the kind that a formula takes. */
static float *numbers_for(const formula_exact *f, size_t n)
{
    float *x = numbers(n);
    for (size_t i = 0; f->positive && i < n; i++) x[i] = fabsf(x[i]) + 0.125f;
    return x;
}

/* Every formula, its operands in as many buffers. */
static void test_formula_forward(void)
{
    for (int k = 0; k < FORMULAS; k += quick ? 5 : 1) {
        const formula_exact *f = &formulas[k];
        const size_t n = (size_t)sizes[1 + k % (SIZES - 1)];
        float *a = numbers_for(f, n), *b = numbers_for(f, n), *c = numbers_for(f, n), *y = output(n, 0);
        double *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i += 3) a[i] = k >= DML__FORMULA_where ? (i % 2 ? 0 : b[i]) : a[i];
        for (size_t i = 0; i < n; i++)
            want[i] = f->of((double)a[i], (double)b[i], (double)c[i], (double)f->p, (double)f->q);
        array da = upload(a, n), db = upload(b, n), dc = upload(c, n), dy = upload(y, n);
        launch_ok((dml_launch){ .kernel = "formula_forward",
                                .size = { n, 1 },
                                .buffer = { at(da), at(db), at(dc), at(dy) },
                                .integer = { (int)n, k },
                                .real = { f->p, f->q } });
        download(da, NULL), download(db, NULL), download(dc, NULL), download(dy, y);
        check(f->name, y, want, n, 0.5);
        free(a), free(b), free(c), free(y), free(want);
    }
    static const int keeps_a_nan[] = { DML__FORMULA_relu, DML__FORMULA_tanh, DML__FORMULA_sigmoid,
                                       DML__FORMULA_maximum };
    for (int k = 0; k < 4; k++) {
        float x = NAN, one = 1;
        array dx = upload(&x, 1), d1 = upload(&one, 1);
        launch_ok((dml_launch){ .kernel = "formula_forward",
                                .size = { 1, 1 },
                                .buffer = { at(dx), at(d1), { NULL, 0 }, at(dx) },
                                .integer = { 1, keeps_a_nan[k] } });
        download(dx, &x), download(d1, NULL);
        CHECK_MESSAGE(isnan(x), "%s made %g of a NaN", formulas[keeps_a_nan[k]].name, (double)x);
    }
}

/* Both gradients, one of them over dy, and with each beta. */
static void test_formula_backward(void)
{
    for (int k = 0; k < DML__FORMULA_equal; k += quick ? 5 : 1) {
        const formula_exact *f = &formulas[k];
        const size_t n = (size_t)sizes[1 + k % (SIZES - 1)];
        const int pair = k >= DML__FORMULA_add, first = k == DML__FORMULA_where;
        const float beta = betas[k % BETAS];
        float *a = numbers_for(f, n), *b = numbers_for(f, n), *y = numbers(n), *dy = numbers(n);
        float *g1 = output(n, beta);
        double *want = malloc(2 * n * sizeof *want);
        for (size_t i = 0; i < n; i++) {
            const double x[3] = { a[i], b[i], 0.5 };
            y[i] = (float)f->of(x[0], x[1], x[2], (double)f->p, (double)f->q);
            want[i] = formula_slope(f, first, x[0], x[1], x[2], (double)dy[i]);
            if (pair) want[n + i] = formula_slope(f, first + 1, x[0], x[1], x[2], (double)dy[i]);
            want[n + i] = pair ? want[n + i] + kept(beta, g1[i]) : 0;
        }
        array da = upload(a, n), db = upload(b, n), dv = upload(y, n), dd = upload(dy, n), d1 = upload(g1, n);
        launch_ok((dml_launch){
            .kernel = "formula_backward",
            .size = { n, 1 },
            .buffer = { at(da), at(db), at(dv), at(dd), at(dd), pair ? at(d1) : (dml_ref){ NULL, 0 } },
            .integer = { (int)n, k },
            .real = { f->p, f->q, 0, beta } });
        download(da, NULL), download(db, NULL), download(dv, NULL), download(dd, dy), download(d1, g1);
        check(f->name, dy, want, n, 2);
        if (pair) check(f->name, g1, want + n, n, 2);
        free(a), free(b), free(y), free(dy), free(g1), free(want);
    }
}

static void test_broadcast(void)
{
    enum { A = 3, B = 5, C = 7, D = 2 };
    float *x = numbers(A * C), *y = output(A * B * C * D, 0);
    double want[A * B * C * D];
    for (int i = 0; i < A * B * C * D; i++) want[i] = x[i / (B * C * D) * C + i / D % C];
    array dx = upload(x, A * C), dy = upload(y, A * B * C * D);
    launch_ok((dml_launch){ .kernel = "broadcast",
                            .size = { A * B * C * D, 1 },
                            .buffer = { at(dx), at(dy) },
                            .integer = { A * B * C * D, 4, A, B, C, D, 0, 0, C, 0, 1, 0 } });
    download(dx, NULL), download(dy, y);
    check("broadcast", y, want, A * B * C * D, 0);
    free(x), free(y);
}

static void test_bias_add(void)
{
    static const int shapes[][2] = { { 1, 1 }, { 7, 37 }, { 256, 3 } };
    for (int s = quick; s < upto(3); s++) {
        const size_t rows = (size_t)shapes[s][0], columns = (size_t)shapes[s][1], n = rows * columns;
        float *bias = numbers(columns), *y = numbers(n);
        double *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++) want[i] = (double)y[i] + (double)bias[i % columns];
        array a = upload(bias, columns), b = upload(y, n);
        launch_ok((dml_launch){ .kernel = "bias_add",
                                .size = { n, 1 },
                                .buffer = { at(a), at(b) },
                                .integer = { (int)rows, (int)columns } });
        download(a, NULL), download(b, y);
        check("bias_add", y, want, n, 1);
        free(bias), free(y), free(want);
    }
}

/* Two updates in a row, from a state that isn't zero. */
static void update_case(const dml_optimizer *optimizer, size_t n)
{
    const dml__optimizer_row *row = dml__optimizer_row_of(optimizer->kind);
    const int states = row->states(optimizer);
    float *w = numbers(n), *g = numbers(n), *state[2] = { numbers(n), numbers(n) };
    double *want_w = malloc(n * sizeof *want_w), *want[2];
    for (int s = 0; s < 2; s++) {
        want[s] = malloc(n * sizeof *want[s]);
        for (size_t i = 0; i < n; i++) want[s][i] = (double)(state[s][i] = fabsf(state[s][i]));
    }
    for (size_t i = 0; i < n; i++) want_w[i] = (double)w[i];
    array a = upload(w, n), b = upload(g, n), c = upload(state[0], n), d = upload(state[1], n);
    for (int t = 3; t < 5; t++) {
        dml_launch launch = { .kernel = row->kernel,
                              .size = { n, 1 },
                              .buffer = { at(a), at(b), states > 0 ? at(c) : (dml_ref){ NULL, 0 },
                                          states > 1 ? at(d) : (dml_ref){ NULL, 0 } },
                              .integer = { (int)n } };
        row->numbers(optimizer, t, launch.real);
        launch_ok(launch);
        reference_update(optimizer, t, n, want_w, want[0], want[1], g);
    }
    download(a, w), download(b, NULL), download(c, state[0]), download(d, state[1]);
    check(row->kernel, w, want_w, n, 1);
    for (int s = 0; s < states; s++) check(row->kernel, state[s], want[s], n, 1);
    free(w), free(g), free(want_w);
    for (int s = 0; s < 2; s++) free(state[s]), free(want[s]);
}

static void update(const char *kernel)
{
    for (int v = 0; v < UPDATE_VARIANTS; v++) {
        if (strcmp(dml__optimizer_row_of(update_variants[v].kind)->kernel, kernel) != 0) continue;
        for (int s = quick; s < upto(SIZES); s++) update_case(&update_variants[v], (size_t)sizes[s]);
    }
}

static void test_sgd_update(void)
{
    update("sgd_update");
}

static void test_adam_update(void)
{
    update("adam_update");
}

static void test_rmsprop_update(void)
{
    update("rmsprop_update");
}

static void test_adagrad_update(void)
{
    update("adagrad_update");
}

static void test_lamb_direction(void)
{
    const float by[] = { 0.5f, 1e-3f, 0.25f, 0.875f, 0.125f, 0.0625f };
    for (int s = quick; s < upto(SIZES); s++) {
        const size_t n = (size_t)sizes[s];
        float *x[4]; /* w, g, m, v */
        double *want[4];
        array d[4];
        dml_launch launch = { .kernel = "lamb_direction", .size = { n, 1 }, .integer = { (int)n } };
        for (int k = 0; k < 4; k++) x[k] = numbers(n), want[k] = malloc(n * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            const double g = (double)x[1][i];
            x[3][i] = fabsf(x[3][i]);
            want[0][i] = (double)x[0][i];
            want[2][i] = (double)x[2][i] + 0.25 * (g - (double)x[2][i]);
            want[3][i] = 0.875 * (double)x[3][i] + 0.125 * g * g;
            want[1][i] = 0.5 * want[2][i] / (sqrt(want[3][i]) + (double)by[1]) + 0.0625 * want[0][i];
        }
        for (int k = 0; k < 4; k++) d[k] = upload(x[k], n), launch.buffer[k] = at(d[k]);
        memcpy(launch.real, by, sizeof by);
        launch_ok(launch);
        for (int k = 0; k < 4; k++) {
            download(d[k], x[k]);
            check("lamb_direction", x[k], want[k], n, 1);
            free(x[k]), free(want[k]);
        }
    }
}

static void trust_case(size_t n, int groups, int zero)
{
    const float trust = 0.5f, decay = 0.25f, epsilon = 0.125f;
    float *w = numbers(n), *g = numbers(n), *sums[2] = { numbers(256), numbers(256) };
    double *want = malloc(n * sizeof *want), norm[2] = { 0, 0 }, factor = 1;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < groups; i++) norm[k] += (double)(sums[k][i] = k == zero ? 0 : fabsf(sums[k][i]));
        norm[k] = sqrt(norm[k]);
    }
    if (norm[0] > 0 && norm[1] > 0)
        factor = (double)trust * norm[0] / (norm[1] + (double)decay * norm[0] + (double)epsilon);
    for (size_t i = 0; i < n; i++) want[i] = factor * ((double)g[i] + (double)decay * (double)w[i]);
    array a = upload(w, n), b = upload(g, n), c = upload(sums[0], 256), d = upload(sums[1], 256);
    launch_ok((dml_launch){ .kernel = "trust",
                            .size = { n, 1 },
                            .buffer = { at(a), at(b), at(c), at(d) },
                            .integer = { (int)n, groups },
                            .real = { trust, decay, epsilon } });
    download(a, NULL), download(b, g), download(c, NULL), download(d, NULL);
    check("trust", g, want, n, 1);
    free(w), free(g), free(sums[0]), free(sums[1]), free(want);
}

static void test_trust(void)
{
    trust_case(300, 256, -1);
    if (quick) return;
    trust_case(5, 1, -1);
    trust_case(257, 0, -1); /* no norms: a factor of 1 */
    trust_case(10, 7, 0);
    trust_case(10, 7, 1);
}

static void test_sum_squares(void)
{
    static const int lengths[] = { 4000, 0, 1, 300, 3 * 2048, 20001 };
    for (int s = quick; s < upto(6); s++) {
        const size_t n = (size_t)lengths[s], groups = n / 2048 + 1;
        float *x = numbers(n), *y = output(groups, 0);
        double want[16] = { 0 };
        for (size_t i = 0; i < n; i++) want[i / 256 % groups] += (double)x[i] * (double)x[i];
        array a = upload(x, n), b = upload(y, groups);
        launch_ok((dml_launch){ .kernel = "sum_squares",
                                .size = { groups, 1 },
                                .buffer = { at(a), at(b) },
                                .integer = { (int)n, (int)groups } });
        download(a, NULL), download(b, y);
        check("sum_squares", y, want, groups, 1);
        free(x), free(y);
    }
}

static void test_clip_norm(void)
{
    static const float most[] = { 2, 1e6f, 0.5f };
    for (int s = quick; s < upto(SIZES); s++) {
        for (int m = 0; m < upto(3); m++) {
            const size_t n = (size_t)sizes[s];
            const int groups = s == 1 ? 256 : 3 * s + 1;
            float *x = numbers(n), *sums = numbers(256);
            double *want = malloc(n * sizeof *want), norm = 0;
            for (int i = 0; i < groups; i++) norm += (double)(sums[i] = fabsf(sums[i]));
            const double factor = (double)most[m] / (sqrt(norm) + 1e-6);
            for (size_t i = 0; i < n; i++) want[i] = (double)x[i] * fmin(1, factor);
            array a = upload(x, n), b = upload(sums, 256);
            launch_ok((dml_launch){ .kernel = "clip_norm",
                                    .size = { n, 1 },
                                    .buffer = { at(a), at(b) },
                                    .integer = { (int)n, groups },
                                    .real = { most[m] } });
            download(a, x), download(b, NULL);
            check("clip_norm", x, want, n, 1);
            free(x), free(sums), free(want);
        }
    }
}

static void test_clip_values(void)
{
    for (int s = quick; s < upto(SIZES); s++) {
        const size_t n = (size_t)sizes[s];
        float *x = numbers(n);
        double *want = malloc(n * sizeof *want);
        if (n > 3) x[0] = INFINITY, x[1] = -INFINITY, x[2] = 0.25f;
        for (size_t i = 0; i < n; i++) want[i] = fmax(-0.25, fmin(0.25, (double)x[i]));
        const bool spoiled = n > 5;
        if (spoiled) x[4] = NAN;
        array a = upload(x, n);
        launch_ok((dml_launch){ .kernel = "clip_values",
                                .size = { n, 1 },
                                .buffer = { at(a) },
                                .integer = { (int)n },
                                .real = { 0.25f } });
        download(a, x);
        if (spoiled) CHECK(isnan(x[4]));
        if (spoiled) x[4] = 0, want[4] = 0;
        check("clip_values", x, want, n, 1);
        free(x), free(want);
    }
}

static void gemm_case(int m, int n, int k, bool ta, bool tb, float alpha, float beta)
{
    const int lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 2, ldc = n + 1;
    const size_t na = (size_t)((ta ? k : m) * lda), nb = (size_t)((tb ? n : k) * ldb), nc = (size_t)(m * ldc);
    float *a = numbers(na), *b = numbers(nb), *c = output(nc, beta);
    float *between = malloc(nc * sizeof *between); /* what lies between the rows must stay */
    double *want = malloc(nc * sizeof *want);
    for (size_t i = 0; i < nc; i++)
        if ((int)i % ldc >= n) c[i] = 3;
    memcpy(between, c, nc * sizeof *c);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int p = 0; p < k; p++)
                sum += (double)a[ta ? p * lda + i : i * lda + p] * (double)b[tb ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = (double)alpha * sum + kept(beta, c[i * ldc + j]);
        }
        want[i * ldc + n] = 3;
    }
    array da = upload(a, na), db = upload(b, nb), dc = upload(c, nc);
    launch_ok((dml_launch){ .kernel = "gemm",
                            .size = { (size_t)n, (size_t)m },
                            .buffer = { at(da), at(db), at(dc) },
                            .integer = { m, n, k, ta, tb, lda, ldb, ldc },
                            .real = { alpha, beta } });
    download(da, NULL), download(db, NULL), download(dc, c);
    check("gemm", c, want, nc, 1 + sqrt((double)k));
    free(a), free(b), free(c), free(between), free(want);
}

/* Matrices along four axes: of all, of A and C (B is repeated), of A and B (summed over), and of B and C. */
static void gemm_of_many(int m, int n, int k, bool ta, bool tb, float beta)
{
    enum { ALL = 2, A_AND_C = 3, SUMMED = 2, B_AND_C = 2 };
    const size_t na = (size_t)(m * k), nb = (size_t)(k * n), nc = (size_t)(m * n);
    const size_t all_a = ALL * A_AND_C * SUMMED * na, all_b = ALL * SUMMED * B_AND_C * nb;
    const size_t all_c = ALL * A_AND_C * B_AND_C * nc;
    float *a = numbers(all_a), *b = numbers(all_b), *c = output(all_c, beta);
    double *want = malloc(all_c * sizeof *want);
    for (size_t e = 0; e < all_c; e++) {
        const int j = (int)(e % (size_t)n), i = (int)(e / (size_t)n % (size_t)m), w = (int)(e / nc % B_AND_C);
        const int u = (int)(e / nc / B_AND_C % A_AND_C), all = (int)(e / nc / B_AND_C / A_AND_C);
        double sum = 0;
        for (int v = 0; v < SUMMED; v++)
            for (int p = 0; p < k; p++) {
                const float *at_a = a + (size_t)((all * A_AND_C + u) * SUMMED + v) * na;
                const float *at_b = b + (size_t)((all * SUMMED + v) * B_AND_C + w) * nb;
                sum += (double)at_a[ta ? p * m + i : i * k + p] * (double)at_b[tb ? j * k + p : p * n + j];
            }
        want[e] = 0.5 * sum + kept(beta, c[e]);
    }
    array da = upload(a, all_a), db = upload(b, all_b), dc = upload(c, all_c);
    const size_t rows = ((size_t)m + 63) / 64 * 64;
    launch_ok((dml_launch){ .kernel = "gemm",
                            .size = { (size_t)n, ALL * A_AND_C * B_AND_C * rows },
                            .buffer = { at(da), at(db), at(dc) },
                            .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n, ALL, A_AND_C, SUMMED,
                                         B_AND_C, 7 | 5 << 3 | 3 << 6 | 6 << 9 },
                            .real = { 0.5f, beta } });
    download(da, NULL), download(db, NULL), download(dc, c);
    check("gemm", c, want, all_c, 1 + sqrt((double)k * SUMMED));
    free(a), free(b), free(c), free(want);
}

static void test_gemm(void)
{
    gemm_of_many(3, 2, 5, false, false, 0);
    gemm_of_many(66, 3, 17, true, false, 1);
    gemm_of_many(2, 65, 3, false, true, 0.5f);
    if (!quick) gemm_of_many(65, 1, 1, true, true, 1);
    static const int shapes[][3] = {
        { 1, 1, 1 }, { 65, 70, 33 }, { 3, 130, 16 }, { 64, 64, 0 }, { 33, 5, 47 }
    };
    for (int s = quick; s < upto(5); s++)
        for (int t = 0; t < 4; t++)
            gemm_case(shapes[s][0], shapes[s][1], shapes[s][2], t & 1, t & 2, t == 1 ? -0.5f : 1.0f,
                      betas[(s + t) % BETAS]);
}

/* batch, height, width, channels, filters, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
   dilation_w, groups (the last three: 0 is 1) */
typedef struct shape {
    int n, h, w, c, f, kh, kw, sh, sw, ph, pw, dh, dw, g;
} shape;

static int or_one(int x)
{
    return x ? x : 1;
}

/* Along an axis of channels or filters: tiles of 64 don't reach from one group into another. */
static size_t tiled(int size, int groups)
{
    return groups <= 1 ? (size_t)size : (size_t)groups * (((size_t)(size / groups) + 63) / 64 * 64);
}

static int conv_out_h(const shape *s)
{
    return (s->h + 2 * s->ph - (s->kh - 1) * or_one(s->dh) - 1) / s->sh + 1;
}

static int conv_out_w(const shape *s)
{
    return (s->w + 2 * s->pw - (s->kw - 1) * or_one(s->dw) - 1) / s->sw + 1;
}

static int out_size(int in, int kernel, int stride, int pad)
{
    return (in + 2 * pad - kernel) / stride + 1;
}

static const shape conv_shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0 },     { 4, 7, 5, 3, 4, 3, 3, 1, 1, 1, 1, 0, 0, 0 },
    { 3, 9, 8, 2, 70, 3, 2, 2, 3, 0, 1, 0, 0, 0 },    { 2, 6, 7, 66, 5, 1, 3, 1, 2, 0, 2, 0, 0, 0 },
    { 1, 5, 5, 1, 2, 5, 5, 4, 4, 2, 2, 0, 0, 0 },     { 2, 9, 8, 3, 4, 3, 2, 2, 1, 2, 1, 2, 3, 0 },
    { 2, 5, 6, 6, 9, 3, 3, 1, 1, 1, 1, 1, 1, 3 },     { 1, 6, 7, 70, 70, 3, 3, 2, 2, 1, 1, 1, 1, 70 },
    { 1, 4, 5, 132, 136, 1, 1, 1, 1, 0, 0, 1, 1, 2 },
};
enum { CONV_SHAPES = sizeof conv_shapes / sizeof conv_shapes[0] };

/* Calls visit for every product of the convolution, with the indices of x, w and y that it joins. */
static void conv_products(const shape *s, void (*visit)(void *at, int x, int w, int y), void *to)
{
    const int oh = conv_out_h(s), ow = conv_out_w(s);
    const int channels = s->c / or_one(s->g), filters = s->f / or_one(s->g);
    for (int n = 0; n < s->n; n++)
        for (int y = 0; y < oh; y++)
            for (int x = 0; x < ow; x++)
                for (int f = 0; f < s->f; f++)
                    for (int i = 0; i < s->kh; i++)
                        for (int j = 0; j < s->kw; j++)
                            for (int c = 0; c < channels; c++) {
                                const int h = y * s->sh - s->ph + i * or_one(s->dh);
                                const int w = x * s->sw - s->pw + j * or_one(s->dw);
                                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                                visit(to, ((n * s->h + h) * s->w + w) * s->c + f / filters * channels + c,
                                      ((f * s->kh + i) * s->kw + j) * channels + c,
                                      ((n * oh + y) * ow + x) * s->f + f);
                            }
}

typedef struct conv_reference {
    const float *x, *w, *y;
    double *out;
} conv_reference;

static void add_to_y(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[y] += (double)r->x[x] * (double)r->w[w];
}

static void add_to_x(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[x] += (double)r->y[y] * (double)r->w[w];
}

static void add_to_w(void *argument, int x, int w, int y)
{
    const conv_reference *r = argument;
    r->out[w] += (double)r->y[y] * (double)r->x[x];
}

/* The ints of the convolutions and pools. */
static void set_shape(dml_launch *launch, const shape *s)
{
    const int all[] = { s->n,  s->h,  s->w,  s->c,          s->f,          s->kh, s->kw, s->sh,
                        s->sw, s->ph, s->pw, conv_out_h(s), conv_out_w(s), s->dh, s->dw, s->g };
    for (int i = 0; i < 16; i++) launch->integer[i] = all[i];
}

/* Runs one of the three: inputs at buffer 0 and 1, the output last; `visit` makes the reference. */
static void conv_case(const char *kernel, const shape *s, float beta, bool with_bias)
{
    const bool to_x = strstr(kernel, "input"), to_w = strstr(kernel, "weights"), to_y = !to_x && !to_w;
    const int oh = conv_out_h(s), ow = conv_out_w(s);
    const size_t nx = (size_t)(s->n * s->h * s->w * s->c),
                 nw = (size_t)(s->f * s->kh * s->kw * s->c / or_one(s->g));
    const size_t ny = (size_t)(s->n * oh * ow * s->f), nf = (size_t)s->f;
    float *x = to_x ? output(nx, beta) : numbers(nx), *w = to_w ? output(nw, beta) : numbers(nw);
    float *y = to_y ? output(ny, beta) : numbers(ny), *bias = numbers(nf);
    const size_t n = to_x ? nx : to_w ? nw : ny;
    float *out = to_x ? x : to_w ? w : y;
    double *want = calloc(n, sizeof *want);
    conv_reference reference = { x, w, y, want };
    conv_products(s, to_x ? add_to_x : to_w ? add_to_w : add_to_y, &reference);
    for (size_t i = 0; i < n; i++)
        want[i] += (to_y && with_bias ? (double)bias[i % nf] : 0) + kept(beta, out[i]);
    array ax = upload(x, nx), aw = upload(w, nw), ab = upload(bias, nf), ay = upload(y, ny);
    dml_launch launch = { .kernel = kernel, .real = { beta } };
    set_shape(&launch, s);
    if (to_y) {
        launch.size[0] = tiled(s->f, s->g), launch.size[1] = (size_t)(s->n * oh * ow);
        launch.buffer[0] = at(ax), launch.buffer[1] = at(aw), launch.buffer[3] = at(ay);
        if (with_bias) launch.buffer[2] = at(ab);
    } else if (to_x) {
        launch.size[0] = tiled(s->c, s->g), launch.size[1] = (size_t)(s->n * s->h * s->w);
        launch.buffer[0] = at(ay), launch.buffer[1] = at(aw), launch.buffer[2] = at(ax);
    } else {
        launch.size[0] = nw / nf, launch.size[1] = tiled(s->f, s->g);
        launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(aw);
    }
    launch_ok(launch);
    download(ax, x), download(aw, w), download(ab, NULL), download(ay, y);
    check(kernel, out, want, n, 8);
    free(x), free(w), free(y), free(bias), free(want);
}

static void test_conv2d_forward(void)
{
    for (int s = quick; s < upto(CONV_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) conv_case("conv2d_forward", &conv_shapes[s], betas[b], b % 2);
}

static void test_conv2d_backward_input(void)
{
    for (int s = quick; s < upto(CONV_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++)
            conv_case("conv2d_backward_input", &conv_shapes[s], betas[b], false);
}

static void test_conv2d_backward_weights(void)
{
    for (int s = quick; s < upto(CONV_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++)
            conv_case("conv2d_backward_weights", &conv_shapes[s], betas[b], false);
}

static const shape pool_shapes[] = {
    { 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0 },
    { 2, 7, 5, 3, 0, 2, 2, 2, 2, 0, 0, 0, 0, 0 },
    { 3, 9, 8, 5, 0, 3, 3, 2, 1, 1, 2, 0, 0, 0 },
    { 1, 6, 11, 7, 0, 2, 3, 3, 4, 1, 0, 0, 0, 0 },
    { 2, 9, 8, 5, 1, 3, 4, 2, 3, 2, 2, 0, 0, 0 },                 /* means that count padding */
    { 1, 6, 5, 2, 0, 2, 3, INT32_MAX, INT32_MAX, 1, 0, 0, 0, 0 }, /* a place plus a stride is no int */
};
enum { POOL_SHAPES = sizeof pool_shapes / sizeof pool_shapes[0] };

static void pool_case(const shape *s, bool max, float beta, bool nans)
{
    const int oh = out_size(s->h, s->kh, s->sh, s->ph), ow = out_size(s->w, s->kw, s->sw, s->pw);
    const size_t nx = (size_t)(s->n * s->h * s->w * s->c), ny = (size_t)(s->n * oh * ow * s->c);
    float *x = numbers(nx), *y = output(ny, 0), *dy = numbers(ny), *dx = output(nx, beta);
    int *argmax = calloc(ny, sizeof *argmax), *want_argmax = calloc(ny, sizeof *want_argmax);
    double *want_y = calloc(ny, sizeof *want_y), *want_dx = calloc(nx, sizeof *want_dx);
    for (size_t i = 0; i < nx; i++) {
        x[i] = floorf(x[i] * 3); /* many equals */
        want_dx[i] = kept(beta, dx[i]);
    }
    if (nans)
        for (size_t i = 0; i < nx; i += 11) x[i] = i % 22 ? NAN : -INFINITY;
    for (int n = 0; n < s->n; n++)
        for (int i = 0; i < oh; i++)
            for (int j = 0; j < ow; j++)
                for (int c = 0; c < s->c; c++) {
                    const size_t out = (size_t)(((n * oh + i) * ow + j) * s->c + c);
                    int count = 0, best = -1;
                    double sum = 0, largest = 0;
                    for (int pass = 0; pass < 2; pass++)
                        for (int h = i * s->sh - s->ph; h < i * s->sh - s->ph + s->kh; h++)
                            for (int w = j * s->sw - s->pw; w < j * s->sw - s->pw + s->kw; w++) {
                                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                                const size_t in = (size_t)(((n * s->h + h) * s->w + w) * s->c + c);
                                const double value = (double)x[in];
                                if (pass == 1) {
                                    want_dx[in] += max ? (best == h * s->w + w ? (double)dy[out] : 0)
                                                       : (double)dy[out] / (s->f ? s->kh * s->kw : count);
                                    continue;
                                }
                                if (best < 0 || value > largest || (isnan(value) && !isnan(largest)))
                                    largest = value, best = h * s->w + w;
                                sum += value, count++;
                            }
                    want_argmax[out] = best;
                    want_y[out] = max ? largest : sum / (s->f ? s->kh * s->kw : count);
                }
    array ax = upload(x, nx), ay = upload(y, ny), aa = upload(argmax, ny);
    array ady = upload(dy, ny), adx = upload(dx, nx);
    dml_launch launch = { .kernel = max ? "max_pool2d_forward" : "avg_pool2d_forward",
                          .size = { ny, 1 },
                          .buffer = { at(ax), at(ay) } };
    set_shape(&launch, s);
    if (max) {
        launch_ok(launch); /* argmax is NULL */
        launch.buffer[2] = at(aa);
    }
    launch_ok(launch);
    launch = (dml_launch){ .kernel = max ? "max_pool2d_backward" : "avg_pool2d_backward",
                           .size = { nx, 1 },
                           .real = { beta } };
    set_shape(&launch, s);
    int b = 0;
    if (max) launch.buffer[b++] = at(aa);
    launch.buffer[b++] = at(ady);
    launch.buffer[b++] = at(adx);
    launch_ok(launch);
    download(ax, NULL), download(ay, y), download(aa, argmax), download(ady, NULL), download(adx, dx);
    for (size_t i = 0; i < ny; i++) {
        if (max) CHECK_INT(argmax[i], want_argmax[i]);
        if ((isnan(want_y[i]) && isnan(y[i])) || (isinf(want_y[i]) && want_y[i] == (double)y[i]))
            y[i] = 0, want_y[i] = 0;
    }
    check(max ? "max_pool2d_forward" : "avg_pool2d_forward", y, want_y, ny, 3);
    check(launch.kernel, dx, want_dx, nx, 3);
    free(x), free(y), free(dy), free(dx), free(argmax), free(want_argmax), free(want_y), free(want_dx);
}

static void test_max_pool2d_forward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++) pool_case(&pool_shapes[s], true, 0, true);
}

static void test_max_pool2d_backward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) pool_case(&pool_shapes[s], true, betas[b], false);
}

static void test_avg_pool2d_forward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++) pool_case(&pool_shapes[s], false, 0, true);
}

static void test_avg_pool2d_backward(void)
{
    for (int s = quick; s < upto(POOL_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) pool_case(&pool_shapes[s], false, betas[b], false);
}

#include "local2d_cases.h"

static void test_sum_rows(void)
{
    static const int shapes[][3] = { { 1, 1, 1 }, { 100, 37, 3 }, { 15, 16, 1 }, { 3, 50, 2 }, { 0, 5, 2 } };
    for (int s = quick; s < upto(5); s++) {
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
            check("sum_rows", y, want, outer * columns, 5);
            free(x), free(y), free(want);
        }
    }
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

#include "loss_cases.h"
#include "reduce_cases.h"

/* Places begin, begin + step, ... of each axis, between zeros. */
typedef struct slice {
    int batch, in[3], begin[3], step[3], count[3], before[3], after[3];
} slice;

static const slice slices[] = {
    { 1, { 1, 1, 1 }, { 0, 0, 0 }, { 1, 1, 1 }, { 1, 1, 1 }, { 0, 0, 0 }, { 0, 0, 0 } },
    { 3, { 7, 6, 5 }, { 1, 0, 2 }, { 2, 3, 1 }, { 3, 2, 3 }, { 0, 1, 2 }, { 2, 0, 3 } },
    { 2, { 9, 8, 16 }, { 0, 0, 0 }, { 2, 2, 1 }, { 5, 4, 16 }, { 0, 0, 8 }, { 0, 0, 8 } },
    { 2, { 4, 5, 9 }, { 0, 4, 1 }, { 1, 9, 4 }, { 4, 1, 2 }, { 3, 0, 0 }, { 0, 0, 1 } },
};
enum { SLICES = sizeof slices / sizeof slices[0] };

static void slice_case(const slice *s, bool forward)
{
    int out[3];
    size_t nx = (size_t)s->batch, ny = nx, taken = nx, first = 0;
    dml_launch launch = { .kernel = forward ? "slice2d_forward" : "slice2d_backward",
                          .integer = { s->batch } };
    for (int a = 0; a < 3; a++) {
        out[a] = s->before[a] + s->count[a] + s->after[a];
        nx *= (size_t)s->in[a], ny *= (size_t)out[a], taken *= (size_t)s->count[a];
        first = first * (size_t)s->in[a] + (size_t)s->begin[a];
        const int each[] = { s->in[a], out[a], s->step[a], s->count[a], s->before[a] };
        for (int i = 0; i < 5; i++) launch.integer[1 + 5 * a + i] = each[i];
    }
    float *x = numbers(nx), *y = forward ? output(ny, 0) : numbers(ny);
    double *want_x = malloc(nx * sizeof *want_x), *want_y = calloc(ny, sizeof *want_y);
    for (size_t i = 0; i < nx; i++) want_x[i] = (double)x[i];
    for (int n = 0; n < s->batch; n++)
        for (int h = 0; h < s->count[0]; h++)
            for (int w = 0; w < s->count[1]; w++)
                for (int c = 0; c < s->count[2]; c++) {
                    const int ih = s->begin[0] + h * s->step[0], iw = s->begin[1] + w * s->step[1];
                    const int from =
                        ((n * s->in[0] + ih) * s->in[1] + iw) * s->in[2] + s->begin[2] + c * s->step[2];
                    const int to = ((n * out[0] + s->before[0] + h) * out[1] + s->before[1] + w) * out[2] +
                                   s->before[2] + c;
                    want_y[to] = (double)x[from];
                    want_x[from] += (double)y[to];
                }
    array ax = upload(x, nx), ay = upload(y, ny);
    dml_ref of_x = at(ax);
    of_x.offset += first * 4;
    launch.size[0] = forward ? ny : taken;
    launch.size[1] = 1;
    launch.buffer[forward ? 0 : 1] = of_x;
    launch.buffer[forward ? 1 : 0] = at(ay);
    launch_ok(launch);
    download(ax, x), download(ay, y);
    if (forward)
        check("slice2d_forward", y, want_y, ny, 1);
    else
        check("slice2d_backward", x, want_x, nx, 1);
    free(x), free(y), free(want_x), free(want_y);
}

static void test_slice2d_forward(void)
{
    for (int s = quick; s < upto(SLICES); s++) slice_case(&slices[s], true);
}

static void test_slice2d_backward(void)
{
    for (int s = quick; s < upto(SLICES); s++) slice_case(&slices[s], false);
}

/* rows, channels, rows of a part */
static const int norm_shapes[][3] = {
    { 1, 1, 64 }, { 130, 37, 64 }, { 200, 16, 7 }, { 5, 100, 5 }, { 300, 3, 100 }
};
enum { NORM_SHAPES = sizeof norm_shapes / sizeof norm_shapes[0] };

static dml_launch norm_launch(const char *kernel, const int *shape, size_t x, size_t y)
{
    return (dml_launch){ .kernel = kernel,
                         .size = { x, y },
                         .integer = { shape[0], shape[1], shape[2], (shape[0] + shape[2] - 1) / shape[2] } };
}

/* Of rows [from, to): the mean and the squares of the distances from it, or the sums of the two products. */
static void norm_part(const float *x, const float *dy, const float *mean, int channels, int from, int to,
                      int c, double sums[2])
{
    double middle = 0;
    sums[0] = sums[1] = 0;
    for (int r = from; r < to; r++) middle += (double)x[r * channels + c] / (to - from);
    if (!dy) sums[0] = middle;
    for (int r = from; r < to; r++) {
        const double distance = (double)x[r * channels + c] - (dy ? (double)mean[c] : middle);
        if (dy) sums[0] += (double)dy[r * channels + c];
        sums[1] += dy ? (double)dy[r * channels + c] * distance : distance * distance;
    }
}

/* batch_norm_moments and batch_norm_products. */
static void norm_parts_case(const int *shape, bool backward)
{
    const int rows = shape[0], channels = shape[1], count = (rows + shape[2] - 1) / shape[2];
    const size_t n = (size_t)(rows * channels), np = (size_t)(2 * count * channels);
    float *x = numbers(n), *dy = numbers(n), *mean = numbers((size_t)channels), *parts = output(np, 0);
    double *want = malloc(np * sizeof *want);
    for (size_t i = 0; i < n; i++) x[i] += 100; /* whose squares would eat up the distances */
    for (int c = 0; c < channels; c++) mean[c] += 100;
    for (int p = 0; p < count; p++)
        for (int c = 0; c < channels; c++) {
            const int from = p * shape[2], to = from + shape[2] < rows ? from + shape[2] : rows;
            double sums[2];
            norm_part(x, backward ? dy : NULL, mean, channels, from, to, c, sums);
            want[2 * p * channels + c] = sums[0], want[(2 * p + 1) * channels + c] = sums[1];
        }
    array ax = upload(x, n), ay = upload(dy, n), am = upload(mean, (size_t)channels), ap = upload(parts, np);
    dml_launch launch = norm_launch(backward ? "batch_norm_products" : "batch_norm_moments", shape,
                                    (size_t)channels, (size_t)count);
    launch.buffer[0] = at(ax);
    launch.buffer[1] = backward ? at(ay) : at(ap);
    if (backward) launch.buffer[2] = at(am), launch.buffer[3] = at(ap);
    launch_ok(launch);
    download(ax, NULL), download(ay, NULL), download(am, NULL), download(ap, parts);
    check(launch.kernel, parts, want, np, 10);
    free(x), free(dy), free(mean), free(parts), free(want);
}

static void test_batch_norm_moments(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_parts_case(norm_shapes[s], false);
}

static void test_batch_norm_products(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_parts_case(norm_shapes[s], true);
}

/* From the exact sums of the parts: statistics and running ones, or gradients and what dx is made of. */
static void norm_channels_case(const int *shape, bool backward, bool by_batch)
{
    const int rows = shape[0], channels = shape[1], count = (rows + shape[2] - 1) / shape[2];
    const size_t n = (size_t)(rows * channels), np = (size_t)(2 * count * channels), nc = (size_t)channels;
    const float epsilon = 0.01f, mean_share = 0.25f, variance_share = 0.125f, unbiased = 1.5f;
    float *x = numbers(n), *dy = numbers(n), *scale = numbers(nc), *mean = numbers(nc),
          *variance = numbers(nc);
    float *parts = numbers(np), *running = numbers(2 * nc), *out = output(6 * nc, 0);
    double *want = malloc(6 * nc * sizeof *want);
    for (int c = 0; c < channels; c++) {
        double all[2];
        variance[c] = fabsf(variance[c]) + 0.1f;
        norm_part(x, backward ? dy : NULL, mean, channels, 0, rows, c, all);
        for (int p = 0; p < count; p++) {
            const int from = p * shape[2], to = from + shape[2] < rows ? from + shape[2] : rows;
            double sums[2];
            norm_part(x, backward ? dy : NULL, mean, channels, from, to, c, sums);
            parts[2 * p * channels + c] = (float)sums[0], parts[(2 * p + 1) * channels + c] = (float)sums[1];
        }
        if (backward) {
            const double inverse = 1 / sqrt((double)variance[c] + (double)epsilon);
            const double factor = (double)scale[c] * inverse;
            const double rest[] = { all[1] * inverse,
                                    all[0],
                                    (double)mean[c],
                                    factor,
                                    by_batch ? -factor * inverse * inverse * all[1] / rows : 0,
                                    by_batch ? -factor * all[0] / rows : 0 };
            for (int i = 0; i < 6; i++) want[i * channels + c] = rest[i];
        } else {
            const double v = all[1] / rows;
            want[c] = all[0], want[channels + c] = v;
            want[2 * channels + c] =
                (1 - (double)mean_share) * (double)running[c] + (double)mean_share * all[0];
            want[3 * channels + c] = (1 - (double)variance_share) * (double)running[channels + c] +
                                     (double)variance_share * (double)unbiased * v;
        }
    }
    array ap = upload(parts, np), as = upload(scale, nc), am = upload(mean, nc), av = upload(variance, nc);
    array ar = upload(running, 2 * nc), ao = upload(out, 6 * nc);
    dml_launch launch =
        norm_launch(backward ? "batch_norm_gradients" : "batch_norm_statistics", shape, nc, 1);
    launch.buffer[0] = at(ap);
    if (backward) {
        launch.buffer[1] = at(as), launch.buffer[2] = at(am), launch.buffer[3] = at(av);
        launch.buffer[4] = at(ao);
        launch.integer[4] = by_batch;
        launch.real[0] = epsilon;
    } else {
        launch.buffer[1] = at(am), launch.buffer[2] = at(av), launch.buffer[3] = launch.buffer[4] = at(ar);
        launch.buffer[4].offset += nc * 4;
        launch.real[0] = mean_share, launch.real[1] = variance_share, launch.real[2] = unbiased;
    }
    launch_ok(launch);
    download(ap, NULL), download(as, NULL), download(am, mean), download(av, variance);
    download(ar, running), download(ao, out);
    if (backward) {
        check("batch_norm_gradients", out, want, 6 * nc, 10);
    } else {
        check("batch_norm_statistics's mean", mean, want, nc, 1);
        check("batch_norm_statistics's variance", variance, want + nc, nc, 1);
        check("batch_norm_statistics's running ones", running, want + 2 * nc, 2 * nc, 1);
    }
    free(x), free(dy), free(scale), free(mean), free(variance), free(parts), free(running), free(out),
        free(want);
}

static void test_batch_norm_statistics(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_channels_case(norm_shapes[s], false, true);
}

static void test_batch_norm_gradients(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++)
        for (int by_batch = 0; by_batch < 2; by_batch++) norm_channels_case(norm_shapes[s], true, by_batch);
}

static void norm_forward_case(const int *shape)
{
    const size_t n = (size_t)(shape[0] * shape[1]), nc = (size_t)shape[1];
    const float epsilon = 0.01f;
    float *x = numbers(n), *y = output(n, 0), *channel = numbers(4 * nc); /* scale, shift, mean, variance */
    double *want = malloc(n * sizeof *want);
    for (size_t c = 0; c < nc; c++) channel[3 * nc + c] = fabsf(channel[3 * nc + c]);
    for (size_t i = 0; i < n; i++) {
        const float *c = channel + i % nc;
        want[i] =
            ((double)x[i] - (double)c[2 * nc]) / sqrt((double)c[3 * nc] + (double)epsilon) * (double)c[0] +
            (double)c[nc];
    }
    array ax = upload(x, n), ay = upload(y, n), ac = upload(channel, 4 * nc);
    dml_launch launch = norm_launch("batch_norm_forward", shape, n, 1);
    launch.buffer[0] = at(ax);
    for (int i = 0; i < 4; i++)
        launch.buffer[1 + i] = (dml_ref){ ac.buffer, at(ac).offset + (size_t)i * nc * 4 };
    launch.buffer[5] = at(ay);
    launch.real[0] = epsilon;
    launch_ok(launch);
    download(ax, NULL), download(ac, NULL), download(ay, y);
    check("batch_norm_forward", y, want, n, 4);
    free(x), free(y), free(channel), free(want);
}

static void test_batch_norm_forward(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++) norm_forward_case(norm_shapes[s]);
}

static void test_batch_norm_backward(void)
{
    for (int s = quick; s < upto(NORM_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)(norm_shapes[s][0] * norm_shapes[s][1]), nc = (size_t)norm_shapes[s][1];
            float *x = numbers(n), *dy = numbers(n), *dx = output(n, betas[b]), *by = numbers(4 * nc);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++) {
                const float *c = by + i % nc;
                want[i] = (double)c[nc] * (double)dy[i] + (double)c[2 * nc] * ((double)x[i] - (double)c[0]) +
                          (double)c[3 * nc] + kept(betas[b], dx[i]);
            }
            array ax = upload(x, n), ay = upload(dy, n), ab = upload(by, 4 * nc), ad = upload(dx, n);
            dml_launch launch = norm_launch("batch_norm_backward", norm_shapes[s], n, 1);
            launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(ab);
            launch.buffer[3] = at(ad);
            launch.real[0] = betas[b];
            launch_ok(launch);
            download(ax, NULL), download(ay, NULL), download(ab, NULL), download(ad, dx);
            check("batch_norm_backward", dx, want, n, 2);
            free(x), free(dy), free(dx), free(by), free(want);
        }
}

/* samples, pixels, groups, width, rows of a part */
static const int sample_shapes[][5] = {
    { 1, 1, 1, 1, 64 }, { 2, 7, 3, 5, 4 }, { 3, 1, 1, 300, 2 }, { 2, 150, 2, 2, 64 }
};
enum { SAMPLE_SHAPES = sizeof sample_shapes / sizeof sample_shapes[0] };

typedef struct sample_norm {
    int samples, pixels, groups, width, part, rows, channels, parts;
    size_t n, stats;
    bool by_square, affine;
    float *x, *dy, *weight, *bias, *statistics;
    double *mean, *inverse; /* (samples, groups) */
} sample_norm;

static const float sample_epsilon = 0.01f;

static size_t sample_group(const sample_norm *s, size_t i)
{
    const size_t row = i / (size_t)s->channels, channel = i % (size_t)s->channels;
    return row / (size_t)s->pixels * (size_t)s->groups + channel / (size_t)s->width;
}

static sample_norm sample_create(const int *shape, bool by_square, bool affine)
{
    sample_norm s;
    s.samples = shape[0], s.pixels = shape[1], s.groups = shape[2], s.width = shape[3], s.part = shape[4];
    s.rows = s.samples * s.pixels, s.channels = s.groups * s.width;
    s.parts = (s.rows + s.part - 1) / s.part;
    s.n = (size_t)(s.rows * s.channels), s.stats = (size_t)(s.samples * s.groups);
    s.by_square = by_square, s.affine = affine;
    s.x = numbers(s.n), s.dy = numbers(s.n), s.weight = numbers((size_t)s.channels);
    s.bias = numbers((size_t)s.channels), s.statistics = output(2 * s.stats, 0);
    s.mean = calloc(s.stats, sizeof *s.mean), s.inverse = calloc(s.stats, sizeof *s.inverse);
    for (size_t i = 0; i < s.n; i++) s.x[i] += by_square ? 0 : 30;
    for (size_t i = 0; i < s.n && !by_square; i++)
        s.mean[sample_group(&s, i)] += (double)s.x[i] / (s.pixels * s.width);
    for (size_t i = 0; i < s.n; i++)
        s.inverse[sample_group(&s, i)] +=
            pow((double)s.x[i] - s.mean[sample_group(&s, i)], 2) / (s.pixels * s.width);
    for (size_t i = 0; i < s.stats; i++) {
        s.inverse[i] = 1 / sqrt(s.inverse[i] + (double)sample_epsilon);
        s.statistics[2 * i] = (float)s.mean[i], s.statistics[2 * i + 1] = (float)s.inverse[i];
    }
    return s;
}

static void sample_destroy(sample_norm *s)
{
    free(s->x), free(s->dy), free(s->weight), free(s->bias), free(s->statistics), free(s->mean);
    free(s->inverse);
}

static dml_launch sample_launch(const sample_norm *s, const char *kernel)
{
    return (dml_launch){ .kernel = kernel,
                         .size = { s->stats, 1 },
                         .integer = { s->rows, s->channels, s->pixels, s->width, s->by_square, s->part,
                                      s->parts } };
}

static void sample_forward_case(sample_norm s)
{
    float *y = output(s.n, 0), *got = output(2 * s.stats, 0);
    double *want = malloc(s.n * sizeof *want), *statistics = malloc(2 * s.stats * sizeof *statistics);
    for (size_t i = 0; i < s.n; i++) {
        const size_t g = sample_group(&s, i), c = i % (size_t)s.channels;
        want[i] = ((double)s.x[i] - s.mean[g]) * s.inverse[g] * (s.affine ? (double)s.weight[c] : 1) +
                  (s.affine ? (double)s.bias[c] : 0);
        statistics[2 * g] = s.mean[g], statistics[2 * g + 1] = s.inverse[g];
    }
    array ax = upload(s.x, s.n), aw = upload(s.weight, (size_t)s.channels), ay = upload(y, s.n);
    array ab = upload(s.bias, (size_t)s.channels), as = upload(got, 2 * s.stats);
    dml_launch launch = sample_launch(&s, "sample_norm_forward");
    launch.buffer[0] = at(ax), launch.buffer[3] = at(as), launch.buffer[4] = at(ay);
    if (s.affine) launch.buffer[1] = at(aw), launch.buffer[2] = at(ab);
    launch.real[0] = sample_epsilon;
    launch_ok(launch);
    download(ax, NULL), download(aw, NULL), download(ab, NULL), download(as, got), download(ay, y);
    check("sample_norm_forward", y, want, s.n, 30);
    check("sample_norm_forward's statistics", got, statistics, 2 * s.stats, 30);
    free(y), free(got), free(want), free(statistics);
    sample_destroy(&s);
}

static void test_sample_norm_forward(void)
{
    for (int s = quick; s < upto(SAMPLE_SHAPES); s++)
        for (int how = 0; how < 3; how++)
            sample_forward_case(sample_create(sample_shapes[s], how == 1, how != 2));
}

static void sample_backward_case(sample_norm s, float beta)
{
    const size_t nc = (size_t)s.channels;
    float *dx = output(s.n, beta);
    double *want = malloc(s.n * sizeof *want), *sum = calloc(2 * s.stats, sizeof *sum);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < s.n; i++) {
            const size_t g = sample_group(&s, i);
            const double hat = ((double)s.x[i] - s.mean[g]) * s.inverse[g], count = s.pixels * s.width;
            const double d = (double)s.dy[i] * (s.affine ? (double)s.weight[i % nc] : 1);
            if (pass == 0) {
                sum[2 * g] += s.by_square ? 0 : d / count, sum[2 * g + 1] += d * hat / count;
                continue;
            }
            want[i] = s.inverse[g] * (d - sum[2 * g] - hat * sum[2 * g + 1]) + kept(beta, dx[i]);
        }
    array ax = upload(s.x, s.n), ay = upload(s.dy, s.n), aw = upload(s.weight, nc);
    array as = upload(s.statistics, 2 * s.stats), ad = upload(dx, s.n);
    dml_launch launch = sample_launch(&s, "sample_norm_backward");
    launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[3] = at(as);
    launch.buffer[4] = at(ad);
    if (s.affine) launch.buffer[2] = at(aw);
    launch.real[0] = beta;
    launch_ok(launch);
    download(ax, NULL), download(ay, NULL), download(aw, NULL), download(as, NULL), download(ad, dx);
    check("sample_norm_backward", dx, want, s.n, 100);
    free(dx), free(want), free(sum);
    sample_destroy(&s);
}

static void test_sample_norm_backward(void)
{
    for (int s = quick; s < upto(SAMPLE_SHAPES); s++)
        for (int how = 0; how < 3; how++)
            sample_backward_case(sample_create(sample_shapes[s], how == 1, how != 2), betas[how % BETAS]);
}

static void test_sample_norm_products(void)
{
    for (int k = quick; k < upto(SAMPLE_SHAPES); k++) {
        sample_norm s = sample_create(sample_shapes[k], false, true);
        const size_t nc = (size_t)s.channels, np = 2 * (size_t)s.parts * nc;
        float *parts = output(np, 0);
        double *want = calloc(np, sizeof *want);
        for (size_t i = 0; i < s.n; i++) {
            const size_t g = sample_group(&s, i), part = i / nc / (size_t)s.part;
            want[part * nc + i % nc] += (double)s.dy[i];
            want[((size_t)s.parts + part) * nc + i % nc] +=
                (double)s.dy[i] * ((double)s.x[i] - s.mean[g]) * s.inverse[g];
        }
        array ax = upload(s.x, s.n), ay = upload(s.dy, s.n), as = upload(s.statistics, 2 * s.stats);
        array ap = upload(parts, np);
        dml_launch launch = sample_launch(&s, "sample_norm_products");
        launch.size[0] = nc, launch.size[1] = (size_t)s.parts;
        launch.buffer[0] = at(ax), launch.buffer[1] = at(ay), launch.buffer[2] = at(as);
        launch.buffer[3] = at(ap);
        launch_ok(launch);
        download(ax, NULL), download(ay, NULL), download(as, NULL), download(ap, parts);
        check("sample_norm_products", parts, want, np, 100);
        free(parts), free(want);
        sample_destroy(&s);
    }
}

/* count, width, rows of the table */
static const int embeddings[][3] = { { 1, 1, 1 }, { 300, 5, 7 }, { 4, 300, 1000 }, { 600, 1, 900 } };
enum { EMBEDDINGS = sizeof embeddings / sizeof embeddings[0] };

static int32_t *embedding_indices(const int *shape)
{
    int32_t *indices = malloc((size_t)shape[0] * sizeof *indices);
    for (int i = 0; i < shape[0]; i++) indices[i] = (int32_t)(test_random(&seed) % (unsigned)shape[2]);
    return indices;
}

static void test_embedding_forward(void)
{
    for (int s = quick; s < upto(EMBEDDINGS); s++) {
        const int *shape = embeddings[s];
        const size_t width = (size_t)shape[1], n = (size_t)shape[0] * width, nt = (size_t)shape[2] * width;
        int32_t *indices = embedding_indices(shape);
        float *table = numbers(nt), *y = output(n, 0);
        double *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++)
            want[i] = (double)table[(size_t)indices[i / width] * width + i % width];
        array ai = upload(indices, (size_t)shape[0]), at_table = upload(table, nt), ay = upload(y, n);
        launch_ok((dml_launch){ .kernel = "embedding_forward",
                                .size = { n, 1 },
                                .buffer = { at(ai), at(at_table), at(ay) },
                                .integer = { shape[0], shape[1] } });
        download(ai, NULL), download(at_table, NULL), download(ay, y);
        check("embedding_forward", y, want, n, 0);
        free(indices), free(table), free(y), free(want);
    }
}

/* The links, and the sums along them. */
static void embedding_case(const int *shape)
{
    const size_t count = (size_t)shape[0], width = (size_t)shape[1], nt = (size_t)shape[2] * width;
    int32_t *indices = embedding_indices(shape), *links = malloc(2 * count * sizeof *links);
    float *dy = numbers(count * width), *dtable = numbers(nt);
    double *want = malloc(nt * sizeof *want);
    for (size_t i = 0; i < nt; i++) want[i] = (double)dtable[i];
    for (size_t i = 0; i < count * width; i++)
        want[(size_t)indices[i / width] * width + i % width] += (double)dy[i];
    array ai = upload(indices, count), al = upload(links, 2 * count), ay = upload(dy, count * width);
    array ad = upload(dtable, nt);
    launch_ok((dml_launch){ .kernel = "embedding_links",
                            .size = { count, 1 },
                            .buffer = { at(ai), at(al) },
                            .integer = { shape[0], shape[1] } });
    launch_ok((dml_launch){ .kernel = "embedding_backward",
                            .size = { count * width, 1 },
                            .buffer = { at(ai), at(al), at(ay), at(ad) },
                            .integer = { shape[0], shape[1] } });
    download(ai, NULL), download(al, links), download(ay, NULL), download(ad, dtable);
    for (size_t i = 0; i < count; i++) {
        int32_t next = -1, first = 1;
        for (size_t k = count; k-- > 0;) {
            if (k > i && indices[k] == indices[i]) next = (int32_t)k;
            if (k < i && indices[k] == indices[i]) first = 0;
        }
        CHECK_INT(links[i], next);
        CHECK_INT(links[count + i], first);
    }
    check("embedding_backward", dtable, want, nt, 10);
    free(indices), free(links), free(dy), free(dtable), free(want);
}

static void test_embedding_links(void)
{
    embedding_case(embeddings[1]);
}

static void test_embedding_backward(void)
{
    for (int s = quick; s < upto(EMBEDDINGS); s++) embedding_case(embeddings[s]);
}

#include "embedding_bag_cases.h"

static void test_dropout(void)
{
    const dml_random random = { 0x123456789abcdef0u, 0x80000007u, 0xfffffff1u };
    for (int s = quick; s < upto(SIZES); s++)
        for (int b = 0; b < upto(BETAS); b++) {
            const size_t n = (size_t)sizes[s];
            const uint32_t part = b == 1 ? 0x20000003u : 0, threshold = b == 2 ? 0xf0000000u : 0x40000000u;
            float *x = numbers(n), *y = output(n, betas[b]);
            double *want = malloc(n * sizeof *want);
            for (size_t i = 0; i < n; i++)
                want[i] = (dml_random_bits(&random, part * ((uint64_t)1 << 34) + i) < threshold
                               ? 0
                               : 1.25 * (double)x[i]) +
                          kept(betas[b], y[i]);
            array ax = upload(x, n), ay = upload(y, n);
            launch_ok((dml_launch){ .kernel = "dropout",
                                    .size = { (n + 3) / 4, 1 },
                                    .buffer = { at(ax), at(ay) },
                                    .integer = { (int)n, (int)(uint32_t)random.seed,
                                                 (int)(uint32_t)(random.seed >> 32), (int)random.stream,
                                                 (int)random.step, (int)threshold, (int)part },
                                    .real = { 1.25f, betas[b] } });
            download(ax, NULL), download(ay, y);
            check("dropout", y, want, n, 1);
            free(x), free(y), free(want);
        }
}

/* count and step of each dimension */
static const int strided_shapes[][2][6] = {
    { { 1, 1, 1, 1, 1, 1 }, { 1, 0, 0, 0, 0, 0 } },
    { { 3, 2, 1, 5, 4, 3 }, { 200, 5, 0, 40, 10, 1 } },
    { { 2, 1, 1, 1, 19, 17 }, { 400, 0, 0, 0, 1, 19 } },
};
enum { STRIDED_SHAPES = sizeof strided_shapes / sizeof strided_shapes[0] };

static void strided_case(const int shape[2][6], bool unpacks, float beta)
{
    size_t n = 1, most = 1;
    for (int d = 0; d < 6; d++) {
        n *= (size_t)shape[0][d];
        most += (size_t)((shape[0][d] - 1) * shape[1][d]);
    }
    const size_t n_to = unpacks ? most : n, n_from = unpacks ? n : most;
    float *from = numbers(n_from), *to = unpacks ? numbers(n_to) : output(n_to, beta);
    double *want = malloc(n_to * sizeof *want);
    for (size_t i = 0; i < n_to; i++) want[i] = (double)to[i];
    for (size_t i = 0; i < n; i++) {
        size_t rest = i, place = 0;
        for (int d = 5; d >= 0; d--) {
            place += rest % (size_t)shape[0][d] * (size_t)shape[1][d];
            rest /= (size_t)shape[0][d];
        }
        const size_t at_to = unpacks ? place : i;
        if (beta == 0) to[at_to] = NAN;
        want[at_to] = (double)from[unpacks ? i : place] + kept(beta, to[at_to]);
    }
    array af = upload(from, n_from), at_to = upload(to, n_to);
    dml_launch launch = { .kernel = unpacks ? "strided_unpack" : "strided_pack",
                          .size = { n, 1 },
                          .buffer = { at(af), at(at_to) },
                          .integer = { (int)n },
                          .real = { beta } };
    for (int d = 1; d < 6; d++) launch.integer[d] = shape[0][d];
    for (int d = 0; d < 6; d++) launch.integer[6 + d] = shape[1][d];
    launch_ok(launch);
    download(af, NULL), download(at_to, to);
    check(launch.kernel, to, want, n_to, 1);
    free(from), free(to), free(want);
}

static void test_strided_pack(void)
{
    for (int s = quick; s < upto(STRIDED_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) strided_case(strided_shapes[s], false, betas[b]);
}

static void test_strided_unpack(void)
{
    for (int s = quick; s < upto(STRIDED_SHAPES); s++)
        for (int b = 0; b < upto(BETAS); b++) strided_case(strided_shapes[s], true, betas[b]);
}

#include "attention_cases.h"
#include "recurrent_kernels.h"
#include "half_cases.h"

/* The same launch twice gives the same bits. */
static void results_repeat(void)
{
    const shape s = { 2, 9, 9, 3, 5, 3, 3, 1, 1, 1, 1, 0, 0, 0 };
    const size_t nx = 2 * 9 * 9 * 3, ny = 2 * 9 * 9 * 5, nw = 5 * 3 * 3 * 3;
    float *x = numbers(nx), *dy = numbers(ny), *dw[2];
    for (int run = 0; run < 2; run++) {
        dw[run] = output(nw, 0);
        array ax = upload(x, nx), ay = upload(dy, ny), aw = upload(dw[run], nw);
        dml_launch launch = { .kernel = "conv2d_backward_weights",
                              .size = { 27, 5 },
                              .buffer = { at(ax), at(ay), at(aw) } };
        set_shape(&launch, &s);
        launch_ok(launch);
        download(ax, NULL), download(ay, NULL), download(aw, dw[run]);
    }
    CHECK(memcmp(dw[0], dw[1], nw * sizeof(float)) == 0);
    free(x), free(dy), free(dw[0]), free(dw[1]);
}

/* DML_TEST_KERNEL=name runs that kernel's case alone. */
static const char *only_kernel;
static void every_kernel(void)
{
#define CASE(name, covers_x, covers_y)                                                                       \
    if (!only_kernel || strcmp(only_kernel, #name) == 0) test_##name();
    DML__KERNEL_LIST(CASE)
#undef CASE
}

int main(void)
{
    only_kernel = getenv("DML_TEST_KERNEL");
    quick = UNDER_TSAN || getenv("OCLGRIND_DATA_RACES") || getenv("DML_TEST_QUICK");
    RUN_ON_EVERY_DEVICE(every_kernel);
    RUN_ON_EVERY_DEVICE(results_repeat);
    return test_report("gpu/kernels");
}
