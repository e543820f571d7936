/* bytes.h: little-endian numbers in files and messages, on any host. */
#ifndef DML_BASE_BYTES_H
#define DML_BASE_BYTES_H

#include "base/platform.h"

#include <string.h>

static inline void dml__store32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static inline void dml__store64(unsigned char *to, uint64_t value)
{
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static inline uint32_t dml__load32(const unsigned char *from)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value |= (uint32_t)from[i] << (8 * i);
    return value;
}

static inline uint64_t dml__load64(const unsigned char *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static inline void dml__store_f32(unsigned char *to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    dml__store32(to, bits);
}

static inline float dml__load_f32(const unsigned char *from)
{
    const uint32_t bits = dml__load32(from);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
