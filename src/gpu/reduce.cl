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

/* y[o][c] = sum over r of x[o][r][c] + beta y[o][c]. Buffers x, y; ints rows, columns, outer; floats
   beta; size{columns, outer}. A group does 16 columns; neighbouring items do neighbouring columns, so rows
   are read in sequence. */
KERNEL(sum_rows)
{
    const int rows = INT(0), columns = INT(1);
    GLOBAL const float *x = BUFFER(0, const float) + (WIDE)GROUP_Y * rows * columns;
    GLOBAL float *y = BUFFER(1, float) + (WIDE)GROUP_Y * columns;
    const float beta = REAL(0);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    const int inside = column < columns && GROUP_Y < INT(2); /* groups may be more than there is */
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    if (inside)
        for (int row = lane; row < rows; row += 16) sum += x[(WIDE)row * columns + column];
    part[ITEM] = sum;
    REDUCE_SUM(part, lane, 16, 16);
    if (lane == 0 && inside) y[column] = dml__with_beta(part[ITEM], beta, y + column);
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

#endif
