/* mirrored_share.h: how a batch is divided among devices of unlike speed. */
#ifndef DML_DIST_MIRRORED_SHARE_H
#define DML_DIST_MIRRORED_SHARE_H

#include "base/platform.h"

/* What is known of a device: sums over its steps, of which older ones count for less and less. */
typedef struct dml__speed {
    double weight, rows, seconds, rows_rows, rows_seconds;
    int seen; /* steps, the first ones included, which only warm up */
} dml__speed;

/* It took `seconds` for forward and backward on `rows` samples. */
DML__LOCAL void dml__speed_note(dml__speed *speed, int rows, double seconds);

/* The line fixed + each x rows through what was seen, neither below 0. False: nothing has been seen that
   counts. */
DML__LOCAL bool dml__speed_line(const dml__speed *speed, double *fixed, double *each);

/* share[i] = samples for device i, 0 .. most[i], which together have room for all of `rows`; 1 or more each
   where there are enough. Evenly, or, where `speeds` isn't NULL and enough is known of each, so that the
   last device to end does so as early as can be. */
DML__LOCAL void dml__share_rows(int rows, int devices, const dml__speed *speeds, const int *most, int *share);

/* When the last device ends, by what is known; 0 where nothing is. */
DML__LOCAL double dml__share_seconds(int devices, const dml__speed *speeds, const int *share);

#endif
