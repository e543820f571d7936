/* softmax.cl: softmax along an axis of arrays (outer, n, inner), or its logarithm.

   A row is the n numbers that share a sum. Where inner is 1, `lanes` items (16 to 256, a power of two) do a
   row, else 16, of 16 rows side by side, so that neighbours read neighbours. A row of up to ROW_KEPT numbers
   an item is read once; a longer one again, from its end on, which caches have last. Ints of all: n, inner,
   rows (outer * inner), logs, lanes; size{groups}. */
#ifndef DML_GPU_SOFTMAX_CL
#define DML_GPU_SOFTMAX_CL

/* The item's place, for the statements behind it. */
#define SOFTMAX_BEGIN()                                                                                      \
    const int inner = INT(1), logs = INT(3), lanes = INT(4), n = INT(0);                                     \
    const int step = inner == 1 ? 1 : 16, in_group = DML__GROUP_ITEMS / lanes;                               \
    const int lane = inner == 1 ? ITEM % lanes : ITEM / 16;                                                  \
    const int row_here = inner == 1 ? ITEM / lanes : ITEM % 16;                                              \
    const int row = GROUP_X * in_group + row_here, first = inner == 1 ? row_here * lanes : row_here;         \
    const int most = row < INT(2) ? n : 0, kept = n <= lanes * ROW_KEPT;                                     \
    const WIDE begin = (WIDE)(row / inner) * n * inner + row % inner

/* Before what reads a longer row again, ROW_AHEAD numbers from `from` on. */
#ifdef DML__RUN
#define SOFTMAX_AGAIN(from) for (int from = lane; from < most; from += ROW_AHEAD * lanes)
#else
#define SOFTMAX_AGAIN(from)                                                                                  \
    for (int from = (n - 1) / (ROW_AHEAD * lanes) * (ROW_AHEAD * lanes) + lane; from >= 0;                   \
         from -= ROW_AHEAD * lanes)
#endif

/* Adds the exponentials of `count` numbers to a sum of such that is relative to the largest so far. Where
   that is -infinity there may be NaNs, which count. Source: Milakov, Gimelshein, "Online normalizer
   calculation for softmax", 2018. */
#define ADD_EXPONENTIALS(value, count, largest, sum)                                                         \
    do {                                                                                                     \
        float larger = largest;                                                                              \
        UNROLL for (int of = 0; of < (count); of++) if ((value)[of] > larger) larger = (value)[of];          \
        if (larger > (largest)) sum *= EXP((largest)-larger);                                                \
        largest = larger;                                                                                    \
        larger = larger > MINUS_INFINITY ? larger : 0.0f;                                                    \
        UNROLL for (int of = 0; of < (count); of++) sum += EXP((value)[of] - larger);                        \
    } while (0)

/* Buffers x, y, which may be the same. */
KERNEL(softmax_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    SOFTMAX_BEGIN();
    LOCAL float part[DML__GROUP_ITEMS];
    float value[ROW_KEPT], largest = MINUS_INFINITY, sum = 0.0f;
    if (kept) {
        UNROLL for (int k = 0; k < ROW_KEPT; k++) value[k] = MINUS_INFINITY;
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most) value[k] = x[begin + (WIDE)i * inner];
        UNROLL for (int k = 0; k < ROW_KEPT; k++) if (value[k] > largest) largest = value[k];
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const float some = x[begin + (WIDE)i * inner];
            if (some > largest) largest = some;
        }
#else
        for (int from = lane; from < most; from += EXPONENTIALS_AHEAD * lanes) {
            float some[EXPONENTIALS_AHEAD];
            UNROLL for (int k = 0; k < EXPONENTIALS_AHEAD; k++) some[k] = MINUS_INFINITY;
            EACH_AHEAD(EXPONENTIALS_AHEAD, k, i, from, lanes, most) some[k] = x[begin + (WIDE)i * inner];
            ADD_EXPONENTIALS(some, EXPONENTIALS_AHEAD, largest, sum);
        }
#endif
    }
#ifndef DML__RUN
    const float own = largest;
#endif
    TEAM_MOST(largest, part, first, lane, lanes, step);
    if (kept) {
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most)
        {
            value[k] -= largest;
            const float e = EXP(value[k]);
            if (!logs) value[k] = e;
            sum += e;
        }
    } else {
#ifdef DML__RUN /* a cache takes them, and they take longer to make again */
        for (int i = lane; i < most; i += lanes) {
            const float e = EXP(x[begin + (WIDE)i * inner] - largest);
            if (!logs) y[begin + (WIDE)i * inner] = e;
            sum += e;
        }
#else
        if (own < largest) sum *= EXP(own - largest);
#endif
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    const float shift = logs ? LOG(sum) : 0.0f, factor = 1.0f / sum;
    if (kept) {
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most)
        y[begin + (WIDE)i * inner] = logs ? value[k] - shift : value[k] * factor;
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const WIDE at = begin + (WIDE)i * inner;
            y[at] = logs ? x[at] - largest - shift : y[at] * factor;
        }
#else
        SOFTMAX_AGAIN(from)
        {
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most) value[k] = x[begin + (WIDE)i * inner] - largest;
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most)
            y[begin + (WIDE)i * inner] = logs ? value[k] - shift : EXP(value[k]) * factor;
        }
#endif
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
    float value[ROW_KEPT], d[ROW_KEPT], sum = 0.0f;
    const float beta = REAL(0);
    if (kept) {
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most)
        {
            value[k] = y[begin + (WIDE)i * inner];
            d[k] = dy[begin + (WIDE)i * inner];
        }
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most) sum += logs ? d[k] : value[k] * d[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most)
            {
                value[k] = logs ? 1.0f : y[begin + (WIDE)i * inner];
                d[k] = dy[begin + (WIDE)i * inner];
            }
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most) sum += value[k] * d[k];
        }
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    if (kept) {
        EACH_AHEAD(ROW_KEPT, k, i, lane, lanes, most)
        {
            const WIDE at = begin + (WIDE)i * inner;
            const float gradient = logs ? d[k] - EXP(value[k]) * sum : value[k] * (d[k] - sum);
            dx[at] = dml__with_beta(gradient, beta, dx + at);
        }
    } else {
        SOFTMAX_AGAIN(from)
        {
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most)
            {
                value[k] = y[begin + (WIDE)i * inner];
                d[k] = dy[begin + (WIDE)i * inner];
            }
            EACH_AHEAD(ROW_AHEAD, k, i, from, lanes, most)
            {
                const WIDE at = begin + (WIDE)i * inner;
                const float gradient = logs ? d[k] - EXP(value[k]) * sum : value[k] * (d[k] - sum);
                dx[at] = dml__with_beta(gradient, beta, dx + at);
            }
        }
    }
}

#endif
