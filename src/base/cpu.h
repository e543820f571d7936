/* cpu.h: what the processor can do, found at run time. */
#ifndef DML_BASE_CPU_H
#define DML_BASE_CPU_H

#include "base/platform.h"

/* Instruction sets that the kernels are written for, weakest first. */
typedef enum dml_isa {
    DML_ISA_SCALAR,
    DML_ISA_NEON,
    DML_ISA_AVX2,   /* with FMA */
    DML_ISA_AVX512, /* F, VL, BW, DQ */
    DML__ISA_COUNT
} dml_isa;

/* "scalar", "neon", "avx2", "avx512" */
DML_API const char *dml_isa_name(dml_isa isa);

/* The best instruction set that this build has, the processor offers and the operating system saves. The
   environment variable DML_ISA ("scalar", "avx2", ...) lowers it; it never raises it. */
DML_API dml_isa dml_cpu_isa(void);

/* How many processors this process may run on (its affinity mask), at least 1. */
DML_API int dml_cpu_count(void);

#endif
