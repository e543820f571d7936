#ifndef DML_KERNELS_MICROKERNEL_C
#define DML_KERNELS_MICROKERNEL_C

#include "kernels/microkernel.h"

#include "kernels/microkernel_body.h"

DML__DEFINE_COMPUTE(plain, , dml__v4, 4, 4, dml__plain_fma)

DML__DEFINE_TILES(plain, , 1)
DML__DEFINE_TILES(plain, , 2)
DML__DEFINE_TILES(plain, , 3)
DML__DEFINE_TILES(plain, , 4)

static void dml__run_plain(const dml__tile *tile)
{
    static const dml__tile_function tiles[4][DML__TILE_FORMS + 1] = {
        DML__TILES(plain, 1), DML__TILES(plain, 2), DML__TILES(plain, 3), DML__TILES(plain, 4)
    };
    dml__run_panels(tile, 4, tiles[tile->rows - 1]);
}

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one of A take 15 of 16 registers. */
DML__DEFINE_COMPUTE(avx2, DML__AVX2, __m256, 8, 6, dml__avx2_fma)

DML__DEFINE_TILES(avx2, DML__AVX2, 1)
DML__DEFINE_TILES(avx2, DML__AVX2, 2)
DML__DEFINE_TILES(avx2, DML__AVX2, 3)
DML__DEFINE_TILES(avx2, DML__AVX2, 4)
DML__DEFINE_TILES(avx2, DML__AVX2, 5)
DML__DEFINE_TILES(avx2, DML__AVX2, 6)

static void dml__run_avx2(const dml__tile *tile)
{
    static const dml__tile_function tiles[6][DML__TILE_FORMS + 1] = {
        DML__TILES(avx2, 1), DML__TILES(avx2, 2), DML__TILES(avx2, 3),
        DML__TILES(avx2, 4), DML__TILES(avx2, 5), DML__TILES(avx2, 6)
    };
    dml__run_panels(tile, 8, tiles[tile->rows - 1]);
}

#endif
#if defined(DML__HAS_AVX512)

/* 8 x 2 accumulators; more rows would need more pointers than there are registers. */
DML__DEFINE_COMPUTE(avx512, DML__AVX512, __m512, 16, 8, dml__avx512_fma)

DML__DEFINE_TILES(avx512, DML__AVX512, 1)
DML__DEFINE_TILES(avx512, DML__AVX512, 2)
DML__DEFINE_TILES(avx512, DML__AVX512, 3)
DML__DEFINE_TILES(avx512, DML__AVX512, 4)
DML__DEFINE_TILES(avx512, DML__AVX512, 5)
DML__DEFINE_TILES(avx512, DML__AVX512, 6)
DML__DEFINE_TILES(avx512, DML__AVX512, 7)
DML__DEFINE_TILES(avx512, DML__AVX512, 8)

static void dml__run_avx512(const dml__tile *tile)
{
    static const dml__tile_function tiles[8][DML__TILE_FORMS + 1] = {
        DML__TILES(avx512, 1), DML__TILES(avx512, 2), DML__TILES(avx512, 3), DML__TILES(avx512, 4),
        DML__TILES(avx512, 5), DML__TILES(avx512, 6), DML__TILES(avx512, 7), DML__TILES(avx512, 8)
    };
    dml__run_panels(tile, 16, tiles[tile->rows - 1]);
}

#endif
#if defined(__aarch64__)

DML__DEFINE_COMPUTE(neon, , float32x4_t, 4, 8, dml__neon_fma)

DML__DEFINE_TILES(neon, , 1)
DML__DEFINE_TILES(neon, , 2)
DML__DEFINE_TILES(neon, , 3)
DML__DEFINE_TILES(neon, , 4)
DML__DEFINE_TILES(neon, , 5)
DML__DEFINE_TILES(neon, , 6)
DML__DEFINE_TILES(neon, , 7)
DML__DEFINE_TILES(neon, , 8)

static void dml__run_neon(const dml__tile *tile)
{
    static const dml__tile_function tiles[8][DML__TILE_FORMS + 1] = {
        DML__TILES(neon, 1), DML__TILES(neon, 2), DML__TILES(neon, 3), DML__TILES(neon, 4),
        DML__TILES(neon, 5), DML__TILES(neon, 6), DML__TILES(neon, 7), DML__TILES(neon, 8)
    };
    dml__run_panels(tile, 4, tiles[tile->rows - 1]);
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa)
{
    (void)isa;
    static const dml__microkernel plain = { 4, 2, 4, dml__run_plain, 512, 0 };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = { 8, 2, 16, dml__run_avx512, 512, 0 };
    if (isa == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2, 512, 0 };
    if (isa == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 8, 2, 4, dml__run_neon, 512, 0 };
    if (isa == DML_ISA_NEON) return &neon;
#endif
    return &plain;
}

#endif
