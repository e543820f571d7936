/* forkjoin: what does a parallel loop cost that does nothing, beside OpenMP's, and does an idle pool use the
 * processor? */
#include "bench.h"

#include <time.h>

static void nothing(void *argument, int task, int worker)
{
    (void)argument, (void)task, (void)worker;
}

static void run(void *argument)
{
    dml_pool *pool = argument;
    dml_pool_run(pool, dml_pool_threads(pool), nothing, NULL);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_for(double seconds)
{
    const struct timespec t = { (time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds)) };
    nanosleep(&t, NULL);
}

/* The median seconds of a loop on threads that have had time to fall asleep. */
static double asleep(dml_pool *pool, double seconds)
{
    double sample[99];
    int samples = 0;
    for (const double start = dml_seconds();
         samples < 3 || (samples < 99 && dml_seconds() - start < seconds);) {
        pause_for(5e-3);
        const double before = dml_seconds();
        run(pool);
        sample[samples++] = dml_seconds() - before;
    }
    return bench_median(sample, samples);
}

/* The seconds of processors that this process uses a second while it does nothing. */
static double idle(void)
{
    pause_for(0.05); /* what spins after a loop is not idle yet */
    const double used = processor_seconds(), start = dml_seconds();
    pause_for(0.25);
    return (processor_seconds() - used) / (dml_seconds() - start);
}

static void measure(bench_peers *peers, dml_pool *pool, int threads, double without, double seconds)
{
    bench_peers none;
    memset(&none, 0, sizeof none);
    bench_fma_peak(pool);
    const double one = bench_beside(peers, "forkjoin", run, pool, seconds);
    printf("name=forkjoin what=spinning");
    bench_row(peers, threads, one, 0, 0, "us");
    printf("name=forkjoin what=asleep");
    bench_row(&none, threads, asleep(pool, seconds), 0, 0, "us");
    run(pool);
    printf("name=forkjoin what=idle");
    bench_row(&none, threads, idle(), without, 0, "us_per_s");
}

static const char usage[] =
    "usage: forkjoin [options]\n" BENCH_COMMON_USAGE "Prints three rows for each number of threads: ours is "
    "what a parallel loop of one empty task a thread takes\n"
    "while the threads spin, what it takes when they have fallen asleep, and what time of processors an idle "
    "pool\n"
    "uses a second (limit: as much without a pool). Without --threads: one for each processor.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "openmp", NULL };
    bench_common common = { 0, 0.5, false, NULL };
    const bench_option options[] = { BENCH_COMMON_OPTIONS(common) };
    bench_peers peers;
    bench_parse(argc, argv, "forkjoin", usage, options);
    if (common.quick && common.seconds > 0.1) common.seconds = 0.1;
    const int threads = common.threads ? common.threads : dml_cpu_count();
    bench_peers_start(&peers, "forkjoin", common.peers, names, threads);
    const double without = idle();
    dml_pool *pool = bench_pool("forkjoin", threads);
    measure(&peers, pool, threads, without, common.seconds);
    dml_pool_destroy(pool);
    bench_peers_end(&peers);
    return 0;
}
