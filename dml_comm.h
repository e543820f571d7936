/* dml_comm.h 0.1.0. DO NOT EDIT, generated from src/ by make amalgamate. */
/* dml_comm.h - collectives over sockets, and on them the ways to distribute training.

   Useful alone: the collectives know no tensors. Included after dml.h it also brings the sync strategies that
   make a dml_trainer distributed. As with dml.h, define DML_IMPLEMENTATION in exactly one source file, the
   same one where you implement dml.h if you use both. */
#ifndef DML_COMM_H
#define DML_COMM_H

#ifdef _WIN32
#error                                                                                                       \
    "dml_comm.h needs POSIX sockets, which Windows doesn't have: use dml.h alone there, or build for WSL or Cygwin"
#endif

/* ---- base/platform.h ---- */

/* platform.h: what every other file stands on: version, linkage, compiler and OS differences. */
#ifndef DML_BASE_PLATFORM_H
#define DML_BASE_PLATFORM_H

/* clock_gettime, sched_getaffinity and the sockets are POSIX or GNU, which -std=c99 hides. This takes effect
   when the header comes before any system header; elsewhere compile with -D_GNU_SOURCE. */
#if (defined(DML_IMPLEMENTATION) || defined(DML__SEPARATE)) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

/* On Windows, mingw's own printf, which knows %zu and %lld; Microsoft's older ones don't. In the
   implementation this too takes effect when the header comes before any system header. */
#if defined(__MINGW32__) && (defined(DML_IMPLEMENTATION) || defined(DML__SEPARATE))
#ifndef __USE_MINGW_ANSI_STDIO
#define __USE_MINGW_ANSI_STDIO 1
#endif
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DML_VERSION_MAJOR 0
#define DML_VERSION_MINOR 1
#define DML_VERSION "0.1.0"

/* Linkage. A public function is `DML_API`; define DML_STATIC to keep the whole library inside one
   translation unit. A function shared between the library's own files is `DML__LOCAL`: static in the
   amalgamated headers, external when src/ is built file by file (DML__SEPARATE). */
#ifdef __cplusplus
#define DML__EXTERN_C extern "C"
#else
#define DML__EXTERN_C extern
#endif
#if defined(__GNUC__)
#define DML__UNUSED __attribute__((unused))
#define DML__NOINLINE __attribute__((noinline))
#define DML__PREFETCH(address) __builtin_prefetch(address)
#if defined(__MINGW32__) && !defined(__clang__)
#define DML__PRINTF(position, first) __attribute__((format(gnu_printf, position, first)))
#else
#define DML__PRINTF(position, first) __attribute__((format(printf, position, first)))
#endif
#else
#define DML__UNUSED
#define DML__NOINLINE
#define DML__PREFETCH(address) (void)(address)
#define DML__PRINTF(position, first)
#endif
#ifdef DML_STATIC
#define DML_API DML__UNUSED static
#else
#define DML_API DML__EXTERN_C
#endif
#ifdef DML__SEPARATE
#define DML__LOCAL DML__EXTERN_C
#else
#define DML__LOCAL DML__UNUSED static
#endif

/* Around code in which no loop is worth the passes of -O2: argument checks, plans, tasks that call kernels,
   and everything above the kernels. gcc's -Og takes a third of their time. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DML__DRIVERS_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Og\")")
#define DML__DRIVERS_END _Pragma("GCC pop_options")
#else
#define DML__DRIVERS_BEGIN
#define DML__DRIVERS_END
#endif

/* For the public headers, which a C++ program may compile with -Wold-style-cast. */
#ifdef __cplusplus
#define DML__CAST(type, value) static_cast<type>(value)
#else
#define DML__CAST(type, value) ((type)(value))
#endif

#if defined(__cplusplus) || defined(__GNUC__)
#define DML__RESTRICT __restrict
#else
#define DML__RESTRICT restrict
#endif

/* The entry points carry the version and the switches in their link name, so that two translation units
   compiled with different ones fail to link instead of corrupting memory. */
#if defined(DML_NO_THREADS) && defined(DML_NO_STDIO)
#define DML__ABI(name) name##_v0_1_no_threads_no_stdio
#elif defined(DML_NO_THREADS)
#define DML__ABI(name) name##_v0_1_no_threads
#elif defined(DML_NO_STDIO)
#define DML__ABI(name) name##_v0_1_no_stdio
#else
#define DML__ABI(name) name##_v0_1
#endif

/* Checks of the library's own invariants; never of a caller's input, which gets a status. */
#ifndef DML_ASSERT
#include <assert.h>
#define DML_ASSERT(condition) assert(condition)
#endif

#endif

/* ---- base/status.h ---- */

/* status.h: how the library says that something went wrong. */
#ifndef DML_BASE_STATUS_H
#define DML_BASE_STATUS_H

/* X(name, what it means) */
#define DML__STATUS_LIST(X)                                                                                  \
    X(OK, "ok")                                                                                              \
    X(ERROR_ARGUMENT, "an argument is out of range or doesn't fit the others")                               \
    X(ERROR_SHAPE, "tensor shapes don't fit each other")                                                     \
    X(ERROR_MEMORY, "no memory left")                                                                        \
    X(ERROR_DEVICE, "the device is missing or failed")                                                       \
    X(ERROR_IO, "a file can't be read or written")                                                           \
    X(ERROR_FORMAT, "a file or message is not what it should be")                                            \
    X(ERROR_NETWORK, "a connection failed")                                                                  \
    X(ERROR_TIMEOUT, "a deadline passed")                                                                    \
    X(ERROR_PEER, "another rank failed or left")                                                             \
    X(ERROR_MISMATCH, "ranks made calls that don't match")                                                   \
    X(ERROR_UNSUPPORTED, "this build or device can't do that")                                               \
    X(ERROR_STATE, "the call came at the wrong time")                                                        \
    X(ERROR_NUMBER, "a number that was computed is not finite")

typedef enum dml_status {
#define DML__STATUS_ENUM(name, meaning) DML_##name,
    DML__STATUS_LIST(DML__STATUS_ENUM)
#undef DML__STATUS_ENUM
        DML__STATUS_COUNT
} dml_status;

/* A static sentence for a status, such as "no memory left". */
DML_API const char *dml_status_string(dml_status status);

#endif

/* ---- base/dtype.h ---- */

/* dtype.h: the element types of tensors, files and messages. */
#ifndef DML_BASE_DTYPE_H
#define DML_BASE_DTYPE_H

/* X(NAME, "name", bytes). The numbers are written to files and wires: append, never reorder. */
#define DML__DTYPE_LIST(X)                                                                                   \
    X(F32, "f32", 4)                                                                                         \
    X(F64, "f64", 8)                                                                                         \
    X(I32, "i32", 4)                                                                                         \
    X(I64, "i64", 8)                                                                                         \
    X(U8, "u8", 1)                                                                                           \
    X(BF16, "bf16", 2)                                                                                       \
    X(F16, "f16", 2)                                                                                         \
    X(I8, "i8", 1)

typedef enum dml_dtype {
#define DML__DTYPE_ENUM(NAME, name, bytes) DML_##NAME,
    DML__DTYPE_LIST(DML__DTYPE_ENUM)
#undef DML__DTYPE_ENUM
        DML__DTYPE_COUNT
} dml_dtype;

/* Bytes of one element; 0 for a number that is no dtype. */
DML_API size_t dml_dtype_size(dml_dtype dtype);

/* "f32", ...; "?" for a number that is no dtype. */
DML_API const char *dml_dtype_name(dml_dtype dtype);

#endif

/* ---- base/allocator.h ---- */

/* allocator.h: where the host program wants the library's memory to come from. */
#ifndef DML_BASE_ALLOCATOR_H
#define DML_BASE_ALLOCATOR_H

/* An allocator of the host program. `allocate` returns at least `bytes` bytes aligned for any C type, or
   NULL; `release` takes back what `allocate` gave. Both may be called from the thread that calls into the
   library only. All-zero means malloc and free. */
typedef struct dml_allocator {
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *memory);
    void *user;
} dml_allocator;

#endif

/* ---- base/log.h ---- */

/* log.h: what the library has to say, said only to a callback that the caller gave. */
#ifndef DML_BASE_LOG_H
#define DML_BASE_LOG_H

typedef enum dml_log_level { DML_LOG_DEBUG, DML_LOG_INFO, DML_LOG_WARNING, DML_LOG_ERROR } dml_log_level;

/* `message` has no newline and is the callee's only during the call. */
typedef void (*dml_log_callback)(void *user, dml_log_level level, const char *message);

#endif

/* ---- base/clock.h ---- */

/* clock.h: monotonic time. */
#ifndef DML_BASE_CLOCK_H
#define DML_BASE_CLOCK_H

/* Seconds since some fixed moment; never runs backwards. */
DML_API double dml_seconds(void);

#endif

/* ---- base/cpu.h ---- */

/* cpu.h: what the processor can do, found at run time. */
#ifndef DML_BASE_CPU_H
#define DML_BASE_CPU_H

/* Two switches leave instruction sets out of the build: DML_NO_AVX512 leaves out AVX-512, DML_NO_AVX leaves
   out AVX2 as well. On 64-bit Windows, gcc doesn't align the stack for 32-byte vectors (gcc's bug 54412), so
   that code for AVX may crash there; its builds are without, unless DML_WINDOWS_AVX is defined: then compile
   with -Wa,-muse-unaligned-vector-move (binutils 2.38 and later), which makes of every aligned move one that
   need not be. clang's builds are as everywhere. */
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__)) && !defined(DML_NO_AVX) &&               \
    !(defined(_WIN64) && !defined(__clang__) && !defined(DML_WINDOWS_AVX))
#define DML__HAS_AVX2 1
#ifndef DML_NO_AVX512
#define DML__HAS_AVX512 1
#endif
#endif

/* Instruction sets that the kernels are written for, weakest first. */
typedef enum dml_isa {
    DML_ISA_SCALAR,
    DML_ISA_NEON,
    DML_ISA_AVX2,   /* with FMA */
    DML_ISA_AVX512, /* F, VL, BW, DQ */
    DML__ISA_COUNT
} dml_isa;

/* "scalar", "neon", "avx2", "avx512" */
DML_API const char *dml_isa_name(dml_isa isa);

/* The best instruction set that this build has, the processor offers and the operating system saves. The
   environment variable DML_ISA ("scalar", "avx2", ...) lowers it; it never raises it. (dml_open refuses one
   that names no instruction set.) It takes 50 ns, most of them
   to search the environment: pools remember what it said when they were made. */
DML_API dml_isa dml_cpu_isa(void);

/* Bytes of the data caches. What the machine doesn't say is 32 KiB, 256 KiB and 0. */
typedef struct dml_caches {
    size_t l1, l2; /* one core's own, or its share */
    size_t l3;     /* what l3_cores share; 0: there is none */
    int l3_cores;  /* at least 1, and no more than this machine shows */
} dml_caches;

/* Asks the processor, or where it doesn't say the operating system; in a virtual machine that takes tens of
   microseconds, so pools remember it too. */
DML_API dml_caches dml_cpu_caches(void);

/* How many processors this process may use, at least 1: those of its affinity mask, and no more than the CPU
   quota of its cgroups has time for (versions 1 and 2; 2.5 processors are 2). Reads a few files of Linux. */
DML_API int dml_cpu_count(void);

/* The part of them for one of several ranks on this machine: dml_cpu_count() / LOCAL_WORLD_SIZE, at least 1.
   dmlrun and torchrun set that environment variable; without it, all. */
DML_API int dml_cpu_share(void);

#endif

/* ---- comm/comm.h ---- */

/* comm.h: a communicator: ranks that know each other, and the collectives between them.

   Every call has two forms: dml_comm_x returns when this rank's part is done; dml_comm_x_start returns a
   request at once, and any number of them are under way together, in any order, until dml_comm_wait. */
#ifndef DML_COMM_COMM_H
#define DML_COMM_COMM_H

/* One rank's end of a group of ranks. Ranks are processes on any hosts, or threads of one process with a
   communicator each. A communicator, and those that were split from it, are used by one thread at a time (a
   helper thread of theirs is their own business); communicators that were opened apart don't meet.

   After fork() the communicator is still the parent's alone. In the child every call is refused with
   DML_ERROR_STATE, but dml_comm_close: that lets go of the child's copy and leaves the parent's job as it is.
   A child that lives on should do so, or exec: as long as it holds the connections, the other ranks don't see
   its parent die, and find out by their deadlines only. */
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
    DML__REDUCE_OP_COUNT
} dml_reduce_op;

/* into[i] = a user's own op of into[i] and from[i], which must be associative and commutative: who comes
   first, and which partial results meet, is the collective's choice. `into` and `from` (count) don't overlap
   and have the alignment of their dtype. Called by whichever thread makes progress, with pieces of the array
   of any count; it must not call the communicator. */
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
    /* Where rank 0 listens, a name or an address. NULL and 0: MASTER_ADDR, else 127.0.0.1 (which has to be
       said when a launcher spread the ranks over hosts); MASTER_PORT, else 29500. */
    const char *master_addr;
    int master_port;
    /* How long the rendezvous may take, and how long an operation may go without any progress, here or at the
       ranks that it waits for. 0: DML_TIMEOUT, else 30. When it passes, finding out which rank is to blame
       takes a quarter of it more, at most 1 s. */
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
    /* How many may be started and not yet waited for, the same on all ranks. 0: 256; at most 2^20. Each takes
       about 350 bytes for each rank of the world. */
    int max_requests;
    /* Algorithms by name, for tests and measurements: "ring" for whatever has one of that name, or
       "all_reduce=ring,broadcast=chain", the same on all ranks. NULL: DML_COMM_ALGO, else the cheapest. */
    const char *algorithm;
    /* What lies between ranks of one host: "tcp", or "shm" for memory that they share. NULL:
       DML_COMM_TRANSPORT, else "shm", which is TCP where memory can't be shared. */
    const char *transport;
    /* What a message between two ranks takes, for the choice of algorithms, instead of measuring:
       microseconds one way, and Gbit/s; both or neither, rank 0's count. 0: DML_COMM_LATENCY and
       DML_COMM_BANDWIDTH, else rank 0 measures when it opens, for 20 ms at most. */
    double link_latency_us, link_bandwidth_gbit;
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
       and max_requests is of no interest to MPI. */
    const char *engine;
    /* A thread of the communicator's own makes progress while no call does. Otherwise what was started moves
       in calls only, whichever they are. */
    bool progress_thread;
    /* Keeps a timeline, written when the communicator is closed and by dml_comm_trace_write: this name with
       ".RANK" behind it. All ranks ask for one, or none. NULL: DML_TRACE, else none; "": none. */
    const char *trace;
    int trace_events; /* the last so many are kept, of 150 bytes each; 0: 65536 */
    bool trace_steps; /* also each step of the operations, if DML_TRACE_STEPS=1 doesn't say so already */
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

/* Ranks that are threads of one process: makes all `world` communicators of a job at once, without any
   socket, for the caller to hand out to its threads; each is closed by itself. Of the options, those of the
   rendezvous don't matter. DML_ERROR_MEMORY or DML_ERROR_ARGUMENT: none was made. */
DML_API dml_status dml_comm_open_local(dml_comm **comms /* (world) */, int world,
                                       const dml_comm_options *options);

/* A communicator of those ranks of `comm` that give the same `color`, in the order of their `key` (of equal
   keys: of their ranks); a collective of all of them. It shares its parent's connections, its deadline and
   its error, and lives on after its parent is closed. NULL for a negative color, or after an error. */
DML_API dml_comm *dml_comm_split(dml_comm *comm, int color, int key);

/* Closes one communicator; the last one of a job finishes what was started, waits (at most the timeout) until
   all ranks close too, and releases everything. Returns the communicator's status, of which a message that
   was sent to this rank and that nobody received is one. NULL is fine. In a fork's child it only releases the
   child's copy. */
DML_API dml_status dml_comm_close(dml_comm *comm);

/* The first error, which sticks: once a communicator has failed, on whichever rank it began, each later call
   returns the same status at once. It names the rank that is to blame; "" and DML_OK while there is none.
   NULL, which dml_comm_open returns when memory is short, reads as that. */
DML_API const char *dml_comm_error(const dml_comm *comm);
DML_API dml_status dml_comm_status(const dml_comm *comm);

/* 0 and 1 for NULL. */
DML_API int dml_comm_rank(const dml_comm *comm);
DML_API int dml_comm_world_size(const dml_comm *comm);

/* Writes a few lines of text: the ranks and what lies between them, what was measured, which algorithms calls
   of which sizes get, and the sizes and times that hold, at most `bytes` with the 0 at the end. Returns the
   bytes that all of it takes, without the 0. Rank 0 says the same to its log when it opens. */
DML_API size_t dml_comm_describe(const dml_comm *comm, char *text /* (bytes) */, size_t bytes);

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

/* Adding these up takes no lock and no look at the clock that there wouldn't be anyway. Zeros for NULL. */
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
   that died or closed end with DML_ERROR_PEER, each by itself, and nothing else does; and a receive that no
   message has come for may take any time. Everything else fails as it always does, collectives with such a
   rank too. In all communicators of the job, at this rank alone; nothing changes under MPI. */
DML_API void dml_comm_outlive(dml_comm *comm);

/* What is started from now on goes before what has a lower priority, where both could go. 0 at first. */
DML_API void dml_comm_set_priority(dml_comm *comm, int priority);

/* A number that stands for `function` wherever a dml_reduce_op is asked for, in this communicator and those
   split from it later. All ranks add theirs in the same order, since only the number is compared. When 16
   have been added, a number that every call refuses. */
DML_API dml_reduce_op dml_comm_add_reduce(dml_comm *comm, dml_reduce_function function, void *user);

/* The collectives. All ranks of a communicator start the same calls in the same order, with the same count,
   dtype, op and root; what doesn't match ends in an error that names two ranks and their calls. `count` may
   be 0. Results of the reductions are bitwise the same on all ranks that get them. After an error the
   contents of the output are undefined. Pointers need the alignment of their dtype. Reductions take every
   dtype. Arrays that a call reads and writes at different places must not overlap, unless it says so. */

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

/* Row r of out (world_size, count) = row `rank` of rank r's `in` (world_size, count). */
DML_API dml_status dml_comm_all_to_all(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out);
DML_API dml_request *dml_comm_all_to_all_start(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                               void *out);

/* The same with parts of different sizes: rank r's has counts[r] elements and begins at element offsets[r] of
   the array that has one for each rank. All ranks give the same `counts` and `offsets` (world_size), which
   are read before the call returns. `offsets` NULL: one behind the other. */
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

/* Whether there is a message that a receive would take now; looks for at most `seconds` (0: once). */
DML_API bool dml_comm_probe(dml_comm *comm, int from, int tag, double seconds, dml_message *message);

/* Requests belong to the communicator that gave them out, and the arrays of their calls too until they have
   been waited for. NULL is given out when the communicator has failed, when the arguments were bad, or when
   max_requests were started and not yet waited for: an error on all ranks.

   True when dml_comm_wait would return at once, with an error or without. Makes progress. */
DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request);

/* Waits for one request, in any order, takes it back and returns what became of it. Each request is waited
   for once: a second time is DML_ERROR_STATE (as long as it hasn't been given out again), a request of
   another communicator DML_ERROR_ARGUMENT. NULL returns the communicator's status. */
DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request);
DML_API dml_status dml_comm_wait_message(dml_comm *comm, dml_request *request, dml_message *message);

/* Waits until one of `count` requests (NULL among them are passed over) is done, takes it back, sets it to
   NULL and returns its index; -1 when all are NULL or the communicator has failed. `message` (NULL: not
   wanted) is what came of a receive; its source is -1 where the request ended with an error
   (dml_comm_outlive). */
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

/* ---- dist/cluster.h ---- */

/* cluster.h: which ranks of a job compute gradients (workers), and which keep the parameters (servers). */
#ifndef DML_DIST_CLUSTER_H
#define DML_DIST_CLUSTER_H

/* Ranks 0 .. workers - 1 are the workers, the next `servers` the servers. */
typedef struct dml_cluster {
    int workers, servers; /* at least 1 each */
    int rank;             /* this process's */
    /* Where rank 0 listens, from TF_CONFIG; "" and 0: as dml_comm_open finds it. */
    char master_addr[256];
    int master_port;
    dml_status status; /* DML_ERROR_ARGUMENT: there is no such cluster, for this reason: */
    char error[256];   /* one sentence, "" for a good one */
} dml_cluster;

/* One that the program itself knows. */
DML_API dml_cluster dml_cluster_of(int rank, int workers, int servers);

/* From TF_CONFIG, if it is set, in TensorFlow's form,

       {"cluster": {"worker": ["a:2222", "b:2222"], "ps": ["c:2222"]}, "task": {"type": "ps", "index": 0}}

   where a "chief" counts as the first worker and the first worker's address is where the ranks meet; else
   from RANK and WORLD_SIZE (or a launcher, see comm/comm.h), the last DML_PS of which are servers, as `dmlrun
   --workers 4 --ps 2` sets them. Nothing is started: what is wrong is in `status` and `error`. */
DML_API dml_cluster dml_cluster_from_environment(void);

DML_API bool dml_cluster_is_server(const dml_cluster *cluster);

/* dml_comm_open for this rank of the cluster; of `options` (NULL: defaults) rank and world_size don't count,
   nor does where the ranks meet if the cluster says it. A cluster with an error opens a communicator that has
   this error, on this rank alone. */
DML_API dml_comm *dml_cluster_open(const dml_cluster *cluster, const dml_comm_options *options);

#endif

/* ---- dist/parameter_server.h ---- */

/* parameter_server.h: a vector of floats that lies in even ranges on servers, which workers push changes to
   and pull values from.

   It knows no graph and needs no dml.h; for a dml_trainer see parameter_server_sync.h. All ranks:

       dml_cluster cluster = dml_cluster_from_environment();
       dml_comm *comm = dml_cluster_open(&cluster, NULL);
       if (dml_cluster_is_server(&cluster)) {
           dml_ps_serve(comm, &cluster, NULL, NULL);
       } else {
           dml_ps *ps = dml_ps_open(comm, &cluster, n, w, NULL);
           for (int step = 0; step < steps; step++) {
               compute(g, w, n);
               dml_ps_push(ps, g, 0, n, 1);
               dml_ps_clock(ps);
               dml_ps_wait(ps, dml_ps_pull(ps, w, 0, n));
           }
           dml_ps_close(ps);
       }
       return dml_comm_close(comm);

   Sources: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Ho et al.,
   "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013; Chen et al.,
   "Revisiting distributed synchronous SGD", 2016. */
#ifndef DML_DIST_PARAMETER_SERVER_H
#define DML_DIST_PARAMETER_SERVER_H

/* What a pull waits for. A worker's clock is how often it has called dml_ps_clock. */
typedef enum dml_ps_consistency {
    /* That all workers' pushes of the clocks before the puller's have been averaged and applied, once for
       each clock. */
    DML_PS_SYNCHRONOUS,
    /* Nothing: pushes are applied as they come. */
    DML_PS_ASYNCHRONOUS,
    /* That the slowest worker is at most `staleness` clocks behind; pushes are applied as they come. */
    DML_PS_STALE
} dml_ps_consistency;

/* How a server changes elements [begin, begin + count) of the vector, which are w (count), by g (count): the
   mean of a clock's pushes (each by its weight), or one push times its weight. `step` is how many clocks were
   applied before (asynchronous, stale: how many of all workers have ended), `rate` what dml_ps_set_rate said
   at the worker that pushed. A status other than DML_OK ends the job. */
typedef dml_status (*dml_ps_apply)(void *user, size_t begin, size_t count, float *w, const float *g,
                                   uint64_t step, double rate);

/* What a server does with pushes; of NULL functions, `apply`: w += rate g. */
typedef struct dml_ps_rule {
    /* Once, before the first push: the server's range, and what worker 0 said with options.setup. */
    dml_status (*prepare)(void *user, size_t begin, size_t count, const double *setup, size_t setup_count);
    dml_ps_apply apply;
    void *user;
} dml_ps_rule;

/* Workers say all but the rule, and all of them the same (DML_ERROR_MISMATCH, at dml_ps_open). */
typedef struct dml_ps_options {
    dml_ps_consistency consistency;
    int staleness; /* of DML_PS_STALE */
    /* Of DML_PS_SYNCHRONOUS: a clock is applied when all workers but this many have ended it; what the others
       push for it later is dropped, and they go on at the servers' clock (dml_ps_clocks), so they end clocks
       unlike numbers of times. Less than there are workers. */
    int backup;
    /* A push sends only elements larger than this; the others wait at the worker and count with its next
       push of the same range. 0: all. */
    float threshold;
    dml_dtype push_dtype, pull_dtype; /* on their way: DML_F32 (0), DML_BF16 or DML_F16 */
    int vectors; /* more vectors of the same length on the servers, numbered from 1; 0: none */
    /* For the servers' rule, from worker 0; at most 65536. */
    const double *setup; /* (setup_count) */
    size_t setup_count;
    dml_ps_rule rule;        /* the servers' */
    dml_allocator allocator; /* zero: malloc and free. Nothing is allocated after opening */
} dml_ps_options;

/* ---- servers ---- */

/* What a server has done, and who was lost. */
typedef struct dml_ps_report {
    uint64_t clocks;           /* applied; asynchronous, stale: ended by any worker */
    uint64_t pushes, pulls;    /* messages of this server's part of them */
    uint64_t dropped;          /* pushes that came after their clock (options.backup) */
    uint64_t elements, pushed; /* of all pushes' ranges; of these those that were sent (options.threshold) */
    int lost;                  /* workers that died, or left without dml_ps_close */
    int first_lost;            /* the first of them; -1: none */
} dml_ps_report;

/* Serves this rank's range until every worker has left, with dml_ps_close or by dying; the others then go on
   without it. Returns DML_OK, or the communicator's or the rule's error. `options` and `report` may be NULL.
   A job without a worker left is DML_ERROR_PEER. */
DML_API dml_status dml_ps_serve(dml_comm *comm, const dml_cluster *cluster, const dml_ps_options *options,
                                dml_ps_report *report);

/* ---- workers ---- */

typedef struct dml_ps dml_ps;

/* Returns when all ranks of the cluster have called it, or dml_ps_serve. The vector has `count` elements, on
   worker 0 w (count), which the servers begin with; w of the others isn't looked at (pull it). The
   communicator stays the caller's, who closes it later. NULL when there is no memory or the communicator has
   failed; whatever else is wrong is the communicator's error too. */
DML_API dml_ps *dml_ps_open(dml_comm *comm, const dml_cluster *cluster, size_t count, const float *w,
                            const dml_ps_options *options);

/* A push or pull that is under way; 0: it failed (dml_comm_error). Any number may be under way. */
typedef uint64_t dml_ps_ticket;

/* Adds weight times g (end - begin), elements [begin, end) of the vector, to this clock's pushes. Each
   element of a clock is pushed at most once. g must stay until the push has been waited for. */
DML_API dml_ps_ticket dml_ps_push(dml_ps *ps, const float *g, size_t begin, size_t end, double weight);

/* w (end - begin) becomes elements [begin, end) of the vector, as options.consistency has it. */
DML_API dml_ps_ticket dml_ps_pull(dml_ps *ps, float *w, size_t begin, size_t end);

/* This worker's pushes of its clock are complete; the next ones belong to the next. */
DML_API dml_status dml_ps_clock(dml_ps *ps);

/* Waits for a push or pull and those before it; DML_PS_ALL: for all. Returns the communicator's status. */
#define DML_PS_ALL UINT64_MAX
DML_API dml_status dml_ps_wait(dml_ps *ps, dml_ps_ticket ticket);

/* What the rule is given with the pushes to come; 1 at first. */
DML_API void dml_ps_set_rate(dml_ps *ps, double rate);

/* The clock: how often this worker has called dml_ps_clock, or, with backups, the servers', if it is later.
 */
DML_API uint64_t dml_ps_clocks(const dml_ps *ps);

/* How many workers the servers had, as far as the last pull said. */
DML_API int dml_ps_workers(const dml_ps *ps);

/* A communicator of the workers alone, which belongs to ps. */
DML_API dml_comm *dml_ps_workers_comm(const dml_ps *ps);

/* Waits for all that is under way, tells the servers that this worker leaves, and frees. NULL is fine. */
DML_API dml_status dml_ps_close(dml_ps *ps);

/* ---- work on the servers' vectors, of which none leaves them ----

   Vector 0 is the one above. Each returns when all servers have done it. One worker at a time calls them. */

/* y = alpha x + beta y; x and y may be the same vector. */
DML_API dml_status dml_ps_axpby(dml_ps *ps, double alpha, int x, double beta, int y);

/* The sum of x[i] y[i], in double, of the ranges in their order. */
DML_API dml_status dml_ps_dot(dml_ps *ps, int x, int y, double *dot);

/* The largest |x[i]|; NaN if there is one. */
DML_API dml_status dml_ps_largest(dml_ps *ps, int x, double *largest);

/* As dml_ps_pull of vector `vector`, at once; and vector += g, at once. For vectors 1 and up. */
DML_API dml_ps_ticket dml_ps_pull_from(dml_ps *ps, int vector, float *x, size_t begin, size_t end);
DML_API dml_ps_ticket dml_ps_push_to(dml_ps *ps, int vector, const float *g, size_t begin, size_t end);

#endif

#endif

/* With dml.h included first: the sync strategies. */
#ifdef DML_H
#include "dml.h"

/* ---- dist/compress.h ---- */

/* compress.h: gradients that take fewer bytes on their way to the other ranks. */
#ifndef DML_DIST_COMPRESS_H
#define DML_DIST_COMPRESS_H

typedef enum dml_compression_kind {
    DML_COMPRESS_NONE,     /* f32, summed as it is */
    DML_COMPRESS_BF16,     /* 16 bits of either type, summed by an all-reduce, which adds in f32 and rounds */
    DML_COMPRESS_F16,      /* at each rank; without a memory of what was rounded away */
    DML_COMPRESS_QUANTISE, /* `bits` for an element, and a scale for each 256 */
    DML_COMPRESS_TOP_K,    /* the `fraction` of the elements that is largest, with their places */
    DML_COMPRESS_POWER     /* of each matrix the best approximation of that `rank` that is cheaply found */
} dml_compression_kind;

/* An option of the sync strategies: how ranges of g are coded before they are sent, the same on all ranks.
   All kinds give every rank the same bits. Those after F16 keep what was not sent and add it to the gradient
   of the next step (error feedback: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent", 2014;
   Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD", ICML 2019): what has arrived over the
   steps and what is still kept add up to all gradients, up to rounding. That memory is as large as g, is each
   rank's own, and isn't in checkpoints: a run that goes on begins with none. A step that fails takes what it
   had sent along. A range with a number that isn't finite arrives as NaN or infinity, and is not remembered.

   QUANTISE. Blocks of 256 elements, each with its scale, its largest magnitude as the largest level: 8 bits
   give 255 levels, 4 bits 15 (the levels of Alistarh et al., "QSGD", 2017, with rounding to the nearest, for
   which the memory makes up, instead of random rounding); 1 bit gives signs, the scale being the mean
   magnitude (Karimireddy et al., algorithm 1). To a quarter, an eighth and a 28th of f32's bytes.

   TOP_K. 8 bytes for each element sent, of each range that is sent by itself at least one. With `momentum`
   what is kept is not the gradient but its velocity, and an element that was sent begins anew (Lin, Han,
   Mao, Wang, Dally, "Deep gradient compression", ICLR 2018, sections 3.1 and 3.3, momentum correction and
   factor masking): the optimizer is then dml_sgd without a momentum of its own. During the first `warm_up`
   steps the fraction falls exponentially from a quarter (section 3.3, warm-up training).

   POWER. Of a parameter's gradient, as a matrix M of its first dimension by all others, P = M Q and then Q =
   M^T P are sent, with P's columns made orthonormal between: one step of a power iteration, which goes on
   from the last step's Q (Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, algorithms 1 and 2).
   Vectors, and matrices that P and Q would not make smaller, are sent as they are.

   QUANTISE and TOP_K send each rank's code to all others (all-gather), so their bytes grow with the ranks
   where those of an all-reduce don't: at N ranks each receives N - 1 codes, instead of twice its gradient. */
typedef struct dml_compression {
    dml_compression_kind kind;
    int bits;       /* QUANTISE: 8, 4 or 1; 0: 8 */
    float fraction; /* TOP_K: above 0 and at most 1; 0: 0.01 */
    float momentum; /* TOP_K: of the velocity, at least 0 and below 1; 0: none */
    int warm_up;    /* TOP_K: steps; 0: none */
    int rank;       /* POWER: at least 1; 0: 4 */
} dml_compression;

#endif

/* ---- dist/all_reduce_sync.h ---- */

/* all_reduce_sync.h: synchronous data parallelism: every rank trains its part of each global batch, and
   gradients are averaged while backward is still running. */
#ifndef DML_DIST_ALL_REDUCE_SYNC_H
#define DML_DIST_ALL_REDUCE_SYNC_H

typedef struct dml_all_reduce_sync_options {
    /* Of gradients that are sent at once, at least. 0: between hosts such that the links' latency, as it was
       measured when the communicator opened, is a tenth of the time; within a host 1 MiB. */
    size_t bucket_bytes;
    dml_compression compression; /* the same on all ranks; zero: none */
    dml_allocator allocator;     /* zero: malloc and free */
} dml_all_reduce_sync_options;

/* For dml_trainer_sync. At the start, parameters, the optimizer's state and numbers, the seed and the step
   number are broadcast from rank 0, which may have loaded a checkpoint. In each step, every range of g that
   has become final is put in a bucket; a full bucket starts its all-reduce at once. The gradient that is
   applied is the mean over all samples of the global batch, however unevenly the ranks share it, so N ranks
   compute what one rank would, up to rounding; with batch norms, where these ask for the statistics of all
   ranks (ops/op_norm.h); without compression. Within dml_trainer_step each range of w is updated when its
   gradient has arrived, while others are on their way, unless the trainer clips, scales the loss, or has an
   optimizer of whole parameters: so a step that a lost rank ends may have updated a part of w. Source: Li et
   al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2
   (buckets, in the reverse order of the forward pass); Sergeev, Del Balso, "Horovod", 2018 (tensor fusion).
   The communicator stays the caller's, who closes it after the trainer is destroyed. NULL options: all
   defaults. */
DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options);

#endif

/* ---- dist/zero_sync.h ---- */

/* zero_sync.h: sharding: each rank keeps a part of the optimizer's state, of the gradient, of the parameters.
 */
#ifndef DML_DIST_ZERO_SYNC_H
#define DML_DIST_ZERO_SYNC_H

typedef struct dml_zero_options {
    int stage;               /* 1 .. 3, what is sharded, see below; 0: 2 */
    size_t bucket_bytes;     /* gradients are sent in pieces of at least this much; 0: 1 MiB */
    dml_allocator allocator; /* zero: malloc and free */
} dml_zero_options;

/* For dml_trainer_sync. As dml_all_reduce_sync, N ranks compute what one would for the same global batch, up
   to rounding, but of the trained parameters, of which there are P, each rank updates its own N-th (of whole
   parameters under LARS and LAMB, else evenly, in the order of the ranks), and keeps, in bytes:

       stage   w        g                        optimizer's state (8 P for Adam; with an average 4 P more)
         1     4 P      4 P                      8 P / N
         2     4 P      4 P / N + 4 buckets      8 P / N
         3     4 P / N  4 P / N + 4 buckets      8 P / N          + w of the op that runs

   where a bucket is at least as large as the parameters of one op. Gradients are summed to their owners while
   backward is still running; stages 1 and 2 then send the new parameters to all, as many bytes in all as an
   all-reduce of g. Stage 3 sends each op's parameters before it runs, in forward and again in backward where
   it reads them: half as much again. The parts that a rank hasn't are holes in the same flat vectors: their
   pages are given back to the system, where memory comes from malloc on Linux; elsewhere they stay. Devices
   with memory of their own take stages 1 and 2, and save no memory.

   w is whole when the strategy is attached, and g while it waits for more (DML_MORE). Before what needs whole
   vectors, such as a checkpoint, all ranks call dml_trainer_gather; the same checkpoint then comes of it as
   without a strategy. A gradient can be looked at in this rank's range (dml_trainer_owned) alone. Source:
   Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section
   5; Zhao et al., "PyTorch FSDP", 2023. The communicator stays the caller's, who closes it after the trainer
   is destroyed. NULL options: all defaults. */
DML_API dml_sync dml_zero_sync(dml_comm *comm, const dml_zero_options *options);

#endif

/* ---- dist/local_sgd.h ---- */

/* local_sgd.h: data parallelism that talks seldom: every rank takes steps of its own, and from time to time
   the ranks' parameters are averaged. */
#ifndef DML_DIST_LOCAL_SGD_H
#define DML_DIST_LOCAL_SGD_H

typedef struct dml_local_sgd_options {
    int tau; /* steps from one average to the next, at least 1: there is no default */
    /* What makes the parameters follow the averages instead of becoming them: it takes the change from one to
       the next, with its sign turned, for a gradient. Any optimizer but LARS and LAMB; its lr 0: none. Its
       state is this strategy's own, is in no checkpoint, and begins with zeros. */
    dml_optimizer outer;
    bool average_state;      /* the optimizer's vectors too; else each rank keeps its own */
    dml_allocator allocator; /* zero: malloc and free */
} dml_local_sgd_options;

/* DiLoCo: an outer SGD of learning rate 0.7 and Nesterov's momentum 0.9, for trainers with dml_adamw. Its
   authors take 500 for tau. Source: Douillard et al., "DiLoCo: distributed low-communication training of
   language models", 2023, algorithm 1 and section 3. */
DML_API dml_local_sgd_options dml_diloco_options(int tau);

/* For dml_trainer_sync. It begins as dml_all_reduce_sync does, with rank 0's parameters and numbers; then
   each rank trains alone, by gradients of its own samples, and after every tau-th step of the trainer all
   ranks get the mean of their parameters, each rank's weighed by the samples that it took since the last one:
   with as many on each this is SparkNet, and with tau = 1 and dml_sgd(lr, 0) it is what dml_all_reduce_sync
   computes. (Only with momentum, decay and others do the ways differ.) Averaged with them are the running
   statistics of batch norms, and the moving average of the trainer if it keeps one. Source: Moritz,
   Nishihara, Stoica, Jordan, "SparkNet: training deep networks in Spark", ICLR 2016, section 2.2; weights:
   McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
   algorithm 1; average_state: Yu, Jin, Yang, "On the linear speedup analysis of communication efficient
   momentum SGD", ICML 2019, algorithm 1.

   Between averages ranks have different parameters: call dml_local_sgd_average before the model is saved,
   tested or given away. Every rank makes the same calls; steps that one of them skips for its loss scale
   count too. Ranks that meet after unlike numbers of steps get DML_ERROR_MISMATCH. Models with a batch norm
   over all ranks are refused. An average takes 4 bytes for each parameter over the network as an all-reduce
   does; with `outer` each rank keeps 2 vectors more, and its state. The communicator stays the caller's, who
   closes it after the trainer is destroyed. */
DML_API dml_sync dml_local_sgd_sync(dml_comm *comm, const dml_local_sgd_options *options);

/* The same with no average until dml_local_sgd_average: every rank learns from its part of the data, once as
   a rule, and one average at the end is the model. `tau` isn't looked at; NULL options: all zero. Source:
   Zinkevich, Weimer, Smola, Li, "Parallelized stochastic gradient descent", NIPS 2010, algorithm 3
   (SimuParallelSGD). */
DML_API dml_sync dml_simu_parallel_sync(dml_comm *comm, const dml_local_sgd_options *options);

/* Collective, at the end of training, and wherever all ranks shall have the same parameters: averages as
   after a tau-th step; nothing if there was no step since the last average. The next average is due when it
   would have been without. DML_ERROR_STATE, beside what makes a step fail, for a trainer that has neither of
   these strategies. */
DML_API dml_status dml_local_sgd_average(dml_trainer *trainer);

#endif

/* ---- dist/mirrored.h ---- */

/* mirrored.h: several devices in one process: a replica of a model on each, trained as one.

       const char *devices[] = { "cuda:0", "cuda:1", "cpu" };
       dml_mirrored_options options = { 0 };
       options.trainer.batch = 512;
       options.trainer.optimizer = dml_sgd(0.1f, 0.9f);
       dml_mirrored *m = dml_mirrored_create(loss, devices, 3, &options);
       for (...) dml_mirrored_step(m, 512, DML_INPUTS(images, labels), &mean);
       dml_mirrored_copy_back(m);

   Each replica has a context, a thread and a dml_trainer of its own; among them they share out each batch,
   and combine gradients as ranks do (dist/all_reduce_sync.h), but over memory. */
#ifndef DML_DIST_MIRRORED_H
#define DML_DIST_MIRRORED_H

/* Where the parameters and the optimizer's state live. The losses are the same, up to rounding. */
typedef enum dml_placement {
    /* On each device, each updated by the same gradient: TensorFlow's MirroredStrategy. */
    DML_PLACE_MIRRORED,
    /* On the first device, which alone has a gradient, a state and an update; the others receive w after it.
       The state is there once. With the CPU first, this is TensorFlow's CentralStorageStrategy. */
    DML_PLACE_CENTRAL,
    /* The same, but w goes to the others, running statistics included, before each forward pass, as by
       PyTorch's DataParallel; for comparison. */
    DML_PLACE_EACH_STEP
} dml_placement;

/* How gradients get from device to device; the names are TensorFlow's. */
typedef enum dml_cross_device {
    DML_CROSS_CHEAPEST,     /* of all, for each size */
    DML_CROSS_RING,         /* each device sums a part, and sends it round */
    DML_CROSS_HIERARCHICAL, /* up a tree, and down again */
    DML_CROSS_ONE_DEVICE    /* the first sums all, and sends the sum back */
} dml_cross_device;

typedef struct dml_mirrored_options {
    /* Of all replicas together: `batch` is the most samples of one step in this process. */
    dml_trainer_options trainer;
    dml_placement placement;
    dml_cross_device cross_device;
    /* Each step's batch is divided evenly, so that runs can be repeated. Otherwise by speed: for each device
       t(b) = fixed + each x b is fitted to what its forward and backward passes took, recent steps counting
       most, and shares are such that all end together. A device that is listed gets a sample at least, where
       there are enough. */
    bool even;
    /* The most samples that one replica may get, for which it has memory; 0: an even share if `even`, else
       twice that. */
    int most_rows;
    /* Of several processes with a dml_mirrored each, from dml_comm_open: gradients are summed inside a
       process first, then between the processes by the first replica of each, then spread. Each calls
       dml_mirrored_create, and afterwards the same steps, with any rows of its own, 0 included. It stays the
       caller's, who closes it after dml_mirrored_destroy. NULL: this process is alone. */
    dml_comm *comm;
    /* How long replicas wait for one that makes no progress; 0: DML_TIMEOUT, else 30 (twice the
       communicator's, where there is one). */
    double timeout_s;
    size_t bucket_bytes;     /* as in dml_all_reduce_sync_options */
    dml_allocator allocator; /* of the replicas, from all their threads; zero: malloc and free */
} dml_mirrored_options;

typedef struct dml_mirrored dml_mirrored;

/* Clones the graph of `loss` (graph/clone.h), with its values, to each of `count` devices, makes trainers of
   the clones, and a thread for each. A device is named as for dml_open: "cpu", "opencl:0", "cuda:1". None may
   be listed twice but the CPU: "cpu" takes an even part of the processors that are left (dml_cpu_share), and
   "cpu*3" three threads. The clones' seed is that of the loss's context; the graph itself isn't trained.

   NULL, with the error on the loss's context, when a device is not there or listed twice, when a trainer
   can't be made, or without threads (DML_NO_THREADS: DML_ERROR_UNSUPPORTED). It lives until
   dml_mirrored_destroy or until that context is closed. One thread at a time calls the functions below, each
   of which returns when all replicas are done. */
DML_API dml_mirrored *dml_mirrored_create(dml_node *loss, const char *const *devices, int count,
                                          const dml_mirrored_options *options);

/* Ends the threads, the trainers and the contexts. NULL is fine. */
DML_API void dml_mirrored_destroy(dml_mirrored *mirrored);

/* One step on `rows` samples, 1 .. batch (with options.comm from 0), shared out among the replicas; some get
   none where there are too few. What dml_trainer_step says of `inputs`, `count` and `loss`, which is the mean
   over this process' samples, holds here.

   Errors are recorded on the loss's context. Input that is refused is so before anything is run, and the step
   can be made again. When a replica fails, so does the step, with a sentence that names its device; the
   others are released at once, and so they are, after the timeout, from one that makes no progress (the call
   itself returns when that one does). After that the replicas differ: each later call returns the same error.
 */
DML_API dml_status dml_mirrored_step(dml_mirrored *mirrored, int rows, const void *const *inputs, int count,
                                     float *loss);

/* Its two halves, as dml_trainer_backward and dml_trainer_update. */
DML_API dml_status dml_mirrored_backward(dml_mirrored *mirrored, int rows, const void *const *inputs,
                                         int count, int flags, float *loss);
DML_API dml_status dml_mirrored_update(dml_mirrored *mirrored);

/* Replica i's trainer, between the calls above: replica 0's is the one to save, to look at, and to change.
   NULL past the last. After a change (a checkpoint was loaded, parameters were written, another learning rate
   was set), dml_mirrored_spread gives the others what the first has; under options.comm it is a collective,
   and what counts is the first replica of rank 0. */
DML_API dml_trainer *dml_mirrored_trainer(dml_mirrored *mirrored, int i);
DML_API dml_status dml_mirrored_spread(dml_mirrored *mirrored);

/* The first replica's parameters become those of the graph that all of them were cloned from: to save it, or
   to predict. */
DML_API dml_status dml_mirrored_copy_back(dml_mirrored *mirrored);

/* What became of the last pass. */
typedef struct dml_replica_report {
    const char *device;     /* as it was opened: "opencl:0" */
    int threads;            /* of the CPU that compute */
    int rows;               /* its part of the batch */
    double seconds;         /* that its forward and backward took, but for waiting; 0: not known */
    double fixed_s, each_s; /* the line by which shares are made: seconds of a pass, and of a sample */
} dml_replica_report;

/* How many replicas there are; and of one, all zero past the last. */
DML_API int dml_mirrored_replicas(const dml_mirrored *mirrored);
DML_API dml_replica_report dml_mirrored_report(const dml_mirrored *mirrored, int i);

#endif

/* ---- dist/parameter_server_sync.h ---- */

/* parameter_server_sync.h: training by a parameter server: workers with trainers, servers with the
   optimizer.

       dml_cluster cluster = dml_cluster_from_environment();
       dml_comm *comm = dml_cluster_open(&cluster, NULL);
       if (dml_cluster_is_server(&cluster)) {
           dml_parameter_server_serve(comm, &cluster, NULL);
       } else {
           dml_trainer *trainer = dml_trainer_create(loss, &options);
           dml_trainer_sync(trainer, dml_parameter_server_sync(comm, &cluster, NULL));
           while (more) dml_trainer_step(trainer, rows, DML_INPUTS(x, t), &mean);
           dml_trainer_destroy(trainer);
       }
       return dml_comm_close(comm); */
#ifndef DML_DIST_PARAMETER_SERVER_SYNC_H
#define DML_DIST_PARAMETER_SERVER_SYNC_H

/* For dml_trainer_sync, on workers. At the start all take over worker 0's parameters, numbers, seed and step;
   the servers its optimizer with parameters' scales and an empty state. Each update pushes g and pulls w. In
   synchrony g counts by the samples that it is the mean of; otherwise each worker's g is an update by itself:
   with N workers there are N times as many, so a learning rate of all-reduce's is as a rule too large. With
   DML_PS_SYNCHRONOUS, N workers compute what one would with the samples of all, up to rounding. The learning
   rate is each worker's own; clipping is, too. Of `options` (NULL: synchronous) rule, setup and vectors don't
   count. DML_ERROR_UNSUPPORTED at the start: for LARS and LAMB, for a loss scale, for a moving average. A
   checkpoint of a worker has w, but not the optimizer's state, which is the servers'. Source: Li et al., OSDI
   2014; TensorFlow's ParameterServerStrategy. */
DML_API dml_sync dml_parameter_server_sync(dml_comm *comm, const dml_cluster *cluster,
                                           const dml_ps_options *options);

/* dml_ps_serve with the optimizer of worker 0's trainer, for dml_parameter_server_sync and
   dml_downpour_sync. `report` may be NULL. */
DML_API dml_status dml_parameter_server_serve(dml_comm *comm, const dml_cluster *cluster,
                                              dml_ps_report *report);

#endif

/* ---- dist/downpour_sync.h ---- */

/* downpour_sync.h: asynchronous training by a parameter server, in which workers fetch and push now and then.
 */
#ifndef DML_DIST_DOWNPOUR_SYNC_H
#define DML_DIST_DOWNPOUR_SYNC_H

typedef struct dml_downpour_options {
    int fetch_every; /* steps between two fetches of w; 0: 1 */
    int push_every;  /* steps whose gradients are added up for one push; 0: 1 */
    /* The servers' optimizer; zero: dml_adagrad with the trainer's learning rate. */
    dml_optimizer optimizer;
    /* Warm start: worker 0 alone trains for so many steps, before the others begin. */
    int warm_steps;
    dml_dtype push_dtype, pull_dtype; /* as in dml_ps_options */
    float threshold;
    dml_allocator allocator;
} dml_downpour_options;

/* For dml_trainer_sync, on workers; the servers call dml_parameter_server_serve. Between fetches a worker
   goes on with the trainer's optimizer on its own copy of w. Nobody waits for another worker, but for the
   warm start. What doesn't go is as with dml_parameter_server_sync. NULL options: all defaults. Source: Dean
   et al., "Large scale distributed deep networks", NIPS 2012, sections 4.1 and 5 (Downpour SGD, Adagrad on
   the servers, warm start). */
DML_API dml_sync dml_downpour_sync(dml_comm *comm, const dml_cluster *cluster,
                                   const dml_downpour_options *options);

#endif
#endif

#ifdef DML_IMPLEMENTATION

/* ---- base/status.c ---- */

#ifndef DML_BASE_STATUS_C
#define DML_BASE_STATUS_C

DML_API const char *dml_status_string(dml_status status)
{
    static const char *const meaning[] = {
#define DML__STATUS_MEANING(name, text) text,
        DML__STATUS_LIST(DML__STATUS_MEANING)
#undef DML__STATUS_MEANING
    };
    return (unsigned)status < DML__STATUS_COUNT ? meaning[status] : "unknown status";
}

#endif

/* ---- base/error.c ---- */

#ifndef DML_BASE_ERROR_C
#define DML_BASE_ERROR_C

/* ---- base/error.h ---- */

/* error.h: the first error of an object, which sticks to it. */
#ifndef DML_BASE_ERROR_H
#define DML_BASE_ERROR_H

/* The first error of an object, kept until somebody clears it: a status and a sentence that says what was
   asked, what was found and what to do. */
typedef struct dml__error {
    dml_status status;
    char text[512];
} dml__error;

/* Records the error if none is recorded yet, and returns `status` either way. `error` may be NULL. */
DML__LOCAL dml_status dml__fail(dml__error *error, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* The same for a NULL where a call needs something: DML_ERROR_ARGUMENT, "dml_x was given no path (NULL)". */
DML__LOCAL dml_status dml__fail_null(dml__error *error, const char *call, const char *what);

#endif

#include <stdarg.h>
#include <stdio.h>

DML__LOCAL dml_status dml__fail(dml__error *error, dml_status status, const char *format, ...)
{
    if (!error || error->status != DML_OK) return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    error->status = status;
    return status;
}

DML__LOCAL dml_status dml__fail_null(dml__error *error, const char *call, const char *what)
{
    return dml__fail(error, DML_ERROR_ARGUMENT, "%s was given no %s (NULL)", call, what);
}

#endif

/* ---- base/dtype.c ---- */

#ifndef DML_BASE_DTYPE_C
#define DML_BASE_DTYPE_C

DML_API size_t dml_dtype_size(dml_dtype dtype)
{
    static const size_t size[] = {
#define DML__DTYPE_SIZE(NAME, name, bytes) bytes,
        DML__DTYPE_LIST(DML__DTYPE_SIZE)
#undef DML__DTYPE_SIZE
    };
    return (unsigned)dtype < DML__DTYPE_COUNT ? size[dtype] : 0;
}

DML_API const char *dml_dtype_name(dml_dtype dtype)
{
    static const char *const names[] = {
#define DML__DTYPE_NAME(NAME, name, bytes) name,
        DML__DTYPE_LIST(DML__DTYPE_NAME)
#undef DML__DTYPE_NAME
    };
    return (unsigned)dtype < DML__DTYPE_COUNT ? names[dtype] : "?";
}

#endif

/* ---- base/memory.c ---- */

#ifndef DML_BASE_MEMORY_C
#define DML_BASE_MEMORY_C

/* ---- base/memory.h ---- */

/* memory.h: where every byte comes from: the caller's allocator, the caller's buffer, or malloc. */
#ifndef DML_BASE_MEMORY_H
#define DML_BASE_MEMORY_H

/* Every block that the library hands itself is aligned to this, enough for any vector instruction set. */
#define DML__ALIGNMENT 64

/* The library's own view of an allocator: always usable, 64-byte aligned, with an optional caller's buffer
   behind it (first fit over an address-ordered free list; neighbours merge when freed). */
typedef struct dml__memory {
    dml_allocator allocator;
    struct dml__block *free_list; /* of the caller's buffer; unused in allocator mode */
    bool from_buffer;
    /* The caller's buffer: where it begins, and how far it has ever been in use. */
    const void *buffer;
    size_t most;
} dml__memory;

/* `allocator` may be NULL or all-zero (malloc). With `buffer`, nothing but these `buffer_bytes` is used. */
DML__LOCAL void dml__memory_init(dml__memory *memory, const dml_allocator *allocator, void *buffer,
                                 size_t buffer_bytes);

/* `bytes` zeroed bytes aligned to DML__ALIGNMENT, or NULL. Zero bytes gives a valid pointer. Of malloc's,
   pages that are never written never become the process's. */
DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes);

/* The same with whatever was there before: pages that are never written then never become the process's. */
DML__LOCAL void *dml__allocate_unset(dml__memory *memory, size_t bytes);

/* Makes bytes of a block zero. Whole pages go back to the system where that is safe, with malloc on Linux,
   and come again when they are written. */
DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes);

/* `count` elements of `size` bytes each; NULL also when the product doesn't fit a size_t. */
DML__LOCAL void *dml__allocate_array(dml__memory *memory, size_t count, size_t size);

/* Takes back what dml__allocate gave; NULL is fine. */
DML__LOCAL void dml__release(dml__memory *memory, void *pointer);

/* How large a buffer, wherever it begins, would have been enough for all that was asked of this one so far; 0
   without a buffer. */
DML__LOCAL size_t dml__memory_needed(const dml__memory *memory);

/* This memory as an allocator, for a part that keeps a view of its own; `memory` must outlive it. */
DML__LOCAL dml_allocator dml__memory_allocator(dml__memory *memory);

/* `bytes` rounded up to a multiple of DML__ALIGNMENT. */
static inline size_t dml__align_up(size_t bytes)
{
    return (bytes + (DML__ALIGNMENT - 1)) & ~(size_t)(DML__ALIGNMENT - 1);
}

#endif

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

/* A free block of the caller's buffer, or, in front of each block handed out, its size. Both take one
   alignment unit, so that everything stays aligned. */
typedef struct dml__block {
    size_t bytes; /* of the whole block, this header included; a multiple of DML__ALIGNMENT */
    struct dml__block *next;
} dml__block;

static void *dml__malloc(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void dml__free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

DML__LOCAL void dml__memory_init(dml__memory *memory, const dml_allocator *allocator, void *buffer,
                                 size_t buffer_bytes)
{
    memset(memory, 0, sizeof *memory);
    if (buffer) {
        memory->from_buffer = true;
        memory->buffer = buffer;
        const size_t skip = (size_t)(-(intptr_t)buffer & (DML__ALIGNMENT - 1));
        const size_t usable =
            buffer_bytes > skip ? (buffer_bytes - skip) / DML__ALIGNMENT * DML__ALIGNMENT : 0;
        if (usable > DML__ALIGNMENT) {
            memory->free_list = (dml__block *)(void *)((char *)buffer + skip);
            memory->free_list->bytes = usable;
            memory->free_list->next = NULL;
        }
    } else if (allocator && allocator->allocate && allocator->release) {
        memory->allocator = *allocator;
    } else {
        memory->allocator.allocate = dml__malloc;
        memory->allocator.release = dml__free;
    }
}

/* First fit takes the lowest place there is, so a buffer that ends where the highest block ended would have
   been used in the same way. */
static void dml__note_use(dml__memory *memory, const char *end)
{
    const size_t used = (size_t)(end - (const char *)memory->buffer);
    if (used > memory->most) memory->most = used;
}

DML__LOCAL size_t dml__memory_needed(const dml__memory *memory)
{
    if (!memory->most) return 0;
    const size_t skipped = (size_t)(-(intptr_t)memory->buffer & (DML__ALIGNMENT - 1));
    return memory->most - skipped + DML__ALIGNMENT - 1;
}

static void *dml__take_block(dml__memory *memory, size_t bytes)
{
    const size_t need = dml__align_up(bytes) + DML__ALIGNMENT;
    for (dml__block **link = &memory->free_list; *link; link = &(*link)->next) {
        dml__block *block = *link;
        if (block->bytes < need) continue;
        if (block->bytes - need > DML__ALIGNMENT) {
            dml__block *rest = (dml__block *)(void *)((char *)block + need);
            rest->bytes = block->bytes - need;
            rest->next = block->next;
            block->bytes = need;
            *link = rest;
        } else {
            *link = block->next;
        }
        dml__note_use(memory, (char *)block + need);
        return (char *)block + DML__ALIGNMENT;
    }
    return NULL;
}

static void dml__merge_with_next(dml__block *block)
{
    if (block->next && (char *)block + block->bytes == (char *)block->next) {
        block->bytes += block->next->bytes;
        block->next = block->next->next;
    }
}

static void dml__return_block(dml__memory *memory, void *pointer)
{
    dml__block *block = (dml__block *)(void *)((char *)pointer - DML__ALIGNMENT);
    dml__block *before = NULL;
    dml__block *after = memory->free_list;
    while (after && after < block) {
        before = after;
        after = after->next;
    }
    block->next = after;
    dml__merge_with_next(block);
    if (before) {
        before->next = block;
        dml__merge_with_next(before);
    } else {
        memory->free_list = block;
    }
}

static bool dml__is_from_malloc(const dml__memory *memory)
{
    return !memory->from_buffer && memory->allocator.allocate == dml__malloc;
}

/* Over-allocated by so much; the caller's pointer is remembered just below the aligned one. */
#define DML__BESIDE_BLOCK (DML__ALIGNMENT + sizeof(void *))

static void *dml__align_block(void *raw)
{
    if (!raw) return NULL;
    char *start = (char *)raw + sizeof(void *);
    start += (size_t)(-(intptr_t)start & (DML__ALIGNMENT - 1));
    memcpy(start - sizeof(void *), &raw, sizeof raw);
    return start;
}

DML__LOCAL void *dml__allocate_unset(dml__memory *memory, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * DML__ALIGNMENT) return NULL;
    if (memory->from_buffer) return dml__take_block(memory, bytes);
    return dml__align_block(memory->allocator.allocate(memory->allocator.user, bytes + DML__BESIDE_BLOCK));
}

DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes)
{
    if (dml__is_from_malloc(memory) && bytes <= SIZE_MAX - 2 * DML__ALIGNMENT)
        return dml__align_block(calloc(1, bytes + DML__BESIDE_BLOCK));
    void *pointer = dml__allocate_unset(memory, bytes);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

#if defined(__linux__) && defined(MADV_DONTNEED)
/* False where nothing was given back: emulators take the call for a hint and keep what was there. */
static bool dml__give_pages_back(char *first, size_t bytes)
{
    *first = 1;
    return madvise(first, bytes, MADV_DONTNEED) == 0 && *(volatile char *)first == 0;
}

DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t before = (size_t)(-(uintptr_t)at & (page - 1));
    const size_t whole = bytes > before ? (bytes - before) & ~(page - 1) : 0;
    char *const first = (char *)at + before;
    if (!whole || !dml__is_from_malloc(memory) || !dml__give_pages_back(first, whole)) {
        memset(at, 0, bytes);
        return;
    }
    memset(at, 0, before);
    memset(first + whole, 0, bytes - before - whole);
}
#else
DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes)
{
    (void)memory;
    memset(at, 0, bytes);
}
#endif

DML__LOCAL void *dml__allocate_array(dml__memory *memory, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size) return NULL;
    return dml__allocate(memory, count * size);
}

DML__LOCAL void dml__release(dml__memory *memory, void *pointer)
{
    if (!pointer) return;
    if (memory->from_buffer) {
        dml__return_block(memory, pointer);
        return;
    }
    void *raw;
    memcpy(&raw, (char *)pointer - sizeof(void *), sizeof raw);
    memory->allocator.release(memory->allocator.user, raw);
}

static void *dml__memory_allocate(void *user, size_t bytes)
{
    return dml__allocate((dml__memory *)user, bytes);
}

static void dml__memory_release(void *user, void *memory)
{
    dml__release((dml__memory *)user, memory);
}

DML__LOCAL dml_allocator dml__memory_allocator(dml__memory *memory)
{
    const dml_allocator allocator = { dml__memory_allocate, dml__memory_release, memory };
    return allocator;
}

#endif

/* ---- base/logger.c ---- */

#ifndef DML_BASE_LOGGER_C
#define DML_BASE_LOGGER_C

/* ---- base/logger.h ---- */

/* logger.h: saying something to the caller's log callback. */
#ifndef DML_BASE_LOGGER_H
#define DML_BASE_LOGGER_H

typedef struct dml__logger {
    dml_log_callback callback; /* NULL: silence */
    void *user;
} dml__logger;

DML__LOCAL void dml__log(const dml__logger *logger, dml_log_level level, const char *format, ...)
    DML__PRINTF(3, 4);

#endif

#include <stdarg.h>
#include <stdio.h>

DML__LOCAL void dml__log(const dml__logger *logger, dml_log_level level, const char *format, ...)
{
    if (!logger->callback) return;
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    logger->callback(logger->user, level, message);
}

#endif

/* ---- base/clock.c ---- */

#ifndef DML_BASE_CLOCK_C
#define DML_BASE_CLOCK_C

/* ---- base/windows.h ---- */

/* windows.h: what the .c files take from Windows, under names of our own. <windows.h> itself would bring its
   thousands of names into the file of the user who implements the library there. */
#ifndef DML_BASE_WINDOWS_H
#define DML_BASE_WINDOWS_H

#ifdef _WIN32

#ifdef _WIN64
#define DML__WINDOWS_NAME(name, bytes) #name
#else
#define DML__WINDOWS_NAME(name, bytes) "_" #name "@" #bytes
#endif
/* dml__windows_<name> is the system's function <name>; `bytes` are those of its parameters on 32 bits. */
#define DML__WINDOWS(result, name, bytes, parameters)                                                        \
    DML__EXTERN_C result __stdcall dml__windows_##name parameters __asm__(DML__WINDOWS_NAME(name, bytes))

DML__WINDOWS(unsigned long, GetLastError, 0, (void));
DML__WINDOWS(int, CloseHandle, 4, (void *handle));
#define DML__WINDOWS_ACCESS_DENIED 5 /* of GetLastError */
#define DML__WINDOWS_SHARING_VIOLATION 32
#define DML__WINDOWS_DISK_FULL 112

DML__WINDOWS(int, MoveFileExA, 12, (const char *from, const char *to, unsigned long flags));
#define DML__WINDOWS_REPLACE_EXISTING 1
#define DML__WINDOWS_WRITE_THROUGH 8

DML__WINDOWS(unsigned long, GetCurrentThreadId, 0, (void));
DML__WINDOWS(unsigned long, WaitForSingleObject, 8, (void *handle, unsigned long milliseconds));
DML__WINDOWS(void, AcquireSRWLockExclusive, 4, (void **lock));
DML__WINDOWS(void, ReleaseSRWLockExclusive, 4, (void **lock));
DML__WINDOWS(int, SleepConditionVariableSRW, 16,
             (void **condition, void **lock, unsigned long milliseconds, unsigned long flags));
DML__WINDOWS(void, WakeAllConditionVariable, 4, (void **condition));
#define DML__WINDOWS_FOREVER 0xFFFFFFFFul

DML__WINDOWS(int, QueryPerformanceCounter, 4, (long long *count));
DML__WINDOWS(int, QueryPerformanceFrequency, 4, (long long *per_second));

DML__WINDOWS(void *, GetCurrentProcess, 0, (void));
DML__WINDOWS(int, GetProcessAffinityMask, 12, (void *process, size_t *own, size_t *of_the_system));
DML__WINDOWS(void *, GetCurrentThread, 0, (void));
DML__WINDOWS(size_t, SetThreadAffinityMask, 8, (void *thread, size_t mask));
DML__WINDOWS(unsigned long, GetActiveProcessorCount, 4, (unsigned short group)); /* 0xFFFF: of all groups */

DML__WINDOWS(int, GetConsoleMode, 8, (void *handle, unsigned long *mode));
/* CONSOLE_SCREEN_BUFFER_INFO as its 11 words; columns [5] to [7] are in the window. */
DML__WINDOWS(int, GetConsoleScreenBufferInfo, 8, (void *handle, short info[11]));

#endif

#endif

#include <time.h>

#if (defined(__unix__) || defined(__APPLE__)) && !defined(CLOCK_MONOTONIC)
#error "dml: compile with -D_GNU_SOURCE, or include the dml headers before any system header"
#endif

DML_API double dml_seconds(void)
{
#ifdef _WIN32
    long long now = 0, frequency = 1;
    dml__windows_QueryPerformanceCounter(&now);
    dml__windows_QueryPerformanceFrequency(&frequency);
    return (double)(now / frequency) + (double)(now % frequency) / (double)frequency;
#elif defined(CLOCK_MONOTONIC)
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

#endif

/* ---- base/cpu.c ---- */

#ifndef DML_BASE_CPU_C
#define DML_BASE_CPU_C

/* ---- base/cpu_internal.h ---- */

/* cpu_internal.h: what the environment and the system's files say of the processor. */
#ifndef DML_BASE_CPU_INTERNAL_H
#define DML_BASE_CPU_INTERNAL_H

/* False when the environment variable DML_ISA names no instruction set; *wanted is then what it says. Unset
   and empty are fine. */
DML__LOCAL bool dml__cpu_isa_known(const char **wanted);

/* A number >= 0 from the environment, or -1 where there is none. */
DML__LOCAL int dml__cpu_environment(const char *name);

/* How many processors' time the CPU quotas of the process's cgroups allow, rounded down, at least 1, by the
   files under `root` ("" for the machine's own); INT_MAX without a quota, and elsewhere than on Linux. */
DML__LOCAL int dml__cpu_quota(const char *root);

/* Bytes that any processor has that the kernels' blocks are worth cutting for. */
#define DML__LEAST_L1 ((size_t)32 << 10)
#define DML__LEAST_L2 ((size_t)256 << 10)

/* The caches of processor 0 as Linux describes them under `root` ("" for the machine's own); zeros for what
   isn't there, and elsewhere. */
DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root);

#endif

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#include <sys/types.h>
#endif
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#include <cpuid.h>
#endif

DML_API const char *dml_isa_name(dml_isa isa)
{
    static const char *const names[] = { "scalar", "neon", "avx2", "avx512" };
    return (unsigned)isa < DML__ISA_COUNT ? names[isa] : "?";
}

static dml_isa dml__detect_isa(void)
{
#if defined(DML__EMULATED)
    return DML_ISA_AVX512; /* a build for tests, in which plain C stands for all instructions */
#elif defined(DML__HAS_AVX2)
    /* __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers. */
    __builtin_cpu_init();
#if defined(DML__HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return DML_ISA_AVX512;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return DML_ISA_AVX2;
#elif defined(__aarch64__)
    return DML_ISA_NEON; /* part of the architecture */
#endif
    return DML_ISA_SCALAR;
}

DML_API dml_isa dml_cpu_isa(void)
{
    const dml_isa best = dml__detect_isa();
    const char *wanted = getenv("DML_ISA");
    if (!wanted) return best;
    for (int isa = 0; isa < (int)best; isa++) {
        if (isa == DML_ISA_NEON) continue; /* another processor's: nothing to lower AVX to */
        if (strcmp(wanted, dml_isa_name((dml_isa)isa)) == 0) return (dml_isa)isa;
    }
    return best;
}

DML__LOCAL bool dml__cpu_isa_known(const char **wanted)
{
    *wanted = getenv("DML_ISA");
    if (!*wanted || !**wanted || strcmp(*wanted, "avx512_bf16") == 0) return true;
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        if (strcmp(*wanted, dml_isa_name((dml_isa)isa)) == 0) return true;
    return false;
}

/* ---- how many processors ---- */

DML__LOCAL int dml__cpu_environment(const char *name)
{
    const char *text = getenv(name);
    if (!text || *text < '0' || *text > '9') return -1;
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end) return -1;
    return value >= INT_MAX ? INT_MAX : (int)value;
}

#if defined(__linux__)
/* The beginning of a file as text; "" when it can't be read. By descriptors, since a build may be without
   stdio. */
static void dml__read_text(char *text, size_t size, const char *root, const char *path)
{
    char whole[1024];
    text[0] = '\0';
    const int length = snprintf(whole, sizeof whole, "%s%s", root, path);
    if (length < 0 || (size_t)length >= sizeof whole) return;
    const int file = open(whole, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const ssize_t got = read(file, text, size - 1);
    close(file);
    text[got > 0 ? got : 0] = '\0';
}

/* The quota in the group `path` of the hierarchy at `mount`, in processors; INT_MAX for none. */
static int dml__quota_of(const char *root, const char *mount, const char *path, bool version2)
{
    char name[768], text[64];
    double quota, period = 0;
    char *end;
    snprintf(name, sizeof name, "%s%s/%s", mount, path, version2 ? "cpu.max" : "cpu.cfs_quota_us");
    dml__read_text(text, sizeof text, root, name);
    quota = strtod(text, &end); /* version 2: "200000 100000", or "max 100000" */
    if (version2) {
        period = strtod(end, NULL);
    } else if (quota > 0) {
        snprintf(name, sizeof name, "%s%s/cpu.cfs_period_us", mount, path);
        dml__read_text(text, sizeof text, root, name);
        period = strtod(text, NULL);
    }
    if (!(quota > 0) || !(period > 0) || quota / period >= INT_MAX) return INT_MAX;
    return quota < period ? 1 : (int)(quota / period);
}

/* The smallest quota of a group and of those that it is in. Inside a container the path may be the outer
   system's: then only the last, the mounted root, is there, and is the container's own. */
static int dml__least_quota(const char *root, const char *mount, char *path, bool version2)
{
    int least = INT_MAX;
    for (;;) {
        char *slash = strrchr(path, '/');
        if (slash && !slash[1]) *slash = '\0'; /* "/" is "" */
        const int quota = dml__quota_of(root, mount, path, version2);
        if (quota < least) least = quota;
        slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* Whether "cpuset,cpu,cpuacct" names cpu. */
static bool dml__names_cpu(const char *names, const char *end)
{
    while (names < end) {
        const char *comma = (const char *)memchr(names, ',', (size_t)(end - names));
        const char *stop = comma ? comma : end;
        if (stop - names == 3 && memcmp(names, "cpu", 3) == 0) return true;
        names = stop + 1;
    }
    return false;
}

/* Each line of /proc/self/cgroup is "number:controllers:path"; version 2's is "0::path". */
DML__LOCAL int dml__cpu_quota(const char *root)
{
    static const char *const mounts2[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
    static const char *const mounts1[] = { "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct" };
    char groups[4096];
    int least = INT_MAX;
    dml__read_text(groups, sizeof groups, root, "/proc/self/cgroup");
    for (char *line = groups, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        const char *names = strchr(line, ':');
        const char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        const bool version2 = path == names + 1;
        if (!version2 && !dml__names_cpu(names + 1, path)) continue;
        for (int i = 0; i < 2; i++) {
            char copy[512];
            if (snprintf(copy, sizeof copy, "%s", path + 1) >= (int)sizeof copy) continue;
            const int quota = dml__least_quota(root, version2 ? mounts2[i] : mounts1[i], copy, version2);
            if (quota < least) least = quota;
        }
    }
    return least;
}
#else
DML__LOCAL int dml__cpu_quota(const char *root)
{
    (void)root;
    return INT_MAX;
}
#endif

static int dml__cpu_online(void)
{
#if defined(_WIN32)
    return (int)dml__windows_GetActiveProcessorCount(0xFFFF);
#elif defined(_SC_NPROCESSORS_ONLN)
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#else
    return 1;
#endif
}

static int dml__cpu_in_mask(void)
{
#if defined(_WIN32)
    /* The mask is 0 for a process in several groups of processors (of more than 64). */
    size_t mine = 0, everyones = 0;
    int count = 0;
    if (dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mine, &everyones))
        for (; mine; mine &= mine - 1) count++;
    if (count > 0) return count;
#endif
#if defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    const int online = dml__cpu_online();
    return online > 0 ? online : 1;
}

DML_API int dml_cpu_count(void)
{
    const int count = dml__cpu_in_mask();
    const int quota = count > 1 ? dml__cpu_quota("") : 1;
    return quota < count ? quota : count;
}

DML_API int dml_cpu_share(void)
{
    const int count = dml_cpu_count(), ranks = dml__cpu_environment("LOCAL_WORLD_SIZE");
    if (ranks <= 1) return count;
    return count > ranks ? count / ranks : 1;
}

/* ---- caches ---- */

/* What a cache says of itself: its bytes, and how many logical processors share it. */
typedef struct dml__cache {
    size_t bytes;
    int sharers;
} dml__cache;

/* Threads of one core share its L1; so many fewer cores than processors share the others. */
static dml_caches dml__caches_from(const dml__cache level[4]) /* [1] to [3] */
{
    dml_caches caches = { level[1].bytes, level[2].bytes, level[3].bytes, 1 };
    const int threads = level[1].sharers > 1 ? level[1].sharers : 1;
    if (level[2].sharers > threads) caches.l2 /= (size_t)(level[2].sharers / threads);
    if (level[3].sharers > threads) caches.l3_cores = level[3].sharers / threads;
    return caches;
}

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
/* Leaf 4 of Intel's processors and 0x8000001D of AMD's describe one cache a subleaf, in the same words. */
static dml_caches dml__caches_of_processor(void)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    unsigned a = 0, b = 0, c = 0, d = 0;
    static const unsigned leaves[2] = { 4, 0x8000001Du };
    for (int which = 0; which < 2 && !level[1].bytes; which++) {
        __cpuid(leaves[which] & 0x80000000u, a, b, c, d);
        if (a < leaves[which]) continue;
        for (unsigned i = 0; i < 16; i++) {
            __cpuid_count(leaves[which], i, a, b, c, d);
            const unsigned type = a & 31, number = a >> 5 & 7; /* 1: data, 2: instructions, 3: both */
            if (type == 0) break;
            if (type == 2 || number < 1 || number > 3) continue;
            level[number].bytes =
                (size_t)((b >> 22) + 1) * ((b >> 12 & 0x3FF) + 1) * ((b & 0xFFF) + 1) * ((size_t)c + 1);
            level[number].sharers = (int)(a >> 14 & 0xFFF) + 1;
        }
    }
    return dml__caches_from(level);
}
#elif defined(__APPLE__)
static size_t dml__sysctl(const char *name)
{
    uint64_t value = 0; /* of 4 or 8 bytes; little endian */
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 ? (size_t)value : 0;
}

/* perflevel0 are the fast cores. */
static dml_caches dml__caches_of_processor(void)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    level[1].bytes = dml__sysctl("hw.perflevel0.l1dcachesize");
    level[2].bytes = dml__sysctl("hw.perflevel0.l2cachesize");
    level[2].sharers = (int)dml__sysctl("hw.perflevel0.cpusperl2");
    if (!level[1].bytes) level[1].bytes = dml__sysctl("hw.l1dcachesize");
    if (!level[2].bytes) level[2].bytes = dml__sysctl("hw.l2cachesize");
    level[3].bytes = dml__sysctl("hw.l3cachesize");
    return dml__caches_from(level);
}
#else
static dml_caches dml__caches_of_processor(void)
{
    const dml_caches none = { 0, 0, 0, 1 };
    return none;
}
#endif

#if defined(__linux__)
/* How many processors "0-3,8,10-11" names. */
static int dml__count_list(const char *list)
{
    int count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        const long first = strtol(list, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (last >= first && last - first < 65536) count += (int)(last - first) + 1;
        list = *end == ',' ? end + 1 : "";
    }
    return count;
}

DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root)
{
    dml__cache level[4];
    memset(level, 0, sizeof level);
    for (int i = 0; i < 8; i++) {
        char path[80], text[256];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        char *name = strrchr(path, '/') + 1;
        const size_t room = sizeof path - (size_t)(name - path);
        dml__read_text(text, sizeof text, root, path);
        const int number = text[0] - '0';
        if (number < 1 || number > 3) continue;
        snprintf(name, room, "type");
        dml__read_text(text, sizeof text, root, path);
        if (text[0] != 'D' && text[0] != 'U') continue; /* Data, Unified */
        snprintf(name, room, "size");
        dml__read_text(text, sizeof text, root, path);
        char *unit;
        const unsigned long size = strtoul(text, &unit, 10);
        level[number].bytes = (size_t)size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
        snprintf(name, room, "shared_cpu_list");
        dml__read_text(text, sizeof text, root, path);
        level[number].sharers = dml__count_list(text);
    }
    return dml__caches_from(level);
}
#else
DML__LOCAL dml_caches dml__cpu_caches_of_system(const char *root)
{
    const dml_caches none = { 0, 0, 0, 1 };
    (void)root;
    return none;
}
#endif

DML_API dml_caches dml_cpu_caches(void)
{
    dml_caches caches = dml__caches_of_processor();
    if (!caches.l1 || !caches.l2) caches = dml__cpu_caches_of_system("");
    if (!caches.l1) caches.l1 = DML__LEAST_L1;
    if (!caches.l2) caches.l2 = DML__LEAST_L2;
    /* A virtual machine shows the cache of the whole, and some of its cores. */
    const int online = dml__cpu_online();
    if (caches.l3_cores > online) caches.l3_cores = online > 0 ? online : 1;
    return caches;
}

#endif

/* ---- base/float16.c ---- */

#ifndef DML_BASE_FLOAT16_C
#define DML_BASE_FLOAT16_C

/* ---- base/float16.h ---- */

/* float16.h: floats in 16 bits of either type, DML_BF16 or DML_F16, a line of them at a time. */
#ifndef DML_BASE_FLOAT16_H
#define DML_BASE_FLOAT16_H

/* y = x, rounded to nearest, ties to even; back, exactly; and x as if it had been there and back. A NaN stays
   one. n elements each, by the calling thread. Each instruction set gives the same bits. */
DML__LOCAL void dml__narrow_line(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y);
DML__LOCAL void dml__widen_line(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y);
DML__LOCAL void dml__round_line(dml_isa isa, dml_dtype dtype, size_t n, float *x);

/* Pairs of bf16 in words: of `even` in the lower half, of `odd` in the upper one. */
DML__LOCAL void dml__pair_line(size_t n, const float *even, const float *odd, float *pairs);

#endif

/* ---- base/simd.h ---- */

/* simd.h: how a function is compiled for an instruction set, and four lanes of whatever the compiler has. */
#ifndef DML_BASE_SIMD_H
#define DML_BASE_SIMD_H

#include <string.h>

#define DML__INLINE static inline __attribute__((always_inline))
#if defined(DML__EMULATED)
#define DML__TARGET(isa)
#else
#define DML__TARGET(isa) __attribute__((target(isa)))
#endif

/* A function that is made small, not fast; and by gcc with the passes of -Og, which take a third of the time
   of those of -O2. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define DML__COLD __attribute__((cold, noinline, optimize("Og")))
#elif defined(__GNUC__)
#define DML__COLD __attribute__((cold, noinline))
#else
#define DML__COLD
#endif

typedef float dml__v4 __attribute__((vector_size(16)));
typedef int32_t dml__v4_mask __attribute__((vector_size(16)));
typedef uint32_t dml__v4_bits __attribute__((vector_size(16)));

DML__INLINE dml__v4 dml__plain_load(const float *from)
{
    dml__v4 value;
    memcpy(&value, from, sizeof value);
    return value;
}

DML__INLINE void dml__plain_store(float *to, dml__v4 value)
{
    memcpy(to, &value, sizeof value);
}

#endif

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Four at a time, in the vectors that every processor has: a pass over memory waits for that anyway. No
   branches, so that a NaN takes no longer than a number; and on the bits, so that no option of the compiler
   makes sums of what must be rounded. */

/* The bits of an f32 without its sign, and the sign. */
#define DML__HALF_SIGN 0x80000000u
#define DML__HALF_INFINITY 0x7F800000u

DML__INLINE dml__v4_bits dml__half_splat(uint32_t x)
{
    const dml__v4_bits all = { x, x, x, x };
    return all;
}

/* Where the mask is all ones `a`, where it is zero `b`. */
DML__INLINE dml__v4_bits dml__half_choose(dml__v4_mask mask, dml__v4_bits a, dml__v4_bits b)
{
    return ((dml__v4_bits)mask & a) | (~(dml__v4_bits)mask & b);
}

/* To nearest, of two as near to the even one, in the bits above the lowest `bits`, which stay. */
DML__INLINE dml__v4_bits dml__half_nearest(dml__v4_bits x, int bits)
{
    return x + dml__half_splat((1u << (bits - 1)) - 1) + ((x >> bits) & dml__half_splat(1));
}

/* bf16 in the upper halves, with rubbish in the lower ones. */
DML__INLINE dml__v4_bits dml__bf16_bits(dml__v4_bits x)
{
    const dml__v4_mask nan = (dml__v4_mask)(x & ~dml__half_splat(DML__HALF_SIGN)) >
                             (dml__v4_mask)dml__half_splat(DML__HALF_INFINITY);
    return dml__half_choose(nan, x | dml__half_splat(0x400000u), dml__half_nearest(x, 16));
}

/* f16 in the lower halves, with the sign at the top of the word as well. */
DML__INLINE dml__v4_bits dml__f16_bits(dml__v4_bits x)
{
    const dml__v4_bits sign = x & dml__half_splat(DML__HALF_SIGN), size = x ^ sign,
                       half = dml__half_splat(0x3F000000u);
    /* 2^-24 is the last bit of what is from 0.5 to 1. */
    const dml__v4_bits small = (dml__v4_bits)((dml__v4)size + (dml__v4)half) - half;
    const dml__v4_bits normal = (dml__half_nearest(size, 13) >> 13) - dml__half_splat(112u << 10);
    const dml__v4_bits nan = dml__half_splat(0x7E00u) | ((size >> 13) & dml__half_splat(0x3FFu));
    dml__v4_bits out =
        dml__half_choose((dml__v4_mask)size < (dml__v4_mask)dml__half_splat(0x38800000u), small, normal);
    out = dml__half_choose((dml__v4_mask)out > (dml__v4_mask)dml__half_splat(0x7BFFu),
                           dml__half_splat(0x7C00u), out);
    out = dml__half_choose((dml__v4_mask)size > (dml__v4_mask)dml__half_splat(DML__HALF_INFINITY), nan, out);
    return out | sign | (sign >> 16);
}

/* The f32 of f16 in the lower halves; what is above doesn't count. */
DML__INLINE dml__v4_bits dml__f16_widened(dml__v4_bits x)
{
    const dml__v4_bits size = x & dml__half_splat(0x7FFFu), sign = (x & dml__half_splat(0x8000u)) << 16;
    const dml__v4_bits half = dml__half_splat(0x3F000000u), shifted = size << 13;
    const dml__v4_bits small = (dml__v4_bits)((dml__v4)(size | half) - (dml__v4)half);
    const dml__v4_bits infinite = shifted + dml__half_splat(224u << 23);
    dml__v4_bits out = shifted + dml__half_splat(112u << 23);
    out = dml__half_choose((dml__v4_mask)size < (dml__v4_mask)dml__half_splat(0x400u), small, out);
    out = dml__half_choose((dml__v4_mask)size >= (dml__v4_mask)dml__half_splat(0x7C00u), infinite, out);
    return out | sign;
}

/* The upper or the lower halves of eight words. */
DML__INLINE void dml__half_store(dml__v4_bits a, dml__v4_bits b, bool upper, uint16_t *to)
{
#if defined(__SSE2__)
    __m128i low = (__m128i)a, high = (__m128i)b;
    if (!upper) low = _mm_slli_epi32(low, 16), high = _mm_slli_epi32(high, 16);
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm_packs_epi32(_mm_srai_epi32(low, 16), _mm_srai_epi32(high, 16)));
#else
    for (int i = 0; i < 4; i++) {
        to[i] = (uint16_t)(upper ? a[i] >> 16 : a[i]);
        to[4 + i] = (uint16_t)(upper ? b[i] >> 16 : b[i]);
    }
#endif
}

/* Four of them as the upper or the lower halves of words. */
DML__INLINE dml__v4_bits dml__half_load(const uint16_t *from, bool upper)
{
#if defined(__SSE2__)
    const __m128i four = _mm_loadl_epi64((const __m128i *)(const void *)from), zero = _mm_setzero_si128();
    return (dml__v4_bits)(upper ? _mm_unpacklo_epi16(zero, four) : _mm_unpacklo_epi16(four, zero));
#else
    const dml__v4_bits four = { from[0], from[1], from[2], from[3] };
    return upper ? four << 16 : four;
#endif
}

DML__INLINE dml__v4_bits dml__half_bits(bool bf16, dml__v4_bits x)
{
    return bf16 ? dml__bf16_bits(x) : dml__f16_bits(x);
}

DML__INLINE void dml__narrow_eights(bool bf16, size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8) {
        const dml__v4_bits low = (dml__v4_bits)dml__plain_load(x + i),
                           high = (dml__v4_bits)dml__plain_load(x + i + 4);
        dml__half_store(dml__half_bits(bf16, low), dml__half_bits(bf16, high), bf16, y + i);
    }
}

DML__INLINE void dml__widen_fours(bool bf16, size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i += 4) {
        const dml__v4_bits four = dml__half_load(x + i, bf16);
        dml__plain_store(y + i, (dml__v4)(bf16 ? four : dml__f16_widened(four)));
    }
}

DML__INLINE void dml__round_fours(bool bf16, size_t n, float *x)
{
    for (size_t i = 0; i < n; i += 4) {
        const dml__v4_bits bits = dml__half_bits(bf16, (dml__v4_bits)dml__plain_load(x + i));
        dml__plain_store(x + i,
                         (dml__v4)(bf16 ? bits & dml__half_splat(0xFFFF0000u) : dml__f16_widened(bits)));
    }
}

#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)

/* By AVX2, and by the instructions for f16 that every processor with AVX2 has. */
#define DML__F16C DML__TARGET("avx2,fma,f16c")
#define DML__HAS_F16C 1

DML__F16C static void dml__narrow_f16c(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
}

DML__F16C static void dml__widen_f16c(size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
}

DML__F16C static void dml__round_f16c(size_t n, float *x)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0)));
}

DML__F16C static void dml__round_bf16_avx2(size_t n, float *x)
{
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
    const __m256i size = _mm256_set1_epi32(0x7FFFFFFF), infinity = _mm256_set1_epi32(0x7F800000);
    const __m256i quiet = _mm256_set1_epi32(0x400000), upper = _mm256_set1_epi32((int)0xFFFF0000u);
    for (size_t i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
        const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, half), odd);
        const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, size), infinity);
        const __m256i all = _mm256_blendv_epi8(nearest, _mm256_or_si256(bits, quiet), nan);
        _mm256_storeu_si256((__m256i *)(void *)(x + i), _mm256_and_si256(all, upper));
    }
}

#endif

static void dml__narrow_whole(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
#if defined(DML__HAS_F16C)
    if (dtype == DML_F16 && isa >= DML_ISA_AVX2) {
        dml__narrow_f16c(n, x, y);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__narrow_eights(true, n, x, y);
    else
        dml__narrow_eights(false, n, x, y);
}

static void dml__widen_whole(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y)
{
#if defined(DML__HAS_F16C)
    if (dtype == DML_F16 && isa >= DML_ISA_AVX2) {
        dml__widen_f16c(n, x, y);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__widen_fours(true, n, x, y);
    else
        dml__widen_fours(false, n, x, y);
}

static void dml__round_whole(dml_isa isa, dml_dtype dtype, size_t n, float *x)
{
#if defined(DML__HAS_F16C)
    if (isa >= DML_ISA_AVX2) {
        if (dtype == DML_BF16)
            dml__round_bf16_avx2(n, x);
        else
            dml__round_f16c(n, x);
        return;
    }
#endif
    (void)isa;
    if (dtype == DML_BF16)
        dml__round_fours(true, n, x);
    else
        dml__round_fours(false, n, x);
}

/* A rest goes through padded vectors. */
DML__LOCAL void dml__narrow_line(dml_isa isa, dml_dtype dtype, size_t n, const float *x, uint16_t *y)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    float wide[8] = { 0 };
    uint16_t narrow[8];
    dml__narrow_whole(isa, dtype, whole, x, y);
    if (!rest) return;
    memcpy(wide, x + whole, rest * sizeof *wide);
    dml__narrow_whole(isa, dtype, 8, wide, narrow);
    memcpy(y + whole, narrow, rest * sizeof *narrow);
}

DML__LOCAL void dml__widen_line(dml_isa isa, dml_dtype dtype, size_t n, const uint16_t *x, float *y)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    uint16_t narrow[8] = { 0 };
    float wide[8];
    dml__widen_whole(isa, dtype, whole, x, y);
    if (!rest) return;
    memcpy(narrow, x + whole, rest * sizeof *narrow);
    dml__widen_whole(isa, dtype, 8, narrow, wide);
    memcpy(y + whole, wide, rest * sizeof *wide);
}

DML__LOCAL void dml__round_line(dml_isa isa, dml_dtype dtype, size_t n, float *x)
{
    const size_t whole = n / 8 * 8, rest = n - whole;
    float wide[8] = { 0 };
    dml__round_whole(isa, dtype, whole, x);
    if (!rest) return;
    memcpy(wide, x + whole, rest * sizeof *wide);
    dml__round_whole(isa, dtype, 8, wide);
    memcpy(x + whole, wide, rest * sizeof *wide);
}

DML__LOCAL void dml__pair_line(size_t n, const float *even, const float *odd, float *pairs)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const dml__v4_bits low = dml__bf16_bits((dml__v4_bits)dml__plain_load(even + i));
        const dml__v4_bits high = dml__bf16_bits((dml__v4_bits)dml__plain_load(odd + i));
        dml__plain_store(pairs + i, (dml__v4)(low >> 16 | (high & dml__half_splat(0xFFFF0000u))));
    }
    for (; i < n; i++) {
        uint16_t two[2];
        dml__narrow_line(DML_ISA_SCALAR, DML_BF16, 1, even + i, &two[0]);
        dml__narrow_line(DML_ISA_SCALAR, DML_BF16, 1, odd + i, &two[1]);
        const uint32_t pair = (uint32_t)two[1] << 16 | two[0];
        memcpy(&pairs[i], &pair, sizeof pair);
    }
}

#endif

/* ---- base/os_thread.c ---- */

#ifndef DML_BASE_OS_THREAD_C
#define DML_BASE_OS_THREAD_C

/* ---- base/os_thread.h ---- */

/* os_thread.h: threads, mutexes and condition variables of the operating system; with DML_NO_THREADS the
   mutexes do nothing and no thread can be started. */
#ifndef DML_BASE_OS_THREAD_H
#define DML_BASE_OS_THREAD_H

#ifndef DML_NO_THREADS
#ifdef _WIN32
typedef void *dml__thread; /* a HANDLE */
typedef void *dml__mutex;  /* an SRWLOCK */
typedef void *dml__cond;   /* a CONDITION_VARIABLE */
#else
#include <pthread.h>
typedef pthread_t dml__thread;
typedef pthread_mutex_t dml__mutex;
typedef pthread_cond_t dml__cond;
#endif
#else
typedef int dml__thread;
typedef int dml__mutex;
typedef int dml__cond;
#endif

/* False when the thread can't be had. A thread has every signal blocked: signals are the host's business. */
DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument);
DML__LOCAL void dml__thread_join(dml__thread *thread);

/* Keeps the calling thread on the `index`th processor of its affinity mask, counted round and round. Nothing
   happens where that can't be had. */
DML__LOCAL void dml__thread_pin(int index);

/* Lets another thread or process that wants this processor have it; returns at once where none does. */
DML__LOCAL void dml__thread_yield(void);

/* A number that no other thread of the process has, never 0. */
DML__LOCAL uintptr_t dml__thread_self(void);

/* The calling process, by which a child of fork() finds out that threads haven't come along. */
DML__LOCAL long dml__process_id(void);

/* The same without a call of the system each time: a word that isn't 0, but is in a child of fork(). NULL
   where that can't be had. */
DML__LOCAL const int *dml__mark_process(void);
DML__LOCAL void dml__unmark_process(const int *mark); /* NULL is fine */

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex);
DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex);
DML__LOCAL void dml__mutex_lock(dml__mutex *mutex);
DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex);

/* Waits use the monotonic clock. `seconds` < 0 waits without end; false means that the time ran out. */
DML__LOCAL bool dml__cond_init(dml__cond *cond);
DML__LOCAL void dml__cond_destroy(dml__cond *cond);
DML__LOCAL void dml__cond_signal_all(dml__cond *cond);
DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds);

#endif

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

DML__LOCAL void dml__thread_yield(void)
{
    sched_yield();
}

DML__LOCAL long dml__process_id(void)
{
    return (long)getpid();
}
#else
DML__LOCAL void dml__thread_yield(void)
{
}

DML__LOCAL long dml__process_id(void)
{
    return 1; /* there is no fork() */
}
#endif

#if defined(__linux__) && defined(MADV_WIPEONFORK) && defined(MAP_ANONYMOUS)
DML__LOCAL const int *dml__mark_process(void)
{
    void *page = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, sizeof(int), MADV_WIPEONFORK) == 0) {
        *(int *)page = 1;
        return (const int *)page;
    }
    munmap(page, sizeof(int));
    return NULL;
}

DML__LOCAL void dml__unmark_process(const int *mark)
{
    if (mark) munmap((void *)(uintptr_t)mark, sizeof(int));
}
#else
DML__LOCAL const int *dml__mark_process(void)
{
    return NULL;
}

DML__LOCAL void dml__unmark_process(const int *mark)
{
    (void)mark;
}
#endif

DML__LOCAL void dml__thread_pin(int index)
{
#if defined(_WIN32)
    size_t mask = 0, everyones = 0;
    dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mask, &everyones);
    int count = 0;
    for (size_t left = mask; left; left &= left - 1) count++;
    if (count == 0) return;
    for (int skip = index % count; skip > 0; skip--) mask &= mask - 1;
    dml__windows_SetThreadAffinityMask(dml__windows_GetCurrentThread(), mask & (~mask + 1));
#elif defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0) return;
    int skip = index % CPU_COUNT(&set), processor = 0;
    while (!CPU_ISSET(processor, &set) || skip-- > 0) processor++;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
#else
    (void)index;
#endif
}

#if !defined(DML_NO_THREADS) && defined(_WIN32)

#include <process.h>
#include <stdlib.h>

typedef struct dml__thread_start_argument {
    void (*run)(void *argument);
    void *argument;
} dml__thread_start_argument;

static unsigned __stdcall dml__thread_main(void *raw)
{
    const dml__thread_start_argument start = *(dml__thread_start_argument *)raw;
    free(raw);
    start.run(start.argument);
    return 0;
}

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    dml__thread_start_argument *start = (dml__thread_start_argument *)malloc(sizeof *start);
    if (!start) return false;
    start->run = run;
    start->argument = argument;
    *thread = (void *)_beginthreadex(NULL, 0, dml__thread_main, start, 0, NULL);
    if (!*thread) free(start);
    return *thread != NULL;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    dml__windows_WaitForSingleObject(*thread, DML__WINDOWS_FOREVER);
    dml__windows_CloseHandle(*thread);
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return (uintptr_t)dml__windows_GetCurrentThreadId();
}

/* An SRWLOCK and a CONDITION_VARIABLE are a pointer each, begin as NULL and own nothing. */
DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    *mutex = NULL;
    return true;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    dml__windows_AcquireSRWLockExclusive(mutex);
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    dml__windows_ReleaseSRWLockExclusive(mutex);
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    *cond = NULL;
    return true;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    dml__windows_WakeAllConditionVariable(cond);
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    const double longest = 1e9; /* milliseconds; who waits longer wakes for no reason, which is allowed */
    const double wanted = seconds * 1e3;
    unsigned long milliseconds = DML__WINDOWS_FOREVER;
    if (seconds >= 0) {
        milliseconds = (unsigned long)(wanted < longest ? wanted : longest);
        if ((double)milliseconds < wanted) milliseconds++;
    }
    return dml__windows_SleepConditionVariableSRW(cond, mutex, milliseconds, 0) || wanted > longest;
}

#elif !defined(DML_NO_THREADS)

#include <signal.h>
#include <stdlib.h>
#include <time.h>

typedef struct dml__thread_start_argument {
    void (*run)(void *argument);
    void *argument;
} dml__thread_start_argument;

static void *dml__thread_main(void *raw)
{
    const dml__thread_start_argument start = *(dml__thread_start_argument *)raw;
    free(raw);
    start.run(start.argument);
    return NULL;
}

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    /* malloc, not the caller's allocator: that one is promised to the calling thread alone. */
    dml__thread_start_argument *start = (dml__thread_start_argument *)malloc(sizeof *start);
    if (!start) return false;
    start->run = run;
    start->argument = argument;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(thread, NULL, dml__thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) free(start);
    return !failed;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    pthread_join(*thread, NULL);
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return (uintptr_t)pthread_self();
}

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    return pthread_mutex_init(mutex, NULL) == 0;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    pthread_mutex_destroy(mutex);
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes)) return false;
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    const bool ok = pthread_cond_init(cond, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return ok;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    pthread_cond_destroy(cond);
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    pthread_cond_broadcast(cond);
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    if (seconds < 0) return pthread_cond_wait(cond, mutex) == 0;
    struct timespec until;
#ifdef __APPLE__
    clock_gettime(CLOCK_REALTIME, &until);
#else
    clock_gettime(CLOCK_MONOTONIC, &until);
#endif
    const double fraction = (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec += (time_t)fraction;
    until.tv_nsec = (long)((fraction - (double)(time_t)fraction) * 1e9);
    return pthread_cond_timedwait(cond, mutex, &until) == 0;
}

#else

DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument)
{
    (void)thread, (void)run, (void)argument;
    return false;
}

DML__LOCAL void dml__thread_join(dml__thread *thread)
{
    (void)thread;
}

DML__LOCAL uintptr_t dml__thread_self(void)
{
    return 1;
}

DML__LOCAL bool dml__mutex_init(dml__mutex *mutex)
{
    *mutex = 0;
    return true;
}

DML__LOCAL void dml__mutex_destroy(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_lock(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL void dml__mutex_unlock(dml__mutex *mutex)
{
    (void)mutex;
}

DML__LOCAL bool dml__cond_init(dml__cond *cond)
{
    *cond = 0;
    return true;
}

DML__LOCAL void dml__cond_destroy(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL void dml__cond_signal_all(dml__cond *cond)
{
    (void)cond;
}

DML__LOCAL bool dml__cond_wait(dml__cond *cond, dml__mutex *mutex, double seconds)
{
    (void)cond, (void)mutex, (void)seconds;
    return false;
}

#endif

#endif

/* ---- net/sha256.c ---- */

#ifndef DML_NET_SHA256_C
#define DML_NET_SHA256_C

/* ---- net/sha256.h ---- */

/* sha256.h: SHA-256 and HMAC-SHA256, with which ranks prove to each other that they have the key. */
#ifndef DML_NET_SHA256_H
#define DML_NET_SHA256_H

#define DML__SHA256_BYTES 32

typedef struct dml__sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* taken in so far */
    uint8_t block[64]; /* the last bytes % 64 of them */
} dml__sha256;

/* Source: FIPS 180-4. */
DML__LOCAL void dml__sha256_begin(dml__sha256 *hash);
DML__LOCAL void dml__sha256_add(dml__sha256 *hash, const void *data, size_t bytes);
DML__LOCAL void dml__sha256_end(dml__sha256 *hash, uint8_t digest[DML__SHA256_BYTES]);

typedef struct dml__hmac {
    dml__sha256 inner;
    uint8_t outer_pad[64];
} dml__hmac;

/* Source: RFC 2104. */
DML__LOCAL void dml__hmac_begin(dml__hmac *hmac, const void *key, size_t key_bytes);
DML__LOCAL void dml__hmac_add(dml__hmac *hmac, const void *data, size_t bytes);
DML__LOCAL void dml__hmac_end(dml__hmac *hmac, uint8_t mac[DML__SHA256_BYTES]);

/* Whether two buffers are equal, in a time that doesn't depend on where they differ. */
DML__LOCAL bool dml__equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif

#include <string.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t dml__sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t dml__rotate_right(uint32_t x, int by)
{
    return (x >> by) | (x << (32 - by));
}

static void dml__sha256_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = block + 4 * i;
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        const uint32_t s0 = dml__rotate_right(x, 7) ^ dml__rotate_right(x, 18) ^ (x >> 3);
        const uint32_t s1 = dml__rotate_right(y, 17) ^ dml__rotate_right(y, 19) ^ (y >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t s[8];
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t e1 =
            dml__rotate_right(s[4], 6) ^ dml__rotate_right(s[4], 11) ^ dml__rotate_right(s[4], 25);
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t t1 = s[7] + e1 + choice + dml__sha256_k[i] + w[i];
        const uint32_t e0 =
            dml__rotate_right(s[0], 2) ^ dml__rotate_right(s[0], 13) ^ dml__rotate_right(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + e0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

DML__LOCAL void dml__sha256_begin(dml__sha256 *hash)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, start, sizeof start);
}

DML__LOCAL void dml__sha256_add(dml__sha256 *hash, const void *data, size_t bytes)
{
    const uint8_t *in = (const uint8_t *)data;
    while (bytes) {
        const size_t used = (size_t)(hash->bytes % 64);
        const size_t take = bytes < 64 - used ? bytes : 64 - used;
        memcpy(hash->block + used, in, take);
        hash->bytes += take;
        in += take;
        bytes -= take;
        if (used + take == 64) dml__sha256_block(hash->state, hash->block);
    }
}

DML__LOCAL void dml__sha256_end(dml__sha256 *hash, uint8_t digest[DML__SHA256_BYTES])
{
    static const uint8_t padding[64] = { 0x80 };
    const uint64_t bits = hash->bytes * 8;
    const size_t used = (size_t)(hash->bytes % 64);
    dml__sha256_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    dml__sha256_add(hash, length, sizeof length);
    for (int i = 0; i < DML__SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

DML__LOCAL void dml__hmac_begin(dml__hmac *hmac, const void *key, size_t key_bytes)
{
    uint8_t padded[64] = { 0 };
    if (key_bytes > sizeof padded) {
        dml__sha256_begin(&hmac->inner);
        dml__sha256_add(&hmac->inner, key, key_bytes);
        dml__sha256_end(&hmac->inner, padded);
    } else if (key_bytes) {
        memcpy(padded, key, key_bytes);
    }
    for (int i = 0; i < 64; i++) hmac->outer_pad[i] = (uint8_t)(padded[i] ^ 0x5c);
    for (int i = 0; i < 64; i++) padded[i] ^= 0x36;
    dml__sha256_begin(&hmac->inner);
    dml__sha256_add(&hmac->inner, padded, sizeof padded);
}

DML__LOCAL void dml__hmac_add(dml__hmac *hmac, const void *data, size_t bytes)
{
    dml__sha256_add(&hmac->inner, data, bytes);
}

DML__LOCAL void dml__hmac_end(dml__hmac *hmac, uint8_t mac[DML__SHA256_BYTES])
{
    uint8_t inner[DML__SHA256_BYTES];
    dml__sha256_end(&hmac->inner, inner);
    dml__sha256_begin(&hmac->inner);
    dml__sha256_add(&hmac->inner, hmac->outer_pad, sizeof hmac->outer_pad);
    dml__sha256_add(&hmac->inner, inner, sizeof inner);
    dml__sha256_end(&hmac->inner, mac);
}

DML__LOCAL bool dml__equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++) difference = (uint8_t)(difference | (a[i] ^ b[i]));
    return difference == 0;
}

#endif

/* ---- net/wire.c ---- */

#ifndef DML_NET_WIRE_C
#define DML_NET_WIRE_C

/* ---- net/wire.h ---- */

/* wire.h: what goes over a connection, byte by byte. Everything is little-endian and of fixed size. Encoders
   fill exactly the bytes given; decoders take any bytes at all and say false to what can't be ours. */
#ifndef DML_NET_WIRE_H
#define DML_NET_WIRE_H

#include <string.h>

#define DML__WIRE_VERSION 1

/* ---- messages: "dml", a letter that says of what kind, a version; then whatever the kind has ---- */

/* A place in a message; each put or get moves it on. */
typedef struct dml__wire_writer {
    uint8_t *at;
} dml__wire_writer;
typedef struct dml__wire_reader {
    const uint8_t *at;
} dml__wire_reader;

static inline void dml__wire_put(dml__wire_writer *writer, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *writer->at++ = (uint8_t)(value >> (8 * i));
}

static inline void dml__wire_put_bytes(dml__wire_writer *writer, const void *data, size_t bytes)
{
    memcpy(writer->at, data, bytes);
    writer->at += bytes;
}

static inline uint64_t dml__wire_get(dml__wire_reader *reader, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

/* A 32-bit signed number. */
static inline int dml__wire_get_int(dml__wire_reader *reader)
{
    const uint32_t value = (uint32_t)dml__wire_get(reader, 4);
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

static inline void dml__wire_get_bytes(dml__wire_reader *reader, void *data, size_t bytes)
{
    memcpy(data, reader->at, bytes);
    reader->at += bytes;
}

/* Clears the message (bytes) and begins it: 6 bytes. */
DML__LOCAL dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, char kind, int version);

/* The version, or -1 if this isn't such a message; at least 6 bytes. */
DML__LOCAL int dml__open_message(const uint8_t *in, char kind, dml__wire_reader *reader);

/* ---- on the control channel ---- */

/* Of the kinds of messages one is the rendezvous' own; the others, and what is in them, are the business of
   the floor above. */
#define DML__ADDRESSES 1     /* of ranks rank, rank + 1, ... */
#define DML__CONTROL_KINDS 2 /* the first of the others', up to 255 */

#define DML__CONTROL_BYTES 512
#define DML__CONTROL_BODY 480
typedef struct dml__control {
    int kind; /* from 1 */
    int rank;
    dml_status status;
    int bytes; /* of the body */
    uint8_t body[DML__CONTROL_BODY];
} dml__control;
DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES]);
DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control);

/* A sentence as the body, cut to its size less one, and back: without anything that a terminal would obey. */
DML__LOCAL void dml__set_control_text(dml__control *control, const char *text);
DML__LOCAL void dml__control_text(const dml__control *control, char text[DML__CONTROL_BODY]);

/* Addresses as the body, at most DML__ADDRESSES_AT_ONCE of them. */
#define DML__ADDRESSES_AT_ONCE 20
typedef struct dml__endpoint {
    uint8_t ip[16]; /* of IPv4, the first 4 */
    uint16_t port;
    uint8_t family; /* 4 or 6 */
} dml__endpoint;
DML__LOCAL void dml__set_control_addresses(dml__control *control, const dml__endpoint *endpoints, int count);

/* How many they are, or -1 if these are none. */
DML__LOCAL int dml__control_addresses(const dml__control *control,
                                      dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE]);

/* ---- the handshake ---- */

/* The handshake of each connection: the accepting side sends a challenge, the connecting side a hello, the
   accepting side a welcome. With a key, hello and welcome end in HMACs over everything so far, so that either
   side proves that it has the key, that it speaks now, to whom, and in which role. */
#define DML__NONCE_BYTES 32
#define DML__SESSION_BYTES 16
#define DML__MAC_BYTES 32

#define DML__CHALLENGE_BYTES 48
typedef struct dml__challenge {
    uint8_t nonce[DML__NONCE_BYTES];
} dml__challenge;
DML__LOCAL void dml__encode_challenge(const dml__challenge *challenge, uint8_t out[DML__CHALLENGE_BYTES]);
DML__LOCAL bool dml__decode_challenge(const uint8_t in[DML__CHALLENGE_BYTES], dml__challenge *challenge);

#define DML__HELLO_BYTES 128
typedef struct dml__hello {
    int version;
    bool has_key;
    int channel;  /* a dml__channel */
    int from, to; /* ranks */
    int world;
    uint16_t port; /* where `from` listens; 0: nowhere */
    uint64_t segment_bytes;
    uint8_t session[DML__SESSION_BYTES]; /* zero in the first connection to rank 0, which answers with it */
    uint8_t nonce[DML__NONCE_BYTES];
    uint8_t mac[DML__MAC_BYTES];
} dml__hello;
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES]);
DML__LOCAL bool dml__decode_hello(const uint8_t in[DML__HELLO_BYTES], dml__hello *hello);

/* X(NAME, its hello was authentic: the job is at fault, not a stranger) */
#define DML__VERDICT_LIST(X)                                                                                 \
    X(WELCOME, true)                                                                                         \
    X(WRONG_VERSION, false)                                                                                  \
    X(NEEDS_KEY, false)                                                                                      \
    X(HAS_NO_KEY, false)                                                                                     \
    X(WRONG_KEY, false)                                                                                      \
    X(WRONG_SESSION, false)                                                                                  \
    X(WRONG_WORLD, true)                                                                                     \
    X(WRONG_RANK, true)                                                                                      \
    X(RANK_TAKEN, true)                                                                                      \
    X(WRONG_SEGMENT, true)

typedef enum dml__verdict {
#define DML__VERDICT_ENUM(NAME, authentic) DML__VERDICT_##NAME,
    DML__VERDICT_LIST(DML__VERDICT_ENUM)
#undef DML__VERDICT_ENUM
        DML__VERDICT_COUNT
} dml__verdict;

#define DML__WELCOME_BYTES 96
typedef struct dml__welcome {
    int version;
    dml__verdict verdict;
    int rank, world; /* of the accepting side */
    uint64_t segment_bytes;
    uint8_t session[DML__SESSION_BYTES];
    uint8_t mac[DML__MAC_BYTES];
} dml__welcome;
DML__LOCAL void dml__encode_welcome(const dml__welcome *welcome, uint8_t out[DML__WELCOME_BYTES]);
DML__LOCAL bool dml__decode_welcome(const uint8_t in[DML__WELCOME_BYTES], dml__welcome *welcome);

/* The MACs, over the encoded messages; the mac fields at their ends are left out where they are the result.
 */
DML__LOCAL void dml__hello_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                               const uint8_t hello[DML__HELLO_BYTES], uint8_t mac[DML__MAC_BYTES]);
DML__LOCAL void dml__welcome_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                                 const uint8_t hello[DML__HELLO_BYTES],
                                 const uint8_t welcome[DML__WELCOME_BYTES], uint8_t mac[DML__MAC_BYTES]);

#endif

#include <string.h>

/* The fourth byte of a message; the first three never change, so that any two versions can tell that they are
   two versions. */
#define DML__WIRE_CONTROL 'c'
#define DML__WIRE_CHALLENGE 'C'
#define DML__WIRE_HELLO 'H'
#define DML__WIRE_WELCOME 'W'

DML__LOCAL dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, char kind, int version)
{
    dml__wire_writer writer;
    memset(out, 0, bytes);
    writer.at = out;
    dml__wire_put_bytes(&writer, "dml", 3);
    dml__wire_put(&writer, (uint8_t)kind, 1);
    dml__wire_put(&writer, (uint64_t)version, 2);
    return writer;
}

DML__LOCAL int dml__open_message(const uint8_t *in, char kind, dml__wire_reader *reader)
{
    reader->at = in + 4;
    if (memcmp(in, "dml", 3) != 0 || in[3] != (uint8_t)kind) return -1;
    return (int)dml__wire_get(reader, 2);
}

/* ---- control ----
   0 "dml" 3 'c' 4 version:2 6 kind:1 7 status:1 8 rank:4 12 bytes:4 16 zero:16 32 body:480 */

DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__CONTROL_BYTES, DML__WIRE_CONTROL, DML__WIRE_VERSION);
    DML_ASSERT(control->bytes >= 0 && control->bytes <= DML__CONTROL_BODY);
    dml__wire_put(&writer, (uint64_t)control->kind, 1);
    dml__wire_put(&writer, (uint64_t)control->status, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)control->rank, 4);
    dml__wire_put(&writer, (uint64_t)control->bytes, 4);
    memcpy(out + DML__CONTROL_BYTES - DML__CONTROL_BODY, control->body, (size_t)control->bytes);
}

DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control)
{
    dml__wire_reader reader;
    dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
    memset(control, 0, sizeof *control);
    if (dml__open_message(in, DML__WIRE_CONTROL, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t kind = dml__wire_get(&reader, 1), status = dml__wire_get(&reader, 1);
    control->rank = dml__wire_get_int(&reader);
    const uint64_t bytes = dml__wire_get(&reader, 4);
    if (kind < DML__ADDRESSES || status >= DML__STATUS_COUNT || bytes > DML__CONTROL_BODY) return false;
    control->kind = (int)kind;
    control->status = (dml_status)status;
    control->bytes = (int)bytes;
    memcpy(control->body, in + DML__CONTROL_BYTES - DML__CONTROL_BODY, (size_t)bytes);
    return kind != DML__ADDRESSES || dml__control_addresses(control, endpoints) >= 0;
}

DML__LOCAL void dml__set_control_text(dml__control *control, const char *text)
{
    const size_t bytes = strlen(text);
    control->bytes = bytes < DML__CONTROL_BODY ? (int)bytes : DML__CONTROL_BODY - 1;
    memcpy(control->body, text, (size_t)control->bytes);
}

DML__LOCAL void dml__control_text(const dml__control *control, char text[DML__CONTROL_BODY])
{
    const size_t bytes =
        (size_t)(control->bytes < DML__CONTROL_BODY ? control->bytes : DML__CONTROL_BODY - 1);
    memcpy(text, control->body, bytes);
    text[bytes] = 0;
    /* Ends up in somebody's terminal. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
}

/* Of an address: family:1 zero:1 port:2 ip:16. */
#define DML__ENDPOINT_BYTES 20

DML__LOCAL void dml__set_control_addresses(dml__control *control, const dml__endpoint *endpoints, int count)
{
    dml__wire_writer writer;
    DML_ASSERT(count <= DML__ADDRESSES_AT_ONCE);
    writer.at = control->body;
    for (int i = 0; i < count; i++) {
        dml__wire_put(&writer, endpoints[i].family, 2);
        dml__wire_put(&writer, endpoints[i].port, 2);
        dml__wire_put_bytes(&writer, endpoints[i].ip, 16);
    }
    control->bytes = DML__ENDPOINT_BYTES * count;
}

DML__LOCAL int dml__control_addresses(const dml__control *control,
                                      dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE])
{
    const int count = control->bytes / DML__ENDPOINT_BYTES;
    dml__wire_reader reader;
    if (control->bytes % DML__ENDPOINT_BYTES || count > DML__ADDRESSES_AT_ONCE) return -1;
    reader.at = control->body;
    for (int i = 0; i < count; i++) {
        const uint64_t family = dml__wire_get(&reader, 2);
        if (family != 4 && family != 6) return -1;
        endpoints[i].family = (uint8_t)family;
        endpoints[i].port = (uint16_t)dml__wire_get(&reader, 2);
        dml__wire_get_bytes(&reader, endpoints[i].ip, 16);
    }
    return count;
}

/* ---- handshake ---- */

/* 0 "dml" 3 'C' 4 version:2 6 zero:10 16 nonce:32 */
DML__LOCAL void dml__encode_challenge(const dml__challenge *challenge, uint8_t out[DML__CHALLENGE_BYTES])
{
    dml__begin_message(out, DML__CHALLENGE_BYTES, DML__WIRE_CHALLENGE, DML__WIRE_VERSION);
    memcpy(out + 16, challenge->nonce, DML__NONCE_BYTES);
}

/* Any version will do: the hello tells the accepting side ours, and it answers which is wrong. */
DML__LOCAL bool dml__decode_challenge(const uint8_t in[DML__CHALLENGE_BYTES], dml__challenge *challenge)
{
    dml__wire_reader reader;
    if (dml__open_message(in, DML__WIRE_CHALLENGE, &reader) < 0) return false;
    memcpy(challenge->nonce, in + 16, DML__NONCE_BYTES);
    return true;
}

/* 0 "dml" 3 'H' 4 version:2 6 has_key:1 7 channel:1 8 from:4 12 to:4 16 world:4 20 port:2 22 zero:2
   24 segment_bytes:8 32 session:16 48 nonce:32 80 zero:16 96 mac:32 */
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES])
{
    dml__wire_writer writer = dml__begin_message(out, DML__HELLO_BYTES, DML__WIRE_HELLO, hello->version);
    dml__wire_put(&writer, hello->has_key, 1);
    dml__wire_put(&writer, (uint64_t)hello->channel, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->from, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->to, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->world, 4);
    dml__wire_put(&writer, hello->port, 4);
    dml__wire_put(&writer, hello->segment_bytes, 8);
    dml__wire_put_bytes(&writer, hello->session, DML__SESSION_BYTES);
    dml__wire_put_bytes(&writer, hello->nonce, DML__NONCE_BYTES);
    memcpy(out + DML__HELLO_BYTES - DML__MAC_BYTES, hello->mac, DML__MAC_BYTES);
}

DML__LOCAL bool dml__decode_hello(const uint8_t in[DML__HELLO_BYTES], dml__hello *hello)
{
    dml__wire_reader reader;
    memset(hello, 0, sizeof *hello);
    hello->version = dml__open_message(in, DML__WIRE_HELLO, &reader);
    if (hello->version < 0) return false;
    hello->has_key = dml__wire_get(&reader, 1) != 0;
    hello->channel = (int)dml__wire_get(&reader, 1);
    hello->from = dml__wire_get_int(&reader);
    hello->to = dml__wire_get_int(&reader);
    hello->world = dml__wire_get_int(&reader);
    hello->port = (uint16_t)dml__wire_get(&reader, 4);
    hello->segment_bytes = dml__wire_get(&reader, 8);
    dml__wire_get_bytes(&reader, hello->session, DML__SESSION_BYTES);
    dml__wire_get_bytes(&reader, hello->nonce, DML__NONCE_BYTES);
    memcpy(hello->mac, in + DML__HELLO_BYTES - DML__MAC_BYTES, DML__MAC_BYTES);
    return true;
}

/* 0 "dml" 3 'W' 4 version:2 6 verdict:2 8 rank:4 12 world:4 16 segment_bytes:8 24 session:16 40 zero:24
   64 mac:32 */
DML__LOCAL void dml__encode_welcome(const dml__welcome *welcome, uint8_t out[DML__WELCOME_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__WELCOME_BYTES, DML__WIRE_WELCOME, welcome->version);
    dml__wire_put(&writer, (uint64_t)welcome->verdict, 2);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->rank, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->world, 4);
    dml__wire_put(&writer, welcome->segment_bytes, 8);
    dml__wire_put_bytes(&writer, welcome->session, DML__SESSION_BYTES);
    memcpy(out + DML__WELCOME_BYTES - DML__MAC_BYTES, welcome->mac, DML__MAC_BYTES);
}

DML__LOCAL bool dml__decode_welcome(const uint8_t in[DML__WELCOME_BYTES], dml__welcome *welcome)
{
    dml__wire_reader reader;
    memset(welcome, 0, sizeof *welcome);
    welcome->version = dml__open_message(in, DML__WIRE_WELCOME, &reader);
    if (welcome->version < 0) return false;
    const uint64_t verdict = dml__wire_get(&reader, 2);
    if (verdict >= DML__VERDICT_COUNT) return false;
    welcome->verdict = (dml__verdict)verdict;
    welcome->rank = dml__wire_get_int(&reader);
    welcome->world = dml__wire_get_int(&reader);
    welcome->segment_bytes = dml__wire_get(&reader, 8);
    dml__wire_get_bytes(&reader, welcome->session, DML__SESSION_BYTES);
    memcpy(welcome->mac, in + DML__WELCOME_BYTES - DML__MAC_BYTES, DML__MAC_BYTES);
    return true;
}

DML__LOCAL void dml__hello_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                               const uint8_t hello[DML__HELLO_BYTES], uint8_t mac[DML__MAC_BYTES])
{
    dml__hmac hmac;
    dml__hmac_begin(&hmac, key, strlen(key));
    dml__hmac_add(&hmac, "dml: I connect", 14);
    dml__hmac_add(&hmac, challenge, DML__CHALLENGE_BYTES);
    dml__hmac_add(&hmac, hello, DML__HELLO_BYTES - DML__MAC_BYTES);
    dml__hmac_end(&hmac, mac);
}

DML__LOCAL void dml__welcome_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                                 const uint8_t hello[DML__HELLO_BYTES],
                                 const uint8_t welcome[DML__WELCOME_BYTES], uint8_t mac[DML__MAC_BYTES])
{
    dml__hmac hmac;
    dml__hmac_begin(&hmac, key, strlen(key));
    dml__hmac_add(&hmac, "dml: I accept.", 14);
    dml__hmac_add(&hmac, challenge, DML__CHALLENGE_BYTES);
    dml__hmac_add(&hmac, hello, DML__HELLO_BYTES);
    dml__hmac_add(&hmac, welcome, DML__WELCOME_BYTES - DML__MAC_BYTES);
    dml__hmac_end(&hmac, mac);
}

#endif

/* ---- net/socket.c ---- */

#ifndef DML_NET_SOCKET_C
#define DML_NET_SOCKET_C

/* ---- net/socket.h ---- */

/* socket.h: stream sockets that never block, and the addresses they have. */
#ifndef DML_NET_SOCKET_H
#define DML_NET_SOCKET_H

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* ---- net/transport.h ---- */

/* transport.h: how bytes get from one rank to another, whatever lies between them.

   A transport is pairs of byte streams, nothing more: two between each two ranks, one for data and one for
   control, so that an abort is never stuck behind a gigabyte of gradients. What the bytes mean is the
   business of the floor above. A transport is used by one thread at a time; only `wake` may be called by
   another. */
#ifndef DML_NET_TRANSPORT_H
#define DML_NET_TRANSPORT_H

typedef enum dml__channel { DML__CHANNEL_CONTROL, DML__CHANNEL_DATA, DML__CHANNEL_COUNT } dml__channel;

typedef struct dml__span {
    void *data;
    size_t bytes;
} dml__span;

/* What send, receive, lend and wait return when the other end is gone for good, or waiting itself failed. */
#define DML__GONE (-1)
/* What lend returns for a rank from which nothing is lent: use receive. */
#define DML__LENDS_NOTHING (-2)

/* What to wait for on a data channel: */
#define DML__WISH_SEND 1    /* room to send */
#define DML__WISH_RECEIVE 2 /* something has come, or the other end is gone */

/* What wait returns: any of these, or 0 when the time ran out or somebody called wake. */
#define DML__READY_DATA 1
#define DML__READY_CONTROL 2

typedef struct dml__transport dml__transport;

typedef struct dml__transport_calls {
    const char *name;
    /* The spans one after the other, as many bytes as go without waiting: how many, or DML__GONE. What was
       not taken has to be offered again, at the same place in memory (a transport may let the other rank read
       it there), until it has gone or `withdraw` was called. */
    ptrdiff_t (*send)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                      int count);
    ptrdiff_t (*receive)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                         int count);
    /* Lends what has come from `rank` on the data channel: as many bytes as lie in one piece (0: nothing
       now), to be read where they are until `consume` gives the first `bytes` of them back. Whatever the
       sender offered as one span is lent at an address of the same alignment up to 64 bytes (8 where little
       is lent), if each span is a multiple of 8 bytes. NULL, both: this transport lends nothing, use receive.
     */
    ptrdiff_t (*lend)(dml__transport *transport, int rank, const void **data);
    void (*consume)(dml__transport *transport, int rank, size_t bytes);
    /* Takes back whatever was offered and has not gone: afterwards nobody reads this rank's memory. The
       connections are of no use any more. NULL: nobody ever does. */
    void (*withdraw)(dml__transport *transport);
    /* Until one of the wishes (world; NULL: none), DML__WISH_... for each rank, has come true, or control has
       come from any rank, or somebody calls wake; at most `seconds` (0: only looks). */
    int (*wait)(dml__transport *transport, const uint8_t *wishes, double seconds);
    /* Makes the wait that is under way in another thread, or else the next one, return. */
    void (*wake)(dml__transport *transport);
    /* "tcp", "shm", "local": what lies between this rank and that one. */
    const char *(*medium)(const dml__transport *transport, int rank);
    void (*close)(dml__transport *transport);
    /* In a fork's child: lets go of what this process has. The connections, and what is under way on them,
       are the parent's. */
    void (*abandon)(dml__transport *transport);
} dml__transport_calls;

struct dml__transport {
    const dml__transport_calls *calls;
};

#endif

/* Every call that this library makes on the network, as a table, so that a test can make the Nth one fail. */
typedef struct dml__socket_calls {
    int (*open)(int family);
    int (*set_option)(int fd, int level, int option, int value);
    int (*bind)(int fd, const struct sockaddr *address, socklen_t bytes);
    int (*listen)(int fd, int backlog);
    int (*accept)(int fd, struct sockaddr *address, socklen_t *bytes);
    int (*connect)(int fd, const struct sockaddr *address, socklen_t bytes);
    int (*error)(int fd); /* SO_ERROR: of a connect that has ended; -1 if it can't be had */
    int (*own_address)(int fd, struct sockaddr *address, socklen_t *bytes);
    int (*poll)(struct pollfd *polls, nfds_t count, int milliseconds);
    ssize_t (*send)(int fd, const struct msghdr *message, int flags);
    ssize_t (*receive)(int fd, struct msghdr *message, int flags);
    int (*shutdown)(int fd); /* nothing more will be sent: the other end is told after what has been */
    int (*close)(int fd);
    int (*pair)(int fds[2]); /* two sockets connected to each other, which don't block either */
    int (*random)(void *out, size_t bytes);
} dml__socket_calls;

/* The operating system's. `open` and `accept` give sockets that don't block and aren't inherited by exec. */
DML__LOCAL const dml__socket_calls *dml__system_sockets(void);

typedef struct dml__address {
    struct sockaddr_storage storage;
    socklen_t bytes;
} dml__address;

/* Up to `capacity` addresses of a name; 0 and a message when there are none. May wait for a name server. */
DML__LOCAL int dml__resolve_host(const char *host, uint16_t port, dml__address *out, int capacity,
                                 const char **message);

/* The address of a network interface of this host, of the given family (AF_UNSPEC: any). */
DML__LOCAL bool dml__interface_address(const char *name, int family, dml__address *out);

DML__LOCAL bool dml__is_loopback(const dml__address *address);
DML__LOCAL void dml__any_address(int family, dml__address *out);
DML__LOCAL uint16_t dml__address_port(const dml__address *address);
DML__LOCAL void dml__set_address_port(dml__address *address, uint16_t port);
DML__LOCAL void dml__to_endpoint(const dml__address *address, dml__endpoint *endpoint);
DML__LOCAL void dml__from_endpoint(const dml__endpoint *endpoint, dml__address *address);

/* "127.0.0.1:29500", "[::1]:29500"; returns the buffer. */
#define DML__ADDRESS_TEXT 80
DML__LOCAL const char *dml__address_text(const dml__address *address, char text[DML__ADDRESS_TEXT]);

/* A listening socket; a port of 0 becomes the one that was picked. -1 and errno. */
DML__LOCAL int dml__socket_listen(const dml__socket_calls *calls, dml__address *address);

/* A socket on its way to `to`, from the address `from` (NULL: any). -1 and errno. */
DML__LOCAL int dml__socket_connect(const dml__socket_calls *calls, const dml__address *to,
                                   const dml__address *from);

/* Why a connect that has ended has failed; 0 if it hasn't. */
DML__LOCAL int dml__socket_connect_error(const dml__socket_calls *calls, int fd, const dml__address *to);

/* The next who came; -1 if there is nobody now. */
DML__LOCAL int dml__socket_accept(const dml__socket_calls *calls, int listener, dml__address *from);

/* As many bytes as go without waiting, or DML__GONE (errno 0: the other end closed it). At most 4 spans. */
DML__LOCAL ptrdiff_t dml__socket_send(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                      int count);
DML__LOCAL ptrdiff_t dml__socket_receive(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                         int count);

/* poll(), resumed after signals with the time that is left. */
DML__LOCAL int dml__socket_poll(const dml__socket_calls *calls, struct pollfd *polls, size_t count,
                                double seconds);

#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef MSG_NOSIGNAL
#define DML__NO_SIGNAL MSG_NOSIGNAL
#else
#define DML__NO_SIGNAL 0 /* SO_NOSIGPIPE, below */
#endif

/* ---- the operating system's calls ---- */

static int dml__prepare_socket(int fd)
{
    if (fd < 0) return fd;
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) >= 0)
        return fd;
    close(fd);
    return -1;
}

static int dml__system_open(int family)
{
    return dml__prepare_socket(socket(family, SOCK_STREAM, 0));
}

static int dml__system_set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int dml__system_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return bind(fd, address, bytes);
}

static int dml__system_accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return dml__prepare_socket(accept(fd, address, bytes));
}

static int dml__system_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return connect(fd, address, bytes);
}

static int dml__system_error(int fd)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : -1;
}

static int dml__system_own_address(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return getsockname(fd, address, bytes);
}

static int dml__system_shutdown(int fd)
{
    return shutdown(fd, SHUT_WR);
}

static int dml__system_pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0) return -1;
    const bool first = dml__prepare_socket(fds[0]) >= 0, second = dml__prepare_socket(fds[1]) >= 0;
    if (first && second) return 0;
    if (first) close(fds[0]);
    if (second) close(fds[1]);
    return -1;
}

static int dml__system_random(void *out, size_t bytes)
{
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t got = 0;
    while (got < bytes) {
        const ssize_t n = read(fd, (char *)out + got, bytes - got);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    close(fd);
    return got == bytes ? 0 : -1;
}

DML__LOCAL const dml__socket_calls *dml__system_sockets(void)
{
    static const dml__socket_calls calls = {
        dml__system_open,
        dml__system_set_option,
        dml__system_bind,
        listen,
        dml__system_accept,
        dml__system_connect,
        dml__system_error,
        dml__system_own_address,
        poll,
        sendmsg,
        recvmsg,
        dml__system_shutdown,
        close,
        dml__system_pair,
        dml__system_random,
    };
    return &calls;
}

/* ---- addresses ---- */

/* Through a copy, since a sockaddr_storage may not be read as another struct. */
static struct sockaddr_in dml__as_ipv4(const dml__address *address)
{
    struct sockaddr_in ipv4;
    memcpy(&ipv4, &address->storage, sizeof ipv4);
    return ipv4;
}

static struct sockaddr_in6 dml__as_ipv6(const dml__address *address)
{
    struct sockaddr_in6 ipv6;
    memcpy(&ipv6, &address->storage, sizeof ipv6);
    return ipv6;
}

static void dml__set_address(dml__address *address, const void *from, size_t bytes)
{
    memset(address, 0, sizeof *address);
    memcpy(&address->storage, from, bytes);
    address->bytes = (socklen_t)bytes;
}

static const struct sockaddr *dml__raw_address(const dml__address *address)
{
    return (const struct sockaddr *)(const void *)&address->storage;
}

DML__LOCAL int dml__resolve_host(const char *host, uint16_t port, dml__address *out, int capacity,
                                 const char **message)
{
    struct addrinfo hints, *list = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(host, NULL, &hints, &list);
    int count = 0;
    if (error) {
        *message = gai_strerror(error);
        return 0;
    }
    for (const struct addrinfo *info = list; info && count < capacity; info = info->ai_next) {
        if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
        dml__set_address(&out[count], info->ai_addr, (size_t)info->ai_addrlen);
        dml__set_address_port(&out[count], port);
        count++;
    }
    freeaddrinfo(list);
    *message = "it has no IPv4 or IPv6 address";
    return count;
}

DML__LOCAL bool dml__interface_address(const char *name, int family, dml__address *out)
{
    struct ifaddrs *list = NULL;
    bool found = false;
    if (getifaddrs(&list) != 0) return false;
    for (const struct ifaddrs *at = list; at && !found; at = at->ifa_next) {
        if (!at->ifa_addr || strcmp(at->ifa_name, name) != 0) continue;
        const int have = at->ifa_addr->sa_family;
        if ((have != AF_INET && have != AF_INET6) || (family != AF_UNSPEC && have != family)) continue;
        dml__set_address(out, at->ifa_addr,
                         have == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        found = true;
    }
    freeifaddrs(list);
    return found;
}

DML__LOCAL bool dml__is_loopback(const dml__address *address)
{
    if (address->storage.ss_family == AF_INET)
        return ntohl(dml__as_ipv4(address).sin_addr.s_addr) >> 24 == 127;
    const struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
    if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) return ipv6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
}

DML__LOCAL void dml__any_address(int family, dml__address *out)
{
    dml__endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint); /* 0.0.0.0 or :: */
    endpoint.family = family == AF_INET ? 4 : 6;
    dml__from_endpoint(&endpoint, out);
}

DML__LOCAL uint16_t dml__address_port(const dml__address *address)
{
    return ntohs(address->storage.ss_family == AF_INET ? dml__as_ipv4(address).sin_port
                                                       : dml__as_ipv6(address).sin6_port);
}

DML__LOCAL void dml__set_address_port(dml__address *address, uint16_t port)
{
    if (address->storage.ss_family == AF_INET) {
        struct sockaddr_in ipv4 = dml__as_ipv4(address);
        ipv4.sin_port = htons(port);
        memcpy(&address->storage, &ipv4, sizeof ipv4);
    } else {
        struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
        ipv6.sin6_port = htons(port);
        memcpy(&address->storage, &ipv6, sizeof ipv6);
    }
}

DML__LOCAL void dml__to_endpoint(const dml__address *address, dml__endpoint *endpoint)
{
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->port = dml__address_port(address);
    if (address->storage.ss_family == AF_INET) {
        const struct sockaddr_in ipv4 = dml__as_ipv4(address);
        endpoint->family = 4;
        memcpy(endpoint->ip, &ipv4.sin_addr, 4);
    } else {
        const struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
        const bool mapped = IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr); /* IPv4 on a socket of both */
        endpoint->family = mapped ? 4 : 6;
        memcpy(endpoint->ip, ipv6.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
}

DML__LOCAL void dml__from_endpoint(const dml__endpoint *endpoint, dml__address *address)
{
    if (endpoint->family == 4) {
        struct sockaddr_in ipv4;
        memset(&ipv4, 0, sizeof ipv4);
        ipv4.sin_family = AF_INET;
        memcpy(&ipv4.sin_addr, endpoint->ip, 4);
        dml__set_address(address, &ipv4, sizeof ipv4);
    } else {
        struct sockaddr_in6 ipv6;
        memset(&ipv6, 0, sizeof ipv6);
        ipv6.sin6_family = AF_INET6;
        memcpy(&ipv6.sin6_addr, endpoint->ip, 16);
        dml__set_address(address, &ipv6, sizeof ipv6);
    }
    dml__set_address_port(address, endpoint->port);
}

DML__LOCAL const char *dml__address_text(const dml__address *address, char text[DML__ADDRESS_TEXT])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    dml__endpoint endpoint;
    dml__to_endpoint(address, &endpoint);
    inet_ntop(endpoint.family == 4 ? AF_INET : AF_INET6, endpoint.ip, ip, sizeof ip);
    snprintf(text, DML__ADDRESS_TEXT, endpoint.family == 4 ? "%s:%d" : "[%s]:%d", ip, endpoint.port);
    return text;
}

/* ---- sockets ---- */

/* Closes a socket that something failed on, keeping that something's errno. */
static int dml__discard_socket(const dml__socket_calls *calls, int fd)
{
    const int error = errno;
    if (fd >= 0) calls->close(fd);
    errno = error;
    return -1;
}

static void dml__tune_socket(const dml__socket_calls *calls, int fd)
{
    /* Without them all works too, only slower: so what they return doesn't matter. */
    calls->set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef SO_NOSIGPIPE
    calls->set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

DML__LOCAL int dml__socket_listen(const dml__socket_calls *calls, dml__address *address)
{
    const int fd = calls->open(address->storage.ss_family);
    if (fd < 0) return -1;
    calls->set_option(fd, SOL_SOCKET, SO_REUSEADDR,
                      1); /* so that a job can follow another on the same port */
    if (address->storage.ss_family == AF_INET6) calls->set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (calls->bind(fd, dml__raw_address(address), address->bytes) < 0 || calls->listen(fd, SOMAXCONN) < 0)
        return dml__discard_socket(calls, fd);
    address->bytes = sizeof address->storage;
    if (calls->own_address(fd, (struct sockaddr *)(void *)&address->storage, &address->bytes) < 0)
        return dml__discard_socket(calls, fd);
    return fd;
}

DML__LOCAL int dml__socket_connect(const dml__socket_calls *calls, const dml__address *to,
                                   const dml__address *from)
{
    const int fd = calls->open(to->storage.ss_family);
    if (fd < 0) return -1;
    dml__tune_socket(calls, fd);
    if (from && calls->bind(fd, dml__raw_address(from), from->bytes) < 0)
        return dml__discard_socket(calls, fd);
    if (calls->connect(fd, dml__raw_address(to), to->bytes) < 0 && errno != EINPROGRESS && errno != EINTR)
        return dml__discard_socket(calls, fd);
    return fd;
}

DML__LOCAL int dml__socket_connect_error(const dml__socket_calls *calls, int fd, const dml__address *to)
{
    const int error = calls->error(fd);
    if (error) return error < 0 ? EIO : error;
    /* Where nobody listens yet, and the port is one that the system also picks from for the connecting side,
       a socket can end up connected to itself. */
    dml__address own;
    own.bytes = sizeof own.storage;
    if (calls->own_address(fd, (struct sockaddr *)(void *)&own.storage, &own.bytes) < 0) return errno;
    dml__endpoint here, there;
    dml__to_endpoint(&own, &here);
    dml__to_endpoint(to, &there);
    const bool itself = here.port == there.port && here.family == there.family &&
                        memcmp(here.ip, there.ip, sizeof here.ip) == 0;
    return itself ? ECONNREFUSED : 0;
}

DML__LOCAL int dml__socket_accept(const dml__socket_calls *calls, int listener, dml__address *from)
{
    int fd;
    do {
        from->bytes = sizeof from->storage;
        fd = calls->accept(listener, (struct sockaddr *)(void *)&from->storage, &from->bytes);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd >= 0) dml__tune_socket(calls, fd);
    return fd;
}

/* The spans as a message of sendmsg and recvmsg; how many bytes they are. */
static size_t dml__span_message(const dml__span *spans, int count, struct iovec parts[4],
                                struct msghdr *message)
{
    size_t bytes = 0;
    memset(message, 0, sizeof *message);
    DML_ASSERT(count <= 4);
    message->msg_iov = parts;
    for (int i = 0; i < count; i++) {
        if (!spans[i].bytes) continue;
        struct iovec *part = &parts[message->msg_iovlen++];
        part->iov_base = spans[i].data;
        part->iov_len = spans[i].bytes;
        bytes += spans[i].bytes;
    }
    return bytes;
}

static bool dml__would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

DML__LOCAL ptrdiff_t dml__socket_send(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                      int count)
{
    struct iovec parts[4];
    struct msghdr message;
    if (!dml__span_message(spans, count, parts, &message)) return 0;
    ssize_t sent;
    do sent = calls->send(fd, &message, DML__NO_SIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return dml__would_block() ? 0 : DML__GONE;
    return sent;
}

DML__LOCAL ptrdiff_t dml__socket_receive(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                         int count)
{
    struct iovec parts[4];
    struct msghdr message;
    if (!dml__span_message(spans, count, parts, &message)) return 0;
    ssize_t got;
    do got = calls->receive(fd, &message, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) return dml__would_block() ? 0 : DML__GONE;
    if (got == 0) errno = 0;
    return got ? got : DML__GONE;
}

DML__LOCAL int dml__socket_poll(const dml__socket_calls *calls, struct pollfd *polls, size_t count,
                                double seconds)
{
    const double until = dml_seconds() + seconds;
    for (;;) {
        const double left = until - dml_seconds();
        /* Rounded up, or the last millisecond would be spun away. */
        const int milliseconds = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
        const int ready = calls->poll(polls, (nfds_t)count, milliseconds);
        if (ready >= 0 || errno != EINTR) return ready;
    }
}

#endif

/* ---- net/net.c ---- */

#ifndef DML_NET_NET_C
#define DML_NET_NET_C

/* ---- net/net.h ---- */

/* net.h: ranks that meet over a network, for whoever then uses the connections. */
#ifndef DML_NET_NET_H
#define DML_NET_NET_H

typedef struct dml__net_settings {
    int rank, world;
    const char *master_addr;
    int master_port;
    double timeout, grace; /* seconds; the second: how much longer the others wait than rank 0 does */
    const char *key;       /* NULL: none */
    bool allow_insecure;
    const char *bind_addr; /* NULL: none */
    size_t segment_bytes;  /* which all ranks must agree on */
} dml__net_settings;

/* Ranks that are meeting. */
typedef struct dml__meeting dml__meeting;

/* Who uses the connections: what it lends, and what it is called for while the ranks meet. The transport that
   it is given then (NULL: there is none yet) has the connections that have been made so far. */
typedef struct dml__net_user {
    dml__memory *memory; /* outlives the transport */
    const dml__logger *logger;
    int *strangers; /* how many were turned away is added to it */
    void *user;
    /* Records the error, if it is the first, and tells every rank that is connected that `culprit` has ended
       the job. */
    void (*fail)(void *user, dml__transport *transport, int culprit, dml_status status, const char *text);
    /* Takes in what has come on the control channels; DML__ADDRESSES is for dml__take_addresses. False: that
       has ended the job, and `fail` needn't be called. */
    bool (*control)(void *user, dml__transport *transport, dml__meeting *meeting);
} dml__net_user;

#define DML__NET_TEXT 480 /* bytes of an error's sentence, its end included */

/* Meets the other ranks over TCP. NULL: `fail` has been called, or `control` was false. Only what needs no
   waiting is done after it: nothing is allocated. */
DML__LOCAL dml__transport *dml__tcp_open(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                         const dml__net_user *user);

/* Takes the addresses that rank `from` has sent; false if they make no sense. */
DML__LOCAL bool dml__take_addresses(dml__meeting *meeting, int from, const dml__control *control);

/* Sends one message to one rank, waiting until `until` if there is no room; false if it can't be sent. */
DML__LOCAL bool dml__send_control(dml__transport *transport, int rank, const dml__control *control,
                                  double until);

#endif

DML__LOCAL bool dml__send_control(dml__transport *transport, int rank, const dml__control *control,
                                  double until)
{
    uint8_t bytes[DML__CONTROL_BYTES];
    size_t done = 0;
    dml__encode_control(control, bytes);
    while (done < sizeof bytes) {
        dml__span span;
        span.data = bytes + done;
        span.bytes = sizeof bytes - done;
        const ptrdiff_t sent = transport->calls->send(transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (sent == DML__GONE) return false;
        done += (size_t)sent;
        if (sent) continue;
        /* No room for 512 bytes: the other end hasn't read for long. Looked at again every millisecond. */
        if (dml_seconds() >= until) return false;
        transport->calls->wait(transport, NULL, 1e-3);
    }
    return true;
}

#endif

/* ---- net/local.c ---- */

#ifndef DML_NET_LOCAL_C
#define DML_NET_LOCAL_C

/* ---- net/local.h ---- */

/* local.h: the transport between ranks that are threads of one process. Data is never copied on its way: a
   sender offers spans of its memory, and the receiver reads them there. */
#ifndef DML_NET_LOCAL_H
#define DML_NET_LOCAL_H

/* What the ranks of one process share. */
typedef struct dml__local_world dml__local_world;

/* For `world` ranks, at least 1; about 5 KiB for each two of them. NULL: no memory, or no mutex. A rank that
   waits spins for `spin` microseconds before it sleeps; 0: 50, or none when there are more ranks than
   processors; -1: none. `memory` is used here and in destroy only. */
DML__LOCAL dml__local_world *dml__local_world_create(dml__memory *memory, int world, int spin);

/* Once every rank that was opened has been closed; NULL is fine. */
DML__LOCAL void dml__local_world_destroy(dml__local_world *world);

/* The transport of one rank, to be opened once; it belongs to the world. May be called by the rank's thread.
   A rank that hasn't been opened yet is one that says nothing.

   `send` on the data channel offers up to DML__LOCAL_OFFERS spans at a time and returns how many bytes the
   receiver has consumed since the last call: 0 the first time. The rest has to be offered again, all of it,
   and more may follow. Between lend and consume the receiver must not wait for anything, since a sender that
   withdraws or closes waits for it, without a deadline: it would get memory back that is being read. consume
   ends a loan, also where it gives only a part of it back (or none): the rest has to be lent anew. So does
   the receiver's next wait. */
#define DML__LOCAL_OFFERS 16
DML__LOCAL dml__transport *dml__local_open(dml__local_world *world, int rank);

#endif

/* ---- base/pause.h ---- */

/* pause.h: what threads that watch each other's words need. */
#ifndef DML_BASE_PAUSE_H
#define DML_BASE_PAUSE_H

/* A field, or the whole of a struct, on cache lines of its own. */
#define DML__OWN_LINE __attribute__((aligned(64)))

/* Between two looks at a word that another thread will change: 10 to 70 ns. */
static inline void dml__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__ARM_ARCH) && __ARM_ARCH >= 7)
    __asm__ __volatile__("yield" ::: "memory");
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

#endif

/* ---- net/lent.h ---- */

/* lent.h: receiving, for a transport that lends: a copy of what is lent. */
#ifndef DML_NET_LENT_H
#define DML_NET_LENT_H

#include <string.h>

/* The `receive` of the data channel, by the transport's own lend and consume. */
static inline ptrdiff_t dml__receive_lent(dml__transport *transport, int rank, const dml__span *spans,
                                          int count)
{
    size_t got = 0, filled = 0; /* the second: of the span */
    for (int i = 0; i < count;) {
        const void *data = NULL;
        const size_t room = spans[i].bytes - filled;
        const ptrdiff_t lent = room ? transport->calls->lend(transport, rank, &data) : 0;
        if (room && lent <= 0) return got ? (ptrdiff_t)got : lent;
        const size_t bytes = (size_t)lent < room ? (size_t)lent : room;
        if (bytes) {
            memcpy((uint8_t *)spans[i].data + filled, data, bytes);
            transport->calls->consume(transport, rank, bytes);
        }
        got += bytes;
        filled += bytes;
        if (filled == spans[i].bytes) i++, filled = 0;
    }
    return (ptrdiff_t)got;
}

#endif

/* ---- net/ring.h ---- */

/* ring.h: bytes in a ring of a power of two of them, at positions that count on for ever. */
#ifndef DML_NET_RING_H
#define DML_NET_RING_H

#include <string.h>

/* Copies `bytes` bytes, at most `size`, to the ring's position `at`, or from it. */
static inline void dml__ring_put(uint8_t *ring, size_t size, size_t at, const void *from, size_t bytes)
{
    const size_t begin = at & (size - 1), rest = size - begin, first = bytes < rest ? bytes : rest;
    if (!bytes) return;
    memcpy(ring + begin, from, first);
    if (bytes > first) memcpy(ring, (const uint8_t *)from + first, bytes - first);
}

static inline void dml__ring_get(const uint8_t *ring, size_t size, size_t at, void *to, size_t bytes)
{
    const size_t begin = at & (size - 1), rest = size - begin, first = bytes < rest ? bytes : rest;
    if (!bytes) return;
    memcpy(to, ring + begin, first);
    if (bytes > first) memcpy((uint8_t *)to + first, ring, bytes - first);
}

#endif

#define DML__LOCAL_SPIN 50 /* microseconds: about what it costs to sleep and be woken */
#define DML__LOCAL_CONTROL                                                                                   \
    (8 * 512) /* bytes of control that may be on their way to a rank; a power of two                         \
               */

typedef struct dml__local_offer {
    const uint8_t *data;
    size_t bytes;
} dml__local_offer;

/* What is on its way from one rank to another. Each field has one writer, and what both look at is atomic.
   Positions count bytes, round and round; their differences are what counts. */
typedef struct dml__local_pair {
    /* The sender's. */
    size_t offered DML__OWN_LINE; /* position up to which the spans have been published */
    size_t reported;              /* up to which the caller knows that they have gone */
    unsigned head;                /* offers published */
    size_t control_in;
    /* The receiver's. */
    size_t consumed DML__OWN_LINE;
    size_t done;   /* bytes consumed of the offer at tail */
    unsigned tail; /* offers that are consumed */
    int reading;   /* the offer at tail is lent */
    bool ended;    /* the caller has been told that no more control comes */
    size_t control_out;
    dml__local_offer offers[DML__LOCAL_OFFERS] DML__OWN_LINE;
    uint8_t control[DML__LOCAL_CONTROL];
} dml__local_pair;

typedef enum dml__local_state { DML__LOCAL_OPEN, DML__LOCAL_WITHDRAWN, DML__LOCAL_CLOSED } dml__local_state;

typedef struct dml__local_rank {
    dml__transport transport;
    dml__local_world *world;
    int rank;
    int loans; /* how many pairs are marked `reading` */
    dml__mutex mutex;
    dml__cond cond;
    /* What others look at and write. Whatever happens to this rank counts the bell on, after it has happened,
       so that nothing is missed by who looks at the bell first. */
    unsigned bell DML__OWN_LINE;
    int sleeping; /* or about to */
    int woken;
    int state; /* dml__local_state */
} dml__local_rank;

struct dml__local_world {
    dml__memory *memory;
    long process; /* whose threads the ranks are */
    int world;
    int made;               /* ranks that have a mutex and a condition */
    int spin;               /* microseconds */
    dml__local_rank *ranks; /* (world) */
    dml__local_pair *pairs; /* (world, world): from, to */
};

static dml__local_rank *dml__local_of(dml__transport *transport)
{
    return (dml__local_rank *)(void *)transport;
}

static dml__local_pair *dml__local_pair_of(const dml__local_world *world, int from, int to)
{
    return &world->pairs[(size_t)from * (size_t)world->world + (size_t)to];
}

static int dml__local_state_of(const dml__local_rank *rank)
{
    return __atomic_load_n(&rank->state, __ATOMIC_SEQ_CST);
}

/* ---- ringing and sleeping ---- */

/* Who sleeps says so before it looks at the bell for the last time, and who rings looks at that after having
   counted the bell on: one of the two sees the other. */
static void dml__local_ring(dml__local_rank *rank)
{
    __atomic_fetch_add(&rank->bell, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&rank->sleeping, __ATOMIC_SEQ_CST)) return;
    dml__mutex_lock(&rank->mutex);
    dml__cond_signal_all(&rank->cond);
    dml__mutex_unlock(&rank->mutex);
}

static bool dml__local_rang(const dml__local_rank *rank, unsigned bell)
{
    return __atomic_load_n(&rank->bell, __ATOMIC_SEQ_CST) != bell;
}

static bool dml__local_spin(const dml__local_rank *rank, unsigned bell, double until)
{
    double end = 0;
    for (int i = 1; rank->world->spin > 0; i++) {
        if (dml__local_rang(rank, bell)) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (end == 0) end = now + rank->world->spin * 1e-6;
        if (now >= end || now >= until) break;
    }
    return dml__local_rang(rank, bell);
}

/* Until the bell is no longer what it was; may return early. */
static void dml__local_doze(dml__local_rank *rank, unsigned bell, double until)
{
    if (dml__local_spin(rank, bell, until)) return;
    const double left = until - dml_seconds();
    if (left <= 0) return;
    __atomic_store_n(&rank->sleeping, 1, __ATOMIC_SEQ_CST);
    dml__mutex_lock(&rank->mutex);
    if (!dml__local_rang(rank, bell)) dml__cond_wait(&rank->cond, &rank->mutex, left < 1e6 ? left : 1e6);
    dml__mutex_unlock(&rank->mutex);
    __atomic_store_n(&rank->sleeping, 0, __ATOMIC_SEQ_CST);
}

/* ---- data ---- */

/* Publishes what of the spans isn't yet, as far as there are slots; whether it was anything. */
static bool dml__local_publish(dml__local_pair *out, const dml__span *spans, int count)
{
    const unsigned tail = __atomic_load_n(&out->tail, __ATOMIC_ACQUIRE), before = out->head;
    unsigned head = before;
    size_t known = out->offered - out->reported; /* of the spans' bytes */
    for (int i = 0; i < count && head - tail < DML__LOCAL_OFFERS; i++) {
        if (spans[i].bytes <= known) {
            known -= spans[i].bytes;
            continue;
        }
        dml__local_offer *offer = &out->offers[head++ % DML__LOCAL_OFFERS];
        offer->data = (const uint8_t *)spans[i].data + known;
        offer->bytes = spans[i].bytes - known;
        out->offered += offer->bytes;
        known = 0;
    }
    __atomic_store_n(&out->head, head, __ATOMIC_RELEASE);
    return head != before;
}

static ptrdiff_t dml__local_send_data(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return DML__GONE;
    const int state = dml__local_state_of(peer); /* before what it has consumed, which it did before */
    if (state == DML__LOCAL_OPEN && dml__local_publish(out, spans, count)) dml__local_ring(peer);
    const size_t consumed = __atomic_load_n(&out->consumed, __ATOMIC_ACQUIRE);
    const size_t gone = consumed - out->reported;
    out->reported = consumed;
    return gone == 0 && state != DML__LOCAL_OPEN ? DML__GONE : (ptrdiff_t)gone;
}

static bool dml__local_offers_wait(const dml__local_pair *in)
{
    return __atomic_load_n(&in->head, __ATOMIC_ACQUIRE) != in->tail;
}

/* Who marks the pair looks afterwards whether the sender has withdrawn, who withdraws looks afterwards at
   the mark. So too at the end: either the sender sees that the mark has gone, or it is rung. */
static void dml__local_end_loan(dml__local_rank *me, int rank)
{
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (!__atomic_load_n(&in->reading, __ATOMIC_RELAXED)) return;
    me->loans--;
    __atomic_store_n(&in->reading, 0, __ATOMIC_SEQ_CST);
    if (dml__local_state_of(peer) != DML__LOCAL_OPEN) dml__local_ring(peer);
}

static void dml__local_end_loans(dml__local_rank *me)
{
    for (int rank = 0; me->loans > 0 && rank < me->world->world; rank++) dml__local_end_loan(me, rank);
}

static ptrdiff_t dml__local_lend(dml__transport *transport, int rank, const void **data)
{
    dml__local_rank *me = dml__local_of(transport);
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    const dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return DML__GONE;
    if (!dml__local_offers_wait(in)) return dml__local_state_of(peer) == DML__LOCAL_OPEN ? 0 : DML__GONE;
    me->loans += !__atomic_load_n(&in->reading, __ATOMIC_RELAXED);
    __atomic_store_n(&in->reading, 1, __ATOMIC_SEQ_CST);
    if (dml__local_state_of(peer) != DML__LOCAL_OPEN) {
        dml__local_end_loan(me, rank);
        return DML__GONE;
    }
    const dml__local_offer *offer = &in->offers[in->tail % DML__LOCAL_OFFERS];
    *data = offer->data + in->done;
    return (ptrdiff_t)(offer->bytes - in->done);
}

static void dml__local_consume(dml__transport *transport, int rank, size_t bytes)
{
    dml__local_rank *me = dml__local_of(transport);
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    if (bytes > 0) {
        const size_t all = in->offers[in->tail % DML__LOCAL_OFFERS].bytes;
        DML_ASSERT(bytes <= all - in->done);
        in->done += bytes;
        __atomic_store_n(&in->consumed, in->consumed + bytes, __ATOMIC_RELEASE);
        if (in->done == all) {
            in->done = 0;
            __atomic_store_n(&in->tail, in->tail + 1, __ATOMIC_RELEASE);
        }
    }
    dml__local_end_loan(me, rank);
    if (bytes > 0) dml__local_ring(&me->world->ranks[rank]);
}

/* ---- control ---- */

static ptrdiff_t dml__local_send_control(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) == DML__LOCAL_CLOSED || dml__local_state_of(peer) == DML__LOCAL_CLOSED)
        return DML__GONE;
    const size_t taken = __atomic_load_n(&out->control_out, __ATOMIC_ACQUIRE), begin = out->control_in;
    size_t at = begin;
    for (int i = 0; i < count; i++) {
        const size_t room = DML__LOCAL_CONTROL - (at - taken);
        const size_t bytes = spans[i].bytes < room ? spans[i].bytes : room;
        dml__ring_put(out->control, DML__LOCAL_CONTROL, at, spans[i].data, bytes);
        at += bytes;
    }
    if (at == begin) return 0;
    __atomic_store_n(&out->control_in, at, __ATOMIC_RELEASE);
    dml__local_ring(peer);
    return (ptrdiff_t)(at - begin);
}

static ptrdiff_t dml__local_receive_control(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    /* Before what it has sent, which it did before. */
    const bool closed = dml__local_state_of(&me->world->ranks[rank]) == DML__LOCAL_CLOSED;
    const size_t come = __atomic_load_n(&in->control_in, __ATOMIC_ACQUIRE), begin = in->control_out;
    if (come == begin && closed) {
        __atomic_store_n(&in->ended, true, __ATOMIC_RELAXED);
        return DML__GONE;
    }
    size_t at = begin;
    for (int i = 0; i < count; i++) {
        const size_t bytes = spans[i].bytes < come - at ? spans[i].bytes : come - at;
        dml__ring_get(in->control, DML__LOCAL_CONTROL, at, spans[i].data, bytes);
        at += bytes;
    }
    __atomic_store_n(&in->control_out, at, __ATOMIC_RELEASE);
    return (ptrdiff_t)(at - begin);
}

/* ---- the calls ---- */

static ptrdiff_t dml__local_send(dml__transport *transport, int rank, dml__channel channel,
                                 const dml__span *spans, int count)
{
    dml__local_rank *me = dml__local_of(transport);
    return channel == DML__CHANNEL_DATA ? dml__local_send_data(me, rank, spans, count)
                                        : dml__local_send_control(me, rank, spans, count);
}

static ptrdiff_t dml__local_receive(dml__transport *transport, int rank, dml__channel channel,
                                    const dml__span *spans, int count)
{
    return channel == DML__CHANNEL_DATA
               ? dml__receive_lent(transport, rank, spans, count)
               : dml__local_receive_control(dml__local_of(transport), rank, spans, count);
}

/* What of the wish has come true. Room to send is there when something of what was offered has gone, or when
   all has. */
static int dml__local_look_at(const dml__local_rank *me, int rank, int wish)
{
    const dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    const dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    const int state = dml__local_state_of(&me->world->ranks[rank]);
    const bool gone = state != DML__LOCAL_OPEN || dml__local_state_of(me) != DML__LOCAL_OPEN;
    int ready = 0;
    /* The rank's helper thread may be taking control off meanwhile. */
    const size_t taken = __atomic_load_n(&in->control_out, __ATOMIC_RELAXED);
    if (__atomic_load_n(&in->control_in, __ATOMIC_ACQUIRE) != taken ||
        (state == DML__LOCAL_CLOSED && !__atomic_load_n(&in->ended, __ATOMIC_RELAXED)))
        ready |= DML__READY_CONTROL;
    if ((wish & DML__WISH_RECEIVE) && (gone || dml__local_offers_wait(in))) ready |= DML__READY_DATA;
    if ((wish & DML__WISH_SEND) && (gone || out->offered == out->reported ||
                                    __atomic_load_n(&out->consumed, __ATOMIC_ACQUIRE) != out->reported))
        ready |= DML__READY_DATA;
    return ready;
}

static int dml__local_look(const dml__local_rank *me, const uint8_t *wishes)
{
    int ready = 0;
    for (int rank = 0; rank < me->world->world; rank++)
        if (rank != me->rank) ready |= dml__local_look_at(me, rank, wishes ? wishes[rank] : 0);
    return ready;
}

static int dml__local_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__local_rank *me = dml__local_of(transport);
    const double until = seconds > 0 ? dml_seconds() + seconds : 0;
    dml__local_end_loans(me);
    for (;;) {
        const unsigned bell = __atomic_load_n(&me->bell, __ATOMIC_SEQ_CST);
        const bool woken = __atomic_load_n(&me->woken, __ATOMIC_RELAXED) &&
                           __atomic_exchange_n(&me->woken, 0, __ATOMIC_ACQ_REL);
        const int ready = dml__local_look(me, wishes);
        if (ready || woken || !(seconds > 0) || dml_seconds() >= until) return ready;
        dml__local_doze(me, bell, until);
    }
}

static void dml__local_wake(dml__transport *transport)
{
    dml__local_rank *me = dml__local_of(transport);
    __atomic_store_n(&me->woken, 1, __ATOMIC_RELEASE);
    dml__local_ring(me);
}

/* Changes the rank's state and tells the others. */
static void dml__local_leave(dml__local_rank *me, dml__local_state state)
{
    __atomic_store_n(&me->state, (int)state, __ATOMIC_SEQ_CST);
    for (int rank = 0; rank < me->world->world; rank++) dml__local_ring(&me->world->ranks[rank]);
}

static void dml__local_withdraw(dml__transport *transport)
{
    dml__local_rank *me = dml__local_of(transport);
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return;
    dml__local_end_loans(me); /* or two that withdraw could wait for each other */
    dml__local_leave(me, DML__LOCAL_WITHDRAWN);
    for (int rank = 0; rank < me->world->world; rank++) {
        const dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
        for (;;) {
            const unsigned bell = __atomic_load_n(&me->bell, __ATOMIC_SEQ_CST);
            if (!__atomic_load_n(&out->reading, __ATOMIC_SEQ_CST)) break;
            dml__local_doze(me, bell, dml_seconds() + 1);
        }
    }
}

static const char *dml__local_medium(const dml__transport *transport, int rank)
{
    (void)transport, (void)rank;
    return "local";
}

static void dml__local_close(dml__transport *transport)
{
    dml__local_withdraw(transport);
    dml__local_leave(dml__local_of(transport), DML__LOCAL_CLOSED);
}

/* What a fork's child has is a copy of the whole world, in which nobody else lives. */
static void dml__local_abandon(dml__transport *transport)
{
    (void)transport;
}

/* ---- the world ---- */

DML__LOCAL dml__transport *dml__local_open(dml__local_world *world, int rank)
{
    return &world->ranks[rank].transport;
}

static bool dml__local_make_rank(dml__local_world *world, int rank)
{
    static const dml__transport_calls calls = {
        "local",          dml__local_send,    dml__local_receive,
        dml__local_lend,  dml__local_consume, dml__local_withdraw,
        dml__local_wait,  dml__local_wake,    dml__local_medium,
        dml__local_close, dml__local_abandon,
    };
    dml__local_rank *me = &world->ranks[rank];
    me->transport.calls = &calls;
    me->world = world;
    me->rank = rank;
    if (!dml__mutex_init(&me->mutex)) return false;
    if (dml__cond_init(&me->cond)) return true;
    dml__mutex_destroy(&me->mutex);
    return false;
}

DML__LOCAL dml__local_world *dml__local_world_create(dml__memory *memory, int world, int spin)
{
    const size_t ranks = (size_t)world;
    if (world < 1 || ranks > SIZE_MAX / sizeof(dml__local_pair) / ranks) return NULL;
    dml__local_world *made = (dml__local_world *)dml__allocate(memory, sizeof *made);
    if (!made) return NULL;
    made->memory = memory;
    made->process = dml__process_id();
    made->world = world;
    made->spin = spin < 0 ? 0 : spin ? spin : world <= dml_cpu_count() ? DML__LOCAL_SPIN : 0;
    made->ranks = (dml__local_rank *)dml__allocate_array(memory, ranks, sizeof *made->ranks);
    made->pairs = (dml__local_pair *)dml__allocate_array(memory, ranks * ranks, sizeof *made->pairs);
    bool ok = made->ranks && made->pairs;
    while (ok && made->made < world) {
        ok = dml__local_make_rank(made, made->made);
        made->made += ok;
    }
    if (ok) return made;
    dml__local_world_destroy(made);
    return NULL;
}

DML__LOCAL void dml__local_world_destroy(dml__local_world *world)
{
    if (!world) return;
    /* In a fork's child a mutex may be held by a thread that isn't there. */
    for (int rank = 0; rank < world->made && world->process == dml__process_id(); rank++) {
        dml__cond_destroy(&world->ranks[rank].cond);
        dml__mutex_destroy(&world->ranks[rank].mutex);
    }
    dml__memory *memory = world->memory;
    dml__release(memory, world->pairs);
    dml__release(memory, world->ranks);
    dml__release(memory, world);
}

#endif

/* ---- net/host_memory.c ---- */

#ifndef DML_NET_HOST_MEMORY_C
#define DML_NET_HOST_MEMORY_C

/* ---- net/host_memory.h ---- */

/* host_memory.h: memory that two processes of one host share, and nobody else has a name for. */
#ifndef DML_NET_HOST_MEMORY_H
#define DML_NET_HOST_MEMORY_H

/* What is asked of the system, as a table, so that a test can make each of them fail. */
typedef struct dml__host_calls {
    /* A number that two processes have in common if one could open the other's memory: they run on one boot
       of one kernel, in the same network and process namespaces and for the same user. False: not known. */
    bool (*identity)(uint64_t *identity);
    long (*process)(void); /* under which number the others find this one */
    /* Memory of that size, zeroed, which can't shrink any more: a descriptor. -1: there is none. It has no
       name, so it ends with the last process that has it. */
    int (*create)(size_t bytes);
    /* The same memory by another process's descriptor of it. -1: it isn't there, or isn't what it should. */
    int (*open)(long process, int fd, size_t bytes);
    void *(*map)(int fd, size_t bytes); /* NULL: no */
    void (*unmap)(void *memory, size_t bytes);
    void (*close)(int fd);
    bool (*random)(void *out, size_t bytes);
} dml__host_calls;

/* Linux's memfd_create and /proc. Elsewhere every one fails. */
DML__LOCAL const dml__host_calls *dml__system_host(void);

#endif

#if defined(__linux__)
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__linux__) && defined(SYS_memfd_create) && defined(F_ADD_SEALS) && !defined(DML__NO_HOST_MEMORY)

#define DML__MEMFD_FLAGS 3u /* MFD_CLOEXEC, MFD_ALLOW_SEALING: older headers don't have them */
#define DML__MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* FNV-1a (Fowler, Noll, Vo). Who has the same by chance can't open our memory. */
static uint64_t dml__host_mix(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *in = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ in[i]) * UINT64_C(1099511628211);
    return hash;
}

static bool dml__host_mix_inode(uint64_t *hash, const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0) return false;
    const uint64_t words[2] = { (uint64_t)file.st_dev, (uint64_t)file.st_ino };
    *hash = dml__host_mix(*hash, words, sizeof words);
    return true;
}

static bool dml__host_read(const char *path, void *out, size_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t got = 0;
    for (ssize_t n = 1; got < bytes && n != 0;) {
        n = read(fd, (char *)out + got, bytes - got);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) got += (size_t)n;
    }
    close(fd);
    return got == bytes;
}

static bool dml__host_identity(uint64_t *identity)
{
    char boot[36];
    const uint64_t user = (uint64_t)geteuid();
    *identity = UINT64_C(14695981039346656037);
    if (!dml__host_read("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) return false;
    *identity = dml__host_mix(*identity, boot, sizeof boot);
    *identity = dml__host_mix(*identity, &user, sizeof user);
    return dml__host_mix_inode(identity, "/proc/self/ns/net") &&
           dml__host_mix_inode(identity, "/proc/self/ns/pid");
}

static bool dml__host_random(void *out, size_t bytes)
{
    return dml__host_read("/dev/urandom", out, bytes);
}

static int dml__host_create(size_t bytes)
{
    const int fd = (int)syscall(SYS_memfd_create, "dml", DML__MEMFD_FLAGS);
    if (fd < 0) return -1;
    /* Taken now, since who touches memory that the system doesn't have is killed. */
    if (posix_fallocate(fd, 0, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, DML__MEMORY_SEALS) == 0)
        return fd;
    close(fd);
    return -1;
}

static int dml__host_open(long process, int fd, size_t bytes)
{
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", process, fd);
    /* Whatever else may lie there by now (a terminal, a pipe): opening it shall do nothing. */
    const int opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0) return -1;
    if (fstat(opened, &file) == 0 && S_ISREG(file.st_mode) && file.st_size >= 0 &&
        (uint64_t)file.st_size == (uint64_t)bytes && fcntl(opened, F_GET_SEALS) == DML__MEMORY_SEALS)
        return opened;
    close(opened);
    return -1;
}

static void *dml__host_map(int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void dml__host_unmap(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

static void dml__host_close(int fd)
{
    close(fd);
}

#else

static bool dml__host_identity(uint64_t *identity)
{
    *identity = 0;
    return false;
}

static bool dml__host_random(void *out, size_t bytes)
{
    (void)out, (void)bytes;
    return false;
}

static int dml__host_create(size_t bytes)
{
    (void)bytes;
    return -1;
}

static int dml__host_open(long process, int fd, size_t bytes)
{
    (void)process, (void)fd, (void)bytes;
    return -1;
}

static void *dml__host_map(int fd, size_t bytes)
{
    (void)fd, (void)bytes;
    return NULL;
}

static void dml__host_unmap(void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
}

static void dml__host_close(int fd)
{
    (void)fd;
}

#endif

DML__LOCAL const dml__host_calls *dml__system_host(void)
{
    static const dml__host_calls calls = { dml__host_identity, dml__process_id, dml__host_create,
                                           dml__host_open,     dml__host_map,   dml__host_unmap,
                                           dml__host_close,    dml__host_random };
    return &calls;
}

#endif

/* ---- net/shm_meet.c ---- */

#ifndef DML_NET_SHM_MEET_C
#define DML_NET_SHM_MEET_C

/* ---- net/shm_internal.h ---- */

/* shm_internal.h: the shared memory transport's own files between themselves. */
#ifndef DML_NET_SHM_INTERNAL_H
#define DML_NET_SHM_INTERNAL_H

/* ---- net/shm.h ---- */

/* shm.h: the transport between ranks that are processes of one host: data goes through memory that they
   share, all else through the transport below. */
#ifndef DML_NET_SHM_H
#define DML_NET_SHM_H

typedef struct dml__shm_settings {
    int rank, world;
    bool off;          /* no memory is shared with this rank */
    size_t ring_bytes; /* on their way between two ranks, a power of two from 4 KiB to 1 GiB; 0: 512 KiB, from
                          17 ranks on less */
    int spin;          /* microseconds that a wait spins before it sleeps; 0: 50, or none when there are more
                          ranks on this host than processors; -1: none */
    double seconds;    /* until every rank has to have answered */
    /* Takes in what has come on the control channels meanwhile; false: that has ended the job. NULL: it stays
       where it is. */
    bool (*control)(void *user);
    void *user;
} dml__shm_settings;

/* Finds out with every other rank what lies between them, over the data channel of `below`, which nobody has
   used before: all ranks call this, those that share nothing (`off`, another system) too. Returns the
   transport for all of it, which closes `below` with itself, or `below` where no memory is shared. Where a
   pair can't share (no memory, no /proc, another namespace), it stays below, and that is no error.

   NULL: `below` is the caller's still, and *culprit the rank that is gone, that has said nothing in time or
   nothing that makes sense; this rank: it has no memory; -1: `control` was false.

   What is lent ends where a span ends, at the latest after 64 KiB, or at an address that is a multiple of 64;
   so no element is cut that didn't lie across such an address. A loan ends with consume. From ranks that are
   not "shm" (medium), lend says what `below` says, or DML__LENDS_NOTHING.

   Below, the data channel of a pair that shares memory carries bells: single bytes, that wake who sleeps. */
DML__LOCAL dml__transport *dml__shm_open(dml__transport *below, const dml__shm_settings *settings,
                                         const dml__host_calls *host, dml__memory *memory, int *culprit);

#endif

/* ---- net/shm_ring.h ---- */

/* shm_ring.h: one direction between two processes: a row of pieces, short ones with their bytes, and a ring
   that the bytes of the others lie in. What a short one costs is the lines that have to move from one
   processor to the other: so its number, which says that it is there, lies beside it, and what is written for
   each piece shares no line with what the other end seldom changes. The other process may write anything
   anywhere at any time: whatever is read is read once, and checked before it is used. */
#ifndef DML_NET_SHM_RING_H
#define DML_NET_SHM_RING_H

#include <string.h>

#define DML__SHM_PIECES 128u        /* that may be on their way; a power of two */
#define DML__SHM_PIECE (64u * 1024) /* bytes of a piece at most: the other end begins to read after it */
#define DML__SHM_SHORT 104u         /* bytes of a piece that lies in the row */
#define DML__SHM_RING_LEAST 4096u   /* bytes of a ring */
#define DML__SHM_RING_MOST (1u << 30)

typedef struct dml__shm_piece {
    uint32_t number; /* 1 + that of the piece, once it is there */
    uint32_t bytes;
    uint32_t at; /* where it begins: in the ring, or, of a short one, in `data` */
    uint32_t unused;
    uint8_t data[DML__SHM_SHORT + 8];
} dml__shm_piece;

/* In the shared memory, before the ring's bytes. */
typedef struct dml__shm_way {
    uint32_t tail DML__OWN_LINE;            /* the receiver's: pieces consumed */
    uint32_t sender_sleeps DML__OWN_LINE;   /* until there is room; whoever rings it takes it back */
    uint32_t receiver_sleeps DML__OWN_LINE; /* until there is something */
    dml__shm_piece pieces[DML__SHM_PIECES] DML__OWN_LINE;
} dml__shm_way;

/* What each end knows by itself. Positions in the ring count on for ever, round and round. */
typedef struct dml__shm_sender {
    dml__shm_way *way;
    uint8_t *ring; /* (size) */
    uint32_t size, head, tail;
    uint32_t at, freed;             /* the end of what was written; the end of what was consumed of it */
    uint32_t ends[DML__SHM_PIECES]; /* of the pieces that are on their way */
} dml__shm_sender;

typedef struct dml__shm_receiver {
    dml__shm_way *way;
    const uint8_t *ring; /* (size) */
    uint32_t size, tail;
    const uint8_t *data; /* of the piece at tail, which was checked */
    uint32_t bytes;      /* of it; 0: not looked at yet */
    uint32_t done;       /* of these, consumed */
    uint32_t quiet;      /* bytes consumed since the sender was told of room */
} dml__shm_receiver;

/* ---- sending ---- */

/* Learns what the receiver has consumed; false: it has spoiled the ring. */
static inline bool dml__shm_learn(dml__shm_sender *s)
{
    const uint32_t tail = __atomic_load_n(&s->way->tail, __ATOMIC_SEQ_CST);
    if (tail - s->tail > s->head - s->tail) return false;
    if (tail != s->tail) s->freed = s->ends[(tail - 1) % DML__SHM_PIECES];
    s->tail = tail;
    if (tail == s->head) s->at = s->freed = 0; /* near what was last used */
    return true;
}

/* For the next `left` bytes it need not be known what the receiver has consumed since this end looked. */
static inline bool dml__shm_knows_room(const dml__shm_sender *s, size_t left)
{
    return left <= DML__SHM_SHORT && s->head - s->tail < DML__SHM_PIECES;
}

/* Whether something can be sent: as much as a piece of any alignment needs. */
static inline bool dml__shm_room(const dml__shm_sender *s)
{
    return s->head - s->tail < DML__SHM_PIECES && s->size - (s->at - s->freed) >= 512;
}

static inline void dml__shm_publish(dml__shm_sender *s, uint32_t at, uint32_t bytes)
{
    dml__shm_piece *const piece = &s->way->pieces[s->head % DML__SHM_PIECES];
    s->ends[s->head % DML__SHM_PIECES] = s->at;
    __atomic_store_n(&piece->at, at, __ATOMIC_RELAXED);
    __atomic_store_n(&piece->bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&piece->number, ++s->head, __ATOMIC_SEQ_CST);
}

/* Sends the first bytes of `left`, as one piece of the same alignment (up to 64, or 8 of a short one); how
   many. A piece that doesn't end with the data ends at a multiple of 64. */
static inline uint32_t dml__shm_send_piece(dml__shm_sender *s, const uint8_t *data, size_t left)
{
    if (dml__shm_knows_room(s, left)) {
        const uint32_t at = (uint32_t)(uintptr_t)data & 7;
        memcpy(s->way->pieces[s->head % DML__SHM_PIECES].data + at, data, left);
        dml__shm_publish(s, at, (uint32_t)left);
        return (uint32_t)left;
    }
    const uint32_t used = s->at - s->freed, to_end = s->size - (s->at & (s->size - 1));
    uint32_t pad = (uint32_t)((uintptr_t)data - s->at) & 63;
    if (to_end - pad <= DML__SHM_SHORT + 64) pad = to_end + ((uint32_t)(uintptr_t)data & 63);
    if (s->head - s->tail >= DML__SHM_PIECES || used + pad >= s->size) return 0;
    const uint32_t begin = (s->at + pad) & (s->size - 1);
    uint32_t bytes = s->size - used - pad;
    if (bytes > s->size - begin) bytes = s->size - begin;
    if (bytes > DML__SHM_PIECE) bytes = DML__SHM_PIECE;
    if (bytes >= left) {
        bytes = (uint32_t)left;
    } else {
        const uint32_t over = (begin + bytes) & 63;
        if (bytes <= over + DML__SHM_SHORT) return 0;
        bytes -= over;
    }
    memcpy(s->ring + begin, data, bytes);
    s->at += pad + bytes;
    dml__shm_publish(s, begin, bytes);
    return bytes;
}

/* ---- receiving ---- */

/* Looks at the piece at tail: how many bytes of it are left (0: there is none); -1: the sender has spoiled
   the ring. */
static inline ptrdiff_t dml__shm_look(dml__shm_receiver *r)
{
    if (r->bytes) return (ptrdiff_t)(r->bytes - r->done);
    const dml__shm_piece *piece = &r->way->pieces[r->tail % DML__SHM_PIECES];
    const uint32_t number = __atomic_load_n(&piece->number, __ATOMIC_SEQ_CST);
    if (number != r->tail + 1) /* what was here before, or nothing yet */
        return number == r->tail + 1 - DML__SHM_PIECES || number == 0 ? 0 : -1;
    const uint32_t bytes = __atomic_load_n(&piece->bytes, __ATOMIC_RELAXED);
    const uint32_t at = __atomic_load_n(&piece->at, __ATOMIC_RELAXED);
    if (bytes == 0 || bytes > r->size || at > (bytes > DML__SHM_SHORT ? r->size - bytes : 7)) return -1;
    r->data = (bytes > DML__SHM_SHORT ? r->ring : piece->data) + at;
    r->bytes = bytes;
    r->done = 0;
    return (ptrdiff_t)bytes;
}

static inline bool dml__shm_is_empty(const dml__shm_receiver *r)
{
    return __atomic_load_n(&r->way->pieces[r->tail % DML__SHM_PIECES].number, __ATOMIC_SEQ_CST) !=
           r->tail + 1;
}

/* Of the piece that was looked at. */
static inline void dml__shm_consume_piece(dml__shm_receiver *r, size_t bytes)
{
    DML_ASSERT(bytes <= r->bytes - r->done);
    r->done += (uint32_t)bytes;
    if (!r->bytes || r->done < r->bytes) return;
    r->quiet += r->bytes;
    r->bytes = 0;
    r->done = 0;
    __atomic_store_n(&r->way->tail, ++r->tail, __ATOMIC_SEQ_CST);
}

/* ---- sleeping: who sleeps says so, and then looks once more; who sends or consumes looks at that after
   it ---- */

static inline bool dml__shm_receiver_to_ring(const dml__shm_sender *s)
{
    return __atomic_load_n(&s->way->receiver_sleeps, __ATOMIC_SEQ_CST) &&
           __atomic_exchange_n(&s->way->receiver_sleeps, 0, __ATOMIC_SEQ_CST);
}

/* A sender that sleeps is told when all has been consumed, or half a ring since it was told last: not for
   each piece, which would be two switches between processes each. */
static inline bool dml__shm_sender_to_ring(dml__shm_receiver *r)
{
    if (!__atomic_load_n(&r->way->sender_sleeps, __ATOMIC_SEQ_CST)) return false;
    if (r->quiet < r->size / 2 && !dml__shm_is_empty(r)) return false;
    r->quiet = 0;
    return __atomic_exchange_n(&r->way->sender_sleeps, 0, __ATOMIC_SEQ_CST) != 0;
}

#endif

#define DML__SHM_TOKEN 16 /* bytes by which both ends know that they have the same memory */

/* What is shared begins with this; then, for each direction, the lower rank's first, a way and its ring. */
typedef struct dml__shm_head {
    uint8_t token[DML__SHM_TOKEN] DML__OWN_LINE;
} dml__shm_head;

typedef struct dml__shm_pair {
    uint8_t *memory; /* NULL: this pair is as it is below */
    size_t bytes;
    bool gone; /* its connection below has ended, or what it wrote makes no sense */
    dml__shm_sender out;
    dml__shm_receiver in;
} dml__shm_pair;

typedef struct dml__shm {
    dml__transport transport;
    dml__transport *below;
    dml__memory *memory;
    const dml__host_calls *host;
    int rank, world;
    int spin;             /* microseconds */
    double looked_below;  /* when */
    dml__shm_pair *pairs; /* (world) */
    uint8_t *wishes;      /* (world): those for below */
} dml__shm;

static inline size_t dml__shm_bytes(uint32_t ring)
{
    return sizeof(dml__shm_head) + 2 * (sizeof(dml__shm_way) + (size_t)ring);
}

/* The pair has this memory, with rings of that size, from now on. */
DML__LOCAL void dml__shm_connect(dml__shm *shm, int rank, uint8_t *memory, uint32_t ring);

/* Fills in the pairs; false: as dml__shm_open says NULL. */
DML__LOCAL bool dml__shm_meet(dml__shm *shm, const dml__shm_settings *settings, int *culprit);

#endif

/* ---- base/bytes.h ---- */

/* bytes.h: numbers as little-endian bytes, at any address, for files and wires. */
#ifndef DML_BASE_BYTES_H
#define DML_BASE_BYTES_H

#include <string.h>

/* Compilers make one load or store of each. */
static inline uint16_t dml__load16(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint16_t)(b[0] | (unsigned)b[1] << 8);
}

static inline uint32_t dml__load32(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t dml__load64(const void *from)
{
    const unsigned char *b = (const unsigned char *)from;
    return (uint64_t)dml__load32(b) | (uint64_t)dml__load32(b + 4) << 32;
}

static inline void dml__store16(void *to, uint16_t value)
{
    unsigned char *b = (unsigned char *)to;
    b[0] = (unsigned char)value;
    b[1] = (unsigned char)(value >> 8);
}

static inline void dml__store32(void *to, uint32_t value)
{
    unsigned char *b = (unsigned char *)to;
    b[0] = (unsigned char)value;
    b[1] = (unsigned char)(value >> 8);
    b[2] = (unsigned char)(value >> 16);
    b[3] = (unsigned char)(value >> 24);
}

static inline void dml__store64(void *to, uint64_t value)
{
    unsigned char *b = (unsigned char *)to;
    dml__store32(b, (uint32_t)value);
    dml__store32(b + 4, (uint32_t)(value >> 32));
}

static inline float dml__load_f32(const void *from)
{
    const uint32_t bits = dml__load32(from);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void dml__store_f32(void *to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    dml__store32(to, bits);
}

/* Whether memory has numbers as files and wires do. Compilers know the answer. */
static inline bool dml__little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

/* Reverses the bytes of each of `count` numbers of `width` bytes; `to` and `from` may be the same. */
static inline void dml__swap_bytes(void *to, const void *from, size_t count, size_t width)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    for (; count > 0; count--, t += width, f += width)
        for (size_t low = 0; low < (width + 1) / 2; low++) {
            const unsigned char kept = f[low];
            t[low] = f[width - 1 - low];
            t[width - 1 - low] = kept;
        }
}

#endif

/* How two ranks find out whether they share memory, in messages of one size over the data channel:

     both         HELLO   on which host they are
     lower rank   OFFER   where its memory is; only if they are on one host. No process: it has none
     upper rank   ANSWER  whether it has got it; only if there was some

   so that both know the same at the end, whatever has failed. */
enum { DML__SHM_HELLO = 1, DML__SHM_OFFER, DML__SHM_ANSWER, DML__SHM_DONE };

#define DML__SHM_MESSAGE 64
#define DML__SHM_MAGIC UINT32_C(0x326d6873)

/* What is going on with one rank. */
typedef struct dml__shm_talk {
    uint8_t out[DML__SHM_MESSAGE], in[DML__SHM_MESSAGE];
    size_t sent, got;
    int expects; /* the kind of message that comes next */
    bool made;   /* memory has been offered: */
    int fd;
    uint8_t *memory;
} dml__shm_talk;

typedef struct dml__shm_meeting {
    dml__shm *shm;
    const dml__shm_settings *settings;
    uint64_t identity; /* 0: this rank shares nothing */
    uint32_t ring;
    dml__shm_talk *talks; /* (world) */
} dml__shm_meeting;

static void dml__shm_say(dml__shm_talk *talk, int kind)
{
    memset(talk->out, 0, sizeof talk->out);
    dml__store32(talk->out, DML__SHM_MAGIC);
    dml__store32(talk->out + 4, (uint32_t)kind);
    talk->sent = 0;
}

static void dml__shm_close_talk(const dml__shm *shm, dml__shm_talk *talk, size_t bytes)
{
    if (!talk->made) return;
    if (talk->memory) shm->host->unmap(talk->memory, bytes);
    shm->host->close(talk->fd);
    talk->made = false;
}

/* Makes the memory of a pair and says where it is, or that there is none. */
static void dml__shm_offer(const dml__shm_meeting *meeting, dml__shm_talk *talk)
{
    const dml__host_calls *host = meeting->shm->host;
    const size_t bytes = dml__shm_bytes(meeting->ring);
    uint8_t token[DML__SHM_TOKEN];
    dml__shm_say(talk, DML__SHM_OFFER);
    talk->expects = DML__SHM_DONE;
    talk->fd = host->create(bytes);
    if (talk->fd < 0) return;
    talk->made = true;
    talk->memory = (uint8_t *)host->map(talk->fd, bytes);
    if (!talk->memory || !host->random(token, sizeof token)) {
        dml__shm_close_talk(meeting->shm, talk, bytes);
        return;
    }
    memcpy(talk->memory, token, sizeof token);
    dml__store64(talk->out + 8, (uint64_t)host->process());
    dml__store32(talk->out + 16, (uint32_t)talk->fd);
    dml__store32(talk->out + 20, meeting->ring);
    memcpy(talk->out + 24, token, sizeof token);
    talk->expects = DML__SHM_ANSWER;
}

/* Two segments of the engine's, which a core's L2 still holds: larger rings are slower. Of many ranks, each
   has rings of 8 MiB for what comes to it, as long as they are of 64 KiB: the memory is taken at once. */
static uint32_t dml__shm_usual_ring(int world)
{
    uint32_t ring = 512u * 1024;
    while (ring > 64u * 1024 && (uint64_t)ring * (uint64_t)world > 8u * 1024 * 1024) ring /= 2;
    return ring;
}

static bool dml__shm_ring_ok(size_t ring)
{
    return ring >= DML__SHM_RING_LEAST && ring <= DML__SHM_RING_MOST && (ring & (ring - 1)) == 0;
}

/* The memory that was offered, if it can be had and is the one. */
static uint8_t *dml__shm_get(const dml__host_calls *host, const uint8_t *offer)
{
    const uint64_t process = dml__load64(offer + 8);
    const uint32_t fd = dml__load32(offer + 16), ring = dml__load32(offer + 20);
    if (process > INT32_MAX || fd > INT32_MAX || !dml__shm_ring_ok(ring)) return NULL;
    const size_t bytes = dml__shm_bytes(ring);
    const int opened = host->open((long)process, (int)fd, bytes);
    if (opened < 0) return NULL;
    uint8_t *memory = (uint8_t *)host->map(opened, bytes);
    host->close(opened);
    if (!memory || memcmp(memory, offer + 24, DML__SHM_TOKEN) == 0) return memory;
    host->unmap(memory, bytes);
    return NULL;
}

static void dml__shm_answer(dml__shm *shm, int rank, dml__shm_talk *talk)
{
    dml__shm_say(talk, DML__SHM_ANSWER);
    talk->expects = DML__SHM_DONE;
    uint8_t *memory = dml__shm_get(shm->host, talk->in);
    if (!memory) return;
    dml__store32(talk->out + 8, 1);
    dml__shm_connect(shm, rank, memory, dml__load32(talk->in + 20));
}

/* The lower rank hears whether the other has the memory. */
static void dml__shm_conclude(const dml__shm_meeting *meeting, int rank, dml__shm_talk *talk)
{
    dml__shm *shm = meeting->shm;
    talk->expects = DML__SHM_DONE;
    if (dml__load32(talk->in + 8) == 1) {
        dml__shm_connect(shm, rank, talk->memory, meeting->ring);
        talk->memory = NULL;
    }
    dml__shm_close_talk(shm, talk, dml__shm_bytes(meeting->ring));
}

/* A whole message has come; false: it makes no sense. */
static bool dml__shm_hear(const dml__shm_meeting *meeting, int rank)
{
    dml__shm_talk *talk = &meeting->talks[rank];
    const bool lower = meeting->shm->rank < rank;
    talk->got = 0;
    if (dml__load32(talk->in) != DML__SHM_MAGIC || dml__load32(talk->in + 4) != (uint32_t)talk->expects)
        return false;
    if (talk->expects == DML__SHM_HELLO) {
        const uint64_t identity = dml__load64(talk->in + 8);
        talk->expects = DML__SHM_DONE;
        if (identity == 0 || identity != meeting->identity) return true;
        if (lower)
            dml__shm_offer(meeting, talk);
        else
            talk->expects = DML__SHM_OFFER;
    } else if (talk->expects == DML__SHM_OFFER) {
        talk->expects = DML__SHM_DONE;
        if (dml__load64(talk->in + 8) != 0) dml__shm_answer(meeting->shm, rank, talk);
    } else {
        dml__shm_conclude(meeting, rank, talk);
    }
    return true;
}

/* As much of the talk with one rank as goes without waiting; false: the rank is gone, or makes no sense. */
static bool dml__shm_talk_on(const dml__shm_meeting *meeting, int rank, bool *moved)
{
    dml__transport *below = meeting->shm->below;
    dml__shm_talk *talk = &meeting->talks[rank];
    dml__span span;
    for (;;) {
        ptrdiff_t sent = 0, got = 0;
        span.data = talk->out + talk->sent;
        span.bytes = sizeof talk->out - talk->sent;
        if (span.bytes) sent = below->calls->send(below, rank, DML__CHANNEL_DATA, &span, 1);
        if (sent < 0) return false;
        talk->sent += (size_t)sent;
        /* An answer may need `out` anew. */
        if (talk->sent == sizeof talk->out && talk->expects != DML__SHM_DONE) {
            span.data = talk->in + talk->got;
            span.bytes = sizeof talk->in - talk->got;
            got = below->calls->receive(below, rank, DML__CHANNEL_DATA, &span, 1);
            if (got < 0) return false;
            talk->got += (size_t)got;
            if (talk->got == sizeof talk->in && !dml__shm_hear(meeting, rank)) return false;
        }
        if (sent == 0 && got == 0) return true;
        *moved = true;
    }
}

/* One round with everybody: who is not done yet (-1: all are), or *culprit. */
static int dml__shm_round(const dml__shm_meeting *meeting, bool *moved, int *culprit)
{
    dml__shm *shm = meeting->shm;
    int waits_for = -1;
    for (int rank = 0; rank < shm->world; rank++) {
        const dml__shm_talk *talk = &meeting->talks[rank];
        shm->wishes[rank] = 0;
        if (rank == shm->rank) continue;
        if (!dml__shm_talk_on(meeting, rank, moved)) *culprit = rank;
        if (talk->sent < sizeof talk->out)
            shm->wishes[rank] = DML__WISH_SEND;
        else if (talk->expects != DML__SHM_DONE)
            shm->wishes[rank] = DML__WISH_RECEIVE;
        if (shm->wishes[rank]) waits_for = rank;
    }
    return waits_for;
}

static bool dml__shm_talk_to_all(const dml__shm_meeting *meeting, int *culprit)
{
    dml__transport *below = meeting->shm->below;
    const dml__shm_settings *settings = meeting->settings;
    const double until = dml_seconds() + settings->seconds;
    for (;;) {
        bool moved = false;
        *culprit = -1;
        const int waits_for = dml__shm_round(meeting, &moved, culprit);
        if (*culprit >= 0) return false;
        if (waits_for < 0) return true;
        if (moved) continue;
        const double left = until - dml_seconds();
        *culprit = waits_for;
        if (left <= 0) return false;
        /* Control that nobody takes in would end every wait at once. */
        const int ready = below->calls->wait(below, meeting->shm->wishes, left);
        if (ready < 0) return false;
        *culprit = -1;
        if ((ready & DML__READY_CONTROL) && settings->control && !settings->control(settings->user))
            return false;
    }
}

DML__LOCAL bool dml__shm_meet(dml__shm *shm, const dml__shm_settings *settings, int *culprit)
{
    dml__shm_meeting meeting;
    meeting.shm = shm;
    meeting.settings = settings;
    meeting.ring = settings->ring_bytes ? (uint32_t)settings->ring_bytes : dml__shm_usual_ring(shm->world);
    if (settings->off || (settings->ring_bytes && !dml__shm_ring_ok(settings->ring_bytes)) ||
        !shm->host->identity(&meeting.identity))
        meeting.identity = 0;
    meeting.talks =
        (dml__shm_talk *)dml__allocate_array(shm->memory, (size_t)shm->world, sizeof *meeting.talks);
    *culprit = shm->rank;
    if (!meeting.talks) return false;
    for (int rank = 0; rank < shm->world; rank++) {
        dml__shm_say(&meeting.talks[rank], DML__SHM_HELLO);
        dml__store64(meeting.talks[rank].out + 8, meeting.identity);
        meeting.talks[rank].expects = DML__SHM_HELLO;
    }
    const bool met = dml__shm_talk_to_all(&meeting, culprit);
    for (int rank = 0; rank < shm->world; rank++)
        dml__shm_close_talk(shm, &meeting.talks[rank], dml__shm_bytes(meeting.ring));
    dml__release(shm->memory, meeting.talks);
    return met;
}

#endif

/* ---- net/shm.c ---- */

#ifndef DML_NET_SHM_C
#define DML_NET_SHM_C

#define DML__SHM_SPIN 50         /* microseconds: about what it costs to sleep and be rung */
#define DML__SHM_LOOK_BELOW 1e-3 /* seconds: how long control may lie unseen while data keeps coming */

static dml__shm *dml__shm_of(const dml__transport *transport)
{
    return (dml__shm *)(uintptr_t)transport;
}

/* ---- bells: single bytes on the data connection below ---- */

static void dml__shm_bell(dml__shm *shm, int rank)
{
    char byte = 0;
    dml__span span;
    span.data = &byte;
    span.bytes = 1;
    /* Where there is no room for one more, there are enough. */
    shm->below->calls->send(shm->below, rank, DML__CHANNEL_DATA, &span, 1);
}

/* Takes in the bells that have come, and learns whether the other end is still there. */
static void dml__shm_take_bells(dml__shm *shm, int rank)
{
    char dust[64];
    dml__span span;
    ptrdiff_t got;
    span.data = dust;
    span.bytes = sizeof dust;
    do got = shm->below->calls->receive(shm->below, rank, DML__CHANNEL_DATA, &span, 1);
    while (got == (ptrdiff_t)sizeof dust);
    if (got == DML__GONE) shm->pairs[rank].gone = true;
}

/* ---- data ---- */

static ptrdiff_t dml__shm_send_data(dml__shm *shm, int rank, const dml__span *spans, int count)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    size_t sent = 0;
    if (!pair->gone && !(count == 1 && dml__shm_knows_room(&pair->out, spans[0].bytes)) &&
        !dml__shm_learn(&pair->out))
        pair->gone = true;
    if (pair->gone) return DML__GONE;
    for (int i = 0; i < count; i++) {
        const uint8_t *data = (const uint8_t *)spans[i].data;
        for (size_t left = spans[i].bytes; left > 0;) {
            const uint32_t piece = dml__shm_send_piece(&pair->out, data, left);
            if (piece == 0) return (ptrdiff_t)sent;
            if (dml__shm_receiver_to_ring(&pair->out)) dml__shm_bell(shm, rank);
            data += piece;
            left -= piece;
            sent += piece;
        }
    }
    return (ptrdiff_t)sent;
}

/* As dml__shm_look; who is gone is so once all that it had sent is taken. */
static ptrdiff_t dml__shm_look_at(dml__shm_pair *pair)
{
    const ptrdiff_t bytes = dml__shm_look(&pair->in);
    if (bytes < 0) pair->gone = true;
    return bytes <= 0 && pair->gone ? DML__GONE : bytes;
}

static ptrdiff_t dml__shm_lend(dml__transport *transport, int rank, const void **data)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_pair *pair = &shm->pairs[rank];
    if (!pair->memory)
        return shm->below->calls->lend ? shm->below->calls->lend(shm->below, rank, data) : DML__LENDS_NOTHING;
    const ptrdiff_t bytes = dml__shm_look_at(pair);
    if (bytes > 0) *data = pair->in.data + pair->in.done;
    return bytes;
}

static void dml__shm_consume(dml__transport *transport, int rank, size_t bytes)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_pair *pair = &shm->pairs[rank];
    if (!pair->memory) {
        shm->below->calls->consume(shm->below, rank, bytes);
        return;
    }
    dml__shm_consume_piece(&pair->in, bytes);
    if (dml__shm_sender_to_ring(&pair->in)) dml__shm_bell(shm, rank);
}

static ptrdiff_t dml__shm_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__shm *shm = dml__shm_of(transport);
    if (channel == DML__CHANNEL_DATA && shm->pairs[rank].memory)
        return dml__shm_send_data(shm, rank, spans, count);
    return shm->below->calls->send(shm->below, rank, channel, spans, count);
}

static ptrdiff_t dml__shm_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__shm *shm = dml__shm_of(transport);
    if (channel == DML__CHANNEL_DATA && shm->pairs[rank].memory)
        return dml__receive_lent(transport, rank, spans, count);
    return shm->below->calls->receive(shm->below, rank, channel, spans, count);
}

/* ---- waiting ---- */

/* Whether a wish has come true that shared memory answers. */
static bool dml__shm_wish_is_true(dml__shm_pair *pair, int wish)
{
    if ((wish & DML__WISH_RECEIVE) && dml__shm_look_at(pair) != 0) return true;
    if (!(wish & DML__WISH_SEND)) return false;
    if (!dml__shm_learn(&pair->out)) pair->gone = true;
    return pair->gone || dml__shm_room(&pair->out);
}

static bool dml__shm_any_is_true(dml__shm *shm, const uint8_t *wishes)
{
    for (int rank = 0; wishes && rank < shm->world; rank++)
        if (shm->pairs[rank].memory && wishes[rank] && dml__shm_wish_is_true(&shm->pairs[rank], wishes[rank]))
            return true;
    return false;
}

/* While it spins, nobody looks below. */
static bool dml__shm_may_spin(const dml__shm *shm, const uint8_t *wishes)
{
    bool any = false;
    for (int rank = 0; wishes && rank < shm->world; rank++) {
        if (wishes[rank] && !shm->pairs[rank].memory) return false;
        any |= wishes[rank] != 0;
    }
    return any && shm->spin > 0;
}

static bool dml__shm_spin(dml__shm *shm, const uint8_t *wishes, double until)
{
    double end = 0;
    if (!dml__shm_may_spin(shm, wishes)) return false;
    for (int i = 1;; i++) {
        if (dml__shm_any_is_true(shm, wishes)) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (end == 0) end = now + shm->spin * 1e-6;
        if (now >= end || now >= until) return false;
    }
}

/* Tells the other ends of what is wished for that this rank sleeps, or no longer does. */
static void dml__shm_set_sleeping(dml__shm *shm, const uint8_t *wishes, uint32_t sleeping)
{
    for (int rank = 0; wishes && rank < shm->world; rank++) {
        dml__shm_pair *pair = &shm->pairs[rank];
        if (!pair->memory) continue;
        if (wishes[rank] & DML__WISH_RECEIVE)
            __atomic_store_n(&pair->in.way->receiver_sleeps, sleeping, __ATOMIC_SEQ_CST);
        if (wishes[rank] & DML__WISH_SEND)
            __atomic_store_n(&pair->out.way->sender_sleeps, sleeping, __ATOMIC_SEQ_CST);
    }
}

/* Waits below for the wishes that are answered there, and for bells from the others. */
static int dml__shm_wait_below(dml__shm *shm, const uint8_t *wishes, double seconds)
{
    for (int rank = 0; rank < shm->world; rank++) {
        const dml__shm_pair *pair = &shm->pairs[rank];
        const uint8_t wish = wishes ? wishes[rank] : 0;
        shm->wishes[rank] = !pair->memory ? wish : wish && !pair->gone ? DML__WISH_RECEIVE : 0;
    }
    const int told = shm->below->calls->wait(shm->below, shm->wishes, seconds);
    for (int rank = 0; told > 0 && (told & DML__READY_DATA) && rank < shm->world; rank++)
        if (shm->pairs[rank].memory && shm->wishes[rank]) dml__shm_take_bells(shm, rank);
    shm->looked_below = dml_seconds();
    return told;
}

/* Which of the wishes that are answered below have come true, now. */
static int dml__shm_ask_below(dml__shm *shm, const uint8_t *wishes)
{
    for (int rank = 0; rank < shm->world; rank++)
        shm->wishes[rank] = wishes && !shm->pairs[rank].memory ? wishes[rank] : 0;
    shm->looked_below = dml_seconds();
    return shm->below->calls->wait(shm->below, shm->wishes, 0);
}

/* Sleeps below, once, unless a wish comes true before; `woken`: nothing was told at all. */
static int dml__shm_sleep(dml__shm *shm, const uint8_t *wishes, double seconds, bool *woken)
{
    if (seconds > 0) dml__shm_set_sleeping(shm, wishes, 1);
    const bool early = seconds > 0 && dml__shm_any_is_true(shm, wishes);
    const int told = dml__shm_wait_below(shm, wishes, early ? 0 : seconds);
    if (seconds > 0) dml__shm_set_sleeping(shm, wishes, 0);
    *woken = told == 0;
    if (told < 0) return told;
    int ready = told & DML__READY_CONTROL;
    if (dml__shm_any_is_true(shm, wishes))
        ready |= DML__READY_DATA;
    else if (told & DML__READY_DATA) /* a connection, or a bell that was late */
        ready |= dml__shm_ask_below(shm, wishes);
    return ready;
}

static int dml__shm_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__shm *shm = dml__shm_of(transport);
    const double begin = dml_seconds(), until = begin + seconds;
    bool woken = false;
    for (;;) {
        if (dml__shm_any_is_true(shm, wishes) || (seconds > 0 && dml__shm_spin(shm, wishes, until))) {
            if (begin - shm->looked_below < DML__SHM_LOOK_BELOW) return DML__READY_DATA;
            const int below = dml__shm_ask_below(shm, wishes);
            return below < 0 ? below : below | DML__READY_DATA;
        }
        const double left = seconds > 0 ? until - dml_seconds() : 0;
        const int ready = dml__shm_sleep(shm, wishes, left > 0 ? left : 0, &woken);
        if (ready || woken || left <= 0) return ready;
    }
}

static void dml__shm_wake(dml__transport *transport)
{
    const dml__shm *shm = dml__shm_of(transport);
    shm->below->calls->wake(shm->below);
}

/* ---- the rest ---- */

static const char *dml__shm_medium(const dml__transport *transport, int rank)
{
    const dml__shm *shm = dml__shm_of(transport);
    return shm->pairs[rank].memory ? "shm" : shm->below->calls->medium(shm->below, rank);
}

static void dml__shm_withdraw(dml__transport *transport)
{
    const dml__shm *shm = dml__shm_of(transport);
    if (shm->below->calls->withdraw) shm->below->calls->withdraw(shm->below);
}

/* Lets go of all but what is below. */
static void dml__shm_release(dml__shm *shm)
{
    dml__memory *memory = shm->memory;
    for (int rank = 0; shm->pairs && rank < shm->world; rank++)
        if (shm->pairs[rank].memory) shm->host->unmap(shm->pairs[rank].memory, shm->pairs[rank].bytes);
    dml__release(memory, shm->pairs);
    dml__release(memory, shm->wishes);
    dml__release(memory, shm);
}

static void dml__shm_close(dml__transport *transport)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__transport *below = shm->below;
    dml__shm_release(shm);
    below->calls->close(below);
}

static void dml__shm_abandon(dml__transport *transport)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__transport *below = shm->below;
    dml__shm_release(shm);
    below->calls->abandon(below);
}

DML__LOCAL void dml__shm_connect(dml__shm *shm, int rank, uint8_t *memory, uint32_t ring)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    const size_t direction = sizeof(dml__shm_way) + (size_t)ring;
    uint8_t *lower = memory + sizeof(dml__shm_head), *upper = lower + direction;
    uint8_t *out = shm->rank < rank ? lower : upper, *in = shm->rank < rank ? upper : lower;
    pair->memory = memory;
    pair->bytes = dml__shm_bytes(ring);
    pair->out.way = (dml__shm_way *)(void *)out;
    pair->out.ring = out + sizeof(dml__shm_way);
    pair->in.way = (dml__shm_way *)(void *)in;
    pair->in.ring = in + sizeof(dml__shm_way);
    pair->out.size = pair->in.size = ring;
}

static dml__shm *dml__shm_create(dml__transport *below, const dml__shm_settings *settings,
                                 const dml__host_calls *host, dml__memory *memory)
{
    static const dml__transport_calls calls = {
        "shm",         dml__shm_send, dml__shm_receive, dml__shm_lend,  dml__shm_consume, dml__shm_withdraw,
        dml__shm_wait, dml__shm_wake, dml__shm_medium,  dml__shm_close, dml__shm_abandon,
    };
    dml__shm *shm = (dml__shm *)dml__allocate(memory, sizeof *shm);
    if (!shm) return NULL;
    shm->transport.calls = &calls;
    shm->below = below;
    shm->memory = memory;
    shm->host = host;
    shm->rank = settings->rank;
    shm->world = settings->world;
    shm->pairs = (dml__shm_pair *)dml__allocate_array(memory, (size_t)shm->world, sizeof *shm->pairs);
    shm->wishes = (uint8_t *)dml__allocate(memory, (size_t)shm->world);
    if (shm->pairs && shm->wishes) return shm;
    dml__shm_release(shm);
    return NULL;
}

DML__LOCAL dml__transport *dml__shm_open(dml__transport *below, const dml__shm_settings *settings,
                                         const dml__host_calls *host, dml__memory *memory, int *culprit)
{
    *culprit = settings->rank;
    dml__shm *shm = dml__shm_create(below, settings, host, memory);
    if (!shm) return NULL;
    const bool met = dml__shm_meet(shm, settings, culprit);
    int here = 1;
    for (int rank = 0; met && rank < shm->world; rank++) here += shm->pairs[rank].memory != NULL;
    if (!met || here == 1) {
        dml__shm_release(shm);
        return met ? below : NULL;
    }
    shm->spin = settings->spin < 0        ? 0
                : settings->spin          ? settings->spin
                : here <= dml_cpu_count() ? DML__SHM_SPIN
                                          : 0;
    return &shm->transport;
}

#endif

/* ---- net/handshake.c ---- */

#ifndef DML_NET_HANDSHAKE_C
#define DML_NET_HANDSHAKE_C

/* ---- net/handshake.h ---- */

/* handshake.h: one connection on its way from a stranger to a rank. It never waits: each step takes what has
   come and sends what there is room for, so that many go on side by side. */
#ifndef DML_NET_HANDSHAKE_H
#define DML_NET_HANDSHAKE_H

typedef enum dml__handshake_stage {
    DML__SHAKE_UNUSED,
    DML__SHAKE_RESTING,    /* connecting side: until the next try */
    DML__SHAKE_CONNECTING, /* connecting side, then these three: */
    DML__SHAKE_GET_CHALLENGE,
    DML__SHAKE_SEND_HELLO,
    DML__SHAKE_GET_WELCOME,
    DML__SHAKE_SEND_CHALLENGE, /* accepting side */
    DML__SHAKE_GET_HELLO,
    DML__SHAKE_SEND_WELCOME,
    DML__SHAKE_REFUSED, /* accepting side said no; connecting side was told no */
    DML__SHAKE_BROKEN,  /* it ended, or what came isn't this protocol */
    DML__SHAKE_DONE
} dml__handshake_stage;

/* What this end is, in every handshake of a rendezvous. */
typedef struct dml__identity {
    const dml__socket_calls *calls;
    const char *key; /* NULL: none */
    int rank, world;
    uint64_t segment_bytes;
    bool has_session;
    uint8_t session[DML__SESSION_BYTES];
    /* Whether that rank has such a connection already; where this rank listens for others that come the way
       `fd` went, 0 for nowhere, or -1 and errno. */
    bool (*taken)(void *user, int rank, int channel);
    int (*port)(void *user, int fd);
    void *user;
} dml__identity;

typedef struct dml__handshake {
    dml__handshake_stage stage;
    int fd;
    int rank; /* the other end's: known from the start on the connecting side */
    int channel;
    dml__address address; /* of the other end */
    double deadline;      /* of the accepting side: when a silent visitor is dropped */
    double retry_at, rest;
    int error; /* errno of the last failure; 0: closed by the other end, or nonsense came */
    dml__verdict verdict;
    dml__hello hello_in;
    dml__welcome welcome_in;
    size_t done; /* bytes of the stage's message that have moved */
    uint8_t challenge[DML__CHALLENGE_BYTES], hello[DML__HELLO_BYTES], welcome[DML__WELCOME_BYTES];
} dml__handshake;

/* Begins on a socket: that has been accepted, or that is connecting. */
DML__LOCAL void dml__begin_accepted(dml__handshake *shake, const dml__identity *me, int fd,
                                    const dml__address *from, double deadline);
DML__LOCAL void dml__begin_connecting(dml__handshake *shake, int fd);

/* Which of POLLIN and POLLOUT it waits for; 0 when it waits for none. */
DML__LOCAL short dml__handshake_events(const dml__handshake *shake);

/* As far as it goes without waiting. */
DML__LOCAL void dml__handshake_step(dml__handshake *shake, const dml__identity *me);

/* Whether a refusal shows that something is wrong with the job, and not that a stranger came. */
DML__LOCAL bool dml__is_job_fault(dml__verdict verdict);

/* The sentence for a refused handshake, the same on both sides, in third person. */
DML__LOCAL void dml__refusal_text(const dml__handshake *shake, const dml__identity *me, bool accepting,
                                  char *text, size_t bytes);

#endif

#include <errno.h>
#include <stdio.h>
#include <string.h>

DML__LOCAL bool dml__is_job_fault(dml__verdict verdict)
{
    static const bool authentic[] = {
#define DML__VERDICT_AUTHENTIC(NAME, authentic) authentic,
        DML__VERDICT_LIST(DML__VERDICT_AUTHENTIC)
#undef DML__VERDICT_AUTHENTIC
    };
    return (unsigned)verdict < DML__VERDICT_COUNT && authentic[verdict];
}

DML__LOCAL void dml__begin_accepted(dml__handshake *shake, const dml__identity *me, int fd,
                                    const dml__address *from, double deadline)
{
    memset(shake, 0, sizeof *shake);
    shake->stage = DML__SHAKE_SEND_CHALLENGE;
    shake->fd = fd;
    shake->rank = -1;
    shake->address = *from;
    shake->deadline = deadline;
    dml__challenge challenge;
    if (me->calls->random(challenge.nonce, sizeof challenge.nonce) < 0) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return;
    }
    dml__encode_challenge(&challenge, shake->challenge);
}

DML__LOCAL void dml__begin_connecting(dml__handshake *shake, int fd)
{
    shake->stage = DML__SHAKE_CONNECTING;
    shake->fd = fd;
    shake->done = 0;
}

DML__LOCAL short dml__handshake_events(const dml__handshake *shake)
{
    switch (shake->stage) {
    case DML__SHAKE_CONNECTING:
    case DML__SHAKE_SEND_CHALLENGE:
    case DML__SHAKE_SEND_HELLO:
    case DML__SHAKE_SEND_WELCOME: return POLLOUT;
    case DML__SHAKE_GET_CHALLENGE:
    case DML__SHAKE_GET_HELLO:
    case DML__SHAKE_GET_WELCOME: return POLLIN;
    default: return 0;
    }
}

/* Moves on with the stage's message; true when all of it has moved. */
static bool dml__shake_message(dml__handshake *shake, const dml__identity *me, uint8_t *message, size_t bytes,
                               bool sending)
{
    dml__span span;
    span.data = message + shake->done;
    span.bytes = bytes - shake->done;
    const ptrdiff_t moved = sending ? dml__socket_send(me->calls, shake->fd, &span, 1)
                                    : dml__socket_receive(me->calls, shake->fd, &span, 1);
    if (moved == DML__GONE) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return false;
    }
    shake->done += (size_t)moved;
    if (shake->done < bytes) return false;
    shake->done = 0;
    return true;
}

static void dml__shake_nonsense(dml__handshake *shake)
{
    shake->stage = DML__SHAKE_BROKEN;
    shake->error = 0;
}

/* ---- the connecting side ---- */

static void dml__write_hello(dml__handshake *shake, const dml__identity *me)
{
    dml__challenge challenge;
    if (!dml__decode_challenge(shake->challenge, &challenge)) {
        dml__shake_nonsense(shake);
        return;
    }
    dml__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.version = DML__WIRE_VERSION;
    hello.has_key = me->key != NULL;
    hello.channel = shake->channel;
    hello.from = me->rank;
    hello.to = shake->rank;
    hello.world = me->world;
    hello.segment_bytes = me->segment_bytes;
    if (me->has_session) memcpy(hello.session, me->session, sizeof hello.session);
    const int port = me->port(me->user, shake->fd);
    hello.port = (uint16_t)(port < 0 ? 0 : port);
    if (port < 0 || me->calls->random(hello.nonce, sizeof hello.nonce) < 0) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return;
    }
    dml__encode_hello(&hello, shake->hello);
    if (me->key) {
        dml__hello_mac(me->key, shake->challenge, shake->hello, hello.mac);
        dml__encode_hello(&hello, shake->hello);
    }
    shake->stage = DML__SHAKE_SEND_HELLO;
}

static void dml__read_welcome(dml__handshake *shake, const dml__identity *me)
{
    dml__welcome *welcome = &shake->welcome_in;
    if (!dml__decode_welcome(shake->welcome, welcome)) {
        dml__shake_nonsense(shake);
        return;
    }
    shake->verdict = welcome->verdict;
    if (welcome->verdict == DML__VERDICT_WELCOME && welcome->version != DML__WIRE_VERSION)
        shake->verdict = DML__VERDICT_WRONG_VERSION;
    if (welcome->verdict == DML__VERDICT_WELCOME && me->key) {
        uint8_t mac[DML__MAC_BYTES];
        dml__welcome_mac(me->key, shake->challenge, shake->hello, shake->welcome, mac);
        /* An impostor listens there: as good as nobody. */
        if (!dml__equal_in_constant_time(mac, welcome->mac, sizeof mac)) {
            dml__shake_nonsense(shake);
            return;
        }
    }
    shake->stage = shake->verdict == DML__VERDICT_WELCOME ? DML__SHAKE_DONE : DML__SHAKE_REFUSED;
}

/* ---- the accepting side ---- */

static dml__verdict dml__judge(const dml__handshake *shake, const dml__identity *me)
{
    static const uint8_t no_session[DML__SESSION_BYTES] = { 0 };
    const dml__hello *hello = &shake->hello_in;
    if (hello->version != DML__WIRE_VERSION) return DML__VERDICT_WRONG_VERSION;
    if (me->key && !hello->has_key) return DML__VERDICT_NEEDS_KEY;
    if (!me->key && hello->has_key) return DML__VERDICT_HAS_NO_KEY;
    if (me->key) {
        uint8_t mac[DML__MAC_BYTES];
        dml__hello_mac(me->key, shake->challenge, shake->hello, mac);
        if (!dml__equal_in_constant_time(mac, hello->mac, sizeof mac)) return DML__VERDICT_WRONG_KEY;
    }
    /* Only the first connection to rank 0 may come without the session, which it asks for. */
    const bool first = me->rank == 0 && hello->channel == DML__CHANNEL_CONTROL &&
                       memcmp(hello->session, no_session, sizeof no_session) == 0;
    if (!first && (!me->has_session || memcmp(hello->session, me->session, sizeof me->session) != 0))
        return DML__VERDICT_WRONG_SESSION;
    if (hello->world != me->world) return DML__VERDICT_WRONG_WORLD;
    if (hello->to != me->rank || hello->from <= me->rank || hello->from >= me->world ||
        hello->channel >= DML__CHANNEL_COUNT)
        return DML__VERDICT_WRONG_RANK;
    if (hello->segment_bytes != me->segment_bytes) return DML__VERDICT_WRONG_SEGMENT;
    if (me->taken(me->user, hello->from, hello->channel)) return DML__VERDICT_RANK_TAKEN;
    return DML__VERDICT_WELCOME;
}

static void dml__write_welcome(dml__handshake *shake, const dml__identity *me)
{
    if (!dml__decode_hello(shake->hello, &shake->hello_in)) {
        dml__shake_nonsense(shake);
        return;
    }
    dml__welcome welcome;
    memset(&welcome, 0, sizeof welcome);
    welcome.version = DML__WIRE_VERSION;
    welcome.verdict = shake->verdict = dml__judge(shake, me);
    welcome.rank = me->rank;
    welcome.world = me->world;
    welcome.segment_bytes = me->segment_bytes;
    if (welcome.verdict == DML__VERDICT_WELCOME) {
        shake->rank = shake->hello_in.from;
        shake->channel = shake->hello_in.channel;
        memcpy(welcome.session, me->session, sizeof welcome.session);
    }
    dml__encode_welcome(&welcome, shake->welcome);
    if (me->key && welcome.verdict == DML__VERDICT_WELCOME) {
        dml__welcome_mac(me->key, shake->challenge, shake->hello, shake->welcome, welcome.mac);
        dml__encode_welcome(&welcome, shake->welcome);
    }
    shake->stage = DML__SHAKE_SEND_WELCOME;
}

/* ---- both ---- */

/* One stage; true when it is behind us. */
static bool dml__shake_stage(dml__handshake *shake, const dml__identity *me)
{
    switch (shake->stage) {
    case DML__SHAKE_CONNECTING:
        shake->error = dml__socket_connect_error(me->calls, shake->fd, &shake->address);
        shake->stage = shake->error ? DML__SHAKE_BROKEN : DML__SHAKE_GET_CHALLENGE;
        return true;
    case DML__SHAKE_GET_CHALLENGE:
        if (!dml__shake_message(shake, me, shake->challenge, sizeof shake->challenge, false)) return false;
        dml__write_hello(shake, me);
        return true;
    case DML__SHAKE_SEND_HELLO:
        if (!dml__shake_message(shake, me, shake->hello, sizeof shake->hello, true)) return false;
        shake->stage = DML__SHAKE_GET_WELCOME;
        return true;
    case DML__SHAKE_GET_WELCOME:
        if (!dml__shake_message(shake, me, shake->welcome, sizeof shake->welcome, false)) return false;
        dml__read_welcome(shake, me);
        return true;
    case DML__SHAKE_SEND_CHALLENGE:
        if (!dml__shake_message(shake, me, shake->challenge, sizeof shake->challenge, true)) return false;
        shake->stage = DML__SHAKE_GET_HELLO;
        return true;
    case DML__SHAKE_GET_HELLO:
        if (!dml__shake_message(shake, me, shake->hello, sizeof shake->hello, false)) return false;
        dml__write_welcome(shake, me);
        return true;
    case DML__SHAKE_SEND_WELCOME:
        if (!dml__shake_message(shake, me, shake->welcome, sizeof shake->welcome, true)) return false;
        shake->stage = shake->verdict == DML__VERDICT_WELCOME ? DML__SHAKE_DONE : DML__SHAKE_REFUSED;
        return true;
    default: return false;
    }
}

DML__LOCAL void dml__handshake_step(dml__handshake *shake, const dml__identity *me)
{
    while (dml__shake_stage(shake, me)) continue;
}

DML__LOCAL void dml__refusal_text(const dml__handshake *shake, const dml__identity *me, bool accepting,
                                  char *text, size_t bytes)
{
    const dml__hello *hello = &shake->hello_in;
    const dml__welcome *welcome = &shake->welcome_in;
    /* The rank that came and the one it came to. */
    const int comer = accepting ? hello->from : me->rank, host = accepting ? me->rank : shake->rank;
    switch (shake->verdict) {
    case DML__VERDICT_WRONG_VERSION:
        snprintf(text, bytes, "rank %d speaks version %d of the protocol, but rank %d version %d", comer,
                 accepting ? hello->version : DML__WIRE_VERSION, host,
                 accepting ? DML__WIRE_VERSION : welcome->version);
        break;
    case DML__VERDICT_NEEDS_KEY:
        snprintf(text, bytes, "rank %d has no key, but rank %d has: give both the same DML_KEY", comer, host);
        break;
    case DML__VERDICT_HAS_NO_KEY:
        snprintf(text, bytes, "rank %d has a key, but rank %d has none: give both the same DML_KEY", comer,
                 host);
        break;
    case DML__VERDICT_WRONG_KEY:
        snprintf(text, bytes, "rank %d has another key than rank %d: give both the same DML_KEY", comer,
                 host);
        break;
    case DML__VERDICT_WRONG_SESSION:
        snprintf(text, bytes, "rank %d belongs to another job than rank %d", comer, host);
        break;
    case DML__VERDICT_WRONG_WORLD:
        snprintf(text, bytes, "rank %d has a world size of %d, but rank %d one of %d", comer,
                 accepting ? hello->world : me->world, host, accepting ? me->world : welcome->world);
        break;
    case DML__VERDICT_WRONG_RANK:
        snprintf(text, bytes, "rank %d of %d can't join through rank %d", comer, me->world, host);
        break;
    case DML__VERDICT_RANK_TAKEN:
        snprintf(text, bytes,
                 "rank %d came twice to rank %d: two processes have the same rank, or two jobs the "
                 "same port",
                 comer, host);
        break;
    case DML__VERDICT_WRONG_SEGMENT:
        snprintf(text, bytes, "rank %d has segment_bytes %llu, but rank %d has %llu", comer,
                 (unsigned long long)(accepting ? hello->segment_bytes : me->segment_bytes), host,
                 (unsigned long long)(accepting ? me->segment_bytes : welcome->segment_bytes));
        break;
    default: snprintf(text, bytes, "rank %d was refused by rank %d", comer, host); break;
    }
}

#endif

/* ---- net/tcp.c ---- */

#ifndef DML_NET_TCP_C
#define DML_NET_TCP_C

/* ---- net/tcp.h ---- */

/* tcp.h: the TCP transport's own files between themselves. */
#ifndef DML_NET_TCP_H
#define DML_NET_TCP_H

typedef struct dml__tcp {
    dml__transport transport;
    const dml__socket_calls *calls;
    dml__memory *memory;
    const dml__net_user *user; /* while the ranks meet */
    int rank, world;
    int *fd[DML__CHANNEL_COUNT]; /* (world) each; -1: none */
    /* (2 world + 1): the control connections, what is woken, then the data connections of a wait's wishes. */
    struct pollfd *polls;
    int wake[2]; /* what is sent into the second comes out of the first; -1: none */
    bool met;    /* every connection has been made */
} dml__tcp;

/* Takes a connection that has proved itself. */
DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd);

/* Fills in the connections; false as dml__tcp_open says NULL. */
DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__net_settings *settings);

/* user->fail with a sentence made here. */
DML__LOCAL void dml__tcp_fail(dml__tcp *tcp, int culprit, dml_status status, const char *format, ...)
    DML__PRINTF(4, 5);

#endif

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The TCP transport: two connections between each two ranks. rendezvous.c makes them. */

static ptrdiff_t dml__tcp_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    const dml__tcp *tcp = (const dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    return fd < 0 ? DML__GONE : dml__socket_send(tcp->calls, fd, spans, count);
}

static ptrdiff_t dml__tcp_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    if (fd < 0) return channel == DML__CHANNEL_CONTROL && !tcp->met ? 0 : DML__GONE;
    const ptrdiff_t got = dml__socket_receive(tcp->calls, fd, spans, count);
    /* An ended connection is always ready to be read: it must not be waited on again. */
    if (got == DML__GONE && channel == DML__CHANNEL_CONTROL) tcp->polls[rank].fd = -1;
    return got;
}

static void dml__tcp_poll_entry(struct pollfd *entry, int fd, short events)
{
    entry->fd = fd;
    entry->events = events;
    entry->revents = 0;
}

/* Fills in the data connections that are wished for; how many. */
static int dml__tcp_poll_wishes(dml__tcp *tcp, const uint8_t *wishes)
{
    struct pollfd *const polls = tcp->polls + tcp->world + 1;
    int count = 0;
    for (int rank = 0; wishes && rank < tcp->world; rank++) {
        const int fd = tcp->fd[DML__CHANNEL_DATA][rank];
        if (!wishes[rank] || fd < 0) continue;
        const int events =
            (wishes[rank] & DML__WISH_SEND ? POLLOUT : 0) | (wishes[rank] & DML__WISH_RECEIVE ? POLLIN : 0);
        dml__tcp_poll_entry(&polls[count++], fd, (short)events);
    }
    return count;
}

/* Takes in what wake has sent. */
static void dml__tcp_take_wakes(const dml__tcp *tcp)
{
    char dust[64];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    if (!tcp->polls[tcp->world].revents) return;
    while (dml__socket_receive(tcp->calls, tcp->wake[0], &span, 1) == (ptrdiff_t)sizeof dust) continue;
}

static int dml__tcp_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int world = tcp->world, wished = dml__tcp_poll_wishes(tcp, wishes);
    const size_t count = (size_t)world + 1 + (size_t)wished;
    if (dml__socket_poll(tcp->calls, tcp->polls, count, seconds) < 0) return DML__GONE;
    int ready = 0;
    dml__tcp_take_wakes(tcp);
    for (int i = 0; i < wished; i++)
        if (tcp->polls[world + 1 + i].revents) ready |= DML__READY_DATA;
    for (int rank = 0; rank < world; rank++)
        if (tcp->polls[rank].revents) ready |= DML__READY_CONTROL;
    return ready;
}

/* Where there is no room for one more byte, there are enough. */
static void dml__tcp_wake(dml__transport *transport)
{
    const dml__tcp *tcp = (const dml__tcp *)(void *)transport;
    char byte = 0;
    dml__span span;
    span.data = &byte;
    span.bytes = 1;
    dml__socket_send(tcp->calls, tcp->wake[1], &span, 1);
}

static const char *dml__tcp_medium(const dml__transport *transport, int rank)
{
    (void)rank;
    return transport->calls->name;
}

DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd)
{
    tcp->fd[channel][rank] = fd;
    if (channel == DML__CHANNEL_CONTROL) dml__tcp_poll_entry(&tcp->polls[rank], fd, POLLIN);
}

/* Says that nothing follows what was sent, since the close alone doesn't where a fork's child has the
   connection too. What has come and was not read would turn the close into a reset, which could overtake what
   we sent last. */
static void dml__tcp_close_one(const dml__tcp *tcp, int fd)
{
    char dust[4096];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    tcp->calls->shutdown(fd);
    for (int i = 0; i < 1024 && dml__socket_receive(tcp->calls, fd, &span, 1) > 0; i++) continue;
    tcp->calls->close(fd);
}

static void dml__tcp_release(dml__tcp *tcp)
{
    dml__memory *memory = tcp->memory;
    for (int end = 0; end < 2; end++)
        if (tcp->wake[end] >= 0) tcp->calls->close(tcp->wake[end]);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) dml__release(memory, tcp->fd[channel]);
    dml__release(memory, tcp->polls);
    dml__release(memory, tcp);
}

static void dml__tcp_close(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; tcp->fd[channel] && rank < tcp->world; rank++)
            if (tcp->fd[channel][rank] >= 0) dml__tcp_close_one(tcp, tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* Closes the descriptors and reads nothing: what has come is for the parent. */
static void dml__tcp_abandon(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; rank < tcp->world; rank++)
            if (tcp->fd[channel][rank] >= 0) tcp->calls->close(tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* The transport, without a connection yet. NULL: no memory for it. */
static dml__tcp *dml__tcp_create(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                 dml__memory *memory)
{
    static const dml__transport_calls calls = {
        "tcp",           dml__tcp_send,  dml__tcp_receive, NULL, NULL, NULL, dml__tcp_wait, dml__tcp_wake,
        dml__tcp_medium, dml__tcp_close, dml__tcp_abandon
    };
    const size_t world = (size_t)settings->world;
    dml__tcp *tcp = (dml__tcp *)dml__allocate(memory, sizeof *tcp);
    if (!tcp) return NULL;
    tcp->transport.calls = &calls;
    tcp->calls = sockets;
    tcp->memory = memory;
    tcp->rank = settings->rank;
    tcp->world = settings->world;
    tcp->wake[0] = tcp->wake[1] = -1;
    tcp->polls = (struct pollfd *)dml__allocate_array(memory, 2 * world + 1, sizeof *tcp->polls);
    for (size_t i = 0; tcp->polls && i < 2 * world + 1; i++) tcp->polls[i].fd = -1;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) {
        tcp->fd[channel] = (int *)dml__allocate_array(memory, world, sizeof **tcp->fd);
        for (size_t rank = 0; tcp->fd[channel] && rank < world; rank++) tcp->fd[channel][rank] = -1;
    }
    if (tcp->polls && tcp->fd[DML__CHANNEL_CONTROL] && tcp->fd[DML__CHANNEL_DATA]) return tcp;
    dml__tcp_close(&tcp->transport);
    return NULL;
}

DML__LOCAL void dml__tcp_fail(dml__tcp *tcp, int culprit, dml_status status, const char *format, ...)
{
    char text[DML__NET_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tcp->user->fail(tcp->user->user, &tcp->transport, culprit, status, text);
}

/* What `wake` works with. */
static bool dml__tcp_make_wake(dml__tcp *tcp)
{
    if (tcp->calls->pair(tcp->wake) < 0) {
        tcp->wake[0] = tcp->wake[1] = -1;
        dml__tcp_fail(tcp, tcp->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections: %s",
                      tcp->rank, strerror(errno));
        return false;
    }
    dml__tcp_poll_entry(&tcp->polls[tcp->world], tcp->wake[0], POLLIN);
    return true;
}

DML__LOCAL dml__transport *dml__tcp_open(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                         const dml__net_user *user)
{
    dml__tcp *tcp = dml__tcp_create(settings, sockets, user->memory);
    if (!tcp) {
        char text[DML__NET_TEXT];
        snprintf(text, sizeof text, "rank %d has no memory", settings->rank);
        user->fail(user->user, NULL, settings->rank, DML_ERROR_MEMORY, text);
        return NULL;
    }
    tcp->user = user;
    const bool met = dml__tcp_make_wake(tcp) && dml__meet(tcp, settings);
    tcp->user = NULL;
    if (met) return &tcp->transport;
    dml__tcp_close(&tcp->transport);
    return NULL;
}

#endif
DML__DRIVERS_BEGIN

/* ---- net/rendezvous.c ---- */

#ifndef DML_NET_RENDEZVOUS_C
#define DML_NET_RENDEZVOUS_C

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How the ranks meet:

     1. Rank 0 listens where all look for it. Each other rank connects to it (again and again, since ranks
   start in any order), and says in its hello on which port it listens itself.
     2. When all have come, rank 0 tells each rank the addresses of the ranks below it.
     3. Each rank connects to all ranks below it, twice (control and data), and is connected to by all above.

   One loop around one poll() does it all: listening, trying, and any number of handshakes side by side, so
   that nobody who comes to a port can hold up the others. */

#define DML__MASTERS 8          /* addresses of master_addr that are tried */
#define DML__VISITORS 256       /* unproven connections beyond those that the job needs */
#define DML__SHORTEST_STAY 0.05 /* seconds that a silent visitor keeps its place if others want it */

struct dml__meeting {
    dml__tcp *tcp;
    const dml__net_settings *settings;
    const dml__net_user *user;
    dml__identity me;
    double deadline, patience; /* the second: how long a visitor may take to prove itself */
    int listener;
    double listen_after; /* accept has failed: not before then */
    dml__address listens_at;
    dml__address masters[DML__MASTERS];
    int master_count, tries;
    dml__address bind_address;
    bool bound;
    dml__address *addresses; /* (world); 0 bytes: unknown */
    bool addresses_done;     /* all sent (rank 0) or received (others) */
    dml__handshake *shakes;  /* (shake_count): to each rank below twice, then visitors */
    int outgoing, shake_count;
    struct pollfd *polls; /* (1 + shake_count + world); some have no fd */
    struct pollfd *waits; /* those that have */
    int to_connect;       /* connections that are still missing */
    char note[256];       /* why the last visitor was turned away, if it was worth a sentence */
};

/* ---- where ---- */

static bool dml__find_master(dml__meeting *meeting)
{
    const dml__net_settings *settings = meeting->settings;
    const char *message = "";
    meeting->master_count = dml__resolve_host(settings->master_addr, (uint16_t)settings->master_port,
                                              meeting->masters, DML__MASTERS, &message);
    if (!meeting->master_count) {
        dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
                      "rank %d can't find the address of master_addr \"%s\": %s", meeting->me.rank,
                      settings->master_addr, message);
        return false;
    }
    if (!settings->bind_addr) return true;
    meeting->bound = dml__interface_address(settings->bind_addr, meeting->masters[0].storage.ss_family,
                                            &meeting->bind_address) ||
                     dml__resolve_host(settings->bind_addr, 0, &meeting->bind_address, 1, &message) == 1;
    if (!meeting->bound)
        dml__tcp_fail(
            meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
            "rank %d can't use bind_addr \"%s\": it is no network interface with an address and no name: %s",
            meeting->me.rank, settings->bind_addr, message);
    return meeting->bound;
}

static bool dml__stays_on_loopback(const dml__meeting *meeting)
{
    for (int i = 0; i < meeting->master_count; i++)
        if (!dml__is_loopback(&meeting->masters[i])) return false;
    return !meeting->bound || dml__is_loopback(&meeting->bind_address);
}

static bool dml__check_trust(dml__meeting *meeting)
{
    const dml__net_settings *settings = meeting->settings;
    if (settings->key || settings->allow_insecure || dml__stays_on_loopback(meeting)) return true;
    dml__tcp_fail(
        meeting->tcp, meeting->me.rank, DML_ERROR_ARGUMENT,
        "rank %d won't leave loopback without a key (master_addr \"%s\"%s%s%s): give all ranks the same "
        "DML_KEY or options.key, or, where anyone on the network may join the job, DML_INSECURE=1 or "
        "options.allow_insecure",
        meeting->me.rank, settings->master_addr, settings->bind_addr ? ", bind_addr \"" : "",
        settings->bind_addr ? settings->bind_addr : "", settings->bind_addr ? "\"" : "");
    return false;
}

static bool dml__listen_at(dml__meeting *meeting, const dml__address *address, uint16_t port)
{
    meeting->listens_at = *address;
    dml__set_address_port(&meeting->listens_at, port);
    meeting->listener = dml__socket_listen(meeting->me.calls, &meeting->listens_at);
    return meeting->listener >= 0;
}

/* Rank 0: on bind_addr, on the loopback address that was named, or on all. */
static bool dml__listen_as_master(dml__meeting *meeting)
{
    const uint16_t port = (uint16_t)meeting->settings->master_port;
    bool listening = false;
    if (meeting->bound) {
        listening = dml__listen_at(meeting, &meeting->bind_address, port);
    } else if (dml__stays_on_loopback(meeting)) {
        for (int i = 0; i < meeting->master_count && !listening; i++)
            listening = dml__listen_at(meeting, &meeting->masters[i], port);
    } else {
        int family = AF_INET; /* a socket of IPv6 takes both */
        for (int i = 0; i < meeting->master_count; i++)
            if (meeting->masters[i].storage.ss_family == AF_INET6) family = AF_INET6;
        dml__address any;
        dml__any_address(family, &any);
        listening = dml__listen_at(meeting, &any, port);
    }
    if (listening) return true;
    char text[DML__ADDRESS_TEXT];
    const int error = errno;
    dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK, "rank 0 can't listen on %s: %s",
                  dml__address_text(&meeting->listens_at, text),
                  error == EADDRINUSE ? "the port is in use; choose another master_port (MASTER_PORT)"
                                      : strerror(error));
    return false;
}

/* dml__identity.port: the other ranks listen on the address by which they reached rank 0. */
static int dml__own_port(void *user, int fd)
{
    dml__meeting *meeting = (dml__meeting *)user;
    if (meeting->me.rank + 1 == meeting->me.world) return 0; /* nobody will come */
    if (meeting->listener < 0) {
        dml__address own;
        own.bytes = sizeof own.storage;
        if (meeting->me.calls->own_address(fd, (struct sockaddr *)(void *)&own.storage, &own.bytes) < 0)
            return -1;
        if (!dml__listen_at(meeting, &own, 0)) return -1;
    }
    return dml__address_port(&meeting->listens_at);
}

/* ---- addresses ---- */

DML__LOCAL bool dml__take_addresses(dml__meeting *meeting, int from, const dml__control *control)
{
    const int below = meeting->me.rank;
    dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
    const int count = dml__control_addresses(control, endpoints);
    if (from != 0 || count < 0 || control->rank < 1 || control->rank > below || count > below - control->rank)
        return false;
    for (int i = 0; i < count; i++) dml__from_endpoint(&endpoints[i], &meeting->addresses[control->rank + i]);
    meeting->addresses_done = control->rank + count == below;
    return true;
}

/* Takes in what has been heard; false: that has ended the job. */
static bool dml__listen_to_ranks(dml__meeting *meeting)
{
    const dml__net_user *user = meeting->user;
    return user->control(user->user, &meeting->tcp->transport, meeting);
}

/* Rank 0: to each rank the addresses of ranks 1 .. rank - 1, of which rank 1 gets an empty list: go on. */
static bool dml__send_addresses(dml__meeting *meeting)
{
    const int world = meeting->me.world;
    for (int to = 1; to < world; to++) {
        int first = 1;
        do {
            dml__control control;
            dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
            int count = 0;
            memset(&control, 0, sizeof control);
            control.kind = DML__ADDRESSES;
            control.rank = first;
            while (first < to && count < DML__ADDRESSES_AT_ONCE)
                dml__to_endpoint(&meeting->addresses[first++], &endpoints[count++]);
            dml__set_control_addresses(&control, endpoints, count);
            if (!dml__send_control(&meeting->tcp->transport, to, &control, meeting->deadline)) {
                if (dml__listen_to_ranks(meeting))
                    dml__tcp_fail(meeting->tcp, to, DML_ERROR_PEER,
                                  "rank %d of %d left during the rendezvous", to, world);
                return false;
            }
        } while (first < to);
    }
    return meeting->addresses_done = true;
}

/* ---- handshakes ---- */

static void dml__close_shake(dml__meeting *meeting, dml__handshake *shake)
{
    if (shake->fd >= 0) meeting->me.calls->close(shake->fd);
    shake->fd = -1;
}

/* dml__identity.taken: connected, or about to be. */
static bool dml__is_taken(void *user, int rank, int channel)
{
    const dml__meeting *meeting = (const dml__meeting *)user;
    if (meeting->tcp->fd[channel][rank] >= 0) return true;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        const dml__handshake *other = &meeting->shakes[i];
        if (other->stage == DML__SHAKE_SEND_WELCOME && other->rank == rank && other->channel == channel)
            return true;
    }
    return false;
}

/* A free place for a visitor, or that of the one who has been silent longest, if that was long enough to
   answer. NULL: none now. */
static dml__handshake *dml__place_for_visitor(dml__meeting *meeting, double now)
{
    dml__handshake *oldest = NULL;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        if (shake->stage == DML__SHAKE_UNUSED) return shake;
        if (!oldest || shake->deadline < oldest->deadline) oldest = shake;
    }
    const double may_go = oldest->deadline - meeting->patience + DML__SHORTEST_STAY;
    if (now < may_go) {
        meeting->listen_after = may_go;
        return NULL;
    }
    return oldest;
}

/* A few at a time, so that a crowd at the door doesn't keep us from those who are inside. */
static void dml__accept_visitors(dml__meeting *meeting, double now)
{
    for (int i = 0; i < 16; i++) {
        dml__handshake *place = dml__place_for_visitor(meeting, now);
        if (!place) return;
        dml__address from;
        const int fd = dml__socket_accept(meeting->me.calls, meeting->listener, &from);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) meeting->listen_after = now + 0.01;
            return;
        }
        if (place->stage != DML__SHAKE_UNUSED) {
            dml__close_shake(meeting, place);
            (*meeting->user->strangers)++;
        }
        dml__begin_accepted(place, &meeting->me, fd, &from, now + meeting->patience);
    }
}

/* Until the next try, a little longer each time. */
static void dml__rest(dml__handshake *shake, int error, double now)
{
    shake->stage = DML__SHAKE_RESTING;
    shake->error = error;
    shake->retry_at = now + shake->rest;
    if (shake->rest < 0.25) shake->rest *= 1.5;
}

/* Whether an outgoing connection that rests knows where to go. */
static bool dml__knows_its_way(const dml__meeting *meeting, const dml__handshake *shake)
{
    if (shake->rank > 0) return meeting->addresses_done;
    /* The second connection to rank 0 needs the session, which the first one brings. */
    return shake->channel == DML__CHANNEL_CONTROL || meeting->me.has_session;
}

static void dml__try_connecting(dml__meeting *meeting, dml__handshake *shake, double now)
{
    const bool first = shake->rank == 0 && shake->channel == DML__CHANNEL_CONTROL;
    shake->address =
        first ? meeting->masters[meeting->tries++ % meeting->master_count] : meeting->addresses[shake->rank];
    const int fd = dml__socket_connect(meeting->me.calls, &shake->address,
                                       meeting->bound ? &meeting->bind_address : NULL);
    if (fd < 0) {
        dml__rest(shake, errno, now);
        return;
    }
    dml__begin_connecting(shake, fd);
    shake->deadline = now + meeting->patience;
}

static void dml__connected(dml__meeting *meeting, dml__handshake *shake, bool accepted)
{
    dml__tcp_connected(meeting->tcp, shake->rank, (dml__channel)shake->channel, shake->fd);
    meeting->to_connect--;
    shake->fd = -1;
    if (accepted) {
        if (shake->channel == DML__CHANNEL_CONTROL) {
            meeting->addresses[shake->rank] = shake->address;
            dml__set_address_port(&meeting->addresses[shake->rank], shake->hello_in.port);
        }
        shake->stage = DML__SHAKE_UNUSED;
    } else if (shake->rank == 0 && shake->channel == DML__CHANNEL_CONTROL) {
        meeting->addresses[0] = shake->address;
        memcpy(meeting->me.session, shake->welcome_in.session, sizeof meeting->me.session);
        meeting->me.has_session = true;
    }
}

/* False when the refusal ends the job. */
static bool dml__refused(dml__meeting *meeting, dml__handshake *shake, bool accepted)
{
    char text[256];
    dml__refusal_text(shake, &meeting->me, accepted, text, sizeof text);
    dml__close_shake(meeting, shake);
    if (!accepted || dml__is_job_fault(shake->verdict)) {
        dml__tcp_fail(meeting->tcp, accepted ? shake->hello_in.from : meeting->me.rank, DML_ERROR_MISMATCH,
                      "%s", text);
        return false;
    }
    (*meeting->user->strangers)++;
    memcpy(meeting->note, text, sizeof text);
    dml__log(meeting->user->logger, DML_LOG_WARNING, "a connection was turned away: %s", text);
    shake->stage = DML__SHAKE_UNUSED;
    return true;
}

static void dml__broken(dml__meeting *meeting, dml__handshake *shake, bool accepted, double now)
{
    dml__close_shake(meeting, shake);
    if (accepted) {
        shake->stage = DML__SHAKE_UNUSED;
        (*meeting->user->strangers)++;
        return;
    }
    dml__rest(shake, shake->error, now);
}

/* Visitors have a deadline at every stage. Whoever connects has one only until the other end answers: an
   address that swallows all packets must not keep it from the next, but a rank that accepted it must not be
   left. */
static bool dml__has_deadline(const dml__handshake *shake, bool accepted)
{
    return accepted ? dml__handshake_events(shake) != 0 : shake->stage == DML__SHAKE_CONNECTING;
}

/* Moves one handshake on; false when that ended the job. */
static bool dml__advance(dml__meeting *meeting, int index, bool ready, double now)
{
    dml__handshake *shake = &meeting->shakes[index];
    const bool accepted = index >= meeting->outgoing;
    if (shake->stage == DML__SHAKE_RESTING && now >= shake->retry_at)
        dml__try_connecting(meeting, shake, now);
    if (ready) dml__handshake_step(shake, &meeting->me);
    if (shake->stage == DML__SHAKE_DONE && shake->fd >= 0) dml__connected(meeting, shake, accepted);
    if (shake->stage == DML__SHAKE_REFUSED) return dml__refused(meeting, shake, accepted);
    const bool too_slow = dml__has_deadline(shake, accepted) && now > shake->deadline;
    if (too_slow) shake->error = ETIMEDOUT;
    if (shake->stage == DML__SHAKE_BROKEN || too_slow) dml__broken(meeting, shake, accepted, now);
    return true;
}

/* ---- the loop ---- */

/* Fills in what to wait for, and returns for how long at most. */
static double dml__prepare_polls(dml__meeting *meeting, double now)
{
    double until = meeting->deadline;
    struct pollfd *polls = meeting->polls;
    /* Before the session is known, every visitor would seem to be of another job. */
    const bool open = meeting->listener >= 0 && meeting->me.has_session;
    const bool listening = open && now >= meeting->listen_after;
    if (open && !listening && meeting->listen_after < until) until = meeting->listen_after;
    polls[0].fd = listening ? meeting->listener : -1;
    polls[0].events = POLLIN;
    for (int i = 0; i < meeting->shake_count; i++) {
        const dml__handshake *shake = &meeting->shakes[i];
        const short events = dml__handshake_events(shake);
        polls[1 + i].fd = events ? shake->fd : -1;
        polls[1 + i].events = events;
        if (dml__has_deadline(shake, i >= meeting->outgoing) && shake->deadline < until)
            until = shake->deadline;
        if (shake->stage == DML__SHAKE_RESTING && shake->retry_at < until &&
            dml__knows_its_way(meeting, shake))
            until = shake->retry_at;
    }
    memcpy(polls + 1 + meeting->shake_count, meeting->tcp->polls, (size_t)meeting->me.world * sizeof *polls);
    return until > now ? until - now : 0;
}

/* poll() on the entries that have an fd: it takes no more entries than the process may have files. */
static int dml__poll_meeting(dml__meeting *meeting, size_t count, double seconds)
{
    struct pollfd *polls = meeting->polls, *waits = meeting->waits;
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (polls[i].fd >= 0) waits[used++] = polls[i];
    const int ready = dml__socket_poll(meeting->me.calls, waits, used, seconds);
    used = 0;
    for (size_t i = 0; i < count; i++) polls[i].revents = polls[i].fd >= 0 ? waits[used++].revents : 0;
    return ready;
}

/* One turn: waits, then sees to everything that is ready. False: the job has failed. */
static bool dml__meet_once(dml__meeting *meeting)
{
    double now = dml_seconds();
    const size_t polled = 1 + (size_t)meeting->shake_count + (size_t)meeting->me.world;
    const double left = dml__prepare_polls(meeting, now);
    if (dml__poll_meeting(meeting, polled, left) < 0) {
        dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
                      "rank %d can't wait on its connections: %s", meeting->me.rank, strerror(errno));
        return false;
    }
    now = dml_seconds();
    for (int rank = 0; rank < meeting->me.world; rank++)
        if (meeting->polls[1 + meeting->shake_count + rank].revents && !dml__listen_to_ranks(meeting))
            return false;
    for (int i = 0; i < meeting->shake_count; i++)
        if (!dml__advance(meeting, i, meeting->polls[1 + i].revents != 0, now)) return false;
    if (meeting->polls[0].revents) dml__accept_visitors(meeting, now);
    return true;
}

static bool dml__all_have_come(const dml__meeting *meeting)
{
    for (int rank = 1; rank < meeting->me.world; rank++)
        if (meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] < 0) return false;
    return true;
}

/* "rank 2" or "ranks 2, 3, 5 and more": those without a connection. The first of them, or -1. */
static int dml__missing_ranks(const dml__meeting *meeting, char *text, size_t bytes)
{
    int first = -1, count = 0;
    char list[96] = "";
    for (int rank = 0; rank < meeting->me.world; rank++) {
        const bool complete = meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] >= 0 &&
                              (meeting->tcp->fd[DML__CHANNEL_DATA][rank] >= 0 || !meeting->addresses_done);
        if (rank == meeting->me.rank || complete) continue;
        if (first < 0) first = rank;
        const size_t used = strlen(list);
        if (count < 8) snprintf(list + used, sizeof list - used, "%s%d", count ? ", " : "", rank);
        count++;
    }
    snprintf(text, bytes, "%s %s%s", count == 1 ? "rank" : "ranks", list, count > 8 ? " and more" : "");
    return first;
}

static void dml__meet_too_late(dml__meeting *meeting)
{
    const int rank = meeting->me.rank, world = meeting->me.world, strangers = *meeting->user->strangers;
    const double timeout = meeting->settings->timeout;
    char missing[128], at[DML__ADDRESS_TEXT], turned_away[320] = "";
    const int first = dml__missing_ranks(meeting, missing, sizeof missing);
    if (strangers)
        snprintf(turned_away, sizeof turned_away, "; %d connection%s turned away%s%s", strangers,
                 strangers == 1 ? " was" : "s were", meeting->note[0] ? ", the last because " : "",
                 meeting->note);
    if (rank == 0 && !meeting->addresses_done) {
        dml__tcp_fail(meeting->tcp, first, DML_ERROR_TIMEOUT, "%s of %d did not arrive at %s within %g s%s",
                      missing, world, dml__address_text(&meeting->listens_at, at), timeout, turned_away);
    } else if (rank && !meeting->me.has_session) {
        const dml__handshake *shake = &meeting->shakes[DML__CHANNEL_CONTROL];
        const bool silent = shake->stage != DML__SHAKE_RESTING && shake->stage != DML__SHAKE_CONNECTING;
        dml__tcp_fail(meeting->tcp, 0, DML_ERROR_TIMEOUT,
                      "rank %d of %d could not reach rank 0 at %s within %g s: %s", rank, world,
                      dml__address_text(&shake->address, at), timeout,
                      silent         ? "who listens there doesn't answer"
                      : shake->error ? strerror(shake->error)
                                     : "who listens there is no rank of this job");
    } else if (!meeting->addresses_done) {
        dml__tcp_fail(meeting->tcp, rank, DML_ERROR_TIMEOUT,
                      "rank %d of %d gave up after %g s, while rank 0 was still waiting for other ranks",
                      rank, world, timeout);
    } else {
        dml__tcp_fail(meeting->tcp, first, DML_ERROR_TIMEOUT,
                      "%s of %d did not connect with rank %d within %g s%s", missing, world, rank, timeout,
                      turned_away);
    }
}

static bool dml__meet_all(dml__meeting *meeting)
{
    while (meeting->to_connect > 0 || !meeting->addresses_done) {
        if (dml_seconds() >= meeting->deadline) {
            dml__meet_too_late(meeting);
            return false;
        }
        if (!dml__meet_once(meeting)) return false;
        if (meeting->me.rank == 0 && !meeting->addresses_done && dml__all_have_come(meeting) &&
            !dml__send_addresses(meeting))
            return false;
    }
    return true;
}

static bool dml__prepare_meeting(dml__meeting *meeting)
{
    dml__memory *memory = meeting->user->memory;
    const int rank = meeting->me.rank;
    const size_t world = (size_t)meeting->me.world;
    meeting->outgoing = 2 * rank;
    meeting->shake_count = 2 * meeting->me.world + DML__VISITORS;
    meeting->to_connect = 2 * (meeting->me.world - 1);
    meeting->addresses = (dml__address *)dml__allocate_array(memory, world, sizeof *meeting->addresses);
    meeting->shakes =
        (dml__handshake *)dml__allocate_array(memory, (size_t)meeting->shake_count, sizeof *meeting->shakes);
    const size_t polled = 1 + (size_t)meeting->shake_count + world;
    meeting->polls = (struct pollfd *)dml__allocate_array(memory, polled, sizeof *meeting->polls);
    meeting->waits = (struct pollfd *)dml__allocate_array(memory, polled, sizeof *meeting->waits);
    if (!meeting->addresses || !meeting->shakes || !meeting->polls || !meeting->waits) {
        dml__tcp_fail(meeting->tcp, rank, DML_ERROR_MEMORY, "rank %d has no memory for the rendezvous", rank);
        return false;
    }
    for (int i = 0; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        shake->fd = -1;
        if (i >= meeting->outgoing) continue;
        shake->stage = DML__SHAKE_RESTING;
        shake->rank = i / 2;
        shake->channel = i % 2;
        shake->rest = 0.005;
    }
    if (!dml__find_master(meeting) || !dml__check_trust(meeting)) return false;
    if (rank) return true;
    meeting->me.has_session = true;
    if (meeting->me.calls->random(meeting->me.session, sizeof meeting->me.session) < 0) {
        dml__tcp_fail(meeting->tcp, 0, DML_ERROR_NETWORK, "rank 0 can't get random numbers: %s",
                      strerror(errno));
        return false;
    }
    meeting->me.session[0] |= 1; /* all zero means none */
    return dml__listen_as_master(meeting);
}

static void dml__end_meeting(dml__meeting *meeting)
{
    dml__memory *memory = meeting->user->memory;
    for (int i = 0; meeting->shakes && i < meeting->shake_count; i++)
        dml__close_shake(meeting, &meeting->shakes[i]);
    if (meeting->listener >= 0) meeting->me.calls->close(meeting->listener);
    dml__release(memory, meeting->waits);
    dml__release(memory, meeting->polls);
    dml__release(memory, meeting->shakes);
    dml__release(memory, meeting->addresses);
}

DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__net_settings *settings)
{
    dml__meeting meeting;
    memset(&meeting, 0, sizeof meeting);
    meeting.tcp = tcp;
    meeting.settings = settings;
    meeting.user = tcp->user;
    meeting.listener = -1;
    /* The others wait a little longer, so that it is rank 0, which knows who is missing, that gives up first.
     */
    meeting.deadline = dml_seconds() + settings->timeout + (settings->rank ? settings->grace : 0);
    meeting.patience = settings->timeout / 4 < 0.1 ? 0.1
                       : settings->timeout / 4 > 5 ? 5
                                                   : settings->timeout / 4;
    meeting.me.calls = tcp->calls;
    meeting.me.key = settings->key;
    meeting.me.rank = settings->rank;
    meeting.me.world = settings->world;
    meeting.me.segment_bytes = settings->segment_bytes;
    meeting.me.taken = dml__is_taken;
    meeting.me.port = dml__own_port;
    meeting.me.user = &meeting;
    const bool met = dml__prepare_meeting(&meeting) && dml__meet_all(&meeting);
    dml__end_meeting(&meeting);
    tcp->met = met;
    return met;
}

#endif
DML__DRIVERS_END

/* ---- comm/call.c ---- */

#ifndef DML_COMM_CALL_C
#define DML_COMM_CALL_C

/* ---- comm/call.h ---- */

/* call.h: one call of a collective, as every rank that takes part in it sees it. */
#ifndef DML_COMM_CALL_H
#define DML_COMM_CALL_H

/* The operations. X(NAME, "name", takes data, takes a reduce op, what its root is called or NULL). The
   numbers go over the wire: append, never reorder. */
#define DML__COMM_OPERATION_LIST(X)                                                                          \
    X(ALL_REDUCE, "all_reduce", true, true, NULL)                                                            \
    X(REDUCE, "reduce", true, true, "root")                                                                  \
    X(BROADCAST, "broadcast", true, false, "root")                                                           \
    X(SCATTER, "scatter", true, false, "root")                                                               \
    X(GATHER, "gather", true, false, "root")                                                                 \
    X(ALL_GATHER, "all_gather", true, false, NULL)                                                           \
    X(REDUCE_SCATTER, "reduce_scatter", true, true, NULL)                                                    \
    X(ALL_TO_ALL, "all_to_all", true, false, NULL)                                                           \
    X(BARRIER, "barrier", false, false, NULL)                                                                \
    X(SEND, "send", true, false, "to")                                                                       \
    X(RECEIVE, "receive", true, false, "from")                                                               \
    X(RENDEZVOUS, "dml_comm_open", false, false, NULL)                                                       \
    X(ALL_REDUCE_LEAVES, "all_reduce_leaves", true, true, "leaves")

typedef enum dml__comm_operation {
#define DML__COMM_OPERATION_ENUM(NAME, name, data, reduce, root) DML__CALL_##NAME,
    DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_ENUM)
#undef DML__COMM_OPERATION_ENUM
        DML__COMM_OPERATION_COUNT
} dml__comm_operation;

#define DML__MOST_FUNCTIONS                                                                                  \
    16 /* that a communicator can be given to reduce with: ops behind the named ones */

/* Whether an operation is about whole vectors, element by element, so that it can go in rounds over some of
   them at a time; the others have a part for each rank. */
static inline bool dml__is_elementwise(dml__comm_operation operation)
{
    return operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE ||
           operation == DML__CALL_BROADCAST;
}

/* What all ranks must agree on. */
typedef struct dml__signature {
    dml__comm_operation operation;
    dml_dtype dtype;
    dml_reduce_op reduce;
    int root; /* or the other rank of a send or receive, or how many leaves there are */
    uint64_t count;
} dml__signature;

/* "all_reduce(f32, 100, sum)", cut to the size of the buffer; returns it. */
#define DML__SIGNATURE_TEXT 96
DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT]);

#endif

#include <stdio.h>
#include <string.h>

static void dml__reduce_text(unsigned reduce, char *text, size_t bytes)
{
    static const char *const names[] = { "sum", "mean", "min", "max", "prod" };
    if (reduce < DML__REDUCE_OP_COUNT)
        snprintf(text, bytes, ", %s", names[reduce]);
    else if (reduce < DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS)
        snprintf(text, bytes, ", custom %u", reduce - DML__REDUCE_OP_COUNT);
    else
        snprintf(text, bytes, ", ?");
}

DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT])
{
    static const struct {
        const char *name;
        bool data, reduce;
        const char *root;
    } operations[] = {
#define DML__COMM_OPERATION_TEXT(NAME, name, data, reduce, root) { name, data, reduce, root },
        DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_TEXT)
#undef DML__COMM_OPERATION_TEXT
    };
    const unsigned operation = (unsigned)signature->operation, reduce = (unsigned)signature->reduce;
    if (operation >= DML__COMM_OPERATION_COUNT) {
        snprintf(text, DML__SIGNATURE_TEXT, "?()");
    } else if (!operations[operation].data) {
        snprintf(text, DML__SIGNATURE_TEXT, "%s()", operations[operation].name);
    } else {
        char last[48] = "";
        if (operations[operation].reduce) dml__reduce_text(reduce, last, sizeof last);
        const size_t used = strlen(last);
        if (operations[operation].root && signature->root == DML_ANY_SOURCE)
            snprintf(last + used, sizeof last - used, ", %s any", operations[operation].root);
        else if (operations[operation].root)
            snprintf(last + used, sizeof last - used, ", %s %d", operations[operation].root, signature->root);
        snprintf(text, DML__SIGNATURE_TEXT, "%s(%s, %llu%s)", operations[operation].name,
                 dml_dtype_name(signature->dtype), (unsigned long long)signature->count, last);
    }
    return text;
}

#endif

/* ---- comm/frame.c ---- */

#ifndef DML_COMM_FRAME_C
#define DML_COMM_FRAME_C

/* ---- comm/frame.h ---- */

/* frame.h: what goes over a data stream: frames of a header and, of some kinds, a payload. */
#ifndef DML_COMM_FRAME_H
#define DML_COMM_FRAME_H

/* Messages are what steps send and receive; frames are how they travel. Frames between two ranks arrive in
   the order in which they were sent; those of several operations mix. */
typedef enum dml__frame_kind {
    DML__FRAME_EAGER = 1, /* a whole message that nobody may have asked for yet: it fits into what the
                             receiver keeps for such */
    DML__FRAME_ANNOUNCE,  /* there is a message, which waits for a grant. No payload */
    DML__FRAME_GRANT,     /* from the receiver: messages before `message` may come, and that one up to
                             `offset` bytes. No payload */
    DML__FRAME_DATA,      /* bytes of a message that was granted, from `offset` on */
    DML__FRAME_CREDIT     /* only for its `consumed`. No payload */
} dml__frame_kind;

#define DML__FRAME_BYTES 64
#define DML__MOST_PAYLOAD (1u << 30) /* bytes of a frame: as large as a segment may be */

typedef struct dml__frame {
    dml__frame_kind kind;
    dml__signature signature; /* of the sender's call */
    int algorithm;
    int tag;
    uint32_t communicator;
    uint32_t message;  /* counted between these two ranks in this operation, in this direction */
    uint64_t sequence; /* of the operation in its communicator; of sends: between these two ranks */
    uint64_t offset;   /* bytes */
    uint32_t bytes;    /* of payload, which is padded to a multiple of 8 */
    uint64_t consumed; /* bytes of eager frames and announcements from the other side that have been taken */
} dml__frame;

DML__LOCAL void dml__encode_frame(const dml__frame *frame, uint8_t out[DML__FRAME_BYTES]);
DML__LOCAL bool dml__decode_frame(const uint8_t in[DML__FRAME_BYTES], dml__frame *frame);

/* Bytes that a payload of `bytes` takes in the stream. */
static inline size_t dml__padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Elements are little-endian on the wire, as they are in the memory of most machines; on the others they are
   turned round, by the same function each way. `to` and `from` may be the same. */
DML__LOCAL bool dml__wire_is_native(void);
DML__LOCAL void dml__swap_elements(void *to, const void *from, size_t count, dml_dtype dtype);

/* A signature in 16 bytes, for frames and control messages. */
#define DML__SIGNATURE_BYTES 16
DML__LOCAL void dml__encode_signature(const dml__signature *signature, uint8_t out[DML__SIGNATURE_BYTES]);
DML__LOCAL bool dml__decode_signature(const uint8_t in[DML__SIGNATURE_BYTES], dml__signature *signature);

#endif

#include <string.h>

/* 0 operation:1 1 dtype:1 2 reduce:2 4 root:4 8 count:8 */
DML__LOCAL void dml__encode_signature(const dml__signature *signature, uint8_t out[DML__SIGNATURE_BYTES])
{
    out[0] = (uint8_t)signature->operation;
    out[1] = (uint8_t)signature->dtype;
    dml__store16(out + 2, (uint16_t)signature->reduce);
    dml__store32(out + 4, (uint32_t)signature->root);
    dml__store64(out + 8, signature->count);
}

static int dml__as_int(uint32_t value)
{
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

DML__LOCAL bool dml__decode_signature(const uint8_t in[DML__SIGNATURE_BYTES], dml__signature *signature)
{
    const uint16_t reduce = dml__load16(in + 2);
    if (in[0] >= DML__COMM_OPERATION_COUNT || in[1] >= DML__DTYPE_COUNT ||
        reduce >= DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS)
        return false;
    signature->operation = (dml__comm_operation)in[0];
    signature->dtype = (dml_dtype)in[1];
    signature->reduce = (dml_reduce_op)reduce;
    signature->root = dml__as_int(dml__load32(in + 4));
    signature->count = dml__load64(in + 8);
    return true;
}

/* 0 "dmf" 3 kind:1 4 communicator:4 8 signature:16 24 sequence:8 32 offset:8 40 message:4 44 bytes:4
   48 tag:4 52 algorithm:1 53 zero:3 56 consumed:8 */
DML__LOCAL void dml__encode_frame(const dml__frame *frame, uint8_t out[DML__FRAME_BYTES])
{
    memcpy(out, "dmf", 3);
    out[3] = (uint8_t)frame->kind;
    dml__store32(out + 4, frame->communicator);
    dml__encode_signature(&frame->signature, out + 8);
    dml__store64(out + 24, frame->sequence);
    dml__store64(out + 32, frame->offset);
    dml__store32(out + 40, frame->message);
    dml__store32(out + 44, frame->bytes);
    dml__store32(out + 48, (uint32_t)frame->tag);
    dml__store32(out + 52, (uint32_t)frame->algorithm);
    dml__store64(out + 56, frame->consumed);
}

DML__LOCAL bool dml__decode_frame(const uint8_t in[DML__FRAME_BYTES], dml__frame *frame)
{
    if (memcmp(in, "dmf", 3) != 0 || in[3] < DML__FRAME_EAGER || in[3] > DML__FRAME_CREDIT) return false;
    frame->kind = (dml__frame_kind)in[3];
    frame->communicator = dml__load32(in + 4);
    if (!dml__decode_signature(in + 8, &frame->signature)) return false;
    frame->sequence = dml__load64(in + 24);
    frame->offset = dml__load64(in + 32);
    frame->message = dml__load32(in + 40);
    frame->bytes = dml__load32(in + 44);
    frame->tag = dml__as_int(dml__load32(in + 48));
    frame->algorithm = dml__as_int(dml__load32(in + 52));
    frame->consumed = dml__load64(in + 56);
    if (frame->bytes == 0) return true;
    return frame->bytes <= DML__MOST_PAYLOAD &&
           (frame->kind == DML__FRAME_EAGER || frame->kind == DML__FRAME_DATA);
}

DML__LOCAL bool dml__wire_is_native(void)
{
    const uint16_t one = 1;
    return *(const uint8_t *)&one == 1;
}

DML__LOCAL void dml__swap_elements(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    uint8_t turned[8];
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        for (size_t b = 0; b < size; b++) turned[b] = in[size - 1 - b];
        memcpy(out, turned, size);
    }
}

#endif
DML__DRIVERS_BEGIN

/* ---- comm/steps.c ---- */

#ifndef DML_COMM_STEPS_C
#define DML_COMM_STEPS_C

/* ---- comm/schedule.h ---- */

/* schedule.h: a collective as data. An algorithm is a function that writes one rank's steps and does nothing
   else: the engine runs them, `--explain` prints them, tests count them and the price of them is known before
   a byte has moved. */
#ifndef DML_COMM_SCHEDULE_H
#define DML_COMM_SCHEDULE_H

/* The arrays that a rank's steps are about. What a call uses as both its input and its output is OUT. */
typedef enum dml__space {
    DML__SPACE_OUT,
    DML__SPACE_IN,
    DML__SPACE_SCRATCH, /* (dml__collective.scratch) elements of the operation's own */
    DML__SPACE_COUNT
} dml__space;

typedef enum dml__step_kind {
    DML__STEP_SEND,           /* the range goes to peer */
    DML__STEP_RECEIVE,        /* what comes from peer replaces the range */
    DML__STEP_RECEIVE_REDUCE, /* range[i] = op(range[i], what comes from peer) */
    DML__STEP_COPY,           /* range[i] = source[i] */
    DML__STEP_REDUCE,         /* range[i] = op(range[i], source[i]) */
    DML__STEP_KIND_COUNT
} dml__step_kind;

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
    uint8_t source_space; /* COPY, REDUCE */
    bool completes;       /* the range holds the sum over all ranks afterwards: a mean divides it now */
    int32_t peer;         /* rank in the group; -1: none */
    int32_t after[DML__STEP_AFTER]; /* indices of earlier steps, or DML__ALL_BEFORE; -1: none */
    uint64_t offset, count;
    uint64_t source; /* COPY, REDUCE: where the source begins in its space */
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
   any part of IN. All-to-all: IN and OUT (size, count), apart. */
typedef struct dml__collective {
    dml__comm_operation operation;
    int rank, size; /* in the group */
    int root;       /* where the operation has one */
    uint64_t count; /* as in the call: of the whole for all_reduce, reduce and broadcast, else of one rank
                       (the largest of `counts`) */
    const size_t *counts, *offsets; /* (size) each, of gather, scatter, all_gather, reduce_scatter with parts
                                       of different sizes; NULL: `count` each, one after the other */
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
    bool equal_parts; /* takes no counts and offsets */
    bool rank_order;  /* adds as (((rank 0 + rank 1) + rank 2) + ...), whoever adds */
    /* Elements of SCRATCH that a whole call of `count` elements uses at most. All-reduce, reduce and
       broadcast that have less of it than that are run in rounds, each over as many elements as fit; the
       others need it. NULL: none. */
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

#include <inttypes.h>
#include <stdio.h>

/* Adding steps to a schedule, what `after` means, and a step in words. */

static int dml__add_step(dml__schedule *schedule, dml__step_kind kind, int peer, dml__space space,
                         uint64_t offset, uint64_t count)
{
    if (schedule->count >= schedule->capacity) {
        schedule->overflowed = true;
        return -1;
    }
    dml__step *const step = &schedule->steps[schedule->count];
    step->kind = (uint8_t)kind;
    step->space = step->source_space = (uint8_t)space;
    step->completes = false;
    step->peer = peer;
    for (int i = 0; i < DML__STEP_AFTER; i++) step->after[i] = -1;
    step->offset = offset;
    step->count = count;
    step->source = 0;
    return schedule->count++;
}

DML__LOCAL int dml__add_send(dml__schedule *schedule, int peer, dml__space space, uint64_t offset,
                             uint64_t count)
{
    return count ? dml__add_step(schedule, DML__STEP_SEND, peer, space, offset, count) : -1;
}

DML__LOCAL int dml__add_receive(dml__schedule *schedule, int peer, dml__step_kind kind, dml__space space,
                                uint64_t offset, uint64_t count)
{
    return count ? dml__add_step(schedule, kind, peer, space, offset, count) : -1;
}

DML__LOCAL int dml__add_local(dml__schedule *schedule, dml__step_kind kind, dml__space space, uint64_t offset,
                              uint64_t count, dml__space source_space, uint64_t source)
{
    const int index = dml__add_step(schedule, kind, -1, space, offset, count);
    if (index >= 0) {
        schedule->steps[index].source_space = (uint8_t)source_space;
        schedule->steps[index].source = source;
    }
    return index;
}

DML__LOCAL int dml__add_signal(dml__schedule *schedule, int peer)
{
    return dml__add_step(schedule, DML__STEP_SEND, peer, DML__SPACE_OUT, 0, 0);
}

DML__LOCAL int dml__add_wait_signal(dml__schedule *schedule, int peer)
{
    return dml__add_step(schedule, DML__STEP_RECEIVE, peer, DML__SPACE_OUT, 0, 0);
}

DML__LOCAL void dml__add_after(dml__schedule *schedule, int step, int earlier)
{
    if (step < 0 || earlier == -1) return;
    int32_t *const after = schedule->steps[step].after;
    int i = 0;
    while (i < DML__STEP_AFTER && after[i] != -1 && after[i] != earlier) i++;
    DML_ASSERT(i < DML__STEP_AFTER && earlier < step);
    after[i] = earlier;
}

DML__LOCAL void dml__set_completes(dml__schedule *schedule, int step)
{
    if (step >= 0) schedule->steps[step].completes = true;
}

typedef struct dml__touched {
    int space;
    uint64_t offset;
} dml__touched;

/* Which places a step touches: how many, at most 2. */
static int dml__touched_by(const dml__step *step, dml__touched touched[2])
{
    touched[0].space = step->space;
    touched[0].offset = step->offset;
    touched[1].space = step->source_space;
    touched[1].offset = step->source;
    return step->kind == DML__STEP_COPY || step->kind == DML__STEP_REDUCE ? 2 : 1;
}

DML__LOCAL uint64_t dml__step_limit(const dml__step *step, const dml__step *earlier, uint64_t done,
                                    bool ended)
{
    if (ended) return UINT64_MAX;
    if (!step->count || !earlier->count) return 0;
    dml__touched now[2], before[2];
    const int now_count = dml__touched_by(step, now), before_count = dml__touched_by(earlier, before);
    bool meet = false;
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < now_count; i++) {
        for (int j = 0; j < before_count; j++) {
            const uint64_t from = now[i].offset, end = before[j].offset + earlier->count;
            if (now[i].space != before[j].space || from >= end || before[j].offset >= from + step->count)
                continue;
            meet = true;
            const uint64_t past = before[j].offset + done;
            if (past < end && past < from)
                limit = 0;
            else if (past < end && past - from < limit)
                limit = past - from;
        }
    }
    return meet ? limit : 0;
}

static int dml__print_range(char *text, size_t bytes, dml__space space, uint64_t offset, uint64_t count)
{
    static const char *const names[DML__SPACE_COUNT] = { "out", "in", "scratch" };
    return snprintf(text, bytes, " %s[%" PRIu64 ", %" PRIu64 ")", names[space], offset, offset + count);
}

DML__LOCAL const char *dml__step_text(const dml__schedule *schedule, int step, char text[DML__STEP_TEXT])
{
    static const char *const names[DML__STEP_KIND_COUNT] = { "send", "receive", "receive_reduce", "copy",
                                                             "reduce" };
    static const char *const peers[DML__STEP_KIND_COUNT] = { "to", "from", "from", "from", "by" };
    const dml__step *const s = &schedule->steps[step];
    const size_t size = DML__STEP_TEXT; /* the longest text has 177 characters */
    size_t at = (size_t)snprintf(text, size, "%d: %s", step, names[s->kind]);
    at += (size_t)dml__print_range(text + at, size - at, (dml__space)s->space, s->offset, s->count);
    at += (size_t)snprintf(text + at, size - at, " %s", peers[s->kind]);
    if (s->peer >= 0)
        at += (size_t)snprintf(text + at, size - at, " %d", (int)s->peer);
    else
        at +=
            (size_t)dml__print_range(text + at, size - at, (dml__space)s->source_space, s->source, s->count);
    for (int i = 0; i < DML__STEP_AFTER && s->after[i] != -1; i++) {
        at += (size_t)snprintf(text + at, size - at, i ? ", " : " after ");
        if (s->after[i] == DML__ALL_BEFORE)
            at += (size_t)snprintf(text + at, size - at, "all");
        else
            at += (size_t)snprintf(text + at, size - at, "%d", (int)s->after[i]);
    }
    if (s->completes) snprintf(text + at, size - at, ", completes");
    return text;
}

#endif

/* ---- comm/ring.c ---- */

#ifndef DML_COMM_RING_C
#define DML_COMM_RING_C

/* ---- comm/algorithms.h ---- */

/* algorithms.h: the algorithms of the collectives, each a function that writes the steps of one rank
   (comm/schedule.h), and what the families of them share.

   Costs are in seconds until the last rank has its result: a is the time of a message's way (alpha), b the
   time of an element through a link (beta), g the time to reduce an element (gamma), m the number of ranks, n
   the elements of the call. A pipeline's segments are taken as short: their times through are left out. */
#ifndef DML_COMM_ALGORITHMS_H
#define DML_COMM_ALGORITHMS_H

typedef struct dml__stretch {
    uint64_t offset, count;
} dml__stretch;

/* Chunks [first, end) of `count` elements cut into `chunks`. */
static inline dml__stretch dml__chunks(uint64_t count, int chunks, int first, int end)
{
    dml__stretch block;
    block.offset = dml__chunk_begin(count, chunks, first);
    block.count = dml__chunk_begin(count, chunks, end) - block.offset;
    return block;
}

/* What of the array that is spread over the ranks is that rank's: its part, or where the operation has no
   parts its chunk. */
static inline dml__stretch dml__block_of(const dml__collective *c, int rank)
{
    if (dml__is_elementwise(c->operation)) return dml__chunks(c->count, c->size, rank, rank + 1);
    dml__stretch block;
    block.offset = dml__part_offset(c, rank);
    block.count = dml__part_count(c, rank);
    return block;
}

/* The rank `distance` further on, which is in (-2 size, 2 size). */
static inline int dml__rank_at(const dml__collective *c, int distance)
{
    return (c->rank + distance + 2 * c->size) % c->size;
}

/* Copies this rank's own part from IN to its place in OUT, or the other way round. */
static inline int dml__copy_own(const dml__collective *c, dml__schedule *s, bool out_has_parts)
{
    const uint64_t place = dml__part_offset(c, c->rank);
    return dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, out_has_parts ? place : 0,
                          dml__part_count(c, c->rank), DML__SPACE_IN, out_has_parts ? 0 : place);
}

/* The least power of two that isn't less than size. */
static inline int dml__power_over(int size)
{
    int power = 1;
    while (power < size) power *= 2;
    return power;
}

static inline int dml__log2_over(int size)
{
    int log = 0;
    while (1 << log < size) log++;
    return log;
}

/* ring.c */
DML__LOCAL void dml__write_ring_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_two_rings_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_round_robin_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_ring_reduce_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_broadcast(const dml__collective *c, dml__schedule *s);

/* chain.c */
DML__LOCAL void dml__write_chain_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_chain_reduce_scatter(const dml__collective *c, dml__schedule *s);

/* tree.c */
DML__LOCAL void dml__write_double_tree_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_scatter_all_gather_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_binomial_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_tree_barrier(const dml__collective *c, dml__schedule *s);

/* butterfly.c */
DML__LOCAL void dml__write_butterfly_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_halving_doubling_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_halving_reduce_scatter(const dml__collective *c, dml__schedule *s);

/* bruck.c */
DML__LOCAL void dml__write_bruck_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_bruck_all_to_all(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_dissemination_barrier(const dml__collective *c, dml__schedule *s);

/* direct.c */
DML__LOCAL void dml__write_all_to_all_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_master_worker_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_reduce(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_broadcast(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_gather(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_reduce_scatter(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_direct_all_to_all(const dml__collective *c, dml__schedule *s);
DML__LOCAL void dml__write_pairwise_all_to_all(const dml__collective *c, dml__schedule *s);

/* The slots of SCRATCH, as many elements each as the stretch has, hold what came from all other ranks: from
   the one before this rank first, then the one before that, by receives that are steps first, first + stride,
   ... Adds them to the stretch of `space` in the order of the ranks, once `before` is out of the way; the
   last step. */
DML__LOCAL int dml__add_slots(const dml__collective *c, dml__schedule *s, dml__space space,
                              dml__stretch stretch, int first, int stride, int before);

#endif

/* Each rank sends to the next and receives from the one before: every link carries as much as any other. */

/* A ring over `count` elements at `offset` of OUT. */
typedef struct dml__ring {
    int rank, size; /* the place along the ring */
    int to, from;
    uint64_t offset, count;
    int received; /* the last receive */
} dml__ring;

static dml__ring dml__ring_of(const dml__collective *c, bool backwards, uint64_t offset, uint64_t count)
{
    dml__ring ring;
    ring.rank = backwards ? c->size - 1 - c->rank : c->rank;
    ring.size = c->size;
    ring.to = dml__rank_at(c, backwards ? -1 : 1);
    ring.from = dml__rank_at(c, backwards ? 1 : -1);
    ring.offset = offset;
    ring.count = count;
    ring.received = -1;
    return ring;
}

static dml__stretch dml__ring_chunk(const dml__ring *ring, int index)
{
    const int chunk = (index + 2 * ring->size) % ring->size;
    dml__stretch block = dml__chunks(ring->count, ring->size, chunk, chunk + 1);
    block.offset += ring->offset;
    return block;
}

/* Step k of 2 (m - 1): in the first half chunks are summed on their way, in the second their sums go round.
 */
static void dml__ring_step(dml__ring *ring, dml__schedule *s, int k)
{
    const dml__stretch goes = dml__ring_chunk(ring, ring->rank - k);
    const dml__stretch comes = dml__ring_chunk(ring, ring->rank - k - 1);
    const dml__step_kind kind = k < ring->size - 1 ? DML__STEP_RECEIVE_REDUCE : DML__STEP_RECEIVE;
    const int send = dml__add_send(s, ring->to, DML__SPACE_OUT, goes.offset, goes.count);
    dml__add_after(s, send, ring->received);
    ring->received = dml__add_receive(s, ring->from, kind, DML__SPACE_OUT, comes.offset, comes.count);
    if (k == ring->size - 2) dml__set_completes(s, ring->received);
}

/* Four ranks, each holding chunks 0 to 3; what each sends to the next, with the ranks whose numbers are in
   it:

       step   0 sends         1 sends         2 sends         3 sends
       0      0:{0}           1:{1}           2:{2}           3:{3}           added
       1      3:{3,0}         0:{0,1}         1:{1,2}         2:{2,3}         added
       2      2:{2,3,0}       3:{3,0,1}       0:{0,1,2}       1:{1,2,3}       added: complete
       3      1:all           2:all           3:all           0:all           replaces
       4      0:all           1:all           2:all           3:all           replaces
       5      3:all           0:all           1:all           2:all           replaces

   A chunk comes back as a sum of all only after the next rank took this rank's share of it, so the receives
   of the second half wait for nothing. Each chunk is summed once, in the order of the ring: all get the same
   bits. Cost: 2 (m - 1) a + 2 (m - 1) / m n b + (m - 1) / m n g; no all-reduce moves less. Source: Patarasuk,
   Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009). */
DML__LOCAL void dml__write_ring_all_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__ring ring = dml__ring_of(c, false, 0, c->count);
    for (int k = 0; k < 2 * (c->size - 1); k++) dml__ring_step(&ring, s, k);
}

/* Half of the data goes one way round, half the other:

       0 -> 1 -> 2 -> 3 -> 0    elements [0, n / 2)
       0 <- 1 <- 2 <- 3 <- 0    elements [n / 2, n)

   Cost: as of one ring, but with both directions of each pair's link in use: 2 (m - 1) a + (m - 1) / m n b
   where those are links of their own. Source: as above; the two directions: Jain, Sabharwal, "Optimal bucket
   algorithms for large MPI collectives on torus interconnects", ICS (2010). */
DML__LOCAL void dml__write_two_rings_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch there = dml__chunks(c->count, 2, 0, 1), back = dml__chunks(c->count, 2, 1, 2);
    dml__ring forwards = dml__ring_of(c, false, there.offset, there.count);
    dml__ring backwards = dml__ring_of(c, true, back.offset, back.count);
    for (int k = 0; k < 2 * (c->size - 1); k++) {
        dml__ring_step(&forwards, s, k);
        dml__ring_step(&backwards, s, k);
    }
}

/* The whole vectors go round; what comes is passed on as it is and kept in SCRATCH:

       step   0 sends   1 sends   2 sends   3 sends
       0      0         1         2         3
       1      3         0         1         2
       2      2         3         0         1

   Then each rank adds all of them in the order of the ranks, so that all get the same bits. Cost: (m - 1) a +
   (m - 1) n b + (m - 1) n g. Source: the "ring" of Thakur, Rabenseifner, Gropp, "Optimization of collective
   communication operations in MPICH", IJHPCA 19 (2005), of vectors that are summed. */
DML__LOCAL void dml__write_round_robin_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const int first = s->count + 1, to = dml__rank_at(c, 1), from = dml__rank_at(c, -1);
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const uint64_t slot = (uint64_t)k * c->count;
        const int send = k == 0 ? dml__add_send(s, to, DML__SPACE_OUT, 0, c->count)
                                : dml__add_send(s, to, DML__SPACE_SCRATCH, slot - c->count, c->count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_SCRATCH, slot, c->count);
    }
    dml__add_slots(c, s, DML__SPACE_OUT, dml__chunks(c->count, 1, 0, 1), first, 2, DML__ALL_BEFORE);
}

/* The first half of the ring's all-reduce, after which rank r has the sum of chunk r + 1; all of them then go
   to the root:

       ranks:   0          1          2          3 = root
       sums:    chunk 1    chunk 2    chunk 3    chunk 0
                `----------`----------`--------->

   Cost: m a + 2 (m - 1) / m n b + (m - 1) / m n g. Source: as the ring's all-reduce; gathered: Thakur,
   Rabenseifner, Gropp (2005), section 4.4. */
DML__LOCAL void dml__write_ring_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__ring ring = dml__ring_of(c, false, 0, c->count);
    for (int k = 0; k < c->size - 1; k++) dml__ring_step(&ring, s, k);
    for (int i = 1; i < c->size && c->rank == c->root; i++) {
        const int rank = dml__rank_at(c, i);
        const dml__stretch chunk = dml__block_of(c, (rank + 1) % c->size);
        dml__add_receive(s, rank, DML__STEP_RECEIVE, DML__SPACE_OUT, chunk.offset, chunk.count);
    }
    if (c->rank == c->root) return;
    const dml__stretch chunk = dml__block_of(c, dml__rank_at(c, 1));
    dml__add_after(s, dml__add_send(s, c->root, DML__SPACE_OUT, chunk.offset, chunk.count), ring.received);
}

/* The second half of the ring's all-reduce; the numbers are parts:

       step   0 sends   1 sends   2 sends   3 sends
       0      0         1         2         3
       1      3         0         1         2
       2      2         3         0         1

   Cost: (m - 1) a + (m - 1) n b. Source: Thakur, Rabenseifner, Gropp (2005), section 4.1. */
DML__LOCAL void dml__write_ring_all_gather(const dml__collective *c, dml__schedule *s)
{
    const int to = dml__rank_at(c, 1), from = dml__rank_at(c, -1);
    dml__copy_own(c, s, true);
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const dml__stretch goes = dml__block_of(c, dml__rank_at(c, -k));
        const dml__stretch comes = dml__block_of(c, dml__rank_at(c, -k - 1));
        const int send = k == 0 ? dml__add_send(s, to, DML__SPACE_IN, 0, goes.count)
                                : dml__add_send(s, to, DML__SPACE_OUT, goes.offset, goes.count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_OUT, comes.offset, comes.count);
    }
}

/* The first half of the ring's all-reduce, begun one rank earlier so that rank r ends with part r:

       step   0 sends         1 sends         2 sends         3 sends
       0      3:{0}           0:{1}           1:{2}           2:{3}
       1      2:{3,0}         3:{0,1}         0:{1,2}         1:{2,3}
       2      1:{2,3,0}       2:{3,0,1}       3:{0,1,2}       0:{1,2,3}

   OUT may lie in IN, so it is written when everything else is over. Cost: (m - 1) a + (m - 1) n b +
   (m - 1) n g. Source: as the ring's all-reduce. */
DML__LOCAL void dml__write_ring_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    int received = -1;
    for (int k = 0; k < c->size - 1; k++) {
        const dml__stretch goes = dml__block_of(c, dml__rank_at(c, -k - 1));
        const dml__stretch comes = dml__block_of(c, dml__rank_at(c, -k - 2));
        const int send = dml__add_send(s, dml__rank_at(c, 1), DML__SPACE_IN, goes.offset, goes.count);
        dml__add_after(s, send, received);
        received = dml__add_receive(s, dml__rank_at(c, -1), DML__STEP_RECEIVE_REDUCE, DML__SPACE_IN,
                                    comes.offset, comes.count);
    }
    dml__set_completes(s, received);
    dml__add_after(s, dml__copy_own(c, s, false), DML__ALL_BEFORE);
}

/* Root 2 of 4: 2 -> 3 -> 0 -> 1, each passing on what has come so far. Cost: (m - 1) a + n b, the least a
   long broadcast can take; short ones wait for all the links. Source: Watts, van de Geijn, "A pipelined
   broadcast for multidimensional meshes", Parallel Processing Letters 5 (1995). */
DML__LOCAL void dml__write_chain_broadcast(const dml__collective *c, dml__schedule *s)
{
    const int next = dml__rank_at(c, 1);
    int received = -1;
    if (c->rank != c->root)
        received = dml__add_receive(s, dml__rank_at(c, -1), DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    if (next != c->root) dml__add_after(s, dml__add_send(s, next, DML__SPACE_OUT, 0, c->count), received);
}

#endif

/* ---- comm/chain.c ---- */

#ifndef DML_COMM_CHAIN_C
#define DML_COMM_CHAIN_C

/* Along the ranks, from 0 to the last: what comes from the rank before is added to what this one has (a + b
   is b + a to the bit), and goes on. So the sum is that of (((x0 + x1) + x2) + ...), without SCRATCH and at a
   ring's speed, once the pipeline is full. */

/* Adds what comes from the rank before to a stretch of `space`, completes it at the last rank, and sends it
   to `to`, or to nobody (-1). The last step of the stretch here. */
static int dml__add_link(const dml__collective *c, dml__schedule *s, dml__space space, dml__stretch stretch,
                         int to)
{
    int last = -1;
    if (c->rank > 0)
        last =
            dml__add_receive(s, c->rank - 1, DML__STEP_RECEIVE_REDUCE, space, stretch.offset, stretch.count);
    if (c->rank == c->size - 1) dml__set_completes(s, last);
    if (to < 0 || to == c->rank) return last;
    const int send = dml__add_send(s, to, space, stretch.offset, stretch.count);
    dml__add_after(s, send, last);
    return send;
}

/* 0 -> 1 -> 2 -> 3 adds, 3 -> 2 -> 1 -> 0 replaces; the two go on at once, in opposite directions. The sum
   comes back only after the rank behind has taken what it is made of. Cost: 2 (m - 1) a + n b + n g and the
   way back of a segment, at twice what a link carries in one direction. */
DML__LOCAL void dml__write_chain_all_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__stretch all;
    all.offset = 0;
    all.count = c->count;
    const bool ends = c->rank == c->size - 1;
    int last = dml__add_link(c, s, DML__SPACE_OUT, all, ends ? -1 : c->rank + 1);
    if (!ends) last = dml__add_receive(s, c->rank + 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    if (c->rank > 0) dml__add_after(s, dml__add_send(s, c->rank - 1, DML__SPACE_OUT, 0, c->count), last);
}

/* Root 1 of 4: 0 -> 1 -> 2 -> 3 adds, 3 -> 1. Cost: m a + n b + n g. */
DML__LOCAL void dml__write_chain_reduce(const dml__collective *c, dml__schedule *s)
{
    dml__stretch all;
    all.offset = 0;
    all.count = c->count;
    const int last = c->size - 1;
    dml__add_link(c, s, DML__SPACE_OUT, all, c->rank == last ? c->root : c->rank + 1);
    if (c->rank == c->root && c->rank != last)
        dml__add_receive(s, last, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
}

/* 0 -> 1 -> 2 -> 3 adds all parts, 3 -> 0, 1, 2: each its own. OUT may lie in IN, so it is written when
   everything else is over. Cost: m a + (m + 1) n b + m n g. */
DML__LOCAL void dml__write_chain_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    const bool ends = c->rank == c->size - 1;
    for (int rank = 0; rank < c->size; rank++)
        dml__add_link(c, s, DML__SPACE_IN, dml__block_of(c, rank), ends ? rank : c->rank + 1);
    const int out = ends ? dml__copy_own(c, s, false)
                         : dml__add_receive(s, c->size - 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0,
                                            dml__part_count(c, c->rank));
    dml__add_after(s, out, DML__ALL_BEFORE);
}

#endif

/* ---- comm/tree.c ---- */

#ifndef DML_COMM_TREE_C
#define DML_COMM_TREE_C

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

/* ---- comm/butterfly.c ---- */

#ifndef DML_COMM_BUTTERFLY_C
#define DML_COMM_BUTTERFLY_C

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

/* ---- comm/bruck.c ---- */

#ifndef DML_COMM_BRUCK_C
#define DML_COMM_BRUCK_C

/* Each rank sends to one at a distance that doubles and receives from the other side: ceil(log2(m)) messages
   of each rank, for any m. Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all
   communications in multiport message-passing systems", IEEE TPDS 8 (1997). */

/* SCRATCH is OUT turned so that the own part comes first; 4 ranks, the parts that each holds:

       0: 0          1: 1          2: 2          3: 3          each receives what the next one has
       0: 0 1        1: 1 2        2: 2 3        3: 3 0        what the one after the next has
       0: 0 1 2 3    1: 1 2 3 0    2: 2 3 0 1    3: 3 0 1 2    turned back into OUT

   Cost: log2(m) a + (m - 1) n b. */
DML__LOCAL void dml__write_bruck_all_gather(const dml__collective *c, dml__schedule *s)
{
    const uint64_t n = c->count;
    int after[DML__STEP_AFTER] = { -1, -1,
                                   -1 }; /* the steps that have touched each of the parts that are here */
    if (!n) return;
    after[0] = dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, n, DML__SPACE_IN, 0);
    for (int have = 1; have < c->size; have *= 2) {
        const int more = have < c->size - have ? have : c->size - have;
        const int send = dml__add_send(s, dml__rank_at(c, -have), DML__SPACE_SCRATCH, 0, (uint64_t)more * n);
        const int got = dml__add_receive(s, dml__rank_at(c, have), DML__STEP_RECEIVE, DML__SPACE_SCRATCH,
                                         (uint64_t)have * n, (uint64_t)more * n);
        dml__add_after(s, send, after[0]);
        dml__add_after(s, send, after[1]);
        /* A send that has touched all there was stands for those who brought it. */
        if (more == have) {
            after[0] = send;
            after[1] = got;
        } else {
            after[2] = got;
        }
    }
    const uint64_t turned = (uint64_t)(c->size - c->rank) * n, rest = (uint64_t)c->rank * n;
    const int high = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, rest, turned, DML__SPACE_SCRATCH, 0);
    const int low = dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, 0, rest, DML__SPACE_SCRATCH, turned);
    for (int i = 0; i < DML__STEP_AFTER; i++) {
        dml__add_after(s, high, after[i]);
        dml__add_after(s, low, after[i]);
    }
}

/* Moves every second run of `run` blocks (those whose number has that bit) from SCRATCH to the beginning of
   OUT, or from `from` in OUT back; how many blocks. */
static int dml__add_runs(const dml__collective *c, dml__schedule *s, int run, bool back, uint64_t from)
{
    int moved = 0;
    for (int i = run; i < c->size; i += 2 * run) {
        const int length = run < c->size - i ? run : c->size - i;
        const uint64_t block = (uint64_t)i * c->count, packed = from + (uint64_t)moved * c->count;
        const uint64_t count = (uint64_t)length * c->count;
        const int step =
            back
                ? dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, block, count, DML__SPACE_OUT, packed)
                : dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, packed, count, DML__SPACE_SCRATCH, block);
        dml__add_after(s, step, DML__ALL_BEFORE);
        moved += length;
    }
    return moved;
}

/* Block i in SCRATCH is what has to go i ranks further on; at distance d go all blocks whose i has the bit d.
   4 ranks, the blocks of rank 0 as from>to:

       here              0>0  0>1  0>2  0>3
       1 and 3 go 1 on   0>0  3>0  0>2  3>2
       2 and 3 go 2 on   0>0  3>0  2>0  1>0    block i is from i ranks before

   They are packed and received in the two halves of OUT. Cost: log2(m) (a + m / 2 n b). */
DML__LOCAL void dml__write_bruck_all_to_all(const dml__collective *c, dml__schedule *s)
{
    const uint64_t n = c->count, half = (uint64_t)(c->size / 2) * n;
    const uint64_t turned = (uint64_t)(c->size - c->rank) * n, rest = (uint64_t)c->rank * n;
    if (!n) return;
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, turned, DML__SPACE_IN, rest);
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_SCRATCH, turned, rest, DML__SPACE_IN, 0);
    for (int run = 1; run < c->size; run *= 2) {
        const uint64_t count = (uint64_t)dml__add_runs(c, s, run, false, 0) * n;
        const int packed = s->count - 1;
        dml__add_after(s, dml__add_send(s, dml__rank_at(c, run), DML__SPACE_OUT, 0, count), DML__ALL_BEFORE);
        const int got =
            dml__add_receive(s, dml__rank_at(c, -run), DML__STEP_RECEIVE, DML__SPACE_OUT, half, count);
        dml__add_after(s, got, packed); /* which came after all that used this half before */
        dml__add_runs(c, s, run, true, half);
    }
    for (int i = 0; i < c->size; i++) {
        const uint64_t place = (uint64_t)dml__rank_at(c, -i) * n;
        const int step =
            dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, place, n, DML__SPACE_SCRATCH, (uint64_t)i * n);
        dml__add_after(s, step, DML__ALL_BEFORE);
    }
}

/* A signal at each distance, sent when all before have come:

       0 -> 1 -> 2 -> 3 -> 0    each now knows of 2 ranks
       0 -> 2, 1 -> 3, 2 -> 0, 3 -> 1    of 4

   Cost: log2(m) a. Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization",
   International Journal of Parallel Programming 17 (1988). */
DML__LOCAL void dml__write_dissemination_barrier(const dml__collective *c, dml__schedule *s)
{
    int sent = -1, came = -1;
    for (int distance = 1; distance < c->size; distance *= 2) {
        const int send = dml__add_signal(s, dml__rank_at(c, distance));
        dml__add_after(s, send, sent); /* which waited for those that came before `came` */
        dml__add_after(s, send, came);
        sent = send;
        came = dml__add_wait_signal(s, dml__rank_at(c, -distance));
    }
}

#endif

/* ---- comm/direct.c ---- */

#ifndef DML_COMM_DIRECT_C
#define DML_COMM_DIRECT_C

/* Without a detour: whoever has something sends it to whoever needs it. Each rank begins with the next one,
   so that not all send to the same rank first. What is added is added in the order of the ranks: the sums
   don't depend on which rank adds. */

/* The order is that of (((x0 + x1) + x2) + ...): what comes before this rank's is summed in the slot of rank
   0, then added to this rank's (a + b is b + a to the bit), and then what comes after it. 4 ranks, at rank 2:

       slot of 0 += slot of 1;   range += slot of 0;   range += slot of 3 */
DML__LOCAL int dml__add_slots(const dml__collective *c, dml__schedule *s, dml__space space,
                              dml__stretch stretch, int first, int stride, int before)
{
    int last = -1;
    for (int rank = 0; rank < c->size && stretch.count; rank++) {
        const int slot = (c->rank - 1 - rank + c->size) % c->size, begin = (c->rank - 1 + c->size) % c->size;
        const int received = first + slot * stride;
        if (rank == 0 && c->rank != 0) last = received; /* the sum's beginning */
        if (rank == 0) continue;
        const bool lower = rank < c->rank, own = rank == c->rank;
        const uint64_t source = (uint64_t)(own ? begin : slot) * stretch.count;
        const int step = dml__add_local(s, DML__STEP_REDUCE, lower ? DML__SPACE_SCRATCH : space,
                                        lower ? (uint64_t)begin * stretch.count : stretch.offset,
                                        stretch.count, DML__SPACE_SCRATCH, source);
        dml__add_after(s, step, last);
        if (!own) dml__add_after(s, step, received);
        if (rank == 1) dml__add_after(s, step, before);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

/* Receives what each of the others has for this rank, into slots of SCRATCH. */
static void dml__receive_slots(const dml__collective *c, dml__schedule *s, uint64_t count)
{
    for (int i = 1; i < c->size; i++)
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_SCRATCH,
                         (uint64_t)(i - 1) * count, count);
}

/* Each sends all it has to each, and sums what it gets. 4 ranks: 0 -> 1 2 3, 1 -> 2 3 0, 2 -> 3 0 1, 3 -> 0
   1 2. Cost: a + (m - 1) n b + (m - 1) n g. Source: what any text on all-reduce begins with. */
DML__LOCAL void dml__write_all_to_all_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const int first = s->count;
    dml__receive_slots(c, s, c->count);
    for (int i = 1; i < c->size; i++) dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, 0, c->count);
    dml__add_slots(c, s, DML__SPACE_OUT, dml__chunks(c->count, 1, 0, 1), first, 1, DML__ALL_BEFORE);
}

/* At the root: adds what comes to OUT, in the order of the ranks, what is before the root's in SCRATCH; the
   last step. */
static int dml__receive_in_order(const dml__collective *c, dml__schedule *s)
{
    int last = -1;
    for (int rank = 0; rank < c->size && c->count; rank++) {
        int step;
        if (rank == c->root)
            step =
                rank ? dml__add_local(s, DML__STEP_REDUCE, DML__SPACE_OUT, 0, c->count, DML__SPACE_SCRATCH, 0)
                     : -1;
        else
            step = dml__add_receive(s, rank, rank == 0 ? DML__STEP_RECEIVE : DML__STEP_RECEIVE_REDUCE,
                                    rank < c->root ? DML__SPACE_SCRATCH : DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, step, last);
        last = step;
    }
    dml__set_completes(s, last);
    return last;
}

/* 1 -> 0, 2 -> 0, 3 -> 0, added in this order, then 0 -> 1 2 3. Cost: 2 a + 2 (m - 1) n b + (m - 1) n g, all
   of it at rank 0. Source: the parameter server with one server; Li and others, "Scaling distributed machine
   learning with the parameter server", OSDI (2014). */
DML__LOCAL void dml__write_master_worker_all_reduce(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != 0) {
        const int send = dml__add_send(s, 0, DML__SPACE_OUT, 0, c->count);
        dml__add_after(s, dml__add_receive(s, 0, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count), send);
        return;
    }
    dml__collective reduce = *c;
    reduce.root = 0;
    const int last = dml__receive_in_order(&reduce, s);
    for (int rank = 1; rank < c->size; rank++)
        dml__add_after(s, dml__add_send(s, rank, DML__SPACE_OUT, 0, c->count), last);
}

/* Sends to each rank its block of `space`, and sums what comes for this one's own; the last step of that, or
 * -1. */
static int dml__write_direct_sums(const dml__collective *c, dml__schedule *s, dml__space space)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    const int first = s->count;
    dml__receive_slots(c, s, own.count);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_send(s, dml__rank_at(c, i), space, block.offset, block.count);
    }
    return dml__add_slots(c, s, space, own, first, 1, -1);
}

/* Rank r sums chunk r, in the order of the ranks, and sends the sum to all. 4 ranks, what each sends:

       0 -> 1: 1    0 -> 2: 2    0 -> 3: 3     1 -> 2: 2    1 -> 3: 3    1 -> 0: 0     and so on: added
       0 -> 1: 0    0 -> 2: 0    0 -> 3: 0     1 -> 2: 1    1 -> 3: 1    1 -> 0: 1     and so on: replaces

   A sum comes back only after its owner took this rank's share of it. Each chunk is summed once: all get the
   same bits, and the same whatever the algorithms' other choices are. Cost: 2 a + 2 (m - 1) / m n b +
   (m - 1) / m n g. Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations
   in MPICH", IJHPCA 19 (2005), section 4.3 (pairwise exchange). */
DML__LOCAL void dml__write_direct_all_reduce(const dml__collective *c, dml__schedule *s)
{
    const dml__stretch own = dml__block_of(c, c->rank);
    const int sum = dml__write_direct_sums(c, s, DML__SPACE_OUT);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, -i));
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset,
                         block.count);
        dml__add_after(s, dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, own.offset, own.count), sum);
    }
}

/* The first half of it, on parts. OUT may lie in IN, so it is written when everything else is over. Cost:
   a + (m - 1) n b + (m - 1) n g. */
DML__LOCAL void dml__write_direct_reduce_scatter(const dml__collective *c, dml__schedule *s)
{
    dml__write_direct_sums(c, s, DML__SPACE_IN);
    dml__add_after(s, dml__copy_own(c, s, false), DML__ALL_BEFORE);
}

/* Root 2 of 4: 0 -> 2, 1 -> 2 and 3 -> 2, added as (((x0 + x1) + x2) + x3). Cost: a + (m - 1) n b +
   (m - 1) n g, all of it at the root. */
DML__LOCAL void dml__write_direct_reduce(const dml__collective *c, dml__schedule *s)
{
    if (c->rank == c->root)
        dml__receive_in_order(c, s);
    else
        dml__add_send(s, c->root, DML__SPACE_OUT, 0, c->count);
}

/* Root 0 of 4: 0 -> 1 2 3. Cost: a + (m - 1) n b, all of it at the root. */
DML__LOCAL void dml__write_direct_broadcast(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) dml__add_receive(s, c->root, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, c->count);
    for (int i = 1; i < c->size && c->rank == c->root; i++)
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_OUT, 0, c->count);
}

/* Root 0 of 4: 0 -> 1: part 1, 0 -> 2: part 2, 0 -> 3: part 3. Cost: a + (m - 1) n b, all of it at the root.
 */
DML__LOCAL void dml__write_direct_scatter(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) {
        dml__add_receive(s, c->root, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, dml__part_count(c, c->rank));
        return;
    }
    dml__copy_own(c, s, false);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_IN, block.offset, block.count);
    }
}

/* The same the other way round: 1 -> 0: part 1, 2 -> 0: part 2, 3 -> 0: part 3. */
DML__LOCAL void dml__write_direct_gather(const dml__collective *c, dml__schedule *s)
{
    if (c->rank != c->root) {
        dml__add_send(s, c->root, DML__SPACE_IN, 0, dml__part_count(c, c->rank));
        return;
    }
    dml__copy_own(c, s, true);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, i));
        dml__add_receive(s, dml__rank_at(c, i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset, block.count);
    }
}

/* Each sends its part to each: 0 -> 1 2 3, 1 -> 2 3 0, 2 -> 3 0 1, 3 -> 0 1 2. Cost: a + (m - 1) n b. */
DML__LOCAL void dml__write_direct_all_gather(const dml__collective *c, dml__schedule *s)
{
    dml__copy_own(c, s, true);
    for (int i = 1; i < c->size; i++) {
        const dml__stretch block = dml__block_of(c, dml__rank_at(c, -i));
        dml__add_receive(s, dml__rank_at(c, -i), DML__STEP_RECEIVE, DML__SPACE_OUT, block.offset,
                         block.count);
        dml__add_send(s, dml__rank_at(c, i), DML__SPACE_IN, 0, dml__part_count(c, c->rank));
    }
}

/* At step i each sends to the rank i further on, one step after the other if `paced`. */
static void dml__write_exchanges(const dml__collective *c, dml__schedule *s, bool paced)
{
    const uint64_t n = c->count, own = (uint64_t)c->rank * n;
    int last = -1;
    dml__add_local(s, DML__STEP_COPY, DML__SPACE_OUT, own, n, DML__SPACE_IN, own);
    for (int i = 1; i < c->size; i++) {
        const int to = dml__rank_at(c, i), from = dml__rank_at(c, -i);
        const int got = dml__add_receive(s, from, DML__STEP_RECEIVE, DML__SPACE_OUT, (uint64_t)from * n, n);
        const int send = dml__add_send(s, to, DML__SPACE_IN, (uint64_t)to * n, n);
        if (paced) dml__add_after(s, send, last);
        last = got;
    }
}

/* All at once: what each rank has for each. Cost: a + (m - 1) n b. */
DML__LOCAL void dml__write_direct_all_to_all(const dml__collective *c, dml__schedule *s)
{
    dml__write_exchanges(c, s, false);
}

/* Each rank sends one message and receives one at a time, so that none is overrun by all the others:

       step 1    0 -> 1 -> 2 -> 3 -> 0
       step 2    0 -> 2, 1 -> 3, 2 -> 0, 3 -> 1
       step 3    0 -> 3, 1 -> 0, 2 -> 1, 3 -> 2

   Cost: (m - 1) (a + n b). Source: Thakur, Rabenseifner, Gropp (2005), section 4.6. */
DML__LOCAL void dml__write_pairwise_all_to_all(const dml__collective *c, dml__schedule *s)
{
    dml__write_exchanges(c, s, true);
}

#endif

/* ---- comm/algorithms.c ---- */

#ifndef DML_COMM_ALGORITHMS_C
#define DML_COMM_ALGORITHMS_C

#include <string.h>

/* The table of the algorithms, and their figures: m ranks, n elements of the call. */

static uint64_t dml__no_elements(int m, uint64_t n)
{
    (void)m, (void)n;
    return 0;
}
static uint64_t dml__n_once(int m, uint64_t n)
{
    return m > 1 ? n : 0;
}
static uint64_t dml__n_per_rank(int m, uint64_t n)
{
    return (uint64_t)m * n;
}
static uint64_t dml__n_per_rank_of_many(int m, uint64_t n)
{
    return m > 1 ? (uint64_t)m * n : 0;
}
static uint64_t dml__n_to_neighbours(int m, uint64_t n)
{
    return m < 3 ? (uint64_t)(m - 1) * n : 2 * n;
}
static uint64_t dml__n_per_other(int m, uint64_t n)
{
    return (uint64_t)(m - 1) * n;
}
static uint64_t dml__n_per_level(int m, uint64_t n)
{
    return (uint64_t)dml__log2_over(m) * n;
}
/* What the largest subtree of a binomial tree has: of the place with the highest bit, or with the bit below
 * it. */
static uint64_t dml__n_per_place(int m, uint64_t n)
{
    const int top = dml__power_over(m) / 2, places = m - top > top / 2 ? m - top : top / 2;
    return (uint64_t)(m > 1 ? places : 0) * n;
}
static uint64_t dml__half_per_level(int m, uint64_t n)
{
    uint64_t blocks = 0;
    for (int distance = 1; distance < m; distance *= 2)
        for (int i = 1; i < m; i++) blocks += (i & distance) != 0;
    return blocks * n;
}
/* Twice all but one's own chunk. */
static uint64_t dml__both_ways(int m, uint64_t n)
{
    return 2 * (n - n / (uint64_t)m);
}
static uint64_t dml__slots_of_chunks(int m, uint64_t n)
{
    return (uint64_t)(m - 1) * (n / (uint64_t)m + (n % (uint64_t)m != 0));
}
static uint64_t dml__tree_elements(int m, uint64_t n)
{
    return m < 2 ? 0 : m == 2 ? n : m == 3 ? n + n / 2 : 2 * n;
}

/* Whether some ranks let others take part for them. */
static bool dml__folds(int m)
{
    return (m & (m - 1)) != 0;
}
static int dml__fold_levels(int m)
{
    return dml__log2_over(m) - dml__folds(m);
}
static uint64_t dml__butterfly_elements(int m, uint64_t n)
{
    return (uint64_t)(dml__fold_levels(m) + dml__folds(m)) * n;
}
static uint64_t dml__halving_doubling_elements(int m, uint64_t n)
{
    return 2 * (n - (n >> dml__fold_levels(m))) + (dml__folds(m) ? n : 0);
}
static uint64_t dml__halving_elements(int m, uint64_t n)
{
    return (uint64_t)(m - !dml__folds(m)) * n;
}

static uint64_t dml__one_message(int m)
{
    return m > 1;
}
static uint64_t dml__message_per_neighbour(int m)
{
    return m < 3 ? (uint64_t)(m - 1) : 2;
}
static uint64_t dml__message_per_other(int m)
{
    return (uint64_t)(m - 1);
}
static uint64_t dml__message_per_rank(int m)
{
    return m > 1 ? (uint64_t)m : 0;
}
static uint64_t dml__two_per_other(int m)
{
    return 2 * (uint64_t)(m - 1);
}
static uint64_t dml__four_per_other(int m)
{
    return 4 * (uint64_t)(m - 1);
}
static uint64_t dml__message_per_level(int m)
{
    return (uint64_t)dml__log2_over(m);
}
static uint64_t dml__scatter_all_gather_messages(int m)
{
    return (uint64_t)(dml__log2_over(m) + m - 1);
}
static uint64_t dml__butterfly_messages(int m)
{
    return (uint64_t)(dml__fold_levels(m) + dml__folds(m));
}
static uint64_t dml__halving_doubling_messages(int m)
{
    return (uint64_t)(2 * dml__fold_levels(m) + dml__folds(m));
}
static uint64_t dml__tree_messages(int m)
{
    return m < 4 ? (uint64_t)(m > 1) * (uint64_t)m : 4;
}

/* name, operation, write, equal_parts, rank_order, scratch, elements_sent, messages_sent */
static const dml__algorithm_info dml__algorithm_table[] = {
    { "all_to_all", DML__CALL_ALL_REDUCE, dml__write_all_to_all_all_reduce, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "master_worker", DML__CALL_ALL_REDUCE, dml__write_master_worker_all_reduce, false, true, NULL,
      dml__n_per_other, dml__message_per_other },
    { "tree", DML__CALL_ALL_REDUCE, dml__write_double_tree_all_reduce, false, false, NULL, dml__tree_elements,
      dml__tree_messages },
    { "round_robin", DML__CALL_ALL_REDUCE, dml__write_round_robin_all_reduce, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "butterfly", DML__CALL_ALL_REDUCE, dml__write_butterfly_all_reduce, false, false, dml__n_once,
      dml__butterfly_elements, dml__butterfly_messages },
    { "halving_doubling", DML__CALL_ALL_REDUCE, dml__write_halving_doubling_all_reduce, false, false, NULL,
      dml__halving_doubling_elements, dml__halving_doubling_messages },
    { "ring", DML__CALL_ALL_REDUCE, dml__write_ring_all_reduce, false, false, NULL, dml__both_ways,
      dml__two_per_other },
    { "ring_segmented", DML__CALL_ALL_REDUCE, dml__write_two_rings_all_reduce, false, false, NULL,
      dml__both_ways, dml__four_per_other },
    { "direct", DML__CALL_ALL_REDUCE, dml__write_direct_all_reduce, false, true, dml__slots_of_chunks,
      dml__both_ways, dml__two_per_other },
    { "chain", DML__CALL_ALL_REDUCE, dml__write_chain_all_reduce, false, true, NULL, dml__n_to_neighbours,
      dml__message_per_neighbour },

    { "binomial", DML__CALL_REDUCE, dml__write_binomial_reduce, false, false, NULL, dml__n_once,
      dml__one_message },
    { "ring", DML__CALL_REDUCE, dml__write_ring_reduce, false, false, NULL, dml__n_once,
      dml__message_per_rank },
    { "direct", DML__CALL_REDUCE, dml__write_direct_reduce, false, true, dml__n_once, dml__n_once,
      dml__one_message },
    { "chain", DML__CALL_REDUCE, dml__write_chain_reduce, false, true, NULL, dml__n_once, dml__one_message },

    { "binomial", DML__CALL_BROADCAST, dml__write_binomial_broadcast, false, false, NULL, dml__n_per_level,
      dml__message_per_level },
    { "chain", DML__CALL_BROADCAST, dml__write_chain_broadcast, false, false, NULL, dml__n_once,
      dml__one_message },
    { "scatter_all_gather", DML__CALL_BROADCAST, dml__write_scatter_all_gather_broadcast, false, false, NULL,
      dml__both_ways, dml__scatter_all_gather_messages },
    { "direct", DML__CALL_BROADCAST, dml__write_direct_broadcast, false, false, NULL, dml__n_per_other,
      dml__message_per_other },

    { "direct", DML__CALL_SCATTER, dml__write_direct_scatter, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "binomial", DML__CALL_SCATTER, dml__write_binomial_scatter, true, false, dml__n_per_place,
      dml__n_per_other, dml__message_per_level },

    { "direct", DML__CALL_GATHER, dml__write_direct_gather, false, false, NULL, dml__n_once,
      dml__one_message },
    { "binomial", DML__CALL_GATHER, dml__write_binomial_gather, true, false, dml__n_per_place,
      dml__n_per_place, dml__one_message },

    { "ring", DML__CALL_ALL_GATHER, dml__write_ring_all_gather, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "bruck", DML__CALL_ALL_GATHER, dml__write_bruck_all_gather, true, false, dml__n_per_rank,
      dml__n_per_other, dml__message_per_level },
    { "direct", DML__CALL_ALL_GATHER, dml__write_direct_all_gather, false, false, NULL, dml__n_per_other,
      dml__message_per_other },

    { "ring", DML__CALL_REDUCE_SCATTER, dml__write_ring_reduce_scatter, false, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "halving", DML__CALL_REDUCE_SCATTER, dml__write_halving_reduce_scatter, true, false, NULL,
      dml__halving_elements, dml__butterfly_messages },
    { "direct", DML__CALL_REDUCE_SCATTER, dml__write_direct_reduce_scatter, false, true, dml__n_per_other,
      dml__n_per_other, dml__message_per_other },
    { "chain", DML__CALL_REDUCE_SCATTER, dml__write_chain_reduce_scatter, false, true, NULL,
      dml__n_per_rank_of_many, dml__message_per_rank },

    { "pairwise", DML__CALL_ALL_TO_ALL, dml__write_pairwise_all_to_all, true, false, NULL, dml__n_per_other,
      dml__message_per_other },
    { "bruck", DML__CALL_ALL_TO_ALL, dml__write_bruck_all_to_all, true, false, dml__n_per_rank,
      dml__half_per_level, dml__message_per_level },
    { "direct", DML__CALL_ALL_TO_ALL, dml__write_direct_all_to_all, true, false, NULL, dml__n_per_other,
      dml__message_per_other },

    { "dissemination", DML__CALL_BARRIER, dml__write_dissemination_barrier, true, false, NULL,
      dml__no_elements, dml__message_per_level },
    { "tree", DML__CALL_BARRIER, dml__write_tree_barrier, true, false, NULL, dml__no_elements,
      dml__message_per_level },
};

DML__LOCAL const dml__algorithm_info *dml__algorithms(int *count)
{
    *count = (int)(sizeof dml__algorithm_table / sizeof *dml__algorithm_table);
    return dml__algorithm_table;
}

DML__LOCAL int dml__find_algorithm(dml__comm_operation operation, const char *name)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++)
        if (table[i].operation == operation && strcmp(table[i].name, name) == 0) return i;
    return -1;
}

/* Two rings write 8 (m - 1). Bruck's all-to-all writes 2 at first, m at last, and for each distance a message
   each way and two copies of each run of blocks, of which there are less than m in all. */
DML__LOCAL int dml__most_steps(int size)
{
    const int rings = 8 * (size - 1), bruck = 3 * size + 2 * dml__log2_over(size) + 2;
    return rings > bruck ? rings : bruck;
}

#endif

/* ---- comm/price_group.c ---- */

/* From an algorithm to the steps of a run: who sends what to whom, and who does the same as somebody else. */
#ifndef DML_COMM_PRICE_GROUP_C
#define DML_COMM_PRICE_GROUP_C

/* ---- comm/price.h ---- */

/* price.h: what a schedule costs. The steps of all ranks of a group are run in virtual time, over a model of
   what connects them: how long a call would take is known before a byte has moved, and for groups that
   nobody has.

   The model is LogGP (Alexandrov, Ionescu, Schauser, Scheiman: LogGP, 1995) with what this library adds: a
   message is cut into segments, each with the overhead of a frame; a large one waits for its receiver's
   grant; a step may follow another by position; sums and copies take a processor's time, of which a rank has
   one. A port sends one segment at a time at the full bandwidth, as LogGP's G says and as a card's queue
   does; messages that are under way at once take turns by segments, as the streams of several connections
   do. A segment reaches the receiver's port as it leaves the sender's (cut through), so an uncontended one
   takes latency + bytes / bandwidth and not twice the latter; where a port is taken it queues, in the network
   and not at the sender's, so a sender never stands behind its receiver's other messages.

   Not in the model: lost packets, congestion control's ramp, the bound of eager buffers, and that ranks do
   not begin at the same time. */
#ifndef DML_COMM_PRICE_H
#define DML_COMM_PRICE_H

typedef struct dml__price_link {
    double latency;   /* seconds from the first byte's leaving to its arrival */
    double bandwidth; /* bytes/s of a port, in each direction */
    double overhead;  /* seconds of the processor for a frame, at the sender and again at the receiver */
} dml__price_link;

typedef struct dml__price_model {
    dml__price_link inside, between; /* of two ranks of a host; of two hosts */
    int ranks_per_host;              /* consecutive ones, who share their host's port to the others */
    int hosts_per_rack;              /* 0: no racks */
    double rack_latency;             /* seconds more between two racks */
    double oversubscription;         /* the ports of a rack's hosts together by the rack's uplink: 4 */
    double reduce, copy;             /* bytes/s of sums and copies */
    uint64_t segment, eager;         /* bytes of a segment; up to which a message needs no grant */
    uint64_t
        scratch; /* Bytes of it: what would use more is run in rounds, one after the other. 0: no bound. */
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
   steps, or more scratch and the operation has no rounds; DML_ERROR_MISMATCH: a rank sends what nobody
   receives or the other way round, in stuck_rank and stuck_step; DML_ERROR_STATE: the schedule waits for
   ever. */
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
    int32_t queued_behind;
    double ready; /* a send in a port's queue: when its processor is done with it */
    uint32_t total, issued, done;
    uint32_t came; /* segments that a receive has; those that a send has grants for */
    uint32_t granted;
    uint8_t path;
    bool queued;
} dml__price_step;

typedef struct dml__price_rank {
    double busy_until, end; /* the processor's; of the last step */
    int32_t first, steps;   /* its steps */
    int32_t open;           /* the first of them that hasn't ended */
    int32_t host, rack;     /* of the run */
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

#include <string.h>

/* A unit is consecutive ranks that share a port: a host, or a rack. Units are of one class if their ranks
   have equal steps and, step by step, peers of one class: then all of a class are at every moment in the same
   state, whatever their peers are called, and one of them stands for all (what colour refinement finds in a
   graph). */
typedef struct dml__price_group {
    const dml__price_model *model;
    const dml__algorithm_info *algorithm;
    dml__collective call;
    uint64_t element_bytes;
    int size, unit, unit_count, class_count;
    dml__schedule mine, theirs; /* a rank's, and a peer's */
    uint64_t *alike;            /* (size) what a rank's steps are like; then also its peers' */
    uint64_t *of_unit;          /* (unit_count) */
    int32_t *class_of;          /* (unit_count) the first unit of its class */
    int32_t *table;             /* (table_size) of units, by what they are like */
    int32_t *first_step;        /* (size + 1) in the run; of ranks of units that stand for none: unused */
    int32_t *run_rank;          /* (size) */
    uint32_t table_size;        /* a power of two */
} dml__price_group;

/* ---- work ---- */

typedef struct dml__price_arena {
    char *base;
    size_t used, bytes; /* used may come to more than there are */
} dml__price_arena;

static void *dml__price_take(dml__price_arena *arena, size_t count, size_t size)
{
    if (count > (SIZE_MAX / 2 - arena->used) / size) {
        arena->used = SIZE_MAX / 2;
        return NULL;
    }
    void *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count * size + 7) / 8 * 8;
    return arena->used <= arena->bytes ? memory : NULL;
}

static void dml__price_group_take(dml__price_group *group, dml__price_arena *arena, int most_steps)
{
    const size_t size = (size_t)group->size, steps = (size_t)most_steps;
    for (group->table_size = 4; group->table_size < 2 * (uint32_t)group->size;) group->table_size *= 2;
    group->mine.steps = (dml__step *)dml__price_take(arena, steps, sizeof(dml__step));
    group->theirs.steps = (dml__step *)dml__price_take(arena, steps, sizeof(dml__step));
    group->mine.capacity = group->theirs.capacity = most_steps;
    group->alike = (uint64_t *)dml__price_take(arena, size, sizeof *group->alike);
    group->of_unit = (uint64_t *)dml__price_take(arena, size, sizeof *group->of_unit);
    group->class_of = (int32_t *)dml__price_take(arena, size, sizeof *group->class_of);
    group->table = (int32_t *)dml__price_take(arena, group->table_size, sizeof *group->table);
    group->first_step = (int32_t *)dml__price_take(arena, size + 1, sizeof *group->first_step);
    group->run_rank = (int32_t *)dml__price_take(arena, size, sizeof *group->run_rank);
}

static void dml__price_run_take(dml__price_run *run, dml__price_arena *arena, size_t steps)
{
    const size_t ranks = (size_t)run->rank_count, hosts = (size_t)run->host_count;
    run->steps = (dml__price_step *)dml__price_take(arena, steps, sizeof *run->steps);
    run->ranks = (dml__price_rank *)dml__price_take(arena, ranks, sizeof *run->ranks);
    run->ports = (dml__price_port *)dml__price_take(arena, ranks + hosts, sizeof *run->ports);
    run->uplinks = (double *)dml__price_take(arena, 2 * (size_t)run->rack_count, sizeof *run->uplinks);
}

/* An event for each segment that is granted, under way or being worked on, and for what goes on in each step
   of the processor's and each port. */
static size_t dml__price_heap_size(const dml__price_run *run, uint64_t segments)
{
    return (size_t)segments + (size_t)run->step_count + (size_t)(run->rank_count + run->host_count);
}

DML__LOCAL size_t dml__price_work_bytes(const dml__price_model *model, int size, int most_steps)
{
    dml__price_arena arena = { NULL, 0, 0 };
    dml__price_group group;
    dml__price_run run;
    memset(&group, 0, sizeof group);
    memset(&run, 0, sizeof run);
    group.size = run.rank_count = run.host_count = run.rack_count = size;
    dml__price_group_take(&group, &arena, most_steps);
    const size_t steps = (size_t)size * (size_t)most_steps;
    dml__price_run_take(&run, &arena, steps);
    /* At least a segment a message, whatever the most may be. */
    const size_t segments = model->most_segments > steps ? (size_t)model->most_segments : steps;
    dml__price_take(&arena, segments + steps + 2 * (size_t)size, sizeof(dml__price_event));
    return arena.used;
}

/* ---- which units are alike ---- */

static uint64_t dml__price_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static bool dml__price_write(const dml__price_group *group, int rank, dml__schedule *schedule)
{
    dml__collective call = group->call;
    call.rank = rank;
    schedule->count = 0;
    schedule->overflowed = false;
    group->algorithm->write(&call, schedule);
    for (int i = 0; i < schedule->count; i++)
        DML_ASSERT(schedule->steps[i].kind > DML__STEP_RECEIVE_REDUCE ||
                   (schedule->steps[i].peer >= 0 && schedule->steps[i].peer < group->size));
    return !schedule->overflowed;
}

static bool dml__price_is_message(const dml__step *step)
{
    return step->kind <= DML__STEP_RECEIVE_REDUCE;
}

static dml__price_path dml__price_path_of(const dml__price_group *group, int rank, int peer)
{
    const dml__price_model *model = group->model;
    const int host = rank / model->ranks_per_host, other = peer / model->ranks_per_host;
    if (host == other) return DML__PATH_INSIDE;
    if (model->hosts_per_rack == 0 || host / model->hosts_per_rack == other / model->hosts_per_rack)
        return DML__PATH_BETWEEN;
    return DML__PATH_RACKS;
}

/* Where a step's places are behind those of an earlier one that they overlap: all that a wait depends on. */
static uint64_t dml__price_wait_alike(uint64_t hash, const dml__step *step, const dml__step *earlier)
{
    for (int i = 0; i < 4; i++) {
        const bool source = (i & 1) && step->kind >= DML__STEP_COPY;
        const bool earlier_source = (i & 2) && earlier->kind >= DML__STEP_COPY;
        const uint64_t from = source ? step->source : step->offset;
        const uint64_t before = earlier_source ? earlier->source : earlier->offset;
        const bool meet = (source ? step->source_space : step->space) ==
                              (earlier_source ? earlier->source_space : earlier->space) &&
                          from < before + earlier->count && before < from + step->count;
        hash = dml__price_mix(hash, meet ? from - before : UINT64_MAX / 2);
    }
    return hash;
}

/* All of a rank's steps that the run sees, but for whom they are with. */
static uint64_t dml__price_steps_alike(const dml__price_group *group, int rank)
{
    const dml__schedule *s = &group->mine;
    uint64_t hash = (uint64_t)s->count;
    for (int i = 0; i < s->count; i++) {
        const dml__step *step = &s->steps[i];
        const bool message = dml__price_is_message(step);
        hash =
            dml__price_mix(hash, step->count << 6 | (uint64_t)step->kind << 3 |
                                     (message ? (uint64_t)dml__price_path_of(group, rank, step->peer) : 7));
        for (int k = 0; k < DML__STEP_AFTER; k++) {
            if (step->after[k] == -1) continue;
            hash = dml__price_mix(hash, (uint64_t)(step->after[k] + 3));
            if (step->after[k] >= 0) hash = dml__price_wait_alike(hash, step, &s->steps[step->after[k]]);
        }
    }
    return hash;
}

/* Adds to what a rank is like who its peers are: of which class, and which of the class's ranks. */
static uint64_t dml__price_peers_alike(const dml__price_group *group, uint64_t hash)
{
    for (int i = 0; i < group->mine.count; i++) {
        const dml__step *step = &group->mine.steps[i];
        if (!dml__price_is_message(step)) continue;
        const uint64_t of_class = (uint64_t)group->class_of[step->peer / group->unit];
        hash = dml__price_mix(hash, of_class << 32 | (uint64_t)(step->peer % group->unit));
    }
    return hash;
}

/* Puts the units that are alike into one class, called by the first of them. */
static void dml__price_classify(dml__price_group *group)
{
    for (int u = 0; u < group->unit_count; u++) group->of_unit[u] = 1;
    for (int r = 0; r < group->size; r++)
        group->of_unit[r / group->unit] = dml__price_mix(group->of_unit[r / group->unit], group->alike[r]);
    for (uint32_t i = 0; i < group->table_size; i++) group->table[i] = -1;
    group->class_count = 0;
    for (int u = 0; u < group->unit_count; u++) {
        uint32_t at = (uint32_t)(group->of_unit[u] >> 32) & (group->table_size - 1);
        while (group->table[at] >= 0 && group->of_unit[group->table[at]] != group->of_unit[u])
            at = (at + 1) & (group->table_size - 1);
        if (group->table[at] < 0) {
            group->table[at] = u;
            group->class_count++;
        }
        group->class_of[u] = group->table[at];
    }
}

static void dml__price_tell_apart(dml__price_group *group)
{
    for (int u = 0; u < group->unit_count; u++) group->class_of[u] = u;
    group->class_count = group->unit_count;
}

/* Ranks that differ by where they are in a chain are told apart one a round; whose steps those are, they are
   few, and it is quicker to run them all. */
enum { DML__PRICE_ROUNDS = 6 };

static bool dml__price_find_classes(dml__price_group *group, int *where)
{
    for (int r = 0; r < group->size; r++) {
        *where = r;
        if (!dml__price_write(group, r, &group->mine)) return false;
        group->alike[r] = dml__price_steps_alike(group, r);
    }
    dml__price_classify(group);
    int before = 0;
    for (int round = 0; before < group->class_count && group->class_count < group->unit_count; round++) {
        if (round == DML__PRICE_ROUNDS) {
            dml__price_tell_apart(group);
            break;
        }
        before = group->class_count;
        for (int r = 0; r < group->size; r++) {
            dml__price_write(group, r, &group->mine);
            group->alike[r] = dml__price_peers_alike(group, group->alike[r]);
        }
        dml__price_classify(group);
    }
    return true;
}

static bool dml__price_stands(const dml__price_group *group, int rank)
{
    return group->class_of[rank / group->unit] == rank / group->unit;
}

/* The rank that is run for this one. */
static int dml__price_stand_in(const dml__price_group *group, int rank)
{
    return group->class_of[rank / group->unit] * group->unit + rank % group->unit;
}

/* ---- the run's steps ---- */

/* Numbers the ranks, hosts, racks and steps that are run. */
static void dml__price_number(dml__price_group *group, dml__price_run *run)
{
    int steps = 0, host = -1, last_host = -1, rack = -1, last_rack = -1;
    const int per_rack = group->model->hosts_per_rack;
    run->rank_count = 0;
    for (int r = 0; r < group->size; r++) {
        if (!dml__price_stands(group, r)) continue;
        const int real = r / group->model->ranks_per_host;
        const int real_rack = per_rack ? real / per_rack : real;
        if (real != last_host) host++;
        if (real_rack != last_rack) rack++;
        last_host = real, last_rack = real_rack;
        dml__price_write(group, r, &group->mine);
        if (run->ranks) {
            dml__price_rank *to = &run->ranks[run->rank_count];
            to->host = host, to->rack = rack;
            to->first = steps, to->steps = group->mine.count;
        }
        group->run_rank[r] = run->rank_count++;
        group->first_step[r] = steps;
        steps += group->mine.count;
    }
    run->step_count = steps;
    run->host_count = host + 1;
    run->rack_count = rack + 1;
}

static void dml__price_fill(dml__price_group *group, dml__price_run *run, int rank)
{
    const int first = group->first_step[rank];
    dml__price_write(group, rank, &group->mine);
    for (int i = 0; i < group->mine.count; i++) {
        const dml__step *from = &group->mine.steps[i];
        dml__price_step *to = &run->steps[first + i];
        const bool message = dml__price_is_message(from);
        to->step = *from;
        to->rank = group->run_rank[rank];
        to->partner = -1;
        for (int k = 0; k < DML__STEP_AFTER; k++)
            if (from->after[k] >= 0) to->step.after[k] += first;
        to->path = (uint8_t)(message ? dml__price_path_of(group, rank, from->peer) : DML__PATH_INSIDE);
    }
}

/* Steps of one rank, each `stride` bytes behind the one before. */
typedef struct dml__price_list {
    const char *steps;
    size_t stride;
    int count, first; /* first: in the run */
} dml__price_list;

static const dml__step *dml__price_step_at(const dml__price_list *list, int index)
{
    return (const dml__step *)(const void *)(list->steps + (size_t)index * list->stride);
}

static dml__price_list dml__price_list_of(dml__price_group *group, const dml__price_run *run, int rank)
{
    dml__price_list list;
    list.first = group->first_step[dml__price_stand_in(group, rank)];
    if (dml__price_stands(group, rank)) {
        list.steps = (const char *)&run->steps[list.first].step;
        list.stride = sizeof *run->steps;
        list.count = run->ranks[group->run_rank[rank]].steps;
    } else {
        dml__price_write(group, rank, &group->theirs);
        list.steps = (const char *)group->theirs.steps;
        list.stride = sizeof *group->theirs.steps;
        list.count = group->theirs.count;
    }
    return list;
}

/* The next step from `at` on that sends to, or receives from, that peer, or -1. */
static int dml__price_seek(const dml__price_list *list, int at, int peer, bool send)
{
    for (; at < list->count; at++) {
        const dml__step *step = dml__price_step_at(list, at);
        if (step->peer == peer && dml__price_is_message(step) && (step->kind == DML__STEP_SEND) == send)
            return at;
    }
    return -1;
}

/* Pairs the messages that the rank sends to `peer`, or those that it receives, from its step `from` on, with
   the peer's own: the k-th with the k-th. Returns a step that has no partner of its size, or -1. */
static int dml__price_pair(const dml__price_list *mine, const dml__price_list *theirs, dml__price_run *run,
                           int rank, int peer, int from, bool send)
{
    int at = from, other = 0;
    while ((at = dml__price_seek(mine, at, peer, send)) >= 0) {
        other = dml__price_seek(theirs, other, rank, !send);
        if (other < 0 || dml__price_step_at(theirs, other)->count != dml__price_step_at(mine, at)->count)
            return at;
        run->steps[mine->first + at++].partner = theirs->first + other++;
    }
    return -1;
}

/* Where every rank is run, all messages are paired in one go: sends stand in a hash table by who they are
   between, each bucket a list in the order of the steps, and each receive takes the first that is its own.
   Returns a step that has no partner of its size, or -1. */
static int dml__price_pair_all(dml__price_run *run, const dml__price_group *group, int32_t *buckets,
                               uint32_t bucket_count)
{
    for (uint32_t i = 0; i < bucket_count; i++) buckets[i] = -1;
    const uint64_t size = (uint64_t)group->size;
    for (int i = run->step_count - 1; i >= 0; i--) {
        dml__price_step *send = &run->steps[i];
        if (send->step.kind != DML__STEP_SEND) continue;
        const uint64_t between = (uint64_t)send->rank * size + (uint64_t)send->step.peer;
        int32_t *bucket = &buckets[(uint32_t)(dml__price_mix(0, between) >> 32) & (bucket_count - 1)];
        send->queued_behind = *bucket;
        *bucket = i;
    }
    for (int i = 0; i < run->step_count; i++) {
        dml__price_step *receive = &run->steps[i];
        if (!dml__price_is_message(&receive->step) || receive->step.kind == DML__STEP_SEND) continue;
        const uint64_t between = (uint64_t)receive->step.peer * size + (uint64_t)receive->rank;
        int32_t *at = &buckets[(uint32_t)(dml__price_mix(0, between) >> 32) & (bucket_count - 1)];
        while (*at >= 0 &&
               (run->steps[*at].rank != receive->step.peer || run->steps[*at].step.peer != receive->rank))
            at = &run->steps[*at].queued_behind;
        if (*at < 0 || run->steps[*at].step.count != receive->step.count) return i;
        receive->partner = *at;
        run->steps[*at].partner = i;
        *at = run->steps[*at].queued_behind;
    }
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].step.kind == DML__STEP_SEND && run->steps[i].partner < 0) return i;
    return -1;
}

/* Pairs all messages of a rank that is run. Returns as dml__price_pair does. */
static int dml__price_connect(dml__price_group *group, dml__price_run *run, int rank)
{
    const dml__price_list mine = dml__price_list_of(group, run, rank);
    for (int i = 0; i < mine.count; i++) {
        const dml__step *step = dml__price_step_at(&mine, i);
        if (!dml__price_is_message(step) || run->steps[mine.first + i].partner >= 0) continue;
        const dml__price_list theirs = dml__price_list_of(group, run, step->peer);
        int lonely = dml__price_pair(&mine, &theirs, run, rank, step->peer, i, true);
        if (lonely < 0) lonely = dml__price_pair(&mine, &theirs, run, rank, step->peer, i, false);
        if (lonely >= 0) return lonely;
    }
    return -1;
}

/* Who stands for others has to be its partner's partner. */
static bool dml__price_is_mutual(const dml__price_run *run)
{
    for (int i = 0; i < run->step_count; i++) {
        const int partner = run->steps[i].partner;
        if (dml__price_is_message(&run->steps[i].step) &&
            (run->steps[partner].partner != i || run->steps[partner].step.count != run->steps[i].step.count))
            return false;
    }
    return true;
}

static int dml__price_connect_all(dml__price_group *group, dml__price_run *run, dml__price_arena rest)
{
    if (group->class_count == group->unit_count) { /* a rank's number is that in the run, too */
        uint32_t buckets = 1;
        const size_t room = (rest.bytes - rest.used) / sizeof(int32_t);
        while (buckets < (uint32_t)run->step_count && 2 * (size_t)buckets <= room) buckets *= 2;
        int32_t *table = (int32_t *)dml__price_take(&rest, buckets, sizeof *table);
        if (table) return dml__price_pair_all(run, group, table, buckets);
    }
    for (int r = 0; r < group->size; r++) {
        const int lonely = dml__price_stands(group, r) ? dml__price_connect(group, run, r) : -1;
        if (lonely >= 0) return group->first_step[r] + lonely;
    }
    return -1;
}

/* ---- all of it ---- */

/* Whose step of the run that is. */
static void dml__price_name(const dml__price_group *group, int step, dml__price *price)
{
    for (int r = 0; r < group->size; r++)
        if (dml__price_stands(group, r) && step >= group->first_step[r]) {
            price->stuck_rank = r;
            price->stuck_step = step - group->first_step[r];
        }
}

static void dml__price_report(const dml__price_group *group, const dml__price_run *run, dml__price *price,
                              int stuck)
{
    price->seconds = 0;
    price->events = run->events;
    price->segment = run->segment * run->element_bytes;
    price->distinct = run->rank_count;
    for (int r = 0; r < group->size; r++) {
        const int stand_in = dml__price_stand_in(group, r);
        const double end = run->ranks[group->run_rank[stand_in]].end;
        if (price->ends) price->ends[r] = end;
        if (end > price->seconds) price->seconds = end;
    }
    if (stuck >= 0) dml__price_name(group, stuck, price);
}

static dml_status dml__price_group_run(dml__price_group *group, dml__price_arena arena, dml__price *price)
{
    dml__price_run run;
    memset(&run, 0, sizeof run);
    run.model = group->model;
    run.element_bytes = group->element_bytes;
    run.segment = group->model->segment / group->element_bytes;
    if (run.segment == 0) run.segment = 1;
    dml__price_number(group, &run);
    dml__price_run_take(&run, &arena, (size_t)run.step_count);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    dml__price_number(group, &run);
    for (int r = 0; r < group->size; r++)
        if (dml__price_stands(group, r)) dml__price_fill(group, &run, r);
    const int lonely = dml__price_connect_all(group, &run, arena);
    if (lonely >= 0) {
        dml__price_name(group, lonely, price);
        return DML_ERROR_MISMATCH;
    }
    if (!dml__price_is_mutual(&run)) return DML_ERROR_UNSUPPORTED;
    uint64_t segments = dml__price_segments(&run, run.segment), fewer;
    while (segments > group->model->most_segments) {
        fewer = dml__price_segments(&run, 2 * run.segment);
        if (fewer == segments) break; /* a segment a message */
        segments = fewer;
        run.segment *= 2;
    }
    run.heap_capacity = dml__price_heap_size(&run, segments);
    run.heap = (dml__price_event *)dml__price_take(&arena, run.heap_capacity, sizeof *run.heap);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    const int stuck = dml__price_run_steps(&run);
    dml__price_report(group, &run, price, stuck);
    return stuck >= 0 ? DML_ERROR_STATE : DML_OK;
}

static dml_status dml__price_round(const dml__price_model *model, const dml__algorithm_info *algorithm,
                                   const dml__collective *collective, size_t element_bytes, int most_steps,
                                   void *work, size_t work_bytes, dml__price *price)
{
    dml__price_arena arena = { (char *)work, 0, work_bytes };
    dml__price_group group;
    memset(&group, 0, sizeof group);
    group.model = model;
    group.algorithm = algorithm;
    group.call = *collective;
    group.element_bytes = element_bytes;
    group.size = collective->size;
    group.unit =
        model->hosts_per_rack ? model->hosts_per_rack * model->ranks_per_host : model->ranks_per_host;
    group.unit_count = (group.size + group.unit - 1) / group.unit;
    price->stuck_rank = price->stuck_step = -1;
    price->seconds = 0;
    dml__price_group_take(&group, &arena, most_steps);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    int where = 0;
    if (!dml__price_find_classes(&group, &where)) {
        price->stuck_rank = where;
        return DML_ERROR_MEMORY;
    }
    dml_status status = dml__price_group_run(&group, arena, price);
    if (status == DML_ERROR_UNSUPPORTED) { /* (Ranks that are alike and yet are not: all are run.) */
        dml__price_tell_apart(&group);
        status = dml__price_group_run(&group, arena, price);
    }
    return status;
}

/* As many elements as the scratch is enough for, found as the engine does it. */
static uint64_t dml__price_round_count(const dml__price_model *model, const dml__algorithm_info *algorithm,
                                       const dml__collective *collective, size_t element_bytes)
{
    uint64_t most = collective->count;
    if (algorithm->scratch && model->scratch)
        while (most > 1 && algorithm->scratch(collective->size, most) > model->scratch / element_bytes)
            most /= 2;
    return most;
}

DML__LOCAL dml_status dml__price_collective(const dml__price_model *model,
                                            const dml__algorithm_info *algorithm,
                                            const dml__collective *collective, size_t element_bytes,
                                            int most_steps, void *work, size_t work_bytes, dml__price *price)
{
    const uint64_t most = dml__price_round_count(model, algorithm, collective, element_bytes);
    dml__collective round = *collective;
    round.count = most;
    if (most < collective->count && !dml__is_elementwise(collective->operation)) {
        price->stuck_rank = price->stuck_step = -1;
        return DML_ERROR_MEMORY;
    }
    const dml_status status =
        dml__price_round(model, algorithm, &round, element_bytes, most_steps, work, work_bytes, price);
    if (status != DML_OK || most == collective->count) return status;
    const double rounds =
        (double)collective->count / (double)most; /* (a shorter last one's latency is small) */
    price->seconds *= rounds;
    for (int r = 0; price->ends && r < collective->size; r++) price->ends[r] *= rounds;
    return DML_OK;
}

#endif

/* ---- comm/price.c ---- */

#ifndef DML_COMM_PRICE_C
#define DML_COMM_PRICE_C

#include <string.h>

/* Four things happen, everything else is decided when one of them does: a port has sent a segment; a segment
   has come in; the processor has done with a segment of a step; a grant has come to a send, for one segment
   more or for all of them. */
enum {
    DML__PRICE_SENT, /* of a port; the others are of steps */
    DML__PRICE_CAME,
    DML__PRICE_DONE,
    DML__PRICE_GRANT,
    DML__PRICE_GRANT_ALL,
    DML__PRICE_KIND_BITS = 3
};

/* ---- the events, a binary heap ---- */

static bool dml__price_before(const dml__price_event *a, const dml__price_event *b)
{
    return a->time < b->time || (a->time == b->time && (int32_t)(a->order - b->order) < 0);
}

static void dml__price_plan(dml__price_run *run, double time, int kind, int index)
{
    DML_ASSERT(run->heap_count < run->heap_capacity);
    dml__price_event event;
    event.time = time;
    event.order = run->order++;
    event.what = (uint32_t)index << DML__PRICE_KIND_BITS | (uint32_t)kind;
    size_t at = run->heap_count++;
    while (at > 0 && dml__price_before(&event, &run->heap[(at - 1) / 2])) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = event;
}

static dml__price_event dml__price_next(dml__price_run *run)
{
    const dml__price_event first = run->heap[0], last = run->heap[--run->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < run->heap_count; child = 2 * at + 1) {
        if (child + 1 < run->heap_count && dml__price_before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (!dml__price_before(&run->heap[child], &last)) break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return first;
}

/* ---- how far a step may go ---- */

static uint64_t dml__price_elements(const dml__price_run *run, const dml__price_step *step, uint32_t segments)
{
    const uint64_t elements = (uint64_t)segments * run->segment;
    return elements < step->step.count ? elements : step->step.count;
}

/* Segments that what the step comes after leaves it. */
static uint32_t dml__price_allowed(const dml__price_run *run, const dml__price_step *step)
{
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < DML__STEP_AFTER; i++) {
        const int32_t after = step->step.after[i];
        if (after == DML__ALL_BEFORE && step != &run->steps[run->ranks[step->rank].open]) return 0;
        if (after < 0) continue;
        const dml__price_step *earlier = &run->steps[after];
        const uint64_t left =
            dml__step_limit(&step->step, &earlier->step, dml__price_elements(run, earlier, earlier->done),
                            earlier->done == earlier->total);
        if (left < limit) limit = left;
    }
    return limit > 0 && limit >= step->step.count ? step->total : (uint32_t)(limit / run->segment);
}

/* Takes the rank's processor for so long; returns when it will be done. */
static double dml__price_compute(dml__price_run *run, const dml__price_step *step, double seconds)
{
    dml__price_rank *rank = &run->ranks[step->rank];
    const double from = rank->busy_until > run->now ? rank->busy_until : run->now;
    return rank->busy_until = from + seconds;
}

static const dml__price_link *dml__price_link_of(const dml__price_run *run, const dml__price_step *step)
{
    return step->path == DML__PATH_INSIDE ? &run->model->inside : &run->model->between;
}

static double dml__price_latency(const dml__price_run *run, const dml__price_step *step)
{
    return dml__price_link_of(run, step)->latency +
           (step->path == DML__PATH_RACKS ? run->model->rack_latency : 0);
}

/* Bytes of a step's next segment. */
static double dml__price_segment_bytes(const dml__price_run *run, const dml__price_step *step)
{
    return (double)(dml__price_elements(run, step, step->issued + 1) -
                    dml__price_elements(run, step, step->issued)) *
           (double)run->element_bytes;
}

static bool dml__price_is_eager(const dml__price_run *run, const dml__price_step *step)
{
    return step->step.count * run->element_bytes <= run->model->eager;
}

static int dml__price_port_of(const dml__price_run *run, const dml__price_step *step)
{
    return step->path == DML__PATH_INSIDE ? step->rank : run->rank_count + run->ranks[step->rank].host;
}

/* ---- sends ---- */

/* When the last of so many bytes, that leave from `start` on, will have come in. */
static double dml__price_transfer(dml__price_run *run, const dml__price_step *send, double start,
                                  double bytes)
{
    const dml__price_link *link = dml__price_link_of(run, send);
    const dml__price_step *receive = &run->steps[send->partner];
    dml__price_port *port = &run->ports[dml__price_port_of(run, receive)];
    double at = start;
    if (send->path == DML__PATH_RACKS && run->model->oversubscription > 0) {
        const double rate = link->bandwidth * run->model->hosts_per_rack / run->model->oversubscription;
        double *ways[2];
        ways[0] = &run->uplinks[2 * run->ranks[send->rank].rack];
        ways[1] = &run->uplinks[2 * run->ranks[receive->rank].rack + 1];
        for (int i = 0; i < 2; i++) {
            if (*ways[i] > at) at = *ways[i];
            *ways[i] = at + bytes / rate;
        }
        /* (A rack's uplink that is slower than a port holds the segment up.) */
        if (rate < link->bandwidth) at += bytes / rate - bytes / link->bandwidth;
    }
    at += dml__price_latency(run, send);
    if (port->in_until > at) at = port->in_until;
    return port->in_until = at + bytes / link->bandwidth;
}

static void dml__price_try(dml__price_run *run, int index);

/* Lets a port that is idle send what waits longest. */
static void dml__price_serve(dml__price_run *run, int port_index)
{
    dml__price_port *port = &run->ports[port_index];
    if (port->current >= 0 || port->head < 0) return;
    dml__price_step *send = &run->steps[port->head];
    const double bytes = dml__price_segment_bytes(run, send);
    const double start = send->ready > run->now ? send->ready : run->now;
    port->current = port->head;
    port->head = send->queued_behind;
    send->queued = false;
    send->issued++;
    dml__price_plan(run, start + bytes / dml__price_link_of(run, send)->bandwidth, DML__PRICE_SENT,
                    port_index);
    dml__price_plan(run, dml__price_transfer(run, send, start, bytes), DML__PRICE_CAME, send->partner);
    dml__price_try(run, port->current); /* its next segment stands behind those of other messages */
}

static void dml__price_try_send(dml__price_run *run, int index)
{
    dml__price_step *send = &run->steps[index];
    if (send->queued || send->issued == send->total || send->issued >= send->came ||
        send->issued >= dml__price_allowed(run, send))
        return;
    const int port_index = dml__price_port_of(run, send);
    dml__price_port *port = &run->ports[port_index];
    send->ready = dml__price_compute(run, send, dml__price_link_of(run, send)->overhead);
    send->queued = true;
    send->queued_behind = -1;
    if (port->head >= 0)
        run->steps[port->tail].queued_behind = index;
    else
        port->head = index;
    port->tail = index;
    dml__price_serve(run, port_index);
}

/* ---- receives, copies and sums ---- */

/* Grants the sender of a large message what it may send. */
static void dml__price_grant(dml__price_run *run, dml__price_step *receive, uint32_t allowed)
{
    if (dml__price_is_eager(run, receive) || receive->granted >= allowed) return;
    const double time = run->now + dml__price_latency(run, receive);
    if (receive->granted == 0 && allowed == receive->total) {
        receive->granted = allowed;
        dml__price_plan(run, time, DML__PRICE_GRANT_ALL, receive->partner);
    }
    while (receive->granted < allowed) {
        receive->granted++;
        dml__price_plan(run, time, DML__PRICE_GRANT, receive->partner);
    }
}

static void dml__price_try_receive(dml__price_run *run, int index)
{
    dml__price_step *receive = &run->steps[index];
    const uint32_t allowed = dml__price_allowed(run, receive);
    dml__price_grant(run, receive, allowed);
    while (receive->issued < receive->came && receive->issued < allowed) {
        double seconds = dml__price_link_of(run, receive)->overhead;
        if (receive->step.kind == DML__STEP_RECEIVE_REDUCE)
            seconds += dml__price_segment_bytes(run, receive) / run->model->reduce;
        receive->issued++;
        dml__price_plan(run, dml__price_compute(run, receive, seconds), DML__PRICE_DONE, index);
    }
}

/* One segment at a time, so that the processor gets to what comes in meanwhile. */
static void dml__price_try_local(dml__price_run *run, int index)
{
    dml__price_step *step = &run->steps[index];
    if (step->issued > step->done || step->issued == step->total ||
        step->issued >= dml__price_allowed(run, step))
        return;
    const double rate = step->step.kind == DML__STEP_COPY ? run->model->copy : run->model->reduce;
    const double seconds = dml__price_segment_bytes(run, step) / rate;
    step->issued++;
    dml__price_plan(run, dml__price_compute(run, step, seconds), DML__PRICE_DONE, index);
}

/* Starts as much of a step as can be. */
static void dml__price_try(dml__price_run *run, int index)
{
    switch (run->steps[index].step.kind) {
    case DML__STEP_SEND: dml__price_try_send(run, index); break;
    case DML__STEP_RECEIVE:
    case DML__STEP_RECEIVE_REDUCE: dml__price_try_receive(run, index); break;
    default: dml__price_try_local(run, index);
    }
}

/* ---- the run ---- */

/* The step has ended; whoever waits for all before it may start if it was the last of them. */
static void dml__price_end(dml__price_run *run, int index)
{
    dml__price_rank *rank = &run->ranks[run->steps[index].rank];
    const int before = rank->open, past = rank->first + rank->steps;
    rank->end = run->now;
    while (rank->open < past && run->steps[rank->open].done == run->steps[rank->open].total) rank->open++;
    if (rank->open > before && rank->open < past) dml__price_try(run, rank->open);
}

/* A segment of the step is out of the way. */
static void dml__price_advance(dml__price_run *run, int index)
{
    dml__price_step *step = &run->steps[index];
    step->done++;
    if (step->done == step->total) dml__price_end(run, index);
    for (int32_t at = step->followers; at >= 0;) {
        const int follower = at / DML__STEP_AFTER;
        at = run->steps[follower].next[at % DML__STEP_AFTER];
        dml__price_try(run, follower);
    }
}

static void dml__price_happen(dml__price_run *run, const dml__price_event *event)
{
    const int index = (int)(event->what >> DML__PRICE_KIND_BITS);
    switch (event->what & ((1 << DML__PRICE_KIND_BITS) - 1)) {
    case DML__PRICE_SENT: {
        const int send = run->ports[index].current;
        run->ports[index].current = -1;
        dml__price_serve(run, index); /* before what follows the send may stand in line */
        dml__price_advance(run, send);
        break;
    }
    case DML__PRICE_CAME:
        run->steps[index].came++;
        dml__price_try(run, index);
        break;
    case DML__PRICE_DONE:
        dml__price_advance(run, index);
        dml__price_try(run, index);
        break;
    case DML__PRICE_GRANT_ALL: run->steps[index].came = run->steps[index].total - 1; /* fall through */
    default: run->steps[index].came++; dml__price_try(run, index);
    }
}

static uint32_t dml__price_total(const dml__price_step *step, uint64_t segment)
{
    return step->step.count == 0 ? 1 : (uint32_t)((step->step.count + segment - 1) / segment);
}

DML__LOCAL uint64_t dml__price_segments(const dml__price_run *run, uint64_t segment)
{
    uint64_t total = 0;
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].step.kind == DML__STEP_SEND) total += dml__price_total(&run->steps[i], segment);
    return total;
}

static void dml__price_begin(dml__price_run *run)
{
    for (int i = 0; i < run->step_count; i++) {
        dml__price_step *step = &run->steps[i];
        step->total = dml__price_total(step, run->segment);
        step->issued = step->done = step->granted = step->came = 0;
        step->queued = false;
        step->followers = -1;
        if (step->step.kind == DML__STEP_SEND && dml__price_is_eager(run, step)) step->came = step->total;
    }
    for (int i = run->step_count - 1; i >= 0; i--) /* so that a list is in the order of the steps */
        for (int k = 0; k < DML__STEP_AFTER; k++)
            if (run->steps[i].step.after[k] >= 0) {
                dml__price_step *earlier = &run->steps[run->steps[i].step.after[k]];
                run->steps[i].next[k] = earlier->followers;
                earlier->followers = i * DML__STEP_AFTER + k;
            }
    for (int i = 0; i < run->rank_count; i++) {
        run->ranks[i].busy_until = run->ranks[i].end = 0;
        run->ranks[i].open = run->ranks[i].first;
    }
    for (int i = 0; i < run->rank_count + run->host_count; i++) {
        run->ports[i].in_until = 0;
        run->ports[i].current = run->ports[i].head = run->ports[i].tail = -1;
    }
    for (int i = 0; i < 2 * run->rack_count; i++) run->uplinks[i] = 0;
    run->heap_count = 0;
    run->events = 0;
    run->order = 0;
    run->now = 0;
}

DML__LOCAL int dml__price_run_steps(dml__price_run *run)
{
    dml__price_begin(run);
    for (int i = 0; i < run->step_count; i++) dml__price_try(run, i);
    while (run->heap_count > 0) {
        const dml__price_event event = dml__price_next(run);
        run->now = event.time;
        run->events++;
        dml__price_happen(run, &event);
    }
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].done < run->steps[i].total) return i;
    return -1;
}

#endif

/* ---- comm/choice_table.c ---- */

#ifndef DML_COMM_CHOICE_TABLE_C
#define DML_COMM_CHOICE_TABLE_C

/* ---- comm/choice_table.h ---- */

/* choice_table.h: the cheapest algorithms, in a table. A model of the links prices every algorithm; the table
   is what rank 0 sends to all. */
#ifndef DML_COMM_CHOICE_TABLE_H
#define DML_COMM_CHOICE_TABLE_H

enum {
    DML__CHOICE_OPERATIONS = DML__CALL_BARRIER + 1,
    DML__CHOICE_SIZES = 36, /* the last: 2^35 bytes and more */
    DML__CHOICE_NONE = 255  /* no algorithm is known for the operation */
};

/* Indices of dml__algorithms(), for a call of at most 2^i bytes (of what dml__collective.count counts): the
   cheapest of all, and of those that take parts of different sizes. */
typedef struct dml__choice {
    uint8_t algorithm[2][DML__CHOICE_OPERATIONS][DML__CHOICE_SIZES];
} dml__choice;

/* The one for a call of so many bytes. */
DML__LOCAL uint8_t dml__choice_of(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes,
                                  bool equal_parts);

/* Writes the table for groups of `size` ranks. The algorithms are run at a few sizes (price.h) with root 0
   and the model's scratch, but for those that can't be best by what they send alone, and are taken to cost in
   between what lies on the straight line; of two that come within a hundredth the first in the list is taken.
   One that doesn't fit `work` (aligned for a double) is taken only where nothing else is. After `until`
   (dml_seconds) none is run any more: what is left is judged by what it sends alone. `rank_order`: of those
   that sum only the ones that do so in the order of the ranks. model->most_segments is not used. */
DML__LOCAL void dml__fill_choice(const dml__price_model *model, int size,
                                 const dml__algorithm_info *algorithms, int count, int most_steps,
                                 bool rank_order, double until, void *work, size_t work_bytes,
                                 dml__choice *choice);

/* Whether an operation adds, so that the order in which it does may show in the result. */
static inline bool dml__adds(dml__comm_operation operation)
{
    return operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE ||
           operation == DML__CALL_REDUCE_SCATTER;
}

/* Enough work for that, up to 4 MiB and what a rank's steps take. From about 64 ranks on only those
   algorithms fit whose ranks are alike or have few steps; to run the others would take seconds, too. */
DML__LOCAL size_t dml__choice_work_bytes(int size, int most_steps);

#endif

#include <math.h>
#include <string.h>

DML__LOCAL uint8_t dml__choice_of(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes,
                                  bool equal_parts)
{
    int i = 0;
    while (i < DML__CHOICE_SIZES - 1 && bytes > UINT64_C(1) << i) i++;
    return choice->algorithm[!equal_parts][operation][i];
}

/* Powers of two of bytes, of all ranks' data together, at which algorithms are run: closer where segments and
   grants set in. */
enum { DML__CHOICE_ANCHORS = 7, DML__CHOICE_MOST = 96 /* algorithms */ };
static const int dml__choice_anchors[DML__CHOICE_ANCHORS] = { 2, 9, 13, 16, 19, 22, 26 };

/* The one of a call, which may be about one rank's part of the data. */
static int dml__choice_anchor(dml__comm_operation operation, int size, int index)
{
    int power = dml__choice_anchors[index];
    if (!dml__is_elementwise(operation))
        for (int ranks = 2; ranks <= size; ranks *= 2) power--;
    return power > 2 + index ? power : 2 + index;
}

static dml__price_model dml__choice_model(const dml__price_model *model, int size)
{
    dml__price_model coarse = *model;
    coarse.most_segments = 128 * (uint64_t)size; /* of 256 KiB, all of a chain's at 32 MiB */
    return coarse;
}

DML__LOCAL size_t dml__choice_work_bytes(int size, int most_steps)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model = dml__choice_model(&model, size);
    const size_t bytes = dml__price_work_bytes(&model, size, most_steps);
    const size_t most = ((size_t)4 << 20) + (size_t)most_steps * 2 * sizeof(dml__step) + (size_t)size * 64;
    return bytes < most ? bytes : most;
}

/* The seconds of a call of 2^power bytes; infinite where it can't be priced. */
static double dml__choice_price(const dml__price_model *model, int size, const dml__algorithm_info *algorithm,
                                int power, int most_steps, void *work, size_t work_bytes)
{
    dml__collective call;
    dml__price price;
    memset(&call, 0, sizeof call);
    memset(&price, 0, sizeof price);
    call.operation = algorithm->operation;
    call.size = size;
    call.count = (UINT64_C(1) << power) / sizeof(float);
    const dml_status status =
        dml__price_collective(model, algorithm, &call, sizeof(float), most_steps, work, work_bytes, &price);
    return status == DML_OK ? price.seconds : INFINITY;
}

/* No call takes less: what the rank that sends most sends, and its processor's share in that. */
static double dml__choice_bound(const dml__price_model *model, int size, const dml__algorithm_info *algorithm,
                                int power)
{
    const dml__price_link *inside = &model->inside, *between = &model->between;
    const double bandwidth = inside->bandwidth > between->bandwidth ? inside->bandwidth : between->bandwidth;
    const double overhead = inside->overhead < between->overhead ? inside->overhead : between->overhead;
    if (!algorithm->elements_sent || !algorithm->messages_sent) return 0;
    /* (The figures are of counts that are divisible.) */
    const uint64_t unit = 2 * (uint64_t)size, count = (UINT64_C(1) << power) / sizeof(float) / unit * unit;
    const double bytes = (double)(algorithm->elements_sent(size, count) * sizeof(float)) / bandwidth;
    const double messages = count == 0 ? 0 : (double)algorithm->messages_sent(size) * overhead;
    return bytes > messages ? bytes : messages;
}

/* What is priced, and how. */
typedef struct dml__choice_run {
    dml__price_model model;
    int size, count, most_steps;
    const dml__algorithm_info *algorithms; /* (count) */
    bool rank_order;
    double until;
    void *work;
    size_t work_bytes;
} dml__choice_run;

static bool dml__choice_takes(const dml__choice_run *run, int algorithm, dml__comm_operation operation)
{
    const dml__algorithm_info *info = &run->algorithms[algorithm];
    return info->operation == operation && (info->rank_order || !run->rank_order || !dml__adds(operation));
}

/* One after the other, as far as is known. */
static double dml__choice_messages(const dml__choice_run *run, int algorithm)
{
    const dml__algorithm_info *info = &run->algorithms[algorithm];
    return info->messages_sent ? (double)info->messages_sent(run->size) : 0;
}

/* The prices of an operation's algorithms at one anchor, in the order of their bounds: one whose bound is
   above the best that was found isn't run, and its bound stands for its price. */
static void dml__choice_prices(const dml__choice_run *run, dml__comm_operation operation, int anchor,
                               double (*seconds)[DML__CHOICE_ANCHORS])
{
    const int power = dml__choice_anchor(operation, run->size, anchor);
    double best[2] = { INFINITY, INFINITY }; /* of all; of those that take unequal parts */
    for (int a = 0; a < run->count; a++) seconds[a][anchor] = -1;
    for (;;) {
        int next = -1;
        double least = INFINITY;
        for (int a = 0; a < run->count; a++) {
            if (!dml__choice_takes(run, a, operation) || seconds[a][anchor] >= 0) continue;
            const double bound = dml__choice_bound(&run->model, run->size, &run->algorithms[a], power);
            if (next < 0 || bound < least) next = a, least = bound;
        }
        if (next < 0) return;
        const bool equal = run->algorithms[next].equal_parts;
        double *price = &seconds[next][anchor];
        if (least > (equal ? best[0] : best[1]))
            *price = least;
        else if (anchor > 0 && seconds[next][anchor - 1] == INFINITY)
            *price = INFINITY;
        else if (dml_seconds() > run->until)
            *price = least + run->model.between.latency * dml__choice_messages(run, next);
        else
            *price = dml__choice_price(&run->model, run->size, &run->algorithms[next], power, run->most_steps,
                                       run->work, run->work_bytes);
        if (*price < best[0]) best[0] = *price;
        if (!equal && *price < best[1]) best[1] = *price;
    }
}

static double dml__choice_bytes(int power)
{
    return (double)(UINT64_C(1) << power);
}

/* On the line through the two of the anchors around 2^power, or through the last two. */
static double dml__choice_between(const double seconds[DML__CHOICE_ANCHORS], dml__comm_operation operation,
                                  int size, int power)
{
    int i = 1;
    while (i < DML__CHOICE_ANCHORS - 1 && power > dml__choice_anchor(operation, size, i)) i++;
    const double low = dml__choice_bytes(dml__choice_anchor(operation, size, i - 1));
    const double high = dml__choice_bytes(dml__choice_anchor(operation, size, i));
    const double part = (dml__choice_bytes(power) - low) / (high - low);
    if (!(seconds[i] < INFINITY && seconds[i - 1] < INFINITY)) return INFINITY;
    return part <= 0 ? seconds[i - 1] : seconds[i - 1] + part * (seconds[i] - seconds[i - 1]);
}

static void dml__choose_for(const dml__choice_run *run, dml__comm_operation operation,
                            double (*seconds)[DML__CHOICE_ANCHORS], dml__choice *choice)
{
    for (int i = 0; i < DML__CHOICE_SIZES; i++)
        for (int unequal = 0; unequal < 2; unequal++) {
            uint8_t *chosen = &choice->algorithm[unequal][operation][i];
            double best = INFINITY;
            for (int a = 0; a < run->count; a++) {
                if (!dml__choice_takes(run, a, operation)) continue;
                if (unequal && run->algorithms[a].equal_parts) continue;
                const double price = dml__choice_between(seconds[a], operation, run->size, i);
                if (*chosen != DML__CHOICE_NONE && !(price < 0.99 * best)) continue;
                *chosen = (uint8_t)a;
                best = price;
            }
        }
}

DML__LOCAL void dml__fill_choice(const dml__price_model *model, int size,
                                 const dml__algorithm_info *algorithms, int count, int most_steps,
                                 bool rank_order, double until, void *work, size_t work_bytes,
                                 dml__choice *choice)
{
    double seconds[DML__CHOICE_MOST][DML__CHOICE_ANCHORS];
    dml__choice_run run;
    run.model = dml__choice_model(model, size);
    run.size = size;
    run.count = count < DML__CHOICE_MOST ? count : (int)DML__CHOICE_MOST;
    run.most_steps = most_steps;
    run.algorithms = algorithms;
    run.rank_order = rank_order;
    run.until = until;
    run.work = work;
    run.work_bytes = work_bytes;
    memset(choice, DML__CHOICE_NONE, sizeof *choice);
    for (int i = 0; i < DML__CHOICE_OPERATIONS; i++) {
        const dml__comm_operation operation = (dml__comm_operation)i;
        for (int anchor = 0; anchor < DML__CHOICE_ANCHORS; anchor++)
            dml__choice_prices(&run, operation, anchor, seconds);
        dml__choose_for(&run, operation, seconds, choice);
    }
}

#endif

/* ---- comm/measure.c ---- */

#ifndef DML_COMM_MEASURE_C
#define DML_COMM_MEASURE_C

/* ---- comm/measure.h ---- */

/* measure.h: the model that algorithms are priced with, made of what really lies between the ranks. */
#ifndef DML_COMM_MEASURE_H
#define DML_COMM_MEASURE_H

/* Numbers of a link as they are measured: one way, with what the processors at both ends do. */
DML__LOCAL dml__price_link dml__link_of(double latency, double bandwidth);

/* Where nothing is measured: ranks that share memory, and hosts with a network of 10 Gbit/s. */
DML__LOCAL dml__price_model dml__usual_model(void);

/* A collective of the world, when it opens: rank 0 times a few short messages to a rank of its own host and
   to one of another, as far as there are such, and how fast it adds and copies, and tells all; the same model
   and number of hosts at every rank, in comm->model and comm->hosts. Takes 20 ms at most, and a fiftieth of
   the timeout. Nothing is measured where the numbers or an algorithm were given. */
DML__LOCAL dml_status dml__measure_model(dml_comm *comm);

/* Latency and bandwidth from `count` messages of bytes[i] that took seconds[i] one way (half a ping-pong),
   several of each size if possible: the line of the least sum of absolute relative errors, which a few
   samples that something else has delayed don't move, found by least squares that are weighted anew until
   they agree. The latency includes what the processors at both ends do. False: there are not two sizes, or
   the times are not positive. */
DML__LOCAL bool dml__fit_link(const double *bytes, const double *seconds, int count, double *latency,
                              double *bandwidth);

#endif

#include <string.h>

/* ---- comm/job.h ---- */

/* job.h: what a communicator is made of. A job is one rank's connections with all others and everything that
   moves over them; a communicator is a group of its ranks with an id. Who touches a job holds its turn (see
   dml__enter_job). */
#ifndef DML_COMM_JOB_H
#define DML_COMM_JOB_H

/* ---- comm/engine.h ---- */

/* engine.h: who carries the operations out. Ours runs schedules over a transport (operation.c, link.c);
   another takes its place behind the same calls, so that a job that outgrows a machine runs on what its
   cluster has.

   What stays ours whoever the engine is: checking a call, requests and their order, taking turns, deadlines,
   and failing together, for which an engine brings a transport of which only the control channel is used. So
   a rank that is missing has a name there too.

   A second one for GPUs (NCCL) would be opened over a job that has met already, which spreads its id by a
   broadcast, and differ in three places only: `call.in` and `call.out` are device pointers, told from others
   when the call is made; `start` enqueues on a stream of its own behind an event that the caller's stream has
   recorded, and `progress` asks the event behind the operation whether it has passed. What it doesn't have
   (prod of bf16, functions of the user's, receives from any rank) it refuses in `start` with a sentence. */
#ifndef DML_COMM_ENGINE_H
#define DML_COMM_ENGINE_H

struct dml__comm_job;
struct dml__comm_settings;

/* All but `open` with the turn. */
typedef struct dml__engine {
    const char *name;
    /* Says in the settings who this rank is. What it returns becomes job->transport, whose `wait` may return
       before anything has come, and whose `close` ends the engine. NULL: the job has failed. */
    dml__transport *(*open)(struct dml__comm_job *job, struct dml__comm_settings *settings);
    /* Begins request->call; dml__end_request ends it, here or in `progress`. */
    void (*start)(struct dml__comm_job *job, dml_request *request);
    void (*progress)(struct dml__comm_job *job); /* whatever needs no waiting */
    /* Takes back a receive; false: its message has come. */
    bool (*cancel)(struct dml__comm_job *job, dml_request *request);
    /* `comm` NULL: of the world's communicator. `from` and `tag` may be any. */
    bool (*probe)(struct dml__comm_job *job, dml_comm *comm, int from, int tag, dml_message *message);
    /* A collective of all of `comm`. `group` is what this rank's part became, or NULL. False: the job failed.
     */
    bool (*split)(struct dml__comm_job *job, dml_comm *comm, dml_comm *group, int color, int key);
    void (*leave)(struct dml__comm_job *job, dml_comm *comm); /* releases comm->beneath */
} dml__engine;

#ifdef DML_MPI
DML__LOCAL const dml__engine *dml__mpi_engine(void);
#endif

#endif

/* ---- comm/leaves.h ---- */

/* leaves.h: sums whose bits don't depend on how many ranks there are, nor on who has what.

   What is summed are `leaves` arrays (gradients of parts of a batch, say), numbered from 0, each of which one
   rank has. They are the leaves of one binary tree, whoever has them: neighbours are added in pairs, the sums
   in pairs again, and the last one, where it has no neighbour, goes up as it is. So the node at height h that
   begins at leaf b is the sum of leaves [b, b + 2^h), as far as there are any. For 5 leaves:

       ((0 + 1) + (2 + 3)) + 4

   The sum of a node takes the place of one of its leaves, at the rank that has that: where two ranks meet,
   one sends, and the other adds. Which one, each chunk of the elements has by a bit of its number, another
   one at each height, so that both send half. In the end each chunk's sum goes from where it is to all ranks.
   For 4 leaves at 4 ranks, and 4 chunks (0: where the sum of chunk 0 is):

       height 0                           height 1                     then
       0 -> 1: 1 3    1 -> 0: 0 2         0 -> 2: 2    2 -> 0: 0       0 -> all: 0    1 -> all: 1
       2 -> 3: 1 3    3 -> 2: 0 2         1 -> 3: 3    3 -> 1: 1       2 -> all: 2    3 -> all: 3

   Nothing is needed beside the leaves' own arrays. Where each of m ranks has as many leaves in a row, both
   powers of two, it costs (log2(m) + 1) a + 2 (m - 1) / m n b, and what halving and doubling adds. Sources:
   the pairwise sum, Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14 (1993);
   recursive halving, Rabenseifner, "Optimization of collective reduction operations" (2004). */
#ifndef DML_COMM_LEAVES_H
#define DML_COMM_LEAVES_H

/* A call, seen from one rank, and how far its steps have been written. */
typedef struct dml__leaf_sums {
    int leaves, rank, size;
    int chunks; /* a power of two */
    uint64_t count;
    size_t element;      /* bytes */
    void *const *arrays; /* (leaves) of (count), NULL where another rank has it; undefined afterwards */
    void *out;           /* (count), which may be one of them */
    char *base;          /* what all of them lie behind: space IN */
    int64_t *owners;     /* (leaves) */
    int height, chunk;   /* of the node that comes next; of the sum that goes to all next */
    uint64_t begin;
} dml__leaf_sums;

/* owners[i] as this rank knows it, and what all ranks know together: a dml_reduce_function of i64. */
DML__LOCAL void dml__say_owners(void *const *arrays, int leaves, int rank, int64_t *owners);
DML__LOCAL void dml__join_owners(void *into, const void *from, size_t count, dml_dtype dtype, void *user);

/* The ranks that say that they have a leaf, the first and the last of them; 0: nobody does. */
DML__LOCAL int dml__claims_of(int64_t owner, int *first, int *last);

/* All owners are known: what is set is everything but base, height, begin and chunk. */
DML__LOCAL void dml__begin_leaf_sums(dml__leaf_sums *sums);

/* Steps of this rank for as many nodes as there is room for at every rank. Of a mean, what goes to all is
   completed before. */
DML__LOCAL void dml__write_leaf_steps(dml__leaf_sums *sums, dml__schedule *schedule);
DML__LOCAL bool dml__leaf_sums_end(const dml__leaf_sums *sums);

#endif

/* ---- comm/reduce_op.h ---- */

/* reduce_op.h: what a collective does to the elements of two ranks. */
#ifndef DML_COMM_REDUCE_OP_H
#define DML_COMM_REDUCE_OP_H

typedef struct dml__reduction {
    dml_dtype dtype;
    dml_reduce_op op;
    dml_isa isa;                  /* to be used: dml_cpu_isa's word when the communicator was opened */
    dml_reduce_function function; /* the user's, which takes op's place; NULL: op */
    void *user;
} dml__reduction;

/* out[i] = op(a[i], b[i]); the mean only sums, until dml__finish_mean divides. `out` is a or b, or overlaps
   neither. All need the alignment of their dtype only. By the calling thread; each instruction set gives the
   same bits, but for which of two NaNs a sum or product of floats is. The minimum and the maximum are exact
   in any order, bit by bit: -0 lies below 0, and of NaNs one and the same wins. */
DML__LOCAL void dml__reduce_elements(const dml__reduction *how, void *out, const void *a, const void *b,
                                     size_t count);

/* data[i] = data[i] / ranks: of floats to nearest, of 16-bit floats by way of f32, of integers towards 0. */
DML__LOCAL void dml__finish_mean(const dml__reduction *how, void *data, size_t count, int ranks);

#endif

/* ---- comm/settings.h ---- */

/* settings.h: the options of a communicator and the environment, checked. */
#ifndef DML_COMM_SETTINGS_H
#define DML_COMM_SETTINGS_H

/* What is kept of what a rank did (comm/trace.h). */
typedef struct dml__trace_settings {
    const char *path; /* to which ".RANK" is added; NULL: nothing is */
    int events;
    bool steps;
} dml__trace_settings;

typedef struct dml__comm_settings {
    dml__net_settings net; /* segment_bytes: a multiple of 8 */
    int max_requests;
    const char *algorithm; /* NULL: the cheapest */
    bool only_tcp, deterministic;
    double latency, bandwidth; /* of a link: seconds, bytes/s; 0: to be measured */
    dml__trace_settings trace;
    bool launched;                    /* rank and world are what a launcher said */
    const struct dml__engine *engine; /* NULL: ours */
} dml__comm_settings;

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error);

#endif

/* ---- a step, as it is being run ---- */

typedef struct dml__step_state {
    uint64_t done; /* elements that are past */
    int32_t next;  /* the next step of the same flow, or the next local step; -1: none */
    bool past;     /* all of it is */
} dml__step_state;

/* The messages of one operation in one direction between this rank and another, in their order. */
typedef struct dml__flow {
    dml_request *request;
    struct dml__flow *next; /* of the same link and direction: in the order in which they are served */
    int32_t step;           /* the one whose turn it is; -1: all are past */
    int32_t last, granting; /* the last step; receiving: the first that isn't granted in full; -1: all are */
    uint32_t message;       /* the number of `step` */
    uint32_t granted_message; /* messages before it are granted, and it up to granted_bytes */
    uint32_t told_message;    /* what the sender was told of that */
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
    const size_t *counts, *offsets; /* (size), or NULL; read when it starts */
    bool parts_missing;             /* counts that had to be given weren't */
    void *const *leaves;            /* (root), and their owners (root), of all_reduce_leaves */
    int64_t *owners;
    int tag;
    int priority;
    dml__reduction reduction;
} dml__comm_call;

struct dml_request {
    dml__comm_call call;
    dml_comm *comm;
    uint64_t sequence;
    int algorithm; /* index in dml__algorithms; -1: a send or receive */
    dml__request_state state;
    dml_status status;
    dml_message message; /* of a receive: what came */
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
    dml__schedule schedule;  /* of the round */
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

/* Of a payload that is copied behind its header, since two pieces take longer. */
#define DML__SHORT_BYTES 448

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
    size_t store_used, storing; /* bytes; of these whole, and of one behind them that is coming in */
    uint64_t consumed, told; /* bytes of eager frames and announcements: taken, and of these the peer knows */
    /* Going out: the frame that is being sent. */
    uint8_t out_header[DML__FRAME_BYTES + DML__SHORT_BYTES]; /* a short payload goes along with it */
    char *out_payload;                                       /* NULL: none, or short */
    size_t out_begin, out_bytes; /* the header and what goes along; the payload behind */
    size_t out_done, out_total;  /* of both and the padding together */
    size_t out_counted;          /* bytes of payload, wherever they are */
    dml__flow *out_flow;         /* whose step moves on when it has gone; NULL: nobody's */
    uint64_t out_elements;
    uint8_t
        *swapped; /* (DML__SWAP_BYTES): a payload as it goes over the wire; NULL where memory has that form */
    uint64_t credited, charged; /* eager bytes: taken by the peer; sent */
    uint64_t messages;          /* sends so far: their sequence */
    dml_comm_traffic *traffic;  /* of the job's, what goes over this link is counted in */
    bool gone;
} dml__link;

/* What this rank knows of another from its control messages. */
typedef struct dml__peer {
    uint8_t control[DML__CONTROL_BYTES]; /* the message that is coming in */
    size_t control_bytes;                /* of it that have come */
    bool gone;                           /* its control connection has ended */
    bool goodbye, farewell;              /* it said so before, see failure.c */
    bool answered;                       /* since this rank asked last, what it waits for: */
    int waits_for;                       /* -1: nobody */
    double moved_at;                     /* when something moved there last */
    uint64_t waits_sequence;
    uint32_t waits_communicator;
    dml__signature waits_in;
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
    size_t *offsets;   /* (size): of parts that lie one behind the other */
    uint64_t sequence; /* collectives started so far */
    int priority;
    dml_reduce_function functions[DML__MOST_FUNCTIONS];
    void *function_users[DML__MOST_FUNCTIONS];
    int function_count;
    dml__choice choice;     /* what its calls get, the same at all ranks */
    dml__price_model model; /* that it was made of, the same at all ranks of the world */
    int hosts;
    bool measured;                        /* the model's links were */
    void *beneath;                        /* the engine's own */
    dml__signature past[DML__REMEMBERED]; /* collective i at i % DML__REMEMBERED */
};

typedef struct dml__comm_job {
    dml__memory memory;
    dml__logger logger;
    long process;         /* that opened it: a fork's child has a copy, of which it may only let go */
    const int *mark;      /* dml__mark_process; NULL: only the number is known */
    char fork_error[192]; /* what the child is told */
    int rank, world;
    double timeout, grace; /* seconds; the second is how long the search for a culprit may take */
    int strangers;
    const dml__engine *engine;    /* NULL: ours */
    bool alone;                   /* the engine may be called by one thread only */
    dml__transport *transport;    /* NULL in a world of one */
    struct dml__local_job *local; /* of ranks of one process: what they share; NULL: others */
    dml_comm *comms;
    uint32_t next_id;
    char algorithm[256];       /* names that were asked for; "": none */
    bool deterministic;        /* sums only in the order of the ranks */
    bool measures;             /* rank 0 measures the links */
    double latency, bandwidth; /* of a link, as they were given: seconds, bytes/s; 0: they weren't */
    dml_isa isa;
    dml__peer *peers; /* (world) */
    dml__link *links; /* (world) */
    uint8_t *wishes;  /* (world): for dml__transport_calls.wait */
    char *stage;      /* (DML__STAGE_BYTES): what is about to be reduced */
    size_t segment_bytes, store_bytes, eager_bytes, scratch_bytes;
    size_t round_bytes;         /* of a round of an all-reduce of two; 0: all. The same on all ranks */
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
    bool started;                    /* something, since then */
    double moved_at;                 /* when it last did, as far as anybody looked */
    dml_comm_stats stats;
    struct dml__trace *trace; /* NULL: none is kept */
    double heard_at;          /* when control was read last */
    double clock;             /* what it said when a call looked at it last */
    double answer_until;      /* of the search for a culprit; 0: none is on */
    bool aborted;             /* the others know that this one has failed */
    bool outlives;            /* others' deaths end only the sends and receives with them */
    dml__meeting *meeting;    /* while the ranks meet */
    bool look_around;         /* something came, nobody knows from whom */
    double spin;              /* seconds of looking again before a wait sleeps */
    bool yields;              /* meanwhile others may want the processor */

    /* Taking turns. */
    dml__mutex gate, mutex; /* asked for in that order */
    dml__cond changed;
    dml__error error; /* under the mutex; never changes once it is set */
    bool sleeping;    /* whoever makes progress is in the transport's wait, without the mutex */
    int waiting;      /* threads in a call that makes progress: the helper stays out */
    bool stop, helper_started;
    dml__thread helper;
} dml__comm_job;

#define DML__STAGE_BYTES 65536
#define DML__ROUND_BYTES ((size_t)2 << 20)
#define DML__MOST_ROUNDS 32768 /* about: messages are numbered from round << 16 on */
#define DML__SWAP_BYTES 4096

/* ---- calls and open (comm.c, open.c) ---- */

/* Whether this is a fork's child, with its parent's job. */
DML__LOCAL bool dml__is_copy(const dml__comm_job *job);

/* dml_comm_open over other socket calls than the system's. */
DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets);

/* Says dml_comm_describe's lines to the log, if there is one (describe.c). */
DML__LOCAL void dml__log_description(const dml_comm *comm);

/* ---- turns (turn.c) ---- */

/* The helper thread, if there is none yet. */
DML__LOCAL dml_status dml__start_helper(dml__comm_job *job);

/* With the turn, which is given up meanwhile. */
DML__LOCAL void dml__stop_helper(dml__comm_job *job);

DML__LOCAL void dml__enter_job(dml__comm_job *job);
DML__LOCAL void dml__leave_job(dml__comm_job *job);

/* What has moved or was started since this was called last has by now: each look at the clock would cost as
   much as a step. With the turn. */
DML__LOCAL void dml__note_time(dml__comm_job *job, double now);

/* Sees to everything that can be done without waiting. True if something moved. With the turn. */
DML__LOCAL bool dml__make_progress(dml__comm_job *job);

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

static inline bool dml__is_pair(dml__comm_operation operation)
{
    return operation == DML__CALL_SEND || operation == DML__CALL_RECEIVE;
}

/* Rounds are counted modulo 2^16 in frames. Nobody is half of that ahead, since what is early is bounded. */
static inline bool dml__is_later_round(const dml_request *request, const dml__frame *frame)
{
    const uint16_t ahead = (uint16_t)((frame->message >> 16) - request->round);
    return ahead > 0 && ahead < 0x8000;
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

/* One step, and one flow: a send, or a receive that has met its message. */
DML__LOCAL void dml__begin_pair(dml__comm_job *job, dml_request *request, int rank, uint64_t sequence,
                                uint64_t count);

DML__LOCAL void dml__end_request(dml__comm_job *job, dml_request *request, dml_status status);
DML__LOCAL void dml__free_request(dml__comm_job *job, dml_request *request);

/* ---- pairs (pair.c: sends and receives) ---- */

/* The rank in the group of a rank in the world; -1: it isn't one. */
DML__LOCAL int dml__group_rank(const dml_comm *comm, int world_rank);

/* A message has come, or been announced: the first receive that takes it, or NULL. */
DML__LOCAL dml_request *dml__match_message(dml__comm_job *job, int rank, const dml__frame *frame);

/* Whether a message is what a receive of this communicator, rank of the group and tag asks for. */
DML__LOCAL bool dml__message_fits(const dml_comm *comm, int from, int tag, int rank, const dml__frame *frame);

/* The receive gets this message; false: that was an error. */
DML__LOCAL bool dml__take_message(dml__comm_job *job, dml_request *request, int rank,
                                  const dml__frame *frame);

/* ---- links (link.c) ---- */

/* As much as goes without waiting; what moved is noted in job->progress. */
DML__LOCAL dml_status dml__send_on(dml__comm_job *job, int rank);
DML__LOCAL dml_status dml__receive_on(dml__comm_job *job, int rank);

/* Whether something may come from that rank that this one waits for. */
DML__LOCAL bool dml__link_is_awaited(const dml__comm_job *job, int rank);

/* DML__WISH_... Whatever comes is taken, also for calls that are still to come: it may show that two ranks do
   different things. */
DML__LOCAL uint8_t dml__link_wishes(const dml__comm_job *job, int rank);

/* The flow that a frame belongs to, or NULL. */
DML__LOCAL dml__flow *dml__find_flow(dml__flow *list, const dml__frame *frame);

/* Compares what a frame says with what this rank does; DML_OK or the error that ends the job. */
DML__LOCAL dml_status dml__check_frame(dml__comm_job *job, int rank, const dml_request *request,
                                       const dml__frame *frame);

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

/* The first message that is kept for nobody yet, of any (comm NULL) or one communicator. */
DML__LOCAL bool dml__find_stored(const dml__comm_job *job, const dml_comm *comm, int from, int tag, int *rank,
                                 dml__frame *frame);

/* ---- failing together (failure.c) ---- */

/* Records the error, if it is the first, and tells every rank that `culprit` has ended the job. The sentence
   is in the third person ("rank 2 of 4 died"), since every rank will show it. Returns the status that stuck.
 */
DML__LOCAL dml_status dml__job_fail(dml__comm_job *job, int culprit, dml_status status, const char *format,
                                    ...) DML__PRINTF(4, 5);

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

/* Tells every rank that this one closes in good order; `last`: that it heard so from all. */
DML__LOCAL void dml__say_goodbye(dml__comm_job *job, bool last);

/* The rank (in the world) that an operation waits for, or -1. */
DML__LOCAL int dml__waits_for(dml_request *request);

#endif

/* ---- models ---- */

DML__LOCAL dml__price_link dml__link_of(double latency, double bandwidth)
{
    dml__price_link link;
    link.overhead = latency / 4;
    link.latency = latency / 2;
    link.bandwidth = bandwidth;
    return link;
}

DML__LOCAL dml__price_model dml__usual_model(void)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model.inside = dml__link_of(2e-6, 4e9);
    model.between = dml__link_of(25e-6, 1.25e9);
    model.reduce = 5e9;
    model.copy = 8e9;
    return model;
}

/* ---- the links ---- */

/* One weighted least squares of latency + bytes * gap to seconds, both by seconds. False: one of the two
   can't be told from the samples. */
static bool dml__fit_weighted(const double *bytes, const double *seconds, int count, double unit,
                              const double line[2], double result[2])
{
    double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
    for (int i = 0; i < count; i++) {
        const double a = 1 / seconds[i], b = bytes[i] / unit / seconds[i];
        const double above = line[0] * a + line[1] * b - 1, error = above < 0 ? -above : above;
        const double weight = line[0] + line[1] > 0 ? 1 / (error > 1e-4 ? error : 1e-4) : 1;
        aa += weight * a * a, ab += weight * a * b, bb += weight * b * b;
        a1 += weight * a, b1 += weight * b;
    }
    const double determinant = aa * bb - ab * ab;
    if (!(determinant > 1e-12 * aa * bb)) return false;
    result[0] = (a1 * bb - b1 * ab) / determinant;
    result[1] = (b1 * aa - a1 * ab) / determinant;
    if (result[0] < 0) result[0] = 0, result[1] = b1 / bb;
    if (result[1] < 0) result[0] = a1 / aa, result[1] = 0;
    return true;
}

DML__LOCAL bool dml__fit_link(const double *bytes, const double *seconds, int count, double *latency,
                              double *bandwidth)
{
    double line[2] = { 0, 0 }, unit = 1; /* seconds, and seconds of `unit` bytes */
    for (int i = 0; i < count; i++) {
        if (!(seconds[i] > 0) || !(bytes[i] >= 0)) return false;
        if (bytes[i] > unit) unit = bytes[i];
    }
    for (int round = 0; round < 50; round++) {
        double next[2];
        if (!dml__fit_weighted(bytes, seconds, count, unit, line, next)) return false;
        line[0] = next[0], line[1] = next[1];
    }
    *latency = line[0];
    *bandwidth = line[1] > 0 ? unit / line[1] : 1e15; /* (too fast for these sizes to show) */
    return true;
}

/* ---- messages to and fro ---- */

enum { DML__PING_SIZES = 4, DML__PING_ROUNDS = 6, DML__PING_BYTES = 256 << 10 };
enum { DML__PING_TAG, DML__PING_OVER_TAG };

/* Elements are bytes; a segment of a few bytes would make of the largest thousands of frames. */
static size_t dml__ping_most(const dml__comm_job *job)
{
    return job->segment_bytes < DML__PING_BYTES / 4 ? job->segment_bytes * 4 : (size_t)DML__PING_BYTES;
}

static bool dml__same_host(const dml__comm_job *job, int rank)
{
    return rank == job->rank || strcmp(job->transport->calls->medium(job->transport, rank), "tcp") != 0;
}

/* One message there and back. */
static dml_status dml__ping(dml_comm *comm, int partner, uint8_t *data, size_t bytes, double *seconds)
{
    const double begin = dml_seconds();
    dml_status status = dml_comm_send(comm, data, bytes, DML_U8, partner, DML__PING_TAG);
    if (!status) status = dml_comm_receive(comm, data, bytes, DML_U8, partner, DML__PING_TAG, NULL);
    *seconds = (dml_seconds() - begin) / 2;
    return status;
}

/* Rank 0's part: fits the line as soon as the rounds, or the time, are over. A size that would take too long
   by what the one before it took is left out, and all above it. */
static dml_status dml__ping_rank(dml_comm *comm, int partner, uint8_t *data, double until,
                                 dml__price_link *link)
{
    double bytes[DML__PING_SIZES * DML__PING_ROUNDS], seconds[DML__PING_SIZES * DML__PING_ROUNDS];
    const size_t most = dml__ping_most(comm->job);
    int sizes = DML__PING_SIZES, count = 0;
    dml_status status = DML_OK;
    for (int round = 0; round <= DML__PING_ROUNDS && !status; round++) {
        double before = 0;
        if (round == 1) count = 0; /* the first round was to warm up, and to see how far it may go */
        for (int i = 0; i < sizes && !status; i++) {
            const size_t size = i ? most >> 3 * (DML__PING_SIZES - 1 - i) : 0;
            if (dml_seconds() + 2 * (round ? 1 : i < 2 ? 1 : 8) * before > until && i > 1) {
                sizes = i;
                break;
            }
            status = dml__ping(comm, partner, data, size, &seconds[count]);
            before = seconds[count];
            bytes[count++] = (double)size;
        }
        if (dml_seconds() > until) break;
    }
    double latency, bandwidth;
    if (!status) status = dml_comm_send(comm, NULL, 0, DML_U8, partner, DML__PING_OVER_TAG);
    if (!status && dml__fit_link(bytes, seconds, count, &latency, &bandwidth))
        *link = dml__link_of(latency > 1e-7 ? latency : 1e-7, bandwidth < 1e12 ? bandwidth : 1e12);
    return status;
}

/* The partner's: sends back what comes until there is nothing more. */
static dml_status dml__answer_pings(dml_comm *comm, uint8_t *data)
{
    for (;;) {
        dml_message message;
        dml_status status =
            dml_comm_receive(comm, data, dml__ping_most(comm->job), DML_U8, 0, DML_ANY_TAG, &message);
        if (status || message.tag == DML__PING_OVER_TAG) return status;
        status = dml_comm_send(comm, data, message.count, DML_U8, 0, DML__PING_TAG);
        if (status) return status;
    }
}

/* ---- sums and copies ---- */

static double dml__best_rate(double bytes, double seconds, double best)
{
    return seconds > 0 && bytes / seconds > best ? bytes / seconds : best;
}

/* The best of a few, of the size of a segment's quarter, as link.c does them. */
static void dml__measure_memory(const dml__comm_job *job, uint8_t *data, dml__price_model *model)
{
    const size_t half = DML__PING_BYTES / 2;
    dml__reduction sum;
    memset(&sum, 0, sizeof sum);
    sum.dtype = DML_F32;
    sum.op = DML_SUM;
    sum.isa = job->isa;
    memset(data, 0, 2 * half);
    double reduce = 1e6, copy = 1e6;
    for (int i = 0; i < 4; i++) {
        const double begin = dml_seconds();
        dml__reduce_elements(&sum, data, data, data + half, half / sizeof(float));
        const double middle = dml_seconds();
        memcpy(data + half, data, half);
        reduce = dml__best_rate((double)half, middle - begin, reduce);
        copy = dml__best_rate((double)half, dml_seconds() - middle, copy);
    }
    model->reduce = reduce;
    model->copy = copy;
}

/* ---- all together ---- */

/* What all must know before: who is measured with (0: nobody), and how many hosts there are, each rank
   counting for its part of one. */
typedef struct dml__survey {
    double hosts, inside, between;
} dml__survey;

static dml__survey dml__own_survey(const dml__comm_job *job)
{
    dml__survey survey;
    int here = 0;
    survey.inside = survey.between = 0;
    for (int rank = job->world - 1; rank >= 0; rank--) {
        const bool same = dml__same_host(job, rank);
        here += same;
        if (rank && job->rank == 0 && job->measures) *(same ? &survey.inside : &survey.between) = rank;
    }
    survey.hosts = 1.0 / here;
    return survey;
}

static dml_status dml__measure_with(dml_comm *comm, const dml__survey *survey)
{
    dml__comm_job *job = comm->job;
    const int inside = (int)survey->inside, between = (int)survey->between;
    if ((!inside && !between) || (job->rank && job->rank != inside && job->rank != between)) return DML_OK;
    uint8_t *data = (uint8_t *)dml__allocate(&job->memory, DML__PING_BYTES);
    if (!data) {
        dml__enter_job(job);
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      job->rank);
        dml__leave_job(job);
        return DML_ERROR_MEMORY;
    }
    dml_status status = DML_OK;
    const double share = job->timeout / 50, most = share < 0.02 ? share : 0.02, begin = dml_seconds();
    if (job->rank) status = dml__answer_pings(comm, data);
    if (!job->rank && inside)
        status = dml__ping_rank(comm, inside, data, begin + (between ? most / 2 : most), &comm->model.inside);
    if (!job->rank && between && !status)
        status = dml__ping_rank(comm, between, data, begin + most, &comm->model.between);
    if (!job->rank) dml__measure_memory(job, data, &comm->model);
    dml__release(&job->memory, data);
    return status;
}

/* Rank 0's numbers, as they are the same everywhere. */
static dml_status dml__tell_model(dml_comm *comm)
{
    dml__price_model *model = &comm->model;
    double *numbers[8], told[8];
    numbers[0] = &model->inside.latency;
    numbers[1] = &model->inside.bandwidth;
    numbers[2] = &model->inside.overhead;
    numbers[3] = &model->between.latency;
    numbers[4] = &model->between.bandwidth;
    numbers[5] = &model->between.overhead;
    numbers[6] = &model->reduce;
    numbers[7] = &model->copy;
    for (int i = 0; i < 8; i++) told[i] = *numbers[i];
    const dml_status status = dml_comm_broadcast(comm, told, 8, DML_F64, 0);
    for (int i = 0; i < 8; i++) *numbers[i] = told[i];
    return status;
}

DML__LOCAL dml_status dml__measure_model(dml_comm *comm)
{
    dml__survey survey = dml__own_survey(comm->job);
    dml_status status = dml_comm_all_reduce(comm, &survey, 3, DML_F64, DML_SUM);
    if (!status) status = dml__measure_with(comm, &survey);
    if (!status) status = dml__tell_model(comm);
    comm->measured = survey.inside > 0 || survey.between > 0;
    comm->hosts = (int)(survey.hosts + 0.5);
    if (comm->hosts < 1) comm->hosts = 1;
    comm->model.ranks_per_host = (comm->size + comm->hosts - 1) / comm->hosts;
    return status;
}

#endif

/* ---- comm/choice.c ---- */

#ifndef DML_COMM_CHOICE_C
#define DML_COMM_CHOICE_C

/* ---- comm/choice.h ---- */

/* choice.h: which algorithm a call gets; the same at every rank. */
#ifndef DML_COMM_CHOICE_H
#define DML_COMM_CHOICE_H

/* Index in dml__algorithms: the one that was asked for by name, else the cheapest (choice_table.h) that can
   run the call. In a deterministic job only one that sums in the order of the ranks. */
DML__LOCAL int dml__choose_algorithm(const dml_comm *comm, const dml__comm_call *call);

/* What a communicator has before anything is known: enough to find out. */
DML__LOCAL void dml__first_choice(dml_comm *comm);

/* Collectives of the whole communicator: the world's when it has just been opened; a group's, whose parent
   has its own. After an error the communicator has failed. */
DML__LOCAL dml_status dml__agree_in_world(dml_comm *comm);
DML__LOCAL dml_status dml__agree_in_group(dml_comm *group, const dml_comm *parent);

/* The same without a message, by the usual model: ranks that one thread opens. False: no memory. */
DML__LOCAL bool dml__choose_alone(dml_comm *comm);

/* Elements of the largest part, where there are parts. */
DML__LOCAL uint64_t dml__largest_part(const dml_comm *comm, const dml__comm_call *call);

/* Whether `text` ("ring", or "all_reduce=ring,broadcast=chain") names algorithms that there are; if not, the
   first that there isn't. */
#define DML__ALGORITHM_NAME 32
#define DML__ALGORITHM_NAMES 256 /* of the whole text */
DML__LOCAL bool dml__check_algorithm_names(const char *text, char unknown[DML__ALGORITHM_NAME]);

#endif

#include <string.h>

/* ---- names ---- */

/* The next name of "operation=name,operation=name" or "name,name"; NULL: there is none left. `operation` is
   empty for a name alone. */
static const char *dml__next_algorithm_name(const char *text, char operation[DML__ALGORITHM_NAME],
                                            char name[DML__ALGORITHM_NAME])
{
    char *into = name;
    size_t used = 0;
    operation[0] = name[0] = 0;
    if (!text || !*text) return NULL;
    for (; *text && *text != ','; text++) {
        if (*text == '=') {
            memcpy(operation, name, DML__ALGORITHM_NAME);
            used = 0;
        } else if (used + 1 < DML__ALGORITHM_NAME) {
            into[used++] = *text;
        }
        into[used] = 0;
    }
    return *text ? text + 1 : text;
}

static bool dml__operation_has_name(dml__comm_operation operation, const char *name)
{
    char text[DML__SIGNATURE_TEXT];
    dml__signature signature;
    memset(&signature, 0, sizeof signature);
    signature.operation = operation;
    const size_t length = strlen(name);
    return strncmp(dml__signature_text(&signature, text), name, length) == 0 && text[length] == '(';
}

/* The algorithm that `text` names for an operation; -1: none. */
static int dml__named_algorithm(const char *text, dml__comm_operation operation)
{
    char of[DML__ALGORITHM_NAME], name[DML__ALGORITHM_NAME];
    int found = -1;
    while ((text = dml__next_algorithm_name(text, of, name)) != NULL)
        if (!of[0] || dml__operation_has_name(operation, of)) {
            const int index = dml__find_algorithm(operation, name);
            if (index >= 0) found = index;
        }
    return found;
}

DML__LOCAL bool dml__check_algorithm_names(const char *text, char unknown[DML__ALGORITHM_NAME])
{
    char of[DML__ALGORITHM_NAME], name[DML__ALGORITHM_NAME];
    while ((text = dml__next_algorithm_name(text, of, name)) != NULL) {
        bool known = false;
        for (int o = 0; o < DML__COMM_OPERATION_COUNT; o++)
            if ((!of[0] || dml__operation_has_name((dml__comm_operation)o, of)) &&
                dml__find_algorithm((dml__comm_operation)o, name) >= 0)
                known = true;
        if (known) continue;
        memcpy(unknown, name, DML__ALGORITHM_NAME);
        return false;
    }
    return true;
}

/* ---- what a call gets ---- */

DML__LOCAL uint64_t dml__largest_part(const dml_comm *comm, const dml__comm_call *call)
{
    uint64_t most = call->counts ? 0 : call->signature.count;
    for (int r = 0; call->counts && r < comm->size; r++)
        if (call->counts[r] > most) most = call->counts[r];
    return most;
}

/* Whether an algorithm can run the call: in one go, where it can't go in rounds, with parts like these, and
   in the order that was asked for. */
static bool dml__can_run(const dml_comm *comm, const dml__comm_call *call, int algorithm)
{
    int count;
    const dml__algorithm_info *info = &dml__algorithms(&count)[algorithm];
    const dml__comm_operation operation = call->signature.operation;
    if (info->operation != operation || (info->equal_parts && call->counts)) return false;
    if (comm->job->deterministic && dml__adds(operation) && !info->rank_order) return false;
    if (!info->scratch || dml__is_elementwise(operation)) return true;
    return info->scratch(comm->size, dml__largest_part(comm, call)) <=
           comm->job->scratch_bytes / dml_dtype_size(call->signature.dtype);
}

DML__LOCAL int dml__choose_algorithm(const dml_comm *comm, const dml__comm_call *call)
{
    int count, last = -1;
    dml__algorithms(&count);
    const dml__comm_operation operation = call->signature.operation;
    const int named = dml__named_algorithm(comm->job->algorithm, operation);
    if (named >= 0 && dml__can_run(comm, call, named)) return named;
    const uint64_t bytes = dml__largest_part(comm, call) * dml_dtype_size(call->signature.dtype);
    const int cheapest = dml__choice_of(&comm->choice, operation, bytes, !call->counts);
    if (cheapest < count && dml__can_run(comm, call, cheapest)) return cheapest;
    /* Of each operation one takes any parts, without scratch, in the order of the ranks. */
    for (int i = 0; i < count && last < 0; i++)
        if (dml__can_run(comm, call, i)) last = i;
    return last;
}

/* ---- what it is chosen by ---- */

static void dml__set_choice(dml_comm *comm, dml__comm_operation operation, const char *name)
{
    memset(comm->choice.algorithm[0][operation], dml__find_algorithm(operation, name), DML__CHOICE_SIZES);
}

DML__LOCAL void dml__first_choice(dml_comm *comm)
{
    memset(&comm->choice, DML__CHOICE_NONE, sizeof comm->choice);
    dml__set_choice(comm, DML__CALL_ALL_REDUCE, comm->job->deterministic ? "chain" : "butterfly");
    dml__set_choice(comm, DML__CALL_BROADCAST, "binomial");
    comm->model = dml__usual_model();
    comm->model.ranks_per_host = comm->size;
    comm->hosts = 1;
    if (comm->job->latency > 0)
        comm->model.inside = comm->model.between = dml__link_of(comm->job->latency, comm->job->bandwidth);
}

static bool dml__price_choices(dml_comm *comm, dml__choice *choice)
{
    dml__comm_job *job = comm->job;
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    const int steps = dml__most_steps(comm->size);
    const size_t bytes = dml__choice_work_bytes(comm->size, steps);
    void *work = dml__allocate_unset(&job->memory, bytes);
    if (!work) return false;
    const double share = job->timeout / 20;
    comm->model.segment = job->segment_bytes;
    comm->model.eager = job->eager_bytes;
    comm->model.scratch = job->scratch_bytes;
    dml__fill_choice(&comm->model, comm->size, algorithms, count, steps, job->deterministic,
                     dml_seconds() + (share < 1 ? share : 1), work, bytes, choice);
    dml__release(&job->memory, work);
    return true;
}

static dml_status dml__no_memory_to_choose(dml__comm_job *job)
{
    dml__enter_job(job);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator", job->rank);
    dml__leave_job(job);
    return DML_ERROR_MEMORY;
}

/* Rank 0 of the communicator computes its table and tells the others. */
static dml_status dml__agree_on_table(dml_comm *comm)
{
    dml__choice choice;
    memset(&choice, 0, sizeof choice);
    if (comm->rank == 0 && !dml__price_choices(comm, &choice)) return dml__no_memory_to_choose(comm->job);
    const dml_status status = dml_comm_broadcast(comm, &choice, sizeof choice, DML_U8, 0);
    if (!status) comm->choice = choice;
    return status;
}

DML__LOCAL dml_status dml__agree_in_world(dml_comm *comm)
{
    const dml_status status = dml__measure_model(comm);
    return status ? status : dml__agree_on_table(comm);
}

DML__LOCAL dml_status dml__agree_in_group(dml_comm *group, const dml_comm *parent)
{
    const dml__comm_job *job = group->job;
    group->model = parent->model;
    group->measured = parent->measured;
    if (group->size == parent->size) {
        group->choice = parent->choice;
        group->hosts = parent->hosts;
        return DML_OK;
    }
    if (!job->transport || group->size == 1) return DML_OK;
    int here = 0; /* with rank 0, who computes */
    for (int r = 0; r < group->size; r++)
        here += group->world_ranks[r] == job->rank ||
                strcmp(job->transport->calls->medium(job->transport, group->world_ranks[r]), "tcp") != 0;
    group->model.ranks_per_host = here;
    group->hosts = (group->size + here - 1) / here;
    return dml__agree_on_table(group);
}

DML__LOCAL bool dml__choose_alone(dml_comm *comm)
{
    return dml__price_choices(comm, &comm->choice);
}

#endif
DML__DRIVERS_END

/* ---- comm/reduce_op.c ---- */

#ifndef DML_COMM_REDUCE_OP_C
#define DML_COMM_REDUCE_OP_C

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#endif

/* Loops over vectors of 32 bytes, compiled for AVX2 and for what every processor of the kind has, where the
   compiler makes two, or scalars, of each. A rest goes through a padded vector: so a result doesn't depend on
   where in the array it is. */
#define DML__REDUCE_BYTES 32
#define DML__REDUCE_VECTOR(name, type)                                                                       \
    typedef type dml__reduce_##name __attribute__((vector_size(DML__REDUCE_BYTES)))
DML__REDUCE_VECTOR(f32, float);
DML__REDUCE_VECTOR(f64, double);
DML__REDUCE_VECTOR(u8, uint8_t);
DML__REDUCE_VECTOR(u16, uint16_t);
DML__REDUCE_VECTOR(u32, uint32_t);
DML__REDUCE_VECTOR(u64, uint64_t);
DML__REDUCE_VECTOR(i8, int8_t);
DML__REDUCE_VECTOR(i16, int16_t);
DML__REDUCE_VECTOR(i32, int32_t);
DML__REDUCE_VECTOR(i64, int64_t);
#undef DML__REDUCE_VECTOR

typedef struct dml__reduce_numbers {
    /* How bits become integers that are in the order of their numbers: those below 0 are xored with `flip`,
       then `bias` is added, wrapping around. `other`, all ones or zero, takes the other one: the least. */
    uint64_t flip, bias, other;
    int ranks; /* of a mean */
} dml__reduce_numbers;

/* out = x and y (bytes, a multiple of DML__REDUCE_BYTES); of x alone, if it is a mean. */
typedef void (*dml__reduce_op_kernel)(char *out, const char *x, const char *y, size_t bytes,
                                      const dml__reduce_numbers *numbers);
#define DML__REDUCE_PARAMETERS                                                                               \
    (char *out, const char *x, const char *y, size_t bytes, const dml__reduce_numbers *numbers)

/* `statement` makes c of a and b. */
#define DML__REDUCE_LOOP(vector, statement)                                                                  \
    for (; bytes; bytes -= DML__REDUCE_BYTES) {                                                              \
        vector a, b, c;                                                                                      \
        memcpy(&a, x, sizeof a), memcpy(&b, y, sizeof b);                                                    \
        statement;                                                                                           \
        memcpy(out, &c, sizeof c);                                                                           \
        x += sizeof a, y += sizeof b, out += sizeof c;                                                       \
    }

/* Where there is more to compute, what is to come isn't asked of the memory early enough: 15 % slower. */
#define DML__REDUCE_AHEAD(pointer) DML__PREFETCH((const void *)((uintptr_t)(pointer) + 1024))

/* A kernel for each instruction set, of name_body; and both, where the base is for few processors. */
#ifdef DML__HAS_AVX2
#define DML__REDUCE_BY(name)                                                                                 \
    DML__COLD static void name##_base DML__REDUCE_PARAMETERS                                                 \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }                                                                                                        \
    DML__TARGET("avx2") static void name##_avx2 DML__REDUCE_PARAMETERS                                       \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }
#define DML__REDUCE_BOTH(name)                                                                               \
    {                                                                                                        \
        name##_base, name##_avx2                                                                             \
    }
#else
#define DML__REDUCE_BY(name)                                                                                 \
    static void name##_base DML__REDUCE_PARAMETERS                                                           \
    {                                                                                                        \
        name##_body(out, x, y, bytes, numbers);                                                              \
    }
#define DML__REDUCE_BOTH(name)                                                                               \
    {                                                                                                        \
        name##_base, name##_base                                                                             \
    }
#endif

/* Integers are added and multiplied as unsigned ones, which wrap around. */
#define DML__REDUCE_SUMS(suffix)                                                                             \
    DML__INLINE void dml__reduce_sum_##suffix##_body DML__REDUCE_PARAMETERS                                  \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        DML__REDUCE_LOOP(dml__reduce_##suffix, c = a + b);                                                   \
    }                                                                                                        \
    DML__INLINE void dml__reduce_prod_##suffix##_body DML__REDUCE_PARAMETERS                                 \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        DML__REDUCE_LOOP(dml__reduce_##suffix, c = a * b);                                                   \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_sum_##suffix)                                                                 \
    DML__REDUCE_BY(dml__reduce_prod_##suffix)

DML__REDUCE_SUMS(f32)
DML__REDUCE_SUMS(f64)
DML__REDUCE_SUMS(u8)
DML__REDUCE_SUMS(u32)
DML__REDUCE_SUMS(u64)

#define DML__REDUCE_MEAN(suffix, type)                                                                       \
    DML__INLINE void dml__reduce_mean_##suffix##_body DML__REDUCE_PARAMETERS                                 \
    {                                                                                                        \
        const dml__reduce_##suffix zero = { 0 }, ranks = zero + (type)numbers->ranks;                        \
        DML__REDUCE_LOOP(dml__reduce_##suffix, (void)b; c = a / ranks);                                      \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_mean_##suffix)

DML__REDUCE_MEAN(f32, float)
DML__REDUCE_MEAN(f64, double)

/* To nearest, of two as near to the even one, in the upper halves. A NaN among the sums and products of bf16
   has zeros below, as each of them has, and so has the one that x86 and AArch64 make themselves: it stays as
   it is. Others make one of ones only, which a carry would turn into -0. */
DML__INLINE void dml__reduce_round_bf16(dml__reduce_u32 *x)
{
    const dml__reduce_u32 nearest = *x + 0x7FFFu + (*x >> 16 & 1u);
#if defined(__SSE2__) || defined(__aarch64__)
    *x = nearest;
#else
    const dml__reduce_i32 nan = (dml__reduce_i32)(*x & 0x7FFFFFFFu) > 0x7F800000;
    *x = nearest ^ ((nearest ^ *x) & (dml__reduce_u32)nan);
#endif
}

/* Two numbers in each word, in f32, with whose 24 bits to round twice is to round once. */
DML__INLINE void dml__reduce_words(const dml__reduce_u32 *a, const dml__reduce_u32 *b, dml__reduce_u32 *c,
                                   bool product)
{
    const dml__reduce_f32 low_a = (dml__reduce_f32)(*a << 16), low_b = (dml__reduce_f32)(*b << 16);
    const dml__reduce_f32 high_a = (dml__reduce_f32)(*a & 0xFFFF0000u),
                          high_b = (dml__reduce_f32)(*b & 0xFFFF0000u);
    dml__reduce_u32 low = (dml__reduce_u32)(product ? low_a * low_b : low_a + low_b);
    dml__reduce_u32 high = (dml__reduce_u32)(product ? high_a * high_b : high_a + high_b);
    dml__reduce_round_bf16(&low);
    dml__reduce_round_bf16(&high);
    *c = low >> 16 | (high & 0xFFFF0000u);
}

DML__INLINE void dml__reduce_sum_bf16_body DML__REDUCE_PARAMETERS
{
    (void)numbers;
    DML__REDUCE_LOOP(dml__reduce_u32,
                     (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y), dml__reduce_words(&a, &b, &c, false)));
}
DML__INLINE void dml__reduce_prod_bf16_body DML__REDUCE_PARAMETERS
{
    (void)numbers;
    DML__REDUCE_LOOP(dml__reduce_u32,
                     (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y), dml__reduce_words(&a, &b, &c, true)));
}
DML__REDUCE_BY(dml__reduce_sum_bf16)
DML__REDUCE_BY(dml__reduce_prod_bf16)

/* Minima and maxima of every dtype compare integers: so NaNs have their place too, and no option of the
   compiler can take them for numbers. */
#define DML__REDUCE_KEY(bits, z) ((z ^ (dml__reduce_u##bits)(((dml__reduce_i##bits)z < zero) & flip)) + bias)
#define DML__REDUCE_LATER(bits)                                                                              \
    ((dml__reduce_u##bits)((dml__reduce_i##bits)DML__REDUCE_KEY(bits, b) >                                   \
                           (dml__reduce_i##bits)DML__REDUCE_KEY(bits, a)) ^                                  \
     other)
#define DML__REDUCE_EXTREME(bits)                                                                            \
    DML__INLINE void dml__reduce_extreme_##bits##_body DML__REDUCE_PARAMETERS                                \
    {                                                                                                        \
        const dml__reduce_i##bits zero = { 0 }, flip = zero + (int##bits##_t)numbers->flip;                  \
        const dml__reduce_u##bits none = { 0 }, bias = none + (uint##bits##_t)numbers->bias,                 \
                                  other = none + (uint##bits##_t)numbers->other;                             \
        DML__REDUCE_LOOP(dml__reduce_u##bits, (DML__REDUCE_AHEAD(x), DML__REDUCE_AHEAD(y),                   \
                                               c = a ^ ((a ^ b) & DML__REDUCE_LATER(bits))));                \
    }                                                                                                        \
    DML__REDUCE_BY(dml__reduce_extreme_##bits)

DML__REDUCE_EXTREME(8)
DML__REDUCE_EXTREME(16)
DML__REDUCE_EXTREME(32)
DML__REDUCE_EXTREME(64)

/* f16 is added in f32 too: by the instructions that every processor with AVX2 has, or a block at a time. */
#define DML__REDUCE_BLOCK ((size_t)512)

static void dml__reduce_f16_blocks(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t count,
                                   dml__reduce_op_kernel kernel)
{
    float a[DML__REDUCE_BLOCK], b[DML__REDUCE_BLOCK];
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < DML__REDUCE_BLOCK ? count - i : DML__REDUCE_BLOCK;
        dml__widen_line(DML_ISA_SCALAR, DML_F16, n, x + i, a);
        dml__widen_line(DML_ISA_SCALAR, DML_F16, n, y + i, b);
        kernel((char *)a, (const char *)a, (const char *)b, n * sizeof *a, NULL);
        dml__narrow_line(DML_ISA_SCALAR, DML_F16, n, a, out + i);
    }
}

#define DML__REDUCE_F16_BASE(name)                                                                           \
    static void dml__reduce_##name##_f16_base DML__REDUCE_PARAMETERS                                         \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        dml__reduce_f16_blocks((uint16_t *)(void *)out, (const uint16_t *)(const void *)x,                   \
                               (const uint16_t *)(const void *)y, bytes / 2, dml__reduce_##name##_f32_base); \
    }
DML__REDUCE_F16_BASE(sum)
DML__REDUCE_F16_BASE(prod)

#if defined(DML__HAS_AVX2) && !defined(DML__EMULATED)
#define DML__REDUCE_F16C DML__TARGET("avx2,f16c")
DML__REDUCE_F16C DML__INLINE void dml__reduce_eight_f16(char *out, const char *x, const char *y, bool product)
{
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
    const __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)y));
    const __m256 c = product ? _mm256_mul_ps(a, b) : _mm256_add_ps(a, b);
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_cvtps_ph(c, 0));
}

#define DML__REDUCE_F16_AVX2(name, product)                                                                  \
    DML__REDUCE_F16C static void dml__reduce_##name##_f16_avx2 DML__REDUCE_PARAMETERS                        \
    {                                                                                                        \
        (void)numbers;                                                                                       \
        for (size_t i = 0; i < bytes; i += DML__REDUCE_BYTES) {                                              \
            DML__REDUCE_AHEAD(x + i), DML__REDUCE_AHEAD(y + i);                                              \
            dml__reduce_eight_f16(out + i, x + i, y + i, product);                                           \
            dml__reduce_eight_f16(out + i + 16, x + i + 16, y + i + 16, product);                            \
        }                                                                                                    \
    }
DML__REDUCE_F16_AVX2(sum, false)
DML__REDUCE_F16_AVX2(prod, true)
#define DML__REDUCE_BOTH_F16(name) DML__REDUCE_BOTH(name)
#else
#define DML__REDUCE_BOTH_F16(name)                                                                           \
    {                                                                                                        \
        name##_base, name##_base                                                                             \
    }
#endif

/* For each dtype, by its number, sums, products and extremes: the base's and AVX2's. */
#define DML__REDUCE_ROW(suffix, bits)                                                                        \
    {                                                                                                        \
        DML__REDUCE_BOTH(dml__reduce_sum_##suffix), DML__REDUCE_BOTH(dml__reduce_prod_##suffix),             \
            DML__REDUCE_BOTH(dml__reduce_extreme_##bits)                                                     \
    }
static const dml__reduce_op_kernel dml__reduce_kernels[DML__DTYPE_COUNT][3][2] = {
    DML__REDUCE_ROW(f32, 32),
    DML__REDUCE_ROW(f64, 64),
    DML__REDUCE_ROW(u32, 32),
    DML__REDUCE_ROW(u64, 64),
    DML__REDUCE_ROW(u8, 8),
    DML__REDUCE_ROW(bf16, 16),
    { DML__REDUCE_BOTH_F16(dml__reduce_sum_f16), DML__REDUCE_BOTH_F16(dml__reduce_prod_f16),
      DML__REDUCE_BOTH(dml__reduce_extreme_16) },
    DML__REDUCE_ROW(u8, 8),
};
static const dml__reduce_op_kernel dml__mean_kernels[2][2] = { DML__REDUCE_BOTH(dml__reduce_mean_f32),
                                                               DML__REDUCE_BOTH(dml__reduce_mean_f64) };

#undef DML__REDUCE_ROW
#undef DML__REDUCE_BOTH_F16
#undef DML__REDUCE_F16_BASE
#undef DML__REDUCE_MEAN
#undef DML__REDUCE_BOTH
#undef DML__REDUCE_EXTREME
#undef DML__REDUCE_LATER
#undef DML__REDUCE_KEY
#undef DML__REDUCE_SUMS
#undef DML__REDUCE_PARAMETERS
#undef DML__REDUCE_BY
#undef DML__REDUCE_LOOP

/* Above the numbers that are above 0, and below those below, floats have NaNs. For the maximum the lower ones
   are moved above the upper ones, for the minimum these below the lower ones: a NaN always wins. */
static dml__reduce_numbers dml__reduce_order(dml_dtype dtype, bool least)
{
    dml__reduce_numbers order = { 0, 0, 0, 0 };
    int fraction = 0; /* bits */
    switch (dtype) {
    case DML_F32: fraction = 23; break;
    case DML_F64: fraction = 52; break;
    case DML_BF16: fraction = 7; break;
    case DML_F16: fraction = 10; break;
    case DML_U8: order.bias = 0x80; break;
    default: break;
    }
    if (fraction) {
        const uint64_t nans = ((uint64_t)1 << fraction) - 1;
        order.flip = ((uint64_t)1 << (8 * dml_dtype_size(dtype) - 1)) - 1;
        order.bias = least ? nans : 0 - nans;
    }
    if (least) order.other = ~(uint64_t)0;
    return order;
}

static void dml__reduce_run(dml__reduce_op_kernel kernel, char *out, const char *x, const char *y,
                            size_t bytes, const dml__reduce_numbers *numbers)
{
    const size_t rest = bytes % DML__REDUCE_BYTES, whole = bytes - rest;
    kernel(out, x, y, whole, numbers);
    if (rest == 0) return;
    uint16_t a[DML__REDUCE_BYTES / 2] = { 0 }, b[DML__REDUCE_BYTES / 2] = { 0 };
    memcpy(a, x + whole, rest), memcpy(b, y + whole, rest);
    kernel((char *)a, (const char *)a, (const char *)b, sizeof a, numbers);
    memcpy(out + whole, a, rest);
}

static void dml__reduce_by_user(const dml__reduction *how, void *out, const void *a, const void *b,
                                size_t count)
{
    if (out != a && out != b) memcpy(out, a, count * dml_dtype_size(how->dtype));
    how->function(out, out == b ? a : b, count, how->dtype, how->user);
}

DML__LOCAL void dml__reduce_elements(const dml__reduction *how, void *out, const void *a, const void *b,
                                     size_t count)
{
    const bool least = how->op == DML_MIN;
    const int kind = how->op == DML_PROD ? 1 : least || how->op == DML_MAX ? 2 : 0;
    DML_ASSERT((unsigned)how->dtype < DML__DTYPE_COUNT);
    if (count == 0) return;
    if (how->function) {
        dml__reduce_by_user(how, out, a, b, count);
        return;
    }
    const dml__reduce_numbers order = dml__reduce_order(how->dtype, least);
    dml__reduce_run(dml__reduce_kernels[how->dtype][kind][how->isa >= DML_ISA_AVX2], (char *)out,
                    (const char *)a, (const char *)b, count * dml_dtype_size(how->dtype), &order);
}

static void dml__mean_of_floats(const dml__reduction *how, void *data, size_t bytes, int ranks)
{
    const dml__reduce_numbers numbers = { 0, 0, 0, ranks };
    dml__reduce_run(dml__mean_kernels[how->dtype == DML_F64][how->isa >= DML_ISA_AVX2], (char *)data,
                    (const char *)data, (const char *)data, bytes, &numbers);
}

static void dml__mean_of_halves(const dml__reduction *how, uint16_t *data, size_t count, int ranks)
{
    const dml__reduction in_f32 = { DML_F32, DML_MEAN, how->isa, NULL, NULL };
    float wide[DML__REDUCE_BLOCK];
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < DML__REDUCE_BLOCK ? count - i : DML__REDUCE_BLOCK;
        dml__widen_line(how->isa, how->dtype, n, data + i, wide);
        dml__mean_of_floats(&in_f32, wide, n * sizeof *wide, ranks);
        dml__narrow_line(how->isa, how->dtype, n, wide, data + i);
    }
}

#define DML__MEAN(type)                                                                                      \
    for (size_t i = 0; i < count; i++) ((type *)data)[i] = (type)(((type *)data)[i] / ranks)

DML__LOCAL void dml__finish_mean(const dml__reduction *how, void *data, size_t count, int ranks)
{
    switch (how->dtype) {
    case DML_F32:
    case DML_F64: dml__mean_of_floats(how, data, count * dml_dtype_size(how->dtype), ranks); break;
    case DML_I8: DML__MEAN(int8_t); break;
    case DML_U8: DML__MEAN(uint8_t); break;
    case DML_I32: DML__MEAN(int32_t); break;
    case DML_I64: DML__MEAN(int64_t); break;
    case DML_BF16:
    case DML_F16: dml__mean_of_halves(how, (uint16_t *)data, count, ranks); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

#undef DML__MEAN

#endif

/* ---- comm/leaves.c ---- */

#ifndef DML_COMM_LEAVES_C
#define DML_COMM_LEAVES_C

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
        const bool two = e->kind == DML__STEP_COPY || e->kind == DML__STEP_REDUCE;
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
DML__DRIVERS_BEGIN

/* ---- comm/settings.c ---- */

#ifndef DML_COMM_SETTINGS_C
#define DML_COMM_SETTINGS_C

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DML__MOST_RANKS (1 << 20)

/* An environment variable; NULL if it is unset or empty. */
static const char *dml__environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The whole text as a number in [least, most]. */
static bool dml__parse_whole(const char *text, long least, long most, int *out)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most) return false;
    *out = (int)value;
    return true;
}

/* What tells a process that it is one of several: the variables of those who launch such. The number of ranks
   on this host, or of hosts. Slurm's are those of a step: a batch script, which is none, has the others too.
 */
typedef struct dml__launcher {
    const char *rank, *world, *on_host, *hosts;
} dml__launcher;

static const dml__launcher *dml__find_launcher(void)
{
    static const dml__launcher launchers[] = {
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_NODES" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES" },
    };
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (dml__environment(launchers[i].rank) && dml__environment(launchers[i].world)) return &launchers[i];
    return NULL;
}

/* False: nobody did, or what is said makes no sense. */
static bool dml__read_launcher(dml__comm_settings *settings)
{
    const dml__launcher *launcher = dml__find_launcher();
    int rank, world;
    if (!launcher || !dml__parse_whole(dml__environment(launcher->world), 1, DML__MOST_RANKS, &world) ||
        !dml__parse_whole(dml__environment(launcher->rank), 0, world - 1, &rank))
        return false;
    settings->net.rank = rank;
    settings->net.world = world;
    settings->launched = true;
    return true;
}

static bool dml__launched_on_one_host(int world)
{
    const dml__launcher *launcher = dml__find_launcher();
    const char *on_host = dml__environment(launcher->on_host), *hosts = dml__environment(launcher->hosts);
    int count;
    if (on_host) return dml__parse_whole(on_host, 1, DML__MOST_RANKS, &count) && count == world;
    return world == 1 || (hosts && strcmp(hosts, "1") == 0);
}

static bool dml__read_engine(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *text = options->engine ? options->engine : dml__environment("DML_COMM_ENGINE");
    const char *name = options->engine ? "engine" : "DML_COMM_ENGINE";
    const bool mpi = text ? strcmp(text, "mpi") == 0 : settings->launched;
    if (text && !mpi && strcmp(text, "dml") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not \"dml\" or \"mpi\"", name,
                  text);
        return false;
    }
#ifdef DML_MPI
    if (mpi) settings->engine = dml__mpi_engine();
#else
    if (text && mpi) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: %s is \"mpi\", but dml_comm.h was compiled without -DDML_MPI", name);
        return false;
    }
#endif
    return true;
}

static bool dml__read_rank(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->net.rank = options->rank;
    settings->net.world = options->world_size;
    if (options->world_size) {
        if (options->rank >= 0 && options->rank < options->world_size &&
            options->world_size <= DML__MOST_RANKS)
            return true;
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: rank %d of world_size %d: the rank must be 0 to world_size - 1, the "
                  "world_size at most 2^20",
                  options->rank, options->world_size);
        return false;
    }
    const char *rank = dml__environment("RANK"), *world = dml__environment("WORLD_SIZE");
    settings->net.world = 1;
    if (!rank && !world && dml__read_launcher(settings)) return true;
    if (!rank && !world) {
        if (options->rank == 0) return true;
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: rank %d without a world_size", options->rank);
        return false;
    }
    if (!rank || !world) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is set, but %s is not: set both or neither",
                  rank ? "RANK" : "WORLD_SIZE", rank ? "WORLD_SIZE" : "RANK");
        return false;
    }
    if (!dml__parse_whole(world, 1, DML__MOST_RANKS, &settings->net.world)) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: WORLD_SIZE is \"%s\", not a whole number from 1",
                  world);
        return false;
    }
    if (!dml__parse_whole(rank, 0, settings->net.world - 1, &settings->net.rank)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: RANK is \"%s\", not a whole number from 0 to WORLD_SIZE - 1, which is %d",
                  rank, settings->net.world - 1);
        return false;
    }
    return true;
}

static bool dml__read_place(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *address = dml__environment("MASTER_ADDR"), *port = dml__environment("MASTER_PORT");
    settings->net.master_addr = options->master_addr ? options->master_addr : address ? address : "127.0.0.1";
    settings->net.master_port = options->master_port ? options->master_port : 29500;
    settings->net.bind_addr = options->bind_addr;
    if (settings->launched && !settings->engine && !options->master_addr && !address &&
        !dml__launched_on_one_host(settings->net.world)) {
        dml__fail(
            error, DML_ERROR_ARGUMENT,
            "dml_comm_open: MASTER_ADDR must say where rank 0 is, since not all %d ranks that were launched "
            "are on this host",
            settings->net.world);
        return false;
    }
    if (options->master_port < 0 || options->master_port > 65535) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: master_port is %d, not 1 to 65535",
                  options->master_port);
        return false;
    }
    if (!options->master_port && port && !dml__parse_whole(port, 1, 65535, &settings->net.master_port)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: MASTER_PORT is \"%s\", not a whole number from 1 to 65535", port);
        return false;
    }
    return true;
}

static bool dml__read_timeout(const dml_comm_options *options, dml__comm_settings *settings,
                              dml__error *error)
{
    const char *text = dml__environment("DML_TIMEOUT");
    settings->net.timeout = options->timeout_s;
    if (options->timeout_s == 0 && !text) settings->net.timeout = 30;
    if (options->timeout_s == 0 && text) {
        char *end;
        settings->net.timeout = strtod(text, &end);
        if (*end || !(settings->net.timeout > 0) || !(settings->net.timeout <= 1e9)) {
            dml__fail(error, DML_ERROR_ARGUMENT,
                      "dml_comm_open: DML_TIMEOUT is \"%s\", not a number of seconds above 0", text);
            return false;
        }
    }
    const double quarter = settings->net.timeout / 4;
    settings->net.grace = quarter < 0.05 ? 0.05 : quarter > 1 ? 1 : quarter;
    if (settings->net.timeout > 0 && settings->net.timeout <= 1e9) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: timeout_s is %g, not a number of seconds above 0",
              options->timeout_s);
    return false;
}

static bool dml__read_trust(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *insecure = dml__environment("DML_INSECURE");
    settings->net.key = options->key && *options->key ? options->key : dml__environment("DML_KEY");
    settings->net.allow_insecure = options->allow_insecure || (insecure && strcmp(insecure, "1") == 0);
    if (options->key && !*options->key) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: the key is empty; for none, pass NULL");
        return false;
    }
    if (insecure && strcmp(insecure, "0") != 0 && strcmp(insecure, "1") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_INSECURE is \"%s\", not 0 or 1", insecure);
        return false;
    }
    return true;
}

static bool dml__read_sizes(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->net.segment_bytes = options->segment_bytes ? options->segment_bytes : (size_t)256 << 10;
    settings->max_requests = options->max_requests ? options->max_requests : 256;
    if (settings->net.segment_bytes < 8 || settings->net.segment_bytes > (size_t)1 << 30) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: segment_bytes is %llu, not 8 to 2^30",
                  (unsigned long long)settings->net.segment_bytes);
        return false;
    }
    settings->net.segment_bytes -= settings->net.segment_bytes % 8;
    if (settings->max_requests < 1 || settings->max_requests > 1 << 20) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: max_requests is %d, not 1 to 2^20",
                  settings->max_requests);
        return false;
    }
    return true;
}

static bool dml__read_algorithm(const dml_comm_options *options, dml__comm_settings *settings,
                                dml__error *error)
{
    const char *text = options->algorithm ? options->algorithm : dml__environment("DML_COMM_ALGO");
    char unknown[DML__ALGORITHM_NAME];
    settings->algorithm = text && *text ? text : NULL;
    if (settings->algorithm && strlen(text) >= DML__ALGORITHM_NAMES) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is longer than %d characters",
                  options->algorithm ? "algorithm" : "DML_COMM_ALGO", DML__ALGORITHM_NAMES - 1);
        return false;
    }
    if (!settings->algorithm || dml__check_algorithm_names(text, unknown)) return true;
    dml__fail(error, DML_ERROR_ARGUMENT,
              "dml_comm_open: %s is \"%s\": there is no algorithm \"%s\"; name one, like \"ring\", or one an "
              "operation, like \"all_reduce=ring,broadcast=chain\"",
              options->algorithm ? "algorithm" : "DML_COMM_ALGO", text, unknown);
    return false;
}

static bool dml__read_transport(const dml_comm_options *options, dml__comm_settings *settings,
                                dml__error *error)
{
    const char *text = options->transport ? options->transport : dml__environment("DML_COMM_TRANSPORT");
    settings->only_tcp = text && strcmp(text, "tcp") == 0;
    if (!text || settings->only_tcp || strcmp(text, "shm") == 0) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not \"tcp\" or \"shm\"",
              options->transport ? "transport" : "DML_COMM_TRANSPORT", text);
    return false;
}

/* A number of options, or of the environment; 0: neither. */
static bool dml__read_number(double given, const char *option, const char *variable, double *out,
                             dml__error *error)
{
    const char *text = given == 0 ? dml__environment(variable) : NULL;
    char *end = NULL;
    *out = text ? strtod(text, &end) : given;
    if ((!text && given == 0) || ((!text || !*end) && *out > 0 && *out <= 1e9)) return true;
    if (text)
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not a number above 0", variable,
                  text);
    else
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is %g, not a number above 0", option, given);
    return false;
}

static bool dml__read_link(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    double microseconds, gigabits;
    if (!dml__read_number(options->link_latency_us, "link_latency_us", "DML_COMM_LATENCY", &microseconds,
                          error) ||
        !dml__read_number(options->link_bandwidth_gbit, "link_bandwidth_gbit", "DML_COMM_BANDWIDTH",
                          &gigabits, error))
        return false;
    settings->latency = microseconds * 1e-6;
    settings->bandwidth = gigabits * 1e9 / 8;
    if ((microseconds > 0) == (gigabits > 0)) return true;
    dml__fail(error, DML_ERROR_ARGUMENT,
              "dml_comm_open: a link's latency (link_latency_us, DML_COMM_LATENCY) and its bandwidth "
              "(link_bandwidth_gbit, DML_COMM_BANDWIDTH) are given together, or neither");
    return false;
}

static bool dml__read_determinism(const dml_comm_options *options, dml__comm_settings *settings,
                                  dml__error *error)
{
    const char *text = dml__environment("DML_COMM_DETERMINISTIC");
    settings->deterministic = options->deterministic || (text && strcmp(text, "1") == 0);
    if (!text || strcmp(text, "0") == 0 || strcmp(text, "1") == 0) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_COMM_DETERMINISTIC is \"%s\", not 0 or 1", text);
    return false;
}

static bool dml__read_trace(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *steps = dml__environment("DML_TRACE_STEPS");
    settings->trace.path = options->trace ? options->trace : dml__environment("DML_TRACE");
    if (settings->trace.path && !*settings->trace.path) settings->trace.path = NULL;
    settings->trace.events = options->trace_events ? options->trace_events : 65536;
    settings->trace.steps = options->trace_steps || (steps && strcmp(steps, "1") == 0);
    if (settings->trace.events >= 1 && settings->trace.events <= 1 << 24) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: trace_events is %d, not 1 to 2^24",
              settings->trace.events);
    return false;
}

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error)
{
    memset(settings, 0, sizeof *settings);
    return dml__read_rank(options, settings, error) && dml__read_engine(options, settings, error) &&
           dml__read_place(options, settings, error) && dml__read_timeout(options, settings, error) &&
           dml__read_trust(options, settings, error) && dml__read_sizes(options, settings, error) &&
           dml__read_algorithm(options, settings, error) && dml__read_transport(options, settings, error) &&
           dml__read_link(options, settings, error) && dml__read_determinism(options, settings, error) &&
           dml__read_trace(options, settings, error);
}

#endif

/* ---- comm/failure.c ---- */

#ifndef DML_COMM_FAILURE_C
#define DML_COMM_FAILURE_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Failing together. Every rank has a control stream to every other. Whoever finds an error tells all ranks
   who is to blame, so that all end with the same sentence. A rank that dies is seen by whoever needs it, as
   its streams end. A rank that freezes is found by asking: whoever has waited for the whole timeout without
   any progress asks all ranks what they wait for and how long ago something last moved there; each rank that
   is in a call answers. The chain of who waits for whom ends at a rank that doesn't answer, which is to
   blame, or it is a circle: as long as something moves in it the network is slow and nobody is to blame. */

typedef enum dml__control_kind {
    DML__ABORT = DML__CONTROL_KINDS, /* the job is over: rank is to blame, status and text say why */
    DML__ASK,                        /* what do you wait for? With what the asking rank waits for */
    DML__ANSWER,                     /* rank is waited for, or -1 */
    DML__GOODBYE,                    /* closes its communicator in good order: it starts nothing any more */
    DML__FAREWELL                    /* has heard everybody's goodbye, and nothing was left over */
} dml__control_kind;

/* The body of ASK and ANSWER: 0 signature:16 16 communicator:4 20 zero:4 24 sequence:8 32 quiet:8, in
   microseconds */
#define DML__WAITING_BYTES 40

static dml__control dml__control_message(dml__control_kind kind)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = (int)kind;
    return control;
}

static void dml__tell_all(dml__comm_job *job, const dml__control *control)
{
    for (int rank = 0; job->transport && rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].gone) dml__send_control(job->transport, rank, control, 0);
}

DML__LOCAL dml_status dml__job_fail(dml__comm_job *job, int culprit, dml_status status, const char *format,
                                    ...)
{
    char text[DML__NET_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dml__fail(&job->error, status, "%s", text);
    status = job->error.status;
    if (job->aborted) return status;
    job->aborted = true;
    dml__log(&job->logger, DML_LOG_ERROR, "%s", text);
    dml__control control = dml__control_message(DML__ABORT);
    control.rank = culprit;
    control.status = status;
    dml__set_control_text(&control, text);
    dml__tell_all(job, &control);
    if (job->transport && job->transport->calls->withdraw) job->transport->calls->withdraw(job->transport);
    return status;
}

DML__LOCAL void dml__say_goodbye(dml__comm_job *job, bool last)
{
    const dml__control control = dml__control_message(last ? DML__FAREWELL : DML__GOODBYE);
    dml__tell_all(job, &control);
}

/* ---- who waits for whom ---- */

/* A receive that has met no message, or whatever another engine carries out: of a collective a rank that is
   missing, or else any. */
static int dml__waits_without_flow(const dml_request *request)
{
    const dml_comm *comm = request->comm;
    const dml__comm_job *job = comm->job;
    const int root = request->call.signature.root;
    if (dml__is_pair(request->call.signature.operation)) return root < 0 ? -1 : comm->world_ranks[root];
    if (!job->engine) return -1;
    for (int r = 0; r < comm->size; r++) {
        const dml__peer *peer = &job->peers[comm->world_ranks[r]];
        if (r != comm->rank && (peer->goodbye || peer->gone || !peer->answered)) return comm->world_ranks[r];
    }
    return comm->size > 1 ? comm->world_ranks[(comm->rank + 1) % comm->size] : -1;
}

DML__LOCAL int dml__waits_for(dml_request *request)
{
    const dml__flow *best = NULL;
    if (!request->flow_count) return dml__waits_without_flow(request);
    /* What hasn't come before what can't go, and of that what could be taken now. */
    for (int f = 0; f < request->flow_count; f++) {
        const dml__flow *flow = &request->flows[f];
        if (flow->step < 0) continue;
        if (!flow->sending && dml__is_free(request, flow->step)) return flow->rank;
        if (!best || (best->sending && !flow->sending)) best = flow;
    }
    return best ? best->rank : -1;
}

/* The operation that came first of those that aren't done. */
static dml_request *dml__oldest(const dml__comm_job *job)
{
    return job->active ? job->active : job->unmatched;
}

static dml__control dml__waiting_message(const dml__comm_job *job, dml__control_kind kind)
{
    dml_request *request = dml__oldest(job);
    dml__control control = dml__control_message(kind);
    const double quiet = dml_seconds() - job->moved_at;
    control.rank = request ? dml__waits_for(request) : -1;
    control.bytes = DML__WAITING_BYTES;
    if (request) {
        dml__encode_signature(&request->call.signature, control.body);
        dml__store32(control.body + 16, request->comm->id);
        dml__store64(control.body + 24, request->sequence);
    }
    dml__store64(control.body + 32, quiet > 0 ? (uint64_t)(quiet * 1e6) : 0);
    return control;
}

static bool dml__take_waiting(dml__comm_job *job, dml__peer *peer, const dml__control *control)
{
    if (control->bytes != DML__WAITING_BYTES || control->rank < -1 || control->rank >= job->world ||
        !dml__decode_signature(control->body, &peer->waits_in))
        return false;
    peer->waits_for = control->rank;
    peer->waits_communicator = dml__load32(control->body + 16);
    peer->waits_sequence = dml__load64(control->body + 24);
    peer->moved_at = dml_seconds() - (double)dml__load64(control->body + 32) * 1e-6;
    peer->answered = true;
    return true;
}

/* ---- hearing ---- */

/* It takes nothing any more, and what it sent may still be on its way: not for long. */
static void dml__take_goodbye(dml__comm_job *job, int rank)
{
    const double soon = dml_seconds() + job->grace;
    job->peers[rank].goodbye = true;
    for (const dml__flow *flow = job->links[rank].receiving; flow; flow = flow->next)
        if (flow->request->moved || flow->request->deadline > soon) {
            flow->request->moved = false;
            flow->request->deadline = soon;
        }
    for (dml_request *r = job->outlives ? job->unmatched : NULL; r; r = r->next)
        if (dml__waits_for(r) == rank) {
            r->moved = false;
            r->deadline = soon;
        }
}

static dml_status dml__take_control(dml__comm_job *job, int rank, const dml__control *control)
{
    dml__peer *peer = &job->peers[rank];
    char text[DML__CONTROL_BODY];
    switch (control->kind) {
    case DML__ABORT:
        dml__control_text(control, text);
        return dml__job_fail(job, control->rank, control->status ? control->status : DML_ERROR_PEER, "%s",
                             text);
    case DML__ASK:
    case DML__ANSWER:
        if (!dml__take_waiting(job, peer, control)) break;
        if (control->kind == DML__ASK) {
            const dml__control answer = dml__waiting_message(job, DML__ANSWER);
            dml__send_control(job->transport, rank, &answer, 0);
        }
        return DML_OK;
    case DML__GOODBYE: dml__take_goodbye(job, rank); return DML_OK;
    case DML__FAREWELL: peer->farewell = true; return DML_OK;
    case DML__ADDRESSES:
        if (job->meeting && dml__take_addresses(job->meeting, rank, control)) return DML_OK;
        break;
    default: break;
    }
    return dml__job_fail(job, rank, DML_ERROR_FORMAT, "rank %d sent rank %d a message that makes no sense",
                         rank, job->rank);
}

static dml_status dml__read_control_of(dml__comm_job *job, int rank)
{
    dml__peer *peer = &job->peers[rank];
    for (;;) {
        dml__span span;
        span.data = peer->control + peer->control_bytes;
        span.bytes = sizeof peer->control - peer->control_bytes;
        const ptrdiff_t got =
            job->transport->calls->receive(job->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (got == 0) return DML_OK;
        if (got == DML__GONE) {
            /* No error yet: what it has completed it may have left for the others to complete. */
            peer->gone = true;
            return DML_OK;
        }
        peer->control_bytes += (size_t)got;
        if (peer->control_bytes < sizeof peer->control) continue;
        peer->control_bytes = 0;
        dml__control control;
        if (!dml__decode_control(peer->control, &control))
            return dml__job_fail(job, rank, DML_ERROR_FORMAT,
                                 "rank %d sent rank %d something that is no message of this protocol", rank,
                                 job->rank);
        const dml_status status = dml__take_control(job, rank, &control);
        if (status) return status;
    }
}

DML__LOCAL dml_status dml__read_control(dml__comm_job *job)
{
    dml_status status = DML_OK;
    job->heard_at = dml_seconds();
    for (int rank = 0; rank < job->world && !status; rank++)
        if (rank != job->rank && !job->peers[rank].gone) status = dml__read_control_of(job, rank);
    return status;
}

/* ---- judging ---- */

static bool dml__all_answered(const dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++)
        if (rank != job->rank && !job->peers[rank].answered && !job->peers[rank].gone) return false;
    return true;
}

/* All wait in a circle: because of different calls, or because the network is slow. */
static dml_status dml__blame_circle(dml__comm_job *job, const dml_request *request, int waits_for)
{
    char mine[DML__SIGNATURE_TEXT], other[DML__SIGNATURE_TEXT];
    const dml__signature *signature = &request->call.signature;
    dml__signature_text(signature, mine);
    for (int rank = 0; rank < job->world; rank++) {
        const dml__peer *peer = &job->peers[rank];
        if (rank == job->rank || !peer->answered || peer->waits_for < 0) continue;
        const bool same_place = peer->waits_communicator == request->comm->id &&
                                peer->waits_sequence == request->sequence &&
                                !dml__is_pair(signature->operation);
        const bool other_call = same_place ? memcmp(&peer->waits_in, signature, sizeof *signature) != 0
                                           : peer->waits_in.operation != signature->operation;
        if (other_call)
            return dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                                 "rank %d called %s while rank %d called %s: they wait for each other", rank,
                                 dml__signature_text(&peer->waits_in, other), job->rank, mine);
    }
    return dml__job_fail(job, waits_for, DML_ERROR_TIMEOUT,
                         "%s did not end within %g s, though no rank is missing: ranks %d and %d and others "
                         "wait for each other; if the network is just slow, raise timeout_s",
                         mine, job->timeout, job->rank, waits_for < 0 ? job->rank : waits_for);
}

/* Whether a rank has nothing to say to what was asked. */
static bool dml__is_silent(const dml__comm_job *job, int rank)
{
    return rank != job->rank && (!job->peers[rank].answered || job->peers[rank].goodbye);
}

static dml_status dml__blame_silent(dml__comm_job *job, const dml_request *request, int rank)
{
    char mine[DML__SIGNATURE_TEXT];
    if (job->peers[rank].goodbye || job->peers[rank].gone) return dml__data_gone(job, request, rank);
    return dml__job_fail(job, rank, DML_ERROR_TIMEOUT,
                         "rank %d of %d took no part in %s within %g s: it is frozen, busy with something "
                         "else or unreachable",
                         rank, job->world, dml__signature_text(&request->call.signature, mine), job->timeout);
}

/* Follows who waits for whom from this rank on. Of several that a rank waits for it names one, so the way may
   lead round a circle although one in it waits for a silent rank, too. */
static dml_status dml__judge_waits(dml__comm_job *job, dml_request *request)
{
    const int waits_for = dml__waits_for(request);
    double moved_at = job->moved_at;
    int rank = waits_for, steps = 0;
    while (rank >= 0 && rank != job->rank && !dml__is_silent(job, rank) && steps++ < job->world) {
        if (job->peers[rank].moved_at > moved_at) moved_at = job->peers[rank].moved_at;
        rank = job->peers[rank].waits_for;
    }
    if (rank >= 0 && dml__is_silent(job, rank)) return dml__blame_silent(job, request, rank);
    if (moved_at + job->timeout > dml_seconds()) {
        request->deadline = moved_at + job->timeout;
        return DML_OK;
    }
    for (int r = 0; r < request->comm->size && !dml__is_pair(request->call.signature.operation); r++)
        if (dml__is_silent(job, request->comm->world_ranks[r]))
            return dml__blame_silent(job, request, request->comm->world_ranks[r]);
    return dml__blame_circle(job, request, waits_for);
}

DML__LOCAL dml_status dml__look_for_culprit(dml__comm_job *job, dml_request *request)
{
    const double now = dml_seconds();
    if (job->answer_until <= 0) {
        for (int rank = 0; rank < job->world; rank++) job->peers[rank].answered = false;
        const dml__control control = dml__waiting_message(job, DML__ASK);
        dml__tell_all(job, &control);
        job->answer_until = now + job->grace;
        return DML_OK;
    }
    if (now < job->answer_until && !dml__all_answered(job)) return DML_OK;
    job->answer_until = 0;
    return dml__judge_waits(job, request);
}

DML__LOCAL dml_status dml__hear_last_words(dml__comm_job *job, int rank)
{
    const double until = dml_seconds() + job->grace;
    dml_status status = dml__read_control(job);
    for (int r = 0; r < job->world; r++) job->wishes[r] = 0;
    while (!status && !job->peers[rank].gone && !job->peers[rank].goodbye && dml_seconds() < until) {
        const int ready = job->transport->calls->wait(job->transport, job->wishes, until - dml_seconds());
        if (ready == DML__GONE) break;
        status = dml__read_control(job);
    }
    return status;
}

DML__LOCAL void dml__end_pairs_with(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml_request *lists[2];
    lists[0] = job->active;
    lists[1] = job->unmatched;
    link->gone = true;
    link->out_total = link->header_bytes = link->payload_left = link->padding_left = link->storing = 0;
    link->taking = link->out_flow = NULL;
    link->mode = DML__TAKE_NO_PAYLOAD;
    for (int i = 0; i < 2; i++)
        for (dml_request *r = lists[i], *next; r; r = next) {
            next = r->next;
            if (!dml__is_pair(r->call.signature.operation)) continue;
            if ((r->flow_count ? r->flows[0].rank : dml__waits_for(r)) == rank)
                dml__end_request(job, r, DML_ERROR_PEER);
        }
}

DML__LOCAL dml_status dml__data_gone(dml__comm_job *job, const dml_request *request, int rank)
{
    char text[DML__SIGNATURE_TEXT];
    const dml_status status = dml__hear_last_words(job, rank);
    if (status) return status;
    if (job->outlives && dml__is_pair(request->call.signature.operation)) {
        dml__end_pairs_with(job, rank);
        return DML_OK;
    }
    dml__signature_text(&request->call.signature, text);
    if (job->peers[rank].goodbye)
        return dml__job_fail(job, rank, DML_ERROR_PEER,
                             "rank %d closed its communicator while rank %d was in %s", rank, job->rank,
                             text);
    if (job->peers[rank].gone)
        return dml__job_fail(job, rank, DML_ERROR_PEER,
                             "rank %d of %d died: its connection ended without a goodbye", rank, job->world);
    return dml__job_fail(job, rank, DML_ERROR_PEER, "rank %d lost its connection to rank %d in %s", rank,
                         job->rank, text);
}

#endif

/* ---- comm/trace.c ---- */

#ifndef DML_COMM_TRACE_C
#define DML_COMM_TRACE_C

/* ---- comm/trace.h ---- */

/* trace.h: what a communicator did and when, kept in a ring of events and written as a timeline. */
#ifndef DML_COMM_TRACE_H
#define DML_COMM_TRACE_H

typedef enum dml__trace_kind { DML__TRACE_OPERATION, DML__TRACE_STEP, DML__TRACE_SPAN } dml__trace_kind;

typedef struct dml__trace_event {
    double begin, end, waited; /* seconds of this rank's clock */
    uint64_t sequence, count;
    const char *name; /* of a caller's span */
    dml__signature signature;
    dml__trace_kind kind;
    dml__step_kind step_kind;
    dml_status status;
    uint32_t communicator;
    int algorithm, lane, step, peer;
} dml__trace_event;

/* What overlaps lies in lanes of its own, the first that is free: rows of the timeline. */
typedef struct dml__trace_lanes {
    uint8_t *taken; /* (count) */
    int count;
} dml__trace_lanes;

#define DML__TRACE_PATH 1024

typedef struct dml__trace {
    dml__trace_event *events; /* (capacity): number i at i % capacity */
    uint64_t capacity, count;
    dml__trace_lanes operations, steps;
    bool with_steps;
    double behind;              /* how far rank 0's clock is behind this one's, in seconds */
    char path[DML__TRACE_PATH]; /* of this rank's file */
} dml__trace;

/* `settings` is that of all ranks or none: a communicator of the world lets them compare their clocks. The
   job's first operations; without the turn. */
DML__LOCAL dml_status dml__open_trace(dml_comm *comm, const dml__trace_settings *settings);

/* Writes what there is. With the turn. DML_ERROR_IO, which is logged and doesn't end the job. */
DML__LOCAL dml_status dml__write_trace(dml__comm_job *job);

DML__LOCAL void dml__release_trace(dml__comm_job *job);

/* The rest is called where job->trace isn't NULL, with the turn. */

DML__LOCAL void dml__trace_start(dml__comm_job *job, dml_request *request, double now);
DML__LOCAL void dml__trace_end(dml__comm_job *job, dml_request *request, dml_status status);

/* A call has waited so long for an operation, which may have ended. */
DML__LOCAL void dml__trace_waited(dml__comm_job *job, const dml_request *request, double seconds);

/* The first part of a flow's step moves; it is past. */
DML__LOCAL void dml__trace_step_begins(dml__comm_job *job, dml__flow *flow);
DML__LOCAL void dml__trace_step_past(dml__comm_job *job, dml__flow *flow, double now);

/* A part of a local step ran from `begin` until now. */
DML__LOCAL void dml__trace_local(dml__comm_job *job, const dml_request *request, int step, double begin);

#endif

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The format is that of Chrome's tracing, "Trace Event Format" (Duca, Sinclair, 2016), as an array of events,
   one a line, so that the files of several ranks are one when their lines are put together. A rank is a
   process there and a lane a thread: what lies in a lane never overlaps. */

#define DML__TRACE_STEP_LANES 1000 /* where the steps' begin; the operations' begin at 1 */
#define DML__TRACE_CLOCK_ROUNDS 8

/* ---- noting down ---- */

static int dml__take_lane(dml__trace_lanes *lanes)
{
    uint8_t *free_one = (uint8_t *)memchr(lanes->taken, 0, (size_t)lanes->count);
    if (!free_one) return lanes->count;
    *free_one = 1;
    return (int)(free_one - lanes->taken);
}

static void dml__give_lane(dml__trace_lanes *lanes, int lane)
{
    if (lane < lanes->count) lanes->taken[lane] = 0;
}

static dml__trace_event *dml__new_event(dml__trace *trace, dml__trace_kind kind, double begin, double end)
{
    dml__trace_event *event = &trace->events[trace->count++ % trace->capacity];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->begin = begin;
    event->end = end;
    return event;
}

static void dml__describe_event(dml__trace_event *event, const dml_request *request)
{
    event->signature = request->call.signature;
    event->communicator = request->comm->id;
    event->sequence = request->sequence;
    event->algorithm = request->algorithm;
    event->count = request->call.signature.count;
}

DML__LOCAL void dml__trace_start(dml__comm_job *job, dml_request *request, double now)
{
    request->begun = now;
    request->lane = dml__take_lane(&job->trace->operations);
    request->event = 0;
}

DML__LOCAL void dml__trace_end(dml__comm_job *job, dml_request *request, dml_status status)
{
    dml__trace *trace = job->trace;
    for (int f = 0; f < request->flow_count; f++)
        if (request->flows[f].begun > 0) dml__give_lane(&trace->steps, request->flows[f].lane);
    dml__trace_event *event = dml__new_event(trace, DML__TRACE_OPERATION, request->begun, dml_seconds());
    dml__describe_event(event, request);
    event->status = status;
    event->lane = request->lane;
    dml__give_lane(&trace->operations, request->lane);
    request->event = trace->count;
}

DML__LOCAL void dml__trace_waited(dml__comm_job *job, const dml_request *request, double seconds)
{
    dml__trace *trace = job->trace;
    if (!request->event || trace->count - request->event >= trace->capacity) return;
    dml__trace_event *event = &trace->events[(request->event - 1) % trace->capacity];
    const double time = event->end - event->begin; /* the wait's end is noticed a little after that */
    event->waited = seconds < time ? seconds : time;
}

static void dml__note_step(dml__trace *trace, const dml_request *request, int step, int peer, double begin,
                           double end)
{
    const dml__step *s = &request->schedule.steps[step];
    dml__trace_event *event = dml__new_event(trace, DML__TRACE_STEP, begin, end);
    dml__describe_event(event, request);
    event->count = s->count;
    event->step_kind = (dml__step_kind)s->kind;
    event->step = step;
    event->peer = peer;
}

DML__LOCAL void dml__trace_step_begins(dml__comm_job *job, dml__flow *flow)
{
    if (!job->trace->with_steps || flow->begun > 0) return;
    flow->begun = dml_seconds();
    flow->lane = dml__take_lane(&job->trace->steps);
}

DML__LOCAL void dml__trace_step_past(dml__comm_job *job, dml__flow *flow, double now)
{
    dml__trace *trace = job->trace;
    if (!trace->with_steps) return;
    if (flow->begun <= 0) { /* it came early: it was there at once */
        flow->begun = now;
        flow->lane = dml__take_lane(&trace->steps);
    }
    dml__note_step(trace, flow->request, flow->step, flow->rank, flow->begun, now);
    trace->events[(trace->count - 1) % trace->capacity].lane = flow->lane;
    dml__give_lane(&trace->steps, flow->lane);
    flow->begun = 0;
}

DML__LOCAL void dml__trace_local(dml__comm_job *job, const dml_request *request, int step, double begin)
{
    dml__trace *trace = job->trace;
    if (!trace->with_steps) return;
    const int lane = dml__take_lane(&trace->steps);
    dml__note_step(trace, request, step, -1, begin, dml_seconds());
    trace->events[(trace->count - 1) % trace->capacity].lane = lane;
    dml__give_lane(&trace->steps, lane);
}

DML_API void dml_comm_trace_span(dml_comm *comm, const char *name, double begin, double end)
{
    if (!comm || !name || !comm->job->trace || dml__is_copy(comm->job)) return;
    dml__enter_job(comm->job);
    dml__new_event(comm->job->trace, DML__TRACE_SPAN, begin, end)->name = name;
    dml__leave_job(comm->job);
}

/* ---- clocks ---- */

/* How far the clock of rank 0 is behind this one's. Of a few questions the one that was answered first says
   it best: half of the time is the answer's way (Cristian, "Probabilistic clock synchronization",
   Distributed Computing 3, 1989). */
static dml_status dml__compare_clocks(dml_comm *comm, double *behind)
{
    double theirs = 0;
    *behind = 0;
    if (comm->rank) {
        for (int i = 0; i < DML__TRACE_CLOCK_ROUNDS; i++) {
            dml_comm_receive(comm, &theirs, 1, DML_F64, 0, 0, NULL);
            theirs = dml_seconds();
            dml_comm_send(comm, &theirs, 1, DML_F64, 0, 0);
        }
        return dml_comm_receive(comm, behind, 1, DML_F64, 0, 0, NULL);
    }
    for (int rank = 1; rank < comm->size && !dml_comm_status(comm); rank++) {
        double best = 0, offset = 0;
        for (int i = 0; i < DML__TRACE_CLOCK_ROUNDS; i++) {
            const double asked = dml_seconds();
            dml_comm_send(comm, &asked, 1, DML_F64, rank, 0);
            dml_comm_receive(comm, &theirs, 1, DML_F64, rank, 0, NULL);
            const double answered = dml_seconds();
            if (i && answered - asked >= best) continue;
            best = answered - asked;
            offset = theirs - (asked + answered) / 2;
        }
        dml_comm_send(comm, &offset, 1, DML_F64, rank, 0);
    }
    return dml_comm_status(comm);
}

/* ---- opening ---- */

static bool dml__allocate_lanes(dml__memory *memory, dml__trace_lanes *lanes, size_t count)
{
    lanes->count = (int)count;
    lanes->taken = (uint8_t *)dml__allocate(memory, count);
    return lanes->taken != NULL;
}

static dml__trace *dml__new_trace(dml__comm_job *job, const dml__trace_settings *settings)
{
    const size_t requests = (size_t)job->max_requests + 1;
    job->trace = (dml__trace *)dml__allocate(&job->memory, sizeof *job->trace);
    if (!job->trace) return NULL;
    job->trace->capacity = (uint64_t)settings->events;
    job->trace->with_steps = settings->steps;
    job->trace->events = (dml__trace_event *)dml__allocate_array(&job->memory, (size_t)settings->events,
                                                                 sizeof *job->trace->events);
    const size_t steps = settings->steps ? requests * (size_t)job->most_flows + 1 : 1;
    if (job->trace->events && dml__allocate_lanes(&job->memory, &job->trace->operations, requests) &&
        dml__allocate_lanes(&job->memory, &job->trace->steps, steps < 1 << 20 ? steps : 1 << 20))
        return job->trace;
    dml__release_trace(job);
    return NULL;
}

DML__LOCAL void dml__release_trace(dml__comm_job *job)
{
    if (!job->trace) return;
    dml__release(&job->memory, job->trace->steps.taken);
    dml__release(&job->memory, job->trace->operations.taken);
    dml__release(&job->memory, job->trace->events);
    dml__release(&job->memory, job->trace);
    job->trace = NULL;
}

static dml_status dml__trace_failed(dml__comm_job *job, dml_status status, const char *why)
{
    dml__enter_job(job);
    status = dml__job_fail(job, job->rank, status, "rank %d %s", job->rank, why);
    dml__leave_job(job);
    return status;
}

DML__LOCAL dml_status dml__open_trace(dml_comm *comm, const dml__trace_settings *settings)
{
    dml__comm_job *job = comm->job;
    double behind = 0;
    if (!settings->path || job->error.status) return job->error.status;
    if (!job->local && dml__compare_clocks(comm, &behind)) return job->error.status;
    dml__trace *trace = dml__new_trace(job, settings);
    if (!trace) return dml__trace_failed(job, DML_ERROR_MEMORY, "has no memory for its trace");
    const int length = snprintf(trace->path, sizeof trace->path, "%s.%d", settings->path, job->rank);
    if (length < 0 || (size_t)length >= sizeof trace->path)
        return dml__trace_failed(job, DML_ERROR_ARGUMENT, "was given a path for its trace that is too long");
    trace->behind = behind;
    memset(&job->stats, 0, sizeof job->stats);
    return DML_OK;
}

/* ---- writing ---- */

/* A few lines at a time, without memory of its own. */
typedef struct dml__trace_file {
    int descriptor;
    bool failed;
    size_t used;
    char text[4096];
} dml__trace_file;

static void dml__flush_trace(dml__trace_file *file)
{
    size_t done = 0;
    while (done < file->used && !file->failed) {
        const ssize_t written = write(file->descriptor, file->text + done, file->used - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            file->failed = true;
    }
    file->used = 0;
}

DML__PRINTF(2, 3)
static void dml__put_trace(dml__trace_file *file, const char *format, ...)
{
    va_list arguments;
    if (sizeof file->text - file->used < 1024) dml__flush_trace(file);
    va_start(arguments, format);
    const int length = vsnprintf(file->text + file->used, sizeof file->text - file->used, format, arguments);
    va_end(arguments);
    if (length > 0 && (size_t)length < sizeof file->text - file->used) file->used += (size_t)length;
}

/* What lies in a string of JSON as it is; the rest of it doesn't. */
static void dml__plain_text(const char *from, char *to, size_t bytes)
{
    size_t i = 0;
    for (; from[i] && i + 1 < bytes; i++)
        to[i] = from[i] < ' ' || from[i] > '~' || from[i] == '"' || from[i] == '\\' ? '_' : from[i];
    to[i] = '\0';
}

/* "all_reduce ring" */
static void dml__event_title(const dml__trace_event *event, char *text, size_t bytes)
{
    static const char *const names[] = { "send to", "receive from", "receive and reduce from", "copy",
                                         "reduce" };
    char call[DML__SIGNATURE_TEXT];
    int count;
    if (event->kind == DML__TRACE_SPAN) {
        dml__plain_text(event->name, text, bytes);
    } else if (event->kind == DML__TRACE_STEP) {
        char peer[16] = "";
        if (event->peer >= 0) snprintf(peer, sizeof peer, " %d", event->peer);
        snprintf(text, bytes, "%s%s", names[event->step_kind], peer);
    } else {
        dml__signature_text(&event->signature, call);
        call[strcspn(call, "(")] = '\0';
        const char *algorithm = event->algorithm < 0 ? "" : dml__algorithms(&count)[event->algorithm].name;
        snprintf(text, bytes, "%s%s%s %llu %s #%llu", call, *algorithm ? " " : "", algorithm,
                 (unsigned long long)event->signature.count, dml_dtype_name(event->signature.dtype),
                 (unsigned long long)event->sequence);
    }
}

static uint64_t dml__trace_time(const dml__trace *trace, double seconds)
{
    const double at = (seconds - trace->behind) * 1e9;
    return at > 0 ? (uint64_t)at : 0; /* ns */
}

static int dml__event_row(const dml__trace_event *event)
{
    switch (event->kind) {
    case DML__TRACE_OPERATION: return 1 + event->lane;
    case DML__TRACE_STEP: return DML__TRACE_STEP_LANES + event->lane;
    default: return 0;
    }
}

static void dml__put_event(dml__trace_file *file, const dml__comm_job *job, const dml__trace_event *event)
{
    const uint64_t begin = dml__trace_time(job->trace, event->begin),
                   end = dml__trace_time(job->trace, event->end);
    const uint64_t time = end > begin ? end - begin : 0;
    char title[256], call[DML__SIGNATURE_TEXT];
    int count;
    dml__event_title(event, title, sizeof title);
    dml__put_trace(
        file, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%llu.%03u,\"dur\":%llu.%03u",
        job->rank, dml__event_row(event), title, (unsigned long long)(begin / 1000), (unsigned)(begin % 1000),
        (unsigned long long)(time / 1000), (unsigned)(time % 1000));
    if (event->kind != DML__TRACE_SPAN) {
        const uint64_t bytes = event->count * dml_dtype_size(event->signature.dtype);
        dml__put_trace(file, ",\"args\":{\"call\":\"%s\",\"communicator\":%u,\"number\":%llu,\"bytes\":%llu",
                       dml__signature_text(&event->signature, call), (unsigned)event->communicator,
                       (unsigned long long)event->sequence, (unsigned long long)bytes);
        if (event->algorithm >= 0)
            dml__put_trace(file, ",\"algorithm\":\"%s\"", dml__algorithms(&count)[event->algorithm].name);
        if (event->kind == DML__TRACE_STEP)
            dml__put_trace(file, ",\"step\":%d", event->step);
        else
            dml__put_trace(file, ",\"waited_us\":%llu,\"status\":%d",
                           (unsigned long long)(event->waited * 1e6), (int)event->status);
        dml__put_trace(file, "}");
    }
    dml__put_trace(file, "}");
}

/* What rows are called: as many as have something in them. */
static void dml__put_rows(dml__trace_file *file, const dml__comm_job *job)
{
    static const char *const kinds[] = { "operations", "steps", "compute" };
    const dml__trace *trace = job->trace;
    const uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
    int lanes[3] = { 0, 0, 0 };
    for (uint64_t i = 0; i < kept; i++)
        if (trace->events[i].lane >= lanes[trace->events[i].kind])
            lanes[trace->events[i].kind] = trace->events[i].lane + 1;
    dml__put_trace(file,
                   "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}",
                   job->rank, job->rank);
    dml__put_trace(
        file, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}",
        job->rank, job->rank);
    for (int kind = 0; kind < 3; kind++)
        for (int lane = 0; lane < lanes[kind]; lane++) {
            dml__trace_event event;
            memset(&event, 0, sizeof event);
            event.kind = (dml__trace_kind)kind;
            event.lane = lane;
            dml__put_trace(
                file,
                ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                job->rank, dml__event_row(&event), kinds[kind]);
        }
}

DML__LOCAL dml_status dml__write_trace(dml__comm_job *job)
{
    dml__trace *trace = job->trace;
    dml__trace_file file;
    file.descriptor = open(trace->path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    file.failed = file.descriptor < 0;
    file.used = 0;
    if (!file.failed) {
        const uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
        dml__put_trace(&file, "[\n");
        dml__put_rows(&file, job);
        for (uint64_t i = trace->count - kept; i < trace->count; i++)
            dml__put_event(&file, job, &trace->events[i % trace->capacity]);
        dml__put_trace(&file, "\n]\n");
        dml__flush_trace(&file);
    }
    if (file.descriptor >= 0 && close(file.descriptor)) file.failed = true;
    if (!file.failed) return DML_OK;
    dml__log(&job->logger, DML_LOG_WARNING, "rank %d can't write its trace to %s: %s", job->rank, trace->path,
             strerror(errno));
    return DML_ERROR_IO;
}

DML_API dml_status dml_comm_trace_write(dml_comm *comm)
{
    if (!comm || dml__is_copy(comm->job)) return dml_comm_status(comm);
    if (!comm->job->trace) return DML_ERROR_STATE;
    dml__enter_job(comm->job);
    const dml_status status = dml__write_trace(comm->job);
    dml__leave_job(comm->job);
    return status;
}

#endif

/* ---- comm/store.c ---- */

#ifndef DML_COMM_STORE_C
#define DML_COMM_STORE_C

#include <string.h>

/* What came before anybody asked for it, for each link: entries of a header and a padded payload, in the
   order in which they came. Its size bounds it: see dml__store_bytes_for. Most of the time it is empty, so
   that taking an entry out may move those behind it. */

static size_t dml__entry_bytes(const dml__frame *frame)
{
    return DML__FRAME_BYTES + dml__padded(frame->bytes);
}

static uint8_t *dml__stored_entry(const dml__link *link, size_t at, dml__frame *frame)
{
    const bool ours = dml__decode_frame(link->store + at, frame);
    DML_ASSERT(ours);
    (void)ours;
    return link->store + at + DML__FRAME_BYTES;
}

static void dml__drop_entry(dml__link *link, size_t at, size_t bytes)
{
    const size_t end = link->store_used + link->storing;
    memmove(link->store + at, link->store + at + bytes, end - at - bytes);
    link->store_used -= bytes;
    if (link->storing && link->mode == DML__TAKE_STORE) link->target -= bytes;
}

/* A later grant says all that an earlier one did. */
static bool dml__replace_grant(dml__link *link, const dml__frame *grant)
{
    dml__frame frame;
    for (size_t at = 0; at < link->store_used; at += dml__entry_bytes(&frame)) {
        dml__stored_entry(link, at, &frame);
        if (frame.kind != DML__FRAME_GRANT || frame.communicator != grant->communicator ||
            frame.sequence != grant->sequence)
            continue;
        dml__encode_frame(grant, link->store + at);
        return true;
    }
    return false;
}

DML__LOCAL dml_status dml__begin_storing(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    if (frame->kind == DML__FRAME_GRANT && dml__replace_grant(link, frame)) return DML_OK;
    const size_t bytes = dml__entry_bytes(frame);
    if (bytes > job->store_bytes - link->store_used) {
        char text[DML__SIGNATURE_TEXT];
        return dml__job_fail(
            job, rank, DML_ERROR_STATE,
            "rank %d has too much under way that rank %d hasn't asked for yet, the last of it "
            "%s: give all ranks the same max_requests, and a larger one",
            rank, job->rank, dml__signature_text(&frame->signature, text));
    }
    dml__encode_frame(frame, link->store + link->store_used);
    link->storing = bytes;
    link->target = (char *)link->store + link->store_used + DML__FRAME_BYTES;
    link->taking = NULL;
    link->mode = DML__TAKE_STORE;
    job->stats.early++;
    return DML_OK;
}

DML__LOCAL void dml__end_storing(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__frame frame;
    const size_t at = link->store_used;
    link->store_used += link->storing;
    link->storing = 0;
    dml__stored_entry(link, at, &frame);
    /* Somebody may have asked for it while it was coming in. */
    dml__flow *flow =
        dml__find_flow(frame.kind == DML__FRAME_GRANT ? link->sending : link->receiving, &frame);
    if (flow) flow->request->dirty = true;
    if (flow || frame.kind == DML__FRAME_GRANT || !dml__is_pair(frame.signature.operation)) return;
    dml_request *request = dml__match_message(job, rank, &frame);
    if (request) dml__take_message(job, request, rank, &frame);
}

/* One entry for a flow. Sets whether it can go. */
static dml_status dml__take_entry(dml__comm_job *job, dml__flow *flow, const dml__frame *frame,
                                  const uint8_t *payload, bool *taken)
{
    dml__link *link = &job->links[flow->rank];
    dml_request *request = flow->request;
    const bool turn = frame->message == flow->message && flow->step >= 0;
    const dml_status status = dml__check_frame(job, flow->rank, request, frame);
    *taken = false;
    if (status) return status;
    if (frame->kind == DML__FRAME_GRANT) {
        flow->granted_message = frame->message;
        flow->granted_bytes = frame->offset;
        *taken = true;
        return DML_OK;
    }
    if (!turn || (frame->kind == DML__FRAME_EAGER && !dml__is_free(request, flow->step))) return DML_OK;
    *taken = true;
    link->consumed += dml__entry_bytes(frame);
    if (frame->kind == DML__FRAME_ANNOUNCE) {
        flow->announced = true;
        return DML_OK;
    }
    if (frame->bytes != dml__step_bytes(request, flow->step)) {
        char text[DML__SIGNATURE_TEXT];
        return dml__job_fail(job, flow->rank, DML_ERROR_MISMATCH,
                             "rank %d and rank %d cut %s into different pieces", flow->rank, job->rank,
                             dml__signature_text(&request->call.signature, text));
    }
    const uint64_t count = request->schedule.steps[flow->step].count;
    const dml_dtype dtype = request->reduction.dtype;
    if (link->swapped) dml__swap_elements(job->stage, payload, (size_t)count, dtype);
    dml__apply(request, flow->step, link->swapped ? (const uint8_t *)job->stage : payload, count);
    dml__step_moved(job, request, flow->step, count);
    return DML_OK;
}

/* Grants are found by the flow that sends, messages by the one that receives. */
static bool dml__entry_is_for(const dml__flow *flow, const dml__frame *frame)
{
    const dml_request *request = flow->request;
    return frame->communicator == request->comm->id && frame->sequence == request->sequence &&
           (frame->kind == DML__FRAME_GRANT) == flow->sending &&
           dml__is_pair(frame->signature.operation) == dml__is_pair(request->call.signature.operation) &&
           (uint16_t)(frame->message >> 16) == (uint16_t)request->round;
}

DML__LOCAL dml_status dml__take_stored(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__frame frame;
    size_t at = 0;
    while (at < link->store_used && flow->step >= 0) {
        const uint8_t *payload = dml__stored_entry(link, at, &frame);
        bool taken = false;
        if (dml__entry_is_for(flow, &frame)) {
            const dml_status status = dml__take_entry(job, flow, &frame, payload, &taken);
            if (status) return status;
        }
        if (taken)
            dml__drop_entry(link, at, dml__entry_bytes(&frame));
        else
            at += dml__entry_bytes(&frame);
    }
    return DML_OK;
}

DML__LOCAL void dml__check_stored(dml__comm_job *job, const dml_request *request)
{
    for (int r = 0; r < request->comm->size; r++) {
        const int rank = request->comm->world_ranks[r];
        const dml__link *link = &job->links[rank];
        dml__frame frame;
        for (size_t at = 0; at < link->store_used; at += dml__entry_bytes(&frame)) {
            dml__stored_entry(link, at, &frame);
            if (frame.communicator == request->comm->id && frame.sequence == request->sequence &&
                !dml__is_pair(frame.signature.operation) && dml__check_frame(job, rank, request, &frame))
                return;
        }
    }
}

DML__LOCAL bool dml__find_stored(const dml__comm_job *job, const dml_comm *comm, int from, int tag, int *rank,
                                 dml__frame *frame)
{
    for (int r = 0; r < job->world; r++) {
        const dml__link *link = &job->links[r];
        for (size_t at = 0; at < link->store_used; at += dml__entry_bytes(frame)) {
            dml__stored_entry(link, at, frame);
            if (frame->kind == DML__FRAME_GRANT || !dml__is_pair(frame->signature.operation)) continue;
            if (dml__find_flow(link->receiving, frame)) continue; /* a receive has it already */
            if (comm && !dml__message_fits(comm, from, tag, r, frame)) continue;
            *rank = r;
            return true;
        }
    }
    return false;
}

DML__LOCAL bool dml__match_stored(dml__comm_job *job, dml_request *request)
{
    dml__frame frame;
    int rank;
    if (!dml__find_stored(job, request->comm, request->call.signature.root, request->call.tag, &rank, &frame))
        return false;
    return dml__take_message(job, request, rank, &frame);
}

#endif

/* ---- comm/pair.c ---- */

#ifndef DML_COMM_PAIR_C
#define DML_COMM_PAIR_C

/* Sends and receives: who gets which message. A receive takes the first message of its communicator, sender
   and tag; a message goes to the first receive that takes it. */

DML__LOCAL int dml__group_rank(const dml_comm *comm, int world_rank)
{
    for (int r = 0; r < comm->size; r++)
        if (comm->world_ranks[r] == world_rank) return r;
    return -1;
}

DML__LOCAL bool dml__message_fits(const dml_comm *comm, int from, int tag, int rank, const dml__frame *frame)
{
    return frame->communicator == comm->id && (tag == DML_ANY_TAG || tag == frame->tag) &&
           (from == DML_ANY_SOURCE || comm->world_ranks[from] == rank);
}

DML__LOCAL dml_request *dml__match_message(dml__comm_job *job, int rank, const dml__frame *frame)
{
    for (dml_request *request = job->unmatched; request; request = request->next)
        if (dml__message_fits(request->comm, request->call.signature.root, request->call.tag, rank, frame))
            return request;
    return NULL;
}

DML__LOCAL bool dml__take_message(dml__comm_job *job, dml_request *request, int rank, const dml__frame *frame)
{
    const dml__signature *mine = &request->call.signature, *theirs = &frame->signature;
    if (mine->dtype != theirs->dtype || mine->count < theirs->count) {
        char their_text[DML__SIGNATURE_TEXT], my_text[DML__SIGNATURE_TEXT];
        dml__job_fail(job, rank, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s", rank,
                      dml__signature_text(theirs, their_text), job->rank, dml__signature_text(mine, my_text));
        return false;
    }
    request->message.source = dml__group_rank(request->comm, rank);
    request->message.tag = frame->tag;
    request->message.count = (size_t)theirs->count;
    request->message.dtype = theirs->dtype;
    dml__begin_pair(job, request, rank, frame->sequence, theirs->count);
    return true;
}

#endif
DML__DRIVERS_END

/* ---- comm/link.c ---- */

#ifndef DML_COMM_LINK_C
#define DML_COMM_LINK_C

#include <string.h>

/* Frames out and in.

   Nothing is sent that could block a stream: a message that is larger than job->eager_bytes goes when its
   receiver has granted it, which it does as soon as the receiving step could take it. A smaller one goes at
   once, as long as the receiver has room to keep it (the sender counts: `charged` less `credited`); when it
   hasn't, an announcement goes instead, and the message when it is granted. So whatever is at the front of a
   stream can be taken off it, in whatever order two ranks call what they call. */

static size_t dml__eager_charge(size_t bytes)
{
    return DML__FRAME_BYTES + dml__padded(bytes);
}

/* ---- out ---- */

static void dml__put_frame(dml__link *link, dml__frame *frame, char *payload)
{
    frame->consumed = link->consumed;
    link->told = link->consumed;
    dml__encode_frame(frame, link->out_header);
    link->out_payload = payload;
    link->out_begin = DML__FRAME_BYTES;
    link->out_bytes = link->out_counted = frame->bytes;
    if (frame->bytes && frame->bytes <= DML__SHORT_BYTES) {
        memcpy(link->out_header + DML__FRAME_BYTES, payload, frame->bytes);
        memset(link->out_header + DML__FRAME_BYTES + frame->bytes, 0,
               dml__padded(frame->bytes) - frame->bytes);
        link->out_begin += dml__padded(frame->bytes);
        link->out_payload = NULL;
        link->out_bytes = 0;
    }
    link->out_done = 0;
    link->out_total = DML__FRAME_BYTES + dml__padded(frame->bytes);
    link->out_flow = NULL;
}

static void dml__describe_flow(const dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    memset(frame, 0, sizeof *frame);
    frame->signature = request->call.signature;
    frame->algorithm = request->algorithm;
    frame->tag = request->call.tag;
    frame->communicator = request->comm->id;
    frame->sequence = request->sequence;
    frame->message = flow->message;
}

/* Moves on what a flow may grant, and puts the grant into a frame if the sender needs to know. */
static bool dml__next_grant(dml__comm_job *job, dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    if (!flow->large && !flow->announced) return false;
    while (flow->granting >= 0 && dml__is_free(request, flow->granting)) {
        flow->granting = request->states[flow->granting].next;
        flow->granted_message++;
        flow->granted_bytes = 0;
    }
    if (flow->granting >= 0) {
        const uint64_t allowed = dml__allowed(request, flow->granting);
        const size_t element = dml_dtype_size(request->reduction.dtype);
        flow->granted_bytes = allowed * element / job->segment_bytes * job->segment_bytes;
    }
    if (flow->granted_message == flow->told_message && flow->granted_bytes == flow->told_bytes) return false;
    flow->told_message = flow->granted_message;
    flow->told_bytes = flow->granted_bytes;
    if (flow->granted_message > flow->message) flow->announced = false; /* else more is to be granted */
    dml__describe_flow(flow, frame);
    frame->kind = DML__FRAME_GRANT;
    frame->message = flow->granted_message;
    frame->offset = flow->granted_bytes;
    job->stats.grants++;
    return true;
}

/* How many bytes of the flow's message the receiver has granted. */
static size_t dml__granted(const dml__flow *flow, size_t bytes)
{
    if (flow->message < flow->granted_message) return bytes;
    if (flow->message > flow->granted_message) return 0;
    return flow->granted_bytes < bytes ? (size_t)flow->granted_bytes : bytes;
}

/* The next part of a granted message: a whole segment, or its end. */
static bool dml__next_data(dml__comm_job *job, const dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    const size_t element = dml_dtype_size(request->reduction.dtype);
    const size_t bytes = dml__step_bytes(request, flow->step);
    const size_t done = (size_t)request->states[flow->step].done * element;
    const size_t part = bytes - done < job->segment_bytes ? bytes - done : job->segment_bytes;
    const uint64_t allowed = dml__allowed(request, flow->step);
    if (bytes ? dml__granted(flow, bytes) < done + part : flow->message >= flow->granted_message)
        return false;
    if (allowed < (bytes ? (done + part) / element : 1)) return false;
    frame->kind = DML__FRAME_DATA;
    frame->offset = done;
    frame->bytes = (uint32_t)part;
    return true;
}

/* A message that may come unasked, or at least word of it. */
static bool dml__next_unasked(const dml__comm_job *job, dml__link *link, dml__flow *flow, dml__frame *frame)
{
    dml_request *request = flow->request;
    const size_t bytes = dml__step_bytes(request, flow->step);
    const bool pair = dml__is_pair(request->call.signature.operation), small = bytes <= job->eager_bytes;
    if (flow->announced || !(small || pair) || !dml__is_free(request, flow->step)) return false;
    const uint64_t out = link->charged - link->credited;
    if (small && out + dml__eager_charge(bytes) <= job->store_bytes / 2) {
        frame->kind = DML__FRAME_EAGER;
        frame->bytes = (uint32_t)bytes;
        link->charged += dml__eager_charge(bytes);
        return true;
    }
    frame->kind = DML__FRAME_ANNOUNCE;
    flow->announced = true;
    link->charged += DML__FRAME_BYTES;
    return true;
}

/* Elements as they go over the wire; on most machines, as they are. */
static char *dml__wire_payload(dml__link *link, const dml_request *request, char *data, size_t bytes)
{
    if (!link->swapped || !bytes) return data;
    const dml_dtype dtype = request->reduction.dtype;
    dml__swap_elements(link->swapped, data, bytes / dml_dtype_size(dtype), dtype);
    return (char *)link->swapped;
}

static bool dml__put_message(dml__comm_job *job, dml__link *link, dml__flow *flow)
{
    dml__frame frame;
    dml__describe_flow(flow, &frame);
    if (!dml__next_data(job, flow, &frame) && !dml__next_unasked(job, link, flow, &frame)) return false;
    const size_t element = dml_dtype_size(flow->request->reduction.dtype);
    char *data = frame.bytes ? dml__step_data(flow->request, flow->step) + frame.offset : NULL;
    dml__put_frame(link, &frame, dml__wire_payload(link, flow->request, data, frame.bytes));
    if (frame.kind == DML__FRAME_ANNOUNCE) return true;
    if (job->trace) dml__trace_step_begins(job, flow);
    link->out_flow = flow;
    link->out_elements = (frame.offset + frame.bytes) / element;
    return true;
}

/* What is to be sent next: grants, messages, credit. False: nothing now. */
static bool dml__next_frame(dml__comm_job *job, dml__link *link)
{
    dml__frame frame;
    for (dml__flow *flow = link->receiving; flow; flow = flow->next)
        if (dml__next_grant(job, flow, &frame)) {
            dml__put_frame(link, &frame, NULL);
            return true;
        }
    for (dml__flow *flow = link->sending; flow; flow = flow->next)
        if (dml__put_message(job, link, flow)) return true;
    if (link->consumed - link->told < job->store_bytes / 8) return false;
    memset(&frame, 0, sizeof frame);
    frame.kind = DML__FRAME_CREDIT;
    dml__put_frame(link, &frame, NULL);
    return true;
}

/* Header, payload and padding, without the first `done` bytes. */
static int dml__out_spans(const dml__link *link, dml__span spans[3])
{
    static const uint8_t zeros[8] = { 0 };
    const void *parts[3];
    const size_t sizes[3] = { link->out_begin, link->out_bytes,
                              link->out_total - link->out_begin - link->out_bytes };
    size_t skip = link->out_done;
    int count = 0;
    parts[0] = link->out_header;
    parts[1] = link->out_payload;
    parts[2] = zeros;
    for (int i = 0; i < 3; i++) {
        const size_t skipped = skip < sizes[i] ? skip : sizes[i];
        skip -= skipped;
        if (sizes[i] == skipped) continue;
        spans[count].data = (uint8_t *)(uintptr_t)parts[i] + skipped;
        spans[count++].bytes = sizes[i] - skipped;
    }
    return count;
}

static const dml_request *dml__request_on(const dml__link *link)
{
    return link->receiving ? link->receiving->request : link->sending ? link->sending->request : NULL;
}

static dml_status dml__link_gone(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    const dml_request *request = dml__request_on(link);
    link->gone = true;
    link->out_total = 0;
    for (const dml_request *r = job->unmatched; r && !request; r = r->next)
        if (dml__waits_for((dml_request *)(uintptr_t)r) == rank) request = r; /* nothing will come for it */
    return request ? dml__data_gone(job, request, rank) : DML_OK;
}

/* As much of the frame that is going out as goes; `whole`: all of it has gone. */
static dml_status dml__push_frame(dml__comm_job *job, int rank, bool *whole)
{
    dml__link *link = &job->links[rank];
    dml__span spans[3];
    *whole = false;
    const int count = dml__out_spans(link, spans);
    const ptrdiff_t sent = job->transport->calls->send(job->transport, rank, DML__CHANNEL_DATA, spans, count);
    if (sent == DML__GONE) return dml__link_gone(job, rank);
    if (sent) job->progress++;
    link->out_done += (size_t)sent;
    if (link->out_done < link->out_total) return DML_OK;
    *whole = true;
    link->out_total = 0;
    dml__flow *flow = link->out_flow;
    link->out_flow = NULL;
    if (!flow) return DML_OK;
    link->traffic->bytes_sent += link->out_counted;
    link->traffic->messages_sent++;
    dml__step_moved(job, flow->request, flow->step, link->out_elements);
    return DML_OK;
}

/* To a rank that takes nothing any more. What it sent before may say more; and of what was offered it may
   have taken all without this rank having heard so. */
static dml_status dml__send_to_leaver(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool whole;
    dml_status status = dml__receive_on(job, rank);
    if (!status && link->out_total) status = dml__push_frame(job, rank, &whole);
    return status ? status : link->sending ? dml__link_gone(job, rank) : DML_OK;
}

DML__LOCAL dml_status dml__send_on(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool whole = true;
    dml_status status = DML_OK;
    while (whole && !status) {
        if (link->gone) return link->sending ? dml__link_gone(job, rank) : DML_OK;
        if (job->peers[rank].goodbye && link->sending) return dml__send_to_leaver(job, rank);
        if (!link->out_total && !dml__next_frame(job, link)) return DML_OK;
        status = dml__push_frame(job, rank, &whole);
    }
    return status;
}

/* ---- in ---- */

DML__LOCAL dml__flow *dml__find_flow(dml__flow *list, const dml__frame *frame)
{
    for (dml__flow *flow = list; flow; flow = flow->next)
        if (flow->request->comm->id == frame->communicator && flow->request->sequence == frame->sequence &&
            dml__is_pair(flow->request->call.signature.operation) == dml__is_pair(frame->signature.operation))
            return flow;
    return NULL;
}

static dml_comm *dml__find_comm(const dml__comm_job *job, uint32_t id)
{
    dml_comm *comm = job->comms;
    while (comm && comm->id != id) comm = comm->next;
    return comm;
}

static bool dml__same_call(const dml__signature *a, const dml__signature *b)
{
    return a->operation == b->operation && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->root == b->root && a->count == b->count;
}

static dml_status dml__mismatch(dml__comm_job *job, int rank, const dml__signature *theirs,
                                const dml__signature *mine)
{
    char their_text[DML__SIGNATURE_TEXT], my_text[DML__SIGNATURE_TEXT];
    return dml__job_fail(job, rank, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s", rank,
                         dml__signature_text(theirs, their_text), job->rank,
                         dml__signature_text(mine, my_text));
}

DML__LOCAL dml_status dml__check_frame(dml__comm_job *job, int rank, const dml_request *request,
                                       const dml__frame *frame)
{
    char text[DML__SIGNATURE_TEXT];
    const dml__signature *mine = &request->call.signature;
    if (dml__is_pair(mine->operation)) return DML_OK;
    if (!dml__same_call(mine, &frame->signature)) return dml__mismatch(job, rank, &frame->signature, mine);
    if (frame->algorithm == request->algorithm) return DML_OK;
    return dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                         "rank %d and rank %d go about %s in different ways: give all ranks the same "
                         "DML_COMM_ALGO and segment_bytes",
                         rank, job->rank, dml__signature_text(mine, text));
}

/* A collective's frame that belongs to no flow here: of a call that is still to come (true: keep it), of one
   that is over, or of one that has no use for it. */
static bool dml__is_early(dml__comm_job *job, int rank, const dml__frame *frame, dml_status *status)
{
    const dml_comm *comm = dml__find_comm(job, frame->communicator);
    char text[DML__SIGNATURE_TEXT];
    *status = DML_OK;
    /* Whoever has closed a communicator needs no grants of it. */
    if (!comm && frame->kind == DML__FRAME_GRANT && frame->communicator < job->next_id) return false;
    if (!comm || frame->sequence >= comm->sequence) return true;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->comm == comm && r->sequence == frame->sequence && !dml__is_pair(r->call.signature.operation)) {
            /* A later round's: it has room, as all that is early. */
            if (frame->kind != DML__FRAME_DATA && dml__is_later_round(r, frame) &&
                dml__same_call(&r->call.signature, &frame->signature))
                return true;
            *status = dml__check_frame(job, rank, r, frame);
            if (*status || frame->kind == DML__FRAME_GRANT) return false;
        }
    if (!*status && comm->sequence - frame->sequence <= DML__REMEMBERED) {
        const dml__signature *past = &comm->past[frame->sequence % DML__REMEMBERED];
        if (!dml__same_call(past, &frame->signature))
            *status = dml__mismatch(job, rank, &frame->signature, past);
    }
    if (!*status && frame->kind != DML__FRAME_GRANT)
        *status = dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                                "rank %d sent a part of %s (call %llu) that rank %d doesn't take in it", rank,
                                dml__signature_text(&frame->signature, text),
                                (unsigned long long)frame->sequence, job->rank);
    return false;
}

static dml_status dml__nonsense(dml__comm_job *job, int rank)
{
    return dml__job_fail(job, rank, DML_ERROR_FORMAT,
                         "rank %d sent rank %d something that is no message of this protocol", rank,
                         job->rank);
}

static dml_status dml__take_grant(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__flow *flow = dml__find_flow(job->links[rank].sending, frame);
    dml_status status;
    if (!flow) {
        if (dml__is_pair(frame->signature.operation)) return DML_OK;
        if (!dml__is_early(job, rank, frame, &status)) return status;
        return dml__begin_storing(job, rank, frame);
    }
    status = dml__check_frame(job, rank, flow->request, frame);
    if (status) return status;
    /* The receiver may have all of a round before this rank knows that it has gone. */
    if (dml__is_later_round(flow->request, frame)) return dml__begin_storing(job, rank, frame);
    if (frame->message > flow->granted_message ||
        (frame->message == flow->granted_message && frame->offset > flow->granted_bytes)) {
        flow->granted_message = frame->message;
        flow->granted_bytes = frame->offset;
    }
    return DML_OK;
}

/* Begins to take a message's payload to where its step wants it. */
static dml_status dml__take_payload(dml__comm_job *job, int rank, dml__flow *flow, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    dml_request *request = flow->request;
    const size_t bytes = dml__step_bytes(request, flow->step);
    const size_t element = dml_dtype_size(request->reduction.dtype);
    const uint64_t done = request->states[flow->step].done * element;
    char text[DML__SIGNATURE_TEXT];
    if (frame->message != flow->message || frame->offset != done || frame->bytes > bytes - done ||
        (frame->kind == DML__FRAME_EAGER && frame->bytes != bytes) || frame->bytes % element)
        return dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                             "rank %d and rank %d cut %s into different pieces", rank, job->rank,
                             dml__signature_text(&request->call.signature, text));
    if (frame->kind == DML__FRAME_EAGER) {
        if (!dml__is_free(request, flow->step)) return dml__begin_storing(job, rank, frame);
        link->consumed += dml__eager_charge(frame->bytes);
    }
    if (job->trace) dml__trace_step_begins(job, flow);
    link->taking = flow;
    link->target = frame->bytes ? dml__step_data(request, flow->step) + done : NULL;
    link->mode = request->schedule.steps[flow->step].kind == DML__STEP_RECEIVE && !link->swapped
                     ? DML__TAKE_WRITE
                     : DML__TAKE_REDUCE;
    return DML_OK;
}

static dml_status dml__take_message_frame(dml__comm_job *job, int rank, const dml__frame *frame)
{
    dml__link *link = &job->links[rank];
    dml__flow *flow = dml__find_flow(link->receiving, frame);
    dml_status status = DML_OK;
    if (!flow && frame->kind != DML__FRAME_DATA && dml__is_pair(frame->signature.operation)) {
        dml_request *request = dml__match_message(job, rank, frame);
        if (!request) return dml__begin_storing(job, rank, frame);
        if (!dml__take_message(job, request, rank, frame)) return job->error.status;
        flow = dml__find_flow(link->receiving, frame);
    }
    if (!flow) {
        if (frame->kind == DML__FRAME_DATA && dml__is_pair(frame->signature.operation))
            return dml__nonsense(job, rank);
        if (!dml__is_early(job, rank, frame, &status)) return status;
        return frame->kind == DML__FRAME_DATA ? dml__nonsense(job, rank)
                                              : dml__begin_storing(job, rank, frame);
    }
    status = dml__check_frame(job, rank, flow->request, frame);
    if (status) return status;
    if (frame->kind == DML__FRAME_ANNOUNCE) {
        if (frame->message != flow->message) return dml__begin_storing(job, rank, frame);
        link->consumed += DML__FRAME_BYTES;
        flow->announced = true;
        return DML_OK;
    }
    if (frame->kind == DML__FRAME_EAGER && frame->message != flow->message)
        return dml__begin_storing(job, rank, frame);
    return dml__take_payload(job, rank, flow, frame);
}

static void dml__end_payload(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__flow *flow = link->taking;
    const dml__take_mode mode = link->mode;
    link->mode = DML__TAKE_NO_PAYLOAD;
    link->taking = NULL;
    if (link->frame.kind == DML__FRAME_DATA || link->frame.kind == DML__FRAME_EAGER) {
        link->traffic->bytes_received += link->frame.bytes;
        link->traffic->messages_received++;
    }
    if (mode == DML__TAKE_STORE) {
        dml__end_storing(job, rank);
        return;
    }
    dml_request *request = flow->request;
    dml__step_state *state = &request->states[flow->step];
    uint64_t done = state->done;
    if (mode == DML__TAKE_WRITE) {
        const dml__step *step = &request->schedule.steps[flow->step];
        done += link->frame.bytes / dml_dtype_size(request->reduction.dtype);
        if (step->completes && request->reduction.op == DML_MEAN)
            dml__apply(request, flow->step, dml__step_data(request, flow->step) + link->frame.offset,
                       done - state->done);
    }
    dml__step_moved(job, request, flow->step, done);
}

static dml_status dml__begin_frame(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    dml__frame *frame = &link->frame;
    link->header_bytes = 0;
    if (!dml__decode_frame(link->header, frame)) return dml__nonsense(job, rank);
    if (frame->consumed - link->credited > link->charged - link->credited) return dml__nonsense(job, rank);
    link->credited = frame->consumed;
    job->progress++;
    link->payload_left = frame->bytes;
    link->padding_left = dml__padded(frame->bytes) - frame->bytes;
    link->partial_bytes = 0;
    link->mode = DML__TAKE_NO_PAYLOAD;
    link->taking = NULL;
    dml_status status = DML_OK;
    if (frame->kind == DML__FRAME_GRANT)
        status = dml__take_grant(job, rank, frame);
    else if (frame->kind != DML__FRAME_CREDIT)
        status = dml__take_message_frame(job, rank, frame);
    if (!status && (link->taking || link->mode == DML__TAKE_STORE) && !link->payload_left)
        dml__end_payload(job, rank);
    return status;
}

/* Reduces what has come, whole elements at a time; an element of which a part is missing waits. */
static void dml__reduce_some(dml__comm_job *job, dml__link *link, const char *data, size_t bytes)
{
    dml_request *request = link->taking->request;
    const int step = link->taking->step;
    const dml_dtype dtype = request->reduction.dtype;
    const size_t element = dml_dtype_size(dtype);
    while (bytes) {
        const bool straight =
            !link->partial_bytes && bytes >= element && (uintptr_t)data % element == 0 && !link->swapped;
        const size_t room = DML__STAGE_BYTES - link->partial_bytes;
        const size_t now = straight || bytes < room ? bytes : room;
        const char *from = data;
        size_t have = now;
        if (!straight) {
            memmove(job->stage, link->partial, link->partial_bytes);
            if (job->stage + link->partial_bytes != data)
                memmove(job->stage + link->partial_bytes, data, now);
            have += link->partial_bytes;
            from = job->stage;
        }
        const size_t whole = have / element;
        link->partial_bytes = have - whole * element;
        memmove(link->partial, from + whole * element, link->partial_bytes);
        if (link->swapped) dml__swap_elements(job->stage, job->stage, whole, dtype);
        if (whole) {
            dml__apply(request, step, from, whole);
            request->states[step].done += whole;
            request->dirty = request->moved = true;
        }
        data += now;
        bytes -= now;
    }
}

static void dml__payload_came(dml__comm_job *job, dml__link *link, size_t bytes)
{
    link->payload_left -= bytes;
    if (link->mode != DML__TAKE_REDUCE) link->target += bytes;
    if (link->taking) link->taking->request->moved = true;
    job->progress++;
}

/* Takes what lies in memory; DML_OK or the error that ends the job. All of it is taken. */
static dml_status dml__take_bytes(dml__comm_job *job, int rank, const char *data, size_t bytes)
{
    dml__link *link = &job->links[rank];
    while (bytes) {
        size_t now = bytes;
        if (link->payload_left) {
            if (now > link->payload_left) now = link->payload_left;
            if (link->mode == DML__TAKE_REDUCE)
                dml__reduce_some(job, link, data, now);
            else
                memcpy(link->target, data, now);
            dml__payload_came(job, link, now);
            if (!link->payload_left) dml__end_payload(job, rank);
        } else if (link->padding_left) {
            if (now > link->padding_left) now = link->padding_left;
            link->padding_left -= now;
        } else {
            if (now > DML__FRAME_BYTES - link->header_bytes) now = DML__FRAME_BYTES - link->header_bytes;
            memcpy(link->header + link->header_bytes, data, now);
            link->header_bytes += now;
            if (link->header_bytes == DML__FRAME_BYTES) {
                const dml_status status = dml__begin_frame(job, rank);
                if (status) return status;
            }
        }
        data += now;
        bytes -= now;
    }
    return DML_OK;
}

/* By copying: payload to its place or to the stage, and what follows it, if anything, behind. */
static dml_status dml__receive_copied(dml__comm_job *job, int rank, bool *more)
{
    dml__link *link = &job->links[rank];
    const bool reduce = link->mode == DML__TAKE_REDUCE;
    dml__span spans[2];
    int count = 0;
    size_t asked = link->payload_left, room;
    if (reduce && asked > DML__STAGE_BYTES - sizeof link->partial)
        asked = DML__STAGE_BYTES - sizeof link->partial;
    if (asked) {
        spans[count].data = reduce ? job->stage + link->partial_bytes : link->target;
        spans[count++].bytes = asked;
    }
    room = asked;
    if (asked == link->payload_left) {
        spans[count].data = link->ahead;
        spans[count++].bytes = sizeof link->ahead;
        room += sizeof link->ahead;
    }
    const ptrdiff_t got =
        job->transport->calls->receive(job->transport, rank, DML__CHANNEL_DATA, spans, count);
    if (got == DML__GONE) return dml__link_gone(job, rank);
    *more = (size_t)got == room; /* else all that had come was taken */
    const size_t payload = (size_t)got < asked ? (size_t)got : asked;
    if (payload) {
        if (reduce) dml__reduce_some(job, link, job->stage + link->partial_bytes, payload);
        dml__payload_came(job, link, payload);
        if (!link->payload_left) dml__end_payload(job, rank);
    }
    return dml__take_bytes(job, rank, (const char *)link->ahead, (size_t)got - payload);
}

/* From a transport that lends straight from where it lies. */
static dml_status dml__receive_some(dml__comm_job *job, int rank, bool *more)
{
    const dml__transport_calls *calls = job->transport->calls;
    const void *data;
    const ptrdiff_t lent =
        calls->lend ? calls->lend(job->transport, rank, &data) : (ptrdiff_t)DML__LENDS_NOTHING;
    if (lent == DML__LENDS_NOTHING) return dml__receive_copied(job, rank, more);
    if (lent == DML__GONE) return dml__link_gone(job, rank);
    *more = lent > 0;
    if (!lent) return DML_OK;
    const dml_status status = dml__take_bytes(job, rank, (const char *)data, (size_t)lent);
    calls->consume(job->transport, rank, (size_t)lent);
    return status;
}

DML__LOCAL dml_status dml__receive_on(dml__comm_job *job, int rank)
{
    dml__link *link = &job->links[rank];
    bool more = true; /* may have come */
    dml_status status = DML_OK;
    if (link->gone) return link->receiving ? dml__link_gone(job, rank) : DML_OK;
    /* Not for ever, so that the other links have their turns. */
    for (int i = 0; i < 16 && more && !status && !link->gone; i++)
        status = dml__receive_some(job, rank, &more);
    return status;
}

DML__LOCAL bool dml__link_is_awaited(const dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    return link->receiving || link->sending || link->payload_left || link->header_bytes || job->unmatched ||
           job->look_around;
}

DML__LOCAL uint8_t dml__link_wishes(const dml__comm_job *job, int rank)
{
    const dml__link *link = &job->links[rank];
    if (link->gone) return 0;
    return link->out_total ? DML__WISH_SEND | DML__WISH_RECEIVE : DML__WISH_RECEIVE;
}

#endif

/* ---- comm/operation.c ---- */

#ifndef DML_COMM_OPERATION_C
#define DML_COMM_OPERATION_C

#include <string.h>

/* Operations as state machines: a schedule, how far each of its steps is, and the flows of messages that they
   make. */

static size_t dml__element_bytes(const dml_request *request)
{
    return dml_dtype_size(request->reduction.dtype);
}

DML__LOCAL size_t dml__step_bytes(const dml_request *request, int step)
{
    return (size_t)request->schedule.steps[step].count * dml__element_bytes(request);
}

static char *dml__place(const dml_request *request, int space, uint64_t element)
{
    return request->spaces[space] ? request->spaces[space] + (size_t)element * dml__element_bytes(request)
                                  : NULL;
}

DML__LOCAL char *dml__step_data(const dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    return dml__place(request, s->space, s->offset);
}

/* ---- what waits for what ---- */

static bool dml__all_past_before(dml_request *request, int step)
{
    while (request->first_open < step && request->states[request->first_open].past) request->first_open++;
    return request->first_open >= step;
}

DML__LOCAL uint64_t dml__allowed(dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    uint64_t allowed = UINT64_MAX;
    for (int i = 0; i < DML__STEP_AFTER && allowed && s->after[i] != -1; i++) { /* the first are set */
        const int earlier = s->after[i];
        uint64_t limit = UINT64_MAX;
        if (earlier == DML__ALL_BEFORE)
            limit = dml__all_past_before(request, step) ? UINT64_MAX : 0;
        else if (!request->states[earlier].past)
            limit =
                dml__step_limit(s, &request->schedule.steps[earlier], request->states[earlier].done, false);
        if (limit < allowed) allowed = limit;
    }
    return allowed;
}

DML__LOCAL bool dml__is_free(dml_request *request, int step)
{
    const uint64_t count = request->schedule.steps[step].count, allowed = dml__allowed(request, step);
    return allowed >= (count ? count : 1);
}

/* ---- moving on ---- */

static void dml__unlink_flow(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__flow **at = flow->sending ? &link->sending : &link->receiving;
    while (*at && *at != flow) at = &(*at)->next;
    if (*at) *at = flow->next;
}

static void dml__flow_past(dml__comm_job *job, dml_request *request, int step)
{
    for (int f = 0; f < request->flow_count; f++) {
        dml__flow *flow = &request->flows[f];
        if (flow->step != step) continue;
        if (job->trace) dml__trace_step_past(job, flow, dml_seconds());
        flow->step = request->states[step].next;
        flow->message++;
        if (flow->sending) flow->announced = false;
        if (flow->step < 0) dml__unlink_flow(job, flow);
        return;
    }
}

DML__LOCAL void dml__step_moved(dml__comm_job *job, dml_request *request, int step, uint64_t done)
{
    const dml__step *s = &request->schedule.steps[step];
    dml__step_state *state = &request->states[step];
    state->done = done;
    request->dirty = request->moved = true;
    job->progress++;
    if (done < s->count) return;
    state->past = true;
    request->steps_left--;
    if (s->peer >= 0) dml__flow_past(job, request, step);
}

/* Of how many the mean is. */
static int dml__sums_parts(const dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    return signature->operation == DML__CALL_ALL_REDUCE_LEAVES ? signature->root : request->comm->size;
}

DML__LOCAL void dml__apply(dml_request *request, int step, const void *from, uint64_t count)
{
    const dml__step *s = &request->schedule.steps[step];
    char *to = dml__place(request, s->space, s->offset + request->states[step].done);
    const size_t bytes = (size_t)count * dml__element_bytes(request);
    if (!count) return;
    if (s->kind == DML__STEP_RECEIVE_REDUCE || s->kind == DML__STEP_REDUCE)
        dml__reduce_elements(&request->reduction, to, to, from, (size_t)count);
    else if (to != (const char *)from)
        memmove(to, from, bytes);
    if (s->completes && request->reduction.op == DML_MEAN)
        dml__finish_mean(&request->reduction, to, (size_t)count, dml__sums_parts(request));
}

/* One local step, in pieces that stay in the cache between what wrote and what reads them. */
static bool dml__run_local(dml__comm_job *job, dml_request *request, int step)
{
    const dml__step *s = &request->schedule.steps[step];
    if (request->states[step].past) return false;
    const uint64_t done = request->states[step].done, allowed = dml__allowed(request, step);
    const uint64_t upto = allowed < s->count ? allowed : s->count;
    if (s->count ? upto == done : !allowed) return false;
    const double begin = job->trace ? dml_seconds() : 0;
    dml__apply(request, step, dml__place(request, s->source_space, s->source + done), upto - done);
    dml__step_moved(job, request, step, upto);
    if (job->trace) dml__trace_local(job, request, step, begin);
    return true;
}

/* ---- rounds ---- */

static dml__flow *dml__flow_of(dml_request *request, int rank, bool sending)
{
    for (int f = 0; f < request->flow_count; f++)
        if (request->flows[f].rank == rank && request->flows[f].sending == sending) return &request->flows[f];
    dml__flow *flow = &request->flows[request->flow_count++];
    memset(flow, 0, sizeof *flow);
    flow->request = request;
    flow->step = flow->last = flow->granting = -1;
    flow->rank = rank;
    flow->sending = sending;
    flow->message = flow->granted_message = flow->told_message = request->round << 16;
    return flow;
}

/* Strings the steps of each flow, and the local ones, together. */
static void dml__string_steps(dml__comm_job *job, dml_request *request)
{
    int last_local = -1;
    request->flow_count = request->first_open = 0;
    request->first_local = -1;
    request->steps_left = request->schedule.count;
    for (int i = 0; i < request->schedule.count; i++) {
        const dml__step *s = &request->schedule.steps[i];
        dml__step_state *state = &request->states[i];
        state->done = 0;
        state->next = -1;
        state->past = false;
        int *first, *last;
        if (s->peer < 0) {
            first = &request->first_local;
            last = &last_local;
        } else {
            dml__flow *flow =
                dml__flow_of(request, request->comm->world_ranks[s->peer], s->kind == DML__STEP_SEND);
            if (dml__step_bytes(request, i) > job->eager_bytes) flow->large = true;
            first = &flow->step;
            last = &flow->last;
        }
        if (*last < 0)
            *first = i;
        else
            request->states[*last].next = i;
        *last = i;
    }
}

/* Behind the flows of the same or a higher priority. */
static void dml__link_flow(dml__comm_job *job, dml__flow *flow)
{
    dml__link *link = &job->links[flow->rank];
    dml__flow **at = flow->sending ? &link->sending : &link->receiving;
    while (*at && (*at)->request->call.priority >= flow->request->call.priority) at = &(*at)->next;
    flow->next = *at;
    *at = flow;
}

static void dml__begin_steps(dml__comm_job *job, dml_request *request)
{
    dml__string_steps(job, request);
    for (int f = 0; f < request->flow_count; f++) {
        request->flows[f].granting = request->flows[f].step;
        dml__link_flow(job, &request->flows[f]);
    }
    request->dirty = true;
}

static const dml__algorithm_info *dml__algorithm_of(const dml_request *request)
{
    int count;
    return &dml__algorithms(&count)[request->algorithm];
}

/* ---- sums of leaves: round 0 tells who has which, and each round after it adds some of them ---- */

static void dml__begin_owners(dml__comm_job *job, dml_request *request)
{
    const dml__comm_call *call = &request->call;
    const dml_comm *comm = request->comm;
    dml__collective c;
    memset(&c, 0, sizeof c);
    c.operation = DML__CALL_ALL_REDUCE;
    c.rank = comm->rank;
    c.size = comm->size;
    c.count = (uint64_t)call->signature.root;
    request->reduction.dtype = DML_I64;
    request->reduction.op = DML_SUM;
    request->reduction.function = dml__join_owners;
    dml__say_owners(call->leaves, call->signature.root, comm->rank, call->owners);
    request->schedule.count = 0;
    request->spaces[DML__SPACE_OUT] = (char *)call->owners;
    request->algorithm = dml__find_algorithm(DML__CALL_ALL_REDUCE, "tree"); /* any that needs no scratch */
    dml__algorithm_of(request)->write(&c, &request->schedule);
    dml__begin_steps(job, request);
}

/* Each leaf must be at one rank. */
static bool dml__check_owners(dml__comm_job *job, const dml_request *request)
{
    const dml_comm *comm = request->comm;
    char text[DML__SIGNATURE_TEXT];
    for (int i = 0; i < request->call.signature.root; i++) {
        int first, last;
        const int claims = dml__claims_of(request->call.owners[i], &first, &last);
        if (claims == 1) continue;
        dml__signature_text(&request->call.signature, text);
        if (claims == 0)
            dml__job_fail(job, comm->world_ranks[0], DML_ERROR_MISMATCH,
                          "%s: no rank gave leaf %d: each of the leaves has to be at one rank", text, i);
        else
            dml__job_fail(job, comm->world_ranks[last], DML_ERROR_MISMATCH,
                          "%s: leaf %d was given by rank %d and by rank %d: each of the leaves has to be at "
                          "one rank",
                          text, i, comm->world_ranks[first], comm->world_ranks[last]);
        return false;
    }
    return true;
}

static void dml__begin_leaves(dml_request *request)
{
    const dml__comm_call *call = &request->call;
    dml__leaf_sums *sums = &request->leaf_sums;
    sums->leaves = call->signature.root;
    sums->rank = request->comm->rank;
    sums->size = request->comm->size;
    sums->count = call->signature.count;
    sums->element = dml_dtype_size(call->signature.dtype);
    sums->arrays = call->leaves;
    sums->out = call->out;
    sums->owners = call->owners;
    dml__begin_leaf_sums(sums);
    request->reduction = call->reduction;
    request->spaces[DML__SPACE_IN] = sums->base;
}

static void dml__next_sums(dml__comm_job *job, dml_request *request)
{
    if (request->round == 0) {
        if (!dml__check_owners(job, request)) return;
        dml__begin_leaves(request);
    }
    if (dml__leaf_sums_end(&request->leaf_sums)) {
        dml__end_request(job, request, DML_OK);
        return;
    }
    request->round++;
    request->schedule.count = 0;
    dml__write_leaf_steps(&request->leaf_sums, &request->schedule);
    dml__begin_steps(job, request);
}

/* ---- rounds of the others ---- */

static void dml__begin_round(dml__comm_job *job, dml_request *request)
{
    const dml__comm_call *call = &request->call;
    const dml_comm *comm = request->comm;
    dml__collective c;
    memset(&c, 0, sizeof c);
    c.operation = call->signature.operation;
    c.rank = comm->rank;
    c.size = comm->size;
    c.root = call->signature.root;
    c.count = call->counts ? dml__largest_part(comm, call) : request->round_count;
    c.counts = call->counts;
    c.offsets = call->offsets;
    request->schedule.count = 0;
    request->schedule.overflowed = false;
    request->spaces[DML__SPACE_OUT] = (char *)call->out;
    request->spaces[DML__SPACE_IN] = (char *)call->in;
    request->spaces[DML__SPACE_SCRATCH] = request->scratch;
    if (request->round_begin)
        request->spaces[DML__SPACE_OUT] += (size_t)request->round_begin * dml__element_bytes(request);
    dml__algorithm_of(request)->write(&c, &request->schedule);
    if (request->schedule.overflowed) {
        char text[DML__SIGNATURE_TEXT];
        dml__job_fail(job, job->rank, DML_ERROR_STATE, "rank %d: %s has more steps than were planned for",
                      job->rank, dml__signature_text(&call->signature, text));
        return;
    }
    dml__begin_steps(job, request);
}

/* As many elements at once as SCRATCH has room for, and, of an all-reduce of two, as stay in the caches from
   when they are reduced until they are sent: without that each byte comes from memory once more. Of four
   ranks on two processors it didn't pay. What doesn't go in rounds was chosen so that it has room. */
static uint64_t dml__round_most(const dml__comm_job *job, const dml_request *request)
{
    const dml__comm_operation operation = request->call.signature.operation;
    const dml__algorithm_info *info = dml__algorithm_of(request);
    const uint64_t room = job->scratch_bytes / dml__element_bytes(request);
    uint64_t most = request->call.signature.count;
    if (job->round_bytes && request->comm->size == 2 && operation == DML__CALL_ALL_REDUCE) {
        const uint64_t cached = job->round_bytes / dml__element_bytes(request);
        while (most > cached && request->call.signature.count / most < DML__MOST_ROUNDS)
            most = most - most / 2;
    }
    if (info->scratch && dml__is_elementwise(operation))
        while (most > 1 && info->scratch(request->comm->size, most) > room) most = most / 2;
    return most;
}

static void dml__end_round(dml__comm_job *job, dml_request *request)
{
    const uint64_t count = request->call.signature.count;
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__next_sums(job, request);
        return;
    }
    request->round_begin += request->round_count;
    if (request->round_begin >= count || dml__is_pair(request->call.signature.operation)) {
        dml__end_request(job, request, DML_OK);
        return;
    }
    request->round++;
    const uint64_t left = count - request->round_begin;
    request->round_count = left < request->round_most ? left : request->round_most;
    dml__begin_round(job, request);
}

DML__LOCAL void dml__advance_request(dml__comm_job *job, dml_request *request)
{
    while (request->dirty && request->state == DML__REQUEST_ACTIVE) {
        request->dirty = false;
        for (int step = request->first_local; step >= 0; step = request->states[step].next)
            if (dml__run_local(job, request, step)) request->dirty = true;
        for (int f = 0; f < request->flow_count; f++)
            if (request->flows[f].step >= 0 && job->links[request->flows[f].rank].store_used)
                if (dml__take_stored(job, &request->flows[f])) return;
        if (!request->steps_left) dml__end_round(job, request);
    }
}

/* ---- requests ---- */

DML__LOCAL void dml__free_request(dml__comm_job *job, dml_request *request)
{
    request->state = DML__REQUEST_FREE;
    request->next = NULL;
    if (request == &job->requests[job->max_requests]) return;
    /* Put back at the end, so that who waits twice meets a free one, not another's. */
    if (job->last_free)
        job->last_free->next = request;
    else
        job->free_requests = request;
    job->last_free = request;
}

static dml_request *dml__new_request(dml__comm_job *job, bool blocking)
{
    dml_request *own = &job->requests[job->max_requests];
    if (blocking && own->state == DML__REQUEST_FREE) return own;
    dml_request *request = job->free_requests;
    if (!request) return NULL;
    job->free_requests = request->next;
    if (!job->free_requests) job->last_free = NULL;
    return request;
}

static void dml__unlist(dml_request **list, const dml_request *request)
{
    while (*list && *list != request) list = &(*list)->next;
    if (*list) *list = request->next;
}

static void dml__enlist(dml_request **list, dml_request *request)
{
    while (*list) list = &(*list)->next;
    request->next = NULL;
    *list = request;
}

DML__LOCAL void dml__end_request(dml__comm_job *job, dml_request *request, dml_status status)
{
    if (job->trace) dml__trace_end(job, request, status);
    for (int f = 0; f < request->flow_count; f++) dml__unlink_flow(job, &request->flows[f]);
    dml__unlist(&job->active, request);
    dml__unlist(&job->unmatched, request);
    request->flow_count = 0;
    job->progress++;
    if (!status) job->stats.done++;
    request->status = status;
    request->state = DML__REQUEST_DONE;
}

DML__LOCAL void dml__begin_pair(dml__comm_job *job, dml_request *request, int rank, uint64_t sequence,
                                uint64_t count)
{
    const bool sends = request->call.signature.operation == DML__CALL_SEND;
    dml__schedule *schedule = &request->schedule;
    dml__unlist(&job->unmatched, request);
    dml__enlist(&job->active, request);
    request->sequence = sequence;
    request->moved = true;
    request->spaces[DML__SPACE_OUT] = (char *)request->call.out;
    schedule->count = 1;
    dml__step *step = &schedule->steps[0];
    memset(step, 0, sizeof *step);
    step->kind = sends ? DML__STEP_SEND : DML__STEP_RECEIVE;
    step->count = count;
    for (int i = 0; i < DML__STEP_AFTER; i++) step->after[i] = -1;
    step->peer = dml__group_rank(request->comm, rank);
    dml__begin_steps(job, request);
}

static void dml__begin_collective(dml__comm_job *job, dml_request *request)
{
    dml_comm *comm = request->comm;
    request->sequence = comm->sequence++;
    comm->past[request->sequence % DML__REMEMBERED] = request->call.signature;
    dml__enlist(&job->active, request);
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__begin_owners(job, request);
        dml__check_stored(job, request);
        return;
    }
    request->algorithm = dml__choose_algorithm(comm, &request->call);
    dml__check_stored(job, request);
    request->round_most = request->round_count = dml__round_most(job, request);
    dml__begin_round(job, request);
}

DML__LOCAL dml_request *dml__start(dml_comm *comm, const dml__comm_call *call, bool blocking)
{
    dml__comm_job *job = comm->job;
    dml_request *request = dml__new_request(job, blocking);
    if (!request) return NULL;
    job->stats.started++;
    request->call = *call;
    request->reduction = call->reduction;
    request->comm = comm;
    request->algorithm = -1;
    request->state = DML__REQUEST_ACTIVE;
    request->status = DML_OK;
    request->dirty = false;
    request->moved = job->started = true;
    if (job->trace) dml__trace_start(job, request, dml_seconds());
    request->next = NULL;
    request->round = 0;
    request->round_begin = request->round_count = 0;
    request->flow_count = request->steps_left = 0;
    request->first_local = -1;
    memset(&request->message, 0, sizeof request->message);
    if (job->engine) {
        if (!dml__is_pair(call->signature.operation)) request->sequence = comm->sequence++;
        dml__enlist(&job->active, request);
        job->engine->start(job, request);
    } else if (call->signature.operation == DML__CALL_SEND) {
        const int rank = comm->world_ranks[call->signature.root];
        dml__begin_pair(job, request, rank, job->links[rank].messages++, call->signature.count);
    } else if (call->signature.operation == DML__CALL_RECEIVE) {
        dml__enlist(&job->unmatched, request);
        const int from = dml__match_stored(job, request) ? -1 : dml__waits_for(request);
        if (from >= 0 && job->links[from].gone) dml__data_gone(job, request, from);
    } else {
        dml__begin_collective(job, request);
    }
    return request;
}

#endif

/* ---- comm/turn.c ---- */

#ifndef DML_COMM_TURN_C
#define DML_COMM_TURN_C

/* Who makes progress. Everything of a job is under its mutex, which whoever waits gives up only while it
   sleeps in the transport; who wants in then wakes it. The gate is passed before the mutex is asked for, so
   that a thread that lets go of the mutex for a moment can't take it again before those who wait for it. The
   helper thread, if there is one, makes progress while no other thread does. */

DML__LOCAL void dml__enter_job(dml__comm_job *job)
{
    dml__mutex_lock(&job->gate);
    dml__mutex_lock(&job->mutex);
    while (job->sleeping) {
        job->transport->calls->wake(job->transport);
        dml__cond_wait(&job->changed, &job->mutex, -1);
    }
    dml__mutex_unlock(&job->gate);
}

DML__LOCAL void dml__leave_job(dml__comm_job *job)
{
    if (job->helper_started || job->waiting) dml__cond_signal_all(&job->changed);
    dml__mutex_unlock(&job->mutex);
}

/* Lets those in who wait. */
static void dml__give_way(dml__comm_job *job)
{
    dml__mutex_unlock(&job->mutex);
    dml__mutex_lock(&job->gate);
    dml__mutex_lock(&job->mutex);
    dml__mutex_unlock(&job->gate);
}

static void dml__advance_all(dml__comm_job *job)
{
    bool again = true;
    while (again && !job->error.status) {
        again = false;
        for (dml_request *r = job->active, *next; r; r = next) {
            next = r->next;
            if (!r->dirty) continue;
            dml__advance_request(job, r);
            again = true;
        }
    }
}

DML__LOCAL bool dml__make_progress(dml__comm_job *job)
{
    const uint64_t before = job->progress;
    dml__advance_all(job);
    if (job->engine) job->engine->progress(job);
    for (int rank = 0; !job->engine && rank < job->world && !job->error.status; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        if ((link->receiving || link->sending || link->out_total) && dml__send_on(job, rank)) break;
        if (!link->gone || link->receiving)
            if (dml__link_is_awaited(job, rank)) dml__receive_on(job, rank);
    }
    job->look_around = false;
    dml__advance_all(job);
    return job->progress != before;
}

/* Of an operation that moves or begins now. For a message of a rank that is there, who outlives others has
   all the time. */
static double dml__deadline_from(const dml__comm_job *job, const dml_request *request, double now)
{
    const int root = request->call.signature.root;
    if (!job->outlives || job->engine || request->flow_count ||
        !dml__is_pair(request->call.signature.operation))
        return now + job->timeout;
    return root >= 0 && job->peers[request->comm->world_ranks[root]].goodbye ? now + job->grace : 1e300;
}

static void dml__put_off(const dml__comm_job *job, dml_request *list, double now)
{
    for (dml_request *r = list; r; r = r->next) {
        if (r->moved) r->deadline = dml__deadline_from(job, r, now);
        r->moved = false;
    }
}

DML__LOCAL void dml__note_time(dml__comm_job *job, double now)
{
    if (job->progress != job->progress_seen)
        job->moved_at = now;
    else if (!job->started)
        return;
    job->progress_seen = job->progress;
    job->started = false;
    dml__put_off(job, job->active, now);
    dml__put_off(job, job->unmatched, now);
}

/* This process has been stopped for a while, and perhaps all of the job. */
static void dml__restart_clocks(dml__comm_job *job)
{
    const double now = dml_seconds();
    job->moved_at = now;
    job->answer_until = 0;
    for (dml_request *r = job->active; r; r = r->next) r->deadline = dml__deadline_from(job, r, now);
    for (dml_request *r = job->unmatched; r; r = r->next) r->deadline = dml__deadline_from(job, r, now);
}

/* Sleeps in the transport, at most `seconds`, without the mutex; then hears what came on control. */
static void dml__sleep(dml__comm_job *job, double seconds)
{
    for (int rank = 0; rank < job->world; rank++)
        job->wishes[rank] = rank == job->rank || job->engine ? 0 : dml__link_wishes(job, rank);
    int ready;
    const double before = dml_seconds();
    if (seconds > 0) {
        job->sleeping = true;
        job->stats.slept++;
        dml__mutex_unlock(&job->mutex);
        ready = job->transport->calls->wait(job->transport, job->wishes, seconds);
        dml__mutex_lock(&job->mutex);
        job->sleeping = false;
        dml__cond_signal_all(&job->changed);
        dml__give_way(job);
    } else {
        ready = job->transport->calls->wait(job->transport, job->wishes, 0);
    }
    if (dml_seconds() - before > seconds + job->timeout / 2) dml__restart_clocks(job);
    if (ready == DML__GONE)
        dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections", job->rank);
    else if (ready & DML__READY_CONTROL)
        dml__read_control(job);
    if (ready > 0 && ready & DML__READY_DATA) job->look_around = true;
}

/* The first deadline among the operations; `until` if it is earlier. */
static double dml__next_deadline(const dml__comm_job *job, double until)
{
    double first = until < 0 ? dml_seconds() + 3600 : until;
    if (job->answer_until > 0) return job->answer_until < first ? job->answer_until : first;
    /* Not much longer than a deadline is, so that a longer sleep shows that the process was stopped. */
    if (first > dml_seconds() + job->timeout) first = dml_seconds() + job->timeout;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->deadline < first) first = r->deadline;
    for (const dml_request *r = job->unmatched; r; r = r->next)
        if (r->deadline < first) first = r->deadline;
    return first;
}

static dml_request *dml__first_late(dml_request *list, double now)
{
    while (list && now < list->deadline) list = list->next;
    return list;
}

/* Operations that have not moved for as long as they may. True if one has ended by it. */
static bool dml__watch_deadlines(dml__comm_job *job, double now)
{
    const uint64_t before = job->progress;
    dml_request *late = dml__first_late(job->active, now);
    if (!late) late = dml__first_late(job->unmatched, now);
    if (late)
        dml__look_for_culprit(job, late);
    else
        job->answer_until = 0;
    return job->progress != before;
}

/* A call had nothing to do from *idle_from (< 0: it had) until now. */
static void dml__count_idle(dml__comm_job *job, double *idle_from, double now)
{
    if (*idle_from >= 0 && now > *idle_from) job->stats.waited_s += now - *idle_from;
    *idle_from = -1;
}

DML__LOCAL void dml__keep_watch(dml__comm_job *job)
{
    const double now = dml_seconds(), quiet = now - job->heard_at;
    if (!job->transport || quiet < 2e-3) return;
    dml__read_control(job);
    if (job->error.status) return;
    /* Who hasn't asked for long may have been away: then nobody else is to blame. */
    if (quiet > job->grace)
        dml__restart_clocks(job);
    else
        dml__watch_deadlines(job, now);
}

DML__LOCAL bool dml__none_active(dml__comm_job *job, void *user)
{
    (void)user;
    return !job->active && !job->unmatched;
}

DML__LOCAL bool dml__wait_until(dml__comm_job *job, bool (*done)(dml__comm_job *job, void *user), void *user,
                                double until)
{
    bool result = true;
    double spin_until = -1, idle_from = -1;
    unsigned looks = 0;
    job->waiting++;
    while (!done(job, user)) {
        if (job->error.status) {
            result = false;
            break;
        }
        if (job->sleeping) { /* another thread makes progress */
            dml__cond_wait(&job->changed, &job->mutex, 0.1);
            continue;
        }
        if (job->helper_started) dml__give_way(job);
        if (dml__make_progress(job)) {
            spin_until = -1;
            if (idle_from >= 0) dml__count_idle(job, &idle_from, job->clock = dml_seconds());
            continue;
        }
        if (!job->yields && ++looks % 8) continue; /* the clock takes longer than a look */
        const double now = job->clock = dml_seconds();
        dml__note_time(job, now);
        if (idle_from < 0) idle_from = now;
        if (until >= 0 && now >= until) {
            result = false;
            break;
        }
        if (spin_until < 0) spin_until = now + job->spin;
        if (now < spin_until) {
            if (job->yields) dml__thread_yield();
            continue;
        }
        if (now > spin_until + job->grace) dml__restart_clocks(job); /* stopped meanwhile, as in dml__sleep */
        if (dml__watch_deadlines(job, now)) continue;
        const double left = dml__next_deadline(job, until) - now;
        if (!job->error.status && job->transport) dml__sleep(job, left > 0 ? left : 0.001);
        spin_until = -1;
    }
    /* Where nothing is under way any more nobody needs to know to the microsecond when it ended. */
    if (idle_from >= 0 || job->active || job->unmatched) job->clock = dml_seconds();
    dml__note_time(job, job->clock);
    dml__count_idle(job, &idle_from, job->clock);
    job->waiting--;
    return result;
}

/* ---- the helper ---- */

#ifndef DML_NO_THREADS
static void dml__help(void *argument)
{
    dml__comm_job *job = (dml__comm_job *)argument;
    dml__mutex_lock(&job->mutex);
    while (!job->stop) {
        const bool nothing = !job->active && !job->unmatched;
        if (nothing || job->waiting || job->sleeping || job->error.status) {
            dml__cond_wait(&job->changed, &job->mutex, -1);
            continue;
        }
        dml__give_way(job);
        if (job->waiting || job->sleeping || dml__make_progress(job)) continue;
        const double now = dml_seconds();
        dml__note_time(job, now);
        if (dml__watch_deadlines(job, now)) continue;
        const double left = dml__next_deadline(job, -1) - now;
        if (!job->error.status) dml__sleep(job, left > 0 ? left : 0.001);
    }
    dml__mutex_unlock(&job->mutex);
}
#endif

DML__LOCAL dml_status dml__start_helper(dml__comm_job *job)
{
#ifndef DML_NO_THREADS
    if (job->alone)
        return dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "rank %d can't have a progress thread: MPI was initialised for one thread only, not "
            "with MPI_THREAD_SERIALIZED",
            job->rank);
    if (!job->helper_started && job->transport)
        job->helper_started = dml__thread_start(&job->helper, dml__help, job);
    if (!job->helper_started && job->transport)
        return dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d can't start its progress thread",
                             job->rank);
#else
    (void)job;
#endif
    return DML_OK;
}

DML__LOCAL void dml__stop_helper(dml__comm_job *job)
{
    if (!job->helper_started) return;
    job->stop = true;
    if (job->sleeping) job->transport->calls->wake(job->transport);
    dml__leave_job(job);
    dml__thread_join(&job->helper);
    dml__mutex_lock(&job->mutex);
}

#endif

/* ---- comm/mpi_engine.c ---- */

#ifndef DML_COMM_MPI_ENGINE_C
#define DML_COMM_MPI_ENGINE_C

#ifdef DML_MPI

/* The engine that leaves everything to MPI, 3.1 or later: each call becomes one of its non-blocking ones, or
   several, all of which are posted at once, since the collectives of a communicator have to be posted in the
   same order everywhere. */

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Elements of one MPI call; tests make it less. Above it they go in blocks. */
#ifndef DML__MPI_LARGEST
#define DML__MPI_LARGEST INT_MAX
#define DML__MPI_BLOCK 65536
#else
#define DML__MPI_BLOCK 64
#endif
#define DML__MPI_DTYPES 8 /* an MPI tag is ours times this, plus the dtype */

typedef struct dml__mpi_group {
    MPI_Comm main; /* collectives, and messages of the calls */
    MPI_Comm aux;  /* checks, and the messages of collectives that MPI's own can't carry out */
} dml__mpi_group;

/* What there is to a request beside ours. */
typedef struct dml__mpi_call {
    int pending;                        /* MPI requests */
    bool checking, checked;             /* before it begins */
    uint8_t said[DML__SIGNATURE_BYTES]; /* what rank 0 of the group does */
    MPI_Datatype types[2];              /* to be released when it ends */
    int type_count;
    const char *result;    /* where it will be, if that isn't where it belongs */
    int *counts, *offsets; /* (world) */
} dml__mpi_call;

typedef struct dml__mpi {
    dml__transport transport; /* first */
    dml__comm_job *job;
    dml__memory *memory;
    int world;
    bool owned; /* we have initialised it */
    bool check; /* DML_COMM_CHECK */
    dml__mpi_group group;
    MPI_Comm control;
    MPI_Op op; /* dml__reduce_elements */
    int most_tag;
    double started_at;
    dml__mpi_call *calls; /* (max_requests + 1) */
    int *all_counts;
    MPI_Request *handles; /* (most) */
    dml_request **owners; /* (most) */
    int *indices;         /* (most) */
    MPI_Status *statuses; /* (most) */
    int most, used;
    /* Control messages on their way. */
    uint8_t *outbox;    /* (letters, DML__CONTROL_BYTES) */
    MPI_Request *posts; /* (letters) */
    int letters;
} dml__mpi;

static dml__mpi *dml__mpi_of(const dml__comm_job *job)
{
    return (dml__mpi *)(void *)job->transport;
}

static dml__mpi_group *dml__mpi_group_of(const dml_comm *comm)
{
    return comm->beneath ? (dml__mpi_group *)comm->beneath : &dml__mpi_of(comm->job)->group;
}

static dml__mpi_call *dml__mpi_call_of(const dml_request *request)
{
    const dml__comm_job *job = request->comm->job;
    return &dml__mpi_of(job)->calls[request - job->requests];
}

/* False: MPI has failed, and with it the job. */
static bool dml__mpi_ok(dml__comm_job *job, const char *doing, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return true;
    MPI_Error_string(code, text, &length);
    dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d: MPI failed in %s: %.200s", job->rank, doing,
                  text);
    return false;
}

static bool dml__mpi_call_ok(const dml_request *request, int code)
{
    char text[DML__SIGNATURE_TEXT];
    if (code == MPI_SUCCESS) return true;
    return dml__mpi_ok(request->comm->job, dml__signature_text(&request->call.signature, text), code);
}

/* The place of the next MPI request of a call. */
static MPI_Request *dml__mpi_handle(dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(request->comm->job);
    DML_ASSERT(mpi->used < mpi->most);
    mpi->owners[mpi->used] = request;
    mpi->handles[mpi->used] = MPI_REQUEST_NULL;
    dml__mpi_call_of(request)->pending++;
    return &mpi->handles[mpi->used++];
}

/* ---- types ---- */

/* To be moved, or to be added as integers that wrap around. */
static MPI_Datatype dml__mpi_element(dml_dtype dtype, bool wraps)
{
    switch (dtype) {
    case DML_F32: return MPI_FLOAT;
    case DML_F64: return MPI_DOUBLE;
    case DML_I32: return wraps ? MPI_UINT32_T : MPI_INT32_T;
    case DML_I64: return wraps ? MPI_UINT64_T : MPI_INT64_T;
    case DML_I8: return wraps ? MPI_UINT8_T : MPI_INT8_T;
    case DML_BF16:
    case DML_F16: return MPI_UINT16_T;
    default: return MPI_UINT8_T;
    }
}

/* `count` elements as one: blocks, and the rest behind them. */
static int dml__mpi_make_large(uint64_t count, MPI_Datatype element, size_t bytes, MPI_Datatype *large)
{
    const int whole = (int)(count / DML__MPI_BLOCK), rest = (int)(count % DML__MPI_BLOCK);
    const int counts[2] = { 1, rest };
    const MPI_Aint offsets[2] = { 0, (MPI_Aint)((size_t)whole * DML__MPI_BLOCK * bytes) };
    MPI_Datatype block, types[2];
    types[1] = element;
    int code = MPI_Type_contiguous(DML__MPI_BLOCK, element, &block);
    if (code) return code;
    code = MPI_Type_contiguous(whole, block, &types[0]);
    MPI_Type_free(&block);
    if (code) return code;
    code = MPI_Type_create_struct(2, counts, offsets, types, large);
    MPI_Type_free(&types[0]);
    return code ? code : MPI_Type_commit(large);
}

/* What stands for `count` elements of a call: so many of `type`, which is released when it ends. */
static int dml__mpi_shape(dml_request *request, uint64_t count, MPI_Datatype *type)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml_dtype dtype = request->call.signature.dtype;
    *type = dml__mpi_element(dtype, false);
    if (count <= DML__MPI_LARGEST) return (int)count;
    if (dml__mpi_call_ok(request, dml__mpi_make_large(count, *type, dml_dtype_size(dtype), type)))
        call->types[call->type_count++] = *type;
    return 1;
}

/* ---- reductions ---- */

/* MPI hands a reduction the type of its elements and no word of the user's: so that type's name says where
   the reduction is described. */
static void dml__mpi_reduce(void *in, void *inout, int *count, MPI_Datatype *type)
{
    char name[MPI_MAX_OBJECT_NAME];
    int length, bytes;
    MPI_Type_get_name(*type, name, &length);
    MPI_Type_size(*type, &bytes);
    const dml__reduction *how = (const dml__reduction *)(uintptr_t)strtoull(name, NULL, 16);
    const size_t elements = (size_t)bytes / dml_dtype_size(how->dtype) * (size_t)*count;
    dml__reduce_elements(how, inout, in, inout, elements);
}

static bool dml__mpi_named_type(dml_request *request, int elements, MPI_Datatype *type)
{
    char name[32];
    dml__mpi_call *call = dml__mpi_call_of(request);
    const int bytes = elements * (int)dml_dtype_size(request->call.signature.dtype);
    if (!dml__mpi_call_ok(request, MPI_Type_contiguous(bytes, MPI_BYTE, type))) return false;
    call->types[call->type_count++] = *type;
    snprintf(name, sizeof name, "%llx", (unsigned long long)(uintptr_t)&request->call.reduction);
    return dml__mpi_call_ok(request, MPI_Type_commit(type)) &&
           dml__mpi_call_ok(request, MPI_Type_set_name(*type, name));
}

/* What MPI can do by itself, or its fabric. Its minimum and maximum of floats say nothing of NaN and -0. */
static bool dml__mpi_knows(const dml__reduction *how, MPI_Op *op)
{
    const bool floats = how->dtype == DML_F32 || how->dtype == DML_F64;
    if (how->function || how->dtype == DML_F16 || how->dtype == DML_BF16) return false;
    switch (how->op) {
    case DML_SUM:
    case DML_MEAN: *op = MPI_SUM; return true;
    case DML_PROD: *op = MPI_PROD; return true;
    case DML_MIN: *op = MPI_MIN; return !floats;
    default: *op = MPI_MAX; return !floats;
    }
}

/* The op, and a type of which each is one element. */
static bool dml__mpi_set_op(dml_request *request, MPI_Op *op, MPI_Datatype *type)
{
    const dml__reduction *how = &request->call.reduction;
    if (dml__mpi_knows(how, op)) {
        *type = dml__mpi_element(how->dtype, how->op != DML_MIN && how->op != DML_MAX);
        return true;
    }
    *op = dml__mpi_of(request->comm->job)->op;
    return dml__mpi_named_type(request, 1, type);
}

/* data[i] at the root, or everywhere (root -1), from `in` (or from there, NULL). */
static bool dml__mpi_post_reduce(dml_request *request, const void *in, void *data, int count,
                                 MPI_Datatype type, MPI_Op op, int root)
{
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    if (!in) in = MPI_IN_PLACE;
    if (root < 0)
        return dml__mpi_call_ok(request,
                                MPI_Iallreduce(in, data, count, type, op, comm, dml__mpi_handle(request)));
    if (request->comm->rank != root && in == MPI_IN_PLACE) in = data;
    return dml__mpi_call_ok(request,
                            MPI_Ireduce(in, data, count, type, op, root, comm, dml__mpi_handle(request)));
}

/* Any count: the whole blocks as elements of their own, then the rest. */
static bool dml__mpi_post_reduces(dml_request *request, const void *in, void *data, uint64_t count,
                                  MPI_Datatype type, MPI_Op op, MPI_Datatype block, int root)
{
    const uint64_t whole = count > DML__MPI_LARGEST ? count / DML__MPI_BLOCK : 0;
    const size_t done = (size_t)(whole * DML__MPI_BLOCK) * dml_dtype_size(request->call.signature.dtype);
    const char *rest = in ? (const char *)in + done : NULL;
    if (whole && !dml__mpi_post_reduce(request, in, data, (int)whole, block,
                                       dml__mpi_of(request->comm->job)->op, root))
        return false;
    return dml__mpi_post_reduce(request, rest, (char *)data + done, (int)(count - whole * DML__MPI_BLOCK),
                                type, op, root);
}

/* What blocks of a larger call are. */
static bool dml__mpi_set_block(dml_request *request, uint64_t most, MPI_Datatype *block)
{
    *block = MPI_BYTE;
    return most <= DML__MPI_LARGEST || dml__mpi_named_type(request, DML__MPI_BLOCK, block);
}

static void dml__mpi_begin_reduce(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    MPI_Op op;
    MPI_Datatype type, block;
    if (dml__mpi_set_op(request, &op, &type) && dml__mpi_set_block(request, signature->count, &block))
        dml__mpi_post_reduces(request, NULL, request->call.out, signature->count, type, op, block,
                              signature->operation == DML__CALL_REDUCE ? signature->root : -1);
}

/* ---- parts ---- */

static uint64_t dml__mpi_part_count(const dml_request *request, int rank)
{
    return request->call.counts ? request->call.counts[rank] : request->call.signature.count;
}

static uint64_t dml__mpi_part_offset(const dml_request *request, int rank)
{
    return request->call.offsets ? request->call.offsets[rank]
                                 : request->call.signature.count * (uint64_t)rank;
}

static char *dml__mpi_part(const dml_request *request, const void *array, int rank)
{
    const size_t element = dml_dtype_size(request->call.signature.dtype);
    return (char *)(uintptr_t)array + (size_t)dml__mpi_part_offset(request, rank) * element;
}

/* Counts and places as MPI wants them; false: they don't fit. */
static bool dml__mpi_set_parts(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    for (int r = 0; r < request->comm->size; r++) {
        const uint64_t count = dml__mpi_part_count(request, r), offset = dml__mpi_part_offset(request, r);
        if (count > DML__MPI_LARGEST || offset > DML__MPI_LARGEST) return false;
        call->counts[r] = (int)count;
        call->offsets[r] = (int)offset;
    }
    return true;
}

static bool dml__mpi_lie_together(const dml_request *request)
{
    for (int r = 0; r + 1 < request->comm->size; r++)
        if (dml__mpi_part_offset(request, r) + dml__mpi_part_count(request, r) !=
            dml__mpi_part_offset(request, r + 1))
            return false;
    return true;
}

/* Part by part, for what MPI has no call for. */
static void dml__mpi_begin_reduce_scatter_parts(dml_request *request)
{
    MPI_Op op;
    MPI_Datatype type, block;
    uint64_t most = 0;
    for (int r = 0; r < request->comm->size; r++)
        if (dml__mpi_part_count(request, r) > most) most = dml__mpi_part_count(request, r);
    bool ok = dml__mpi_set_op(request, &op, &type) && dml__mpi_set_block(request, most, &block);
    for (int r = 0; ok && r < request->comm->size; r++) {
        const char *in = dml__mpi_part(request, request->call.in, r);
        const bool own = r == request->comm->rank && in != request->call.out;
        ok = dml__mpi_post_reduces(request, own ? in : NULL, own ? request->call.out : (void *)(uintptr_t)in,
                                   dml__mpi_part_count(request, r), type, op, block, r);
    }
}

static void dml__mpi_begin_reduce_scatter(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const void *first = dml__mpi_part(request, request->call.in, 0), *in = first;
    void *out = request->call.out;
    MPI_Op op;
    MPI_Datatype type;
    if (!dml__mpi_set_parts(request) || !dml__mpi_lie_together(request)) {
        dml__mpi_begin_reduce_scatter_parts(request);
        return;
    }
    if (!dml__mpi_set_op(request, &op, &type)) return;
    if (out == dml__mpi_part(request, request->call.in, request->comm->rank)) {
        /* MPI doesn't take this, but leaves the result at the beginning. */
        in = MPI_IN_PLACE;
        call->result = (const char *)first;
        out = (void *)(uintptr_t)first;
    }
    MPI_Request *handle = dml__mpi_handle(request);
    dml__mpi_call_ok(request,
                     request->call.counts
                         ? MPI_Ireduce_scatter(in, out, call->counts, type, op, comm, handle)
                         : MPI_Ireduce_scatter_block(in, out, call->counts[0], type, op, comm, handle));
}

/* ---- what only moves ---- */

static bool dml__mpi_post_message(dml_request *request, char *data, uint64_t count, int rank, bool sends)
{
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->aux;
    const dml_dtype dtype = request->call.signature.dtype;
    MPI_Datatype element = dml__mpi_element(dtype, false), type = element;
    const bool large = count > DML__MPI_LARGEST;
    const int many = large ? 1 : (int)count;
    if (!count) return true;
    if (large &&
        !dml__mpi_call_ok(request, dml__mpi_make_large(count, element, dml_dtype_size(dtype), &type)))
        return false;
    MPI_Request *handle = dml__mpi_handle(request);
    const int code = sends ? MPI_Isend(data, many, type, rank, 0, comm, handle)
                           : MPI_Irecv(data, many, type, rank, 0, comm, handle);
    if (large) MPI_Type_free(&type);
    return dml__mpi_call_ok(request, code);
}

/* Parts whose counts or places are too large for MPI's calls, as messages between those two by two. */
static void dml__mpi_begin_messages(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    const int rank = request->comm->rank, root = signature->root;
    const bool scatters = signature->operation == DML__CALL_SCATTER,
               all = signature->operation == DML__CALL_ALL_GATHER;
    const size_t element = dml_dtype_size(signature->dtype);
    const uint64_t own = dml__mpi_part_count(request, rank);
    char *in = (char *)request->call.in, *out = (char *)request->call.out;
    bool ok = true;
    if (scatters && rank != root) ok = dml__mpi_post_message(request, out, own, root, false);
    if (!scatters && !all && rank != root) ok = dml__mpi_post_message(request, in, own, root, true);
    for (int r = 0; ok && (all || rank == root) && r < request->comm->size; r++) {
        if (r == rank) continue;
        const uint64_t count = dml__mpi_part_count(request, r);
        if (scatters) ok = dml__mpi_post_message(request, dml__mpi_part(request, in, r), count, r, true);
        if (!scatters) ok = dml__mpi_post_message(request, dml__mpi_part(request, out, r), count, r, false);
        if (ok && all) ok = dml__mpi_post_message(request, in, own, r, true);
    }
    if (!all && rank != root) return;
    if (scatters) in = dml__mpi_part(request, in, rank);
    if (!scatters) out = dml__mpi_part(request, out, rank);
    if (own && in != out) memmove(out, in, (size_t)own * element);
}

static void dml__mpi_begin_parts(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int rank = request->comm->rank, root = signature->root;
    const MPI_Datatype type = dml__mpi_element(signature->dtype, false);
    const void *in = request->call.in;
    void *out = request->call.out;
    if (!dml__mpi_set_parts(request)) {
        dml__mpi_begin_messages(request);
        return;
    }
    MPI_Request *handle = dml__mpi_handle(request);
    const int own = call->counts[rank];
    int code;
    if (signature->operation == DML__CALL_SCATTER) {
        if (rank == root && out == dml__mpi_part(request, in, rank)) out = MPI_IN_PLACE;
        code = MPI_Iscatterv(in, call->counts, call->offsets, type, out, own, type, root, comm, handle);
    } else if (signature->operation == DML__CALL_GATHER) {
        if (rank == root && in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Igatherv(in, own, type, out, call->counts, call->offsets, type, root, comm, handle);
    } else {
        if (in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Iallgatherv(in, own, type, out, call->counts, call->offsets, type, comm, handle);
    }
    dml__mpi_call_ok(request, code);
}

static void dml__mpi_begin_equal_parts(dml_request *request)
{
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int rank = request->comm->rank, root = signature->root;
    const void *in = request->call.in;
    void *out = request->call.out;
    MPI_Datatype type;
    const int count = dml__mpi_shape(request, signature->count, &type);
    if (request->comm->job->error.status) return;
    MPI_Request *handle = dml__mpi_handle(request);
    int code;
    switch (signature->operation) {
    case DML__CALL_BROADCAST: code = MPI_Ibcast(out, count, type, root, comm, handle); break;
    case DML__CALL_SCATTER:
        if (rank == root && out == dml__mpi_part(request, in, rank)) out = MPI_IN_PLACE;
        code = MPI_Iscatter(in, count, type, out, count, type, root, comm, handle);
        break;
    case DML__CALL_GATHER:
        if (rank == root && in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Igather(in, count, type, out, count, type, root, comm, handle);
        break;
    case DML__CALL_ALL_GATHER:
        if (in == dml__mpi_part(request, out, rank)) in = MPI_IN_PLACE;
        code = MPI_Iallgather(in, count, type, out, count, type, comm, handle);
        break;
    case DML__CALL_ALL_TO_ALL: code = MPI_Ialltoall(in, count, type, out, count, type, comm, handle); break;
    default: code = MPI_Ibarrier(comm, handle); break;
    }
    dml__mpi_call_ok(request, code);
}

/* ---- sends and receives ---- */

static void dml__mpi_begin_pair(dml_request *request)
{
    dml__comm_job *job = request->comm->job;
    const dml__signature *signature = &request->call.signature;
    const MPI_Comm comm = dml__mpi_group_of(request->comm)->main;
    const int most = dml__mpi_of(job)->most_tag / DML__MPI_DTYPES - 1;
    if (request->call.tag > most) {
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "rank %d used tag %d: this MPI has room for tags up to %d", job->rank,
                      request->call.tag, most);
        return;
    }
    const int tag = request->call.tag == DML_ANY_TAG
                        ? MPI_ANY_TAG
                        : request->call.tag * DML__MPI_DTYPES + (int)signature->dtype;
    const int from = signature->root == DML_ANY_SOURCE ? MPI_ANY_SOURCE : signature->root;
    MPI_Datatype type;
    const int count = dml__mpi_shape(request, signature->count, &type);
    if (job->error.status) return;
    MPI_Request *handle = dml__mpi_handle(request);
    dml__mpi_call_ok(request, signature->operation == DML__CALL_SEND
                                  ? MPI_Isend(request->call.out, count, type, from, tag, comm, handle)
                                  : MPI_Irecv(request->call.out, count, type, from, tag, comm, handle));
}

static void dml__mpi_read_status(const MPI_Status *status, dml_message *message)
{
    MPI_Count count = 0;
    message->source = status->MPI_SOURCE;
    message->tag = status->MPI_TAG / DML__MPI_DTYPES;
    message->dtype = (dml_dtype)(status->MPI_TAG % DML__MPI_DTYPES);
    MPI_Get_elements_x(status, dml__mpi_element(message->dtype, false), &count);
    message->count = (size_t)count;
}

/* A receive has got its message, or MPI says that it didn't fit. */
static bool dml__mpi_take_message(dml_request *request, const MPI_Status *status, int code)
{
    const dml_comm *comm = request->comm;
    char text[DML__SIGNATURE_TEXT];
    int kind = MPI_SUCCESS;
    if (code) MPI_Error_class(code, &kind);
    if (kind != MPI_ERR_TRUNCATE && !dml__mpi_call_ok(request, code)) return false;
    dml__mpi_read_status(status, &request->message);
    const bool other = request->message.dtype != request->call.signature.dtype;
    if (!other && kind == MPI_SUCCESS) return true;
    const int from = comm->world_ranks[status->MPI_SOURCE];
    dml__signature_text(&request->call.signature, text);
    dml__job_fail(comm->job, from, DML_ERROR_MISMATCH, "rank %d sent %s%s while rank %d called %s", from,
                  other ? dml_dtype_name(request->message.dtype) : "more elements", other ? " elements" : "",
                  comm->job->rank, text);
    return false;
}

/* ---- a call from its beginning to its end ---- */

static void dml__mpi_end(dml_request *request)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *signature = &request->call.signature;
    const dml__comm_operation operation = signature->operation;
    uint64_t count = signature->count;
    if (operation == DML__CALL_REDUCE_SCATTER) {
        count = dml__mpi_part_count(request, request->comm->rank);
        if (call->result && call->result != request->call.out)
            memmove(request->call.out, call->result, (size_t)count * dml_dtype_size(signature->dtype));
    }
    if (signature->reduce == DML_MEAN &&
        (operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE_SCATTER ||
         (operation == DML__CALL_REDUCE && signature->root == request->comm->rank)))
        dml__finish_mean(&request->call.reduction, request->call.out, (size_t)count, request->comm->size);
    for (int i = 0; i < call->type_count; i++) MPI_Type_free(&call->types[i]);
    call->type_count = 0;
    dml__end_request(request->comm->job, request, DML_OK);
}

static void dml__mpi_begin(dml_request *request)
{
    switch (request->call.signature.operation) {
    case DML__CALL_SEND:
    case DML__CALL_RECEIVE: dml__mpi_begin_pair(request); break;
    case DML__CALL_ALL_REDUCE:
    case DML__CALL_REDUCE: dml__mpi_begin_reduce(request); break;
    case DML__CALL_REDUCE_SCATTER: dml__mpi_begin_reduce_scatter(request); break;
    default:
        if (request->call.counts)
            dml__mpi_begin_parts(request);
        else
            dml__mpi_begin_equal_parts(request);
        break;
    }
    if (!dml__mpi_call_of(request)->pending && !request->comm->job->error.status) dml__mpi_end(request);
}

static void dml__mpi_start(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED,
                      "rank %d called dml_comm_all_reduce_leaves, which MPI has nothing like: set "
                      "DML_COMM_ENGINE=dml",
                      job->rank);
        return;
    }
    call->pending = call->type_count = 0;
    call->result = NULL;
    call->checking = mpi->check && !dml__is_pair(request->call.signature.operation);
    call->checked = false;
    mpi->started_at = dml_seconds();
    if (!call->checking) {
        dml__mpi_begin(request);
        return;
    }
    dml__encode_signature(&request->call.signature, call->said);
    dml__mpi_call_ok(request, MPI_Ibcast(call->said, sizeof call->said, MPI_BYTE, 0,
                                         dml__mpi_group_of(request->comm)->aux, dml__mpi_handle(request)));
}

/* Compares what rank 0 of the group does. */
static void dml__mpi_checked(dml_request *request)
{
    const dml_comm *comm = request->comm;
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *mine = &request->call.signature;
    dml__signature theirs;
    uint8_t bytes[DML__SIGNATURE_BYTES];
    char my_text[DML__SIGNATURE_TEXT], their_text[DML__SIGNATURE_TEXT] = "something else";
    call->checked = true;
    dml__encode_signature(mine, bytes);
    if (memcmp(bytes, call->said, sizeof bytes) == 0) return;
    if (dml__decode_signature(call->said, &theirs)) dml__signature_text(&theirs, their_text);
    dml__job_fail(comm->job, comm->job->rank, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s",
                  comm->world_ranks[0], their_text, comm->job->rank, dml__signature_text(mine, my_text));
}

/* Whether an earlier collective of the same communicator is still being checked. */
static bool dml__mpi_is_behind(const dml__comm_job *job, const dml_request *request)
{
    for (const dml_request *r = job->active; r && r != request; r = r->next)
        if (r->comm == request->comm && dml__mpi_call_of(r)->checking) return true;
    return false;
}

static void dml__mpi_begin_checked(dml__comm_job *job)
{
    for (dml_request *r = job->active, *next; r && !job->error.status; r = next) {
        dml__mpi_call *call = dml__mpi_call_of(r);
        next = r->next;
        if (!call->checking || !call->checked || dml__mpi_is_behind(job, r)) continue;
        call->checking = false;
        dml__mpi_begin(r);
    }
}

static void dml__mpi_handle_done(dml_request *request, const MPI_Status *status, int code)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_RECEIVE) {
        if (!dml__mpi_take_message(request, status, code)) return;
    } else if (!dml__mpi_call_ok(request, code)) {
        return;
    }
    if (--call->pending) return;
    if (call->checking)
        dml__mpi_checked(request);
    else
        dml__mpi_end(request);
}

/* What is over makes room. */
static void dml__mpi_close_ranks(dml__mpi *mpi)
{
    int used = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->handles[i] == MPI_REQUEST_NULL) continue;
        mpi->handles[used] = mpi->handles[i];
        mpi->owners[used++] = mpi->owners[i];
    }
    mpi->used = used;
}

static void dml__mpi_progress(dml__comm_job *job)
{
    dml__mpi *mpi = dml__mpi_of(job);
    int done = 0;
    if (job->error.status || !mpi->used) return;
    const int code = MPI_Testsome(mpi->used, mpi->handles, &done, mpi->indices, mpi->statuses);
    if (code && code != MPI_ERR_IN_STATUS && !dml__mpi_ok(job, "MPI_Testsome", code)) return;
    if (done == MPI_UNDEFINED || done == 0) return;
    for (int i = 0; i < done && !job->error.status; i++)
        dml__mpi_handle_done(mpi->owners[mpi->indices[i]], &mpi->statuses[i],
                             code ? mpi->statuses[i].MPI_ERROR : MPI_SUCCESS);
    dml__mpi_close_ranks(mpi);
    if (mpi->check) dml__mpi_begin_checked(job);
}

static bool dml__mpi_cancel(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    MPI_Status status;
    int cancelled = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->owners[i] != request) continue;
        MPI_Cancel(&mpi->handles[i]);
        const int code = MPI_Wait(&mpi->handles[i], &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (!cancelled) dml__mpi_handle_done(request, &status, code);
        dml__mpi_close_ranks(mpi);
        break;
    }
    dml__mpi_call *call = dml__mpi_call_of(request);
    for (int i = 0; cancelled && i < call->type_count; i++) MPI_Type_free(&call->types[i]);
    return cancelled != 0;
}

static bool dml__mpi_probe(dml__comm_job *job, dml_comm *comm, int from, int tag, dml_message *message)
{
    dml__mpi *mpi = dml__mpi_of(job);
    const MPI_Comm group = comm ? dml__mpi_group_of(comm)->main : mpi->group.main;
    const int source = from == DML_ANY_SOURCE ? MPI_ANY_SOURCE : from;
    MPI_Status status;
    int found = 0;
    if (tag > mpi->most_tag / DML__MPI_DTYPES - 1) return false;
    for (int dtype = 0; dtype < DML__MPI_DTYPES && !found; dtype++) {
        const int code = MPI_Iprobe(source, tag == DML_ANY_TAG ? MPI_ANY_TAG : tag * DML__MPI_DTYPES + dtype,
                                    group, &found, &status);
        if (!dml__mpi_ok(job, "MPI_Iprobe", code)) return false;
        if (tag == DML_ANY_TAG) break;
    }
    if (found) dml__mpi_read_status(&status, message);
    return found != 0;
}

/* ---- groups ---- */

static bool dml__mpi_make_group(dml__comm_job *job, MPI_Comm main, dml__mpi_group *group)
{
    group->main = main;
    return dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(main, &group->aux)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(main, MPI_ERRORS_RETURN)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                       MPI_Comm_set_errhandler(group->aux, MPI_ERRORS_RETURN));
}

static bool dml__mpi_split(dml__comm_job *job, dml_comm *comm, dml_comm *group, int color, int key)
{
    MPI_Comm part;
    const int code =
        MPI_Comm_split(dml__mpi_group_of(comm)->main, color < 0 ? MPI_UNDEFINED : color, key, &part);
    if (!dml__mpi_ok(job, "MPI_Comm_split", code)) return false;
    if (!group) return true;
    group->beneath = dml__allocate(&job->memory, sizeof(dml__mpi_group));
    if (group->beneath) return dml__mpi_make_group(job, part, (dml__mpi_group *)group->beneath);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator", job->rank);
    return false;
}

static void dml__mpi_leave(dml__comm_job *job, dml_comm *comm)
{
    dml__mpi_group *group = (dml__mpi_group *)comm->beneath;
    if (!dml__is_copy(job) && !job->error.status) {
        MPI_Comm_free(&group->aux);
        MPI_Comm_free(&group->main);
    }
    dml__release(&job->memory, group);
}

/* ---- control ---- */

static ptrdiff_t dml__mpi_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    for (int i = 0; i < mpi->letters; i++) {
        int free_now = 0;
        uint8_t *letter = mpi->outbox + (size_t)i * DML__CONTROL_BYTES;
        MPI_Test(&mpi->posts[i], &free_now, MPI_STATUS_IGNORE);
        if (!free_now) continue;
        memcpy(letter, spans->data, DML__CONTROL_BYTES);
        return MPI_Isend(letter, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, &mpi->posts[i])
                   ? DML__GONE
                   : DML__CONTROL_BYTES;
    }
    return 0;
}

static ptrdiff_t dml__mpi_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    if (MPI_Iprobe(rank, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (!found) return 0;
    return MPI_Recv(spans->data, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, MPI_STATUS_IGNORE)
               ? DML__GONE
               : DML__CONTROL_BYTES;
}

/* MPI has nothing to sleep in: first others of this processor get their turn, then it naps for a small part
   of the time that has passed already. */
static void dml__mpi_nap(const dml__mpi *mpi, double seconds)
{
    const double since = mpi->job->moved_at > mpi->started_at ? mpi->job->moved_at : mpi->started_at;
    double nap = (dml_seconds() - since) / 16;
    struct timespec time;
    if (nap < 50e-6) {
        sched_yield();
        return;
    }
    if (nap > 1e-3) nap = 1e-3;
    if (nap > seconds) nap = seconds;
    time.tv_sec = 0;
    time.tv_nsec = (long)(nap * 1e9);
    nanosleep(&time, NULL);
}

static int dml__mpi_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    (void)wishes;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (found) return DML__READY_CONTROL;
    if (seconds > 0) dml__mpi_nap(mpi, seconds);
    return 0;
}

/* Nobody sleeps for longer than a millisecond. */
static void dml__mpi_wake(dml__transport *transport)
{
    (void)transport;
}

static const char *dml__mpi_medium(const dml__transport *transport, int rank)
{
    (void)transport;
    (void)rank;
    return "mpi";
}

static void dml__mpi_release(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    dml__memory *memory = mpi->memory;
    dml__release(memory, mpi->posts);
    dml__release(memory, mpi->outbox);
    dml__release(memory, mpi->statuses);
    dml__release(memory, mpi->indices);
    dml__release(memory, mpi->owners);
    dml__release(memory, mpi->handles);
    dml__release(memory, mpi->all_counts);
    dml__release(memory, mpi->calls);
    dml__release(memory, mpi);
}

/* The last words of this rank have gone, or there is no more time. */
static void dml__mpi_post_rest(dml__mpi *mpi)
{
    const double until = dml_seconds() + mpi->job->grace;
    int gone = 0;
    while (!gone && dml_seconds() < until)
        if (MPI_Testall(mpi->letters, mpi->posts, &gone, MPI_STATUSES_IGNORE)) break;
}

/* After an error something may be under way that never ends, for which MPI_Finalize would wait: then MPI is
   left as it is. */
static void dml__mpi_close(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (mpi->posts) dml__mpi_post_rest(mpi);
    if (!mpi->job->error.status) {
        MPI_Op_free(&mpi->op);
        MPI_Comm_free(&mpi->control);
        MPI_Comm_free(&mpi->group.aux);
        MPI_Comm_free(&mpi->group.main);
        if (mpi->owned) MPI_Finalize();
    }
    dml__mpi_release(transport);
}

/* ---- opening ---- */

static bool dml__mpi_allocate(dml__mpi *mpi, int max_requests)
{
    const size_t calls = (size_t)max_requests + 1, world = (size_t)mpi->world;
    dml__memory *memory = mpi->memory;
    if (calls * (2 * world + 1) > INT_MAX) return false;
    mpi->most = (int)(calls * (2 * world + 1));
    mpi->letters = 2 * mpi->world + 6;
    const size_t most = (size_t)mpi->most, letters = (size_t)mpi->letters;
    mpi->calls = (dml__mpi_call *)dml__allocate_array(memory, calls, sizeof *mpi->calls);
    mpi->all_counts = (int *)dml__allocate_unset(memory, calls * 2 * world * sizeof *mpi->all_counts);
    mpi->handles = (MPI_Request *)dml__allocate_unset(memory, most * sizeof *mpi->handles);
    mpi->owners = (dml_request **)dml__allocate_unset(memory, most * sizeof *mpi->owners);
    mpi->indices = (int *)dml__allocate_unset(memory, most * sizeof *mpi->indices);
    mpi->statuses = (MPI_Status *)dml__allocate_unset(memory, most * sizeof *mpi->statuses);
    mpi->outbox = (uint8_t *)dml__allocate_unset(memory, letters * DML__CONTROL_BYTES);
    mpi->posts = (MPI_Request *)dml__allocate_unset(memory, letters * sizeof *mpi->posts);
    if (!mpi->calls || !mpi->all_counts || !mpi->handles || !mpi->owners || !mpi->indices || !mpi->statuses ||
        !mpi->outbox || !mpi->posts)
        return false;
    for (size_t i = 0; i < calls; i++) {
        mpi->calls[i].counts = mpi->all_counts + 2 * i * world;
        mpi->calls[i].offsets = mpi->calls[i].counts + world;
    }
    for (size_t i = 0; i < letters; i++) mpi->posts[i] = MPI_REQUEST_NULL;
    return true;
}

/* MPI itself, unless the program has it already. */
static bool dml__mpi_initialise(dml__comm_job *job, bool *owned)
{
    int initialised = 0, finalised = 0, level = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised) {
        dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "dml_comm_open: MPI was finalised already, and can't be initialised twice: call MPI_Init "
            "before the first communicator is opened and MPI_Finalize after the last one is closed");
        return false;
    }
    *owned = !initialised;
    if (!initialised &&
        !dml__mpi_ok(job, "MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)))
        return false;
    MPI_Query_thread(&level);
    job->alone = level < MPI_THREAD_SERIALIZED;
    return true;
}

static bool dml__mpi_meet(dml__comm_job *job, dml__mpi *mpi)
{
    MPI_Comm main;
    void *most_tag;
    int has_tag = 0;
    if (!dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &main)) ||
        !dml__mpi_make_group(job, main, &mpi->group) ||
        !dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control)) ||
        !dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                     MPI_Comm_set_errhandler(mpi->control, MPI_ERRORS_RETURN)) ||
        !dml__mpi_ok(job, "MPI_Op_create", MPI_Op_create(dml__mpi_reduce, 1, &mpi->op)))
        return false;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tag, &has_tag);
    mpi->most_tag = has_tag ? *(int *)most_tag : 32767;
    return true;
}

static dml__transport *dml__mpi_open(dml__comm_job *job, dml__comm_settings *settings)
{
    static const dml__transport_calls calls = {
        "mpi",           dml__mpi_send,  dml__mpi_receive, NULL, NULL, NULL, dml__mpi_wait, dml__mpi_wake,
        dml__mpi_medium, dml__mpi_close, dml__mpi_release,
    };
    const int given_rank = settings->net.rank, given_world = settings->net.world;
    const char *check = getenv("DML_COMM_CHECK");
    bool owned;
    if (!dml__mpi_initialise(job, &owned)) return NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &settings->net.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &settings->net.world);
    if (given_world > 1 && (given_world != settings->net.world || given_rank != settings->net.rank)) {
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "dml_comm_open: rank %d of %d was asked for, but MPI says rank %d of %d", given_rank,
                      given_world, settings->net.rank, settings->net.world);
        return NULL;
    }
    dml__mpi *mpi = (dml__mpi *)dml__allocate(&job->memory, sizeof *mpi);
    if (mpi) {
        mpi->transport.calls = &calls;
        mpi->job = job;
        mpi->memory = &job->memory;
        mpi->world = settings->net.world;
        mpi->owned = owned;
        mpi->check = check && strcmp(check, "1") == 0;
        if (dml__mpi_allocate(mpi, settings->max_requests)) {
            if (dml__mpi_meet(job, mpi)) return &mpi->transport;
        } else {
            dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY,
                          "rank %d has no memory for its communicator", settings->net.rank);
        }
        dml__mpi_release(&mpi->transport);
    } else {
        dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      settings->net.rank);
    }
    return NULL;
}

DML__LOCAL const dml__engine *dml__mpi_engine(void)
{
    static const dml__engine engine = { "mpi",           dml__mpi_open,  dml__mpi_start, dml__mpi_progress,
                                        dml__mpi_cancel, dml__mpi_probe, dml__mpi_split, dml__mpi_leave };
    return &engine;
}

#endif

#endif
DML__DRIVERS_BEGIN

/* ---- comm/open.c ---- */

#ifndef DML_COMM_OPEN_C
#define DML_COMM_OPEN_C

#include <string.h>
#include <unistd.h>

/* Opening, splitting and closing. */

/* ---- memory ---- */

/* Bytes of early messages that a rank keeps of each other, in a small world. */
#define DML__EAGER_ROOM 65536
#define DML__SCRATCH_BYTES 16384

/* What is kept for a rank: half of it short messages, and behind that an announcement and a grant for each
   request that can be out. */
static void dml__size_store(dml__comm_job *job)
{
    size_t room = DML__EAGER_ROOM;
    while (room > 4096 && room * (size_t)job->world > (size_t)4 << 20) room /= 2;
    const size_t small = 2 * DML__FRAME_BYTES * ((size_t)job->max_requests + 1);
    job->store_bytes = room + small > 2 * small ? room + small : 2 * small;
    job->eager_bytes = room / 4;
    if (!dml__wire_is_native()) job->eager_bytes = DML__SWAP_BYTES;
    job->scratch_bytes = DML__SCRATCH_BYTES;
}

static bool dml__allocate_links(dml__comm_job *job)
{
    const size_t world = (size_t)job->world;
    dml__memory *memory = &job->memory;
    job->peers = (dml__peer *)dml__allocate_array(memory, world, sizeof *job->peers);
    job->links = (dml__link *)dml__allocate_array(memory, world, sizeof *job->links);
    job->wishes = (uint8_t *)dml__allocate(memory, world);
    job->stage = (char *)dml__allocate_unset(memory, DML__STAGE_BYTES);
    if (!job->peers || !job->links || !job->wishes || !job->stage) return false;
    for (int rank = 0; rank < job->world; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        link->traffic = &job->stats.tcp;
        link->store = (uint8_t *)dml__allocate_unset(memory, job->store_bytes);
        if (!link->store) return false;
        if (dml__wire_is_native()) continue;
        link->swapped = (uint8_t *)dml__allocate_unset(memory, DML__SWAP_BYTES);
        if (!link->swapped) return false;
    }
    return true;
}

static bool dml__allocate_requests(dml__comm_job *job)
{
    const size_t count = (size_t)job->max_requests + 1;
    dml__memory *memory = &job->memory;
    job->most_steps = dml__most_steps(job->world);
    job->most_flows = 2 * job->world;
    const size_t steps = (size_t)job->most_steps, flows = (size_t)job->most_flows;
    job->requests = (dml_request *)dml__allocate_array(memory, count, sizeof *job->requests);
    job->all_steps = (dml__step *)dml__allocate_unset(memory, count * steps * sizeof *job->all_steps);
    job->all_states = (dml__step_state *)dml__allocate_unset(memory, count * steps * sizeof *job->all_states);
    job->all_flows = (dml__flow *)dml__allocate_unset(memory, count * flows * sizeof *job->all_flows);
    job->all_scratch = (char *)dml__allocate_unset(memory, count * job->scratch_bytes);
    if (!job->requests || !job->all_steps || !job->all_states || !job->all_flows || !job->all_scratch)
        return false;
    for (size_t i = 0; i < count; i++) {
        dml_request *request = &job->requests[i];
        request->schedule.steps = job->all_steps + i * steps;
        request->schedule.capacity = job->most_steps;
        request->states = job->all_states + i * steps;
        request->flows = job->all_flows + i * flows;
        request->scratch = job->all_scratch + i * job->scratch_bytes;
        if (i + 1 < count) dml__free_request(job, request);
    }
    return true;
}

/* ---- communicators ---- */

static dml_comm *dml__new_comm(dml__comm_job *job, uint32_t id, int rank, int size)
{
    dml_comm *comm = (dml_comm *)dml__allocate(&job->memory, sizeof *comm);
    if (!comm) return NULL;
    comm->world_ranks = (int *)dml__allocate_array(&job->memory, (size_t)size, sizeof(int));
    comm->offsets = (size_t *)dml__allocate_array(&job->memory, (size_t)size, sizeof(size_t));
    if (!comm->world_ranks || !comm->offsets) {
        dml__release(&job->memory, comm->world_ranks);
        dml__release(&job->memory, comm->offsets);
        dml__release(&job->memory, comm);
        return NULL;
    }
    comm->job = job;
    comm->id = id;
    comm->rank = rank;
    comm->size = size;
    for (int r = 0; r < size; r++) comm->world_ranks[r] = r;
    dml__first_choice(comm);
    comm->next = job->comms;
    job->comms = comm;
    return comm;
}

static void dml__free_comm(dml__comm_job *job, dml_comm *comm)
{
    dml_comm **at = &job->comms;
    while (*at && *at != comm) at = &(*at)->next;
    if (*at) *at = comm->next;
    if (comm->beneath) job->engine->leave(job, comm);
    dml__release(&job->memory, comm->offsets);
    dml__release(&job->memory, comm->world_ranks);
    dml__release(&job->memory, comm);
}

/* ---- jobs ---- */

static void dml__count_traffic(dml__comm_job *job)
{
    for (int rank = 0; rank < job->world; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        const char *medium = job->transport->calls->medium(job->transport, rank);
        link->traffic = strcmp(medium, "tcp") == 0   ? &job->stats.tcp
                        : strcmp(medium, "shm") == 0 ? &job->stats.shm
                                                     : &job->stats.local;
    }
}

/* The user of the rendezvous. */
static void dml__meeting_failed(void *user, dml__transport *transport, int culprit, dml_status status,
                                const char *text)
{
    dml__comm_job *job = (dml__comm_job *)user;
    job->transport = transport;
    dml__job_fail(job, culprit, status, "%s", text);
}

static bool dml__meeting_control(void *user, dml__transport *transport, dml__meeting *meeting)
{
    dml__comm_job *job = (dml__comm_job *)user;
    job->transport = transport;
    job->meeting = meeting;
    const dml_status status = dml__read_control(job);
    /* Nobody leaves a rendezvous in good order. */
    for (int rank = 0; rank < job->world && !job->error.status; rank++)
        if (job->peers[rank].gone)
            dml__job_fail(job, rank, DML_ERROR_PEER,
                          "rank %d of %d died: its connection ended without a goodbye", rank, job->world);
    job->meeting = NULL;
    return !status && !job->error.status;
}

static void dml__release_job(dml__comm_job *job)
{
    dml__memory memory = job->memory;
    dml__release_trace(job);
    while (job->comms) dml__free_comm(job, job->comms);
    for (int rank = 0; job->links && rank < job->world; rank++) {
        dml__release(&memory, job->links[rank].swapped);
        dml__release(&memory, job->links[rank].store);
    }
    dml__release(&memory, job->all_scratch);
    dml__release(&memory, job->all_flows);
    dml__release(&memory, job->all_states);
    dml__release(&memory, job->all_steps);
    dml__release(&memory, job->requests);
    dml__release(&memory, job->stage);
    dml__release(&memory, job->wishes);
    dml__release(&memory, job->links);
    dml__release(&memory, job->peers);
    dml__unmark_process(job->mark);
    dml__release(&memory, job);
}

static dml__comm_job *dml__new_job(const dml_comm_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml__comm_job *job = (dml__comm_job *)dml__allocate(&memory, sizeof *job);
    if (!job) return NULL;
    job->memory = memory;
    job->process = (long)getpid();
    job->mark = dml__mark_process();
    job->logger.callback = options->log;
    job->logger.user = options->log_user;
    job->isa = dml_cpu_isa();
    job->world = 1;
    const bool gate = dml__mutex_init(&job->gate), mutex = gate && dml__mutex_init(&job->mutex);
    if (mutex && dml__cond_init(&job->changed)) return job;
    if (mutex) dml__mutex_destroy(&job->mutex);
    if (gate) dml__mutex_destroy(&job->gate);
    dml__unmark_process(job->mark);
    dml__release(&memory, job);
    return NULL;
}

static void dml__destroy_job(dml__comm_job *job)
{
    dml__cond_destroy(&job->changed);
    dml__mutex_destroy(&job->mutex);
    dml__mutex_destroy(&job->gate);
    dml__release_job(job);
}

static bool dml__equip_job(dml__comm_job *job, const dml__comm_settings *settings)
{
    job->rank = settings->net.rank;
    job->world = settings->net.world;
    job->timeout = settings->net.timeout;
    job->grace = settings->net.grace;
    job->segment_bytes = settings->net.segment_bytes;
    if (!dml__wire_is_native() && job->segment_bytes > DML__SWAP_BYTES) job->segment_bytes = DML__SWAP_BYTES;
    job->max_requests = settings->max_requests;
    /* Without a key all ranks are on this host, where memory is what is slow. Between hosts each round would
       cost a few times the latency. */
    job->round_bytes = settings->net.key ? 0 : DML__ROUND_BYTES;
    if (settings->algorithm) strncpy(job->algorithm, settings->algorithm, sizeof job->algorithm - 1);
    job->deterministic = settings->deterministic;
    job->latency = settings->latency;
    job->bandwidth = settings->bandwidth;
    job->measures = !settings->algorithm && settings->latency == 0;
    dml__size_store(job);
    if (dml__allocate_links(job) && dml__allocate_requests(job)) return true;
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator", job->rank);
    return false;
}

static bool dml__sharing_control(void *user)
{
    return dml__read_control((dml__comm_job *)user) == DML_OK;
}

/* Ranks of one host find each other. */
static void dml__share_memory(dml__comm_job *job, const dml__comm_settings *settings)
{
    dml__shm_settings shm;
    int culprit;
    memset(&shm, 0, sizeof shm);
    shm.rank = job->rank;
    shm.world = job->world;
    shm.off = settings->only_tcp;
    shm.spin = -1;
    shm.seconds = job->timeout;
    shm.control = dml__sharing_control;
    shm.user = job;
    dml__transport *transport =
        dml__shm_open(job->transport, &shm, dml__system_host(), &job->memory, &culprit);
    if (transport)
        job->transport = transport;
    else if (culprit == job->rank)
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      job->rank);
    else if (culprit >= 0 && dml__hear_last_words(job, culprit) == DML_OK)
        dml__job_fail(job, culprit, DML_ERROR_PEER, "rank %d of %d left during the rendezvous", culprit,
                      job->world);
}

/* Who waits looks again for a while, about as long as it takes to sleep and be woken. Where ranks may have to
   share processors (those over TCP may be of this host too) it lets others have its own at each look. */
static void dml__plan_waits(dml__comm_job *job)
{
    int here = 1;
    for (int rank = 0; rank < job->world; rank++)
        if (rank != job->rank && strcmp(job->transport->calls->medium(job->transport, rank), "tcp") != 0)
            here++;
    job->yields = here < job->world || here > dml_cpu_count();
    job->spin = job->yields ? 100e-6 : 50e-6;
}

static void dml__meet_others(dml__comm_job *job, const dml__comm_settings *settings,
                             const dml__socket_calls *sockets)
{
    dml__net_user user;
    user.memory = &job->memory;
    user.logger = &job->logger;
    user.strangers = &job->strangers;
    user.user = job;
    user.fail = dml__meeting_failed;
    user.control = dml__meeting_control;
    job->transport = dml__tcp_open(&settings->net, sockets, &user);
    if (job->transport) dml__share_memory(job, settings);
    if (job->transport) dml__plan_waits(job);
}

static void dml__open_engine(dml__comm_job *job, dml__comm_settings *settings)
{
    dml__transport *transport = settings->engine->open(job, settings);
    if (!transport) return;
    job->engine = settings->engine;
    if (dml__equip_job(job, settings))
        job->transport = transport;
    else
        transport->calls->close(transport);
}

DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml_comm_options defaults;
    memset(&defaults, 0, sizeof defaults);
    if (!options) options = &defaults;
    dml__comm_job *job = dml__new_job(options);
    if (!job) return NULL;
    dml__comm_settings settings;
    if (dml__read_comm_settings(options, &settings, &job->error)) {
        if (settings.engine)
            dml__open_engine(job, &settings);
        else if (dml__equip_job(job, &settings) && job->world > 1)
            dml__meet_others(job, &settings, sockets);
    }
    if (job->transport && !job->engine && !job->error.status) dml__count_traffic(job);
    dml_comm *comm = dml__new_comm(job, job->next_id++, job->rank, job->world);
    if (!comm) {
        if (job->transport) job->transport->calls->close(job->transport);
        dml__destroy_job(job);
        return NULL;
    }
    if (job->transport && !job->engine && !job->error.status) dml__agree_in_world(comm);
    memset(&job->stats, 0, sizeof job->stats); /* of what is called from now on */
    if (job->rank == 0 && !job->engine && !job->error.status) dml__log_description(comm);
    dml__open_trace(comm, &settings.trace);
    if (options->progress_thread && !job->error.status) dml__start_helper(job);
    return comm;
}

/* ---- ranks of one process ---- */

/* What the ranks of a local job have in common; the last one to close releases it. */
typedef struct dml__local_job {
    dml__memory memory;
    dml__local_world *world;
    dml__mutex mutex;
    int open;
} dml__local_job;

static void dml__leave_local(dml__local_job *local)
{
    dml__mutex_lock(&local->mutex);
    const bool last = --local->open == 0;
    dml__mutex_unlock(&local->mutex);
    if (!last) return;
    dml__memory memory = local->memory;
    dml__local_world_destroy(local->world);
    dml__mutex_destroy(&local->mutex);
    dml__release(&memory, local);
}

static dml__local_job *dml__new_local_job(const dml_comm_options *options, int world)
{
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml__local_job *local = (dml__local_job *)dml__allocate(&memory, sizeof *local);
    if (!local) return NULL;
    local->memory = memory;
    local->open = 1;
    if (!dml__mutex_init(&local->mutex)) {
        dml__release(&memory, local);
        return NULL;
    }
    local->world = dml__local_world_create(&local->memory, world, -1);
    if (local->world) return local;
    dml__mutex_destroy(&local->mutex);
    dml__release(&memory, local);
    return NULL;
}

static dml_comm *dml__open_local_rank(const dml_comm_options *options, const dml__comm_settings *settings,
                                      dml__local_job *local)
{
    dml__comm_job *job = dml__new_job(options);
    if (!job) return NULL;
    dml_comm *comm = NULL;
    if (dml__equip_job(job, settings)) comm = dml__new_comm(job, job->next_id++, job->rank, job->world);
    if (!comm) {
        dml__destroy_job(job);
        return NULL;
    }
    job->local = local;
    job->transport = dml__local_open(local->world, job->rank);
    if (job->transport) dml__plan_waits(job);
    dml__count_traffic(job);
    dml__mutex_lock(&local->mutex);
    local->open++;
    dml__mutex_unlock(&local->mutex);
    dml__open_trace(comm, &settings->trace);
    if (options->progress_thread) dml__start_helper(job);
    return comm;
}

DML_API dml_status dml_comm_open_local(dml_comm **comms, int world, const dml_comm_options *options)
{
    dml_comm_options own;
    dml__comm_settings settings;
    dml__error error;
    if (!comms || world < 1 || world > 4096) return DML_ERROR_ARGUMENT;
    memset(&own, 0, sizeof own);
    memset(&error, 0, sizeof error);
    if (options) own = *options;
    for (int rank = 0; rank < world; rank++) comms[rank] = NULL;
    own.rank = 0;
    own.world_size = world;
    if (!dml__read_comm_settings(&own, &settings, &error)) return error.status;
    dml__local_job *local = dml__new_local_job(&own, world);
    bool opened = local != NULL;
    for (int rank = 0; rank < world && opened; rank++) {
        settings.net.rank = rank;
        comms[rank] = dml__open_local_rank(&own, &settings, local);
        opened = comms[rank] != NULL;
    }
    opened = opened && dml__choose_alone(comms[0]);
    for (int rank = 1; rank < world && opened; rank++) comms[rank]->choice = comms[0]->choice;
    if (opened) dml__log_description(comms[0]);
    for (int rank = 0; rank < world && !opened; rank++) {
        if (!comms[rank]) continue;
        comms[rank]->job->error.status = DML_ERROR_MEMORY; /* nothing to wait for when it closes */
        dml_comm_close(comms[rank]);
        comms[rank] = NULL;
    }
    if (local) dml__leave_local(local);
    return opened ? DML_OK : DML_ERROR_MEMORY;
}

DML_API dml_comm *dml_comm_open(const dml_comm_options *options)
{
    return dml__comm_open_on(options, dml__system_sockets());
}

DML_API dml_status dml_comm_start_progress_thread(dml_comm *comm)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm->job)) return DML_ERROR_STATE;
    dml__enter_job(comm->job);
    const dml_status status = dml__start_helper(comm->job);
    dml__leave_job(comm->job);
    return status;
}

/* ---- groups ---- */

/* What each rank says of itself in a split; of those with one color the order is by key, then by rank. */
typedef struct dml__membership {
    int64_t color, key, next_id;
} dml__membership;

static bool dml__goes_before(const dml__membership *all, int a, int b)
{
    return all[a].key < all[b].key || (all[a].key == all[b].key && a < b);
}

static dml_comm *dml__make_group(dml_comm *comm, const dml__membership *all)
{
    dml__comm_job *job = comm->job;
    const int64_t color = all[comm->rank].color;
    uint32_t id = 0;
    int size = 0, rank = 0;
    for (int r = 0; r < comm->size; r++) {
        if ((uint32_t)all[r].next_id > id) id = (uint32_t)all[r].next_id;
        if (all[r].color != color) continue;
        size++;
        if (dml__goes_before(all, r, comm->rank)) rank++;
    }
    job->next_id = id + 1;
    if (color < 0) return NULL;
    dml_comm *group = dml__new_comm(job, id, rank, size);
    if (!group) {
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator",
                      job->rank);
        return NULL;
    }
    for (int r = 0; r < comm->size; r++) {
        if (all[r].color != color) continue;
        int place = 0;
        for (int o = 0; o < comm->size; o++)
            if (all[o].color == color && dml__goes_before(all, o, r)) place++;
        group->world_ranks[place] = comm->world_ranks[r];
    }
    memcpy(group->functions, comm->functions, sizeof comm->functions);
    memcpy(group->function_users, comm->function_users, sizeof comm->function_users);
    group->function_count = comm->function_count;
    return group;
}

DML_API dml_comm *dml_comm_split(dml_comm *comm, int color, int key)
{
    if (!comm || dml_comm_status(comm)) return NULL;
    dml__comm_job *job = comm->job;
    dml__membership *all =
        (dml__membership *)dml__allocate_array(&job->memory, (size_t)comm->size, sizeof *all);
    if (!all) {
        dml__enter_job(job);
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator",
                      job->rank);
        dml__leave_job(job);
        return NULL;
    }
    all[comm->rank].color = color < 0 ? -1 : color;
    all[comm->rank].key = key;
    all[comm->rank].next_id = job->next_id;
    dml_comm *group = NULL;
    if (dml_comm_all_gather(comm, &all[comm->rank], 3, DML_I64, all) == DML_OK) {
        dml__enter_job(job);
        group = dml__make_group(comm, all);
        if (job->engine && !job->error.status && !job->engine->split(job, comm, group, color, key) && group) {
            dml__free_comm(job, group);
            group = NULL;
        }
        dml__leave_job(job);
        if (group && !job->engine) dml__agree_in_group(group, comm);
    }
    dml__release(&job->memory, all);
    return group;
}

/* ---- closing ---- */

static bool dml__all_said_goodbye(dml__comm_job *job, void *user)
{
    const bool last = *(const bool *)user;
    for (int rank = 0; rank < job->world; rank++) {
        const dml__peer *peer = &job->peers[rank];
        if (rank != job->rank && !peer->gone && !(last ? peer->farewell : peer->goodbye)) return false;
    }
    return true;
}

/* False: the job has failed. */
static bool dml__take_leave(dml__comm_job *job, bool last)
{
    if (job->error.status) return false;
    dml__say_goodbye(job, last);
    dml__wait_until(job, dml__all_said_goodbye, &last, dml_seconds() + job->timeout);
    return !job->error.status;
}

static void dml__judge_unreceived(dml__comm_job *job)
{
    dml_message message;
    if (job->engine->probe(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &message))
        dml__job_fail(job, message.source, DML_ERROR_MISMATCH,
                      "rank %d called send(%s, %llu, to %d) with tag %d, which rank %d never received",
                      message.source, dml_dtype_name(message.dtype), (unsigned long long)message.count,
                      job->rank, message.tag, job->rank);
}

/* What came and was never asked for. */
static void dml__judge_leftovers(dml__comm_job *job)
{
    dml__frame frame;
    int rank;
    char text[DML__SIGNATURE_TEXT];
    if (job->engine) {
        dml__judge_unreceived(job);
        return;
    }
    if (!dml__find_stored(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &rank, &frame)) return;
    dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                  dml__is_pair(frame.signature.operation)
                      ? "rank %d called %s with tag %d, which rank %d never received"
                      : "rank %d called %s (%d) and rank %d closed its communicator without calling it",
                  rank, dml__signature_text(&frame.signature, text), frame.tag, job->rank);
}

static void dml__close_in_order(dml__comm_job *job)
{
    dml__wait_until(job, dml__none_active, NULL, -1);
    if (!dml__take_leave(job, false)) return;
    job->look_around = true;
    dml__make_progress(job);
    for (int rank = 0; job->outlives && !job->engine && rank < job->world; rank++)
        if (job->links[rank].gone) job->links[rank].store_used = 0; /* who died couldn't know */
    dml__judge_leftovers(job);
    dml__take_leave(job, true);
}

static bool dml__comm_is_idle(dml__comm_job *job, void *user)
{
    const dml_comm *comm = (const dml_comm *)user;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->comm == comm) return false;
    for (const dml_request *r = job->unmatched; r; r = r->next)
        if (r->comm == comm) return false;
    return true;
}

/* What was started on one of several communicators ends, and its requests are free again. */
static void dml__finish_comm(dml__comm_job *job, dml_comm *comm)
{
    dml__wait_until(job, dml__comm_is_idle, comm, -1);
    for (int i = 0; i < job->max_requests; i++) {
        dml_request *request = &job->requests[i];
        if (request->comm != comm || request->state == DML__REQUEST_FREE) continue;
        if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, job->error.status);
        dml__free_request(job, request);
    }
}

DML_API dml_status dml_comm_close(dml_comm *comm)
{
    if (!comm) return DML_OK;
    dml__comm_job *job = comm->job;
    const bool last = job->comms == comm && !comm->next;
    if (dml__is_copy(job)) {
        /* Mutexes and the condition stay as the fork found them: destroying them would wait for threads. */
        if (!last) {
            dml__free_comm(job, comm);
            return DML_ERROR_STATE;
        }
        if (job->transport) job->transport->calls->abandon(job->transport);
        dml__release_job(job);
        return DML_ERROR_STATE;
    }
    dml__enter_job(job);
    if (!last) {
        if (job->requests) dml__finish_comm(job, comm);
        const dml_status status = job->error.status;
        dml__free_comm(job, comm);
        dml__leave_job(job);
        return status;
    }
    if (job->transport) dml__close_in_order(job);
    const dml_status status = job->error.status;
    dml__stop_helper(job);
    if (job->trace) dml__write_trace(job);
    if (job->transport) job->transport->calls->close(job->transport);
    dml__mutex_unlock(&job->mutex);
    dml__local_job *local = job->local;
    dml__destroy_job(job);
    if (local) dml__leave_local(local);
    return status;
}

#endif

/* ---- comm/comm.c ---- */

#ifndef DML_COMM_COMM_C
#define DML_COMM_COMM_C

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The calls. */

/* ---- after a fork ---- */

/* In the child of the process that opened it: there is no helper thread here, a lock may be held by a thread
   that isn't there, and the connections are the parent's. Nothing may be touched. */
DML__LOCAL bool dml__is_copy(const dml__comm_job *job)
{
    return job->mark ? !__atomic_load_n(job->mark, __ATOMIC_RELAXED) : job->process != (long)getpid();
}

static const char *dml__copy_text(dml__comm_job *job)
{
    snprintf(job->fork_error, sizeof job->fork_error,
             "rank %d's communicator was opened in process %ld and called in process %ld, after a fork: open "
             "one in each process",
             job->rank, job->process, (long)getpid());
    return job->fork_error;
}

/* ---- checking a call ---- */

static dml__comm_call dml__make_call(dml__comm_operation operation, const void *in, void *out, size_t count,
                                     dml_dtype dtype, dml_reduce_op reduce, int root)
{
    dml__comm_call call;
    memset(&call, 0, sizeof call);
    call.signature.operation = operation;
    call.signature.dtype = dtype;
    call.signature.reduce = reduce;
    call.signature.root = root;
    call.signature.count = count;
    call.in = (void *)(uintptr_t)in; /* written only by the calls that took it as not const */
    call.out = out;
    return call;
}

static dml_status dml__bad_call(dml__comm_job *job, const dml__signature *signature, const char *what)
{
    char text[DML__SIGNATURE_TEXT];
    return dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT, "rank %d called %s: %s", job->rank,
                         dml__signature_text(signature, text), what);
}

static bool dml__needs_root(dml__comm_operation operation)
{
    return operation == DML__CALL_REDUCE || operation == DML__CALL_BROADCAST ||
           operation == DML__CALL_SCATTER || operation == DML__CALL_GATHER || dml__is_pair(operation);
}

/* Elements of the array that has a part for each rank: up to the end of the last. */
static uint64_t dml__spread(const dml_comm *comm, const dml__comm_call *call)
{
    uint64_t end = 0;
    if (!call->counts) return call->signature.count * (uint64_t)comm->size;
    for (int r = 0; r < comm->size; r++)
        if (call->offsets[r] + call->counts[r] > end) end = call->offsets[r] + call->counts[r];
    return end;
}

/* How many elements of its two arrays a call touches at this rank. */
static void dml__extents(const dml_comm *comm, const dml__comm_call *call, uint64_t *in, uint64_t *out)
{
    const bool root = comm->rank == call->signature.root;
    const uint64_t one = call->counts ? call->counts[comm->rank] : call->signature.count;
    const uint64_t all = dml__spread(comm, call);
    *in = 0;
    *out = one;
    switch (call->signature.operation) {
    case DML__CALL_SCATTER: *in = root ? all : 0; break;
    case DML__CALL_GATHER:
        *in = one;
        *out = root ? all : 0;
        break;
    case DML__CALL_ALL_GATHER:
        *in = one;
        *out = all;
        break;
    case DML__CALL_REDUCE_SCATTER: *in = all; break;
    case DML__CALL_ALL_TO_ALL: *in = *out = all; break;
    default: break;
    }
}

/* Whether the two arrays lie apart, or one is this rank's own part of the other. */
static bool dml__apart(const dml_comm *comm, const dml__comm_call *call, uint64_t in, uint64_t out)
{
    const size_t element = dml_dtype_size(call->signature.dtype);
    const uintptr_t a = (uintptr_t)call->in, b = (uintptr_t)call->out;
    const uint64_t own =
        (call->offsets ? call->offsets[comm->rank] : call->signature.count * (uint64_t)comm->rank) * element;
    if (!in || !out || a >= b + out * element || b >= a + in * element) return true;
    if (call->signature.operation == DML__CALL_ALL_TO_ALL) return false;
    return in > out ? b == a + own : in < out ? a == b + own : a == b;
}

static const char *dml__root_fault(const dml_comm *comm, const dml__comm_call *call)
{
    const int root = call->signature.root;
    const dml__comm_operation operation = call->signature.operation;
    if (operation == DML__CALL_RECEIVE && root == DML_ANY_SOURCE)
        return comm->size > 1 ? NULL : "there is no other rank";
    if (root < 0 || root >= comm->size) return "it must be a rank of the communicator";
    return dml__is_pair(operation) && root == comm->rank ? "it must be another rank" : NULL;
}

static const char *dml__size_fault(const dml_comm *comm, const dml__comm_call *call, size_t element)
{
    const uint64_t most = SIZE_MAX / 2 / element;
    if (!call->counts)
        return call->signature.count > most / (uint64_t)comm->size ? "more than fits into memory" : NULL;
    for (int r = 0; r < comm->size; r++)
        if (call->counts[r] > most || call->offsets[r] > most - call->counts[r])
            return "more than fits into memory";
    return NULL;
}

/* The owners are working memory that the call's own steps write. */
static const char *dml__leaves_fault(const dml__comm_call *call, size_t element)
{
    const size_t bytes = (size_t)call->signature.count * element;
    const uintptr_t out = (uintptr_t)call->out;
    if (call->signature.root < 1) return "there must be 1 leaf or more, and at most 2^31 - 1";
    if (!call->leaves || !call->owners) return "NULL for its leaves or owners";
    if (call->signature.count > SIZE_MAX / 2 / element) return "more than fits into memory";
    if (bytes && out % element) return "its arrays must begin at a multiple of the element's size";
    for (int i = 0; bytes && i < call->signature.root; i++) {
        const uintptr_t leaf = (uintptr_t)call->leaves[i];
        if (leaf % element) return "its arrays must begin at a multiple of the element's size";
        if (leaf && leaf != out && leaf < out + bytes && out < leaf + bytes)
            return "its output overlaps a leaf that it isn't";
    }
    return NULL;
}

/* NULL, or what is wrong. */
static const char *dml__call_fault(const dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    const size_t element = dml_dtype_size(signature->dtype);
    uint64_t in, out;
    if (!element) return "the dtype must be one of dml_dtype";
    if (call->parts_missing) return "NULL for its counts";
    if (signature->operation == DML__CALL_ALL_REDUCE_LEAVES) {
        const char *fault = dml__leaves_fault(call, element);
        if (fault) return fault;
    }
    if ((unsigned)signature->reduce >= (unsigned)(DML__REDUCE_OP_COUNT + comm->function_count))
        return "the op must be DML_SUM, DML_MEAN, DML_MIN, DML_MAX, DML_PROD or what dml_comm_add_reduce "
               "gave";
    if (dml__needs_root(signature->operation)) {
        const char *fault = dml__root_fault(comm, call);
        if (fault) return fault;
    }
    if (dml__is_pair(signature->operation) && call->tag < 0 &&
        (signature->operation == DML__CALL_SEND || call->tag != DML_ANY_TAG))
        return "the tag must be 0 or more";
    const char *fault = dml__size_fault(comm, call, element);
    if (fault) return fault;
    dml__extents(comm, call, &in, &out);
    if ((in && !call->in) || (out && !call->out)) return "NULL for its data";
    return dml__apart(comm, call, in, out) ? NULL : "its input and its output overlap";
}

static void dml__set_reduction(const dml_comm *comm, dml__comm_call *call)
{
    const int custom = (int)call->signature.reduce - DML__REDUCE_OP_COUNT;
    call->reduction.dtype = call->signature.dtype;
    call->reduction.op = call->signature.reduce;
    call->reduction.isa = comm->job->isa;
    call->priority = comm->priority;
    if (custom < 0) return;
    call->reduction.function = comm->functions[custom];
    call->reduction.user = comm->function_users[custom];
}

/* A call whose parts differ: `count` is their sum, and their places lie behind each other where nobody said.
 */
static dml__comm_call dml__make_parts_call(dml_comm *comm, dml__comm_operation operation, const void *in,
                                           void *out, const size_t *counts, const size_t *offsets,
                                           dml_dtype dtype, dml_reduce_op op, int root)
{
    dml__comm_call call = dml__make_call(operation, in, out, 0, dtype, op, root);
    if (!comm || !counts) {
        call.parts_missing = true;
        return call;
    }
    call.counts = counts;
    call.offsets = offsets ? offsets : comm->offsets;
    for (int r = 0; r < comm->size; r++) {
        if (!offsets) comm->offsets[r] = (size_t)call.signature.count;
        call.signature.count += counts[r];
    }
    return call;
}

static dml__comm_call dml__make_leaves_call(void *const *leaves, int64_t *owners, size_t total, void *out,
                                            size_t count, dml_dtype dtype, dml_reduce_op op)
{
    dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE_LEAVES, NULL, out, count, dtype, op,
                                         total > 0x7fffffffu ? 0 : (int)total);
    call.leaves = leaves;
    call.owners = owners;
    return call;
}

/* ---- starting and waiting ---- */

static bool dml__request_done(dml__comm_job *job, void *user)
{
    (void)job;
    return ((const dml_request *)user)->state != DML__REQUEST_ACTIVE;
}

/* With the turn. */
static void dml__wait_for(dml__comm_job *job, dml_request *request)
{
    const double before = job->stats.waited_s;
    dml__wait_until(job, dml__request_done, request, -1);
    if (job->trace) dml__trace_waited(job, request, job->stats.waited_s - before);
}

/* With the turn. */
static dml_request *dml__start_checked(dml_comm *comm, dml__comm_call *call, bool blocking)
{
    dml__comm_job *job = comm->job;
    char text[DML__SIGNATURE_TEXT];
    if (job->transport) job->clock = dml_seconds();
    if (job->transport && job->clock - job->heard_at > 2e-3) dml__read_control(job);
    if (job->error.status) return NULL;
    const char *fault = dml__call_fault(comm, call);
    if (fault) {
        dml__bad_call(job, &call->signature, fault);
        return NULL;
    }
    dml__set_reduction(comm, call);
    dml_request *request = dml__start(comm, call, blocking);
    if (!request)
        dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "rank %d started %s while all %d requests were out: wait for those that were started, with "
            "dml_comm_wait or dml_comm_wait_all, or open the communicator with more max_requests",
            job->rank, dml__signature_text(&call->signature, text), job->max_requests);
    return request;
}

static dml_request *dml__call_later(dml_comm *comm, dml__comm_call *call)
{
    if (!comm || dml__is_copy(comm->job)) return NULL;
    dml__enter_job(comm->job);
    dml_request *request = dml__start_checked(comm, call, false);
    if (request && dml__make_progress(comm->job)) dml__note_time(comm->job, dml_seconds());
    dml__leave_job(comm->job);
    return request;
}

static dml_status dml__call_now(dml_comm *comm, dml__comm_call *call, dml_message *message)
{
    if (!comm) return DML_ERROR_MEMORY;
    dml__comm_job *job = comm->job;
    if (dml__is_copy(job)) return DML_ERROR_STATE;
    dml__enter_job(job);
    dml_request *request = dml__start_checked(comm, call, true);
    dml_status status = job->error.status;
    if (request) {
        dml__wait_for(job, request);
        status = request->state == DML__REQUEST_DONE ? request->status : job->error.status;
        if (message) *message = request->message;
        if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, status);
        dml__free_request(job, request);
    }
    dml__leave_job(job);
    return status;
}

/* Whether it is a place in job->requests. */
static bool dml__is_own_request(const dml__comm_job *job, const dml_request *request)
{
    const uintptr_t offset = (uintptr_t)request - (uintptr_t)job->requests;
    return offset < (uintptr_t)job->max_requests * sizeof *request && offset % sizeof *request == 0;
}

DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm->job) || !dml__is_own_request(comm->job, request)) return true;
    dml__enter_job(comm->job);
    if (request->state == DML__REQUEST_ACTIVE && !comm->job->error.status) {
        if (dml__make_progress(comm->job)) dml__note_time(comm->job, dml_seconds());
        dml__keep_watch(comm->job);
    }
    const bool done = request->state != DML__REQUEST_ACTIVE || comm->job->error.status;
    dml__leave_job(comm->job);
    return done;
}

/* With the turn; what became of it. */
static dml_status dml__take_back(dml__comm_job *job, dml_request *request, dml_message *message)
{
    dml_status status = job->error.status;
    if (request->state == DML__REQUEST_FREE)
        return dml__job_fail(job, job->rank, DML_ERROR_STATE, "rank %d waited twice for the same request",
                             job->rank);
    if (request->state == DML__REQUEST_DONE) status = request->status;
    if (message) *message = request->message;
    if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, status);
    dml__free_request(job, request);
    return status;
}

DML_API dml_status dml_comm_wait_message(dml_comm *comm, dml_request *request, dml_message *message)
{
    if (!comm || !request || dml__is_copy(comm->job)) return dml_comm_status(comm);
    dml__comm_job *job = comm->job;
    dml_status status;
    dml__enter_job(job);
    if (!dml__is_own_request(job, request)) {
        status = dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                               "rank %d waited for a request that another communicator gave out", job->rank);
    } else {
        dml__wait_for(job, request);
        status = dml__take_back(job, request, message);
    }
    dml__leave_job(job);
    return status;
}

DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request)
{
    return dml_comm_wait_message(comm, request, NULL);
}

typedef struct dml__any {
    dml_request **requests;
    int count, found;
} dml__any;

static bool dml__any_done(dml__comm_job *job, void *user)
{
    dml__any *any = (dml__any *)user;
    int waiting = 0;
    for (any->found = 0; any->found < any->count; any->found++) {
        const dml_request *request = any->requests[any->found];
        if (!request) continue;
        if (!dml__is_own_request(job, request) || request->state != DML__REQUEST_ACTIVE) return true;
        waiting++;
    }
    return !waiting;
}

DML_API int dml_comm_wait_any_message(dml_comm *comm, dml_request **requests, int count, dml_message *message)
{
    if (!comm || !requests || dml__is_copy(comm->job)) return -1;
    dml__comm_job *job = comm->job;
    dml__any any;
    any.requests = requests;
    any.count = count;
    any.found = count;
    int index = -1;
    dml__enter_job(job);
    if (dml__wait_until(job, dml__any_done, &any, -1) && any.found < count) {
        if (!dml__is_own_request(job, requests[any.found])) {
            dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                          "rank %d waited for a request that another communicator gave out", job->rank);
        } else {
            index = any.found;
            const dml_status status = dml__take_back(job, requests[index], message);
            if (status && message) message->source = -1;
            requests[index] = NULL;
        }
    }
    dml__leave_job(job);
    return index;
}

DML_API int dml_comm_wait_any(dml_comm *comm, dml_request **requests, int count)
{
    return dml_comm_wait_any_message(comm, requests, count, NULL);
}

DML_API dml_status dml_comm_wait_all(dml_comm *comm)
{
    if (!comm || dml__is_copy(comm->job)) return dml_comm_status(comm);
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    dml__wait_until(job, dml__none_active, NULL, -1);
    for (int i = 0; job->requests && i < job->max_requests; i++)
        if (job->requests[i].state != DML__REQUEST_FREE) dml__take_back(job, &job->requests[i], NULL);
    dml__leave_job(job);
    return dml_comm_status(comm);
}

DML_API bool dml_comm_cancel(dml_comm *comm, dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm->job) || !dml__is_own_request(comm->job, request))
        return false;
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    const bool can = request->state == DML__REQUEST_ACTIVE && request->algorithm < 0 &&
                     request->call.signature.operation == DML__CALL_RECEIVE && !request->flow_count &&
                     (!job->engine || (!job->error.status && job->engine->cancel(job, request)));
    if (can) {
        dml__end_request(job, request, DML_OK);
        dml__free_request(job, request);
    }
    dml__leave_job(job);
    return can;
}

typedef struct dml__probing {
    dml_comm *comm;
    int from, tag;
    dml_message message;
} dml__probing;

static bool dml__probe_found(dml__comm_job *job, void *user)
{
    dml__probing *probing = (dml__probing *)user;
    dml_comm *comm = probing->comm;
    dml__frame frame;
    int rank;
    if (job->engine) return job->engine->probe(job, comm, probing->from, probing->tag, &probing->message);
    if (!dml__find_stored(job, comm, probing->from, probing->tag, &rank, &frame)) return false;
    probing->message.source = dml__group_rank(comm, rank);
    probing->message.tag = frame.tag;
    probing->message.count = (size_t)frame.signature.count;
    probing->message.dtype = frame.signature.dtype;
    return true;
}

DML_API bool dml_comm_probe(dml_comm *comm, int from, int tag, double seconds, dml_message *message)
{
    if (!comm || dml__is_copy(comm->job)) return false;
    dml__comm_job *job = comm->job;
    dml__probing probing;
    probing.comm = comm;
    probing.from = from;
    probing.tag = tag;
    if (from < DML_ANY_SOURCE || from >= comm->size || !job->transport) return false;
    dml__enter_job(job);
    job->look_around = true;
    dml__make_progress(job);
    const bool found = dml__wait_until(job, dml__probe_found, &probing, dml_seconds() + seconds);
    if (found && message) *message = probing.message;
    dml__leave_job(job);
    return found;
}

/* ---- the calls themselves: X(name, parameters, arguments, what makes the call) ---- */

/* Both forms of a call from one description of it. */
#define DML__COMM_CALL(name, parameters, make)                                                               \
    DML_API dml_status dml_comm_##name parameters                                                            \
    {                                                                                                        \
        dml__comm_call call = make;                                                                          \
        return dml__call_now(comm, &call, NULL);                                                             \
    }                                                                                                        \
    DML_API dml_request *dml_comm_##name##_start parameters                                                  \
    {                                                                                                        \
        dml__comm_call call = make;                                                                          \
        return dml__call_later(comm, &call);                                                                 \
    }

DML__COMM_CALL(all_reduce, (dml_comm * comm, void *data, size_t count, dml_dtype dtype, dml_reduce_op op),
               dml__make_call(DML__CALL_ALL_REDUCE, NULL, data, count, dtype, op, 0))
DML__COMM_CALL(all_reduce_leaves,
               (dml_comm * comm, void *const *leaves, int64_t *owners, size_t total, void *out, size_t count,
                dml_dtype dtype, dml_reduce_op op),
               dml__make_leaves_call(leaves, owners, total, out, count, dtype, op))
DML__COMM_CALL(reduce,
               (dml_comm * comm, void *data, size_t count, dml_dtype dtype, dml_reduce_op op, int root),
               dml__make_call(DML__CALL_REDUCE, NULL, data, count, dtype, op, root))
DML__COMM_CALL(broadcast, (dml_comm * comm, void *data, size_t count, dml_dtype dtype, int root),
               dml__make_call(DML__CALL_BROADCAST, NULL, data, count, dtype, DML_SUM, root))
DML__COMM_CALL(scatter, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out, int root),
               dml__make_call(DML__CALL_SCATTER, in, out, count, dtype, DML_SUM, root))
DML__COMM_CALL(gather, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out, int root),
               dml__make_call(DML__CALL_GATHER, in, out, count, dtype, DML_SUM, root))
DML__COMM_CALL(all_gather, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out),
               dml__make_call(DML__CALL_ALL_GATHER, in, out, count, dtype, DML_SUM, 0))
DML__COMM_CALL(reduce_scatter,
               (dml_comm * comm, void *in, size_t count_per_rank, dml_dtype dtype, dml_reduce_op op,
                void *out),
               dml__make_call(DML__CALL_REDUCE_SCATTER, in, out, count_per_rank, dtype, op, 0))
DML__COMM_CALL(all_to_all, (dml_comm * comm, const void *in, size_t count, dml_dtype dtype, void *out),
               dml__make_call(DML__CALL_ALL_TO_ALL, in, out, count, dtype, DML_SUM, 0))
DML__COMM_CALL(barrier, (dml_comm * comm),
               dml__make_call(DML__CALL_BARRIER, NULL, NULL, 0, DML_U8, DML_SUM, 0))
DML__COMM_CALL(scatterv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out, int root),
               dml__make_parts_call(comm, DML__CALL_SCATTER, in, out, counts, offsets, dtype, DML_SUM, root))
DML__COMM_CALL(gatherv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out, int root),
               dml__make_parts_call(comm, DML__CALL_GATHER, in, out, counts, offsets, dtype, DML_SUM, root))
DML__COMM_CALL(all_gatherv,
               (dml_comm * comm, const void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                void *out),
               dml__make_parts_call(comm, DML__CALL_ALL_GATHER, in, out, counts, offsets, dtype, DML_SUM, 0))
DML__COMM_CALL(reduce_scatterv,
               (dml_comm * comm, void *in, const size_t *counts, const size_t *offsets, dml_dtype dtype,
                dml_reduce_op op, void *out),
               dml__make_parts_call(comm, DML__CALL_REDUCE_SCATTER, in, out, counts, offsets, dtype, op, 0))

#undef DML__COMM_CALL

static dml__comm_call dml__make_pair(dml__comm_operation operation, const void *data, size_t count,
                                     dml_dtype dtype, int other, int tag)
{
    dml__comm_call call =
        dml__make_call(operation, NULL, (void *)(uintptr_t)data, count, dtype, DML_SUM, other);
    call.tag = tag;
    return call;
}

DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to,
                                 int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_SEND, data, count, dtype, to, tag);
    return dml__call_now(comm, &call, NULL);
}

DML_API dml_request *dml_comm_send_start(dml_comm *comm, const void *data, size_t count, dml_dtype dtype,
                                         int to, int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_SEND, data, count, dtype, to, tag);
    return dml__call_later(comm, &call);
}

DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from,
                                    int tag, dml_message *message)
{
    dml__comm_call call = dml__make_pair(DML__CALL_RECEIVE, data, count, dtype, from, tag);
    return dml__call_now(comm, &call, message);
}

DML_API dml_request *dml_comm_receive_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                            int from, int tag)
{
    dml__comm_call call = dml__make_pair(DML__CALL_RECEIVE, data, count, dtype, from, tag);
    return dml__call_later(comm, &call);
}

/* ---- what a communicator says of itself ---- */

DML_API dml_status dml_comm_status(const dml_comm *comm)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm->job)) return DML_ERROR_STATE;
    dml__mutex_lock(&comm->job->mutex);
    const dml_status status = comm->job->error.status;
    dml__mutex_unlock(&comm->job->mutex);
    return status;
}

DML_API const char *dml_comm_error(const dml_comm *comm)
{
    if (!comm) return dml_status_string(DML_ERROR_MEMORY);
    if (dml__is_copy(comm->job)) return dml__copy_text(comm->job);
    return dml_comm_status(comm) ? comm->job->error.text : "";
}

DML_API int dml_comm_rank(const dml_comm *comm)
{
    return comm ? comm->rank : 0;
}

DML_API int dml_comm_world_size(const dml_comm *comm)
{
    return comm ? comm->size : 1;
}

DML_API int dml_comm_strangers(const dml_comm *comm)
{
    return comm ? comm->job->strangers : 0;
}

DML_API void dml_comm_get_stats(dml_comm *comm, dml_comm_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    if (!comm || dml__is_copy(comm->job)) return;
    dml__enter_job(comm->job);
    *stats = comm->job->stats;
    stats->strangers = comm->job->strangers;
    dml__leave_job(comm->job);
}

DML_API void dml_comm_outlive(dml_comm *comm)
{
    if (!comm || dml__is_copy(comm->job)) return;
    dml__enter_job(comm->job);
    comm->job->outlives = true;
    dml__leave_job(comm->job);
}

DML_API void dml_comm_set_priority(dml_comm *comm, int priority)
{
    if (comm) comm->priority = priority;
}

DML_API dml_reduce_op dml_comm_add_reduce(dml_comm *comm, dml_reduce_function function, void *user)
{
    const int none = DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS;
    if (!comm || !function || comm->function_count == DML__MOST_FUNCTIONS) return (dml_reduce_op)none;
    comm->functions[comm->function_count] = function;
    comm->function_users[comm->function_count] = user;
    return (dml_reduce_op)(DML__REDUCE_OP_COUNT + comm->function_count++);
}

#endif

/* ---- comm/describe.c ---- */

#ifndef DML_COMM_DESCRIBE_C
#define DML_COMM_DESCRIBE_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A communicator in words. */

typedef struct dml__words {
    char *text; /* (bytes) */
    size_t bytes, used;
} dml__words;

static void dml__say(dml__words *words, const char *format, ...) DML__PRINTF(2, 3);
static void dml__say(dml__words *words, const char *format, ...)
{
    const size_t left = words->used < words->bytes ? words->bytes - words->used : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left ? words->text + words->used : NULL, left, format, arguments);
    va_end(arguments);
    if (length > 0) words->used += (size_t)length;
}

/* "256 KiB" */
static void dml__say_bytes(dml__words *words, uint64_t bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB" };
    int unit = 0;
    while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) bytes /= 1024, unit++;
    dml__say(words, "%llu %s", (unsigned long long)bytes, units[unit]);
}

static void dml__say_ranks(dml__words *words, const dml_comm *comm)
{
    static const char *const media[] = { "local", "shm", "tcp" };
    const dml__comm_job *job = comm->job;
    dml__say(words, "rank %d of %d on %d host%s", comm->rank, comm->size, comm->hosts,
             comm->hosts == 1 ? "" : "s");
    for (int m = 0; m < 3 && job->transport; m++) {
        int count = 0;
        for (int r = 0; r < comm->size; r++)
            count +=
                comm->world_ranks[r] != job->rank &&
                strcmp(job->transport->calls->medium(job->transport, comm->world_ranks[r]), media[m]) == 0;
        if (count) dml__say(words, ", %d by %s", count, media[m]);
    }
    dml__say(words, "\n");
}

static void dml__say_link(dml__words *words, const char *where, const dml__price_link *link)
{
    dml__say(words, "%s %.3g us, %.3g Gbit/s", where, (link->latency + 2 * link->overhead) * 1e6,
             link->bandwidth * 8e-9);
}

static void dml__say_model(dml__words *words, const dml_comm *comm)
{
    const dml__comm_job *job = comm->job;
    dml__say(words, "links, %s: ", job->latency > 0 ? "as given" : comm->measured ? "measured" : "assumed");
    dml__say_link(words, "of a host", &comm->model.inside);
    dml__say_link(words, "; between hosts", &comm->model.between);
    dml__say(words, "; sums %.3g GB/s, copies %.3g GB/s\n", comm->model.reduce * 1e-9,
             comm->model.copy * 1e-9);
}

static int dml__choice_at(const dml_comm *comm, int operation, int power)
{
    dml__comm_call call;
    memset(&call, 0, sizeof call);
    call.signature.operation = (dml__comm_operation)operation;
    call.signature.dtype = DML_F32;
    call.signature.count = (UINT64_C(1) << power) / sizeof(float);
    return dml__choose_algorithm(comm, &call);
}

/* "all_reduce: butterfly up to 32 KiB, ring" */
static void dml__say_choice(dml__words *words, const dml_comm *comm, int operation)
{
    const int first = 2, last = operation == DML__CALL_BARRIER ? first : 30;
    char text[DML__SIGNATURE_TEXT];
    dml__signature signature;
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    memset(&signature, 0, sizeof signature);
    signature.operation = (dml__comm_operation)operation;
    dml__signature_text(&signature, text);
    text[strcspn(text, "(")] = 0;
    dml__say(words, "%s:", text);
    for (int power = first; power <= last; power++) {
        const int choice = dml__choice_at(comm, operation, power);
        if (power < last && dml__choice_at(comm, operation, power + 1) == choice) continue;
        dml__say(words, " %s", choice < 0 ? "none" : algorithms[choice].name);
        if (power == last) break;
        dml__say(words, " up to ");
        dml__say_bytes(words, UINT64_C(1) << power);
        dml__say(words, ",");
    }
    dml__say(words, "\n");
}

DML_API size_t dml_comm_describe(const dml_comm *comm, char *text, size_t bytes)
{
    dml__words words;
    words.text = text;
    words.bytes = text ? bytes : 0;
    words.used = 0;
    if (words.bytes) text[0] = 0;
    if (!comm || dml__is_copy(comm->job)) return 0;
    const dml__comm_job *job = comm->job;
    dml__say_ranks(&words, comm);
    if (comm->size > 1) {
        dml__say_model(&words, comm);
        for (int operation = 0; operation <= DML__CALL_BARRIER; operation++)
            dml__say_choice(&words, comm, operation);
    }
    dml__say(&words, "%sin segments of ", job->deterministic ? "sums in the order of the ranks, " : "");
    dml__say_bytes(&words, job->segment_bytes);
    dml__say(&words, ", eager up to ");
    dml__say_bytes(&words, job->eager_bytes);
    dml__say(&words, ", timeout %g s", job->timeout);
    return words.used;
}

DML__LOCAL void dml__log_description(const dml_comm *comm)
{
    char text[2048];
    if (!comm->job->logger.callback) return;
    dml_comm_describe(comm, text, sizeof text);
    for (char *line = text; *line;) {
        char *end = line + strcspn(line, "\n");
        const bool more = *end != 0;
        *end = 0;
        dml__log(&comm->job->logger, DML_LOG_INFO, "%s", line);
        line = end + more;
    }
}

#endif

/* ---- base/json.c ---- */

#ifndef DML_BASE_JSON_C
#define DML_BASE_JSON_C

/* ---- base/json.h ---- */

/* json.h: a reader of JSON text that goes through it once, without recursion or memory, and a writer of its
   strings. Source: RFC 8259. Stricter than it in that no string may contain \u0000, since ours end with it.
 */
#ifndef DML_BASE_JSON_H
#define DML_BASE_JSON_H

/* ---- reading ---- */

/* A place in a text. The first thing that isn't as it should be makes `problem` a sentence's end ("a string
   was expected"), found at offset `at`; every later call fails too, so that problems may be asked for once.
 */
typedef struct dml__json {
    const char *text;
    size_t bytes, at;
    const char *problem;
} dml__json;

/* What is between the quotes of a string, checked but escaped as in the text. */
typedef struct dml__json_string {
    const char *from;
    size_t bytes;
} dml__json_string;

DML__LOCAL void dml__json_start(dml__json *json, const char *text, size_t bytes);

/* Whether the next thing is that character of JSON's own, one of {}[]:, which is then taken. */
DML__LOCAL bool dml__json_take(dml__json *json, char character);

/* The same where it must come. */
DML__LOCAL bool dml__json_expect(dml__json *json, char character);

/* Inside an object or array: whether there is another member, behind the comma; false after taking `close`.
 *first is true before the first call. */
DML__LOCAL bool dml__json_more(dml__json *json, char close, bool *first);

DML__LOCAL bool dml__json_read_string(dml__json *json, dml__json_string *string);

/* The name of an object's member and the colon. */
DML__LOCAL bool dml__json_read_name(dml__json *json, dml__json_string *name);

/* A whole number from 0 to 2^64 - 1, without sign, fraction or exponent. */
DML__LOCAL bool dml__json_read_count(dml__json *json, uint64_t *value);

/* Whether nothing but white space is left. */
DML__LOCAL bool dml__json_end(dml__json *json);

/* Records a problem at offset `at` unless there is one; always false. */
DML__LOCAL bool dml__json_fail(dml__json *json, size_t at, const char *problem);

/* Writes what a string that was read means, in UTF-8, and a 0 behind it; returns the bytes before the 0, at
   most those of the string. `to` may be string.from itself, if what is behind it (the quote) may go. */
DML__LOCAL size_t dml__json_unescape(char *to, dml__json_string string);

/* Whether it means `text`. */
DML__LOCAL bool dml__json_is(dml__json_string string, const char *text);

/* ---- writing ---- */

/* Text that is being written; with `to` NULL it is only counted. */
typedef struct dml__json_writer {
    char *to;
    uint64_t bytes;
} dml__json_writer;

DML__LOCAL void dml__json_write(dml__json_writer *writer, const char *text); /* as it is */
DML__LOCAL void dml__json_write_count(dml__json_writer *writer, uint64_t value);
DML__LOCAL void dml__json_write_string(dml__json_writer *writer, const char *text); /* quoted, escaped */

/* ---- both ---- */

/* The start of a text for a sentence: at most 60 bytes, and what isn't UTF-8 or could upset a terminal is
   '?'. Returns `to`. */
enum { DML__SHOWN_BYTES = 64 };
DML__LOCAL const char *dml__shown(const char *text, size_t bytes, char to[DML__SHOWN_BYTES]);

/* Whether the text is UTF-8 (shortest forms, no surrogates): what a string must be. */
DML__LOCAL bool dml__is_utf8(const char *text);

/* A finite number with the 9 digits that read back as the same float, "0.1" or "1e-05", in every locale. */
enum { DML__NUMBER_BYTES = 32 };
DML__LOCAL void dml__write_real(float value, char text[DML__NUMBER_BYTES]);

#endif

#include <stdio.h>
#include <string.h>

/* The bytes of the UTF-8 character at `at`, 0 if there is none before `end`. */
static size_t dml__utf8_length(const char *at, const char *end)
{
    const unsigned char *b = (const unsigned char *)at;
    const size_t left = (size_t)(end - at);
    if (left == 0) return 0;
    if (b[0] < 0x80) return 1;
    const size_t length = b[0] >= 0xc2 && b[0] < 0xe0 ? 2 : (b[0] & 0xf0) == 0xe0 ? 3 : b[0] < 0xf5 ? 4 : 0;
    if (b[0] < 0xc2 || length == 0 || left < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((b[i] & 0xc0) != 0x80) return 0;
    if (b[0] == 0xe0 && b[1] < 0xa0) return 0;  /* longer than need be */
    if (b[0] == 0xed && b[1] >= 0xa0) return 0; /* half of a pair of UTF-16 */
    if (b[0] == 0xf0 && b[1] < 0x90) return 0;  /* longer than need be */
    if (b[0] == 0xf4 && b[1] >= 0x90) return 0; /* beyond U+10FFFF */
    return length;
}

DML__LOCAL bool dml__is_utf8(const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        const size_t length = dml__utf8_length(text, end);
        if (!length) return false;
        text += length;
    }
    return true;
}

DML__LOCAL const char *dml__shown(const char *text, size_t bytes, char to[DML__SHOWN_BYTES])
{
    const char *end = text + bytes;
    size_t done = 0;
    while (text < end) {
        const size_t length = dml__utf8_length(text, end);
        const unsigned char first = (unsigned char)text[0];
        const bool control =
            first < 0x20 || first == 0x7f || (first == 0xc2 && length && (unsigned char)text[1] < 0xa0);
        if (done + (length ? length : 1) > DML__SHOWN_BYTES - 4) {
            memcpy(to + done, "...", 3);
            done += 3;
            break;
        }
        if (!length || control)
            to[done++] = '?';
        else
            for (size_t i = 0; i < length; i++) to[done++] = text[i];
        text += length ? length : 1;
    }
    to[done] = '\0';
    return to;
}

/* ---- reading ---- */

DML__LOCAL void dml__json_start(dml__json *json, const char *text, size_t bytes)
{
    json->text = text;
    json->bytes = bytes;
    json->at = 0;
    json->problem = NULL;
}

DML__LOCAL bool dml__json_fail(dml__json *json, size_t at, const char *problem)
{
    if (!json->problem) {
        json->problem = problem;
        json->at = at;
    }
    return false;
}

/* The next character that is no white space, not taken; 0 at the end. */
static char dml__json_peek(dml__json *json)
{
    if (json->problem) return '\0';
    while (json->at < json->bytes) {
        const char c = json->text[json->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
        json->at++;
    }
    return '\0';
}

DML__LOCAL bool dml__json_take(dml__json *json, char character)
{
    if (dml__json_peek(json) != character) return false;
    json->at++;
    return true;
}

DML__LOCAL bool dml__json_expect(dml__json *json, char character)
{
    if (dml__json_take(json, character)) return true;
    const char *problem = character == '{'   ? "'{' was expected"
                          : character == '[' ? "'[' was expected"
                          : character == ']' ? "']' was expected"
                          : character == ':' ? "':' was expected"
                                             : "',' was expected";
    return dml__json_fail(json, json->at, problem);
}

DML__LOCAL bool dml__json_more(dml__json *json, char close, bool *first)
{
    const bool at_first = *first;
    *first = false;
    if (dml__json_take(json, close) || json->problem) return false;
    if (at_first || dml__json_take(json, ',')) return true;
    return dml__json_fail(json, json->at,
                          close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
}

/* Four hexadecimal digits; -1: they aren't. */
static long dml__hex4(const char *at, const char *end)
{
    long value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The character that the \u escape at `at` means, which is behind the u; -1: none. Sets its length: that of a
   pair, when it takes two to write it. */
static long dml__json_code(const char *at, const char *end, size_t *length)
{
    const long high = dml__hex4(at, end);
    *length = 4;
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high >= 0xdc00 || end - at < 10 || at[4] != '\\' || at[5] != 'u') return -1;
    const long low = dml__hex4(at + 6, end);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    *length = 10;
    return 0x10000 + (high - 0xd800) * 0x400 + (low - 0xdc00);
}

static size_t dml__utf8_encode(long code, char to[4])
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    const size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)((length == 2 ? 0xc0 : length == 3 ? 0xe0 : 0xf0) | code);
    return length;
}

/* Reads one character of a string, escaped or not, and writes it as UTF-8. Returns the bytes it takes in the
   text, 0 and a problem where it is none. */
static size_t dml__json_character(const char *at, const char *end, char to[4], size_t *bytes,
                                  const char **problem)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if ((unsigned char)*at < 0x20) {
        *problem = "a control character is in a string";
        return 0;
    }
    if (*at != '\\') {
        *bytes = dml__utf8_length(at, end);
        memcpy(to, at, *bytes);
        *problem = "a string isn't UTF-8";
        return *bytes;
    }
    if (end - at > 1 && at[1] == 'u') {
        size_t length;
        const long code = dml__json_code(at + 2, end, &length);
        *problem = code == 0 ? "a string contains \\u0000" : "a \\u escape isn't valid";
        if (code <= 0) return 0;
        *bytes = dml__utf8_encode(code, to);
        return 2 + length;
    }
    const char *letter = end - at > 1 && at[1] ? strchr(letters, at[1]) : NULL;
    *problem = "an escape isn't valid";
    if (!letter) return 0;
    to[0] = meanings[letter - letters];
    *bytes = 1;
    return 2;
}

/* Whether a character of a string stands for itself, a whole one. */
static bool dml__json_plain(char c)
{
    const unsigned char code = (unsigned char)c;
    return code >= 0x20 && code < 0x80 && c != '"' && c != '\\';
}

DML__LOCAL bool dml__json_read_string(dml__json *json, dml__json_string *string)
{
    if (!dml__json_take(json, '"')) return dml__json_fail(json, json->at, "a string was expected");
    const char *at = json->text + json->at, *end = json->text + json->bytes, *problem;
    char character[4];
    size_t bytes;
    string->from = at;
    while (at < end && *at != '"') {
        const size_t step =
            dml__json_plain(*at) ? 1 : dml__json_character(at, end, character, &bytes, &problem);
        if (!step) return dml__json_fail(json, (size_t)(at - json->text), problem);
        at += step;
    }
    if (at == end) return dml__json_fail(json, json->at - 1, "a string has no end");
    string->bytes = (size_t)(at - string->from);
    json->at = (size_t)(at - json->text) + 1;
    return true;
}

DML__LOCAL bool dml__json_read_name(dml__json *json, dml__json_string *name)
{
    return dml__json_read_string(json, name) && dml__json_expect(json, ':');
}

DML__LOCAL bool dml__json_read_count(dml__json *json, uint64_t *value)
{
    const char first = dml__json_peek(json);
    const size_t start = json->at;
    uint64_t n = 0;
    if (first < '0' || first > '9') return dml__json_fail(json, start, "a whole number was expected");
    for (; json->at < json->bytes; json->at++) {
        const char c = json->text[json->at];
        if (c == '.' || c == 'e' || c == 'E')
            return dml__json_fail(json, start, "a whole number was expected");
        if (c < '0' || c > '9') break;
        if (json->at > start && first == '0') return dml__json_fail(json, start, "a number begins with 0");
        const uint64_t digit = (uint64_t)(c - '0');
        if (n > (UINT64_MAX - digit) / 10) return dml__json_fail(json, start, "a number is too large");
        n = n * 10 + digit;
    }
    *value = n;
    return true;
}

DML__LOCAL bool dml__json_end(dml__json *json)
{
    dml__json_peek(json);
    if (json->at < json->bytes) return dml__json_fail(json, json->at, "the end was expected");
    return !json->problem;
}

DML__LOCAL size_t dml__json_unescape(char *to, dml__json_string string)
{
    const char *at = string.from, *end = at + string.bytes, *problem;
    size_t done = 0;
    while (at < end) {
        if (*at != '\\') {
            to[done++] = *at++;
            continue;
        }
        char character[4];
        size_t bytes = 0;
        at += dml__json_character(at, end, character, &bytes, &problem);
        memcpy(to + done, character, bytes);
        done += bytes;
    }
    to[done] = '\0';
    return done;
}

DML__LOCAL bool dml__json_is(dml__json_string string, const char *text)
{
    const char *at = string.from, *end = at + string.bytes, *problem;
    while (at < end) {
        char character[4];
        size_t bytes = 0;
        at += dml__json_character(at, end, character, &bytes, &problem);
        if (strncmp(text, character, bytes) != 0) return false;
        text += bytes;
    }
    return *text == '\0';
}

/* ---- writing ---- */

static void dml__json_put(dml__json_writer *writer, const char *text, size_t bytes)
{
    if (writer->to) memcpy(writer->to + writer->bytes, text, bytes);
    writer->bytes += bytes;
}

DML__LOCAL void dml__json_write(dml__json_writer *writer, const char *text)
{
    dml__json_put(writer, text, strlen(text));
}

DML__LOCAL void dml__json_write_count(dml__json_writer *writer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    dml__json_put(writer, digits + at, sizeof digits - at);
}

DML__LOCAL void dml__json_write_string(dml__json_writer *writer, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    dml__json_put(writer, "\"", 1);
    while (*text) {
        size_t run = 0;
        while ((unsigned char)text[run] >= 0x20 && text[run] != '"' && text[run] != '\\') run++;
        dml__json_put(writer, text, run);
        text += run;
        const unsigned char c = (unsigned char)*text;
        if (c == '\0') break;
        if (c < 0x20) {
            dml__json_put(writer, "\\u00", 4);
            dml__json_put(writer, hex + c / 16, 1);
            dml__json_put(writer, hex + c % 16, 1);
        } else {
            dml__json_put(writer, "\\", 1);
            dml__json_put(writer, text, 1);
        }
        text++;
    }
    dml__json_put(writer, "\"", 1);
}

/* What isn't of a number's characters is the locale's decimal point, of one byte or several. */
DML__LOCAL void dml__write_real(float value, char text[DML__NUMBER_BYTES])
{
    snprintf(text, DML__NUMBER_BYTES, "%.9g", (double)value);
    char *to = text;
    for (const char *c = text; *c; c++) {
        if (strchr("0123456789+-e", *c))
            *to++ = *c;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
}

#endif

/* ---- dist/cluster.c ---- */

#ifndef DML_DIST_CLUSTER_C
#define DML_DIST_CLUSTER_C

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dml__no_cluster(dml_cluster *cluster, const char *format, ...) DML__PRINTF(2, 3);

/* The first thing that is wrong. */
static void dml__no_cluster(dml_cluster *cluster, const char *format, ...)
{
    va_list arguments;
    if (cluster->status != DML_OK) return;
    cluster->status = DML_ERROR_ARGUMENT;
    va_start(arguments, format);
    vsnprintf(cluster->error, sizeof cluster->error, format, arguments);
    va_end(arguments);
}

DML_API dml_cluster dml_cluster_of(int rank, int workers, int servers)
{
    dml_cluster cluster;
    memset(&cluster, 0, sizeof cluster);
    cluster.rank = rank;
    cluster.workers = workers;
    cluster.servers = servers;
    if (workers < 1)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: it needs a worker at least",
                        workers, servers);
    else if (servers < 1)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: it needs a server at least",
                        workers, servers);
    else if (workers > (1 << 20) || servers > (1 << 20) - workers)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: there may be 2^20 ranks", workers,
                        servers);
    else if (rank < 0 || rank >= workers + servers)
        dml__no_cluster(&cluster,
                        "rank %d is in no job of the cluster: ranks 0 to %d are its workers, %d to %d its "
                        "servers",
                        rank, workers - 1, workers, workers + servers - 1);
    return cluster;
}

DML_API bool dml_cluster_is_server(const dml_cluster *cluster)
{
    return cluster->status == DML_OK && cluster->rank >= cluster->workers;
}

/* ---- TF_CONFIG ---- */

typedef enum dml__cluster_job {
    DML__JOB_CHIEF,
    DML__JOB_WORKER,
    DML__JOB_PS,
    DML__CLUSTER_JOBS
} dml__cluster_job;

static const char *const dml__job_names[DML__CLUSTER_JOBS] = { "chief", "worker", "ps" };

typedef struct dml__tf_config {
    dml__json json;
    size_t hosts_at[DML__CLUSTER_JOBS]; /* behind the [ of each job's list; 0: it has none */
    int hosts[DML__CLUSTER_JOBS];
    dml__json_string type; /* of the task */
    bool has_cluster, has_type, has_index;
    uint64_t index;
} dml__tf_config;

/* -1: another. */
static int dml__find_job(dml__json_string name)
{
    for (int j = 0; j < DML__CLUSTER_JOBS; j++)
        if (dml__json_is(name, dml__job_names[j])) return j;
    return -1;
}

/* Goes past a value of any kind, whose nesting is counted. */
static bool dml__skip_value(dml__json *json)
{
    int depth = 0;
    do {
        dml__json_string string;
        while (json->at < json->bytes && strchr(" \t\r\n,:", json->text[json->at])) json->at++;
        if (json->at >= json->bytes) return dml__json_fail(json, json->at, "a value was expected");
        const char c = json->text[json->at];
        if (c == '"') {
            if (!dml__json_read_string(json, &string)) return false;
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            json->at++;
            if (depth == 0 && c != '}' && c != ']') /* a number or a word */
                while (json->at < json->bytes && !strchr(" \t\r\n,:]}", json->text[json->at])) json->at++;
        }
        if (depth < 0) return dml__json_fail(json, json->at, "a value was expected");
    } while (depth > 0);
    return true;
}

/* Whether the quoted text of `host` comes before offset `end` in one of the lists that are known. */
static bool dml__host_is_known(const dml__tf_config *config, dml__json_string host)
{
    for (int j = 0; j < DML__CLUSTER_JOBS; j++) {
        dml__json json = config->json;
        bool first = true;
        json.at = config->hosts_at[j];
        if (!json.at) continue;
        dml__json_string other;
        while (dml__json_more(&json, ']', &first) && dml__json_read_string(&json, &other) &&
               other.from < host.from)
            if (other.bytes == host.bytes && memcmp(other.from, host.from, host.bytes) == 0) return true;
    }
    return false;
}

static bool dml__read_hosts(dml__tf_config *config, dml_cluster *cluster, int job)
{
    dml__json *json = &config->json;
    char shown[DML__SHOWN_BYTES];
    bool first = true;
    if (!dml__json_expect(json, '[')) return false;
    config->hosts_at[job] = json->at;
    while (dml__json_more(json, ']', &first)) {
        dml__json_string host;
        if (!dml__json_read_string(json, &host)) return false;
        if (dml__host_is_known(config, host))
            dml__no_cluster(cluster,
                            "TF_CONFIG names the host \"%s\" twice: give each task an address of its own",
                            dml__shown(host.from, host.bytes, shown));
        config->hosts[job]++;
    }
    return !json->problem;
}

static bool dml__read_jobs(dml__tf_config *config, dml_cluster *cluster)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    config->has_cluster = true;
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        const int job = dml__find_job(name);
        if (job >= 0 ? !dml__read_hosts(config, cluster, job) : !dml__skip_value(json)) return false;
    }
    return !json->problem;
}

static bool dml__read_task(dml__tf_config *config)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        if (dml__json_is(name, "type")) {
            config->has_type = true;
            if (!dml__json_read_string(json, &config->type)) return false;
        } else if (dml__json_is(name, "index")) {
            config->has_index = true;
            if (!dml__json_read_count(json, &config->index)) return false;
        } else if (!dml__skip_value(json)) {
            return false;
        }
    }
    return !json->problem;
}

static bool dml__read_tf_config(dml__tf_config *config, dml_cluster *cluster)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        if (dml__json_is(name, "cluster") ? !dml__read_jobs(config, cluster)
            : dml__json_is(name, "task")  ? !dml__read_task(config)
                                          : !dml__skip_value(json))
            return false;
    }
    return !json->problem && dml__json_end(json);
}

/* The first worker's "host:port" is where the ranks meet. */
static void dml__read_master(const dml__tf_config *config, dml_cluster *cluster)
{
    const int job = config->hosts[DML__JOB_CHIEF] ? DML__JOB_CHIEF : DML__JOB_WORKER;
    dml__json json = config->json;
    dml__json_string host;
    char text[sizeof cluster->master_addr], shown[DML__SHOWN_BYTES];
    json.at = config->hosts_at[job];
    if (!dml__json_read_string(&json, &host)) return;
    const bool fits = host.bytes < sizeof text;
    if (fits) dml__json_unescape(text, host);
    char *colon = fits ? strrchr(text, ':') : NULL, *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || colon == text || *end || port < 1 || port > 65535) {
        dml__no_cluster(cluster, "TF_CONFIG has \"%s\" for the first worker: it must be host:port",
                        dml__shown(host.from, host.bytes, shown));
        return;
    }
    *colon = '\0';
    const bool bracketed = text[0] == '[' && colon[-1] == ']'; /* as addresses of IPv6 are */
    if (bracketed) colon[-1] = '\0';
    snprintf(cluster->master_addr, sizeof cluster->master_addr, "%s", text + bracketed);
    cluster->master_port = (int)port;
}

static void dml__place_task(const dml__tf_config *config, dml_cluster *cluster)
{
    const int *hosts = config->hosts, job = dml__find_job(config->type);
    const int before[DML__CLUSTER_JOBS] = { 0, hosts[DML__JOB_CHIEF],
                                            hosts[DML__JOB_CHIEF] + hosts[DML__JOB_WORKER] };
    char shown[DML__SHOWN_BYTES];
    if (job < 0 || !hosts[job]) {
        dml__no_cluster(cluster,
                        "TF_CONFIG's task is of the job \"%s\", which is none of its cluster's: a task is a "
                        "\"worker\", \"chief\" or \"ps\"",
                        dml__shown(config->type.from, config->type.bytes, shown));
    } else if (config->index >= (uint64_t)hosts[job]) {
        dml__no_cluster(cluster,
                        "TF_CONFIG's task is number %llu of the job \"%s\", which has %d, counted from 0",
                        (unsigned long long)config->index, dml__job_names[job], hosts[job]);
    } else {
        cluster->rank = before[job] + (int)config->index;
    }
}

static dml_cluster dml__cluster_of_tf_config(const char *text)
{
    dml__tf_config config;
    dml_cluster cluster, made;
    memset(&config, 0, sizeof config);
    memset(&cluster, 0, sizeof cluster);
    dml__json_start(&config.json, text, strlen(text));
    if (!dml__read_tf_config(&config, &cluster)) {
        dml__no_cluster(&cluster, "TF_CONFIG is not the JSON that it should be: at character %zu %s",
                        config.json.at, config.json.problem ? config.json.problem : "it goes on");
        return cluster;
    }
    if (!config.has_cluster || !config.has_type || !config.has_index)
        dml__no_cluster(&cluster, "TF_CONFIG has no %s: it needs a cluster, and a task with type and index",
                        !config.has_cluster ? "cluster"
                        : !config.has_type  ? "task with a type"
                                            : "index in its task");
    if (cluster.status != DML_OK) return cluster;
    made = dml_cluster_of(0, config.hosts[DML__JOB_CHIEF] + config.hosts[DML__JOB_WORKER],
                          config.hosts[DML__JOB_PS]);
    if (made.status == DML_OK) dml__place_task(&config, &made);
    if (made.status == DML_OK) dml__read_master(&config, &made);
    return made;
}

/* ---- the environment ---- */

DML_API dml_cluster dml_cluster_from_environment(void)
{
    dml_cluster cluster;
    dml_comm_options options;
    dml__comm_settings settings;
    dml__error error;
    const char *config = getenv("TF_CONFIG"), *ps = getenv("DML_PS");
    if (config && *config) return dml__cluster_of_tf_config(config);
    memset(&cluster, 0, sizeof cluster);
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    if (!dml__read_comm_settings(&options, &settings, &error)) {
        dml__no_cluster(&cluster, "%s", error.text);
        return cluster;
    }
    char *end = NULL;
    const long servers = ps ? strtol(ps, &end, 10) : 0;
    if (!ps || end == ps || *end || servers < 1 || servers > (1 << 20)) {
        dml__no_cluster(
            &cluster,
            "no cluster: DML_PS is %s%s, it must say how many of the %d ranks are servers (dmlrun "
            "--workers and --ps set it; or set TF_CONFIG)",
            ps ? "not a whole number from 1: " : "not set", ps ? ps : "", settings.net.world);
        return cluster;
    }
    return dml_cluster_of(settings.net.rank, settings.net.world - (int)servers, (int)servers);
}

DML_API dml_comm *dml_cluster_open(const dml_cluster *cluster, const dml_comm_options *options)
{
    dml_comm_options o;
    const bool good = cluster->status == DML_OK;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    o.rank = good ? cluster->rank : 0;
    o.world_size = good ? cluster->workers + cluster->servers : 1;
    if (good && cluster->master_addr[0]) {
        o.master_addr = cluster->master_addr;
        o.master_port = cluster->master_port;
    }
    dml_comm *comm = dml_comm_open(&o);
    if (comm && !good) dml__fail(&comm->job->error, cluster->status, "%s", cluster->error);
    return comm;
}

#endif

/* ---- dist/parameter_server_meet.c ---- */

#ifndef DML_DIST_PARAMETER_SERVER_MEET_C
#define DML_DIST_PARAMETER_SERVER_MEET_C

/* ---- dist/parameter_server_internal.h ---- */

/* parameter_server_internal.h: what workers and servers say to each other. */
#ifndef DML_DIST_PARAMETER_SERVER_INTERNAL_H
#define DML_DIST_PARAMETER_SERVER_INTERNAL_H

#include <string.h>

/* A worker's requests to one server are headers, in an order that the server keeps. What a header asks for
   follows under tags of its own, in pieces: a push's elements to the server, a pull's from it behind an
   answer. */
typedef enum dml__ps_kind {
    DML__PS_NONE, /* none came: the worker is dead */
    DML__PS_PUSH,
    DML__PS_PULL,
    DML__PS_CLOCK,
    DML__PS_AXPBY,
    DML__PS_DOT,
    DML__PS_LARGEST,
    DML__PS_LEAVE,
    DML__PS_KINDS
} dml__ps_kind;

enum { DML__PS_TAG_HEADER, DML__PS_TAG_UP, DML__PS_TAG_PLACES, DML__PS_TAG_DOWN, DML__PS_TAG_ANSWER };

/* Numbers of a header, which travels as DML_I64; reals by their bits. */
enum {
    DML__PS_KIND,
    DML__PS_VECTOR, /* x of the work on vectors */
    DML__PS_BEGIN,  /* elements of the whole vector; y of the work on vectors */
    DML__PS_END,
    DML__PS_AT,     /* the worker's clock */
    DML__PS_SENT,   /* of a push: how many elements come, with their places; -1: all of them, without */
    DML__PS_REAL,   /* weight, alpha */
    DML__PS_REAL_2, /* rate, beta */
    DML__PS_HEADER
};

/* And of an answer. */
enum { DML__PS_CLOCKS, DML__PS_LIVING, DML__PS_VALUE, DML__PS_ANSWER };

/* What worker 0 says before anything else. */
enum {
    DML__PS_COUNT,
    DML__PS_CONSISTENCY,
    DML__PS_STALENESS,
    DML__PS_BACKUP,
    DML__PS_THRESHOLD,
    DML__PS_PUSH_DTYPE,
    DML__PS_PULL_DTYPE,
    DML__PS_VECTORS,
    DML__PS_SETUP,
    DML__PS_WORKERS,
    DML__PS_SERVERS,
    DML__PS_TERMS
};

#define DML__PS_MOST_VECTORS 256
#define DML__PS_MOST_SETUP 65536
#define DML__PS_LEAST_PIECE 65536 /* elements */
#define DML__PS_MOST_PIECES 64    /* about, of a push or pull of the whole vector, all servers together */

static inline int64_t dml__ps_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double dml__ps_real(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Where server s's range begins; it ends where the next one's begins. */
static inline size_t dml__ps_range(size_t count, int servers, int s)
{
    const size_t each = count / (size_t)servers, more = count % (size_t)servers, at = (size_t)s;
    return each * at + (at < more ? at : more);
}

/* Elements of a piece: all of a range from its first on, but for the last. */
static inline size_t dml__ps_piece(size_t count)
{
    const size_t even = count / DML__PS_MOST_PIECES + 1;
    return even > DML__PS_LEAST_PIECE ? even : DML__PS_LEAST_PIECE;
}

/* What both sides begin with. */
typedef struct dml__ps_link {
    dml_comm *all, *peers; /* all ranks of the cluster; those with this one's job */
    int64_t terms[DML__PS_TERMS];
    double *setup;            /* (terms[DML__PS_SETUP]) */
    size_t *counts;           /* (ranks): of the servers, elements of their ranges, else 0 */
    size_t begin, end, piece; /* of this server's range; of a worker's: 0, count */
    dml_dtype push_dtype, pull_dtype;
} dml__ps_link;

/* Records an error for the whole job; returns the status that stuck. */
DML__LOCAL dml_status dml__ps_fail(dml_comm *comm, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* A collective of all ranks of the cluster: all have worker 0's terms and setup. `count` and `options` are
   the workers'. */
DML__LOCAL dml_status dml__ps_meet(dml__ps_link *link, dml__memory *memory, dml_comm *comm,
                                   const dml_cluster *cluster, size_t count, const dml_ps_options *options);
DML__LOCAL void dml__ps_part(dml__ps_link *link, dml__memory *memory);

#endif

#include <stdarg.h>
#include <stdio.h>

/* How workers and servers begin, and how they end. */

DML__LOCAL dml_status dml__ps_fail(dml_comm *comm, dml_status status, const char *format, ...)
{
    char text[384];
    va_list arguments;
    if (!comm || dml__is_copy(comm->job)) return status;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dml__enter_job(comm->job);
    status = dml__job_fail(comm->job, comm->job->rank, status, "rank %d: %s", comm->job->rank, text);
    dml__leave_job(comm->job);
    return status;
}

static bool dml__ps_wire_dtype(dml_dtype dtype)
{
    return dtype == DML_F32 || dtype == DML_BF16 || dtype == DML_F16;
}

/* NULL, or what is wrong with a worker's options. */
static const char *dml__ps_fault(const dml_ps_options *o, const dml_cluster *cluster)
{
    if ((unsigned)o->consistency > DML_PS_STALE) return "the consistency must be one of dml_ps_consistency";
    if (o->staleness < 0) return "the staleness must be 0 or more";
    if (o->backup < 0 || o->backup >= cluster->workers)
        return "there must be fewer backup workers than workers, and not less than 0";
    if (o->backup && o->consistency != DML_PS_SYNCHRONOUS) return "backup workers are for DML_PS_SYNCHRONOUS";
    if (!(o->threshold >= 0) || !(o->threshold <= 3e38f)) return "the threshold must be 0 or more";
    if (!dml__ps_wire_dtype(o->push_dtype) || !dml__ps_wire_dtype(o->pull_dtype))
        return "what is sent is DML_F32, DML_BF16 or DML_F16";
    if (o->vectors < 0 || o->vectors > DML__PS_MOST_VECTORS) return "there may be 0 to 256 more vectors";
    if (o->setup_count > DML__PS_MOST_SETUP || (o->setup_count && !o->setup))
        return "the setup must be given, and have at most 65536 numbers";
    return NULL;
}

static void dml__ps_write_terms(int64_t *terms, const dml_cluster *cluster, size_t count,
                                const dml_ps_options *o)
{
    terms[DML__PS_COUNT] = (int64_t)count;
    terms[DML__PS_CONSISTENCY] = (int64_t)o->consistency;
    terms[DML__PS_STALENESS] = o->staleness;
    terms[DML__PS_BACKUP] = o->backup;
    terms[DML__PS_THRESHOLD] = dml__ps_bits((double)o->threshold);
    terms[DML__PS_PUSH_DTYPE] = (int64_t)o->push_dtype;
    terms[DML__PS_PULL_DTYPE] = (int64_t)o->pull_dtype;
    terms[DML__PS_VECTORS] = o->vectors;
    terms[DML__PS_SETUP] = (int64_t)o->setup_count;
    terms[DML__PS_WORKERS] = cluster->workers;
    terms[DML__PS_SERVERS] = cluster->servers;
}

/* Whether this rank's terms are worker 0's, of which its setup counts. */
static dml_status dml__ps_compare(dml_comm *comm, const int64_t *mine, const int64_t *first, bool server)
{
    static const char *const names[DML__PS_TERMS] = {
        "count",      "consistency", "staleness",   "backup",  "threshold", "push_dtype",
        "pull_dtype", "vectors",     "setup_count", "workers", "servers",
    };
    for (int i = server ? DML__PS_WORKERS : 0; i < DML__PS_TERMS; i++) {
        if (mine[i] == first[i] || i == DML__PS_SETUP) continue;
        if (i == DML__PS_THRESHOLD)
            return dml__ps_fail(comm, DML_ERROR_MISMATCH,
                                "a parameter server with threshold %g; worker 0 has %g",
                                dml__ps_real(mine[i]), dml__ps_real(first[i]));
        return dml__ps_fail(
            comm, DML_ERROR_MISMATCH,
            "a parameter server with %s %lld, where worker 0 has %lld; all ranks need the same", names[i],
            (long long)mine[i], (long long)first[i]);
    }
    return DML_OK;
}

static dml_status dml__ps_agree(dml__ps_link *link, dml__memory *memory, const dml_cluster *cluster,
                                size_t count, const dml_ps_options *o)
{
    const bool server = dml_cluster_is_server(cluster);
    int64_t mine[DML__PS_TERMS];
    dml__ps_write_terms(mine, cluster, count, o);
    memcpy(link->terms, mine, sizeof mine);
    dml_status status = dml_comm_broadcast(link->all, link->terms, DML__PS_TERMS, DML_I64, 0);
    if (status == DML_OK) status = dml__ps_compare(link->all, mine, link->terms, server);
    if (status != DML_OK) return status;
    const size_t ranks = (size_t)(cluster->workers + cluster->servers);
    const size_t setup = (size_t)link->terms[DML__PS_SETUP], n = (size_t)link->terms[DML__PS_COUNT];
    link->setup = (double *)dml__allocate_array(memory, setup + 1, sizeof *link->setup);
    link->counts = (size_t *)dml__allocate_array(memory, ranks, sizeof *link->counts);
    if (!link->setup || !link->counts)
        return dml__ps_fail(link->all, DML_ERROR_MEMORY, "no memory for a parameter server");
    if (cluster->rank == 0 && setup) memcpy(link->setup, o->setup, setup * sizeof *link->setup);
    for (int s = 0; s < cluster->servers; s++)
        link->counts[cluster->workers + s] =
            dml__ps_range(n, cluster->servers, s + 1) - dml__ps_range(n, cluster->servers, s);
    const int s = cluster->rank - cluster->workers;
    link->begin = server ? dml__ps_range(n, cluster->servers, s) : 0;
    link->end = server ? dml__ps_range(n, cluster->servers, s + 1) : n;
    link->piece = dml__ps_piece(n);
    link->push_dtype = (dml_dtype)link->terms[DML__PS_PUSH_DTYPE];
    link->pull_dtype = (dml_dtype)link->terms[DML__PS_PULL_DTYPE];
    return dml_comm_broadcast(link->all, link->setup, setup, DML_F64, 0);
}

DML__LOCAL dml_status dml__ps_meet(dml__ps_link *link, dml__memory *memory, dml_comm *comm,
                                   const dml_cluster *cluster, size_t count, const dml_ps_options *options)
{
    memset(link, 0, sizeof *link);
    if (!comm || dml_comm_status(comm)) return dml_comm_status(comm);
    if (cluster->status != DML_OK) return dml__ps_fail(comm, cluster->status, "%s", cluster->error);
    if (dml_comm_world_size(comm) != cluster->workers + cluster->servers ||
        dml_comm_rank(comm) != cluster->rank)
        return dml__ps_fail(
            comm, DML_ERROR_ARGUMENT,
            "a cluster of %d workers and %d servers with rank %d on a communicator of %d ranks",
            cluster->workers, cluster->servers, cluster->rank, dml_comm_world_size(comm));
    const char *fault = dml_cluster_is_server(cluster) ? NULL : dml__ps_fault(options, cluster);
    if (fault) return dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a parameter server: %s", fault);
    link->all = dml_comm_split(comm, 0, cluster->rank);
    link->peers = dml_comm_split(comm, dml_cluster_is_server(cluster), cluster->rank);
    if (!link->all || !link->peers)
        return dml_comm_status(comm)
                   ? dml_comm_status(comm)
                   : dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server");
    return dml__ps_agree(link, memory, cluster, count, options);
}

DML__LOCAL void dml__ps_part(dml__ps_link *link, dml__memory *memory)
{
    dml__release(memory, link->setup);
    dml__release(memory, link->counts);
    dml_comm_close(link->peers);
    dml_comm_close(link->all);
}

#endif

/* ---- dist/parameter_server.c ---- */

#ifndef DML_DIST_PARAMETER_SERVER_C
#define DML_DIST_PARAMETER_SERVER_C

#include <math.h>

/* The workers' side. What is under way is a queue: its requests lie in a ring, those of each push and pull
   one behind the other, and are waited for in that order. */

#define DML__PS_MOST_OPERATIONS 256 /* under way; another waits for the oldest */

typedef struct dml__ps_operation {
    size_t begin, end; /* of the vector */
    float *to;         /* of a pull that comes in 16 bits: where it belongs; else NULL */
    bool buffered;     /* a push out of ps->values: none of the same elements may begin */
    bool pull;
    size_t requests;                    /* in the ring */
    int64_t (*answers)[DML__PS_ANSWER]; /* (servers) */
} dml__ps_operation;

struct dml_ps {
    dml__memory memory;
    dml__ps_link link;
    int workers, servers, living;
    size_t count;
    double rate;
    uint64_t clock;
    float threshold;
    /* The queue: tickets first .. next - 1. */
    uint64_t first, next;
    dml__ps_operation operations[DML__PS_MOST_OPERATIONS];
    dml_request **ring; /* (room) */
    size_t room, oldest, used;
    int64_t (*answers)[DML__PS_ANSWER]; /* (operations, servers) */
    /* What goes or comes otherwise than it lies in the caller's memory. */
    float *residual;   /* (count): what was pushed and not sent; NULL: everything is */
    float *values;     /* (count): what of it is sent */
    int32_t *places;   /* (count): where it is, in its piece */
    uint16_t *narrow;  /* (count): of pushes */
    uint16_t *arrived; /* (count): of pulls */
};

/* ---- the queue ---- */

static dml_isa dml__ps_isa(const dml_ps *ps)
{
    return ps->link.all->job->isa;
}

static void dml__ps_take_answers(dml_ps *ps, const dml__ps_operation *operation)
{
    for (int s = 0; operation->pull && s < ps->servers; s++) {
        const int64_t *answer = operation->answers[s];
        if (answer[DML__PS_LIVING] == 0) continue; /* this server had no part of it */
        if ((uint64_t)answer[DML__PS_CLOCKS] > ps->clock && ps->link.terms[DML__PS_BACKUP])
            ps->clock = (uint64_t)answer[DML__PS_CLOCKS];
        ps->living = (int)answer[DML__PS_LIVING];
    }
}

/* Waits for the oldest push or pull. */
static dml_status dml__ps_finish_oldest(dml_ps *ps)
{
    dml__ps_operation *operation = &ps->operations[ps->first % DML__PS_MOST_OPERATIONS];
    dml_status status = DML_OK;
    for (size_t i = 0; i < operation->requests; i++) {
        const dml_status one = dml_comm_wait(ps->link.all, ps->ring[ps->oldest]);
        if (status == DML_OK) status = one;
        ps->oldest = (ps->oldest + 1) % ps->room;
        ps->used--;
    }
    ps->first++;
    if (status != DML_OK) return status;
    dml__ps_take_answers(ps, operation);
    if (operation->to)
        dml__widen_line(dml__ps_isa(ps), ps->link.pull_dtype, operation->end - operation->begin,
                        ps->arrived + operation->begin, operation->to);
    return DML_OK;
}

/* A place for another, which shares no buffer with one that is under way. */
static dml__ps_operation *dml__ps_begin(dml_ps *ps, bool pull, bool buffered, size_t begin, size_t end)
{
    for (uint64_t t = ps->next; buffered && t > ps->first; t--) {
        const dml__ps_operation *o = &ps->operations[(t - 1) % DML__PS_MOST_OPERATIONS];
        if (o->pull != pull || o->begin >= end || begin >= o->end) continue;
        while (ps->first < t)
            if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
        break;
    }
    while (ps->next - ps->first == DML__PS_MOST_OPERATIONS)
        if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
    dml__ps_operation *operation = &ps->operations[ps->next % DML__PS_MOST_OPERATIONS];
    int64_t(*answers)[DML__PS_ANSWER] = operation->answers;
    memset(operation, 0, sizeof *operation);
    operation->answers = answers;
    memset(answers, 0, (size_t)ps->servers * sizeof *answers);
    operation->pull = pull;
    operation->buffered = buffered;
    operation->begin = begin;
    operation->end = end;
    ps->next++;
    return operation;
}

/* Room for another request of the newest operation, whose own have to be waited for last. */
static bool dml__ps_add(dml_ps *ps, dml__ps_operation *operation, dml_request *request)
{
    if (!request) return false;
    ps->ring[(ps->oldest + ps->used) % ps->room] = request;
    ps->used++;
    operation->requests++;
    return true;
}

/* Until `requests` more fit into the ring; the newest operation is being made and has none yet. */
static bool dml__ps_make_room(dml_ps *ps, size_t requests)
{
    while (ps->room - ps->used < requests && ps->first + 1 < ps->next)
        if (dml__ps_finish_oldest(ps) != DML_OK) return false;
    return true;
}

static dml_status dml__ps_say(dml_ps *ps, int server, const int64_t *header)
{
    return dml_comm_send(ps->link.all, header, DML__PS_HEADER, DML_I64, ps->workers + server,
                         DML__PS_TAG_HEADER);
}

static void dml__ps_header(const dml_ps *ps, int64_t header[DML__PS_HEADER], dml__ps_kind kind, int vector,
                           size_t begin, size_t end)
{
    memset(header, 0, DML__PS_HEADER * sizeof *header);
    header[DML__PS_KIND] = (int64_t)kind;
    header[DML__PS_VECTOR] = vector;
    header[DML__PS_BEGIN] = (int64_t)begin;
    header[DML__PS_END] = (int64_t)end;
    header[DML__PS_AT] = (int64_t)ps->clock;
    header[DML__PS_SENT] = -1;
}

/* What of [begin, end) is server s's. */
static bool dml__ps_overlap(const dml_ps *ps, int s, size_t begin, size_t end, size_t *from, size_t *to)
{
    const size_t first = dml__ps_range(ps->count, ps->servers, s),
                 last = dml__ps_range(ps->count, ps->servers, s + 1);
    *from = begin > first ? begin : first;
    *to = end < last ? end : last;
    return *from < *to;
}

static bool dml__ps_check_range(dml_ps *ps, const char *call, const void *data, int vector, size_t begin,
                                size_t end)
{
    if (!ps || dml_comm_status(ps->link.all)) return false;
    if (begin <= end && end <= ps->count && (data || begin == end) && vector >= 0 &&
        vector <= (int)ps->link.terms[DML__PS_VECTORS])
        return true;
    dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                 "%s of elements %zu to %zu of vector %d%s; there are %zu elements and vectors 0 to %d", call,
                 begin, end, vector, data ? "" : " with NULL", ps->count,
                 (int)ps->link.terms[DML__PS_VECTORS]);
    return false;
}

/* ---- pushes ---- */

/* The same elements, as they are. */
static bool dml__ps_push_all(dml_ps *ps, dml__ps_operation *operation, const void *data, dml_dtype dtype,
                             int64_t header[DML__PS_HEADER], int server, size_t from, size_t to)
{
    const size_t element = dml_dtype_size(dtype);
    header[DML__PS_BEGIN] = (int64_t)from;
    header[DML__PS_END] = (int64_t)to;
    header[DML__PS_SENT] = -1;
    for (size_t at = from; at < to; at += ps->link.piece) {
        const size_t count = to - at < ps->link.piece ? to - at : ps->link.piece;
        const char *piece = (const char *)data + (at - operation->begin) * element;
        if (!dml__ps_add(
                ps, operation,
                dml_comm_send_start(ps->link.all, piece, count, dtype, ps->workers + server, DML__PS_TAG_UP)))
            return false;
    }
    return dml__ps_say(ps, server, header) == DML_OK;
}

/* Moves what is large enough from residual to values, with its places; returns how many. */
static size_t dml__ps_pick(dml_ps *ps, size_t from, size_t to)
{
    float *residual = ps->residual, *values = ps->values + from;
    int32_t *places = ps->places + from;
    size_t sent = 0;
    for (size_t i = from; i < to; i++) {
        if (!(fabsf(residual[i]) <= ps->threshold)) { /* a NaN goes */
            values[sent] = residual[i];
            places[sent++] = (int32_t)(i - from);
            residual[i] = 0;
        }
    }
    return sent;
}

/* Where most is sent, all is, with zeros for the rest: that is less than the places. */
static void dml__ps_spread(dml_ps *ps, size_t from, size_t to, size_t sent)
{
    float *values = ps->values + from;
    size_t next = to - from;
    for (size_t k = sent; k-- > 0;) {
        const float value = values[k];
        const size_t place = (size_t)ps->places[from + k];
        while (next > place + 1) values[--next] = 0;
        values[--next] = value;
    }
    while (next > 0) values[--next] = 0;
}

/* One piece of those elements that are large enough. */
static bool dml__ps_push_some(dml_ps *ps, dml__ps_operation *operation, int64_t header[DML__PS_HEADER],
                              int server, size_t from, size_t to)
{
    const dml_dtype dtype = ps->link.push_dtype;
    const size_t element = dml_dtype_size(dtype), length = to - from;
    size_t sent = dml__ps_pick(ps, from, to);
    const bool dense = sent * (element + sizeof(int32_t)) >= length * element;
    if (dense) {
        dml__ps_spread(ps, from, to, sent);
        sent = length;
    }
    const void *values = ps->values + from;
    if (dtype != DML_F32) {
        dml__narrow_line(dml__ps_isa(ps), dtype, sent, ps->values + from, ps->narrow + from);
        values = ps->narrow + from;
    }
    header[DML__PS_BEGIN] = (int64_t)from;
    header[DML__PS_END] = (int64_t)to;
    header[DML__PS_SENT] = dense ? -1 : (int64_t)sent;
    const int to_rank = ps->workers + server;
    if (!dense && !dml__ps_add(ps, operation,
                               dml_comm_send_start(ps->link.all, ps->places + from, sent, DML_I32, to_rank,
                                                   DML__PS_TAG_PLACES)))
        return false;
    return dml__ps_add(ps, operation,
                       dml_comm_send_start(ps->link.all, values, sent, dtype, to_rank, DML__PS_TAG_UP)) &&
           dml__ps_say(ps, server, header) == DML_OK;
}

static bool dml__ps_push_range(dml_ps *ps, dml__ps_operation *operation, const float *g,
                               int64_t header[DML__PS_HEADER], int server, size_t from, size_t to)
{
    const dml_dtype dtype = ps->link.push_dtype;
    const float *mine = g + (from - operation->begin);
    if (header[DML__PS_VECTOR] != 0 || (!ps->residual && dtype == DML_F32))
        return dml__ps_push_all(ps, operation, g, DML_F32, header, server, from, to);
    if (!ps->residual) {
        dml__narrow_line(dml__ps_isa(ps), dtype, to - from, mine, ps->narrow + from);
        return dml__ps_push_all(ps, operation, ps->narrow + operation->begin, dtype, header, server, from,
                                to);
    }
    for (size_t i = 0; i < to - from; i++) ps->residual[from + i] += mine[i];
    for (size_t at = from; at < to; at += ps->link.piece)
        if (!dml__ps_push_some(ps, operation, header, server, at,
                               to - at < ps->link.piece ? to : at + ps->link.piece))
            return false;
    return true;
}

static dml_ps_ticket dml__ps_push_in(dml_ps *ps, int vector, const float *g, size_t begin, size_t end,
                                     double weight)
{
    int64_t header[DML__PS_HEADER];
    size_t from, to;
    if (!dml__ps_check_range(ps, "a push", g, vector, begin, end)) return 0;
    const bool buffered = vector == 0 && (ps->residual || ps->link.push_dtype != DML_F32);
    dml__ps_operation *operation = dml__ps_begin(ps, false, buffered, begin, end);
    const size_t pieces = (end - begin) / ps->link.piece + 1 + (size_t)ps->servers;
    if (!operation || !dml__ps_make_room(ps, 2 * pieces)) return 0;
    for (int s = 0; s < ps->servers; s++) {
        if (!dml__ps_overlap(ps, s, begin, end, &from, &to)) continue;
        dml__ps_header(ps, header, DML__PS_PUSH, vector, from, to);
        header[DML__PS_REAL] = dml__ps_bits(weight);
        header[DML__PS_REAL_2] = dml__ps_bits(ps->rate);
        if (!dml__ps_push_range(ps, operation, g, header, s, from, to)) return 0;
    }
    return ps->next;
}

DML_API dml_ps_ticket dml_ps_push(dml_ps *ps, const float *g, size_t begin, size_t end, double weight)
{
    if (ps && (!(weight >= 0) || !(weight <= 1e30))) {
        dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "a push of weight %g; it must be 0 or more", weight);
        return 0;
    }
    return dml__ps_push_in(ps, 0, g, begin, end, weight);
}

DML_API dml_ps_ticket dml_ps_push_to(dml_ps *ps, int vector, const float *g, size_t begin, size_t end)
{
    return dml__ps_push_in(ps, vector < 1 ? -1 : vector, g, begin, end, 1);
}

/* ---- pulls ---- */

static bool dml__ps_pull_range(dml_ps *ps, dml__ps_operation *operation, void *data, dml_dtype dtype,
                               int vector, int server, size_t from, size_t to)
{
    int64_t header[DML__PS_HEADER];
    const size_t element = dml_dtype_size(dtype);
    const int rank = ps->workers + server;
    if (!dml__ps_add(ps, operation,
                     dml_comm_receive_start(ps->link.all, operation->answers[server], DML__PS_ANSWER, DML_I64,
                                            rank, DML__PS_TAG_ANSWER)))
        return false;
    for (size_t at = from; at < to; at += ps->link.piece) {
        const size_t count = to - at < ps->link.piece ? to - at : ps->link.piece;
        char *piece = (char *)data + (at - operation->begin) * element;
        if (!dml__ps_add(ps, operation,
                         dml_comm_receive_start(ps->link.all, piece, count, dtype, rank, DML__PS_TAG_DOWN)))
            return false;
    }
    dml__ps_header(ps, header, DML__PS_PULL, vector, from, to);
    return dml__ps_say(ps, server, header) == DML_OK;
}

DML_API dml_ps_ticket dml_ps_pull_from(dml_ps *ps, int vector, float *x, size_t begin, size_t end)
{
    size_t from, to;
    if (!dml__ps_check_range(ps, "a pull", x, vector, begin, end)) return 0;
    const dml_dtype dtype = vector ? DML_F32 : ps->link.pull_dtype;
    const bool buffered = dtype != DML_F32;
    dml__ps_operation *operation = dml__ps_begin(ps, true, buffered, begin, end);
    const size_t pieces = (end - begin) / ps->link.piece + 1 + (size_t)ps->servers;
    if (!operation || !dml__ps_make_room(ps, pieces + (size_t)ps->servers)) return 0;
    operation->to = buffered ? x : NULL;
    void *data = buffered ? (void *)(ps->arrived + begin) : (void *)x;
    for (int s = 0; s < ps->servers; s++)
        if (dml__ps_overlap(ps, s, begin, end, &from, &to) &&
            !dml__ps_pull_range(ps, operation, data, dtype, vector, s, from, to))
            return 0;
    return ps->next;
}

DML_API dml_ps_ticket dml_ps_pull(dml_ps *ps, float *w, size_t begin, size_t end)
{
    return dml_ps_pull_from(ps, 0, w, begin, end);
}

/* ---- the rest ---- */

DML_API dml_status dml_ps_wait(dml_ps *ps, dml_ps_ticket ticket)
{
    if (!ps) return DML_ERROR_MEMORY;
    dml_status status = ticket ? DML_OK : dml_comm_status(ps->link.all);
    if (!ticket && status == DML_OK)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "waited for a push or pull that never began");
    while (ps->first < ps->next && ps->first < ticket) {
        const dml_status one = dml__ps_finish_oldest(ps);
        if (status == DML_OK) status = one;
    }
    return status;
}

static dml_status dml__ps_say_all(dml_ps *ps, const int64_t *header)
{
    dml_status status = DML_OK;
    for (int s = 0; s < ps->servers && status == DML_OK; s++) status = dml__ps_say(ps, s, header);
    return status;
}

DML_API dml_status dml_ps_clock(dml_ps *ps)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_ERROR_MEMORY;
    dml__ps_header(ps, header, DML__PS_CLOCK, 0, 0, 0);
    header[DML__PS_REAL_2] = dml__ps_bits(ps->rate);
    ps->clock++;
    return dml__ps_say_all(ps, header);
}

/* All servers do one thing, and their answers are in order. */
static dml_status dml__ps_command(dml_ps *ps, dml__ps_kind kind, int x, int y, double alpha, double beta,
                                  dml__ps_operation **done)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_ERROR_MEMORY;
    const int vectors = (int)ps->link.terms[DML__PS_VECTORS];
    if (x < 0 || x > vectors || y < 0 || y > vectors)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "work on the servers' vectors %d and %d asked for; there are 0 to %d", x, y,
                            vectors);
    dml__ps_operation *operation = dml__ps_begin(ps, true, false, 0, 0);
    if (!operation || !dml__ps_make_room(ps, (size_t)ps->servers)) return dml_comm_status(ps->link.all);
    dml__ps_header(ps, header, kind, x, (size_t)y, (size_t)y);
    header[DML__PS_REAL] = dml__ps_bits(alpha);
    header[DML__PS_REAL_2] = dml__ps_bits(beta);
    for (int s = 0; s < ps->servers; s++)
        if (!dml__ps_add(ps, operation,
                         dml_comm_receive_start(ps->link.all, operation->answers[s], DML__PS_ANSWER, DML_I64,
                                                ps->workers + s, DML__PS_TAG_ANSWER)))
            return dml_comm_status(ps->link.all);
    *done = operation;
    const dml_status status = dml__ps_say_all(ps, header);
    return status == DML_OK ? dml_ps_wait(ps, ps->next) : status;
}

DML_API dml_status dml_ps_axpby(dml_ps *ps, double alpha, int x, double beta, int y)
{
    dml__ps_operation *done = NULL;
    return dml__ps_command(ps, DML__PS_AXPBY, x, y, alpha, beta, &done);
}

DML_API dml_status dml_ps_dot(dml_ps *ps, int x, int y, double *dot)
{
    dml__ps_operation *done = NULL;
    const dml_status status = dml__ps_command(ps, DML__PS_DOT, x, y, 0, 0, &done);
    *dot = 0;
    for (int s = 0; status == DML_OK && s < ps->servers; s++)
        *dot += dml__ps_real(done->answers[s][DML__PS_VALUE]);
    return status;
}

DML_API dml_status dml_ps_largest(dml_ps *ps, int x, double *largest)
{
    dml__ps_operation *done = NULL;
    const dml_status status = dml__ps_command(ps, DML__PS_LARGEST, x, x, 0, 0, &done);
    *largest = 0;
    for (int s = 0; status == DML_OK && s < ps->servers; s++) {
        const double one = dml__ps_real(done->answers[s][DML__PS_VALUE]);
        if (!(one <= *largest)) *largest = one;
    }
    return status;
}

DML_API void dml_ps_set_rate(dml_ps *ps, double rate)
{
    if (ps) ps->rate = rate;
}

DML_API uint64_t dml_ps_clocks(const dml_ps *ps)
{
    return ps ? ps->clock : 0;
}

DML_API int dml_ps_workers(const dml_ps *ps)
{
    return ps ? ps->living : 0;
}

DML_API dml_comm *dml_ps_workers_comm(const dml_ps *ps)
{
    return ps ? ps->link.peers : NULL;
}

/* ---- opening and closing ---- */

static void dml__ps_free(dml_ps *ps)
{
    dml__memory memory = ps->memory;
    void *const parts[] = { ps->ring,   ps->answers, ps->residual, ps->values,
                            ps->places, ps->narrow,  ps->arrived };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) dml__release(&memory, parts[i]);
    dml__ps_part(&ps->link, &memory);
    dml__release(&memory, ps);
}

static bool dml__ps_allocate(dml_ps *ps, const dml_ps_options *o)
{
    dml__memory *memory = &ps->memory;
    const size_t n = ps->count, servers = (size_t)ps->servers;
    ps->room = (size_t)ps->link.all->job->max_requests / 4 * 3; /* the rest is the caller's */
    ps->ring = (dml_request **)dml__allocate_array(memory, ps->room, sizeof *ps->ring);
    ps->answers = (int64_t(*)[DML__PS_ANSWER])dml__allocate_array(memory, servers * DML__PS_MOST_OPERATIONS,
                                                                  sizeof *ps->answers);
    bool got = ps->ring && ps->answers;
    if (got && o->threshold > 0.0f) {
        ps->residual = (float *)dml__allocate_array(memory, n, sizeof *ps->residual);
        ps->values = (float *)dml__allocate_array(memory, n, sizeof *ps->values);
        ps->places = (int32_t *)dml__allocate_array(memory, n, sizeof *ps->places);
        got = ps->residual && ps->values && ps->places;
    }
    if (got && ps->link.push_dtype != DML_F32) {
        ps->narrow = (uint16_t *)dml__allocate_array(memory, n, sizeof *ps->narrow);
        got = ps->narrow != NULL;
    }
    if (got && ps->link.pull_dtype != DML_F32) {
        ps->arrived = (uint16_t *)dml__allocate_array(memory, n, sizeof *ps->arrived);
        got = ps->arrived != NULL;
    }
    for (int i = 0; got && i < DML__PS_MOST_OPERATIONS; i++)
        ps->operations[i].answers = ps->answers + (size_t)i * servers;
    return got;
}

static dml_status dml__ps_open_in(dml_ps *ps, const dml_cluster *cluster, const float *w,
                                  const dml_ps_options *o)
{
    const size_t needed = 2 * (DML__PS_MOST_PIECES + 2 + 2 * (size_t)cluster->servers);
    float *none = NULL;
    if (cluster->rank == 0 && !w)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "dml_ps_open needs w (NULL) of worker 0, which the servers begin with");
    if (!dml__ps_allocate(ps, o))
        return dml__ps_fail(ps->link.all, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
    if (ps->room < needed)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "a worker of %d servers needs a communicator with max_requests of %zu; it has %d",
                            cluster->servers, needed / 3 * 4 + 8, ps->link.all->job->max_requests);
    return dml_comm_scatterv(ps->link.all, cluster->rank == 0 ? w : none, ps->link.counts, NULL, DML_F32,
                             none, 0);
}

DML_API dml_ps *dml_ps_open(dml_comm *comm, const dml_cluster *cluster, size_t count, const float *w,
                            const dml_ps_options *options)
{
    dml__memory memory;
    dml_ps_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (dml_comm_status(comm)) return NULL;
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    dml_ps *ps = (dml_ps *)dml__allocate(&memory, sizeof *ps);
    if (!ps) {
        dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
        return NULL;
    }
    ps->memory = memory;
    ps->workers = ps->living = cluster->workers;
    ps->servers = cluster->servers;
    ps->count = count;
    ps->rate = 1;
    ps->threshold = o.threshold;
    dml_status status = dml_cluster_is_server(cluster)
                            ? dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a server called dml_ps_open")
                            : dml__ps_meet(&ps->link, &ps->memory, comm, cluster, count, &o);
    if (status == DML_OK) status = dml__ps_open_in(ps, cluster, w, &o);
    if (status == DML_OK) return ps;
    dml__ps_free(ps);
    return NULL;
}

DML_API dml_status dml_ps_close(dml_ps *ps)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_OK;
    dml_status status = dml_ps_wait(ps, DML_PS_ALL);
    dml__ps_header(ps, header, DML__PS_LEAVE, 0, 0, 0);
    if (status == DML_OK) status = dml__ps_say_all(ps, header);
    dml__ps_free(ps);
    return status;
}

#endif

/* ---- dist/parameter_server_serve.c ---- */

#ifndef DML_DIST_PARAMETER_SERVER_SERVE_C
#define DML_DIST_PARAMETER_SERVER_SERVE_C

#include <math.h>

/* The servers' side: one thread that waits for whatever comes next, of any worker. What it copies it copies
   by pieces that stay in the caches between the wire and the vector. */

#define DML__PS_BLOCK 65536   /* elements of which is known by how much weight they were pushed */
#define DML__PS_MOST_PULLS 64 /* of one worker, waiting */

/* A worker's requests of the server's communicator. */
enum {
    DML__PS_FOR_HEADER,
    DML__PS_FOR_UP,
    DML__PS_FOR_UP_2,
    DML__PS_FOR_DOWN,
    DML__PS_FOR_DOWN_2,
    DML__PS_FOR_ANSWER,
    DML__PS_FOR
};

typedef struct dml__ps_pull {
    int vector;
    size_t begin, end; /* of this server's range */
    uint64_t clock;    /* of the worker */
    double value;      /* what the answer says */
} dml__ps_pull;

typedef struct dml__ps_guest {
    int64_t header[DML__PS_HEADER], answer[DML__PS_ANSWER];
    bool present; /* it may still ask for something */
    bool held;    /* what the header asks for has to wait */
    bool ticked;  /* its pushes of the clock that is being summed are complete */
    uint64_t clock;
    /* The push that is coming: elements of this server's range. */
    size_t asked, taken, push_end; /* up to where pieces are being received, or have been taken */
    size_t piece_begin[2], piece_end[2];
    bool came[2]; /* places and values of a push that has places */
    /* The pulls that wait, the first of which may be on its way. */
    dml__ps_pull pulls[DML__PS_MOST_PULLS];
    int first_pull, pull_count;
    bool answering;
    size_t sent;
    char *up[2], *down[2]; /* (piece) f32 each */
} dml__ps_guest;

typedef struct dml__ps_server {
    dml__memory memory;
    dml__ps_link link;
    dml_ps_rule rule;
    dml_ps_consistency consistency;
    int workers, needed; /* how many have to tick */
    size_t count;        /* of the range */
    double rate;         /* of the clock's pushes, from whoever ended it last */
    uint64_t applied;    /* clocks */
    float *vectors;      /* (1 + vectors, count) */
    float *sum;          /* (count): synchronous: of the pushes of clock `applied` */
    double *weights;     /* (blocks): of what was added to each */
    float *line;         /* (piece): elements of a push, in f32 and each in its place */
    dml__reduction adding;
    dml__ps_guest *guests;  /* (workers) */
    dml_request **requests; /* (workers, DML__PS_FOR) */
    char *stages;           /* (workers, 4, piece) f32 */
    dml_ps_report report;
    dml_status status;
} dml__ps_server;

static dml_request **dml__ps_request(dml__ps_server *server, const dml__ps_guest *guest, int which)
{
    return &server->requests[(guest - server->guests) * DML__PS_FOR + which];
}

static void dml__ps_note(dml__ps_server *server, dml_status status)
{
    if (server->status == DML_OK) server->status = status;
}

static void dml__ps_started(dml__ps_server *server, dml_request **at, dml_request *request)
{
    *at = request;
    if (!request) dml__ps_note(server, dml_comm_status(server->link.all));
}

static void dml__ps_listen(dml__ps_server *server, dml__ps_guest *guest)
{
    guest->header[DML__PS_KIND] = DML__PS_NONE;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_HEADER),
                    dml_comm_receive_start(server->link.all, guest->header, DML__PS_HEADER, DML_I64,
                                           (int)(guest - server->guests), DML__PS_TAG_HEADER));
}

static int dml__ps_living(const dml__ps_server *server)
{
    int living = 0;
    for (int w = 0; w < server->workers; w++) living += server->guests[w].present;
    return living;
}

/* ---- applying ---- */

/* sum += weight x */
static void dml__ps_add_weighted(const dml__ps_server *server, size_t n, double weight, const float *x,
                                 float *sum)
{
    const float factor = (float)weight;
    if (factor == 1.0f)
        dml__reduce_elements(&server->adding, sum, sum, x, n);
    else
        for (size_t i = 0; i < n; i++) sum[i] += factor * x[i];
}

static void dml__ps_scale(size_t n, double factor, float *x)
{
    if (factor == 1) return;
    for (size_t i = 0; i < n; i++) x[i] = (float)factor * x[i];
}

/* Elements of the range follow g. */
static void dml__ps_apply_to(dml__ps_server *server, size_t begin, size_t count, const float *g,
                             uint64_t step, double rate)
{
    float *w = server->vectors + begin;
    dml_status status = DML_OK;
    if (server->rule.apply)
        status = server->rule.apply(server->rule.user, server->link.begin + begin, count, w, g, step, rate);
    else
        dml__ps_add_weighted(server, count, rate, g, w);
    if (status != DML_OK)
        dml__ps_note(server, dml__ps_fail(server->link.all, status,
                                          "the server's rule failed for elements %zu to %zu: %s",
                                          server->link.begin + begin, server->link.begin + begin + count,
                                          dml_status_string(status)));
}

/* The mean of a clock, where anybody pushed. */
static void dml__ps_apply_clock(dml__ps_server *server)
{
    for (size_t b = 0, at = 0; at < server->count; b++, at += DML__PS_BLOCK) {
        const size_t n = server->count - at < DML__PS_BLOCK ? server->count - at : DML__PS_BLOCK;
        if (server->weights[b] > 0) {
            dml__ps_scale(n, (double)n / server->weights[b], server->sum + at);
            dml__ps_apply_to(server, at, n, server->sum + at, server->applied, server->rate);
        }
        memset(server->sum + at, 0, n * sizeof *server->sum);
        server->weights[b] = 0;
    }
    server->applied++;
    server->report.clocks = server->applied;
}

static void dml__ps_add_to_clock(dml__ps_server *server, size_t begin, size_t end, double weight,
                                 const float *x)
{
    dml__ps_add_weighted(server, end - begin, weight, x, server->sum + begin);
    while (begin < end) {
        const size_t b = begin / DML__PS_BLOCK, behind = (b + 1) * DML__PS_BLOCK;
        const size_t to = end < behind ? end : behind;
        server->weights[b] += weight * (double)(to - begin);
        begin = to;
    }
}

/* A piece of a push, in f32; x may be changed. */
static void dml__ps_take(dml__ps_server *server, dml__ps_guest *guest, size_t begin, size_t end, float *x)
{
    const int64_t *header = guest->header;
    const int vector = (int)header[DML__PS_VECTOR];
    const double weight = dml__ps_real(header[DML__PS_REAL]), rate = dml__ps_real(header[DML__PS_REAL_2]);
    if (vector > 0) {
        dml__ps_add_weighted(server, end - begin, 1, x,
                             server->vectors + (size_t)vector * server->count + begin);
    } else if (server->consistency != DML_PS_SYNCHRONOUS) {
        dml__ps_scale(end - begin, weight, x);
        dml__ps_apply_to(server, begin, end - begin, x, server->report.clocks, rate);
    } else if ((uint64_t)header[DML__PS_AT] == server->applied) {
        dml__ps_add_to_clock(server, begin, end, weight, x);
    }
}

/* ---- pushes ---- */

static dml_dtype dml__ps_dtype_of(const dml__ps_server *server, const dml__ps_guest *guest)
{
    return guest->header[DML__PS_VECTOR] ? DML_F32 : server->link.push_dtype;
}

static bool dml__ps_has_places(const dml__ps_guest *guest)
{
    return guest->header[DML__PS_SENT] >= 0;
}

/* Asks for the next piece, if there is one and room for it. */
static void dml__ps_ask(dml__ps_server *server, dml__ps_guest *guest, int which)
{
    const size_t left = guest->push_end - guest->asked;
    if (left == 0) return;
    const size_t n = left < server->link.piece ? left : server->link.piece;
    guest->piece_begin[which] = guest->asked;
    guest->piece_end[which] = guest->asked += n;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_UP + which),
                    dml_comm_receive_start(server->link.all, guest->up[which], n,
                                           dml__ps_dtype_of(server, guest), (int)(guest - server->guests),
                                           DML__PS_TAG_UP));
}

static void dml__ps_begin_push(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const int rank = (int)(guest - server->guests);
    const size_t begin = (size_t)header[DML__PS_BEGIN] - server->link.begin,
                 end = (size_t)header[DML__PS_END] - server->link.begin;
    const size_t sent = dml__ps_has_places(guest) ? (size_t)header[DML__PS_SENT] : end - begin;
    server->report.pushes++;
    server->report.elements += end - begin;
    server->report.pushed += sent;
    if (server->consistency == DML_PS_SYNCHRONOUS && !header[DML__PS_VECTOR] &&
        (uint64_t)header[DML__PS_AT] < server->applied)
        server->report.dropped++;
    guest->asked = guest->taken = begin;
    guest->push_end = end;
    if (!dml__ps_has_places(guest)) {
        dml__ps_ask(server, guest, 0);
        dml__ps_ask(server, guest, 1);
        return;
    }
    guest->came[0] = guest->came[1] = false;
    dml__ps_started(
        server, dml__ps_request(server, guest, DML__PS_FOR_UP),
        dml_comm_receive_start(server->link.all, guest->up[0], sent, DML_I32, rank, DML__PS_TAG_PLACES));
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_UP_2),
                    dml_comm_receive_start(server->link.all, guest->up[1], sent,
                                           dml__ps_dtype_of(server, guest), rank, DML__PS_TAG_UP));
}

/* What came as f32; in place where it is so already. */
static float *dml__ps_widen(const dml__ps_server *server, const dml__ps_guest *guest, char *from, size_t n,
                            float *line)
{
    const dml_dtype dtype = dml__ps_dtype_of(server, guest);
    if (dtype == DML_F32) return (float *)(void *)from;
    dml__widen_line(server->adding.isa, dtype, n, (const uint16_t *)(const void *)from, line);
    return line;
}

/* Elements with places, spread over the range of the push. */
static void dml__ps_take_places(dml__ps_server *server, dml__ps_guest *guest)
{
    const size_t sent = (size_t)guest->header[DML__PS_SENT], n = guest->push_end - guest->taken;
    const int32_t *places = (const int32_t *)(const void *)guest->up[0];
    const dml_dtype dtype = dml__ps_dtype_of(server, guest);
    memset(server->line, 0, n * sizeof *server->line);
    for (size_t k = 0; k < sent; k++) {
        const size_t place = (size_t)(uint32_t)places[k];
        if (place >= n) {
            dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_FORMAT,
                                              "a push of element %zu of %zu elements", place, n));
            return;
        }
        if (dtype == DML_F32)
            server->line[place] = ((const float *)(const void *)guest->up[1])[k];
        else
            dml__widen_line(server->adding.isa, dtype, 1, (const uint16_t *)(const void *)guest->up[1] + k,
                            &server->line[place]);
    }
    dml__ps_take(server, guest, guest->taken, guest->push_end, server->line);
    guest->taken = guest->push_end;
}

/* A piece has come. */
static void dml__ps_piece_came(dml__ps_server *server, dml__ps_guest *guest, int which)
{
    if (dml__ps_has_places(guest)) {
        guest->came[which] = true;
        if (guest->came[0] && guest->came[1]) dml__ps_take_places(server, guest);
    } else {
        const size_t begin = guest->piece_begin[which], end = guest->piece_end[which];
        dml__ps_take(server, guest, begin, end,
                     dml__ps_widen(server, guest, guest->up[which], end - begin, server->line));
        guest->taken += end - begin;
        dml__ps_ask(server, guest, which);
    }
    if (guest->taken == guest->push_end) dml__ps_listen(server, guest);
}

/* ---- pulls ---- */

static bool dml__ps_may_answer(const dml__ps_server *server, const dml__ps_pull *pull)
{
    if (pull->vector > 0 || pull->begin == pull->end) return true;
    if (server->consistency == DML_PS_SYNCHRONOUS) return server->applied >= pull->clock;
    if (server->consistency == DML_PS_ASYNCHRONOUS) return true;
    for (int w = 0; w < server->workers; w++) {
        const dml__ps_guest *guest = &server->guests[w];
        if (guest->present && guest->clock + (uint64_t)server->link.terms[DML__PS_STALENESS] < pull->clock)
            return false;
    }
    return true;
}

static void dml__ps_begin_answer(dml__ps_server *server, dml__ps_guest *guest, const dml__ps_pull *pull)
{
    guest->answering = true;
    guest->sent = pull->begin;
    guest->answer[DML__PS_CLOCKS] = (int64_t)server->report.clocks;
    guest->answer[DML__PS_LIVING] = dml__ps_living(server);
    guest->answer[DML__PS_VALUE] = dml__ps_bits(pull->value);
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_ANSWER),
                    dml_comm_send_start(server->link.all, guest->answer, DML__PS_ANSWER, DML_I64,
                                        (int)(guest - server->guests), DML__PS_TAG_ANSWER));
}

static void dml__ps_send_piece(dml__ps_server *server, dml__ps_guest *guest, const dml__ps_pull *pull,
                               int which)
{
    const size_t left = pull->end - guest->sent, n = left < server->link.piece ? left : server->link.piece;
    const dml_dtype dtype = pull->vector ? DML_F32 : server->link.pull_dtype;
    const float *from = server->vectors + (size_t)pull->vector * server->count + guest->sent;
    if (dtype == DML_F32)
        memcpy(guest->down[which], from, n * sizeof *from);
    else
        dml__narrow_line(server->adding.isa, dtype, n, from, (uint16_t *)(void *)guest->down[which]);
    guest->sent += n;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_DOWN + which),
                    dml_comm_send_start(server->link.all, guest->down[which], n, dtype,
                                        (int)(guest - server->guests), DML__PS_TAG_DOWN));
}

/* As far as a worker's pulls can be answered. */
static void dml__ps_answer(dml__ps_server *server, dml__ps_guest *guest)
{
    while (guest->present && guest->pull_count && server->status == DML_OK) {
        const dml__ps_pull *pull = &guest->pulls[guest->first_pull];
        if (!guest->answering) {
            if (*dml__ps_request(server, guest, DML__PS_FOR_ANSWER) || !dml__ps_may_answer(server, pull))
                return;
            dml__ps_begin_answer(server, guest, pull);
        }
        for (int i = 0; i < 2 && guest->sent < pull->end; i++)
            if (!*dml__ps_request(server, guest, DML__PS_FOR_DOWN + i))
                dml__ps_send_piece(server, guest, pull, i);
        if (guest->sent < pull->end) return;
        guest->answering = false;
        guest->first_pull = (guest->first_pull + 1) % DML__PS_MOST_PULLS;
        guest->pull_count--;
    }
}

static void dml__ps_queue(dml__ps_server *server, dml__ps_guest *guest, int vector, size_t begin, size_t end,
                          double value)
{
    dml__ps_pull *pull = &guest->pulls[(guest->first_pull + guest->pull_count++) % DML__PS_MOST_PULLS];
    pull->vector = vector;
    pull->begin = begin;
    pull->end = end;
    pull->clock = (uint64_t)guest->header[DML__PS_AT];
    pull->value = value;
    dml__ps_answer(server, guest);
}

/* ---- work on vectors ---- */

static double dml__ps_dot_of(size_t n, const float *x, const float *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

static double dml__ps_largest_of(size_t n, const float *x)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= largest)) largest = fabsf(x[i]);
    return (double)largest;
}

static void dml__ps_work(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const size_t n = server->count;
    const float *x = server->vectors + (size_t)header[DML__PS_VECTOR] * n;
    float *y = server->vectors + (size_t)header[DML__PS_BEGIN] * n;
    const float alpha = (float)dml__ps_real(header[DML__PS_REAL]),
                beta = (float)dml__ps_real(header[DML__PS_REAL_2]);
    double value = 0;
    if (header[DML__PS_KIND] == DML__PS_DOT) value = dml__ps_dot_of(n, x, y);
    if (header[DML__PS_KIND] == DML__PS_LARGEST) value = dml__ps_largest_of(n, x);
    if (header[DML__PS_KIND] == DML__PS_AXPBY) /* of what isn't a number times 0 nothing is left */
        for (size_t i = 0; i < n; i++)
            y[i] = (alpha == 0.0f ? 0.0f : alpha * x[i]) + (beta == 0.0f ? 0.0f : beta * y[i]);
    dml__ps_queue(server, guest, 0, 0, 0, value);
}

/* ---- clocks ---- */

static void dml__ps_go_on(dml__ps_server *server, dml__ps_guest *guest);

/* What waited for others may go now. */
static void dml__ps_release(dml__ps_server *server)
{
    for (int w = 0; w < server->workers && server->status == DML_OK; w++) {
        dml__ps_guest *guest = &server->guests[w];
        dml__ps_answer(server, guest);
        if (guest->present && guest->held) dml__ps_go_on(server, guest);
    }
}

static bool dml__ps_clock_is_complete(const dml__ps_server *server)
{
    int ticked = 0;
    bool all = true;
    for (int w = 0; w < server->workers; w++) {
        const dml__ps_guest *guest = &server->guests[w];
        ticked += guest->ticked;
        if (guest->present && !guest->ticked) all = false;
    }
    return ticked >= server->needed || (ticked > 0 && all);
}

static void dml__ps_end_clocks(dml__ps_server *server)
{
    if (server->consistency == DML_PS_SYNCHRONOUS && dml__ps_clock_is_complete(server)) {
        for (int w = 0; w < server->workers; w++) server->guests[w].ticked = false;
        dml__ps_apply_clock(server);
    }
    dml__ps_release(server);
}

static void dml__ps_tick(dml__ps_server *server, dml__ps_guest *guest)
{
    const uint64_t clock = (uint64_t)guest->header[DML__PS_AT];
    guest->clock = clock + 1;
    if (server->consistency != DML_PS_SYNCHRONOUS)
        server->report.clocks++;
    else if (clock == server->applied)
        guest->ticked = true;
    server->rate = dml__ps_real(guest->header[DML__PS_REAL_2]);
    dml__ps_listen(server, guest);
    dml__ps_end_clocks(server);
}

/* What a worker that died had pushed of its clock stays in the sum, with its weight. */
static void dml__ps_lose(dml__ps_server *server, dml__ps_guest *guest)
{
    if (!guest->present) return;
    guest->present = false;
    guest->pull_count = 0;
    if (server->report.first_lost < 0) server->report.first_lost = (int)(guest - server->guests);
    server->report.lost++;
    dml__ps_end_clocks(server);
}

/* ---- headers ---- */

static bool dml__ps_is_sound(const dml__ps_server *server, const int64_t *header)
{
    const int64_t kind = header[DML__PS_KIND], vectors = server->link.terms[DML__PS_VECTORS];
    const int64_t begin = header[DML__PS_BEGIN], end = header[DML__PS_END], sent = header[DML__PS_SENT];
    if (kind <= DML__PS_NONE || kind >= DML__PS_KINDS || header[DML__PS_VECTOR] < 0 ||
        header[DML__PS_VECTOR] > vectors)
        return false;
    if (kind == DML__PS_AXPBY || kind == DML__PS_DOT || kind == DML__PS_LARGEST)
        return begin >= 0 && begin <= vectors;
    if (kind != DML__PS_PUSH && kind != DML__PS_PULL) return true;
    const int64_t piece = (int64_t)server->link.piece;
    return begin >= (int64_t)server->link.begin && begin < end && end <= (int64_t)server->link.end &&
           (sent == -1 || (sent >= 0 && sent <= end - begin && end - begin <= piece));
}

/* Whether it is of a clock that isn't being summed yet. */
static bool dml__ps_is_early(const dml__ps_server *server, const int64_t *header)
{
    const bool counts = header[DML__PS_KIND] == DML__PS_CLOCK ||
                        (header[DML__PS_KIND] == DML__PS_PUSH && !header[DML__PS_VECTOR]);
    return server->consistency == DML_PS_SYNCHRONOUS && counts &&
           (uint64_t)header[DML__PS_AT] > server->applied;
}

static void dml__ps_go_on(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const size_t first = server->link.begin;
    guest->held = dml__ps_is_early(server, header) || guest->pull_count == DML__PS_MOST_PULLS;
    if (guest->held) return;
    switch (header[DML__PS_KIND]) {
    case DML__PS_PUSH: dml__ps_begin_push(server, guest); return;
    case DML__PS_CLOCK: dml__ps_tick(server, guest); return;
    case DML__PS_LEAVE:
        guest->present = false;
        dml__ps_end_clocks(server);
        return;
    case DML__PS_PULL:
        server->report.pulls++;
        dml__ps_queue(server, guest, (int)header[DML__PS_VECTOR], (size_t)header[DML__PS_BEGIN] - first,
                      (size_t)header[DML__PS_END] - first, 0);
        break;
    default: dml__ps_work(server, guest); break;
    }
    dml__ps_listen(server, guest);
}

/* ---- all of it ---- */

static void dml__ps_came(dml__ps_server *server, int index, bool lost)
{
    dml__ps_guest *guest = &server->guests[index / DML__PS_FOR];
    const int which = index % DML__PS_FOR;
    if (lost) {
        dml__ps_lose(server, guest);
    } else if (!guest->present) {
        return; /* what is left of one that was lost */
    } else if (which == DML__PS_FOR_HEADER) {
        if (dml__ps_is_sound(server, guest->header))
            dml__ps_go_on(server, guest);
        else
            dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_FORMAT,
                                              "a request of worker %d that makes no sense",
                                              (int)(guest - server->guests)));
    } else if (which == DML__PS_FOR_UP || which == DML__PS_FOR_UP_2) {
        dml__ps_piece_came(server, guest, which - DML__PS_FOR_UP);
    } else {
        dml__ps_answer(server, guest);
        if (guest->held) dml__ps_go_on(server, guest);
    }
}

static void dml__ps_run(dml__ps_server *server)
{
    dml_message message;
    for (int w = 0; w < server->workers; w++) {
        server->guests[w].present = true;
        dml__ps_listen(server, &server->guests[w]);
    }
    while (server->status == DML_OK) {
        const int index = dml_comm_wait_any_message(server->link.all, server->requests,
                                                    server->workers * DML__PS_FOR, &message);
        if (index < 0) break; /* all have left, or the job has failed */
        dml__ps_came(server, index, message.source < 0);
    }
    dml__ps_note(server, dml_comm_status(server->link.all));
    if (server->report.lost == server->workers)
        dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_PEER, "all workers of the job died"));
}

static bool dml__ps_equip(dml__ps_server *server)
{
    dml__memory *memory = &server->memory;
    const size_t workers = (size_t)server->workers, n = server->count;
    const size_t vectors = 1 + (size_t)server->link.terms[DML__PS_VECTORS];
    const size_t piece = (server->link.piece * sizeof(float) + 63) / 64 * 64;
    if (n > SIZE_MAX / 8 / vectors) return false;
    server->vectors = (float *)dml__allocate_array(memory, n * vectors, sizeof(float));
    server->guests = (dml__ps_guest *)dml__allocate_array(memory, workers, sizeof *server->guests);
    server->requests =
        (dml_request **)dml__allocate_array(memory, workers * DML__PS_FOR, sizeof(dml_request *));
    server->stages = (char *)dml__allocate_array(memory, workers * 4, piece);
    server->line = (float *)dml__allocate(memory, piece);
    bool got = server->vectors && server->guests && server->requests && server->stages && server->line;
    if (got && server->consistency == DML_PS_SYNCHRONOUS) {
        server->sum = (float *)dml__allocate_array(memory, n, sizeof(float));
        server->weights = (double *)dml__allocate_array(memory, n / DML__PS_BLOCK + 1, sizeof(double));
        got = server->sum && server->weights;
    }
    for (size_t w = 0; got && w < workers; w++)
        for (size_t i = 0; i < 2; i++) {
            server->guests[w].up[i] = server->stages + (4 * w + i) * piece;
            server->guests[w].down[i] = server->stages + (4 * w + 2 + i) * piece;
        }
    return got;
}

static void dml__ps_unequip(dml__ps_server *server)
{
    dml__memory *memory = &server->memory;
    void *const parts[] = { server->vectors, server->guests, server->requests, server->stages,
                            server->line,    server->sum,    server->weights };
    dml__ps_part(&server->link, memory);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) dml__release(memory, parts[i]);
}

static dml_status dml__ps_prepare(dml__ps_server *server)
{
    dml_comm *all = server->link.all;
    server->adding.dtype = DML_F32;
    server->adding.op = DML_SUM;
    server->adding.isa = all->job->isa;
    server->consistency = (dml_ps_consistency)server->link.terms[DML__PS_CONSISTENCY];
    server->count = server->link.end - server->link.begin;
    server->needed = server->workers - (int)server->link.terms[DML__PS_BACKUP];
    if (server->workers > all->job->max_requests / DML__PS_FOR)
        return dml__ps_fail(all, DML_ERROR_ARGUMENT,
                            "a server of %d workers needs a communicator with max_requests of %d; it has %d",
                            server->workers, server->workers * DML__PS_FOR, all->job->max_requests);
    if (!dml__ps_equip(server))
        return dml__ps_fail(all, DML_ERROR_MEMORY, "no memory for a parameter server");
    dml_status status = dml_comm_scatterv(all, NULL, server->link.counts, NULL, DML_F32, server->vectors, 0);
    if (status != DML_OK || !server->rule.prepare) return status;
    status = server->rule.prepare(server->rule.user, server->link.begin, server->count, server->link.setup,
                                  (size_t)server->link.terms[DML__PS_SETUP]);
    if (status == DML_OK) return DML_OK;
    return dml__ps_fail(all, status, "the server's rule can't be prepared: %s", dml_status_string(status));
}

DML_API dml_status dml_ps_serve(dml_comm *comm, const dml_cluster *cluster, const dml_ps_options *options,
                                dml_ps_report *report)
{
    dml_ps_options o;
    dml__ps_server server;
    memset(&o, 0, sizeof o);
    memset(&server, 0, sizeof server);
    if (options) o = *options;
    if (report) memset(report, 0, sizeof *report);
    server.report.first_lost = -1;
    server.rule = o.rule;
    server.workers = cluster->workers;
    dml__memory_init(&server.memory, &o.allocator, NULL, 0);
    if (dml_comm_status(comm)) return dml_comm_status(comm);
    if (cluster->status == DML_OK && !dml_cluster_is_server(cluster))
        return dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a worker called dml_ps_serve");
    server.status = dml__ps_meet(&server.link, &server.memory, comm, cluster, 0, &o);
    if (server.status == DML_OK) server.status = dml__ps_prepare(&server);
    if (server.status == DML_OK) {
        dml_comm_outlive(comm);
        dml__ps_run(&server);
    }
    dml__ps_unequip(&server);
    if (report) *report = server.report;
    return server.status;
}

#endif
DML__DRIVERS_END
#ifdef DML_H

/* ---- dist/all_reduce_sync.c ---- */

#ifndef DML_DIST_ALL_REDUCE_SYNC_C
#define DML_DIST_ALL_REDUCE_SYNC_C

/* ---- dist/compress_sum.h ---- */

/* compress_sum.h: sums of ranges of g over the ranks, coded on the way as dist/compress.h says, for the
   strategies. */
#ifndef DML_DIST_COMPRESS_SUM_H
#define DML_DIST_COMPRESS_SUM_H

/* ---- dist/compress_low_rank.h ---- */

/* compress_low_rank.h: the gradients of matrices as products of two narrow ones (dist/compress.h, POWER). */
#ifndef DML_DIST_COMPRESS_LOW_RANK_H
#define DML_DIST_COMPRESS_LOW_RANK_H

/* A trained parameter: where it lies in g, and where what is sent of it lies. */
typedef struct dml__low_rank_part {
    size_t begin, rows, columns;
    size_t p, q; /* in the arrays of that name */
    size_t rank; /* 0: sent as it is, in p */
} dml__low_rank_part;

typedef struct dml__low_rank {
    dml__low_rank_part *part; /* (parts) in the order of g, with an end behind the last */
    size_t parts;
    float *p; /* of each part P (rows, rank), or its gradient (rows, columns) */
    float *q; /* Q (columns, rank), kept from step to step */
    uint64_t seed;
    uint64_t refilled; /* how often random numbers were needed */
} dml__low_rank;

/* False: no memory. Then, too, dml__low_rank_close releases what there is. */
DML__LOCAL bool dml__low_rank_open(dml__low_rank *low, dml__memory *memory, const dml_graph *graph, int rank,
                                   uint64_t seed);
DML__LOCAL void dml__low_rank_close(dml__low_rank *low, dml__memory *memory);

/* The parts of g[begin, end), which cuts none: *first up to *behind. */
DML__LOCAL void dml__low_rank_find(const dml__low_rank *low, size_t begin, size_t end, size_t *first,
                                   size_t *behind);

/* The three steps for these parts; `g` is theirs, `kept` that of the whole vector. kept = M = kept + unit g,
   P = M Q; with P summed over the ranks, P orthonormal, Q = M^T P, kept = M - P Q^T; with Q summed, g = P Q^T
   / unit. */
DML__LOCAL void dml__low_rank_project(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                      const float *g, float unit, float *kept);
DML__LOCAL void dml__low_rank_back(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                   float *kept);
DML__LOCAL void dml__low_rank_expand(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                     float factor, float *g);

#endif

/* A range whose sum is under way; zeros: none. */
typedef struct dml__coded_sum {
    size_t begin, end; /* of g, in elements */
    size_t sent;       /* TOP_K: elements */
    unsigned char *code;
    dml_request *request;
    bool expands; /* POWER: Q is under way, before it P */
} dml__coded_sum;

typedef struct dml__compressor {
    dml__memory *memory;
    dml_comm *comm;
    dml_pool *pool;
    dml_compression how;
    int ranks, rank;
    size_t count;        /* of g */
    float *kept;         /* (count) what was not sent, of means over the global batch; NULL: none */
    float *velocity;     /* (count) NULL: none */
    unsigned char *code; /* (code_bytes) of the ranges under way */
    size_t code_bytes, code_used;
    float unit, factor; /* g times unit is coded, sums are decoded times factor */
    double fraction;    /* of this step */
    dml__low_rank low;
    dml__coded_sum *before; /* POWER: whose Q is still to be sent */
} dml__compressor;

/* Collective of nothing. Whether the options can be, with a sentence on the trainer; completes them. */
DML__LOCAL dml_status dml__check_compression(dml_trainer *trainer, dml_compression *how);

/* For g of the trainer, of which at most `ranges` are under way at once. `memory` stays in use. On failure,
   with a sentence on the trainer, nothing is left behind. */
DML__LOCAL dml_status dml__compressor_open(dml__compressor *c, dml__memory *memory, dml_comm *comm,
                                           dml_trainer *trainer, const dml_compression *how, int ranges);
DML__LOCAL void dml__compressor_close(dml__compressor *c);

/* What an element of g takes in a message, about. */
DML__LOCAL double dml__compressor_bytes(const dml__compressor *c);

/* How many elements, of so many bytes each, should travel at once over such links, so that their latencies
   are a tenth of the time of an all-reduce in as few steps as there can be. Between hosts (`wires`) at least
   eight messages make up all `count`: their latencies overlap. Within a host, where the processors do all the
   work, less than 1 MiB gains nothing. */
DML__LOCAL size_t dml__bucket_elements(const dml__price_link *link, bool wires, int ranks, double bytes_each,
                                       size_t count);

/* Before the first range of a step: how many samples the sum of g will stand for, over all ranks. Kinds
   that keep nothing and need no range don't ask (dml__compressor_asks). */
DML__LOCAL bool dml__compressor_asks(const dml__compressor *c);
DML__LOCAL void dml__compressor_begin(dml__compressor *c, const dml_trainer *trainer, double samples);

/* Codes and sends `g`, the host's elements [begin, end) (that cut no parameter), which isn't to be written
   until dml__coded_sum_take has left the sum in it. All ranks start the same ranges in the same order and
   take them in that order. Returns what became of the communicator. */
DML__LOCAL dml_status dml__coded_sum_start(dml__compressor *c, float *g /* (end - begin) */, size_t begin,
                                           size_t end, dml__coded_sum *sum);
DML__LOCAL dml_status dml__coded_sum_take(dml__compressor *c, float *g, dml__coded_sum *sum);

/* Waits for what is under way and forgets it; then what is kept, since nobody knows what arrived. */
DML__LOCAL void dml__coded_sum_drop(dml__compressor *c, dml__coded_sum *sum);
DML__LOCAL void dml__compressor_forget(dml__compressor *c);

#endif

/* ---- dist/replicas.h ---- */

/* replicas.h: what strategies that train replicas have in common: they begin alike, and say whose fault it
 * was. */
#ifndef DML_DIST_REPLICAS_H
#define DML_DIST_REPLICAS_H

/* The communicator's error becomes the trainer's; returns its status. */
DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm);

/* A whole vector of the trainer's (DML_PARAMETERS, ...), from rank 0 to all. */
DML__LOCAL dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector);

/* Collective: DML_ERROR_MISMATCH where ranks have different models; else all have rank 0's optimizer, its
   numbers, seed and step number. */
DML__LOCAL dml_status dml__start_run(dml_comm *comm, dml_trainer *trainer);

/* The same, and all have rank 0's parameters and optimizer's state. */
DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer);

/* How many samples the ranks have together, and whether they are at the same step: asked while forward runs.
   It begins as zeros. */
typedef struct dml__roll_call {
    double mark;    /* of the step that this rank is at */
    double sent[3]; /* its samples, mark and mark^2, then the sums over all ranks */
    dml_request *request;
} dml__roll_call;

DML__LOCAL dml_status dml__start_roll_call(dml_comm *comm, dml_trainer *trainer, double samples,
                                           dml__roll_call *call);

/* DML_ERROR_MISMATCH where ranks are at different steps. */
DML__LOCAL dml_status dml__end_roll_call(dml_comm *comm, dml_trainer *trainer, dml__roll_call *call,
                                         double *samples);

/* Waits for one that nobody wants any more, if there is one. */
DML__LOCAL void dml__drop_roll_call(dml_comm *comm, dml__roll_call *call);

#endif

#include <string.h>

/* However large the model, no more than this many buckets are on their way at once. */
#define DML__MAX_BUCKETS 64

/* Steps are told apart modulo this, whose square's sum over any number of ranks a double holds exactly. */
#define DML__MARKS 1048576u

typedef struct dml__all_reduce_state {
    dml__memory memory;
    dml_comm *comm;
    size_t bucket_elements;        /* 0: to be chosen at the start */
    size_t filled_from, filled_to; /* g[from, to) is final and in no bucket yet */
    double mark;                   /* of the step that this rank is at */
    double sent[3];                /* its samples, mark and mark^2, then the sums over all ranks */
    dml_request *samples_request;
    dml_compression compression;
    dml__compressor compressor;
    double traced_to; /* the end of what is in the timeline (dml_seconds) */
    int buckets;
    dml__coded_sum bucket[DML__MAX_BUCKETS];
} dml__all_reduce_state;

/* What this rank did since it was asked last, beside its collectives in their timeline. */
static void dml__trace_phase(dml__all_reduce_state *state, const char *name)
{
    const double now = dml_seconds();
    if (name) dml_comm_trace_span(state->comm, name, state->traced_to, now);
    state->traced_to = now;
}

static size_t dml__measured_bucket(const dml__all_reduce_state *state, size_t count)
{
    const dml_comm *comm = state->comm;
    const bool wires = comm->hosts > 1;
    return dml__bucket_elements(wires ? &comm->model.between : &comm->model.inside, wires, comm->size,
                                dml__compressor_bytes(&state->compressor), count);
}

/* Rank 0's, since rounding may differ between processors. */
static dml_status dml__choose_bucket(dml__all_reduce_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t least = (count + DML__MAX_BUCKETS - 1) / DML__MAX_BUCKETS;
    if (!state->bucket_elements) {
        int64_t elements = (int64_t)dml__measured_bucket(state, count);
        if (dml_comm_broadcast(state->comm, &elements, 1, DML_I64, 0) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        state->bucket_elements = (size_t)elements;
    }
    if (state->bucket_elements < least) state->bucket_elements = least;
    return DML_OK;
}

static dml_status dml__all_reduce_sync_start(void *user, dml_trainer *trainer)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    /* While backward computes, buckets move on. */
    if (dml_comm_start_progress_thread(state->comm) != DML_OK) return dml__sync_failed(trainer, state->comm);
    dml_status status = dml__start_replicas(state->comm, trainer);
    if (status == DML_OK) /* with the seed that all ranks now have */
        status = dml__compressor_open(&state->compressor, &state->memory, state->comm, trainer,
                                      &state->compression, DML__MAX_BUCKETS);
    return status == DML_OK ? dml__choose_bucket(state, trainer) : status;
}

/* The sums that begin has started, once in a step. */
static dml_status dml__take_samples(dml__all_reduce_state *state)
{
    dml_request *waiting = state->samples_request;
    state->samples_request = NULL;
    return waiting ? dml_comm_wait(state->comm, waiting) : DML_OK;
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__drain_requests(dml__all_reduce_state *state)
{
    dml__take_samples(state);
    for (int b = 0; b < state->buckets; b++) dml__coded_sum_drop(&state->compressor, &state->bucket[b]);
    state->buckets = 0;
}

/* The number of samples of the global batch travels while forward runs, and with it at which step the rank
 * is. */
static dml_status dml__all_reduce_sync_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__drain_requests(state);
    dml__trace_phase(state, NULL);
    state->filled_from = state->filled_to = dml_trainer_count(trainer, DML_GRADIENTS);
    state->mark = (double)(dml_trainer_steps(trainer) % DML__MARKS);
    state->sent[0] = samples;
    state->sent[1] = state->mark;
    state->sent[2] = state->mark * state->mark;
    state->samples_request = dml_comm_all_reduce_start(state->comm, state->sent, 3, DML_F64, DML_SUM);
    return state->samples_request ? DML_OK : dml__sync_failed(trainer, state->comm);
}

static dml_status dml__send_bucket(dml__all_reduce_state *state, dml_trainer *trainer)
{
    DML_ASSERT(state->buckets < DML__MAX_BUCKETS);
    const size_t begin = state->filled_from, end = state->filled_to;
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, begin, end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    if (state->buckets == 0) {
        const bool asks = dml__compressor_asks(&state->compressor);
        if (asks && dml__take_samples(state) != DML_OK) return dml__sync_failed(trainer, state->comm);
        dml__compressor_begin(&state->compressor, trainer, state->sent[0]);
    }
    state->filled_to = begin;
    dml__coded_sum *bucket = &state->bucket[state->buckets++];
    if (dml__coded_sum_start(&state->compressor, g, begin, end, bucket) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    return DML_OK;
}

static dml_status dml__all_reduce_sync_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    DML_ASSERT(end == state->filled_from);
    (void)end;
    state->filled_from = begin;
    const bool full = state->filled_to - begin >= state->bucket_elements;
    return full || begin == 0 ? dml__send_bucket(state, trainer) : DML_OK;
}

/* With n ranks at the same step the sums are n times this rank's, and only then: the sum of squares says so
   even to a rank that is at the mean of the others. */
static bool dml__same_step(const dml__all_reduce_state *state)
{
    const double ranks = dml_comm_world_size(state->comm);
    return state->sent[1] == ranks * state->mark && state->sent[2] == ranks * state->mark * state->mark;
}

static dml_status dml__all_reduce_sync_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__trace_phase(state, "forward and backward");
    if (dml__take_samples(state) != DML_OK) return dml__sync_failed(trainer, state->comm);
    if (!dml__same_step(state))
        return dml_trainer_fail(
            trainer, DML_ERROR_MISMATCH,
            "this rank is at step %llu and others aren't; every rank must make the same calls of "
            "step, backward, update and advance, with DML_MORE in the same places",
            (unsigned long long)dml_trainer_steps(trainer));
    *samples = state->sent[0];
    dml_status status = DML_OK;
    const bool follows = *samples > 0 && dml__may_follow(trainer);
    for (int b = 0; b < state->buckets && status == DML_OK; b++) {
        dml__coded_sum *bucket = &state->bucket[b];
        /* What the host has, not dml_trainer_get, which would read the device's own values over it. */
        float *g = dml_trainer_host(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
        if (!g) return dml_status_of(dml_trainer_context(trainer));
        if (dml__coded_sum_take(&state->compressor, g, bucket) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        status = follows ? dml__follow_range(trainer, bucket->begin, bucket->end, *samples)
                         : dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    }
    dml__trace_phase(state, "waits for gradients");
    return status;
}

static dml_status dml__all_reduce_sync_updated(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__trace_phase((dml__all_reduce_state *)user, "update");
    return DML_OK;
}

/* Behind the buckets that are on their way, which were started in the same order on all ranks. */
static dml_status dml__all_reduce_sync_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    return dml_comm_all_reduce(state->comm, values, count, DML_F64, DML_SUM) == DML_OK
               ? DML_OK
               : dml__sync_failed(trainer, state->comm);
}

static void dml__all_reduce_sync_failed(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__drain_requests(state);
    dml__compressor_forget(&state->compressor);
}

static void dml__all_reduce_sync_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!state) return;
    dml__drain_requests(state);
    dml__compressor_close(&state->compressor);
    dml__memory memory = state->memory;
    dml__release(&memory, state);
}

DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__all_reduce_state *state = (dml__all_reduce_state *)dml__allocate(&memory, sizeof *state);
    if (state) {
        state->memory = memory;
        state->comm = comm;
        if (options) state->bucket_elements = (options->bucket_bytes + sizeof(float) - 1) / sizeof(float);
        if (options) state->compression = options->compression;
    }
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = state;
    sync.start = dml__all_reduce_sync_start;
    sync.begin = dml__all_reduce_sync_begin;
    sync.ready = dml__all_reduce_sync_ready;
    sync.finish = dml__all_reduce_sync_finish;
    sync.failed = dml__all_reduce_sync_failed;
    sync.updated = dml__all_reduce_sync_updated;
    sync.destroy = dml__all_reduce_sync_destroy;
    sync.ranks = dml_comm_world_size(comm);
    sync.rank = dml_comm_rank(comm);
    sync.all_reduce = dml__all_reduce_sync_sum;
    return sync;
}

#endif

/* ---- dist/zero_sync.c ---- */

#ifndef DML_DIST_ZERO_SYNC_C
#define DML_DIST_ZERO_SYNC_C

#include <string.h>

/* No more are on their way at once: that bounds what of g is in memory. */
#define DML__ZERO_BUCKETS 4

typedef struct dml__zero_bucket {
    size_t begin, end; /* of g, in elements */
    dml_request *request;
} dml__zero_bucket;

typedef struct dml__zero_state {
    dml__memory memory;
    dml_comm *comm;
    int stage, ranks, rank;
    bool drops; /* the vectors lie where memory can be given back */
    bool whole; /* so is w, for now, though it needn't be */
    size_t bucket_elements;
    size_t *border;                /* (ranks + 1): rank r owns elements [border[r], border[r + 1]) */
    size_t *counts, *offsets;      /* (ranks): of the collective that is being started */
    size_t filled_from, filled_to; /* g[from, to) is final and in no bucket yet */
    int buckets, oldest;           /* on their way; the first of them, in a ring */
    dml__zero_bucket bucket[DML__ZERO_BUCKETS];
    dml__roll_call call;
} dml__zero_state;

/* ---- who owns what ---- */

/* Under an optimizer that looks at whole parameters, where the one that lies at `at` begins. */
static size_t dml__zero_cut(const dml_trainer *trainer, size_t at)
{
    const dml_node *p = trainer->row->whole ? trainer->program->graph->first_parameter : NULL;
    for (; p; p = p->next_parameter)
        if (!p->frozen && p->offset <= at && at < p->offset + dml_shape_count(&p->shape)) return p->offset;
    return at;
}

static dml_status dml__zero_share_out(dml__zero_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS), ranks = (size_t)state->ranks;
    for (size_t r = 0; r <= ranks; r++) {
        const size_t even = count / ranks * r + (r < count % ranks ? r : count % ranks);
        state->border[r] = dml__zero_cut(trainer, even);
    }
    return dml_trainer_own(trainer, state->border[state->rank], state->border[state->rank + 1]);
}

/* What of [begin, end) rank r owns. */
static dml__zero_bucket dml__zero_part(const dml__zero_state *state, int r, size_t begin, size_t end)
{
    dml__zero_bucket part = { state->border[r], state->border[r + 1], NULL };
    if (part.begin < begin) part.begin = begin;
    if (part.begin > end) part.begin = end;
    if (part.end > end) part.end = end;
    if (part.end < part.begin) part.end = part.begin;
    return part;
}

/* Fills in counts and offsets for a collective over [begin, end); returns this rank's part. */
static dml__zero_bucket dml__zero_parts(dml__zero_state *state, size_t begin, size_t end)
{
    for (int r = 0; r < state->ranks; r++) {
        const dml__zero_bucket part = dml__zero_part(state, r, begin, end);
        state->counts[r] = part.end - part.begin;
        state->offsets[r] = part.begin - begin;
    }
    return dml__zero_part(state, state->rank, begin, end);
}

/* What of [begin, end) is other ranks'. */
static dml_status dml__zero_forget(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                   size_t end)
{
    const dml__zero_bucket own = dml__zero_part(state, state->rank, begin, end);
    const dml_status status = dml_trainer_forget(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_forget(trainer, vector, own.end, end) : status;
}

/* Each rank gets what of [begin, end) is others'. */
static dml_status dml__zero_collect(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                    size_t end)
{
    const dml__zero_bucket own = dml__zero_parts(state, begin, end);
    const float *mine = dml_trainer_get(trainer, vector, own.begin, own.end);
    float *all = dml_trainer_host(trainer, vector, begin, end);
    if (!mine || !all) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_all_gatherv(state->comm, mine, state->counts, state->offsets, DML_F32, all) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    const dml_status status = dml_trainer_put(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_put(trainer, vector, own.end, end) : status;
}

/* ---- beginning ---- */

/* Rank 0's vector, in pieces, so that what is other ranks' never lies here as a whole. */
static dml_status dml__zero_start_vector(dml__zero_state *state, dml_trainer *trainer, int vector)
{
    const size_t trained = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t count = dml_trainer_count(trainer, vector);
    const bool drops = state->drops && (vector != DML_PARAMETERS || state->stage == 3);
    dml_status status = DML_OK;
    float *data = dml_trainer_get(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    for (size_t begin = 0, end; begin < count && status == DML_OK; begin = end) {
        end = count - begin < state->bucket_elements ? count : begin + state->bucket_elements;
        if (dml_comm_broadcast(state->comm, data + begin, end - begin, DML_F32, 0) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        if (drops && begin < trained)
            status = dml__zero_forget(state, trainer, vector, begin, end < trained ? end : trained);
    }
    return status == DML_OK ? dml_trainer_put(trainer, vector, 0, count) : status;
}

static dml_status dml__zero_check(const dml__zero_state *state, dml_trainer *trainer)
{
    if (state->stage < 1 || state->stage > 3)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "stage %d of ZeRO asked for; there are 1, 2 and 3", state->stage);
    if (state->stage == 3 && !state->drops)
        return dml_trainer_fail(
            trainer, DML_ERROR_UNSUPPORTED,
            "stage 3 of ZeRO is for the CPU: a device with memory of its own would keep all parameters; take "
            "stage 1 or 2");
    return DML_OK;
}

static dml_status dml__zero_start(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    state->drops = dml_context_device(dml_trainer_context(trainer))->host_memory;
    dml_status status = dml__zero_check(state, trainer);
    if (status != DML_OK) return status;
    /* While backward computes, buckets move on. */
    if (dml_comm_start_progress_thread(state->comm) != DML_OK) return dml__sync_failed(trainer, state->comm);
    status = dml__start_run(state->comm, trainer);
    if (status == DML_OK) status = dml__zero_share_out(state, trainer);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml__zero_start_vector(state, trainer, v);
    if (status != DML_OK || !state->drops || state->stage == 1) return status;
    return dml_trainer_forget(trainer, DML_GRADIENTS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

/* ---- gradients ---- */

/* Waits for the oldest bucket; of it, this rank goes on with its own part. */
static dml_status dml__zero_take_bucket(dml__zero_state *state, dml_trainer *trainer)
{
    const dml__zero_bucket bucket = state->bucket[state->oldest];
    state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    state->buckets--;
    if (dml_comm_wait(state->comm, bucket.request) != DML_OK) return dml__sync_failed(trainer, state->comm);
    const dml__zero_bucket own = dml__zero_part(state, state->rank, bucket.begin, bucket.end);
    const dml_status status = dml_trainer_put(trainer, DML_GRADIENTS, own.begin, own.end);
    if (status != DML_OK || !state->drops || state->stage == 1) return status;
    return dml__zero_forget(state, trainer, DML_GRADIENTS, bucket.begin, bucket.end);
}

static dml_status dml__zero_send_bucket(dml__zero_state *state, dml_trainer *trainer)
{
    dml_status status = DML_OK;
    while (state->buckets && status == DML_OK &&
           (state->buckets == DML__ZERO_BUCKETS ||
            dml_comm_done(state->comm, state->bucket[state->oldest].request)))
        status = dml__zero_take_bucket(state, trainer);
    if (status != DML_OK) return status;
    dml__zero_bucket bucket = { state->filled_from, state->filled_to, NULL };
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, bucket.begin, bucket.end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    const dml__zero_bucket own = dml__zero_parts(state, bucket.begin, bucket.end);
    bucket.request = dml_comm_reduce_scatterv_start(state->comm, g, state->counts, state->offsets, DML_F32,
                                                    DML_SUM, g + (own.begin - bucket.begin));
    if (!bucket.request) return dml__sync_failed(trainer, state->comm);
    state->bucket[(state->oldest + state->buckets++) % DML__ZERO_BUCKETS] = bucket;
    state->filled_to = state->filled_from;
    return DML_OK;
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__zero_drain(dml__zero_state *state)
{
    for (; state->buckets > 0; state->buckets--) {
        dml_comm_wait(state->comm, state->bucket[state->oldest].request);
        state->oldest = (state->oldest + 1) % DML__ZERO_BUCKETS;
    }
    dml__drop_roll_call(state->comm, &state->call);
}

static dml_status dml__zero_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state);
    state->filled_from = state->filled_to = dml_trainer_count(trainer, DML_GRADIENTS);
    return dml__start_roll_call(state->comm, trainer, samples, &state->call);
}

static dml_status dml__zero_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    DML_ASSERT(end == state->filled_from);
    (void)end;
    state->filled_from = begin;
    const bool full = state->filled_to - begin >= state->bucket_elements;
    return full || begin == 0 ? dml__zero_send_bucket(state, trainer) : DML_OK;
}

static dml_status dml__zero_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml_status status = dml__end_roll_call(state->comm, trainer, &state->call, samples);
    while (state->buckets && status == DML_OK) status = dml__zero_take_bucket(state, trainer);
    return status;
}

static dml_status dml__zero_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__zero_state *state = (dml__zero_state *)user;
    return dml_comm_all_reduce(state->comm, values, count, DML_F64, DML_SUM) == DML_OK
               ? DML_OK
               : dml__sync_failed(trainer, state->comm);
}

/* ---- parameters ---- */

static dml_status dml__zero_update(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const dml_status status =
        dml_trainer_update_range(trainer, state->border[state->rank], state->border[state->rank + 1]);
    if (status != DML_OK || state->stage == 3) return status;
    return dml__zero_collect(state, trainer, DML_PARAMETERS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

static dml_status dml__zero_use(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = DML_OK;
    if (state->whole) status = dml__zero_forget(state, trainer, DML_PARAMETERS, 0, count);
    state->whole = false;
    return status == DML_OK ? dml__zero_collect(state, trainer, DML_PARAMETERS, begin, end) : status;
}

static dml_status dml__zero_used(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    return dml__zero_forget((dml__zero_state *)user, trainer, DML_PARAMETERS, begin, end);
}

static dml_status dml__zero_gather(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = DML_OK;
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v >= DML_OPTIMIZER_STATE || (v == DML_PARAMETERS && state->stage == 3))
            status = dml__zero_collect(state, trainer, v, 0, count);
    state->whole = status == DML_OK;
    return status;
}

/* ---- ending ---- */

/* The op that failed may have been using parameters. */
static void dml__zero_failed(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    dml__zero_drain(state);
    if (state->stage == 3 && !state->whole)
        dml__zero_forget(state, trainer, DML_PARAMETERS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
}

static void dml__zero_destroy(void *user, dml_trainer *trainer)
{
    dml__zero_state *state = (dml__zero_state *)user;
    (void)trainer;
    if (!state) return;
    dml__zero_drain(state);
    dml__memory memory = state->memory;
    dml__release(&memory, state->border);
    dml__release(&memory, state);
}

static dml__zero_state *dml__zero_create(dml_comm *comm, const dml_zero_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__zero_state *state = (dml__zero_state *)dml__allocate(&memory, sizeof *state);
    if (!state) return NULL;
    const size_t bytes = options && options->bucket_bytes ? options->bucket_bytes : (size_t)1 << 20;
    state->memory = memory;
    state->comm = comm;
    state->stage = options && options->stage ? options->stage : 2;
    state->ranks = dml_comm_world_size(comm);
    state->rank = dml_comm_rank(comm);
    state->bucket_elements = bytes < sizeof(float) ? 1 : bytes / sizeof(float);
    const size_t each = (size_t)state->ranks + 1;
    state->border = (size_t *)dml__allocate_array(&memory, 3 * each, sizeof *state->border);
    if (state->border) {
        state->counts = state->border + each;
        state->offsets = state->counts + each;
        return state;
    }
    dml__release(&memory, state);
    return NULL;
}

DML_API dml_sync dml_zero_sync(dml_comm *comm, const dml_zero_options *options)
{
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    dml__zero_state *state = dml__zero_create(comm, options);
    sync.state = state;
    sync.start = dml__zero_start;
    sync.begin = dml__zero_begin;
    sync.ready = dml__zero_ready;
    sync.finish = dml__zero_finish;
    sync.failed = dml__zero_failed;
    sync.destroy = dml__zero_destroy;
    sync.ranks = dml_comm_world_size(comm);
    sync.rank = dml_comm_rank(comm);
    sync.all_reduce = dml__zero_sum;
    sync.update = dml__zero_update;
    if (state && state->stage == 3) {
        sync.use = dml__zero_use;
        sync.used = dml__zero_used;
    }
    sync.gather = dml__zero_gather;
    return sync;
}

#endif

/* ---- dist/replicas.c ---- */

#ifndef DML_DIST_REPLICAS_C
#define DML_DIST_REPLICAS_C

#include <string.h>

DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm)
{
    return dml_trainer_fail(trainer, dml_comm_status(comm), "%s", dml_comm_error(comm));
}

DML__LOCAL dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector)
{
    const size_t count = dml_trainer_count(trainer, vector);
    float *data = dml_trainer_get(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_broadcast(comm, data, count, DML_F32, 0) != DML_OK) return dml__sync_failed(trainer, comm);
    return dml_trainer_put(trainer, vector, 0, count);
}

/* Ranks that went on with other numbers than rank 0's would drift apart. */
static dml_status dml__broadcast_run(dml_comm *comm, dml_trainer *trainer)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    dml_optimizer *o = &run.optimizer;
    int64_t whole[5] = { (int64_t)o->kind, o->nesterov, (int64_t)run.seed, (int64_t)run.steps,
                         (int64_t)run.scaled_steps };
    float real[32] = { 0 };
    int numbers = 0;
    for (const float *number; (number = dml_optimizer_number(o, numbers, NULL)) != NULL; numbers++) {
        DML_ASSERT(numbers < 31);
        real[numbers] = *number;
    }
    real[numbers] = run.loss_scale;
    if (dml_comm_broadcast(comm, whole, 5, DML_I64, 0) != DML_OK ||
        dml_comm_broadcast(comm, real, (size_t)numbers + 1, DML_F32, 0) != DML_OK)
        return dml__sync_failed(trainer, comm);
    for (int i = 0; i < numbers; i++) *dml_optimizer_number(o, i, NULL) = real[i];
    o->kind = (dml_optimizer_kind)whole[0];
    o->nesterov = whole[1] != 0;
    run.seed = (uint64_t)whole[2];
    run.steps = (uint64_t)whole[3];
    run.scaled_steps = (uint64_t)whole[4];
    run.loss_scale = real[numbers];
    return dml_trainer_set_run(trainer, &run);
}

/* What a model is made of: the names and shapes of its parameters. */
static uint32_t dml__model_mark(const dml_trainer *trainer)
{
    uint32_t mark = 0;
    const dml_node *n = dml_graph_first(dml_trainer_program((dml_trainer *)trainer)->graph);
    for (; n; n = dml_node_next(n)) {
        if (strcmp(dml_node_op(n), "parameter") != 0) continue;
        const dml_shape shape = dml_node_shape(n);
        const char *name = dml_node_name(n);
        mark = dml__crc32c(mark, name, strlen(name) + 1);
        mark = dml__crc32c(mark, shape.dims, (size_t)shape.ndim * sizeof shape.dims[0]);
    }
    return mark;
}

/* Ranks with different models would exchange gradients of other parameters. */
static dml_status dml__compare_models(dml_comm *comm, dml_trainer *trainer)
{
    const double count = (double)dml_trainer_count(trainer, DML_PARAMETERS), mark = dml__model_mark(trainer);
    double most[4] = { count, -count, mark, -mark };
    if (dml_comm_all_reduce(comm, most, 4, DML_F64, DML_MAX) != DML_OK)
        return dml__sync_failed(trainer, comm);
    if (most[0] == -most[1] && most[2] == -most[3]) return DML_OK;
    return dml_trainer_fail(
        trainer, DML_ERROR_MISMATCH,
        "ranks have different models: this one's has %.0f parameters, others %.0f to %.0f; their names "
        "and shapes must be the same",
        count, -most[1], most[0]);
}

DML__LOCAL dml_status dml__start_run(dml_comm *comm, dml_trainer *trainer)
{
    const dml_status status = dml__compare_models(comm, trainer);
    return status == DML_OK ? dml__broadcast_run(comm, trainer) : status;
}

DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer)
{
    dml_status status = dml__start_run(comm, trainer);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml__broadcast_vector(comm, trainer, v);
    return status;
}

/* Steps are told apart modulo this, whose square's sum over any number of ranks a double holds exactly. */
#define DML__STEP_MARKS 1048576u

DML__LOCAL dml_status dml__start_roll_call(dml_comm *comm, dml_trainer *trainer, double samples,
                                           dml__roll_call *call)
{
    call->mark = (double)(dml_trainer_steps(trainer) % DML__STEP_MARKS);
    call->sent[0] = samples;
    call->sent[1] = call->mark;
    call->sent[2] = call->mark * call->mark;
    call->request = dml_comm_all_reduce_start(comm, call->sent, 3, DML_F64, DML_SUM);
    return call->request ? DML_OK : dml__sync_failed(trainer, comm);
}

/* With n ranks at the same step the sums are n times this rank's, and only then: the sum of squares says so
   even to a rank that is at the mean of the others. */
DML__LOCAL dml_status dml__end_roll_call(dml_comm *comm, dml_trainer *trainer, dml__roll_call *call,
                                         double *samples)
{
    const double ranks = dml_comm_world_size(comm);
    dml_request *request = call->request;
    call->request = NULL;
    if (dml_comm_wait(comm, request) != DML_OK) return dml__sync_failed(trainer, comm);
    *samples = call->sent[0];
    if (call->sent[1] == ranks * call->mark && call->sent[2] == ranks * call->mark * call->mark)
        return DML_OK;
    return dml_trainer_fail(
        trainer, DML_ERROR_MISMATCH,
        "this rank is at step %llu and others aren't; every rank must make the same calls of "
        "step, backward, update and advance, with DML_MORE in the same places",
        (unsigned long long)dml_trainer_steps(trainer));
}

DML__LOCAL void dml__drop_roll_call(dml_comm *comm, dml__roll_call *call)
{
    if (call->request) dml_comm_wait(comm, call->request);
    call->request = NULL;
}

#endif

/* ---- dist/local_sgd.c ---- */

#ifndef DML_DIST_LOCAL_SGD_C
#define DML_DIST_LOCAL_SGD_C

#include <math.h>
#include <string.h>

/* What ranks tell each other when they meet. */
typedef struct dml__local_sgd_word {
    double steps, samples; /* all steps; samples since the last average */
} dml__local_sgd_word;

typedef struct dml__local_sgd_state {
    dml__memory memory;
    dml_comm *comm;
    dml_local_sgd_options options;
    bool once;                /* no average until the end */
    uint64_t steps, averaged; /* taken, skipped ones too; at the last average */
    uint64_t rounds;          /* updates by the outer optimizer */
    double step_samples, samples;
    dml__local_sgd_word *words; /* (ranks) */
    /* With an outer optimizer, each (trained parameters): what all ranks had after the last average; how far
       they came from there; the optimizer's state. */
    float *anchor, *change, *outer[DML__MAX_STATES];
} dml__local_sgd_state;

/* ---- the start ---- */

static dml_status dml__check_local_sgd(const dml__local_sgd_state *state, dml_trainer *trainer)
{
    const dml_optimizer *outer = &state->options.outer;
    if (!state->once && state->options.tau < 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "local SGD with an average every %d steps asked for; tau must be at least 1",
                                state->options.tau);
    if (outer->lr == 0.0f) return DML_OK;
    const dml__optimizer_row *row = dml__optimizer_row_of(outer->kind);
    if (row && row->whole)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "%s asked for as the outer optimizer of local SGD; it updates whole "
                                "parameters, take another one",
                                row->name);
    dml_optimizer completed = *outer;
    return dml__complete_optimizer(&completed, &trainer->context->error);
}

static dml_status dml__allocate_local_sgd(dml__local_sgd_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t ranks = (size_t)dml_comm_world_size(state->comm);
    const dml_optimizer *outer = &state->options.outer;
    const int states = outer->lr != 0.0f ? dml_optimizer_states(outer) : 0;
    state->words = (dml__local_sgd_word *)dml__allocate_array(&state->memory, ranks, sizeof *state->words);
    bool whole = state->words != NULL;
    float **vectors[2 + DML__MAX_STATES] = { &state->anchor, &state->change };
    for (int s = 0; s < states; s++) vectors[2 + s] = &state->outer[s];
    for (int v = 0; v < 2 + states && outer->lr != 0.0f; v++) {
        *vectors[v] = (float *)dml__allocate_array(&state->memory, count, sizeof(float));
        whole = whole && *vectors[v];
    }
    return whole ? DML_OK
                 : dml_trainer_fail(trainer, DML_ERROR_MEMORY,
                                    "no memory left for local SGD's vectors of %zu parameters", count);
}

static dml_status dml__local_sgd_start(void *user, dml_trainer *trainer)
{
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    dml_status status = dml__check_local_sgd(state, trainer);
    if (status == DML_OK) status = dml__allocate_local_sgd(state, trainer);
    if (status == DML_OK) status = dml__start_replicas(state->comm, trainer);
    if (status != DML_OK) return status;
    state->steps = state->averaged = dml_trainer_steps(trainer);
    if (!state->anchor) return DML_OK;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(trainer->context);
    memcpy(state->anchor, w, count * sizeof *w);
    return DML_OK;
}

/* ---- an average ---- */

/* A part of a whole in 24 bits, which a float has. */
static double dml__weight_part(double part, double whole)
{
    return floor(16777216.0 * part / whole + 0.5) / 16777216.0;
}

/* *weight is this rank's part of the samples. All ranks' are 1 together, to the bit: else averages would make
   parameters grow or shrink, each by the same little. */
static dml_status dml__weigh_rank(dml__local_sgd_state *state, dml_trainer *trainer, double *weight)
{
    const int ranks = dml_comm_world_size(state->comm), rank = dml_comm_rank(state->comm);
    dml__local_sgd_word mine;
    mine.steps = (double)state->steps;
    mine.samples = state->samples;
    if (dml_comm_all_gather(state->comm, &mine, 2, DML_F64, state->words) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    double samples = 0, before = 0; /* of all ranks; of those before this one */
    for (int r = 0; r < ranks; r++) {
        if (r == rank) before = samples;
        samples += state->words[r].samples;
        if (state->words[r].steps != state->words[0].steps)
            return dml_trainer_fail(trainer, DML_ERROR_MISMATCH,
                                    "rank %d is at step %.0f and rank 0 at %.0f when their parameters are to "
                                    "be averaged; every rank must take as many steps (of 0 samples too)",
                                    r, state->words[r].steps, state->words[0].steps);
    }
    const bool any = samples > 0;
    if (!any) before = rank;
    const double mine_of_all = any ? state->samples : 1, all = any ? samples : ranks;
    *weight = dml__weight_part(before + mine_of_all, all) - dml__weight_part(before, all);
    return DML_OK;
}

/* Elements [begin, end) of a vector become the ranks' weighed mean. */
static dml_status dml__average_range(dml__local_sgd_state *state, dml_trainer *trainer, double weight,
                                     int vector, size_t begin, size_t end)
{
    float *x = dml_trainer_get(trainer, vector, begin, end);
    if (!x) return dml_status_of(trainer->context);
    if (weight != 1) dml_scale(trainer->context->pool, end - begin, (float)weight, x);
    if (dml_comm_all_reduce(state->comm, x, end - begin, DML_F32, DML_SUM) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    return dml_trainer_put(trainer, vector, begin, end);
}

/* Frozen parameters are the same on all ranks, and stay so; but for statistics that training moves. */
static dml_status dml__average_statistics(dml__local_sgd_state *state, dml_trainer *trainer, double weight)
{
    dml_status status = DML_OK;
    const dml_node *p = trainer->program->graph->first_parameter;
    for (; p && status == DML_OK; p = p->next_parameter)
        if (p->kept)
            status = dml__average_range(state, trainer, weight, DML_PARAMETERS, p->offset,
                                        p->offset + dml_shape_count(&p->shape));
    return status;
}

/* w goes on from where the last average left it, along the way that the ranks went on average. */
static dml_status dml__outer_update(dml__local_sgd_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t bytes = count * sizeof(float);
    dml_pool *pool = trainer->context->pool;
    /* What the host has is what was averaged. */
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(trainer->context);
    memcpy(state->change, state->anchor, bytes);
    dml_axpby(pool, count, -1.0f, w, 1.0f, state->change);
    const dml_status status = dml_optimizer_update(&state->options.outer, pool, state->rounds++, count,
                                                   state->anchor, state->change, state->outer);
    if (status != DML_OK)
        return dml_trainer_fail(trainer, status, "local SGD's outer optimizer failed: %s",
                                dml_status_string(status));
    memcpy(w, state->anchor, bytes);
    return dml_trainer_put(trainer, DML_PARAMETERS, 0, count);
}

static dml_status dml__average_replicas(dml__local_sgd_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const int first = DML_OPTIMIZER_STATE + (state->options.average_state ? 0 : trainer->states);
    double weight = 0;
    dml_status status = dml__weigh_rank(state, trainer, &weight);
    if (status != DML_OK || state->averaged == state->steps) return status;
    status = dml__average_range(state, trainer, weight, DML_PARAMETERS, 0, count);
    if (status == DML_OK && state->anchor) status = dml__outer_update(state, trainer);
    if (status == DML_OK) status = dml__average_statistics(state, trainer, weight);
    for (int v = first; v < trainer->vectors && status == DML_OK; v++)
        status = dml__average_range(state, trainer, weight, v, 0, count);
    state->averaged = state->steps;
    state->samples = 0;
    return status;
}

/* ---- the strategy ---- */

/* Of several backward passes before an update the last is told of all their samples. */
static dml_status dml__local_sgd_begin(void *user, dml_trainer *trainer, double samples)
{
    (void)trainer;
    ((dml__local_sgd_state *)user)->step_samples = samples;
    return DML_OK;
}

static dml_status dml__local_sgd_updated(void *user, dml_trainer *trainer)
{
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    state->steps++;
    state->samples += state->step_samples;
    const bool due = !state->once && state->steps % (uint64_t)state->options.tau == 0;
    return due ? dml__average_replicas(state, trainer) : DML_OK;
}

static void dml__local_sgd_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    if (!state) return;
    dml__memory memory = state->memory;
    for (int s = 0; s < DML__MAX_STATES; s++) dml__release(&memory, state->outer[s]);
    dml__release(&memory, state->anchor);
    dml__release(&memory, state->change);
    dml__release(&memory, state->words);
    dml__release(&memory, state);
}

static dml_sync dml__local_sgd(dml_comm *comm, const dml_local_sgd_options *options, bool once)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__local_sgd_state *state = (dml__local_sgd_state *)dml__allocate(&memory, sizeof *state);
    if (state) {
        state->memory = memory;
        state->comm = comm;
        if (options) state->options = *options;
        state->once = once;
    }
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = state;
    sync.start = dml__local_sgd_start;
    sync.begin = dml__local_sgd_begin;
    sync.updated = dml__local_sgd_updated;
    sync.destroy = dml__local_sgd_destroy;
    sync.ranks = dml_comm_world_size(comm);
    sync.rank = dml_comm_rank(comm);
    return sync;
}

DML_API dml_sync dml_local_sgd_sync(dml_comm *comm, const dml_local_sgd_options *options)
{
    return dml__local_sgd(comm, options, false);
}

DML_API dml_sync dml_simu_parallel_sync(dml_comm *comm, const dml_local_sgd_options *options)
{
    return dml__local_sgd(comm, options, true);
}

DML_API dml_local_sgd_options dml_diloco_options(int tau)
{
    dml_local_sgd_options options;
    memset(&options, 0, sizeof options);
    options.tau = tau;
    options.outer = dml_sgd(0.7f, 0.9f);
    options.outer.nesterov = true;
    return options;
}

static dml_status dml__local_sgd_average_in(dml_trainer *trainer)
{
    dml_status status = trainer->context->error.status;
    if (status != DML_OK) return status;
    if (trainer->sync.updated != dml__local_sgd_updated)
        return dml_trainer_fail(trainer, DML_ERROR_STATE,
                                "an average of local SGD asked for, but the trainer's strategy is another; "
                                "attach dml_local_sgd_sync or dml_simu_parallel_sync first");
    status = dml__check_not_swapped(trainer);
    if (status == DML_OK) status = dml__graph_claim_writing(trainer->program->graph);
    if (status != DML_OK) return status;
    status = dml__average_replicas((dml__local_sgd_state *)trainer->sync.state, trainer);
    dml__graph_release(trainer->program->graph, false);
    return status;
}

DML_API dml_status dml_local_sgd_average(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__local_sgd_average_in(trainer);
    dml__leave(trainer->context, entry);
    return status;
}

#endif

/* ---- dist/mirrored_sync.c ---- */

#ifndef DML_DIST_MIRRORED_SYNC_C
#define DML_DIST_MIRRORED_SYNC_C

/* ---- dist/mirrored_sync.h ---- */

/* mirrored_sync.h: the strategies between the replicas of one process. */
#ifndef DML_DIST_MIRRORED_SYNC_H
#define DML_DIST_MIRRORED_SYNC_H

/* One replica's place. Replica 0 is the first. */
typedef struct dml__mirrored_place {
    dml_comm *inside; /* between the replicas of this process, the same numbers */
    /* Between the first replicas of all processes: for gradients, and for sums in the midst of passes; NULL
       at the others, and where there is one process. */
    dml_comm *outside, *outside_sums;
    bool processes;  /* there are several */
    bool central;    /* the first alone has a gradient, an optimizer and its state; the others receive w: */
    bool late;       /* not after the update, but when somebody sends it to them before a pass */
    int ranks, rank; /* among the replicas of all processes */
    size_t bucket_bytes;
    dml_allocator allocator;
} dml__mirrored_place;

/* All replicas apply the gradient of all: dml_all_reduce_sync where there is one process. */
DML__LOCAL dml_sync dml__mirrored_sync(const dml__mirrored_place *place);

/* Collective between the replicas: the others get what of the first's vector (DML_PARAMETERS or
   DML_GRADIENTS) they have, all of it. */
DML__LOCAL dml_status dml__send_from_first(dml_comm *inside, dml_trainer *trainer, int vector);

/* The communicator's error: that of its rank, which all others will hear of, and end with. */
DML__LOCAL void dml__end_comm(dml_comm *comm, dml_status status, const char *text);

#endif

#include <math.h>
#include <string.h>

/* What goes by way of the first replica: buckets of gradients are reduced to it while backward runs, summed
   there over the processes, and spread again; or it alone updates w. Every replica starts the same
   collectives in the same order on the communicator inside: those of a bucket when it is full, whatever comes
   back in `finish`, in the buckets' order. The first one moves a bucket on to the other processes as soon as
   it has it, also in order, the number of samples before all buckets. */

#define DML__FIRST_BUCKETS 64
#define DML__FIRST_MARKS 1048576u /* as in all_reduce_sync.c */

typedef struct dml__first_bucket {
    size_t begin, end; /* of g, in elements */
    dml_request *inside, *outside;
} dml__first_bucket;

typedef struct dml__first_state {
    dml__memory memory;
    dml__mirrored_place place;
    bool first;
    size_t bucket_elements;
    size_t filled_from, filled_to; /* g[from, to) is final and in no bucket yet */
    double mark;                   /* of the step that this process is at */
    double sent[3];                /* samples inside, then over all processes, with mark and mark^2 */
    dml_request *samples_inside, *samples_outside;
    int buckets, gone; /* that were started inside; that have gone on outside */
    bool samples_gone;
    dml__first_bucket bucket[DML__FIRST_BUCKETS];
} dml__first_state;

static dml_status dml__inside_failed(const dml__first_state *state, dml_trainer *trainer)
{
    return dml__sync_failed(trainer, state->place.inside);
}

static dml_status dml__wait_first(dml_comm *comm, dml_request **request)
{
    dml_request *waiting = *request;
    *request = NULL;
    return waiting ? dml_comm_wait(comm, waiting) : DML_OK;
}

DML__LOCAL void dml__end_comm(dml_comm *comm, dml_status status, const char *text)
{
    dml__enter_job(comm->job);
    dml__job_fail(comm->job, comm->job->rank, status, "%s", text);
    dml__leave_job(comm->job);
}

/* ---- the start ---- */

DML__LOCAL dml_status dml__send_from_first(dml_comm *inside, dml_trainer *trainer, int vector)
{
    const size_t count = dml_trainer_count(trainer, vector);
    const bool first = dml_comm_rank(inside) == 0;
    float *data = (first ? dml_trainer_get : dml_trainer_host)(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_broadcast(inside, data, count, DML_F32, 0) != DML_OK)
        return dml__sync_failed(trainer, inside);
    return first ? DML_OK : dml_trainer_put(trainer, vector, 0, count);
}

/* The others keep no optimizer's state, so of the first's run they get all but the optimizer. */
static dml_status dml__follow_run(dml__first_state *state, dml_trainer *trainer)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    int64_t whole[3] = { (int64_t)run.seed, (int64_t)run.steps, (int64_t)run.scaled_steps };
    if (dml_comm_broadcast(state->place.inside, whole, 3, DML_I64, 0) != DML_OK ||
        dml_comm_broadcast(state->place.inside, &run.loss_scale, 1, DML_F32, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    run.seed = (uint64_t)whole[0];
    run.steps = (uint64_t)whole[1];
    run.scaled_steps = (uint64_t)whole[2];
    return state->first ? DML_OK : dml_trainer_set_run(trainer, &run);
}

static dml_status dml__first_start(void *user, dml_trainer *trainer)
{
    dml__first_state *state = (dml__first_state *)user;
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t least = (count + DML__FIRST_BUCKETS - 1) / DML__FIRST_BUCKETS;
    if (state->bucket_elements < least) state->bucket_elements = least;
    if (dml_comm_start_progress_thread(state->place.inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (state->place.outside) {
        if (dml_comm_start_progress_thread(state->place.outside) != DML_OK)
            return dml__sync_failed(trainer, state->place.outside);
        const dml_status status = dml__start_replicas(state->place.outside, trainer);
        if (status != DML_OK) return status;
    }
    if (!state->place.central) return dml__start_replicas(state->place.inside, trainer);
    const dml_status status = dml__follow_run(state, trainer);
    return status == DML_OK ? dml__send_from_first(state->place.inside, trainer, DML_PARAMETERS) : status;
}

/* ---- gradients to the first ---- */

/* Every wait has its deadline. */
static void dml__drain_first(dml__first_state *state)
{
    dml__wait_first(state->place.inside, &state->samples_inside);
    dml__wait_first(state->place.outside, &state->samples_outside);
    for (int b = 0; b < state->buckets; b++) {
        dml__wait_first(state->place.inside, &state->bucket[b].inside);
        dml__wait_first(state->place.outside, &state->bucket[b].outside);
    }
    state->buckets = state->gone = 0;
    state->samples_gone = false;
}

static dml_status dml__first_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__first_state *state = (dml__first_state *)user;
    dml__drain_first(state);
    state->filled_from = state->filled_to = dml_trainer_count(trainer, DML_GRADIENTS);
    state->mark = (double)(dml_trainer_steps(trainer) % DML__FIRST_MARKS);
    state->sent[0] = samples;
    state->samples_inside = dml_comm_all_reduce_start(state->place.inside, state->sent, 1, DML_F64, DML_SUM);
    return state->samples_inside ? DML_OK : dml__inside_failed(state, trainer);
}

/* Whether what `request` inside gives is here: if it isn't and need not be waited for, it isn't looked at. */
static dml_status dml__take_inside(dml__first_state *state, dml_trainer *trainer, dml_request **request,
                                   bool wait, bool *here)
{
    *here = !*request || wait || dml_comm_done(state->place.inside, *request);
    if (!*here || dml__wait_first(state->place.inside, request) == DML_OK) return DML_OK;
    return dml__inside_failed(state, trainer);
}

static dml_status dml__send_samples_outside(dml__first_state *state)
{
    state->sent[1] = state->mark;
    state->sent[2] = state->mark * state->mark;
    state->samples_outside =
        dml_comm_all_reduce_start(state->place.outside, state->sent, 3, DML_F64, DML_SUM);
    state->samples_gone = true;
    return dml_comm_status(state->place.outside);
}

static dml_status dml__send_bucket_outside(dml__first_state *state, dml_trainer *trainer)
{
    dml__first_bucket *bucket = &state->bucket[state->gone++];
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    bucket->outside =
        dml_comm_all_reduce_start(state->place.outside, g, bucket->end - bucket->begin, DML_F32, DML_SUM);
    return dml_comm_status(state->place.outside);
}

/* At the first replica of several processes: what has been reduced inside goes on; `wait`: all of it does. */
static dml_status dml__move_on(dml__first_state *state, dml_trainer *trainer, bool wait)
{
    bool here = true;
    if (!state->place.outside) return DML_OK;
    while (here && (!state->samples_gone || state->gone < state->buckets)) {
        dml_request **request =
            state->samples_gone ? &state->bucket[state->gone].inside : &state->samples_inside;
        dml_status status = dml__take_inside(state, trainer, request, wait, &here);
        if (status == DML_OK && here)
            status = state->samples_gone ? dml__send_bucket_outside(state, trainer)
                                         : dml__send_samples_outside(state);
        if (status == DML_OK) continue;
        return dml_comm_status(state->place.inside) ? status
                                                    : dml__sync_failed(trainer, state->place.outside);
    }
    return DML_OK;
}

static dml_status dml__send_bucket_inside(dml__first_state *state, dml_trainer *trainer)
{
    DML_ASSERT(state->buckets < DML__FIRST_BUCKETS);
    dml__first_bucket *bucket = &state->bucket[state->buckets];
    bucket->begin = state->filled_from;
    bucket->end = state->filled_to;
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    bucket->inside =
        dml_comm_reduce_start(state->place.inside, g, bucket->end - bucket->begin, DML_F32, DML_SUM, 0);
    if (!bucket->inside) return dml__inside_failed(state, trainer);
    state->buckets++;
    state->filled_to = state->filled_from;
    return DML_OK;
}

static dml_status dml__first_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__first_state *state = (dml__first_state *)user;
    DML_ASSERT(end == state->filled_from);
    (void)end;
    state->filled_from = begin;
    dml_status status = DML_OK;
    if (begin == 0 || state->filled_to - begin >= state->bucket_elements)
        status = dml__send_bucket_inside(state, trainer);
    return status == DML_OK ? dml__move_on(state, trainer, false) : status;
}

/* ---- and back ---- */

static dml_status dml__finish_samples(dml__first_state *state, dml_trainer *trainer, double *samples)
{
    dml_comm *outside = state->place.outside;
    if (dml__wait_first(state->place.inside, &state->samples_inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (outside) {
        if (dml__wait_first(outside, &state->samples_outside) != DML_OK)
            return dml__sync_failed(trainer, outside);
        const double processes = dml_comm_world_size(outside);
        if (state->sent[1] != processes * state->mark ||
            state->sent[2] != processes * state->mark * state->mark)
            return dml_trainer_fail(
                trainer, DML_ERROR_MISMATCH,
                "this process is at step %llu and others aren't; every process must make the same calls of "
                "step, backward and update, with DML_MORE in the same places",
                (unsigned long long)dml_trainer_steps(trainer));
    }
    if (state->place.processes &&
        dml_comm_broadcast(state->place.inside, state->sent, 1, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    *samples = state->sent[0];
    return DML_OK;
}

/* A bucket's sum, which the first replica's host has now, becomes its device's, and goes to the others. */
static dml_status dml__finish_bucket(dml__first_state *state, dml_trainer *trainer, dml__first_bucket *bucket)
{
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    if (dml__wait_first(state->place.inside, &bucket->inside) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (dml__wait_first(state->place.outside, &bucket->outside) != DML_OK)
        return dml__sync_failed(trainer, state->place.outside);
    if (!state->place.central) {
        bucket->inside =
            dml_comm_broadcast_start(state->place.inside, g, bucket->end - bucket->begin, DML_F32, 0);
        if (!bucket->inside) return dml__inside_failed(state, trainer);
    }
    return state->first ? dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end) : DML_OK;
}

/* Where the first alone has the gradient, the others learn from it whether a step will be skipped. */
static dml_status dml__agree_on_overflow(dml__first_state *state, dml_trainer *trainer)
{
    if (!(dml_trainer_get_run(trainer).loss_scale > 0)) return DML_OK;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    double sum = 0;
    float *g = dml_trainer_host(trainer, DML_GRADIENTS, 0, count);
    for (size_t i = 0; i < count && state->first; i++) sum += fabs((double)g[i]);
    if (dml_comm_broadcast(state->place.inside, &sum, 1, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (state->first || !count) return DML_OK;
    memset(g, 0, count * sizeof *g);
    if (!isfinite(sum)) g[0] = NAN;
    return dml_trainer_put(trainer, DML_GRADIENTS, 0, count);
}

static dml_status dml__first_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__first_state *state = (dml__first_state *)user;
    dml_status status = dml__move_on(state, trainer, true);
    if (status == DML_OK) status = dml__finish_samples(state, trainer, samples);
    for (int b = 0; b < state->buckets && status == DML_OK; b++)
        status = dml__finish_bucket(state, trainer, &state->bucket[b]);
    for (int b = 0; b < state->buckets && status == DML_OK; b++) {
        dml__first_bucket *bucket = &state->bucket[b];
        if (!bucket->inside) continue; /* of what is spread */
        if (dml__wait_first(state->place.inside, &bucket->inside) != DML_OK)
            return dml__inside_failed(state, trainer);
        if (!state->first) status = dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    }
    return status == DML_OK && state->place.central ? dml__agree_on_overflow(state, trainer) : status;
}

/* ---- the rest ---- */

static dml_status dml__first_update(void *user, dml_trainer *trainer)
{
    dml__first_state *state = (dml__first_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const dml_status status = state->first ? dml_trainer_update_range(trainer, 0, count) : DML_OK;
    if (status != DML_OK || state->place.late) return status;
    float *w = (state->first ? dml_trainer_get : dml_trainer_host)(trainer, DML_PARAMETERS, 0, count);
    if (!w) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_broadcast(state->place.inside, w, count, DML_F32, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    return state->first ? DML_OK : dml_trainer_put(trainer, DML_PARAMETERS, 0, count);
}

static dml_status dml__first_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__first_state *state = (dml__first_state *)user;
    if (dml_comm_all_reduce(state->place.inside, values, count, DML_F64, DML_SUM) != DML_OK)
        return dml__inside_failed(state, trainer);
    if (!state->place.processes) return DML_OK;
    if (state->first &&
        dml_comm_all_reduce(state->place.outside_sums, values, count, DML_F64, DML_SUM) != DML_OK)
        return dml__sync_failed(trainer, state->place.outside_sums);
    if (dml_comm_broadcast(state->place.inside, values, count, DML_F64, 0) != DML_OK)
        return dml__inside_failed(state, trainer);
    return DML_OK;
}

static void dml__first_failed(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__drain_first((dml__first_state *)user);
}

static void dml__first_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__first_state *state = (dml__first_state *)user;
    if (!state) return;
    dml__drain_first(state);
    dml__memory memory = state->memory;
    dml__release(&memory, state);
}

static dml_sync dml__through_first_sync(const dml__mirrored_place *place)
{
    dml__memory memory;
    dml__memory_init(&memory, &place->allocator, NULL, 0);
    dml__first_state *state = (dml__first_state *)dml__allocate(&memory, sizeof *state);
    if (state) {
        state->memory = memory;
        state->place = *place;
        state->first = dml_comm_rank(place->inside) == 0;
        state->bucket_elements =
            (place->bucket_bytes ? place->bucket_bytes : (size_t)1 << 20) / sizeof(float);
    }
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = state;
    sync.start = dml__first_start;
    sync.begin = dml__first_begin;
    sync.ready = dml__first_ready;
    sync.finish = dml__first_finish;
    sync.failed = dml__first_failed;
    sync.destroy = dml__first_destroy;
    sync.ranks = place->ranks;
    sync.rank = place->rank;
    sync.all_reduce = dml__first_sum;
    sync.update = place->central ? dml__first_update : NULL;
    return sync;
}

DML__LOCAL dml_sync dml__mirrored_sync(const dml__mirrored_place *place)
{
    dml_all_reduce_sync_options options;
    if (place->processes || place->central) return dml__through_first_sync(place);
    memset(&options, 0, sizeof options);
    options.bucket_bytes = place->bucket_bytes;
    options.allocator = place->allocator;
    return dml_all_reduce_sync(place->inside, &options);
}

#endif

/* ---- dist/mirrored_clock.c ---- */

#ifndef DML_DIST_MIRRORED_CLOCK_C
#define DML_DIST_MIRRORED_CLOCK_C

/* ---- dist/mirrored_clock.h ---- */

/* mirrored_clock.h: how long a replica computes, without what it waits for others. */
#ifndef DML_DIST_MIRRORED_CLOCK_H
#define DML_DIST_MIRRORED_CLOCK_H

/* A strategy around another one, which does the work. */
typedef struct dml__timed_sync {
    dml_sync inner;
    double begun, waited;
    double seconds; /* of forward and backward of the last step; 0: it hasn't come to its end */
} dml__timed_sync;

/* `inner`, timed; what `timed` points to stays until it is destroyed. */
DML__LOCAL dml_sync dml__time_sync(dml__timed_sync *timed, dml_sync inner);

#endif

#include <string.h>

static dml_status dml__timed_start(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->start ? inner->start(inner->state, trainer) : DML_OK;
}

static dml_status dml__timed_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const dml_sync *inner = &timed->inner;
    const dml_status status = inner->begin ? inner->begin(inner->state, trainer, samples) : DML_OK;
    timed->seconds = timed->waited = 0;
    timed->begun = dml_seconds();
    return status;
}

static dml_status dml__timed_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->ready ? inner->ready(inner->state, trainer, begin, end) : DML_OK;
}

static dml_status dml__timed_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const dml_sync *inner = &timed->inner;
    timed->seconds = dml_seconds() - timed->begun - timed->waited;
    return inner->finish ? inner->finish(inner->state, trainer, samples) : DML_OK;
}

static void dml__timed_failed(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    if (inner->failed) inner->failed(inner->state, trainer);
}

static dml_status dml__timed_updated(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->updated ? inner->updated(inner->state, trainer) : DML_OK;
}

static void dml__timed_destroy(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    if (inner->destroy) inner->destroy(inner->state, trainer);
}

static dml_status dml__timed_all_reduce(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const double before = dml_seconds();
    const dml_status status = timed->inner.all_reduce(timed->inner.state, trainer, values, count);
    timed->waited += dml_seconds() - before;
    return status;
}

static dml_status dml__timed_update(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->update(inner->state, trainer);
}

DML__LOCAL dml_sync dml__time_sync(dml__timed_sync *timed, dml_sync inner)
{
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = timed;
    sync.start = dml__timed_start;
    sync.begin = dml__timed_begin;
    sync.ready = dml__timed_ready;
    sync.finish = dml__timed_finish;
    sync.failed = dml__timed_failed;
    sync.updated = dml__timed_updated;
    sync.destroy = dml__timed_destroy;
    sync.ranks = inner.ranks;
    sync.rank = inner.rank;
    sync.all_reduce = inner.all_reduce ? dml__timed_all_reduce : NULL;
    sync.update = inner.update ? dml__timed_update : NULL;
    timed->inner = inner;
    timed->begun = timed->waited = timed->seconds = 0;
    return sync;
}

#endif

/* ---- dist/mirrored_share.c ---- */

#ifndef DML_DIST_MIRRORED_SHARE_C
#define DML_DIST_MIRRORED_SHARE_C

/* ---- dist/mirrored_share.h ---- */

/* mirrored_share.h: how a batch is divided among devices of unlike speed. */
#ifndef DML_DIST_MIRRORED_SHARE_H
#define DML_DIST_MIRRORED_SHARE_H

/* What is known of a device: sums over its steps, of which older ones count for less and less. */
typedef struct dml__speed {
    double weight, rows, seconds, rows_rows, rows_seconds;
    int seen; /* steps, the first ones included, which only warm up */
} dml__speed;

/* It took `seconds` for forward and backward on `rows` samples. */
DML__LOCAL void dml__speed_note(dml__speed *speed, int rows, double seconds);

/* The line fixed + each x rows through what was seen, neither below 0. False: nothing has been seen that
   counts. */
DML__LOCAL bool dml__speed_line(const dml__speed *speed, double *fixed, double *each);

/* share[i] = samples for device i, 0 .. most[i], which together have room for all of `rows`; 1 or more each
   where there are enough. Evenly, or, where `speeds` isn't NULL and enough is known of each, so that the
   last device to end does so as early as can be. */
DML__LOCAL void dml__share_rows(int rows, int devices, const dml__speed *speeds, const int *most, int *share);

/* When the last device ends, by what is known; 0 where nothing is. */
DML__LOCAL double dml__share_seconds(int devices, const dml__speed *speeds, const int *share);

#endif

/* Steps that compile kernels and touch memory for the first time say nothing of those to come. */
#define DML__WARM_UP_STEPS 2

#define DML__SPEED_KEEPS 0.95 /* of what was known, at each step */

/* Fewer steps than about this many say too little of a device. */
#define DML__SPEED_LEAST 3

/* Times what was to be expected, that a step counts as: another program that took the processor for a while
   moves no samples, and a device that has become slower is believed after a few steps. One that was that much
   faster is believed at once, since nothing makes it so by accident. */
#define DML__SPEED_MOST 2

/* While a device always gets about as many samples, what of its time is fixed can't be told, and noise would
   decide. So a share of the weight stands for a step of no rows that took no time: it decides then, and says
   that all time goes with the rows; samples that vary by more than about its root soon outweigh it. */
#define DML__SPEED_PRIOR 0.01

/* Least squares. */
DML__LOCAL bool dml__speed_line(const dml__speed *speed, double *fixed, double *each)
{
    const double weight = (1 + DML__SPEED_PRIOR) * speed->weight;
    if (!(speed->weight > 0)) return false;
    *each = (weight * speed->rows_seconds - speed->rows * speed->seconds) /
            (weight * speed->rows_rows - speed->rows * speed->rows);
    *fixed = (speed->seconds - *each * speed->rows) / weight;
    if (*each > 0 && *fixed >= 0) return true;
    *each = speed->seconds / speed->rows;
    *fixed = 0;
    return true;
}

static double dml__seconds_for(const dml__speed *speed, int rows)
{
    double fixed, each;
    return rows > 0 && dml__speed_line(speed, &fixed, &each) ? fixed + each * rows : 0;
}

DML__LOCAL void dml__speed_note(dml__speed *speed, int rows, double seconds)
{
    if (rows < 1 || !(seconds > 0)) return;
    if (++speed->seen <= DML__WARM_UP_STEPS) return;
    const double expected = dml__seconds_for(speed, rows), weight = speed->weight;
    if (expected > 0 && seconds > DML__SPEED_MOST * expected) seconds = DML__SPEED_MOST * expected;
    double *const sums[5] = { &speed->weight, &speed->rows, &speed->seconds, &speed->rows_rows,
                              &speed->rows_seconds };
    const double b = rows, add[5] = { 1, b, seconds, b * b, b * seconds };
    const bool anew = seconds * DML__SPEED_MOST < expected;
    for (int i = 0; i < 5; i++) *sums[i] = DML__SPEED_KEEPS * (anew ? weight * add[i] : *sums[i]) + add[i];
    speed->seen = DML__WARM_UP_STEPS + 1;
}

static void dml__divide_evenly(int rows, int devices, const int *most, int *share)
{
    for (int i = 0; i < devices; i++) {
        const int left = devices - i, part = rows / left + (rows % left != 0);
        share[i] = part < most[i] ? part : most[i];
        rows -= share[i];
    }
    for (int i = 0; i < devices && rows > 0; i++) { /* what had no room further on */
        const int room = most[i] - share[i], more = rows < room ? rows : room;
        share[i] += more;
        rows -= more;
    }
}

/* How many samples a device has done at `time`. */
static int dml__rows_until(const dml__speed *speed, double time, int least, int most)
{
    double fixed, each;
    if (!dml__speed_line(speed, &fixed, &each)) return least;
    const double rows = (time - fixed) / each;
    return rows <= least ? least : rows >= most ? most : (int)rows;
}

/* All end at one time, which is found by halving; the few samples that whole numbers leave over go to whoever
   then ends first. */
static void dml__divide_by_speed(int rows, int devices, const dml__speed *speeds, const int *most, int *share)
{
    const int least = rows >= devices ? 1 : 0;
    double early = 0, late = 0;
    for (int i = 0; i < devices; i++) {
        const double end = dml__seconds_for(&speeds[i], most[i]);
        if (end > late) late = end;
    }
    for (int turn = 0; turn < 50; turn++) {
        const double time = (early + late) / 2;
        int64_t done = 0;
        for (int i = 0; i < devices; i++) done += dml__rows_until(&speeds[i], time, least, most[i]);
        if (done > rows)
            late = time;
        else
            early = time;
    }
    for (int i = 0; i < devices; i++) {
        share[i] = dml__rows_until(&speeds[i], early, least, most[i]);
        rows -= share[i];
    }
    for (; rows > 0; rows--) {
        int first = -1;
        for (int i = 0; i < devices; i++)
            if (share[i] < most[i] && (first < 0 || dml__seconds_for(&speeds[i], share[i] + 1) <
                                                        dml__seconds_for(&speeds[first], share[first] + 1)))
                first = i;
        DML_ASSERT(first >= 0);
        share[first]++;
    }
}

DML__LOCAL void dml__share_rows(int rows, int devices, const dml__speed *speeds, const int *most, int *share)
{
    bool known = speeds != NULL;
    for (int i = 0; i < devices && known; i++) known = speeds[i].weight > DML__SPEED_LEAST;
    if (known)
        dml__divide_by_speed(rows, devices, speeds, most, share);
    else
        dml__divide_evenly(rows, devices, most, share);
}

DML__LOCAL double dml__share_seconds(int devices, const dml__speed *speeds, const int *share)
{
    double last = 0;
    for (int i = 0; i < devices; i++) {
        const double end = dml__seconds_for(&speeds[i], share[i]);
        if (end > last) last = end;
    }
    return last;
}

#endif

/* ---- dist/mirrored.c ---- */

#ifndef DML_DIST_MIRRORED_C
#define DML_DIST_MIRRORED_C

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A thread a replica, which sleeps until the caller orders something of all of them, and does it on its own
   trainer. Between two orders everything is the caller's: it opens the contexts, looks at the trainers and
   hands out the batch. */

#define DML__MOST_REPLICAS 64
#define DML__MOST_PARTS 64 /* inputs of which a replica gets its part */
/* Another division of the batch must promise this much, or noise would move samples about. */
#define DML__SHARE_GAIN 1.05

typedef enum dml__order {
    DML__ORDER_ATTACH,
    DML__ORDER_BACKWARD,
    DML__ORDER_UPDATE,
    DML__ORDER_STEP,
    DML__ORDER_LEAVE
} dml__order;

typedef struct dml__replica {
    dml_mirrored *all;
    int index, threads;
    char device[48];
    dml_context *context;
    dml_trainer *trainer;
    dml__mirrored_place place;
    dml__timed_sync timed;
    dml__thread thread;
    /* The last order, and what came of it. */
    const void *inputs[DML__MOST_PARTS];
    int rows;
    float loss;
    dml_status status;
    bool own; /* the failure began here */
    char text[512];
} dml__replica;

struct dml_mirrored {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_graph *graph;
    dml_mirrored_options options;
    int count, started; /* replicas; those that have a thread */
    int inputs;
    dml__replica *replica;           /* (count) */
    dml__speed *speed;               /* (count) */
    int *most, *share, *other_share; /* (count): samples of each; a division that may be better */
    int shared_rows;                 /* what `share` divides; -1: nothing yet */
    dml_comm *outside_sums;
    bool holds, pending; /* the gradient of samples of all replicas; samples that wait for more */
    dml_status status;   /* not DML_OK: the replicas differ */
    char text[512];
    bool locks;
    dml__mutex mutex; /* of what follows */
    dml__cond asked, answered;
    dml__order order;
    unsigned orders; /* given so far */
    int busy;        /* replicas that haven't obeyed the last one */
    /* Of a pass. */
    int flags;
    bool wants_loss, sends_gradient;
};

/* ---- a replica's thread ---- */

static dml_status dml__replica_attach(dml__replica *replica)
{
    dml_sync none;
    memset(&none, 0, sizeof none);
    const dml_status status =
        dml_trainer_sync(replica->trainer, none); /* `timed` is the old one's till then */
    if (status != DML_OK) return status;
    return dml_trainer_sync(replica->trainer,
                            dml__time_sync(&replica->timed, dml__mirrored_sync(&replica->place)));
}

static dml_status dml__replica_backward(dml__replica *replica)
{
    const dml_mirrored *all = replica->all;
    dml_comm *inside = replica->place.inside;
    dml_status status = DML_OK;
    replica->timed.seconds = 0;
    if (replica->place.late) status = dml__send_from_first(inside, replica->trainer, DML_PARAMETERS);
    if (status == DML_OK && all->sends_gradient)
        status = dml__send_from_first(inside, replica->trainer, DML_GRADIENTS);
    if (status != DML_OK) return status;
    return dml_trainer_backward(replica->trainer, replica->rows, replica->inputs, all->inputs, all->flags,
                                all->wants_loss ? &replica->loss : NULL);
}

/* Whoever waits for this replica, here or in another process, need not any more. */
static void dml__replica_failed(dml__replica *replica)
{
    const char *why = dml_error(replica->context);
    const dml_status status = replica->status;
    replica->own = dml_comm_status(replica->place.inside) == DML_OK;
    snprintf(replica->text, sizeof replica->text, "replica %d (%s): %.440s", replica->index, replica->device,
             *why ? why : dml_status_string(status));
    if (replica->own) dml__end_comm(replica->place.inside, status, replica->text);
    if (replica->place.outside && dml_comm_status(replica->place.outside) == DML_OK)
        dml__end_comm(replica->place.outside, status, dml_comm_error(replica->place.inside));
}

static void dml__replica_obey(dml__replica *replica, dml__order order)
{
    dml_status status = DML_OK;
    if (order == DML__ORDER_LEAVE) {
        dml_trainer_destroy(replica->trainer);
        dml_comm_close(replica->place.inside);
        return;
    }
    if (order == DML__ORDER_ATTACH) status = dml__replica_attach(replica);
    if (order == DML__ORDER_BACKWARD || order == DML__ORDER_STEP) status = dml__replica_backward(replica);
    if ((order == DML__ORDER_UPDATE || order == DML__ORDER_STEP) && status == DML_OK)
        status = dml_trainer_update(replica->trainer);
    replica->status = status;
    if (status != DML_OK) dml__replica_failed(replica);
}

static void dml__replica_main(void *argument)
{
    dml__replica *replica = (dml__replica *)argument;
    dml_mirrored *all = replica->all;
    unsigned seen = 0;
    dml__order order;
    do {
        dml__mutex_lock(&all->mutex);
        while (all->orders == seen) dml__cond_wait(&all->asked, &all->mutex, -1);
        seen = all->orders;
        order = all->order;
        dml__mutex_unlock(&all->mutex);
        dml__replica_obey(replica, order);
        dml__mutex_lock(&all->mutex);
        if (--all->busy == 0) dml__cond_signal_all(&all->answered);
        dml__mutex_unlock(&all->mutex);
    } while (order != DML__ORDER_LEAVE);
}

/* ---- orders ---- */

static void dml__give_order(dml_mirrored *all, dml__order order)
{
    dml__mutex_lock(&all->mutex);
    all->order = order;
    all->busy = all->started;
    all->orders++;
    dml__cond_signal_all(&all->asked);
    while (all->busy) dml__cond_wait(&all->answered, &all->mutex, -1);
    dml__mutex_unlock(&all->mutex);
}

static dml_status dml__mirrored_fail(dml_mirrored *all, dml_status status, const char *text)
{
    return dml__fail(&all->context->error, status, "%s", text);
}

/* The sentence of the replica that failed by itself; else a communicator has found out who is missing, and
   knows ranks, so the devices are listed. */
static dml_status dml__judge_replicas(dml_mirrored *all)
{
    const dml__replica *blamed = NULL;
    for (int i = all->count - 1; i >= 0; i--) {
        const dml__replica *replica = &all->replica[i];
        if (replica->status != DML_OK && (replica->own || !blamed || !blamed->own)) blamed = replica;
    }
    if (!blamed) return DML_OK;
    all->status = blamed->status;
    int used = snprintf(all->text, sizeof all->text, "%.400s", blamed->text);
    for (int i = 0; i < all->count && !blamed->own && used < (int)sizeof all->text; i++)
        used += snprintf(all->text + used, sizeof all->text - (size_t)used, "%s%s",
                         i ? ", " : "; the ranks are ", all->replica[i].device);
    return dml__mirrored_fail(all, all->status, all->text);
}

static dml_status dml__order_all(dml_mirrored *all, dml__order order)
{
    dml__give_order(all, order);
    return dml__judge_replicas(all);
}

/* What one trainer would refuse is refused before any replica moves, since those that did would differ from
   the rest. */
static dml_status dml__check_replicas(dml_mirrored *all)
{
    dml__error *error = &all->context->error;
    if (error->status != DML_OK) return error->status;
    if (all->status != DML_OK) return dml__mirrored_fail(all, all->status, all->text);
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (dml_status_of(replica->context) != DML_OK)
            return dml__fail(error, dml_status_of(replica->context), "replica %d (%s) has an error: %s", i,
                             replica->device, dml_error(replica->context));
        if (replica->trainer->swapped)
            return dml__fail(error, DML_ERROR_STATE,
                             "replica %d (%s) has the parameters' average in their place; call "
                             "dml_trainer_swap_average again first",
                             i, replica->device);
    }
    return DML_OK;
}

/* One thread at a time; the context of the loss is what it is kept from others by. */
static dml_status dml__enter_mirrored(dml_mirrored *all, dml__entry *entry)
{
    *entry = dml__enter(all->context);
    if (*entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__check_replicas(all);
    if (status != DML_OK) dml__leave(all->context, *entry);
    return status;
}

/* ---- the batch ---- */

static void dml__share_out(dml_mirrored *all, int rows)
{
    const dml__speed *speed = all->options.even ? NULL : all->speed;
    dml__share_rows(rows, all->count, speed, all->most, all->other_share);
    const bool same = rows == all->shared_rows &&
                      dml__share_seconds(all->count, all->speed, all->share) <=
                          DML__SHARE_GAIN * dml__share_seconds(all->count, all->speed, all->other_share);
    if (!same) memcpy(all->share, all->other_share, (size_t)all->count * sizeof *all->share);
    all->shared_rows = rows;
}

/* What a replica's context says of its part of the batch. */
static dml_status dml__check_part(dml_mirrored *all, dml__replica *replica, int rows,
                                  const void *const *inputs, int count, int first_row)
{
    char behind[64] = "";
    const dml_status status = dml__program_check(replica->trainer->program, rows, inputs, count);
    if (status == DML_OK) return DML_OK;
    if (first_row > 0)
        snprintf(behind, sizeof behind, "; the first of these samples is number %d", first_row);
    dml__fail(&all->context->error, status, "%.420s%s", dml_error(replica->context), behind);
    dml_clear_error(replica->context);
    return status;
}

static dml_status dml__hand_out(dml_mirrored *all, int rows, const void *const *inputs, int count)
{
    const int most = all->options.trainer.batch, least = all->options.comm ? 0 : 1;
    if (rows < least || rows > most)
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "a step of %d samples asked for; these replicas take %d to %d together", rows, least,
                         most);
    dml__share_out(all, rows);
    dml_status status = DML_OK;
    if (rows) /* the number of inputs, and what they all are, once */
        status = dml__check_part(all, &all->replica[0], all->share[0] ? all->share[0] : 1, inputs, count, 0);
    for (int i = 0, row = 0; i < all->count && status == DML_OK; i++) {
        dml__replica *replica = &all->replica[i];
        replica->rows = all->share[i];
        for (int k = 0; k < all->inputs && replica->rows; k++) {
            const dml_node *input = replica->trainer->program->input[k];
            const size_t sample = dml_shape_count(&input->shape) * dml_dtype_size(input->dtype);
            replica->inputs[k] = (const char *)inputs[k] + (size_t)row * sample;
        }
        if (i > 0 && replica->rows)
            status = dml__check_part(all, replica, replica->rows, replica->inputs, all->inputs, row);
        row += replica->rows;
    }
    return status;
}

static float dml__mean_loss(const dml_mirrored *all)
{
    double sum = 0, rows = 0;
    for (int i = 0; i < all->count; i++) {
        const dml__replica *replica = &all->replica[i];
        if (!replica->rows) continue;
        sum += (double)replica->loss * replica->rows;
        rows += replica->rows;
    }
    return rows > 0 ? (float)(sum / rows) : 0.0f;
}

static dml_status dml__mirrored_pass(dml_mirrored *all, dml__order order, int rows, const void *const *inputs,
                                     int count, int flags, float *loss)
{
    if (flags & ~(DML_ADD | DML_MORE))
        return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                         "backward was given flags %d; there are DML_ADD and DML_MORE", flags);
    dml_status status = dml__hand_out(all, rows, inputs, count);
    if (status != DML_OK) return status;
    all->flags = flags;
    all->wants_loss = loss != NULL;
    all->sends_gradient = all->replica[0].place.central && all->holds && (flags & DML_ADD);
    status = dml__order_all(all, order);
    if (status != DML_OK) return status;
    for (int i = 0; i < all->count; i++)
        dml__speed_note(&all->speed[i], all->replica[i].rows, all->replica[i].timed.seconds);
    all->pending = (flags & DML_MORE) != 0;
    all->holds = !all->pending && order != DML__ORDER_STEP;
    if (loss) *loss = dml__mean_loss(all);
    return DML_OK;
}

/* ---- the calls ---- */

DML_API dml_status dml_mirrored_step(dml_mirrored *mirrored, int rows, const void *const *inputs, int count,
                                     float *loss)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__mirrored_pass(mirrored, DML__ORDER_STEP, rows, inputs, count, DML_OVERWRITE, loss);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_backward(dml_mirrored *mirrored, int rows, const void *const *inputs,
                                         int count, int flags, float *loss)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__mirrored_pass(mirrored, DML__ORDER_BACKWARD, rows, inputs, count, flags, loss);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_update(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    if (mirrored->pending)
        status = dml__fail(&mirrored->context->error, DML_ERROR_STATE,
                           "an update while the gradient waits for more: the last backward before it comes "
                           "without DML_MORE");
    else
        status = dml__order_all(mirrored, DML__ORDER_UPDATE);
    mirrored->holds = mirrored->holds && status != DML_OK;
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_status dml_mirrored_spread(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    mirrored->holds = mirrored->pending = false;
    status = dml__order_all(mirrored, DML__ORDER_ATTACH);
    dml__leave(mirrored->context, entry);
    return status;
}

static dml_status dml__copy_back(dml_mirrored *all)
{
    const dml_graph *from = all->replica[0].trainer->program->graph;
    dml_status status = DML_OK;
    for (dml_node *p = from->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        dml_node *to = dml_graph_find(all->graph, p->name);
        const float *values = dml_graph_get(p->graph, p->offset, p->offset + count);
        if (!to) return dml_status_of(all->context);
        if (!values) return dml__mirrored_fail(all, dml_status_of(from->context), dml_error(from->context));
        status = dml_parameter_write(to, values, count);
    }
    return status;
}

DML_API dml_status dml_mirrored_copy_back(dml_mirrored *mirrored)
{
    dml__entry entry;
    if (!mirrored) return DML_ERROR_ARGUMENT;
    dml_status status = dml__enter_mirrored(mirrored, &entry);
    if (status != DML_OK) return status;
    status = dml__copy_back(mirrored);
    dml__leave(mirrored->context, entry);
    return status;
}

DML_API dml_trainer *dml_mirrored_trainer(dml_mirrored *mirrored, int i)
{
    return mirrored && i >= 0 && i < mirrored->count ? mirrored->replica[i].trainer : NULL;
}

DML_API int dml_mirrored_replicas(const dml_mirrored *mirrored)
{
    return mirrored ? mirrored->count : 0;
}

DML_API dml_replica_report dml_mirrored_report(const dml_mirrored *mirrored, int i)
{
    dml_replica_report report;
    memset(&report, 0, sizeof report);
    if (!mirrored || i < 0 || i >= mirrored->count) return report;
    const dml__replica *replica = &mirrored->replica[i];
    report.device = replica->device;
    report.threads = replica->threads;
    report.rows = replica->rows;
    report.seconds = replica->timed.seconds;
    dml__speed_line(&mirrored->speed[i], &report.fixed_s, &report.each_s);
    return report;
}

/* ---- opening ---- */

/* "cpu" or "cpu*3": how many threads, 0 for any; -1: another device. */
static int dml__cpu_threads(const char *device)
{
    char *end;
    if (strcmp(device, "cpu") == 0 || strcmp(device, "cpu:0") == 0) return 0;
    if (strncmp(device, "cpu*", 4) != 0) return -1;
    const long threads = strtol(device + 4, &end, 10);
    return end != device + 4 && !*end && threads >= 1 && threads <= 4096 ? (int)threads : -1;
}

/* What a replica's context is opened with. A device that isn't the CPU needs one thread, which launches. */
static dml_status dml__name_devices(dml_mirrored *all, const char *const *devices)
{
    int left = dml_cpu_share(), sharers = 0;
    for (int i = 0; i < all->count; i++) {
        dml__replica *replica = &all->replica[i];
        dml_device_info best;
        const char *device = devices[i];
        if (!device)
            return dml__fail(&all->context->error, DML_ERROR_ARGUMENT, "device %d of %d is NULL", i + 1,
                             all->count);
        if (strcmp(device, "auto") == 0) {
            dml_devices(&best, 1);
            device = best.id;
        }
        const int threads = dml__cpu_threads(device);
        snprintf(replica->device, sizeof replica->device, "%s", threads >= 0 ? "cpu" : device);
        replica->threads = threads < 0 ? 1 : threads;
        if (threads == 0) sharers++;
        if (threads > 0) left -= threads;
    }
    for (int i = 0; i < all->count; i++) {
        dml__replica *replica = &all->replica[i];
        if (replica->threads) continue;
        const int part = left > 0 ? left / sharers : 0;
        replica->threads = part > 1 ? part : 1;
        left -= part;
        sharers--;
    }
    return DML_OK;
}

static dml_status dml__check_listed_once(dml_mirrored *all, int i)
{
    const dml_device *device = &all->replica[i].context->device;
    for (int j = 0; j < i && !device->host_memory; j++) {
        const dml_device *other = &all->replica[j].context->device;
        if (other->backend == device->backend && other->index == device->index)
            return dml__fail(&all->context->error, DML_ERROR_ARGUMENT,
                             "devices %d and %d are both %s:%d; only the CPU may be listed more than once",
                             j + 1, i + 1, device->backend->name, device->index);
    }
    return DML_OK;
}

static dml_status dml__open_replica(dml_mirrored *all, int i)
{
    dml__replica *replica = &all->replica[i];
    dml_options options;
    memset(&options, 0, sizeof options);
    options.device = replica->device;
    options.threads = replica->threads;
    options.seed = all->context->seed;
    options.allocator = all->options.allocator;
    options.pin = -1; /* pools pin to the first processors, all to the same */
    replica->context = dml_open(&options);
    if (dml_status_of(replica->context) != DML_OK)
        return dml__fail(&all->context->error, dml_status_of(replica->context), "replica %d: %s", i,
                         dml_error(replica->context));
    const dml_device *device = &replica->context->device;
    if (!device->host_memory)
        snprintf(replica->device, sizeof replica->device, "%s:%d", device->backend->name, device->index);
    return dml__check_listed_once(all, i);
}

/* Those that receive w need nothing of an update's. */
static dml_trainer_options dml__replica_options(const dml_mirrored *all, int i)
{
    dml_trainer_options options = all->options.trainer;
    options.batch = all->most[i];
    if (all->options.placement == DML_PLACE_MIRRORED || i == 0) return options;
    options.optimizer = dml_sgd(0.01f, 0);
    options.clip_norm = options.clip_value = options.average = 0;
    memset(&options.schedule, 0, sizeof options.schedule);
    return options;
}

static dml_status dml__build_replica(dml_mirrored *all, const dml_node *loss, int i)
{
    dml__replica *replica = &all->replica[i];
    const dml_trainer_options options = dml__replica_options(all, i);
    dml_graph *graph = dml_graph_clone(all->graph, replica->context);
    if (graph) replica->trainer = dml_trainer_create(dml_graph_find(graph, loss->name), &options);
    if (replica->trainer) return DML_OK;
    return dml__fail(&all->context->error, dml_status_of(replica->context), "replica %d (%s): %s", i,
                     replica->device, dml_error(replica->context));
}

/* How many samples each has memory for. */
static dml_status dml__set_most(dml_mirrored *all)
{
    const dml_mirrored_options *options = &all->options;
    const int batch = options->trainer.batch, n = all->count;
    const int even = batch / n + (batch % n != 0);
    int most = options->most_rows;
    if (most == 0) most = options->even ? even : batch - even < even ? batch : 2 * even;
    if (most < even)
        return dml__fail(
            &all->context->error, DML_ERROR_ARGUMENT,
            "most_rows %d asked for, but %d replicas must have room for a batch of %d: %d or more",
            options->most_rows, n, batch, even);
    for (int i = 0; i < n; i++) all->most[i] = most < batch ? most : batch;
    return DML_OK;
}

static dml_status dml__open_replicas(dml_mirrored *all, const dml_node *loss, const char *const *devices)
{
    dml_status status = dml__name_devices(all, devices);
    if (status == DML_OK) status = dml__set_most(all);
    for (int i = 0; i < all->count && status == DML_OK; i++) status = dml__open_replica(all, i);
    for (int i = 0; i < all->count && status == DML_OK; i++) status = dml__build_replica(all, loss, i);
    if (status != DML_OK) return status;
    all->inputs = dml_program_inputs(all->replica[0].trainer->program);
    if (all->inputs <= DML__MOST_PARTS) return DML_OK;
    return dml__fail(&all->context->error, DML_ERROR_UNSUPPORTED, "%d inputs; replicas take at most %d",
                     all->inputs, DML__MOST_PARTS);
}

/* Replicas of all processes are numbered process by process. */
static dml_status dml__join_processes(dml_mirrored *all)
{
    dml_comm *comm = all->options.comm;
    const int world = comm ? dml_comm_world_size(comm) : 1;
    const int64_t mine = all->count;
    int64_t before = 0, ranks = mine;
    if (comm) {
        int64_t *counts =
            (int64_t *)dml__allocate_array(&all->context->memory, (size_t)world, sizeof *counts);
        if (!counts)
            return dml__fail(&all->context->error, DML_ERROR_MEMORY, "no memory left for %d ranks", world);
        dml_status status = dml_comm_all_gather(comm, &mine, 1, DML_I64, counts);
        if (status == DML_OK && world > 1) {
            all->outside_sums = dml_comm_split(comm, 0, 0);
            status = dml_comm_status(comm);
        }
        ranks = 0;
        for (int r = 0; r < world && status == DML_OK; r++) {
            if (r < dml_comm_rank(comm)) before += counts[r];
            ranks += counts[r];
        }
        dml__release(&all->context->memory, counts);
        if (status != DML_OK) return dml__mirrored_fail(all, status, dml_comm_error(comm));
    }
    for (int i = 0; i < all->count; i++) {
        dml__mirrored_place *place = &all->replica[i].place;
        place->outside = i == 0 && world > 1 ? comm : NULL;
        place->outside_sums = i == 0 ? all->outside_sums : NULL;
        place->processes = world > 1;
        place->central = all->options.placement != DML_PLACE_MIRRORED;
        place->late = all->options.placement == DML_PLACE_EACH_STEP;
        place->ranks = (int)ranks;
        place->rank = (int)before + i;
        place->bucket_bytes = all->options.bucket_bytes;
        place->allocator = all->options.allocator;
    }
    return DML_OK;
}

static dml_status dml__open_inside(dml_mirrored *all)
{
    static const char *const algorithms[] = { NULL, "all_reduce=ring,reduce=ring,broadcast=chain",
                                              "all_reduce=tree,reduce=binomial,broadcast=binomial",
                                              "all_reduce=master_worker,reduce=direct,broadcast=direct" };
    dml_comm *comms[DML__MOST_REPLICAS];
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.algorithm = algorithms[all->options.cross_device];
    options.timeout_s = all->options.timeout_s;
    if (all->options.comm && options.timeout_s == 0) options.timeout_s = 2 * all->options.comm->job->timeout;
    options.allocator = all->options.allocator;
    options.engine = "dml";
    options.trace = ""; /* the job's has the same file names */
    const dml_status status = dml_comm_open_local(comms, all->count, &options);
    for (int i = 0; i < all->count && status == DML_OK; i++) all->replica[i].place.inside = comms[i];
    if (status == DML_OK) return DML_OK;
    return dml__fail(&all->context->error, status,
                     status == DML_ERROR_MEMORY ? "no memory left for a communicator of %d replicas"
                                                : "no communicator of %d replicas can be had: their timeout "
                                                  "and the environment's DML_ settings must make sense",
                     all->count);
}

static dml_status dml__start_threads(dml_mirrored *all)
{
    for (; all->started < all->count; all->started++) {
        dml__replica *replica = &all->replica[all->started];
        if (!dml__thread_start(&replica->thread, dml__replica_main, replica))
            return dml__fail(&all->context->error, DML_ERROR_MEMORY,
                             "no thread can be had for replica %d of %d", all->started, all->count);
    }
    return DML_OK;
}

/* ---- creating and destroying ---- */

/* The communicators close together, each in its thread; those without a thread tell the others not to wait.
 */
static void dml__end_replicas(dml_mirrored *all)
{
    for (int i = all->started; i < all->count; i++)
        if (all->replica[i].place.inside)
            dml__end_comm(all->replica[i].place.inside, DML_ERROR_STATE, "a replica has no thread");
    if (all->started) dml__give_order(all, DML__ORDER_LEAVE);
    for (int i = 0; i < all->count; i++) {
        if (i < all->started)
            dml__thread_join(&all->replica[i].thread);
        else
            dml_comm_close(all->replica[i].place.inside);
    }
}

static void dml__mirrored_destroy_owned(dml__owned *owned)
{
    dml_mirrored *all = (dml_mirrored *)(void *)owned;
    dml__memory *memory = &all->context->memory;
    dml__disown(all->context, owned);
    all->graph->programs--;
    if (all->replica) dml__end_replicas(all);
    for (int i = 0; all->replica && i < all->count; i++) dml_close(all->replica[i].context);
    if (all->outside_sums) dml_comm_close(all->outside_sums);
    if (all->locks) {
        dml__cond_destroy(&all->answered);
        dml__cond_destroy(&all->asked);
        dml__mutex_destroy(&all->mutex);
    }
    dml__release(memory, all->other_share);
    dml__release(memory, all->share);
    dml__release(memory, all->most);
    dml__release(memory, all->speed);
    dml__release(memory, all->replica);
    dml__release(memory, all);
}

DML_API void dml_mirrored_destroy(dml_mirrored *mirrored)
{
    if (mirrored) dml__mirrored_destroy_owned(&mirrored->owned);
}

static bool dml__make_locks(dml_mirrored *all)
{
    if (!dml__mutex_init(&all->mutex)) return false;
    all->locks = dml__cond_init(&all->asked);
    if (all->locks && !dml__cond_init(&all->answered)) {
        dml__cond_destroy(&all->asked);
        all->locks = false;
    }
    if (!all->locks) dml__mutex_destroy(&all->mutex);
    return all->locks;
}

static dml_status dml__mirrored_allocate(dml_mirrored *all)
{
    dml__memory *memory = &all->context->memory;
    const size_t n = (size_t)all->count;
    all->replica = (dml__replica *)dml__allocate_array(memory, n, sizeof *all->replica);
    all->speed = (dml__speed *)dml__allocate_array(memory, n, sizeof *all->speed);
    all->most = (int *)dml__allocate_array(memory, n, sizeof(int));
    all->share = (int *)dml__allocate_array(memory, n, sizeof(int));
    all->other_share = (int *)dml__allocate_array(memory, n, sizeof(int));
    if (!all->replica || !all->speed || !all->most || !all->share || !all->other_share ||
        !dml__make_locks(all))
        return dml__fail(&all->context->error, DML_ERROR_MEMORY, "no memory left for %d replicas",
                         all->count);
    for (int i = 0; i < all->count; i++) {
        all->replica[i].all = all;
        all->replica[i].index = i;
    }
    return DML_OK;
}

static dml_status dml__check_mirrored(dml_context *context, const char *const *devices, int count,
                                      const dml_mirrored_options *options)
{
    dml__error *error = &context->error;
    if (error->status != DML_OK) return error->status;
#ifdef DML_NO_THREADS
    return dml__fail(error, DML_ERROR_UNSUPPORTED, "replicas need threads, and this is built without");
#endif
    if (!devices) return dml__fail_null(error, "dml_mirrored_create", "devices");
    if (!options) return dml__fail_null(error, "dml_mirrored_create", "options: there is no default batch");
    if (count < 1 || count > DML__MOST_REPLICAS)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%d devices given; 1 to %d are possible", count,
                         DML__MOST_REPLICAS);
    if ((unsigned)options->placement > DML_PLACE_EACH_STEP)
        return dml__fail(error, DML_ERROR_ARGUMENT, "there is no placement %d", (int)options->placement);
    if ((unsigned)options->cross_device > DML_CROSS_ONE_DEVICE)
        return dml__fail(error, DML_ERROR_ARGUMENT, "there is no cross_device %d",
                         (int)options->cross_device);
    if (options->trainer.batch < 1)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a batch of %d asked for; it must be 1 or more",
                         options->trainer.batch);
    if (options->comm && dml_comm_status(options->comm))
        return dml__fail(error, dml_comm_status(options->comm), "%s", dml_comm_error(options->comm));
    return DML_OK;
}

static dml_mirrored *dml__mirrored_create_in(dml_node *loss, const char *const *devices, int count,
                                             const dml_mirrored_options *options)
{
    dml_context *context = loss->graph->context;
    if (dml__check_mirrored(context, devices, count, options) != DML_OK) return NULL;
    dml_mirrored *all = (dml_mirrored *)dml__allocate(&context->memory, sizeof *all);
    if (!all) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for replicas");
        return NULL;
    }
    all->context = context;
    all->graph = loss->graph;
    all->options = *options;
    all->count = count;
    all->shared_rows = -1;
    all->graph->programs++;
    dml__own(context, &all->owned, dml__mirrored_destroy_owned);
    dml_status status = dml__mirrored_allocate(all);
    if (status == DML_OK) status = dml__open_replicas(all, loss, devices);
    if (status == DML_OK) status = dml__join_processes(all);
    if (status == DML_OK) status = dml__open_inside(all);
    if (status == DML_OK) status = dml__start_threads(all);
    if (status == DML_OK) status = dml__order_all(all, DML__ORDER_ATTACH);
    if (status == DML_OK) return all;
    dml_mirrored_destroy(all);
    return NULL;
}

DML_API dml_mirrored *dml_mirrored_create(dml_node *loss, const char *const *devices, int count,
                                          const dml_mirrored_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_mirrored *mirrored = dml__mirrored_create_in(loss, devices, count, options);
    dml__leave(context, entry);
    return mirrored;
}

#endif

/* ---- dist/compress_quantise.c ---- */

#ifndef DML_DIST_COMPRESS_QUANTISE_C
#define DML_DIST_COMPRESS_QUANTISE_C

/* ---- dist/compress_codec.h ---- */

/* compress_codec.h: the codes of ranges of g that every rank sends to all: what they add up to is computed
   from the same bytes in the order of the ranks, by operations that no instruction set rounds otherwise. */
#ifndef DML_DIST_COMPRESS_CODEC_H
#define DML_DIST_COMPRESS_CODEC_H

/* kept + unit g as levels of blocks; kept becomes what the code leaves out. A block with a number that isn't
   finite is sent as NaN, and nothing of it is kept. `bits` is 8, 4 or 1. */
DML__LOCAL size_t dml__quantised_bytes(int bits, size_t n);
DML__LOCAL void dml__quantise(dml_pool *pool, int bits, size_t n, const float *g /* (n) */, float unit,
                              float *kept /* (n) */, unsigned char *code);

/* sum = factor times what `ranks` codes, one behind the other, add up to. */
DML__LOCAL void dml__quantised_sum(dml_pool *pool, int bits, size_t n, const unsigned char *codes, int ranks,
                                   float factor, float *sum /* (n) */);

/* How many of n elements are sent. */
DML__LOCAL size_t dml__sparse_count(double fraction, size_t n);

/* velocity = momentum velocity + unit g, kept += velocity (NULL velocity: kept += unit g); the k elements of
   kept of the largest magnitude, of equal ones the first, become the code of 8 k bytes, places below 2^32 and
   values; there both begin anew at 0. If g has a number that isn't finite, NaNs are sent and nothing is kept.
 */
DML__LOCAL void dml__sparsify(size_t n, size_t k, const float *g /* (n) */, float unit, float momentum,
                              float *velocity /* (n) */, float *kept /* (n) */, unsigned char *code);
DML__LOCAL void dml__sparse_sum(size_t n, size_t k, const unsigned char *codes, int ranks, float factor,
                                float *sum /* (n) */);

#endif

#include <string.h>

/* A block's code: its scale, the upper half of an f32 (two bytes, the low one first), and its levels. Such a
   scale has 8 bits, and a level at most 7: their product is exact, so that decoders with an FMA and without
   one get the same sum. The last block is filled up with zeros. */
enum { DML__QUANTISED_BLOCK = 256, DML__QUANTISED_TASK = 64 /* blocks */ };

static size_t dml__quantised_block_bytes(int bits)
{
    return 2 + (size_t)(DML__QUANTISED_BLOCK / 8 * bits);
}

DML__LOCAL size_t dml__quantised_bytes(int bits, size_t n)
{
    return dml__divide_up(n, DML__QUANTISED_BLOCK) * dml__quantised_block_bytes(bits);
}

static float dml__scale_of_bits(uint32_t bits)
{
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The next larger float of which only the upper half is there. 0 for what is so small that its reciprocal
   would be infinite; infinity becomes a NaN. */
static float dml__short_scale(float scale)
{
    uint32_t bits;
    if (scale < 1e-37f) return 0;
    memcpy(&bits, &scale, sizeof bits);
    if (scale - scale == 0) bits += 0xFFFF;
    bits &= 0xFFFF0000u;
    return bits < 0x7F800000u ? dml__scale_of_bits(bits) : dml__scale_of_bits(0x7FC00000u);
}

/* x = kept + unit g, its largest magnitude, and the sum of all. */
DML__BODY void dml__quantise_add(const float *g, float unit, const float *kept, float *x, float *most,
                                 float *total)
{
    dml__vf largest = { 0 }, sum = { 0 };
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(kept + i) + unit * DML__LOAD(g + i);
        const dml__vf size = (dml__vf)((dml__vi)value & 0x7FFFFFFF);
        const dml__vi larger = size > largest;
        largest = (dml__vf)(((dml__vi)size & larger) | ((dml__vi)largest & ~larger));
        sum += size;
        DML__STORE(x + i, value);
    }
    *most = *total = 0;
    for (int i = 0; i < DML__LANES; i++) {
        *most = largest[i] > *most ? largest[i] : *most;
        *total += sum[i];
    }
}

/* level = x / scale, rounded to nearest by a number that leaves no place for a fraction; kept = x - level
   scale. */
DML__BODY void dml__quantise_levels(const float *x, float scale, float *kept, int32_t *level)
{
    const float inverse = scale > 0 ? 1 / scale : 0, round = 12582912.0f; /* 1.5 2^23 */
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(x + i), rounded = value * inverse + round;
        DML__STORE_INT(level + i, (dml__vi)rounded - 0x4B400000);
        DML__STORE(kept + i, value - (rounded - round) * scale);
    }
}

DML__BODY void dml__quantise_signs(const float *x, float scale, float *kept, int32_t *level)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    for (int i = 0; i < DML__QUANTISED_BLOCK; i += DML__LANES) {
        const dml__vf value = DML__LOAD(x + i);
        const dml__vi negative = value < 0.0f;
        DML__STORE_INT(level + i, negative & 1);
        DML__STORE(kept + i, value - (dml__vf)((negative & (int32_t)0x80000000) | (int32_t)bits));
    }
}

/* Elements that lie apart share a byte, so that neighbours are packed by the same instruction. */
DML__BODY void dml__pack_levels(int bits, const int32_t *level, unsigned char *code)
{
    if (bits == 8) {
        for (int i = 0; i < 256; i++) code[i] = (unsigned char)level[i];
    } else if (bits == 4) {
        for (int i = 0; i < 128; i++) code[i] = (unsigned char)((level[i] & 15) | (level[128 + i] & 15) << 4);
    } else {
        for (int i = 0; i < 32; i++) {
            int byte = 0;
            for (int b = 0; b < 8; b++) byte |= level[32 * b + i] << b;
            code[i] = (unsigned char)byte;
        }
    }
}

/* A whole block, of which `filled` elements count. */
DML__BODY void dml__quantise_block_body(int bits, int filled, const float *g, float unit, float *kept,
                                        unsigned char *code)
{
    float x[DML__QUANTISED_BLOCK], most, total;
    int32_t level[DML__QUANTISED_BLOCK];
    dml__quantise_add(g, unit, kept, x, &most, &total);
    const float wanted = bits == 1 ? total / (float)filled : most / (bits == 8 ? 127.0f : 7.0f);
    const float scale = dml__short_scale(total - total == 0 ? wanted : total);
    uint32_t scale_bits;
    memcpy(&scale_bits, &scale, sizeof scale_bits);
    code[0] = (unsigned char)(scale_bits >> 16);
    code[1] = (unsigned char)(scale_bits >> 24);
    if (scale != scale) {
        memset(kept, 0, DML__QUANTISED_BLOCK * sizeof *kept);
        memset(code + 2, 0, (size_t)(DML__QUANTISED_BLOCK / 8 * bits));
        return;
    }
    if (bits == 1)
        dml__quantise_signs(x, scale, kept, level);
    else
        dml__quantise_levels(x, scale, kept, level);
    dml__pack_levels(bits, level, code + 2);
}
DML__PER_ISA(dml__quantise_block,
             (int bits, int filled, const float *g, float unit, float *kept, unsigned char *code),
             (bits, filled, g, unit, kept, code))

/* sum += what the code says */
DML__BODY void dml__unquantise_block_body(int bits, const unsigned char *code, float *sum)
{
    const float scale = dml__scale_of_bits((uint32_t)code[0] << 16 | (uint32_t)code[1] << 24);
    const unsigned char *level = code + 2;
    if (bits == 8) {
        for (int i = 0; i < 256; i++) sum[i] += scale * (float)(signed char)level[i];
    } else if (bits == 4) {
        for (int i = 0; i < 128; i++) {
            sum[i] += scale * (float)(((level[i] & 15) ^ 8) - 8);
            sum[128 + i] += scale * (float)((level[i] >> 4 ^ 8) - 8);
        }
    } else {
        for (int b = 0; b < 8; b++)
            for (int i = 0; i < 32; i++) sum[32 * b + i] += scale * (float)(1 - 2 * (level[i] >> b & 1));
    }
}
DML__PER_ISA(dml__unquantise_block, (int bits, const unsigned char *code, float *sum), (bits, code, sum))

typedef struct dml__quantise_call {
    dml_isa isa;
    int bits, ranks;
    size_t n, bytes; /* of the range; of a rank's code of it */
    const float *g;
    float *kept, *sum;
    unsigned char *code;
    const unsigned char *codes;
    float factor;
} dml__quantise_call;

static void dml__quantise_task(void *argument, int task, int worker)
{
    const dml__quantise_call *call = (const dml__quantise_call *)argument;
    const size_t first = (size_t)task * DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    const size_t behind = first + (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    float g[DML__QUANTISED_BLOCK], kept[DML__QUANTISED_BLOCK];
    (void)worker;
    for (size_t at = first; at < behind && at < call->n; at += DML__QUANTISED_BLOCK) {
        unsigned char *code = call->code + at / DML__QUANTISED_BLOCK * dml__quantised_block_bytes(call->bits);
        const size_t left = call->n - at;
        if (left >= DML__QUANTISED_BLOCK) {
            dml__quantise_block(call->isa, call->bits, DML__QUANTISED_BLOCK, call->g + at, call->factor,
                                call->kept + at, code);
            continue;
        }
        memset(g, 0, sizeof g);
        memset(kept, 0, sizeof kept);
        memcpy(g, call->g + at, left * sizeof *g);
        memcpy(kept, call->kept + at, left * sizeof *kept);
        dml__quantise_block(call->isa, call->bits, (int)left, g, call->factor, kept, code);
        memcpy(call->kept + at, kept, left * sizeof *kept);
    }
}

static void dml__quantised_sum_task(void *argument, int task, int worker)
{
    const dml__quantise_call *call = (const dml__quantise_call *)argument;
    const size_t first = (size_t)task * DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    const size_t behind = first + (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK;
    float sum[DML__QUANTISED_BLOCK];
    (void)worker;
    for (size_t at = first; at < behind && at < call->n; at += DML__QUANTISED_BLOCK) {
        const unsigned char *code =
            call->codes + at / DML__QUANTISED_BLOCK * dml__quantised_block_bytes(call->bits);
        memset(sum, 0, sizeof sum);
        for (int r = 0; r < call->ranks; r++, code += call->bytes)
            dml__unquantise_block(call->isa, call->bits, code, sum);
        const size_t count = dml__minimum(DML__QUANTISED_BLOCK, call->n - at);
        for (size_t i = 0; i < count; i++) call->sum[at + i] = call->factor * sum[i];
    }
}

static void dml__quantise_run(dml_pool *pool, dml_pool_task task, dml__quantise_call *call, int bits,
                              size_t n, float factor)
{
    call->isa = dml__pool_machine(pool).isa;
    call->bits = bits;
    call->n = n;
    call->bytes = dml__quantised_bytes(bits, n);
    call->factor = factor;
    dml_pool_run(pool, (int)dml__divide_up(n, (size_t)DML__QUANTISED_TASK * DML__QUANTISED_BLOCK), task,
                 call);
}

DML__LOCAL void dml__quantise(dml_pool *pool, int bits, size_t n, const float *g, float unit, float *kept,
                              unsigned char *code)
{
    dml__quantise_call call;
    memset(&call, 0, sizeof call);
    call.g = g;
    call.kept = kept;
    call.code = code;
    dml__quantise_run(pool, dml__quantise_task, &call, bits, n, unit);
}

DML__LOCAL void dml__quantised_sum(dml_pool *pool, int bits, size_t n, const unsigned char *codes, int ranks,
                                   float factor, float *sum)
{
    dml__quantise_call call;
    memset(&call, 0, sizeof call);
    call.codes = codes;
    call.ranks = ranks;
    call.sum = sum;
    dml__quantise_run(pool, dml__quantised_sum_task, &call, bits, n, factor);
}

#endif

/* ---- dist/compress_sparse.c ---- */

#ifndef DML_DIST_COMPRESS_SPARSE_C
#define DML_DIST_COMPRESS_SPARSE_C

#include <string.h>

/* As numbers, these are in the order of magnitudes; those of infinities and NaNs are the largest. */
static uint32_t dml__magnitude_key(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFFu;
}

DML__LOCAL size_t dml__sparse_count(double fraction, size_t n)
{
    const double wanted = fraction * (double)n;
    size_t k = (size_t)wanted;
    if ((double)k < wanted) k++;
    return k < n ? k : n;
}

/* The key of the k-th largest magnitude of x, k at least 1, by three passes that each find 11 of its bits (10
 * the last time); *equal is how many of those with that key are among the k. */
static uint32_t dml__kth_magnitude(size_t n, const float *x, size_t k, size_t *equal)
{
    static const int shift[] = { 20, 10, 0 };
    size_t count[2048];
    uint32_t found = 0;
    for (int pass = 0; pass < 3; pass++) {
        const int above = pass ? shift[pass - 1] : 31;
        const uint32_t mask = (1u << (above - shift[pass])) - 1;
        memset(count, 0, sizeof count);
        for (size_t i = 0; i < n; i++) {
            const uint32_t key = dml__magnitude_key(x[i]);
            if (key >> above == found >> above) count[key >> shift[pass] & mask]++;
        }
        uint32_t digit = mask;
        while (digit > 0 && count[digit] < k) k -= count[digit--];
        found |= digit << shift[pass];
    }
    *equal = k;
    return found;
}

static bool dml__all_finite(size_t n, const float *x)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = dml__magnitude_key(x[i]);
        largest = key > largest ? key : largest;
    }
    return largest < 0x7F800000u;
}

static void dml__sparse_store(unsigned char *code, size_t k, size_t entry, size_t place, float value)
{
    dml__store32(code + 4 * entry, (uint32_t)place);
    dml__store_f32(code + 4 * (k + entry), value);
}

DML__LOCAL void dml__sparsify(size_t n, size_t k, const float *g, float unit, float momentum, float *velocity,
                              float *kept, unsigned char *code)
{
    if (n == 0) return;
    if (!dml__all_finite(n, g)) {
        const uint32_t nan_bits = 0x7FC00000u;
        float nan;
        memcpy(&nan, &nan_bits, sizeof nan);
        memset(kept, 0, n * sizeof *kept);
        if (velocity) memset(velocity, 0, n * sizeof *velocity);
        for (size_t e = 0; e < k; e++) dml__sparse_store(code, k, e, e, nan);
        return;
    }
    if (velocity) {
        for (size_t i = 0; i < n; i++) {
            velocity[i] = momentum * velocity[i] + unit * g[i];
            kept[i] += velocity[i];
        }
    } else {
        for (size_t i = 0; i < n; i++) kept[i] += unit * g[i];
    }
    size_t equal, entry = 0;
    const uint32_t least = dml__kth_magnitude(n, kept, k, &equal);
    for (size_t i = 0; i < n; i++) {
        const uint32_t key = dml__magnitude_key(kept[i]);
        if (key < least || (key == least && equal == 0)) continue;
        if (key == least) equal--;
        dml__sparse_store(code, k, entry++, i, kept[i]);
        kept[i] = 0;
        if (velocity) velocity[i] = 0;
    }
    DML_ASSERT(entry == k);
}

DML__LOCAL void dml__sparse_sum(size_t n, size_t k, const unsigned char *codes, int ranks, float factor,
                                float *sum)
{
    memset(sum, 0, n * sizeof *sum);
    for (int r = 0; r < ranks; r++, codes += 8 * k)
        for (size_t e = 0; e < k; e++) {
            const uint32_t place = dml__load32(codes + 4 * e);
            if (place < n) sum[place] += dml__load_f32(codes + 4 * (k + e));
        }
    for (size_t i = 0; i < n; i++) sum[i] *= factor;
}

#endif

/* ---- dist/compress_low_rank.c ---- */

#ifndef DML_DIST_COMPRESS_LOW_RANK_C
#define DML_DIST_COMPRESS_LOW_RANK_C

#include <math.h>
#include <string.h>

#define DML__LOW_RANK_STREAM 0x50535344u

/* The first dimension by all others. Kernels count columns with an int. */
static dml__low_rank_part dml__low_rank_part_of(const dml_node *parameter, int rank)
{
    dml__low_rank_part part;
    memset(&part, 0, sizeof part);
    const size_t count = dml_shape_count(&parameter->shape);
    part.begin = parameter->offset;
    part.rows = parameter->shape.ndim > 0 && count > 0 ? (size_t)parameter->shape.dims[0] : 1;
    part.columns = count / part.rows;
    const size_t least = part.rows < part.columns ? part.rows : part.columns;
    const size_t most = (size_t)rank < least ? (size_t)rank : least;
    if (most > 0 && part.rows <= INT32_MAX && part.columns <= INT32_MAX &&
        part.rows + part.columns < count / most)
        part.rank = most;
    return part;
}

static size_t dml__low_rank_p(const dml__low_rank_part *part)
{
    return part->rows * (part->rank ? part->rank : part->columns);
}

/* Columns that are all zero would stay so, and those with a NaN too. */
static void dml__low_rank_fill(dml__low_rank *low, float *q, size_t columns, size_t rank, size_t r)
{
    const dml_random random = { low->seed, DML__LOW_RANK_STREAM, (uint32_t)low->refilled++ };
    for (size_t i = 0; i < columns; i++) q[i * rank + r] = dml_random_normal(&random, i);
}

static void dml__low_rank_refill(dml__low_rank *low, const dml__low_rank_part *part)
{
    float *q = low->q + part->q;
    for (size_t r = 0; r < part->rank; r++) {
        double sum = 0;
        for (size_t i = 0; i < part->columns; i++) sum += fabs((double)q[i * part->rank + r]);
        if (!(sum > 0 && sum - sum == 0)) dml__low_rank_fill(low, q, part->columns, part->rank, r);
    }
}

DML__LOCAL bool dml__low_rank_open(dml__low_rank *low, dml__memory *memory, const dml_graph *graph, int rank,
                                   uint64_t seed)
{
    size_t parts = 0, p = 0, q = 0;
    const dml_node *n = graph->first_parameter;
    memset(low, 0, sizeof *low);
    low->seed = seed;
    for (; n; n = n->next_parameter) parts += !n->frozen;
    low->part = (dml__low_rank_part *)dml__allocate_array(memory, parts + 1, sizeof *low->part);
    if (!low->part) return false;
    for (n = graph->first_parameter; n; n = n->next_parameter) {
        if (n->frozen) continue;
        dml__low_rank_part *part = &low->part[low->parts++];
        *part = dml__low_rank_part_of(n, rank);
        part->p = p;
        part->q = q;
        p += dml__low_rank_p(part);
        q += part->columns * part->rank;
    }
    low->part[parts].begin = graph->trained_count;
    low->part[parts].p = p;
    low->part[parts].q = q;
    low->p = (float *)dml__allocate_array(memory, p, sizeof(float));
    low->q = (float *)dml__allocate_array(memory, q, sizeof(float));
    if (!low->p || !low->q) return false;
    for (size_t i = 0; i < parts; i++) dml__low_rank_refill(low, &low->part[i]);
    return true;
}

DML__LOCAL void dml__low_rank_close(dml__low_rank *low, dml__memory *memory)
{
    dml__release(memory, low->part);
    dml__release(memory, low->p);
    dml__release(memory, low->q);
    memset(low, 0, sizeof *low);
}

DML__LOCAL void dml__low_rank_find(const dml__low_rank *low, size_t begin, size_t end, size_t *first,
                                   size_t *behind)
{
    size_t i = 0;
    while (i < low->parts && low->part[i].begin < begin) i++;
    *first = i;
    while (i < low->parts && low->part[i].begin < end) i++;
    *behind = i;
    DML_ASSERT(low->part[*first].begin == begin && low->part[i].begin == end);
}

/* C = factor op(A) op(B) */
static void dml__low_rank_product(dml_pool *pool, bool trans_a, bool trans_b, size_t m, size_t n, size_t k,
                                  float factor, const float *a, const float *b, float beta, float *c)
{
    dml_sgemm(pool, DML_ROW_MAJOR, trans_a ? DML_TRANS : DML_NO_TRANS, trans_b ? DML_TRANS : DML_NO_TRANS,
              (int)m, (int)n, (int)k, factor, a, (int)(trans_a ? m : k), b, (int)(trans_b ? k : n), beta, c,
              (int)n);
}

DML__LOCAL void dml__low_rank_project(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                      const float *g, float unit, float *kept)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        const size_t count = part->rows * part->columns;
        const float *from = g + (part->begin - low->part[first].begin);
        if (!part->rank) {
            memcpy(low->p + part->p, from, count * sizeof *from);
            continue;
        }
        float *m = kept + part->begin;
        for (size_t e = 0; e < count; e++) m[e] += unit * from[e];
        dml__low_rank_product(pool, false, false, part->rows, part->rank, part->columns, 1, m,
                              low->q + part->q, 0, low->p + part->p);
    }
}

/* Gram and Schmidt's way, one column after the other (so that a column's rest is what is projected), in
   double precision. What is left of a column by rounding alone becomes 0. False: not finite. */
static bool dml__orthonormal_columns(float *p, size_t rows, size_t rank)
{
    for (size_t c = 0; c < rank; c++) {
        double whole = 0, rest = 0;
        for (size_t i = 0; i < rows; i++) whole += (double)p[i * rank + c] * p[i * rank + c];
        if (!(whole - whole == 0)) return false;
        for (size_t b = 0; b < c; b++) {
            double dot = 0;
            for (size_t i = 0; i < rows; i++) dot += (double)p[i * rank + b] * p[i * rank + c];
            for (size_t i = 0; i < rows; i++) p[i * rank + c] -= (float)(dot * p[i * rank + b]);
        }
        for (size_t i = 0; i < rows; i++) rest += (double)p[i * rank + c] * p[i * rank + c];
        const double factor = rest > 1e-10 * whole && rest > 0 ? 1 / sqrt(rest) : 0;
        for (size_t i = 0; i < rows; i++) p[i * rank + c] = (float)(factor * p[i * rank + c]);
    }
    return true;
}

DML__LOCAL void dml__low_rank_back(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                   float *kept)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        float *m = kept + part->begin, *p = low->p + part->p, *q = low->q + part->q;
        if (!part->rank) continue;
        const bool finite = dml__orthonormal_columns(p, part->rows, part->rank);
        dml__low_rank_product(pool, true, false, part->columns, part->rank, part->rows, 1, m, p, 0, q);
        dml__low_rank_product(pool, false, true, part->rows, part->columns, part->rank, -1, p, q, 1, m);
        if (!finite) memset(m, 0, part->rows * part->columns * sizeof *m);
    }
}

DML__LOCAL void dml__low_rank_expand(dml__low_rank *low, dml_pool *pool, size_t first, size_t behind,
                                     float factor, float *g)
{
    for (size_t i = first; i < behind; i++) {
        const dml__low_rank_part *part = &low->part[i];
        float *to = g + (part->begin - low->part[first].begin);
        if (!part->rank) {
            memcpy(to, low->p + part->p, part->rows * part->columns * sizeof *to);
            continue;
        }
        dml__low_rank_product(pool, false, true, part->rows, part->columns, part->rank, factor,
                              low->p + part->p, low->q + part->q, 0, to);
        dml__low_rank_refill(low, part);
    }
}

#endif

/* ---- dist/compress_sum.c ---- */

#ifndef DML_DIST_COMPRESS_SUM_C
#define DML_DIST_COMPRESS_SUM_C

#include <math.h>
#include <string.h>

DML__LOCAL dml_status dml__check_compression(dml_trainer *trainer, dml_compression *how)
{
    if (how->bits == 0) how->bits = 8;
    if (how->fraction == 0.0f) how->fraction = 0.01f;
    if (how->rank == 0) how->rank = 4;
    if ((int)how->kind < DML_COMPRESS_NONE || how->kind > DML_COMPRESS_POWER)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "compression of kind %d asked for; there are %d, from DML_COMPRESS_NONE on",
                                (int)how->kind, DML_COMPRESS_POWER + 1);
    if (how->bits != 8 && how->bits != 4 && how->bits != 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "gradients of %d bits asked for, it must be 8, 4 or 1", how->bits);
    if (!(how->fraction > 0.0f && how->fraction <= 1.0f))
        return dml_trainer_fail(
            trainer, DML_ERROR_ARGUMENT,
            "a fraction of %g of the gradients asked for, it must be above 0 and at most 1",
            (double)how->fraction);
    if (!(how->momentum >= 0.0f && how->momentum < 1.0f))
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "compression with a momentum of %g asked for, it must be below 1; 0: none",
                                (double)how->momentum);
    if (how->warm_up < 0)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "compression that warms up for %d steps asked for, it must be 0 or more",
                                how->warm_up);
    if (how->rank < 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "gradients of rank %d asked for, it must be at least 1", how->rank);
    return DML_OK;
}

static bool dml__keeps(const dml__compressor *c)
{
    return c->how.kind >= DML_COMPRESS_QUANTISE;
}

static bool dml__narrows(const dml__compressor *c)
{
    return c->how.kind == DML_COMPRESS_BF16 || c->how.kind == DML_COMPRESS_F16;
}

/* Of a rank's code of n elements in a step that sends this fraction. */
static size_t dml__code_bytes(const dml__compressor *c, double fraction, size_t n)
{
    switch (c->how.kind) {
    case DML_COMPRESS_BF16:
    case DML_COMPRESS_F16: return 2 * n;
    case DML_COMPRESS_QUANTISE: return dml__quantised_bytes(c->how.bits, n);
    case DML_COMPRESS_TOP_K: return 8 * dml__sparse_count(fraction, n);
    default: return 0;
    }
}

/* From a quarter at step 0 down to what was asked for. */
static double dml__fraction_at(const dml_compression *how, uint64_t step)
{
    const double last = (double)how->fraction, first = 0.25;
    if (step >= (uint64_t)how->warm_up || last >= first) return last;
    return first * pow(last / first, (double)step / how->warm_up);
}

/* Ranges are rounded up by themselves, each by at most what a single element takes. */
static dml_status dml__compressor_allocate(dml__compressor *c, int ranges)
{
    const size_t codes =
        c->how.kind == DML_COMPRESS_QUANTISE || c->how.kind == DML_COMPRESS_TOP_K ? (size_t)c->ranks : 1;
    const double most = dml__fraction_at(&c->how, 0);
    const size_t one = dml__code_bytes(c, 1, 1), whole = dml__code_bytes(c, most, c->count);
    if (one && whole < SIZE_MAX / 4) {
        const size_t each = whole + (size_t)ranges * (one + DML__ALIGNMENT);
        c->code_bytes = each < SIZE_MAX / codes ? each * codes : 0;
        c->code = c->code_bytes ? (unsigned char *)dml__allocate_unset(c->memory, c->code_bytes) : NULL;
    }
    if (dml__keeps(c)) c->kept = (float *)dml__allocate_array(c->memory, c->count, sizeof(float));
    const bool moves = c->how.kind == DML_COMPRESS_TOP_K && c->how.momentum > 0.0f;
    if (moves) c->velocity = (float *)dml__allocate_array(c->memory, c->count, sizeof(float));
    return (one && !c->code) || (dml__keeps(c) && !c->kept) || (moves && !c->velocity) ? DML_ERROR_MEMORY
                                                                                       : DML_OK;
}

DML__LOCAL dml_status dml__compressor_open(dml__compressor *c, dml__memory *memory, dml_comm *comm,
                                           dml_trainer *trainer, const dml_compression *how, int ranges)
{
    memset(c, 0, sizeof *c);
    c->memory = memory;
    c->comm = comm;
    c->pool = dml_context_pool(dml_trainer_context(trainer));
    c->how = *how;
    c->ranks = dml_comm_world_size(comm);
    c->rank = dml_comm_rank(comm);
    c->count = dml_trainer_count(trainer, DML_GRADIENTS);
    c->unit = c->factor = 1;
    dml_status status = dml__check_compression(trainer, &c->how);
    if (status != DML_OK) return status;
    if (c->how.kind == DML_COMPRESS_TOP_K && c->count > UINT32_MAX)
        return dml_trainer_fail(trainer, DML_ERROR_UNSUPPORTED,
                                "the largest of %zu gradients asked for; their places are sent in 32 bits",
                                c->count);
    status = dml__compressor_allocate(c, ranges);
    if (status == DML_OK && c->how.kind == DML_COMPRESS_POWER &&
        !dml__low_rank_open(&c->low, memory, dml_trainer_program(trainer)->graph, c->how.rank,
                            dml_trainer_get_run(trainer).seed))
        status = DML_ERROR_MEMORY;
    if (status == DML_OK) return status;
    dml__compressor_close(c);
    return dml_trainer_fail(trainer, status, "no memory left to compress %zu gradients", c->count);
}

DML__LOCAL void dml__compressor_close(dml__compressor *c)
{
    if (!c->memory) return;
    dml__low_rank_close(&c->low, c->memory);
    dml__release(c->memory, c->kept);
    dml__release(c->memory, c->velocity);
    dml__release(c->memory, c->code);
    memset(c, 0, sizeof *c);
}

DML__LOCAL double dml__compressor_bytes(const dml__compressor *c)
{
    const size_t n = c->count;
    if (n == 0 || c->how.kind == DML_COMPRESS_NONE) return sizeof(float);
    if (c->how.kind == DML_COMPRESS_POWER)
        return (double)sizeof(float) * (double)(c->low.part[c->low.parts].p + c->low.part[c->low.parts].q) /
               (double)n;
    return (double)dml__code_bytes(c, (double)c->how.fraction, n) / (double)n;
}

DML__LOCAL size_t dml__bucket_elements(const dml__price_link *link, bool wires, int ranks, double bytes_each,
                                       size_t count)
{
    const double usual = 1 << 18, least = wires ? 1 << 12 : usual;
    double elements = usual;
    int steps = 1;
    while (steps < 30 && 1 << steps < ranks) steps++;
    if (ranks > 1 && link->bandwidth > 0)
        elements = 9 * steps * (link->latency + 2 * link->overhead) * link->bandwidth * ranks / (ranks - 1) /
                   bytes_each;
    if (wires && elements > (double)count / 8) elements = (double)count / 8;
    if (elements < least) elements = least;
    return elements < (double)count ? (size_t)elements : count;
}

DML__LOCAL bool dml__compressor_asks(const dml__compressor *c)
{
    return dml__keeps(c) || c->how.kind == DML_COMPRESS_F16;
}

/* What is kept are means, so that steps of any numbers of samples and with any loss scale add up. f16 takes
   them with the loss scale, which is there for its range, and divided by a power of two, which changes no
   bit. */
DML__LOCAL void dml__compressor_begin(dml__compressor *c, const dml_trainer *trainer, double samples)
{
    double whole = 1;
    c->code_used = 0;
    c->before = NULL;
    c->fraction = dml__fraction_at(&c->how, dml_trainer_steps(trainer));
    if (c->how.kind == DML_COMPRESS_F16)
        while (whole < samples) whole *= 2;
    else if (dml__keeps(c) && samples > 0)
        whole = samples * (double)dml_trainer_loss_scale(trainer);
    c->unit = (float)(1 / whole);
    c->factor = (float)whole;
}

/* ---- a range ---- */

static unsigned char *dml__take_code(dml__compressor *c, size_t bytes)
{
    unsigned char *code = c->code + c->code_used;
    DML_ASSERT(bytes <= c->code_bytes - c->code_used);
    c->code_used += bytes;
    c->code_used = c->code_used / DML__ALIGNMENT * DML__ALIGNMENT +
                   (c->code_used % DML__ALIGNMENT ? (size_t)DML__ALIGNMENT : 0);
    if (c->code_used > c->code_bytes) c->code_used = c->code_bytes;
    return code;
}

static dml_status dml__narrow_start(dml__compressor *c, float *g, dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    sum->code = dml__take_code(c, 2 * n);
    if (c->how.kind == DML_COMPRESS_BF16) {
        dml_bf16_from_f32(c->pool, n, g, (dml_bf16 *)(void *)sum->code);
    } else {
        dml_scale(c->pool, n, c->unit, g);
        dml_f16_from_f32(c->pool, n, g, (dml_f16 *)(void *)sum->code);
    }
    sum->request = dml_comm_all_reduce_start(c->comm, sum->code, n,
                                             c->how.kind == DML_COMPRESS_BF16 ? DML_BF16 : DML_F16, DML_SUM);
    return dml_comm_status(c->comm);
}

/* Each rank's code goes to all, this one's from its place among them. */
static dml_status dml__gather_start(dml__compressor *c, const float *g, dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    sum->sent = dml__sparse_count(c->fraction, n);
    const size_t bytes = dml__code_bytes(c, c->fraction, n);
    float *kept = c->kept + sum->begin;
    sum->code = dml__take_code(c, bytes * (size_t)c->ranks);
    unsigned char *mine = sum->code + bytes * (size_t)c->rank;
    if (c->how.kind == DML_COMPRESS_QUANTISE)
        dml__quantise(c->pool, c->how.bits, n, g, c->unit, kept, mine);
    else
        dml__sparsify(n, sum->sent, g, c->unit, c->how.momentum,
                      c->velocity ? c->velocity + sum->begin : NULL, kept, mine);
    sum->request = dml_comm_all_gather_start(c->comm, mine, bytes, DML_U8, sum->code);
    return dml_comm_status(c->comm);
}

/* With P summed, Q is on its way. */
static dml_status dml__low_rank_go_on(dml__compressor *c, dml__coded_sum *sum)
{
    size_t first, behind;
    dml_request *request = sum->request;
    sum->request = NULL;
    sum->expands = true;
    if (dml_comm_wait(c->comm, request) != DML_OK) return dml_comm_status(c->comm);
    dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
    dml__low_rank_back(&c->low, c->pool, first, behind, c->kept);
    const size_t from = c->low.part[first].q, to = c->low.part[behind].q;
    sum->request = dml_comm_all_reduce_start(c->comm, c->low.q + from, to - from, DML_F32, DML_SUM);
    return dml_comm_status(c->comm);
}

/* All ranks have to start their calls in one order, whenever answers come: the Q of a range follows the P of
 * the next, for which there was a range's time. */
static dml_status dml__low_rank_start(dml__compressor *c, const float *g, dml__coded_sum *sum)
{
    size_t first, behind;
    dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
    dml__low_rank_project(&c->low, c->pool, first, behind, g, c->unit, c->kept);
    const size_t from = c->low.part[first].p, to = c->low.part[behind].p;
    dml__coded_sum *before = c->before;
    c->before = sum;
    sum->request = dml_comm_all_reduce_start(c->comm, c->low.p + from, to - from, DML_F32, DML_SUM);
    if (!sum->request) return dml_comm_status(c->comm);
    return before ? dml__low_rank_go_on(c, before) : DML_OK;
}

DML__LOCAL dml_status dml__coded_sum_start(dml__compressor *c, float *g, size_t begin, size_t end,
                                           dml__coded_sum *sum)
{
    memset(sum, 0, sizeof *sum);
    sum->begin = begin;
    sum->end = end;
    if (dml__narrows(c)) return dml__narrow_start(c, g, sum);
    if (c->how.kind == DML_COMPRESS_POWER) return dml__low_rank_start(c, g, sum);
    if (dml__keeps(c)) return dml__gather_start(c, g, sum);
    sum->request = dml_comm_all_reduce_start(c->comm, g, end - begin, DML_F32, DML_SUM);
    return dml_comm_status(c->comm);
}

static void dml__coded_sum_decode(dml__compressor *c, float *g, const dml__coded_sum *sum)
{
    const size_t n = sum->end - sum->begin;
    size_t first, behind;
    switch (c->how.kind) {
    case DML_COMPRESS_BF16: dml_bf16_to_f32(c->pool, n, (const dml_bf16 *)(const void *)sum->code, g); break;
    case DML_COMPRESS_F16:
        dml_f16_to_f32(c->pool, n, (const dml_f16 *)(const void *)sum->code, g);
        dml_scale(c->pool, n, c->factor, g);
        break;
    case DML_COMPRESS_QUANTISE:
        dml__quantised_sum(c->pool, c->how.bits, n, sum->code, c->ranks, c->factor, g);
        break;
    case DML_COMPRESS_TOP_K: dml__sparse_sum(n, sum->sent, sum->code, c->ranks, c->factor, g); break;
    case DML_COMPRESS_POWER:
        dml__low_rank_find(&c->low, sum->begin, sum->end, &first, &behind);
        dml__low_rank_expand(&c->low, c->pool, first, behind, c->factor, g);
        break;
    default: break;
    }
}

DML__LOCAL dml_status dml__coded_sum_take(dml__compressor *c, float *g, dml__coded_sum *sum)
{
    if (c->before) {
        dml__coded_sum *last = c->before;
        c->before = NULL;
        if (dml__low_rank_go_on(c, last) != DML_OK) return dml_comm_status(c->comm);
    }
    dml_request *request = sum->request;
    sum->request = NULL;
    if (dml_comm_wait(c->comm, request) != DML_OK) return dml_comm_status(c->comm);
    dml__coded_sum_decode(c, g, sum);
    return DML_OK;
}

DML__LOCAL void dml__coded_sum_drop(dml__compressor *c, dml__coded_sum *sum)
{
    if (sum->request) dml_comm_wait(c->comm, sum->request);
    memset(sum, 0, sizeof *sum);
    c->before = NULL;
}

DML__LOCAL void dml__compressor_forget(dml__compressor *c)
{
    if (c->kept) memset(c->kept, 0, c->count * sizeof *c->kept);
    if (c->velocity) memset(c->velocity, 0, c->count * sizeof *c->velocity);
}

#endif

/* ---- dist/parameter_server_optimizer.c ---- */

#ifndef DML_DIST_PARAMETER_SERVER_OPTIMIZER_C
#define DML_DIST_PARAMETER_SERVER_OPTIMIZER_C

/* ---- dist/parameter_server_optimizer.h ---- */

/* parameter_server_optimizer.h: a worker's optimizer, applied by the servers, and how strategies that do so
 * begin. */
#ifndef DML_DIST_PARAMETER_SERVER_OPTIMIZER_H
#define DML_DIST_PARAMETER_SERVER_OPTIMIZER_H

/* Opens *ps for the trained parameters of all workers' trainers, with `optimizer` at the servers, and makes
   the trainers alike. `options` says the rest. Of bad input the job learns on all ranks. */
DML__LOCAL dml_status dml__ps_attach(dml_ps **ps, dml_comm *comm, const dml_cluster *cluster,
                                     dml_trainer *trainer, const dml_optimizer *optimizer,
                                     const dml_ps_options *options);

#endif

/* The setup that worker 0 sends: the optimizer's kind, nesterov, its numbers, and runs of parameters with the
   same scales, of four numbers each. Steps that the trainer took before don't count: the state is empty. */
enum { DML__PS_OPT_KIND, DML__PS_OPT_NESTEROV, DML__PS_OPT_NUMBERS };

typedef struct dml__ps_optimizer {
    dml__memory memory;
    dml_optimizer optimizer;
    size_t begin, count; /* the server's range */
    double *runs;        /* (run_count, 4): begin, end, scales of the learning rate and of the decay */
    size_t run_count;
    float *state[DML__MAX_STATES]; /* (count) each */
} dml__ps_optimizer;

/* ---- servers ---- */

static void dml__ps_forget_optimizer(dml__ps_optimizer *o)
{
    dml__release(&o->memory, o->runs);
    for (int s = 0; s < DML__MAX_STATES; s++) dml__release(&o->memory, o->state[s]);
}

static dml_status dml__ps_prepare_optimizer(void *user, size_t begin, size_t count, const double *setup,
                                            size_t setup_count)
{
    dml__ps_optimizer *o = (dml__ps_optimizer *)user;
    size_t at = DML__PS_OPT_NUMBERS;
    if (setup_count < at) return DML_ERROR_MISMATCH; /* the workers have no trainers */
    o->optimizer.kind = (dml_optimizer_kind)setup[DML__PS_OPT_KIND];
    o->optimizer.nesterov = setup[DML__PS_OPT_NESTEROV] != 0;
    for (float *number;
         (number = dml_optimizer_number(&o->optimizer, (int)(at - DML__PS_OPT_NUMBERS), NULL)) != NULL;
         at++) {
        if (at >= setup_count) return DML_ERROR_MISMATCH;
        *number = (float)setup[at];
    }
    o->begin = begin;
    o->count = count;
    o->run_count = (setup_count - at) / 4;
    o->runs = (double *)dml__allocate_array(&o->memory, o->run_count + 1, 4 * sizeof(double));
    if (!o->runs) return DML_ERROR_MEMORY;
    memcpy(o->runs, setup + at, 4 * o->run_count * sizeof(double));
    for (int s = 0; s < dml_optimizer_states(&o->optimizer); s++) {
        o->state[s] = (float *)dml__allocate_array(&o->memory, count, sizeof(float));
        if (!o->state[s]) return DML_ERROR_MEMORY;
    }
    return DML_OK;
}

/* One run at a time; `rate` is the learning rate. */
static dml_status dml__ps_apply_optimizer(void *user, size_t begin, size_t count, float *w, const float *g,
                                          uint64_t step, double rate)
{
    const dml__ps_optimizer *o = (const dml__ps_optimizer *)user;
    dml_status status = DML_OK;
    for (size_t r = 0; r < o->run_count && status == DML_OK; r++) {
        const double *run = o->runs + 4 * r;
        const size_t first = (size_t)run[0] > begin ? (size_t)run[0] : begin;
        const size_t end = (size_t)run[1] < begin + count ? (size_t)run[1] : begin + count;
        if (first >= end) continue;
        dml_optimizer mine = o->optimizer;
        float *state[DML__MAX_STATES];
        mine.lr = (float)rate * (float)run[2];
        mine.weight_decay *= (float)run[3];
        for (int s = 0; s < DML__MAX_STATES; s++)
            state[s] = o->state[s] ? o->state[s] + (first - o->begin) : NULL;
        status = dml_optimizer_update(&mine, NULL, step, end - first, w + (first - begin),
                                      g + (first - begin), state);
    }
    return status;
}

DML_API dml_status dml_parameter_server_serve(dml_comm *comm, const dml_cluster *cluster,
                                              dml_ps_report *report)
{
    dml__ps_optimizer optimizer;
    dml_ps_options options;
    memset(&optimizer, 0, sizeof optimizer);
    memset(&options, 0, sizeof options);
    dml__memory_init(&optimizer.memory, NULL, NULL, 0);
    options.rule.prepare = dml__ps_prepare_optimizer;
    options.rule.apply = dml__ps_apply_optimizer;
    options.rule.user = &optimizer;
    const dml_status status = dml_ps_serve(comm, cluster, &options, report);
    dml__ps_forget_optimizer(&optimizer);
    return status;
}

/* ---- workers ---- */

/* NULL, or why a trainer's step can't be the servers'. */
static const char *dml__ps_trainer_fault(const dml_trainer *trainer, const dml_optimizer *optimizer)
{
    const dml_trainer_run run = dml_trainer_get_run(trainer);
    if (optimizer->kind == DML_LARS || optimizer->kind == DML_LAMB)
        return "LARS and LAMB look at whole parameters, of which a server has parts: take another optimizer";
    if (run.loss_scale > 0.0f)
        return "a loss scale lets a worker skip a step for which the others wait: train in bf16, or in f16 "
               "with "
               "loss_scale -1";
    if (dml_trainer_vectors(trainer) > DML_OPTIMIZER_STATE + dml_optimizer_states(&run.optimizer))
        return "a moving average of parameters that servers update: take options.average out";
    return NULL;
}

/* Writes the setup into `to` (NULL: only counts); returns how many numbers it has. */
static size_t dml__ps_write_setup(dml_trainer *trainer, const dml_optimizer *optimizer, double *to)
{
    const dml_node *p = dml_trainer_program(trainer)->graph->first_parameter;
    dml_optimizer o = *optimizer;
    size_t at = DML__PS_OPT_NUMBERS, run = 0;
    if (to) {
        to[DML__PS_OPT_KIND] = (double)o.kind;
        to[DML__PS_OPT_NESTEROV] = o.nesterov;
    }
    for (const float *number;
         (number = dml_optimizer_number(&o, (int)(at - DML__PS_OPT_NUMBERS), NULL)) != NULL; at++)
        if (to) to[at] = (double)*number;
    const dml_node *last = NULL;
    for (; p; p = p->next_parameter) {
        const size_t end = p->offset + dml_shape_count(&p->shape);
        if (p->frozen) continue;
        const bool same = last && last->lr_scale == p->lr_scale && last->decay_scale == p->decay_scale;
        if (!same) {
            run = at;
            at += 4;
        }
        last = p;
        if (!to) continue;
        if (!same) to[run] = (double)p->offset;
        to[run + 1] = (double)end;
        to[run + 2] = (double)p->lr_scale;
        to[run + 3] = (double)p->decay_scale;
    }
    return at;
}

DML__LOCAL dml_status dml__ps_attach(dml_ps **ps, dml_comm *comm, const dml_cluster *cluster,
                                     dml_trainer *trainer, const dml_optimizer *optimizer,
                                     const dml_ps_options *options)
{
    dml__memory memory;
    dml_ps_options o = *options;
    const char *fault = dml__ps_trainer_fault(trainer, optimizer);
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    if (fault) {
        dml__ps_fail(comm, DML_ERROR_UNSUPPORTED, "training by a parameter server: %s", fault);
        return dml__sync_failed(trainer, comm);
    }
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, n);
    o.setup_count = dml__ps_write_setup(trainer, optimizer, NULL);
    double *setup = (double *)dml__allocate_array(&memory, o.setup_count, sizeof *setup);
    if (setup) dml__ps_write_setup(trainer, optimizer, setup);
    o.setup = setup;
    if (w && setup)
        *ps = dml_ps_open(comm, cluster, n, w, &o);
    else
        dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
    dml__release(&memory, setup);
    return *ps ? dml__start_replicas(dml_ps_workers_comm(*ps), trainer) : dml__sync_failed(trainer, comm);
}

#endif

/* ---- dist/parameter_server_sync.c ---- */

#ifndef DML_DIST_PARAMETER_SERVER_SYNC_C
#define DML_DIST_PARAMETER_SERVER_SYNC_C

#include <string.h>

typedef struct dml__ps_sync {
    dml__memory memory;
    dml_comm *comm;
    dml_cluster cluster;
    dml_ps_options options;
    dml_ps *ps;
    uint64_t first; /* the trainer's step at which it was attached */
    double samples; /* that g is the mean of */
} dml__ps_sync;

static dml_status dml__ps_sync_start(void *user, dml_trainer *trainer)
{
    dml__ps_sync *sync = (dml__ps_sync *)user;
    if (!sync) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    const dml_optimizer optimizer = dml_trainer_get_run(trainer).optimizer;
    const dml_status status =
        dml__ps_attach(&sync->ps, sync->comm, &sync->cluster, trainer, &optimizer, &sync->options);
    sync->first = dml_trainer_steps(trainer);
    return status;
}

/* A worker that the others didn't wait for goes on at their step; this one is counted by the caller. */
static dml_status dml__ps_catch_up(const dml__ps_sync *sync, dml_trainer *trainer)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    run.steps = sync->first + dml_ps_clocks(sync->ps) - 1;
    return dml_trainer_set_run(trainer, &run);
}

static dml_status dml__ps_sync_begin(void *user, dml_trainer *trainer, double samples)
{
    (void)trainer;
    ((dml__ps_sync *)user)->samples = samples;
    return DML_OK;
}

/* The pull follows the push to each server, which answers when all workers' have come. */
static dml_status dml__ps_sync_update(void *user, dml_trainer *trainer)
{
    dml__ps_sync *sync = (dml__ps_sync *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, n);
    if (!g || !w) return dml_status_of(dml_trainer_context(trainer));
    dml_ps_set_rate(sync->ps, (double)dml_trainer_lr(trainer));
    /* A push that is applied by itself is a mean already. */
    const double weight = sync->options.consistency == DML_PS_SYNCHRONOUS ? sync->samples : 1;
    if (sync->samples > 0) dml_ps_push(sync->ps, g, 0, n, weight);
    dml_ps_clock(sync->ps);
    dml_ps_pull(sync->ps, w, 0, n);
    if (dml_ps_wait(sync->ps, DML_PS_ALL) != DML_OK || dml_comm_status(sync->comm) != DML_OK)
        return dml__sync_failed(trainer, sync->comm);
    const dml_status status = dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
    return status == DML_OK && sync->options.backup ? dml__ps_catch_up(sync, trainer) : status;
}

static void dml__ps_sync_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__ps_sync *sync = (dml__ps_sync *)user;
    if (!sync) return;
    dml_ps_close(sync->ps);
    dml__memory memory = sync->memory;
    dml__release(&memory, sync);
}

DML_API dml_sync dml_parameter_server_sync(dml_comm *comm, const dml_cluster *cluster,
                                           const dml_ps_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__ps_sync *state = (dml__ps_sync *)dml__allocate(&memory, sizeof *state);
    if (state) {
        state->memory = memory;
        state->comm = comm;
        state->cluster = *cluster;
        if (options) state->options = *options;
        state->options.vectors = 0;
    }
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = state;
    sync.start = dml__ps_sync_start;
    sync.begin = dml__ps_sync_begin;
    sync.update = dml__ps_sync_update;
    sync.destroy = dml__ps_sync_destroy;
    sync.ranks = cluster->workers;
    sync.rank = cluster->rank;
    return sync;
}

#endif

/* ---- dist/downpour_sync.c ---- */

#ifndef DML_DIST_DOWNPOUR_SYNC_C
#define DML_DIST_DOWNPOUR_SYNC_C

#include <string.h>

#define DML__DOWNPOUR_TAG 1 /* of worker 0's word that it is warm */

typedef struct dml__downpour {
    dml__memory memory;
    dml_comm *comm;
    dml_cluster cluster;
    dml_downpour_options options;
    dml_ps *ps;
    float *sum; /* (count): of the gradients since the last push */
    uint64_t steps, unpushed;
    bool others_wait; /* at worker 0, for the warm start */
    double rate;      /* the servers' learning rate */
} dml__downpour;

static dml_status dml__downpour_fetch(dml__downpour *d, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, n);
    if (!w) return dml_status_of(dml_trainer_context(trainer));
    dml_ps_pull(d->ps, w, 0, n);
    if (dml_ps_wait(d->ps, DML_PS_ALL) != DML_OK) return dml__sync_failed(trainer, d->comm);
    return dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
}

/* Worker 0 has trained alone for long enough; the others begin with what it has learnt. */
static dml_status dml__downpour_warm(dml__downpour *d, dml_trainer *trainer)
{
    dml_comm *workers = dml_ps_workers_comm(d->ps);
    uint8_t word = 1;
    if (d->cluster.rank > 0) {
        if (dml_comm_receive(workers, &word, 1, DML_U8, 0, DML__DOWNPOUR_TAG, NULL) != DML_OK)
            return dml__sync_failed(trainer, d->comm);
        return dml__downpour_fetch(d, trainer);
    }
    d->others_wait = false;
    for (int w = 1; w < d->cluster.workers; w++)
        if (dml_comm_send(workers, &word, 1, DML_U8, w, DML__DOWNPOUR_TAG) != DML_OK)
            return dml__sync_failed(trainer, d->comm);
    return DML_OK;
}

static dml_status dml__downpour_start(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    if (!d) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    const dml_downpour_options *o = &d->options;
    dml_optimizer optimizer = o->optimizer;
    dml_ps_options options;
    if (optimizer.kind == DML_SGD && optimizer.lr == 0.0f && optimizer.momentum == 0.0f)
        optimizer = dml_adagrad(dml_trainer_lr(trainer));
    if (dml__complete_optimizer(&optimizer, NULL) != DML_OK || o->fetch_every < 0 || o->push_every < 0 ||
        o->warm_steps < 0) {
        dml__ps_fail(
            d->comm, DML_ERROR_ARGUMENT,
            "Downpour with fetch_every %d, push_every %d, warm_steps %d and an optimizer of learning rate "
            "%g: none may be less than 0, nor may the optimizer's numbers be out of range",
            o->fetch_every, o->push_every, o->warm_steps, (double)optimizer.lr);
        return dml__sync_failed(trainer, d->comm);
    }
    d->rate = (double)optimizer.lr;
    memset(&options, 0, sizeof options);
    options.consistency = DML_PS_ASYNCHRONOUS;
    options.push_dtype = o->push_dtype;
    options.pull_dtype = o->pull_dtype;
    options.threshold = o->threshold;
    options.allocator = o->allocator;
    d->sum =
        (float *)dml__allocate_array(&d->memory, dml_trainer_count(trainer, DML_GRADIENTS), sizeof(float));
    if (!d->sum) {
        dml__ps_fail(d->comm, DML_ERROR_MEMORY, "no memory for Downpour");
        return dml__sync_failed(trainer, d->comm);
    }
    dml_status status = dml__ps_attach(&d->ps, d->comm, &d->cluster, trainer, &optimizer, &options);
    if (status != DML_OK || !o->warm_steps) return status;
    d->others_wait = d->cluster.rank == 0;
    return d->others_wait ? DML_OK : dml__downpour_warm(d, trainer);
}

static dml_status dml__downpour_push(dml__downpour *d, dml_trainer *trainer)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_ps_set_rate(d->ps, d->rate);
    dml_ps_push(d->ps, d->sum, 0, n, 1);
    dml_ps_clock(d->ps);
    if (dml_ps_wait(d->ps, DML_PS_ALL) != DML_OK) return dml__sync_failed(trainer, d->comm);
    memset(d->sum, 0, n * sizeof *d->sum);
    d->unpushed = 0;
    return DML_OK;
}

/* Whether this step, counted from 1, is one of every so many. */
static bool dml__downpour_due(uint64_t step, int every)
{
    return step % (uint64_t)(every ? every : 1) == 0;
}

static dml_status dml__downpour_update(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    for (size_t i = 0; i < n; i++) d->sum[i] += g[i];
    d->steps++;
    d->unpushed++;
    const bool fetches = dml__downpour_due(d->steps, d->options.fetch_every);
    dml_status status = fetches ? DML_OK : dml_trainer_update_range(trainer, 0, n);
    if (status == DML_OK && dml__downpour_due(d->steps, d->options.push_every))
        status = dml__downpour_push(d, trainer);
    if (status == DML_OK && fetches) status = dml__downpour_fetch(d, trainer);
    if (status == DML_OK && d->others_wait && d->steps >= (uint64_t)d->options.warm_steps)
        status = dml__downpour_warm(d, trainer);
    return status;
}

/* What wasn't pushed yet is, and nobody is left waiting. */
static void dml__downpour_destroy(void *user, dml_trainer *trainer)
{
    dml__downpour *d = (dml__downpour *)user;
    if (!d) return;
    if (d->ps && d->unpushed && dml_comm_status(d->comm) == DML_OK) dml__downpour_push(d, trainer);
    if (d->ps && d->others_wait && dml_comm_status(d->comm) == DML_OK) dml__downpour_warm(d, trainer);
    dml_ps_close(d->ps);
    dml__memory memory = d->memory;
    dml__release(&memory, d->sum);
    dml__release(&memory, d);
}

DML_API dml_sync dml_downpour_sync(dml_comm *comm, const dml_cluster *cluster,
                                   const dml_downpour_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__downpour *state = (dml__downpour *)dml__allocate(&memory, sizeof *state);
    if (state) {
        state->memory = memory;
        state->comm = comm;
        state->cluster = *cluster;
        if (options) state->options = *options;
    }
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = state;
    sync.start = dml__downpour_start;
    sync.update = dml__downpour_update;
    sync.destroy = dml__downpour_destroy;
    sync.ranks = cluster->workers;
    sync.rank = cluster->rank;
    return sync;
}

#endif
#endif

#endif
