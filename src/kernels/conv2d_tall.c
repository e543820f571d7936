#ifndef DML_KERNELS_CONV2D_TALL_C
#define DML_KERNELS_CONV2D_TALL_C

#include "kernels/conv2d_tall.h"

#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"

/* A tile of one vector loads as many rows as it multiplies, and the vector besides: 30 rows take 31 loads
   where 8 take 9, and have no latency to wait for. Ten rows of a group need one pointer and five multiples of
   their step, which never change, since an address may be a pointer and 1, 2, 4 or 8 times another register.
   So three pointers are all that moves, and what else is a register is a sum. */
#if defined(DML__HAS_AVX512)

#define DML__TALL_ROWS 10

/* p + i step in bytes, by its multiples. */
#define DML__TALL_AT(p, step, i)                                                                             \
    ((const float *)(const void *)((p) + ((i) == 0   ? 0                                                     \
                                          : (i) <= 2 ? (i)*step[0]                                           \
                                          : (i) == 4 ? 4 * step[0]                                           \
                                          : (i) == 8 ? 8 * step[0]                                           \
                                          : (i) == 6 ? 2 * step[1]                                           \
                                                     : step[(i) / 2])))

#define DML__TALL_EACH(statement)                                                                            \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int g = 0; g < groups; g++) {                                                                   \
            DML__UNROLL                                                                                      \
            for (int i = 0; i < size; i++) statement;                                                        \
        }                                                                                                    \
    }

DML__AVX512 DML__INLINE void dml__tall_compute(const dml__tall_tile *tile, const int groups, const int size,
                                               const bool narrow)
{
    __m512 sum[DML__TALL_GROUPS][DML__TALL_ROWS];
    const ptrdiff_t row = tile->row_step * (ptrdiff_t)sizeof(float);
    const ptrdiff_t a_step = tile->a_step * (ptrdiff_t)sizeof(float), b_step = tile->b_step;
    const uint32_t mask = (1u << tile->columns) - 1;
    ptrdiff_t step[5] = { row, 3 * row, 5 * row, 7 * row, 9 * row };
    DML__TALL_EACH(sum[g][i] = dml__avx512_splat(0))
    for (int t = 0; t < tile->blocks; t++) {
        const float *b = tile->b + tile->b_at[t];
        const char *a[DML__TALL_GROUPS];
        DML__UNROLL
        for (int g = 0; g < groups; g++) a[g] = (const char *)(tile->a[g] + tile->a_at[t]);
        for (int p = tile->k; p > 0; p--, b += b_step) {
            DML__UNROLL
            for (int s = 0; s < 5; s++) {
                DML__IN_ORDER(step[s]);
            }
            DML__UNROLL
            for (int g = 0; g < groups; g++) {
                DML__IN_ORDER(a[g]);
            }
            const __m512 line = narrow ? dml__avx512_load_some(b, mask) : dml__avx512_load(b);
            DML__UNROLL
            for (int g = 0; g < groups; g++) {
                DML__UNROLL
                for (int i = 0; i < size; i++)
                    sum[g][i] =
                        dml__avx512_fma(dml__avx512_splat(*DML__TALL_AT(a[g], step, i)), line, sum[g][i]);
                a[g] += a_step;
            }
        }
    }
    const ptrdiff_t c_step = tile->c_step;
    if (tile->beta != 0)
        DML__TALL_EACH(sum[g][i] =
                           dml__avx512_fma(dml__avx512_splat(tile->beta),
                                           dml__avx512_load_some(tile->c[g] + i * c_step, mask), sum[g][i]))
    if (tile->bias)
        DML__TALL_EACH(sum[g][i] = dml__avx512_add(sum[g][i], dml__avx512_load_some(tile->bias, mask)))
    if (tile->relu) DML__TALL_EACH(sum[g][i] = dml__avx512_relu(sum[g][i]))
    DML__UNROLL
    for (int g = 0; g < groups; g++) {
        float *c = tile->c[g];
        const int left_out = tile->left_out[g];
        DML__UNROLL
        for (int i = 0; i < size; i++, c += c_step)
            if (i >= left_out) dml__avx512_store_some(c, mask, sum[g][i]);
    }
}

#define DML__DEFINE_TALL(groups, size, narrow)                                                               \
    DML__AVX512 DML__ALIGNED_LOOPS static void dml__tall_##groups##x##size##_##narrow(                       \
        const dml__tall_tile *tile)                                                                          \
    {                                                                                                        \
        dml__tall_compute(tile, groups, size, narrow);                                                       \
    }
DML__DEFINE_TALL(5, 5, 0)
DML__DEFINE_TALL(3, 8, 0)
DML__DEFINE_TALL(3, 9, 0)
DML__DEFINE_TALL(3, 10, 0)
DML__DEFINE_TALL(5, 5, 1)

static void dml__tall_run(const dml__tall_tile *tile)
{
    static void (*const functions[])(const dml__tall_tile *) = { dml__tall_5x5_0, dml__tall_3x8_0,
                                                                 dml__tall_3x9_0, dml__tall_3x10_0 };
    if (tile->b_narrow)
        dml__tall_5x5_1(tile);
    else
        functions[tile->size == DML__TALL_LEAST ? 0 : tile->size - 7](tile);
}

#else

static void dml__tall_run(const dml__tall_tile *tile)
{
    (void)tile;
}

#endif

DML__LOCAL bool dml__tall_is_there(dml_isa isa)
{
#if defined(DML__HAS_AVX512)
    return isa == DML_ISA_AVX512;
#else
    return (void)isa, false;
#endif
}

/* There are groups of 5, 8, 9 and 10 rows, to be compiled: of few rows a tile has more of them. */
static int dml__tall_groups(int size)
{
    return size == DML__TALL_LEAST ? 5 : 3;
}

DML__LOCAL int dml__tall_size(ptrdiff_t rows, ptrdiff_t runs, bool b_narrow)
{
    int best = DML__TALL_LEAST;
    ptrdiff_t least = PTRDIFF_MAX;
    for (int size = best; size <= 10 && size <= rows; size = size < 8 ? 8 : size + 1) {
        const ptrdiff_t groups = runs * dml__quotient_up(rows, size), at_once = dml__tall_groups(size);
        const ptrdiff_t loads = dml__quotient_up(groups, at_once) * (at_once * size + 1); /* of a step of k */
        if (loads > least || (b_narrow && size > best)) continue;
        least = loads;
        best = size;
    }
    return best;
}

DML__LOCAL void dml__tall_add(dml__tall_tile *tile, const float *a, float *c, ptrdiff_t rows)
{
    const int size = tile->size;
    for (ptrdiff_t i = 0; i < rows; i += size) {
        const ptrdiff_t at = dml__smaller(i, rows - size);
        tile->a[tile->groups] = a + at * tile->row_step;
        tile->c[tile->groups] = c + at * tile->c_step;
        tile->left_out[tile->groups++] = (int)(i - at);
        if (tile->groups < dml__tall_groups(size)) continue;
        dml__tall_run(tile);
        tile->groups = 0;
    }
}

DML__LOCAL void dml__tall_end(dml__tall_tile *tile)
{
    const int last = tile->groups - 1;
    if (last < 0) return;
    for (int g = tile->groups; g < DML__TALL_GROUPS; g++) {
        tile->a[g] = tile->a[last];
        tile->c[g] = tile->c[last];
        tile->left_out[g] = tile->size;
    }
    dml__tall_run(tile);
    tile->groups = 0;
}

#endif
