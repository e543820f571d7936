/* reduce_internal.h: of reduce.c, for reduce_axis.c. */
#ifndef DML_KERNELS_REDUCE_INTERNAL_H
#define DML_KERNELS_REDUCE_INTERNAL_H

#include "base/cpu.h"

/* dml_sum_axis on the calling thread. */
DML__LOCAL void dml__sum_axis_alone(dml_isa isa, size_t outer, size_t n, size_t inner, const float *x,
                                    float beta, float *y);

/* y[r] = the sum of squares of x[r][c]. */
DML__LOCAL void dml__squares_of_rows(dml_isa isa, size_t rows, size_t columns, const float *x, float *y);

/* y[r] = the largest x[r][c], or the smallest; a NaN counts as either. */
DML__LOCAL void dml__extremes_of_rows(dml_isa isa, bool smallest, size_t rows, size_t columns, const float *x,
                                      float *y);

/* The same of `width` > 0 columns, from x on, of rows > 0 rows that are `stride` apart. */
DML__LOCAL void dml__extremes_of_columns(dml_isa isa, bool smallest, size_t rows, size_t stride, size_t width,
                                         const float *x, float *y);

#endif
