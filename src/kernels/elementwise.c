#ifndef DML_KERNELS_ELEMENTWISE_C
#define DML_KERNELS_ELEMENTWISE_C

#include "kernels/elementwise.h"

#include "kernels/blocks.h"
#include "kernels/vector_math.h"
#include "thread/pool_internal.h"

static void dml__map_with_beta(dml_pool *pool, size_t n, dml__map_kernel kernel, const float *a,
                               const float *b, float beta, float alpha, float *out)
{
    const dml__map_operands operands = {
        { a, b, beta == 0 ? NULL : out }, { out, NULL }, { beta, alpha, 0, 0 }, false
    };
    dml__map(pool, n, kernel, &operands);
}

DML__BODY void dml__fill_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    dml__vf value;
    dml__splat(&value, at.number[1]); /* once: in a loop gcc builds it lane by lane, again and again */
    if (at.stream) {
        DML__BY_FOUR
        for (size_t i = 0; i < n; i += DML__LANES) dml__stream(at.out[0] + i, &value);
        DML__STREAM_FENCE();
    } else {
        DML__BY_FOUR
        for (size_t i = 0; i < n; i += DML__LANES) DML__STORE(at.out[0] + i, value);
    }
}
DML__PER_ISA(dml__fill_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_fill(dml_pool *pool, size_t n, float value, float *y)
{
    dml__map_with_beta(pool, n, dml__fill_map, NULL, NULL, 0, value, y);
}

DML__BODY void dml__axpby_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = at->number[1] * DML__LOAD(at->in[0] + i);
}
DML__MAP(dml__axpby)

DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, x, NULL, beta, alpha, y);
}

DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, y, NULL, 0, alpha, y);
}

DML__BODY void dml__add_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = DML__LOAD(at->in[0] + i) + DML__LOAD(at->in[1] + i);
}
DML__MAP(dml__add)

DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__map_with_beta(pool, n, dml__add_map, a, b, 0, 0, y);
}

DML__BODY void dml__add_relu_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    const dml__vf sum = DML__LOAD(at->in[0] + i) + DML__LOAD(at->in[1] + i);
    *value = (dml__vf)((dml__vi)sum & ~(sum <= 0.0f)); /* keeps a NaN */
}
DML__MAP(dml__add_relu)

DML_API void dml_add_relu_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__map_with_beta(pool, n, dml__add_relu_map, a, b, 0, 0, y);
}

DML__BODY void dml__relu_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    const dml__vf x = DML__LOAD(at->in[0] + i);
    *value = (dml__vf)((dml__vi)x & ~(x <= 0.0f)); /* keeps a NaN */
}
DML__MAP(dml__relu)

DML_API void dml_relu_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__relu_map, x, NULL, 0, 0, y);
}

DML__BODY void dml__relu_backward_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
    *value = (dml__vf)((dml__vi)dy & (y > 0.0f));
}
DML__MAP(dml__relu_backward)

DML_API void dml_relu_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx)
{
    dml__map_with_beta(pool, n, dml__relu_backward_map, y, dy, beta, 0, dx);
}

/* y = a function of x, out of vector_math.h. */
#define DML__FUNCTION(name)                                                                                  \
    DML__BODY void dml__##name##_map_body(size_t n, const dml__map_operands *operands)                       \
    {                                                                                                        \
        const dml__map_operands copy = *operands, *at = &copy;                                               \
        for (size_t i = 0; i < n; i += DML__LANES) {                                                         \
            dml__vf value = DML__LOAD(at->in[0] + i);                                                        \
            dml__vector_##name(&value);                                                                      \
            DML__STORE(at->out[0] + i, value);                                                               \
        }                                                                                                    \
    }                                                                                                        \
    DML__PER_ISA(dml__##name##_map, (size_t n, const dml__map_operands *at), (n, at))                        \
    DML_API void dml_##name##_forward(dml_pool *pool, size_t n, const float *x, float *y)                    \
    {                                                                                                        \
        dml__map_with_beta(pool, n, dml__##name##_map, x, NULL, 0, 0, y);                                    \
    }

DML__FUNCTION(exp)
DML__FUNCTION(log)
DML__FUNCTION(erf)
DML__FUNCTION(tanh)
DML__FUNCTION(sigmoid)

#undef DML__FUNCTION

DML__BODY void dml__tanh_backward_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
    *value = (1.0f - y * y) * dy;
}
DML__MAP(dml__tanh_backward)

DML_API void dml_tanh_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx)
{
    dml__map_with_beta(pool, n, dml__tanh_backward_map, y, dy, beta, 0, dx);
}

DML__BODY void dml__sigmoid_backward_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
    *value = y * (1.0f - y) * dy;
}
DML__MAP(dml__sigmoid_backward)

DML_API void dml_sigmoid_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                                  float *dx)
{
    dml__map_with_beta(pool, n, dml__sigmoid_backward_map, y, dy, beta, 0, dx);
}

typedef struct dml__bias_job {
    dml_isa isa;
    size_t rows, columns;
    const float *bias;
    float *y; /* (rows, columns) */
} dml__bias_job;

#define DML__BIAS_NARROW ((size_t)32) /* fewer columns are taken DML__LANES rows at a time */

DML__BODY void dml__bias_rows_body(size_t rows, size_t columns, const float *bias, float *y)
{
    float wide[DML__BIAS_NARROW * DML__LANES]; /* the bias of DML__LANES rows, which fills whole vectors */
    if (columns < DML__BIAS_NARROW && rows >= 16 * DML__LANES) {
        for (size_t i = 0; i < columns * DML__LANES; i++) wide[i] = i < columns ? bias[i] : wide[i - columns];
        bias = wide;
        for (; rows >= DML__LANES; rows -= DML__LANES, y += columns * DML__LANES)
            for (size_t i = 0; i < columns * DML__LANES; i += DML__LANES)
                DML__STORE(y + i, DML__LOAD(y + i) + DML__LOAD(wide + i));
    }
    for (size_t r = 0; r < rows; r++, y += columns) {
        size_t c = 0;
        for (; c + DML__LANES <= columns; c += DML__LANES)
            DML__STORE(y + c, DML__LOAD(y + c) + DML__LOAD(bias + c));
        for (; c < columns; c++) y[c] += bias[c];
    }
}
DML__PER_ISA(dml__bias_rows, (size_t rows, size_t columns, const float *bias, float *y),
             (rows, columns, bias, y))

static void dml__bias_task(void *argument, int task, int worker)
{
    const dml__bias_job *job = (const dml__bias_job *)argument;
    const size_t step = dml__items_per_task(job->columns), begin = (size_t)task * step;
    (void)worker;
    dml__bias_rows(job->isa, dml__minimum(step, job->rows - begin), job->columns, job->bias,
                   job->y + begin * job->columns);
}

DML_API void dml_bias_add(dml_pool *pool, size_t rows, size_t columns, const float *bias, float *y)
{
    dml__bias_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.columns = columns;
    job.bias = bias;
    job.y = y;
    const int tasks = columns ? (int)dml__divide_up(rows, dml__items_per_task(columns)) : 0;
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__bias_task, &job);
}

#endif
