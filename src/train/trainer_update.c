#ifndef DML_TRAIN_TRAINER_UPDATE_C
#define DML_TRAIN_TRAINER_UPDATE_C

#include "train/trainer.h"

#include "graph/gradient_rows.h"
#include "graph/op.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/update.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <string.h>

/* ---- the whole gradient ---- */

DML__LOCAL dml_status dml__scale_gradient(dml_trainer *trainer, size_t begin, size_t end, double factor)
{
    const size_t n = end - begin;
    const dml_ref g = dml__trainer_ref(trainer, DML_GRADIENTS, begin);
    dml_device *device = &trainer->context->device;
    if (factor == 1) return DML_OK;
    if (!(factor - factor == 0)) dml__gradient_changed(trainer->program); /* of zeros it makes NaNs */
    if (device->host_memory) {
        dml_scale(trainer->context->pool, n, (float)factor, (float *)dml__host(g));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", n, 1);
    launch.buffer[0] = g;
    launch.buffer[1] = g;
    launch.integer[0] = (int32_t)n;
    launch.real[0] = (float)factor;
    return dml__submit(device, &launch);
}

static size_t dml__owned_count(const dml_trainer *trainer)
{
    return trainer->own_end - trainer->own_begin;
}

/* A launch over g[begin, begin + n), which is buffer 0. */
static dml_launch dml__launch_on_gradient(const dml_trainer *trainer, const char *kernel, size_t size,
                                          size_t begin, size_t n)
{
    dml_launch launch = dml__launch(kernel, size, 1);
    launch.buffer[0] = dml__trainer_ref(trainer, DML_GRADIENTS, begin);
    launch.buffer[1].buffer = trainer->squares;
    launch.integer[0] = (int32_t)n;
    launch.integer[1] = (int32_t)dml__squares_of(n);
    return launch;
}

/* The same over what is owned of g. */
static dml_launch dml__launch_on_own(const dml_trainer *trainer, const char *kernel)
{
    const size_t n = dml__owned_count(trainer);
    return dml__launch_on_gradient(trainer, kernel, n, trainer->own_begin, n);
}

static dml_status dml__start_device_squares(dml_trainer *trainer, size_t begin, size_t n)
{
    if (n > INT32_MAX)
        return dml__fail(&trainer->context->error, DML_ERROR_UNSUPPORTED,
                         "the norm of a gradient of %zu elements asked of a device; it can be of %d at most",
                         n, INT32_MAX);
    const dml_launch launch = dml__launch_on_gradient(trainer, "sum_squares", dml__squares_of(n), begin, n);
    return dml__submit(&trainer->context->device, &launch);
}

static dml_status dml__read_device_squares(dml_trainer *trainer, size_t n, double *sum)
{
    dml_device *device = &trainer->context->device;
    float squares[DML__MOST_SQUARES];
    const size_t groups = dml__squares_of(n);
    const dml_ref from = { trainer->squares, 0 };
    const dml_status status = device->backend->read(device, squares, from, groups * sizeof squares[0]);
    *sum = 0;
    for (size_t i = 0; i < groups && status == DML_OK; i++) *sum += (double)squares[i];
    return status;
}

/* The sum of the squares of g[begin, end). */
static dml_status dml__squares_within(dml_trainer *trainer, size_t begin, size_t end, double *squares)
{
    const size_t n = end - begin;
    *squares = 0;
    if (trainer->context->device.host_memory) {
        const float *g = (const float *)dml__host(dml__trainer_ref(trainer, DML_GRADIENTS, begin));
        *squares = dml__sum_of_squares(trainer->context->pool, n, g);
        return DML_OK;
    }
    dml_status status = n ? dml__start_device_squares(trainer, begin, n) : DML_OK;
    if (n && status == DML_OK) status = dml__read_device_squares(trainer, n, squares);
    return status;
}

/* The same of g[begin, end) where the model is cut: of what its ranks have alike, only the first one's. */
static dml_status dml__squares_of_parts(dml_trainer *trainer, size_t begin, size_t end, double *squares)
{
    const dml_graph *graph = trainer->program->graph;
    const dml_node *p = graph->first_parameter;
    dml_status status = DML_OK;
    *squares = 0;
    for (; p && status == DML_OK; p = p->next_parameter) {
        const size_t behind = p->offset + dml_shape_count(&p->shape);
        const size_t from = p->offset > begin ? p->offset : begin, to = behind < end ? behind : end;
        double own = 0;
        if (p->frozen || from >= to || (!p->cut && graph->model.rank > 0)) continue;
        status = dml__squares_within(trainer, from, to, &own);
        *squares += own;
    }
    return status;
}

/* The norm of g as it is, over all owners and all ranks of the model. */
static dml_status dml__measure_norm(dml_trainer *trainer, double *norm)
{
    const dml__model_ranks *model = &trainer->program->graph->model;
    const dml__model_ranks *stages = &trainer->program->graph->stages;
    double squares = 0;
    dml_status status = (model->ranks ? dml__squares_of_parts : dml__squares_within)(
        trainer, trainer->own_begin, trainer->own_end, &squares);
    if (status == DML_OK) status = dml__sum_over_owners(trainer, &squares, 1);
    if (status == DML_OK && model->ranks)
        status = model->calls->sum(model->user, &squares, 1, &trainer->context->error);
    if (status == DML_OK && stages->ranks)
        status = stages->calls->sum(stages->user, &squares, 1, &trainer->context->error);
    *norm = sqrt(squares);
    return status;
}

/* The trained parameters of which some elements are in [begin, end): the first from `p` on, whose place among
   all parameters is *i. */
static const dml_node *dml__parameter_within(const dml_node *p, size_t begin, size_t end, int *i)
{
    for (; p && begin < end; p = p->next_parameter, ++*i)
        if (!p->frozen && p->offset < end && p->offset + dml_shape_count(&p->shape) > begin) return p;
    return NULL;
}

/* One whose gradient has been used up, or NULL. */
static const dml_node *dml__find_spent(const dml_trainer *trainer, size_t begin, size_t end)
{
    int i = 0;
    const dml_node *p = trainer->spent ? trainer->program->graph->first_parameter : NULL;
    while ((p = dml__parameter_within(p, begin, end, &i)) != NULL) {
        if (trainer->spent[i]) return p;
        p = p->next_parameter;
        i++;
    }
    return NULL;
}

static void dml__mark_spent(dml_trainer *trainer, size_t begin, size_t end, bool spent)
{
    int i = 0;
    const dml_node *p = trainer->spent ? trainer->program->graph->first_parameter : NULL;
    while ((p = dml__parameter_within(p, begin, end, &i)) != NULL) {
        trainer->spent[i++] = spent;
        p = p->next_parameter;
    }
}

DML__LOCAL void dml__gradient_written(dml_trainer *trainer, size_t begin, size_t end)
{
    dml__mark_spent(trainer, begin, end, false);
}

DML__LOCAL void dml__gradient_replaced(dml_trainer *trainer, size_t begin, size_t end)
{
    trainer->spoiled = trainer->clipped = false;
    dml__gradient_written(trainer, begin, end);
    dml__gradient_changed(trainer->program);
}

DML__LOCAL dml_status dml__has_gradient(const dml_trainer *trainer, size_t begin, size_t end,
                                        const char *what)
{
    if (trainer->spoiled)
        return dml__fail(
            &trainer->context->error, DML_ERROR_STATE,
            "%s, but there is no gradient: no backward pass was made, the last one failed, or what "
            "it left has been used up (by lars, lamb or an exchange with the average)",
            what);
    const dml_node *spent = dml__find_spent(trainer, begin, end);
    if (!spent) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "%s, but %s has used the gradient of '%s' up in an update of this step: there is none "
                     "until the next backward pass",
                     what, trainer->row->name, spent->name);
}

/* Clipping needs it there alone. */
static bool dml__norm_stays_on_device(const dml_trainer *trainer)
{
    return !trainer->context->device.host_memory && !dml__owns_a_part(trainer) &&
           !dml__graph_cuts(trainer->program->graph);
}

DML__LOCAL dml_status dml__gradient_norm_in(dml_trainer *trainer, double *norm)
{
    const bool clipped = trainer->clipped && trainer->clip_norm > 0.0f;
    const dml_status usable =
        clipped ? DML_OK
                : dml__has_gradient(trainer, 0, trainer->program->graph->trained_count,
                                    "the gradient's norm (a trainer with clip_norm keeps it)");
    if (usable != DML_OK) return usable;
    if (!clipped) return dml__measure_norm(trainer, norm);
    *norm = trainer->norm;
    if (!dml__norm_stays_on_device(trainer)) return DML_OK;
    double squares;
    const dml_status status = dml__read_device_squares(trainer, dml__owned_count(trainer), &squares);
    *norm = sqrt(squares);
    return status;
}

/* To a norm of at most clip_norm, as PyTorch's clip_grad_norm_ does, which divides by a little more than the
   norm. A norm that is NaN spoils all of g, so that it is seen. */
static dml_status dml__clip_norm_of_gradient(dml_trainer *trainer)
{
    const bool measures = !dml__norm_stays_on_device(trainer);
    const dml_status status =
        measures ? dml__measure_norm(trainer, &trainer->norm)
                 : dml__start_device_squares(trainer, trainer->own_begin, dml__owned_count(trainer));
    if (status != DML_OK) return status;
    if (measures) {
        const double factor = (double)trainer->clip_norm / (trainer->norm + 1e-6);
        if (factor >= 1) return DML_OK;
        return dml__scale_gradient(trainer, trainer->own_begin, trainer->own_end, factor);
    }
    dml_launch launch = dml__launch_on_own(trainer, "clip_norm");
    launch.real[0] = trainer->clip_norm;
    return dml__submit(&trainer->context->device, &launch);
}

static dml_status dml__clip_values_of_gradient(dml_trainer *trainer)
{
    dml_device *device = &trainer->context->device;
    if (device->host_memory) {
        dml_clip_values(trainer->context->pool, dml__owned_count(trainer), trainer->clip_value,
                        (float *)dml__host(dml__trainer_ref(trainer, DML_GRADIENTS, trainer->own_begin)));
        return DML_OK;
    }
    dml_launch launch = dml__launch_on_own(trainer, "clip_values");
    launch.real[0] = trainer->clip_value;
    return dml__submit(device, &launch);
}

/* Once after each backward pass, before the first range is updated. */
static dml_status dml__clip_gradient(dml_trainer *trainer)
{
    if (trainer->clipped) return DML_OK;
    dml_status status = dml__find_overflow(trainer);
    if (status != DML_OK || trainer->overflowed) {
        trainer->clipped = status == DML_OK;
        return status;
    }
    status = trainer->clip_value > 0.0f ? dml__clip_values_of_gradient(trainer) : DML_OK;
    if (status == DML_OK && trainer->clip_norm > 0.0f) status = dml__clip_norm_of_gradient(trainer);
    trainer->clipped = status == DML_OK;
    return status;
}

/* ---- the average ---- */

DML__LOCAL dml_status dml__check_not_swapped(const dml_trainer *trainer)
{
    if (!trainer->swapped) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "the parameters' average is in their place; call dml_trainer_swap_average again first");
}

/* Elements [begin, end) of the average follow w; after the first update they are w. */
static dml_status dml__update_average(dml_trainer *trainer, size_t begin, size_t end)
{
    const int vector = trainer->vectors - 1;
    const float keep = trainer->steps ? trainer->average : 0.0f, add = trainer->steps ? 1 - keep : 1.0f;
    const dml_ref w = dml__trainer_ref(trainer, DML_PARAMETERS, begin);
    const dml_ref average = dml__trainer_ref(trainer, vector, begin);
    dml_device *device = &trainer->context->device;
    if (device->host_memory) {
        dml_axpby(trainer->context->pool, end - begin, add, (const float *)dml__host(w), keep,
                  (float *)dml__host(average));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", end - begin, 1);
    launch.buffer[0] = w;
    launch.buffer[1] = average;
    launch.integer[0] = (int32_t)(end - begin);
    launch.real[0] = add;
    launch.real[1] = keep;
    return dml__submit(device, &launch);
}

DML__LOCAL dml_status dml__swap_average_in(dml_trainer *trainer)
{
    dml_device *device = &trainer->context->device;
    const size_t bytes = trainer->program->graph->trained_count * sizeof(float);
    const int average = trainer->vectors - 1,
              ring[4] = { DML_GRADIENTS, DML_PARAMETERS, average, DML_GRADIENTS };
    dml_status status = DML_OK;
    trainer->spoiled = true;
    trainer->held = 0;
    trainer->pending = false;
    dml__gradient_changed(trainer->program);
    for (int i = 0; i < 3 && status == DML_OK; i++) /* g = w, w = average, average = g */
        status = device->backend->copy(device, dml__trainer_ref(trainer, ring[i], 0),
                                       dml__trainer_ref(trainer, ring[i + 1], 0), bytes);
    if (status == DML_OK) trainer->swapped = !trainer->swapped;
    return status;
}

/* ---- ranges ---- */

/* Elements [begin, end), of parameters with the scales of `group`; of `sparse` if that isn't NULL. */
static dml_status dml__update_run(dml_trainer *trainer, const dml_node *group, const dml_node *sparse,
                                  size_t begin, size_t end)
{
    dml_optimizer optimizer = trainer->optimizer;
    dml__update update;
    memset(&update, 0, sizeof update);
    optimizer.lr *= group->lr_scale;
    optimizer.weight_decay *= dml__decay_scale(trainer, group);
    update.device = &trainer->context->device;
    update.pool = trainer->context->pool;
    update.n = end - begin;
    update.w = dml__trainer_ref(trainer, DML_PARAMETERS, begin);
    update.g = dml__trainer_ref(trainer, DML_GRADIENTS, begin);
    for (int s = 0; s < trainer->states; s++)
        update.state[s] = dml__trainer_ref(trainer, DML_OPTIMIZER_STATE + s, begin);
    update.step = trainer->steps;
    update.adapts = dml__decay_scale(trainer, group) > 0.0f;
    for (int i = 0; i < 2; i++) {
        update.norms_at[i].buffer = trainer->squares;
        update.norms_at[i].offset = (size_t)(i + 1) * DML__MOST_SQUARES * sizeof(float);
    }
    if (sparse) {
        const dml__gradient_rows *list = dml__gradient_rows_of(trainer->program, sparse);
        const bool some = list && !list->all;
        update.begin = begin - sparse->offset;
        update.row = some ? list->row : NULL;
        update.rows = some ? list->count : (size_t)sparse->shape.dims[0];
        update.width = dml_shape_count(&sparse->shape) / (size_t)sparse->shape.dims[0];
    }
    return dml__optimizer_step(&optimizer, &update);
}

/* Neighbours with the same scales in one pass, a sparse parameter in one of its own. */
static dml_status dml__update_runs(dml_trainer *trainer, size_t begin, size_t end)
{
    if (trainer->row->whole) dml__gradient_changed(trainer->program);
    const dml_node *group = NULL, *p = trainer->program->graph->first_parameter;
    dml_status status = DML_OK;
    for (; p && status == DML_OK; p = p->next_parameter) {
        const size_t behind = p->offset + dml_shape_count(&p->shape);
        if (p->frozen || p->offset >= end || behind <= begin) continue;
        if (p->sparse && !trainer->row->whole) {
            if (group) status = dml__update_run(trainer, group, NULL, begin, p->offset);
            if (group) begin = p->offset;
            if (status == DML_OK) status = dml__update_run(trainer, p, p, begin, behind < end ? behind : end);
            begin = behind;
            group = NULL;
            continue;
        }
        if (!group) group = p;
        if (trainer->row->whole && p->offset > begin) {
            status = dml__update_run(trainer, group, NULL, begin, p->offset);
            begin = p->offset;
            group = p;
        }
        if (p->lr_scale == group->lr_scale &&
            dml__decay_scale(trainer, p) == dml__decay_scale(trainer, group))
            continue;
        status = dml__update_run(trainer, group, NULL, begin, p->offset);
        begin = p->offset;
        group = p;
    }
    return group && status == DML_OK ? dml__update_run(trainer, group, NULL, begin, end) : status;
}

DML__LOCAL dml_status dml__check_cuts(const dml_trainer *trainer, size_t begin, size_t end)
{
    const dml_node *p = trainer->row->whole && begin < end ? trainer->program->graph->first_parameter : NULL;
    for (; p; p = p->next_parameter) {
        const size_t from = p->offset, to = p->offset + dml_shape_count(&p->shape);
        if (p->frozen || ((begin <= from || begin >= to) && (end <= from || end >= to))) continue;
        return dml__fail(
            &trainer->context->error, DML_ERROR_ARGUMENT,
            "an update of elements %zu to %zu asked for, but %s updates whole parameters, and '%s' "
            "is elements %zu to %zu",
            begin, end, trainer->row->name, p->name, from, to);
    }
    return DML_OK;
}

DML__LOCAL dml_status dml__check_whole(const dml_trainer *trainer)
{
    if (!trainer->pending) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "an update while the gradient waits for more: the last backward before it comes without "
                     "DML_MORE");
}

DML__LOCAL dml_status dml__begin_update(dml_trainer *trainer, size_t begin, size_t end)
{
    dml_status status = dml__check_whole(trainer);
    if (status == DML_OK) status = dml__check_not_swapped(trainer);
    if (status == DML_OK) status = dml__check_cuts(trainer, begin, end);
    if (status == DML_OK) status = dml__check_not_left(trainer);
    if (status == DML_OK) status = dml__has_gradient(trainer, begin, end, "an update");
    return status == DML_OK ? dml__clip_gradient(trainer) : status;
}

DML__LOCAL dml_status dml__trainer_update_in(dml_trainer *trainer, size_t begin, size_t end)
{
    dml_context *context = trainer->context;
    const size_t count = trainer->program->graph->trained_count;
    if (context->error.status != DML_OK) return context->error.status;
    if (begin > end || end > count)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "an update of elements %zu to %zu asked for; there are %zu trained ones", begin, end,
                         count);
    dml_status status = dml__begin_update(trainer, begin, end);
    if (status != DML_OK || trainer->overflowed) return status; /* the step is skipped */
    if (begin < end && (begin < trainer->own_begin || end > trainer->own_end))
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "an update of elements %zu to %zu asked for; this rank owns %zu to %zu", begin, end,
                         trainer->own_begin, trainer->own_end);
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++)
        trainer->spread[v] = trainer->spread[v] || dml__owns_a_part(trainer);
    dml__mark_spent(trainer, begin, end, true);
    status = dml__update_runs(trainer, begin, end);
    return status == DML_OK && trainer->average > 0.0f ? dml__update_average(trainer, begin, end) : status;
}

#endif
