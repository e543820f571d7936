/* mirrored_clock.h: how long a replica computes, without what it waits for others. */
#ifndef DML_DIST_MIRRORED_CLOCK_H
#define DML_DIST_MIRRORED_CLOCK_H

#include "base/platform.h"
#include "train/trainer.h"

/* A strategy around another one, which does the work. */
typedef struct dml__timed_sync {
    dml_sync inner;
    double begun, waited;
    double seconds; /* of forward and backward of the last step; 0: it hasn't come to its end */
} dml__timed_sync;

/* `inner`, timed; what `timed` points to stays until it is destroyed. */
DML__LOCAL dml_sync dml__time_sync(dml__timed_sync *timed, dml_sync inner);

#endif
