/* Who is late, and who is blamed for it: ranks that look at their requests now and then, that were away, that
   wait for ranks that move, or that have nothing to do with each other. */
#include "ranks.h"

#include <errno.h>
#include <stdlib.h>

/* (Of the transports each test has another: who is late is none of their business.) */

static void check_all_well(const test_rank *ranks, int count)
{
    for (int rank = 0; rank < count; rank++)
        CHECK_MESSAGE(!ranks[rank].status, "rank %d: %s", rank, ranks[rank].error);
}

/* ---- who looks now and then ---- */

static void look_until_done(dml_comm *comm, dml_request *request, double between)
{
    while (!dml_comm_done(comm, request)) ranks_sleep(between);
    dml_comm_wait(comm, request);
}

static void looking_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank) {
        ranks_sleep(1.2); /* later than an answer may be, and earlier than the deadline */
        dml_comm_send(me->comm, x, 10, DML_F32, 0, 0);
    } else {
        look_until_done(me->comm, dml_comm_receive_start(me->comm, x, 10, DML_F32, 1, 0), 1e-3);
    }
    dml_comm_barrier(me->comm);
}

static void looking_has_as_long_as_waiting(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 2, looking_body, NULL);
    ranks_run_on(ranks, 2, "tcp");
    check_all_well(ranks, 2);
}

static void looking_at_times_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    const double begin = dml_seconds();
    if (me->rank) {
        ranks_sleep(3);
        return;
    }
    look_until_done(me->comm, dml_comm_receive_start(me->comm, x, 10, DML_F32, 1, 0), 0.2);
    me->bad = dml_seconds() - begin > 2.5;
}

static void looking_rarely_ends_too(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 0.4, looking_at_times_body, NULL);
    ranks_run_on(ranks, 2, "shm");
    CHECK_INT(ranks[0].status, DML_ERROR_TIMEOUT);
    CHECK_CONTAINS(ranks[0].error, "rank 1 of 2 took no part in receive(f32, 10, from 1) within 0.4 s");
    CHECK_MESSAGE(!ranks[0].bad, "it took more than 2.5 s");
}

/* ---- who was away ---- */

static void away_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank) ranks_sleep(2);
    dml_request *sum = dml_comm_all_reduce_start(me->comm, x, 10, DML_F32, DML_SUM);
    if (!me->rank) ranks_sleep(1.5);
    dml_comm_wait(me->comm, sum);
}

static void a_wait_counts_from_its_begin(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 1.2, away_body, NULL);
    ranks_run_on(ranks, 2, "local");
    check_all_well(ranks, 2);
}

/* ---- what a rank sent before its goodbye ---- */

/* Data that rank 0 gets later than what is on the other connection. */
static double slow_until;

static ssize_t slow_receive(int fd, struct msghdr *message, int flags)
{
    char head[2];
    const ssize_t there = recv(fd, head, 2, MSG_PEEK);
    if (there < 0) return there; /* what comes from now on is for the next look */
    if (there == 2 && memcmp(head, "dm", 2) == 0 && dml_seconds() < slow_until) {
        ranks_sleep(1e-3);
        errno = EAGAIN;
        return -1;
    }
    return dml__system_sockets()->receive(fd, message, flags);
}

static void leaving_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) slow_until = dml_seconds() + 1.6; /* more than an answer may take */
    dml_comm_barrier(me->comm);
    dml_comm_broadcast(me->comm, x, 10, DML_F32, 1);
    if (me->rank == 1)
        dml_comm_send(me->comm, x, 10, DML_F32, 0, 0);
    else
        dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
}

static void what_is_on_its_way_has_the_whole_time(void)
{
    dml__socket_calls slow = *dml__system_sockets();
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 4, leaving_body, NULL);
    slow.receive = slow_receive;
    ranks[0].sockets = &slow;
    ranks_run_on(ranks, 2, "tcp");
    check_all_well(ranks, 2);
    CHECK_MESSAGE(ranks[0].seconds > 1.6, "nothing was late");
}

static void left_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
}

static void what_was_never_sent_is_known_soon(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 60, left_body, NULL);
    ranks_run_on(ranks, 2, "shm");
    CHECK_INT(ranks[0].status, DML_ERROR_PEER);
    CHECK_STRING(ranks[0].error,
                 "rank 1 closed its communicator while rank 0 was in receive(f32, 10, from 1)");
    CHECK_MESSAGE(ranks[0].seconds < 15, "it took %g s", ranks[0].seconds);
}

/* ---- who waits for whom ---- */

static void chain_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    for (int i = 0; i < 2 && me->rank; i++) {
        if (me->rank == 2) ranks_sleep(i ? 1.0 : 0.6);
        if (me->rank == 2)
            dml_comm_send(me->comm, x, 10, DML_F32, 1, 0);
        else
            dml_comm_receive(me->comm, x, 10, DML_F32, 2, 0, NULL);
    }
    if (me->rank == 1) dml_comm_send(me->comm, x, 10, DML_F32, 0, 0);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    dml_comm_barrier(me->comm);
}

static void a_chain_that_moves(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 1.2, chain_body, NULL);
    ranks_run_on(ranks, 3, "tcp");
    check_all_well(ranks, 3);
}

/* Rank 0 waits for 1, while what it gets from 2 moves all the time. */
static void one_of_two_body(test_rank *me)
{
    enum { MANY = 20 };
    float x[10] = { 0 }, many[MANY][10] = { { 0 } };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) {
        for (int i = 0; i < MANY; i++) dml_comm_receive_start(me->comm, many[i], 10, DML_F32, 2, i);
        dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    }
    for (int i = 0; i < MANY && me->rank == 2; i++) {
        dml_comm_send(me->comm, many[i], 10, DML_F32, 0, i);
        ranks_sleep(0.15);
    }
    if (me->rank == 1) ranks_sleep(2.5);
    me->culprit = dml_comm_culprit(me->comm);
}

static void what_others_send_excuses_nobody(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.8, one_of_two_body, NULL);
    ranks_run_on(ranks, 3, "tcp");
    CHECK_INT(ranks[0].status, DML_ERROR_TIMEOUT);
    CHECK_INT(ranks[0].culprit, 1);
    CHECK_MESSAGE(ranks[0].seconds < 2, "it took %g s", ranks[0].seconds);
}

static void bystanders_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm *group = dml_comm_split(me->comm, me->rank / 2, me->rank);
    dml_comm_barrier(me->comm);
    if (me->rank < 2) {
        dml_comm_receive(group, x, 10, DML_F32, 1 - me->rank, 0, NULL);
    } else {
        ranks_sleep(me->rank == 2 ? 0.5 : 1.2);
        dml_comm_all_reduce(group, x, 10, DML_F32, DML_SUM);
    }
    dml_comm_close(group);
}

static void bystanders_are_not_to_blame(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 0.8, bystanders_body, NULL);
    ranks_run_on(ranks, 4, "shm");
    CHECK_CONTAINS(ranks[0].error,
                   "rank 0 in it and rank 1 in receive(f32, 10, from 0) in communicator 1 wait "
                   "for each other");
    CHECK_MESSAGE(!strstr(ranks[0].error, "all_reduce"), "it names a bystander: %s", ranks[0].error);
}

/* ---- who is in no call, though its progress thread answers ---- */

static void check_blame(const test_rank *ranks, int count, int culprit, const char *sentence)
{
    for (int rank = 0; rank < count; rank++) {
        if (rank == culprit) continue;
        CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
        CHECK_MESSAGE(ranks[rank].culprit == culprit, "rank %d blames %d: %s", rank, ranks[rank].culprit,
                      ranks[rank].error);
        CHECK_CONTAINS(ranks[rank].error, sentence);
    }
}

/* Something that rank 2 started, and that nobody answers, is under way while it is away. */
static void absent_body(test_rank *me)
{
    float x[10] = { 0 }, y[10];
    const bool from_waiting = *(const bool *)me->user;
    dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 2) {
        dml_comm_receive_start(me->comm, y, 10, DML_F32, from_waiting ? 0 : 1, 5);
        if (from_waiting) dml_comm_send_start(me->comm, y, 10, DML_F32, 1, 7); /* not what it waits for */
        ranks_sleep(2.2);
    } else if (me->rank == 0 && from_waiting) {
        dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    } else if (from_waiting) {
        dml_comm_receive(me->comm, x, 10, DML_F32, 2, 6, NULL);
    } else {
        dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
    }
    me->culprit = dml_comm_culprit(me->comm);
}

static void who_is_absent_is_to_blame(void)
{
    static const char *const transports[] = { "tcp", "local" };
    test_rank ranks[3];
    for (int i = 0; i < 2; i++) {
        bool from_waiting = i;
        ranks_prepare(ranks, 3, 0.6, absent_body, &from_waiting);
        ranks_run_on(ranks, 3, transports[i]);
        check_blame(ranks, 3, 2,
                    i ? "took no part in receive(f32, 10, from 2) with tag 6 (a message from 2 with tag 7 "
                        "lies there unreceived) within 0.6 s: it is busy with "
                        "something else, in no call: only its progress thread answers; for what takes "
                        "longer there is a larger timeout_s (DML_TIMEOUT)"
                      : "took no part in all_reduce(f32, 10, sum) within 0.6 s: it is busy");
    }
}

static void started_body(test_rank *me)
{
    float x[10] = { 0 };
    if (me->rank < 2) dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 2) ranks_sleep(2.2);
    dml_request *sum = dml_comm_all_reduce_start(me->comm, x, 10, DML_F32, DML_SUM);
    if (me->rank == 1) ranks_sleep(1.8);
    dml_comm_wait(me->comm, sum);
    me->culprit = dml_comm_culprit(me->comm);
}

static void who_has_started_its_part_is_not(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.6, started_body, NULL);
    ranks[0].options.algorithm = ranks[1].options.algorithm = ranks[2].options.algorithm = "ring";
    ranks_run_on(ranks, 3, "shm");
    check_blame(ranks, 3, 2, "rank 2 of 3 took no part in all_reduce(f32, 10, sum) within 0.6 s");
}

static void polling_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    if (me->rank == 1)
        look_until_done(me->comm, dml_comm_receive_start(me->comm, x, 10, DML_F32, 2, 0), 0.02);
    if (me->rank == 2) ranks_sleep(2.2);
    me->culprit = dml_comm_culprit(me->comm);
}

static void who_looks_at_its_requests_is_not(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 1, polling_body, NULL);
    ranks_run_on(ranks, 3, "tcp");
    check_blame(ranks, 3, 2, "rank 2 of 3 took no part in receive(f32, 10, from ");
}

/* Rank 0 waits for 1, that one in a group for 2, which is away. */
static void behind_another_body(test_rank *me)
{
    float x[10] = { 0 }, y[10];
    dml_comm *group = dml_comm_split(me->comm, me->rank > 0, me->rank);
    dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    if (me->rank == 1) dml_comm_all_reduce(group, x, 10, DML_F32, DML_SUM);
    if (me->rank == 2) {
        dml_comm_receive_start(me->comm, y, 10, DML_F32, 0, 0);
        ranks_sleep(2.2);
    }
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(group);
}

static void the_nearer_one_judges(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.6, behind_another_body, NULL);
    ranks_run_on(ranks, 3, "tcp");
    check_blame(ranks, 3, 2, "rank 2 of 3 took no part in all_reduce(f32, 10, sum) in communicator 1 within");
}

/* Rank 0 waits for 2 in a sum, or for any of that and another that rank 1 comes to when it has heard of 0. */
static void beside_another_body(test_rank *me)
{
    const bool for_any = *(const bool *)me->user;
    float x[10] = { 0 }, y[10] = { 0 };
    dml_comm *one = dml_comm_split(me->comm, me->rank == 2 ? -1 : 0, 0);
    dml_comm *two = dml_comm_split(me->comm, me->rank == 1 ? -1 : 0, 0);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) {
        dml_request *requests[2];
        requests[0] = dml_comm_all_reduce_start(one, x, 10, DML_F32, DML_SUM);
        requests[1] = dml_comm_all_reduce_start(two, y, 10, DML_F32, DML_SUM);
        if (for_any)
            dml_comm_wait_any(me->comm, requests, 2);
        else
            dml_comm_wait(two, requests[1]);
        dml_comm_send(me->comm, y, 10, DML_F32, 1, 0);
    } else if (me->rank == 1) {
        dml_comm_receive(me->comm, y, 10, DML_F32, 0, 0, NULL);
        dml_comm_all_reduce(one, x, 10, DML_F32, DML_SUM);
    } else {
        ranks_sleep(2.2);
    }
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(two);
    dml_comm_close(one);
}

static void what_was_only_started_keeps_nobody(void)
{
    for (int i = 0; i < 2; i++) {
        const bool for_any = i;
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 0.6, beside_another_body, (void *)(uintptr_t)&for_any);
        ranks_run_on(ranks, 3, "tcp");
        for (int rank = 0; rank < 2; rank++) /* whichever has judged */
            CHECK_MESSAGE(!strstr(ranks[rank].error, "receive"), "rank 2 is in no receive: %s",
                          ranks[rank].error);
        check_blame(ranks, 3, 2, "rank 2 of 3 took no part in ");
    }
}

/* ---- who waits for any of several ---- */

typedef struct any_case {
    bool collective, helps; /* rank 2 leaves out a collective or a message; its progress thread answers */
} any_case;

/* Rank 1 goes on sending, rank 2 does nothing any more. */
static void any_body(test_rank *me)
{
    const any_case *c = (const any_case *)me->user;
    float x[10] = { 0 }, y[10] = { 0 }, z[10] = { 0 };
    dml_comm *group = dml_comm_split(me->comm, me->rank == 1, me->rank);
    if (me->rank == 2 && c->helps) dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    const double begin = dml_seconds();
    if (me->rank == 2) {
        ranks_sleep(3);
    } else if (me->rank == 1) {
        while (!dml_comm_send(me->comm, x, 10, DML_F32, 0, 0)) ranks_sleep(0.02);
    } else {
        dml_request *both[2] = { NULL };
        both[1] = c->collective ? dml_comm_all_reduce_start(group, y, 10, DML_F32, DML_SUM)
                                : dml_comm_receive_start(me->comm, z, 10, DML_F32, 2, 0);
        do {
            both[0] = dml_comm_receive_start(me->comm, x, 10, DML_F32, 1, 0);
        } while (dml_comm_wait_any(me->comm, both, 2) == 0);
        me->bad = dml_seconds() - begin > 2.5;
    }
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(group);
}

static void what_others_send_keeps_nobody_hidden(void)
{
    static const any_case cases[] = { { false, false }, { true, false }, { false, true }, { true, true } };
    test_rank ranks[3];
    for (int i = 0; i < 4; i++) {
        any_case c = cases[i];
        ranks_prepare(ranks, 3, 0.6, any_body, &c);
        ranks_run_on(ranks, 3, i % 2 ? "tcp" : "shm");
        CHECK_MESSAGE(!ranks[0].bad, "case %d took long", i);
        check_blame(ranks, 2, 2,
                    c.collective ? "took no part in all_reduce(f32, 10, sum) in communicator 1"
                                 : "took no part in receive(f32, 10, from 2)");
    }
}

/* All but the last rank send to each other all the time, and wait for that or for a sum that the last one
   leaves out. */
static void all_any_body(test_rank *me)
{
    float x[10] = { 0 }, y[10] = { 0 }, z[10] = { 0 };
    const int others = me->world - 1;
    dml_request *both[2] = { NULL };
    dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    const double begin = dml_seconds();
    if (me->rank == others) {
        ranks_sleep(2.2);
    } else {
        both[1] = dml_comm_all_reduce_start(me->comm, y, 10, DML_F32, DML_SUM);
        do {
            ranks_sleep(0.02);
            dml_comm_send(me->comm, x, 10, DML_F32, (me->rank + 1) % others, 0);
            both[0] = dml_comm_receive_start(me->comm, z, 10, DML_F32, DML_ANY_SOURCE, 0);
        } while (dml_comm_wait_any(me->comm, both, 2) == 0);
        me->bad = dml_seconds() - begin > 1.8;
    }
    me->culprit = dml_comm_culprit(me->comm);
}

static void progress_threads_hide_nobody_either(void)
{
    static const char *const transports[] = { "shm", "tcp", "local" };
    test_rank ranks[5];
    for (int i = 0; i < 4; i++) {
        const int world = 4 + i % 2;
        ranks_prepare(ranks, world, 0.6, all_any_body, NULL);
        ranks_run_on(ranks, world, transports[i % 3]);
        for (int rank = 0; rank < world - 1; rank++)
            CHECK_MESSAGE(!ranks[rank].bad, "rank %d of %d took long", rank, world);
        check_blame(ranks, world, world - 1, "took no part in all_reduce(f32, 10, sum)");
    }
}

/* ---- who has nothing under way ---- */

/* Rank 1 has moved later than who waits for it, and its time counts from then. */
static void idle_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    if (me->rank == 2) ranks_sleep(0.7);
    if (me->rank == 2) dml_comm_send(me->comm, x, 10, DML_F32, 1, 0);
    if (me->rank == 1) {
        dml_comm_receive(me->comm, x, 10, DML_F32, 2, 0, NULL);
        ranks_sleep(0.8);
        dml_comm_send(me->comm, x, 10, DML_F32, 0, 0);
    }
    dml_comm_barrier(me->comm);
}

static void who_computes_has_its_own_time(void)
{
    static const char *const transports[] = { "tcp", "local" };
    test_rank ranks[3];
    for (int i = 0; i < 2; i++) {
        ranks_prepare(ranks, 3, 1, idle_body, NULL);
        ranks_run_on(ranks, 3, transports[i]);
        check_all_well(ranks, 3);
    }
}

/* Rank 0 comes back when the others have just asked, with a new call; what it has missed moves then. */
static void back_body(test_rank *me)
{
    enum { SMALL = 1825, LARGE = 60000 };
    float *x = (float *)calloc(4 * (SMALL + LARGE) + SMALL + LARGE, sizeof *x);
    float *in = x + SMALL, *out = in + 4 * SMALL, *part = out + 4 * LARGE;
    dml_comm_barrier(me->comm);
    dml_request *first = dml_comm_all_gather_start(me->comm, x, SMALL, DML_F32, in);
    if (me->rank == 0) ranks_sleep(1.14);
    dml_request *second = dml_comm_scatter_start(me->comm, out, LARGE, DML_F32, part, 3);
    dml_comm_wait(me->comm, first);
    dml_comm_wait(me->comm, second);
    dml_comm_barrier(me->comm);
    me->culprit = dml_comm_culprit(me->comm);
    free(x);
}

static void who_comes_back_moves(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    test_rank ranks[4];
    for (int i = 0; i < 3; i++) {
        ranks_prepare(ranks, 4, 1, back_body, NULL);
        ranks_run_on(ranks, 4, transports[i % 3]);
        for (int rank = 0; rank < 4; rank++)
            CHECK_MESSAGE(!ranks[rank].status ||
                              (ranks[rank].status == DML_ERROR_TIMEOUT && ranks[rank].culprit == 0),
                          "rank %d blames %d: %s", rank, ranks[rank].culprit, ranks[rank].error);
    }
}

/* Who probes is missed like who computes: it doesn't wait for what the others do. Nor does who probes again
   and again. */
typedef struct probing_case {
    bool polls, helps;
} probing_case;

static void probing_body(test_rank *me)
{
    dml_message message;
    const probing_case *c = (const probing_case *)me->user;
    if (c->helps) dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    const double until = dml_seconds() + 4;
    if (me->rank == 0 && c->polls)
        while (!dml_comm_probe(me->comm, 1, 1, 0, &message) && !dml_comm_status(me->comm) &&
               dml_seconds() < until)
            ranks_sleep(0.001);
    else if (me->rank == 0)
        dml_comm_probe(me->comm, 1, 1, 4, &message);
    me->bad = me->rank == 0 && dml_seconds() > until - 1; /* it hears that the job is over */
    dml_comm_barrier(me->comm);
    me->culprit = dml_comm_culprit(me->comm);
}

static void who_probes_is_missed(void)
{
    test_rank ranks[3];
    for (int i = 0; i < 4; i++) {
        const int world = 2 + i % 2;
        probing_case c;
        c.polls = i > 0;
        c.helps = i > 1;
        ranks_prepare(ranks, world, 0.6, probing_body, &c);
        ranks_run_on(ranks, world, "shm");
        for (int rank = 0; rank < world; rank++) {
            CHECK_INT(ranks[rank].culprit, 0);
            CHECK_INT(ranks[rank].bad, 0);
            CHECK_CONTAINS(ranks[rank].error, "rank 0 of ");
            CHECK_CONTAINS(ranks[rank].error, "took no part in barrier() within 0.6 s: it is waiting for a "
                                              "message in dml_comm_probe");
        }
    }
}

/* ---- who waits for each other ---- */

/* Two communicators of the same ranks, in one order here and in the other there; who waits for them judges
   the same. */
static void crossing_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm *a = dml_comm_split(me->comm, me->rank == 0, me->rank);
    dml_comm *b = dml_comm_split(me->comm, me->rank == 0, me->rank);
    dml_comm_barrier(me->comm);
    if (me->rank == 0)
        dml_comm_receive(me->comm, x, 10, DML_F32, 1, 0, NULL);
    else
        dml_comm_all_reduce(me->rank == 1 ? a : b, x, 10, DML_F32, DML_SUM);
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(a);
    dml_comm_close(b);
}

static void all_name_one_circle(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.5, crossing_body, NULL);
    ranks_run_on(ranks, 3, "shm");
    for (int rank = 0; rank < 3; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_MESSAGE(ranks[rank].culprit == 2, "rank %d blames %d", rank, ranks[rank].culprit);
        CHECK_STRING(ranks[rank].error,
                     "rank 2 called all_reduce(f32, 10, sum) in communicator 2 while rank 1 called "
                     "all_reduce(f32, 10, sum) in communicator 1: they wait for each other");
    }
}

static void fewer_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm *group = dml_comm_split(me->comm, me->rank < 2, me->rank);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_all_reduce(group, x, 10, DML_F32, DML_SUM);
    dml_comm_barrier(me->comm);
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(group);
}

/* Of a collective of two that one left out, the other is in a call by itself: which of the two erred nobody
   knows, so the call is named that fewer are in. */
static void all_name_one_of_different_calls(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 0.5, fewer_body, NULL);
    for (int rank = 0; rank < 4; rank++) ranks[rank].options.algorithm = "ring";
    ranks_run_on(ranks, 4, "tcp");
    for (int rank = 0; rank < 4; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_STRING(ranks[rank].error, ranks[0].error);
        CHECK_CONTAINS(
            ranks[rank].error,
            "rank 0 called all_reduce(f32, 10, sum) in communicator 1 while rank 1 called barrier()");
    }
}

/* A receive from anybody, of which nobody knows; and one that waits for it. */
static void from_any_body(test_rank *me)
{
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 10, DML_F32, DML_ANY_SOURCE, 9, NULL);
    dml_comm_barrier(me->comm);
    me->culprit = dml_comm_culprit(me->comm);
}

static void all_name_a_receive_from_any(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 0.5, from_any_body, NULL);
    ranks_run_on(ranks, 4, "tcp");
    for (int rank = 0; rank < 4; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_INT(ranks[rank].culprit, 0);
        CHECK_STRING(ranks[rank].error, "rank 0 called receive(f32, 10, from any) with tag 9 while rank 1 "
                                        "called barrier(): they wait for each other");
    }
}

/* Of three, two have a group, whose barrier rank 1 leaves out: who waits for it names it. */
static void left_out_body(test_rank *me)
{
    dml_comm *group = dml_comm_split(me->comm, me->rank > 0, me->rank);
    dml_comm_barrier(me->comm);
    if (me->rank == 2) dml_comm_barrier(group);
    dml_comm_barrier(me->comm);
    dml_comm_close(group);
}

static void who_is_waited_for_is_named(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 0.5, left_out_body, NULL);
    ranks_run_on(ranks, 3, "shm");
    for (int rank = 0; rank < 3; rank++)
        CHECK_STRING(ranks[rank].error, "rank 2 called barrier() in communicator 1 while rank 1 called "
                                        "barrier(): they wait for each other");
}

/* All in the same call: none is more to blame than the others, and none should be left out. */
static void ring_body(test_rank *me)
{
    float x[10] = { 0 };
    const bool from_any = *(const bool *)me->user;
    dml_comm_barrier(me->comm);
    dml_comm_receive(me->comm, x, 10, DML_F32, from_any ? DML_ANY_SOURCE : (me->rank + 1) % me->world, 3,
                     NULL);
    me->culprit = dml_comm_culprit(me->comm);
}

static void nobody_is_to_blame_for_a_ring(void)
{
    test_rank ranks[3];
    for (int i = 0; i < 4; i++) {
        bool from_any = i % 2;
        const int world = i < 2 ? 2 : 3;
        ranks_prepare(ranks, world, 1, ring_body, &from_any);
        ranks_run_on(ranks, world, "shm");
        for (int rank = 0; rank < world; rank++) {
            CHECK_INT(ranks[rank].status, DML_ERROR_TIMEOUT);
            CHECK_INT(ranks[rank].culprit, -1);
            CHECK_CONTAINS(ranks[rank].error, "did not end within 1 s, though no rank is missing");
        }
    }
}

int main(void)
{
    RUN(looking_has_as_long_as_waiting);
    RUN(looking_rarely_ends_too);
    RUN(a_wait_counts_from_its_begin);
    RUN(what_is_on_its_way_has_the_whole_time);
    RUN(what_was_never_sent_is_known_soon);
    RUN(a_chain_that_moves);
    RUN(what_others_send_excuses_nobody);
    RUN(bystanders_are_not_to_blame);
    RUN(who_is_absent_is_to_blame);
    RUN(who_has_started_its_part_is_not);
    RUN(who_looks_at_its_requests_is_not);
    RUN(the_nearer_one_judges);
    RUN(what_was_only_started_keeps_nobody);
    RUN(what_others_send_keeps_nobody_hidden);
    RUN(progress_threads_hide_nobody_either);
    RUN(who_computes_has_its_own_time);
    RUN(who_comes_back_moves);
    RUN(who_probes_is_missed);
    RUN(all_name_one_circle);
    RUN(all_name_one_of_different_calls);
    RUN(all_name_a_receive_from_any);
    RUN(who_is_waited_for_is_named);
    RUN(nobody_is_to_blame_for_a_ring);
    return test_report("comm/patience");
}
