#ifndef DML_KERNELS_NORM_LOOPS_C
#define DML_KERNELS_NORM_LOOPS_C

#include "kernels/norm_loops.h"

#include "kernels/blocks.h"
#include "kernels/vector_math_wide.h"

#define DML__NORM_NEAR ((size_t)128)  /* columns of rows that are short enough to go down them in strips */
#define DML__NORM_CHUNK ((size_t)128) /* rows summed in float */
#define DML__NORM_FEW ((size_t)16)    /* and those of long rows that are read together */
#define DML__NORM_VECTORS 4           /* of AVX-512 side by side */

/* ---- two sums of each column ---- */

DML__BODY void dml__norm_pass(const dml__norm_gate *gate, size_t c, const dml__vf *distance, dml__vf *dy)
{
    const dml__vi zero = { 0 };
    const dml__vf y = DML__LOAD(gate->shift + c) + DML__LOAD(gate->factor + c) * *distance;
    *dy = (dml__vf)((dml__vi)*dy & ((y > 0.0f) | (zero + gate->open)));
}

DML__BODY float dml__norm_pass_one(const dml__norm_gate *gate, size_t c, float distance, float dy)
{
    const float y = gate->shift[c] + gate->factor[c] * distance;
    return y > 0 || gate->open ? dy : 0;
}

/* a += x - center, b += (x - center)^2; or, where there is a dy, a += dy, b += dy (x - center), the vectors
   of column c. */
DML__BODY void dml__norm_add(bool backward, const dml__norm_gate *gate, size_t c, dml__vf *a, dml__vf *b,
                             const dml__vf *center, const float *x, const float *dy)
{
    const dml__vf distance = DML__LOAD(x) - *center;
    dml__vf first = distance;
    if (backward) {
        first = DML__LOAD(dy);
        dml__norm_pass(gate, c, &distance, &first);
    }
    *a += first;
    *b += first * distance;
}

DML__BODY void dml__norm_add_lanes(double *sum, const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    for (int lane = 0; lane < DML__LANES; lane++) sum[lane] += (double)lanes[lane];
}

/* Four vectors of columns over a chunk of rows, their sums in registers. */
DML__BODY void dml__norm_strip(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf c0 = DML__LOAD(m->center + c), c1 = DML__LOAD(m->center + c + DML__LANES);
    const dml__vf c2 = DML__LOAD(m->center + c + 2 * DML__LANES);
    const dml__vf c3 = DML__LOAD(m->center + c + 3 * DML__LANES);
    dml__vf a0, a1, a2, a3, b0, b1, b2, b3;
    dml__splat(&a0, 0);
    a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride) {
        dml__norm_add(backward, &gate, c, &a0, &b0, &c0, x, dy);
        dml__norm_add(backward, &gate, c + DML__LANES, &a1, &b1, &c1, x + DML__LANES, dy + DML__LANES);
        dml__norm_add(backward, &gate, c + 2 * DML__LANES, &a2, &b2, &c2, x + 2 * DML__LANES,
                      dy + 2 * DML__LANES);
        dml__norm_add(backward, &gate, c + 3 * DML__LANES, &a3, &b3, &c3, x + 3 * DML__LANES,
                      dy + 3 * DML__LANES);
    }
    double *first = m->first + c, *second = m->second + c;
    dml__norm_add_lanes(first, &a0);
    dml__norm_add_lanes(first + DML__LANES, &a1);
    dml__norm_add_lanes(first + 2 * DML__LANES, &a2);
    dml__norm_add_lanes(first + 3 * DML__LANES, &a3);
    dml__norm_add_lanes(second, &b0);
    dml__norm_add_lanes(second + DML__LANES, &b1);
    dml__norm_add_lanes(second + 2 * DML__LANES, &b2);
    dml__norm_add_lanes(second + 3 * DML__LANES, &b3);
}

DML__BODY void dml__norm_vector(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf center = DML__LOAD(m->center + c);
    dml__vf a, b;
    dml__splat(&a, 0);
    b = a;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride)
        dml__norm_add(backward, &gate, c, &a, &b, &center, x, dy);
    dml__norm_add_lanes(m->first + c, &a);
    dml__norm_add_lanes(m->second + c, &b);
}

DML__BODY void dml__norm_column(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    float a = 0, b = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float distance = m->x[r * m->stride + c] - m->center[c];
        float value = distance;
        if (backward) value = dml__norm_pass_one(&m->gate, c, distance, m->dy[r * m->stride + c]);
        a += value;
        b += value * distance;
    }
    m->first[c] += (double)a;
    m->second[c] += (double)b;
}

DML__BODY void dml__norm_strips(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    size_t c = 0;
    for (; c + 4 * DML__LANES <= m->width; c += 4 * DML__LANES) dml__norm_strip(backward, m, c, begin, rows);
    for (; c + DML__LANES <= m->width; c += DML__LANES) dml__norm_vector(backward, m, c, begin, rows);
    for (; c < m->width; c++) dml__norm_column(backward, m, c, begin, rows);
}

/* Long rows are read from end to end, which memory does best. */
DML__BODY void dml__norm_rows(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    const dml__norm_gate gate = m->gate;
    float a[DML__NORM_MOST], b[DML__NORM_MOST];
    for (size_t c = 0; c < m->width; c++) a[c] = b[c] = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float *x = m->x + r * m->stride, *dy = backward ? m->dy + r * m->stride : x;
        size_t c = 0;
        for (; c + DML__LANES <= m->width; c += DML__LANES) {
            const dml__vf center = DML__LOAD(m->center + c);
            dml__vf sum = DML__LOAD(a + c), product = DML__LOAD(b + c);
            dml__norm_add(backward, &gate, c, &sum, &product, &center, x + c, dy + c);
            DML__STORE(a + c, sum);
            DML__STORE(b + c, product);
        }
        for (; c < m->width; c++) {
            const float distance = x[c] - m->center[c];
            const float value = backward ? dml__norm_pass_one(&gate, c, distance, dy[c]) : distance;
            a[c] += value;
            b[c] += value * distance;
        }
    }
    for (size_t c = 0; c < m->width; c++) {
        m->first[c] += (double)a[c];
        m->second[c] += (double)b[c];
    }
}

DML__BODY void dml__norm_any(bool backward, const dml__norm_matrix *m)
{
    for (size_t begin = 0; begin < m->rows; begin += DML__NORM_CHUNK) {
        const size_t rows = dml__minimum(DML__NORM_CHUNK, m->rows - begin);
        if (m->stride <= DML__NORM_NEAR)
            dml__norm_strips(backward, begin, rows, m);
        else
            dml__norm_rows(backward, begin, rows, m);
    }
}

DML__BODY void dml__norm_moments_narrow_body(const dml__norm_matrix *m)
{
    dml__norm_any(false, m);
}

DML__BODY void dml__norm_products_narrow_body(const dml__norm_matrix *m)
{
    dml__norm_any(true, m);
}

#if defined(DML__HAS_AVX512)

/* Of `count` vectors of columns over a part of a chunk, `inside` of the last ones; a and b are added to. */
DML__AVX512 DML__INLINE void dml__norm_strip_wide(bool backward, int count, unsigned inside,
                                                  const dml__norm_matrix *m, size_t c, size_t begin,
                                                  size_t rows, float *a, float *b)
{
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const unsigned open = m->gate.open ? inside : 0;
    const size_t stride = m->stride;
    __m512 center[DML__NORM_VECTORS], factor[DML__NORM_VECTORS], shift[DML__NORM_VECTORS];
    __m512 first[DML__NORM_VECTORS], second[DML__NORM_VECTORS];
    DML__UNROLL
    for (int v = 0; v < count; v++) {
        center[v] = dml__avx512_load_some(m->center + c + v * DML__WIDE_LANES, inside);
        if (backward) factor[v] = dml__avx512_load_some(m->gate.factor + c + v * DML__WIDE_LANES, inside);
        if (backward) shift[v] = dml__avx512_load_some(m->gate.shift + c + v * DML__WIDE_LANES, inside);
        first[v] = _mm512_loadu_ps(a + v * DML__WIDE_LANES);
        second[v] = _mm512_loadu_ps(b + v * DML__WIDE_LANES);
    }
    for (size_t r = 0; r < rows; r++, x += stride, dy += stride) {
        DML__UNROLL
        for (int v = 0; v < count; v++) {
            const __m512 distance = dml__avx512_load_some(x + v * DML__WIDE_LANES, inside) - center[v];
            __m512 value = distance;
            if (backward) {
                const __m512 y = _mm512_fmadd_ps(factor[v], distance, shift[v]);
                const unsigned counts = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ) | open;
                value = dml__avx512_load_some(dy + v * DML__WIDE_LANES, counts & inside);
            }
            first[v] = first[v] + value;
            second[v] = _mm512_fmadd_ps(value, distance, second[v]);
        }
    }
    DML__UNROLL
    for (int v = 0; v < count; v++) {
        _mm512_storeu_ps(a + v * DML__WIDE_LANES, first[v]);
        _mm512_storeu_ps(b + v * DML__WIDE_LANES, second[v]);
    }
}

DML__AVX512 DML__INLINE void dml__norm_add_sums(size_t width, const float *from, double *sum)
{
    size_t c = 0;
    for (; c + DML__WIDE_LANES <= width; c += DML__WIDE_LANES)
        for (size_t lane = c; lane < c + DML__WIDE_LANES; lane++) sum[lane] += (double)from[lane];
    for (; c < width; c++) sum[c] += (double)from[c];
}

/* Long rows are read a few at a time, which memory does best. */
DML__AVX512 DML__INLINE void dml__norm_sum_wide(bool backward, const dml__norm_matrix *m)
{
    const size_t strip = DML__NORM_VECTORS * DML__WIDE_LANES;
    const size_t part = m->stride <= DML__NORM_NEAR ? DML__NORM_CHUNK : DML__NORM_FEW;
    float a[DML__NORM_MOST], b[DML__NORM_MOST];
    for (size_t begin = 0, end; begin < m->rows; begin = end) {
        end = dml__minimum(begin + DML__NORM_CHUNK, m->rows);
        for (size_t c = 0; c < m->width; c += DML__WIDE_LANES) {
            _mm512_storeu_ps(a + c, _mm512_setzero_ps());
            _mm512_storeu_ps(b + c, _mm512_setzero_ps());
        }
        for (size_t row = begin; row < end; row += part) {
            const size_t rows = dml__minimum(part, end - row);
            size_t c = 0;
            for (; c + strip <= m->width; c += strip)
                dml__norm_strip_wide(backward, DML__NORM_VECTORS, 0xffff, m, c, row, rows, a + c, b + c);
            for (; c < m->width; c += DML__WIDE_LANES)
                dml__norm_strip_wide(backward, 1, dml__wide_first(m->width - c), m, c, row, rows, a + c,
                                     b + c);
        }
        dml__norm_add_sums(m->width, a, m->first);
        dml__norm_add_sums(m->width, b, m->second);
    }
}

DML__WIDE_KERNEL void dml__norm_moments_wide(const dml__norm_matrix *m)
{
    dml__norm_sum_wide(false, m);
}

DML__WIDE_KERNEL void dml__norm_products_wide(const dml__norm_matrix *m)
{
    dml__norm_sum_wide(true, m);
}

#endif

DML__PER_ISA_OR_WIDE(dml__norm_moments, (const dml__norm_matrix *m), (m))
DML__PER_ISA_OR_WIDE(dml__norm_products, (const dml__norm_matrix *m), (m))

DML__LOCAL void dml__norm_sum(dml_isa isa, const dml__norm_matrix *m)
{
    if (m->dy)
        dml__norm_products(isa, m);
    else
        dml__norm_moments(isa, m);
}

DML__LOCAL size_t dml__norm_strip_width(dml_isa isa)
{
    return isa == DML_ISA_AVX512 ? 64 : 4 * DML__LANES;
}

/* ---- each element from those of its place and numbers of its channel ---- */

/* Elements [at, at + rows * stride) in rows of `width`. */
DML__BODY void dml__norm_map_any(bool backward, bool adds, const dml__norm_map *map, size_t at, size_t rows,
                                 size_t stride, size_t width)
{
    const dml__vi zero = { 0 }, open = zero + map->open;
    const dml__norm_gate gate = { map->factor, map->shift, map->open };
    for (size_t r = 0; r < rows; r++, at += stride) {
        const float *x = map->x + at, *dy = backward ? map->dy + at : x;
        float *out = map->out + at;
        size_t c = 0;
        for (; c + DML__LANES <= width; c += DML__LANES) {
            const dml__vf distance = DML__LOAD(x + c) - DML__LOAD(map->mean + c);
            dml__vf value;
            if (backward) {
                dml__vf d = DML__LOAD(dy + c);
                dml__norm_pass(&gate, c, &distance, &d);
                value = DML__LOAD(map->base + c);
                value += DML__LOAD(map->distance + c) * distance + DML__LOAD(map->factor + c) * d;
            } else {
                value = DML__LOAD(map->shift + c) + DML__LOAD(map->factor + c) * distance;
                value = (dml__vf)((dml__vi)value & (~(value <= 0.0f) | open)); /* keeps a NaN */
            }
            if (adds) value += map->beta * DML__LOAD(out + c);
            DML__STORE(out + c, value);
        }
        for (; c < width; c++) {
            const float distance = x[c] - map->mean[c];
            float value;
            if (backward) {
                const float d = dml__norm_pass_one(&gate, c, distance, dy[c]);
                value = map->base[c];
                value += map->distance[c] * distance + map->factor[c] * d;
            } else {
                value = map->shift[c] + map->factor[c] * distance;
                if (value <= 0 && !map->open) value = 0;
            }
            if (adds) value += map->beta * out[c];
            out[c] = value;
        }
    }
}

DML__BODY void dml__norm_map_rows_narrow_body(const dml__norm_map *map, size_t at, size_t rows, size_t stride,
                                              size_t width)
{
    if (!map->dy)
        dml__norm_map_any(false, false, map, at, rows, stride, width);
    else if (map->beta == 0)
        dml__norm_map_any(true, false, map, at, rows, stride, width);
    else
        dml__norm_map_any(true, true, map, at, rows, stride, width);
}
#if defined(DML__HAS_AVX512)

DML__AVX512 DML__INLINE void dml__norm_map_wide(bool backward, bool adds, const dml__norm_map *map, size_t c,
                                                unsigned inside, size_t at)
{
    const unsigned open = map->open ? inside : 0;
    const __m512 factor = dml__avx512_load_some(map->factor + c, inside);
    const __m512 distance =
        dml__avx512_load_some(map->x + at, inside) - dml__avx512_load_some(map->mean + c, inside);
    __m512 value = _mm512_fmadd_ps(factor, distance, dml__avx512_load_some(map->shift + c, inside));
    if (backward) {
        const unsigned counts = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GT_OQ) | open;
        const __m512 dy = dml__avx512_load_some(map->dy + at, counts & inside);
        value = _mm512_fmadd_ps(dml__avx512_load_some(map->distance + c, inside), distance,
                                dml__avx512_load_some(map->base + c, inside));
        value = _mm512_fmadd_ps(factor, dy, value);
        if (adds)
            value = _mm512_fmadd_ps(_mm512_set1_ps(map->beta), dml__avx512_load_some(map->out + at, inside),
                                    value);
    } else {
        const unsigned stays =
            _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NLE_UQ) | open; /* a NaN too */
        value = _mm512_maskz_mov_ps((__mmask16)stays, value);
    }
    dml__avx512_store_some(map->out + at, inside, value);
}

DML__AVX512 DML__INLINE void dml__norm_map_all_wide(bool backward, bool adds, const dml__norm_map *map,
                                                    size_t at, size_t rows, size_t stride, size_t width)
{
    for (size_t r = 0; r < rows; r++, at += stride) {
        size_t c = 0;
        for (; c + DML__WIDE_LANES <= width; c += DML__WIDE_LANES)
            dml__norm_map_wide(backward, adds, map, c, 0xffff, at + c);
        if (c < width) dml__norm_map_wide(backward, adds, map, c, dml__wide_first(width - c), at + c);
    }
}

DML__WIDE_KERNEL void dml__norm_map_rows_wide(const dml__norm_map *map, size_t at, size_t rows, size_t stride,
                                              size_t width)
{
    if (!map->dy)
        dml__norm_map_all_wide(false, false, map, at, rows, stride, width);
    else if (map->beta == 0)
        dml__norm_map_all_wide(true, false, map, at, rows, stride, width);
    else
        dml__norm_map_all_wide(true, true, map, at, rows, stride, width);
}

#endif

DML__PER_ISA_OR_WIDE(dml__norm_map_rows,
                     (const dml__norm_map *map, size_t at, size_t rows, size_t stride, size_t width),
                     (map, at, rows, stride, width))

DML__LOCAL void dml__norm_map_part(dml_isa isa, const dml__norm_map *map, size_t at, size_t rows,
                                   size_t stride, size_t width)
{
    dml__norm_map_rows(isa, map, at, rows, stride, width);
}

#endif
