/* schedule.h: a collective as data. An algorithm is a function that writes one rank's steps and does nothing
   else: the engine runs them, `--explain` prints them, tests count them and the price of them is known before
   a byte has moved. */
#ifndef DML_COMM_SCHEDULE_H
#define DML_COMM_SCHEDULE_H

#include "base/platform.h"
#include "comm/call.h"

/* The arrays that a rank's steps are about. What a call uses as both its input and its output is OUT. */
typedef enum dml__space {
    DML__SPACE_OUT,
    DML__SPACE_IN,
    DML__SPACE_SCRATCH, /* elements of the operation's own, as many as its algorithm says */
    DML__SPACE_SHARED,  /* (size, dml__collective.shared) elements that all ranks read and write, a row for
                          each; when a call or round begins nobody reads them */
    DML__SPACE_COUNT
} dml__space;

typedef enum dml__step_kind {
    DML__STEP_SEND,           /* the range goes to peer */
    DML__STEP_RECEIVE,        /* what comes from peer replaces the range */
    DML__STEP_RECEIVE_REDUCE, /* range[i] = op(range[i], what comes from peer) */
    DML__STEP_COPY,           /* range[i] = source[i] */
    DML__STEP_REDUCE,         /* range[i] = op(range[i], source[i]) */
    DML__STEP_REDUCE_BOTH,    /* range[i] = source[i] = op(range[i], source[i]) */
    DML__STEP_REDUCE_OUT,     /* range[i] = OUT[i] = op(range[i], source[i]) */
    DML__STEP_KIND_COUNT
} dml__step_kind;

/* Of those the kinds that have a source, and those that reduce. */
static inline bool dml__has_source(int kind)
{
    return kind >= DML__STEP_COPY;
}
static inline bool dml__does_reduce(int kind)
{
    return kind == DML__STEP_RECEIVE_REDUCE || kind >= DML__STEP_REDUCE;
}

/* Up to how many earlier steps a step waits for. */
#define DML__STEP_AFTER 3

/* In place of one of them: all that are earlier in the schedule must have ended. */
#define DML__ALL_BEFORE (-2)

/* A range is elements [offset, offset + count) of a space. Steps start in any order and run side by side,
   each in segments from its beginning to its end; a step that `after` names has to be out of the way first.
   Where the two touch the same elements (a source is touched too) the wait is a pipeline: element i may be
   touched once the earlier step is past it. Otherwise the earlier step must have ended. dml__step_limit says
   it exactly.

   Between two ranks, what one sends in the order of its steps the other receives in the order of its steps,
   so the k-th send to a peer and the peer's k-th receive are one message and have one count. A receive may
   only wait (`after`) for steps that come to their end without it, at its own rank and at others: nobody
   sends before the receiver is ready, so a send and a receive of two ranks that each wait for the other's
   would wait for ever (an exchange of two ranks goes through SCRATCH).

   A receive needs no `after` where what it replaces was sent before and what comes could not have been made
   without that: it comes when the other has taken it.

   Only steps that reduce complete a range, each element of the result just once on its way to each rank. */
typedef struct dml__step {
    uint8_t kind;         /* dml__step_kind */
    uint8_t space;        /* dml__space of the range */
    uint8_t source_space; /* of those that have a source */
    bool completes;       /* the range holds the sum over all ranks afterwards: a mean divides it now */
    int32_t peer;         /* rank in the group; -1: none */
    int32_t after[DML__STEP_AFTER]; /* indices of earlier steps, or DML__ALL_BEFORE; -1: none */
    uint64_t offset, count;
    uint64_t source; /* where that begins in its space */
} dml__step;

typedef struct dml__schedule {
    dml__step *steps; /* (capacity) */
    int count, capacity;
    bool overflowed; /* there were more steps than capacity: the rest was dropped */
} dml__schedule;

/* What an algorithm is asked: one call, seen from one rank. All-reduce, reduce and broadcast work in OUT
   (count), which reduce leaves undefined but at the root. Scatter: IN (size, count) at the root, OUT (count).
   Gather: IN (count), OUT (size, count) at the root. All-gather: IN (count), which may be this rank's part of
   OUT (size, count). Reduce-scatter: IN (size, count), undefined afterwards, and OUT (count), which may be
   this rank's part of IN. All-to-all: IN and OUT (size, count), apart; for "in_place" they may be one. */
typedef struct dml__collective {
    dml__comm_operation operation;
    int rank, size; /* in the group */
    int root;       /* where the operation has one */
    uint64_t count; /* as in the call: of the whole for all_reduce, reduce and broadcast, else of one rank
                       (the largest of `counts`) */
    uint64_t row; /* of calls with parts in rounds, which are columns of their arrays: how far apart two parts
                     begin; 0: `count` */
    const size_t *counts, *offsets; /* (size) each, of gather, scatter, all_gather, reduce_scatter with parts
                                       of different sizes; NULL: `count` each, one after the other.
                                       Of all-to-all they are this rank's parts of OUT, */
    const size_t *in_counts, *in_offsets; /* (size) each, and these its parts of IN */
    uint64_t shared;                      /* elements: see DML__SPACE_SHARED; 0: there are none */
} dml__collective;

/* Part `rank` of an array that has one for each rank. */
static inline uint64_t dml__part_offset(const dml__collective *c, int rank)
{
    return c->offsets ? c->offsets[rank] : c->count * (uint64_t)rank;
}
static inline uint64_t dml__part_count(const dml__collective *c, int rank)
{
    return c->counts ? c->counts[rank] : c->count;
}

/* Chunk `index` of `count` elements cut into `chunks` as equal as can be: the first of them are longer by
   one. */
static inline uint64_t dml__chunk_begin(uint64_t count, int chunks, int index)
{
    const uint64_t part = count / (uint64_t)chunks, longer = count % (uint64_t)chunks, i = (uint64_t)index;
    return i * part + (i < longer ? i : longer);
}

/* Each adds a step that waits for nothing and returns its index. A step of no elements is added too, but to
   send and receive nothing is to leave both out: dml__add_send and dml__add_receive return -1 for a count of
   0, which as an `after` means none. */
DML__LOCAL int dml__add_send(dml__schedule *schedule, int peer, dml__space space, uint64_t offset,
                             uint64_t count);
DML__LOCAL int dml__add_receive(dml__schedule *schedule, int peer, dml__step_kind kind, dml__space space,
                                uint64_t offset, uint64_t count);
DML__LOCAL int dml__add_local(dml__schedule *schedule, dml__step_kind kind, dml__space space, uint64_t offset,
                              uint64_t count, dml__space source_space, uint64_t source);

/* Step `step` waits for `earlier` too, a step or DML__ALL_BEFORE; either may be -1. */
DML__LOCAL void dml__add_after(dml__schedule *schedule, int step, int earlier);

/* Step `step`, or none if it is -1, completes its range. */
DML__LOCAL void dml__set_completes(dml__schedule *schedule, int step);

/* Up to which of its elements `step` may go, counted from its first, while `earlier`, which it waits for, has
   done so many of its own; UINT64_MAX: as far as it likes. A step without elements may go when that isn't 0.
 */
DML__LOCAL uint64_t dml__step_limit(const dml__step *step, const dml__step *earlier, uint64_t done,
                                    bool ended);

/* A message without elements, to say that one has come: the only step of count 0 that is sent. */
DML__LOCAL int dml__add_signal(dml__schedule *schedule, int peer);
DML__LOCAL int dml__add_wait_signal(dml__schedule *schedule, int peer);

/* ---- the table of algorithms ---- */

typedef struct dml__algorithm_info {
    const char *name; /* as in DML_COMM_ALGO: "ring" */
    dml__comm_operation operation;
    void (*write)(const dml__collective *collective, dml__schedule *schedule);
    bool equal_parts; /* takes no counts and offsets (of all-to-all "pairwise" takes those of all_to_allv) */
    bool rank_order;  /* adds as (((rank 0 + rank 1) + rank 2) + ...), whoever adds */
    /* Elements of SCRATCH that a whole call of `count` elements uses at most. All-reduce, reduce, broadcast
       and all-to-all in place that have less of it than that are run in rounds, each over as many elements as
       fit; the others need it. NULL: none. */
    uint64_t (*scratch)(int size, uint64_t count);
    /* The textbook's figures, to test the steps against and to print: elements sent by the rank that sends
       most of them (`count` as in the call, divisible by 2 * size), and messages by the one that sends most
       of those. */
    uint64_t (*elements_sent)(int size, uint64_t count);
    uint64_t (*messages_sent)(int size);
} dml__algorithm_info;

/* All of them, each operation's together; `count` of them. The index is what ranks agree on. */
DML__LOCAL const dml__algorithm_info *dml__algorithms(int *count);

/* The index of the one of that name for that operation, or -1. */
DML__LOCAL int dml__find_algorithm(dml__comm_operation operation, const char *name);

/* As many steps as any of them writes at most for a group of that size. */
DML__LOCAL int dml__most_steps(int size);

/* "3: receive_reduce out[100, 200) from 2 after 1, completes", without a newline; returns the text. */
#define DML__STEP_TEXT 192
DML__LOCAL const char *dml__step_text(const dml__schedule *schedule, int step, char text[DML__STEP_TEXT]);

#endif
