#ifndef DML_KERNELS_SLICE2D_C
#define DML_KERNELS_SLICE2D_C

#include "kernels/slice2d.h"

#include "base/copy.h"
#include "kernels/blocks.h"

#include <string.h>

DML__DRIVERS_BEGIN

static bool dml__slice2d_axis_ok(const dml_slice2d_axis *a)
{
    return a->in >= 1 && a->out >= 1 && a->begin >= 0 && a->step >= 1 && a->count >= 0 && a->before >= 0 &&
           (a->count == 0 || (int64_t)a->begin + (int64_t)(a->count - 1) * a->step < a->in) &&
           (int64_t)a->before + a->count <= a->out;
}

static dml_status dml__slice2d_check(const dml_slice2d_shape *s)
{
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const bool ok = s->batch >= 0 && dml__slice2d_axis_ok(h) && dml__slice2d_axis_ok(w) &&
                    dml__slice2d_axis_ok(c) && dml__floats_fit(s->batch, h->in, w->in, c->in) &&
                    dml__floats_fit(s->batch, h->out, w->out, c->out) &&
                    (int64_t)s->batch * h->in <= INT32_MAX && (int64_t)s->batch * h->out <= INT32_MAX;
    return ok ? DML_OK : DML_ERROR_ARGUMENT;
}

typedef struct dml__slice2d_job {
    const dml_slice2d_shape *shape;
    const float *from;
    float *to;
    float beta;
    size_t lines, lines_per_task; /* lines of `to`, of all images */
} dml__slice2d_job;

static void dml__slice2d_run(dml_pool *pool, dml__slice2d_job *job, size_t line, dml_pool_task task)
{
    job->lines_per_task = dml__items_per_task(line);
    const size_t tasks = dml__divide_up(job->lines, job->lines_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, task, job);
}

DML__DRIVERS_END

static void dml__slice2d_copy_line(const dml_slice2d_shape *s, const float *x, float *y)
{
    const dml_slice2d_axis *w = &s->axis[1], *c = &s->axis[2];
    const size_t before = (size_t)c->before, count = (size_t)c->count, step = (size_t)c->step;
    const size_t out = (size_t)c->out;
    memset(y, 0, (size_t)w->before * out * sizeof *y);
    y += (size_t)w->before * out;
    for (int i = 0; i < w->count; i++, y += out) {
        const float *from = x + ((size_t)w->begin + (size_t)i * (size_t)w->step) * (size_t)c->in + c->begin;
        memset(y, 0, before * sizeof *y);
        if (step == 1)
            dml__copy_bytes(y + before, from, count * sizeof *y);
        else
            for (size_t k = 0; k < count; k++) y[before + k] = from[k * step];
        memset(y + before + count, 0, (out - before - count) * sizeof *y);
    }
    memset(y, 0, (size_t)(w->out - w->before - w->count) * out * sizeof *y);
}

DML__DRIVERS_BEGIN

static void dml__slice2d_forward_task(void *argument, int task, int worker)
{
    const dml__slice2d_job *job = (const dml__slice2d_job *)argument;
    const dml_slice2d_shape *s = job->shape;
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const size_t in_line = (size_t)w->in * (size_t)c->in, out_line = (size_t)w->out * (size_t)c->out;
    const size_t begin = (size_t)task * job->lines_per_task;
    const size_t end = dml__minimum(begin + job->lines_per_task, job->lines);
    (void)worker;
    for (size_t line = begin; line < end; line++) {
        const size_t image = line / (size_t)h->out;
        const int i = (int)(line % (size_t)h->out) - h->before;
        float *y = job->to + line * out_line;
        if (i < 0 || i >= h->count) {
            memset(y, 0, out_line * sizeof *y);
            continue;
        }
        const size_t from = image * (size_t)h->in + (size_t)h->begin + (size_t)i * (size_t)h->step;
        dml__slice2d_copy_line(s, job->from + from * in_line, y);
    }
}

DML_API dml_status dml_slice2d_forward(dml_pool *pool, const dml_slice2d_shape *shape, const float *x,
                                       float *y)
{
    const dml_status status = dml__slice2d_check(shape);
    if (status != DML_OK) return status;
    const dml_slice2d_axis *axis = shape->axis;
    dml__slice2d_job job = { shape, x, y, 0, (size_t)shape->batch * (size_t)axis[0].out, 0 };
    dml__slice2d_run(pool, &job, (size_t)axis[1].out * (size_t)axis[2].out, dml__slice2d_forward_task);
    return DML_OK;
}

DML__DRIVERS_END

static void dml__slice2d_add_line(const dml_slice2d_shape *s, const float *dy, float *dx)
{
    const dml_slice2d_axis *w = &s->axis[1], *c = &s->axis[2];
    const size_t step = (size_t)c->step;
    for (int i = 0; i < w->count; i++) {
        const float *from = dy + ((size_t)w->before + (size_t)i) * (size_t)c->out + c->before;
        float *to = dx + ((size_t)w->begin + (size_t)i * (size_t)w->step) * (size_t)c->in + c->begin;
        for (size_t k = 0; k < (size_t)c->count; k++) to[k * step] += from[k];
    }
}

DML__DRIVERS_BEGIN

static void dml__slice2d_backward_task(void *argument, int task, int worker)
{
    const dml__slice2d_job *job = (const dml__slice2d_job *)argument;
    const dml_slice2d_shape *s = job->shape;
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const size_t in_line = (size_t)w->in * (size_t)c->in, out_line = (size_t)w->out * (size_t)c->out;
    const size_t begin = (size_t)task * job->lines_per_task;
    const size_t end = dml__minimum(begin + job->lines_per_task, job->lines);
    (void)worker;
    for (size_t line = begin; line < end; line++) {
        const size_t image = line / (size_t)h->in;
        const int at = (int)(line % (size_t)h->in) - h->begin, i = at / h->step;
        float *dx = job->to + line * in_line;
        if (job->beta == 0) memset(dx, 0, in_line * sizeof *dx);
        if (job->beta != 0 && job->beta != 1)
            for (size_t k = 0; k < in_line; k++) dx[k] *= job->beta;
        if (at < 0 || at % h->step || i >= h->count) continue;
        const size_t from = image * (size_t)h->out + (size_t)h->before + (size_t)i;
        dml__slice2d_add_line(s, job->from + from * out_line, dx);
    }
}

DML_API dml_status dml_slice2d_backward(dml_pool *pool, const dml_slice2d_shape *shape, const float *dy,
                                        float beta, float *dx)
{
    const dml_status status = dml__slice2d_check(shape);
    if (status != DML_OK) return status;
    const dml_slice2d_axis *axis = shape->axis;
    dml__slice2d_job job = { shape, dy, dx, beta, (size_t)shape->batch * (size_t)axis[0].in, 0 };
    dml__slice2d_run(pool, &job, (size_t)axis[1].in * (size_t)axis[2].in, dml__slice2d_backward_task);
    return DML_OK;
}

DML__DRIVERS_END

#endif
