/* bytes.h: numbers as little-endian bytes, at any address, for files and wires. */
#ifndef DML_BASE_BYTES_H
#define DML_BASE_BYTES_H

#include "base/platform.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define DML__BYTES_AS(type, name)                                                                            \
    static inline type dml__load##name(const void *from)                                                     \
    {                                                                                                        \
        type value;                                                                                          \
        memcpy(&value, from, sizeof value);                                                                  \
        return value;                                                                                        \
    }                                                                                                        \
    static inline void dml__store##name(void *to, type value)                                                \
    {                                                                                                        \
        memcpy(to, &value, sizeof value);                                                                    \
    }
DML__BYTES_AS(uint16_t, 16)
DML__BYTES_AS(uint32_t, 32)
DML__BYTES_AS(uint64_t, 64)
#undef DML__BYTES_AS
#else
static inline uint16_t dml__load16(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint16_t)(b[0] | (unsigned)b[1] << 8);
}

static inline uint32_t dml__load32(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t dml__load64(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint64_t)dml__load32(b) | (uint64_t)dml__load32(b + 4) << 32;
}

static inline void dml__store16(void *to, uint16_t value)
{
    unsigned char *b = (unsigned char *)to;
    b[0] = (unsigned char)value;
    b[1] = (unsigned char)(value >> 8);
}

static inline void dml__store32(void *to, uint32_t value)
{
    unsigned char *b = (unsigned char *)to;
    b[0] = (unsigned char)value;
    b[1] = (unsigned char)(value >> 8);
    b[2] = (unsigned char)(value >> 16);
    b[3] = (unsigned char)(value >> 24);
}

static inline void dml__store64(void *to, uint64_t value)
{
    unsigned char *b = (unsigned char *)to;
    dml__store32(b, (uint32_t)value);
    dml__store32(b + 4, (uint32_t)(value >> 32));
}

#endif

static inline float dml__load_f32(const void *from)
{
    const uint32_t bits = dml__load32(from);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void dml__store_f32(void *to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    dml__store32(to, bits);
}

/* Whether memory has numbers as files and wires do. Compilers know the answer. */
static inline bool dml__little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

/* Reverses the bytes of each of `count` numbers of `width` bytes; `to` and `from` may be the same. */
static inline void dml__swap_bytes(void *to, const void *from, size_t count, size_t width)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    for (; count > 0; count--, t += width, f += width)
        for (size_t low = 0; low < (width + 1) / 2; low++) {
            const unsigned char kept = f[low];
            t[low] = f[width - 1 - low];
            t[width - 1 - low] = kept;
        }
}

#endif
