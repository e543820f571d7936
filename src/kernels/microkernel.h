/* microkernel.h: the innermost loop of all matrix products and convolutions, one for each instruction set. */
#ifndef DML_KERNELS_MICROKERNEL_H
#define DML_KERNELS_MICROKERNEL_H

#include "base/cpu_bf16.h"
#include "base/platform.h"

/* Bounds over all instruction sets: of a tile's rows, of its elements, and of its panels of A and B. */
#if defined(DML__HAS_AMX)
#define DML__TILE_ROWS 32
#define DML__TILE_FLOATS 1024
#elif defined(DML__HAS_AVX512)
#define DML__TILE_ROWS 15
#define DML__TILE_FLOATS 448
#else
#define DML__TILE_ROWS 8
#define DML__TILE_FLOATS 256
#endif
#if defined(DML__HAS_AVX512)
#define DML__PANEL_FLOATS 20480
#elif defined(DML__HAS_AVX2)
#define DML__PANEL_FLOATS 14336
#else
#define DML__PANEL_FLOATS 8192
#endif

#define DML__HIGH_ROWS 14
#define DML__THREES 24 /* columns of a tile of AVX2 that is three vectors wide */
#define DML__STREAMING_K 32

/* A tile of C as a sum of small products, over a list of blocks (batch-reduce GEMM: Georganas et al., arXiv
   1906.06440):
       C[i][j] = beta * C[i][j] + bias[j] + alpha * sum of A * B over t < blocks and p < k, where
       A = a[i][a_at[t] + p * a_step],  B = b[b_at[t] + p * b_step + j]
   and then the activation. With beta = 0, C is not read. The rows of A and C may lie anywhere, so that a
   factor is used where it is: rows of a matrix (a_step = 1), columns of one (a_step = its leading dimension),
   a packed panel (a_step = its width), pixels of an image, whose taps are the blocks. Columns that are not
   whole vectors are computed with masks, or with a second vector that ends with the last column: what both
   hold, both write, after all of C has been read. */
typedef struct dml__tile {
    int rows, columns;            /* 1 .. the kernel's rows; its least_columns .. vectors * lanes */
    int blocks, k;                /* k of each block */
    const ptrdiff_t *a_at, *b_at; /* (blocks) */
    const float *a[DML__TILE_ROWS];
    ptrdiff_t a_step;
    bool a_packed;      /* the rows are side by side, as in a panel: a[i] = a[0] + i */
    ptrdiff_t row_step; /* of a tall or high tile: five rows each lie that far apart, a[5 g + i] = a[5 g] + i
                           row_step */
    const float *b;
    ptrdiff_t b_step;
    int panels;        /* how many tiles beside each other, at least 1: C's go on `columns` further, */
    ptrdiff_t b_panel; /* B's so much */
    int below;         /* how many tiles of as many rows below each other, at least 1: the rows of A go on */
    ptrdiff_t a_below, c_below; /* so much further, those of C so much; 1 for a micro-kernel of lines */
    float alpha, beta;
    const float *bias; /* (panels, columns), or NULL */
    bool relu;
    bool stream; /* by AVX-512 and AVX2, with beta = 0: rows of C begin and end at lines of the caches and are
                    written past them; who asks for it ends with DML__STREAM_FENCE */
    uintptr_t ask;      /* by a micro-kernel that `asks`: what will be needed, from here on, is asked for */
    ptrdiff_t ask_step; /* meanwhile, so many bytes for each four k's of the first panel; 0: nothing */
    float *c[DML__TILE_ROWS];
} dml__tile;

/* A single panel's bare sums, of factors that are not packed: C = A * B. */
static inline void dml__tile_init(dml__tile *tile)
{
    tile->a_packed = false;
    tile->panels = 1;
    tile->b_panel = 0;
    tile->below = 1;
    tile->a_below = tile->c_below = 0;
    tile->alpha = 1;
    tile->beta = 0;
    tile->bias = NULL;
    tile->relu = false;
    tile->stream = false;
    tile->ask_step = 0;
}

/* `run` takes tiles of 1 .. rows rows and least_columns .. vectors * lanes columns; vectors is 2, or 3, of
   which all are taken. An element's bits depend on its own row of A and column of B alone, not on the tile it
   is computed in: it is one chain of multiply-adds over t and p in order. That is why results don't change
   with the number of threads. */
typedef struct dml__microkernel {
    int rows, vectors, lanes;
    void (*run)(const dml__tile *tile);
    /* Blocks of k are at most so long: a tile's panel of B shall stay in a first cache, unless loads
       may come from the second; and longer blocks read and write C less often. Times (rows + vectors *
       lanes), DML__PANEL_FLOATS at most. */
    int k_block;
    /* Blocks of k are filled up with zeros to a multiple of this; 0: they need not be. Rows of A are then
       wanted packed as lines, k floats each one after the other, and those of C lie the same distance apart.
     */
    int k_multiple;
    int least_columns; /* of a tile: 1 with masks, otherwise lanes */
    /* Tiles of up to a vector may have 10 .. so many rows too, in fives that lie row_step apart; 0: they
       mustn't. Eight sums of one vector are too few to keep AVX-512's multiply-adds busy. Those of more may
       then have DML__HIGH_ROWS, in fives too, so that what a tile costs beside its multiply-adds is paid for
       less often. */
    int tall_rows;
    /* Whether whole tiles, of k's in fours or of packed rows, ask for lines between their multiply-adds, two
       for each four k's: asked for all at once they would be in the way of the loads that follow. */
    bool asks;
} dml__microkernel;

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa);

/* One whose tiles are three vectors wide, where that is better for so many columns: where they are no pairs
   of vectors. NULL: it isn't. */
DML__LOCAL const dml__microkernel *dml__microkernel_threes(dml_isa isa, ptrdiff_t columns);

/* Whether C, of so many floats, which isn't read and whose rows begin and end at lines of the caches, is to
   be written past them: it is so large that little of it would be left in a third cache of `l3` bytes when
   somebody reads it, and its lines need not be fetched. Where a line takes two stores, that pays only for few
   multiply-adds, sums over k, with each. */
static inline bool dml__microkernel_streams(dml_isa isa, size_t l3, double floats, ptrdiff_t k)
{
    const double least = 8 << 20, quarter = (double)l3 / 4;
    return (isa == DML_ISA_AVX512 || (isa == DML_ISA_AVX2 && k <= DML__STREAMING_K)) &&
           floats * sizeof(float) > (quarter > least ? quarter : least);
}

/* A micro-kernel on bf16: each float of A and B is the bits of a pair of bf16, of two k's, the first in the
   lower half, and their two products are added into the f32 sum. NULL: there is none. */
DML__LOCAL const dml__microkernel *dml__microkernel_bf16(dml__bf16_isa isa);

#endif
