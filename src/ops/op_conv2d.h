/* op_conv2d.h: the convolution layers. */
#ifndef DML_OPS_OP_CONV2D_H
#define DML_OPS_OP_CONV2D_H

#include "graph/graph.h"

typedef struct dml_conv2d_options {
    int filters;    /* output channels, at least 1: there is no default (dml_conv2d_with: the weights') */
    int kernel[2];  /* height, width; both 0: 3 (dml_conv2d_with: the weights'); one alone is refused */
    int stride[2];  /* both 0: 1 */
    int padding[2]; /* zeros on both sides; 0: none, which is what others call "valid" */
    bool no_bias;
    int dilation[2]; /* how far apart the taps lie; both 0: 1 */
    int groups;      /* a divisor of the channels and of the filters, which are then connected group by group;
                        as many as channels: depthwise; 0: 1 */
    int padding_sides[4]; /* instead of padding: zeros at the top, bottom, left and right */
    bool same; /* instead of both: the zeros that make OH = H / stride, rounded up; of an odd number of them
                  one more at the bottom and at the right (Keras' and PyTorch's "same") */
} dml_conv2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [filters, kh, kw,
   C / groups], He-initialised, bias zero. OH = (H + 2 padding - (kh - 1) dilation - 1) / stride + 1, where 2
   padding is the zeros of both sides. */
DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w
   [filters, kh, kw, C / groups] says how many filters and how large a kernel, and the options must not say
   otherwise; bias (filters) or NULL for none. NULL options: all defaults. */
DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                  const dml_conv2d_options *options);

/* As dml_conv2d_options, along the one axis. */
typedef struct dml_conv1d_options {
    int filters, kernel, stride, padding;
    bool no_bias;
    int dilation, groups;
    int padding_sides[2]; /* before and behind */
    bool same;
    bool causal; /* instead: all zeros before, as many as the taps reach back: no output looks ahead */
} dml_conv1d_options;

/* x (L, C) -> (OL, filters), weights [filters, k, C / groups], He-initialised, bias zero: dml_conv2d of
   images of height 1. */
DML_API dml_node *dml_conv1d(dml_node *x, const dml_conv1d_options *options);

/* The same on parameters of the caller's: w [filters, k, C / groups]. */
DML_API dml_node *dml_conv1d_with(dml_node *x, dml_node *w, dml_node *bias,
                                  const dml_conv1d_options *options);

#endif
