/* The schedules of all ranks, run in memory: whatever may go goes in a random order and in random segments.
   Either nothing is kept under way, a message moves when its receive takes it, so that what waits for each
   other stands still; or messages are kept for the receives, so that a send can end long before them. */
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
    const bool reduces = step->kind == DML__STEP_RECEIVE_REDUCE || step->kind == DML__STEP_REDUCE;
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
        const float *const from = receives(step)
                                      ? other->under_way[twin] + done
                                      : place(rank, step->source_space, step->source + done, count);
        float *const range = place(rank, step->space, step->offset + done, count);
        if (from && range && from != range) combine(g, step, range, from, count);
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

/* ---- calls, and what they have to give ---- */

/* Where parts lie, if they differ. */
static size_t part_counts[MOST_RANKS], part_offsets[MOST_RANKS];

static uint64_t parts_length(const dml__collective *c)
{
    uint64_t length = 0;
    for (int r = 0; r < c->size; r++) {
        const uint64_t end = dml__part_offset(c, r) + dml__part_count(c, r);
        if (end > length) length = end;
    }
    return length;
}

/* Parts of 0 to 5 elements, in any order, with gaps. */
static void random_parts(dml__collective *c)
{
    int order[MOST_RANKS];
    size_t at = 0;
    c->count = 0;
    for (int i = 0; i < c->size; i++) {
        const int j = (int)(test_random(&state) % (unsigned)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < c->size; i++) {
        const size_t count = test_random(&state) % 2 ? test_random(&state) % 6 : 0;
        part_counts[order[i]] = count;
        part_offsets[order[i]] = at;
        at += count + test_random(&state) % 3;
        if (count > c->count) c->count = count;
    }
    c->counts = part_counts;
    c->offsets = part_offsets;
}

static bool reduces(dml__comm_operation operation)
{
    return operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE ||
           operation == DML__CALL_REDUCE_SCATTER;
}

static bool in_place(dml__comm_operation operation)
{
    return operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE ||
           operation == DML__CALL_BROADCAST;
}

static uint64_t in_length(const dml__collective *c, int rank)
{
    switch (c->operation) {
    case DML__CALL_SCATTER: return rank == c->root ? parts_length(c) : 0;
    case DML__CALL_GATHER:
    case DML__CALL_ALL_GATHER: return dml__part_count(c, rank);
    case DML__CALL_REDUCE_SCATTER:
    case DML__CALL_ALL_TO_ALL: return parts_length(c);
    default: return 0;
    }
}

static uint64_t out_length(const dml__collective *c, int rank)
{
    switch (c->operation) {
    case DML__CALL_ALL_REDUCE:
    case DML__CALL_REDUCE:
    case DML__CALL_BROADCAST: return c->count;
    case DML__CALL_SCATTER:
    case DML__CALL_REDUCE_SCATTER: return dml__part_count(c, rank);
    case DML__CALL_GATHER: return rank == c->root ? parts_length(c) : 0;
    case DML__CALL_ALL_GATHER:
    case DML__CALL_ALL_TO_ALL: return parts_length(c);
    default: return 0;
    }
}

/* One case: an algorithm, its call, and what all ranks have at first. */
typedef struct trial {
    const dml__algorithm_info *info;
    dml__collective call;
    bool mean, integers;
    array given[MOST_RANKS];  /* in IN, or in OUT where that is the input */
    array wanted[MOST_RANKS]; /* in OUT; NAN: nothing is written there */
} trial;

static array new_array(uint64_t length)
{
    array a;
    a.length = length;
    a.data = (float *)malloc((size_t)length * sizeof(float) + !length);
    for (uint64_t i = 0; i < length; i++) a.data[i] = NAN;
    return a;
}

static void copy_array(array *into, const array *from)
{
    if (from->length) memcpy(into->data, from->data, (size_t)from->length * sizeof(float));
}

/* The sum of what all ranks gave at that place, in their order. */
static float sum_of(const trial *t, uint64_t place_in)
{
    float sum = 0;
    for (int r = 0; r < t->call.size; r++)
        sum = r ? sum + t->given[r].data[place_in] : t->given[r].data[place_in];
    return t->mean && t->call.size > 1 ? sum / (float)t->call.size : sum;
}

static void want(trial *t, int rank)
{
    const dml__collective *const c = &t->call;
    array *const out = &t->wanted[rank];
    const uint64_t own = dml__part_offset(c, rank);
    for (uint64_t i = 0; in_place(c->operation) && i < c->count; i++)
        out->data[i] = c->operation == DML__CALL_BROADCAST ? t->given[c->root].data[i] : sum_of(t, i);
    for (uint64_t i = 0; c->operation == DML__CALL_REDUCE_SCATTER && i < out->length; i++)
        out->data[i] = sum_of(t, own + i);
    for (uint64_t i = 0; c->operation == DML__CALL_SCATTER && i < out->length; i++)
        out->data[i] = t->given[c->root].data[own + i];
    const bool gathers = c->operation == DML__CALL_GATHER || c->operation == DML__CALL_ALL_GATHER;
    for (int r = 0; r < c->size && out->length; r++) {
        const uint64_t offset = dml__part_offset(c, r);
        for (uint64_t i = 0; gathers && i < dml__part_count(c, r); i++)
            out->data[offset + i] = t->given[r].data[i];
        for (uint64_t i = 0; c->operation == DML__CALL_ALL_TO_ALL && i < c->count; i++)
            out->data[offset + i] = t->given[r].data[own + i];
    }
}

static void begin_trial(trial *t)
{
    for (int r = 0; r < t->call.size; r++) {
        t->given[r] =
            new_array(in_place(t->call.operation) ? out_length(&t->call, r) : in_length(&t->call, r));
        for (uint64_t i = 0; i < t->given[r].length; i++)
            t->given[r].data[i] = t->integers ? (float)(test_random(&state) % 2001) - 1000
                                              : (float)(test_random(&state) >> 8) / 8388608.0f - 1.0f;
    }
    for (int r = 0; r < t->call.size; r++) {
        t->wanted[r] = new_array(out_length(&t->call, r));
        want(t, r);
    }
}

static void end_trial(trial *t)
{
    for (int r = 0; r < t->call.size; r++) {
        free(t->given[r].data);
        free(t->wanted[r].data);
    }
}

static rank_state ranks[MOST_RANKS];
static dml__step steps[MOST_RANKS][MOST_STEPS];

static void write_rank(const dml__algorithm_info *info, const dml__collective *call, int rank, rank_state *at)
{
    dml__collective mine = *call;
    mine.rank = rank;
    at->schedule.steps = steps[rank];
    at->schedule.count = at->first_open = 0;
    at->schedule.capacity = dml__most_steps(call->size);
    at->schedule.overflowed = false;
    CHECK(at->schedule.capacity <= MOST_STEPS);
    info->write(&mine, &at->schedule);
    CHECK(!at->schedule.overflowed);
    for (int i = 0; i < at->schedule.count; i++) {
        const dml__step *const step = &at->schedule.steps[i];
        CHECK(!step->completes || (reduces(call->operation) && (step->kind == DML__STEP_REDUCE ||
                                                                step->kind == DML__STEP_RECEIVE_REDUCE)));
        at->done[i] = 0;
        at->ended[i] = false;
        at->prior[i] = -1;
        at->under_way[i] =
            step->kind == DML__STEP_SEND && step->count ? (float *)malloc(step->count * sizeof(float)) : NULL;
    }
}

/* All-gather takes its input from its place in OUT, reduce-scatter writes to a row of IN, and one all-to-all
   has both in one. */
static bool may_alias(const trial *t)
{
    const dml__collective *const c = &t->call;
    return c->operation == DML__CALL_ALL_GATHER || dml__is_in_place(t->info) ||
           (c->operation == DML__CALL_REDUCE_SCATTER && !c->counts);
}

static void begin_run(const trial *t, group *g, bool alias)
{
    const dml__collective *const c = &t->call;
    g->call = *c;
    g->ranks = ranks;
    g->mean = t->mean;
    g->in_order = test_random(&state) % 2;
    g->buffered = test_random(&state) % 4 == 0;
    g->late = -1;
    for (int r = 0; r < c->size; r++) {
        rank_state *const rank = &ranks[r];
        array *const in = &rank->spaces[DML__SPACE_IN], *const out = &rank->spaces[DML__SPACE_OUT];
        write_rank(t->info, c, r, rank);
        rank->spaces[DML__SPACE_SCRATCH] =
            new_array(t->info->scratch ? t->info->scratch(c->size, c->count) : 0);
        *in = new_array(in_length(c, r));
        *out = new_array(out_length(c, r));
        if (alias && c->operation == DML__CALL_ALL_GATHER) {
            free(in->data);
            in->data = out->data + dml__part_offset(c, r);
        } else if (alias) {
            const bool row = c->operation == DML__CALL_REDUCE_SCATTER;
            free(out->data);
            out->data = in->data + (row ? c->count * (test_random(&state) % (unsigned)c->size) : 0);
        }
        copy_array(in_place(c->operation) ? out : in, &t->given[r]);
    }
}

static void end_run(const trial *t, bool alias)
{
    for (int r = 0; r < t->call.size; r++) {
        for (int i = 0; i < ranks[r].schedule.count; i++) free(ranks[r].under_way[i]);
        free(ranks[r].spaces[DML__SPACE_SCRATCH].data);
        if (!alias || t->call.operation != DML__CALL_ALL_GATHER) free(ranks[r].spaces[DML__SPACE_IN].data);
        if (!alias || t->call.operation == DML__CALL_ALL_GATHER) free(ranks[r].spaces[DML__SPACE_OUT].data);
    }
}

static bool same_bits(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* Compares the results. Sums of floats that promise no order are compared with the first rank's, or their
   first run's, which `wanted` then becomes. */
static bool results_hold(trial *t, bool first)
{
    const dml__collective *const c = &t->call;
    const bool any_order = reduces(c->operation) && !t->integers && !t->info->rank_order;
    for (int r = 0; r < c->size; r++) {
        const float *const out = ranks[r].spaces[DML__SPACE_OUT].data;
        if (c->operation == DML__CALL_REDUCE && r != c->root) continue;
        for (uint64_t i = 0; i < t->wanted[r].length; i++) {
            float *const wanted = &t->wanted[r].data[i];
            if (any_order && first && fabsf(out[i] - *wanted) < 1e-4f)
                *wanted =
                    c->operation == DML__CALL_ALL_REDUCE ? ranks[0].spaces[DML__SPACE_OUT].data[i] : out[i];
            if (same_bits(out[i], *wanted)) continue;
            CHECK_MESSAGE(false, "rank %d has %.9g at %llu, not %.9g", r, (double)out[i],
                          (unsigned long long)i, (double)*wanted);
            return false;
        }
    }
    return true;
}

static void print_trial(const trial *t, unsigned seed)
{
    printf("%s of operation %d, %d ranks, root %d, count %llu%s, seed %u:\n", t->info->name,
           (int)t->info->operation, t->call.size, t->call.root, (unsigned long long)t->call.count,
           t->call.counts ? " in parts" : "", seed);
}

/* Some runs of one case, each in another order. */
static void check_trial(trial *t)
{
    const unsigned seed = state;
    begin_trial(t);
    for (int run = 0; run < 3; run++) {
        group g;
        const bool alias = run % 2 && may_alias(t), was_ok = test__ok;
        begin_run(t, &g, alias);
        const int left = pair_up(&g) ? run_group(&g) : 0;
        CHECK_MESSAGE(left == 0, "%d steps wait for each other:", left);
        if (left)
            print_group(&g);
        else
            results_hold(t, run == 0);
        end_run(t, alias);
        if (was_ok && !test__ok) print_trial(t, seed);
    }
    end_trial(t);
}

static void check_counts(const dml__algorithm_info *info, int size, int root)
{
    const uint64_t m = (uint64_t)size, counts[] = { 0, 1, 7, m - 1, m, m + 1, 2 * m + 1, 1000 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        trial t;
        memset(&t, 0, sizeof t);
        t.info = info;
        t.call.operation = info->operation;
        t.call.size = size;
        t.call.root = root;
        t.call.count = info->operation == DML__CALL_BARRIER ? 0 : counts[i];
        for (int kind = 0; kind < (reduces(info->operation) ? 3 : 1); kind++) {
            t.integers = kind != 2;
            t.mean = kind == 1;
            check_trial(&t);
            const bool parts = info->operation == DML__CALL_GATHER || info->operation == DML__CALL_SCATTER ||
                               info->operation == DML__CALL_ALL_GATHER ||
                               info->operation == DML__CALL_REDUCE_SCATTER;
            if (info->equal_parts || !parts) continue;
            trial with_parts = t;
            random_parts(&with_parts.call);
            check_trial(&with_parts);
        }
    }
}

static bool has_root(dml__comm_operation operation)
{
    return operation == DML__CALL_REDUCE || operation == DML__CALL_BROADCAST ||
           operation == DML__CALL_SCATTER || operation == DML__CALL_GATHER;
}

static void check_operation(dml__comm_operation operation)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++)
        for (int m = 1; m <= (TEST_EMULATOR ? 9 : MOST_RANKS) && table[i].operation == operation; m++) {
            const int roots = has_root(operation) ? m : 1;
            for (int root = 0; root<roots; root += m> 6 ? 1 + (int)(test_random(&state) % 7) : 1)
                check_counts(&table[i], m, root);
        }
}

static void all_reduce(void)
{
    check_operation(DML__CALL_ALL_REDUCE);
}
static void reduce(void)
{
    check_operation(DML__CALL_REDUCE);
}
static void broadcast(void)
{
    check_operation(DML__CALL_BROADCAST);
}
static void scatter(void)
{
    check_operation(DML__CALL_SCATTER);
}
static void gather(void)
{
    check_operation(DML__CALL_GATHER);
}
static void all_gather(void)
{
    check_operation(DML__CALL_ALL_GATHER);
}
static void reduce_scatter(void)
{
    check_operation(DML__CALL_REDUCE_SCATTER);
}
static void all_to_all(void)
{
    check_operation(DML__CALL_ALL_TO_ALL);
}

/* Nobody leaves a barrier before all have come. */
static void barrier(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++) {
        if (table[i].operation != DML__CALL_BARRIER) continue;
        for (int m = 2; m <= MOST_RANKS; m++)
            for (int late = 0; late < m; late++) {
                trial t;
                group g;
                memset(&t, 0, sizeof t);
                t.info = &table[i];
                t.call.operation = DML__CALL_BARRIER;
                t.call.size = m;
                begin_run(&t, &g, false);
                if (pair_up(&g)) {
                    g.late = late;
                    run_group(&g);
                    for (int r = 0; r < m; r++)
                        CHECK_MESSAGE(ranks[r].first_open < ranks[r].schedule.count,
                                      "%s: rank %d of %d leaves without rank %d", table[i].name, r, m, late);
                    g.late = -1;
                    CHECK_INT(run_group(&g), 0);
                }
                end_run(&t, false);
            }
    }
}

/* ---- figures ---- */

enum { MOST_FIGURED = 64 };

/* What the ranks of a group write, each figure of the rank that has most. */
typedef struct figures {
    int steps;
    uint64_t elements, messages, scratch;
} figures;

static void count_rank(const dml__schedule *s, figures *most)
{
    uint64_t elements = 0, messages = 0;
    for (int i = 0; i < s->count; i++) {
        const dml__step *const step = &s->steps[i];
        const uint64_t end = step->offset + step->count, source_end = step->source + step->count;
        if (step->kind == DML__STEP_SEND) {
            elements += step->count;
            messages++;
        }
        if (step->space == DML__SPACE_SCRATCH && end > most->scratch) most->scratch = end;
        if (step->peer < 0 && step->source_space == DML__SPACE_SCRATCH && source_end > most->scratch)
            most->scratch = source_end;
    }
    if (s->count > most->steps) most->steps = s->count;
    if (elements > most->elements) most->elements = elements;
    if (messages > most->messages) most->messages = messages;
}

static figures figures_of(const dml__algorithm_info *info, int size, int root, uint64_t count)
{
    static dml__step written[9 * MOST_FIGURED + 16];
    dml__collective c;
    figures most;
    memset(&c, 0, sizeof c);
    memset(&most, 0, sizeof most);
    c.operation = info->operation;
    c.size = size;
    c.root = root;
    c.count = count;
    for (c.rank = 0; c.rank < size; c.rank++) {
        dml__schedule s = { written, 0, dml__most_steps(size), false };
        CHECK(s.capacity <= (int)(sizeof written / sizeof *written));
        info->write(&c, &s);
        CHECK_MESSAGE(!s.overflowed, "%s of operation %d has more steps than %d", info->name,
                      (int)info->operation, s.capacity);
        count_rank(&s, &most);
    }
    return most;
}

/* What the ranks send is what the textbook says; nobody writes more steps than were reserved, nor uses more
   of SCRATCH, and somebody about as many and as much. */
static void figures_hold(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int m = 1; m <= MOST_FIGURED; m++) {
        int steps_needed = 0;
        for (int i = 0; i < count; i++) {
            const dml__algorithm_info *const a = &table[i];
            const uint64_t n = a->operation == DML__CALL_BARRIER ? 0 : 6 * (uint64_t)m * 64;
            const figures most = figures_of(a, m, 0, n), other = figures_of(a, m, m - 1, n);
            const uint64_t used = most.scratch > other.scratch ? most.scratch : other.scratch;
            const uint64_t scratch = a->scratch ? a->scratch(m, n) : 0;
            CHECK_MESSAGE(most.elements == a->elements_sent(m, n) && most.messages == a->messages_sent(m),
                          "%s of operation %d, %d ranks: %llu elements in %llu messages, not %llu in %llu",
                          a->name, (int)a->operation, m, (unsigned long long)most.elements,
                          (unsigned long long)most.messages, (unsigned long long)a->elements_sent(m, n),
                          (unsigned long long)a->messages_sent(m));
            const bool exact = m >= 4 && (m & (m - 1)) == 0;
            CHECK_MESSAGE(exact ? used == scratch : used <= scratch,
                          "%s of operation %d, %d ranks: %llu elements of scratch, not %llu", a->name,
                          (int)a->operation, m, (unsigned long long)used, (unsigned long long)scratch);
            if (most.steps > steps_needed) steps_needed = most.steps;
            if (other.steps > steps_needed) steps_needed = other.steps;
            if (getenv("STEPS") && (m == 4 || m == 16))
                printf("%d ranks, operation %d, %s: %d steps\n", m, (int)a->operation, a->name, most.steps);
        }
        CHECK_MESSAGE(dml__most_steps(m) <= steps_needed + (m < 3 ? 2 : 0), "%d ranks: %d steps, room for %d",
                      m, steps_needed, dml__most_steps(m));
    }
}

/* Pairwise, each message but the first waits for what the one before it was exchanged for. */
static void pairwise_is_paced(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    dml__step room[16];
    dml__schedule s = { room, 0, 16, false };
    dml__collective c;
    memset(&c, 0, sizeof c);
    c.operation = DML__CALL_ALL_TO_ALL;
    c.size = 4;
    c.rank = 1;
    c.count = 3;
    table[dml__find_algorithm(c.operation, "pairwise")].write(&c, &s);
    int sends = 0, received = -1, last = -1;
    for (int i = 0; i < s.count; i++) {
        if (room[i].kind == DML__STEP_RECEIVE) {
            last = received;
            received = i;
        }
        if (room[i].kind != DML__STEP_SEND) continue;
        CHECK_INT(room[i].after[0], last);
        sends++;
    }
    CHECK_INT(sends, 3);
}

static void names_are_found(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++) {
        CHECK_INT(dml__find_algorithm(table[i].operation, table[i].name), i);
        CHECK(i == 0 || table[i].operation >= table[i - 1].operation);
    }
    CHECK_INT(dml__find_algorithm(DML__CALL_REDUCE, "round_robin"), -1);
    CHECK_INT(dml__find_algorithm(DML__CALL_ALL_REDUCE, "rin"), -1);
}

/* ---- steps ---- */

static void steps_in_words(void)
{
    dml__step room[3];
    dml__schedule s = { room, 0, 3, false };
    char text[DML__STEP_TEXT];
    const int send = dml__add_send(&s, 2, DML__SPACE_IN, 5, 10);
    CHECK_STRING(dml__step_text(&s, send, text), "0: send in[5, 15) to 2");
    const int got = dml__add_receive(&s, 1, DML__STEP_RECEIVE_REDUCE, DML__SPACE_OUT, 0, 3);
    dml__add_after(&s, got, send);
    dml__add_after(&s, got, send);
    dml__add_after(&s, got, -1);
    dml__add_after(&s, -1, send);
    dml__add_after(&s, got, DML__ALL_BEFORE);
    dml__set_completes(&s, got);
    dml__set_completes(&s, -1);
    CHECK_STRING(dml__step_text(&s, got, text), "1: receive_reduce out[0, 3) from 1 after 0, all, completes");
    CHECK_INT(room[1].after[2], -1);
    const int sum = dml__add_local(&s, DML__STEP_REDUCE, DML__SPACE_OUT, 1, 2, DML__SPACE_SCRATCH, 7);
    CHECK_STRING(dml__step_text(&s, sum, text), "2: reduce out[1, 3) by scratch[7, 9)");
    CHECK_INT(dml__add_send(&s, 1, DML__SPACE_OUT, 0, 0), -1);
    CHECK_INT(dml__add_receive(&s, 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, 0), -1);
    CHECK(!s.overflowed);
    CHECK_INT(dml__add_signal(&s, 1), -1);
    CHECK(s.overflowed);
    CHECK_INT(s.count, 3);

    s.count = 0;
    CHECK_STRING(dml__step_text(&s, dml__add_signal(&s, 3), text), "0: send out[0, 0) to 3");
    CHECK_STRING(dml__step_text(&s, dml__add_wait_signal(&s, 0), text), "1: receive out[0, 0) from 0");
    dml__add_local(&s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, 0, DML__SPACE_IN, 4);
    CHECK_STRING(dml__step_text(&s, 2, text), "2: copy scratch[0, 0) from in[4, 4)");

    /* The longest there is. */
    s.count = 2;
    const uint64_t far = (uint64_t)1 << 63;
    dml__add_local(&s, DML__STEP_REDUCE, DML__SPACE_SCRATCH, far, far - 1, DML__SPACE_SCRATCH, far);
    for (int i = 0; i < DML__STEP_AFTER; i++) room[2].after[i] = 2147483647;
    dml__set_completes(&s, 2);
    CHECK_STRING(dml__step_text(&s, 2, text),
                 "2: reduce scratch[9223372036854775808, 18446744073709551615) by "
                 "scratch[9223372036854775808, 18446744073709551615) after 2147483647, 2147483647, "
                 "2147483647, completes");
}

static dml__step step_on(dml__step_kind kind, dml__space space, uint64_t offset, uint64_t count)
{
    dml__step room;
    dml__schedule s = { &room, 0, 1, false };
    if (kind == DML__STEP_SEND)
        dml__add_send(&s, 0, space, offset, count);
    else
        dml__add_receive(&s, 0, kind, space, offset, count);
    return room;
}

static void limits(void)
{
    const uint64_t free_to_go = UINT64_MAX;
    const dml__step early = step_on(DML__STEP_SEND, DML__SPACE_OUT, 100, 50);
    dml__step step = step_on(DML__STEP_RECEIVE, DML__SPACE_OUT, 100, 50);
    CHECK(dml__step_limit(&step, &early, 0, false) == 0);
    CHECK(dml__step_limit(&step, &early, 20, false) == 20);
    CHECK(dml__step_limit(&step, &early, 50, false) == free_to_go);
    CHECK(dml__step_limit(&step, &early, 0, true) == free_to_go);
    step.offset = 90; /* it begins before the other */
    CHECK(dml__step_limit(&step, &early, 0, false) == 10);
    CHECK(dml__step_limit(&step, &early, 20, false) == 30);
    step.offset = 130; /* and later */
    CHECK(dml__step_limit(&step, &early, 29, false) == 0);
    CHECK(dml__step_limit(&step, &early, 30, false) == 0);
    CHECK(dml__step_limit(&step, &early, 31, false) == 1);
    step.offset = 149;
    CHECK(dml__step_limit(&step, &early, 49, false) == 0);
    CHECK(dml__step_limit(&step, &early, 50, false) == free_to_go);
    step.offset = 150; /* they don't meet */
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);
    step.offset = 50;
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);
    step.offset = 51;
    CHECK(dml__step_limit(&step, &early, 0, false) == 49);
    step.offset = 100;
    step.space = DML__SPACE_IN;
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);

    /* Sources count on both sides, and the strictest of what meets. */
    dml__step sum = step_on(DML__STEP_RECEIVE, DML__SPACE_OUT, 100, 50);
    sum.kind = DML__STEP_REDUCE;
    sum.source_space = DML__SPACE_SCRATCH;
    sum.source = 7;
    dml__step got = step_on(DML__STEP_RECEIVE, DML__SPACE_SCRATCH, 7, 50);
    CHECK(dml__step_limit(&sum, &got, 13, false) == 13);
    CHECK(dml__step_limit(&got, &sum, 13, false) == 13);
    CHECK(dml__step_limit(&sum, &early, 14, false) == 14);
    CHECK(dml__step_limit(&sum, &sum, 15, false) == 15);
    dml__step next = sum;
    next.offset = 110; /* of OUT later than of SCRATCH */
    CHECK(dml__step_limit(&next, &sum, 15, false) == 5);
    CHECK(dml__step_limit(&sum, &next, 15, false) == 15);
    next.kind = DML__STEP_COPY;
    next.offset = 1000;
    CHECK(dml__step_limit(&next, &sum, 16, false) == 16);
    got.source_space = DML__SPACE_OUT; /* a receive has no source */
    got.source = 100;
    CHECK(dml__step_limit(&got, &early, 50, false) == 0);
    CHECK(dml__step_limit(&early, &got, 50, false) == 0);

    /* What has no elements waits for the end, and is waited for. */
    dml__step signal = early;
    signal.offset = 120;
    signal.count = 0;
    CHECK(dml__step_limit(&signal, &early, 50, false) == 0);
    CHECK(dml__step_limit(&signal, &early, 50, true) == free_to_go);
    CHECK(dml__step_limit(&early, &signal, 0, false) == 0);
}

int main(void)
{
    const char *const seed = getenv("SEED");
    state = seed ? (unsigned)strtoul(seed, NULL, 10) : 20091;
    RUN(figures_hold);
    RUN(names_are_found);
    RUN(pairwise_is_paced);
    RUN(steps_in_words);
    RUN(limits);
    RUN(all_reduce);
    RUN(reduce);
    RUN(broadcast);
    RUN(scatter);
    RUN(gather);
    RUN(all_gather);
    RUN(reduce_scatter);
    RUN(all_to_all);
    RUN(barrier);
    return test_report("comm/schedule");
}
