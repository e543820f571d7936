/* zero_sync.h: sharding: each rank keeps a part of the optimizer's state, of the gradient, of the parameters.
 */
#ifndef DML_DIST_ZERO_SYNC_H
#define DML_DIST_ZERO_SYNC_H

#include "base/allocator.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "train/trainer.h"

typedef struct dml_zero_options {
    int stage; /* 1 .. 3, what is sharded, see below; 0: 2; the same on all ranks */
    /* Gradients are sent in pieces of at least this much, and parameters of stage 3 are asked for so far
       ahead of the op that needs them, of one op at least; 0: 1 MiB, and 25 where NCCL sums on the cards. The
       same on all ranks. */
    size_t bucket_bytes;
    dml_allocator allocator; /* zero: malloc and free */
} dml_zero_options;

/* For dml_trainer_sync. As dml_all_reduce_sync, N ranks compute what one would for the same global batch, up
   to rounding, but of the trained parameters, of which there are P, each rank updates its own N-th (of whole
   parameters under LARS and LAMB, else evenly, in the order of the ranks), and keeps, in bytes:

       stage   w        g                        optimizer's state (8 P for Adam; with an average 4 P more)
         1     4 P      4 P                      8 P / N
         2     4 P      4 P / N + 4 buckets      8 P / N
         3     4 P / N  4 P / N + 4 buckets      8 P / N          + w of the op that runs, and a bucket of
                                                                    those that come next

   where a bucket is at least as large as the parameters of one op. Gradients are summed to their owners while
   backward is still running; stages 1 and 2 then send the new parameters to all, as many bytes in all as an
   all-reduce of g. Stage 3 sends each op's parameters while the ops before it run, in forward and again in
   backward where it reads them: half as much again. The parts that a rank hasn't are holes in the same flat
   vectors: their pages are given back to the system, where memory comes from malloc on Linux; elsewhere they
   stay. Devices with memory of their own take stages 1 and 2, and save no memory.

   w is whole when the strategy is attached, and g while it waits for more (DML_MORE). Before what needs whole
   vectors, such as a checkpoint, all ranks call dml_trainer_gather; the same checkpoint then comes of it as
   without a strategy. A gradient can be looked at in this rank's range (dml_trainer_owned) alone. Source:
   Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section
   5; Zhao et al., "PyTorch FSDP", 2023. The communicator stays the caller's, who closes it after the trainer
   is destroyed. NULL options: all defaults. */
DML_API dml_sync dml_zero_sync(dml_comm *comm, const dml_zero_options *options);

#endif
