/* local2d.h: two-dimensional convolution whose weights differ from place to place, on raw arrays. */
#ifndef DML_KERNELS_LOCAL2D_H
#define DML_KERNELS_LOCAL2D_H

#include "base/status.h"
#include "thread/pool.h"

/* x (N, H, W, C), w (OH, OW, F, KH, KW, C), y (N, OH, OW, F), OH = (H - KH) / stride_h + 1 and OW likewise:
   there is no padding. */
typedef struct dml_local2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int filters;                        /* F */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
} dml_local2d_shape;

/* Products of the samples' lines under each place and its weights, places shared out among the threads.
   DML_ERROR_ARGUMENT, with nothing written, for a size below 1 (batch may be 0), a kernel that doesn't fit,
   an image or a sample of y that an int can't count, or larger arrays than any memory.
   Bitwise the same for any number of threads and any scratch; allocates nothing. With beta = 0 what is
   written is not read. */

/* y(n, oh, ow, f) = sum of x(n, oh stride_h + i, ow stride_w + j, c) w(oh, ow, f, i, j, c) */
DML_API dml_status dml_local2d_forward(dml_pool *pool, const dml_local2d_shape *shape, const float *x,
                                       const float *w, float *y);

/* dx = dy/dx^T dy + beta dx; dw = dy/dw^T dy + beta dw */
DML_API dml_status dml_local2d_backward_input(dml_pool *pool, const dml_local2d_shape *shape, const float *dy,
                                              const float *w, float beta, float *dx);
DML_API dml_status dml_local2d_backward_weights(dml_pool *pool, const dml_local2d_shape *shape,
                                                const float *x, const float *dy, float beta, float *dw);

/* What the three use, for dml_pool_reserve; zeros for a bad shape. */
DML_API dml_scratch dml_local2d_scratch(const dml_local2d_shape *shape);

#endif
