/* part.h: a model that several ranks compute together, each with a part of some of its parameters. */
#ifndef DML_GRAPH_PART_H
#define DML_GRAPH_PART_H

#include <stddef.h>

#include "base/error.h"
#include "base/platform.h"
#include "base/status.h"

/* Which part of a whole tensor a rank has. One axis of the tensor, (outer, sum of block, inner), is made of
   blocks, as queries, keys and values lie in one projection: of each the rank has the rank-th of as many
   equal stretches as there are ranks. */
typedef struct dml__shard {
    int rank, ranks;
    int axis; /* that is cut */
    size_t outer, inner;
    size_t block[3]; /* 0: there are fewer */
} dml__shard;

/* Elements of the whole tensor. */
static inline size_t dml__part_whole(const dml__shard *part)
{
    return part->outer * (part->block[0] + part->block[1] + part->block[2]) * part->inner;
}

/* Where element i of the part is in the whole. */
static inline size_t dml__part_element(const dml__shard *part, size_t i)
{
    const size_t whole = part->block[0] + part->block[1] + part->block[2];
    const size_t ranks = (size_t)part->ranks, axis = whole / ranks;
    const size_t row = i / part->inner / axis, inner = i % part->inner;
    size_t at = i / part->inner % axis, before = 0;
    int b = 0;
    for (; at >= part->block[b] / ranks; b++) {
        at -= part->block[b] / ranks;
        before += part->block[b];
    }
    return (row * whole + before + (size_t)part->rank * (part->block[b] / ranks) + at) * part->inner + inner;
}

enum { DML__MOST_COMPARED = 32 }; /* values at a time */

/* What a graph that is cut asks of its ranks (dist/model_ranks.c). */
typedef struct dml__model_calls {
    /* values[i] = its sum over the ranks. */
    dml_status (*sum)(void *user, double *values, size_t count, dml__error *error);
    /* Which of the values isn't the same on all ranks, and the least and the most of it; *unlike is `count`
       where all are. */
    dml_status (*compare)(void *user, const double *values, size_t count, size_t *unlike, double range[2],
                          dml__error *error);
    void (*progress)(void *user);                  /* what is under way goes on: between ops */
    void (*abort)(void *user, const char *reason); /* a pass has failed here, which the others are in too */
    void (*leave)(void *user);                     /* when the graph is destroyed */
} dml__model_calls;

typedef struct dml__model_ranks {
    int rank, ranks;
    void *user;
    const dml__model_calls *calls; /* NULL: the model is whole, and the rest zero but for: */
    bool alone;                    /* there are such nodes on a communicator of one rank */
} dml__model_ranks;

#endif
