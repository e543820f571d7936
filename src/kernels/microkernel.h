/* microkernel.h: the innermost loop of all matrix products and convolutions, one for each instruction set. */
#ifndef DML_KERNELS_MICROKERNEL_H
#define DML_KERNELS_MICROKERNEL_H

#include "base/platform.h"

/* A panel of A times a panel of B into a tile of C:
       C[i][j] = alpha * sum over p < k of a[p * rows + i] * b[p * b_step + j]  +  beta * C[i][j]
   With beta = 0, C is not read. */
typedef struct dml__tile {
    int k;
    const float *a; /* (k, rows) */
    const float *b; /* (k, b_step), of which the first columns count */
    ptrdiff_t b_step;
    float alpha, beta;
    float *c; /* (rows, ldc) */
    ptrdiff_t ldc;
} dml__tile;

/* `run` takes any tile of 1 .. rows rows and 1 .. vectors times `lanes` columns. An element's bits depend on
   its own row of A and column of B alone, not on the tile it is computed in: it is one chain of multiply-adds
   over p in order. That is why results don't change with the number of threads. */
typedef struct dml__microkernel {
    int rows, vectors, lanes;
    void (*run)(const dml__tile *tile, int rows, int vectors);
} dml__microkernel;

/* Bounds over all instruction sets. */
#define DML__TILE_ROWS 14
#define DML__TILE_COLUMNS 32

/* The micro-kernel for dml_cpu_isa(). */
DML__LOCAL const dml__microkernel *dml__microkernel_get(void);

#endif
