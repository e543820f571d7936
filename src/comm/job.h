/* job.h: what a communicator is made of. A job is one rank's connections with all others and everything that
   moves over them; a communicator is a group of its ranks with an id. Who touches a job holds its turn (see
   dml__enter_job). */
#ifndef DML_COMM_JOB_H
#define DML_COMM_JOB_H

#include "base/error.h"
#include "base/logger.h"
#include "base/memory.h"
#include "base/os_thread.h"
#include "base/platform.h"
#include "comm/choice_table.h"
#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/frame.h"
#include "comm/leaves.h"
#include "comm/reduce_op.h"
#include "comm/schedule.h"
#include "comm/settings.h"
#include "net/net.h"
#include "net/transport.h"
#include "net/wire.h"

/* ---- a step, as it is being run ---- */

typedef struct dml__step_state {
    uint64_t done;    /* elements that are past */
    int32_t next;     /* the next step of the same flow, or the next local step; -1: none */
    uint32_t message; /* of a short call's: how many there are before it between the same ranks */
    bool past;        /* all of it is */
} dml__step_state;

/* The messages of one operation in one direction between this rank and another, in their order. */
typedef struct dml__flow {
    dml_request *request;
    struct dml__flow *next; /* of the same link and direction: in the order in which they are served */
    int32_t step;           /* the one whose turn it is; -1: all are past */
    int32_t last, granting; /* the last step; receiving: the first that isn't granted in full; -1: all are */
    uint64_t message;       /* the number of `step` */
    uint64_t granted_message; /* messages before it are granted, and it up to granted_bytes */
    uint64_t told_message;    /* what the sender was told of that */
    uint64_t granted_bytes, told_bytes;
    int rank; /* the other one, in the world */
    int lane; /* in the trace, of the step that began at `begun`; 0: it hasn't, or isn't traced */
    double begun;
    bool sending;
    bool announced; /* sending: said so; receiving: heard so */
    bool large;     /* one of the messages is too large to come without a grant */
} dml__flow;

/* ---- an operation ---- */

typedef enum dml__request_state {
    DML__REQUEST_FREE,
    DML__REQUEST_ACTIVE,
    DML__REQUEST_DONE
} dml__request_state;

/* One call: what all ranks must agree on, and what only this one knows. */
typedef struct dml__comm_call {
    dml__signature signature;
    void *in, *out;
    const size_t *counts, *offsets;       /* (size), or NULL; read when it starts */
    const size_t *in_counts, *in_offsets; /* (size), of all_to_allv, whose others are those of `out` */
    bool parts_missing;                   /* counts that had to be given weren't */
    void *const *leaves;                  /* (root), and their owners (root), of all_reduce_leaves */
    int64_t *owners;
    int tag;
    int priority;
    dml__reduction reduction;
} dml__comm_call;

#define DML__SHORT_STEPS 64 /* of a schedule that short.c runs: a bit for each */

/* What a schedule was written for. */
typedef struct dml__written {
    const dml_comm *comm; /* NULL: nothing that comes again */
    uint32_t communicator;
    bool in_place;
    int algorithm;
    uint64_t choices; /* job->choices when that was chosen, a round or more before it was written */
    dml__signature signature;
    uint64_t count, round_most;
    bool is_short; /* its steps are such as short.c runs, mostly in this order: */
    uint8_t order[DML__SHORT_STEPS];
} dml__written;

struct dml_request {
    dml__comm_call call;
    dml_comm *comm;
    uint64_t sequence;
    int algorithm; /* index in dml__algorithms; -1: a send or receive */
    dml__request_state state;
    int waits; /* calls that wait for this one alone */
    dml_status status;
    dml_message message; /* of a receive: what came */
    bool on_device;      /* NCCL has it */
    bool queues;         /* for the communicator's shared memory: nothing of it has begun */
    bool again;          /* `written` is for a call like this one */
    bool dirty;          /* something has moved that its other steps may wait for */
    bool moved;          /* or started, since anybody looked at the clock: the deadline is still to be set */
    double deadline;     /* of no progress */
    double begun;        /* these three for the trace: its start, lane, and 1 + the number of its event */
    int lane;
    uint64_t event;
    dml_request *next; /* in the list of active ones, of unmatched ones, or of free ones */
    /* What runs now: one round of it. */
    uint64_t round_begin, round_count, round_most; /* elements */
    uint32_t round;
    dml__reduction reduction; /* its dtype is that of what the steps are about */
    dml__leaf_sums leaf_sums;
    char *spaces[DML__SPACE_COUNT];
    dml__schedule schedule; /* of the round */
    dml__written written;
    dml__step_state *states; /* (schedule.capacity) */
    dml__flow *flows;        /* (flow_count) of dml__comm_job.most_flows */
    int flow_count, steps_left, first_local;
    int first_open; /* no step before it is still to do, as far as anybody looked */
    char *scratch;  /* (dml__comm_job.scratch_bytes) */
};

/* ---- what lies between this rank and another ---- */

typedef enum dml__take_mode {
    DML__TAKE_NO_PAYLOAD, /* but padding, or the next header */
    DML__TAKE_WRITE,      /* payload, into place */
    DML__TAKE_REDUCE,     /* payload, reduced into place */
    DML__TAKE_STORE       /* payload, kept until somebody asks */
} dml__take_mode;

/* More than a frame's header and a small payload, so that short messages take one call of the system. */
#define DML__AHEAD_BYTES 2048

/* Of a payload that is copied behind its header, since two pieces take longer: up to 4 KiB, which is a size
   that many ask for. */
#define DML__SHORT_BYTES 4096

typedef struct dml__link {
    /* Coming in: the frame that is being taken. */
    uint8_t ahead[DML__AHEAD_BYTES]; /* what was read behind a payload, taken at once */
    dml__take_mode mode;
    uint8_t header[DML__FRAME_BYTES];
    uint8_t partial[8]; /* an element of which the rest is still to come */
    size_t header_bytes, partial_bytes, payload_left, padding_left;
    dml__frame frame;
    dml__flow *taking;              /* whose message it is */
    char *target;                   /* where the next byte goes */
    dml__flow *receiving, *sending; /* lists, of active operations */
    /* Frames that came before they were asked for, one behind the other, headers as they came. */
    uint8_t *store;             /* (dml__comm_job.store_bytes) */
    size_t store_begin;         /* of what is in it, */
    size_t store_used, storing; /* bytes of whole entries, and of one behind them that is coming in */
    /* Bytes of eager frames and announcements, which go round: taken, and of these the peer knows; sent, and
       of these the peer has taken. */
    uint32_t consumed, told, charged, credited;
    /* Going out: the frame that is being sent. */
    uint8_t out_header[DML__FRAME_BYTES + DML__SHORT_BYTES]; /* a short payload goes along with it */
    char *out_payload;                                       /* NULL: none, or short */
    size_t out_begin, out_bytes; /* the header and what goes along; the payload behind */
    size_t out_done, out_total;  /* of both and the padding together */
    size_t out_counted;          /* bytes of payload, wherever they are */
    dml__flow *out_flow;         /* whose step moves on when it has gone; NULL: nobody's */
    bool out_offered;            /* the other rank reads the payload where it lies */
    bool at_once;                /* what the transport takes has gone: it is copied, and lent there */
    uint64_t out_elements;
    uint8_t
        *swapped; /* (dml__swap_room): a payload as it goes over the wire; NULL where memory has that form */
    uint64_t messages;                 /* sends so far: their sequence */
    uint64_t frames_sent, frames_come; /* whole; by their header */
    dml_comm_traffic *traffic;         /* of the job's, what goes over this link is counted in */
    bool gone;
} dml__link;

/* Whether the search for a culprit has come to a rank, and has gone on from there. */
typedef enum dml__reach { DML__NOT_REACHED, DML__REACHED, DML__FOLLOWED, DML__IN_CIRCLE } dml__reach;

/* How a rank answers that is in no call of which others could wait for the end. */
typedef enum dml__absence { DML__IS_THERE, DML__IS_AWAY, DML__IS_PROBING } dml__absence;

/* What a rank waits for. */
typedef struct dml__waiting {
    dml__signature call;
    uint32_t communicator;
    uint64_t sequence;
    int tag;
    int lies_from,
        lies_tag; /* of a message that it would take but for its tag; the second -1: there is none */
} dml__waiting;

/* Of the counts of a call with one for each rank, as many as go into a control message behind the call. */
#define DML__CALL_BYTES 32
#define DML__SAID_COUNTS ((DML__CONTROL_BODY - DML__CALL_BYTES) / 8)

/* What this rank knows of another from its control messages. */
typedef struct dml__peer {
    uint8_t control[DML__CONTROL_BYTES]; /* the message that is coming in */
    size_t control_bytes;                /* of it that have come */
    bool gone;                           /* its control connection has ended */
    bool goodbye, farewell;              /* it said so before, see failure.c */
    uint64_t frames;                     /* that it had sent to this one by its goodbye */
    bool answered;                       /* since this rank asked last, what it waits for: */
    dml__absence absent; /* and is in no call, without its part of what this one asked about */
    int waits_for;       /* -1: nobody */
    dml__waiting waits_in;
    double moved_at; /* when something moved there last */
    dml__reach reach;
    /* How many ranks erred at least, if this one did: by calling what it waits in, and by not coming to what
       others wait in. */
    int called, missed;
    bool passed; /* others have what it waits in behind them */
    bool said;   /* what it called in the place that is disputed: */
    dml__signature call;
    int counts; /* how many of its counts it said, */
    uint64_t count[DML__SAID_COUNTS];
} dml__peer;

/* ---- the job ---- */

/* The last calls of a communicator that ended, so that a straggler's message can be judged. */
#define DML__REMEMBERED 32

struct dml_comm {
    struct dml__comm_job *job;
    dml_comm *next; /* of the job */
    uint32_t id;
    int rank, size;    /* in the group */
    int *world_ranks;  /* (size) */
    size_t *offsets;   /* (2, size): of parts that lie one behind the other */
    uint64_t sequence; /* collectives started so far */
    int priority;
    void *stream; /* whose work comes first where arrays lie in a GPU's memory; NULL: the default */
    dml_reduce_function functions[DML__MOST_FUNCTIONS];
    void *function_users[DML__MOST_FUNCTIONS];
    int function_count;
    dml__choice choice;     /* what its calls get, the same at all ranks */
    dml__price_model model; /* that it was made of, the same at all ranks of the world */
    int hosts;
    char *shared;         /* (2, size, model.shared) that all of its ranks use; NULL: there are none */
    bool shared_second;   /* it is the turn of the second half of it */
    dml_request *sharing; /* whose turn it is to use it; NULL: nobody's */
    bool measured;        /* the model's links were */
    bool tuned;           /* the choice is by trials (tune.c) */
    void *beneath;        /* the engine's own */
    struct dml__nccl_group *nccl; /* NULL: there is none */
    uint64_t closed; /* its place among the job's closings, from 1; 0: it is open. See dml__forget_closed */
    dml__call_variant within;             /* whose parts its collectives are now */
    bool patient;                         /* its receives may take any time (dml_comm_outlive) */
    dml__signature past[DML__REMEMBERED]; /* collective i at i % DML__REMEMBERED */
    int said_counts;                      /* of each of them, DML__SAID_COUNTS at most: */
    uint64_t *past_counts;                /* (DML__REMEMBERED, said_counts), of those that have counts */
};

typedef struct dml__comm_job {
    dml__memory memory;
    dml__logger logger;
    long process;         /* that opened it: a fork's child has a copy, of which it may only let go */
    const int *mark;      /* dml__mark_process; NULL: only the number is known */
    char gone_error[192]; /* what the child is told, and who calls what is closed */
    int kept;             /* by strategies, which may be used for longer than it is open */
    bool closed;          /* all of its communicators */
    uint64_t closings;    /* of communicators so far */
    int rank, world;
    double timeout, grace; /* seconds; the second is how long the search for a culprit may take */
    int strangers;
    const dml__engine *engine;    /* NULL: ours */
    struct dml__nccl *nccl;       /* beside ours, for arrays in a GPU's memory; NULL: there is none */
    bool alone;                   /* the engine may be called by one thread only */
    dml__transport *transport;    /* NULL in a world of one */
    struct dml__local_job *local; /* of ranks of one process: what they share; NULL: others */
    dml_comm *comms;
    uint32_t next_id;
    char algorithm[256];       /* names that were asked for; "": none */
    uint64_t choices;          /* how often what decides the algorithms and rounds of calls has changed */
    bool deterministic;        /* sums only in the order of the ranks */
    bool measures;             /* rank 0 measures the links */
    bool traces;               /* a timeline was asked for */
    double latency, bandwidth; /* of a link, as they were given: seconds, bytes/s; 0: they weren't */
    dml_isa isa;
    dml__peer *peers; /* (world) */
    dml__link *links; /* (world) */
    uint8_t *wishes;  /* (world): for dml__transport_calls.wait */
    int *host_of;     /* (world): the first rank of each one's host, as the model has it */
    char *stage;      /* (DML__STAGE_BYTES): what is about to be reduced */
    size_t segment_bytes, store_bytes, eager_bytes, scratch_bytes;
    bool usual_segments; /* so they may become larger */
    size_t round_part;   /* bytes, for each rank, of a round of an all-reduce; 0: all. The same on all */
    int most_steps, most_flows; /* of a schedule */
    dml_request *requests;      /* (max_requests + 1): the last one is for calls that wait at once */
    int max_requests;
    dml__step *all_steps; /* what the requests have parts of */
    dml__step_state *all_states;
    dml__flow *all_flows;
    char *all_scratch;
    dml_request *free_requests, *last_free;
    dml_request *active, *unmatched; /* in the order in which they were started */
    uint64_t progress;               /* counts everything that moves */
    uint64_t progress_seen;          /* what it was when somebody last looked at the clock */
    uint64_t progress_away;          /* and when whoever looked had last been away */
    bool started;                    /* something, since then */
    double moved_at;                 /* when it last did, as far as anybody looked */
    dml_comm_stats stats;
    struct dml__trace *trace; /* NULL: none is kept */
    double heard_at;          /* when control was read last */
    double clock;             /* what it said when a call looked at it last */
    double answer_until;      /* of the search for a culprit; 0: none is on */
    double asked_at;          /* when the others were asked last */
    bool question_travels;    /* to a rank that hasn't answered, when that was last looked at */
    bool disputes;            /* asks what the others called in this place of a communicator: */
    uint32_t disputed_in;
    uint64_t disputed;
    bool aborted;          /* the others know that this one has failed */
    int culprit;           /* whom they were told to blame */
    bool outlives;         /* others' deaths end only the sends and receives with them */
    dml__meeting *meeting; /* while the ranks meet */
    int probing;           /* calls that wait for a message to probe */
    bool probed;           /* the last call did, and found none */
    bool waits_for_any;    /* a call waits for whichever of several operations ends first */
    bool look_around;      /* something came, nobody knows from whom */
    double spin;           /* seconds of looking again before a wait sleeps */
    bool yields;           /* meanwhile others may want the processor */
    int vain_looks;        /* of a program that looks by itself, in a row */
    bool crowded;          /* another rank did, when a call last began to wait */

    /* Taking turns. */
    dml__mutex gate, mutex; /* asked for in that order */
    dml__cond changed;
    dml__error error; /* under the mutex; never changes once it is set */
    bool sleeping;    /* whoever makes progress is in the transport's wait, without the mutex */
    int waiting;      /* threads in a call that makes progress: the helper stays out */
    bool stop, helper_started;
    double called_at; /* when a call was here last; only kept where there is a helper */
    double awake_at;  /* when anybody was, as far as it was noted */
    dml__thread helper;
} dml__comm_job;

#define DML__STAGE_BYTES 65536
#define DML__OFFERED_SEGMENTS 4 /* of a frame at most that the other rank reads in this one's memory */
#define DML__OFFERED_BYTES ((size_t)1 << 20)
#define DML__SWAP_BYTES 4096

/* Room for a payload that is turned round: a segment, or all of a message that goes unasked. */
static inline size_t dml__swap_room(const dml__comm_job *job)
{
    return job->eager_bytes > DML__SWAP_BYTES ? job->eager_bytes : DML__SWAP_BYTES;
}

/* ---- jobs and communicators come and go (job.c) ---- */

/* A job of one rank, with no memory for its work yet, and what it needs to be as the settings say; false: the
   job has failed. NULL: no memory. */
DML__LOCAL dml__comm_job *dml__new_job(const dml_comm_options *options);
DML__LOCAL bool dml__equip_job(dml__comm_job *job, const dml__comm_settings *settings);

/* With its communicators. The second is for a fork's child: mutexes stay as they are. */
DML__LOCAL void dml__destroy_job(dml__comm_job *job);
DML__LOCAL void dml__release_job(dml__comm_job *job);

/* Of all of the job's ranks, if there are `size` of them, in their order. NULL: no memory. */
DML__LOCAL dml_comm *dml__new_comm(dml__comm_job *job, uint32_t id, int rank, int size);
DML__LOCAL void dml__free_comm(dml__comm_job *job, dml_comm *comm);

/* What an engine that isn't ours has for it goes. */
DML__LOCAL void dml__leave_beneath(dml__comm_job *job, dml_comm *comm);

/* ---- calls, open and close (comm.c, open.c, close.c) ---- */

/* Whether this is a fork's child, with its parent's job. */
DML__LOCAL bool dml__is_copy(const dml__comm_job *job);

/* The same, or whether the communicator is closed and only kept. Nothing may be touched. */
DML__LOCAL bool dml__is_gone(const dml_comm *comm);

/* What is wrong with a call's arguments, in words, which may be written into `text`; NULL: nothing
   (arguments.c). */
#define DML__FAULT_TEXT 176
DML__LOCAL const char *dml__call_fault(const dml_comm *comm, const dml__comm_call *call,
                                       char text[DML__FAULT_TEXT]);

/* Until a request has ended, or the job failed (request.c). With the turn. */
DML__LOCAL void dml__wait_for(dml__comm_job *job, dml_request *request);

/* From now on collectives are parts of this one. */
DML__LOCAL void dml__go_within(dml_comm *comm, dml__call_variant variant);

/* For who may be used after `comm` was closed: until it lets go, calls with it end with DML_ERROR_STATE and a
   sentence. NULL is fine. */
DML__LOCAL void dml__comm_keep(dml_comm *comm);
DML__LOCAL void dml__comm_let_go(dml_comm *comm);

/* dml_comm_open over other socket calls than the system's. */
DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets);

/* dml_comm_open_local, which tells why it failed. */
DML__LOCAL dml_status dml__comm_open_local(dml_comm **comms, int world, const dml_comm_options *options,
                                           dml__error *error);

/* A rank of one process has closed: what it has in common with the others goes with the last. */
DML__LOCAL void dml__leave_local(struct dml__local_job *local);

/* Says dml_comm_describe's lines to the log, if there is one (describe.c). */
DML__LOCAL void dml__log_description(const dml_comm *comm);

/* ---- turns (turn.c) ---- */

/* The helper thread, if there is none yet. */
DML__LOCAL dml_status dml__start_helper(dml__comm_job *job);

/* With the turn, which is given up meanwhile. */
DML__LOCAL void dml__stop_helper(dml__comm_job *job);

/* Where ranks have a processor each, whether another one is on this rank's all the same, for which the waits
   then give it up: both would else look again for as long as they may, in turn, and the system, which sees
   one of them ready at a time, leaves them where they are. */
DML__LOCAL bool dml__look_for_crowd(dml__comm_job *job);

DML__LOCAL void dml__enter_job(dml__comm_job *job);
DML__LOCAL void dml__leave_job(dml__comm_job *job);

/* What has moved or was started since this was called last has by now: each look at the clock would cost as
   much as a step. With the turn. */
DML__LOCAL void dml__note_time(dml__comm_job *job, double now);

/* A call begins that may be the first for a while: hears the others. What lies in the connections since then
   has yet to move, so whoever asks is told that something moves here. */
DML__LOCAL void dml__come_back(dml__comm_job *job);

/* Sees to everything that can be done without waiting. True if something moved. With the turn. */
DML__LOCAL bool dml__make_progress(dml__comm_job *job);

/* The same from outside of the job, for who computes in between. */
DML__LOCAL void dml__comm_progress(dml_comm *comm);

/* For who asks again and again instead of waiting: hears the others and minds the deadlines, now and then. */
DML__LOCAL void dml__keep_watch(dml__comm_job *job);

/* For dml__wait_until: nothing is under way. */
DML__LOCAL bool dml__none_active(dml__comm_job *job, void *user);

/* Makes progress until `done` says so, at most until `until` (< 0: each operation's own deadline), or until
   the job fails. With the turn, which is given up while it sleeps. False: the job has failed or time is up.
 */
DML__LOCAL bool dml__wait_until(dml__comm_job *job, bool (*done)(dml__comm_job *job, void *user), void *user,
                                double until);

/* ---- operations (operation.c) ---- */

/* With the turn. NULL: the job has failed, or no request is free and `blocking` is not set. */
DML__LOCAL dml_request *dml__start(dml_comm *comm, const dml__comm_call *call, bool blocking);

/* The messages of a round are counted from a multiple of 2^16 on. */
static inline bool dml__is_later_round(const dml_request *request, const dml__frame *frame)
{
    return frame->message >> 16 > request->round;
}

/* How many elements of a step may be touched now; UINT64_MAX when nothing that it waits for is left. */
DML__LOCAL uint64_t dml__allowed(dml_request *request, int step);

/* All of it may be. */
DML__LOCAL bool dml__is_free(dml_request *request, int step);

/* `done` elements of a step are past. The step of a flow hands over to the next. */
DML__LOCAL void dml__step_moved(dml__comm_job *job, dml_request *request, int step, uint64_t done);

/* Local steps, early frames and the end of the round, as far as they go. */
DML__LOCAL void dml__advance_request(dml__comm_job *job, dml_request *request);

/* What a step receives goes where it belongs: `count` elements from `done` on. */
DML__LOCAL void dml__apply(dml_request *request, int step, const void *from, uint64_t count);

/* Bytes of a step's range, and where it begins. */
DML__LOCAL size_t dml__step_bytes(const dml_request *request, int step);
DML__LOCAL char *dml__step_data(const dml_request *request, int step);

/* Strings the steps together and lists their flows. */
DML__LOCAL void dml__begin_steps(dml__comm_job *job, dml_request *request);

/* What is left of a local step, up to there, as far as it may go. */
DML__LOCAL void dml__apply_local(dml_request *request, int step, uint64_t upto);

/* One step, and one flow: a send, or a receive that has met its message. */
DML__LOCAL void dml__begin_pair(dml__comm_job *job, dml_request *request, int rank, uint64_t sequence,
                                uint64_t count);

DML__LOCAL void dml__end_request(dml__comm_job *job, dml_request *request, dml_status status);
DML__LOCAL void dml__free_request(dml__comm_job *job, dml_request *request);

/* ---- short calls (short.c) ---- */

/* Whether the steps of a schedule are such, which numbers their messages. */
DML__LOCAL bool dml__has_short_steps(const dml__comm_job *job, dml_request *request);

/* Runs them to their end, or as far as they go by themselves: then the engine has them. Nothing else is under
   way. */
DML__LOCAL void dml__run_short(dml__comm_job *job, dml_request *request);

/* ---- pairs (pair.c: sends and receives) ---- */

/* The rank in the group of a rank in the world; -1: it isn't one. */
DML__LOCAL int dml__group_rank(const dml_comm *comm, int world_rank);

/* The communicator with that number; and that which another rank means by it, who may be in another group of
   the same number. NULL: there is none here. */
DML__LOCAL dml_comm *dml__find_comm(const dml__comm_job *job, uint32_t id);
DML__LOCAL dml_comm *dml__find_comm_of(const dml__comm_job *job, uint32_t id, int world_rank);

/* A message has come, or been announced: the first receive that takes it, or NULL. */
DML__LOCAL dml_request *dml__match_message(dml__comm_job *job, int rank, const dml__frame *frame);

/* Whether a message is what a receive of this communicator, rank of the group and tag asks for. */
DML__LOCAL bool dml__message_fits(const dml_comm *comm, int from, int tag, int rank, const dml__frame *frame);

/* The receive gets this message; false: that was an error. */
DML__LOCAL bool dml__take_message(dml__comm_job *job, dml_request *request, int rank,
                                  const dml__frame *frame);

/* ---- links (link_out.c, link_in.c) ---- */

/* What an eager frame, or an announcement, which has no payload, takes of the receiver's room. */
static inline uint32_t dml__eager_charge(size_t bytes)
{
    return DML__FRAME_BYTES + (uint32_t)dml__padded(bytes);
}

/* The data stream of a rank has ended: DML_OK if nothing needs it. */
DML__LOCAL dml_status dml__link_gone(dml__comm_job *job, int rank);

/* As much as goes without waiting; what moved is noted in job->progress. */
DML__LOCAL dml_status dml__send_on(dml__comm_job *job, int rank);
DML__LOCAL dml_status dml__receive_on(dml__comm_job *job, int rank);

/* What the frames of a request's messages say, but for what the message itself is. */
DML__LOCAL void dml__describe_call(const dml_request *request, dml__frame *frame);

/* Whether that rank reads this one's memory, which it says when it is about to open. */
DML__LOCAL bool dml__is_reader(const dml__comm_job *job, int rank);

/* A frame is what goes out next. */
DML__LOCAL void dml__put_frame(dml__link *link, dml__frame *frame, char *payload);

/* Takes of the receiver's room what an eager frame needs; false: there is too little. */
DML__LOCAL bool dml__charge_eager(const dml__comm_job *job, dml__link *link, size_t bytes);

/* Whether something may come from that rank that this one waits for. */
DML__LOCAL bool dml__link_is_awaited(const dml__comm_job *job, int rank);

/* DML__WISH_... Whatever comes is taken, also for calls that are still to come: it may show that two ranks do
   different things. */
DML__LOCAL uint8_t dml__link_wishes(const dml__comm_job *job, int rank);

/* The flow that a frame belongs to, or NULL. */
DML__LOCAL dml__flow *dml__find_flow(dml__flow *list, const dml__frame *frame);

/* ---- calls that don't fit together (mismatch.c) ---- */

/* Compares what a frame says with what this rank does; DML_OK or the error that ends the job. */
DML__LOCAL dml_status dml__check_frame(dml__comm_job *job, int rank, const dml_request *request,
                                       const dml__frame *frame);

/* Asks the members what they called in a place of their communicator: DML_OK if all who say so called the
   same, or the error that ends the job. */
DML__LOCAL dml_status dml__compare_calls(const dml_comm *comm, uint64_t sequence);

/* After that: the first who came to that place, if more have closed their communicators without it; else -1.
 */
DML__LOCAL int dml__one_too_many(const dml_comm *comm);

/* A collective's frame that belongs to no flow here: of a call that is still to come (true: keep it), of one
   that is over, or of one that has no use for it. */
DML__LOCAL bool dml__is_early(dml__comm_job *job, int rank, const dml__frame *frame, dml_status *status);

/* ---- early frames (store.c) ---- */

/* Makes room for a frame that nobody has asked for; its payload goes to link->target. */
DML__LOCAL dml_status dml__begin_storing(dml__comm_job *job, int rank, const dml__frame *frame);
DML__LOCAL void dml__end_storing(dml__comm_job *job, int rank);

/* Whether what came early for a collective that begins now is about the same call; if not, the job fails.
   What this rank doesn't wait for would never be looked at. */
DML__LOCAL void dml__check_stored(dml__comm_job *job, const dml_request *request);

/* What came early for a flow whose turn it is now. */
DML__LOCAL dml_status dml__take_stored(dml__comm_job *job, dml__flow *flow);

/* The first stored message for a receive. True: it was taken. */
DML__LOCAL bool dml__match_stored(dml__comm_job *job, dml_request *request);

/* The first message that is kept for nobody yet, of one communicator, or of any (comm NULL): then also of a
   collective, from a rank that has said goodbye. */
DML__LOCAL bool dml__find_stored(const dml__comm_job *job, const dml_comm *comm, int from, int tag, int *rank,
                                 dml__frame *frame);

/* ---- failing together (failure.c) ---- */

/* Records the error, if it is the first, and tells every rank that `culprit` has ended the job. The sentence
   is in the third person ("rank 2 of 4 died"), since every rank will show it. Returns the status that stuck.
 */
DML__LOCAL dml_status dml__job_fail(dml__comm_job *job, int culprit, dml_status status, const char *format,
                                    ...) DML__PRINTF(4, 5);

/* What a rank is told that has come since then. */
DML__LOCAL dml__control dml__failure_message(const dml__comm_job *job);

/* Takes in what came on the control channels: DML_OK, or the error that ends the job. */
DML__LOCAL dml_status dml__read_control(dml__comm_job *job);

/* Whoever closes a data stream has said why on the control stream, or is dead and that ends too: waits a
   little for that. */
DML__LOCAL dml_status dml__hear_last_words(dml__comm_job *job, int rank);

/* The data stream of a rank has ended while `request` needs it: finds out why, and fails, or ends only the
   sends and receives with it. */
DML__LOCAL dml_status dml__data_gone(dml__comm_job *job, const dml_request *request, int rank);

/* Ends all sends to and receives from a rank that is gone with DML_ERROR_PEER. */
DML__LOCAL void dml__end_pairs_with(dml__comm_job *job, int rank);

/* The deadline of `request` has passed without any progress of its own: asks all ranks, and judges. DML_OK:
   something moves somewhere, or the answers are still coming; go on. */
DML__LOCAL dml_status dml__look_for_culprit(dml__comm_job *job, dml_request *request);

/* Asks all ranks what they wait for, and waits for their answers, not for long. answered[r] (size): rank r of
   the communicator did, so it is in a call. */
DML__LOCAL void dml__ask_ranks(dml_comm *comm, bool *answered);

/* If a rank has said goodbye and all that it sent has come: what still waits for it doesn't wait for long. */
DML__LOCAL void dml__expect_no_more(dml__comm_job *job, int rank);

/* Tells every rank that this one closes in good order; `last`: that it heard so from all. */
DML__LOCAL void dml__say_goodbye(dml__comm_job *job, bool last);

/* The rank (in the world) that an operation waits for, or -1. */
DML__LOCAL int dml__waits_for(dml_request *request);

#endif
