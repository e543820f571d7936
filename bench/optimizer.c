/* optimizer: how fast are the optimizers' updates, beside PyTorch's and the bandwidth of where the vectors
 * lie? */
#include "bench.h"

typedef struct job {
    dml_pool *pool;
    size_t n;
    float *w, *g, *v; /* (n) */
    float momentum;
} job;

static void run(void *argument)
{
    job *j = argument;
    dml_sgd_update(j->pool, j->n, j->w, j->g, j->momentum > 0 ? j->v : NULL, 0.01f, j->momentum, 0, false);
}

typedef struct kind {
    const char *name;
    float momentum;
    int reads, writes; /* vectors; those together are as many as are read */
} kind;

static const kind kinds[] = { { "sgd", 0, 2, 1 }, { "momentum", 0.9f, 3, 2 } };

static void measure(const kind *k, const char *level, size_t n, bench_peers *peers, dml_pool *pool,
                    double seconds)
{
    char name[128];
    job j = { pool,
              n,
              bench_floats("optimizer", n),
              bench_floats("optimizer", n),
              bench_floats("optimizer", n),
              k->momentum };
    for (size_t i = 0; i < n; i++) j.g[i] *= 1e-6f, j.v[i] *= 1e-6f;
    const double moved = (double)sizeof(float) * (double)n * (k->reads + k->writes);
    bench_stream stream = bench_stream_begin(pool, sizeof(float) * n * (size_t)k->reads, BENCH_COPY);
    peers->limit = stream.block ? &stream : NULL;
    bench_fma_peak(pool); /* says whether the row is disturbed */
    snprintf(name, sizeof name, "optimizer %s %zu", k->name, n);
    const double one = bench_beside(peers, name, run, &j, seconds);
    printf("name=optimizer what=%s level=%s n=%zu isa=%s", k->name, level, n, dml_isa_name(dml_cpu_isa()));
    bench_row(peers, dml_pool_threads(pool), one, stream.block ? moved / peers->limit_rate : 0, 1e-9 * moved,
              "GB/s");
    bench_stream_end(&stream);
    peers->limit = NULL;
    free(j.w);
    free(j.g);
    free(j.v);
}

static const char usage[] =
    "usage: optimizer [--what sgd|momentum] [--n N] [options]\n"
    "  --what WHAT  only stochastic gradient descent without or with momentum\n"
    "  --n N        vectors of N elements; otherwise such that they fill half of each cache, and far beyond "
    "the last\n" BENCH_COMMON_USAGE "Prints a row for each optimizer and size: ours is the GB/s that are "
    "read and written, limit the measured\n"
    "bandwidth of a copy within as many bytes.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "torch", NULL };
    bench_common common = { 0, 0.1, false, NULL };
    const char *what = NULL;
    int n = 0;
    bool found = false;
    const bench_option options[] = { { "--what", BENCH_TEXT, &what, 0, 0 },
                                     { "--n", BENCH_INT, &n, 1, 1 << 30 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "optimizer", usage, options);
    const int count = (int)(sizeof kinds / sizeof *kinds);
    for (int i = 0; i < count; i++) found |= !what || strcmp(what, kinds[i].name) == 0;
    if (!found) {
        fprintf(stderr, "optimizer: --what is sgd or momentum, not \"%s\"\n", what);
        return 2;
    }
    if (common.quick && common.seconds > 0.02) common.seconds = 0.02;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("optimizer", threads);
        bench_peers peers;
        bench_peers_start(&peers, "optimizer", common.peers, names, threads);
        for (int i = 0; i < count; i++) {
            const kind *k = &kinds[i];
            if (what ? strcmp(what, k->name) != 0 : common.quick && k->momentum == 0) continue;
            for (int level = 0; level < (n ? 1 : BENCH_LEVELS); level++) {
                if (common.quick && !n && level != 1 && level != BENCH_LEVELS - 1) continue;
                measure(k, n ? "asked" : bench_levels[level],
                        n ? (size_t)n : bench_level_bytes(level) / sizeof(float) / (size_t)k->reads, &peers,
                        pool, common.seconds);
            }
        }
        bench_peers_end(&peers);
        dml_pool_destroy(pool);
    }
    return 0;
}
