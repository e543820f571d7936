#include "base/os_thread.h"

#include "base/clock.h"

#include "../test.h"

#ifndef DML_NO_THREADS

#ifndef _WIN32
#include <signal.h>
#endif

enum { THREADS = 4, ROUNDS = 2000 };

typedef struct counter {
    dml__mutex mutex;
    dml__cond cond;
    int count, ready;
    bool blocked;
} counter;

static void count_up(void *argument)
{
    counter *c = (counter *)argument;
    for (int i = 0; i < ROUNDS; i++) {
        dml__mutex_lock(&c->mutex);
        c->count++;
        dml__mutex_unlock(&c->mutex);
    }
}

static void a_mutex_excludes(void)
{
    counter c;
    dml__thread threads[THREADS];
    memset(&c, 0, sizeof c);
    CHECK(dml__mutex_init(&c.mutex));
    for (int t = 0; t < THREADS; t++) CHECK(dml__thread_start(&threads[t], count_up, &c));
    for (int t = 0; t < THREADS; t++) dml__thread_join(&threads[t]);
    CHECK_INT(c.count, THREADS * ROUNDS);
    dml__mutex_destroy(&c.mutex);
}

static void arrive_and_wait(void *argument)
{
    counter *c = (counter *)argument;
    dml__mutex_lock(&c->mutex);
    c->count++;
    dml__cond_signal_all(&c->cond);
    while (!c->ready) dml__cond_wait(&c->cond, &c->mutex, -1);
    c->count--;
    dml__mutex_unlock(&c->mutex);
}

static void a_signal_wakes_all(void)
{
    counter c;
    dml__thread threads[THREADS];
    memset(&c, 0, sizeof c);
    CHECK(dml__mutex_init(&c.mutex) && dml__cond_init(&c.cond));
    for (int t = 0; t < THREADS; t++) CHECK(dml__thread_start(&threads[t], arrive_and_wait, &c));
    dml__mutex_lock(&c.mutex);
    while (c.count < THREADS) CHECK(dml__cond_wait(&c.cond, &c.mutex, 60) || c.count == THREADS);
    c.ready = 1;
    dml__cond_signal_all(&c.cond);
    dml__mutex_unlock(&c.mutex);
    for (int t = 0; t < THREADS; t++) dml__thread_join(&threads[t]);
    CHECK_INT(c.count, 0);
    dml__cond_destroy(&c.cond);
    dml__mutex_destroy(&c.mutex);
}

static void a_wait_ends_in_time(void)
{
    counter c;
    CHECK(dml__mutex_init(&c.mutex) && dml__cond_init(&c.cond));
    dml__mutex_lock(&c.mutex);
    CHECK(!dml__cond_wait(&c.cond, &c.mutex, 0));
    const double start = dml_seconds();
    while (dml__cond_wait(&c.cond, &c.mutex, 0.02)) continue; /* it may wake for no reason */
    CHECK(dml_seconds() - start >= 0.019);
    dml__mutex_unlock(&c.mutex);
    dml__cond_destroy(&c.cond);
    dml__mutex_destroy(&c.mutex);
}

#ifndef _WIN32
static void look_at_signals(void *argument)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    ((counter *)argument)->blocked =
        sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGTERM) == 1;
}

static void signals_are_left_to_the_host(void)
{
    counter c;
    dml__thread thread;
    sigset_t before, after;
    memset(&c, 0, sizeof c);
    sigemptyset(&before), sigemptyset(&after);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK(dml__thread_start(&thread, look_at_signals, &c));
    dml__thread_join(&thread);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(c.blocked);
    CHECK_INT(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
}
#else
static void signals_are_left_to_the_host(void)
{
    SKIP("Windows has no signal masks");
}
#endif

int main(void)
{
    RUN(a_mutex_excludes);
    RUN(a_signal_wakes_all);
    RUN(a_wait_ends_in_time);
    RUN(signals_are_left_to_the_host);
    return test_report("base/os_thread");
}

#else

static void nothing(void *argument)
{
    (void)argument;
}

static void no_thread_starts_and_mutexes_do_nothing(void)
{
    dml__thread thread;
    dml__mutex mutex;
    CHECK(!dml__thread_start(&thread, nothing, NULL));
    CHECK(dml__mutex_init(&mutex));
    dml__mutex_lock(&mutex);
    dml__mutex_lock(&mutex);
    dml__mutex_unlock(&mutex);
}

int main(void)
{
    RUN(no_thread_starts_and_mutexes_do_nothing);
    return test_report("base/os_thread");
}

#endif
