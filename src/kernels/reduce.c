#ifndef DML_KERNELS_REDUCE_C
#define DML_KERNELS_REDUCE_C

#include "kernels/reduce.h"

#include "kernels/blocks.h"

#include <math.h>

/* Sums. A chunk is summed in four vectors of floats, which are then added up in double: each float takes part
   in a few dozen float additions at most, however long the array. */
#define DML__SUM_STRIDE (4 * DML__LANES)
#define DML__SUM_CHUNK ((size_t)32 * DML__SUM_STRIDE)

enum dml__sum_kind { DML__SUM_PLAIN, DML__SUM_PRODUCT, DML__SUM_SQUARED_DIFFERENCE };

DML__BODY void dml__sum_add(enum dml__sum_kind kind, dml__vf *sum, const float *x, const float *y)
{
    if (kind == DML__SUM_PLAIN) {
        *sum += DML__LOAD(x);
    } else if (kind == DML__SUM_PRODUCT) {
        *sum += DML__LOAD(x) * DML__LOAD(y);
    } else {
        const dml__vf difference = DML__LOAD(x) - DML__LOAD(y);
        *sum += difference * difference;
    }
}

DML__BODY double dml__sum_one(enum dml__sum_kind kind, const float *x, const float *y)
{
    if (kind == DML__SUM_PLAIN) return (double)*x;
    if (kind == DML__SUM_PRODUCT) return (double)*x * (double)*y;
    return ((double)*x - (double)*y) * ((double)*x - (double)*y);
}

/* The plain sum never reads `y`. */
DML__BODY double dml__sum_any(enum dml__sum_kind kind, size_t n, const float *x, const float *y)
{
    const size_t whole = n - n % DML__SUM_STRIDE;
    const size_t y_step = kind == DML__SUM_PLAIN ? 0 : 1;
    double total = 0;
    size_t i = 0;
    while (i < whole) {
        const size_t end = dml__minimum(i + DML__SUM_CHUNK, whole);
        dml__vf a, b, c, d;
        dml__splat(&a, 0);
        b = a, c = a, d = a;
        for (; i < end; i += DML__SUM_STRIDE) {
            dml__sum_add(kind, &a, x + i, y + i * y_step);
            dml__sum_add(kind, &b, x + i + DML__LANES, y + (i + DML__LANES) * y_step);
            dml__sum_add(kind, &c, x + i + 2 * DML__LANES, y + (i + 2 * DML__LANES) * y_step);
            dml__sum_add(kind, &d, x + i + 3 * DML__LANES, y + (i + 3 * DML__LANES) * y_step);
        }
        a = (a + b) + (c + d);
        total += dml__add_lanes(&a);
    }
    for (; i < n; i++) total += dml__sum_one(kind, x + i, y + i * y_step);
    return total;
}

DML__BODY void dml__sum_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_PLAIN, n, x, y);
}
DML__PER_ISA(dml__sum_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML__BODY void dml__dot_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_PRODUCT, n, x, y);
}
DML__PER_ISA(dml__dot_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML__BODY void dml__distance_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_SQUARED_DIFFERENCE, n, x, y);
}
DML__PER_ISA(dml__distance_block, (size_t n, const float *x, const float *y, double *result),
             (n, x, y, result))

static double dml__sum_blocks(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                              const float *y)
{
    double partial[DML__PARTIALS], sum = 0;
    const int count = dml__reduce(pool, n, kernel, x, y, partial);
    for (int i = 0; i < count; i++) sum += partial[i];
    return sum;
}

DML_API float dml_sum(dml_pool *pool, size_t n, const float *x)
{
    return (float)dml__sum_blocks(pool, n, dml__sum_block, x, x);
}

DML_API float dml_dot(dml_pool *pool, size_t n, const float *x, const float *y)
{
    return (float)dml__sum_blocks(pool, n, dml__dot_block, x, y);
}

DML_API float dml_squared_distance(dml_pool *pool, size_t n, const float *x, const float *y)
{
    return (float)dml__sum_blocks(pool, n, dml__distance_block, x, y);
}

/* The maximum, where a NaN counts as the largest: a lane that holds a NaN is never replaced by a number. */
DML__BODY void dml__raise(dml__vf *maximum, const dml__vf *x)
{
    *maximum = DML__SELECT((*x > *maximum) | (*x != *x), *x, *maximum);
}

static inline float dml__larger(float a, float b)
{
    return b > a || b != b ? b : a;
}

DML__BODY void dml__max_block_body(size_t n, const float *x, const float *y, double *result)
{
    dml__vf a, b;
    float largest = -HUGE_VALF;
    size_t i = 0;
    (void)y;
    dml__splat(&a, largest);
    b = a;
    for (; i + 2 * DML__LANES <= n; i += 2 * DML__LANES) {
        const dml__vf u = DML__LOAD(x + i), v = DML__LOAD(x + i + DML__LANES);
        dml__raise(&a, &u);
        dml__raise(&b, &v);
    }
    dml__raise(&a, &b);
    for (int lane = 0; lane < DML__LANES; lane++) largest = dml__larger(largest, a[lane]);
    for (; i < n; i++) largest = dml__larger(largest, x[i]);
    *result = (double)largest;
}
DML__PER_ISA(dml__max_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML_API float dml_max(dml_pool *pool, size_t n, const float *x)
{
    double partial[DML__PARTIALS];
    float largest = -HUGE_VALF;
    const int count = dml__reduce(pool, n, dml__max_block, x, NULL, partial);
    for (int i = 0; i < count; i++) largest = dml__larger(largest, (float)partial[i]);
    return largest;
}

/* Column sums. Tasks are groups of columns, and for few columns also blocks of rows, whose sums meet in a
   small array on the stack; how many of each depends on the shape alone. */
#define DML__SUM_ROWS_GROUP ((size_t)(4 * DML__LANES)) /* columns that one pass over the rows sums */
#define DML__SUM_ROWS_COLUMNS ((size_t)256)            /* the most columns whose rows are split */
#define DML__SUM_ROWS_BLOCKS ((size_t)16)
#define DML__SUM_ROWS_CHUNK ((size_t)128) /* rows summed before they are added to the total */

/* out[c] = sum of `rows` rows of `count` <= DML__SUM_ROWS_GROUP columns + beta out[c]. */
DML__BODY void dml__sum_columns_body(size_t rows, size_t columns, size_t count, const float *x, float beta,
                                     float *out)
{
    size_t c = 0;
    for (; c + 4 * DML__LANES <= count; c += 4 * DML__LANES) {
        dml__vf total[4], sum[4];
        for (int v = 0; v < 4; v++) dml__splat(&total[v], 0);
        for (size_t begin = 0; begin < rows; begin += DML__SUM_ROWS_CHUNK) {
            const size_t end = dml__minimum(begin + DML__SUM_ROWS_CHUNK, rows);
            const float *at = x + begin * columns + c;
            dml__vf s0, s1, s2, s3;
            dml__splat(&s0, 0);
            s1 = s0, s2 = s0, s3 = s0;
            for (size_t r = begin; r < end; r++, at += columns) {
                s0 += DML__LOAD(at);
                s1 += DML__LOAD(at + DML__LANES);
                s2 += DML__LOAD(at + 2 * DML__LANES);
                s3 += DML__LOAD(at + 3 * DML__LANES);
            }
            sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
            for (int v = 0; v < 4; v++) total[v] += sum[v];
        }
        for (int v = 0; v < 4; v++) {
            float *to = out + c + v * DML__LANES;
            if (beta != 0) total[v] += beta * DML__LOAD(to);
            DML__STORE(to, total[v]);
        }
    }
    for (; c < count; c += DML__LANES) {
        const size_t part = dml__minimum(DML__LANES, count - c);
        dml__vf total, old, value;
        dml__splat(&total, 0);
        for (size_t begin = 0; begin < rows; begin += DML__SUM_ROWS_CHUNK) {
            const size_t end = dml__minimum(begin + DML__SUM_ROWS_CHUNK, rows);
            const float *at = x + begin * columns + c;
            dml__vf sum;
            dml__splat(&sum, 0);
            for (size_t r = begin; r < end; r++, at += columns) {
                dml__load_some(&value, at, part);
                sum += value;
            }
            total += sum;
        }
        if (beta != 0) {
            dml__load_some(&old, out + c, part);
            total += beta * old;
        }
        dml__store_some(out + c, &total, part);
    }
}
DML__PER_ISA(dml__sum_columns,
             (size_t rows, size_t columns, size_t count, const float *x, float beta, float *out),
             (rows, columns, count, x, beta, out))

typedef struct dml__sum_rows_job {
    dml_isa isa;
    size_t rows, columns;
    size_t blocks, rows_per_block;
    size_t groups;
    const float *x; /* (rows, columns) */
    float beta;
    float *out; /* (blocks, columns) */
} dml__sum_rows_job;

static void dml__sum_rows_task(void *argument, int task, int worker)
{
    const dml__sum_rows_job *job = (const dml__sum_rows_job *)argument;
    const size_t block = (size_t)task / job->groups;
    const size_t column = (size_t)task % job->groups * DML__SUM_ROWS_GROUP;
    const size_t row = block * job->rows_per_block;
    (void)worker;
    dml__sum_columns(job->isa, dml__minimum(job->rows_per_block, job->rows - row), job->columns,
                     dml__minimum(DML__SUM_ROWS_GROUP, job->columns - column),
                     job->x + row * job->columns + column, job->beta,
                     job->out + block * job->columns + column);
}

DML_API void dml_sum_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, float beta, float *y)
{
    float partial[DML__SUM_ROWS_BLOCKS * DML__SUM_ROWS_COLUMNS];
    dml__sum_rows_job job;
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.columns = columns;
    job.rows_per_block = rows;
    if (columns <= DML__SUM_ROWS_COLUMNS) {
        job.rows_per_block = dml__divide_up(rows, DML__SUM_ROWS_BLOCKS);
        if (job.rows_per_block < 2 * DML__SUM_ROWS_CHUNK) job.rows_per_block = 2 * DML__SUM_ROWS_CHUNK;
    }
    job.blocks = rows > job.rows_per_block ? dml__divide_up(rows, job.rows_per_block) : 1;
    job.groups = dml__divide_up(columns, DML__SUM_ROWS_GROUP);
    job.x = x;
    job.beta = job.blocks > 1 ? 0 : beta;
    job.out = job.blocks > 1 ? partial : y;
    const bool alone = rows * columns <= DML__BLOCK;
    dml_pool_run(alone ? NULL : pool, (int)(job.blocks * job.groups), dml__sum_rows_task, &job);
    if (job.blocks > 1) {
        for (size_t c = 0; c < columns; c += DML__SUM_ROWS_GROUP)
            dml__sum_columns(job.isa, job.blocks, columns, dml__minimum(DML__SUM_ROWS_GROUP, columns - c),
                             partial + c, beta, y + c);
    }
}

typedef struct dml__argmax_job {
    dml_isa isa;
    size_t rows, columns;
    const float *x; /* (rows, columns) */
    int32_t *out;
} dml__argmax_job;

static void dml__argmax_task(void *argument, int task, int worker)
{
    const dml__argmax_job *job = (const dml__argmax_job *)argument;
    const size_t step = dml__items_per_task(job->columns), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *row = job->x + r * job->columns;
        double largest;
        size_t c = 0;
        dml__max_block(job->isa, job->columns, row, NULL, &largest);
        const bool is_nan = largest != largest;
        while (c + 1 < job->columns && !(is_nan ? row[c] != row[c] : row[c] == (float)largest)) c++;
        job->out[r] = (int32_t)c;
    }
}

DML_API void dml_argmax(dml_pool *pool, size_t rows, size_t columns, const float *x, int32_t *out)
{
    dml__argmax_job job;
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.columns = columns;
    job.x = x;
    job.out = out;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(columns));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__argmax_task, &job);
}

#endif
