/* loss_scale.h: dynamic loss scaling: gradients are made of a loss so much larger that few of them are too
   small for 16 bits, and steps whose gradient then isn't finite are skipped (Micikevicius et al., "Mixed
   precision training", 2018; the numbers are those of PyTorch's GradScaler). */
#ifndef DML_TRAIN_LOSS_SCALE_H
#define DML_TRAIN_LOSS_SCALE_H

#include "base/platform.h"
#include "base/status.h"
#include "train/trainer.h"

#define DML__FIRST_LOSS_SCALE 65536.0f
#define DML__LEAST_LOSS_SCALE 1e-30f
#define DML__MOST_LOSS_SCALE 1e30f
#define DML__LOSS_SCALE_STEPS 2000 /* without a skipped one, after which the scale doubles */

/* What a trainer with such options begins with; 0: it doesn't scale. */
DML__LOCAL float dml__first_loss_scale(const dml_trainer_options *options);

/* The factor of what backward adds to g: 1 for a trainer that doesn't scale. Under a strategy that combines
   gradients g is a sum over samples, where it is a mean without one, so a power of two that is near the
   global batch is taken out of it: each sample's gradient has the range in 16 bits that it would have had on
   one rank. */
DML__LOCAL double dml__loss_factor(const dml_trainer *trainer);

/* Sets that power of two for a strategy of `ranks` ranks, unless another group of its ranks has one already.
   All of them are to have rank 0's. */
DML__LOCAL void dml__begin_sum_unit(dml_trainer *trainer, int ranks);

/* Sets whether g overflowed. Under a strategy every rank finds the same, since every rank holds the same g.
 */
DML__LOCAL dml_status dml__find_overflow(dml_trainer *trainer);

/* At the end of a step: counts it off, or as skipped, and moves the scale. Whether it was one. */
DML__LOCAL bool dml__step_counts(dml_trainer *trainer);

#endif
