#ifndef DML_BASE_OS_THREAD_C
#define DML_BASE_OS_THREAD_C

#include "base/os_thread.h"

#include "base/windows.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

DML__LOCAL void dml__thread_yield(void)
{
    sched_yield();
}

DML__LOCAL long dml__process_id(void)
{
    return (long)getpid();
}
#else
DML__LOCAL void dml__thread_yield(void)
{
}

DML__LOCAL long dml__process_id(void)
{
    return 1; /* there is no fork() */
}
#endif

#if defined(__linux__) && defined(MADV_WIPEONFORK) && defined(MAP_ANONYMOUS)
DML__LOCAL const int *dml__mark_process(void)
{
    void *page = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, sizeof(int), MADV_WIPEONFORK) == 0) {
        *(int *)page = 1;
        return (const int *)page;
    }
    munmap(page, sizeof(int));
    return NULL;
}

DML__LOCAL void dml__unmark_process(const int *mark)
{
    if (mark) munmap((void *)(uintptr_t)mark, sizeof(int));
}
#else
DML__LOCAL const int *dml__mark_process(void)
{
    return NULL;
}

DML__LOCAL void dml__unmark_process(const int *mark)
{
    (void)mark;
}
#endif

DML__LOCAL void dml__thread_pin(int index)
{
#if defined(_WIN32)
    size_t mask = 0, everyones = 0;
    dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mask, &everyones);
    int count = 0;
    for (size_t left = mask; left; left &= left - 1) count++;
    if (count == 0) return;
    for (int skip = index % count; skip > 0; skip--) mask &= mask - 1;
    dml__windows_SetThreadAffinityMask(dml__windows_GetCurrentThread(), mask & (~mask + 1));
#elif defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0) return;
    int skip = index % CPU_COUNT(&set);
    size_t processor = 0;
    while (!CPU_ISSET(processor, &set) || skip-- > 0) processor++;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
#else
    (void)index;
#endif
}

#if !defined(DML_NO_THREADS) && defined(_WIN32)

#include <process.h>
#include <stdlib.h>

typedef struct dml__thread_start_argument {
    void (*run)(void *argument);
    void *argument;
} dml__thread_start_argument;

static unsigned __stdcall dml__thread_main(void *raw)
{
    const dml__thread_start_argument start = *(dml__thread_start_argument *)raw;
    free(raw);
    start.run(start.argument);
    return 0;
}

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    dml__thread_start_argument *start = (dml__thread_start_argument *)malloc(sizeof *start);
    if (!start) return false;
    start->run = run;
    start->argument = argument;
    *thread = (void *)_beginthreadex(NULL, 0, dml__thread_main, start, 0, NULL);
    if (!*thread) free(start);
    return *thread != NULL;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    dml__windows_WaitForSingleObject(*thread, DML__WINDOWS_FOREVER);
    dml__windows_CloseHandle(*thread);
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return (uintptr_t)dml__windows_GetCurrentThreadId();
}

/* An SRWLOCK and a CONDITION_VARIABLE are a pointer each, begin as NULL and own nothing. */
DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    *mutex = NULL;
    return true;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    dml__windows_AcquireSRWLockExclusive(mutex);
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    dml__windows_ReleaseSRWLockExclusive(mutex);
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    *cond = NULL;
    return true;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    dml__windows_WakeAllConditionVariable(cond);
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    const double longest = 1e9; /* milliseconds; who waits longer wakes for no reason, which is allowed */
    const double wanted = seconds * 1e3;
    unsigned long milliseconds = DML__WINDOWS_FOREVER;
    if (seconds >= 0) {
        milliseconds = (unsigned long)(wanted < longest ? wanted : longest);
        if ((double)milliseconds < wanted) milliseconds++;
    }
    return dml__windows_SleepConditionVariableSRW(cond, mutex, milliseconds, 0) || wanted > longest;
}

#elif !defined(DML_NO_THREADS)

#include <signal.h>
#include <stdlib.h>
#include <time.h>

typedef struct dml__thread_start_argument {
    void (*run)(void *argument);
    void *argument;
} dml__thread_start_argument;

static void *dml__thread_main(void *raw)
{
    const dml__thread_start_argument start = *(dml__thread_start_argument *)raw;
    free(raw);
    start.run(start.argument);
    return NULL;
}

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    /* malloc, not the caller's allocator: that one is promised to the calling thread alone. */
    dml__thread_start_argument *start = (dml__thread_start_argument *)malloc(sizeof *start);
    if (!start) return false;
    start->run = run;
    start->argument = argument;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(thread, NULL, dml__thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) free(start);
    return !failed;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    pthread_join(*thread, NULL);
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return (uintptr_t)pthread_self();
}

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    return pthread_mutex_init(mutex, NULL) == 0;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    pthread_mutex_destroy(mutex);
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes)) return false;
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    const bool ok = pthread_cond_init(cond, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return ok;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    pthread_cond_destroy(cond);
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    pthread_cond_broadcast(cond);
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    if (seconds < 0) return pthread_cond_wait(cond, mutex) == 0;
    struct timespec until;
#ifdef __APPLE__
    clock_gettime(CLOCK_REALTIME, &until);
#else
    clock_gettime(CLOCK_MONOTONIC, &until);
#endif
    const double fraction = (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec += (time_t)fraction;
    until.tv_nsec = (long)((fraction - (double)(time_t)fraction) * 1e9);
    return pthread_cond_timedwait(cond, mutex, &until) == 0;
}

#else

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    (void)thread, (void)run, (void)argument;
    return false;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    (void)thread;
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return 1;
}

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    *mutex = 0;
    return true;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    *cond = 0;
    return true;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    (void)cond, (void)mutex, (void)seconds;
    return false;
}

#endif

#endif
