/* blocks.h: running a kernel over an array in fixed blocks, which is what makes results the same for any
   number of threads. */
#ifndef DML_KERNELS_BLOCKS_H
#define DML_KERNELS_BLOCKS_H

#include "kernels/vector.h"
#include "thread/pool.h"

/* How many floats make a task worth handing to a thread (16 K floats: about 5 us of memory traffic). */
#define DML__BLOCK ((size_t)16384)

/* What an elementwise kernel reads and writes; what isn't there is NULL. An output may be an input too. */
#define DML__MAP_INPUTS 4
#define DML__MAP_OUTPUTS 3
typedef struct dml__map_operands {
    const float *in[DML__MAP_INPUTS];
    float *out[DML__MAP_OUTPUTS];
    float number[8];
    bool stream; /* to out[0], which isn't read; dml__map sets it */
} dml__map_operands;

/* Elements 0 .. n - 1, n a multiple of DML__LANES. A kernel works on a copy of the operands: vectors may
   alias anything, so that each store would make it read the pointers again. */
typedef void (*dml__map_kernel)(dml_isa isa, size_t n, const dml__map_operands *operands);

/* Where a call's arrays are larger than this together, an output that isn't read is written past the caches:
   its lines need not be read first. Below, whoever comes next finds it in the cache. */
#define DML__STREAM_FROM ((size_t)32 << 20)

/* Of `name_at`, which computes one vector, this makes the kernel `name_map`. A kernel with a beta takes the
   old output as in[2], or NULL for beta = 0, and beta as number[0]. Several loops, since a branch inside one
   would cost more than the arithmetic. `unrolled` is DML__BY_FOUR, or nothing where the arithmetic is long.
 */
#define DML__MAP(name, unrolled)                                                                             \
    DML__BODY void name##_map_body(size_t n, const dml__map_operands *operands)                              \
    {                                                                                                        \
        const dml__map_operands copy = *operands, *at = &copy;                                               \
        dml__vf value = { 0 };                                                                               \
        if (at->in[2]) {                                                                                     \
            unrolled for (size_t i = 0; i < n; i += DML__LANES)                                              \
            {                                                                                                \
                name##_at(at, i, &value);                                                                    \
                DML__STORE(at->out[0] + i, value + at->number[0] * DML__LOAD(at->in[2] + i));                \
            }                                                                                                \
        } else if (at->stream) {                                                                             \
            unrolled for (size_t i = 0; i < n; i += DML__LANES)                                              \
            {                                                                                                \
                name##_at(at, i, &value);                                                                    \
                dml__stream(at->out[0] + i, &value);                                                         \
            }                                                                                                \
            DML__STREAM_FENCE();                                                                             \
        } else {                                                                                             \
            unrolled for (size_t i = 0; i < n; i += DML__LANES)                                              \
            {                                                                                                \
                name##_at(at, i, &value);                                                                    \
                DML__STORE(at->out[0] + i, value);                                                           \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    DML__MAP_PER_ISA(name)

/* The base of such a kernel: one loop for all of them, since each would be long without vectors of 32 bytes.
 */
typedef void (*dml__map_vector)(const dml__map_operands *at, size_t i, dml__vf *value);
DML__LOCAL void dml__map_by_vectors(size_t n, const dml__map_operands *at, dml__map_vector vector);

#ifdef DML__HAS_AVX2
#define DML__MAP_PER_ISA(name)                                                                               \
    DML__COLD static void name##_vector(const dml__map_operands *at, size_t i, dml__vf *value)               \
    {                                                                                                        \
        name##_at(at, i, value);                                                                             \
    }                                                                                                        \
    static void name##_map_base(size_t n, const dml__map_operands *at)                                       \
    {                                                                                                        \
        dml__map_by_vectors(n, at, name##_vector);                                                           \
    }                                                                                                        \
    DML__AVX2_OR_BASE(name##_map, (size_t n, const dml__map_operands *at), (n, at))
#else
#define DML__MAP_PER_ISA(name) DML__PER_ISA(name##_map, (size_t n, const dml__map_operands *at), (n, at))
#endif

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

DML__BODY size_t dml__minimum(size_t a, size_t b)
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

DML__BODY size_t dml__divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif
