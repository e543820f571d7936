#ifndef DML_KERNELS_ATTENTION_PAIR_C
#define DML_KERNELS_ATTENTION_PAIR_C

#include "kernels/attention_pair.h"

#include "kernels/vector_math.h"
#include "kernels/vector_math_wide.h"

#include <string.h>

/* ---- products ---- */

/* Of a head that is narrower than a vector. */
static void dml__attention_narrow(const dml__microkernel *kernel, dml__tile *tile, ptrdiff_t columns,
                                  float *side)
{
    const float alpha = tile->alpha, beta = tile->beta;
    float *c[DML__TILE_ROWS];
    memcpy(c, tile->c, sizeof c);
    for (int r = 0; r < tile->rows; r++) tile->c[r] = side + r * kernel->lanes;
    tile->alpha = 1;
    tile->beta = 0;
    kernel->run(tile);
    tile->alpha = alpha;
    tile->beta = beta;
    for (int r = 0; r < tile->rows; r++)
        for (ptrdiff_t j = 0; j < columns; j++) {
            const float value = alpha * side[r * kernel->lanes + j];
            c[r][j] = beta == 0 ? value : value + beta * c[r][j];
        }
}

/* A panel of B, packed when a tile first needs it, and all tiles below each other that do. */
static void dml__attention_panel(const dml__microkernel *kernel, const dml__attention_work *work,
                                 const dml__attention_product *p, ptrdiff_t k0, ptrdiff_t kc, ptrdiff_t j,
                                 ptrdiff_t columns)
{
    static const ptrdiff_t at_once[1] = { 0 };
    const ptrdiff_t lanes = kernel->lanes, width = p->of_columns     ? dml__round_up(columns, lanes)
                                                   : columns < lanes ? lanes
                                                                     : columns;
    bool packed = false;
    dml__tile tile;
    dml__tile_init(&tile);
    tile.blocks = 1;
    tile.a_at = tile.b_at = at_once;
    tile.a_step = p->a_step;
    tile.b_step = width;
    tile.columns = (int)width;
    tile.alpha = p->alpha;
    tile.beta = k0 ? 1 : p->beta;
    for (ptrdiff_t i = 0; i < p->m; i += tile.rows) {
        tile.rows = (int)dml__smaller(kernel->rows, p->m - i);
        ptrdiff_t first = dml__band_first(&p->band, i), end = dml__band_end(&p->band, i + tile.rows - 1);
        if (p->of_columns) {
            if (first >= j + columns || end <= j) continue;
            first = 0, end = kc;
        } else { /* in fours, which the micro-kernel unrolls: A is zero there */
            end = dml__smaller(kc, dml__round_up(end, 4));
            first = dml__smaller(first / 4 * 4, end);
        }
        if (!packed) dml__pack_matrix(&p->b, j, (int)columns, k0, (int)kc, (int)width, work->panel);
        packed = true;
        tile.k = (int)(end - first);
        tile.b = work->panel + first * width;
        const float *a = p->a + i * p->a_row + (k0 + first) * p->a_step;
        float *c = p->c + i * p->ldc + j;
        for (int r = 0; r < tile.rows; r++, a += p->a_row, c += p->ldc) tile.a[r] = a, tile.c[r] = c;
        if (columns < lanes && !p->of_columns)
            dml__attention_narrow(kernel, &tile, columns, work->side);
        else
            kernel->run(&tile);
    }
}

DML__LOCAL void dml__attention_multiply(const dml__microkernel *kernel, const dml__attention_work *work,
                                        const dml__attention_product *p)
{
    const ptrdiff_t lanes = kernel->lanes, full = lanes * kernel->vectors;
    for (ptrdiff_t k0 = 0, kc; k0 < p->k; k0 += kc) {
        kc = dml__smaller(DML__ATTENTION_DEPTH, p->k - k0);
        for (ptrdiff_t j = 0, columns; j < p->n; j += columns) {
            columns = p->n - j;
            if (columns > full) columns = columns < full + lanes && !p->of_columns ? lanes : full;
            dml__attention_panel(kernel, work, p, k0, kc, j, columns);
        }
    }
}

/* ---- rows of scores ---- */

/* All ones in the lanes first .. end - 1, counted from lane `at`. */
DML__BODY void dml__seen_lanes(dml__vi *mask, ptrdiff_t at, ptrdiff_t first, ptrdiff_t end)
{
#if DML__LANES == 8
    const dml__vi lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    const dml__vi lane = { 0, 1, 2, 3 };
#endif
    *mask = (lane >= (int32_t)(first - at)) & (lane < (int32_t)(end - at));
}

DML__BODY void dml__zero_lanes(float *row, ptrdiff_t from, ptrdiff_t to)
{
    const dml__vf zero = { 0 };
    for (ptrdiff_t c = from; c < to; c += DML__LANES) DML__STORE(row + c, zero);
}

DML__BODY void dml__scores_soften_narrow_body(const dml__attention_rows *at)
{
    const dml__attention_rows a = *at;
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        const ptrdiff_t first = dml__band_first(&a.band, r), end = dml__band_end(&a.band, r);
        const ptrdiff_t begin = dml__smaller(first / DML__LANES * DML__LANES, a.ld);
        float *row = a.s + r * a.ld, lanes[DML__LANES], base = a.most[r];
        a.factor[r] = 1;
        if (first >= end) {
            dml__zero_lanes(row, 0, a.ld);
            continue;
        }
        dml__vf least, most, sum = { 0 };
        dml__vi seen = { 0 };
        dml__splat(&least, -HUGE_VALF);
        most = least;
        for (ptrdiff_t c = begin; c < end; c += DML__LANES) {
            dml__seen_lanes(&seen, c, first, end);
            const dml__vf x = DML__SELECT(seen, DML__LOAD(row + c), least);
            DML__STORE(row + c, x);
            most = DML__SELECT(x > most, x, most);
        }
        DML__STORE(lanes, most);
        for (int i = 0; i < DML__LANES; i++)
            if (lanes[i] > base) base = lanes[i];
        if (a.most[r] > -HUGE_VALF && base > a.most[r]) a.factor[r] = expf(a.most[r] - base);
        a.most[r] = base;
        if (!(base > -HUGE_VALF)) base = 0;
        dml__zero_lanes(row, 0, begin);
        ptrdiff_t c = begin;
        for (; c < end; c += DML__LANES) {
            dml__vf x = DML__LOAD(row + c) - base;
            dml__vector_exp_down(&x);
            DML__STORE(row + c, x);
            sum += x;
        }
        dml__zero_lanes(row, c, a.ld);
        a.sum[r] = a.sum[r] * a.factor[r] + (float)dml__add_lanes(&sum);
    }
}
#if defined(DML__HAS_AVX512)

DML__AVX512 DML__INLINE void dml__zero_wide(float *row, ptrdiff_t from, ptrdiff_t to)
{
    for (ptrdiff_t c = from; c < to; c += DML__WIDE_LANES)
        dml__avx512_store_some(row + c, dml__wide_first((size_t)(to - c)), _mm512_setzero_ps());
}

DML__WIDE_KERNEL void dml__scores_soften_wide(const dml__attention_rows *at)
{
    const dml__attention_rows a = *at;
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        const ptrdiff_t first = dml__band_first(&a.band, r), end = dml__band_end(&a.band, r);
        float *row = a.s + r * a.ld, lanes[DML__WIDE_LANES], base = a.most[r];
        __m512 most = _mm512_set1_ps(-HUGE_VALF), sum = _mm512_setzero_ps();
        a.factor[r] = 1;
        if (first >= end) {
            dml__zero_wide(row, 0, a.ld);
            continue;
        }
        for (ptrdiff_t c = first; c < end; c += DML__WIDE_LANES) {
            const unsigned seen = dml__wide_first((size_t)(end - c));
            const __m512 x = _mm512_max_ps(dml__avx512_load_some(row + c, seen), most);
            most = _mm512_mask_blend_ps((__mmask16)seen, most, x);
        }
        _mm512_storeu_ps(lanes, most);
        const dml__vf low = DML__LOAD(lanes), high = DML__LOAD(lanes + DML__LANES);
        base = dml__greater(base, dml__greater(dml__largest_lane(&low), dml__largest_lane(&high)));
        if (a.most[r] > -HUGE_VALF && base > a.most[r]) a.factor[r] = expf(a.most[r] - base);
        a.most[r] = base;
        if (!(base > -HUGE_VALF)) base = 0;
        dml__zero_wide(row, 0, first);
        for (ptrdiff_t c = first; c < end; c += DML__WIDE_LANES) {
            const unsigned seen = dml__wide_first((size_t)(end - c));
            const __m512 x = dml__wide_exp_down(dml__avx512_load_some(row + c, seen) - base);
            dml__avx512_store_some(row + c, seen, x);
            sum = sum + _mm512_maskz_mov_ps((__mmask16)seen, x);
        }
        dml__zero_wide(row, end, a.ld);
        const dml__vf half = (dml__vf)dml__avx512_fold(sum);
        a.sum[r] = a.sum[r] * a.factor[r] + (float)dml__add_lanes(&half);
    }
}

#endif

DML__PER_ISA_OR_WIDE(dml__scores_soften, (const dml__attention_rows *at), (at))

DML__BODY void dml__scores_slope_body(const dml__attention_rows *at)
{
    const dml__attention_rows a = *at;
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        const ptrdiff_t first = dml__band_first(&a.band, r), end = dml__band_end(&a.band, r);
        const ptrdiff_t begin = dml__smaller(first / DML__LANES * DML__LANES, a.ld);
        float *row = a.s + r * a.ld, *slope = a.ds + r * a.ld;
        const float *y = a.y + r * a.step, *dy = a.dy + r * a.step, log_sum = a.log_sums[r];
        dml__vf sum = { 0 };
        dml__vi seen = { 0 };
        ptrdiff_t c = 0;
        for (; c + DML__LANES <= a.width; c += DML__LANES) sum += DML__LOAD(y + c) * DML__LOAD(dy + c);
        float level = (float)dml__add_lanes(&sum);
        for (; c < a.width; c++) level += y[c] * dy[c];
        dml__zero_lanes(row, 0, begin);
        dml__zero_lanes(slope, 0, begin);
        for (c = begin; c < end; c += DML__LANES) {
            const dml__vf none = { 0 };
            dml__seen_lanes(&seen, c, first, end);
            dml__vf x = DML__LOAD(row + c) - log_sum;
            dml__vector_exp_down(&x);
            DML__STORE(row + c, DML__SELECT(seen, x, none));
            DML__STORE(slope + c, DML__SELECT(seen, x * (DML__LOAD(slope + c) - level), none));
        }
        dml__zero_lanes(row, c, a.ld);
        dml__zero_lanes(slope, c, a.ld);
    }
}
DML__PER_ISA(dml__scores_slope, (const dml__attention_rows *at), (at))

DML__BODY void dml__scores_scale_body(const dml__attention_rows *at, float *y)
{
    const dml__attention_rows a = *at;
    for (ptrdiff_t r = 0; r < a.rows; r++) {
        float *row = y + r * a.step;
        const float factor = a.factor[r];
        ptrdiff_t c = 0;
        if (factor == 1) continue;
        for (; c + DML__LANES <= a.width; c += DML__LANES) DML__STORE(row + c, DML__LOAD(row + c) * factor);
        for (; c < a.width; c++) row[c] *= factor;
    }
}
DML__PER_ISA(dml__scores_scale, (const dml__attention_rows *at, float *y), (at, y))

DML__LOCAL void dml__attention_soften(dml_isa isa, const dml__attention_rows *rows)
{
    dml__scores_soften(isa, rows);
}

DML__LOCAL void dml__attention_slope(dml_isa isa, const dml__attention_rows *rows)
{
    dml__scores_slope(isa, rows);
}

DML__LOCAL void dml__attention_scale(dml_isa isa, const dml__attention_rows *rows, float *y)
{
    dml__scores_scale(isa, rows, y);
}

#endif
