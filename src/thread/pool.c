#ifndef DML_THREAD_POOL_C
#define DML_THREAD_POOL_C

#include "thread/pool.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_internal.h"
#include "base/memory.h"
#include "base/os_thread.h"
#include "base/pause.h"
#include "thread/pool_internal.h"

#include <string.h>

/* The kernel's header has these two, but isn't installed everywhere (musl). */
#if defined(__linux__) && !defined(DML__NO_FUTEX)
#include <sys/syscall.h>
#include <unistd.h>
#if defined(SYS_futex)
#define DML__FUTEX 1
#define DML__FUTEX_WAIT_PRIVATE 128
#define DML__FUTEX_WAKE_PRIVATE 129
#endif
#endif

#define DML__SPIN 200 /* microseconds: what lies between two loops of a training step, and more */

/* How a loop runs. Its tasks are cut into a part for each worker, the same for the same number of tasks: what
   a worker left in its own caches in one loop, it finds there in the next. The caller writes the parts, each
   with all that is to be known of the loop, and `unclaimed` last. A worker claims tasks of a part, of its own
   first and then of the others', by lowering `unclaimed` from a positive value, and only then reads the rest
   of it: until these tasks are counted off `unfinished`, the loop can't end and the part can't change. So a
   worker that is late for a loop does no harm, and nobody waits for a worker that has claimed nothing.

   In a process that fork() made, the workers are missing, which is just as if all were late; the mutex may be
   held by one that isn't there, so it and the condition are left alone there. Only who is about to make a
   system call asks what process it is in. */
typedef struct dml__pool_worker {
    /* Its part of the loop. */
    int unclaimed DML__OWN_LINE; /* tasks of it not yet claimed, the last ones before `end` */
    int loop;                    /* the number of the loop: who spins is told by its change */
    int end;
    int number;
    dml_pool_task task;
    void *argument;
    dml_pool *pool;
    dml__thread thread; /* number 0 is the caller, who has none */
} dml__pool_worker;

struct dml_pool {
    dml__memory memory;
    dml__machine machine;
    dml__bf16_isa bf16;
    bool bf16_known;
    dml_dtype rounds_to;
    int threads;
    int spin;      /* microseconds */
    int pin_first; /* the place of worker 0 in the affinity mask; -1: none is pinned */
    int started;   /* threads running, at most threads - 1 */
    long process;  /* where they run */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    dml_scratch scratch;
    char *scratch_memory;      /* (threads, scratch.worker aligned), then scratch.shared; NULL: none */
    dml__pool_worker *workers; /* (threads) */
    dml__mutex mutex;          /* these two where there is no futex */
    dml__cond cond;
    /* What the threads share is on cache lines of its own. */
    int loops DML__OWN_LINE;      /* how many began, but for overflow: who sleeps is told by its change */
    int sleepers;                 /* workers that sleep, or are about to */
    bool ends;                    /* the pool is being destroyed */
    int unfinished DML__OWN_LINE; /* tasks not yet ended */
    int caller_sleeps;            /* until unfinished == 0 */
};

/* False in a child process, to which the threads haven't come along. */
static bool dml__pool_is_ours(const dml_pool *pool)
{
    return pool->process == dml__process_id();
}

#ifndef DML_NO_THREADS

/* Sleeps while *word == value. May return early. */
static void dml__pool_sleep(dml_pool *pool, int *word, int value)
{
#ifdef DML__FUTEX
    (void)pool;
    syscall(SYS_futex, word, DML__FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    dml__mutex_lock(&pool->mutex);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) dml__cond_wait(&pool->cond, &pool->mutex, -1);
    dml__mutex_unlock(&pool->mutex);
#endif
}

/* Wakes at least `count` of those that sleep on `word`. */
static void dml__pool_wake(dml_pool *pool, int *word, int count)
{
#ifdef DML__FUTEX
    (void)pool;
    syscall(SYS_futex, word, DML__FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
#else
    (void)word, (void)count;
    dml__mutex_lock(&pool->mutex);
    dml__cond_signal_all(&pool->cond);
    dml__mutex_unlock(&pool->mutex);
#endif
}

/* Spins until (*word == value) is as wanted, but no longer than the pool may; whether it is so. The clock is
   read at every 64th pause, the first time when those have gone by: a pause takes 10 to 70 ns. */
static bool dml__pool_spin(const dml_pool *pool, const int *word, int value, bool wanted)
{
    double until = 0;
    for (int i = 1; pool->spin > 0; i++) {
        if ((__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) == wanted) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (until == 0) until = now + pool->spin * 1e-6;
        if (now >= until) break;
    }
    return (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) == wanted;
}

/* Claims and runs tasks of a part until none is left, and returns how many it ran. Of many it claims a few at
   a time, fewer towards the end: two who claim at once wait for each other. */
static int dml__pool_work_on(dml__pool_worker *part, int worker)
{
    int ran = 0;
    int unclaimed = __atomic_load_n(&part->unclaimed, __ATOMIC_RELAXED);
    while (unclaimed > 0) {
        const int left = unclaimed - (unclaimed + 7) / 8;
        if (!__atomic_compare_exchange_n(&part->unclaimed, &unclaimed, left, true, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        for (int i = unclaimed; i > left; i--) part->task(part->argument, part->end - i, worker);
        ran += unclaimed - left;
        unclaimed = __atomic_load_n(&part->unclaimed, __ATOMIC_RELAXED);
    }
    return ran;
}

static int dml__pool_work(dml_pool *pool, int worker)
{
    int ran = 0;
    for (int i = worker; i < pool->threads; i++) ran += dml__pool_work_on(&pool->workers[i], worker);
    for (int i = 0; i < worker; i++) ran += dml__pool_work_on(&pool->workers[i], worker);
    return ran;
}

/* Waits until there is a loop other than `seen` with a part for this worker, or any loop that it was woken
 * for. */
static void dml__pool_await_loop(dml_pool *pool, const dml__pool_worker *self, int seen)
{
    if (dml__pool_spin(pool, &self->loop, seen, false)) return;
    /* The count goes up before the number of loops is read, and the caller looks at the count after it has
       raised that number: one of the two sees the other. */
    __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
    const int loops = __atomic_load_n(&pool->loops, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&self->loop, __ATOMIC_ACQUIRE) == seen)
        while (__atomic_load_n(&pool->loops, __ATOMIC_SEQ_CST) == loops)
            dml__pool_sleep(pool, &pool->loops, loops);
    __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void dml__pool_worker_main(void *argument)
{
    const dml__pool_worker *self = (const dml__pool_worker *)argument;
    dml_pool *pool = self->pool;
    if (pool->pin_first >= 0) dml__thread_pin(pool->pin_first + self->number);
    for (int seen = 0;;) {
        dml__pool_await_loop(pool, self, seen);
        seen = __atomic_load_n(&self->loop, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&pool->ends, __ATOMIC_RELAXED)) return;
        const int ran = dml__pool_work(pool, self->number);
        if (ran && __atomic_sub_fetch(&pool->unfinished, ran, __ATOMIC_SEQ_CST) == 0 &&
            __atomic_load_n(&pool->caller_sleeps, __ATOMIC_SEQ_CST))
            dml__pool_wake(pool, &pool->unfinished, 1);
    }
}

/* Tells the workers who sleep that there is another loop; up to `wanted` of them. */
static void dml__pool_ring(dml_pool *pool, int loop, int wanted)
{
    __atomic_store_n(&pool->loops, loop, __ATOMIC_SEQ_CST);
    const int sleepers = __atomic_load_n(&pool->sleepers, __ATOMIC_SEQ_CST);
    if (sleepers && dml__pool_is_ours(pool))
        dml__pool_wake(pool, &pool->loops, sleepers < wanted ? sleepers : wanted);
}

/* Backwards: the caller's own part is the one that nobody waits for. */
static void dml__pool_publish(dml_pool *pool, int loop, int tasks, dml_pool_task task, void *argument)
{
    int end = tasks;
    for (int i = pool->threads - 1; i >= 0; i--) {
        dml__pool_worker *part = &pool->workers[i];
        const int begin = (int)(((int64_t)tasks * i + pool->threads - 1) / pool->threads);
        /* After a fork() in the middle of a loop, what nobody will run is left in a part. */
        if (begin == end && __atomic_load_n(&part->unclaimed, __ATOMIC_RELAXED) == 0) continue;
        part->end = end;
        part->task = task;
        part->argument = argument;
        __atomic_store_n(&part->unclaimed, end - begin, __ATOMIC_RELEASE);
        __atomic_store_n(&part->loop, loop, __ATOMIC_RELEASE);
        end = begin;
    }
}

static int dml__pool_next_loop(const dml_pool *pool)
{
    return (int)((unsigned)pool->loops + 1);
}

static void dml__pool_wait(dml_pool *pool)
{
    if (dml__pool_spin(pool, &pool->unfinished, 0, true)) return;
    __atomic_store_n(&pool->caller_sleeps, 1, __ATOMIC_SEQ_CST);
    int unfinished;
    while ((unfinished = __atomic_load_n(&pool->unfinished, __ATOMIC_SEQ_CST)) != 0)
        dml__pool_sleep(pool, &pool->unfinished, unfinished);
    __atomic_store_n(&pool->caller_sleeps, 0, __ATOMIC_SEQ_CST);
}

static void dml__pool_run_threads(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    const int loop = dml__pool_next_loop(pool);
    __atomic_store_n(&pool->unfinished, tasks, __ATOMIC_RELAXED);
    dml__pool_publish(pool, loop, tasks, task, argument);
    dml__pool_ring(pool, loop, tasks - 1);
    const int ran = dml__pool_work(pool, 0);
    if (__atomic_sub_fetch(&pool->unfinished, ran, __ATOMIC_ACQUIRE) != 0) dml__pool_wait(pool);
}

static bool dml__pool_start_threads(dml_pool *pool)
{
    while (pool->started < pool->threads - 1) {
        dml__pool_worker *worker = &pool->workers[pool->started + 1];
        worker->pool = pool;
        worker->number = pool->started + 1;
        if (!dml__thread_start(&worker->thread, dml__pool_worker_main, worker)) return false;
        pool->started++;
    }
    return true;
}

static void dml__pool_stop_threads(dml_pool *pool)
{
    if (!pool->started || !dml__pool_is_ours(pool)) return;
    const int loop = dml__pool_next_loop(pool);
    __atomic_store_n(&pool->ends, true, __ATOMIC_RELAXED);
    for (int i = 1; i <= pool->started; i++) __atomic_store_n(&pool->workers[i].loop, loop, __ATOMIC_RELEASE);
    dml__pool_ring(pool, loop, pool->started);
    for (int i = 1; i <= pool->started; i++) dml__thread_join(&pool->workers[i].thread);
}

#else

static void dml__pool_run_threads(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    (void)pool, (void)tasks, (void)task, (void)argument;
}

static bool dml__pool_start_threads(dml_pool *pool)
{
    (void)pool;
    return true;
}

static void dml__pool_stop_threads(dml_pool *pool)
{
    (void)pool;
}

#endif

static void dml__pool_settle(dml_pool *pool, const dml_pool_options *options)
{
    pool->threads = options->threads;
#ifdef DML_NO_THREADS
    if (!options->host_parallel) pool->threads = 1;
#endif
    const int share = pool->threads == 1 ? 1 : dml_cpu_share();
    if (pool->threads == 0) pool->threads = share;
    /* With more threads than processors, who spins keeps from working who has work, and the pinned queue. */
    const bool enough = pool->threads <= share;
    pool->spin = options->spin < 0 ? 0 : options->spin ? options->spin : enough ? DML__SPIN : 0;
    const bool pin = options->pin ? options->pin > 0 : dml__cpu_environment("DML_PIN") > 0;
    const int rank = dml__cpu_environment("LOCAL_RANK");
    pool->pin_first = pin && enough ? (rank > 0 ? rank * pool->threads : 0) : -1;
}

static bool dml__pool_start(dml_pool *pool)
{
    if (pool->host_parallel || pool->threads == 1) return true;
    pool->workers =
        (dml__pool_worker *)dml__allocate_array(&pool->memory, (size_t)pool->threads, sizeof *pool->workers);
    return pool->workers && dml__pool_start_threads(pool);
}

DML_API dml_pool *dml_pool_create(const dml_pool_options *options)
{
    const dml_pool_options defaults = { 0, 0, { NULL, NULL, NULL }, { 0, 0 }, NULL, NULL, 0 };
    if (!options) options = &defaults;
    if (options->threads < 0 || options->threads > DML_POOL_MOST) return NULL;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml_pool *pool = (dml_pool *)dml__allocate(&memory, sizeof *pool);
    if (!pool) return NULL;
    if (!dml__mutex_init(&pool->mutex)) {
        dml__release(&memory, pool);
        return NULL;
    }
    if (!dml__cond_init(&pool->cond)) {
        dml__mutex_destroy(&pool->mutex);
        dml__release(&memory, pool);
        return NULL;
    }
    pool->memory = memory;
    pool->machine.isa = dml_cpu_isa();
    pool->machine.caches = dml_cpu_caches();
    dml__pool_settle(pool, options);
    pool->process = dml__process_id();
    pool->host_parallel = options->host_parallel;
    pool->host = options->host;
    if (dml_pool_reserve(pool, options->scratch) != DML_OK || !dml__pool_start(pool)) {
        dml_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

DML_API void dml_pool_destroy(dml_pool *pool)
{
    if (!pool) return;
    dml__pool_stop_threads(pool);
    if (dml__pool_is_ours(pool)) {
        dml__cond_destroy(&pool->cond);
        dml__mutex_destroy(&pool->mutex);
    }
    dml__memory memory = pool->memory;
    dml__release(&memory, pool->workers);
    dml__release(&memory, pool->scratch_memory);
    dml__release(&memory, pool);
}

DML_API int dml_pool_threads(const dml_pool *pool)
{
    return pool ? pool->threads : 1;
}

DML__LOCAL dml__machine dml__pool_machine(const dml_pool *pool)
{
    if (pool) return pool->machine;
    const dml__machine unknown = { dml_cpu_isa(), { DML__LEAST_L1, DML__LEAST_L2, 0, 1 } };
    return unknown;
}

DML__LOCAL dml__bf16_isa dml__pool_bf16(dml_pool *pool)
{
    if (!pool) return dml__cpu_bf16(dml_cpu_isa());
    if (!pool->bf16_known) { /* workers only read: whoever rounds has asked before them */
        pool->bf16 = dml__cpu_bf16(pool->machine.isa);
        pool->bf16_known = true;
    }
    return pool->bf16;
}

DML__LOCAL void dml__pool_round_to(dml_pool *pool, dml_dtype dtype)
{
    if (!pool) return;
    pool->rounds_to = dtype;
    if (dtype == DML_BF16) dml__pool_bf16(pool); /* workers ask for it later */
}

DML__LOCAL dml_dtype dml__pool_rounds_to(const dml_pool *pool)
{
    return pool ? pool->rounds_to : DML_F32;
}

DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    if (tasks > 1 && pool && pool->host_parallel) {
        pool->host_parallel(pool->host, pool->threads, tasks, task, argument);
    } else if (tasks > 1 && pool && pool->started) {
        dml__pool_run_threads(pool, tasks, task, argument);
    } else {
        for (int i = 0; i < tasks; i++) task(argument, i, 0);
    }
}

/* False: it can't be had, and there is none. */
static bool dml__pool_take_scratch(dml_pool *pool, dml_scratch scratch)
{
    const size_t threads = (size_t)pool->threads, most = SIZE_MAX - DML__ALIGNMENT;
    const size_t worker = scratch.worker > most ? SIZE_MAX : dml__align_up(scratch.worker);
    memset(&pool->scratch, 0, sizeof pool->scratch);
    if (scratch.shared > most || worker > (SIZE_MAX - scratch.shared) / threads) return false;
    if (worker == 0 && scratch.shared == 0) return true;
    pool->scratch_memory = (char *)dml__allocate(&pool->memory, threads * worker + scratch.shared);
    if (!pool->scratch_memory) return false;
    pool->scratch = scratch;
    return true;
}

DML_API dml_status dml_pool_reserve(dml_pool *pool, dml_scratch scratch)
{
    if (!pool) return DML_OK;
    const dml_scratch old = pool->scratch;
    if (scratch.worker <= old.worker && scratch.shared <= old.shared) return DML_OK;
    if (scratch.worker < old.worker) scratch.worker = old.worker;
    if (scratch.shared < old.shared) scratch.shared = old.shared;
    dml__release(&pool->memory, pool->scratch_memory);
    pool->scratch_memory = NULL;
    if (dml__pool_take_scratch(pool, scratch)) return DML_OK;
    (void)dml__pool_take_scratch(pool, old); /* programs that were compiled before count on it */
    return DML_ERROR_MEMORY;
}

DML_API dml_scratch dml_pool_scratch_bytes(const dml_pool *pool)
{
    const dml_scratch none = { 0, 0 };
    return pool ? pool->scratch : none;
}

DML_API void *dml_pool_scratch(dml_pool *pool, int worker)
{
    if (!pool || pool->scratch.worker == 0 || worker < 0 || worker >= pool->threads) return NULL;
    return pool->scratch_memory + (size_t)worker * dml__align_up(pool->scratch.worker);
}

DML_API void *dml_pool_shared_scratch(dml_pool *pool)
{
    if (!pool || pool->scratch.shared == 0) return NULL;
    return pool->scratch_memory + (size_t)pool->threads * dml__align_up(pool->scratch.worker);
}

#endif
