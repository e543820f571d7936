/* cpu_internal.h: what the environment says of the processor. */
#ifndef DML_BASE_CPU_INTERNAL_H
#define DML_BASE_CPU_INTERNAL_H

#include "base/platform.h"

/* False when the environment variable DML_ISA names no instruction set; *wanted is then what it says. Unset
   and empty are fine. */
DML__LOCAL bool dml__cpu_isa_known(const char **wanted);

#endif
