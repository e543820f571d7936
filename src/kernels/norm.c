#ifndef DML_KERNELS_NORM_C
#define DML_KERNELS_NORM_C

#include "kernels/norm.h"

#include "kernels/blocks.h"
#include "kernels/norm_internal.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* Few channels fill no vectors, so several rows are taken as one wide row: how many, for whole vectors and at
   least `width` columns. 1 where there are channels enough. */
static size_t dml__norm_fold(size_t channels, size_t width)
{
    size_t fold = 1;
    if (channels >= width || channels >= 32) return 1;
    while (fold < DML__LANES && channels * fold % DML__LANES) fold *= 2;
    while (channels * fold < width) fold *= 2;
    return fold;
}

/* ---- two sums of each column ---- */

#define DML__NORM_BLOCKS ((size_t)16)     /* of rows, at most, each a task, */
#define DML__NORM_PARTIALS ((size_t)2048) /* and of blocks times columns */
#define DML__NORM_MOST ((size_t)512)      /* columns that are done at once */
#define DML__NORM_NEAR ((size_t)128)   /* columns of rows that are short enough to go down them in strips */
#define DML__NORM_CHUNK ((size_t)128)  /* rows summed in float */
#define DML__NORM_SAMPLES ((size_t)32) /* rows whose mean is what distances are taken from */

/* Backward through a relu: which elements dy counts for, by y = factor (x - mean) + shift, computed as
   forward computes it, bit for bit. */
typedef struct dml__norm_gate {
    const float *factor, *shift; /* of each column */
    int32_t open;                /* -1: there is no relu, and all count; else 0 */
} dml__norm_gate;

DML__BODY void dml__norm_pass(const dml__norm_gate *gate, size_t c, const dml__vf *distance, dml__vf *dy)
{
    const dml__vi zero = { 0 };
    const dml__vf y = DML__LOAD(gate->shift + c) + DML__LOAD(gate->factor + c) * *distance;
    *dy = (dml__vf)((dml__vi)*dy & ((y > 0.0f) | (zero + gate->open)));
}

DML__BODY float dml__norm_pass_one(const dml__norm_gate *gate, size_t c, float distance, float dy)
{
    const float y = gate->shift[c] + gate->factor[c] * distance;
    return y > 0 || gate->open ? dy : 0;
}

/* A matrix of rows that lie `stride` apart; the sums are added to first[c], second[c], c < width. */
typedef struct dml__norm_matrix {
    size_t rows, stride, width;
    const float *x, *dy;
    const float *center; /* (width) */
    dml__norm_gate gate;
    double *first, *second;
} dml__norm_matrix;

/* a += x - center, b += (x - center)^2; or, where there is a dy, a += dy, b += dy (x - center), the vectors
   of column c. */
DML__BODY void dml__norm_add(bool backward, const dml__norm_gate *gate, size_t c, dml__vf *a, dml__vf *b,
                             const dml__vf *center, const float *x, const float *dy)
{
    const dml__vf distance = DML__LOAD(x) - *center;
    dml__vf first = distance;
    if (backward) {
        first = DML__LOAD(dy);
        dml__norm_pass(gate, c, &distance, &first);
    }
    *a += first;
    *b += first * distance;
}

DML__BODY void dml__norm_add_lanes(double *sum, const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    for (int lane = 0; lane < DML__LANES; lane++) sum[lane] += (double)lanes[lane];
}

/* Four vectors of columns over a chunk of rows, their sums in registers. */
DML__BODY void dml__norm_strip(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf c0 = DML__LOAD(m->center + c), c1 = DML__LOAD(m->center + c + DML__LANES);
    const dml__vf c2 = DML__LOAD(m->center + c + 2 * DML__LANES);
    const dml__vf c3 = DML__LOAD(m->center + c + 3 * DML__LANES);
    dml__vf a0, a1, a2, a3, b0, b1, b2, b3;
    dml__splat(&a0, 0);
    a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride) {
        dml__norm_add(backward, &gate, c, &a0, &b0, &c0, x, dy);
        dml__norm_add(backward, &gate, c + DML__LANES, &a1, &b1, &c1, x + DML__LANES, dy + DML__LANES);
        dml__norm_add(backward, &gate, c + 2 * DML__LANES, &a2, &b2, &c2, x + 2 * DML__LANES,
                      dy + 2 * DML__LANES);
        dml__norm_add(backward, &gate, c + 3 * DML__LANES, &a3, &b3, &c3, x + 3 * DML__LANES,
                      dy + 3 * DML__LANES);
    }
    double *first = m->first + c, *second = m->second + c;
    dml__norm_add_lanes(first, &a0);
    dml__norm_add_lanes(first + DML__LANES, &a1);
    dml__norm_add_lanes(first + 2 * DML__LANES, &a2);
    dml__norm_add_lanes(first + 3 * DML__LANES, &a3);
    dml__norm_add_lanes(second, &b0);
    dml__norm_add_lanes(second + DML__LANES, &b1);
    dml__norm_add_lanes(second + 2 * DML__LANES, &b2);
    dml__norm_add_lanes(second + 3 * DML__LANES, &b3);
}

DML__BODY void dml__norm_vector(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf center = DML__LOAD(m->center + c);
    dml__vf a, b;
    dml__splat(&a, 0);
    b = a;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride)
        dml__norm_add(backward, &gate, c, &a, &b, &center, x, dy);
    dml__norm_add_lanes(m->first + c, &a);
    dml__norm_add_lanes(m->second + c, &b);
}

DML__BODY void dml__norm_column(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    float a = 0, b = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float distance = m->x[r * m->stride + c] - m->center[c];
        float value = distance;
        if (backward) value = dml__norm_pass_one(&m->gate, c, distance, m->dy[r * m->stride + c]);
        a += value;
        b += value * distance;
    }
    m->first[c] += (double)a;
    m->second[c] += (double)b;
}

DML__BODY void dml__norm_strips(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    size_t c = 0;
    for (; c + 4 * DML__LANES <= m->width; c += 4 * DML__LANES) dml__norm_strip(backward, m, c, begin, rows);
    for (; c + DML__LANES <= m->width; c += DML__LANES) dml__norm_vector(backward, m, c, begin, rows);
    for (; c < m->width; c++) dml__norm_column(backward, m, c, begin, rows);
}

/* Long rows are read from end to end, which memory does best. */
DML__BODY void dml__norm_rows(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    const dml__norm_gate gate = m->gate;
    float a[DML__NORM_MOST], b[DML__NORM_MOST];
    for (size_t c = 0; c < m->width; c++) a[c] = b[c] = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float *x = m->x + r * m->stride, *dy = backward ? m->dy + r * m->stride : x;
        size_t c = 0;
        for (; c + DML__LANES <= m->width; c += DML__LANES) {
            const dml__vf center = DML__LOAD(m->center + c);
            dml__vf sum = DML__LOAD(a + c), product = DML__LOAD(b + c);
            dml__norm_add(backward, &gate, c, &sum, &product, &center, x + c, dy + c);
            DML__STORE(a + c, sum);
            DML__STORE(b + c, product);
        }
        for (; c < m->width; c++) {
            const float distance = x[c] - m->center[c];
            const float value = backward ? dml__norm_pass_one(&gate, c, distance, dy[c]) : distance;
            a[c] += value;
            b[c] += value * distance;
        }
    }
    for (size_t c = 0; c < m->width; c++) {
        m->first[c] += (double)a[c];
        m->second[c] += (double)b[c];
    }
}

DML__BODY void dml__norm_any(bool backward, const dml__norm_matrix *m)
{
    for (size_t begin = 0; begin < m->rows; begin += DML__NORM_CHUNK) {
        const size_t rows = dml__minimum(DML__NORM_CHUNK, m->rows - begin);
        if (m->stride <= DML__NORM_NEAR)
            dml__norm_strips(backward, begin, rows, m);
        else
            dml__norm_rows(backward, begin, rows, m);
    }
}

DML__BODY void dml__norm_moments_body(const dml__norm_matrix *m)
{
    dml__norm_any(false, m);
}
DML__PER_ISA(dml__norm_moments, (const dml__norm_matrix *m), (m))

DML__BODY void dml__norm_products_body(const dml__norm_matrix *m)
{
    dml__norm_any(true, m);
}
DML__PER_ISA(dml__norm_products, (const dml__norm_matrix *m), (m))

/* The sums of a group of columns. */
typedef struct dml__norm_job {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_block;
    const float *x, *dy; /* (rows, channels), from the group's first column on; dy NULL: the moments of x */
    const float *center; /* (columns) */
    dml__norm_gate gate; /* of the group's columns */
    double *partial;     /* (blocks, 2, columns) */
} dml__norm_job;

DML__DRIVERS_BEGIN

static void dml__norm_sum_matrix(const dml__norm_job *job, const dml__norm_matrix *m)
{
    if (job->dy)
        dml__norm_products(job->isa, m);
    else
        dml__norm_moments(job->isa, m);
}

static void dml__norm_task(void *argument, int task, int worker)
{
    const dml__norm_job *job = (const dml__norm_job *)argument;
    const size_t row = (size_t)task * job->rows_per_block, columns = job->columns;
    const size_t rows = dml__minimum(job->rows_per_block, job->rows - row);
    const size_t wide_rows = rows / job->fold, width = columns * job->fold;
    float center[DML__NORM_MOST], factor[DML__NORM_MOST], shift[DML__NORM_MOST];
    double first[DML__NORM_MOST], second[DML__NORM_MOST];
    (void)worker;
    for (size_t i = 0; i < width; i++) {
        center[i] = job->center[i % columns];
        factor[i] = job->dy ? job->gate.factor[i % columns] : 0;
        shift[i] = job->dy ? job->gate.shift[i % columns] : 0;
        first[i] = second[i] = 0;
    }
    const size_t at = row * job->channels, rest = at + wide_rows * job->fold * job->channels;
    dml__norm_matrix m = {
        wide_rows, job->channels * job->fold,         width, job->x + at, job->dy ? job->dy + at : NULL,
        center,    { factor, shift, job->gate.open }, first, second
    };
    dml__norm_sum_matrix(job, &m);
    m.rows = rows % job->fold;
    m.stride = job->channels;
    m.width = columns;
    m.x = job->x + rest;
    if (job->dy) m.dy = job->dy + rest;
    dml__norm_sum_matrix(job, &m);
    double *partial = job->partial + (size_t)task * 2 * columns;
    for (size_t c = 0; c < columns; c++) {
        partial[c] = partial[columns + c] = 0;
        for (size_t i = c; i < width; i += columns) {
            partial[c] += first[i];
            partial[columns + c] += second[i];
        }
    }
}

/* first[c] and second[c] of a group of columns. */
DML__NOINLINE static void dml__norm_sums(dml_pool *pool, dml__norm_job *job, double *first, double *second)
{
    double partial[DML__NORM_PARTIALS * 2];
    const size_t columns = job->columns;
    const size_t most = dml__minimum(DML__NORM_BLOCKS, DML__NORM_PARTIALS / columns);
    job->isa = dml__pool_machine(pool).isa;
    job->fold = columns == job->channels ? dml__norm_fold(columns, 4 * DML__LANES) : 1;
    job->rows_per_block = dml__divide_up(job->rows, most);
    if (job->rows_per_block * columns < DML__BLOCK) job->rows_per_block = dml__divide_up(DML__BLOCK, columns);
    job->rows_per_block = dml__divide_up(job->rows_per_block, job->fold) * job->fold;
    job->partial = partial;
    const size_t blocks = dml__divide_up(job->rows, job->rows_per_block);
    dml_pool_run(blocks > 1 ? pool : NULL, (int)blocks, dml__norm_task, job);
    for (size_t c = 0; c < columns; c++) {
        first[c] = second[c] = 0;
        for (size_t b = 0; b < blocks; b++) {
            first[c] += partial[2 * b * columns + c];
            second[c] += partial[(2 * b + 1) * columns + c];
        }
    }
}

/* What the distances are taken from: near enough to the mean that their squares lose no digits to it. Rows
   from all over x are taken, so a strange beginning doesn't decide. */
static void dml__norm_center(const dml__norm_job *job, float *center)
{
    const size_t samples = dml__minimum(DML__NORM_SAMPLES, job->rows);
    for (size_t c = 0; c < job->columns; c++) center[c] = 0;
    for (size_t i = 0; i < samples; i++) {
        const float *row = job->x + job->rows / samples * i * job->channels;
        for (size_t c = 0; c < job->columns; c++) center[c] += row[c] / (float)samples;
    }
}

static dml__norm_job dml__norm_group(size_t rows, size_t channels, size_t column, const float *x,
                                     const float *dy, const float *center)
{
    dml__norm_job job;
    memset(&job, 0, sizeof job);
    job.rows = rows;
    job.channels = channels;
    job.columns = dml__minimum(DML__NORM_MOST, channels - column);
    job.x = x + column;
    job.dy = dy ? dy + column : NULL;
    job.center = center;
    return job;
}

DML_API void dml_batch_statistics(dml_pool *pool, size_t rows, size_t channels, const float *x, float *mean,
                                  float *variance)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        float center[DML__NORM_MOST];
        double first[DML__NORM_MOST], second[DML__NORM_MOST];
        dml__norm_job job = dml__norm_group(rows, channels, column, x, NULL, center);
        dml__norm_center(&job, center);
        dml__norm_sums(pool, &job, first, second);
        const double count = rows ? (double)rows : 1;
        for (size_t c = 0; c < job.columns; c++) {
            const double distance = first[c] / count, square = second[c] / count - distance * distance;
            mean[column + c] = (float)((double)center[c] + distance);
            variance[column + c] = square < 0 ? 0.0f : (float)square;
        }
    }
}

/* 1 / sqrt(variance + epsilon) */
static double dml__norm_inverse(const dml_normalization *by, size_t c)
{
    return 1 / sqrt((double)by->variance[c] + (double)by->epsilon);
}

static double dml__norm_scale(const dml_normalization *by, size_t c)
{
    return by->scale ? (double)by->scale[c] : 1;
}

static float dml__norm_shift(const dml_normalization *by, size_t c)
{
    return by->shift ? by->shift[c] : 0;
}

static float dml__norm_factor(const dml_normalization *by, size_t c)
{
    return (float)(dml__norm_scale(by, c) * dml__norm_inverse(by, c));
}

static int32_t dml__norm_open(const dml_normalization *by)
{
    return by->activation == DML_ACTIVATION_RELU ? 0 : -1;
}

DML_API void dml_batch_norm_backward_parameters(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                                const dml_normalization *by, const float *dy, float *dscale,
                                                float *dshift)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        float factor[DML__NORM_MOST], shift[DML__NORM_MOST];
        double first[DML__NORM_MOST], second[DML__NORM_MOST];
        dml__norm_job job = dml__norm_group(rows, channels, column, x, dy, by->mean + column);
        for (size_t c = 0; c < job.columns; c++) {
            factor[c] = dml__norm_factor(by, column + c);
            shift[c] = dml__norm_shift(by, column + c);
        }
        job.gate.factor = factor;
        job.gate.shift = shift;
        job.gate.open = dml__norm_open(by);
        dml__norm_sums(pool, &job, first, second);
        for (size_t c = 0; c < job.columns; c++) {
            dshift[column + c] = (float)first[c];
            dscale[column + c] = (float)(second[c] * dml__norm_inverse(by, column + c));
        }
    }
}

/* ---- each element from those of its place and numbers of its channel ---- */

typedef struct dml__norm_map {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_task;
    const float *x, *dy; /* from the group's first column on; dy NULL: forward */
    float *out;
    float beta;
    int32_t open; /* -1: there is no relu; else 0 */
    /* For each column of a wide row: forward: factor (x - mean) + shift; backward: factor dy +
       distance (x - mean) + base, for dy that counts. */
    float mean[DML__NORM_MOST], factor[DML__NORM_MOST], shift[DML__NORM_MOST];
    float distance[DML__NORM_MOST], base[DML__NORM_MOST];
} dml__norm_map;

DML__DRIVERS_END

/* Elements [at, at + rows * stride) in rows of `width`. */
DML__BODY void dml__norm_map_any(bool backward, bool adds, const dml__norm_map *map, size_t at, size_t rows,
                                 size_t stride, size_t width)
{
    const dml__vi zero = { 0 }, open = zero + map->open;
    const dml__norm_gate gate = { map->factor, map->shift, map->open };
    for (size_t r = 0; r < rows; r++, at += stride) {
        const float *x = map->x + at, *dy = backward ? map->dy + at : x;
        float *out = map->out + at;
        size_t c = 0;
        for (; c + DML__LANES <= width; c += DML__LANES) {
            const dml__vf distance = DML__LOAD(x + c) - DML__LOAD(map->mean + c);
            dml__vf value;
            if (backward) {
                dml__vf d = DML__LOAD(dy + c);
                dml__norm_pass(&gate, c, &distance, &d);
                value = DML__LOAD(map->base + c);
                value += DML__LOAD(map->distance + c) * distance + DML__LOAD(map->factor + c) * d;
            } else {
                value = DML__LOAD(map->shift + c) + DML__LOAD(map->factor + c) * distance;
                value = (dml__vf)((dml__vi)value & (~(value <= 0.0f) | open)); /* keeps a NaN */
            }
            if (adds) value += map->beta * DML__LOAD(out + c);
            DML__STORE(out + c, value);
        }
        for (; c < width; c++) {
            const float distance = x[c] - map->mean[c];
            float value;
            if (backward) {
                const float d = dml__norm_pass_one(&gate, c, distance, dy[c]);
                value = map->base[c];
                value += map->distance[c] * distance + map->factor[c] * d;
            } else {
                value = map->shift[c] + map->factor[c] * distance;
                if (value <= 0 && !map->open) value = 0;
            }
            if (adds) value += map->beta * out[c];
            out[c] = value;
        }
    }
}

DML__BODY void dml__norm_map_rows_body(const dml__norm_map *map, size_t at, size_t rows, size_t stride,
                                       size_t width)
{
    if (!map->dy)
        dml__norm_map_any(false, false, map, at, rows, stride, width);
    else if (map->beta == 0)
        dml__norm_map_any(true, false, map, at, rows, stride, width);
    else
        dml__norm_map_any(true, true, map, at, rows, stride, width);
}
DML__PER_ISA(dml__norm_map_rows,
             (const dml__norm_map *map, size_t at, size_t rows, size_t stride, size_t width),
             (map, at, rows, stride, width))

DML__DRIVERS_BEGIN

static void dml__norm_map_task(void *argument, int task, int worker)
{
    const dml__norm_map *map = (const dml__norm_map *)argument;
    const size_t row = (size_t)task * map->rows_per_task;
    const size_t rows = dml__minimum(map->rows_per_task, map->rows - row), wide_rows = rows / map->fold;
    const size_t at = row * map->channels, wide = map->fold * map->channels;
    (void)worker;
    dml__norm_map_rows(map->isa, map, at, wide_rows, wide, map->fold * map->columns);
    dml__norm_map_rows(map->isa, map, at + wide_rows * wide, rows % map->fold, map->channels, map->columns);
}

static void dml__norm_map_run(dml_pool *pool, dml__norm_map *map)
{
    map->isa = dml__pool_machine(pool).isa;
    map->fold = map->columns == map->channels ? dml__norm_fold(map->columns, 128) : 1;
    for (size_t i = map->columns; i < map->fold * map->columns; i++) {
        map->mean[i] = map->mean[i - map->columns];
        map->factor[i] = map->factor[i - map->columns];
        map->shift[i] = map->shift[i - map->columns];
        map->distance[i] = map->distance[i - map->columns];
        map->base[i] = map->base[i - map->columns];
    }
    map->rows_per_task = dml__divide_up(dml__items_per_task(map->columns), map->fold) * map->fold;
    const size_t tasks = dml__divide_up(map->rows, map->rows_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__norm_map_task, map);
}

/* Of the channels from `column` on; what backward adds is left out. */
static void dml__norm_map_group(dml__norm_map *map, size_t rows, size_t channels, size_t column,
                                const float *x, const dml_normalization *by, float *out)
{
    map->rows = rows;
    map->channels = channels;
    map->columns = dml__minimum(DML__NORM_MOST, channels - column);
    map->x = x + column;
    map->dy = NULL;
    map->out = out + column;
    map->beta = 0;
    map->open = dml__norm_open(by);
    for (size_t c = 0; c < map->columns; c++) {
        map->mean[c] = by->mean[column + c];
        map->factor[c] = dml__norm_factor(by, column + c);
        map->shift[c] = dml__norm_shift(by, column + c);
        map->distance[c] = map->base[c] = 0;
    }
}

DML_API void dml_batch_norm_forward(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                    const dml_normalization *by, float *y)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        dml__norm_map_group(&map, rows, channels, column, x, by, y);
        dml__norm_map_run(pool, &map);
    }
}

/* dx = scale inverse (dy - mean of dy - (x - mean) inverse^2 mean of dy (x - mean)), the two means being zero
   where the statistics are constants. */
DML_API void dml_batch_norm_backward_input(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                           const dml_normalization *by, const float *dy, const float *dscale,
                                           const float *dshift, float beta, float *dx)
{
    const double count = rows ? (double)rows : 1;
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        dml__norm_map_group(&map, rows, channels, column, x, by, dx);
        map.dy = dy + column;
        map.beta = beta;
        for (size_t c = 0; c < map.columns; c++) {
            const size_t at = column + c;
            const double inverse = dml__norm_inverse(by, at), factor = dml__norm_scale(by, at) * inverse;
            if (dscale) map.distance[c] = (float)(-factor * inverse * (double)dscale[at] / count);
            if (dshift) map.base[c] = (float)(-factor * (double)dshift[at] / count);
        }
        dml__norm_map_run(pool, &map);
    }
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) for g = scale dy, the means being
   those over the group. */
DML__LOCAL void dml__norm_backward_groups(dml_pool *pool, size_t rows, size_t channels, size_t groups,
                                          const float *x, const dml_normalization *by, const float *dy,
                                          const float *dscale, const float *dshift, float beta, float *dx)
{
    const size_t width = channels / groups;
    const double count = (double)rows * (double)width;
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        double sum = 0, product = 0;
        dml__norm_map_group(&map, rows, channels, column, x, by, dx);
        map.dy = dy + column;
        map.beta = beta;
        for (size_t c = 0; c < map.columns; c++) {
            const size_t at = column + c, first = at / width * width;
            const double inverse = dml__norm_inverse(by, at);
            if (c == 0 || at == first) {
                sum = product = 0;
                for (size_t k = first; k < first + width; k++) {
                    sum += dml__norm_scale(by, k) * (double)dshift[k];
                    product += dml__norm_scale(by, k) * (double)dscale[k];
                }
            }
            map.distance[c] = (float)(-inverse * inverse * (product / count));
            map.base[c] = (float)(-inverse * (sum / count));
        }
        dml__norm_map_run(pool, &map);
    }
}

DML__DRIVERS_END

#endif
