#ifndef DML_TRAIN_TRAINER_FETCH_C
#define DML_TRAIN_TRAINER_FETCH_C

#include "train/trainer_internal.h"

#include "device/context_internal.h"

DML__LOCAL bool dml__can_lend(const dml_trainer *trainer)
{
    return trainer->context->device.backend->lend != NULL;
}

DML__LOCAL dml_status dml__lend(dml_trainer *trainer, int vector, size_t begin, float **data, void **stream)
{
    dml_device *device = &trainer->context->device;
    void *address = NULL;
    const dml_status status =
        device->backend->lend(device, dml__trainer_ref(trainer, vector, begin), &address, stream);
    *data = (float *)address;
    return status;
}

/* The first fetch has g's host copy held where it is. */
static void dml__pin_gradient(dml_trainer *trainer)
{
    dml_device *device = &trainer->context->device;
    const size_t bytes = trainer->program->graph->trained_count * sizeof(float);
    if (trainer->pin_asked || !device->backend->pin) return;
    trainer->pin_asked = true;
    trainer->pinned = device->backend->pin(device, trainer->mirror[DML_GRADIENTS], bytes);
}

DML__LOCAL void dml__unpin_gradient(dml_trainer *trainer)
{
    dml_device *device = &trainer->context->device;
    if (trainer->pinned && !dml__lost_by_fork(trainer->context))
        device->backend->unpin(device, trainer->mirror[DML_GRADIENTS]);
    trainer->pinned = false;
}

DML__LOCAL dml_status dml__fetch_start(dml_trainer *trainer, size_t begin, size_t end, dml__fetch *fetch)
{
    dml_device *device = &trainer->context->device;
    const bool starts = !device->host_memory && device->backend->read_start;
    fetch->begin = begin;
    fetch->end = end;
    fetch->ticket = NULL;
    fetch->data = (starts ? dml_trainer_host : dml_trainer_get)(trainer, DML_GRADIENTS, begin, end);
    if (!fetch->data) return dml_status_of(trainer->context);
    if (!starts) return DML_OK;
    dml__pin_gradient(trainer);
    return device->backend->read_start(device, fetch->data, dml__trainer_ref(trainer, DML_GRADIENTS, begin),
                                       (end - begin) * sizeof(float), &fetch->ticket);
}

DML__LOCAL dml_status dml__fetch_end(dml_trainer *trainer, dml__fetch *fetch, bool wait, bool *come)
{
    dml_device *device = &trainer->context->device;
    *come = true;
    if (!fetch->ticket) return DML_OK;
    if (dml__lost_by_fork(trainer->context)) return DML_ERROR_STATE;
    const dml_status status = device->backend->read_end(device, fetch->ticket, wait, come);
    if (status != DML_OK || *come) fetch->ticket = NULL;
    return status;
}

#endif
