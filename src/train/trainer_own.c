#ifndef DML_TRAIN_TRAINER_OWN_C
#define DML_TRAIN_TRAINER_OWN_C

#include "train/trainer.h"

#include "train/trainer_internal.h"

/* ---- which part of the vectors is this rank's ---- */

DML__LOCAL void dml__own_all(dml_trainer *trainer)
{
    trainer->own_begin = 0;
    trainer->own_end = trainer->program->graph->trained_count;
    trainer->has_owners = false;
}

DML_API dml_status dml_trainer_own(dml_trainer *trainer, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    const size_t count = trainer->program->graph->trained_count;
    dml__error *error = &trainer->context->error;
    if (begin > end || end > count)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "elements %zu to %zu of the gradient were to be this rank's; there are %zu", begin,
                         end, count);
    const bool part = begin > 0 || end < count;
    if (part && (!trainer->sync.all_reduce || !trainer->sync.gather))
        return dml__fail(error, DML_ERROR_UNSUPPORTED,
                         "a strategy whose ranks own parts of the gradient needs all_reduce and gather");
    const dml_status status = dml__check_cuts(trainer, begin, end);
    if (status != DML_OK) return status;
    trainer->own_begin = begin;
    trainer->own_end = end;
    trainer->has_owners = trainer->sync.all_reduce && trainer->sync.gather;
    return DML_OK;
}

DML_API void dml_trainer_owned(const dml_trainer *trainer, size_t *begin, size_t *end)
{
    if (begin) *begin = trainer ? trainer->own_begin : 0;
    if (end) *end = trainer ? trainer->own_end : 0;
}

DML__LOCAL dml_status dml__sum_over_owners(dml_trainer *trainer, double *values, size_t count)
{
    const dml_sync *sync = &trainer->sync;
    return dml__owns_a_part(trainer) ? sync->all_reduce(sync->state, trainer, values, count) : DML_OK;
}

/* ---- what is on other ranks alone ---- */

static bool dml__is_spread(const dml_trainer *trainer, int vector)
{
    return vector == DML_PARAMETERS ? trainer->program->graph->spread : trainer->spread[vector];
}

static const char *dml__spread_name(int vector)
{
    return vector == DML_PARAMETERS  ? "the parameters"
           : vector == DML_GRADIENTS ? "the gradient"
                                     : "the optimizer's state";
}

DML__LOCAL dml_status dml__check_here(const dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    const size_t own_begin = trainer->own_begin, own_end = trainer->own_end;
    if (begin >= end || begin >= trainer->program->graph->trained_count || !dml__is_spread(trainer, vector))
        return DML_OK;
    if (dml__owns_a_part(trainer) && begin >= own_begin && end <= own_end) return DML_OK;
    if (!trainer->sync.gather)
        return dml__fail(
            &trainer->context->error, DML_ERROR_STATE,
            "elements %zu to %zu of %s are needed, which a sync strategy that is gone has left spread over "
            "its ranks: call dml_trainer_gather on all ranks before it goes, or load a checkpoint now",
            begin, end, dml__spread_name(vector));
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "elements %zu to %zu of %s are needed, of which this rank has %zu to %zu and other "
                     "ranks the rest: call dml_trainer_gather on all ranks first (which leaves out the "
                     "gradient)",
                     begin, end, dml__spread_name(vector), own_begin,
                     dml__owns_a_part(trainer) ? own_end : own_begin);
}

DML__LOCAL dml_status dml__check_whole_here(dml_trainer *trainer, int vector)
{
    const size_t count = trainer->program->graph->trained_count;
    const bool all = dml__owns_a_part(trainer) && trainer->own_begin == 0 && trainer->own_end == count;
    if (count == 0 || !all || trainer->sync.ranks < 2 || !dml__is_spread(trainer, vector))
        return dml__check_here(trainer, vector, 0, count);
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "all of vector %d asked for, which this rank alone has, since it owns every parameter: "
                     "call dml_trainer_gather on all ranks first",
                     vector);
}

DML__LOCAL dml_status dml__check_not_left(const dml_trainer *trainer)
{
    bool spread = trainer->program->graph->spread;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++) spread = spread || trainer->spread[v];
    const bool knows = trainer->sync.gather && (trainer->sync.use || !trainer->program->graph->spread);
    if (!spread || knows) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "a sync strategy has spread the model over its ranks, and is another trainer's or is "
                     "gone: call dml_trainer_gather on all ranks before it goes, or load a checkpoint now");
}

DML__LOCAL void dml__have_gathered(dml_trainer *trainer)
{
    trainer->program->graph->spread = false;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++) trainer->spread[v] = false;
}

/* ---- forgetting ---- */

static dml_status dml__forget_elements(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    dml_device *device = &trainer->context->device;
    const dml_ref at = dml__trainer_ref(trainer, vector, begin);
    const size_t bytes = (end - begin) * sizeof(float);
    if (!device->host_memory) return bytes ? device->backend->zero(device, at, bytes) : DML_OK;
    dml__zero_pages(&trainer->context->memory, dml__host(at), bytes);
    return DML_OK;
}

DML__LOCAL dml_status dml__forget_gradient(dml_trainer *trainer, size_t begin, size_t end)
{
    return dml__forget_elements(trainer, DML_GRADIENTS, begin, end);
}

DML_API dml_status dml_trainer_forget(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    const size_t count = trainer->program->graph->trained_count;
    if (vector < 0 || vector >= trainer->vectors || begin > end || end > count)
        return dml__fail(
            &trainer->context->error, DML_ERROR_ARGUMENT,
            "elements %zu to %zu of vector %d were to be forgotten; there are %d vectors, with %zu "
            "trained elements",
            begin, end, vector, trainer->vectors, count);
    /* All ranks forget together: one that owns everything forgets nothing, and knows by it of the others. */
    const bool spread = begin < end || (count > 0 && dml__owns_a_part(trainer) && trainer->sync.ranks > 1);
    if (vector == DML_PARAMETERS)
        trainer->program->graph->spread = trainer->program->graph->spread || spread;
    else if (vector != DML_GRADIENTS)
        trainer->spread[vector] = trainer->spread[vector] || spread;
    return dml__forget_elements(trainer, vector, begin, end);
}

#endif
