/* How ranks come to know that another one has failed, closed or gone, and what close says of what was left.
 */
#include "jobs.h"

enum { N = 10 };

/* ---- what close says ---- */

/* A small message lies at the receiver when both close; nobody has asked for it. */
static void unreceived_body(job_rank *me)
{
    float x[N] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) JOB_SEND_NOW(me->comm, x, N, DML_F32, 1);
    job_sleep(0.2);
}

static void a_send_that_nobody_receives(void)
{
    job job;
    job_prepare(&job, 3, 2, unreceived_body, NULL);
    job_start(&job);
    job_wait(&job, 15);
    for (int rank = 0; rank < 2; rank++)
        check_rank_fails(&job.ranks[rank], "a send that nobody receives", DML_OK, "send(f32, 10, to 1)",
                         NULL);
    for (int rank = 0; rank < 2; rank++) CHECK_STRING(job.ranks[rank].closing, job.ranks[rank].logged);
    CHECK_ENDED("a send that nobody receives", &job.ranks[2]);
    job_release(&job);
}

/* What the root has told lies at who closes without having asked. */
static void uncalled_body(job_rank *me)
{
    float x[N] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_broadcast(me->comm, x, N, DML_F32, 0);
    job_sleep(0.2);
}

static void a_broadcast_that_a_rank_leaves_out(void)
{
    job job;
    job_prepare(&job, 2, 2, uncalled_body, NULL);
    job_start(&job);
    job_wait(&job, 15);
    for (int rank = 0; rank < 2; rank++)
        check_rank_fails(&job.ranks[rank], "a broadcast that a rank leaves out", DML_OK,
                         "rank 0 called broadcast(f32, 10",
                         "and rank 1 closed its communicator without calling it");
    job_release(&job);
}

/* The peer has said goodbye. */
static void send_to_closed_body(job_rank *me)
{
    static float x[1000000];
    const size_t count = *(const size_t *)me->user;
    dml_comm_barrier(me->comm);
    if (me->rank == 1) return;
    job_sleep(0.3);
    me->notes[0] = JOB_SEND_NOW(me->comm, x, count, DML_F32, 1);
}

static void a_send_after_the_peer_has_closed(void)
{
    static const size_t counts[] = { 10, 1000000 };
    job jobs[2];
    for (int i = 0; i < 2; i++) {
        job_prepare(&jobs[i], 2, 2, send_to_closed_body, &counts[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        char part[96];
        snprintf(part, sizeof part, "send(f32, %zu, to 1)", counts[i]);
        job_wait(&jobs[i], 15);
        check_rank_fails(&jobs[i].ranks[0], "a send to who has closed", DML_ERROR_PEER, part,
                         "rank 1 closed");
        CHECK_MESSAGE(jobs[i].ranks[0].notes[0], "a send of %zu elements to who has closed went well",
                      counts[i]);
        job_release(&jobs[i]);
    }
}

/* Everything went well, and close says so: also where one closes long before the others, who go on without it
   as long as they need nothing of it. */
static void good_body(job_rank *me)
{
    float x[N] = { 1 };
    dml_comm_all_reduce(me->comm, x, N, DML_F32, DML_SUM);
    me->bad += x[0] != (float)me->world;
    if (me->rank == 1) return;
    job_sleep(0.3);
    if (me->rank == 0) JOB_SEND_NOW(me->comm, x, N, DML_F32, 2);
    if (me->rank == 2) JOB_RECEIVE_NOW(me->comm, x, N, DML_F32, 0);
}

static void a_good_end(void)
{
    job job;
    job_prepare(&job, 3, 60, good_body, NULL); /* which closing doesn't wait for, or it hangs */
    job_start(&job);
    job_wait(&job, 15);
    check_job(&job, "a good end");
    for (int rank = 0; rank < 3; rank++) CHECK_STRING(job.ranks[rank].closing, "");
    job_release(&job);
}

/* Whatever is closed: nothing, a group, the last one, what a child has of its parent. */
static void the_sentence_at_closing(void)
{
    char text[256] = "?", cut[6] = "?";
    dml_comm *comm;
    int status = 0;
    CHECK_INT(dml_comm_close_error(NULL, text, sizeof text), DML_OK);
    CHECK_INT(dml_comm_close_error(NULL, NULL, sizeof text), DML_OK);
    CHECK_STRING(text, "");
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    dml_comm *group = dml_comm_split(comm, 0, 0);
    const pid_t child = fork();
    if (child == 0) {
        const bool said = dml_comm_close_error(comm, text, sizeof text) == DML_ERROR_STATE &&
                          strstr(text, "after a fork") != NULL;
        _exit(!said);
    }
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    CHECK_INT(dml_comm_all_reduce(comm, NULL, 1, DML_F32, DML_SUM), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_comm_close_error(group, text, sizeof text), DML_ERROR_ARGUMENT);
    CHECK_STRING(text, dml_comm_error(comm));
    CHECK_INT(dml_comm_close_error(comm, cut, sizeof cut), DML_ERROR_ARGUMENT);
    CHECK_STRING(cut, "rank ");
}

/* ---- after an abort ---- */

typedef struct flags {
    volatile int aborted;
} flags;

/* Rank 2 gives NULL for its data; the others are told, and the root learns it though it waits for nobody.
   notes[0]: how many broadcasts go well after that. */
static void abort_body(job_rank *me)
{
    flags *shared = (flags *)(uintptr_t)me->user;
    float x = 0;
    for (int i = 0; i < 10; i++) dml_comm_broadcast(me->comm, &x, 1, DML_F32, 0);
    if (me->rank == 2) {
        me->notes[0] = dml_comm_broadcast(me->comm, NULL, 1, DML_F32, 0) == DML_OK;
        shared->aborted = 1;
        job_sleep(1);
        return;
    }
    for (int tries = 0; !shared->aborted && tries < 1000; tries++) job_sleep(0.01);
    job_sleep(0.1);
    while (me->notes[0] < 20000 && !dml_comm_broadcast(me->comm, &x, 1, DML_F32, 0)) me->notes[0]++;
    if (me->rank == 1) job_sleep(0.5); /* its end would tell the root */
}

static void broadcasts_after_an_abort(void)
{
    flags *shared =
        (flags *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job job;
    job_prepare(&job, 3, 2, abort_body, shared);
    job_start(&job);
    job_wait(&job, 30);
    check_job_fails(&job, "an abort", DML_ERROR_ARGUMENT, "broadcast(f32, 1, root 0)", "rank 2 ");
    for (int rank = 0; rank < 3; rank++)
        CHECK_MESSAGE(job.ranks[rank].notes[0] <= 8, "rank %d completes %lld broadcasts after rank 2's error",
                      rank, job.ranks[rank].notes[0]);
    job_release(&job);
    munmap(shared, sizeof *shared);
}

/* ---- ranks that leave children behind, which hold their connections ----

   What a child holds keeps the kernel from telling the peers that its parent is gone: no FIN goes out until
   the last copy of a socket is closed. So they can know at once where the parent says so itself (its goodbye,
   or shutdown(), both of which act on the connection and not on a descriptor), and where the child has let go
   (exec closes, dml_comm_close does). Of a parent that is killed while a child lives on with its sockets only
   the deadline tells. */

typedef enum leaving { CLOSES, RETURNS, IS_KILLED, IS_KILLED_CHILD_CLOSED, IS_KILLED_CHILD_EXECUTED } leaving;

/* A child that lives for some seconds, no longer than the test. */
static void leave_child(job_rank *me, leaving how)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid) {
        me->notes[0] = pid;
        return;
    }
    if (how == IS_KILLED_CHILD_CLOSED) (void)JOB_CLOSE(me->comm);
    if (how == IS_KILLED_CHILD_EXECUTED) execlp("sleep", "sleep", "20", (char *)NULL);
    alarm(20);
    for (;;) pause();
}

static void leaving_body(job_rank *me)
{
    const leaving how = *(const leaving *)me->user;
    float x[N] = { 0 };
    dml_comm_all_reduce(me->comm, x, N, DML_F32, DML_SUM);
    if (me->rank == 1) {
        leave_child(me, how);
        job_sleep(0.3); /* the others' all_reduce has ended, and the child is where it should be */
        if (how == RETURNS) me->leaves = true;
        if (how >= IS_KILLED) {
            me->notes[1] = 1;
            raise(SIGKILL);
        }
        return;
    }
    dml_comm_barrier(me->comm);
}

static void check_leaving(job *job, leaving how, dml_status want, const char *part)
{
    static const char *const names[] = { "a parent that closes", "a parent that returns",
                                         "a parent that is killed", "a parent whose child has closed",
                                         "a parent whose child has executed" };
    job_wait(job, 15);
    for (int rank = 0; rank < 3; rank++)
        if (rank != 1) check_rank_fails(&job->ranks[rank], names[how], want, part, "rank 1");
    if (job->ranks[1].notes[0] > 0) kill((pid_t)job->ranks[1].notes[0], SIGKILL);
    job_release(job);
}

/* At once is told from by the deadline by what the error is: the deadline can't know more than that nothing
   came. */
static void parents_that_leave_children(void)
{
    static const leaving hows[] = { CLOSES, RETURNS, IS_KILLED, IS_KILLED_CHILD_CLOSED,
                                    IS_KILLED_CHILD_EXECUTED };
    job jobs[5];
    for (int how = 0; how < 5; how++) {
        job_prepare(&jobs[how], 3, 2, leaving_body, &hows[how]);
        job_start(&jobs[how]);
    }
    check_leaving(&jobs[0], CLOSES, DML_ERROR_PEER, "rank 1 closed");
    check_leaving(&jobs[1], RETURNS, DML_OK, NULL);
    check_leaving(&jobs[2], IS_KILLED, DML_OK, NULL);
    check_leaving(&jobs[3], IS_KILLED_CHILD_CLOSED, DML_ERROR_PEER, "rank 1 of 3 died");
    check_leaving(&jobs[4], IS_KILLED_CHILD_EXECUTED, DML_ERROR_PEER, "rank 1 of 3 died");
}

/* ---- a rank that gives up ---- */

/* Rank 1 has a reason of its own; the others are in a call on another communicator, and wait for no timeout.
 */
static void giving_up_body(job_rank *me)
{
    float x[N] = { 1 };
    dml_comm *group = dml_comm_split(me->comm, 0, 0);
    if (me->rank == 1) {
        job_sleep(0.2);
        me->notes[0] = dml_comm_abort(group, "can't read \"data.bin\"");
        me->notes[1] = dml_comm_abort(me->comm, "and another reason"); /* too late */
    } else {
        me->notes[0] = dml_comm_all_reduce(group, x, N, DML_F32, DML_SUM);
        me->notes[1] = dml_comm_barrier(me->comm);
    }
    me->notes[2] = dml_comm_culprit(me->comm);
}

static void a_rank_that_gives_up(void)
{
    const char *const transports[] = { "tcp", "shm" };
    job jobs[2];
    for (int i = 0; i < 2; i++) {
        job_prepare(&jobs[i], 3, 60, giving_up_body, NULL);
        for (int rank = 0; rank < 3; rank++) jobs[i].ranks[rank].options.transport = transports[i];
        job_start(&jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        job_wait(&jobs[i], 20);
        for (int rank = 0; rank < 3; rank++) {
            const job_rank *me = &jobs[i].ranks[rank];
            check_rank_fails(me, "a rank that gives up", DML_ERROR_PEER,
                             "rank 1 of 3 gave up: can't read \"data.bin\"", NULL);
            for (int call = 0; call < 2; call++) CHECK_INT(me->notes[call], DML_ERROR_PEER);
            CHECK_INT(me->notes[2], 1);
            CHECK_MESSAGE(me->seconds < 10, "rank %d waited for %g s", rank, me->seconds);
        }
        job_release(&jobs[i]);
    }
}

static void giving_up_alone(void)
{
    dml_comm *comm;
    CHECK_INT(dml_comm_abort(NULL, "nothing"), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    dml_comm *group = dml_comm_split(comm, 0, 0);
    CHECK_INT(dml_comm_close(group), DML_OK);
    CHECK_INT(dml_comm_abort(group, "it is closed"), DML_ERROR_STATE);
    CHECK_INT(dml_comm_status(comm), DML_OK);
    CHECK_INT(dml_comm_abort(comm, NULL), DML_ERROR_PEER);
    CHECK_STRING(dml_comm_error(comm), "rank 0 of 1 gave up");
    CHECK_INT(dml_comm_barrier(comm), DML_ERROR_PEER);
    CHECK_INT(dml_comm_close(comm), DML_ERROR_PEER);
}

int main(void)
{
    RUN(a_send_that_nobody_receives);
    RUN(a_broadcast_that_a_rank_leaves_out);
    RUN(a_send_after_the_peer_has_closed);
    RUN(a_good_end);
    RUN(the_sentence_at_closing);
    RUN(broadcasts_after_an_abort);
    RUN(parents_that_leave_children);
    RUN(a_rank_that_gives_up);
    RUN(giving_up_alone);
    return test_report("comm/ending");
}
