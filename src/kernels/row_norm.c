#ifndef DML_KERNELS_ROW_NORM_C
#define DML_KERNELS_ROW_NORM_C

#include "kernels/row_norm.h"

#include "kernels/blocks.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

#define DML__ROW_STRIP ((size_t)4 * DML__LANES)      /* columns that are done at once, */
#define DML__ROW_CHUNK ((size_t)16 * DML__ROW_STRIP) /* and those that are summed in float */
#define DML__ROW_NEAR ((size_t)2048)     /* floats of rows that are done together, and asked for ahead */
#define DML__ROW_PART_LEAST ((size_t)32) /* rows of a part of the parameters' gradients */
#define DML__ROW_PART_MOST ((size_t)128)

/* One row. A scale or shift that isn't there is a constant strip, to which every column is mapped. */
typedef struct dml__row {
    size_t columns;
    const float *x, *dy, *scale, *shift;
    size_t scale_mask, shift_mask; /* a column's place in them */
    float mean, inverse;
    float *out;
    float beta;
} dml__row;

static const float dml__row_ones[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                       1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static const float dml__row_zeros[32] = { 0 };

enum { DML__ROW_SUM, DML__ROW_SQUARES, DML__ROW_PRODUCTS };

DML__BODY void dml__row_cut(dml__vf *vector, size_t count)
{
    dml__vi inside;
    dml__first_lanes(&inside, count);
    if (count < DML__LANES) *vector = (dml__vf)((dml__vi)*vector & inside);
}

/* The terms of the row's sums in the `count` columns from c on: x; the squares of x - mean, and that; or the
   gradients of what is normalized, scale dy, and these times x - mean. Lanes beyond the row are 0. */
DML__BODY void dml__row_terms(int kind, const dml__row *row, size_t c, size_t count, dml__vf *first,
                              dml__vf *second)
{
    dml__vf x, dy, scale;
    dml__load_some(&x, row->x + c, count);
    if (kind == DML__ROW_SUM) {
        *first = x;
        dml__row_cut(first, count);
        return;
    }
    *second = x - row->mean;
    if (kind == DML__ROW_SQUARES) {
        *first = *second * *second;
    } else {
        dml__load_some(&dy, row->dy + c, count);
        dml__load_some(&scale, row->scale + (c & row->scale_mask), count);
        *first = dy * scale;
        *second = *first * *second;
    }
    dml__row_cut(first, count);
    dml__row_cut(second, count);
}

/* The sums of those terms over the row. (In arrays the vectors would not stay in registers.) */
DML__BODY void dml__row_sums(int kind, const dml__row *at, double sums[2])
{
    const dml__row row = *at;
    const size_t n = row.columns;
    const dml__vf none = { 0 };
    dml__vf a, b = none;
    sums[0] = sums[1] = 0;
    for (size_t c = 0; c < n;) {
        const size_t end = dml__minimum(c + DML__ROW_CHUNK, n);
        dml__vf a0 = none, a1 = none, a2 = none, a3 = none, b0 = none, b1 = none, b2 = none, b3 = none;
        for (; c + DML__ROW_STRIP <= end; c += DML__ROW_STRIP) {
            dml__row_terms(kind, &row, c, DML__LANES, &a, &b);
            a0 += a, b0 += b;
            dml__row_terms(kind, &row, c + DML__LANES, DML__LANES, &a, &b);
            a1 += a, b1 += b;
            dml__row_terms(kind, &row, c + 2 * DML__LANES, DML__LANES, &a, &b);
            a2 += a, b2 += b;
            dml__row_terms(kind, &row, c + 3 * DML__LANES, DML__LANES, &a, &b);
            a3 += a, b3 += b;
        }
        for (; c < end; c += DML__LANES) {
            dml__row_terms(kind, &row, c, end - c, &a, &b);
            a0 += a, b0 += b;
        }
        a = (a0 + a1) + (a2 + a3);
        sums[0] += dml__add_lanes(&a);
        if (kind == DML__ROW_SUM) continue;
        b = (b0 + b1) + (b2 + b3);
        sums[1] += dml__add_lanes(&b);
    }
}

/* The mean found first is off by roundings as large as x, beside which the deviation may be small: so the
   mean of the distances from it counts too. */
DML__BODY void dml__row_inverse(dml__row *row, float epsilon, bool by_square)
{
    const double n = (double)row->columns;
    double sums[2], distance = 0;
    dml__row_sums(DML__ROW_SQUARES, row, sums);
    if (!by_square) distance = sums[1] / n;
    const double square = sums[0] / n - distance * distance;
    row->mean = (float)((double)row->mean + distance);
    row->inverse = (float)(1 / sqrt((square < 0 ? 0 : square) + (double)epsilon));
}

DML__BODY void dml__row_write(const dml__row *row, size_t c, size_t count)
{
    dml__vf x, scale, shift;
    dml__ask(row->x + c, DML__ROW_NEAR);
    dml__load_some(&x, row->x + c, count);
    dml__load_some(&scale, row->scale + (c & row->scale_mask), count);
    dml__load_some(&shift, row->shift + (c & row->shift_mask), count);
    x = (x - row->mean) * row->inverse * scale + shift;
    dml__store_some(row->out + c, &x, count);
}

/* Row r of those from `first` on. */
DML__BODY dml__row dml__row_at(const dml__row *first, size_t r, float mean, float inverse)
{
    dml__row row = *first;
    row.x += r * row.columns;
    row.out += r * row.columns;
    row.mean = mean;
    row.inverse = inverse;
    return row;
}

/* So few rows that they stay in the first cache: all go through each pass before the next, which would wait
   for what the one before it makes of the row's lanes. */
DML__BODY void dml__row_norm_body(size_t rows, const dml__row *first, float epsilon, bool by_square,
                                  float *statistics)
{
    for (size_t r = 0; r < rows; r++) {
        const dml__row row = dml__row_at(first, r, 0, 0);
        double sums[2] = { 0 };
        if (!by_square) dml__row_sums(DML__ROW_SUM, &row, sums);
        statistics[2 * r] = (float)(sums[0] / (double)row.columns);
    }
    for (size_t r = 0; r < rows; r++) {
        dml__row row = dml__row_at(first, r, statistics[2 * r], 0);
        dml__row_inverse(&row, epsilon, by_square);
        statistics[2 * r] = row.mean;
        statistics[2 * r + 1] = row.inverse;
    }
    for (size_t r = 0; r < rows; r++) {
        const dml__row row = dml__row_at(first, r, statistics[2 * r], statistics[2 * r + 1]);
        size_t c = 0;
        DML__BY_FOUR
        for (; c + DML__LANES <= row.columns; c += DML__LANES) dml__row_write(&row, c, DML__LANES);
        if (c < row.columns) dml__row_write(&row, c, row.columns - c);
    }
}
DML__PER_ISA(dml__row_norm,
             (size_t rows, const dml__row *first, float epsilon, bool by_square, float *statistics),
             (rows, first, epsilon, by_square, statistics))

/* dshift += dy, dscale += dy (x - mean) inverse. */
DML__BODY void dml__row_add(const dml__row *row, size_t c, size_t count, float *dshift, float *dscale)
{
    dml__vf x, dy, shift, scale;
    dml__load_some(&x, row->x + c, count);
    dml__load_some(&dy, row->dy + c, count);
    dml__load_some(&shift, dshift + c, count);
    dml__load_some(&scale, dscale + c, count);
    shift += dy;
    scale += dy * ((x - row->mean) * row->inverse);
    dml__store_some(dshift + c, &shift, count);
    dml__store_some(dscale + c, &scale, count);
}

DML__BODY void dml__row_parameters_body(const dml__row *at, float *dshift, float *dscale)
{
    const dml__row row = *at;
    size_t c = 0;
    DML__BY_FOUR
    for (; c + DML__LANES <= row.columns; c += DML__LANES) dml__row_add(&row, c, DML__LANES, dshift, dscale);
    if (c < row.columns) dml__row_add(&row, c, row.columns - c, dshift, dscale);
}
DML__PER_ISA(dml__row_parameters, (const dml__row *at, float *dshift, float *dscale), (at, dshift, dscale))

/* out = inverse scale dy - along (x - mean) - level, + beta out. */
DML__BODY void dml__row_descend(bool adds, const dml__row *row, float along, float level, size_t c,
                                size_t count)
{
    dml__vf x, dy, scale, old;
    dml__load_some(&x, row->x + c, count);
    dml__load_some(&dy, row->dy + c, count);
    dml__load_some(&scale, row->scale + (c & row->scale_mask), count);
    x = (dy * scale * row->inverse - (x - row->mean) * along) - level;
    if (adds) {
        dml__load_some(&old, row->out + c, count);
        x += row->beta * old;
    }
    dml__store_some(row->out + c, &x, count);
}

DML__BODY void dml__row_descend_all(bool adds, const dml__row *at, float along, float level)
{
    const dml__row row = *at;
    size_t c = 0;
    DML__BY_FOUR
    for (; c + DML__LANES <= row.columns; c += DML__LANES)
        dml__row_descend(adds, &row, along, level, c, DML__LANES);
    if (c < row.columns) dml__row_descend(adds, &row, along, level, c, row.columns - c);
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) for g = scale dy; by square
   without the mean of g. */
DML__BODY void dml__row_gradient_body(const dml__row *row, bool by_square)
{
    double sums[2];
    const double n = (double)row->columns, inverse = (double)row->inverse;
    dml__row_sums(DML__ROW_PRODUCTS, row, sums);
    const float along = (float)(inverse * inverse * inverse * (sums[1] / n));
    const float level = by_square ? 0.0f : (float)(inverse * (sums[0] / n));
    if (row->beta == 0)
        dml__row_descend_all(false, row, along, level);
    else
        dml__row_descend_all(true, row, along, level);
}
DML__PER_ISA(dml__row_gradient, (const dml__row *row, bool by_square), (row, by_square))

typedef struct dml__row_job {
    dml_isa isa;
    size_t rows, rows_per_task, tasks;
    dml__row row; /* the first */
    float epsilon;
    bool by_square;
    float *statistics;      /* (rows, 2), written by forward, */
    const float *known;     /* read by backward */
    float *dshift, *dscale; /* (tasks, columns) */
} dml__row_job;

DML__DRIVERS_BEGIN

static dml__row_job dml__row_job_of(dml_pool *pool, size_t rows, size_t columns, const float *x,
                                    const dml_row_normalization *by, float *out)
{
    dml__row_job job;
    memset(&job, 0, sizeof job);
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.row.columns = columns;
    job.row.x = x;
    job.row.scale = by->scale ? by->scale : dml__row_ones;
    job.row.shift = by->shift ? by->shift : dml__row_zeros;
    job.row.scale_mask = by->scale ? SIZE_MAX : 0;
    job.row.shift_mask = by->shift ? SIZE_MAX : 0;
    job.row.out = out;
    job.epsilon = by->epsilon;
    job.by_square = by->by_square;
    return job;
}

static void dml__row_run(dml_pool *pool, dml__row_job *job, size_t rows_per_task, dml_pool_task task)
{
    job->rows_per_task = rows_per_task;
    job->tasks = dml__divide_up(job->rows, rows_per_task);
    dml_pool_run(job->tasks > 1 ? pool : NULL, (int)job->tasks, task, job);
}

static void dml__row_forward_task(void *argument, int task, int worker)
{
    const dml__row_job *job = (const dml__row_job *)argument;
    const size_t begin = (size_t)task * job->rows_per_task;
    const size_t end = dml__minimum(begin + job->rows_per_task, job->rows);
    (void)worker;
    for (size_t r = begin, count; r < end; r += count) {
        dml__row row = job->row;
        count = dml__minimum(1 + DML__ROW_NEAR / row.columns, end - r);
        row.x += r * row.columns;
        row.out += r * row.columns;
        dml__row_norm(job->isa, count, &row, job->epsilon, job->by_square, job->statistics + 2 * r);
    }
}

DML_API void dml_row_norm_forward(dml_pool *pool, size_t rows, size_t columns, const float *x,
                                  const dml_row_normalization *by, float *statistics, float *y)
{
    dml__row_job job = dml__row_job_of(pool, rows, columns, x, by, y);
    job.statistics = statistics;
    if (columns) dml__row_run(pool, &job, dml__items_per_task(columns), dml__row_forward_task);
}

static size_t dml__row_part(size_t columns)
{
    const size_t rows = dml__items_per_task(columns);
    if (rows > DML__ROW_PART_MOST) return DML__ROW_PART_MOST;
    return rows < DML__ROW_PART_LEAST ? DML__ROW_PART_LEAST : rows;
}

DML_API size_t dml_row_norm_parts(size_t rows, size_t columns)
{
    return dml__divide_up(rows, dml__row_part(columns));
}

static void dml__row_backward_task(void *argument, int task, int worker)
{
    const dml__row_job *job = (const dml__row_job *)argument;
    const size_t n = job->row.columns, begin = (size_t)task * job->rows_per_task;
    const size_t end = dml__minimum(begin + job->rows_per_task, job->rows);
    float *dshift = job->dshift ? job->dshift + (size_t)task * n : NULL, *dscale = job->dscale;
    (void)worker;
    if (dshift) {
        dscale += (size_t)task * n;
        for (size_t c = 0; c < n; c++) dshift[c] = dscale[c] = 0;
    }
    for (size_t r = begin; r < end; r++) {
        dml__row row = job->row;
        row.x += r * n;
        row.dy += r * n;
        row.mean = job->known[2 * r];
        row.inverse = job->known[2 * r + 1];
        if (dshift) dml__row_parameters(job->isa, &row, dshift, dscale); /* first: dx may be dy */
        if (!row.out) continue;
        row.out += r * n;
        dml__row_gradient(job->isa, &row, job->by_square);
    }
}

DML_API void dml_row_norm_backward(dml_pool *pool, size_t rows, size_t columns, const float *x,
                                   const dml_row_normalization *by, const float *statistics, const float *dy,
                                   float beta, float *dx, float *parts)
{
    dml__row_job job = dml__row_job_of(pool, rows, columns, x, by, dx);
    job.row.dy = dy;
    job.row.beta = beta;
    job.known = statistics;
    job.dshift = parts;
    job.dscale = parts ? parts + dml_row_norm_parts(rows, columns) * columns : NULL;
    if (columns) dml__row_run(pool, &job, dml__row_part(columns), dml__row_backward_task);
}

DML__DRIVERS_END

#endif
