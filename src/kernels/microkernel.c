#ifndef DML_KERNELS_MICROKERNEL_C
#define DML_KERNELS_MICROKERNEL_C

#include "kernels/microkernel.h"

#include "kernels/microkernel_body.h"

DML__DEFINE_COMPUTE(plain, , dml__v4, 4, 4, dml__plain_fma)
DML__DEFINE_RUN(plain, , 4, 4, DML__ONE_VECTOR)

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one of A take 15 of 16 registers. */
DML__DEFINE_COMPUTE(avx2, DML__AVX2, __m256, 8, 6, dml__avx2_fma)
DML__DEFINE_RUN(avx2, DML__AVX2, 8, 6, DML__ONE_VECTOR)
DML__DEFINE_TILE(avx2, DML__AVX2, 6, 2, DML__ASKING)
DML__DEFINE_TILE(avx2, DML__AVX2, 6, 2, DML__ASKING_PACKED)
static void dml__run_avx2_pairs(const dml__tile *tile)
{
    const bool whole = tile->rows == 6 && tile->columns == 16 && (tile->a_packed || tile->k % 4 == 0);
    if (whole && tile->ask_step > 0)
        dml__run_tiles(
            tile, tile->a_packed ? dml__tile_avx2_6x2_DML__ASKING_PACKED : dml__tile_avx2_6x2_DML__ASKING,
            tile->panels);
    else
        dml__run_avx2(tile);
}

/* 4 x 3: a tile of one vector beside those of two has too few sums, and A would be read once more for it. */
DML__DEFINE_TILE(avx2, DML__AVX2, 4, 3, DML__ANY_BELOW)
DML__DEFINE_TILE(avx2, DML__AVX2, 4, 3, DML__BY_FOURS)
DML__DEFINE_TILE(avx2, DML__AVX2, 4, 3, DML__A_PACKED)
DML__DEFINE_TILE(avx2, DML__AVX2, 4, 3, DML__ASKING)
DML__DEFINE_TILE(avx2, DML__AVX2, 4, 3, DML__ASKING_PACKED)
static void dml__run_avx2_threes(const dml__tile *tile)
{
    const bool whole = tile->rows == 4 && (tile->a_packed || tile->k % 4 == 0);
    if (whole && tile->ask_step > 0)
        dml__run_tiles(
            tile, tile->a_packed ? dml__tile_avx2_4x3_DML__ASKING_PACKED : dml__tile_avx2_4x3_DML__ASKING,
            tile->panels);
    else if (whole && tile->a_packed)
        dml__run_tiles(tile, dml__tile_avx2_4x3_DML__A_PACKED, tile->panels);
    else if (whole)
        dml__run_tiles(tile, dml__tile_avx2_4x3_DML__BY_FOURS, tile->panels);
    else
        dml__run_tiles(tile, dml__tile_avx2_4x3_DML__ANY_BELOW, 1);
}

#endif
#if defined(DML__HAS_AVX512)

/* 8 x 2 accumulators; more rows would need more pointers than there are registers. */
DML__DEFINE_COMPUTE(avx512, DML__AVX512, __m512, 16, 15, dml__avx512_fma)
DML__DEFINE_TILE(avx512, DML__AVX512, 8, 1, DML__MASKED)
DML__DEFINE_TILE(avx512, DML__AVX512, 10, 1, DML__TALL)
DML__DEFINE_TILE(avx512, DML__AVX512, 15, 1, DML__TALL)
DML__DEFINE_TILE(avx512, DML__AVX512, 14, 2, DML__HIGH)
DML__DEFINE_TILE(avx512, DML__AVX512, 14, 2, DML__A_PACKED)
DML__DEFINE_RUN(avx512, DML__AVX512, 16, 8, DML__MASKED)

/* A high tile; or its rows in two, where its columns aren't whole vectors or its k isn't in fours. */
static void dml__run_avx512_high(const dml__tile *tile)
{
    enum { HALF = DML__HIGH_ROWS / 2 };
    if (tile->columns == 32 && (tile->a_packed || (tile->a_step == 1 && tile->k % 4 == 0))) {
        const dml__tile_function run =
            tile->a_packed ? dml__tile_avx512_14x2_DML__A_PACKED : dml__tile_avx512_14x2_DML__HIGH;
        dml__run_tiles(tile, run, tile->panels);
        return;
    }
    dml__tile half = *tile;
    half.rows = HALF;
    half.a_packed = false;
    dml__run_avx512(&half);
    for (int i = 0; i < HALF; i++) half.a[i] = tile->a[HALF + i], half.c[i] = tile->c[HALF + i];
    dml__run_avx512(&half);
}

static void dml__run_avx512_any(const dml__tile *tile)
{
    if (tile->rows <= 8)
        dml__run_avx512(tile);
    else if (tile->rows == DML__HIGH_ROWS)
        dml__run_avx512_high(tile);
    else if (tile->rows == 10)
        dml__run_tiles(tile, dml__tile_avx512_10x1_DML__TALL, 1);
    else
        dml__run_tiles(tile, dml__tile_avx512_15x1_DML__TALL, 1);
}

#endif
#if defined(__aarch64__)

DML__DEFINE_COMPUTE(neon, , float32x4_t, 4, 8, dml__neon_fma)
DML__DEFINE_RUN(neon, , 4, 8, DML__ONE_VECTOR)

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_threes(dml_isa isa, ptrdiff_t columns)
{
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 4, 3, 8, dml__run_avx2_threes, 384, 0, 24, 0, true };
    if (isa == DML_ISA_AVX2 && columns % 24 == 0 && columns % 16 != 0) return &avx2;
#endif
    (void)isa, (void)columns;
    return NULL;
}

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa)
{
    (void)isa;
    static const dml__microkernel plain = { 4, 2, 4, dml__run_plain, 512, 0, 4, 0, false };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = { 8, 2, 16, dml__run_avx512_any, 512, 0, 1, 15, false };
    if (isa == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2_pairs, 384, 0, 8, 0, true };
    if (isa == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 8, 2, 4, dml__run_neon, 512, 0, 4, 0, false };
    if (isa == DML_ISA_NEON) return &neon;
#endif
    return &plain;
}

#endif
