/* local_sgd.h: data parallelism that talks seldom: every rank takes steps of its own, and from time to time
   the ranks' parameters are averaged. */
#ifndef DML_DIST_LOCAL_SGD_H
#define DML_DIST_LOCAL_SGD_H

#include "base/allocator.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "train/trainer.h"

typedef struct dml_local_sgd_options {
    int tau; /* steps from one average to the next, at least 1: there is no default */
    /* What makes the parameters follow the averages instead of becoming them: it takes the change from one to
       the next, with its sign turned, for a gradient. Any optimizer but LARS and LAMB; its lr 0: none. Its
       state is this strategy's own, is in no checkpoint, and begins with zeros. */
    dml_optimizer outer;
    bool average_state;      /* the optimizer's vectors too; else each rank keeps its own */
    dml_allocator allocator; /* zero: malloc and free */
} dml_local_sgd_options;

/* DiLoCo: an outer SGD of learning rate 0.7 and Nesterov's momentum 0.9, for trainers with dml_adamw. Its
   authors take 500 for tau; with a tau of a few steps such an outer optimizer is a rate seven times as large,
   and may diverge. Source: Douillard et al., "DiLoCo: distributed low-communication training of language
   models", 2023, algorithm 1 and section 3. */
DML_API dml_local_sgd_options dml_diloco_options(int tau);

/* For dml_trainer_sync. It begins as dml_all_reduce_sync does, with rank 0's parameters and numbers; then
   each rank trains alone, by gradients of its own samples, and after every tau-th step of the trainer all
   ranks get the mean of their parameters, each rank's weighed by the samples that it took since the last one:
   with as many on each this is SparkNet, and with tau = 1 and dml_sgd(lr, 0) it is what dml_all_reduce_sync
   computes. (Only with momentum, decay and others do the ways differ.) Averaged with them are the running
   statistics of batch norms, and the moving average of the trainer if it keeps one. Source: Moritz,
   Nishihara, Stoica, Jordan, "SparkNet: training deep networks in Spark", ICLR 2016, section 2.2; weights:
   McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
   algorithm 1; average_state: Yu, Jin, Yang, "On the linear speedup analysis of communication efficient
   momentum SGD", ICML 2019, algorithm 1.

   Between averages ranks have different parameters: call dml_local_sgd_average before the model is saved,
   tested or given away. Load a checkpoint before the strategy is attached; or, without `outer`, on every
   rank: averages then fall on the steps of that run. Every rank makes the same calls; steps that one of them
   skips for its loss scale count too. Ranks with unlike options, and those that meet after unlike numbers of
   steps, get DML_ERROR_MISMATCH. An average that fails leaves w scaled or summed in part, to be loaded from a
   checkpoint. Models with a batch norm over all ranks are refused. An average takes 4
   bytes for each parameter over the network as an all-reduce does; with `outer` each rank keeps 2 vectors
   more, and its state. The communicator stays the caller's, who closes it after the trainer is destroyed. */
DML_API dml_sync dml_local_sgd_sync(dml_comm *comm, const dml_local_sgd_options *options);

/* The same with no average until dml_local_sgd_average: every rank learns from its part of the data, once as
   a rule, and one average at the end is the model. `tau` isn't looked at; NULL options: all zero. Source:
   Zinkevich, Weimer, Smola, Li, "Parallelized stochastic gradient descent", NIPS 2010, algorithm 3
   (SimuParallelSGD). */
DML_API dml_sync dml_simu_parallel_sync(dml_comm *comm, const dml_local_sgd_options *options);

/* Collective, at the end of training, and wherever all ranks shall have the same parameters: averages as
   after a tau-th step; nothing if there was no step since the last average. The next average is due when it
   would have been without. DML_ERROR_STATE, beside what makes a step fail, for a trainer that has neither of
   these strategies. */
DML_API dml_status dml_local_sgd_average(dml_trainer *trainer);

#endif
