/* ddp: samples per second of data-parallel training between processes of this machine, one thread each,
   beside PyTorch's DistributedDataParallel on Gloo. */
#include "bench.h"
#include "models.h"
#include "processes.h"

enum { ROUNDS = 5, RANKS_MAX = PROCESSES_MAX };

typedef struct settings {
    const char *model, *transport, *peers, *compression;
    int ranks, bucket;
    double seconds;
    bool quick;
} settings;

static const char usage[] =
    "usage: ddp [options]\n"
    "  --model NAME      of bench/models.h; otherwise mlp, lenet5 and resnet20\n"
    "  --ranks N         processes, 2 to 64; otherwise 2 and 4\n"
    "  --transport NAME  between ours: tcp or shm; otherwise as programs have it\n"
    "  --compression NAME  of ours: bf16, f16, 8, 4, 1 (bits), top_k or power; none\n"
    "  --bucket KIB      bucket_bytes of ours; 0: the strategy's own\n"
    "  --seconds S       how long to time each row, for ours and for the peer; 4\n"
    "  --quick           mlp and 2 ranks only, for a short time\n"
    "  --peers DIR       where the peer is; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"
    "Prints a row for each model and number of ranks: samples of all ranks per second. `batch` is a "
    "rank's.\n";

static dml_compression compression_of(const char *name)
{
    dml_compression how;
    memset(&how, 0, sizeof how);
    if (!name) return how;
    how.bits = (int)strtol(name, NULL, 10);
    how.kind = how.bits                     ? DML_COMPRESS_QUANTISE
               : strcmp(name, "bf16") == 0  ? DML_COMPRESS_BF16
               : strcmp(name, "f16") == 0   ? DML_COMPRESS_F16
               : strcmp(name, "top_k") == 0 ? DML_COMPRESS_TOP_K
               : strcmp(name, "power") == 0 ? DML_COMPRESS_POWER
                                            : DML_COMPRESS_NONE;
    return how;
}

/* ---- a rank ---- */

typedef struct rank {
    const model *model;
    int batch;
    dml_comm *comm;
    dml_context *context;
    dml_trainer *trainer;
    float *x;
    int32_t *labels;
} rank;

static void check(const rank *r)
{
    if (dml_comm_status(r->comm) == DML_OK && dml_status_of(r->context) == DML_OK) return;
    fprintf(stderr, "ddp: rank %d: %s %s\n", dml_comm_rank(r->comm), dml_error(r->context),
            dml_comm_error(r->comm));
    exit(1);
}

static void open_rank(rank *r, const model *m, const settings *asked)
{
    double operations;
    const dml_all_reduce_sync_options how = { .bucket_bytes = (size_t)asked->bucket * 1024,
                                              .compression = compression_of(asked->compression) };
    r->model = m;
    r->batch = m->batch < 64 ? m->batch : 64;
    r->context = dml_open(&(dml_options){ .threads = 1 });
    dml_node *loss = build_model(m, dml_graph_create(r->context), &operations);
    r->trainer = dml_trainer_create(
        loss, &(dml_trainer_options){ .batch = r->batch, .optimizer = optimizer_of(m, 0.9, 0) });
    check(r);
    dml_trainer_sync(r->trainer, dml_all_reduce_sync(r->comm, &how));
    check(r);
    r->x = bench_floats("ddp", (size_t)r->batch * input_size(m));
    r->labels = (int32_t *)bench_floats("ddp", (size_t)r->batch * labels_size(m));
    for (int i = 0; i < r->batch; i++) r->labels[i] = i % m->classes;
}

static void close_rank(rank *r)
{
    dml_close(r->context);
    free(r->x);
    free(r->labels);
}

/* Seconds of a step, of as many, on the slowest rank. */
static double time_steps(rank *r, int steps)
{
    dml_comm_barrier(r->comm);
    const double begin = dml_seconds();
    for (int i = 0; i < steps; i++) dml_trainer_step(r->trainer, r->batch, DML_INPUTS(r->x, r->labels), NULL);
    double seconds = (dml_seconds() - begin) / steps;
    dml_comm_all_reduce(r->comm, &seconds, 1, DML_F64, DML_MAX);
    check(r);
    return seconds;
}

/* Rank 0 has the peer; the others wait for it at the next barrier. */
static void measure(rank *r, bench_peers *peers, const settings *asked)
{
    double ours[ROUNDS], theirs[ROUNDS];
    char line[128];
    bench_peer *peer = &peers->list[0];
    const int ranks = dml_comm_world_size(r->comm);
    snprintf(line, sizeof line, "case ddp %s %d 0.9\n", r->model->name, r->batch);
    bool there = peers->count > 0 && peer->process && bench_peer_ask(peers, peer, line) &&
                 strncmp(peer->answer, "ok", 2) == 0;
    snprintf(line, sizeof line, "time %g\n", asked->seconds / ROUNDS);
    time_steps(r, 3);
    const double once = time_steps(r, 3);
    const int steps = once * ROUNDS * 2 > asked->seconds ? 2 : (int)(asked->seconds / ROUNDS / once);
    for (int round = 0; round < ROUNDS; round++) {
        ours[round] = time_steps(r, steps);
        if (!there) continue;
        there = bench_peer_ask(peers, peer, line);
        theirs[round] = there ? strtod(peer->answer, NULL) : 0;
    }
    if (dml_comm_rank(r->comm) != 0) return;
    const double work = (double)ranks * r->batch, mine = bench_median(ours, ROUNDS);
    const double its = there ? bench_median(theirs, ROUNDS) : 0;
    printf("name=ddp what=%s batch=%d ranks=%d compression=%s threads=1 ours=%.4g best_peer=%.4g peer=%s "
           "ratio_peer=%.3f unit=samples/s",
           r->model->name, r->batch, ranks, asked->compression ? asked->compression : "none", work / mine,
           its > 0 ? work / its : 0, its > 0 ? "ddp" : "none", its / mine);
    if (its > 0) printf(" ddp=%.4g", work / its);
    putchar('\n');
    fflush(stdout);
}

static void run_rank(dml_comm *comm, bench_peers *peers, const settings *asked)
{
    static const char *const usual[] = { "mlp", "lenet5", "resnet20" };
    for (int i = 0; i < (asked->model || asked->quick ? 1 : 3); i++) {
        const char *name = asked->model ? asked->model : usual[i];
        int m = 0;
        while (m < MODELS && (strcmp(models[m].name, name) != 0 || !models[m].channels)) m++;
        if (m == MODELS) {
            fprintf(stderr, "ddp: there is no model of images called %s\n", name);
            exit(2);
        }
        rank r;
        memset(&r, 0, sizeof r);
        r.comm = comm;
        open_rank(&r, &models[m], asked);
        measure(&r, peers, asked);
        close_rank(&r);
    }
}

/* ---- the ranks ---- */

static void run_process(int number, int ranks, int port, void *user)
{
    static const char *const names[] = { "ddp", NULL };
    const settings *asked = (const settings *)user;
    bench_peers peers;
    memset(&peers, 0, sizeof peers);
    if (number == 0) bench_peers_start(&peers, "ddp", asked->peers, names, ranks);
    dml_comm *comm = processes_comm("ddp", number, ranks, port, asked->transport);
    run_rank(comm, &peers, asked);
    dml_comm_close(comm);
    bench_peers_end(&peers);
}

int main(int argc, char **argv)
{
    settings asked;
    memset(&asked, 0, sizeof asked);
    const bench_option options[] = { { "--model", BENCH_TEXT, &asked.model, 0, 0 },
                                     { "--ranks", BENCH_INT, &asked.ranks, 2, RANKS_MAX },
                                     { "--transport", BENCH_TEXT, &asked.transport, 0, 0 },
                                     { "--compression", BENCH_TEXT, &asked.compression, 0, 0 },
                                     { "--bucket", BENCH_INT, &asked.bucket, 0, 1 << 20 },
                                     { "--seconds", BENCH_NUMBER, &asked.seconds, 1e-3, 600 },
                                     { "--quick", BENCH_FLAG, &asked.quick, 0, 0 },
                                     { "--peers", BENCH_TEXT, &asked.peers, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "ddp", usage, options);
    if (!(asked.seconds > 0)) asked.seconds = asked.quick ? 0.5 : 4;
    if (asked.ranks) return processes_run("ddp", asked.ranks, run_process, &asked);
    const int failed = processes_run("ddp", 2, run_process, &asked);
    return asked.quick ? failed : failed | processes_run("ddp", 4, run_process, &asked);
}
