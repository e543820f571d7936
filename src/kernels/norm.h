/* norm.h: batch normalization on raw arrays.
   Source: Ioffe, Szegedy, "Batch normalization", ICML 2015. */
#ifndef DML_KERNELS_NORM_H
#define DML_KERNELS_NORM_H

#include "kernels/epilogue.h"
#include "thread/pool.h"

/* x, y, dy, dx are (rows, channels); images of any size are rows of pixels. What belongs to a channel is
   (channels). All are bitwise the same for any number of threads. */

/* The mean and the variance (the mean square of the distance from it) of each channel; zeros for no rows. One
   reading of x: sums of distances from the mean of a few rows, in float over at most 128 rows, the rest in
   double. */
DML_API void dml_batch_statistics(dml_pool *pool, size_t rows, size_t channels, const float *x, float *mean,
                                  float *variance);

/* y = scale (x - mean) / sqrt(variance + epsilon) + shift, and of that its activation. */
typedef struct dml_normalization {
    const float *mean, *variance; /* (channels) */
    const float *scale, *shift;   /* (channels), or NULL: 1 and 0 */
    float epsilon;
    dml_activation activation;
} dml_normalization;

/* y may be x. */
DML_API void dml_batch_norm_forward(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                    const dml_normalization *by, float *y);

/* The gradients of scale and shift: dscale = sum of dy (x - mean) / sqrt(variance + epsilon),
   dshift = sum of dy. Here and below dy counts where y is above 0 for a relu, which is found again from x. */
DML_API void dml_batch_norm_backward_parameters(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                                const dml_normalization *by, const float *dy, float *dscale,
                                                float *dshift);

/* dx = the gradient of x + beta dx. Where mean and variance are those of x itself, it flows through them too,
   by what the function above gave; where they are constants, dscale and dshift are NULL. dx may be dy; with
   beta = 0 it is not read. */
DML_API void dml_batch_norm_backward_input(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                           const dml_normalization *by, const float *dy, const float *dscale,
                                           const float *dshift, float beta, float *dx);

#endif
