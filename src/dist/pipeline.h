/* pipeline.h: one model over several ranks, each of which has some of its layers: a stage. Rank r of a
   communicator is stage r; it is given what the layers of stage r - 1 end with, and gives what its own end
   with to stage r + 1:

       dml_node *x = stage == 0 ? dml_input(g, "image", DML_F32, 28, 28, 1) : dml_pipeline_input(g, comm);
       ... this stage's layers of x, as h
       dml_node *end = stage < stages - 1 ? dml_pipeline_output(h, comm) : dml_softmax_cross_entropy(h, t);
       dml_trainer *trainer = dml_trainer_create(end, &(dml_trainer_options){ .batch = 8, ... });
       dml_pipeline *pipeline = dml_pipeline_create(trainer, comm);
       dml_pipeline_step(pipeline, 64, inputs, count, &loss);      (eight micro-batches of 8)

   Each stage's parameters, gradients and optimizer's state are on its rank alone, and so are its files. They
   begin as the whole model's do, which N stages follow to the bit, if that takes the same micro-batches
   (DML_ADD), but for clip_norm, whose norm is added up stage by stage. All stages have the same seed, and
   trainers with the same options, which they compare at their first step. With dml_comm_split there are
   replicas of such models: ranks of the same stage synchronise by a strategy, on a communicator of theirs,
   and stages may be cut further (dist/tensor_parallel.h).

   A pass waits for the slowest stage, and a step of m micro-batches takes (m + N - 1) times as long as that
   takes for one: many micro-batches keep all stages busy. At most N - r of them are on their way in stage r,
   each with an arena and four messages of its own. Source: Narayanan et al., "Memory-efficient
   pipeline-parallel DNN training", ICML 2021, section 2 (PipeDream-Flush, also called 1F1B); Huang et al.,
   "GPipe", NeurIPS 2019. */
#ifndef DML_DIST_PIPELINE_H
#define DML_DIST_PIPELINE_H

#include "base/platform.h"
#include "comm/comm.h"
#include "graph/graph.h"
#include "train/trainer.h"

/* What the stage before ends with: f32 for each sample, of the shape that this stage's dml_pipeline_output
   was given there, for which it waits. What is random in a model (first values, dropout) goes on behind it,
   so a stage builds it before its layers. Its gradient goes back to that stage. DML_ERROR_ARGUMENT on rank 0,
   which has none before it, and for a second one. */
DML_API dml_node *dml_pipeline_input(dml_graph *graph, dml_comm *comm);

/* Sends x (f32, for each sample) to the next stage. The node stands for this stage's loss: a number that is
   0, whose gradient is what comes back. A stage builds it when its layers are complete. DML_ERROR_ARGUMENT on
   the last rank, and for a second one; DML_ERROR_SHAPE for x of another kind.

   A program of it, or of the last stage's output, predicts: each stage runs its own with as many samples, and
   the last one reads the result. A trainer of it alone works too, without overlap: each stage waits for the
   others' halves of a pass. Both are the calls of all stages, in the same order. */
DML_API dml_node *dml_pipeline_output(dml_node *x, dml_comm *comm);

typedef struct dml_pipeline dml_pipeline;

/* Passes of a trainer whose program is a stage; its batch is that of the micro-batches. A call that all
   stages make. It is destroyed before the trainer and the communicator. NULL, with the error recorded, where
   the trainer's node isn't the end of this stage, and where it watches nodes (.watch). */
DML_API dml_pipeline *dml_pipeline_create(dml_trainer *trainer, dml_comm *comm);
DML_API void dml_pipeline_destroy(dml_pipeline *pipeline);

/* dml_trainer_backward on `rows` samples in micro-batches of the trainer's batch, of which the last may be
   smaller; then dml_trainer_update(trainer), on all stages, as after any. Each stage gives the inputs of its
   own program (of none: NULL and 0), with `rows` samples each. `loss` is the mean over them, on every stage.
   clip_norm, a loss scale and dml_trainer_gradient_norm are about the whole model's gradient. What a stage
   refuses (its inputs, another number of rows) all stages return an error for, before anything is sent, and
   may be called again; a stage that fails later ends the job with its sentence, and one that is missing does
   so within the communicator's timeout. Replicas with batch norms over all ranks need as many micro-batches.
   DML_ERROR_UNSUPPORTED beside ZeRO's stage 3. */
DML_API dml_status dml_pipeline_backward(dml_pipeline *pipeline, int rows, const void *const *inputs,
                                         int count, float *loss);

/* Both: dml_pipeline_backward and dml_trainer_update. */
DML_API dml_status dml_pipeline_step(dml_pipeline *pipeline, int rows, const void *const *inputs, int count,
                                     float *loss);

#endif
