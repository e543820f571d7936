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

#endif
