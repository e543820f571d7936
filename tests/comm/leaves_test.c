/* Sums of leaves: the same bits for any number of ranks and whoever has which leaf, and what is said when a
   leaf is missing or there twice. */
#include "ranks.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_LEAVES = 21, MOST_ELEMENTS = 20011 };

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Of very different sizes, so that each order of adding has other bits. */
static void fill_leaf(dml_dtype dtype, int leaf, size_t count, void *data)
{
    for (size_t e = 0; e < count; e++) {
        const uint32_t bits = mix((uint32_t)(leaf * MOST_ELEMENTS) + (uint32_t)e);
        const float x = ldexpf((float)(bits & 0xffff) - 32768.0f, (int)(bits >> 28));
        if (dtype == DML_F32) ((float *)data)[e] = x;
        if (dtype == DML_F64) ((double *)data)[e] = (double)x / 3;
        if (dtype == DML_I32) ((int32_t *)data)[e] = (int32_t)bits;
        if (dtype == DML_BF16) {
            uint32_t word;
            memcpy(&word, &x, sizeof word);
            ((uint16_t *)data)[e] = (uint16_t)(word >> 16);
        }
    }
}

/* As the tree's definition has it, level by level. */
static void sum_of_tree(dml_dtype dtype, dml_reduce_op op, int leaves, size_t count, void *sum)
{
    const size_t bytes = count * dml_dtype_size(dtype);
    char *level = (char *)malloc((size_t)leaves * bytes + 1);
    dml__reduction how;
    memset(&how, 0, sizeof how);
    how.dtype = dtype;
    how.op = op;
    for (int i = 0; i < leaves; i++) fill_leaf(dtype, i, count, level + (size_t)i * bytes);
    for (int n = leaves; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < n; i += 2) {
            char *const into = level + (size_t)(i / 2) * bytes, *const left = level + (size_t)i * bytes;
            memmove(into, left, bytes);
            if (i + 1 < n) dml__reduce_elements(&how, into, into, left + bytes, count);
        }
    if (op == DML_MEAN) dml__finish_mean(&how, level, count, leaves);
    memcpy(sum, level, bytes);
    free(level);
}

/* Whose a leaf is: equal parts in a row, in turns, all at the last rank, anyhow, or anyhow but never rank
 * 0's. */
enum { ROW, TURNS, ONE, ANYHOW, NOT_FIRST, SPLITS };
static int owner_of(int split, int leaf, int leaves, int world)
{
    if (split == ROW) return (int)((int64_t)leaf * world / leaves);
    if (split == TURNS) return leaf % world;
    if (split == ONE) return world - 1;
    const uint32_t random = mix((uint32_t)(leaf + 31 * leaves + 1009 * world));
    return split == ANYHOW || world == 1 ? (int)(random % (uint32_t)world)
                                         : 1 + (int)(random % (uint32_t)(world - 1));
}

typedef struct leaf_case {
    dml_dtype dtype;
    dml_reduce_op op;
    int leaves, split;
    size_t count;
    bool in_place; /* the first leaf of the rank, if there is one, gets the sum */
} leaf_case;

typedef struct leaf_arrays {
    char *data; /* (leaves + 1, count) */
    void *leaves[MOST_LEAVES];
    int64_t owners[MOST_LEAVES];
    void *out;
} leaf_arrays;

static void make_arrays(const test_rank *me, const leaf_case *c, leaf_arrays *arrays)
{
    const size_t bytes = c->count * dml_dtype_size(c->dtype);
    arrays->data = (char *)malloc((size_t)(c->leaves + 1) * bytes + 1);
    arrays->out = NULL;
    for (int i = 0; i < c->leaves; i++) {
        /* Backwards, so that places and leaves have different orders. */
        char *const place = arrays->data + (size_t)(c->leaves - i) * bytes;
        const bool own = owner_of(c->split, i, c->leaves, me->world) == me->rank;
        arrays->leaves[i] = own ? place : NULL;
        if (!own) continue;
        fill_leaf(c->dtype, i, c->count, place);
        if (c->in_place && !arrays->out) arrays->out = place;
    }
    if (!arrays->out) arrays->out = arrays->data;
}

static void check_arrays(test_rank *me, const leaf_case *c, leaf_arrays *arrays)
{
    const size_t bytes = c->count * dml_dtype_size(c->dtype);
    void *want = malloc(bytes + 1);
    sum_of_tree(c->dtype, c->op, c->leaves, c->count, want);
    if (memcmp(want, arrays->out, bytes) != 0) {
        printf("  rank %d of %d: %d leaves, split %d, %zu elements\n", me->rank, me->world, c->leaves,
               c->split, c->count);
        me->bad++;
    }
    free(want);
    free(arrays->data);
}

static dml_status sum_leaves(test_rank *me, const leaf_case *c, leaf_arrays *a)
{
    return dml_comm_all_reduce_leaves(me->comm, a->leaves, a->owners, (size_t)c->leaves, a->out, c->count,
                                      c->dtype, c->op);
}

static void splits_body(test_rank *me)
{
    static const int leaves[] = { 1, 2, 3, 8, MOST_LEAVES };
    static const size_t counts[] = { 0, 1, 1000, MOST_ELEMENTS };
    leaf_case c = { DML_F32, DML_SUM, 0, 0, 0, false };
    leaf_arrays arrays;
    for (size_t l = 0; l < sizeof leaves / sizeof *leaves; l++)
        for (c.split = 0; c.split < SPLITS; c.split++)
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                c.leaves = leaves[l];
                c.count = counts[n];
                if (c.count == MOST_ELEMENTS && (c.split + c.leaves) % 4) continue; /* they take the time */
                c.in_place = (c.split + n) % 2;
                make_arrays(me, &c, &arrays);
                me->bad += sum_leaves(me, &c, &arrays) != DML_OK;
                check_arrays(me, &c, &arrays);
            }
}

static void any_split_has_the_same_bits(void)
{
    for (int world = 1; world <= (TEST_EMULATOR ? 3 : RANKS_MAX); world++) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 20, splits_body, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
}

/* Other elements and ops, several calls under way and other operations between them. */
static void at_once_body(test_rank *me)
{
    static const leaf_case cases[] = {
        { DML_F64, DML_MEAN, 13, TURNS, 5000, true }, { DML_BF16, DML_SUM, 8, ROW, 20001, false },
        { DML_I32, DML_MEAN, 7, ANYHOW, 9000, true }, { DML_F32, DML_MAX, 21, NOT_FIRST, 3, false },
        { DML_F32, DML_SUM, 21, TURNS, 20011, true },
    };
    enum { CASES = sizeof cases / sizeof *cases };
    leaf_arrays *arrays = (leaf_arrays *)malloc(CASES * sizeof *arrays);
    dml_request *requests[CASES];
    for (int i = 0; i < CASES; i++) make_arrays(me, &cases[i], &arrays[i]);
    for (int i = 0; i < CASES; i++) {
        const leaf_case *c = &cases[i];
        float one = 1;
        requests[i] =
            dml_comm_all_reduce_leaves_start(me->comm, arrays[i].leaves, arrays[i].owners, (size_t)c->leaves,
                                             arrays[i].out, c->count, c->dtype, c->op);
        me->bad += dml_comm_all_reduce(me->comm, &one, 1, DML_F32, DML_SUM) != DML_OK;
        me->bad += (int)one != me->world;
    }
    for (int i = CASES - 1; i >= 0; i--) me->bad += dml_comm_wait(me->comm, requests[i]) != DML_OK;
    for (int i = 0; i < CASES; i++) check_arrays(me, &cases[i], &arrays[i]);
    free(arrays);
}

static void several_at_once(void)
{
    static const char *const transports[] = { "local", "tcp", "shm" };
    for (int t = 0; t < 3; t++)
        for (int world = 2; world <= 5; world += 3) {
            test_rank ranks[RANKS_MAX];
            ranks_prepare(ranks, world, 20, at_once_body, NULL);
            ranks_run_on(ranks, world, transports[t]);
            check_ranks(ranks, world);
        }
}

/* ---- what goes wrong ---- */

enum { MISSING, TWICE, TOTALS, NONE, TOO_MANY, NO_OWNERS, OVERLAP, UNALIGNED, ODD_OWNERS, FAULTS };

static void wrong_body(test_rank *me)
{
    float data[10] = { 0 };
    void *leaves[4] = { NULL, NULL, NULL, NULL };
    int64_t owners[5], *given = owners;
    void *out = &data[8];
    size_t total = 4;
    const int fault = *(const int *)me->user;
    for (int i = 0; i < 4; i++)
        if (i % 3 == me->rank) leaves[i] = &data[2 * i];
    if (fault == MISSING) leaves[1] = NULL;
    if (fault == TWICE && me->rank == 2) leaves[1] = &data[2];
    if (fault == TOTALS && me->rank == 1) total = 3;
    if (fault == NONE) total = 0;
    if (fault == TOO_MANY) total = (size_t)INT_MAX + 1;
    if (fault == OVERLAP) out = &data[2 * me->rank + 1];
    if (fault == UNALIGNED) out = (char *)out + 2;
    if (fault == NO_OWNERS) given = NULL;
    if (fault == ODD_OWNERS) given = (int64_t *)(void *)((char *)owners + 4);
    dml_comm_all_reduce_leaves(me->comm, leaves, given, total, out, 2, DML_F32, DML_SUM);
    me->culprit = dml_comm_culprit(me->comm);
}

static void faults_are_told(void)
{
    static const char *const sentences[FAULTS] = {
        "no rank gave leaf 1: each of the leaves has to be at one rank",
        "leaf 1 was given by rank 1 and by rank 2: each of the leaves has to be at one rank",
        "called all_reduce_leaves(f32, 2, sum, leaves 3)",
        "there must be 1 leaf or more",
        "there can be 2^31 - 1 leaves at most, and these are more",
        "NULL for its leaves or owners",
        "its output overlaps a leaf that it isn't",
        "must begin at a multiple of the element's size",
        "its leaves or owners must begin at a multiple of 8",
    };
    for (int fault = 0; fault < FAULTS; fault++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 20, wrong_body, &fault);
        ranks_run_on(ranks, 3, "local");
        for (int rank = 0; rank < 3; rank++) {
            CHECK_INT(ranks[rank].status, fault < NONE ? DML_ERROR_MISMATCH : DML_ERROR_ARGUMENT);
            CHECK_CONTAINS(ranks[rank].error, sentences[fault]);
            /* (Whose leaf is missing nobody knows.) */
            if (fault == MISSING) CHECK_INT(ranks[rank].culprit, -1);
            if (fault == TWICE) CHECK_INT(ranks[rank].culprit, 2);
        }
    }
}

/* Of four leaves, which the three ranks have by turns. */
typedef struct wrong_leaf {
    int leaf, more; /* has this many owners more than one: -1, 1 or 2 */
} wrong_leaf;

static void wrong_leaf_body(test_rank *me)
{
    const wrong_leaf *wrong = (const wrong_leaf *)me->user;
    float data[5] = { 0 };
    void *leaves[4] = { NULL, NULL, NULL, NULL };
    int64_t owners[5];
    for (int i = 0; i < 4; i++) {
        const int turn = (me->rank + 3 - i % 3) % 3; /* 0: it is this rank's */
        if (turn <= (i == wrong->leaf ? wrong->more : 0)) leaves[i] = &data[i];
    }
    dml_comm_all_reduce_leaves(me->comm, leaves, owners, 4, &data[4], 1, DML_F32, DML_SUM);
    me->culprit = dml_comm_culprit(me->comm);
}

static void each_leaf_has_to_be_at_one_rank(void)
{
    static const char *const twice[4] = { "by rank 0 and by rank 1", "by rank 1 and by rank 2",
                                          "by rank 0 and by rank 2", "by rank 0 and by rank 1" };
    static const int last[4] = { 1, 2, 2, 1 };
    for (int i = 0; i < 12; i++) {
        const wrong_leaf wrong = { i / 3, i % 3 ? i % 3 : -1 };
        test_rank ranks[3];
        char sentence[64];
        if (wrong.more < 0)
            snprintf(sentence, sizeof sentence, "no rank gave leaf %d: ", wrong.leaf);
        else
            snprintf(sentence, sizeof sentence, "leaf %d was given %s: ", wrong.leaf,
                     wrong.more == 1 ? twice[wrong.leaf] : "by rank 0 and by rank 2");
        ranks_prepare(ranks, 3, 20, wrong_leaf_body, (void *)(uintptr_t)&wrong);
        ranks_run_on(ranks, 3, "local");
        for (int rank = 0; rank < 3; rank++) {
            CHECK_INT(ranks[rank].status, DML_ERROR_MISMATCH);
            CHECK_CONTAINS(ranks[rank].error, sentence);
            CHECK_INT(ranks[rank].culprit, wrong.more < 0 ? -1 : wrong.more == 1 ? last[wrong.leaf] : 2);
        }
    }
}

/* Else equal bits say nothing. */
static void orders_differ(void)
{
    enum { N = 1000 };
    static float tree[N], row[N], leaf[N];
    sum_of_tree(DML_F32, DML_SUM, MOST_LEAVES, N, tree);
    memset(row, 0, sizeof row);
    for (int i = 0; i < MOST_LEAVES; i++) {
        fill_leaf(DML_F32, i, N, leaf);
        for (int e = 0; e < N; e++) row[e] += leaf[e];
    }
    CHECK(memcmp(row, tree, sizeof row) != 0);
}

int main(void)
{
    RUN(orders_differ);
    RUN(any_split_has_the_same_bits);
    RUN(several_at_once);
    RUN(faults_are_told);
    RUN(each_leaf_has_to_be_at_one_rank);
    return test_report("comm/leaves");
}
