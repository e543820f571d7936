/* mirrored.h: several devices in one process: a replica of a model on each, trained as one.

       const char *devices[] = { "cuda:0", "cuda:1", "cpu" };
       dml_mirrored_options options = { 0 };
       options.trainer.batch = 512;
       options.trainer.optimizer = dml_sgd(0.1f, 0.9f);
       dml_mirrored *m = dml_mirrored_create(loss, devices, 3, &options);
       for (...) dml_mirrored_step(m, 512, DML_INPUTS(images, labels), &mean);
       dml_mirrored_copy_back(m);

   Each replica has a context, a thread and a dml_trainer of its own; among them they share out each batch,
   and combine gradients as ranks do (dist/all_reduce_sync.h), but over memory. */
#ifndef DML_DIST_MIRRORED_H
#define DML_DIST_MIRRORED_H

#include "base/allocator.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "graph/graph.h"
#include "train/trainer.h"

/* Where the parameters and the optimizer's state live. The losses are the same, up to rounding. */
typedef enum dml_placement {
    /* On each device, each updated by the same gradient: TensorFlow's MirroredStrategy. */
    DML_PLACE_MIRRORED,
    /* On the first device, which alone has a gradient, a state and an update; the others receive w after it.
       The state is there once. With the CPU first, this is TensorFlow's CentralStorageStrategy. */
    DML_PLACE_CENTRAL,
    /* The same, but w goes to the others, running statistics included, before each forward pass, as by
       PyTorch's DataParallel; for comparison. */
    DML_PLACE_EACH_STEP
} dml_placement;

/* How gradients get from device to device; the names are TensorFlow's. */
typedef enum dml_cross_device {
    DML_CROSS_CHEAPEST,     /* of all, for each size */
    DML_CROSS_RING,         /* each device sums a part, and sends it round */
    DML_CROSS_HIERARCHICAL, /* up a tree, and down again */
    DML_CROSS_ONE_DEVICE,   /* the first sums all, and sends the sum back */
    /* From card to card by NCCL, and nothing through the host: NVIDIA's alone, in one process, of
       DML_PLACE_MIRRORED, compiled with -DDML_NCCL (docs/collectives.md). In several processes a rank for
       each card, without dml_mirrored, does it. */
    DML_CROSS_NCCL
} dml_cross_device;

typedef struct dml_mirrored_options {
    /* Of all replicas together: `batch` is the most samples of one step in this process. Nodes to `watch` are
       refused: each replica has nodes of its own. */
    dml_trainer_options trainer;
    dml_placement placement;
    dml_cross_device cross_device;
    /* Each step's batch is divided evenly, so that runs can be repeated. Otherwise by speed: for each device
       t(b) = fixed + each x b is fitted to what its forward and backward passes took, recent steps counting
       most, and shares are such that all end together. A device that is listed gets a sample at least, where
       there are enough. */
    bool even;
    /* The most samples that one replica may get, for which it has memory; 0: an even share if `even`, else
       twice that. */
    int most_rows;
    /* Of several processes with a dml_mirrored each, from dml_comm_open: gradients are summed inside a
       process first, then between the processes by the first replica of each, then spread. Each calls
       dml_mirrored_create, and afterwards the same steps, with any rows of its own, 0 included. It stays the
       caller's, who closes it after dml_mirrored_destroy. NULL: this process is alone. */
    dml_comm *comm;
    /* How long replicas wait for one that makes no progress; 0: DML_TIMEOUT, else 30 (twice the
       communicator's, where there is one). */
    double timeout_s;
    size_t bucket_bytes;     /* as in dml_all_reduce_sync_options */
    dml_allocator allocator; /* of the replicas, from all their threads; zero: malloc and free */
} dml_mirrored_options;

typedef struct dml_mirrored dml_mirrored;

/* Clones the graph of `loss` (graph/clone.h), with its values, to each of `count` devices, makes trainers of
   the clones, and a thread for each. A device is named as for dml_open: "cpu", "opencl:0", "cuda:1". None may
   be listed twice but the CPU: "cpu" takes an even part of the processors that are left (dml_cpu_share), and
   "cpu*3" three threads. The clones' seed is that of the loss's context; the graph itself isn't trained.

   NULL, with the error on the loss's context, when a device is not there or listed twice, when a trainer
   can't be made, or without threads (DML_NO_THREADS: DML_ERROR_UNSUPPORTED). It lives until
   dml_mirrored_destroy or until that context is closed. One thread at a time calls the functions below, each
   of which returns when all replicas are done. */
DML_API dml_mirrored *dml_mirrored_create(dml_node *loss, const char *const *devices, int count,
                                          const dml_mirrored_options *options);

/* Ends the threads, the trainers and the contexts. NULL is fine. */
DML_API void dml_mirrored_destroy(dml_mirrored *mirrored);

/* One step on `rows` samples, 1 .. batch (with options.comm from 0), shared out among the replicas; some get
   none where there are too few. What dml_trainer_step says of `inputs`, `count` and `loss`, which is the mean
   over this process' samples, holds here.

   Errors are recorded on the loss's context. Input that is refused is so before anything is run, and the step
   can be made again. When a replica fails, so does the step, with a sentence that names its device; the
   others are released at once, and so they are, after the timeout, from one that makes no progress (the call
   itself returns when that one does). After that the replicas differ: each later call returns the same error.
 */
DML_API dml_status dml_mirrored_step(dml_mirrored *mirrored, int rows, const void *const *inputs, int count,
                                     float *loss);

/* Its two halves, as dml_trainer_backward and dml_trainer_update. In between the caller may change the first
   replica's gradient, so dml_mirrored_update, and a backward that adds, send it to the others once more,
   which a step doesn't. */
DML_API dml_status dml_mirrored_backward(dml_mirrored *mirrored, int rows, const void *const *inputs,
                                         int count, int flags, float *loss);
DML_API dml_status dml_mirrored_update(dml_mirrored *mirrored);

/* Replica i's trainer, between the calls above: replica 0's is the one to save, to look at, and to change.
   NULL past the last. What is done to its gradient between dml_mirrored_backward and the next call counts for
   all. After another change (a checkpoint was loaded, parameters were written, another learning rate was
   set), dml_mirrored_spread gives the others what the first has; under options.comm it is a collective, and
   what counts is the first replica of rank 0. */
DML_API dml_trainer *dml_mirrored_trainer(dml_mirrored *mirrored, int i);
DML_API dml_status dml_mirrored_spread(dml_mirrored *mirrored);

/* The first replica's parameters become those of the graph that all of them were cloned from: to save it, or
   to predict. Between two dml_trainer_swap_average of that replica's trainer it is their average. */
DML_API dml_status dml_mirrored_copy_back(dml_mirrored *mirrored);

/* What became of the last pass. */
typedef struct dml_replica_report {
    const char *device;     /* as it was opened: "opencl:0" */
    int threads;            /* of the CPU that compute */
    int rows;               /* its part of the batch */
    double seconds;         /* that its forward and backward took, but for waiting; 0: not known */
    double fixed_s, each_s; /* the line by which shares are made: seconds of a pass, and of a sample */
} dml_replica_report;

/* How many replicas there are; and of one, all zero past the last. */
DML_API int dml_mirrored_replicas(const dml_mirrored *mirrored);
DML_API dml_replica_report dml_mirrored_report(const dml_mirrored *mirrored, int i);

#endif
