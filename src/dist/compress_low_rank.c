#ifndef DML_DIST_COMPRESS_LOW_RANK_C
#define DML_DIST_COMPRESS_LOW_RANK_C

#include "dist/compress_low_rank.h"

#include "base/philox.h"
#include "graph/node.h"
#include "kernels/gemm.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

#define DML__LOW_RANK_STREAM 0x50535344u

/* The first dimension by all others. Kernels count columns with an int. */
static dml__low_rank_part dml__low_rank_part_of(const dml_node *parameter, int rank)
{
    dml__low_rank_part part;
    memset(&part, 0, sizeof part);
    const size_t count = dml_shape_count(&parameter->shape);
    part.begin = parameter->offset;
    part.rows = parameter->shape.ndim > 0 && count > 0 ? (size_t)parameter->shape.dims[0] : 1;
    part.columns = count / part.rows;
    const size_t least = part.rows < part.columns ? part.rows : part.columns;
    const size_t most = (size_t)rank < least ? (size_t)rank : least;
    if (most > 0 && part.rows <= INT32_MAX && part.columns <= INT32_MAX &&
        part.rows + part.columns < count / most)
        part.rank = most;
    return part;
}

static size_t dml__low_rank_p(const dml__low_rank_part *part)
{
    return part->rows * (part->rank ? part->rank : part->columns);
}

/* Columns that are all zero would stay so, and those with a NaN too. */
static void dml__low_rank_fill(dml__low_rank *low, float *q, size_t columns, size_t rank, size_t r)
{
    const dml_random random = { low->seed, DML__LOW_RANK_STREAM, (uint32_t)low->refilled++ };
    for (size_t i = 0; i < columns; i++) q[i * rank + r] = dml_random_normal(&random, i);
}

static void dml__low_rank_refill(dml__low_rank *low, const dml__low_rank_part *part)
{
    float *q = low->q + part->q;
    for (size_t r = 0; r < part->rank; r++) {
        double sum = 0;
        for (size_t i = 0; i < part->columns; i++) sum += fabs((double)q[i * part->rank + r]);
        if (!(sum > 0 && sum - sum == 0)) dml__low_rank_fill(low, q, part->columns, part->rank, r);
    }
}

DML__LOCAL bool dml__low_rank_open(dml__low_rank *low, dml__memory *memory, const dml_graph *graph, int rank,
                                   uint64_t seed)
{
    size_t parts = 0, p = 0, q = 0;
    const dml_node *n = graph->first_parameter;
    memset(low, 0, sizeof *low);
    for (; n; n = n->next_parameter) parts += !n->frozen;
    low->part = (dml__low_rank_part *)dml__allocate_array(memory, parts + 1, sizeof *low->part);
    if (!low->part) return false;
    for (n = graph->first_parameter; n; n = n->next_parameter) {
        if (n->frozen) continue;
        dml__low_rank_part *part = &low->part[low->parts++];
        *part = dml__low_rank_part_of(n, rank);
        part->p = p;
        part->q = q;
        p += dml__low_rank_p(part);
        q += part->columns * part->rank;
    }
    low->part[parts].begin = graph->trained_count;
    low->part[parts].p = p;
    low->part[parts].q = q;
    low->p = (float *)dml__allocate_array(memory, p, sizeof(float));
    low->q = (float *)dml__allocate_array(memory, q, sizeof(float));
    if (!low->p || !low->q) return false;
    dml__low_rank_begin(low, seed);
    return true;
}

DML__LOCAL void dml__low_rank_begin(dml__low_rank *low, uint64_t seed)
{
    low->seed = seed;
    low->refilled = 0;
    memset(low->q, 0, low->part[low->parts].q * sizeof *low->q);
    for (size_t i = 0; i < low->parts; i++) dml__low_rank_refill(low, &low->part[i]);
}

DML__LOCAL void dml__low_rank_close(dml__low_rank *low, dml__memory *memory)
{
    dml__release(memory, low->part);
    dml__release(memory, low->p);
    dml__release(memory, low->q);
    memset(low, 0, sizeof *low);
}

DML__LOCAL void dml__low_rank_find(const dml__low_rank *low, size_t begin, size_t end, size_t *first,
                                   size_t *behind)
{
    size_t i = 0;
    while (i < low->parts && low->part[i].begin < begin) i++;
    *first = i;
    while (i < low->parts && low->part[i].begin < end) i++;
    *behind = i;
    DML_ASSERT(low->part[*first].begin == begin && low->part[i].begin == end);
}

/* C = factor op(A) op(B), in f32 also while a run rounds its products to 16 bits: what is sent and what is
   kept must add up. */
static void dml__low_rank_product(dml_pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k,
                                  float factor, const float *a, const float *b, float beta, float *c)
{
    const dml_dtype dtype = dml__pool_rounds_to(pool);
    dml__pool_round_to(pool, DML_F32);
    dml_sgemm(pool, DML_ROW_MAJOR, trans_a ? DML_TRANS : DML_NO_TRANS, trans_b ? DML_TRANS : DML_NO_TRANS,
              (int)m, (int)n, (int)k, factor, a, (int)(trans_a ? m : k), b, (int)(trans_b ? k : n), beta, c,
              (int)n);
    dml__pool_round_to(pool, dtype);
}

DML__LOCAL void dml__low_rank_project(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                      const float *g, float unit, float *kept)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        const size_t count = part->rows * part->columns;
        const float *from = g + (part->begin - low->part[first].begin);
        if (!part->rank) {
            memcpy(low->p + part->p, from, count * sizeof *from);
            continue;
        }
        float *m = kept + part->begin;
        for (size_t e = 0; e < count; e++) m[e] += unit * from[e];
        dml__low_rank_product(pool, false, false, part->rows, part->rank, part->columns, 1, m,
                              low->q + part->q, 0, low->p + part->p);
    }
}

/* Gram and Schmidt's way, one column after the other (so that a column's rest is what is projected), in
   double precision. What is left of a column by rounding alone becomes 0. False: not finite. */
static bool dml__orthonormal_columns(float *p, size_t rows, size_t rank)
{
    for (size_t c = 0; c < rank; c++) {
        double whole = 0, rest = 0;
        for (size_t i = 0; i < rows; i++) whole += (double)p[i * rank + c] * p[i * rank + c];
        if (!(whole - whole == 0)) return false;
        for (size_t b = 0; b < c; b++) {
            double dot = 0;
            for (size_t i = 0; i < rows; i++) dot += (double)p[i * rank + b] * p[i * rank + c];
            for (size_t i = 0; i < rows; i++) p[i * rank + c] -= (float)(dot * p[i * rank + b]);
        }
        for (size_t i = 0; i < rows; i++) rest += (double)p[i * rank + c] * p[i * rank + c];
        const double factor = rest > 1e-10 * whole && rest > 0 ? 1 / sqrt(rest) : 0;
        for (size_t i = 0; i < rows; i++) p[i * rank + c] = (float)(factor * p[i * rank + c]);
    }
    return true;
}

DML__LOCAL void dml__low_rank_back(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                   float *kept)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        float *m = kept + part->begin, *p = low->p + part->p, *q = low->q + part->q;
        if (!part->rank) continue;
        const bool finite = dml__orthonormal_columns(p, part->rows, part->rank);
        dml__low_rank_product(pool, true, false, part->columns, part->rank, part->rows, 1, m, p, 0, q);
        dml__low_rank_product(pool, false, true, part->rows, part->columns, part->rank, -1, p, q, 1, m);
        if (!finite) memset(m, 0, part->rows * part->columns * sizeof *m);
    }
}

DML__LOCAL void dml__low_rank_expand(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                     float factor, float *g)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        float *to = g + (part->begin - low->part[first].begin);
        if (!part->rank) {
            memcpy(to, low->p + part->p, part->rows * part->columns * sizeof *to);
            continue;
        }
        dml__low_rank_product(pool, false, true, part->rows, part->columns, part->rank, factor,
                              low->p + part->p, low->q + part->q, 0, to);
        dml__low_rank_refill(low, part);
    }
}

#endif
