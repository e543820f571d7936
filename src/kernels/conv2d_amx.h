/* conv2d_amx.h: convolutions by AMX, for pools that round factors to bf16: images are copied as bf16 once,
   with zeros around them, and tiles of 16 pixels are read from the copy where they lie, tap by tap. */
#ifndef DML_KERNELS_CONV2D_AMX_H
#define DML_KERNELS_CONV2D_AMX_H

#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_weights.h"

/* Whether the pool rounds to bf16 and its machine has AMX. */
DML__LOCAL bool dml__conv_has_amx(dml_pool *pool);

/* As dml__conv_pass_run, of factors rounded to bf16. Bitwise the same for any number of
   threads and any scratch; without any, patches and weights are gathered tile by tile. */
DML__LOCAL void dml__amx_pass_run(dml_pool *pool, const dml__conv_pass *pass);

/* As dml__wgrad_run, of factors rounded to bf16; but false, and nothing done, for long strides and for images
   so wide that few of their lines take much memory. An infinite or NaN x may make NaNs of taps that don't
   meet it as well. */
DML__LOCAL bool dml__amx_wgrad_run(dml_pool *pool, const dml__wgrad *job);

#endif
