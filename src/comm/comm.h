/* comm.h: a communicator: ranks that know each other, and the collectives between them. */
#ifndef DML_COMM_COMM_H
#define DML_COMM_COMM_H

#include "base/allocator.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/status.h"

/* One rank's end of a group of ranks. Ranks are processes on any hosts, or threads of one process with a
   communicator each. A communicator is used by one thread at a time (its background thread is its own
   business); two communicators in a process don't meet.

   After fork() the communicator is still the parent's alone. In the child every call is refused with
   DML_ERROR_STATE, but dml_comm_close: that lets go of the child's copy and leaves the parent's job as it is.
   A child that lives on should do so, or exec: as long as it holds the connections, the other ranks don't see
   its parent die, and find out by their deadlines only. */
typedef struct dml_comm dml_comm;

/* An operation that was started and not yet waited for. It belongs to its communicator. */
typedef struct dml_request dml_request;

/* What becomes of the ranks' elements. Sums and products of integers wrap around; the mean of integers is
   their (wrapped) sum divided by the world size, rounded towards zero. A NaN on any rank makes the minimum
   and the maximum NaN. The numbers are written to wires: append, never reorder. */
typedef enum dml_reduce_op {
    DML_SUM,
    DML_MEAN,
    DML_MIN,
    DML_MAX,
    DML_PROD,
    DML__REDUCE_OP_COUNT
} dml_reduce_op;

typedef struct dml_comm_options {
    /* world_size 0: both from RANK and WORLD_SIZE; if both are unset, 0 and 1. */
    int rank, world_size;
    /* Where rank 0 listens, a name or an address. NULL and 0: MASTER_ADDR, else 127.0.0.1; MASTER_PORT, else
     * 29500. */
    const char *master_addr;
    int master_port;
    /* The deadline of each operation and of the rendezvous. 0: DML_TIMEOUT, else 30. When it passes, finding
       out which rank is to blame takes a quarter of it more, at most 1 s. */
    double timeout_s;
    /* Pre-shared by all ranks. NULL: DML_KEY, else none: then everything stays on loopback. Make it long and
       random (`openssl rand -hex 32`): whoever sees a proof can try guesses. Any two ranks prove to each
       other that they have it; what they send afterwards is neither encrypted nor signed: for that put the
       job on a private network or in a tunnel. */
    const char *key;
    /* Leave loopback without a key all the same; so does DML_INSECURE=1. */
    bool allow_insecure;
    /* The address, or the network interface ("eth0"), to use of this host's several. NULL: rank 0 listens on
       all (or on loopback, if master_addr is), the other ranks on the one that reaches rank 0. */
    const char *bind_addr;
    size_t segment_bytes; /* messages are cut into pieces of this size, the same on all ranks. 0: 256 KiB */
    int max_requests;     /* how many may be started and not yet waited for. 0: 256; at most 2^20 */
    dml_allocator allocator; /* zero: malloc and free. Nothing is allocated after dml_comm_open */
    dml_log_callback log;    /* NULL: silence. Called by the background thread too */
    void *log_user;
} dml_comm_options;

/* Opens this rank's end and returns when all ranks have met: rank 0 listens on master_addr:master_port, the
   others go there, in any order of starting. NULL options: all from the environment. Returns NULL only when
   there is no memory for the communicator itself; any other failure is on it, as with dml_open:

       dml_comm *comm = dml_comm_open(NULL);
       dml_comm_all_reduce(comm, gradient, count, DML_F32, DML_MEAN);
       if (dml_comm_status(comm)) { fputs(dml_comm_error(comm), stderr); return 1; }

   Who else comes to the ports (scanners, other protocols, wrong keys) is dropped and counted. */
#define dml_comm_open DML__ABI(dml_comm_open)
DML_API dml_comm *dml_comm_open(const dml_comm_options *options);

/* Finishes what was started, says goodbye and releases everything. NULL is fine. In a fork's child it only
   releases the child's copy. */
DML_API void dml_comm_close(dml_comm *comm);

/* The first error, which sticks: once a communicator has failed, on whichever rank it began, each later call
   returns the same status at once. It names the rank that is to blame; "" and DML_OK while there is none.
   NULL, which dml_comm_open returns when memory is short, reads as that. */
DML_API const char *dml_comm_error(const dml_comm *comm);
DML_API dml_status dml_comm_status(const dml_comm *comm);

/* 0 and 1 for NULL. */
DML_API int dml_comm_rank(const dml_comm *comm);
DML_API int dml_comm_world_size(const dml_comm *comm);

/* How many connections were dropped during the rendezvous because they weren't this job's. */
DML_API int dml_comm_strangers(const dml_comm *comm);

/* The collectives. All ranks make the same calls in the same order, with the same count, dtype, op and root;
   what doesn't match ends in an error that names two ranks and their calls. Each call returns when this
   rank's part is done, after whatever was started before it; `count` may be 0. Results are bitwise the same
   on all ranks. After an error the contents of the output are undefined. Pointers need the alignment of their
   dtype. Reductions take DML_F32, DML_F64, DML_I32 and DML_I64; the others any dtype. */

/* data[i] = op over all ranks of data[i], in place. */
DML_API dml_status dml_comm_all_reduce(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                       dml_reduce_op op);

/* data[i] = root's data[i]. */
DML_API dml_status dml_comm_broadcast(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int root);

/* out (world_size, count): every rank's `in` (count), in the order of the ranks. `in` may be this rank's
   place in `out`; otherwise they must not overlap. */
DML_API dml_status dml_comm_all_gather(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out);

/* out (count_per_rank) = op over all ranks of row `rank` of `in` (world_size, count_per_rank). `in` is also
   where partial results are kept: its contents are undefined afterwards. `out` may be any row of `in`;
   otherwise they must not overlap. */
DML_API dml_status dml_comm_reduce_scatter(dml_comm *comm, void *in, size_t count_per_rank, dml_dtype dtype,
                                           dml_reduce_op op, void *out);

/* Returns when every rank has called it. */
DML_API dml_status dml_comm_barrier(dml_comm *comm);

/* From one rank to another, which must call dml_comm_receive with the same count and dtype. May return before
   the other has; a long message waits for it. */
DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to);
DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from);

/* Starts an all-reduce and returns at once; `data` is the communicator's until dml_comm_wait has returned.
   What was started runs in that order on the communicator's background thread (with DML_NO_THREADS: right
   here). Bad arguments show at dml_comm_wait. NULL when the communicator has failed or max_requests were
   started and not yet waited for, done or not: that is an error, DML_ERROR_STATE, on all ranks. */
DML_API dml_request *dml_comm_all_reduce_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                               dml_reduce_op op);

/* True when dml_comm_wait would return at once, with an error or without. */
DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request);

/* Waits for one request, in any order, takes it back and returns what became of it. Each request is waited
   for once: a second time is DML_ERROR_STATE (as long as it hasn't been given out again), a request of
   another communicator DML_ERROR_ARGUMENT. NULL returns the communicator's status. */
DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request);

/* Waits for everything that was started and takes all requests back, also those that nobody knows any more;
   none may be waited for after that. Returns the communicator's status. */
DML_API dml_status dml_comm_wait_all(dml_comm *comm);

#endif
