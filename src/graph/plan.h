/* plan.h: the memory plan: which blocks of an arena may share bytes, because they are never needed at once.
 */
#ifndef DML_GRAPH_PLAN_H
#define DML_GRAPH_PLAN_H

#include "base/platform.h"

typedef struct dml__block_life {
    size_t bytes;
    int first, last; /* the times at which it is needed, both included */
    size_t offset;   /* out */
} dml__block_life;

/* Sets each block's offset so that blocks alive at the same time don't overlap, and returns the arena's size.
   Each offset is a multiple of DML__ALIGNMENT. Largest blocks first, each at the lowest free place (greedy by
   size: Pisarchyk, Lee, "Efficient memory management for deep neural net inference", 2020, section 5.2).
   `order` is scratch for `count` ints. */
DML__LOCAL size_t dml__plan_memory(dml__block_life *blocks, int count, int *order);

#endif
