#include "kernels/gemm.h"

#include "base/cpu.h"
#include "exact.h"
#include "kernel_test.h"

/* One product: shapes, and how far leading dimensions exceed what they must be. */
typedef struct product {
    dml_layout layout;
    dml_transpose trans_a, trans_b;
    int m, n, k, pad;
    float alpha, beta;
} product;

/* The stored matrix op(X) = rows x columns as (outer, inner) with a leading dimension. */
static int inner_size(const product *p, dml_transpose trans, int rows, int columns)
{
    return (p->layout == DML_ROW_MAJOR) == (trans == DML_NO_TRANS) ? columns : rows;
}

static int leading(const product *p, dml_transpose trans, int rows, int columns)
{
    const int inner = inner_size(p, trans, rows, columns);
    return (inner ? inner : 1) + p->pad;
}

static size_t at(const product *p, dml_transpose trans, int ld, int row, int column)
{
    const bool across = (p->layout == DML_ROW_MAJOR) == (trans == DML_NO_TRANS);
    return across ? (size_t)row * (size_t)ld + (size_t)column : (size_t)column * (size_t)ld + (size_t)row;
}

/* Floats of a matrix with that leading dimension: no more than it may touch, so that a sanitizer sees more.
 */
static size_t extent(const product *p, dml_transpose trans, int ld, int rows, int columns)
{
    return rows && columns ? at(p, trans, ld, rows - 1, columns - 1) + 1 : 0;
}

static float *new_floats(size_t n)
{
    return (float *)malloc(n ? n * sizeof(float) : 1);
}

/* Beyond C's own elements lies this, and stays. */
static const float mark = 12345.0f;

/* Fills the elements of C and marks what lies between them. */
static void fill_c(const product *p, int ldc, float *c, size_t count, unsigned *state)
{
    for (size_t i = 0; i < count; i++) c[i] = mark;
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
            float *element = &c[at(p, DML_NO_TRANS, ldc, i, j)];
            test_fill(state, element, 1);
            if (p->beta == 0) *element = NAN;
        }
}

static dml_status call(dml_pool *pool, const product *p, const float *a, const float *b, float *c)
{
    return dml_sgemm(pool, p->layout, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, a,
                     leading(p, p->trans_a, p->m, p->k), b, leading(p, p->trans_b, p->k, p->n), p->beta, c,
                     leading(p, DML_NO_TRANS, p->m, p->n));
}

/* The product of `p` under each pool against float64; and each pool's bits against the first's. */
static void check(const product *p, dml_pool **pools, int pool_count, unsigned *state)
{
    const int lda = leading(p, p->trans_a, p->m, p->k), ldb = leading(p, p->trans_b, p->k, p->n);
    const int ldc = leading(p, DML_NO_TRANS, p->m, p->n);
    const size_t a_count = extent(p, p->trans_a, lda, p->m, p->k);
    const size_t b_count = extent(p, p->trans_b, ldb, p->k, p->n);
    const size_t c_count = extent(p, DML_NO_TRANS, ldc, p->m, p->n);
    float *a = new_floats(a_count), *b = new_floats(b_count), *c = new_floats(c_count);
    test_fill(state, a, a_count);
    test_fill(state, b, b_count);
    fill_c(p, ldc, c, c_count, state);
    float *first = NULL;
    for (int w = 0; w < pool_count; w++) {
        float *got = new_floats(c_count);
        if (c_count) memcpy(got, c, c_count * sizeof *got);
        CHECK_INT(call(pools[w], p, a, b, got), DML_OK);
        if (first) {
            CHECK_MESSAGE(c_count == 0 || memcmp(first, got, c_count * sizeof *got) == 0,
                          "%d x %d x %d: pool %d differs", p->m, p->n, p->k, w);
            free(got);
        } else {
            first = got;
        }
    }
    const exact_matrix op_a = { a, at(p, p->trans_a, lda, 1, 0), at(p, p->trans_a, lda, 0, 1) };
    const exact_matrix op_b = { b, at(p, p->trans_b, ldb, 1, 0), at(p, p->trans_b, ldb, 0, 1) };
    double worst = 0;
    size_t own = 0, marks = 0;
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
            const exact_sum sum = exact_product(op_a, op_b, (size_t)i, (size_t)j, (size_t)p->k);
            const size_t place = at(p, DML_NO_TRANS, ldc, i, j);
            const double before = p->beta != 0 ? (double)p->beta * (double)c[place] : 0;
            const double size = fabs((double)p->alpha) * sum.size + fabs(before);
            const double ratio =
                exact_ratio(first[place], (double)p->alpha * sum.value + before, exact_sum_bound(size, p->k));
            if (!(ratio <= worst)) worst = ratio;
            own++;
        }
    for (size_t i = 0; i < c_count; i++) marks += first[i] == mark;
    CHECK_MESSAGE(worst <= 1, "%d %d/%d %d x %d x %d pad %d alpha %g beta %g: %g times the bound", p->layout,
                  p->trans_a, p->trans_b, p->m, p->n, p->k, p->pad, (double)p->alpha, (double)p->beta, worst);
    CHECK_MESSAGE(own + marks == c_count, "%d x %d x %d: wrote beside C", p->m, p->n, p->k);
    free(a);
    free(b);
    free(c);
    free(first);
}

static const dml_layout layouts[] = { DML_ROW_MAJOR, DML_COL_MAJOR };
static const dml_transpose transposes[] = { DML_NO_TRANS, DML_TRANS };
static const float factors[] = { 0, 1, -0.75f };

/* A product with these sizes and everything else by chance. */
static product sample(unsigned *state, int m, int n, int k)
{
    product p = { DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, m, n, k, 0, 0, 0 };
    p.layout = layouts[test_random(state) >> 8 & 1];
    p.trans_a = transposes[test_random(state) >> 8 & 1];
    p.trans_b = transposes[test_random(state) >> 8 & 1];
    p.pad = (test_random(state) >> 8 & 1) * (int)((test_random(state) >> 8) % 9);
    p.alpha = factors[(test_random(state) >> 8) % 3];
    p.beta = factors[(test_random(state) >> 8) % 3];
    return p;
}

static void small_sizes(void)
{
    unsigned state = 1;
    for (int i = 0; i < (TEST_EMULATOR ? 100 : 400); i++) {
        const int m = (int)((test_random(&state) >> 8) % 71), n = (int)((test_random(&state) >> 8) % 71);
        const product p = sample(&state, m, n, (int)((test_random(&state) >> 8) % 71));
        check(&p, kernel_pools, 2, &state);
    }
}

static void all_flags(void)
{
    unsigned state = 2;
    for (int flags = 0; flags < 8; flags++)
        for (int f = 0; f < 9; f++) {
            const product p = { layouts[flags & 1],
                                transposes[flags >> 1 & 1],
                                transposes[flags >> 2 & 1],
                                19,
                                37,
                                23,
                                f % 4,
                                factors[f % 3],
                                factors[f / 3] };
            check(&p, kernel_pools, 2, &state);
        }
}

/* Around the edges of tiles, of blocks of k, of blocks of columns, of chunked products; rows and columns;
   columns that aren't whole vectors at the end of threads' shares and of blocks. */
static void block_edges(void)
{
    static const int sizes[][3] = {
        { 255, 33, 256 }, { 14, 32, 257 },   { 15, 31, 255 },   { 29, 65, 513 },   { 7, 740, 300 },
        { 61, 1030, 9 },  { 300, 300, 31 },  { 130, 130, 130 }, { 1, 200, 300 },   { 200, 1, 300 },
        { 1, 1, 1023 },   { 1, 1, 1024 },    { 1, 1, 1025 },    { 6, 25, 5000 },   { 64, 64, 1024 },
        { 65, 64, 1024 }, { 3, 3, 9001 },    { 2, 4097, 3 },    { 4097, 2, 3 },    { 64, 10, 0 },
        { 0, 5, 7 },      { 5, 0, 7 },       { 1, 1, 0 },       { 28, 64, 600 },   { 64, 10, 128 },
        { 40, 20, 50 },   { 70, 19, 260 },   { 40, 37, 40 },    { 100, 67, 600 },  { 50, 530, 64 },
        { 9, 1025, 70 },  { 20, 1561, 24 },  { 64, 128, 10 },   { 200, 513, 40 },  { 19, 24, 101 },
        { 6, 72, 33 },    { 25, 24, 300 },   { 45, 120, 600 },  { 45, 160, 1024 }, { 130, 24, 40 },
        { 14, 24, 1023 }, { 100, 144, 512 }, { 67, 70, 3000 },  { 20, 300, 4100 }
    };
    unsigned state = 3;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int round = 0; round < (TEST_SLOW ? 1 : 2); round++) {
            const product p = sample(&state, sizes[i][0], sizes[i][1], sizes[i][2]);
            check(&p, kernel_pools, KERNEL_POOLS, &state);
        }
    /* Rows of A that meet in a set of the caches, under many columns. */
    const product meeting = { DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 45, 160, 1024, 0, 1, 0.5f };
    check(&meeting, kernel_pools, KERNEL_POOLS, &state);
    /* Few rows over a B of lines of two tiles, which isn't packed. */
    const int two_tiles[] = { 8, 16, 32, 64 };
    for (size_t i = 0; i < sizeof two_tiles / sizeof *two_tiles; i++) {
        const product narrow = { DML_ROW_MAJOR,
                                 i % 2 ? DML_TRANS : DML_NO_TRANS,
                                 DML_NO_TRANS,
                                 33,
                                 two_tiles[i],
                                 1001,
                                 0,
                                 -0.75f,
                                 1 };
        check(&narrow, kernel_pools, KERNEL_POOLS, &state);
    }
}

static void small_sizes_on_each_isa(void)
{
    kernel_each_isa(small_sizes);
}

static void all_flags_on_each_isa(void)
{
    kernel_each_isa(all_flags);
}

static void block_edges_on_each_isa(void)
{
    kernel_each_isa(block_edges);
}

static void nothing_is_read_that_does_not_count(void)
{
    float a[2] = { NAN, NAN }, b[2] = { INFINITY, 1 }, c[2] = { 2, 3 };
    CHECK_INT(dml_sgemm(NULL, DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 1, 2, 1, 0, a, 1, b, 2, 0.5f, c, 2),
              DML_OK);
    CHECK(c[0] == 1 && c[1] == 1.5f);
    c[0] = NAN;
    CHECK_INT(
        dml_sgemm(NULL, DML_COL_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 1, 2, 0, 1, NULL, 1, NULL, 1, 0, c, 1),
        DML_OK);
    CHECK(c[0] == 0 && c[1] == 0);
    /* But a NaN in A or B does come through. */
    CHECK_INT(dml_sgemm(NULL, DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, 1, 2, 1, 1, a, 1, b, 2, 0, c, 2),
              DML_OK);
    CHECK(isnan(c[0]) && isnan(c[1]));
}

static void bad_arguments_leave_c_alone(void)
{
    static const struct {
        int layout, trans_a, trans_b, m, n, k, lda, ldb, ldc;
    } bad[] = {
        { 100, 111, 111, 2, 3, 4, 4, 3, 3 },  { 101, 110, 111, 2, 3, 4, 4, 3, 3 },
        { 101, 111, 113, 2, 3, 4, 4, 3, 3 },  { 101, 111, 111, -1, 3, 4, 4, 3, 3 },
        { 101, 111, 111, 2, -1, 4, 4, 3, 3 }, { 101, 111, 111, 2, 3, -1, 4, 3, 3 },
        { 101, 111, 111, 2, 3, 4, 3, 3, 3 },  { 101, 111, 111, 2, 3, 4, 4, 2, 3 },
        { 101, 111, 111, 2, 3, 4, 4, 3, 2 },  { 101, 112, 111, 2, 3, 4, 1, 3, 3 },
        { 101, 111, 112, 2, 3, 4, 4, 3, 3 },  { 102, 111, 111, 2, 3, 4, 1, 4, 2 },
        { 102, 111, 111, 2, 3, 4, 2, 3, 2 },  { 102, 111, 111, 2, 3, 4, 2, 4, 1 },
        { 102, 112, 111, 2, 3, 4, 3, 4, 2 },  { 101, 111, 111, 0, 0, 0, 0, 1, 1 },
        { 101, 111, 111, 0, 0, 0, 1, 0, 1 },  { 101, 111, 111, 0, 0, 0, 1, 1, 0 },
    };
    const float a[16] = { 1 }, b[16] = { 1 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float c[16] = { 7, 7, 7 };
        const dml_status status = dml_sgemm(NULL, (dml_layout)bad[i].layout, (dml_transpose)bad[i].trans_a,
                                            (dml_transpose)bad[i].trans_b, bad[i].m, bad[i].n, bad[i].k, 1, a,
                                            bad[i].lda, b, bad[i].ldb, 0, c, bad[i].ldc);
        CHECK_MESSAGE(status == DML_ERROR_ARGUMENT, "bad call %zu gives %d", i, (int)status);
        CHECK(c[0] == 7 && c[1] == 7 && c[2] == 7);
    }
}

/* Few rows of A beside a B of long lines, which is read where it lies: every number of rows, with and without
   columns beyond whole vectors and k's beyond whole groups, in one strip and in several. */
static void few_rows(void)
{
    static const int sizes[][2] = { { 256, 256 }, { 300, 219 }, { 1031, 65 },
                                    { 2063, 34 }, { 4099, 17 }, { 17, 5 } };
    unsigned state = 4;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int m = 1 + (int)s % 2; m <= 9; m += TEST_EMULATOR ? 3 : 1) {
            product p = sample(&state, m, sizes[s][0], sizes[s][1]);
            p.layout = DML_ROW_MAJOR;
            p.trans_b = DML_NO_TRANS;
            if (p.alpha == 0) p.alpha = 1;
            check(&p, kernel_pools, KERNEL_POOLS, &state);
        }
}

static void few_rows_on_each_isa(void)
{
    kernel_each_isa(few_rows);
}

/* What lies in one column of B stays there, in those too that a vector covers twice. */
static void a_column_keeps_its_nan(void)
{
    enum { N = 301, K = 220 };
    unsigned state = 5;
    for (int m = 1; m <= 8; m += 7)
        for (int column = 280; column < N; column += 3) {
            float *a = new_floats((size_t)m * K), *b = new_floats(N * K), *c = new_floats((size_t)m * N);
            test_fill(&state, a, (size_t)m * K);
            test_fill(&state, b, N * K);
            b[(column % K) * N + column] = NAN;
            CHECK_INT(dml_sgemm(kernel_pools[2], DML_ROW_MAJOR, DML_NO_TRANS, DML_NO_TRANS, m, N, K, 1, a, K,
                                b, N, 0, c, N),
                      DML_OK);
            for (int i = 0; i < m * N; i++)
                CHECK_MESSAGE((isnan(c[i]) != 0) == (i % N == column), "%d rows, column %d, element %d", m,
                              column, i);
            free(a);
            free(b);
            free(c);
        }
}

static void a_column_keeps_its_nan_on_each_isa(void)
{
    kernel_each_isa(a_column_keeps_its_nan);
}

/* A result of whole lines that is larger than caches is written past them, and the same to the bit. */
static void large_results(void)
{
    enum { M = 2112, N = 1024, LINE = 64 / sizeof(float) };
    static const int sums[] = { 1, 20, 32, 33 };
    unsigned state = 9;
    float *memory = new_floats((size_t)M * N + LINE), *other = new_floats((size_t)M * N + 1);
    float *aligned = memory + (64 - (uintptr_t)memory % 64) / sizeof(float);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        const int k = sums[i];
        float *a = new_floats((size_t)M * (size_t)k), *b = new_floats((size_t)k * N), bias[N];
        const dml_epilogue epilogue = { bias, DML_ACTIVATION_RELU };
        test_fill(&state, a, (size_t)M * (size_t)k);
        test_fill(&state, b, (size_t)k * N);
        test_fill(&state, bias, N);
        for (int w = 0; w < 2; w++) {
            float *to[] = { aligned, other + ((uintptr_t)other % 64 == 0) };
            for (int j = 0; j < 2; j++)
                CHECK_INT(dml_sgemm_fused(kernel_pools[2 * w], DML_NO_TRANS, DML_NO_TRANS, M, N, k, 0.5f, a,
                                          k, b, N, 0, to[j], N, &epilogue),
                          DML_OK);
            CHECK_MESSAGE(memcmp(to[0], to[1], sizeof(float) * M * N) == 0, "k %d, pool %d", k, 2 * w);
        }
        free(a);
        free(b);
    }
    free(memory);
    free(other);
}

/* An A far larger than second caches is asked for while it is used: the same bits as of a few of its rows at
   a time; and of lines, k after k, the sums as they are. */
static void large_factors(void)
{
    static const int sizes[][3] = { { 16, 96, 0 },  { 24, 100, 0 }, { 24, 102, 0 }, { 32, 192, 0 },
                                    { 40, 128, 0 }, { 64, 300, 0 }, { 96, 384, 0 }, { 16, 192, 5 } };
    enum { FLOATS = 4400000, SLICE = 999 }; /* eight second caches of 2 MB, and more */
    unsigned state = 10;
    float *a = new_floats(FLOATS), *b = new_floats(384 * 96), bias[96];
    const dml_epilogue epilogue = { bias, DML_ACTIVATION_RELU };
    test_fill(&state, a, FLOATS);
    test_fill(&state, b, 384 * 96);
    test_fill(&state, bias, 96);
    /* (Where each access is looked at, one: what is asked for early isn't an access.) */
    for (size_t i = TEST_SLOW ? sizeof sizes / sizeof *sizes - 1 : 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int n = sizes[i][0], k = sizes[i][1], lda = k + sizes[i][2], m = FLOATS / lda;
        float *all = new_floats((size_t)m * (size_t)n), *slice = new_floats((size_t)SLICE * (size_t)n);
        for (int w = 0; w < 2; w++) {
            CHECK_INT(dml_sgemm_fused(kernel_pools[2 * w], DML_NO_TRANS, DML_NO_TRANS, m, n, k, 1, a, lda, b,
                                      n, 0, all, n, &epilogue),
                      DML_OK);
            for (int row = 0; row < m; row += SLICE) {
                const int rows = m - row < SLICE ? m - row : SLICE;
                CHECK_INT(dml_sgemm_fused(kernel_pools[0], DML_NO_TRANS, DML_NO_TRANS, rows, n, k, 1,
                                          a + (size_t)row * (size_t)lda, lda, b, n, 0, slice, n, &epilogue),
                          DML_OK);
                CHECK_MESSAGE(memcmp(all + (size_t)row * (size_t)n, slice,
                                     (size_t)rows * (size_t)n * sizeof(float)) == 0,
                              "%d columns, %d k's, pool %d: rows from %d on", n, k, 2 * w, row);
            }
        }
        free(all);
        free(slice);
    }
    free(a);
    free(b);
    static const int lines[][3] = { { 96, 16, 2000 }, { 96, 24, 2001 },  { 41, 19, 7001 },
                                    { 16, 32, 9003 }, { 192, 24, 1502 }, { 64, 64, 2100 } };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const product p = {
            DML_ROW_MAJOR, DML_TRANS, DML_NO_TRANS, lines[i][0], lines[i][1], lines[i][2], 0, 1, 0
        };
        check(&p, kernel_pools, KERNEL_POOLS, &state);
    }
}

static void large_factors_on_each_isa(void)
{
    if (TEST_EMULATOR)
        SKIP("it takes long");
    else
        kernel_each_isa(large_factors);
}

static void large_results_on_each_isa(void)
{
    if (TEST_EMULATOR)
        SKIP("only vectors of x86-64 write past the caches");
    else
        kernel_each_isa(large_results);
}

int main(void)
{
    kernel_pools_open();
    RUN(large_results_on_each_isa);
    RUN(large_factors_on_each_isa);
    RUN(small_sizes_on_each_isa);
    RUN(all_flags_on_each_isa);
    RUN(block_edges_on_each_isa);
    RUN(nothing_is_read_that_does_not_count);
    RUN(bad_arguments_leave_c_alone);
    RUN(few_rows_on_each_isa);
    RUN(a_column_keeps_its_nan_on_each_isa);
    kernel_pools_close();
    return test_report("kernels/gemm");
}
