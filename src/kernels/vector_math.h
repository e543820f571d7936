/* vector_math.h: functions of a vector's lanes, as building blocks of kernels.

   Bounds are in units in the last place of the exact result (ulp), for every float, also those with a
   denormal result, with and without FMA; tests/kernels/vector_math_test.c holds them. Special values give
   what C's functions give; which NaN is not said. Polynomials are minimax (Remez) in their relative error,
   their coefficients rounded to floats. */
#ifndef DML_KERNELS_VECTOR_MATH_H
#define DML_KERNELS_VECTOR_MATH_H

#include <math.h>

#include "kernels/vector.h"

#define DML__SIGN_BIT ((int32_t)-0x7fffffff - 1)

/* What e^v is made of: v = k ln 2 + r, *power = e^r - 1 for |r| <= ln 2 / 2, and k in the low bits of what is
   returned, under which it is 0: shifting left by 23 leaves k as an exponent.
   k = round(v / ln 2) and r = v - k ln 2, where ln 2 is cut into 355/512, which times k is exact, and the
   rest (Cody and Waite, "Software Manual for the Elementary Functions", 1980). e^r = 1 + r + r^2 q(r): error
   5e-9.
 */
DML__BODY void dml__exp_parts(const dml__vf *of, dml__vf *power, dml__vu *k_bits)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    const dml__vf v = *of, shifted = v * 1.44269504f + shift, k = shifted - shift;
    const dml__vf r = (v - k * 0.693359375f) - k * -2.12194440e-4f;
    dml__vf q = r * 0.00138144672f + 0.00836878084f;
    q = q * r + 0.0416683927f;
    q = q * r + 0.166665196f;
    q = q * r + 0.49999994f;
    *power = q * (r * r) + r;
    *k_bits = (dml__vu)shifted;
}

/* x = e^x to within 1.25 ulp; inf, 0 and NaN where they belong, gradual underflow kept. */
DML__BODY void dml__vector_exp(dml__vf *x)
{
    dml__vf v = *x, power, highest, lowest;
    dml__vu bits;
    dml__splat(&highest, 89.0f); /* e^89 overflows, e^-104 rounds to 0 */
    dml__splat(&lowest, -104.0f);
    v = DML__SELECT(v > highest, highest, v);
    v = DML__SELECT(v < lowest, lowest, v);
    dml__exp_parts(&v, &power, &bits);
    /* 2^k in two factors, since it may lie outside the range of floats where the product doesn't. */
    const dml__vi whole = (dml__vi)(bits - 0x4B400000u);
    const dml__vi half = whole >> 1;
    const dml__vf scale_a = (dml__vf)(((dml__vu)half + 127u) << 23);
    const dml__vf scale_b = (dml__vf)(((dml__vu)whole - (dml__vu)half + 127u) << 23);
    *x = ((power + 1.0f) * scale_a) * scale_b;
}

/* The same for x <= 0 (or a little more, not beyond 40), with fewer instructions: 2^k is 2^(k + 64) x 2^-64.
 */
DML__BODY void dml__vector_exp_down(dml__vf *x)
{
    dml__vf v = *x, power, lowest;
    dml__vu bits;
    dml__splat(&lowest, -104.0f);
    v = DML__SELECT(v < lowest, lowest, v);
    dml__exp_parts(&v, &power, &bits);
    *x = ((power + 1.0f) * (dml__vf)((bits + 191u) << 23)) * 5.42101086e-20f;
}

/* x = the natural logarithm of x to within 1 ulp; -inf for 0, NaN below.
   x = 2^k m with m in sqrt(1/2) .. sqrt(2), and f = m - 1: log x = k ln 2 + (f - f^2 / 2 + f^3 q(f)), ln 2
   cut as in dml__vector_exp: error 7e-9. */
DML__BODY void dml__vector_log(dml__vf *x)
{
    const dml__vf v = *x, none = { 0 };
    const dml__vi tiny = v < 1.17549435e-38f; /* denormals are scaled by 2^23 */
    const dml__vu bits = (dml__vu)DML__SELECT(tiny, v * 8388608.0f, v);
    const dml__vi whole = (dml__vi)(bits - 0x3F3504F3u) >> 23;
    const dml__vf f = (dml__vf)(bits - ((dml__vu)whole << 23)) - 1.0f;
    const dml__vf shifted = (dml__vf)((whole - (tiny & 23)) + 0x4B400000);
    const dml__vf k = shifted - 12582912.0f, square = f * f;
    dml__vf q = f * -0.0763450265f + 0.12761578f;
    q = q * f - 0.13160181f;
    q = q * f + 0.142017573f;
    q = q * f - 0.166233569f;
    q = q * f + 0.200012267f;
    q = q * f - 0.250008196f;
    q = q * f + 0.333333313f;
    dml__vf y = q * (f * square) + k * -2.12194440e-4f;
    y = (f + (y - square * 0.5f)) + k * 0.693359375f;
    y = DML__SELECT(v == 0.0f, none - HUGE_VALF, y);
    y = DML__SELECT(v < 0.0f, none - NAN, y);
    *x = DML__SELECT(v < HUGE_VALF, y, v); /* inf and NaN stay */
}

/* x = tanh x to within 2 ulp. For m = |x| < 0.625, m + m^3 q(m^2) (error 5e-9), since the other form cancels
   there; else (1 - e) / (1 + e) with e = exp(-2 m); then the sign of x. */
DML__BODY void dml__vector_tanh(dml__vf *x)
{
    const dml__vf v = *x, m = (dml__vf)((dml__vi)v & ~DML__SIGN_BIT), square = v * v;
    dml__vf q = square * -0.00571704563f + 0.020650588f;
    q = q * square - 0.0537434965f;
    q = q * square + 0.133314908f;
    q = q * square - 0.333332837f;
    const dml__vf inner = q * (square * m) + m;
    dml__vf e = m * -2.0f;
    dml__vector_exp_down(&e);
    const dml__vf y = DML__SELECT(m < 0.625f, inner, (1.0f - e) / (1.0f + e));
    *x = (dml__vf)((dml__vi)y | ((dml__vi)v & DML__SIGN_BIT));
}

/* x = 1 / (1 + e^-x) to within 2.5 ulp, from e^-|x|, which doesn't overflow. */
DML__BODY void dml__vector_sigmoid(dml__vf *x)
{
    const dml__vf v = *x;
    dml__vf e = (dml__vf)((dml__vi)v | DML__SIGN_BIT), one;
    dml__vector_exp_down(&e);
    dml__splat(&one, 1.0f);
    *x = DML__SELECT(v < 0.0f, e, one) / (1.0f + e);
}

/* x = erf x to within 2 ulp. For m = |x| < 0.9, m + m q(m^2) (error 1e-9); else 1 - e^p(m), where e^p is
   erfc (error 7e-9 of erf), and 1 from 3.95 on; then the sign of x. */
DML__BODY void dml__vector_erf(dml__vf *x)
{
    const dml__vf v = *x, m = (dml__vf)((dml__vi)v & ~DML__SIGN_BIT), square = v * v;
    dml__vf q = square * 8.51310397e-05f - 0.000817563909f, most, e;
    q = q * square + 0.00520385895f;
    q = q * square - 0.0268605091f;
    q = q * square + 0.112837151f;
    q = q * square - 0.376126349f;
    q = q * square + 0.128379166f;
    const dml__vf inner = q * m + m;
    dml__splat(&most, 3.95f);
    const dml__vf t = DML__SELECT(m > most, most, m);
    e = t * 0.000198218928f - 0.00306548341f;
    e = e * t + 0.0223151855f;
    e = e * t - 0.104113623f;
    e = e * t - 0.636976123f;
    e = e * t - 1.12779725f;
    e = e * t - 0.00016645588f;
    dml__vector_exp(&e);
    const dml__vf y = DML__SELECT(m < 0.9f, inner, 1.0f - e);
    *x = (dml__vf)((dml__vi)y | ((dml__vi)v & DML__SIGN_BIT));
}

/* x = e^x - 1 for x <= 0, to within 5 ulp: for t = tanh(x / 2) it is 2 t / (1 - t). */
DML__BODY void dml__vector_expm1(dml__vf *x)
{
    dml__vf t = *x * 0.5f;
    dml__vector_tanh(&t);
    *x = (t + t) / (1.0f - t);
}

/* x = log(1 + x) for x in 0 .. 1, to within 3 ulp: what 1 + x loses of x is a factor of the result too
   (Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991, theorem 4).
 */
DML__BODY void dml__vector_log1p(dml__vf *x)
{
    const dml__vf v = *x, u = v + 1.0f, rounded = u - 1.0f;
    dml__vf y = u;
    dml__vector_log(&y);
    *x = DML__SELECT(rounded == 0.0f, v, y * (v / rounded));
}

DML__BODY void dml__vector_abs(dml__vf *x)
{
    *x = (dml__vf)((dml__vi)*x & ~DML__SIGN_BIT);
}

/* Lane by lane, by the C library: a function of its own, since one whose vectors are wide must call none that
   knows nothing of them. Sines take numbers of any size, whose turns are counted in more bits than a float
   has. */
#define DML__VECTOR_BY_LANES(name, of_lane)                                                                  \
    static void dml__##name##_lanes(float lanes[DML__LANES])                                                 \
    {                                                                                                        \
        for (int i = 0; i < DML__LANES; i++) lanes[i] = of_lane(lanes[i]);                                   \
    }                                                                                                        \
    DML__BODY void dml__vector_##name(dml__vf *x)                                                            \
    {                                                                                                        \
        float lanes[DML__LANES];                                                                             \
        DML__STORE(lanes, *x);                                                                               \
        dml__##name##_lanes(lanes);                                                                          \
        *x = DML__LOAD(lanes);                                                                               \
    }
DML__VECTOR_BY_LANES(sqrt, sqrtf)
DML__VECTOR_BY_LANES(sin, sinf)
DML__VECTOR_BY_LANES(cos, cosf)
#undef DML__VECTOR_BY_LANES

static void dml__pow_lanes(float lanes[DML__LANES], const float power[DML__LANES])
{
    for (int i = 0; i < DML__LANES; i++) lanes[i] = powf(lanes[i], power[i]);
}

DML__BODY void dml__vector_pow(dml__vf *x, const dml__vf *power)
{
    float lanes[DML__LANES], powers[DML__LANES];
    DML__STORE(lanes, *x);
    DML__STORE(powers, *power);
    dml__pow_lanes(lanes, powers);
    *x = DML__LOAD(lanes);
}

#endif
