/* conv2d_product.h: convolutions as products whose factors are gathered from images while they are packed:
   for pools that round factors, where packing is needed in any case. */
#ifndef DML_KERNELS_CONV2D_PRODUCT_H
#define DML_KERNELS_CONV2D_PRODUCT_H

#include "kernels/conv2d.h"

/* Fewer channels, of a group, aren't rounded: images as they come have three. What is saved by instructions
   for 16 bits is lost again on putting them in pairs. */
#define DML__ROUNDED_CHANNELS 4

/* Whether the pool rounds, and the shape, whose zeros have been replaced, has channels enough. */
DML__LOCAL bool dml__conv2d_is_rounded(const dml_pool *pool, const dml_conv2d_shape *shape);

/* As in conv2d.h, for arguments that have been checked. */
DML__LOCAL void dml__conv2d_product_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y);
DML__LOCAL void dml__conv2d_product_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                          const float *w, float beta, float *dx);
DML__LOCAL void dml__conv2d_product_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *dy, float beta, float *dw);

#endif
