/* formula.cl: the functions of kernels/formulas.h, all in two kernels: which one is the same for every item,
   so choosing costs nothing beside the memory. */
#ifndef DML_GPU_FORMULA_CL
#define DML_GPU_FORMULA_CL

#include "kernels/formulas.h"

#define VALUE const float
#define K(constant) (constant)
#define WHERE(mask, x, y) ((mask) ? (x) : (y))
#define SIGMOID(x) (1.0f / (1.0f + EXP(-(x))))
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
    const unsigned i = ELEMENT;
    if (i < n) {
        const float a = in_a[i], b = in_b ? in_b[i] : 0.0f, c = in_c ? in_c[i] : 0.0f;
        float y = 0.0f;
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
    const unsigned i = ELEMENT;
    if (i < n) {
        const float a = in_a ? in_a[i] : 0.0f, b = in_b ? in_b[i] : 0.0f;
        const float y = output ? output[i] : 0.0f, dy = gradient[i];
        float d = 0.0f, d1 = 0.0f;
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
    const unsigned i = ELEMENT;
    if (i < n) {
        unsigned left = i, from = 0;
        for (int d = INT(1) - 1; d >= 0; d--) {
            const unsigned size = (unsigned)INT(2 + d);
            from += left % size * (unsigned)INT(8 + d);
            left /= size;
        }
        y[i] = x[from];
    }
}

#endif
