/* mpi: the collectives of any MPI as a peer of bench/allreduce. Started on every rank; rank 0 speaks
   (peer.h), and tells the others, which sleep between cases, since mpirun's processes aren't stopped with it.
 */
#define _GNU_SOURCE
#include "peer.h"

#include <mpi.h>

enum { END, PREPARE, RUN, SAMPLES = 51 };

static const char *const operations[] = { "all_reduce", "reduce",     "broadcast",      "scatter",
                                          "gather",     "all_gather", "reduce_scatter", "all_to_all" };
enum { ALL_REDUCE, REDUCE, BROADCAST, SCATTER, GATHER, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, OPERATIONS };

static float *in, *out; /* (count) */
static int operation, count, rank, ranks;

/* As in bench/allreduce.c: pages that nobody has written are all one page of zeros. */
static float *new_array(int floats)
{
    float *array = (float *)malloc((size_t)floats * sizeof *array);
    int i;
    if (!array) MPI_Abort(MPI_COMM_WORLD, 1);
    for (i = 0; i < floats; i++) array[i] = 1;
    return array;
}

static void prepare(int what, int floats)
{
    free(in);
    free(out);
    operation = what;
    count = floats;
    in = new_array(count);
    out = new_array(count);
}

/* As run_once() in bench/allreduce.c. */
static void run_once(void)
{
    const MPI_Comm world = MPI_COMM_WORLD;
    const int part = count / ranks;
    switch (operation) {
    case REDUCE:
        if (rank == 0) MPI_Reduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, 0, world);
        if (rank != 0) MPI_Reduce(out, NULL, count, MPI_FLOAT, MPI_SUM, 0, world);
        break;
    case BROADCAST: MPI_Bcast(out, count, MPI_FLOAT, 0, world); break;
    case SCATTER: MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, world); break;
    case GATHER: MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, world); break;
    case ALL_GATHER: MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world); break;
    case ALL_TO_ALL: MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world); break;
    default: MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, world); break;
    }
}

/* Seconds of one call, after a barrier, on the rank that takes longest. */
static double run(int calls)
{
    double start, seconds;
    int i;
    MPI_Barrier(MPI_COMM_WORLD);
    start = peer_now();
    for (i = 0; i < calls; i++) run_once();
    seconds = (peer_now() - start) / calls;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

static double tell(int what, int value, int more)
{
    int command[3] = { what, value, more }, other;
    for (other = 1; other < ranks; other++) MPI_Send(command, 3, MPI_INT, other, 0, MPI_COMM_WORLD);
    if (what == PREPARE) prepare(value, more);
    return what == RUN ? run(value) : 0;
}

/* Commands of one row follow each other at once. Between rows it sleeps for long: naps so short that a
   processor never counts as idle would keep the system from moving one of two ranks that share the other one
   there. */
static void obey(void)
{
    const struct timespec nap = { 0, 20000000 };
    int command[3] = { PREPARE, 0, 1 }, here;
    while (command[0] != END) {
        const double since = peer_now();
        for (here = 0; MPI_Iprobe(0, 0, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE), !here;)
            if (peer_now() - since > 2e-3) nanosleep(&nap, NULL);
        MPI_Recv(command, 3, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (command[0] == PREPARE) prepare(command[1], command[2]);
        if (command[0] == RUN) run(command[1]);
    }
}

/* As measure() in bench/allreduce.c. */
static double median_seconds(double seconds)
{
    double sample[SAMPLES], once, spent = 0;
    int calls, samples = 0;
    tell(RUN, 2, 0);
    once = tell(RUN, 2, 0) + 1e-9;
    calls = once > 2e-3 ? 1 : (int)(2e-3 / once) + 1;
    do {
        sample[samples] = tell(RUN, calls, 0);
        spent += sample[samples++] * calls;
    } while (samples < SAMPLES && (samples < 3 || spent < seconds));
    qsort(sample, (size_t)samples, sizeof *sample, peer_compare);
    return sample[samples / 2];
}

/* The number of the operation; OPERATIONS: there is none of that name. */
static int named(const char *name)
{
    int i = 0;
    while (i < OPERATIONS && strcmp(operations[i], name) != 0) i++;
    return i;
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], line[256], name[32];
    int length, bytes = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank != 0) {
        obey();
        MPI_Finalize();
        return 0;
    }
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    peer_say("ready", version);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "case %31s %d", name, &bytes) == 2 && named(name) < OPERATIONS) {
            tell(PREPARE, named(name), bytes / 4);
            peer_say("ok", NULL);
        } else if (strncmp(line, "time ", 5) == 0 && out) {
            printf("%.9g\n", median_seconds(atof(line + 5)));
            fflush(stdout);
        } else {
            peer_say("no", "such case");
        }
    }
    tell(END, 0, 0);
    MPI_Finalize();
    return 0;
}
