/* lent.h: gradients and parameters that NCCL takes from the GPU that has them and leaves there, so that
   nothing of them passes the host. */
#ifndef DML_DIST_LENT_H
#define DML_DIST_LENT_H

#include "base/platform.h"
#include "comm/comm.h"
#include "train/trainer.h"

/* Elements of a bucket, at least, where the caller doesn't say: the links between cards are fast, and what a
   call takes is mostly its start. Source: Li et al., "PyTorch Distributed", VLDB 2020, section 4.1 (25 MB).
 */
#define DML__LENT_BUCKET ((size_t)25 << 18)

/* Collective, of ranks whose options are alike: whether the trainer's vectors are lent, on all ranks. They
   are where every rank has them on its communicator's GPU, unless the job is deterministic (then NCCL may not
   add); a rank on another device, or on the CPU, has all of them go through the host. */
DML__LOCAL dml_status dml__agree_to_lend(dml_comm *comm, dml_trainer *trainer, bool *lends);

/* Collective: from now on this communicator, of engine "dml" so far, takes arrays on the trainer's card by
   NCCL. Nothing where it does already, or nothing is trained. */
DML__LOCAL dml_status dml__open_nccl(dml_comm *comm, dml_trainer *trainer);

/* What is started from now on looks at lent vectors behind this stream. Returns what held before. */
DML__LOCAL void *dml__follow_stream(dml_comm *comm, void *stream);

#endif
