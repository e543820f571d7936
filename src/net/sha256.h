/* sha256.h: SHA-256 and HMAC-SHA256, with which ranks prove to each other that they have the key. */
#ifndef DML_NET_SHA256_H
#define DML_NET_SHA256_H

#include "base/platform.h"

#define DML__SHA256_BYTES 32

typedef struct dml__sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* taken in so far */
    uint8_t block[64]; /* the last bytes % 64 of them */
} dml__sha256;

/* Source: FIPS 180-4. */
DML__LOCAL void dml__sha256_begin(dml__sha256 *hash);
DML__LOCAL void dml__sha256_add(dml__sha256 *hash, const void *data, size_t bytes);
DML__LOCAL void dml__sha256_end(dml__sha256 *hash, uint8_t digest[DML__SHA256_BYTES]);

typedef struct dml__hmac {
    dml__sha256 inner;
    uint8_t outer_pad[64];
} dml__hmac;

/* Source: RFC 2104. */
DML__LOCAL void dml__hmac_begin(dml__hmac *hmac, const void *key, size_t key_bytes);
DML__LOCAL void dml__hmac_add(dml__hmac *hmac, const void *data, size_t bytes);
DML__LOCAL void dml__hmac_end(dml__hmac *hmac, uint8_t mac[DML__SHA256_BYTES]);

/* Whether two buffers are equal, in a time that doesn't depend on where they differ. */
DML__LOCAL bool dml__equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
