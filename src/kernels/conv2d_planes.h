/* conv2d_planes.h: a convolution's pass onto few columns, whose vectors go along pixels. */
#ifndef DML_KERNELS_CONV2D_PLANES_H
#define DML_KERNELS_CONV2D_PLANES_H

#include "kernels/conv2d_pass.h"

/* Whether a pass without bias and activation is better run so; that depends on its shape and the processor.
 */
DML__LOCAL bool dml__conv_planes_fits(dml_pool *pool, const dml__conv_pass *pass);

/* As dml__conv_pass_run and dml__conv_pass_scratch, of several that share a source, batch, depth, columns,
   strides and dilation, each of which fits. */
DML__LOCAL void dml__conv_planes_run(dml_pool *pool, const dml__conv_pass *passes, int count);
DML__LOCAL dml_scratch dml__conv_planes_scratch(const dml__conv_pass *passes, int count);

#endif
