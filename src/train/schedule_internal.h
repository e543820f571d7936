/* schedule_internal.h: what a trainer asks of a schedule. */
#ifndef DML_TRAIN_SCHEDULE_INTERNAL_H
#define DML_TRAIN_SCHEDULE_INTERNAL_H

#include "base/error.h"
#include "base/platform.h"
#include "train/schedule.h"

#define DML__MOST_SCHEDULED_LR 1e6f /* an exponential one that grows stops there */

/* Refuses a schedule that can't be, with the error recorded; DML_SCHEDULE_NONE can. */
DML__LOCAL dml_status dml__check_schedule(const dml_schedule *schedule, dml__error *error);

#endif
