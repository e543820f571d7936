#ifndef DML_TRAIN_TRAINER_LATE_C
#define DML_TRAIN_TRAINER_LATE_C

#include "train/trainer.h"

#include "graph/node.h"
#include "train/trainer_internal.h"

#include <string.h>

/* w follows g range by range: in the step, while the rest of g is on its way, or after it. A step that ends
   before w has followed keeps the graph's parameters claimed, so that programs with threads of their own
   stay out, and leaves word in the context: every call that enters that settles it first, but the trainer's
   next step, whose forward pass waits for no more than it is about to read. */

/* ---- while the program trains ---- */

static dml_status dml__trainer_sum_over_ranks(void *user, double *values, size_t count)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.all_reduce(trainer->sync.state, trainer, values, count);
}

static dml_status dml__trainer_use(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    const dml_status status = dml__take_late_range(trainer, begin, end);
    if (status != DML_OK || !trainer->sync.use) return status;
    return trainer->sync.use(trainer->sync.state, trainer, begin, end);
}

static dml_status dml__trainer_used(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.used(trainer->sync.state, trainer, begin, end);
}

/* Backward writes g, also of parameters that forward hasn't read. */
static dml_status dml__trainer_turn(void *user)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return dml__take_late_range(trainer, 0, trainer->program->graph->trained_count);
}

DML__LOCAL void dml__hook_ranks(dml_trainer *trainer)
{
    const dml_sync *sync = &trainer->sync;
    dml__ranks *ranks = &trainer->program->ranks;
    const bool late = trainer->late.take != NULL;
    ranks->sum = sync->all_reduce ? dml__trainer_sum_over_ranks : NULL;
    ranks->use = sync->use || late ? dml__trainer_use : NULL;
    ranks->used = sync->used ? dml__trainer_used : NULL;
    ranks->turn = late ? dml__trainer_turn : NULL;
    ranks->user = trainer;
}

/* ---- in the step ---- */

DML__LOCAL bool dml__may_follow(const dml_trainer *trainer)
{
    return trainer->stepping && trainer->clip_norm <= 0.0f && trainer->clip_value <= 0.0f &&
           trainer->loss_scale <= 0.0f && !trainer->row->whole && !trainer->swapped;
}

/* By the numbers of the step that g is of. */
static dml_status dml__follow_late_range(dml_trainer *trainer, size_t begin, size_t end)
{
    const dml_optimizer optimizer = trainer->optimizer;
    const uint64_t steps = trainer->steps;
    trainer->optimizer = trainer->late.optimizer;
    trainer->steps = trainer->late.steps;
    const dml_status status = dml__trainer_update_in(trainer, begin, end);
    trainer->optimizer = optimizer;
    trainer->steps = steps;
    trainer->late.left -= end - begin;
    return status;
}

DML__LOCAL dml_status dml__follow_range(dml_trainer *trainer, size_t begin, size_t end, double samples)
{
    const dml_status status = dml__scale_gradient(trainer, begin, end, 1 / samples);
    if (status == DML_OK && trainer->late.take) return dml__follow_late_range(trainer, begin, end);
    trainer->followed = true;
    return status == DML_OK ? dml__trainer_update_in(trainer, begin, end) : status;
}

/* ---- after it ---- */

static void dml__settle_owed(void *user)
{
    dml__settle_trainer((dml_trainer *)user);
}

/* Other threads ask whether there is something, too. */
static void dml__leave_word(dml_trainer *trainer, void (*settle)(void *user))
{
    trainer->context->late.user = trainer;
    __atomic_store_n(&trainer->context->late.settle, settle, __ATOMIC_RELAXED);
}

/* A check looks at parameters before the ops that read them. */
DML__LOCAL bool dml__may_follow_later(const dml_trainer *trainer)
{
    return trainer->alone && !trainer->program->check && trainer->program->graph->trained_count > 0 &&
           dml__may_follow(trainer);
}

DML__LOCAL void dml__follow_later(dml_trainer *trainer, double samples, dml__take_late take, void *state)
{
    dml__late_update *late = &trainer->late;
    late->take = take;
    late->state = state;
    late->left = trainer->program->graph->trained_count;
    late->samples = samples;
    late->steps = trainer->steps;
    late->optimizer = trainer->optimizer;
    trainer->followed = true;
    dml__leave_word(trainer, dml__settle_owed);
    dml__hook_ranks(trainer);
}

static void dml__end_late(dml_trainer *trainer)
{
    trainer->late.take = NULL;
    dml__leave_word(trainer, NULL);
    dml__hook_ranks(trainer);
}

DML__LOCAL dml_status dml__take_late_range(dml_trainer *trainer, size_t begin, size_t end)
{
    const dml__late_update *late = &trainer->late;
    const dml_sync *sync = &trainer->sync;
    if (!late->take) return DML_OK;
    const dml_status status = late->take(late->state, trainer, late->samples, begin, end);
    if (status != DML_OK || late->left > 0) return status;
    dml__end_late(trainer);
    return sync->updated ? sync->updated(sync->state, trainer) : DML_OK;
}

DML__LOCAL void dml__settle_trainer(dml_trainer *trainer)
{
    dml_context *context = trainer->context;
    const dml_sync *sync = &trainer->sync;
    if (!trainer->late.take) return;
    const dml__error first = context->error; /* which is about something else */
    context->error.status = DML_OK;
    context->error.text[0] = '\0';
    dml__leave_word(trainer, NULL); /* what follows may enter */
    const dml_status status = dml__take_late_range(trainer, 0, trainer->program->graph->trained_count);
    if (trainer->late.take) dml__end_late(trainer);
    if (status != DML_OK) {
        dml__fail(&context->error, status, "the update of the last training step failed: %s",
                  dml_status_string(status));
        if (sync->failed) sync->failed(sync->state, trainer);
        trainer->spoiled = true;
    }
    if (first.status != DML_OK) context->error = first;
    if (!trainer->stepping) dml__graph_release(trainer->program->graph, false);
}

#endif
