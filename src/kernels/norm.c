#ifndef DML_KERNELS_NORM_C
#define DML_KERNELS_NORM_C

#include "kernels/norm.h"

#include "kernels/blocks.h"
#include "kernels/norm_internal.h"
#include "kernels/norm_loops.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

DML__DRIVERS_BEGIN

/* Few channels fill no vectors, so several rows are taken as one wide row: how many, for whole vectors and at
   least `width` columns. 1 where the channels fill the vectors that are computed side by side. */
static size_t dml__norm_fold(dml_isa isa, size_t channels, size_t width)
{
    size_t fold = 1;
    if (channels >= dml__norm_strip_width(isa)) return 1;
    while (fold < DML__LANES && channels * fold % DML__LANES) fold *= 2;
    while (channels * fold < width) fold *= 2;
    return fold;
}

/* ---- two sums of each column ---- */

#define DML__NORM_BLOCKS ((size_t)16)     /* of rows, at most, each a task, */
#define DML__NORM_PARTIALS ((size_t)2048) /* and of blocks times columns */
#define DML__NORM_SAMPLES ((size_t)32)    /* rows whose mean is what distances are taken from */

/* The sums of a group of columns. */
typedef struct dml__norm_job {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_block;
    const float *x, *dy; /* (rows, channels), from the group's first column on; dy NULL: the moments of x */
    const float *center; /* (columns) */
    dml__norm_gate gate; /* of the group's columns */
    double *partial;     /* (blocks, 2, columns) */
} dml__norm_job;

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
        const size_t c = i < columns ? i : i - columns; /* those of the row before */
        center[i] = i < columns ? job->center[i] : center[c];
        factor[i] = !job->dy ? 0 : i < columns ? job->gate.factor[i] : factor[c];
        shift[i] = !job->dy ? 0 : i < columns ? job->gate.shift[i] : shift[c];
        first[i] = second[i] = 0;
    }
    const size_t at = row * job->channels, rest = at + wide_rows * job->fold * job->channels;
    dml__norm_matrix m = {
        wide_rows, job->channels * job->fold,         width, job->x + at, job->dy ? job->dy + at : NULL,
        center,    { factor, shift, job->gate.open }, first, second
    };
    dml__norm_sum(job->isa, &m);
    m.rows = rows % job->fold;
    m.stride = job->channels;
    m.width = columns;
    m.x = job->x + rest;
    if (job->dy) m.dy = job->dy + rest;
    dml__norm_sum(job->isa, &m);
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
    job->fold =
        columns == job->channels ? dml__norm_fold(job->isa, columns, dml__norm_strip_width(job->isa)) : 1;
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
static void dml__norm_center(const dml__norm_job *job, float *center, double *first, double *second)
{
    const size_t samples = dml__minimum(DML__NORM_SAMPLES, job->rows);
    const size_t stride = samples ? job->rows / samples * job->channels : 0;
    const dml__norm_matrix m = { samples,           stride, job->columns, job->x, NULL, center,
                                 { NULL, NULL, 0 }, first,  second };
    for (size_t c = 0; c < job->columns; c++) center[c] = 0, first[c] = second[c] = 0;
    dml__norm_sum(job->isa, &m);
    for (size_t c = 0; c < job->columns && samples; c++) center[c] = (float)(first[c] / (double)samples);
}

static dml__norm_job dml__norm_group(dml_pool *pool, size_t rows, size_t channels, size_t column,
                                     const float *x, const float *dy, const float *center)
{
    dml__norm_job job;
    memset(&job, 0, sizeof job);
    job.isa = dml__pool_machine(pool).isa;
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
        dml__norm_job job = dml__norm_group(pool, rows, channels, column, x, NULL, center);
        dml__norm_center(&job, center, first, second);
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
        dml__norm_job job = dml__norm_group(pool, rows, channels, column, x, dy, by->mean + column);
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

/* ---- each element ---- */

static void dml__norm_map_task(void *argument, int task, int worker)
{
    const dml__norm_map *map = (const dml__norm_map *)argument;
    const size_t row = (size_t)task * map->rows_per_task;
    const size_t rows = dml__minimum(map->rows_per_task, map->rows - row), wide_rows = rows / map->fold;
    const size_t at = row * map->channels, wide = map->fold * map->channels;
    (void)worker;
    dml__norm_map_part(map->isa, map, at, wide_rows, wide, map->fold * map->columns);
    dml__norm_map_part(map->isa, map, at + wide_rows * wide, rows % map->fold, map->channels, map->columns);
}

static void dml__norm_map_run(dml_pool *pool, dml__norm_map *map)
{
    map->isa = dml__pool_machine(pool).isa;
    map->fold = map->columns == map->channels ? dml__norm_fold(map->isa, map->columns, 128) : 1;
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
