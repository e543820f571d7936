#ifndef DML_KERNELS_SOFTMAX_C
#define DML_KERNELS_SOFTMAX_C

#include "kernels/softmax.h"

#include "kernels/blocks.h"
#include "kernels/softmax_row.h"
#include "thread/pool_internal.h"

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

/* ---- the last axis ---- */

DML__BODY void dml__softmax_forward_rows_body(bool logs, size_t rows, size_t n, const float *x, float *y)
{
    float maximum, sum;
    for (size_t at = 0; at < rows * n; at += n)
        dml__softmax_row(logs, n, rows * n - at, x + at, y + at, &maximum, &sum);
}
DML__PER_ISA(dml__softmax_forward_rows, (bool logs, size_t rows, size_t n, const float *x, float *y),
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
        dml__vector_exp(&p);
        *dy = *dy - p * *sum;
    } else {
        *dy = *y * (*dy - *sum);
    }
}

/* `room` is as with dml__softmax_row. */
DML__BODY void dml__softmax_backward_row(bool logs, size_t n, size_t room, const float *y, const float *dy,
                                         float beta, float *dx)
{
    const size_t whole = n - n % DML__LANES, rest = n - whole;
    const bool wide = room >= whole + DML__LANES;
    dml__vf last_y = { 0 }, last = { 0 }, total = { 0 }, zero = { 0 }, value, old = { 0 }, sum;
    dml__vi in_row;
    dml__first_lanes(&in_row, rest);
    if (rest && wide) {
        last_y = DML__LOAD(y + whole);
        last = DML__LOAD(dy + whole);
    } else if (rest) {
        dml__load_some(&last_y, y + whole, rest);
        dml__load_some(&last, dy + whole, rest);
    }
    value = DML__SELECT(in_row, last_y, zero);
    last = DML__SELECT(in_row, last, zero);
    dml__softmax_term(logs, &value, &last, &total);
    double sum64 = 0;
    for (size_t i = 0; i < whole;) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, whole);
        for (; i < end; i += DML__LANES) {
            const dml__vf v = DML__LOAD(y + i), d = DML__LOAD(dy + i);
            dml__softmax_term(logs, &v, &d, &total);
        }
        sum64 += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    if (!whole) sum64 = dml__add_lanes(&total);
    dml__splat(&sum, (float)sum64);
    for (size_t i = 0; i < whole; i += DML__LANES) {
        const dml__vf v = DML__LOAD(y + i);
        value = DML__LOAD(dy + i);
        dml__softmax_slope(logs, &v, &sum, &value);
        if (beta != 0) value = value + beta * DML__LOAD(dx + i);
        DML__STORE(dx + i, value);
    }
    if (!rest) return;
    dml__softmax_slope(logs, &last_y, &sum, &last);
    if (beta != 0) {
        if (wide)
            old = DML__LOAD(dx + whole);
        else
            dml__load_some(&old, dx + whole, rest);
        last = last + beta * old;
    }
    if (wide)
        DML__STORE(dx + whole, DML__SELECT(in_row, last, DML__LOAD(dx + whole)));
    else
        dml__store_some(dx + whole, &last, rest);
}

DML__BODY void dml__softmax_backward_rows_of_body(bool logs, size_t rows, size_t n, const float *y,
                                                  const float *dy, float beta, float *dx)
{
    for (size_t at = 0; at < rows * n; at += n)
        dml__softmax_backward_row(logs, n, rows * n - at, y + at, dy + at, beta, dx + at);
}
DML__PER_ISA(dml__softmax_backward_rows_of,
             (bool logs, size_t rows, size_t n, const float *y, const float *dy, float beta, float *dx),
             (logs, rows, n, y, dy, beta, dx))

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
            dml__load_some(&value, x + k * inner + c, width - c);
            DML__STORE(top + c, DML__SELECT(value > before, value, before));
        }
    for (size_t k = 0; k < n; k++) {
        for (size_t c = 0; c < width; c += DML__LANES) {
            dml__load_some(&value, x + k * inner + c, width - c);
            value = value - DML__LOAD(top + c);
            dml__vector_exp(&value);
            if (!logs) dml__store_some(y + k * inner + c, &value, width - c);
            DML__STORE(total + c, DML__LOAD(total + c) + value);
        }
        if (k % 32 == 31 || k == n - 1) dml__softmax_flush(width, total, sum);
    }
    for (size_t c = 0; c < width; c++) total[c] = (float)(logs ? log(sum[c]) : 1.0 / sum[c]);
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < width; c += DML__LANES) {
            dml__load_some(&value, (logs ? x : y) + k * inner + c, width - c);
            if (logs)
                value = (value - DML__LOAD(top + c)) - DML__LOAD(total + c);
            else
                value = value * DML__LOAD(total + c);
            dml__store_some(y + k * inner + c, &value, width - c);
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
            dml__load_some(&v, y + k * inner + c, width - c);
            dml__load_some(&d, dy + k * inner + c, width - c);
            dml__softmax_term(logs, &v, &d, &all);
            DML__STORE(total + c, all);
        }
        if (k % 32 == 31 || k == n - 1) dml__softmax_flush(width, total, sum);
    }
    for (size_t c = 0; c < width; c++) total[c] = (float)sum[c];
    for (size_t k = 0; k < n; k++)
        for (size_t c = 0; c < width; c += DML__LANES) {
            all = DML__LOAD(total + c);
            dml__load_some(&v, y + k * inner + c, width - c);
            dml__load_some(&d, dy + k * inner + c, width - c);
            dml__softmax_slope(logs, &v, &all, &d);
            if (beta != 0) {
                dml__load_some(&old, dx + k * inner + c, width - c);
                d = d + beta * old;
            }
            dml__store_some(dx + k * inner + c, &d, width - c);
        }
}
DML__PER_ISA(dml__softmax_backward_columns,
             (bool logs, size_t n, size_t inner, size_t width, const float *y, const float *dy, float beta,
              float *dx),
             (logs, n, inner, width, y, dy, beta, dx))

/* ---- both ---- */

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
            dml__softmax_backward_rows_of(job->isa, job->logs, end - begin, job->n, job->x + at, job->dy + at,
                                          job->beta, job->out + at);
        else
            dml__softmax_forward_rows(job->isa, job->logs, end - begin, job->n, job->x + at, job->out + at);
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

#endif
