/* jobs.h: the ranks of a job as processes, by the public interface alone. What a rank notes down lies in
   memory that it shares with the test, so that it is there even if the rank is killed. Jobs run side by side:
   prepare and start them all, then end each. */
#ifndef DML_TESTS_COMM_JOBS_H
#define DML_TESTS_COMM_JOBS_H

#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "comm/comm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../test.h"
#include "forms.h"
#include "port.h"

#define JOBS_UNUSED __attribute__((unused))
#define JOB_TEXT 1024

/* How much longer all takes where code is checked as it runs, or emulated: timeouts are as many times longer,
   since the rendezvous has them too, and what is repeated is repeated less. */
enum { JOB_SLOW = TEST_SLOW ? 3 : 1 };

typedef enum job_state { JOB_BEGUN, JOB_OPENED, JOB_RAN, JOB_CLOSED } job_state;

typedef struct job_rank {
    int rank, world;
    dml_comm_options options;
    void (*body)(struct job_rank *);
    const void *user;
    bool leaves;    /* ends without closing, as if it returned from main */
    dml_comm *comm; /* in the rank, while the body runs */
    /* What came of it. */
    job_state state;
    dml_status status, closed; /* after the body; by dml_comm_close_error, */
    char closing[JOB_TEXT];    /* which wrote this */
    char error[JOB_TEXT];      /* dml_comm_error after the body */
    char logged[JOB_TEXT];     /* the first error that was logged: also what shows at close only */
    int bad;                   /* wrong results */
    long long notes[8];        /* the body's own */
    double seconds;
    pid_t pid;
    bool hung;     /* had to be killed at the test's end */
    int exit_code; /* -1: by a signal */
} job_rank;

typedef struct job {
    int world;
    job_rank *ranks; /* (world), shared with them */
} job;

JOBS_UNUSED static void job_sleep(double seconds)
{
    const double until = dml_seconds() + seconds;
    for (double left = seconds; left > 0; left = until - dml_seconds()) { /* a signal cuts it short */
        struct timespec time;
        time.tv_sec = (time_t)left;
        time.tv_nsec = (long)((left - (double)time.tv_sec) * 1e9);
        nanosleep(&time, NULL);
    }
}

static void job_log(void *user, dml_log_level level, const char *message)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    job_rank *me = (job_rank *)user;
    pthread_mutex_lock(&lock);
    if (level == DML_LOG_ERROR && !me->logged[0]) snprintf(me->logged, sizeof me->logged, "%s", message);
    pthread_mutex_unlock(&lock);
}

JOBS_UNUSED static void job_prepare(job *job, int world, double timeout, void (*body)(job_rank *),
                                    const void *user)
{
    const int port = test_port();
    job->world = world;
    job->ranks = (job_rank *)mmap(NULL, (size_t)world * sizeof *job->ranks, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int rank = 0; rank < world; rank++) {
        job_rank *me = &job->ranks[rank];
        me->rank = rank;
        me->world = world;
        me->body = body;
        me->user = user;
        me->options.rank = rank;
        me->options.world_size = world;
        me->options.master_port = port;
        me->options.timeout_s = timeout * JOB_SLOW;
        me->options.log = job_log;
        me->options.log_user = me;
    }
}

/* In the rank's process. */
static void job_run_rank(job_rank *me)
{
    const double begin = dml_seconds();
    me->comm = dml_comm_open(&me->options);
    if (!dml_comm_status(me->comm)) {
        me->state = JOB_OPENED;
        me->body(me);
        me->state = JOB_RAN;
    }
    me->status = dml_comm_status(me->comm);
    snprintf(me->error, sizeof me->error, "%s", dml_comm_error(me->comm));
    me->seconds = dml_seconds() - begin;
    if (me->leaves) return;
    me->closed = dml_comm_close_error(me->comm, me->closing, sizeof me->closing);
    me->seconds = dml_seconds() - begin;
    me->state = JOB_CLOSED;
}

/* The last rank first. They are a process group of their own, that of rank world - 1. */
JOBS_UNUSED static void job_start(job *job)
{
    fflush(stdout);
    for (int rank = job->world - 1; rank >= 0; rank--) {
        job_rank *me = &job->ranks[rank];
        const pid_t pid = fork();
        if (pid == 0) {
            setpgid(0, job->ranks[job->world - 1].pid);
            alarm(300); /* should the test be killed */
            job_run_rank(me);
            _exit(0);
        }
        setpgid(pid, rank == job->world - 1 ? pid : job->ranks[job->world - 1].pid);
        me->pid = pid;
    }
}

/* Sends a signal to all ranks at once. */
JOBS_UNUSED static void job_signal(const job *job, int number)
{
    killpg(job->ranks[job->world - 1].pid, number);
}

/* True when all ranks have come that far within `seconds`. */
JOBS_UNUSED static bool job_reached(const job *job, job_state state, double seconds)
{
    const double until = dml_seconds() + seconds * JOB_SLOW;
    for (int rank = 0; rank < job->world;) {
        if (*(volatile job_state *)&job->ranks[rank].state >= state) {
            rank++;
        } else {
            if (dml_seconds() > until) return false;
            job_sleep(0.002);
        }
    }
    return true;
}

/* Waits for the ranks for at most `seconds`, and kills those that have hung. */
JOBS_UNUSED static void job_wait(job *job, double seconds)
{
    const double until = dml_seconds() + seconds * JOB_SLOW;
    for (int rank = 0; rank < job->world; rank++) {
        job_rank *me = &job->ranks[rank];
        int status = 0;
        pid_t ended;
        while ((ended = waitpid(me->pid, &status, WNOHANG)) == 0 && dml_seconds() < until) job_sleep(0.001);
        if (ended == 0) {
            me->hung = true;
            kill(me->pid, SIGKILL);
            waitpid(me->pid, &status, 0);
        }
        me->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
}

JOBS_UNUSED static void job_release(job *job)
{
    munmap(job->ranks, (size_t)job->world * sizeof *job->ranks);
}

/* What became of a rank in the end, and what it said of it. */
JOBS_UNUSED static dml_status job_status(const job_rank *me)
{
    return me->status ? me->status : me->closed;
}
JOBS_UNUSED static const char *job_error(const job_rank *me)
{
    return me->error[0] ? me->error : me->logged;
}

/* The rank came to its end by itself. */
#define CHECK_ENDED(name, me)                                                                                \
    CHECK_MESSAGE(!(me)->hung && (me)->exit_code == 0 && (me)->state >= JOB_RAN,                             \
                  "%s: rank %d of %d %s (state %d): %s", name, (me)->rank, (me)->world,                      \
                  (me)->hung ? "hung" : "ended badly", (int)(me)->state, job_error(me))

/* All ranks ended well and have no wrong results. */
JOBS_UNUSED static void check_job(const job *job, const char *name)
{
    for (int rank = 0; rank < job->world; rank++) {
        const job_rank *me = &job->ranks[rank];
        CHECK_ENDED(name, me);
        CHECK_MESSAGE(!job_status(me), "%s: rank %d of %d: %s", name, rank, job->world, job_error(me));
        CHECK_MESSAGE(job_status(me) || !me->bad, "%s: rank %d of %d: %d wrong results", name, rank,
                      job->world, me->bad);
    }
}

/* This rank ended by itself with this error (DML_OK: any) that says all of these (NULL: nothing more). */
JOBS_UNUSED static void check_rank_fails(const job_rank *me, const char *name, dml_status want,
                                         const char *part, const char *other_part)
{
    CHECK_ENDED(name, me);
    const dml_status status = job_status(me);
    CHECK_MESSAGE(status, "%s: rank %d of %d: all went well", name, me->rank, me->world);
    if (!status) return;
    CHECK_MESSAGE(!want || status == want, "%s: rank %d of %d: status %d, not %d: \"%s\"", name, me->rank,
                  me->world, (int)status, (int)want, job_error(me));
    CHECK_MESSAGE(!part || strstr(job_error(me), part), "%s: rank %d of %d: \"%s\" doesn't say \"%s\"", name,
                  me->rank, me->world, job_error(me), part);
    CHECK_MESSAGE(!other_part || strstr(job_error(me), other_part),
                  "%s: rank %d of %d: \"%s\" doesn't say \"%s\"", name, me->rank, me->world, job_error(me),
                  other_part);
}

JOBS_UNUSED static void check_job_fails(const job *job, const char *name, dml_status want, const char *part,
                                        const char *other_part)
{
    for (int rank = 0; rank < job->world; rank++)
        check_rank_fails(&job->ranks[rank], name, want, part, other_part);
}

/* ---- calls as data ---- */

typedef enum job_operation {
    JOB_NOTHING,
    JOB_ALL_REDUCE,
    JOB_BROADCAST,
    JOB_ALL_GATHER,
    JOB_REDUCE_SCATTER,
    JOB_REDUCE,
    JOB_GATHER,
    JOB_BARRIER,
    JOB_SEND,
    JOB_RECEIVE
} job_operation;

typedef struct job_call {
    job_operation operation;
    size_t count;
    dml_dtype dtype;
    dml_reduce_op op;
    int root; /* or the other rank */
} job_call;

/* `in` and `out`: (world * count) elements each; what works in one array does so in `in`. */
JOBS_UNUSED static dml_status job_make_call(dml_comm *comm, const job_call *call, void *in, void *out)
{
    switch (call->operation) {
    case JOB_ALL_REDUCE: return dml_comm_all_reduce(comm, in, call->count, call->dtype, call->op);
    case JOB_BROADCAST: return dml_comm_broadcast(comm, in, call->count, call->dtype, call->root);
    case JOB_ALL_GATHER: return dml_comm_all_gather(comm, in, call->count, call->dtype, out);
    case JOB_REDUCE_SCATTER:
        return dml_comm_reduce_scatter(comm, in, call->count, call->dtype, call->op, out);
    case JOB_REDUCE: return dml_comm_reduce(comm, in, call->count, call->dtype, call->op, call->root);
    case JOB_GATHER: return dml_comm_gather(comm, in, call->count, call->dtype, out, call->root);
    case JOB_BARRIER: return dml_comm_barrier(comm);
    case JOB_SEND: return JOB_SEND_NOW(comm, in, call->count, call->dtype, call->root);
    case JOB_RECEIVE: return JOB_RECEIVE_NOW(comm, in, call->count, call->dtype, call->root);
    case JOB_NOTHING: break;
    }
    return DML_OK;
}

/* As errors print it: "all_reduce(f32, 100, sum)". */
JOBS_UNUSED static const char *job_call_text(const job_call *call, char text[96])
{
    static const char *const types[] = { "f32", "f64", "i32", "i64", "u8", "bf16", "f16" };
    static const char *const ops[] = { "sum", "mean", "min", "max", "prod" };
    const char *type = types[call->dtype];
    switch (call->operation) {
    case JOB_ALL_REDUCE:
        snprintf(text, 96, "all_reduce(%s, %zu, %s)", type, call->count, ops[call->op]);
        break;
    case JOB_BROADCAST:
        snprintf(text, 96, "broadcast(%s, %zu, root %d)", type, call->count, call->root);
        break;
    case JOB_ALL_GATHER: snprintf(text, 96, "all_gather(%s, %zu)", type, call->count); break;
    case JOB_REDUCE_SCATTER:
        snprintf(text, 96, "reduce_scatter(%s, %zu, %s)", type, call->count, ops[call->op]);
        break;
    case JOB_REDUCE:
        snprintf(text, 96, "reduce(%s, %zu, %s, root %d)", type, call->count, ops[call->op], call->root);
        break;
    case JOB_GATHER: snprintf(text, 96, "gather(%s, %zu, root %d)", type, call->count, call->root); break;
    case JOB_BARRIER: snprintf(text, 96, "barrier()"); break;
    case JOB_SEND: snprintf(text, 96, "send(%s, %zu, to %d)", type, call->count, call->root); break;
    case JOB_RECEIVE: snprintf(text, 96, "receive(%s, %zu, from %d)", type, call->count, call->root); break;
    case JOB_NOTHING: text[0] = '\0'; break;
    }
    return text;
}

#endif
