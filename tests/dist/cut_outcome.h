/* cut_outcome.h: what ranks of a model that is cut end with, held against one rank that has all of it. */
#ifndef DML_TESTS_CUT_OUTCOME_H
#define DML_TESTS_CUT_OUTCOME_H

#include <math.h>

#include "../comm/ranks.h"
#include "graph/graph.h"
#include "graph/node.h"
#include "graph/part.h"
#include "graph/weights.h"

enum { MOST_STEPS = 50, MOST = 8192 };

typedef struct outcome {
    float loss[MOST_STEPS], w[MOST], norm[MOST_STEPS];
    bool found[MOST]; /* of w: by some rank's part */
    size_t count;
    int skipped;
} outcome;

static outcome got[RANKS_MAX], want;

/* What this rank has of w, at its places in the whole. */
static void put_weights(test_rank *me, dml_graph *graph, outcome *to)
{
    const float *w = dml_graph_get(graph, 0, dml_graph_parameter_count(graph));
    to->count = graph->whole_count;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        for (size_t i = 0; i < dml_shape_count(&p->shape); i++) {
            const size_t at = p->place + (p->cut ? dml__part_element(dml__shard_of(p), i) : i);
            me->bad += at >= MOST;
            if (at >= MOST) return;
            to->w[at] = w[p->offset + i];
            to->found[at] = true;
        }
}

/* Of `replicas` models of `parts` consecutive ranks each: what ranks of one model and replicas of one part
   have alike to the bit, and what follows `want` within a tolerance. */
static void check_outcomes(int parts, int replicas, int steps, double tolerance)
{
    for (int r = 0; r < parts * replicas; r++) {
        const outcome *mine = &got[r], *first = &got[r % parts];
        const int own = r / parts * parts;
        CHECK_INT(mine->count, want.count);
        CHECK_INT(mine->skipped, want.skipped);
        for (int step = 0; step < steps; step++) {
            double mean = 0;
            for (int replica = 0; replica < replicas; replica++)
                mean += (double)got[replica * parts].loss[step] / replicas;
            CHECK_MESSAGE(mine->loss[step] == got[own].loss[step], "ranks %d and %d of a model: loss %g, %g",
                          own, r, (double)got[own].loss[step], (double)mine->loss[step]);
            CHECK_NEAR(mean, want.loss[step], tolerance * fmax(1, fabs((double)want.loss[step])));
            CHECK_NEAR(mine->norm[step], want.norm[step], tolerance * (1 + want.norm[step]));
        }
        for (size_t i = 0; i < want.count; i++) {
            CHECK_MESSAGE(mine->found[i] == first->found[i] && mine->w[i] == first->w[i],
                          "rank %d differs from its replica, rank %d, at %d", r, r % parts, (int)i);
            if (mine->found[i]) CHECK_NEAR(mine->w[i], want.w[i], 20 * tolerance);
        }
    }
    for (size_t i = 0; i < want.count; i++) {
        bool found = false;
        for (int r = 0; r < parts; r++) found = found || got[r].found[i];
        CHECK_MESSAGE(found, "no rank has element %d", (int)i);
    }
}

#endif
