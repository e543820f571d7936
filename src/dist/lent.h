/* lent.h: gradients and parameters that NCCL takes from the GPU that has them and leaves there, so that
   nothing of them passes the host in a step. */
#ifndef DML_DIST_LENT_H
#define DML_DIST_LENT_H

#include "base/platform.h"
#include "comm/comm.h"
#include "dist/buckets.h"
#include "train/trainer.h"

/* Collective, of ranks whose options are alike: whether the trainer's vectors are lent, on all ranks, and
   then how large its buckets are, unless the caller has said. They are lent where every rank has them on its
   communicator's GPU, unless the job is deterministic (then NCCL may not add); a rank on another device, or
   on the CPU, has all of them go through the host. */
DML__LOCAL dml_status dml__agree_to_lend(dml_comm *comm, dml_trainer *trainer, dml__filling *filling);

/* Collective: from now on this communicator, of engine "dml" so far, takes arrays on the trainer's card by
   NCCL. Nothing where it does already, or nothing is trained. */
DML__LOCAL dml_status dml__open_nccl(dml_comm *comm, dml_trainer *trainer);

/* What is started from now on looks at lent vectors behind this stream. Returns what held before. */
DML__LOCAL void *dml__follow_stream(dml_comm *comm, void *stream);

#endif
