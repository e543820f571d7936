/* compress_low_rank.h: the gradients of matrices as products of two narrow ones (dist/compress.h, POWER). */
#ifndef DML_DIST_COMPRESS_LOW_RANK_H
#define DML_DIST_COMPRESS_LOW_RANK_H

#include "base/memory.h"
#include "base/platform.h"
#include "graph/graph.h"
#include "thread/pool.h"

/* A trained parameter: where it lies in g, and where what is sent of it lies. */
typedef struct dml__low_rank_part {
    size_t begin, rows, columns;
    size_t p, q; /* in the arrays of that name */
    size_t rank; /* 0: sent as it is, in p */
} dml__low_rank_part;

typedef struct dml__low_rank {
    dml__low_rank_part *part; /* (parts) in the order of g, with an end behind the last */
    size_t parts;
    float *p; /* of each part P (rows, rank), or its gradient (rows, columns) */
    float *q; /* Q (columns, rank), kept from step to step */
    uint64_t seed;
    uint64_t refilled; /* how often random numbers were needed */
} dml__low_rank;

/* False: no memory. Then, too, dml__low_rank_close releases what there is. */
DML__LOCAL bool dml__low_rank_open(dml__low_rank *low, dml__memory *memory, const dml_graph *graph, int rank,
                                   uint64_t seed);

/* Q is random again. */
DML__LOCAL void dml__low_rank_begin(dml__low_rank *low, uint64_t seed);
DML__LOCAL void dml__low_rank_close(dml__low_rank *low, dml__memory *memory);

/* The parts of g[begin, end), which cuts none: *first up to *behind. */
DML__LOCAL void dml__low_rank_find(const dml__low_rank *low, size_t begin, size_t end, size_t *first,
                                   size_t *behind);

/* The three steps for these parts; `g` is theirs, `kept` that of the whole vector. kept = M = kept + unit g,
   P = M Q; with P summed over the ranks, P orthonormal, Q = M^T P, kept = M - P Q^T; with Q summed, g = P Q^T
   / unit. */
DML__LOCAL void dml__low_rank_project(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                      const float *g, float unit, float *kept);
DML__LOCAL void dml__low_rank_back(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                   float *kept);
DML__LOCAL void dml__low_rank_expand(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                     float factor, float *g);

#endif
