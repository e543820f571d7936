#ifndef DML_COMM_BUTTERFLY_C
#define DML_COMM_BUTTERFLY_C

#include "comm/algorithms.h"

/* Exchanges between ranks whose numbers differ in one bit, for any number of ranks: of the first 2 * extra
   ranks each odd one lets the rank below it take part for both. Those that take part have new numbers, called
   places, below a power of two. */
typedef struct dml__fold {
    int places, extra;
    int place;   /* -1: another takes part for this rank */
    int partner; /* for which this one takes part, or which does for it; -1: none */
} dml__fold;

static dml__fold dml__fold_of(const dml__collective *c)
{
    dml__fold fold;
    fold.places = dml__power_over(c->size + 1) / 2;
    fold.extra = c->size - fold.places;
    fold.partner = c->rank < 2 * fold.extra ? c->rank ^ 1 : -1;
    if (fold.partner < 0)
        fold.place = c->rank - fold.extra;
    else
        fold.place = c->rank % 2 ? -1 : c->rank / 2;
    return fold;
}

/* The rank at a place, and the first of the parts that the place stands for. */
static int dml__fold_rank(const dml__fold *fold, int place)
{
    return place < fold->extra ? 2 * place : place + fold->extra;
}

/* What a rank that doesn't take part does: it gives its vector away and gets the result. */
static void dml__write_folded(const dml__collective *c, dml__schedule *s, const dml__fold *fold)
{
    const int send = dml__add_send(s, fold->partner, DML__SPACE_OUT, 0, c->count);
    const int got = dml__add_receive(s, fold->partner, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    dml__add_after(s, got, send);
}

/* Takes in the partner's vector; the step, -1 without a partner. */
static int dml__take_folded(const dml__fold *fold, dml__schedule *s, dml__space space, uint64_t count)
{
    if (fold->partner < 0) return -1;
    return dml__add_receive(s, fold->partner, DML__STEP_RECEIVE_REDUCE, space, 0, count);
}

/* Whole vectors are exchanged and added, at doubling distances; 4 ranks, with the ranks that are in each sum:

       0: {0}   <-->   1: {1}           2: {2}   <-->   3: {3}
       0: {0,1} <------------------->   2: {2,3}
                       1: {0,1} <------------------->   3: {2,3}

   What comes waits in SCRATCH until the own sum has gone. a + b and b + a are the same bits, so all ranks'
   are. Cost: log2(m) (a + n b + n g), and 2 a + 2 n b + n g where m is no power of two. Source: Thakur,
   Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005),
   section 4.5. */
DML__LOCAL void dml__write_butterfly_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__fold fold = dml__fold_of(c);
    if (!c->count) return;
    if (fold.place < 0) {
        dml__write_folded(c, s, &fold);
        return;
    }
    int last = dml__take_folded(&fold, s, DML__SPACE_OUT, c->count), reduced = -1;
    for (int bit = 1; bit < fold.places; bit *= 2) {
        const int peer = dml__fold_rank(&fold, fold.place ^ bit);
        const int send = dml__add_send(s, peer, DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, send, last);
        const int got = dml__add_receive(s, peer, DML__STEP_RECEIVE, DML__SPACE_SCRATCH, 0, c->count);
        dml__add_after(s, got, reduced);
        reduced = last =
            dml__add_local(s, DML__STEP_REDUCE, DML__SPACE_OUT, 0, c->count, DML__SPACE_SCRATCH, 0);
        dml__add_after(s, reduced, send);
        dml__add_after(s, reduced, got);
    }
    dml__set_completes(s, reduced);
    if (fold.partner >= 0)
        dml__add_after(s, dml__add_send(s, fold.partner, DML__SPACE_OUT, 0, c->count), last);
}

/* The first of the places whose blocks are left to a place after the exchange at distance `bit`: there are
   `bit` of them. */
static int dml__kept_by(int place, int bit)
{
    return place & ~(bit - 1);
}

/* The chunks of the places [first, first + places). */
static dml__stretch dml__place_chunks(const dml__collective *c, const dml__fold *fold, int first, int places)
{
    return dml__chunks(c->count, fold->places, first, first + places);
}

/* Halves of what is left are exchanged and added, at halving distances, until each has the sum of one chunk;
   then the sums go back the same way. 4 ranks, what each sends:

       distance   0 -> 2: 2 3    1 -> 3: 2 3    2 -> 0: 0 1    3 -> 1: 0 1    added
       distance   0 -> 1: 1      1 -> 0: 0      2 -> 3: 3      3 -> 2: 2      added: complete
       distance   0 -> 1: 0      1 -> 0: 1      2 -> 3: 2      3 -> 2: 3      replaces
       distance   0 -> 2: 0 1    1 -> 3: 0 1    2 -> 0: 2 3    3 -> 1: 2 3    replaces

   Nothing that comes replaces or is added to what is still to go. Each chunk is summed once: all get the same
   bits. Cost: 2 log2(m) a + 2 (m - 1) / m n b + (m - 1) / m n g, and 2 a + 2 n b + n g where m is no power of
   two. Source: Rabenseifner, "Optimization of collective reduction operations", ICCS (2004). */
DML__LOCAL void dml__write_halving_doubling_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__fold fold = dml__fold_of(c);
    if (fold.place < 0) {
        dml__write_folded(c, s, &fold);
        return;
    }
    int last = dml__take_folded(&fold, s, DML__SPACE_OUT, c->count), sent = -1;
    for (int bit = fold.places / 2; bit; bit /= 2) {
        const int peer = dml__fold_rank(&fold, fold.place ^ bit), keep = dml__kept_by(fold.place, bit);
        const dml__stretch goes = dml__place_chunks(c, &fold, keep ^ bit, bit);
        const dml__stretch stays = dml__place_chunks(c, &fold, keep, bit);
        dml__add_after(s, dml__add_send(s, peer, DML__SPACE_OUT, goes.offset, goes.count), last);
        const int got =
            dml__add_receive(s, peer, DML__STEP_RECEIVE_REDUCE, DML__SPACE_OUT, stays.offset, stays.count);
        dml__add_after(s, got, last);
        last = got;
    }
    dml__set_completes(s, last);
    for (int bit = 1; bit < fold.places; bit *= 2) {
        const int peer = dml__fold_rank(&fold, fold.place ^ bit), have = dml__kept_by(fold.place, bit);
        const dml__stretch goes = dml__place_chunks(c, &fold, have, bit);
        const dml__stretch comes = dml__place_chunks(c, &fold, have ^ bit, bit);
        const int send = dml__add_send(s, peer, DML__SPACE_OUT, goes.offset, goes.count);
        dml__add_after(s, send, last);
        dml__add_after(s, send, sent);
        sent = send;
        last = dml__add_receive(s, peer, DML__STEP_RECEIVE, DML__SPACE_OUT, comes.offset, comes.count);
    }
    if (fold.partner < 0) return;
    const int result = dml__add_send(s, fold.partner, DML__SPACE_OUT, 0, c->count);
    dml__add_after(s, result, last);
    dml__add_after(s, result, sent);
}

/* The parts of the places [first, first + places). */
static dml__stretch dml__place_parts(const dml__collective *c, const dml__fold *fold, int first, int places)
{
    const int begin = dml__fold_rank(fold, first), end = dml__fold_rank(fold, first + places);
    dml__stretch block;
    block.offset = (uint64_t)begin * c->count;
    block.count = (uint64_t)(end - begin) * c->count;
    return block;
}

/* The first half of it, on parts; who takes part for two ranks ends with the parts of both. OUT may lie in
   IN, so it is written when everything else is over. Cost: log2(m) a + (m - 1) n b + (m - 1) n g, and 2 a +
   (m + 1) n b + m n g where m is no power of two. Source: as above. */
DML__LOCAL void dml__write_halving_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    const dml__fold fold = dml__fold_of(c);
    const uint64_t whole = (uint64_t)c->size * c->count;
    if (fold.place < 0) {
        const int send = dml__add_send(s, fold.partner, DML__SPACE_IN, 0, whole);
        dml__add_after(s, dml__add_receive(s, fold.partner, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count),
                       send);
        return;
    }
    int last = dml__take_folded(&fold, s, DML__SPACE_IN, whole);
    for (int bit = fold.places / 2; bit; bit /= 2) {
        const int peer = dml__fold_rank(&fold, fold.place ^ bit), keep = dml__kept_by(fold.place, bit);
        const dml__stretch goes = dml__place_parts(c, &fold, keep ^ bit, bit);
        const dml__stretch stays = dml__place_parts(c, &fold, keep, bit);
        dml__add_after(s, dml__add_send(s, peer, DML__SPACE_IN, goes.offset, goes.count), last);
        const int got =
            dml__add_receive(s, peer, DML__STEP_RECEIVE_REDUCE, DML__SPACE_IN, stays.offset, stays.count);
        dml__add_after(s, got, last);
        last = got;
    }
    dml__set_completes(s, last);
    if (fold.partner >= 0) {
        const dml__stretch theirs = dml__block_of(c, fold.partner);
        dml__add_after(s, dml__add_send(s, fold.partner, DML__SPACE_IN, theirs.offset, theirs.count), last);
    }
    dml__add_after(s, dml__copy_own(c, s, false), DML__ALL_BEFORE);
}

#endif
