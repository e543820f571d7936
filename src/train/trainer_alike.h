/* trainer_alike.h: what all ranks of a model that is cut need alike. */
#ifndef DML_TRAIN_TRAINER_ALIKE_H
#define DML_TRAIN_TRAINER_ALIKE_H

#include "train/trainer_internal.h"

/* At the first backward pass of a trainer, and of a run that was taken up: DML_ERROR_MISMATCH, with the first
   number that differs, where the ranks' trainers differ. A call that all of them make. */
DML__LOCAL dml_status dml__check_model_alike(dml_trainer *trainer);

#endif
