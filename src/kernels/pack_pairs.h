/* pack_pairs.h: factors of floats or of bf16, packed as pairs of bf16 for the micro-kernels that multiply
   such. A pair is of two k's, the first in the lower half; the pair of a last odd k has a zero. */
#ifndef DML_KERNELS_PACK_PAIRS_H
#define DML_KERNELS_PACK_PAIRS_H

#include "kernels/isa_vectors.h"
#include "kernels/microkernel.h"
#include "kernels/pack.h"

/* Element (lane, k) is x[lane * lane_step + k * k_step]; one of the two steps is 1. */
typedef struct dml__pairs_source {
    const void *x;
    bool wide; /* of floats, which are rounded to nearest, denormals to 0; otherwise of bf16 */
    ptrdiff_t lane_step, k_step, k;
} dml__pairs_source;

#if defined(DML__HAS_AVX512_BF16)

#define DML__PAIRS_TARGET DML__TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,avx512bf16")

/* Floats, n of them, as bf16. */
DML__PAIRS_TARGET DML__INLINE void dml__narrow_run(const float *x, ptrdiff_t n, uint16_t *to)
{
    for (; n >= 32; n -= 32, x += 32, to += 32)
        _mm512_storeu_ps(to, (__m512)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
    if (n <= 0) return;
    const uint32_t mask = (1u << n) - 1;
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, x),
                 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16);
    _mm512_mask_storeu_epi16(to, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* A factor whose k's count pairs, for a micro-kernel on pairs; the source is kept. */
DML__LOCAL dml__factor dml__factor_of_pairs(const dml__pairs_source *source);

#endif
#endif
