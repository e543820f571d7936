/* A rank that goes on when others die: dml_comm_outlive. Ranks are processes, since threads can't be killed.
 */
#include "ranks.h"

#include <signal.h>
#include <sys/wait.h>

enum { LARGE = 4 << 20, SERVER = 2, DIES = 1, WORLD = 3 };

/* How rank 1 ends. */
typedef enum way {
    IDLE,         /* killed while the server waits for a message of its */
    WHILE_SENDS,  /* killed while it sends a large one */
    HALF,         /* killed after it has sent one message of two */
    WHILE_TAKES,  /* killed while the server sends it a large one */
    BEFORE_TAKES, /* killed before the server sends to it */
    CLOSES        /* in good order, without the message that the server waits for */
} way;

static void be_killed(void)
{
    raise(SIGKILL);
}

/* Rank 0: says that it is there, again and again. */
static void live(dml_comm *comm)
{
    float x[3];
    for (int i = 0; i < 20; i++) {
        x[0] = (float)i;
        dml_comm_send(comm, x, 1, DML_F32, SERVER, 5);
        dml_comm_receive(comm, x, 3, DML_F32, SERVER, 6, NULL);
        ranks_sleep(0.01);
    }
}

static void die(dml_comm *comm, way how)
{
    float *x = (float *)calloc(LARGE, sizeof *x);
    if (how == WHILE_SENDS) {
        dml_comm_send_start(comm, x, LARGE, DML_F32, SERVER, 5);
        for (int i = 0; i < 3; i++) dml_comm_probe(comm, SERVER, 77, 0.003, NULL);
    } else if (how == HALF) {
        dml_comm_send(comm, x, 1, DML_F32, SERVER, 5);
    } else if (how == WHILE_TAKES) {
        dml_comm_receive_start(comm, x, LARGE, DML_F32, SERVER, 6);
        for (int i = 0; i < 3; i++) dml_comm_probe(comm, SERVER, 77, 0.003, NULL);
    }
    if (how == CLOSES)
        dml_comm_close(comm);
    else
        be_killed();
    _exit(0);
}

/* Returns how many things went wrong. */
static int serve(dml_comm *comm, way how)
{
    float *x = (float *)calloc(LARGE, sizeof *x), y[3] = { 0 };
    dml_request *requests[4] = { NULL };
    dml_message message;
    int bad = 0, heard = 0, lost = 0, completed = 0;
    dml_comm_outlive(comm);
    if (how == BEFORE_TAKES) ranks_sleep(0.1);
    if (how == WHILE_TAKES || how == BEFORE_TAKES)
        requests[2] = dml_comm_send_start(comm, x, LARGE, DML_F32, DIES, 6);
    requests[0] = dml_comm_receive_start(comm, y, 1, DML_F32, 0, 5);
    requests[1] = dml_comm_receive_start(comm, x, LARGE, DML_F32, DIES, 5);
    while ((heard < 20 || !lost) && !dml_comm_status(comm)) {
        const int i = dml_comm_wait_any_message(comm, requests, 4, &message);
        if (i == 0) {
            bad += message.source != 0 || y[0] != (float)heard++;
            requests[3] = dml_comm_send_start(comm, y, 3, DML_F32, 0, 6);
            requests[0] = heard < 20 ? dml_comm_receive_start(comm, y + 1, 0, DML_F32, 0, 7) : NULL;
            if (requests[0]) bad += !dml_comm_cancel(comm, requests[0]);
            requests[0] = heard < 20 ? dml_comm_receive_start(comm, y, 1, DML_F32, 0, 5) : NULL;
        } else if (i == 1 && message.source == DIES) {
            completed++;
            requests[1] = dml_comm_receive_start(comm, x, LARGE, DML_F32, DIES, 5);
        } else if (i == 1) {
            bad += message.source != -1;
            lost++;
        }
    }
    bad += lost != 1;
    if (how != WHILE_SENDS) bad += completed != (how == HALF); /* it may have been fast */
    bad += dml_comm_receive(comm, y, 1, DML_F32, DIES, 5, NULL) != DML_ERROR_PEER;
    bad += dml_comm_send(comm, x, 1, DML_F32, DIES, 5) != DML_ERROR_PEER;
    bad += dml_comm_send(comm, x, LARGE, DML_F32, DIES, 5) != DML_ERROR_PEER;
    bad += dml_comm_wait_all(comm) != DML_OK;
    /* Nothing lies on its link any more that may be something else's by now. */
    bad += comm->job->links[DIES].sending || comm->job->links[DIES].receiving;
    if (bad)
        fprintf(stderr, "heard %d lost %d completed %d: %s\n", heard, lost, completed, dml_comm_error(comm));
    free(x);
    return bad;
}

static void check_way(way how, const char *transport, bool helper)
{
    test_rank ranks[WORLD];
    pid_t pids[WORLD];
    ranks_prepare(ranks, WORLD, 20, NULL, NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        pids[rank] = fork();
        if (pids[rank] != 0) continue;
        ranks[rank].options.transport = transport;
        ranks[rank].options.progress_thread = helper;
        dml_comm *comm = dml_comm_open(&ranks[rank].options);
        int bad = 0;
        if (rank == DIES) die(comm, how);
        if (rank == 0) live(comm);
        if (rank == SERVER) bad = serve(comm, how);
        bad += dml_comm_close(comm) != DML_OK;
        _exit(bad);
    }
    for (int rank = 0; rank < WORLD; rank++) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        if (rank == DIES && how != CLOSES) continue;
        CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "way %d over %s: rank %d has %d",
                      (int)how, transport, rank, status);
    }
}

static void a_rank_that_outlives(void)
{
    for (int helper = 0; helper < 2; helper++)
        for (int how = IDLE; how <= CLOSES; how++) {
            check_way((way)how, "tcp", helper);
            check_way((way)how, "shm", helper);
        }
}

/* It waits longer than the timeout for a message, which comes in the end; a collective still fails. */
static void patient_body(test_rank *me)
{
    float x = 1;
    if (me->rank == 0) {
        dml_comm_outlive(me->comm);
        me->bad += dml_comm_receive(me->comm, &x, 1, DML_F32, 1, 0, NULL) != DML_OK || x != 2;
        me->bad += dml_comm_all_reduce(me->comm, &x, 1, DML_F32, DML_SUM) != DML_ERROR_PEER;
    } else {
        x = 2;
        ranks_sleep(1);
        me->bad += dml_comm_send(me->comm, &x, 1, DML_F32, 0, 0) != DML_OK;
    }
}

static void it_waits_for_ever(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    for (int t = 0; t < 3; t++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 0.4, patient_body, NULL);
        ranks_run_on(ranks, 2, transports[t]);
        for (int rank = 0; rank < 2; rank++) CHECK_INT(ranks[rank].bad, 0);
        CHECK_INT(ranks[0].status, DML_ERROR_PEER);
    }
}

/* Among threads, one closes early; what it sent before is still there. */
static void closes_body(test_rank *me)
{
    float x[2] = { 0, 0 };
    if (me->rank == 0) {
        dml_comm_outlive(me->comm);
        dml_request *first = dml_comm_receive_start(me->comm, &x[0], 1, DML_F32, 1, 0);
        dml_request *second = dml_comm_receive_start(me->comm, &x[1], 1, DML_F32, 1, 0);
        me->bad += dml_comm_wait(me->comm, first) != DML_OK || x[0] != 3;
        me->bad += dml_comm_wait(me->comm, second) != DML_ERROR_PEER;
    } else {
        x[0] = 3;
        me->bad += dml_comm_send(me->comm, x, 1, DML_F32, 0, 0) != DML_OK;
    }
}

static void a_rank_that_closes(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    for (int t = 0; t < 3; t++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 2, closes_body, NULL);
        ranks_run_on(ranks, 2, transports[t]);
        for (int rank = 0; rank < 2; rank++)
            CHECK_MESSAGE(!ranks[rank].bad && !ranks[rank].status, "%s: rank %d: %s", transports[t], rank,
                          ranks[rank].error);
    }
}

/* One that takes from any has no reason to end, even if all have closed: it can be taken back. */
static void any_body(test_rank *me)
{
    float x;
    if (me->rank) return;
    dml_comm_outlive(me->comm);
    dml_request *any = dml_comm_receive_start(me->comm, &x, 1, DML_F32, DML_ANY_SOURCE, 0);
    dml_comm_probe(me->comm, DML_ANY_SOURCE, 1, 1, NULL); /* for longer than the timeout */
    me->bad += dml_comm_done(me->comm, any) || !dml_comm_cancel(me->comm, any);
}

static void all_others_close(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.4, any_body, NULL);
    ranks_run_on(ranks, 3, "tcp");
    CHECK_INT(ranks[0].bad, 0);
    CHECK_MESSAGE(!ranks[0].status, "%s", ranks[0].error);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(a_rank_that_outlives);
    RUN(it_waits_for_ever);
    RUN(a_rank_that_closes);
    RUN(all_others_close);
    return test_report("comm/outlive");
}
