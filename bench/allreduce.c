/* allreduce: how fast are the collectives between ranks of this machine, beside Open MPI, Gloo and a bare
   exchange of as many bytes? It says which steps a call takes, which the library keeps to itself, so it
   holds the implementation (see the Makefile). */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "comm/choice.h"
#include "comm/job.h"

#include "bench.h"

#include "bare.h"
#include "collective.h"
#include "loopback.h"

#include <pthread.h>
#include <sys/wait.h>

/* Figures are bus bandwidth as nccl-tests has it: the bytes that a rank must at least send, by the time from
   a barrier to the end on the last rank. A peer is started with the number of ranks; its first process
   speaks, and times itself in the same way. */

enum { RANKS_MAX = 64, SAMPLES_MAX = 51, ROUNDS = 8, ALGORITHMS_MAX = 16 };

typedef struct settings {
    const operation *operation;
    const char *algorithms[ALGORITHMS_MAX]; /* "": the one that is chosen */
    int algorithm_count;
    const char *transport;
    double least, most; /* bytes */
    double seconds;
    bool explain;
    const char *peers; /* their folder, or NULL */
} settings;

static const char usage[] =
    "usage: allreduce [--op NAME] [--algo NAME|all] [--transport tcp|shm|local] [--ranks N] [--min B] "
    "[--max "
    "B]\n"
    "                 [--bytes B] [--explain] [--seconds S] [--quick] [--peers DIR]\n"
    "  --op NAME         all_reduce, reduce, broadcast, scatter, gather, all_gather, reduce_scatter or\n"
    "                    all_to_all; all_reduce\n"
    "  --algo NAME       a row for that algorithm, or for each; otherwise for the one that is chosen\n"
    "  --transport NAME  rows for ranks that are processes over TCP or in shared memory, or threads of "
    "one\n"
    "                    (local) only; otherwise for tcp and shm\n"
    "  --ranks N         rows for N ranks only, 2 to 64; otherwise for 2, 4 and 8\n"
    "  --min B, --max B  sizes from B to B bytes, of the whole array; otherwise 4 to 256 MiB (--quick: 64 "
    "MiB), as far "
    "as\n"
    "                    memory goes, times 16 each, and four times those from 64 KiB on\n"
    "  --bytes B         that size only\n"
    "  --explain         says before each row which steps rank 0 takes, and how long it should take\n"
    "  --seconds S       how long to measure each row; 0.6\n"
    "  --quick           less time\n"
    "  --peers DIR       where the peers are; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"
    "Prints a row for each transport, number of ranks, size and algorithm: microseconds of a call of floats "
    "(sum),\n"
    "whether that algorithm is the one that is chosen, bytes / time (algbw), and that times\n"
    "2 (ranks - 1) / ranks for all_reduce, 1 for reduce and broadcast, or (ranks - 1) / ranks\n"
    "(ours, as busbw of nccl-tests); limit is that of a bare exchange of as many bytes\n"
    "between as many ranks. Peers, which time the same operation: openmpi through shared memory, openmpi_tcp "
    "and\n"
    "gloo over TCP.\n";

static void die(const char *what, const char *name)
{
    fprintf(stderr, "allreduce: %s%s\n", what, name);
    exit(2);
}

/* ---- one call ---- */

typedef struct job {
    dml_comm *comm;
    const settings *asked;
    bare_ring *ring;
    bench_peers *peers;
    float *in, *out; /* (count) each */
    size_t count;    /* floats of the whole array */
} job;

/* What a rank sends at least, in parts of the whole array. */
static double bus_factor(dml__comm_operation call, int ranks)
{
    if (call == DML__CALL_REDUCE || call == DML__CALL_BROADCAST) return 1;
    return (call == DML__CALL_ALL_REDUCE ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

static void check(const dml_comm *comm)
{
    if (dml_comm_status(comm) == DML_OK) return;
    fprintf(stderr, "allreduce: rank %d: %s\n", dml_comm_rank(comm), dml_comm_error(comm));
    exit(1);
}

static void run_once(const job *j)
{
    call_operation(j->asked->operation, j->comm, j->in, j->out, j->count);
}

static void exchange_once(const job *j)
{
    const int rank = dml_comm_rank(j->comm), ranks = dml_comm_world_size(j->comm);
    const dml__comm_operation call = j->asked->operation->call;
    const size_t bytes = j->count * sizeof *j->out;
    const size_t moved = (size_t)(bus_factor(call, ranks) * (double)bytes);
    /* A chain of them, for what goes one way only. */
    const bool chain = call == DML__CALL_BROADCAST || call == DML__CALL_REDUCE;
    bare_exchange(j->ring, (const char *)j->in, (char *)j->out, bytes, chain && rank == ranks - 1 ? 0 : moved,
                  chain && rank == 0 ? 0 : moved);
}

/* Seconds of one, on the rank that takes longest; told to all. */
static double time_calls(const job *j, void (*run)(const job *j), int calls)
{
    dml_comm_barrier(j->comm);
    const double start = dml_seconds();
    for (int i = 0; i < calls; i++) run(j);
    double seconds = (dml_seconds() - start) / calls;
    dml_comm_all_reduce(j->comm, &seconds, 1, DML_F64, DML_MAX);
    check(j->comm);
    return seconds;
}

/* Ranks that have slept may have woken on one processor, and the system takes some milliseconds to see it.
   All ranks get the same times, and so call as often. */
static void warm_up(const job *j)
{
    int calls = 1;
    for (double spent = 0; spent < 0.03; calls *= 2) spent += calls * time_calls(j, run_once, calls);
    time_calls(j, exchange_once, 2);
}

/* ---- what a call does ---- */

static int chosen_algorithm(const job *j, dml__comm_call *call)
{
    const operation *o = j->asked->operation;
    memset(call, 0, sizeof *call);
    call->signature.operation = o->call;
    call->signature.dtype = DML_F32;
    call->signature.count = o->parts ? j->count / (size_t)dml_comm_world_size(j->comm) : j->count;
    return dml__choose_algorithm(j->comm, call);
}

/* What the call should take by the links that rank 0 measured when it opened, to be held against latency_us.
 */
static void explain_price(const job *j, const dml__algorithm_info *info, const dml__collective *c)
{
    const int steps = dml__most_steps(c->size);
    const dml__price_model model = dml__choice_model(&j->comm->model, c->size);
    const size_t bytes = dml__price_work_bytes(&model, c->size, steps);
    void *work = malloc(bytes);
    dml__price price;
    memset(&price, 0, sizeof price);
    if (!work) die("no memory", "");
    const dml_status status =
        dml__price_collective(&model, info, c, sizeof(float), steps, work, bytes, &price);
    if (status == DML_OK)
        printf("# predicted_us=%.4g from %s links\n", price.seconds * 1e6,
               j->comm->measured ? "measured" : "assumed");
    free(work);
}

static void explain(const job *j)
{
    dml__comm_call call;
    int count;
    const dml__algorithm_info *info = &dml__algorithms(&count)[chosen_algorithm(j, &call)];
    const int ranks = dml_comm_world_size(j->comm);
    dml__collective c;
    dml__schedule schedule;
    memset(&c, 0, sizeof c);
    c.operation = call.signature.operation;
    c.size = ranks;
    c.count = call.signature.count;
    schedule.capacity = dml__most_steps(ranks);
    schedule.count = 0;
    schedule.overflowed = false;
    schedule.steps = (dml__step *)malloc((size_t)schedule.capacity * sizeof *schedule.steps);
    if (!schedule.steps) die("no memory", "");
    info->write(&c, &schedule);
    printf("# %s of %zu bytes: %s; rank 0 of %d:\n", j->asked->operation->name, j->count * sizeof(float),
           info->name, ranks);
    char text[DML__STEP_TEXT];
    for (int step = 0; step < schedule.count; step++)
        printf("#   %s\n", dml__step_text(&schedule, step, text));
    free(schedule.steps);
    explain_price(j, info, &c);
}

/* ---- one row ---- */

static void print_row(const job *j, bool automatic, double ours, double bare)
{
    dml__comm_call call;
    int count;
    const int ranks = dml_comm_world_size(j->comm);
    const double bytes = (double)(j->count * sizeof(float));
    const double bus = bus_factor(j->asked->operation->call, ranks) * bytes;
    printf("name=%s transport=%s ranks=%d bytes=%.0f algo=%s chosen=%d latency_us=%.4g algbw=%.4g",
           j->asked->operation->name, j->asked->transport, ranks, bytes,
           dml__algorithms(&count)[chosen_algorithm(j, &call)].name, automatic, 1e6 * ours,
           1e-6 * bytes / ours);
    bench_row(j->peers, 1, ours, bare, 1e-6 * bus, "MB/s");
}

/* Rank 0 has the peers; the others wait at the next barrier. */
static void measure(const job *j, bool automatic)
{
    double ours[SAMPLES_MAX], bare[SAMPLES_MAX], theirs[BENCH_PEERS_MAX][ROUNDS];
    char line[64];
    snprintf(line, sizeof line, "case %s %zu\n", j->asked->operation->name, j->count * sizeof(float));
    for (int i = 0; i < j->peers->count; i++) {
        bench_peer *peer = &j->peers->list[i];
        peer->takes_case =
            peer->process && bench_peer_ask(j->peers, peer, line) && strncmp(peer->answer, "ok", 2) == 0;
    }
    warm_up(j);
    const double once = time_calls(j, run_once, 2) + time_calls(j, exchange_once, 2);
    const int calls = once > 2e-3 ? 1 : (int)(2e-3 / once) + 1;
    const double fit = j->asked->seconds / (once * calls);
    const int samples = fit < 3 ? 3 : fit > SAMPLES_MAX ? SAMPLES_MAX : (int)fit;
    const int rounds = samples < ROUNDS ? samples : ROUNDS;
    snprintf(line, sizeof line, "time %g\n", j->asked->seconds / (2 * rounds));
    for (int round = 0, i = 0; round < rounds; round++) {
        if (round) warm_up(j);
        /* In blocks, as peers are: taking turns, each would find the caches filled by the other. */
        const int first = i, end = (round + 1) * samples / rounds;
        for (i = first; i < end; i++) ours[i] = time_calls(j, run_once, calls);
        for (i = first; i < end; i++) bare[i] = time_calls(j, exchange_once, calls);
        for (int p = 0; p < j->peers->count; p++) {
            bench_peer *peer = &j->peers->list[p];
            if (!peer->takes_case) continue;
            peer->takes_case = bench_peer_ask(j->peers, peer, line);
            theirs[p][round] = peer->takes_case ? strtod(peer->answer, NULL) : 0;
        }
    }
    if (dml_comm_rank(j->comm)) return;
    for (int p = 0; p < j->peers->count; p++)
        if (j->peers->list[p].takes_case) j->peers->list[p].seconds = bench_median(theirs[p], rounds);
    print_row(j, automatic, bench_median(ours, samples), bench_median(bare, samples));
}

/* In and out, of ours and of two peers. */
static bool fits_in_memory(double bytes, size_t ranks)
{
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return memory <= 0 || 6 * bytes * (double)ranks < 0.75 * memory;
}

/* All rows of one size: the array has a whole number of floats for each rank. */
static void measure_size(job *j, double bytes)
{
    const size_t ranks = (size_t)dml_comm_world_size(j->comm);
    if (!fits_in_memory(bytes, ranks)) {
        if (dml_comm_rank(j->comm) == 0)
            printf("# allreduce: left out %.0f bytes between %zu ranks, for want of memory\n", bytes, ranks);
        return;
    }
    j->count = (size_t)bytes / sizeof(float);
    if (j->asked->operation->parts) j->count = (j->count + ranks - 1) / ranks * ranks;
    j->in = new_array(j->count);
    j->out = new_array(j->count);
    dml__comm_call call;
    dml__ask_for_algorithm(j->comm->job, "");
    const int automatic = chosen_algorithm(j, &call);
    for (int i = 0; i < j->asked->algorithm_count; i++) {
        dml__ask_for_algorithm(j->comm->job, j->asked->algorithms[i]);
        if (j->asked->explain && dml_comm_rank(j->comm) == 0) explain(j);
        measure(j, chosen_algorithm(j, &call) == automatic);
    }
    free(j->in);
    free(j->out);
}

/* ---- the ranks ---- */

static void run_rank(dml_comm *comm, bare_ring *ring, bench_peers *peers, const settings *asked)
{
    job j;
    memset(&j, 0, sizeof j);
    j.comm = comm;
    j.asked = asked;
    j.ring = ring;
    j.peers = peers;
    check(comm);
    for (double bytes = asked->least; bytes <= asked->most; bytes *= 16) {
        measure_size(&j, bytes);
        /* 64 KiB and 1 MiB lie far apart. */
        if (bytes * 4 <= asked->most && bytes >= 65536) measure_size(&j, bytes * 4);
    }
    dml_comm_close(comm);
}

static void start_peers(bench_peers *peers, const settings *asked, int ranks)
{
    static const char *const tcp[] = { "openmpi_tcp", "gloo", NULL }, *const shm[] = { "openmpi", NULL },
                             *const none[] = { NULL };
    bench_peers_start(peers, "allreduce", asked->peers,
                      strcmp(asked->transport, "tcp") == 0   ? tcp
                      : strcmp(asked->transport, "shm") == 0 ? shm
                                                             : none,
                      ranks);
}

static void run_process(int rank, int ranks, int port, bare_ring *ring, const settings *asked)
{
    bench_peers peers;
    dml_comm_options options;
    memset(&peers, 0, sizeof peers);
    if (rank == 0) start_peers(&peers, asked, ranks);
    memset(&options, 0, sizeof options);
    options.rank = rank;
    options.world_size = ranks;
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    options.timeout_s = 600; /* rank 0 waits for peers */
    options.transport = asked->transport;
    run_rank(dml_comm_open(&options), ring, &peers, asked);
    bench_peers_end(&peers);
}

/* Forks the ranks and waits for them: 0 if all went well. */
static int run_processes(bare_ring *rings, int ranks, const settings *asked)
{
    pid_t pids[RANKS_MAX];
    const int port = loopback_free_port();
    int failed = 0;
    fflush(stdout);
    for (int rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) bare_die("can't start a process");
        if (pids[rank]) continue;
        for (int other = 0; other < ranks; other++)
            if (other != rank) bare_close(&rings[other]);
        run_process(rank, ranks, port, &rings[rank], asked);
        exit(0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int status = 1;
        bare_close(&rings[rank]);
        waitpid(pids[rank], &status, 0);
        failed |= status != 0;
    }
    bench_peers_told = true; /* by a child */
    return failed;
}

typedef struct thread_rank {
    pthread_t thread;
    dml_comm *comm;
    bare_ring *ring;
    bench_peers peers;
    const settings *asked;
} thread_rank;

static void *run_thread(void *argument)
{
    thread_rank *r = (thread_rank *)argument;
    run_rank(r->comm, r->ring, &r->peers, r->asked);
    return NULL;
}

static int run_threads(bare_ring *rings, int ranks, const settings *asked)
{
    dml_comm *comms[RANKS_MAX];
    thread_rank all[RANKS_MAX];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.timeout_s = 600;
    if (dml_comm_open_local(comms, ranks, &options) != DML_OK) die("no memory", "");
    memset(all, 0, sizeof all);
    for (int rank = 0; rank < ranks; rank++) {
        all[rank].comm = comms[rank];
        all[rank].ring = &rings[rank];
        all[rank].asked = asked;
        if (rank == 0) start_peers(&all[rank].peers, asked, ranks);
        if (pthread_create(&all[rank].thread, NULL, run_thread, &all[rank])) bare_die("can't start a thread");
    }
    for (int rank = 0; rank < ranks; rank++) pthread_join(all[rank].thread, NULL);
    return 0;
}

static int run_ranks(int ranks, settings *asked, const char *transport)
{
    bare_ring rings[RANKS_MAX];
    asked->transport = transport;
    bare_open(rings, ranks, strcmp(transport, "tcp") != 0);
    return strcmp(transport, "local") == 0 ? run_threads(rings, ranks, asked)
                                           : run_processes(rings, ranks, asked);
}

/* ---- what is asked for ---- */

static void name_algorithms(settings *asked, const char *name)
{
    int count;
    const dml__algorithm_info *infos = dml__algorithms(&count);
    if (!name) asked->algorithms[asked->algorithm_count++] = "";
    for (int i = 0; name && i < count && asked->algorithm_count < ALGORITHMS_MAX; i++)
        if (infos[i].operation == asked->operation->call &&
            (strcmp(name, "all") == 0 || strcmp(name, infos[i].name) == 0))
            asked->algorithms[asked->algorithm_count++] = infos[i].name;
    if (!asked->algorithm_count) die("there is no such algorithm: ", name);
}

int main(int argc, char **argv)
{
    int ranks = 0, bytes = 0, failed = 0;
    bool quick = false;
    const char *operation_name = "all_reduce", *algorithm = NULL, *transport = NULL;
    static const char *const transports[] = { "tcp", "shm", "local" };
    settings asked;
    memset(&asked, 0, sizeof asked);
    asked.least = 4;
    asked.most = 256 << 20;
    asked.seconds = 0.6;
    const bench_option options[] = { { "--op", BENCH_TEXT, &operation_name, 0, 0 },
                                     { "--algo", BENCH_TEXT, &algorithm, 0, 0 },
                                     { "--transport", BENCH_TEXT, &transport, 0, 0 },
                                     { "--ranks", BENCH_INT, &ranks, 2, RANKS_MAX },
                                     { "--min", BENCH_NUMBER, &asked.least, 4, 1 << 30 },
                                     { "--max", BENCH_NUMBER, &asked.most, 4, 1 << 30 },
                                     { "--bytes", BENCH_INT, &bytes, 4, 1 << 30 },
                                     { "--explain", BENCH_FLAG, &asked.explain, 0, 0 },
                                     { "--seconds", BENCH_NUMBER, &asked.seconds, 1e-4, 600 },
                                     { "--quick", BENCH_FLAG, &quick, 0, 0 },
                                     { "--peers", BENCH_TEXT, &asked.peers, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "allreduce", usage, options);
    if (quick && asked.seconds > 0.1) asked.seconds = 0.1;
    if (quick && asked.most > 64 << 20) asked.most = 64 << 20;
    if (bytes) asked.least = asked.most = bytes;
    asked.operation = find_operation(operation_name);
    if (!asked.operation) die("there is no such operation: ", operation_name);
    name_algorithms(&asked, algorithm);
    bool known = !transport;
    for (int t = 0; t < 3; t++) {
        if (transport ? strcmp(transport, transports[t]) != 0 : t == 2) continue;
        known = true;
        for (int n = ranks ? ranks : 2; n <= (ranks ? ranks : 8); n *= 2)
            failed |= run_ranks(n, &asked, transports[t]);
    }
    if (!known) die("there is no such transport: ", transport);
    return failed;
}
