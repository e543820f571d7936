#ifndef DML_KERNELS_BLOCKS_C
#define DML_KERNELS_BLOCKS_C

#include "kernels/blocks.h"

#include "thread/pool_internal.h"

#include <string.h>

typedef struct dml__map_job {
    dml_isa isa;
    size_t n;
    dml__map_kernel kernel;
    const dml__map_operands *operands;
} dml__map_job;

static dml__map_operands dml__operands_at(const dml__map_operands *operands, size_t offset)
{
    dml__map_operands at = *operands;
    for (int i = 0; i < DML__MAP_INPUTS; i++)
        if (at.in[i]) at.in[i] += offset;
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at.out[i]) at.out[i] += offset;
    return at;
}

static void dml__map_rest(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *at, size_t count)
{
    float in[DML__MAP_INPUTS][DML__LANES], out[DML__MAP_OUTPUTS][DML__LANES];
    dml__map_operands padded = *at;
    padded.stream = false;
    memset(in, 0, sizeof in);
    for (int i = 0; i < DML__MAP_INPUTS; i++) {
        if (!at->in[i]) continue;
        memcpy(in[i], at->in[i], count * sizeof(float));
        padded.in[i] = in[i];
    }
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at->out[i]) padded.out[i] = out[i];
    kernel(isa, DML__LANES, &padded);
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at->out[i]) memcpy(at->out[i], out[i], count * sizeof(float));
}

DML__LOCAL void dml__map_range(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *operands,
                               size_t begin, size_t end)
{
    const size_t rest = (end - begin) % DML__LANES;
    if (end - begin > rest) {
        const dml__map_operands at = dml__operands_at(operands, begin);
        kernel(isa, end - begin - rest, &at);
    }
    if (rest) {
        const dml__map_operands at = dml__operands_at(operands, end - rest);
        dml__map_rest(isa, kernel, &at, rest);
    }
}

DML__LOCAL void dml__map_by_vectors(size_t n, const dml__map_operands *at, dml__map_vector vector)
{
    dml__vf value = { 0 };
    for (size_t i = 0; i < n; i += DML__LANES) {
        vector(at, i, &value);
        if (at->in[2]) value = value + at->number[0] * DML__LOAD(at->in[2] + i);
        DML__STORE(at->out[0] + i, value);
    }
}

static bool dml__map_streams(size_t n, const dml__map_operands *at)
{
    size_t arrays = 1;
    for (int i = 0; i < DML__MAP_INPUTS; i++) {
        if (at->in[i] == at->out[0]) return false;
        if (at->in[i]) arrays++;
    }
    return DML__STREAMS && n > DML__STREAM_FROM / sizeof(float) / arrays && (uintptr_t)at->out[0] % 16 == 0;
}

static void dml__map_task(void *argument, int task, int worker)
{
    const dml__map_job *job = (const dml__map_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK;
    (void)worker;
    dml__map_range(job->isa, job->kernel, job->operands, begin, dml__minimum(begin + DML__BLOCK, job->n));
}

DML__LOCAL void dml__map(dml_pool *pool, size_t n, dml__map_kernel kernel, const dml__map_operands *operands)
{
    dml__map_job job;
    dml__map_operands copy = *operands;
    copy.stream = dml__map_streams(n, operands);
    job.isa = dml__pool_machine(pool).isa;
    job.n = n;
    job.kernel = kernel;
    job.operands = &copy;
    if (n <= DML__BLOCK)
        dml__map_range(job.isa, kernel, &copy, 0, n);
    else
        dml_pool_run(pool, (int)dml__divide_up(n, DML__BLOCK), dml__map_task, &job);
}

typedef struct dml__reduce_job {
    dml_isa isa;
    size_t n, block;
    dml__reduce_kernel kernel;
    const float *x, *y;
    double *partial;
} dml__reduce_job;

static void dml__reduce_task(void *argument, int task, int worker)
{
    const dml__reduce_job *job = (const dml__reduce_job *)argument;
    const size_t begin = (size_t)task * job->block;
    (void)worker;
    job->kernel(job->isa, dml__minimum(job->block, job->n - begin), job->x + begin,
                job->y ? job->y + begin : NULL, &job->partial[task]);
}

DML__LOCAL int dml__reduce(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                           const float *y, double partial[DML__PARTIALS])
{
    dml__reduce_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.n = n;
    job.block = DML__BLOCK * dml__divide_up(n, DML__BLOCK * DML__PARTIALS);
    job.kernel = kernel;
    job.x = x;
    job.y = y;
    job.partial = partial;
    if (n == 0) return 0;
    const int tasks = (int)dml__divide_up(n, job.block);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__reduce_task, &job);
    return tasks;
}

#endif
