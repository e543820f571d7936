/* bench.h: what the benchmarks share: timing, the machine's limits, and rows that a script and a person read.

   A row is words of name=value on one line, e.g.
     name=gemm m=512 n=512 k=512 threads=1 ours=110.2 limit=118.9 ratio_limit=0.927 unit=GFLOP/s
   `limit` is what the machine could do at best, measured beside it in the same run. */
#ifndef DML_BENCH_BENCH_H
#define DML_BENCH_BENCH_H

#include "dml.h"

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

/* The median seconds of one call of `run`: as many samples as `seconds` allow, 3 to 99, each of enough calls
   to be well above the clock's resolution. One call comes first, to warm up. */
BENCH__UNUSED static double bench_time(void (*run)(void *argument), void *argument, double seconds)
{
    double start = dml_seconds();
    run(argument);
    start = dml_seconds();
    run(argument);
    const double once = dml_seconds() - start + 1e-9;
    const int calls = once > 50e-6 ? 1 : (int)(50e-6 / once) + 1;
    double sample[99], spent = 0;
    int samples = 0;
    while (samples < 3 || (samples < 99 && spent < seconds)) {
        start = dml_seconds();
        for (int i = 0; i < calls; i++) run(argument);
        sample[samples] = dml_seconds() - start;
        spent += sample[samples];
        sample[samples++] /= calls;
    }
    return bench_median(sample, samples);
}

/* Prints the end of a row whose beginning the caller has printed. */
BENCH__UNUSED static void bench_row_end(int threads, double ours, double limit, const char *unit)
{
    printf(" threads=%d ours=%.4g limit=%.4g ratio_limit=%.3f unit=%s\n", threads, ours, limit,
           limit > 0 ? ours / limit : 0, unit);
    fflush(stdout);
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

/* GFLOP/s of fp32 multiply-adds that the pool's threads reach together with the instructions of
   dml_cpu_isa(): the median of several bursts, some 20 ms in all. */
BENCH__UNUSED static double bench_fma_peak(dml_pool *pool)
{
    enum { BURSTS = 9 };
    double rate[BURSTS], operations = 0;
    const int threads = dml_pool_threads(pool);
    for (int i = 0; i < BURSTS; i++) {
        const double start = dml_seconds();
        dml_pool_run(pool, threads, bench__fma_task, &operations);
        rate[i] = operations * threads / (dml_seconds() - start) * 1e-9;
    }
    return bench_median(rate, BURSTS);
}

#endif
