/* Algorithms chosen by trials: the same at all ranks, not the slow ones, never what can't be run. */
#include "ranks.h"

#include <math.h>

#include "comm/algorithms.h"
#include "comm/choice.h"

/* Each choice is one that can run such a call; all ranks have the same. */
static void check_table(test_rank *me, const dml_comm *comm)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    for (int unequal = 0; unequal < 2; unequal++)
        for (int operation = 0; operation < DML__CHOICE_OPERATIONS; operation++)
            for (int power = 0; power < DML__CHOICE_SIZES; power++) {
                const int choice = comm->choice.algorithm[unequal][operation][power];
                const dml__algorithm_info *info = &table[choice];
                if (choice == DML__CHOICE_NONE) continue;
                me->bad += choice >= count || (int)info->operation != operation || dml__is_in_place(info);
                me->bad += unequal && info->equal_parts;
                me->bad += comm->job->deterministic && dml__adds(info->operation) && !info->rank_order;
            }
    /* A barrier has no size: what lies beyond the last size that was tried is as that. */
    const uint8_t *barrier = comm->choice.algorithm[0][DML__CALL_BARRIER];
    for (int power = 1; power < DML__CHOICE_SIZES; power++) me->bad += barrier[power] != barrier[0];
    ranks_digest(me, &comm->choice, sizeof comm->choice);
}

static void check_calls(test_rank *me, dml_comm *comm)
{
    static const size_t counts[] = { 0, 1, 77, 5000, 200001 };
    const int size = dml_comm_world_size(comm);
    float *x = (float *)malloc(200001 * sizeof *x);
    for (int c = 0; c < 5; c++) {
        for (size_t i = 0; i < counts[c]; i++) x[i] = (float)(dml_comm_rank(comm) + 1);
        me->bad += dml_comm_all_reduce(comm, x, counts[c], DML_F32, DML_SUM) != DML_OK;
        for (size_t i = 0; i < counts[c]; i++) me->bad += x[i] != (float)(size * (size + 1) / 2);
    }
    free(x);
}

/* ---- any ranks, any transport ---- */

static void tune_body(test_rank *me)
{
    char text[4096];
    me->bad += me->comm->tuned;
    me->bad += dml_comm_tune(me->comm, me->rank ? 0.001 : 0.2) != DML_OK; /* the longest counts */
    me->bad += me->comm->tuned != (me->world > 1);
    dml_comm_describe(me->comm, text, sizeof text);
    me->bad += (strstr(text, "algorithms, by what they took in trials:\n") != NULL) != (me->world > 1);
    check_table(me, me->comm);
    check_calls(me, me->comm);
    /* A group of all begins with it; one of some has its own. */
    dml_comm *all = dml_comm_split(me->comm, 0, me->rank), *half = dml_comm_split(me->comm, me->rank % 2, 0);
    me->bad += all->tuned != me->comm->tuned || half->tuned != (me->world == 1 && me->comm->tuned);
    me->bad += memcmp(&all->choice, &me->comm->choice, sizeof all->choice) != 0;
    me->bad += dml_comm_tune(half, 0.05) != DML_OK;
    check_calls(me, half);
    dml_comm_close(half);
    dml_comm_close(all);
}

static void any_ranks(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    test_rank ranks[RANKS_MAX];
    for (int t = 0; t < 3; t++)
        for (int world = 1; world <= 9; world += world < 4 ? 1 : 5) {
            ranks_prepare(ranks, world, 30, tune_body, NULL);
            for (int rank = 0; rank < world; rank++) ranks[rank].options.deterministic = world == 3;
            ranks_run_on(ranks, world, transports[t]);
            check_ranks(ranks, world);
        }
}

/* ---- what it is for ---- */

/* Ranks that all do the same well; `algorithm` is asked for by name, if it isn't NULL. */
static void run_all(int world, const char *transport, const char *algorithm, void (*body)(test_rank *))
{
    test_rank ranks[RANKS_MAX];
    ranks_prepare(ranks, world, 30, body, NULL);
    for (int rank = 0; rank < world; rank++) ranks[rank].options.algorithm = algorithm;
    ranks_run_on(ranks, world, transport);
    check_ranks(ranks, world);
}

/* While rings are chosen each message takes ten milliseconds more: they are slower than the others, whatever
   else the machine does. */
static __thread const dml_comm *slow_where;
static uint8_t ring(void)
{
    return (uint8_t)dml__find_algorithm(DML__CALL_ALL_REDUCE, "ring");
}
static ssize_t slow_send(int fd, const struct msghdr *message, int flags)
{
    if (slow_where && slow_where->choice.algorithm[0][DML__CALL_ALL_REDUCE][0] == ring()) ranks_sleep(0.01);
    return dml__system_sockets()->send(fd, message, flags);
}

static void misled_body(test_rank *me)
{
    uint8_t *choice = me->comm->choice.algorithm[0][DML__CALL_ALL_REDUCE];
    memset(choice, ring(), DML__CHOICE_SIZES);
    me->comm->job->choices++;
    slow_where = me->comm;
    me->bad += dml_comm_tune(me->comm, 1) != DML_OK;
    int still = 0;
    for (int power = 0; power <= 2; power++)
        still += choice[power] == ring(); /* the first size: surely tried */
    me->bad += still;
    slow_where = NULL;
    check_table(me, me->comm);
    check_calls(me, me->comm);
}

static void misled(void)
{
    dml__socket_calls slow = *dml__system_sockets();
    test_rank ranks[6];
    slow.send = slow_send;
    ranks_prepare(ranks, 6, 30, misled_body, NULL);
    for (int rank = 0; rank < 6; rank++) ranks[rank].sockets = &slow;
    ranks_run_on(ranks, 6, "tcp");
    check_ranks(ranks, 6);
}

/* There is no time but for the first sizes: the others keep what they had. */
static void no_time_body(test_rank *me)
{
    const dml__choice before = me->comm->choice;
    me->bad += dml_comm_tune(me->comm, 1e-4) != DML_OK;
    for (int operation = 0; operation < DML__CHOICE_OPERATIONS; operation++)
        for (int unequal = 0; unequal < 2 && operation != DML__CALL_BARRIER; unequal++)
            me->bad += memcmp(&before.algorithm[unequal][operation][20],
                              &me->comm->choice.algorithm[unequal][operation][20], 8) != 0;
    check_table(me, me->comm);
}

static void no_time(void)
{
    run_all(3, "shm", NULL, no_time_body);
}

/* There is time for the smallest size of the first operation alone: calls up to it get what was the fastest
   there, larger ones keep what they had. */
static void one_size_body(test_rank *me)
{
    uint8_t *choice = me->comm->choice.algorithm[0][DML__CALL_ALL_REDUCE];
    memset(choice, ring(), DML__CHOICE_SIZES);
    me->comm->job->choices++;
    me->bad += dml_comm_tune(me->comm, 1e-4) != DML_OK;
    me->bad += choice[1] != choice[0] || choice[2] != choice[0]; /* 4 bytes, and less */
    for (int power = 3; power < DML__CHOICE_SIZES; power++) me->bad += choice[power] != ring();
}

static void one_size(void)
{
    run_all(6, "local", NULL, one_size_body);
}

/* What is asked for by name stays. */
static void named_body(test_rank *me)
{
    char text[4096];
    me->bad += dml_comm_tune(me->comm, 0.1) != DML_OK;
    dml_comm_describe(me->comm, text, sizeof text);
    me->bad += !strstr(text, "all_reduce: ring\n");
    check_table(me, me->comm);
}

static void named(void)
{
    run_all(4, "local", "all_reduce=ring", named_body);
}

/* ---- by the options and the environment ---- */

static void opened_body(test_rank *me)
{
    me->bad += !me->comm->tuned;
    check_table(me, me->comm);
}

static void opened(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 30, opened_body, NULL);
    ranks[0].options.tune_s = 0.05; /* rank 0's counts */
    ranks_run_on(ranks, 3, "tcp");
    check_ranks(ranks, 3);
    setenv("DML_COMM_TUNE", "0.05", 1);
    run_all(3, "shm", NULL, opened_body);
    unsetenv("DML_COMM_TUNE");
}

static void bad_settings(void)
{
    dml_comm_options options;
    dml__comm_settings settings;
    dml__error error;
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    options.tune_s = -2;
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "tune_s is -2, not a number above 0 and up to 3600");
    options.tune_s = 0;
    memset(&error, 0, sizeof error);
    setenv("DML_COMM_TUNE", "3601", 1);
    CHECK(!dml__read_comm_settings(&options, &settings, &error));
    CHECK_CONTAINS(error.text, "DML_COMM_TUNE is \"3601\"");
    unsetenv("DML_COMM_TUNE");
}

/* ---- errors ---- */

static void bad_time_body(test_rank *me)
{
    const double seconds = *(const double *)me->user;
    me->bad += dml_comm_tune(me->comm, me->rank == 1 ? seconds : 0.1) != DML_ERROR_ARGUMENT;
    me->bad += !strstr(dml_comm_error(me->comm), "rank 1 called dml_comm_tune for ");
    me->bad += dml_comm_tune(me->comm, 0.1) != DML_ERROR_ARGUMENT; /* sticks */
}

static void bad_times(void)
{
    static double seconds[] = { 0, -1, NAN, INFINITY, 3600.5 };
    test_rank ranks[3];
    CHECK_INT(dml_comm_tune(NULL, 1), DML_ERROR_ARGUMENT);
    for (int i = 0; i < 5; i++) {
        ranks_prepare(ranks, 3, 30, bad_time_body, &seconds[i]);
        ranks_run_on(ranks, 3, "local");
        for (int rank = 0; rank < 3; rank++) CHECK_INT(ranks[rank].bad, 0);
    }
}

/* Whoever has no memory for it says so to all. */
static void *scarce_allocate(void *user, size_t bytes)
{
    return *(const bool *)user && bytes >= 1 << 24 ? NULL : malloc(bytes);
}

static void scarce_free(void *user, void *block)
{
    (void)user;
    free(block);
}

static void no_memory_body(test_rank *me)
{
    if (me->rank == 2) *(bool *)me->user = true;
    me->bad += dml_comm_tune(me->comm, 0.1) != DML_ERROR_MEMORY;
    me->bad += !strstr(dml_comm_error(me->comm), "rank 2 has no memory for dml_comm_tune");
}

static void no_memory(void)
{
    static bool scarce;
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 30, no_memory_body, &scarce);
    ranks[2].options.allocator.allocate = scarce_allocate;
    ranks[2].options.allocator.release = scarce_free;
    ranks[2].options.allocator.user = &scarce;
    ranks_run_on(ranks, 3, "shm");
    for (int rank = 0; rank < 3; rank++) CHECK_INT(ranks[rank].bad, 0);
}

/* What others do meanwhile doesn't fit. */
static void mismatch_body(test_rank *me)
{
    float x = 1;
    if (me->rank == 1)
        me->bad += dml_comm_broadcast(me->comm, &x, 1, DML_F32, 0) != DML_ERROR_MISMATCH;
    else
        me->bad += dml_comm_tune(me->comm, 0.1) != DML_ERROR_MISMATCH;
}

static void mismatch(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 3, mismatch_body, NULL); /* found out when nothing has moved for so long */
    ranks_run_on(ranks, 3, "tcp");
    for (int rank = 0; rank < 3; rank++)
        CHECK_MESSAGE(!ranks[rank].bad, "rank %d: %s", rank, ranks[rank].error);
}

int main(void)
{
    RUN(bad_settings);
    RUN(any_ranks);
    RUN(misled);
    RUN(no_time);
    RUN(one_size);
    RUN(named);
    RUN(opened);
    RUN(bad_times);
    RUN(no_memory);
    RUN(mismatch);
    return test_report("comm/tune");
}
