/* How far products may be from exact ones: within a multiple of k epsilon, as testers of BLAS have it, on
   inputs that are random, that cancel, that are denormal, and that are infinite or no numbers; what the
   epilogue and a batch do, bit for bit. */
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

#include "exact.h"
#include "kernel_test.h"

/* Every way through the products: tiles, tiles across, dot products, sums of lines, one line, chunks. */
static const struct {
    dml_transpose trans_a, trans_b;
    int m, n, k;
} shapes[] = {
    { DML_NO_TRANS, DML_NO_TRANS, 19, 37, 23 },  { DML_NO_TRANS, DML_TRANS, 40, 50, 300 },
    { DML_TRANS, DML_NO_TRANS, 130, 210, 70 },   { DML_TRANS, DML_TRANS, 33, 65, 129 },
    { DML_NO_TRANS, DML_NO_TRANS, 50, 200, 20 }, { DML_NO_TRANS, DML_TRANS, 5, 70, 100 },
    { DML_NO_TRANS, DML_TRANS, 64, 10, 84 },     { DML_NO_TRANS, DML_TRANS, 1, 9, 33 },
    { DML_NO_TRANS, DML_NO_TRANS, 1, 77, 50 },   { DML_NO_TRANS, DML_NO_TRANS, 3, 100, 37 },
    { DML_NO_TRANS, DML_NO_TRANS, 7, 301, 219 }, { DML_TRANS, DML_NO_TRANS, 8, 600, 110 },
    { DML_TRANS, DML_NO_TRANS, 2, 64, 40 },      { DML_TRANS, DML_NO_TRANS, 60, 90, 1 },
    { DML_NO_TRANS, DML_NO_TRANS, 7, 6, 1 },     { DML_TRANS, DML_NO_TRANS, 10, 40, 2000 },
    { DML_NO_TRANS, DML_TRANS, 200, 3, 500 },    { DML_NO_TRANS, DML_NO_TRANS, 300, 5, 60 },
    { DML_NO_TRANS, DML_TRANS, 32, 32, 1100 },   { DML_TRANS, DML_TRANS, 9, 8, 31 },
    { DML_NO_TRANS, DML_NO_TRANS, 64, 10, 128 }, { DML_NO_TRANS, DML_TRANS, 64, 12, 60 },
    { DML_TRANS, DML_NO_TRANS, 40, 20, 36 },     { DML_NO_TRANS, DML_NO_TRANS, 64, 67, 10 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct operands {
    int lda, ldb;
    size_t a_count, b_count, c_count;
    float *a, *b, *c;
} operands;

/* op(A) and op(B). */
static exact_matrix matrix(const float *x, dml_transpose trans, int ld)
{
    const exact_matrix m = { x, trans == DML_TRANS ? 1 : (size_t)ld, trans == DML_TRANS ? (size_t)ld : 1 };
    return m;
}

static exact_sum element(const operands *o, int s, int i, int j)
{
    return exact_product(matrix(o->a, shapes[s].trans_a, o->lda), matrix(o->b, shapes[s].trans_b, o->ldb),
                         (size_t)i, (size_t)j, (size_t)shapes[s].k);
}

static operands operands_create(int s, unsigned *state)
{
    operands o;
    const size_t m = (size_t)shapes[s].m, n = (size_t)shapes[s].n, k = (size_t)shapes[s].k;
    o.lda = shapes[s].trans_a == DML_TRANS ? shapes[s].m : shapes[s].k;
    o.ldb = shapes[s].trans_b == DML_TRANS ? shapes[s].k : shapes[s].n;
    o.a_count = m * k, o.b_count = k * n, o.c_count = m * n;
    o.a = kernel_array(o.a_count, state), o.b = kernel_array(o.b_count, state),
    o.c = kernel_array(o.c_count, state);
    return o;
}

static void operands_destroy(operands *o)
{
    kernel_free(o->a), kernel_free(o->b), kernel_free(o->c);
}

static dml_status multiply(dml_pool *pool, int s, const operands *o, float alpha, float beta, float *c)
{
    return dml_sgemm(pool, DML_ROW_MAJOR, shapes[s].trans_a, shapes[s].trans_b, shapes[s].m, shapes[s].n,
                     shapes[s].k, alpha, o->a, o->lda, o->b, o->ldb, beta, c, shapes[s].n);
}

/* |C - exact| <= 2 (k + 4) e (|alpha| |A| |B| + |beta C|), and k roundings of denormals. */
static void check_bound(int s, const operands *o, float alpha, float beta, const char *inputs)
{
    float *got = kernel_copy(o->c, o->c_count);
    double worst = 0;
    CHECK_INT(multiply(kernel_pools[s % KERNEL_POOLS], s, o, alpha, beta, got), DML_OK);
    for (int i = 0; i < shapes[s].m; i++)
        for (int j = 0; j < shapes[s].n; j++) {
            const size_t at = (size_t)i * (size_t)shapes[s].n + (size_t)j;
            const exact_sum sum = element(o, s, i, j);
            const double before = (double)beta * (double)o->c[at];
            const double size = fabs((double)alpha) * sum.size + fabs(before);
            const double ratio =
                exact_ratio(got[at], (double)alpha * sum.value + before, exact_sum_bound(size, shapes[s].k));
            if (!(ratio <= worst)) worst = ratio;
        }
    CHECK_MESSAGE(worst <= 1, "%s, %d x %d x %d: %g times the bound", inputs, shapes[s].m, shapes[s].n,
                  shapes[s].k, worst);
    kernel_free(got);
}

/* Where it is slow, a shape takes one of three kinds of inputs: all shapes together take all. */
static bool taken(int s, int kind)
{
    return !TEST_SLOW || s % 3 == kind % 3;
}

/* In pairs along k whose products cancel, up to a little. */
static void make_cancelling(int s, operands *o)
{
    for (int i = 0; i < shapes[s].m; i++)
        for (int p = 0; p < shapes[s].k; p++) {
            const size_t at = shapes[s].trans_a == DML_TRANS ? (size_t)p * (size_t)o->lda + (size_t)i
                                                             : (size_t)i * (size_t)o->lda + (size_t)p;
            o->a[at] = (p % 2 ? -1e7f : 1e7f) + o->a[at];
        }
    for (size_t i = 0; i < o->b_count; i++) o->b[i] = 1e3f + o->b[i];
}

static void bounds(void)
{
    unsigned state = 11;
    for (int s = 0; s < SHAPES; s++) {
        operands o = operands_create(s, &state);
        if (taken(s, 0)) check_bound(s, &o, 1, 0, "random");
        if (taken(s, 1)) check_bound(s, &o, -0.5f, 1, "random");
        if (taken(s, 2)) check_bound(s, &o, 1, 0.75f, "random");
        for (size_t i = 0; i < o.a_count; i++) o.a[i] *= 1e-22f;
        for (size_t i = 0; i < o.b_count; i++) o.b[i] *= 1e-22f;
        if (taken(s, 1)) check_bound(s, &o, 1, 0, "products that are denormal");
        for (size_t i = 0; i < o.a_count; i++) o.a[i] *= 1e-20f;
        for (size_t i = 0; i < o.b_count; i++) o.b[i] *= 1e22f;
        if (taken(s, 2)) check_bound(s, &o, 1, 0, "factors that are denormal");
        make_cancelling(s, &o);
        if (taken(s, 0)) check_bound(s, &o, 1, 0, "terms that cancel");
        operands_destroy(&o);
    }
}

/* An infinity or a NaN comes through to the elements it belongs to, and to no other. */
static void specials(void)
{
    static const float values[] = { INFINITY, -INFINITY, NAN };
    unsigned state = 12;
    for (int s = 0; s < SHAPES; s++)
        for (int v = 0; v < 3; v++) {
            if (!taken(s, v)) continue;
            operands o = operands_create(s, &state);
            float *got = kernel_copy(o.c, o.c_count);
            const size_t where = test_random(&state) % o.a_count;
            o.a[where] = values[v];
            CHECK_INT(multiply(kernel_pools[1], s, &o, 1, 0, got), DML_OK);
            for (int i = 0; i < shapes[s].m; i++)
                for (int j = 0; j < shapes[s].n; j++) {
                    const double want = element(&o, s, i, j).value;
                    const float value = got[(size_t)i * (size_t)shapes[s].n + (size_t)j];
                    CHECK(isnan(want)   ? isnan(value) != 0
                          : isinf(want) ? (double)value == want
                                        : isfinite(value) != 0);
                }
            kernel_free(got);
            operands_destroy(&o);
        }
}

/* What comes after the sum is what separate kernels make of it. */
static void fused_is_separate(void)
{
    unsigned state = 13;
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < 4; form++) {
            operands o = operands_create(s, &state);
            float *bias = kernel_array((size_t)shapes[s].n, &state);
            float *want = kernel_copy(o.c, o.c_count), *got = kernel_copy(o.c, o.c_count);
            const dml_epilogue epilogue = { form & 1 ? bias : NULL,
                                            form & 2 ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
            const float beta = form % 3 ? 0.5f : 0;
            dml_pool *pool = kernel_pools[(s + form) % KERNEL_POOLS];
            CHECK_INT(multiply(pool, s, &o, 0.5f, beta, want), DML_OK);
            if (form & 1) dml_bias_add(pool, (size_t)shapes[s].m, (size_t)shapes[s].n, bias, want);
            if (form & 2) dml_relu_forward(pool, o.c_count, want, want);
            CHECK_INT(dml_sgemm_fused(pool, shapes[s].trans_a, shapes[s].trans_b, shapes[s].m, shapes[s].n,
                                      shapes[s].k, 0.5f, o.a, o.lda, o.b, o.ldb, beta, got, shapes[s].n,
                                      &epilogue),
                      DML_OK);
            CHECK_MESSAGE(kernel_same(want, got, o.c_count), "%d x %d x %d, form %d", shapes[s].m,
                          shapes[s].n, shapes[s].k, form);
            kernel_free(bias), kernel_free(want), kernel_free(got);
            operands_destroy(&o);
        }
}

static void no_terms_but_an_end(void)
{
    const float bias[3] = { 1, -2, 3 };
    float c[6] = { NAN, NAN, NAN, NAN, NAN, NAN };
    const dml_epilogue epilogue = { bias, DML_ACTIVATION_RELU };
    CHECK_INT(
        dml_sgemm_fused(NULL, DML_NO_TRANS, DML_NO_TRANS, 2, 3, 0, 1, NULL, 1, NULL, 3, 0, c, 3, &epilogue),
        DML_OK);
    for (int i = 0; i < 6; i++) CHECK(c[i] == (i % 3 == 1 ? 0 : bias[i % 3]));
}

/* A batch is its products one by one, bit for bit, with strides that repeat a factor too. */
static void a_batch_is_its_products(void)
{
    enum { COUNT = 5 };
    unsigned state = 14;
    for (int s = 0; s < SHAPES; s++) {
        operands o = operands_create(s, &state);
        float *b = kernel_array(o.b_count * COUNT, &state),
              *c = kernel_array((o.c_count + 3) * COUNT, &state);
        float *want = kernel_copy(c, (o.c_count + 3) * COUNT);
        operands one = o;
        for (int i = 0; i < COUNT; i++) {
            one.b = b + (size_t)i * o.b_count;
            CHECK_INT(multiply(NULL, s, &one, 1, 0.5f, want + (size_t)i * (o.c_count + 3)), DML_OK);
        }
        for (int p = 0; p < KERNEL_POOLS; p++) {
            float *got = kernel_copy(c, (o.c_count + 3) * COUNT);
            CHECK_INT(dml_sgemm_batched(kernel_pools[p], shapes[s].trans_a, shapes[s].trans_b, shapes[s].m,
                                        shapes[s].n, shapes[s].k, 1, o.a, o.lda, 0, b, o.ldb,
                                        (ptrdiff_t)o.b_count, 0.5f, got, shapes[s].n,
                                        (ptrdiff_t)o.c_count + 3, COUNT),
                      DML_OK);
            CHECK_MESSAGE(kernel_same(got, want, (o.c_count + 3) * COUNT), "batch of %d x %d x %d, pool %d",
                          shapes[s].m, shapes[s].n, shapes[s].k, p);
            kernel_free(got);
        }
        kernel_free(b), kernel_free(c), kernel_free(want);
        operands_destroy(&o);
    }
}

static void bad_batches(void)
{
    float a[4] = { 1, 2, 3, 4 }, c[4] = { 5, 6, 7, 8 };
#define BATCH(trans, m, lda, a, c, count)                                                                    \
    dml_sgemm_batched(NULL, trans, DML_NO_TRANS, m, 2, 2, 1, a, lda, 4, a, 2, 4, 0, c, 2, 4, count)
    CHECK_INT(BATCH(DML_NO_TRANS, 2, 2, a, c, -1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH(DML_NO_TRANS, -2, 2, a, c, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH(DML_NO_TRANS, 2, 1, a, c, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH((dml_transpose)1, 2, 2, a, c, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH(DML_NO_TRANS, 2, 2, NULL, c, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH(DML_NO_TRANS, 2, 2, a, NULL, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(BATCH(DML_NO_TRANS, 2, 2, a, c, 0), DML_OK);
    CHECK(c[0] == 5 && c[3] == 8);
}

static void an_end_that_isnt_there(void)
{
    const dml_epilogue unknown = { NULL, (dml_activation)9 };
    float a[1] = { 1 }, c[1] = { 7 };
    CHECK_INT(dml_sgemm_fused(NULL, DML_NO_TRANS, DML_NO_TRANS, 1, 1, 1, 1, a, 1, a, 1, 0, c, 1, &unknown),
              DML_ERROR_ARGUMENT);
    CHECK(c[0] == 7);
}

static void bounds_on_each_isa(void)
{
    kernel_each_isa(bounds);
}

static void specials_on_each_isa(void)
{
    kernel_each_isa(specials);
}

static void fused_on_each_isa(void)
{
    kernel_each_isa(fused_is_separate);
}

static void batches_on_each_isa(void)
{
    kernel_each_isa(a_batch_is_its_products);
}

int main(void)
{
    kernel_pools_open();
    RUN(bounds_on_each_isa);
    RUN(specials_on_each_isa);
    RUN(fused_on_each_isa);
    RUN(no_terms_but_an_end);
    RUN(batches_on_each_isa);
    RUN(bad_batches);
    RUN(an_end_that_isnt_there);
    kernel_pools_close();
    return test_report("kernels/gemm_numerics");
}
