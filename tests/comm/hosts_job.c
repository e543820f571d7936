/* hosts_job.c: a rank of a job between hosts (hosts.sh), by what is in its environment.

       hosts_job BODY TIMEOUT [BIND_ADDR]

   Ends with 0, or 1 and a sentence; what its buffers hold is checked. */
#define DML_IMPLEMENTATION
#include "dml_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forms.h"

static int rank, world, wrong;

static float *numbers(size_t count, int of_rank)
{
    float *x = (float *)malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(of_rank * 100 + (int)(i % 97));
    return x;
}

static void broadcast(dml_comm *comm, size_t count, int root)
{
    float *x = numbers(count, rank), *want = numbers(count, root);
    if (!dml_comm_broadcast(comm, x, count, DML_F32, root)) wrong += memcmp(x, want, count * sizeof *x) != 0;
    free(x);
    free(want);
}

static void all_reduce(dml_comm *comm, size_t count)
{
    float *x = numbers(count, rank);
    int differ = 0;
    if (!dml_comm_all_reduce(comm, x, count, DML_F32, DML_SUM))
        for (size_t i = 0; i < count; i++)
            differ += x[i] != (float)(world * (world - 1) / 2 * 100 + world * (int)(i % 97));
    wrong += differ != 0;
    free(x);
}

/* 2.5 MB to all, then a sum: for whoever has sent its part into buffers of the system the sum begins long
   before the others have the broadcast. */
static void body_broadcast(dml_comm *comm)
{
    broadcast(comm, 625000, 0);
    all_reduce(comm, 100);
}

/* What buffers of the system and the queues of a slow link hold at once: questions come behind it. */
static void body_queue(dml_comm *comm)
{
    broadcast(comm, 150000, 0);
    all_reduce(comm, 100);
}

/* The last rank waits for rank 1, which receives from rank 0 for long: questions to it come behind what
   another has sent, of which the last rank's system sees nothing confirmed. */
static void body_behind(dml_comm *comm)
{
    enum { COUNT = 300000 };
    float *x = numbers(COUNT, rank);
    if (rank == 0) JOB_SEND_NOW(comm, x, COUNT, DML_F32, 1);
    if (rank == 1 && !JOB_RECEIVE_NOW(comm, x, COUNT, DML_F32, 0)) {
        wrong += x[98] != 1;
        JOB_SEND_NOW(comm, x, 10, DML_F32, world - 1);
    }
    if (rank == world - 1 && !JOB_RECEIVE_NOW(comm, x, 10, DML_F32, 1)) wrong += x[9] != 9;
    dml_comm_barrier(comm);
    free(x);
}

/* Long operations of every kind, one after the other. */
static void body_all(dml_comm *comm)
{
    enum { COUNT = 300000 };
    all_reduce(comm, COUNT);
    broadcast(comm, COUNT, world - 1);
    float *x = numbers(COUNT, rank), *all = (float *)malloc((size_t)world * COUNT * sizeof *all);
    if (!dml_comm_all_gather(comm, x, COUNT / 4, DML_F32, all))
        for (int r = 0; r < world; r++) wrong += all[(size_t)r * (COUNT / 4) + 5] != (float)(r * 100 + 5);
    if (rank == 0) JOB_SEND_NOW(comm, x, COUNT, DML_F32, world - 1);
    if (rank == world - 1) {
        if (!JOB_RECEIVE_NOW(comm, x, COUNT, DML_F32, 0)) wrong += x[98] != 1;
    }
    dml_comm_barrier(comm);
    free(x);
    free(all);
}

/* 4 MB of two roots. */
static void body_roots(dml_comm *comm)
{
    broadcast(comm, 1000000, rank == 1);
    dml_comm_barrier(comm);
}

/* For ever, in small steps. */
static void body_loop(dml_comm *comm)
{
    puts("begun");
    fflush(stdout);
    while (!dml_comm_status(comm)) all_reduce(comm, 1000);
}

/* What was measured of the links. */
static void body_links(dml_comm *comm)
{
    char text[4096];
    dml_comm_describe(comm, text, sizeof text);
    puts(text);
}

static const struct {
    const char *name;
    void (*run)(dml_comm *comm);
} bodies[] = { { "broadcast", body_broadcast }, { "queue", body_queue },
               { "behind", body_behind },       { "all", body_all },
               { "roots", body_roots },         { "loop", body_loop },
               { "links", body_links } };

int main(int argc, char **argv)
{
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.timeout_s = argc > 2 ? atof(argv[2]) : 0;
    options.bind_addr = argc > 3 ? argv[3] : NULL;
    dml_comm *comm = dml_comm_open(&options);
    rank = dml_comm_rank(comm);
    world = dml_comm_world_size(comm);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies && !dml_comm_status(comm); i++)
        if (argc > 1 && strcmp(argv[1], bodies[i].name) == 0) bodies[i].run(comm);
    dml_status status = dml_comm_status(comm);
    if (status) printf("%s\n", dml_comm_error(comm));
    const dml_status closed = JOB_CLOSE(comm);
    if (!status && closed) printf("closing: status %d\n", (int)closed);
    if (!status && wrong) printf("%d wrong results\n", wrong);
    return status || closed || wrong ? 1 : 0;
}
