/* trainer_internal.h: what a trainer is made of, for checkpoints. */
#ifndef DML_TRAIN_TRAINER_INTERNAL_H
#define DML_TRAIN_TRAINER_INTERNAL_H

#include "device/context_internal.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/optimizer_internal.h"
#include "train/trainer.h"

#define DML__MAX_VECTORS (DML_OPTIMIZER_STATE + DML__MAX_STATES)

struct dml_trainer {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_program *program;
    dml_optimizer optimizer;
    const dml__optimizer_row *row;
    dml_buffer *vector[DML__MAX_VECTORS]; /* w is the graph's, g the program's, the states are its own */
    float *mirror[DML__MAX_VECTORS];      /* host copies, where the device has memory of its own; w's is the
                                             graph's */
    int vectors;
    uint64_t steps;
    dml_sync sync;
    /* What g holds: the mean over this many samples of all ranks, or, while `pending`, the sum over this
       rank's. 0: nothing that could be added to. */
    double held;
    bool pending;
    bool spoiled; /* by a backward pass that failed: nothing to apply, until another one or dml_trainer_put */
};

#endif
