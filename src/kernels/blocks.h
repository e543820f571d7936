/* blocks.h: running a kernel over an array in fixed blocks, which is what makes results the same for any
   number of threads. */
#ifndef DML_KERNELS_BLOCKS_H
#define DML_KERNELS_BLOCKS_H

#include "kernels/vector.h"
#include "thread/pool.h"

/* How many floats make a task worth handing to a thread (16 K floats: about 5 us of memory traffic). */
#define DML__BLOCK ((size_t)16384)

/* What an elementwise kernel reads and writes; what isn't there is NULL. An output may be an input too. */
#define DML__MAP_INPUTS 3
#define DML__MAP_OUTPUTS 2
typedef struct dml__map_operands {
    const float *in[DML__MAP_INPUTS];
    float *out[DML__MAP_OUTPUTS];
    float number[4];
} dml__map_operands;

/* Elements 0 .. n - 1, n a multiple of DML__LANES. */
typedef void (*dml__map_kernel)(dml_isa isa, size_t n, const dml__map_operands *operands);

/* Runs the kernel over n elements, any n. A rest shorter than a vector is copied to a padded one, so that
   every element goes through the same instructions wherever it lies. */
DML__LOCAL void dml__map(dml_pool *pool, size_t n, dml__map_kernel kernel, const dml__map_operands *operands);

/* The same on the calling thread, for elements begin .. end - 1. */
DML__LOCAL void dml__map_range(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *operands,
                               size_t begin, size_t end);

/* Reduces elements x[0 .. n - 1] (and y's, if not NULL) to one number, any n > 0. */
typedef void (*dml__reduce_kernel)(dml_isa isa, size_t n, const float *x, const float *y, double *result);

/* Runs the kernel over at most DML__PARTIALS blocks that depend on n alone; returns how many, 0 for n = 0. */
#define DML__PARTIALS 256
DML__LOCAL int dml__reduce(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                           const float *y, double partial[DML__PARTIALS]);

/* Splits `count` items (rows, images) of `size` floats each into tasks of about DML__BLOCK floats: how many
   items a task takes, at least 1. */
static inline size_t dml__items_per_task(size_t size)
{
    return size && size < DML__BLOCK ? DML__BLOCK / size : 1;
}

static inline size_t dml__minimum(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Whether an array of these sizes, of which 0 counts as 1, can be addressed; none is negative. */
static inline bool dml__floats_fit(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t left = (int64_t)(PTRDIFF_MAX / (ptrdiff_t)sizeof(float));
    left /= a ? a : 1;
    left /= b ? b : 1;
    left /= c ? c : 1;
    return left / (d ? d : 1) > 0;
}

static inline size_t dml__divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif
