#ifndef DML_COMM_TREE_C
#define DML_COMM_TREE_C

#include "comm/algorithms.h"

/* ---- two binary trees ---- */

/* A rank's neighbours in one of the trees; -1: none. */
typedef struct dml__tree_place {
    int parent, child[2];
} dml__tree_place;

/* The number from 1 to m of a rank in the first tree or the second, and the other way round. Odd numbers are
   leaves; whoever has an even number in one tree has an odd one in the other. */
static int dml__tree_number(const dml__collective *c, int tree)
{
    if (!tree) return c->rank + 1;
    return c->size % 2 ? (c->rank + 1) % c->size + 1 : c->size - c->rank;
}
static int dml__tree_rank(const dml__collective *c, int tree, int number)
{
    if (number == 0) return -1;
    if (!tree) return number - 1;
    return c->size % 2 ? (number + c->size - 2) % c->size : c->size - number;
}

/* The tree of all binary numbers in their order: i with j zeros at its end has the children i - 2^(j-1) and
   i + 2^(j-1). Of numbers up to m, a missing one's place is taken by what is left of its lower half. */
static dml__tree_place dml__tree_place_of(const dml__collective *c, int tree)
{
    const int number = dml__tree_number(c, tree), lowest = number & -number;
    int parent = number, right = number + lowest / 2;
    do {
        const int low = parent & -parent;
        parent = (parent & ~low) | 2 * low;
    } while (parent > c->size && parent & (parent - 1));
    while (right > c->size) right -= (right & -right) > 1 ? (right & -right) / 2 : right;
    dml__tree_place place;
    place.parent = dml__tree_rank(c, tree, parent > c->size ? 0 : parent);
    place.child[0] = dml__tree_rank(c, tree, lowest > 1 ? number - lowest / 2 : 0);
    place.child[1] = dml__tree_rank(c, tree, lowest > 1 ? right : 0);
    return place;
}

/* Each tree sums half of the data on the way up and spreads it on the way down. With 4 ranks:

       numbers       first tree     second tree
            4             3              0
            |             |              |
            2             1              2
           / \           / \            / \
          1   3         0   2          3   1

   Whoever has children in one tree is a leaf of the other, so that each rank receives and sends the whole
   vector once up and once down, by pipelines. Each tree's sum is made once: all get the same bits. Cost:
   4 log2(m) a + 2 n b + n g. Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth
   broadcast, reduction and scan", Parallel Computing 35 (2009). */
DML__LOCAL void dml__write_double_tree_all_reduce(const dml__collective *c, dml__schedule *s)
{
    int up[2] = { -1, -1 }; /* what the way down of each tree waits for */
    for (int tree = 0; tree < 2; tree++) {
        const dml__tree_place place = dml__tree_place_of(c, tree);
        const dml__stretch half = dml__chunks(c->count, 2, tree, tree + 1);
        for (int i = 0; i < 2; i++) {
            if (place.child[i] < 0) continue;
            const int step = dml__add_receive(s, place.child[i], DML__STEP_RECEIVE_REDUCE, DML__SPACE_OUT,
                                              half.offset, half.count);
            dml__add_after(s, step, up[tree]);
            up[tree] = step;
        }
        if (place.parent < 0) {
            dml__set_completes(s, up[tree]);
            continue;
        }
        const int send = dml__add_send(s, place.parent, DML__SPACE_OUT, half.offset, half.count);
        dml__add_after(s, send, up[tree]);
        up[tree] = send;
    }
    for (int tree = 0; tree < 2; tree++) {
        const dml__tree_place place = dml__tree_place_of(c, tree);
        const dml__stretch half = dml__chunks(c->count, 2, tree, tree + 1);
        int got = up[tree];
        if (place.parent >= 0) {
            got =
                dml__add_receive(s, place.parent, DML__STEP_RECEIVE, DML__SPACE_OUT, half.offset, half.count);
            dml__add_after(s, got, up[tree]);
        }
        for (int i = 0; i < 2; i++)
            if (place.child[i] >= 0)
                dml__add_after(s, dml__add_send(s, place.child[i], DML__SPACE_OUT, half.offset, half.count),
                               got);
    }
}

/* ---- binomial trees ---- */

/* Ranks are counted from the root on: place v's parent is v without its lowest bit, and its children add a
   bit below that. Under it are the places [v, v + span):

           0
         / | \
        1  2  4
           |  | \
           3  5  6
                 |
                 7                                                                                          */
typedef struct dml__binomial {
    int place, parent; /* its rank; -1: none */
    int bit;           /* above those that children add */
    int span;
} dml__binomial;

static int dml__binomial_rank(const dml__collective *c, int place)
{
    return (c->root + place) % c->size;
}

static dml__binomial dml__binomial_at(const dml__collective *c, int place)
{
    dml__binomial at;
    at.place = place;
    at.bit = place ? place & -place : dml__power_over(c->size);
    at.parent = place ? dml__binomial_rank(c, place - at.bit) : -1;
    at.span = at.bit < c->size - place ? at.bit : c->size - place;
    return at;
}

static dml__binomial dml__binomial_of(const dml__collective *c)
{
    return dml__binomial_at(c, (c->rank - c->root + c->size) % c->size);
}

/* Root 0 of 4:  1 -> 0 and 3 -> 2, then 2 -> 0, each a sum of what is under it. Cost: log2(m) a + n b + n g
   by pipelines that the root's and the inner ranks' links share: log2(m) n b where those are full. Source:
   Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19
   (2005). */
DML__LOCAL void dml__write_binomial_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    int last = -1;
    for (int bit = 1; bit < at.bit && at.place + bit < c->size; bit *= 2) {
        const int step = dml__add_receive(s, dml__binomial_rank(c, at.place + bit), DML__STEP_RECEIVE_REDUCE,
                                          DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, step, last);
        last = step;
    }
    if (at.parent < 0)
        dml__set_completes(s, last);
    else
        dml__add_after(s, dml__add_send(s, at.parent, DML__SPACE_OUT, 0, c->count), last);
}

/* Root 0 of 4:  0 -> 2, then 0 -> 1 and 2 -> 3. Cost: log2(m) (a + n b). Source: as above. */
DML__LOCAL void dml__write_binomial_broadcast(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    int got = -1;
    if (at.parent >= 0) got = dml__add_receive(s, at.parent, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    for (int bit = at.bit / 2; bit; bit /= 2)
        if (at.place + bit < c->size)
            dml__add_after(
                s, dml__add_send(s, dml__binomial_rank(c, at.place + bit), DML__SPACE_OUT, 0, c->count), got);
}

/* Whether a place has that chunk from the tree already. */
static bool dml__has_chunk(const dml__collective *c, int place, int chunk)
{
    return chunk >= place && chunk < place + dml__binomial_at(c, place).span;
}

/* Chunk v is for place v; down a binomial tree go the chunks of all that are under it, then what is missing
   goes round the ring. Root 0 of 4:

       tree   0 -> 2: 2 3     0 -> 1: 1    2 -> 3: 3
       step   0 -> 1    1 -> 2    2 -> 3    3 -> 0
       0      0         1         2         -
       1      3         0         1         -
       2      2         -         0         -

   Cost: (log2(m) + m - 1) a + 2 (m - 1) / m n b. Source: Barnett, Gupta, Payne, Shuler, van de Geijn, Watts,
   "Interprocessor collective communication library (InterCom)", SHPCC (1994). */
DML__LOCAL void dml__write_scatter_all_gather_broadcast(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    const int m = c->size, next = (at.place + 1) % m;
    const dml__stretch mine = dml__chunks(c->count, m, at.place, at.place + at.span);
    int got = -1, received = -1;
    if (at.parent >= 0)
        got = dml__add_receive(s, at.parent, DML__STEP_RECEIVE, DML__SPACE_OUT, mine.offset, mine.count);
    for (int bit = at.bit / 2; bit; bit /= 2) {
        const int child = at.place + bit;
        if (child >= m) continue;
        const dml__stretch block = dml__chunks(c->count, m, child, child + dml__binomial_at(c, child).span);
        dml__add_after(
            s, dml__add_send(s, dml__binomial_rank(c, child), DML__SPACE_OUT, block.offset, block.count),
            got);
    }
    for (int k = 0; k < m - 1; k++) {
        const int goes = (at.place - k + m) % m, comes = (at.place - k - 1 + m) % m;
        if (!dml__has_chunk(c, next, goes)) {
            const dml__stretch block = dml__chunks(c->count, m, goes, goes + 1);
            const int send = dml__add_send(s, dml__rank_at(c, 1), DML__SPACE_OUT, block.offset, block.count);
            dml__add_after(s, send, dml__has_chunk(c, at.place, goes) ? got : received);
        }
        if (!dml__has_chunk(c, at.place, comes)) {
            const dml__stretch block = dml__chunks(c->count, m, comes, comes + 1);
            received = dml__add_receive(s, dml__rank_at(c, -1), DML__STEP_RECEIVE, DML__SPACE_OUT,
                                        block.offset, block.count);
        }
    }
}

/* The parts of places [place, place + span) between the root, where they lie as the ranks are numbered, and a
   child of it: up to two messages, since they may go round the end of the array. */
typedef struct dml__pieces {
    uint64_t offset, count[2]; /* the first in the root's array; the second begins at 0 there */
} dml__pieces;

static dml__pieces dml__pieces_at_root(const dml__collective *c, const dml__binomial *at)
{
    const int begin = dml__binomial_rank(c, at->place), room = c->size - begin;
    const int first = at->span < room ? at->span : room;
    dml__pieces pieces;
    pieces.offset = (uint64_t)begin * c->count;
    pieces.count[0] = (uint64_t)first * c->count;
    pieces.count[1] = (uint64_t)(at->span - first) * c->count;
    return pieces;
}

/* What passes between a place and its parent: pieces at the root, else one. */
static dml__pieces dml__tree_pieces_of(const dml__collective *c, const dml__binomial *at)
{
    dml__pieces pieces = dml__pieces_at_root(c, at);
    if (at->parent != c->root) {
        pieces.count[0] += pieces.count[1];
        pieces.count[1] = 0;
    }
    return pieces;
}

/* Root 0 of 4:  0 -> 2: parts 2 3,  0 -> 1: part 1,  2 -> 3: part 3. Who has children keeps what is under it
   in SCRATCH. Cost: log2(m) a + (m - 1) n b. Source: Thakur, Rabenseifner, Gropp (2005), section 4.2. */
DML__LOCAL void dml__write_binomial_scatter(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    int got[2] = { -1, -1 };
    if (at.parent >= 0) {
        const dml__pieces p = dml__tree_pieces_of(c, &at);
        const dml__space space = at.span > 1 ? DML__SPACE_SCRATCH : DML__SPACE_OUT;
        got[0] = dml__add_receive(s, at.parent, DML__STEP_RECEIVE, space, 0, p.count[0]);
        got[1] = dml__add_receive(s, at.parent, DML__STEP_RECEIVE, space, p.count[0], p.count[1]);
        if (at.span > 1)
            dml__add_after(
                s, dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, c->count, DML__SPACE_SCRATCH, 0),
                got[0]);
    } else {
        dml__copy_own(c, s, false);
    }
    for (int bit = at.bit / 2; bit; bit /= 2) {
        if (at.place + bit >= c->size) continue;
        const dml__binomial child = dml__binomial_at(c, at.place + bit);
        const int to = dml__binomial_rank(c, child.place);
        const dml__pieces p = dml__tree_pieces_of(c, &child);
        if (at.parent < 0) {
            dml__add_send(s, to, DML__SPACE_IN, p.offset, p.count[0]);
            dml__add_send(s, to, DML__SPACE_IN, 0, p.count[1]);
        } else {
            const int send = dml__add_send(s, to, DML__SPACE_SCRATCH, (uint64_t)bit * c->count, p.count[0]);
            dml__add_after(s, send, got[0]);
            dml__add_after(s, send, got[1]);
        }
    }
}

/* The same the other way round. Root 0 of 4:  3 -> 2: part 3,  1 -> 0: part 1,  2 -> 0: parts 2 3. */
DML__LOCAL void dml__write_binomial_gather(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    if (at.parent < 0)
        dml__copy_own(c, s, true);
    else if (at.span > 1)
        dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, c->count, DML__SPACE_IN, 0);
    for (int bit = 1; bit < at.bit && at.place + bit < c->size; bit *= 2) {
        const dml__binomial child = dml__binomial_at(c, at.place + bit);
        const int from = dml__binomial_rank(c, child.place);
        const dml__pieces p = dml__tree_pieces_of(c, &child);
        const dml__space space = at.parent < 0 ? DML__SPACE_OUT : DML__SPACE_SCRATCH;
        const uint64_t offset = at.parent < 0 ? p.offset : (uint64_t)bit * c->count;
        dml__add_receive(s, from, DML__STEP_RECEIVE, space, offset, p.count[0]);
        dml__add_receive(s, from, DML__STEP_RECEIVE, space, 0, p.count[1]);
    }
    if (at.parent < 0) return;
    const dml__pieces p = dml__tree_pieces_of(c, &at);
    const dml__space space = at.span > 1 ? DML__SPACE_SCRATCH : DML__SPACE_IN;
    dml__add_after(s, dml__add_send(s, at.parent, space, 0, p.count[0]), DML__ALL_BEFORE);
    dml__add_after(s, dml__add_send(s, at.parent, space, p.count[0], p.count[1]), DML__ALL_BEFORE);
}

/* Signals up a binomial tree, then down it; 4 ranks: 1 -> 0, 3 -> 2, 2 -> 0; 0 -> 2, 0 -> 1, 2 -> 3. Cost:
   2 log2(m) a. Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", International
   Journal of Parallel Programming 17 (1988). */
DML__LOCAL void dml__write_tree_barrier(const dml__collective *c, dml__schedule *s)
{
    const dml__binomial at = dml__binomial_of(c);
    for (int bit = 1; bit < at.bit && at.place + bit < c->size; bit *= 2)
        dml__add_wait_signal(s, dml__binomial_rank(c, at.place + bit));
    int released;
    if (at.parent >= 0) {
        dml__add_after(s, dml__add_signal(s, at.parent), DML__ALL_BEFORE);
        released = dml__add_wait_signal(s, at.parent);
    } else {
        released = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, 0, DML__SPACE_OUT, 0);
        dml__add_after(s, released, DML__ALL_BEFORE);
    }
    for (int bit = at.bit / 2; bit; bit /= 2)
        if (at.place + bit < c->size)
            dml__add_after(s, dml__add_signal(s, dml__binomial_rank(c, at.place + bit)), released);
}

#endif
