#ifndef DML_TRAIN_TRAINER_AWAY_C
#define DML_TRAIN_TRAINER_AWAY_C

#include "train/trainer_internal.h"

#include "base/memory.h"

#include <string.h>

DML__LOCAL bool dml__away_make(dml_trainer *trainer, dml__away *away)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    away->state = (float *)dml__allocate_array(&trainer->context->memory, count * (size_t)away->states + 1,
                                               sizeof(float));
    return away->state != NULL;
}

DML__LOCAL void dml__away_put(dml_trainer *trainer, const dml__away *away)
{
    dml__release(&trainer->context->memory, trainer->away.state);
    memset(&trainer->away, 0, sizeof trainer->away);
    if (away) trainer->away = *away;
}

#endif
