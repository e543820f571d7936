/* What a communicator counts. */
#include "ranks.h"

enum { WORLD = 3, COUNT = 3 * 1000 };

typedef struct totals {
    dml_comm_stats of[WORLD];
} totals;

static void add_traffic(dml_comm_traffic *sum, const dml_comm_traffic *one)
{
    sum->bytes_sent += one->bytes_sent;
    sum->bytes_received += one->bytes_received;
    sum->messages_sent += one->messages_sent;
    sum->messages_received += one->messages_received;
}

static bool no_traffic(const dml_comm_traffic *traffic)
{
    return !traffic->bytes_sent && !traffic->bytes_received && !traffic->messages_sent &&
           !traffic->messages_received;
}

/* A ring of n ranks sends 2 (n - 1) / n of the array from each rank. */
static void ring_body(test_rank *me)
{
    totals *all = (totals *)me->user;
    ranks_sleep(0.1); /* counters begin when a rank has opened: nothing comes to one that hasn't */
    float data[COUNT] = { 0 };
    dml_comm_stats stats;
    dml_comm_get_stats(me->comm, &stats);
    if (stats.started || stats.done || !no_traffic(&stats.tcp) || !no_traffic(&stats.shm)) me->bad++;
    for (int i = 0; i < 4; i++) dml_comm_all_reduce(me->comm, data, COUNT, DML_F32, DML_SUM);
    dml_comm_get_stats(me->comm, &all->of[me->rank]);
}

static void check_ring(const char *transport)
{
    test_rank ranks[WORLD];
    totals all;
    dml_comm_traffic sum = { 0 };
    memset(&all, 0, sizeof all);
    ranks_prepare(ranks, WORLD, 30, ring_body, &all);
    for (int rank = 0; rank < WORLD; rank++) {
        ranks[rank].options.algorithm = "all_reduce=ring";
        ranks[rank].options.transport = transport;
    }
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
    for (int rank = 0; rank < WORLD; rank++) {
        const dml_comm_stats *stats = &all.of[rank];
        CHECK_INT((long long)stats->started, 4);
        CHECK_INT((long long)stats->done, 4);
        CHECK(stats->waited_s >= 0 && stats->waited_s < 1000);
        CHECK(no_traffic(&stats->local));
        if (strcmp(transport, "tcp") == 0) CHECK(no_traffic(&stats->shm));
        add_traffic(&sum, &stats->tcp);
        add_traffic(&sum, &stats->shm);
    }
    CHECK_INT((long long)sum.bytes_sent, 4 * 2 * (WORLD - 1) * COUNT * 4);
    CHECK_INT((long long)sum.bytes_received, (long long)sum.bytes_sent);
    CHECK_INT((long long)sum.messages_sent, 4 * 2 * (WORLD - 1) * WORLD);
    CHECK_INT((long long)sum.messages_received, (long long)sum.messages_sent);
}

static void a_ring_over_sockets(void)
{
    check_ring("tcp");
}

static void a_ring_over_what_there_is(void)
{
    check_ring("shm");
}

/* What comes early is kept; what is long needs leave; who is early waits. */
static void pair_body(test_rank *me)
{
    enum { LONG = 1 << 20 };
    static uint8_t from[LONG], to[LONG];
    totals *all = (totals *)me->user;
    ranks_sleep(0.1); /* counters begin when a rank has opened: nothing comes to one that hasn't */
    uint8_t small[2] = { 1, 2 };
    if (me->rank == 1) {
        dml_comm_send(me->comm, &small[0], 1, DML_U8, 0, 1);
        dml_comm_send(me->comm, &small[1], 1, DML_U8, 0, 2);
        ranks_sleep(0.02);
        dml_comm_send(me->comm, from, LONG, DML_U8, 0, 3);
    } else {
        dml_comm_receive(me->comm, &small[0], 1, DML_U8, 1, 2, NULL);
        dml_comm_receive(me->comm, &small[1], 1, DML_U8, 1, 1, NULL);
        dml_comm_receive(me->comm, to, LONG, DML_U8, 1, 3, NULL);
        if (small[0] != 2 || small[1] != 1) me->bad++;
    }
    dml_comm_get_stats(me->comm, &all->of[me->rank]);
}

static void pairs(void)
{
    test_rank ranks[2];
    totals all;
    memset(&all, 0, sizeof all);
    ranks_prepare(ranks, 2, 30, pair_body, &all);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].options.transport = "tcp";
        ranks[rank].options.segment_bytes = 256 << 10;
    }
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    const dml_comm_stats *receiver = &all.of[0], *sender = &all.of[1];
    CHECK(receiver->early >= 1);
    CHECK(receiver->grants >= 1);
    CHECK(receiver->waited_s > 0);
    CHECK(receiver->slept >= 1);
    CHECK_INT((long long)sender->early, 0);
    CHECK_INT((long long)receiver->tcp.bytes_received, 2 + (1 << 20));
    CHECK_INT((long long)receiver->tcp.messages_received, 2 + 4);
    CHECK_INT((long long)sender->tcp.bytes_sent, 2 + (1 << 20));
    CHECK_INT((long long)sender->tcp.bytes_received, 0);
    CHECK_INT((long long)receiver->started, 3);
    CHECK_INT((long long)receiver->done, 3);
}

/* A long wait, then a shorter one, and then none. */
static void waits_body(test_rank *me)
{
    static const double late[] = { 0.1, 0.01, 0 };
    uint8_t x = 0;
    dml_comm_stats stats;
    dml_comm_barrier(me->comm);
    const double begin = dml_seconds();
    dml_comm_get_stats(me->comm, &stats);
    const double before = stats.waited_s;
    double waited = before;
    for (int i = 0; i < 3; i++) {
        if (me->rank == 1) ranks_sleep(late[i]);
        if (me->rank == 1) dml_comm_send(me->comm, &x, 1, DML_U8, 0, 0);
        if (me->rank == 0) dml_comm_receive(me->comm, &x, 1, DML_U8, 1, 0, NULL);
        dml_comm_get_stats(me->comm, &stats);
        me->bad += stats.waited_s < waited;
        waited = stats.waited_s;
    }
    me->bad += waited - before > dml_seconds() - begin;
}

static void waits_add_up(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    for (int t = 0; t < 3; t++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 30, waits_body, NULL);
        ranks_run_on(ranks, 2, transports[t]);
        check_ranks(ranks, 2);
    }
}

typedef struct local_rank {
    dml_comm *comm;
    float *data; /* (count) */
    size_t count;
    dml_comm_stats stats;
} local_rank;

static void *local_reduce(void *argument)
{
    local_rank *rank = (local_rank *)argument;
    for (size_t i = 0; i < rank->count; i++) rank->data[i] = (float)(i % 1000);
    dml_comm_all_reduce(rank->comm, rank->data, rank->count, DML_F32, DML_SUM);
    dml_comm_get_stats(rank->comm, &rank->stats);
    return NULL;
}

static void *local_close(void *argument)
{
    dml_comm_close(((local_rank *)argument)->comm);
    return NULL;
}

static void run_local(local_rank *ranks, int world, void *(*body)(void *argument))
{
    pthread_t threads[WORLD];
    for (int r = 0; r < world; r++) pthread_create(&threads[r], NULL, body, &ranks[r]);
    for (int r = 0; r < world; r++) pthread_join(threads[r], NULL);
}

/* An all-reduce of ranks that are threads. */
static void reduce_locally(local_rank *ranks, int world, const dml_comm_options *options, size_t count)
{
    dml_comm *comms[WORLD];
    CHECK_INT(dml_comm_open_local(comms, world, options), DML_OK);
    for (int r = 0; r < world; r++) {
        ranks[r].comm = comms[r];
        ranks[r].count = count;
        ranks[r].data = (float *)malloc(count * sizeof(float));
    }
    run_local(ranks, world, local_reduce);
    for (int r = 0; r < world; r++) {
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) wrong += ranks[r].data[i] != (float)(world * (int)(i % 1000));
        CHECK_INT((long long)wrong, 0);
        free(ranks[r].data);
    }
    run_local(ranks, world, local_close);
}

static void ranks_of_one_process(void)
{
    local_rank ranks[2];
    reduce_locally(ranks, 2, NULL, 100);
    CHECK(ranks[0].stats.local.bytes_sent > 0);
    CHECK_INT((long long)ranks[0].stats.local.bytes_sent, (long long)ranks[1].stats.local.bytes_received);
    CHECK(no_traffic(&ranks[0].stats.tcp) && no_traffic(&ranks[0].stats.shm));
}

/* 1.5 MiB in four rounds of 384 KiB, each of as many messages as a ring has, and the last one shorter. */
static void rounds(void)
{
    local_rank ranks[WORLD];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.algorithm = "ring";
    reduce_locally(ranks, WORLD, &options, (3 << 17) - 5);
    for (int r = 0; r < WORLD; r++)
        CHECK_INT((long long)ranks[r].stats.local.messages_sent, 4 * 2 * (WORLD - 1));
}

static void nobody(void)
{
    dml_comm_stats stats;
    dml_comm_get_stats(NULL, &stats);
    CHECK_INT((long long)stats.started, 0);
    dml_comm_get_stats(NULL, NULL);
}

int main(void)
{
    RUN(a_ring_over_sockets);
    RUN(a_ring_over_what_there_is);
    RUN(pairs);
    RUN(waits_add_up);
    RUN(ranks_of_one_process);
    RUN(rounds);
    RUN(nobody);
    return test_report("comm/stats");
}
