/* The schedules of all ranks, run in memory: whatever may go goes in a random order and in random segments.
   Either nothing is kept under way, a message moves when its receive takes it, so that what waits for each
   other stands still; or messages are kept for the receives, so that a send can end long before them. */
#ifndef DML_TESTS_COMM_SCHEDULE_RUN_H
#define DML_TESTS_COMM_SCHEDULE_RUN_H

#include "comm/algorithms.h"

#include "../test.h"

enum { MOST_RANKS = 17, MOST_STEPS = 160 };

static unsigned state;

typedef struct array {
    float *data; /* (length) */
    uint64_t length;
} array;

/* How far a rank has come. */
typedef struct rank_state {
    dml__schedule schedule;
    uint64_t done[MOST_STEPS];
    bool ended[MOST_STEPS];
    int twin[MOST_STEPS];         /* of a send: the receive at its peer, and the other way round */
    int prior[MOST_STEPS];        /* the send or receive before, of the same peer and direction; -1: none */
    float *under_way[MOST_STEPS]; /* of a send: (count) */
    int first_open;               /* all steps before it have ended */
    array spaces[DML__SPACE_COUNT];
} rank_state;

/* A group whose ranks have the same call. */
typedef struct group {
    dml__collective call;
    rank_state *ranks; /* (size) */
    bool mean;
    bool in_order; /* between two ranks one message goes after the other */
    bool buffered; /* messages are kept under way */
    int late;      /* a rank that hasn't called yet; -1: none */
} group;

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static float *place(rank_state *rank, int space, uint64_t offset, uint64_t count)
{
    array *const a = &rank->spaces[space];
    CHECK_MESSAGE(offset <= a->length && count <= a->length - offset,
                  "[%llu, +%llu) of space %d, which has %llu", (unsigned long long)offset,
                  (unsigned long long)count, space, (unsigned long long)a->length);
    return offset <= a->length && count <= a->length - offset ? a->data + offset : NULL;
}

/* Up to which element of a step its own rank lets it go; UINT64_MAX for one without elements that may go. */
static uint64_t limit_of(const group *g, const rank_state *rank, int index)
{
    const dml__step *const step = &rank->schedule.steps[index];
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < DML__STEP_AFTER; i++) {
        const int after = step->after[i];
        if (after == -1) continue;
        if (after == DML__ALL_BEFORE)
            limit = rank->first_open >= index ? limit : 0;
        else
            limit = lesser(limit, dml__step_limit(step, &rank->schedule.steps[after], rank->done[after],
                                                  rank->ended[after]));
    }
    if (g->in_order && rank->prior[index] >= 0 && !rank->ended[rank->prior[index]]) limit = 0;
    return limit;
}

static void advance(rank_state *rank, int index, uint64_t count)
{
    rank->done[index] += count;
    rank->ended[index] = rank->done[index] == rank->schedule.steps[index].count;
    while (rank->first_open < rank->schedule.count && rank->ended[rank->first_open]) rank->first_open++;
}

/* range = or += what comes; a sum that is complete is divided. */
static void combine(const group *g, const dml__step *step, float *range, const float *from, uint64_t count)
{
    const bool reduces = dml__does_reduce(step->kind);
    for (uint64_t i = 0; i < count; i++) {
        range[i] = reduces ? range[i] + from[i] : from[i];
        if (step->completes && g->mean) range[i] /= (float)g->call.size;
    }
}

/* How many elements of a step go now, at random; -1: it may not go. */
static int64_t segment_of(const rank_state *rank, int index, uint64_t limit)
{
    const uint64_t count = rank->schedule.steps[index].count, done = rank->done[index];
    if (rank->ended[index] || (count ? limit <= done : limit == 0)) return -1;
    const uint64_t most = lesser(limit, count) - done;
    return (int64_t)(most > 1 && test_random(&state) % 4 ? 1 + test_random(&state) % most : most);
}

static bool receives(const dml__step *step)
{
    return step->kind == DML__STEP_RECEIVE || step->kind == DML__STEP_RECEIVE_REDUCE;
}

/* Moves a random segment of a step, if it may go; a send that isn't kept under way moves its receive too. */
static bool move(group *g, int r, int index)
{
    rank_state *const rank = &g->ranks[r];
    const dml__step *const step = &rank->schedule.steps[index];
    const uint64_t done = rank->done[index];
    const bool together = !g->buffered && step->kind == DML__STEP_SEND;
    rank_state *const other = step->peer >= 0 ? &g->ranks[step->peer] : NULL;
    const int twin = rank->twin[index];
    if (r == g->late || (together && step->peer == g->late) || (!g->buffered && receives(step))) return false;
    uint64_t limit = limit_of(g, rank, index);
    if (together) limit = lesser(limit, limit_of(g, other, twin));
    if (receives(step) && !other->ended[twin]) limit = lesser(limit, other->done[twin]);
    const int64_t segment = segment_of(rank, index, limit);
    if (segment < 0) return false;
    const uint64_t count = (uint64_t)segment;
    if (count && step->kind == DML__STEP_SEND) {
        const dml__step *const to = &other->schedule.steps[twin];
        const float *const from = place(rank, step->space, step->offset + done, count);
        float *const range = place(other, to->space, to->offset + done, count);
        if (from && !together)
            memcpy(rank->under_way[index] + done, from, count * sizeof *from);
        else if (from && range)
            combine(g, to, range, from, count);
    } else if (count) {
        float *const from = receives(step) ? other->under_way[twin] + done
                                           : place(rank, step->source_space, step->source + done, count);
        float *const range = place(rank, step->space, step->offset + done, count);
        if (from && range && from != range) combine(g, step, range, from, count);
        if (from && range && step->kind == DML__STEP_REDUCE_BOTH) memcpy(from, range, count * sizeof *from);
        float *const out =
            step->kind == DML__STEP_REDUCE_OUT ? place(rank, DML__SPACE_OUT, done, count) : NULL;
        if (out && range && out != range) memcpy(out, range, count * sizeof *out);
    }
    advance(rank, index, count);
    if (together) advance(other, twin, count);
    return true;
}

/* Finds the receive of each send; false when a message has one end only or two counts. */
static bool pair_up(group *g)
{
    bool ok = true;
    for (int a = 0; a < g->call.size; a++)
        for (int b = 0; b < g->call.size; b++) {
            rank_state *const from = &g->ranks[a], *const to = &g->ranks[b];
            int receive = -1, sent = -1, received = -1;
            for (int i = 0; i < from->schedule.count; i++) {
                const dml__step *const step = &from->schedule.steps[i];
                if (step->kind != DML__STEP_SEND || step->peer != b) continue;
                do receive++;
                while (receive < to->schedule.count &&
                       (!receives(&to->schedule.steps[receive]) || to->schedule.steps[receive].peer != a));
                const bool same =
                    receive < to->schedule.count && to->schedule.steps[receive].count == step->count;
                CHECK_MESSAGE(same && a != b, "what rank %d sends at step %d has no receive at rank %d", a, i,
                              b);
                if (!same) return false;
                from->twin[i] = receive;
                to->twin[receive] = i;
                from->prior[i] = sent;
                to->prior[receive] = received;
                sent = i;
                received = receive;
            }
            for (receive++; receive < to->schedule.count; receive++) {
                const dml__step *const step = &to->schedule.steps[receive];
                const bool extra = step->peer == a && receives(step);
                CHECK_MESSAGE(!extra, "nobody sends what rank %d receives at step %d", b, receive);
                ok = ok && !extra;
            }
        }
    return ok;
}

static void print_group(const group *g)
{
    char text[DML__STEP_TEXT];
    for (int r = 0; r < g->call.size; r++)
        for (int i = 0; i < g->ranks[r].schedule.count; i++)
            if (!g->ranks[r].ended[i])
                printf("  rank %d, %s: %llu done\n", r, dml__step_text(&g->ranks[r].schedule, i, text),
                       (unsigned long long)g->ranks[r].done[i]);
}

/* Runs until nothing moves; how many steps haven't ended then. */
static int run_group(group *g)
{
    static int order[MOST_RANKS * MOST_STEPS];
    int total = 0;
    for (int r = 0; r < g->call.size; r++)
        for (int i = 0; i < g->ranks[r].schedule.count; i++)
            if (!g->ranks[r].ended[i]) order[total++] = r * MOST_STEPS + i;
    for (bool moved = true; moved && total;) {
        moved = false;
        for (int i = total - 1; i > 0; i--) {
            const int j = (int)(test_random(&state) % (unsigned)(i + 1)), kept = order[i];
            order[i] = order[j];
            order[j] = kept;
        }
        int open = 0;
        for (int i = 0; i < total; i++) {
            const int r = order[i] / MOST_STEPS, step = order[i] % MOST_STEPS;
            if (move(g, r, step)) moved = true;
            if (!g->ranks[r].ended[step]) order[open++] = order[i];
        }
        total = open;
    }
    return total;
}

#endif
