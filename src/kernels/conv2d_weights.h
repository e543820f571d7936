/* conv2d_weights.h: the weight gradient of a convolution. */
#ifndef DML_KERNELS_CONV2D_WEIGHTS_H
#define DML_KERNELS_CONV2D_WEIGHTS_H

#include "base/dtype.h"
#include "thread/pool.h"

#define DML__WGRAD_STRIP 256 /* pixels of y whose gradient is used at once */

/* dw[f, ty, tx, c] = beta dw + sum over n, y, x of dy(n, y, x)[f] * x(n, y stride_h + ty dilation_h - pad_h,
   ...)[c], with x 0 outside its image. */
typedef struct dml__wgrad {
    ptrdiff_t batch, out_h, out_w, filters, taps_h, taps_w, channels;
    ptrdiff_t stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    const float *x; /* (batch, in_h, in_w, x_pixel), of which `channels` count */
    ptrdiff_t in_h, in_w, x_pixel;
    const float *dy; /* (batch, out_h, out_w, dy_pixel), of which `filters` count */
    ptrdiff_t dy_pixel;
    float *dw; /* (filters, taps_h, taps_w, channels) */
    float beta;
    dml_dtype rounds_to; /* of x and dy: DML_F32, or DML_BF16 or DML_F16 */
} dml__wgrad;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. */
DML__LOCAL void dml__wgrad_run(dml_pool *pool, const dml__wgrad *job);

/* dw = the sum of partial sums (chunks, filters, taps_h, taps_w, channels) in their order + beta dw. */
DML__LOCAL void dml__wgrad_add(dml_pool *pool, const dml__wgrad *job, ptrdiff_t chunks, const float *partial);

/* What a gradient of that size uses; the arrays aren't looked at. */
DML__LOCAL dml_scratch dml__wgrad_scratch(const dml__wgrad *job);

#endif
