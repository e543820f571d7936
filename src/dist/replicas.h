/* replicas.h: what strategies that train replicas have in common: they begin alike, and say whose fault it
 * was. */
#ifndef DML_DIST_REPLICAS_H
#define DML_DIST_REPLICAS_H

#include "base/platform.h"
#include "comm/comm.h"
#include "train/trainer.h"

/* The communicator's error becomes the trainer's; returns its status. */
DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm);

/* A whole vector of the trainer's (DML_PARAMETERS, ...), from rank 0 to all. */
DML__LOCAL dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector);

/* Collective: DML_ERROR_MISMATCH where ranks have different models; else all have rank 0's parameters,
   optimizer, its state and numbers, seed and step number. */
DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer);

#endif
