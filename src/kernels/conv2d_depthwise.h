/* conv2d_depthwise.h: convolutions in which every channel has a kernel of its own, of few taps a line. */
#ifndef DML_KERNELS_CONV2D_DEPTHWISE_H
#define DML_KERNELS_CONV2D_DEPTHWISE_H

#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_weights.h"

#define DML__DEPTHWISE_TAPS 128 /* kernels of more are left to the loop over groups */

#define DML__DEPTHWISE_PASSES 4 /* at once */

/* Passes over `columns` channels at once: pixels of the source have source_pixel of them, a tap's weight of
   channel j lies weights_column behind that of channel j - 1, and `depth`, which is 1, counts for nothing. Of
   several, which are the phases of an input gradient, line y of each is computed before line y + 1 of any;
   the first has the largest grid. */
DML__LOCAL void dml__depthwise_passes(dml_pool *pool, const dml__conv_pass *passes, int count);

/* The gradient of the weights (channels, taps_h, taps_w), for `channels` = `filters` channels at once. */
DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job);

/* Bytes of the pool's shared scratch with which threads have lines of their own; the bits are the same
 * without.
 */
DML__LOCAL size_t dml__depthwise_weights_scratch(const dml__wgrad *job);

#endif
