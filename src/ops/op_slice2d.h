/* op_slice2d.h: parts of images, and zeros around them. */
#ifndef DML_OPS_OP_SLICE2D_H
#define DML_OPS_OP_SLICE2D_H

#include "graph/graph.h"

/* Each for height, width and channels. */
typedef struct dml_slice2d_options {
    int begin[3], end[3];    /* the places that are taken, begin .. end - 1; an end of 0: the size */
    int step[3];             /* every step-th of them; 0: 1 */
    int before[3], after[3]; /* zeros that are put around what was taken */
} dml_slice2d_options;

/* x (H, W, C) -> along each axis, before + (end - begin) / step, rounded up, + after. NULL options: all of x.
   DML_ERROR_ARGUMENT for places that aren't there. */
DML_API dml_node *dml_slice2d(dml_node *x, const dml_slice2d_options *options);

/* The identity shortcut of a residual network between stages: every stride-th pixel of x, and zeros for
   channels that x doesn't have, half of them before its own and half (the larger) behind: x (H, W, C) ->
   (H / stride, W / stride, channels), rounded up. x itself for a stride of 1 and its own channels.
   Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2,
   option A. Which channels are padded is not said there; half and half is what is common. For all of them
   behind, use dml_slice2d with `after`. */
DML_API dml_node *dml_padded_shortcut2d(dml_node *x, int stride, int channels);

/* Each pixel `factor` times, 1 to 8, beside itself and below: x (H, W, C) -> (factor H, factor W, C). The
   nearest neighbour's, elsewhere called Upsample or UpSampling2D; dml_conv_transpose2d learns how. */
DML_API dml_node *dml_upsample2d(dml_node *x, int factor);

#endif
