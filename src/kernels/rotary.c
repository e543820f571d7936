#ifndef DML_KERNELS_ROTARY_C
#define DML_KERNELS_ROTARY_C

#include "kernels/rotary.h"

#include "kernels/blocks.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

DML_API void dml_rotary_table(size_t positions, size_t width, int offset, double base, float *table)
{
    const size_t half = width / 2;
    for (size_t i = 0; i < half; i++) {
        const double each = pow(base, -2.0 * (double)i / (double)width);
        for (size_t p = 0; p < positions; p++) {
            const double angle = ((double)p + (double)offset) * each;
            table[2 * p * half + i] = (float)cos(angle);
            table[(2 * p + 1) * half + i] = (float)sin(angle);
        }
    }
}

typedef struct dml__rotary_job {
    dml_rotary_shape s;
    const float *table, *x;
    float sign, beta, *y;
    dml_isa isa;
    size_t rows_per_task;
} dml__rotary_job;

/* The two halves of a head, at `step` apart the same. */
DML__BODY void dml__rotary_halves_body(const dml__rotary_job *job, const float *table, const float *x,
                                       float *y)
{
    const size_t half = job->s.width / 2;
    const float sign = job->sign, beta = job->beta;
    for (size_t i = 0; i < half; i += DML__LANES) {
        const size_t count = half - i;
        dml__vf a, b, cosine, sine, to_a, to_b;
        dml__load_some(&a, x + i, count);
        dml__load_some(&b, x + half + i, count);
        dml__load_some(&cosine, table + i, count);
        dml__load_some(&sine, table + half + i, count);
        sine *= sign;
        to_a = a * cosine - b * sine;
        to_b = b * cosine + a * sine;
        if (beta != 0) {
            dml__load_some(&a, y + i, count);
            dml__load_some(&b, y + half + i, count);
            to_a += a * beta;
            to_b += b * beta;
        }
        dml__store_some(y + i, &to_a, count);
        dml__store_some(y + half + i, &to_b, count);
    }
}
DML__PER_ISA(dml__rotary_halves, (const dml__rotary_job *job, const float *table, const float *x, float *y),
             (job, table, x, y))

static void dml__rotary_pairs(const dml__rotary_job *job, const float *table, const float *x, float *y)
{
    const size_t half = job->s.width / 2;
    for (size_t i = 0; i < half; i++) {
        const float cosine = table[i], sine = job->sign * table[half + i], a = x[2 * i], b = x[2 * i + 1];
        const float to_a = a * cosine - b * sine, to_b = b * cosine + a * sine;
        y[2 * i] = job->beta == 0 ? to_a : to_a + job->beta * y[2 * i];
        y[2 * i + 1] = job->beta == 0 ? to_b : to_b + job->beta * y[2 * i + 1];
    }
}

DML__DRIVERS_BEGIN

static void dml__rotary_task(void *argument, int task, int worker)
{
    const dml__rotary_job *job = (const dml__rotary_job *)argument;
    const size_t begin = (size_t)task * job->rows_per_task, width = job->s.width;
    const size_t end = dml__minimum(begin + job->rows_per_task, job->s.rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const size_t position = job->s.places ? (size_t)job->s.places[r] : r % job->s.positions;
        const float *table = job->table + position * width;
        const float *x = job->x + r * job->s.heads * width;
        float *y = job->y + r * job->s.heads * width;
        for (size_t h = 0; h < job->s.rotated; h++, x += width, y += width)
            if (job->s.interleaved)
                dml__rotary_pairs(job, table, x, y);
            else
                dml__rotary_halves(job->isa, job, table, x, y);
        const size_t rest = (job->s.heads - job->s.rotated) * width;
        if (job->beta == 0 && x != y) memcpy(y, x, rest * sizeof *y);
        for (size_t i = 0; i < rest && job->beta != 0; i++) y[i] = x[i] + job->beta * y[i];
    }
}

DML_API void dml_rotary_apply(dml_pool *pool, const dml_rotary_shape *shape, const float *table, bool back,
                              const float *x, float beta, float *y)
{
    dml__rotary_job job;
    memset(&job, 0, sizeof job);
    job.s = *shape;
    job.table = table;
    job.x = x;
    job.sign = back ? -1.0f : 1.0f;
    job.beta = beta;
    job.y = y;
    job.isa = dml__pool_machine(pool).isa;
    job.rows_per_task = dml__items_per_task(shape->heads * shape->width);
    const size_t tasks = dml__divide_up(shape->rows, job.rows_per_task);
    if (shape->heads && shape->width)
        dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__rotary_task, &job);
}

DML__DRIVERS_END

#endif
