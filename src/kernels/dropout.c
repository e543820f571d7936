#ifndef DML_KERNELS_DROPOUT_C
#define DML_KERNELS_DROPOUT_C

#include "kernels/dropout.h"

#include "kernels/blocks.h"
#include "kernels/isa_vectors.h"
#include "thread/pool_internal.h"

#include <string.h>

typedef struct dml__dropout_job {
    dml_isa isa;
    size_t n;
    const dml_random *random;
    uint64_t first;
    uint32_t threshold;
    float scale, beta;
    const float *x;
    float *y;
} dml__dropout_job;

enum { DML__PHILOX_BLOCKS = 8, DML__PHILOX_WORDS = 4 * DML__PHILOX_BLOCKS };

/* The numbers of eight blocks, the counters of which don't carry into their upper halves. A block's ten
   rounds wait for each other; those of eight fill vectors, at a tenth of the time. */
#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
DML__TARGET("avx2,fma")
static void dml__philox_avx2(const dml_random *random, uint64_t block, uint32_t out[DML__PHILOX_WORDS])
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i by0 = _mm256_set1_epi32((int)0xD2511F53u), by2 = _mm256_set1_epi32((int)0xCD9E8D57u);
    __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)block), lane);
    __m256i c1 = _mm256_set1_epi32((int)(uint32_t)(block >> 32));
    __m256i c2 = _mm256_set1_epi32((int)random->stream), c3 = _mm256_set1_epi32((int)random->step);
    uint32_t k0 = (uint32_t)random->seed, k1 = (uint32_t)(random->seed >> 32);
    for (int round = 0; round < 10; round++) {
        /* products of the even lanes, and of the odd ones, which are shifted to where multiplying looks */
        const __m256i even0 = _mm256_mul_epu32(c0, by0),
                      odd0 = _mm256_mul_epu32(_mm256_srli_epi64(c0, 32), by0);
        const __m256i even2 = _mm256_mul_epu32(c2, by2),
                      odd2 = _mm256_mul_epu32(_mm256_srli_epi64(c2, 32), by2);
        const __m256i high0 = _mm256_blend_epi32(_mm256_srli_epi64(even0, 32), odd0, 0xAA);
        const __m256i high2 = _mm256_blend_epi32(_mm256_srli_epi64(even2, 32), odd2, 0xAA);
        c0 = _mm256_xor_si256(_mm256_xor_si256(high2, c1), _mm256_set1_epi32((int)k0));
        c1 = _mm256_blend_epi32(even2, _mm256_slli_epi64(odd2, 32), 0xAA);
        c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
        c3 = _mm256_blend_epi32(even0, _mm256_slli_epi64(odd0, 32), 0xAA);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    /* From a vector of each word to one block behind the other. */
    const __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpackhi_epi32(c0, c1);
    const __m256i c = _mm256_unpacklo_epi32(c2, c3), d = _mm256_unpackhi_epi32(c2, c3);
    const __m256i b0 = _mm256_unpacklo_epi64(a, c), b1 = _mm256_unpackhi_epi64(a, c);
    const __m256i b2 = _mm256_unpacklo_epi64(b, d), b3 = _mm256_unpackhi_epi64(b, d);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute2x128_si256(b0, b1, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(out + 8), _mm256_permute2x128_si256(b2, b3, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_permute2x128_si256(b0, b1, 0x31));
    _mm256_storeu_si256((__m256i *)(void *)(out + 24), _mm256_permute2x128_si256(b2, b3, 0x31));
}
#endif

static void dml__philox_blocks(dml_isa isa, const dml_random *random, uint64_t block,
                               uint32_t out[DML__PHILOX_WORDS])
{
#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
    if (isa >= DML_ISA_AVX2 && (uint32_t)block <= UINT32_MAX - DML__PHILOX_BLOCKS) {
        dml__philox_avx2(random, block, out);
        return;
    }
#endif
    (void)isa;
    const uint32_t key[2] = { (uint32_t)random->seed, (uint32_t)(random->seed >> 32) };
    for (int b = 0; b < DML__PHILOX_BLOCKS; b++) {
        const uint64_t at = block + (uint64_t)b;
        const uint32_t counter[4] = { (uint32_t)at, (uint32_t)(at >> 32), random->stream, random->step };
        dml_philox4x32(counter, key, out + 4 * b);
    }
}

/* y = what the numbers keep of x, scaled, + beta y, of as many elements as there are numbers. */
DML__BODY void dml__dropout_keep_body(const dml__dropout_job *job, const uint32_t *bits, const float *x,
                                      float *y)
{
    dml__vi threshold = { 0 };
    threshold = threshold + (int32_t)(job->threshold ^ 0x80000000u); /* compared as signed numbers */
    for (int i = 0; i < DML__PHILOX_WORDS; i += DML__LANES) {
        dml__vi word = DML__LOAD_INT((const int32_t *)(const void *)(bits + i));
        word ^= INT32_MIN;
        const dml__vf kept = (dml__vf)((dml__vi)(DML__LOAD(x + i) * job->scale) & (word >= threshold));
        DML__STORE(y + i, job->beta == 0 ? kept : kept + job->beta * DML__LOAD(y + i));
    }
}
DML__PER_ISA(dml__dropout_keep, (const dml__dropout_job *job, const uint32_t *bits, const float *x, float *y),
             (job, bits, x, y))

/* A block of Philox is four elements; so is a task's beginning a multiple of four. A rest goes through arrays
   that are long enough. */
static void dml__dropout_task(void *argument, int task, int worker)
{
    const dml__dropout_job *job = (const dml__dropout_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK, end = dml__minimum(begin + DML__BLOCK, job->n);
    uint32_t bits[DML__PHILOX_WORDS];
    float rest_x[DML__PHILOX_WORDS], rest_y[DML__PHILOX_WORDS];
    (void)worker;
    for (size_t i = begin; i < end; i += DML__PHILOX_WORDS) {
        const size_t count = dml__minimum(DML__PHILOX_WORDS, end - i);
        dml__philox_blocks(job->isa, job->random, (job->first + i) / 4, bits);
        if (count == DML__PHILOX_WORDS) {
            dml__dropout_keep(job->isa, job, bits, job->x + i, job->y + i);
            continue;
        }
        memset(rest_x, 0, sizeof rest_x);
        memset(rest_y, 0, sizeof rest_y);
        memcpy(rest_x, job->x + i, count * sizeof(float));
        if (job->beta != 0) memcpy(rest_y, job->y + i, count * sizeof(float));
        dml__dropout_keep(job->isa, job, bits, rest_x, rest_y);
        memcpy(job->y + i, rest_y, count * sizeof(float));
    }
}

DML_API uint32_t dml_dropout_threshold(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

DML_API void dml_dropout_apply(dml_pool *pool, size_t n, const dml_random *random, uint64_t first, float p,
                               const float *x, float beta, float *y)
{
    dml__dropout_job job = {
        dml__pool_machine(pool).isa, n, random, first, dml_dropout_threshold(p), 1 / (1 - p), beta, x, y
    };
    dml_pool_run(n > DML__BLOCK ? pool : NULL, (int)dml__divide_up(n, DML__BLOCK), dml__dropout_task, &job);
}

#endif
