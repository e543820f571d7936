/* rounded.h: products whose factors, floats in memory, are rounded to 16 bits while they are packed, and
   whose sums are f32's: what mixed precision multiplies. */
#ifndef DML_KERNELS_ROUNDED_H
#define DML_KERNELS_ROUNDED_H

#include "base/dtype.h"
#include "kernels/pack_pairs.h"
#include "kernels/product.h"
#include "thread/pool_internal.h"

typedef struct dml__rounded_factor {
    dml__factor factor; /* as it lies in memory */
    dml_isa isa;
    dml_dtype dtype;
    ptrdiff_t k;
    dml__pairs_source pairs; /* of a matrix, for a micro-kernel on pairs of bf16 */
} dml__rounded_factor;

typedef struct dml__rounded_product {
    dml__product product;
    dml__rounded_factor factors[2]; /* which the product's factors point to */
} dml__rounded_product;

/* The product of the factors rounded to DML_BF16 or DML_F16. To bf16, it runs on instructions for that where
   the pool's machine has them; otherwise, and for f16, on those for f32: products of rounded factors are
   exact there but for f16's smallest, so for each way |C - exact| <= 2 (k + 4) e (|alpha| |A| |B| + |beta C|
   + |bias|), e = 2^-24, A and B the rounded factors, but for denormals, which instructions for bf16 may take
   for 0. */
DML__LOCAL void dml__round_product(dml_pool *pool, dml_dtype dtype, const dml__product *product,
                                   dml__rounded_product *rounded);

/* Scratch that is enough for any such product, of which dml_bf16gemm_scratch says the most, and for the
   partial sums of convolutions by AMX (conv2d_amx_weights.c). */
static inline dml_scratch dml__rounded_scratch(void)
{
    const dml_scratch most = { 1310000, 1048576 };
    return most;
}

/* What dml__multiply multiplies: the product itself, or, where the pool rounds and the product has no kernel
   of its own, `rounded`, which is made of it. */
static inline const dml__product *dml__as_the_pool_rounds(dml_pool *pool, const dml__product *product,
                                                          dml__rounded_product *rounded)
{
    const dml_dtype dtype = dml__pool_rounds_to(pool);
    if (dtype == DML_F32 || product->kernel) return product;
    dml__round_product(pool, dtype, product, rounded);
    return &rounded->product;
}

#endif
