#ifndef DML_KERNELS_NORM_C
#define DML_KERNELS_NORM_C

#include "kernels/norm.h"

#include "kernels/blocks.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* Few channels fill no vectors, so several rows are taken as one wide row: how many, for whole vectors and at
   least `width` columns. 1 where there are channels enough. */
#define DML__NORM_WIDE ((size_t)256) /* no wide row is longer */

static size_t dml__norm_fold(size_t channels, size_t width)
{
    size_t fold = 1;
    if (channels >= width || channels >= 32) return 1;
    while (fold < DML__LANES && channels * fold % DML__LANES) fold *= 2;
    while (channels * fold < width) fold *= 2;
    return fold;
}

/* ---- two sums of each column ---- */

#define DML__NORM_BLOCKS ((size_t)16)  /* of rows, each a task */
#define DML__NORM_GROUP ((size_t)128)  /* columns that are summed at once */
#define DML__NORM_CHUNK ((size_t)128)  /* rows summed in float */
#define DML__NORM_NEAR ((size_t)128)   /* longer rows are far apart: fewer of them are taken at once */
#define DML__NORM_SAMPLES ((size_t)32) /* rows whose mean is what distances are taken from */

/* a += x - center, b += (x - center)^2; or, where there is a dy, a += dy, b += dy (x - center). */
DML__BODY void dml__norm_add(bool backward, dml__vf *a, dml__vf *b, const dml__vf *center, const float *x,
                             const float *dy)
{
    const dml__vf distance = DML__LOAD(x) - *center;
    dml__vf first = distance;
    if (backward) first = DML__LOAD(dy);
    *a += first;
    *b += first * distance;
}

DML__BODY void dml__norm_add_lanes(double *sum, const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    for (int lane = 0; lane < DML__LANES; lane++) sum[lane] += (double)lanes[lane];
}

/* Four vectors of columns over a chunk of rows. What comes after them lies `ahead`: where rows are far apart,
   no hardware sees that by itself. */
DML__BODY void dml__norm_strip(bool backward, size_t rows, size_t stride, size_t ahead, const float *x,
                               const float *dy, const float *center, double *first, double *second)
{
    const dml__vf c0 = DML__LOAD(center), c1 = DML__LOAD(center + DML__LANES);
    const dml__vf c2 = DML__LOAD(center + 2 * DML__LANES), c3 = DML__LOAD(center + 3 * DML__LANES);
    dml__vf a0, a1, a2, a3, b0, b1, b2, b3;
    dml__splat(&a0, 0);
    a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t r = 0; r < rows; r++) {
        const float *at = x + r * stride, *dat = backward ? dy + r * stride : at;
        __builtin_prefetch(at + ahead), __builtin_prefetch(at + ahead + 2 * DML__LANES);
        if (backward) __builtin_prefetch(dat + ahead), __builtin_prefetch(dat + ahead + 2 * DML__LANES);
        dml__norm_add(backward, &a0, &b0, &c0, at, dat);
        dml__norm_add(backward, &a1, &b1, &c1, at + DML__LANES, dat + DML__LANES);
        dml__norm_add(backward, &a2, &b2, &c2, at + 2 * DML__LANES, dat + 2 * DML__LANES);
        dml__norm_add(backward, &a3, &b3, &c3, at + 3 * DML__LANES, dat + 3 * DML__LANES);
    }
    dml__norm_add_lanes(first, &a0);
    dml__norm_add_lanes(first + DML__LANES, &a1);
    dml__norm_add_lanes(first + 2 * DML__LANES, &a2);
    dml__norm_add_lanes(first + 3 * DML__LANES, &a3);
    dml__norm_add_lanes(second, &b0);
    dml__norm_add_lanes(second + DML__LANES, &b1);
    dml__norm_add_lanes(second + 2 * DML__LANES, &b2);
    dml__norm_add_lanes(second + 3 * DML__LANES, &b3);
}

DML__BODY void dml__norm_vector(bool backward, size_t rows, size_t stride, const float *x, const float *dy,
                                const float *center, double *first, double *second)
{
    const dml__vf c = DML__LOAD(center);
    dml__vf a, b;
    dml__splat(&a, 0);
    b = a;
    for (size_t r = 0; r < rows; r++)
        dml__norm_add(backward, &a, &b, &c, x + r * stride, backward ? dy + r * stride : x);
    dml__norm_add_lanes(first, &a);
    dml__norm_add_lanes(second, &b);
}

DML__BODY void dml__norm_column(bool backward, size_t rows, size_t stride, const float *x, const float *dy,
                                float center, double *first, double *second)
{
    float a = 0, b = 0;
    for (size_t r = 0; r < rows; r++) {
        const float distance = x[r * stride] - center, value = backward ? dy[r * stride] : distance;
        a += value;
        b += value * distance;
    }
    *first += (double)a;
    *second += (double)b;
}

/* A matrix of rows that lie `stride` apart; the sums are added to first[c], second[c], c < width. */
typedef struct dml__norm_matrix {
    size_t rows, stride, width;
    const float *x, *dy;
    const float *center; /* (width) */
    double *first, *second;
} dml__norm_matrix;

DML__BODY void dml__norm_any(bool backward, const dml__norm_matrix *m)
{
    const bool far = m->stride > DML__NORM_NEAR;
    const size_t chunk = far ? DML__NORM_CHUNK / 8 : DML__NORM_CHUNK;
    for (size_t begin = 0; begin < m->rows; begin += chunk) {
        const size_t rows = dml__minimum(chunk, m->rows - begin), at = begin * m->stride;
        size_t c = 0;
        for (; c + 4 * DML__LANES <= m->width; c += 4 * DML__LANES) {
            const size_t next = c + 8 * DML__LANES <= m->width ? 4 * DML__LANES : chunk * m->stride - c;
            dml__norm_strip(backward, rows, m->stride, far ? next : 0, m->x + at + c,
                            backward ? m->dy + at + c : NULL, m->center + c, m->first + c, m->second + c);
        }
        for (; c + DML__LANES <= m->width; c += DML__LANES)
            dml__norm_vector(backward, rows, m->stride, m->x + at + c, backward ? m->dy + at + c : NULL,
                             m->center + c, m->first + c, m->second + c);
        for (; c < m->width; c++)
            dml__norm_column(backward, rows, m->stride, m->x + at + c, backward ? m->dy + at + c : NULL,
                             m->center[c], m->first + c, m->second + c);
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
    double *partial;     /* (blocks, 2, columns) */
} dml__norm_job;

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
    float center[DML__NORM_WIDE];
    double first[DML__NORM_WIDE], second[DML__NORM_WIDE];
    (void)worker;
    for (size_t i = 0; i < width; i++) {
        center[i] = job->center[i % columns];
        first[i] = second[i] = 0;
    }
    const size_t at = row * job->channels, rest = at + wide_rows * job->fold * job->channels;
    dml__norm_matrix m = { wide_rows,
                           job->channels * job->fold,
                           width,
                           job->x + at,
                           job->dy ? job->dy + at : NULL,
                           center,
                           first,
                           second };
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
    double partial[DML__NORM_BLOCKS * 2 * DML__NORM_GROUP];
    const size_t columns = job->columns;
    job->isa = dml__pool_machine(pool).isa;
    job->fold = columns == job->channels ? dml__norm_fold(columns, 4 * DML__LANES) : 1;
    job->rows_per_block = dml__divide_up(job->rows, DML__NORM_BLOCKS);
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
    job.columns = dml__minimum(DML__NORM_GROUP, channels - column);
    job.x = x + column;
    job.dy = dy ? dy + column : NULL;
    job.center = center;
    return job;
}

DML_API void dml_batch_statistics(dml_pool *pool, size_t rows, size_t channels, const float *x, float *mean,
                                  float *variance)
{
    for (size_t column = 0; column < channels; column += DML__NORM_GROUP) {
        float center[DML__NORM_GROUP];
        double first[DML__NORM_GROUP], second[DML__NORM_GROUP];
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
static double dml__norm_inverse(float variance, float epsilon)
{
    return 1 / sqrt((double)variance + (double)epsilon);
}

DML_API void dml_batch_norm_backward_parameters(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                                const float *mean, const float *variance, float epsilon,
                                                const float *dy, float *dscale, float *dshift)
{
    for (size_t column = 0; column < channels; column += DML__NORM_GROUP) {
        double first[DML__NORM_GROUP], second[DML__NORM_GROUP];
        dml__norm_job job = dml__norm_group(rows, channels, column, x, dy, mean + column);
        dml__norm_sums(pool, &job, first, second);
        for (size_t c = 0; c < job.columns; c++) {
            dshift[column + c] = (float)first[c];
            dscale[column + c] = (float)(second[c] * dml__norm_inverse(variance[column + c], epsilon));
        }
    }
}

/* ---- each element from those of its place and numbers of its channel ---- */

#define DML__NORM_MOST ((size_t)512) /* columns that are done at once */

typedef struct dml__norm_map {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_task;
    const float *x, *dy; /* from the group's first column on; dy NULL: forward */
    float *out;
    float beta;
    /* For each column of a wide row: forward: factor (x - mean) + shift; backward: factor dy +
       distance (x - mean) + shift. */
    float mean[DML__NORM_MOST], factor[DML__NORM_MOST], distance[DML__NORM_MOST], shift[DML__NORM_MOST];
} dml__norm_map;

/* Elements [at, at + rows * stride) in rows of `width`. */
DML__BODY void dml__norm_map_any(bool backward, bool adds, const dml__norm_map *map, size_t at, size_t rows,
                                 size_t stride, size_t width)
{
    for (size_t r = 0; r < rows; r++, at += stride) {
        const float *x = map->x + at, *dy = backward ? map->dy + at : NULL;
        float *out = map->out + at;
        size_t c = 0;
        for (; c + DML__LANES <= width; c += DML__LANES) {
            const dml__vf distance = DML__LOAD(x + c) - DML__LOAD(map->mean + c);
            const dml__vf factor = DML__LOAD(map->factor + c);
            dml__vf value = DML__LOAD(map->shift + c);
            if (backward)
                value += DML__LOAD(map->distance + c) * distance + factor * DML__LOAD(dy + c);
            else
                value += factor * distance;
            if (adds) value += map->beta * DML__LOAD(out + c);
            DML__STORE(out + c, value);
        }
        for (; c < width; c++) {
            const float distance = x[c] - map->mean[c];
            float value = map->shift[c];
            if (backward)
                value += map->distance[c] * distance + map->factor[c] * dy[c];
            else
                value += map->factor[c] * distance;
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
        map->distance[i] = map->distance[i - map->columns];
        map->shift[i] = map->shift[i - map->columns];
    }
    map->rows_per_task = dml__divide_up(dml__items_per_task(map->columns), map->fold) * map->fold;
    const size_t tasks = dml__divide_up(map->rows, map->rows_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__norm_map_task, map);
}

DML_API void dml_batch_norm_forward(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                    const float *scale, const float *shift, const float *mean,
                                    const float *variance, float epsilon, float *y)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        map.rows = rows;
        map.channels = channels;
        map.columns = dml__minimum(DML__NORM_MOST, channels - column);
        map.x = x + column;
        map.dy = NULL;
        map.out = y + column;
        map.beta = 0;
        for (size_t c = 0; c < map.columns; c++) {
            const size_t at = column + c;
            map.mean[c] = mean[at];
            map.factor[c] = (float)((double)scale[at] * dml__norm_inverse(variance[at], epsilon));
            map.distance[c] = 0;
            map.shift[c] = shift[at];
        }
        dml__norm_map_run(pool, &map);
    }
}

/* dx = scale inverse (dy - mean of dy - (x - mean) inverse^2 mean of dy (x - mean)), the two means being zero
   where the statistics are constants. */
DML_API void dml_batch_norm_backward_input(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                           const float *scale, const float *mean, const float *variance,
                                           float epsilon, const float *dy, const float *dscale,
                                           const float *dshift, float beta, float *dx)
{
    const double count = rows ? (double)rows : 1;
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        map.rows = rows;
        map.channels = channels;
        map.columns = dml__minimum(DML__NORM_MOST, channels - column);
        map.x = x + column;
        map.dy = dy + column;
        map.out = dx + column;
        map.beta = beta;
        for (size_t c = 0; c < map.columns; c++) {
            const size_t at = column + c;
            const double inverse = dml__norm_inverse(variance[at], epsilon);
            const double factor = (double)scale[at] * inverse;
            map.mean[c] = mean[at];
            map.factor[c] = (float)factor;
            map.distance[c] = dscale ? (float)(-factor * inverse * (double)dscale[at] / count) : 0.0f;
            map.shift[c] = dshift ? (float)(-factor * (double)dshift[at] / count) : 0.0f;
        }
        dml__norm_map_run(pool, &map);
    }
}

#endif
