#ifndef DML_KERNELS_GATHER_C
#define DML_KERNELS_GATHER_C

#include "kernels/gather.h"

#include "base/copy.h"
#include "kernels/blocks.h"
#include "kernels/formula.h"
#include "thread/pool_internal.h"

#include <string.h>

typedef struct dml__gather_job {
    dml_isa isa;
    dml_gather_shape s;
    bool backward;
    const int32_t *indices;
    const float *from;
    float beta;
    float *to;
} dml__gather_job;

static const int32_t *dml__gather_indices(const dml__gather_job *job, size_t o)
{
    const dml_gather_shape *s = &job->s;
    return job->indices + (s->elements ? o * s->m * s->inner : o / s->group * s->m);
}

static void dml__gather_forward_one(const dml__gather_job *job, size_t o)
{
    const dml_gather_shape s = job->s;
    const int32_t *indices = dml__gather_indices(job, o);
    const float *x = job->from + o * s.n * s.inner;
    float *y = job->to + o * s.m * s.inner;
    if (s.inner == 1)
        for (size_t j = 0; j < s.m; j++) y[j] = x[indices[j]];
    else if (!s.elements)
        for (size_t j = 0; j < s.m; j++)
            dml__copy_bytes(y + j * s.inner, x + (size_t)indices[j] * s.inner, s.inner * sizeof *y);
    else
        for (size_t j = 0; j < s.m * s.inner; j += s.inner)
            for (size_t i = 0; i < s.inner; i++) y[j + i] = x[(size_t)indices[j + i] * s.inner + i];
}

static void dml__gather_backward_one(const dml__gather_job *job, size_t o)
{
    const dml_gather_shape s = job->s;
    const size_t all = s.n * s.inner, whole = s.inner - s.inner % DML__LANES;
    const int32_t *indices = dml__gather_indices(job, o);
    const float *dy = job->from + o * s.m * s.inner;
    float *dx = job->to + o * all;
    if (job->beta == 0)
        memset(dx, 0, all * sizeof *dx);
    else if (job->beta != 1)
        for (size_t i = 0; i < all; i++) dx[i] *= job->beta;
    for (size_t j = 0; j < s.m; j++, dy += s.inner) {
        if (s.elements) {
            for (size_t i = 0; i < s.inner; i++) dx[(size_t)indices[j * s.inner + i] * s.inner + i] += dy[i];
            continue;
        }
        float *row = dx + (size_t)indices[j] * s.inner;
        const dml__formula_at at = { { row, dy, NULL }, NULL, NULL, row, 0, 0 };
        if (whole) dml__formula_vectors(job->isa, DML__FORMULA_add, -1, whole, &at);
        for (size_t i = whole; i < s.inner; i++) row[i] += dy[i];
    }
}

DML__DRIVERS_BEGIN

static size_t dml__gather_step(const dml_gather_shape *s)
{
    return dml__items_per_task((s->n > s->m ? s->n : s->m) * s->inner);
}

static void dml__gather_task(void *argument, int task, int worker)
{
    const dml__gather_job *job = (const dml__gather_job *)argument;
    const size_t step = dml__gather_step(&job->s), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->s.outer);
    (void)worker;
    for (size_t o = begin; o < end; o++)
        (job->backward ? dml__gather_backward_one : dml__gather_forward_one)(job, o);
}

static void dml__gather_run(dml_pool *pool, dml__gather_job *job)
{
    const size_t tasks = dml__divide_up(job->s.outer, dml__gather_step(&job->s));
    job->isa = dml__pool_machine(pool).isa;
    if (job->s.inner) dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__gather_task, job);
}

DML_API void dml_gather_forward(dml_pool *pool, const dml_gather_shape *shape, const int32_t *indices,
                                const float *x, float *y)
{
    dml__gather_job job = { DML_ISA_SCALAR, *shape, false, indices, x, 0, y };
    dml__gather_run(pool, &job);
}

DML_API void dml_gather_backward(dml_pool *pool, const dml_gather_shape *shape, const int32_t *indices,
                                 const float *dy, float beta, float *dx)
{
    dml__gather_job job = { DML_ISA_SCALAR, *shape, true, indices, dy, beta, dx };
    dml__gather_run(pool, &job);
}

DML__DRIVERS_END

#endif
