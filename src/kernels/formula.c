#ifndef DML_KERNELS_FORMULA_C
#define DML_KERNELS_FORMULA_C

#include "kernels/formula.h"

#include "kernels/blocks.h"
#include "kernels/vector_math.h"
#include "kernels/vector_math_wide.h"
#include "thread/pool_internal.h"

#include <math.h>
#include <string.h>

/* ---- a loop for each formula and each gradient ---- */

/* Elements 0 .. n - 1, n a multiple of DML__FORMULA_LANES, or but for DML__FORMULAS_LONG of DML__LANES. */
#if defined(DML__HAS_AVX512)
#define DML__FORMULA_LANES DML__WIDE_LANES
#else
#define DML__FORMULA_LANES DML__LANES
#endif
typedef void dml__formula_loop(dml_isa isa, size_t n, const dml__formula_at *at);

/* The words of formulas.h for vectors. */
#define VALUE const dml__vf
#define DML__WORD(name, x)                                                                                   \
    __extension__({                                                                                          \
        dml__vf dml__##name##_of = (x); /* so named that one word may stand in another */                    \
        dml__vector_##name(&dml__##name##_of);                                                               \
        dml__##name##_of;                                                                                    \
    })
#define K(constant) (zero + (constant))
#define WHERE(mask, x, y) DML__SELECT(mask, x, y)
#define EXP(x) DML__WORD(exp, x)
#define EXPM1(x) DML__WORD(expm1, x)
#define LOG(x) DML__WORD(log, x)
#define LOG1P(x) DML__WORD(log1p, x)
#define TANH(x) DML__WORD(tanh, x)
#define SIGMOID(x) DML__WORD(sigmoid, x)
#define ERF(x) DML__WORD(erf, x)
#define ABS(x) DML__WORD(abs, x)
#define SQRT(x) DML__WORD(sqrt, x)
#define SIN(x) DML__WORD(sin, x)
#define COS(x) DML__WORD(cos, x)
#define POW(x, power)                                                                                        \
    __extension__({                                                                                          \
        dml__vf dml__pow_of = (x), dml__power = (power);                                                     \
        dml__vector_pow(&dml__pow_of, &dml__power);                                                          \
        dml__pow_of;                                                                                         \
    })
#define P p
#define Q q

/* What the statements mention, beyond what a row's needs can be. */
#define DML__NEEDS_C 8u
#define DML__NEEDS_DY 16u

/* `unrolled`: DML__BY_FOUR where the body is short. */
#define DML__FORMULA_STEPS(vector, lanes, splat, load, store, unrolled, reads, result, ...)                  \
    {                                                                                                        \
        const dml__formula_at at = *operands;                                                                \
        const vector zero = { 0 };                                                                           \
        const unsigned loads = (reads);                                                                      \
        vector p, q, a = zero, b = zero, c = zero, y = zero, dy = zero, d = zero;                            \
        splat(&p, at.p);                                                                                     \
        splat(&q, at.q);                                                                                     \
        unrolled for (size_t i = 0; i < n; i += lanes)                                                       \
        {                                                                                                    \
            if (loads & DML__NEEDS_A) a = load(at.in[0] + i);                                                \
            if (loads & DML__NEEDS_B) b = load(at.in[1] + i);                                                \
            if (loads & DML__NEEDS_Y) y = load(at.y + i);                                                    \
            if (loads & DML__NEEDS_C) c = load(at.in[2] + i);                                                \
            if (loads & DML__NEEDS_DY) dy = load(at.dy + i);                                                 \
            __VA_ARGS__;                                                                                     \
            store(at.out + i, result);                                                                       \
        }                                                                                                    \
        (void)a, (void)b, (void)c, (void)y, (void)dy, (void)d, (void)p, (void)q;                             \
    }
#define DML__FORMULA_LOOP(name, unrolled, reads, result, ...)                                                \
    DML__BODY void name##_body(size_t n, const dml__formula_at *operands)                                    \
        DML__FORMULA_STEPS(dml__vf, DML__LANES, dml__splat, DML__LOAD, DML__STORE, unrolled, reads, result,  \
                           __VA_ARGS__) DML__PER_ISA(name, (size_t n, const dml__formula_at *at), (n, at))

#define DML__READS_ALL(inputs) (DML__NEEDS_A | DML__NEEDS_B | ((inputs) > 2 ? DML__NEEDS_C : 0))

#define DML__FORMULA_LOOPS_1(name, needs, forward, gradient)                                                 \
    DML__FORMULA_LOOP(dml__##name##_values, , DML__NEEDS_A, y, forward)                                      \
    DML__FORMULA_LOOP(dml__##name##_gradient0, , (needs) | DML__NEEDS_DY, d, gradient)
#define DML__FORMULA_LOOPS_2(unrolled, name, inputs, needs, forward, gradient0, gradient1)                   \
    DML__FORMULA_LOOP(dml__##name##_values, unrolled, DML__READS_ALL(inputs), y, forward)                    \
    DML__FORMULA_LOOP(dml__##name##_gradient0, unrolled, (needs) | DML__NEEDS_DY, d, gradient0)              \
    DML__FORMULA_LOOP(dml__##name##_gradient1, unrolled, (needs) | DML__NEEDS_DY, d, gradient1)
#define DML__FORMULA_LOOPS_SHORT(name, inputs, first, needs, forward, gradient0, gradient1)                  \
    DML__FORMULA_LOOPS_2(DML__BY_FOUR, name, inputs, needs, forward, gradient0, gradient1)
#define DML__FORMULA_LOOPS_LOSS(name, inputs, first, needs, forward, gradient0, gradient1)                   \
    DML__FORMULA_LOOPS_2(, name, inputs, needs, forward, gradient0, gradient1)
#define DML__FORMULA_LOOPS_FLAT(name, forward)                                                               \
    DML__FORMULA_LOOP(dml__##name##_values, DML__BY_FOUR, DML__READS_ALL(2), y, forward)

DML__FORMULAS_1(DML__FORMULA_LOOPS_1)
DML__FORMULAS_2(DML__FORMULA_LOOPS_SHORT)
DML__FORMULAS_LOSS(DML__FORMULA_LOOPS_LOSS)
DML__FORMULAS_FLAT(DML__FORMULA_LOOPS_FLAT)

#if defined(DML__HAS_AVX512)

/* The long ones again, for AVX-512. */
#undef VALUE
#undef K
#undef WHERE
#undef EXP
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef SIGMOID
#undef ERF
#undef ABS
#define VALUE const __m512
#define K(constant) _mm512_set1_ps(constant)
#define WHERE(mask, x, y) DML__WIDE_SELECT(mask, x, y)
#define EXP(x) dml__wide_exp(x)
#define EXPM1(x) dml__wide_expm1(x)
#define LOG(x) dml__wide_log(x)
#define LOG1P(x) dml__wide_log1p(x)
#define TANH(x) dml__wide_tanh(x)
#define SIGMOID(x) dml__wide_sigmoid(x)
#define ERF(x) dml__wide_erf(x)
#define ABS(x) dml__wide_abs(x)

#define DML__WIDE_SPLAT(vector, value) (*(vector) = _mm512_set1_ps(value))
#define DML__FORMULA_WIDE(name, reads, result, ...)                                                          \
    DML__CONTRACTS DML__AVX512 static void name(dml_isa isa, size_t n, const dml__formula_at *operands)      \
    {                                                                                                        \
        (void)isa;                                                                                           \
        DML__FORMULA_STEPS(__m512, DML__WIDE_LANES, DML__WIDE_SPLAT, _mm512_loadu_ps, _mm512_storeu_ps, ,    \
                           reads, result, __VA_ARGS__)                                                       \
    }
#define DML__FORMULA_WIDE_LOOPS(name, needs, forward, gradient)                                              \
    DML__FORMULA_WIDE(dml__##name##_values_wide, DML__NEEDS_A, y, forward)                                   \
    DML__FORMULA_WIDE(dml__##name##_gradient_wide, (needs) | DML__NEEDS_DY, d, gradient)
DML__FORMULAS_LONG(DML__FORMULA_WIDE_LOOPS)
#undef DML__FORMULA_WIDE_LOOPS
#undef DML__FORMULA_WIDE
#undef DML__WIDE_SPLAT

#endif

#undef DML__FORMULA_LOOPS_1
#undef DML__FORMULA_LOOPS_2
#undef DML__FORMULA_LOOPS_SHORT
#undef DML__FORMULA_LOOPS_LOSS
#undef DML__FORMULA_LOOPS_FLAT
#undef DML__READS_ALL
#undef DML__FORMULA_LOOP
#undef DML__FORMULA_STEPS
#undef VALUE
#undef DML__WORD
#undef K
#undef WHERE
#undef EXP
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef SIGMOID
#undef ERF
#undef ABS
#undef SQRT
#undef SIN
#undef COS
#undef POW
#undef P
#undef Q

typedef struct dml__formula_loops {
    dml__formula_row row;
    dml__formula_loop *values, *gradient[DML__FORMULA_GRADIENTS];
} dml__formula_loops;

static const dml__formula_loops *dml__formula_loops_of(int formula)
{
    static const dml__formula_loops loops[] = {
#define DML__FORMULA_ROW_1(name, needs, forward, gradient)                                                   \
    { { #name, 1, 0, 1, needs }, dml__##name##_values, { dml__##name##_gradient0, NULL } },
#define DML__FORMULA_ROW_2(name, inputs, first, needs, forward, gradient0, gradient1)                        \
    { { #name, inputs, first, 2, needs },                                                                    \
      dml__##name##_values,                                                                                  \
      { dml__##name##_gradient0, dml__##name##_gradient1 } },
#define DML__FORMULA_ROW_FLAT(name, forward) { { #name, 2, 0, 0, 0 }, dml__##name##_values, { NULL, NULL } },
        DML__FORMULAS_1(DML__FORMULA_ROW_1) DML__FORMULAS_2(DML__FORMULA_ROW_2)
            DML__FORMULAS_FLAT(DML__FORMULA_ROW_FLAT) DML__FORMULAS_LOSS(DML__FORMULA_ROW_2)
#undef DML__FORMULA_ROW_1
#undef DML__FORMULA_ROW_2
#undef DML__FORMULA_ROW_FLAT
    };
    return &loops[formula];
}

DML__LOCAL const dml__formula_row *dml__formula_row_of(int formula)
{
    return formula >= 0 && formula < DML__FORMULA_COUNT ? &dml__formula_loops_of(formula)->row : NULL;
}

/* The values' loop, or where `gradient` isn't negative that one's. */
static dml__formula_loop *dml__formula_loop_of(dml_isa isa, int formula, int gradient)
{
    const dml__formula_loops *loops = dml__formula_loops_of(formula);
#if defined(DML__HAS_AVX512)
#define DML__FORMULA_WIDE_CASE(name, needs, forward, backward)                                               \
    case DML__FORMULA_##name: return gradient < 0 ? dml__##name##_values_wide : dml__##name##_gradient_wide;
    switch (isa == DML_ISA_AVX512 ? formula : -1) {
        DML__FORMULAS_LONG(DML__FORMULA_WIDE_CASE)
    default: break;
    }
#undef DML__FORMULA_WIDE_CASE
#endif
    (void)isa;
    return gradient < 0 ? loops->values : loops->gradient[gradient];
}

DML__LOCAL void dml__formula_vectors(dml_isa isa, int formula, int gradient, size_t n,
                                     const dml__formula_at *at)
{
    dml__formula_loop_of(isa, formula, gradient)(isa, n, at);
}

/* ---- over arrays, in strips that stay in the first cache ---- */

#define DML__STRIP_FLOATS ((size_t)1024)
#define DML__STRIP_STREAMED ((size_t)512) /* of what goes past the caches: 1.3 times as fast as 1024 */

/* What has no place in an array goes through here: a rest shorter than a vector, so that every element goes
   through the same instructions, an operand that is repeated, and a result that isn't simply stored. */
typedef struct dml__strip {
    float in[DML__FORMULA_INPUTS][DML__STRIP_FLOATS], y[DML__STRIP_FLOATS], dy[DML__STRIP_FLOATS];
    float out[DML__FORMULA_GRADIENTS][DML__STRIP_FLOATS];
} dml__strip;

/* to = from + beta to, or past the caches; `count` may be any. */
DML__BODY void dml__strip_store_body(size_t count, const float *from, float beta, bool stream, float *to)
{
    size_t i = 0;
    if (stream)
        for (; i + DML__LANES <= count; i += DML__LANES) {
            const dml__vf value = DML__LOAD(from + i);
            dml__stream(to + i, &value);
        }
    else if (beta == 0)
        for (; i + DML__LANES <= count; i += DML__LANES) DML__STORE(to + i, DML__LOAD(from + i));
    else
        for (; i + DML__LANES <= count; i += DML__LANES)
            DML__STORE(to + i, DML__LOAD(from + i) + beta * DML__LOAD(to + i));
    for (; i < count; i++) {
        dml__vf value, old;
        dml__splat(&value, from[i]);
        if (beta != 0) { /* in a vector, so that it is rounded as the others are */
            dml__splat(&old, to[i]);
            value = value + beta * old;
        }
        to[i] = value[0];
    }
}
DML__PER_ISA(dml__strip_store, (size_t count, const float *from, float beta, bool stream, float *to),
             (count, from, beta, stream, to))

DML__DRIVERS_BEGIN

static size_t dml__formula_padded(size_t count)
{
    return dml__divide_up(count, DML__FORMULA_LANES) * DML__FORMULA_LANES;
}

/* `count` elements of an array, followed by what makes them whole vectors. */
static const float *dml__strip_plain(const float *x, size_t begin, size_t count, float *strip)
{
    if (!x) return NULL;
    if (count % DML__FORMULA_LANES == 0) return x + begin;
    memcpy(strip, x + begin, count * sizeof(float));
    memset(strip + count, 0, (DML__FORMULA_LANES - count % DML__FORMULA_LANES) * sizeof(float));
    return strip;
}

static void dml__strip_repeat(const dml__broadcast *layout, const float *x, size_t begin, size_t count,
                              float *strip)
{
    dml__broadcast_copy(layout, x, begin, count, strip);
    for (size_t k = count; k % DML__FORMULA_LANES; k++) strip[k] = 0;
}

static const float *dml__strip_operand(const dml__formula_call *call, int i, size_t begin, size_t count,
                                       float *strip)
{
    if (!call->in[i] || dml__broadcast_is_plain(&call->layout[i]))
        return dml__strip_plain(call->in[i], begin, count, strip);
    dml__strip_repeat(&call->layout[i], call->in[i], begin, count, strip);
    return strip;
}

/* While a strip goes past the caches few loads are under way, so those of the next are asked for. */
static void dml__strip_ask(const float *x, size_t begin)
{
    for (size_t i = 0; x && i < DML__STRIP_STREAMED; i += 16) dml__ask(x, begin + i);
}

static void dml__formula_ask(const dml__formula_job *job, size_t begin)
{
    const dml__formula_call *call = job->call;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++)
        if (dml__broadcast_is_plain(&call->layout[i])) dml__strip_ask(call->in[i], begin);
    dml__strip_ask(job->y, begin);
    if (!call->repeated_dy) dml__strip_ask(job->dy, begin);
}

/* `count` is a multiple of DML__FORMULA_LANES, or at most DML__STRIP_FLOATS. */
static void dml__formula_strip(const dml__formula_job *job, size_t begin, size_t count, dml__strip *strip)
{
    const dml__formula_call *call = job->call;
    const size_t padded = dml__formula_padded(count);
    const bool direct = job->whole && count == padded;
    dml__formula_at at;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++)
        at.in[i] = dml__strip_operand(call, i, begin, count, strip->in[i]);
    at.y = dml__strip_plain(job->y, begin, count, strip->y);
    at.dy = call->repeated_dy ? strip->dy : dml__strip_plain(job->dy, begin, count, strip->dy);
    if (call->repeated_dy && !job->one_dy)
        dml__strip_repeat(call->repeated_dy, job->dy, begin, count, strip->dy);
    at.p = call->p;
    at.q = call->q;
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++) {
        if (!job->out[g]) continue;
        at.out = direct ? job->out[g] + begin : strip->out[g];
        dml__formula_loop_of(job->isa, call->formula, job->backward ? g : -1)(job->isa, padded, &at);
    }
    if (job->relu) {
        at.in[0] = at.out;
        dml__relu_values(job->isa, padded, &at);
    }
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++)
        if (job->out[g] && !direct)
            dml__strip_store(job->isa, count, strip->out[g], job->beta[g], job->stream, job->out[g] + begin);
}

static void dml__formula_task(void *argument, int task, int worker)
{
    const dml__formula_job *job = (const dml__formula_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK;
    const size_t end = dml__minimum(begin + DML__BLOCK, job->call->n);
    const size_t most = job->stream ? DML__STRIP_STREAMED : DML__STRIP_FLOATS;
    dml__strip strip;
    (void)worker;
    for (size_t k = 0; job->one_dy && k < DML__STRIP_FLOATS; k++) strip.dy[k] = job->dy[0];
    for (size_t i = begin, count; i < end; i += count) {
        count = end - i;
        if (job->whole && !job->relu && count >= DML__FORMULA_LANES)
            count -= count % DML__FORMULA_LANES;
        else if (count > most)
            count = most;
        if (job->stream) dml__formula_ask(job, i + most);
        dml__formula_strip(job, i, count, &strip);
    }
    if (job->stream) DML__STREAM_FENCE();
}

/* Of those the arithmetic takes as long as the memory, which a strip would keep waiting meanwhile. */
static bool dml__formula_is_long(int formula)
{
#define DML__FORMULA_IS(name, needs, forward, gradient) formula == DML__FORMULA_##name ||
    return DML__FORMULAS_LONG(DML__FORMULA_IS) false;
#undef DML__FORMULA_IS
}

/* Whether `out`, which isn't read, goes past the caches (blocks.h). */
static bool dml__formula_streams(const dml__formula_job *job, const float *out)
{
    const dml__formula_call *call = job->call;
    size_t arrays = 1;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++) {
        if (call->in[i] == out) return false;
        if (call->in[i] && dml__broadcast_is_plain(&call->layout[i])) arrays++;
    }
    if (job->y == out || job->dy == out || (!job->backward && dml__formula_is_long(call->formula)))
        return false;
    arrays += (size_t)(job->y != NULL) + (size_t)(job->dy != NULL && !call->repeated_dy);
    return DML__STREAMS && call->n > DML__STREAM_FROM / sizeof(float) / arrays && (uintptr_t)out % 16 == 0;
}

/* `last`: no call of the same chain reads what this one writes. */
static void dml__formula_ready(const dml_pool *pool, dml__formula_job *job, bool last)
{
    const dml__formula_call *call = job->call;
    const int first = job->out[0] ? 0 : 1;
    const bool one = !job->out[1 - first];
    job->isa = dml__pool_machine(pool).isa;
    job->stream = last && one && job->beta[first] == 0 && dml__formula_streams(job, job->out[first]);
    job->whole = one && job->beta[first] == 0 && !job->stream && !call->repeated_dy;
    job->one_dy = call->repeated_dy && call->repeated_dy->dims == 1 && call->repeated_dy->stride[0] == 0;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++)
        job->whole = job->whole && (!call->in[i] || dml__broadcast_is_plain(&call->layout[i]));
}

static void dml__formula_run(dml_pool *pool, dml__formula_job *job)
{
    const int tasks = (int)dml__divide_up(job->call->n, DML__BLOCK);
    dml__formula_ready(pool, job, true);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__formula_task, job);
}

DML__LOCAL dml__formula_call dml__formula_plain(int formula, size_t n, const float *a, const float *b)
{
    dml__formula_call call;
    memset(&call, 0, sizeof call);
    call.formula = formula;
    call.n = n;
    call.in[0] = a;
    call.in[1] = b;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++) {
        call.layout[i].dims = 1;
        call.layout[i].size[0] = n;
        call.layout[i].stride[0] = 1;
    }
    return call;
}

static dml__formula_job dml__forward_job(const dml__formula_call *call, bool relu, float *y)
{
    dml__formula_job job;
    memset(&job, 0, sizeof job);
    job.call = call;
    job.out[0] = y;
    job.relu = relu;
    return job;
}

static dml__formula_job dml__backward_job(const dml__formula_call *call, const float *y, const float *dy,
                                          float *const gradient[DML__FORMULA_GRADIENTS],
                                          const float beta[DML__FORMULA_GRADIENTS])
{
    dml__formula_job job;
    memset(&job, 0, sizeof job);
    job.call = call;
    job.y = y;
    job.dy = dy;
    job.backward = true;
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++) {
        job.out[g] = gradient[g];
        job.beta[g] = beta[g];
    }
    return job;
}

DML__LOCAL void dml__formula_forward(dml_pool *pool, const dml__formula_call *call, bool relu, float *y)
{
    dml__formula_job job = dml__forward_job(call, relu, y);
    dml__formula_run(pool, &job);
}

DML__LOCAL void dml__formula_backward(dml_pool *pool, const dml__formula_call *call, const float *y,
                                      const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                      const float beta[DML__FORMULA_GRADIENTS])
{
    if (!gradient[0] && !gradient[1]) return;
    dml__formula_job job = dml__backward_job(call, y, dy, gradient, beta);
    dml__formula_run(pool, &job);
}

/* ---- chains ---- */

static const dml__formula_call *dml__chain_call(dml__formula_chain *chain, const dml__formula_call *call)
{
    chain->call[chain->count] = *call;
    return &chain->call[chain->count];
}

DML__LOCAL void dml__chain_forward(dml__formula_chain *chain, const dml__formula_call *call, bool relu,
                                   float *y)
{
    const dml__formula_call *kept = dml__chain_call(chain, call);
    chain->job[chain->count++] = dml__forward_job(kept, relu, y);
}

DML__LOCAL void dml__chain_backward(dml__formula_chain *chain, const dml__formula_call *call, const float *y,
                                    const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                    const float beta[DML__FORMULA_GRADIENTS])
{
    if (!gradient[0] && !gradient[1]) return;
    const dml__formula_call *kept = dml__chain_call(chain, call);
    chain->job[chain->count++] = dml__backward_job(kept, y, dy, gradient, beta);
}

static void dml__chain_task(void *argument, int task, int worker)
{
    dml__formula_chain *chain = (dml__formula_chain *)argument;
    for (int k = 0; k < chain->count; k++) dml__formula_task(&chain->job[k], task, worker);
}

DML__LOCAL void dml__chain_run(dml_pool *pool, dml__formula_chain *chain)
{
    if (!chain->count) return;
    const int tasks = (int)dml__divide_up(chain->call[0].n, DML__BLOCK);
    for (int k = 0; k < chain->count; k++) dml__formula_ready(pool, &chain->job[k], k == chain->count - 1);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__chain_task, chain);
    chain->count = 0;
}

/* ---- sums of values that are not kept ---- */

DML__DRIVERS_END

DML__BODY void dml__strip_total_body(size_t count, const float *x, const float *weights, double *total)
{
    dml__vf sum = { 0 };
    for (size_t i = 0; i < count; i += DML__LANES) {
        if (weights)
            sum += DML__LOAD(x + i) * DML__LOAD(weights + i);
        else
            sum += DML__LOAD(x + i);
    }
    *total += dml__add_lanes(&sum);
}
DML__PER_ISA(dml__strip_total, (size_t count, const float *x, const float *weights, double *total),
             (count, x, weights, total))

typedef struct dml__formula_total_job {
    dml_isa isa;
    const dml__formula_call *call;
    const float *weights;
    const dml__broadcast *layout;
    size_t part;
    double total[DML__PARTIALS];
} dml__formula_total_job;

DML__DRIVERS_BEGIN

static void dml__formula_total_task(void *argument, int task, int worker)
{
    dml__formula_total_job *job = (dml__formula_total_job *)argument;
    const dml__formula_call *call = job->call;
    const size_t begin = (size_t)task * job->part, end = dml__minimum(begin + job->part, call->n);
    dml__strip strip;
    dml__formula_at at;
    double total = 0;
    (void)worker;
    memset(&at, 0, sizeof at);
    at.p = call->p;
    at.q = call->q;
    at.out = strip.y;
    for (size_t i = begin; i < end; i += DML__STRIP_FLOATS) {
        const size_t count = dml__minimum(DML__STRIP_FLOATS, end - i);
        for (int k = 0; k < DML__FORMULA_INPUTS; k++)
            at.in[k] = dml__strip_operand(call, k, i, count, strip.in[k]);
        dml__formula_loop_of(job->isa, call->formula, -1)(job->isa, dml__formula_padded(count), &at);
        for (size_t k = count; k % DML__LANES; k++) strip.y[k] = 0;
        if (job->weights) dml__strip_repeat(job->layout, job->weights, i, count, strip.dy);
        dml__strip_total(job->isa, count, strip.y, job->weights ? strip.dy : NULL, &total);
    }
    job->total[task] = total;
}

DML__LOCAL double dml__formula_total(dml_pool *pool, const dml__formula_call *call, const float *weights,
                                     const dml__broadcast *layout)
{
    dml__formula_total_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.call = call;
    job.weights = weights;
    job.layout = layout;
    job.part = dml__divide_up(call->n, DML__PARTIALS);
    job.part =
        job.part > DML__BLOCK ? dml__divide_up(job.part, DML__STRIP_FLOATS) * DML__STRIP_FLOATS : DML__BLOCK;
    const int tasks = (int)dml__divide_up(call->n, job.part);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__formula_total_task, &job);
    double total = 0;
    for (int t = 0; t < tasks; t++) total += job.total[t];
    return total;
}

DML__DRIVERS_END

#endif
