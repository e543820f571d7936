#ifndef DML_BASE_CPU_BF16_C
#define DML_BASE_CPU_BF16_C

#include "base/cpu_bf16.h"
#include "base/cpu_internal.h"

#include <stdlib.h>
#include <string.h>
#if defined(DML__HAS_AVX512_BF16) && !defined(DML__EMULATED)
#include <cpuid.h>
#endif
#if defined(DML__HAS_AMX) && !defined(DML__EMULATED)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(DML__EMULATED)

/* A build for tests, in which plain C stands for all instructions. */
static bool dml__has_avx512_bf16(void)
{
    return true;
}

static bool dml__avx512_bf16_pays(void)
{
    return true;
}

static bool dml__has_amx(void)
{
    return true;
}

#elif defined(DML__HAS_AVX512_BF16)

static bool dml__has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

/* Intel's processors take two cycles for what others do in one: widened factors are multiplied in half the
   time there (measured on a Sapphire Rapids without AMX: 79 and 145 GFLOP/s). */
static bool dml__avx512_bf16_pays(void)
{
    return !dml__is_intel();
}

#if defined(DML__HAS_AMX)
/* Leave is the process's, and asking for it again is fine: there is nothing to remember. */
static bool dml__may_use_amx(void)
{
    enum { ARCH_REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool dml__has_amx(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && dml__may_use_amx();
}
#else
static bool dml__has_amx(void)
{
    return false;
}
#endif

#else

static bool dml__has_avx512_bf16(void)
{
    return false;
}

static bool dml__avx512_bf16_pays(void)
{
    return false;
}

static bool dml__has_amx(void)
{
    return false;
}

#endif

DML__LOCAL dml__bf16_isa dml__cpu_bf16(dml_isa isa)
{
    const char *wanted = getenv("DML_ISA");
    const bool pairs = wanted && strcmp(wanted, "avx512_bf16") == 0;
    if (isa != DML_ISA_AVX512 || (wanted && strcmp(wanted, "avx512") == 0)) return DML__BF16_WIDENED;
    if (!dml__has_avx512_bf16()) return DML__BF16_WIDENED;
    if (dml__has_amx() && !pairs) return DML__BF16_AMX;
    return pairs || dml__avx512_bf16_pays() ? DML__BF16_AVX512 : DML__BF16_WIDENED;
}

#endif
