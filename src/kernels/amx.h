/* amx.h: AMX's tiles, as the kernels of bf16 use them: 0 to 3 are sums (16, 16), two by two, 4 and 5 lines of
   A, 6 and 7 of B, whose lines have 16 columns of pairs. */
#ifndef DML_KERNELS_AMX_H
#define DML_KERNELS_AMX_H

#include "base/cpu_bf16.h"
#include "base/platform.h"
#include "base/simd.h"

#include <stdint.h>
#include <string.h>

#if defined(DML__HAS_AMX)
#include <immintrin.h>

/* With AVX512-BF16, which every processor with AMX has. */
#define DML__AMX DML__TARGET("amx-tile,amx-bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,avx512bf16")

typedef struct dml__amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} dml__amx_config;

/* For `upper` and `lower` rows of A and of sums, of which fewer take less time, and so many pairs of k at
   once: each 1 .. 16. */
DML__AMX DML__UNUSED static void dml__amx_configure(int upper, int lower, int pairs)
{
    dml__amx_config config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        const bool low = t == 2 || t == 3 || t == 5;
        config.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? 4 * pairs : 64);
        config.rows[t] = (uint8_t)(t >= 6 ? pairs : low ? lower : upper);
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc thinks that but the first 8 bytes are read */
    _tile_loadconfig(&config);
}

DML__AMX DML__UNUSED static void dml__amx_release(void)
{
    _tile_release();
}

/* A tile of sums: where it is begun and ends, and bytes between its rows; begun with zeros or with what is
   there. At NULL there is none. */
typedef struct dml__amx_sum {
    float *at;
    ptrdiff_t line;
    bool loads;
} dml__amx_sum;

#define DML__AMX_BEGIN(number, sum)                                                                          \
    do {                                                                                                     \
        if ((sum)->at && (sum)->loads)                                                                       \
            _tile_loadd(number, (sum)->at, (sum)->line);                                                     \
        else                                                                                                 \
            _tile_zero(number);                                                                              \
    } while (0)

DML__AMX DML__INLINE void dml__amx_begin(const dml__amx_sum sums[4])
{
    DML__AMX_BEGIN(0, &sums[0]);
    DML__AMX_BEGIN(1, &sums[1]);
    DML__AMX_BEGIN(2, &sums[2]);
    DML__AMX_BEGIN(3, &sums[3]);
}

DML__AMX DML__INLINE void dml__amx_end(const dml__amx_sum sums[4])
{
    if (sums[0].at) _tile_stored(0, sums[0].at, sums[0].line);
    if (sums[1].at) _tile_stored(1, sums[1].at, sums[1].line);
    if (sums[2].at) _tile_stored(2, sums[2].at, sums[2].line);
    if (sums[3].at) _tile_stored(3, sums[3].at, sums[3].line);
}

/* Adds the products of a block of k: of A's upper and lower lines and B's left and right columns, with bytes
   between their rows. Lower lines or right columns of NULL there aren't. */
DML__AMX DML__INLINE void dml__amx_add(const float *a, const float *low_a, ptrdiff_t a_line, const float *b,
                                       const float *right_b, ptrdiff_t b_line)
{
    _tile_loadd(4, a, a_line);
    _tile_loadd(6, b, b_line);
    _tile_dpbf16ps(0, 4, 6);
    if (right_b) {
        _tile_loadd(7, right_b, b_line);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (low_a) {
        _tile_loadd(5, low_a, a_line);
        _tile_dpbf16ps(2, 5, 6);
        if (right_b) _tile_dpbf16ps(3, 5, 7);
    }
}

#undef DML__AMX_BEGIN
#endif
#endif
