/* Receives that nobody answers, and messages that nobody asked for: what is said of them, and how soon. */
#include "ranks.h"

/* ---- a receive that nobody will answer ---- */

static void from_any_body(test_rank *me)
{
    float x;
    if (me->rank == 0) me->bad = dml_comm_receive(me->comm, &x, 1, DML_F32, DML_ANY_SOURCE, 0, NULL);
}

/* It ends when the last of the others has closed, not at its deadline. */
static void nobody_is_left_to_send(void)
{
    for (int world = 2; world < 5; world++) {
        test_rank ranks[4];
        ranks_prepare(ranks, world, 20, from_any_body, NULL);
        ranks_run(ranks, world);
        CHECK_INT(ranks[0].bad, DML_ERROR_PEER);
        CHECK_CONTAINS(ranks[0].error,
                       world == 2
                           ? "rank 1 closed its communicator while rank 0 was in receive(f32, 1, from any)"
                           : "rank 0 called receive(f32, 1, from any), which nobody sends any more");
        CHECK_MESSAGE(ranks[0].seconds < 10, "it took %g s", ranks[0].seconds);
    }
}

static void late_sender_body(test_rank *me)
{
    float x[4] = { 0 };
    if (me->rank == 2) ranks_sleep(1.5);
    if (me->rank == 2) me->bad = dml_comm_send(me->comm, x, 4, DML_F32, 0, 0);
    if (me->rank == 0) me->bad = dml_comm_receive(me->comm, x, 4, DML_F32, DML_ANY_SOURCE, 0, NULL);
}

/* As long as one may still send it goes on. */
static void one_is_left_to_send(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 20, late_sender_body, NULL);
    ranks_run(ranks, 3);
    check_ranks(ranks, 3);
}

/* ---- a wrong tag ---- */

static void wrong_tag_body(test_rank *me)
{
    const bool closes = me->user != NULL;
    float x[3] = { 0 };
    if (me->rank == 1) dml_comm_send(me->comm, x, 3, DML_F32, 0, 7);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 3, DML_F32, 1, 5, NULL);
    if (!closes) dml_comm_barrier(me->comm);
}

/* What lies there with another tag is told, whoever finds that nobody goes on. */
static void wrong_tag(void)
{
    static const char lies[] =
        "receive(f32, 3, from 1) with tag 5 (a message from 1 with tag 7 lies there unreceived)";
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 1, wrong_tag_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ranks[rank].error, lies);
        CHECK_CONTAINS(ranks[rank].error, "called barrier()");
    }
    ranks_prepare(ranks, 2, 20, wrong_tag_body, ranks);
    ranks_run(ranks, 2);
    CHECK_INT(ranks[0].status, DML_ERROR_PEER);
    CHECK_CONTAINS(ranks[0].error, "rank 1 closed its communicator while rank 0 was in ");
    CHECK_CONTAINS(ranks[0].error, lies);
}

static void wrong_size_body(test_rank *me)
{
    float x[3] = { 0 };
    const bool any = me->user != NULL;
    if (me->rank == 1) dml_comm_send(me->comm, x, 3, DML_F32, 0, 7);
    if (me->rank == 0) dml_comm_receive(me->comm, x, 2, DML_F32, 1, any ? DML_ANY_TAG : 7, NULL);
}

static void sizes_are_told_with_their_tags(void)
{
    test_rank ranks[2];
    for (int any = 0; any < 2; any++) {
        ranks_prepare(ranks, 2, 20, wrong_size_body, any ? ranks : NULL);
        ranks_run(ranks, 2);
        CHECK_INT(ranks[0].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ranks[0].error, "rank 1 called send(f32, 3, to 0) with tag 7 while rank 0 called "
                                       "receive(f32, 2, from 1) with ");
        CHECK_CONTAINS(ranks[0].error, any ? " with any tag" : "from 1) with tag 7");
    }
}

int main(void)
{
    RUN(nobody_is_left_to_send);
    RUN(one_is_left_to_send);
    RUN(wrong_tag);
    RUN(sizes_are_told_with_their_tags);
    return test_report("comm/unreceived");
}
