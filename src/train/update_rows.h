/* update_rows.h: an update of a table of which a step reaches only some rows. */
#ifndef DML_TRAIN_UPDATE_ROWS_H
#define DML_TRAIN_UPDATE_ROWS_H

#include "base/platform.h"
#include "kernels/update_internal.h"
#include "thread/pool.h"

/* The rule for elements [begin, end) of a parameter (rows, width), but for rows whose gradient is zero
   throughout: they, and their state, stay. */
typedef struct dml__rows_update {
    dml__update_rule rule;
    const float *number; /* the rule's */
    size_t width, begin, end;
    const int32_t *row; /* (count) the only rows whose gradient may not be zero; NULL: any of all `count` */
    size_t count;
    float *w, *state[DML__UPDATE_STATES]; /* the parameter's; a state that isn't kept is NULL */
    const float *g;
} dml__rows_update;

/* Bitwise what the rule makes of all of them, for any number of threads. */
DML__LOCAL void dml__update_rows(dml_pool *pool, const dml__rows_update *update);

#endif
