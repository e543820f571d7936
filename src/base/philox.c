#ifndef DML_BASE_PHILOX_C
#define DML_BASE_PHILOX_C

#include "base/philox.h"

#include <math.h>

DML_API void dml_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void dml__random_block(const dml_random *random, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), random->stream, random->step };
    const uint32_t key[2] = { (uint32_t)random->seed, (uint32_t)(random->seed >> 32) };
    dml_philox4x32(counter, key, out);
}

DML_API uint32_t dml_random_bits(const dml_random *random, uint64_t element)
{
    uint32_t out[4];
    dml__random_block(random, element / 4, out);
    return out[element % 4];
}

DML_API float dml_random_uniform(const dml_random *random, uint64_t element)
{
    return (float)(dml_random_bits(random, element) >> 8) * (1.0f / 16777216.0f);
}

DML_API float dml_random_normal(const dml_random *random, uint64_t element)
{
    uint32_t out[4];
    dml__random_block(random, element / 2, out);
    const uint32_t pair = (uint32_t)(element % 2) * 2;
    const float u = (float)((out[pair] >> 8) + 1) * (1.0f / 16777216.0f); /* (0, 1] */
    const float v = (float)(out[pair + 1] >> 8) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318530718f * v);
}

DML_API void dml_random_permutation(const dml_random *random, int *out, int count)
{
    for (int i = 0; i < count; i++) out[i] = i;
    for (int i = count - 1; i > 0; i--) {
        const uint64_t product = (uint64_t)dml_random_bits(random, (uint64_t)i) * ((uint64_t)i + 1);
        const int j = (int)(product >> 32);
        const int swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}

#endif
