/* conv2d_product.h: convolutions as products of pairs of bf16, which are gathered from images while they are
   packed: where a dot product of pairs is an instruction (DML__BF16_AVX512), and packing needed in any case.
 */
#ifndef DML_KERNELS_CONV2D_PRODUCT_H
#define DML_KERNELS_CONV2D_PRODUCT_H

#include "kernels/conv2d.h"

/* As in conv2d.h, for arguments that have been checked. */
DML__LOCAL void dml__conv2d_product_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y);
DML__LOCAL void dml__conv2d_product_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                          const float *w, float beta, float *dx);
DML__LOCAL void dml__conv2d_product_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *dy, float beta, float *dw);

#endif
