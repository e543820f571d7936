#ifndef DML_KERNELS_PACK_C
#define DML_KERNELS_PACK_C

#include "kernels/pack.h"

#include "kernels/isa_vectors.h"
#include "kernels/microkernel.h"
#include "kernels/sizes.h"

#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* to[k * width + lane] = from[lane * step + k] for 4 x 4. */
static inline void dml__transpose_4x4(const float *from, ptrdiff_t step, float *to, ptrdiff_t width)
{
#if defined(__SSE__)
    __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + step);
    __m128 r2 = _mm_loadu_ps(from + 2 * step), r3 = _mm_loadu_ps(from + 3 * step);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(to, r0);
    _mm_storeu_ps(to + width, r1);
    _mm_storeu_ps(to + 2 * width, r2);
    _mm_storeu_ps(to + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 4; lane++) to[k * width + lane] = from[lane * step + k];
#endif
}

/* The same for 2 x kc. */
static void dml__pack_pair(const float *from, ptrdiff_t step, int kc, ptrdiff_t width, float *to)
{
    int k = 0;
#if defined(__SSE__)
    for (; k + 4 <= kc; k += 4, to += 4 * width) {
        const __m128 r0 = _mm_loadu_ps(from + k), r1 = _mm_loadu_ps(from + step + k);
        const __m128 low = _mm_unpacklo_ps(r0, r1), high = _mm_unpackhi_ps(r0, r1);
        _mm_storel_pi((__m64 *)(void *)to, low);
        _mm_storeh_pi((__m64 *)(void *)(to + width), low);
        _mm_storel_pi((__m64 *)(void *)(to + 2 * width), high);
        _mm_storeh_pi((__m64 *)(void *)(to + 3 * width), high);
    }
#endif
    for (; k < kc; k++, to += width) to[0] = from[k], to[1] = from[step + k];
}

/* k's of a strip: of so many, lines of x are read whole, and what is written stays in the first cache until
   all lanes are in it. */
#define DML__PACK_STRIP 16

static void dml__pack_strip(const float *x, ptrdiff_t lane_step, int lanes, int kc, ptrdiff_t width,
                            float *out)
{
    int lane = 0;
    for (; lane + 4 <= lanes; lane += 4) {
        const float *from = x + lane * lane_step;
        int k = 0;
        for (; k + 4 <= kc; k += 4) dml__transpose_4x4(from + k, lane_step, out + k * width + lane, width);
        for (; k < kc; k++)
            for (int l = 0; l < 4; l++) out[k * width + lane + l] = from[l * lane_step + k];
    }
    if (lane + 2 <= lanes) {
        dml__pack_pair(x + lane * lane_step, lane_step, kc, width, out + lane);
        lane += 2;
    }
    for (; lane < lanes; lane++)
        for (int k = 0; k < kc; k++) out[k * width + lane] = x[lane * lane_step + k];
}

DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, ptrdiff_t width,
                                     float *out)
{
    for (int k = 0; k < kc; k += DML__PACK_STRIP, x += DML__PACK_STRIP, out += DML__PACK_STRIP * width) {
        /* as many lanes further on are mostly what comes next, and too short to be foreseen */
        for (int lane = 0; lane < lanes; lane++)
            DML__PREFETCH((const void *)((uintptr_t)x + (uintptr_t)((lanes + lane) * lane_step) * sizeof *x));
        dml__pack_strip(x, lane_step, lanes, kc - k < DML__PACK_STRIP ? kc - k : DML__PACK_STRIP, width, out);
    }
}

/* Lanes that lie side by side. A copy of a known size is a few instructions, so the copies take all of a
   vector's lanes, where there is more of the matrix behind: what is too much is written over by the next. */
static void dml__pack_lanes(const float *x, ptrdiff_t k_step, int lanes, int kc, int width, float *out)
{
    int k = 0;
    if (lanes <= 8 && lanes == width && k_step >= 8)
        for (; k < kc - 8; k++, x += k_step, out += width) memcpy(out, x, 8 * sizeof *out);
    if (lanes > 8 && lanes <= 16 && lanes == width)
        for (; k < kc; k++, x += k_step, out += width) {
            memcpy(out, x, 8 * sizeof *out);
            memcpy(out + lanes - 8, x + lanes - 8, 8 * sizeof *out);
        }
    for (; k < kc; k++, x += k_step, out += width) {
        memcpy(out, x, (size_t)lanes * sizeof *out);
        if (lanes < width) memset(out + lanes, 0, (size_t)(width - lanes) * sizeof *out);
    }
}

/* Lines come from far where there is something to pack: some are asked for ahead, short ones so many floats.
   Behind the last is mostly what is packed next. (With AVX-512 that wasn't measured: a few lines of the
   block.)
 */
#define DML__LINES_AHEAD 4
#define DML__FLOATS_AHEAD 4096

static inline ptrdiff_t dml__lines_ahead(ptrdiff_t k_step)
{
    return dml__larger(DML__LINES_AHEAD, DML__FLOATS_AHEAD / dml__larger(1, k_step));
}

#if defined(DML__HAS_AVX2)

/* 8 lanes of 4 k's, each vector two lanes four apart, so that only 4 x 4 are left to turn within its halves.
 */
DML__AVX2 DML__INLINE void dml__transpose_8x4(const float *x, ptrdiff_t lane_step, float *to, ptrdiff_t width)
{
    __m256 r[4];
    DML__UNROLL
    for (int i = 0; i < 4; i++, x += lane_step)
        r[i] =
            _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(x + 4 * lane_step), 1);
    const __m256 low = _mm256_unpacklo_ps(r[0], r[1]), low2 = _mm256_unpacklo_ps(r[2], r[3]);
    const __m256 high = _mm256_unpackhi_ps(r[0], r[1]), high2 = _mm256_unpackhi_ps(r[2], r[3]);
    _mm256_storeu_ps(to, _mm256_shuffle_ps(low, low2, 0x44));
    _mm256_storeu_ps(to + width, _mm256_shuffle_ps(low, low2, 0xee));
    _mm256_storeu_ps(to + 2 * width, _mm256_shuffle_ps(high, high2, 0x44));
    _mm256_storeu_ps(to + 3 * width, _mm256_shuffle_ps(high, high2, 0xee));
}

/* So many lanes at once; returns how many that were. */
#define DML__DEFINE_PACK_TRANSPOSED(isa, target, many)                                                       \
    target static int dml__pack_transposed_##isa(const float *x, ptrdiff_t lane_step, int lanes, int kc,     \
                                                 int width, float *out)                                      \
    {                                                                                                        \
        int lane = 0;                                                                                        \
        for (; lane + many <= lanes; lane += many, x += many * lane_step, out += many) {                     \
            int k = 0;                                                                                       \
            for (; k + 4 <= kc; k += 4) dml__transpose_##many##x4(x + k, lane_step, out + k * width, width); \
            for (; k < kc; k++)                                                                              \
                for (int l = 0; l < many; l++) out[k * width + l] = x[l * lane_step + k];                    \
        }                                                                                                    \
        return lane;                                                                                         \
    }
DML__DEFINE_PACK_TRANSPOSED(avx2, DML__AVX2, 8)

#endif
#if defined(DML__HAS_AVX512)

/* Panels of two vectors. */
DML__AVX512 static void dml__pack_panels_avx512(const float *x, ptrdiff_t k_step, ptrdiff_t panels,
                                                ptrdiff_t kc, float *out)
{
    for (ptrdiff_t k = 0; k < kc; k++, x += k_step, out += 32) {
        const float *from = x, *ahead = x + (k + DML__LINES_AHEAD < kc ? DML__LINES_AHEAD * k_step : 0);
        float *to = out;
        for (ptrdiff_t panel = 0; panel < panels; panel++, from += 32, ahead += 32, to += kc * 32) {
            const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
            DML__PREFETCH(ahead);
            DML__PREFETCH(ahead + 16);
            _mm512_storeu_ps(to, low);
            _mm512_storeu_ps(to + 16, high);
        }
    }
}

/* 16 lanes of 4 k's. Each vector takes every fourth lane, so that only 4 x 4 are left to turn within quarters
   of vectors. */
DML__AVX512 DML__INLINE void dml__transpose_16x4(const float *x, ptrdiff_t lane_step, float *to,
                                                 ptrdiff_t width)
{
    __m512 r[4];
    DML__UNROLL
    for (int i = 0; i < 4; i++, x += lane_step) {
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(x));
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + 4 * lane_step), 1);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + 8 * lane_step), 2);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(x + 12 * lane_step), 3);
    }
    const __m512 low = _mm512_unpacklo_ps(r[0], r[1]), low2 = _mm512_unpacklo_ps(r[2], r[3]);
    const __m512 high = _mm512_unpackhi_ps(r[0], r[1]), high2 = _mm512_unpackhi_ps(r[2], r[3]);
    _mm512_storeu_ps(to, _mm512_shuffle_ps(low, low2, 0x44));
    _mm512_storeu_ps(to + width, _mm512_shuffle_ps(low, low2, 0xee));
    _mm512_storeu_ps(to + 2 * width, _mm512_shuffle_ps(high, high2, 0x44));
    _mm512_storeu_ps(to + 3 * width, _mm512_shuffle_ps(high, high2, 0xee));
}

DML__DEFINE_PACK_TRANSPOSED(avx512, DML__AVX512, 16)

#endif

DML__LOCAL void dml__pack_panels(const float *x, ptrdiff_t k_step, ptrdiff_t panels, ptrdiff_t kc,
                                 ptrdiff_t width, float *out)
{
#if defined(DML__HAS_AVX512)
    if (width == 32) {
        dml__pack_panels_avx512(x, k_step, panels, kc, out);
        return;
    }
#endif
    const uintptr_t far = (uintptr_t)(dml__lines_ahead(k_step) * k_step) * sizeof *x;
    for (ptrdiff_t k = 0; k < kc; k++, x += k_step, out += width) {
        float *to = out;
        uintptr_t ahead = (uintptr_t)x + far;
        if (width >= 8 && width <= 16) /* copies of a known size are a few instructions */
            for (ptrdiff_t panel = 0; panel < panels;
                 panel++, to += kc * width, ahead += (uintptr_t)width * sizeof *x) {
                DML__PREFETCH((const void *)ahead);
                memcpy(to, x + panel * width, 8 * sizeof *to);
                memcpy(to + width - 8, x + (panel + 1) * width - 8, 8 * sizeof *to);
            }
        else if (width == DML__THREES)
            for (ptrdiff_t panel = 0; panel < panels;
                 panel++, to += kc * width, ahead += (uintptr_t)width * sizeof *x) {
                DML__PREFETCH((const void *)ahead);
                memcpy(to, x + panel * width, DML__THREES * sizeof *to);
            }
        else
            for (ptrdiff_t panel = 0; panel < panels; panel++, to += kc * width)
                memcpy(to, x + panel * width, (size_t)width * sizeof *to);
    }
}

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out)
{
    const dml__matrix *m = (const dml__matrix *)matrix;
    const float *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (m->lane_step == 1) {
        dml__pack_lanes(x, m->k_step, lanes, kc, width, out);
        return;
    }
    if (width == 1) { /* a line, for a micro-kernel that wants lines */
        memcpy(out, x, (size_t)kc * sizeof *out);
        return;
    }
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    int packed = 0;
#if defined(DML__HAS_AVX512)
    if (width > 16 && width != DML__THREES)
        packed = dml__pack_transposed_avx512(x, m->lane_step, lanes, kc, width, out);
#endif
#if defined(DML__HAS_AVX2)
    if (width > 8) /* no other instruction set's are so wide */
        packed += dml__pack_transposed_avx2(x + packed * m->lane_step, m->lane_step, lanes - packed, kc,
                                            width, out + packed);
#endif
    dml__pack_transposed(x + packed * m->lane_step, m->lane_step, lanes - packed, kc, width, out + packed);
}

DML__LOCAL void dml__pack_fours_transposed(dml_isa isa, const float *x, ptrdiff_t lane_step, int lanes,
                                           int kc, ptrdiff_t width, float *out)
{
    int lane = 0;
#if defined(DML__HAS_AVX2)
    if (isa == DML_ISA_AVX2 || isa == DML_ISA_AVX512)
        lane = dml__pack_transposed_avx2(x, lane_step, lanes, kc, (int)width, out);
#endif
    (void)isa;
    dml__pack_transposed(x + lane * lane_step, lane_step, lanes - lane, kc, width, out + lane);
}

#endif
