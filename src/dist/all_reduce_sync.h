/* all_reduce_sync.h: synchronous data parallelism: every rank trains its part of each global batch, and
   gradients are averaged while backward is still running. */
#ifndef DML_DIST_ALL_REDUCE_SYNC_H
#define DML_DIST_ALL_REDUCE_SYNC_H

#include "base/allocator.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "dist/compress.h"
#include "train/trainer.h"

typedef struct dml_all_reduce_sync_options {
    /* Of gradients that are sent at once, at least. 0: between hosts such that the links' latency, as it was
       measured when the communicator opened, is a tenth of the time; within a host 1 MiB; where NCCL
       sums them on the cards (docs/collectives.md) 25 MiB. The same on all ranks. */
    size_t bucket_bytes;
    dml_compression compression; /* the same on all ranks; zero: none */
    /* dml_trainer_step returns when backward is done and gradients are on their way. The next one's forward
       pass waits for those of the parameters that it is about to read, and updates these; what it reads first
       goes before what is still queued. Results are the same bits. All ranks have it or none. Everything that
       looks at the model or the trainer in between waits for all of them, by itself; what it must not do is
       read w by a pointer that dml_trainer_get or dml_graph_get gave before the step. Programs with a thread
       of their own (DML_ERROR_STATE while w isn't there) have the trainer's thread call dml_trainer_gather
       first. An error of the exchange is then the next call's, and the step that it is of has been counted.
       Steps by dml_trainer_backward and dml_trainer_update, of trainers that clip, check or scale the loss,
       of optimizers of whole parameters, and with DML_COMPRESS_POWER end as they do without. Source: Peng et
       al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler),
       SOSP 2019; Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3),
       MLSys 2019. */
    bool across_steps;
    dml_allocator allocator; /* zero: malloc and free */
} dml_all_reduce_sync_options;

/* For dml_trainer_sync. At the start, parameters, the optimizer's state and numbers, the seed and the step
   number are broadcast from rank 0, which may have loaded a checkpoint. In each step, every range of g that
   has become final is put in a bucket; a full bucket starts its all-reduce at once. The gradient that is
   applied is the mean over all samples of the global batch, however unevenly the ranks share it, so N ranks
   compute what one rank would, up to rounding; with batch norms, where these ask for the statistics of all
   ranks (ops/op_norm.h); without compression. Within dml_trainer_step each range of w is updated when its
   gradient has arrived, while others are on their way, unless the trainer clips, scales the loss, or has an
   optimizer of whole parameters: so a step that a lost rank ends may have updated a part of w. Source: Li et
   al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2
   (buckets, in the reverse order of the forward pass); Sergeev, Del Balso, "Horovod", 2018 (tensor fusion).
   The communicator stays the caller's, who closes it after the trainer is destroyed. NULL options: all
   defaults. */
DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options);

#endif
