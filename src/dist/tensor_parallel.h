/* tensor_parallel.h: one model over several ranks, each of which has a part of its layers and of their
   parameters, so that together they hold, and compute, what doesn't fit in one.

   Each rank builds the same graph, on a communicator of the ranks that share it, and feeds it the same
   samples; what is between parallel layers is alike on all of them to the bit, and so is the loss. A pair of
   layers cuts what lies between them, and costs one all-reduce of activations in forward and one in backward:

       dml_node *h = dml_gelu(dml_column_parallel_dense(x, 4 * C, comm));     (4 C / m units on each rank)
       dml_node *y = dml_row_parallel_dense(h, C, comm);                      (C again, alike on all)

   All else of a program is as on one rank. With dml_comm_split there are replicas of such models: ranks with
   the same part synchronise by a strategy, on a communicator of theirs (docs/strategies.md). A model that is
   cut is the same as one that isn't: parameters have the whole one's names and first values, and m ranks
   follow one rank's losses up to rounding. All ranks have the same seed, and trainers with the same options,
   which they compare at their first step. In files each rank has its part.

   Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
   parallelism", 2019, section 3. */
#ifndef DML_DIST_TENSOR_PARALLEL_H
#define DML_DIST_TENSOR_PARALLEL_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "ops/op_attention.h"

/* The two nodes that the layers below are made of, each the adjoint of the other. x is f32, of any shape, the
   same on all ranks.

       node                 forward                   backward                  Megatron's
       dml_parallel_copy    x itself                  the sum over the ranks    f
       dml_parallel_sum     the sum over the ranks    the gradient itself       g

   Between a copy and a sum each rank computes something of its own, and dropout there has random numbers of
   its own on each; outside of such pairs all compute the same, as one rank does. On a communicator of one
   rank both are x itself. Every rank runs the same passes in the same order, also those that only predict.
   Programs with threads of their own, dml_check_gradients, replicas in one process and optimizers that go by
   the norms of parameters (LARS, LAMB) are refused; clip_norm, a loss scale and dml_trainer_gradient_norm are
   about the whole model's gradient, and calls that all of its ranks make.

   The communicator stays the caller's, who closes it after the graph is destroyed; one graph is cut over one.
   DML_ERROR_ARGUMENT for another one or NULL; a rank that is missing, is refused its inputs, or
   calls for something else, ends the run within the communicator's timeout; a pass that fails on one rank (by
   .check, a device) ends the others' at once, who are told why. */
DML_API dml_node *dml_parallel_copy(dml_node *x, dml_comm *comm);
DML_API dml_node *dml_parallel_sum(dml_node *x, dml_comm *comm);

/* A parameter of that (whole) shape, of which each of m ranks has as much along an axis, in their order: for
   layers of one's own between a copy and a sum, such as the filters of dml_conv2d_with (axis 0). What all
   ranks train alike there, a parameter or a value, is given by dml_parallel_copy; anything else is refused
   (DML_ERROR_ARGUMENT), as is a loss that isn't alike on all ranks. DML_ERROR_ARGUMENT unless m divides the
   axis. */
DML_API dml_node *dml_parallel_parameter(dml_graph *graph, const char *name, dml_initializer init,
                                         dml_shape shape, int axis, dml_comm *comm);

/* dml_dense (..., in) -> (..., units) of m ranks, of which each has units / m rows of the weight and the
   bias, and gives (..., units / m): its stretch of the units, in the order of the ranks. x is alike on all
   ranks; several such layers share one exchange where they are given the same dml_parallel_copy.
   DML_ERROR_ARGUMENT unless m divides the units. */
DML_API dml_node *dml_column_parallel_dense(dml_node *x, int units, dml_comm *comm);

/* dml_dense (..., in) -> (..., units) of m ranks, each of which is given its stretch (..., in / m) of the
   inputs, as the layer above leaves them, and has as many columns of the weight: the sum, with the bias, is
   alike on all ranks. */
DML_API dml_node *dml_row_parallel_dense(dml_node *x, int units, dml_comm *comm);

/* dml_multi_head_attention x (T, C) -> (T, C), alike on all ranks, of which each has heads / m of the heads,
   and of those of keys and values as many. DML_ERROR_ARGUMENT unless m divides both; DML_ERROR_UNSUPPORTED
   for cross attention (.memory). */
DML_API dml_node *dml_parallel_attention(dml_node *x, int heads,
                                         const dml_multi_head_attention_options *options, dml_comm *comm);

#ifndef DML_NO_STDIO
/* The whole model's file (dml_graph_save) of one that is cut: a call that all its ranks make with the same
   path, which rank 0 writes, with memory for the whole. An error is every rank's. Of a model that is also cut
   into stages, each has a file of its own. */
DML_API dml_status dml_parallel_save(dml_graph *graph, const char *path);

/* Reads the whole model's file, which may come from a run without parts, or with others: each rank takes its
   part of what it reads, with memory for the largest tensor, and a stage (dist/pipeline.h) what is its own,
   by names that are the same there, as scopes make them. A call of each rank's own; errors are those of
   dml_graph_load. Of graphs that aren't cut both are dml_graph_save and dml_graph_load. What a trainer has
   besides is in parts: dml_trainer_save on each rank to a file of its own, and dml_trainer_load from it. */
DML_API dml_status dml_parallel_load(dml_graph *graph, const char *path);
#endif

#endif
