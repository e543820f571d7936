/* links: an all-reduce of large vectors over links of a known rate, beside what those allow: 2 (m - 1) / m
   times the bytes through each link, either way. One rank of a job (RANK, WORLD_SIZE, as bench/links.sh sets
   them); rank 0 prints. */
#include "../dml.h"
#include "../dml_comm.h"

#include <stdio.h>
#include <stdlib.h>

#include "options.h"

enum { MOST_CALLS = 100 };

static const char usage[] = "usage: links [options]\n"
                            "  --mbit N        the rate of a link (1000)\n"
                            "  --mib N         bytes of the vector (64)\n"
                            "  --calls N       of which the median is taken (3)\n";

static int mbit = 1000, mib = 64, calls = 3;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const bench_option options[] = { { "--mbit", BENCH_INT, &mbit, 1, 1000000 },
                                     { "--mib", BENCH_INT, &mib, 1, 4096 },
                                     { "--calls", BENCH_INT, &calls, 1, MOST_CALLS },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "links", usage, options);
    const size_t count = (size_t)mib * 1048576 / sizeof(float);
    static double times[MOST_CALLS];
    dml_comm *comm = dml_comm_open(NULL);
    float *x = (float *)calloc(count, sizeof *x);
    if (!comm || !x || dml_comm_status(comm)) {
        fprintf(stderr, "links: %s\n", dml_comm_error(comm));
        return 1;
    }
    for (int i = -1; i < calls; i++) { /* the first one warms up */
        dml_comm_barrier(comm);
        const double begin = dml_seconds();
        dml_comm_all_reduce(comm, x, count, DML_F32, DML_SUM);
        if (i >= 0) times[i] = dml_seconds() - begin;
    }
    if (dml_comm_status(comm)) {
        fprintf(stderr, "links: %s\n", dml_comm_error(comm));
        return 1;
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    const double m = dml_comm_world_size(comm), ours = times[calls / 2];
    const double bound = 2 * (m - 1) / m * (double)count * sizeof(float) * 8 / (mbit * 1e6);
    if (dml_comm_rank(comm) == 0)
        printf("name=links op=all_reduce ranks=%.0f mib=%d mbit=%d ours=%.1f limit=%.1f ratio_limit=%.3f "
               "unit=ms\n",
               m, mib, mbit, ours * 1e3, bound * 1e3, bound / ours);
    free(x);
    return dml_comm_close(comm) ? 1 : 0;
}
