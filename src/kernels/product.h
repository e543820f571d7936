/* product.h: the blocked loop around the micro-kernel, which matrix products and convolutions share. */
#ifndef DML_KERNELS_PRODUCT_H
#define DML_KERNELS_PRODUCT_H

#include "base/platform.h"
#include "thread/pool.h"

/* k is cut into blocks of this many, always, and C is their sum in order. */
#define DML__PRODUCT_KC 256

/* One factor of a product: `lane` counts the rows of A, or the columns of B. `pack` writes lanes
   first .. first + lanes - 1 for k0 <= k < k0 + kc as a panel, out[(k - k0) * width + lane - first], with
   zeros in lanes lanes .. width - 1; lanes <= width <= DML__TILE_COLUMNS, kc <= DML__PRODUCT_KC. */
typedef struct dml__factor {
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    const void *source;
} dml__factor;

/* A plain matrix as the source of a factor: element (lane, k) is x[lane * lane_step + k * k_step]. One of the
   two steps is 1. */
typedef struct dml__matrix {
    const float *x;
    ptrdiff_t lane_step, k_step;
} dml__matrix;

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out);

/* out[k * width + lane] = x[lane * lane_step + k], lane < lanes, k < kc: for packers. */
DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out);

/* C = alpha A B + beta C + bias */
typedef struct dml__product {
    ptrdiff_t m, n, k;
    dml__factor a; /* m lanes */
    dml__factor b; /* n lanes */
    float alpha, beta;
    const float *bias; /* (n), or NULL; beta is then 0 */
    float *c;          /* (m, ldc), of which n columns count */
    ptrdiff_t ldc;
} dml__product;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. With less scratch than
   dml__product_scratch says it packs on the stack, in smaller blocks, and so packs more often. */
DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product);

/* What a product of that size uses, on the instruction set that dml_cpu_isa says; zeros for an empty one. */
DML__LOCAL dml_scratch dml__product_scratch(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k);

#endif
