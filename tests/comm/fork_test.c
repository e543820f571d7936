/* A rank that forks: the child may let go of the communicator and nothing else, and the job goes on. */
#include "ranks.h"

#include <poll.h>
#include <sys/wait.h>

#include "net/tcp.h"

enum { N = 200000 };

/* What this process did since it was last set to 0; a fork's child has its own. */
static int sent, received, closed, live;

static ssize_t counting_send(int fd, const struct msghdr *message, int flags)
{
    __atomic_fetch_add(&sent, 1, __ATOMIC_SEQ_CST);
    return sendmsg(fd, message, flags);
}

static ssize_t counting_receive(int fd, struct msghdr *message, int flags)
{
    __atomic_fetch_add(&received, 1, __ATOMIC_SEQ_CST);
    return recvmsg(fd, message, flags);
}

static int counting_close(int fd)
{
    __atomic_fetch_add(&closed, 1, __ATOMIC_SEQ_CST);
    return close(fd);
}

static void *counting_allocate(void *user, size_t bytes)
{
    (void)user;
    __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}

static void counting_release(void *user, void *memory)
{
    (void)user;
    if (memory) __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
    free(memory);
}

/* In the child. */
static void check_copy(dml_comm *comm, dml_request *request, pid_t parent, int world)
{
    float x[3] = { 1, 2, 3 };
    char part[128];
    sent = received = closed = 0;
    CHECK_INT(dml_comm_all_reduce(comm, x, 3, DML_F32, DML_SUM), DML_ERROR_STATE);
    CHECK_INT(dml_comm_broadcast(comm, x, 3, DML_F32, 0), DML_ERROR_STATE);
    CHECK_INT(dml_comm_all_gather(comm, x, 1, DML_F32, x), DML_ERROR_STATE);
    CHECK_INT(dml_comm_reduce_scatter(comm, x, 1, DML_F32, DML_SUM, x), DML_ERROR_STATE);
    CHECK_INT(dml_comm_barrier(comm), DML_ERROR_STATE);
    CHECK_INT(dml_comm_send(comm, x, 3, DML_F32, 0, 0), DML_ERROR_STATE);
    CHECK_INT(dml_comm_receive(comm, x, 3, DML_F32, 0, 0, NULL), DML_ERROR_STATE);
    CHECK(!dml_comm_all_reduce_start(comm, x, 3, DML_F32, DML_SUM));
    CHECK(dml_comm_done(comm, request));
    CHECK_INT(dml_comm_wait(comm, request), DML_ERROR_STATE);
    CHECK_INT(dml_comm_wait_all(comm), DML_ERROR_STATE);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_STATE);
    snprintf(part, sizeof part, "was opened in process %ld and called in process %ld, after a fork",
             (long)parent, (long)getpid());
    CHECK_CONTAINS(dml_comm_error(comm), part);
    CHECK_CONTAINS(dml_comm_error(comm), "open one in each process");
    CHECK_INT(dml_comm_world_size(comm), world);
    CHECK(x[0] == 1 && x[1] == 2 && x[2] == 3);
    dml_comm_close(comm);
    CHECK_INT(sent, 0);
    CHECK_INT(received, 0);
    CHECK_INT(closed, 6 * (world > 1)); /* two connections to each of two ranks, and what wakes it */
    CHECK_INT(live, 0);
}

/* Forks a child that does the above; waits for its end. */
static void fork_child(dml_comm *comm, dml_request *request, int world)
{
    const pid_t parent = getpid();
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        test__ok = true;
        check_copy(comm, request, parent, world);
        fflush(stdout);
        _exit(test__ok ? 0 : 1);
    }
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %d", status);
}

static void check_sum(const float *x, float want)
{
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += x[i] != want;
    CHECK_INT(wrong, 0);
}

static void fill_with(float *x, float value)
{
    for (int i = 0; i < N; i++) x[i] = value;
}

/* One rank of three, in a process of its own; rank 1 is the one that forks. */
static void forking_rank(test_rank *me)
{
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.send = counting_send;
    sockets.receive = counting_receive;
    sockets.close = counting_close;
    me->options.allocator.allocate = counting_allocate;
    me->options.allocator.release = counting_release;
    me->options.transport = "tcp";
    me->options.algorithm = "ring";
    dml_comm *comm = dml__comm_open_on(&me->options, &sockets);
    CHECK_STRING(dml_comm_error(comm), "");
    float *x = (float *)malloc(N * sizeof *x);

    /* While the background thread has nothing to do, and what rank 2 grants has come and lies unread. */
    fill_with(x, (float)me->rank);
    CHECK_INT(dml_comm_wait(comm, dml_comm_all_reduce_start(comm, x, N, DML_F32, DML_SUM)), DML_OK);
    check_sum(x, 3);
    fill_with(x, (float)me->rank);
    if (me->rank == 2) ranks_sleep(0.2); /* else rank 1 may still be in the first call, and read it */
    if (me->rank == 1) {
        const dml__tcp *tcp = (const dml__tcp *)(void *)comm->job->transport;
        struct pollfd come = { tcp->fd[DML__CHANNEL_DATA][2], POLLIN, 0 };
        CHECK_INT(poll(&come, 1, 20000), 1);
        fork_child(comm, NULL, 3);
    }
    CHECK_INT(dml_comm_all_reduce(comm, x, N, DML_F32, DML_SUM), DML_OK);
    check_sum(x, 3);

    /* While a request is on its way: the others are late. */
    fill_with(x, (float)me->rank);
    if (me->rank != 1) ranks_sleep(0.1);
    dml_request *request = dml_comm_all_reduce_start(comm, x, N, DML_F32, DML_SUM);
    if (me->rank == 1) fork_child(comm, request, 3);
    CHECK_INT(dml_comm_wait(comm, request), DML_OK);
    check_sum(x, 3);
    CHECK_INT(dml_comm_barrier(comm), DML_OK);

    /* Nobody took the children's end for a goodbye, and they keep no connection alive. */
    if (me->rank == 1) {
        ranks_sleep(1); /* the others have left the barrier too: else they would see it as unfinished */
        return;
    }
    CHECK_INT(dml_comm_barrier(comm), DML_ERROR_PEER);
    CHECK_CONTAINS(dml_comm_error(comm), "rank 1 of 3 died");
    dml_comm_close(comm);
    CHECK_INT(live, 0);
    free(x);
}

static void a_rank_that_forks(void)
{
    test_rank ranks[3];
    pid_t pids[3];
    ranks_prepare(ranks, 3, 20, NULL, NULL);
    for (int rank = 0; rank < 3; rank++) {
        fflush(stdout);
        pids[rank] = fork();
        if (pids[rank] == 0) {
            alarm(60);
            test__ok = true;
            forking_rank(&ranks[rank]);
            fflush(stdout);
            _exit(test__ok ? 0 : 1);
        }
    }
    for (int rank = 0; rank < 3; rank++) {
        int status = -1;
        waitpid(pids[rank], &status, 0);
        CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with %d", rank, status);
    }
}

static void a_rank_of_its_own(void)
{
    dml_comm_options options = { .world_size = 1 };
    options.allocator.allocate = counting_allocate;
    options.allocator.release = counting_release;
    dml_comm *comm = dml_comm_open(&options);
    float x[1] = { 2 };
    fork_child(comm, NULL, 1);
    CHECK_INT(dml_comm_all_reduce(comm, x, 1, DML_F32, DML_MEAN), DML_OK);
    CHECK_STRING(dml_comm_error(comm), "");
    dml_comm_close(comm);
    CHECK_INT(live, 0);
}

int main(void)
{
    RUN(a_rank_that_forks);
    RUN(a_rank_of_its_own);
    return test_report("comm/fork");
}
