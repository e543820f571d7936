/* norm_loops.h: the loops of batch normalization over elements. */
#ifndef DML_KERNELS_NORM_LOOPS_H
#define DML_KERNELS_NORM_LOOPS_H

#include "base/cpu.h"

#define DML__NORM_MOST ((size_t)512) /* columns that are done at once */

/* Backward through a relu: which elements dy counts for, by y = factor (x - mean) + shift, computed as
   forward computes it, bit for bit. */
typedef struct dml__norm_gate {
    const float *factor, *shift; /* of each column */
    int32_t open;                /* -1: there is no relu, and all count; else 0 */
} dml__norm_gate;

/* A matrix of rows that lie `stride` apart; the sums are added to first[c], second[c], c < width. */
typedef struct dml__norm_matrix {
    size_t rows, stride, width;
    const float *x, *dy;
    const float *center; /* (width) */
    dml__norm_gate gate;
    double *first, *second;
} dml__norm_matrix;

/* The sums of x - center and of (x - center)^2; or of dy, where it counts, and of dy (x - center). */
DML__LOCAL void dml__norm_sum(dml_isa isa, const dml__norm_matrix *m);

typedef struct dml__norm_map {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_task;
    const float *x, *dy; /* from the group's first column on; dy NULL: forward */
    float *out;
    float beta;
    int32_t open; /* -1: there is no relu; else 0 */
    /* For each column of a wide row: forward: factor (x - mean) + shift; backward: factor dy +
       distance (x - mean) + base, for dy that counts. */
    float mean[DML__NORM_MOST] __attribute__((aligned(64))); /* the others follow on lines of their own */
    float factor[DML__NORM_MOST], shift[DML__NORM_MOST], distance[DML__NORM_MOST], base[DML__NORM_MOST];
} dml__norm_map;

/* Elements [at, at + rows * stride) in rows of `width`. */
DML__LOCAL void dml__norm_map_part(dml_isa isa, const dml__norm_map *map, size_t at, size_t rows,
                                   size_t stride, size_t width);

/* How many columns these take at a time. */
DML__LOCAL size_t dml__norm_strip_width(dml_isa isa);

#endif
