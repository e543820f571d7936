/* product_range.h: any range of a product, computed by one worker: packing, and the tiles. product_plan.c
   decides what is packed, in what blocks; product.c shares a product out in such ranges. */
#ifndef DML_KERNELS_PRODUCT_RANGE_H
#define DML_KERNELS_PRODUCT_RANGE_H

#include "kernels/product.h"
#include "kernels/sizes.h"
#include "thread/pool_internal.h"

/* The rows and columns of C, and the part of k, that one task computes. */
typedef struct dml__range {
    ptrdiff_t i0, i1, j0, j1, k0, k1;
} dml__range;

/* What is computed: the product, or, for a narrow C, the transposed one, whose vectors are made of C's rows,
   which there are more of than of columns. The caller's C stays as it is. */
typedef struct dml__job {
    dml__product product;
    const dml__microkernel *kernel;
    dml_isa isa;
    ptrdiff_t l1, l2; /* bytes of the first and second cache */
    size_t l3;
    bool transposed; /* product.c is then the transpose of the caller's C, and the bias goes along rows */
    ptrdiff_t rows, full; /* of a tile at most; full columns are whole vectors */
} dml__job;

DML__LOCAL dml__job dml__plan_product(dml__machine machine, const dml__product *product);

/* Where element (i, j) of the job's product lies. */
static inline float *dml__job_c(const dml__job *job, ptrdiff_t i, ptrdiff_t j)
{
    return job->product.c + (job->transposed ? j * job->product.ldc + i : i * job->product.ldc + j);
}

/* Where a block of columns ends that should end at `end`, of columns that end at `last`: a rest narrower than
   a tile gets one from the block before it. */
static inline ptrdiff_t dml__cut_columns(const dml__job *job, ptrdiff_t end, ptrdiff_t last)
{
    if (end >= last) return last;
    return last - end < job->kernel->least_columns ? end - job->kernel->least_columns : end;
}

/* With the worker's scratch if that is enough. */
DML__LOCAL void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range);

/* Packs all of B, of f32, into product.panels, for several products in turn that differ in A and C alone: the
   job of each is planned with these panels. They take as many floats as dml__panel_floats says, on any
   instruction set. */
DML__LOCAL void dml__pack_ahead(const dml__job *job);
static inline size_t dml__panel_floats(size_t n, size_t k)
{
    return (n + 15) / 16 * 16 * k;
}

/* Bytes of a worker's scratch with which that packs nothing twice. */
DML__LOCAL size_t dml__range_scratch(const dml__job *job, const dml__range *range);

#endif
