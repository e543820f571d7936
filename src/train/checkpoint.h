/* checkpoint.h: a training run on disk. */
#ifndef DML_TRAIN_CHECKPOINT_H
#define DML_TRAIN_CHECKPOINT_H

#include "base/platform.h"
#include "base/status.h"
#include "train/trainer.h"

#ifndef DML_NO_STDIO

/* Writes what dml_graph_save writes and, in the same safetensors file, the rest of the run: the optimizer's
   state for each trained parameter ("dml.velocity.dense_1.weight"), its moving average ("dml.average...") if
   the trainer keeps one, what an optimizer on servers keeps where dml_trainer_gather has just fetched that
   ("dml.server..."), and, in the metadata, the optimizer's kind and numbers, the seed, the loss scale,
   and the steps taken and skipped. So dml_graph_load, and other tools, read the model from it. Written aside,
   synced, then renamed: a crash leaves the old file or the new one, which has the old one's permissions and
   takes the place of a link. What g has accumulated isn't written.
   DML_ERROR_IO with a sentence when it can't be written. */
DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path);

/* Reads what dml_trainer_save wrote for the same model and kind of optimizer; training then goes on as if it
   had never stopped: the optimizer takes on the run's numbers (a learning rate can be set again afterwards),
   the context its seed, and g is no gradient any more until the next backward pass. DML_ERROR_IO when the
   file can't be read; DML_ERROR_FORMAT when it is no checkpoint, is damaged, or is of another model or an
   optimizer with other state, with what doesn't fit: the trainer is then unchanged. DML_ERROR_STATE under a
   strategy that keeps parameters elsewhere (a parameter server's, or local SGD with an outer optimizer): load
   before dml_trainer_sync. */
DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path);

/* Whether dml_trainer_save could write there: asked before a long run, not after it. What is there stays as
   it is. DML_ERROR_IO with a sentence that says what forbids it; that there is room is not looked at. */
DML_API dml_status dml_trainer_check_save(dml_trainer *trainer, const char *path);

/* Short texts of the program's own that go with a run, such as the best loss so far: dml_trainer_save writes
   them into the same file, dml_trainer_load puts the file's in the place of all that there were (other tools'
   among them, as far as they could be given here), and a strategy that is attached gives every rank rank 0's.
   There is room for 16. `name` has 1 to 47 bytes and doesn't begin with "dml." or have "crc32c" in it, `text`
   has up to 255; both are UTF-8, and copied; else DML_ERROR_ARGUMENT. A NULL `text` takes the note away.
   dml_trainer_note gives a text as it is until the next of these calls that changes it; NULL: none has that
   name. */
DML_API dml_status dml_trainer_set_note(dml_trainer *trainer, const char *name, const char *text);
DML_API const char *dml_trainer_note(const dml_trainer *trainer, const char *name);

#endif

#endif
