#ifndef DML_KERNELS_EMBEDDING_C
#define DML_KERNELS_EMBEDDING_C

#include "kernels/embedding.h"

#include "kernels/blocks.h"
#include "kernels/elementwise.h"
#include "thread/pool_internal.h"

#include <string.h>

#define DML__EMBEDDING_COLUMNS ((size_t)64) /* that one task adds up, of all rows */

typedef struct dml__embedding_job {
    dml_isa isa;
    size_t count, width, rows_per_task;
    const int32_t *indices;
    const float *from;
    float *to;
} dml__embedding_job;

static void dml__embedding_forward_task(void *argument, int task, int worker)
{
    const dml__embedding_job *job = (const dml__embedding_job *)argument;
    const size_t begin = (size_t)task * job->rows_per_task;
    const size_t end = dml__minimum(begin + job->rows_per_task, job->count);
    (void)worker;
    for (size_t i = begin; i < end; i++)
        memcpy(job->to + i * job->width, job->from + (size_t)job->indices[i] * job->width,
               job->width * sizeof(float));
}

DML_API void dml_embedding_forward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                   const float *table, float *y)
{
    dml__embedding_job job = { DML_ISA_SCALAR, count, width, dml__items_per_task(width), indices, table, y };
    const size_t tasks = dml__divide_up(count, job.rows_per_task);
    if (width) dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__embedding_forward_task, &job);
}

/* Columns begin .. end - 1 of each row. */
DML__BODY void dml__embedding_add_body(const dml__embedding_job *at, size_t begin, size_t end)
{
    const dml__embedding_job job = *at;
    for (size_t i = 0; i < job.count; i++) {
        const float *from = job.from + i * job.width;
        float *to = job.to + (size_t)job.indices[i] * job.width;
        size_t c = begin;
        for (; c + DML__LANES <= end; c += DML__LANES)
            DML__STORE(to + c, DML__LOAD(to + c) + DML__LOAD(from + c));
        for (; c < end; c++) to[c] += from[c];
    }
}
DML__PER_ISA(dml__embedding_add, (const dml__embedding_job *at, size_t begin, size_t end), (at, begin, end))

static void dml__embedding_add_task(void *argument, int task, int worker)
{
    const dml__embedding_job *job = (const dml__embedding_job *)argument;
    const size_t begin = (size_t)task * DML__EMBEDDING_COLUMNS;
    (void)worker;
    dml__embedding_add(job->isa, job, begin, dml__minimum(begin + DML__EMBEDDING_COLUMNS, job->width));
}

/* Whoever adds to a row adds all that comes to it, so the tasks are columns. */
DML_API void dml_embedding_backward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                    const float *dy, size_t rows, float beta, float *dtable)
{
    dml__embedding_job job = { dml__pool_machine(pool).isa, count, width, 0, indices, dy, dtable };
    if (beta == 0)
        dml_fill(pool, rows * width, 0.0f, dtable);
    else if (beta != 1)
        dml_scale(pool, rows * width, beta, dtable);
    const size_t tasks = dml__divide_up(width, DML__EMBEDDING_COLUMNS);
    dml_pool_run(count * width > DML__BLOCK ? pool : NULL, (int)tasks, dml__embedding_add_task, &job);
}

#endif
