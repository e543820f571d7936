/* vocabulary_parallel.h: the two ends of a language model that is cut (dist/tensor_parallel.h): the table
   that letters or words are looked up in, and the loss over as many scores. Neither the table, nor the
   scores, nor their gradient is ever whole on a rank:

       dml_node *h = dml_parallel_embedding(words, V, C, comm);          (T, C), alike on all ranks
       ... layers
       dml_node *scores = dml_column_parallel_dense(h, V, comm);         (T, V / m): this rank's stretch
       dml_node *loss = dml_parallel_softmax_cross_entropy(scores, next, comm);

   The same table may be both, as GPT-2 has it: a parameter of which each rank has some rows.

       dml_node *table = dml_parallel_parameter(g, "table", init, dml_shape_of(V, C), 0, comm);
       dml_node *h = dml_parallel_embedding_with(words, table, comm);
       dml_node *scores = dml_dense_with(dml_parallel_copy(h, comm), table, NULL);

   m ranks take a vocabulary that is a multiple of m; one that isn't is filled up by its user, in the run of
   one rank, too, or has this part of its model whole on all ranks. Each row costs 16 bytes of each rank, to
   each other one, in forward, and none in backward; the table costs one all-reduce of what was looked up in
   forward.

   Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
   parallelism", 2019, section 3. */
#ifndef DML_DIST_VOCABULARY_PARALLEL_H
#define DML_DIST_VOCABULARY_PARALLEL_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "ops/op_loss.h"

/* dml_embedding (...) -> (..., width) of m ranks, of which each has count / m rows of the table, in their
   order. `indices` are alike on all ranks, and so is the result. DML_ERROR_ARGUMENT unless m divides the
   count, and for indices outside of 0 .. count - 1, before anything is run. */
DML_API dml_node *dml_parallel_embedding(dml_node *indices, int count, int width, dml_comm *comm);

/* The same on a table (count, width) of the caller's, which is cut along axis 0 (dml_parallel_parameter);
   DML_ERROR_ARGUMENT for one that isn't. */
DML_API dml_node *dml_parallel_embedding_with(dml_node *indices, dml_node *table, dml_comm *comm);

/* dml_softmax_cross_entropy of m ranks, each of which is given its stretch (..., classes / m) of the logits,
   as dml_column_parallel_dense leaves them. labels, i32 of (...) in 0 .. classes - 1, are alike on all ranks,
   and so is the loss, to the bit; the stretch's gradient is this rank's. DML_ERROR_ARGUMENT for logits that
   don't come of a part of a layer or of dml_parallel_copy, and for labels or weights that do. A trainer's
   first step compares the classes and the options of all ranks. */
DML_API dml_node *dml_parallel_softmax_cross_entropy(dml_node *logits, dml_node *labels, dml_comm *comm);

/* The same with the options of dml_softmax_cross_entropy_with, which may be NULL. Where there are several
   ranks: DML_ERROR_UNSUPPORTED for class weights, and for probabilities in place of labels. */
DML_API dml_node *dml_parallel_softmax_cross_entropy_with(dml_node *logits, dml_node *labels,
                                                          const dml_cross_entropy_options *options,
                                                          dml_comm *comm);

#endif
