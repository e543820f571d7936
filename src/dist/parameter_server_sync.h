/* parameter_server_sync.h: training by a parameter server: workers with trainers, servers with the
   optimizer.

       dml_cluster cluster = dml_cluster_from_environment();
       dml_comm *comm = dml_cluster_open(&cluster, NULL);
       if (dml_cluster_is_server(&cluster)) {
           dml_parameter_server_serve(comm, &cluster, NULL);
       } else {
           dml_trainer *trainer = dml_trainer_create(loss, &options);
           dml_trainer_sync(trainer, dml_parameter_server_sync(comm, &cluster, NULL));
           while (more) dml_trainer_step(trainer, rows, DML_INPUTS(x, t), &mean);
           dml_trainer_destroy(trainer);
       }
       return dml_comm_close(comm); */
#ifndef DML_DIST_PARAMETER_SERVER_SYNC_H
#define DML_DIST_PARAMETER_SERVER_SYNC_H

#include "dist/cluster.h"
#include "dist/parameter_server.h"
#include "train/trainer.h"

/* For dml_trainer_sync, on workers, after a checkpoint was loaded: what is written to w later is lost at the
   next pull. At the start all take over worker 0's parameters, numbers, seed and step;
   the servers its optimizer with its state and parameters' scales. Each update pushes g and pulls w. In
   synchrony g counts by the samples that it is the mean of; otherwise each worker's g is an update by itself:
   with N workers there are N times as many, so a learning rate of all-reduce's is as a rule too large. With
   DML_PS_SYNCHRONOUS, N workers compute what one would with the samples of all, up to rounding. Rows of
   sparse parameters (dml_parameter_set_sparse) for which nothing but zeros comes, in a clock or, out of
   synchrony, in a push, stay as they are, with their state. The learning rate is each worker's own; clipping
   is, too. Of `options` (NULL: synchronous) rule, setup and vectors don't count. DML_ERROR_UNSUPPORTED at the
   start: for LARS and LAMB, for a loss scale, for a moving average. The optimizer's state is the servers'
   alone: dml_trainer_gather fetches it (and w), for a checkpoint by this worker, from which a run goes on
   under servers, one rank or any other strategy. In synchrony it goes on as if it had never been stopped
   (with two workers to the bit; of more, the order in which pushes come decides how sums are rounded), but
   for what `threshold` holds back and what a 16-bit pull_dtype cuts off; otherwise while other workers push,
   so do their changes come in between. Source: Li et al., OSDI 2014; TensorFlow's ParameterServerStrategy. */
DML_API dml_sync dml_parameter_server_sync(dml_comm *comm, const dml_cluster *cluster,
                                           const dml_ps_options *options);

/* dml_ps_serve with the optimizer of worker 0's trainer, for dml_parameter_server_sync and
   dml_downpour_sync. `report` may be NULL. */
DML_API dml_status dml_parameter_server_serve(dml_comm *comm, const dml_cluster *cluster,
                                              dml_ps_report *report);

#endif
