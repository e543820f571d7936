/* gather.h: places along an axis, by number, on raw arrays. */
#ifndef DML_KERNELS_GATHER_H
#define DML_KERNELS_GATHER_H

#include "thread/pool.h"

/* x (outer, n, inner) -> y (outer, m, inner). Whole rows are taken, where `group` of the outer share one list
   of indices (outer / group, m), or single elements, by indices (outer, m, inner). All are in 0 .. n - 1. */
typedef struct dml_gather_shape {
    size_t outer, n, inner, m, group;
    bool elements;
} dml_gather_shape;

/* Bitwise the same for any number of threads. */

/* y[o][j][i] = x[o][index of it][i] */
DML_API void dml_gather_forward(dml_pool *pool, const dml_gather_shape *shape, const int32_t *indices,
                                const float *x, float *y);

/* dx = beta dx + for each place the sum of those dy that were taken from it, added in the order of j. With
   beta = 0 dx is not read. */
DML_API void dml_gather_backward(dml_pool *pool, const dml_gather_shape *shape, const int32_t *indices,
                                 const float *dy, float beta, float *dx);

#endif
