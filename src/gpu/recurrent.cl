/* recurrent.cl: a step of a recurrent cell (kernels/recurrent.h says what each computes), an item a unit of a
   sample. The work lies as kernels/recurrent_layout.h has it: `gates` (batch, steps, width); `states`: those
   before each step (batch, steps, units), of lstm c's behind h's, then the last (batch, units) in the same
   way.

   Ints of both: cell, batch, steps, units, step, the step whose state is the result (outside of them: the
   last), floats from a sample's y to the next; size{batch * units}. */
#ifndef DML_GPU_RECURRENT_CL
#define DML_GPU_RECURRENT_CL

#define CELL_RELU 1
#define CELL_LSTM 2
#define CELL_GRU 3
#define SIGMOID(x) (1.0f / (1.0f + EXP(-(x))))

/* to[b][j] = from[b][j], zeros without a from. Buffers from, to; ints batch, units, the steps from a row to
   the next of both. */
KERNEL(recurrent_copy)
{
    GLOBAL const float *from = BUFFER(0, const float);
    GLOBAL float *to = BUFFER(1, float);
    const unsigned units = (unsigned)INT(1), i = ELEMENT;
    if (i < (unsigned)INT(0) * units) {
        const unsigned b = i / units, j = i % units;
        to[(WIDE)b * INT(3) + j] = from ? from[(WIDE)b * INT(2) + j] : 0.0f;
    }
}

/* Where the h of unit j of sample b before a step lies; its c, if it has one, is `c_behind` further. */
HELPER WIDE dml__state_place(int cell, int batch, int steps, int units, int step, unsigned b, unsigned j)
{
    const WIDE all = (WIDE)batch * steps * units * (cell == CELL_LSTM ? 2 : 1);
    if (step < 0 || step >= steps) return all + (WIDE)b * units + j;
    return ((WIDE)b * steps + step) * units + j;
}

HELPER WIDE dml__c_behind(int batch, int steps, int units, int step)
{
    return (WIDE)batch * units * (step < 0 || step >= steps ? 1 : steps);
}

HELPER float dml__bias_of(GLOBAL const float *bias, WIDE at)
{
    return bias ? bias[at] : 0.0f;
}

/* Of gates, which hold the products, it makes what follows. Buffers gates, states, y, lengths (int), b_ih,
   b_hh; all but the first two may be missing. */
KERNEL(recurrent_forward)
{
    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);
    GLOBAL float *states = BUFFER(1, float);
    GLOBAL float *y = BUFFER(2, float);
    GLOBAL const int *lengths = BUFFER(3, const int);
    GLOBAL const float *b_ih = BUFFER(4, const float);
    GLOBAL const float *b_hh = BUFFER(5, const float);
    const unsigned i = ELEMENT;
    if (i < (unsigned)batch * (unsigned)units) {
        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;
        const int width = cell >= CELL_LSTM ? 4 * units : units;
        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;
        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);
        GLOBAL float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);
        const WIDE c_before = dml__c_behind(batch, steps, units, step);
        const WIDE c_behind = dml__c_behind(batch, steps, units, next);
        const int counts = !lengths || step < lengths[b];
        float h = *before;
        if (!counts) {
            if (cell == CELL_LSTM) behind[c_behind] = before[c_before];
        } else if (cell == CELL_LSTM) {
            const float gi = SIGMOID(z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));
            const float gf =
                SIGMOID(z[units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));
            const float gg =
                TANH(z[2 * units] + dml__bias_of(b_ih, 2 * units + j) + dml__bias_of(b_hh, 2 * units + j));
            const float go =
                SIGMOID(z[3 * units] + dml__bias_of(b_ih, 3 * units + j) + dml__bias_of(b_hh, 3 * units + j));
            const float c = gf * before[c_before] + gi * gg;
            z[0] = gi, z[units] = gf, z[2 * units] = gg, z[3 * units] = go;
            behind[c_behind] = c;
            h = go * TANH(c);
        } else if (cell == CELL_GRU) { /* n r z and the state's part of n */
            const float r = SIGMOID(z[units] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));
            const float u =
                SIGMOID(z[2 * units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));
            const float by_h = z[3 * units] + dml__bias_of(b_hh, 2 * units + j);
            const float n = TANH(z[0] + dml__bias_of(b_ih, 2 * units + j) + r * by_h);
            z[0] = n, z[units] = r, z[2 * units] = u, z[3 * units] = by_h;
            h = n + u * (h - n);
        } else {
            const float a = z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j);
            h = cell == CELL_RELU ? (a <= 0.0f ? 0.0f : a) : TANH(a);
            z[0] = h;
        }
        *behind = h;
        if (y) y[(WIDE)b * INT(6) + (WIDE)step * units + j] = counts ? h : 0.0f;
    }
}

/* The gates become their gradients; `carried`, those of h and, behind all of them, of c behind the step,
   become what they are without the product of h. Buffers gates, states, dy, lengths (int), carried; dy and
   lengths may be missing. */
KERNEL(recurrent_backward)
{
    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);
    GLOBAL const float *states = BUFFER(1, const float);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL const int *lengths = BUFFER(3, const int);
    const unsigned i = ELEMENT;
    if (i < (unsigned)batch * (unsigned)units) {
        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;
        const int width = cell >= CELL_LSTM ? 4 * units : units;
        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;
        GLOBAL float *dh = BUFFER(4, float) + i;
        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);
        GLOBAL const float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);
        if (lengths && step >= lengths[b]) {
            for (int g = 0; g < width; g += units) z[g] = 0.0f;
        } else {
            const float d = *dh + (dy ? dy[(WIDE)b * INT(6) + (WIDE)step * units + j] : 0.0f);
            *dh = 0.0f;
            if (cell == CELL_LSTM) {
                GLOBAL float *dc = dh + (WIDE)batch * units;
                const float gi = z[0], gf = z[units], gg = z[2 * units], go = z[3 * units];
                const float tanh_c = TANH(behind[dml__c_behind(batch, steps, units, next)]);
                const float of_c = *dc + d * go * (1.0f - tanh_c * tanh_c);
                z[0] = of_c * gg * gi * (1.0f - gi);
                z[units] = of_c * before[dml__c_behind(batch, steps, units, step)] * gf * (1.0f - gf);
                z[2 * units] = of_c * gi * (1.0f - gg * gg);
                z[3 * units] = d * tanh_c * go * (1.0f - go);
                *dc = of_c * gf;
            } else if (cell == CELL_GRU) {
                const float n = z[0], r = z[units], u = z[2 * units];
                const float dn = d * (1.0f - u) * (1.0f - n * n);
                z[0] = dn;
                z[units] = dn * z[3 * units] * r * (1.0f - r);
                z[2 * units] = d * (*before - n) * u * (1.0f - u);
                z[3 * units] = dn * r;
                *dh = d * u;
            } else {
                const float h = z[0];
                z[0] = cell == CELL_RELU ? (h > 0.0f ? d : 0.0f) : d * (1.0f - h * h);
            }
        }
    }
}
#undef SIGMOID

#endif
