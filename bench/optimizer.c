/* optimizer: how fast are the optimizers' updates, beside PyTorch's and the bandwidth of where the vectors
 * lie? */
#include "bench.h"

typedef struct job {
    dml_pool *pool;
    const dml_optimizer *optimizer;
    uint64_t step;
    size_t n;
    float *w, *g, *state[2]; /* (n) */
} job;

static void run(void *argument)
{
    job *j = argument;
    dml_optimizer_update(j->optimizer, j->pool, j->step++, j->n, j->w, j->g, j->state);
}

typedef struct kind {
    const char *name;
    dml_optimizer optimizer;
} kind;

static const kind kinds[] = { { "sgd", { .kind = DML_SGD, .lr = 0.01f } },
                              { "momentum", { .kind = DML_SGD, .lr = 0.01f, .momentum = 0.9f } },
                              { "adam", { .kind = DML_ADAM, .lr = 1e-3f } },
                              { "adamw", { .kind = DML_ADAMW, .lr = 1e-3f, .weight_decay = 0.01f } },
                              { "rmsprop", { .kind = DML_RMSPROP, .lr = 1e-3f } },
                              { "adagrad", { .kind = DML_ADAGRAD, .lr = 1e-3f } } };

/* Vectors that an update reads; all but the gradient are written too. */
static size_t reads_of(const kind *k)
{
    return 2 + (size_t)dml_optimizer_states(&k->optimizer);
}

static void measure(const kind *k, const char *level, size_t n, bench_peers *peers, dml_pool *pool,
                    double seconds)
{
    char name[128];
    const size_t reads = reads_of(k);
    job j = { pool,
              &k->optimizer,
              0,
              n,
              bench_floats("optimizer", n),
              bench_floats("optimizer", n),
              { bench_floats("optimizer", n), bench_floats("optimizer", n) } };
    for (size_t i = 0; i < n; i++) {
        j.g[i] *= 1e-6f;
        j.state[0][i] = j.state[1][i] = 1e-12f; /* as of a root's argument, or of a velocity */
    }
    const double moved = (double)sizeof(float) * (double)n * (double)(2 * reads - 1);
    bench_stream stream = bench_stream_begin(pool, sizeof(float) * n * reads, BENCH_COPY);
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
    free(j.state[0]);
    free(j.state[1]);
}

static const char usage[] =
    "usage: optimizer [--what WHAT] [--n N] [options]\n"
    "  --what WHAT  only sgd, momentum, adam, adamw, rmsprop or adagrad\n"
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
        fprintf(stderr, "optimizer: --what is sgd, momentum, adam, adamw, rmsprop or adagrad, not \"%s\"\n",
                what);
        return 2;
    }
    if (common.quick && common.seconds > 0.02) common.seconds = 0.02;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("optimizer", threads);
        bench_peers peers;
        bench_peers_start(&peers, "optimizer", common.peers, names, threads);
        for (int i = 0; i < count; i++) {
            const kind *k = &kinds[i];
            if (what ? strcmp(what, k->name) != 0 : common.quick && i != 1 && i != 3) continue;
            for (int level = 0; level < (n ? 1 : BENCH_LEVELS); level++) {
                if (common.quick && !n && level != 1 && level != BENCH_LEVELS - 1) continue;
                measure(k, n ? "asked" : bench_levels[level],
                        n ? (size_t)n : bench_level_bytes(level) / sizeof(float) / reads_of(k), &peers, pool,
                        common.seconds);
            }
        }
        bench_peers_end(&peers);
        dml_pool_destroy(pool);
    }
    return 0;
}
