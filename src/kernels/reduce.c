#ifndef DML_KERNELS_REDUCE_C
#define DML_KERNELS_REDUCE_C

#include "kernels/reduce.h"

#include "kernels/blocks.h"
#include "kernels/reduce_internal.h"
#include "kernels/vector_math_wide.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* Sums. A chunk is summed in four vectors of floats, which are then added up in double: each float takes part
   in a few dozen float additions at most, however long the array. */
#define DML__SUM_STRIDE (4 * DML__LANES)
#define DML__SUM_CHUNK ((size_t)32 * DML__LANES) /* of a quarter */
#define DML__SUM_ROWS_AHEAD ((size_t)8)          /* rows that are asked for ahead, where columns are taken */

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

/* The plain sum never reads `y`. Each of the four vectors has a quarter of the array: that is four places at
   which the processor looks ahead by itself, and memory has more to do (a Zen 3: 20 GB/s, of one place 12).
 */
DML__BODY double dml__sum_any(enum dml__sum_kind kind, size_t n, const float *x, const float *y)
{
    const size_t quarter = (n - n % DML__SUM_STRIDE) / 4;
    const size_t y_step = kind == DML__SUM_PLAIN ? 0 : 1;
    double total = 0;
    size_t i = 0;
    while (i < quarter) {
        const size_t end = dml__minimum(i + DML__SUM_CHUNK, quarter);
        dml__vf a, b, c, d;
        dml__splat(&a, 0);
        b = a, c = a, d = a;
        for (; i < end; i += DML__LANES) {
            dml__sum_add(kind, &a, x + i, y + i * y_step);
            dml__sum_add(kind, &b, x + quarter + i, y + (quarter + i) * y_step);
            dml__sum_add(kind, &c, x + 2 * quarter + i, y + (2 * quarter + i) * y_step);
            dml__sum_add(kind, &d, x + 3 * quarter + i, y + (3 * quarter + i) * y_step);
        }
        a = (a + b) + (c + d);
        total += dml__add_lanes(&a);
    }
    for (i = 4 * quarter; i < n; i++) total += dml__sum_one(kind, x + i, y + i * y_step);
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

DML__LOCAL void dml__squares_of_rows(dml_isa isa, size_t rows, size_t columns, const float *x, float *y)
{
    for (size_t r = 0; r < rows; r++, x += columns) {
        double sum;
        dml__dot_block(isa, columns, x, x, &sum);
        y[r] = (float)sum;
    }
}

static double dml__sum_blocks(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                              const float *y)
{
    double partial[DML__PARTIALS], sum = 0;
    const int count = dml__reduce(pool, n, kernel, x, y, partial);
    for (int i = 0; i < count; i++) sum += partial[i];
    return sum;
}

DML_API float dml_sum_all(dml_pool *pool, size_t n, const float *x)
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

DML__BODY float dml__larger_float(float a, float b)
{
    return b > a || b != b ? b : a;
}

DML__BODY bool dml__any_lane_is_nan(const dml__vf *x)
{
    const dml__vi odd = *x != *x;
    int32_t any = 0;
    for (int lane = 0; lane < DML__LANES; lane++) any |= odd[lane];
    return any != 0;
}

/* With `y` all signs are turned, so that the result is the smallest with the other sign. */
DML__BODY void dml__max_block_body(size_t n, const float *x, const float *y, double *result)
{
    const size_t quarter = n / (4 * DML__LANES) * DML__LANES; /* as of sums */
    dml__vf a, b, c, d;
    dml__vi turn = { 0 };
    float largest = -HUGE_VALF;
    if (y) turn = turn + ((int32_t)-0x7fffffff - 1);
    dml__splat(&a, largest);
    b = a, c = a, d = a;
    for (size_t i = 0; i < quarter; i += DML__LANES, x += DML__LANES) {
        const dml__vf s = (dml__vf)(DML__LOAD_INT(x) ^ turn);
        const dml__vf t = (dml__vf)(DML__LOAD_INT(x + quarter) ^ turn);
        const dml__vf u = (dml__vf)(DML__LOAD_INT(x + 2 * quarter) ^ turn);
        const dml__vf v = (dml__vf)(DML__LOAD_INT(x + 3 * quarter) ^ turn);
        dml__raise(&a, &s);
        dml__raise(&b, &t);
        dml__raise(&c, &u);
        dml__raise(&d, &v);
    }
    dml__raise(&a, &b);
    dml__raise(&c, &d);
    dml__raise(&a, &c);
    if (dml__any_lane_is_nan(&a))
        for (int lane = 0; lane < DML__LANES; lane++) largest = dml__larger_float(largest, a[lane]);
    else
        largest = dml__largest_lane(&a);
    x += 3 * quarter;
    for (size_t i = 4 * quarter; i < n; i++, x++) largest = dml__larger_float(largest, y ? -*x : *x);
    *result = (double)largest;
}
DML__PER_ISA(dml__max_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML__LOCAL void dml__extremes_of_rows(dml_isa isa, bool smallest, size_t rows, size_t columns, const float *x,
                                      float *y)
{
    for (size_t r = 0; r < rows; r++) {
        double largest;
        dml__max_block(isa, columns, x + r * columns, smallest ? x : NULL, &largest);
        y[r] = (float)(smallest ? -largest : largest);
    }
}

#define DML__EXTREME_WIDE 4              /* vectors of AVX-512 side by side */
#define DML__EXTREME_NARROW ((size_t)64) /* fewer columns are taken DML__LANES rows at a time */

/* out[c] = the largest of `rows` > 0 rows in `count` vectors of columns, the signs turned by `turn`. */
DML__BODY void dml__extreme_vectors(int count, const dml__vi *turn, size_t rows, size_t stride,
                                    const float *x, float *out)
{
    dml__vf most[4];
    DML__UNROLLED
    for (int v = 0; v < count; v++) most[v] = (dml__vf)(DML__LOAD_INT(x + v * DML__LANES) ^ *turn);
    for (size_t r = 1; r < rows; r++) {
        x += stride;
        DML__UNROLLED
        for (int v = 0; v < count; v++) {
            if (v % 2 == 0) dml__ask(x + v * DML__LANES, DML__SUM_ROWS_AHEAD * stride);
            const dml__vf next = (dml__vf)(DML__LOAD_INT(x + v * DML__LANES) ^ *turn);
            dml__raise(&most[v], &next);
        }
    }
    DML__UNROLLED
    for (int v = 0; v < count; v++) DML__STORE_INT(out + v * DML__LANES, (dml__vi)most[v] ^ *turn);
}

DML__BODY void dml__extreme_columns_narrow_body(bool smallest, size_t rows, size_t stride, size_t width,
                                                const float *x, float *out)
{
    dml__vi turn = { 0 };
    size_t c = 0;
    if (smallest) turn = turn + ((int32_t)-0x7fffffff - 1);
    for (; c + 4 * DML__LANES <= width; c += 4 * DML__LANES)
        dml__extreme_vectors(4, &turn, rows, stride, x + c, out + c);
    for (; c + DML__LANES <= width; c += DML__LANES)
        dml__extreme_vectors(1, &turn, rows, stride, x + c, out + c);
    for (; c < width; c++) {
        float most = smallest ? -x[c] : x[c];
        for (size_t r = 1; r < rows; r++)
            most = dml__larger_float(most, smallest ? -x[r * stride + c] : x[r * stride + c]);
        out[c] = smallest ? -most : most;
    }
}
#if defined(DML__HAS_AVX512)

/* A number's maximum with a NaN is the number, so what is a NaN is taken by itself. */
DML__AVX512 DML__INLINE void dml__extreme_wide(int count, unsigned mask, bool smallest, size_t rows,
                                               size_t stride, const float *x, float *out)
{
    __m512 most[DML__EXTREME_WIDE];
    dml__wi turn = { 0 };
    if (smallest) turn = turn + DML__WIDE_SIGN;
    DML__UNROLL
    for (int v = 0; v < count; v++)
        most[v] = (__m512)(DML__WIDE_BITS(dml__avx512_load_some(x + v * DML__WIDE_LANES, mask)) ^ turn);
    for (size_t r = 1; r < rows; r++) {
        x += stride;
        DML__UNROLL
        for (int v = 0; v < count; v++) {
            dml__ask(x + v * DML__WIDE_LANES, DML__SUM_ROWS_AHEAD * stride);
            const __m512 next =
                (__m512)(DML__WIDE_BITS(dml__avx512_load_some(x + v * DML__WIDE_LANES, mask)) ^ turn);
            most[v] = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(next, next, _CMP_UNORD_Q),
                                           _mm512_max_ps(next, most[v]), next);
        }
    }
    DML__UNROLL
    for (int v = 0; v < count; v++)
        dml__avx512_store_some(out + v * DML__WIDE_LANES, mask, (__m512)(DML__WIDE_BITS(most[v]) ^ turn));
}

DML__WIDE_KERNEL void dml__extreme_columns_wide(bool smallest, size_t rows, size_t stride, size_t width,
                                                const float *x, float *out)
{
    const size_t strip = DML__EXTREME_WIDE * DML__WIDE_LANES;
    size_t c = 0;
    for (; c + strip <= width; c += strip)
        dml__extreme_wide(DML__EXTREME_WIDE, 0xffff, smallest, rows, stride, x + c, out + c);
    for (; c < width; c += DML__WIDE_LANES)
        dml__extreme_wide(1, dml__wide_first(width - c), smallest, rows, stride, x + c, out + c);
}

#endif

DML__PER_ISA_OR_WIDE(dml__extreme_columns,
                     (bool smallest, size_t rows, size_t stride, size_t width, const float *x, float *out),
                     (smallest, rows, stride, width, x, out))

DML__LOCAL void dml__extremes_of_columns(dml_isa isa, bool smallest, size_t rows, size_t stride, size_t width,
                                         const float *x, float *y)
{
    if (width < stride || width >= DML__EXTREME_NARROW || rows < 2 * DML__LANES) {
        dml__extreme_columns(isa, smallest, rows, stride, width, x, y);
        return;
    }
    /* as dml__sum_narrow; the rows that are left over lie in the last wide row, which may take some twice */
    float wide[DML__EXTREME_NARROW * DML__LANES], ends[2][DML__EXTREME_NARROW * DML__LANES];
    const size_t all = width * DML__LANES;
    dml__extreme_columns(isa, smallest, rows / DML__LANES, all, all, x, wide);
    memcpy(ends[0], wide, all * sizeof *wide);
    memcpy(ends[1], x + (rows - DML__LANES) * width, all * sizeof *wide);
    dml__extreme_columns(isa, smallest, 2, DML__EXTREME_NARROW * DML__LANES, all, ends[0], wide);
    dml__extreme_columns(isa, smallest, DML__LANES, width, width, wide, y);
}

DML_API float dml_max_all(dml_pool *pool, size_t n, const float *x)
{
    double partial[DML__PARTIALS];
    float largest = -HUGE_VALF;
    const int count = dml__reduce(pool, n, dml__max_block, x, NULL, partial);
    for (int i = 0; i < count; i++) largest = dml__larger_float(largest, (float)partial[i]);
    return largest;
}

/* Column sums. A task sums a block of rows for a group of columns; the sums of the blocks meet in a small
   array on the stack. How many of each there are depends on the shape alone. */
#define DML__SUM_ROWS_BLOCKS ((size_t)8)
#define DML__SUM_ROWS_SPLIT ((size_t)512) /* the most columns for which the rows are split */
#define DML__SUM_ROWS_GROUP ((size_t)256) /* columns of a group where there are more */
#define DML__SUM_ROWS_NARROW ((size_t)64) /* fewer columns are summed DML__LANES rows at a time */
#define DML__SUM_ROWS_CHUNK ((size_t)128) /* rows summed before they are added to the total */
#define DML__SUM_ROWS_WIDTH ((size_t)512) /* floats of a task's sums, at most */
#define DML__SUM_ROWS_VECTORS 8           /* summed side by side, in registers */
#define DML__SUM_ROWS_WIDE ((size_t)64)   /* rows that are gone through whole, of more columns than those */

/* total[c] += the sums of `rows` rows from column c on, `count` vectors of them: a row of each quarter at
 * once. */
DML__BODY void dml__sum_column_vectors(int count, size_t rows, size_t stride, const float *x, float *total)
{
    const size_t quarter = rows / 4, apart = quarter * stride;
    dml__vf sum[DML__SUM_ROWS_VECTORS] = { { 0 } };
    for (size_t r = 0; r < quarter; r++, x += stride) {
        DML__UNROLLED
        for (int v = 0; v < count; v++) {
            const float *from = x + v * DML__LANES;
            sum[v] += (DML__LOAD(from) + DML__LOAD(from + apart)) +
                      (DML__LOAD(from + 2 * apart) + DML__LOAD(from + 3 * apart));
        }
    }
    x += 3 * apart;
    for (size_t r = 4 * quarter; r < rows; r++, x += stride) {
        DML__UNROLLED
        for (int v = 0; v < count; v++) sum[v] += DML__LOAD(x + v * DML__LANES);
    }
    DML__UNROLLED
    for (int v = 0; v < count; v++)
        DML__STORE(total + v * DML__LANES, DML__LOAD(total + v * DML__LANES) + sum[v]);
}

/* The same of all `width` columns, in whole vectors, whose sums don't stay in registers: of eight rows at
 * once. */
DML__BODY void dml__sum_wide_columns(size_t rows, size_t stride, size_t width, const float *x, float *total)
{
    const size_t eighth = rows / 8, apart = eighth * stride;
    float sum[DML__SUM_ROWS_WIDTH];
    memset(sum, 0, width * sizeof *sum);
    for (size_t r = 0; r < eighth; r++, x += stride)
        for (size_t c = 0; c < width; c += DML__LANES) {
            const float *low = x + c, *high = low + 4 * apart;
            DML__STORE(sum + c,
                       DML__LOAD(sum + c) + (((DML__LOAD(low) + DML__LOAD(low + apart)) +
                                              (DML__LOAD(low + 2 * apart) + DML__LOAD(low + 3 * apart))) +
                                             ((DML__LOAD(high) + DML__LOAD(high + apart)) +
                                              (DML__LOAD(high + 2 * apart) + DML__LOAD(high + 3 * apart)))));
        }
    x += 7 * apart;
    for (size_t r = 8 * eighth; r < rows; r++, x += stride)
        for (size_t c = 0; c < width; c += DML__LANES)
            DML__STORE(sum + c, DML__LOAD(sum + c) + DML__LOAD(x + c));
    for (size_t c = 0; c < width; c += DML__LANES)
        DML__STORE(total + c, DML__LOAD(total + c) + DML__LOAD(sum + c));
}

/* total[c] = sum over r of x[r stride + c], c < width. */
DML__BODY void dml__sum_columns_body(size_t rows, size_t stride, size_t width, const float *x, float *total)
{
    for (size_t c = 0; c < width; c++) total[c] = 0;
    for (size_t begin = 0; begin < rows; begin += DML__SUM_ROWS_CHUNK) {
        const size_t count = dml__minimum(DML__SUM_ROWS_CHUNK, rows - begin);
        const float *from = x + begin * stride;
        size_t c = 0;
        if (width > DML__SUM_ROWS_VECTORS * DML__LANES && count >= DML__SUM_ROWS_WIDE) {
            c = width - width % DML__LANES;
            dml__sum_wide_columns(count, stride, c, from, total);
        }
        for (; c + DML__SUM_ROWS_VECTORS * DML__LANES <= width; c += DML__SUM_ROWS_VECTORS * DML__LANES)
            dml__sum_column_vectors(DML__SUM_ROWS_VECTORS, count, stride, from + c, total + c);
        for (; c + 2 * DML__LANES <= width; c += 2 * DML__LANES)
            dml__sum_column_vectors(2, count, stride, from + c, total + c);
        for (; c + DML__LANES <= width; c += DML__LANES)
            dml__sum_column_vectors(1, count, stride, from + c, total + c);
        for (; c < width; c++) {
            float sum = 0;
            for (size_t r = 0; r < count; r++) sum += from[r * stride + c];
            total[c] += sum;
        }
    }
}
DML__PER_ISA(dml__sum_columns, (size_t rows, size_t stride, size_t width, const float *x, float *total),
             (rows, stride, width, x, total))

/* The same for a narrow matrix without gaps: DML__LANES rows are taken as one wide one, which fills whole
   vectors, and folded at the end. */
static void dml__sum_narrow(dml_isa isa, size_t rows, size_t columns, const float *x, float *total)
{
    const size_t width = columns * DML__LANES, wide_rows = rows / DML__LANES;
    const float *rest = x + wide_rows * width;
    dml__sum_columns(isa, wide_rows, width, width, x, total);
    for (size_t i = 0; i < rows % DML__LANES * columns; i++) total[i] += rest[i];
    for (size_t i = columns; i < width; i++) total[i % columns] += total[i];
}

typedef struct dml__sum_rows_job {
    dml_isa isa;
    size_t rows, columns, rows_per_block, blocks, group;
    const float *x; /* (rows, columns) */
    float beta;
    float *y;       /* (columns) */
    float *partial; /* (blocks, columns), where there are several blocks */
} dml__sum_rows_job;

static void dml__finish_columns(const dml__sum_rows_job *job, size_t column, size_t count, const float *total)
{
    float *y = job->y + column;
    for (size_t c = 0; c < count; c++) y[c] = job->beta != 0 ? total[c] + job->beta * y[c] : total[c];
}

static void dml__sum_rows_task(void *argument, int task, int worker)
{
    dml__sum_rows_job *job = (dml__sum_rows_job *)argument;
    const size_t row = (size_t)task % job->blocks * job->rows_per_block;
    const size_t column = (size_t)task / job->blocks * job->group;
    const size_t rows = dml__minimum(job->rows_per_block, job->rows - row);
    const size_t count = dml__minimum(job->group, job->columns - column);
    const float *x = job->x + row * job->columns + column;
    float total[DML__SUM_ROWS_WIDTH];
    (void)worker;
    if (job->columns < DML__SUM_ROWS_NARROW)
        dml__sum_narrow(job->isa, rows, count, x, total);
    else
        dml__sum_columns(job->isa, rows, job->columns, count, x, total);
    if (job->blocks > 1)
        memcpy(job->partial + row / job->rows_per_block * job->columns, total, count * sizeof *total);
    else
        dml__finish_columns(job, column, count, total);
}

/* The rows in blocks: on a stack frame of its own, since few calls need so much of it. */
DML__NOINLINE static void dml__sum_rows_split(dml_pool *pool, dml__sum_rows_job *job)
{
    float partial[DML__SUM_ROWS_BLOCKS * DML__SUM_ROWS_SPLIT];
    job->partial = partial;
    dml_pool_run(pool, (int)job->blocks, dml__sum_rows_task, job);
    for (size_t b = 1; b < job->blocks; b++)
        for (size_t c = 0; c < job->columns; c++) partial[c] += partial[b * job->columns + c];
    dml__finish_columns(job, 0, job->columns, partial);
}

static void dml__sum_rows_on(dml_pool *pool, dml_isa isa, size_t rows, size_t columns, const float *x,
                             float beta, float *y)
{
    const bool split = columns <= DML__SUM_ROWS_SPLIT && rows * columns > DML__BLOCK;
    dml__sum_rows_job job;
    if (columns == 0) return;
    job.isa = isa;
    job.rows = rows;
    job.columns = columns;
    job.group = columns <= DML__SUM_ROWS_SPLIT ? columns : DML__SUM_ROWS_GROUP;
    job.rows_per_block = split ? dml__divide_up(rows, DML__SUM_ROWS_BLOCKS) : rows;
    if (split && job.rows_per_block * columns < DML__BLOCK)
        job.rows_per_block = dml__divide_up(DML__BLOCK, columns);
    job.blocks = split ? dml__divide_up(rows, job.rows_per_block) : 1;
    job.x = x;
    job.beta = beta;
    job.y = y;
    job.partial = NULL;
    if (job.blocks > 1)
        dml__sum_rows_split(pool, &job);
    else
        dml_pool_run(rows * columns > DML__BLOCK ? pool : NULL, (int)dml__divide_up(columns, job.group),
                     dml__sum_rows_task, &job);
}

DML_API void dml_sum_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, float beta, float *y)
{
    dml__sum_rows_on(pool, dml__pool_machine(pool).isa, rows, columns, x, beta, y);
}

#define DML__SUM_FEW ((size_t)32) /* rows, of which a sum is done before dml__sum_rows_on has begun */

DML__BODY void dml__sum_few_rows_body(size_t outer, size_t n, size_t inner, const float *x, float beta,
                                      float *y)
{
    for (size_t o = 0; o < outer; o++, x += n * inner, y += inner) {
        size_t c = 0;
        for (; c + DML__LANES <= inner; c += DML__LANES) {
            dml__vf sum = DML__LOAD(x + c);
            for (size_t k = 1; k < n; k++) sum += DML__LOAD(x + k * inner + c);
            if (beta != 0) sum += beta * DML__LOAD(y + c);
            DML__STORE(y + c, sum);
        }
        for (; c < inner; c++) {
            float sum = x[c];
            for (size_t k = 1; k < n; k++) sum += x[k * inner + c];
            y[c] = beta != 0 ? sum + beta * y[c] : sum;
        }
    }
}
DML__PER_ISA(dml__sum_few_rows, (size_t outer, size_t n, size_t inner, const float *x, float beta, float *y),
             (outer, n, inner, x, beta, y))

DML__LOCAL void dml__sum_axis_alone(dml_isa isa, size_t outer, size_t n, size_t inner, const float *x,
                                    float beta, float *y)
{
    if (inner > 1 && n > 0 && n <= DML__SUM_FEW) {
        dml__sum_few_rows(isa, outer, n, inner, x, beta, y);
        return;
    }
    for (size_t o = 0; o < outer; o++, x += n * inner, y += inner) {
        if (inner > 1) {
            dml__sum_rows_on(NULL, isa, n, inner, x, beta, y);
            continue;
        }
        double sum = 0;
        if (n) dml__sum_block(isa, n, x, x, &sum);
        *y = beta == 0 ? (float)sum : (float)(sum + (double)beta * (double)*y);
    }
}

typedef struct dml__sum_axis_job {
    dml_isa isa;
    size_t outer, n, inner;
    const float *x; /* (outer, n, inner) */
    float beta;
    float *y; /* (outer, inner) */
} dml__sum_axis_job;

static void dml__sum_axis_task(void *argument, int task, int worker)
{
    const dml__sum_axis_job *job = (const dml__sum_axis_job *)argument;
    const size_t each = job->n * job->inner, step = dml__items_per_task(each);
    const size_t begin = (size_t)task * step, end = dml__minimum(begin + step, job->outer);
    (void)worker;
    dml__sum_axis_alone(job->isa, end - begin, job->n, job->inner, job->x + begin * each, job->beta,
                        job->y + begin * job->inner);
}

DML_API void dml_sum_axis(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x, float beta,
                          float *y)
{
    dml__sum_axis_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.outer = outer;
    job.n = n;
    job.inner = inner;
    job.x = x;
    job.beta = beta;
    job.y = y;
    if (outer == 1 && inner > 1)
        dml_sum_rows(pool, n, inner, x, beta, y);
    else if (outer == 1 && inner == 1 && n > 0)
        *y = beta == 0 ? dml_sum_all(pool, n, x) : dml_sum_all(pool, n, x) + beta * *y;
    else if (inner > 0)
        dml_pool_run(pool, (int)dml__divide_up(outer, dml__items_per_task(n * inner)), dml__sum_axis_task,
                     &job);
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

DML_API void dml_argmax_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, int32_t *out)
{
    dml__argmax_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.columns = columns;
    job.x = x;
    job.out = out;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(columns));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__argmax_task, &job);
}

#endif
