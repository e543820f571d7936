#include "thread/pool.h"

#include "../test.h"

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

typedef struct loop {
    int threads;
    int ran[1000];   /* how often each task ran */
    int running[16]; /* tasks under each worker number now */
    bool bad_worker;
    int *scratch_of[16];
    dml_pool *inner; /* loops that loops run, one pool a worker */
    int inner_total;
} loop;

static void count_task(void *argument, int task, int worker)
{
    loop *l = (loop *)argument;
    if (worker < 0 || worker >= l->threads ||
        __atomic_add_fetch(&l->running[worker], 1, __ATOMIC_RELAXED) != 1)
        __atomic_store_n(&l->bad_worker, true, __ATOMIC_RELAXED);
    __atomic_add_fetch(&l->ran[task], 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&l->running[worker], 1, __ATOMIC_RELAXED);
}

static void check_loops(dml_pool *pool, int threads)
{
    static loop l;
    const int counts[] = { 0, 1, 2, 3, 7, 64, 1000, -1 };
    CHECK_INT(dml_pool_threads(pool), threads);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        memset(&l, 0, sizeof l);
        l.threads = threads;
        dml_pool_run(pool, counts[c], count_task, &l);
        CHECK(!l.bad_worker);
        for (int i = 0; i < 1000; i++)
            CHECK_MESSAGE(l.ran[i] == (i < counts[c]), "%d threads, %d tasks: task %d ran %d times", threads,
                          counts[c], i, l.ran[i]);
    }
}

static void every_task_runs_once(void)
{
    check_loops(NULL, 1);
    for (int threads = 1; threads <= 9; threads++)
        for (int spin = -1; spin <= 1; spin++) {
            dml_pool_options options = { 0 };
            options.threads = threads;
            options.spin = spin * 100;
            dml_pool *pool = dml_pool_create(&options);
            CHECK(pool);
#ifdef DML_NO_THREADS
            check_loops(pool, 1);
#else
            check_loops(pool, threads);
#endif
            dml_pool_destroy(pool);
        }
}

static void defaults_use_the_processors(void)
{
    dml_pool *pool = dml_pool_create(NULL);
    CHECK(pool);
    check_loops(pool, dml_pool_threads(pool));
    dml_pool_destroy(pool);
    dml_pool_options options = { 0 };
    options.threads = -1;
    CHECK(!dml_pool_create(&options));
    dml_pool_destroy(NULL);
}

static void add_task(void *argument, int task, int worker)
{
    long *sums = (long *)argument; /* one a worker, a cache line apart: written without atomics */
    sums[worker * 8] += task + 1;
}

/* What one loop wrote, the next one and the caller see. */
static void many_tiny_loops(void)
{
    for (int threads = 2; threads <= 4; threads++) {
        dml_pool_options options = { 0 };
        options.threads = threads;
        dml_pool *pool = dml_pool_create(&options);
        CHECK(pool);
        long sums[4 * 8] = { 0 }, want = 0, got = 0;
        for (int i = 0; i < 3000; i++) {
            const int tasks = 1 + i % 5;
            dml_pool_run(pool, tasks, add_task, sums);
            want += tasks * (tasks + 1) / 2;
        }
        for (int w = 0; w < 4; w++) got += sums[w * 8];
        CHECK_INT(got, want);
        dml_pool_destroy(pool);
    }
}

static void nested_task(void *argument, int task, int worker)
{
    loop *l = (loop *)argument;
    long sums[4 * 8] = { 0 }, total = 0;
    dml_pool *inner = task % 2 ? NULL : l->inner;
    if (worker != 0) inner = NULL; /* a pool belongs to one thread at a time */
    dml_pool_run(inner, task, add_task, sums);
    for (int w = 0; w < 4; w++) total += sums[w * 8];
    __atomic_add_fetch(&l->inner_total, (int)total, __ATOMIC_RELAXED);
}

static void loops_inside_loops(void)
{
    static loop l;
    dml_pool_options options = { 0 };
    options.threads = 3;
    dml_pool *outer = dml_pool_create(&options);
    l.inner = dml_pool_create(&options);
    l.inner_total = 0;
    CHECK(outer && l.inner);
    dml_pool_run(outer, 30, nested_task, &l);
    int want = 0;
    for (int task = 0; task < 30; task++) want += task * (task + 1) / 2;
    CHECK_INT(l.inner_total, want);
    dml_pool_destroy(l.inner);
    dml_pool_destroy(outer);
}

static void scratch_task(void *argument, int task, int worker)
{
    dml_pool *pool = (dml_pool *)argument;
    unsigned char *scratch = (unsigned char *)dml_pool_scratch(pool, worker);
    memset(scratch, task, DML_POOL_SCRATCH_BYTES);
    for (size_t i = 0; i < DML_POOL_SCRATCH_BYTES; i += 4095)
        CHECK_MESSAGE(scratch[i] == (unsigned char)task, "scratch of worker %d is shared", worker);
}

static void scratch_is_each_workers_own(void)
{
    CHECK(!dml_pool_scratch(NULL, 0));
    dml_pool_options options = { 0 };
    options.threads = 4;
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    for (int w = 0; w < dml_pool_threads(pool); w++) CHECK_INT((uintptr_t)dml_pool_scratch(pool, w) % 64, 0);
    dml_pool_run(pool, 40, scratch_task, pool);
    dml_pool_destroy(pool);
}

typedef struct lender {
    int calls;
    int tasks;
} lender;

/* A host's loop: backwards, under changing worker numbers. */
static void lend(void *user, int tasks, dml_pool_task run, void *argument)
{
    lender *host = (lender *)user;
    host->calls++;
    host->tasks += tasks;
    for (int i = tasks - 1; i >= 0; i--) run(argument, i, i % 3);
}

static void a_host_lends_its_threads(void)
{
    lender host = { 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.host_parallel = lend;
    options.host = &host;
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    check_loops(pool, 3);
    CHECK_INT(host.calls, 5);
    CHECK_INT(host.tasks, 2 + 3 + 7 + 64 + 1000);
    CHECK(dml_pool_scratch(pool, 2));
    dml_pool_destroy(pool);
}

typedef struct counter {
    int allocations, live, fail_at;
} counter;

static void *counted_allocate(void *user, size_t bytes)
{
    counter *c = (counter *)user;
    void *memory = ++c->allocations == c->fail_at || bytes > (size_t)1 << 28 ? NULL : malloc(bytes);
    if (memory) c->live++;
    return memory;
}

static void counted_release(void *user, void *memory)
{
    counter *c = (counter *)user;
    c->live--;
    free(memory);
}

static void each_failing_allocation_leaks_nothing(void)
{
    counter c = { 0, 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.allocator.allocate = counted_allocate;
    options.allocator.release = counted_release;
    options.allocator.user = &c;
    int n = 0;
    for (c.fail_at = 1;; c.fail_at++) {
        c.allocations = 0;
        dml_pool *pool = dml_pool_create(&options);
        n = c.allocations;
        if (pool) {
            CHECK(c.live == n);
            dml_pool_destroy(pool);
            CHECK_INT(c.live, 0);
            break;
        }
        CHECK_INT(c.live, 0);
    }
    CHECK(n >= 2 && c.fail_at == n + 1);
    /* More scratch than there is memory. */
    options.threads = 2000000000;
    c.fail_at = 2;
    c.allocations = 0;
    CHECK(!dml_pool_create(&options));
    CHECK_INT(c.live, 0);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

/* Threads can't be had when there is no address space for their stacks. Sanitizers and emulators have address
   spaces of their own, which no limit reaches; musl gives threads little stacks. */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(SANITIZED) && !defined(DML_NO_THREADS)
#define CAN_LIMIT_THREADS
static void a_thread_that_cannot_start_leaks_nothing(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    if (file) fclose(file);
    struct rlimit old, tight;
    getrlimit(RLIMIT_AS, &old);
    tight = old;
    tight.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)200 << 20);
    counter c = { 0, 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 64;
    options.allocator.allocate = counted_allocate;
    options.allocator.release = counted_release;
    options.allocator.user = &c;
    CHECK_INT(setrlimit(RLIMIT_AS, &tight), 0);
    dml_pool *pool = dml_pool_create(&options);
    setrlimit(RLIMIT_AS, &old);
    CHECK(!pool);
    dml_pool_destroy(pool);
    CHECK_INT(c.live, 0);
}
#endif

int main(void)
{
    RUN(every_task_runs_once);
    RUN(defaults_use_the_processors);
    RUN(many_tiny_loops);
    RUN(loops_inside_loops);
    RUN(scratch_is_each_workers_own);
    RUN(a_host_lends_its_threads);
    RUN(each_failing_allocation_leaks_nothing);
#ifdef CAN_LIMIT_THREADS
    RUN(a_thread_that_cannot_start_leaks_nothing);
#endif
    return test_report("thread/pool");
}
