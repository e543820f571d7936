/* pack_pairs.h: factors of floats or of bf16, packed as pairs of bf16 for the micro-kernels that multiply
   such. A pair is of two k's, the first in the lower half; the pair of a last odd k has a zero. */
#ifndef DML_KERNELS_PACK_PAIRS_H
#define DML_KERNELS_PACK_PAIRS_H

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

/* A factor whose k's count pairs, for a micro-kernel on pairs; the source is kept. */
DML__LOCAL dml__factor dml__factor_of_pairs(const dml__pairs_source *source);

#endif
#endif
