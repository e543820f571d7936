#ifndef DML_KERNELS_BF16_C
#define DML_KERNELS_BF16_C

#include "kernels/bf16.h"

#include "kernels/bf16_internal.h"
#include "kernels/gemm_internal.h"
#include "kernels/half_internal.h"
#include "kernels/pack_pairs.h"
#include "kernels/product.h"
#include "kernels/thin.h"
#include "thread/pool_internal.h"

#include <string.h>

/* --- packing --- */

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

/* --- the product --- */

/* Products of so few rows or columns are bound by reading, so that no instruction for bf16 helps them. */
#define DML__BF16_THIN 3

DML__DRIVERS_BEGIN

typedef struct dml__bf16_factors {
    dml__bf16_matrix of_bf16[2];
    dml__pairs_source of_pairs[2];
    dml__matrix as_they_lie[2];
} dml__bf16_factors;

#if defined(DML__HAS_AVX512_BF16)

/* For a micro-kernel that uses rows where they are: where its k's are side by side, a matrix of bf16 is one
   of pairs as it lies, as long as each begins at a float's address; others are packed as such. (Those of
   single pairs, too: their lanes would be side by side.) */
static dml__factor dml__bf16_factor(const dml__microkernel *kernel, dml__bf16_factors *factors, int which)
{
    const dml__bf16_matrix *m = &factors->of_bf16[which];
    const dml__pairs_source source = { m->x, false, m->lane_step, m->k_step, m->k };
    const dml__matrix matrix = { (const float *)(const void *)m->x, m->lane_step / 2, 1 };
    const dml__factor as_it_lies = { dml__pack_matrix, &factors->as_they_lie[which], NULL, NULL };
    const bool lies_ready = !kernel->k_multiple && m->k_step == 1 && m->k % 2 == 0 && m->lane_step % 2 == 0 &&
                            m->lane_step > 2 && (uintptr_t)m->x % sizeof(float) == 0;
    factors->of_pairs[which] = source;
    factors->as_they_lie[which] = matrix;
    return lies_ready ? as_it_lies : dml__factor_of_pairs(&factors->of_pairs[which]);
}

#endif

static dml__product dml__bf16_product(dml__bf16_isa isa, dml__bf16_factors *factors, int m, int n, int k)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = product.b.pack = dml__pack_widened;
    product.a.source = &factors->of_bf16[0];
    product.b.source = &factors->of_bf16[1];
#if defined(DML__HAS_AVX512_BF16)
    const dml__microkernel *kernel = dml__microkernel_bf16(isa);
    const bool thin = (m <= DML__BF16_THIN || n <= DML__BF16_THIN) && k > 0 &&
                      dml__thin_kind(&product, DML_ISA_SCALAR) != DML__NOT_THIN;
    if (kernel && !thin) {
        product.kernel = kernel;
        product.k = ((ptrdiff_t)k + 1) / 2;
        product.a = dml__bf16_factor(kernel, factors, 0);
        product.b = dml__bf16_factor(kernel, factors, 1);
    }
#endif
    (void)isa;
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
    const dml__bf16_matrix left = { a, trans_a == DML_TRANS ? 1 : lda, trans_a == DML_TRANS ? lda : 1, k };
    const dml__bf16_matrix right = { b, trans_b == DML_TRANS ? ldb : 1, trans_b == DML_TRANS ? 1 : ldb, k };
    dml__bf16_factors factors;
    factors.of_bf16[0] = left;
    factors.of_bf16[1] = right;
    dml__product product = dml__bf16_product(dml__pool_bf16(pool), &factors, m, n, k);
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
    dml__bf16_factors factors;
    if (m < 1 || n < 1 || k < 1) return none;
    memset(&factors, 0, sizeof factors); /* no k's are side by side: all is packed, which takes the most */
    const dml__product product = dml__bf16_product(dml__pool_bf16(NULL), &factors, m, n, k);
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
