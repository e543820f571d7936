/* conv2d_depthwise.h: convolutions in which every channel has a kernel of its own. */
#ifndef DML_KERNELS_CONV2D_DEPTHWISE_H
#define DML_KERNELS_CONV2D_DEPTHWISE_H

#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_weights.h"

/* Kernels of more taps, or that reach further, are left to the loop over groups. */
#define DML__DEPTHWISE_TAPS 128
#define DML__DEPTHWISE_COPY 600 /* pixels of x that a block of the weight gradient copies */

static inline bool dml__depthwise_fits(ptrdiff_t taps_h, ptrdiff_t taps_w, ptrdiff_t dilation_h,
                                       ptrdiff_t dilation_w)
{
    return taps_h <= DML__DEPTHWISE_TAPS / taps_w && dilation_h <= DML__DEPTHWISE_COPY &&
           dilation_w <= DML__DEPTHWISE_COPY &&
           ((taps_h - 1) * dilation_h + 1) * ((taps_w - 1) * dilation_w + 1) <= DML__DEPTHWISE_COPY;
}

/* A pass over `columns` channels at once: pixels of the source have source_pixel of them, a tap's weight of
   channel j lies weights_column behind that of channel j - 1, and `depth`, which is 1, counts for nothing. */
DML__LOCAL void dml__depthwise_pass(dml_pool *pool, const dml__conv_pass *pass);

/* The gradient of the weights (channels, taps_h, taps_w), for `channels` = `filters` channels at once. */
DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job);

#endif
