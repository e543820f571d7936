/* price_schedules.h: a few schedules written out, not by the library's own algorithms, so that their prices
   are checked against paper alone; and two that never end. */
#ifndef DML_TESTS_COMM_PRICE_SCHEDULES_H
#define DML_TESTS_COMM_PRICE_SCHEDULES_H

#include "comm/algorithms.h"

#include <string.h>

static int add(dml__schedule *s, dml__step_kind kind, int peer, dml__space space, uint64_t offset,
               uint64_t count)
{
    if (s->count == s->capacity) {
        s->overflowed = true;
        return -1;
    }
    dml__step *step = &s->steps[s->count];
    memset(step, 0, sizeof *step);
    step->kind = (uint8_t)kind;
    step->space = (uint8_t)space;
    step->peer = peer;
    step->offset = offset;
    step->count = count;
    for (int i = 0; i < DML__STEP_AFTER; i++) step->after[i] = -1;
    return s->count++;
}

static void after(dml__schedule *s, int step, int earlier)
{
    if (step < 0 || earlier < 0) return;
    int i = 0;
    while (s->steps[step].after[i] >= 0) i++;
    s->steps[step].after[i] = earlier;
}

static uint64_t chunk(const dml__collective *c, int index)
{
    return dml__chunk_begin(c->count, c->size, index);
}

static void write_ring(const dml__collective *c, dml__schedule *s)
{
    const int m = c->size, next = (c->rank + 1) % m, before = (c->rank + m - 1) % m;
    int touched[8192];
    for (int i = 0; i < m; i++) touched[i] = -1;
    for (int k = 0; k < 2 * (m - 1); k++) {
        const int out = (c->rank + 2 * m - k) % m, in = (c->rank + 2 * m - k - 1) % m;
        const uint64_t out_count = chunk(c, out + 1) - chunk(c, out);
        const uint64_t in_count = chunk(c, in + 1) - chunk(c, in);
        if (out_count) {
            const int send = add(s, DML__STEP_SEND, next, DML__SPACE_OUT, chunk(c, out), out_count);
            after(s, send, touched[out]);
            touched[out] = send;
        }
        if (in_count) {
            const int got = add(s, k < m - 1 ? DML__STEP_RECEIVE_REDUCE : DML__STEP_RECEIVE, before,
                                DML__SPACE_OUT, chunk(c, in), in_count);
            after(s, got, touched[in]);
            touched[in] = got;
        }
    }
}

/* Power-of-two sizes: all of it with rank ^ 1, ^ 2, ^ 4, through the scratch. */
static void write_butterfly(const dml__collective *c, dml__schedule *s)
{
    int sum = -1, scratch = 0;
    for (int bit = 1; bit < c->size; bit *= 2, scratch++) {
        const int send = add(s, DML__STEP_SEND, c->rank ^ bit, DML__SPACE_OUT, 0, c->count);
        const int got = add(s, DML__STEP_RECEIVE, c->rank ^ bit, DML__SPACE_SCRATCH,
                            (uint64_t)scratch * c->count, c->count);
        after(s, send, sum);
        sum = add(s, DML__STEP_REDUCE, -1, DML__SPACE_OUT, 0, c->count);
        s->steps[sum].source_space = DML__SPACE_SCRATCH;
        s->steps[sum].source = (uint64_t)scratch * c->count;
        after(s, sum, got);
        after(s, sum, send);
    }
}

/* Power-of-two sizes: halves of what is left, and back. */
static void write_halving(const dml__collective *c, dml__schedule *s)
{
    uint64_t begin = 0, count = c->count;
    int sum = -1, step = 0;
    uint64_t begins[16], counts[16], scratch = 0;
    for (int bit = c->size / 2; bit > 0; bit /= 2, step++) {
        const uint64_t half = count / 2;
        const bool low = !(c->rank & bit);
        const uint64_t mine = low ? begin : begin + half, other = low ? begin + half : begin;
        begins[step] = begin, counts[step] = count;
        const int send =
            add(s, DML__STEP_SEND, c->rank ^ bit, DML__SPACE_OUT, other, low ? count - half : half);
        const uint64_t kept = low ? half : count - half;
        const int got = add(s, DML__STEP_RECEIVE, c->rank ^ bit, DML__SPACE_SCRATCH, scratch, kept);
        after(s, send, sum);
        sum = add(s, DML__STEP_REDUCE, -1, DML__SPACE_OUT, mine, kept);
        s->steps[sum].source_space = DML__SPACE_SCRATCH;
        s->steps[sum].source = scratch;
        after(s, sum, got);
        scratch += kept;
        begin = mine, count = kept;
    }
    int ready = sum, got = -1;
    for (int bit = 1; bit < c->size; bit *= 2) {
        step--;
        const int send = add(s, DML__STEP_SEND, c->rank ^ bit, DML__SPACE_OUT, begin, count);
        after(s, send, ready);
        after(s, send, got);
        const uint64_t other = begin == begins[step] ? begin + count : begins[step];
        got = add(s, DML__STEP_RECEIVE, c->rank ^ bit, DML__SPACE_OUT, other, counts[step] - count);
        ready = got;
        begin = begins[step], count = counts[step];
    }
}

static void write_tree(const dml__collective *c, dml__schedule *s)
{
    const int place = (c->rank - c->root + c->size) % c->size;
    int got = -1, bit = 1;
    while (bit < c->size && !(place & bit)) bit *= 2;
    if (place)
        got = add(s, DML__STEP_RECEIVE, (c->rank - bit + c->size) % c->size, DML__SPACE_OUT, 0, c->count);
    int last = got;
    for (bit /= 2; bit > 0; bit /= 2)
        if (place + bit < c->size) { /* one after the other, as on paper */
            const int send = add(s, DML__STEP_SEND, (c->rank + bit) % c->size, DML__SPACE_OUT, 0, c->count);
            after(s, send, last);
            last = send;
        }
}

static void write_chain(const dml__collective *c, dml__schedule *s)
{
    int got = -1;
    if (c->rank > 0) got = add(s, DML__STEP_RECEIVE, c->rank - 1, DML__SPACE_OUT, 0, c->count);
    if (c->rank < c->size - 1)
        after(s, add(s, DML__STEP_SEND, c->rank + 1, DML__SPACE_OUT, 0, c->count), got);
}

/* All to rank 0 at once. */
static void write_gather(const dml__collective *c, dml__schedule *s)
{
    if (c->rank) add(s, DML__STEP_SEND, 0, DML__SPACE_IN, 0, c->count);
    for (int i = 1; i < c->size && !c->rank; i++)
        add(s, DML__STEP_RECEIVE, i, DML__SPACE_OUT, c->count * (uint64_t)i, c->count);
}

/* The lower half of the ranks, each to one of the upper half. */
static void write_halves(const dml__collective *c, dml__schedule *s)
{
    const int half = c->size / 2;
    if (c->rank < half)
        add(s, DML__STEP_SEND, c->rank + half, DML__SPACE_OUT, 0, c->count);
    else
        add(s, DML__STEP_RECEIVE, c->rank - half, DML__SPACE_OUT, 0, c->count);
}

/* Rank 0 sends all of it to rank 1, and an eighth to rank 2. */
static void write_unequal(const dml__collective *c, dml__schedule *s)
{
    if (c->rank) add(s, DML__STEP_RECEIVE, 0, DML__SPACE_OUT, 0, c->rank == 1 ? c->count : c->count / 8);
    if (!c->rank) add(s, DML__STEP_SEND, 1, DML__SPACE_OUT, 0, c->count);
    if (!c->rank) add(s, DML__STEP_SEND, 2, DML__SPACE_OUT, 0, c->count / 8);
}

static void write_barrier(const dml__collective *c, dml__schedule *s)
{
    int got = -1;
    for (int far = 1; far < c->size; far *= 2) {
        after(s, add(s, DML__STEP_SEND, (c->rank + far) % c->size, DML__SPACE_OUT, 0, 0), got);
        got = add(s, DML__STEP_RECEIVE, (c->rank + c->size - far) % c->size, DML__SPACE_OUT, 0, 0);
    }
}

/* Each sends when it has received. */
static void write_stuck(const dml__collective *c, dml__schedule *s)
{
    const int got = add(s, DML__STEP_RECEIVE, (c->rank + 1) % c->size, DML__SPACE_OUT, 0, c->count);
    after(s, add(s, DML__STEP_SEND, (c->rank + c->size - 1) % c->size, DML__SPACE_OUT, 0, c->count), got);
}

static void write_lonely(const dml__collective *c, dml__schedule *s)
{
    if (c->rank == 1) add(s, DML__STEP_SEND, 2, DML__SPACE_OUT, 0, c->count);
}

enum { RING, BUTTERFLY, HALVING, TREE, CHAIN, BARRIER, GATHER, HALVES, UNEQUAL, STUCK, LONELY, KINDS };

static const dml__algorithm_info algorithms[KINDS] = {
    { "ring", DML__CALL_ALL_REDUCE, write_ring, false, false, NULL, NULL, NULL },
    { "butterfly", DML__CALL_ALL_REDUCE, write_butterfly, false, false, NULL, NULL, NULL },
    { "halving", DML__CALL_ALL_REDUCE, write_halving, false, false, NULL, NULL, NULL },
    { "tree", DML__CALL_BROADCAST, write_tree, false, false, NULL, NULL, NULL },
    { "chain", DML__CALL_BROADCAST, write_chain, false, false, NULL, NULL, NULL },
    { "dissemination", DML__CALL_BARRIER, write_barrier, false, false, NULL, NULL, NULL },
    { "all_at_once", DML__CALL_GATHER, write_gather, false, false, NULL, NULL, NULL },
    { "halves", DML__CALL_BROADCAST, write_halves, false, false, NULL, NULL, NULL },
    { "unequal", DML__CALL_BROADCAST, write_unequal, false, false, NULL, NULL, NULL },
    { "stuck", DML__CALL_BROADCAST, write_stuck, false, false, NULL, NULL, NULL },
    { "lonely", DML__CALL_BROADCAST, write_lonely, false, false, NULL, NULL, NULL },
};

#endif
