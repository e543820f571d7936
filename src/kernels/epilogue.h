/* epilogue.h: what a matrix product or a convolution does to its result while it is still in registers. */
#ifndef DML_KERNELS_EPILOGUE_H
#define DML_KERNELS_EPILOGUE_H

#include "base/platform.h"

typedef enum dml_activation { DML_ACTIVATION_NONE, DML_ACTIVATION_RELU } dml_activation;

/* result = activation(result + bias), the bias along the columns of a product, the filters of a convolution.
   Zero: nothing. A residual needs no word here: it is what the result's array holds, with beta = 1. */
typedef struct dml_epilogue {
    const float *bias; /* (columns), or NULL */
    dml_activation activation;
} dml_epilogue;

#endif
