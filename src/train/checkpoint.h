/* checkpoint.h: a training run on disk: parameters, optimizer state, seed and step. */
#ifndef DML_TRAIN_CHECKPOINT_H
#define DML_TRAIN_CHECKPOINT_H

#include "base/platform.h"
#include "base/status.h"
#include "train/trainer.h"

#ifndef DML_NO_STDIO

/* Writes the trainer to `path`: aside, synced, then renamed, so that a crash leaves the old file or the new
   one. The file is little-endian, names each parameter and its shape, and ends in a checksum. DML_ERROR_IO
   with a sentence when it can't be written. */
DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path);

/* Reads what dml_trainer_save wrote for the same model and optimizer; training then goes on as if it had
   never stopped (the context takes on the run's seed). DML_ERROR_IO when the file can't be read;
   DML_ERROR_FORMAT when it is no checkpoint, truncated, damaged, or of another model, with what differs; the
   trainer is then unchanged. */
DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path);

#endif

#endif
