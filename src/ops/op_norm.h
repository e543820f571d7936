/* op_norm.h: normalization layers. */
#ifndef DML_OPS_OP_NORM_H
#define DML_OPS_OP_NORM_H

#include "graph/graph.h"

typedef struct dml_batch_norm_options {
    float epsilon;  /* added to the variance; 0: 1e-5 */
    float momentum; /* how much of the running statistics each batch replaces, at most 1; 0: 0.1. That is
                       PyTorch's meaning; Keras' momentum is 1 minus it */
    bool frozen;    /* also in training the running statistics are used, and stay as they are */
    bool all_ranks; /* mean and variance are those of the global batch, under a sync strategy that has an
                       all_reduce (train/trainer.h); alone, it makes no difference */
} dml_batch_norm_options;

/* Normalizes each channel, the last dimension of x: (H, W, C) or (C) -> the same, by

       y = weight (x - mean) / sqrt(variance + epsilon) + bias

   In training, mean and variance are those of the batch, over its samples and pixels. Each training pass also
   moves the running statistics towards them,

       running_mean = (1 - momentum) running_mean + momentum mean

   and running_var likewise, by the unbiased variance (PyTorch's rule; where a channel has one number, there
   is none, and it stays). A batch whose mean or variance isn't finite moves nothing. dml_program_run predicts
   by the running statistics and leaves them alone, also on a program that was compiled to train.

   The layer's parameters (C) are "batch_norm_1.weight" (one at first), ".bias" (zero), ".running_mean" (zero)
   and ".running_var" (one); the last two are frozen, so no optimizer touches them, and lie in w, so files
   have them. Under a sync strategy each rank normalizes by its own part of the batch and has its own running
   statistics: those of the rank that saves are in its file. With all_ranks, each training pass sums two
   numbers of each channel over the ranks in forward, and two in backward; N ranks then compute what one would
   for the same global batch, up to rounding, and have the same running statistics, those without samples too
   (PyTorch's SyncBatchNorm).
   Source: Ioffe, Szegedy, "Batch normalization", ICML 2015. NULL options: all defaults. */
DML_API dml_node *dml_batch_norm(dml_node *x, const dml_batch_norm_options *options);

/* The same on parameters of the caller's: begun in another way, shared, frozen. running_mean and running_var
   must be parameters that aren't trained (dml_parameter_train), else DML_ERROR_ARGUMENT. */
DML_API dml_node *dml_batch_norm_with(dml_node *x, dml_node *weight, dml_node *bias, dml_node *running_mean,
                                      dml_node *running_var, const dml_batch_norm_options *options);

#endif
