/* pack.h: the factors of a product, and copying parts of them into panels that a micro-kernel reads in order.
 */
#ifndef DML_KERNELS_PACK_H
#define DML_KERNELS_PACK_H

#include "base/platform.h"

/* One factor of a product: `lane` counts the rows of A, or the columns of B. `pack` writes lanes
   first .. first + lanes - 1 for k0 <= k < k0 + kc as a panel, out[(k - k0) * width + lane - first], with
   zeros in lanes lanes .. width - 1; lanes <= width. */
typedef struct dml__factor {
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    const void *source;
} dml__factor;

/* A plain matrix as the source of a factor, which is then used where it lies if that is as fast: element
   (lane, k) is x[lane * lane_step + k * k_step]. One of the two steps is 1. */
typedef struct dml__matrix {
    const float *x;
    ptrdiff_t lane_step, k_step;
} dml__matrix;

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out);

/* out[k * width + lane] = x[lane * lane_step + k], lane < lanes, k < kc: for packers. */
DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out);

#endif
