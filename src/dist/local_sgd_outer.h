/* local_sgd_outer.h: what makes parameters follow averages of the ranks' instead of becoming them. */
#ifndef DML_DIST_LOCAL_SGD_OUTER_H
#define DML_DIST_LOCAL_SGD_OUTER_H

#include "base/memory.h"
#include "base/platform.h"
#include "train/optimizer_internal.h"
#include "train/trainer.h"

/* Its vectors have an element for each trained parameter; they are NULL where there is no such optimizer. */
typedef struct dml__outer_optimizer {
    dml_optimizer rule; /* its lr 0: none */
    uint64_t rounds;    /* updates */
    float *anchor;      /* what all ranks had after the last one */
    float *change;      /* how far they came from there */
    float *state[DML__MAX_STATES];
} dml__outer_optimizer;

/* Whether the rule can be, with a sentence on the trainer. */
DML__LOCAL dml_status dml__check_outer(const dml__outer_optimizer *outer, dml_trainer *trainer);

/* False: no memory is left. */
DML__LOCAL bool dml__allocate_outer(dml__outer_optimizer *outer, dml__memory *memory, size_t count);
DML__LOCAL void dml__release_outer(dml__outer_optimizer *outer, dml__memory *memory);

/* With all ranks at the same w; then whenever the host's w is their average. */
DML__LOCAL dml_status dml__begin_outer(dml__outer_optimizer *outer, dml_trainer *trainer);
DML__LOCAL dml_status dml__outer_update(dml__outer_optimizer *outer, dml_trainer *trainer);

#endif
