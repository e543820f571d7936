#include "base/cpu.h"
#include "thread/pool.h"
#include "thread/pool_internal.h"

#include "../test.h"

/* Sleeps for so many milliseconds. */
#ifdef _WIN32
__declspec(dllimport) void __stdcall Sleep(unsigned long milliseconds);
#define nap(milliseconds) Sleep(milliseconds)
#else
#define nap(milliseconds) usleep((milliseconds)*1000u)
#include <time.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#endif
#ifndef DML_NO_THREADS
#include <pthread.h>
#endif
#endif

#ifndef POOL_TEST_NAME
#define POOL_TEST_NAME "thread/pool"
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

static void add_task(void *argument, int task, int worker)
{
    long *sums = (long *)argument; /* one a worker, a cache line apart: written without atomics */
    sums[worker * 8] += task + 1;
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
#ifdef DML_NO_THREADS
    check_loops(pool, 1);
#else
    check_loops(pool, dml_cpu_share());
#endif
    CHECK(!dml_pool_scratch(pool, 0) && !dml_pool_shared_scratch(pool));
    dml_pool_destroy(pool);
    dml_pool_options options = { 0 };
    options.threads = -1;
    CHECK(!dml_pool_create(&options));
    dml_pool_destroy(NULL);
    setenv("LOCAL_WORLD_SIZE", "100000", 1); /* a rank among so many has a processor at best */
    pool = dml_pool_create(NULL);
    CHECK_INT(dml_pool_threads(pool), 1);
    dml_pool_destroy(pool);
    unsetenv("LOCAL_WORLD_SIZE");
}

static void a_pool_knows_the_machine(void)
{
    dml_pool *pool = dml_pool_create(NULL);
    const dml__machine machine = dml__pool_machine(pool), unknown = dml__pool_machine(NULL);
    CHECK_INT(machine.isa, dml_cpu_isa());
    CHECK_INT(unknown.isa, dml_cpu_isa());
    CHECK(machine.caches.l1 > 0 && machine.caches.l2 > 0 && machine.caches.l3_cores > 0);
    CHECK(unknown.caches.l1 > 0 && unknown.caches.l2 > 0 && unknown.caches.l3_cores > 0);
    setenv("DML_ISA", "scalar", 1);
    CHECK_INT(dml__pool_machine(pool).isa, machine.isa); /* as when it was made */
    CHECK_INT(dml__pool_machine(NULL).isa, DML_ISA_SCALAR);
    unsetenv("DML_ISA");
    dml_pool_destroy(pool);
}

#if defined(__linux__) && !defined(DML_NO_THREADS)
typedef struct places {
    int threads, begun;
    int processors[64], first[64]; /* in the mask of the worker that ran the task */
} places;

/* Waits for the others, so that every worker has one. */
static void place_task(void *argument, int task, int worker)
{
    places *p = (places *)argument;
    cpu_set_t set;
    CHECK_INT(sched_getaffinity(0, sizeof set, &set), 0);
    p->processors[worker] = CPU_COUNT(&set);
    for (int i = CPU_SETSIZE - 1; i >= 0; i--)
        if (CPU_ISSET(i, &set)) p->first[worker] = i;
    (void)task;
    __atomic_add_fetch(&p->begun, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&p->begun, __ATOMIC_SEQ_CST) < p->threads) nap(1u);
}

/* Which workers of a pool of so many threads are on one processor, and on which place of the mask. */
static void check_places(int threads, int pin, bool pinned, int rank)
{
    cpu_set_t before, after;
    sched_getaffinity(0, sizeof before, &before);
    const int count = CPU_COUNT(&before);
    dml_pool_options options = { 0 };
    options.threads = threads;
    options.pin = pin;
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    places p;
    memset(&p, 0, sizeof p);
    p.threads = threads;
    dml_pool_run(pool, threads, place_task, &p);
    CHECK_INT(p.processors[0], count); /* the caller's thread is the host's */
    for (int w = 1; w < threads; w++) {
        CHECK_INT(p.processors[w], pinned ? 1 : count);
        if (!pinned) continue;
        int place = 0;
        for (int i = 0; i < p.first[w]; i++) place += CPU_ISSET(i, &before) != 0;
        CHECK_INT(place, (rank * threads + w) % count);
    }
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));
    dml_pool_destroy(pool);
}

static void pinned_on_request(void)
{
    const int all = dml_cpu_count() < 64 ? dml_cpu_count() : 64;
    if (all < 2) {
        SKIP("there is one processor");
        return;
    }
    unsetenv("DML_PIN");
    unsetenv("LOCAL_RANK");
    check_places(all, 0, false, 0);
    check_places(all, 1, true, 0);
    check_places(all, -1, false, 0);
    check_places(2, 1, true, 0);
    setenv("DML_PIN", "1", 1);
    check_places(all, 0, true, 0);
    check_places(all, -1, false, 0);
    if (all < 60) check_places(all + 1, 0, false, 0); /* the pinned would queue */
    setenv("DML_PIN", "0", 1);
    check_places(2, 0, false, 0);
    unsetenv("DML_PIN");
    setenv("LOCAL_RANK", "1", 1);
    check_places(2, 1, true, 1);
    unsetenv("LOCAL_RANK");
}
#else
static void pinned_on_request(void)
{
    SKIP("what a thread may run on is asked for on Linux only");
}
#endif

#if !defined(_WIN32) && !defined(DML_NO_THREADS)
/* Threads that have nothing to do sleep after their time of spinning: the program takes no processor. */
static void the_idle_sleep(void)
{
    dml_pool_options options = { 0 };
    options.threads = 4;
    options.spin = 100;
    dml_pool *pool = dml_pool_create(&options);
    long sums[4 * 8] = { 0 };
    for (int i = 0; i < 20; i++) dml_pool_run(pool, 8, add_task, sums);
    nap(50u); /* far beyond 100 us, also under an emulator */
    const clock_t before = clock();
    nap(200u);
    const double took = (double)(clock() - before) / CLOCKS_PER_SEC;
    CHECK_MESSAGE(took < 0.1, "%g s of processor in 0.2 s of nothing", took);
    dml_pool_destroy(pool);
}
#else
static void the_idle_sleep(void)
{
    SKIP("there is no time of the process's own, or there are no threads");
}
#endif

#ifndef DML_NO_THREADS
typedef struct meeting {
    int threads, begun;
    bool done[16];
} meeting;

/* Begins to end only when every worker has a task; worker 0, the caller, is then the first to end. */
static void meet_task(void *argument, int task, int worker)
{
    meeting *m = (meeting *)argument;
    __atomic_add_fetch(&m->begun, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&m->begun, __ATOMIC_SEQ_CST) < m->threads) nap(1u);
    if (worker > 0) nap((unsigned)worker);
    m->done[task] = true;
}

/* All threads are there, also those that slept, and the caller waits for the last of them. */
static void all_threads_work_at_once(void)
{
    for (int threads = 2; threads <= 6; threads++)
        for (int spin = -1; spin <= 1; spin++) {
            dml_pool_options options = { 0 };
            options.threads = threads;
            options.spin = spin * 100;
            dml_pool *pool = dml_pool_create(&options);
            CHECK(pool);
            for (int round = 0; round < 6; round++) {
                meeting m = { threads, 0, { false } };
                if (round % 2) nap(2u);
                dml_pool_run(pool, threads, meet_task, &m);
                for (int i = 0; i < threads; i++) CHECK(m.done[i]);
            }
            dml_pool_destroy(pool);
        }
}
#endif

#ifndef DML_NO_THREADS
typedef struct parts {
    int threads, each, begun, ended; /* `each` tasks are a worker's part */
    bool moved[16];                  /* its first task was another's */
    bool seen[16];
    bool held; /* the caller stays in its first task until all the others have ended */
} parts;

static void part_task(void *argument, int task, int worker)
{
    parts *p = (parts *)argument;
    if (!p->seen[worker]) {
        p->seen[worker] = true;
        p->moved[worker] = task != worker * p->each;
        __atomic_add_fetch(&p->begun, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&p->begun, __ATOMIC_SEQ_CST) < p->threads) nap(1u);
        if (worker == 0)
            while (p->held && __atomic_load_n(&p->ended, __ATOMIC_SEQ_CST) < p->threads * p->each - 1)
                nap(1u);
    }
    __atomic_add_fetch(&p->ended, 1, __ATOMIC_SEQ_CST);
}

/* In a pool's first loop, for which no worker can be late: each begins with its own part, and the others take
   over what one of them doesn't get to. */
static void workers_have_parts(void)
{
    for (int threads = 2; threads <= 6; threads++)
        for (int each = 1; each <= 4; each++) {
            dml_pool_options options = { 0 };
            options.threads = threads;
            dml_pool *pool = dml_pool_create(&options);
            CHECK(pool);
            parts p;
            memset(&p, 0, sizeof p);
            p.threads = threads, p.each = each, p.held = each > 1;
            dml_pool_run(pool, threads * each, part_task, &p);
            CHECK_INT(p.ended, threads * each);
            for (int w = 0; w < threads; w++) CHECK(p.seen[w] && !p.moved[w]);
            dml_pool_destroy(pool);
        }
}
#endif

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

/* Fills all of the worker's scratch, and a task's place of the shared one. */
static void scratch_task(void *argument, int task, int worker)
{
    dml_pool *pool = (dml_pool *)argument;
    const dml_scratch has = dml_pool_scratch_bytes(pool);
    unsigned char *scratch = (unsigned char *)dml_pool_scratch(pool, worker);
    unsigned char *shared = (unsigned char *)dml_pool_shared_scratch(pool);
    if (has.worker) memset(scratch, task, has.worker);
    if (has.shared) shared[task] = (unsigned char)(100 + task);
    for (size_t i = 0; i < has.worker; i++)
        CHECK_MESSAGE(scratch[i] == (unsigned char)task, "scratch of worker %d is shared", worker);
}

static void check_scratch(dml_pool *pool, size_t worker, size_t shared)
{
    CHECK_INT(dml_pool_scratch_bytes(pool).worker, worker);
    CHECK_INT(dml_pool_scratch_bytes(pool).shared, shared);
    for (int w = 0; w < dml_pool_threads(pool); w++) {
        CHECK(!dml_pool_scratch(pool, w) == (worker == 0));
        CHECK_INT((uintptr_t)dml_pool_scratch(pool, w) % 64, 0);
    }
    CHECK(!dml_pool_scratch(pool, -1) && !dml_pool_scratch(pool, dml_pool_threads(pool)));
    CHECK(!dml_pool_shared_scratch(pool) == (shared == 0));
    CHECK_INT((uintptr_t)dml_pool_shared_scratch(pool) % 64, 0);
    dml_pool_run(pool, 40, scratch_task, pool);
    for (size_t i = 0; i < 40 && shared; i++)
        CHECK_INT(((unsigned char *)dml_pool_shared_scratch(pool))[i], 100 + i);
}

static void scratch_is_each_workers_own(void)
{
    const dml_scratch some = { 1000, 0 };
    CHECK(!dml_pool_scratch(NULL, 0) && !dml_pool_shared_scratch(NULL));
    CHECK(dml_pool_scratch_bytes(NULL).worker == 0 && dml_pool_scratch_bytes(NULL).shared == 0);
    CHECK_INT(dml_pool_reserve(NULL, some), DML_OK);
    for (int threads = 1; threads <= 4; threads += 3) {
        dml_pool_options options = { 0 };
        options.threads = threads;
        dml_pool *pool = dml_pool_create(&options);
        CHECK(pool);
        check_scratch(pool, 0, 0);
        static const size_t asked[][2] = {
            { 0, 0 },  { 0, 41 },   { 1, 0 },     { 1000, 0 }, { 65, 40 },
            { 0, 50 }, { 1001, 1 }, { 1001, 50 }, { 1, 1 },    { 5000, 3000 }
        };
        size_t worker = 0, shared = 0;
        for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
            const dml_scratch scratch = { asked[i][0], asked[i][1] };
            if (scratch.worker > worker) worker = scratch.worker;
            if (scratch.shared > shared) shared = scratch.shared;
            const void *before = dml_pool_scratch(pool, 0);
            CHECK_INT(dml_pool_reserve(pool, scratch), DML_OK);
            check_scratch(pool, worker, shared);
            if (i == 8) CHECK(dml_pool_scratch(pool, 0) == before); /* there was enough */
        }
        dml_pool_destroy(pool);
        options.scratch.worker = 300;
        options.scratch.shared = 77;
        pool = dml_pool_create(&options);
        CHECK(pool);
        check_scratch(pool, 300, 77);
        dml_pool_destroy(pool);
    }
}

typedef struct lender {
    int calls;
    int tasks;
    int workers;
} lender;

/* A host's loop: backwards, under changing worker numbers. */
static void lend(void *user, int workers, int tasks, dml_pool_task run, void *argument)
{
    lender *host = (lender *)user;
    host->calls++;
    host->tasks += tasks;
    host->workers = workers;
    for (int i = tasks - 1; i >= 0; i--) run(argument, i, i % workers);
}

static void a_host_lends_its_threads(void)
{
    lender host = { 0, 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.host_parallel = lend;
    options.host = &host;
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    check_loops(pool, 3);
    CHECK_INT(host.calls, 5);
    CHECK_INT(host.tasks, 2 + 3 + 7 + 64 + 1000);
    CHECK_INT(host.workers, 3);
    const dml_scratch some = { 100, 100 };
    CHECK_INT(dml_pool_reserve(pool, some), DML_OK);
    check_scratch(pool, 100, 100);
    dml_pool_destroy(pool);
}

typedef struct counter {
    int allocations, live, fail_at;
    size_t largest;
} counter;

static void *counted_allocate(void *user, size_t bytes)
{
    counter *c = (counter *)user;
    c->largest = bytes > c->largest ? bytes : c->largest;
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
    counter c = { 0, 0, 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.scratch.worker = 100;
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
#ifndef DML_NO_THREADS
    /* More threads than there is memory. */
    options.threads = 2000000000;
    c.fail_at = 0;
    c.allocations = 0;
    CHECK(!dml_pool_create(&options));
    CHECK_INT(c.live, 0);
#endif
}

/* A pool whose scratch can't be had has none, and works. */
static void scratch_that_cannot_be_had(void)
{
    counter c = { 0, 0, 0, 0 };
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.allocator.allocate = counted_allocate;
    options.allocator.release = counted_release;
    options.allocator.user = &c;
    dml_pool *pool = dml_pool_create(&options);
    CHECK(pool);
    CHECK(c.largest < 2000); /* the pool itself takes little */
    const int without = c.live;
    options.host_parallel = lend; /* no threads, no memory for them; and the same for the caller alone */
    dml_pool *small = dml_pool_create(&options);
    CHECK_INT(c.live, without + 1);
    dml_pool_destroy(small);
    options.host_parallel = NULL;
    options.threads = 1;
    small = dml_pool_create(&options);
    CHECK_INT(c.live, without + 1);
    dml_pool_destroy(small);
    static const dml_scratch refused[] = { { SIZE_MAX, 0 },           { 0, SIZE_MAX },
                                           { SIZE_MAX / 3, 0 },       { SIZE_MAX / 3 - 100, 300 },
                                           { SIZE_MAX - 63, 0 },      { 0, SIZE_MAX - 64 },
                                           { SIZE_MAX / 2 + 33, 65 }, { (size_t)1 << 29, 0 } };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const dml_scratch some = { 100, 200 };
        CHECK_INT(dml_pool_reserve(pool, some), DML_OK);
        CHECK_INT(c.live, without + 1);
        CHECK_INT(dml_pool_reserve(pool, refused[i]), DML_ERROR_MEMORY);
        CHECK_INT(c.live, without + 1);
        check_scratch(pool, 100, 200);
    }
    const dml_scratch more = { 300, 200 };
    c.fail_at = c.allocations + 1; /* an allocator that has no more for it, but for what there was */
    CHECK_INT(dml_pool_reserve(pool, more), DML_ERROR_MEMORY);
    check_scratch(pool, 100, 200);
    c.fail_at = 0;
    CHECK_INT(dml_pool_reserve(pool, more), DML_OK);
    check_scratch(pool, 300, 200);
    dml_pool_destroy(pool);
    CHECK_INT(c.live, 0);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

#ifndef _WIN32

static bool loops_are_right(dml_pool *pool)
{
    long sums[4 * 8] = { 0 }, want = 0, got = 0;
    for (int i = 0; i < 50; i++) {
        const int tasks = 1 + i % 9;
        dml_pool_run(pool, tasks, add_task, sums);
        want += tasks * (tasks + 1) / 2;
    }
    for (int w = 0; w < 4; w++) got += sums[w * 8];
    return got == want;
}

/* A child of this process that uses the pool and destroys it. 0: all went well. */
static int child_of(dml_pool *pool)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30); /* what hangs is ended */
        const dml_scratch some = { 5000, 70 };
        bool ok = loops_are_right(pool) && dml_pool_reserve(pool, some) == DML_OK && loops_are_right(pool);
        for (int w = 0; w < dml_pool_threads(pool); w++) ok = ok && dml_pool_scratch(pool, w);
        dml_pool_destroy(pool);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    return child < 0 || waitpid(child, &status, 0) != child ? -1 : status;
}

static void children_use_and_destroy(void)
{
    for (int threads = 1; threads <= 4; threads++)
        for (int spin = -1; spin <= 1; spin++) {
            dml_pool_options options = { 0 };
            options.threads = threads;
            options.spin = spin * 300;
            dml_pool *pool = dml_pool_create(&options);
            CHECK(pool);
            CHECK_INT(child_of(pool), 0); /* before any loop */
            for (int i = 0; i < 8; i++) {
                CHECK(loops_are_right(pool));
                if (i % 2) nap(2u); /* the workers sleep */
                CHECK_INT(child_of(pool), 0);
            }
            CHECK(loops_are_right(pool));
            dml_pool_destroy(pool);
        }
}

#if !defined(DML_NO_THREADS) && !defined(SANITIZED)
#define CAN_FORK_ELSEWHERE
typedef struct loops {
    dml_pool *pool;
    int stop;
    bool wrong;
} loops;

static void *run_loops(void *argument)
{
    loops *l = (loops *)argument;
    while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) l->wrong |= !loops_are_right(l->pool);
    return NULL;
}

/* The thread that forks isn't the one that uses the pool: the child finds it in the middle of a loop, a mutex
   perhaps held by nobody. */
static void children_of_a_busy_pool(void)
{
    dml_pool_options options = { 0 };
    options.threads = 3;
    options.spin = -1;
    loops l = { dml_pool_create(&options), 0, false };
    pthread_t thread;
    CHECK(l.pool && pthread_create(&thread, NULL, run_loops, &l) == 0);
    for (int i = 0; i < 100; i++) CHECK_INT(child_of(l.pool), 0);
    __atomic_store_n(&l.stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK(!l.wrong);
    dml_pool_destroy(l.pool);
}
#endif

#else

static void children_use_and_destroy(void)
{
    SKIP("Windows has no fork()");
}

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
    counter c = { 0, 0, 0, 0 };
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
    RUN(a_pool_knows_the_machine);
    RUN(pinned_on_request);
    RUN(the_idle_sleep);
#ifndef DML_NO_THREADS
    RUN(all_threads_work_at_once);
    RUN(workers_have_parts);
#endif
    RUN(many_tiny_loops);
    RUN(loops_inside_loops);
    RUN(scratch_is_each_workers_own);
    RUN(a_host_lends_its_threads);
    RUN(each_failing_allocation_leaks_nothing);
    RUN(scratch_that_cannot_be_had);
    RUN(children_use_and_destroy);
#ifdef CAN_FORK_ELSEWHERE
    RUN(children_of_a_busy_pool);
#endif
#ifdef CAN_LIMIT_THREADS
    RUN(a_thread_that_cannot_start_leaks_nothing);
#endif
    return test_report(POOL_TEST_NAME);
}
