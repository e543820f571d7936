/* op_rotary_internal.h: a rotary node's attributes, for what tests them. */
#ifndef DML_OPS_OP_ROTARY_INTERNAL_H
#define DML_OPS_OP_ROTARY_INTERNAL_H

#include "base/platform.h"

typedef struct dml__rotary {
    int heads, rotated, offset;
    float base;
    bool interleaved;
} dml__rotary;

/* (positions, 2, width / 2), as by dml_rotary_table */
static inline const float *dml__rotary_table_of(const dml__rotary *attributes)
{
    return (const float *)(attributes + 1);
}

#endif
