/* cpu_internal.h: what the environment and the system's files say of the processor. */
#ifndef DML_BASE_CPU_INTERNAL_H
#define DML_BASE_CPU_INTERNAL_H

#include "base/cpu.h"
#include "base/platform.h"

/* False when the environment variable DML_ISA names no instruction set; *wanted is then what it says. Unset
   and empty are fine. */
DML__LOCAL bool dml__cpu_isa_known(const char **wanted);

/* A number >= 0 from the environment, or -1 where there is none. */
DML__LOCAL int dml__cpu_environment(const char *name);

/* The one that the caller runs on at the moment, from 0; -1 where the system doesn't say. */
DML__LOCAL int dml__processor_number(void);

/* Whether Intel made it: what pays on others doesn't always there, and the other way round. */
DML__LOCAL bool dml__is_intel(void);

/* How many processors' time the CPU quotas of the process's cgroups allow, rounded down, at least 1, by the
   files under `root` ("" for the machine's own); INT_MAX without a quota, and elsewhere than on Linux. */
DML__LOCAL int dml__cpu_quota(const char *root);

/* Bytes that any processor has that the kernels' blocks are worth cutting for. */
#define DML__LEAST_L1 ((size_t)32 << 10)
#define DML__LEAST_L2 ((size_t)256 << 10)

/* The caches of processor 0 as Linux describes them under `root` ("" for the machine's own); zeros for what
   isn't there, and elsewhere. */
DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root);

#endif
