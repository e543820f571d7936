/* half.h: float16, the 16-bit float of IEEE 754. (bf16.h has the other one.) */
#ifndef DML_KERNELS_HALF_H
#define DML_KERNELS_HALF_H

#include "base/platform.h"
#include "thread/pool.h"

/* The bits: a sign, 5 of an exponent, 10 of a fraction. The largest number is 65504, the smallest normal one
   2^-14, and what is smaller is a multiple of 2^-24. */
typedef uint16_t dml_f16;

/* y = x, rounded to nearest, ties to even: infinite from 65520 on; a NaN stays one. And back, exactly. n
   elements each. */
DML_API void dml_f16_from_f32(dml_pool *pool, size_t n, const float *x, dml_f16 *y);
DML_API void dml_f16_to_f32(dml_pool *pool, size_t n, const dml_f16 *x, float *y);

#endif
