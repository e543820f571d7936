/* reduce_op: how fast do ranks' elements become one array, beside the plain loop that adds floats, and the
   bandwidth of where the arrays lie? */
#include "bench.h"

/* Private functions: the shared object has them for itself alone. */
#include "base/float16.c"
#include "comm/reduce_op.c"

typedef struct job {
    dml_pool *pool;
    dml__reduction how;
    char *into, *from; /* (bytes) */
    size_t bytes;      /* of each, cut into a part for each thread */
} job;

static void run_part(void *argument, int task, int worker)
{
    job *j = argument;
    const size_t part = j->bytes / (size_t)dml_pool_threads(j->pool), at = part * (size_t)task;
    (void)worker;
    dml__reduce_elements(&j->how, j->into + at, j->into + at, j->from + at,
                         part / dml_dtype_size(j->how.dtype));
}

static void run_reduce(void *argument)
{
    job *j = argument;
    dml_pool_run(j->pool, dml_pool_threads(j->pool), run_part, j);
}

/* As many bytes, by the kernel that adds floats. */
static void run_add(void *argument)
{
    job *j = argument;
    dml_axpby(j->pool, j->bytes / sizeof(float), 1, (float *)(void *)j->from, 1, (float *)(void *)j->into);
}

static const char *const ops[] = { "sum", "mean", "min", "max", "prod" };

static void measure(dml_dtype dtype, dml_reduce_op op, int level, dml_pool *pool, double seconds)
{
    const size_t part = bench_level_bytes(level) / 2 / (size_t)dml_pool_threads(pool) / 64 * 64;
    job j;
    double ours[BENCH_ROUNDS], limit[BENCH_ROUNDS];
    memset(&j, 0, sizeof j);
    j.pool = pool, j.bytes = part * (size_t)dml_pool_threads(pool);
    j.how.dtype = dtype, j.how.op = op, j.how.isa = dml_cpu_isa();
    j.into = (char *)bench_floats("reduce_op", j.bytes / sizeof(float));
    j.from = (char *)bench_floats("reduce_op", j.bytes / sizeof(float));
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        /* Sums of sums would be infinite soon. */
        memset(j.into, 0, j.bytes), memset(j.from, 0, j.bytes);
        ours[round] = bench_time(run_reduce, &j, seconds / BENCH_ROUNDS);
        limit[round] = bench_time(run_add, &j, seconds / BENCH_ROUNDS);
    }
    const double moved = 3e-9 * (double)j.bytes;
    printf("name=reduce_op what=%s dtype=%s level=%s isa=%s", ops[op], dml_dtype_name(dtype),
           bench_levels[level], dml_isa_name(j.how.isa));
    bench_row_end(dml_pool_threads(pool), moved / bench_median(ours, BENCH_ROUNDS),
                  moved / bench_median(limit, BENCH_ROUNDS), "GB/s");
    free(j.into);
    free(j.from);
}

static const char usage[] = "usage: reduce_op [--dtype D] [--op NAME] [options]\n"
                            "  --dtype D    only f32, f64, i32, i64, u8, bf16, f16 or i8\n"
                            "  --op NAME    only sum, min or prod\n" BENCH_COMMON_USAGE
                            "Prints a row for each dtype and op, in L2 and in memory: ours is the GB/s that "
                            "are read (two arrays) and\n"
                            "written (one), limit those of the kernel that adds floats.\n";

int main(int argc, char **argv)
{
    static const dml_reduce_op timed[] = { DML_SUM, DML_MIN, DML_PROD };
    static const int levels[] = { 1, BENCH_LEVELS - 1 };
    bench_common common = { 0, 0.1, false, NULL };
    const char *dtype = NULL, *op = NULL;
    bool found = false;
    const bench_option options[] = { { "--dtype", BENCH_TEXT, &dtype, 0, 0 },
                                     { "--op", BENCH_TEXT, &op, 0, 0 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "reduce_op", usage, options);
    if (common.quick && common.seconds > 0.02) common.seconds = 0.02;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("reduce_op", threads);
        for (int d = 0; d < DML__DTYPE_COUNT; d++)
            for (size_t o = 0; o < sizeof timed / sizeof *timed; o++)
                for (int level = 0; level < 2; level++) {
                    if (dtype && strcmp(dtype, dml_dtype_name((dml_dtype)d)) != 0) continue;
                    if (op && strcmp(op, ops[timed[o]]) != 0) continue;
                    found = true;
                    if (common.quick && (timed[o] != DML_SUM || (level && d != DML_F32))) continue;
                    measure((dml_dtype)d, timed[o], levels[level], pool, common.seconds);
                }
        dml_pool_destroy(pool);
    }
    if (found) return 0;
    fprintf(stderr, "reduce_op: --dtype or --op is none of those in --help\n");
    return 2;
}
