/* sandblaster.h: L-BFGS over a whole training set, with its vectors on servers and its samples shared out
   among workers.

       dml_cluster cluster = dml_cluster_from_environment();
       dml_comm *comm = dml_cluster_open(&cluster, NULL);
       if (dml_cluster_is_server(&cluster)) {
           dml_ps_serve(comm, &cluster, NULL, NULL);
       } else {
           dml_trainer *trainer = dml_trainer_create(loss, &trainer_options);
           dml_sandblaster_options options;
           memset(&options, 0, sizeof options);
           options.portion = gradient_of_portion;
           dml_sandblaster_minimize(trainer, comm, &cluster, &options, NULL);
       }
       return dml_comm_close(comm); */
#ifndef DML_DIST_SANDBLASTER_H
#define DML_DIST_SANDBLASTER_H

#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"
#include "dist/cluster.h"
#include "train/lbfgs.h"
#include "train/trainer.h"

/* Makes the trainer's g the mean gradient of portion 0 .. portions - 1 of the training set, by one
   dml_trainer_backward, or several: all but the first with DML_ADD, all but the last with DML_MORE. Says the
   sum of its samples' losses, and how many they are (0: it has none). The portions together are the training
   set; what one comes to depends on w alone, and not on which worker computes it. */
typedef dml_status (*dml_portion_function)(void *user, dml_trainer *trainer, int portion, int portions,
                                           double *loss_sum, double *samples);

typedef struct dml_sandblaster_options {
    dml_portion_function portion;
    void *user;
    int portions; /* of one evaluation, more than there are workers; 0: four for each. Worker 0's counts */
    /* History (the same on all workers), iterations and tolerance, worker 0's; the allocator. */
    dml_lbfgs_options lbfgs;
} dml_sandblaster_options;

typedef struct dml_sandblaster_result {
    dml_lbfgs_result lbfgs; /* its value is the mean loss over the training set */
    int again;              /* portions that were given to a second worker */
    int dropped;            /* results that came too late, the other worker's was first */
    int repeated;           /* evaluations that began anew, since a worker died while it pushed */
    int lost;               /* workers that died */
} dml_sandblaster_result;

/* Minimises the mean loss over all portions from worker 0's trained parameters on; the best parameters found
   become those of all workers, which call it together, with the same model and no strategy. The servers are
   in dml_ps_serve, with room for 2 history + 5 vectors. Worker 0 is the coordinator: it tells the servers
   what to do with their vectors, none of which comes to it before the end, and hands out portions; it
   computes itself only where there is no other worker (left). Each of the others asks for a portion when it
   is done with one. When none is left, those that aren't done are given to a second worker: the first result
   counts and only then is the gradient pushed, so each counts once. A worker that dies is done without; that
   of worker 0 or of a server ends the job, with DML_ERROR_PEER. So does, with DML_ERROR_TIMEOUT, a worker
   that freezes or takes longer than the communicator's timeout for a portion, as soon as another has had
   nothing to do for that long, or when none has reported anything for about twice as long: until then the
   others go on. (For a worker 0 that freezes as the last one the servers wait for 60 times the timeout.)
   Gradients are added in the order in which they come: runs differ by rounding. `result`, the same on all
   workers, may be NULL; of a job that fails it has what this worker knows (worker 0: all), and the parameters
   are some that were tried. Errors are the communicator's and the trainer's context's: DML_ERROR_ARGUMENT for
   options, and for a first loss that isn't finite. Source: Dean et al., "Large scale distributed deep
   networks", NIPS 2012, section 4.2; see train/lbfgs.h for the algorithm. */
DML_API dml_status dml_sandblaster_minimize(dml_trainer *trainer, dml_comm *comm, const dml_cluster *cluster,
                                            const dml_sandblaster_options *options,
                                            dml_sandblaster_result *result);

#endif
