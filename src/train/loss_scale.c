#ifndef DML_TRAIN_LOSS_SCALE_C
#define DML_TRAIN_LOSS_SCALE_C

#include "train/loss_scale.h"

#include "base/logger.h"
#include "train/trainer_internal.h"

#include <math.h>

DML__LOCAL float dml__first_loss_scale(const dml_trainer_options *options)
{
    if (options->loss_scale == 0.0f) return options->dtype == DML_F16 ? DML__FIRST_LOSS_SCALE : 0.0f;
    return options->loss_scale > 0.0f ? options->loss_scale : 0.0f;
}

DML__LOCAL double dml__loss_factor(const dml_trainer *trainer)
{
    const double unit = trainer->sum_unit > 0.0f ? (double)trainer->sum_unit : 1;
    return trainer->loss_scale > 0.0f ? (double)trainer->loss_scale / unit : 1;
}

DML__LOCAL void dml__begin_sum_unit(dml_trainer *trainer, int ranks)
{
    const double most = dml__sync_combines(&trainer->sync) ? (double)ranks * trainer->program->batch : 1;
    if (trainer->sum_unit > 0.0f) return;
    for (trainer->sum_unit = 1; (double)trainer->sum_unit < most;) trainer->sum_unit *= 2;
}

DML__LOCAL dml_status dml__find_overflow(dml_trainer *trainer)
{
    double norm = 0;
    trainer->overflowed = false;
    if (trainer->loss_scale <= 0.0f) return DML_OK;
    const dml_status status = dml__gradient_norm_in(trainer, &norm);
    trainer->overflowed = status == DML_OK && !isfinite(norm);
    if (trainer->overflowed) trainer->norm = norm;
    return status;
}

DML__LOCAL bool dml__step_counts(dml_trainer *trainer)
{
    const float scale = trainer->loss_scale;
    if (scale <= 0.0f) return true;
    if (!trainer->overflowed) {
        if (++trainer->scaled_steps < DML__LOSS_SCALE_STEPS) return true;
        trainer->scaled_steps = 0;
        if (scale <= DML__MOST_LOSS_SCALE / 2) trainer->loss_scale = 2 * scale;
        return true;
    }
    trainer->scaled_steps = 0;
    trainer->skipped++;
    if (scale >= 2 * DML__LEAST_LOSS_SCALE) trainer->loss_scale = scale / 2;
    dml__log(&trainer->context->logger, DML_LOG_DEBUG,
             "a gradient that isn't finite: the step is skipped, and the loss scale %g from now on",
             (double)trainer->loss_scale);
    return false;
}

DML_API float dml_trainer_loss_scale(const dml_trainer *trainer)
{
    return trainer && trainer->loss_scale > 0.0f ? trainer->loss_scale : 1.0f;
}

DML_API uint64_t dml_trainer_skipped(const dml_trainer *trainer)
{
    return trainer ? trainer->skipped : 0;
}

#endif
