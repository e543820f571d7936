#ifndef DML_DIST_LOCAL_SGD_OUTER_C
#define DML_DIST_LOCAL_SGD_OUTER_C

#include "dist/local_sgd_outer.h"

#include "kernels/elementwise.h"
#include "train/trainer_internal.h"

#include <string.h>

DML__LOCAL dml_status dml__check_outer(const dml__outer_optimizer *outer, dml_trainer *trainer)
{
    if (outer->rule.lr == 0.0f) return DML_OK;
    const dml__optimizer_row *row = dml__optimizer_row_of(outer->rule.kind);
    if (row && row->whole)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "%s asked for as the outer optimizer of local SGD; it updates whole "
                                "parameters, take another one",
                                row->name);
    dml_optimizer completed = outer->rule;
    return dml__complete_optimizer(&completed, &trainer->context->error);
}

DML__LOCAL bool dml__allocate_outer(dml__outer_optimizer *outer, dml__memory *memory, size_t count)
{
    if (outer->rule.lr == 0.0f) return true;
    const int states = dml_optimizer_states(&outer->rule);
    float **vectors[2 + DML__MAX_STATES] = { &outer->anchor, &outer->change };
    bool whole = true;
    for (int s = 0; s < states; s++) vectors[2 + s] = &outer->state[s];
    for (int v = 0; v < 2 + states; v++) {
        *vectors[v] = (float *)dml__allocate_array(memory, count, sizeof(float));
        whole = whole && *vectors[v];
    }
    return whole;
}

DML__LOCAL void dml__release_outer(dml__outer_optimizer *outer, dml__memory *memory)
{
    for (int s = 0; s < DML__MAX_STATES; s++) dml__release(memory, outer->state[s]);
    dml__release(memory, outer->anchor);
    dml__release(memory, outer->change);
}

DML__LOCAL dml_status dml__begin_outer(dml__outer_optimizer *outer, dml_trainer *trainer)
{
    if (!outer->anchor) return DML_OK;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(trainer->context);
    memcpy(outer->anchor, w, count * sizeof *w);
    return DML_OK;
}

/* w goes on from where the last average left it, along the way that the ranks went on average. */
DML__LOCAL dml_status dml__outer_update(dml__outer_optimizer *outer, dml_trainer *trainer)
{
    if (!outer->anchor) return DML_OK;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t bytes = count * sizeof(float);
    dml_pool *pool = trainer->context->pool;
    /* What the host has is what was averaged. */
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(trainer->context);
    memcpy(outer->change, outer->anchor, bytes);
    dml_axpby(pool, count, -1.0f, w, 1.0f, outer->change);
    const dml_status status = dml_optimizer_update(&outer->rule, pool, outer->rounds++, count, outer->anchor,
                                                   outer->change, outer->state);
    if (status != DML_OK)
        return dml_trainer_fail(trainer, status, "local SGD's outer optimizer failed: %s",
                                dml_status_string(status));
    memcpy(w, outer->anchor, bytes);
    return dml_trainer_put(trainer, DML_PARAMETERS, 0, count);
}

#endif
