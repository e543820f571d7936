#ifndef DML_KERNELS_EMBEDDING_BAG_C
#define DML_KERNELS_EMBEDDING_BAG_C

#include "kernels/embedding_bag.h"

#include "kernels/blocks.h"
#include "kernels/reduce.h"
#include "thread/pool_internal.h"

#include <string.h>

#define DML__BAG_COLUMNS ((size_t)64) /* of all bags, that one task adds to the table */
#define DML__BAG_AHEAD ((size_t)16)   /* places whose rows are asked for: they are anywhere in memory */

typedef struct dml__bag_job {
    dml_isa isa;
    size_t bags, length, width, bags_per_task;
    bool mean, backward;
    float beta;
    const int32_t *indices;
    const float *weights; /* or NULL */
    const float *from, *dy;
    float *to;
} dml__bag_job;

DML__BODY float dml__bag_part(const dml__bag_job *job, const int32_t *indices)
{
    size_t count = 0;
    if (!job->mean || job->weights) return 1.0f;
    for (size_t i = 0; i < job->length; i++) count += indices[i] >= 0;
    return count ? 1.0f / (float)count : 0.0f;
}

/* Columns begin .. end - 1 of bags first .. last - 1: the table's rows to a bag's, or back. */
DML__BODY void dml__bag_add_body(const dml__bag_job *at, size_t first, size_t last, size_t begin, size_t end)
{
    const dml__bag_job job = *at;
    const int32_t *end_of_indices = job.indices + last * job.length;
    const uintptr_t table = (uintptr_t)(job.backward ? job.to : job.from) + begin * sizeof(float);
    for (size_t bag = first; bag < last; bag++) {
        const int32_t *indices = job.indices + bag * job.length;
        const float *weights = job.weights ? job.weights + bag * job.length : NULL;
        const float part = dml__bag_part(&job, indices);
        for (size_t i = 0; i < job.length; i++) {
            if ((size_t)(end_of_indices - indices) - i > DML__BAG_AHEAD)
                DML__PREFETCH((const void *)(table + (uintptr_t)indices[i + DML__BAG_AHEAD] * job.width *
                                                         sizeof(float)));
            if (indices[i] < 0) continue;
            const size_t row = (size_t)indices[i] * job.width;
            const float scale = weights ? weights[i] : part;
            const float *from = job.from + (job.backward ? bag * job.width : row);
            float *to = job.to + (job.backward ? row : bag * job.width);
            size_t c = begin;
            for (; c + DML__LANES <= end; c += DML__LANES)
                DML__STORE(to + c, DML__LOAD(to + c) + scale * DML__LOAD(from + c));
            for (; c < end; c++) to[c] += scale * from[c];
        }
    }
}
DML__PER_ISA(dml__bag_add, (const dml__bag_job *at, size_t first, size_t last, size_t begin, size_t end),
             (at, first, last, begin, end))

static void dml__bag_forward_task(void *argument, int task, int worker)
{
    const dml__bag_job *job = (const dml__bag_job *)argument;
    const size_t begin = (size_t)task * job->bags_per_task;
    const size_t end = dml__minimum(begin + job->bags_per_task, job->bags);
    (void)worker;
    memset(job->to + begin * job->width, 0, (end - begin) * job->width * sizeof(float));
    dml__bag_add(job->isa, job, begin, end, 0, job->width);
}

/* Whoever adds to a row adds all that comes to it, so the tasks are columns. */
static void dml__bag_backward_task(void *argument, int task, int worker)
{
    const dml__bag_job *job = (const dml__bag_job *)argument;
    const size_t begin = (size_t)task * DML__BAG_COLUMNS;
    (void)worker;
    dml__bag_add(job->isa, job, 0, job->bags, begin, dml__minimum(begin + DML__BAG_COLUMNS, job->width));
}

static void dml__bag_weights_task(void *argument, int task, int worker)
{
    const dml__bag_job *job = (const dml__bag_job *)argument;
    const size_t begin = (size_t)task * job->bags_per_task;
    const size_t end = dml__minimum(begin + job->bags_per_task, job->bags);
    (void)worker;
    for (size_t i = begin * job->length; i < end * job->length; i++) {
        const float *dy = job->dy + i / job->length * job->width;
        const float kept = job->beta != 0.0f ? job->beta * job->to[i] : 0.0f;
        const int32_t row = job->indices[i];
        job->to[i] = kept;
        if (row >= 0) job->to[i] += dml_dot(NULL, job->width, job->from + (size_t)row * job->width, dy);
    }
}

DML__DRIVERS_BEGIN

static dml__bag_job dml__bag_job_of(dml_pool *pool, size_t bags, size_t length, size_t width,
                                    const int32_t *indices)
{
    dml__bag_job job;
    memset(&job, 0, sizeof job);
    job.isa = dml__pool_machine(pool).isa;
    job.bags = bags;
    job.length = length;
    job.width = width;
    job.bags_per_task = dml__items_per_task(length < DML__BLOCK ? length * width : DML__BLOCK);
    job.indices = indices;
    return job;
}

static void dml__run_bags(dml_pool *pool, dml_pool_task task, dml__bag_job *job)
{
    const size_t tasks = dml__divide_up(job->bags, job->bags_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, task, job);
}

DML_API void dml_embedding_bag_forward(dml_pool *pool, size_t bags, size_t length, size_t width, bool mean,
                                       const int32_t *indices, const float *weights, const float *table,
                                       float *y)
{
    dml__bag_job job = dml__bag_job_of(pool, bags, length, width, indices);
    job.mean = mean;
    job.weights = weights;
    job.from = table;
    job.to = y;
    dml__run_bags(pool, dml__bag_forward_task, &job);
}

DML_API void dml_embedding_bag_backward(dml_pool *pool, size_t bags, size_t length, size_t width, bool mean,
                                        const int32_t *indices, const float *weights, const float *dy,
                                        float *dtable)
{
    dml__bag_job job = dml__bag_job_of(pool, bags, length, width, indices);
    const size_t tasks = dml__divide_up(width, DML__BAG_COLUMNS);
    job.backward = true;
    job.mean = mean;
    job.weights = weights;
    job.from = dy;
    job.to = dtable;
    dml_pool_run(bags * length * width > DML__BLOCK ? pool : NULL, (int)tasks, dml__bag_backward_task, &job);
}

DML_API void dml_embedding_bag_backward_weights(dml_pool *pool, size_t bags, size_t length, size_t width,
                                                const int32_t *indices, const float *table, const float *dy,
                                                float beta, float *dweights)
{
    dml__bag_job job = dml__bag_job_of(pool, bags, length, width, indices);
    job.beta = beta;
    job.from = table;
    job.dy = dy;
    job.to = dweights;
    dml__run_bags(pool, dml__bag_weights_task, &job);
}

DML__DRIVERS_END

#endif
