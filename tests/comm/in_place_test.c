/* All-to-all whose two arrays are one, over every transport. */
#include "ranks.h"

/* Of f64 the second slot of 16 KiB of scratch begins at 1024; 5000 and 20011 take rounds, the last of them
 * short. */
static const size_t counts[] = { 0, 1, 3, 7, 8, 331, 1023, 1024, 1025, 5000, 20011 };
enum { COUNTS = sizeof counts / sizeof *counts, MOST = 20011 };

static int allocations; /* atomic */

static void *counting_allocate(void *user, size_t bytes)
{
    (void)user;
    __atomic_fetch_add(&allocations, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}

static void counting_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* Element i of what `from` has for `to`. */
static double element(int from, int to, size_t i)
{
    return (double)(((size_t)from * 31 + (size_t)to) * 100003 + i);
}

static void fill(test_rank *me, double *data, size_t count)
{
    for (int to = 0; to < me->world; to++)
        for (size_t i = 0; i < count; i++) data[(size_t)to * count + i] = element(me->rank, to, i);
}

static void check(test_rank *me, const double *data, size_t count)
{
    for (int from = 0; from < me->world; from++)
        for (size_t i = 0; i < count; i++)
            me->bad += data[(size_t)from * count + i] != element(from, me->rank, i);
}

/* As bytes, whose segments and rounds are others. */
static void exchange_bytes(test_rank *me, uint8_t *data, size_t count)
{
    for (int to = 0; to < me->world; to++)
        for (size_t i = 0; i < count; i++)
            data[(size_t)to * count + i] = (uint8_t)(int)(me->rank * 16 + to + i % 3);
    me->bad += dml_comm_all_to_all(me->comm, data, count, DML_U8, data) != DML_OK;
    for (int from = 0; from < me->world; from++)
        for (size_t i = 0; i < count; i++)
            me->bad += data[(size_t)from * count + i] != (uint8_t)(int)(from * 16 + me->rank + i % 3);
}

static void exchange_body(test_rank *me)
{
    double *data = (double *)malloc((size_t)me->world * MOST * sizeof *data);
    double *other = (double *)malloc((size_t)me->world * 331 * sizeof *other);
    dml_comm_barrier(me->comm);
    const int before = __atomic_load_n(&allocations, __ATOMIC_SEQ_CST);
    for (size_t c = 0; c < COUNTS; c++) {
        fill(me, data, counts[c]);
        me->bad += dml_comm_all_to_all(me->comm, data, counts[c], DML_F64, data) != DML_OK;
        check(me, data, counts[c]);
        exchange_bytes(me, (uint8_t *)data, counts[c]);
    }
    /* Two at once, and one that isn't in place. */
    fill(me, data, 5000);
    fill(me, other, 331);
    dml_request *first = dml_comm_all_to_all_start(me->comm, data, 5000, DML_F64, data);
    dml_request *second = dml_comm_all_to_all_start(me->comm, other, 331, DML_F64, other);
    me->bad += dml_comm_wait(me->comm, second) != DML_OK;
    check(me, other, 331);
    me->bad += dml_comm_wait(me->comm, first) != DML_OK;
    check(me, data, 5000);
    fill(me, data, 331);
    me->bad += dml_comm_all_to_all(me->comm, data, 331, DML_F64, other) != DML_OK;
    check(me, other, 331);
    me->bad += dml_comm_all_to_all(me->comm, NULL, 0, DML_F64, NULL) != DML_OK;
    me->bad += __atomic_load_n(&allocations, __ATOMIC_SEQ_CST) != before;
    free(data);
    free(other);
}

static void run_on(const char *transport)
{
    for (int world = 1; world <= RANKS_MAX; world++) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 60, exchange_body, NULL);
        for (int rank = 0; rank < world; rank++) {
            ranks[rank].options.algorithm = world % 3 == 0 ? "bruck" : world % 3 == 1 ? "direct" : NULL;
            ranks[rank].options.segment_bytes = world % 2 ? 0 : 1000;
            ranks[rank].options.allocator.allocate = counting_allocate;
            ranks[rank].options.allocator.release = counting_release;
        }
        ranks_run_on(ranks, world, transport);
        check_ranks(ranks, world);
    }
}

static void local(void)
{
    run_on("local");
}

static void shm(void)
{
    run_on("shm");
}

static void tcp(void)
{
    run_on("tcp");
}

/* Named, it takes two arrays too, and leaves the first as it was. */
static void apart_body(test_rank *me)
{
    double *in = (double *)malloc((size_t)me->world * 5000 * sizeof *in);
    double *out = (double *)malloc((size_t)me->world * 5000 * sizeof *out);
    fill(me, in, 5000);
    me->bad += dml_comm_all_to_all(me->comm, in, 5000, DML_F64, out) != DML_OK;
    check(me, out, 5000);
    for (int to = 0; to < me->world; to++)
        for (size_t i = 0; i < 5000; i++) me->bad += in[(size_t)to * 5000 + i] != element(me->rank, to, i);
    free(in);
    free(out);
}

static void apart(void)
{
    for (int world = 1; world <= 5; world++) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 60, apart_body, NULL);
        for (int rank = 0; rank < world; rank++) ranks[rank].options.algorithm = "all_to_all=in_place";
        ranks_run_on(ranks, world, "shm");
        check_ranks(ranks, world);
    }
}

/* Rank 1 alone in place, and an array that begins within the other: both end. */
static void half_body(test_rank *me)
{
    double in[30] = { 0 }, out[30];
    me->bad += dml_comm_all_to_all(me->comm, in, 10, DML_F64, me->rank == 1 ? in : out) == DML_OK;
}

static void overlap_body(test_rank *me)
{
    double data[40] = { 0 };
    me->bad += dml_comm_all_to_all(me->comm, data, 10, DML_F64, data + 10) == DML_OK;
}

static void what_is_refused(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 5, half_body, NULL);
    ranks_run_on(ranks, 3, "shm");
    for (int rank = 0; rank < 3; rank++)
        CHECK_MESSAGE(ranks[rank].status == DML_ERROR_MISMATCH && !ranks[rank].bad &&
                          strstr(ranks[rank].error,
                                 "rank 1 called all_to_all(f64, 10) in place while rank 0 called "
                                 "all_to_all(f64, 10)"),
                      "rank %d: %s", rank, ranks[rank].error);
    ranks_prepare(ranks, 3, 5, overlap_body, NULL);
    ranks_run_on(ranks, 3, "shm");
    for (int rank = 0; rank < 3; rank++)
        CHECK_MESSAGE(ranks[rank].status == DML_ERROR_ARGUMENT && strstr(ranks[rank].error, "overlap"),
                      "rank %d: %s", rank, ranks[rank].error);
}

int main(void)
{
    RUN(local);
    RUN(shm);
    RUN(tcp);
    RUN(apart);
    RUN(what_is_refused);
    return test_report("comm/in_place");
}
