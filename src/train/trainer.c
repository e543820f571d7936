#ifndef DML_TRAIN_TRAINER_C
#define DML_TRAIN_TRAINER_C

#include "train/trainer.h"

#include "base/memory.h"
#include "graph/gradient_rows.h"
#include "graph/op.h"
#include "graph/weights.h"
#include "train/loss_scale.h"
#include "train/schedule_internal.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__trainer_drop_sync(dml_trainer *trainer)
{
    dml_sync sync = trainer->sync;
    memset(&trainer->sync, 0, sizeof trainer->sync);
    trainer->sum_unit = 0;
    memset(&trainer->program->ranks, 0, sizeof trainer->program->ranks);
    dml__own_all(trainer);
    if (sync.destroy) sync.destroy(sync.state, trainer);
}

static void dml__trainer_destroy_owned(dml__owned *owned)
{
    dml_trainer *trainer = (dml_trainer *)(void *)owned;
    dml_context *context = trainer->context;
    dml__settle_trainer(trainer);
    dml__trainer_drop_sync(trainer);
    dml__disown(context, owned);
    dml__unpin_gradient(trainer);
    for (int v = 0; v < DML__MAX_VECTORS; v++) {
        if (v != DML_PARAMETERS) dml__release(&context->memory, trainer->mirror[v]);
        if (v >= DML_OPTIMIZER_STATE) dml__buffer_destroy(context, trainer->vector[v]);
    }
    dml__buffer_destroy(context, trainer->squares);
    dml__release(&context->memory, trainer->spent);
    dml__release(&context->memory, trainer->notes);
    dml__away_put(trainer, NULL);
    dml_program_destroy(trainer->program);
    dml__release(&context->memory, trainer);
}

DML__LOCAL bool dml__have_notes(dml_trainer *trainer)
{
    if (trainer->notes) return true;
    trainer->notes =
        (dml__note *)dml__allocate_array(&trainer->context->memory, DML__MOST_NOTES, sizeof *trainer->notes);
    if (trainer->notes) memset(trainer->notes, 0, DML__MOST_NOTES * sizeof *trainer->notes);
    return trainer->notes != NULL;
}

DML_API void dml_trainer_destroy(dml_trainer *trainer)
{
    if (trainer) dml__trainer_destroy_owned(&trainer->owned);
}

static dml_status dml__trainer_allocate(dml_trainer *trainer)
{
    dml_context *context = trainer->context;
    const size_t count = trainer->program->graph->trained_count;
    trainer->vector[DML_PARAMETERS] = trainer->program->graph->w;
    trainer->vector[DML_GRADIENTS] = trainer->program->g;
    trainer->states = trainer->row->states(&trainer->optimizer);
    trainer->vectors = DML_OPTIMIZER_STATE + trainer->states + (trainer->average > 0.0f ? 1 : 0);
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++) {
        trainer->vector[v] = dml__buffer_create_zeroed(context, count * sizeof(float));
        if (!trainer->vector[v]) return context->error.status;
    }
    if (trainer->row->whole) {
        const int parameters = dml_graph_parameters(trainer->program->graph);
        trainer->spent = (bool *)dml__allocate_array(&context->memory, (size_t)parameters, sizeof(bool));
        if (!trainer->spent)
            return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for an update's marks");
    }
    if (context->device.host_memory) return DML_OK;
    trainer->squares = dml__buffer_create(context, 3 * DML__MOST_SQUARES * sizeof(float));
    if (!trainer->squares) return context->error.status;
    trainer->mirror[DML_PARAMETERS] = dml__graph_host(trainer->program->graph);
    if (!trainer->mirror[DML_PARAMETERS]) return context->error.status;
    for (int v = DML_GRADIENTS; v < trainer->vectors; v++) {
        trainer->mirror[v] = (float *)dml__allocate_array(&context->memory, count, sizeof(float));
        if (!trainer->mirror[v])
            return dml__fail(&context->error, DML_ERROR_MEMORY,
                             "no memory left for the host's copy of %zu gradients", count);
    }
    return DML_OK;
}

/* The options but for the batch and the optimizer. */
static dml_status dml__check_options(const dml_trainer_options *options, dml__error *error)
{
    static const char *const names[] = { "clip_norm", "clip_value" };
    const float most[] = { options->clip_norm, options->clip_value };
    for (int i = 0; i < 2; i++)
        if (!(most[i] >= 0.0f && most[i] <= DML__MOST_CLIP))
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "%s %g asked for, it must be above 0 and at most %g; 0: no clipping", names[i],
                             (double)most[i], (double)DML__MOST_CLIP);
    if (!(options->average >= 0.0f && options->average < 1.0f))
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "an average that keeps %g of itself asked for, it must be 0 or more, and below 1; 0: no average",
            (double)options->average);
    if (options->loss_scale != 0.0f && options->loss_scale != -1.0f &&
        !(options->loss_scale >= DML__LEAST_LOSS_SCALE && options->loss_scale <= DML__MOST_LOSS_SCALE))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a loss scale of %g asked for, it must be %g to %g; 0: as the dtype needs, -1: none",
                         (double)options->loss_scale, (double)DML__LEAST_LOSS_SCALE,
                         (double)DML__MOST_LOSS_SCALE);
    return dml__check_schedule(&options->schedule, error);
}

static void dml__follow_schedule(dml_trainer *trainer)
{
    if (trainer->schedule.kind != DML_SCHEDULE_NONE)
        trainer->optimizer.lr = dml_schedule_lr(&trainer->schedule, trainer->steps);
}

static dml_trainer *dml__trainer_create_in(dml_node *loss, const dml_trainer_options *options)
{
    dml_context *context = loss->graph->context;
    dml_optimizer optimizer;
    memset(&optimizer, 0, sizeof optimizer);
    if (options) optimizer = options->optimizer;
    const dml__optimizer_row *row = dml__optimizer_row_of(optimizer.kind);
    if (row && optimizer.lr == 0.0f) optimizer.lr = row->lr;
    if (context->error.status != DML_OK || dml__complete_optimizer(&optimizer, &context->error) != DML_OK ||
        (options && dml__check_options(options, &context->error) != DML_OK))
        return NULL;
    if (row->whole && loss->graph->model.ranks) {
        dml__fail(&context->error, DML_ERROR_UNSUPPORTED,
                  "%s asked for, of a model that is cut over %d ranks: it goes by the norms of whole "
                  "parameters, of which each rank has a part; take another optimizer",
                  row->name, loss->graph->model.ranks);
        return NULL;
    }
    dml_program_options program_options;
    memset(&program_options, 0, sizeof program_options);
    program_options.batch = options ? options->batch : 0;
    program_options.training = true;
    program_options.check = options ? options->check : DML_CHECK_NOTHING;
    program_options.dtype = options ? options->dtype : DML_F32;
    program_options.watch = options ? options->watch : NULL;
    program_options.watch_count = options ? options->watch_count : 0;
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
    trainer->row = row;
    trainer->clip_norm = options->clip_norm; /* options are there: there is no batch without */
    trainer->clip_value = options->clip_value;
    trainer->schedule = options->schedule;
    trainer->average = options->average;
    trainer->loss_scale = dml__first_loss_scale(options);
    trainer->spoiled = true; /* there is none yet */
    dml__own_all(trainer);
    dml__follow_schedule(trainer);
    dml__own(context, &trainer->owned, dml__trainer_destroy_owned);
    if (dml__trainer_allocate(trainer) == DML_OK) return trainer;
    dml_trainer_destroy(trainer);
    return NULL;
}

DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_trainer *trainer = dml__trainer_create_in(loss, options);
    dml__leave(context, entry);
    return trainer;
}

/* ---- update ---- */

static dml_status dml__trainer_advance_in(dml_trainer *trainer)
{
    const dml_sync *sync = &trainer->sync;
    dml_status status = dml__check_not_swapped(trainer);
    if (status == DML_OK) status = dml__check_whole(trainer);
    if (status == DML_OK && !trainer->clipped) status = dml__find_overflow(trainer); /* by no update */
    if (status != DML_OK) return status;
    if (!trainer->searched) dml__away_put(trainer, NULL);
    if (dml__step_counts(trainer)) {
        trainer->steps++;
        dml__follow_schedule(trainer);
    }
    trainer->passes = 0;
    trainer->held = 0;
    if (trainer->row->whole) trainer->spoiled = true; /* used up */
    return sync->updated && !trainer->late.take ? sync->updated(sync->state, trainer) : DML_OK;
}

/* By the optimizer here, or by the strategy. */
static dml_status dml__update_whole(dml_trainer *trainer)
{
    const dml_sync *sync = &trainer->sync;
    const size_t count = trainer->program->graph->trained_count;
    if (trainer->followed) return trainer->context->error.status;
    if (!sync->update) return dml__trainer_update_in(trainer, 0, count);
    dml_status status = trainer->context->error.status;
    if (status == DML_OK) status = dml__begin_update(trainer, 0, count);
    if (status != DML_OK || trainer->overflowed) return status;
    trainer->in_sync_update = true;
    status = sync->update(sync->state, trainer);
    trainer->in_sync_update = false;
    return status;
}

/* ---- the public parts of a step ---- */

/* For a strategy that fails without a word. */
static dml_status dml__explain(dml_trainer *trainer, dml_status status, const char *what)
{
    return status == DML_OK ? status
                            : dml__fail(&trainer->context->error, status, "%s failed: %s", what,
                                        dml_status_string(status));
}

/* A part of a step has the context to itself, and, where it writes w, the graph. (A strategy may write w when
   an op is about to use it.) */
typedef struct dml__part {
    dml__entry entry;
    bool writes;
} dml__part;

static dml_status dml__begin_part_as(dml_trainer *trainer, bool writes, const void *user, dml__part *part)
{
    part->writes = false;
    part->entry = dml__enter_late(trainer->context, user);
    if (part->entry == DML__REFUSED) return DML_ERROR_STATE;
    dml_status status = trainer->context->error.status;
    const bool claimed = part->entry == DML__ENTERED_AGAIN && trainer->in_sync_update;
    if (status == DML_OK && trainer->late.take) {
        part->writes = true; /* as it has been since the last step */
    } else if (status == DML_OK && (writes || trainer->sync.use) && !claimed) {
        status = dml__graph_claim_writing(trainer->program->graph);
        part->writes = status == DML_OK;
    }
    if (status != DML_OK) dml__leave(trainer->context, part->entry);
    return status;
}

static dml_status dml__begin_part(dml_trainer *trainer, bool writes, dml__part *part)
{
    return dml__begin_part_as(trainer, writes, NULL, part);
}

static dml_status dml__end_part(dml_trainer *trainer, const dml__part *part, dml_status status,
                                const char *what)
{
    if (part->entry == DML__ENTERED) status = dml__flush(trainer->context, status);
    status = dml__explain(trainer, status, what);
    if (part->writes && !trainer->late.take) dml__graph_release(trainer->program->graph, false);
    dml__leave(trainer->context, part->entry);
    return status;
}

DML_API dml_status dml_trainer_backward(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                        int flags, float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, trainer->program->changes_w, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_backward_in(trainer, rows, inputs, count, flags, loss);
    return dml__end_part(trainer, &part, status, "the backward pass");
}

DML__LOCAL dml_status dml__trainer_part(dml_trainer *trainer, dml_status (*work)(void *user), void *user,
                                        const char *what)
{
    dml__part part;
    const dml_status status = dml__begin_part(trainer, trainer->program->changes_w, &part);
    return status == DML_OK ? dml__end_part(trainer, &part, work(user), what) : status;
}

DML_API dml_status dml_trainer_update_range(dml_trainer *trainer, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    if (trainer->sync.update && !trainer->in_sync_update)
        status = dml__fail(&trainer->context->error, DML_ERROR_UNSUPPORTED,
                           "an update of elements %zu to %zu asked for, but the sync strategy updates the "
                           "parameters itself; call dml_trainer_update or dml_trainer_step",
                           begin, end);
    else
        status = dml__trainer_update_in(trainer, begin, end);
    return dml__end_part(trainer, &part, status, "the update");
}

static dml_status dml__swap_average_here(dml_trainer *trainer)
{
    dml_status status = dml__check_whole_here(trainer, DML_PARAMETERS);
    if (status == DML_OK) status = dml__check_whole_here(trainer, trainer->vectors - 1);
    return status == DML_OK ? dml__swap_average_in(trainer) : status;
}

DML_API dml_status dml_trainer_swap_average(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    if (trainer->average > 0.0f && trainer->steps == 0)
        status = dml__fail(&trainer->context->error, DML_ERROR_STATE,
                           "the average of the parameters asked for before the first update");
    else if (trainer->average > 0.0f)
        status = dml__swap_average_here(trainer);
    else
        status = dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                           "the average of the parameters asked for; the trainer keeps none: say how much it "
                           "keeps of itself in its options");
    return dml__end_part(trainer, &part, status, "the exchange of the parameters and their average");
}

DML_API float dml_trainer_gradient_norm(dml_trainer *trainer)
{
    if (!trainer) return NAN;
    dml__part part;
    double norm = NAN;
    dml_status status = dml__begin_part(trainer, false, &part);
    if (status != DML_OK) return NAN;
    status = dml__gradient_norm_in(trainer, &norm);
    status = dml__end_part(trainer, &part, status, "the gradient's norm");
    return status == DML_OK ? (float)norm : NAN;
}

DML_API dml_status dml_trainer_advance(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the end of the training step");
}

DML_API dml_status dml_trainer_update(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__update_whole(trainer);
    if (status == DML_OK) status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the update");
}

DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                    float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    /* A rank without samples clears g, which may be on its way. */
    dml_status status = dml__begin_part_as(trainer, true, rows != 0 ? trainer : NULL, &part);
    if (status != DML_OK) return status;
    trainer->stepping = true;
    trainer->alone = part.entry == DML__ENTERED;
    status = dml__trainer_backward_in(trainer, rows, inputs, count, DML_OVERWRITE, loss);
    if (status == DML_OK) status = dml__update_whole(trainer);
    trainer->stepping = trainer->followed = false;
    if (status == DML_OK) status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the training step");
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

DML_API dml_trainer_run dml_trainer_get_run(const dml_trainer *trainer)
{
    dml_trainer_run run;
    memset(&run, 0, sizeof run);
    if (!trainer) return run;
    run.optimizer = trainer->optimizer;
    run.seed = trainer->context->seed;
    run.steps = trainer->steps;
    run.loss_scale = trainer->loss_scale;
    run.scaled_steps = trainer->scaled_steps;
    run.skipped = trainer->skipped;
    return run;
}

DML_API dml_status dml_trainer_set_run(dml_trainer *trainer, const dml_trainer_run *run)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__error *error = &trainer->context->error;
    if (!run) return dml__fail_null(error, "dml_trainer_set_run", "run");
    dml_optimizer optimizer = run->optimizer;
    const dml_status status = dml__complete_optimizer(&optimizer, error);
    if (status != DML_OK) return status;
    dml__settle(trainer->context);
    const dml__optimizer_row *row = dml__optimizer_row_of(optimizer.kind);
    if (row != trainer->row || row->states(&optimizer) != trainer->states)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a run by %s with momentum %g can't go on by %s with momentum %g, which keeps other "
                         "state",
                         row->name, (double)optimizer.momentum, trainer->row->name,
                         (double)trainer->optimizer.momentum);
    const bool scales = trainer->loss_scale > 0.0f && run->loss_scale != 0.0f;
    if (scales && !(run->loss_scale >= DML__LEAST_LOSS_SCALE && run->loss_scale <= DML__MOST_LOSS_SCALE))
        return dml__fail(error, DML_ERROR_ARGUMENT, "a run can't go on with a loss scale of %g",
                         (double)run->loss_scale);
    if (scales) {
        trainer->loss_scale = run->loss_scale;
        trainer->scaled_steps = run->scaled_steps;
    }
    trainer->optimizer = optimizer;
    trainer->context->seed = run->seed;
    trainer->compared = false;
    trainer->runs += run->steps != trainer->steps || run->skipped != trainer->skipped;
    trainer->steps = run->steps;
    trainer->skipped = run->skipped;
    dml__follow_schedule(trainer);
    return DML_OK;
}

DML_API float dml_trainer_lr(const dml_trainer *trainer)
{
    return trainer ? trainer->optimizer.lr : 0.0f;
}

DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr)
{
    if (!trainer) return;
    if (trainer->schedule.kind != DML_SCHEDULE_NONE)
        dml__fail(&trainer->context->error, DML_ERROR_STATE,
                  "a learning rate of %g asked for, but the trainer follows a schedule", (double)lr);
    else if (lr >= 0.0f && lr <= DML__MAX_LR)
        trainer->optimizer.lr = lr;
    else
        dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                  "a learning rate of %g asked for, it must be 0 or more", (double)lr);
}

DML_API size_t dml_trainer_count(const dml_trainer *trainer, int vector)
{
    if (!trainer || vector < 0 || vector >= trainer->vectors) return 0;
    const dml_graph *graph = trainer->program->graph;
    return vector == DML_PARAMETERS ? graph->parameter_count : graph->trained_count;
}

DML_API int dml_trainer_vectors(const dml_trainer *trainer)
{
    return trainer ? trainer->vectors : 0;
}

static bool dml__trainer_range_ok(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    const size_t count = dml_trainer_count(trainer, vector);
    if (vector >= 0 && vector < trainer->vectors && begin <= end && end <= count) return true;
    dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of vector %d asked for; there are %d vectors, that one of %zu", begin, end,
              vector, trainer->vectors, count);
    return false;
}

DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer || !dml__trainer_range_ok(trainer, vector, begin, end)) return NULL;
    dml__settle(trainer->context);
    if (!trainer->context->device.host_memory) return trainer->mirror[vector] + begin;
    return (float *)dml__host(dml__trainer_ref(trainer, vector, begin));
}

DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    float *host = dml_trainer_host(trainer, vector, begin, end);
    if (host && dml__check_here(trainer, vector, begin, end) != DML_OK) return NULL;
    if (!host || trainer->context->device.host_memory || begin == end) return host;
    dml_device *device = &trainer->context->device;
    const dml_ref from = dml__trainer_ref(trainer, vector, begin);
    dml__entry entry;
    if (!dml__begin_transfer(trainer->context, &entry)) return NULL;
    const dml_status status = device->backend->read(device, host, from, (end - begin) * sizeof(float));
    dml__leave(trainer->context, entry);
    return status == DML_OK ? host : NULL;
}

DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!dml__trainer_range_ok(trainer, vector, begin, end)) return DML_ERROR_ARGUMENT;
    dml__settle(trainer->context);
    dml_device *device = &trainer->context->device;
    if (vector == DML_GRADIENTS) dml__gradient_replaced(trainer, begin, end); /* by the caller's own */
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = dml__trainer_ref(trainer, vector, begin);
    dml__entry entry;
    if (!dml__begin_transfer(trainer->context, &entry)) return DML_ERROR_STATE;
    const dml_status status =
        device->backend->write(device, to, trainer->mirror[vector] + begin, (end - begin) * sizeof(float));
    dml__leave(trainer->context, entry);
    return status;
}

DML_API dml_status dml_trainer_gather(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    const dml_sync *sync = &trainer->sync;
    status = sync->gather ? sync->gather(sync->state, trainer) : dml__check_not_left(trainer);
    if (status == DML_OK) dml__have_gathered(trainer);
    return dml__end_part(trainer, &part, status, "the gathering of the vectors");
}

DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync)
{
    if (!trainer) {
        if (sync.destroy) sync.destroy(sync.state, NULL);
        return DML_ERROR_ARGUMENT;
    }
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) { /* another thread may be in a step with the strategy that is attached: it stays */
        if (sync.destroy) sync.destroy(sync.state, trainer);
        return status;
    }
    status = dml__check_not_swapped(trainer);
    if (status == DML_OK && trainer->searched)
        status =
            dml__fail(&trainer->context->error, DML_ERROR_STATE,
                      "a sync strategy can't begin while a search for learning rates is on, whose end takes "
                      "each rank back to where it was: end it with dml_lr_finder_end before");
    if (status != DML_OK) {
        if (sync.destroy) sync.destroy(sync.state, trainer);
        return dml__end_part(trainer, &part, status, "the start of the sync strategy");
    }
    dml__trainer_drop_sync(trainer);
    trainer->sync = sync;
    dml__hook_ranks(trainer);
    trainer->held = 0;
    trainer->pending = false;
    trainer->spoiled = true; /* g was another way's to make a step */
    status = sync.start ? sync.start(sync.state, trainer) : DML_OK;
    if (status != DML_OK) dml__trainer_drop_sync(trainer);
    return dml__end_part(trainer, &part, status, "the start of the sync strategy");
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
