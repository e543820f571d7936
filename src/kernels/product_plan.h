/* product_plan.h: how a range of a product is computed: what is packed, in what blocks, in which order. */
#ifndef DML_KERNELS_PRODUCT_PLAN_H
#define DML_KERNELS_PRODUCT_PLAN_H

#include "base/memory.h"
#include "kernels/microkernel.h"
#include "kernels/product_range.h"

/* A worker's scratch holds a block of A and behind it panels of B, of this many rows and columns at most; or,
   for a micro-kernel that wants A packed as lines, of so many floats. */
#define DML__PACK_ROWS 120
#define DML__PACK_COLUMNS 512
#define DML__PACK_FLOATS 262144

/* How a range is computed: what is packed, and how much of it at once. */
typedef struct dml__blocking {
    bool pack_a, pack_b;
    bool lines;  /* what is packed of A are lines of k's, and not panels */
    bool stream; /* C is written past the caches */
    bool across; /* tiles beside each other follow each other, and not those below each other */
    ptrdiff_t kc, mc, nc;
    ptrdiff_t ask_until; /* rows of A before this one are asked for a part ahead; 0: none are */
    ptrdiff_t ask_k;     /* the same for lines of A, by k */
    float *a, *b;        /* (mc, kc) in panels of a tile's rows; (kc, nc) in panels of its columns */
} dml__blocking;

/* Whether the lanes of a factor lie side by side in memory, as vectors are loaded. */
static inline bool dml__has_lanes(const dml__factor *factor)
{
    return factor->pack == dml__pack_matrix && ((const dml__matrix *)factor->source)->lane_step == 1;
}

static inline bool dml__packs_panels(const dml__factor *factor)
{
    return factor->packers && factor->packers->pack_panels;
}

/* Floats of a line of a packed panel of B. */
static inline ptrdiff_t dml__panel_width(const dml__job *job, ptrdiff_t columns)
{
    return dml__larger(columns, job->kernel->least_columns);
}

/* Floats of k that a block takes, with the zeros that the micro-kernel wants behind it. */
static inline ptrdiff_t dml__filled_k(const dml__job *job, ptrdiff_t k)
{
    return job->kernel->k_multiple ? dml__round_up(k, job->kernel->k_multiple) : k;
}

/* Whether lines so far apart meet in the same sets of a first cache, which holds few of them at once. */
static inline bool dml__collides(ptrdiff_t line_step)
{
    const ptrdiff_t sets = 4096 / (ptrdiff_t)sizeof(float), near = 32;
    return (line_step + near) % sets <= 2 * near;
}

/* Rows of A that are packed at once, at most. */
static inline ptrdiff_t dml__most_rows_at_once(const dml__job *job)
{
    const ptrdiff_t rows = job->kernel->tall_rows ? DML__HIGH_ROWS : job->rows;
    return DML__PACK_ROWS / rows * rows;
}

DML__LOCAL dml__blocking dml__plan_blocking(const dml__job *job, const dml__range *range);

/* Whether a matrix B is packed a panel at a time, which then stays in the first cache, or most of it: where
   A, used in place, stays in the second while all panels go over it. Lines that lie side by side are best
   read from end to end, unless a vector takes all of a cache's line. */
DML__LOCAL bool dml__packs_one_panel(const dml__job *job, const dml__blocking *blocking, ptrdiff_t rows);

#endif
