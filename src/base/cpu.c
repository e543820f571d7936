#ifndef DML_BASE_CPU_C
#define DML_BASE_CPU_C

#include "base/cpu.h"

#include "base/cpu_internal.h"
#include "base/windows.h"

#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

DML_API const char *dml_isa_name(dml_isa isa)
{
    static const char *const names[] = { "scalar", "neon", "avx2", "avx512" };
    return (unsigned)isa < DML__ISA_COUNT ? names[isa] : "?";
}

static dml_isa dml__detect_isa(void)
{
#if defined(DML__EMULATED)
    return DML_ISA_AVX512; /* a build for tests, in which plain C stands for all instructions */
#elif defined(DML__HAS_AVX2)
    /* __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers. */
    __builtin_cpu_init();
#if defined(DML__HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return DML_ISA_AVX512;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return DML_ISA_AVX2;
#elif defined(__aarch64__)
    return DML_ISA_NEON; /* part of the architecture */
#endif
    return DML_ISA_SCALAR;
}

DML_API dml_isa dml_cpu_isa(void)
{
    const dml_isa best = dml__detect_isa();
    const char *wanted = getenv("DML_ISA");
    if (!wanted) return best;
    for (int isa = 0; isa < (int)best; isa++) {
        if (isa == DML_ISA_NEON) continue; /* another processor's: nothing to lower AVX to */
        if (strcmp(wanted, dml_isa_name((dml_isa)isa)) == 0) return (dml_isa)isa;
    }
    return best;
}

DML__LOCAL bool dml__cpu_isa_known(const char **wanted)
{
    *wanted = getenv("DML_ISA");
    if (!*wanted || !**wanted) return true;
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        if (strcmp(*wanted, dml_isa_name((dml_isa)isa)) == 0) return true;
    return false;
}

DML_API int dml_cpu_count(void)
{
#if defined(_WIN32)
    /* The mask is 0 for a process in several groups of processors (of more than 64). */
    size_t mine = 0, everyones = 0;
    int count = 0;
    if (dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mine, &everyones))
        for (; mine; mine &= mine - 1) count++;
    if (count == 0) count = (int)dml__windows_GetActiveProcessorCount(0xFFFF);
    if (count > 0) return count;
#endif
#if defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
#if defined(_SC_NPROCESSORS_ONLN)
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0) return (int)online;
#endif
    return 1;
}

#endif
