#ifndef DML_KERNELS_MICROKERNEL_C
#define DML_KERNELS_MICROKERNEL_C

#include "kernels/microkernel.h"

#include "kernels/microkernel_body.h"

DML__DEFINE_COMPUTE(plain, , dml__v4, 4, 4, dml__plain_fma)

static void dml__run_plain(const dml__tile *tile)
{
    switch (DML__TILE_CODE(tile->rows, tile->columns / 4)) {
        DML__TILE_CASES(plain, 1)
        DML__TILE_CASES(plain, 2)
        DML__TILE_CASES(plain, 3)
        DML__TILE_CASES(plain, 4)
        DML__TILE_THIN_CASES(plain)
    }
}

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one of A take 15 of 16 registers. */
DML__DEFINE_COMPUTE(avx2, DML__AVX2, __m256, 8, 6, dml__avx2_fma)

DML__AVX2 static void dml__run_avx2(const dml__tile *tile)
{
    switch (DML__TILE_CODE(tile->rows, tile->columns / 8)) {
        DML__TILE_CASES(avx2, 1)
        DML__TILE_CASES(avx2, 2)
        DML__TILE_CASES(avx2, 3)
        DML__TILE_CASES(avx2, 4)
        DML__TILE_CASES(avx2, 5)
        DML__TILE_CASES(avx2, 6)
        DML__TILE_THIN_CASES(avx2)
    }
}

#endif
#if defined(DML__HAS_AVX512)

/* 8 x 2 accumulators; more rows would need more pointers than there are registers. */
DML__DEFINE_COMPUTE(avx512, DML__AVX512, __m512, 16, 8, dml__avx512_fma)

DML__AVX512 static void dml__run_avx512(const dml__tile *tile)
{
    switch (DML__TILE_CODE(tile->rows, tile->columns / 16)) {
        DML__TILE_CASES(avx512, 1)
        DML__TILE_CASES(avx512, 2)
        DML__TILE_CASES(avx512, 3)
        DML__TILE_CASES(avx512, 4)
        DML__TILE_CASES(avx512, 5)
        DML__TILE_CASES(avx512, 6)
        DML__TILE_CASES(avx512, 7)
        DML__TILE_CASES(avx512, 8)
        DML__TILE_THIN_CASES(avx512)
    }
}

#endif
#if defined(__aarch64__)

DML__DEFINE_COMPUTE(neon, , float32x4_t, 4, 8, dml__neon_fma)

static void dml__run_neon(const dml__tile *tile)
{
    switch (DML__TILE_CODE(tile->rows, tile->columns / 4)) {
        DML__TILE_CASES(neon, 1)
        DML__TILE_CASES(neon, 2)
        DML__TILE_CASES(neon, 3)
        DML__TILE_CASES(neon, 4)
        DML__TILE_CASES(neon, 5)
        DML__TILE_CASES(neon, 6)
        DML__TILE_CASES(neon, 7)
        DML__TILE_CASES(neon, 8)
        DML__TILE_THIN_CASES(neon)
    }
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa)
{
    (void)isa;
    static const dml__microkernel plain = { 4, 2, 4, DML__THIN_ROWS, DML__THIN_VECTORS, dml__run_plain, 0 };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = {
        8, 2, 16, DML__THIN_ROWS, DML__THIN_VECTORS, dml__run_avx512, 0
    };
    if (isa == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, DML__THIN_ROWS, DML__THIN_VECTORS, dml__run_avx2, 0 };
    if (isa == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 8, 2, 4, DML__THIN_ROWS, DML__THIN_VECTORS, dml__run_neon, 0 };
    if (isa == DML_ISA_NEON) return &neon;
#endif
    return &plain;
}

#endif
