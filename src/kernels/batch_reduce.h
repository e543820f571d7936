/* microkernel.h: the innermost loop of all matrix products and convolutions, one for each instruction set. */
#ifndef DML_KERNELS_BATCH_REDUCE_H
#define DML_KERNELS_BATCH_REDUCE_H

#include "base/platform.h"

/* Bounds over all instruction sets. */
#define DML__N_TILE_ROWS 8
#define DML__N_TILE_VECTORS 4
#define DML__N_TILE_COLUMNS 64

/* A tile of C as a sum of small products, over a list of blocks (batch-reduce GEMM: Georganas et al., arXiv
   1906.06440):
       C[i][j] = alpha * sum over t < blocks, p < k of a[i][a_at[t] + p * a_step] * b[b_at[t] + p * b_step +
   j]
                 + beta * C[i][j] + bias[j]
   and then the activation. With beta = 0, C is not read. The rows of A and C may lie anywhere, so that a
   factor is used where it is: rows of a matrix (a_step = 1), columns of one (a_step = its leading dimension),
   a packed panel (a_step = its width), pixels of an image, whose taps are the blocks. */
typedef struct dml__n_tile {
    int rows, columns;            /* 1 .. the kernel's rows, 1 .. vectors * lanes */
    int blocks, k;                /* k of each block */
    const ptrdiff_t *a_at, *b_at; /* (blocks) */
    const float *a[DML__N_TILE_ROWS];
    ptrdiff_t a_step;
    const float *b; /* whole vectors are read of it: columns rounded up to lanes */
    ptrdiff_t b_step;
    float alpha, beta;
    const float *bias; /* (columns), or NULL */
    bool relu;
    float *c[DML__N_TILE_ROWS]; /* of which `columns` are written */
} dml__n_tile;

/* `run` takes any tile of 1 .. rows rows and 1 .. vectors * lanes columns; and, as thin_vectors * lanes, more
   columns when it has at most thin_rows rows. An element's bits depend on its own row of A and column of B
   alone, not on the tile it is computed in: it is one chain of multiply-adds over t and p in order. That is
   why results don't change with the number of threads. */
typedef struct dml__n_microkernel {
    int rows, vectors, lanes, thin_rows, thin_vectors;
    void (*run)(const dml__n_tile *tile);
} dml__n_microkernel;

/* The micro-kernel for dml_cpu_isa(). */
DML__LOCAL const dml__n_microkernel *dml__n_microkernel_get(void);

#endif
