/* conv2d_weights_lanes.h: the weight gradient of a first layer: of one channel under few filters. */
#ifndef DML_KERNELS_CONV2D_WEIGHTS_LANES_H
#define DML_KERNELS_CONV2D_WEIGHTS_LANES_H

#include "kernels/conv2d_weights.h"

/* Whether such a gradient has its vectors along pixels; that depends on its shape and the processor. */
DML__LOCAL bool dml__wgrad_lanes_fits(dml_pool *pool, const dml__wgrad *job);

/* As dml__wgrad_run; uses no scratch. */
DML__LOCAL void dml__wgrad_lanes_run(dml_pool *pool, const dml__wgrad *job);

#endif
