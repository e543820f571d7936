/* parameter_server_optimizer.h: a worker's optimizer, applied by the servers, and how strategies that do so
 * begin. */
#ifndef DML_DIST_PARAMETER_SERVER_OPTIMIZER_H
#define DML_DIST_PARAMETER_SERVER_OPTIMIZER_H

#include "dist/parameter_server.h"
#include "train/trainer.h"

/* Opens *ps for the trained parameters of all workers' trainers, with `optimizer` at the servers, which
   counts its steps from `taken` on and keeps its state in vectors 1 and up, zeros. `options` says the rest.
   Of bad input the job learns on all ranks. */
DML__LOCAL dml_status dml__ps_attach(dml_ps **ps, dml_comm *comm, const dml_cluster *cluster,
                                     dml_trainer *trainer, const dml_optimizer *optimizer, uint64_t taken,
                                     const dml_ps_options *options);

#endif
