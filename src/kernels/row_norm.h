/* row_norm.h: layer and RMS normalization on raw arrays: each row by its own numbers.
   Sources: Ba, Kiros, Hinton, "Layer normalization", 2016; Zhang, Sennrich, "Root mean square layer
   normalization", NeurIPS 2019. */
#ifndef DML_KERNELS_ROW_NORM_H
#define DML_KERNELS_ROW_NORM_H

#include "thread/pool.h"

typedef struct dml_row_normalization {
    const float *scale, *shift; /* (columns), or NULL: 1 and 0 */
    float epsilon;
    bool by_square; /* of the root of the mean square: no mean is subtracted */
} dml_row_normalization;

/* x, y, dy, dx are (rows, columns). Bitwise the same for any number of threads. A row that fits the first
   cache is read from memory once. */

/* y = scale (x - mean) inverse + shift, where mean is that of the row (0 by square) and inverse is
   1 / sqrt(the mean of (x - mean)^2 + epsilon). `statistics`, (rows, 2), gets mean and inverse. y may be x.
 */
DML_API void dml_row_norm_forward(dml_pool *pool, size_t rows, size_t columns, const float *x,
                                  const dml_row_normalization *by, float *statistics, float *y);

/* dx = the gradient of x + beta dx, and the parts that the gradients of shift and scale are the sums of:
   (2, parts, columns), of shift first, with dml_row_norm_parts for `parts`. Neither is computed where it is
   NULL. dx may be dy; with beta = 0 it is not read. */
DML_API void dml_row_norm_backward(dml_pool *pool, size_t rows, size_t columns, const float *x,
                                   const dml_row_normalization *by, const float *statistics, const float *dy,
                                   float beta, float *dx, float *parts);
DML_API size_t dml_row_norm_parts(size_t rows, size_t columns);

#endif
