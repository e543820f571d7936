/* os_thread.h: threads, mutexes and condition variables of the operating system; with DML_NO_THREADS the
   mutexes do nothing and no thread can be started. */
#ifndef DML_BASE_OS_THREAD_H
#define DML_BASE_OS_THREAD_H

#include "base/platform.h"

#ifndef DML_NO_THREADS
#ifdef _WIN32
typedef void *dml__thread; /* a HANDLE */
typedef void *dml__mutex;  /* an SRWLOCK */
typedef void *dml__cond;   /* a CONDITION_VARIABLE */
#else
#include <pthread.h>
typedef pthread_t dml__thread;
typedef pthread_mutex_t dml__mutex;
typedef pthread_cond_t dml__cond;
#endif
#else
typedef int dml__thread;
typedef int dml__mutex;
typedef int dml__cond;
#endif

/* False when the thread can't be had. A thread has every signal blocked: signals are the host's business. */
DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument);
DML__LOCAL void dml__thread_join(dml__thread *thread);

/* Keeps the calling thread on the `index`th processor of its affinity mask, counted round and round. Nothing
   happens where that can't be had. */
DML__LOCAL void dml__thread_pin(int index);

/* Lets another thread or process that wants this processor have it; returns at once where none does. */
DML__LOCAL void dml__thread_yield(void);

/* A number that no other thread of the process has, never 0. */
DML__LOCAL uintptr_t dml__thread_self(void);

/* The calling process, by which a child of fork() finds out that threads haven't come along. */
DML__LOCAL long dml__process_id(void);

/* The same without a call of the system each time: a word that isn't 0, but is in a child of fork(). NULL
   where that can't be had. */
DML__LOCAL const int *dml__mark_process(void);
DML__LOCAL void dml__unmark_process(const int *mark); /* NULL is fine */

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex);
DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex);
DML__LOCAL void dml__mutex_lock(dml__mutex *mutex);
DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex);

/* Waits use the monotonic clock. `seconds` < 0 waits without end; false means that the time ran out. */
DML__LOCAL bool dml__cond_init(dml__cond *cond);
DML__LOCAL void dml__cond_destroy(dml__cond *cond);
DML__LOCAL void dml__cond_signal_all(dml__cond *cond);
DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds);

#endif
