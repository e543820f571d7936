/* op_pool2d.h: pooling layers. */
#ifndef DML_OPS_OP_POOL2D_H
#define DML_OPS_OP_POOL2D_H

#include "graph/graph.h"

typedef struct dml_pool2d_options {
    int kernel[2];  /* height, width; 0: 2 */
    int stride[2];  /* 0: the kernel's */
    int padding[2]; /* on both sides, smaller than the kernel; 0: none. Padding never wins and is never
                       counted */
} dml_pool2d_options;

/* x (H, W, C) -> (OH, OW, C): the largest, or the mean, of each window. NULL options: 2 x 2 windows side by
 * side. */
DML_API dml_node *dml_max_pool2d(dml_node *x, const dml_pool2d_options *options);
DML_API dml_node *dml_avg_pool2d(dml_node *x, const dml_pool2d_options *options);

/* x (H, W, C) -> (C): the mean of each channel. It is dml_avg_pool2d over the whole image, flattened. */
DML_API dml_node *dml_global_avg_pool2d(dml_node *x);

#endif
