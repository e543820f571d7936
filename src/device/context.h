/* context.h: what a program opens first: a device, its threads, memory, and the place where errors stick. */
#ifndef DML_DEVICE_CONTEXT_H
#define DML_DEVICE_CONTEXT_H

#include "base/log.h"
#include "base/allocator.h"
#include "base/status.h"
#include "thread/pool.h"
#include "device/backend.h"

typedef struct dml_context dml_context;

typedef struct dml_options {
    /* "cpu" (default), "opencl", "opencl:1", "cuda", "cuda:0", "auto": the best there is; "cuda:local": for
       the ranks of a host one each, by LOCAL_RANK, and round again where there are more ranks than devices.
     */
    const char *device;
    int threads;             /* of the CPU pool; 0: dml_cpu_share(), which is all processors but for ranks */
    uint64_t seed;           /* of every random number; 0 is a seed like any other */
    dml_allocator allocator; /* zero: malloc and free */
    void *memory; /* or: one buffer that everything on the host comes from, the caller's until close */
    size_t memory_bytes;
    dml_log_callback log; /* NULL: silence */
    void *log_user;
    const dml_pool_options *pool; /* NULL, or how the pool spins and whose threads it uses; its threads count
                                     when those above are 0, its allocator never */
    int pin;                      /* as in dml_pool_options, where that is 0 */
    /* Dense layers, matrix products and convolutions in f32, from some size on, may be made on a CUDA card's
       tensor cores, from compute capability 8.0 on: their factors are rounded to TF32, which has f32's range
       and 10 bits of mantissa (an error of up to 2^-11 of each), and the sums stay f32. On other devices, of
       attention and where NVIDIA_TF32_OVERRIDE is 0 in the environment it changes nothing. */
    bool allow_tf32;
} dml_options;

/* Opens a context; NULL options mean every core, the CPU, malloc. Returns NULL only when there is no memory
   for the context itself; any other failure (a device that isn't there) is on the context, and everything
   built on it is then NULL. A context is used by one thread at a time; two contexts in a process don't meet.
 */
#define dml_open DML__ABI(dml_open)
DML_API dml_context *dml_open(const dml_options *options);

/* Releases the context and every graph, program and trainer still on it. NULL is fine. */
DML_API void dml_close(dml_context *context);

/* The first error since opening or since dml_clear_error: its sentence ("" when there is none) and its
   status. NULL, which dml_open returns when memory is short, reads as that. An error of dml_open itself can't
   be cleared: there is no device to go on with. A thread whose call was refused (DML_ERROR_STATE, or NULL)
   because another one was in a call of the context reads, and clears, that, until a later call gets in; of
   several such threads only the last is sure to. */
DML_API const char *dml_error(const dml_context *context);
DML_API dml_status dml_status_of(const dml_context *context);
DML_API void dml_clear_error(dml_context *context);

/* How large the caller's buffer (dml_options.memory) has to be for all that has been done with the context so
   far, graphs, programs and trainers included: run the same calls in a large buffer, with as many threads on
   a machine of the same word size and instruction set (dml_cpu_isa, by which the kernels choose their
   scratch), and ask. 0 for a context without such a buffer. */
DML_API size_t dml_memory_needed(const dml_context *context);

/* The context's parts, for use with the kernels on raw arrays. */
DML_API dml_pool *dml_context_pool(dml_context *context);
DML_API const dml_device *dml_context_device(const dml_context *context);

#endif
