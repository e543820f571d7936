/* reference_recurrent.h: rnn, lstm and gru in float64, a sample and a step at a time. */
#ifndef DML_TESTS_GRAPH_REFERENCE_RECURRENT_H
#define DML_TESTS_GRAPH_REFERENCE_RECURRENT_H

#include "graph/node.h"
#include "ops/op_recurrent_internal.h"

#include <math.h>

/* The gate of number `row` as it comes from x, and as it comes from h. */
static double reference_gate(const double *w, const double *bias, int row, int n, const double *x)
{
    double sum = bias ? bias[row] : 0;
    for (int i = 0; i < n; i++) sum += w[row * n + i] * x[i];
    return sum;
}

static double reference_logistic(double x)
{
    return 1 / (1 + exp(-x));
}

static void reference_cell(const dml__recurrent *o, int units, int inputs, double *const *in, const double *x,
                           double *h, double *c)
{
    const double *b_ih = o->b_ih ? in[o->b_ih] : NULL, *b_hh = o->b_hh ? in[o->b_hh] : NULL;
    double before[64];
    for (int j = 0; j < units; j++) before[j] = h[j];
    for (int j = 0; j < units; j++) {
        double ih[4] = { 0 }, hh[4] = { 0 };
        const int gates = o->cell == DML_CELL_LSTM ? 4 : o->cell == DML_CELL_GRU ? 3 : 1;
        for (int g = 0; g < gates; g++) {
            ih[g] = reference_gate(in[1], b_ih, g * units + j, inputs, x);
            hh[g] = reference_gate(in[2], b_hh, g * units + j, units, before);
        }
        const double first = ih[0] + hh[0];
        if (o->cell == DML_CELL_TANH) {
            h[j] = tanh(first);
        } else if (o->cell == DML_CELL_RELU) {
            h[j] = first > 0 ? first : 0;
        } else if (o->cell == DML_CELL_LSTM) {
            c[j] = reference_logistic(ih[1] + hh[1]) * c[j] + reference_logistic(first) * tanh(ih[2] + hh[2]);
            h[j] = reference_logistic(ih[3] + hh[3]) * tanh(c[j]);
        } else {
            const double z = reference_logistic(ih[1] + hh[1]);
            h[j] = (1 - z) * tanh(ih[2] + reference_logistic(first) * hh[2]) + z * before[j];
        }
    }
}

static double reference_initial(const dml_node *node, int rows, double *const *in, int which, int r, int j)
{
    const int units = node->input[2]->shape.dims[1];
    (void)rows;
    return which ? in[which][(node->input[which]->batched ? r * units : 0) + j] : 0;
}

static void reference_recurrent(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__recurrent *o = (const dml__recurrent *)node->attributes;
    const int steps = node->input[0]->shape.dims[0], inputs = node->input[0]->shape.dims[1];
    const int units = node->input[2]->shape.dims[1];
    const size_t each = dml_shape_count(&node->shape);
    for (int r = 0; r < rows; r++) {
        const int length = o->lengths ? (int)in[o->lengths][r] : steps;
        double h[64], c[64], *to = out + (size_t)r * each;
        for (int j = 0; j < units; j++) {
            h[j] = reference_initial(node, rows, in, o->h0, r, j);
            c[j] = reference_initial(node, rows, in, o->c0, r, j);
        }
        for (int i = 0; o->sequence && i < steps * units; i++) to[i] = 0;
        for (int s = 0; s < length; s++) {
            const int t = o->reverse ? length - 1 - s : s;
            reference_cell(o, units, inputs, in,
                           in[0] + ((size_t)r * (size_t)steps + (size_t)t) * (size_t)inputs, h, c);
            for (int j = 0; o->sequence && j < units; j++) to[t * units + j] = h[j];
        }
        if (o->sequence) to += steps * units;
        for (int j = 0; o->states > 0 && j < units; j++) to[j] = h[j];
        for (int j = 0; o->states > 1 && j < units; j++) to[units + j] = c[j];
    }
}

#endif
