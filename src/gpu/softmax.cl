/* softmax.cl: softmax along an axis of arrays (outer, n, inner), or its logarithm.

   A row is the n numbers that share a sum. Where inner is 1, `lanes` items, 16 or all of the group, do a row,
   else 16, of 16 rows side by side, so that neighbours read neighbours. Ints of all: n, inner, rows (outer *
   inner), logs, lanes; size{groups}. */
#ifndef DML_GPU_SOFTMAX_CL
#define DML_GPU_SOFTMAX_CL

/* The item's place, for the statements behind it. */
#define SOFTMAX_BEGIN()                                                                                      \
    const int n = INT(0), inner = INT(1), logs = INT(3), lanes = INT(4);                                     \
    const int step = inner == 1 ? 1 : 16, in_group = DML__GROUP_ITEMS / lanes;                               \
    const int lane = inner == 1 ? ITEM % lanes : ITEM / 16;                                                  \
    const int row_here = inner == 1 ? ITEM / lanes : ITEM % 16;                                              \
    const int row = GROUP_X * in_group + row_here, first = inner == 1 ? row_here * lanes : row_here;         \
    const int inside = row < INT(2);                                                                         \
    const WIDE begin = (WIDE)(row / inner) * n * inner + row % inner

/* Buffers x, y, which may be the same. */
KERNEL(softmax_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    SOFTMAX_BEGIN();
    LOCAL float part[DML__GROUP_ITEMS];
    float largest = MINUS_INFINITY, sum = 0.0f;
    if (inside)
        for (int k = lane; k < n; k += lanes) {
            const float v = x[begin + (WIDE)k * inner];
            if (v > largest) largest = v;
        }
    part[ITEM] = largest;
    REDUCE_MAX(part, lane, lanes, step);
    largest = part[first];
    BARRIER(); /* all have read the maximum before its place is used again */
    if (inside)
        for (int k = lane; k < n; k += lanes) {
            const float e = EXP(x[begin + (WIDE)k * inner] - largest);
            if (!logs) y[begin + (WIDE)k * inner] = e;
            sum += e;
        }
    part[ITEM] = sum;
    REDUCE_SUM(part, lane, lanes, step);
    sum = part[first];
    if (inside) {
        const float shift = logs ? LOG(sum) : 0.0f;
        for (int k = lane; k < n; k += lanes) {
            const WIDE i = begin + (WIDE)k * inner;
            y[i] = logs ? x[i] - largest - shift : y[i] / sum;
        }
    }
}

/* dx = y (dy - sum(y dy)) + beta dx, with logs dy - exp(y) sum(dy) + beta dx. Buffers y, dy, dx, which may be
   dy; floats beta. */
KERNEL(softmax_backward)
{
    GLOBAL const float *y = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    SOFTMAX_BEGIN();
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    if (inside)
        for (int k = lane; k < n; k += lanes) {
            const WIDE i = begin + (WIDE)k * inner;
            sum += logs ? dy[i] : y[i] * dy[i];
        }
    part[ITEM] = sum;
    REDUCE_SUM(part, lane, lanes, step);
    sum = part[first];
    if (inside)
        for (int k = lane; k < n; k += lanes) {
            const WIDE i = begin + (WIDE)k * inner;
            const float d = logs ? dy[i] - EXP(y[i]) * sum : y[i] * (dy[i] - sum);
            dx[i] = dml__with_beta(d, REAL(0), dx + i);
        }
}

#endif
