/* ps: what a synchronous parameter server costs on this machine: 2 workers and 1 server over loopback, beside
   bare sockets that carry as many bytes the same ways, and add nothing. */
#include "dml_comm.h"

#include "loopback.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 2, ROUNDS = 5, MOST_STEPS = 64 };

static const char usage[] =
    "usage: ps [--bytes B] [--steps N] [--transport NAME] [--quick]\n"
    "  --bytes B         of the vector; 33554432\n"
    "  --steps N         of each of 5 rounds, up to 64; 6\n"
    "  --transport NAME  of ours: tcp or shm; tcp\n"
    "  --quick           an eighth of the bytes\n"
    "Prints the bytes per second that all connections together carry: each worker pushes the vector and "
    "pulls\n"
    "it, step by step. Limit: bare sockets. Medians over all steps but each round's first.\n";

static size_t vector_bytes = (size_t)32 << 20;
static int steps = 6;
static const char *transport = "tcp";
static double *taken; /* (2, ROUNDS, MOST_STEPS) seconds, in memory that worker 0 and the parent share */

static void die(const char *what)
{
    fprintf(stderr, "ps: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* All connections carry the vector one way, as fast as each can. */
static void carry(const int *fds, int count, char *const *data, bool out)
{
    size_t done[WORKERS] = { 0 };
    int left = count;
    while (left > 0) {
        struct pollfd polls[WORKERS];
        for (int i = 0; i < count; i++) {
            polls[i].fd = done[i] < vector_bytes ? fds[i] : -1;
            polls[i].events = out ? POLLOUT : POLLIN;
            polls[i].revents = 0;
        }
        if (poll(polls, (nfds_t)count, -1) < 0) die("poll");
        for (int i = 0; i < count; i++) {
            if (!polls[i].revents) continue;
            const size_t rest = vector_bytes - done[i], part = rest < 262144 ? rest : 262144;
            const ssize_t n = out ? send(fds[i], data[i] + done[i], part, MSG_DONTWAIT)
                                  : recv(fds[i], data[i] + done[i], part, MSG_DONTWAIT);
            if (n <= 0 && errno != EAGAIN) die("a bare socket");
            if (n > 0) done[i] += (size_t)n;
            if (n > 0 && done[i] == vector_bytes) left--;
        }
    }
}

static void bare_rank(int rank, int ends[WORKERS][2], double *seconds)
{
    char *data[WORKERS];
    int fds[WORKERS];
    const int count = rank < WORKERS ? 1 : WORKERS;
    for (int i = 0; i < count; i++) {
        data[i] = (char *)calloc(1, vector_bytes);
        if (!data[i]) die("no memory");
        fds[i] = rank < WORKERS ? ends[rank][0] : ends[i][1];
    }
    for (int step = 0; step < steps; step++) {
        const double begin = dml_seconds();
        carry(fds, count, data, rank < WORKERS);
        carry(fds, count, data, rank >= WORKERS);
        if (rank == 0) seconds[step] = dml_seconds() - begin;
    }
}

static void our_rank(int rank, int port, double *seconds)
{
    dml_comm_options options;
    const dml_cluster cluster = dml_cluster_of(rank, WORKERS, 1);
    memset(&options, 0, sizeof options);
    options.master_port = port;
    options.transport = transport;
    dml_comm *comm = dml_cluster_open(&cluster, &options);
    if (dml_cluster_is_server(&cluster)) {
        dml_ps_serve(comm, &cluster, NULL, NULL);
    } else {
        const size_t n = vector_bytes / sizeof(float);
        float *w = (float *)calloc(n, sizeof *w), *g = (float *)calloc(n, sizeof *g);
        dml_ps *ps = w && g ? dml_ps_open(comm, &cluster, n, w, NULL) : NULL;
        for (int step = 0; step < steps; step++) {
            const double begin = dml_seconds();
            dml_ps_push(ps, g, 0, n, 1);
            dml_ps_clock(ps);
            dml_ps_wait(ps, dml_ps_pull(ps, w, 0, n));
            if (rank == 0) seconds[step] = dml_seconds() - begin;
        }
        dml_ps_close(ps);
    }
    if (dml_comm_status(comm)) fprintf(stderr, "ps: %s\n", dml_comm_error(comm));
    if (dml_comm_close(comm)) exit(1);
}

static void run_round(bool ours, double *seconds)
{
    int ends[WORKERS][2];
    pid_t pids[WORKERS + 1];
    for (int i = 0; i < WORKERS; i++) loopback_pair(ends[i]);
    const int port = loopback_free_port();
    for (int rank = 0; rank <= WORKERS; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0) die("no process");
        if (pids[rank]) continue;
        if (ours)
            our_rank(rank, port, seconds);
        else
            bare_rank(rank, ends, seconds);
        exit(0);
    }
    for (int rank = 0; rank <= WORKERS; rank++) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        if (status != 0) die("a rank failed");
    }
    for (int i = 0; i < WORKERS; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of all rounds, without each one's first step. */
static double median(const double *seconds)
{
    double all[ROUNDS * MOST_STEPS];
    size_t count = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int step = 1; step < steps; step++) all[count++] = seconds[round * MOST_STEPS + step];
    qsort(all, count, sizeof *all, compare);
    return all[count / 2];
}

int main(int argc, char **argv)
{
    double bytes = (double)vector_bytes;
    bool quick = false;
    const bench_option options[] = { { "--bytes", BENCH_NUMBER, &bytes, sizeof(float), 1e10 },
                                     { "--steps", BENCH_INT, &steps, 2, MOST_STEPS },
                                     { "--transport", BENCH_TEXT, &transport, 0, 0 },
                                     { "--quick", BENCH_FLAG, &quick, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "ps", usage, options);
    vector_bytes = (size_t)(quick ? bytes / 8 : bytes) / sizeof(float) * sizeof(float);
    taken = (double *)mmap(NULL, 2 * ROUNDS * MOST_STEPS * sizeof *taken, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) die("no memory");
    double *ours = taken + ROUNDS * MOST_STEPS;
    for (int round = 0; round < ROUNDS; round++) {
        run_round(false, taken + round * MOST_STEPS);
        run_round(true, ours + round * MOST_STEPS);
    }
    const double moved = 2.0 * WORKERS * (double)vector_bytes / 1e9;
    printf("name=ps what=synchronous workers=%d servers=1 bytes=%zu medium=%s threads=1 ours=%.4g limit=%.4g "
           "ratio_limit=%.3f unit=GB/s\n",
           WORKERS, vector_bytes, transport, moved / median(ours), moved / median(taken),
           median(taken) / median(ours));
    return 0;
}
