#ifndef DML_TRAIN_TRAINER_C
#define DML_TRAIN_TRAINER_C

#include "train/trainer.h"

#include "base/memory.h"
#include "train/trainer_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__trainer_drop_sync(dml_trainer *trainer)
{
    dml_sync sync = trainer->sync;
    memset(&trainer->sync, 0, sizeof trainer->sync);
    if (sync.destroy) sync.destroy(sync.state, trainer);
}

static void dml__trainer_destroy_owned(dml__owned *owned)
{
    dml_trainer *trainer = (dml_trainer *)(void *)owned;
    dml_context *context = trainer->context;
    dml__trainer_drop_sync(trainer);
    dml__disown(context, owned);
    for (int v = 0; v < DML__MAX_VECTORS; v++) {
        dml__release(&context->memory, trainer->mirror[v]);
        if (v >= DML_OPTIMIZER_STATE) dml__buffer_destroy(context, trainer->vector[v]);
    }
    dml_program_destroy(trainer->program);
    dml__release(&context->memory, trainer);
}

DML_API void dml_trainer_destroy(dml_trainer *trainer)
{
    if (trainer) dml__trainer_destroy_owned(&trainer->owned);
}

/* Far above any that is meant; it refuses infinity. */
#define DML__MAX_LR 1e6f

static dml_status dml__check_optimizer(dml_context *context, const dml_optimizer *o)
{
    if (!dml__optimizer_row_of(o->kind))
        return dml__fail(&context->error, DML_ERROR_ARGUMENT, "no optimizer of kind %d", (int)o->kind);
    /* Written so that a NaN is refused too. */
    if (!(o->lr > 0.0f && o->lr <= DML__MAX_LR) || !(o->momentum >= 0.0f && o->momentum < 1.0f) ||
        !(o->weight_decay >= 0.0f && o->weight_decay <= 1e6f))
        return dml__fail(
            &context->error, DML_ERROR_ARGUMENT,
            "optimizer with lr %g, momentum %g, weight decay %g: lr must be above 0, momentum in 0 .. 1 "
            "(below 1), weight decay 0 or more",
            (double)o->lr, (double)o->momentum, (double)o->weight_decay);
    if (o->nesterov && o->momentum == 0.0f)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT, "Nesterov momentum needs a momentum above 0");
    return DML_OK;
}

static dml_status dml__trainer_allocate(dml_trainer *trainer)
{
    dml_context *context = trainer->context;
    const size_t count = dml_trainer_parameter_count(trainer);
    const int states = trainer->row->states(&trainer->optimizer);
    trainer->vector[DML_PARAMETERS] = trainer->program->graph->w;
    trainer->vector[DML_GRADIENTS] = trainer->program->g;
    trainer->vectors = DML_OPTIMIZER_STATE + states;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++) {
        trainer->vector[v] = dml__buffer_create(context, count * sizeof(float));
        if (!trainer->vector[v]) return context->error.status;
        const dml_ref start = { trainer->vector[v], 0 };
        const dml_status status =
            context->device.backend->zero(&context->device, start, count * sizeof(float));
        if (status != DML_OK) return status;
    }
    for (int v = 0; v < trainer->vectors && !context->device.host_memory; v++) {
        trainer->mirror[v] = (float *)dml__allocate_array(&context->memory, count, sizeof(float));
        if (!trainer->mirror[v])
            return dml__fail(&context->error, DML_ERROR_MEMORY,
                             "no memory left for the host's copy of %zu parameters", count);
    }
    return DML_OK;
}

DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    dml_optimizer optimizer;
    memset(&optimizer, 0, sizeof optimizer);
    if (options) optimizer = options->optimizer;
    if (optimizer.lr == 0.0f) optimizer.lr = 0.01f;
    if (context->error.status != DML_OK || dml__check_optimizer(context, &optimizer) != DML_OK) return NULL;
    dml_program_options program_options;
    program_options.batch = options ? options->batch : 0;
    program_options.training = true;
    dml_program *program = dml_compile(loss, &program_options);
    if (!program) return NULL;
    dml_trainer *trainer = (dml_trainer *)dml__allocate(&context->memory, sizeof *trainer);
    if (!trainer) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a trainer");
        dml_program_destroy(program);
        return NULL;
    }
    trainer->context = context;
    trainer->program = program;
    trainer->optimizer = optimizer;
    trainer->row = dml__optimizer_row_of(optimizer.kind);
    dml__own(context, &trainer->owned, dml__trainer_destroy_owned);
    if (dml__trainer_allocate(trainer) == DML_OK) return trainer;
    dml_trainer_destroy(trainer);
    return NULL;
}

static dml_status dml__trainer_gradient_ready(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.ready ? trainer->sync.ready(trainer->sync.state, trainer, begin, end) : DML_OK;
}

/* A rank without samples takes part in the sync with a gradient of zero. */
static dml_status dml__train_on_nothing(dml_trainer *trainer, const dml__gradient_listener *listener)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    const dml_ref g = { trainer->vector[DML_GRADIENTS], 0 };
    const dml_status status =
        trainer->context->device.backend->zero(&trainer->context->device, g, count * sizeof(float));
    return status == DML_OK ? listener->ready(listener->user, 0, count) : status;
}

static dml_status dml__trainer_update(dml_trainer *trainer)
{
    dml__update update;
    memset(&update, 0, sizeof update);
    update.device = &trainer->context->device;
    update.pool = trainer->context->pool;
    update.n = dml_trainer_parameter_count(trainer);
    update.w.buffer = trainer->vector[DML_PARAMETERS];
    update.g.buffer = trainer->vector[DML_GRADIENTS];
    for (int s = 0; s < trainer->vectors - DML_OPTIMIZER_STATE; s++)
        update.state[s].buffer = trainer->vector[DML_OPTIMIZER_STATE + s];
    update.step = trainer->steps;
    return trainer->row->update(&trainer->optimizer, &update);
}

/* Forward and backward: under a strategy that combines gradients g is the gradient of the sum over the rows.
 */
static dml_status dml__trainer_find_gradient(dml_trainer *trainer, int rows, const void *const *inputs,
                                             float *loss)
{
    const dml_sync *sync = &trainer->sync;
    const bool attached = sync->begin || sync->ready || sync->finish || sync->updated;
    const dml__gradient_listener listener = { dml__trainer_gradient_ready, trainer };
    if (attached && rows == 0) {
        if (loss) *loss = 0.0f;
        return dml__train_on_nothing(trainer, &listener);
    }
    const float loss_scale = sync->ready || sync->finish ? (float)rows : 1.0f;
    return dml__program_train(trainer->program, rows, inputs, (uint32_t)trainer->steps, loss_scale, &listener,
                              loss);
}

/* For a strategy, or a kernel, that fails without a word. */
static dml_status dml__explain(dml_trainer *trainer, dml_status status, const char *what)
{
    return status == DML_OK ? status
                            : dml__fail(&trainer->context->error, status, "%s failed: %s", what,
                                        dml_status_string(status));
}

DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_sync *sync = &trainer->sync;
    dml_status status = trainer->context->error.status;
    if (status == DML_OK && sync->begin) status = sync->begin(sync->state, trainer, rows);
    if (status == DML_OK) status = dml__trainer_find_gradient(trainer, rows, inputs, loss);
    if (status == DML_OK && sync->finish) status = sync->finish(sync->state, trainer);
    if (status == DML_OK) status = dml__trainer_update(trainer);
    if (status == DML_OK) trainer->steps++;
    if (status == DML_OK && sync->updated) status = sync->updated(sync->state, trainer);
    return dml__explain(trainer, status, "the training step");
}

DML_API dml_program *dml_trainer_program(dml_trainer *trainer)
{
    return trainer ? trainer->program : NULL;
}

DML_API dml_context *dml_trainer_context(const dml_trainer *trainer)
{
    return trainer ? trainer->context : NULL;
}

DML_API uint64_t dml_trainer_steps(const dml_trainer *trainer)
{
    return trainer ? trainer->steps : 0;
}

DML_API void dml_trainer_set_steps(dml_trainer *trainer, uint64_t steps)
{
    if (trainer) trainer->steps = steps;
}

DML_API float dml_trainer_lr(const dml_trainer *trainer)
{
    return trainer ? trainer->optimizer.lr : 0.0f;
}

DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr)
{
    if (!trainer) return;
    if (lr >= 0.0f && lr <= DML__MAX_LR)
        trainer->optimizer.lr = lr;
    else
        dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                  "a learning rate of %g asked for, it must be 0 or more", (double)lr);
}

DML_API size_t dml_trainer_parameter_count(const dml_trainer *trainer)
{
    return trainer ? trainer->program->graph->parameter_count : 0;
}

DML_API int dml_trainer_vectors(const dml_trainer *trainer)
{
    return trainer ? trainer->vectors : 0;
}

static bool dml__trainer_range_ok(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    if (vector >= 0 && vector < trainer->vectors && begin <= end && end <= count) return true;
    dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of vector %d asked for; there are %d vectors of %zu", begin, end, vector,
              trainer->vectors, count);
    return false;
}

DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer || !dml__trainer_range_ok(trainer, vector, begin, end)) return NULL;
    if (!trainer->context->device.host_memory) return trainer->mirror[vector] + begin;
    const dml_ref ref = { trainer->vector[vector], begin * sizeof(float) };
    return (float *)dml__host(ref);
}

DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    float *host = dml_trainer_host(trainer, vector, begin, end);
    if (!host || trainer->context->device.host_memory || begin == end) return host;
    dml_device *device = &trainer->context->device;
    const dml_ref from = { trainer->vector[vector], begin * sizeof(float) };
    return device->backend->read(device, host, from, (end - begin) * sizeof(float)) == DML_OK ? host : NULL;
}

DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!dml__trainer_range_ok(trainer, vector, begin, end)) return DML_ERROR_ARGUMENT;
    dml_device *device = &trainer->context->device;
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = { trainer->vector[vector], begin * sizeof(float) };
    return device->backend->write(device, to, trainer->mirror[vector] + begin, (end - begin) * sizeof(float));
}

DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__trainer_drop_sync(trainer);
    trainer->sync = sync;
    const dml_status status = sync.start ? sync.start(sync.state, trainer) : DML_OK;
    if (status != DML_OK) dml__trainer_drop_sync(trainer);
    return dml__explain(trainer, status, "the start of the sync strategy");
}

DML_API dml_status dml_trainer_fail(dml_trainer *trainer, dml_status status, const char *format, ...)
{
    if (!trainer) return status;
    char text[sizeof trainer->context->error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dml__fail(&trainer->context->error, status, "%s", text);
}

#endif
