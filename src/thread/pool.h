/* pool.h: a caller-owned pool of threads that runs a loop in parallel. */
#ifndef DML_THREAD_POOL_H
#define DML_THREAD_POOL_H

#include "base/allocator.h"
#include "base/platform.h"

typedef struct dml_pool dml_pool;

/* One piece of a parallel loop: `task` counts from 0; `worker` is 0 .. threads - 1, and no two tasks run
   under the same worker number at once. */
typedef void (*dml_pool_task)(void *argument, int task, int worker);

typedef struct dml_pool_options {
    int threads;             /* 0: one for each processor in the affinity mask; 1: none but the caller */
    int spin;                /* pauses a worker spins before it sleeps; 0: 1000, or none when there are
                                more threads than processors; -1: none */
    dml_allocator allocator; /* zero: malloc */
    /* A host that has threads of its own lends them: called with the number of tasks, it must call
       run(run_argument, task, worker) once for each task, on any threads, each worker number < threads on one
       thread at a time, and return when all have ended. The pool then starts no threads. */
    void (*host_parallel)(void *host, int tasks, dml_pool_task run, void *run_argument);
    void *host;
} dml_pool_options;

/* NULL options: all defaults. Returns NULL when memory or threads can't be had, or when
   `threads` is negative; nothing is then left behind. A pool is used by one thread
   at a time; a task must not call into its own pool. */
#define dml_pool_create DML__ABI(dml_pool_create)
DML_API dml_pool *dml_pool_create(const dml_pool_options *options);
DML_API void dml_pool_destroy(dml_pool *pool);

/* How many workers share a loop, the caller included; 1 for NULL. */
DML_API int dml_pool_threads(const dml_pool *pool);

/* Runs `task` for 0 .. tasks - 1 and returns when all have ended. NULL runs them in order on the caller. The
   tasks are handed out one at a time, so which worker runs which differs from run to run: a result that must
   repeat may depend on the task's number only. */
DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument);

/* Each worker's own scratch, for packed panels and partial sums: DML_POOL_SCRATCH_BYTES, 64-byte aligned, its
   content undefined at the start of each loop. NULL for a NULL pool: a kernel then makes do with a small
   array on the stack. */
#define DML_POOL_SCRATCH_BYTES (DML__CAST(size_t, 1) << 20)
DML_API void *dml_pool_scratch(dml_pool *pool, int worker);

#endif
