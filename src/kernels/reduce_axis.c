#ifndef DML_KERNELS_REDUCE_AXIS_C
#define DML_KERNELS_REDUCE_AXIS_C

#include "kernels/reduce_axis.h"

#include "kernels/blocks.h"
#include "kernels/elementwise.h"
#include "kernels/formula.h"
#include "kernels/reduce.h"
#include "kernels/reduce_internal.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* No loop over elements stands here: what is added up is made by the loops of formulas.h, in strips that stay
   in the first cache, and added by those of reduce.c. */
#define DML__AXIS_STRIP ((size_t)1024)  /* floats */
#define DML__AXIS_COLUMNS ((size_t)256) /* that are added up side by side, in double from strip to strip */

typedef struct dml__axis_job {
    dml_isa isa;
    dml_reduction kind;
    bool ties;
    size_t outer, n, inner;
    size_t width, groups, units; /* columns of a group, groups in each o, groups in all */
    const float *x;              /* (outer, n, inner) */
    const float *of;             /* (outer, inner): the extremes whose ties are counted */
    float *out;                  /* (outer, inner) */
    dml__broadcast layout;       /* of an (outer, inner) beside x */
    /* backward: */
    const float *y, *count, *dy; /* (outer, inner) */
    float scale, beta;
    float *dx; /* (outer, n, inner) */
} dml__axis_job;

static void dml__axis_begin(dml__axis_job *job, dml_pool *pool, size_t outer, size_t n, size_t inner,
                            const float *x)
{
    const size_t whole[3] = { outer, n, inner }, reduced[3] = { outer, 1, inner };
    memset(job, 0, sizeof *job);
    job->isa = dml__pool_machine(pool).isa;
    job->outer = outer;
    job->n = n;
    job->inner = inner;
    job->x = x;
    job->layout = dml__broadcast_of(3, whole, reduced);
}

static size_t dml__whole_vectors(size_t count)
{
    return dml__divide_up(count, DML__LANES) * DML__LANES;
}

/* Elements begin .. begin + count - 1 of what lies like `out`, in places like x's. */
static void dml__axis_spread(const dml__axis_job *job, const float *from, size_t begin, size_t count,
                             float *strip)
{
    dml__broadcast_copy(&job->layout, from, begin, count, strip);
    for (size_t i = count; i % DML__LANES; i++) strip[i] = 0;
}

/* Those of x, where a rest shorter than a vector is followed by zeros in `strip`. */
static const float *dml__axis_elements(const dml__axis_job *job, size_t begin, size_t count, float *strip)
{
    if (count % DML__LANES == 0) return job->x + begin;
    memcpy(strip, job->x + begin, count * sizeof *strip);
    for (size_t i = count; i % DML__LANES; i++) strip[i] = 0;
    return strip;
}

static void dml__axis_vectors(const dml__axis_job *job, int formula, int gradient, size_t count,
                              const float *a, const float *b, const float *dy, float *out)
{
    const dml__formula_at at = { { a, b, NULL }, NULL, dy, out, 0, 0 };
    dml__formula_vectors(job->isa, formula, gradient, dml__whole_vectors(count), &at);
}

/* ---- sums of sizes, of squares, and of ties ---- */

/* What is added up of elements begin .. begin + count - 1 of x; `terms` has place for whole vectors. */
static void dml__axis_terms(const dml__axis_job *job, size_t begin, size_t count, float *terms)
{
    float of[DML__AXIS_STRIP];
    const int formula = job->ties                       ? DML__FORMULA_equal
                        : job->kind == DML_REDUCE_NORM1 ? DML__FORMULA_abs
                                                        : DML__FORMULA_square;
    if (job->ties) dml__axis_spread(job, job->of, begin, count, of);
    const float *x = dml__axis_elements(job, begin, count, terms);
    dml__axis_vectors(job, formula, -1, count, x, job->ties ? of : NULL, NULL, terms);
    for (size_t i = count; i % DML__LANES; i++) terms[i] = 0;
}

/* One group of columns, whose rows don't fit into a strip. */
static void dml__axis_sum_long(const dml__axis_job *job, size_t o, size_t column, size_t width)
{
    const size_t rows_at_once = DML__AXIS_STRIP / width;
    float terms[DML__AXIS_STRIP + DML__LANES], part[DML__AXIS_COLUMNS];
    double total[DML__AXIS_COLUMNS];
    float *out = job->out + o * job->inner + column;
    for (size_t c = 0; c < width; c++) total[c] = 0;
    for (size_t k = 0; k < job->n; k += rows_at_once) {
        const size_t rows = dml__minimum(rows_at_once, job->n - k);
        const size_t begin = (o * job->n + k) * job->inner + column;
        if (width == job->inner)
            dml__axis_terms(job, begin, rows * width, terms);
        else
            for (size_t r = 0; r < rows; r++)
                dml__axis_terms(job, begin + r * job->inner, width, terms + r * width);
        dml__sum_axis_alone(job->isa, 1, rows, width, terms, 0, part);
        for (size_t c = 0; c < width; c++) total[c] += (double)part[c];
    }
    for (size_t c = 0; c < width; c++) out[c] = (float)total[c];
}

/* Units begin .. end - 1; each is a whole o where several fit into a strip. */
static void dml__axis_sum_units(const dml__axis_job *job, size_t begin, size_t end)
{
    const size_t each = job->n * job->inner;
    float terms[DML__AXIS_STRIP];
    if (job->inner == 1 && !job->ties && job->kind == DML_REDUCE_NORM2) {
        dml__squares_of_rows(job->isa, end - begin, each, job->x + begin * each, job->out + begin);
        return;
    }
    if (each > DML__AXIS_STRIP) {
        for (size_t u = begin; u < end; u++) {
            const size_t column = u % job->groups * job->width;
            dml__axis_sum_long(job, u / job->groups, column, dml__minimum(job->width, job->inner - column));
        }
        return;
    }
    for (size_t u = begin, count; u < end; u += count) {
        count = dml__minimum(DML__AXIS_STRIP / each, end - u);
        dml__axis_terms(job, u * each, count * each, terms);
        dml__sum_axis_alone(job->isa, count, job->n, job->inner, terms, 0, job->out + u * job->inner);
    }
}

/* ---- extremes ---- */

static void dml__axis_extreme_units(const dml__axis_job *job, size_t begin, size_t end)
{
    const bool smallest = job->kind == DML_REDUCE_MIN;
    if (job->inner == 1) {
        dml__extremes_of_rows(job->isa, smallest, end - begin, job->n, job->x + begin * job->n,
                              job->out + begin);
        return;
    }
    for (size_t u = begin; u < end; u++) {
        const size_t column = u % job->groups * job->width, o = u / job->groups;
        dml__extremes_of_columns(
            job->isa, smallest, job->n, job->inner, dml__minimum(job->width, job->inner - column),
            job->x + o * job->n * job->inner + column, job->out + o * job->inner + column);
    }
}

/* ---- forward ---- */

static void dml__axis_task(void *argument, int task, int worker)
{
    const dml__axis_job *job = (const dml__axis_job *)argument;
    const size_t step = dml__items_per_task(job->n * job->width), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->units);
    const bool sums = job->ties || job->kind == DML_REDUCE_NORM1 || job->kind == DML_REDUCE_NORM2;
    (void)worker;
    (sums ? dml__axis_sum_units : dml__axis_extreme_units)(job, begin, end);
}

static void dml__axis_run(dml_pool *pool, dml__axis_job *job, size_t width)
{
    job->width = dml__minimum(width, job->inner);
    job->groups = dml__divide_up(job->inner, job->width);
    job->units = job->outer * job->groups;
    const size_t tasks = dml__divide_up(job->units, dml__items_per_task(job->n * job->width));
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__axis_task, job);
}

static size_t dml__axis_sum_width(size_t n, size_t inner)
{
    return n * inner > DML__AXIS_STRIP ? DML__AXIS_COLUMNS : inner;
}

DML_API void dml_reduce_axis(dml_pool *pool, dml_reduction kind, size_t outer, size_t n, size_t inner,
                             const float *x, float scale, float *y)
{
    const bool alone = outer == 1 && inner == 1; /* whose blocks the threads share */
    dml__axis_job job;
    if (outer == 0 || inner == 0) return;
    dml__axis_begin(&job, pool, outer, n, inner, x);
    job.kind = kind;
    job.out = y;
    if (kind == DML_REDUCE_SUM)
        dml_sum_axis(pool, outer, n, inner, x, 0, y);
    else if (kind == DML_REDUCE_NORM2 && alone)
        *y = dml_dot(pool, n, x, x);
    else if (kind == DML_REDUCE_MAX && alone)
        *y = dml_max_all(pool, n, x);
    else if (kind == DML_REDUCE_NORM1 || kind == DML_REDUCE_NORM2)
        dml__axis_run(pool, &job, dml__axis_sum_width(n, inner));
    else
        dml__axis_run(pool, &job, DML__AXIS_STRIP);
    if (kind == DML_REDUCE_NORM2) {
        const dml__formula_call root = dml__formula_plain(DML__FORMULA_sqrt, outer * inner, y, NULL);
        dml__formula_forward(pool, &root, false, y);
    }
    if (scale != 1) dml_scale(pool, outer * inner, scale, y);
}

DML_API void dml_reduce_axis_ties(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x,
                                  const float *y, float *ties)
{
    dml__axis_job job;
    if (outer == 0 || inner == 0) return;
    dml__axis_begin(&job, pool, outer, n, inner, x);
    job.ties = true;
    job.of = y;
    job.out = ties;
    dml__axis_run(pool, &job, dml__axis_sum_width(n, inner));
}

/* ---- backward ---- */

/* to = scale x from, which is one number for all where it is repeated. */
DML__BODY void dml__axis_scaled(float scale, bool repeated, size_t count, const float *from, float *to)
{
    const float value = scale * *from;
    dml__vf all;
    size_t i = 0;
    dml__splat(&all, value);
    if (repeated) {
        for (; i + DML__LANES <= count; i += DML__LANES) DML__STORE(to + i, all);
        for (; i < count; i++) to[i] = value;
    } else {
        DML__BY_FOUR
        for (; i + DML__LANES <= count; i += DML__LANES) DML__STORE(to + i, DML__LOAD(from + i) * scale);
        for (; i < count; i++) to[i] = scale * from[i];
    }
}

/* A sum's gradients of elements begin .. begin + count - 1: of the innermost axis all at once. */
DML__BODY void dml__axis_repeat_body(const dml__axis_job *job, size_t begin, size_t count, float *out)
{
    const bool innermost = job->inner == 1;
    const size_t length = innermost ? job->n : job->inner, rows = innermost ? 1 : job->n;
    const float *const dy = job->dy;
    const float scale = job->scale;
    size_t row = begin / length, column = begin % length, k = row % rows, o = row / rows;
    while (count > 0) {
        const size_t run = dml__minimum(length - column, count);
        dml__axis_scaled(scale, innermost, run, innermost ? dy + o : dy + o * length + column, out);
        out += run;
        count -= run;
        column = 0;
        if (++k == rows) k = 0, o++;
    }
}
DML__PER_ISA(dml__axis_repeat, (const dml__axis_job *job, size_t begin, size_t count, float *out),
             (job, begin, count, out))

/* The gradients of elements begin .. begin + count - 1, into whole vectors. */
static void dml__axis_slopes(const dml__axis_job *job, size_t begin, size_t count, float *out)
{
    float dy[DML__AXIS_STRIP], a[DML__AXIS_STRIP], b[DML__AXIS_STRIP];
    if (job->kind == DML_REDUCE_SUM) {
        dml__axis_repeat(job->isa, job, begin, count, out);
        return;
    }
    const float *x = dml__axis_elements(job, begin, count, a);
    dml__axis_spread(job, job->dy, begin, count, dy);
    if (job->kind == DML_REDUCE_NORM1) {
        dml__axis_vectors(job, DML__FORMULA_abs, 0, count, x, NULL, dy, out);
        return;
    }
    dml__axis_spread(job, job->y, begin, count, b);
    if (job->kind == DML_REDUCE_NORM2) { /* x dy / y */
        float share[DML__AXIS_STRIP];
        dml__axis_vectors(job, DML__FORMULA_div, -1, count, dy, b, NULL, share);
        dml__axis_vectors(job, DML__FORMULA_where, 0, count, b, NULL, share, share);
        dml__axis_vectors(job, DML__FORMULA_mul, -1, count, x, share, NULL, out);
        return;
    }
    dml__axis_vectors(job, DML__FORMULA_equal, -1, count, x, b, NULL, a);
    dml__axis_spread(job, job->count, begin, count, b);
    for (size_t i = count; i % DML__LANES; i++) b[i] = 1;
    dml__axis_vectors(job, DML__FORMULA_div, -1, count, dy, b, NULL, dy);
    dml__axis_vectors(job, DML__FORMULA_where, 0, count, a, NULL, dy, out);
}

static void dml__axis_backward_task(void *argument, int task, int worker)
{
    const dml__axis_job *job = (const dml__axis_job *)argument;
    const size_t all = job->outer * job->n * job->inner, begin = (size_t)task * DML__BLOCK;
    const size_t end = dml__minimum(begin + DML__BLOCK, all);
    float slopes[DML__AXIS_STRIP], old[DML__AXIS_STRIP];
    (void)worker;
    const bool direct = job->kind == DML_REDUCE_SUM && job->beta == 0;
    for (size_t i = begin, count; i < end; i += count) {
        count = dml__minimum(direct ? DML__BLOCK : DML__AXIS_STRIP, end - i);
        if (direct || (job->beta == 0 && count % DML__LANES == 0)) {
            dml__axis_slopes(job, i, count, job->dx + i);
            continue;
        }
        dml__axis_slopes(job, i, count, slopes);
        if (job->beta != 0) {
            const dml__formula_at scaled = { { old, NULL, NULL }, NULL, NULL, old, job->beta, 0 };
            memcpy(old, job->dx + i, count * sizeof *old);
            for (size_t k = count; k % DML__LANES; k++) old[k] = 0;
            if (job->beta != 1)
                dml__formula_vectors(job->isa, DML__FORMULA_affine, -1, dml__whole_vectors(count), &scaled);
            dml__axis_vectors(job, DML__FORMULA_add, -1, count, slopes, old, NULL, slopes);
        }
        memcpy(job->dx + i, slopes, count * sizeof *slopes);
    }
}

DML_API void dml_reduce_axis_backward(dml_pool *pool, dml_reduction kind, size_t outer, size_t n,
                                      size_t inner, const float *x, const float *y, const float *ties,
                                      const float *dy, float scale, float beta, float *dx)
{
    dml__axis_job job;
    dml__axis_begin(&job, pool, outer, n, inner, x);
    job.kind = kind;
    job.y = y;
    job.count = ties;
    job.dy = dy;
    job.scale = scale;
    job.beta = beta;
    job.dx = dx;
    const size_t tasks = dml__divide_up(outer * n * inner, DML__BLOCK);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__axis_backward_task, &job);
}

#endif
