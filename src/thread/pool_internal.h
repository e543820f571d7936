/* pool_internal.h: what a pool remembers of the machine, for the kernels. */
#ifndef DML_THREAD_POOL_INTERNAL_H
#define DML_THREAD_POOL_INTERNAL_H

#include "base/cpu.h"
#include "thread/pool.h"

typedef struct dml__machine {
    dml_isa isa; /* dml_cpu_isa's word; later changes of the environment don't count */
    dml_caches caches;
} dml__machine;

/* A load for a pool; NULL has dml_cpu_isa and the smallest caches of today's processors. */
DML__LOCAL dml__machine dml__pool_machine(const dml_pool *pool);

#endif
