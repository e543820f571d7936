/* pool2d.h: max and average pooling on raw arrays. */
#ifndef DML_KERNELS_POOL2D_H
#define DML_KERNELS_POOL2D_H

#include "base/status.h"
#include "thread/pool.h"

/* x (N, H, W, C), y (N, OH, OW, C). A pad must be smaller than its kernel, and each window begin before the
   image's end, so that it holds at least one input; H W and OH OW each fit an int. */
typedef struct dml_pool2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int out_h,
        out_w; /* OH and OW: the last windows may end behind the image; 0: dml_conv2d_output_size says */
    bool count_padding; /* a mean is of as many numbers as there are places of the window in the image and the
                           pads on both its sides; else of those in the image */
} dml_pool2d_shape;

/* DML_ERROR_ARGUMENT for a bad shape, before anything is written. Bitwise the same for any number of threads;
   allocates nothing. */

/* y = the largest input of each window; argmax (N, OH, OW, C) is its place h * W + w in the image (the first
   of equals), for the backward pass; NULL: it isn't written. A NaN counts as the largest, so it gets through.
 */
DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax);

/* The same of a relu's output, for dx to be the gradient of the relu's input: argmax is -1, no place, where y
   isn't above 0. */
DML_API dml_status dml_max_pool2d_of_relu_forward(dml_pool *pool, const dml_pool2d_shape *shape,
                                                  const float *x, float *y, int32_t *argmax);

/* dx = the dy of the windows that each input won + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx);

/* y = the mean of each window's inputs. */
DML_API dml_status dml_avg_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y);
DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx);

#endif
