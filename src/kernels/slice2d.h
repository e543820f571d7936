/* slice2d.h: parts of images, strided, with zeros around them, on raw arrays. */
#ifndef DML_KERNELS_SLICE2D_H
#define DML_KERNELS_SLICE2D_H

#include "base/status.h"
#include "thread/pool.h"

/* Along each axis (height, width, channels), `count` places of the input, from `begin` on every `step`-th,
   become the places `before`, `before` + 1, ... of the output; what else the output has there is zeros. */
typedef struct dml_slice2d_axis {
    int in, out; /* sizes, at least 1 */
    int begin, step, count, before;
} dml_slice2d_axis;

typedef struct dml_slice2d_shape {
    int batch;
    dml_slice2d_axis axis[3];
} dml_slice2d_shape;

/* x (batch, in height, width, channels) -> y (batch, out height, width, channels). DML_ERROR_ARGUMENT, with
   nothing written, for places that aren't there. */
DML_API dml_status dml_slice2d_forward(dml_pool *pool, const dml_slice2d_shape *shape, const float *x,
                                       float *y);

/* dx = dy where x was taken, else 0, + beta dx. With beta = 0, dx is not read. */
DML_API dml_status dml_slice2d_backward(dml_pool *pool, const dml_slice2d_shape *shape, const float *dy,
                                        float beta, float *dx);

#endif
