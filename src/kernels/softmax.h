/* softmax.h: softmax along an axis, on raw arrays. */
#ifndef DML_KERNELS_SOFTMAX_H
#define DML_KERNELS_SOFTMAX_H

#include "thread/pool.h"

/* y[o][k][i] = exp(x[o][k][i]) / the sum of that over k, or with `logs` its logarithm; x and y (outer, n,
   inner), may be the same. The maximum is subtracted first, so nothing overflows. A NaN makes all that share
   its sum NaN. Bitwise the same for any number of threads. */
DML_API void dml_softmax_forward(dml_pool *pool, bool logs, size_t outer, size_t n, size_t inner,
                                 const float *x, float *y);

/* dx = y (dy - sum(y dy)) + beta dx, or with `logs` dy - exp(y) sum(dy) + beta dx, each sum over k. dx may be
   dy. With beta = 0, dx is not read. */
DML_API void dml_softmax_backward(dml_pool *pool, bool logs, size_t outer, size_t n, size_t inner,
                                  const float *y, const float *dy, float beta, float *dx);

#endif
