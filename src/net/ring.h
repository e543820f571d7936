/* ring.h: bytes in a ring of a power of two of them, at positions that count on for ever. */
#ifndef DML_NET_RING_H
#define DML_NET_RING_H

#include "base/platform.h"

#include <string.h>

/* Copies `bytes` bytes, at most `size`, to the ring's position `at`, or from it. */
static inline void dml__ring_put(uint8_t *ring, size_t size, size_t at, const void *from, size_t bytes)
{
    const size_t begin = at & (size - 1), rest = size - begin, first = bytes < rest ? bytes : rest;
    if (!bytes) return;
    memcpy(ring + begin, from, first);
    if (bytes > first) memcpy(ring, (const uint8_t *)from + first, bytes - first);
}

static inline void dml__ring_get(const uint8_t *ring, size_t size, size_t at, void *to, size_t bytes)
{
    const size_t begin = at & (size - 1), rest = size - begin, first = bytes < rest ? bytes : rest;
    if (!bytes) return;
    memcpy(to, ring + begin, first);
    if (bytes > first) memcpy((uint8_t *)to + first, ring, bytes - first);
}

#endif
