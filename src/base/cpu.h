/* cpu.h: what the processor can do, found at run time. */
#ifndef DML_BASE_CPU_H
#define DML_BASE_CPU_H

#include "base/platform.h"

/* Two switches leave instruction sets out of the build: DML_NO_AVX512 leaves out AVX-512, DML_NO_AVX leaves
   out AVX2 as well. On 64-bit Windows, gcc doesn't align the stack for 32-byte vectors (gcc's bug 54412), so
   that code for AVX may crash there; its builds are without, unless DML_WINDOWS_AVX is defined: then compile
   with -Wa,-muse-unaligned-vector-move (binutils 2.38 and later), which makes of every aligned move one that
   need not be. clang's builds are as everywhere. */
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__)) && !defined(DML_NO_AVX) &&               \
    !(defined(_WIN64) && !defined(__clang__) && !defined(DML_WINDOWS_AVX))
#define DML__HAS_AVX2 1
#ifndef DML_NO_AVX512
#define DML__HAS_AVX512 1
#endif
#endif

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
   environment variable DML_ISA ("scalar", "avx2", ...) lowers it; it never raises it. (dml_open refuses one
   that names no instruction set.) It takes 50 ns, most of them
   to search the environment: pools remember what it said when they were made. */
DML_API dml_isa dml_cpu_isa(void);

/* Bytes of the data caches. What the machine doesn't say is 32 KiB, 256 KiB and 0. */
typedef struct dml_caches {
    size_t l1, l2; /* one core's own, or its share */
    size_t l3;     /* what l3_cores share; 0: there is none */
    int l3_cores;  /* at least 1, and no more than this machine shows */
} dml_caches;

/* Asks the processor, or where it doesn't say the operating system; in a virtual machine that takes tens of
   microseconds, so pools remember it too. */
DML_API dml_caches dml_cpu_caches(void);

/* How many processors this process may use, at least 1: those of its affinity mask, and no more than the CPU
   quota of its cgroups has time for (versions 1 and 2; 2.5 processors are 2). Reads a few files of Linux. */
DML_API int dml_cpu_count(void);

/* The part of them for one of several ranks on this machine: dml_cpu_count() / LOCAL_WORLD_SIZE, at least 1.
   dmlrun and torchrun set that environment variable; without it, or where it is no number from 1, all.
   (dml_open refuses one that is none.) */
DML_API int dml_cpu_share(void);

#endif
