#ifndef DML_GRAPH_PLAN_C
#define DML_GRAPH_PLAN_C

#include "graph/plan.h"

#include "base/memory.h"

/* The lowest offset at which the block overlaps none of the `placed` ones that live when it does. */
static size_t dml__lowest_free_offset(const dml__block_life *blocks, const int *order, int placed,
                                      const dml__block_life *block)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < placed; i++) {
            const dml__block_life *other = &blocks[order[i]];
            const bool together = other->first <= block->last && block->first <= other->last;
            if (together && other->offset < offset + block->bytes && offset < other->offset + other->bytes) {
                offset = dml__align_up(other->offset + other->bytes);
                moved = true;
            }
        }
    }
    return offset;
}

DML__LOCAL size_t dml__plan_memory(dml__block_life *blocks, int count, int *order)
{
    /* Insertion sort, largest first; stable, so that plans repeat. */
    int placed = 0;
    for (int i = 0; i < count; i++) {
        int j = placed;
        blocks[i].offset = 0;
        if (blocks[i].bytes == 0) continue;
        for (; j > 0 && blocks[order[j - 1]].bytes < blocks[i].bytes; j--) order[j] = order[j - 1];
        order[j] = i;
        placed++;
    }
    size_t total = 0;
    for (int i = 0; i < placed; i++) {
        dml__block_life *block = &blocks[order[i]];
        block->offset = dml__lowest_free_offset(blocks, order, i, block);
        const size_t end = dml__align_up(block->offset + block->bytes);
        if (end > total) total = end;
    }
    return total;
}

#endif
