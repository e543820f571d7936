/* comm_internal.h: what a communicator is made of, and what its own files call in each other. */
#ifndef DML_COMM_COMM_INTERNAL_H
#define DML_COMM_COMM_INTERNAL_H

#include "base/error.h"
#include "base/logger.h"
#include "base/memory.h"
#include "base/os_thread.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "comm/socket.h"
#include "comm/transport.h"
#include "comm/wire.h"

/* ---- settings.c: options and environment, checked ---- */

typedef struct dml__comm_settings {
    int rank, world;
    const char *master_addr;
    int master_port;
    double timeout;  /* seconds */
    const char *key; /* NULL: none */
    bool allow_insecure;
    const char *bind_addr; /* NULL: none */
    size_t segment_bytes;
    int max_requests;
} dml__comm_settings;

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error);

/* ---- the communicator ---- */

/* One call: what all ranks must agree on, and where this rank's data is. */
typedef struct dml__comm_call {
    dml__signature signature;
    void *in;  /* what is sent; reduced in place */
    void *out; /* where the result goes, if not there */
} dml__comm_call;

/* Who runs whole calls. Ours is the ring engine (collectives.c), over any transport; MPI and NCCL would each
   be another table, whose `run` maps a call to theirs, chosen in dml_comm_open. */
typedef struct dml__comm_engine {
    const char *name;
    dml_status (*run)(dml_comm *comm, const dml__comm_call *call);
} dml__comm_engine;

typedef enum dml__request_state {
    DML__REQUEST_FREE,
    DML__REQUEST_QUEUED,
    DML__REQUEST_DONE
} dml__request_state;

struct dml_request {
    dml__comm_call call;
    dml__request_state state;
    dml_status status;
    dml_request *next; /* in the queue, or in the list of free ones */
};

/* What this rank knows of another. */
typedef struct dml__peer {
    uint8_t control[DML__CONTROL_BYTES]; /* the message that is coming in */
    size_t control_bytes;                /* of it that have come */
    bool gone;                           /* its control connection has ended */
    bool goodbye;                        /* it said so before */
    bool gave_up;                        /* it has announced whom it waits for: */
    int waits_for;
    dml__signature waits_in;
} dml__peer;

struct dml_comm {
    dml__memory memory;
    dml__logger logger;
    long process;         /* that opened it: a fork's child has a copy, of which it may only let go */
    char fork_error[192]; /* what the child is told */
    int rank, world;
    double timeout, grace; /* seconds; the second is how long the search for a culprit may take */
    size_t segment_bytes;
    int strangers;
    const dml__comm_engine *engine;
    dml__transport *transport; /* NULL in a world of one */
    dml__peer *peers;          /* (world) */
    char *segment;             /* (segment_bytes): a piece that is to be reduced */
    char *outgoing; /* (segment_bytes): a piece as it goes over the wire; NULL where memory has the same bytes
                     */
    uint64_t sequence; /* collectives run so far */
    double deadline;   /* of the operation that runs */
    bool somebody_gave_up;
    bool aborted; /* the others know that this one has failed */

    /* During the rendezvous, who takes the address messages. */
    bool (*take_addresses)(void *user, const dml__control *control);
    void *take_addresses_user;

    /* Who runs an operation (or touches anything above) has `busy`; the mutex is held for moments only. */
    dml__mutex mutex;
    dml__cond changed;
    dml__error error; /* under the mutex; never changes once it is set */
    bool busy, stop, thread_started;
    dml__thread thread;
    dml_request *requests; /* (max_requests) */
    int max_requests;
    /* Taken from the front and put back at the end, so that who waits twice meets a free one, not another's.
     */
    dml_request *free_requests, *last_free;
    dml_request *first_queued, *last_queued;
};

/* dml_comm_open over other socket calls than the system's. */
DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets);

/* ---- control.c: failing together ---- */

/* Records the error, if it is the first, and tells every rank that `culprit` has ended the job. The sentence
   is in the third person ("rank 2 of 4 died"), since every rank will show it. Returns the status that stuck.
 */
DML__LOCAL dml_status dml__comm_fail(dml_comm *comm, int culprit, dml_status status, const char *format, ...)
    DML__PRINTF(4, 5);

/* Takes in what came on the control channels: DML_OK, or the error that ends the job. */
DML__LOCAL dml_status dml__read_control(dml_comm *comm);

/* Sends one message to one rank, waiting until `until` if there is no room; false if it can't be sent. */
DML__LOCAL bool dml__send_control(dml_comm *comm, int rank, const dml__control *control, double until);

/* Waits until data can go to `to` or has come from `from` (-1: don't care) or something has been heard.
   DML_OK, or the error that ends the job, of which a passed deadline is one. */
DML__LOCAL dml_status dml__comm_wait_ready(dml_comm *comm, const dml__signature *signature, int to, int from);

/* The data connection of a rank has ended in the middle of a call: finds out why, and fails. */
DML__LOCAL dml_status dml__data_gone(dml_comm *comm, const dml__signature *signature, int rank);

/* Tells every rank that this one closes in good order. */
DML__LOCAL void dml__say_goodbye(dml_comm *comm);

/* ---- collectives.c ---- */

DML__LOCAL const dml__comm_engine *dml__ring_engine(void);

/* ---- exchange.c: moving the pieces of a plan ---- */

/* What one rank does in (a part of) a collective: sends a row of pieces to one rank while it takes a row of
   pieces from another. The data is `chunks` chunks, as equal as can be, of up to `pieces` pieces each; at
   step k chunk first - k (mod chunks) is sent, and chunk first - k - 1, or, for a chain, the same chunk,
   taken. */
typedef struct dml__plan {
    dml__comm_algorithm algorithm;
    char *data; /* (count) of the call's dtype */
    uint64_t count;
    int to, from;
    uint64_t chunks, first;
    uint64_t send_steps, receive_steps;
    uint64_t
        reduce_steps; /* what is taken in the first of them is reduced into the data, later it replaces it */
    uint64_t pieces;  /* of a chunk, and so of a step */
    uint64_t lead;    /* piece i may be sent once i - lead of the others have been taken */
    bool chain;
} dml__plan;

/* Pieces for a chunk of that many elements, at least 1, so that every call is checked. */
DML__LOCAL uint64_t dml__pieces_of(const dml_comm *comm, uint64_t elements, dml_dtype dtype);

DML__LOCAL dml_status dml__run_plan(dml_comm *comm, const dml__signature *signature, const dml__plan *plan);

/* ---- reduce_op.c ---- */

/* into[i] = op(into[i], from[i]); the mean only sums, until dml__finish_mean divides. */
DML__LOCAL void dml__reduce_into(void *into, const void *from, size_t count, dml_dtype dtype,
                                 dml_reduce_op op);
DML__LOCAL void dml__finish_mean(void *data, size_t count, dml_dtype dtype, int ranks);

/* ---- tcp.c and rendezvous.c ---- */

typedef struct dml__tcp {
    dml__transport transport;
    dml_comm *comm;
    const dml__socket_calls *calls;
    int *fd[DML__CHANNEL_COUNT]; /* (world) each; -1: none */
    struct pollfd *polls;        /* (world + 2): the control connections, then data out and in */
    bool met;                    /* every connection has been made */
} dml__tcp;

/* Takes a connection that has proved itself. */
DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd);

/* Makes comm->transport and meets the other ranks. False: the error is on the communicator. */
DML__LOCAL bool dml__tcp_open(dml_comm *comm, const dml__comm_settings *settings,
                              const dml__socket_calls *sockets);

/* Fills in the connections. */
DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__comm_settings *settings);

#endif
