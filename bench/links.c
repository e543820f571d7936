/* links: an all-reduce of large vectors over links of a known rate, beside what those allow: 2 (m - 1) / m
   times the bytes through each link, either way. One rank of a job (RANK, WORLD_SIZE, as bench/links.sh and
   bench/prices.sh set them); rank 0 prints the median of the calls, on the rank that takes longest, and in
   `seconds` the least, which what else the machine does has disturbed least. */
#include "../dml.h"
#include "../dml_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

enum { MOST_CALLS = 100 };

static const char usage[] = "usage: links [options]\n"
                            "  --mbit N        the rate of a link (1000)\n"
                            "  --kib N         bytes of the vector (65536)\n"
                            "  --algo NAME     an algorithm; otherwise the one that is chosen\n"
                            "  --calls N       of which the median is taken (3)\n";

static int mbit = 1000, kib = 65536, calls = 3;
static const char *algorithm = NULL;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const bench_option options[] = { { "--mbit", BENCH_INT, &mbit, 1, 1000000 },
                                     { "--kib", BENCH_INT, &kib, 1, 4 << 20 },
                                     { "--algo", BENCH_TEXT, &algorithm, 0, 0 },
                                     { "--calls", BENCH_INT, &calls, 1, MOST_CALLS },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    bench_parse(argc, argv, "links", usage, options);
    const size_t count = (size_t)kib * 1024 / sizeof(float);
    static double times[MOST_CALLS];
    dml_comm_options how;
    memset(&how, 0, sizeof how);
    how.algorithm = algorithm;
    dml_comm *comm = dml_comm_open(&how);
    float *x = (float *)calloc(count, sizeof *x);
    if (!comm || !x || dml_comm_status(comm)) {
        fprintf(stderr, "links: %s\n", dml_comm_error(comm));
        return 1;
    }
    for (int i = -1; i < calls; i++) { /* the first one warms up */
        dml_comm_barrier(comm);
        const double begin = dml_seconds();
        dml_comm_all_reduce(comm, x, count, DML_F32, DML_SUM);
        double seconds = dml_seconds() - begin; /* on the rank that takes longest */
        dml_comm_all_reduce(comm, &seconds, 1, DML_F64, DML_MAX);
        if (i >= 0) times[i] = seconds;
    }
    if (dml_comm_status(comm)) {
        fprintf(stderr, "links: %s\n", dml_comm_error(comm));
        return 1;
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    const double m = dml_comm_world_size(comm), ours = times[calls / 2];
    const char *mtu = getenv("HOSTS_MTU");
    const double bound = 2 * (m - 1) / m * (double)count * sizeof(float) * 8 / (mbit * 1e6);
    if (dml_comm_rank(comm) == 0)
        printf("name=links op=all_reduce algo=%s ranks=%.0f bytes=%zu mbit=%d mtu=%s threads=1 seconds=%.5g "
               "ours=%.1f limit=%.1f ratio_limit=%.3f unit=ms\n",
               algorithm ? algorithm : "chosen", m, count * sizeof(float), mbit, mtu ? mtu : "1500", times[0],
               ours * 1e3, bound * 1e3, bound / ours);
    free(x);
    return dml_comm_close(comm) ? 1 : 0;
}
