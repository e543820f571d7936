#ifndef DML_DIST_PARAMETER_SERVER_WEIGHTS_C
#define DML_DIST_PARAMETER_SERVER_WEIGHTS_C

#include "dist/parameter_server_weights.h"

#include <string.h>

#define DML__PS_LEAST_RUNS 1024

DML__LOCAL bool dml__ps_weights_make(dml__ps_weights *weights, dml__memory *memory, size_t count)
{
    weights->count = count;
    weights->room = count / 64 + DML__PS_LEAST_RUNS; /* a sixteenth of what the vector takes */
    weights->begin = (size_t *)dml__allocate_array(memory, weights->room, sizeof *weights->begin);
    weights->weight = (double *)dml__allocate_array(memory, weights->room, sizeof *weights->weight);
    if (!weights->begin || !weights->weight) return false;
    dml__ps_weights_clear(weights);
    return true;
}

DML__LOCAL void dml__ps_weights_release(dml__ps_weights *weights, dml__memory *memory)
{
    dml__release(memory, weights->begin);
    dml__release(memory, weights->weight);
}

DML__LOCAL void dml__ps_weights_clear(dml__ps_weights *weights)
{
    weights->runs = 1;
    weights->begin[0] = 0;
    weights->weight[0] = 0;
}

/* The run that element `at` is in. */
static size_t dml__ps_run_of(const dml__ps_weights *weights, size_t at)
{
    size_t low = 0, high = weights->runs;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (weights->begin[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Moves runs from `from` on by one place, to `to`. */
static void dml__ps_move_runs(dml__ps_weights *weights, size_t to, size_t from)
{
    const size_t runs = weights->runs - from;
    memmove(weights->begin + to, weights->begin + from, runs * sizeof *weights->begin);
    memmove(weights->weight + to, weights->weight + from, runs * sizeof *weights->weight);
    weights->runs = to + runs;
}

/* Makes a run begin at `at`. */
static bool dml__ps_split_run(dml__ps_weights *weights, size_t at)
{
    if (at == weights->count) return true;
    const size_t run = dml__ps_run_of(weights, at);
    if (weights->begin[run] == at) return true;
    if (weights->runs == weights->room) return false;
    dml__ps_move_runs(weights, run + 1, run);
    weights->begin[run + 1] = at;
    return true;
}

/* Takes the border at `at` out where the same weight is on both sides. */
static void dml__ps_join_runs(dml__ps_weights *weights, size_t at)
{
    const size_t run = at < weights->count ? dml__ps_run_of(weights, at) : 0;
    if (run > 0 && weights->begin[run] == at && weights->weight[run - 1] == weights->weight[run]) {
        weights->begin[run] = weights->begin[run - 1];
        dml__ps_move_runs(weights, run - 1, run);
    }
}

DML__LOCAL bool dml__ps_weights_add(dml__ps_weights *weights, size_t begin, size_t end, double weight)
{
    if (begin >= end) return true;
    if (!dml__ps_split_run(weights, begin) || !dml__ps_split_run(weights, end)) return false;
    for (size_t i = dml__ps_run_of(weights, begin); i < weights->runs && weights->begin[i] < end; i++)
        weights->weight[i] += weight;
    dml__ps_join_runs(weights, begin);
    dml__ps_join_runs(weights, end);
    return true;
}

#endif
