#ifndef DML_KERNELS_GROUP_NORM_C
#define DML_KERNELS_GROUP_NORM_C

#include "kernels/group_norm.h"

#include "kernels/norm.h"
#include "kernels/norm_internal.h"

typedef struct dml__group_job {
    dml_pool *pool; /* that a sample is shared out to, where the samples aren't */
    dml_group_norm_shape shape;
    const float *x, *scale, *shift, *dy;
    float epsilon, beta;
    float *statistics; /* (samples, 2, channels) */
    float *parts;      /* (2, samples, channels) */
    float *out;
} dml__group_job;

DML__DRIVERS_BEGIN

static dml_normalization dml__group_by(const dml__group_job *job, size_t sample)
{
    const float *mean = job->statistics + 2 * sample * job->shape.channels;
    const dml_normalization by = { mean,         mean + job->shape.channels, job->scale, job->shift,
                                   job->epsilon, DML_ACTIVATION_NONE };
    return by;
}

/* The mean and variance of each group from those of its channels. */
static void dml__group_merge(const dml_group_norm_shape *s, float *mean, float *variance)
{
    const size_t width = s->channels / s->groups;
    for (size_t begin = 0; begin < s->channels; begin += width) {
        double middle = 0, square = 0;
        for (size_t c = begin; c < begin + width; c++) middle += (double)mean[c] / (double)width;
        for (size_t c = begin; c < begin + width; c++) {
            const double distance = (double)mean[c] - middle;
            square += ((double)variance[c] + distance * distance) / (double)width;
        }
        for (size_t c = begin; c < begin + width; c++) {
            mean[c] = (float)middle;
            variance[c] = (float)square;
        }
    }
}

static void dml__group_forward_task(void *argument, int task, int worker)
{
    const dml__group_job *job = (const dml__group_job *)argument;
    const dml_group_norm_shape *s = &job->shape;
    const size_t at = (size_t)task * s->pixels * s->channels;
    float *mean = job->statistics + 2 * (size_t)task * s->channels;
    (void)worker;
    dml_batch_statistics(job->pool, s->pixels, s->channels, job->x + at, mean, mean + s->channels);
    dml__group_merge(s, mean, mean + s->channels);
    const dml_normalization by = dml__group_by(job, (size_t)task);
    dml_batch_norm_forward(job->pool, s->pixels, s->channels, job->x + at, &by, job->out + at);
}

static void dml__group_backward_task(void *argument, int task, int worker)
{
    const dml__group_job *job = (const dml__group_job *)argument;
    const dml_group_norm_shape *s = &job->shape;
    const size_t at = (size_t)task * s->pixels * s->channels;
    const dml_normalization by = dml__group_by(job, (size_t)task);
    float *dshift = job->parts + (size_t)task * s->channels;
    float *dscale = job->parts + (s->samples + (size_t)task) * s->channels;
    (void)worker;
    dml_batch_norm_backward_parameters(job->pool, s->pixels, s->channels, job->x + at, &by, job->dy + at,
                                       dscale, dshift);
    if (job->out)
        dml__norm_backward_groups(job->pool, s->pixels, s->channels, s->groups, job->x + at, &by,
                                  job->dy + at, dscale, dshift, job->beta, job->out + at);
}

/* Samples are the tasks; a single one is shared out itself. */
static void dml__group_run(dml_pool *pool, dml__group_job *job, dml_pool_task task)
{
    if (!job->shape.channels || !job->shape.pixels) return;
    job->pool = job->shape.samples == 1 ? pool : NULL;
    dml_pool_run(job->pool ? NULL : pool, (int)job->shape.samples, task, job);
}

DML_API void dml_group_norm_forward(dml_pool *pool, const dml_group_norm_shape *shape, const float *x,
                                    const float *scale, const float *shift, float epsilon, float *statistics,
                                    float *y)
{
    dml__group_job job = { NULL, *shape, x, scale, shift, NULL, epsilon, 0, statistics, NULL, y };
    dml__group_run(pool, &job, dml__group_forward_task);
}

DML_API void dml_group_norm_backward(dml_pool *pool, const dml_group_norm_shape *shape, const float *x,
                                     const float *scale, float epsilon, const float *statistics,
                                     const float *dy, float *parts, float beta, float *dx)
{
    dml__group_job job = { NULL, *shape, x, scale, NULL, dy, epsilon, beta, NULL, parts, dx };
    job.statistics = (float *)(uintptr_t)statistics; /* which backward only reads */
    dml__group_run(pool, &job, dml__group_backward_task);
}

DML__DRIVERS_END

#endif
