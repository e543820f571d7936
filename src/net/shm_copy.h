/* shm_copy.h: how bytes get into a ring that another processor reads. */
#ifndef DML_NET_SHM_COPY_H
#define DML_NET_SHM_COPY_H

#include "base/platform.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* What one processor has just written comes to the other from its cache, line by line. Where they share a
   cache that is fast. Between two parts of a chip, or two sockets, it is several times slower than memory,
   which both read ahead: then lines had better not stay in a cache. A virtual machine's processors may be
   near now and far in a moment, so whoever sends goes by the last lines that came to it from the receiver. */

/* The processor's clock, and once all that was read before is there; 0: it has none, and copies go as they
   go. */
static inline uint64_t dml__shm_ticks(void)
{
#if defined(__SSE2__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}
static inline uint64_t dml__shm_ticks_after_reads(void)
{
#if defined(__SSE2__)
    _mm_lfence();
#endif
    return dml__shm_ticks();
}

/* Of a line that comes from far, at least: 0.15 us (near ones took 50 to 100 ns, far ones 250). */
#define DML__SHM_FAR_TICKS 400
#define DML__SHM_FAR 4     /* more such lines lately than others: the other processor is far */
#define DML__SHM_PAST 2048 /* bytes of a piece at least that goes past the caches then */

/* `far` after a line that took so long. */
static inline int dml__shm_judge(int far_lines, uint64_t ticks)
{
    if (ticks < DML__SHM_FAR_TICKS) return far_lines > 0 ? far_lines - 1 : 0;
    return far_lines < 2 * DML__SHM_FAR ? far_lines + 1 : far_lines;
}

/* Copies to a place of the same alignment, past the caches as far as that is in whole lines. */
static inline void dml__shm_copy_past(uint8_t *to, const uint8_t *from, size_t bytes)
{
#if defined(__SSE2__)
    const size_t unaligned = (size_t)(0 - (uintptr_t)to) & 63, head = unaligned < bytes ? unaligned : bytes;
    memcpy(to, from, head);
    for (to += head, from += head, bytes -= head; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        const __m128i *const source = (const __m128i *)(const void *)from;
        __m128i *const target = (__m128i *)(void *)to;
        const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
        const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    memcpy(to, from, bytes);
    _mm_sfence(); /* else what says that they are there might be seen before them */
#else
    memcpy(to, from, bytes);
#endif
}

#endif
