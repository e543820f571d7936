/* pool_internal.h: what a pool remembers of the machine, for the kernels. */
#ifndef DML_THREAD_POOL_INTERNAL_H
#define DML_THREAD_POOL_INTERNAL_H

#include "base/cpu_bf16.h"
#include "base/dtype.h"
#include "thread/pool.h"

typedef struct dml__machine {
    dml_isa isa; /* dml_cpu_isa's word; later changes of the environment don't count */
    dml_caches caches;
} dml__machine;

/* A load for a pool; NULL has dml_cpu_isa and the smallest caches of today's processors. */
DML__LOCAL dml__machine dml__pool_machine(const dml_pool *pool);

/* Which instructions for bf16 the pool's instruction set comes with: asked for when it is first needed, since
   that also asks the system for leave to use them, and then remembered; NULL asks each time. */
DML__LOCAL dml__bf16_isa dml__pool_bf16(dml_pool *pool);

/* What products with this pool round their factors to (kernels/rounded.h) from now on, for a program of mixed
   precision while it runs, so that no op needs to know: DML_BF16 or DML_F16; DML_F32, as it begins: nothing.
   NULL never does. Not inside a loop. */
DML__LOCAL void dml__pool_round_to(dml_pool *pool, dml_dtype dtype);
DML__LOCAL dml_dtype dml__pool_rounds_to(const dml_pool *pool);

#endif
