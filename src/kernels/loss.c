#ifndef DML_KERNELS_LOSS_C
#define DML_KERNELS_LOSS_C

#include "kernels/loss.h"

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/reduce.h"
#include "kernels/softmax_row.h"
#include "kernels/vector_math.h"
#include "thread/pool_internal.h"

#define DML__SOFTMAX_ROWS ((size_t)64) /* rows whose losses are finished together */

/* The rows of one task; labels and row_loss are (rows). */
DML__BODY void dml__softmax_rows_body(size_t rows, size_t classes, const float *logits, const int32_t *labels,
                                      float *probabilities, float *row_loss)
{
    const size_t n = rows * classes;
    for (size_t begin = 0; begin < rows; begin += DML__SOFTMAX_ROWS) {
        const size_t end = dml__minimum(begin + DML__SOFTMAX_ROWS, rows);
        float sum[DML__SOFTMAX_ROWS], above[DML__SOFTMAX_ROWS]; /* of the largest logit above the label's */
        for (size_t r = begin; r < end; r++) {
            const size_t at = r * classes;
            const float logit = logits[at + (size_t)labels[r]]; /* now: probabilities may be logits */
            float maximum;
            dml__softmax_row(false, classes, n - at, logits + at, probabilities + at, &maximum,
                             &sum[r - begin]);
            above[r - begin] = maximum - logit;
        }
        for (size_t r = begin; r < end; r += DML__LANES) {
            dml__vf loss, shift;
            dml__load_some(&loss, sum + (r - begin), end - r);
            dml__load_some(&shift, above + (r - begin), end - r);
            dml__vector_log(&loss);
            loss = loss + shift;
            dml__store_some(row_loss + r, &loss, end - r);
        }
    }
}
DML__PER_ISA(dml__softmax_rows,
             (size_t rows, size_t classes, const float *logits, const int32_t *labels, float *probabilities,
              float *row_loss),
             (rows, classes, logits, labels, probabilities, row_loss))

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
    for (size_t r = begin; r < end; r++) DML_ASSERT((size_t)job->labels[r] < job->classes);
    dml__softmax_rows(job->isa, end - begin, job->classes, job->logits + begin * job->classes,
                      job->labels + begin, job->probabilities + begin * job->classes, job->row_loss + begin);
}

DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss)
{
    dml__softmax_job job;
    if (rows == 0 || classes == 0) return 0;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.classes = classes;
    job.logits = logits;
    job.labels = labels;
    job.probabilities = probabilities;
    job.row_loss = row_loss;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__softmax_task, &job);
    return dml_sum_all(pool, rows, row_loss) / (float)rows;
}

/* out = scale (p - onehot(label)) + beta out for the rows of one task: first as if there were no labels,
   which needs no rows, then at the labels, from what was there before. */
DML__BODY void dml__softmax_backward_rows_body(size_t rows, size_t classes, const float *p,
                                               const int32_t *labels, float scale, float beta, float *out)
{
    for (size_t begin = 0; begin < rows; begin += DML__SOFTMAX_ROWS) {
        const size_t count = dml__minimum(DML__SOFTMAX_ROWS, rows - begin), n = count * classes;
        float at_label[DML__SOFTMAX_ROWS], old[DML__SOFTMAX_ROWS];
        for (size_t r = 0; r < count; r++) {
            const size_t label = r * classes + (size_t)labels[r];
            at_label[r] = p[label];
            old[r] = beta != 0 ? out[label] : 0;
        }
        dml__vf value, before = { 0 };
        size_t i = 0;
        if (beta == 0)
            for (; i + DML__LANES <= n; i += DML__LANES) DML__STORE(out + i, DML__LOAD(p + i) * scale);
        for (; i < n; i += DML__LANES) {
            dml__load_some(&value, p + i, n - i);
            value = value * scale;
            if (beta != 0) {
                dml__load_some(&before, out + i, n - i);
                value = value + beta * before;
            }
            dml__store_some(out + i, &value, n - i);
        }
        for (size_t r = 0; r < count; r++)
            out[r * classes + (size_t)labels[r]] = scale * (at_label[r] - 1.0f) + beta * old[r];
        p += n, out += n, labels += count;
    }
}
DML__PER_ISA(dml__softmax_backward_rows,
             (size_t rows, size_t classes, const float *p, const int32_t *labels, float scale, float beta,
              float *out),
             (rows, classes, p, labels, scale, beta, out))

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
    for (size_t r = begin; r < end; r++) DML_ASSERT((size_t)job->labels[r] < job->classes);
    dml__softmax_backward_rows(job->isa, end - begin, job->classes, job->probabilities + begin * job->classes,
                               job->labels + begin, job->scale, job->beta,
                               job->dlogits + begin * job->classes);
}

DML_API void dml_softmax_cross_entropy_backward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *probabilities, const int32_t *labels,
                                                float scale, float beta, float *dlogits)
{
    dml__softmax_backward_job job;
    if (classes == 0) return;
    job.isa = dml__pool_machine(pool).isa;
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

DML__BODY void dml__mse_backward_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = at->number[1] * (DML__LOAD(at->in[0] + i) - DML__LOAD(at->in[1] + i));
}
DML__MAP(dml__mse_backward)

DML_API void dml_mse_backward(dml_pool *pool, size_t n, const float *a, const float *b, float scale,
                              float beta, float *da)
{
    const dml__map_operands operands = {
        { a, b, beta == 0 ? NULL : da }, { da, NULL }, { beta, scale, 0, 0 }, false
    };
    dml__map(pool, n, dml__mse_backward_map, &operands);
}

#endif
