/* half_internal.h: floats in 16 bits of either type, DML_BF16 or DML_F16, for programs and products. */
#ifndef DML_KERNELS_HALF_INTERNAL_H
#define DML_KERNELS_HALF_INTERNAL_H

#include "base/cpu.h"
#include "base/dtype.h"
#include "thread/pool.h"

/* y = x, rounded to nearest, ties to even; and back. */
DML__LOCAL void dml__narrow_floats(dml_pool *pool, dml_dtype dtype, size_t n, const float *x, uint16_t *y);
DML__LOCAL void dml__widen_floats(dml_pool *pool, dml_dtype dtype, size_t n, const uint16_t *x, float *y);

/* The first two by the calling thread; and x as if it had been there and back. Each instruction set gives
   the same bits. */
DML__LOCAL void dml__narrow_line(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y);
DML__LOCAL void dml__widen_line(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y);
DML__LOCAL void dml__round_line(dml_isa isa, dml_dtype dtype, size_t n, float *x);

/* Pairs of bf16 in words: of `even` in the lower half, of `odd` in the upper one. */
DML__LOCAL void dml__pair_line(size_t n, const float *even, const float *odd, float *pairs);

#endif
