/* conv2d_tall.h: tall tiles: one vector of columns under up to 30 rows, which convolutions of few filters are
 * made of. */
#ifndef DML_KERNELS_CONV2D_TALL_H
#define DML_KERNELS_CONV2D_TALL_H

#include "base/cpu.h"
#include "base/platform.h"

#define DML__TALL_GROUPS 5
#define DML__TALL_LEAST 5 /* rows of a group */

/* As a dml__tile (microkernel.h), but that its rows are groups, in each of which they lie a step apart:
       C[g][i][j] = relu(beta C[g][i][j] + bias[j] + sum of A * B over t < blocks and p < k), where
       A = a[g][a_at[t] + p a_step + i row_step],  B = b[b_at[t] + p b_step + j],  C = c[g][i c_step + j]. */
typedef struct dml__tall_tile {
    int columns; /* 1 .. 16 */
    int size;    /* rows of a group: dml__tall_size */
    int blocks, k;
    const ptrdiff_t *a_at, *b_at; /* (blocks) */
    ptrdiff_t a_step, row_step, c_step;
    const float *b;
    ptrdiff_t b_step;
    bool b_narrow; /* lines of B end with the last column, and not with a vector */
    float beta;
    const float *bias; /* (columns), or NULL */
    bool relu;
    int groups; /* that are there already; 0 to begin with */
    const float *a[DML__TALL_GROUPS];
    float *c[DML__TALL_GROUPS];
    int left_out[DML__TALL_GROUPS]; /* so many first rows of a group belong to the group before it */
} dml__tall_tile;

DML__LOCAL bool dml__tall_is_there(dml_isa isa);

/* Rows of a group that so many runs of so many rows, at least DML__TALL_LEAST, are best cut into. */
DML__LOCAL int dml__tall_size(ptrdiff_t rows, ptrdiff_t runs, bool b_narrow);

/* Adds a run of rows, and computes the tiles that are full; the last one is computed by dml__tall_end. */
DML__LOCAL void dml__tall_add(dml__tall_tile *tile, const float *a, float *c, ptrdiff_t rows);
DML__LOCAL void dml__tall_end(dml__tall_tile *tile);

#endif
