/* What goes wrong ends on every rank, in time, with a sentence that names who is to blame. */
#include "ranks.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <sys/wait.h>

/* ---- calls that don't match ---- */

static void different_operation_body(test_rank *me)
{
    float x[100] = { 0 };
    if (me->rank == 1)
        dml_comm_all_reduce(me->comm, x, 100, DML_F32, DML_SUM);
    else
        dml_comm_broadcast(me->comm, x, 10, DML_F32, 0);
    dml_comm_barrier(me->comm); /* a root may be done before the others find out */
}

static void different_count_body(test_rank *me)
{
    float x[101] = { 0 };
    dml_comm_all_reduce(me->comm, x, me->rank == 1 ? 101 : 100, DML_F32, DML_SUM);
}

static void different_dtype_body(test_rank *me)
{
    double x[10] = { 0 };
    dml_comm_all_gather(me->comm, x, 1, me->rank == 1 ? DML_F64 : DML_I64, x + 2);
}

static void different_op_body(test_rank *me)
{
    double x[10] = { 0 };
    dml_comm_reduce_scatter(me->comm, x, 1, DML_F64, me->rank == 1 ? DML_MAX : DML_MEAN, x + 4);
}

static void different_root_body(test_rank *me)
{
    double x[10] = { 0 };
    dml_comm_broadcast(me->comm, x, 10, DML_F64, me->rank == 1 ? 0 : 2);
    dml_comm_barrier(me->comm);
}

static void different_pair_body(test_rank *me)
{
    int32_t x[10] = { 0 };
    if (me->rank == 0)
        dml_comm_send(me->comm, x, 10, DML_I32, 1, 0);
    else if (me->rank == 1)
        dml_comm_receive(me->comm, x, 9, DML_I32, 0, 0, NULL);
    dml_comm_barrier(me->comm);
}

/* Rank 0 leaves out a barrier. */
static void left_out_body(test_rank *me)
{
    float x = 0;
    if (me->rank) dml_comm_barrier(me->comm);
    dml_comm_all_reduce(me->comm, &x, 1, DML_F32, DML_SUM);
}

static void check_mismatch(void (*body)(test_rank *), const char *part, const char *other_part)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 20, body, NULL);
    ranks_run(ranks, 3);
    for (int rank = 0; rank < 3; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ranks[rank].error, part);
        CHECK_CONTAINS(ranks[rank].error, other_part);
        CHECK(ranks[rank].seconds < 15);
    }
}

static void mismatches(void)
{
    check_mismatch(different_operation_body, "called all_reduce(f32, 100, sum)",
                   "called broadcast(f32, 10, root 0)");
    check_mismatch(different_count_body, "called all_reduce(f32, 101, sum)",
                   "called all_reduce(f32, 100, sum)");
    check_mismatch(different_dtype_body, "called all_gather(f64, 1)", "called all_gather(i64, 1)");
    check_mismatch(different_op_body, "called reduce_scatter(f64, 1, max)",
                   "called reduce_scatter(f64, 1, mean)");
    check_mismatch(different_root_body, "called broadcast(f64, 10, root 0)",
                   "called broadcast(f64, 10, root 2)");
    check_mismatch(different_pair_body, "called send(i32, 10, to 1)", "called receive(i32, 9, from 0)");
    check_mismatch(left_out_body, "called barrier()", "called all_reduce(f32, 1, sum)");
}

static void bad_argument_body(test_rank *me)
{
    float x[4] = { 0 };
    const int wrong = *(const int *)me->user;
    if (me->rank == 0) {
        dml_comm_barrier(me->comm);
        return;
    }
    if (wrong == 0) dml_comm_broadcast(me->comm, x, 4, DML_F32, 2);
    if (wrong == 1) dml_comm_all_reduce(me->comm, x, 4, (dml_dtype)99, DML_SUM);
    if (wrong == 2) dml_comm_all_reduce(me->comm, x, 4, DML_F32, (dml_reduce_op)77);
    if (wrong == 3) dml_comm_all_reduce(me->comm, NULL, 4, DML_F32, DML_SUM);
    if (wrong == 4) dml_comm_all_reduce(me->comm, x, SIZE_MAX / 2, DML_F32, DML_SUM);
    if (wrong == 5) dml_comm_send(me->comm, x, 4, DML_F32, 1, 0);
    if (wrong == 6) dml_comm_all_gather(me->comm, x, 4, (dml_dtype)99, x);
    if (wrong == 7)
        dml_comm_wait(me->comm, dml_comm_all_reduce_start(me->comm, x, 4, (dml_dtype)-1, DML_SUM));
    /* It sticks. */
    me->bad += dml_comm_barrier(me->comm) != DML_ERROR_ARGUMENT;
    me->bad += dml_comm_all_reduce_start(me->comm, x, 4, DML_F32, DML_SUM) != NULL;
}

static void bad_arguments(void)
{
    static const char *const parts[] = {
        "broadcast(f32, 4, root 2)",  "dml_dtype",    "DML_PROD",  "NULL for its data",
        "more than fits into memory", "another rank", "dml_dtype", "all_reduce(?, 4, sum)"
    };
    for (int wrong = 0; wrong < 8; wrong++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 20, bad_argument_body, &wrong);
        ranks_run(ranks, 2);
        for (int rank = 0; rank < 2; rank++) {
            CHECK_INT(ranks[rank].status, DML_ERROR_ARGUMENT);
            CHECK_CONTAINS(ranks[rank].error, parts[wrong]);
            CHECK_CONTAINS(ranks[rank].error, "rank 1");
            CHECK_INT(ranks[rank].bad, 0);
        }
    }
}

static void too_many_requests_body(test_rank *me)
{
    float x[5] = { 0 };
    dml_request *requests[5];
    for (int i = 0; i < 5; i++) requests[i] = dml_comm_all_reduce_start(me->comm, x + i, 1, DML_F32, DML_SUM);
    me->bad += !requests[3] || requests[4];
    dml_comm_barrier(me->comm);
}

static void wait_twice_body(test_rank *me)
{
    float x = 0;
    dml_request *request = dml_comm_all_reduce_start(me->comm, &x, 1, DML_F32, DML_SUM);
    me->bad += dml_comm_wait(me->comm, request) != DML_OK;
    if (me->rank == 0) me->bad += dml_comm_wait(me->comm, request) != DML_ERROR_STATE;
    dml_comm_barrier(me->comm);
}

static void misused_requests(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, too_many_requests_body, NULL);
    for (int rank = 0; rank < 2; rank++) ranks[rank].options.max_requests = 4;
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_STATE);
        CHECK_CONTAINS(ranks[rank].error, "started all_reduce(f32, 1, sum) while all 4 requests were out");
        CHECK_CONTAINS(ranks[rank].error, "dml_comm_wait_all");
    }
    ranks_prepare(ranks, 2, 20, wait_twice_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++)
        CHECK_CONTAINS(ranks[rank].error, "rank 0 waited for a request that isn't out: it waited twice");
}

/* Starts requests and forgets them: 256 go, and 256 more once they have been taken back. */
static void forgotten_requests_body(test_rank *me)
{
    enum { MOST = 256 };
    static float all[2][MOST];
    float *x = all[me->rank];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MOST; i++) x[i] = (float)(i + round);
        for (int i = 0; i < MOST; i++)
            me->bad += !dml_comm_all_reduce_start(me->comm, x + i, 1, DML_F32, DML_SUM);
        me->bad += dml_comm_wait_all(me->comm) != DML_OK;
        for (int i = 0; i < MOST; i++) me->bad += x[i] != 2 * (float)(i + round);
    }
    me->bad += dml_comm_wait_all(me->comm) != DML_OK; /* nothing is out */
    for (int i = 0; i < MOST; i++)
        me->bad += !dml_comm_all_reduce_start(me->comm, x + i, 1, DML_F32, DML_SUM);
    dml_comm_barrier(me->comm); /* who is late in it may hear already of what comes */
    me->bad += dml_comm_all_reduce_start(me->comm, x, 1, DML_F32, DML_SUM) != NULL;
    me->bad += dml_comm_wait_all(me->comm) != DML_ERROR_STATE;
}

static void forgotten_requests(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, forgotten_requests_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].bad, 0);
        CHECK_INT(ranks[rank].status, DML_ERROR_STATE);
        CHECK_CONTAINS(ranks[rank].error, "all 256 requests were out");
    }
    CHECK_INT(dml_comm_wait_all(NULL), DML_ERROR_ARGUMENT);
}

static dml_comm *open_alone(int max_requests)
{
    const dml_comm_options options = { .world_size = 1, .max_requests = max_requests };
    return dml_comm_open(&options);
}

/* A request that was waited for isn't taken for the next one that is started. */
static void requests_waited_for_too_late(void)
{
    dml_comm *comm = open_alone(3);
    float x = 1;
    dml_request *first = dml_comm_all_reduce_start(comm, &x, 1, DML_F32, DML_SUM);
    CHECK(!dml_comm_wait(comm, first) && dml_comm_done(comm, first));
    dml_request *second = dml_comm_all_reduce_start(comm, &x, 1, DML_F32, DML_SUM);
    dml_request *third = dml_comm_all_reduce_start(comm, &x, 1, DML_F32, DML_SUM);
    CHECK(second && third && second != first && third != first && second != third);
    CHECK_INT(dml_comm_wait(comm, first), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_comm_error(comm), "rank 0 waited for a request that isn't out: it waited twice");
    CHECK_INT(dml_comm_wait(comm, third), DML_OK); /* they had run */
    CHECK_INT(dml_comm_wait(comm, second), DML_OK);
    CHECK_INT(dml_comm_wait(comm, second), DML_ERROR_STATE);
    dml_comm_close(comm);
    comm = open_alone(3);
    first = dml_comm_all_reduce_start(comm, &x, 1, DML_F32, DML_SUM);
    CHECK_INT(dml_comm_wait_all(comm), DML_OK);
    CHECK_INT(dml_comm_wait(comm, first), DML_ERROR_STATE);
    dml_comm_close(comm);
}

/* Whatever the order in which they come back, each is given out once. */
static void requests_in_any_order(void)
{
    enum { MOST = 5 };
    dml_comm *comm = open_alone(MOST);
    dml_request *out[MOST] = { NULL };
    float x[MOST];
    unsigned state = 3;
    for (int round = 0; round < 2000; round++) {
        const int i = (int)(test_random(&state) % MOST);
        if (out[i]) {
            CHECK_INT(dml_comm_wait(comm, out[i]), DML_OK);
            out[i] = NULL;
        } else {
            out[i] = dml_comm_all_reduce_start(comm, &x[i], 1, DML_F32, DML_SUM);
            CHECK(out[i]);
            for (int k = 0; k < MOST; k++) CHECK(k == i || out[k] != out[i]);
        }
    }
    CHECK_STRING(dml_comm_error(comm), "");
    dml_comm_close(comm);
}

static void requests_of_others(void)
{
    static const char part[] = "rank 0 waited for a request that another communicator gave out";
    for (int kind = 0; kind < 4; kind++) {
        dml_comm *mine = open_alone(2), *other = open_alone(2);
        float x = 1;
        dml_request *request = dml_comm_all_reduce_start(other, &x, 1, DML_F32, DML_SUM), *wrong = request;
        if (kind == 1) wrong = mine->job->requests + 2; /* just past its own */
        if (kind == 2) wrong = (dml_request *)(void *)((char *)mine->job->requests - sizeof *wrong);
        if (kind == 3)
            wrong = (dml_request *)(void *)((char *)(mine->job->requests + 1) + 8); /* inside of one */
        CHECK(dml_comm_done(mine, wrong));
        CHECK_INT(dml_comm_wait(mine, wrong), DML_ERROR_ARGUMENT);
        CHECK_STRING(dml_comm_error(mine), part);
        CHECK_INT(dml_comm_wait(other, request), DML_OK);
        CHECK_STRING(dml_comm_error(other), "");
        dml_comm_close(mine);
        dml_comm_close(other);
    }
}

/* ---- ranks that leave, die, freeze, or do something else ---- */

static void leaves_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 1) return;
    dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
}

static void a_rank_that_closes(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 20, leaves_body, NULL);
    ranks_run(ranks, 4);
    for (int rank = 0; rank < 4; rank++) {
        if (rank == 1) continue;
        CHECK_INT(ranks[rank].status, DML_ERROR_PEER);
        CHECK_CONTAINS(ranks[rank].error, "rank 1 closed its communicator while rank");
        CHECK(ranks[rank].seconds < 15);
    }
}

/* Rank 1 is alive and its communicator open, but it computes for too long. */
static void busy_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 1) ranks_sleep(2);
    dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
}

static void a_rank_that_is_busy(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 0.4, busy_body, NULL);
    ranks_run(ranks, 4);
    for (int rank = 0; rank < 4; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
        CHECK_CONTAINS(ranks[rank].error,
                       "rank 1 of 4 took no part in all_reduce(f32, 10, sum) within 0.4 s");
    }
}

/* Half of the ranks come late: the deadline of the first must not make them look guilty. */
static void late_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 2) ranks_sleep(2);
    if (me->rank % 2) ranks_sleep(0.2);
    dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
}

static void late_ranks_and_a_busy_one(void)
{
    test_rank ranks[6];
    ranks_prepare(ranks, 6, 0.4, late_body, NULL);
    ranks_run(ranks, 6);
    for (int rank = 0; rank < 6; rank++)
        CHECK_CONTAINS(ranks[rank].error, "rank 2 of 6 took no part in all_reduce(f32, 10, sum)");
}

static void circle_body(test_rank *me)
{
    float x[10] = { 0 };
    if (me->rank == 2)
        dml_comm_barrier(me->comm);
    else
        dml_comm_receive(me->comm, x, 10, DML_F32, 1 - me->rank, 0, NULL);
}

static void ranks_that_wait_for_each_other(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 0.3, circle_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
        CHECK_CONTAINS(ranks[rank].error, "wait for each other");
        CHECK_CONTAINS(ranks[rank].error, "receive(f32, 10, from");
    }
}

/* A rank in a process of its own: opens, does rounds of all-reduces, and writes its error into the pipe. */
static void process_rank(const test_rank *plan, int out)
{
    enum { N = 200000 };
    float *x = (float *)calloc(N, sizeof *x);
    dml_comm *comm = dml_comm_open(&plan->options);
    char line[600];
    dml_comm_all_reduce(comm, x, N, DML_F32, DML_SUM);
    snprintf(line, sizeof line, "r%d\n", plan->rank);
    (void)!write(out, line, strlen(line));
    while (!dml_comm_status(comm)) {
        dml_request *a = dml_comm_all_reduce_start(comm, x, N, DML_F32, DML_MAX);
        dml_request *b = dml_comm_all_reduce_start(comm, x, 10, DML_F32, DML_MAX);
        dml_comm_wait(comm, a);
        dml_comm_wait(comm, b);
    }
    snprintf(line, sizeof line, "e%d %s\n", plan->rank, dml_comm_error(comm));
    (void)!write(out, line, strlen(line));
    dml_comm_close(comm);
    free(x);
}

typedef struct process_job {
    pid_t pids[4];
    int pipe;
    char text[8192]; /* all that its ranks wrote */
    size_t bytes;
} process_job;

static void start_process_job(process_job *job, double timeout)
{
    test_rank ranks[4];
    int ends[2];
    memset(job, 0, sizeof *job);
    ranks_prepare(ranks, 4, timeout, NULL, NULL);
    CHECK(pipe(ends) == 0);
    for (int rank = 0; rank < 4; rank++) {
        job->pids[rank] = fork();
        if (job->pids[rank] == 0) {
            close(ends[0]);
            process_rank(&ranks[rank], ends[1]);
            _exit(0);
        }
    }
    close(ends[1]);
    job->pipe = ends[0];
}

/* Reads until `part` has come `times` times or all ranks have ended. */
static int read_process_job(process_job *job, const char *part, int times)
{
    for (;;) {
        int found = 0;
        for (const char *at = job->text; (at = strstr(at, part)) != NULL; at++) found++;
        if (found >= times || job->bytes + 1 >= sizeof job->text) return found;
        const ssize_t n = read(job->pipe, job->text + job->bytes, sizeof job->text - 1 - job->bytes);
        if (n <= 0) return found;
        job->bytes += (size_t)n;
    }
}

static void check_process_job(process_job *job, int victim, const char *sentence)
{
    CHECK_INT(read_process_job(job, "\ne", 3), 3);
    for (int rank = 0; rank < 4; rank++) {
        char begin[16];
        snprintf(begin, sizeof begin, "\ne%d ", rank);
        const char *line = strstr(job->text, begin);
        CHECK_MESSAGE((line != NULL) == (rank != victim), "rank %d of a job without rank %d: %s", rank,
                      victim, job->text);
        if (line) CHECK_MESSAGE(strncmp(line + 4, sentence, strlen(sentence)) == 0, "%s", line);
    }
}

static void end_process_job(process_job *job)
{
    for (int rank = 0; rank < 4; rank++) {
        kill(job->pids[rank], SIGKILL);
        waitpid(job->pids[rank], NULL, 0);
    }
    close(job->pipe);
}

/* One job for each victim, all at once, each while its ranks are busy. */
static void check_signalled(int number, const char *format)
{
    process_job jobs[4];
    const double timeout = number == SIGSTOP ? 1.0 : 20;
    for (int victim = 0; victim < 4; victim++) start_process_job(&jobs[victim], timeout);
    for (int victim = 0; victim < 4; victim++) CHECK_INT(read_process_job(&jobs[victim], "r", 4), 4);
    ranks_sleep(0.05);
    const double begin = dml_seconds();
    for (int victim = 0; victim < 4; victim++) kill(jobs[victim].pids[victim], number);
    for (int victim = 0; victim < 4; victim++) {
        char sentence[128];
        snprintf(sentence, sizeof sentence, format, victim);
        check_process_job(&jobs[victim], victim, sentence);
    }
    CHECK(dml_seconds() - begin < 10);
    for (int victim = 0; victim < 4; victim++) end_process_job(&jobs[victim]);
}

static void a_rank_that_is_killed(void)
{
    check_signalled(SIGKILL, "rank %d of 4 died: its connection ended without a goodbye");
}

static void a_rank_that_is_frozen(void)
{
    check_signalled(SIGSTOP, "rank %d of 4 took no part in all_reduce(f32, ");
}

/* ---- the Nth socket call, the Nth allocation ---- */

/* The calls of the thread that is to suffer are counted; the Nth fails. */
static __thread bool suffers;
static int countdown, opened; /* atomic; opened: descriptors */

static bool strikes(void)
{
    if (!suffers || __atomic_sub_fetch(&countdown, 1, __ATOMIC_SEQ_CST) != 0) return false;
    errno = EIO;
    return true;
}

static const dml__socket_calls *real(void)
{
    return dml__system_sockets();
}

static int count_opened(int fd)
{
    if (fd >= 0) __atomic_fetch_add(&opened, 1, __ATOMIC_SEQ_CST);
    return fd;
}

static int faulty_open(int family)
{
    return strikes() ? -1 : count_opened(real()->open(family));
}
static int faulty_set_option(int fd, int level, int option, int value)
{
    return strikes() ? -1 : real()->set_option(fd, level, option, value);
}
static int faulty_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return strikes() ? -1 : real()->bind(fd, address, bytes);
}
static int faulty_listen(int fd, int backlog)
{
    return strikes() ? -1 : real()->listen(fd, backlog);
}
static int faulty_accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return strikes() ? -1 : count_opened(real()->accept(fd, address, bytes));
}
static int faulty_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return strikes() ? -1 : real()->connect(fd, address, bytes);
}
static int faulty_error(int fd)
{
    return strikes() ? -1 : real()->error(fd);
}
static int faulty_own_address(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return strikes() ? -1 : real()->own_address(fd, address, bytes);
}
static int faulty_poll(struct pollfd *polls, nfds_t count, int milliseconds)
{
    return strikes() ? -1 : real()->poll(polls, count, milliseconds);
}
static ssize_t faulty_send(int fd, const struct msghdr *message, int flags)
{
    return strikes() ? -1 : real()->send(fd, message, flags);
}
static ssize_t faulty_receive(int fd, struct msghdr *message, int flags)
{
    return strikes() ? -1 : real()->receive(fd, message, flags);
}
static int faulty_shutdown(int fd)
{
    return strikes() ? -1 : real()->shutdown(fd);
}
static int faulty_pair(int fds[2])
{
    if (strikes() || real()->pair(fds) < 0) return -1;
    __atomic_fetch_add(&opened, 2, __ATOMIC_SEQ_CST);
    return 0;
}
static int faulty_close(int fd)
{
    __atomic_fetch_sub(&opened, 1, __ATOMIC_SEQ_CST);
    return real()->close(fd);
}
static double faulty_confirmed(int fd)
{
    return strikes() ? -1 : real()->confirmed(fd);
}
static int faulty_random(void *out, size_t bytes)
{
    return strikes() ? -1 : real()->random(out, bytes);
}
static int faulty_resolve(const char *host, struct addrinfo **list)
{
    return strikes() ? EAI_FAIL : real()->resolve(host, list);
}

static const dml__socket_calls faulty = {
    faulty_open,     faulty_set_option,  faulty_bind, faulty_listen,    faulty_accept,  faulty_connect,
    faulty_error,    faulty_own_address, faulty_poll, faulty_confirmed, faulty_send,    faulty_receive,
    faulty_shutdown, faulty_close,       faulty_pair, faulty_random,    faulty_resolve,
};

static void small_job_body(test_rank *me)
{
    float x[5] = { 1, 1, 1, 1, 1 };
    dml_comm_all_reduce(me->comm, x, 5, DML_F32, DML_SUM);
    dml_comm_barrier(me->comm);
    if (!dml_comm_status(me->comm)) me->bad += x[0] != (float)me->world || x[4] != (float)me->world;
}

static void *suffering_thread(void *argument)
{
    suffers = true;
    return ranks_thread(argument);
}

/* Runs a job of 3 in which the Nth call of one rank fails; false when it doesn't make that many. */
static bool run_with_fault(int victim, int nth, int *errors)
{
    test_rank ranks[3];
    pthread_t threads[3];
    ranks_prepare(ranks, 3, 0.1, small_job_body, NULL);
    __atomic_store_n(&countdown, nth, __ATOMIC_SEQ_CST);
    for (int rank = 0; rank < 3; rank++) {
        ranks[rank].sockets = &faulty;
        pthread_create(&threads[rank], NULL, rank == victim ? suffering_thread : ranks_thread, &ranks[rank]);
    }
    for (int rank = 0; rank < 3; rank++) pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < 3; rank++) {
        CHECK_INT(ranks[rank].bad, 0);
        CHECK_MESSAGE((ranks[rank].status != DML_OK) == (ranks[rank].error[0] != '\0'),
                      "status %d without a sentence", ranks[rank].status);
        CHECK_MESSAGE(ranks[rank].seconds < 10, "call %d of rank %d: took %g s", nth, victim,
                      ranks[rank].seconds);
        *errors += ranks[rank].status != DML_OK;
    }
    CHECK_MESSAGE(__atomic_load_n(&opened, __ATOMIC_SEQ_CST) == 0,
                  "call %d of rank %d: %d descriptors leaked", nth, victim, opened);
    return __atomic_load_n(&countdown, __ATOMIC_SEQ_CST) <= 0;
}

static void every_socket_call_fails_once(void)
{
    /* Rank 0 is only come to, rank 1 comes and is come to. */
    for (int victim = 0; victim < 2; victim++) {
        int errors = 0, nth = 1;
        while (run_with_fault(victim, nth, &errors) && nth < 500) nth++;
        CHECK_MESSAGE(nth > 20 && nth < 500, "rank %d makes %d calls", victim, nth);
        CHECK(errors > 0);
    }
}

/* What was sent before lies confirmed for long, and questions are on their way until then. */
static double travels_until;

static double travelling_confirmed(int fd)
{
    (void)fd;
    return dml_seconds() < travels_until ? 60 : -1;
}

typedef struct absence {
    double travels, away; /* seconds from the last barrier on: a question to rank 1, and rank 1 */
} absence;

static void absent_body(test_rank *me)
{
    const absence *a = (const absence *)me->user;
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) travels_until = dml_seconds() + a->travels;
    if (me->rank == 1) ranks_sleep(a->away);
    dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
}

static double wait_for_absent(double timeout, const absence *a, dml_status wanted)
{
    test_rank ranks[2];
    dml__socket_calls travelling = *real();
    travelling.confirmed = travelling_confirmed;
    ranks_prepare(ranks, 2, timeout, absent_body, (void *)(uintptr_t)a);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].options.transport = "tcp";
        ranks[rank].sockets = &travelling;
    }
    ranks_run(ranks, 2);
    CHECK_MESSAGE(ranks[0].status == wanted, "status %d: %s", ranks[0].status, ranks[0].error);
    if (wanted) CHECK_CONTAINS(ranks[0].error, "rank 1 of 2 took no part in all_reduce(f32, 10, sum)");
    return ranks[0].seconds;
}

/* A question that is under way for longer than an answer may take isn't held against whom it goes to, who
   then has as long to answer as others; but not for ever. With a timeout of 2 s it is asked at 2.0, and
   looked for at 2.5, 3.0 and 3.5; of 1 s, asked at 1.0 and given up at 2.0. */
static void questions_on_their_way(void)
{
    const absence late = { 2.75, 3.25 }, for_ever = { 60, 3.5 };
    wait_for_absent(2, &late, DML_OK);
    const double seconds = wait_for_absent(1, &for_ever, DML_ERROR_TIMEOUT);
    CHECK_MESSAGE(seconds > 1.9 && seconds < 3.4, "%g s", seconds);
}

static __thread int allocations_left;
static int live_blocks; /* atomic */

static void *failing_allocate(void *user, size_t bytes)
{
    (void)user;
    if (suffers && --allocations_left < 0) return NULL;
    __atomic_fetch_add(&live_blocks, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}

static void failing_release(void *user, void *memory)
{
    (void)user;
    __atomic_fetch_sub(&live_blocks, 1, __ATOMIC_SEQ_CST);
    free(memory);
}

static void every_allocation_fails_once(void)
{
    suffers = true;
    int nth = 0;
    for (dml_status status = DML_ERROR_MEMORY; status == DML_ERROR_MEMORY && nth < 50; nth++) {
        allocations_left = nth;
        dml_comm_options options = { .world_size = 2, .timeout_s = 0.05, .master_port = test_port() };
        options.allocator = (dml_allocator){ failing_allocate, failing_release, NULL };
        dml_comm *comm = dml_comm_open(&options);
        status = comm ? dml_comm_status(comm) : DML_ERROR_MEMORY;
        CHECK(dml_comm_error(comm)[0] != '\0');
        dml_comm_close(comm);
        CHECK_INT(live_blocks, 0);
    }
    CHECK(nth > 8 && nth < 50);
    suffers = false;
}

int main(void)
{
    RUN(mismatches);
    RUN(bad_arguments);
    RUN(misused_requests);
    RUN(forgotten_requests);
    RUN(requests_waited_for_too_late);
    RUN(requests_in_any_order);
    RUN(requests_of_others);
    RUN(a_rank_that_closes);
    RUN(a_rank_that_is_busy);
    RUN(late_ranks_and_a_busy_one);
    RUN(ranks_that_wait_for_each_other);
    RUN(a_rank_that_is_killed);
    RUN(a_rank_that_is_frozen);
    RUN(questions_on_their_way);
    RUN(every_socket_call_fails_once);
    RUN(every_allocation_fails_once);
    return test_report("comm/failure");
}
