/* mirrored_internal.h: what replicas are made of: their devices and trainers (mirrored_devices.c), their
   communicators and how they come and go (mirrored_open.c), their threads (mirrored_threads.c), and what is
   asked of them together (mirrored.c). */
#ifndef DML_DIST_MIRRORED_INTERNAL_H
#define DML_DIST_MIRRORED_INTERNAL_H

#include "base/os_thread.h"
#include "base/platform.h"
#include "device/context_internal.h"
#include "dist/mirrored.h"
#include "dist/mirrored_clock.h"
#include "dist/mirrored_share.h"
#include "dist/mirrored_sync.h"

#define DML__MOST_PARTS 64 /* inputs of which a replica gets its part */

typedef enum dml__order {
    DML__ORDER_ATTACH,
    DML__ORDER_BACKWARD,
    DML__ORDER_UPDATE,
    DML__ORDER_STEP,
    DML__ORDER_LEAVE
} dml__order;

typedef struct dml__replica {
    dml_mirrored *all;
    int index, threads;
    char device[48];
    dml_context *context;
    dml_trainer *trainer;
    dml__mirrored_place place;
    dml__timed_sync timed;
    dml__thread thread;
    /* The last order, and what came of it. */
    const void *inputs[DML__MOST_PARTS];
    int rows;
    float loss;
    dml_status status;
    bool own; /* the failure began here */
    char text[512];
} dml__replica;

struct dml_mirrored {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_graph *graph;
    dml_mirrored_options options;
    int count, started; /* replicas; those that have a thread */
    int inputs;
    dml__replica *replica;           /* (count) */
    dml__speed *speed;               /* (count) */
    int *most, *share, *other_share; /* (count): samples of each; a division that may be better */
    int shared_rows;                 /* what `share` divides; -1: nothing yet */
    dml_comm *outside_sums;
    bool holds, pending; /* the gradient of samples of all replicas; samples that wait for more */
    dml_status status;   /* not DML_OK: the replicas differ */
    char text[512];
    bool locks;
    dml__mutex mutex; /* of what follows */
    dml__cond asked, answered;
    dml__order order;
    unsigned orders; /* given so far */
    int busy;        /* replicas that haven't obeyed the last one */
    /* Of a pass. */
    int flags;
    bool wants_loss, sends_gradient;
};

/* Opens a context and a trainer on each device, with threads and room for samples. */
DML__LOCAL dml_status dml__open_replicas(dml_mirrored *all, const dml_node *loss, const char *const *devices);

/* Returns when all have obeyed; the error is that of a replica that failed by itself, where one did. */
DML__LOCAL dml_status dml__order_all(dml_mirrored *all, dml__order order);

/* Each gets its thread, in which its trainer and its communicator also end. */
DML__LOCAL dml_status dml__start_replica_threads(dml_mirrored *all);
DML__LOCAL void dml__end_replicas(dml_mirrored *all);

#endif
