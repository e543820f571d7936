#ifndef DML_DIST_LENT_C
#define DML_DIST_LENT_C

#include "dist/lent.h"

#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "dist/replicas.h"
#include "train/trainer_internal.h"

/* Elements of a bucket: the links between cards are fast, and what a call takes is mostly its start. Source:
   Li et al., "PyTorch Distributed", VLDB 2020, section 4.1 (25 MB). */
#define DML__LENT_BUCKET ((size_t)25 << 18)

static dml_status dml__can_be_lent(const dml_comm *comm, dml_trainer *trainer, bool *can)
{
    float *g = NULL;
    void *stream = NULL;
    *can = false;
    if (!dml__can_lend(trainer) || dml_trainer_count(trainer, DML_GRADIENTS) == 0) return DML_OK;
    const dml_status status = dml__lend(trainer, DML_GRADIENTS, 0, &g, &stream);
    if (status == DML_OK) *can = dml__nccl_reaches(comm, g);
    return status;
}

DML__LOCAL dml_status dml__agree_to_lend(dml_comm *comm, dml_trainer *trainer, dml__filling *filling)
{
    bool can = false;
    filling->lends = false;
    if (!comm->job->nccl || comm->job->deterministic) return DML_OK; /* as on all ranks */
    const dml_status status = dml__can_be_lent(comm, trainer, &can);
    int32_t all = status == DML_OK && can; /* who failed comes, too */
    if (dml_comm_all_reduce(comm, &all, 1, DML_I32, DML_MIN) != DML_OK)
        return dml__sync_failed(trainer, comm);
    filling->lends = all != 0;
    if (filling->lends && !filling->asked) filling->elements = DML__LENT_BUCKET;
    return status;
}

DML__LOCAL dml_status dml__open_nccl(dml_comm *comm, dml_trainer *trainer)
{
    float *g = NULL;
    void *stream = NULL;
    if (comm->job->nccl || dml_trainer_count(trainer, DML_GRADIENTS) == 0) return DML_OK;
    const dml_status status = dml__lend(trainer, DML_GRADIENTS, 0, &g, &stream);
    if (status != DML_OK) return status;
    dml__nccl_open(comm); /* on the card that has just become this thread's */
    return dml_comm_status(comm) == DML_OK ? DML_OK : dml__sync_failed(trainer, comm);
}

DML__LOCAL void *dml__follow_stream(dml_comm *comm, void *stream)
{
    void *before = comm->stream;
    comm->stream = stream;
    return before;
}

#endif
