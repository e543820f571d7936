/* conv2d.h: two-dimensional convolution on raw arrays. */
#ifndef DML_KERNELS_CONV2D_H
#define DML_KERNELS_CONV2D_H

#include "base/status.h"
#include "kernels/epilogue.h"
#include "thread/pool.h"

/* x (N, H, W, C), w (F, KH, KW, C / groups), bias (F), y (N, OH, OW, F). Padding is with zeros, the same on
   both sides unless the size of y says otherwise. Taps lie `dilation` pixels apart. Of g groups, group i
   makes filters i F/g .. from channels i C/g ..; with groups = C = F the convolution is depthwise. */
typedef struct dml_conv2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int filters;                        /* F */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dilation_h, dilation_w; /* 0: 1 */
    int groups;                 /* a divisor of C and F; 0: 1 */
    int out_h, out_w; /* OH and OW: behind the images is as much padding as these need, more or less than
                         before them; 0: dml_conv2d_output_size says */
} dml_conv2d_shape;

/* (in + 2 pad - kernel) / stride + 1, or 0 when the kernel doesn't fit. */
DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad);

/* The kernel that a dilated one reaches as far as: (kernel - 1) dilation + 1; a dilation of 0 counts as 1. 0
   when that is no int, the kernel below 1, or the dilation below 0. For dml_conv2d_output_size. */
DML_API int dml_conv2d_extent(int kernel, int dilation);

/* Each returns DML_ERROR_ARGUMENT for a shape with a size below 1 (batch may be 0, pads are 0 or more), a
   kernel that doesn't fit where the size of y isn't given, groups that don't divide C and F, an array that is
   NULL though it has elements, an activation that there isn't, or arrays larger than any memory, before
   anything is written. Bitwise the same for any number of threads and any scratch of the pool; allocates
   nothing. */

/* y = conv(x, w) + bias; bias may be NULL. */
DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y);

/* y = activation(conv(x, w) + beta y + bias); NULL epilogue: neither activation nor bias. With beta = 0, y is
   not read; with beta = 1, y holds a residual (a shortcut's values), which is added before the activation. */
DML_API dml_status dml_conv2d_forward_fused(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y);

/* dx = dconv/dx^T dy + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx);

/* dw = dconv/dw^T dy + beta dw. (The bias gradient is dml_sum_rows of dy.) Depthwise, an infinite or NaN x
   may make NaNs of taps that don't meet it as well. */
DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw);

/* The scratch with which the forward pass is fastest, or, when training, each of the three, for
   dml_pool_reserve; it depends on dml_cpu_isa. Without it, in a NULL pool too, padded images are gathered
   tile by tile, which takes up to ten times as long. Enough for smaller batches, too; but kernels of one tap
   are products, of which a smaller one may want more, by little. At most about 1.3 MB a worker, and shared
   the packed weights. Zeros for a bad shape. */
DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training);

#endif
