/* cases_recurrent.h: cases of recurrent layers (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_RECURRENT_H
#define DML_TESTS_GRAPH_CASES_RECURRENT_H

#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_recurrent.h"
#include "ops/op_shape.h"

#include "case_nodes.h"

/* Sequences that depend on parameters. */
static dml_node *sequence(dml_graph *g, int steps, int features)
{
    return dml_dense(dml_input(g, NULL, DML_F32, steps, 2), features);
}
static dml_node *rnn_plain(dml_graph *g)
{
    return dml_rnn(sequence(g, 4, 3), 5, NULL);
}
static dml_node *gru_of_shared_parameters(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 9, 3), *b = parameter(g, 1, 9, 0);
    return dml_gru_with(sequence(g, 4, 3), w, w, b, b, NULL);
}
static dml_node *rnn_relu(dml_graph *g)
{
    return dml_rnn(sequence(g, 3, 2), 9, &(dml_recurrent_options){ .relu = true, .reverse = true });
}
static dml_node *rnn_masked(dml_graph *g)
{
    const dml_recurrent_options o = { .bidirectional = true,
                                      .no_bias = true,
                                      .lengths = dml_input(g, "lengths", DML_I32),
                                      .h0 = dml_reshape(row(g, 6), dml_shape_of(2, 3)) };
    return dml_rnn(sequence(g, 4, 2), 3, &o);
}
static dml_node *lstm_plain(dml_graph *g)
{
    return dml_lstm(sequence(g, 4, 3), 5, NULL);
}
static dml_node *lstm_stack(dml_graph *g)
{
    const dml_recurrent_options o = { .layers = 2, .bidirectional = true, .dropout = 0.3f };
    return dml_lstm(sequence(g, 3, 2), 3, &o);
}
/* Of an input that takes no gradient, only the last state, masked; weights shared by two of them. */
static dml_node *lstm_last(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 4, 3), *w = parameter(g, 2, 16, 3), *u = parameter(g, 2, 16, 4);
    dml_recurrent_options o = { .last_only = true, .lengths = dml_input(g, "lengths", DML_I32) };
    dml_node *a = dml_lstm_with(x, w, u, NULL, NULL, &o);
    o.reverse = true;
    return dml_add(a, dml_lstm_with(x, w, u, parameter(g, 1, 16, 0), parameter(g, 1, 16, 0), &o));
}
/* One sequence carried on by another, from a state that is trained, and all that it ends in. */
static dml_node *lstm_states(dml_graph *g)
{
    dml_node *h, *c;
    dml_recurrent_options o = {
        .h0 = parameter(g, 1, 3, 0), .c0 = parameter(g, 1, 3, 0), .h_n = &h, .c_n = &c
    };
    dml_node *y = dml_lstm(sequence(g, 2, 2), 3, &o);
    o = (dml_recurrent_options){ .layers = 2,
                                 .h0 = dml_concat((dml_node *const[]){ h, c }, 2, 0),
                                 .h_n = &h };
    y = dml_lstm(y, 3, &o);
    return dml_concat((dml_node *const[]){ y, h, c }, 3, 0);
}
static dml_node *lstm_last_states(dml_graph *g)
{
    dml_node *c, *lengths = dml_input(g, "lengths", DML_I32);
    const dml_recurrent_options o = {
        .last_only = true, .reverse = true, .c0 = row(g, 3), .lengths = lengths, .c_n = &c
    };
    dml_node *y = dml_lstm(sequence(g, 3, 2), 3, &o);
    return dml_add(y, dml_flatten(c));
}
static dml_node *lstm_one_step(dml_graph *g)
{
    return dml_lstm(sequence(g, 1, 1), 1, &(dml_recurrent_options){ .layers = 2 });
}
static dml_node *lstm_wide(dml_graph *g)
{
    return dml_lstm(dml_input(g, "x", DML_F32, 5, 2), 17, &(dml_recurrent_options){ .last_only = true });
}
static dml_node *gru_plain(dml_graph *g)
{
    return dml_gru(sequence(g, 4, 3), 5, NULL);
}
static dml_node *gru_masked(dml_graph *g)
{
    const dml_recurrent_options o = { .bidirectional = true, .lengths = dml_input(g, "lengths", DML_I32) };
    return dml_gru(sequence(g, 4, 2), 3, &o);
}
static dml_node *gru_last(dml_graph *g)
{
    dml_node *h, *h0 = parameter(g, 2, 2, 3);
    const dml_recurrent_options o = { .layers = 2, .last_only = true, .no_bias = true, .h0 = h0, .h_n = &h };
    dml_node *y = dml_gru(sequence(g, 3, 2), 3, &o);
    return dml_concat((dml_node *const[]){ dml_reshape(y, dml_shape_of(1, 3)), h }, 2, 0);
}
static dml_node *gru_wide(dml_graph *g)
{
    return dml_gru(dml_input(g, "x", DML_F32, 6, 2), 13, NULL);
}

/* X(op, what builds it, samples) */
#define RECURRENT_CASE_LIST(X)                                                                               \
    X(rnn, rnn_plain, 5)                                                                                     \
    X(rnn, rnn_relu, 3)                                                                                      \
    X(gru, gru_of_shared_parameters, 3)                                                                      \
    X(rnn, rnn_masked, 3)                                                                                    \
    X(lstm, lstm_plain, 13)                                                                                  \
    X(lstm, lstm_stack, 3)                                                                                   \
    X(lstm, lstm_last, 4)                                                                                    \
    X(lstm, lstm_states, 3)                                                                                  \
    X(lstm, lstm_last_states, 3)                                                                             \
    X(lstm, lstm_one_step, 2)                                                                                \
    X(lstm, lstm_wide, 2)                                                                                    \
    X(gru, gru_plain, 14)                                                                                    \
    X(gru, gru_masked, 5)                                                                                    \
    X(gru, gru_last, 3)                                                                                      \
    X(gru, gru_wide, 2)

#endif
