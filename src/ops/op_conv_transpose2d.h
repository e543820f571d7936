/* op_conv_transpose2d.h: transposed convolutions, also called deconvolutions: the layers that make images
   larger, as the input's gradient of a convolution does. */
#ifndef DML_OPS_OP_CONV_TRANSPOSE2D_H
#define DML_OPS_OP_CONV_TRANSPOSE2D_H

#include "graph/graph.h"

typedef struct dml_conv_transpose2d_options {
    int filters;           /* output channels, at least 1: there is no default (_with: the weights') */
    int kernel[2];         /* height, width; both 0: 3 (_with: the weights') */
    int stride[2];         /* how far apart in y the pixels of x spread; both 0: 1 */
    int padding[2];        /* lines that are left out of y on both sides */
    int output_padding[2]; /* lines that y has more at the bottom and at the right: which of the sizes that a
                              convolution of that stride would make the same of; less than the stride or the
                              dilation */
    bool no_bias;
    int dilation[2]; /* how far apart the taps lie; both 0: 1 */
    int groups;      /* a divisor of the channels and of the filters; 0: 1 */
} dml_conv_transpose2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [C, kh, kw, filters /
   groups], bias zero: what the input's gradient of a convolution (dml_conv2d) from (OH, OW, filters) to x
   would be, and PyTorch's ConvTranspose2d. OH = (H - 1) stride - 2 padding + (kh - 1) dilation + 1 +
   output_padding. The weights are He-initialised for as many numbers as each output is the mean sum of, kh kw
   C / (groups stride stride). Source: Dumoulin, Visin, "A guide to convolution arithmetic for deep learning",
   2016, chapter 4. */
DML_API dml_node *dml_conv_transpose2d(dml_node *x, const dml_conv_transpose2d_options *options);

/* The same on parameters of the caller's: w [C, kh, kw, filters / groups] says how large a kernel, and how
   many filters; the options must not say otherwise. bias (filters) or NULL for none. NULL options: all
   defaults. */
DML_API dml_node *dml_conv_transpose2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                            const dml_conv_transpose2d_options *options);

/* As dml_conv_transpose2d_options, along the one axis. */
typedef struct dml_conv_transpose1d_options {
    int filters, kernel, stride, padding, output_padding;
    bool no_bias;
    int dilation, groups;
} dml_conv_transpose1d_options;

/* x (L, C) -> (OL, filters), weights [C, k, filters / groups]: dml_conv_transpose2d of images of height 1. */
DML_API dml_node *dml_conv_transpose1d(dml_node *x, const dml_conv_transpose1d_options *options);
DML_API dml_node *dml_conv_transpose1d_with(dml_node *x, dml_node *w, dml_node *bias,
                                            const dml_conv_transpose1d_options *options);

#endif
