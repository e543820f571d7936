/* model_ranks.h: the ranks over which one graph is cut, and what its nodes exchange with them. */
#ifndef DML_DIST_MODEL_RANKS_H
#define DML_DIST_MODEL_RANKS_H

#include "base/platform.h"
#include "comm/comm.h"
#include "graph/op.h"

/* From now on the graph is this rank's part of one that these ranks have: of its layers
   (dist/tensor_parallel.h), or some layers of their own (dist/pipeline.h); its trainers' norms are over all
   of them. Of one rank it stays whole. NULL, a communicator that has failed and a second one of the same
   graph are errors, recorded with `what` asked for it. */
DML__LOCAL dml_status dml__join_model(dml_graph *graph, dml_comm *comm, const char *what);
DML__LOCAL dml_status dml__join_stages(dml_graph *graph, dml_comm *comm, const char *what);

/* Those communicators; NULL: it isn't cut so. */
DML__LOCAL dml_comm *dml__model_comm(const dml_graph *graph);
DML__LOCAL dml_comm *dml__stages_comm(const dml_graph *graph);

/* The pass of a pipeline that the stage's program runs in; NULL: none. */
DML__LOCAL void *dml__stage_pass_of(const dml_graph *graph);
DML__LOCAL void dml__set_stage_pass(dml_graph *graph, void *pass);

/* to (n) = the sum over the ranks of from (n), + beta what is there. `to` may be `from`. */
DML__LOCAL dml_status dml__sum_over_model(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                          float beta, dml_ref to);

/* all (ranks, n) = each rank's from (n), in the host's memory. */
DML__LOCAL dml_status dml__gather_over_model(const dml__run *run, const dml_node *node, size_t n,
                                             const float *from, float *all);

/* to (n) on the device = from (n), which is changed, + beta what is there, by way of `there` (n). Nothing
   where `to` is no buffer. */
DML__LOCAL dml_status dml__put_floats(const dml__run *run, size_t n, float *from, float *there, float beta,
                                      dml_ref to);

/* From and to other stages, which wait for each other. */
DML__LOCAL dml_status dml__send_to_stage(const dml__run *run, const dml_node *node, size_t n, dml_ref from,
                                         int stage, int tag);
DML__LOCAL dml_status dml__receive_from_stage(const dml__run *run, const dml_node *node, size_t n, int stage,
                                              int tag, float beta, dml_ref to);

/* Waits for what was started, if it was, and takes it back. */
DML__LOCAL dml_status dml__wait_for_stage(const dml__run *run, const dml_node *node, dml_request **request);

#endif
