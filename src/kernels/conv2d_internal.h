/* conv2d_internal.h: for the ops, which refuse a shape before anything runs. */
#ifndef DML_KERNELS_CONV2D_INTERNAL_H
#define DML_KERNELS_CONV2D_INTERNAL_H

#include "base/platform.h"
#include "kernels/conv2d.h"

/* Whether the functions of conv2d.h take the shape. */
DML__LOCAL bool dml__conv2d_takes(const dml_conv2d_shape *shape);

#endif
