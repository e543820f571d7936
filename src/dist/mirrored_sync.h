/* mirrored_sync.h: the strategies between the replicas of one process. */
#ifndef DML_DIST_MIRRORED_SYNC_H
#define DML_DIST_MIRRORED_SYNC_H

#include "base/allocator.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "train/trainer.h"

/* One replica's place. Replica 0 is the first. */
typedef struct dml__mirrored_place {
    dml_comm *inside; /* between the replicas of this process, the same numbers */
    /* Between the first replicas of all processes: for gradients, and for sums in the midst of passes; NULL
       at the others, and where there is one process. */
    dml_comm *outside, *outside_sums;
    bool processes;  /* there are several */
    bool central;    /* the first alone has a gradient, an optimizer and its state; the others receive w: */
    bool nccl;       /* gradients go from card to card */
    bool late;       /* not after the update, but when somebody sends it to them before a pass */
    int ranks, rank; /* among the replicas of all processes */
    size_t bucket_bytes;
    dml_allocator allocator;
} dml__mirrored_place;

/* All replicas apply the gradient of all: dml_all_reduce_sync where there is one process. */
DML__LOCAL dml_sync dml__mirrored_sync(const dml__mirrored_place *place);

/* Collective between the replicas: the others get what of the first's vector (DML_PARAMETERS or
   DML_GRADIENTS) they have, all of it. */
DML__LOCAL dml_status dml__send_from_first(dml_comm *inside, dml_trainer *trainer, int vector);

/* The communicator's error: that of its rank, which all others will hear of, and end with. */
DML__LOCAL void dml__end_comm(dml_comm *comm, dml_status status, const char *text);

#endif
