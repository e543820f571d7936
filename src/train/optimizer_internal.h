/* optimizer_internal.h: the optimizer table. Adding an optimizer is a kind, a row, and its shared kernel. */
#ifndef DML_TRAIN_OPTIMIZER_INTERNAL_H
#define DML_TRAIN_OPTIMIZER_INTERNAL_H

#include "base/error.h"
#include "base/platform.h"
#include "base/status.h"
#include "device/backend.h"
#include "thread/pool.h"
#include "train/optimizer.h"

#define DML__MAX_STATES 2
#define DML__MAX_LR 1e6f /* far above any that is meant; it refuses infinity */

/* One fused pass over a range: w, g and each state vector at the range's start, n elements. */
typedef struct dml__update {
    dml_device *device;
    dml_pool *pool;
    size_t n;
    dml_ref w, g, state[DML__MAX_STATES];
    uint64_t step; /* how many updates came before */
} dml__update;

typedef struct dml__optimizer_row {
    const char *name;
    const char *state[DML__MAX_STATES]; /* what its vectors are called */
    /* How many of them, each as long as g, it keeps with these numbers. */
    int (*states)(const dml_optimizer *optimizer);
    dml_status (*update)(const dml_optimizer *optimizer, const dml__update *update);
} dml__optimizer_row;

/* What refuses an optimizer's numbers, with the error recorded. */
DML__LOCAL dml_status dml__check_optimizer(const dml_optimizer *optimizer, dml__error *error);

/* NULL for a kind that isn't there. */
DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind);

#endif
