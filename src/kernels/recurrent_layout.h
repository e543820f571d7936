/* recurrent_layout.h: where the work of a recurrent pass lies, for the CPU's kernels and the GPUs'. */
#ifndef DML_KERNELS_RECURRENT_LAYOUT_H
#define DML_KERNELS_RECURRENT_LAYOUT_H

#include "kernels/product_range.h"
#include "kernels/recurrent.h"

/* Offsets in floats. A gru's gates are n r z and, as a fourth, what r gates: the input's product has n r z
   side by side, the state's r z and the fourth. All lie by samples, as x and y do, so that the products over
   all steps take them as they are; the states are those before each step. */
typedef struct dml__recurrent_layout {
    size_t panels;         /* the state's weights, packed once a pass */
    size_t gates;          /* (batch, steps, width); in backward their gradients take their place */
    size_t h, c;           /* (batch, steps, units), c of lstm */
    size_t h_last, c_last; /* (batch, units): behind the last step */
    size_t dh, dc;         /* (batch, units) */
    size_t sums;           /* (width): of biases */
    size_t floats;
    size_t width;  /* of a step's gates */
    size_t gate_n; /* gates * units: rows of the weights */
    size_t by_h;   /* the first of a step's gates that the state's product goes to */
} dml__recurrent_layout;

static inline int dml__cell_gates(dml_cell cell)
{
    return cell == DML_CELL_LSTM ? 4 : cell == DML_CELL_GRU ? 3 : 1;
}

static inline dml__recurrent_layout dml__recurrent_lay_out(const dml_recurrent_shape *shape, bool panels)
{
    const size_t units = (size_t)shape->units, batch = (size_t)shape->batch;
    const size_t rows = batch * (size_t)shape->steps, states = shape->cell == DML_CELL_LSTM ? 2 : 1;
    dml__recurrent_layout at;
    at.gate_n = (size_t)dml__cell_gates(shape->cell) * units;
    at.width = shape->cell == DML_CELL_GRU ? 4 * units : at.gate_n;
    at.by_h = shape->cell == DML_CELL_GRU ? units : 0;
    at.panels = 0;
    at.gates =
        panels ? dml__panel_floats(units, at.gate_n) : 0; /* which is no less than the other way round */
    at.h = at.gates + rows * at.width;
    at.c = at.h + rows * units;
    at.h_last = at.h + states * rows * units;
    at.c_last = at.h_last + batch * units;
    at.dh = at.h_last + states * batch * units;
    at.dc = at.dh + batch * units;
    at.sums = at.dh + states * batch * units;
    at.floats = at.sums + at.width;
    return at;
}

/* A part of a step's gates, and of the rows of the input's weights that it is made of. */
typedef struct dml__gate_part {
    size_t row, rows, column;
} dml__gate_part;

static inline int dml__gate_parts(const dml_recurrent_shape *shape, dml__gate_part parts[2])
{
    const size_t units = (size_t)shape->units;
    parts[0].row = 0;
    parts[0].rows = shape->cell == DML_CELL_GRU ? 2 * units : (size_t)dml__cell_gates(shape->cell) * units;
    parts[0].column = shape->cell == DML_CELL_GRU ? units : 0;
    parts[1].row = 2 * units;
    parts[1].rows = units;
    parts[1].column = 0;
    return shape->cell == DML_CELL_GRU ? 2 : 1;
}

#endif
