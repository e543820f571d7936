/* pause.h: what threads that watch each other's words need. */
#ifndef DML_BASE_PAUSE_H
#define DML_BASE_PAUSE_H

#include "base/platform.h"

/* A field, or the whole of a struct, on cache lines of its own. */
#define DML__OWN_LINE __attribute__((aligned(64)))

/* Between two looks at a word that another thread will change: 10 to 70 ns. */
static inline void dml__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__ARM_ARCH) && __ARM_ARCH >= 7)
    __asm__ __volatile__("yield" ::: "memory");
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

/* The line of that address will be written: another processor that has it may give it away now. */
static inline void dml__write_soon(const void *address)
{
#if defined(__x86_64__)
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)address));
#else
    __builtin_prefetch(address, 1);
#endif
}

#endif
