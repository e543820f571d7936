/* bf16_internal.h: matrices of bf16 as factors of a product. */
#ifndef DML_KERNELS_BF16_INTERNAL_H
#define DML_KERNELS_BF16_INTERNAL_H

#include "kernels/pack.h"

#include <string.h>

/* The f32 whose upper half these bits are. */
static inline float dml__bf16_widened(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Element (lane, k) of a factor is x[lane * lane_step + k * k_step]; one of the two steps is 1. */
typedef struct dml__bf16_matrix {
    const uint16_t *x;
    ptrdiff_t lane_step, k_step, k;
} dml__bf16_matrix;

/* As f32, for a micro-kernel on f32. */
DML__LOCAL void dml__pack_widened(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  int width, float *out);

#endif
