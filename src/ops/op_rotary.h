/* op_rotary.h: positions, as turned pairs of numbers. */
#ifndef DML_OPS_OP_ROTARY_H
#define DML_OPS_OP_ROTARY_H

#include "graph/graph.h"

typedef struct dml_rotary_options {
    float base;       /* 0: 10000 */
    int offset;       /* the position of the first row */
    int rotated;      /* so many heads are turned, from the first on, the others stay as they are; 0: all */
    bool interleaved; /* pairs are neighbours (0, 1), (2, 3), ..., as RoFormer has them; else pair i of a head
                         of width D is (i, i + D / 2), as in GPT-NeoX and Llama */
} dml_rotary_options;

/* Turns each pair of numbers of each head by an angle that grows with the position: x (T, heads D) -> the
   same, pair i of row t by (t + offset) base^(-2 i / D). Of queries and keys, whose products then depend on
   the distance alone. Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding",
   2021. NULL options: all defaults. DML_ERROR_SHAPE when the last dimension isn't so many heads of an even
   width. */
DML_API dml_node *dml_rotary(dml_node *x, int heads, const dml_rotary_options *options);

#endif
