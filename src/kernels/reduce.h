/* reduce.h: many elements into one, on raw arrays. */
#ifndef DML_KERNELS_REDUCE_H
#define DML_KERNELS_REDUCE_H

#include "thread/pool.h"

/* Sums run over fixed blocks in a fixed order, so they are bitwise the same for any number of threads; each
   element takes part in a few dozen additions in float, the rest are in double, except in dml_sum_rows. */

DML_API float dml_sum_all(dml_pool *pool, size_t n, const float *x);             /* 0 for n = 0 */
DML_API float dml_dot(dml_pool *pool, size_t n, const float *x, const float *y); /* 0 for n = 0 */

/* The sum of (x[i] - y[i])^2; 0 for n = 0. */
DML_API float dml_squared_distance(dml_pool *pool, size_t n, const float *x, const float *y);

/* The largest element; -infinity for n = 0. A NaN counts as the largest, here and in dml_argmax_rows. */
DML_API float dml_max_all(dml_pool *pool, size_t n, const float *x);

/* y[c] = sum over r of x[r][c] + beta y[c], x (rows, columns); with beta = 0, y is not read. */
DML_API void dml_sum_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, float beta, float *y);

/* y[o][i] = sum over k of x[o][k][i] + beta y[o][i], x (outer, n, inner); with beta = 0, y is not read. */
DML_API void dml_sum_axis(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x, float beta,
                          float *y);

/* out[r] = the column of the largest x[r][c], the first of equals; columns at least 1. */
DML_API void dml_argmax_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, int32_t *out);

#endif
