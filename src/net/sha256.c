#ifndef DML_NET_SHA256_C
#define DML_NET_SHA256_C

#include "net/sha256.h"

#include <string.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t dml__sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t dml__rotate_right(uint32_t x, int by)
{
    return (x >> by) | (x << (32 - by));
}

static void dml__sha256_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = block + 4 * i;
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        const uint32_t s0 = dml__rotate_right(x, 7) ^ dml__rotate_right(x, 18) ^ (x >> 3);
        const uint32_t s1 = dml__rotate_right(y, 17) ^ dml__rotate_right(y, 19) ^ (y >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t s[8];
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t e1 =
            dml__rotate_right(s[4], 6) ^ dml__rotate_right(s[4], 11) ^ dml__rotate_right(s[4], 25);
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t t1 = s[7] + e1 + choice + dml__sha256_k[i] + w[i];
        const uint32_t e0 =
            dml__rotate_right(s[0], 2) ^ dml__rotate_right(s[0], 13) ^ dml__rotate_right(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + e0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

DML__LOCAL void dml__sha256_begin(dml__sha256 *hash)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, start, sizeof start);
}

DML__LOCAL void dml__sha256_add(dml__sha256 *hash, const void *data, size_t bytes)
{
    const uint8_t *in = (const uint8_t *)data;
    while (bytes) {
        const size_t used = (size_t)(hash->bytes % 64);
        const size_t take = bytes < 64 - used ? bytes : 64 - used;
        memcpy(hash->block + used, in, take);
        hash->bytes += take;
        in += take;
        bytes -= take;
        if (used + take == 64) dml__sha256_block(hash->state, hash->block);
    }
}

DML__LOCAL void dml__sha256_end(dml__sha256 *hash, uint8_t digest[DML__SHA256_BYTES])
{
    static const uint8_t padding[64] = { 0x80 };
    const uint64_t bits = hash->bytes * 8;
    const size_t used = (size_t)(hash->bytes % 64);
    dml__sha256_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    dml__sha256_add(hash, length, sizeof length);
    for (int i = 0; i < DML__SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

DML__LOCAL void dml__hmac_begin(dml__hmac *hmac, const void *key, size_t key_bytes)
{
    uint8_t padded[64] = { 0 };
    if (key_bytes > sizeof padded) {
        dml__sha256_begin(&hmac->inner);
        dml__sha256_add(&hmac->inner, key, key_bytes);
        dml__sha256_end(&hmac->inner, padded);
    } else if (key_bytes) {
        memcpy(padded, key, key_bytes);
    }
    for (int i = 0; i < 64; i++) hmac->outer_pad[i] = (uint8_t)(padded[i] ^ 0x5c);
    for (int i = 0; i < 64; i++) padded[i] ^= 0x36;
    dml__sha256_begin(&hmac->inner);
    dml__sha256_add(&hmac->inner, padded, sizeof padded);
}

DML__LOCAL void dml__hmac_add(dml__hmac *hmac, const void *data, size_t bytes)
{
    dml__sha256_add(&hmac->inner, data, bytes);
}

DML__LOCAL void dml__hmac_end(dml__hmac *hmac, uint8_t mac[DML__SHA256_BYTES])
{
    uint8_t inner[DML__SHA256_BYTES];
    dml__sha256_end(&hmac->inner, inner);
    dml__sha256_begin(&hmac->inner);
    dml__sha256_add(&hmac->inner, hmac->outer_pad, sizeof hmac->outer_pad);
    dml__sha256_add(&hmac->inner, inner, sizeof inner);
    dml__sha256_end(&hmac->inner, mac);
}

DML__LOCAL bool dml__equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++) difference = (uint8_t)(difference | (a[i] ^ b[i]));
    return difference == 0;
}

#endif
