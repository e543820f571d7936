/* downpour_sync.h: asynchronous training by a parameter server, in which workers fetch and push now and then.
 */
#ifndef DML_DIST_DOWNPOUR_SYNC_H
#define DML_DIST_DOWNPOUR_SYNC_H

#include "dist/cluster.h"
#include "dist/parameter_server.h"
#include "train/trainer.h"

typedef struct dml_downpour_options {
    int fetch_every; /* steps between two fetches of w; 0: 1 */
    int push_every;  /* steps whose gradients are added up for one push; 0: 1 */
    /* The servers' optimizer; zero: dml_adagrad. Its lr 0: a push is applied with the learning rate that the
       trainer has then. */
    dml_optimizer optimizer;
    /* Warm start: worker 0 alone trains for so many steps, before the others begin. They wait as for any
       message, so that must take less than the communicator's timeout_s, or the job fails. */
    int warm_steps;
    dml_dtype push_dtype, pull_dtype; /* as in dml_ps_options */
    float threshold;
    double idle_s;
    dml_allocator allocator;
} dml_downpour_options;

/* For dml_trainer_sync, on workers; the servers call dml_parameter_server_serve. Between fetches a worker
   goes on with the trainer's optimizer on its own copy of w. Nobody waits for another worker, but for the
   warm start. What doesn't go, and what rows stay, is as with dml_parameter_server_sync. dml_trainer_gather
   pushes what wasn't pushed yet and fetches w and the state of the servers' optimizer, so that a checkpoint
   has both, the latter as "dml.server.squares.dense_1.weight": Downpour with the same optimizer goes on from
   it (with other workers' pushes in between, as always), everything else leaves it out. NULL options: all
   defaults. Source: Dean et al., "Large scale distributed deep networks", NIPS 2012, sections 4.1 and 5
   (Downpour SGD, Adagrad on the servers, warm start). */
DML_API dml_sync dml_downpour_sync(dml_comm *comm, const dml_cluster *cluster,
                                   const dml_downpour_options *options);

#endif
