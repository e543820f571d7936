/* The algorithms of the collectives: what each rank has in the end, for all sizes, counts, roots and orders.
 */
#include "schedule_run.h"

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
        CHECK(!step->completes || (reduces(call->operation) && dml__does_reduce(step->kind)));
        at->done[i] = 0;
        at->ended[i] = false;
        at->prior[i] = -1;
        at->under_way[i] =
            step->kind == DML__STEP_SEND && step->count ? (float *)malloc(step->count * sizeof(float)) : NULL;
    }
}

/* All-gather takes its input from its place in OUT, reduce-scatter writes to its row of IN, and one
   all-to-all has both in one. */
static bool may_alias(const trial *t)
{
    const dml__collective *const c = &t->call;
    return c->operation == DML__CALL_ALL_GATHER || dml__is_in_place(t->info) ||
           (c->operation == DML__CALL_REDUCE_SCATTER && !c->counts);
}

static void begin_run(const trial *t, group *g, bool alias)
{
    const dml__collective *const c = &t->call;
    const uint64_t shared = dml__is_shared(t->info) ? (uint64_t)c->size * c->count : 0;
    const array common = new_array((uint64_t)c->size * shared);
    g->call = *c;
    g->call.shared = shared;
    g->ranks = ranks;
    g->mean = t->mean;
    g->in_order = test_random(&state) % 2;
    g->buffered = test_random(&state) % 4 == 0;
    g->late = -1;
    for (int r = 0; r < c->size; r++) {
        rank_state *const rank = &ranks[r];
        array *const in = &rank->spaces[DML__SPACE_IN], *const out = &rank->spaces[DML__SPACE_OUT];
        write_rank(t->info, &g->call, r, rank);
        rank->spaces[DML__SPACE_SHARED] = common;
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
            out->data = in->data + (row ? c->count * (uint64_t)r : 0);
        }
        copy_array(in_place(c->operation) ? out : in, &t->given[r]);
    }
}

static void end_run(const trial *t, bool alias)
{
    free(ranks[0].spaces[DML__SPACE_SHARED].data);
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

/* ---- calls one after the other through the memory of all ranks ---- */

enum { SEQUENCE = 3, SEQUENCE_RANKS = 7 };

static const dml__comm_operation shared_operations[] = { DML__CALL_ALL_REDUCE, DML__CALL_ALL_GATHER,
                                                         DML__CALL_REDUCE_SCATTER };

/* Appends a call, in the second of two memories that all share (which is SCRATCH here) or in the first: none
   of its steps goes before those of the calls before it have ended at this rank. */
static void append_call(dml__schedule *s, const dml__algorithm_info *info, const dml__collective *c,
                        bool second)
{
    const int gate = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, 0, DML__SPACE_OUT, 0);
    dml__add_after(s, gate, DML__ALL_BEFORE);
    info->write(c, s);
    for (int i = gate + 1; i < s->count; i++) {
        dml__step *const step = &s->steps[i];
        dml__add_after(s, i, gate);
        uint8_t *const spaces[] = { &step->space, &step->source_space };
        for (int k = 0; k < 2 && second; k++)
            if (*spaces[k] == DML__SPACE_SHARED) *spaces[k] = DML__SPACE_SCRATCH;
    }
}

/* What the call leaves. */
static void expect_call(dml__comm_operation operation, int m, uint64_t n, array in[], array out[])
{
    float sums[SEQUENCE_RANKS * 16];
    for (uint64_t i = 0; i < (uint64_t)m * n; i++) {
        sums[i] = 0;
        for (int r = 0; r < m; r++)
            sums[i] += operation == DML__CALL_ALL_REDUCE ? out[r].data[i] : in[r].data[i];
    }
    for (int r = 0; r < m; r++)
        for (uint64_t i = 0; i < n; i++)
            if (operation == DML__CALL_ALL_REDUCE)
                out[r].data[i] = sums[i];
            else if (operation == DML__CALL_REDUCE_SCATTER)
                out[r].data[i] = sums[(uint64_t)r * n + i];
            else
                for (int other = 0; other < m; other++) out[other].data[(uint64_t)r * n + i] = in[r].data[i];
}

static void check_sequence(int m, const dml__comm_operation operations[SEQUENCE],
                           const uint64_t counts[SEQUENCE])
{
    group g;
    array in[SEQUENCE_RANKS], out[SEQUENCE_RANKS], common[2];
    const uint64_t length = (uint64_t)m * 16;
    memset(&g, 0, sizeof g);
    g.call.size = m;
    g.ranks = ranks;
    g.late = -1;
    g.in_order = true;
    g.buffered = test_random(&state) % 2;
    for (int k = 0; k < 2; k++) common[k] = new_array((uint64_t)m * length);
    for (int r = 0; r < m; r++) {
        rank_state *const rank = &ranks[r];
        memset(rank, 0, sizeof *rank);
        rank->schedule.steps = steps[r];
        rank->schedule.capacity = MOST_STEPS;
        rank->spaces[DML__SPACE_IN] = new_array(length);
        rank->spaces[DML__SPACE_OUT] = new_array(length);
        rank->spaces[DML__SPACE_SHARED] = common[0];
        rank->spaces[DML__SPACE_SCRATCH] = common[1];
        in[r] = new_array(length);
        out[r] = new_array(length);
        for (uint64_t i = 0; i < length; i++) {
            in[r].data[i] = (float)(test_random(&state) % 100);
            out[r].data[i] = (float)(test_random(&state) % 100);
        }
        copy_array(&rank->spaces[DML__SPACE_IN], &in[r]);
        copy_array(&rank->spaces[DML__SPACE_OUT], &out[r]);
        for (int k = 0; k < SEQUENCE; k++) {
            int count;
            const dml__algorithm_info *const info =
                &dml__algorithms(&count)[dml__find_algorithm(operations[k], "shared")];
            dml__collective c = g.call;
            c.operation = operations[k];
            c.rank = r;
            c.count = counts[k];
            c.shared = length;
            append_call(&rank->schedule, info, &c, k % 2);
        }
        CHECK(!rank->schedule.overflowed);
        for (int i = 0; i < rank->schedule.count; i++) {
            rank->prior[i] = -1;
            rank->under_way[i] = NULL;
        }
    }
    for (int k = 0; k < SEQUENCE; k++) expect_call(operations[k], m, counts[k], in, out);
    CHECK(pair_up(&g));
    CHECK_INT(run_group(&g), 0);
    for (int r = 0; r < m; r++) {
        for (uint64_t i = 0; i < length; i++)
            CHECK_MESSAGE(ranks[r].spaces[DML__SPACE_OUT].data[i] == out[r].data[i],
                          "operations %d, %d, %d of %d ranks: rank %d has %g at %llu, not %g",
                          (int)operations[0], (int)operations[1], (int)operations[2], m, r,
                          (double)ranks[r].spaces[DML__SPACE_OUT].data[i], (unsigned long long)i,
                          (double)out[r].data[i]);
        free(ranks[r].spaces[DML__SPACE_IN].data);
        free(ranks[r].spaces[DML__SPACE_OUT].data);
        free(in[r].data);
        free(out[r].data);
    }
    for (int k = 0; k < 2; k++) free(common[k].data);
}

/* Whatever goes first of what may go: what a rank still reads nobody writes. */
static void shared_calls_in_a_row(void)
{
    for (int m = 2; m <= SEQUENCE_RANKS; m++)
        for (int which = 0; which < 27; which++)
            for (int run = 0; run < (TEST_EMULATOR ? 2 : 12) && test__ok; run++) {
                const dml__comm_operation operations[SEQUENCE] = { shared_operations[which % 3],
                                                                   shared_operations[which / 3 % 3],
                                                                   shared_operations[which / 9] };
                uint64_t counts[SEQUENCE];
                for (int k = 0; k < SEQUENCE; k++) counts[k] = test_random(&state) % 17;
                check_sequence(m, operations, counts);
            }
}

int main(void)
{
    const char *const seed = getenv("SEED");
    state = seed ? (unsigned)strtoul(seed, NULL, 10) : 20091;
    RUN(all_reduce);
    RUN(reduce);
    RUN(broadcast);
    RUN(scatter);
    RUN(gather);
    RUN(all_gather);
    RUN(reduce_scatter);
    RUN(all_to_all);
    RUN(barrier);
    RUN(shared_calls_in_a_row);
    return test_report("comm/schedule");
}
