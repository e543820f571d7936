#ifndef DML_KERNELS_ELEMENTWISE_C
#define DML_KERNELS_ELEMENTWISE_C

#include "kernels/elementwise.h"

#include "kernels/blocks.h"
#include "kernels/formula.h"
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
DML__MAP(dml__axpby, DML__BY_FOUR)

DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, x, NULL, beta, alpha, y);
}

DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, y, NULL, 0, alpha, y);
}

/* ---- what formulas.h has, for callers of their own ---- */

static void dml__forward_of(dml_pool *pool, int formula, size_t n, const float *a, const float *b, bool relu,
                            float *y)
{
    const dml__formula_call call = dml__formula_plain(formula, n, a, b);
    dml__formula_forward(pool, &call, relu, y);
}

DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__forward_of(pool, DML__FORMULA_add, n, a, b, false, y);
}

DML_API void dml_add_relu_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__forward_of(pool, DML__FORMULA_add, n, a, b, true, y);
}

#define DML__FUNCTION(name)                                                                                  \
    DML_API void dml_##name##_forward(dml_pool *pool, size_t n, const float *x, float *y)                    \
    {                                                                                                        \
        dml__forward_of(pool, DML__FORMULA_##name, n, x, NULL, false, y);                                    \
    }

DML__FUNCTION(relu)
DML__FUNCTION(tanh)
DML__FUNCTION(sigmoid)
DML__FUNCTION(exp)
DML__FUNCTION(log)

#undef DML__FUNCTION

/* From the output. */
#define DML__FUNCTION_BACKWARD(name)                                                                         \
    DML_API void dml_##name##_backward(dml_pool *pool, size_t n, const float *y, const float *dy,            \
                                       float beta, float *dx)                                                \
    {                                                                                                        \
        const dml__formula_call call = dml__formula_plain(DML__FORMULA_##name, n, NULL, NULL);               \
        float *const gradient[] = { dx, NULL };                                                              \
        const float betas[] = { beta, 0 };                                                                   \
        dml__formula_backward(pool, &call, y, dy, gradient, betas);                                          \
    }

DML__FUNCTION_BACKWARD(relu)
DML__FUNCTION_BACKWARD(tanh)
DML__FUNCTION_BACKWARD(sigmoid)

#undef DML__FUNCTION_BACKWARD

DML__BODY void dml__erf_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = DML__LOAD(at->in[0] + i);
    dml__vector_erf(value);
}
DML__MAP(dml__erf, )

DML_API void dml_erf_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__erf_map, x, NULL, 0, 0, y);
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
