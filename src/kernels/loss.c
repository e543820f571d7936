#ifndef DML_KERNELS_LOSS_C
#define DML_KERNELS_LOSS_C

#include "kernels/loss.h"

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/reduce.h"
#include "kernels/vector_math.h"

/* Floats added up in a vector before its lanes go on in double. */
#define DML__SOFTMAX_CHUNK ((size_t)32 * DML__LANES)

/* out = softmax(x) over n > 0 columns, for which it finds the maximum and sum(exp(x - maximum)). A NaN makes
   the sum and with it the whole row NaN. */
DML__BODY void dml__softmax_row_body(size_t n, const float *x, float *out, float *maximum, float *sum)
{
    dml__vf largest, value, total = { 0 }; /* or gcc -O3 warns of it */
    dml__splat(&largest, -HUGE_VALF);
    for (size_t c = 0; c < n; c += DML__LANES) {
        dml__load_some(&value, x + c, n - c);
        largest = DML__SELECT(value > largest, value, largest);
    }
    float top = largest[0];
    for (int lane = 1; lane < DML__LANES; lane++) top = largest[lane] > top ? largest[lane] : top;

    const size_t whole = n - n % DML__LANES;
    double sum64 = 0;
    size_t i = 0;
    while (i < whole) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, whole);
        dml__splat(&total, 0);
        for (; i < end; i += DML__LANES) {
            value = DML__LOAD(x + i) - top;
            dml__exp(&value);
            DML__STORE(out + i, value);
            total += value;
        }
        sum64 += dml__add_lanes(&total);
    }
    if (i < n) {
        dml__load_some(&value, x + i, n - i);
        value = value - top;
        dml__exp(&value);
        dml__store_some(out + i, &value, n - i);
        for (; i < n; i++) sum64 += (double)out[i];
    }

    const float scale = (float)(1.0 / sum64);
    for (i = 0; i < n; i += DML__LANES) {
        dml__load_some(&value, out + i, n - i);
        value = value * scale;
        dml__store_some(out + i, &value, n - i);
    }
    *maximum = top;
    *sum = (float)sum64;
}
DML__PER_ISA(dml__softmax_row, (size_t n, const float *x, float *out, float *maximum, float *sum),
             (n, x, out, maximum, sum))

typedef struct dml__softmax_job {
    dml_isa isa;
    size_t rows, classes;
    const float *logits;   /* (rows, classes) */
    const int32_t *labels; /* (rows) */
    float *probabilities;  /* (rows, classes) */
    float *row_loss;       /* (rows) */
} dml__softmax_job;

static void dml__softmax_task(void *argument, int task, int worker)
{
    const dml__softmax_job *job = (const dml__softmax_job *)argument;
    const size_t step = dml__items_per_task(job->classes), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const size_t at = r * job->classes, label = (size_t)job->labels[r];
        DML_ASSERT(label < job->classes);
        const float logit = job->logits[at + label]; /* read before, since probabilities may be logits */
        float maximum, sum;
        dml__softmax_row(job->isa, job->classes, job->logits + at, job->probabilities + at, &maximum, &sum);
        job->row_loss[r] = logf(sum) + (maximum - logit);
    }
}

DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss)
{
    dml__softmax_job job;
    if (rows == 0 || classes == 0) return 0;
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.classes = classes;
    job.logits = logits;
    job.labels = labels;
    job.probabilities = probabilities;
    job.row_loss = row_loss;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__softmax_task, &job);
    return dml_sum(pool, rows, row_loss) / (float)rows;
}

/* out = scale (p - (column == label)) + beta out */
DML__BODY void dml__softmax_backward_row_body(size_t n, const float *p, size_t label, float scale, float beta,
                                              float *out)
{
    const float old = beta != 0 ? out[label] : 0, at_label = p[label];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf value, before;
        dml__load_some(&value, p + i, n - i);
        value = value * scale;
        if (beta != 0) {
            dml__load_some(&before, out + i, n - i);
            value = value + beta * before;
        }
        dml__store_some(out + i, &value, n - i);
    }
    out[label] = scale * (at_label - 1.0f) + beta * old;
}
DML__PER_ISA(dml__softmax_backward_row,
             (size_t n, const float *p, size_t label, float scale, float beta, float *out),
             (n, p, label, scale, beta, out))

typedef struct dml__softmax_backward_job {
    dml_isa isa;
    size_t rows, classes;
    const float *probabilities; /* (rows, classes) */
    const int32_t *labels;      /* (rows) */
    float scale, beta;
    float *dlogits; /* (rows, classes) */
} dml__softmax_backward_job;

static void dml__softmax_backward_task(void *argument, int task, int worker)
{
    const dml__softmax_backward_job *job = (const dml__softmax_backward_job *)argument;
    const size_t step = dml__items_per_task(job->classes), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const size_t at = r * job->classes, label = (size_t)job->labels[r];
        DML_ASSERT(label < job->classes);
        dml__softmax_backward_row(job->isa, job->classes, job->probabilities + at, label, job->scale,
                                  job->beta, job->dlogits + at);
    }
}

DML_API void dml_softmax_cross_entropy_backward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *probabilities, const int32_t *labels,
                                                float scale, float beta, float *dlogits)
{
    dml__softmax_backward_job job;
    if (classes == 0) return;
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.classes = classes;
    job.probabilities = probabilities;
    job.labels = labels;
    job.scale = scale;
    job.beta = beta;
    job.dlogits = dlogits;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__softmax_backward_task, &job);
}

DML_API float dml_mse_forward(dml_pool *pool, size_t n, const float *a, const float *b)
{
    return n ? dml_squared_distance(pool, n, a, b) / (float)n : 0;
}

DML__BODY void dml__mse_backward_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf value = at->number[1] * (DML__LOAD(at->in[0] + i) - DML__LOAD(at->in[1] + i));
        if (at->in[2]) value = value + at->number[0] * DML__LOAD(at->in[2] + i);
        DML__STORE(at->out[0] + i, value);
    }
}
DML__PER_ISA(dml__mse_backward_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_mse_backward(dml_pool *pool, size_t n, const float *a, const float *b, float scale,
                              float beta, float *da)
{
    const dml__map_operands operands = { { a, b, beta == 0 ? NULL : da },
                                         { da, NULL },
                                         { beta, scale, 0, 0 } };
    dml__map(pool, n, dml__mse_backward_map, &operands);
}

#endif
