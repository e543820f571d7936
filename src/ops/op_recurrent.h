/* op_recurrent.h: recurrent layers over whole sequences: RNN, LSTM and GRU, with PyTorch's arithmetic, order
   of gates and names of parameters. kernels/recurrent.h has the formulas and their sources. */
#ifndef DML_OPS_OP_RECURRENT_H
#define DML_OPS_OP_RECURRENT_H

#include "graph/graph.h"
#include "kernels/recurrent.h"

/* Zero: one layer from the first step to the last, with biases, beginning with zeros, that gives out all
   steps. D is 2 for bidirectional layers, else 1. */
typedef struct dml_recurrent_options {
    int layers;         /* above each other; 0: 1 */
    bool bidirectional; /* each layer also from the last step to the first; the outputs side by side */
    bool reverse;       /* instead: from the last step to the first */
    float dropout;      /* of what each layer but the last gives to the next (dml_dropout) */
    bool no_bias;
    bool relu;         /* of dml_rnn: relu for tanh */
    bool last_only;    /* the last state of the last layer, (D hidden), instead of all steps */
    dml_node *lengths; /* i32, one for each sample, 0 .. T: how many of its steps count; the others give 0 and
                          leave the state, and a reverse direction begins at the last that counts. Their x
                          must be finite. Another length is found before anything is run */
    dml_node *h0,
        *c0; /* initial states (layers D, hidden), or (hidden) for one of them; for each sample, or a
                parameter, the same for all. Layer by layer, forward then reverse. c0: of dml_lstm */
    dml_node **h_n, **c_n; /* where to leave the last states, nodes (layers D, hidden); NULL: not asked for */
} dml_recurrent_options;

/* Layers with parameters of their own: x (T, in), one sequence for each sample -> (T, D hidden). They are
   called as PyTorch calls them, after the first node of the layer: "lstm_1.weight_ih_l0" (gates hidden, in),
   "lstm_1.weight_hh_l0" (gates hidden, hidden), "lstm_1.bias_ih_l0" and "lstm_1.bias_hh_l0" (gates hidden),
   "..._l0_reverse", "..._l1" and so on, uniform in +-1 / sqrt(hidden) at first. `options` may be NULL.
   DML_ERROR_SHAPE for an input of another form or states that don't fit, DML_ERROR_ARGUMENT for options that
   contradict each other. */
DML_API dml_node *dml_rnn(dml_node *x, int hidden, const dml_recurrent_options *options);
DML_API dml_node *dml_lstm(dml_node *x, int hidden, const dml_recurrent_options *options);
DML_API dml_node *dml_gru(dml_node *x, int hidden, const dml_recurrent_options *options);

/* One layer in one direction on parameters of the caller's, of those shapes; both biases or none. Options for
   several layers are refused; no_bias isn't looked at. */
DML_API dml_node *dml_rnn_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                               const dml_recurrent_options *options);
DML_API dml_node *dml_lstm_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                                const dml_recurrent_options *options);
DML_API dml_node *dml_gru_with(dml_node *x, dml_node *w_ih, dml_node *w_hh, dml_node *b_ih, dml_node *b_hh,
                               const dml_recurrent_options *options);

#endif
