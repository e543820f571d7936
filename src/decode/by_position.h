/* by_position.h: a net over all positions of a text, again for a few of them at a time. */
#ifndef DML_DECODE_BY_POSITION_H
#define DML_DECODE_BY_POSITION_H

#include "base/platform.h"
#include "device/backend.h"
#include "graph/graph.h"

/* What the net for a few positions is given: as the whole net's input; how many positions came before, one a
   sample; which position each row is; and of the row that is wanted, its number and its position. */
enum {
    DML__POSITIONS_INPUT,
    DML__POSITIONS_PAST,   /* () */
    DML__POSITIONS_PLACES, /* (count) */
    DML__POSITIONS_ROW,    /* (1) */
    DML__POSITIONS_PLACE,  /* (1) */
    DML__POSITIONS_LAST,   /* that row of the input: (1, ...) */
    DML__POSITIONS_GIVEN
};

/* The nets of a decoder have the first six in common. */
typedef struct dml__positions {
    dml_node *output, *input; /* of the net over all of them: (T, ...) */
    int positions;            /* T */
    int samples;              /* at most */
    int number;               /* of the decoder, in its graph */
    dml_buffer *kept;         /* keys and values of one attention after the other */
    int count;                /* the positions that go through this one at a time */
    /* What was built; the attentions are what has to run for what comes after, and the caller's to release.
     */
    dml_node *given[DML__POSITIONS_GIVEN];
    dml_node *rows; /* the output: (count, ...) */
    dml_node *row;  /* that of the row that is wanted: (1, ...) */
    dml_node **attention;
    int attentions;
} dml__positions;

/* How many bytes `kept` needs. DML_ERROR_UNSUPPORTED, or _ARGUMENT: where a position's output depends on
   others in another way than by causal attention, or on other inputs. */
DML__LOCAL dml_status dml__positions_bytes(const dml__positions *p, size_t *bytes);

/* Builds them, of the parameters that the net has; nothing is left where that fails. */
DML__LOCAL dml_status dml__positions_build(dml__positions *p);

#endif
