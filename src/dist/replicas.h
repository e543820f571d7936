/* replicas.h: what strategies that train replicas have in common: they begin alike, and say whose fault it
 * was. */
#ifndef DML_DIST_REPLICAS_H
#define DML_DIST_REPLICAS_H

#include "base/memory.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "dist/option_list.h"
#include "train/trainer.h"

/* A strategy with a state of `bytes`, zeros from *memory, which keeps `comm` (NULL: none); its ranks are
   those that combine their gradients. Where no memory is left the state is NULL, and `start` says so: the
   rest isn't to be filled in. */
DML__LOCAL dml_sync dml__make_strategy(dml_comm *comm, const dml_allocator *allocator, size_t bytes,
                                       dml__memory *memory);
DML__LOCAL void dml__end_strategy(void *state, dml__memory memory, dml_comm *comm);

/* The communicator's error becomes the trainer's; returns its status. */
DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm);

/* A whole vector of the trainer's (DML_PARAMETERS, ...), from rank 0 to all. */
DML__LOCAL dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector);

/* Collective, and a strategy's first: DML_ERROR_MISMATCH, with what differs, where ranks have different
   strategies (their constructors' names), options of these (what has to be alike; NULL: none), models, or
   ways to train them; else all have rank 0's optimizer, its numbers, seed and step number. A rank
   whose context has failed, since it can't do what was asked, comes too: then all fail at once. */
DML__LOCAL dml_status dml__start_run(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                     const dml__option_list *options);

/* The same, and all have rank 0's parameters and optimizer's state. */
DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                          const dml__option_list *options);

/* How many samples the ranks have together, and whether they are at the same step with the same learning
   rate: asked while forward runs. It begins as zeros. */
typedef struct dml__roll_call {
    double mark, lr; /* of the step that this rank is at */
    double sent[5];  /* its samples, mark, mark^2, lr and lr^2, then the sums over all ranks */
    dml_request *request;
} dml__roll_call;

DML__LOCAL dml_status dml__start_roll_call(dml_comm *comm, dml_trainer *trainer, double samples,
                                           dml__roll_call *call);

/* DML_ERROR_MISMATCH where ranks are at different steps, or have different learning rates. */
DML__LOCAL dml_status dml__end_roll_call(dml_comm *comm, dml_trainer *trainer, dml__roll_call *call,
                                         double *samples);

/* The sum over the ranks, for dml_sync.all_reduce: behind the buckets that are on their way, which all ranks
   have started in the same order. */
DML__LOCAL dml_status dml__sync_sum(dml_comm *comm, dml_trainer *trainer, double *values, size_t count);

/* Waits for one that nobody wants any more, if there is one. */
DML__LOCAL void dml__drop_roll_call(dml_comm *comm, dml__roll_call *call);

#endif
