/* vector_math_wide.h: the functions of vector_math.h for 16 lanes of AVX-512, whose instructions take
   exponents and scales in one step: these functions are bound by arithmetic, and take half of the time and
   less.

   Bounds, special values and the constants not named here are vector_math.h's. */
#ifndef DML_KERNELS_VECTOR_MATH_WIDE_H
#define DML_KERNELS_VECTOR_MATH_WIDE_H

#include "kernels/isa_vectors.h"
#include "kernels/vector.h"

#if defined(DML__HAS_AVX512)

#define DML__WIDE_LANES 16
#define DML__WIDE DML__AVX512 DML__INLINE __m512

typedef int32_t dml__wi __attribute__((vector_size(64)));

#define DML__WIDE_BITS(vector) ((dml__wi)(vector))
#define DML__WIDE_SELECT(mask, a, b) ((__m512)(((mask)&DML__WIDE_BITS(a)) | (~(mask)&DML__WIDE_BITS(b))))
#define DML__WIDE_SIGN ((int32_t)-0x7fffffff - 1)
/* A kernel of such vectors. */
#define DML__WIDE_KERNEL DML__CONTRACTS DML__AVX512 static

/* The first `count` lanes, or all if that is more. */
DML__INLINE unsigned dml__wide_first(size_t count)
{
    return count < DML__WIDE_LANES ? (1u << count) - 1 : 0xffffu;
}

DML__WIDE dml__wide_abs(__m512 v)
{
    return (__m512)(DML__WIDE_BITS(v) & ~DML__WIDE_SIGN);
}

/* The size of the one, the sign of the other. */
DML__WIDE dml__wide_sign(__m512 size, __m512 v)
{
    return (__m512)(DML__WIDE_BITS(size) | (DML__WIDE_BITS(v) & DML__WIDE_SIGN));
}

/* e^v, for v from -104 to 89. */
DML__WIDE dml__wide_exp_inside(__m512 v)
{
    const float shift = 12582912.0f;
    const __m512 k = (v * 1.44269504f + shift) - shift;
    const __m512 r = (v - k * 0.693359375f) - k * -2.12194440e-4f;
    __m512 q = r * 0.00138144672f + 0.00836878084f;
    q = q * r + 0.0416683927f;
    q = q * r + 0.166665196f;
    q = q * r + 0.49999994f;
    return _mm512_scalef_ps((q * (r * r) + r) + 1.0f, k);
}

/* Of the smaller and of the larger of two numbers the second is taken where one is a NaN. */
DML__WIDE dml__wide_exp_down(__m512 v)
{
    return dml__wide_exp_inside(_mm512_max_ps(_mm512_set1_ps(-104.0f), v));
}

DML__WIDE dml__wide_exp(__m512 v)
{
    return dml__wide_exp_down(_mm512_min_ps(_mm512_set1_ps(89.0f), v));
}

/* ln 2 is cut into two parts of one sign, so that infinite exponents, those of 0 and infinity, stay; a number
   below 0 has no mantissa. */
DML__WIDE dml__wide_log(__m512 v)
{
    const __m512 one = _mm512_set1_ps(1.0f), half = _mm512_set1_ps(0.5f);
    const __m512 mantissa = _mm512_getmant_ps(v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan);
    const __m512 exponent = _mm512_getexp_ps(v);
    const __mmask16 high = _mm512_cmp_ps_mask(mantissa, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
    const __m512 f = _mm512_mask_mul_ps(mantissa, high, mantissa, half) - one;
    const __m512 k = _mm512_mask_add_ps(exponent, high, exponent, one), square = f * f;
    __m512 q = f * -0.0763450265f + 0.12761578f;
    q = q * f - 0.13160181f;
    q = q * f + 0.142017573f;
    q = q * f - 0.166233569f;
    q = q * f + 0.200012267f;
    q = q * f - 0.250008196f;
    q = q * f + 0.333333313f;
    const __m512 y = q * (f * square) + k * 1.42860677e-6f;
    return (f + (y - square * 0.5f)) + k * 0.693145752f;
}

/* tanh m for m = |v| in 32 parts up to 10, each of a quarter of a power of two (but the first, which is from
   0 to 1.5/32), in the order of the bits that tell them apart: the part's middle, and the coefficients of a
   polynomial of the distance to it (error 1e-9 beside the first one's rounding). */
static const float dml__wide_tanh_parts[7][2 * DML__WIDE_LANES] = {
    { 2.25f,     2.75f,     3.25f,       3.75f,       4.5f,       5.5f,       6.5f,       7.5f,
      9,         0,         0.05078125f, 0.05859375f, 0.0703125f, 0.0859375f, 0.1015625f, 0.1171875f,
      0.140625f, 0.171875f, 0.203125f,   0.234375f,   0.28125f,   0.34375f,   0.40625f,   0.46875f,
      0.5625f,   0.6875f,   0.8125f,     0.9375f,     1.125f,     1.375f,     1.625f,     1.875f },
    { 0.978026109f,
      0.99185972f,
      0.996997634f,
      0.998894442f,
      0.9997532f,
      0.999966596f,
      0.999995479f,
      0.999999388f,
      1,
      0,
      0.0507376445f,
      0.0585267867f,
      0.0701968573f,
      0.0857265663f,
      0.101214731f,
      0.116653989f,
      0.139705303f,
      0.170202308f,
      0.200376719f,
      0.230175711f,
      0.274061589f,
      0.330821117f,
      0.385283966f,
      0.437188785f,
      0.509829974f,
      0.596373555f,
      0.670967074f,
      0.73407152f,
      0.809301072f,
      0.879826701f,
      0.925346226f,
      0.95404526f },
    { 0.0434649181f,   0.0162142876f,   0.00599571531f,  0.00220989249f,  0.000493520472f,
      6.68049936e-05f, 9.04133398e-06f, 1.22361628e-06f, 6.09461908e-08f, 1,
      0.997425691f,    0.996574615f,    0.995072401f,    0.992650956f,    0.989755578f,
      0.986391847f,    0.980482428f,    0.971031174f,    0.959849171f,    0.947019142f,
      0.924890245f,    0.890557388f,    0.851556265f,    0.808865966f,    0.740073398f,
      0.644338582f,    0.549803185f,    0.461139004f,    0.345031777f,    0.225904978f,
      0.143734363f,    0.0897976414f },
    { -0.0425082362f,   -0.0160810996f,   -0.0059771794f,   -0.00220723948f,  -0.000492610892f,
      -6.66953522e-05f, -9.02674217e-06f, -1.22164601e-06f, -5.92317856e-08f, 0,
      -0.0506070302f,   -0.05832631f,     -0.0698509553f,   -0.085096558f,    -0.100177845f,
      -0.115066543f,    -0.136978595f,    -0.165271747f,    -0.192331427f,    -0.217980804f,
      -0.25347689f,     -0.294615152f,    -0.32809094f,     -0.353627099f,    -0.377311281f,
      -0.384266392f,    -0.368899897f,    -0.338509155f,    -0.279237128f,    -0.198758738f,
      -0.133004615f,    -0.0856711028f },
    { 0.027087645f,   0.01054639f,    0.0039610581f,  0.0014683203f, 0.00032854696f, 4.4501558e-05f,
      6.0233193e-06f, 8.1518022e-07f, 4.0141767e-08f, -0.33333333f,  -0.32990755f,   -0.32877789f,
      -0.32678748f,   -0.32358862f,   -0.31977905f,   -0.31537431f,  -0.30769084f,   -0.29554743f,
      -0.28141098f,   -0.26549916f,   -0.23882847f,   -0.19938754f,  -0.15744391f,   -0.11502019f,
      -0.054326633f,  0.01438662f,    0.064251774f,   0.094776767f,  0.11097461f,    0.099570913f,
      0.075163741f,   0.051801641f },
    { -0.01239038f,   -0.005151129f, -0.001979497f,  -0.0007398719f, -0.0001725459f,
      -2.339776e-05f, -3.16739e-06f, -4.286752e-07f, -2.470953e-08f, 0,
      0.03360774f,    0.03868442f,   0.04622311f,    0.05610566f,    0.06575897f,
      0.07514519f,    0.08864557f,   0.1053934f,     0.1204987f,     0.1337717f,
      0.149946f,      0.1640615f,    0.1699273f,     0.1680787f,     0.1532494f,
      0.119441f,      0.07989823f,   0.04336298f,    0.003700617f,   -0.02109516f,
      -0.02512124f,   -0.02084891f },
    { 0.00397853f,  0.00191317f,  0.00076952f, 0.000292236f, 6.79072e-05f, 9.22523e-06f, 1.24914e-06f,
      1.69065e-07f, 9.35831e-09f, 0.133333f,   0.130429f,    0.129475f,    0.127797f,    0.125112f,
      0.121932f,    0.118279f,    0.111968f,   0.102156f,    0.0909885f,   0.0787536f,   0.0590682f,
      0.0319528f,   0.00592385f,  -0.0171651f, -0.0435075f,  -0.0615942f,  -0.0626845f,  -0.053066f,
      -0.0320285f,  -0.00949542f, 0.00140635f, 0.00460565f },
};

DML__WIDE dml__wide_tanh(__m512 v)
{
    __m512 part[7];
    const __m512 m = _mm512_min_ps(_mm512_set1_ps(9.99f), dml__wide_abs(v));
    const dml__wi which = DML__WIDE_BITS(_mm512_max_ps(_mm512_set1_ps(0.04f), m)) >> 21;
    DML__UNROLL
    for (int i = 0; i < 7; i++) {
        const float *of = dml__wide_tanh_parts[i];
        part[i] = _mm512_permutex2var_ps(_mm512_loadu_ps(of), (__m512i)which,
                                         _mm512_loadu_ps(of + DML__WIDE_LANES));
    }
    const __m512 t = m - part[0];
    __m512 q = part[6] * t + part[5];
    q = q * t + part[4];
    q = q * t + part[3];
    q = q * t + part[2];
    return dml__wide_sign(q * t + part[1], v);
}

DML__WIDE dml__wide_sigmoid(__m512 v)
{
    const __m512 one = _mm512_set1_ps(1.0f),
                 e = dml__wide_exp_down((__m512)(DML__WIDE_BITS(v) | DML__WIDE_SIGN));
    return _mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)v), one, e) / (e + one);
}

DML__WIDE dml__wide_erf(__m512 v)
{
    const __m512 m = dml__wide_abs(v), square = v * v, t = _mm512_min_ps(_mm512_set1_ps(3.95f), m);
    __m512 q = square * 8.51310397e-05f - 0.000817563909f;
    q = q * square + 0.00520385895f;
    q = q * square - 0.0268605091f;
    q = q * square + 0.112837151f;
    q = q * square - 0.376126349f;
    q = q * square + 0.128379166f;
    __m512 e = t * 0.000198218928f - 0.00306548341f;
    e = e * t + 0.0223151855f;
    e = e * t - 0.104113623f;
    e = e * t - 0.636976123f;
    e = e * t - 1.12779725f;
    e = e * t - 0.00016645588f;
    e = 1.0f - dml__wide_exp_inside(e);
    const __mmask16 outer = _mm512_cmp_ps_mask(m, _mm512_set1_ps(0.9f), _CMP_GT_OQ);
    return dml__wide_sign(_mm512_mask_blend_ps(outer, q * m + m, e), v);
}

DML__WIDE dml__wide_expm1(__m512 v)
{
    const __m512 t = dml__wide_tanh(v * 0.5f);
    return (t + t) / (1.0f - t);
}

DML__WIDE dml__wide_log1p(__m512 v)
{
    const __m512 u = v + 1.0f, rounded = u - 1.0f;
    return DML__WIDE_SELECT(rounded == 0.0f, v, dml__wide_log(u) * (v / rounded));
}

#endif

#endif
