/* recurrent.h: recurrent cells over whole sequences, on raw arrays. */
#ifndef DML_KERNELS_RECURRENT_H
#define DML_KERNELS_RECURRENT_H

#include "thread/pool.h"

/* What a cell makes of its input x and of its state h (and c), where ih and hh are w_ih x + b_ih and
   w_hh h + b_hh, cut into as many parts as it has gates, in this order:

   tanh, relu   h = tanh(ih + hh), relu(ih + hh)
   lstm         i, f, o = sigmoid(ih + hh), g = tanh(ih + hh), in the order i f g o;
                c = f c + i g, h = o tanh(c)
   gru          r, z = sigmoid(ih + hh), n = tanh(ih + r hh), in the order r z n; h = (1 - z) n + z h

   Sources: Elman, "Finding structure in time", 1990; Hochreiter and Schmidhuber, "Long short-term memory",
   1997, with the forget gate of Gers, Schmidhuber and Cummins, 2000; Cho et al., arXiv 1406.1078, with the
   reset gate behind the product, as PyTorch and cuDNN have it. */
typedef enum dml_cell { DML_CELL_TANH, DML_CELL_RELU, DML_CELL_LSTM, DML_CELL_GRU } dml_cell;

typedef struct dml_recurrent_shape {
    dml_cell cell;
    bool reverse;                    /* from the last step to the first */
    int batch, steps, inputs, units; /* at least 1: of an empty batch nothing is written */
} dml_recurrent_shape;

/* The arrays of a pass; gates are 1, 4 for lstm, 3 for gru. Steps at and behind a sample's length leave its
   state as it is, and their y is 0: in reverse a sample begins at its own last step. Their x must be finite.
 */
typedef struct dml_recurrent_arrays {
    const float *x;           /* (batch, steps, inputs) */
    const float *w_ih, *w_hh; /* (gates * units, inputs), (gates * units, units) */
    const float *b_ih, *b_hh; /* (gates * units), or NULL both */
    const float *h0, *c0;     /* (batch, units) with a step of `units`; with 0, (units), the same for all;
                                 NULL: zeros */
    size_t h0_step, c0_step;
    const int32_t *lengths; /* (batch), in 0 .. steps; NULL: all are `steps` long */
    float *y;               /* (batch, steps, units), from a sample to the next y_step; or NULL */
    size_t y_step;
    float *h_n, *c_n; /* (batch, units), the last states, from a sample to the next n_step; or NULL */
    size_t n_step;
    float *work; /* dml_recurrent_work floats, which forward leaves for backward */
} dml_recurrent_arrays;

/* Gradients; those of the outputs may be NULL for zeros, those that aren't wanted NULL. Each becomes itself
   + beta x what is there; with beta = 0 it isn't read. */
typedef struct dml_recurrent_gradients {
    const float *dy, *dh_n, *dc_n; /* as y, h_n and c_n */
    float *dx, *dw_ih, *dw_hh, *db_ih, *db_hh, *dh0, *dc0;
    struct {
        float x, w_ih, w_hh, b_ih, b_hh, h0, c0;
    } beta;
} dml_recurrent_gradients;

/* Floats of `work`; SIZE_MAX / 8 for more than there are addresses. */
DML_API size_t dml_recurrent_work(const dml_recurrent_shape *shape);

/* batch x steps at most INT32_MAX, and steps x 4 x units too. Backward reads x, the weights, the lengths and
   `work`, which it spends: once for each forward. Bitwise the same for any number of threads. */
DML_API void dml_recurrent_forward(dml_pool *pool, const dml_recurrent_shape *shape,
                                   const dml_recurrent_arrays *arrays);
DML_API void dml_recurrent_backward(dml_pool *pool, const dml_recurrent_shape *shape,
                                    const dml_recurrent_arrays *arrays,
                                    const dml_recurrent_gradients *gradients);

/* The scratch with which they are fastest. */
DML_API dml_scratch dml_recurrent_scratch(const dml_recurrent_shape *shape, bool training);

#endif
