/* update.cl: one step of an optimizer, an item an element. The rules are in src/kernels/update.h, what their
   floats are at the kernels of src/kernels/update.c. Buffers w, g, state vectors; ints n, and of a sparse
   parameter the length of its rows and where in one it begins; launches give size{n}. */
#ifndef DML_GPU_UPDATE_CL
#define DML_GPU_UPDATE_CL

/* Whether element i is in a row, of `width` elements, whose gradient is zero throughout: of a sparse
   parameter, which is updated from its row's element `column` on. 0: it isn't one. */
HELPER int dml__is_absent(GLOBAL const float *g, unsigned i, int width, int column)
{
    if (width == 0) return 0;
    GLOBAL const float *row = g + i - (i + (unsigned)column) % (unsigned)width;
    for (int c = 0; c < width; c++)
        if (row[c] != 0.0f) return 0;
    return 1;
}

/* State v, which may be NULL. */
KERNEL(sgd_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), momentum = REAL(1), weight_decay = REAL(2), nesterov = REAL(3);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + weight_decay * w[i];
        float step = d;
        if (v) {
            const float velocity = momentum * v[i] + d;
            v[i] = velocity;
            step = nesterov != 0.0f ? d + momentum * velocity : velocity;
        }
        w[i] -= lr * step;
    }
}

/* State m, v. */
KERNEL(adam_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *m = BUFFER(2, float);
    GLOBAL float *v = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),
                decay = REAL(5), shrink = REAL(6);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;
        m[i] = mean;
        v[i] = square;
        w[i] = shrink * w[i] - size * mean / (SQRT(square) + epsilon);
    }
}

/* State v, b; b may be NULL. */
KERNEL(rmsprop_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    GLOBAL float *b = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2), keep = REAL(3), add = REAL(4),
                momentum = REAL(5);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float square = keep * v[i] + add * d * d;
        float step = d / (SQRT(square) + epsilon);
        v[i] = square;
        if (b) {
            step = momentum * b[i] + step;
            b[i] = step;
        }
        w[i] -= lr * step;
    }
}

/* State v. */
KERNEL(adagrad_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float sum = v[i] + d * d;
        v[i] = sum;
        w[i] -= lr * d / (SQRT(sum) + epsilon);
    }
}

/* g becomes LAMB's direction. State m, v; floats as Adam's. */
KERNEL(lamb_direction)
{
    GLOBAL const float *w = BUFFER(0, const float);
    GLOBAL float *g = BUFFER(1, float);
    GLOBAL float *m = BUFFER(2, float);
    GLOBAL float *v = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),
                decay = REAL(5);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i];
        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;
        m[i] = mean;
        v[i] = square;
        g[i] = size * mean / (SQRT(square) + epsilon) + decay * w[i];
    }
}

/* y[k]: the sum of the squares of every groups-th run of 256 elements of x, from the k-th on.
   Buffers x, y; ints n, groups; size{groups}: a group a sum. */
KERNEL(sum_squares)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0), groups = (unsigned)INT(1);
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    for (unsigned i = ELEMENT; i < n; i += groups * DML__GROUP_ITEMS) sum += x[i] * x[i];
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    if (ITEM == 0) y[GROUP_X] = part[0];
}

/* x times most / (norm + 1e-6) where that is below 1 or NaN, norm the root of the sum of the sums that
   sum_squares left, at most 256. Buffers x, sums; ints n, groups; floats most. */
KERNEL(clip_norm)
{
    GLOBAL float *x = BUFFER(0, float);
    GLOBAL const float *sums = BUFFER(1, const float);
    const unsigned n = (unsigned)INT(0);
    const int groups = INT(1);
    const unsigned i = ELEMENT;
    LOCAL float part[DML__GROUP_ITEMS];
    part[ITEM] = ITEM < groups ? sums[ITEM] : 0.0f;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    const float factor = REAL(0) / (SQRT(part[0]) + 1e-6f);
    if (i < n && !(factor >= 1.0f)) x[i] *= factor;
}

/* g = f (g + decay w), f = trust |w| / (|g| + decay |w| + epsilon), the norms' squares being what sum_squares
   left; 1 for no groups and where a norm is 0. Buffers w, g, sums of w's squares, of g's; ints n, groups;
   floats trust, decay, epsilon. */
KERNEL(trust)
{
    GLOBAL const float *w = BUFFER(0, const float);
    GLOBAL float *g = BUFFER(1, float);
    GLOBAL const float *w_sums = BUFFER(2, const float);
    GLOBAL const float *g_sums = BUFFER(3, const float);
    const unsigned n = (unsigned)INT(0);
    const int groups = INT(1);
    const float decay = REAL(1);
    const unsigned i = ELEMENT;
    LOCAL float w_part[DML__GROUP_ITEMS];
    LOCAL float g_part[DML__GROUP_ITEMS];
    w_part[ITEM] = ITEM < groups ? w_sums[ITEM] : 0.0f;
    g_part[ITEM] = ITEM < groups ? g_sums[ITEM] : 0.0f;
    REDUCE_SUM(w_part, ITEM, DML__GROUP_ITEMS, 1);
    REDUCE_SUM(g_part, ITEM, DML__GROUP_ITEMS, 1);
    const float w_norm = SQRT(w_part[0]), g_norm = SQRT(g_part[0]);
    const int plain = w_norm == 0.0f || g_norm == 0.0f;
    const float factor = plain ? 1.0f : REAL(0) * w_norm / (g_norm + decay * w_norm + REAL(2));
    if (i < n) g[i] = factor * (g[i] + decay * w[i]);
}

/* x cut to -most .. most. Buffers x; ints n; floats most. */
KERNEL(clip_values)
{
    GLOBAL float *x = BUFFER(0, float);
    const unsigned n = (unsigned)INT(0);
    const float most = REAL(0);
    const unsigned i = ELEMENT;
    if (i < n) {
        if (x[i] > most) x[i] = most;
        if (x[i] < -most) x[i] = -most;
    }
}

#endif
