/* Short calls, which go past the engine: whatever the other ranks do meanwhile, the results are the engine's
   to the bit, and so are the sentences when something is wrong. */
#include "ranks.h"

#include <sched.h>
#include <time.h>

enum { MOST = 1200, ROUNDS = 30 };

/* How a rank goes about the calls. */
typedef enum manner { SHORT, BY_ENGINE, MIXED } manner;

typedef struct plan {
    manner manner;
    const char *algorithm;
} plan;

static unsigned next_of(unsigned *state)
{
    return *state = *state * 1664525u + 1013904223u, *state >> 8;
}

/* Sums of them depend on their order. */
static float value(int rank, int round, size_t i)
{
    unsigned state = (unsigned)rank * 7919u + (unsigned)round * 104729u + (unsigned)i * 31u + 1;
    next_of(&state);
    return (float)next_of(&state) * 1e-3f + 1.0f / (float)(rank + 3);
}

static void finish(test_rank *me, dml_request *request)
{
    if (!request) me->bad++;
    me->bad += dml_comm_wait(me->comm, request) != DML_OK;
}

/* One call of each operation; `later`: this rank's are started, then waited for. */
static void one_round(test_rank *me, int round, size_t count, bool later)
{
    static __thread float in[RANKS_MAX * MOST], out[RANKS_MAX * MOST];
    const int root = round % me->world;
    const size_t all = count * (size_t)me->world;
    dml_comm *comm = me->comm;
    for (int operation = 0; operation < 9; operation++) {
        for (size_t i = 0; i < all; i++) in[i] = out[i] = value(me->rank, round + operation, i);
        dml_request *request = NULL;
        dml_status status = DML_OK;
#define CALL(name, ...)                                                                                      \
    if (later)                                                                                               \
        request = dml_comm_##name##_start(comm, __VA_ARGS__);                                                \
    else                                                                                                     \
        status = dml_comm_##name(comm, __VA_ARGS__);                                                         \
    break
        switch (operation) {
        case 0: CALL(all_reduce, out, count, DML_F32, round % 2 ? DML_MEAN : DML_SUM);
        case 1: CALL(reduce, out, count, DML_F32, DML_SUM, root);
        case 2: CALL(broadcast, out, count, DML_F32, root);
        case 3: CALL(scatter, in, count, DML_F32, out, root);
        case 4: CALL(gather, in, count, DML_F32, out, root);
        case 5: CALL(all_gather, in, count, DML_F32, out);
        case 6: CALL(reduce_scatter, in, count, DML_F32, DML_SUM, out);
        case 7: CALL(all_to_all, in, count, DML_F32, out);
        default:
            if (later)
                request = dml_comm_barrier_start(comm);
            else
                status = dml_comm_barrier(comm);
        }
#undef CALL
        if (later) finish(me, request);
        me->bad += status != DML_OK;
        if (operation != 1 || me->rank == root) ranks_digest(me, out, all * sizeof *out);
    }
}

static void rounds_body(test_rank *me)
{
    const plan *p = (const plan *)me->user;
    unsigned state = 1;
    for (int round = 0; round < ROUNDS; round++) {
        const size_t some = 1 + next_of(&state) % (round % 3 ? 5 : MOST);
        const size_t most = DML__SHORT_BYTES / sizeof(float);
        const size_t count = round == 3 ? 0 : round == 4 ? most : some;
        const int sleeper = (int)(next_of(&state) % (unsigned)me->world);
        const bool later = p->manner == MIXED && (round + me->rank) % 3 == 0;
        /* Who is late is waited for by the engine. */
        if (round % 8 == 7 && sleeper == me->rank) ranks_sleep(0.003);
        one_round(me, round, count, later);
    }
}

static void run_rounds(int world, plan *p, unsigned long long digests[RANKS_MAX])
{
    test_rank ranks[RANKS_MAX];
    ranks_prepare(ranks, world, 30, rounds_body, p);
    for (int rank = 0; rank < world; rank++) {
        ranks[rank].options.algorithm = p->algorithm;
        ranks[rank].options.progress_thread = p->manner == BY_ENGINE || (p->manner == MIXED && rank % 4 == 1);
    }
    ranks_run_on(ranks, world, "shm");
    for (int rank = 0; rank < world; rank++) {
        CHECK_MESSAGE(!ranks[rank].status && !ranks[rank].bad, "%s: rank %d of %d: %d wrong: %s",
                      p->algorithm, rank, world, ranks[rank].bad, ranks[rank].error);
        digests[rank] = ranks[rank].digest;
    }
}

static void the_same_bits(void)
{
    static const char *const names[] = { "butterfly,binomial,bruck,halving,dissemination",
                                         "direct,master_worker,tree",
                                         "ring,chain,pairwise,halving_doubling" };
    unsigned long long digests[3][RANKS_MAX];
    for (int world = 1; world <= RANKS_MAX; world++)
        for (int k = world % 3; k<3; k += world> 4 ? 3 : 1) {
            for (int m = 0; m < 3; m++) {
                plan p;
                p.manner = (manner)m;
                p.algorithm = names[k];
                run_rounds(world, &p, digests[m]);
            }
            for (int rank = 0; rank < world; rank++)
                CHECK_MESSAGE(digests[0][rank] == digests[1][rank] && digests[0][rank] == digests[2][rank],
                              "%s: rank %d of %d has other bits than by the engine", names[k], rank, world);
        }
}

/* ---- what lies in between ---- */

/* Messages before collectives: their frames are at the head when a short call looks. */
static void messages_body(test_rank *me)
{
    const int next = (me->rank + 1) % me->world, before = (me->rank + me->world - 1) % me->world;
    for (int i = 0; i < 200; i++) {
        float sum = 1;
        int32_t got = -1;
        const int32_t given = i * 10 + me->rank;
        dml_request *sent = dml_comm_send_start(me->comm, &given, 1, DML_I32, next, i);
        me->bad += dml_comm_all_reduce(me->comm, &sum, 1, DML_F32, DML_SUM) != DML_OK;
        if (i % 3 == 0) me->bad += dml_comm_barrier(me->comm) != DML_OK;
        me->bad += dml_comm_receive(me->comm, &got, 1, DML_I32, before, i, NULL) != DML_OK;
        me->bad += dml_comm_wait(me->comm, sent) != DML_OK;
        me->bad += sum != (float)me->world || got != i * 10 + before;
    }
}

/* A root that nobody answers has no more room at some time, and must hear that there is again. */
static void broadcasts_body(test_rank *me)
{
    for (int i = 0; i < 12000; i++) {
        int32_t x = me->rank ? -1 : i;
        me->bad += dml_comm_broadcast(me->comm, &x, 1, DML_I32, 0) != DML_OK || x != i;
        if (i == 5000 && me->rank == 1) ranks_sleep(0.05);
    }
}

/* Groups take turns: their schedules are different, their ids too. */
static void groups_body(test_rank *me)
{
    dml_comm *half = dml_comm_split(me->comm, me->rank % 2, me->rank);
    for (int i = 0; i < 300; i++) {
        int32_t all = 1, some = 1;
        me->bad += dml_comm_all_reduce(half, &some, 1, DML_I32, DML_SUM) != DML_OK;
        me->bad += dml_comm_all_reduce(me->comm, &all, 1, DML_I32, DML_SUM) != DML_OK;
        me->bad += all != me->world || some != dml_comm_world_size(half);
    }
    dml_comm_close(half);
}

static void run_body(void (*body)(test_rank *), int least, int most)
{
    test_rank ranks[RANKS_MAX];
    for (int world = least; world <= most; world++) {
        ranks_prepare(ranks, world, 30, body, NULL);
        ranks_run_on(ranks, world, "shm");
        check_ranks(ranks, world);
    }
}

static void messages_between(void)
{
    run_body(messages_body, 2, 4);
}

static void no_room(void)
{
    run_body(broadcasts_body, 2, 3);
}

static void groups(void)
{
    run_body(groups_body, 2, 5);
}

/* What is counted in 32 bits goes round soon: all ranks begin as far from there, between two calls. */
static pthread_barrier_t between_calls;

static void round_about_body(test_rank *me)
{
    const uint32_t most = UINT32_MAX - 5000;
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
    pthread_barrier_wait(&between_calls);
    for (int rank = 0; rank < me->world; rank++) {
        dml__link *link = &me->comm->job->links[rank];
        link->consumed += most, link->told += most, link->charged += most, link->credited += most;
    }
    pthread_barrier_wait(&between_calls);
    messages_body(me);
    for (int rank = 0; rank < me->world; rank++)
        if (rank != me->rank) me->bad += me->comm->job->links[rank].consumed > most;
    broadcasts_body(me);
}

static void counts_go_round(void)
{
    for (int world = 2; world <= 3; world++) {
        pthread_barrier_init(&between_calls, NULL, (unsigned)world);
        run_body(round_about_body, world, world);
        pthread_barrier_destroy(&between_calls);
    }
}

/* ---- what is counted ---- */

static void counts_body(test_rank *me)
{
    dml_comm_stats before, after;
    float x[2] = { 1, 2 };
    ranks_sleep(0.1); /* counters begin when a rank has opened: nothing comes to one that hasn't */
    dml_comm_get_stats(me->comm, &before);
    for (int i = 0; i < 100; i++) me->bad += dml_comm_all_reduce(me->comm, x, 2, DML_F32, DML_MAX) != DML_OK;
    dml_comm_get_stats(me->comm, &after);
    me->bad += after.started - before.started != 100 || after.done - before.done != 100;
    me->bad += after.shm.bytes_sent - before.shm.bytes_sent != 800;
    me->bad += after.shm.messages_sent - before.shm.messages_sent != 100;
    me->bad += after.shm.bytes_received - before.shm.bytes_received != 800;
    me->bad += after.shm.messages_received - before.shm.messages_received != 100;
}

static void what_is_counted(void)
{
    run_body(counts_body, 2, 2);
}

/* ---- ranks on one processor ---- */

static int crowds[2]; /* calls that found the other rank on their processor: of a few bytes; of the engine */

static void crowd_body(test_rank *me)
{
#if defined(__linux__)
    static __thread float x[4096];
    cpu_set_t all, one;
    int processor = 0;
    sched_getaffinity(0, sizeof all, &all);
    while (!CPU_ISSET(processor, &all)) processor++;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
    me->comm->job->yields = false; /* as where each has a processor */
    for (int i = 0; i < 200; i++)
        for (int large = 0; large < 2; large++) {
            me->comm->job->crowded = false;
            dml_comm_all_reduce(me->comm, x, large ? 4096 : 1, DML_F32, DML_SUM);
            __atomic_fetch_add(&crowds[large], me->comm->job->crowded, __ATOMIC_RELAXED);
        }
    sched_setaffinity(0, sizeof all, &all);
#else
    crowds[0] = crowds[1] = me->world;
#endif
}

static void who_has_its_processor(void)
{
    run_body(crowd_body, 2, 2);
    CHECK(crowds[0] > 0 && crowds[1] > 0);
}

/* ---- different calls ---- */

static void differ_body(test_rank *me)
{
    float x[2] = { 1, 2 };
    for (int i = 0; i < 5; i++) dml_comm_all_reduce(me->comm, x, 2, DML_F32, DML_SUM);
    dml_comm_all_reduce(me->comm, x, me->rank ? 1 : 2, DML_F32, DML_SUM);
}

static void different_calls(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 10, differ_body, NULL);
    ranks_run_on(ranks, 2, "shm");
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
        CHECK_MESSAGE(strstr(ranks[rank].error, "all_reduce(f32, 1, sum)") &&
                          strstr(ranks[rank].error, "all_reduce(f32, 2, sum)"),
                      "%s", ranks[rank].error);
    }
}

/* ---- who sleeps is woken ---- */

/* Each waits for the other in turn, for longer than it looks for a message without sleeping. */
static void late_body(test_rank *me)
{
    const struct timespec late = { 0, 2000000 };
    for (int i = 0; i < 20; i++) {
        float x = (float)i;
        if (i % 2 == me->rank) nanosleep(&late, NULL);
        me->bad += dml_comm_all_reduce(me->comm, &x, 1, DML_F32, DML_SUM) != DML_OK || x != (float)(2 * i);
        me->bad += dml_comm_broadcast(me->comm, &x, 1, DML_F32, i % 2) != DML_OK;
    }
}

/* Who isn't woken sees what has come at the deadline only, and that is 30 s away. */
static void late_calls(void)
{
    const double begin = dml_seconds();
    run_body(late_body, 2, 2);
    CHECK(dml_seconds() - begin < 30);
}

/* ---- which schedules, and in which order ---- */

static void the_order_of_steps(void)
{
    enum { STEPS = DML__SHORT_STEPS + 1 };
    static dml__step steps[STEPS];
    static dml__step_state states[STEPS];
    static dml__comm_job job;
    int world_ranks[3] = { 0, 1, 2 };
    dml_comm comm;
    dml_request request;
    memset(&comm, 0, sizeof comm);
    memset(&request, 0, sizeof request);
    comm.size = 3;
    comm.world_ranks = world_ranks;
    request.comm = &comm;
    request.states = states;
    request.schedule.steps = steps;
    request.schedule.capacity = STEPS;

    /* What is sent to 1 goes in its order, although the last could go at once; what is sent to 2 goes first.
     */
    dml__link links[3];
    memset(links, 0, sizeof links);
    links[1].at_once = links[2].at_once = true;
    job.links = links;
    job.eager_bytes = 1024;
    dml__schedule *s = &request.schedule;
    const int come = dml__add_receive(s, 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, 1);
    dml__add_after(s, dml__add_send(s, 1, DML__SPACE_OUT, 0, 1), come);
    dml__add_send(s, 1, DML__SPACE_IN, 0, 1);
    dml__add_send(s, 2, DML__SPACE_IN, 0, 1);
    CHECK(dml__has_short_steps(&job, &request));
    static const uint8_t order[] = { 3, 0, 1, 2 };
    CHECK(memcmp(request.written.order, order, sizeof order) == 0);
    CHECK_INT(states[1].message, 0);
    CHECK_INT(states[2].message, 1);

    /* A message has one frame, which the other rank has room for. */
    request.call.signature.dtype = DML_F32;
    job.eager_bytes = 2 * DML__SHORT_BYTES;
    s->steps[3].count = DML__SHORT_BYTES / sizeof(float);
    CHECK(dml__has_short_steps(&job, &request));
    s->steps[3].count++;
    CHECK(!dml__has_short_steps(&job, &request));
    s->steps[3].count = 257;
    CHECK(dml__has_short_steps(&job, &request));
    job.eager_bytes = 1024;
    CHECK(!dml__has_short_steps(&job, &request));
    s->steps[3].count = 256;

    links[2].at_once = false;
    CHECK(!dml__has_short_steps(&job, &request));
    links[2].at_once = true;
    comm.size = 65;
    CHECK(!dml__has_short_steps(&job, &request));
    comm.size = 3;
    while (s->count < STEPS) dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, 1, DML__SPACE_IN, 0);
    CHECK(!dml__has_short_steps(&job, &request));
    s->count--;
    CHECK(dml__has_short_steps(&job, &request));
}

int main(void)
{
    RUN(the_same_bits);
    RUN(messages_between);
    RUN(no_room);
    RUN(groups);
    RUN(counts_go_round);
    RUN(what_is_counted);
    RUN(who_has_its_processor);
    RUN(different_calls);
    RUN(late_calls);
    RUN(the_order_of_steps);
    return test_report("comm/short");
}
