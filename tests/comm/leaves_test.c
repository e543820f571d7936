/* Sums of a tree's leaves, split among 1 to 9 ranks in every way that matters: always the same bits. */
#include "comm/leaves.h"

#include "../test.h"

enum { MOST_RANKS = 9, MOST_LEAVES = 20 };

/* The tree as its definition has it: neighbours in pairs, the last one, if it has none, as it is. */
static int nodes_of(uint64_t leaves, dml__subtree *nodes)
{
    int count = 0, begin = 0;
    for (uint64_t i = 0; i < leaves; i++) nodes[count].begin = i, nodes[count++].end = i + 1;
    while (count - begin > 1) {
        const int end = count;
        for (; begin < end; begin += 2) {
            nodes[count] = nodes[begin];
            if (begin + 1 < end) nodes[count].end = nodes[begin + 1].end;
            count++;
        }
        begin = end;
    }
    return count;
}

static bool is_node(const dml__subtree *nodes, int count, dml__subtree s)
{
    for (int i = 0; i < count; i++)
        if (nodes[i].begin == s.begin && nodes[i].end == s.end) return true;
    return false;
}

/* Each is a node, none is in a larger one, and together they are the range. */
static void the_largest_subtrees(void)
{
    static dml__subtree nodes[256];
    for (uint64_t leaves = 1; leaves <= 40; leaves++) {
        const int all = nodes_of(leaves, nodes);
        for (uint64_t begin = 0; begin <= leaves; begin++)
            for (uint64_t end = begin; end <= leaves; end++) {
                dml__subtree got[DML__MOST_SUBTREES];
                const int count = dml__subtrees_of(leaves, begin, end, got);
                uint64_t at = begin;
                for (int i = 0; i < count; i++) {
                    CHECK(got[i].begin == at && got[i].end > at && is_node(nodes, all, got[i]));
                    at = got[i].end;
                }
                CHECK(at == end);
                int largest = 0;
                for (int i = 0; i < count; i++) {
                    bool inside = false;
                    for (int k = 0; k < all; k++)
                        inside |= nodes[k].begin <= got[i].begin && nodes[k].end >= got[i].end &&
                                  nodes[k].end - nodes[k].begin > got[i].end - got[i].begin &&
                                  nodes[k].begin >= begin && nodes[k].end <= end;
                    largest += !inside;
                }
                CHECK_INT(largest, count);
            }
    }
}

/* Leaves that come one by one end as those subtrees, in no more arrays than was said. */
static void leaves_one_by_one(void)
{
    for (uint64_t leaves = 1; leaves <= 70; leaves++)
        for (uint64_t begin = 0; begin < leaves; begin += 1 + leaves / 20)
            for (uint64_t end = begin; end <= leaves; end++) {
                dml__subtree want[DML__MOST_SUBTREES];
                const int count = dml__subtrees_of(leaves, begin, end, want);
                const int arrays = dml__arrays_for_leaves(leaves, begin, end);
                dml__leaf_sums sums;
                int most = 0;
                dml__begin_sums(&sums, leaves);
                for (uint64_t i = begin; i < end; i++) {
                    const dml__subtree leaf = { i, i + 1 };
                    const int before = sums.count, added = dml__add_subtree(&sums, leaf);
                    CHECK_INT(sums.count, before + 1 - added);
                    if (before + 1 > most) most = before + 1;
                }
                CHECK_INT(most, arrays);
                CHECK(begin > 0 || arrays <= 8);
                CHECK_INT(sums.count, count);
                CHECK(memcmp(sums.subtrees, want, (size_t)count * sizeof *want) == 0);
            }
    const uint64_t many = (uint64_t)1 << 62;
    dml__subtree got[DML__MOST_SUBTREES];
    CHECK_INT(dml__subtrees_of(many, 0, many, got), 1);
    CHECK_INT(dml__subtrees_of(many, 1, many - 1, got), 2 * 61);
    CHECK_INT(dml__subtrees_of(many + 1, 1, many + 1, got), 63);
    CHECK_INT(dml__subtrees_of(many, 5, 5, got), 0);
}

/* --- the steps, run in memory --- */

enum { MOST_STEPS = 400, MOST_ELEMENTS = 23 };

static unsigned state = 9;

static int add_step(dml__schedule *s, dml__step_kind kind, int peer, dml__space space, uint64_t offset,
                    uint64_t count)
{
    dml__step step;
    memset(&step, 0, sizeof step);
    CHECK(s->count < s->capacity);
    if (s->count == s->capacity) return -1;
    step.kind = (uint8_t)kind;
    step.space = (uint8_t)space;
    step.peer = peer;
    for (int i = 0; i < DML__STEP_AFTER; i++) step.after[i] = -1;
    step.offset = offset;
    step.count = count;
    s->steps[s->count] = step;
    return s->count++;
}

/* What comm/schedule.h says of them. */
int dml__add_send(dml__schedule *s, int peer, dml__space space, uint64_t offset, uint64_t count)
{
    return count ? add_step(s, DML__STEP_SEND, peer, space, offset, count) : -1;
}

int dml__add_receive(dml__schedule *s, int peer, dml__step_kind kind, dml__space space, uint64_t offset,
                     uint64_t count)
{
    return count ? add_step(s, kind, peer, space, offset, count) : -1;
}

int dml__add_local(dml__schedule *s, dml__step_kind kind, dml__space space, uint64_t offset, uint64_t count,
                   dml__space source_space, uint64_t source)
{
    const int step = add_step(s, kind, -1, space, offset, count);
    s->steps[step].source_space = (uint8_t)source_space;
    s->steps[step].source = source;
    return step;
}

void dml__add_after(dml__schedule *s, int step, int earlier)
{
    if (step < 0 || earlier < 0) return;
    int i = 0;
    while (s->steps[step].after[i] >= 0) i++;
    s->steps[step].after[i] = earlier;
}

typedef struct tree_rank {
    dml__schedule schedule;
    dml__step steps[MOST_STEPS];
    bool ended[MOST_STEPS];
    float *sent[MOST_STEPS]; /* (count) of the step, from when it was sent until it is received */
    float *space[DML__SPACE_COUNT];
    uint64_t length[DML__SPACE_COUNT];
} tree_rank;

static float *place(tree_rank *rank, int space, uint64_t offset, uint64_t count)
{
    CHECK(offset + count <= rank->length[space]);
    return rank->space[space] + offset;
}

/* The step of `from` whose message the step `receive` of rank `to` takes. */
static int sender_of(tree_rank *from, tree_rank *to, int a, int b, int receive)
{
    int before = 0;
    for (int i = 0; i < receive; i++)
        before += to->steps[i].kind == DML__STEP_RECEIVE && to->steps[i].peer == a;
    for (int i = 0; i < from->schedule.count; i++)
        if (from->steps[i].kind == DML__STEP_SEND && from->steps[i].peer == b && before-- == 0) return i;
    return -1;
}

/* Runs a step, if it may: true. A message is under way from when it was sent. */
static bool run_step(tree_rank *ranks, int r, int index)
{
    tree_rank *const rank = &ranks[r];
    const dml__step *const step = &rank->steps[index];
    const size_t bytes = (size_t)step->count * sizeof(float);
    if (rank->ended[index]) return false;
    for (int i = 0; i < DML__STEP_AFTER; i++)
        if (step->after[i] >= 0 && !rank->ended[step->after[i]]) return false;
    float *const range = place(rank, step->space, step->offset, step->count);
    if (step->kind == DML__STEP_SEND) {
        rank->sent[index] = (float *)malloc(bytes);
        memcpy(rank->sent[index], range, bytes);
    } else if (step->kind == DML__STEP_RECEIVE) {
        tree_rank *const from = &ranks[step->peer];
        const int send = sender_of(from, rank, step->peer, r, index);
        CHECK(send >= 0);
        if (send < 0 || !from->sent[send]) return false;
        CHECK(from->steps[send].count == step->count);
        memcpy(range, from->sent[send], bytes);
        free(from->sent[send]);
        from->sent[send] = NULL;
    } else {
        const float *const source = place(rank, step->source_space, step->source, step->count);
        for (uint64_t i = 0; i < step->count; i++)
            range[i] = step->kind == DML__STEP_REDUCE ? range[i] + source[i] : source[i];
    }
    rank->ended[index] = true;
    return true;
}

static int open_steps(const tree_rank *ranks, int size)
{
    int open = 0;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < ranks[r].schedule.count; i++) open += !ranks[r].ended[i] || ranks[r].sent[i];
    return open;
}

static void run_ranks(tree_rank *ranks, int size)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int tries = 0; tries < size; tries++) {
            const int r = (int)(test_random(&state) >> 8) % size, count = ranks[r].schedule.count;
            const int first = count ? (int)((test_random(&state) >> 8) % (unsigned)count) : 0;
            for (int i = 0; i < count; i++) moved |= run_step(ranks, r, (first + i) % count);
        }
        for (int r = 0; r < size && !moved; r++)
            for (int i = 0; i < ranks[r].schedule.count; i++) moved |= run_step(ranks, r, i);
    }
    CHECK_INT(open_steps(ranks, size), 0);
}

static float of_leaves[MOST_LEAVES][MOST_ELEMENTS];

/* As the tree's definition has it. */
static void sum_of_tree(uint64_t leaves, uint64_t elements, float *sum)
{
    static float level[MOST_LEAVES][MOST_ELEMENTS];
    memcpy(level, of_leaves, sizeof level);
    for (uint64_t count = leaves; count > 1; count = (count + 1) / 2)
        for (uint64_t i = 0; i < count; i += 2)
            for (uint64_t e = 0; e < elements; e++)
                level[i / 2][e] = i + 1 < count ? level[i][e] + level[i + 1][e] : level[i][e];
    memcpy(sum, level[0], (size_t)elements * sizeof *sum);
}

/* A rank's arrays as its leaves come. */
static void add_leaves(const dml__leaf_call *call, int r, uint64_t elements, float *arrays)
{
    dml__leaf_sums sums;
    dml__begin_sums(&sums, call->leaves);
    for (uint64_t i = call->begins[r]; i < call->begins[r + 1]; i++) {
        const dml__subtree leaf = { i, i + 1 };
        float *last = arrays + (uint64_t)sums.count * elements;
        memcpy(last, of_leaves[i], (size_t)elements * sizeof *last);
        for (int added = dml__add_subtree(&sums, leaf); added > 0; added--, last -= elements)
            for (uint64_t e = 0; e < elements; e++) last[(ptrdiff_t)e - (ptrdiff_t)elements] += last[e];
    }
}

static void one_split(const dml__leaf_call *call, int size, uint64_t elements, bool in_place)
{
    static tree_rank ranks[MOST_RANKS];
    float want[MOST_ELEMENTS];
    sum_of_tree(call->leaves, elements, want);
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < size; r++) {
        dml__collective c;
        dml__subtree subtrees[DML__MOST_SUBTREES];
        memset(&c, 0, sizeof c);
        c.operation = DML__CALL_ALL_REDUCE;
        c.rank = r, c.size = size, c.count = elements;
        const int arrays = dml__arrays_for_leaves(call->leaves, call->begins[r], call->begins[r + 1]);
        const int left = dml__subtrees_of(call->leaves, call->begins[r], call->begins[r + 1], subtrees);
        uint64_t *const length = ranks[r].length;
        length[DML__SPACE_IN] = (uint64_t)left * elements;
        length[DML__SPACE_OUT] = elements;
        length[DML__SPACE_SCRATCH] = dml__leaves_scratch(&c, call);
        ranks[r].space[DML__SPACE_IN] = (float *)malloc((size_t)(arrays + 1) * elements * sizeof(float) + 1);
        ranks[r].space[DML__SPACE_SCRATCH] =
            (float *)malloc((size_t)length[DML__SPACE_SCRATCH] * sizeof(float) + 1);
        ranks[r].space[DML__SPACE_OUT] =
            in_place ? ranks[r].space[DML__SPACE_IN] : (float *)malloc((size_t)elements * sizeof(float) + 1);
        add_leaves(call, r, elements, ranks[r].space[DML__SPACE_IN]);
        ranks[r].schedule.steps = ranks[r].steps;
        ranks[r].schedule.capacity = dml__leaves_steps(&c, call);
        CHECK(ranks[r].schedule.capacity <= MOST_STEPS);
        dml__write_leaves_all_reduce(&c, call, &ranks[r].schedule);
        if (elements >= (uint64_t)size) CHECK_INT(ranks[r].schedule.count, ranks[r].schedule.capacity);
    }
    run_ranks(ranks, size);
    for (int r = 0; r < size; r++) {
        CHECK(memcmp(ranks[r].space[DML__SPACE_OUT], want, (size_t)elements * sizeof *want) == 0);
        free(ranks[r].space[DML__SPACE_IN]);
        free(ranks[r].space[DML__SPACE_SCRATCH]);
        if (!in_place) free(ranks[r].space[DML__SPACE_OUT]);
    }
}

/* Of very different sizes, so that each order of adding has other bits. */
static void fill_leaves(void)
{
    for (int i = 0; i < MOST_LEAVES; i++)
        for (int e = 0; e < MOST_ELEMENTS; e++)
            of_leaves[i][e] = ldexpf((float)(test_random(&state) >> 8) - 8388608.0f,
                                     (int)((test_random(&state) >> 8) % 12));
}

static void every_split_has_the_same_bits(void)
{
    static const uint64_t lengths[] = { 0, 1, 5, MOST_ELEMENTS };
    for (uint64_t leaves = 1; leaves <= MOST_LEAVES; leaves++)
        for (int size = 1; size <= MOST_RANKS; size++)
            for (int split = 0; split < (TEST_EMULATOR ? 2 : 5); split++) {
                uint64_t begins[MOST_RANKS + 1];
                const dml__leaf_call call = { leaves, begins };
                /* As equal as can be, all at one rank, or anyhow. */
                for (int r = 0; r <= size; r++) begins[r] = dml__chunk_begin(leaves, size, r);
                for (int r = 1; r < size && split; r++)
                    begins[r] = split == 1
                                    ? (r > size / 2 ? leaves : 0)
                                    : begins[r - 1] + test_random(&state) % (leaves - begins[r - 1] + 1);
                fill_leaves();
                for (int i = 0; i < 4; i++) one_split(&call, size, lengths[i], (i + split) % 2);
            }
}

static void orders_differ(void)
{
    float tree[MOST_ELEMENTS], row[MOST_ELEMENTS];
    fill_leaves();
    sum_of_tree(MOST_LEAVES, MOST_ELEMENTS, tree);
    memcpy(row, of_leaves[0], sizeof row);
    for (int i = 1; i < MOST_LEAVES; i++)
        for (int e = 0; e < MOST_ELEMENTS; e++) row[e] += of_leaves[i][e];
    CHECK(memcmp(row, tree, sizeof row) != 0); /* so the test tells them apart */
}

int main(void)
{
    RUN(the_largest_subtrees);
    RUN(leaves_one_by_one);
    RUN(every_split_has_the_same_bits);
    RUN(orders_differ);
    return test_report("comm/leaves");
}
