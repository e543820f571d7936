/* formula.cl: the functions of kernels/formulas.h, all in two kernels: which one is the same for every item,
   so choosing costs nothing beside the memory. Of an item's elements one is computed after the other, since
   all of the functions RUN times over would be much code. */
#ifndef DML_GPU_FORMULA_CL
#define DML_GPU_FORMULA_CL

#include "kernels/formulas.h"

#define VALUE const float
#define K(constant) (constant)
#define WHERE(mask, x, y) ((mask) ? (x) : (y))
#define SIGMOID(x) (1.0f / (1.0f + EXP(-(x))))
#define P p
#define Q q

/* Moves an array of RUN in registers on, which only constants can index. */
#define FORMULA_NEXT(array) UNROLL for (int at = 0; at + 1 < RUN; at++) array[at] = array[at + 1]

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
    float as[RUN], bs[RUN], cs[RUN];
    EACH_OF_RUN(k, i, n)
    {
        as[k] = in_a[i];
        bs[k] = in_b ? in_b[i] : 0.0f;
        cs[k] = in_c ? in_c[i] : 0.0f;
    }
    ONE_OF_RUN(k, i, n)
    {
        const float a = as[0], b = bs[0], c = cs[0];
        float y = 0.0f;
        FORMULA_NEXT(as);
        FORMULA_NEXT(bs);
        FORMULA_NEXT(cs);
        switch (INT(1)) {
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name: {                                                                              \
        forward;                                                                                             \
    } break;
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
        out[i] = y;
    }
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
    float as[RUN], bs[RUN], ys[RUN], dys[RUN];
    EACH_OF_RUN(k, i, n)
    {
        as[k] = in_a ? in_a[i] : 0.0f;
        bs[k] = in_b ? in_b[i] : 0.0f;
        ys[k] = output ? output[i] : 0.0f;
        dys[k] = gradient[i];
    }
    ONE_OF_RUN(k, i, n)
    {
        const float a = as[0], b = bs[0], y = ys[0], dy = dys[0];
        float d = 0.0f, d1 = 0.0f;
        FORMULA_NEXT(as);
        FORMULA_NEXT(bs);
        FORMULA_NEXT(ys);
        FORMULA_NEXT(dys);
        switch (INT(1)) {
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name: {                                                                              \
        gradient;                                                                                            \
    } break;
#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \
    case DML__FORMULA_##name: {                                                                              \
        gradient1;                                                                                           \
        d1 = d;                                                                                              \
        gradient0;                                                                                           \
    } break;
            DML__FORMULAS_1(DML__FORMULA_CASE_1)
            DML__FORMULAS_2(DML__FORMULA_CASE_2)
            DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)
#undef DML__FORMULA_CASE_1
#undef DML__FORMULA_CASE_2
        }
        if (g0) g0[i] = dml__with_beta(d, beta0, g0 + i);
        if (g1) g1[i] = dml__with_beta(d1, beta1, g1 + i);
    }
}

#undef FORMULA_NEXT
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
