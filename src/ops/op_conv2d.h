/* op_conv2d.h: the convolution layer. */
#ifndef DML_OPS_OP_CONV2D_H
#define DML_OPS_OP_CONV2D_H

#include "graph/graph.h"

typedef struct dml_conv2d_options {
    int filters;    /* output channels, at least 1: there is no default (dml_conv2d_with: the weights') */
    int kernel[2];  /* height, width; 0: 3 (dml_conv2d_with: the weights') */
    int stride[2];  /* 0: 1 */
    int padding[2]; /* zeros on both sides; 0: none */
    bool no_bias;
    int dilation[2]; /* how far apart the taps lie; 0: 1 */
    int groups;      /* a divisor of the channels and of the filters, which are then connected group by group;
                        as many as channels: depthwise; 0: 1 */
} dml_conv2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [filters, kh, kw,
   C / groups], He-initialised, bias zero. OH = (H + 2 padding - (kh - 1) dilation - 1) / stride + 1. */
DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w
   [filters, kh, kw, C / groups] says how many filters and how large a kernel, and the options must not say
   otherwise; bias (filters) or NULL for none. NULL options: all defaults. */
DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                  const dml_conv2d_options *options);

#endif
