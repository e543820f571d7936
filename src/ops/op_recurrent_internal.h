/* op_recurrent_internal.h: what rnn, lstm and gru share with their way on a GPU, and the tests' reference. */
#ifndef DML_OPS_OP_RECURRENT_INTERNAL_H
#define DML_OPS_OP_RECURRENT_INTERNAL_H

#include "graph/node.h"
#include "graph/op.h"
#include "kernels/recurrent.h"

/* One layer in one direction. Its inputs are x, w_ih, w_hh and then, where they are there, those below. Its
   output is (steps + states, units): all steps, then the last h and c; or (units), the last h alone. */
typedef struct dml__recurrent {
    dml_cell cell;
    bool reverse, sequence;          /* all steps are given out */
    int states;                      /* 0 to 2 */
    int b_ih, b_hh, h0, c0, lengths; /* which input; 0: none */
} dml__recurrent;

static inline const dml__recurrent *dml__recurrent_of(const dml_node *node)
{
    return (const dml__recurrent *)node->attributes;
}

/* Of a run of `batch` samples. */
DML__LOCAL dml_recurrent_shape dml__recurrent_shape_of(const dml_node *node, int batch);

/* Floats from one sample's initial state to the next's: 0 where all share it. */
DML__LOCAL size_t dml__initial_step(const dml_node *node, int input);

/* The op by launches (op_recurrent_gpu.c), with the work in the same places as on the CPU. */
DML__LOCAL dml_status dml__recurrent_gpu_forward(const dml__run *run, const dml_node *node);
DML__LOCAL dml_status dml__recurrent_gpu_backward(const dml__run *run, const dml_node *node);

#endif
