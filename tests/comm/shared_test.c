/* All-reduce through memory that all ranks share: who has such memory, and that no call disturbs another. */
#include "ranks.h"

#include <sys/resource.h>

#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/shared_memory.h"
#include "net/host_memory.h"
#include "net/shm_internal.h"

#ifdef DML_NO_THREADS
enum { THREADS = 1 };
#else
enum { THREADS = 2 }; /* without and with progress threads */
#endif

#define PART ((size_t)65536) /* floats of a round between up to 10 ranks */

static bool can_share(void)
{
    const int fd = dml__system_host()->create(1 << 20);
    if (fd >= 0) dml__system_host()->close(fd);
    return fd >= 0;
}

static void run_named(int world, const char *transport, double timeout, void (*body)(test_rank *),
                      test_rank *ranks)
{
    ranks_prepare(ranks, world, timeout, body, NULL);
    for (int rank = 0; rank < world; rank++) ranks[rank].options.algorithm = "shared";
    ranks_run_on(ranks, world, transport);
}

static bool takes_shared(const dml_comm *comm, dml__comm_operation operation, size_t count)
{
    dml__comm_call call;
    int n;
    memset(&call, 0, sizeof call);
    call.signature.operation = operation;
    call.signature.dtype = DML_F32;
    call.signature.count = count;
    return dml__is_shared(&dml__algorithms(&n)[dml__choose_algorithm(comm, &call)]);
}

static bool is_shared(const dml_comm *comm, size_t count)
{
    return takes_shared(comm, DML__CALL_ALL_REDUCE, count);
}

/* ---- who has it ---- */

static void sum_body(test_rank *me, dml_comm *comm, size_t count)
{
    float *x = (float *)malloc((count + 1) * sizeof *x);
    const int size = dml_comm_world_size(comm), rank = dml_comm_rank(comm);
    for (size_t i = 0; i < count; i++) x[i] = (float)((size_t)rank + i % 1000);
    x[count] = -7;
    me->bad += dml_comm_all_reduce(comm, x, count, DML_F32, DML_SUM) != DML_OK;
    for (size_t i = 0; i < count; i++)
        me->bad += x[i] != (float)((size_t)size * (i % 1000) + (size_t)(size * (size - 1) / 2));
    me->bad += x[count] != -7;
    free(x);
}

static void whole_body(test_rank *me)
{
    static const size_t counts[] = {
        0, 1, 2, 3, 1000, PART - 1, PART, PART + 1, 2 * PART, 2 * PART + 1, 5 * PART + 77
    };
    me->bad += is_shared(me->comm, 100) != (me->world > 1);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) sum_body(me, me->comm, counts[c]);
}

static void any_size(void)
{
    test_rank ranks[RANKS_MAX];
    for (int world = 1; world <= 9; world++) {
        run_named(world, "shm", 30, whole_body, ranks);
        check_ranks(ranks, world);
    }
}

/* Of more ranks each gives less at once. */
static void many_body(test_rank *me)
{
    me->bad += me->comm->model.shared != 65536 * sizeof(float) / 2;
    sum_body(me, me->comm, PART);
    sum_body(me, me->comm, PART / 2 + 1);
}

static void many_ranks(void)
{
    test_rank ranks[20];
    run_named(20, "shm", 60, many_body, ranks);
    check_ranks(ranks, 20);
}

/* By themselves calls of many bytes go that way, where ranks are processes, and in a deterministic job too.
 */
static void chosen_body(test_rank *me)
{
    const bool shm = strcmp(me->options.transport ? me->options.transport : "local", "shm") == 0;
    me->bad += is_shared(me->comm, 1 << 20) != shm;
    me->bad += takes_shared(me->comm, DML__CALL_ALL_GATHER, 1 << 18) != shm;
    me->bad += takes_shared(me->comm, DML__CALL_REDUCE_SCATTER, 1 << 18) != shm;
    sum_body(me, me->comm, 1 << 18);
    me->bad += !shm && (me->comm->shared || me->comm->model.shared);
    char text[4096];
    dml_comm_describe(me->comm, text, sizeof text);
    me->bad += (strstr(text, "rounds through shared memory of 256 KiB") != NULL) != shm;
}

static void it_is_chosen(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    test_rank ranks[4];
    for (int t = 0; t < 3; t++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            ranks_prepare(ranks, 4, 30, chosen_body, NULL);
            for (int rank = 0; rank < 4; rank++) ranks[rank].options.deterministic = deterministic != 0;
            ranks_run_on(ranks, 4, transports[t]);
            check_ranks(ranks, 4);
        }
}

/* Asked for where there is none it is passed over. */
static void none_body(test_rank *me)
{
    me->bad += is_shared(me->comm, 100) || me->comm->shared != NULL;
    sum_body(me, me->comm, 5000);
}

static void where_there_is_none(void)
{
    test_rank ranks[3];
    run_named(3, "tcp", 30, none_body, ranks);
    check_ranks(ranks, 3);
    run_named(3, "local", 30, none_body, ranks);
    check_ranks(ranks, 3);
    /* Pairs have less memory than all together. */
    struct rlimit old, few;
    getrlimit(RLIMIT_FSIZE, &old);
    few = old;
    few.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &few);
    run_named(3, "shm", 30, none_body, ranks);
    setrlimit(RLIMIT_FSIZE, &old);
    check_ranks(ranks, 3);
}

/* Where one can't have it, nobody has, and those that could have let go of it. */
static __thread bool poor; /* this rank can't */
static __thread int held;

static void *hold_made(dml__transport *transport, size_t bytes, uint8_t place[DML__SHARED_PLACE])
{
    void *memory = poor ? NULL : dml__shm_make_shared(transport, bytes, place);
    held += memory != NULL;
    return memory;
}

static void *hold_found(dml__transport *transport, size_t bytes, const uint8_t place[DML__SHARED_PLACE])
{
    void *memory = poor ? NULL : dml__shm_find_shared(transport, bytes, place);
    held += memory != NULL;
    return memory;
}

static void let_go(dml__transport *transport, void *memory, size_t bytes)
{
    held--;
    dml__shm_drop_shared(transport, memory, bytes);
}

static void poor_body(test_rank *me)
{
    static const dml__shared_calls shared = { hold_made, hold_found, let_go };
    dml__transport *transport = me->comm->job->transport;
    const dml__transport_calls *const usual = transport->calls;
    dml__transport_calls calls = *usual;
    const int who = *(const int *)me->user;
    calls.shared = &shared;
    transport->calls = &calls;
    poor = me->rank == who;
    held = 0;
    dml_comm *group = dml_comm_split(me->comm, 0, 0);
    me->bad += (who < 0) != is_shared(group, 100) || (who < 0) != (group->shared != NULL);
    me->bad += held != (who < 0);
    sum_body(me, group, 5000);
    dml_comm_close(group);
    me->bad += held != 0;
    transport->calls = usual;
}

static void where_one_has_none(void)
{
    for (int who = -1; who < 3; who++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 30, poor_body, &who);
        for (int rank = 0; rank < 3; rank++) ranks[rank].options.algorithm = "shared";
        ranks_run_on(ranks, 3, "shm");
        check_ranks(ranks, 3);
    }
}

/* ---- one after the other ---- */

enum { CALLS = 12 };

/* Of other sizes and types, all at once, waited for from the last one on. */
static void several_body(test_rank *me)
{
    dml_request *requests[CALLS];
    void *data[CALLS];
    for (int round = 0; round < 6; round++) {
        for (int c = 0; c < CALLS; c++) {
            const size_t count = (size_t)((c * 7919 + round * 104729) % 150000);
            const bool wide = (c + round) % 3 == 0;
            data[c] = malloc(count * sizeof(double) + 1);
            for (size_t i = 0; i < count; i++)
                if (wide)
                    ((double *)data[c])[i] = (double)(me->rank * 10 + c) + (double)i;
                else
                    ((int32_t *)data[c])[i] = me->rank * 10 + c + (int32_t)i;
            dml_comm_set_priority(me->comm, c % 4);
            requests[c] = dml_comm_all_reduce_start(me->comm, data[c], count, wide ? DML_F64 : DML_I32,
                                                    c % 2 ? DML_MAX : DML_SUM);
        }
        for (int c = CALLS - 1; c >= 0; c--) {
            const size_t count = (size_t)((c * 7919 + round * 104729) % 150000);
            const int ranks = me->world, sum = 5 * ranks * (ranks - 1), most = 10 * (ranks - 1);
            me->bad += dml_comm_wait(me->comm, requests[c]) != DML_OK;
            for (size_t i = 0; i < count; i++) {
                const double wanted =
                    c % 2 ? most + c + (double)i : sum + ranks * c + (double)ranks * (double)i;
                me->bad += (c + round) % 3 == 0 ? ((double *)data[c])[i] != wanted
                                                : ((int32_t *)data[c])[i] != (int32_t)wanted;
            }
            free(data[c]);
        }
        dml_comm_set_priority(me->comm, 0);
    }
}

static void several_at_once(void)
{
    test_rank ranks[5];
    for (int world = 2; world <= 5; world += 3)
        for (int thread = 0; thread < THREADS; thread++) {
            ranks_prepare(ranks, world, 30, several_body, NULL);
            for (int rank = 0; rank < world; rank++) {
                ranks[rank].options.algorithm = "shared";
                ranks[rank].options.progress_thread = thread && rank % 2;
            }
            ranks_run_on(ranks, world, "shm");
            check_ranks(ranks, world);
        }
}

/* Whatever is read still when the next call or round begins isn't written: operations of all kinds and sizes,
   odd and even numbers of rounds, between ranks of which one or the other is late. */
enum { MIXED = 3 * 65536 + 11 };

static float mixed_value(int rank, size_t i, int turn)
{
    return (float)(rank * 31 + turn % 17) + (float)(i % 509);
}

static float mixed_sum(int world, size_t i, int turn)
{
    float sum = 0;
    for (int rank = 0; rank < world; rank++) sum += mixed_value(rank, i, turn);
    return sum;
}

static void mixed_turn(test_rank *me, int kind, size_t n, int turn, float *in, float *out)
{
    dml_comm *comm = me->comm;
    const size_t m = (size_t)me->world, own = (size_t)me->rank, all = n * m;
    if (kind == 0) { /* of the whole */
        for (size_t i = 0; i < n; i++) out[i] = mixed_value(me->rank, i, turn);
        me->bad += dml_comm_all_reduce(comm, out, n, DML_F32, DML_SUM) != DML_OK;
        for (size_t i = 0; i < n; i++) me->bad += out[i] != mixed_sum(me->world, i, turn);
    } else if (kind == 1) { /* from beside OUT, or from its place in it */
        float *from = turn % 2 ? out + own * n : in;
        for (size_t i = 0; i < n; i++) from[i] = mixed_value(me->rank, i, turn);
        me->bad += dml_comm_all_gather(comm, from, n, DML_F32, out) != DML_OK;
        for (size_t i = 0; i < all; i++) me->bad += out[i] != mixed_value((int)(i / n), i % n, turn);
    } else { /* into an array beside IN, or into its row of it */
        float *to = turn % 2 ? in + own * n : out;
        for (size_t i = 0; i < all; i++) in[i] = mixed_value(me->rank, i, turn);
        me->bad += dml_comm_reduce_scatter(comm, in, n, DML_F32, DML_SUM, to) != DML_OK;
        for (size_t i = 0; i < n; i++) me->bad += to[i] != mixed_sum(me->world, own * n + i, turn);
    }
}

static void mixed_body(test_rank *me)
{
    float *in = (float *)malloc(sizeof(float) * MIXED * (size_t)me->world);
    float *out = (float *)malloc(sizeof(float) * MIXED * (size_t)me->world);
    unsigned same = 77, own = (unsigned)me->rank + 1;
    for (int turn = 0; turn < 60; turn++) {
        const int kind = (int)(test_random(&same) % 3);
        const size_t n = test_random(&same) % 3 ? test_random(&same) % 900 : test_random(&same) % MIXED;
        if (test_random(&own) % 4 == 0) ranks_sleep(1e-3 * (test_random(&own) % 3));
        mixed_turn(me, kind, n, turn, in, out);
    }
    free(out);
    free(in);
}

static void of_all_kinds(void)
{
    test_rank ranks[7];
    for (int world = 2; world <= 7; world++) {
        run_named(world, "shm", 30, mixed_body, ranks);
        check_ranks(ranks, world);
    }
}

/* Groups have memory of their own: theirs and the world's calls go on side by side. */
static void groups_body(test_rank *me)
{
    dml_comm *half = dml_comm_split(me->comm, me->rank % 2, -me->rank), *all = dml_comm_split(me->comm, 0, 0);
    dml_comm *alone = dml_comm_split(me->comm, me->rank, 0);
    dml_comm *const comms[] = { me->comm, half, all, alone };
    static float data[RANKS_MAX][4][PART + 5];
    me->bad += half->shared == me->comm->shared || all->shared == me->comm->shared || alone->shared != NULL;
    me->bad += !is_shared(half, 10) || !is_shared(all, 10) || is_shared(alone, 10);
    for (int round = 0; round < 4; round++) {
        dml_request *requests[4];
        for (int c = 0; c < 4; c++)
            for (size_t i = 0; i < PART + 5; i++) data[me->rank][c][i] = (float)(me->rank + c + round);
        for (int c = 0; c < 4; c++) {
            const int at = me->rank % 2 ? 3 - c : c; /* in another order */
            requests[at] =
                dml_comm_all_reduce_start(comms[at], data[me->rank][at], PART + 5, DML_F32, DML_SUM);
        }
        for (int c = 0; c < 4; c++) me->bad += dml_comm_wait(comms[c], requests[c]) != DML_OK;
        for (int c = 0; c < 4; c++) {
            int wanted = 0;
            for (int r = 0; r < me->world; r++)
                if (c % 2 == 0 || (c == 1 ? r % 2 == me->rank % 2 : r == me->rank)) wanted += r + c + round;
            for (size_t i = 0; i < PART + 5; i++) me->bad += data[me->rank][c][i] != (float)wanted;
        }
    }
    dml_comm_close(alone);
    dml_comm_close(half);
    sum_body(me, all, 3 * PART);
    dml_comm_close(all);
    sum_body(me, me->comm, 3 * PART);
}

static void groups(void)
{
    test_rank ranks[4];
    run_named(4, "shm", 30, groups_body, ranks);
    check_ranks(ranks, 4);
}

/* ---- who waits for whom ---- */

/* A call behind one that takes longer than the timeout isn't late, though nobody answers while it adds: for
   half a second a round, however small the parts are in which it does. */
static void slowly(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    (void)dtype, (void)user;
    ranks_sleep(0.5 * (double)count / (PART / 2));
    for (size_t i = 0; i < count; i++) ((float *)into)[i] += ((const float *)from)[i];
}

static void behind_body(test_rank *me)
{
    static float x[2][8 * PART], y[2][10];
    const dml_reduce_op op = dml_comm_add_reduce(me->comm, slowly, NULL);
    dml_request *first = dml_comm_all_reduce_start(me->comm, x[me->rank], 8 * PART, DML_F32, op);
    dml_request *second = dml_comm_all_reduce_start(me->comm, y[me->rank], 10, DML_F32, DML_SUM);
    me->bad += dml_comm_wait(me->comm, second) != DML_OK;
    me->bad += dml_comm_wait(me->comm, first) != DML_OK;
}

static void behind_a_long_one(void)
{
    test_rank ranks[2];
    run_named(2, "shm", 1.5, behind_body, ranks);
    check_ranks(ranks, 2);
}

/* Rank 2 calls the first only: it is blamed by who waits for what queues behind. */
static void missing_body(test_rank *me)
{
    static float x[3][3][PART];
    dml_request *requests[3];
    for (int c = 0; c < 3 && (c < 1 || me->rank != 2); c++)
        requests[c] = dml_comm_all_reduce_start(me->comm, x[me->rank][c], PART, DML_F32, DML_SUM);
    if (me->rank == 2) {
        me->bad += dml_comm_wait(me->comm, requests[0]) != DML_OK;
        ranks_sleep(2.5);
        return;
    }
    me->bad += dml_comm_wait(me->comm, requests[2]) != DML_ERROR_TIMEOUT;
    me->culprit = dml_comm_culprit(me->comm);
}

static void a_rank_that_is_missing(void)
{
    test_rank ranks[3];
    run_named(3, "shm", 1, missing_body, ranks);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_MESSAGE(!ranks[rank].bad, "rank %d: %s", rank, ranks[rank].error);
        CHECK_INT(ranks[rank].culprit, 2);
    }
}

/* Rank 0 waits for 1 in one group, and 1 for what queues in another, behind what 2 doesn't call: who asks 1
   learns that it waits for 2. */
static void chain_body(test_rank *me)
{
    static float x[3][3][100];
    dml_comm *first = dml_comm_split(me->comm, me->rank < 2 ? 0 : -1, 0);
    dml_comm *last = dml_comm_split(me->comm, me->rank > 0 ? 0 : -1, 0);
    dml_request *requests[2];
    if (me->rank == 2) {
        ranks_sleep(4);
    } else if (me->rank == 0) {
        me->bad += dml_comm_all_reduce(first, x[0][0], 100, DML_F32, DML_SUM) == DML_OK;
    } else {
        for (int c = 0; c < 2; c++)
            requests[c] = dml_comm_all_reduce_start(last, x[1][c], 100, DML_F32, DML_SUM);
        me->bad += dml_comm_wait(last, requests[1]) == DML_OK;
    }
    me->culprit = dml_comm_culprit(me->comm);
    dml_comm_close(last);
    dml_comm_close(first);
}

static void a_chain_of_waits(void)
{
    test_rank ranks[3];
    run_named(3, "shm", 1, chain_body, ranks);
    for (int rank = 0; rank < 2; rank++)
        CHECK_MESSAGE(!ranks[rank].bad && ranks[rank].culprit == 2, "rank %d blames %d: %s", rank,
                      ranks[rank].culprit, ranks[rank].error);
}

/* What differs is named, though neither has begun. */
static void differs_body(test_rank *me)
{
    static float x[2][3][PART];
    dml_request *requests[3];
    for (int c = 0; c < 3; c++)
        requests[c] = dml_comm_all_reduce_start(me->comm, x[me->rank][c],
                                                PART - (size_t)(c == 1 && me->rank == 1), DML_F32, DML_SUM);
    dml_status status = DML_OK;
    for (int c = 2; c >= 0; c--)
        if (dml_comm_wait(me->comm, requests[c])) status = dml_comm_status(me->comm);
    me->bad += status != DML_ERROR_MISMATCH || !strstr(dml_comm_error(me->comm), "65535") ||
               !strstr(dml_comm_error(me->comm), "65536");
}

static void counts_that_differ(void)
{
    test_rank ranks[2];
    run_named(2, "shm", 2, differs_body, ranks);
    for (int rank = 0; rank < 2; rank++) CHECK_MESSAGE(!ranks[rank].bad, "%s", ranks[rank].error);
}

static void nothing_is_shared(void)
{
    SKIP("no memory can be shared");
}

int main(void)
{
    if (can_share()) {
        RUN(any_size);
        RUN(many_ranks);
        RUN(it_is_chosen);
        RUN(where_there_is_none);
        RUN(where_one_has_none);
        RUN(several_at_once);
        RUN(of_all_kinds);
        RUN(groups);
        RUN(behind_a_long_one);
        RUN(a_rank_that_is_missing);
        RUN(a_chain_of_waits);
        RUN(counts_that_differ);
    } else {
        RUN(nothing_is_shared);
    }
    return test_report("comm/shared");
}
