#ifndef DML_TRAIN_TRAINER_ALIKE_C
#define DML_TRAIN_TRAINER_ALIKE_C

#include "train/trainer_alike.h"

#include <string.h>

/* Numbers, and what they are called. */
typedef struct dml__alike_list {
    size_t count;
    double value[DML__MOST_COMPARED];
    const char *name[DML__MOST_COMPARED];
} dml__alike_list;

static void dml__add_alike(dml__alike_list *list, const char *name, double value)
{
    DML_ASSERT(list->count < DML__MOST_COMPARED);
    list->name[list->count] = name;
    list->value[list->count++] = value;
}

static dml__alike_list dml__list_alike(const dml_trainer *trainer)
{
    dml__alike_list list;
    dml_optimizer o = trainer->optimizer;
    const char *name;
    const float *number;
    memset(&list, 0, sizeof list);
    dml__add_alike(&list, "the steps that were taken", (double)trainer->steps);
    dml__add_alike(&list, "those that were skipped", (double)trainer->skipped);
    dml__add_alike(&list, "the seed", (double)(uint32_t)trainer->context->seed);
    dml__add_alike(&list, "the seed's upper half", (double)(uint32_t)(trainer->context->seed >> 32));
    dml__add_alike(&list, "the batch that the trainer is for", (double)trainer->program->batch);
    dml__add_alike(&list, "the dtype", (double)trainer->program->dtype);
    dml__add_alike(&list, "the optimizer's kind", (double)o.kind);
    for (int i = 0; (number = dml_optimizer_number(&o, i, &name)) != NULL; i++)
        dml__add_alike(&list, name, (double)*number);
    dml__add_alike(&list, "the schedule's kind", (double)trainer->schedule.kind);
    dml__add_alike(&list, "the schedule's learning rate", (double)trainer->schedule.lr);
    dml__add_alike(&list, "the schedule's steps", (double)trainer->schedule.steps);
    dml__add_alike(&list, "the schedule's warm-up", (double)trainer->schedule.warm_up);
    dml__add_alike(&list, "clip_norm", (double)trainer->clip_norm);
    dml__add_alike(&list, "clip_value", (double)trainer->clip_value);
    dml__add_alike(&list, "the loss scale", (double)trainer->loss_scale);
    dml__add_alike(&list, "the moving average", (double)trainer->average);
    return list;
}

static dml_status dml__compare_alike(dml_trainer *trainer, const dml__model_ranks *ranks,
                                     const dml__alike_list *list)
{
    size_t unlike = list->count;
    double range[2];
    if (!ranks->calls) return DML_OK;
    const dml_status status = ranks->calls->compare(ranks->user, list->value, list->count, &unlike, range,
                                                    &trainer->context->error);
    if (status != DML_OK || unlike == list->count) return status;
    return dml__fail(
        &trainer->context->error, DML_ERROR_MISMATCH,
        "the ranks of a model that is cut differ in %s, from %g to %g, here %g: all need the same",
        list->name[unlike], range[0], range[1], list->value[unlike]);
}

DML__LOCAL dml_status dml__check_model_alike(dml_trainer *trainer)
{
    const dml_graph *graph = trainer->program->graph;
    if (trainer->compared || !dml__graph_cuts(graph)) return DML_OK;
    const dml__alike_list list = dml__list_alike(trainer);
    dml_status status = dml__compare_alike(trainer, &graph->model, &list);
    if (status == DML_OK) status = dml__compare_alike(trainer, &graph->stages, &list);
    trainer->compared = status == DML_OK;
    return status;
}

#endif
