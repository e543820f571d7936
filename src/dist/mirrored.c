#ifndef DML_DIST_MIRRORED_C
#define DML_DIST_MIRRORED_C

#include "dist/mirrored_internal.h"

#include "graph/program_internal.h"
#include "graph/weights.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* Another division of the batch must promise this much, or noise would move samples about. */
#define DML__SHARE_GAIN 1.05

/* ---- before a call ---- */

static dml_status dml__mirrored_fail(dml_mirrored *all, dml_status status, const char *text)
{
    return dml__fail(&all->context->error, status, "%s", text);
}

static dml_status dml__check_replicas(dml_mirrored *all)
{
    dml__error *error = &all->context->error;
    if (error->status != DML_OK) return error->status;
    if (all->status != DML_OK) return dml__mirrored_fail(all, all->status, all->text);
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (dml_status_of(replica->context) != DML_OK)
            return dml__fail(error, dml_status_of(replica->context), "replica %d (%s) has an error: %s", i,
                             replica->device, dml_error(replica->context));
    }
    return DML_OK;
}

static dml_status dml__check_not_average(dml_mirrored *all)
{
    for (int i = 0; i < all->count; i++)
        if (all->replica[i].trainer->swapped)
            return dml__fail(&all->context->error, DML_ERROR_STATE,
                             "replica %d (%s) has the parameters' average in their place; call "
                             "dml_trainer_swap_average again first",
                             i, all->replica[i].device);
    return DML_OK;
}

/* One thread at a time; the context of the loss is what it is kept from others by. What one trainer would
   refuse is refused before any replica moves, since those that did would differ from the rest. */
static dml_status dml__enter_mirrored(dml_mirrored *all, bool trains, dml__entry *entry)
{
    if (!all) return DML_ERROR_ARGUMENT;
    *entry = dml__enter(all->context);
    if (*entry == DML__REFUSED) return DML_ERROR_STATE;
    dml_status status = dml__check_replicas(all);
    if (status == DML_OK && trains) status = dml__check_not_average(all);
    if (status != DML_OK) dml__leave(all->context, *entry);
    return status;
}

/* ---- the batch ---- */

static void dml__share_out(dml_mirrored *all, int rows)
{
    const dml__speed *speed = all->options.even ? NULL : all->speed;
    dml__share_rows(rows, all->count, speed, all->most, all->other_share);
    const bool same = rows == all->shared_rows &&
                      dml__share_seconds(all->count, all->speed, all->share) <=
                          DML__SHARE_GAIN * dml__share_seconds(all->count, all->speed, all->other_share);
    if (!same) memcpy(all->share, all->other_share, (size_t)all->count * sizeof *all->share);
    all->shared_rows = rows;
}

/* What a replica's context says, which goes on as if it hadn't been asked. */
static dml_status dml__refused_by(dml_mirrored *all, dml__replica *replica, dml_status status,
                                  const char *behind)
{
    dml__fail(&all->context->error, status, "%.420s%s", dml_error(replica->context), behind);
    dml_clear_error(replica->context);
    return status;
}

/* What it says of its part of the batch. */
static dml_status dml__check_part(dml_mirrored *all, dml__replica *replica, int rows,
                                  const void *const *inputs, int count, int first_row)
{
    char behind[64] = "";
    const dml_status status = dml__program_check(replica->trainer->program, rows, inputs, count);
    if (status == DML_OK) return DML_OK;
    if (first_row > 0)
        snprintf(behind, sizeof behind, "; the first of these samples is number %d", first_row);
    return dml__refused_by(all, replica, status, behind);
}

static dml_status dml__hand_out(dml_mirrored *all, int rows, const void *const *inputs, int count)
{
    const int most = all->options.trainer.batch, least = all->options.comm ? 0 : 1;
    if (rows < least || rows > most)
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "a step of %d samples asked for; these replicas take %d to %d together", rows, least,
                         most);
    dml__share_out(all, rows);
    dml_status status = DML_OK;
    if (rows) /* the number of inputs, and what they all are, once */
        status = dml__check_part(all, &all->replica[0], all->share[0] ? all->share[0] : 1, inputs, count, 0);
    for (int i = 0, row = 0; i < all->count && status == DML_OK; i++) {
        dml__replica *replica = &all->replica[i];
        replica->rows = all->share[i];
        for (int k = 0; k < all->inputs && replica->rows; k++) {
            const dml_node *input = replica->trainer->program->input[k];
            const size_t sample = dml_shape_count(&input->shape) * dml_dtype_size(input->dtype);
            replica->inputs[k] = (const char *)inputs[k] + (size_t)row * sample;
        }
        if (i > 0 && replica->rows)
            status = dml__check_part(all, replica, replica->rows, replica->inputs, all->inputs, row);
        row += replica->rows;
    }
    return status;
}

static float dml__mean_loss(const dml_mirrored *all)
{
    double sum = 0, rows = 0;
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (!replica->rows) continue;
        sum += (double)replica->loss * replica->rows;
        rows += replica->rows;
    }
    return rows > 0 ? (float)(sum / rows) : 0.0f;
}

static dml_status dml__mirrored_pass_in(dml_mirrored *all, dml__order order, int rows,
                                        const void *const *inputs, int count, int flags, float *loss)
{
    if (flags & ~(DML_ADD | DML_MORE))
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "backward was given flags %d; there are DML_ADD and DML_MORE", flags);
    dml_status status = dml__hand_out(all, rows, inputs, count);
    if (status != DML_OK) return status;
    all->flags = flags;
    all->wants_loss = loss != NULL;
    all->sends_gradient = all->holds && (flags & DML_ADD);
    status = dml__order_all(all, order);
    if (status != DML_OK) return status;
    for (int i = 0; i < all->count; i++)
        dml__speed_note(&all->speed[i], all->replica[i].rows, all->replica[i].timed.seconds);
    all->pending = (flags & DML_MORE) != 0;
    all->holds = !all->pending && order != DML__ORDER_STEP;
    if (loss) *loss = dml__mean_loss(all);
    return DML_OK;
}

/* ---- the calls ---- */

static dml_status dml__mirrored_pass(dml_mirrored *all, dml__order order, int rows, const void *const *inputs,
                                     int count, int flags, float *loss)
{
    dml__entry entry;
    dml_status status = dml__enter_mirrored(all, true, &entry);
    if (status != DML_OK) return status;
    status = dml__mirrored_pass_in(all, order, rows, inputs, count, flags, loss);
    dml__leave(all->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_step(dml_mirrored *mirrored, int rows, const void *const *inputs, int count,
                                     float *loss)
{
    return dml__mirrored_pass(mirrored, DML__ORDER_STEP, rows, inputs, count, DML_OVERWRITE, loss);
}

DML_API dml_status dml_mirrored_backward(dml_mirrored *mirrored, int rows, const void *const *inputs,
                                         int count, int flags, float *loss)
{
    return dml__mirrored_pass(mirrored, DML__ORDER_BACKWARD, rows, inputs, count, flags, loss);
}

/* The first one has whenever any has. */
static dml_status dml__first_has_gradient(dml_mirrored *all)
{
    dml__replica *first = &all->replica[0];
    const size_t count = first->trainer->program->graph->trained_count;
    const dml_status status = dml__has_gradient(first->trainer, 0, count, "an update");
    return status == DML_OK ? status : dml__refused_by(all, first, status, "");
}

DML_API dml_status dml_mirrored_update(dml_mirrored *mirrored)
{
    dml__entry entry;
    dml_status status = dml__enter_mirrored(mirrored, true, &entry);
    if (status != DML_OK) return status;
    if (mirrored->pending) {
        status = dml__fail(&mirrored->context->error, DML_ERROR_STATE,
                           "an update while the gradient waits for more: the last backward before it comes "
                           "without DML_MORE");
    } else if ((status = dml__first_has_gradient(mirrored)) == DML_OK) {
        mirrored->sends_gradient = mirrored->holds && !mirrored->replica[0].place.central;
        status = dml__order_all(mirrored, DML__ORDER_UPDATE);
    }
    mirrored->holds = mirrored->holds && status != DML_OK;
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_spread(dml_mirrored *mirrored)
{
    dml__entry entry;
    dml_status status = dml__enter_mirrored(mirrored, true, &entry);
    if (status != DML_OK) return status;
    mirrored->holds = mirrored->pending = false;
    status = dml__order_all(mirrored, DML__ORDER_ATTACH);
    dml__leave(mirrored->context, entry);
    return status;
}

static dml_status dml__copy_back(dml_mirrored *all)
{
    const dml_graph *from = all->replica[0].trainer->program->graph;
    dml_status status = DML_OK;
    for (dml_node *p = from->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        dml_node *to = dml_graph_find(all->graph, p->name);
        const float *values = dml_graph_get(p->graph, p->offset, p->offset + count);
        if (!to) return dml_status_of(all->context);
        if (!values) return dml__mirrored_fail(all, dml_status_of(from->context), dml_error(from->context));
        status = dml_parameter_write(to, values, count);
    }
    return status;
}

DML_API dml_status dml_mirrored_copy_back(dml_mirrored *mirrored)
{
    dml__entry entry;
    dml_status status = dml__enter_mirrored(mirrored, false, &entry);
    if (status != DML_OK) return status;
    status = dml__copy_back(mirrored);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_trainer *dml_mirrored_trainer(dml_mirrored *mirrored, int i)
{
    return mirrored && i >= 0 && i < mirrored->count ? mirrored->replica[i].trainer : NULL;
}

DML_API int dml_mirrored_replicas(const dml_mirrored *mirrored)
{
    return mirrored ? mirrored->count : 0;
}

DML_API dml_replica_report dml_mirrored_report(const dml_mirrored *mirrored, int i)
{
    dml_replica_report report;
    memset(&report, 0, sizeof report);
    if (!mirrored || i < 0 || i >= mirrored->count) return report;
    const dml__replica *replica = &mirrored->replica[i];
    report.device = replica->device;
    report.threads = replica->threads;
    report.rows = replica->rows;
    report.seconds = replica->timed.seconds;
    dml__speed_line(&mirrored->speed[i], &report.fixed_s, &report.each_s);
    return report;
}

#endif
