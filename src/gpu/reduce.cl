/* reduce.cl: many elements into one. Each sum's order is fixed by its length alone. */
#ifndef DML_GPU_REDUCE_CL
#define DML_GPU_REDUCE_CL

/* Kernels that reduce rows split a group into 16 teams of 16 lanes, a team a row. */
#define LANES 16
#define LANE (ITEM % LANES)
#define TEAM (ITEM / LANES)

/* Replaces part[ITEM], where `lane` is 0, by the combination over `lanes` (a power of two) neighbours `step`
   apart. Local memory can't be passed to a function, hence a macro. All items come here. */
#define REDUCE(part, lane, lanes, step, combine)                                                             \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        for (int reach = (lanes) / 2; reach > 0; reach /= 2) {                                               \
            if ((lane) < reach) {                                                                            \
                const int mine = ITEM, other = ITEM + reach * (step);                                        \
                combine;                                                                                     \
            }                                                                                                \
            BARRIER();                                                                                       \
        }                                                                                                    \
    } while (0)
#define REDUCE_SUM(part, lane, lanes, step)                                                                  \
    REDUCE(part, lane, lanes, step, part[mine] = part[mine] + part[other])
#define REDUCE_MAX(part, lane, lanes, step)                                                                  \
    REDUCE(part, lane, lanes, step, part[mine] = part[other] > part[mine] ? part[other] : part[mine])

/* Makes each item's `total` that of its whole team: of the `lanes` items (16 to 256, a power of two) `step`
   apart from item `first` on. `combine` is said of total and other, and is the same the other way round. All
   items come here. Where 32 neighbours can see each other's numbers, those are combined first, and then what
   each 32 have. Elsewhere a few items combine what several have, and then each what those few have, since a
   barrier takes longer than a few numbers of local memory. */
#ifdef WARP_OTHER
#define TEAM_NEIGHBOURS(total, part, first, lanes, combine)                                                  \
    do {                                                                                                     \
        UNROLL for (int reach = 1; reach < 32; reach *= 2)                                                   \
        {                                                                                                    \
            if (reach >= (lanes)) break;                                                                     \
            const float other = WARP_OTHER(total, reach);                                                    \
            total = combine;                                                                                 \
        }                                                                                                    \
        if ((lanes) <= 32) break;                                                                            \
        if (ITEM % 32 == 0) (part)[ITEM / 32] = total;                                                       \
        BARRIER();                                                                                           \
        total = (part)[(first) / 32];                                                                        \
        UNROLL for (int of = 1; of < 8; of++)                                                                \
        {                                                                                                    \
            if (of >= (lanes) / 32) break;                                                                   \
            const float other = (part)[(first) / 32 + of];                                                   \
            total = combine;                                                                                 \
        }                                                                                                    \
        BARRIER(); /* all have read it before its place is used again */                                     \
    } while (0)
#endif
#define TEAM_APART(total, part, first, lane, lanes, step, combine)                                           \
    do {                                                                                                     \
        const int few = (lanes) > 64 ? 16 : (lanes) > 16 ? 8 : 4;                                            \
        (part)[ITEM] = total;                                                                                \
        BARRIER();                                                                                           \
        if ((lane) < few) {                                                                                  \
            for (int of = (lane) + few; of < (lanes); of += few) {                                           \
                const float other = (part)[(first) + of * (step)];                                           \
                total = combine;                                                                             \
            }                                                                                                \
            (part)[ITEM] = total;                                                                            \
        }                                                                                                    \
        BARRIER();                                                                                           \
        total = (part)[first];                                                                               \
        for (int of = 1; of < few; of++) {                                                                   \
            const float other = (part)[(first) + of * (step)];                                               \
            total = combine;                                                                                 \
        }                                                                                                    \
        BARRIER(); /* all have read it before its place is used again */                                     \
    } while (0)
#ifdef WARP_OTHER
#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \
    do {                                                                                                     \
        if ((step) == 1)                                                                                     \
            TEAM_NEIGHBOURS(total, part, first, lanes, combine);                                             \
        else                                                                                                 \
            TEAM_APART(total, part, first, lane, lanes, step, combine);                                      \
    } while (0)
#else
#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \
    TEAM_APART(total, part, first, lane, lanes, step, combine)
#endif
#define TEAM_SUM(total, part, first, lane, lanes, step)                                                      \
    TEAM_TOTAL(total, part, first, lane, lanes, step, (total) + other)
#define TEAM_MOST(total, part, first, lane, lanes, step)                                                     \
    TEAM_TOTAL(total, part, first, lane, lanes, step, other > (total) ? other : (total))

/* How many numbers of a row an item keeps in registers, and how many it reads at once of what is longer. A
   CPU has its caches for the first, and does the items of a group in vectors instead of the second. */
#ifdef DML__RUN
#define ROW_KEPT 1
#define ROW_AHEAD 1
#else
#define ROW_KEPT 16
#define ROW_AHEAD 8
#endif
#define EXPONENTIALS_AHEAD 8 /* where those of a largest number are added up */
/* Before a statement for each k below `count`, of number i, from `begin` on in steps; i is below n. */
#define EACH_AHEAD(count, k, i, begin, step, n)                                                              \
    UNROLL for (int k = 0, i = (begin); k < (count); k++, i += (step)) if (i < (n))
/* The same of a row that `lanes` items do: number k of this item's lies k * lanes behind its first, and of
   the row `left` are there from that one on. */
#define EACH_LEFT(count, k, left) UNROLL for (int k = 0; k < (count); k++) if (k * lanes < (left))

/* Calls what does a row with its lanes, 16, 64 or 256 (dml__row_lanes of graph/op.h), as a constant: then
   loads and stores have room for the distances between an item's numbers, which would else be an instruction
   or two for each. */
#ifdef DML__RUN
#define BY_LANES(lanes, call) call(lanes)
#else
#define BY_LANES(lanes, call)                                                                                \
    do {                                                                                                     \
        if ((lanes) == 16)                                                                                   \
            call(16);                                                                                        \
        else if ((lanes) == 64)                                                                              \
            call(64);                                                                                        \
        else                                                                                                 \
            call(256);                                                                                       \
    } while (0)
#endif

/* y[o][c] = sum over r of x[o][r][c] + beta y[o][c]. Buffers x, y; ints rows, columns, outer, and, where the
   outer ones are parts of the rows of one, how many that one has, else 0; floats beta; size{columns, outer}.
   A group does 16 columns; neighbouring items do neighbouring columns, so rows are read in sequence. */
KERNEL(sum_rows)
{
    const int columns = INT(1), across = columns > 8 ? 16 : columns > 4 ? 8 : columns > 2 ? 4 : columns;
    const int lanes = DML__GROUP_ITEMS / across;
    const WIDE on = (WIDE)lanes * columns;
    const WIDE left = INT(3) - (WIDE)GROUP_Y * INT(0); /* rows of the one that aren't of a part before */
    const int rows = INT(3) && left < INT(0) ? (int)left : INT(0);
    GLOBAL const float *x = BUFFER(0, const float) + (WIDE)GROUP_Y * INT(0) * columns;
    GLOBAL float *y = BUFFER(1, float) + (WIDE)GROUP_Y * columns;
    const float beta = REAL(0);
    const int column = GROUP_X * 16 + ITEM % across, lane = ITEM / across;
    const int inside = column < columns && GROUP_Y < INT(2); /* groups may be more than there is */
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    if (inside)
        for (int first = lane; first < rows; first += ROW_AHEAD * lanes) {
            float value[ROW_AHEAD];
            GLOBAL const float *from = x + (WIDE)first * columns + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, lanes, rows)
            {
                value[k] = *from;
                from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];
        }
    TEAM_SUM(sum, part, ITEM % across, lane, lanes, across);
    if (lane == 0 && inside) y[column] = dml__with_beta(sum, beta, y + column);
}

/* out[r] = the column of the largest x[r][c], the first of equals. Buffers x, out (int); ints rows, columns;
   size{rows}. */
KERNEL(argmax)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL int *out = BUFFER(1, int);
    const int rows = INT(0), columns = INT(1);
    const int row = GROUP_X * LANES + TEAM;
    LOCAL float largest[DML__GROUP_ITEMS];
    LOCAL int place[DML__GROUP_ITEMS];
    float best = MINUS_INFINITY;
    int where = 0; /* of an empty lane too: it can tie only with minus infinity, and column 0 is first then */
    if (row < rows && LANE < columns) {
        GLOBAL const float *from = x + (WIDE)row * columns;
        best = from[LANE], where = LANE;
        for (int column = LANE + LANES; column < columns; column += LANES)
            if (dml__beats(from[column], best)) best = from[column], where = column;
    }
    largest[ITEM] = best;
    place[ITEM] = where;
    REDUCE(largest, LANE, LANES, 1, {
        const int tie =
            !dml__beats(largest[other], largest[mine]) && !dml__beats(largest[mine], largest[other]);
        if (tie ? place[other] < place[mine] : dml__beats(largest[other], largest[mine])) {
            largest[mine] = largest[other];
            place[mine] = place[other];
        }
    });
    if (LANE == 0 && row < rows) out[row] = place[ITEM];
}

/* y[o][i] = scale times what is made of x[o][k][i] over all k: 0 their sum, 1 the largest, 2 the smallest, 3
   the sum of sizes, 4 the root of the sum of squares, 5 how many are of[o][i]. NaNs get through. Buffers x,
   y, of; ints kind, n, inner, outer * inner; floats scale; size{outer * inner}. A group makes 16 of them,
   each with 16 items; neighbouring items read neighbours. */
KERNEL(reduce_axis)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    GLOBAL const float *of = BUFFER(2, const float);
    const int kind = INT(0), n = INT(1), inner = INT(2);
    const int lane = inner == 1 ? ITEM % 16 : ITEM / 16, step = inner == 1 ? 1 : 16;
    const int result = GROUP_X * 16 + (inner == 1 ? ITEM / 16 : ITEM % 16);
    const int inside = result < INT(3), extreme = kind == 1 || kind == 2;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = extreme ? MINUS_INFINITY : 0.0f;
    if (inside) {
        GLOBAL const float *from = x + (WIDE)(result / inner) * n * inner + result % inner;
        const float other = kind == 5 ? of[result] : 0.0f;
        for (int k = lane; k < n; k += 16) {
            const float v = from[(WIDE)k * inner];
            if (extreme) {
                const float turned = kind == 2 ? -v : v;
                if (dml__beats(turned, sum)) sum = turned;
            } else
                sum += kind == 0 ? v : kind == 3 ? ABS(v) : kind == 4 ? v * v : v == other ? 1.0f : 0.0f;
        }
    }
    part[ITEM] = sum;
    REDUCE(part, lane, 16, step, {
        if (!extreme)
            part[mine] = part[mine] + part[other];
        else if (dml__beats(part[other], part[mine]))
            part[mine] = part[other];
    });
    if (lane == 0 && inside) {
        const float all = kind == 2 ? -part[ITEM] : kind == 4 ? SQRT(part[ITEM]) : part[ITEM];
        y[result] = REAL(0) * all;
    }
}

/* dx = its gradient + beta dx; of an extreme's, each of its ties gets the same. Buffers x, y, ties, dy, dx;
   ints kind, n, inner, elements of x; floats scale, beta; size{elements}. */
KERNEL(reduce_axis_backward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *y = BUFFER(1, const float);
    GLOBAL const float *ties = BUFFER(2, const float);
    GLOBAL const float *dy = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    const int kind = INT(0);
    const unsigned inner = (unsigned)INT(2), i = ELEMENT;
    if (i < (unsigned)INT(3)) {
        const unsigned from = i / inner / (unsigned)INT(1) * inner + i % inner;
        float d = REAL(0) * dy[from];
        if (kind == 3) d = x[i] > 0.0f ? d : x[i] < 0.0f ? -d : 0.0f;
        if (kind == 4) d = y[from] != 0.0f ? x[i] * (d / y[from]) : 0.0f;
        if (kind == 1 || kind == 2) d = x[i] == y[from] ? d / ties[from] : 0.0f;
        dx[i] = dml__with_beta(d, REAL(1), dx + i);
    }
}

#endif
