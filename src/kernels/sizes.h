/* sizes.h: arithmetic on counts of elements, for whoever cuts arrays into blocks. */
#ifndef DML_KERNELS_SIZES_H
#define DML_KERNELS_SIZES_H

#include "base/simd.h"

DML__INLINE ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

DML__INLINE ptrdiff_t dml__larger(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}

/* a >= 0, b > 0. Small products ask for twenty of these, and a division takes as long as ten comparisons. */
DML__INLINE ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return a <= b ? a > 0 : a / b + (a % b != 0);
}

DML__INLINE ptrdiff_t dml__round_up(ptrdiff_t a, ptrdiff_t b)
{
    return dml__quotient_up(a, b) * b;
}

static inline ptrdiff_t dml__common_divisor(ptrdiff_t a, ptrdiff_t b)
{
    while (b) {
        const ptrdiff_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
