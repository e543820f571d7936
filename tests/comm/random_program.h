/* random_program.h: random programs of ranks that keep many operations under way: collectives of several
   groups, messages with tags, blocking and not, started and waited for in an order of its own on each rank,
   as far as the rules allow:

   - the collectives of one group are started in one order by its ranks, and the messages of one group,
   sender, receiver and tag too, at both ends; all else in any order;
   - operations are numbered through the job, and a rank waits for one only when it has started all of its own
     with lower numbers. So a program can't hang: of the operations that are waited for, take the one of the
     lowest number. Whoever hasn't started it waits for one of a lower number still, of which there is none.

   What becomes of it is known for each element. A program is executed through a table of calls
   (program_calls). */
#ifndef DML_TESTS_COMM_RANDOM_PROGRAM_H
#define DML_TESTS_COMM_RANDOM_PROGRAM_H

#include "base/dtype.h"
#include "base/status.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "../test.h"

enum {
    PROGRAM_RANKS = 6,
    PROGRAM_GROUPS = 8,
    PROGRAM_OPERATIONS = 120,
    PROGRAM_STEPS = 4 * PROGRAM_OPERATIONS,
    PROGRAM_WINDOW = 24, /* how far a rank runs ahead of its first operation that it hasn't started */
    PROGRAM_GUARD = 64   /* bytes behind each array that stay as they are */
};

typedef enum program_kind {
    PROGRAM_ALL_REDUCE,
    PROGRAM_REDUCE,
    PROGRAM_BROADCAST,
    PROGRAM_SCATTER,
    PROGRAM_GATHER,
    PROGRAM_ALL_GATHER,
    PROGRAM_REDUCE_SCATTER,
    PROGRAM_ALL_TO_ALL,
    PROGRAM_BARRIER,
    PROGRAM_MESSAGE,
    PROGRAM_SPLIT,
    PROGRAM_KINDS
} program_kind;

/* Some ranks of the world, in the order of the group. */
typedef struct program_group {
    int size, members[PROGRAM_RANKS];
} program_group;

typedef struct program_operation {
    program_kind kind;
    int group;
    size_t count, room; /* room: of a message's receiver, at least count */
    dml_dtype dtype;
    dml_reduce_op op;
    int root, to, tag;             /* a message goes from root to `to`; ranks of the group */
    int color[PROGRAM_RANKS];      /* of a split, by rank of the group; -1: none */
    int key[PROGRAM_RANKS];        /* of a split */
    int new_groups[PROGRAM_RANKS]; /* of a split: the group that a rank gets, or -1 */
} program_operation;

typedef enum program_action {
    PROGRAM_START,
    PROGRAM_RUN,
    PROGRAM_WAIT,
    PROGRAM_LOOK,
    PROGRAM_PAUSE
} program_action;

typedef struct program_step {
    program_action action; /* RUN: start and wait in one call. LOOK: asks whether it is done */
    int operation;
} program_step;

typedef struct program {
    unsigned seed;
    int world, groups, operations;
    program_group group[PROGRAM_GROUPS];
    program_operation operation[PROGRAM_OPERATIONS];
    int steps[PROGRAM_RANKS];
    program_step step[PROGRAM_RANKS][PROGRAM_STEPS];
} program;

/* One rank's part of an operation, as it is called. What works in one array has it in `out`. */
typedef struct program_call {
    program_kind kind;
    const void *in;
    void *out;
    size_t count; /* of a receive: the room */
    dml_dtype dtype;
    dml_reduce_op op;
    int root, tag; /* of a message: the other rank */
    bool sends;
} program_call;

/* What executes it. `comm` is one rank's end of a group. */
typedef struct program_calls {
    void *(*split)(void *comm, int color, int key);
    dml_status (*run)(void *comm, const program_call *call);
    void *(*start)(void *comm, const program_call *call); /* NULL: an error */
    bool (*done)(void *comm, void *request);
    /* `got` becomes the elements of a message that was received; it may be left as it is. */
    dml_status (*wait)(void *comm, void *request, size_t *got);
    void (*close)(void *comm); /* of what split gave */
} program_calls;

/* ---- who takes part ---- */

/* The rank of the group, or -1. */
static int program_rank_in(const program_group *group, int world_rank)
{
    for (int rank = 0; rank < group->size; rank++)
        if (group->members[rank] == world_rank) return rank;
    return -1;
}

/* This rank's rank in the operation's group if it takes part, or -1. */
static int program_takes_part(const program *p, int number, int world_rank)
{
    const program_operation *o = &p->operation[number];
    const int rank = program_rank_in(&p->group[o->group], world_rank);
    if (o->kind == PROGRAM_MESSAGE && rank != o->root && rank != o->to) return -1;
    return rank;
}

/* Whether two operations must be started in their order at this rank. */
static bool program_same_stream(const program *p, int a, int b)
{
    const program_operation *x = &p->operation[a], *y = &p->operation[b];
    if (x->group != y->group) return false;
    if (x->kind != PROGRAM_MESSAGE || y->kind != PROGRAM_MESSAGE)
        return x->kind != PROGRAM_MESSAGE && y->kind != PROGRAM_MESSAGE;
    return x->root == y->root && x->to == y->to && x->tag == y->tag;
}

/* ---- writing one ---- */

static int program_draw(unsigned *state, int below)
{
    return (int)((test_random(state) >> 8) % (unsigned)below);
}

/* The groups of a split, by color, each ordered by key and then rank. */
static bool program_split_groups(program *p, program_operation *o, unsigned *state)
{
    const program_group *parent = &p->group[o->group];
    const int colors = 1 + program_draw(state, 2);
    if (p->groups + colors > PROGRAM_GROUPS) return false;
    for (int rank = 0; rank < parent->size; rank++) {
        o->color[rank] = program_draw(state, 8) ? program_draw(state, colors) : -1;
        o->key[rank] = program_draw(state, 3) - 1;
        o->new_groups[rank] = -1;
    }
    for (int color = 0; color < colors; color++) {
        program_group *group = &p->group[p->groups];
        group->size = 0;
        for (int key = -1; key <= 1; key++)
            for (int rank = 0; rank < parent->size; rank++)
                if (o->color[rank] == color && o->key[rank] == key) {
                    group->members[group->size++] = parent->members[rank];
                    o->new_groups[rank] = p->groups;
                }
        if (group->size) p->groups++;
    }
    return true;
}

static size_t program_draw_count(unsigned *state, size_t most)
{
    const int size = program_draw(state, 20);
    const size_t count = (size_t)program_draw(state, size < 12 ? 40 : size < 18 ? 3000 : 150000);
    return size == 0 ? 0 : count < most ? count : most;
}

static void program_draw_operation(program *p, program_operation *o, unsigned *state, size_t most)
{
    static const dml_dtype dtypes[] = { DML_F32, DML_F64, DML_I32, DML_I64, DML_U8 };
    static const dml_reduce_op ops[] = { DML_SUM, DML_MIN, DML_MAX };
    memset(o, 0, sizeof *o);
    o->group = program_draw(state, p->groups);
    const program_group *group = &p->group[o->group];
    const int kind = program_draw(state, 24);
    o->kind = kind == 0   ? PROGRAM_SPLIT
              : kind < 11 ? PROGRAM_MESSAGE
                          : (program_kind)program_draw(state, PROGRAM_MESSAGE);
    if (o->kind == PROGRAM_MESSAGE && group->size < 2) o->kind = PROGRAM_BARRIER;
    if (o->kind == PROGRAM_SPLIT && !program_split_groups(p, o, state)) o->kind = PROGRAM_ALL_REDUCE;
    const bool reduces =
        o->kind == PROGRAM_ALL_REDUCE || o->kind == PROGRAM_REDUCE || o->kind == PROGRAM_REDUCE_SCATTER;
    o->dtype = dtypes[program_draw(state, reduces ? 4 : 5)];
    o->op = ops[program_draw(state, 3)];
    o->count = program_draw_count(state, most);
    o->room = o->count + (program_draw(state, 3) ? 0 : (size_t)program_draw(state, 100));
    o->root = program_draw(state, group->size);
    o->to = (o->root + 1 + (group->size > 1 ? program_draw(state, group->size - 1) : 0)) % group->size;
    o->tag = program_draw(state, 3) * 1000;
}

/* The order of one rank's steps, while they are drawn. */
typedef struct program_order {
    bool started[PROGRAM_OPERATIONS], waited[PROGRAM_OPERATIONS];
    int first; /* all of this rank's operations before it are started */
} program_order;

static void program_add_step(program *p, int rank, program_action action, int operation)
{
    program_step *step = &p->step[rank][p->steps[rank]++];
    step->action = action;
    step->operation = operation;
}

/* Whether this rank may start it now: nothing of its stream before it is left, and it knows the group. */
static bool program_may_start(const program *p, const program_order *order, int rank, int number)
{
    if (order->started[number] || program_takes_part(p, number, rank) < 0) return false;
    for (int earlier = order->first; earlier < number; earlier++) {
        if (order->started[earlier] || program_takes_part(p, earlier, rank) < 0) continue;
        if (p->operation[number].kind == PROGRAM_SPLIT || program_same_stream(p, earlier, number))
            return false;
        if (p->operation[earlier].kind == PROGRAM_SPLIT) {
            const int in_group = program_takes_part(p, earlier, rank);
            if (p->operation[earlier].new_groups[in_group] == p->operation[number].group) return false;
        }
    }
    return true;
}

/* Starts the chosen one: a split at once, others sometimes; both only with nothing before it left to start.
 */
static void program_start_one(program *p, program_order *order, int rank, int number, unsigned *state)
{
    const bool split = p->operation[number].kind == PROGRAM_SPLIT;
    const bool run = split || (number == order->first && program_draw(state, 5) == 0);
    program_add_step(p, rank, run ? PROGRAM_RUN : PROGRAM_START, number);
    order->started[number] = true;
    order->waited[number] = run;
}

static void program_move_first(const program *p, program_order *order, int rank)
{
    while (order->first < p->operations &&
           (order->started[order->first] || program_takes_part(p, order->first, rank) < 0))
        order->first++;
}

/* One of those that may be waited for now, or -1. */
static int program_choose_wait(const program *p, const program_order *order, unsigned *state)
{
    int found = -1, seen = 0;
    for (int number = 0; number < p->operations && number <= order->first; number++)
        if (order->started[number] && !order->waited[number] && program_draw(state, ++seen) == 0)
            found = number;
    return found;
}
static int program_choose_start(const program *p, const program_order *order, int rank, unsigned *state)
{
    int found = -1, seen = 0;
    for (int number = order->first; number < p->operations && number < order->first + PROGRAM_WINDOW;
         number++)
        if (program_may_start(p, order, rank, number) && program_draw(state, ++seen) == 0) found = number;
    return found;
}

static void program_order_rank(program *p, int rank, unsigned *state)
{
    program_order order;
    memset(&order, 0, sizeof order);
    const int eager = 2 + program_draw(state, 4); /* how much it starts before it waits */
    for (;;) {
        program_move_first(p, &order, rank);
        const int wait = program_choose_wait(p, &order, state),
                  start = program_choose_start(p, &order, rank, state);
        if (wait < 0 && start < 0) return;
        if (program_draw(state, 60) == 0 && p->steps[rank] < PROGRAM_STEPS / 2)
            program_add_step(p, rank, PROGRAM_PAUSE, -1);
        if (wait >= 0 && (start < 0 || program_draw(state, eager) == 0)) {
            const bool look = p->steps[rank] < PROGRAM_STEPS / 2 && program_draw(state, 4) == 0;
            program_add_step(p, rank, look ? PROGRAM_LOOK : PROGRAM_WAIT, wait);
            if (!look) order.waited[wait] = true;
        } else {
            program_start_one(p, &order, rank, start, state);
        }
    }
}

/* `most`: elements of an operation. The same seed gives the same program everywhere. */
static void program_write(program *p, unsigned seed, int operations, size_t most)
{
    unsigned state = seed * 2654435761u + 12345u;
    for (int i = 0; i < 8; i++) test_random(&state);
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->world = 2 + program_draw(&state, PROGRAM_RANKS - 1);
    p->groups = 1;
    p->group[0].size = p->world;
    for (int rank = 0; rank < p->world; rank++) p->group[0].members[rank] = rank;
    for (p->operations = 0; p->operations < operations; p->operations++)
        program_draw_operation(p, &p->operation[p->operations], &state, most);
    for (int rank = 0; rank < p->world; rank++) program_order_rank(p, rank, &state);
}

/* ---- what its arrays hold ---- */

/* Element i of what group rank `rank` gives. */
static int program_value(int number, int rank, size_t i)
{
    return (int)(((unsigned)number * 7u + (unsigned)rank * 5u + (unsigned)i * 3u) % 11u);
}

static int program_reduced(const program *p, int number, size_t i)
{
    const program_operation *o = &p->operation[number];
    int result = program_value(number, 0, i);
    for (int rank = 1; rank < p->group[o->group].size; rank++) {
        const int value = program_value(number, rank, i);
        if (o->op == DML_SUM) result += value;
        if (o->op == DML_MIN) result = value < result ? value : result;
        if (o->op == DML_MAX) result = value > result ? value : result;
    }
    return result;
}

/* Elements of a rank's arrays. */
static size_t program_in_count(const program *p, int number, int rank)
{
    const program_operation *o = &p->operation[number];
    const size_t rows = o->count * (size_t)p->group[o->group].size;
    switch (o->kind) {
    case PROGRAM_SCATTER: return rank == o->root ? rows : 0;
    case PROGRAM_GATHER:
    case PROGRAM_ALL_GATHER: return o->count;
    case PROGRAM_REDUCE_SCATTER:
    case PROGRAM_ALL_TO_ALL: return rows;
    default: return 0;
    }
}
static size_t program_out_count(const program *p, int number, int rank)
{
    const program_operation *o = &p->operation[number];
    const size_t rows = o->count * (size_t)p->group[o->group].size;
    switch (o->kind) {
    case PROGRAM_GATHER: return rank == o->root ? rows : 0;
    case PROGRAM_ALL_GATHER:
    case PROGRAM_ALL_TO_ALL: return rows;
    case PROGRAM_BARRIER:
    case PROGRAM_SPLIT: return 0;
    case PROGRAM_MESSAGE: return rank == o->root ? o->count : o->room;
    default: return o->count;
    }
}

/* What out[i] must be afterwards; -1: anything; -2: what it was. */
static int program_expected(const program *p, int number, int rank, size_t i)
{
    const program_operation *o = &p->operation[number];
    const size_t n = o->count ? o->count : 1, mine = (size_t)rank * o->count;
    switch (o->kind) {
    case PROGRAM_ALL_REDUCE: return program_reduced(p, number, i);
    case PROGRAM_REDUCE: return rank == o->root ? program_reduced(p, number, i) : -1;
    case PROGRAM_BROADCAST: return program_value(number, o->root, i);
    case PROGRAM_SCATTER: return program_value(number, o->root, mine + i);
    case PROGRAM_GATHER:
    case PROGRAM_ALL_GATHER: return program_value(number, (int)(i / n), i % n);
    case PROGRAM_REDUCE_SCATTER: return program_reduced(p, number, mine + i);
    case PROGRAM_ALL_TO_ALL: return program_value(number, (int)(i / n), mine + i % n);
    case PROGRAM_MESSAGE: return i < o->count ? program_value(number, o->root, i) : -2;
    default: return -1;
    }
}

static void program_put(void *data, size_t i, dml_dtype dtype, int value)
{
    switch (dtype) {
    case DML_F32: ((float *)data)[i] = (float)value; break;
    case DML_F64: ((double *)data)[i] = value; break;
    case DML_I32: ((int32_t *)data)[i] = value; break;
    case DML_I64: ((int64_t *)data)[i] = value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}
static int program_get(const void *data, size_t i, dml_dtype dtype)
{
    switch (dtype) {
    case DML_F32: return (int)((const float *)data)[i];
    case DML_F64: return (int)((const double *)data)[i];
    case DML_I32: return (int)((const int32_t *)data)[i];
    case DML_I64: return (int)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

/* ---- one rank that executes it ---- */

/* What a place of `out` holds that nothing is put into: no value's. */
enum { PROGRAM_UNTOUCHED = 77, PROGRAM_GUARD_BYTE = 0xa5 };

typedef struct program_slot {
    char *in, *out; /* with a guard behind each; NULL: not under way */
    size_t in_bytes, out_bytes;
    void *request;
} program_slot;

typedef struct program_rank {
    const program *p;
    const program_calls *calls;
    int rank; /* in the world */
    void *comms[PROGRAM_GROUPS];
    program_slot slots[PROGRAM_OPERATIONS];
    int next; /* step */
    int bad;
    char first_bad[160]; /* which operation, and what of it */
} program_rank;

/* Keeps what was wrong first. */
static void program_blame(program_rank *me, int number, const char *what, size_t place, long got, long want)
{
    static const char *const kinds[] = { "all_reduce", "reduce",     "broadcast",      "scatter",
                                         "gather",     "all_gather", "reduce_scatter", "all_to_all",
                                         "barrier",    "message",    "split" };
    const program_operation *o = &me->p->operation[number];
    if (!me->bad++)
        snprintf(me->first_bad, sizeof me->first_bad,
                 "operation %d, %s(%s, %zu), group %d of %d, root %d, to %d: %s[%zu] is %ld, not %ld", number,
                 kinds[o->kind], dml_dtype_name(o->dtype), o->count, o->group, me->p->group[o->group].size,
                 o->root, o->to, what, place, got, want);
}

static char *program_array(size_t bytes)
{
    char *array = (char *)malloc(bytes + PROGRAM_GUARD);
    memset(array + bytes, PROGRAM_GUARD_BYTE, PROGRAM_GUARD);
    return array;
}

/* Fills the arrays of an operation; `call` is what this rank calls. */
static void program_begin(program_rank *me, int number, program_call *call)
{
    const program *p = me->p;
    const program_operation *o = &p->operation[number];
    program_slot *slot = &me->slots[number];
    const int rank = program_takes_part(p, number, me->rank);
    const size_t in = program_in_count(p, number, rank), out = program_out_count(p, number, rank);
    const bool sends = o->kind == PROGRAM_MESSAGE && rank == o->root;
    const bool gives = o->kind == PROGRAM_ALL_REDUCE || o->kind == PROGRAM_REDUCE || sends ||
                       (o->kind == PROGRAM_BROADCAST && rank == o->root);
    slot->in_bytes = in * dml_dtype_size(o->dtype);
    slot->out_bytes = out * dml_dtype_size(o->dtype);
    slot->in = program_array(slot->in_bytes);
    slot->out = program_array(slot->out_bytes);
    for (size_t i = 0; i < in; i++) program_put(slot->in, i, o->dtype, program_value(number, rank, i));
    for (size_t i = 0; i < out; i++)
        program_put(slot->out, i, o->dtype, gives ? program_value(number, rank, i) : PROGRAM_UNTOUCHED);
    call->kind = o->kind;
    call->in = slot->in;
    call->out = slot->out;
    call->count = o->kind == PROGRAM_MESSAGE ? out : o->count;
    call->dtype = o->dtype;
    call->op = o->op;
    call->root = sends ? o->to : o->root;
    call->tag = o->tag;
    call->sends = sends;
}

static void program_check_guard(program_rank *me, int number, const char *what, const char *array,
                                size_t bytes)
{
    for (size_t i = bytes; i < bytes + PROGRAM_GUARD; i++)
        if ((unsigned char)array[i] != PROGRAM_GUARD_BYTE)
            program_blame(me, number, what, i, (unsigned char)array[i], PROGRAM_GUARD_BYTE);
}

/* Checks the arrays and lets them go. */
static void program_end(program_rank *me, int number)
{
    const program_operation *o = &me->p->operation[number];
    program_slot *slot = &me->slots[number];
    const int rank = program_takes_part(me->p, number, me->rank);
    const size_t in = program_in_count(me->p, number, rank), out = program_out_count(me->p, number, rank);
    program_check_guard(me, number, "byte behind in", slot->in, slot->in_bytes);
    program_check_guard(me, number, "byte behind out", slot->out, slot->out_bytes);
    for (size_t i = 0; i < out; i++) {
        const int expected = program_expected(me->p, number, rank, i),
                  got = program_get(slot->out, i, o->dtype);
        const int want = expected == -2 ? PROGRAM_UNTOUCHED : expected;
        if (want != -1 && got != want) program_blame(me, number, "out", i, got, want);
    }
    /* What was only read is as it was; reduce_scatter may keep partial results there. */
    for (size_t i = 0; i < in && o->kind != PROGRAM_REDUCE_SCATTER; i++) {
        const int got = program_get(slot->in, i, o->dtype), want = program_value(number, rank, i);
        if (got != want) program_blame(me, number, "in", i, got, want);
    }
    free(slot->in);
    free(slot->out);
    slot->in = slot->out = NULL;
}

static void program_got(program_rank *me, int number, size_t got)
{
    const program_operation *o = &me->p->operation[number];
    if (o->kind != PROGRAM_MESSAGE || program_takes_part(me->p, number, me->rank) != o->to) return;
    if (got != SIZE_MAX && got != o->count) program_blame(me, number, "count", 0, (long)got, (long)o->count);
}

/* A step that starts; false after an error. */
static bool program_do_start(program_rank *me, int number, bool run)
{
    const program_operation *o = &me->p->operation[number];
    void *comm = me->comms[o->group];
    if (o->kind == PROGRAM_SPLIT) {
        const int rank = program_takes_part(me->p, number, me->rank), group = o->new_groups[rank];
        void *made = me->calls->split(comm, o->color[rank], o->key[rank]);
        if (group >= 0) me->comms[group] = made;
        return (made != NULL) == (group >= 0);
    }
    program_call call;
    program_begin(me, number, &call);
    if (run) {
        const dml_status status = me->calls->run(comm, &call);
        if (!status) program_end(me, number);
        return !status;
    }
    me->slots[number].request = me->calls->start(comm, &call);
    return me->slots[number].request != NULL;
}

/* All but PAUSE, which is the executor's; false after an error. */
TEST__UNUSED static bool program_do_step(program_rank *me)
{
    const program_step *step = &me->p->step[me->rank][me->next];
    const int number = step->operation;
    if (step->action == PROGRAM_START || step->action == PROGRAM_RUN)
        return program_do_start(me, number, step->action == PROGRAM_RUN);
    if (step->action == PROGRAM_PAUSE) return true;
    void *comm = me->comms[me->p->operation[number].group];
    if (step->action == PROGRAM_LOOK) {
        me->calls->done(comm, me->slots[number].request);
        return true;
    }
    size_t got = SIZE_MAX;
    const dml_status status = me->calls->wait(comm, me->slots[number].request, &got);
    if (status) return false;
    program_got(me, number, got);
    program_end(me, number);
    return true;
}

/* What an error has left; closes the groups but the first. */
static void program_finish(program_rank *me)
{
    for (int group = 1; group < PROGRAM_GROUPS; group++)
        if (me->comms[group]) me->calls->close(me->comms[group]);
    for (int number = 0; number < me->p->operations; number++) {
        free(me->slots[number].in);
        free(me->slots[number].out);
    }
}

#endif
