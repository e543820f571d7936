/* float16.h: floats in 16 bits of either type, DML_BF16 or DML_F16, a line of them at a time. */
#ifndef DML_BASE_FLOAT16_H
#define DML_BASE_FLOAT16_H

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/platform.h"

/* y = x, rounded to nearest, ties to even; back, exactly; and x as if it had been there and back. A NaN stays
   one. n elements each, by the calling thread. Each instruction set gives the same bits. */
DML__LOCAL void dml__narrow_line(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y);
DML__LOCAL void dml__widen_line(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y);
DML__LOCAL void dml__round_line(dml_isa isa, dml_dtype dtype, size_t n, float *x);

/* Pairs of bf16 in words: of `even` in the lower half, of `odd` in the upper one. */
DML__LOCAL void dml__pair_line(size_t n, const float *even, const float *odd, float *pairs);

#endif
