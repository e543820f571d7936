/* bench.h: what the benchmarks share: their options, timing beside peers, and rows that a script and a person
   read.

   A row is words of name=value on one line, e.g.
     name=gemm m=512 n=512 k=512 threads=1 ours=97.2 best_peer=93.4 peer=blis limit=101.9 ratio_peer=1.041
     ratio_limit=0.954 unit=GFLOP/s openblas=91 blis=93.4
   `limit` is what the machine could do at best, measured beside it in the same run. Ratios are larger where
   ours is faster. Where no peer was found, best_peer and ratio_peer are 0 and peer is none. */
#ifndef DML_BENCH_BENCH_H
#define DML_BENCH_BENCH_H

#include "machine.h"
#include "options.h"
#include "peers.h"

#include <sys/mman.h>
#include <time.h>

/* --- what every program takes --- */

typedef struct bench_common {
    int threads;       /* 0: rows for one thread and for every processor */
    double seconds;    /* for each row and each that is timed */
    bool quick;        /* few cases, little time */
    const char *peers; /* their folder; NULL: the usual one */
} bench_common;

#define BENCH_COMMON_OPTIONS(c)                                                                              \
    { "--threads", BENCH_INT, &(c).threads, 1, 1024 },                                                       \
        { "--seconds", BENCH_NUMBER, &(c).seconds, 1e-4, 60 }, { "--quick", BENCH_FLAG, &(c).quick, 0, 0 },  \
        { "--peers", BENCH_TEXT, &(c).peers, 0, 0 },                                                         \
    {                                                                                                        \
        NULL, BENCH_FLAG, NULL, 0, 0                                                                         \
    }
#define BENCH_COMMON_USAGE                                                                                   \
    "  --threads T  rows for T threads only; otherwise for 1 and for every processor\n"                      \
    "  --seconds S  how long to time each row, for ours and for each peer\n"                                 \
    "  --quick      fewer rows and less time\n"                                                              \
    "  --peers DIR  where the peers are; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"

/* The numbers of threads that rows are wanted for: round 0, then 1; 0 ends them. */
BENCH__UNUSED static int bench_threads(const bench_common *common, int round)
{
    static int all; /* before bench_take_processors */
    if (round == 0) all = dml_cpu_count();
    if (common->threads) return round == 0 ? common->threads : 0;
    return round == 0 ? 1 : round == 1 && all > 1 ? all : 0;
}

BENCH__UNUSED static dml_pool *bench_pool(const char *program, int threads)
{
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = threads;
    bench_take_processors(threads);
    dml_pool *pool = dml_pool_create(&options);
    if (!pool) {
        fprintf(stderr, "%s: no pool of %d threads can be had\n", program, threads);
        exit(1);
    }
    return pool;
}

/* Floats that are neither all alike nor slow to compute with. */
BENCH__UNUSED static float *bench_floats(const char *program, size_t count)
{
    float *x = (float *)aligned_alloc(64, (count * sizeof *x / 64 + 1) * 64);
    if (!x) {
        fprintf(stderr, "%s: no memory for %zu floats\n", program, count);
        exit(1);
    }
    for (size_t i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1000) * 0.002f - 1;
    return x;
}

/* --- timing --- */

/* The median seconds of one call: as many samples as `seconds` allow, up to 99, each of enough calls to be
   well above the clock's resolution. One call comes first, to warm up; a long one counts. */
BENCH__UNUSED static double bench_time(void (*run)(void *argument), void *argument, double seconds)
{
    double start = dml_seconds();
    run(argument);
    double once = dml_seconds() - start;
    if (once > 5e-3 && once >= seconds) return once;
    start = dml_seconds();
    run(argument);
    once = dml_seconds() - start + 1e-9;
    const int calls = once > 50e-6 ? 1 : (int)(50e-6 / once) + 1;
    double sample[99], spent = 0;
    int samples = 0;
    do {
        start = dml_seconds();
        for (int i = 0; i < calls; i++) run(argument);
        sample[samples] = dml_seconds() - start;
        spent += sample[samples];
        sample[samples++] /= calls;
    } while (samples < 99 && spent < seconds);
    return bench_median(sample, samples);
}

/* The processor's seconds of this thread. */
BENCH__UNUSED static double bench__thread_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What share of the time of ours, in the row that is being measured, this thread had a processor. */
static double bench__share = 1;

/* Times `run` and the case of that name (words of the protocol in peers.h) with each peer that takes it, turn
   by turn: the median seconds of ours; theirs are in the list, and what the limit reached. */
BENCH__UNUSED static double bench_beside(bench_peers *peers, const char *name, void (*run)(void *argument),
                                         void *argument, double seconds)
{
    double sample[BENCH_PEERS_MAX + 1][BENCH_ROUNDS], limit[BENCH_ROUNDS];
    char line[256];
    for (int i = 0; i < peers->count; i++) {
        bench_peer *peer = &peers->list[i];
        snprintf(line, sizeof line, "case %s\n", name);
        peer->takes_case =
            peer->process && bench_peer_ask(peers, peer, line) && strncmp(peer->answer, "ok", 2) == 0;
        memcpy(peer->said, peer->answer, sizeof peer->said);
    }
    const double start = dml_seconds();
    double spent = 0, had = 0;
    int rounds = 0;
    /* Calls that take long by themselves get fewer rounds. */
    for (; rounds < BENCH_ROUNDS && (rounds < 3 || dml_seconds() - start < 20 * seconds); rounds++) {
        const int round = rounds;
        const double before = dml_seconds(), used = bench__thread_seconds();
        sample[BENCH_PEERS_MAX][round] = bench_time(run, argument, seconds / BENCH_ROUNDS);
        spent += dml_seconds() - before, had += bench__thread_seconds() - used;
        if (peers->limit) limit[round] = bench_time(bench_stream_run, peers->limit, seconds / BENCH_ROUNDS);
        for (int i = 0; i < peers->count; i++) {
            bench_peer *peer = &peers->list[i];
            if (!peer->takes_case) continue;
            snprintf(line, sizeof line, "time %g\n", seconds / BENCH_ROUNDS);
            peer->takes_case = bench_peer_ask(peers, peer, line);
            if (!peer->takes_case) continue;
            sample[i][round] = strtod(peer->answer, NULL);
            if (!(sample[i][round] > 0)) {
                bench__peer_gone(peers, peer, peer->answer);
                peer->takes_case = false;
            }
        }
    }
    for (int i = 0; i < peers->count; i++)
        if (peers->list[i].takes_case) peers->list[i].seconds = bench_median(sample[i], rounds);
    bench__share = had > 0 ? had / spent : 1;
    if (peers->limit) peers->limit_rate = peers->limit->moved / bench_median(limit, rounds);
    return bench_median(sample[BENCH_PEERS_MAX], rounds);
}

/* --- rows --- */

/* The end of a row whose beginning (name=, the case) the caller has printed. `seconds` are those of one call
   of ours, `least` those that the machine allows (0: unknown). Where `work` is not 0, figures are work /
   seconds, else microseconds. */
BENCH__UNUSED static void bench_row(const bench_peers *peers, int threads, double seconds, double least,
                                    double work, const char *unit)
{
    const bench_peer *best = NULL;
    for (int i = 0; i < peers->count; i++) {
        const bench_peer *peer = &peers->list[i];
        if (peer->takes_case && (!best || peer->seconds < best->seconds)) best = peer;
    }
#define BENCH__FIGURE(s) (!((s) > 0) ? 0 : work > 0 ? work / (s) : 1e6 * (s))
    printf(" threads=%d ours=%.4g best_peer=%.4g peer=%s limit=%.4g ratio_peer=%.3f ratio_limit=%.3f unit=%s",
           threads, BENCH__FIGURE(seconds), best ? BENCH__FIGURE(best->seconds) : 0,
           best ? best->name : "none", BENCH__FIGURE(least), best ? best->seconds / seconds : 0,
           least / seconds, unit);
    for (int i = 0; i < peers->count; i++)
        if (peers->list[i].takes_case)
            printf(" %s=%.4g", peers->list[i].name, BENCH__FIGURE(peers->list[i].seconds));
#undef BENCH__FIGURE
    if (bench_disturbed(threads) || bench__share < 0.9) printf(" disturbed=1");
    bench__share = 1;
    putchar('\n');
    fflush(stdout);
}

/* The end of a row that no peer is timed beside. */
BENCH__UNUSED static void bench_row_end(int threads, double ours, double limit, const char *unit)
{
    printf(" threads=%d ours=%.4g limit=%.4g ratio_limit=%.3f unit=%s\n", threads, ours, limit,
           limit > 0 ? ours / limit : 0, unit);
    fflush(stdout);
}

/* --- the memory that a context takes of the host: an allocator that counts --- */

typedef struct bench_counter {
    size_t now, peak;
} bench_counter;

enum { BENCH__HEADER = 64 };

BENCH__UNUSED static void *bench_count_allocate(void *user, size_t bytes)
{
    bench_counter *c = user;
    char *memory = malloc(bytes + BENCH__HEADER);
    if (!memory) return NULL;
#ifdef MADV_HUGEPAGE /* as the library's own */
    char *page = memory + (-(uintptr_t)memory & 4095);
    if (bytes >= 8 << 20) madvise(page, (size_t)(memory + bytes - page) & ~(size_t)4095, MADV_HUGEPAGE);
#endif
    memcpy(memory, &bytes, sizeof bytes);
    c->now += bytes;
    if (c->now > c->peak) c->peak = c->now;
    return memory + BENCH__HEADER;
}

BENCH__UNUSED static void bench_count_release(void *user, void *memory)
{
    bench_counter *c = user;
    size_t bytes;
    if (!memory) return;
    memcpy(&bytes, (char *)memory - BENCH__HEADER, sizeof bytes);
    c->now -= bytes;
    free((char *)memory - BENCH__HEADER);
}

#endif
