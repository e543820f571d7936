/* op_recurrent_internal.h: the attributes of rnn, lstm and gru, for the tests' reference. */
#ifndef DML_OPS_OP_RECURRENT_INTERNAL_H
#define DML_OPS_OP_RECURRENT_INTERNAL_H

#include "kernels/recurrent.h"

/* One layer in one direction. Its inputs are x, w_ih, w_hh and then, where they are there, those below. Its
   output is (steps + states, units): all steps, then the last h and c; or (units), the last h alone. */
typedef struct dml__recurrent {
    dml_cell cell;
    bool reverse, sequence;          /* all steps are given out */
    int states;                      /* 0 to 2 */
    int b_ih, b_hh, h0, c0, lengths; /* which input; 0: none */
} dml__recurrent;

#endif
