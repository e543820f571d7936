/* op_conv_internal.h: what the layers over images share with those over lines, which are images of height 1.
 */
#ifndef DML_OPS_OP_CONV_INTERNAL_H
#define DML_OPS_OP_CONV_INTERNAL_H

#include "graph/op.h"
#include "kernels/conv2d.h"
#include "ops/op_conv2d.h"

/* Height, width or channels of samples (H, W, C), or of (L, C) as (1, L, C). Of weights, behind their filters
   (`leading` is 1), the kernel's height and width, and channels. */
static inline int dml__image_dim(const dml_shape *shape, int leading, int axis)
{
    if (shape->ndim == leading + 2 && axis == 0) return 1;
    return shape->dims[leading + axis - (shape->ndim == leading + 2)];
}

/* The other way round: where an axis of images lies in a shape of `ndim` dimensions, or -1. */
static inline int dml__image_axis(int ndim, int axis)
{
    return axis - (ndim == 2);
}

/* What was said of neither axis is `value`, along lines of the second. What was said of one alone stays 0,
   and is refused: who writes { 5 } means { 5, 5 }, mostly. */
static inline void dml__default_pair(bool lines, int pair[2], int value)
{
    if (pair[1] || (!lines && pair[0])) return;
    pair[1] = value;
    if (!lines) pair[0] = value;
}

/* "3 x 5" of two sizes, "5" of a line's, which has `ndim` 2. */
DML__LOCAL const char *dml__conv_pair(int ndim, const int size[2], char text[32]);

/* For infer: input 0 is f32 samples (H, W, C), where `ndim` is 3, or (L, C); and input 1, weights whose
   dimensions are these, has one more (NULL: there are none). */
DML__LOCAL dml_status dml__check_conv_input(const dml_node *node, int ndim, const char *weights);

/* For infer: `filters` and `channels` x kernel of the weights, as the options and x have them, and the bias.
 */
DML__LOCAL dml_status dml__check_conv_parameters(const dml_node *node, int first, const int kernel[2],
                                                 int last, int units);

/* For infer: sizes that aren't there. */
DML__LOCAL dml_status dml__check_conv_steps(const dml_node *node, const int stride[2], const int padding[2],
                                            const int dilation[2]);

/* For infer, once the node's shape is set: a padded image that can't be addressed. `shape` is of one sample,
   and y what comes out, which the graph refuses itself where it is too large. */
DML__LOCAL dml_status dml__check_conv_reach(const dml_node *node, const dml_conv2d_shape *shape);

/* The launch of a kernel of gpu/conv2d.cl for a shape that has all its fields. */
DML__LOCAL dml_launch dml__conv_launch(const dml_conv2d_shape *s, const char *kernel, size_t size_x,
                                       size_t size_y);

/* Along an axis of filters or channels, whose tiles of 64 (tiles.cl) don't reach from one group into another.
 */
DML__LOCAL size_t dml__conv_tiled(int size, int groups);

/* The gradient of input 1, the weights of a convolution of `s` whose input is x and whose output's gradient
 * is dy. */
DML__LOCAL dml_status dml__conv_weight_gradient(const dml__run *run, const dml_node *node,
                                                const dml_conv2d_shape *s, dml_ref x, dml_ref dy);

/* w and, unless no_bias, bias, of a layer that `op` will be the next node of. `fan_in` is how many weights an
   output is the sum of. False when they can't be had. */
DML__LOCAL bool dml__conv_parameters(dml_graph *graph, const dml__op *op, dml_shape weights, double fan_in,
                                     int units, bool no_bias, dml_node *parameter[2]);

/* The layers (conv2d and conv1d, whose options it has been given as those of an image of height 1). */
DML__LOCAL dml_node *dml__conv_with(const dml__op *op, dml_node *x, dml_node *w, dml_node *bias,
                                    const dml_conv2d_options *options);
DML__LOCAL dml_node *dml__conv_create(const dml__op *op, dml_node *x, const dml_conv2d_options *options);

/* What lies before the image along an axis, in a node of one of these. */
DML__LOCAL int dml__conv_pad_before(const dml_node *node, int axis);

#endif
