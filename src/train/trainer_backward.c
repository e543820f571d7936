#ifndef DML_TRAIN_TRAINER_BACKWARD_C
#define DML_TRAIN_TRAINER_BACKWARD_C

#include "train/trainer.h"

#include "graph/gradient_rows.h"
#include "train/loss_scale.h"
#include "train/trainer_alike.h"
#include "train/trainer_internal.h"

#include <string.h>

/* A backward pass of a trainer: what becomes of what g held, and of the ranks' sums. */

static dml_status dml__trainer_gradient_ready(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.ready ? trainer->sync.ready(trainer->sync.state, trainer, begin, end) : DML_OK;
}

/* A call of backward: what g held, weighs, and becomes. */
typedef struct dml__pass {
    int rows;
    bool combines;     /* by a strategy that sees sums; else g is a mean throughout */
    bool adds, more;   /* DML_ADD to something; DML_MORE */
    bool adds_to_own;  /* of what is added to, this rank has its own range alone, which stands for all */
    double old_factor; /* of what g holds, before backward adds to it */
    double samples;    /* that this rank's g stands for after backward */
    float loss_scale;
} dml__pass;

static dml__pass dml__plan_pass(const dml_trainer *trainer, int rows, int flags)
{
    const dml_sync *sync = &trainer->sync;
    dml__pass pass;
    memset(&pass, 0, sizeof pass);
    pass.rows = rows;
    pass.combines = dml__sync_combines(sync);
    pass.adds = (flags & DML_ADD) && trainer->held > 0;
    pass.more = pass.combines && (flags & DML_MORE);
    double held = pass.adds ? trainer->held : 0;
    pass.old_factor = 1;
    if (pass.combines && !trainer->pending) {
        /* g is the mean over the samples of all ranks: each stands for its part of their sum. */
        pass.adds_to_own = dml__owns_a_part(trainer);
        pass.old_factor = held;
        held /= sync->ranks ? sync->ranks : 1;
        if (!pass.adds_to_own) pass.old_factor = held;
    }
    pass.samples = held + rows;
    pass.loss_scale = (float)rows;
    if (!pass.combines && pass.samples > 0) {
        pass.old_factor = held / pass.samples;
        pass.loss_scale = (float)(rows / pass.samples);
    }
    return pass;
}

/* A rank without samples takes part in the sync with a gradient of zero, or with what it had before. Its
   ranges become final in the order in which other ranks' do: what is sent has to be the same on all. */
static dml_status dml__pass_on_nothing(dml_trainer *trainer, const dml__pass *pass,
                                       const dml__training *training)
{
    dml_device *device = &trainer->context->device;
    const dml_ref g = { trainer->vector[DML_GRADIENTS], 0 };
    const size_t count = trainer->program->graph->trained_count;
    dml_status status = DML_OK;
    if (!pass->adds)
        status = dml__owns_a_part(trainer) ? dml__forget_gradient(trainer, 0, count)
                                           : device->backend->zero(device, g, count * sizeof(float));
    return status == DML_OK ? dml__program_train_nothing(trainer->program, training) : status;
}

/* What g holds, as the sum that backward adds to. */
static dml_status dml__scale_held(dml_trainer *trainer, const dml__pass *pass)
{
    const size_t count = trainer->program->graph->trained_count;
    const double factor = pass->old_factor * dml__loss_factor(trainer);
    if (!pass->adds) return DML_OK;
    if (!pass->adds_to_own) return dml__scale_gradient(trainer, 0, count, factor);
    dml_status status = dml__forget_gradient(trainer, 0, trainer->own_begin);
    if (status == DML_OK) status = dml__forget_gradient(trainer, trainer->own_end, count);
    return status == DML_OK ? dml__scale_gradient(trainer, trainer->own_begin, trainer->own_end, factor)
                            : status;
}

/* Which of a step's passes, of all ranks, random numbers are keyed by: the pass of this rank after so many.
 */
static uint32_t dml__part_of_pass(const dml_trainer *trainer, uint32_t passes)
{
    const uint32_t ranks = (uint32_t)(trainer->sync.ranks ? trainer->sync.ranks : 1);
    return passes * ranks + (uint32_t)trainer->sync.rank;
}

static dml_status dml__run_pass(dml_trainer *trainer, const dml__pass *pass, const void *const *inputs,
                                float *loss)
{
    const dml__gradient_listener listener = { dml__trainer_gradient_ready, trainer };
    const dml__training training = { (uint32_t)dml__trainer_tried(trainer),
                                     dml__part_of_pass(trainer, trainer->passes++),
                                     (float)(pass->loss_scale * dml__loss_factor(trainer)), pass->adds,
                                     pass->more ? NULL : &listener };
    const dml_status status = dml__scale_held(trainer, pass);
    if (status != DML_OK) return status;
    if (pass->rows > 0) return dml__program_train(trainer->program, pass->rows, inputs, &training, loss);
    if (loss) *loss = 0.0f;
    return dml__pass_on_nothing(trainer, pass, &training);
}

/* The sum over the ranks, and its mean. */
static dml_status dml__finish_pass(dml_trainer *trainer, dml__pass *pass)
{
    const dml_sync *sync = &trainer->sync;
    const dml_status status = sync->finish ? sync->finish(sync->state, trainer, &pass->samples) : DML_OK;
    if (status != DML_OK) return status;
    if (trainer->followed) return DML_OK; /* range by range, each its mean */

    if (!(pass->samples > 0))
        return dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                         "a global batch of 0 samples: no rank was given any");
    trainer->spread[DML_GRADIENTS] = dml__owns_a_part(trainer);
    return dml__scale_gradient(trainer, trainer->own_begin, trainer->own_end,
                               1 / (pass->samples * dml__loss_factor(trainer)));
}

DML__LOCAL dml_status dml__check_over_ranks(dml_trainer *trainer)
{
    const dml_sync *sync = &trainer->sync;
    if (!trainer->program->over_ranks || sync->ranks <= 1 || sync->all_reduce) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_UNSUPPORTED,
                     "the model has a batch norm over all ranks, and the sync strategy has no all_reduce");
}

DML__LOCAL dml_status dml__trainer_begin_in(dml_trainer *trainer, double samples)
{
    const dml_sync *sync = &trainer->sync;
    trainer->begun = true;
    return sync->begin ? sync->begin(sync->state, trainer, samples) : DML_OK;
}

DML__LOCAL void dml__trainer_end_in(dml_trainer *trainer, dml_status status)
{
    const dml_sync *sync = &trainer->sync;
    trainer->begun = false;
    if (status == DML_OK) return;
    trainer->spoiled = true;
    if (sync->failed) sync->failed(sync->state, trainer);
}

DML__LOCAL dml_status dml__trainer_forward_in(dml_trainer *trainer, int rows, const void *const *inputs,
                                              uint32_t ahead)
{
    const dml__training training = { (uint32_t)dml__trainer_tried(trainer),
                                     dml__part_of_pass(trainer, trainer->passes + ahead), 1, false, NULL };
    return dml__program_forward(trainer->program, rows, inputs, &training);
}

DML__LOCAL dml_status dml__trainer_backward_in(dml_trainer *trainer, int rows, const void *const *inputs,
                                               int count, int flags, float *loss)
{
    const dml_sync *sync = &trainer->sync;
    const size_t trained = trainer->program->graph->trained_count;
    const double factor = dml__loss_factor(trainer);
    dml_status status = trainer->context->error.status;
    if (status != DML_OK) return status;
    if (flags & ~(DML_ADD | DML_MORE))
        return dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                         "backward was given flags %d; there are DML_ADD and DML_MORE", flags);
    status = dml__check_model_alike(trainer);
    if (status == DML_OK) status = dml__check_over_ranks(trainer);
    if (status == DML_OK) status = dml__check_not_left(trainer);
    if (status == DML_OK && (rows != 0 || !dml__sync_attached(sync)))
        status = dml__program_check(trainer->program, rows, inputs, count);
    if (status != DML_OK) return status;
    dml__pass pass = dml__plan_pass(trainer, rows, flags);
    trainer->spoiled = true;
    trainer->clipped = false;
    trainer->spread[DML_GRADIENTS] = false;
    dml__gradient_written(trainer, 0, trained);
    trainer->held = 0; /* whatever fails from here on leaves in g nothing to add to */
    trainer->pending = false;
    if (sync->begin && !pass.more && !trainer->begun)
        status = sync->begin(sync->state, trainer, pass.samples);
    if (status == DML_OK) status = dml__run_pass(trainer, &pass, inputs, loss);
    if (status == DML_OK)
        status = pass.combines && !pass.more ? dml__finish_pass(trainer, &pass)
                                             : dml__scale_gradient(trainer, 0, trained, 1 / factor);
    if (dml__sync_attached(sync)) dml__gradient_changed(trainer->program);
    if (status != DML_OK) {
        dml__settle_trainer(trainer); /* the step before, which is none of this one's business */
        if (sync->failed && !pass.more && !trainer->begun) sync->failed(sync->state, trainer);
        trainer->spoiled = true; /* also if a strategy has put ranges of it */
        return status;
    }
    trainer->spoiled = false;
    trainer->held = pass.samples;
    trainer->pending = (flags & DML_MORE) != 0;
    return DML_OK;
}

#endif
