/* vector.h: how the memory-bound kernels are written once and compiled for each instruction set.

   A kernel's body is a DML__BODY function over dml__vf, a vector of DML__LANES floats, and
   DML__PER_ISA(name, (parameters), (arguments)) compiles `name_body` for each instruction set and defines
   `name(isa, ...)`, which picks one. Vectors are 32 bytes on x86 and 16 elsewhere; a processor with AVX-512
   runs the AVX2 code: for kernels that wait for memory wider vectors win nothing, and a third copy of each
   would cost every user's build (exponentials and their like, and loops with many instructions for what
   they read, have one by DML__PER_ISA_OR_WIDE, of the words of vector_math_wide.h); and the base is only for
   x86 processors without AVX2, so it is made small, which compiles faster. Bodies and helpers pass vectors by
   pointer, since a vector parameter of a function without the instruction set is an ABI hazard that compilers
   warn of or refuse; everything is inlined.

   a * b + c becomes an FMA where there is one, so results may differ in the last bit between instruction
   sets, but never between places in an array: each element goes through the same loop (the ends of arrays
   too, see blocks.h). */
#ifndef DML_KERNELS_VECTOR_H
#define DML_KERNELS_VECTOR_H

#include "base/cpu.h"
#include "base/simd.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* On 64-bit Windows gcc doesn't align the stack to 32 bytes (gcc's bug 54412; base/cpu.h). */
#if (defined(__x86_64__) || defined(__i386__)) &&                                                            \
    (!defined(_WIN64) || defined(__clang__) || defined(DML__HAS_AVX2))
#define DML__VECTOR_BYTES 32
#else
#define DML__VECTOR_BYTES 16
#endif
#define DML__LANES (DML__VECTOR_BYTES / 4)

typedef float dml__vf __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef int32_t dml__vi __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef uint32_t dml__vu __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef float dml__vf_memory __attribute__((vector_size(DML__VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t dml__vi_memory __attribute__((vector_size(DML__VECTOR_BYTES), aligned(4), may_alias));

/* Before a loop over a constant number of vectors: unrolls it, so that an array of them is in registers. */
#if defined(__clang__)
#define DML__UNROLLED _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DML__UNROLLED _Pragma("GCC unroll 8")
#else
#define DML__UNROLLED
#endif

/* Before a loop over an array: four rounds at a time, which takes the loop's own cost out of small bodies. */
#if defined(__clang__)
#define DML__BY_FOUR _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define DML__BY_FOUR _Pragma("GCC unroll 4")
#else
#define DML__BY_FOUR
#endif

#define DML__BODY static inline __attribute__((always_inline))

/* gcc makes FMAs of a * b + c, but not after -std=c99; without them exp, sigmoid and tanh take a
   third to a half longer. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define DML__CONTRACTS __attribute__((optimize("fp-contract=fast")))
#else
#define DML__CONTRACTS
#endif

#define DML__STRIP(...) __VA_ARGS__
#if defined(DML__EMULATED)
#define DML__FOR_TARGET(isa) DML__CONTRACTS
#else
#define DML__FOR_TARGET(isa) DML__CONTRACTS __attribute__((target(isa)))
#endif
#ifdef DML__HAS_AVX2
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    DML__COLD static void name##_base parameters                                                             \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    DML__AVX2_OR_BASE(name, parameters, arguments)
/* The same where `name_base` is there already. */
#define DML__AVX2_OR_BASE(name, parameters, arguments)                                                       \
    DML__FOR_TARGET("avx2,fma") static void name##_avx2 parameters                                           \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        if (isa >= DML_ISA_AVX2)                                                                             \
            name##_avx2 arguments;                                                                           \
        else                                                                                                 \
            name##_base arguments;                                                                           \
    }
#else /* NEON is in every AArch64, so the base is it; elsewhere the compiler makes scalars of the vectors.   \
       */
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    DML__CONTRACTS static void name(dml_isa isa, DML__STRIP parameters)                                      \
    {                                                                                                        \
        (void)isa;                                                                                           \
        name##_body arguments;                                                                               \
    }
#endif

/* As DML__PER_ISA of name##_narrow, but with AVX-512 `name_wide`, which is written with its vectors
   (vector_math_wide.h). */
#if defined(DML__HAS_AVX512)
#define DML__PER_ISA_OR_WIDE(name, parameters, arguments)                                                    \
    DML__PER_ISA(name##_narrow, parameters, arguments)                                                       \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        if (isa == DML_ISA_AVX512)                                                                           \
            name##_wide arguments;                                                                           \
        else                                                                                                 \
            name##_narrow(isa, DML__STRIP arguments);                                                        \
    }
#else
#define DML__PER_ISA_OR_WIDE(name, parameters, arguments)                                                    \
    DML__PER_ISA(name##_narrow, parameters, arguments)                                                       \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        name##_narrow(isa, DML__STRIP arguments);                                                            \
    }
#endif

#define DML__LOAD(from) (*(const dml__vf_memory *)(from))
#define DML__STORE(to, vector) (*(dml__vf_memory *)(to) = (vector))
#define DML__LOAD_INT(from) (*(const dml__vi_memory *)(from))
#define DML__STORE_INT(to, vector) (*(dml__vi_memory *)(to) = (vector))

/* Asks for what lies so many floats on, since what the processor asks for by itself ends with a page. Whole
   numbers, since there may be no array there. */
DML__BODY void dml__ask(const float *from, size_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)from + ahead * sizeof(float)));
}

/* A store past the caches, to a multiple of 16 bytes, and what makes such stores seen before any later one.
 */
#if defined(__SSE__) && DML__LANES == 8
#define DML__STREAMS 1
#define DML__STREAM_FENCE() _mm_sfence()
DML__BODY void dml__stream(float *to, const dml__vf *vector)
{
    const dml__vf v = *vector;
    const __m128 low = { v[0], v[1], v[2], v[3] }, high = { v[4], v[5], v[6], v[7] };
    _mm_stream_ps(to, low);
    _mm_stream_ps(to + 4, high);
}
#else
#define DML__STREAMS 0
#define DML__STREAM_FENCE() ((void)0)
DML__BODY void dml__stream(float *to, const dml__vf *vector)
{
    DML__STORE(to, *vector);
}
#endif

/* Lane by lane: where the mask is all ones `a`, where it is zero `b`. */
#define DML__SELECT(mask, a, b) ((dml__vf)(((mask) & (dml__vi)(a)) | (~(mask) & (dml__vi)(b))))
#define DML__SELECT_INT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

DML__BODY void dml__splat(dml__vf *vector, float value)
{
#if DML__LANES == 8
    const dml__vf all = { value, value, value, value, value, value, value, value };
#else
    const dml__vf all = { value, value, value, value };
#endif
    *vector = all;
}

/* The first `count` > 0 lanes from memory, the first of them again in the others; and back. */
DML__BODY void dml__load_some(dml__vf *vector, const float *from, size_t count)
{
    if (count >= DML__LANES) {
        *vector = DML__LOAD(from);
        return;
    }
    float lanes[DML__LANES];
    dml__splat(vector, from[0]);
    DML__STORE(lanes, *vector);
    for (size_t lane = 1; lane < count; lane++) lanes[lane] = from[lane];
    *vector = DML__LOAD(lanes);
}

DML__BODY void dml__store_some(float *to, const dml__vf *vector, size_t count)
{
    if (count >= DML__LANES) {
        DML__STORE(to, *vector);
        return;
    }
    for (size_t lane = 0; lane < count; lane++) to[lane] = (*vector)[lane];
}

DML__BODY float dml__greater(float a, float b)
{
    return b > a ? b : a;
}

/* The largest lane; none is a NaN. */
DML__BODY float dml__largest_lane(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const float low = dml__greater(dml__greater(lanes[0], lanes[1]), dml__greater(lanes[2], lanes[3]));
#if DML__LANES == 8
    return dml__greater(low,
                        dml__greater(dml__greater(lanes[4], lanes[5]), dml__greater(lanes[6], lanes[7])));
#else
    return low;
#endif
}

DML__BODY double dml__add_lanes(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const double low = ((double)lanes[0] + (double)lanes[1]) + ((double)lanes[2] + (double)lanes[3]);
#if DML__LANES == 8
    return low + (((double)lanes[4] + (double)lanes[5]) + ((double)lanes[6] + (double)lanes[7]));
#else
    return low;
#endif
}

/* All ones in the first `count` lanes, zeros in the others. */
DML__BODY void dml__first_lanes(dml__vi *mask, size_t count)
{
#if DML__LANES == 8
    const dml__vi lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    const dml__vi lane = { 0, 1, 2, 3 };
#endif
    *mask = lane < (int32_t)(count < DML__LANES ? count : DML__LANES);
}

#endif
