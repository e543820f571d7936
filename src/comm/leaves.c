#ifndef DML_COMM_LEAVES_C
#define DML_COMM_LEAVES_C

#include "comm/leaves.h"

/* ---- who has what ---- */

/* The first and the last rank that has a leaf, each plus one, in 32 bits each; 0: nobody. */
static int64_t dml__claim(int first, int last)
{
    return (int64_t)(((uint64_t)(uint32_t)first << 32) | (uint32_t)last);
}

DML__LOCAL void dml__say_owners(void *const *arrays, int leaves, int rank, int64_t *owners)
{
    for (int i = 0; i < leaves; i++) owners[i] = arrays[i] ? dml__claim(rank + 1, rank + 1) : 0;
}

DML__LOCAL int dml__claims_of(int64_t owner, int *first, int *last)
{
    *first = (int)((uint64_t)owner >> 32) - 1;
    *last = (int)((uint64_t)owner & 0xffffffffu) - 1;
    return owner == 0 ? 0 : *first == *last ? 1 : 2;
}

DML__LOCAL void dml__join_owners(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    int64_t *const a = (int64_t *)into;
    const int64_t *const b = (const int64_t *)from;
    (void)dtype, (void)user;
    for (size_t i = 0; i < count; i++) {
        int first, last, b_first, b_last;
        if (!b[i]) continue;
        dml__claims_of(b[i], &b_first, &b_last);
        if (!a[i] || dml__claims_of(a[i], &first, &last) == 0) first = b_first, last = b_last;
        a[i] = dml__claim((first < b_first ? first : b_first) + 1, (last > b_last ? last : b_last) + 1);
    }
}

/* From here on owners[b] is the rank that has leaf b, and above it the height of the largest node beginning
   there of which it has all leaves: those are summed where they are, in b's place. */
static int dml__leaf_rank(const dml__leaf_sums *sums, uint64_t leaf)
{
    return (int)(sums->owners[leaf] & 0xffffffff);
}

static int dml__leaf_height(const dml__leaf_sums *sums, uint64_t leaf)
{
    return (int)(sums->owners[leaf] >> 32);
}

static void dml__find_whole_nodes(dml__leaf_sums *sums)
{
    const uint64_t leaves = (uint64_t)sums->leaves;
    for (int h = 0; UINT64_C(1) << h < leaves; h++)
        for (uint64_t b = 0; b < leaves; b += UINT64_C(2) << h) {
            const uint64_t right = b + (UINT64_C(1) << h);
            if (dml__leaf_height(sums, b) == h && (right >= leaves || sums->owners[right] == sums->owners[b]))
                sums->owners[b] += INT64_C(1) << 32;
        }
}

/* Chunks for all ranks, but of no less than so many bytes: each is a message. */
#define DML__LEAF_CHUNK 4096

DML__LOCAL void dml__begin_leaf_sums(dml__leaf_sums *sums)
{
    int first, last;
    sums->chunks = 1;
    while (sums->chunks < sums->size &&
           sums->count * sums->element / ((uint64_t)sums->chunks * 2) >= DML__LEAF_CHUNK)
        sums->chunks *= 2;
    sums->base = (char *)sums->out;
    for (int i = 0; i < sums->leaves; i++) {
        if (sums->arrays[i] && (uintptr_t)sums->arrays[i] < (uintptr_t)sums->base)
            sums->base = (char *)sums->arrays[i];
        dml__claims_of(sums->owners[i], &first, &last);
        sums->owners[i] = first;
    }
    dml__find_whole_nodes(sums);
    sums->height = sums->chunk = 0;
    sums->begin = 0;
}

/* ---- where sums are ---- */

/* Whether a chunk's sum of a node at height h + 1 takes the place of its right child's. */
static bool dml__goes_right(const dml__leaf_sums *sums, int chunk, int h)
{
    int bits = 0;
    while (1 << bits < sums->chunks) bits++;
    return bits && (chunk >> (h % bits) & 1);
}

/* The leaf in whose place a chunk of a node's sum is. */
static uint64_t dml__leaf_place(const dml__leaf_sums *sums, int chunk, int h, uint64_t b)
{
    while (dml__leaf_height(sums, b) < h) {
        const uint64_t right = b + (UINT64_C(1) << --h);
        if (right < (uint64_t)sums->leaves && dml__goes_right(sums, chunk, h)) b = right;
    }
    return b;
}

/* Chunks beside each other of which the same ranks do the same. */
typedef struct dml__leaf_piece {
    uint64_t into, from; /* leaves; `from` is of no use where the sum goes to all */
    uint64_t begin, count;
    int end; /* the chunk behind it */
} dml__leaf_piece;

static void dml__leaf_operands(const dml__leaf_sums *sums, int chunk, dml__leaf_piece *piece)
{
    const int h = sums->height;
    const uint64_t b = sums->begin, next = b + (UINT64_C(1) << h);
    const bool whole = dml__leaf_height(sums, b) > h;
    const uint64_t left = dml__leaf_place(sums, chunk, h, b);
    piece->into = piece->from = left;
    if (next >= (uint64_t)sums->leaves) return; /* of the last node, which is the sum */
    const uint64_t right = dml__leaf_place(sums, chunk, h, next);
    const bool goes_right = !whole && dml__goes_right(sums, chunk, h);
    piece->into = goes_right ? right : left;
    piece->from = goes_right ? left : right;
}

static dml__leaf_piece dml__leaf_piece_at(const dml__leaf_sums *sums, int chunk)
{
    dml__leaf_piece piece, next;
    dml__leaf_operands(sums, chunk, &piece);
    piece.end = chunk;
    do {
        if (++piece.end == sums->chunks) break;
        dml__leaf_operands(sums, piece.end, &next);
    } while (next.into == piece.into && next.from == piece.from);
    piece.begin = dml__chunk_begin(sums->count, sums->chunks, chunk);
    piece.count = dml__chunk_begin(sums->count, sums->chunks, piece.end) - piece.begin;
    return piece;
}

/* ---- the steps ---- */

/* A place by elements from base, so that positions tell what touches what, `out` among the leaves too. */
static uint64_t dml__leaf_offset(const dml__leaf_sums *sums, const void *array, uint64_t element)
{
    return ((uintptr_t)array - (uintptr_t)sums->base) / sums->element + element;
}

static bool dml__stretches_meet(uint64_t a, uint64_t a_count, uint64_t b, uint64_t b_count)
{
    return a < b + b_count && b < a + a_count;
}

static void dml__leaf_add_after(dml__schedule *s, int step, int earlier)
{
    int32_t *const after = s->steps[step].after;
    for (int i = 0; i < DML__STEP_AFTER; i++)
        if (after[i] == -1 || after[i] == earlier || after[i] == DML__ALL_BEFORE) {
            if (after[i] == -1) after[i] = earlier;
            return;
        }
    after[0] = DML__ALL_BEFORE;
    after[1] = after[2] = -1;
}

/* What has to be past before a step may touch a range: whoever writes there, and, if the step does too,
   whoever reads there; of those who write there, the last, as far as it covers the range. */
static void dml__leaf_wait(dml__schedule *s, int step, uint64_t offset, uint64_t count, bool writes)
{
    for (int i = step - 1; i >= 0; i--) {
        const dml__step *const e = &s->steps[i];
        const bool two = dml__has_source(e->kind);
        const bool written =
            e->kind != DML__STEP_SEND && dml__stretches_meet(offset, count, e->offset, e->count);
        const bool read =
            (e->kind == DML__STEP_SEND && dml__stretches_meet(offset, count, e->offset, e->count)) ||
            (two && dml__stretches_meet(offset, count, e->source, e->count));
        if (written || (read && writes)) dml__leaf_add_after(s, step, i);
        if (written && e->offset <= offset && e->offset + e->count >= offset + count) return;
    }
}

/* One rank's part in `into` += `from`. */
static void dml__write_leaf_sum(const dml__leaf_sums *sums, const dml__leaf_piece *p, dml__schedule *s)
{
    const int to = dml__leaf_rank(sums, p->into), from = dml__leaf_rank(sums, p->from);
    if (to == sums->rank) {
        const uint64_t into = dml__leaf_offset(sums, sums->arrays[p->into], p->begin);
        int step;
        if (from == to) {
            const uint64_t source = dml__leaf_offset(sums, sums->arrays[p->from], p->begin);
            step = dml__add_local(s, DML__STEP_REDUCE, DML__SPACE_IN, into, p->count, DML__SPACE_IN, source);
            dml__leaf_wait(s, step, source, p->count, false);
        } else {
            step = dml__add_receive(s, from, DML__STEP_RECEIVE_REDUCE, DML__SPACE_IN, into, p->count);
        }
        dml__leaf_wait(s, step, into, p->count, true);
    } else if (from == sums->rank) {
        const uint64_t source = dml__leaf_offset(sums, sums->arrays[p->from], p->begin);
        const int step = dml__add_send(s, to, DML__SPACE_IN, source, p->count);
        dml__leaf_wait(s, step, source, p->count, false);
    }
}

static void dml__write_leaf_result(const dml__leaf_sums *sums, const dml__leaf_piece *p, dml__schedule *s)
{
    const int owner = dml__leaf_rank(sums, p->into);
    const uint64_t out = dml__leaf_offset(sums, sums->out, p->begin);
    if (owner != sums->rank) {
        const int step = dml__add_receive(s, owner, DML__STEP_RECEIVE, DML__SPACE_IN, out, p->count);
        dml__leaf_wait(s, step, out, p->count, true);
        return;
    }
    const uint64_t source = dml__leaf_offset(sums, sums->arrays[p->into], p->begin);
    const int copy = dml__add_local(s, DML__STEP_COPY, DML__SPACE_IN, out, p->count, DML__SPACE_IN, source);
    dml__set_completes(s, copy);
    dml__leaf_wait(s, copy, source, p->count, false);
    dml__leaf_wait(s, copy, out, p->count, true);
    for (int i = 1; i < sums->size; i++)
        dml__add_after(s, dml__add_send(s, (sums->rank + i) % sums->size, DML__SPACE_IN, out, p->count),
                       copy);
}

static bool dml__leaf_nodes_left(const dml__leaf_sums *sums)
{
    return UINT64_C(1) << sums->height < (uint64_t)sums->leaves;
}

DML__LOCAL bool dml__leaf_sums_end(const dml__leaf_sums *sums)
{
    return !sums->count || (!dml__leaf_nodes_left(sums) && sums->chunk == sums->chunks);
}

/* The steps of the next node, or of the next piece of the sum, where a rank has at most `size` of them.
   False: there may be no room for them somewhere. */
static bool dml__write_next_leaves(dml__leaf_sums *sums, int *room, dml__schedule *s)
{
    dml__leaf_piece piece;
    int steps = 0;
    if (!dml__leaf_nodes_left(sums)) {
        piece = dml__leaf_piece_at(sums, sums->chunk);
        if (*room < sums->size) return false;
        *room -= sums->size;
        sums->chunk = piece.end;
        if (piece.count) dml__write_leaf_result(sums, &piece, s);
        return true;
    }
    for (int chunk = 0; chunk < sums->chunks; chunk = dml__leaf_piece_at(sums, chunk).end) steps++;
    if (*room < steps) return false;
    *room -= steps;
    for (int chunk = 0; chunk < sums->chunks; chunk = piece.end) {
        piece = dml__leaf_piece_at(sums, chunk);
        if (piece.count) dml__write_leaf_sum(sums, &piece, s);
    }
    sums->begin += UINT64_C(2) << sums->height;
    if (sums->begin + (UINT64_C(1) << sums->height) < (uint64_t)sums->leaves) return true;
    sums->begin = 0;
    sums->height++;
    return true;
}

DML__LOCAL void dml__write_leaf_steps(dml__leaf_sums *sums, dml__schedule *schedule)
{
    int room = schedule->capacity;
    while (!dml__leaf_sums_end(sums) && dml__write_next_leaves(sums, &room, schedule)) {
    }
}

#endif
