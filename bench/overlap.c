/* overlap: what a step of data-parallel training costs above what its ranks compute, where communication
   alone would take a good part of it: a row for steps that wait for their gradients, and one for steps that
   don't (across_steps). One rank of a job (RANK, WORLD_SIZE, as dmlrun sets them); rank 0 prints. A world of
   one prints what bench/overlap.sh needs to choose the rate of its links. Two ranks print what the same steps
   lose to as many bytes that another thread sends and takes over a bare connection meanwhile, too
   (bare_loss). Of each also how much more of a processor it takes (busier, bare_busier): what of the loss is
   work, and not waiting. */
#include "../dml.h"
#include "../dml_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "options.h"

enum { MOST_STEPS = 1000, ALONE = 0, IN_STEPS, ACROSS_STEPS, WAYS };

static const char usage[] = "usage: overlap [options]\n"
                            "  --layers N      dense layers (12)\n"
                            "  --width N       of each (512)\n"
                            "  --batch N       samples of a rank (8192)\n"
                            "  --steps N       one behind the other, and the mean of them (2)\n"
                            "  --rounds N      of such steps of each kind, and the median of them (5)\n"
                            "  --bucket KIB    bucket_bytes of the strategy (1024)\n";

static int layers = 12, width = 512, batch = 8192, steps = 2, rounds = 5, bucket = 1024;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare);
    return times[count / 2];
}

static dml_trainer *make_trainer(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, width), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = x;
    for (int i = 0; i < layers; i++) h = dml_relu(dml_dense(h, width));
    dml_node *loss = dml_softmax_cross_entropy(h, t);
    return dml_trainer_create(loss,
                              &(dml_trainer_options){ .batch = batch, .optimizer = dml_sgd(0.01f, 0.9f) });
}

typedef struct cost {
    double wall, processor; /* seconds; of all threads of this rank */
} cost;

static cost cost_now(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (cost){ dml_seconds(), (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                                      1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) };
}

/* Of one of so many, since `begin`. */
static cost cost_since(cost begin, int count)
{
    const cost now = cost_now();
    return (cost){ (now.wall - begin.wall) / count, (now.processor - begin.processor) / count };
}

/* A step in a row of them, that all ranks begin at once and that ends when the last gradient has come. */
static cost time_steps(dml_trainer *trainer, dml_comm *comm, const float *x, const int32_t *t)
{
    dml_comm_barrier(comm);
    const cost begin = cost_now();
    for (int i = 0; i < steps; i++) dml_trainer_step(trainer, batch, DML_INPUTS(x, t), NULL);
    dml_trainer_gather(trainer);
    return cost_since(begin, steps);
}

/* Of a way to make steps: a step, and what it costs above steps alone. */
typedef struct way_costs {
    double seconds, processor, loss, busier;
} way_costs;

/* In turns: what else the machine does changes. */
static void time_ways(dml_trainer *const trainer[WAYS], int ways, dml_comm *comm, const float *x,
                      const int32_t *t, way_costs costs[WAYS])
{
    static double times[WAYS][MOST_STEPS], used[WAYS][MOST_STEPS], losses[WAYS][MOST_STEPS],
        busier[WAYS][MOST_STEPS];
    for (int i = -1; i < rounds; i++) /* the first one warms up */
        for (int w = 0; w < ways; w++) {
            const cost one = time_steps(trainer[w], comm, x, t);
            if (i < 0) continue;
            times[w][i] = one.wall;
            used[w][i] = one.processor;
            losses[w][i] = one.wall / times[ALONE][i] - 1;
            busier[w][i] = one.processor / used[ALONE][i] - 1;
        }
    for (int w = ways - 1; w >= 0; w--) {
        costs[w].seconds = median(times[w], rounds);
        costs[w].processor = median(used[w], rounds);
        costs[w].loss = median(losses[w], rounds);
        costs[w].busier = median(busier[w], rounds);
    }
}

/* The same buckets, from the end of g to its start, and nothing else to do. */
static double time_communication(dml_comm *comm, float *g, size_t count)
{
    static double times[MOST_STEPS];
    const size_t elements = (size_t)bucket * 1024 / sizeof *g;
    dml_request *requests[256];
    for (int i = -1; i < steps; i++) {
        int started = 0;
        dml_comm_barrier(comm);
        const double begin = dml_seconds();
        for (size_t end = count; end > 0 && started < 256;) {
            const size_t size = end < 2 * elements ? end : elements;
            end -= size;
            requests[started++] = dml_comm_all_reduce_start(comm, g + end, size, DML_F32, DML_SUM);
        }
        for (int r = 0; r < started; r++) dml_comm_wait(comm, requests[r]);
        if (i >= 0) times[i] = dml_seconds() - begin;
    }
    return median(times, steps);
}

/* A connection of two ranks beside the communicator's: rank 0 listens, rank 1 finds it where the job's
   rendezvous is. -1: there is none. */
static int bare_connection(dml_comm *comm)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool fine = fd >= 0;
    int64_t port = 0;
    if (dml_comm_rank(comm) == 0) {
        fine = fine && bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, 1) == 0 &&
               getsockname(fd, (struct sockaddr *)&address, &bytes) == 0;
        port = fine ? ntohs(address.sin_port) : 0;
    }
    if (dml_comm_broadcast(comm, &port, 1, DML_I64, 0) != DML_OK || !port) return -1;
    if (dml_comm_rank(comm) == 0) {
        const int accepted = accept(fd, NULL, NULL);
        close(fd);
        return accepted;
    }
    const struct hostent *host = gethostbyname(getenv("MASTER_ADDR") ? getenv("MASTER_ADDR") : "localhost");
    if (host) memcpy(&address.sin_addr, host->h_addr_list[0], sizeof address.sin_addr);
    address.sin_port = htons((uint16_t)port);
    if (fine && host && connect(fd, (struct sockaddr *)&address, bytes) == 0) return fd;
    return -1;
}

typedef struct bare_exchange {
    int fd;
    size_t bytes;
    char *out, *in;
} bare_exchange;

static void *exchange_bare(void *argument)
{
    const bare_exchange *e = (const bare_exchange *)argument;
    for (size_t sent = 0, taken = 0; sent < e->bytes || taken < e->bytes;) {
        struct pollfd ready = { e->fd,
                                (short)((sent < e->bytes ? POLLOUT : 0) | (taken < e->bytes ? POLLIN : 0)),
                                0 };
        if (poll(&ready, 1, 10000) <= 0 || (ready.revents & (POLLERR | POLLNVAL))) break;
        if (ready.revents & POLLOUT) {
            const ssize_t n = send(e->fd, e->out + sent, e->bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += n > 0 ? (size_t)n : 0;
        }
        if (ready.revents & (POLLIN | POLLHUP)) {
            const ssize_t n = recv(e->fd, e->in + taken, e->bytes - taken, MSG_DONTWAIT);
            if (n == 0) break;
            taken += n > 0 ? (size_t)n : 0;
        }
    }
    return NULL;
}

/* The median step beside such an exchange, which ends with it; 0: there is no connection. */
static cost time_beside_bare(dml_trainer *trainer, dml_comm *comm, const float *x, const int32_t *t, float *g,
                             size_t bytes)
{
    static double times[MOST_STEPS], used[MOST_STEPS];
    bare_exchange exchange = { bare_connection(comm), bytes, (char *)g, (char *)malloc(bytes) };
    if (exchange.fd < 0 || !exchange.in) return (cost){ 0, 0 };
    for (int i = -1; i < steps; i++) {
        pthread_t thread;
        dml_comm_barrier(comm);
        const cost begin = cost_now();
        if (pthread_create(&thread, NULL, exchange_bare, &exchange)) return (cost){ 0, 0 };
        dml_trainer_step(trainer, batch, DML_INPUTS(x, t), NULL);
        pthread_join(thread, NULL);
        const cost one = cost_since(begin, 1);
        if (i < 0) continue;
        times[i] = one.wall;
        used[i] = one.processor;
    }
    close(exchange.fd);
    free(exchange.in);
    return (cost){ median(times, steps), median(used, steps) };
}

static void print(const char *name, const way_costs *way, const way_costs *alone, double communication,
                  cost bare, int ranks, size_t count)
{
    const double compute = alone->seconds;
    printf(
        "name=overlap what=%s layers=%d width=%d batch=%d ranks=%d mib=%.1f threads=1 ours=%.2f limit=%.2f "
        "ratio_limit=%.3f unit=ms_per_step communication=%.2f share=%.2f loss=%.3f hidden=%.2f busier=%.3f "
        "bare_loss=%.3f bare_busier=%.3f\n",
        name, layers, width, batch, ranks, (double)count * 4 / 1048576, way->seconds * 1e3, compute * 1e3,
        compute / way->seconds, communication * 1e3, communication / compute, way->loss,
        1 - way->loss * compute / communication, way->busier, bare.wall > 0 ? bare.wall / compute - 1 : 0,
        bare.wall > 0 ? bare.processor / alone->processor - 1 : 0);
}

int main(int argc, char **argv)
{
    const bench_option options[] = { { "--layers", BENCH_INT, &layers, 1, 1000 },
                                     { "--width", BENCH_INT, &width, 1, 16384 },
                                     { "--batch", BENCH_INT, &batch, 1, 1 << 20 },
                                     { "--steps", BENCH_INT, &steps, 1, MOST_STEPS },
                                     { "--rounds", BENCH_INT, &rounds, 1, MOST_STEPS },
                                     { "--bucket", BENCH_INT, &bucket, 1, 1 << 20 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "overlap", usage, options);
    dml_comm *comm = dml_comm_open(NULL);
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const int ranks = dml_comm_world_size(comm), ways = ranks == 1 ? 1 : WAYS;
    dml_trainer *trainer[WAYS] = { NULL };
    for (int w = 0; w < ways; w++) trainer[w] = make_trainer(context);
    float *x = (float *)calloc((size_t)batch * (size_t)width, sizeof *x);
    int32_t *t = (int32_t *)calloc((size_t)batch, sizeof *t);
    if (!comm || !trainer[ways - 1] || !x || !t || dml_comm_status(comm)) {
        fprintf(stderr, "overlap: %s %s\n", dml_error(context), dml_comm_error(comm));
        return 1;
    }
    for (size_t i = 0; i < (size_t)batch * (size_t)width; i++)
        x[i] = (float)(i * 2654435761u % 1000) / 1000 - 0.5f;
    for (int i = 0; i < batch; i++) t[i] = i * 7 % width;
    for (int w = IN_STEPS; w < ways; w++)
        dml_trainer_sync(trainer[w], dml_all_reduce_sync(comm, &(dml_all_reduce_sync_options){
                                                                   .bucket_bytes = (size_t)bucket * 1024,
                                                                   .across_steps = w == ACROSS_STEPS }));
    const size_t count = dml_trainer_count(trainer[0], DML_GRADIENTS);
    way_costs costs[WAYS];
    time_ways(trainer, ways, comm, x, t, costs);
    if (ranks == 1) {
        printf("%.6f %zu\n", costs[ALONE].seconds, count * sizeof(float));
        return 0;
    }
    float *g = (float *)calloc(count, sizeof *g);
    const double communication = g ? time_communication(comm, g, count) : 0;
    const cost bare =
        g && ranks == 2 ? time_beside_bare(trainer[ALONE], comm, x, t, g, count * sizeof *g) : (cost){ 0, 0 };
    if (dml_status_of(context) || dml_comm_status(comm)) {
        fprintf(stderr, "overlap: %s %s\n", dml_error(context), dml_comm_error(comm));
        return 1;
    }
    for (int w = IN_STEPS; w < ways && dml_comm_rank(comm) == 0; w++)
        print(w == ACROSS_STEPS ? "across_steps" : "in_steps", &costs[w], &costs[ALONE], communication, bare,
              ranks, count);
    dml_close(context);
    free(g);
    free(x);
    free(t);
    return dml_comm_close(comm) ? 1 : 0;
}
