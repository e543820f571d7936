/* reduce_axis.h: sums, extremes and norms along an axis, with their gradients, on raw arrays. */
#ifndef DML_KERNELS_REDUCE_AXIS_H
#define DML_KERNELS_REDUCE_AXIS_H

#include "thread/pool.h"

typedef enum dml_reduction {
    DML_REDUCE_SUM,
    DML_REDUCE_MAX,
    DML_REDUCE_MIN,
    DML_REDUCE_NORM1, /* the sum of sizes */
    DML_REDUCE_NORM2  /* the square root of the sum of squares */
} dml_reduction;

/* y[o][i] = scale times that of x[o][k][i] over all k; x (outer, n, inner), n at least 1. A NaN makes its
   result NaN. Bitwise the same for any number of threads. */
DML_API void dml_reduce_axis(dml_pool *pool, dml_reduction kind, size_t outer, size_t n, size_t inner,
                             const float *x, float scale, float *y);

/* ties[o][i] = how many x[o][k][i] are y[o][i]: among so many an extreme's gradient is divided. */
DML_API void dml_reduce_axis_ties(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x,
                                  const float *y, float *ties);

/* dx = the gradient of dml_reduce_axis + beta dx, that of the norms 0 where x or the norm is 0. A sum takes
   neither x nor y; norms and extremes take a scale of 1, and only extremes take ties. With beta = 0, dx is
   not read. */
DML_API void dml_reduce_axis_backward(dml_pool *pool, dml_reduction kind, size_t outer, size_t n,
                                      size_t inner, const float *x, const float *y, const float *ties,
                                      const float *dy, float scale, float beta, float *dx);

#endif
