#ifndef DML_KERNELS_Q8_C
#define DML_KERNELS_Q8_C

#include "kernels/q8.h"

#include "kernels/gemm_internal.h"
#include "kernels/isa_vectors.h"
#include "kernels/product.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* As it is made: of four columns after the other, of each block of k's, their scales and their numbers, so
   that few rows, which wait for it, read it from end to end. Columns and k's that there aren't are zeros. */
#define DML__Q8_TILE 4
typedef struct dml__q8_tile {
    float scale[DML__Q8_TILE];
    int8_t q[DML__Q8_TILE][DML_Q8_BLOCK];
} dml__q8_tile;

typedef struct dml__q8_matrix {
    const dml__q8_tile *tiles; /* (columns / 4, blocks), both rounded up */
    ptrdiff_t blocks;
    dml_isa isa;
} dml__q8_matrix;

static ptrdiff_t dml__q8_blocks(ptrdiff_t k)
{
    return dml__quotient_up(k, DML_Q8_BLOCK);
}

DML_API size_t dml_q8_bytes(int n, int k)
{
    if (n < 1 || k < 1) return 0;
    return (size_t)dml__quotient_up(n, DML__Q8_TILE) * (size_t)dml__q8_blocks(k) * sizeof(dml__q8_tile);
}

/* ---- from f32, and back ---- */

typedef struct dml__q8_making {
    const float *b;
    ptrdiff_t column_step, k_step, n, k;
    dml__q8_tile *tiles;
} dml__q8_making;

static void dml__q8_round(const float *x, int8_t *q, float *scale)
{
    float most = 0, odd = 0; /* odd: NaN if one of them isn't finite */
    for (int i = 0; i < DML_Q8_BLOCK; i++) {
        const float size = fabsf(x[i]);
        odd += x[i] - x[i];
        if (size > most) most = size;
    }
    const float inverse = most > 0 ? 127 / most : 0;
    const bool usable = odd == 0 && inverse <= FLT_MAX;
    *scale = odd != 0 ? odd : usable ? most / 127 : 0;
    if (127 * *scale > FLT_MAX)
        *scale = nextafterf(*scale, 0); /* of FLT_MAX, which else comes back infinite */
    for (int i = 0; i < DML_Q8_BLOCK; i++) {
        const float value = usable ? x[i] * inverse : 0;
        q[i] = (int8_t)(value < 0 ? value - 0.5f : value + 0.5f);
    }
}

static void dml__q8_make_tile(const dml__q8_making *m, ptrdiff_t j, ptrdiff_t p, dml__q8_tile *tile)
{
    float x[DML__Q8_TILE][DML_Q8_BLOCK];
    const ptrdiff_t columns = dml__smaller(DML__Q8_TILE, m->n - j);
    const ptrdiff_t count = dml__smaller(DML_Q8_BLOCK, m->k - p);
    const float *from = m->b + j * m->column_step + p * m->k_step;
    memset(x, 0, sizeof x);
    for (ptrdiff_t i = 0; i < count; i++)
        for (ptrdiff_t c = 0; c < columns; c++) x[c][i] = from[c * m->column_step + i * m->k_step];
    for (int c = 0; c < DML__Q8_TILE; c++) dml__q8_round(x[c], tile->q[c], &tile->scale[c]);
}

static void dml__q8_make_task(void *argument, int task, int worker)
{
    const dml__q8_making *m = (const dml__q8_making *)argument;
    const ptrdiff_t blocks = dml__q8_blocks(m->k);
    (void)worker;
    for (ptrdiff_t block = 0; block < blocks; block++)
        dml__q8_make_tile(m, (ptrdiff_t)task * DML__Q8_TILE, block * DML_Q8_BLOCK,
                          &m->tiles[task * blocks + block]);
}

DML_API dml_status dml_q8_from_f32(dml_pool *pool, dml_transpose trans_b, int n, int k, const float *b,
                                   int ldb, void *q8)
{
    const dml__gemm_arguments arguments = {
        /* as of a product with no rows of A */
        DML_NO_TRANS, trans_b, 0, n, k, true, NULL, b, NULL, k > 1 ? k : 1, ldb, n > 1 ? n : 1, NULL
    };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || n == 0 || k == 0) return status;
    if (!b || !q8) return DML_ERROR_ARGUMENT;
    const bool trans = trans_b == DML_TRANS;
    dml__q8_making m = { b, trans ? ldb : 1, trans ? 1 : ldb, n, k, (dml__q8_tile *)q8 };
    dml_pool_run((double)n * k > 65536 ? pool : NULL, (int)dml__quotient_up(n, DML__Q8_TILE),
                 dml__q8_make_task, &m);
    return DML_OK;
}

DML_API dml_status dml_q8_to_f32(int n, int k, const void *q8, float *b)
{
    if (n < 0 || k < 0 || (n > 0 && k > 0 && (!q8 || !b))) return DML_ERROR_ARGUMENT;
    const dml__q8_tile *tiles = (const dml__q8_tile *)q8;
    for (ptrdiff_t j = 0; j < n; j++)
        for (ptrdiff_t p = 0; p < k; p++) {
            const dml__q8_tile *tile = &tiles[j / DML__Q8_TILE * dml__q8_blocks(k) + p / DML_Q8_BLOCK];
            const int column = (int)(j % DML__Q8_TILE);
            b[j * k + p] = (float)tile->q[column][p % DML_Q8_BLOCK] * tile->scale[column];
        }
    return DML_OK;
}

/* ---- vectors ---- */

DML__INLINE dml__v4 dml__plain_from_i8(const int8_t *q)
{
    const dml__v4 value = { (float)q[0], (float)q[1], (float)q[2], (float)q[3] };
    return value;
}

#if defined(DML__HAS_AVX2)
DML__AVX2 DML__INLINE __m256 dml__avx2_from_i8(const int8_t *q)
{
    const __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)q);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
}
#endif
#if defined(DML__HAS_AVX512)
DML__AVX512 DML__INLINE __m512 dml__avx512_from_i8(const int8_t *q)
{
    const __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)q);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen));
}
#endif
#if defined(__aarch64__)
DML__INLINE float32x4_t dml__neon_from_i8(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
#endif

/* ---- few rows: dot products, of up to 4 rows of A with a tile's columns, widened as they are read ---- */

/* More rows than this are worth packing B for: its numbers are widened again for each four. */
#define DML__Q8_FEW 12
#define DML__Q8_WORK 65536.0 /* multiply-adds of a task */
/* Lines so many bytes ahead are asked for: from memory, that is half as fast again. */
#define DML__Q8_AHEAD 2048

typedef struct dml__q8_kernel {
    /* Of so many tiles, of four columns with all k's: sums (rows, 4) with rows of A, whose last k's, of the
       last block, are in `tail` (rows, DML_Q8_BLOCK). */
    void (*dots)(const dml__q8_tile *tiles, ptrdiff_t blocks, const float *a, ptrdiff_t lda,
                 const float *tail, int rows, float *sums);
    /* out = a column's numbers, of a tile and from there on. */
    void (*line)(const dml__q8_tile *tile, int column, int from, int count, float *out);
} dml__q8_kernel;

#define DML__DEFINE_Q8(isa, target, vector, lanes)                                                           \
    target DML__INLINE void dml__q8_block_##isa(const dml__q8_tile *tile, const float *a, ptrdiff_t lda,     \
                                                const int rows, vector sum[][DML__Q8_TILE])                  \
    {                                                                                                        \
        vector factor[DML__Q8_TILE];                                                                         \
        DML__UNROLL                                                                                          \
        for (int j = 0; j < DML__Q8_TILE; j++) factor[j] = dml__##isa##_splat(tile->scale[j]);               \
        for (int p = 0; p < DML_Q8_BLOCK; p += lanes) {                                                      \
            vector line[DML__Q8_TILE];                                                                       \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) line[r] = dml__##isa##_load(a + r * lda + p);                     \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < DML__Q8_TILE; j++) {                                                         \
                const vector value = dml__##isa##_multiply(dml__##isa##_from_i8(tile->q[j] + p), factor[j]); \
                DML__UNROLL                                                                                  \
                for (int r = 0; r < rows; r++) sum[r][j] = dml__##isa##_fma(line[r], value, sum[r][j]);      \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    target DML__INLINE void dml__q8_rows_##isa(const dml__q8_tile *tiles, ptrdiff_t blocks, const float *a,  \
                                               ptrdiff_t lda, const float *tail, const int rows,             \
                                               float *sums)                                                  \
    {                                                                                                        \
        vector sum[DML__Q8_TILE][DML__Q8_TILE];                                                              \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < DML__Q8_TILE; j++) sum[r][j] = dml__##isa##_splat(0);                        \
        }                                                                                                    \
        for (ptrdiff_t block = 0; block + 1 < blocks; block++) {                                             \
            for (size_t line = 0; line < sizeof *tiles; line += 64)                                          \
                DML__PREFETCH((const char *)(tiles + block) + DML__Q8_AHEAD + line);                         \
            dml__q8_block_##isa(tiles + block, a + block * DML_Q8_BLOCK, lda, rows, sum);                    \
        }                                                                                                    \
        dml__q8_block_##isa(tiles + blocks - 1, tail, DML_Q8_BLOCK, rows, sum);                              \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++)                                                                       \
            dml__##isa##_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], sums + DML__Q8_TILE * r);          \
    }                                                                                                        \
    target DML__PASSES_##isa static void dml__q8_dots_##isa(const dml__q8_tile *tiles, ptrdiff_t blocks,     \
                                                            const float *a, ptrdiff_t lda,                   \
                                                            const float *tail, int rows, float *sums)        \
    {                                                                                                        \
        switch (rows) {                                                                                      \
        case 1: dml__q8_rows_##isa(tiles, blocks, a, lda, tail, 1, sums); break;                             \
        case 2: dml__q8_rows_##isa(tiles, blocks, a, lda, tail, 2, sums); break;                             \
        case 3: dml__q8_rows_##isa(tiles, blocks, a, lda, tail, 3, sums); break;                             \
        default: dml__q8_rows_##isa(tiles, blocks, a, lda, tail, 4, sums);                                   \
        }                                                                                                    \
    }                                                                                                        \
    target DML__PASSES_##isa static void dml__q8_line_##isa(const dml__q8_tile *tile, int column, int from,  \
                                                            int count, float *out)                           \
    {                                                                                                        \
        const int8_t *q = tile->q[column] + from;                                                            \
        const vector factor = dml__##isa##_splat(tile->scale[column]);                                       \
        int p = 0;                                                                                           \
        for (; p + lanes <= count; p += lanes)                                                               \
            dml__##isa##_store(out + p, dml__##isa##_multiply(dml__##isa##_from_i8(q + p), factor));         \
        for (; p < count; p++) out[p] = (float)q[p] * tile->scale[column];                                   \
    }                                                                                                        \
    static const dml__q8_kernel dml__q8_kernel_##isa = { dml__q8_dots_##isa, dml__q8_line_##isa };

DML__DEFINE_Q8(plain, , dml__v4, 4)
#if defined(DML__HAS_AVX2)
DML__DEFINE_Q8(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(DML__HAS_AVX512)
DML__DEFINE_Q8(avx512, DML__AVX512, __m512, 16)
#endif
#if defined(__aarch64__)
DML__DEFINE_Q8(neon, , float32x4_t, 4)
#endif

static const dml__q8_kernel *dml__q8_kernel_get(dml_isa isa)
{
#if defined(DML__HAS_AVX512)
    if (isa == DML_ISA_AVX512) return &dml__q8_kernel_avx512;
#endif
#if defined(DML__HAS_AVX2)
    if (isa == DML_ISA_AVX2) return &dml__q8_kernel_avx2;
#endif
#if defined(__aarch64__)
    if (isa == DML_ISA_NEON) return &dml__q8_kernel_neon;
#endif
    (void)isa;
    return &dml__q8_kernel_plain;
}

typedef struct dml__q8_dots {
    dml__q8_matrix b;
    ptrdiff_t m, n;
    const float *a;
    ptrdiff_t lda;
    float *c;
    ptrdiff_t ldc;
    dml_epilogue epilogue;
    float tail[DML__Q8_FEW][DML_Q8_BLOCK]; /* of A's rows the last block's k's, and zeros */
    ptrdiff_t tiles;                       /* of a task: columns / 4 */
} dml__q8_dots;

/* What is done to the sums of some rows from i on, with columns from j on, before they are C's. */
static void dml__q8_finish(const dml__q8_dots *dots, ptrdiff_t i, int rows, ptrdiff_t j, const float *sums)
{
    const float *bias = dots->epilogue.bias;
    const bool relu = dots->epilogue.activation == DML_ACTIVATION_RELU;
    const ptrdiff_t count = dml__smaller(DML__Q8_TILE, dots->n - j);
    for (int r = 0; r < rows; r++)
        for (ptrdiff_t q = 0; q < count; q++) {
            const float value = sums[DML__Q8_TILE * r + q] + (bias ? bias[j + q] : 0);
            dots->c[(i + r) * dots->ldc + j + q] = relu && value <= 0 ? 0 : value; /* keeps a NaN */
        }
}

DML__DRIVERS_BEGIN

static void dml__q8_dots_task(void *argument, int task, int worker)
{
    const dml__q8_dots *dots = (const dml__q8_dots *)argument;
    const dml__q8_kernel *kernel = dml__q8_kernel_get(dots->b.isa);
    const ptrdiff_t all = dml__quotient_up(dots->n, DML__Q8_TILE), begin = task * dots->tiles;
    const ptrdiff_t end = dml__smaller(begin + dots->tiles, all);
    float sums[DML__Q8_TILE * DML__Q8_TILE];
    (void)worker;
    for (ptrdiff_t at = begin; at < end; at++)
        for (ptrdiff_t i = 0; i < dots->m; i += DML__Q8_TILE) {
            const int rows = (int)dml__smaller(DML__Q8_TILE, dots->m - i);
            kernel->dots(dots->b.tiles + at * dots->b.blocks, dots->b.blocks, dots->a + i * dots->lda,
                         dots->lda, dots->tail[i], rows, sums);
            dml__q8_finish(dots, i, rows, at * DML__Q8_TILE, sums);
        }
}

/* As few tasks as can be: B is best read from end to end. */
static void dml__q8_run_dots(dml_pool *pool, dml__q8_dots *dots, ptrdiff_t k)
{
    const ptrdiff_t tiles = dml__quotient_up(dots->n, DML__Q8_TILE);
    const ptrdiff_t last = (dots->b.blocks - 1) * DML_Q8_BLOCK;
    double tasks = (double)dots->m * (double)dots->n * (double)k / DML__Q8_WORK;
    if (tasks > dml_pool_threads(pool)) tasks = dml_pool_threads(pool);
    dots->tiles = tasks < 2 ? tiles : (ptrdiff_t)((double)tiles / tasks) + 1;
    for (ptrdiff_t i = 0; i < dots->m; i++)
        memcpy(dots->tail[i], dots->a + i * dots->lda + last, (size_t)(k - last) * sizeof(float));
    dml_pool_run(pool, (int)dml__quotient_up(tiles, dots->tiles), dml__q8_dots_task, dots);
}

/* ---- more: B is widened while it is packed ---- */

/* Of a column so many k's, which may be in two blocks. */
static void dml__q8_widen(const dml__q8_matrix *b, const dml__q8_kernel *kernel, ptrdiff_t column,
                          ptrdiff_t k, int count, float *out)
{
    const dml__q8_tile *tile = b->tiles + column / DML__Q8_TILE * b->blocks + k / DML_Q8_BLOCK;
    const int from = (int)(k % DML_Q8_BLOCK), lane = (int)(column % DML__Q8_TILE);
    const int now = count < DML_Q8_BLOCK - from ? count : DML_Q8_BLOCK - from;
    kernel->line(tile, lane, from, now, out);
    if (now < count) kernel->line(tile + 1, lane, 0, count - now, out + now);
}

static void dml__pack_q8(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                         float *out)
{
    const dml__q8_matrix *b = (const dml__q8_matrix *)source;
    const dml__q8_kernel *kernel = dml__q8_kernel_get(b->isa);
    float line[4][DML_Q8_BLOCK];
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    for (int lane = 0; lane < lanes; lane += 4) {
        const int group = lanes - lane < 4 ? lanes - lane : 4;
        for (int begin = 0; begin < kc; begin += DML_Q8_BLOCK) {
            const int count = kc - begin < DML_Q8_BLOCK ? kc - begin : DML_Q8_BLOCK;
            for (int l = 0; l < group; l++)
                dml__q8_widen(b, kernel, first + lane + l, k0 + begin, count, line[l]);
            dml__pack_transposed(line[0], DML_Q8_BLOCK, group, count, width,
                                 out + (ptrdiff_t)begin * width + lane);
        }
    }
}

static dml__product dml__q8_product(const dml__matrix *a, const dml__q8_matrix *b, int m, int n, int k)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = dml__pack_matrix;
    product.a.source = a;
    product.b.pack = dml__pack_q8;
    product.b.source = b;
    product.alpha = 1;
    return product;
}

DML_API dml_status dml_q8gemm(dml_pool *pool, int m, int n, int k, const float *a, int lda, const void *q8,
                              float *c, int ldc, const dml_epilogue *epilogue)
{
    const dml__gemm_arguments arguments = { DML_NO_TRANS, DML_TRANS,     m,   n,       k, true, a, q8, c,
                                            lda,          k > 1 ? k : 1, ldc, epilogue };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    const dml__q8_matrix b = { (const dml__q8_tile *)q8, dml__q8_blocks(k), dml__pool_machine(pool).isa };
    const dml_epilogue none = { NULL, DML_ACTIVATION_NONE };
    if (m <= DML__Q8_FEW && k > 0) {
        dml__q8_dots dots = { b, m, n, a, lda, c, ldc, epilogue ? *epilogue : none, { { 0 } }, 0 };
        dml__q8_run_dots(pool, &dots, k);
        return DML_OK;
    }
    const dml__matrix left = { a, lda, 1 };
    dml__product product = dml__q8_product(&left, &b, m, n, k);
    product.epilogue = epilogue ? *epilogue : none;
    product.c = c;
    product.ldc = ldc;
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_q8gemm_scratch(int m, int n, int k)
{
    const dml_scratch none = { 0, 0 };
    const dml__matrix left = { NULL, k, 1 };
    const dml__q8_matrix b = { NULL, dml__q8_blocks(k), DML_ISA_SCALAR };
    if (m <= DML__Q8_FEW || n < 1 || k < 1) return none;
    const dml__product product = dml__q8_product(&left, &b, m, n, k);
    return dml__product_scratch(&product);
}

DML__DRIVERS_END

#endif
