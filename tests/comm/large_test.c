/* Every collective of 1 MiB + 1 elements, which nothing divides into equal segments, rounds or chunks: over
   every transport, at 2 to 4 ranks, by every algorithm, sums against those in float64. */
#include "ranks.h"

#include "comm/choice.h"

enum { COUNT = (1 << 20) + 1, WORLD_MOST = 4 };

/* What each rank gives, in [-1, 1): sums of them are rounded. */
static float given[WORLD_MOST][WORLD_MOST * COUNT];

static void make_given(void)
{
    for (int rank = 0; rank < WORLD_MOST; rank++)
        for (size_t i = 0; i < WORLD_MOST * COUNT; i++) {
            uint32_t mix = ((uint32_t)i * 8u + (uint32_t)rank) * 2654435761u;
            mix = (mix ^ mix >> 15) * 2246822519u;
            given[rank][i] = (float)((int32_t)(mix ^ mix >> 13) >> 8) / 8388608.0f;
        }
}

/* `got` is the sum of the ranks' elements from `from` on: each of world - 1 additions in float rounds by at
   most 2^-24 of what the sum can be. */
static void check_sums(test_rank *me, const float *got, size_t from)
{
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0, size = 0;
        for (int r = 0; r < me->world; r++) {
            const double x = (double)given[r][from + i];
            sum += x;
            size += fabs(x);
        }
        me->bad += fabs((double)got[i] - sum) > (me->world - 1) * size * 6e-8;
    }
}

/* All ranks must have the same bits. */
static void digest_sums(test_rank *me, const float *got)
{
    uint64_t digest = me->digest;
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, &got[i], sizeof bits);
        digest = (digest ^ bits) * 1099511628211ull;
    }
    me->digest = digest;
}

/* `got` is that rank's elements from `from` on. */
static void check_moved(test_rank *me, const float *got, int rank, size_t from)
{
    me->bad += memcmp(got, given[rank] + from, COUNT * sizeof *got) != 0;
}

static void give(test_rank *me, float *data, size_t count)
{
    memcpy(data, given[me->rank], count * sizeof *data);
}

static void run_all_reduce(test_rank *me, float *data)
{
    give(me, data, COUNT);
    me->bad += dml_comm_all_reduce(me->comm, data, COUNT, DML_F32, DML_SUM) != DML_OK;
    check_sums(me, data, 0);
    digest_sums(me, data);
}

/* Leaf r is rank r's. */
static void run_leaves(test_rank *me, float *data)
{
    void *leaves[WORLD_MOST] = { NULL };
    int64_t owners[WORLD_MOST];
    leaves[me->rank] = data;
    give(me, data, COUNT);
    me->bad += dml_comm_all_reduce_leaves(me->comm, leaves, owners, (size_t)me->world, data, COUNT, DML_F32,
                                          DML_SUM) != DML_OK;
    check_sums(me, data, 0);
    digest_sums(me, data);
}

static void run_reduce(test_rank *me, float *data)
{
    const int root = me->world - 1;
    give(me, data, COUNT);
    me->bad += dml_comm_reduce(me->comm, data, COUNT, DML_F32, DML_SUM, root) != DML_OK;
    if (me->rank == root) check_sums(me, data, 0);
}

static void run_reduce_scatter(test_rank *me, float *in, float *out)
{
    give(me, in, COUNT * (size_t)me->world);
    me->bad += dml_comm_reduce_scatter(me->comm, in, COUNT, DML_F32, DML_SUM, out) != DML_OK;
    check_sums(me, out, COUNT * (size_t)me->rank);
}

static void run_moves(test_rank *me, dml__comm_operation operation, float *out)
{
    const float *in = given[me->rank];
    const int root = me->world - 1;
    const size_t own = COUNT * (size_t)me->rank;
    dml_status status = DML_OK;
    memset(out, 0xee, COUNT * (size_t)me->world * sizeof *out);
    switch (operation) {
    case DML__CALL_BROADCAST:
        if (me->rank == root) give(me, out, COUNT);
        status = dml_comm_broadcast(me->comm, out, COUNT, DML_F32, root);
        check_moved(me, out, root, 0);
        break;
    case DML__CALL_SCATTER:
        status = dml_comm_scatter(me->comm, in, COUNT, DML_F32, out, root);
        check_moved(me, out, root, own);
        break;
    case DML__CALL_GATHER:
        status = dml_comm_gather(me->comm, in, COUNT, DML_F32, out, root);
        for (int r = 0; r < me->world && me->rank == root; r++) check_moved(me, out + r * COUNT, r, 0);
        break;
    case DML__CALL_ALL_GATHER:
        status = dml_comm_all_gather(me->comm, in, COUNT, DML_F32, out);
        for (int r = 0; r < me->world; r++) check_moved(me, out + r * COUNT, r, 0);
        break;
    default:
        status = dml_comm_all_to_all(me->comm, in, COUNT, DML_F32, out);
        for (int r = 0; r < me->world; r++) check_moved(me, out + r * COUNT, r, own);
        break;
    }
    me->bad += status != DML_OK;
}

/* The rank's calls of an operation from now on are by this one, if it can run them. */
static void set_algorithm(test_rank *me, const char *name)
{
    dml__ask_for_algorithm(me->comm->job, name);
}

static void run_operation(test_rank *me, dml__comm_operation operation, float *in, float *out)
{
    switch (operation) {
    case DML__CALL_ALL_REDUCE: run_all_reduce(me, out); break;
    case DML__CALL_REDUCE: run_reduce(me, out); break;
    case DML__CALL_REDUCE_SCATTER: run_reduce_scatter(me, in, out); break;
    case DML__CALL_BARRIER: break;
    default: run_moves(me, operation, out); break;
    }
}

static void large_body(test_rank *me)
{
    int count;
    const dml__algorithm_info *all = dml__algorithms(&count);
    const size_t elements = COUNT * (size_t)me->world;
    float *in = (float *)malloc(elements * sizeof *in), *out = (float *)malloc(elements * sizeof *out);
    for (int i = 0; i < count; i++) {
        const int before = me->bad;
        set_algorithm(me, all[i].name);
        run_operation(me, all[i].operation, in, out);
        if (me->bad != before) printf("  rank %d: algorithm %d, %s, is wrong\n", me->rank, i, all[i].name);
    }
    set_algorithm(me, "");
    run_leaves(me, out);
    free(in);
    free(out);
}

static void run_on(const char *transport)
{
    for (int world = 2; world <= WORLD_MOST; world++) {
        test_rank ranks[WORLD_MOST];
        ranks_prepare(ranks, world, 60, large_body, NULL);
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
    setenv("DML_COMM_CMA", "0", 1);
    run_on("shm");
}

static void read_from_the_sender(void)
{
    setenv("DML_COMM_CMA", "1", 1);
    run_on("shm");
}

static void tcp(void)
{
    run_on("tcp");
}

int main(void)
{
    make_given();
    RUN(local);
    RUN(shm);
    RUN(read_from_the_sender);
    RUN(tcp);
    return test_report("comm/large");
}
