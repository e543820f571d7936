#ifndef DML_KERNELS_UPDATE_C
#define DML_KERNELS_UPDATE_C

#include "kernels/update.h"

#include "kernels/blocks.h"
#include "kernels/update_internal.h"

#include <math.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Each kernel reads w, g and the state vectors as in[0], in[1] and on, and writes w and the state vectors as
   out[0] and on. */

/* Numbers: lr, momentum, weight decay, nesterov. */
DML__BODY void dml__sgd_loop(bool has_v, bool nesterov, size_t n, const dml__map_operands *at)
{
    const float lr = at->number[0], momentum = at->number[1], weight_decay = at->number[2];
    DML__BY_FOUR
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf w = DML__LOAD(at->in[0] + i);
        dml__vf step = DML__LOAD(at->in[1] + i) + weight_decay * w;
        if (has_v) {
            const dml__vf v = momentum * DML__LOAD(at->in[2] + i) + step;
            DML__STORE(at->out[1] + i, v);
            step = nesterov ? step + momentum * v : v;
        }
        DML__STORE(at->out[0] + i, w - lr * step);
    }
}

/* A loop for each case, as in DML__MAP. */
DML__BODY void dml__sgd_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    if (!at.in[2])
        dml__sgd_loop(false, false, n, &at);
    else if (at.number[3] == 0)
        dml__sgd_loop(true, false, n, &at);
    else
        dml__sgd_loop(true, true, n, &at);
}
DML__PER_ISA(dml__sgd_map, (size_t n, const dml__map_operands *at), (n, at))

/* In halves, since a function without the instruction set has no roots of 32 bytes; as pairs of floats, since
   gcc puts a vector of eight together one by one. */
DML__BODY void dml__root_of_halves(dml__vf *x)
{
#if defined(__SSE__) && DML__LANES == 8
    typedef double pairs __attribute__((vector_size(32)));
    typedef double half __attribute__((vector_size(16)));
    const pairs v = (pairs)*x;
    half low = { v[0], v[1] }, high = { v[2], v[3] };
    low = (half)_mm_sqrt_ps((__m128)low), high = (half)_mm_sqrt_ps((__m128)high);
    const pairs roots = { low[0], low[1], high[0], high[1] };
    *x = (dml__vf)roots;
#else
    for (int lane = 0; lane < DML__LANES; lane++) (*x)[lane] = sqrtf((*x)[lane]);
#endif
}

/* The kernel of `name_each(whole, n, operands)`, whose roots are whole vectors where there are such: two
   halves hold up the divisions behind them, for half of the time. */
#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
DML__FOR_TARGET("avx2,fma") static inline void dml__root_of_whole(dml__vf *x)
{
    *x = (dml__vf)_mm256_sqrt_ps((__m256)*x);
}
DML__BODY void dml__root(bool whole, dml__vf *x)
{
    if (whole)
        dml__root_of_whole(x);
    else
        dml__root_of_halves(x);
}
#define DML__ROOT_MAP(name)                                                                                  \
    DML__COLD static void name##_base(size_t n, const dml__map_operands *at)                                 \
    {                                                                                                        \
        name##_each(false, n, at);                                                                           \
    }                                                                                                        \
    DML__BODY void name##_body(size_t n, const dml__map_operands *at)                                        \
    {                                                                                                        \
        name##_each(true, n, at);                                                                            \
    }                                                                                                        \
    DML__AVX2_OR_BASE(name, (size_t n, const dml__map_operands *at), (n, at))
#else
DML__BODY void dml__root(bool whole, dml__vf *x)
{
    (void)whole;
    dml__root_of_halves(x);
}
#define DML__ROOT_MAP(name)                                                                                  \
    DML__BODY void name##_body(size_t n, const dml__map_operands *at)                                        \
    {                                                                                                        \
        name##_each(false, n, at);                                                                           \
    }                                                                                                        \
    DML__PER_ISA(name, (size_t n, const dml__map_operands *at), (n, at))
#endif

/* Roots and quotients keep so much waiting that few loads of what comes are under way: from memory that costs
   a fifth. */
DML__BODY void dml__ask_ahead(const dml__map_operands *at, int inputs, size_t i)
{
    for (int k = 0; k < inputs; k++) dml__ask(at->in[k], i + 256);
}

/* Numbers: the step's size, epsilon (both with the bias corrections in them), 1 - beta1, beta2, 1 - beta2,
   the decay added to the gradient, what the parameter keeps. */
DML__BODY void dml__adam_map_each(bool whole, size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    const float size = at.number[0], epsilon = at.number[1], follow = at.number[2], keep = at.number[3],
                add = at.number[4], decay = at.number[5], shrink = at.number[6];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__ask_ahead(&at, 4, i);
        const dml__vf w = DML__LOAD(at.in[0] + i);
        const dml__vf d = DML__LOAD(at.in[1] + i) + decay * w;
        dml__vf m = DML__LOAD(at.in[2] + i), v = DML__LOAD(at.in[3] + i);
        m = m + follow * (d - m);
        v = keep * v + add * d * d;
        DML__STORE(at.out[1] + i, m);
        DML__STORE(at.out[2] + i, v);
        dml__root(whole, &v);
        DML__STORE(at.out[0] + i, shrink * w - size * m / (v + epsilon));
    }
}
DML__ROOT_MAP(dml__adam_map)

/* Numbers: lr, epsilon, weight decay, alpha, 1 - alpha, momentum. */
DML__BODY void dml__rmsprop_map_each(bool whole, size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    const float lr = at.number[0], epsilon = at.number[1], decay = at.number[2], keep = at.number[3],
                add = at.number[4], momentum = at.number[5];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__ask_ahead(&at, 3, i);
        const dml__vf w = DML__LOAD(at.in[0] + i);
        const dml__vf d = DML__LOAD(at.in[1] + i) + decay * w;
        dml__vf v = keep * DML__LOAD(at.in[2] + i) + add * d * d;
        DML__STORE(at.out[1] + i, v);
        dml__root(whole, &v);
        dml__vf step = d / (v + epsilon);
        if (at.in[3]) {
            step = momentum * DML__LOAD(at.in[3] + i) + step;
            DML__STORE(at.out[2] + i, step);
        }
        DML__STORE(at.out[0] + i, w - lr * step);
    }
}
DML__ROOT_MAP(dml__rmsprop_map)

/* Numbers: lr, epsilon, weight decay. */
DML__BODY void dml__adagrad_map_each(bool whole, size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    const float lr = at.number[0], epsilon = at.number[1], decay = at.number[2];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__ask_ahead(&at, 3, i);
        const dml__vf w = DML__LOAD(at.in[0] + i);
        const dml__vf d = DML__LOAD(at.in[1] + i) + decay * w;
        dml__vf v = DML__LOAD(at.in[2] + i) + d * d;
        DML__STORE(at.out[1] + i, v);
        dml__root(whole, &v);
        DML__STORE(at.out[0] + i, w - lr * d / (v + epsilon));
    }
}
DML__ROOT_MAP(dml__adagrad_map)

/* Numbers: as Adam's. */
DML__BODY void dml__lamb_map_each(bool whole, size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    const float size = at.number[0], epsilon = at.number[1], follow = at.number[2], keep = at.number[3],
                add = at.number[4], decay = at.number[5];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__ask_ahead(&at, 4, i);
        const dml__vf d = DML__LOAD(at.in[1] + i);
        dml__vf m = DML__LOAD(at.in[2] + i), v = DML__LOAD(at.in[3] + i);
        m = m + follow * (d - m);
        v = keep * v + add * d * d;
        DML__STORE(at.out[1] + i, m);
        DML__STORE(at.out[2] + i, v);
        dml__root(whole, &v);
        DML__STORE(at.out[0] + i, size * m / (v + epsilon) + decay * DML__LOAD(at.in[0] + i));
    }
}
DML__ROOT_MAP(dml__lamb_map)

/* Numbers below 1.2e-38 count as 0 in updates on x86, as far as it goes by SSE's modes. A velocity that no
   gradient feeds any more would else end in them for good, since 0.9 of the smallest rounds to itself, and
   an instruction that meets one takes a hundred times as long (a whole update of 87,381 parameters 50). */
static unsigned dml__leave_denormals_out(void)
{
#if defined(__SSE__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void dml__let_denormals_in(unsigned before)
{
#if defined(__SSE__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* A call of its own, across which nothing is computed early or late. */
DML__NOINLINE static void dml__run_update(dml__map_kernel kernel, dml_isa isa, size_t n,
                                          const dml__map_operands *at)
{
    kernel(isa, n, at);
}

#define DML__UPDATE_MAP(name)                                                                                \
    static void name##_normal(dml_isa isa, size_t n, const dml__map_operands *at)                            \
    {                                                                                                        \
        const unsigned before = dml__leave_denormals_out();                                                  \
        dml__run_update(name, isa, n, at);                                                                   \
        dml__let_denormals_in(before);                                                                       \
    }
DML__UPDATE_MAP(dml__sgd_map)
DML__UPDATE_MAP(dml__adam_map)
DML__UPDATE_MAP(dml__rmsprop_map)
DML__UPDATE_MAP(dml__adagrad_map)
DML__UPDATE_MAP(dml__lamb_map)

DML__LOCAL void dml__lamb_direction(dml_pool *pool, size_t n, const float *w, float *g, float *m, float *v,
                                    const float number[DML__UPDATE_NUMBERS])
{
    dml__map_operands operands = { { w, g, m, v }, { g, m, v }, { 0 }, false };
    for (int i = 0; i < DML__UPDATE_NUMBERS; i++) operands.number[i] = number[i];
    dml__map(pool, n, dml__lamb_map_normal, &operands);
}

/* Comparisons with a NaN are false, so it stays. Number: the most. */
DML__BODY void dml__clip_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    dml__vf most, least;
    dml__splat(&most, at.number[0]);
    least = -most;
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf x = DML__LOAD(at.in[0] + i);
        x = DML__SELECT(x > most, most, x);
        DML__STORE(at.out[0] + i, DML__SELECT(x < least, least, x));
    }
}
DML__PER_ISA(dml__clip_map, (size_t n, const dml__map_operands *at), (n, at))

DML__DRIVERS_BEGIN

DML_API void dml_clip_values(dml_pool *pool, size_t n, float most, float *x)
{
    const dml__map_operands operands = { { x }, { x }, { most }, false };
    dml__map(pool, n, dml__clip_map, &operands);
}

DML__LOCAL void dml__update_by(dml__update_rule rule, dml_pool *pool, size_t n, float *w, const float *g,
                               float *const state[DML__UPDATE_STATES],
                               const float number[DML__UPDATE_NUMBERS])
{
    static const dml__map_kernel kernels[] = { dml__sgd_map_normal, dml__adam_map_normal,
                                               dml__rmsprop_map_normal, dml__adagrad_map_normal };
    dml__map_operands operands = { { w, g, state[0], state[1] }, { w, state[0], state[1] }, { 0 }, false };
    for (int i = 0; i < DML__UPDATE_NUMBERS; i++) operands.number[i] = number[i];
    dml__map(pool, n, kernels[rule], &operands);
}

DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov)
{
    float *const state[DML__UPDATE_STATES] = { v, NULL };
    const float number[DML__UPDATE_NUMBERS] = { lr, momentum, weight_decay, nesterov ? 1.0f : 0.0f };
    DML_ASSERT(v || momentum == 0);
    dml__update_by(DML__UPDATE_SGD, pool, n, w, g, state, number);
}

DML__DRIVERS_END

#endif
