/* softmax_row.h: the softmax of a row, for loss.c and softmax.c. */
#ifndef DML_KERNELS_SOFTMAX_ROW_H
#define DML_KERNELS_SOFTMAX_ROW_H

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/vector_math.h"

/* Floats added up in a vector before its lanes go on in double. */
#define DML__SOFTMAX_CHUNK ((size_t)32 * DML__LANES)

static inline float dml__greater(float a, float b)
{
    return b > a ? b : a;
}

/* The largest lane; none is a NaN. */
DML__BODY float dml__largest_lane(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const float low = dml__greater(dml__greater(lanes[0], lanes[1]), dml__greater(lanes[2], lanes[3]));
#if DML__LANES == 8
    return dml__greater(low,
                        dml__greater(dml__greater(lanes[4], lanes[5]), dml__greater(lanes[6], lanes[7])));
#else
    return low;
#endif
}

/* out = softmax(x) over n > 0 columns, or its logarithm, for which it finds the maximum and
   sum(exp(x - maximum)). A NaN makes the sum and with it the whole row NaN. `room` floats of both arrays,
   from the row's first on, are this thread's: where they hold the row in whole vectors, its rest is read and
   written with what lies behind it, which stays as it is. */
DML__BODY void dml__softmax_row(bool logs, size_t n, size_t room, const float *x, float *out, float *maximum,
                                float *sum)
{
    const size_t whole = n - n % DML__LANES, rest = n - whole;
    const bool wide = room >= whole + DML__LANES;
    dml__vf lowest, last, last_x, largest, value, total = { 0 };
    dml__vi in_row;
    dml__splat(&lowest, -HUGE_VALF);
    dml__first_lanes(&in_row, rest);
    last = lowest;
    if (rest) {
        if (wide)
            value = DML__LOAD(x + whole);
        else
            dml__load_some(&value, x + whole, rest);
        last = DML__SELECT(in_row, value, lowest);
    }
    largest = DML__SELECT(last > lowest, last, lowest);
    for (size_t c = 0; c < whole; c += DML__LANES) {
        value = DML__LOAD(x + c);
        largest = DML__SELECT(value > largest, value, largest);
    }
    const float top = dml__largest_lane(&largest);

    last = last_x = last - top;
    dml__vector_exp(&last); /* 0 beyond the row */
    double sum64 = 0;
    total = last;
    for (size_t i = 0; i < whole;) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, whole);
        for (; i < end; i += DML__LANES) {
            value = DML__LOAD(x + i) - top;
            dml__vector_exp(&value);
            if (!logs) DML__STORE(out + i, value);
            total += value;
        }
        if (end == whole) break;
        sum64 += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    sum64 += dml__add_lanes(&total);

    const float scale = (float)(1.0 / sum64), shift = logs ? logf((float)sum64) : 0;
    if (logs)
        for (size_t i = 0; i < whole; i += DML__LANES) DML__STORE(out + i, (DML__LOAD(x + i) - top) - shift);
    else
        for (size_t i = 0; i < whole; i += DML__LANES) DML__STORE(out + i, DML__LOAD(out + i) * scale);
    last = logs ? last_x - shift : last * scale;
    if (rest && wide)
        DML__STORE(out + whole, DML__SELECT(in_row, last, DML__LOAD(out + whole)));
    else if (rest)
        dml__store_some(out + whole, &last, rest);
    *maximum = top;
    *sum = (float)sum64;
}

#endif
