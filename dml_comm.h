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
    X(F16, "f16", 2)

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

/* ---- comm/comm.h ---- */

/* comm.h: a communicator: ranks that know each other, and the collectives between them. */
#ifndef DML_COMM_COMM_H
#define DML_COMM_COMM_H

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

#endif

/* With dml.h included first: the sync strategies. */
#ifdef DML_H
#include "dml.h"

/* ---- dist/all_reduce_sync.h ---- */

/* all_reduce_sync.h: synchronous data parallelism: every rank trains its part of each global batch, and
   gradients are averaged while backward is still running. */
#ifndef DML_DIST_ALL_REDUCE_SYNC_H
#define DML_DIST_ALL_REDUCE_SYNC_H

typedef struct dml_all_reduce_sync_options {
    size_t bucket_bytes;     /* gradients are sent in pieces of at least this much; 0: 1 MiB */
    dml_allocator allocator; /* zero: malloc and free */
} dml_all_reduce_sync_options;

/* For dml_trainer_sync. At the start, parameters, the optimizer's state and numbers, the seed and the step
   number are broadcast from rank 0, which may have loaded a checkpoint. In each step, every range of g that
   has become final is put in a bucket; a full bucket starts its all-reduce at once. The gradient that is
   applied is the mean over all samples of the global batch, however unevenly the ranks share it, so N ranks
   compute what one rank would, up to rounding; with batch norms, where these ask for the statistics of all
   ranks (ops/op_norm.h). Source: Li et al., "PyTorch Distributed: experiences on
   accelerating data parallel training", VLDB 2020, section 3.2 (buckets, in the reverse order of the forward
   pass); Sergeev, Del Balso, "Horovod", 2018 (tensor fusion). The communicator stays the caller's, who closes
   it after the trainer is destroyed. NULL options: all defaults. */
DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options);

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

/* `bytes` zeroed bytes aligned to DML__ALIGNMENT, or NULL. Zero bytes gives a valid pointer. */
DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes);

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

DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * DML__ALIGNMENT) return NULL;
    void *pointer;
    if (memory->from_buffer) {
        pointer = dml__take_block(memory, bytes);
    } else {
        /* Over-allocate and remember the caller's pointer just below the aligned one. */
        void *raw =
            memory->allocator.allocate(memory->allocator.user, bytes + DML__ALIGNMENT + sizeof(void *));
        if (!raw) return NULL;
        char *start = (char *)raw + sizeof(void *);
        start += (size_t)(-(intptr_t)start & (DML__ALIGNMENT - 1));
        memcpy(start - sizeof(void *), &raw, sizeof raw);
        pointer = start;
    }
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

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

/* A number that no other thread of the process has, never 0. */
DML__LOCAL uintptr_t dml__thread_self(void);

/* The calling process, by which a child of fork() finds out that threads haven't come along. */
DML__LOCAL long dml__process_id(void);

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

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>

DML__LOCAL long dml__process_id(void)
{
    return (long)getpid();
}
#else
DML__LOCAL long dml__process_id(void)
{
    return 1; /* there is no fork() */
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

/* ---- comm/sha256.c ---- */

#ifndef DML_COMM_SHA256_C
#define DML_COMM_SHA256_C

/* ---- comm/sha256.h ---- */

/* sha256.h: SHA-256 and HMAC-SHA256, with which ranks prove to each other that they have the key. */
#ifndef DML_COMM_SHA256_H
#define DML_COMM_SHA256_H

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

/* ---- comm/wire.c ---- */

#ifndef DML_COMM_WIRE_C
#define DML_COMM_WIRE_C

/* ---- comm/wire.h ---- */

/* wire.h: what goes over a connection, byte by byte. Everything is little-endian and of fixed size. Encoders
   fill exactly the bytes given; decoders take any bytes at all and say false to what can't be ours. */
#ifndef DML_COMM_WIRE_H
#define DML_COMM_WIRE_H

#define DML__WIRE_VERSION 1

/* The operations. X(NAME, "name", takes data, takes a reduce op, what its root is called or NULL). The
   numbers go over the wire: append, never reorder. */
#define DML__COMM_OPERATION_LIST(X)                                                                          \
    X(ALL_REDUCE, "all_reduce", true, true, NULL)                                                            \
    X(BROADCAST, "broadcast", true, false, "root")                                                           \
    X(ALL_GATHER, "all_gather", true, false, NULL)                                                           \
    X(REDUCE_SCATTER, "reduce_scatter", true, true, NULL)                                                    \
    X(BARRIER, "barrier", false, false, NULL)                                                                \
    X(SEND, "send", true, false, "to")                                                                       \
    X(RECEIVE, "receive", true, false, "from")                                                               \
    X(RENDEZVOUS, "dml_comm_open", false, false, NULL)

typedef enum dml__comm_operation {
#define DML__COMM_OPERATION_ENUM(NAME, name, data, reduce, root) DML__CALL_##NAME,
    DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_ENUM)
#undef DML__COMM_OPERATION_ENUM
        DML__COMM_OPERATION_COUNT
} dml__comm_operation;

/* How a collective goes about it; part of what ranks must agree on. */
typedef enum dml__comm_algorithm {
    DML__BY_DIRECT,
    DML__BY_RING,
    DML__BY_CHAIN,
    DML__BY_DISSEMINATION
} dml__comm_algorithm;

/* One call, as every rank that takes part in it sees it. */
typedef struct dml__signature {
    dml__comm_operation operation;
    dml_dtype dtype;
    dml_reduce_op reduce;
    int root; /* or the other rank of a send or receive */
    uint64_t count;
} dml__signature;

/* "all_reduce(f32, 100, sum)", cut to the size of the buffer; returns it. */
#define DML__SIGNATURE_TEXT 96
DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT]);

/* In front of each piece of a collective. */
#define DML__PIECE_HEADER_BYTES 48
typedef struct dml__piece_header {
    dml__signature signature;
    dml__comm_algorithm algorithm;
    uint64_t sequence; /* how many collectives came before */
    uint64_t piece;    /* of this collective, between these two ranks */
    uint32_t bytes;    /* that follow */
} dml__piece_header;
DML__LOCAL void dml__encode_piece_header(const dml__piece_header *header,
                                         uint8_t out[DML__PIECE_HEADER_BYTES]);
DML__LOCAL bool dml__decode_piece_header(const uint8_t in[DML__PIECE_HEADER_BYTES],
                                         dml__piece_header *header);

/* Elements are little-endian on the wire, as they are in the memory of most machines; on the others they are
   converted, each way. `to` and `from` may be the same. */
static inline bool dml__wire_is_native(void)
{
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
    return __BYTE_ORDER__ != __ORDER_BIG_ENDIAN__;
#else
    const uint16_t one = 1;
    return *(const uint8_t *)&one == 1;
#endif
}
DML__LOCAL void dml__to_wire(void *to, const void *from, size_t count, dml_dtype dtype);
DML__LOCAL void dml__from_wire(void *to, const void *from, size_t count, dml_dtype dtype);

/* On the control channel. */
typedef enum dml__control_kind {
    DML__ABORT = 1, /* the job is over: rank is to blame, status and text say why */
    DML__WAITING,   /* gave up waiting for rank, in the call of signature */
    DML__GOODBYE,   /* closes its communicator in good order */
    DML__ADDRESSES  /* of ranks rank, rank + 1, ... */
} dml__control_kind;

#define DML__CONTROL_BYTES 512
#define DML__CONTROL_TEXT 480
#define DML__ADDRESSES_AT_ONCE 20
typedef struct dml__endpoint {
    uint8_t ip[16]; /* of IPv4, the first 4 */
    uint16_t port;
    uint8_t family; /* 4 or 6 */
} dml__endpoint;
typedef struct dml__control {
    dml__control_kind kind;
    int rank;
    dml_status status;
    dml__signature signature;
    char text[DML__CONTROL_TEXT];
    int endpoints;
    dml__endpoint endpoint[DML__ADDRESSES_AT_ONCE];
} dml__control;
DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES]);
DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control);

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

#include <stdio.h>
#include <string.h>

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
    for (int i = 0; i < 2; i++) b[i] = (unsigned char)(value >> 8 * i);
}

static inline void dml__store32(void *to, uint32_t value)
{
    unsigned char *b = (unsigned char *)to;
    for (int i = 0; i < 4; i++) b[i] = (unsigned char)(value >> 8 * i);
}

static inline void dml__store64(void *to, uint64_t value)
{
    unsigned char *b = (unsigned char *)to;
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(value >> 8 * i);
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

/* What the first four bytes of each kind of message are; the first three never change, so that any two
   versions can tell that they are two versions. */
typedef enum dml__wire_kind {
    DML__WIRE_HEADER = 'h',
    DML__WIRE_CONTROL = 'c',
    DML__WIRE_CHALLENGE = 'C',
    DML__WIRE_HELLO = 'H',
    DML__WIRE_WELCOME = 'W'
} dml__wire_kind;

/* A place in a message; each put or get moves it on. */
typedef struct dml__wire_writer {
    uint8_t *at;
} dml__wire_writer;
typedef struct dml__wire_reader {
    const uint8_t *at;
} dml__wire_reader;

static void dml__wire_put(dml__wire_writer *writer, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *writer->at++ = (uint8_t)(value >> (8 * i));
}

static void dml__wire_put_bytes(dml__wire_writer *writer, const void *data, size_t bytes)
{
    memcpy(writer->at, data, bytes);
    writer->at += bytes;
}

static uint64_t dml__wire_get(dml__wire_reader *reader, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

/* A 32-bit signed number. */
static int dml__wire_get_int(dml__wire_reader *reader)
{
    const uint32_t value = (uint32_t)dml__wire_get(reader, 4);
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

static void dml__wire_get_bytes(dml__wire_reader *reader, void *data, size_t bytes)
{
    memcpy(data, reader->at, bytes);
    reader->at += bytes;
}

/* Clears the message and begins it: "dml", its kind, the version. */
static dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, dml__wire_kind kind, int version)
{
    dml__wire_writer writer;
    memset(out, 0, bytes);
    writer.at = out;
    dml__wire_put_bytes(&writer, "dml", 3);
    dml__wire_put(&writer, (uint64_t)kind, 1);
    dml__wire_put(&writer, (uint64_t)version, 2);
    return writer;
}

/* The version, or -1 if this isn't such a message. */
static int dml__open_message(const uint8_t *in, dml__wire_kind kind, dml__wire_reader *reader)
{
    reader->at = in + 4;
    if (memcmp(in, "dml", 3) != 0 || in[3] != (uint8_t)kind) return -1;
    return (int)dml__wire_get(reader, 2);
}

/* ---- signatures: 16 bytes ---- */

static void dml__put_signature(dml__wire_writer *writer, const dml__signature *signature)
{
    dml__wire_put(writer, (uint64_t)signature->operation, 1);
    dml__wire_put(writer, (uint64_t)signature->dtype, 1);
    dml__wire_put(writer, (uint64_t)signature->reduce, 2);
    dml__wire_put(writer, (uint64_t)(uint32_t)signature->root, 4);
    dml__wire_put(writer, signature->count, 8);
}

static bool dml__get_signature(dml__wire_reader *reader, dml__signature *signature)
{
    const uint64_t operation = dml__wire_get(reader, 1), dtype = dml__wire_get(reader, 1),
                   reduce = dml__wire_get(reader, 2);
    signature->root = dml__wire_get_int(reader);
    signature->count = dml__wire_get(reader, 8);
    if (operation >= DML__COMM_OPERATION_COUNT || dtype >= DML__DTYPE_COUNT || reduce >= DML__REDUCE_OP_COUNT)
        return false;
    signature->operation = (dml__comm_operation)operation;
    signature->dtype = (dml_dtype)dtype;
    signature->reduce = (dml_reduce_op)reduce;
    return true;
}

DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT])
{
    static const char *const reduce_names[] = { "sum", "mean", "min", "max", "prod" };
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
        char last[32] = "";
        if (operations[operation].reduce)
            snprintf(last, sizeof last, ", %s", reduce < DML__REDUCE_OP_COUNT ? reduce_names[reduce] : "?");
        else if (operations[operation].root)
            snprintf(last, sizeof last, ", %s %d", operations[operation].root, signature->root);
        snprintf(text, DML__SIGNATURE_TEXT, "%s(%s, %llu%s)", operations[operation].name,
                 dml_dtype_name(signature->dtype), (unsigned long long)signature->count, last);
    }
    return text;
}

/* ---- headers ----
   0 "dml" 3 'h' 4 version:2 6 algorithm:2 8 signature:16 24 sequence:8 32 piece:8 40 bytes:4 44 zero:4 */

DML__LOCAL void dml__encode_piece_header(const dml__piece_header *header,
                                         uint8_t out[DML__PIECE_HEADER_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__PIECE_HEADER_BYTES, DML__WIRE_HEADER, DML__WIRE_VERSION);
    dml__wire_put(&writer, (uint64_t)header->algorithm, 2);
    dml__put_signature(&writer, &header->signature);
    dml__wire_put(&writer, header->sequence, 8);
    dml__wire_put(&writer, header->piece, 8);
    dml__wire_put(&writer, header->bytes, 4);
}

DML__LOCAL bool dml__decode_piece_header(const uint8_t in[DML__PIECE_HEADER_BYTES], dml__piece_header *header)
{
    dml__wire_reader reader;
    if (dml__open_message(in, DML__WIRE_HEADER, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t algorithm = dml__wire_get(&reader, 2);
    if (algorithm > DML__BY_DISSEMINATION) return false;
    header->algorithm = (dml__comm_algorithm)algorithm;
    if (!dml__get_signature(&reader, &header->signature)) return false;
    header->sequence = dml__wire_get(&reader, 8);
    header->piece = dml__wire_get(&reader, 8);
    header->bytes = (uint32_t)dml__wire_get(&reader, 4);
    return true;
}

/* ---- elements ---- */

DML__LOCAL void dml__to_wire(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    DML_ASSERT(size == 1 || size == 2 || size == 4 || size == 8);
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        uint16_t quarter;
        uint32_t half;
        uint64_t whole;
        switch (size) {
        case 2:
            memcpy(&quarter, in, 2);
            dml__store16(out, quarter);
            break;
        case 4:
            memcpy(&half, in, 4);
            dml__store32(out, half);
            break;
        case 8:
            memcpy(&whole, in, 8);
            dml__store64(out, whole);
            break;
        default: *out = *in; break;
        }
    }
}

DML__LOCAL void dml__from_wire(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    DML_ASSERT(size == 1 || size == 2 || size == 4 || size == 8);
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        uint16_t quarter;
        uint32_t half;
        uint64_t whole;
        switch (size) {
        case 2:
            quarter = dml__load16(in);
            memcpy(out, &quarter, 2);
            break;
        case 4:
            half = dml__load32(in);
            memcpy(out, &half, 4);
            break;
        case 8:
            whole = dml__load64(in);
            memcpy(out, &whole, 8);
            break;
        default: *out = *in; break;
        }
    }
}

/* ---- control ----
   0 "dml" 3 'c' 4 version:2 6 kind:1 7 status:1 8 rank:4 12 endpoints:4 16 signature:16
   32 text:480, or endpoints of family:1 zero:1 port:2 ip:16 */

DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__CONTROL_BYTES, DML__WIRE_CONTROL, DML__WIRE_VERSION);
    dml__wire_put(&writer, (uint64_t)control->kind, 1);
    dml__wire_put(&writer, (uint64_t)control->status, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)control->rank, 4);
    dml__wire_put(&writer, (uint64_t)control->endpoints, 4);
    dml__put_signature(&writer, &control->signature);
    if (control->kind == DML__ADDRESSES) {
        for (int i = 0; i < control->endpoints; i++) {
            dml__wire_put(&writer, control->endpoint[i].family, 2);
            dml__wire_put(&writer, control->endpoint[i].port, 2);
            dml__wire_put_bytes(&writer, control->endpoint[i].ip, 16);
        }
    } else {
        dml__wire_put_bytes(&writer, control->text, strlen(control->text));
    }
}

DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control)
{
    dml__wire_reader reader;
    memset(control, 0, sizeof *control);
    if (dml__open_message(in, DML__WIRE_CONTROL, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t kind = dml__wire_get(&reader, 1), status = dml__wire_get(&reader, 1);
    control->rank = dml__wire_get_int(&reader);
    const uint64_t endpoints = dml__wire_get(&reader, 4);
    if (kind < DML__ABORT || kind > DML__ADDRESSES || status >= DML__STATUS_COUNT ||
        endpoints > DML__ADDRESSES_AT_ONCE || !dml__get_signature(&reader, &control->signature))
        return false;
    control->kind = (dml__control_kind)kind;
    control->status = (dml_status)status;
    control->endpoints = (int)endpoints;
    if (kind != DML__ADDRESSES) {
        dml__wire_get_bytes(&reader, control->text, DML__CONTROL_TEXT - 1);
        /* Ends up in somebody's terminal. */
        for (char *c = control->text; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
        return true;
    }
    for (int i = 0; i < control->endpoints; i++) {
        const uint64_t family = dml__wire_get(&reader, 2);
        if (family != 4 && family != 6) return false;
        control->endpoint[i].family = (uint8_t)family;
        control->endpoint[i].port = (uint16_t)dml__wire_get(&reader, 2);
        dml__wire_get_bytes(&reader, control->endpoint[i].ip, 16);
    }
    return true;
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

/* ---- comm/socket.c ---- */

#ifndef DML_COMM_SOCKET_C
#define DML_COMM_SOCKET_C

/* ---- comm/socket.h ---- */

/* socket.h: stream sockets that never block, and the addresses they have. */
#ifndef DML_COMM_SOCKET_H
#define DML_COMM_SOCKET_H

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

/* ---- comm/transport.h ---- */

/* transport.h: how bytes get from one rank to another, whatever lies between them.

   A transport is pairs of byte streams, nothing more: two between each two ranks, one for the data of the
   collectives and one for control, so that an abort is never stuck behind a gigabyte of gradients. What the
   bytes mean is wire.h's business. TCP (tcp.c) is the first. In-process ranks and shared memory would be
   further tables of these calls, over ring buffers; MPI and NCCL are not transports but whole engines and
   plug in one floor higher, at dml__comm_engine in comm_internal.h. */
#ifndef DML_COMM_TRANSPORT_H
#define DML_COMM_TRANSPORT_H

typedef enum dml__channel { DML__CHANNEL_CONTROL, DML__CHANNEL_DATA, DML__CHANNEL_COUNT } dml__channel;

typedef struct dml__span {
    void *data;
    size_t bytes;
} dml__span;

/* What send and receive return when the other end is gone for good. */
#define DML__GONE (-1)

/* What wait returns: any of these, or 0 when the time ran out, or DML__GONE when waiting itself failed. */
#define DML__READY_SEND 1
#define DML__READY_RECEIVE 2
#define DML__READY_CONTROL 4

typedef struct dml__transport dml__transport;

typedef struct dml__transport_calls {
    const char *name;
    /* The spans one after the other, as many bytes as go without waiting: how many, or DML__GONE. */
    ptrdiff_t (*send)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                      int count);
    ptrdiff_t (*receive)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                         int count);
    /* Until data can go to rank `to`, data has come from rank `from` (-1: don't care), or control has come
       from any rank; at most `seconds`. */
    int (*wait)(dml__transport *transport, int to, int from, double seconds);
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
    int (*close)(int fd);
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
        close,
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

/* ---- comm/handshake.c ---- */

#ifndef DML_COMM_HANDSHAKE_C
#define DML_COMM_HANDSHAKE_C

/* ---- comm/handshake.h ---- */

/* handshake.h: one connection on its way from a stranger to a rank. It never waits: each step takes what has
   come and sends what there is room for, so that many go on side by side. */
#ifndef DML_COMM_HANDSHAKE_H
#define DML_COMM_HANDSHAKE_H

/* ---- comm/comm_internal.h ---- */

/* comm_internal.h: what a communicator is made of, and what its own files call in each other. */
#ifndef DML_COMM_COMM_INTERNAL_H
#define DML_COMM_COMM_INTERNAL_H

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

/* ---- comm/control.c ---- */

#ifndef DML_COMM_CONTROL_C
#define DML_COMM_CONTROL_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* How a job ends together. A rank that fails tells all others who is to blame and why before it returns, and
   they fail with the same sentence. A rank that dies is seen by all, as its control connections end. A rank
   that freezes is found at the first deadline: whoever's deadline that is announces whom it waits for, all
   who wait answer with theirs, and the chain of who waits for whom ends at the rank that says nothing. */

static dml__control dml__control_message(dml__control_kind kind)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = kind;
    return control;
}

DML__LOCAL bool dml__send_control(dml_comm *comm, int rank, const dml__control *control, double until)
{
    uint8_t bytes[DML__CONTROL_BYTES];
    size_t done = 0;
    dml__encode_control(control, bytes);
    while (done < sizeof bytes) {
        dml__span span;
        span.data = bytes + done;
        span.bytes = sizeof bytes - done;
        const ptrdiff_t sent =
            comm->transport->calls->send(comm->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (sent == DML__GONE) return false;
        done += (size_t)sent;
        if (sent) continue;
        /* No room for 512 bytes: the other end hasn't read for long. Looked at again every millisecond. */
        if (dml_seconds() >= until) return false;
        comm->transport->calls->wait(comm->transport, -1, -1, 1e-3);
    }
    return true;
}

static void dml__tell_all(dml_comm *comm, const dml__control *control)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank && !comm->peers[rank].gone) dml__send_control(comm, rank, control, 0);
}

DML__LOCAL dml_status dml__comm_fail(dml_comm *comm, int culprit, dml_status status, const char *format, ...)
{
    char text[DML__CONTROL_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    dml__mutex_lock(&comm->mutex);
    dml__fail(&comm->error, status, "%s", text);
    status = comm->error.status;
    dml__mutex_unlock(&comm->mutex);
    if (comm->aborted) return status;
    comm->aborted = true;
    dml__log(&comm->logger, DML_LOG_ERROR, "%s", text);
    if (!comm->transport) return status;
    dml__control control = dml__control_message(DML__ABORT);
    control.rank = culprit;
    control.status = status;
    memcpy(control.text, text, sizeof text);
    dml__tell_all(comm, &control);
    return status;
}

DML__LOCAL void dml__say_goodbye(dml_comm *comm)
{
    const dml__control control = dml__control_message(DML__GOODBYE);
    dml__tell_all(comm, &control);
}

static dml_status dml__take_control(dml_comm *comm, int rank, const dml__control *control)
{
    dml__peer *peer = &comm->peers[rank];
    switch (control->kind) {
    case DML__ABORT:
        return dml__comm_fail(comm, control->rank, control->status ? control->status : DML_ERROR_PEER, "%s",
                              control->text);
    case DML__WAITING:
        if (control->rank < 0 || control->rank >= comm->world) break;
        peer->gave_up = true;
        peer->waits_for = control->rank;
        peer->waits_in = control->signature;
        comm->somebody_gave_up = true;
        return DML_OK;
    case DML__GOODBYE: peer->goodbye = true; return DML_OK;
    case DML__ADDRESSES:
        if (rank == 0 && comm->take_addresses && comm->take_addresses(comm->take_addresses_user, control))
            return DML_OK;
        break;
    }
    return dml__comm_fail(comm, rank, DML_ERROR_FORMAT, "rank %d sent rank %d a message that makes no sense",
                          rank, comm->rank);
}

static dml_status dml__read_control_of(dml_comm *comm, int rank)
{
    dml__peer *peer = &comm->peers[rank];
    for (;;) {
        dml__span span;
        span.data = peer->control + peer->control_bytes;
        span.bytes = sizeof peer->control - peer->control_bytes;
        const ptrdiff_t got =
            comm->transport->calls->receive(comm->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (got == 0) return DML_OK;
        if (got == DML__GONE) {
            peer->gone = true;
            if (peer->goodbye) return DML_OK;
            return dml__comm_fail(comm, rank, DML_ERROR_PEER,
                                  "rank %d of %d died: its connection ended without a goodbye", rank,
                                  comm->world);
        }
        peer->control_bytes += (size_t)got;
        if (peer->control_bytes < sizeof peer->control) continue;
        peer->control_bytes = 0;
        dml__control control;
        if (!dml__decode_control(peer->control, &control))
            return dml__comm_fail(comm, rank, DML_ERROR_FORMAT,
                                  "rank %d sent rank %d something that is no message of this protocol", rank,
                                  comm->rank);
        const dml_status status = dml__take_control(comm, rank, &control);
        if (status) return status;
    }
}

DML__LOCAL dml_status dml__read_control(dml_comm *comm)
{
    dml_status status = DML_OK;
    for (int rank = 0; rank < comm->world && !status; rank++)
        if (rank != comm->rank && !comm->peers[rank].gone) status = dml__read_control_of(comm, rank);
    return status;
}

/* One wait of at most `seconds`, then what has been heard. */
static dml_status dml__listen_once(dml_comm *comm, int to, int from, double seconds)
{
    const int ready = comm->transport->calls->wait(comm->transport, to, from, seconds);
    if (ready == DML__GONE)
        return dml__comm_fail(comm, comm->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections",
                              comm->rank);
    return ready & DML__READY_CONTROL ? dml__read_control(comm) : DML_OK;
}

/* Follows who waits for whom from this rank on, and blames the end of the chain. */
static dml_status dml__blame(dml_comm *comm, const dml__signature *signature, int waits_for)
{
    char mine[DML__SIGNATURE_TEXT], other[DML__SIGNATURE_TEXT];
    int culprit = waits_for, steps = 0;
    while (culprit != comm->rank && comm->peers[culprit].gave_up && steps++ < comm->world)
        culprit = comm->peers[culprit].waits_for;
    if (culprit != comm->rank && !comm->peers[culprit].gave_up)
        return dml__comm_fail(
            comm, culprit, DML_ERROR_TIMEOUT,
            "rank %d of %d took no part in %s within %g s: it is frozen, busy with something "
            "else or unreachable",
            culprit, comm->world, dml__signature_text(signature, mine), comm->timeout);
    /* All wait in a circle: because of different calls, or because the network is slow. */
    for (int rank = 0; rank < comm->world; rank++) {
        const dml__peer *peer = &comm->peers[rank];
        if (rank != comm->rank && peer->gave_up && peer->waits_in.operation != signature->operation)
            return dml__comm_fail(comm, rank, DML_ERROR_MISMATCH,
                                  "rank %d called %s while rank %d called %s: they wait for each other", rank,
                                  dml__signature_text(&peer->waits_in, other), comm->rank,
                                  dml__signature_text(signature, mine));
    }
    return dml__comm_fail(
        comm, waits_for, DML_ERROR_TIMEOUT,
        "%s did not end within %g s, though no rank is missing: ranks %d and %d and others wait "
        "for each other; if the network is just slow, raise timeout_s",
        dml__signature_text(signature, mine), comm->timeout, comm->rank, waits_for);
}

static bool dml__all_gave_up(const dml_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank && !comm->peers[rank].gave_up) return false;
    return true;
}

/* This rank's deadline, or another's, has passed. */
static dml_status dml__give_up(dml_comm *comm, const dml__signature *signature, int waits_for)
{
    dml__control control = dml__control_message(DML__WAITING);
    control.rank = waits_for;
    control.signature = *signature;
    dml__tell_all(comm, &control);
    const double until = dml_seconds() + comm->grace;
    dml_status status = DML_OK;
    for (double left = comm->grace; left > 0 && !status && !dml__all_gave_up(comm);
         left = until - dml_seconds())
        status = dml__listen_once(comm, -1, -1, left);
    return status ? status : dml__blame(comm, signature, waits_for);
}

DML__LOCAL dml_status dml__comm_wait_ready(dml_comm *comm, const dml__signature *signature, int to, int from)
{
    /* What hasn't come is waited for before what can't go: on a ring either leads to the same rank. */
    const int waits_for = from >= 0 ? from : to;
    const double left = comm->deadline - dml_seconds();
    if (left <= 0 || comm->somebody_gave_up) return dml__give_up(comm, signature, waits_for);
    return dml__listen_once(comm, to, from, left);
}

DML__LOCAL dml_status dml__data_gone(dml_comm *comm, const dml__signature *signature, int rank)
{
    char text[DML__SIGNATURE_TEXT];
    const double until = dml_seconds() + comm->grace;
    dml_status status = dml__read_control(comm);
    /* Whoever closes a data connection has said why on the control connection, or is dead and that ends too.
     */
    for (double left = comm->grace; left > 0 && !status && !comm->peers[rank].gone;
         left = until - dml_seconds())
        status = dml__listen_once(comm, -1, -1, left);
    if (status) return status;
    return dml__comm_fail(comm, rank, DML_ERROR_PEER,
                          comm->peers[rank].goodbye
                              ? "rank %d closed its communicator while rank %d was in %s"
                              : "rank %d lost its connection to rank %d in %s",
                          rank, comm->rank, dml__signature_text(signature, text));
}

#endif

/* ---- comm/tcp.c ---- */

#ifndef DML_COMM_TCP_C
#define DML_COMM_TCP_C

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

static int dml__tcp_wait(dml__transport *transport, int to, int from, double seconds)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int world = tcp->comm->world;
    struct pollfd *data_out = &tcp->polls[world], *data_in = &tcp->polls[world + 1];
    dml__tcp_poll_entry(data_out, to < 0 ? -1 : tcp->fd[DML__CHANNEL_DATA][to], POLLOUT);
    dml__tcp_poll_entry(data_in, from < 0 ? -1 : tcp->fd[DML__CHANNEL_DATA][from], POLLIN);
    if (dml__socket_poll(tcp->calls, tcp->polls, (size_t)world + 2, seconds) < 0) return DML__GONE;
    int ready = 0;
    if (data_out->revents) ready |= DML__READY_SEND;
    if (data_in->revents) ready |= DML__READY_RECEIVE;
    for (int rank = 0; rank < world; rank++)
        if (tcp->polls[rank].revents) ready |= DML__READY_CONTROL;
    return ready;
}

DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd)
{
    tcp->fd[channel][rank] = fd;
    if (channel == DML__CHANNEL_CONTROL) dml__tcp_poll_entry(&tcp->polls[rank], fd, POLLIN);
}

/* What has come and was not read would turn the close into a reset, which could overtake what we sent last.
 */
static void dml__tcp_close_one(const dml__tcp *tcp, int fd)
{
    char dust[4096];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    for (int i = 0; i < 1024 && dml__socket_receive(tcp->calls, fd, &span, 1) > 0; i++) continue;
    tcp->calls->close(fd);
}

static void dml__tcp_release(dml__tcp *tcp)
{
    dml__memory *memory = &tcp->comm->memory;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) dml__release(memory, tcp->fd[channel]);
    dml__release(memory, tcp->polls);
    dml__release(memory, tcp);
}

static void dml__tcp_close(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; tcp->fd[channel] && rank < tcp->comm->world; rank++)
            if (tcp->fd[channel][rank] >= 0) dml__tcp_close_one(tcp, tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* Closes the descriptors and reads nothing: what has come is for the parent. */
static void dml__tcp_abandon(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; rank < tcp->comm->world; rank++)
            if (tcp->fd[channel][rank] >= 0) tcp->calls->close(tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

DML__LOCAL bool dml__tcp_open(dml_comm *comm, const dml__comm_settings *settings,
                              const dml__socket_calls *sockets)
{
    static const dml__transport_calls calls = { "tcp",         dml__tcp_send,  dml__tcp_receive,
                                                dml__tcp_wait, dml__tcp_close, dml__tcp_abandon };
    const size_t world = (size_t)comm->world;
    dml__tcp *tcp = (dml__tcp *)dml__allocate(&comm->memory, sizeof *tcp);
    if (!tcp)
        return dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory", comm->rank), false;
    tcp->transport.calls = &calls;
    tcp->comm = comm;
    tcp->calls = sockets;
    comm->transport = &tcp->transport;
    tcp->polls = (struct pollfd *)dml__allocate_array(&comm->memory, world + 2, sizeof *tcp->polls);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) {
        tcp->fd[channel] = (int *)dml__allocate_array(&comm->memory, world, sizeof **tcp->fd);
        for (size_t rank = 0; tcp->fd[channel] && rank < world; rank++) tcp->fd[channel][rank] = -1;
    }
    if (!tcp->polls || !tcp->fd[DML__CHANNEL_CONTROL] || !tcp->fd[DML__CHANNEL_DATA]) {
        dml__tcp_close(&tcp->transport);
        comm->transport = NULL;
        return dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory", comm->rank), false;
    }
    for (size_t rank = 0; rank < world + 2; rank++) tcp->polls[rank].fd = -1;
    return dml__meet(tcp, settings);
}

#endif

/* ---- comm/reduce_op.c ---- */

#ifndef DML_COMM_REDUCE_OP_C
#define DML_COMM_REDUCE_OP_C

/* Integers are added and multiplied as unsigned ones, which wrap around. */
#define DML__WRAPPED(type, unsigned_type, a, operator, b)                                                    \
    ((type)((unsigned_type)(a) operator(unsigned_type)(b)))

/* b != b: a NaN, which wins. */
#define DML__LESSER(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))
#define DML__GREATER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* into[i] = expression of a = into[i] and b = from[i]. The inner loop has a fixed length since that is what
   gcc's -O2 turns into vector instructions. */
#define DML__REDUCE_LOOP(type, expression)                                                                   \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
        for (; i + 16 <= count; i += 16)                                                                     \
            for (size_t j = i; j < i + 16; j++) {                                                            \
                const type a = into[j], b = from[j];                                                         \
                into[j] = expression;                                                                        \
            }                                                                                                \
        for (; i < count; i++) {                                                                             \
            const type a = into[i], b = from[i];                                                             \
            into[i] = expression;                                                                            \
        }                                                                                                    \
    } while (0)

#define DML__REDUCE_TYPE(suffix, type, sum, product)                                                         \
    static void dml__reduce_##suffix(type *DML__RESTRICT into, const type *DML__RESTRICT from, size_t count, \
                                     dml_reduce_op op)                                                       \
    {                                                                                                        \
        switch (op) {                                                                                        \
        case DML_SUM:                                                                                        \
        case DML_MEAN: DML__REDUCE_LOOP(type, sum); break;                                                   \
        case DML_PROD: DML__REDUCE_LOOP(type, product); break;                                               \
        case DML_MIN: DML__REDUCE_LOOP(type, DML__LESSER(a, b)); break;                                      \
        case DML_MAX: DML__REDUCE_LOOP(type, DML__GREATER(a, b)); break;                                     \
        default: break;                                                                                      \
        }                                                                                                    \
    }                                                                                                        \
    static void dml__mean_##suffix(type *data, size_t count, type ranks)                                     \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++) data[i] = (type)(data[i] / ranks);                                \
    }

DML__REDUCE_TYPE(f32, float, a + b, a *b)
DML__REDUCE_TYPE(f64, double, a + b, a *b)
DML__REDUCE_TYPE(i32, int32_t, DML__WRAPPED(int32_t, uint32_t, a, +, b),
                 DML__WRAPPED(int32_t, uint32_t, a, *, b))
DML__REDUCE_TYPE(i64, int64_t, DML__WRAPPED(int64_t, uint64_t, a, +, b),
                 DML__WRAPPED(int64_t, uint64_t, a, *, b))

#undef DML__REDUCE_TYPE
#undef DML__REDUCE_LOOP
#undef DML__GREATER
#undef DML__LESSER
#undef DML__WRAPPED

DML__LOCAL void dml__reduce_into(void *into, const void *from, size_t count, dml_dtype dtype,
                                 dml_reduce_op op)
{
    switch (dtype) {
    case DML_F32: dml__reduce_f32((float *)into, (const float *)from, count, op); break;
    case DML_F64: dml__reduce_f64((double *)into, (const double *)from, count, op); break;
    case DML_I32: dml__reduce_i32((int32_t *)into, (const int32_t *)from, count, op); break;
    case DML_I64: dml__reduce_i64((int64_t *)into, (const int64_t *)from, count, op); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

DML__LOCAL void dml__finish_mean(void *data, size_t count, dml_dtype dtype, int ranks)
{
    switch (dtype) {
    case DML_F32: dml__mean_f32((float *)data, count, (float)ranks); break;
    case DML_F64: dml__mean_f64((double *)data, count, (double)ranks); break;
    case DML_I32: dml__mean_i32((int32_t *)data, count, (int32_t)ranks); break;
    case DML_I64: dml__mean_i64((int64_t *)data, count, (int64_t)ranks); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

#endif

/* ---- comm/exchange.c ---- */

#ifndef DML_COMM_EXCHANGE_C
#define DML_COMM_EXCHANGE_C

/* One direction of a plan: a row of pieces, each a header and then a payload. */
typedef struct dml__flow {
    uint64_t piece, pieces; /* the one that moves now; of how many */
    size_t done;            /* bytes of it that have moved, header included */
    uint8_t header[DML__PIECE_HEADER_BYTES];
} dml__flow;

/* Where a piece lies. */
typedef struct dml__extent {
    char *data;
    size_t count, bytes;
} dml__extent;

static uint64_t dml__segment_elements(const dml_comm *comm, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    return size ? comm->segment_bytes / size : 1;
}

DML__LOCAL uint64_t dml__pieces_of(const dml_comm *comm, uint64_t elements, dml_dtype dtype)
{
    const uint64_t segment = dml__segment_elements(comm, dtype);
    return elements ? (elements - 1) / segment + 1 : 1;
}

/* Piece `piece` of the row. Chunk c begins at c * (count / chunks) + min(c, count % chunks): the first of
   them are longer by one. */
static dml__extent dml__locate(const dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                               uint64_t piece, bool receiving)
{
    const uint64_t step = piece / plan->pieces + (receiving && !plan->chain);
    const uint64_t chunk = (plan->first + plan->chunks * 2 - step % plan->chunks) % plan->chunks;
    const uint64_t part = plan->count / plan->chunks, longer = plan->count % plan->chunks;
    const uint64_t begin = chunk * part + (chunk < longer ? chunk : longer);
    const uint64_t elements = part + (chunk < longer);
    const uint64_t segment = dml__segment_elements(comm, signature->dtype);
    const uint64_t skip = piece % plan->pieces * segment;
    const uint64_t left = skip < elements ? elements - skip : 0;
    const size_t size = dml_dtype_size(signature->dtype);
    dml__extent extent;
    extent.count = (size_t)(left < segment ? left : segment);
    extent.bytes = extent.count * size;
    extent.data = extent.count ? plan->data + (begin + skip) * size : NULL;
    return extent;
}

static dml_status dml__send_some(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                 dml__flow *flow, bool *moved)
{
    const dml__extent extent = dml__locate(comm, signature, plan, flow->piece, false);
    if (flow->done == 0) {
        dml__piece_header header;
        header.signature = *signature;
        header.algorithm = plan->algorithm;
        header.sequence = comm->sequence;
        header.piece = flow->piece;
        header.bytes = (uint32_t)extent.bytes;
        dml__encode_piece_header(&header, flow->header);
        if (comm->outgoing) dml__to_wire(comm->outgoing, extent.data, extent.count, signature->dtype);
    }
    char *const source = comm->outgoing ? comm->outgoing : extent.data;
    const size_t of_header = flow->done < sizeof flow->header ? flow->done : sizeof flow->header;
    const size_t of_data = flow->done - of_header;
    dml__span spans[2];
    spans[0].data = flow->header + of_header;
    spans[0].bytes = sizeof flow->header - of_header;
    spans[1].data = source ? source + of_data : NULL;
    spans[1].bytes = extent.bytes - of_data;
    const ptrdiff_t sent =
        comm->transport->calls->send(comm->transport, plan->to, DML__CHANNEL_DATA, spans, 2);
    if (sent == DML__GONE) return dml__data_gone(comm, signature, plan->to);
    *moved = *moved || sent > 0;
    flow->done += (size_t)sent;
    if (flow->done == sizeof flow->header + extent.bytes) {
        flow->piece++;
        flow->done = 0;
    }
    return DML_OK;
}

/* Whether two ranks' calls are the two ends of one. */
static bool dml__signatures_match(const dml__signature *mine, const dml__signature *theirs, int me)
{
    if (mine->count != theirs->count) return false;
    if (mine->operation == DML__CALL_RECEIVE)
        return theirs->operation == DML__CALL_SEND && theirs->root == me && mine->dtype == theirs->dtype;
    return mine->operation == theirs->operation && mine->dtype == theirs->dtype &&
           mine->reduce == theirs->reduce && mine->root == theirs->root;
}

/* Checks the header of a piece against what this rank is doing. */
static dml_status dml__check_header(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                    const dml__flow *flow, size_t bytes)
{
    dml__piece_header header;
    if (!dml__decode_piece_header(flow->header, &header))
        return dml__comm_fail(comm, plan->from, DML_ERROR_FORMAT,
                              "rank %d sent rank %d something that is no message of this protocol",
                              plan->from, comm->rank);
    char mine[DML__SIGNATURE_TEXT], theirs[DML__SIGNATURE_TEXT];
    if (!dml__signatures_match(signature, &header.signature, comm->rank))
        return dml__comm_fail(
            comm, plan->from, DML_ERROR_MISMATCH, "rank %d called %s while rank %d called %s", plan->from,
            dml__signature_text(&header.signature, theirs), comm->rank, dml__signature_text(signature, mine));
    if (header.sequence != comm->sequence)
        return dml__comm_fail(
            comm, plan->from, DML_ERROR_MISMATCH,
            "rank %d called %s after %llu collectives, rank %d after %llu: one of them left out a call",
            plan->from, dml__signature_text(&header.signature, theirs), (unsigned long long)header.sequence,
            comm->rank, (unsigned long long)comm->sequence);
    if (header.algorithm != plan->algorithm || header.piece != flow->piece || header.bytes != bytes)
        return dml__comm_fail(comm, plan->from, DML_ERROR_MISMATCH,
                              "rank %d and rank %d cut %s into different pieces", plan->from, comm->rank,
                              dml__signature_text(signature, mine));
    return DML_OK;
}

static dml_status dml__receive_some(dml_comm *comm, const dml__signature *signature, const dml__plan *plan,
                                    dml__flow *flow, bool *moved)
{
    const dml__extent extent = dml__locate(comm, signature, plan, flow->piece, true);
    const uint64_t step = flow->piece / plan->pieces;
    const bool reduce = step < plan->reduce_steps;
    char *const target = reduce ? comm->segment : extent.data;
    const size_t of_header = flow->done < sizeof flow->header ? flow->done : sizeof flow->header;
    const size_t of_data = flow->done - of_header;
    /* Header and payload in one call, since what the payload's size must be is known beforehand. If the
       header then turns out wrong, the data is lost, as it is after any error. */
    dml__span spans[2];
    spans[0].data = flow->header + of_header;
    spans[0].bytes = sizeof flow->header - of_header;
    spans[1].data = target ? target + of_data : NULL;
    spans[1].bytes = extent.bytes - of_data;
    const ptrdiff_t got =
        comm->transport->calls->receive(comm->transport, plan->from, DML__CHANNEL_DATA, spans, 2);
    if (got == DML__GONE) return dml__data_gone(comm, signature, plan->from);
    *moved = *moved || got > 0;
    flow->done += (size_t)got;
    if (of_header < sizeof flow->header && flow->done >= sizeof flow->header) {
        const dml_status status = dml__check_header(comm, signature, plan, flow, extent.bytes);
        if (status) return status;
    }
    if (flow->done < sizeof flow->header + extent.bytes) return DML_OK;
    if (comm->outgoing) dml__from_wire(target, target, extent.count, signature->dtype);
    if (reduce && extent.count) {
        dml__reduce_into(extent.data, comm->segment, extent.count, signature->dtype, signature->reduce);
        if (signature->reduce == DML_MEAN && step + 1 == plan->reduce_steps)
            dml__finish_mean(extent.data, extent.count, signature->dtype, comm->world);
    }
    flow->piece++;
    flow->done = 0;
    return DML_OK;
}

DML__LOCAL dml_status dml__run_plan(dml_comm *comm, const dml__signature *signature, const dml__plan *plan)
{
    dml__flow out, in;
    out.piece = in.piece = 0;
    out.done = in.done = 0;
    out.pieces = plan->send_steps * plan->pieces;
    in.pieces = plan->receive_steps * plan->pieces;
    while (out.piece < out.pieces || in.piece < in.pieces) {
        const bool sending =
            out.piece < out.pieces && (out.piece < plan->lead || out.piece - plan->lead < in.piece);
        const bool receiving = in.piece < in.pieces;
        bool moved = false;
        dml_status status = DML_OK;
        if (sending) status = dml__send_some(comm, signature, plan, &out, &moved);
        if (!status && receiving) status = dml__receive_some(comm, signature, plan, &in, &moved);
        if (!status && !moved)
            status =
                dml__comm_wait_ready(comm, signature, sending ? plan->to : -1, receiving ? plan->from : -1);
        if (status) return status;
    }
    return DML_OK;
}

#endif

/* ---- comm/collectives.c ---- */

#ifndef DML_COMM_COLLECTIVES_C
#define DML_COMM_COLLECTIVES_C

#include <string.h>

/* The ring engine. Every collective is one or a few plans: which chunks go where in which order is worked out
   here; exchange.c then moves the pieces. */

/* A ring of all ranks, each sending to the next, in as many steps each way. While a piece of one step is
   under way, the pieces of the step before it are already going on to the next rank. */
static dml__plan dml__ring_plan(const dml_comm *comm, void *data, uint64_t count, dml_dtype dtype)
{
    const uint64_t world = (uint64_t)comm->world;
    dml__plan plan;
    memset(&plan, 0, sizeof plan);
    plan.algorithm = DML__BY_RING;
    plan.data = (char *)data;
    plan.count = count;
    plan.to = (comm->rank + 1) % comm->world;
    plan.from = (comm->rank + comm->world - 1) % comm->world;
    plan.chunks = world;
    plan.first = (uint64_t)comm->rank;
    plan.send_steps = plan.receive_steps = world - 1;
    plan.pieces = dml__pieces_of(comm, count / world + (count % world != 0), dtype);
    plan.lead = plan.pieces;
    return plan;
}

/* Ring all-reduce: world - 1 steps of reduce-scatter, then world - 1 of all-gather. With 3 ranks, each
   holding chunks a, b, c, an arrow saying what the rank on its left sends to the one on its right, and a
   capital what is complete:

       step      rank 0 -> rank 1     rank 1 -> rank 2     rank 2 -> rank 0
       0         a0                   b1                   c2                   reduced into the receiver's
       1         c2+c0                a0+a1                b1+b2
       2         B                    C                    A                    replace the receiver's
       3         A                    B                    C

   Each chunk is summed by one rank in one order, so all get the same bits. Moves 2 (n - 1) / n of the data
   through each rank, the least there is. Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms
   for clusters of workstations", JPDC 69 (2009). */
static dml_status dml__ring_all_reduce(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    dml__plan plan = dml__ring_plan(comm, call->in, signature->count, signature->dtype);
    plan.send_steps *= 2;
    plan.receive_steps *= 2;
    plan.reduce_steps = (uint64_t)comm->world - 1;
    return dml__run_plan(comm, signature, &plan);
}

/* The first half of it, begun one rank earlier so that rank r ends with chunk r. */
static dml_status dml__ring_reduce_scatter(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    dml__plan plan =
        dml__ring_plan(comm, call->in, signature->count * (uint64_t)comm->world, signature->dtype);
    plan.first = (uint64_t)plan.from;
    plan.reduce_steps = (uint64_t)comm->world - 1;
    const dml_status status = dml__run_plan(comm, signature, &plan);
    const size_t bytes = (size_t)signature->count * dml_dtype_size(signature->dtype);
    if (!status && bytes) memmove(call->out, (char *)call->in + (size_t)comm->rank * bytes, bytes);
    return status;
}

/* The second half of it. */
static dml_status dml__ring_all_gather(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    const size_t bytes = (size_t)signature->count * dml_dtype_size(signature->dtype);
    char *const place = (char *)call->out + (size_t)comm->rank * bytes;
    if (bytes && place != (char *)call->in) memcpy(place, call->in, bytes);
    const dml__plan plan =
        dml__ring_plan(comm, call->out, signature->count * (uint64_t)comm->world, signature->dtype);
    return dml__run_plan(comm, signature, &plan);
}

/* One stream of pieces from rank to rank: from -1 this rank begins it, to -1 it ends here. */
static dml_status dml__run_chain(dml_comm *comm, const dml__comm_call *call, dml__comm_algorithm algorithm,
                                 int from, int to)
{
    dml__plan plan;
    memset(&plan, 0, sizeof plan);
    plan.algorithm = algorithm;
    plan.data = (char *)call->in;
    plan.count = call->signature.count;
    plan.to = to;
    plan.from = from;
    plan.chunks = 1;
    plan.send_steps = to >= 0;
    plan.receive_steps = from >= 0;
    plan.pieces = dml__pieces_of(comm, call->signature.count, call->signature.dtype);
    plan.lead = from >= 0 ? 0 : plan.pieces;
    plan.chain = true;
    return dml__run_plan(comm, &call->signature, &plan);
}

/* Broadcast: a chain from the root through all ranks in a ring, each handing on a piece as soon as it has it.
   With p pieces it takes p + n - 2 piece times, for long messages the least there is.

       time      root -> +1      +1 -> +2      +2 -> +3
       0         p0
       1         p1              p0
       2         p2              p1            p0       */
static dml_status dml__chain_broadcast(dml_comm *comm, const dml__comm_call *call)
{
    const int root = call->signature.root, next = (comm->rank + 1) % comm->world;
    const int before = (comm->rank + comm->world - 1) % comm->world;
    return dml__run_chain(comm, call, DML__BY_CHAIN, comm->rank == root ? -1 : before,
                          next == root ? -1 : next);
}

/* Dissemination barrier: in round k each rank tells the one 2^k further, and hears from the one 2^k before,
   that it has come. After ceil(log2 n) rounds each has heard, through others, from all. Source: Hensgen,
   Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988). */
static dml_status dml__dissemination_barrier(dml_comm *comm, const dml__comm_call *call)
{
    dml_status status = DML_OK;
    for (int distance = 1; distance < comm->world && !status; distance *= 2) {
        dml__plan plan = dml__ring_plan(comm, NULL, 0, DML_U8);
        plan.algorithm = DML__BY_DISSEMINATION;
        plan.to = (comm->rank + distance) % comm->world;
        plan.from = (comm->rank + comm->world - distance) % comm->world;
        plan.send_steps = plan.receive_steps = 1;
        status = dml__run_plan(comm, &call->signature, &plan);
    }
    return status;
}

static dml_status dml__ring_run(dml_comm *comm, const dml__comm_call *call)
{
    switch (call->signature.operation) {
    case DML__CALL_ALL_REDUCE: return dml__ring_all_reduce(comm, call);
    case DML__CALL_BROADCAST: return dml__chain_broadcast(comm, call);
    case DML__CALL_ALL_GATHER: return dml__ring_all_gather(comm, call);
    case DML__CALL_REDUCE_SCATTER: return dml__ring_reduce_scatter(comm, call);
    case DML__CALL_BARRIER: return dml__dissemination_barrier(comm, call);
    case DML__CALL_SEND: return dml__run_chain(comm, call, DML__BY_DIRECT, -1, call->signature.root);
    case DML__CALL_RECEIVE: return dml__run_chain(comm, call, DML__BY_DIRECT, call->signature.root, -1);
    default: DML_ASSERT(0 && "an operation without an algorithm"); return DML_ERROR_STATE;
    }
}

DML__LOCAL const dml__comm_engine *dml__ring_engine(void)
{
    static const dml__comm_engine engine = { "ring", dml__ring_run };
    return &engine;
}

#endif

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

static bool dml__read_rank(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->rank = options->rank;
    settings->world = options->world_size;
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
    settings->world = 1;
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
    if (!dml__parse_whole(world, 1, DML__MOST_RANKS, &settings->world)) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: WORLD_SIZE is \"%s\", not a whole number from 1",
                  world);
        return false;
    }
    if (!dml__parse_whole(rank, 0, settings->world - 1, &settings->rank)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: RANK is \"%s\", not a whole number from 0 to WORLD_SIZE - 1, which is %d",
                  rank, settings->world - 1);
        return false;
    }
    return true;
}

static bool dml__read_place(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *address = dml__environment("MASTER_ADDR"), *port = dml__environment("MASTER_PORT");
    settings->master_addr = options->master_addr ? options->master_addr : address ? address : "127.0.0.1";
    settings->master_port = options->master_port ? options->master_port : 29500;
    settings->bind_addr = options->bind_addr;
    if (options->master_port < 0 || options->master_port > 65535) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: master_port is %d, not 1 to 65535",
                  options->master_port);
        return false;
    }
    if (!options->master_port && port && !dml__parse_whole(port, 1, 65535, &settings->master_port)) {
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
    settings->timeout = options->timeout_s;
    if (options->timeout_s == 0 && !text) settings->timeout = 30;
    if (options->timeout_s == 0 && text) {
        char *end;
        settings->timeout = strtod(text, &end);
        if (*end || !(settings->timeout > 0) || !(settings->timeout <= 1e9)) {
            dml__fail(error, DML_ERROR_ARGUMENT,
                      "dml_comm_open: DML_TIMEOUT is \"%s\", not a number of seconds above 0", text);
            return false;
        }
    }
    if (settings->timeout > 0 && settings->timeout <= 1e9) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: timeout_s is %g, not a number of seconds above 0",
              options->timeout_s);
    return false;
}

static bool dml__read_trust(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *insecure = dml__environment("DML_INSECURE");
    settings->key = options->key && *options->key ? options->key : dml__environment("DML_KEY");
    settings->allow_insecure = options->allow_insecure || (insecure && strcmp(insecure, "1") == 0);
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
    settings->segment_bytes = options->segment_bytes ? options->segment_bytes : (size_t)256 << 10;
    settings->max_requests = options->max_requests ? options->max_requests : 256;
    if (settings->segment_bytes < 8 || settings->segment_bytes > (size_t)1 << 30) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: segment_bytes is %llu, not 8 to 2^30",
                  (unsigned long long)settings->segment_bytes);
        return false;
    }
    if (settings->max_requests < 1 || settings->max_requests > 1 << 20) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: max_requests is %d, not 1 to 2^20",
                  settings->max_requests);
        return false;
    }
    return true;
}

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error)
{
    memset(settings, 0, sizeof *settings);
    return dml__read_rank(options, settings, error) && dml__read_place(options, settings, error) &&
           dml__read_timeout(options, settings, error) && dml__read_trust(options, settings, error) &&
           dml__read_sizes(options, settings, error);
}

#endif

/* ---- comm/rendezvous.c ---- */

#ifndef DML_COMM_RENDEZVOUS_C
#define DML_COMM_RENDEZVOUS_C

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

typedef struct dml__meeting {
    dml__tcp *tcp;
    dml_comm *comm;
    const dml__comm_settings *settings;
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
} dml__meeting;

/* ---- where ---- */

static bool dml__find_master(dml__meeting *meeting)
{
    const dml__comm_settings *settings = meeting->settings;
    const char *message = "";
    dml_comm *comm = meeting->comm;
    meeting->master_count = dml__resolve_host(settings->master_addr, (uint16_t)settings->master_port,
                                              meeting->masters, DML__MASTERS, &message);
    if (!meeting->master_count) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_NETWORK,
                       "rank %d can't find the address of master_addr \"%s\": %s", comm->rank,
                       settings->master_addr, message);
        return false;
    }
    if (!settings->bind_addr) return true;
    meeting->bound = dml__interface_address(settings->bind_addr, meeting->masters[0].storage.ss_family,
                                            &meeting->bind_address) ||
                     dml__resolve_host(settings->bind_addr, 0, &meeting->bind_address, 1, &message) == 1;
    if (!meeting->bound)
        dml__comm_fail(
            comm, comm->rank, DML_ERROR_NETWORK,
            "rank %d can't use bind_addr \"%s\": it is no network interface with an address and no name: %s",
            comm->rank, settings->bind_addr, message);
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
    const dml__comm_settings *settings = meeting->settings;
    if (settings->key || settings->allow_insecure || dml__stays_on_loopback(meeting)) return true;
    dml__comm_fail(
        meeting->comm, meeting->comm->rank, DML_ERROR_ARGUMENT,
        "rank %d won't leave loopback without a key (master_addr \"%s\"%s%s%s): give all ranks the same "
        "DML_KEY or options.key, or, where anyone on the network may join the job, DML_INSECURE=1 or "
        "options.allow_insecure",
        meeting->comm->rank, settings->master_addr, settings->bind_addr ? ", bind_addr \"" : "",
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
    dml__comm_fail(meeting->comm, meeting->comm->rank, DML_ERROR_NETWORK, "rank 0 can't listen on %s: %s",
                   dml__address_text(&meeting->listens_at, text),
                   error == EADDRINUSE ? "the port is in use; choose another master_port (MASTER_PORT)"
                                       : strerror(error));
    return false;
}

/* dml__identity.port: the other ranks listen on the address by which they reached rank 0. */
static int dml__own_port(void *user, int fd)
{
    dml__meeting *meeting = (dml__meeting *)user;
    if (meeting->comm->rank + 1 == meeting->comm->world) return 0; /* nobody will come */
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

/* dml__comm.take_addresses, on the other ranks. */
static bool dml__take_addresses(void *user, const dml__control *control)
{
    dml__meeting *meeting = (dml__meeting *)user;
    const int below = meeting->comm->rank;
    if (control->rank < 1 || control->rank > below || control->endpoints > below - control->rank)
        return false;
    for (int i = 0; i < control->endpoints; i++)
        dml__from_endpoint(&control->endpoint[i], &meeting->addresses[control->rank + i]);
    meeting->addresses_done = control->rank + control->endpoints == below;
    return true;
}

/* Rank 0: to each rank the addresses of ranks 1 .. rank - 1, of which rank 1 gets an empty list: go on. */
static bool dml__send_addresses(dml__meeting *meeting)
{
    dml_comm *comm = meeting->comm;
    for (int to = 1; to < comm->world; to++) {
        int first = 1;
        do {
            dml__control control;
            memset(&control, 0, sizeof control);
            control.kind = DML__ADDRESSES;
            control.rank = first;
            while (first < to && control.endpoints < DML__ADDRESSES_AT_ONCE)
                dml__to_endpoint(&meeting->addresses[first++], &control.endpoint[control.endpoints++]);
            if (!dml__send_control(comm, to, &control, meeting->deadline)) {
                const dml_status status = dml__read_control(comm);
                if (!status)
                    dml__comm_fail(comm, to, DML_ERROR_PEER, "rank %d of %d left during the rendezvous", to,
                                   comm->world);
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
            meeting->comm->strangers++;
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
        dml__comm_fail(meeting->comm, accepted ? shake->hello_in.from : meeting->comm->rank,
                       DML_ERROR_MISMATCH, "%s", text);
        return false;
    }
    meeting->comm->strangers++;
    memcpy(meeting->note, text, sizeof text);
    dml__log(&meeting->comm->logger, DML_LOG_WARNING, "a connection was turned away: %s", text);
    shake->stage = DML__SHAKE_UNUSED;
    return true;
}

static void dml__broken(dml__meeting *meeting, dml__handshake *shake, bool accepted, double now)
{
    dml__close_shake(meeting, shake);
    if (accepted) {
        shake->stage = DML__SHAKE_UNUSED;
        meeting->comm->strangers++;
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
    memcpy(polls + 1 + meeting->shake_count, meeting->tcp->polls,
           (size_t)meeting->comm->world * sizeof *polls);
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
    dml_comm *comm = meeting->comm;
    const size_t polled = 1 + (size_t)meeting->shake_count + (size_t)comm->world;
    const double left = dml__prepare_polls(meeting, now);
    if (dml__poll_meeting(meeting, polled, left) < 0) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections: %s",
                       comm->rank, strerror(errno));
        return false;
    }
    now = dml_seconds();
    for (int rank = 0; rank < comm->world; rank++)
        if (meeting->polls[1 + meeting->shake_count + rank].revents && dml__read_control(comm)) return false;
    for (int i = 0; i < meeting->shake_count; i++)
        if (!dml__advance(meeting, i, meeting->polls[1 + i].revents != 0, now)) return false;
    if (meeting->polls[0].revents) dml__accept_visitors(meeting, now);
    return true;
}

static bool dml__all_have_come(const dml__meeting *meeting)
{
    for (int rank = 1; rank < meeting->comm->world; rank++)
        if (meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] < 0) return false;
    return true;
}

/* "rank 2" or "ranks 2, 3, 5 and more": those without a connection. The first of them, or -1. */
static int dml__missing_ranks(const dml__meeting *meeting, char *text, size_t bytes)
{
    int first = -1, count = 0;
    char list[96] = "";
    for (int rank = 0; rank < meeting->comm->world; rank++) {
        const bool complete = meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] >= 0 &&
                              (meeting->tcp->fd[DML__CHANNEL_DATA][rank] >= 0 || !meeting->addresses_done);
        if (rank == meeting->comm->rank || complete) continue;
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
    dml_comm *comm = meeting->comm;
    const double timeout = comm->timeout;
    char missing[128], at[DML__ADDRESS_TEXT], turned_away[320] = "";
    const int first = dml__missing_ranks(meeting, missing, sizeof missing);
    if (comm->strangers)
        snprintf(turned_away, sizeof turned_away, "; %d connection%s turned away%s%s", comm->strangers,
                 comm->strangers == 1 ? " was" : "s were", meeting->note[0] ? ", the last because " : "",
                 meeting->note);
    if (comm->rank == 0 && !meeting->addresses_done) {
        dml__comm_fail(comm, first, DML_ERROR_TIMEOUT, "%s of %d did not arrive at %s within %g s%s", missing,
                       comm->world, dml__address_text(&meeting->listens_at, at), timeout, turned_away);
    } else if (comm->rank && !meeting->me.has_session) {
        const dml__handshake *shake = &meeting->shakes[DML__CHANNEL_CONTROL];
        const bool silent = shake->stage != DML__SHAKE_RESTING && shake->stage != DML__SHAKE_CONNECTING;
        dml__comm_fail(comm, 0, DML_ERROR_TIMEOUT,
                       "rank %d of %d could not reach rank 0 at %s within %g s: %s", comm->rank, comm->world,
                       dml__address_text(&shake->address, at), timeout,
                       silent         ? "who listens there doesn't answer"
                       : shake->error ? strerror(shake->error)
                                      : "who listens there is no rank of this job");
    } else if (!meeting->addresses_done) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_TIMEOUT,
                       "rank %d of %d gave up after %g s, while rank 0 was still waiting for other ranks",
                       comm->rank, comm->world, timeout);
    } else {
        dml__comm_fail(comm, first, DML_ERROR_TIMEOUT, "%s of %d did not connect with rank %d within %g s%s",
                       missing, comm->world, comm->rank, timeout, turned_away);
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
        if (meeting->comm->rank == 0 && !meeting->addresses_done && dml__all_have_come(meeting) &&
            !dml__send_addresses(meeting))
            return false;
    }
    return true;
}

static bool dml__prepare_meeting(dml__meeting *meeting)
{
    dml_comm *comm = meeting->comm;
    const size_t world = (size_t)comm->world;
    meeting->outgoing = 2 * comm->rank;
    meeting->shake_count = 2 * comm->world + DML__VISITORS;
    meeting->to_connect = 2 * (comm->world - 1);
    meeting->addresses =
        (dml__address *)dml__allocate_array(&comm->memory, world, sizeof *meeting->addresses);
    meeting->shakes = (dml__handshake *)dml__allocate_array(&comm->memory, (size_t)meeting->shake_count,
                                                            sizeof *meeting->shakes);
    const size_t polled = 1 + (size_t)meeting->shake_count + world;
    meeting->polls = (struct pollfd *)dml__allocate_array(&comm->memory, polled, sizeof *meeting->polls);
    meeting->waits = (struct pollfd *)dml__allocate_array(&comm->memory, polled, sizeof *meeting->waits);
    if (!meeting->addresses || !meeting->shakes || !meeting->polls || !meeting->waits) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory for the rendezvous",
                       comm->rank);
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
    if (comm->rank) return true;
    meeting->me.has_session = true;
    if (meeting->me.calls->random(meeting->me.session, sizeof meeting->me.session) < 0) {
        dml__comm_fail(comm, 0, DML_ERROR_NETWORK, "rank 0 can't get random numbers: %s", strerror(errno));
        return false;
    }
    meeting->me.session[0] |= 1; /* all zero means none */
    return dml__listen_as_master(meeting);
}

static void dml__end_meeting(dml__meeting *meeting)
{
    dml__memory *memory = &meeting->comm->memory;
    for (int i = 0; meeting->shakes && i < meeting->shake_count; i++)
        dml__close_shake(meeting, &meeting->shakes[i]);
    if (meeting->listener >= 0) meeting->me.calls->close(meeting->listener);
    dml__release(memory, meeting->waits);
    dml__release(memory, meeting->polls);
    dml__release(memory, meeting->shakes);
    dml__release(memory, meeting->addresses);
    meeting->comm->take_addresses = NULL;
}

DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__comm_settings *settings)
{
    dml_comm *comm = tcp->comm;
    dml__meeting meeting;
    memset(&meeting, 0, sizeof meeting);
    meeting.tcp = tcp;
    meeting.comm = comm;
    meeting.settings = settings;
    meeting.listener = -1;
    /* The others wait a little longer, so that it is rank 0, which knows who is missing, that gives up first.
     */
    meeting.deadline = dml_seconds() + comm->timeout + (comm->rank ? comm->grace : 0);
    meeting.patience = comm->timeout / 4 < 0.1 ? 0.1 : comm->timeout / 4 > 5 ? 5 : comm->timeout / 4;
    meeting.me.calls = tcp->calls;
    meeting.me.key = settings->key;
    meeting.me.rank = comm->rank;
    meeting.me.world = comm->world;
    meeting.me.segment_bytes = comm->segment_bytes;
    meeting.me.taken = dml__is_taken;
    meeting.me.port = dml__own_port;
    meeting.me.user = &meeting;
    comm->take_addresses = comm->rank ? dml__take_addresses : NULL;
    comm->take_addresses_user = &meeting;
    const bool met = dml__prepare_meeting(&meeting) && dml__meet_all(&meeting);
    dml__end_meeting(&meeting);
    tcp->met = met;
    return met;
}

#endif

/* ---- comm/comm.c ---- */

#ifndef DML_COMM_COMM_C
#define DML_COMM_COMM_C

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- after a fork ---- */

/* In the child of the process that opened it: there is no background thread here, a lock may be held by a
   thread that isn't there, and the connections are the parent's. Nothing may be touched. */
static bool dml__is_copy(const dml_comm *comm)
{
    return comm->process != (long)getpid();
}

static const char *dml__copy_text(const dml_comm *comm)
{
    dml_comm *written = (dml_comm *)(uintptr_t)comm; /* this process's own memory, and its only thread's */
    snprintf(
        written->fork_error, sizeof written->fork_error,
        "rank %d's communicator was opened in process %ld and called in process %ld, after a fork: open one "
        "in each process",
        comm->rank, comm->process, (long)getpid());
    return written->fork_error;
}

/* ---- running one call ---- */

/* How many ranks' worth of elements each side of a call has. */
static dml_status dml__check_call(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    char text[DML__SIGNATURE_TEXT];
    dml__signature_text(signature, text);
    const int me = comm->rank;
    const dml__comm_operation operation = signature->operation;
    const bool reduces = operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE_SCATTER;
    const bool pairs = operation == DML__CALL_SEND || operation == DML__CALL_RECEIVE;
    const size_t size = dml_dtype_size(signature->dtype);
    if (!size || (reduces && signature->dtype > DML_I64))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s: the dtype must be %s", me,
                              text, reduces ? "f32, f64, i32 or i64" : "one of dml_dtype");
    if ((unsigned)signature->reduce >= DML__REDUCE_OP_COUNT)
        return dml__comm_fail(
            comm, me, DML_ERROR_ARGUMENT,
            "rank %d called %s: the op must be DML_SUM, DML_MEAN, DML_MIN, DML_MAX or DML_PROD", me, text);
    if (signature->count > SIZE_MAX / 2 / size / (size_t)comm->world)
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s: more than fits into memory",
                              me, text);
    if (signature->root < 0 || signature->root >= comm->world || (pairs && signature->root == me))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d of %d called %s: it must be %s rank", me,
                              comm->world, text, pairs ? "another" : "a");
    if (signature->count && (!call->in || !call->out))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s with NULL for its data", me,
                              text);
    return DML_OK;
}

/* In a world of one, every collective only copies its own part. */
static void dml__run_alone(const dml__comm_call *call)
{
    const size_t bytes = (size_t)call->signature.count * dml_dtype_size(call->signature.dtype);
    if (bytes && call->in != call->out) memmove(call->out, call->in, bytes);
}

/* On the thread that has `busy`. */
static dml_status dml__execute(dml_comm *comm, const dml__comm_call *call)
{
    dml_status status = dml_comm_status(comm);
    if (!status) status = dml__check_call(comm, call);
    if (status) return status;
    if (comm->world == 1) {
        dml__run_alone(call);
        return DML_OK;
    }
    comm->deadline = dml_seconds() + comm->timeout;
    status = comm->engine->run(comm, call);
    const dml__comm_operation operation = call->signature.operation;
    if (operation != DML__CALL_SEND && operation != DML__CALL_RECEIVE) comm->sequence++;
    return status;
}

/* ---- taking turns: what was started runs in order, before any later call ---- */

/* Returns when everything that was started has ended, with `busy`. */
static void dml__take_turn(dml_comm *comm)
{
    dml__mutex_lock(&comm->mutex);
    while (comm->busy || comm->first_queued) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    comm->busy = true;
    dml__mutex_unlock(&comm->mutex);
}

static void dml__end_turn(dml_comm *comm)
{
    dml__mutex_lock(&comm->mutex);
    comm->busy = false;
    dml__cond_signal_all(&comm->changed);
    dml__mutex_unlock(&comm->mutex);
}

/* Runs the first of the queue; with the mutex, which is given up while it runs. */
static void dml__run_first(dml_comm *comm)
{
    dml_request *request = comm->first_queued;
    comm->busy = true;
    dml__mutex_unlock(&comm->mutex);
    const dml_status status = dml__execute(comm, &request->call);
    dml__mutex_lock(&comm->mutex);
    comm->first_queued = request->next;
    if (!comm->first_queued) comm->last_queued = NULL;
    request->status = status;
    request->state = DML__REQUEST_DONE;
    comm->busy = false;
    dml__cond_signal_all(&comm->changed);
}

#ifndef DML_NO_THREADS
/* The background thread. */
static void dml__comm_thread(void *argument)
{
    dml_comm *comm = (dml_comm *)argument;
    dml__mutex_lock(&comm->mutex);
    for (;;) {
        while (!comm->stop && (comm->busy || !comm->first_queued))
            dml__cond_wait(&comm->changed, &comm->mutex, -1);
        if (!comm->first_queued) break; /* stop, but only when all is done */
        dml__run_first(comm);
    }
    dml__mutex_unlock(&comm->mutex);
}
#endif

static dml_status dml__call_now(dml_comm *comm, const dml__comm_call *call)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm)) return DML_ERROR_STATE;
    dml__take_turn(comm);
    const dml_status status = dml__execute(comm, call);
    dml__end_turn(comm);
    return status;
}

/* With the mutex: what was put into the queue will be run. */
static bool dml__see_to_queue(dml_comm *comm)
{
#ifdef DML_NO_THREADS
    while (comm->first_queued) dml__run_first(comm);
    return true;
#else
    if (!comm->thread_started)
        comm->thread_started = dml__thread_start(&comm->thread, dml__comm_thread, comm);
    dml__cond_signal_all(&comm->changed);
    return comm->thread_started;
#endif
}

/* With the mutex. */
static void dml__free_request(dml_comm *comm, dml_request *request)
{
    request->state = DML__REQUEST_FREE;
    request->next = NULL;
    if (comm->last_free)
        comm->last_free->next = request;
    else
        comm->free_requests = request;
    comm->last_free = request;
}

/* With the mutex; NULL when all are out. */
static dml_request *dml__new_request(dml_comm *comm)
{
    dml_request *request = comm->free_requests;
    if (!request) return NULL;
    comm->free_requests = request->next;
    if (!comm->free_requests) comm->last_free = NULL;
    request->next = NULL;
    return request;
}

static dml_request *dml__call_later(dml_comm *comm, const dml__comm_call *call)
{
    if (dml_comm_status(comm)) return NULL;
    dml__mutex_lock(&comm->mutex);
    dml_request *request = dml__new_request(comm);
    if (request) {
        request->call = *call;
        request->state = DML__REQUEST_QUEUED;
        if (comm->last_queued)
            comm->last_queued->next = request;
        else
            comm->first_queued = request;
        comm->last_queued = request;
        if (!dml__see_to_queue(comm)) {
            /* The first request ever, and no thread for it: the queue holds nothing else. */
            comm->first_queued = comm->last_queued = NULL;
            dml__free_request(comm, request);
            dml__mutex_unlock(&comm->mutex);
            dml__take_turn(comm);
            dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d can't start its background thread",
                           comm->rank);
            dml__end_turn(comm);
            return NULL;
        }
    }
    dml__mutex_unlock(&comm->mutex);
    if (request) return request;
    char text[DML__SIGNATURE_TEXT];
    dml__take_turn(comm);
    dml__comm_fail(
        comm, comm->rank, DML_ERROR_STATE,
        "rank %d started %s while all %d requests were out: wait for those that were started, with "
        "dml_comm_wait or dml_comm_wait_all, or open the communicator with more max_requests",
        comm->rank, dml__signature_text(&call->signature, text), comm->max_requests);
    dml__end_turn(comm);
    return NULL;
}

/* ---- the public calls ---- */

static dml__comm_call dml__make_call(dml__comm_operation operation, const void *in, void *out, size_t count,
                                     dml_dtype dtype, dml_reduce_op reduce, int root)
{
    dml__comm_call call;
    call.signature.operation = operation;
    call.signature.dtype = dtype;
    call.signature.reduce = reduce;
    call.signature.root = root;
    call.signature.count = count;
    call.in = (void *)(uintptr_t)in; /* written only by the calls that took it as not const */
    call.out = out;
    return call;
}

DML_API dml_status dml_comm_all_reduce(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                       dml_reduce_op op)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE, data, data, count, dtype, op, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_request *dml_comm_all_reduce_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                               dml_reduce_op op)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE, data, data, count, dtype, op, 0);
    return dml__call_later(comm, &call);
}

DML_API dml_status dml_comm_broadcast(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int root)
{
    const dml__comm_call call = dml__make_call(DML__CALL_BROADCAST, data, data, count, dtype, DML_SUM, root);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_all_gather(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_GATHER, in, out, count, dtype, DML_SUM, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_reduce_scatter(dml_comm *comm, void *in, size_t count_per_rank, dml_dtype dtype,
                                           dml_reduce_op op, void *out)
{
    const dml__comm_call call =
        dml__make_call(DML__CALL_REDUCE_SCATTER, in, out, count_per_rank, dtype, op, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_barrier(dml_comm *comm)
{
    const dml__comm_call call = dml__make_call(DML__CALL_BARRIER, NULL, NULL, 0, DML_U8, DML_SUM, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to)
{
    /* `out` isn't written: only checked, as `in` is. */
    const dml__comm_call call =
        dml__make_call(DML__CALL_SEND, data, (void *)(uintptr_t)data, count, dtype, DML_SUM, to);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from)
{
    const dml__comm_call call = dml__make_call(DML__CALL_RECEIVE, data, data, count, dtype, DML_SUM, from);
    return dml__call_now(comm, &call);
}

/* Whether it is a place in comm->requests. */
static bool dml__is_own_request(const dml_comm *comm, const dml_request *request)
{
    const uintptr_t offset = (uintptr_t)request - (uintptr_t)comm->requests;
    return offset < (uintptr_t)comm->max_requests * sizeof *request && offset % sizeof *request == 0;
}

DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm) || !dml__is_own_request(comm, request)) return true;
    dml__mutex_lock(&comm->mutex);
    const bool done = request->state != DML__REQUEST_QUEUED;
    dml__mutex_unlock(&comm->mutex);
    return done;
}

static dml_status dml__refuse_wait(dml_comm *comm, dml_status status, const char *format)
{
    dml__take_turn(comm);
    status = dml__comm_fail(comm, comm->rank, status, format, comm->rank);
    dml__end_turn(comm);
    return status;
}

DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm)) return dml_comm_status(comm);
    if (!dml__is_own_request(comm, request))
        return dml__refuse_wait(comm, DML_ERROR_ARGUMENT,
                                "rank %d waited for a request that another communicator gave out");
    dml__mutex_lock(&comm->mutex);
    while (request->state == DML__REQUEST_QUEUED) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    const bool out = request->state == DML__REQUEST_DONE;
    const dml_status status = request->status;
    if (out) dml__free_request(comm, request);
    dml__mutex_unlock(&comm->mutex);
    if (out) return status;
    return dml__refuse_wait(comm, DML_ERROR_STATE, "rank %d waited twice for the same request");
}

DML_API dml_status dml_comm_wait_all(dml_comm *comm)
{
    if (!comm || dml__is_copy(comm)) return dml_comm_status(comm);
    dml__mutex_lock(&comm->mutex);
    while (comm->first_queued) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    for (int i = 0; comm->requests && i < comm->max_requests; i++)
        if (comm->requests[i].state == DML__REQUEST_DONE) dml__free_request(comm, &comm->requests[i]);
    dml__mutex_unlock(&comm->mutex);
    return dml_comm_status(comm);
}

DML_API dml_status dml_comm_status(const dml_comm *comm)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm)) return DML_ERROR_STATE;
    dml_comm *locked = (dml_comm *)(uintptr_t)comm;
    dml__mutex_lock(&locked->mutex);
    const dml_status status = comm->error.status;
    dml__mutex_unlock(&locked->mutex);
    return status;
}

DML_API const char *dml_comm_error(const dml_comm *comm)
{
    if (!comm) return dml_status_string(DML_ERROR_MEMORY);
    if (dml__is_copy(comm)) return dml__copy_text(comm);
    return dml_comm_status(comm) ? comm->error.text : "";
}

DML_API int dml_comm_rank(const dml_comm *comm)
{
    return comm ? comm->rank : 0;
}

DML_API int dml_comm_world_size(const dml_comm *comm)
{
    return comm ? comm->world : 1;
}

DML_API int dml_comm_strangers(const dml_comm *comm)
{
    return comm ? comm->strangers : 0;
}

/* ---- open and close ---- */

static bool dml__allocate_comm_parts(dml_comm *comm)
{
    comm->requests =
        (dml_request *)dml__allocate_array(&comm->memory, (size_t)comm->max_requests, sizeof *comm->requests);
    for (int i = 0; comm->requests && i < comm->max_requests; i++)
        dml__free_request(comm, &comm->requests[i]);
    if (comm->world == 1) return comm->requests != NULL;
    comm->peers = (dml__peer *)dml__allocate_array(&comm->memory, (size_t)comm->world, sizeof *comm->peers);
    comm->segment = (char *)dml__allocate(&comm->memory, comm->segment_bytes);
    if (!dml__wire_is_native()) {
        comm->outgoing = (char *)dml__allocate(&comm->memory, comm->segment_bytes);
        if (!comm->outgoing) return false;
    }
    return comm->requests && comm->peers && comm->segment;
}

static void dml__start_comm(dml_comm *comm, const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml__comm_settings settings;
    comm->world = 1;
    if (!dml__read_comm_settings(options, &settings, &comm->error)) return;
    comm->rank = settings.rank;
    comm->world = settings.world;
    comm->timeout = settings.timeout;
    comm->grace = settings.timeout / 4 < 0.05 ? 0.05 : settings.timeout / 4 > 1 ? 1 : settings.timeout / 4;
    comm->segment_bytes = settings.segment_bytes / 8 * 8;
    comm->max_requests = settings.max_requests;
    comm->engine = dml__ring_engine();
    if (!dml__allocate_comm_parts(comm)) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                       comm->rank);
        return;
    }
    if (comm->world > 1) dml__tcp_open(comm, &settings, sockets);
}

DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml_comm_options defaults;
    memset(&defaults, 0, sizeof defaults);
    if (!options) options = &defaults;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml_comm *comm = (dml_comm *)dml__allocate(&memory, sizeof *comm);
    if (!comm) return NULL;
    comm->memory = memory;
    comm->process = (long)getpid();
    comm->logger.callback = options->log;
    comm->logger.user = options->log_user;
    if (!dml__mutex_init(&comm->mutex)) {
        dml__release(&memory, comm);
        return NULL;
    }
    if (!dml__cond_init(&comm->changed)) {
        dml__mutex_destroy(&comm->mutex);
        dml__release(&memory, comm);
        return NULL;
    }
    dml__start_comm(comm, options, sockets);
    return comm;
}

DML_API dml_comm *dml_comm_open(const dml_comm_options *options)
{
    return dml__comm_open_on(options, dml__system_sockets());
}

static void dml__release_comm(dml_comm *comm)
{
    dml__memory memory = comm->memory;
    dml__release(&memory, comm->outgoing);
    dml__release(&memory, comm->segment);
    dml__release(&memory, comm->peers);
    dml__release(&memory, comm->requests);
    dml__release(&memory, comm);
}

DML_API void dml_comm_close(dml_comm *comm)
{
    if (!comm) return;
    if (dml__is_copy(comm)) {
        /* The mutex and the condition stay as the fork found them: destroying them would wait for threads. */
        if (comm->transport) comm->transport->calls->abandon(comm->transport);
        dml__release_comm(comm);
        return;
    }
    dml__take_turn(comm);
    dml__mutex_lock(&comm->mutex);
    comm->busy = false;
    comm->stop = true;
    dml__cond_signal_all(&comm->changed);
    dml__mutex_unlock(&comm->mutex);
    if (comm->thread_started) dml__thread_join(&comm->thread);
    if (comm->transport) {
        if (!comm->error.status) dml__say_goodbye(comm);
        comm->transport->calls->close(comm->transport);
    }
    dml__cond_destroy(&comm->changed);
    dml__mutex_destroy(&comm->mutex);
    dml__release_comm(comm);
}

#endif
#ifdef DML_H

/* ---- dist/all_reduce_sync.c ---- */

#ifndef DML_DIST_ALL_REDUCE_SYNC_C
#define DML_DIST_ALL_REDUCE_SYNC_C

#include <string.h>

/* However large the model, no more than this many buckets are on their way at once. */
#define DML__MAX_BUCKETS 64

/* Steps are told apart modulo this, whose square's sum over any number of ranks a double holds exactly. */
#define DML__MARKS 1048576u

typedef struct dml__bucket {
    size_t begin, end; /* of g, in elements */
    dml_request *request;
} dml__bucket;

typedef struct dml__all_reduce_state {
    dml__memory memory;
    dml_comm *comm;
    size_t bucket_elements;
    size_t filled_from, filled_to; /* g[from, to) is final and in no bucket yet */
    double mark;                   /* of the step that this rank is at */
    double sent[3];                /* its samples, mark and mark^2, then the sums over all ranks */
    dml_request *samples_request;
    int buckets;
    dml__bucket bucket[DML__MAX_BUCKETS];
} dml__all_reduce_state;

static dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm)
{
    return dml_trainer_fail(trainer, dml_comm_status(comm), "%s", dml_comm_error(comm));
}

static dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector)
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

static dml_status dml__all_reduce_sync_start(void *user, dml_trainer *trainer)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!state) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t least = (count + DML__MAX_BUCKETS - 1) / DML__MAX_BUCKETS;
    if (state->bucket_elements < least) state->bucket_elements = least;
    dml_status status = dml__compare_models(state->comm, trainer);
    if (status == DML_OK) status = dml__broadcast_run(state->comm, trainer);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml__broadcast_vector(state->comm, trainer, v);
    return status;
}

/* Waits for a request and forgets it, so that no request is waited for twice. */
static dml_status dml__take_request(dml__all_reduce_state *state, dml_request **request)
{
    dml_request *waiting = *request;
    *request = NULL;
    return waiting ? dml_comm_wait(state->comm, waiting) : DML_OK;
}

/* A step that failed half-way has left requests out, on memory that the next step writes or that is about to
   go. Every wait has its deadline. */
static void dml__drain_requests(dml__all_reduce_state *state)
{
    dml__take_request(state, &state->samples_request);
    for (int b = 0; b < state->buckets; b++) dml__take_request(state, &state->bucket[b].request);
    state->buckets = 0;
}

/* The number of samples of the global batch travels while forward runs, and with it at which step the rank
 * is. */
static dml_status dml__all_reduce_sync_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    dml__drain_requests(state);
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
    dml__bucket *bucket = &state->bucket[state->buckets];
    bucket->begin = state->filled_from;
    bucket->end = state->filled_to;
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    if (!g) return dml_status_of(dml_trainer_context(trainer));
    bucket->request =
        dml_comm_all_reduce_start(state->comm, g, bucket->end - bucket->begin, DML_F32, DML_SUM);
    if (!bucket->request) return dml__sync_failed(trainer, state->comm);
    state->buckets++;
    state->filled_to = state->filled_from;
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
    if (dml__take_request(state, &state->samples_request) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    if (!dml__same_step(state))
        return dml_trainer_fail(
            trainer, DML_ERROR_MISMATCH,
            "this rank is at step %llu and others aren't; every rank must make the same calls of "
            "step, backward, update and advance, with DML_MORE in the same places",
            (unsigned long long)dml_trainer_steps(trainer));
    *samples = state->sent[0];
    dml_status status = DML_OK;
    for (int b = 0; b < state->buckets && status == DML_OK; b++) {
        dml__bucket *bucket = &state->bucket[b];
        if (dml__take_request(state, &bucket->request) != DML_OK)
            return dml__sync_failed(trainer, state->comm);
        /* What the host has, not dml_trainer_get, which would read the device's own values over it. */
        status = dml_trainer_put(trainer, DML_GRADIENTS, bucket->begin, bucket->end);
    }
    return status;
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
    dml__drain_requests((dml__all_reduce_state *)user);
}

static void dml__all_reduce_sync_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__all_reduce_state *state = (dml__all_reduce_state *)user;
    if (!state) return;
    dml__drain_requests(state);
    dml__memory memory = state->memory;
    dml__release(&memory, state);
}

DML_API dml_sync dml_all_reduce_sync(dml_comm *comm, const dml_all_reduce_sync_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, options ? &options->allocator : NULL, NULL, 0);
    dml__all_reduce_state *state = (dml__all_reduce_state *)dml__allocate(&memory, sizeof *state);
    if (state) {
        const size_t bucket_bytes =
            options && options->bucket_bytes ? options->bucket_bytes : (size_t)1 << 20;
        state->memory = memory;
        state->comm = comm;
        state->bucket_elements = bucket_bytes / sizeof(float);
    }
    const dml_sync sync = { state,
                            dml__all_reduce_sync_start,
                            dml__all_reduce_sync_begin,
                            dml__all_reduce_sync_ready,
                            dml__all_reduce_sync_finish,
                            dml__all_reduce_sync_failed,
                            NULL,
                            dml__all_reduce_sync_destroy,
                            dml_comm_world_size(comm),
                            dml_comm_rank(comm),
                            dml__all_reduce_sync_sum };
    return sync;
}

#endif
#endif

#endif
