/* 8-bit factors: how near they are to what they were made of, and products against float64. */
#include "kernels/q8.h"

#include "exact.h"
#include "kernel_test.h"

#include <float.h>
#include <math.h>

typedef struct factor {
    float *b; /* as dml_sgemm would have op(B) (k, n) */
    int ldb;
    void *q8;
    float *near; /* (n, k): what q8 stands for */
} factor;

static float *b_at(const factor *f, dml_transpose trans, int p, int j)
{
    return &f->b[trans == DML_TRANS ? (size_t)j * (size_t)f->ldb + (size_t)p
                                    : (size_t)p * (size_t)f->ldb + (size_t)j];
}

/* Blocks of very different sizes; exact arrays, so that a sanitizer sees a step too far. */
static factor make_factor(dml_pool *pool, dml_transpose trans, int n, int k, int pad, unsigned *state)
{
    factor f;
    const int lines = trans == DML_TRANS ? n : k, inner = trans == DML_TRANS ? k : n;
    const size_t all = (size_t)n * (size_t)k, bytes = dml_q8_bytes(n, k);
    f.ldb = (inner ? inner : 1) + pad;
    f.b = kernel_array(lines && inner ? (size_t)(lines - 1) * (size_t)f.ldb + (size_t)inner : 0, state);
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++)
            *b_at(&f, trans, p, j) *= (float)ldexp(1, (p / DML_Q8_BLOCK * 7 + j) % 40 - 20);
    f.q8 = malloc(bytes ? bytes : 1);
    f.near = (float *)malloc(all ? all * sizeof(float) : 1);
    CHECK_INT(dml_q8_from_f32(pool, trans, n, k, f.b, f.ldb, f.q8), DML_OK);
    CHECK_INT(dml_q8_to_f32(n, k, f.q8, f.near), DML_OK);
    return f;
}

static void drop_factor(factor *f)
{
    kernel_free(f->b);
    free(f->q8);
    free(f->near);
}

/* Multiples of the largest magnitude / 127, and the nearest ones. */
static void check_near(const factor *f, dml_transpose trans, int n, int k)
{
    for (int j = 0; j < n; j++)
        for (int begin = 0; begin < k; begin += DML_Q8_BLOCK) {
            const int end = begin + DML_Q8_BLOCK < k ? begin + DML_Q8_BLOCK : k;
            double most = 0;
            for (int p = begin; p < end; p++) most = fmax(most, fabs((double)*b_at(f, trans, p, j)));
            for (int p = begin; p < end; p++) {
                const double b = *b_at(f, trans, p, j), near = f->near[j * k + p], steps = near * 127 / most;
                CHECK_MESSAGE(fabs(b - near) <= most / 127 * 0.5001, "%g became %g, of a block up to %g", b,
                              near, most);
                CHECK(most == 0 || fabs(steps - round(steps)) < 1e-4);
            }
        }
}

static void check_product(int m, int n, int k, int pad, dml_transpose trans, bool bias, bool relu,
                          unsigned *state)
{
    factor f = make_factor(kernel_pools[2], trans, n, k, pad, state);
    check_near(&f, trans, n, k);
    const int lda = (k ? k : 1) + pad, ldc = (n ? n : 1) + pad;
    const size_t a_count = m && k ? (size_t)(m - 1) * (size_t)lda + (size_t)k : 0;
    const size_t c_count = m && n ? (size_t)(m - 1) * (size_t)ldc + (size_t)n : 0;
    float *a = kernel_array(a_count, state), *b = kernel_array((size_t)n, state);
    float *first = kernel_array(c_count, state);
    const dml_epilogue epilogue = { bias ? b : NULL, relu ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    float *before = kernel_copy(first, c_count);
    for (int p = 0; p < 2 * KERNEL_POOLS && test__ok; p++) {
        float *c = kernel_copy(before, c_count);
        dml_pool *pool = kernel_pools[p % KERNEL_POOLS];
        if (p >= KERNEL_POOLS) dml_pool_reserve(pool, dml_q8gemm_scratch(m, n, k));
        CHECK_INT(dml_q8gemm(pool, m, n, k, a, lda, f.q8, c, ldc, bias || relu ? &epilogue : NULL), DML_OK);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < ldc && i * ldc + j < (int)c_count; j++) {
                const float got = c[i * ldc + j];
                if (j >= n || p > 0) { /* between the rows nothing; the same bits on any pool */
                    CHECK(memcmp(&got, j >= n ? &before[i * ldc + j] : &first[i * ldc + j], sizeof got) == 0);
                    continue;
                }
                double sum = bias ? (double)b[j] : 0, size = fabs(sum);
                for (int l = 0; l < k; l++) {
                    const double one = (double)a[i * lda + l] * (double)f.near[j * k + l];
                    sum += one, size += fabs(one);
                }
                if (relu && sum < 0) sum = 0;
                CHECK_MESSAGE(fabs((double)got - sum) <= 2 * (k + 4) * ldexp(1, -24) * size,
                              "%d x %d x %d: C(%d, %d) is %g, not %g", m, n, k, i, j, (double)got, sum);
                first[i * ldc + j] = got;
            }
        kernel_free(c);
    }
    kernel_free(a), kernel_free(b), kernel_free(first), kernel_free(before);
    drop_factor(&f);
}

static void products_here(void)
{
    static const int rows[] = { 1, 2, 3, 4, 5, 7, 8, 12, 13, 31 };
    static const int columns[] = { 1, 2, 3, 4, 5, 16, 17, 66, 131 };
    static const int depths[] = { 0, 1, 3, 15, 16, 17, 63, 64, 65, 100, 128, 191, 260 };
    unsigned state = 5;
    int turn = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (size_t l = 0; l < sizeof depths / sizeof *depths; l++, turn++)
                if (!(TEST_EMULATOR || TEST_SLOW) || turn % 7 == 0)
                    check_product(rows[i], columns[j], depths[l], turn % 3,
                                  turn % 2 ? DML_TRANS : DML_NO_TRANS, turn % 5 < 3, turn % 4 == 1, &state);
    check_product(1, 700, 300, 0, DML_TRANS, true, false, &state); /* of several tasks */
    check_product(6, 301, 257, 1, DML_NO_TRANS, true, true, &state);
    if (!TEST_EMULATOR) check_product(150, 200, 700, 1, DML_TRANS, true, false, &state); /* several blocks */
    check_product(0, 5, 5, 0, DML_TRANS, false, false, &state);
    check_product(5, 0, 5, 0, DML_TRANS, false, false, &state);
}

static void products(void)
{
    kernel_each_isa(products_here);
}

/* A block of which one number is odd is of no use, its neighbours are as ever; what is too small is 0. */
static void odd_numbers(void)
{
    enum { K = 3 * DML_Q8_BLOCK };
    static const float odd[] = { INFINITY, -INFINITY, NAN };
    float x[K], back[K], a[K], c;
    void *q8 = malloc(dml_q8_bytes(1, K));
    for (int i = 0; i < K; i++) a[i] = 1;
    for (int o = 0; o < 3; o++) {
        for (int i = 0; i < K; i++) x[i] = (float)(i % 5);
        x[DML_Q8_BLOCK + 3] = odd[o];
        CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 1, K, x, K, q8), DML_OK);
        CHECK_INT(dml_q8_to_f32(1, K, q8, back), DML_OK);
        for (int i = 0; i < K; i++) CHECK(isfinite(back[i]) == (i / DML_Q8_BLOCK != 1));
        CHECK(fabs((double)back[4] - 4) < 1e-6 && fabs((double)back[K - 1] - 1) < 0.02);
        CHECK(dml_q8gemm(NULL, 1, 1, K, a, K, q8, &c, 1, NULL) == DML_OK && isnan(c));
    }
    for (int i = 0; i < K; i++) x[i] = FLT_MAX / (float)(i % 3 + 1);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 1, K, x, K, q8), DML_OK);
    CHECK_INT(dml_q8_to_f32(1, K, q8, back), DML_OK);
    for (int i = 0; i < K; i++) CHECK(fabs((double)back[i] / FLT_MAX - 1.0 / (i % 3 + 1)) < 0.004);
    for (int i = 0; i < K; i++) x[i] = i < DML_Q8_BLOCK ? 0 : i < 2 * DML_Q8_BLOCK ? 1e-39f : -3e38f;
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 1, K, x, K, q8), DML_OK);
    CHECK_INT(dml_q8_to_f32(1, K, q8, back), DML_OK);
    CHECK(back[0] == 0 && back[DML_Q8_BLOCK] == 0 && fabs((double)back[K - 1] / -3e38 - 1) < 1e-6);
    free(q8);
}

static void bad_arguments(void)
{
    float a[4] = { 1, 2, 3, 4 }, b[4] = { 1, 2, 3, 4 }, c[4];
    void *q8 = malloc(dml_q8_bytes(2, 2));
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, 2, b, 1, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, -1, 2, b, 2, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, -1, b, 2, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, -1, 0, b, 2, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, 0, NULL, 1, NULL), DML_OK);
    CHECK_INT(dml_q8_from_f32(NULL, (dml_transpose)7, 2, 2, b, 2, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, 2, NULL, 2, q8), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, 2, b, 2, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 0, 2, NULL, 2, NULL), DML_OK);
    CHECK_INT(dml_q8_from_f32(NULL, DML_TRANS, 2, 2, b, 2, q8), DML_OK);
    CHECK_INT(dml_q8_to_f32(-1, 2, q8, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_to_f32(2, 2, NULL, c), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_to_f32(2, 2, q8, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8_to_f32(0, 2, NULL, NULL), DML_OK);
    const dml_epilogue unknown = { NULL, (dml_activation)9 };
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, a, 1, q8, c, 2, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, a, 2, q8, c, 1, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, NULL, 2, q8, c, 2, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, a, 2, NULL, c, 2, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, a, 2, q8, NULL, 2, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 2, a, 2, q8, c, 2, &unknown), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_q8gemm(NULL, 2, 2, 0, NULL, 1, NULL, c, 2, NULL), DML_OK);
    CHECK(c[0] == 0 && c[3] == 0);
    CHECK(dml_q8_bytes(0, 5) == 0 && dml_q8_bytes(5, -1) == 0);
    CHECK(dml_q8_bytes(4, 64) == 272 && dml_q8_bytes(5, 65) == 4 * 272);
    free(q8);
}

int main(void)
{
    kernel_pools_open();
    RUN(products);
    RUN(odd_numbers);
    RUN(bad_arguments);
    kernel_pools_close();
    return test_report("kernels/q8");
}
