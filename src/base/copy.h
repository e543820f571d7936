/* copy.h: bytes from one array to another. */
#ifndef DML_BASE_COPY_H
#define DML_BASE_COPY_H

#include "base/platform.h"

#include <string.h>

/* As memcpy, but by lines where the target lies 1 to 31 bytes further into its page than the source, as an
   array of the system's allocator does, which begins 16 bytes into a page, behind one that begins with a
   page, or the second of two whose length is of pages. There Zen 3 and 4 do `rep movsb`, to which the GNU C
   library (up to 2.38) leaves what is longer than 2 KiB and fits into the caches, at 2 GB/s, a twentieth of
   its speed. Source: bug 30994 of the GNU C library, and measured. */
static inline void dml__copy_bytes(void *to, const void *from, size_t bytes)
{
    enum { LINE = 64, PAGE = 4096, CLOSE = 32, SHORT = 2048, LONG = 1 << 20 };
    typedef float quarter __attribute__((vector_size(LINE / 4)));
    uint8_t *target = (uint8_t *)to;
    const uint8_t *source = (const uint8_t *)from;
    const size_t ahead = (size_t)((uintptr_t)to - (uintptr_t)from) % PAGE;
    if (bytes > SHORT && bytes < LONG && ahead > 0 && ahead < CLOSE)
        for (; bytes >= LINE; target += LINE, source += LINE, bytes -= LINE) {
            quarter a, b, c, d;
            memcpy(&a, source, sizeof a), memcpy(&b, source + 16, sizeof b);
            memcpy(&c, source + 32, sizeof c), memcpy(&d, source + 48, sizeof d);
            memcpy(target, &a, sizeof a), memcpy(target + 16, &b, sizeof b);
            memcpy(target + 32, &c, sizeof c), memcpy(target + 48, &d, sizeof d);
        }
    memcpy(target, source, bytes);
}

#endif
