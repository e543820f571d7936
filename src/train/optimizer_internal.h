/* optimizer_internal.h: the optimizer table. Adding an optimizer is a kind, a row, and its shared kernel. */
#ifndef DML_TRAIN_OPTIMIZER_INTERNAL_H
#define DML_TRAIN_OPTIMIZER_INTERNAL_H

#include "base/platform.h"
#include "base/status.h"
#include "device/backend.h"
#include "thread/pool.h"
#include "train/optimizer.h"

#define DML__MAX_STATES 2

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
    /* How many vectors as long as w it keeps. */
    int (*states)(const dml_optimizer *optimizer);
    dml_status (*update)(const dml_optimizer *optimizer, const dml__update *update);
} dml__optimizer_row;

/* NULL for a kind that isn't there. */
DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind);

#endif
