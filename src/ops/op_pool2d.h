/* op_pool2d.h: pooling layers. */
#ifndef DML_OPS_OP_POOL2D_H
#define DML_OPS_OP_POOL2D_H

#include "graph/graph.h"

typedef struct dml_pool2d_options {
    int kernel[2];  /* height, width; both 0: 2; one alone is refused */
    int stride[2];  /* both 0: the kernel's */
    int padding[2]; /* on both sides, smaller than the kernel; 0: none. Padding never wins, and is not counted
                       unless count_include_pad says so */
    bool ceil_mode; /* windows may end behind the padding, as long as they begin before its last side: OH is
                       rounded up */
    bool count_include_pad; /* a mean is of all places of its window in the image and the padding; PyTorch's
                               default, and not this one's */
    bool same; /* instead of padding: OH = H / stride, rounded up, by windows that reach over the edges by as
                  much, one more at the bottom and at the right (Keras' "same") */
} dml_pool2d_options;

/* x (H, W, C) -> (OH, OW, C): the largest, or the mean, of each window. OH = (H + 2 padding - kernel) /
   stride
   + 1. NULL options: 2 x 2 windows side by side. */
DML_API dml_node *dml_max_pool2d(dml_node *x, const dml_pool2d_options *options);
DML_API dml_node *dml_avg_pool2d(dml_node *x, const dml_pool2d_options *options);

/* x (H, W, C) -> (C): the mean, or the largest, of each channel: a pool over the whole image, flattened. */
DML_API dml_node *dml_global_avg_pool2d(dml_node *x);
DML_API dml_node *dml_global_max_pool2d(dml_node *x);

/* As dml_pool2d_options, along the one axis. */
typedef struct dml_pool1d_options {
    int kernel, stride, padding;
    bool ceil_mode, count_include_pad, same;
} dml_pool1d_options;

/* x (L, C) -> (OL, C), and (C): the same of images of height 1. */
DML_API dml_node *dml_max_pool1d(dml_node *x, const dml_pool1d_options *options);
DML_API dml_node *dml_avg_pool1d(dml_node *x, const dml_pool1d_options *options);
DML_API dml_node *dml_global_avg_pool1d(dml_node *x);
DML_API dml_node *dml_global_max_pool1d(dml_node *x);

#endif
