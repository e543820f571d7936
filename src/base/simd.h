/* simd.h: how a function is compiled for an instruction set, and four lanes of whatever the compiler has. */
#ifndef DML_BASE_SIMD_H
#define DML_BASE_SIMD_H

#include "base/cpu.h"

#include <string.h>

#define DML__INLINE static inline __attribute__((always_inline))
#if defined(DML__EMULATED)
#define DML__TARGET(isa)
#else
#define DML__TARGET(isa) __attribute__((target(isa)))
#endif

/* A function that is made small, not fast; and by gcc with the passes of -Og, which take a third of the time
   of those of -O2. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define DML__COLD __attribute__((cold, noinline, optimize("Og")))
#elif defined(__GNUC__)
#define DML__COLD __attribute__((cold, noinline))
#else
#define DML__COLD
#endif

typedef float dml__v4 __attribute__((vector_size(16)));
typedef int32_t dml__v4_mask __attribute__((vector_size(16)));
typedef uint32_t dml__v4_bits __attribute__((vector_size(16)));

DML__INLINE dml__v4 dml__plain_load(const float *from)
{
    dml__v4 value;
    memcpy(&value, from, sizeof value);
    return value;
}

DML__INLINE void dml__plain_store(float *to, dml__v4 value)
{
    memcpy(to, &value, sizeof value);
}

#endif
