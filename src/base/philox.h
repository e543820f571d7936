/* philox.h: counter-based random numbers, the same on every backend, thread count and rank count. */
#ifndef DML_BASE_PHILOX_H
#define DML_BASE_PHILOX_H

#include "base/platform.h"

/* Philox4x32-10: four random words for a 128-bit counter under a 64-bit key.
   Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3. */
DML_API void dml_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* One number of a stream. A stream is named by (seed, stream, step): `stream` is the op or purpose, `step`
   the training step or epoch; `element` counts inside it. Streams 1000 to 1,000,000 are the program's:
   initial values, dropout and others of the library's draw from streams below and above, also by the same
   seed. */
typedef struct dml_random {
    uint64_t seed;
    uint32_t stream;
    uint32_t step;
} dml_random;

/* 32 random bits; uniform in [0, 1) with 24 bits; standard normal (Box-Muller, one per element). */
DML_API uint32_t dml_random_bits(const dml_random *random, uint64_t element);
DML_API float dml_random_uniform(const dml_random *random, uint64_t element);
DML_API float dml_random_normal(const dml_random *random, uint64_t element);

/* Writes a permutation of 0 .. count - 1 (Fisher-Yates, driven by the stream). */
DML_API void dml_random_permutation(const dml_random *random, int *out, int count);

#endif
