/* conv2d_internal.h: what others than its callers ask of conv2d.h. */
#ifndef DML_KERNELS_CONV2D_INTERNAL_H
#define DML_KERNELS_CONV2D_INTERNAL_H

#include "base/platform.h"
#include "kernels/conv2d.h"

/* Whether the functions of conv2d.h take the shape: for the ops, which refuse one before anything runs. */
DML__LOCAL bool dml__conv2d_takes(const dml_conv2d_shape *shape);

/* Fewer channels, of a group, aren't rounded where the pool rounds, unless one tap makes them a product:
   images as they come have three, which use little of what instructions for 16 bits save. */
#define DML__ROUNDED_CHANNELS 4

/* Whether the pool rounds the factors of a shape, whose zeros have been replaced. */
DML__LOCAL bool dml__conv2d_is_rounded(const dml_pool *pool, const dml_conv2d_shape *shape);

#endif
