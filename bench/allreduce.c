/* allreduce: how fast is dml_comm_all_reduce between processes of this machine, beside Open MPI, Gloo and
   bare sockets? */
#include "bench.h"

#include "dml_comm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Both figures are bus bandwidth: the bytes that each rank must at least send, 2 (n - 1) / n of the buffer,
   by the time from a barrier to the end on rank 0. The limit sends and takes that many bytes between the same
   processes, each to its neighbour, over TCP connections of its own, with no order, headers or sums. A peer
   is started with the number of ranks; its first process speaks, and times itself in the same way. */

enum { RANKS_MAX = 64, SAMPLES_MAX = 51, ROUNDS = 3 };

typedef struct settings {
    int bytes; /* 0: the usual sizes */
    double seconds;
    const char *peers; /* their folder, or NULL */
} settings;

static const char usage[] =
    "usage: allreduce [--ranks N] [--bytes B] [--seconds S] [--quick] [--peers DIR]\n"
    "  --ranks N    rows for N local processes only, 2 to 64; otherwise for 2 and for 4\n"
    "  --bytes B    rows for buffers of B bytes only; otherwise from 4 KiB to 64 MiB\n"
    "  --seconds S  how long to measure each row; 0.6\n"
    "  --quick      less time\n"
    "  --peers DIR  where the peers are; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"
    "Prints a row for each number of ranks and size: ours is the bus bandwidth of dml_comm_all_reduce (f32, "
    "sum),\n"
    "2 (ranks - 1) / ranks * bytes / median time; limit that of a bare socket exchange of as many bytes.\n"
    "Of the peers, openmpi takes shared memory, openmpi_tcp and gloo TCP.\n";

static void die(const char *what)
{
    fprintf(stderr, "allreduce: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- bare sockets ---- */

/* A TCP connection of this process with itself over loopback. */
static void connect_pair(int *sender, int *receiver)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) < 0)
        die("can't listen on loopback");
    *sender = socket(AF_INET, SOCK_STREAM, 0);
    if (*sender < 0 || connect(*sender, (struct sockaddr *)&address, bytes) < 0)
        die("can't connect on loopback");
    *receiver = accept(listener, NULL, NULL);
    if (*receiver < 0) die("can't accept on loopback");
    close(listener);
    setsockopt(*sender, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(*sender, F_SETFL, O_NONBLOCK);
    fcntl(*receiver, F_SETFL, O_NONBLOCK);
}

typedef struct bare_ring {
    int to, from; /* sockets to the next rank and from the one before */
} bare_ring;

/* Sends and takes `bytes`, from and to a buffer of `buffer_bytes` over and over. */
static void exchange(bare_ring ring, char *out, char *in, size_t buffer_bytes, size_t bytes)
{
    size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        ssize_t moved_out = 0, moved_in = 0;
        if (sent < bytes) {
            const size_t at = sent % buffer_bytes, left = buffer_bytes - at;
            moved_out = send(ring.to, out + at, left < bytes - sent ? left : bytes - sent, MSG_NOSIGNAL);
            if (moved_out > 0) sent += (size_t)moved_out;
        }
        if (got < bytes) {
            const size_t at = got % buffer_bytes, left = buffer_bytes - at;
            moved_in = recv(ring.from, in + at, left < bytes - got ? left : bytes - got, 0);
            if (moved_in > 0) got += (size_t)moved_in;
            if (moved_in == 0) exit(1); /* the rank before has failed, and says so itself */
        }
        if (moved_out > 0 || moved_in > 0) continue;
        struct pollfd polls[2] = { { sent < bytes ? ring.to : -1, POLLOUT, 0 },
                                   { got < bytes ? ring.from : -1, POLLIN, 0 } };
        poll(polls, 2, -1);
    }
}

/* ---- one rank ---- */

static void check(const dml_comm *comm)
{
    if (dml_comm_status(comm) == DML_OK) return;
    fprintf(stderr, "allreduce: rank %d: %s\n", dml_comm_rank(comm), dml_comm_error(comm));
    exit(1);
}

static double time_ours(dml_comm *comm, float *data, size_t count, int calls)
{
    dml_comm_barrier(comm);
    const double start = dml_seconds();
    for (int i = 0; i < calls; i++) dml_comm_all_reduce(comm, data, count, DML_F32, DML_SUM);
    const double end = dml_seconds();
    check(comm);
    return (end - start) / calls;
}

static double time_bare(dml_comm *comm, bare_ring ring, float *data, size_t count, int calls, size_t bytes)
{
    const size_t half = (count + 1) / 2 * sizeof *data; /* sent from one half, taken into the other */
    dml_comm_barrier(comm);
    const double start = dml_seconds();
    for (int i = 0; i < calls; i++)
        exchange(ring, (char *)data, (char *)data + count * sizeof *data - half, half, bytes);
    return (dml_seconds() - start) / calls;
}

/* Rank 0 has the peers; the others wait at the next barrier. */
static void measure(dml_comm *comm, bare_ring ring, bench_peers *peers, size_t bytes, double seconds)
{
    const int ranks = dml_comm_world_size(comm);
    const size_t count = bytes / sizeof(float);
    const size_t moved = (size_t)(2.0 * (ranks - 1) / ranks * (double)bytes);
    float *data = (float *)calloc(count, sizeof *data);
    if (!data) die("no memory");
    /* Both warm up; then rank 0 says how often. */
    double ours[SAMPLES_MAX], bare[SAMPLES_MAX], theirs[BENCH_PEERS_MAX][ROUNDS];
    char line[64];
    snprintf(line, sizeof line, "case all_reduce %zu\n", count * sizeof *data);
    for (int i = 0; i < peers->count; i++) {
        bench_peer *peer = &peers->list[i];
        peer->takes_case =
            peer->process && bench_peer_ask(peers, peer, line) && strncmp(peer->answer, "ok", 2) == 0;
    }
    time_bare(comm, ring, data, count, 2, moved);
    time_ours(comm, data, count, 2);
    const double once = time_ours(comm, data, count, 2) + time_bare(comm, ring, data, count, 2, moved);
    int32_t plan[2]; /* samples, calls in each */
    plan[1] = once > 2e-3 ? 1 : (int32_t)(2e-3 / once) + 1;
    const double fit = seconds / (once * plan[1]);
    plan[0] = fit < 3 ? 3 : fit > SAMPLES_MAX ? SAMPLES_MAX : (int32_t)fit;
    dml_comm_broadcast(comm, plan, 2, DML_I32, 0);
    check(comm);
    snprintf(line, sizeof line, "time %g\n", seconds / (2 * ROUNDS));
    for (int i = 0, round = 0; i < plan[0]; i++) {
        ours[i] = time_ours(comm, data, count, plan[1]);
        bare[i] = time_bare(comm, ring, data, count, plan[1], moved);
        if (i + 1 < (round + 1) * plan[0] / ROUNDS) continue;
        for (int p = 0; p < peers->count; p++) {
            bench_peer *peer = &peers->list[p];
            if (!peer->takes_case) continue;
            peer->takes_case = bench_peer_ask(peers, peer, line);
            theirs[p][round] = peer->takes_case ? strtod(peer->answer, NULL) : 0;
        }
        round++;
    }
    free(data);
    if (dml_comm_rank(comm)) return;
    for (int p = 0; p < peers->count; p++)
        if (peers->list[p].takes_case) peers->list[p].seconds = bench_median(theirs[p], ROUNDS);
    printf("name=all_reduce ranks=%d bytes=%zu", ranks, count * sizeof *data);
    bench_row(peers, 1, bench_median(ours, plan[0]), bench_median(bare, plan[0]), 1e-6 * (double)moved,
              "MB/s");
}

static int run_rank(int rank, int ranks, int port, bare_ring ring, const settings *asked)
{
    static const char *const names[] = { "openmpi", "openmpi_tcp", "gloo", NULL };
    bench_peers peers;
    memset(&peers, 0, sizeof peers);
    if (rank == 0) bench_peers_start(&peers, "allreduce", asked->peers, names, ranks);
    dml_comm_options options = { 0 };
    options.rank = rank;
    options.world_size = ranks;
    options.master_addr = "127.0.0.1";
    options.master_port = port;
    options.timeout_s = 600; /* rank 0 waits for peers */
    dml_comm *comm = dml_comm_open(&options);
    check(comm);
    static const size_t sizes[] = { 4096, 65536, 1 << 20, 16 << 20, 64 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !asked->bytes; i++)
        measure(comm, ring, &peers, sizes[i], asked->seconds);
    if (asked->bytes) measure(comm, ring, &peers, (size_t)asked->bytes, asked->seconds);
    bench_peers_end(&peers);
    dml_comm_close(comm);
    return 0;
}

/* ---- all of them ---- */

static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
        die("can't find a free port");
    close(fd);
    return ntohs(address.sin_port);
}

/* Forks the ranks and waits for them: 0 if all went well. */
static int run_ranks(int ranks, const settings *asked)
{
    bare_ring rings[RANKS_MAX];
    pid_t pids[RANKS_MAX];
    const int port = free_port();
    for (int rank = 0; rank < ranks; rank++) connect_pair(&rings[rank].to, &rings[(rank + 1) % ranks].from);
    fflush(stdout);
    for (int rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) die("can't start a process");
        if (pids[rank]) continue;
        for (int other = 0; other < ranks; other++)
            if (other != rank) close(rings[other].to), close(rings[other].from);
        exit(run_rank(rank, ranks, port, rings[rank], asked));
    }
    int failed = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int status = 1;
        close(rings[rank].to);
        close(rings[rank].from);
        waitpid(pids[rank], &status, 0);
        failed |= status != 0;
    }
    return failed;
}

int main(int argc, char **argv)
{
    int ranks = 0;
    bool quick = false;
    settings asked = { 0, 0.6, NULL };
    const bench_option options[] = { { "--ranks", BENCH_INT, &ranks, 2, RANKS_MAX },
                                     { "--bytes", BENCH_INT, &asked.bytes, 8, 1 << 30 },
                                     { "--seconds", BENCH_NUMBER, &asked.seconds, 1e-4, 600 },
                                     { "--quick", BENCH_FLAG, &quick, 0, 0 },
                                     { "--peers", BENCH_TEXT, &asked.peers, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "allreduce", usage, options);
    if (quick && asked.seconds > 0.1) asked.seconds = 0.1;
    if (ranks) return run_ranks(ranks, &asked);
    const int failed = run_ranks(2, &asked);
    bench_peers_told = true; /* by a child */
    return failed | run_ranks(4, &asked);
}
