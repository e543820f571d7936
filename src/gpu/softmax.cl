/* softmax.cl: softmax along an axis of arrays (outer, n, inner), or its logarithm.

   A row is the n numbers that share a sum. Where inner is 1, `lanes` items (16, 64 or 256) do a row, else 16,
   of 16 rows side by side, so that neighbours read neighbours. A row of up to ROW_KEPT numbers an item is
   read once; a longer one again, from its end on, which caches have last. Ints of all: n, inner, rows
   (outer * inner), logs, lanes; size{groups}. */
#ifndef DML_GPU_SOFTMAX_CL
#define DML_GPU_SOFTMAX_CL

/* Both kernels are helpers with constants: lanes, and whether inner is 1, where a row is `flat`. */
#define SOFTMAX_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part

/* The item's place, for the statements behind it: its first number lies `begin` behind the array's, and what
   is i further in the row SOFTMAX_ON(i) behind that. */
#define SOFTMAX_BEGIN()                                                                                      \
    const int n = INT(0), inner = flat ? 1 : INT(1), logs = INT(3), step = flat ? 1 : 16;                    \
    const int lane = flat ? ITEM & (lanes - 1) : ITEM / 16;                                                  \
    const int row_here = flat ? (int)((unsigned)ITEM / (unsigned)lanes) : ITEM % 16;                         \
    const int row = GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + row_here;                          \
    const int first = flat ? row_here * lanes : row_here;                                                    \
    const int most = row < INT(2) ? n : 0, kept = n <= lanes * ROW_KEPT;                                     \
    const int outer = flat ? row : (int)((unsigned)row / (unsigned)inner);                                   \
    const WIDE begin = ((WIDE)outer * n + lane) * inner + (row - outer * inner)
#define SOFTMAX_ON(i) (flat ? (i) : (i)*inner)

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

/* Which of them a launch is for. (PoCL computes some groups wrong, at times, behind a branch with barriers on
   both sides.) */
#ifdef DML__RUN
#define SOFTMAX_CHOICE(call) call(INT(1) == 1, INT(4))
#else
#define SOFTMAX_CHOICE(call)                                                                                 \
    do {                                                                                                     \
        if (INT(1) != 1)                                                                                     \
            call(0, 16);                                                                                     \
        else if (INT(4) == 16)                                                                               \
            call(1, 16);                                                                                     \
        else if (INT(4) == 64)                                                                               \
            call(1, 64);                                                                                     \
        else                                                                                                 \
            call(1, 256);                                                                                    \
    } while (0)
#endif

HELPER void dml__softmax_forward_as(SOFTMAX_PARAMETERS, GLOBAL const float *x, GLOBAL float *y,
                                    const dml__kernel_arguments arguments)
{
    SOFTMAX_BEGIN();
    float value[ROW_KEPT], largest = MINUS_INFINITY, sum = 0.0f;
    x += begin, y += begin;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = MINUS_INFINITY;
        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[SOFTMAX_ON(k * lanes)];
        EACH_IN_REGISTERS(ROW_KEPT, k) if (value[k] > largest) largest = value[k];
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const float some = x[SOFTMAX_ON(i - lane)];
            if (some > largest) largest = some;
        }
#else
        for (int from = lane; from < most; from += EXPONENTIALS_AHEAD * lanes) {
            float some[EXPONENTIALS_AHEAD];
            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) some[k] = MINUS_INFINITY;
            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);
            EACH_LEFT(EXPONENTIALS_AHEAD, k, most - from) some[k] = piece[SOFTMAX_ON(k * lanes)];
            ADD_EXPONENTIALS(some, EXPONENTIALS_AHEAD, largest, sum);
        }
#endif
    }
#ifndef DML__RUN
    const float own = largest;
#endif
    TEAM_MOST(largest, part, first, lane, lanes, step);
    if (kept) { /* the exponential of what isn't there is 0 */
        EACH_IN_REGISTERS(ROW_KEPT, k)
        {
            value[k] -= largest;
            const float e = EXP(value[k]);
            if (!logs) value[k] = e;
            sum += e;
        }
    } else {
#ifdef DML__RUN /* a cache takes them, and they take longer to make again */
        for (int i = lane; i < most; i += lanes) {
            const float e = EXP(x[SOFTMAX_ON(i - lane)] - largest);
            if (!logs) y[SOFTMAX_ON(i - lane)] = e;
            sum += e;
        }
#else
        if (own < largest) sum *= EXP(own - largest);
#endif
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    const float shift = logs ? -LOG(sum) : 0.0f, factor = logs ? 1.0f : 1.0f / sum;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = value[k] * factor + shift;
        EACH_LEFT(ROW_KEPT, k, most - lane) y[SOFTMAX_ON(k * lanes)] = value[k];
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const int at = SOFTMAX_ON(i - lane);
            y[at] = (logs ? x[at] - largest : y[at]) * factor + shift;
        }
#else
        SOFTMAX_AGAIN(from)
        {
            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);
            GLOBAL float *to = y + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SOFTMAX_ON(k * lanes)];
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                value[k] -= largest;
                value[k] = (logs ? value[k] : EXP(value[k])) * factor + shift;
            }
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SOFTMAX_ON(k * lanes)] = value[k];
        }
#endif
    }
}

/* Buffers x, y, which may be the same. */
KERNEL(softmax_forward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SOFTMAX_FORWARD_AS(flat, lanes)                                                                      \
    dml__softmax_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, float), arguments)
    SOFTMAX_CHOICE(SOFTMAX_FORWARD_AS);
#undef SOFTMAX_FORWARD_AS
}

#define SOFTMAX_GRADIENT(y, dy) (logs ? (dy)-EXP(y) * sum : (y) * ((dy)-sum))

HELPER void dml__softmax_backward_as(SOFTMAX_PARAMETERS, GLOBAL const float *y, GLOBAL const float *dy,
                                     GLOBAL float *dx, const dml__kernel_arguments arguments)
{
    SOFTMAX_BEGIN();
    float value[ROW_KEPT], d[ROW_KEPT], sum = 0.0f;
    const float beta = REAL(0);
    y += begin, dy += begin, dx += begin;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = d[k] = 0.0f;
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] = y[SOFTMAX_ON(k * lanes)];
            d[k] = dy[SOFTMAX_ON(k * lanes)];
        }
        EACH_IN_REGISTERS(ROW_KEPT, k) sum += logs ? d[k] : value[k] * d[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),
                               *dy_piece = dy + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = logs ? 1.0f : y_piece[SOFTMAX_ON(k * lanes)];
                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k] * d[k];
        }
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            const int at = SOFTMAX_ON(k * lanes);
            dx[at] = dml__with_beta(value[k], beta, dx + at);
        }
    } else {
        SOFTMAX_AGAIN(from)
        {
            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),
                               *dy_piece = dy + SOFTMAX_ON(from - lane);
            GLOBAL float *to = dx + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = y_piece[SOFTMAX_ON(k * lanes)];
                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                const int at = SOFTMAX_ON(k * lanes);
                to[at] = dml__with_beta(value[k], beta, to + at);
            }
        }
    }
}

/* dx = y (dy - sum(y dy)) + beta dx, with logs dy - exp(y) sum(dy) + beta dx. Buffers y, dy, dx, which may be
   dy; floats beta. */
KERNEL(softmax_backward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SOFTMAX_BACKWARD_AS(flat, lanes)                                                                     \
    dml__softmax_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),         \
                             BUFFER(2, float), arguments)
    SOFTMAX_CHOICE(SOFTMAX_BACKWARD_AS);
#undef SOFTMAX_BACKWARD_AS
}

#endif
