#ifndef DML_KERNELS_THIN_C
#define DML_KERNELS_THIN_C

#include "kernels/thin.h"

#include "base/memory.h"
#include "kernels/bf16_internal.h"
#include "kernels/finish.h"
#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

/* Of the factors' elements the larger one's are each used at most this many times. */
#define DML__DOTS_ROWS 16         /* with sums over lanes at the end, which packing all of B would exceed */
#define DML__DOTS_COLUMNS 8       /* of a B that is small: more are worth packing, */
#define DML__DOTS_COLUMNS_WIDE 12 /* or with AVX-512 leave lanes out, for so many k's: */
#define DML__DOTS_K_WIDE 128
#define DML__DOTS_MOST_COLUMNS 8
#define DML__LINES_MOST 4
#define DML__LINES_MOST_FAR 8     /* where B is so large that tiles would wait for it: */
#define DML__LINES_FAR 65536      /* elements, */
#define DML__LINES_FAR_LENGTH 256 /* and its lines so long */
/* With AVX-512 tiles' loads keep up with a second cache, which then has at least so many floats. */
#define DML__LINES_MOST_WIDE 3
#define DML__LINES_FAR_WIDE 262145
#define DML__LINES_MOST_FAR_AMD 4

#define DML__THIN_WORK 65536.0 /* multiply-adds of a task */

#define DML__LINES_UNIT 16 /* columns: the widest vector */

/* Rows of A and lines of B at once: more of these would meet in the same sets of a first cache, with those of
   C, where lines are 4096 bytes apart. */
#define DML__LINES_TILE 4
/* Floats of sums at once, on the stack: half a first cache, where there are such; and of those of little
   products. Each row begins elsewhere in a cache than the one before. */
#if defined(DML__HAS_AVX2) || defined(__aarch64__)
#define DML__LINES_FLOATS 4096
#else
#define DML__LINES_FLOATS 512
#endif
#define DML__LINES_SMALL_FLOATS 512
#define DML__LINES_SLACK (DML__LINES_MOST_FAR * DML__LINES_UNIT + DML__ALIGNMENT / (ptrdiff_t)sizeof(float))

/* A load waits for a store before it whose address has the same lower 12 bits, so that sums shall not lie
   closely behind B's lines by that measure, but so many bytes. */
#define DML__LINES_PAGE ((intptr_t)4096)
#define DML__LINES_BEHIND 1024

typedef struct dml__thin dml__thin;

typedef struct dml__thin_kernel {
    /* Dot products of 1 or 2 rows of A, from i, with so many of B, from j: (rows, dots_columns). */
    void (*dots)(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows, float *sums);
    int dots_columns;
    /* Adds A B's n columns from j to sums (m, line), of which the last vector begins at a multiple of
       `lanes`, and its columns end where the others do: some may be there twice, and may lie before j. */
    void (*add_lines)(const dml__thin *thin, ptrdiff_t j, ptrdiff_t n, float *sums, ptrdiff_t line);
    int lanes;
} dml__thin_kernel;

struct dml__thin {
    ptrdiff_t m, n, k; /* of dots, n >= m and n >= the kernel's columns */
    bool narrow;       /* A and B are of bf16 */
    const void *a;     /* element (i, p) at i * a_line + p * a_step */
    ptrdiff_t a_line, a_step;
    const void *b; /* (n, k) for dots, (k, n) for sums of lines */
    ptrdiff_t b_line;
    float alpha, beta;
    const float *bias;
    ptrdiff_t bias_row, bias_column; /* where that of element (i, j) lies */
    bool relu;
    float *c;
    ptrdiff_t c_row, c_column;
    ptrdiff_t rows, columns; /* of a task */
    dml_isa isa;
    const dml__thin_kernel *kernel;
};

static float dml__thin_finish(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, float value)
{
    if (thin->bias) value += thin->bias[i * thin->bias_row + j * thin->bias_column];
    return thin->relu && value <= 0 ? 0 : value;
}

/* --- both factors have their k's side by side: dot products, 1 or 2 rows of A with 4 of B --- */

#define DML__DEFINE_DOT(name, isa, target, vector, lanes, element, load, widen)                              \
    target DML__INLINE void dml__dot_tile_##name(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j,            \
                                                 const int rows, float *sums)                                \
    {                                                                                                        \
        vector sum[2][4];                                                                                    \
        const ptrdiff_t a_line = thin->a_line, b_line = thin->b_line;                                        \
        const element *a = (const element *)thin->a + i * a_line;                                            \
        const element *b = (const element *)thin->b + j * b_line;                                            \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) sum[r][q] = dml__##isa##_splat(0);                                   \
        }                                                                                                    \
        ptrdiff_t p = 0;                                                                                     \
        for (; p + lanes <= thin->k; p += lanes) {                                                           \
            vector line[2];                                                                                  \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) line[r] = load(a + r * a_line + p);                               \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) {                                                                    \
                const vector value = load(b + q * b_line + p);                                               \
                DML__UNROLL                                                                                  \
                for (int r = 0; r < rows; r++) sum[r][q] = dml__##isa##_fma(line[r], value, sum[r][q]);      \
            }                                                                                                \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            dml__##isa##_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], sums + 4 * r);                     \
            for (ptrdiff_t rest = p; rest < thin->k; rest++)                                                 \
                for (int q = 0; q < 4; q++)                                                                  \
                    sums[4 * r + q] += widen(a[r * a_line + rest]) * widen(b[q * b_line + rest]);            \
        }                                                                                                    \
    }                                                                                                        \
    target DML__PASSES_##isa static void dml__dots_##name(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j,   \
                                                          int rows, float *sums)                             \
    {                                                                                                        \
        if (rows == 1)                                                                                       \
            dml__dot_tile_##name(thin, i, j, 1, sums);                                                       \
        else                                                                                                 \
            dml__dot_tile_##name(thin, i, j, 2, sums);                                                       \
    }

/* --- B has its columns side by side: C's rows are sums of B's lines --- */

#define DML__DEFINE_LINES(name, isa, target, vector, lanes, element, load, widen)                            \
    target DML__INLINE void dml__line_vector_##name(const element *b, ptrdiff_t b_line,                      \
                                                    vector factor[][DML__LINES_TILE], float *sums,           \
                                                    ptrdiff_t line, const int rows, const int terms)         \
    {                                                                                                        \
        vector sum[DML__LINES_TILE];                                                                         \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) sum[r] = dml__##isa##_load(sums + r * line);                          \
        DML__UNROLL                                                                                          \
        for (int q = 0; q < terms; q++) {                                                                    \
            const vector value = load(b + q * b_line);                                                       \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) sum[r] = dml__##isa##_fma(factor[r][q], value, sum[r]);           \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) dml__##isa##_store(sums + r * line, sum[r]);                          \
    }                                                                                                        \
    target DML__INLINE void dml__line_tile_##name(const dml__thin *thin, ptrdiff_t i, ptrdiff_t p,           \
                                                  ptrdiff_t j, ptrdiff_t n, float *sums, ptrdiff_t line,     \
                                                  const int rows, const int terms)                           \
    {                                                                                                        \
        vector factor[DML__LINES_TILE][DML__LINES_TILE];                                                     \
        const ptrdiff_t a_line = thin->a_line, a_step = thin->a_step, b_line = thin->b_line;                 \
        const element *a = (const element *)thin->a + i * a_line + p * a_step;                               \
        const element *b = (const element *)thin->b + p * b_line + j;                                        \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < terms; q++)                                                                  \
                factor[r][q] = dml__##isa##_splat(widen(a[r * a_line + q * a_step]));                        \
        }                                                                                                    \
        ptrdiff_t at = 0;                                                                                    \
        for (; rows == 1 && at + 2 * lanes <= n; at += 2 * lanes) {                                          \
            dml__line_vector_##name(b + at, b_line, factor, sums + i * line + at, line, rows, terms);        \
            dml__line_vector_##name(b + at + lanes, b_line, factor, sums + i * line + at + lanes, line,      \
                                    rows, terms);                                                            \
        }                                                                                                    \
        for (; at + lanes <= n; at += lanes) {                                                               \
            if (lanes == 16 && rows == DML__LINES_TILE && i == 0) {                                          \
                DML__UNROLL                                                                                  \
                for (int q = 0; q < terms; q++) DML__PREFETCH(b + at + (terms + q) * b_line);                \
            }                                                                                                \
            dml__line_vector_##name(b + at, b_line, factor, sums + i * line + at, line, rows, terms);        \
        }                                                                                                    \
        if (at < n)                                                                                          \
            dml__line_vector_##name(b + n - lanes, b_line, factor, sums + i * line + at, line, rows, terms); \
    }                                                                                                        \
    target DML__PASSES_##isa static void dml__add_lines_##name(const dml__thin *thin, ptrdiff_t j,           \
                                                               ptrdiff_t n, float *sums, ptrdiff_t line)     \
    {                                                                                                        \
        const ptrdiff_t whole = thin->k - thin->k % DML__LINES_TILE;                                         \
        for (ptrdiff_t p = 0; p < whole; p += DML__LINES_TILE) {                                             \
            ptrdiff_t i = 0;                                                                                 \
            for (; i + 4 <= thin->m; i += 4)                                                                 \
                dml__line_tile_##name(thin, i, p, j, n, sums, line, 4, DML__LINES_TILE);                     \
            if (i + 2 <= thin->m) {                                                                          \
                dml__line_tile_##name(thin, i, p, j, n, sums, line, 2, DML__LINES_TILE);                     \
                i += 2;                                                                                      \
            }                                                                                                \
            if (i < thin->m) dml__line_tile_##name(thin, i, p, j, n, sums, line, 1, DML__LINES_TILE);        \
        }                                                                                                    \
        for (ptrdiff_t p = whole; p < thin->k; p++)                                                          \
            for (ptrdiff_t i = 0; i < thin->m; i++)                                                          \
                dml__line_tile_##name(thin, i, p, j, n, sums, line, 1, 1);                                   \
    }

#define DML__DEFINE_THIN(name, isa, target, vector, lanes, element, load, widen)                             \
    DML__DEFINE_DOT(name, isa, target, vector, lanes, element, load, widen)                                  \
    DML__DEFINE_LINES(name, isa, target, vector, lanes, element, load, widen)                                \
    static const dml__thin_kernel dml__thin_##name = { dml__dots_##name, 4, dml__add_lines_##name, lanes };

#define DML__SAME(x) (x)

DML__INLINE dml__v4 dml__plain_widened(const uint16_t *from)
{
    const dml__v4_bits bits = { from[0], from[1], from[2], from[3] };
    return (dml__v4)(bits << 16);
}

DML__DEFINE_THIN(plain, plain, , dml__v4, 4, float, dml__plain_load, DML__SAME)
DML__DEFINE_THIN(plain_bf16, plain, , dml__v4, 4, uint16_t, dml__plain_widened, dml__bf16_widened)
#if defined(DML__HAS_AVX2)

DML__AVX2 DML__INLINE __m256 dml__avx2_widened(const uint16_t *from)
{
    const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}

DML__DEFINE_THIN(avx2, avx2, DML__AVX2, __m256, 8, float, dml__avx2_load, DML__SAME)
DML__DEFINE_THIN(avx2_bf16, avx2, DML__AVX2, __m256, 8, uint16_t, dml__avx2_widened, dml__bf16_widened)

#endif
#if defined(DML__HAS_AVX512)

/* 1 or 2 rows with 8: of fewer, loads would take as long as the multiply-adds. A vector of B stays in a
   register, which gcc would load for each row; the k's behind the last whole one are loaded with a mask. */
#define DML__DOTS_WIDE 8
#define DML__LOAD_REST(from) dml__avx512_load_some(from, mask)
#define DML__DOTS_STEP(load)                                                                                 \
    {                                                                                                        \
        __m512 line[2];                                                                                      \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) line[r] = load(a + r * a_line);                                       \
        DML__UNROLL                                                                                          \
        for (int q = 0; q < columns; q++) {                                                                  \
            __m512 value = load(b + q * b_line);                                                             \
            DML__IN_REGISTER(value);                                                                         \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) sum[r][q] = dml__avx512_fma(line[r], value, sum[r][q]);           \
        }                                                                                                    \
    }
DML__AVX512 DML__INLINE void dml__dot_tile_wide(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j,
                                                const int rows, const int columns, float *sums)
{
    __m512 sum[2][DML__DOTS_WIDE];
    const ptrdiff_t a_line = thin->a_line, b_line = thin->b_line;
    const float *a = (const float *)thin->a + i * a_line, *b = (const float *)thin->b + j * b_line;
    DML__UNROLL
    for (int r = 0; r < rows; r++) {
        DML__UNROLL
        for (int q = 0; q < columns; q++) sum[r][q] = dml__avx512_splat(0);
    }
    ptrdiff_t left = thin->k;
    for (; left >= 16; left -= 16, a += 16, b += 16) DML__DOTS_STEP(dml__avx512_load)
    if (left) {
        const uint32_t mask = (1u << left) - 1;
        DML__DOTS_STEP(DML__LOAD_REST)
    }
    DML__UNROLL
    for (int r = 0; r < rows; r++) {
        DML__UNROLL
        for (int q = 0; q < columns; q += 4)
            dml__avx512_sums(sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3], sums + columns * r + q);
    }
}

/* One row waits for B, which is best read as few lines at once. */
DML__AVX512 static void dml__dots_wide(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows, float *sums)
{
    if (rows == 2) {
        dml__dot_tile_wide(thin, i, j, 2, DML__DOTS_WIDE, sums);
        return;
    }
    for (int q = 0; q < DML__DOTS_WIDE; q += 4) dml__dot_tile_wide(thin, i, j + q, 1, 4, sums + q);
}

DML__DEFINE_LINES(avx512, avx512, DML__AVX512, __m512, 16, float, dml__avx512_load, DML__SAME)
static const dml__thin_kernel dml__thin_avx512 = { dml__dots_wide, DML__DOTS_WIDE, dml__add_lines_avx512,
                                                   16 };
#endif
#if defined(__aarch64__)
DML__DEFINE_THIN(neon, neon, , float32x4_t, 4, float, dml__neon_load, DML__SAME)
#endif

static const dml__thin_kernel *dml__thin_kernel_get(dml_isa isa, bool narrow)
{
#if defined(DML__HAS_AVX512)
    if (isa == DML_ISA_AVX512 && !narrow) return &dml__thin_avx512;
#endif
#if defined(DML__HAS_AVX2)
    if (isa == DML_ISA_AVX512 || isa == DML_ISA_AVX2) return narrow ? &dml__thin_avx2_bf16 : &dml__thin_avx2;
#endif
#if defined(__aarch64__)
    if (isa == DML_ISA_NEON && !narrow) return &dml__thin_neon;
#endif
    (void)isa;
    return narrow ? &dml__thin_plain_bf16 : &dml__thin_plain;
}

/* What is done to a sum before it is C's. */
static void dml__finish_dots(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, ptrdiff_t count,
                             const float *sums)
{
    float *c = thin->c + i * thin->c_row + j * thin->c_column;
    for (ptrdiff_t q = 0; q < count; q++, c += thin->c_column) {
        float value = thin->alpha * sums[q];
        if (thin->beta != 0) value += thin->beta * *c;
        *c = dml__thin_finish(thin, i, j + q, value);
    }
}

/* Columns j .. j + count - 1, at most the kernel's: B's last rows are taken again where there are fewer. */
static void dml__dot_columns(const dml__thin *thin, ptrdiff_t j, ptrdiff_t count)
{
    const ptrdiff_t most = thin->kernel->dots_columns, back = j + most <= thin->n ? 0 : j + most - thin->n;
    const ptrdiff_t c_row = thin->c_row, c_column = thin->c_column;
    const bool bare = thin->alpha == 1 && thin->beta == 0 && !thin->bias && !thin->relu;
    float sums[2 * DML__DOTS_MOST_COLUMNS];
    for (ptrdiff_t i = 0; i < thin->m; i += 2) {
        const int rows = thin->m - i < 2 ? 1 : 2;
        thin->kernel->dots(thin, i, j - back, rows, sums);
        for (int r = 0; r < rows; r++) {
            const float *sum = sums + r * most + back;
            float *c = thin->c + (i + r) * c_row + j * c_column;
            if (bare)
                for (ptrdiff_t q = 0; q < count; q++, c += c_column) *c = sum[q];
            else
                dml__finish_dots(thin, i + r, j, count, sum);
        }
    }
}

static void dml__dots_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns, most = thin->kernel->dots_columns;
    const ptrdiff_t end = begin + thin->columns < thin->n ? begin + thin->columns : thin->n;
    (void)worker;
    for (ptrdiff_t j = begin; j < end; j += most) dml__dot_columns(thin, j, dml__smaller(end - j, most));
}

/* C's `count` columns from j, of sums (m, line). */
static void dml__finish_sums(const dml__thin *thin, ptrdiff_t j, ptrdiff_t count, const float *sums,
                             ptrdiff_t line)
{
    const dml__finish finish = {
        1, 0, thin->alpha, thin->beta, thin->bias ? thin->bias + j : NULL, thin->relu
    };
    for (ptrdiff_t i = 0; i < thin->m; i++)
        dml__finish_line(thin->isa, (size_t)count, &finish, sums + i * line, thin->c + i * thin->c_row + j);
}

/* Columns begin .. end - 1, in strips of whole vectors whose sums take so many floats at most. */
static void dml__lines_within(const dml__thin *thin, ptrdiff_t begin, ptrdiff_t end, float *sums,
                              ptrdiff_t floats)
{
    const ptrdiff_t most = floats / thin->m / DML__LINES_UNIT * DML__LINES_UNIT;
    const ptrdiff_t strips = dml__quotient_up(end - begin, most);
    const ptrdiff_t strip = dml__round_up(dml__quotient_up(end - begin, strips), DML__LINES_UNIT);
    const ptrdiff_t line = strip + DML__LINES_UNIT;
    for (ptrdiff_t j = begin; j < end; j += strip) {
        const ptrdiff_t count = dml__smaller(strip, end - j);
        memset(sums, 0, (size_t)(thin->m * line) * sizeof *sums);
        thin->kernel->add_lines(thin, j, count, sums, line);
        const ptrdiff_t rest = count % thin->kernel->lanes;
        dml__finish_sums(thin, j, count - rest, sums, line);
        if (rest)
            dml__finish_sums(thin, j + count - rest, rest, sums + count + thin->kernel->lanes - 2 * rest,
                             line);
    }
}

DML__NOINLINE static void dml__few_lines(const dml__thin *thin, ptrdiff_t begin, ptrdiff_t end)
{
    float sums[DML__LINES_SMALL_FLOATS + DML__LINES_SLACK];
    const intptr_t skip = -(intptr_t)sums & (DML__ALIGNMENT - 1);
    dml__lines_within(thin, begin, end, sums + skip / (intptr_t)sizeof *sums, DML__LINES_SMALL_FLOATS);
}

DML__NOINLINE static void dml__many_lines(const dml__thin *thin, ptrdiff_t begin, ptrdiff_t end)
{
    float sums[DML__LINES_FLOATS + DML__LINES_SLACK + DML__LINES_PAGE / (ptrdiff_t)sizeof(float)];
    const intptr_t b = (intptr_t)thin->b + begin * (thin->narrow ? 2 : 4);
    const intptr_t wanted = (b + DML__LINES_BEHIND) & -(intptr_t)DML__ALIGNMENT;
    const intptr_t skip = (wanted - (intptr_t)sums) & (DML__LINES_PAGE - 1);
    dml__lines_within(thin, begin, end, sums + skip / (intptr_t)sizeof *sums, DML__LINES_FLOATS);
}

static void dml__lines_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns, end = dml__smaller(begin + thin->columns, thin->n);
    (void)worker;
    if (thin->m * (end - begin) <= DML__LINES_SMALL_FLOATS)
        dml__few_lines(thin, begin, end);
    else
        dml__many_lines(thin, begin, end);
}

/* A single k: rows of C are multiples of B's only line. */
static void dml__outer_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->rows;
    const ptrdiff_t end = begin + thin->rows < thin->m ? begin + thin->rows : thin->m;
    (void)worker;
    for (ptrdiff_t i = begin; i < end; i++) {
        const dml__finish finish = {
            1, 0, thin->alpha * ((const float *)thin->a)[i * thin->a_line], thin->beta, thin->bias, thin->relu
        };
        dml__finish_line(thin->isa, (size_t)thin->n, &finish, (const float *)thin->b,
                         thin->c + i * thin->c_row);
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

/* A factor that is a matrix, of f32 or of bf16, and how it lies. */
typedef struct dml__thin_factor {
    const void *x; /* NULL, too, for who asks only for sizes */
    ptrdiff_t lane_step, k_step;
    bool is_matrix, narrow;
} dml__thin_factor;

static dml__thin_factor dml__thin_factor_of(const dml__factor *factor)
{
    dml__thin_factor own = { NULL, 0, 0, false, false };
    if (factor->pack == dml__pack_matrix) {
        const dml__matrix *matrix = (const dml__matrix *)factor->source;
        own.x = matrix->x, own.lane_step = matrix->lane_step, own.k_step = matrix->k_step;
        own.is_matrix = true;
    } else if (factor->pack == dml__pack_widened) {
        const dml__bf16_matrix *matrix = (const dml__bf16_matrix *)factor->source;
        own.x = matrix->x, own.lane_step = matrix->lane_step, own.k_step = matrix->k_step;
        own.is_matrix = own.narrow = true;
    }
    return own;
}

/* Tiles read lines in steps: from AMD's third cache, which few cores share, as fast as they multiply (8 x
   1024 x 1024 on a Zen 4: 12 % faster than by lines), but not from that of a Xeon. No cache says of itself
   how fast it is. */
static bool dml__reads_l3_in_steps(void)
{
#if defined(DML__HAS_AVX512) && defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

/* The most rows of A whose products are sums of B's lines, of f32 or bf16. */
static ptrdiff_t dml__most_rows_of_lines(ptrdiff_t n, ptrdiff_t k, bool wide)
{
    const ptrdiff_t far = wide ? DML__LINES_FAR_WIDE : DML__LINES_FAR;
    if (n >= DML__LINES_FAR_LENGTH && k >= dml__quotient_up(far, n))
        return wide && dml__reads_l3_in_steps() ? DML__LINES_MOST_FAR_AMD : DML__LINES_MOST_FAR;
    return wide ? DML__LINES_MOST_WIDE : DML__LINES_MOST;
}

DML__LOCAL dml__thin_form dml__thin_kind(const dml__product *product, dml_isa isa)
{
    const dml__thin_factor a = dml__thin_factor_of(&product->a), b = dml__thin_factor_of(&product->b);
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (product->kernel || !a.is_matrix || !b.is_matrix || a.narrow != b.narrow) return DML__NOT_THIN;
    const bool wide = isa == DML_ISA_AVX512 && !a.narrow;
    const ptrdiff_t columns = wide && k >= DML__DOTS_K_WIDE ? DML__DOTS_COLUMNS_WIDE : DML__DOTS_COLUMNS;
    if (a.k_step == 1 && b.k_step == 1 && (m <= DML__DOTS_ROWS || n <= columns) && k >= 32 &&
        (m >= 4 || n >= 4))
        return DML__THIN_DOTS;
    if (b.lane_step != 1) return DML__NOT_THIN;
    if (k == 1 && !a.narrow) return DML__THIN_OUTER;
    return n >= 16 && m <= dml__most_rows_of_lines(n, k, wide) ? DML__THIN_LINES : DML__NOT_THIN;
}

DML__LOCAL void dml__multiply_thin(dml_pool *pool, const dml__product *product)
{
    const dml__thin_factor a = dml__thin_factor_of(&product->a), b = dml__thin_factor_of(&product->b);
    const dml_isa isa = dml__pool_machine(pool).isa;
    dml__thin thin = { product->m,
                       product->n,
                       product->k,
                       a.narrow,
                       a.x,
                       a.lane_step,
                       a.k_step,
                       b.x,
                       b.k_step,
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
                       isa,
                       dml__thin_kernel_get(isa, a.narrow) };
    switch (dml__thin_kind(product, isa)) {
    case DML__THIN_DOTS:
        thin.b_line = b.lane_step;
        if (thin.m > thin.n) {
            thin.m = product->n, thin.n = product->m;
            thin.a = b.x, thin.a_line = b.lane_step;
            thin.b = a.x, thin.b_line = a.lane_step;
            thin.bias_row = 1, thin.bias_column = 0;
            thin.c_row = 1, thin.c_column = product->ldc;
        }
        if (thin.n < thin.kernel->dots_columns) thin.kernel = dml__thin_kernel_get(DML_ISA_AVX2, a.narrow);
        dml__run_thin(pool, &thin, dml__dots_task);
        break;
    case DML__THIN_LINES: dml__run_thin(pool, &thin, dml__lines_task); break;
    case DML__THIN_OUTER: dml__run_outer(pool, &thin); break;
    case DML__NOT_THIN: break;
    }
}

#endif
