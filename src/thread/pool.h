/* pool.h: a caller-owned pool of threads that runs a loop in parallel. */
#ifndef DML_THREAD_POOL_H
#define DML_THREAD_POOL_H

#include "base/allocator.h"
#include "base/platform.h"
#include "base/status.h"

typedef struct dml_pool dml_pool;

/* One piece of a parallel loop: `task` counts from 0; `worker` is 0 .. threads - 1, and no two tasks run
   under the same worker number at once. */
typedef void (*dml_pool_task)(void *argument, int task, int worker);

/* Bytes of working memory: for each worker, and once for the loop as a whole. */
typedef struct dml_scratch {
    size_t worker, shared;
} dml_scratch;

#define DML_POOL_MOST 4096 /* threads: more are a mistake, and would be started until memory is gone */

typedef struct dml_pool_options {
    int threads; /* 0: dml_cpu_share(); 1: none but the caller; at most DML_POOL_MOST */
    int spin;    /* microseconds that a thread without work spins before it sleeps; 0: 200, or none when there
                    are more threads than processors; -1: none */
    dml_allocator allocator; /* zero: malloc */
    dml_scratch scratch;     /* as by dml_pool_reserve; zero: none yet */
    /* A host that has threads of its own lends them: called with the number of tasks, it must call
       run(run_argument, task, worker) once for each task, on any threads, each worker number of
       0 .. workers - 1 on one thread at a time, and return when all have ended. A team of threads that is
       larger than `workers` leaves the rest idle. The pool then starts no threads. */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    int pin; /* 1: each thread but the caller stays on a processor of its own, as far as they go: the first of
                the affinity mask is left to the caller, and a rank (LOCAL_RANK) begins after the ranks before
                it. 0: as the environment variable DML_PIN says (1; dml_open refuses what is neither 0 nor 1),
                otherwise not; -1: not */
} dml_pool_options;

/* NULL options: all defaults. Returns NULL when memory or threads can't be had, or when
   `threads` is negative or more than DML_POOL_MOST; nothing is then left behind. A pool is used by one thread
   at a time; a task must not call into its own pool. */
#define dml_pool_create DML__ABI(dml_pool_create)
DML_API dml_pool *dml_pool_create(const dml_pool_options *options);

/* Ends the threads and releases the memory; NULL is fine. After a fork(), the child has no such threads:
   there, loops run on the caller alone, and this releases the memory. */
DML_API void dml_pool_destroy(dml_pool *pool);

/* How many workers share a loop, the caller included; 1 for NULL. */
DML_API int dml_pool_threads(const dml_pool *pool);

/* Runs `task` for 0 .. tasks - 1 and returns when all have ended. NULL runs them in order on the caller. Each
   worker begins with a part of its own, the same whenever there are as many tasks, and then takes over what
   others haven't begun, so which worker runs which differs from run to run: a result that must repeat may
   depend on the task's number only. About 1 us on threads that spin, and 10 to 30 us where they have gone to
   sleep. */
DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument);

/* Makes the pool's scratch at least this large; it never shrinks. Not inside a loop: the old block is
   released before the new one is taken, so what lay in it is lost. dml_sgemm_scratch and dml_conv2d_scratch
   say what the kernels use; with less they are slower, and make do with small arrays on the stack.
   DML_ERROR_MEMORY when it can't be had; the pool then has as much as before, or none if that can't be had
   again. A NULL pool needs none: DML_OK. */
DML_API dml_status dml_pool_reserve(dml_pool *pool, dml_scratch scratch);

/* What the pool has: what was asked for, the largest of each. Zeros for NULL. */
DML_API dml_scratch dml_pool_scratch_bytes(const dml_pool *pool);

/* A worker's own scratch, and the one that a loop's workers share; 64-byte aligned, their content undefined
   at the start of each loop. NULL where there is none: for a NULL pool, for zero bytes, and for a worker
   number that the pool doesn't have. */
DML_API void *dml_pool_scratch(dml_pool *pool, int worker);
DML_API void *dml_pool_shared_scratch(dml_pool *pool);

#endif
