#ifndef DML_TRAIN_TRAINER_ALIKE_C
#define DML_TRAIN_TRAINER_ALIKE_C

#include "train/trainer_alike.h"

#include "ops/op_cross_entropy_internal.h"

#include <stdio.h>
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

/* Of the losses whose classes are cut. */
static void dml__add_losses(dml__alike_list *list, const dml_program *program)
{
    static const char *const names[DML__CUT_LOSS_NUMBERS] = { "the classes of a loss",
                                                              "the smoothing of a loss",
                                                              "the reduction of a loss",
                                                              "the label that a loss ignores" };
    double number[DML__CUT_LOSS_NUMBERS];
    const size_t first = list->count;
    dml__add_alike(list, "how many losses there are whose classes are cut", 0);
    for (int s = 0; s < program->slots; s++) {
        if (!dml__cut_loss_numbers(program->slot[s].node, number)) continue;
        list->value[first]++;
        for (int i = 0; i < DML__CUT_LOSS_NUMBERS && list->count < DML__MOST_COMPARED; i++)
            dml__add_alike(list, names[i], number[i]);
    }
}

/* A value in words. */
static const char *dml__alike_text(const char *name, double value, char text[32])
{
    if (strcmp(name, "the dtype") == 0) return dml_dtype_name((dml_dtype)value);
    snprintf(text, 32, "%g", value);
    return text;
}

static dml_status dml__compare_alike(dml_trainer *trainer, const dml__model_ranks *ranks,
                                     const dml__alike_list *list)
{
    size_t unlike = DML__MOST_COMPARED; /* ranks' lists may be of different lengths, with zeros behind */
    double range[2];
    char least[32], most[32], here[32];
    if (!ranks->calls) return DML_OK;
    const dml_status status = ranks->calls->compare(ranks->user, list->value, DML__MOST_COMPARED, &unlike,
                                                    range, &trainer->context->error);
    if (status != DML_OK || unlike == DML__MOST_COMPARED) return status;
    const char *name = unlike < list->count ? list->name[unlike] : "what they train by";
    return dml__fail(
        &trainer->context->error, DML_ERROR_MISMATCH,
        "the ranks of a model that is cut differ in %s, from %s to %s, here %s: all need the same", name,
        dml__alike_text(name, range[0], least), dml__alike_text(name, range[1], most),
        dml__alike_text(name, list->value[unlike], here));
}

DML__LOCAL dml_status dml__check_model_alike(dml_trainer *trainer)
{
    const dml_graph *graph = trainer->program->graph;
    if (trainer->compared || !dml__graph_cuts(graph)) return DML_OK;
    dml__alike_list list = dml__list_alike(trainer);
    dml_status status = dml__compare_alike(trainer, &graph->stages, &list);
    dml__add_losses(&list, trainer->program);
    if (status == DML_OK) status = dml__compare_alike(trainer, &graph->model, &list);
    trainer->compared = status == DML_OK;
    return status;
}

#endif
