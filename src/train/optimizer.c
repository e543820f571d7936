#ifndef DML_TRAIN_OPTIMIZER_C
#define DML_TRAIN_OPTIMIZER_C

#include "train/optimizer.h"

#include "graph/op.h"
#include "kernels/update.h"
#include "train/optimizer_internal.h"

static int dml__sgd_states(const dml_optimizer *optimizer)
{
    return optimizer->momentum != 0.0f ? 1 : 0;
}

static dml_status dml__sgd_step(const dml_optimizer *optimizer, const dml__update *update)
{
    const bool has_velocity = optimizer->momentum != 0.0f;
    if (update->device->host_memory) {
        dml_sgd_update(update->pool, update->n, (float *)dml__host(update->w),
                       (const float *)dml__host(update->g),
                       has_velocity ? (float *)dml__host(update->state[0]) : NULL, optimizer->lr,
                       optimizer->momentum, optimizer->weight_decay, optimizer->nesterov);
        return DML_OK;
    }
    dml_launch launch = dml__launch("sgd_update", update->n, 1);
    launch.buffer[0] = update->w;
    launch.buffer[1] = update->g;
    if (has_velocity) launch.buffer[2] = update->state[0];
    launch.integer[0] = (int32_t)update->n;
    launch.integer[1] = optimizer->nesterov;
    launch.real[0] = optimizer->lr;
    launch.real[1] = optimizer->momentum;
    launch.real[2] = optimizer->weight_decay;
    return dml__submit(update->device, &launch);
}

DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind)
{
    static const dml__optimizer_row rows[] = {
        { "sgd", { "velocity", NULL }, dml__sgd_states, dml__sgd_step },
    };
    return (unsigned)kind < sizeof rows / sizeof rows[0] ? &rows[kind] : NULL;
}

DML__LOCAL dml_status dml__check_optimizer(const dml_optimizer *o, dml__error *error)
{
    if (!dml__optimizer_row_of(o->kind))
        return dml__fail(error, DML_ERROR_ARGUMENT, "no optimizer of kind %d", (int)o->kind);
    /* Written so that a NaN is refused too. */
    if (!(o->lr >= 0.0f && o->lr <= DML__MAX_LR) || !(o->momentum >= 0.0f && o->momentum < 1.0f) ||
        !(o->weight_decay >= 0.0f && o->weight_decay <= 1e6f))
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "optimizer with lr %g, momentum %g, weight decay %g: lr must be 0 or more, momentum in 0 .. 1 "
            "(below 1), weight decay 0 or more",
            (double)o->lr, (double)o->momentum, (double)o->weight_decay);
    if (o->nesterov && o->momentum == 0.0f)
        return dml__fail(error, DML_ERROR_ARGUMENT, "Nesterov momentum needs a momentum above 0");
    return DML_OK;
}

DML_API dml_optimizer dml_sgd(float lr, float momentum)
{
    const dml_optimizer optimizer = { DML_SGD, lr, momentum, 0.0f, false };
    return optimizer;
}

#endif
