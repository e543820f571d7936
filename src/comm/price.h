/* price.h: what a schedule costs. The steps of all ranks of a group are run in virtual time, over a model of
   what connects them: how long a call would take is known before a byte has moved, and for groups that
   nobody has.

   The model is LogGP (Alexandrov, Ionescu, Schauser, Scheiman: LogGP, 1995) with what this library adds: a
   message is cut into segments, each with the overhead of a frame; a large one waits for its receiver's
   grant; a step may follow another by position; sums and copies take a processor's time, of which a rank has
   one, or its host so many for all of its ranks: then a processor stays with a rank until that has nothing
   left to do. A port sends at the full bandwidth, as LogGP's G says. Messages of a host that are under way to
   others at once take turns, as the streams of several connections do: each hands its card a quarter of a
   segment (a packet that the card cuts up) and waits for the others' before its next one. Inside of a host
   they take turns by segments. A segment reaches the receiver's port as it leaves the sender's (cut
   through), so an uncontended one takes latency + bytes / bandwidth and not twice the latter; where a port is
   taken it queues, in the network and not at the sender's, so a sender never stands behind its receiver's
   other messages.

   Not in the model: lost packets, congestion control's ramp, grants that stand behind data in a card's queue
   or in their stream's, the bound of eager buffers, and that ranks do not begin at the same time. */
#ifndef DML_COMM_PRICE_H
#define DML_COMM_PRICE_H

#include "base/platform.h"
#include "base/status.h"
#include "comm/schedule.h"

typedef struct dml__price_link {
    double latency;   /* seconds from the first byte's leaving to its arrival */
    double bandwidth; /* bytes/s of a port, in each direction */
    double overhead;  /* seconds of the processor for a frame, at the sender and again at the receiver */
    double touch;     /* and for a byte, where processors and no card move them */
} dml__price_link;

typedef struct dml__price_model {
    dml__price_link inside, between; /* of two ranks of a host; of two hosts */
    int ranks_per_host;              /* consecutive ones, who share their host's port to the others */
    int processors;                  /* that a host's ranks share; 0: each has its own */
    double change;                   /* seconds until a shared one is with another rank */
    int hosts_per_rack;              /* 0: no racks */
    double rack_latency;             /* seconds more between two racks */
    double oversubscription;         /* the ports of a rack's hosts together by the rack's uplink: 4 */
    double reduce, copy;             /* bytes/s of sums and copies */
    double local;                    /* seconds of each, besides */
    uint64_t segment, eager;         /* bytes of a segment; up to which a message needs no grant */
    uint64_t
        scratch; /* Bytes of it: what would use more is run in rounds, one after the other. 0: no bound. */
    size_t round_part; /* Bytes, for each rank, of a round of an all-reduce; 0: all, but for the scratch. */
    size_t shared;     /* Bytes of one through memory that the ranks share; 0: they share none. */
    bool memory;       /* Ranks of a host are processes that share memory: see dml__suppose_awake. */
    bool threads;      /* They read each other's arrays where these are. */
    uint64_t most_segments; /* Beyond so many in all, segments are made larger by powers of two, which
                               prices long pipelines too high. */
} dml__price_model;

typedef struct dml__price {
    double seconds;    /* until the last rank has ended */
    double *ends;      /* (size) seconds of each; NULL: not asked for. Set by the caller. */
    int stuck_rank;    /* where a schedule waits for ever, a rank that does and the step it doesn't end; */
    int stuck_step;    /* -1: none */
    uint64_t segment;  /* bytes: what it was run with */
    uint64_t events;   /* of the run */
    int distinct;      /* ranks that were run: equal ones are run once */
    size_t work_bytes; /* used, or at least needed where it was too little */
} dml__price;

/* Bytes of work that are enough for any group of `size` whose ranks have `most_steps` steps at most. Where
   ranks are alike far less will do: dml__price_collective says when it doesn't. */
DML__LOCAL size_t dml__price_work_bytes(const dml__price_model *model, int size, int most_steps);

/* Prices `collective` (its rank is ignored), run by `algorithm` over elements of `element_bytes`. `work` is
   aligned for a double. Where ranks do the same as others do, up to the names of their peers, one of them is
   run for all: in a ring, a single one. DML_ERROR_MEMORY: more work is needed, more than `most_steps`
   steps, more scratch and the operation has no rounds, or memory that ranks share; DML_ERROR_MISMATCH: a rank
   sends what nobody receives or the other way round, in stuck_rank and stuck_step; DML_ERROR_STATE: the
   schedule waits for ever. */
DML__LOCAL dml_status dml__price_collective(const dml__price_model *model,
                                            const dml__algorithm_info *algorithm,
                                            const dml__collective *collective, size_t element_bytes,
                                            int most_steps, void *work, size_t work_bytes, dml__price *price);

/* ---- the run itself, once it is known who sends what to whom ---- */

typedef enum dml__price_path {
    DML__PATH_INSIDE,  /* within a host */
    DML__PATH_BETWEEN, /* within a rack */
    DML__PATH_RACKS
} dml__price_path;

/* A step and how far it is, in segments. */
typedef struct dml__price_step {
    dml__step step;                /* its `after` are steps of the run */
    int32_t rank;                  /* of the run */
    int32_t partner;               /* the step at the message's other end */
    int32_t followers;             /* the list of those after this: step * DML__STEP_AFTER + i, or -1 */
    int32_t next[DML__STEP_AFTER]; /* in the list of those after after[i] */
    int32_t queued_behind;         /* in a port's line; */
    int32_t works_behind;          /* in its rank's, of what waits for a processor */
    uint32_t works;                /* segments that do */
    double ready;                  /* a send in a port's queue: when its processor is done with it */
    double gone;                   /* bytes of its next segment that have left */
    uint32_t total, issued, done;
    uint32_t came; /* segments that a receive has; those that a send has grants for */
    uint32_t granted;
    uint8_t path;
    bool queued;
} dml__price_step;

typedef struct dml__price_rank {
    double busy_until, end; /* its own processor's, where it has one; of the last step */
    int32_t works, last;    /* steps that wait for a processor: the first and the last; -1: none */
    uint32_t since;         /* when the first of all began to, in the order of events */
    int32_t processor_of; /* one of its host's processors, which those of its first ranks are: whose it is */
    bool processor_busy;
    int32_t first, steps; /* its steps */
    int32_t open;         /* the first of them that hasn't ended */
    int32_t host, rack;   /* of the run */
    int32_t first_here;   /* rank of its host */
} dml__price_rank;

typedef struct dml__price_port {
    double in_until;             /* until when what has been sent to it comes in */
    int32_t current, head, tail; /* the send that goes out, those that wait; -1 */
} dml__price_port;

typedef struct dml__price_event {
    double time;
    uint32_t order; /* equal times happen as they were planned */
    uint32_t what;  /* step or port, and which kind of event */
} dml__price_event;

typedef struct dml__price_run {
    const dml__price_model *model;
    dml__price_step *steps; /* (step_count) */
    dml__price_rank *ranks; /* (rank_count) */
    dml__price_port *ports; /* (rank_count + host_count) inside its host; of the host */
    double *uplinks;        /* (rack_count, 2) until when a rack's way out, and in, are taken */
    dml__price_event *heap; /* (heap_capacity) */
    size_t heap_count, heap_capacity;
    int step_count, rank_count, host_count, rack_count;
    uint64_t segment; /* elements */
    uint64_t element_bytes, events;
    double now;
    uint32_t order;
} dml__price_run;

/* Runs the steps, of which step, rank, partner and path are set, and of ranks first, steps, host and rack.
   Returns a step that never ends, or -1. */
DML__LOCAL int dml__price_run_steps(dml__price_run *run);

/* How many segments of so many elements all sends have. */
DML__LOCAL uint64_t dml__price_segments(const dml__price_run *run, uint64_t segment);

#endif
