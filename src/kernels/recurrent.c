#ifndef DML_KERNELS_RECURRENT_C
#define DML_KERNELS_RECURRENT_C

#include "kernels/recurrent.h"

#include "kernels/blocks.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/product_range.h"
#include "kernels/recurrent_layout.h"
#include "kernels/reduce.h"
#include "kernels/thin.h"
#include "kernels/vector_math.h"
#include "kernels/vector_math_wide.h"
#include "thread/scratch.h"

#include <string.h>

/* Samples that a task takes through all steps: two tiles of most micro-kernels, whose gates stay near. */
#define DML__RECURRENT_ROWS 12

/* Below so many steps a product of few rows is done from the weights as they lie: packing would take longer.
 */
#define DML__RECURRENT_STEPS 4

/* ---- one step of one sample ---- */

/* The units of its arrays: the gates, the states before it, and the state behind it; in backward the
   gradient of that, which becomes that of the state before it, and in place of y its gradient. */
enum { DML__CELL_Z, DML__CELL_H0 = 4, DML__CELL_C0, DML__CELL_H, DML__CELL_C, DML__CELL_Y, DML__CELL_DC };
#define DML__CELL_ARRAYS 10
typedef struct dml__cell_at {
    float *array[DML__CELL_ARRAYS]; /* NULL: not there */
} dml__cell_at;

DML__BODY void dml__plain_cell_body(size_t n, const dml__cell_at *at, bool relu)
{
    float *z = at->array[DML__CELL_Z], *h = at->array[DML__CELL_H], *y = at->array[DML__CELL_Y];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf a = DML__LOAD(z + i);
        if (relu)
            a = (dml__vf)((dml__vi)a & ~(a <= 0.0f)); /* keeps a NaN */
        else
            dml__vector_tanh(&a);
        DML__STORE(z + i, a);
        DML__STORE(h + i, a);
        if (y) DML__STORE(y + i, a);
    }
}
DML__PER_ISA(dml__plain_cell, (size_t n, const dml__cell_at *at, bool relu), (n, at, relu))

DML__BODY void dml__plain_cell_back_body(size_t n, const dml__cell_at *at, bool relu)
{
    float *z = at->array[DML__CELL_Z], *dh = at->array[DML__CELL_H];
    const float *dy = at->array[DML__CELL_Y];
    const dml__vf none = { 0 };
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf a = DML__LOAD(z + i);
        dml__vf d = DML__LOAD(dh + i);
        if (dy) d += DML__LOAD(dy + i);
        DML__STORE(z + i, relu ? DML__SELECT(a > 0.0f, d, none) : d * (1.0f - a * a));
        DML__STORE(dh + i, none);
    }
}
DML__PER_ISA(dml__plain_cell_back, (size_t n, const dml__cell_at *at, bool relu), (n, at, relu))

DML__BODY void dml__lstm_cell_narrow_body(size_t n, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *z = at.array, *y = at.array[DML__CELL_Y];
    for (size_t k = 0; k < n; k += DML__LANES) {
        dml__vf i = DML__LOAD(z[0] + k), f = DML__LOAD(z[1] + k);
        dml__vf g = DML__LOAD(z[2] + k), o = DML__LOAD(z[3] + k);
        dml__vector_sigmoid(&i);
        dml__vector_sigmoid(&f);
        dml__vector_tanh(&g);
        dml__vector_sigmoid(&o);
        const dml__vf c = f * DML__LOAD(at.array[DML__CELL_C0] + k) + i * g;
        DML__STORE(z[0] + k, i);
        DML__STORE(z[1] + k, f);
        DML__STORE(z[2] + k, g);
        DML__STORE(z[3] + k, o);
        DML__STORE(at.array[DML__CELL_C] + k, c);
    }
    /* A loop of its own: behind the others' exponentials, one more would only be waited for. */
    for (size_t k = 0; k < n; k += DML__LANES) {
        dml__vf c = DML__LOAD(at.array[DML__CELL_C] + k);
        dml__vector_tanh(&c);
        const dml__vf h = DML__LOAD(z[3] + k) * c;
        DML__STORE(at.array[DML__CELL_H] + k, h);
        if (y) DML__STORE(y + k, h);
    }
}

DML__BODY void dml__lstm_cell_back_narrow_body(size_t n, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *z = at.array, *dy = at.array[DML__CELL_Y];
    const dml__vf none = { 0 };
    for (size_t k = 0; k < n; k += DML__LANES) {
        const dml__vf i = DML__LOAD(z[0] + k), f = DML__LOAD(z[1] + k);
        const dml__vf g = DML__LOAD(z[2] + k), o = DML__LOAD(z[3] + k);
        dml__vf c = DML__LOAD(at.array[DML__CELL_C] + k), d = DML__LOAD(at.array[DML__CELL_H] + k);
        if (dy) d += DML__LOAD(dy + k);
        dml__vector_tanh(&c);
        const dml__vf dc = DML__LOAD(at.array[DML__CELL_DC] + k) + d * o * (1.0f - c * c);
        DML__STORE(z[0] + k, dc * g * i * (1.0f - i));
        DML__STORE(z[1] + k, dc * DML__LOAD(at.array[DML__CELL_C0] + k) * f * (1.0f - f));
        DML__STORE(z[2] + k, dc * i * (1.0f - g * g));
        DML__STORE(z[3] + k, d * c * o * (1.0f - o));
        DML__STORE(at.array[DML__CELL_DC] + k, dc * f);
        DML__STORE(at.array[DML__CELL_H] + k, none);
    }
}
#if defined(DML__HAS_AVX512)

DML__WIDE_KERNEL void dml__lstm_cell_wide(size_t n, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *z = at.array, *y = at.array[DML__CELL_Y];
    for (size_t k = 0; k < n; k += DML__WIDE_LANES) {
        const unsigned inside = dml__wide_first(n - k);
        const __m512 i = dml__wide_sigmoid(dml__avx512_load_some(z[0] + k, inside));
        const __m512 f = dml__wide_sigmoid(dml__avx512_load_some(z[1] + k, inside));
        const __m512 g = dml__wide_tanh(dml__avx512_load_some(z[2] + k, inside));
        const __m512 o = dml__wide_sigmoid(dml__avx512_load_some(z[3] + k, inside));
        const __m512 c = _mm512_fmadd_ps(f, dml__avx512_load_some(at.array[DML__CELL_C0] + k, inside), i * g);
        const __m512 h = o * dml__wide_tanh(c);
        dml__avx512_store_some(z[0] + k, inside, i);
        dml__avx512_store_some(z[1] + k, inside, f);
        dml__avx512_store_some(z[2] + k, inside, g);
        dml__avx512_store_some(z[3] + k, inside, o);
        dml__avx512_store_some(at.array[DML__CELL_C] + k, inside, c);
        dml__avx512_store_some(at.array[DML__CELL_H] + k, inside, h);
        if (y) dml__avx512_store_some(y + k, inside, h);
    }
}

DML__WIDE_KERNEL void dml__lstm_cell_back_wide(size_t n, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *z = at.array, *dy = at.array[DML__CELL_Y];
    for (size_t k = 0; k < n; k += DML__WIDE_LANES) {
        const unsigned inside = dml__wide_first(n - k);
        const __m512 i = dml__avx512_load_some(z[0] + k, inside), f = dml__avx512_load_some(z[1] + k, inside);
        const __m512 g = dml__avx512_load_some(z[2] + k, inside), o = dml__avx512_load_some(z[3] + k, inside);
        const __m512 c = dml__wide_tanh(dml__avx512_load_some(at.array[DML__CELL_C] + k, inside));
        __m512 d = dml__avx512_load_some(at.array[DML__CELL_H] + k, inside);
        if (dy) d = d + dml__avx512_load_some(dy + k, inside);
        const __m512 dc = dml__avx512_load_some(at.array[DML__CELL_DC] + k, inside) + d * o * (1.0f - c * c);
        const __m512 before = dml__avx512_load_some(at.array[DML__CELL_C0] + k, inside);
        dml__avx512_store_some(z[0] + k, inside, dc * g * i * (1.0f - i));
        dml__avx512_store_some(z[1] + k, inside, dc * before * f * (1.0f - f));
        dml__avx512_store_some(z[2] + k, inside, dc * i * (1.0f - g * g));
        dml__avx512_store_some(z[3] + k, inside, d * c * o * (1.0f - o));
        dml__avx512_store_some(at.array[DML__CELL_DC] + k, inside, dc * f);
        dml__avx512_store_some(at.array[DML__CELL_H] + k, inside, _mm512_setzero_ps());
    }
}

#endif

DML__PER_ISA_OR_WIDE(dml__lstm_cell, (size_t n, const dml__cell_at *at), (n, at))
DML__PER_ISA_OR_WIDE(dml__lstm_cell_back, (size_t n, const dml__cell_at *at), (n, at))

DML__BODY void dml__gru_cell_body(size_t k_end, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *gate = at.array, *y = at.array[DML__CELL_Y];
    for (size_t k = 0; k < k_end; k += DML__LANES) {
        dml__vf n = DML__LOAD(gate[0] + k), r = DML__LOAD(gate[1] + k), z = DML__LOAD(gate[2] + k);
        const dml__vf before = DML__LOAD(at.array[DML__CELL_H0] + k);
        dml__vector_sigmoid(&r);
        dml__vector_sigmoid(&z);
        n += r * DML__LOAD(gate[3] + k);
        dml__vector_tanh(&n);
        const dml__vf h = n + z * (before - n);
        DML__STORE(gate[0] + k, n);
        DML__STORE(gate[1] + k, r);
        DML__STORE(gate[2] + k, z);
        DML__STORE(at.array[DML__CELL_H] + k, h);
        if (y) DML__STORE(y + k, h);
    }
}
DML__PER_ISA(dml__gru_cell, (size_t n, const dml__cell_at *at), (n, at))

DML__BODY void dml__gru_cell_back_body(size_t k_end, const dml__cell_at *cell)
{
    const dml__cell_at at = *cell;
    float *const *gate = at.array, *dy = at.array[DML__CELL_Y];
    for (size_t k = 0; k < k_end; k += DML__LANES) {
        const dml__vf n = DML__LOAD(gate[0] + k), r = DML__LOAD(gate[1] + k), z = DML__LOAD(gate[2] + k);
        dml__vf d = DML__LOAD(at.array[DML__CELL_H] + k);
        if (dy) d += DML__LOAD(dy + k);
        const dml__vf dn = d * (1.0f - z) * (1.0f - n * n);
        DML__STORE(gate[0] + k, dn);
        DML__STORE(gate[1] + k, dn * DML__LOAD(gate[3] + k) * r * (1.0f - r));
        DML__STORE(gate[2] + k, d * (DML__LOAD(at.array[DML__CELL_H0] + k) - n) * z * (1.0f - z));
        DML__STORE(gate[3] + k, dn * r);
        DML__STORE(at.array[DML__CELL_H] + k, d * z);
    }
}
DML__PER_ISA(dml__gru_cell_back, (size_t n, const dml__cell_at *at), (n, at))

static void dml__cell_vectors(dml_isa isa, dml_cell cell, bool back, size_t n, const dml__cell_at *at)
{
    if (cell == DML_CELL_LSTM)
        (back ? dml__lstm_cell_back : dml__lstm_cell)(isa, n, at);
    else if (cell == DML_CELL_GRU)
        (back ? dml__gru_cell_back : dml__gru_cell)(isa, n, at);
    else
        (back ? dml__plain_cell_back : dml__plain_cell)(isa, n, at, cell == DML_CELL_RELU);
}

/* All units; what is left over beside whole vectors goes through arrays of its own, so that every unit goes
   through the same instructions. */
static void dml__cell_run(dml_isa isa, dml_cell cell, bool back, size_t units, const dml__cell_at *at)
{
    const size_t whole = units - units % DML__LANES, rest = units - whole;
    float strip[DML__CELL_ARRAYS][DML__LANES];
    dml__cell_at aside;
    if (whole) dml__cell_vectors(isa, cell, back, whole, at);
    if (!rest) return;
    memset(strip, 0, sizeof strip);
    for (int i = 0; i < DML__CELL_ARRAYS; i++) {
        aside.array[i] = at->array[i] ? strip[i] : NULL;
        if (at->array[i]) memcpy(strip[i], at->array[i] + whole, rest * sizeof(float));
    }
    dml__cell_vectors(isa, cell, back, DML__LANES, &aside);
    for (int i = 0; i < DML__CELL_ARRAYS; i++) {
        const bool given =
            i == DML__CELL_H0 || i == DML__CELL_C0 || (back && (i == DML__CELL_C || i == DML__CELL_Y));
        if (at->array[i] && !given) memcpy(at->array[i] + whole, strip[i], rest * sizeof(float));
    }
}

/* ---- all steps of some samples ---- */

typedef struct dml__recurrent_job {
    dml_pool *pool;
    const dml_recurrent_shape *shape;
    const dml_recurrent_arrays *at;
    const dml_recurrent_gradients *to; /* NULL: forward */
    dml__recurrent_layout place;
    dml__job job; /* a step's product of the state or, in backward, of the gates' gradients */
    dml__matrix factors[2];
    bool thin; /* which is done from the weights as they lie */
    size_t rows_per_task;
} dml__recurrent_job;

/* The product of a step: A and C are those of sample 0, step 0. */
static dml__product dml__step_product(dml__matrix factors[2], const dml_recurrent_shape *shape,
                                      const dml__recurrent_layout *place, bool back)
{
    const ptrdiff_t units = shape->units, steps = shape->steps, gates = (ptrdiff_t)place->gate_n;
    const dml__matrix h = { NULL, steps * units, 1 }, dz = { NULL, steps * (ptrdiff_t)place->width, 1 };
    const dml__matrix w = { NULL, back ? 1 : units, back ? units : 1 };
    dml__product product;
    memset(&product, 0, sizeof product);
    factors[0] = back ? dz : h;
    factors[1] = w;
    product.m = shape->batch;
    product.n = back ? units : gates;
    product.k = back ? gates : units;
    product.a.pack = product.b.pack = dml__pack_matrix;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    product.alpha = product.beta = 1;
    product.ldc = back ? units : dz.lane_step;
    return product;
}

/* Of rows begin .. end - 1, at one step. */
static void dml__multiply_step(const dml__recurrent_job *all, int worker, size_t step, size_t begin,
                               size_t end)
{
    float *work = all->at->work, *gates = work + all->place.gates + step * all->place.width + all->place.by_h;
    float *h = work + all->place.h + step * (size_t)all->shape->units;
    dml__matrix left = all->factors[0];
    dml__job job = all->job;
    left.x = all->to ? gates : h;
    job.product.a.source = &left;
    job.product.c = all->to ? work + all->place.dh : gates;
    if (all->thin) {
        dml__multiply_thin(all->pool, &job.product);
        return;
    }
    const dml__range range = { (ptrdiff_t)begin, (ptrdiff_t)end, 0, job.product.n, 0, job.product.k };
    dml__multiply_as(all->pool, worker, &job, &range);
}

/* The state before step `step` of sample b; the last one's is that behind all of them. */
static float *dml__state_at(const dml__recurrent_job *all, size_t states, size_t last, size_t b, size_t step)
{
    const size_t units = (size_t)all->shape->units, steps = (size_t)all->shape->steps;
    if (step >= steps) return all->at->work + last + b * units; /* reversed: -1 */
    return all->at->work + states + (b * steps + step) * units;
}

static void dml__put_row(float *to, const float *from, size_t n)
{
    if (from)
        memcpy(to, from, n * sizeof *to);
    else
        memset(to, 0, n * sizeof *to);
}

/* What a step of sample b works on. */
static dml__cell_at dml__cell_of(const dml__recurrent_job *all, size_t b, size_t step, size_t next)
{
    const dml__recurrent_layout *place = &all->place;
    const size_t units = (size_t)all->shape->units, steps = (size_t)all->shape->steps;
    const bool lstm = all->shape->cell == DML_CELL_LSTM;
    const float *y = all->to ? all->to->dy : all->at->y;
    dml__cell_at at;
    memset(&at, 0, sizeof at);
    for (size_t g = 0; g * units < place->width; g++)
        at.array[g] = all->at->work + place->gates + (b * steps + step) * place->width + g * units;
    at.array[DML__CELL_H0] = dml__state_at(all, place->h, place->h_last, b, step);
    at.array[DML__CELL_H] = all->to ? all->at->work + place->dh + b * units
                                    : dml__state_at(all, place->h, place->h_last, b, next);
    if (y) at.array[DML__CELL_Y] = (float *)(uintptr_t)(y + b * all->at->y_step + step * units);
    if (!lstm) return at;
    at.array[DML__CELL_C0] = dml__state_at(all, place->c, place->c_last, b, step);
    at.array[DML__CELL_C] = dml__state_at(all, place->c, place->c_last, b, next);
    if (all->to) at.array[DML__CELL_DC] = all->at->work + place->dc + b * units;
    return at;
}

static void dml__recurrent_forward_task(void *argument, int task, int worker)
{
    const dml__recurrent_job *all = (const dml__recurrent_job *)argument;
    const dml__recurrent_layout *place = &all->place;
    const dml_recurrent_arrays *arrays = all->at;
    const size_t units = (size_t)all->shape->units, steps = (size_t)all->shape->steps;
    const size_t begin = (size_t)task * all->rows_per_task;
    const size_t end = dml__minimum(begin + all->rows_per_task, (size_t)all->shape->batch);
    const bool lstm = all->shape->cell == DML_CELL_LSTM, reverse = all->shape->reverse;
    const size_t first = reverse ? steps - 1 : 0;
    for (size_t b = begin; b < end; b++) {
        dml__put_row(dml__state_at(all, place->h, place->h_last, b, first),
                     arrays->h0 ? arrays->h0 + b * arrays->h0_step : NULL, units);
        if (lstm)
            dml__put_row(dml__state_at(all, place->c, place->c_last, b, first),
                         arrays->c0 ? arrays->c0 + b * arrays->c0_step : NULL, units);
    }
    for (size_t s = 0; s < steps; s++) {
        const size_t step = reverse ? steps - 1 - s : s, next = reverse ? step - 1 : step + 1;
        dml__multiply_step(all, worker, step, begin, end);
        for (size_t b = begin; b < end; b++) {
            const dml__cell_at at = dml__cell_of(all, b, step, next);
            if (!arrays->lengths || step < (size_t)arrays->lengths[b]) {
                dml__cell_run(all->job.isa, all->shape->cell, false, units, &at);
                continue;
            }
            dml__put_row(at.array[DML__CELL_H], at.array[DML__CELL_H0], units);
            if (lstm) dml__put_row(at.array[DML__CELL_C], at.array[DML__CELL_C0], units);
            if (at.array[DML__CELL_Y]) dml__put_row(at.array[DML__CELL_Y], NULL, units);
        }
    }
    for (size_t b = begin; b < end; b++) {
        if (arrays->h_n)
            dml__put_row(arrays->h_n + b * arrays->n_step, arrays->work + place->h_last + b * units, units);
        if (arrays->c_n)
            dml__put_row(arrays->c_n + b * arrays->n_step, arrays->work + place->c_last + b * units, units);
    }
}

/* Asks for what a step of sample b reads, which lies far from what is read before it. */
static void dml__cell_ask(const dml__recurrent_job *all, size_t b, size_t step)
{
    const size_t units = (size_t)all->shape->units;
    const dml__cell_at at = dml__cell_of(all, b, step, step);
    const float *before = at.array[DML__CELL_C0] ? at.array[DML__CELL_C0] : at.array[DML__CELL_H0];
    for (size_t i = 0; i < all->place.width; i += 16) dml__ask(at.array[DML__CELL_Z], i);
    for (size_t i = 0; i < units; i += 16) dml__ask(before, i);
    for (size_t i = 0; at.array[DML__CELL_Y] && i < units; i += 16) dml__ask(at.array[DML__CELL_Y], i);
}

static void dml__recurrent_backward_task(void *argument, int task, int worker)
{
    const dml__recurrent_job *all = (const dml__recurrent_job *)argument;
    const dml__recurrent_layout *place = &all->place;
    const dml_recurrent_arrays *arrays = all->at;
    const dml_recurrent_gradients *to = all->to;
    const size_t units = (size_t)all->shape->units, steps = (size_t)all->shape->steps;
    const size_t begin = (size_t)task * all->rows_per_task;
    const size_t end = dml__minimum(begin + all->rows_per_task, (size_t)all->shape->batch);
    const bool reverse = all->shape->reverse;
    for (size_t b = begin; b < end; b++) {
        dml__put_row(arrays->work + place->dh + b * units, to->dh_n ? to->dh_n + b * arrays->n_step : NULL,
                     units);
        if (all->shape->cell == DML_CELL_LSTM)
            dml__put_row(arrays->work + place->dc + b * units,
                         to->dc_n ? to->dc_n + b * arrays->n_step : NULL, units);
    }
    for (size_t s = steps; s-- > 0;) {
        const size_t step = reverse ? steps - 1 - s : s, next = reverse ? step - 1 : step + 1;
        for (size_t b = begin; b < end; b++) {
            const dml__cell_at at = dml__cell_of(all, b, step, next);
            if (!arrays->lengths || step < (size_t)arrays->lengths[b])
                dml__cell_run(all->job.isa, all->shape->cell, true, units, &at);
            else
                dml__put_row(at.array[DML__CELL_Z], NULL, place->width);
            if (s > 0) dml__cell_ask(all, b, reverse ? step + 1 : step - 1);
        }
        if (s > 0 || to->dh0) dml__multiply_step(all, worker, step, begin, end);
    }
}

DML__DRIVERS_BEGIN

static void dml__run_steps(dml_pool *pool, const dml_recurrent_shape *shape,
                           const dml_recurrent_arrays *arrays, const dml_recurrent_gradients *to)
{
    dml__recurrent_job all;
    memset(&all, 0, sizeof all);
    all.pool = pool;
    all.shape = shape;
    all.at = arrays;
    all.to = to;
    all.place = dml__recurrent_lay_out(shape, true);
    dml__product product = dml__step_product(all.factors, shape, &all.place, to != NULL);
    all.factors[1].x = arrays->w_hh;
    const dml_isa isa = dml__pool_machine(pool).isa;
    all.thin = shape->steps < DML__RECURRENT_STEPS && dml__thin_kind(&product, isa) != DML__NOT_THIN;
    if (!all.thin) product.panels = arrays->work + all.place.panels;
    all.job = dml__plan_product(dml__pool_machine(pool), &product);
    all.job.product = product; /* whichever way it was planned */
    if (!all.thin) dml__pack_ahead(&all.job);
    all.rows_per_task = all.thin ? (size_t)shape->batch : DML__RECURRENT_ROWS;
    const dml_pool_task task = to ? dml__recurrent_backward_task : dml__recurrent_forward_task;
    const size_t tasks = dml__divide_up((size_t)shape->batch, all.rows_per_task);
    if (all.thin)
        task(&all, 0, 0);
    else
        dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, task, &all);
}

/* ---- what all steps share ---- */

static bool dml__is_empty(const dml_recurrent_shape *shape)
{
    return shape->batch < 1 || shape->steps < 1 || shape->units < 1;
}

DML_API size_t dml_recurrent_work(const dml_recurrent_shape *shape)
{
    if (dml__is_empty(shape)) return 0;
    const double units = shape->units, rows = (double)shape->batch * (shape->steps + 1.0);
    if (10 * rows * units + 5 * units * (units + 16) >= (double)(SIZE_MAX / 8)) return SIZE_MAX / 8;
    return dml__recurrent_lay_out(shape, true).floats;
}

DML_API void dml_recurrent_forward(dml_pool *pool, const dml_recurrent_shape *shape,
                                   const dml_recurrent_arrays *arrays)
{
    if (dml__is_empty(shape)) return;
    const dml__recurrent_layout place = dml__recurrent_lay_out(shape, true);
    const int rows = shape->batch * shape->steps, inputs = shape->inputs, width = (int)place.width;
    const size_t units = (size_t)shape->units;
    float *gates = arrays->work + place.gates, *bias = arrays->work + place.sums;
    const bool gru = shape->cell == DML_CELL_GRU;
    dml_epilogue epilogue = { NULL, DML_ACTIVATION_NONE };
    dml__gate_part parts[2];
    const int count = dml__gate_parts(shape, parts);
    if (arrays->b_ih) /* of gru, the last part of b_hh is added to the state's product alone */
        for (size_t i = 0; i < place.gate_n; i++)
            bias[i] = arrays->b_ih[i] + (gru && i >= 2 * units ? 0.0f : arrays->b_hh[i]);
    for (int p = 0; p < count; p++) {
        if (arrays->b_ih) epilogue.bias = bias + parts[p].row;
        dml_sgemm_fused(pool, DML_NO_TRANS, DML_TRANS, rows, (int)parts[p].rows, inputs, 1.0f, arrays->x,
                        inputs, arrays->w_ih + parts[p].row * (size_t)inputs, inputs, 0.0f,
                        gates + parts[p].column, width, &epilogue);
    }
    for (size_t r = 0; gru && r < (size_t)rows; r++)
        dml__put_row(gates + r * place.width + 3 * units, arrays->b_hh ? arrays->b_hh + 2 * units : NULL,
                     units);
    dml__run_steps(pool, shape, arrays, NULL);
}

DML__DRIVERS_END

/* to = beta to + from */
static void dml__add_bias(size_t n, const float *from, float beta, float *to)
{
    for (size_t i = 0; to && i < n; i++) to[i] = beta == 0 ? from[i] : from[i] + beta * to[i];
}

DML__DRIVERS_BEGIN

/* The gradient of an initial state, which may be the same for all samples. */
static void dml__add_initial(dml_pool *pool, const dml_recurrent_shape *shape, size_t step, const float *from,
                             float beta, float *to)
{
    const size_t units = (size_t)shape->units, batch = (size_t)shape->batch;
    if (to && step)
        dml_axpby(pool, batch * units, 1.0f, from, beta, to);
    else if (to)
        dml_sum_rows(pool, batch, units, from, beta, to);
}

DML_API void dml_recurrent_backward(dml_pool *pool, const dml_recurrent_shape *shape,
                                    const dml_recurrent_arrays *arrays, const dml_recurrent_gradients *to)
{
    if (dml__is_empty(shape)) return;
    const dml__recurrent_layout place = dml__recurrent_lay_out(shape, true);
    const int rows = shape->batch * shape->steps, inputs = shape->inputs, units = shape->units;
    const int width = (int)place.width, gate_n = (int)place.gate_n;
    float *work = arrays->work, *gates = work + place.gates, *sums = work + place.sums;
    dml__gate_part parts[2];
    const int count = dml__gate_parts(shape, parts);
    dml__run_steps(pool, shape, arrays, to);
    for (int p = 0; p < count; p++) {
        const float *dz = gates + parts[p].column, *w = arrays->w_ih + parts[p].row * (size_t)inputs;
        const int n = (int)parts[p].rows;
        if (to->dw_ih)
            dml_sgemm_fused(pool, DML_TRANS, DML_NO_TRANS, n, inputs, rows, 1.0f, dz, width, arrays->x,
                            inputs, to->beta.w_ih, to->dw_ih + parts[p].row * (size_t)inputs, inputs, NULL);
        if (to->dx)
            dml_sgemm_fused(pool, DML_NO_TRANS, DML_NO_TRANS, rows, inputs, n, 1.0f, dz, width, w, inputs,
                            p ? 1.0f : to->beta.x, to->dx, inputs, NULL);
    }
    /* In the order of the inputs: the same parameter may be several of them. */
    if (to->dw_hh)
        dml_sgemm_fused(pool, DML_TRANS, DML_NO_TRANS, gate_n, units, rows, 1.0f, gates + place.by_h, width,
                        work + place.h, units, to->beta.w_hh, to->dw_hh, units, NULL);
    if (to->db_ih || to->db_hh) {
        dml_sum_rows(pool, (size_t)rows, place.width, gates, 0.0f, sums);
        for (int p = 0; p < count; p++)
            dml__add_bias(parts[p].rows, sums + parts[p].column, to->beta.b_ih,
                          to->db_ih ? to->db_ih + parts[p].row : NULL);
        dml__add_bias(place.gate_n, sums + place.by_h, to->beta.b_hh, to->db_hh);
    }
    dml__add_initial(pool, shape, arrays->h0_step, work + place.dh, to->beta.h0, to->dh0);
    dml__add_initial(pool, shape, arrays->c0_step, work + place.dc, to->beta.c0, to->dc0);
}

DML_API dml_scratch dml_recurrent_scratch(const dml_recurrent_shape *shape, bool training)
{
    dml_scratch most = { 0, 0 };
    if (dml__is_empty(shape)) return most;
    const dml__recurrent_layout place = dml__recurrent_lay_out(shape, true);
    const int rows = shape->batch > INT32_MAX / shape->steps ? INT32_MAX : shape->batch * shape->steps;
    const int inputs = shape->inputs, units = shape->units;
    dml__gate_part parts[2];
    const int count = dml__gate_parts(shape, parts);
    float panels = 0;
    for (int back = 0; back <= (training ? 1 : 0); back++) {
        dml__matrix factors[2];
        dml__product product = dml__step_product(factors, shape, &place, back != 0);
        product.m = DML__RECURRENT_ROWS;
        product.panels = &panels; /* which counts as there */
        most = dml__larger_scratch(most, dml__product_scratch(&product));
    }
    if (training)
        most = dml__larger_scratch(
            most, dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, (int)place.gate_n, units, rows));
    for (int p = 0; p < count; p++) {
        const int n = (int)parts[p].rows;
        most = dml__larger_scratch(most, dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, rows, n, inputs));
        if (!training) continue;
        most = dml__larger_scratch(most, dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, rows, inputs, n));
        most = dml__larger_scratch(most, dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, n, inputs, rows));
    }
    return most;
}

DML__DRIVERS_END

#endif
