#ifndef DML_KERNELS_DROPOUT_C
#define DML_KERNELS_DROPOUT_C

#include "kernels/dropout.h"

#include "kernels/blocks.h"

typedef struct dml__dropout_job {
    size_t n;
    const dml_random *random;
    uint64_t first;
    uint32_t threshold;
    float scale, beta;
    const float *x;
    float *y;
} dml__dropout_job;

/* A block of Philox is four elements; so is a task's beginning a multiple of four. */
static void dml__dropout_task(void *argument, int task, int worker)
{
    const dml__dropout_job *job = (const dml__dropout_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK, end = dml__minimum(begin + DML__BLOCK, job->n);
    const uint32_t key[2] = { (uint32_t)job->random->seed, (uint32_t)(job->random->seed >> 32) };
    (void)worker;
    for (size_t i = begin; i < end; i += 4) {
        const uint64_t block = (job->first + i) / 4;
        const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), job->random->stream,
                                      job->random->step };
        const size_t count = dml__minimum(4, end - i);
        uint32_t bits[4];
        dml_philox4x32(counter, key, bits);
        for (size_t k = 0; k < count; k++) {
            const float value = bits[k] < job->threshold ? 0.0f : job->x[i + k] * job->scale;
            job->y[i + k] = job->beta != 0 ? value + job->beta * job->y[i + k] : value;
        }
    }
}

DML_API uint32_t dml_dropout_threshold(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

DML_API void dml_dropout_apply(dml_pool *pool, size_t n, const dml_random *random, uint64_t first, float p,
                               const float *x, float beta, float *y)
{
    dml__dropout_job job = { n, random, first, dml_dropout_threshold(p), 1 / (1 - p), beta, x, y };
    dml_pool_run(n > DML__BLOCK ? pool : NULL, (int)dml__divide_up(n, DML__BLOCK), dml__dropout_task, &job);
}

#endif
