#ifndef DML_KERNELS_SOFTMAX_C
#define DML_KERNELS_SOFTMAX_C

#include "kernels/softmax.h"

#include "kernels/blocks.h"
#include "kernels/vector_math.h"
#include "kernels/vector_math_wide.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* Floats added up in a vector before its lanes go on in double. */
#define DML__SOFTMAX_CHUNK ((size_t)32 * DML__LANES)

/* Short rows go together through each pass, as many as stay in the first cache: one by one, each pass would
   wait for what the one before it makes of the row's lanes. */
#define DML__SOFTMAX_ROWS ((size_t)16)
#define DML__SOFTMAX_NEAR                                                                                    \
    ((size_t)2048) /* floats; as many are asked for ahead, by the pass of the exponentials */

/* Columns done side by side where the axis isn't the last. */
#define DML__SOFTMAX_COLUMNS ((size_t)64)

typedef struct dml__softmax_axis {
    dml_isa isa;
    bool logs, backward;
    size_t outer, n, inner, groups;
    const float *x; /* (outer, n, inner): of backward, y */
    const float *dy;
    float beta;
    float *out; /* y, or dx */
} dml__softmax_axis;

/* `count` lanes, or all if that is more, by a copy: a loop would be compiled wherever one stands. */
DML__BODY void dml__softmax_load(dml__vf *vector, const float *from, size_t count)
{
    float lanes[DML__LANES] = { 0 };
    if (count < DML__LANES) memcpy(lanes, from, count * sizeof *lanes);
    *vector = DML__LOAD(count < DML__LANES ? lanes : from);
}

DML__BODY void dml__softmax_store(float *to, const dml__vf *vector, size_t count)
{
    float lanes[DML__LANES];
    DML__STORE(count < DML__LANES ? lanes : to, *vector);
    if (count < DML__LANES) memcpy(to, lanes, count * sizeof *lanes);
}

/* ---- the last axis ---- */

/* A row of n > 0 numbers in whole vectors and a rest. `room` floats of its arrays, from its first on, are
   this thread's: where they hold it in whole vectors, its rest is read and written with what lies behind it,
   which stays as it is. */
typedef struct dml__softmax_ends {
    size_t whole, rest;
    bool wide;
} dml__softmax_ends;

DML__BODY dml__softmax_ends dml__softmax_ends_of(size_t n, size_t room)
{
    const size_t whole = n - n % DML__LANES;
    const dml__softmax_ends ends = { whole, n - whole, room >= whole + DML__LANES };
    return ends;
}

/* The rest from memory, `fill` in the other lanes; and back. */
DML__BODY void dml__softmax_load_rest(const dml__softmax_ends *ends, const float *from, float fill,
                                      dml__vf *value)
{
    dml__vi in_row;
    dml__vf others;
    dml__first_lanes(&in_row, ends->rest);
    dml__splat(&others, fill);
    if (ends->wide)
        *value = DML__LOAD(from + ends->whole);
    else
        dml__softmax_load(value, from + ends->whole, ends->rest);
    *value = DML__SELECT(in_row, *value, others);
}

DML__BODY void dml__softmax_store_rest(const dml__softmax_ends *ends, float *to, const dml__vf *value)
{
    dml__vi in_row;
    dml__first_lanes(&in_row, ends->rest);
    if (ends->wide)
        DML__STORE(to + ends->whole, DML__SELECT(in_row, *value, DML__LOAD(to + ends->whole)));
    else
        dml__softmax_store(to + ends->whole, value, ends->rest);
}

DML__BODY float dml__softmax_top(size_t n, size_t room, const float *x)
{
    const dml__softmax_ends ends = dml__softmax_ends_of(n, room);
    dml__vf largest, value = { 0 };
    dml__splat(&largest, -HUGE_VALF);
    if (ends.rest) {
        dml__softmax_load_rest(&ends, x, -HUGE_VALF, &value);
        largest = DML__SELECT(value > largest, value, largest);
    }
    for (size_t c = 0; c < ends.whole; c += DML__LANES) {
        value = DML__LOAD(x + c);
        largest = DML__SELECT(value > largest, value, largest);
    }
    return dml__largest_lane(&largest);
}

/* The sum of e^(x - top), which are left in `out` but for logarithms. */
DML__BODY double dml__softmax_raise(bool logs, size_t n, size_t room, float top, const float *x, float *out)
{
    const dml__softmax_ends ends = dml__softmax_ends_of(n, room);
    dml__vf total = { 0 }, value = { 0 };
    double sum = 0;
    if (ends.rest) {
        dml__softmax_load_rest(&ends, x, -HUGE_VALF, &value);
        value = value - top;
        dml__vector_exp_down(&value); /* 0 beyond the row */
        if (!logs) dml__softmax_store_rest(&ends, out, &value);
        total = value;
    }
    for (size_t i = 0; i < ends.whole;) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, ends.whole);
        for (; i < end; i += DML__LANES) {
            dml__ask(x + i, DML__SOFTMAX_NEAR);
            value = DML__LOAD(x + i) - top;
            dml__vector_exp_down(&value);
            if (!logs) DML__STORE(out + i, value);
            total += value;
        }
        if (end == ends.whole) break;
        sum += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    return sum + dml__add_lanes(&total);
}

DML__BODY void dml__softmax_scale(bool logs, size_t n, size_t room, float top, double sum, const float *x,
                                  float *out)
{
    const dml__softmax_ends ends = dml__softmax_ends_of(n, room);
    const float scale = (float)(1.0 / sum), shift = logs ? logf((float)sum) : 0;
    const float *from = logs ? x : out;
    dml__vf value = { 0 };
    for (size_t i = 0; i < ends.whole; i += DML__LANES) {
        value = DML__LOAD(from + i);
        DML__STORE(out + i, logs ? (value - top) - shift : value * scale);
    }
    if (!ends.rest) return;
    dml__softmax_load_rest(&ends, from, 0, &value);
    value = logs ? (value - top) - shift : value * scale;
    dml__softmax_store_rest(&ends, out, &value);
}

static inline size_t dml__softmax_rows_at_once(size_t n)
{
    return n < DML__SOFTMAX_NEAR / DML__SOFTMAX_ROWS ? DML__SOFTMAX_ROWS : 1 + (DML__SOFTMAX_NEAR - 1) / n;
}

/* y = softmax(x) of each row, or its logarithm. A NaN makes the sum and with it the whole row NaN. */
DML__BODY void dml__softmax_of_rows_narrow_body(bool logs, size_t rows, size_t n, const float *x, float *y)
{
    const size_t most = dml__softmax_rows_at_once(n);
    float top[DML__SOFTMAX_ROWS];
    double sum[DML__SOFTMAX_ROWS];
    for (size_t first = 0, count; first < rows; first += count) {
        const size_t at = first * n, room = (rows - first) * n;
        count = dml__minimum(most, rows - first);
        for (size_t r = 0; r < count; r++) top[r] = dml__softmax_top(n, room - r * n, x + at + r * n);
        for (size_t r = 0; r < count; r++)
            sum[r] = dml__softmax_raise(logs, n, room - r * n, top[r], x + at + r * n, y + at + r * n);
        for (size_t r = 0; r < count; r++)
            dml__softmax_scale(logs, n, room - r * n, top[r], sum[r], x + at + r * n, y + at + r * n);
    }
}

#if defined(DML__HAS_AVX512)

/* The same, where masks take the rest of a row. */
DML__AVX512 DML__INLINE float dml__softmax_top_wide(size_t n, const float *x)
{
    __m512 largest = _mm512_set1_ps(-HUGE_VALF);
    float lanes[DML__WIDE_LANES];
    for (size_t i = 0; i < n; i += DML__WIDE_LANES) {
        const unsigned inside = dml__wide_first(n - i);
        const __m512 value = _mm512_max_ps(dml__avx512_load_some(x + i, inside), largest);
        largest = _mm512_mask_blend_ps((__mmask16)inside, largest, value);
    }
    _mm512_storeu_ps(lanes, largest);
    const dml__vf low = DML__LOAD(lanes), high = DML__LOAD(lanes + DML__LANES);
    const dml__vf larger = DML__SELECT(high > low, high, low);
    return dml__largest_lane(&larger);
}

DML__AVX512 DML__INLINE double dml__softmax_raise_wide(bool logs, size_t n, float top, const float *x,
                                                       float *out)
{
    double sum = 0;
    for (size_t i = 0; i < n;) {
        const size_t end = dml__minimum(i + 2 * DML__SOFTMAX_CHUNK, n);
        __m512 total = _mm512_setzero_ps();
        dml__vf half;
        for (; i < end; i += DML__WIDE_LANES) {
            const unsigned inside = dml__wide_first(end - i);
            dml__ask(x + i, DML__SOFTMAX_NEAR);
            const __m512 value = _mm512_maskz_mov_ps(
                (__mmask16)inside, dml__wide_exp_down(dml__avx512_load_some(x + i, inside) - top));
            if (!logs) dml__avx512_store_some(out + i, inside, value);
            total = total + value;
        }
        half = (dml__vf)dml__avx512_fold(total);
        sum += dml__add_lanes(&half);
    }
    return sum;
}

DML__AVX512 DML__INLINE void dml__softmax_scale_wide(bool logs, size_t n, float top, double sum,
                                                     const float *x, float *out)
{
    const float scale = (float)(1.0 / sum), shift = logs ? logf((float)sum) : 0;
    for (size_t i = 0; i < n; i += DML__WIDE_LANES) {
        const unsigned inside = dml__wide_first(n - i);
        const __m512 value = dml__avx512_load_some((logs ? x : out) + i, inside);
        dml__avx512_store_some(out + i, inside, logs ? (value - top) - shift : value * scale);
    }
}

DML__WIDE_KERNEL void dml__softmax_of_rows_wide(bool logs, size_t rows, size_t n, const float *x, float *y)
{
    const size_t most = dml__softmax_rows_at_once(n);
    float top[DML__SOFTMAX_ROWS];
    double sum[DML__SOFTMAX_ROWS];
    for (size_t count; rows; rows -= count, x += count * n, y += count * n) {
        count = dml__minimum(most, rows);
        for (size_t r = 0; r < count; r++) top[r] = dml__softmax_top_wide(n, x + r * n);
        for (size_t r = 0; r < count; r++)
            sum[r] = dml__softmax_raise_wide(logs, n, top[r], x + r * n, y + r * n);
        for (size_t r = 0; r < count; r++)
            dml__softmax_scale_wide(logs, n, top[r], sum[r], x + r * n, y + r * n);
    }
}

#endif

DML__PER_ISA_OR_WIDE(dml__softmax_of_rows, (bool logs, size_t rows, size_t n, const float *x, float *y),
                     (logs, rows, n, x, y))

/* What of a vector of y and one of dy is added up, and what the sum then makes of them. */
DML__BODY void dml__softmax_term(bool logs, const dml__vf *y, const dml__vf *dy, dml__vf *total)
{
    *total += logs ? *dy : *y * *dy;
}

DML__BODY void dml__softmax_slope(bool logs, const dml__vf *y, const dml__vf *sum, dml__vf *dy)
{
    if (logs) {
        dml__vf p = *y;
        dml__vector_exp_down(&p);
        *dy = *dy - p * *sum;
    } else {
        *dy = *y * (*dy - *sum);
    }
}

DML__BODY double dml__softmax_terms(bool logs, size_t n, size_t room, const float *y, const float *dy)
{
    const dml__softmax_ends ends = dml__softmax_ends_of(n, room);
    dml__vf total = { 0 }, v = { 0 }, d = { 0 };
    double sum = 0;
    if (ends.rest) {
        dml__softmax_load_rest(&ends, y, 0, &v);
        dml__softmax_load_rest(&ends, dy, 0, &d);
        dml__softmax_term(logs, &v, &d, &total);
    }
    for (size_t i = 0; i < ends.whole;) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, ends.whole);
        for (; i < end; i += DML__LANES) {
            v = DML__LOAD(y + i), d = DML__LOAD(dy + i);
            dml__softmax_term(logs, &v, &d, &total);
        }
        if (end == ends.whole) break;
        sum += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    return sum + dml__add_lanes(&total);
}

DML__BODY void dml__softmax_slopes(bool logs, size_t n, size_t room, const float *y, const float *dy,
                                   float all, float beta, float *dx)
{
    const dml__softmax_ends ends = dml__softmax_ends_of(n, room);
    dml__vf sum, v = { 0 }, value = { 0 }, old = { 0 };
    dml__splat(&sum, all);
    for (size_t i = 0; i < ends.whole; i += DML__LANES) {
        v = DML__LOAD(y + i);
        value = DML__LOAD(dy + i);
        dml__softmax_slope(logs, &v, &sum, &value);
        if (beta != 0) value = value + beta * DML__LOAD(dx + i);
        DML__STORE(dx + i, value);
    }
    if (!ends.rest) return;
    dml__softmax_load_rest(&ends, y, 0, &v);
    dml__softmax_load_rest(&ends, dy, 0, &value);
    dml__softmax_slope(logs, &v, &sum, &value);
    if (beta != 0) {
        dml__softmax_load_rest(&ends, dx, 0, &old);
        value = value + beta * old;
    }
    dml__softmax_store_rest(&ends, dx, &value);
}

DML__BODY void dml__softmax_backward_any_rows(bool logs, size_t rows, size_t n, const float *y,
                                              const float *dy, float beta, float *dx)
{
    const size_t most = dml__softmax_rows_at_once(n);
    float sum[DML__SOFTMAX_ROWS];
    for (size_t first = 0, count; first < rows; first += count) {
        const size_t at = first * n, room = (rows - first) * n;
        count = dml__minimum(most, rows - first);
        for (size_t r = 0; r < count; r++)
            sum[r] = (float)dml__softmax_terms(logs, n, room - r * n, y + at + r * n, dy + at + r * n);
        for (size_t r = 0; r < count; r++)
            dml__softmax_slopes(logs, n, room - r * n, y + at + r * n, dy + at + r * n, sum[r], beta,
                                dx + at + r * n);
    }
}

DML__BODY void dml__softmax_backward_of_rows_body(size_t rows, size_t n, const float *y, const float *dy,
                                                  float beta, float *dx)
{
    dml__softmax_backward_any_rows(false, rows, n, y, dy, beta, dx);
}
DML__PER_ISA(dml__softmax_backward_of_rows,
             (size_t rows, size_t n, const float *y, const float *dy, float beta, float *dx),
             (rows, n, y, dy, beta, dx))

DML__BODY void dml__log_softmax_backward_of_rows_body(size_t rows, size_t n, const float *y, const float *dy,
                                                      float beta, float *dx)
{
    dml__softmax_backward_any_rows(true, rows, n, y, dy, beta, dx);
}
DML__PER_ISA(dml__log_softmax_backward_of_rows,
             (size_t rows, size_t n, const float *y, const float *dy, float beta, float *dx),
             (rows, n, y, dy, beta, dx))

/* ---- another axis ---- */

/* sum[c] += total[c], which begins again. */
DML__BODY void dml__softmax_flush(size_t width, float *total, double *sum)
{
    for (size_t c = 0; c < width; c++) {
        sum[c] += (double)total[c];
        total[c] = 0;
    }
}

/* `width` columns of one o, from its first on. */
DML__BODY void dml__softmax_forward_columns_body(bool logs, size_t n, size_t inner, size_t width,
                                                 const float *x, float *y)
{
    float top[DML__SOFTMAX_COLUMNS], total[DML__SOFTMAX_COLUMNS];
    double sum[DML__SOFTMAX_COLUMNS];
    dml__vf value = { 0 };
    for (size_t c = 0; c < DML__SOFTMAX_COLUMNS; c++) top[c] = -HUGE_VALF, total[c] = 0, sum[c] = 0;
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < width; c += DML__LANES) {
            const dml__vf before = DML__LOAD(top + c);
            dml__softmax_load(&value, x + k * inner + c, width - c);
            DML__STORE(top + c, DML__SELECT(value > before, value, before));
        }
    for (size_t k = 0; k < n; k++) {
        for (size_t c = 0; c < width; c += DML__LANES) {
            dml__ask(x + k * inner + c, n * inner); /* of the next o */
            dml__softmax_load(&value, x + k * inner + c, width - c);
            value = value - DML__LOAD(top + c);
            dml__vector_exp_down(&value);
            if (!logs) dml__softmax_store(y + k * inner + c, &value, width - c);
            DML__STORE(total + c, DML__LOAD(total + c) + value);
        }
        if (k % 32 == 31 || k == n - 1) dml__softmax_flush(width, total, sum);
    }
    for (size_t c = 0; c < width; c++) total[c] = (float)(logs ? log(sum[c]) : 1.0 / sum[c]);
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < width; c += DML__LANES) {
            dml__softmax_load(&value, (logs ? x : y) + k * inner + c, width - c);
            if (logs)
                value = (value - DML__LOAD(top + c)) - DML__LOAD(total + c);
            else
                value = value * DML__LOAD(total + c);
            dml__softmax_store(y + k * inner + c, &value, width - c);
        }
}
DML__PER_ISA(dml__softmax_forward_columns,
             (bool logs, size_t n, size_t inner, size_t width, const float *x, float *y),
             (logs, n, inner, width, x, y))

DML__BODY void dml__softmax_backward_columns_body(bool logs, size_t n, size_t inner, size_t width,
                                                  const float *y, const float *dy, float beta, float *dx)
{
    float total[DML__SOFTMAX_COLUMNS];
    double sum[DML__SOFTMAX_COLUMNS];
    dml__vf v = { 0 }, d = { 0 }, old = { 0 }, all;
    for (size_t c = 0; c < DML__SOFTMAX_COLUMNS; c++) total[c] = 0, sum[c] = 0;
    for (size_t k = 0; k < n; k++) {
        for (size_t c = 0; c < width; c += DML__LANES) {
            all = DML__LOAD(total + c);
            dml__softmax_load(&v, y + k * inner + c, width - c);
            dml__softmax_load(&d, dy + k * inner + c, width - c);
            dml__softmax_term(logs, &v, &d, &all);
            DML__STORE(total + c, all);
        }
        if (k % 32 == 31 || k == n - 1) dml__softmax_flush(width, total, sum);
    }
    for (size_t c = 0; c < width; c++) total[c] = (float)sum[c];
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < width; c += DML__LANES) {
            all = DML__LOAD(total + c);
            dml__softmax_load(&v, y + k * inner + c, width - c);
            dml__softmax_load(&d, dy + k * inner + c, width - c);
            dml__softmax_slope(logs, &v, &all, &d);
            if (beta != 0) {
                dml__softmax_load(&old, dx + k * inner + c, width - c);
                d = d + beta * old;
            }
            dml__softmax_store(dx + k * inner + c, &d, width - c);
        }
}
DML__PER_ISA(dml__softmax_backward_columns,
             (bool logs, size_t n, size_t inner, size_t width, const float *y, const float *dy, float beta,
              float *dx),
             (logs, n, inner, width, y, dy, beta, dx))

/* ---- both ---- */

DML__DRIVERS_BEGIN

static void dml__softmax_axis_task(void *argument, int task, int worker)
{
    const dml__softmax_axis *job = (const dml__softmax_axis *)argument;
    const size_t each = job->n * dml__minimum(job->inner, DML__SOFTMAX_COLUMNS);
    const size_t step = dml__items_per_task(each), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->outer * job->groups);
    (void)worker;
    if (job->inner == 1) {
        const size_t at = begin * job->n;
        if (job->backward)
            (job->logs ? dml__log_softmax_backward_of_rows : dml__softmax_backward_of_rows)(
                job->isa, end - begin, job->n, job->x + at, job->dy + at, job->beta, job->out + at);
        else
            dml__softmax_of_rows(job->isa, job->logs, end - begin, job->n, job->x + at, job->out + at);
        return;
    }
    for (size_t u = begin; u < end; u++) {
        const size_t column = u % job->groups * DML__SOFTMAX_COLUMNS;
        const size_t width = dml__minimum(DML__SOFTMAX_COLUMNS, job->inner - column);
        const size_t at = u / job->groups * job->n * job->inner + column;
        if (job->backward)
            dml__softmax_backward_columns(job->isa, job->logs, job->n, job->inner, width, job->x + at,
                                          job->dy + at, job->beta, job->out + at);
        else
            dml__softmax_forward_columns(job->isa, job->logs, job->n, job->inner, width, job->x + at,
                                         job->out + at);
    }
}

static void dml__softmax_axis_run(dml_pool *pool, dml__softmax_axis *job)
{
    if (job->outer == 0 || job->n == 0 || job->inner == 0) return;
    job->isa = dml__pool_machine(pool).isa;
    job->groups = dml__divide_up(job->inner, DML__SOFTMAX_COLUMNS);
    const size_t each = job->n * dml__minimum(job->inner, DML__SOFTMAX_COLUMNS);
    const size_t tasks = dml__divide_up(job->outer * job->groups, dml__items_per_task(each));
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__softmax_axis_task, job);
}

DML_API void dml_softmax_forward(dml_pool *pool, bool logs, size_t outer, size_t n, size_t inner,
                                 const float *x, float *y)
{
    dml__softmax_axis job = { DML_ISA_SCALAR, logs, false, outer, n, inner, 0, x, NULL, 0, y };
    dml__softmax_axis_run(pool, &job);
}

DML_API void dml_softmax_backward(dml_pool *pool, bool logs, size_t outer, size_t n, size_t inner,
                                  const float *y, const float *dy, float beta, float *dx)
{
    dml__softmax_axis job = { DML_ISA_SCALAR, logs, true, outer, n, inner, 0, y, dy, beta, dx };
    dml__softmax_axis_run(pool, &job);
}

DML__DRIVERS_END

#endif
