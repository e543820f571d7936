/* norm_internal.h: what group normalization needs of batch normalization. */
#ifndef DML_KERNELS_NORM_INTERNAL_H
#define DML_KERNELS_NORM_INTERNAL_H

#include "kernels/norm.h"

/* dml_batch_norm_backward_input where mean and variance are those of all numbers of a group of channels, of
   `groups` equal ones. */
DML__LOCAL void dml__norm_backward_groups(dml_pool *pool, size_t rows, size_t channels, size_t groups,
                                          const float *x, const dml_normalization *by, const float *dy,
                                          const float *dscale, const float *dshift, float beta, float *dx);

#endif
