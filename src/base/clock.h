/* clock.h: monotonic time. */
#ifndef DML_BASE_CLOCK_H
#define DML_BASE_CLOCK_H

#include "base/platform.h"

/* Seconds since some fixed moment; never runs backwards. */
DML_API double dml_seconds(void);

#endif
