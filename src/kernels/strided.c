#ifndef DML_KERNELS_STRIDED_C
#define DML_KERNELS_STRIDED_C

#include "kernels/strided.h"

#include "base/copy.h"
#include "kernels/blocks.h"

enum { DML__STRIDED_INNER = DML_STRIDED_DIMS - 1 };

typedef struct dml__strided_job {
    dml_strided s;
    size_t lines, lines_per_task;
    const float *from;
    float *to;
    float beta;
    bool unpacks;
} dml__strided_job;

static void dml__strided_line(const dml__strided_job *job, const float *from, float *to)
{
    const size_t n = job->s.count[DML__STRIDED_INNER], step = job->s.step[DML__STRIDED_INNER];
    const size_t from_step = job->unpacks ? 1 : step, to_step = job->unpacks ? step : 1;
    const float beta = job->beta;
    if (beta == 0 && step == 1)
        dml__copy_bytes(to, from, n * sizeof *to);
    else if (beta == 0)
        for (size_t i = 0; i < n; i++) to[i * to_step] = from[i * from_step];
    else
        for (size_t i = 0; i < n; i++) to[i * to_step] = from[i * from_step] + beta * to[i * to_step];
}

static void dml__strided_task(void *argument, int task, int worker)
{
    const dml__strided_job *job = (const dml__strided_job *)argument;
    const dml_strided *s = &job->s;
    const size_t begin = (size_t)task * job->lines_per_task, n = s->count[DML__STRIDED_INNER];
    const size_t end = dml__minimum(begin + job->lines_per_task, job->lines);
    size_t at[DML__STRIDED_INNER], rest = begin, place = 0;
    (void)worker;
    for (int d = DML__STRIDED_INNER - 1; d >= 0; d--) {
        at[d] = rest % s->count[d];
        rest /= s->count[d];
        place += at[d] * s->step[d];
    }
    for (size_t line = begin; line < end; line++) {
        const size_t from = job->unpacks ? line * n : place, to = job->unpacks ? place : line * n;
        dml__strided_line(job, job->from + from, job->to + to);
        for (int d = DML__STRIDED_INNER - 1; d >= 0; d--) { /* the next place */
            place += s->step[d];
            if (++at[d] < s->count[d]) break;
            place -= at[d] * s->step[d];
            at[d] = 0;
        }
    }
}

DML__DRIVERS_BEGIN

/* Dimensions that lie behind each other in both arrays are one: lines are as long as they can be. */
static dml_strided dml__strided_merge(const dml_strided *given)
{
    dml_strided s;
    int d = DML__STRIDED_INNER;
    for (int i = 0; i < DML_STRIDED_DIMS; i++) s.count[i] = 1, s.step[i] = 0;
    s.step[d] = 1;
    for (int i = DML__STRIDED_INNER; i >= 0; i--) {
        if (given->count[i] == 1) continue;
        if (s.count[d] == 1) {
            s.step[d] = given->step[i];
        } else if (given->step[i] != s.count[d] * s.step[d]) {
            s.step[--d] = given->step[i];
        }
        s.count[d] *= given->count[i];
    }
    return s;
}

static void dml__strided_run(dml_pool *pool, const dml_strided *strided, const float *from, float beta,
                             float *to, bool unpacks)
{
    dml__strided_job job;
    job.s = dml__strided_merge(strided);
    job.lines = 1;
    for (int d = 0; d < DML__STRIDED_INNER; d++) job.lines *= job.s.count[d];
    job.lines_per_task = dml__items_per_task(job.s.count[DML__STRIDED_INNER]);
    job.from = from;
    job.to = to;
    job.beta = beta;
    job.unpacks = unpacks;
    for (int d = 0; d < DML_STRIDED_DIMS; d++)
        if (!job.s.count[d]) return;
    const size_t tasks = dml__divide_up(job.lines, job.lines_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__strided_task, &job);
}

DML_API void dml_strided_pack(dml_pool *pool, const dml_strided *strided, const float *part, float beta,
                              float *dense)
{
    dml__strided_run(pool, strided, part, beta, dense, false);
}

DML_API void dml_strided_unpack(dml_pool *pool, const dml_strided *strided, const float *dense, float beta,
                                float *part)
{
    dml__strided_run(pool, strided, dense, beta, part, true);
}

DML__DRIVERS_END

#endif
