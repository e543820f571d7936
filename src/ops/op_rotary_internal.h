/* op_rotary_internal.h: a rotary node's attributes, for what tests them. */
#ifndef DML_OPS_OP_ROTARY_INTERNAL_H
#define DML_OPS_OP_ROTARY_INTERNAL_H

#include "graph/graph.h"

typedef struct dml__rotary {
    int heads, rotated, offset, positions;
    float base;
    bool interleaved;
} dml__rotary;

/* The same as a rotary node does, of rows whose positions, below `positions`, are those of `places` (T), i32.
 */
DML__LOCAL dml_node *dml__rotary_at(const dml_node *like, dml_node *x, dml_node *places, int positions);

/* (positions, 2, width / 2), as by dml_rotary_table */
static inline const float *dml__rotary_table_of(const dml__rotary *attributes)
{
    return (const float *)(attributes + 1);
}

#endif
