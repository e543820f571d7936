/* op_local2d.h: locally connected layers: convolutions with weights of their own at every place. */
#ifndef DML_OPS_OP_LOCAL2D_H
#define DML_OPS_OP_LOCAL2D_H

#include "graph/graph.h"

typedef struct dml_local2d_options {
    int filters;   /* output channels, at least 1: there is no default (dml_local2d_with: the weights') */
    int kernel[2]; /* height, width; both 0: 3 */
    int stride[2]; /* both 0: 1 */
    bool no_bias;
} dml_local2d_options;

/* A layer with parameters of its own, Keras' LocallyConnected2D: x (H, W, C) -> (OH, OW, filters), weights
   [OH, OW, filters, kh kw C], He-initialised, bias [OH, OW, filters], zero. OH = (H - kh) / stride + 1; for
   padding, dml_pad or dml_slice2d before it. Source: LeCun, "Generalization and network design strategies",
   1989. */
DML_API dml_node *dml_local2d(dml_node *x, const dml_local2d_options *options);

/* The same on parameters of the caller's; bias or NULL for none. The kernel isn't seen in the weights' shape:
   the options say it. */
DML_API dml_node *dml_local2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                   const dml_local2d_options *options);

#endif
