/* by_position.h: a net over all positions of a text, again for a few of them at a time. */
#ifndef DML_DECODE_BY_POSITION_H
#define DML_DECODE_BY_POSITION_H

#include "base/platform.h"
#include "device/backend.h"
#include "graph/graph.h"

/* The nets of all decoders of one kind have the first six in common. */
typedef struct dml__positions {
    dml_node *output, *input; /* of the net over all of them: (T, ...) */
    int positions;            /* T */
    int samples;              /* at most */
    int number;               /* of the decoder, in its graph */
    dml_buffer *kept;         /* keys and values of one attention after the other */
    int count;                /* the positions that go through this one at a time */
    /* What was built: the output of the last of these positions, and its inputs: as `input`, how many
       positions came before (i32, one a sample), and which each is (count). */
    dml_node *last, *given[3];
} dml__positions;

/* How many bytes `kept` needs; 0, with the error recorded: the net isn't one over positions. */
DML__LOCAL size_t dml__positions_bytes(const dml__positions *p);

/* Builds `last` and `given`, of the parameters that the net has. DML_ERROR_UNSUPPORTED where a position's
   output depends on others in another way than by causal attention; nothing is left then. */
DML__LOCAL dml_status dml__positions_build(dml__positions *p);

#endif
