#ifndef DML_KERNELS_CROSS_ENTROPY_C
#define DML_KERNELS_CROSS_ENTROPY_C

#include "kernels/cross_entropy.h"

#include <math.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/reduce.h"
#include "kernels/vector_math.h"
#include "thread/pool_internal.h"

/* Floats added up in a vector before its lanes go on in double. */
#define DML__ENTROPY_CHUNK ((size_t)32 * DML__LANES)

/* The rows of `kept`, (rows) each: the largest logit, 1 / sum(exp(logit - largest)), the sum of what the
   classes weigh, the row's loss, what it counts in the divisor, and its weight, 0 where it is ignored. Of a
   part, until it is joined with the others, the first DML_CROSS_ENTROPY_PART are its own: the sum itself, and
   the sum of weight x (largest - logit). */
enum dml__entropy_kept {
    DML__ENTROPY_TOP,
    DML__ENTROPY_INVERSE,
    DML__ENTROPY_WHOLE,
    DML__ENTROPY_LOSS,
    DML__ENTROPY_SHARE,
    DML__ENTROPY_WEIGHT
};

static float *dml__entropy_kept_of(const dml_cross_entropy *p, int which)
{
    return p->kept + (size_t)which * p->rows;
}

static bool dml__entropy_counts_label(const dml_cross_entropy *p, size_t r)
{
    return !p->labels || !p->ignores || p->labels[r] != p->ignored;
}

/* What a label's class weighs by itself. */
static float dml__entropy_label_weight(const dml_cross_entropy *p, size_t r)
{
    return p->class_weights ? p->class_weights[p->labels[r]] : 1.0f;
}

/* The label's place among these classes, beyond them where it is of another part. */
static size_t dml__entropy_place(const dml_cross_entropy *p, size_t r)
{
    return (size_t)p->labels[r] - p->first;
}

static size_t dml__entropy_all(const dml_cross_entropy *p)
{
    return p->all ? p->all : p->classes;
}

static inline float dml__entropy_greater(float a, float b)
{
    return b > a ? b : a;
}

/* The largest lane; none is a NaN. */
DML__BODY float dml__entropy_top_lane(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const float low = dml__entropy_greater(dml__entropy_greater(lanes[0], lanes[1]),
                                           dml__entropy_greater(lanes[2], lanes[3]));
#if DML__LANES == 8
    return dml__entropy_greater(low, dml__entropy_greater(dml__entropy_greater(lanes[4], lanes[5]),
                                                          dml__entropy_greater(lanes[6], lanes[7])));
#else
    return low;
#endif
}

/* The largest and the sum of exp(x - largest) over n > 0 columns. A NaN makes the sum NaN. `room` floats from
   the first on may be read: where they hold the row in whole vectors, its rest is a vector too. */
DML__BODY void dml__entropy_sums(size_t n, size_t room, const float *x, float *largest, float *sum)
{
    const size_t rest = n % DML__LANES, whole = n - rest, four = n - n % (4 * DML__LANES);
    dml__vf lowest, last, total = { 0 }, value;
    dml__splat(&lowest, -HUGE_VALF);
    last = lowest;
    if (rest) {
        dml__vi in_row;
        dml__first_lanes(&in_row, rest);
        if (room >= whole + DML__LANES)
            value = DML__LOAD(x + whole);
        else
            dml__load_some(&value, x + whole, rest);
        last = DML__SELECT(in_row, value, lowest);
    }
    dml__vf top = DML__SELECT(last > lowest, last, lowest);
    if (four) {
        dml__vf more[3] = { lowest, lowest, lowest };
        for (size_t i = 0; i < four; i += 4 * DML__LANES) {
            value = DML__LOAD(x + i);
            top = DML__SELECT(value > top, value, top);
            DML__UNROLLED for (size_t k = 0; k < 3; k++)
            {
                value = DML__LOAD(x + i + (k + 1) * DML__LANES);
                more[k] = DML__SELECT(value > more[k], value, more[k]);
            }
        }
        DML__UNROLLED for (size_t k = 0; k < 3; k++) top = DML__SELECT(more[k] > top, more[k], top);
    }
    for (size_t i = four; i < whole; i += DML__LANES) {
        value = DML__LOAD(x + i);
        top = DML__SELECT(value > top, value, top);
    }
    const float most = dml__entropy_top_lane(&top);

    double sum64 = 0;
    if (rest) {
        last = last - most;
        dml__vector_exp_down(&last);
        total = last; /* 0 beyond the row */
    }
    for (size_t i = 0; i < whole;) {
        const size_t end = dml__minimum(i + DML__ENTROPY_CHUNK, whole);
        for (; i < end; i += DML__LANES) {
            value = DML__LOAD(x + i) - most;
            dml__vector_exp_down(&value);
            total += value;
        }
        if (end == whole) break;
        sum64 += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    sum64 += dml__add_lanes(&total);
    *largest = most;
    *sum = (float)sum64;
}

/* What the classes c .. c + count - 1 of row r weigh, but for a label's own part. */
DML__BODY void dml__entropy_weights(const dml_cross_entropy *p, size_t r, size_t c, size_t count,
                                    dml__vf *weights)
{
    dml__vf q, w = { 0 };
    dml__splat(&q, p->smoothing / (float)dml__entropy_all(p));
    if (p->target) {
        dml__load_some(&w, p->target + r * p->classes + c, count);
        q = q + w * (1.0f - p->smoothing);
    }
    if (p->class_weights) {
        dml__load_some(&w, p->class_weights + c, count);
        q = q * w;
    }
    *weights = q;
}

/* The sum of these weights, and of weight x (top - logit). */
DML__BODY void dml__entropy_products(const dml_cross_entropy *p, size_t r, float top, float *whole,
                                     float *product)
{
    const float *x = p->logits + r * p->classes;
    double weight64 = 0, product64 = 0;
    for (size_t c = 0; c < p->classes;) {
        const size_t end = dml__minimum(c + DML__ENTROPY_CHUNK, p->classes);
        dml__vf weight_sum = { 0 }, sum = { 0 };
        for (; c < end; c += DML__LANES) {
            const size_t count = end - c;
            dml__vf weights, value;
            dml__vi in_row;
            dml__entropy_weights(p, r, c, count, &weights);
            dml__load_some(&value, x + c, count);
            value = weights * (top - value);
            if (count < DML__LANES) {
                const dml__vf none = { 0 };
                dml__first_lanes(&in_row, count);
                weights = DML__SELECT(in_row, weights, none);
                value = DML__SELECT(in_row, value, none);
            }
            weight_sum += weights;
            sum += value;
        }
        weight64 += dml__add_lanes(&weight_sum);
        product64 += dml__add_lanes(&sum);
    }
    *whole = (float)weight64;
    *product = (float)product64;
}

/* exp of a part of -inf alone adds up to nothing, where it isn't a NaN in fact. */
static float dml__entropy_sum_of_none(size_t n, const float *x)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != x[i]) return x[i];
    return 0;
}

/* Rows begin .. end - 1. */
DML__BODY void dml__entropy_forward_rows_body(const dml_cross_entropy *p, size_t begin, size_t end)
{
    float *top = dml__entropy_kept_of(p, DML__ENTROPY_TOP),
          *sum = dml__entropy_kept_of(p, DML__ENTROPY_INVERSE);
    float *whole = dml__entropy_kept_of(p, DML__ENTROPY_WHOLE),
          *loss = dml__entropy_kept_of(p, DML__ENTROPY_LOSS);
    float *share = dml__entropy_kept_of(p, DML__ENTROPY_SHARE);
    float *weight = dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT);
    for (size_t r = begin; r < end; r++) {
        weight[r] = p->row_weights ? p->row_weights[r / p->each] : 1.0f;
        if (!dml__entropy_counts_label(p, r)) weight[r] = 0;
        if (p->labels && p->smoothing == 0 && weight[r] != 0 && dml__entropy_label_weight(p, r) == 0)
            weight[r] = 0;
        top[r] = whole[r] = loss[r] = share[r] = 0;
        sum[r] = 1;
        if (weight[r] == 0) continue;
        const float *x = p->logits + r * p->classes;
        dml__entropy_sums(p->classes, (end - r) * p->classes, x, &top[r], &sum[r]);
        share[r] = weight[r];
        if (p->target || p->smoothing != 0) dml__entropy_products(p, r, top[r], &whole[r], &loss[r]);
        if (p->target) continue;
        const float own = dml__entropy_label_weight(p, r);
        const size_t place = dml__entropy_place(p, r);
        share[r] *= own;
        if (place >= p->classes) continue;
        whole[r] += (1.0f - p->smoothing) * own;
        loss[r] += (1.0f - p->smoothing) * own * (top[r] - x[place]);
    }
    for (size_t r = begin; r < end && p->all;
         r++) /* a part of -inf alone: how far those are below the others */
        if (weight[r] != 0 && top[r] == -HUGE_VALF) {
            sum[r] = dml__entropy_sum_of_none(p->classes, p->logits + r * p->classes);
            loss[r] = 0;
        }
    for (size_t r = begin; r < end && !p->all; r += DML__LANES) {
        const size_t count = end - r;
        dml__vf sums, log_sum, losses, wholes, weights;
        dml__load_some(&sums, sum + r, count);
        dml__load_some(&losses, loss + r, count);
        dml__load_some(&wholes, whole + r, count);
        dml__load_some(&weights, weight + r, count);
        log_sum = sums;
        dml__vector_log(&log_sum);
        losses = weights * (wholes * log_sum + losses);
        sums = 1.0f / sums;
        dml__store_some(loss + r, &losses, count);
        dml__store_some(sum + r, &sums, count);
    }
}
DML__PER_ISA(dml__entropy_forward_rows, (const dml_cross_entropy *p, size_t begin, size_t end),
             (p, begin, end))

/* What lies behind the row's last whole vector: read and written as one vector where the task's rows go on
   for as long, so that what lies behind the row stays as it is. */
DML__BODY void dml__entropy_store_rest(float *out, const dml__vf *value, size_t rest, bool wide)
{
    dml__vi in_row;
    if (!wide) {
        dml__store_some(out, value, rest);
        return;
    }
    dml__first_lanes(&in_row, rest);
    DML__STORE(out, DML__SELECT(in_row, *value, DML__LOAD(out)));
}

/* Without what is subtracted at the label. `dlogits` may be the logits: the target and the weights of
   classes, where there are any, are subtracted in a second pass, over what the first left in a cache. */
DML__BODY void dml__entropy_backward_rows_body(const dml_cross_entropy *p, size_t begin, size_t end,
                                               float scale, float beta, float *dlogits)
{
    const size_t n = p->classes, rest = n % DML__LANES;
    for (size_t r = begin; r < end; r++) {
        const float *x = p->logits + r * n;
        float *out = dlogits + r * n;
        const float weight = scale * dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r];
        const float top = dml__entropy_kept_of(p, DML__ENTROPY_TOP)[r];
        const float factor = weight * dml__entropy_kept_of(p, DML__ENTROPY_WHOLE)[r] *
                             dml__entropy_kept_of(p, DML__ENTROPY_INVERSE)[r];
        const bool wide = (end - r) * n >= n - rest + DML__LANES;
        dml__vf value, before = { 0 };
        if (dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r] == 0) {
            for (size_t c = 0; c < n; c++) out[c] = beta == 0 ? 0 : beta * out[c];
            continue;
        }
        size_t at = 0;
        if (beta == 0)
            for (; at + DML__LANES <= n; at += DML__LANES) {
                value = DML__LOAD(x + at) - top;
                dml__vector_exp_down(&value);
                DML__STORE(out + at, value * factor);
            }
        for (size_t c = at; c < n; c += DML__LANES) {
            const size_t count = n - c;
            if (count >= DML__LANES || wide)
                value = DML__LOAD(x + c);
            else
                dml__load_some(&value, x + c, count);
            value = value - top;
            dml__vector_exp_down(&value);
            value = value * factor;
            if (beta != 0) {
                dml__load_some(&before, out + c, count);
                value = value + beta * before;
            }
            if (count >= DML__LANES)
                DML__STORE(out + c, value);
            else
                dml__entropy_store_rest(out + c, &value, rest, wide);
        }
        if (!p->target && p->smoothing == 0) continue;
        for (size_t c = 0; c < n; c += DML__LANES) {
            dml__entropy_weights(p, r, c, n - c, &before);
            dml__load_some(&value, out + c, n - c);
            value = value - before * weight;
            dml__store_some(out + c, &value, n - c);
        }
    }
}
DML__PER_ISA(dml__entropy_backward_rows,
             (const dml_cross_entropy *p, size_t begin, size_t end, float scale, float beta, float *dlogits),
             (p, begin, end, scale, beta, dlogits))

DML__DRIVERS_BEGIN

static void dml__entropy_labels(const dml_cross_entropy *p, size_t begin, size_t end, float scale,
                                float *dlogits)
{
    for (size_t r = begin; r < end; r++) {
        const float weight = scale * dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r];
        const size_t place = dml__entropy_place(p, r);
        if (dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r] == 0 || place >= p->classes) continue;
        dlogits[r * p->classes + place] -= weight * (1.0f - p->smoothing) * dml__entropy_label_weight(p, r);
    }
}

/* Of the target: - (1 - smoothing) class weight x log softmax. Few models ask for it. */
static void dml__entropy_target_rows(const dml_cross_entropy *p, size_t begin, size_t end, float scale,
                                     float beta, float *dtarget)
{
    for (size_t r = begin; r < end; r++) {
        const float *x = p->logits + r * p->classes;
        float *out = dtarget + r * p->classes;
        const float weight = scale * dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r] * (1.0f - p->smoothing);
        const float top = dml__entropy_kept_of(p, DML__ENTROPY_TOP)[r];
        const float log_sum = (float)-log((double)dml__entropy_kept_of(p, DML__ENTROPY_INVERSE)[r]);
        for (size_t c = 0; c < p->classes; c++) {
            const float of_class = p->class_weights ? weight * p->class_weights[c] : weight;
            const float value = weight == 0 ? 0 : of_class * (log_sum + (top - x[c]));
            out[c] = beta == 0 ? value : value + beta * out[c];
        }
    }
}

/* What parts (count, DML_CROSS_ENTROPY_PART, rows) of the classes are together. */
static void dml__entropy_join_rows(const dml_cross_entropy *p, size_t begin, size_t end, const float *parts,
                                   int count)
{
    for (size_t r = begin; r < end; r++) {
        const float weight = dml__entropy_kept_of(p, DML__ENTROPY_WEIGHT)[r];
        float top = -HUGE_VALF;
        double sum = 0, whole = 0, loss = 0;
        if (weight == 0) continue; /* as forward has left it */
        for (int k = 0; k < count; k++)
            top = dml__entropy_greater(top, parts[(size_t)k * DML_CROSS_ENTROPY_PART * p->rows + r]);
        for (int k = 0; k < count; k++) {
            const float *part = parts + (size_t)k * DML_CROSS_ENTROPY_PART * p->rows + r;
            const double below = (double)top - (double)part[DML__ENTROPY_TOP * p->rows];
            const double of_part = (double)part[DML__ENTROPY_WHOLE * p->rows];
            sum += (double)part[DML__ENTROPY_INVERSE * p->rows] * exp(-below);
            whole += of_part;
            loss += (double)part[DML__ENTROPY_LOSS * p->rows] + (of_part != 0 ? of_part * below : 0);
        }
        dml__entropy_kept_of(p, DML__ENTROPY_TOP)[r] = top;
        dml__entropy_kept_of(p, DML__ENTROPY_INVERSE)[r] = (float)(1 / sum);
        dml__entropy_kept_of(p, DML__ENTROPY_WHOLE)[r] = (float)whole;
        dml__entropy_kept_of(p, DML__ENTROPY_LOSS)[r] = (float)((double)weight * (whole * log(sum) + loss));
    }
}

typedef struct dml__entropy_job {
    dml_isa isa;
    const dml_cross_entropy *problem;
    float scale, beta;
    float *dlogits, *dtarget; /* one of them, or in forward none */
    const float *parts;       /* (count, DML_CROSS_ENTROPY_PART, rows), to be joined, or NULL */
    int count;
} dml__entropy_job;

static void dml__entropy_task(void *argument, int task, int worker)
{
    const dml__entropy_job *job = (const dml__entropy_job *)argument;
    const dml_cross_entropy *p = job->problem;
    const size_t step = dml__items_per_task(p->classes), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, p->rows);
    (void)worker;
    for (size_t r = begin; p->labels && r < end; r++)
        DML_ASSERT((size_t)p->labels[r] < dml__entropy_all(p) || !dml__entropy_counts_label(p, r));
    if (job->parts)
        dml__entropy_join_rows(p, begin, end, job->parts, job->count);
    else if (job->dtarget)
        dml__entropy_target_rows(p, begin, end, job->scale, job->beta, job->dtarget);
    else if (job->dlogits)
        dml__entropy_backward_rows(job->isa, p, begin, end, job->scale, job->beta, job->dlogits);
    else
        dml__entropy_forward_rows(job->isa, p, begin, end);
    if (job->dlogits && p->labels) dml__entropy_labels(p, begin, end, job->scale, job->dlogits);
}

static void dml__entropy_run_job(dml_pool *pool, dml__entropy_job *job)
{
    const dml_cross_entropy *p = job->problem;
    if (p->rows == 0 || p->classes == 0) return;
    job->isa = dml__pool_machine(pool).isa;
    const int tasks = (int)dml__divide_up(p->rows, dml__items_per_task(p->classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__entropy_task, job);
}

static void dml__entropy_run(dml_pool *pool, const dml_cross_entropy *p, float scale, float beta,
                             float *dlogits, float *dtarget)
{
    dml__entropy_job job;
    memset(&job, 0, sizeof job);
    job.problem = p;
    job.scale = scale;
    job.beta = beta;
    job.dlogits = dlogits;
    job.dtarget = dtarget;
    dml__entropy_run_job(pool, &job);
}

/* Of the rows' losses, as they are in `kept`. */
static float dml__entropy_total(dml_pool *pool, const dml_cross_entropy *p, bool mean, float *scale)
{
    float divisor = 1;
    *scale = 0;
    if (p->rows == 0 || p->classes == 0) return 0;
    if (mean) divisor = dml_sum_all(pool, p->rows, dml__entropy_kept_of(p, DML__ENTROPY_SHARE));
    if (divisor == 0) return 0;
    *scale = 1 / divisor;
    return dml_sum_all(pool, p->rows, dml__entropy_kept_of(p, DML__ENTROPY_LOSS)) / divisor;
}

DML_API float dml_cross_entropy_forward(dml_pool *pool, const dml_cross_entropy *problem, bool mean,
                                        float *scale)
{
    dml__entropy_run(pool, problem, 0, 0, NULL, NULL);
    return dml__entropy_total(pool, problem, mean, scale);
}

DML_API void dml_cross_entropy_forward_part(dml_pool *pool, const dml_cross_entropy *problem)
{
    dml__entropy_run(pool, problem, 0, 0, NULL, NULL);
}

DML_API float dml_cross_entropy_join(dml_pool *pool, const dml_cross_entropy *problem, const float *parts,
                                     int count, bool mean, float *scale)
{
    dml__entropy_job job;
    memset(&job, 0, sizeof job);
    job.problem = problem;
    job.parts = parts;
    job.count = count;
    dml__entropy_run_job(pool, &job);
    return dml__entropy_total(pool, problem, mean, scale);
}

DML_API void dml_cross_entropy_backward(dml_pool *pool, const dml_cross_entropy *problem, float scale,
                                        float beta, float *dlogits)
{
    dml__entropy_run(pool, problem, scale, beta, dlogits, NULL);
}

DML_API void dml_cross_entropy_backward_target(dml_pool *pool, const dml_cross_entropy *problem, float scale,
                                               float beta, float *dtarget)
{
    dml__entropy_run(pool, problem, scale, beta, NULL, dtarget);
}

DML__DRIVERS_END

#endif
