/* product.h: the blocked loop around the micro-kernel, which matrix products and convolutions share. */
#ifndef DML_KERNELS_PRODUCT_H
#define DML_KERNELS_PRODUCT_H

#include "base/platform.h"
#include "kernels/epilogue.h"
#include "kernels/microkernel.h"
#include "kernels/pack.h"
#include "thread/pool.h"

/* C = activation(alpha A B + beta C + bias) */
typedef struct dml__product {
    ptrdiff_t m, n, k;
    dml__factor a; /* m lanes */
    dml__factor b; /* n lanes */
    float alpha, beta;
    dml_epilogue epilogue; /* its bias (n) */
    float *c;              /* (m, ldc), of which n columns count */
    ptrdiff_t ldc;
    const dml__microkernel *kernel; /* NULL: the one on f32 for dml_cpu_isa */
    float *panels;                  /* B's, by dml__pack_ahead; NULL: it is packed where it has to be */
} dml__product;

/* False for an activation that there isn't. */
static inline bool dml__epilogue_is_known(const dml_epilogue *epilogue)
{
    return !epilogue || epilogue->activation == DML_ACTIVATION_NONE ||
           epilogue->activation == DML_ACTIVATION_RELU;
}

/* Bitwise the same for any number of threads and any scratch; allocates nothing. With less scratch than
   dml__product_scratch says it packs on the stack, in smaller blocks, and so packs more often. */
DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product);

/* The same by one worker alone, inside a loop of the pool, unless the product is one of those whose k is
   shared out in chunks: then nothing is done, and the result is false. */
DML__LOCAL bool dml__multiply_alone(dml_pool *pool, int worker, const dml__product *product);

/* What such a product uses, on the instruction set that dml_cpu_isa says; zeros for an empty one. Only the
   sizes, and how the factors lie, count: where they are may be NULL. */
DML__LOCAL dml_scratch dml__product_scratch(const dml__product *product);

#endif
