#ifndef DML_KERNELS_HALF_C
#define DML_KERNELS_HALF_C

#include "kernels/half.h"

#include "kernels/bf16.h"
#include "kernels/half_internal.h"
#include "thread/pool_internal.h"

#define DML__HALF_BLOCK ((size_t)16384)

typedef struct dml__half_job {
    dml_isa isa;
    dml_dtype dtype;
    bool narrows, saturates;
    size_t n;
    const void *x;
    void *y;
} dml__half_job;

/* What became infinite, and wasn't, becomes the largest number. */
static void dml__saturate_line(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) y[i] = (uint16_t)(y[i] - ((y[i] & 0x7FFF) == 0x7C00 && x[i] - x[i] == 0));
}

static void dml__half_task(void *argument, int task, int worker)
{
    const dml__half_job *job = (const dml__half_job *)argument;
    const size_t begin = (size_t)task * DML__HALF_BLOCK;
    const size_t n = job->n - begin < DML__HALF_BLOCK ? job->n - begin : DML__HALF_BLOCK;
    (void)worker;
    if (!job->narrows)
        dml__widen_line(job->isa, job->dtype, n, (const uint16_t *)job->x + begin, (float *)job->y + begin);
    else
        dml__narrow_line(job->isa, job->dtype, n, (const float *)job->x + begin, (uint16_t *)job->y + begin);
    if (job->saturates) dml__saturate_line(n, (const float *)job->x + begin, (uint16_t *)job->y + begin);
}

static void dml__convert_halves(dml_pool *pool, dml_dtype dtype, bool narrows, bool saturates, size_t n,
                                const void *x, void *y)
{
    dml__half_job job = { dml__pool_machine(pool).isa, dtype, narrows, saturates, n, x, y };
    const size_t tasks = n / DML__HALF_BLOCK + (n % DML__HALF_BLOCK != 0);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__half_task, &job);
}

DML__LOCAL void dml__narrow_floats(dml_pool *pool, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
    dml__convert_halves(pool, dtype, true, false, n, x, y);
}

DML__LOCAL void dml__saturate_floats(dml_pool *pool, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
    dml__convert_halves(pool, dtype, true, dtype == DML_F16, n, x, y);
}

DML__LOCAL void dml__widen_floats(dml_pool *pool, dml_dtype dtype, size_t n, const uint16_t *x, float *y)
{
    dml__convert_halves(pool, dtype, false, false, n, x, y);
}

DML_API void dml_f16_from_f32(dml_pool *pool, size_t n, const float *x, dml_f16 *y)
{
    dml__narrow_floats(pool, DML_F16, n, x, y);
}

DML_API void dml_f16_to_f32(dml_pool *pool, size_t n, const dml_f16 *x, float *y)
{
    dml__widen_floats(pool, DML_F16, n, x, y);
}

DML_API void dml_bf16_from_f32(dml_pool *pool, size_t n, const float *x, dml_bf16 *y)
{
    dml__narrow_floats(pool, DML_BF16, n, x, y);
}

DML_API void dml_bf16_to_f32(dml_pool *pool, size_t n, const dml_bf16 *x, float *y)
{
    dml__widen_floats(pool, DML_BF16, n, x, y);
}

#endif
