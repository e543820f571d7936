/* conv2d_planes.h: a convolution's pass onto few columns, whose vectors go along pixels. */
#ifndef DML_KERNELS_CONV2D_PLANES_H
#define DML_KERNELS_CONV2D_PLANES_H

#include "kernels/conv2d_pass.h"

/* How many passes, from the first on, are better run so, together; that depends on their shapes and the
   processor. They share a source, batch, depth, columns, strides and dilation. */
DML__LOCAL int dml__conv_planes_fit(dml_pool *pool, const dml__conv_pass *passes, int count);

/* As dml__conv_pass_run and dml__conv_pass_scratch, of passes that fit. */
DML__LOCAL void dml__conv_planes_run(dml_pool *pool, const dml__conv_pass *passes, int count);
DML__LOCAL dml_scratch dml__conv_planes_scratch(const dml__conv_pass *passes, int count);

#endif
