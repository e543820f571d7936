/* clock_internal.h: time to within some milliseconds. */
#ifndef DML_BASE_CLOCK_INTERNAL_H
#define DML_BASE_CLOCK_INTERNAL_H

#include "base/platform.h"

/* dml_seconds as it stood some milliseconds ago at most, in a fifth of the time where the system has that. */
DML__LOCAL double dml__about_seconds(void);

#endif
