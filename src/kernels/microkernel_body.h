/* microkernel_body.h: the loop that every micro-kernel is. Included by the files that make them. */
#ifndef DML_KERNELS_MICROKERNEL_BODY_H
#define DML_KERNELS_MICROKERNEL_BODY_H

#include "kernels/isa_vectors.h"
#include "kernels/microkernel.h"

/* One body, written over a vector type and a few functions on it (dml__<isa>_load, ...), makes the kernel of
   each instruction set. It is inlined with the numbers of rows and vectors constant into the cases of a
   switch: all its loops but those over the blocks and over p are then unrolled, which puts the accumulators
   into registers. */
#define DML__EACH(statement)                                                                                 \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < vectors; j++) statement;                                                     \
        }                                                                                                    \
    }
#define DML__DEFINE_COMPUTE(isa, target, vector, lanes, most_rows, multiply_add)                             \
    target DML__INLINE void dml__compute_##isa(const dml__tile *tile, const int rows, const int vectors)     \
    {                                                                                                        \
        vector sum[most_rows][DML__TILE_VECTORS], line[DML__TILE_VECTORS];                                   \
        const float *a[most_rows];                                                                           \
        const ptrdiff_t a_step = tile->a_step, b_step = tile->b_step;                                        \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) a[i] = tile->a[i];                                                    \
        for (int n = 0; n < tile->panels; n++) {                                                             \
            const ptrdiff_t column = (ptrdiff_t)n * vectors * lanes;                                         \
            DML__EACH(sum[i][j] = dml__##isa##_splat(0))                                                     \
            for (int t = 0; t < tile->blocks; t++) {                                                         \
                const float *b = tile->b + n * tile->b_panel + tile->b_at[t];                                \
                ptrdiff_t at = tile->a_at[t]; /* one index for all rows */                                   \
                for (int p = tile->k; p > 0; p--, at += a_step, b += b_step) {                               \
                    DML__UNROLL                                                                              \
                    for (int j = 0; j < vectors; j++) line[j] = dml__##isa##_load(b + lanes * j);            \
                    DML__UNROLL                                                                              \
                    for (int i = 0; i < rows; i++) {                                                         \
                        const vector value = dml__##isa##_splat(a[i][at]);                                   \
                        DML__UNROLL                                                                          \
                        for (int j = 0; j < vectors; j++)                                                    \
                            sum[i][j] = multiply_add(value, line[j], sum[i][j]);                             \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
            if (tile->alpha != 1)                                                                            \
                DML__EACH(sum[i][j] = dml__##isa##_multiply(dml__##isa##_splat(tile->alpha), sum[i][j]))     \
            if (tile->beta != 0)                                                                             \
                DML__EACH(sum[i][j] = dml__##isa##_fma(dml__##isa##_splat(tile->beta),                       \
                                                       dml__##isa##_load(tile->c[i] + column + lanes * j),   \
                                                       sum[i][j]))                                           \
            if (tile->bias)                                                                                  \
                DML__EACH(sum[i][j] = dml__##isa##_add(sum[i][j],                                            \
                                                       dml__##isa##_load(tile->bias + column + lanes * j)))  \
            if (tile->relu) DML__EACH(sum[i][j] = dml__##isa##_relu(sum[i][j]))                              \
            DML__EACH(dml__##isa##_store(tile->c[i] + column + lanes * j, sum[i][j]))                        \
        }                                                                                                    \
    }

/* What is computed for a tile of r rows and v vectors; a few rows take more vectors, so that there are enough
   accumulators to hide the latency of the multiply-adds. */
#define DML__TILE_CODE(r, v) ((r)*8 + (v))
#define DML__TILE_CASE(isa, r, v)                                                                            \
    case DML__TILE_CODE(r, v):                                                                               \
        dml__compute_##isa(tile, r, v);                                                                      \
        break;
#define DML__TILE_CASES(isa, r) DML__TILE_CASE(isa, r, 1) DML__TILE_CASE(isa, r, 2)
#define DML__TILE_THIN_CASES(isa)                                                                            \
    DML__TILE_CASE(isa, 1, 3)                                                                                \
    DML__TILE_CASE(isa, 1, 4)                                                                                \
    DML__TILE_CASE(isa, 2, 3) DML__TILE_CASE(isa, 2, 4) DML__TILE_CASE(isa, 3, 3) DML__TILE_CASE(isa, 3, 4)
#define DML__THIN_ROWS 3
#define DML__THIN_VECTORS 4

#endif
