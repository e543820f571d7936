/* cut: samples per second of training one model that is cut over processes of this machine, one thread each:
   its layers in parts (tensor), these and its letters, too (vocabulary), or some layers on each (pipeline).
   Beside PyTorch on Gloo, and as a limit beside as many processes that train models of their own at the same
   time and exchange nothing. */
#include "bench.h"
#include "processes.h"

enum { ROUNDS = 5, T = 64, WIDTH = 256, LAYERS = 4, HEADS = 8, BATCH = 32, MICRO = 4 };

typedef enum way { TENSOR, VOCABULARY, PIPELINE, WAYS } way;
static const char *const way_names[WAYS] = { "tensor", "vocabulary", "pipeline" };

typedef struct settings {
    const char *what, *transport, *peers;
    int ranks, letters;
    double seconds;
    bool quick;
} settings;

static const char usage[] =
    "usage: cut [options]\n"
    "  --what NAME       tensor, vocabulary or pipeline; otherwise each\n"
    "  --letters N       that there are; 256\n"
    "  --ranks N         processes, 2 or 4; otherwise 2\n"
    "  --transport NAME  between ours: tcp or shm; otherwise as programs have it\n"
    "  --seconds S       how long to time each row, for ours and for the peer; 4\n"
    "  --quick           for a short time\n"
    "  --peers DIR       where the peer is; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"
    "Prints a row for each way: samples per second of a small GPT, 4 layers of 256, 64 letters a sample, a "
    "step "
    "of 32 in micro-batches of 4. The limit is what the processes do at once, each by itself.\n";

/* ---- a rank ---- */

typedef struct rank {
    way cut;
    int all;        /* letters */
    dml_comm *comm; /* NULL: alone */
    dml_context *context;
    dml_trainer *trainer;
    dml_pipeline *pipeline;
    int32_t *letters; /* (BATCH, T), which it reads and should write */
    int count;
} rank;

static void check(const rank *r, dml_comm *all)
{
    if (dml_comm_status(all) == DML_OK && dml_status_of(r->context) == DML_OK) return;
    fprintf(stderr, "cut: rank %d: %s %s\n", dml_comm_rank(all), dml_error(r->context), dml_comm_error(all));
    exit(1);
}

static dml_node *dense(dml_node *x, int units, bool rows, dml_comm *comm)
{
    return !comm  ? dml_dense(x, units)
           : rows ? dml_row_parallel_dense(x, units, comm)
                  : dml_column_parallel_dense(x, units, comm);
}

static dml_node *block(dml_node *h, dml_comm *comm)
{
    const dml_multi_head_attention_options causal = { .causal = true };
    dml_node *n = dml_layer_norm(h, NULL);
    h = dml_add(h, comm ? dml_parallel_attention(n, HEADS, &causal, comm)
                        : dml_multi_head_attention(n, HEADS, &causal));
    n = dml_gelu_tanh(dense(dml_layer_norm(h, NULL), 4 * WIDTH, false, comm));
    return dml_add(h, dense(n, WIDTH, true, comm));
}

static dml_node *look_up(const rank *r, dml_node *letters, dml_comm *parts)
{
    return parts && r->cut == VOCABULARY ? dml_parallel_embedding(letters, r->all, WIDTH, parts)
                                         : dml_embedding(letters, r->all, WIDTH);
}

static dml_node *loss_of(const rank *r, dml_node *h, dml_comm *parts)
{
    dml_node *next = dml_input(dml_node_graph(h), "next", DML_I32, T);
    if (!parts || r->cut != VOCABULARY) return dml_softmax_cross_entropy(dml_dense(h, r->all), next);
    return dml_parallel_softmax_cross_entropy(dml_column_parallel_dense(h, r->all, parts), next, parts);
}

static dml_node *build(const rank *r)
{
    const bool pipelined = r->cut == PIPELINE;
    dml_comm *stages = pipelined ? r->comm : NULL, *parts = pipelined ? NULL : r->comm;
    const int stage = stages ? dml_comm_rank(stages) : 0, last = stages ? dml_comm_world_size(stages) - 1 : 0;
    dml_graph *g = dml_graph_create(r->context);
    dml_node *h = stage > 0 ? dml_pipeline_input(g, stages)
                            : dml_learned_positions(look_up(r, dml_input(g, "letters", DML_I32, T), parts));
    for (int layer = 0; layer < LAYERS; layer++)
        if (layer * (last + 1) / LAYERS == stage) h = block(h, parts);
    if (stage < last) return dml_pipeline_output(h, stages);
    return loss_of(r, dml_layer_norm(h, NULL), parts);
}

static void open_rank(rank *r, dml_comm *comm, way cut, int letters)
{
    memset(r, 0, sizeof *r);
    r->comm = comm;
    r->cut = cut;
    r->all = letters;
    r->context = dml_open(&(dml_options){ .threads = 1 });
    r->trainer = dml_trainer_create(
        build(r), &(dml_trainer_options){ .batch = MICRO, .optimizer = dml_sgd(1e-3f, 0.9f) });
    const int ranks = comm && cut == PIPELINE ? dml_comm_world_size(comm) : 1;
    const int stage = ranks > 1 ? dml_comm_rank(comm) : 0;
    r->count = (stage == 0) + (stage == ranks - 1);
    if (ranks > 1) r->pipeline = dml_pipeline_create(r->trainer, comm);
    r->letters = (int32_t *)bench_floats("cut", (size_t)BATCH * T);
    for (int i = 0; i < BATCH * T; i++) r->letters[i] = i * 7 % letters;
}

static void close_rank(rank *r)
{
    dml_close(r->context);
    free(r->letters);
}

static void step(rank *r)
{
    const void *inputs[2] = { r->letters, r->letters };
    if (r->pipeline) {
        dml_pipeline_step(r->pipeline, BATCH, inputs, r->count, NULL);
        return;
    }
    for (int at = 0; at < BATCH; at += MICRO) {
        const int flags = (at > 0 ? DML_ADD : 0) | (at + MICRO < BATCH ? DML_MORE : 0);
        inputs[0] = inputs[1] = r->letters + at * T;
        dml_trainer_backward(r->trainer, MICRO, inputs, 2, flags, NULL);
    }
    dml_trainer_update(r->trainer);
}

/* Seconds of a step, of as many, on the slowest rank. */
static double time_steps(rank *r, dml_comm *all, int steps)
{
    dml_comm_barrier(all);
    const double begin = dml_seconds();
    for (int i = 0; i < steps; i++) step(r);
    double seconds = (dml_seconds() - begin) / steps;
    dml_comm_all_reduce(all, &seconds, 1, DML_F64, DML_MAX);
    check(r, all);
    return seconds;
}

/* Rank 0 has the peer; the others wait for it at the next barrier. */
static void measure(dml_comm *all, bench_peers *peers, const settings *asked, way how)
{
    double ours[ROUNDS], theirs[ROUNDS], limits[ROUNDS];
    const char *what = way_names[how];
    const int ranks = dml_comm_world_size(all);
    char line[128];
    rank cut, alone;
    bench_peer *peer = &peers->list[0];
    open_rank(&cut, all, how, asked->letters);
    open_rank(&alone, NULL, how, asked->letters);
    check(&cut, all);
    check(&alone, all);
    snprintf(line, sizeof line, "case %s %d %d %d %d %d %d %d\n", what, asked->letters, T, WIDTH, LAYERS,
             HEADS, BATCH, MICRO);
    bool there = how != VOCABULARY && peers->count > 0 && peer->process &&
                 bench_peer_ask(peers, peer, line) && strncmp(peer->answer, "ok", 2) == 0;
    snprintf(line, sizeof line, "time %g\n", asked->seconds / ROUNDS);
    time_steps(&alone, all, 2);
    time_steps(&cut, all, 2);
    const double once = time_steps(&cut, all, 2);
    const int steps = once * ROUNDS * 2 > asked->seconds ? 2 : (int)(asked->seconds / ROUNDS / once);
    for (int round = 0; round < ROUNDS; round++) {
        ours[round] = time_steps(&cut, all, steps);
        limits[round] = time_steps(&alone, all, steps) / ranks;
        if (!there) continue;
        there = bench_peer_ask(peers, peer, line);
        theirs[round] = there ? strtod(peer->answer, NULL) : 0;
    }
    close_rank(&alone);
    close_rank(&cut);
    if (dml_comm_rank(all) != 0) return;
    const double mine = bench_median(ours, ROUNDS), limit = bench_median(limits, ROUNDS);
    const double its = there ? bench_median(theirs, ROUNDS) : 0;
    printf("name=cut what=%s ranks=%d letters=%d micro_batches=%d threads=1 ours=%.4g best_peer=%.4g peer=%s "
           "limit=%.4g "
           "ratio_peer=%.3f ratio_limit=%.3f unit=samples/s\n",
           what, ranks, asked->letters, BATCH / MICRO, BATCH / mine, its > 0 ? BATCH / its : 0,
           its > 0 ? "torch" : "none", BATCH / limit, its / mine, limit / mine);
    fflush(stdout);
}

static void run_process(int number, int ranks, int port, void *user)
{
    static const char *const names[] = { "cut", NULL };
    const settings *asked = (const settings *)user;
    bench_peers peers;
    memset(&peers, 0, sizeof peers);
    if (number == 0) bench_peers_start(&peers, "cut", asked->peers, names, ranks);
    dml_comm *comm = processes_comm("cut", number, ranks, port, asked->transport);
    for (int how = 0; how < WAYS; how++)
        if (!asked->what || strcmp(asked->what, way_names[how]) == 0) measure(comm, &peers, asked, (way)how);
    dml_comm_close(comm);
    bench_peers_end(&peers);
}

int main(int argc, char **argv)
{
    settings asked;
    memset(&asked, 0, sizeof asked);
    const bench_option options[] = { { "--what", BENCH_TEXT, &asked.what, 0, 0 },
                                     { "--ranks", BENCH_INT, &asked.ranks, 2, 4 },
                                     { "--letters", BENCH_INT, &asked.letters, 4, 1000000 },
                                     { "--transport", BENCH_TEXT, &asked.transport, 0, 0 },
                                     { "--seconds", BENCH_NUMBER, &asked.seconds, 1e-3, 600 },
                                     { "--quick", BENCH_FLAG, &asked.quick, 0, 0 },
                                     { "--peers", BENCH_TEXT, &asked.peers, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "cut", usage, options);
    bool known = !asked.what;
    for (int how = 0; how < WAYS; how++) known = known || strcmp(asked.what, way_names[how]) == 0;
    if (!known) {
        fprintf(stderr, "cut: --what %s: it is tensor, vocabulary or pipeline\n", asked.what);
        return 2;
    }
    if (asked.ranks == 3) {
        fprintf(stderr, "cut: --ranks 3: they are 2 or 4, which divide its layers and heads\n");
        return 2;
    }
    if (!asked.letters) asked.letters = 256;
    if (asked.letters % 4) {
        fprintf(stderr, "cut: --letters %d: 2 and 4 ranks share a multiple of 4\n", asked.letters);
        return 2;
    }
    if (!(asked.seconds > 0)) asked.seconds = asked.quick ? 0.5 : 4;
    return processes_run("cut", asked.ranks ? asked.ranks : 2, run_process, &asked);
}
