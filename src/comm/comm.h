/* comm.h: a communicator: ranks that know each other, and the collectives between them.

   Every call has two forms: dml_comm_x returns when this rank's part is done; dml_comm_x_start returns a
   request at once, and any number of them are under way together, in any order, until dml_comm_wait. */
#ifndef DML_COMM_COMM_H
#define DML_COMM_COMM_H

#include "base/allocator.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/status.h"

/* One rank's end of a group of ranks. Ranks are processes on any hosts, or threads of one process with a
   communicator each. A communicator, and those that were split from it, are used by one thread at a time (a
   helper thread of theirs is their own business); communicators that were opened apart don't meet.

   After fork() the communicator is still the parent's alone. In the child every call is refused with
   DML_ERROR_STATE. dml_comm_close returns that, too, but lets go of the child's copy, and leaves the parent's
   job as it is. A child that lives on should call it, or exec: as long as it holds the connections, the other
   ranks don't see its parent die, and find out by their deadlines only. */
typedef struct dml_comm dml_comm;

/* An operation that was started and not yet waited for. It belongs to its communicator. */
typedef struct dml_request dml_request;

/* What becomes of the ranks' elements. Sums and products of integers wrap around; the mean of integers is
   their (wrapped) sum divided by the world size, rounded towards zero. Those of f16 and bf16 are computed in
   f32 and rounded to nearest, ties to even, at each rank that adds one. A NaN on any rank makes the minimum
   and the maximum NaN, and -0 is less than 0. The numbers are written to wires: append, never reorder.
   dml_comm_add_reduce gives more. */
typedef enum dml_reduce_op {
    DML_SUM,
    DML_MEAN,
    DML_MIN,
    DML_MAX,
    DML_PROD,
    DML__REDUCE_OP_COUNT,
    DML__REDUCE_OP_LARGEST = 127 /* numbers of dml_comm_add_reduce's are values of the type in C++ too */
} dml_reduce_op;

/* into[i] = a user's own op of into[i] and from[i], which must be associative and commutative: who comes
   first, and which partial results meet, is the collective's choice. `into` and `from` (count) don't overlap
   and have the alignment of their dtype. Called by whichever thread makes progress, with pieces of the array
   of any count, which begin anywhere: what belongs together must be one element. It must not call the
   communicator. */
typedef void (*dml_reduce_function)(void *into, const void *from, size_t count, dml_dtype dtype, void *user);

/* What a receive or a probe has found. */
typedef struct dml_message {
    int source; /* rank in the group */
    int tag;
    size_t count;
    dml_dtype dtype;
} dml_message;

#define DML_ANY_SOURCE (-1)
#define DML_ANY_TAG (-1)

typedef struct dml_comm_options {
    /* world_size 0: both from RANK and WORLD_SIZE; if both are unset, from what Open MPI, MPICH or Slurm told
       the processes that it launched; otherwise 0 and 1. */
    int rank, world_size;
    /* Where rank 0 listens, a name or an address (a link-local one with this host's name of the interface,
       "fe80::1%eth0"). NULL and 0: MASTER_ADDR, else 127.0.0.1 (which has to be said when a launcher spread
       the ranks over hosts); MASTER_PORT, else 29500. A name that isn't known yet the others
       ask for until the timeout, rank 0 itself only where its name server doesn't answer. */
    const char *master_addr;
    int master_port;
    /* How long the rendezvous may take, and how long an operation may go without any progress, here or at the
       ranks that it waits for. 0: DML_TIMEOUT, else 30. When it passes, finding out which rank is to blame
       takes a quarter of it more, at most 1 s: whoever doesn't answer then, and is waited for, is held for
       frozen, also if it only computes and has moved since, as nobody knows. With a progress thread (not
       under MPI, unless something is under way) it answers, and is to blame only if nothing has moved there
       for so long either, it is in no call, and hasn't started what is waited for. */
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
    /* Messages are cut into pieces of this size, the same on all ranks. 0: 256 KiB, or 512 KiB between
       processes of one machine over sockets that were measured to be about as fast as a loopback's. */
    size_t segment_bytes;
    /* How many may be started and not yet waited for, the same on all ranks. 0: 256; at most 2^20. Each takes
       about 17 KB, of which 16 are scratch that few calls touch, and 800 bytes for each rank of the world. */
    int max_requests;
    /* Algorithms by name, for tests and measurements: "ring" for whatever has one of that name, or
       "all_reduce=ring,broadcast=chain", the same on all ranks. NULL: DML_COMM_ALGO, else the cheapest. */
    const char *algorithm;
    /* What lies between ranks of one host: "tcp", or "shm" for memory that they share. NULL:
       DML_COMM_TRANSPORT, else "shm", which is TCP where memory can't be shared. Over "shm" what is large and
       only moved is read straight from the sender's memory (Linux's process_vm_readv) where the system lets
       ranks do that and it takes less than two copies, which each rank tries when it opens; DML_COMM_CMA=1
       has it read without a trial, DML_COMM_CMA=0 copied. */
    const char *transport;
    /* What a message between two ranks takes, for the choice of algorithms, instead of measuring:
       microseconds one way, and Gbit/s; both or neither, rank 0's count. 0: DML_COMM_LATENCY and
       DML_COMM_BANDWIDTH, else rank 0 measures when it opens (20 ms, on slow links 60; up to four times as
       long where the other is on its machine and messages are held up). */
    double link_latency_us, link_bandwidth_gbit;
    /* Seconds of dml_comm_tune at the end of opening; rank 0's count. 0: DML_COMM_TUNE, else none. Ranks of
       dml_comm_open_local call it themselves. */
    double tune_s;
    /* Sums are added in the order of the ranks, (((0 + 1) + 2) + ...), by whatever algorithm and transport,
       however they are cut and come: the same bits in every run with as many ranks, but for which NaN a NaN
       is. Algorithms that add in another order are passed over, also where they are named. The same on all
       ranks; so does DML_COMM_DETERMINISTIC=1. */
    bool deterministic;
    /* Who carries the operations out: "dml", sockets and memory of our own, or "mpi", whose launcher then
       says who this rank is. NULL: DML_COMM_ENGINE, else MPI if this was compiled with -DDML_MPI and an MPI
       launcher started the program without RANK and WORLD_SIZE being set. MPI is initialised if the program
       hasn't done so, and then finalised when the communicator closes (not after an error: its launcher ends
       the job), so who opens several initialises it first. Everything above but rank, world_size, timeout_s
       and max_requests is of no interest to MPI.
       "nccl", in what was compiled with -DDML_NCCL (and -ldl): "dml", and collectives of arrays in a GPU's
       memory go through NCCL, on the device that is current when this opens: that of a context on "cuda:N"
       that was opened just before. They begin behind CUDA's default stream, or dml_comm_set_stream's, and
       their result is there when they have been waited for; all ranks start those of all communicators in one
       order, and give arrays of one kind, also of no elements. The job fails with a sentence for what NCCL
       has not: sends and receives, all_to_all in place, functions of yours, means of integers,
       all_reduce_leaves, and sums in a deterministic job. Which NaN and which zero a minimum or a maximum is,
       NCCL says. timeout_s must cover the longest of them. */
    const char *engine;
    /* A thread of the communicator's own makes progress while no call does. Otherwise what was started moves
       in calls only, whichever they are. */
    bool progress_thread;
    /* Keeps a timeline, written when the communicator is closed and by dml_comm_trace_write: this name with
       ".RANK" behind it. All ranks ask for one, or none, else none opens. NULL: DML_TRACE, else none; "":
       none. */
    const char *trace;
    int trace_events; /* the last so many are kept, of 150 bytes each; 0: 65536 */
    bool trace_steps; /* also each step of the operations, if DML_TRACE_STEPS=1 doesn't say so already */
    /* Zero: malloc and free. Only opening, dml_comm_split and dml_comm_tune allocate. */
    dml_allocator allocator;
    dml_log_callback log; /* NULL: silence. Called by the background thread too */
    void *log_user;
} dml_comm_options;

/* Opens this rank's end and returns when all ranks have met: rank 0 listens on master_addr:master_port, the
   others go there, in any order of starting. Several may be opened, one after the other, at the same address,
   where rank 0 listens until all have met. NULL options: all from the environment. Returns NULL only when
   there is no memory for the communicator itself; any other failure is on it, as with dml_open:

       dml_comm *comm = dml_comm_open(NULL);
       dml_comm_all_reduce(comm, gradient, count, DML_F32, DML_MEAN);
       if (dml_comm_status(comm)) { fputs(dml_comm_error(comm), stderr); return 1; }

   Ranks whose world_size, segment_bytes or max_requests differ, or of which two are the same rank, all fail
   with one sentence, which says who has what: most are right, and of as many rank 0 is. For those who are yet
   to come rank 0 waits a quarter of the timeout for that, at most 1 s. (A second rank 0 finds the port in
   use, and the others lack the rank that it should have been.)

   Who else comes to the ports (scanners, other protocols, wrong keys) is dropped and counted. A rank that is
   refused for its key or its version may have met a stranger on rank 0's port: it tries a few times more, for
   a quarter of the timeout, at most 5 s, and fails with that reason then. */
#define dml_comm_open DML__ABI(dml_comm_open)
DML_API dml_comm *dml_comm_open(const dml_comm_options *options);

/* Ranks that are threads of one process: makes all `world` communicators of a job at once, without any
   socket, for the caller to hand out to its threads; each is closed by itself. (Contexts of such ranks divide
   the processors by dml_options.threads, which nobody else does for them.) Of the options, those of the
   rendezvous don't matter. DML_ERROR_MEMORY or DML_ERROR_ARGUMENT: none was made. */
DML_API dml_status dml_comm_open_local(dml_comm **comms /* (world) */, int world,
                                       const dml_comm_options *options);

/* A communicator of those ranks of `comm` that give the same `color`, in the order of their `key` (of equal
   keys: of their ranks); a collective of all of them. It shares its parent's connections, its deadline and
   its error, and lives on after its parent is closed. NULL for a negative color, or after an error, which the
   parent has. */
DML_API dml_comm *dml_comm_split(dml_comm *comm, int color, int key);

/* Closes one communicator; the last one of a job finishes what was started, waits until all ranks close too
   (at most the timeout, and half as long but no more than 2 s while others may search for a culprit), and
   releases everything. Of those closed before, the last 16 stay as closed ones until then, since other ranks
   may ask what was called in them. Returns the communicator's status, of which a message that was sent to
   this rank and that nobody received is one; that a rank dies or is frozen when all that this one took part
   in has ended is none. DML_ERROR_IO, if there is no other: the timeline (options.trace) can't be written.
   NULL is fine. In a fork's child it only releases the child's copy. Whatever uses the communicator ends
   before; a trainer whose strategy was given it is refused every step that uses it with DML_ERROR_STATE
   (local SGD: the next average; Downpour has a communicator of its own), and destroyed as ever; some memory
   stays until then. */
DML_API dml_status dml_comm_close(dml_comm *comm);

/* The same, and writes the sentence that goes with the status, of which there is no dml_comm_error any more:
   "" for DML_OK, else at most `bytes` of it with the 0 at the end. What shows only when a communicator closes
   is said here and in the log. */
DML_API dml_status dml_comm_close_error(dml_comm *comm, char *text /* (bytes) */, size_t bytes);

/* The first error, which sticks: once a communicator has failed, on whichever rank it began, each later call
   returns the same status at once. It names the rank that is to blame; "" and DML_OK while there is none.
   NULL, which dml_comm_open returns when memory is short and dml_comm_split for a negative color, reads as a
   communicator that failed with DML_ERROR_ARGUMENT, and so do calls with it. */
DML_API const char *dml_comm_error(const dml_comm *comm);
DML_API dml_status dml_comm_status(const dml_comm *comm);

/* The rank that it blames: who died, froze, or made a call that doesn't fit the others'. The same on all
   ranks that are left, unless several failed at once. Of different calls it is the first rank that isn't in
   the one that most are in, of those who make it within a quarter of the timeout, at most 1 s (of calls that
   as many are in, rank 0's counts, or that of the first rank that is in one of them); but of a message that
   doesn't fit its receive, the sender. -1: none of this communicator's, nobody in particular, since ranks
   wait for each other in the same calls or the network is slow, or there is no error. Asked before
   dml_comm_close. */
DML_API int dml_comm_culprit(const dml_comm *comm);

/* Ends the job from here, for a reason of the caller's own ("can't read data.bin"): this rank's calls from
   now on and the others', those that they are in too, return DML_ERROR_PEER with "rank 2 of 8 gave up: " and
   the reason, in all communicators of the job, and closing waits for nobody. It doesn't wait itself. A job
   that has failed before keeps its first error. NULL: no reason. Returns the communicator's status;
   DML_ERROR_STATE, and nothing is ended, for one that is closed and in a fork's child. */
DML_API dml_status dml_comm_abort(dml_comm *comm, const char *reason);

/* 0 and 1 for NULL. */
DML_API int dml_comm_rank(const dml_comm *comm);
DML_API int dml_comm_world_size(const dml_comm *comm);

/* Writes a few lines of text: the ranks and what lies between them, what was measured, which algorithms calls
   of which sizes get, and the sizes and times that hold (under MPI the ranks and the timeout), at most
   `bytes` with the 0 at the end. Returns the bytes that all of it takes, without the 0. Rank 0 says the same
   to its log when it opens. */
DML_API size_t dml_comm_describe(const dml_comm *comm, char *text /* (bytes) */, size_t bytes);

/* Tries the algorithms of every collective between these ranks, and gives calls those that took least from
   here on, in place of those that should by a model of the links: for jobs that are long, and machines that
   no model knows. A collective; about `seconds` in all (10 do for most sizes between a few ranks; the longest
   that a rank asks for counts), in which small sizes are tried first: larger ones, of up to 16 MiB, for which
   there is no time, keep what they had. Groups that are split from it later and have as many ranks begin with
   the same. Takes and gives back 32 MiB. What is under way meanwhile is measured along, so wait for it. Calls
   that options.algorithm names keep that. Nothing is done, and that is DML_OK, under MPI and for one rank
   alone. DML_ERROR_ARGUMENT, which ends the job: no time, or more than an hour. */
DML_API dml_status dml_comm_tune(dml_comm *comm, double seconds);

/* How many connections were dropped during the rendezvous because they weren't this job's. */
DML_API int dml_comm_strangers(const dml_comm *comm);

/* What went over one kind of connection: frames of payload, without headers. */
typedef struct dml_comm_traffic {
    uint64_t bytes_sent, bytes_received;
    uint64_t messages_sent, messages_received; /* pieces of a message of at most segment_bytes each */
} dml_comm_traffic;

/* What this rank of the job has done since it was opened, in all of its communicators. */
typedef struct dml_comm_stats {
    uint64_t started, done;           /* operations; those that failed are never done */
    dml_comm_traffic tcp, shm, local; /* by what lies between the two ranks; local: threads of one process */
    double waited_s;                  /* that calls had nothing else to do than wait, spinning or asleep */
    uint64_t slept;                   /* times, in calls or in the helper thread */
    uint64_t early;                   /* frames that came before they were asked for, and were kept */
    uint64_t grants;                  /* sent: leave for another rank to send a long message */
    int strangers;                    /* as dml_comm_strangers */
} dml_comm_stats;

/* Adding these up takes no lock and no look at the clock that there wouldn't be anyway. Zeros for a
   communicator of NULL; stats of NULL is fine. */
DML_API void dml_comm_get_stats(dml_comm *comm, dml_comm_stats *stats);

/* Writes the timeline as it is now, in the format of Chrome's tracing (chrome://tracing, ui.perfetto.dev): a
   group of rows for the rank, and in them what it did from the start of each operation to its end, side by
   side where operations overlap. The clocks of all ranks are rank 0's, compared once at opening, so that
   the files of a job make one picture (dmlrun --trace puts them together). DML_ERROR_STATE: no trace was
   asked for; DML_ERROR_IO: it can't be written; neither ends the job. */
DML_API dml_status dml_comm_trace_write(dml_comm *comm);

/* Adds a span of the caller's own, in a row of its own: from `begin` to `end` (dml_seconds). They must not
   overlap partly. `name` has to stay until the communicator is closed. Nothing where no trace was asked for.
 */
DML_API void dml_comm_trace_span(dml_comm *comm, const char *name, double begin, double end);

/* Starts a helper thread that makes progress while no call does, as options.progress_thread does; nothing if
   there is one. */
DML_API dml_status dml_comm_start_progress_thread(dml_comm *comm);

/* For a rank that serves others, and goes on without them: from now on its sends to and receives from a rank
   that died or closed end with DML_ERROR_PEER, each by itself, and nothing else does, in all communicators of
   the job; and a receive in this one that no message has come for may take any time. Everything else fails as
   it always does, collectives with such a rank too. At this rank alone; nothing changes under MPI. */
DML_API void dml_comm_outlive(dml_comm *comm);

/* What is started from now on goes before what has a lower priority, where both could go. 0 at first. */
DML_API void dml_comm_set_priority(dml_comm *comm, int priority);

/* The CUDA stream (a cudaStream_t) whose work is done before collectives that are started from now on look at
   arrays in a GPU's memory, of engine "nccl". NULL, at first: CUDA's default stream. */
DML_API void dml_comm_set_stream(dml_comm *comm, void *stream);

/* A number that stands for `function` wherever a dml_reduce_op is asked for, in this communicator and those
   split from it later. All ranks add theirs in the same order, since only the number is compared. When 16
   have been added, a number that every call refuses. */
DML_API dml_reduce_op dml_comm_add_reduce(dml_comm *comm, dml_reduce_function function, void *user);

/* The collectives. All ranks of a communicator start the same calls in the same order, with the same count,
   dtype, op and root; what doesn't match ends in an error that names two ranks and their calls: at once where
   a call waits for the other's; a rank that has only something to send (two that are each the root of a
   broadcast) is told by the next call that waits for the other, or by dml_comm_close. `count` may be 0.
   Results of the reductions are bitwise the same on all ranks that get them. After an error the contents of
   the output are undefined. Pointers need the alignment of their dtype. Reductions take every dtype. Arrays
   that a call reads and writes at different places must not overlap, unless it says so. */

/* data[i] = op over all ranks of data[i], in place. */
DML_API dml_status dml_comm_all_reduce(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                       dml_reduce_op op);
DML_API dml_request *dml_comm_all_reduce_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                               dml_reduce_op op);

/* A sum whose bits don't depend on how many ranks there are, nor on who has what. What is summed are `total`
   arrays, the leaves of one binary tree: neighbours are added in pairs, the sums in pairs again, and the last
   one, where it has no neighbour, goes up as it is: ((0 + 1) + (2 + 3)) + 4. leaves[i] is leaf i (count)
   where this rank has it, NULL where another has it. Each must be at one rank, whichever, and a rank may have
   none; a leaf that is missing, or that two ranks have, is an error at all ranks. So the gradients of 8 parts
   of a batch give the same bits on 1, 2, 3 or 8 ranks.

   `out` (count) gets the sum, on every rank; it may be one of this rank's leaves, whose contents are
   undefined afterwards. The mean is over the leaves. `owners` (total) is working memory; it says to the ranks
   who has what, so a call takes one small all-reduce more than its data does. All arrays begin at a multiple
   of the element's size, and must not change, nor `leaves`, until the call is over. Not with MPI. Where each
   of m ranks has as many leaves, which follow each other, as others have, the data takes 2 (m - 1) / m count
   elements from each rank, as the best all-reduces do; see comm/leaves.h. */
DML_API dml_status dml_comm_all_reduce_leaves(dml_comm *comm, void *const *leaves /* (total) */,
                                              int64_t *owners /* (total) */, size_t total, void *out,
                                              size_t count, dml_dtype dtype, dml_reduce_op op);
DML_API dml_request *dml_comm_all_reduce_leaves_start(dml_comm *comm, void *const *leaves /* (total) */,
                                                      int64_t *owners /* (total) */, size_t total, void *out,
                                                      size_t count, dml_dtype dtype, dml_reduce_op op);

/* dml_comm_all_reduce on the root only; elsewhere the contents of `data` are undefined afterwards. */
DML_API dml_status dml_comm_reduce(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                   dml_reduce_op op, int root);
DML_API dml_request *dml_comm_reduce_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                           dml_reduce_op op, int root);

/* data[i] = root's data[i]. */
DML_API dml_status dml_comm_broadcast(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int root);
DML_API dml_request *dml_comm_broadcast_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                              int root);

/* out (count) = row `rank` of the root's `in` (world_size, count), which only the root reads. At the root
   `out` may be its row of `in`. */
DML_API dml_status dml_comm_scatter(dml_comm *comm, const void *in, size_t count, dml_dtype dtype, void *out,
                                    int root);
DML_API dml_request *dml_comm_scatter_start(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                            void *out, int root);

/* The root's out (world_size, count) = every rank's `in` (count); only the root writes `out`. At the root
   `in` may be its row of `out`. */
DML_API dml_status dml_comm_gather(dml_comm *comm, const void *in, size_t count, dml_dtype dtype, void *out,
                                   int root);
DML_API dml_request *dml_comm_gather_start(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                           void *out, int root);

/* out (world_size, count): every rank's `in` (count), in the order of the ranks. `in` may be this rank's
   place in `out`. */
DML_API dml_status dml_comm_all_gather(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out);
DML_API dml_request *dml_comm_all_gather_start(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                               void *out);

/* out (count_per_rank) = op over all ranks of row `rank` of `in` (world_size, count_per_rank). `in` is also
   where partial results are kept: its contents are undefined afterwards. `out` may be this rank's row of
   `in`. */
DML_API dml_status dml_comm_reduce_scatter(dml_comm *comm, void *in, size_t count_per_rank, dml_dtype dtype,
                                           dml_reduce_op op, void *out);
DML_API dml_request *dml_comm_reduce_scatter_start(dml_comm *comm, void *in, size_t count_per_rank,
                                                   dml_dtype dtype, dml_reduce_op op, void *out);

/* Row r of out (world_size, count) = row `rank` of rank r's `in` (world_size, count). `out` may be `in`, at
   all ranks or at none: then what comes goes through 16 KiB at a time, which takes longer. */
DML_API dml_status dml_comm_all_to_all(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out);
DML_API dml_request *dml_comm_all_to_all_start(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                               void *out);

/* The same with parts of different sizes: rank r's has counts[r] elements and begins at element offsets[r] of
   the array that has one for each rank. All ranks give the same `counts` (world_size); where parts lie
   in its own array each says by itself. Both are read before the call returns. `offsets` NULL: one behind the
   other. Parts may overlap in an `in` that is const alone. */
DML_API dml_request *dml_comm_scatterv_start(dml_comm *comm, const void *in, const size_t *counts,
                                             const size_t *offsets, dml_dtype dtype, void *out, int root);
DML_API dml_request *dml_comm_gatherv_start(dml_comm *comm, const void *in, const size_t *counts,
                                            const size_t *offsets, dml_dtype dtype, void *out, int root);
DML_API dml_request *dml_comm_all_gatherv_start(dml_comm *comm, const void *in, const size_t *counts,
                                                const size_t *offsets, dml_dtype dtype, void *out);
DML_API dml_request *dml_comm_reduce_scatterv_start(dml_comm *comm, void *in, const size_t *counts,
                                                    const size_t *offsets, dml_dtype dtype, dml_reduce_op op,
                                                    void *out);
DML_API dml_status dml_comm_scatterv(dml_comm *comm, const void *in, const size_t *counts,
                                     const size_t *offsets, dml_dtype dtype, void *out, int root);
DML_API dml_status dml_comm_gatherv(dml_comm *comm, const void *in, const size_t *counts,
                                    const size_t *offsets, dml_dtype dtype, void *out, int root);
DML_API dml_status dml_comm_all_gatherv(dml_comm *comm, const void *in, const size_t *counts,
                                        const size_t *offsets, dml_dtype dtype, void *out);
DML_API dml_status dml_comm_reduce_scatterv(dml_comm *comm, void *in, const size_t *counts,
                                            const size_t *offsets, dml_dtype dtype, dml_reduce_op op,
                                            void *out);

/* What this rank has for rank r, in_counts[r] elements of `in` from in_offsets[r] on, goes to rank r, and
   what rank r has for this one, out_counts[r] elements, to `out` from out_offsets[r] on: each must be as many
   as that rank says in its in_counts, or both get DML_ERROR_MISMATCH, one perhaps only from its next call or
   close (under MPI what MPI makes of it). A rank knows its own counts (world_size) only; what others have for
   it dml_comm_all_to_all of the counts tells. They are read before the call returns. Offsets of NULL: one
   part behind the other. `in` and `out` lie apart, and so do the parts of `out`. */
DML_API dml_status dml_comm_all_to_allv(dml_comm *comm, const void *in, const size_t *in_counts,
                                        const size_t *in_offsets, dml_dtype dtype, void *out,
                                        const size_t *out_counts, const size_t *out_offsets);
DML_API dml_request *dml_comm_all_to_allv_start(dml_comm *comm, const void *in, const size_t *in_counts,
                                                const size_t *in_offsets, dml_dtype dtype, void *out,
                                                const size_t *out_counts, const size_t *out_offsets);

/* Returns when every rank has called it. */
DML_API dml_status dml_comm_barrier(dml_comm *comm);
DML_API dml_request *dml_comm_barrier_start(dml_comm *comm);

/* From one rank to another, which must receive it, with the same dtype and room for at least as many
   elements. Messages of one communicator, sender and tag (0 or more) arrive in the order in which they were
   sent. A short message may be over before the other rank has asked for it; a long one waits for it. */
DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to,
                                 int tag);
DML_API dml_request *dml_comm_send_start(dml_comm *comm, const void *data, size_t count, dml_dtype dtype,
                                         int to, int tag);

/* `from` may be DML_ANY_SOURCE and `tag` DML_ANY_TAG; `message` (NULL: not wanted) is what came, of at most
   `count` elements. Of a started one, dml_comm_wait_message says it. */
DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from,
                                    int tag, dml_message *message);
DML_API dml_request *dml_comm_receive_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                            int from, int tag);

/* Whether there is a message that a receive would take now; looks for at most `seconds` (0: once). It has no
   other deadline, and says nothing of ranks that have died: a receive does. DML_ERROR_ARGUMENT, as a receive,
   for a rank or tag that can't be. */
DML_API bool dml_comm_probe(dml_comm *comm, int from, int tag, double seconds, dml_message *message);

/* Requests belong to the communicator that gave them out, and the arrays of their calls too until they have
   been waited for. NULL is given out when the communicator has failed, when the arguments were bad, or when
   max_requests were started and not yet waited for: an error on all ranks.

   True when dml_comm_wait would return at once, with an error or without. Makes progress. */
DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request);

/* Waits for one request, in any order, takes it back and returns what became of it. Each request is waited
   for once: a second time is DML_ERROR_STATE (as long as it hasn't been given out again), a request of
   a communicator that has nothing to do with this one (both weren't split off from one, nor one from the
   other), DML_ERROR_ARGUMENT. NULL returns the communicator's status. */
DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request);
DML_API dml_status dml_comm_wait_message(dml_comm *comm, dml_request *request, dml_message *message);

/* Waits until one of `count` requests (NULL among them are passed over) is done, takes it back, sets it to
   NULL and returns its index; -1 when all are NULL or the communicator has failed. `message` (NULL: not
   wanted) is what came of a receive; its source is -1 where the request ended with an error
   (dml_comm_outlive). Each request has its own deadline, whatever comes for the others: one that stands still
   ends the job, if the rank that it waits for, or of a collective any member, is frozen or away. */
DML_API int dml_comm_wait_any(dml_comm *comm, dml_request **requests, int count);
DML_API int dml_comm_wait_any_message(dml_comm *comm, dml_request **requests, int count,
                                      dml_message *message);

/* Waits for everything that was started, on this communicator and on those that share its connections, and
   takes all requests back, also those that nobody knows any more; none may be waited for after that. Returns
   the communicator's status. */
DML_API dml_status dml_comm_wait_all(dml_comm *comm);

/* Takes back a receive that no message has come for: true, and it need not be waited for. Everything else
   can't be taken back, since other ranks count on it: false. */
DML_API bool dml_comm_cancel(dml_comm *comm, dml_request *request);

#endif
