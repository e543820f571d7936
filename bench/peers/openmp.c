/* openmp: an empty parallel region of the compiler's OpenMP, as a peer of bench/forkjoin. usage: openmp
 * THREADS */
#define _GNU_SOURCE
#include "peer.h"

static volatile int touched;

static const char *prepare(const char *words)
{
    return strcmp(words, "forkjoin") == 0 ? NULL : "such case";
}

static void run(void)
{
#pragma omp parallel
    {
        if (touched) touched = 0; /* so that there is a region */
    }
}

int main(void)
{
    return peer_serve("OpenMP", prepare, run);
}
