#ifndef DML_KERNELS_ROUNDED_C
#define DML_KERNELS_ROUNDED_C

#include "kernels/rounded.h"

#include "kernels/half_internal.h"

#include <string.h>

static void dml__pack_rounded(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                              float *out)
{
    const dml__rounded_factor *f = (const dml__rounded_factor *)source;
    f->factor.pack(f->factor.source, first, lanes, k0, kc, width, out);
    dml__round_line(f->isa, f->dtype, (size_t)kc * (size_t)width, out);
}

#if defined(DML__HAS_AVX512_BF16)

/* Floats that are packed at once before they become pairs, of two k's at least. */
#define DML__PAIRS_AT_ONCE 1024

/* As pairs of bf16 of two k's, the first in the lower half; k0 and kc count pairs, and the pair of a last odd
   k has a zero. */
static void dml__pack_rounded_pairs(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                    int width, float *out)
{
    const dml__rounded_factor *f = (const dml__rounded_factor *)source;
    float wide[DML__PAIRS_AT_ONCE];
    const int most = DML__PAIRS_AT_ONCE / 2 / width;
    for (int done = 0, count; done < kc; done += count, out += count * width) {
        count = kc - done < most ? kc - done : most;
        const ptrdiff_t begin = 2 * (k0 + done), left = f->k - begin;
        const int have = left < 2 * count ? (int)left : 2 * count;
        f->factor.pack(f->factor.source, first, lanes, begin, have, width, wide);
        if (have < 2 * count) memset(wide + have * width, 0, (size_t)width * sizeof *wide);
        if (width == 1) { /* a line, whose k's are pairs as they follow each other */
            dml__narrow_line(DML_ISA_SCALAR, DML_BF16, 2 * (size_t)count, wide, (uint16_t *)(void *)out);
            continue;
        }
        for (int p = 0; p < count; p++)
            dml__pair_line((size_t)width, wide + 2 * p * width, wide + (2 * p + 1) * width, out + p * width);
    }
}

/* The factor for a micro-kernel on pairs of bf16. */
static dml__factor dml__rounded_pairs(dml__rounded_factor *rounded)
{
    const dml__factor by_floats = { dml__pack_rounded_pairs, rounded, NULL, NULL };
    if (rounded->factor.as_pairs) {
        const dml__packers *packers = rounded->factor.as_pairs;
        const dml__factor by_pairs = { packers->pack, rounded->factor.source, packers, NULL };
        return by_pairs;
    }
    if (rounded->factor.pack != dml__pack_matrix) return by_floats;
    const dml__matrix *m = (const dml__matrix *)rounded->factor.source;
    const dml__pairs_source pairs = { m->x, true, m->lane_step, m->k_step, rounded->k };
    rounded->pairs = pairs;
    return dml__factor_of_pairs(&rounded->pairs);
}

#endif

DML__LOCAL void dml__round_product(dml_pool *pool, dml_dtype dtype, const dml__product *product,
                                   dml__rounded_product *rounded)
{
    const dml__factor *factors[2] = { &product->a, &product->b };
    dml__factor *of_product[2] = { &rounded->product.a, &rounded->product.b };
    rounded->product = *product;
    for (int i = 0; i < 2; i++) {
        dml__rounded_factor *own = &rounded->factors[i];
        const dml__factor factor = { dml__pack_rounded, own, NULL, NULL };
        own->factor = *factors[i];
        own->isa = dml__pool_machine(pool).isa;
        own->dtype = dtype;
        own->k = product->k;
        *of_product[i] = factor;
    }
#if defined(DML__HAS_AVX512_BF16)
    const dml__microkernel *kernel = dtype == DML_BF16 ? dml__microkernel_bf16(dml__pool_bf16(pool)) : NULL;
    if (!kernel) return;
    rounded->product.kernel = kernel;
    rounded->product.k = product->k / 2 + product->k % 2;
    for (int i = 0; i < 2; i++) *of_product[i] = dml__rounded_pairs(&rounded->factors[i]);
#endif
}

#endif
