/* parameter_server_weights.h: by how much weight each element of a server's range was pushed in a clock. */
#ifndef DML_DIST_PARAMETER_SERVER_WEIGHTS_H
#define DML_DIST_PARAMETER_SERVER_WEIGHTS_H

#include "base/memory.h"
#include "base/platform.h"

/* Runs of elements with the same weight: run i is [begin[i], begin[i + 1]), the last one up to `count`.
   Workers that push the same ranges leave one for each of these, or less. */
typedef struct dml__ps_weights {
    size_t *begin;  /* (room) */
    double *weight; /* (room) */
    size_t runs, room, count;
} dml__ps_weights;

/* For so many elements, all of weight 0; false without memory. */
DML__LOCAL bool dml__ps_weights_make(dml__ps_weights *weights, dml__memory *memory, size_t count);
DML__LOCAL void dml__ps_weights_release(dml__ps_weights *weights, dml__memory *memory);

/* All of weight 0 again. */
DML__LOCAL void dml__ps_weights_clear(dml__ps_weights *weights);

/* Adds to the weight of elements [begin, end). False where that makes more runs than there is room for. */
DML__LOCAL bool dml__ps_weights_add(dml__ps_weights *weights, size_t begin, size_t end, double weight);

/* Where run i ends. */
static inline size_t dml__ps_weights_end(const dml__ps_weights *weights, size_t i)
{
    return i + 1 < weights->runs ? weights->begin[i + 1] : weights->count;
}

#endif
