#ifndef DML_KERNELS_MICROKERNEL_BF16_C
#define DML_KERNELS_MICROKERNEL_BF16_C

#include "kernels/microkernel.h"

#include "kernels/amx.h"
#include "kernels/microkernel_body.h"

#if defined(DML__HAS_AVX512_BF16)

/* --- pairs of bf16 by AVX512-BF16: the same loop, whose multiply-adds are dot products of pairs --- */

#define DML__AVX512_BF16 DML__TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,avx512bf16")
#define dml__pairs_load(from) _mm512_loadu_ps(from)
#define dml__pairs_store(to, value) _mm512_storeu_ps(to, value)
#define dml__pairs_stream(to, value) _mm512_stream_ps(to, value)
#define dml__pairs_splat(x) _mm512_set1_ps(x)
#define dml__pairs_multiply(a, b) _mm512_mul_ps(a, b)
#define dml__pairs_add(a, b) _mm512_add_ps(a, b)
#define dml__pairs_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define dml__pairs_relu(a) dml__avx512_relu(a)
#define dml__pairs_load_some(from, mask) dml__avx512_load_some(from, mask)
#define dml__pairs_store_some(to, mask, value) dml__avx512_store_some(to, mask, value)

DML__AVX512_BF16 DML__INLINE __m512 dml__pairs_product(__m512 a, __m512 b, __m512 c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

DML__DEFINE_COMPUTE(pairs, DML__AVX512_BF16, __m512, 16, 8, dml__pairs_product)
DML__DEFINE_TILE(pairs, DML__AVX512_BF16, 8, 1, DML__MASKED)
DML__DEFINE_RUN(pairs, DML__AVX512_BF16, 16, 8, DML__MASKED)

#endif
#if defined(DML__HAS_AMX)

/* --- pairs of bf16 by AMX: 2 x 2 tiles of 16 x 16 sums --- */

/* C's rows from sums (32, 32) that AMX has stored. */
DML__AMX static void dml__finish_amx(const dml__tile *tile, ptrdiff_t column, const float *sums)
{
    const int vectors = tile->columns > 16 ? 2 : 1;
    for (int i = 0; i < tile->rows; i++, sums += 32) {
        float *c = tile->c[i] + column;
        __m512 values[2];
        for (int q = 0, j = 0; q < vectors; q++, j = tile->columns - 16) {
            __m512 value = _mm512_mul_ps(_mm512_set1_ps(tile->alpha), _mm512_loadu_ps(sums + 16 * q));
            if (tile->beta != 0)
                value = _mm512_fmadd_ps(_mm512_set1_ps(tile->beta), _mm512_loadu_ps(c + j), value);
            if (tile->bias) value = _mm512_add_ps(value, _mm512_loadu_ps(tile->bias + column + j));
            if (tile->relu) value = dml__avx512_relu(value);
            values[q] = value;
        }
        _mm512_storeu_ps(c, values[0]);
        if (vectors == 2) _mm512_storeu_ps(c + tile->columns - 16, values[1]);
    }
}

/* Rows of A are lines of k floats. Sums to which nothing is to be done are begun in C, and stored there. */
DML__AMX static void dml__run_amx(const dml__tile *tile)
{
    const bool low = tile->rows > 16, right = tile->columns > 16;
    const bool bare = tile->alpha == 1 && (tile->beta == 0 || tile->beta == 1) && !tile->bias && !tile->relu;
    const ptrdiff_t a_line = tile->k * 4, b_line = tile->b_step * 4; /* bytes */
    const ptrdiff_t c_step = tile->rows > 1 ? tile->c[1] - tile->c[0] : 0, line = bare ? c_step : 32;
    const ptrdiff_t right_at = !bare ? 16 : tile->columns - 16;
    float sums[32 * 32];
    dml__amx_configure(tile->rows < 16 ? tile->rows : 16, tile->rows > 16 ? tile->rows - 16 : 16, 16);
    for (int n = 0; n < tile->panels; n++) {
        const float *b = tile->b + n * tile->b_panel;
        float *first = bare ? tile->c[0] + (ptrdiff_t)n * tile->columns : sums;
        const bool loads = bare && tile->beta == 1;
        const dml__amx_sum at[4] = { { first, line * 4, loads },
                                     { right ? first + right_at : NULL, line * 4, loads },
                                     { low ? first + 16 * line : NULL, line * 4, loads },
                                     { low && right ? first + 16 * line + right_at : NULL, line * 4,
                                       loads } };
        dml__amx_begin(at);
        for (int p = 0; p < tile->k; p += 16, b += 16 * tile->b_step)
            dml__amx_add(tile->a[0] + p, low ? tile->a[16] + p : NULL, a_line, b,
                         right ? b + tile->columns - 16 : NULL, b_line);
        dml__amx_end(at);
        if (!bare) dml__finish_amx(tile, (ptrdiff_t)n * tile->columns, sums);
    }
    dml__amx_release();
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_bf16(dml__bf16_isa isa)
{
#if defined(DML__HAS_AMX)
    static const dml__microkernel amx = { 32, 2, 16, dml__run_amx, 256, 16, 16, 0, false };
    if (isa == DML__BF16_AMX) return &amx;
#endif
#if defined(DML__HAS_AVX512_BF16)
    static const dml__microkernel pairs = { 8, 2, 16, dml__run_pairs, 256, 0, 1, 0, false };
    if (isa != DML__BF16_WIDENED) return &pairs;
#endif
    (void)isa;
    return NULL;
}

#endif
