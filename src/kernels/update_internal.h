/* update_internal.h: the optimizers' rules as one kind of call. */
#ifndef DML_KERNELS_UPDATE_INTERNAL_H
#define DML_KERNELS_UPDATE_INTERNAL_H

#include "base/platform.h"
#include "thread/pool.h"

#define DML__UPDATE_STATES 2
#define DML__UPDATE_NUMBERS 8

/* The rules of update.h; what numbers each takes is said at its kernel, which the shared kernels of
   gpu/update.cl follow. */
typedef enum dml__update_rule {
    DML__UPDATE_SGD,
    DML__UPDATE_ADAM,
    DML__UPDATE_RMSPROP,
    DML__UPDATE_ADAGRAD
} dml__update_rule;

/* One update of n elements; a state vector that isn't kept is NULL. */
DML__LOCAL void dml__update_by(dml__update_rule rule, dml_pool *pool, size_t n, float *w, const float *g,
                               float *const state[DML__UPDATE_STATES],
                               const float number[DML__UPDATE_NUMBERS]);

/* LAMB's direction, r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w, in the
   place of the gradient. Numbers as Adam's with lr 1. */
DML__LOCAL void dml__lamb_direction(dml_pool *pool, size_t n, const float *w, float *g, float *m, float *v,
                                    const float number[DML__UPDATE_NUMBERS]);

#endif
