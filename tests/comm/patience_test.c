/* Who is late, and who is blamed for it: ranks that look at their requests now and then, that were away, that
   wait for ranks that move, or that have nothing to do with each other. */
#include "ranks.h"

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
    CHECK_CONTAINS(ranks[0].error, "others wait for each other");
    CHECK_CONTAINS(ranks[0].error, "receive(f32, 10, from");
    CHECK_MESSAGE(!strstr(ranks[0].error, "all_reduce"), "it names a bystander: %s", ranks[0].error);
}

int main(void)
{
    RUN(looking_has_as_long_as_waiting);
    RUN(looking_rarely_ends_too);
    RUN(a_wait_counts_from_its_begin);
    RUN(a_chain_that_moves);
    RUN(bystanders_are_not_to_blame);
    return test_report("comm/patience");
}
