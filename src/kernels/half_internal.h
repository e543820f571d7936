/* half_internal.h: arrays of floats in 16 bits of either type, DML_BF16 or DML_F16, for programs and
 * products. */
#ifndef DML_KERNELS_HALF_INTERNAL_H
#define DML_KERNELS_HALF_INTERNAL_H

#include "base/float16.h"
#include "thread/pool.h"

/* y = x, rounded to nearest, ties to even; and back. */
DML__LOCAL void dml__narrow_floats(dml_pool *pool, dml_dtype dtype, size_t n, const float *x, uint16_t *y);

/* The same, but what is finite stays so: beyond f16's largest number it becomes that. */
DML__LOCAL void dml__saturate_floats(dml_pool *pool, dml_dtype dtype, size_t n, const float *x, uint16_t *y);
DML__LOCAL void dml__widen_floats(dml_pool *pool, dml_dtype dtype, size_t n, const uint16_t *x, float *y);

#endif
