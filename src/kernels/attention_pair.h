/* attention_pair.h: what is computed of a pair of blocks of queries and keys, of one head: products that
   leave out what a mask hides, and what becomes of rows of scores. */
#ifndef DML_KERNELS_ATTENTION_PAIR_H
#define DML_KERNELS_ATTENTION_PAIR_H

#include "kernels/microkernel.h"
#include "kernels/pack.h"
#include "kernels/sizes.h"

/* A pair of blocks, of so many queries and keys at most, is what is computed at once: its scores, and in
   backward their gradients too, stay in the second cache. More of a head's width than this is summed in
   parts. An output's bits depend on these numbers. */
#define DML__ATTENTION_BLOCK 128
#define DML__ATTENTION_DEPTH 128

/* Where a worker computes. */
typedef struct dml__attention_work {
    ptrdiff_t height; /* of a pair at most, where the other side is a whole block */
    float *panel;     /* (k, columns of a tile) */
    float *s, *ds;    /* (queries, ld): probabilities, and their gradients in backward */
    float *side;      /* a tile of a head that is narrower than a vector */
} dml__attention_work;

/* Row i has to do with the places i + from .. i + to - 1 of the other side, as far as they are in
   0 .. limit - 1. */
typedef struct dml__band {
    ptrdiff_t from, to, limit;
} dml__band;

static inline ptrdiff_t dml__band_first(const dml__band *band, ptrdiff_t row)
{
    return dml__larger(0, row + band->from);
}

static inline ptrdiff_t dml__band_end(const dml__band *band, ptrdiff_t row)
{
    return dml__larger(0, dml__smaller(band->limit, row + band->to));
}

/* C (m, n) = alpha A B + beta C, where the band says which columns of C are of interest, or which k's have
   something else than zeros in A. */
typedef struct dml__attention_product {
    ptrdiff_t m, n, k;
    const float *a; /* element (i, k) is a[i * a_row + k * a_step] */
    ptrdiff_t a_row, a_step;
    dml__matrix b;
    float alpha, beta;
    float *c; /* (m, ldc) */
    ptrdiff_t ldc;
    dml__band band;
    bool of_columns; /* the band; C then has room for whole vectors, and gets zeros there */
} dml__attention_product;

DML__LOCAL void dml__attention_multiply(const dml__microkernel *kernel, const dml__attention_work *work,
                                        const dml__attention_product *product);

typedef struct dml__attention_rows {
    ptrdiff_t rows, ld; /* whole vectors */
    dml__band band;
    float *s;
    float *most, *sum, *factor;     /* (rows), of forward */
    float *ds;                      /* of backward: the gradient of what s becomes, and then of s */
    const float *log_sums, *y, *dy; /* (rows), (rows, step), (rows, step) */
    ptrdiff_t step, width;
} dml__attention_rows;

/* A step of the softmax on line: s = exp(s - most) with the largest score so far, and the factor of what was
   computed with the largest one before. Where all are -infinity the exponentials are 0. */
DML__LOCAL void dml__attention_soften(dml_isa isa, const dml__attention_rows *rows);

/* s = the probabilities p = exp(s - log_sum) again, ds = p (ds - dy y), where dy y is the sum of p ds. */
DML__LOCAL void dml__attention_slope(dml_isa isa, const dml__attention_rows *rows);

/* Each row of y (rows, step) times its factor. */
DML__LOCAL void dml__attention_scale(dml_isa isa, const dml__attention_rows *rows, float *y);

#endif
