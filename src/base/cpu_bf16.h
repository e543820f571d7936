/* cpu_bf16.h: which instructions for bf16 products the processor has. */
#ifndef DML_BASE_CPU_BF16_H
#define DML_BASE_CPU_BF16_H

#include "base/cpu.h"

/* gcc 11 and clang 12 are the first that compile both; leave to use AMX is Linux's to give. DML_NO_AVX512
   leaves these out too. */
#if defined(DML__HAS_AVX512) && defined(__x86_64__) &&                                                       \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define DML__HAS_AVX512_BF16 1
#if defined(__linux__)
#define DML__HAS_AMX 1
#endif
#endif

typedef enum dml__bf16_isa {
    DML__BF16_WIDENED, /* none: bf16 is widened to f32 */
    DML__BF16_AVX512,  /* AVX512-BF16: dot products of pairs */
    DML__BF16_AMX /* AMX-TILE and AMX-BF16: 16 x 16 tiles; with AVX512-BF16, as on every processor that has
                     them */
} dml__bf16_isa;

/* The best of them, where `isa` is AVX-512, and the environment variable DML_ISA doesn't ask for that alone
   ("avx512"). AVX512-BF16 of Intel's, which is slower than widening, has to be asked for ("avx512_bf16").
   Linux is asked for leave to use AMX's registers, once for the process. */
DML__LOCAL dml__bf16_isa dml__cpu_bf16(dml_isa isa);

#endif
