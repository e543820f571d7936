#ifndef DML_KERNELS_THIN_C
#define DML_KERNELS_THIN_C

#include "kernels/thin.h"

#include "kernels/finish.h"
#include "kernels/isa_vectors.h"
#include "thread/pool_internal.h"

/* Of the factors' elements the larger one's are each used at most this many times. */
#define DML__DOTS_ROWS 16   /* with sums over lanes at the end, which packing all of B would exceed */
#define DML__DOTS_COLUMNS 8 /* of a B that is small: more are worth packing */
#define DML__LINES_MOST 3
#define DML__LINES_AT_ONCE 8

#define DML__THIN_WORK 65536.0 /* multiply-adds of a task */

typedef struct dml__thin {
    ptrdiff_t m, n, k; /* of dots, n >= m and n >= 4 */
    const float *a;    /* element (i, p) at i * a_line + p * a_step */
    ptrdiff_t a_line, a_step;
    const float *b; /* (n, k) for dots, (k, n) for sums of lines */
    ptrdiff_t b_line;
    float alpha, beta;
    const float *bias;
    ptrdiff_t bias_row, bias_column; /* where that of element (i, j) lies */
    bool relu;
    float *c;
    ptrdiff_t c_row, c_column;
    ptrdiff_t rows, columns; /* of a task */
    dml_isa isa;
} dml__thin;

static float dml__thin_finish(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, float value)
{
    if (thin->bias) value += thin->bias[i * thin->bias_row + j * thin->bias_column];
    return thin->relu && value <= 0 ? 0 : value;
}

/* --- both factors have their k's side by side: dot products, 1 or 2 rows of A with 4 of B --- */

#define DML__DEFINE_DOT(isa, target, vector, lanes)                                                          \
    target DML__INLINE void dml__dot_tile_##isa(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j,             \
                                                const int rows, float sums[][4])                             \
    {                                                                                                        \
        vector sum[2][4];                                                                                    \
        const float *a = thin->a + i * thin->a_line, *b = thin->b + j * thin->b_line;                        \
        const ptrdiff_t a_line = thin->a_line, b_line = thin->b_line;                                        \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) sum[r][q] = dml__##isa##_splat(0);                                   \
        }                                                                                                    \
        ptrdiff_t p = 0;                                                                                     \
        for (; p + lanes <= thin->k; p += lanes) {                                                           \
            vector line[2];                                                                                  \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) line[r] = dml__##isa##_load(a + r * a_line + p);                  \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) {                                                                    \
                const vector value = dml__##isa##_load(b + q * b_line + p);                                  \
                DML__UNROLL                                                                                  \
                for (int r = 0; r < rows; r++) sum[r][q] = dml__##isa##_fma(line[r], value, sum[r][q]);      \
            }                                                                                                \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            dml__##isa##_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], sums[r]);                          \
            for (ptrdiff_t rest = p; rest < thin->k; rest++)                                                 \
                for (int q = 0; q < 4; q++) sums[r][q] += a[r * a_line + rest] * b[q * b_line + rest];       \
        }                                                                                                    \
    }                                                                                                        \
    target static void dml__dots_##isa(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows,            \
                                       float sums[2][4])                                                     \
    {                                                                                                        \
        if (rows == 1)                                                                                       \
            dml__dot_tile_##isa(thin, i, j, 1, sums);                                                        \
        else                                                                                                 \
            dml__dot_tile_##isa(thin, i, j, 2, sums);                                                        \
    }

/* --- B has its columns side by side: C's row is a sum of B's lines, eight at a time --- */

#define DML__DEFINE_LINES(isa, target, vector, lanes)                                                        \
    target static void dml__add_lines_##isa(ptrdiff_t n, const float *x, const float *b, ptrdiff_t b_line,   \
                                            float *c)                                                        \
    {                                                                                                        \
        vector factor[DML__LINES_AT_ONCE];                                                                   \
        DML__UNROLL                                                                                          \
        for (int q = 0; q < DML__LINES_AT_ONCE; q++) factor[q] = dml__##isa##_splat(x[q]);                   \
        ptrdiff_t j = 0;                                                                                     \
        for (; j + lanes <= n; j += lanes) {                                                                 \
            vector sum = dml__##isa##_load(c + j);                                                           \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < DML__LINES_AT_ONCE; q++)                                                     \
                sum = dml__##isa##_fma(factor[q], dml__##isa##_load(b + q * b_line + j), sum);               \
            dml__##isa##_store(c + j, sum);                                                                  \
        }                                                                                                    \
        for (; j < n; j++)                                                                                   \
            for (int q = 0; q < DML__LINES_AT_ONCE; q++) c[j] += x[q] * b[q * b_line + j];                   \
    }

DML__DEFINE_DOT(plain, , dml__v4, 4)
DML__DEFINE_LINES(plain, , dml__v4, 4)
#if defined(DML__HAS_AVX2)
DML__DEFINE_DOT(avx2, DML__AVX2, __m256, 8)
DML__DEFINE_LINES(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(DML__HAS_AVX512)
DML__DEFINE_DOT(avx512, DML__AVX512, __m512, 16)
DML__DEFINE_LINES(avx512, DML__AVX512, __m512, 16)
#endif
#if defined(__aarch64__)
DML__DEFINE_DOT(neon, , float32x4_t, 4)
DML__DEFINE_LINES(neon, , float32x4_t, 4)
#endif

static void dml__dots(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows, float sums[2][4])
{
    switch (thin->isa) {
#if defined(DML__HAS_AVX512)
    case DML_ISA_AVX512: dml__dots_avx512(thin, i, j, rows, sums); break;
#endif
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX2: dml__dots_avx2(thin, i, j, rows, sums); break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON: dml__dots_neon(thin, i, j, rows, sums); break;
#endif
    default: dml__dots_plain(thin, i, j, rows, sums); break;
    }
}

static void dml__add_lines(dml_isa isa, ptrdiff_t n, const float *x, const float *b, ptrdiff_t b_line,
                           float *c)
{
    switch (isa) {
#if defined(DML__HAS_AVX512)
    case DML_ISA_AVX512: dml__add_lines_avx512(n, x, b, b_line, c); break;
#endif
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX2: dml__add_lines_avx2(n, x, b, b_line, c); break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON: dml__add_lines_neon(n, x, b, b_line, c); break;
#endif
    default: dml__add_lines_plain(n, x, b, b_line, c); break;
    }
}

/* Columns j .. j + count - 1, at most four: B's last rows are taken again where there are fewer. */
static void dml__dot_columns(const dml__thin *thin, ptrdiff_t j, ptrdiff_t count)
{
    const ptrdiff_t back = j + 4 <= thin->n ? 0 : j + 4 - thin->n;
    float sums[2][4];
    for (ptrdiff_t i = 0; i < thin->m; i += 2) {
        const int rows = thin->m - i < 2 ? 1 : 2;
        dml__dots(thin, i, j - back, rows, sums);
        for (int r = 0; r < rows; r++) {
            for (ptrdiff_t q = back; q < back + count; q++) {
                const ptrdiff_t column = j - back + q;
                float *c = thin->c + (i + r) * thin->c_row + column * thin->c_column;
                float value = thin->alpha * sums[r][q];
                if (thin->beta != 0) value += thin->beta * *c;
                *c = dml__thin_finish(thin, i + r, column, value);
            }
        }
    }
}

static void dml__dots_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns;
    const ptrdiff_t end = begin + thin->columns < thin->n ? begin + thin->columns : thin->n;
    (void)worker;
    for (ptrdiff_t j = begin; j < end; j += 4) dml__dot_columns(thin, j, end - j < 4 ? end - j : 4);
}

static void dml__lines_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns;
    const ptrdiff_t n = thin->n - begin < thin->columns ? thin->n - begin : thin->columns;
    float x[DML__LINES_AT_ONCE];
    (void)worker;
    for (ptrdiff_t i = 0; i < thin->m; i++) {
        float *c = thin->c + i * thin->c_row + begin;
        if (thin->beta == 0)
            memset(c, 0, (size_t)n * sizeof *c);
        else if (thin->beta != 1)
            for (ptrdiff_t j = 0; j < n; j++) c[j] *= thin->beta;
    }
    for (ptrdiff_t p = 0; p < thin->k; p += DML__LINES_AT_ONCE) {
        const int terms = thin->k - p < DML__LINES_AT_ONCE ? (int)(thin->k - p) : DML__LINES_AT_ONCE;
        const float *b = thin->b + p * thin->b_line + begin;
        for (ptrdiff_t i = 0; i < thin->m; i++) {
            float *c = thin->c + i * thin->c_row + begin;
            for (int q = 0; q < terms; q++)
                x[q] = thin->alpha * thin->a[i * thin->a_line + (p + q) * thin->a_step];
            if (terms == DML__LINES_AT_ONCE)
                dml__add_lines(thin->isa, n, x, b, thin->b_line, c);
            else
                for (int q = 0; q < terms; q++)
                    for (ptrdiff_t j = 0; j < n; j++) c[j] += x[q] * b[q * thin->b_line + j];
        }
    }
    for (ptrdiff_t i = 0; (thin->bias || thin->relu) && i < thin->m; i++)
        for (ptrdiff_t j = begin; j < begin + n; j++) {
            float *c = thin->c + i * thin->c_row + j;
            *c = dml__thin_finish(thin, i, j, *c);
        }
}

/* A single k: rows of C are multiples of B's only line. */
static void dml__outer_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->rows;
    const ptrdiff_t end = begin + thin->rows < thin->m ? begin + thin->rows : thin->m;
    (void)worker;
    for (ptrdiff_t i = begin; i < end; i++) {
        const dml__finish finish = { 1,          0,          thin->alpha * thin->a[i * thin->a_line],
                                     thin->beta, thin->bias, thin->relu };
        dml__finish_line(thin->isa, (size_t)thin->n, &finish, thin->b, thin->c + i * thin->c_row);
    }
}

/* Shares the columns out in multiples of 16, so that every lane of a vector is where it would be without. */
static void dml__run_thin(dml_pool *pool, dml__thin *thin, dml_pool_task task)
{
    const double work = (double)thin->m * (double)thin->n * (double)thin->k;
    double tasks = work / DML__THIN_WORK;
    /* As few as can be: lines are best read from end to end. */
    if (tasks > dml_pool_threads(pool)) tasks = dml_pool_threads(pool);
    thin->columns = tasks < 2 ? thin->n : (ptrdiff_t)((double)thin->n / tasks / 16 + 1) * 16;
    dml_pool_run(pool, (int)((thin->n + thin->columns - 1) / thin->columns), task, thin);
}

static void dml__run_outer(dml_pool *pool, dml__thin *thin)
{
    const ptrdiff_t rows = (ptrdiff_t)(DML__THIN_WORK / 4) / thin->n;
    thin->rows = rows ? rows : 1;
    dml_pool_run(pool, (int)((thin->m + thin->rows - 1) / thin->rows), dml__outer_task, thin);
}

static const dml__matrix *dml__plain_matrix(const dml__factor *factor)
{
    return factor->pack == dml__pack_matrix ? (const dml__matrix *)factor->source : NULL;
}

DML__LOCAL dml__thin_form dml__thin_kind(const dml__product *product)
{
    const dml__matrix *a = dml__plain_matrix(&product->a), *b = dml__plain_matrix(&product->b);
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (!a || !b) return DML__NOT_THIN;
    if (a->k_step == 1 && b->k_step == 1 && (m <= DML__DOTS_ROWS || n <= DML__DOTS_COLUMNS) && k >= 32 &&
        (m >= 4 || n >= 4))
        return DML__THIN_DOTS;
    if (b->lane_step != 1) return DML__NOT_THIN;
    if (k == 1) return DML__THIN_OUTER;
    return m <= DML__LINES_MOST && n >= 16 ? DML__THIN_LINES : DML__NOT_THIN;
}

DML__LOCAL void dml__multiply_thin(dml_pool *pool, const dml__product *product)
{
    const dml__matrix *a = dml__plain_matrix(&product->a), *b = dml__plain_matrix(&product->b);
    dml__thin thin = { product->m,
                       product->n,
                       product->k,
                       a->x,
                       a->lane_step,
                       a->k_step,
                       b->x,
                       b->k_step,
                       product->alpha,
                       product->beta,
                       product->epilogue.bias,
                       0,
                       1,
                       product->epilogue.activation == DML_ACTIVATION_RELU,
                       product->c,
                       product->ldc,
                       1,
                       product->m,
                       product->n,
                       dml__pool_machine(pool).isa };
    switch (dml__thin_kind(product)) {
    case DML__THIN_DOTS:
        thin.b_line = b->lane_step;
        if (thin.m > thin.n) {
            thin.m = product->n, thin.n = product->m;
            thin.a = b->x, thin.a_line = b->lane_step;
            thin.b = a->x, thin.b_line = a->lane_step;
            thin.bias_row = 1, thin.bias_column = 0;
            thin.c_row = 1, thin.c_column = product->ldc;
        }
        dml__run_thin(pool, &thin, dml__dots_task);
        break;
    case DML__THIN_LINES: dml__run_thin(pool, &thin, dml__lines_task); break;
    case DML__THIN_OUTER: dml__run_outer(pool, &thin); break;
    case DML__NOT_THIN: break;
    }
}

#endif
