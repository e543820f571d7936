/* Communicators that were split from others: who is in them, and that they are used and closed in any order.
 */
#include "ranks.h"

static const char *const transports[] = { "tcp", "shm", "local" };

static void run_on_all(int world, void (*body)(test_rank *), int max_requests)
{
    for (int t = 0; t < 3; t++) {
        test_rank ranks[RANKS_MOST];
        ranks_prepare(ranks, world, 20, body, NULL);
        for (int rank = 0; rank < world; rank++) ranks[rank].options.max_requests = max_requests;
        ranks_run_on(ranks, world, transports[t]);
        for (int rank = 0; rank < world; rank++)
            CHECK_MESSAGE(!ranks[rank].bad && !ranks[rank].status, "%s: rank %d of %d: %d wrong: %s",
                          transports[t], rank, world, ranks[rank].bad, ranks[rank].error);
    }
}

/* The sum over a group of 1 + world rank, which tells who is in it. */
static int sum_of(test_rank *me, dml_comm *comm)
{
    int32_t x = 1 << me->rank;
    me->bad += dml_comm_all_reduce(comm, &x, 1, DML_I32, DML_SUM) != DML_OK;
    return x;
}

static void colors_body(test_rank *me)
{
    int same = 0, half = 0;
    for (int rank = 0; rank < me->world; rank++) {
        same |= 1 << rank;
        if (rank % 2 == me->rank % 2) half |= 1 << rank;
    }
    dml_comm *all = dml_comm_split(me->comm, 7, -me->rank); /* reversed */
    me->bad += dml_comm_rank(all) != me->world - 1 - me->rank || dml_comm_world_size(all) != me->world;
    me->bad += sum_of(me, all) != same;
    dml_comm *equal = dml_comm_split(me->comm, 0, 5); /* equal keys: by rank */
    me->bad += dml_comm_rank(equal) != me->rank;
    dml_comm *parity = dml_comm_split(all, me->rank % 2, 0);
    me->bad += sum_of(me, parity) != half;
    /* The order is that of `all`'s ranks, which are reversed. */
    int32_t order[RANKS_MAX], mine = me->rank;
    me->bad += dml_comm_all_gather(parity, &mine, 1, DML_I32, order) != DML_OK;
    for (int r = 1; r < dml_comm_world_size(parity); r++) me->bad += order[r] != order[r - 1] - 2;
    dml_comm *alone = dml_comm_split(parity, dml_comm_rank(parity), 0);
    me->bad += dml_comm_world_size(alone) != 1 || sum_of(me, alone) != 1 << me->rank;
    me->bad += dml_comm_barrier(alone) != DML_OK;
    dml_comm *none = dml_comm_split(me->comm, me->rank ? 3 : -1, 0);
    me->bad += (none == NULL) != (me->rank == 0);
    if (none) me->bad += sum_of(me, none) != (same & ~1);
    dml_comm *nobody = dml_comm_split(me->comm, -5, 0);
    me->bad += nobody != NULL;
    me->bad += dml_comm_status(me->comm) != DML_OK;
    dml_comm_close(equal);
    dml_comm_close(all); /* before those that were split from it */
    me->bad += sum_of(me, parity) != half;
    dml_comm_close(none);
    dml_comm_close(parity);
    dml_comm_close(alone);
}

static void colors_and_keys(void)
{
    for (int world = 1; world <= 7; world += 2) run_on_all(world, colors_body, 0);
}

/* Several at once, each with operations under way, that are waited for through another one's end. */
static void at_once_body(test_rank *me)
{
    enum { GROUPS = 4, N = 30000 };
    dml_comm *comms[GROUPS];
    float *data = (float *)malloc(GROUPS * N * sizeof *data);
    dml_request *requests[GROUPS];
    comms[0] = me->comm;
    comms[1] = dml_comm_split(me->comm, me->rank / 2, 0);
    comms[2] = dml_comm_split(me->comm, me->rank % 2, -me->rank);
    comms[3] = dml_comm_split(comms[2], 0, me->rank);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < GROUPS * N; i++) data[i] = 1;
        for (int k = 0; k < GROUPS; k++) {
            const int g = (k + me->rank) % GROUPS; /* other orders on other ranks */
            requests[g] = dml_comm_all_reduce_start(comms[g], data + g * N, N, DML_F32, DML_SUM);
        }
        int left = GROUPS;
        while (left) {
            const int done = dml_comm_wait_any(me->comm, requests, GROUPS);
            if (done < 0) break;
            left--;
            for (int i = 0; i < N; i++)
                me->bad += data[done * N + i] != (float)dml_comm_world_size(comms[done]);
        }
        me->bad += left != 0;
    }
    for (int g = 1; g < GROUPS; g++) dml_comm_close(comms[(g + me->rank) % 3 + 1]);
    free(data);
}

static void several_at_once(void)
{
    run_on_all(6, at_once_body, 0);
}

/* What was started is finished by the end of its communicator, though it isn't the last one; and what isn't
   waited for is taken back. */
static void closed_busy_body(test_rank *me)
{
    enum { N = 50000 };
    float *data = (float *)malloc(N * sizeof *data);
    for (int round = 0; round < 8; round++) {
        dml_comm *group = dml_comm_split(me->comm, 0, 0);
        for (int i = 0; i < N; i++) data[i] = 1;
        if (me->rank == round % me->world) ranks_sleep(0.002);
        me->bad += !dml_comm_all_reduce_start(group, data, N, DML_F32, DML_SUM);
        me->bad += !dml_comm_barrier_start(group);
        me->bad += dml_comm_close(group) != DML_OK;
        for (int i = 0; i < N; i++) data[i] == (float)me->world ? 0 : me->bad++;
    }
    free(data);
}

static void closed_with_something_under_way(void)
{
    run_on_all(3, closed_busy_body, 4); /* so that eight rounds need what was taken back */
}

/* Groups that come and go: what was still on its way to one that was closed doesn't pile up. */
static void come_and_go_body(test_rank *me)
{
    enum { LARGE = 20000, SMALL = 10 };
    float *data = (float *)malloc(LARGE * sizeof *data);
    size_t counts[2] = { LARGE, SMALL };
    float *all = (float *)calloc(LARGE + SMALL, sizeof *all);
    for (int i = 0; i < LARGE; i++) data[i] = (float)me->rank;
    for (int round = 0; round < 300; round++) {
        dml_comm *group = dml_comm_split(me->comm, 0, 0);
        me->bad += dml_comm_all_gatherv(group, data, counts, NULL, DML_F32, all) != DML_OK;
        me->bad +=
            dml_comm_broadcast(group, data, round % 2 ? SMALL : LARGE, DML_F32, round / 2 % 2) != DML_OK;
        me->bad += dml_comm_reduce(group, all, LARGE, DML_F32, DML_SUM, round % 2) != DML_OK;
        dml_comm_close(group);
        if (me->bad) break;
    }
    dml_comm_barrier(me->comm);
    for (int rank = 0; rank < me->world; rank++)
        if (rank != me->rank) me->bad += me->comm->job->links[rank].store_used > 4 * DML__FRAME_BYTES;
    int kept = 0; /* for who asks what was called in them: the last sixteen, and the world */
    for (const dml_comm *comm = me->comm->job->comms; comm; comm = comm->next) kept++;
    me->bad += kept != 17;
    free(all);
    free(data);
}

static void groups_come_and_go(void)
{
    run_on_all(2, come_and_go_body, 2);
}

/* A custom reduction goes along. */
static void add_squares(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    float *a = (float *)into;
    const float *b = (const float *)from;
    ++*(int *)user;
    if (dtype != DML_F32) return;
    for (size_t i = 0; i < count; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
}

static void custom_body(test_rank *me)
{
    int calls = 0;
    const dml_reduce_op largest = dml_comm_add_reduce(me->comm, add_squares, &calls);
    dml_comm *group = dml_comm_split(me->comm, me->rank / 2, 0);
    float x[100];
    for (int i = 0; i < 100; i++) x[i] = (float)((me->rank * 37 + i * 11) % 50);
    me->bad += dml_comm_all_reduce(group, x, 100, DML_F32, largest) != DML_OK;
    for (int i = 0; i < 100; i++) {
        float want = 0;
        for (int rank = me->rank / 2 * 2; rank < me->world && rank <= me->rank / 2 * 2 + 1; rank++)
            if ((float)((rank * 37 + i * 11) % 50) > want) want = (float)((rank * 37 + i * 11) % 50);
        me->bad += x[i] != want;
    }
    dml_comm_close(group);
}

static void functions_go_along(void)
{
    run_on_all(5, custom_body, 0);
}

/* Sixteen of them, whose numbers the type holds in C++ too; one more is none. */
static void many_functions_body(test_rank *me)
{
    int calls = 0;
    dml_reduce_op op = DML_SUM;
    for (int i = 0; i < 16; i++) {
        op = dml_comm_add_reduce(me->comm, add_squares, &calls);
        me->bad += (int)op <= (int)DML_PROD || (int)op > (int)DML__REDUCE_OP_LARGEST;
    }
    float x = (float)me->rank;
    me->bad += dml_comm_all_reduce(me->comm, &x, 1, DML_F32, op) != DML_OK || x != (float)(me->world - 1);
    op = dml_comm_add_reduce(me->comm, add_squares, &calls);
    me->bad += (int)op != (int)DML_PROD + 17 || (int)op > (int)DML__REDUCE_OP_LARGEST;
}

static void sixteen_functions(void)
{
    run_on_all(3, many_functions_body, 0);
}

/* Ranks of a group have numbers of their own there, so its calls say which group it is. */
static void told_of_a_group_body(test_rank *me)
{
    float x[4] = { 0 };
    const int what = *(const int *)me->user;
    dml_comm *group = dml_comm_split(me->comm, me->rank > 0, me->rank);
    if (me->rank == 2 && what == 0) dml_comm_send(group, x, 1, DML_F32, 1, 0);
    if (me->rank == 2 && what == 1) dml_comm_broadcast(group, x, 4, DML_F32, 2);
    if (me->rank == 1 && what == 2) dml_comm_send(group, x, 4, DML_F32, 1, 3);
    if (me->rank == 2 && what == 2) dml_comm_receive(group, x, 4, DML_I32, 0, 3, NULL);
    dml_comm_barrier(me->comm);
    dml_comm_close(group);
}

static void faults_name_the_group(void)
{
    static const char *const sentences[] = {
        "rank 2 called send(f32, 1, to 1) in communicator 1: it must be another rank",
        "rank 2 called broadcast(f32, 4, root 2) in communicator 1: it must be a rank of the communicator",
        "rank 1 called send(f32, 4, to 1) with tag 3 while rank 2 called receive(i32, 4, from 0) with tag 3 "
        "in "
        "communicator 1",
    };
    for (int what = 0; what < 3; what++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 10, told_of_a_group_body, &what);
        ranks_run_on(ranks, 3, "local");
        CHECK_CONTAINS(ranks[2].error, sentences[what]);
    }
}

int main(void)
{
    RUN(colors_and_keys);
    RUN(several_at_once);
    RUN(closed_with_something_under_way);
    RUN(groups_come_and_go);
    RUN(functions_go_along);
    RUN(sixteen_functions);
    RUN(faults_name_the_group);
    return test_report("comm/groups");
}
