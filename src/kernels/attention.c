#ifndef DML_KERNELS_ATTENTION_C
#define DML_KERNELS_ATTENTION_C

#include "kernels/attention.h"

#include "kernels/attention_pair.h"
#include "kernels/vector.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* Where the scratch is too small, a pair has the rows of one tile of queries, or of keys, and the stack holds
   it: the same tiles, so the same bits, but each factor is packed for each. */
#if defined(DML__HAS_AVX512)
#define DML__ATTENTION_COLUMNS 32 /* of a tile */
#else
#define DML__ATTENTION_COLUMNS 16
#endif
#define DML__ATTENTION_STACK                                                                                 \
    (DML__ATTENTION_DEPTH * DML__ATTENTION_COLUMNS + 2 * DML__ATTENTION_BLOCK * 16 + 128)

/* Multiply-adds that are worth a task of their own. */
#define DML__ATTENTION_TASK 200000.0

typedef struct dml__attention_job {
    dml_attention_shape s;
    ptrdiff_t before, after; /* a query at key t sees the keys t - before .. t + after */
    const float *q, *k, *v;
    const int32_t *lengths;
    float *log_sums, *out;
    const float *known, *y, *dy; /* backward: known log_sums */
    float *gradient[3], beta[3];
    dml_pool *pool;
    dml_isa isa;
    const dml__microkernel *kernel;
    size_t query_blocks, key_blocks;
    bool whole; /* the scratch is enough for pairs of whole blocks */
    bool both;  /* items are heads of keys; else blocks of queries, and from `of_queries` on of keys */
    size_t per_task, items, of_queries;
} dml__attention_job;

DML__DRIVERS_BEGIN

/* Of numbers that nothing is added to. */
static void dml__attention_keep(float *x, ptrdiff_t rows, size_t step, size_t width, float beta)
{
    for (ptrdiff_t r = 0; r < rows; r++, x += step)
        for (size_t c = 0; c < width; c++) x[c] = beta == 0 ? 0 : beta * x[c];
}

/* ---- pairs of blocks ---- */

/* Queries q0 .. q1 - 1 and keys k0 .. k1 - 1 of a head of a sample, which are seen by their lengths. */
typedef struct dml__attention_pair {
    size_t sample, head, kv_head;
    ptrdiff_t q0, q1, k0, k1;
    ptrdiff_t ld; /* of scores */
} dml__attention_pair;

static const float *dml__attention_at(const float *x, size_t samples_rows, size_t step, size_t width,
                                      size_t sample, size_t head, ptrdiff_t row)
{
    return x + (sample * samples_rows + (size_t)row) * step + head * width;
}

static const float *dml__attention_q(const dml__attention_job *job, const float *q,
                                     const dml__attention_pair *at)
{
    return dml__attention_at(q, job->s.queries, job->s.q_step, job->s.width, at->sample, at->head, at->q0);
}

static const float *dml__attention_kv(const dml__attention_job *job, const float *x, size_t step,
                                      const dml__attention_pair *at)
{
    const dml_attention_shape *s = &job->s;
    if (s->kv_head_step)
        return x + (at->sample * s->kv_heads + at->kv_head) * s->kv_head_step + (size_t)at->k0 * step;
    return dml__attention_at(x, s->keys, step, s->width, at->sample, at->kv_head, at->k0);
}

static const float *dml__attention_y(const dml__attention_job *job, const float *y,
                                     const dml__attention_pair *at)
{
    return dml__attention_at(y, job->s.queries, job->s.heads * job->s.width, job->s.width, at->sample,
                             at->head, at->q0);
}

static ptrdiff_t dml__attention_length(const dml__attention_job *job, size_t sample)
{
    const ptrdiff_t keys = (ptrdiff_t)job->s.keys, more = job->s.past ? (ptrdiff_t)job->s.queries : 0;
    return job->lengths ? dml__larger(0, dml__smaller(keys, job->lengths[sample] + more)) : keys;
}

/* A sample's query t sees the keys t - before .. t + after. */
static ptrdiff_t dml__attention_past(const dml__attention_job *job, size_t sample)
{
    return job->s.past ? job->lengths[sample] : 0;
}

static ptrdiff_t dml__attention_before(const dml__attention_job *job, size_t sample)
{
    return job->before - dml__attention_past(job, sample);
}

static ptrdiff_t dml__attention_after(const dml__attention_job *job, size_t sample)
{
    return job->after + dml__attention_past(job, sample);
}

/* The keys that some of the pair's queries see: from the beginning of a block on; and whether there are any.
 */
static bool dml__attention_keys(const dml__attention_job *job, const dml__attention_pair *at,
                                ptrdiff_t *first, ptrdiff_t *end)
{
    const ptrdiff_t from = dml__larger(0, at->q0 - dml__attention_before(job, at->sample));
    *end =
        dml__smaller(dml__attention_length(job, at->sample), at->q1 + dml__attention_after(job, at->sample));
    *first = from / DML__ATTENTION_BLOCK * DML__ATTENTION_BLOCK;
    return from < *end;
}

/* Of queries, what they see of the pair's keys; and of keys, by whom they are seen. */
static dml__band dml__attention_band(const dml__attention_job *job, const dml__attention_pair *at,
                                     bool of_keys)
{
    const ptrdiff_t apart = at->q0 - at->k0, before = dml__attention_before(job, at->sample);
    const ptrdiff_t after = dml__attention_after(job, at->sample);
    dml__band band = { apart - before, apart + after + 1, at->k1 - at->k0 };
    if (of_keys) {
        band.from = -apart - after;
        band.to = -apart + before + 1;
        band.limit = at->q1 - at->q0;
    }
    return band;
}

/* c (queries, ld) = alpha x y^T of the pair's queries and keys, both (.., width). */
static void dml__attention_scores(const dml__attention_job *job, const dml__attention_work *work,
                                  const dml__attention_pair *at, const float *x, size_t x_step,
                                  const float *y, size_t y_step, float alpha, float *c)
{
    dml__attention_product p;
    p.m = at->q1 - at->q0;
    p.n = at->k1 - at->k0;
    p.k = (ptrdiff_t)job->s.width;
    p.a = x;
    p.a_row = (ptrdiff_t)x_step;
    p.a_step = 1;
    p.b.x = y;
    p.b.lane_step = (ptrdiff_t)y_step;
    p.b.k_step = 1;
    p.alpha = alpha;
    p.beta = 0;
    p.c = c;
    p.ldc = at->ld;
    p.band = dml__attention_band(job, at, false);
    p.of_columns = true;
    dml__attention_multiply(job->kernel, work, &p);
}

/* c (.., width) = alpha s x + beta c, for s (queries, ld) and x by key and c by query; or the other way
   round, with s turned. */
static void dml__attention_mix(const dml__attention_job *job, const dml__attention_work *work,
                               const dml__attention_pair *at, bool of_keys, const float *s, const float *x,
                               size_t x_step, float alpha, float beta, const float *c, size_t c_step)
{
    dml__attention_product p;
    p.m = at->q1 - at->q0;
    p.k = at->k1 - at->k0;
    p.a = s;
    p.a_row = at->ld;
    p.a_step = 1;
    if (of_keys) {
        p.k = p.m;
        p.m = at->k1 - at->k0;
        p.a_row = 1;
        p.a_step = at->ld;
    }
    p.n = (ptrdiff_t)job->s.width;
    p.b.x = x;
    p.b.lane_step = 1;
    p.b.k_step = (ptrdiff_t)x_step;
    p.alpha = alpha;
    p.beta = beta;
    p.c = (float *)c;
    p.ldc = (ptrdiff_t)c_step;
    p.band = dml__attention_band(job, at, of_keys);
    p.of_columns = false;
    dml__attention_multiply(job->kernel, work, &p);
}

static dml__attention_rows dml__attention_rows_of(const dml__attention_job *job,
                                                  const dml__attention_work *work,
                                                  const dml__attention_pair *at)
{
    dml__attention_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.rows = at->q1 - at->q0;
    rows.ld = at->ld;
    rows.band = dml__attention_band(job, at, false);
    rows.s = work->s;
    rows.ds = work->ds;
    rows.step = (ptrdiff_t)(job->s.heads * job->s.width);
    rows.width = (ptrdiff_t)job->s.width;
    return rows;
}

static ptrdiff_t dml__attention_ld(const dml__microkernel *kernel, ptrdiff_t keys)
{
    return dml__round_up(keys, kernel->lanes > DML__LANES ? kernel->lanes : DML__LANES);
}

/* The pair with the next block of keys, up to `end`. */
static void dml__attention_take_keys(const dml__attention_job *job, dml__attention_pair *at, ptrdiff_t k0,
                                     ptrdiff_t end)
{
    at->k0 = k0;
    at->k1 = dml__smaller(end, k0 + DML__ATTENTION_BLOCK);
    at->ld = dml__attention_ld(job->kernel, at->k1 - at->k0);
}

/* y and log_sums of the pair's queries, over all blocks of keys. */
static void dml__attention_queries(const dml__attention_job *job, const dml__attention_work *work,
                                   dml__attention_pair *at)
{
    const dml_attention_shape *s = &job->s;
    float most[DML__ATTENTION_BLOCK], sum[DML__ATTENTION_BLOCK], factor[DML__ATTENTION_BLOCK];
    const ptrdiff_t rows = at->q1 - at->q0;
    float *y = (float *)dml__attention_y(job, job->out, at);
    float *log_sums = job->log_sums + (at->sample * s->heads + at->head) * s->queries + at->q0;
    ptrdiff_t first, end;
    for (ptrdiff_t r = 0; r < rows; r++) most[r] = -HUGE_VALF, sum[r] = 0;
    const bool any = dml__attention_keys(job, at, &first, &end);
    if (!any) dml__attention_keep(y, rows, s->heads * s->width, s->width, 0);
    dml__attention_rows line = dml__attention_rows_of(job, work, at);
    for (ptrdiff_t k0 = first; k0 < end && any; k0 += DML__ATTENTION_BLOCK) {
        dml__attention_take_keys(job, at, k0, end);
        line = dml__attention_rows_of(job, work, at);
        line.most = most;
        line.sum = sum;
        line.factor = factor;
        dml__attention_scores(job, work, at, dml__attention_q(job, job->q, at), s->q_step,
                              dml__attention_kv(job, job->k, s->k_step, at), s->k_step, s->scale, work->s);
        dml__attention_soften(job->isa, &line);
        if (k0 > first) dml__attention_scale(job->isa, &line, y);
        dml__attention_mix(job, work, at, false, work->s, dml__attention_kv(job, job->v, s->v_step, at),
                           s->v_step, 1, k0 > first, y, s->heads * s->width);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        factor[r] = sum[r] == 0 ? 0 : 1 / sum[r];
        log_sums[r] = sum[r] == 0 ? HUGE_VALF : most[r] + logf(sum[r]);
    }
    if (any) dml__attention_scale(job->isa, &line, y);
}

/* The pair's share of the gradients; the betas of what it is added to. */
typedef struct dml__attention_share {
    bool q, kv;
    float beta_q, beta_k, beta_v;
} dml__attention_share;

static void dml__attention_gradient(const dml__attention_job *job, const dml__attention_work *work,
                                    const dml__attention_pair *at, const dml__attention_share *share)
{
    const dml_attention_shape *s = &job->s;
    const size_t y_step = s->heads * s->width;
    const float *q = dml__attention_q(job, job->q, at), *dy = dml__attention_y(job, job->dy, at);
    const float *k = dml__attention_kv(job, job->k, s->k_step, at);
    dml__attention_rows line = dml__attention_rows_of(job, work, at);
    line.log_sums = job->known + (at->sample * s->heads + at->head) * s->queries + at->q0;
    line.y = dml__attention_y(job, job->y, at);
    line.dy = dy;
    dml__attention_scores(job, work, at, q, s->q_step, k, s->k_step, s->scale, work->s);
    dml__attention_scores(job, work, at, dy, y_step, dml__attention_kv(job, job->v, s->v_step, at), s->v_step,
                          1, work->ds);
    dml__attention_slope(job->isa, &line);
    if (share->q)
        dml__attention_mix(job, work, at, false, work->ds, k, s->k_step, s->scale, share->beta_q,
                           dml__attention_q(job, job->gradient[0], at), s->q_step);
    if (share->kv && job->gradient[1])
        dml__attention_mix(job, work, at, true, work->ds, q, s->q_step, s->scale, share->beta_k,
                           dml__attention_kv(job, job->gradient[1], s->k_step, at), s->k_step);
    if (share->kv && job->gradient[2])
        dml__attention_mix(job, work, at, true, work->s, dy, y_step, 1, share->beta_v,
                           dml__attention_kv(job, job->gradient[2], s->v_step, at), s->v_step);
}

/* The gradient of the pair's queries, over all blocks of keys; or, if they see any, nothing. */
static void dml__attention_of_queries(const dml__attention_job *job, const dml__attention_work *work,
                                      dml__attention_pair *at, bool unseen_alone)
{
    const dml_attention_shape *s = &job->s;
    ptrdiff_t first, end;
    if (!dml__attention_keys(job, at, &first, &end)) {
        dml__attention_keep((float *)dml__attention_q(job, job->gradient[0], at), at->q1 - at->q0, s->q_step,
                            s->width, job->beta[0]);
        return;
    }
    for (ptrdiff_t k0 = first; k0 < end && !unseen_alone; k0 += DML__ATTENTION_BLOCK) {
        const dml__attention_share share = { true, false, k0 > first ? 1 : job->beta[0], 0, 0 };
        dml__attention_take_keys(job, at, k0, end);
        dml__attention_gradient(job, work, at, &share);
    }
}

/* The gradients of keys k0 .. k1 - 1, over all blocks of queries of all heads that share them; and the
   block's share of the queries' gradients, if asked for. */
static void dml__attention_of_keys(const dml__attention_job *job, const dml__attention_work *work,
                                   size_t sample, size_t kv_head, ptrdiff_t k0, ptrdiff_t k1, bool with_q)
{
    const dml_attention_shape *s = &job->s;
    const size_t group = s->heads / s->kv_heads;
    const ptrdiff_t seen = dml__larger(k0, dml__smaller(k1, dml__attention_length(job, sample)));
    dml__attention_pair at = { sample, 0, kv_head, 0, 0, k0, seen, 0 };
    dml__attention_share share = { with_q, true, 0, job->beta[1], job->beta[2] };
    at.ld = dml__attention_ld(job->kernel, seen - k0);
    const ptrdiff_t from = dml__larger(0, k0 - dml__attention_after(job, sample));
    const ptrdiff_t end = dml__smaller((ptrdiff_t)s->queries, seen + dml__attention_before(job, sample));
    const bool any = seen > k0 && from < end;
    for (at.head = kv_head * group; any && at.head < (kv_head + 1) * group; at.head++)
        for (at.q0 = from / DML__ATTENTION_BLOCK * DML__ATTENTION_BLOCK; at.q0 < end;
             at.q0 += DML__ATTENTION_BLOCK) {
            ptrdiff_t first, last;
            at.q1 = dml__smaller((ptrdiff_t)s->queries, at.q0 + DML__ATTENTION_BLOCK);
            dml__attention_keys(job, &at, &first, &last);
            share.beta_q = k0 > first ? 1 : job->beta[0];
            dml__attention_gradient(job, work, &at, &share);
            share.beta_k = share.beta_v = 1;
        }
    at.k0 = any ? seen : k0; /* the keys that nobody sees */
    for (int i = 1; i < 3; i++) {
        const size_t step = i == 1 ? s->k_step : s->v_step;
        if (job->gradient[i] && at.k0 < k1)
            dml__attention_keep((float *)dml__attention_kv(job, job->gradient[i], step, &at), k1 - at.k0,
                                step, s->width, job->beta[i]);
    }
}

/* ---- sharing it out ---- */

/* Where the parts of a worker's memory lie, if there is any; returns how many floats they are. */
static size_t dml__attention_lay_out(const dml__microkernel *kernel, const dml_attention_shape *shape,
                                     bool backward, bool whole, float *memory, dml__attention_work *work)
{
    const ptrdiff_t block = DML__ATTENTION_BLOCK, full = (ptrdiff_t)kernel->lanes * kernel->vectors;
    const ptrdiff_t queries = (ptrdiff_t)shape->queries, keys = (ptrdiff_t)shape->keys;
    const ptrdiff_t q = dml__smaller(queries, block), k = dml__smaller(keys, block),
                    longest = dml__larger(q, k);
    const ptrdiff_t depth = dml__smaller((ptrdiff_t)shape->width, DML__ATTENTION_DEPTH);
    work->height = whole ? block : kernel->rows;
    const ptrdiff_t few = dml__smaller(work->height, q) * dml__attention_ld(kernel, k);
    const ptrdiff_t other = q * dml__attention_ld(kernel, dml__smaller(work->height, k));
    const ptrdiff_t scores = whole ? few : dml__larger(few, other),
                    panel = dml__larger(depth, longest) * full;
    work->panel = memory;
    work->s = memory ? memory + panel : NULL;
    work->ds = memory ? work->s + scores : NULL;
    work->side = memory ? work->ds + (backward ? scores : 0) : NULL;
    return (size_t)(panel + (backward ? 2 : 1) * scores + (ptrdiff_t)kernel->rows * kernel->lanes);
}

DML_API dml_scratch dml_attention_scratch(const dml_attention_shape *shape, bool backward)
{
    dml__attention_work work;
    const dml__microkernel *kernel = dml__microkernel_get(dml__pool_machine(NULL).isa);
    const dml_scratch scratch = {
        sizeof(float) * dml__attention_lay_out(kernel, shape, backward, true, NULL, &work), 0
    };
    return scratch;
}

/* All queries of an item, a block of a head, in pairs as high as the memory allows. */
static void dml__attention_query_item(const dml__attention_job *job, const dml__attention_work *work,
                                      size_t item)
{
    const dml_attention_shape *s = &job->s;
    const size_t line = item / job->query_blocks;
    dml__attention_pair at;
    memset(&at, 0, sizeof at);
    at.sample = line / s->heads;
    at.head = line % s->heads;
    at.kv_head = at.head / (s->heads / s->kv_heads);
    at.q0 = (ptrdiff_t)(item % job->query_blocks) * DML__ATTENTION_BLOCK;
    const ptrdiff_t end = dml__smaller((ptrdiff_t)s->queries, at.q0 + DML__ATTENTION_BLOCK);
    for (; at.q0 < end; at.q0 += work->height) {
        at.q1 = dml__smaller(end, at.q0 + work->height);
        if (job->dy)
            dml__attention_of_queries(job, work, &at, job->both);
        else
            dml__attention_queries(job, work, &at);
    }
}

static void dml__attention_key_item(const dml__attention_job *job, const dml__attention_work *work,
                                    size_t item)
{
    const size_t line = item / job->key_blocks;
    ptrdiff_t k0 = (ptrdiff_t)(item % job->key_blocks) * DML__ATTENTION_BLOCK;
    const ptrdiff_t end = dml__smaller((ptrdiff_t)job->s.keys, k0 + DML__ATTENTION_BLOCK);
    for (; k0 < end; k0 += work->height)
        dml__attention_of_keys(job, work, line / job->s.kv_heads, line % job->s.kv_heads, k0,
                               dml__smaller(end, k0 + work->height), job->both);
}

/* All of the gradients of a head of keys. */
static void dml__attention_head_item(const dml__attention_job *job, const dml__attention_work *work,
                                     size_t item)
{
    const size_t queries = job->s.heads / job->s.kv_heads * job->query_blocks;
    for (size_t block = 0; block < job->key_blocks; block++)
        dml__attention_key_item(job, work, item * job->key_blocks + block);
    for (size_t block = 0; block < queries; block++) /* only what sees nothing */
        dml__attention_query_item(job, work, item * queries + block);
}

static void dml__attention_items(const dml__attention_job *job, const dml__attention_work *work, int task)
{
    size_t item = (size_t)task * job->per_task;
    for (size_t left = job->per_task; left > 0 && item < job->items; left--, item++) {
        if (job->both)
            dml__attention_head_item(job, work, item);
        else if (item < job->of_queries)
            dml__attention_query_item(job, work, item);
        else
            dml__attention_key_item(job, work, item - job->of_queries);
    }
}

DML__NOINLINE static void dml__attention_small_task(const dml__attention_job *job, int task)
{
    float memory[DML__ATTENTION_STACK];
    dml__attention_work work;
    const size_t floats = dml__attention_lay_out(job->kernel, &job->s, job->dy != NULL, false, memory, &work);
    DML_ASSERT(floats <= DML__ATTENTION_STACK);
    (void)floats;
    dml__attention_items(job, &work, task);
}

static void dml__attention_task(void *argument, int task, int worker)
{
    const dml__attention_job *job = (const dml__attention_job *)argument;
    dml__attention_work work;
    float *memory = (float *)dml_pool_scratch(job->pool, worker);
    if (!job->whole) {
        dml__attention_small_task(job, task);
        return;
    }
    DML_ASSERT(memory);
    dml__attention_lay_out(job->kernel, &job->s, job->dy != NULL, true, memory, &work);
    dml__attention_items(job, &work, task);
}

static dml__attention_job dml__attention_job_of(dml_pool *pool, const dml_attention_shape *shape,
                                                const float *q, const float *k, const float *v,
                                                const int32_t *lengths, bool backward)
{
    dml__attention_job job;
    dml__attention_work work;
    const ptrdiff_t far = (ptrdiff_t)(shape->queries + shape->keys);
    memset(&job, 0, sizeof job);
    job.s = *shape;
    job.before = shape->window && shape->window < (size_t)far ? (ptrdiff_t)shape->window - 1 : far;
    job.after = shape->causal ? 0 : job.before;
    job.q = q;
    job.k = k;
    job.v = v;
    job.lengths = lengths;
    job.pool = pool;
    job.isa = dml__pool_machine(pool).isa;
    job.kernel = dml__microkernel_get(job.isa);
    job.whole = dml_pool_scratch_bytes(pool).worker / sizeof(float) >=
                dml__attention_lay_out(job.kernel, shape, backward, true, NULL, &work);
    job.query_blocks = (size_t)dml__quotient_up((ptrdiff_t)shape->queries, DML__ATTENTION_BLOCK);
    job.key_blocks = (size_t)dml__quotient_up((ptrdiff_t)shape->keys, DML__ATTENTION_BLOCK);
    return job;
}

static void dml__attention_run(dml__attention_job *job, double work)
{
    const double each = work / (double)(job->items ? job->items : 1);
    job->per_task = each < DML__ATTENTION_TASK ? (size_t)(DML__ATTENTION_TASK / (each + 1)) + 1 : 1;
    const size_t tasks = job->items / job->per_task + (job->items % job->per_task != 0);
    dml_pool_run(tasks > 1 ? job->pool : NULL, (int)tasks, dml__attention_task, job);
}

static double dml__attention_work_of(const dml_attention_shape *s)
{
    return (double)s->samples * (double)s->heads * (double)s->queries * (double)s->keys * (double)s->width;
}

DML_API void dml_attention_forward(dml_pool *pool, const dml_attention_shape *shape, const float *q,
                                   const float *k, const float *v, const int32_t *lengths, float *log_sums,
                                   float *y)
{
    dml__attention_job job = dml__attention_job_of(pool, shape, q, k, v, lengths, false);
    job.log_sums = log_sums;
    job.out = y;
    job.items = job.of_queries = shape->samples * shape->heads * job.query_blocks;
    dml__attention_run(&job, 2 * dml__attention_work_of(shape));
}

DML_API void dml_attention_backward(dml_pool *pool, const dml_attention_shape *shape, const float *q,
                                    const float *k, const float *v, const int32_t *lengths,
                                    const float *log_sums, const float *y, const float *dy,
                                    const dml_attention_gradients *gradients)
{
    dml__attention_job job = dml__attention_job_of(pool, shape, q, k, v, lengths, true);
    const size_t heads = shape->samples * shape->kv_heads;
    const bool of_keys = gradients->of[1] || gradients->of[2];
    for (int i = 0; i < 3; i++) job.gradient[i] = gradients->of[i], job.beta[i] = gradients->beta[i];
    job.known = log_sums;
    job.y = y;
    job.dy = dy;
    /* What both kinds of gradients need is computed once, where there is one for each thread to do. */
    job.both = job.whole && of_keys && gradients->of[0] && heads >= (size_t)dml_pool_threads(pool);
    job.items = heads;
    if (!job.both) {
        job.of_queries = gradients->of[0] ? shape->samples * shape->heads * job.query_blocks : 0;
        job.items = job.of_queries + (of_keys ? heads * job.key_blocks : 0);
    }
    dml__attention_run(&job, 5 * dml__attention_work_of(shape));
}

DML__DRIVERS_END

#endif
