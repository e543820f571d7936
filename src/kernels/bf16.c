#ifndef DML_KERNELS_BF16_C
#define DML_KERNELS_BF16_C

#include "kernels/bf16.h"

#include "kernels/bf16_internal.h"
#include "kernels/gemm_internal.h"
#include "kernels/half_internal.h"
#include "kernels/product.h"
#include "kernels/thin.h"
#include "thread/pool_internal.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* --- packing --- */

static inline float dml__f32_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DML__LOCAL void dml__pack_widened(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  int width, float *out)
{
    const dml__bf16_matrix *m = (const dml__bf16_matrix *)source;
    const dml_bf16 *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    if (m->lane_step == 1) {
        for (int k = 0; k < kc; k++, x += m->k_step, out += width)
            dml__widen_line(DML_ISA_SCALAR, DML_BF16, (size_t)lanes, x, out);
        return;
    }
    /* Lines are widened a part at a time, then transposed as those of f32 are. */
    float line[4][64];
    for (int lane = 0; lane < lanes; lane += 4, x += 4 * m->lane_step) {
        const int group = lanes - lane < 4 ? lanes - lane : 4;
        for (int begin = 0; begin < kc; begin += 64) {
            const int count = kc - begin < 64 ? kc - begin : 64;
            for (int l = 0; l < group; l++)
                dml__widen_line(DML_ISA_SCALAR, DML_BF16, (size_t)count, x + l * m->lane_step + begin,
                                line[l]);
            dml__pack_transposed(line[0], 64, group, count, width, out + (ptrdiff_t)begin * width + lane);
        }
    }
}

/* As pairs of two k's, the first in the lower half, for a micro-kernel on bf16; k0 and kc count pairs, and
   the pair of a last odd k has a zero. */
static void dml__pack_pairs(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                            float *out)
{
    const dml__bf16_matrix *m = (const dml__bf16_matrix *)source;
    const dml_bf16 *x = m->x + first * m->lane_step + 2 * k0 * m->k_step;
    const int whole = (int)(m->k - 2 * k0) / 2 < kc ? (int)(m->k - 2 * k0) / 2 : kc;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    for (int k = 0; k < kc; k++, out += width) {
        const dml_bf16 *even = x + 2 * k * m->k_step, *odd = even + m->k_step;
        int lane = 0;
#if defined(__SSE2__)
        for (; m->lane_step == 1 && k < whole && lane + 8 <= lanes; lane += 8) {
            const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(even + lane));
            const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(odd + lane));
            _mm_storeu_si128((__m128i *)(void *)(out + lane), _mm_unpacklo_epi16(low, high));
            _mm_storeu_si128((__m128i *)(void *)(out + lane + 4), _mm_unpackhi_epi16(low, high));
        }
#endif
        for (; lane < lanes; lane++) {
            const uint32_t second = k < whole ? odd[lane * m->lane_step] : 0u;
            out[lane] = dml__f32_of(second << 16 | even[lane * m->lane_step]);
        }
    }
}

/* --- the product --- */

/* Products of so few rows or columns are bound by reading, so that no instruction for bf16 helps them. */
#define DML__BF16_THIN 4

DML__DRIVERS_BEGIN

static dml__product dml__bf16_product(dml__bf16_isa isa, dml__bf16_matrix factors[2], int m, int n, int k)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = product.b.pack = dml__pack_widened;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    const dml__microkernel *kernel = dml__microkernel_bf16(isa);
    const bool thin =
        (m <= DML__BF16_THIN || n <= DML__BF16_THIN) && k > 0 && dml__thin_kind(&product) != DML__NOT_THIN;
    if (kernel && !thin) {
        product.kernel = kernel;
        product.k = ((ptrdiff_t)k + 1) / 2;
        product.a.pack = product.b.pack = dml__pack_pairs;
    }
    return product;
}

DML_API dml_status dml_bf16gemm(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                int k, float alpha, const dml_bf16 *a, int lda, const dml_bf16 *b, int ldb,
                                float beta, float *c, int ldc, const dml_epilogue *epilogue)
{
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, epilogue };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    dml__bf16_matrix factors[2] = { { a, lda, 1, k }, { b, 1, ldb, k } };
    if (trans_a == DML_TRANS) factors[0].lane_step = 1, factors[0].k_step = lda;
    if (trans_b == DML_TRANS) factors[1].lane_step = ldb, factors[1].k_step = 1;
    dml__product product = dml__bf16_product(dml__pool_bf16(pool), factors, m, n, k);
    product.alpha = alpha;
    product.beta = beta;
    product.c = c;
    product.ldc = ldc;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_bf16gemm_scratch(int m, int n, int k)
{
    const dml_scratch none = { 0, 0 };
    dml__bf16_matrix factors[2];
    if (m < 1 || n < 1 || k < 1) return none;
    memset(factors, 0, sizeof factors);
    const dml__product product = dml__bf16_product(dml__pool_bf16(NULL), factors, m, n, k);
    return dml__product_scratch(&product);
}

DML_API const char *dml_bf16gemm_isa(dml_pool *pool)
{
    switch (dml__pool_bf16(pool)) {
    case DML__BF16_AMX: return "amx";
    case DML__BF16_AVX512: return "avx512_bf16";
    case DML__BF16_WIDENED: break;
    }
    return "widened";
}

DML__DRIVERS_END

#endif
