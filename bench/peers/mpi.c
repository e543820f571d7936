/* mpi: MPI_Allreduce of any MPI as a peer of bench/allreduce. Started on every rank; rank 0 speaks (peer.h),
   and tells the others, which sleep between cases, since mpirun's processes aren't stopped with it. */
#define _GNU_SOURCE
#include "peer.h"

#include <mpi.h>

enum { END, PREPARE, RUN, SAMPLES = 51 };

static float *data;
static int count; /* of floats */

static void prepare(int floats)
{
    free(data);
    count = floats;
    data = (float *)calloc((size_t)count, sizeof *data);
    if (!data) MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Seconds of one call, after a barrier. */
static double run(int calls)
{
    double start;
    int i;
    MPI_Barrier(MPI_COMM_WORLD);
    start = peer_now();
    for (i = 0; i < calls; i++) MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (peer_now() - start) / calls;
}

static double tell(int what, int value)
{
    int command[2] = { what, value }, ranks, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (rank = 1; rank < ranks; rank++) MPI_Send(command, 2, MPI_INT, rank, 0, MPI_COMM_WORLD);
    if (what == PREPARE) prepare(value);
    return what == RUN ? run(value) : 0;
}

static void obey(void)
{
    const struct timespec nap = { 0, 200000 };
    int command[2] = { PREPARE, 1 }, here;
    while (command[0] != END) {
        for (here = 0; MPI_Iprobe(0, 0, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE), !here;)
            nanosleep(&nap, NULL);
        MPI_Recv(command, 2, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (command[0] == PREPARE) prepare(command[1]);
        if (command[0] == RUN) run(command[1]);
    }
}

/* As measure() in bench/allreduce.c. */
static double median_seconds(double seconds)
{
    double sample[SAMPLES], once, spent = 0;
    int calls, samples = 0;
    tell(RUN, 2);
    once = tell(RUN, 2) + 1e-9;
    calls = once > 2e-3 ? 1 : (int)(2e-3 / once) + 1;
    do {
        sample[samples] = tell(RUN, calls);
        spent += sample[samples++] * calls;
    } while (samples < SAMPLES && (samples < 3 || spent < seconds));
    qsort(sample, (size_t)samples, sizeof *sample, peer_compare);
    return sample[samples / 2];
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING], line[256];
    int rank, length, bytes = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) {
        obey();
        MPI_Finalize();
        return 0;
    }
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    peer_say("ready", version);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "case all_reduce %d", &bytes) == 1) {
            tell(PREPARE, bytes / 4);
            peer_say("ok", NULL);
        } else if (strncmp(line, "time ", 5) == 0 && data) {
            printf("%.9g\n", median_seconds(atof(line + 5)));
            fflush(stdout);
        } else {
            peer_say("no", "such case");
        }
    }
    tell(END, 0);
    MPI_Finalize();
    return 0;
}
