/* model_ranks.h: the ranks over which one graph is cut, and what its nodes exchange with them. */
#ifndef DML_DIST_MODEL_RANKS_H
#define DML_DIST_MODEL_RANKS_H

#include "base/platform.h"
#include "comm/comm.h"
#include "graph/op.h"

/* From now on the graph is this rank's part of one that these ranks have, whose trainers' norms are over all
   of them; of one rank it stays whole. NULL, a communicator that has failed and a second one of the same
   graph are errors, recorded with `what` asked for it. */
DML__LOCAL dml_status dml__join_model(dml_graph *graph, dml_comm *comm, const char *what);

/* The communicator of a graph that is cut. */
DML__LOCAL dml_comm *dml__model_comm(const dml_graph *graph);

/* to (n) = the sum over the ranks of from (n), + beta what is there. `to` may be `from`. */
DML__LOCAL dml_status dml__sum_over_model(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                          float beta, dml_ref to);

#endif
