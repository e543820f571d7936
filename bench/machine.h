/* machine.h: what this machine could do at best: the peak of multiply-adds and the bandwidth of caches and
 * memory. */
#ifndef DML_BENCH_MACHINE_H
#define DML_BENCH_MACHINE_H

#include "dml.h"

#ifdef __linux__
#include <sched.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define BENCH__UNUSED __attribute__((unused))
#define BENCH__TARGET(isa) __attribute__((target(isa)))
#else
#define BENCH__UNUSED
#define BENCH__TARGET(isa)
#endif

BENCH__UNUSED static int bench__compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts them, too. */
BENCH__UNUSED static double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, bench__compare);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* The first `threads` of the processors that this program was given are its own from here on, and those of
   the peers and threads that it starts: another processor may have another neighbour, and so another speed.
 */
BENCH__UNUSED static void bench_take_processors(int threads)
{
#ifdef __linux__
    static cpu_set_t given;
    static bool known;
    cpu_set_t mask;
    if (!known && sched_getaffinity(0, sizeof given, &given) != 0) return;
    known = true;
    CPU_ZERO(&mask);
    for (int cpu = 0, taken = 0; cpu < CPU_SETSIZE && taken < threads; cpu++)
        if (CPU_ISSET(cpu, &given)) CPU_SET(cpu, &mask), taken++;
    sched_setaffinity(0, sizeof mask, &mask);
#else
    (void)threads;
#endif
}

/* --- the peak of fused multiply-adds --- */

/* Twelve independent chains keep every multiplier busy. Each function does 4 `rounds` steps of all chains and
   returns the floating-point operations done, a multiply-add counting as two. */
#define BENCH__CHAINS 12
#define BENCH__FMA_STEP(fma)                                                                                 \
    chain0 = fma(chain0, x, y), chain1 = fma(chain1, x, y), chain2 = fma(chain2, x, y);                      \
    chain3 = fma(chain3, x, y), chain4 = fma(chain4, x, y), chain5 = fma(chain5, x, y);                      \
    chain6 = fma(chain6, x, y), chain7 = fma(chain7, x, y), chain8 = fma(chain8, x, y);                      \
    chain9 = fma(chain9, x, y), chain10 = fma(chain10, x, y), chain11 = fma(chain11, x, y)
#define BENCH__FMA_LOOP(vector, lanes, set1, fma, store)                                                     \
    vector chain0 = set1(0), chain1 = set1(1), chain2 = set1(2), chain3 = set1(3), chain4 = set1(4),         \
           chain5 = set1(5), chain6 = set1(6), chain7 = set1(7), chain8 = set1(8), chain9 = set1(9),         \
           chain10 = set1(10), chain11 = set1(11);                                                           \
    const vector x = set1(factor), y = set1(0.001f);                                                         \
    for (long i = 0; i < rounds; i++) {                                                                      \
        BENCH__FMA_STEP(fma);                                                                                \
        BENCH__FMA_STEP(fma);                                                                                \
        BENCH__FMA_STEP(fma);                                                                                \
        BENCH__FMA_STEP(fma);                                                                                \
    }                                                                                                        \
    store(sink, chain0), store(sink + lanes, chain1), store(sink + 2 * lanes, chain2);                       \
    store(sink + 3 * lanes, chain3), store(sink + 4 * lanes, chain4), store(sink + 5 * lanes, chain5);       \
    store(sink + 6 * lanes, chain6), store(sink + 7 * lanes, chain7), store(sink + 8 * lanes, chain8);       \
    store(sink + 9 * lanes, chain9), store(sink + 10 * lanes, chain10), store(sink + 11 * lanes, chain11);   \
    return (double)rounds * 4 * BENCH__CHAINS * lanes * 2

/* What a compiler can make of plain C: four lanes, a multiplication and an addition. */
#if defined(__GNUC__)
typedef float bench__vector __attribute__((vector_size(16)));
#define BENCH__SET1(value)                                                                                   \
    {                                                                                                        \
        value, value, value, value                                                                           \
    }
#define BENCH__LANES 4
#else
typedef float bench__vector;
#define BENCH__SET1(value) value
#define BENCH__LANES 1
#endif
#define BENCH__MULTIPLY_ADD(a, x, y) ((a) * (x) + (y))
#define BENCH__STORE(to, value) memcpy(to, &value, sizeof value)
BENCH__UNUSED static double bench__fma_scalar(long rounds, float factor, float *sink)
{
    BENCH__FMA_LOOP(bench__vector, BENCH__LANES, BENCH__SET1, BENCH__MULTIPLY_ADD, BENCH__STORE);
}

#if defined(__x86_64__) || defined(__i386__)
BENCH__TARGET("avx2,fma") BENCH__UNUSED static double bench__fma_avx2(long rounds, float factor, float *sink)
{
    BENCH__FMA_LOOP(__m256, 8, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
}
BENCH__TARGET("avx512f") BENCH__UNUSED static double bench__fma_avx512(long rounds, float factor, float *sink)
{
    BENCH__FMA_LOOP(__m512, 16, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
}
#elif defined(__aarch64__)
#define BENCH__NEON_FMA(a, x, y) vfmaq_f32(y, a, x)
BENCH__UNUSED static double bench__fma_neon(long rounds, float factor, float *sink)
{
    BENCH__FMA_LOOP(float32x4_t, 4, vdupq_n_f32, BENCH__NEON_FMA, vst1q_f32);
}
#endif

BENCH__UNUSED static double bench__fma(long rounds)
{
    static const volatile float factor = 0.999f; /* what a compiler knows, it works out beforehand */
    volatile float result;                       /* what nobody uses, it leaves out */
    float sink[BENCH__CHAINS * 16] = { 0 };
    double operations = 0;
    switch (dml_cpu_isa()) {
#if defined(__x86_64__) || defined(__i386__)
    case DML_ISA_AVX512: operations = bench__fma_avx512(rounds, factor, sink); break;
    case DML_ISA_AVX2: operations = bench__fma_avx2(rounds, factor, sink); break;
#elif defined(__aarch64__)
    case DML_ISA_NEON: operations = bench__fma_neon(rounds, factor, sink); break;
#endif
    default: operations = bench__fma_scalar(rounds, factor, sink); break;
    }
    float sum = 0;
    for (int i = 0; i < BENCH__CHAINS * 16; i++) sum += sink[i];
    result = sum;
    (void)result;
    return operations;
}

BENCH__UNUSED static void bench__fma_task(void *argument, int task, int worker)
{
    double *operations = (double *)argument;
    (void)worker;
    const double done = bench__fma(25000);
    if (task == 0) *operations = done;
}

enum { BENCH_THREADS_MAX = 1024 };

/* What bench_fma_peak has found: its last figure, and the best for each number of threads. */
static double bench__peak_last, bench__peak_best[BENCH_THREADS_MAX + 1];

/* GFLOP/s of fp32 multiply-adds that the pool's threads reach together with the instructions of
   dml_cpu_isa(): the best of several bursts, some 20 ms in all, and of those before in this run, since
   whatever else runs here only lowers it. */
BENCH__UNUSED static double bench_fma_peak(dml_pool *pool)
{
    enum { BURSTS = 9 };
    double operations = 0;
    const int threads = dml_pool_threads(pool);
    bench__peak_last = 0;
    for (int i = 0; i < BURSTS; i++) {
        const double start = dml_seconds();
        dml_pool_run(pool, threads, bench__fma_task, &operations);
        const double rate = operations * threads / (dml_seconds() - start) * 1e-9;
        if (rate > bench__peak_last) bench__peak_last = rate;
    }
    double *best = &bench__peak_best[threads < BENCH_THREADS_MAX ? threads : BENCH_THREADS_MAX];
    if (bench__peak_last > *best) *best = bench__peak_last;
    return *best;
}

/* That figure again, without measuring: what bench_least_seconds has just reckoned with. */
BENCH__UNUSED static double bench_known_peak(int threads)
{
    return bench__peak_best[threads < BENCH_THREADS_MAX ? threads : BENCH_THREADS_MAX];
}

/* Whether something else had a good part of the processors when the peak was last measured. */
BENCH__UNUSED static bool bench_disturbed(int threads)
{
    return bench__peak_last < 0.8 * bench_known_peak(threads);
}

/* --- bandwidth --- */

typedef enum bench_access { BENCH_READ, BENCH_WRITE, BENCH_COPY } bench_access;

/* Blocks of 256 bytes, so that loads and stores overlap as much as the machine can. What a compiler knows of
   vectors is enough here. */
#if defined(__GNUC__)
typedef float bench__wide __attribute__((vector_size(32)));
#else
typedef struct bench__wide {
    float lane[8];
} bench__wide;
#endif
enum { BENCH__BLOCK = 8 };

#define BENCH__READ_LOOP(vector, add)                                                                        \
    const vector *at = (const vector *)from;                                                                 \
    vector sum[BENCH__BLOCK];                                                                                \
    memset(sum, 0, sizeof sum);                                                                              \
    for (size_t i = 0; i + BENCH__BLOCK <= bytes / sizeof(vector); i += BENCH__BLOCK)                        \
        for (int j = 0; j < BENCH__BLOCK; j++) add;                                                          \
    float result;                                                                                            \
    memcpy(&result, sum, sizeof result);                                                                     \
    for (int j = 1; j < BENCH__BLOCK; j++) {                                                                 \
        float one;                                                                                           \
        memcpy(&one, &sum[j], sizeof one);                                                                   \
        result += one;                                                                                       \
    }                                                                                                        \
    return result

#if defined(__GNUC__)
#define BENCH__READ_ADD sum[j] += at[i + (size_t)j]
#else
#define BENCH__READ_ADD sum[j].lane[0] += at[i + (size_t)j].lane[0]
#endif
BENCH__UNUSED static float bench__read_plain(const char *from, size_t bytes)
{
    BENCH__READ_LOOP(bench__wide, BENCH__READ_ADD);
}

#if defined(__x86_64__) || defined(__i386__)
#define BENCH__X86_LOOPS(isa, name, vector, zero, add, load, store)                                          \
    BENCH__TARGET(isa) BENCH__UNUSED static float bench__read_##name(const char *from, size_t bytes)         \
    {                                                                                                        \
        vector s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero(), s4 = zero(), s5 = zero(), s6 = zero(),    \
               s7 = zero();                                                                                  \
        for (size_t i = 0; i + 8 * sizeof s0 <= bytes; i += 8 * sizeof s0) {                                 \
            const float *at = (const float *)(const void *)(from + i);                                       \
            const size_t lanes = sizeof s0 / sizeof *at;                                                     \
            s0 = add(s0, load(at)), s1 = add(s1, load(at + lanes)), s2 = add(s2, load(at + 2 * lanes));      \
            s3 = add(s3, load(at + 3 * lanes)), s4 = add(s4, load(at + 4 * lanes));                          \
            s5 = add(s5, load(at + 5 * lanes)), s6 = add(s6, load(at + 6 * lanes));                          \
            s7 = add(s7, load(at + 7 * lanes));                                                              \
        }                                                                                                    \
        float lane[sizeof s0 / sizeof(float)];                                                               \
        store(lane, add(add(add(s0, s1), add(s2, s3)), add(add(s4, s5), add(s6, s7))));                      \
        return lane[0];                                                                                      \
    }                                                                                                        \
    BENCH__TARGET(isa)                                                                                       \
    BENCH__UNUSED static void bench__copy_##name(char *to, const char *from, size_t bytes)                   \
    {                                                                                                        \
        const size_t lanes = sizeof(vector) / sizeof(float);                                                 \
        for (size_t i = 0; i + 4 * sizeof(vector) <= bytes; i += 4 * sizeof(vector)) {                       \
            const float *in = (const float *)(const void *)(from + i);                                       \
            float *out = (float *)(void *)(to + i);                                                          \
            const vector v0 = load(in), v1 = load(in + lanes), v2 = load(in + 2 * lanes),                    \
                         v3 = load(in + 3 * lanes);                                                          \
            store(out, v0), store(out + lanes, v1), store(out + 2 * lanes, v2), store(out + 3 * lanes, v3);  \
        }                                                                                                    \
    }
BENCH__X86_LOOPS("avx2,fma", avx2, __m256, _mm256_setzero_ps, _mm256_add_ps, _mm256_loadu_ps,
                 _mm256_storeu_ps)
BENCH__X86_LOOPS("avx512f", avx512, __m512, _mm512_setzero_ps, _mm512_add_ps, _mm512_loadu_ps,
                 _mm512_storeu_ps)
#endif

BENCH__UNUSED static float bench__read(const char *from, size_t bytes)
{
    switch (dml_cpu_isa()) {
#if defined(__x86_64__) || defined(__i386__)
    case DML_ISA_AVX512: return bench__read_avx512(from, bytes);
    case DML_ISA_AVX2: return bench__read_avx2(from, bytes);
#endif
    default: return bench__read_plain(from, bytes);
    }
}

BENCH__UNUSED static void bench__copy(char *to, const char *from, size_t bytes)
{
    switch (dml_cpu_isa()) {
#if defined(__x86_64__) || defined(__i386__)
    case DML_ISA_AVX512: bench__copy_avx512(to, from, bytes); break;
    case DML_ISA_AVX2: bench__copy_avx2(to, from, bytes); break;
#endif
    default: memcpy(to, from, bytes); break;
    }
}

/* Passes over memory of its own by all threads of a pool, each in its share: a copy reads one half of that
   and writes the other, and both are counted as moved. */
typedef struct bench_stream {
    dml_pool *pool;
    bench_access access;
    bool library; /* the C library's memcpy, which may go round the caches, rather than our loop */
    int passes;   /* of one run */
    size_t bytes; /* of each thread */
    double moved; /* bytes of one run */
    double rate;  /* the best that was measured in the beginning, bytes/s; 0: no memory */
    char *memory, *block;
} bench_stream;

BENCH__UNUSED static void bench__stream_task(void *argument, int task, int worker)
{
    const bench_stream *s = (const bench_stream *)argument;
    char *mine = s->memory + (size_t)task * s->bytes;
    const size_t half = s->bytes / 2;
    volatile float sink = 0; /* so that no pass is left out */
    (void)worker;
    for (int i = 0; i < s->passes; i++) {
        if (s->access == BENCH_READ)
            sink = sink + bench__read(mine, s->bytes);
        else if (s->access == BENCH_WRITE)
            memset(mine, 0, s->bytes), sink = sink + (float)mine[i % 64];
        else if (s->library)
            memcpy(mine + half, mine, half), sink = sink + (float)mine[half + (size_t)i % 64];
        else
            bench__copy(mine + half, mine, half), sink = sink + (float)mine[half + (size_t)i % 64];
    }
    (void)sink;
}

BENCH__UNUSED static void bench_stream_run(void *stream)
{
    bench_stream *s = (bench_stream *)stream;
    dml_pool_run(s->pool, dml_pool_threads(s->pool), bench__stream_task, s);
}

/* Passes over `bytes` in all, by the faster way, as many in a run as take some milliseconds. */
BENCH__UNUSED static bench_stream bench_stream_begin(dml_pool *pool, size_t bytes, bench_access access)
{
    enum { SAMPLES = 5, PAGE = 4096 };
    const int threads = dml_pool_threads(pool);
    bench_stream s = { pool, access, false, 1, bytes / (size_t)threads / PAGE * PAGE, 0, 0, NULL, NULL };
    if (s.bytes < PAGE) s.bytes = PAGE;
    const size_t total = s.bytes * (size_t)threads;
    s.block = (char *)malloc(total + PAGE);
    if (!s.block) return s;
    s.memory = s.block + (PAGE - (uintptr_t)s.block % PAGE);
    memset(s.memory, 0, total);
    s.passes = (int)(5e7 / (double)total) + 1;
    s.moved = (double)total * s.passes;
    bool library = false;
    for (int way = 0; way < (access == BENCH_COPY ? 2 : 1); way++) {
        s.library = way == 1;
        bench_stream_run(&s);
        for (int i = 0; i < SAMPLES; i++) {
            const double start = dml_seconds();
            bench_stream_run(&s);
            const double rate = s.moved / (dml_seconds() - start);
            if (rate > s.rate) s.rate = rate, library = s.library;
        }
    }
    s.library = library;
    return s;
}

BENCH__UNUSED static void bench_stream_end(bench_stream *stream)
{
    free(stream->block);
    stream->memory = stream->block = NULL;
}

/* GB/s that the pool's threads move together within `bytes` of memory; 0: no memory. */
BENCH__UNUSED static double bench_bandwidth(dml_pool *pool, size_t bytes, bench_access access)
{
    bench_stream s = bench_stream_begin(pool, bytes, access);
    bench_stream_end(&s);
    return 1e-9 * s.rate;
}

/* --- where arrays lie --- */

enum { BENCH_LEVELS = 4 };

static const char *const bench_levels[BENCH_LEVELS] = { "L1", "L2", "L3", "memory" };

/* The bytes of the first processor's data cache of that level, counted from 1. */
BENCH__UNUSED static size_t bench__cache_bytes(int level)
{
    static const size_t assumed[] = { 32u << 10, 256u << 10, 8u << 20 };
    for (int i = 0; i < 8; i++) {
        static const char *const questions[] = { "level", "type", "size" };
        char path[96], answer[3][16] = { "", "", "" };
        for (int q = 0; q < 3; q++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, questions[q]);
            FILE *file = fopen(path, "r");
            if (!file) break;
            if (!fgets(answer[q], sizeof answer[q], file)) answer[q][0] = '\0';
            fclose(file);
        }
        if (atoi(answer[0]) == level && answer[1][0] != 'I' && atoi(answer[2]) > 0)
            return (size_t)atoi(answer[2]) << (strchr(answer[2], 'M') ? 20 : 10);
    }
    return assumed[level - 1];
}

/* How many bytes an operation on a level takes in all: half of a cache, a quarter of the last, which others
   use too, and four times that cache, 128 to 512 MiB, for memory. */
BENCH__UNUSED static size_t bench_level_bytes(int level)
{
    const size_t least = (size_t)128 << 20, most = (size_t)512 << 20;
    const int last = BENCH_LEVELS - 2;
    const size_t cache = bench__cache_bytes((level < last ? level : last) + 1);
    if (level < last) return cache / 2;
    if (level == last) return cache / 4;
    return 4 * cache < least ? least : 4 * cache > most ? most : 4 * cache;
}

/* The least seconds that `operations` (multiply-adds count as two) can take that read and write so many bytes
   of `resident` ones: either the arithmetic, or the bandwidth of where so many bytes lie. */
BENCH__UNUSED static double bench_least_seconds(dml_pool *pool, double operations, size_t read,
                                                size_t written, size_t resident)
{
    const double arithmetic = 1e-9 * operations / bench_fma_peak(pool);
    const double read_rate = bench_bandwidth(pool, resident, BENCH_READ);
    const double write_rate = bench_bandwidth(pool, resident, BENCH_WRITE);
    if (!(read_rate > 0) || !(write_rate > 0)) return arithmetic;
    const double moving = 1e-9 * ((double)read / read_rate + (double)written / write_rate);
    return arithmetic > moving ? arithmetic : moving;
}

#endif
