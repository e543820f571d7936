/* formula.cl: the functions of kernels/formulas.h, all in two kernels: which one is the same for every item,
   and is chosen once for an item's RUN elements, which are computed side by side. */
#ifndef DML_GPU_FORMULA_CL
#define DML_GPU_FORMULA_CL

#include "kernels/formulas.h"

#define VALUE const float
#define K(constant) (constant)
#define WHERE(mask, x, y) ((mask) ? (x) : (y))
#define SIGMOID(x) RECIPROCAL(1.0f + EXP(-(x)))
#define P p
#define Q q

/* y = the formula. Buffers a, b, c (what the formula lacks is NULL), y; ints n, formula; floats p, q. */
KERNEL(formula_forward)
{
    GLOBAL const float *in_a = BUFFER(0, const float);
    GLOBAL const float *in_b = BUFFER(1, const float);
    GLOBAL const float *in_c = BUFFER(2, const float);
    GLOBAL float *out = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float p = REAL(0), q = REAL(1);
    RUN_BEGINS(n);
    float as[RUN], bs[RUN], cs[RUN], ys[RUN];
    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = cs[k] = ys[k] = 0.0f;
    EACH_OF_RUN(k, i, n) as[k] = in_a[i];
    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];
    if (in_c) EACH_OF_RUN(k, i, n) cs[k] = in_c[i];
    switch (INT(1)) {
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name:                                                                                \
        EACH_IN_REGISTERS(RUN, k)                                                                            \
        {                                                                                                    \
            const float a = as[k], b = bs[k], c = cs[k];                                                     \
            float y;                                                                                         \
            (void)a, (void)b, (void)c;                                                                       \
            forward;                                                                                         \
            ys[k] = y;                                                                                       \
        }                                                                                                    \
        break;
#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \
    DML__FORMULA_CASE_1(name, needs, forward, gradient0)
#define DML__FORMULA_CASE_FLAT(name, forward) DML__FORMULA_CASE_1(name, 0, forward, 0)
        DML__FORMULAS_1(DML__FORMULA_CASE_1)
        DML__FORMULAS_2(DML__FORMULA_CASE_2)
        DML__FORMULAS_FLAT(DML__FORMULA_CASE_FLAT)
        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)
#undef DML__FORMULA_CASE_1
#undef DML__FORMULA_CASE_2
#undef DML__FORMULA_CASE_FLAT
    }
    EACH_OF_RUN(k, i, n) out[i] = ys[k];
}

/* g0, g1 = the gradients of the inputs that have one, + beta what is there; NULL: not wanted. Each may be dy,
   and both the same. Buffers a, b, y (NULL where not needed), dy, g0, g1; ints n, formula; floats p, q,
   beta0, beta1. */
KERNEL(formula_backward)
{
    GLOBAL const float *in_a = BUFFER(0, const float);
    GLOBAL const float *in_b = BUFFER(1, const float);
    GLOBAL const float *output = BUFFER(2, const float);
    GLOBAL const float *gradient = BUFFER(3, const float);
    GLOBAL float *g0 = BUFFER(4, float);
    GLOBAL float *g1 = BUFFER(5, float);
    const unsigned n = (unsigned)INT(0);
    const float p = REAL(0), q = REAL(1), beta0 = REAL(2), beta1 = REAL(3);
    RUN_BEGINS(n);
    float as[RUN], bs[RUN], ys[RUN], dys[RUN], ds[RUN], d1s[RUN];
    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = ys[k] = dys[k] = ds[k] = d1s[k] = 0.0f;
    EACH_OF_RUN(k, i, n) dys[k] = gradient[i];
    if (in_a) EACH_OF_RUN(k, i, n) as[k] = in_a[i];
    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];
    if (output) EACH_OF_RUN(k, i, n) ys[k] = output[i];
    switch (INT(1)) {
#define FORMULA_GRADIENTS(gradient0, gradient1)                                                              \
    EACH_IN_REGISTERS(RUN, k)                                                                                \
    {                                                                                                        \
        const float a = as[k], b = bs[k], y = ys[k], dy = dys[k];                                            \
        float d;                                                                                             \
        (void)a, (void)b, (void)y, (void)dy;                                                                 \
        gradient1;                                                                                           \
        d1s[k] = d;                                                                                          \
        gradient0;                                                                                           \
        ds[k] = d;                                                                                           \
    }                                                                                                        \
    break;
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name:                                                                                \
        FORMULA_GRADIENTS(gradient, d = 0.0f)
#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \
    case DML__FORMULA_##name: FORMULA_GRADIENTS(gradient0, gradient1)
        DML__FORMULAS_1(DML__FORMULA_CASE_1)
        DML__FORMULAS_2(DML__FORMULA_CASE_2)
        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)
#undef FORMULA_GRADIENTS
#undef DML__FORMULA_CASE_1
#undef DML__FORMULA_CASE_2
    }
    if (g0) EACH_OF_RUN(k, i, n) g0[i] = dml__with_beta(ds[k], beta0, g0 + i);
    if (g1) EACH_OF_RUN(k, i, n) g1[i] = dml__with_beta(d1s[k], beta1, g1 + i);
}

#undef VALUE
#undef K
#undef WHERE
#undef SIGMOID
#undef P
#undef Q

/* y = x repeated. Buffers x, y; ints n, dimensions, then the size of each, outermost first, and from 8 on x's
   stride in each; size{n}. */
KERNEL(broadcast)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned left[RUN], from[RUN];
    float value[RUN];
    EACH_OF_RUN(k, i, n)
    {
        left[k] = i;
        from[k] = 0;
    }
    for (int d = INT(1) - 1; d >= 0; d--) {
        const dml__gpu_divisor by = dml__gpu_divisor_of(INT(2 + d));
        EACH_OF_RUN(k, i, n)
        {
            const unsigned before = dml__gpu_divide(left[k], by);
            from[k] += (left[k] - before * by.number) * (unsigned)INT(8 + d);
            left[k] = before;
        }
    }
    EACH_OF_RUN(k, i, n) value[k] = x[from[k]];
    EACH_OF_RUN(k, i, n) y[i] = value[k];
}

#endif
