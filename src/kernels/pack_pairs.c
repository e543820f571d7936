#ifndef DML_KERNELS_PACK_PAIRS_C
#define DML_KERNELS_PACK_PAIRS_C

#include "kernels/pack_pairs.h"

#include "kernels/isa_vectors.h"

#if defined(DML__HAS_AVX512_BF16)

/* Pairs of k's that are turned into lines at once. */
#define DML__PAIRS_BLOCK 16

/* Bits 0 .. n - 1, of 32 at most; n may be anything. */
static inline uint32_t dml__first_bits(ptrdiff_t n)
{
    return n >= 32 ? 0xFFFFFFFFu : n <= 0 ? 0 : (1u << n) - 1;
}

/* Two vectors of floats as bf16, those of `low` in the lower half. */
DML__PAIRS_TARGET DML__INLINE __m512 dml__narrowed(__m512 low, __m512 high)
{
    return (__m512)_mm512_cvtne2ps_pbh(high, low);
}

/* A lane's k's from element `at` on, up to 32 of them, which lie side by side. */
DML__PAIRS_TARGET DML__INLINE __m512 dml__pairs_of_lane(const dml__pairs_source *s, ptrdiff_t at,
                                                        ptrdiff_t count, const bool wide)
{
    const float *x = (const float *)s->x + at;
    if (count >= 32)
        return wide ? dml__narrowed(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16))
                    : _mm512_loadu_ps((const uint16_t *)s->x + at);
    const uint32_t mask = dml__first_bits(count);
    if (!wide) return (__m512)_mm512_maskz_loadu_epi16(mask, (const uint16_t *)s->x + at);
    return dml__narrowed(_mm512_maskz_loadu_ps((__mmask16)mask, x),
                         _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16));
}

/* The pair of k and k + 1 of 16 lanes, of which those of the masks are there, and lie side by side from
   element `at` on. */
DML__PAIRS_TARGET DML__INLINE __m512 dml__pairs_of_k(const dml__pairs_source *s, ptrdiff_t at, __mmask16 even,
                                                     __mmask16 odd, const bool wide)
{
    static const uint16_t in_turn[32] = { 0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    if (!wide) {
        const uint16_t *x = (const uint16_t *)s->x + at;
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(even, x));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(odd, x + s->k_step));
        return (__m512)(low | _mm512_slli_epi32(high, 16));
    }
    const float *x = (const float *)s->x + at;
    const __m512 both =
        dml__narrowed(_mm512_maskz_loadu_ps(even, x), _mm512_maskz_loadu_ps(odd, x + s->k_step));
    return (__m512)_mm512_permutexvar_epi16((__m512i)_mm512_loadu_ps(in_turn), (__m512i)both);
}

/* Four rows of each of four quarters, which become columns: lines 4 i .. 4 i + 3 of the quarters q. */
#define DML__TURN_QUARTERS(r, i)                                                                             \
    do {                                                                                                     \
        const __m512 t0 = _mm512_unpacklo_ps(r[i], r[i + 1]), t1 = _mm512_unpackhi_ps(r[i], r[i + 1]);       \
        const __m512 t2 = _mm512_unpacklo_ps(r[i + 2], r[i + 3]),                                            \
                     t3 = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);                                            \
        r[i] = _mm512_shuffle_ps(t0, t2, 0x44);                                                              \
        r[i + 1] = _mm512_shuffle_ps(t0, t2, 0xEE);                                                          \
        r[i + 2] = _mm512_shuffle_ps(t1, t3, 0x44);                                                          \
        r[i + 3] = _mm512_shuffle_ps(t1, t3, 0xEE);                                                          \
    } while (0)

/* Quarters of rows i, i + 4, i + 8, i + 12 change places: a 4 x 4 of them is turned. */
#define DML__TURN_WHOLES(r, i)                                                                               \
    do {                                                                                                     \
        const __m512 t0 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88),                                        \
                     t1 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);                                        \
        const __m512 t2 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88),                                   \
                     t3 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);                                   \
        r[i] = _mm512_shuffle_f32x4(t0, t2, 0x88);                                                           \
        r[i + 4] = _mm512_shuffle_f32x4(t1, t3, 0x88);                                                       \
        r[i + 8] = _mm512_shuffle_f32x4(t0, t2, 0xDD);                                                       \
        r[i + 12] = _mm512_shuffle_f32x4(t1, t3, 0xDD);                                                      \
    } while (0)

/* Rows become columns. */
DML__PAIRS_TARGET DML__INLINE void dml__turn_16x16(__m512 r[16])
{
    DML__TURN_QUARTERS(r, 0);
    DML__TURN_QUARTERS(r, 4);
    DML__TURN_QUARTERS(r, 8);
    DML__TURN_QUARTERS(r, 12);
    DML__TURN_WHOLES(r, 0);
    DML__TURN_WHOLES(r, 1);
    DML__TURN_WHOLES(r, 2);
    DML__TURN_WHOLES(r, 3);
}

/* 16 x 16 of what comes in rows, turned, to `count` rows of the output. */
DML__PAIRS_TARGET DML__INLINE void dml__store_turned(__m512 r[16], int count, __mmask16 mask, ptrdiff_t step,
                                                     float *out)
{
    dml__turn_16x16(r);
    if (count >= 16) {
        DML__UNROLL
        for (int i = 0; i < 16; i++) _mm512_mask_storeu_ps(out + i * step, mask, r[i]);
        return;
    }
    __m512 rows[16];
    DML__UNROLL
    for (int i = 0; i < 16; i++) rows[i] = r[i];
    for (int i = 0; i < count; i++) _mm512_mask_storeu_ps(out + i * step, mask, rows[i]);
}

/* Of lanes whose k's lie side by side. */
DML__PAIRS_TARGET DML__INLINE void dml__panel_of_lanes(const dml__pairs_source *s, ptrdiff_t first, int lanes,
                                                       ptrdiff_t k0, int kc, int width, float *out,
                                                       const bool wide)
{
    for (int lane = 0; lane < width; lane += 16) {
        const __mmask16 mask = (__mmask16)dml__first_bits(width - lane);
        for (int k = 0; k < kc; k += DML__PAIRS_BLOCK) {
            const ptrdiff_t begin = 2 * (k0 + k), left = s->k - begin;
            __m512 r[16];
            ptrdiff_t at = (first + lane) * s->lane_step + begin;
            DML__UNROLL
            for (int l = 0; l < 16; l++, at += s->lane_step)
                r[l] = dml__pairs_of_lane(s, at, lane + l < lanes ? left : 0, wide);
            dml__store_turned(r, kc - k, mask, width, out + (ptrdiff_t)k * width + lane);
        }
    }
}

/* Of lanes that lie side by side. */
DML__PAIRS_TARGET DML__INLINE void dml__panel_of_ks(const dml__pairs_source *s, ptrdiff_t first, int lanes,
                                                    ptrdiff_t k0, int kc, int width, float *out,
                                                    const bool wide)
{
    const int whole = lanes / 16 * 16;
    const __mmask16 rest = (__mmask16)dml__first_bits(lanes - whole);
    ptrdiff_t at = 2 * k0 * s->k_step + first, left = s->k - 2 * k0;
    for (int k = 0; k < kc; k++, out += width, at += 2 * s->k_step, left -= 2) {
        const __mmask16 odd = left > 1 ? 0xFFFF : 0;
        int lane = 0;
        for (; lane < whole; lane += 16)
            _mm512_storeu_ps(out + lane, dml__pairs_of_k(s, at + lane, 0xFFFF, odd, wide));
        for (; lane < width; lane += 16) {
            const __mmask16 there = (__mmask16)(lane < lanes ? rest : 0);
            _mm512_mask_storeu_ps(out + lane, (__mmask16)dml__first_bits(width - lane),
                                  dml__pairs_of_k(s, at + lane, there, (__mmask16)(there & odd), wide));
        }
    }
}

/* The same for whole panels beside each other, `apart` floats: lines are best read from end to end. */
DML__PAIRS_TARGET DML__INLINE void dml__panels_of_ks(const dml__pairs_source *s, ptrdiff_t first,
                                                     ptrdiff_t panels, ptrdiff_t k0, int kc, int width,
                                                     ptrdiff_t apart, float *out, const bool wide)
{
    ptrdiff_t at = 2 * k0 * s->k_step + first, left = s->k - 2 * k0;
    for (int k = 0; k < kc; k++, out += width, at += 2 * s->k_step, left -= 2) {
        const __mmask16 odd = left > 1 ? 0xFFFF : 0;
        ptrdiff_t from = at;
        float *to = out;
        for (ptrdiff_t panel = 0; panel < panels; panel++, to += apart)
            for (int lane = 0; lane < width; lane += 16, from += 16)
                _mm512_storeu_ps(to + lane, dml__pairs_of_k(s, from, 0xFFFF, odd, wide));
    }
}

DML__PAIRS_TARGET DML__INLINE void dml__lines_of_lanes(const dml__pairs_source *s, ptrdiff_t first, int lanes,
                                                       ptrdiff_t k0, int kc, ptrdiff_t line, float *out,
                                                       const bool wide)
{
    for (int lane = 0; lane < lanes; lane++, out += line) {
        const ptrdiff_t at = (first + lane) * s->lane_step + 2 * k0, left = s->k - 2 * k0;
        int k = 0;
        for (; k + 16 <= kc && left - 2 * k >= 32; k += 16) {
            DML__PREFETCH((const char *)s->x + (at + 2 * k + s->lane_step) * (wide ? 4 : 2));
            if (wide) DML__PREFETCH((const float *)s->x + at + 2 * k + s->lane_step + 16);
            _mm512_storeu_ps(out + k, dml__pairs_of_lane(s, at + 2 * k, 32, wide));
        }
        for (; k < kc; k += 16)
            _mm512_mask_storeu_ps(out + k, (__mmask16)dml__first_bits(kc - k),
                                  dml__pairs_of_lane(s, at + 2 * k, left - 2 * k, wide));
    }
}

DML__PAIRS_TARGET DML__INLINE void dml__lines_of_ks(const dml__pairs_source *s, ptrdiff_t first, int lanes,
                                                    ptrdiff_t k0, int kc, ptrdiff_t line, float *out,
                                                    const bool wide)
{
    for (int k = 0; k < kc; k += DML__PAIRS_BLOCK) {
        const __mmask16 mask = (__mmask16)dml__first_bits(kc - k);
        for (int lane = 0; lane < lanes; lane += 16) {
            const ptrdiff_t begin = 2 * (k0 + k), left = s->k - begin;
            const __mmask16 there = (__mmask16)dml__first_bits(lanes - lane);
            __m512 r[16];
            ptrdiff_t at = begin * s->k_step + first + lane;
            DML__UNROLL
            for (int p = 0; p < 16; p++, at += 2 * s->k_step)
                r[p] = dml__pairs_of_k(s, at, (__mmask16)(left > 2 * p ? there : 0),
                                       (__mmask16)(left > 2 * p + 1 ? there : 0), wide);
            dml__store_turned(r, lanes - lane, mask, line, out + lane * line + k);
        }
    }
}

/* Each of the four in both types, so that the type is a constant in its loops. */
#define DML__DEFINE_PACK_PAIRS(name, last, wide)                                                             \
    DML__PAIRS_TARGET static void dml__##name##_##wide(const dml__pairs_source *s, ptrdiff_t first,          \
                                                       int lanes, ptrdiff_t k0, int kc, last, float *out)    \
    {                                                                                                        \
        dml__##name(s, first, lanes, k0, kc, step, out, wide);                                               \
    }
DML__DEFINE_PACK_PAIRS(panel_of_lanes, int step, true)
DML__DEFINE_PACK_PAIRS(panel_of_lanes, int step, false)
DML__DEFINE_PACK_PAIRS(panel_of_ks, int step, true)
DML__DEFINE_PACK_PAIRS(panel_of_ks, int step, false)
DML__DEFINE_PACK_PAIRS(lines_of_lanes, ptrdiff_t step, true)
DML__DEFINE_PACK_PAIRS(lines_of_lanes, ptrdiff_t step, false)
DML__DEFINE_PACK_PAIRS(lines_of_ks, ptrdiff_t step, true)
DML__DEFINE_PACK_PAIRS(lines_of_ks, ptrdiff_t step, false)

DML__PAIRS_TARGET static void dml__panels_of_ks_any(const dml__pairs_source *s, ptrdiff_t first,
                                                    ptrdiff_t panels, ptrdiff_t k0, int kc, int width,
                                                    ptrdiff_t apart, float *out)
{
    if (s->wide)
        dml__panels_of_ks(s, first, panels, k0, kc, width, apart, out, true);
    else
        dml__panels_of_ks(s, first, panels, k0, kc, width, apart, out, false);
}

static void dml__pack_pairs_panels(const void *source, ptrdiff_t first, ptrdiff_t panels, ptrdiff_t k0,
                                   int kc, int width, ptrdiff_t apart, float *out)
{
    dml__panels_of_ks_any((const dml__pairs_source *)source, first, panels, k0, kc, width, apart, out);
}

static void dml__pack_pairs_panel(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  int width, float *out)
{
    const dml__pairs_source *s = (const dml__pairs_source *)source;
    if (s->lane_step == 1)
        (s->wide ? dml__panel_of_ks_true : dml__panel_of_ks_false)(s, first, lanes, k0, kc, width, out);
    else
        (s->wide ? dml__panel_of_lanes_true : dml__panel_of_lanes_false)(s, first, lanes, k0, kc, width, out);
}

static void dml__pack_pairs_lines(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  ptrdiff_t line, float *out)
{
    const dml__pairs_source *s = (const dml__pairs_source *)source;
    if (s->lane_step == 1)
        (s->wide ? dml__lines_of_ks_true : dml__lines_of_ks_false)(s, first, lanes, k0, kc, line, out);
    else
        (s->wide ? dml__lines_of_lanes_true : dml__lines_of_lanes_false)(s, first, lanes, k0, kc, line, out);
}

DML__LOCAL dml__factor dml__factor_of_pairs(const dml__pairs_source *source)
{
    static const dml__packers along = { dml__pack_pairs_panel, dml__pack_pairs_lines, NULL };
    static const dml__packers across = { dml__pack_pairs_panel, dml__pack_pairs_lines,
                                         dml__pack_pairs_panels };
    const dml__factor factor = { dml__pack_pairs_panel, source, source->lane_step == 1 ? &across : &along,
                                 NULL };
    return factor;
}

#endif
#endif
