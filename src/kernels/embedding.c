#ifndef DML_KERNELS_EMBEDDING_C
#define DML_KERNELS_EMBEDDING_C

#include "kernels/embedding.h"

#include "base/copy.h"
#include "kernels/blocks.h"
#include "kernels/elementwise.h"
#include "kernels/embedding_bag.h"

typedef struct dml__embedding_job {
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
        dml__copy_bytes(job->to + i * job->width, job->from + (size_t)job->indices[i] * job->width,
                        job->width * sizeof(float));
}

DML_API void dml_embedding_forward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                   const float *table, float *y)
{
    dml__embedding_job job = { count, width, dml__items_per_task(width), indices, table, y };
    const size_t tasks = dml__divide_up(count, job.rows_per_task);
    if (width) dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__embedding_forward_task, &job);
}

DML_API void dml_embedding_backward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                    const float *dy, size_t rows, float beta, float *dtable)
{
    if (beta == 0)
        dml_fill(pool, rows * width, 0.0f, dtable);
    else if (beta != 1)
        dml_scale(pool, rows * width, beta, dtable);
    dml_embedding_bag_backward(pool, count, 1, width, false, indices, NULL, dy, dtable);
}

#endif
