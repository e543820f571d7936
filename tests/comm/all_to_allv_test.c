/* All-to-all of parts whose sizes two ranks alone know, over every transport. */
#include "ranks.h"

enum { PLACES = 9 * 40000 };

/* How much `from` has for `to`: in some rounds nothing at all, or nothing for most. */
static size_t part(int round, int from, int to)
{
    static const size_t sizes[] = { 1, 7, 331, 1024, 5000, 35000 };
    if (round == 0 || (round == 1 && (from + to) % 3)) return 0;
    return sizes[(from * 7 + to * 3 + round) % 6] + (size_t)from;
}

static double element_of(int from, int to, size_t i)
{
    return (double)(((size_t)from * 31 + (size_t)to) * 100003 + i);
}

typedef struct parts {
    size_t in_counts[RANKS_MAX], in_offsets[RANKS_MAX], out_counts[RANKS_MAX], out_offsets[RANKS_MAX];
    double *in, *out;
} parts;

static void begin_parts(const test_rank *me, parts *p, int round, size_t gap)
{
    size_t in = gap, out = gap;
    p->in = (double *)malloc(PLACES * sizeof *p->in);
    p->out = (double *)malloc(PLACES * sizeof *p->out);
    for (size_t i = 0; i < PLACES; i++) p->in[i] = p->out[i] = -1;
    for (int r = 0; r < me->world; r++) {
        p->in_counts[r] = part(round, me->rank, r);
        p->out_counts[r] = part(round, r, me->rank);
        p->in_offsets[r] = in;
        p->out_offsets[r] = out;
        in += p->in_counts[r] + gap;
        out += p->out_counts[r] + gap;
        for (size_t i = 0; i < p->in_counts[r]; i++) p->in[p->in_offsets[r] + i] = element_of(me->rank, r, i);
    }
}

/* All that came is in its place, and between the places nothing was touched. */
static void end_parts(test_rank *me, parts *p)
{
    size_t touched = 0, wanted = 0;
    for (int r = 0; r < me->world; r++) {
        wanted += p->out_counts[r];
        for (size_t i = 0; i < p->out_counts[r]; i++)
            me->bad += p->out[p->out_offsets[r] + i] != element_of(r, me->rank, i);
    }
    for (size_t i = 0; i < PLACES; i++) touched += p->out[i] != -1;
    me->bad += touched != wanted;
    free(p->in);
    free(p->out);
}

static void exchange_body(test_rank *me)
{
    for (int round = 0; round < 5; round++) {
        parts p, q;
        const size_t gap = round % 2 ? 3 : 0;
        begin_parts(me, &p, round, gap);
        me->bad += dml_comm_all_to_allv(me->comm, p.in, p.in_counts, gap ? p.in_offsets : NULL, DML_F64,
                                        p.out, p.out_counts, gap ? p.out_offsets : NULL) != DML_OK;
        end_parts(me, &p);
        /* Two at once, whose counts the caller needs no longer. */
        begin_parts(me, &p, round, gap);
        begin_parts(me, &q, round + 1, 0);
        parts given = p;
        dml_request *first = dml_comm_all_to_allv_start(me->comm, p.in, given.in_counts, given.in_offsets,
                                                        DML_F64, p.out, given.out_counts, given.out_offsets);
        memset(&given, 0xff, sizeof given);
        dml_request *second =
            dml_comm_all_to_allv_start(me->comm, q.in, q.in_counts, NULL, DML_F64, q.out, q.out_counts, NULL);
        me->bad += dml_comm_wait(me->comm, second) != DML_OK;
        me->bad += dml_comm_wait(me->comm, first) != DML_OK;
        end_parts(me, &p);
        end_parts(me, &q);
    }
}

/* In groups of every other rank, in the opposite order: parts are by the group's ranks. */
static void group_body(test_rank *me)
{
    const int world = me->world, rank = me->rank;
    dml_comm *comm = me->comm, *group = dml_comm_split(comm, rank % 2, -rank);
    if (!group) {
        me->bad++;
        return;
    }
    me->comm = group;
    me->rank = dml_comm_rank(group);
    me->world = dml_comm_world_size(group);
    exchange_body(me);
    me->comm = comm;
    me->rank = rank;
    me->world = world;
    me->bad += dml_comm_close(group) != DML_OK;
}

static void groups(void)
{
    for (int world = 2; world <= 7; world += 5) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 60, group_body, NULL);
        ranks_run_on(ranks, world, "shm");
        check_ranks(ranks, world);
    }
}

static void run_on(const char *transport)
{
    for (int world = 1; world <= RANKS_MAX; world++) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 60, exchange_body, NULL);
        for (int rank = 0; rank < world; rank++) {
            ranks[rank].options.algorithm = world % 2 ? "bruck" : NULL;
            ranks[rank].options.segment_bytes = world % 2 ? 0 : 1000;
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

/* Rank 1 has `sizes[0]` elements for rank 0, which wants `sizes[1]`; the other parts are of 2. */
static void unlike_body(test_rank *me)
{
    const size_t *sizes = (const size_t *)me->user;
    size_t in[3] = { 2, 2, 2 }, out[3] = { 2, 2, 2 };
    double *data = (double *)calloc(2 * 200000, sizeof *data);
    if (me->rank == 1) in[0] = sizes[0];
    if (me->rank == 0) out[1] = sizes[1];
    dml_status status = dml_comm_all_to_allv(me->comm, data, in, NULL, DML_F64, data + 200000, out, NULL);
    if (!status) status = dml_comm_barrier(me->comm);
    me->bad += status != DML_ERROR_MISMATCH;
    free(data);
}

static void unlike(void)
{
    static const size_t sizes[][2] = { { 3, 2 },          { 2, 3 },         { 0, 1 },      { 1, 0 },
                                       { 100000, 2 },     { 2, 100000 },    { 100000, 0 }, { 0, 100000 },
                                       { 90000, 100000 }, { 100000, 90000 } };
    static const char *const transports[] = { "tcp", "shm" };
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        test_rank ranks[3];
        char sentence[128];
        const size_t *pair = sizes[i / 2];
        ranks_prepare(ranks, 3, 5, unlike_body, (void *)(uintptr_t)pair);
        ranks_run_on(ranks, 3, transports[i % 2]);
        snprintf(sentence, sizeof sentence,
                 "rank 1 has %zu elements for rank 0 in all_to_allv(f64), which takes %zu from it", pair[0],
                 pair[1]);
        for (int rank = 0; rank < 3; rank++) {
            CHECK_INT(ranks[rank].bad, 0);
            CHECK_MESSAGE(strstr(ranks[rank].error, sentence), "%zu for %zu over %s, rank %d: \"%s\"",
                          pair[0], pair[1], transports[i % 2], rank, ranks[rank].error);
            CHECK(ranks[rank].seconds < 4); /* not by the deadline */
        }
    }
}

static void mixed_body(test_rank *me)
{
    const size_t counts[2] = { 4, 4 };
    double in[8] = { 0 }, out[8];
    const dml_status status =
        me->rank ? dml_comm_all_to_all(me->comm, in, 4, DML_F64, out)
                 : dml_comm_all_to_allv(me->comm, in, counts, NULL, DML_F64, out, counts, NULL);
    me->bad += status != DML_ERROR_MISMATCH;
}

static void beside_all_to_all(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 5, mixed_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].bad, 0);
        CHECK(strstr(ranks[rank].error, "all_to_allv(f64)") &&
              strstr(ranks[rank].error, "all_to_all(f64, 4)"));
    }
}

/* What one rank can see of its own call; each ends the job. */
static const struct {
    const char *says;
    bool no_in, no_out, overlap;
    size_t own_in, own_out, other, offset;
} faults[] = {
    { "rank 0 called all_to_allv(f64): NULL for its counts", true, false, false, 1, 1, 1, 0 },
    { "rank 0 called all_to_allv(f64): NULL for its counts", false, true, false, 1, 1, 1, 0 },
    { "what it has for itself and what it takes from itself", false, false, false, 2, 3, 1, 0 },
    { "its input and its output overlap", false, false, true, 2, 2, 1, 0 },
    { "more than fits into memory", false, false, false, 2, 2, SIZE_MAX / 4, 0 },
    { "more than fits into memory", false, false, false, 2, 2, 2, SIZE_MAX - 1 },
};

static void fault_body(test_rank *me)
{
    const int i = *(const int *)me->user;
    double data[64] = { 0 };
    const size_t in[2] = { faults[i].own_in, faults[i].other }, out[2] = { faults[i].own_out, 1 },
                 at[2] = { 0, faults[i].offset };
    if (me->rank) return;
    me->bad += dml_comm_all_to_allv(me->comm, data, faults[i].no_in ? NULL : in, faults[i].offset ? at : NULL,
                                    DML_F64, faults[i].overlap ? data + 1 : data + 32,
                                    faults[i].no_out ? NULL : out, NULL) != DML_ERROR_ARGUMENT;
}

static void bad_arguments(void)
{
    for (int i = 0; i < (int)(sizeof faults / sizeof *faults); i++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 5, fault_body, &i);
        ranks_run_on(ranks, 2, "local");
        CHECK_INT(ranks[0].bad, 0);
        CHECK_MESSAGE(strstr(ranks[0].error, faults[i].says), "\"%s\" isn't \"%s\"", ranks[0].error,
                      faults[i].says);
    }
}

int main(void)
{
    RUN(local);
    RUN(shm);
    RUN(tcp);
    RUN(groups);
    RUN(unlike);
    RUN(beside_all_to_all);
    RUN(bad_arguments);
    return test_report("comm/all_to_allv");
}
