/* conv2d_ring.h: convolutions in which every channel has kernels of its own, one or several, of any size. */
#ifndef DML_KERNELS_CONV2D_RING_H
#define DML_KERNELS_CONV2D_RING_H

#include "kernels/conv2d.h"

/* Shapes are those of conv2d.h without their zeros. Whether one has as many groups as channels, and windows
   on its images that these loops can copy; the others are left to the loop over groups. */
DML__LOCAL bool dml__conv2d_ring_fits(const dml_conv2d_shape *shape);

/* As in conv2d.h, for shapes that fit and known epilogues. Bitwise the same for any number of threads. */
DML__LOCAL void dml__conv2d_ring_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                         const float *w, float beta, const dml_epilogue *epilogue, float *y);
DML__LOCAL void dml__conv2d_ring_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                       const float *w, float beta, float *dx);
DML__LOCAL void dml__conv2d_ring_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                         const float *dy, float beta, float *dw);

#endif
