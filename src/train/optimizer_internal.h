/* optimizer_internal.h: the optimizer table. Adding an optimizer is a kind, a row, and its two kernels. */
#ifndef DML_TRAIN_OPTIMIZER_INTERNAL_H
#define DML_TRAIN_OPTIMIZER_INTERNAL_H

#include "base/error.h"
#include "base/platform.h"
#include "base/status.h"
#include "device/backend.h"
#include "kernels/update_internal.h"
#include "thread/pool.h"
#include "train/optimizer.h"

#define DML__MAX_STATES DML__UPDATE_STATES
#define DML__MAX_LR 1e6f /* far above any that is meant; it refuses infinity */

/* One fused pass over a range: w, g and each state vector at the range's start, n elements. */
typedef struct dml__update {
    dml_device *device;
    dml_pool *pool;
    size_t n;
    dml_ref w, g, state[DML__MAX_STATES];
    uint64_t step; /* how many updates came before */
    bool adapts;   /* a row with `whole`: by the norms; else its factor is 1 */
    /* Of a sparse parameter, whose rows with a gradient of zeros stay: */
    size_t width;       /* its rows' length; 0: it isn't one */
    size_t begin;       /* elements of it before the range */
    const int32_t *row; /* (rows) those whose gradient may not be zero; NULL: any of its `rows` */
    size_t rows;
    dml_ref norms_at[2]; /* where it leaves sums of squares, where the device has memory of its own */
} dml__update;

/* How many sums of squares sum_squares (gpu/update.cl) makes of n elements: a group for 2048 of them. */
#define DML__MOST_SQUARES 256
static inline size_t dml__squares_of(size_t n)
{
    return n / 2048 + 1 < DML__MOST_SQUARES ? n / 2048 + 1 : DML__MOST_SQUARES;
}

typedef struct dml__optimizer_row {
    const char *name;
    const char *state[DML__MAX_STATES]; /* what its vectors are called */
    unsigned uses;                      /* of its numbers: bit i for dml_optimizer_number's i */
    float lr, epsilon;                  /* where they are 0 */
    dml__update_rule rule;
    const char *kernel; /* the shared kernel of that rule */
    bool whole;         /* it updates whole parameters, and its rule begins with a factor from their norms */
    /* How many state vectors, each as long as g, it keeps with these numbers. */
    int (*states)(const dml_optimizer *optimizer);
    /* What the rule is given in update `t`, from 1 on. */
    void (*numbers)(const dml_optimizer *optimizer, double t, float number[DML__UPDATE_NUMBERS]);
} dml__optimizer_row;

/* Fills in the defaults, and refuses numbers that can't be, with the error recorded. */
DML__LOCAL dml_status dml__complete_optimizer(dml_optimizer *optimizer, dml__error *error);

/* Of any floats: where f32 is too small a range for their squares, in f64 one by one. */
DML__LOCAL double dml__sum_of_squares(dml_pool *pool, size_t n, const float *x);

/* NULL for a kind that isn't there. */
DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind);

/* As dml_optimizer_update, of n / width whole rows of a sparse parameter; width 0: it isn't one. */
DML__LOCAL dml_status dml__optimizer_update_rows(const dml_optimizer *optimizer, dml_pool *pool,
                                                 uint64_t step, size_t width, size_t n, float *w,
                                                 const float *g, float *const *state);

/* The update of a range by an optimizer that is complete; of one parameter for a row with `whole`. */
DML__LOCAL dml_status dml__optimizer_step(const dml_optimizer *optimizer, const dml__update *update);

#endif
