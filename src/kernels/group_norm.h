/* group_norm.h: group normalization on raw arrays.
   Source: Wu, He, "Group normalization", ECCV 2018. */
#ifndef DML_KERNELS_GROUP_NORM_H
#define DML_KERNELS_GROUP_NORM_H

#include "thread/pool.h"

/* Each of `samples` matrices of (pixels, channels), whose channels are cut into `groups` equal ones. */
typedef struct dml_group_norm_shape {
    size_t samples, pixels, channels, groups;
} dml_group_norm_shape;

/* Bitwise the same for any number of threads. `scale` and `shift` are (channels), or NULL: 1 and 0.
   y = scale (x - mean) / sqrt(variance + epsilon) + shift, where mean and variance are those of all numbers
   of a group in a sample, written for each channel of each: `statistics` is (samples, 2, channels). y may be
   x. */
DML_API void dml_group_norm_forward(dml_pool *pool, const dml_group_norm_shape *shape, const float *x,
                                    const float *scale, const float *shift, float epsilon, float *statistics,
                                    float *y);

/* What the gradients of shift and scale are sums over the samples of, into `parts` (2, samples, channels), of
   shift first; and dx = the gradient of x + beta dx, unless dx is NULL. dx may be dy; with beta = 0 it is not
   read. */
DML_API void dml_group_norm_backward(dml_pool *pool, const dml_group_norm_shape *shape, const float *x,
                                     const float *scale, float epsilon, const float *statistics,
                                     const float *dy, float *parts, float beta, float *dx);

#endif
