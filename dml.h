/* dml.h 0.1.0. DO NOT EDIT, generated from src/ by make amalgamate. */
/* dml.h - training and running neural networks from C.

   In exactly one source file of your program, best one of its own, since it takes seconds to compile:

       #define DML_IMPLEMENTATION
       #include "dml.h"

   and in any other just the #include. Build with -lm -lpthread. Include every dml header that you use in that
   one file (dml.h, then dml_comm.h): what they share is compiled once.

   Switches, the same in every file of a program:
     DML_IMPLEMENTATION  (one file) the function bodies
     DML_STATIC          every function is static: the library is private to this file
     DML_NO_THREADS      no threads: every pool has one worker, no background communication
     DML_NO_STDIO        no files: no checkpoints, data files, tables or progress lines
     DML_NO_AVX512, DML_NO_AVX   leaves those instruction sets out (the second: both)
     DML_ASSERT(c)       replaces assert() for the library's own invariants
     DML_OPENCL          dml_opencl.c is linked in: "opencl" devices
     DML_CUDA            dml_cuda.cu is linked in: "cuda" devices

   The manual is docs/guide.md; each function's reference is the comment at its declaration. */
#ifndef DML_H
#define DML_H

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
#define DML__COLD __attribute__((cold, noinline)) /* made small, not fast */
#define DML__PREFETCH(address) __builtin_prefetch(address)
#if defined(__MINGW32__) && !defined(__clang__)
#define DML__PRINTF(position, first) __attribute__((format(gnu_printf, position, first)))
#else
#define DML__PRINTF(position, first) __attribute__((format(printf, position, first)))
#endif
#else
#define DML__UNUSED
#define DML__NOINLINE
#define DML__COLD
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
    X(ERROR_STATE, "the call came at the wrong time")

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
    X(U8, "u8", 1)

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

/* ---- base/philox.h ---- */

/* philox.h: counter-based random numbers, the same on every backend, thread count and rank count. */
#ifndef DML_BASE_PHILOX_H
#define DML_BASE_PHILOX_H

/* Philox4x32-10: four random words for a 128-bit counter under a 64-bit key.
   Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3. */
DML_API void dml_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* One number of a stream. A stream is named by (seed, stream, step): `stream` is the op or purpose, `step`
   the training step or epoch; `element` counts inside it. */
typedef struct dml_random {
    uint64_t seed;
    uint32_t stream;
    uint32_t step;
} dml_random;

/* 32 random bits; uniform in [0, 1) with 24 bits; standard normal (Box-Muller, one per element). */
DML_API uint32_t dml_random_bits(const dml_random *random, uint64_t element);
DML_API float dml_random_uniform(const dml_random *random, uint64_t element);
DML_API float dml_random_normal(const dml_random *random, uint64_t element);

/* Writes a permutation of 0 .. count - 1 (Fisher-Yates, driven by the stream). */
DML_API void dml_random_permutation(const dml_random *random, int *out, int count);

#endif

/* ---- thread/pool.h ---- */

/* pool.h: a caller-owned pool of threads that runs a loop in parallel. */
#ifndef DML_THREAD_POOL_H
#define DML_THREAD_POOL_H

typedef struct dml_pool dml_pool;

/* One piece of a parallel loop: `task` counts from 0; `worker` is 0 .. threads - 1, and no two tasks run
   under the same worker number at once. */
typedef void (*dml_pool_task)(void *argument, int task, int worker);

/* Bytes of working memory: for each worker, and once for the loop as a whole. */
typedef struct dml_scratch {
    size_t worker, shared;
} dml_scratch;

typedef struct dml_pool_options {
    int threads; /* 0: dml_cpu_share(); 1: none but the caller */
    int spin;    /* microseconds that a thread without work spins before it sleeps; 0: 200, or none when there
                    are more threads than processors; -1: none */
    dml_allocator allocator; /* zero: malloc */
    dml_scratch scratch;     /* as by dml_pool_reserve; zero: none yet */
    /* A host that has threads of its own lends them: called with the number of tasks, it must call
       run(run_argument, task, worker) once for each task, on any threads, each worker number of
       0 .. workers - 1 on one thread at a time, and return when all have ended. A team of threads that is
       larger than `workers` leaves the rest idle. The pool then starts no threads. */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    int pin; /* 1: each thread but the caller stays on a processor of its own, as far as they go: the first of
                the affinity mask is left to the caller, and a rank (LOCAL_RANK) begins after the ranks before
                it. 0: as the environment variable DML_PIN says (1), otherwise not; -1: not */
} dml_pool_options;

/* NULL options: all defaults. Returns NULL when memory or threads can't be had, or when
   `threads` is negative; nothing is then left behind. A pool is used by one thread
   at a time; a task must not call into its own pool. */
#define dml_pool_create DML__ABI(dml_pool_create)
DML_API dml_pool *dml_pool_create(const dml_pool_options *options);

/* Ends the threads and releases the memory; NULL is fine. After a fork(), the child has no such threads:
   there, loops run on the caller alone, and this releases the memory. */
DML_API void dml_pool_destroy(dml_pool *pool);

/* How many workers share a loop, the caller included; 1 for NULL. */
DML_API int dml_pool_threads(const dml_pool *pool);

/* Runs `task` for 0 .. tasks - 1 and returns when all have ended. NULL runs them in order on the caller. Who
   has no task takes the next, or the next few of many, so which worker runs which differs from run to run: a
   result that must repeat may depend on the task's number only. About 1 us on threads that spin, and 10 to 30
   us where they have gone to sleep. */
DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument);

/* Makes the pool's scratch at least this large; it never shrinks. Not inside a loop: the old block is
   released before the new one is taken, so what lay in it is lost. dml_sgemm_scratch and dml_conv2d_scratch
   say what the kernels use; with less they are slower, and make do with small arrays on the stack.
   DML_ERROR_MEMORY when it can't be had; the pool then has none at all. A NULL pool needs none: DML_OK. */
DML_API dml_status dml_pool_reserve(dml_pool *pool, dml_scratch scratch);

/* What the pool has: what was asked for, the largest of each. Zeros for NULL. */
DML_API dml_scratch dml_pool_scratch_bytes(const dml_pool *pool);

/* A worker's own scratch, and the one that a loop's workers share; 64-byte aligned, their content undefined
   at the start of each loop. NULL where there is none: for a NULL pool, for zero bytes, and for a worker
   number that the pool doesn't have. */
DML_API void *dml_pool_scratch(dml_pool *pool, int worker);
DML_API void *dml_pool_shared_scratch(dml_pool *pool);

#endif

/* ---- kernels/epilogue.h ---- */

/* epilogue.h: what a matrix product or a convolution does to its result while it is still in registers. */
#ifndef DML_KERNELS_EPILOGUE_H
#define DML_KERNELS_EPILOGUE_H

typedef enum dml_activation { DML_ACTIVATION_NONE, DML_ACTIVATION_RELU } dml_activation;

/* result = activation(result + bias), the bias along the columns of a product, the filters of a convolution.
   Zero: nothing. A residual needs no word here: it is what the result's array holds, with beta = 1. */
typedef struct dml_epilogue {
    const float *bias; /* (columns), or NULL */
    dml_activation activation;
} dml_epilogue;

#endif

/* ---- kernels/gemm.h ---- */

/* gemm.h: matrix products on raw arrays. */
#ifndef DML_KERNELS_GEMM_H
#define DML_KERNELS_GEMM_H

/* The numbers are those of CBLAS. */
typedef enum dml_layout { DML_ROW_MAJOR = 101, DML_COL_MAJOR = 102 } dml_layout;
typedef enum dml_transpose { DML_NO_TRANS = 111, DML_TRANS = 112 } dml_transpose;

/* C = alpha op(A) op(B) + beta C, with op(A) m x k, op(B) k x n, C m x n: the arguments of cblas_sgemm behind
   a pool (NULL: the caller alone). With beta = 0, C is not read. The result is bitwise the same for any
   number of threads and any scratch of the pool. Allocates nothing. DML_ERROR_ARGUMENT for a negative size, a
   leading dimension that is too small, an array that is NULL though it would be read or written, or an
   unknown layout or transpose; C is then untouched. */
DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc);

/* The same in row-major order, with an epilogue: C = activation(alpha op(A) op(B) + beta C + bias), bias (n).
   NULL: none. A residual that is added before the activation is what C holds with beta = 1. */
DML_API dml_status dml_sgemm_fused(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                   int k, float alpha, const float *a, int lda, const float *b, int ldb,
                                   float beta, float *c, int ldc, const dml_epilogue *epilogue);

/* `count` row-major products of one shape, product i of a + i stride_a and b + i stride_b into c + i stride_c
   (elements; a factor that is the same for all has stride 0, and the C's must not overlap): C = alpha op(A)
   op(B) + beta C. Each is bitwise what dml_sgemm makes of it. Small ones are shared out whole among the
   threads; a call costs each
   something besides its arithmetic, so the very smallest are faster in a plain loop. The scratch is that of
   one of them, of dml_sgemm_scratch. */
DML_API dml_status dml_sgemm_batched(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m,
                                     int n, int k, float alpha, const float *a, int lda, ptrdiff_t stride_a,
                                     const float *b, int ldb, ptrdiff_t stride_b, float beta, float *c,
                                     int ldc, ptrdiff_t stride_c, int count);

/* The scratch with which a row-major product is fastest, for dml_pool_reserve; it depends on dml_cpu_isa. (A
   column-major product is the row-major one of the factors swapped.) At most 1.3 MB a worker, and 256 KiB
   shared; little for small products; zeros where a size is below 1. */
DML_API dml_scratch dml_sgemm_scratch(dml_transpose trans_a, dml_transpose trans_b, int m, int n, int k);

#endif

/* ---- kernels/bf16.h ---- */

/* bf16.h: bfloat16, the upper half of an f32, and matrix products of it with f32 sums. */
#ifndef DML_KERNELS_BF16_H
#define DML_KERNELS_BF16_H

/* The bits: a sign, 8 of an exponent, 7 of a fraction. */
typedef uint16_t dml_bf16;

/* y = x, rounded to nearest, ties to even; a NaN stays one. And back, exactly. n elements each. */
DML_API void dml_bf16_from_f32(dml_pool *pool, size_t n, const float *x, dml_bf16 *y);
DML_API void dml_bf16_to_f32(dml_pool *pool, size_t n, const dml_bf16 *x, float *y);

/* C = activation(alpha op(A) op(B) + beta C + bias), A and B of bf16, C and bias f32, all row-major, else as
   dml_sgemm_fused; a NULL epilogue is none. Products of bf16 are exact in f32; the sums are f32's. Three ways
   are taken, by what the processor has: AMX, AVX512-BF16, and for every other one bf16 widened to f32 while
   it is packed, which takes longer than dml_sgemm on f32: up to a quarter for large products, 2 to 3 times as
   long for one or two rows of A, and 6 to 10 times for those with B transposed, since dml_sgemm packs nothing
   there. For each, with e = 2^-24,
       |C - exact| <= 2 (k + 4) e (|alpha| |op(A)| |op(B)| + |beta C| + |bias|),
   but for denormals, which AMX and AVX512-BF16 take for 0. For
   one of them, bitwise the same for any number of threads and any scratch. The environment variable DML_ISA
   lowers the choice: "avx512_bf16" leaves AMX out, "avx512" both. Allocates nothing. DML_ERROR_ARGUMENT as
   for dml_sgemm_fused. */
DML_API dml_status dml_bf16gemm(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                int k, float alpha, const dml_bf16 *a, int lda, const dml_bf16 *b, int ldb,
                                float beta, float *c, int ldc, const dml_epilogue *epilogue);

/* The scratch with which it is fastest: at most 1.3 MB a worker, and 256 KiB shared. */
DML_API dml_scratch dml_bf16gemm_scratch(int m, int n, int k);

/* Which of the three ways such a pool's products take: "amx", "avx512_bf16" or "widened". NULL is, as in
   dml_bf16gemm, the calling thread alone: what a pool that is made now would take. */
DML_API const char *dml_bf16gemm_isa(dml_pool *pool);

#endif

/* ---- kernels/conv2d.h ---- */

/* conv2d.h: two-dimensional convolution on raw arrays. */
#ifndef DML_KERNELS_CONV2D_H
#define DML_KERNELS_CONV2D_H

/* x (N, H, W, C), w (F, KH, KW, C / groups), bias (F), y (N, OH, OW, F). Padding is with zeros, the same on
   both sides. Taps lie `dilation` pixels apart. Of g groups, group i makes filters i F/g .. from channels i
   C/g ..; with groups = C = F the convolution is depthwise. */
typedef struct dml_conv2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int filters;                        /* F */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dilation_h, dilation_w; /* 0: 1 */
    int groups;                 /* a divisor of C and F; 0: 1 */
} dml_conv2d_shape;

/* (in + 2 pad - kernel) / stride + 1, or 0 when the kernel doesn't fit. */
DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad);

/* The kernel that a dilated one reaches as far as: (kernel - 1) dilation + 1; a dilation of 0 counts as 1. 0
   when that is no int, the kernel below 1, or the dilation below 0. For dml_conv2d_output_size. */
DML_API int dml_conv2d_extent(int kernel, int dilation);

/* Each returns DML_ERROR_ARGUMENT for a shape with a size below 1 (batch may be 0, pads are 0 or more), a
   kernel that doesn't fit, groups that don't divide C and F, an array that is NULL though it has elements, an
   activation that there isn't, or arrays larger than any memory, before anything is written. Bitwise the same
   for any number of threads and any scratch of the pool; allocates nothing. */

/* y = conv(x, w) + bias; bias may be NULL. */
DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y);

/* y = activation(conv(x, w) + beta y + bias); NULL epilogue: neither activation nor bias. With beta = 0, y is
   not read; with beta = 1, y holds a residual (a shortcut's values), which is added before the activation. */
DML_API dml_status dml_conv2d_forward_fused(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y);

/* dx = dconv/dx^T dy + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx);

/* dw = dconv/dw^T dy + beta dw. (The bias gradient is dml_sum_rows of dy.) Depthwise, an infinite or NaN x
   may make NaNs of taps that don't meet it as well. */
DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw);

/* The scratch with which the forward pass is fastest, or, when training, each of the three, for
   dml_pool_reserve; it depends on dml_cpu_isa. Without it, in a NULL pool too, padded images are gathered
   tile by tile, which takes up to several times as long. At most about 1.3 MB a worker, and shared the packed
   weights. Zeros for a bad shape. */
DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training);

#endif

/* ---- kernels/pool2d.h ---- */

/* pool2d.h: max and average pooling on raw arrays. */
#ifndef DML_KERNELS_POOL2D_H
#define DML_KERNELS_POOL2D_H

/* x (N, H, W, C), y (N, OH, OW, C), OH = dml_conv2d_output_size(H, kernel_h, stride_h, pad_h). A pad must be
   smaller than its kernel, so that each window holds at least one input; H W and OH OW each fit an int. */
typedef struct dml_pool2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
} dml_pool2d_shape;

/* DML_ERROR_ARGUMENT for a bad shape, before anything is written. Bitwise the same for any number of threads;
   allocates nothing. */

/* y = the largest input of each window; argmax (N, OH, OW, C) is its place h * W + w in the image (the first
   of equals), for the backward pass; NULL: it isn't written. A NaN counts as the largest, so it gets through.
 */
DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax);

/* The same of a relu's output, for dx to be the gradient of the relu's input: argmax is -1, no place, where y
   isn't above 0. */
DML_API dml_status dml_max_pool2d_of_relu_forward(dml_pool *pool, const dml_pool2d_shape *shape,
                                                  const float *x, float *y, int32_t *argmax);

/* dx = the dy of the windows that each input won + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx);

/* y = the mean of each window's inputs; padding is not counted. */
DML_API dml_status dml_avg_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y);
DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx);

#endif

/* ---- kernels/slice2d.h ---- */

/* slice2d.h: parts of images, strided, with zeros around them, on raw arrays. */
#ifndef DML_KERNELS_SLICE2D_H
#define DML_KERNELS_SLICE2D_H

/* Along each axis (height, width, channels), `count` places of the input, from `begin` on every `step`-th,
   become the places `before`, `before` + 1, ... of the output; what else the output has there is zeros. */
typedef struct dml_slice2d_axis {
    int in, out; /* sizes, at least 1 */
    int begin, step, count, before;
} dml_slice2d_axis;

typedef struct dml_slice2d_shape {
    int batch;
    dml_slice2d_axis axis[3];
} dml_slice2d_shape;

/* x (batch, in height, width, channels) -> y (batch, out height, width, channels). DML_ERROR_ARGUMENT, with
   nothing written, for places that aren't there. */
DML_API dml_status dml_slice2d_forward(dml_pool *pool, const dml_slice2d_shape *shape, const float *x,
                                       float *y);

/* dx = dy where x was taken, else 0, + beta dx. With beta = 0, dx is not read. */
DML_API dml_status dml_slice2d_backward(dml_pool *pool, const dml_slice2d_shape *shape, const float *dy,
                                        float beta, float *dx);

#endif

/* ---- kernels/norm.h ---- */

/* norm.h: batch normalization on raw arrays.
   Source: Ioffe, Szegedy, "Batch normalization", ICML 2015. */
#ifndef DML_KERNELS_NORM_H
#define DML_KERNELS_NORM_H

/* x, y, dy, dx are (rows, channels); images of any size are rows of pixels. What belongs to a channel is
   (channels). All are bitwise the same for any number of threads. */

/* The mean and the variance (the mean square of the distance from it) of each channel; zeros for no rows. One
   reading of x: sums of distances from the mean of a few rows, in float over at most 128 rows, the rest in
   double. */
DML_API void dml_batch_statistics(dml_pool *pool, size_t rows, size_t channels, const float *x, float *mean,
                                  float *variance);

/* y = scale (x - mean) / sqrt(variance + epsilon) + shift, and of that its activation. */
typedef struct dml_normalization {
    const float *mean, *variance, *scale, *shift; /* (channels) */
    float epsilon;
    dml_activation activation;
} dml_normalization;

/* y may be x. */
DML_API void dml_batch_norm_forward(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                    const dml_normalization *by, float *y);

/* The gradients of scale and shift: dscale = sum of dy (x - mean) / sqrt(variance + epsilon),
   dshift = sum of dy. Here and below dy counts where y is above 0 for a relu, which is found again from x. */
DML_API void dml_batch_norm_backward_parameters(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                                const dml_normalization *by, const float *dy, float *dscale,
                                                float *dshift);

/* dx = the gradient of x + beta dx. Where mean and variance are those of x itself, it flows through them too,
   by what the function above gave; where they are constants, dscale and dshift are NULL. dx may be dy; with
   beta = 0 it is not read. */
DML_API void dml_batch_norm_backward_input(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                           const dml_normalization *by, const float *dy, const float *dscale,
                                           const float *dshift, float beta, float *dx);

#endif

/* ---- kernels/elementwise.h ---- */

/* elementwise.h: one output element from one element of each input, on raw arrays. */
#ifndef DML_KERNELS_ELEMENTWISE_H
#define DML_KERNELS_ELEMENTWISE_H

/* All arrays have n elements. An output may be the same array as an input, else they must not overlap. With
   beta = 0 the output is not read. Bitwise the same for any number of threads. */

DML_API void dml_fill(dml_pool *pool, size_t n, float value, float *y);  /* y = value */
DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y); /* y *= alpha */
DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta,
                       float *y); /* y = alpha x + beta y */
DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b,
                             float *y); /* y = a + b */
DML_API void dml_add_relu_forward(dml_pool *pool, size_t n, const float *a, const float *b,
                                  float *y); /* y = max(a + b, 0) */

/* y = max(x, 0); dx = (y > 0 ? dy : 0) + beta dx */
DML_API void dml_relu_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_relu_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = e^x to within 1.25 units in the last place of the exact result, y = log(x) within 1, y = erf(x) within
   2, for every float: log(0) is -inf, log of what is below NaN, denormal results are kept. */
DML_API void dml_exp_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_log_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_erf_forward(dml_pool *pool, size_t n, const float *x, float *y);

/* y = tanh(x) to within 2 units in the last place; dx = (1 - y^2) dy + beta dx */
DML_API void dml_tanh_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_tanh_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = 1 / (1 + exp(-x)) to within 2.5 units in the last place; dx = y (1 - y) dy + beta dx */
DML_API void dml_sigmoid_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_sigmoid_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                                  float *dx);

/* y[r][c] += bias[c], y (rows, columns) */
DML_API void dml_bias_add(dml_pool *pool, size_t rows, size_t columns, const float *bias, float *y);

#endif

/* ---- kernels/reduce.h ---- */

/* reduce.h: many elements into one, on raw arrays. */
#ifndef DML_KERNELS_REDUCE_H
#define DML_KERNELS_REDUCE_H

/* Sums run over fixed blocks in a fixed order, so they are bitwise the same for any number of threads; each
   element takes part in a few dozen additions in float, the rest are in double, except in dml_sum_rows. */

DML_API float dml_sum(dml_pool *pool, size_t n, const float *x);                 /* 0 for n = 0 */
DML_API float dml_dot(dml_pool *pool, size_t n, const float *x, const float *y); /* 0 for n = 0 */

/* The sum of (x[i] - y[i])^2; 0 for n = 0. */
DML_API float dml_squared_distance(dml_pool *pool, size_t n, const float *x, const float *y);

/* The largest element; -infinity for n = 0. A NaN counts as the largest, here and in dml_argmax. */
DML_API float dml_max(dml_pool *pool, size_t n, const float *x);

/* y[c] = sum over r of x[r][c] + beta y[c], x (rows, columns); with beta = 0, y is not read. */
DML_API void dml_sum_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, float beta, float *y);

/* y[o][i] = sum over k of x[o][k][i] + beta y[o][i], x (outer, n, inner); with beta = 0, y is not read. */
DML_API void dml_sum_axis(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x, float beta,
                          float *y);

/* out[r] = the column of the largest x[r][c], the first of equals; columns at least 1. */
DML_API void dml_argmax(dml_pool *pool, size_t rows, size_t columns, const float *x, int32_t *out);

#endif

/* ---- kernels/loss.h ---- */

/* loss.h: losses and their gradients on raw arrays. */
#ifndef DML_KERNELS_LOSS_H
#define DML_KERNELS_LOSS_H

/* The mean over rows of -log softmax(logits)[label]. logits (rows, classes); labels (rows), each in
   0 .. classes - 1 (the caller checks); probabilities (rows, classes) = softmax(logits), kept for the
   backward pass; row_loss (rows) is scratch. Returns the mean, 0 for no rows. The maximum is subtracted
   first, so no row of finite logits overflows unless its loss does, and the mean only where the rows' sum
   does. */
DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss);

/* dlogits = scale (probabilities - onehot(labels)) + beta dlogits; for the mean loss, scale is dloss / rows.
 */
DML_API void dml_softmax_cross_entropy_backward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *probabilities, const int32_t *labels,
                                                float scale, float beta, float *dlogits);

/* The mean over n elements of (a - b)^2; 0 for n = 0. */
DML_API float dml_mse_forward(dml_pool *pool, size_t n, const float *a, const float *b);

/* da = scale (a - b) + beta da; for the mean, scale is 2 dloss / n; swap a and b for db. */
DML_API void dml_mse_backward(dml_pool *pool, size_t n, const float *a, const float *b, float scale,
                              float beta, float *da);

#endif

/* ---- kernels/update.h ---- */

/* update.h: optimizer steps as one fused pass over a range of the flat vectors. */
#ifndef DML_KERNELS_UPDATE_H
#define DML_KERNELS_UPDATE_H

/* Stochastic gradient descent with momentum, over n elements:
       d = g + weight_decay w;  v = momentum v + d;  w -= lr (nesterov ? d + momentum v : v)
   v may be NULL when momentum is 0. Source: Sutskever et al., "On the importance of initialization and
   momentum in deep learning", ICML 2013, section 2, in the form without dampening that PyTorch's SGD
   documents. */
DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov);

#endif

/* ---- device/backend.h ---- */

/* backend.h: what a device can do for the graph. Everything above speaks to this interface alone.

   A backend is memory plus launches. On a device that shares the host's memory (`host_memory`), the ops call
   the CPU kernels directly; on any other they launch the shared kernels of src/gpu/kernels.cl by name. So a
   new backend implements the table below and no op. */
#ifndef DML_DEVICE_BACKEND_H
#define DML_DEVICE_BACKEND_H

/* A piece of a device's memory. The device that made it owns it. */
typedef struct dml_buffer {
    size_t bytes;
    void *host;   /* its address where host_memory is true, else NULL */
    void *handle; /* the backend's own: a cl_mem, a device pointer */
} dml_buffer;

/* A place in a buffer. */
typedef struct dml_ref {
    dml_buffer *buffer;
    size_t offset; /* in bytes, a multiple of the element size */
} dml_ref;

/* One launch of a shared kernel. Every shared kernel takes the same arguments: buffers with their offsets,
   then a block of integers and floats; what each means is written at the kernel. */
#define DML_LAUNCH_BUFFERS 6
#define DML_LAUNCH_INTS 16
#define DML_LAUNCH_FLOATS 4
typedef struct dml_launch {
    const char *kernel; /* its name in src/gpu/kernels.cl */
    size_t size[2];     /* how much there is to do along x and y: elements, rows, outputs; how much of it a
                           work-group does is in the kernel's row of src/gpu/kernel_list.h. 0: nothing to do */
    dml_ref buffer[DML_LAUNCH_BUFFERS]; /* a NULL buffer is a NULL pointer in the kernel */
    int32_t integer[DML_LAUNCH_INTS];
    float real[DML_LAUNCH_FLOATS];
} dml_launch;

typedef struct dml_device dml_device;

typedef struct dml_device_info {
    char id[32];       /* what dml_open takes: "cpu", "opencl:1", "cuda:0" */
    char name[128];    /* what its maker calls it */
    uint64_t memory;   /* bytes, 0 where unknown */
    int compute_units; /* cores or multiprocessors */
    bool gpu;          /* not a CPU that speaks OpenCL */
} dml_device_info;

/* The table a backend fills. Calls on one device come from one thread at a time. Work is in order: a launch
   sees what earlier writes and launches did; `read` and `finish` wait, nothing else need, but the caller may
   reuse what `write` was given once it returns. A function that fails says why with dml_device_fail and
   returns the status. */
typedef struct dml_backend {
    const char *name; /* "cpu", "opencl", "cuda" */
    /* How many devices there are; 0 when there is no driver. */
    int (*count)(void);
    /* Fills `info` for device `index`, 0 .. count - 1. */
    void (*describe)(int index, dml_device_info *info);
    /* Opens device->index: sets device->state and device->host_memory. */
    dml_status (*open)(dml_device *device);
    void (*close)(dml_device *device);
    /* Sets buffer->host or buffer->handle for buffer->bytes > 0 bytes. The content is undefined. */
    dml_status (*buffer_create)(dml_device *device, dml_buffer *buffer);
    void (*buffer_destroy)(dml_device *device, dml_buffer *buffer);
    dml_status (*write)(dml_device *device, dml_ref to, const void *from, size_t bytes);
    dml_status (*read)(dml_device *device, void *to, dml_ref from, size_t bytes);
    dml_status (*copy)(dml_device *device, dml_ref to, dml_ref from, size_t bytes); /* they don't overlap */
    dml_status (*zero)(dml_device *device, dml_ref to, size_t bytes);
    dml_status (*launch)(dml_device *device, const dml_launch *launch);
    dml_status (*finish)(dml_device *device);
} dml_backend;

struct dml_device {
    const dml_backend *backend;
    int index;
    bool host_memory;
    void *state; /* the backend's own */
    struct dml_context *context;
};

/* For backends: the first failure sticks to the context; returns `status`. */
DML_API dml_status dml_device_fail(dml_device *device, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* For backends: zeroed memory from the context's allocator, NULL when there is none left. */
DML_API void *dml_device_allocate(dml_device *device, size_t bytes);
DML_API void dml_device_release(dml_device *device, void *memory);

/* The backends of this build: the CPU always; OpenCL and CUDA where the implementation was compiled with
   DML_OPENCL or DML_CUDA defined and linked with dml_opencl.c or dml_cuda.cu. NULL past the last. */
DML_API const dml_backend *dml_backend_at(int i);

/* What dml_opencl.c and dml_cuda.cu define. */
#define dml_opencl_backend DML__ABI(dml_opencl_backend)
#define dml_cuda_backend DML__ABI(dml_cuda_backend)
DML__EXTERN_C const dml_backend *dml_opencl_backend(void);
DML__EXTERN_C const dml_backend *dml_cuda_backend(void);

/* Fills up to `capacity` infos with every device of every backend, best first ("auto" takes the first: a GPU
   before an OpenCL CPU, the CPU backend before an OpenCL CPU), and returns how many there are in all. */
DML_API int dml_devices(dml_device_info *infos, int capacity);

/* The address behind a reference on a host_memory device. */
static inline void *dml__host(dml_ref ref)
{
    return DML__CAST(char *, ref.buffer->host) + ref.offset;
}

#endif

/* ---- device/context.h ---- */

/* context.h: what a program opens first: a device, its threads, memory, and the place where errors stick. */
#ifndef DML_DEVICE_CONTEXT_H
#define DML_DEVICE_CONTEXT_H

typedef struct dml_context dml_context;

typedef struct dml_options {
    const char
        *device;   /* "cpu" (default), "opencl", "opencl:1", "cuda", "cuda:0", "auto": the best there is */
    int threads;   /* of the CPU pool; 0: dml_cpu_share(), which is all processors but for ranks */
    uint64_t seed; /* of every random number; 0 is a seed like any other */
    dml_allocator allocator; /* zero: malloc and free */
    void *memory; /* or: one buffer that everything on the host comes from, the caller's until close */
    size_t memory_bytes;
    dml_log_callback log; /* NULL: silence */
    void *log_user;
    const dml_pool_options *pool; /* NULL, or how the pool spins and whose threads it uses; its threads count
                                     when those above are 0, its allocator never */
    int pin;                      /* as in dml_pool_options, where that is 0 */
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
   be cleared: there is no device to go on with. */
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

/* ---- graph/shape.h ---- */

/* shape.h: the shape of a tensor, without its batch axis. */
#ifndef DML_GRAPH_SHAPE_H
#define DML_GRAPH_SHAPE_H

#define DML_MAX_DIMS 5

/* The dimensions of one sample, outermost first; ndim = 0 is a scalar. */
typedef struct dml_shape {
    int ndim;
    int dims[DML_MAX_DIMS];
} dml_shape;

/* The dimensions as arguments, outermost first, counted by the compiler: dml_shape_of(28, 28, 1). A scalar is
   a zeroed dml_shape. */
#define dml_shape_of(...) DML__REST_SHAPE(0, __VA_ARGS__)

/* How many elements: the product of the dimensions, 1 for a scalar. */
DML_API size_t dml_shape_count(const dml_shape *shape);
DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b);

/* Writes "28 x 28 x 1" ("scalar" for no dimensions) and returns `text`. */
#define DML_SHAPE_TEXT 64
DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT]);

/* How the macros that take dimensions count them: those after the first argument, 0 to 9. More than
   DML_MAX_DIMS are refused, with a sentence, by whoever takes the shape. */
#define DML__FIRST(...) DML__ARGUMENT_1(__VA_ARGS__, 0)
#define DML__ARGUMENT_1(a, ...) a
#define DML__REST_COUNT(...) DML__ARGUMENT_11(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)
#define DML__ARGUMENT_11(a, b, c, d, e, f, g, h, i, j, count, ...) count
#define DML__REST_SHAPE(...)                                                                                 \
    dml__shape(DML__REST_COUNT(__VA_ARGS__), DML__ARGUMENTS_2_TO_6(__VA_ARGS__, 0, 0, 0, 0, 0, 0))
#define DML__ARGUMENTS_2_TO_6(a, b, c, d, e, f, ...) b, c, d, e, f

static inline dml_shape dml__shape(int ndim, int d0, int d1, int d2, int d3, int d4)
{
    const dml_shape shape = { ndim, { d0, d1, d2, d3, d4 } };
    return shape;
}

#endif

/* ---- graph/graph.h ---- */

/* graph.h: a model is built as a graph of nodes, each one op on earlier nodes.

   A builder given NULL, or a graph whose context has an error, returns NULL; so a model is written without
   checks and checked once: whatever gave the first NULL has recorded why. Nodes belong to their graph, graphs
   to their context. The batch axis is implicit: shapes are those of one sample. */
#ifndef DML_GRAPH_GRAPH_H
#define DML_GRAPH_GRAPH_H

typedef struct dml_graph dml_graph;
typedef struct dml_node dml_node;

DML_API dml_graph *dml_graph_create(dml_context *context);

/* Releases the graph, its parameters and nodes. Programs and trainers on it must have been destroyed, else it
   stays, and DML_ERROR_STATE is recorded. */
DML_API void dml_graph_destroy(dml_graph *graph);
DML_API dml_context *dml_graph_context(const dml_graph *graph);

/* What a caller feeds, for each sample: DML_F32 data or DML_I32 labels. The dimensions follow, counted by the
   compiler; none for one number a sample:

       dml_node *x = dml_input(g, "image", DML_F32, 28, 28, 1), *t = dml_input(g, "label", DML_I32);

   The name is copied and must be the only one of its kind in the graph (NULL: "input_1", ...).
   DML_ERROR_SHAPE for a dimension below 1 or more than DML_MAX_DIMS of them; DML_ERROR_ARGUMENT for a name
   that is taken. */
#define dml_input(graph, name, ...)                                                                          \
    dml_input_shaped(graph, name, DML__FIRST(__VA_ARGS__), DML__REST_SHAPE(__VA_ARGS__))
DML_API dml_node *dml_input_shaped(dml_graph *graph, const char *name, dml_dtype dtype, dml_shape shape);

/* How a parameter begins. Random numbers are keyed by the context's seed and the parameter's place in the
   model, so they are the same on every device and rank. */
typedef enum dml_initializer_kind {
    DML_INIT_CONSTANT,
    DML_INIT_UNIFORM,
    DML_INIT_NORMAL
} dml_initializer_kind;
typedef struct dml_initializer {
    dml_initializer_kind kind;
    float a, b; /* constant: a; uniform: [a, b); normal: mean a, standard deviation b. Zero: zeros */
} dml_initializer;

DML_API dml_initializer dml_init_constant(float value);
DML_API dml_initializer dml_init_uniform(float low, float high); /* in [low, high) */
DML_API dml_initializer dml_init_normal(float mean, float deviation);

/* Normal with standard deviation sqrt(2 / fan_in), for layers followed by a ReLU.
   Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015, section 2.2. */
DML_API dml_initializer dml_init_he(int fan_in);

/* A trained f32 tensor, the same for each sample: dml_parameter(g, "weight", dml_init_he(784), 10, 784). The
   name is copied and must be the only one of its kind in the graph (NULL: "parameter_1", ...). Parameters
   that some op uses lie in the flat vector w (graph/weights.h). DML_ERROR_STATE once w has been laid out. */
#define dml_parameter(graph, name, ...)                                                                      \
    dml_parameter_shaped(graph, name, DML__FIRST(__VA_ARGS__), DML__REST_SHAPE(__VA_ARGS__))
DML_API dml_node *dml_parameter_shaped(dml_graph *graph, const char *name, dml_initializer init,
                                       dml_shape shape);

/* Names of what is built from here on begin with "scope.", until the pop: repeated blocks are told apart by
   dml_push_scope(g, "block.%d", i). Scopes nest, at most DML_MAX_SCOPES deep: "block.3.attn.qkv.weight".
   DML_ERROR_ARGUMENT for an empty or too long name; DML_ERROR_STATE for a pop without its push. */
#define DML_MAX_SCOPES 16
DML_API dml_status dml_push_scope(dml_graph *graph, const char *format, ...) DML__PRINTF(2, 3);
DML_API dml_status dml_pop_scope(dml_graph *graph);

/* Every node in the order of building, in which each comes after its inputs: from dml_graph_first on until
   NULL. dml_graph_find gives the one of a name, scopes included; NULL, with DML_ERROR_ARGUMENT recorded, when
   there is none. */
DML_API dml_node *dml_graph_first(const dml_graph *graph);
DML_API dml_node *dml_node_next(const dml_node *node);
DML_API dml_node *dml_graph_find(const dml_graph *graph, const char *name);

/* What a node is. Its name is the only one in its graph: the caller's, or its op's with a number ("relu_1",
   "conv2d_2"; the parameters that a layer makes are then "conv2d_2.weight" and "conv2d_2.bias"). */
#define DML_NAME_BYTES 128 /* of any name, its scopes and its end included */
DML_API dml_graph *dml_node_graph(const dml_node *node);
DML_API const char *dml_node_name(const dml_node *node);
DML_API const char *dml_node_op(const dml_node *node); /* "conv2d", "input", "parameter", ... */
DML_API dml_shape dml_node_shape(const dml_node *node);
DML_API dml_dtype dml_node_dtype(const dml_node *node);
DML_API bool dml_node_batched(const dml_node *node); /* one such tensor for each sample of the batch */
DML_API int dml_node_inputs(const dml_node *node);   /* how many */
DML_API dml_node *dml_node_input(const dml_node *node, int i);

/* What the op was told, in words, such as "kernel 3 x 3, stride 1 x 1, padding 0 x 0"; "" when there is
   nothing to tell. Cut to `bytes`, its end included, and returned. */
DML_API const char *dml_node_describe(const dml_node *node, char *text, size_t bytes);

/* Floating-point operations of its forward pass for one sample, a multiply-add counted as two; those of ops
   that only move or compare are not counted. */
DML_API double dml_node_flops(const dml_node *node);

#endif

/* ---- graph/weights.h ---- */

/* weights.h: the parameters of a graph, all in one flat vector w that belongs to the graph: reached, copied,
   saved and loaded without a trainer.

   Trained parameters lie in w in the order in which the graph first uses them; behind them lie those that
   aren't trained, for which there is neither a gradient nor an optimizer's state. w is laid out, and filled
   with initial values, by the first compile or the first call below that needs it; from then on the graph
   takes no new parameter. A parameter that no op uses has no place in w. */
#ifndef DML_GRAPH_WEIGHTS_H
#define DML_GRAPH_WEIGHTS_H

/* Elements of w, and how many of them, at its start, are trained. */
DML_API size_t dml_graph_parameter_count(const dml_graph *graph);
DML_API size_t dml_graph_trained_count(const dml_graph *graph);

/* The parameters in the order of their first use: how many, and each; NULL past the last. */
DML_API int dml_graph_parameters(const dml_graph *graph);
DML_API dml_node *dml_graph_parameter(const dml_graph *graph, int i);

/* Where a parameter begins in w, in elements; 0 before w is laid out. */
DML_API size_t dml_parameter_offset(const dml_node *parameter);

/* Whether a parameter is trained; a frozen one gets no gradient and no update. It has to be said before w is
   laid out, else DML_ERROR_STATE; DML_ERROR_ARGUMENT for a node that is no parameter. */
DML_API bool dml_parameter_trained(const dml_node *parameter);
DML_API dml_status dml_parameter_train(dml_node *parameter, bool trained);

/* Copies one parameter's values out or in. `count` is its number of elements, else DML_ERROR_SHAPE.
   DML_ERROR_STATE for one that no op uses, and for writing while programs predict on other threads. */
DML_API dml_status dml_parameter_read(dml_node *parameter, float *to, size_t count);
DML_API dml_status dml_parameter_write(dml_node *parameter, const float *from, size_t count);

/* Elements [begin, end) of w on the host: w itself where the device shares the host's memory, else a copy
   that is brought up to date, and that dml_graph_put brings back to the device after a change. NULL, with the
   error recorded, for a range that isn't there. The first call may allocate the copy, later ones don't. */
DML_API float *dml_graph_get(dml_graph *graph, size_t begin, size_t end);
DML_API dml_status dml_graph_put(dml_graph *graph, size_t begin, size_t end);

/* Writes every parameter under its name, as safetensors (https://github.com/huggingface/safetensors: a
   length, a JSON header, little-endian data), to a file: aside, synced, then renamed, so that a crash leaves
   the old file or the new one (a symbolic link there is replaced, not followed). DML_ERROR_IO with a sentence
   when it can't be written. dml_graph_store writes the same into memory: *bytes is how many it takes; a NULL
   `to` only asks, and a `capacity` that is too small is DML_ERROR_MEMORY. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_save(dml_graph *graph, const char *path);
#endif
DML_API dml_status dml_graph_store(dml_graph *graph, void *to, size_t capacity, size_t *bytes);

/* Reads what any of dml_graph_save, dml_trainer_save and Python's safetensors wrote: each parameter of the
   graph must be there by name, as F32 of its shape; tensors of the file that begin with "dml." are a
   trainer's, others that the graph doesn't have are an error. The file goes straight to w, so loading takes
   little more than w. DML_ERROR_IO when it can't be read; DML_ERROR_FORMAT when it is no such file, is
   damaged or of another model, with what differs: w is then unchanged. DML_ERROR_STATE while programs predict
   on other threads. `name` is what errors call the bytes. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_load(dml_graph *graph, const char *path);
#endif
DML_API dml_status dml_graph_load_memory(dml_graph *graph, const char *name, const void *bytes, size_t size);

#endif

/* ---- graph/program.h ---- */

/* program.h: a program is a graph compiled for one output and a largest batch: the ops to run, in order, and
   where each tensor lies in one arena. Several programs of one graph (one to train, some to predict) share
   its parameters.

   After compiling, a run allocates nothing. */
#ifndef DML_GRAPH_PROGRAM_H
#define DML_GRAPH_PROGRAM_H

typedef struct dml_program dml_program;

typedef struct dml_program_options {
    int batch;     /* the most samples of one run, at least 1: there is no default */
    bool training; /* also runs backward; the output must then be a scalar loss */
    /* The program runs on the thread that calls it, alone, with an arena, scratch and errors of its own: any
       number of such programs may run at once, each on one thread at a time, while nothing writes the graph's
       parameters. Their results are bitwise those of any other program. Only for predicting, on the CPU
       (DML_ERROR_UNSUPPORTED). They are compiled and destroyed by the thread that uses the context. */
    bool own_thread;
} dml_program_options;

/* Compiles what `output` needs. NULL for a NULL node; NULL, with the error on the context, for a batch below
   1, a training program whose output is not a scalar f32, or when memory is short. The first compile of a
   graph lays out its parameters (graph/weights.h). */
DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options);
DML_API void dml_program_destroy(dml_program *program);

/* Device bytes of the program's arena: activations, their gradients and what ops keep between forward and
   backward; parameters and their gradients are not counted. */
DML_API size_t dml_program_bytes(const dml_program *program);

/* The inputs that a run wants, in the order of dml_input: how many, and each. */
DML_API int dml_program_inputs(const dml_program *program);
DML_API dml_node *dml_program_input(const dml_program *program, int i);

/* Arrays for a run, with how many they are, as two arguments of the functions that take them:
   dml_program_run(p, rows, DML_INPUTS(images, labels), output); at most 16, in C and C++. */
#define DML_INPUTS(...) DML__INPUT_LIST(__VA_ARGS__), 1 + DML__REST_COUNT_16(__VA_ARGS__)
#ifdef __cplusplus
struct dml__input_list {
    const void *at[16];
};
#define DML__INPUT_LIST(...) dml__input_list{ { __VA_ARGS__ } }.at
#else
#define DML__INPUT_LIST(...) ((const void *const[]){ __VA_ARGS__ })
#endif
#define DML__REST_COUNT_16(...)                                                                              \
    DML__ARGUMENT_17(__VA_ARGS__, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)
#define DML__ARGUMENT_17(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count

/* Runs forward on `rows` samples, 1 .. batch, to predict: also a program that was compiled to train.
   inputs[i] holds `rows` samples for dml_program_input(i), and `count` is how many inputs there are, else
   DML_ERROR_ARGUMENT; `output`, when not NULL, receives the output (for each sample, if it has one for each).
   The inputs are aligned as arrays of their type are (else DML_ERROR_ARGUMENT), nobody writes them until the
   call returns, and the call doesn't: on the CPU they are read where they lie.
   Labels that are out of range are DML_ERROR_ARGUMENT, before anything is run. DML_ERROR_STATE, with nothing
   run, when another thread is in the program or, but for programs with a thread of their own, in its context,
   and while the parameters are being written. */
DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, int count,
                                   void *output);

/* The first error of a program with a thread of its own, since compiling or clearing it; of any other
   program, its context's. */
DML_API const char *dml_program_error(const dml_program *program);
DML_API dml_status dml_program_status(const dml_program *program);
DML_API void dml_program_clear_error(dml_program *program);

#endif

/* ---- graph/print.h ---- */

/* print.h: a graph for people to look at. */
#ifndef DML_GRAPH_PRINT_H
#define DML_GRAPH_PRINT_H

#ifndef DML_NO_STDIO
#include <stdio.h>

/* Writes a table of the graph: a line for each node that isn't a parameter, with its name, what it does, its
   output for one sample, how many parameters are its own (those that an earlier line counted aren't counted
   again), and the floating-point operations of its forward pass for one sample; then the totals. (Parameters'
   names: dml_graph_first and dml_node_next go through all nodes, with dml_node_op "parameter".)
   DML_ERROR_IO, recorded on the context, when the file can't be written. */
DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file);

/* Writes the graph in the language of Graphviz: `dot -Tsvg` draws it. */
DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file);

#endif

#endif

/* ---- ops/op_arithmetic.h ---- */

/* op_arithmetic.h: arithmetic, comparisons and choices, element by element, and changes of shape.

   Shapes are broadcast: counted from the last, dimensions must be the same or 1; a dimension of 1, or one
   that is missing, is repeated, and so is an operand without a batch (a parameter) for each sample. The
   gradient of what was repeated is the sum over its repetitions. DML_ERROR_SHAPE when dimensions differ. */
#ifndef DML_OPS_OP_ARITHMETIC_H
#define DML_OPS_OP_ARITHMETIC_H

DML_API dml_node *dml_add(dml_node *a, dml_node *b); /* a + b; also of losses */
DML_API dml_node *dml_sub(dml_node *a, dml_node *b); /* a - b */
DML_API dml_node *dml_mul(dml_node *a, dml_node *b); /* a b, element by element */
DML_API dml_node *dml_div(dml_node *a, dml_node *b); /* a / b */

/* The larger, the smaller; NaN if either is. Of equals, each gets half of the gradient. */
DML_API dml_node *dml_maximum(dml_node *a, dml_node *b);
DML_API dml_node *dml_minimum(dml_node *a, dml_node *b);

/* 1 where it is so, else 0; no gradient flows through them. */
DML_API dml_node *dml_equal(dml_node *a, dml_node *b);
DML_API dml_node *dml_not_equal(dml_node *a, dml_node *b);
DML_API dml_node *dml_less(dml_node *a, dml_node *b);       /* a < b */
DML_API dml_node *dml_less_equal(dml_node *a, dml_node *b); /* a <= b */

/* Where the condition is not 0 an element of a, else of b. */
DML_API dml_node *dml_where(dml_node *condition, dml_node *a, dml_node *b);

/* (d0, d1, ...) as (d0 d1 ...): no data moves. */
DML_API dml_node *dml_flatten(dml_node *x);

#endif

/* ---- ops/op_activation.h ---- */

/* op_activation.h: functions of one element. The result has the input's shape. */
#ifndef DML_OPS_OP_ACTIVATION_H
#define DML_OPS_OP_ACTIVATION_H

DML_API dml_node *dml_relu(dml_node *x);                    /* max(x, 0) */
DML_API dml_node *dml_leaky_relu(dml_node *x, float slope); /* x above 0, else slope x */
DML_API dml_node *dml_elu(dml_node *x, float alpha);        /* x above 0, else alpha (e^x - 1) */
DML_API dml_node *dml_gelu(dml_node *x);                    /* x (1 + erf(x / sqrt(2))) / 2 */
DML_API dml_node *dml_silu(dml_node *x);                    /* x sigmoid(x), swish */
DML_API dml_node *dml_sigmoid(dml_node *x);                 /* 1 / (1 + exp(-x)) */
DML_API dml_node *dml_tanh(dml_node *x);                    /* tanh(x) */
DML_API dml_node *dml_softplus(dml_node *x);                /* log(1 + e^x) */

/* The gelu by which GPT-2 and BERT were trained:
   x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks, Gimpel, "Gaussian error linear units", 2016,
   section 2). */
DML_API dml_node *dml_gelu_tanh(dml_node *x);

DML_API dml_node *dml_exp(dml_node *x);
DML_API dml_node *dml_log(dml_node *x);  /* -infinity for 0, NaN below */
DML_API dml_node *dml_sqrt(dml_node *x); /* NaN below 0 */
DML_API dml_node *dml_abs(dml_node *x);  /* gradient 0 at 0 */
DML_API dml_node *dml_square(dml_node *x);
DML_API dml_node *dml_pow(dml_node *x, float exponent); /* NaN below 0, unless the exponent is whole */

/* x, but at least `low` and at most `high`, which may be infinite; gradient 0 outside. DML_ERROR_ARGUMENT
   where low is above high. */
DML_API dml_node *dml_clamp(dml_node *x, float low, float high);

DML_API dml_node *dml_affine(dml_node *x, float scale, float shift); /* scale x + shift */

#endif

/* ---- ops/op_dense.h ---- */

/* op_dense.h: the fully connected layer. */
#ifndef DML_OPS_OP_DENSE_H
#define DML_OPS_OP_DENSE_H

/* A layer with parameters of its own: x (in) -> x w^T + bias (units), w [units, in] He-initialised, bias
 * zero.
 */
DML_API dml_node *dml_dense(dml_node *x, int units);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w (units,
   in), bias (units) or NULL for none. */
DML_API dml_node *dml_dense_with(dml_node *x, dml_node *w, dml_node *bias);

#endif

/* ---- ops/op_conv2d.h ---- */

/* op_conv2d.h: the convolution layer. */
#ifndef DML_OPS_OP_CONV2D_H
#define DML_OPS_OP_CONV2D_H

typedef struct dml_conv2d_options {
    int filters;    /* output channels, at least 1: there is no default (dml_conv2d_with: the weights') */
    int kernel[2];  /* height, width; 0: 3 (dml_conv2d_with: the weights') */
    int stride[2];  /* 0: 1 */
    int padding[2]; /* zeros on both sides; 0: none */
    bool no_bias;
    int dilation[2]; /* how far apart the taps lie; 0: 1 */
    int groups;      /* a divisor of the channels and of the filters, which are then connected group by group;
                        as many as channels: depthwise; 0: 1 */
} dml_conv2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [filters, kh, kw,
   C / groups], He-initialised, bias zero. OH = (H + 2 padding - (kh - 1) dilation - 1) / stride + 1. */
DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w
   [filters, kh, kw, C / groups] says how many filters and how large a kernel, and the options must not say
   otherwise; bias (filters) or NULL for none. NULL options: all defaults. */
DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                  const dml_conv2d_options *options);

#endif

/* ---- ops/op_pool2d.h ---- */

/* op_pool2d.h: pooling layers. */
#ifndef DML_OPS_OP_POOL2D_H
#define DML_OPS_OP_POOL2D_H

typedef struct dml_pool2d_options {
    int kernel[2];  /* height, width; 0: 2 */
    int stride[2];  /* 0: the kernel's */
    int padding[2]; /* on both sides, smaller than the kernel; 0: none. Padding never wins and is never
                       counted */
} dml_pool2d_options;

/* x (H, W, C) -> (OH, OW, C): the largest, or the mean, of each window. NULL options: 2 x 2 windows side by
 * side. */
DML_API dml_node *dml_max_pool2d(dml_node *x, const dml_pool2d_options *options);
DML_API dml_node *dml_avg_pool2d(dml_node *x, const dml_pool2d_options *options);

/* x (H, W, C) -> (C): the mean of each channel. It is dml_avg_pool2d over the whole image, flattened. */
DML_API dml_node *dml_global_avg_pool2d(dml_node *x);

#endif

/* ---- ops/op_slice2d.h ---- */

/* op_slice2d.h: parts of images, and zeros around them. */
#ifndef DML_OPS_OP_SLICE2D_H
#define DML_OPS_OP_SLICE2D_H

/* Each for height, width and channels. */
typedef struct dml_slice2d_options {
    int begin[3], end[3];    /* the places that are taken, begin .. end - 1; an end of 0: the size */
    int step[3];             /* every step-th of them; 0: 1 */
    int before[3], after[3]; /* zeros that are put around what was taken */
} dml_slice2d_options;

/* x (H, W, C) -> along each axis, before + (end - begin) / step, rounded up, + after. NULL options: all of x.
   DML_ERROR_ARGUMENT for places that aren't there. */
DML_API dml_node *dml_slice2d(dml_node *x, const dml_slice2d_options *options);

/* The identity shortcut of a residual network between stages: every stride-th pixel of x, and zeros for
   channels that x doesn't have, half of them before its own and half (the larger) behind: x (H, W, C) ->
   (H / stride, W / stride, channels), rounded up. x itself for a stride of 1 and its own channels.
   Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2,
   option A. Which channels are padded is not said there; half and half is what is common. For all of them
   behind, use dml_slice2d with `after`. */
DML_API dml_node *dml_padded_shortcut2d(dml_node *x, int stride, int channels);

#endif

/* ---- ops/op_norm.h ---- */

/* op_norm.h: normalization layers. */
#ifndef DML_OPS_OP_NORM_H
#define DML_OPS_OP_NORM_H

typedef struct dml_batch_norm_options {
    float epsilon;  /* added to the variance; 0: 1e-5 */
    float momentum; /* how much of the running statistics each batch replaces, at most 1; 0: 0.1. That is
                       PyTorch's meaning; Keras' momentum is 1 minus it */
    bool frozen;    /* also in training the running statistics are used, and stay as they are */
} dml_batch_norm_options;

/* Normalizes each channel, the last dimension of x: (H, W, C) or (C) -> the same, by

       y = weight (x - mean) / sqrt(variance + epsilon) + bias

   In training, mean and variance are those of the batch, over its samples and pixels. Each training pass also
   moves the running statistics towards them,

       running_mean = (1 - momentum) running_mean + momentum mean

   and running_var likewise, by the unbiased variance (PyTorch's rule; where a channel has one number, there
   is none, and it stays). dml_program_run predicts by the running statistics and leaves them alone, also on a
   program that was compiled to train.

   The layer's parameters (C) are "batch_norm_1.weight" (one at first), ".bias" (zero), ".running_mean" (zero)
   and ".running_var" (one); the last two are frozen, so no optimizer touches them, and lie in w, so files
   have them. Under a sync strategy each rank normalizes by its own part of the batch and has its own running
   statistics: those of the rank that saves are in its file.
   Source: Ioffe, Szegedy, "Batch normalization", ICML 2015. NULL options: all defaults. */
DML_API dml_node *dml_batch_norm(dml_node *x, const dml_batch_norm_options *options);

/* The same on parameters of the caller's: begun in another way, shared, frozen. running_mean and running_var
   must be parameters that aren't trained (dml_parameter_train), else DML_ERROR_ARGUMENT. */
DML_API dml_node *dml_batch_norm_with(dml_node *x, dml_node *weight, dml_node *bias, dml_node *running_mean,
                                      dml_node *running_var, const dml_batch_norm_options *options);

#endif

/* ---- ops/op_loss.h ---- */

/* op_loss.h: losses, each one scalar for the whole batch. */
#ifndef DML_OPS_OP_LOSS_H
#define DML_OPS_OP_LOSS_H

/* The mean over the batch of -log softmax(logits)[label]: logits f32 (classes), labels an i32 scalar a
   sample, each in 0 .. classes - 1. */
DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels);

/* The mean over all elements of the batch of (a - b)^2, of the same shape. */
DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b);

#endif

/* ---- train/optimizer.h ---- */

/* optimizer.h: how parameters follow their gradients. */
#ifndef DML_TRAIN_OPTIMIZER_H
#define DML_TRAIN_OPTIMIZER_H

typedef enum dml_optimizer_kind { DML_SGD } dml_optimizer_kind;

/* An optimizer is its kind and its numbers; its state vectors live in the trainer. Fields that a kind doesn't
   name are ignored. */
typedef struct dml_optimizer {
    dml_optimizer_kind kind;
    float lr;           /* learning rate; 0: 0.01 */
    float momentum;     /* sgd: 0 or more, below 1 */
    float weight_decay; /* sgd: added to the gradient, times the parameter */
    bool nesterov;      /* sgd: look ahead along the velocity */
} dml_optimizer;

/* Stochastic gradient descent; momentum 0 keeps no velocity. The update is that of dml_sgd_update. */
DML_API dml_optimizer dml_sgd(float lr, float momentum);

#endif

/* ---- train/trainer.h ---- */

/* trainer.h: a training program, an optimizer, and a sync strategy. */
#ifndef DML_TRAIN_TRAINER_H
#define DML_TRAIN_TRAINER_H

typedef struct dml_trainer dml_trainer;

typedef struct dml_trainer_options {
    int batch;               /* the most samples of one step, at least 1: there is no default */
    dml_optimizer optimizer; /* zero: dml_sgd(0.01, 0) */
} dml_trainer_options;

/* Compiles the loss for training. NULL, with the error on the context, when dml_compile refuses, the
   optimizer's numbers are out of range, or memory is short. After this, a step allocates nothing. */
DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options);
DML_API void dml_trainer_destroy(dml_trainer *trainer);

/* One step on `rows` samples, 1 .. batch (0 too under a sync strategy, for a rank that got none of the global
   batch): dml_trainer_backward and dml_trainer_update. inputs[i] holds `rows` samples for
   dml_program_input(program, i), the inputs in the order of dml_input, and `count` is how many inputs there
   are; DML_INPUTS(images, labels) stands for both. `loss`, when not NULL, receives the mean loss of these
   samples before the update; asking for it waits for the device. Input that is refused (DML_ERROR_ARGUMENT)
   is so before anything is sent to other ranks, so that the step can be made again. DML_ERROR_STATE, with
   nothing done, while another thread is in the context or programs predict on other threads. */
DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                    float *loss);

/* What dml_trainer_backward does with g, joined by |. */
enum {
    DML_OVERWRITE = 0,
    DML_ADD = 1, /* to the samples that g holds since the last update (none: as DML_OVERWRITE) */
    DML_MORE = 2 /* more will be added before an update; a sync strategy waits for it, and until then g is
                    this rank's own */
};

/* Forward and backward on `rows` samples; w stays, but for running statistics (ops/op_norm.h), because of
   which it may then be refused as an update is. g is then the mean, over all samples that it holds, of the
   gradient of their loss: of this call's, and with DML_ADD of earlier ones' too, however many each had; under
   a sync strategy of every rank's. So one large batch may come in pieces:

       for (int i = 0; i < pieces; i++)
           dml_trainer_backward(t, rows, DML_INPUTS(x[i], y[i]),
                                DML_ADD | (i < pieces - 1 ? DML_MORE : 0), NULL);
       dml_trainer_update(t);

   `loss` is the mean over the samples of this call alone. Whatever the caller does to g between the two
   (clipping, a regulariser) is done to the gradient that will be applied, alone and under every strategy:
   reach it by dml_trainer_get and dml_trainer_put. Under a strategy every rank makes the same calls. */
DML_API dml_status dml_trainer_backward(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                        int flags, float *loss);

/* The optimizer's step: w follows g. The step is then counted, and what is added to g next begins anew.
   (A second update without a backward between applies the same gradient again.) DML_ERROR_STATE while g waits
   for more (DML_MORE), after a backward that failed, and while programs predict on other threads. */
DML_API dml_status dml_trainer_update(dml_trainer *trainer);

/* Its two halves, for optimizers of the caller's own and for ones that treat parts of w in other ways: the
   optimizer's step for elements [begin, end) of the trained parameters alone; and, once in a step, counting
   it. (An optimizer of one's own changes w by dml_trainer_get and dml_trainer_put, then calls the second.)
   Errors are as for the whole. */
DML_API dml_status dml_trainer_update_range(dml_trainer *trainer, size_t begin, size_t end);
DML_API dml_status dml_trainer_advance(dml_trainer *trainer);

DML_API dml_program *dml_trainer_program(dml_trainer *trainer);
DML_API dml_context *dml_trainer_context(const dml_trainer *trainer);

/* Steps taken, those before a checkpoint included. */
DML_API uint64_t dml_trainer_steps(const dml_trainer *trainer);

/* The learning rate of the steps to come, for schedules: 0 or more, else DML_ERROR_ARGUMENT is recorded. */
DML_API float dml_trainer_lr(const dml_trainer *trainer);
DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr);

/* The flat vectors. Every parameter lies in one vector, the graph's w (graph/weights.h). The gradient of each
   trained one lies at the same place of another, and the optimizer's state in vectors of that length. */
enum { DML_PARAMETERS, DML_GRADIENTS, DML_OPTIMIZER_STATE /* the first; + i for the next */ };

/* How many elements a vector has, and how many vectors there are. */
DML_API size_t dml_trainer_count(const dml_trainer *trainer, int vector);
DML_API int dml_trainer_vectors(const dml_trainer *trainer);

/* Elements [begin, end) of a vector, on the host: the vector itself where the device shares the host's
   memory, else a copy that dml_trainer_put brings back to the device after a change. dml_trainer_get brings
   the copy up to date first; dml_trainer_host gives it as it was left. Both return NULL, with the error
   recorded, for a range or vector that isn't there. None of them allocates. */
DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end);
DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end);
DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end);

/* A sync strategy: what happens to ranges of g and w at the moments of a distributed step. Each function may
   be NULL and returns a status; the first that is not DML_OK ends the step. A strategy records its own error
   sentence with dml_trainer_fail. After a failure the next step may come all the same. */
typedef struct dml_sync {
    void *state;
    /* Once, when dml_trainer_sync attaches it: make all ranks' parameters the same. */
    dml_status (*start)(void *state, dml_trainer *trainer);
    /* Before forward. A strategy that combines gradients (`ready` or `finish`) sees in g sums over samples,
       not means, so that shards of any sizes add up; `samples` is how many this rank's part of the sum stands
       for (not whole when ranks share what was summed before). */
    dml_status (*begin)(void *state, dml_trainer *trainer, double samples);
    /* During backward, from the end of g towards its start: g[begin, end) is final, this rank's sum. The
       ranges depend on the model alone: ranks without samples see them too. */
    dml_status (*ready)(void *state, dml_trainer *trainer, size_t begin, size_t end);
    /* After backward: when it returns, g holds the sum over all ranks, and *samples, which begins as this
       rank's, how many samples that stands for. The trainer makes their mean of it. */
    dml_status (*finish)(void *state, dml_trainer *trainer, double *samples);
    /* Instead of the rest, when anything has failed from begin to finish, these included: when it returns,
       nothing of the strategy's reads or writes g any more. */
    void (*failed)(void *state, dml_trainer *trainer);
    /* After the update of w. */
    dml_status (*updated)(void *state, dml_trainer *trainer);
    /* When the trainer is destroyed or another strategy is attached. */
    void (*destroy)(void *state, dml_trainer *trainer);
    int ranks; /* how many combine their gradients; 0: 1 */
} dml_sync;

/* Attaches a strategy, which the trainer then owns, in the place of the one it has, and starts it. On failure
   the strategy is destroyed. When the call can't begin (the context has an error, or another thread is in
   it), the one that was attached stays. */
DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync);

/* For strategies: records the error on the trainer's context if it has none; returns `status`. */
DML_API dml_status dml_trainer_fail(dml_trainer *trainer, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* For strategies and checkpoints: what of a run has to be the same on all ranks, and to come back, beside its
   vectors. */
typedef struct dml_trainer_run {
    dml_optimizer optimizer;
    uint64_t seed, steps; /* the context's; taken */
} dml_trainer_run;

DML_API dml_trainer_run dml_trainer_get_run(const dml_trainer *trainer);

/* DML_ERROR_ARGUMENT for an optimizer that can't be, or that keeps other state than the trainer's: nothing is
   changed then. */
DML_API dml_status dml_trainer_set_run(dml_trainer *trainer, const dml_trainer_run *run);

#endif

/* ---- train/checkpoint.h ---- */

/* checkpoint.h: a training run on disk. */
#ifndef DML_TRAIN_CHECKPOINT_H
#define DML_TRAIN_CHECKPOINT_H

#ifndef DML_NO_STDIO

/* Writes what dml_graph_save writes and, in the same safetensors file, the rest of the run: the optimizer's
   state for each trained parameter ("dml.velocity.dense_1.weight") and, in the metadata, its kind and
   numbers, the seed and the steps taken. So dml_graph_load, and other tools, read the model from it. Written
   aside, synced, then renamed: a crash leaves the old file or the new one. What g has accumulated isn't
   written. DML_ERROR_IO with a sentence when it can't be written. */
DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path);

/* Reads what dml_trainer_save wrote for the same model and kind of optimizer; training then goes on as if it
   had never stopped: the optimizer takes on the run's numbers (a learning rate can be set again afterwards),
   the context its seed. DML_ERROR_IO when the file can't be read; DML_ERROR_FORMAT when it is no checkpoint,
   is damaged, or is of another model or an optimizer with other state, with what doesn't fit: the trainer is
   then unchanged. */
DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path);

/* Whether dml_trainer_save could write there: asked before a long run, not after it. What is there stays as
   it is. DML_ERROR_IO with a sentence that says what forbids it. */
DML_API dml_status dml_trainer_check_save(dml_trainer *trainer, const char *path);

#endif

#endif

/* ---- train/progress.h ---- */

/* progress.h: a line that shows how far a training run has come. */
#ifndef DML_TRAIN_PROGRESS_H
#define DML_TRAIN_PROGRESS_H

#ifndef DML_NO_STDIO
#include <stdio.h>

typedef struct dml_progress_options {
    int64_t total;     /* steps of the whole; 0: unknown, so no bar and no time left */
    const char *label; /* shown first, such as "lenet"; NULL: nothing. The caller's until dml_progress_end */
    int terminal;      /* 1: the file is a terminal; -1: it isn't; 0: find out (see below) */
    int width;         /* in columns; 0: as wide as the terminal, else what COLUMNS says, else 80 */
    double (*seconds)(void *user); /* a clock that never runs backwards; NULL: dml_seconds */
    void *seconds_user;
} dml_progress_options;

/* The state of a progress line. It lies where the caller wants it and owns nothing; its fields are private.
 */
typedef struct dml_progress {
    FILE *file;
    dml_progress_options options;
    bool drawing;
    int drawn;        /* columns of the bar on the screen, 0 when there is none */
    double next_draw; /* not before this time */
    struct {
        double time;
        int64_t step, samples;
    } mark[2]; /* two moments of the last seconds, older first: speeds are measured from the older */
} dml_progress;

/* Starts a progress line on `file`; NULL options: all defaults. A NULL file makes every call do nothing, for
   ranks that have nothing to say. On a terminal a bar is drawn, elsewhere only the lines below appear. A file
   is a terminal when isatty says so, or when the environment variable DML_TERMINAL holds the digit of its
   descriptor ("1", "2", "12"): dmlrun sets it for a rank whose output it passes on to one. */
DML_API void dml_progress_begin(dml_progress *progress, FILE *file, const dml_progress_options *options);

/* Tells that `step` steps are done, with the loss of the last and `samples` samples since the beginning (0:
   not counted). Draws at most 10 times a second, so it may be called at each step:

       lenet  42 % [==============>                    ]  loss 0.1234  12345 samples/s  0:12 left

   What doesn't fit the width is left out. Plain ASCII, without colour. */
DML_API void dml_progress_update(dml_progress *progress, int64_t step, double loss, int64_t samples);

/* Prints one line that stays, such as an epoch's result, above the bar; a newline is added. */
DML_API void dml_progress_line(dml_progress *progress, const char *format, ...) DML__PRINTF(2, 3);

/* Takes the bar off the screen. Nothing more is drawn. */
DML_API void dml_progress_end(dml_progress *progress);

#endif
#endif

/* ---- train/idx.h ---- */

/* idx.h: reads IDX files, the format of MNIST: one array of bytes.

   A file is: two zero bytes, the element type (8: unsigned bytes, the only one read here), the number of
   dimensions, each dimension as a big-endian 32-bit number, then the elements, the last dimension fastest.
   Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", http://yann.lecun.com/exdb/mnist */
#ifndef DML_TRAIN_IDX_H
#define DML_TRAIN_IDX_H

enum { DML_IDX_DIMS = 4 };

typedef struct dml_idx {
    int ndim;                  /* 1 .. DML_IDX_DIMS */
    int dims[DML_IDX_DIMS];    /* each at least 1; those past ndim are 1 */
    const unsigned char *data; /* (dims[0], ..., dims[ndim - 1]) */
    void *block;               /* private: what dml_idx_free gives back */
} dml_idx;

/* Reads a file into memory of the context. On failure the sentence on the context names the file, and *out
   is empty. DML_ERROR_IO: it can't be read; DML_ERROR_FORMAT: it is no such file, is cut short, goes on after
   its end, or is still packed (.gz); DML_ERROR_MEMORY. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_idx_load(dml_context *context, const char *path, dml_idx *out);
#endif

/* The same for `size` bytes in memory, called `name` in a failure's sentence. Nothing is copied: out->data
   points into `bytes`. */
DML_API dml_status dml_idx_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                 dml_idx *out);

/* Gives the memory back and empties *idx; an empty one, or a parsed one, is fine. Call it before dml_close.
 */
DML_API void dml_idx_free(dml_context *context, dml_idx *idx);

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

/* ---- base/cpu_bf16.c ---- */

#ifndef DML_BASE_CPU_BF16_C
#define DML_BASE_CPU_BF16_C

/* ---- base/cpu_bf16.h ---- */

/* cpu_bf16.h: which instructions for bf16 products the processor has. */
#ifndef DML_BASE_CPU_BF16_H
#define DML_BASE_CPU_BF16_H

/* gcc 11 and clang 12 are the first that compile both; leave to use AMX is Linux's to give. DML_NO_AVX512
   leaves these out too. */
#if defined(DML__HAS_AVX512) && defined(__x86_64__) &&                                                       \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define DML__HAS_AVX512_BF16 1
#if defined(__linux__)
#define DML__HAS_AMX 1
#endif
#endif

typedef enum dml__bf16_isa {
    DML__BF16_WIDENED, /* none: bf16 is widened to f32 */
    DML__BF16_AVX512,  /* AVX512-BF16: dot products of pairs */
    DML__BF16_AMX      /* AMX-TILE and AMX-BF16: 16 x 16 tiles */
} dml__bf16_isa;

/* The best of them, where `isa` is AVX-512, and the environment variable DML_ISA doesn't ask for that alone
   ("avx512"). Linux is asked for leave to use AMX's registers, once for the process. */
DML__LOCAL dml__bf16_isa dml__cpu_bf16(dml_isa isa);

#endif

#include <stdlib.h>
#include <string.h>
#if defined(DML__HAS_AVX512_BF16) && !defined(DML__EMULATED)
#include <cpuid.h>
#endif
#if defined(DML__HAS_AMX) && !defined(DML__EMULATED)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(DML__EMULATED)

/* A build for tests, in which plain C stands for all instructions. */
static bool dml__has_avx512_bf16(void)
{
    return true;
}

static bool dml__has_amx(void)
{
    return true;
}

#elif defined(DML__HAS_AVX512_BF16)

static bool dml__has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

#if defined(DML__HAS_AMX)
/* Leave is the process's, and asking for it again is fine: there is nothing to remember. */
static bool dml__may_use_amx(void)
{
    enum { ARCH_REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool dml__has_amx(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && dml__may_use_amx();
}
#else
static bool dml__has_amx(void)
{
    return false;
}
#endif

#else

static bool dml__has_avx512_bf16(void)
{
    return false;
}

static bool dml__has_amx(void)
{
    return false;
}

#endif

DML__LOCAL dml__bf16_isa dml__cpu_bf16(dml_isa isa)
{
    const char *wanted = getenv("DML_ISA");
    if (isa != DML_ISA_AVX512 || (wanted && strcmp(wanted, "avx512") == 0)) return DML__BF16_WIDENED;
    if (dml__has_amx() && !(wanted && strcmp(wanted, "avx512_bf16") == 0)) return DML__BF16_AMX;
    return dml__has_avx512_bf16() ? DML__BF16_AVX512 : DML__BF16_WIDENED;
}

#endif

/* ---- base/philox.c ---- */

#ifndef DML_BASE_PHILOX_C
#define DML_BASE_PHILOX_C

#include <math.h>

DML_API void dml_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void dml__random_block(const dml_random *random, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), random->stream, random->step };
    const uint32_t key[2] = { (uint32_t)random->seed, (uint32_t)(random->seed >> 32) };
    dml_philox4x32(counter, key, out);
}

DML_API uint32_t dml_random_bits(const dml_random *random, uint64_t element)
{
    uint32_t out[4];
    dml__random_block(random, element / 4, out);
    return out[element % 4];
}

DML_API float dml_random_uniform(const dml_random *random, uint64_t element)
{
    return (float)(dml_random_bits(random, element) >> 8) * (1.0f / 16777216.0f);
}

DML_API float dml_random_normal(const dml_random *random, uint64_t element)
{
    uint32_t out[4];
    dml__random_block(random, element / 2, out);
    const uint32_t pair = (uint32_t)(element % 2) * 2;
    const float u = (float)((out[pair] >> 8) + 1) * (1.0f / 16777216.0f); /* (0, 1] */
    const float v = (float)(out[pair + 1] >> 8) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(6.28318530718f * v);
}

DML_API void dml_random_permutation(const dml_random *random, int *out, int count)
{
    for (int i = 0; i < count; i++) out[i] = i;
    for (int i = count - 1; i > 0; i--) {
        const uint64_t product = (uint64_t)dml_random_bits(random, (uint64_t)i) * ((uint64_t)i + 1);
        const int j = (int)(product >> 32);
        const int swap = out[i];
        out[i] = out[j];
        out[j] = swap;
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

/* ---- base/checksum.c ---- */

#ifndef DML_BASE_CHECKSUM_C
#define DML_BASE_CHECKSUM_C

/* ---- base/checksum.h ---- */

/* checksum.h: whether bytes are still what they were. */
#ifndef DML_BASE_CHECKSUM_H
#define DML_BASE_CHECKSUM_H

/* CRC-32C of `bytes` bytes that follow those whose checksum is `crc` (0: none yet), so that
   dml__crc32c(dml__crc32c(0, a), b) is the checksum of a and b joined. Against accidents, not against
   forgers. Source: Castagnoli et al., IEEE Trans. Communications 41(6), 1993; bits and start as in RFC 3720,
   B.4. */
DML__LOCAL uint32_t dml__crc32c(uint32_t crc, const void *data, size_t bytes);

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

/* What each byte does to the remainder: eight steps of division by the polynomial 0x1edc6f41, bits reversed.
 */
/* clang-format off */
static const uint32_t dml__crc32c_table[256] = {
    0x00000000, 0xf26b8303, 0xe13b70f7, 0x1350f3f4, 0xc79a971f, 0x35f1141c, 0x26a1e7e8, 0xd4ca64eb,
    0x8ad958cf, 0x78b2dbcc, 0x6be22838, 0x9989ab3b, 0x4d43cfd0, 0xbf284cd3, 0xac78bf27, 0x5e133c24,
    0x105ec76f, 0xe235446c, 0xf165b798, 0x030e349b, 0xd7c45070, 0x25afd373, 0x36ff2087, 0xc494a384,
    0x9a879fa0, 0x68ec1ca3, 0x7bbcef57, 0x89d76c54, 0x5d1d08bf, 0xaf768bbc, 0xbc267848, 0x4e4dfb4b,
    0x20bd8ede, 0xd2d60ddd, 0xc186fe29, 0x33ed7d2a, 0xe72719c1, 0x154c9ac2, 0x061c6936, 0xf477ea35,
    0xaa64d611, 0x580f5512, 0x4b5fa6e6, 0xb93425e5, 0x6dfe410e, 0x9f95c20d, 0x8cc531f9, 0x7eaeb2fa,
    0x30e349b1, 0xc288cab2, 0xd1d83946, 0x23b3ba45, 0xf779deae, 0x05125dad, 0x1642ae59, 0xe4292d5a,
    0xba3a117e, 0x4851927d, 0x5b016189, 0xa96ae28a, 0x7da08661, 0x8fcb0562, 0x9c9bf696, 0x6ef07595,
    0x417b1dbc, 0xb3109ebf, 0xa0406d4b, 0x522bee48, 0x86e18aa3, 0x748a09a0, 0x67dafa54, 0x95b17957,
    0xcba24573, 0x39c9c670, 0x2a993584, 0xd8f2b687, 0x0c38d26c, 0xfe53516f, 0xed03a29b, 0x1f682198,
    0x5125dad3, 0xa34e59d0, 0xb01eaa24, 0x42752927, 0x96bf4dcc, 0x64d4cecf, 0x77843d3b, 0x85efbe38,
    0xdbfc821c, 0x2997011f, 0x3ac7f2eb, 0xc8ac71e8, 0x1c661503, 0xee0d9600, 0xfd5d65f4, 0x0f36e6f7,
    0x61c69362, 0x93ad1061, 0x80fde395, 0x72966096, 0xa65c047d, 0x5437877e, 0x4767748a, 0xb50cf789,
    0xeb1fcbad, 0x197448ae, 0x0a24bb5a, 0xf84f3859, 0x2c855cb2, 0xdeeedfb1, 0xcdbe2c45, 0x3fd5af46,
    0x7198540d, 0x83f3d70e, 0x90a324fa, 0x62c8a7f9, 0xb602c312, 0x44694011, 0x5739b3e5, 0xa55230e6,
    0xfb410cc2, 0x092a8fc1, 0x1a7a7c35, 0xe811ff36, 0x3cdb9bdd, 0xceb018de, 0xdde0eb2a, 0x2f8b6829,
    0x82f63b78, 0x709db87b, 0x63cd4b8f, 0x91a6c88c, 0x456cac67, 0xb7072f64, 0xa457dc90, 0x563c5f93,
    0x082f63b7, 0xfa44e0b4, 0xe9141340, 0x1b7f9043, 0xcfb5f4a8, 0x3dde77ab, 0x2e8e845f, 0xdce5075c,
    0x92a8fc17, 0x60c37f14, 0x73938ce0, 0x81f80fe3, 0x55326b08, 0xa759e80b, 0xb4091bff, 0x466298fc,
    0x1871a4d8, 0xea1a27db, 0xf94ad42f, 0x0b21572c, 0xdfeb33c7, 0x2d80b0c4, 0x3ed04330, 0xccbbc033,
    0xa24bb5a6, 0x502036a5, 0x4370c551, 0xb11b4652, 0x65d122b9, 0x97baa1ba, 0x84ea524e, 0x7681d14d,
    0x2892ed69, 0xdaf96e6a, 0xc9a99d9e, 0x3bc21e9d, 0xef087a76, 0x1d63f975, 0x0e330a81, 0xfc588982,
    0xb21572c9, 0x407ef1ca, 0x532e023e, 0xa145813d, 0x758fe5d6, 0x87e466d5, 0x94b49521, 0x66df1622,
    0x38cc2a06, 0xcaa7a905, 0xd9f75af1, 0x2b9cd9f2, 0xff56bd19, 0x0d3d3e1a, 0x1e6dcdee, 0xec064eed,
    0xc38d26c4, 0x31e6a5c7, 0x22b65633, 0xd0ddd530, 0x0417b1db, 0xf67c32d8, 0xe52cc12c, 0x1747422f,
    0x49547e0b, 0xbb3ffd08, 0xa86f0efc, 0x5a048dff, 0x8ecee914, 0x7ca56a17, 0x6ff599e3, 0x9d9e1ae0,
    0xd3d3e1ab, 0x21b862a8, 0x32e8915c, 0xc083125f, 0x144976b4, 0xe622f5b7, 0xf5720643, 0x07198540,
    0x590ab964, 0xab613a67, 0xb831c993, 0x4a5a4a90, 0x9e902e7b, 0x6cfbad78, 0x7fab5e8c, 0x8dc0dd8f,
    0xe330a81a, 0x115b2b19, 0x020bd8ed, 0xf0605bee, 0x24aa3f05, 0xd6c1bc06, 0xc5914ff2, 0x37faccf1,
    0x69e9f0d5, 0x9b8273d6, 0x88d28022, 0x7ab90321, 0xae7367ca, 0x5c18e4c9, 0x4f48173d, 0xbd23943e,
    0xf36e6f75, 0x0105ec76, 0x12551f82, 0xe03e9c81, 0x34f4f86a, 0xc69f7b69, 0xd5cf889d, 0x27a40b9e,
    0x79b737ba, 0x8bdcb4b9, 0x988c474d, 0x6ae7c44e, 0xbe2da0a5, 0x4c4623a6, 0x5f16d052, 0xad7d5351,
};
/* clang-format on */

static uint32_t dml__crc32c_bytes(uint32_t state, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) state = dml__crc32c_table[(state ^ data[i]) & 0xff] ^ state >> 8;
    return state;
}

#if defined(__x86_64__)
#define DML__CRC32C_INSTRUCTION
/* Eight bytes at a time with the instruction that every processor with AVX2 has. */
__attribute__((target("sse4.2"))) static uint32_t dml__crc32c_words(uint32_t state, const unsigned char *data,
                                                                    size_t words)
{
    uint64_t wide = state;
    for (size_t i = 0; i < words; i++) wide = __builtin_ia32_crc32di(wide, dml__load64(data + 8 * i));
    return (uint32_t)wide;
}
#endif

DML__LOCAL uint32_t dml__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data;
    uint32_t state = ~crc;
#ifdef DML__CRC32C_INSTRUCTION
    if (bytes >= 8 && dml_cpu_isa() >= DML_ISA_AVX2) {
        state = dml__crc32c_words(state, at, bytes / 8);
        at += bytes / 8 * 8;
        bytes %= 8;
    }
#endif
    return ~dml__crc32c_bytes(state, at, bytes);
}

#endif

/* ---- base/file.c ---- */

#ifndef DML_BASE_FILE_C
#define DML_BASE_FILE_C

/* ---- base/file.h ---- */

/* file.h: files in and out of memory, whole or in pieces. With DML_NO_STDIO there are none. */
#ifndef DML_BASE_FILE_H
#define DML_BASE_FILE_H

#ifndef DML_NO_STDIO

/* ---- whole files ---- */

/* Reads the whole plain file into memory that the caller releases with dml__release. An empty file gives a
   valid pointer. DML_ERROR_IO: it isn't there, can't be read or is no plain file; DML_ERROR_FORMAT: it holds
   more than `limit` bytes; DML_ERROR_MEMORY. Nothing is kept then, and *data is NULL. */
DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error);

typedef struct dml__file_part {
    const void *data;
    size_t bytes;
} dml__file_part;

/* Writes the parts one after the other as the file's content, all or nothing: to a temporary file beside it,
   onto the disk, and then renamed over `path`, so that after a crash or a full disk the old file is still
   there. DML_ERROR_IO also where `path` is there but no plain file. */
DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error);

/* Whether dml__file_write could write `path` now, to know before a long run rather than after it: also
   whether the folder allows it, by creating the temporary file and removing it. Leaves everything as it was.
 */
DML__LOCAL dml_status dml__file_check_writable(const char *path, dml__error *error);

/* ---- in pieces ---- */

typedef struct dml__file_reader {
    const char *path;
    uint64_t bytes; /* the size of the file when it was opened */
    int descriptor;
} dml__file_reader;

/* Opens a plain file; `path` must stay until it is closed. After an error nothing is open. */
DML__LOCAL dml_status dml__file_open(dml__file_reader *file, const char *path, dml__error *error);

/* Exactly `bytes` bytes from `offset` on; DML_ERROR_IO too where the file ends before. */
DML__LOCAL dml_status dml__file_read_at(dml__file_reader *file, uint64_t offset, void *to, size_t bytes,
                                        dml__error *error);

DML__LOCAL void dml__file_close(dml__file_reader *file);

#define DML__PATH_BYTES 4096

typedef struct dml__file_writer {
    const char *path;
    int descriptor;
    char temporary[DML__PATH_BYTES];
} dml__file_writer;

/* Starts writing `path`, which must stay until the end: dml__file_append as often as needed, then either
   dml__file_commit, which makes it the file's content, or dml__file_abandon, which leaves the old file; the
   latter also after a failed append. A failed commit has abandoned it. */
DML__LOCAL dml_status dml__file_create(dml__file_writer *file, const char *path, dml__error *error);
DML__LOCAL dml_status dml__file_append(dml__file_writer *file, const void *data, size_t bytes,
                                       dml__error *error);
DML__LOCAL dml_status dml__file_commit(dml__file_writer *file, dml__error *error);
DML__LOCAL void dml__file_abandon(dml__file_writer *file);

#endif

#endif

#ifndef DML_NO_STDIO

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#ifdef _WIN32
#include <io.h>
#include <process.h>
#else
#include <unistd.h>
#endif

/* ---- the operating system: descriptors, with 64-bit sizes and offsets everywhere ---- */

/* What is behind a path or a descriptor. */
typedef struct dml__file_info {
    uint64_t bytes;
    bool plain;
    bool locked; /* its own attributes forbid to replace it */
} dml__file_info;

/* The most bytes of one call: some systems take no more than an int. */
static size_t dml__piece(size_t bytes)
{
    return bytes < (1u << 30) ? bytes : 1u << 30;
}

#ifdef _WIN32

#define DML__SEPARATORS "/\\:"

static int dml__os_open(const char *path)
{
    return _open(path, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
}

static int dml__os_create(const char *path)
{
    return _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
}

static ptrdiff_t dml__os_read_at(int descriptor, uint64_t offset, void *to, size_t bytes)
{
    if (_lseeki64(descriptor, (__int64)offset, SEEK_SET) < 0) return -1;
    return _read(descriptor, to, (unsigned)bytes);
}

static ptrdiff_t dml__os_write(int descriptor, const void *from, size_t bytes)
{
    return _write(descriptor, from, (unsigned)bytes);
}

static bool dml__os_sync(int descriptor)
{
    return _commit(descriptor) == 0;
}

static bool dml__os_close(int descriptor)
{
    return _close(descriptor) == 0;
}

static void dml__os_remove(const char *path)
{
    _unlink(path);
}

static bool dml__os_replace(const char *from, const char *to)
{
    if (dml__windows_MoveFileExA(from, to, DML__WINDOWS_REPLACE_EXISTING | DML__WINDOWS_WRITE_THROUGH))
        return true;
    const unsigned long why = dml__windows_GetLastError();
    errno = why == DML__WINDOWS_ACCESS_DENIED || why == DML__WINDOWS_SHARING_VIOLATION ? EACCES
            : why == DML__WINDOWS_DISK_FULL                                            ? ENOSPC
                                                                                       : EIO;
    return false;
}

static bool dml__os_sync_folder(const char *folder)
{
    (void)folder; /* MOVEFILE_WRITE_THROUGH has done it */
    return true;
}

static long dml__os_process(void)
{
    return (long)_getpid();
}

static void dml__os_info_of(const struct _stat64 *from, dml__file_info *info)
{
    info->bytes = (uint64_t)from->st_size;
    info->plain = (from->st_mode & _S_IFMT) == _S_IFREG;
    info->locked = !(from->st_mode & _S_IWRITE);
}

static bool dml__os_describe(int descriptor, dml__file_info *info)
{
    struct _stat64 found;
    if (_fstat64(descriptor, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

static bool dml__os_find(const char *path, dml__file_info *info)
{
    struct _stat64 found;
    if (_stat64(path, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

/* Whether only its owner may replace the file, and we aren't. */
static bool dml__os_forbids_replacing(const char *folder, const char *path)
{
    (void)folder;
    (void)path;
    return false; /* `locked` is all there is */
}

#else

#define DML__SEPARATORS "/"

/* On 32-bit glibc the plain names stop at 2 GiB, unless the whole program is compiled otherwise. */
#if defined(__GLIBC__) && defined(_LARGEFILE64_SOURCE)
typedef struct stat64 dml__stat;
#define DML__STAT stat64
#define DML__FSTAT fstat64
#define DML__PREAD pread64
#define DML__OFFSET off64_t
#define DML__OPEN_FLAGS (O_CLOEXEC | O_LARGEFILE)
#else
typedef struct stat dml__stat;
#define DML__STAT stat
#define DML__FSTAT fstat
#define DML__PREAD pread
#define DML__OFFSET off_t
#define DML__OPEN_FLAGS O_CLOEXEC
#endif

static int dml__os_open(const char *path)
{
    /* O_NONBLOCK: a named pipe that came here meanwhile must not keep us waiting for its writer. */
    return open(path, O_RDONLY | O_NONBLOCK | DML__OPEN_FLAGS);
}

static int dml__os_create(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_EXCL | DML__OPEN_FLAGS, 0666);
}

static ptrdiff_t dml__os_read_at(int descriptor, uint64_t offset, void *to, size_t bytes)
{
    return DML__PREAD(descriptor, to, bytes, (DML__OFFSET)offset);
}

static ptrdiff_t dml__os_write(int descriptor, const void *from, size_t bytes)
{
    return write(descriptor, from, bytes);
}

static bool dml__os_sync(int descriptor)
{
    return fsync(descriptor) == 0;
}

static bool dml__os_close(int descriptor)
{
    return close(descriptor) == 0;
}

static void dml__os_remove(const char *path)
{
    unlink(path);
}

static bool dml__os_replace(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

/* The new name itself must reach the disk; a file system that can't do that for folders says EINVAL. */
static bool dml__os_sync_folder(const char *folder)
{
    const int descriptor = open(folder, O_RDONLY | DML__OPEN_FLAGS);
    if (descriptor < 0) return errno == EACCES; /* a folder that we may write to but not list */
    const bool ok = fsync(descriptor) == 0 || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

static long dml__os_process(void)
{
    return (long)getpid();
}

static void dml__os_info_of(const dml__stat *from, dml__file_info *info)
{
    info->bytes = (uint64_t)from->st_size;
    info->plain = S_ISREG(from->st_mode);
    info->locked = false; /* renaming asks the folder only */
}

static bool dml__os_describe(int descriptor, dml__file_info *info)
{
    dml__stat found;
    if (DML__FSTAT(descriptor, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

static bool dml__os_find(const char *path, dml__file_info *info)
{
    dml__stat found;
    if (DML__STAT(path, &found)) return false;
    dml__os_info_of(&found, info);
    return true;
}

/* Whether only its owner may replace the file, and we aren't: folders such as /tmp are so. */
static bool dml__os_forbids_replacing(const char *folder, const char *path)
{
#ifdef S_ISVTX
    dml__stat of_folder, of_file;
    if (DML__STAT(folder, &of_folder) || DML__STAT(path, &of_file)) return false;
    const uid_t us = geteuid();
    return (of_folder.st_mode & S_ISVTX) && us != 0 && us != of_folder.st_uid && us != of_file.st_uid;
#else
    (void)folder;
    (void)path;
    return false;
#endif
}

#endif

static dml_status dml__file_fail(dml__error *error, const char *what, const char *path)
{
    return dml__fail(error, DML_ERROR_IO, "can't %s \"%.300s\": %s", what, path, strerror(errno));
}

/* ---- reading ---- */

DML__LOCAL dml_status dml__file_open(dml__file_reader *file, const char *path, dml__error *error)
{
    dml__file_info info;
    file->path = path;
    file->bytes = 0;
    file->descriptor = -1;
    /* Before it is opened, since some systems don't open a folder and then say that we may not. */
    if (dml__os_find(path, &info) && !info.plain)
        return dml__fail(error, DML_ERROR_IO, "can't read \"%.300s\": it is no plain file", path);
    file->descriptor = dml__os_open(path);
    if (file->descriptor < 0) return dml__file_fail(error, "open", path);
    if (!dml__os_describe(file->descriptor, &info)) {
        const dml_status status = dml__file_fail(error, "read", path);
        dml__file_close(file);
        return status;
    }
    file->bytes = info.bytes;
    return DML_OK;
}

DML__LOCAL dml_status dml__file_read_at(dml__file_reader *file, uint64_t offset, void *to, size_t bytes,
                                        dml__error *error)
{
    char *at = (char *)to;
    while (bytes > 0) {
        const ptrdiff_t got = dml__os_read_at(file->descriptor, offset, at, dml__piece(bytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dml__file_fail(error, "read", file->path);
        if (got == 0)
            return dml__fail(error, DML_ERROR_IO, "\"%.300s\" became shorter while it was read", file->path);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DML_OK;
}

DML__LOCAL void dml__file_close(dml__file_reader *file)
{
    dml__os_close(file->descriptor);
}

DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error)
{
    dml__file_reader file;
    *data = NULL;
    *bytes = 0;
    dml_status status = dml__file_open(&file, path, error);
    if (status != DML_OK) return status;
    char *content = NULL;
    if (file.bytes > limit)
        status =
            dml__fail(error, DML_ERROR_FORMAT, "\"%.300s\" has %llu bytes, more than the %llu it may have",
                      path, (unsigned long long)file.bytes, (unsigned long long)limit);
    else if (!(content = (char *)dml__allocate(memory, (size_t)file.bytes)))
        status = dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of \"%.300s\"",
                           (unsigned long long)file.bytes, path);
    else
        status = dml__file_read_at(&file, 0, content, (size_t)file.bytes, error);
    dml__file_close(&file);
    if (status != DML_OK) {
        dml__release(memory, content);
        return status;
    }
    *data = content;
    *bytes = (size_t)file.bytes;
    return DML_OK;
}

/* ---- writing ---- */

/* Opens a new file beside `path` and writes its name. */
static int dml__open_temporary(const char *path, char name[DML__PATH_BYTES])
{
    for (int attempt = 0; attempt < 100; attempt++) {
        const int length = snprintf(name, DML__PATH_BYTES, "%s.%ld-%d.tmp", path, dml__os_process(), attempt);
        if (length < 0 || length >= DML__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int descriptor = dml__os_create(name);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

/* The folder that `path`, shorter than DML__PATH_BYTES, is in. */
static void dml__folder_of(const char *path, char folder[DML__PATH_BYTES])
{
    size_t length = strlen(path);
    while (length > 0 && !strchr(DML__SEPARATORS, path[length - 1])) length--;
    if (length > 1) length--; /* the separator, unless it is all: the root */
    memcpy(folder, path, length);
    strcpy(folder + length, length ? "" : ".");
}

DML__LOCAL dml_status dml__file_create(dml__file_writer *file, const char *path, dml__error *error)
{
    dml__file_info info;
    file->path = path;
    file->descriptor = -1;
    if (!*path) return dml__fail(error, DML_ERROR_IO, "can't write a file without a name");
    if (dml__os_find(path, &info) && !info.plain)
        return dml__fail(error, DML_ERROR_IO, "can't write \"%.300s\": it is there and no plain file", path);
    file->descriptor = dml__open_temporary(path, file->temporary);
    if (file->descriptor < 0) return dml__file_fail(error, "create", path);
    return DML_OK;
}

DML__LOCAL dml_status dml__file_append(dml__file_writer *file, const void *data, size_t bytes,
                                       dml__error *error)
{
    const char *from = (const char *)data;
    while (bytes > 0) {
        const ptrdiff_t put = dml__os_write(file->descriptor, from, dml__piece(bytes));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return dml__file_fail(error, "write", file->path);
        from += put;
        bytes -= (size_t)put;
    }
    return DML_OK;
}

DML__LOCAL void dml__file_abandon(dml__file_writer *file)
{
    dml__os_close(file->descriptor);
    dml__os_remove(file->temporary);
}

DML__LOCAL dml_status dml__file_commit(dml__file_writer *file, dml__error *error)
{
    char folder[DML__PATH_BYTES];
    bool ok = dml__os_sync(file->descriptor);
    const int reason = errno;
    if (dml__os_close(file->descriptor)) {
        if (!ok) errno = reason;
    } else {
        ok = false;
    }
    if (!ok || !dml__os_replace(file->temporary, file->path)) {
        const dml_status status = dml__file_fail(error, "write", file->path);
        dml__os_remove(file->temporary);
        return status;
    }
    dml__folder_of(file->path, folder);
    if (!dml__os_sync_folder(folder)) return dml__file_fail(error, "write the folder of", file->path);
    return DML_OK;
}

DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error)
{
    dml__file_writer file;
    dml_status status = dml__file_create(&file, path, error);
    if (status != DML_OK) return status;
    for (int i = 0; i < count && status == DML_OK; i++)
        status = dml__file_append(&file, parts[i].data, parts[i].bytes, error);
    if (status == DML_OK) return dml__file_commit(&file, error);
    dml__file_abandon(&file);
    return status;
}

DML__LOCAL dml_status dml__file_check_writable(const char *path, dml__error *error)
{
    dml__file_writer file;
    dml__file_info info;
    char folder[DML__PATH_BYTES];
    dml_status status = dml__file_create(&file, path, error);
    if (status != DML_OK) return status;
    status = dml__file_append(&file, "", 1, error); /* a full disk takes a name, but no byte */
    dml__file_abandon(&file);
    if (status != DML_OK) return status;
    dml__folder_of(path, folder);
    if (dml__os_find(path, &info) && (info.locked || dml__os_forbids_replacing(folder, path)))
        return dml__fail(error, DML_ERROR_IO, "can't write \"%.300s\": it is there and may not be replaced",
                         path);
    return DML_OK;
}

#endif

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

#endif

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

#endif

/* ---- base/safetensors.c ---- */

#ifndef DML_BASE_SAFETENSORS_C
#define DML_BASE_SAFETENSORS_C

/* ---- base/safetensors.h ---- */

/* safetensors.h: named arrays in one file that other tools read and write too, or in memory. It knows names,
   dtypes, shapes and bytes, but no graph.

   Format: https://github.com/huggingface/safetensors. 8 bytes, the header's length, little-endian; the
   header, one JSON object: {"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}, with optional
   texts under "__metadata__", padded with spaces to a multiple of 8; then the data, little-endian, row-major,
   without holes. What we write also has a checksum of the whole among its metadata ("dml.crc32c"), so that
   any flipped bit of it is found; other tools see one text more. */
#ifndef DML_BASE_SAFETENSORS_H
#define DML_BASE_SAFETENSORS_H

enum {
    DML__SAFETENSORS_HEADER = 100000000, /* the most bytes of a header, a limit of the format */
    DML__SAFETENSORS_DIMS = 64           /* the most dimensions of a tensor, a limit of ours */
};

/* A text beside the tensors. Keys and values are UTF-8. */
typedef struct dml__metadata {
    const char *key, *value;
} dml__metadata;

/* ---- writing ---- */

/* A tensor to be written. No dimension is a scalar, a dimension of 0 an empty tensor. */
typedef struct dml__tensor {
    const char *name; /* UTF-8; each once, and none "__metadata__" */
    dml_dtype dtype;
    int ndim;
    const int *dims;
    const void *data; /* row-major, in the host's byte order; may be NULL if empty */
} dml__tensor;

/* Writes the tensors as the file `path`, all or nothing (dml__file_write). The data of a file is ordered by
   falling size of the elements, so that each is aligned for whoever maps the file, and otherwise as given.
   Memory is needed for the header only. DML_ERROR_ARGUMENT: a name, text, dtype or shape that can't be
   written (the key "dml.crc32c" among them); DML_ERROR_MEMORY; DML_ERROR_IO. */
#ifndef DML_NO_STDIO
DML__LOCAL dml_status dml__safetensors_save(dml__memory *memory, const char *path, const dml__tensor *tensors,
                                            int count, const dml__metadata *metadata, int pairs,
                                            dml__error *error);
#endif

/* The same into `to`, of `capacity` bytes. *bytes is what it takes (0 after any error but that `capacity` is
   too small, which is DML_ERROR_MEMORY and writes nothing). With `to` NULL it only says that. */
DML__LOCAL dml_status dml__safetensors_store(dml__memory *memory, void *to, size_t capacity, size_t *bytes,
                                             const dml__tensor *tensors, int count,
                                             const dml__metadata *metadata, int pairs, dml__error *error);

/* ---- reading ---- */

/* A tensor of a file. All pointers live as long as the file is open. */
typedef struct dml__safetensors_entry {
    const char *name;
    const char *dtype_text; /* as the file has it, such as "BF16" */
    dml_dtype dtype;        /* DML__DTYPE_COUNT: none that the library has */
    int ndim;
    const uint64_t *dims;
    uint64_t begin, end; /* its bytes, counted from the start of the data */
} dml__safetensors_entry;

typedef struct dml__safetensors dml__safetensors;

/* Reads the header, checks all of it, and the checksum if there is one; the file stays open. Memory is needed
   for the header and a table only. DML_ERROR_FORMAT: it is none, damaged, truncated or contradicts itself;
   the sentence says where; DML_ERROR_IO; DML_ERROR_MEMORY. *out is NULL then. */
#ifndef DML_NO_STDIO
DML__LOCAL dml_status dml__safetensors_open_file(dml__memory *memory, const char *path,
                                                 dml__safetensors **out, dml__error *error);
#endif

/* The same for `size` bytes in memory, which must stay until it is closed; `name` is what sentences call
   them. */
DML__LOCAL dml_status dml__safetensors_open_memory(dml__memory *memory, const char *name, const void *bytes,
                                                   size_t size, dml__safetensors **out, dml__error *error);

/* NULL is fine. */
DML__LOCAL void dml__safetensors_close(dml__safetensors *file);

DML__LOCAL int dml__safetensors_count(const dml__safetensors *file);

/* Tensor i, in the order of the data. */
DML__LOCAL const dml__safetensors_entry *dml__safetensors_at(const dml__safetensors *file, int i);

/* Which tensor has that name; -1: none. */
DML__LOCAL int dml__safetensors_find(const dml__safetensors *file, const char *name);

/* All texts of the metadata, in the file's order. */
DML__LOCAL const dml__metadata *dml__safetensors_pairs(const dml__safetensors *file, int *pairs);

/* The text of a key; NULL: none. */
DML__LOCAL const char *dml__safetensors_text(const dml__safetensors *file, const char *key);

/* Reads tensor i, of end - begin bytes, into `to`, in the host's byte order (if it is of a dtype that isn't
   known at all: as the file has it). DML_ERROR_IO: the file can't be read or became shorter. */
DML__LOCAL dml_status dml__safetensors_read(dml__safetensors *file, int i, void *to, dml__error *error);

/* ---- what both sides share ---- */

#define DML__CHECKSUM_KEY "dml.crc32c"
#define DML__METADATA_NAME "__metadata__"

/* The format's name for a dtype: "F32"; NULL for a number that is no dtype. */
DML__LOCAL const char *dml__safetensors_dtype(dml_dtype dtype);

/* Sorts 0 ... count - 1 into `order`, in no memory but that, in at most O(n log n) steps. */
DML__LOCAL void dml__sort_order(int *order, int count, bool (*less)(const void *context, int a, int b),
                                const void *context);

#endif

#include <string.h>

/* What the format calls a type, the bits of an element, the bytes that a host of the other byte order turns
   round together, and ours, if it is one of them. */
typedef struct dml__element {
    const char *name;
    int bits, width;
    dml_dtype dtype;
} dml__element;

static const dml__element dml__elements[] = {
    { "F32", 32, 4, DML_F32 },
    { "F64", 64, 8, DML_F64 },
    { "I32", 32, 4, DML_I32 },
    { "I64", 64, 8, DML_I64 },
    { "U8", 8, 1, DML_U8 },
    { "BOOL", 8, 1, DML__DTYPE_COUNT },
    { "I8", 8, 1, DML__DTYPE_COUNT },
    { "I16", 16, 2, DML__DTYPE_COUNT },
    { "U16", 16, 2, DML__DTYPE_COUNT },
    { "U32", 32, 4, DML__DTYPE_COUNT },
    { "U64", 64, 8, DML__DTYPE_COUNT },
    { "F16", 16, 2, DML__DTYPE_COUNT },
    { "BF16", 16, 2, DML__DTYPE_COUNT },
    { "C64", 64, 4, DML__DTYPE_COUNT },
    { "F8_E4M3", 8, 1, DML__DTYPE_COUNT },
    { "F8_E5M2", 8, 1, DML__DTYPE_COUNT },
    { "F8_E8M0", 8, 1, DML__DTYPE_COUNT },
    { "F8_E4M3FNUZ", 8, 1, DML__DTYPE_COUNT },
    { "F8_E5M2FNUZ", 8, 1, DML__DTYPE_COUNT },
    { "F6_E2M3", 6, 1, DML__DTYPE_COUNT },
    { "F6_E3M2", 6, 1, DML__DTYPE_COUNT },
    { "F4", 4, 1, DML__DTYPE_COUNT },
};
enum { DML__ELEMENT_KINDS = (int)(sizeof dml__elements / sizeof dml__elements[0]) };

struct dml__safetensors {
    dml__memory *memory;
    char *name;                 /* what sentences call the file: its path */
    const unsigned char *bytes; /* all of it, in memory; NULL: it is a file */
#ifndef DML_NO_STDIO
    dml__file_reader reader;
#endif
    uint64_t size;
    char *header; /* strings are unescaped in their place */
    size_t header_bytes;
    size_t checksum_at; /* where in the header its digits are; 0: there is none */
    int count, pair_count;
    size_t dim_count;
    dml__safetensors_entry *entries; /* count, as in the header */
    uint64_t *dims;                  /* dim_count */
    int *order;                      /* count: the entries in the order of the data */
    int *by_name;                    /* count: indices into order */
    dml__metadata *pairs;            /* pair_count */
};

DML__LOCAL const char *dml__safetensors_dtype(dml_dtype dtype)
{
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (dml__elements[i].dtype == dtype && dtype != DML__DTYPE_COUNT) return dml__elements[i].name;
    return NULL;
}

/* ---- sorting: a heap, since qsort of some C libraries allocates, and of others takes n^2 steps ---- */

static void dml__sift_down(int *order, int at, int count, bool (*less)(const void *, int, int),
                           const void *context)
{
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && less(context, order[child], order[child + 1])) child++;
        if (!less(context, order[at], order[child])) return;
        const int kept = order[at];
        order[at] = order[child];
        order[child] = kept;
    }
}

DML__LOCAL void dml__sort_order(int *order, int count, bool (*less)(const void *context, int a, int b),
                                const void *context)
{
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count / 2 - 1; i >= 0; i--) dml__sift_down(order, i, count, less, context);
    for (int last = count - 1; last > 0; last--) {
        const int largest = order[0];
        order[0] = order[last];
        order[last] = largest;
        dml__sift_down(order, 0, last, less, context);
    }
}

static bool dml__name_less(const void *context, int a, int b)
{
    const dml__safetensors *file = (const dml__safetensors *)context;
    return strcmp(dml__safetensors_at(file, a)->name, dml__safetensors_at(file, b)->name) < 0;
}

static bool dml__data_less(const void *context, int a, int b)
{
    const dml__safetensors_entry *entries = ((const dml__safetensors *)context)->entries;
    if (entries[a].begin != entries[b].begin) return entries[a].begin < entries[b].begin;
    if (entries[a].end != entries[b].end) return entries[a].end < entries[b].end;
    return a < b;
}

static bool dml__key_less(const void *context, int a, int b)
{
    const dml__metadata *pairs = ((const dml__safetensors *)context)->pairs;
    return strcmp(pairs[a].key, pairs[b].key) < 0;
}

/* ---- the header's text ---- */

/* A tensor as it is met in the header. */
typedef struct dml__met {
    dml__json_string name, dtype;
    const dml__element *element; /* NULL: unknown */
    int ndim;
    uint64_t dims[DML__SAFETENSORS_DIMS];
    uint64_t begin, end;
} dml__met;

static uint64_t dml__data_bytes(const dml__safetensors *file)
{
    return file->size - 8 - file->header_bytes;
}

static bool dml__read_shape(dml__json *json, dml__met *met)
{
    met->ndim = 0;
    if (!dml__json_expect(json, '[')) return false;
    for (bool first = true; dml__json_more(json, ']', &first); met->ndim++) {
        if (met->ndim == DML__SAFETENSORS_DIMS)
            return dml__json_fail(json, json->at, "a tensor has more than 64 dimensions");
        if (!dml__json_read_count(json, &met->dims[met->ndim])) return false;
    }
    return !json->problem;
}

static bool dml__read_offsets(dml__json *json, dml__met *met)
{
    return dml__json_expect(json, '[') && dml__json_read_count(json, &met->begin) &&
           dml__json_expect(json, ',') && dml__json_read_count(json, &met->end) &&
           dml__json_expect(json, ']');
}

/* The object behind a tensor's name. Each of its fields comes once, in any order. */
static bool dml__read_tensor(dml__json *json, dml__met *met)
{
    unsigned seen = 0;
    if (!dml__json_expect(json, '{')) return false;
    for (bool first = true; dml__json_more(json, '}', &first);) {
        dml__json_string field;
        const size_t at = json->at;
        if (!dml__json_read_name(json, &field)) return false;
        const unsigned which = dml__json_is(field, "dtype")          ? 1
                               : dml__json_is(field, "shape")        ? 2
                               : dml__json_is(field, "data_offsets") ? 4
                                                                     : 0;
        if (!which)
            return dml__json_fail(json, at,
                                  "a tensor has a field that is none of dtype, shape, data_offsets");
        if (seen & which) return dml__json_fail(json, at, "a tensor has a field twice");
        seen |= which;
        if (!(which == 1   ? dml__json_read_string(json, &met->dtype)
              : which == 2 ? dml__read_shape(json, met)
                           : dml__read_offsets(json, met)))
            return false;
    }
    if (!json->problem && seen != 7)
        return dml__json_fail(json, json->at - 1, "a tensor lacks its dtype, shape or data_offsets");
    return !json->problem;
}

/* Whether dtype, shape and place of a tensor fit each other and the file. */
static dml_status dml__check_met(const dml__safetensors *file, dml__met *met, dml__error *error)
{
    char name[DML__SHOWN_BYTES], dtype[DML__SHOWN_BYTES];
    uint64_t elements = 1;
    dml__shown(met->name.from, met->name.bytes, name);
    dml__shown(met->dtype.from, met->dtype.bytes, dtype);
    met->element = NULL;
    for (int i = 0; i < DML__ELEMENT_KINDS; i++)
        if (dml__json_is(met->dtype, dml__elements[i].name)) met->element = &dml__elements[i];
    if (met->begin > met->end)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged: tensor \"%s\" ends at byte %llu of the data, before it begins "
            "at %llu",
            file->name, name, (unsigned long long)met->end, (unsigned long long)met->begin);
    if (met->end > dml__data_bytes(file))
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is truncated or damaged: tensor \"%s\" ends at byte %llu of the data, the "
            "file has %llu",
            file->name, name, (unsigned long long)met->end, (unsigned long long)dml__data_bytes(file));
    bool fits = true;
    for (int i = 0; i < met->ndim; i++) {
        if (met->dims[i] && elements > UINT64_MAX / 64 / met->dims[i]) fits = false;
        elements *= met->dims[i];
    }
    if (!met->element && fits) return DML_OK;
    const uint64_t bits = met->element ? elements * (uint64_t)met->element->bits : 0;
    if (!fits || bits % 8 || bits / 8 != met->end - met->begin)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged: the shape of tensor \"%s\", of type %s, doesn't fit its %llu "
            "bytes",
            file->name, name, dtype, (unsigned long long)(met->end - met->begin));
    return DML_OK;
}

static const char *dml__keep_string(dml__safetensors *file, dml__json_string string)
{
    char *to = file->header + (string.from - file->header);
    dml__json_unescape(to, string);
    return to;
}

/* Keeps a tensor in the tables, if there are any yet. */
static void dml__keep_met(dml__safetensors *file, const dml__met *met)
{
    if (file->entries) {
        dml__safetensors_entry *entry = &file->entries[file->count];
        uint64_t *dims = file->dims + file->dim_count;
        if (met->ndim) memcpy(dims, met->dims, (size_t)met->ndim * sizeof *dims);
        entry->name = dml__keep_string(file, met->name);
        entry->dtype_text = dml__keep_string(file, met->dtype);
        entry->dtype = met->element ? met->element->dtype : DML__DTYPE_COUNT;
        entry->ndim = met->ndim;
        entry->dims = dims;
        entry->begin = met->begin;
        entry->end = met->end;
    }
    file->count++;
    file->dim_count += (size_t)met->ndim;
}

/* Whether a key is ours but for one character: then the file would seem to have no checksum. */
static bool dml__nearly_checksum(dml__json_string key)
{
    int differ = 0;
    if (key.bytes != strlen(DML__CHECKSUM_KEY)) return false;
    for (size_t i = 0; i < key.bytes; i++) differ += key.from[i] != DML__CHECKSUM_KEY[i];
    return differ == 1;
}

static bool dml__is_checksum(dml__json_string value)
{
    if (value.bytes != 8) return false;
    for (size_t i = 0; i < 8; i++)
        if (!memchr("0123456789abcdef", value.from[i], 16)) return false;
    return true;
}

/* The texts under "__metadata__". */
static bool dml__read_metadata(dml__safetensors *file, dml__json *json)
{
    if (!dml__json_expect(json, '{')) return false;
    for (bool first = true; dml__json_more(json, '}', &first); file->pair_count++) {
        dml__json_string key, value;
        const size_t at = json->at;
        if (!dml__json_read_name(json, &key) || !dml__json_read_string(json, &value)) return false;
        if (dml__nearly_checksum(key)) return dml__json_fail(json, at, "a damaged \"dml.crc32c\" is");
        if (dml__json_is(key, DML__CHECKSUM_KEY)) {
            if (!dml__is_checksum(value))
                return dml__json_fail(json, at, "a \"dml.crc32c\" without 8 digits of 0-9a-f is");
            file->checksum_at = (size_t)(value.from - file->header);
        }
        if (file->pairs) {
            file->pairs[file->pair_count].key = dml__keep_string(file, key);
            file->pairs[file->pair_count].value = dml__keep_string(file, value);
        }
    }
    return !json->problem;
}

static dml_status dml__read_members(dml__safetensors *file, dml__json *json, dml__error *error)
{
    dml__met met;
    bool metadata = false;
    dml__json_expect(json, '{');
    for (bool first = true; dml__json_more(json, '}', &first);) {
        const size_t at = json->at;
        if (!dml__json_read_name(json, &met.name)) break;
        if (dml__json_is(met.name, DML__METADATA_NAME)) {
            if (metadata) dml__json_fail(json, at, "a second \"__metadata__\" is");
            metadata = true;
            if (!dml__read_metadata(file, json)) break;
            continue;
        }
        if (!dml__read_tensor(json, &met)) break;
        const dml_status status = dml__check_met(file, &met, error);
        if (status != DML_OK) return status;
        dml__keep_met(file, &met);
    }
    return DML_OK;
}

/* Goes through the header: once to check and count, then again to fill the tables. */
static dml_status dml__read_header_text(dml__safetensors *file, dml__error *error)
{
    dml__json json;
    file->count = file->pair_count = 0;
    file->dim_count = 0;
    dml__json_start(&json, file->header, file->header_bytes);
    const dml_status status = dml__read_members(file, &json, error);
    if (status != DML_OK) return status;
    if (!dml__json_end(&json))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is damaged or no safetensors file: in its header, %s at byte %llu",
                         file->name, json.problem, (unsigned long long)(8 + json.at));
    return DML_OK;
}

/* ---- opening ---- */

static dml_status dml__read_from(dml__safetensors *file, uint64_t offset, void *to, size_t bytes,
                                 dml__error *error)
{
#ifndef DML_NO_STDIO
    if (!file->bytes) return dml__file_read_at(&file->reader, offset, to, bytes, error);
#endif
    (void)error;
    if (bytes) memcpy(to, file->bytes + offset, bytes);
    return DML_OK;
}

/* What else a file is that begins with these bytes; NULL: who knows. */
static const char *dml__other_format(const unsigned char *bytes, size_t count)
{
    static const struct {
        const char *begin, *what;
    } formats[] = {
        { "PK\003\004",
          "it is a zip archive, as PyTorch and NumPy write; convert it with safetensors.torch or "
          "safetensors.numpy in Python" },
        { "\200\002", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\003", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\004", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "\200\005", "it is a Python pickle; convert it with safetensors.torch in Python" },
        { "DMLCKPT\n", "it is a checkpoint of dml 0.1, which newer versions don't read" },
        { "\223NUMPY", "it is a NumPy array; convert it with safetensors.numpy in Python" },
        { "\211HDF", "it is an HDF5 file" },
        { "\211PNG", "it is a PNG picture" },
        { "GGUF", "it is a GGUF file" },
    };
    /* A length of a header below 4 GB, whatever its first bytes look like. */
    if (count >= 8 && memcmp(bytes + 4, "\0\0\0\0", 4) == 0) return NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const size_t length = strlen(formats[i].begin);
        if (count >= length && memcmp(bytes, formats[i].begin, length) == 0) return formats[i].what;
    }
    return NULL;
}

/* Whether the first bytes can be those of such a file; then header_bytes is set. */
static dml_status dml__check_start(dml__safetensors *file, dml__error *error)
{
    unsigned char start[9];
    const size_t have = file->size < sizeof start ? (size_t)file->size : sizeof start;
    const dml_status status = dml__read_from(file, 0, start, have, error);
    if (status != DML_OK) return status;
    const char *other = dml__other_format(start, have);
    const uint64_t length = have == sizeof start ? dml__load64(start) : 0;
    if (have < sizeof start && !other)
        return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" is no safetensors file: it has only %d bytes",
                         file->name, (int)have);
    if (other || start[8] != '{')
        return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" is no safetensors file: %s", file->name,
                         other ? other : "byte 8, where its header would begin, is no '{'");
    if (length > DML__SAFETENSORS_HEADER)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%.200s\" is damaged or no safetensors file: its header would have %llu bytes, more "
            "than the %d of the format",
            file->name, (unsigned long long)length, (int)DML__SAFETENSORS_HEADER);
    if (length > file->size - 8)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is truncated or damaged: its header has %llu bytes, the whole file %llu",
                         file->name, (unsigned long long)length, (unsigned long long)file->size);
    file->header_bytes = (size_t)length;
    return DML_OK;
}

/* Compares the checksum, if there is one, with the file, its own digits taken as 0. */
static dml_status dml__verify_checksum(dml__safetensors *file, dml__error *error)
{
    unsigned char piece[16384];
    char digits[8];
    if (!file->checksum_at) return DML_OK;
    dml__store64(piece, file->header_bytes);
    uint32_t sum = dml__crc32c(0, piece, 8), want = 0;
    memcpy(digits, file->header + file->checksum_at, 8);
    for (int i = 0; i < 8; i++)
        want = want * 16 + (uint32_t)(digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
    memset(file->header + file->checksum_at, '0', 8);
    sum = dml__crc32c(sum, file->header, file->header_bytes);
    memcpy(file->header + file->checksum_at, digits, 8);
    for (uint64_t at = 8 + file->header_bytes; at < file->size;) {
        const size_t bytes = file->size - at < sizeof piece ? (size_t)(file->size - at) : sizeof piece;
        const dml_status status = dml__read_from(file, at, piece, bytes, error);
        if (status != DML_OK) return status;
        sum = dml__crc32c(sum, piece, bytes);
        at += bytes;
    }
    if (sum == want) return DML_OK;
    return dml__fail(
        error, DML_ERROR_FORMAT,
        "\"%.200s\" is damaged: its checksum is %08x, but \"dml.crc32c\" in its metadata says %08x. "
        "If another tool has rewritten it and kept that key, have the tool drop it",
        file->name, (unsigned)sum, (unsigned)want);
}

static dml_status dml__fill_tables(dml__safetensors *file, dml__error *error)
{
    dml__memory *memory = file->memory;
    const size_t count = (size_t)file->count, pairs = (size_t)file->pair_count;
    file->dims = (uint64_t *)dml__allocate_array(memory, file->dim_count, sizeof *file->dims);
    file->order = (int *)dml__allocate_array(memory, count > pairs ? count : pairs, sizeof *file->order);
    file->by_name = (int *)dml__allocate_array(memory, count, sizeof *file->by_name);
    file->pairs = (dml__metadata *)dml__allocate_array(memory, pairs, sizeof *file->pairs);
    file->entries = (dml__safetensors_entry *)dml__allocate_array(memory, count, sizeof *file->entries);
    if (!file->dims || !file->order || !file->by_name || !file->pairs || !file->entries)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the table of the %d tensors of \"%.200s\"",
                         file->count, file->name);
    return dml__read_header_text(file, error);
}

static dml_status dml__check_names(dml__safetensors *file, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    dml__sort_order(file->order, file->pair_count, dml__key_less, file);
    for (int i = 1; i < file->pair_count; i++) {
        const char *key = file->pairs[file->order[i]].key;
        if (strcmp(file->pairs[file->order[i - 1]].key, key) == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" has \"%s\" in its metadata twice",
                             file->name, dml__shown(key, strlen(key), shown));
    }
    dml__sort_order(file->order, file->count, dml__data_less, file);
    dml__sort_order(file->by_name, file->count, dml__name_less, file);
    for (int i = 1; i < file->count; i++) {
        const char *name = dml__safetensors_at(file, file->by_name[i])->name;
        if (strcmp(dml__safetensors_at(file, file->by_name[i - 1])->name, name) == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "\"%.200s\" has two tensors \"%s\"", file->name,
                             dml__shown(name, strlen(name), shown));
    }
    return DML_OK;
}

/* Whether the tensors lie one behind the other and fill the data. */
static dml_status dml__check_places(const dml__safetensors *file, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    uint64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
        if (entry->begin != end)
            return dml__fail(
                error, DML_ERROR_FORMAT,
                "\"%.200s\" is damaged: tensor \"%s\" begins at byte %llu of the data, %s ends at "
                "%llu",
                file->name, dml__shown(entry->name, strlen(entry->name), shown),
                (unsigned long long)entry->begin, i ? "the one before it" : "nothing",
                (unsigned long long)end);
        end = entry->end;
    }
    if (end != dml__data_bytes(file))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%.200s\" is damaged: its tensors end at byte %llu of the data, the file has %llu",
                         file->name, (unsigned long long)end, (unsigned long long)dml__data_bytes(file));
    return DML_OK;
}

static dml_status dml__read_header_of(dml__safetensors *file, dml__error *error)
{
    dml_status status = dml__check_start(file, error);
    if (status != DML_OK) return status;
    file->header = (char *)dml__allocate(file->memory, file->header_bytes);
    if (!file->header)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of the header of \"%.200s\"",
                         (unsigned long long)file->header_bytes, file->name);
    status = dml__read_from(file, 8, file->header, file->header_bytes, error);
    if (status == DML_OK) status = dml__read_header_text(file, error);
    if (status == DML_OK) status = dml__verify_checksum(file, error);
    if (status == DML_OK) status = dml__fill_tables(file, error);
    if (status == DML_OK) status = dml__check_names(file, error);
    if (status == DML_OK) status = dml__check_places(file, error);
    return status;
}

static dml__safetensors *dml__new_safetensors(dml__memory *memory, const char *name, dml__error *error)
{
    dml__safetensors *file = (dml__safetensors *)dml__allocate(memory, sizeof *file);
    char *copy = (char *)dml__allocate(memory, strlen(name) + 1);
    if (!file || !copy) {
        dml__release(memory, file);
        dml__release(memory, copy);
        dml__fail(error, DML_ERROR_MEMORY, "no memory to open \"%.200s\"", name);
        return NULL;
    }
    file->memory = memory;
    file->name = strcpy(copy, name);
    return file;
}

/* Hands out the file if its header is as it should be, else closes it. */
static dml_status dml__finish_open(dml__safetensors *file, dml__safetensors **out, dml__error *error)
{
    const dml_status status = dml__read_header_of(file, error);
    if (status == DML_OK)
        *out = file;
    else
        dml__safetensors_close(file);
    return status;
}

DML__LOCAL dml_status dml__safetensors_open_memory(dml__memory *memory, const char *name, const void *bytes,
                                                   size_t size, dml__safetensors **out, dml__error *error)
{
    *out = NULL;
    dml__safetensors *file = dml__new_safetensors(memory, name, error);
    if (!file) return DML_ERROR_MEMORY;
    file->bytes = (const unsigned char *)(size ? bytes : "");
    file->size = size;
    return dml__finish_open(file, out, error);
}

#ifndef DML_NO_STDIO

DML__LOCAL dml_status dml__safetensors_open_file(dml__memory *memory, const char *path,
                                                 dml__safetensors **out, dml__error *error)
{
    dml__file_reader reader;
    *out = NULL;
    const dml_status status = dml__file_open(&reader, path, error);
    if (status != DML_OK) return status;
    dml__safetensors *file = dml__new_safetensors(memory, path, error);
    if (!file) {
        dml__file_close(&reader);
        return DML_ERROR_MEMORY;
    }
    file->reader = reader;
    file->reader.path = file->name;
    file->size = reader.bytes;
    return dml__finish_open(file, out, error);
}

#endif

DML__LOCAL void dml__safetensors_close(dml__safetensors *file)
{
    if (!file) return;
#ifndef DML_NO_STDIO
    if (!file->bytes) dml__file_close(&file->reader);
#endif
    dml__memory *memory = file->memory;
    dml__release(memory, file->header);
    dml__release(memory, file->dims);
    dml__release(memory, file->order);
    dml__release(memory, file->by_name);
    dml__release(memory, file->pairs);
    dml__release(memory, file->entries);
    dml__release(memory, file->name);
    dml__release(memory, file);
}

/* ---- what is in an open file ---- */

DML__LOCAL int dml__safetensors_count(const dml__safetensors *file)
{
    return file->count;
}

DML__LOCAL const dml__safetensors_entry *dml__safetensors_at(const dml__safetensors *file, int i)
{
    return &file->entries[file->order[i]];
}

DML__LOCAL int dml__safetensors_find(const dml__safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(name, dml__safetensors_at(file, file->by_name[middle])->name);
        if (order == 0) return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

DML__LOCAL const dml__metadata *dml__safetensors_pairs(const dml__safetensors *file, int *pairs)
{
    *pairs = file->pair_count;
    return file->pairs;
}

DML__LOCAL const char *dml__safetensors_text(const dml__safetensors *file, const char *key)
{
    for (int i = 0; i < file->pair_count; i++)
        if (strcmp(file->pairs[i].key, key) == 0) return file->pairs[i].value;
    return NULL;
}

DML__LOCAL dml_status dml__safetensors_read(dml__safetensors *file, int i, void *to, dml__error *error)
{
    const dml__safetensors_entry *entry = dml__safetensors_at(file, i);
    const uint64_t bytes = entry->end - entry->begin;
    if (bytes > SIZE_MAX)
        return dml__fail(error, DML_ERROR_MEMORY,
                         "a tensor of \"%.200s\" has %llu bytes, more than memory can", file->name,
                         (unsigned long long)bytes);
    const uint64_t offset = 8 + file->header_bytes + entry->begin;
    const dml_status status = dml__read_from(file, offset, to, (size_t)bytes, error);
    if (status != DML_OK || dml__little_endian()) return status;
    for (int kind = 0; kind < DML__ELEMENT_KINDS; kind++) {
        const size_t width = (size_t)dml__elements[kind].width;
        if (strcmp(dml__elements[kind].name, entry->dtype_text) == 0)
            dml__swap_bytes(to, to, (size_t)bytes / width, width);
    }
    return DML_OK;
}

#endif

/* ---- base/safetensors_write.c ---- */

#ifndef DML_BASE_SAFETENSORS_WRITE_C
#define DML_BASE_SAFETENSORS_WRITE_C

#include <stdio.h>
#include <string.h>

/* What is to be written, and what is known of it so far. */
typedef struct dml__plan_of_file {
    const dml__tensor *tensors;
    int count;
    const dml__metadata *metadata;
    int pairs;
    char *header; /* 8 bytes for its length, then its text */
    size_t header_bytes;
    uint64_t data_bytes;
} dml__plan_of_file;

/* ---- whether it can be written ---- */

static uint64_t dml__tensor_bytes(const dml__tensor *tensor)
{
    uint64_t bytes = dml_dtype_size(tensor->dtype);
    for (int i = 0; i < tensor->ndim; i++) bytes *= (uint64_t)tensor->dims[i];
    return bytes;
}

static dml_status dml__check_tensor(const dml__tensor *tensor, int at, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    if (!tensor->name)
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor %d of those to be written has no name", at);
    dml__shown(tensor->name, strlen(tensor->name), shown);
    if (!dml__is_utf8(tensor->name))
        return dml__fail(error, DML_ERROR_ARGUMENT, "the name \"%s\" of a tensor isn't UTF-8", shown);
    if (strcmp(tensor->name, DML__METADATA_NAME) == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "no tensor can be named \"%s\": the format needs that name", shown);
    uint64_t elements = 1;
    bool fits = true;
    if (!dml_dtype_size(tensor->dtype))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has dtype %d, which is none", shown,
                         (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > DML__SAFETENSORS_DIMS)
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has %d dimensions, not 0 to %d", shown,
                         tensor->ndim, (int)DML__SAFETENSORS_DIMS);
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] < 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has a dimension of %d", shown,
                             tensor->dims[i]);
        const uint64_t dim = (uint64_t)tensor->dims[i];
        if (dim && elements > UINT64_MAX / 64 / dim) fits = false;
        elements *= dim;
    }
    if (!fits || elements > SIZE_MAX / dml_dtype_size(tensor->dtype))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" is larger than memory can be", shown);
    if (!tensor->data && dml__tensor_bytes(tensor))
        return dml__fail(error, DML_ERROR_ARGUMENT, "tensor \"%s\" has no data", shown);
    return DML_OK;
}

static dml_status dml__check_pair(const dml__metadata *pair, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    if (!pair->key || !pair->value)
        return dml__fail(error, DML_ERROR_ARGUMENT, "metadata lacks its key or its value");
    dml__shown(pair->key, strlen(pair->key), shown);
    if (!dml__is_utf8(pair->key) || !dml__is_utf8(pair->value))
        return dml__fail(error, DML_ERROR_ARGUMENT, "the metadata \"%s\" isn't UTF-8", shown);
    if (strcmp(pair->key, DML__CHECKSUM_KEY) == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "\"%s\" can't be given as metadata: it is written by itself", shown);
    return DML_OK;
}

static bool dml__tensor_name_less(const void *context, int a, int b)
{
    const dml__tensor *tensors = (const dml__tensor *)context;
    return strcmp(tensors[a].name, tensors[b].name) < 0;
}

static bool dml__pair_key_less(const void *context, int a, int b)
{
    const dml__metadata *metadata = (const dml__metadata *)context;
    return strcmp(metadata[a].key, metadata[b].key) < 0;
}

static dml_status dml__check_twice(const dml__plan_of_file *plan, int *order, dml__error *error)
{
    char shown[DML__SHOWN_BYTES];
    dml__sort_order(order, plan->count, dml__tensor_name_less, plan->tensors);
    for (int i = 1; i < plan->count; i++) {
        const char *name = plan->tensors[order[i]].name;
        if (strcmp(plan->tensors[order[i - 1]].name, name) == 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "two tensors are named \"%s\"",
                             dml__shown(name, strlen(name), shown));
    }
    dml__sort_order(order, plan->pairs, dml__pair_key_less, plan->metadata);
    for (int i = 1; i < plan->pairs; i++) {
        const char *key = plan->metadata[order[i]].key;
        if (strcmp(plan->metadata[order[i - 1]].key, key) == 0)
            return dml__fail(error, DML_ERROR_ARGUMENT, "two texts of the metadata have the key \"%s\"",
                             dml__shown(key, strlen(key), shown));
    }
    return DML_OK;
}

static dml_status dml__check_plan(dml__memory *memory, const dml__plan_of_file *plan, dml__error *error)
{
    const int most = plan->count > plan->pairs ? plan->count : plan->pairs;
    dml_status status = DML_OK;
    if (plan->count < 0 || plan->pairs < 0)
        return dml__fail(error, DML_ERROR_ARGUMENT, "%d tensors and %d texts can't be written", plan->count,
                         plan->pairs);
    for (int i = 0; i < plan->count && status == DML_OK; i++)
        status = dml__check_tensor(&plan->tensors[i], i, error);
    for (int i = 0; i < plan->pairs && status == DML_OK; i++)
        status = dml__check_pair(&plan->metadata[i], error);
    if (status != DML_OK) return status;
    int *order = (int *)dml__allocate_array(memory, (size_t)most, sizeof *order);
    if (!order)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory to write the names of %d tensors", plan->count);
    status = dml__check_twice(plan, order, error);
    dml__release(memory, order);
    return status;
}

/* ---- the header ---- */

#define DML__CHECKSUM_START "{\"" DML__METADATA_NAME "\":{\"" DML__CHECKSUM_KEY "\":\""
enum { DML__CHECKSUM_AT = (int)sizeof DML__CHECKSUM_START - 1 };

static void dml__write_tensor_header(dml__json_writer *writer, const dml__tensor *tensor, uint64_t begin)
{
    dml__json_write(writer, ",");
    dml__json_write_string(writer, tensor->name);
    dml__json_write(writer, ":{\"dtype\":");
    dml__json_write_string(writer, dml__safetensors_dtype(tensor->dtype));
    dml__json_write(writer, ",\"shape\":[");
    for (int i = 0; i < tensor->ndim; i++) {
        if (i) dml__json_write(writer, ",");
        dml__json_write_count(writer, (uint64_t)tensor->dims[i]);
    }
    dml__json_write(writer, "],\"data_offsets\":[");
    dml__json_write_count(writer, begin);
    dml__json_write(writer, ",");
    dml__json_write_count(writer, begin + dml__tensor_bytes(tensor));
    dml__json_write(writer, "]}");
}

/* Writes or counts the header, its checksum 0, and counts the data. */
static void dml__write_plan(dml__plan_of_file *plan, dml__json_writer *writer)
{
    dml__json_write(writer, DML__CHECKSUM_START "00000000\"");
    for (int i = 0; i < plan->pairs; i++) {
        dml__json_write(writer, ",");
        dml__json_write_string(writer, plan->metadata[i].key);
        dml__json_write(writer, ":");
        dml__json_write_string(writer, plan->metadata[i].value);
    }
    dml__json_write(writer, "}");
    plan->data_bytes = 0;
    for (size_t size = 8; size > 0; size /= 2)
        for (int i = 0; i < plan->count; i++) {
            if (dml_dtype_size(plan->tensors[i].dtype) != size) continue;
            dml__write_tensor_header(writer, &plan->tensors[i], plan->data_bytes);
            plan->data_bytes += dml__tensor_bytes(&plan->tensors[i]);
        }
    dml__json_write(writer, "}");
    while (writer->bytes % 8) dml__json_write(writer, " ");
}

static dml_status dml__make_header(dml__memory *memory, dml__plan_of_file *plan, dml__error *error)
{
    dml__json_writer writer = { NULL, 0 };
    dml__write_plan(plan, &writer);
    if (writer.bytes > DML__SAFETENSORS_HEADER)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "names and metadata would make a header of %llu bytes, more than the %d of the format",
            (unsigned long long)writer.bytes, (int)DML__SAFETENSORS_HEADER);
    plan->header_bytes = (size_t)writer.bytes;
    plan->header = (char *)dml__allocate(memory, 8 + plan->header_bytes);
    if (!plan->header)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for a header of %llu bytes",
                         (unsigned long long)plan->header_bytes);
    dml__store64(plan->header, plan->header_bytes);
    writer.to = plan->header + 8;
    writer.bytes = 0;
    dml__write_plan(plan, &writer);
    return DML_OK;
}

/* ---- the bytes ---- */

/* Where bytes go to: each returns whether to go on. */
typedef dml_status (*dml__put)(void *to, const void *data, size_t bytes, dml__error *error);

/* The data of one tensor as the file has it. */
static dml_status dml__put_tensor(const dml__tensor *tensor, dml__put put, void *to, dml__error *error)
{
    const char *from = (const char *)tensor->data;
    const size_t width = dml_dtype_size(tensor->dtype);
    size_t left = (size_t)dml__tensor_bytes(tensor);
    if (left == 0) return DML_OK;
    if (dml__little_endian() || width == 1) return put(to, from, left, error);
    while (left > 0) {
        char piece[4096];
        const size_t bytes = left < sizeof piece ? left : sizeof piece;
        dml__swap_bytes(piece, from, bytes / width, width);
        const dml_status status = put(to, piece, bytes, error);
        if (status != DML_OK) return status;
        from += bytes;
        left -= bytes;
    }
    return DML_OK;
}

static dml_status dml__put_all(const dml__plan_of_file *plan, dml__put put, void *to, dml__error *error)
{
    dml_status status = put(to, plan->header, 8 + plan->header_bytes, error);
    for (size_t size = 8; size > 0; size /= 2)
        for (int i = 0; i < plan->count && status == DML_OK; i++)
            if (dml_dtype_size(plan->tensors[i].dtype) == size)
                status = dml__put_tensor(&plan->tensors[i], put, to, error);
    return status;
}

static dml_status dml__put_checksum(void *to, const void *data, size_t bytes, dml__error *error)
{
    uint32_t *sum = (uint32_t *)to;
    (void)error;
    *sum = dml__crc32c(*sum, data, bytes);
    return DML_OK;
}

static dml_status dml__put_memory(void *to, const void *data, size_t bytes, dml__error *error)
{
    char **at = (char **)to;
    (void)error;
    memcpy(*at, data, bytes);
    *at += bytes;
    return DML_OK;
}

/* Puts the checksum of everything into the header. */
static void dml__seal(dml__plan_of_file *plan)
{
    uint32_t sum = 0;
    char digits[9];
    dml__put_all(plan, dml__put_checksum, &sum, NULL);
    snprintf(digits, sizeof digits, "%08x", (unsigned)sum);
    memcpy(plan->header + 8 + DML__CHECKSUM_AT, digits, 8);
}

static dml_status dml__start_plan(dml__memory *memory, dml__plan_of_file *plan, const dml__tensor *tensors,
                                  int count, const dml__metadata *metadata, int pairs, dml__error *error)
{
    memset(plan, 0, sizeof *plan);
    plan->tensors = tensors;
    plan->count = count;
    plan->metadata = metadata;
    plan->pairs = pairs;
    const dml_status status = dml__check_plan(memory, plan, error);
    return status == DML_OK ? dml__make_header(memory, plan, error) : status;
}

DML__LOCAL dml_status dml__safetensors_store(dml__memory *memory, void *to, size_t capacity, size_t *bytes,
                                             const dml__tensor *tensors, int count,
                                             const dml__metadata *metadata, int pairs, dml__error *error)
{
    dml__plan_of_file plan;
    *bytes = 0;
    dml_status status = dml__start_plan(memory, &plan, tensors, count, metadata, pairs, error);
    if (status != DML_OK) return status;
    const uint64_t needed = 8 + plan.header_bytes + plan.data_bytes;
    if (needed > SIZE_MAX) {
        status = dml__fail(error, DML_ERROR_MEMORY, "%llu bytes of tensors are more than memory can hold",
                           (unsigned long long)needed);
    } else {
        *bytes = (size_t)needed;
        if (to && needed > capacity)
            status = dml__fail(error, DML_ERROR_MEMORY, "%d tensors take %llu bytes, there is room for %llu",
                               count, (unsigned long long)needed, (unsigned long long)capacity);
        else if (to) {
            char *at = (char *)to;
            dml__seal(&plan);
            dml__put_all(&plan, dml__put_memory, &at, NULL);
        }
    }
    dml__release(memory, plan.header);
    return status;
}

#ifndef DML_NO_STDIO

static dml_status dml__put_file(void *to, const void *data, size_t bytes, dml__error *error)
{
    return dml__file_append((dml__file_writer *)to, data, bytes, error);
}

DML__LOCAL dml_status dml__safetensors_save(dml__memory *memory, const char *path, const dml__tensor *tensors,
                                            int count, const dml__metadata *metadata, int pairs,
                                            dml__error *error)
{
    dml__plan_of_file plan;
    dml__file_writer file;
    dml_status status = dml__start_plan(memory, &plan, tensors, count, metadata, pairs, error);
    if (status == DML_OK) status = dml__file_create(&file, path, error);
    if (status == DML_OK) {
        dml__seal(&plan);
        status = dml__put_all(&plan, dml__put_file, &file, error);
        if (status == DML_OK)
            status = dml__file_commit(&file, error);
        else
            dml__file_abandon(&file);
    }
    dml__release(memory, plan.header);
    return status;
}

#endif

#endif

/* ---- thread/pool.c ---- */

#ifndef DML_THREAD_POOL_C
#define DML_THREAD_POOL_C

/* ---- thread/pool_internal.h ---- */

/* pool_internal.h: what a pool remembers of the machine, for the kernels. */
#ifndef DML_THREAD_POOL_INTERNAL_H
#define DML_THREAD_POOL_INTERNAL_H

typedef struct dml__machine {
    dml_isa isa; /* dml_cpu_isa's word; later changes of the environment don't count */
    dml_caches caches;
} dml__machine;

/* A load for a pool; NULL has dml_cpu_isa and the smallest caches of today's processors. */
DML__LOCAL dml__machine dml__pool_machine(const dml_pool *pool);

/* Which instructions for bf16 the pool's instruction set comes with: asked for when it is first needed, since
   that also asks the system for leave to use them, and then remembered; NULL asks each time. */
DML__LOCAL dml__bf16_isa dml__pool_bf16(dml_pool *pool);

#endif

#include <string.h>

/* The kernel's header has these two, but isn't installed everywhere (musl). */
#if defined(__linux__) && !defined(DML__NO_FUTEX)
#include <sys/syscall.h>
#include <unistd.h>
#if defined(SYS_futex)
#define DML__FUTEX 1
#define DML__FUTEX_WAIT_PRIVATE 128
#define DML__FUTEX_WAKE_PRIVATE 129
#endif
#endif

#define DML__OWN_LINE __attribute__((aligned(DML__ALIGNMENT)))
#define DML__SPIN 200 /* microseconds: what lies between two loops of a training step, and more */

/* How a loop runs. The caller writes `tasks`, `task` and `argument`, then publishes `unclaimed`. A worker
   claims a task by decrementing `unclaimed` from a positive value, and only then reads the other three: until
   that task is counted off `unfinished`, the loop can't end and they can't change. So a worker that is late
   for a loop does no harm, and nobody waits for a worker that has claimed nothing.

   In a process that fork() made, the workers are missing, which is just as if all were late; the mutex may be
   held by one that isn't there, so it and the condition are left alone there. Only who is about to make a
   system call asks what process it is in. */
struct dml_pool {
    dml__memory memory;
    dml__machine machine;
    dml__bf16_isa bf16;
    bool bf16_known;
    int threads;
    int spin;      /* microseconds */
    int pin_first; /* the place of worker 0 in the affinity mask; -1: none is pinned */
    int started;   /* threads running, at most threads - 1 */
    long process;  /* where they run */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    dml_scratch scratch;
    char *scratch_memory; /* (threads, scratch.worker aligned), then scratch.shared; NULL: none */
    struct dml__pool_worker *workers;
    dml__mutex mutex; /* these two where there is no futex */
    dml__cond cond;
    /* What the threads share is on cache lines of its own. */
    int unclaimed DML__OWN_LINE; /* tasks not yet claimed; -1: the pool is being destroyed */
    int sleepers;                /* workers that sleep, or are about to, until unclaimed != 0 */
    int tasks;                   /* the loop's: who claims finds it on the line that he has just fetched */
    dml_pool_task task;
    void *argument;
    int unfinished DML__OWN_LINE; /* tasks not yet ended */
    int caller_sleeps;            /* until unfinished == 0 */
};

typedef struct dml__pool_worker {
    dml_pool *pool;
    int number;
    dml__thread thread;
} dml__pool_worker;

/* False in a child process, to which the threads haven't come along. */
static bool dml__pool_is_ours(const dml_pool *pool)
{
    return pool->process == dml__process_id();
}

#ifndef DML_NO_THREADS

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

/* Sleeps while *word == value. May return early. */
static void dml__pool_sleep(dml_pool *pool, int *word, int value)
{
#ifdef DML__FUTEX
    (void)pool;
    syscall(SYS_futex, word, DML__FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    dml__mutex_lock(&pool->mutex);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) dml__cond_wait(&pool->cond, &pool->mutex, -1);
    dml__mutex_unlock(&pool->mutex);
#endif
}

/* Wakes at least `count` of those that sleep on `word`. */
static void dml__pool_wake(dml_pool *pool, int *word, int count)
{
#ifdef DML__FUTEX
    (void)pool;
    syscall(SYS_futex, word, DML__FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
#else
    (void)word, (void)count;
    dml__mutex_lock(&pool->mutex);
    dml__cond_signal_all(&pool->cond);
    dml__mutex_unlock(&pool->mutex);
#endif
}

/* Spins until *word == 0, or until *word != 0, but no longer than the pool may; whether it is so. The clock
   is read at every 64th pause, the first time when those have gone by: a pause takes 10 to 70 ns. */
static bool dml__pool_spin(const dml_pool *pool, const int *word, bool zero)
{
    double until = 0;
    for (int i = 1; pool->spin > 0; i++) {
        if ((__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) == zero) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (until == 0) until = now + pool->spin * 1e-6;
        if (now >= until) break;
    }
    return (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) == zero;
}

/* Claims and runs tasks until none is left, and returns how many it ran. Of many it claims a few at a time,
   fewer towards the end: threads that claim at once wait for each other. */
static int dml__pool_work(dml_pool *pool, int worker)
{
    int ran = 0;
    int unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED);
    while (unclaimed > 0) {
        const int few = unclaimed / 4 / pool->threads;
        const int left = unclaimed - (few > 1 ? few : 1);
        if (!__atomic_compare_exchange_n(&pool->unclaimed, &unclaimed, left, true, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        for (int i = unclaimed; i > left; i--) pool->task(pool->argument, pool->tasks - i, worker);
        ran += unclaimed - left;
        unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED);
    }
    return ran;
}

static void dml__pool_worker_main(void *argument)
{
    const dml__pool_worker *self = (const dml__pool_worker *)argument;
    dml_pool *pool = self->pool;
    if (pool->pin_first >= 0) dml__thread_pin(pool->pin_first + self->number);
    for (;;) {
        if (!dml__pool_spin(pool, &pool->unclaimed, false)) {
            /* The count goes up before the kernel looks at the word, and the caller looks at the count after
               it has written the word: one of the two sees the other. */
            __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&pool->unclaimed, __ATOMIC_SEQ_CST) == 0)
                dml__pool_sleep(pool, &pool->unclaimed, 0);
            __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
        }
        if (__atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED) < 0) return;
        const int ran = dml__pool_work(pool, self->number);
        if (ran && __atomic_sub_fetch(&pool->unfinished, ran, __ATOMIC_SEQ_CST) == 0 &&
            __atomic_load_n(&pool->caller_sleeps, __ATOMIC_SEQ_CST))
            dml__pool_wake(pool, &pool->unfinished, 1);
    }
}

/* Publishes `unclaimed` and wakes up to `wanted` sleepers. */
static void dml__pool_publish(dml_pool *pool, int unclaimed, int wanted)
{
    __atomic_store_n(&pool->unclaimed, unclaimed, __ATOMIC_SEQ_CST);
    const int sleepers = __atomic_load_n(&pool->sleepers, __ATOMIC_SEQ_CST);
    if (sleepers && dml__pool_is_ours(pool))
        dml__pool_wake(pool, &pool->unclaimed, sleepers < wanted ? sleepers : wanted);
}

static void dml__pool_wait(dml_pool *pool)
{
    if (dml__pool_spin(pool, &pool->unfinished, true)) return;
    __atomic_store_n(&pool->caller_sleeps, 1, __ATOMIC_SEQ_CST);
    int unfinished;
    while ((unfinished = __atomic_load_n(&pool->unfinished, __ATOMIC_SEQ_CST)) != 0)
        dml__pool_sleep(pool, &pool->unfinished, unfinished);
    __atomic_store_n(&pool->caller_sleeps, 0, __ATOMIC_SEQ_CST);
}

static void dml__pool_run_threads(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    pool->tasks = tasks;
    pool->task = task;
    pool->argument = argument;
    __atomic_store_n(&pool->unfinished, tasks, __ATOMIC_RELAXED);
    dml__pool_publish(pool, tasks, tasks - 1);
    const int ran = dml__pool_work(pool, 0);
    if (__atomic_sub_fetch(&pool->unfinished, ran, __ATOMIC_ACQUIRE) != 0) dml__pool_wait(pool);
}

static bool dml__pool_start_threads(dml_pool *pool)
{
    while (pool->started < pool->threads - 1) {
        dml__pool_worker *worker = &pool->workers[pool->started];
        worker->pool = pool;
        worker->number = pool->started + 1;
        if (!dml__thread_start(&worker->thread, dml__pool_worker_main, worker)) return false;
        pool->started++;
    }
    return true;
}

static void dml__pool_stop_threads(dml_pool *pool)
{
    if (!dml__pool_is_ours(pool)) return;
    dml__pool_publish(pool, -1, pool->started);
    for (int i = 0; i < pool->started; i++) dml__thread_join(&pool->workers[i].thread);
}

#else

static void dml__pool_run_threads(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    (void)pool, (void)tasks, (void)task, (void)argument;
}

static bool dml__pool_start_threads(dml_pool *pool)
{
    (void)pool;
    return true;
}

static void dml__pool_stop_threads(dml_pool *pool)
{
    (void)pool;
}

#endif

static void dml__pool_settle(dml_pool *pool, const dml_pool_options *options)
{
    pool->threads = options->threads;
#ifdef DML_NO_THREADS
    if (!options->host_parallel) pool->threads = 1;
#endif
    const int share = pool->threads == 1 ? 1 : dml_cpu_share();
    if (pool->threads == 0) pool->threads = share;
    /* With more threads than processors, who spins keeps from working who has work, and the pinned queue. */
    const bool enough = pool->threads <= share;
    pool->spin = options->spin < 0 ? 0 : options->spin ? options->spin : enough ? DML__SPIN : 0;
    const bool pin = options->pin ? options->pin > 0 : dml__cpu_environment("DML_PIN") > 0;
    const int rank = dml__cpu_environment("LOCAL_RANK");
    pool->pin_first = pin && enough ? (rank > 0 ? rank * pool->threads : 0) : -1;
}

static bool dml__pool_start(dml_pool *pool)
{
    if (pool->host_parallel || pool->threads == 1) return true;
    pool->workers = (dml__pool_worker *)dml__allocate_array(&pool->memory, (size_t)pool->threads - 1,
                                                            sizeof *pool->workers);
    return pool->workers && dml__pool_start_threads(pool);
}

DML_API dml_pool *dml_pool_create(const dml_pool_options *options)
{
    const dml_pool_options defaults = { 0, 0, { NULL, NULL, NULL }, { 0, 0 }, NULL, NULL, 0 };
    if (!options) options = &defaults;
    if (options->threads < 0) return NULL;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml_pool *pool = (dml_pool *)dml__allocate(&memory, sizeof *pool);
    if (!pool) return NULL;
    if (!dml__mutex_init(&pool->mutex)) {
        dml__release(&memory, pool);
        return NULL;
    }
    if (!dml__cond_init(&pool->cond)) {
        dml__mutex_destroy(&pool->mutex);
        dml__release(&memory, pool);
        return NULL;
    }
    pool->memory = memory;
    pool->machine.isa = dml_cpu_isa();
    pool->machine.caches = dml_cpu_caches();
    dml__pool_settle(pool, options);
    pool->process = dml__process_id();
    pool->host_parallel = options->host_parallel;
    pool->host = options->host;
    if (dml_pool_reserve(pool, options->scratch) != DML_OK || !dml__pool_start(pool)) {
        dml_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

DML_API void dml_pool_destroy(dml_pool *pool)
{
    if (!pool) return;
    dml__pool_stop_threads(pool);
    if (dml__pool_is_ours(pool)) {
        dml__cond_destroy(&pool->cond);
        dml__mutex_destroy(&pool->mutex);
    }
    dml__memory memory = pool->memory;
    dml__release(&memory, pool->workers);
    dml__release(&memory, pool->scratch_memory);
    dml__release(&memory, pool);
}

DML_API int dml_pool_threads(const dml_pool *pool)
{
    return pool ? pool->threads : 1;
}

DML__LOCAL dml__machine dml__pool_machine(const dml_pool *pool)
{
    if (pool) return pool->machine;
    const dml__machine unknown = { dml_cpu_isa(), { DML__LEAST_L1, DML__LEAST_L2, 0, 1 } };
    return unknown;
}

DML__LOCAL dml__bf16_isa dml__pool_bf16(dml_pool *pool)
{
    if (!pool) return dml__cpu_bf16(dml_cpu_isa());
    if (!pool->bf16_known) pool->bf16 = dml__cpu_bf16(pool->machine.isa);
    pool->bf16_known = true;
    return pool->bf16;
}

DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    if (tasks > 1 && pool && pool->host_parallel) {
        pool->host_parallel(pool->host, pool->threads, tasks, task, argument);
    } else if (tasks > 1 && pool && pool->started) {
        dml__pool_run_threads(pool, tasks, task, argument);
    } else {
        for (int i = 0; i < tasks; i++) task(argument, i, 0);
    }
}

DML_API dml_status dml_pool_reserve(dml_pool *pool, dml_scratch scratch)
{
    if (!pool) return DML_OK;
    const dml_scratch old = pool->scratch;
    if (scratch.worker <= old.worker && scratch.shared <= old.shared) return DML_OK;
    if (scratch.worker < old.worker) scratch.worker = old.worker;
    if (scratch.shared < old.shared) scratch.shared = old.shared;
    dml__release(&pool->memory, pool->scratch_memory);
    memset(&pool->scratch, 0, sizeof pool->scratch);
    pool->scratch_memory = NULL;
    const size_t threads = (size_t)pool->threads, most = SIZE_MAX - DML__ALIGNMENT;
    if (scratch.worker > most || scratch.shared > most) return DML_ERROR_MEMORY;
    const size_t worker = dml__align_up(scratch.worker);
    if (worker > (SIZE_MAX - scratch.shared) / threads) return DML_ERROR_MEMORY;
    pool->scratch_memory = (char *)dml__allocate(&pool->memory, threads * worker + scratch.shared);
    if (!pool->scratch_memory) return DML_ERROR_MEMORY;
    pool->scratch = scratch;
    return DML_OK;
}

DML_API dml_scratch dml_pool_scratch_bytes(const dml_pool *pool)
{
    const dml_scratch none = { 0, 0 };
    return pool ? pool->scratch : none;
}

DML_API void *dml_pool_scratch(dml_pool *pool, int worker)
{
    if (!pool || pool->scratch.worker == 0 || worker < 0 || worker >= pool->threads) return NULL;
    return pool->scratch_memory + (size_t)worker * dml__align_up(pool->scratch.worker);
}

DML_API void *dml_pool_shared_scratch(dml_pool *pool)
{
    if (!pool || pool->scratch.shared == 0) return NULL;
    return pool->scratch_memory + (size_t)pool->threads * dml__align_up(pool->scratch.worker);
}

#endif

/* ---- kernels/microkernel.c ---- */

#ifndef DML_KERNELS_MICROKERNEL_C
#define DML_KERNELS_MICROKERNEL_C

/* ---- kernels/microkernel.h ---- */

/* microkernel.h: the innermost loop of all matrix products and convolutions, one for each instruction set. */
#ifndef DML_KERNELS_MICROKERNEL_H
#define DML_KERNELS_MICROKERNEL_H

/* Bounds over all instruction sets: of a tile's rows, of its elements, and of its panels of A and B. */
#if defined(DML__HAS_AMX)
#define DML__TILE_ROWS 32
#define DML__TILE_FLOATS 1024
#else
#define DML__TILE_ROWS 8
#define DML__TILE_FLOATS 256
#endif
#if defined(DML__HAS_AVX512)
#define DML__PANEL_FLOATS 20480
#elif defined(DML__HAS_AVX2)
#define DML__PANEL_FLOATS 11264
#else
#define DML__PANEL_FLOATS 8192
#endif

/* A tile of C as a sum of small products, over a list of blocks (batch-reduce GEMM: Georganas et al., arXiv
   1906.06440):
       C[i][j] = beta * C[i][j] + bias[j] + alpha * sum of A * B over t < blocks and p < k, where
       A = a[i][a_at[t] + p * a_step],  B = b[b_at[t] + p * b_step + j]
   and then the activation. With beta = 0, C is not read. The rows of A and C may lie anywhere, so that a
   factor is used where it is: rows of a matrix (a_step = 1), columns of one (a_step = its leading dimension),
   a packed panel (a_step = its width), pixels of an image, whose taps are the blocks. Columns that are not
   whole vectors are computed with a second vector that ends with the last column: what both hold, both write,
   after all of C has been read. */
typedef struct dml__tile {
    int rows, columns;            /* 1 .. the kernel's rows; lanes .. vectors * lanes */
    int blocks, k;                /* k of each block */
    const ptrdiff_t *a_at, *b_at; /* (blocks) */
    const float *a[DML__TILE_ROWS];
    ptrdiff_t a_step;
    bool a_packed; /* the rows are a panel: a[i] = a[0] + i, a_step = rows */
    const float *b;
    ptrdiff_t b_step;
    int panels;        /* how many tiles beside each other, at least 1: C's go on `columns` further, */
    ptrdiff_t b_panel; /* B's so much */
    float alpha, beta;
    const float *bias; /* (panels, columns), or NULL */
    bool relu;
    float *c[DML__TILE_ROWS];
} dml__tile;

/* A single panel's bare sums, of factors that are not packed: C = A * B. */
static inline void dml__tile_init(dml__tile *tile)
{
    tile->a_packed = false;
    tile->panels = 1;
    tile->b_panel = 0;
    tile->alpha = 1;
    tile->beta = 0;
    tile->bias = NULL;
    tile->relu = false;
}

/* `run` takes tiles of 1 .. rows rows and lanes .. vectors * lanes columns; vectors is 2. An element's bits
   depend on its own row of A and column of B alone, not on the tile it is computed in: it is one chain of
   multiply-adds over t and p in order. That is why results don't change with the number of threads. */
typedef struct dml__microkernel {
    int rows, vectors, lanes;
    void (*run)(const dml__tile *tile);
    /* Blocks of k are at most so long: a tile's panel of B, with a few rows of A, shall stay in the first
       cache; and longer blocks read and write C less often. Times (rows + vectors * lanes), DML__PANEL_FLOATS
       at most. */
    int k_block;
    /* Blocks of k are filled up with zeros to a multiple of this; 0: they need not be. Rows of A are then
       wanted packed as lines, k floats each one after the other, with room for `rows` of them. */
    int k_multiple;
} dml__microkernel;

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa);

/* A micro-kernel on bf16: each float of A and B is the bits of a pair of bf16, of two k's, the first in the
   lower half, and their two products are added into the f32 sum. NULL: there is none. */
DML__LOCAL const dml__microkernel *dml__microkernel_bf16(dml__bf16_isa isa);

#endif

/* ---- kernels/microkernel_body.h ---- */

/* microkernel_body.h: the loop that every micro-kernel is. Included by the files that make them. */
#ifndef DML_KERNELS_MICROKERNEL_BODY_H
#define DML_KERNELS_MICROKERNEL_BODY_H

/* ---- kernels/isa_vectors.h ---- */

/* isa_vectors.h: the vectors of each instruction set under one set of names: dml__<isa>_load, _store, _splat,
   _multiply, _add, _fma (a * b + c), _relu (which keeps a NaN) and _sums (of the lanes of four vectors), for
   loops that are written once as a macro and compiled for each. Their targets are their own, so that -O2
   alone gives full speed; what is inlined must have the same target as what it is inlined into. (vector.h is
   for kernels that wait for memory.) */
#ifndef DML_KERNELS_ISA_VECTORS_H
#define DML_KERNELS_ISA_VECTORS_H

#include <string.h>
#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define DML__UNROLL _Pragma("clang loop unroll(full)")
#else
#define DML__UNROLL _Pragma("GCC unroll 16")
#endif
#define DML__INLINE static inline __attribute__((always_inline))

/* A loop that gcc lets begin anywhere in a cache line is up to a fifth slower where two threads share a core;
   and it reads ahead into more registers than there are, unless it is kept from moving loads. */
#if defined(__GNUC__) && !defined(__clang__)
#define DML__ALIGNED_LOOPS __attribute__((optimize("align-loops=64")))
#define DML__IN_ORDER(index) __asm__ volatile("" : "+r"(index) : : "memory");
#else
#define DML__ALIGNED_LOOPS
#define DML__IN_ORDER(index)
#endif
#if defined(DML__EMULATED)
#define DML__TARGET(isa)
#else
#define DML__TARGET(isa) __attribute__((target(isa)))
#endif

/* --- plain C: four lanes of whatever the compiler has --- */

typedef float dml__v4 __attribute__((vector_size(16)));

DML__INLINE dml__v4 dml__plain_load(const float *from)
{
    dml__v4 value;
    memcpy(&value, from, sizeof value);
    return value;
}

DML__INLINE dml__v4 dml__plain_splat(float x)
{
    const dml__v4 value = { x, x, x, x };
    return value;
}

DML__INLINE dml__v4 dml__plain_multiply(dml__v4 a, dml__v4 b)
{
    return a * b;
}

DML__INLINE dml__v4 dml__plain_add(dml__v4 a, dml__v4 b)
{
    return a + b;
}

DML__INLINE dml__v4 dml__plain_fma(dml__v4 a, dml__v4 b, dml__v4 c)
{
    return a * b + c;
}

typedef int32_t dml__v4_mask __attribute__((vector_size(16)));

DML__INLINE dml__v4 dml__plain_relu(dml__v4 a)
{
    return (dml__v4)((dml__v4_mask)a & ~(a <= 0.0f)); /* keeps a NaN */
}

DML__INLINE void dml__plain_store(float *to, dml__v4 value)
{
    memcpy(to, &value, sizeof value);
}

DML__INLINE void dml__plain_sums(dml__v4 a, dml__v4 b, dml__v4 c, dml__v4 d, float sums[4])
{
    sums[0] = (a[0] + a[2]) + (a[1] + a[3]);
    sums[1] = (b[0] + b[2]) + (b[1] + b[3]);
    sums[2] = (c[0] + c[2]) + (c[1] + c[3]);
    sums[3] = (d[0] + d[2]) + (d[1] + d[3]);
}

#if defined(DML__HAS_AVX2)

/* --- AVX2 with FMA --- */

#define DML__AVX2 DML__TARGET("avx2,fma")
#define dml__avx2_load(from) _mm256_loadu_ps(from)
#define dml__avx2_store(to, value) _mm256_storeu_ps(to, value)
#define dml__avx2_splat(x) _mm256_set1_ps(x)
#define dml__avx2_multiply(a, b) _mm256_mul_ps(a, b)
#define dml__avx2_add(a, b) _mm256_add_ps(a, b)
#define dml__avx2_fma(a, b, c) _mm256_fmadd_ps(a, b, c)

DML__AVX2 DML__INLINE __m256 dml__avx2_relu(__m256 a)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LE_OQ), a); /* keeps a NaN */
}

DML__AVX2 DML__INLINE void dml__avx2_sums(__m256 a, __m256 b, __m256 c, __m256 d, float sums[4])
{
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

#endif
#if defined(DML__HAS_AVX512)

/* --- AVX-512 --- */

#define DML__AVX512 DML__TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#define dml__avx512_load(from) _mm512_loadu_ps(from)
#define dml__avx512_store(to, value) _mm512_storeu_ps(to, value)
#define dml__avx512_splat(x) _mm512_set1_ps(x)
#define dml__avx512_multiply(a, b) _mm512_mul_ps(a, b)
#define dml__avx512_add(a, b) _mm512_add_ps(a, b)
#define dml__avx512_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
/* Keeps a NaN. */
#define dml__avx512_relu(a) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NLE_UQ), a)

/* The two halves added. */
DML__AVX512 DML__INLINE __m256 dml__avx512_fold(__m512 a)
{
    float lanes[16];
    _mm512_storeu_ps(lanes, a);
    return _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
}

DML__AVX512 DML__INLINE void dml__avx512_sums(__m512 a, __m512 b, __m512 c, __m512 d, float sums[4])
{
    dml__avx2_sums(dml__avx512_fold(a), dml__avx512_fold(b), dml__avx512_fold(c), dml__avx512_fold(d), sums);
}

#endif
#if defined(__aarch64__)

/* --- NEON --- */

#define dml__neon_load(from) vld1q_f32(from)
#define dml__neon_store(to, value) vst1q_f32(to, value)
#define dml__neon_splat(x) vdupq_n_f32(x)
#define dml__neon_multiply(a, b) vmulq_f32(a, b)
#define dml__neon_add(a, b) vaddq_f32(a, b)
#define dml__neon_fma(a, b, c) vfmaq_f32(c, a, b)

DML__INLINE float32x4_t dml__neon_relu(float32x4_t a)
{
    const uint32x4_t positive_or_nan = vmvnq_u32(vcleq_f32(a, vdupq_n_f32(0)));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), positive_or_nan));
}

DML__INLINE void dml__neon_sums(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float sums[4])
{
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

#endif

#endif

/* One body, written over a vector type and a few functions on it (dml__<isa>_load, ...), makes the functions
   of each instruction set, with the numbers of rows and vectors and the form constant: all its loops but
   those over the blocks and over k are then unrolled, which puts the accumulators into registers. Each is a
   function of its own, since compilers run out of registers in one that holds them all. */
#define DML__EACH(statement)                                                                                 \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < vectors; j++) statement;                                                     \
        }                                                                                                    \
    }

/* The forms: any tile; B packed and k a multiple of 4, which are unrolled; and A a packed panel as well,
   which takes one pointer. Fewer instructions beside the multiply-adds count where two threads share a core.
 */
enum { DML__ANY_TILE, DML__B_PACKED, DML__BOTH_PACKED, DML__TILE_FORMS };

#define DML__DEFINE_COMPUTE(isa, target, vector, lanes, most_rows, multiply_add)                             \
    target DML__INLINE void dml__compute_##isa(const dml__tile *tile, int panel, const int rows,             \
                                               const int vectors, const int form)                            \
    {                                                                                                        \
        vector sum[most_rows][2], line[2];                                                                   \
        const float *a[most_rows];                                                                           \
        const int steps = form == DML__ANY_TILE ? 1 : 4;                                                     \
        const ptrdiff_t a_step = tile->a_step;                                                               \
        const ptrdiff_t b_step = form == DML__ANY_TILE ? tile->b_step : vectors * lanes;                     \
        const ptrdiff_t column = (ptrdiff_t)panel * vectors * lanes;                                         \
        const ptrdiff_t second = form == DML__ANY_TILE ? tile->columns - lanes : lanes;                      \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) a[i] = tile->a[i];                                                    \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) DML__PREFETCH(tile->c[i] + column + vectors * lanes - 1);             \
        DML__EACH(sum[i][j] = dml__##isa##_splat(0))                                                         \
        for (int t = 0; t < tile->blocks; t++) {                                                             \
            const float *b = tile->b + panel * tile->b_panel + tile->b_at[t];                                \
            ptrdiff_t at = tile->a_at[t]; /* one index for all rows */                                       \
            const float *packed = a[0] + at;                                                                 \
            for (int p = tile->k; p > 0; p -= steps, b += steps * b_step, packed += steps * rows) {          \
                DML__UNROLL                                                                                  \
                for (int s = 0; s < steps; s++) {                                                            \
                    DML__IN_ORDER(at)                                                                        \
                    DML__UNROLL                                                                              \
                    for (int j = 0; j < vectors; j++)                                                        \
                        line[j] = dml__##isa##_load(b + s * b_step + second * j);                            \
                    DML__UNROLL                                                                              \
                    for (int i = 0; i < rows; i++) {                                                         \
                        const vector value =                                                                 \
                            dml__##isa##_splat(form == DML__BOTH_PACKED ? packed[s * rows + i] : a[i][at]);  \
                        DML__UNROLL                                                                          \
                        for (int j = 0; j < vectors; j++)                                                    \
                            sum[i][j] = multiply_add(value, line[j], sum[i][j]);                             \
                    }                                                                                        \
                    if (form != DML__BOTH_PACKED) at += a_step;                                              \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        if (tile->alpha != 1)                                                                                \
            DML__EACH(sum[i][j] = dml__##isa##_multiply(dml__##isa##_splat(tile->alpha), sum[i][j]))         \
        if (tile->beta != 0)                                                                                 \
            DML__EACH(sum[i][j] =                                                                            \
                          dml__##isa##_fma(dml__##isa##_splat(tile->beta),                                   \
                                           dml__##isa##_load(tile->c[i] + column + second * j), sum[i][j]))  \
        if (tile->bias)                                                                                      \
            DML__EACH(sum[i][j] =                                                                            \
                          dml__##isa##_add(sum[i][j], dml__##isa##_load(tile->bias + column + second * j)))  \
        if (tile->relu) DML__EACH(sum[i][j] = dml__##isa##_relu(sum[i][j]))                                  \
        DML__EACH(dml__##isa##_store(tile->c[i] + column + second * j, sum[i][j]))                           \
    }

/* Panels beside each other are one call where the smallest loop leaves registers for that. C is asked for
   ahead: where it lies in memory, the wait would otherwise be at the end of each tile. Its last line is
   enough: a line that it shares with the tile before it was asked for by that. */
#define DML__DEFINE_TILE(isa, target, r, v, form)                                                            \
    target DML__ALIGNED_LOOPS static void dml__tile_##isa##_##r##x##v##_##form(const dml__tile *tile,        \
                                                                               int panel)                    \
    {                                                                                                        \
        do dml__compute_##isa(tile, panel, r, v, form);                                                      \
        while (form == DML__ANY_TILE && ++panel < tile->panels);                                             \
    }
#define DML__DEFINE_TILES(isa, target, r)                                                                    \
    DML__DEFINE_TILE(isa, target, r, 1, DML__ANY_TILE)                                                       \
    DML__DEFINE_TILE(isa, target, r, 2, DML__ANY_TILE)                                                       \
    DML__DEFINE_TILE(isa, target, r, 2, DML__B_PACKED)                                                       \
    DML__DEFINE_TILE(isa, target, r, 2, DML__BOTH_PACKED)
typedef void (*dml__tile_function)(const dml__tile *tile, int panel);

/* `functions` are those for the tile's rows. */
static inline void dml__run_panels(const dml__tile *tile, int lanes, const dml__tile_function *functions)
{
    int form = DML__TILE_FORMS;
    if (tile->columns > lanes) {
        const bool b_packed = tile->columns == 2 * lanes && tile->b_step == 2 * lanes && tile->k % 4 == 0;
        form = !b_packed ? DML__ANY_TILE : tile->a_packed ? DML__BOTH_PACKED : DML__B_PACKED;
    }
    const bool at_once = form == DML__ANY_TILE || form == DML__TILE_FORMS;
    for (int n = 0; n < (at_once ? 1 : tile->panels); n++) functions[form](tile, n);
}

#define DML__TILES(isa, target, r)                                                                           \
    { dml__tile_##isa##_##r##x2_DML__ANY_TILE, dml__tile_##isa##_##r##x2_DML__B_PACKED,                      \
      dml__tile_##isa##_##r##x2_DML__BOTH_PACKED, dml__tile_##isa##_##r##x1_DML__ANY_TILE },
#define DML__ROWS_4(of, isa, target)                                                                         \
    of(isa, target, 1) of(isa, target, 2) of(isa, target, 3) of(isa, target, 4)
#define DML__ROWS_6(of, isa, target) DML__ROWS_4(of, isa, target) of(isa, target, 5) of(isa, target, 6)
#define DML__ROWS_8(of, isa, target) DML__ROWS_6(of, isa, target) of(isa, target, 7) of(isa, target, 8)

/* The micro-kernel's function, of up to 4, 6 or 8 rows. */
#define DML__DEFINE_RUN(isa, target, lanes, most_rows)                                                       \
    DML__ROWS_##most_rows(DML__DEFINE_TILES, isa, target) static void dml__run_##isa(const dml__tile *tile)  \
    {                                                                                                        \
        static const dml__tile_function tiles[most_rows][DML__TILE_FORMS + 1] = { DML__ROWS_##most_rows(     \
            DML__TILES, isa, target) };                                                                      \
        dml__run_panels(tile, lanes, tiles[tile->rows - 1]);                                                 \
    }

#endif

DML__DEFINE_COMPUTE(plain, , dml__v4, 4, 4, dml__plain_fma)
DML__DEFINE_RUN(plain, , 4, 4)

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one of A take 15 of 16 registers. */
DML__DEFINE_COMPUTE(avx2, DML__AVX2, __m256, 8, 6, dml__avx2_fma)
DML__DEFINE_RUN(avx2, DML__AVX2, 8, 6)

#endif
#if defined(DML__HAS_AVX512)

/* 8 x 2 accumulators; more rows would need more pointers than there are registers. */
DML__DEFINE_COMPUTE(avx512, DML__AVX512, __m512, 16, 8, dml__avx512_fma)
DML__DEFINE_RUN(avx512, DML__AVX512, 16, 8)

#endif
#if defined(__aarch64__)

DML__DEFINE_COMPUTE(neon, , float32x4_t, 4, 8, dml__neon_fma)
DML__DEFINE_RUN(neon, , 4, 8)

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_get(dml_isa isa)
{
    (void)isa;
    static const dml__microkernel plain = { 4, 2, 4, dml__run_plain, 512, 0 };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = { 8, 2, 16, dml__run_avx512, 512, 0 };
    if (isa == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2, 512, 0 };
    if (isa == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 8, 2, 4, dml__run_neon, 512, 0 };
    if (isa == DML_ISA_NEON) return &neon;
#endif
    return &plain;
}

#endif

/* ---- kernels/microkernel_bf16.c ---- */

#ifndef DML_KERNELS_MICROKERNEL_BF16_C
#define DML_KERNELS_MICROKERNEL_BF16_C

#if defined(DML__HAS_AVX512_BF16)

/* --- pairs of bf16 by AVX512-BF16: the same loop, whose multiply-adds are dot products of pairs --- */

#define DML__AVX512_BF16 DML__TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,avx512bf16")
#define dml__pairs_load(from) _mm512_loadu_ps(from)
#define dml__pairs_store(to, value) _mm512_storeu_ps(to, value)
#define dml__pairs_splat(x) _mm512_set1_ps(x)
#define dml__pairs_multiply(a, b) _mm512_mul_ps(a, b)
#define dml__pairs_add(a, b) _mm512_add_ps(a, b)
#define dml__pairs_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define dml__pairs_relu(a) dml__avx512_relu(a)

DML__AVX512_BF16 DML__INLINE __m512 dml__pairs_product(__m512 a, __m512 b, __m512 c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

DML__DEFINE_COMPUTE(pairs, DML__AVX512_BF16, __m512, 16, 8, dml__pairs_product)

DML__DEFINE_RUN(pairs, DML__AVX512_BF16, 16, 8)

#endif
#if defined(DML__HAS_AMX)

/* --- pairs of bf16 by AMX: 2 x 2 tiles of 16 x 16 sums --- */

#define DML__AMX DML__TARGET("amx-tile,amx-bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")

/* All eight tiles have 16 rows of 64 bytes. */
typedef struct dml__amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} dml__amx_config;

/* C's rows from sums (32, 32) that AMX has stored. */
DML__AMX static void dml__finish_amx(const dml__tile *tile, ptrdiff_t column, const float *sums)
{
    const int vectors = tile->columns > 16 ? 2 : 1;
    for (int i = 0; i < tile->rows; i++, sums += 32) {
        float *c = tile->c[i] + column;
        __m512 values[2];
        for (int q = 0, j = 0; q < vectors; q++, j = tile->columns - 16) {
            __m512 value = _mm512_mul_ps(_mm512_set1_ps(tile->alpha), _mm512_loadu_ps(sums + 16 * q));
            if (tile->beta != 0)
                value = _mm512_fmadd_ps(_mm512_set1_ps(tile->beta), _mm512_loadu_ps(c + j), value);
            if (tile->bias) value = _mm512_add_ps(value, _mm512_loadu_ps(tile->bias + column + j));
            if (tile->relu) value = dml__avx512_relu(value);
            values[q] = value;
        }
        _mm512_storeu_ps(c, values[0]);
        if (vectors == 2) _mm512_storeu_ps(c + tile->columns - 16, values[1]);
    }
}

/* Rows of A are lines of k floats; those behind the last are read and make sums that nobody looks at. */
DML__AMX static void dml__run_amx(const dml__tile *tile)
{
    static const dml__amx_config config = { 1,
                                            0,
                                            { 0 },
                                            { 64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0 },
                                            { 16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0 } };
    const bool low = tile->rows > 16, right = tile->columns > 16;
    const int a_line = tile->k * 4, b_line = (int)tile->b_step * 4; /* bytes */
    float sums[32 * 32];
    _tile_loadconfig(&config);
    for (int n = 0; n < tile->panels; n++) {
        const float *b = tile->b + n * tile->b_panel;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int p = 0; p < tile->k; p += 16, b += 16 * tile->b_step) {
            _tile_loadd(4, tile->a[0] + p, a_line);
            _tile_loadd(6, b, b_line);
            _tile_dpbf16ps(0, 4, 6);
            if (right) {
                _tile_loadd(7, b + tile->columns - 16, b_line);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (low) {
                _tile_loadd(5, tile->a[16] + p, a_line);
                _tile_dpbf16ps(2, 5, 6);
                if (right) _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, sums, 128);
        _tile_stored(1, sums + 16, 128);
        _tile_stored(2, sums + 16 * 32, 128);
        _tile_stored(3, sums + 16 * 32 + 16, 128);
        dml__finish_amx(tile, (ptrdiff_t)n * tile->columns, sums);
    }
    _tile_release();
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_bf16(dml__bf16_isa isa)
{
#if defined(DML__HAS_AMX)
    static const dml__microkernel amx = { 32, 2, 16, dml__run_amx, 256, 16 };
    if (isa == DML__BF16_AMX) return &amx;
#endif
#if defined(DML__HAS_AVX512_BF16)
    static const dml__microkernel pairs = { 8, 2, 16, dml__run_pairs, 256, 0 };
    if (isa != DML__BF16_WIDENED) return &pairs;
#endif
    (void)isa;
    return NULL;
}

#endif

/* ---- kernels/pack.c ---- */

#ifndef DML_KERNELS_PACK_C
#define DML_KERNELS_PACK_C

/* ---- kernels/pack.h ---- */

/* pack.h: the factors of a product, and copying parts of them into panels that a micro-kernel reads in order.
 */
#ifndef DML_KERNELS_PACK_H
#define DML_KERNELS_PACK_H

/* One factor of a product: `lane` counts the rows of A, or the columns of B. `pack` writes lanes
   first .. first + lanes - 1 for k0 <= k < k0 + kc as a panel, out[(k - k0) * width + lane - first], with
   zeros in lanes lanes .. width - 1; lanes <= width. */
typedef struct dml__factor {
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    const void *source;
} dml__factor;

/* A plain matrix as the source of a factor, which is then used where it lies if that is as fast: element
   (lane, k) is x[lane * lane_step + k * k_step]. One of the two steps is 1. */
typedef struct dml__matrix {
    const float *x;
    ptrdiff_t lane_step, k_step;
} dml__matrix;

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out);

/* out[k * width + lane] = x[lane * lane_step + k], lane < lanes, k < kc: for packers. */
DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out);

#endif

#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* to[k * width + lane] = from[lane * step + k] for 4 x 4. */
static inline void dml__transpose_4x4(const float *from, ptrdiff_t step, float *to, int width)
{
#if defined(__SSE__)
    __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + step);
    __m128 r2 = _mm_loadu_ps(from + 2 * step), r3 = _mm_loadu_ps(from + 3 * step);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(to, r0);
    _mm_storeu_ps(to + width, r1);
    _mm_storeu_ps(to + 2 * width, r2);
    _mm_storeu_ps(to + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int lane = 0; lane < 4; lane++) to[k * width + lane] = from[lane * step + k];
#endif
}

/* The same for 2 x kc. */
static void dml__pack_pair(const float *from, ptrdiff_t step, int kc, int width, float *to)
{
    int k = 0;
#if defined(__SSE__)
    for (; k + 4 <= kc; k += 4, to += 4 * width) {
        const __m128 r0 = _mm_loadu_ps(from + k), r1 = _mm_loadu_ps(from + step + k);
        const __m128 low = _mm_unpacklo_ps(r0, r1), high = _mm_unpackhi_ps(r0, r1);
        _mm_storel_pi((__m64 *)(void *)to, low);
        _mm_storeh_pi((__m64 *)(void *)(to + width), low);
        _mm_storel_pi((__m64 *)(void *)(to + 2 * width), high);
        _mm_storeh_pi((__m64 *)(void *)(to + 3 * width), high);
    }
#endif
    for (; k < kc; k++, to += width) to[0] = from[k], to[1] = from[step + k];
}

DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out)
{
    int lane = 0;
    for (; lane + 4 <= lanes; lane += 4) {
        const float *from = x + lane * lane_step;
        int k = 0;
        for (; k + 4 <= kc; k += 4) dml__transpose_4x4(from + k, lane_step, out + k * width + lane, width);
        for (; k < kc; k++)
            for (int l = 0; l < 4; l++) out[k * width + lane + l] = from[l * lane_step + k];
    }
    if (lane + 2 <= lanes) {
        dml__pack_pair(x + lane * lane_step, lane_step, kc, width, out + lane);
        lane += 2;
    }
    for (; lane < lanes; lane++)
        for (int k = 0; k < kc; k++) out[k * width + lane] = x[lane * lane_step + k];
}

/* Lanes that lie side by side. A copy of a known size is a few instructions, so the copies take all of a
   vector's lanes, where there is more of the matrix behind: what is too much is written over by the next. */
static void dml__pack_lanes(const float *x, ptrdiff_t k_step, int lanes, int kc, int width, float *out)
{
    int k = 0;
    if (lanes <= 8 && lanes == width && k_step >= 8)
        for (; k < kc - 8; k++, x += k_step, out += width) memcpy(out, x, 8 * sizeof *out);
    if (lanes > 8 && lanes <= 16 && lanes == width)
        for (; k < kc; k++, x += k_step, out += width) {
            memcpy(out, x, 8 * sizeof *out);
            memcpy(out + lanes - 8, x + lanes - 8, 8 * sizeof *out);
        }
    for (; k < kc; k++, x += k_step, out += width) {
        memcpy(out, x, (size_t)lanes * sizeof *out);
        if (lanes < width) memset(out + lanes, 0, (size_t)(width - lanes) * sizeof *out);
    }
}

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out)
{
    const dml__matrix *m = (const dml__matrix *)matrix;
    const float *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (m->lane_step == 1) {
        dml__pack_lanes(x, m->k_step, lanes, kc, width, out);
        return;
    }
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    dml__pack_transposed(x, m->lane_step, lanes, kc, width, out);
}

#endif

/* ---- kernels/finish.c ---- */

#ifndef DML_KERNELS_FINISH_C
#define DML_KERNELS_FINISH_C

/* ---- kernels/finish.h ---- */

/* finish.h: how a line of a product's result is made from sums that were formed on the side. */
#ifndef DML_KERNELS_FINISH_H
#define DML_KERNELS_FINISH_H

/* ---- kernels/vector.h ---- */

/* vector.h: how the memory-bound kernels are written once and compiled for each instruction set.

   A kernel's body is a DML__BODY function over dml__vf, a vector of DML__LANES floats, and
   DML__PER_ISA(name, (parameters), (arguments)) compiles `name_body` for each instruction set and defines
   `name(isa, ...)`, which picks one. Vectors are 32 bytes on x86 and 16 elsewhere; a processor with AVX-512
   runs the AVX2 code: for kernels that wait for memory wider vectors win nothing, and a third copy of each
   would cost every user's build, and the base is only for x86 processors without AVX2, so it is made small,
   which compiles faster. Bodies and helpers pass vectors by pointer, since a vector parameter of a
   function without the instruction set is an ABI hazard that compilers warn of or refuse; everything is
   inlined.

   Plain cc contracts a * b + c to an FMA where there is one, so results may differ in the last bit between
   instruction sets, but never between places in an array: each element goes through the same loop (the ends
   of arrays too, see blocks.h). */
#ifndef DML_KERNELS_VECTOR_H
#define DML_KERNELS_VECTOR_H

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* On 64-bit Windows gcc doesn't align the stack to 32 bytes (gcc's bug 54412; base/cpu.h). */
#if (defined(__x86_64__) || defined(__i386__)) &&                                                            \
    (!defined(_WIN64) || defined(__clang__) || defined(DML__HAS_AVX2))
#define DML__VECTOR_BYTES 32
#else
#define DML__VECTOR_BYTES 16
#endif
#define DML__LANES (DML__VECTOR_BYTES / 4)

typedef float dml__vf __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef int32_t dml__vi __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef uint32_t dml__vu __attribute__((vector_size(DML__VECTOR_BYTES)));
typedef float dml__vf_memory __attribute__((vector_size(DML__VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t dml__vi_memory __attribute__((vector_size(DML__VECTOR_BYTES), aligned(4), may_alias));

/* Before a loop over a constant number of vectors: unrolls it, so that an array of them is in registers. */
#if defined(__clang__)
#define DML__UNROLLED _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DML__UNROLLED _Pragma("GCC unroll 8")
#else
#define DML__UNROLLED
#endif

/* Before a loop over an array: four rounds at a time, which takes the loop's own cost out of small bodies. */
#if defined(__clang__)
#define DML__BY_FOUR _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define DML__BY_FOUR _Pragma("GCC unroll 4")
#else
#define DML__BY_FOUR
#endif

#define DML__BODY static inline __attribute__((always_inline))

#define DML__STRIP(...) __VA_ARGS__
#if defined(DML__EMULATED)
#define DML__FOR_TARGET(isa)
#else
#define DML__FOR_TARGET(isa) __attribute__((target(isa)))
#endif
#ifdef DML__HAS_AVX2
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    DML__COLD static void name##_base parameters                                                             \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    DML__AVX2_OR_BASE(name, parameters, arguments)
/* The same where `name_base` is there already. */
#define DML__AVX2_OR_BASE(name, parameters, arguments)                                                       \
    DML__FOR_TARGET("avx2,fma") static void name##_avx2 parameters                                           \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        if (isa >= DML_ISA_AVX2)                                                                             \
            name##_avx2 arguments;                                                                           \
        else                                                                                                 \
            name##_base arguments;                                                                           \
    }
#else /* NEON is in every AArch64, so the base is it; elsewhere the compiler makes scalars of the vectors.   \
       */
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        (void)isa;                                                                                           \
        name##_body arguments;                                                                               \
    }
#endif

#define DML__LOAD(from) (*(const dml__vf_memory *)(from))
#define DML__STORE(to, vector) (*(dml__vf_memory *)(to) = (vector))
#define DML__LOAD_INT(from) (*(const dml__vi_memory *)(from))
#define DML__STORE_INT(to, vector) (*(dml__vi_memory *)(to) = (vector))

/* A store past the caches, to a multiple of 16 bytes, and what makes such stores seen before any later one.
 */
#if defined(__SSE__) && DML__LANES == 8
#define DML__STREAMS 1
#define DML__STREAM_FENCE() _mm_sfence()
DML__BODY void dml__stream(float *to, const dml__vf *vector)
{
    const dml__vf v = *vector;
    const __m128 low = { v[0], v[1], v[2], v[3] }, high = { v[4], v[5], v[6], v[7] };
    _mm_stream_ps(to, low);
    _mm_stream_ps(to + 4, high);
}
#else
#define DML__STREAMS 0
#define DML__STREAM_FENCE() ((void)0)
DML__BODY void dml__stream(float *to, const dml__vf *vector)
{
    DML__STORE(to, *vector);
}
#endif

/* Lane by lane: where the mask is all ones `a`, where it is zero `b`. */
#define DML__SELECT(mask, a, b) ((dml__vf)(((mask) & (dml__vi)(a)) | (~(mask) & (dml__vi)(b))))
#define DML__SELECT_INT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

DML__BODY void dml__splat(dml__vf *vector, float value)
{
#if DML__LANES == 8
    const dml__vf all = { value, value, value, value, value, value, value, value };
#else
    const dml__vf all = { value, value, value, value };
#endif
    *vector = all;
}

/* The first `count` > 0 lanes from memory, the first of them again in the others; and back. */
DML__BODY void dml__load_some(dml__vf *vector, const float *from, size_t count)
{
    if (count >= DML__LANES) {
        *vector = DML__LOAD(from);
        return;
    }
    float lanes[DML__LANES];
    dml__splat(vector, from[0]);
    DML__STORE(lanes, *vector);
    for (size_t lane = 1; lane < count; lane++) lanes[lane] = from[lane];
    *vector = DML__LOAD(lanes);
}

DML__BODY void dml__store_some(float *to, const dml__vf *vector, size_t count)
{
    if (count >= DML__LANES) {
        DML__STORE(to, *vector);
        return;
    }
    for (size_t lane = 0; lane < count; lane++) to[lane] = (*vector)[lane];
}

DML__BODY double dml__add_lanes(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const double low = ((double)lanes[0] + (double)lanes[1]) + ((double)lanes[2] + (double)lanes[3]);
#if DML__LANES == 8
    return low + (((double)lanes[4] + (double)lanes[5]) + ((double)lanes[6] + (double)lanes[7]));
#else
    return low;
#endif
}

/* All ones in the first `count` lanes, zeros in the others. */
DML__BODY void dml__first_lanes(dml__vi *mask, size_t count)
{
#if DML__LANES == 8
    const dml__vi lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    const dml__vi lane = { 0, 1, 2, 3 };
#endif
    *mask = lane < (int32_t)(count < DML__LANES ? count : DML__LANES);
}

#endif

/* line = alpha (x[0] + x[step] + ...) + beta line + bias, `terms` of them added in order, and then relu */
typedef struct dml__finish {
    int terms;
    ptrdiff_t step;
    float alpha, beta;
    const float *bias; /* (n), or NULL */
    bool relu;
} dml__finish;

DML__LOCAL void dml__finish_line(dml_isa isa, size_t n, const dml__finish *finish, const float *x,
                                 float *line);

#endif

DML__BODY void dml__finish_some_body(size_t count, const dml__finish *finish, const float *x,
                                     const float *bias, float *line)
{
    dml__vf value, other = { 0 }; /* or gcc warns of it */
    dml__load_some(&value, x, count);
    for (int t = 1; t < finish->terms; t++) {
        dml__load_some(&other, x + t * finish->step, count);
        value = value + other;
    }
    value = value * finish->alpha;
    if (finish->beta != 0) {
        dml__load_some(&other, line, count);
        value = value + other * finish->beta;
    }
    if (bias) {
        dml__load_some(&other, bias, count);
        value = value + other;
    }
    if (finish->relu) value = (dml__vf)((dml__vi)value & ~(value <= 0.0f)); /* keeps a NaN */
    dml__store_some(line, &value, count);
}

DML__BODY void dml__finish_whole_body(size_t n, const dml__finish *finish, const float *x, float *line)
{
    size_t i = 0;
    if (finish->terms == 1 && finish->beta == 0 && !finish->bias && !finish->relu)
        for (; i + DML__LANES <= n; i += DML__LANES) DML__STORE(line + i, DML__LOAD(x + i) * finish->alpha);
    for (; i + DML__LANES <= n; i += DML__LANES)
        dml__finish_some_body(DML__LANES, finish, x + i, finish->bias ? finish->bias + i : NULL, line + i);
    if (i < n) dml__finish_some_body(n - i, finish, x + i, finish->bias ? finish->bias + i : NULL, line + i);
}
DML__PER_ISA(dml__finish_whole, (size_t n, const dml__finish *finish, const float *x, float *line),
             (n, finish, x, line))

DML__LOCAL void dml__finish_line(dml_isa isa, size_t n, const dml__finish *finish, const float *x,
                                 float *line)
{
    dml__finish_whole(isa, n, finish, x, line);
}

#endif

/* ---- kernels/thin.c ---- */

#ifndef DML_KERNELS_THIN_C
#define DML_KERNELS_THIN_C

/* ---- kernels/thin.h ---- */

/* thin.h: products with a few rows or columns, which are bound by reading the larger factor: nothing is
   packed. */
#ifndef DML_KERNELS_THIN_H
#define DML_KERNELS_THIN_H

/* ---- kernels/product.h ---- */

/* product.h: the blocked loop around the micro-kernel, which matrix products and convolutions share. */
#ifndef DML_KERNELS_PRODUCT_H
#define DML_KERNELS_PRODUCT_H

/* C = activation(alpha A B + beta C + bias) */
typedef struct dml__product {
    ptrdiff_t m, n, k;
    dml__factor a; /* m lanes */
    dml__factor b; /* n lanes */
    float alpha, beta;
    dml_epilogue epilogue; /* its bias (n) */
    float *c;              /* (m, ldc), of which n columns count */
    ptrdiff_t ldc;
    const dml__microkernel *kernel; /* NULL: the one on f32 for dml_cpu_isa */
} dml__product;

/* False for an activation that there isn't. */
static inline bool dml__epilogue_is_known(const dml_epilogue *epilogue)
{
    return !epilogue || epilogue->activation == DML_ACTIVATION_NONE ||
           epilogue->activation == DML_ACTIVATION_RELU;
}

/* Bitwise the same for any number of threads and any scratch; allocates nothing. With less scratch than
   dml__product_scratch says it packs on the stack, in smaller blocks, and so packs more often. */
DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product);

/* The same by one worker alone, inside a loop of the pool, unless the product is one of those whose k is
   shared out in chunks: then nothing is done, and the result is false. */
DML__LOCAL bool dml__multiply_alone(dml_pool *pool, int worker, const dml__product *product);

/* What such a product uses, on the instruction set that dml_cpu_isa says; zeros for an empty one. Only the
   sizes, and how the factors lie, count: where they are may be NULL. */
DML__LOCAL dml_scratch dml__product_scratch(const dml__product *product);

#endif

typedef enum dml__thin_form {
    DML__NOT_THIN,
    DML__THIN_DOTS,  /* both factors have their k's side by side: C's elements are dot products */
    DML__THIN_LINES, /* few rows of A, and B has its columns side by side: C's rows are sums of B's lines */
    DML__THIN_OUTER  /* one k: C's rows are multiples of B's only line */
} dml__thin_form;

/* Which form a product has; it depends on the sizes, of which none is 0, and on how the factors lie alone. */
DML__LOCAL dml__thin_form dml__thin_kind(const dml__product *product);

/* Computes a product that has one of the forms. */
DML__LOCAL void dml__multiply_thin(dml_pool *pool, const dml__product *product);

#endif

/* Of the factors' elements the larger one's are each used at most this many times. */
#define DML__DOTS_ROWS 16   /* with sums over lanes at the end, which packing all of B would exceed */
#define DML__DOTS_COLUMNS 8 /* of a B that is small: more are worth packing */
#define DML__LINES_MOST 3
#define DML__LINES_AT_ONCE 8

#define DML__THIN_WORK 65536.0 /* multiply-adds of a task */

typedef struct dml__thin {
    ptrdiff_t m, n, k; /* of dots, n >= m and n >= 4 */
    const float *a;    /* element (i, p) at i * a_line + p * a_step */
    ptrdiff_t a_line, a_step;
    const float *b; /* (n, k) for dots, (k, n) for sums of lines */
    ptrdiff_t b_line;
    float alpha, beta;
    const float *bias;
    ptrdiff_t bias_row, bias_column; /* where that of element (i, j) lies */
    bool relu;
    float *c;
    ptrdiff_t c_row, c_column;
    ptrdiff_t rows, columns; /* of a task */
    dml_isa isa;
} dml__thin;

static float dml__thin_finish(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, float value)
{
    if (thin->bias) value += thin->bias[i * thin->bias_row + j * thin->bias_column];
    return thin->relu && value <= 0 ? 0 : value;
}

/* --- both factors have their k's side by side: dot products, 1 or 2 rows of A with 4 of B --- */

#define DML__DEFINE_DOT(isa, target, vector, lanes)                                                          \
    target DML__INLINE void dml__dot_tile_##isa(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j,             \
                                                const int rows, float sums[][4])                             \
    {                                                                                                        \
        vector sum[2][4];                                                                                    \
        const float *a = thin->a + i * thin->a_line, *b = thin->b + j * thin->b_line;                        \
        const ptrdiff_t a_line = thin->a_line, b_line = thin->b_line;                                        \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) sum[r][q] = dml__##isa##_splat(0);                                   \
        }                                                                                                    \
        ptrdiff_t p = 0;                                                                                     \
        for (; p + lanes <= thin->k; p += lanes) {                                                           \
            vector line[2];                                                                                  \
            DML__UNROLL                                                                                      \
            for (int r = 0; r < rows; r++) line[r] = dml__##isa##_load(a + r * a_line + p);                  \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < 4; q++) {                                                                    \
                const vector value = dml__##isa##_load(b + q * b_line + p);                                  \
                DML__UNROLL                                                                                  \
                for (int r = 0; r < rows; r++) sum[r][q] = dml__##isa##_fma(line[r], value, sum[r][q]);      \
            }                                                                                                \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int r = 0; r < rows; r++) {                                                                     \
            dml__##isa##_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], sums[r]);                          \
            for (ptrdiff_t rest = p; rest < thin->k; rest++)                                                 \
                for (int q = 0; q < 4; q++) sums[r][q] += a[r * a_line + rest] * b[q * b_line + rest];       \
        }                                                                                                    \
    }                                                                                                        \
    target static void dml__dots_##isa(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows,            \
                                       float sums[2][4])                                                     \
    {                                                                                                        \
        if (rows == 1)                                                                                       \
            dml__dot_tile_##isa(thin, i, j, 1, sums);                                                        \
        else                                                                                                 \
            dml__dot_tile_##isa(thin, i, j, 2, sums);                                                        \
    }

/* --- B has its columns side by side: C's row is a sum of B's lines, eight at a time --- */

#define DML__DEFINE_LINES(isa, target, vector, lanes)                                                        \
    target static void dml__add_lines_##isa(ptrdiff_t n, const float *x, const float *b, ptrdiff_t b_line,   \
                                            float *c)                                                        \
    {                                                                                                        \
        vector factor[DML__LINES_AT_ONCE];                                                                   \
        DML__UNROLL                                                                                          \
        for (int q = 0; q < DML__LINES_AT_ONCE; q++) factor[q] = dml__##isa##_splat(x[q]);                   \
        ptrdiff_t j = 0;                                                                                     \
        for (; j + lanes <= n; j += lanes) {                                                                 \
            vector sum = dml__##isa##_load(c + j);                                                           \
            DML__UNROLL                                                                                      \
            for (int q = 0; q < DML__LINES_AT_ONCE; q++)                                                     \
                sum = dml__##isa##_fma(factor[q], dml__##isa##_load(b + q * b_line + j), sum);               \
            dml__##isa##_store(c + j, sum);                                                                  \
        }                                                                                                    \
        for (; j < n; j++)                                                                                   \
            for (int q = 0; q < DML__LINES_AT_ONCE; q++) c[j] += x[q] * b[q * b_line + j];                   \
    }

DML__DEFINE_DOT(plain, , dml__v4, 4)
DML__DEFINE_LINES(plain, , dml__v4, 4)
#if defined(DML__HAS_AVX2)
DML__DEFINE_DOT(avx2, DML__AVX2, __m256, 8)
DML__DEFINE_LINES(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(DML__HAS_AVX512)
DML__DEFINE_DOT(avx512, DML__AVX512, __m512, 16)
DML__DEFINE_LINES(avx512, DML__AVX512, __m512, 16)
#endif
#if defined(__aarch64__)
DML__DEFINE_DOT(neon, , float32x4_t, 4)
DML__DEFINE_LINES(neon, , float32x4_t, 4)
#endif

static void dml__dots(const dml__thin *thin, ptrdiff_t i, ptrdiff_t j, int rows, float sums[2][4])
{
    switch (thin->isa) {
#if defined(DML__HAS_AVX512)
    case DML_ISA_AVX512: dml__dots_avx512(thin, i, j, rows, sums); break;
#endif
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX2: dml__dots_avx2(thin, i, j, rows, sums); break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON: dml__dots_neon(thin, i, j, rows, sums); break;
#endif
    default: dml__dots_plain(thin, i, j, rows, sums); break;
    }
}

static void dml__add_lines(dml_isa isa, ptrdiff_t n, const float *x, const float *b, ptrdiff_t b_line,
                           float *c)
{
    switch (isa) {
#if defined(DML__HAS_AVX512)
    case DML_ISA_AVX512: dml__add_lines_avx512(n, x, b, b_line, c); break;
#endif
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX2: dml__add_lines_avx2(n, x, b, b_line, c); break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON: dml__add_lines_neon(n, x, b, b_line, c); break;
#endif
    default: dml__add_lines_plain(n, x, b, b_line, c); break;
    }
}

/* Columns j .. j + count - 1, at most four: B's last rows are taken again where there are fewer. */
static void dml__dot_columns(const dml__thin *thin, ptrdiff_t j, ptrdiff_t count)
{
    const ptrdiff_t back = j + 4 <= thin->n ? 0 : j + 4 - thin->n;
    float sums[2][4];
    for (ptrdiff_t i = 0; i < thin->m; i += 2) {
        const int rows = thin->m - i < 2 ? 1 : 2;
        dml__dots(thin, i, j - back, rows, sums);
        for (int r = 0; r < rows; r++) {
            for (ptrdiff_t q = back; q < back + count; q++) {
                const ptrdiff_t column = j - back + q;
                float *c = thin->c + (i + r) * thin->c_row + column * thin->c_column;
                float value = thin->alpha * sums[r][q];
                if (thin->beta != 0) value += thin->beta * *c;
                *c = dml__thin_finish(thin, i + r, column, value);
            }
        }
    }
}

static void dml__dots_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns;
    const ptrdiff_t end = begin + thin->columns < thin->n ? begin + thin->columns : thin->n;
    (void)worker;
    for (ptrdiff_t j = begin; j < end; j += 4) dml__dot_columns(thin, j, end - j < 4 ? end - j : 4);
}

static void dml__lines_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->columns;
    const ptrdiff_t n = thin->n - begin < thin->columns ? thin->n - begin : thin->columns;
    float x[DML__LINES_AT_ONCE];
    (void)worker;
    for (ptrdiff_t i = 0; i < thin->m; i++) {
        float *c = thin->c + i * thin->c_row + begin;
        if (thin->beta == 0)
            memset(c, 0, (size_t)n * sizeof *c);
        else if (thin->beta != 1)
            for (ptrdiff_t j = 0; j < n; j++) c[j] *= thin->beta;
    }
    for (ptrdiff_t p = 0; p < thin->k; p += DML__LINES_AT_ONCE) {
        const int terms = thin->k - p < DML__LINES_AT_ONCE ? (int)(thin->k - p) : DML__LINES_AT_ONCE;
        const float *b = thin->b + p * thin->b_line + begin;
        for (ptrdiff_t i = 0; i < thin->m; i++) {
            float *c = thin->c + i * thin->c_row + begin;
            for (int q = 0; q < terms; q++)
                x[q] = thin->alpha * thin->a[i * thin->a_line + (p + q) * thin->a_step];
            if (terms == DML__LINES_AT_ONCE)
                dml__add_lines(thin->isa, n, x, b, thin->b_line, c);
            else
                for (int q = 0; q < terms; q++)
                    for (ptrdiff_t j = 0; j < n; j++) c[j] += x[q] * b[q * thin->b_line + j];
        }
    }
    for (ptrdiff_t i = 0; (thin->bias || thin->relu) && i < thin->m; i++)
        for (ptrdiff_t j = begin; j < begin + n; j++) {
            float *c = thin->c + i * thin->c_row + j;
            *c = dml__thin_finish(thin, i, j, *c);
        }
}

/* A single k: rows of C are multiples of B's only line. */
static void dml__outer_task(void *argument, int task, int worker)
{
    const dml__thin *thin = (const dml__thin *)argument;
    const ptrdiff_t begin = task * thin->rows;
    const ptrdiff_t end = begin + thin->rows < thin->m ? begin + thin->rows : thin->m;
    (void)worker;
    for (ptrdiff_t i = begin; i < end; i++) {
        const dml__finish finish = { 1,          0,          thin->alpha * thin->a[i * thin->a_line],
                                     thin->beta, thin->bias, thin->relu };
        dml__finish_line(thin->isa, (size_t)thin->n, &finish, thin->b, thin->c + i * thin->c_row);
    }
}

/* Shares the columns out in multiples of 16, so that every lane of a vector is where it would be without. */
static void dml__run_thin(dml_pool *pool, dml__thin *thin, dml_pool_task task)
{
    const double work = (double)thin->m * (double)thin->n * (double)thin->k;
    double tasks = work / DML__THIN_WORK;
    /* As few as can be: lines are best read from end to end. */
    if (tasks > dml_pool_threads(pool)) tasks = dml_pool_threads(pool);
    thin->columns = tasks < 2 ? thin->n : (ptrdiff_t)((double)thin->n / tasks / 16 + 1) * 16;
    dml_pool_run(pool, (int)((thin->n + thin->columns - 1) / thin->columns), task, thin);
}

static void dml__run_outer(dml_pool *pool, dml__thin *thin)
{
    const ptrdiff_t rows = (ptrdiff_t)(DML__THIN_WORK / 4) / thin->n;
    thin->rows = rows ? rows : 1;
    dml_pool_run(pool, (int)((thin->m + thin->rows - 1) / thin->rows), dml__outer_task, thin);
}

static const dml__matrix *dml__plain_matrix(const dml__factor *factor)
{
    return factor->pack == dml__pack_matrix ? (const dml__matrix *)factor->source : NULL;
}

DML__LOCAL dml__thin_form dml__thin_kind(const dml__product *product)
{
    const dml__matrix *a = dml__plain_matrix(&product->a), *b = dml__plain_matrix(&product->b);
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (!a || !b) return DML__NOT_THIN;
    if (a->k_step == 1 && b->k_step == 1 && (m <= DML__DOTS_ROWS || n <= DML__DOTS_COLUMNS) && k >= 32 &&
        (m >= 4 || n >= 4))
        return DML__THIN_DOTS;
    if (b->lane_step != 1) return DML__NOT_THIN;
    if (k == 1) return DML__THIN_OUTER;
    return m <= DML__LINES_MOST && n >= 16 ? DML__THIN_LINES : DML__NOT_THIN;
}

DML__LOCAL void dml__multiply_thin(dml_pool *pool, const dml__product *product)
{
    const dml__matrix *a = dml__plain_matrix(&product->a), *b = dml__plain_matrix(&product->b);
    dml__thin thin = { product->m,
                       product->n,
                       product->k,
                       a->x,
                       a->lane_step,
                       a->k_step,
                       b->x,
                       b->k_step,
                       product->alpha,
                       product->beta,
                       product->epilogue.bias,
                       0,
                       1,
                       product->epilogue.activation == DML_ACTIVATION_RELU,
                       product->c,
                       product->ldc,
                       1,
                       product->m,
                       product->n,
                       dml__pool_machine(pool).isa };
    switch (dml__thin_kind(product)) {
    case DML__THIN_DOTS:
        thin.b_line = b->lane_step;
        if (thin.m > thin.n) {
            thin.m = product->n, thin.n = product->m;
            thin.a = b->x, thin.a_line = b->lane_step;
            thin.b = a->x, thin.b_line = a->lane_step;
            thin.bias_row = 1, thin.bias_column = 0;
            thin.c_row = 1, thin.c_column = product->ldc;
        }
        dml__run_thin(pool, &thin, dml__dots_task);
        break;
    case DML__THIN_LINES: dml__run_thin(pool, &thin, dml__lines_task); break;
    case DML__THIN_OUTER: dml__run_outer(pool, &thin); break;
    case DML__NOT_THIN: break;
    }
}

#endif

/* ---- kernels/product_range.c ---- */

#ifndef DML_KERNELS_PRODUCT_RANGE_C
#define DML_KERNELS_PRODUCT_RANGE_C

/* ---- kernels/product_range.h ---- */

/* product_range.h: any range of a product, computed by one worker: what is packed, in what blocks, and the
   tiles. product.c shares a product out in such ranges. */
#ifndef DML_KERNELS_PRODUCT_RANGE_H
#define DML_KERNELS_PRODUCT_RANGE_H

/* ---- kernels/sizes.h ---- */

/* sizes.h: arithmetic on counts of elements, for whoever cuts arrays into blocks. */
#ifndef DML_KERNELS_SIZES_H
#define DML_KERNELS_SIZES_H

static inline ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static inline ptrdiff_t dml__larger(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}

/* a >= 0, b > 0 */
static inline ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return a / b + (a % b != 0);
}

static inline ptrdiff_t dml__round_up(ptrdiff_t a, ptrdiff_t b)
{
    return dml__quotient_up(a, b) * b;
}

#endif

/* The rows and columns of C, and the part of k, that one task computes. */
typedef struct dml__range {
    ptrdiff_t i0, i1, j0, j1, k0, k1;
} dml__range;

/* What is computed: the product, or, for a narrow C, the transposed one, whose vectors are made of C's rows,
   which there are more of than of columns. The caller's C stays as it is. */
typedef struct dml__job {
    dml__product product;
    const dml__microkernel *kernel;
    dml_isa isa;
    ptrdiff_t l2;    /* bytes of the second cache */
    bool transposed; /* product.c is then the transpose of the caller's C, and the bias goes along rows */
    ptrdiff_t rows, full; /* of a tile at most; full columns are whole vectors */
} dml__job;

DML__LOCAL dml__job dml__plan_product(dml__machine machine, const dml__product *product);

/* Where element (i, j) of the job's product lies. */
static inline float *dml__job_c(const dml__job *job, ptrdiff_t i, ptrdiff_t j)
{
    return job->product.c + (job->transposed ? j * job->product.ldc + i : i * job->product.ldc + j);
}

/* Where a block of columns ends that should end at `end`, of columns that end at `last`: a rest narrower than
   a vector gets one from the block before it. */
static inline ptrdiff_t dml__cut_columns(const dml__job *job, ptrdiff_t end, ptrdiff_t last)
{
    if (end >= last) return last;
    return last - end < job->kernel->lanes ? end - job->kernel->lanes : end;
}

/* With the worker's scratch if that is enough. */
DML__LOCAL void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range);

/* Bytes of a worker's scratch with which that packs nothing twice. */
DML__LOCAL size_t dml__range_scratch(const dml__job *job, const dml__range *range);

#endif

#include <string.h>

/* A worker's scratch holds a block of A and behind it panels of B, of this many rows and columns at most. */
#define DML__PACK_ROWS 120
#define DML__PACK_COLUMNS 512

/* Panels of B that are no larger than this stay in the first cache all together; and where a tile has fewer
   k's than this, writing C takes longer than reading them. */
#define DML__ACROSS_FLOATS 4096
#define DML__ACROSS_KC 64

/* Panels of B that stay in the first cache as they lie are packed for more tiles below each other than this:
   packing one takes as long as computing 1.3 tiles. */
#define DML__IN_PLACE_TILES 12

/* Where the scratch is too small, the stack of whoever computes holds one full panel of each factor; what
   needs little takes little of it. */
#define DML__STACK_FLOATS DML__PANEL_FLOATS
#define DML__SMALL_STACK_FLOATS 1536
#define DML__STACK_SLACK (DML__ALIGNMENT / sizeof(float))

/* Whether the lanes of a factor lie side by side in memory, as vectors are loaded. */
static bool dml__has_lanes(const dml__factor *factor)
{
    return factor->pack == dml__pack_matrix && ((const dml__matrix *)factor->source)->lane_step == 1;
}

/* The share of a vector's lanes that `n` columns fill. */
static bool dml__fills_lanes(ptrdiff_t n, const dml__microkernel *kernel)
{
    return n * 4 > dml__round_up(n, kernel->lanes) * 3;
}

/* Beyond one vector of columns, computing some of them twice costs less than turning an A whose lanes aren't
   side by side. */
static bool dml__is_better_transposed(const dml__product *product, const dml__microkernel *kernel)
{
    return product->n < product->m && !dml__fills_lanes(product->n, kernel) &&
           (product->n <= kernel->lanes || dml__has_lanes(&product->a));
}

DML__LOCAL dml__job dml__plan_product(dml__machine machine, const dml__product *product)
{
    dml__job job;
    job.product = *product;
    job.isa = machine.isa;
    job.l2 = (ptrdiff_t)machine.caches.l2;
    job.kernel = product->kernel ? product->kernel : dml__microkernel_get(job.isa);
    job.transposed = dml__is_better_transposed(product, job.kernel);
    if (job.transposed) {
        job.product.m = product->n;
        job.product.n = product->m;
        job.product.a = product->b;
        job.product.b = product->a;
    }
    job.rows = job.kernel->rows;
    job.full = (ptrdiff_t)job.kernel->lanes * job.kernel->vectors;
    return job;
}

/* The blocks of k: as many as needed, of about the same size, which the micro-kernel unrolls by 4. */
static ptrdiff_t dml__k_block(const dml__job *job, ptrdiff_t k)
{
    return dml__smaller(k, dml__round_up(dml__quotient_up(k, dml__quotient_up(k, job->kernel->k_block)), 4));
}

/* Columns of the tile at column j of a part that ends at `end`. A part is cut so that only its last tile
   isn't whole vectors, and is wider than one vector unless the part is narrower; the micro-kernel then needs
   no room beside it. */
static inline ptrdiff_t dml__columns_at(const dml__job *job, ptrdiff_t j, ptrdiff_t end)
{
    const ptrdiff_t columns = end - j, lanes = job->kernel->lanes;
    if (columns <= job->full) return columns;
    return columns < job->full + lanes ? lanes : job->full;
}

/* Floats of a line of a packed panel of B. */
static inline ptrdiff_t dml__panel_width(const dml__job *job, ptrdiff_t columns)
{
    return columns < job->kernel->lanes ? job->kernel->lanes : columns;
}

/* A tile that sticks out of C, or lies across it, is computed on the side by the very same instructions:
   `side` is (rows, width), `across` (columns, rows). */
static void dml__compute_aside(const dml__job *job, const dml__tile *tile, ptrdiff_t i0, ptrdiff_t j0,
                               float *side, float *across)
{
    const int width = (int)dml__panel_width(job, tile->columns);
    dml__tile whole = *tile;
    for (int i = 0; i < tile->rows; i++) whole.c[i] = side + i * width;
    whole.columns = width;
    whole.alpha = 1;
    whole.beta = 0;
    whole.bias = NULL;
    whole.relu = false;
    job->kernel->run(&whole);
    const dml__finish finish = { 1, 0, tile->alpha, tile->beta, tile->bias, tile->relu };
    if (!job->transposed) {
        for (int i = 0; i < tile->rows; i++)
            dml__finish_line(job->isa, (size_t)tile->columns, &finish, side + i * width,
                             dml__job_c(job, i0 + i, j0));
        return;
    }
    dml__pack_transposed(side, width, tile->rows, tile->columns, tile->rows, across);
    for (int j = 0; j < tile->columns; j++)
        dml__finish_line(job->isa, (size_t)tile->rows, &finish, across + j * tile->rows,
                         dml__job_c(job, i0, j0 + j));
}

/* Stack frames that only who needs them pays for. */
#define DML__SMALL_TILE_FLOATS 256
DML__NOINLINE static void dml__small_side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                               ptrdiff_t j0)
{
    float side[DML__SMALL_TILE_FLOATS], across[DML__SMALL_TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side, across);
}

DML__NOINLINE static void dml__side_tile(const dml__job *job, const dml__tile *tile, ptrdiff_t i0,
                                         ptrdiff_t j0)
{
    if (job->rows * job->full <= DML__SMALL_TILE_FLOATS) {
        dml__small_side_tile(job, tile, i0, j0);
        return;
    }
    float side[DML__TILE_FLOATS], across[DML__TILE_FLOATS];
    dml__compute_aside(job, tile, i0, j0, side, across);
}

/* How a range is computed: what is packed, and how much of it at once. */
typedef struct dml__blocking {
    bool pack_a, pack_b;
    bool across; /* tiles beside each other follow each other, and not those below each other */
    ptrdiff_t kc, mc, nc;
    float *a, *b; /* (mc, kc) in panels of a tile's rows; (kc, nc) in panels of its columns */
} dml__blocking;

/* The rows of a part in tiles of about the same height: so many of `height` + 1 rows, then so many of
 * `height`. */
typedef struct dml__heights {
    ptrdiff_t height, higher_until;
} dml__heights;

static dml__heights dml__divide_rows(const dml__job *job, const dml__range *part)
{
    const ptrdiff_t rows = part->i1 - part->i0, tiles = dml__quotient_up(rows, job->rows);
    const dml__heights heights = { rows / tiles, part->i0 + rows % tiles * (rows / tiles + 1) };
    return heights;
}

/* Rows of the tile that begins at row i. */
static inline int dml__height_at(const dml__heights *heights, ptrdiff_t i)
{
    return (int)(heights->height + (i < heights->higher_until));
}

/* Which columns of B lie ready: at least a vector of a matrix whose lanes are side by side. */
static inline bool dml__b_lies_ready(const dml__job *job, const dml__blocking *blocking, ptrdiff_t columns)
{
    return !blocking->pack_b && columns >= job->kernel->lanes;
}

/* Floats of k that a block takes, with the zeros that the micro-kernel wants behind it. */
static inline ptrdiff_t dml__filled_k(const dml__job *job, ptrdiff_t k)
{
    return job->kernel->k_multiple ? dml__round_up(k, job->kernel->k_multiple) : k;
}

/* Where B's columns are side by side: line by line, through all full panels, since lines are best read from
   end to end. Returns how many columns that were. */
static ptrdiff_t dml__pack_lines_of_b(const dml__job *job, const dml__blocking *blocking,
                                      const dml__range *part)
{
    const dml__matrix *b = (const dml__matrix *)job->product.b.source;
    const ptrdiff_t kc = part->k1 - part->k0, full = job->full, columns = part->j1 - part->j0;
    const ptrdiff_t rest = columns % full, lanes = job->kernel->lanes;
    const ptrdiff_t whole = columns / full - (columns > full && rest > 0 && rest < lanes);
    const float *line = b->x + part->j0 + part->k0 * b->k_step;
    for (ptrdiff_t k = 0; k < kc; k++, line += b->k_step) {
        float *to = blocking->b + k * full;
        if (full == 16)
            for (ptrdiff_t panel = 0; panel < whole; panel++, to += kc * full)
                memcpy(to, line + panel * 16, 16 * sizeof *to);
        else
            for (ptrdiff_t panel = 0; panel < whole; panel++, to += kc * full)
                memcpy(to, line + panel * full, (size_t)full * sizeof *to);
    }
    return whole * full;
}

static void dml__pack_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0), filled = (int)dml__filled_k(job, kc);
    ptrdiff_t j = part->j0, columns;
    if (blocking->pack_b && dml__has_lanes(&job->product.b)) j += dml__pack_lines_of_b(job, blocking, part);
    for (; j < part->j1; j += columns) {
        columns = dml__columns_at(job, j, part->j1);
        const ptrdiff_t width = dml__panel_width(job, columns);
        if (dml__b_lies_ready(job, blocking, columns)) continue;
        float *panel = blocking->b + (blocking->pack_b ? (j - part->j0) * filled : 0);
        job->product.b.pack(job->product.b.source, j, (int)columns, part->k0, kc, (int)width, panel);
        if (filled > kc) memset(panel + kc * width, 0, (size_t)((filled - kc) * width) * sizeof *panel);
    }
}

static void dml__pack_lines_of_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const ptrdiff_t kc = part->k1 - part->k0, filled = dml__filled_k(job, kc);
    float *line = blocking->a;
    for (ptrdiff_t i = part->i0; i < part->i1; i++, line += filled) {
        job->product.a.pack(job->product.a.source, i, 1, part->k0, (int)kc, 1, line);
        memset(line + kc, 0, (size_t)(filled - kc) * sizeof *line);
    }
}

static void dml__pack_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part)
{
    const int kc = (int)(part->k1 - part->k0);
    const dml__heights heights = dml__divide_rows(job, part);
    if (job->kernel->k_multiple) {
        dml__pack_lines_of_a(job, blocking, part);
        return;
    }
    for (ptrdiff_t i = part->i0, rows; i < part->i1; i += rows) {
        rows = dml__height_at(&heights, i);
        job->product.a.pack(job->product.a.source, i, (int)rows, part->k0, kc, (int)rows,
                            blocking->a + (i - part->i0) * kc);
    }
}

/* So many full tiles lie beside each other, from column j on; or one of another width. */
static inline int dml__panels_at(const dml__job *job, ptrdiff_t j, ptrdiff_t end, ptrdiff_t columns)
{
    if (job->transposed || columns < job->full) return 1;
    const ptrdiff_t rest = (end - j) % job->full;
    return (int)((end - j) / job->full - (rest > 0 && rest < job->kernel->lanes));
}

/* What a tile reads. */
static inline void dml__aim_a(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                              ptrdiff_t i, dml__tile *tile)
{
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    const float *row = blocking->a + (i - part->i0) * tile->k;
    ptrdiff_t row_step = 1;
    tile->a_step = tile->rows;
    tile->a_packed = blocking->pack_a && !job->kernel->k_multiple;
    if (!blocking->pack_a) {
        row = a->x + i * a->lane_step + part->k0 * a->k_step;
        row_step = a->lane_step;
        tile->a_step = a->k_step;
    } else if (job->kernel->k_multiple) {
        row_step = tile->k;
        tile->a_step = 1;
    }
    for (int r = 0; r < tile->rows; r++, row += row_step) tile->a[r] = row;
}

static inline void dml__aim_b(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                              ptrdiff_t j, dml__tile *tile)
{
    if (dml__b_lies_ready(job, blocking, tile->columns)) {
        const dml__matrix *b = (const dml__matrix *)job->product.b.source;
        tile->b = b->x + j + part->k0 * b->k_step;
        tile->b_step = b->k_step;
        tile->b_panel = tile->columns;
    } else {
        tile->b = blocking->b + (blocking->pack_b ? (j - part->j0) * tile->k : 0);
        tile->b_step = dml__panel_width(job, tile->columns);
        tile->b_panel = tile->b_step * tile->k;
    }
}

/* The tile of C at (i, j), and those beside it. */
static inline void dml__run_tile(const dml__job *job, ptrdiff_t i, ptrdiff_t j, bool last, dml__tile *tile)
{
    const dml__product *product = &job->product;
    tile->bias = NULL;
    if (last && product->epilogue.bias) tile->bias = product->epilogue.bias + (job->transposed ? i : j);
    if (job->transposed || tile->columns < job->kernel->lanes) {
        dml__side_tile(job, tile, i, j);
        return;
    }
    float *c = product->c + i * product->ldc + j;
    for (int r = 0; r < tile->rows; r++, c += product->ldc) tile->c[r] = c;
    job->kernel->run(tile);
}

/* All tiles of a part of C, with A and B packed where they have to be. What the outer loop holds fixed stays
   in the first cache: a panel of B while the tiles below each other go over it, or a few rows of A. */
static void dml__multiply_part(const dml__job *job, const dml__blocking *blocking, const dml__range *part,
                               bool first, bool last)
{
    static const ptrdiff_t at_once[1] = { 0 };
    dml__tile tile;
    dml__tile_init(&tile);
    tile.blocks = 1;
    tile.a_at = tile.b_at = at_once;
    tile.k = (int)dml__filled_k(job, part->k1 - part->k0);
    tile.alpha = job->product.alpha;
    tile.beta = first ? job->product.beta : 1;
    tile.relu = last && job->product.epilogue.activation == DML_ACTIVATION_RELU;
    const dml__heights heights = dml__divide_rows(job, part);
    if (blocking->across) {
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.rows) {
            tile.rows = dml__height_at(&heights, i);
            dml__aim_a(job, blocking, part, i, &tile);
            for (ptrdiff_t j = part->j0; j < part->j1; j += tile.panels * tile.columns) {
                tile.columns = (int)dml__columns_at(job, j, part->j1);
                tile.panels = dml__panels_at(job, j, part->j1, tile.columns);
                dml__aim_b(job, blocking, part, j, &tile);
                dml__run_tile(job, i, j, last, &tile);
            }
        }
        return;
    }
    for (ptrdiff_t j = part->j0; j < part->j1; j += tile.columns) {
        tile.columns = (int)dml__columns_at(job, j, part->j1);
        dml__aim_b(job, blocking, part, j, &tile);
        for (ptrdiff_t i = part->i0; i < part->i1; i += tile.rows) {
            tile.rows = dml__height_at(&heights, i);
            dml__aim_a(job, blocking, part, i, &tile);
            dml__run_tile(job, i, j, last, &tile);
        }
    }
}

static void dml__multiply_range(const dml__job *job, const dml__blocking *blocking, const dml__range *range)
{
    dml__range part;
    for (part.j0 = range->j0; part.j0 < range->j1; part.j0 = part.j1) {
        part.j1 = dml__cut_columns(job, part.j0 + blocking->nc, range->j1);
        for (part.k0 = range->k0; part.k0 < range->k1; part.k0 = part.k1) {
            part.k1 = dml__smaller(part.k0 + blocking->kc, range->k1);
            dml__pack_b(job, blocking, &part);
            for (part.i0 = range->i0; part.i0 < range->i1; part.i0 = part.i1) {
                part.i1 = dml__smaller(part.i0 + blocking->mc, range->i1);
                if (blocking->pack_a) dml__pack_a(job, blocking, &part);
                dml__multiply_part(job, blocking, &part, part.k0 == range->k0, part.k1 == range->k1);
            }
        }
    }
}

/* --- what is packed, and where --- */

/* Whether lines so far apart meet in the same sets of a first cache, which holds few of them at once. */
static bool dml__collides(ptrdiff_t line_step)
{
    const ptrdiff_t sets = 4096 / (ptrdiff_t)sizeof(float), near = 32;
    return (line_step + near) % sets <= 2 * near;
}

/* Whether a first cache of 64 sets of 8 lines holds a vector or two of each of so many lines. */
static bool dml__lines_stay(ptrdiff_t line_step, ptrdiff_t lines)
{
    const ptrdiff_t apart = line_step & -line_step, floats = 4096 / (ptrdiff_t)sizeof(float);
    return !dml__collides(line_step) && lines <= dml__smaller(64, floats / apart) * 8;
}

/* A factor is packed when it is no matrix; when its vectors don't lie ready; and when its lines are so far
   apart that a cache can't hold a block of them while it is used again and again, if it is used often enough.
 */
static bool dml__packs_a(const dml__factor *a, ptrdiff_t columns)
{
    if (a->pack != dml__pack_matrix) return true;
    const dml__matrix *matrix = (const dml__matrix *)a->source;
    if (matrix->k_step != 1) return columns >= 64;
    return columns >= (dml__collides(matrix->lane_step) ? 96 : 192);
}

static bool dml__packs_b(const dml__job *job, ptrdiff_t rows, ptrdiff_t kc)
{
    if (!dml__has_lanes(&job->product.b)) return true;
    const dml__matrix *b = (const dml__matrix *)job->product.b.source;
    return rows > (dml__lines_stay(b->k_step, kc) ? DML__IN_PLACE_TILES : 2) * job->rows;
}

/* So many rows of A that they take half of the second cache, which the rows of C and panels of B pass
 * through. */
static ptrdiff_t dml__rows_at_once(const dml__job *job, ptrdiff_t kc)
{
    const ptrdiff_t fitting = job->l2 / 2 / (kc * (ptrdiff_t)sizeof(float)) / job->rows;
    const ptrdiff_t most = DML__PACK_ROWS / job->rows;
    return (fitting < 1 ? 1 : dml__smaller(fitting, most)) * job->rows;
}

static dml__blocking dml__plan_blocking(const dml__job *job, const dml__range *range)
{
    dml__blocking blocking;
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    blocking.kc = dml__k_block(job, range->k1 - range->k0);
    blocking.pack_a = dml__packs_a(&job->product.a, columns);
    blocking.pack_b = dml__packs_b(job, rows, blocking.kc);
    blocking.mc = dml__smaller(rows, dml__rows_at_once(job, blocking.kc));
    blocking.nc = columns;
    if (blocking.pack_b && columns > DML__PACK_COLUMNS)
        blocking.nc =
            dml__round_up(dml__quotient_up(columns, dml__quotient_up(columns, DML__PACK_COLUMNS)), job->full);
    blocking.across = job->kernel->k_multiple || blocking.kc <= DML__ACROSS_KC ||
                      blocking.kc * blocking.nc <= DML__ACROSS_FLOATS;
    blocking.a = blocking.b = NULL;
    return blocking;
}

/* Floats of the block of A, up to where the panels of B begin: aligned, or loads would cross cache lines.
   Lines are read by the whole tile. */
static ptrdiff_t dml__block_a_floats(const dml__job *job, const dml__blocking *blocking)
{
    const ptrdiff_t rows = job->kernel->k_multiple ? dml__round_up(blocking->mc, job->rows) : blocking->mc;
    return blocking->pack_a ? dml__round_up(dml__filled_k(job, blocking->kc) * rows,
                                            DML__ALIGNMENT / (ptrdiff_t)sizeof(float))
                            : 0;
}

static ptrdiff_t dml__blocking_floats(const dml__job *job, const dml__blocking *blocking)
{
    const ptrdiff_t columns = blocking->pack_b ? blocking->nc : dml__smaller(blocking->nc, job->full);
    return dml__block_a_floats(job, blocking) +
           dml__filled_k(job, blocking->kc) * dml__panel_width(job, columns);
}

/* Computes a range with room for `floats`, which take at least a tile's panels of A and B. */
static void dml__multiply_within(const dml__job *job, dml__blocking *blocking, const dml__range *range,
                                 float *floats, ptrdiff_t count)
{
    if (blocking->pack_a && dml__blocking_floats(job, blocking) > count)
        blocking->mc = dml__smaller(blocking->mc, job->rows);
    blocking->a = floats;
    blocking->b = floats + dml__block_a_floats(job, blocking);
    const ptrdiff_t fitting = (count - dml__block_a_floats(job, blocking)) /
                              dml__filled_k(job, blocking->kc) / job->full * job->full;
    if (blocking->pack_b && dml__blocking_floats(job, blocking) > count) blocking->nc = fitting;
    dml__multiply_range(job, blocking, range);
}

static float *dml__aligned_floats(float *memory)
{
    return memory + (size_t)(-(intptr_t)memory & (DML__ALIGNMENT - 1)) / sizeof *memory;
}

DML__NOINLINE static void dml__multiply_on_stack(const dml__job *job, dml__blocking *blocking,
                                                 const dml__range *range)
{
    float panels[DML__STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, blocking, range, dml__aligned_floats(panels), DML__STACK_FLOATS);
}

DML__NOINLINE static void dml__multiply_on_small_stack(const dml__job *job, dml__blocking *blocking,
                                                       const dml__range *range)
{
    float panels[DML__SMALL_STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, blocking, range, dml__aligned_floats(panels), DML__SMALL_STACK_FLOATS);
}

/* Floats that the panels of one tile take. */
static ptrdiff_t dml__least_floats(const dml__job *job, const dml__blocking *blocking)
{
    dml__blocking least = *blocking;
    least.mc = dml__smaller(least.mc, job->rows);
    least.nc = dml__smaller(least.nc, job->full);
    return dml__blocking_floats(job, &least);
}

DML__LOCAL void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range)
{
    dml__blocking blocking = dml__plan_blocking(job, range);
    const ptrdiff_t whole = dml__blocking_floats(job, &blocking);
    float *scratch = (float *)dml_pool_scratch(pool, worker);
    const ptrdiff_t floats = scratch ? (ptrdiff_t)(dml_pool_scratch_bytes(pool).worker / sizeof *scratch) : 0;
    if (floats >= whole || floats >= DML__STACK_FLOATS)
        dml__multiply_within(job, &blocking, range, scratch, floats);
    else if (whole <= DML__SMALL_STACK_FLOATS)
        dml__multiply_on_small_stack(job, &blocking, range);
    else if (floats >= dml__least_floats(job, &blocking))
        dml__multiply_within(job, &blocking, range, scratch, floats);
    else
        dml__multiply_on_stack(job, &blocking, range);
}

DML__LOCAL size_t dml__range_scratch(const dml__job *job, const dml__range *range)
{
    const dml__blocking blocking = dml__plan_blocking(job, range);
    return (size_t)dml__blocking_floats(job, &blocking) * sizeof(float);
}

#endif

/* ---- kernels/product.c ---- */

#ifndef DML_KERNELS_PRODUCT_C
#define DML_KERNELS_PRODUCT_C

#include <string.h>

/* A small C under a long k has too few tiles to share among threads. Its k is then cut into at most
   DML__CHUNKS chunks, whose partial sums are added up in order. Whether and where to cut depends on the sizes
   alone. The shared scratch holds those sums. */
#define DML__CHUNKS 16
#define DML__CHUNK_K 512      /* of which a chunk is a multiple */
#define DML__CHUNKED_C 4096   /* elements of C, at most */
#define DML__CHUNK_BLOCK 1024 /* elements of a block of C, where the chunks' sums are on the stack */

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

/* What the end of a line takes from a product whose sums were formed on the side: terms, `step` apart. */
static dml__finish dml__end_of(const dml__product *product, int terms, ptrdiff_t step)
{
    const dml__finish finish = { terms,
                                 step,
                                 product->alpha,
                                 product->beta,
                                 product->epilogue.bias,
                                 product->epilogue.activation == DML_ACTIVATION_RELU };
    return finish;
}

/* For a product without terms. */
static void dml__scale_c(const dml__product *product)
{
    for (ptrdiff_t i = 0; i < product->m; i++) {
        float *row = product->c + i * product->ldc;
        for (ptrdiff_t j = 0; j < product->n; j++) {
            float value = product->beta == 0 ? 0 : product->beta * row[j];
            if (product->epilogue.bias) value += product->epilogue.bias[j];
            row[j] = product->epilogue.activation == DML_ACTIVATION_RELU && value <= 0 ? 0 : value;
        }
    }
}

/* --- sharing C among the workers, in blocks of rows and columns --- */

typedef struct dml__block_loop {
    const dml__job *job;
    dml_pool *pool;
    ptrdiff_t mc, nc, columns_of_blocks;
} dml__block_loop;

static void dml__block_task(void *argument, int task, int worker)
{
    const dml__block_loop *loop = (const dml__block_loop *)argument;
    const dml__product *product = &loop->job->product;
    const ptrdiff_t i = task / loop->columns_of_blocks, j = task % loop->columns_of_blocks;
    const dml__range range = { i * loop->mc,
                               dml__smaller(product->m, (i + 1) * loop->mc),
                               j ? dml__cut_columns(loop->job, j * loop->nc, product->n) : 0,
                               dml__cut_columns(loop->job, (j + 1) * loop->nc, product->n),
                               0,
                               product->k };
    dml__multiply_as(loop->pool, worker, loop->job, &range);
}

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const dml__product *product = &job->product;
    const ptrdiff_t rows = job->rows, full = job->full;
    const double work = (double)product->m * (double)product->n * (double)product->k;
    const ptrdiff_t wanted =
        work < DML__SERIAL_WORK || dml_pool_threads(pool) == 1 ? 1 : 4 * dml_pool_threads(pool);
    /* Tiles, not elements: halves of the longer side until there is enough to share out. */
    ptrdiff_t wide = dml__quotient_up(product->n, full), high = dml__quotient_up(product->m, rows);
    while (dml__quotient_up(product->m, high * rows) * dml__quotient_up(product->n, wide * full) < wanted &&
           high * wide > 4) {
        if (wide == 1 || high * rows >= wide * full)
            high = dml__quotient_up(high, 2);
        else
            wide = dml__quotient_up(wide, 2);
    }
    dml__block_loop loop = { job, pool, high * rows, wide * full, 0 };
    loop.columns_of_blocks = dml__quotient_up(product->n, loop.nc);
    const ptrdiff_t tasks = dml__quotient_up(product->m, loop.mc) * loop.columns_of_blocks;
    if (wanted > 1)
        dml_pool_run(pool, (int)tasks, dml__block_task, &loop);
    else
        for (ptrdiff_t task = 0; task < tasks; task++) dml__block_task(&loop, (int)task, 0);
}

/* --- sharing k, in chunks --- */

static bool dml__is_chunked(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    return k >= 2 * DML__CHUNK_K && m <= DML__CHUNKED_C / n;
}

static ptrdiff_t dml__chunk_size(ptrdiff_t k)
{
    const ptrdiff_t blocks = dml__quotient_up(k, DML__CHUNK_K);
    return dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__CHUNK_K;
}

typedef struct dml__chunk_loop {
    const dml__product *product;
    dml__job job; /* its partial sums, dense; C is set for each chunk */
    dml_pool *pool;
    ptrdiff_t chunk; /* of k */
    int chunks;
    float *partial;                      /* (chunks, m, n), or NULL: */
    ptrdiff_t mc, nc, columns_of_blocks; /* the blocks of the job's C that are computed through all chunks */
} dml__chunk_loop;

/* Chunk c's partial sums of a range of the job's C, where that range's first element is to lie at `partial`.
 */
static void dml__compute_chunk(const dml__chunk_loop *loop, int c, dml__range range, float *partial,
                               int worker)
{
    dml__job job = loop->job;
    job.product.c = partial;
    job.product.c -= dml__job_c(&job, range.i0, range.j0) - partial;
    range.k0 = c * loop->chunk;
    range.k1 = dml__smaller(job.product.k, range.k0 + loop->chunk);
    dml__multiply_as(loop->pool, worker, &job, &range);
}

static void dml__chunk_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__range all = { 0, loop->job.product.m, 0, loop->job.product.n, 0, 0 };
    dml__compute_chunk(loop, task, all, loop->partial + task * loop->product->m * loop->product->n, worker);
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    const dml__finish finish = dml__end_of(product, loop->chunks, product->m * product->n);
    (void)worker;
    dml__finish_line(loop->job.isa, (size_t)product->n, &finish, loop->partial + task * product->n,
                     product->c + task * product->ldc);
}

/* A block of C through all chunks, with sums on the stack: packs more often than the chunks do. */
static void dml__chunked_block_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    dml__chunk_loop block = *loop;
    const dml__product *whole = &loop->job.product;
    const ptrdiff_t i = task / loop->columns_of_blocks * loop->mc,
                    j = task % loop->columns_of_blocks * loop->nc;
    const dml__range range = { i, dml__smaller(i + loop->mc, whole->m),
                               j, dml__smaller(j + loop->nc, whole->n),
                               0, 0 };
    const bool transposed = loop->job.transposed;
    const ptrdiff_t lines = transposed ? range.j1 - range.j0 : range.i1 - range.i0;
    const ptrdiff_t length = transposed ? range.i1 - range.i0 : range.j1 - range.j0;
    const ptrdiff_t line = transposed ? range.j0 : range.i0, first = transposed ? range.i0 : range.j0;
    static const dml__finish add = { 1, 0, 1, 1, NULL, false };
    dml__finish finish = dml__end_of(loop->product, 1, 0);
    float sum[DML__CHUNK_BLOCK], partial[DML__CHUNK_BLOCK]; /* (lines, length) */
    block.job.product.ldc = length;
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(&block, c, range, c ? partial : sum, worker);
        if (c) dml__finish_line(loop->job.isa, (size_t)(lines * length), &add, partial, sum);
    }
    if (finish.bias) finish.bias += first;
    for (ptrdiff_t l = 0; l < lines; l++)
        dml__finish_line(loop->job.isa, (size_t)length, &finish, sum + l * length,
                         loop->product->c + (line + l) * loop->product->ldc + first);
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    memset(&part.epilogue, 0, sizeof part.epilogue);
    part.ldc = part.n;
    const ptrdiff_t chunk = dml__chunk_size(product->k);
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = {
        product, dml__plan_product(dml__pool_machine(pool), &part), pool, chunk, chunks, NULL, 0, 0, 0
    };
    const dml__job *job = &loop.job;
    const size_t partial_bytes = (size_t)chunks * (size_t)(product->m * product->n) * sizeof(float);
    if (dml_pool_scratch_bytes(pool).shared >= partial_bytes) {
        loop.partial = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
        dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
        return;
    }
    loop.nc = job->full;
    loop.mc = DML__CHUNK_BLOCK / job->full / job->rows * job->rows;
    loop.columns_of_blocks = dml__quotient_up(job->product.n, loop.nc);
    dml_pool_run(pool, (int)(dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks),
                 dml__chunked_block_task, &loop);
}

DML__LOCAL dml_scratch dml__product_scratch(const dml__product *product)
{
    dml_scratch scratch = { 0, 0 };
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (m <= 0 || n <= 0 || k <= 0 || dml__thin_kind(product) != DML__NOT_THIN) return scratch;
    const dml__machine machine = dml__pool_machine(NULL);
    const dml__job job = dml__plan_product(machine, product);
    const dml__range all = { 0, job.product.m,
                             0, job.product.n,
                             0, dml__is_chunked(m, n, k) ? dml__chunk_size(k) : k };
    scratch.worker = dml__range_scratch(&job, &all);
    if (dml__is_chunked(m, n, k))
        scratch.shared = (size_t)(dml__quotient_up(k, dml__chunk_size(k)) * m * n) * sizeof(float);
    return scratch;
}

DML__LOCAL bool dml__multiply_alone(dml_pool *pool, int worker, const dml__product *product)
{
    const ptrdiff_t m = product->m, n = product->n, k = product->k;
    if (m <= 0 || n <= 0) return true;
    if (k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product) != DML__NOT_THIN) {
        dml__multiply_thin(NULL, product);
    } else if (dml__is_chunked(m, n, k)) {
        return false;
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        const dml__range all = { 0, job.product.m, 0, job.product.n, 0, k };
        dml__multiply_as(pool, worker, &job, &all);
    }
    return true;
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__thin_kind(product) != DML__NOT_THIN) {
        dml__multiply_thin(pool, product);
    } else if (dml__is_chunked(product->m, product->n, product->k)) {
        dml__multiply_chunks(pool, product);
    } else {
        const dml__job job = dml__plan_product(dml__pool_machine(pool), product);
        dml__multiply_blocks(pool, &job);
    }
}

#endif

/* ---- kernels/gemm.c ---- */

#ifndef DML_KERNELS_GEMM_C
#define DML_KERNELS_GEMM_C

/* ---- kernels/gemm_internal.h ---- */

/* gemm_internal.h: what the products of all types ask of their arguments. */
#ifndef DML_KERNELS_GEMM_INTERNAL_H
#define DML_KERNELS_GEMM_INTERNAL_H

/* The arguments of a row-major product besides its numbers; A and B of any type. */
typedef struct dml__gemm_arguments {
    dml_transpose trans_a, trans_b;
    int m, n, k;
    bool reads; /* alpha isn't 0: A and B count, if k does */
    const void *a, *b, *c;
    int lda, ldb, ldc;
    const dml_epilogue *epilogue; /* or NULL */
} dml__gemm_arguments;

/* DML_ERROR_ARGUMENT for a negative size, a leading dimension that is too small, an array that is NULL though
   it would be read or written, and a transpose or an activation that there isn't. */
DML__LOCAL dml_status dml__check_gemm(const dml__gemm_arguments *arguments);

#endif

#include <string.h>

static bool dml__gemm_fits(dml_transpose trans, int rows, int columns, int ld)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return ld >= (inner > 1 ? inner : 1);
}

static bool dml__is_transpose(dml_transpose trans)
{
    return trans == DML_NO_TRANS || trans == DML_TRANS;
}

DML__LOCAL dml_status dml__check_gemm(const dml__gemm_arguments *g)
{
    if (!dml__is_transpose(g->trans_a) || !dml__is_transpose(g->trans_b) || g->m < 0 || g->n < 0 ||
        g->k < 0 || !dml__gemm_fits(g->trans_a, g->m, g->k, g->lda) ||
        !dml__gemm_fits(g->trans_b, g->k, g->n, g->ldb) || !dml__gemm_fits(DML_NO_TRANS, g->m, g->n, g->ldc))
        return DML_ERROR_ARGUMENT;
    if (!dml__epilogue_is_known(g->epilogue)) return DML_ERROR_ARGUMENT;
    const bool empty = g->m == 0 || g->n == 0, reads = !empty && g->k > 0 && g->reads;
    return (!empty && !g->c) || (reads && (!g->a || !g->b)) ? DML_ERROR_ARGUMENT : DML_OK;
}

/* The numbers of a row-major product; where its arrays are is added. */
static dml__product dml__row_major_product(dml__matrix factors[2], dml_transpose trans_a,
                                           dml_transpose trans_b, int m, int n, int k, const float *a,
                                           int lda, const float *b, int ldb)
{
    const dml__matrix left = { a, lda, 1 }, right = { b, 1, ldb };
    dml__product product;
    memset(&product, 0, sizeof product);
    factors[0] = left;
    factors[1] = right;
    if (trans_a == DML_TRANS) factors[0].lane_step = 1, factors[0].k_step = lda;
    if (trans_b == DML_TRANS) factors[1].lane_step = ldb, factors[1].k_step = 1;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = product.b.pack = dml__pack_matrix;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    return product;
}

DML_API dml_status dml_sgemm_fused(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                   int k, float alpha, const float *a, int lda, const float *b, int ldb,
                                   float beta, float *c, int ldc, const dml_epilogue *epilogue)
{
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, epilogue };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    dml__matrix factors[2];
    dml__product product = dml__row_major_product(factors, trans_a, trans_b, m, n, k, a, lda, b, ldb);
    product.alpha = alpha;
    product.beta = beta;
    product.c = c;
    product.ldc = ldc;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc)
{
    if (layout == DML_ROW_MAJOR)
        return dml_sgemm_fused(pool, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, NULL);
    /* A matrix in column-major order is its transpose in row-major order: C^T = op(B)^T op(A)^T. */
    if (layout == DML_COL_MAJOR)
        return dml_sgemm_fused(pool, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc, NULL);
    return DML_ERROR_ARGUMENT;
}

typedef struct dml__gemm_batch {
    dml_pool *pool;
    dml__product product; /* the first */
    dml__matrix factors[2];
    ptrdiff_t stride_a, stride_b, stride_c;
} dml__gemm_batch;

/* Product i of a batch, by a worker, or with the whole pool for -1. */
static bool dml__multiply_one(const dml__gemm_batch *batch, int i, int worker)
{
    dml__matrix factors[2] = { batch->factors[0], batch->factors[1] };
    dml__product product = batch->product;
    factors[0].x += i * batch->stride_a;
    factors[1].x += i * batch->stride_b;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    product.c += i * batch->stride_c;
    if (worker >= 0) return dml__multiply_alone(batch->pool, worker, &product);
    dml__multiply(batch->pool, &product);
    return true;
}

static void dml__batch_task(void *argument, int task, int worker)
{
    dml__multiply_one((const dml__gemm_batch *)argument, task + 1, worker);
}

/* Products of at least so many multiply-adds are shared out one by one. */
#define DML__SHARED_PRODUCT 4e6

DML_API dml_status dml_sgemm_batched(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m,
                                     int n, int k, float alpha, const float *a, int lda, ptrdiff_t stride_a,
                                     const float *b, int ldb, ptrdiff_t stride_b, float beta, float *c,
                                     int ldc, ptrdiff_t stride_c, int count)
{
    if (count < 0) return DML_ERROR_ARGUMENT;
    if (count == 0) return DML_OK;
    dml__gemm_batch batch;
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, NULL };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    batch.pool = pool;
    batch.product = dml__row_major_product(batch.factors, trans_a, trans_b, m, n, k, a, lda, b, ldb);
    batch.product.alpha = alpha;
    batch.product.beta = beta;
    batch.product.c = c;
    batch.product.ldc = ldc;
    batch.stride_a = stride_a;
    batch.stride_b = stride_b;
    batch.stride_c = stride_c;
    /* The first says whether one worker can do it. */
    if ((double)m * n * k < DML__SHARED_PRODUCT && dml__multiply_one(&batch, 0, 0))
        dml_pool_run(pool, count - 1, dml__batch_task, &batch);
    else
        for (int i = 0; i < count; i++) dml__multiply_one(&batch, i, -1);
    return DML_OK;
}

DML_API dml_scratch dml_sgemm_scratch(dml_transpose trans_a, dml_transpose trans_b, int m, int n, int k)
{
    const dml_scratch none = { 0, 0 };
    if (m < 1 || n < 1 || k < 1) return none;
    dml__matrix factors[2];
    const dml__product product =
        dml__row_major_product(factors, trans_a, trans_b, m, n, k, NULL, trans_a == DML_TRANS ? m : k, NULL,
                               trans_b == DML_TRANS ? k : n);
    return dml__product_scratch(&product);
}

#endif

/* ---- kernels/bf16.c ---- */

#ifndef DML_KERNELS_BF16_C
#define DML_KERNELS_BF16_C

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* --- conversion --- */

static inline uint32_t dml__f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float dml__f32_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline dml_bf16 dml__bf16_of(float x)
{
    const uint32_t bits = dml__f32_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (dml_bf16)(bits >> 16 | 0x40u); /* a quiet NaN */
    return (dml_bf16)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

#define DML__BF16_BLOCK ((size_t)16384)

typedef struct dml__bf16_job {
    size_t n;
    const float *wide_in;
    const dml_bf16 *narrow_in;
    float *wide;
    dml_bf16 *narrow;
} dml__bf16_job;

static void dml__bf16_task(void *argument, int task, int worker)
{
    const dml__bf16_job *job = (const dml__bf16_job *)argument;
    const size_t begin = (size_t)task * DML__BF16_BLOCK;
    const size_t end = job->n - begin < DML__BF16_BLOCK ? job->n : begin + DML__BF16_BLOCK;
    (void)worker;
    if (job->narrow)
        for (size_t i = begin; i < end; i++) job->narrow[i] = dml__bf16_of(job->wide_in[i]);
    else
        for (size_t i = begin; i < end; i++) job->wide[i] = dml__f32_of((uint32_t)job->narrow_in[i] << 16);
}

static void dml__convert_bf16(dml_pool *pool, const dml__bf16_job *job)
{
    dml__bf16_job own = *job;
    dml_pool_run(pool, (int)((job->n + DML__BF16_BLOCK - 1) / DML__BF16_BLOCK), dml__bf16_task, &own);
}

DML_API void dml_bf16_from_f32(dml_pool *pool, size_t n, const float *x, dml_bf16 *y)
{
    const dml__bf16_job job = { n, x, NULL, NULL, y };
    dml__convert_bf16(pool, &job);
}

DML_API void dml_bf16_to_f32(dml_pool *pool, size_t n, const dml_bf16 *x, float *y)
{
    const dml__bf16_job job = { n, NULL, x, y, NULL };
    dml__convert_bf16(pool, &job);
}

/* --- packing --- */

/* Element (lane, k) of a factor is x[lane * lane_step + k * k_step]; one of the two steps is 1. */
typedef struct dml__bf16_matrix {
    const dml_bf16 *x;
    ptrdiff_t lane_step, k_step, k;
} dml__bf16_matrix;

/* As f32, for a micro-kernel on f32. */
static void dml__pack_widened(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                              float *out)
{
    const dml__bf16_matrix *m = (const dml__bf16_matrix *)source;
    const dml_bf16 *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    if (m->lane_step == 1) {
        for (int k = 0; k < kc; k++, x += m->k_step, out += width) {
            int lane = 0;
#if defined(__SSE2__)
            for (; lane + 8 <= lanes; lane += 8) {
                const __m128i zero = _mm_setzero_si128();
                const __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(x + lane));
                _mm_storeu_si128((__m128i *)(void *)(out + lane), _mm_unpacklo_epi16(zero, eight));
                _mm_storeu_si128((__m128i *)(void *)(out + lane + 4), _mm_unpackhi_epi16(zero, eight));
            }
#endif
            for (; lane < lanes; lane++) out[lane] = dml__f32_of((uint32_t)x[lane] << 16);
        }
        return;
    }
    /* Lines are widened a part at a time, then transposed as those of f32 are. */
    float line[4][64];
    for (int lane = 0; lane < lanes; lane += 4, x += 4 * m->lane_step) {
        const int group = lanes - lane < 4 ? lanes - lane : 4;
        for (int begin = 0; begin < kc; begin += 64) {
            const int count = kc - begin < 64 ? kc - begin : 64;
            for (int l = 0; l < group; l++)
                for (int k = 0; k < count; k++)
                    line[l][k] = dml__f32_of((uint32_t)x[l * m->lane_step + begin + k] << 16);
            dml__pack_transposed(line[0], 64, group, count, width, out + (ptrdiff_t)begin * width + lane);
        }
    }
}

/* As pairs of two k's, the first in the lower half, for a micro-kernel on bf16; k0 and kc count pairs, and
   the pair of a last odd k has a zero. */
static void dml__pack_pairs(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                            float *out)
{
    const dml__bf16_matrix *m = (const dml__bf16_matrix *)source;
    const dml_bf16 *x = m->x + first * m->lane_step + 2 * k0 * m->k_step;
    const int whole = (int)(m->k - 2 * k0) / 2 < kc ? (int)(m->k - 2 * k0) / 2 : kc;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    for (int k = 0; k < kc; k++, out += width) {
        const dml_bf16 *even = x + 2 * k * m->k_step, *odd = even + m->k_step;
        int lane = 0;
#if defined(__SSE2__)
        for (; m->lane_step == 1 && k < whole && lane + 8 <= lanes; lane += 8) {
            const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(even + lane));
            const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(odd + lane));
            _mm_storeu_si128((__m128i *)(void *)(out + lane), _mm_unpacklo_epi16(low, high));
            _mm_storeu_si128((__m128i *)(void *)(out + lane + 4), _mm_unpackhi_epi16(low, high));
        }
#endif
        for (; lane < lanes; lane++) {
            const uint32_t second = k < whole ? odd[lane * m->lane_step] : 0u;
            out[lane] = dml__f32_of(second << 16 | even[lane * m->lane_step]);
        }
    }
}

/* --- the product --- */

static dml__product dml__bf16_product(dml__bf16_isa isa, dml__bf16_matrix factors[2], int m, int n, int k)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.kernel = dml__microkernel_bf16(isa);
    product.m = m;
    product.n = n;
    product.k = product.kernel ? ((ptrdiff_t)k + 1) / 2 : k;
    product.a.pack = product.b.pack = product.kernel ? dml__pack_pairs : dml__pack_widened;
    product.a.source = &factors[0];
    product.b.source = &factors[1];
    return product;
}

DML_API dml_status dml_bf16gemm(dml_pool *pool, dml_transpose trans_a, dml_transpose trans_b, int m, int n,
                                int k, float alpha, const dml_bf16 *a, int lda, const dml_bf16 *b, int ldb,
                                float beta, float *c, int ldc, const dml_epilogue *epilogue)
{
    const dml__gemm_arguments arguments = { trans_a, trans_b, m,   n,   k,   alpha != 0, a,
                                            b,       c,       lda, ldb, ldc, epilogue };
    const dml_status status = dml__check_gemm(&arguments);
    if (status != DML_OK || m == 0 || n == 0) return status;
    dml__bf16_matrix factors[2] = { { a, lda, 1, k }, { b, 1, ldb, k } };
    if (trans_a == DML_TRANS) factors[0].lane_step = 1, factors[0].k_step = lda;
    if (trans_b == DML_TRANS) factors[1].lane_step = ldb, factors[1].k_step = 1;
    dml__product product = dml__bf16_product(dml__pool_bf16(pool), factors, m, n, k);
    product.alpha = alpha;
    product.beta = beta;
    product.c = c;
    product.ldc = ldc;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_bf16gemm_scratch(int m, int n, int k)
{
    const dml_scratch none = { 0, 0 };
    dml__bf16_matrix factors[2];
    if (m < 1 || n < 1 || k < 1) return none;
    memset(factors, 0, sizeof factors);
    const dml__product product = dml__bf16_product(dml__pool_bf16(NULL), factors, m, n, k);
    return dml__product_scratch(&product);
}

DML_API const char *dml_bf16gemm_isa(dml_pool *pool)
{
    switch (dml__pool_bf16(pool)) {
    case DML__BF16_AMX: return "amx";
    case DML__BF16_AVX512: return "avx512_bf16";
    case DML__BF16_WIDENED: break;
    }
    return "widened";
}

#endif

/* ---- kernels/conv2d_pass.c ---- */

#ifndef DML_KERNELS_CONV2D_PASS_C
#define DML_KERNELS_CONV2D_PASS_C

/* ---- kernels/conv2d_pass.h ---- */

/* conv2d_pass.h: a convolution as a list of offsets into the micro-kernel; what the forward product is, and
   each phase of the input gradient. */
#ifndef DML_KERNELS_CONV2D_PASS_H
#define DML_KERNELS_CONV2D_PASS_H

/* The sum over taps and depth at each pixel of a grid:
       target(n, y, x)[j] = relu(sum over ty, tx, d of source(n, origin_y + y stride_h + ty dilation_h,
   ...)[d]
                                                       * weights[ty, tx, d, j]
                                 + beta target(n, y, x)[j] + bias[j])
   where the source is 0 outside its image. */
typedef struct dml__conv_pass {
    ptrdiff_t batch, grid_h, grid_w, columns;
    ptrdiff_t stride_h, stride_w, dilation_h, dilation_w, taps_h, taps_w, depth;
    ptrdiff_t origin_y, origin_x; /* of the first pixel's first tap: negative in the padding */

    const float *source; /* (batch, source_h, source_w, source_pixel), of which `depth` count */
    ptrdiff_t source_h, source_w, source_pixel;

    const float *weights; /* element (ty, tx, d, j) lies at the sum of their steps */
    ptrdiff_t weights_tap_h, weights_tap_w, weights_depth, weights_column;

    float *target; /* pixel (n, y, x) lies at the sum of their steps */
    ptrdiff_t target_image, target_line, target_pixel;
    float beta;
    const float *bias; /* (columns), or NULL */
    bool relu;
} dml__conv_pass;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. */
DML__LOCAL void dml__conv_pass_run(dml_pool *pool, const dml__conv_pass *pass);

/* What a pass of that size uses; the arrays aren't looked at. */
DML__LOCAL dml_scratch dml__conv_pass_scratch(const dml__conv_pass *pass);

/* Packs the weights of columns j0 .. for k0 <= k < k1, k in the order of (taps_h, taps_w, depth), as
   out[(k - k0) * width + column], with zeros behind the last column. */
DML__LOCAL void dml__conv_pass_pack(const dml__conv_pass *p, ptrdiff_t j0, ptrdiff_t columns, ptrdiff_t width,
                                    ptrdiff_t k0, ptrdiff_t k1, float *out);

/* --- for convolutions of every kind --- */

/* Fewer multiply-adds than this are not worth waking anybody, or making a task of. */
#define DML__CONV_SERIAL_WORK 200000.0

/* The widest tile that convolutions use; a multiple of any kernel's lanes * vectors. */
#define DML__CONV_COLUMNS 32
#define DML__CONV_ROWS 8 /* as many as any kernel on floats takes */

/* Copies, and sets to zero, short runs of floats: a call costs more than such a copy. */
DML__LOCAL void dml__conv_copy(float *to, const float *from, ptrdiff_t count);
DML__LOCAL void dml__conv_zero(float *to, ptrdiff_t count);

/* Runs a tile of whole vectors of which only so many columns are in C: the others are computed on the side.
 */
DML__LOCAL void dml__conv_tile(const dml__microkernel *kernel, const dml__tile *tile, int columns);

#endif

#include <string.h>

/* The micro-kernel's rows are pixels of the grid, in order through lines and images; its columns are filters;
   its blocks are taps, or lines of taps where those lie side by side. A band of lines, or of whole images, is
   copied into the worker's scratch with zeros around it when taps reach outside of the image. The weights are
   packed into panels (k, lanes * vectors) with k in the order of the taps; once for all bands in the shared
   scratch, or block by block where they are used.

   What an element's bits depend on is how k is cut into chunks, each of which is one chain of multiply-adds.
   It is cut by the shape alone, so that one chunk of a panel always fits the stack. */
#define DML__CONV_KC 256

/* A band's floats, about half of a level-2 cache; one line may take more, but where it takes more than the
   most, the patches are gathered tile by tile. */
#define DML__CONV_BAND 65536
#define DML__CONV_BAND_MOST 262144
#define DML__CONV_PANELS 4096    /* floats of panels, which stay in a level-1 cache */
#define DML__CONV_BAND_PIXELS 96 /* no fewer, for which the weights are read again */

DML__LOCAL void dml__conv_copy(float *to, const float *from, ptrdiff_t count)
{
    if (count >= 128) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    for (; count >= 8; count -= 8, to += 8, from += 8) memcpy(to, from, 8 * sizeof *to);
    for (; count > 0; count--) *to++ = *from++;
}

DML__LOCAL void dml__conv_zero(float *to, ptrdiff_t count)
{
    if (count > 0) memset(to, 0, (size_t)count * sizeof *to);
}

DML__LOCAL void dml__conv_tile(const dml__microkernel *kernel, const dml__tile *tile, int columns)
{
    if (columns == tile->columns) {
        kernel->run(tile);
        return;
    }
    float side[DML__CONV_ROWS * DML__CONV_COLUMNS];
    dml__tile whole = *tile;
    for (int i = 0; i < tile->rows; i++) {
        whole.c[i] = side + i * tile->columns;
        if (tile->beta != 0) {
            dml__conv_zero(whole.c[i], tile->columns);
            dml__conv_copy(whole.c[i], tile->c[i], columns);
        }
    }
    kernel->run(&whole);
    for (int i = 0; i < tile->rows; i++) dml__conv_copy(tile->c[i], whole.c[i], columns);
}

typedef struct dml__conv_pass_plan {
    const dml__conv_pass *pass;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t full;           /* columns of a panel */
    ptrdiff_t panels, k;      /* in all */
    ptrdiff_t runs, run;      /* k is that many runs of elements that lie side by side */
    ptrdiff_t chunks, pieces; /* chunks are whole runs, or a run is cut into that many pieces */
    bool copy;                /* the source has to be padded */
    bool spill;       /* a pixel's vectors may reach into the next pixels, which are written after it */
    bool clips;       /* lines' taps above and below the image are left out */
    ptrdiff_t copy_w; /* pixels of a padded line */
    ptrdiff_t images, lines; /* of a band: whole images, or lines of one */
    ptrdiff_t bands, groups; /* tasks: bands times groups of panels */
    float *packed;           /* (panels, k, full), or NULL */
} dml__conv_pass_plan;

/* Lines of the source under some lines of the grid. */
static ptrdiff_t dml__conv_pass_source_lines(const dml__conv_pass *p, ptrdiff_t lines)
{
    return lines < 1 || p->taps_h < 1 ? 0 : (lines - 1) * p->stride_h + (p->taps_h - 1) * p->dilation_h + 1;
}

static ptrdiff_t dml__conv_pass_band_floats(const dml__conv_pass_plan *plan, ptrdiff_t images,
                                            ptrdiff_t lines)
{
    return images * dml__conv_pass_source_lines(plan->pass, lines) * plan->copy_w * plan->pass->depth;
}

/* What a band keeps in the caches: its copy, or what a chunk meets of its source; and, where that is written
   at once, the target. */
static ptrdiff_t dml__conv_pass_footprint(const dml__conv_pass_plan *plan, ptrdiff_t images, ptrdiff_t lines)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t pixels = images * lines * p->grid_w;
    ptrdiff_t band = dml__conv_pass_band_floats(plan, images, lines);
    if (!plan->copy) band = dml__smaller(band, pixels * dml__smaller(plan->k, DML__CONV_KC));
    return band + (plan->chunks == 1 ? pixels * p->columns : 0);
}

static void dml__conv_pass_plan_bands(dml__conv_pass_plan *plan, int threads)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t image = dml__conv_pass_footprint(plan, 1, p->grid_h);
    const double work =
        (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)plan->k * (double)p->columns;
    ptrdiff_t wanted = 1;
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK) {
        const double most = work / (DML__CONV_SERIAL_WORK / 2);
        wanted = most < 4.0 * threads ? (ptrdiff_t)most : 4 * threads;
    }
    plan->images = 1, plan->lines = p->grid_h;
    if (2 * image <= DML__CONV_BAND) {
        plan->images = dml__smaller(p->batch, DML__CONV_BAND / dml__larger(1, image));
        while (plan->images > 1 && dml__quotient_up(p->batch, plan->images) < wanted)
            plan->images = dml__quotient_up(plan->images, 2);
    } else {
        while (plan->lines > 1 && plan->lines * p->grid_w >= 2 * DML__CONV_BAND_PIXELS &&
               dml__conv_pass_footprint(plan, 1, plan->lines) > DML__CONV_BAND)
            plan->lines = dml__quotient_up(plan->lines, 2);
    }
    /* Panels are shared out before the lines of an image, whose copies overlap. */
    plan->bands = dml__quotient_up(p->batch, plan->images) * dml__quotient_up(p->grid_h, plan->lines);
    plan->groups =
        plan->bands >= wanted ? 1 : dml__smaller(plan->panels, dml__quotient_up(wanted, plan->bands));
    while (plan->images == 1 && plan->lines > 1 && plan->bands * plan->groups < wanted) {
        plan->lines = dml__quotient_up(plan->lines, 2);
        plan->bands = p->batch * dml__quotient_up(p->grid_h, plan->lines);
    }
}

static dml__conv_pass_plan dml__conv_pass_plan_of(dml_pool *pool, const dml__conv_pass *pass, int threads)
{
    dml__conv_pass_plan plan;
    const dml__conv_pass *p = pass;
    memset(&plan, 0, sizeof plan);
    plan.pass = pass;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(dml__pool_machine(pool).isa);
    plan.full = plan.kernel->lanes * plan.kernel->vectors;
    plan.panels = dml__quotient_up(p->columns, plan.full);
    plan.k = p->taps_h * p->taps_w * p->depth;
    const ptrdiff_t end_y = p->origin_y + dml__conv_pass_source_lines(p, p->grid_h);
    plan.copy_w = (p->grid_w - 1) * p->stride_w + (p->taps_w - 1) * p->dilation_w + 1;
    plan.copy = plan.k > 0 && (p->origin_y < 0 || p->origin_x < 0 || end_y > p->source_h ||
                               p->origin_x + plan.copy_w > p->source_w);
    const bool side_by_side =
        p->taps_w == 1 || (p->dilation_w == 1 && (plan.copy || p->source_pixel == p->depth));
    plan.run = side_by_side ? p->taps_w * p->depth : p->depth;
    plan.runs = plan.k / (plan.run ? plan.run : 1);
    plan.pieces = 1, plan.chunks = 1;
    if (plan.k == 0) {
        plan.run = 0; /* a phase without taps: one chunk of nothing */
    } else if (plan.run > DML__CONV_KC) {
        plan.pieces = dml__quotient_up(plan.run, DML__CONV_KC);
        plan.chunks = plan.runs * plan.pieces;
    } else {
        plan.chunks = dml__quotient_up(plan.runs, DML__CONV_KC / plan.run);
    }
    plan.spill = plan.panels == 1 && plan.chunks == 1 && p->columns % plan.kernel->lanes && p->beta == 0 &&
                 p->target_pixel == p->columns && p->target_line == p->grid_w * p->target_pixel &&
                 p->target_image == p->grid_h * p->target_line;
    /* Pixels that spill are written in order, and lines of few columns are too short to go through alone. */
    plan.clips = plan.k > 0 && !plan.spill && (p->origin_y < 0 || end_y > p->source_h);
    dml__conv_pass_plan_bands(&plan, threads);
    return plan;
}

/* Some of a pass' k, which the micro-kernel goes through at once. */
typedef struct dml__conv_pass_chunk {
    ptrdiff_t run0, offset; /* begins with that element of that run */
    int runs, length;       /* so many runs, or, of one run, so many elements */
    ptrdiff_t k0, k1;
} dml__conv_pass_chunk;

static dml__conv_pass_chunk dml__conv_pass_chunk_at(const dml__conv_pass_plan *plan, ptrdiff_t c)
{
    dml__conv_pass_chunk chunk;
    if (plan->pieces > 1) {
        const ptrdiff_t piece = c % plan->pieces;
        chunk.run0 = c / plan->pieces;
        chunk.runs = 1;
        chunk.offset = piece * plan->run / plan->pieces;
        chunk.length = (int)((piece + 1) * plan->run / plan->pieces - chunk.offset);
    } else {
        chunk.run0 = c * plan->runs / plan->chunks;
        chunk.runs = (int)((c + 1) * plan->runs / plan->chunks - chunk.run0);
        chunk.offset = 0;
        chunk.length = (int)plan->run;
    }
    chunk.k0 = chunk.run0 * plan->run + chunk.offset;
    chunk.k1 = chunk.k0 + (ptrdiff_t)chunk.runs * chunk.length;
    return chunk;
}

/* The runs of a chunk that a line of the grid meets inside of the image; the others are zeros, and left out.
 */
static dml__conv_pass_chunk dml__conv_pass_chunk_of_line(const dml__conv_pass_plan *plan,
                                                         const dml__conv_pass_chunk *chunk, ptrdiff_t line)
{
    const dml__conv_pass *p = plan->pass;
    dml__conv_pass_chunk clipped = *chunk;
    if (!plan->clips) return clipped;
    const ptrdiff_t top = p->origin_y + line * p->stride_h, below = p->source_h - top;
    const ptrdiff_t tap0 = top >= 0 ? 0 : dml__quotient_up(-top, p->dilation_h),
                    tap1 = below <= 0 ? 0 : dml__quotient_up(below, p->dilation_h);
    const ptrdiff_t across = plan->runs / p->taps_h; /* runs of a line of taps */
    ptrdiff_t end = dml__smaller(chunk->run0 + chunk->runs, tap1 * across);
    clipped.run0 = dml__larger(chunk->run0, tap0 * across);
    if (clipped.run0 >= end) clipped.run0 = end = chunk->run0;
    clipped.runs = (int)(end - clipped.run0);
    clipped.k0 = clipped.run0 * plan->run + clipped.offset;
    clipped.k1 = clipped.k0 + (ptrdiff_t)clipped.runs * clipped.length;
    return clipped;
}

/* --- the weights --- */

DML__LOCAL void dml__conv_pass_pack(const dml__conv_pass *p, ptrdiff_t j0, ptrdiff_t columns, ptrdiff_t width,
                                    ptrdiff_t k0, ptrdiff_t k1, float *out)
{
    if (columns < width) dml__conv_zero(out, (k1 - k0) * width);
    while (k0 < k1) { /* a tap at a time */
        const ptrdiff_t tap = k0 / p->depth, d = k0 % p->depth;
        ptrdiff_t count = dml__smaller(p->depth - d, k1 - k0);
        const float *from = p->weights + tap / p->taps_w * p->weights_tap_h +
                            tap % p->taps_w * p->weights_tap_w + d * p->weights_depth +
                            j0 * p->weights_column;
        if (p->weights_column == 1) {
            for (ptrdiff_t k = 0; k < count; k++, from += p->weights_depth) {
                DML__PREFETCH(from + 16 * p->weights_depth);
                if (columns == 16)
                    memcpy(out + k * width, from, 16 * sizeof *out);
                else
                    dml__conv_copy(out + k * width, from, columns);
            }
        } else {
            /* The forward weights of a filter lie side by side for all taps. */
            if (p->weights_tap_w == p->depth && p->weights_tap_h == p->taps_w * p->depth) count = k1 - k0;
            count = dml__smaller(count, DML__CONV_KC);
            dml__pack_transposed(from, p->weights_column, (int)columns, (int)count, (int)width, out);
        }
        out += count * width;
        k0 += count;
    }
}

static ptrdiff_t dml__conv_pass_panel_columns(const dml__conv_pass_plan *plan, ptrdiff_t panel)
{
    return dml__smaller(plan->full, plan->pass->columns - panel * plan->full);
}

static void dml__conv_pass_pack_task(void *argument, int task, int worker)
{
    const dml__conv_pass_plan *plan = (const dml__conv_pass_plan *)argument;
    const ptrdiff_t columns = dml__conv_pass_panel_columns(plan, task);
    (void)worker;
    dml__conv_pass_pack(plan->pass, task * plan->full, columns, dml__round_up(columns, plan->kernel->lanes),
                        0, plan->k, plan->packed + task * plan->full * plan->k);
}

/* --- the bands --- */

/* The part of the grid that a task computes, and where its pixels' first taps are found. */
typedef struct dml__conv_pass_band {
    ptrdiff_t n0, images, y0, lines;
    const float *base;                           /* NULL: patches are gathered */
    ptrdiff_t image_step, line_step, pixel_step; /* of the source, or of its copy */
} dml__conv_pass_band;

/* Copies the pixels of a source line from `x` on, which may lie outside, with zeros there. */
static void dml__conv_pass_copy_pixels(const dml__conv_pass *p, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                       ptrdiff_t count, float *to)
{
    const ptrdiff_t depth = p->depth;
    if (y < 0 || y >= p->source_h) {
        dml__conv_zero(to, count * depth);
        return;
    }
    const float *line = p->source + (n * p->source_h + y) * p->source_w * p->source_pixel;
    const ptrdiff_t before = x >= 0 ? 0 : dml__smaller(-x, count);
    const ptrdiff_t end = dml__larger(dml__smaller(count, p->source_w - x), before);
    dml__conv_zero(to, before * depth);
    if (p->source_pixel == depth)
        dml__conv_copy(to + before * depth, line + (x + before) * depth, (end - before) * depth);
    else
        for (ptrdiff_t i = before; i < end; i++)
            dml__conv_copy(to + i * depth, line + (x + i) * p->source_pixel, depth);
    dml__conv_zero(to + end * depth, (count - end) * depth);
}

static dml__conv_pass_band dml__conv_pass_band_at(const dml__conv_pass_plan *plan, ptrdiff_t index,
                                                  int worker)
{
    const dml__conv_pass *p = plan->pass;
    dml__conv_pass_band band;
    const ptrdiff_t of_image = dml__quotient_up(p->grid_h, plan->lines);
    if (of_image == 1) {
        band.n0 = index * plan->images;
        band.images = dml__smaller(plan->images, p->batch - band.n0);
        band.y0 = 0, band.lines = p->grid_h;
    } else { /* even shares of an image */
        band.n0 = index / of_image;
        band.images = 1;
        band.y0 = index % of_image * p->grid_h / of_image;
        band.lines = (index % of_image + 1) * p->grid_h / of_image - band.y0;
    }
    const ptrdiff_t y = p->origin_y + band.y0 * p->stride_h,
                    lines = dml__conv_pass_source_lines(p, band.lines);
    band.pixel_step = p->source_pixel;
    band.line_step = p->source_w * p->source_pixel;
    band.image_step = p->source_h * band.line_step;
    band.base = p->source;
    if (plan->k == 0) return band;
    if (!plan->copy) {
        band.base += band.n0 * band.image_step + y * band.line_step + p->origin_x * band.pixel_step;
        return band;
    }
    float *copy = (float *)dml_pool_scratch(plan->pool, worker);
    const size_t bytes = (size_t)(band.images * lines * plan->copy_w * p->depth) * sizeof(float);
    band.base = NULL;
    if (!copy || dml_pool_scratch_bytes(plan->pool).worker < bytes) return band;
    band.base = copy;
    band.pixel_step = p->depth;
    band.line_step = plan->copy_w * p->depth;
    band.image_step = lines * band.line_step;
    for (ptrdiff_t n = 0; n < band.images; n++)
        for (ptrdiff_t line = 0; line < lines; line++, copy += band.line_step)
            dml__conv_pass_copy_pixels(p, band.n0 + n, y + line, p->origin_x, plan->copy_w, copy);
    return band;
}

/* --- tiles --- */

/* Where a pixel of a band lies: counted along lines, through the images. */
typedef struct dml__conv_pass_pixel {
    ptrdiff_t n, y, x;
} dml__conv_pass_pixel;

static inline void dml__conv_pass_next(dml__conv_pass_pixel *at, const dml__conv_pass_band *band,
                                       ptrdiff_t width)
{
    if (++at->x < width) return;
    at->x = 0;
    if (++at->y < band->lines) return;
    at->y = 0;
    at->n++;
}

/* A chunk of the patch of a pixel, where no padded copy is there to find it in. */
static void dml__conv_pass_gather(const dml__conv_pass *p, const dml__conv_pass_band *band,
                                  dml__conv_pass_pixel at, const dml__conv_pass_chunk *chunk, float *to)
{
    const ptrdiff_t y0 = p->origin_y + (band->y0 + at.y) * p->stride_h, x0 = p->origin_x + at.x * p->stride_w;
    for (ptrdiff_t k = chunk->k0; k < chunk->k1;) {
        const ptrdiff_t tap = k / p->depth, d = k % p->depth;
        const ptrdiff_t count = dml__smaller(p->depth - d, chunk->k1 - k);
        const ptrdiff_t y = y0 + tap / p->taps_w * p->dilation_h, x = x0 + tap % p->taps_w * p->dilation_w;
        if (y < 0 || y >= p->source_h || x < 0 || x >= p->source_w)
            dml__conv_zero(to, count);
        else
            dml__conv_copy(
                to,
                p->source + (((band->n0 + at.n) * p->source_h + y) * p->source_w + x) * p->source_pixel + d,
                count);
        to += count;
        k += count;
    }
}

/* One chunk of some panels for all pixels of a band, or of some of its lines. */
typedef struct dml__conv_pass_sweep {
    const dml__conv_pass_plan *plan;
    dml__conv_pass_band band;
    dml__conv_pass_chunk chunk;
    ptrdiff_t j0, k0; /* where the tile's columns and its weights begin */
    int columns;      /* of the panel that count */
    dml__tile tile;
} dml__conv_pass_sweep;

static void dml__conv_pass_sweep_tiles(dml__conv_pass_sweep *sweep)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__conv_pass *p = plan->pass;
    const dml__conv_pass_band *band = &sweep->band;
    dml__tile *tile = &sweep->tile;
    const ptrdiff_t pixels = band->images * band->lines * p->grid_w;
    const ptrdiff_t tiles = dml__quotient_up(pixels, plan->kernel->rows);
    const ptrdiff_t a_pixel = p->stride_w * band->pixel_step, a_line = p->stride_h * band->line_step;
    float gathered[DML__CONV_ROWS * DML__CONV_KC];
    const float *a_line_at = band->base ? band->base : p->source;
    float *c_line_at = p->target + band->n0 * p->target_image + band->y0 * p->target_line + sweep->j0;
    const float *a = a_line_at;
    float *c = c_line_at;
    dml__conv_pass_pixel at = { 0, 0, 0 };
    for (ptrdiff_t t = 0, pixel = 0; t < tiles; t++) {
        const ptrdiff_t end = (t + 1) * pixels / tiles;
        tile->rows = (int)(end - pixel);
        for (int i = 0; pixel < end; i++, pixel++) {
            tile->c[i] = c;
            if (band->base) {
                tile->a[i] = a;
            } else {
                tile->a[i] = gathered + i * DML__CONV_KC;
                dml__conv_pass_gather(p, band, at, &sweep->chunk, gathered + i * DML__CONV_KC);
            }
            a += a_pixel;
            c += p->target_pixel;
            if (at.x == p->grid_w - 1) {
                const bool last = at.y == band->lines - 1;
                a_line_at += last ? band->image_step - (band->lines - 1) * a_line : a_line;
                c_line_at += last ? p->target_image - (band->lines - 1) * p->target_line : p->target_line;
                a = a_line_at;
                c = c_line_at;
            }
            dml__conv_pass_next(&at, band, p->grid_w);
        }
        const bool spill = plan->spill && (pixels - end) * sweep->columns >= tile->columns;
        dml__conv_tile(plan->kernel, tile, spill ? tile->columns : sweep->columns);
    }
}

/* Sets where the blocks of a sweep's chunk lie. */
static void dml__conv_pass_blocks(dml__conv_pass_sweep *sweep, ptrdiff_t *a_at, ptrdiff_t *b_at)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__conv_pass *p = plan->pass;
    const dml__conv_pass_chunk *chunk = &sweep->chunk;
    const dml__conv_pass_band *band = &sweep->band;
    dml__tile *tile = &sweep->tile;
    const ptrdiff_t b0 = (chunk->k0 - sweep->k0) * tile->b_step;
    tile->blocks = plan->k ? chunk->runs : 0;
    tile->k = chunk->length;
    tile->a_at = a_at;
    tile->b_at = b_at;
    if (!band->base) {
        tile->blocks = 1;
        tile->k = (int)(chunk->k1 - chunk->k0);
        a_at[0] = 0;
        b_at[0] = b0;
        return;
    }
    const ptrdiff_t across = plan->runs == p->taps_h ? 1 : p->taps_w;
    for (int r = 0; r < tile->blocks; r++) {
        const ptrdiff_t run = chunk->run0 + r;
        a_at[r] = run / across * p->dilation_h * band->line_step +
                  run % across * p->dilation_w * band->pixel_step + chunk->offset;
        b_at[r] = b0 + (ptrdiff_t)r * chunk->length * tile->b_step;
    }
}

/* Sweeps over a band in parts of lines that meet the same of a chunk. */
static void dml__conv_pass_sweep_band(dml__conv_pass_sweep *sweep, const dml__conv_pass_band *band,
                                      const dml__conv_pass_chunk *chunk)
{
    const dml__conv_pass_plan *plan = sweep->plan;
    const dml__tile *tile = &sweep->tile;
    ptrdiff_t a_at[DML__CONV_KC], b_at[DML__CONV_KC];
    for (ptrdiff_t y = 0, end; y < band->lines; y = end) {
        sweep->chunk = dml__conv_pass_chunk_of_line(plan, chunk, band->y0 + y);
        end = plan->clips ? y + 1 : band->lines;
        for (; end < band->lines; end++) {
            const dml__conv_pass_chunk next = dml__conv_pass_chunk_of_line(plan, chunk, band->y0 + end);
            if (next.run0 != sweep->chunk.run0 || next.runs != sweep->chunk.runs) break;
        }
        if (plan->clips && sweep->chunk.runs == 0 && tile->beta == 1 && !tile->bias && !tile->relu) continue;
        sweep->band = *band;
        sweep->band.y0 += y, sweep->band.lines = end - y;
        if (band->base) sweep->band.base += y * plan->pass->stride_h * band->line_step;
        dml__conv_pass_blocks(sweep, a_at, b_at);
        dml__conv_pass_sweep_tiles(sweep);
    }
}

/* How many panels from that one on are gone through with each row of tiles: so many as stay in the level-1
 * cache. */
static ptrdiff_t dml__conv_pass_panels_at(const dml__conv_pass_plan *plan, ptrdiff_t panel, ptrdiff_t end,
                                          const dml__conv_pass_chunk *chunk)
{
    const ptrdiff_t whole = dml__smaller(end, plan->pass->columns / plan->full) - panel;
    const ptrdiff_t most = DML__CONV_PANELS / dml__larger(1, (chunk->k1 - chunk->k0) * plan->full);
    return dml__larger(1, dml__smaller(whole, most));
}

/* A chunk of some panels for a whole band. */
static void dml__conv_pass_panels(const dml__conv_pass_plan *plan, const dml__conv_pass_band *band,
                                  ptrdiff_t panel, ptrdiff_t panels, const dml__conv_pass_chunk *chunk,
                                  bool first, bool last)
{
    const dml__conv_pass *p = plan->pass;
    float block[DML__CONV_KC * DML__CONV_COLUMNS], bias[DML__CONV_COLUMNS]; /* (panels, k, width), (width) */
    dml__conv_pass_sweep sweep;
    dml__tile *tile = &sweep.tile;
    sweep.plan = plan;
    sweep.j0 = panel * plan->full;
    sweep.columns = (int)dml__conv_pass_panel_columns(plan, panel);
    const ptrdiff_t width = dml__round_up(sweep.columns, plan->kernel->lanes);
    sweep.k0 = chunk->k0;
    dml__tile_init(tile);
    tile->panels = (int)panels;
    tile->columns = (int)width;
    tile->a_step = 1;
    tile->b_step = width;
    if (plan->packed) {
        tile->b = plan->packed + sweep.j0 * plan->k + chunk->k0 * width;
        tile->b_panel = plan->full * plan->k;
    } else {
        tile->b = block;
        tile->b_panel = plan->full * (chunk->k1 - chunk->k0);
        for (ptrdiff_t i = 0; i < panels; i++)
            dml__conv_pass_pack(p, sweep.j0 + i * plan->full, sweep.columns, width, chunk->k0, chunk->k1,
                                block + i * tile->b_panel);
    }
    tile->beta = first ? p->beta : 1;
    tile->relu = last && p->relu;
    if (last && p->bias) {
        tile->bias = p->bias + sweep.j0;
        if (sweep.columns < width) { /* vectors are read of it */
            for (ptrdiff_t j = 0; j < width; j++) bias[j] = j < sweep.columns ? p->bias[sweep.j0 + j] : 0;
            tile->bias = bias;
        }
    }
    dml__conv_pass_sweep_band(&sweep, band, chunk);
}

static void dml__conv_pass_task(void *argument, int task, int worker)
{
    const dml__conv_pass_plan *plan = (const dml__conv_pass_plan *)argument;
    const ptrdiff_t group = task % plan->groups;
    const dml__conv_pass_band band = dml__conv_pass_band_at(plan, task / plan->groups, worker);
    const ptrdiff_t end = (group + 1) * plan->panels / plan->groups;
    /* A chunk's part of the band is used for all panels before the next. */
    for (ptrdiff_t c = 0; c < plan->chunks; c++) {
        const dml__conv_pass_chunk chunk = dml__conv_pass_chunk_at(plan, c);
        ptrdiff_t panels;
        for (ptrdiff_t panel = group * plan->panels / plan->groups; panel < end; panel += panels) {
            panels = dml__conv_pass_panels_at(plan, panel, end, &chunk);
            dml__conv_pass_panels(plan, &band, panel, panels, &chunk, c == 0, c == plan->chunks - 1);
        }
    }
}

static size_t dml__conv_pass_packed_bytes(const dml__conv_pass_plan *plan)
{
    return (size_t)(plan->k * dml__round_up(plan->pass->columns, plan->kernel->lanes)) * sizeof(float);
}

DML__LOCAL dml_scratch dml__conv_pass_scratch(const dml__conv_pass *pass)
{
    dml_scratch scratch = { 0, 0 };
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return scratch;
    const dml__conv_pass_plan plan = dml__conv_pass_plan_of(NULL, pass, 1);
    const ptrdiff_t band = dml__conv_pass_band_floats(&plan, plan.images, plan.lines);
    if (plan.copy && band <= DML__CONV_BAND_MOST) scratch.worker = (size_t)band * sizeof(float);
    const size_t packed = dml__conv_pass_packed_bytes(&plan);
    if (plan.bands > 1 || packed <= DML__CONV_BAND * sizeof(float)) scratch.shared = packed;
    return scratch;
}

DML__LOCAL void dml__conv_pass_run(dml_pool *pool, const dml__conv_pass *pass)
{
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return;
    dml__conv_pass_plan plan = dml__conv_pass_plan_of(pool, pass, dml_pool_threads(pool));
    const ptrdiff_t tasks = plan.bands * plan.groups;
    if (plan.bands > 1 && dml_pool_scratch_bytes(pool).shared >= dml__conv_pass_packed_bytes(&plan)) {
        plan.packed = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(tasks > 1 ? pool : NULL, plan.packed ? (int)plan.panels : 0, dml__conv_pass_pack_task,
                     &plan);
    }
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__conv_pass_task, &plan);
}

#endif

/* ---- kernels/conv2d_planes.c ---- */

#ifndef DML_KERNELS_CONV2D_PLANES_C
#define DML_KERNELS_CONV2D_PLANES_C

/* ---- kernels/conv2d_planes.h ---- */

/* conv2d_planes.h: a convolution's pass onto few columns, whose vectors go along pixels. */
#ifndef DML_KERNELS_CONV2D_PLANES_H
#define DML_KERNELS_CONV2D_PLANES_H

/* Whether a pass without bias and activation is better run so; that depends on its shape and the processor.
 */
DML__LOCAL bool dml__conv_planes_fits(dml_pool *pool, const dml__conv_pass *pass);

/* As dml__conv_pass_run and dml__conv_pass_scratch. */
DML__LOCAL void dml__conv_planes_run(dml_pool *pool, const dml__conv_pass *pass);
DML__LOCAL dml_scratch dml__conv_planes_scratch(const dml__conv_pass *pass);

#endif

#include <string.h>

/* An image of 6 channels fills three quarters of one vector, and 6 sums of one vector wait for each other. So
   the roles change: the micro-kernel's rows are columns of the pass, whose weights are used where they are,
   its columns are pixels of a line, and its blocks taps. For that the source's lines are transposed into
   (depth, pixels), with zeros on both sides; lines above and below the image are left out. Results are
   transposed on their way to the target. Chunks are whole lines of taps. */
#define DML__PLANES_KC 256
#define DML__PLANES_BAND 65536 /* floats of a band's lines, about, which stay in a level-2 cache */
#define DML__PLANES_BAND_MOST 262144

typedef struct dml__planes_plan {
    const dml__conv_pass *pass;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t width;        /* pixels of a line of a plane */
    ptrdiff_t chunks;       /* of the lines of taps */
    ptrdiff_t lines, bands; /* of the grid in a band; bands of an image */
} dml__planes_plan;

/* Lines of the source under lines y0 .. y1 - 1 of the grid. */
static ptrdiff_t dml__planes_first_line(const dml__conv_pass *p, ptrdiff_t y0)
{
    return dml__larger(0, p->origin_y + y0 * p->stride_h);
}

static ptrdiff_t dml__planes_lines(const dml__conv_pass *p, ptrdiff_t y0, ptrdiff_t y1)
{
    const ptrdiff_t end = p->origin_y + (y1 - 1) * p->stride_h + (p->taps_h - 1) * p->dilation_h + 1;
    return dml__larger(0, dml__smaller(end, p->source_h) - dml__planes_first_line(p, y0));
}

/* Floats that a band of so many lines takes at most. */
static ptrdiff_t dml__planes_floats(const dml__planes_plan *plan, ptrdiff_t lines)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t of_source = (lines - 1) * p->stride_h + (p->taps_h - 1) * p->dilation_h + 1;
    return dml__smaller(of_source, p->source_h) * p->depth * plan->width;
}

static dml__planes_plan dml__planes_plan_of(dml_pool *pool, const dml__conv_pass *pass, int threads)
{
    dml__planes_plan plan;
    const dml__conv_pass *p = pass;
    const double work = (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)p->columns *
                        (double)(p->taps_h * p->taps_w * p->depth);
    ptrdiff_t bands = 1;
    plan.pass = pass;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(dml__pool_machine(pool).isa);
    plan.width = dml__round_up(p->grid_w, plan.kernel->lanes) + (p->taps_w - 1) * p->dilation_w;
    plan.chunks =
        dml__quotient_up(p->taps_h, dml__larger(1, DML__PLANES_KC / dml__larger(1, p->taps_w * p->depth)));
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK)
        bands = dml__quotient_up(2 * threads, dml__larger(1, p->batch));
    plan.lines = dml__quotient_up(p->grid_h, bands);
    while (plan.lines > 1 && dml__planes_floats(&plan, plan.lines) > DML__PLANES_BAND)
        plan.lines = dml__quotient_up(plan.lines, 2);
    plan.bands = dml__quotient_up(p->grid_h, dml__larger(1, plan.lines));
    return plan;
}

/* Of fewer sums than the processor has under way at once, each step takes as long as of so many. */
static ptrdiff_t dml__planes_tile_cost(ptrdiff_t sums)
{
    return dml__larger(sums, 8);
}

DML__LOCAL bool dml__conv_planes_fits(dml_pool *pool, const dml__conv_pass *p)
{
    const dml__planes_plan plan = dml__planes_plan_of(pool, p, 1);
    const dml__microkernel *kernel = plan.kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, run = p->taps_w * p->depth;
    if (p->stride_w != 1 || p->columns > kernel->rows || p->taps_h < 1 || run < 1 || run > DML__PLANES_KC ||
        p->grid_w < 1 || p->grid_h < 1 || dml__planes_floats(&plan, 1) > DML__PLANES_BAND_MOST)
        return false;
    const ptrdiff_t along = dml__quotient_up(p->columns, kernel->lanes);
    const ptrdiff_t pass =
        dml__quotient_up(p->grid_h * p->grid_w, kernel->rows) * dml__planes_tile_cost(kernel->rows * along);
    const ptrdiff_t rest = dml__quotient_up(p->grid_w % full, kernel->lanes) * p->columns;
    const ptrdiff_t line = p->grid_w / full * dml__planes_tile_cost(kernel->vectors * p->columns) +
                           (rest ? dml__planes_tile_cost(rest) : 0);
    return p->grid_h * line < pass / 4 * 3; /* transposing is not free */
}

/* The part of a batch that a task computes. */
typedef struct dml__planes_band {
    ptrdiff_t n, y0, y1, line0;
    const float
        *planes; /* (lines, depth, width), from line `line0` of the source on; NULL: no room for them */
} dml__planes_band;

static void dml__planes_fill(const dml__planes_plan *plan, const dml__planes_band *band, float *planes)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t lines = dml__planes_lines(p, band->y0, band->y1);
    const ptrdiff_t before = dml__smaller(dml__larger(0, -p->origin_x), plan->width);
    const ptrdiff_t end = dml__larger(before, dml__smaller(plan->width, p->source_w - p->origin_x));
    for (ptrdiff_t line = 0; line < lines; line++) {
        const float *from =
            p->source + ((band->n * p->source_h + band->line0 + line) * p->source_w + p->origin_x + before) *
                            p->source_pixel;
        for (ptrdiff_t d = 0; d < p->depth; d++) {
            dml__conv_zero(planes + d * plan->width, before);
            dml__conv_zero(planes + d * plan->width + end, plan->width - end);
        }
        if (end > before)
            dml__pack_transposed(from, p->source_pixel, (int)(end - before), (int)p->depth, (int)plan->width,
                                 planes + before);
        planes += p->depth * plan->width;
    }
}

/* The same for the taps of lines tap0 .. tap1 - 1 at some pixels of a line, (taps, depth, width). */
static void dml__planes_gather(const dml__planes_plan *plan, const dml__planes_band *band, ptrdiff_t y,
                               ptrdiff_t x0, ptrdiff_t tap0, ptrdiff_t tap1, ptrdiff_t width, float *to)
{
    const dml__conv_pass *p = plan->pass;
    for (ptrdiff_t tap = tap0 * p->taps_w; tap < tap1 * p->taps_w; tap++) {
        const ptrdiff_t line = p->origin_y + y * p->stride_h + tap / p->taps_w * p->dilation_h;
        const float *from = p->source + (band->n * p->source_h + line) * p->source_w * p->source_pixel;
        for (ptrdiff_t d = 0; d < p->depth; d++)
            for (ptrdiff_t i = 0; i < width; i++) {
                const ptrdiff_t x = p->origin_x + x0 + i + tap % p->taps_w * p->dilation_w;
                *to++ = x >= 0 && x < p->source_w ? from[x * p->source_pixel + d] : 0;
            }
    }
}

/* A tile's sums over the lines of taps that line y meets. */
static void dml__planes_tile(const dml__planes_plan *plan, const dml__planes_band *band, ptrdiff_t y,
                             ptrdiff_t x0, float *sums, dml__tile *tile, float *gathered)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t top = p->origin_y + y * p->stride_h, below = p->source_h - top;
    const ptrdiff_t clip0 = top >= 0 ? 0 : dml__quotient_up(-top, p->dilation_h),
                    clip1 = below <= 0 ? 0 : dml__quotient_up(below, p->dilation_h);
    ptrdiff_t a_at[DML__PLANES_KC], b_at[DML__PLANES_KC];
    tile->a_at = a_at;
    tile->b_at = b_at;
    tile->beta = p->beta;
    for (int i = 0; i < tile->rows; i++) tile->c[i] = sums + i * tile->columns;
    for (ptrdiff_t c = 0; c < plan->chunks; c++) {
        const ptrdiff_t tap0 = dml__larger(c * p->taps_h / plan->chunks, clip0);
        const ptrdiff_t tap1 = dml__smaller((c + 1) * p->taps_h / plan->chunks, clip1);
        if (tap1 <= tap0 && c > 0) continue;
        tile->blocks = 0;
        for (ptrdiff_t ty = tap0; ty < tap1; ty++)
            for (ptrdiff_t tx = 0; tx < p->taps_w; tx++) {
                const int block = tile->blocks++;
                a_at[block] = ty * p->weights_tap_h + tx * p->weights_tap_w;
                b_at[block] = band->planes
                                  ? (top + ty * p->dilation_h - band->line0) * p->depth * plan->width +
                                        tx * p->dilation_w
                                  : block * p->depth * tile->columns;
            }
        tile->b = band->planes ? band->planes + x0 : gathered;
        tile->b_step = band->planes ? plan->width : tile->columns;
        if (!band->planes) dml__planes_gather(plan, band, y, x0, tap0, tap1, tile->columns, gathered);
        plan->kernel->run(tile);
        tile->beta = 1;
    }
}

static void dml__planes_lines_run(const dml__planes_plan *plan, const dml__planes_band *band, float *gathered)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t full = plan->kernel->lanes * plan->kernel->vectors;
    float sums[DML__CONV_ROWS * DML__CONV_COLUMNS]; /* (columns of the pass, pixels) */
    dml__tile tile;
    dml__tile_init(&tile);
    tile.rows = (int)p->columns;
    tile.k = (int)p->depth;
    tile.a_step = p->weights_depth;
    for (int i = 0; i < tile.rows; i++) tile.a[i] = p->weights + i * p->weights_column;
    for (ptrdiff_t y = band->y0; y < band->y1; y++)
        for (ptrdiff_t x = 0; x < p->grid_w; x += full) {
            const ptrdiff_t count = dml__smaller(full, p->grid_w - x);
            float *to = p->target + band->n * p->target_image + y * p->target_line + x * p->target_pixel;
            tile.columns = (int)dml__round_up(count, plan->kernel->lanes);
            if (p->beta != 0) {
                dml__conv_zero(sums, tile.rows * tile.columns);
                dml__pack_transposed(to, p->target_pixel, (int)count, tile.rows, tile.columns, sums);
            }
            dml__planes_tile(plan, band, y, x, sums, &tile, gathered);
            dml__pack_transposed(sums, tile.columns, tile.rows, (int)count, (int)p->target_pixel, to);
        }
}

DML__NOINLINE static void dml__planes_on_stack(const dml__planes_plan *plan, const dml__planes_band *band)
{
    float gathered[DML__PLANES_KC * DML__CONV_COLUMNS];
    dml__planes_lines_run(plan, band, gathered);
}

static void dml__planes_task(void *argument, int task, int worker)
{
    const dml__planes_plan *plan = (const dml__planes_plan *)argument;
    const dml__conv_pass *p = plan->pass;
    float *planes = (float *)dml_pool_scratch(plan->pool, worker);
    dml__planes_band band;
    band.n = task / plan->bands;
    band.y0 = task % plan->bands * p->grid_h / plan->bands;
    band.y1 = (task % plan->bands + 1) * p->grid_h / plan->bands;
    band.line0 = dml__planes_first_line(p, band.y0);
    const size_t bytes = (size_t)dml__planes_floats(plan, plan->lines) * sizeof(float);
    band.planes = NULL;
    if (!planes || dml_pool_scratch_bytes(plan->pool).worker < bytes) {
        dml__planes_on_stack(plan, &band);
        return;
    }
    dml__planes_fill(plan, &band, planes);
    band.planes = planes;
    dml__planes_lines_run(plan, &band, NULL);
}

DML__LOCAL dml_scratch dml__conv_planes_scratch(const dml__conv_pass *pass)
{
    dml_scratch scratch = { 0, 0 };
    const dml__planes_plan plan = dml__planes_plan_of(NULL, pass, 1);
    scratch.worker = (size_t)dml__planes_floats(&plan, plan.lines) * sizeof(float);
    return scratch;
}

DML__LOCAL void dml__conv_planes_run(dml_pool *pool, const dml__conv_pass *pass)
{
    const dml__planes_plan plan = dml__planes_plan_of(pool, pass, dml_pool_threads(pool));
    const ptrdiff_t tasks = pass->batch * plan.bands;
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__planes_task, (void *)&plan);
}

#endif

/* ---- kernels/conv2d_weights.c ---- */

#ifndef DML_KERNELS_CONV2D_WEIGHTS_C
#define DML_KERNELS_CONV2D_WEIGHTS_C

/* ---- kernels/conv2d_weights.h ---- */

/* conv2d_weights.h: the weight gradient of a convolution. */
#ifndef DML_KERNELS_CONV2D_WEIGHTS_H
#define DML_KERNELS_CONV2D_WEIGHTS_H

/* dw[f, ty, tx, c] = beta dw + sum over n, y, x of dy(n, y, x)[f] * x(n, y stride_h + ty dilation_h - pad_h,
   ...)[c], with x 0 outside its image. */
typedef struct dml__wgrad {
    ptrdiff_t batch, out_h, out_w, filters, taps_h, taps_w, channels;
    ptrdiff_t stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    const float *x; /* (batch, in_h, in_w, x_pixel), of which `channels` count */
    ptrdiff_t in_h, in_w, x_pixel;
    const float *dy; /* (batch, out_h, out_w, dy_pixel), of which `filters` count */
    ptrdiff_t dy_pixel;
    float *dw; /* (filters, taps_h, taps_w, channels) */
    float beta;
} dml__wgrad;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. */
DML__LOCAL void dml__wgrad_run(dml_pool *pool, const dml__wgrad *job);

/* What a gradient of that size uses; the arrays aren't looked at. */
DML__LOCAL dml_scratch dml__wgrad_scratch(const dml__wgrad *job);

#endif

#include <string.h>

/* The micro-kernel's rows are filters, its columns the channels under a tap (or, where there are few, the
   channels under a line of taps), its k pixels of dy, and its blocks lines of them. The sum over pixels is
   cut into strips, each of which is one chain of multiply-adds: a strip of x is copied into panels of
   channels with the padding's zeros around it, one of dy into panels of filters. A small dw has too few tiles
   to share among threads: the strips then are shared out in chunks, whose partial sums are added up in order.
   Strips and chunks depend on the shape alone. */
#define DML__WGRAD_STRIP 256 /* pixels of dy */
#define DML__WGRAD_CHUNKS 16
#define DML__WGRAD_CHUNKED 65536  /* floats of a dw that is summed in chunks */
#define DML__WGRAD_PARTIAL 262144 /* floats of all partial sums, about */
#define DML__WGRAD_FILTERS 256    /* of dy that are packed at once */
#define DML__WGRAD_COPY 49152     /* floats of x that are copied at once, where that is a panel or more */
#define DML__WGRAD_COPY_MOST 262144
#define DML__WGRAD_STACK_TILES 8

typedef struct dml__wgrad_plan {
    const dml__wgrad *job;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t full, rows;       /* of a tile */
    ptrdiff_t row_tiles, patch; /* patch = taps_h taps_w channels: a line of dw */
    bool lines_of_taps;         /* a tile's columns run through (taps_w, channels), not channels */
    ptrdiff_t panels;           /* of channels; of whole lines 1 */
    ptrdiff_t lines, pieces;    /* a strip is that many lines of dy, or one of that many pieces of a line */
    ptrdiff_t strips, chunks;
    bool in_place;                      /* x is used where it is */
    ptrdiff_t step_h, step_w;           /* strides in the copy */
    ptrdiff_t copy_w, copy_lines;       /* pixels of a line of the copy, lines at most */
    ptrdiff_t panels_at_once;           /* that are copied */
    ptrdiff_t filters_at_once;          /* that are packed, in whole tiles */
    ptrdiff_t panel_shares, row_shares; /* tasks: chunks times these */
    float *partial;                     /* (chunks - 1, filters, patch), or NULL */
} dml__wgrad_plan;

static ptrdiff_t dml__wgrad_strip_w(const dml__wgrad_plan *plan)
{
    return dml__quotient_up(plan->job->out_w, plan->pieces);
}

static void dml__wgrad_plan_strips(dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t all = j->batch * j->out_h, dw = j->filters * plan->patch;
    plan->pieces = dml__quotient_up(j->out_w, DML__WGRAD_STRIP);
    plan->lines = dml__larger(1, DML__WGRAD_STRIP / j->out_w);
    plan->strips = dml__quotient_up(all, plan->lines) * plan->pieces;
    plan->chunks = 1;
    if (dw <= DML__WGRAD_CHUNKED)
        plan->chunks =
            dml__smaller(dml__smaller(DML__WGRAD_CHUNKS, plan->strips / 2), DML__WGRAD_PARTIAL / dw);
    plan->chunks = dml__larger(1, plan->chunks);
}

static void dml__wgrad_plan_copies(dml__wgrad_plan *plan)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t reach_h = (j->taps_h - 1) * j->dilation_h + 1,
                    reach_w = (j->taps_w - 1) * j->dilation_w + 1;
    const bool inside = j->pad_h == 0 && j->pad_w == 0;
    /* What one tap passes over need not be copied. */
    plan->step_h = j->taps_h == 1 ? 1 : j->stride_h;
    plan->step_w = j->taps_w == 1 ? 1 : j->stride_w;
    plan->copy_w = (dml__wgrad_strip_w(plan) - 1) * plan->step_w + reach_w;
    const ptrdiff_t images =
        dml__smaller(dml__smaller(plan->lines, j->batch), (plan->lines - 1) / j->out_h + 2);
    plan->copy_lines = (plan->lines - images) * plan->step_h + images * reach_h;
    if (plan->step_h > reach_h) plan->copy_lines = plan->lines * plan->step_h; /* a bound */
    /* Two or three tiles of filters are no reason to copy x. */
    plan->in_place =
        inside && !plan->lines_of_taps && j->channels % plan->kernel->lanes == 0 && plan->row_tiles < 4;
    const ptrdiff_t panel =
        plan->copy_lines * plan->copy_w * (plan->lines_of_taps ? j->channels : plan->full);
    plan->panels_at_once = dml__smaller(plan->panels, dml__larger(1, DML__WGRAD_COPY / panel));
    const ptrdiff_t parts = dml__quotient_up(plan->row_tiles * plan->rows, DML__WGRAD_FILTERS);
    plan->filters_at_once = dml__quotient_up(plan->row_tiles, parts) * plan->rows;
}

static void dml__wgrad_plan_shares(dml__wgrad_plan *plan, int threads)
{
    const dml__wgrad *j = plan->job;
    const double work =
        (double)j->batch * (double)(j->out_h * j->out_w) * (double)plan->patch * (double)j->filters;
    ptrdiff_t wanted = 1;
    plan->panel_shares = plan->row_shares = 1;
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK) wanted = 2 * threads;
    if (plan->chunks >= wanted) return;
    plan->panel_shares = dml__smaller(plan->panels, dml__quotient_up(wanted, plan->chunks));
    if (plan->chunks * plan->panel_shares < wanted)
        plan->row_shares =
            dml__smaller(plan->row_tiles, dml__quotient_up(wanted, plan->chunks * plan->panel_shares));
}

static dml__wgrad_plan dml__wgrad_plan_of(dml_pool *pool, const dml__wgrad *job, int threads)
{
    dml__wgrad_plan plan;
    memset(&plan, 0, sizeof plan);
    plan.job = job;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(dml__pool_machine(pool).isa);
    plan.full = plan.kernel->lanes * plan.kernel->vectors;
    plan.rows = plan.kernel->rows;
    plan.row_tiles = dml__quotient_up(job->filters, plan.rows);
    plan.patch = job->taps_h * job->taps_w * job->channels;
    plan.lines_of_taps = job->channels < plan.full && job->taps_w > 1 && job->dilation_w == 1;
    plan.panels = plan.lines_of_taps ? 1 : dml__quotient_up(job->channels, plan.full);
    dml__wgrad_plan_strips(&plan);
    dml__wgrad_plan_copies(&plan);
    dml__wgrad_plan_shares(&plan, threads);
    return plan;
}

static ptrdiff_t dml__wgrad_copy_floats(const dml__wgrad_plan *plan)
{
    const ptrdiff_t pixels = plan->copy_lines * plan->copy_w;
    if (plan->in_place) return 0;
    return plan->lines_of_taps ? pixels * plan->job->channels + plan->full /* a vector's overhang */
                               : pixels * plan->full * plan->panels_at_once;
}

static ptrdiff_t dml__wgrad_worker_floats(const dml__wgrad_plan *plan)
{
    return dml__round_up(dml__wgrad_copy_floats(plan), 16) + DML__WGRAD_STRIP * plan->filters_at_once;
}

/* Pixels x0 .. x0 + w - 1 of lines line0 .. of dy, all images' lines counted through. */
typedef struct dml__wgrad_strip {
    ptrdiff_t line0, lines, x0, w;
} dml__wgrad_strip;

static dml__wgrad_strip dml__wgrad_strip_at(const dml__wgrad_plan *plan, ptrdiff_t index)
{
    const dml__wgrad *j = plan->job;
    dml__wgrad_strip strip;
    const ptrdiff_t piece = index % plan->pieces;
    strip.line0 = index / plan->pieces * plan->lines;
    strip.lines = dml__smaller(plan->lines, j->batch * j->out_h - strip.line0);
    strip.x0 = piece * j->out_w / plan->pieces;
    strip.w = (piece + 1) * j->out_w / plan->pieces - strip.x0;
    return strip;
}

/* Some columns of dw: those from `first` on of the line `tap_h` of its taps. */
typedef struct dml__wgrad_columns {
    ptrdiff_t tap_h, first;
    int count;
} dml__wgrad_columns;

/* A panel's tiles: of each line of taps so many. */
static ptrdiff_t dml__wgrad_tiles_across(const dml__wgrad_plan *plan)
{
    return plan->lines_of_taps ? dml__quotient_up(plan->job->taps_w * plan->job->channels, plan->full)
                               : plan->job->taps_w;
}

static dml__wgrad_columns dml__wgrad_columns_at(const dml__wgrad_plan *plan, ptrdiff_t panel, ptrdiff_t tile)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t across = dml__wgrad_tiles_across(plan), at = tile % across;
    dml__wgrad_columns columns;
    columns.tap_h = tile / across;
    if (plan->lines_of_taps) {
        columns.first = at * plan->full;
        columns.count = (int)dml__smaller(plan->full, j->taps_w * j->channels - columns.first);
    } else {
        columns.first = at * j->channels + panel * plan->full;
        columns.count = (int)dml__smaller(plan->full, j->channels - panel * plan->full);
    }
    return columns;
}

/* Where a filter's weight at the first of the columns lies, in dw or in partial sums. */
static float *dml__wgrad_element(const dml__wgrad_plan *plan, float *dw, ptrdiff_t filter,
                                 const dml__wgrad_columns *columns)
{
    return dw + filter * plan->patch + columns->tap_h * plan->job->taps_w * plan->job->channels +
           columns->first;
}

/* --- strips of x and dy --- */

/* A strip of x: where its panels lie, and where in them the first taps of the lines of dy are. */
typedef struct dml__wgrad_view {
    const float *base;
    ptrdiff_t panel_step, line_step, pixel_step, dilation_step; /* dilation_step: of a tap to the right */
    ptrdiff_t at[DML__WGRAD_STRIP];                             /* (strip.lines) */
} dml__wgrad_view;

/* Copies pixels of a line of x into line `line` of the panels, each (copy_lines, copy_w, its width). */
static void dml__wgrad_copy_line(const dml__wgrad_plan *plan, ptrdiff_t n, ptrdiff_t y, ptrdiff_t x,
                                 ptrdiff_t pixels, ptrdiff_t c0, ptrdiff_t channels, ptrdiff_t panel_step,
                                 float *copy, ptrdiff_t line_to)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t step = plan->step_w == j->stride_w ? 1 : j->stride_w; /* between pixels that are copied */
    for (ptrdiff_t c = 0; c < channels; c += plan->full, copy += panel_step) {
        const ptrdiff_t count = dml__smaller(plan->full, channels - c);
        const ptrdiff_t width = plan->lines_of_taps ? count : dml__round_up(count, plan->kernel->lanes);
        float *to = copy + line_to * plan->copy_w * width;
        if (y < 0 || y >= j->in_h) {
            dml__conv_zero(to, pixels * width);
            continue;
        }
        const float *line = j->x + (n * j->in_h + y) * j->in_w * j->x_pixel + c0 + c;
        if (step == 1 && count == j->x_pixel && width == count) { /* pixels lie side by side in both */
            const ptrdiff_t before = x >= 0 ? 0 : dml__smaller(-x, pixels);
            const ptrdiff_t end = dml__larger(before, dml__smaller(pixels, j->in_w - x));
            dml__conv_zero(to, before * width);
            dml__conv_copy(to + before * width, line + (x + before) * width, (end - before) * width);
            dml__conv_zero(to + end * width, (pixels - end) * width);
            continue;
        }
        for (ptrdiff_t i = 0, at = x; i < pixels; i++, at += step) {
            float *pixel = to + i * width;
            if (at < 0 || at >= j->in_w) {
                dml__conv_zero(pixel, width);
            } else {
                const float *from = line + at * j->x_pixel;
                if (count == 16)
                    memcpy(pixel, from, 16 * sizeof *pixel);
                else
                    dml__conv_copy(pixel, from, count);
                if (count < width) dml__conv_zero(pixel + count, width - count);
            }
        }
    }
}

/* Copies panels `first` .. of a strip of x, or looks at it in place. */
static void dml__wgrad_view_strip(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t first,
                                  ptrdiff_t panels, float *copy, dml__wgrad_view *view)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t reach_h = (j->taps_h - 1) * j->dilation_h + 1;
    const ptrdiff_t c0 = first * plan->full, channels = dml__smaller(panels * plan->full, j->channels - c0);
    const ptrdiff_t x = strip->x0 * j->stride_w - j->pad_w;
    if (plan->in_place) {
        view->base = j->x + c0 + x * j->x_pixel;
        view->panel_step = plan->full;
        view->line_step = j->in_w * j->x_pixel;
        view->pixel_step = j->stride_w * j->x_pixel;
        view->dilation_step = j->dilation_w * j->x_pixel;
        for (ptrdiff_t l = 0; l < strip->lines; l++) {
            const ptrdiff_t line = strip->line0 + l;
            view->at[l] = (line / j->out_h * j->in_h + line % j->out_h * j->stride_h) * view->line_step;
        }
        return;
    }
    /* The last panel may be narrower than the others. */
    const ptrdiff_t width = plan->lines_of_taps ? j->channels : plan->full;
    const ptrdiff_t step = plan->step_h == j->stride_h ? 1 : j->stride_h;
    view->base = copy;
    view->panel_step = plan->copy_lines * plan->copy_w * width;
    view->line_step = plan->copy_w;
    view->pixel_step = plan->step_w;
    view->dilation_step = j->dilation_w;
    const ptrdiff_t pixels = (strip->w - 1) * plan->step_w + (j->taps_w - 1) * j->dilation_w + 1;
    ptrdiff_t copied = 0;
    for (ptrdiff_t l = 0; l < strip->lines;) {
        const ptrdiff_t n = (strip->line0 + l) / j->out_h, y0 = (strip->line0 + l) % j->out_h;
        const ptrdiff_t lines = dml__smaller(strip->lines - l, j->out_h - y0);
        const ptrdiff_t count = (lines - 1) * plan->step_h + reach_h;
        for (ptrdiff_t i = 0; i < lines; i++) view->at[l + i] = copied + i * plan->step_h;
        for (ptrdiff_t i = 0; i < count; i++)
            dml__wgrad_copy_line(plan, n, y0 * j->stride_h - j->pad_h + i * step, x, pixels, c0, channels,
                                 view->panel_step, copy, copied + i);
        copied += count;
        l += lines;
    }
}

/* Tiles t0 .. t1 - 1 of filters, each even shares of them all. */
static ptrdiff_t dml__wgrad_row(const dml__wgrad_plan *plan, ptrdiff_t tile)
{
    return tile * plan->job->filters / plan->row_tiles;
}

/* Where few cache lines hold all filters of a pixel, or few tiles use them, packing costs more than it saves.
 */
static bool dml__wgrad_packs_dy(const dml__wgrad_plan *plan)
{
    const ptrdiff_t uses = plan->panels_at_once * plan->job->taps_h * dml__wgrad_tiles_across(plan);
    return uses >= 3 && plan->job->dy_pixel > 32;
}

/* Packs a strip of dy as panels of tiles, (pixels, rows of the tile) one behind the other. */
static void dml__wgrad_pack_dy(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t tile0,
                               ptrdiff_t tile1, float *out)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t pixels = strip->lines * strip->w;
    const float *from = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    for (ptrdiff_t t = tile0; t < tile1; t++) {
        const ptrdiff_t row = dml__wgrad_row(plan, t), rows = dml__wgrad_row(plan, t + 1) - row;
        const float *at = from + row;
        if (row + 8 <= j->filters &&
            rows < 8) { /* what is copied too much is overwritten by the next pixel */
            for (ptrdiff_t i = 1; i < pixels; i++, at += j->dy_pixel, out += rows)
                memcpy(out, at, 8 * sizeof *out);
            dml__conv_copy(out, at, rows);
            out += rows;
        } else {
            for (ptrdiff_t i = 0; i < pixels; i++, at += j->dy_pixel, out += rows)
                dml__conv_copy(out, at, rows);
        }
    }
}

/* --- tasks --- */

typedef struct dml__wgrad_part {
    ptrdiff_t chunk, panel0, panel1, tile0, tile1;
    float *dw; /* (filters, patch): the caller's, or partial sums */
} dml__wgrad_part;

/* One strip's share of some panels' and tiles' dw; dy is packed, or NULL. */
static void dml__wgrad_multiply(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                const dml__wgrad_view *view, const dml__wgrad_part *part, const float *packed,
                                float beta)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t tiles = j->taps_h * dml__wgrad_tiles_across(plan), pixels = strip->lines * strip->w;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.beta = beta;
    tile.k = (int)strip->w;
    tile.blocks = (int)strip->lines;
    for (ptrdiff_t panel = part->panel0; panel < part->panel1; panel++) {
        dml__wgrad_columns next = dml__wgrad_columns_at(plan, panel, 0);
        const ptrdiff_t width = plan->in_place        ? 1
                                : plan->lines_of_taps ? j->channels
                                                      : dml__round_up(next.count, plan->kernel->lanes);
        tile.b_step = view->pixel_step * width;
        for (ptrdiff_t l = 0; l < strip->lines; l++)
            b_at[l] = view->at[l] * (plan->in_place ? 1 : view->line_step * width);
        for (ptrdiff_t t = part->tile0; t < part->tile1; t++) {
            const ptrdiff_t row = dml__wgrad_row(plan, t);
            tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
            const float *a = packed;
            tile.a_step = tile.rows;
            tile.a_packed = packed != NULL;
            if (packed)
                a += (row - dml__wgrad_row(plan, part->tile0)) * pixels;
            else
                a = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel + row,
                tile.a_step = j->dy_pixel;
            for (int i = 0; i < tile.rows; i++) tile.a[i] = a + i;
            const ptrdiff_t a_line = packed ? strip->w * tile.a_step : j->out_w * tile.a_step;
            for (ptrdiff_t l = 0; l < strip->lines; l++) a_at[l] = l * a_line;
            for (ptrdiff_t at = 0; at < tiles; at++) {
                const dml__wgrad_columns columns = next;
                float *c = dml__wgrad_element(plan, part->dw, row, &columns);
                for (int i = 0; i < tile.rows; i++) tile.c[i] = c + i * plan->patch;
                /* The tiles of a large dw are far from each other, and come from memory. */
                next = dml__wgrad_columns_at(plan, panel, at + 1 < tiles ? at + 1 : 0);
                if (at + 1 < tiles || t + 1 < part->tile1) {
                    const ptrdiff_t next_row = at + 1 < tiles ? row : row + tile.rows;
                    const float *ahead = dml__wgrad_element(plan, part->dw, next_row, &next);
                    for (int i = 0; i < tile.rows && next_row + i < j->filters; i++)
                        DML__PREFETCH(ahead + i * plan->patch);
                }
                tile.columns = (int)dml__round_up(columns.count, plan->kernel->lanes);
                tile.b = view->base + (panel - part->panel0) * view->panel_step +
                         columns.tap_h * j->dilation_h * view->line_step * width;
                tile.b += plan->lines_of_taps ? columns.first
                                              : columns.first / j->channels * view->dilation_step * width;
                dml__conv_tile(plan->kernel, &tile, columns.count);
            }
        }
    }
}

static void dml__wgrad_part_run(const dml__wgrad_plan *plan, const dml__wgrad_part *part, float *scratch)
{
    const dml__wgrad *j = plan->job;
    float *packed = scratch + dml__round_up(dml__wgrad_copy_floats(plan), 16);
    const ptrdiff_t row_tiles = plan->filters_at_once / plan->rows;
    const bool pack = dml__wgrad_packs_dy(plan);
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    dml__wgrad_view view;
    float beta = part->chunk ? 0 : j->beta;
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_part some = *part;
        for (some.panel0 = part->panel0; some.panel0 < part->panel1; some.panel0 = some.panel1) {
            some.panel1 = dml__smaller(some.panel0 + plan->panels_at_once, part->panel1);
            dml__wgrad_view_strip(plan, &strip, some.panel0, some.panel1 - some.panel0, scratch, &view);
            for (some.tile0 = part->tile0; some.tile0 < part->tile1; some.tile0 = some.tile1) {
                some.tile1 = dml__smaller(some.tile0 + row_tiles, part->tile1);
                if (pack) dml__wgrad_pack_dy(plan, &strip, some.tile0, some.tile1, packed);
                dml__wgrad_multiply(plan, &strip, &view, &some, pack ? packed : NULL, beta);
            }
        }
    }
}

/* The columns under the pixels of a strip, (pixels, width): what is computed on the stack gathers them. */
static void dml__wgrad_gather(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                              const dml__wgrad_columns *columns, ptrdiff_t width, float *to)
{
    const dml__wgrad *j = plan->job;
    for (ptrdiff_t l = 0; l < strip->lines; l++) {
        const ptrdiff_t n = (strip->line0 + l) / j->out_h;
        const ptrdiff_t y =
            (strip->line0 + l) % j->out_h * j->stride_h - j->pad_h + columns->tap_h * j->dilation_h;
        for (ptrdiff_t i = 0; i < strip->w; i++, to += width) {
            const ptrdiff_t x0 = (strip->x0 + i) * j->stride_w - j->pad_w;
            for (ptrdiff_t done = 0; done < columns->count;) {
                const ptrdiff_t tap = (columns->first + done) / j->channels,
                                c = (columns->first + done) % j->channels;
                const ptrdiff_t count = dml__smaller(j->channels - c, columns->count - done);
                const ptrdiff_t x = x0 + tap * j->dilation_w;
                if (y < 0 || y >= j->in_h || x < 0 || x >= j->in_w)
                    dml__conv_zero(to + done, count);
                else
                    dml__conv_copy(to + done, j->x + ((n * j->in_h + y) * j->in_w + x) * j->x_pixel + c,
                                   count);
                done += count;
            }
            dml__conv_zero(to + columns->count, width - columns->count);
        }
    }
}

/* One chunk's sums of one tile of columns for some tiles of filters, with what the stack has room for. */
typedef struct dml__wgrad_piece {
    ptrdiff_t panel, at, tile0, tile1, chunk;
    float *c; /* (filters of the tiles, ldc), from the first column on */
    ptrdiff_t ldc;
} dml__wgrad_piece;

DML__NOINLINE static void dml__wgrad_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_piece *piece)
{
    const dml__wgrad *j = plan->job;
    const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece->panel, piece->at);
    const ptrdiff_t width = dml__round_up(columns.count, plan->kernel->lanes);
    const ptrdiff_t end = (piece->chunk + 1) * plan->strips / plan->chunks;
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece->tile0);
    float patches[DML__WGRAD_STRIP * DML__CONV_COLUMNS]; /* (pixels, width) */
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.a_step = j->dy_pixel;
    tile.b = patches;
    tile.b_step = width;
    tile.columns = (int)width;
    tile.beta = piece->chunk ? 0 : j->beta;
    for (ptrdiff_t s = piece->chunk * plan->strips / plan->chunks; s < end; s++, tile.beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_gather(plan, &strip, &columns, width, patches);
        tile.blocks = (int)strip.lines;
        tile.k = (int)strip.w;
        for (ptrdiff_t l = 0; l < strip.lines; l++) {
            a_at[l] = l * j->out_w * j->dy_pixel;
            b_at[l] = l * strip.w * width;
        }
        for (ptrdiff_t t = piece->tile0; t < piece->tile1; t++) {
            const ptrdiff_t row = dml__wgrad_row(plan, t);
            tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
            for (int i = 0; i < tile.rows; i++) {
                tile.a[i] = j->dy + (strip.line0 * j->out_w + strip.x0) * j->dy_pixel + row + i;
                tile.c[i] = piece->c + (row + i - row0) * piece->ldc;
            }
            dml__conv_tile(plan->kernel, &tile, columns.count);
        }
    }
}

/* The same of all chunks. */
static void dml__wgrad_stack_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const dml__wgrad *j = plan->job;
    const ptrdiff_t tiles = j->taps_h * dml__wgrad_tiles_across(plan), groups = plan->row_shares;
    const ptrdiff_t group = task % groups, column_tile = task / groups;
    float partial[DML__WGRAD_STACK_TILES * DML__CONV_ROWS * DML__CONV_COLUMNS]; /* (filters, columns) */
    dml__wgrad_piece piece;
    (void)worker;
    piece.panel = column_tile / tiles, piece.at = column_tile % tiles;
    piece.tile0 = group * plan->row_tiles / groups, piece.tile1 = (group + 1) * plan->row_tiles / groups;
    const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece.panel, piece.at);
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece.tile0), row1 = dml__wgrad_row(plan, piece.tile1);
    float *dw = dml__wgrad_element(plan, j->dw, row0, &columns);
    for (piece.chunk = 0; piece.chunk < plan->chunks; piece.chunk++) {
        piece.c = piece.chunk ? partial : dw;
        piece.ldc = piece.chunk ? columns.count : plan->patch;
        dml__wgrad_on_stack(plan, &piece);
        for (ptrdiff_t row = 0; piece.chunk && row < row1 - row0; row++)
            for (int c = 0; c < columns.count; c++)
                dw[row * plan->patch + c] += partial[row * columns.count + c];
    }
}

static void dml__wgrad_part_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_part *part)
{
    const ptrdiff_t tiles = plan->job->taps_h * dml__wgrad_tiles_across(plan);
    dml__wgrad_piece piece;
    piece.tile0 = part->tile0, piece.tile1 = part->tile1;
    piece.chunk = part->chunk;
    piece.ldc = plan->patch;
    for (piece.panel = part->panel0; piece.panel < part->panel1; piece.panel++)
        for (piece.at = 0; piece.at < tiles; piece.at++) {
            const dml__wgrad_columns columns = dml__wgrad_columns_at(plan, piece.panel, piece.at);
            piece.c = dml__wgrad_element(plan, part->dw, dml__wgrad_row(plan, piece.tile0), &columns);
            dml__wgrad_on_stack(plan, &piece);
        }
}

static void dml__wgrad_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const ptrdiff_t row_share = task % plan->row_shares, rest = task / plan->row_shares;
    const ptrdiff_t panel_share = rest % plan->panel_shares;
    dml__wgrad_part part;
    part.chunk = rest / plan->panel_shares;
    part.panel0 = panel_share * plan->panels / plan->panel_shares;
    part.panel1 = (panel_share + 1) * plan->panels / plan->panel_shares;
    part.tile0 = row_share * plan->row_tiles / plan->row_shares;
    part.tile1 = (row_share + 1) * plan->row_tiles / plan->row_shares;
    part.dw =
        part.chunk ? plan->partial + (part.chunk - 1) * plan->job->filters * plan->patch : plan->job->dw;
    float *scratch = (float *)dml_pool_scratch(plan->pool, worker);
    if (scratch)
        dml__wgrad_part_run(plan, &part, scratch);
    else /* a host that numbers its workers wrongly */
        dml__wgrad_part_on_stack(plan, &part);
}

/* Adds the partial sums of a filter. */
static void dml__wgrad_add_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    float *dw = plan->job->dw + task * plan->patch;
    (void)worker;
    for (ptrdiff_t chunk = 1; chunk < plan->chunks; chunk++) {
        const float *partial = plan->partial + ((chunk - 1) * plan->job->filters + task) * plan->patch;
        for (ptrdiff_t i = 0; i < plan->patch; i++) dw[i] += partial[i];
    }
}

static size_t dml__wgrad_partial_bytes(const dml__wgrad_plan *plan)
{
    return (size_t)((plan->chunks - 1) * plan->job->filters * plan->patch) * sizeof(float);
}

DML__LOCAL dml_scratch dml__wgrad_scratch(const dml__wgrad *job)
{
    dml_scratch scratch = { 0, 0 };
    if (job->batch < 1) return scratch;
    const dml__wgrad_plan plan = dml__wgrad_plan_of(NULL, job, 1);
    if (dml__wgrad_copy_floats(&plan) > DML__WGRAD_COPY_MOST) return scratch;
    scratch.worker = (size_t)dml__wgrad_worker_floats(&plan) * sizeof(float);
    scratch.shared = dml__wgrad_partial_bytes(&plan);
    return scratch;
}

DML__LOCAL void dml__wgrad_run(dml_pool *pool, const dml__wgrad *job)
{
    dml__wgrad_plan plan = dml__wgrad_plan_of(pool, job, dml_pool_threads(pool));
    if (job->batch < 1) {
        for (ptrdiff_t i = 0; i < job->filters * plan.patch; i++)
            job->dw[i] = job->beta == 0 ? 0 : job->beta * job->dw[i];
        return;
    }
    const dml_scratch scratch = dml_pool_scratch_bytes(pool);
    if (scratch.worker < (size_t)dml__wgrad_worker_floats(&plan) * sizeof(float) ||
        scratch.shared < dml__wgrad_partial_bytes(&plan)) {
        const ptrdiff_t column_tiles = plan.panels * job->taps_h * dml__wgrad_tiles_across(&plan);
        plan.row_shares = dml__quotient_up(plan.row_tiles, DML__WGRAD_STACK_TILES);
        dml_pool_run(pool, (int)(column_tiles * plan.row_shares), dml__wgrad_stack_task, &plan);
        return;
    }
    plan.partial = (float *)dml_pool_shared_scratch(pool);
    const ptrdiff_t tasks = plan.chunks * plan.panel_shares * plan.row_shares;
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__wgrad_task, &plan);
    if (plan.chunks > 1) dml_pool_run(pool, (int)job->filters, dml__wgrad_add_task, &plan);
}

#endif

/* ---- kernels/conv2d_depthwise.c ---- */

#ifndef DML_KERNELS_CONV2D_DEPTHWISE_C
#define DML_KERNELS_CONV2D_DEPTHWISE_C

/* ---- kernels/conv2d_depthwise.h ---- */

/* conv2d_depthwise.h: convolutions in which every channel has a kernel of its own. */
#ifndef DML_KERNELS_CONV2D_DEPTHWISE_H
#define DML_KERNELS_CONV2D_DEPTHWISE_H

#define DML__DEPTHWISE_TAPS 128 /* kernels of more are left to the loop over groups */

/* A pass over `columns` channels at once: pixels of the source have source_pixel of them, a tap's weight of
   channel j lies weights_column behind that of channel j - 1, and `depth`, which is 1, counts for nothing. */
DML__LOCAL void dml__depthwise_pass(dml_pool *pool, const dml__conv_pass *pass);

/* The gradient of the weights (channels, taps_h, taps_w), for `channels` = `filters` channels at once. */
DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job);

#endif

#include <string.h>

/* Vectors lie along channels. Some pixels of the result beside each other are in registers, and with each
   line of taps in turn also its weights: each vector of the source is loaded once for all of the pixels and
   taps that it belongs to. The gradient of the weights is the same loop, in which pixels of dy stay and the
   taps' sums come and go. So what lies in the padding is left out by one comparison a vector of the source.
   Nothing is copied but the weights, which are transposed on the stack, and the channels behind the last
   whole vector: those of the result always, those of the source where the array ends. */

#define DML__DEPTHWISE_WEIGHTS 9216 /* floats of the transposed weights, or of their gradient */
#define DML__DEPTHWISE_IMAGE 1024   /* pixels for which they are transposed once, about */
#define DML__DEPTHWISE_SERIAL_WORK 100000.0
#define DML__DEPTHWISE_PIXELS 7 /* the sides of images are often multiples of it: 224, 112, ... */
#define DML__DEPTHWISE_LINE 16  /* floats of a line of the caches */

/* The channels behind the last whole vector: floats of the copy of the source, and pixels of the result that
   come of it at once. */
#define DML__DEPTHWISE_COPY 4096
#define DML__DEPTHWISE_COPY_PIXELS 84
#define DML__DEPTHWISE_LANES 8 /* the most */

/* Arrays of more level-2 caches' size than that come from too far for what a processor looks ahead by itself;
   for smaller ones asking costs a sixth of the time. */
#define DML__DEPTHWISE_NEAR 16

typedef enum dml__depthwise_role {
    DML__DEPTHWISE_RESULT,  /* of weights and a source: the forward result, or the gradient of the input */
    DML__DEPTHWISE_GRADIENT /* of the weights */
} dml__depthwise_role;

/* A line of the grid, and those channels of it that a task computes. */
typedef struct dml__depthwise_row {
    ptrdiff_t channels, grid_w;
    const float *source_end; /* of the whole array */
    const float *source; /* where the first tap of the first line of taps in the image would find pixel 0 */
    ptrdiff_t source_pixel, source_w, origin; /* origin: of pixel 0, negative in the padding */
    ptrdiff_t tap_lines, taps, line;          /* line: from one tap's line of the source to the next one's */
    ptrdiff_t stride, dilation;
    bool ask;                     /* for what comes next */
    ptrdiff_t source_line, ahead; /* ahead: from `source` to the first line that nothing has come from yet */
    float *weights;               /* (tap_lines, taps, width), or the gradient's sums */
    ptrdiff_t width;
    float *target; /* (grid_w, target_pixel), or dy, which is only read */
    ptrdiff_t target_pixel, target_line;
    const float *bias; /* (channels), or NULL */
    float beta;
    bool relu;
} dml__depthwise_row;

/* Asks for `count` pixels of `lines` lines, for the channels of a line of the caches. A macro, since gcc
   drops calls of functions that do nothing else. */
#define DML__DEPTHWISE_ASK(at, lines, line, count, step)                                                     \
    {                                                                                                        \
        const float *ask = at;                                                                               \
        for (int l = 0; l < (lines); l++, ask += line) {                                                     \
            DML__UNROLL                                                                                      \
            for (int i = 0; i < (count); i++) DML__PREFETCH(ask + i * (step));                               \
        }                                                                                                    \
    }

/* Bias is where a sum begins. */
#define DML__DEPTHWISE_FINISH(isa, row, to, sum)                                                             \
    {                                                                                                        \
        if ((row)->beta != 0)                                                                                \
            sum = dml__##isa##_fma(dml__##isa##_splat((row)->beta), dml__##isa##_load(to), sum);             \
        if ((row)->relu) sum = dml__##isa##_relu(sum);                                                       \
        dml__##isa##_store(to, sum);                                                                         \
    }

#define DML__DEFINE_DEPTHWISE_PIXEL(isa, target_isa, vector, lanes)                                          \
    /* Any taps, strides and dilations: pixel by pixel. */                                                   \
    target_isa static void dml__depthwise_pixels_##isa(const dml__depthwise_row *row, ptrdiff_t c0,          \
                                                       dml__depthwise_role role)                             \
    {                                                                                                        \
        const ptrdiff_t tap = row->dilation * row->source_pixel, width = row->width;                         \
        for (ptrdiff_t x = 0; x < row->grid_w; x++) {                                                        \
            const ptrdiff_t at = row->origin + x * row->stride;                                              \
            const ptrdiff_t t0 = at >= 0 ? 0 : (row->dilation - 1 - at) / row->dilation;                     \
            const ptrdiff_t inside = at < row->source_w ? (row->source_w - 1 - at) / row->dilation + 1 : 0;  \
            const ptrdiff_t t1 = dml__smaller(row->taps, inside);                                            \
            for (ptrdiff_t c = c0; c + lanes <= row->channels; c += lanes) {                                 \
                const float *from = row->source + x * row->stride * row->source_pixel + c;                   \
                float *weights = row->weights + c, *to = row->target + x * row->target_pixel + c;            \
                vector pixel = dml__##isa##_splat(0);                                                        \
                if (role == DML__DEPTHWISE_GRADIENT)                                                         \
                    pixel = dml__##isa##_load(to);                                                           \
                else if (row->bias)                                                                          \
                    pixel = dml__##isa##_load(row->bias + c);                                                \
                for (ptrdiff_t l = 0; l < row->tap_lines;                                                    \
                     l++, from += row->line, weights += row->taps * width)                                   \
                    for (ptrdiff_t t = t0; t < t1; t++) {                                                    \
                        const vector value = dml__##isa##_load(from + t * tap);                              \
                        const vector weight = dml__##isa##_load(weights + t * width);                        \
                        if (role == DML__DEPTHWISE_GRADIENT)                                                 \
                            dml__##isa##_store(weights + t * width, dml__##isa##_fma(value, pixel, weight)); \
                        else                                                                                 \
                            pixel = dml__##isa##_fma(value, weight, pixel);                                  \
                    }                                                                                        \
                if (role == DML__DEPTHWISE_RESULT) DML__DEPTHWISE_FINISH(isa, row, to, pixel)                \
            }                                                                                                \
        }                                                                                                    \
    }

/* Which loop a row takes, where there is one for its taps and stride; else 0. */
static inline ptrdiff_t dml__depthwise_code(const dml__depthwise_row *row)
{
    const bool tiled = row->dilation == 1 && row->stride <= 2 && row->origin > -row->taps;
    return tiled ? row->taps * 4 + row->stride : 0;
}

#define DML__DEFINE_DEPTHWISE(isa, target_isa, vector, lanes)                                                \
    DML__DEFINE_DEPTHWISE_PIXEL(isa, target_isa, vector, lanes)                                              \
    target_isa DML__INLINE void dml__depthwise_tiles_##isa(const dml__depthwise_row *line, const int taps,   \
                                                           const int stride, const int pixels,               \
                                                           const dml__depthwise_role role)                   \
    {                                                                                                        \
        const dml__depthwise_row row = *line; /* which no store can change */                                \
        for (ptrdiff_t x = 0; x < row.grid_w; x += pixels) {                                                 \
            const ptrdiff_t begin = -row.origin - x * stride, end = row.source_w + begin;                    \
            const ptrdiff_t count = row.grid_w - x;                                                          \
            for (ptrdiff_t c = 0; c + lanes <= row.channels; c += lanes) {                                   \
                vector pixel[DML__DEPTHWISE_PIXELS], tap[5];                                                 \
                const float *from = row.source + x * stride * row.source_pixel + c;                          \
                float *weights = row.weights + c, *to = row.target + x * row.target_pixel + c;               \
                vector first = dml__##isa##_splat(0);                                                        \
                if (row.ask && c % DML__DEPTHWISE_LINE == 0) {                                               \
                    DML__DEPTHWISE_ASK(from + row.ahead, stride, row.source_line, pixels * stride,           \
                                       row.source_pixel)                                                     \
                    DML__DEPTHWISE_ASK(to + row.target_line, 1, 0, pixels, row.target_pixel)                 \
                }                                                                                            \
                if (role == DML__DEPTHWISE_RESULT && row.bias) first = dml__##isa##_load(row.bias + c);      \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) {                                                           \
                    pixel[p] = first;                                                                        \
                    if (role == DML__DEPTHWISE_GRADIENT && p < count)                                        \
                        pixel[p] = dml__##isa##_load(to + p * row.target_pixel);                             \
                }                                                                                            \
                for (ptrdiff_t l = row.tap_lines; l > 0;                                                     \
                     l--, from += row.line, weights += taps * row.width) {                                   \
                    DML__UNROLL                                                                              \
                    for (int t = 0; t < taps; t++) tap[t] = dml__##isa##_load(weights + t * row.width);      \
                    DML__UNROLL                                                                              \
                    for (int i = 0; i < (pixels - 1) * stride + taps; i++) {                                 \
                        if ((i < taps - 1 && i < begin) || i >= end) continue;                               \
                        const vector value = dml__##isa##_load(from + i * row.source_pixel);                 \
                        DML__UNROLL                                                                          \
                        for (int t = 0; t < taps; t++) {                                                     \
                            const int p = (i - t) / stride;                                                  \
                            if (i < t || (i - t) % stride || p >= pixels) continue;                          \
                            if (role == DML__DEPTHWISE_GRADIENT)                                             \
                                tap[t] = dml__##isa##_fma(value, pixel[p], tap[t]);                          \
                            else                                                                             \
                                pixel[p] = dml__##isa##_fma(value, tap[t], pixel[p]);                        \
                        }                                                                                    \
                    }                                                                                        \
                    if (role == DML__DEPTHWISE_GRADIENT) {                                                   \
                        DML__UNROLL                                                                          \
                        for (int t = 0; t < taps; t++) dml__##isa##_store(weights + t * row.width, tap[t]);  \
                    }                                                                                        \
                }                                                                                            \
                if (role == DML__DEPTHWISE_GRADIENT) continue;                                               \
                DML__UNROLL                                                                                  \
                for (int p = 0; p < pixels; p++) {                                                           \
                    if (p >= count) continue;                                                                \
                    DML__DEPTHWISE_FINISH(isa, &row, to + p * row.target_pixel, pixel[p])                    \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    target_isa static void dml__depthwise_result_##isa(const dml__depthwise_row *row)                        \
    {                                                                                                        \
        switch (dml__depthwise_code(row)) {                                                                  \
        case 3 * 4 + 1: dml__depthwise_tiles_##isa(row, 3, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 3 * 4 + 2: dml__depthwise_tiles_##isa(row, 3, 2, 7, DML__DEPTHWISE_RESULT); break;              \
        case 5 * 4 + 1: dml__depthwise_tiles_##isa(row, 5, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 5 * 4 + 2: dml__depthwise_tiles_##isa(row, 5, 2, 6, DML__DEPTHWISE_RESULT); break;              \
        case 1 * 4 + 1: dml__depthwise_tiles_##isa(row, 1, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        case 2 * 4 + 1: dml__depthwise_tiles_##isa(row, 2, 1, 7, DML__DEPTHWISE_RESULT); break;              \
        default: dml__depthwise_pixels_##isa(row, 0, DML__DEPTHWISE_RESULT); break;                          \
        }                                                                                                    \
    }                                                                                                        \
    target_isa static void dml__depthwise_gradient_##isa(const dml__depthwise_row *row)                      \
    {                                                                                                        \
        switch (dml__depthwise_code(row)) {                                                                  \
        case 3 * 4 + 1: dml__depthwise_tiles_##isa(row, 3, 1, 7, DML__DEPTHWISE_GRADIENT); break;            \
        case 3 * 4 + 2: dml__depthwise_tiles_##isa(row, 3, 2, 7, DML__DEPTHWISE_GRADIENT); break;            \
        case 5 * 4 + 1: dml__depthwise_tiles_##isa(row, 5, 1, 7, DML__DEPTHWISE_GRADIENT); break;            \
        case 5 * 4 + 2: dml__depthwise_tiles_##isa(row, 5, 2, 6, DML__DEPTHWISE_GRADIENT); break;            \
        default: dml__depthwise_pixels_##isa(row, 0, DML__DEPTHWISE_GRADIENT); break;                        \
        }                                                                                                    \
    }

DML__DEFINE_DEPTHWISE_PIXEL(plain, , dml__v4, 4)
#if defined(DML__HAS_AVX2)
DML__DEFINE_DEPTHWISE(avx2, DML__AVX2, __m256, 8)
#endif
#if defined(__aarch64__)
DML__DEFINE_DEPTHWISE(neon, , float32x4_t, 4)
#endif

/* Vectors of one, for windows on the source that are too large to copy. */
#define dml__one_load(from) (*(from))
#define dml__one_store(to, value) (*(to) = (value))
#define dml__one_splat(x) (x)
#define dml__one_fma(a, b, c) ((a) * (b) + (c))
#define dml__one_relu(x) ((x) <= 0 ? 0 : (x))
DML__DEFINE_DEPTHWISE_PIXEL(one, , float, 1)

/* The channels of whole vectors. */
static void dml__depthwise_whole(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
    switch (isa) {
#if defined(DML__HAS_AVX2)
    case DML_ISA_AVX512: /* waits for the caches */
    case DML_ISA_AVX2:
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_result_avx2(row);
        else
            dml__depthwise_gradient_avx2(row);
        break;
#endif
#if defined(__aarch64__)
    case DML_ISA_NEON:
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_result_neon(row);
        else
            dml__depthwise_gradient_neon(row);
        break;
#endif
    default: dml__depthwise_pixels_plain(row, 0, role); break;
    }
}

/* The first `channels`, fewer than DML__DEPTHWISE_LANES, of pixels. */
static void dml__depthwise_copy(const float *from, ptrdiff_t from_pixel, ptrdiff_t pixels, ptrdiff_t channels,
                                float *to, ptrdiff_t to_pixel)
{
    for (; pixels > 0; pixels--, from += from_pixel, to += to_pixel) {
        if (channels & 4) memcpy(to, from, 4 * sizeof *to);
        if (channels & 2) memcpy(to + (channels & 4), from + (channels & 4), 2 * sizeof *to);
        if (channels & 1) to[channels - 1] = from[channels - 1];
    }
}

/* Channels c0 and those behind it, fewer than `lanes`. The lanes behind them compute with what lies behind
   them in the source, the next pixels, and are left where they are. (Masked loads take the loop a quarter
   longer.) */
static void dml__depthwise_rest(dml_isa isa, const dml__depthwise_row *row, ptrdiff_t c0, ptrdiff_t lanes,
                                dml__depthwise_role role)
{
    float source[DML__DEPTHWISE_COPY];                                       /* (tap_lines, window, lanes) */
    float target[DML__DEPTHWISE_COPY_PIXELS * DML__DEPTHWISE_LANES] = { 0 }; /* (pixels, lanes) */
    float bias[DML__DEPTHWISE_LANES] = { 0 };
    const ptrdiff_t channels = row->channels - c0, extent = (row->taps - 1) * row->dilation + 1;
    const ptrdiff_t last_line = (row->tap_lines - 1) * row->line, step = row->stride * row->source_pixel;
    const float *last = row->source + last_line + (row->source_w - 1 - row->origin) * row->source_pixel + c0;
    const bool copied = row->source_end - last < lanes;
    ptrdiff_t pixels = DML__DEPTHWISE_COPY_PIXELS;
    dml__depthwise_row some = *row;
    while (copied && pixels &&
           row->tap_lines * ((pixels - 1) * row->stride + extent) * lanes > DML__DEPTHWISE_COPY)
        pixels /= 2;
    if (!pixels) {
        dml__depthwise_pixels_one(row, c0, role);
        return;
    }
    some.channels = some.target_pixel = lanes;
    some.ask = false;
    some.weights += c0;
    some.target = target;
    if (row->bias) dml__depthwise_copy(row->bias + c0, 0, 1, channels, bias, 0), some.bias = bias;
    for (ptrdiff_t x = 0; x < row->grid_w; x += pixels) {
        const float *from = row->source + x * step + c0;
        float *to = row->target + x * row->target_pixel + c0;
        some.grid_w = dml__smaller(pixels, row->grid_w - x);
        some.origin = row->origin + x * row->stride, some.source = from;
        if (copied) {
            const ptrdiff_t at = some.origin, first = dml__larger(0, at);
            const ptrdiff_t end = at + (some.grid_w - 1) * row->stride + extent;
            some.source_w = dml__larger(0, dml__smaller(row->source_w, end) - first);
            some.source_pixel = lanes, some.line = some.source_w * lanes;
            some.origin = at - first, some.source = source + some.origin * lanes;
            memset(source, 0, (size_t)(some.tap_lines * some.line) * sizeof *source);
            from += (first - at) * row->source_pixel;
            for (ptrdiff_t l = 0; l < some.tap_lines; l++)
                dml__depthwise_copy(from + l * row->line, row->source_pixel, some.source_w, channels,
                                    source + l * some.line, lanes);
        }
        if (role == DML__DEPTHWISE_GRADIENT || row->beta != 0)
            dml__depthwise_copy(to, row->target_pixel, some.grid_w, channels, target, lanes);
        dml__depthwise_whole(isa, &some, role);
        if (role == DML__DEPTHWISE_RESULT)
            dml__depthwise_copy(target, lanes, some.grid_w, channels, to, row->target_pixel);
    }
}

static void dml__depthwise_phase(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
    ptrdiff_t lanes = 4;
#if defined(DML__HAS_AVX2)
    if (isa >= DML_ISA_AVX2) lanes = 8;
#endif
    dml__depthwise_whole(isa, row, role);
    if (row->channels % lanes) dml__depthwise_rest(isa, row, row->channels / lanes * lanes, lanes, role);
}

/* Without strides every dilation-th pixel meets every dilation-th pixel of the source: lines that have no
   dilation. */
static void dml__depthwise_line(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role)
{
    const ptrdiff_t step = row->stride == 1 ? row->dilation : 1;
    if (step == 1) dml__depthwise_phase(isa, row, role);
    for (ptrdiff_t first = 0; step > 1 && first < step && first < row->grid_w; first++) {
        dml__depthwise_row phase = *row;
        const ptrdiff_t at = row->origin + first, before = at < 0 ? dml__quotient_up(-at, step) : 0;
        const ptrdiff_t from = at + before * step; /* in the image */
        phase.grid_w = (row->grid_w - 1 - first) / step + 1;
        phase.origin = at >= 0 ? at / step : -before;
        phase.source_w = row->source_w > from % step ? (row->source_w - 1 - from % step) / step + 1 : 0;
        phase.dilation = 1;
        phase.source += first * row->source_pixel, phase.source_pixel *= step;
        phase.target += first * row->target_pixel, phase.target_pixel *= step;
        phase.ask = false;
        dml__depthwise_phase(isa, &phase, role);
    }
}

/* The lines of taps l, l0 <= l < l1, that find something: 0 <= at + l * dilation < size. */
typedef struct dml__depthwise_lines {
    ptrdiff_t l0, l1;
} dml__depthwise_lines;

static dml__depthwise_lines dml__depthwise_inside(ptrdiff_t at, ptrdiff_t dilation, ptrdiff_t lines,
                                                  ptrdiff_t size)
{
    dml__depthwise_lines inside;
    inside.l0 = at >= 0 ? 0 : dml__smaller(lines, (dilation - 1 - at) / dilation);
    inside.l1 =
        at >= size ? inside.l0 : dml__larger(inside.l0, dml__smaller(lines, (size - 1 - at) / dilation + 1));
    return inside;
}

/* --- forward and input gradient --- */

typedef struct dml__depthwise_loop {
    const dml__conv_pass *pass;
    dml_isa isa;
    bool distant;
    ptrdiff_t images, lines, channels; /* of a task */
    ptrdiff_t bands_down, blocks;      /* tasks: image groups, times these */
} dml__depthwise_loop;

static void dml__depthwise_task(void *argument, int task, int worker)
{
    const dml__depthwise_loop *loop = (const dml__depthwise_loop *)argument;
    const dml__conv_pass *p = loop->pass;
    float weights[DML__DEPTHWISE_WEIGHTS]; /* (taps_h, taps_w, width) */
    dml__depthwise_row row;
    const ptrdiff_t rest = task / loop->blocks, c0 = task % loop->blocks * loop->channels;
    const ptrdiff_t n0 = rest / loop->bands_down * loop->images;
    const ptrdiff_t n1 = dml__smaller(p->batch, n0 + loop->images);
    const ptrdiff_t y0 = rest % loop->bands_down * loop->lines;
    const ptrdiff_t y1 = dml__smaller(p->grid_h, y0 + loop->lines);
    const ptrdiff_t source_line = p->source_w * p->source_pixel;
    (void)worker;
    row.channels = dml__smaller(loop->channels, p->columns - c0), row.grid_w = p->grid_w;
    row.source_pixel = p->source_pixel, row.source_w = p->source_w, row.origin = p->origin_x;
    row.taps = p->taps_w, row.stride = p->stride_w, row.dilation = p->dilation_w;
    row.source_end = p->source + p->batch * p->source_h * source_line;
    row.ask = loop->distant, row.source_line = source_line, row.line = p->dilation_h * source_line;
    row.width = dml__round_up(row.channels, DML__DEPTHWISE_LINE);
    row.target_pixel = p->target_pixel, row.target_line = p->target_line;
    row.bias = p->bias ? p->bias + c0 : NULL, row.beta = p->beta, row.relu = p->relu;
    dml__conv_pass_pack(p, c0, row.channels, row.width, 0, p->taps_h * p->taps_w, weights);
    for (ptrdiff_t n = n0; n < n1; n++)
        for (ptrdiff_t y = y0; y < y1; y++) {
            const ptrdiff_t top = p->origin_y + y * p->stride_h;
            const dml__depthwise_lines down =
                dml__depthwise_inside(top, p->dilation_h, p->taps_h, p->source_h);
            const float *line =
                p->source + (n * p->source_h + top) * source_line + p->origin_x * p->source_pixel + c0;
            row.source = line + down.l0 * row.line;
            row.ahead = (p->taps_h - 1 - down.l0) * row.line + source_line;
            row.tap_lines = down.l1 - down.l0;
            row.weights = weights + down.l0 * p->taps_w * row.width;
            row.target = p->target + n * p->target_image + y * p->target_line + c0;
            dml__depthwise_line(loop->isa, &row, DML__DEPTHWISE_RESULT);
        }
}

static bool dml__depthwise_is_distant(dml_pool *pool, ptrdiff_t batch, ptrdiff_t source_image,
                                      ptrdiff_t target_image)
{
    const double bytes = (double)sizeof(float) * (double)batch * (double)(source_image + target_image);
    return bytes > DML__DEPTHWISE_NEAR * (double)dml__pool_machine(pool).caches.l2;
}

/* Channels of a task, of which the weights have so much room. */
static ptrdiff_t dml__depthwise_channels(ptrdiff_t channels, ptrdiff_t taps, ptrdiff_t blocks)
{
    const ptrdiff_t most = DML__DEPTHWISE_WEIGHTS / dml__larger(1, taps) / DML__DEPTHWISE_LINE;
    blocks = dml__larger(blocks, dml__quotient_up(channels, most * DML__DEPTHWISE_LINE));
    return dml__round_up(dml__quotient_up(channels, blocks), DML__DEPTHWISE_LINE);
}

DML__LOCAL void dml__depthwise_pass(dml_pool *pool, const dml__conv_pass *pass)
{
    dml__depthwise_loop loop;
    const ptrdiff_t taps = pass->taps_h * pass->taps_w, threads = dml_pool_threads(pool);
    const double work =
        (double)pass->batch * (double)(pass->grid_h * pass->grid_w) * (double)taps * (double)pass->columns;
    if (pass->batch < 1 || pass->grid_h < 1 || pass->grid_w < 1) return;
    const ptrdiff_t wanted = threads == 1 || work < DML__DEPTHWISE_SERIAL_WORK ? 1 : 4 * threads;
    loop.pass = pass;
    loop.isa = dml__pool_machine(pool).isa;
    loop.distant = dml__depthwise_is_distant(
        pool, pass->batch, pass->source_h * pass->source_w * pass->source_pixel, pass->target_image);
    loop.channels = dml__depthwise_channels(pass->columns, taps, 1);
    loop.blocks = dml__quotient_up(pass->columns, loop.channels);
    loop.lines = pass->grid_h;
    loop.images = dml__larger(1, DML__DEPTHWISE_IMAGE / (pass->grid_h * pass->grid_w));
    while (loop.images > 1 && dml__quotient_up(pass->batch, loop.images) * loop.blocks < wanted)
        loop.images /= 2;
    while (loop.images == 1 && loop.lines > 4 &&
           pass->batch * loop.blocks * dml__quotient_up(pass->grid_h, loop.lines) < wanted)
        loop.lines = dml__quotient_up(loop.lines, 2);
    loop.bands_down = dml__quotient_up(pass->grid_h, loop.lines);
    const ptrdiff_t tasks = dml__quotient_up(pass->batch, loop.images) * loop.bands_down * loop.blocks;
    dml_pool_run(wanted > 1 ? pool : NULL, (int)tasks, dml__depthwise_task, &loop);
}

/* --- weight gradient --- */

typedef struct dml__depthwise_weights_loop {
    const dml__wgrad *job;
    dml_isa isa;
    bool distant;
    ptrdiff_t channels; /* of a task */
} dml__depthwise_weights_loop;

static void dml__depthwise_weights_task(void *argument, int index, int worker)
{
    const dml__depthwise_weights_loop *loop = (const dml__depthwise_weights_loop *)argument;
    const dml__wgrad *j = loop->job;
    float sums[DML__DEPTHWISE_WEIGHTS]; /* (taps_h, taps_w, width) */
    dml__depthwise_row row;
    const ptrdiff_t taps = j->taps_h * j->taps_w, c0 = index * loop->channels;
    const ptrdiff_t x_line = j->in_w * j->x_pixel;
    (void)worker;
    row.channels = dml__smaller(loop->channels, j->filters - c0), row.grid_w = j->out_w;
    row.source_pixel = j->x_pixel, row.source_w = j->in_w, row.origin = -j->pad_w;
    row.taps = j->taps_w, row.stride = j->stride_w, row.dilation = j->dilation_w;
    row.source_end = j->x + j->batch * j->in_h * x_line;
    row.ask = loop->distant, row.source_line = x_line, row.line = j->dilation_h * x_line;
    row.width = dml__round_up(row.channels, DML__DEPTHWISE_LINE);
    row.target_pixel = j->dy_pixel, row.target_line = j->out_w * j->dy_pixel;
    row.bias = NULL, row.beta = 0, row.relu = false;
    memset(sums, 0, (size_t)(taps * row.width) * sizeof *sums);
    for (ptrdiff_t n = 0; n < j->batch; n++)
        for (ptrdiff_t y = 0; y < j->out_h; y++) {
            const ptrdiff_t top = y * j->stride_h - j->pad_h;
            const dml__depthwise_lines down = dml__depthwise_inside(top, j->dilation_h, j->taps_h, j->in_h);
            const float *line = j->x + (n * j->in_h + top) * x_line - j->pad_w * j->x_pixel + c0;
            row.source = line + down.l0 * row.line;
            row.ahead = (j->taps_h - 1 - down.l0) * row.line + x_line;
            row.tap_lines = down.l1 - down.l0;
            row.weights = sums + down.l0 * j->taps_w * row.width;
            row.target = (float *)j->dy + (n * j->out_h + y) * j->out_w * j->dy_pixel + c0;
            dml__depthwise_line(loop->isa, &row, DML__DEPTHWISE_GRADIENT);
        }
    for (ptrdiff_t c = 0; c < row.channels; c++)
        for (ptrdiff_t t = 0; t < taps; t++) {
            float *to = j->dw + (c0 + c) * taps + t;
            *to = sums[t * row.width + c] + (j->beta == 0 ? 0 : j->beta * *to);
        }
}

DML__LOCAL void dml__depthwise_weights(dml_pool *pool, const dml__wgrad *job)
{
    dml__depthwise_weights_loop loop;
    const ptrdiff_t threads = dml_pool_threads(pool);
    loop.job = job;
    loop.isa = dml__pool_machine(pool).isa;
    loop.distant = dml__depthwise_is_distant(pool, job->batch, job->in_h * job->in_w * job->x_pixel,
                                             job->out_h * job->out_w * job->dy_pixel);
    loop.channels =
        dml__depthwise_channels(job->filters, job->taps_h * job->taps_w, threads == 1 ? 1 : 2 * threads);
    dml_pool_run(pool, (int)dml__quotient_up(job->filters, loop.channels), dml__depthwise_weights_task,
                 &loop);
}

#endif

/* ---- kernels/conv2d.c ---- */

#ifndef DML_KERNELS_CONV2D_C
#define DML_KERNELS_CONV2D_C

/* ---- kernels/blocks.h ---- */

/* blocks.h: running a kernel over an array in fixed blocks, which is what makes results the same for any
   number of threads. */
#ifndef DML_KERNELS_BLOCKS_H
#define DML_KERNELS_BLOCKS_H

/* How many floats make a task worth handing to a thread (16 K floats: about 5 us of memory traffic). */
#define DML__BLOCK ((size_t)16384)

/* What an elementwise kernel reads and writes; what isn't there is NULL. An output may be an input too. */
#define DML__MAP_INPUTS 3
#define DML__MAP_OUTPUTS 2
typedef struct dml__map_operands {
    const float *in[DML__MAP_INPUTS];
    float *out[DML__MAP_OUTPUTS];
    float number[4];
    bool stream; /* to out[0], which isn't read; dml__map sets it */
} dml__map_operands;

/* Elements 0 .. n - 1, n a multiple of DML__LANES. A kernel works on a copy of the operands: vectors may
   alias anything, so that each store would make it read the pointers again. */
typedef void (*dml__map_kernel)(dml_isa isa, size_t n, const dml__map_operands *operands);

/* Where a call's arrays are larger than this together, an output that isn't read is written past the caches:
   its lines need not be read first. Below, whoever comes next finds it in the cache. */
#define DML__STREAM_FROM ((size_t)32 << 20)

/* Of `name_at`, which computes one vector, this makes the kernel `name_map`. A kernel with a beta takes the
   old output as in[2], or NULL for beta = 0, and beta as number[0]. Several loops, since a branch inside one
   would cost more than the arithmetic. */
#define DML__MAP(name)                                                                                       \
    DML__BODY void name##_map_body(size_t n, const dml__map_operands *operands)                              \
    {                                                                                                        \
        const dml__map_operands copy = *operands, *at = &copy;                                               \
        dml__vf value = { 0 };                                                                               \
        if (at->in[2]) {                                                                                     \
            DML__BY_FOUR                                                                                     \
            for (size_t i = 0; i < n; i += DML__LANES) {                                                     \
                name##_at(at, i, &value);                                                                    \
                DML__STORE(at->out[0] + i, value + at->number[0] * DML__LOAD(at->in[2] + i));                \
            }                                                                                                \
        } else if (at->stream) {                                                                             \
            DML__BY_FOUR                                                                                     \
            for (size_t i = 0; i < n; i += DML__LANES) {                                                     \
                name##_at(at, i, &value);                                                                    \
                dml__stream(at->out[0] + i, &value);                                                         \
            }                                                                                                \
            DML__STREAM_FENCE();                                                                             \
        } else {                                                                                             \
            DML__BY_FOUR                                                                                     \
            for (size_t i = 0; i < n; i += DML__LANES) {                                                     \
                name##_at(at, i, &value);                                                                    \
                DML__STORE(at->out[0] + i, value);                                                           \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    DML__MAP_PER_ISA(name)

/* The base of such a kernel: one loop for all of them, since each would be long without vectors of 32 bytes.
 */
typedef void (*dml__map_vector)(const dml__map_operands *at, size_t i, dml__vf *value);
DML__LOCAL void dml__map_by_vectors(size_t n, const dml__map_operands *at, dml__map_vector vector);

#ifdef DML__HAS_AVX2
#define DML__MAP_PER_ISA(name)                                                                               \
    DML__COLD static void name##_vector(const dml__map_operands *at, size_t i, dml__vf *value)               \
    {                                                                                                        \
        name##_at(at, i, value);                                                                             \
    }                                                                                                        \
    static void name##_map_base(size_t n, const dml__map_operands *at)                                       \
    {                                                                                                        \
        dml__map_by_vectors(n, at, name##_vector);                                                           \
    }                                                                                                        \
    DML__AVX2_OR_BASE(name##_map, (size_t n, const dml__map_operands *at), (n, at))
#else
#define DML__MAP_PER_ISA(name) DML__PER_ISA(name##_map, (size_t n, const dml__map_operands *at), (n, at))
#endif

/* Runs the kernel over n elements, any n. A rest shorter than a vector is copied to a padded one, so that
   every element goes through the same instructions wherever it lies. */
DML__LOCAL void dml__map(dml_pool *pool, size_t n, dml__map_kernel kernel, const dml__map_operands *operands);

/* The same on the calling thread, for elements begin .. end - 1. */
DML__LOCAL void dml__map_range(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *operands,
                               size_t begin, size_t end);

/* Reduces elements x[0 .. n - 1] (and y's, if not NULL) to one number, any n > 0. */
typedef void (*dml__reduce_kernel)(dml_isa isa, size_t n, const float *x, const float *y, double *result);

/* Runs the kernel over at most DML__PARTIALS blocks that depend on n alone; returns how many, 0 for n = 0. */
#define DML__PARTIALS 256
DML__LOCAL int dml__reduce(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                           const float *y, double partial[DML__PARTIALS]);

/* Splits `count` items (rows, images) of `size` floats each into tasks of about DML__BLOCK floats: how many
   items a task takes, at least 1. */
static inline size_t dml__items_per_task(size_t size)
{
    return size && size < DML__BLOCK ? DML__BLOCK / size : 1;
}

static inline size_t dml__minimum(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Whether an array of these sizes, of which 0 counts as 1, can be addressed; none is negative. */
static inline bool dml__floats_fit(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t left = (int64_t)(PTRDIFF_MAX / (ptrdiff_t)sizeof(float));
    left /= a ? a : 1;
    left /= b ? b : 1;
    left /= c ? c : 1;
    return left / (d ? d : 1) > 0;
}

static inline size_t dml__divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif

/* ---- thread/scratch.h ---- */

/* scratch.h: arithmetic of needs for scratch. */
#ifndef DML_THREAD_SCRATCH_H
#define DML_THREAD_SCRATCH_H

/* The larger of two needs, part by part. */
static inline dml_scratch dml__larger_scratch(dml_scratch a, dml_scratch b)
{
    if (b.worker > a.worker) a.worker = b.worker;
    if (b.shared > a.shared) a.shared = b.shared;
    return a;
}

#endif

#include <string.h>

DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad)
{
    if (in < 1 || kernel < 1 || stride < 1 || pad < 0) return 0;
    const int64_t room = (int64_t)in + 2 * (int64_t)pad - kernel;
    const int64_t size = room < 0 ? 0 : room / stride + 1;
    return size > INT32_MAX ? 0 : (int)size;
}

DML_API int dml_conv2d_extent(int kernel, int dilation)
{
    if (kernel < 1 || dilation < 0) return 0;
    if (dilation == 0) dilation = 1;
    const int64_t extent = (int64_t)(kernel - 1) * dilation + 1;
    return extent > INT32_MAX ? 0 : (int)extent;
}

/* A shape whose zeros are replaced, and what follows from it. */
typedef struct dml__conv {
    dml_conv2d_shape shape;
    ptrdiff_t out_h, out_w;
    ptrdiff_t channels, filters; /* of a group */
    ptrdiff_t taps;
} dml__conv;

/* Whether x, y, w, and every place in a padded line of x or y, can be addressed. */
static bool dml__conv_fits(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    const int64_t padded_h = (int64_t)s->height + 2 * (int64_t)s->pad_h;
    const int64_t padded_w = (int64_t)s->width + 2 * (int64_t)s->pad_w;
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, conv->out_h, conv->out_w, s->filters) &&
           dml__floats_fit(s->filters, s->kernel_h, s->kernel_w, conv->channels) &&
           dml__floats_fit(padded_w, s->channels, 1, 1) && dml__floats_fit(padded_w, s->filters, 1, 1) &&
           dml__floats_fit(padded_h, 1, 1, 1);
}

static dml_status dml__conv_init(dml__conv *conv, const dml_conv2d_shape *shape)
{
    if (!shape || shape->batch < 0 || shape->channels < 1 || shape->filters < 1 || shape->groups < 0 ||
        shape->dilation_h < 0 || shape->dilation_w < 0)
        return DML_ERROR_ARGUMENT;
    dml_conv2d_shape *s = &conv->shape;
    *s = *shape;
    if (!s->dilation_h) s->dilation_h = 1;
    if (!s->dilation_w) s->dilation_w = 1;
    if (!s->groups) s->groups = 1;
    if (s->channels % s->groups || s->filters % s->groups) return DML_ERROR_ARGUMENT;
    conv->channels = s->channels / s->groups;
    conv->filters = s->filters / s->groups;
    conv->out_h = dml_conv2d_output_size(s->height, dml_conv2d_extent(s->kernel_h, s->dilation_h),
                                         s->stride_h, s->pad_h);
    conv->out_w = dml_conv2d_output_size(s->width, dml_conv2d_extent(s->kernel_w, s->dilation_w), s->stride_w,
                                         s->pad_w);
    if (!conv->out_h || !conv->out_w || !dml__conv_fits(conv)) return DML_ERROR_ARGUMENT;
    conv->taps = (ptrdiff_t)s->kernel_h * s->kernel_w;
    return DML_OK;
}

/* Whether each channel makes one filter. */
static bool dml__conv_is_depthwise(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    return conv->channels == 1 && conv->filters == 1 && s->groups > 1 && conv->taps <= DML__DEPTHWISE_TAPS;
}

/* The loops over groups: depthwise, all of them at once. */
static int dml__conv_groups(const dml__conv *conv)
{
    return dml__conv_is_depthwise(conv) ? 1 : conv->shape.groups;
}

static void dml__conv_run(dml_pool *pool, const dml__conv *conv, dml__conv_pass *pass)
{
    if (dml__conv_is_depthwise(conv)) {
        pass->columns = conv->shape.channels;
        pass->weights_column = conv->taps;
        dml__depthwise_pass(pool, pass);
    } else {
        dml__conv_pass_run(pool, pass);
    }
}

/* --- one tap, no padding: matrix products --- */

/* With P pixels: y (P, F) = x (P, C) w^T; dx = dy w; dw = dy^T x. */
typedef enum dml__conv_direction {
    DML__CONV_FORWARD,
    DML__CONV_INPUT,
    DML__CONV_WEIGHTS
} dml__conv_direction;

/* With strides, the pixels of dx are no matrix' rows. */
static bool dml__conv_is_product(const dml__conv *conv, dml__conv_direction direction)
{
    const dml_conv2d_shape *s = &conv->shape;
    return conv->taps == 1 && s->groups == 1 && s->pad_h == 0 && s->pad_w == 0 &&
           (direction != DML__CONV_INPUT || (s->stride_h == 1 && s->stride_w == 1));
}

/* The pixels of x that strides leave, as a factor. */
typedef struct dml__conv_pixels {
    const float *x;
    ptrdiff_t out_h, out_w; /* of an image */
    ptrdiff_t image, line, pixel;
} dml__conv_pixels;

static const float *dml__conv_pixel(const dml__conv_pixels *p, ptrdiff_t index)
{
    const ptrdiff_t line = index / p->out_w;
    return p->x + line / p->out_h * p->image + line % p->out_h * p->line + index % p->out_w * p->pixel;
}

/* Lanes are pixels, k channels. */
static void dml__conv_pack_rows(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                int width, float *out)
{
    const dml__conv_pixels *p = (const dml__conv_pixels *)source;
    if (lanes < width) dml__conv_zero(out, (ptrdiff_t)kc * width);
    for (ptrdiff_t lane = 0, count; lane < lanes; lane += count) {
        count = dml__smaller(lanes - lane, p->out_w - (first + lane) % p->out_w);
        dml__pack_transposed(dml__conv_pixel(p, first + lane) + k0, p->pixel, (int)count, kc, width,
                             out + lane);
    }
}

/* Lanes are channels, k pixels. */
static void dml__conv_pack_columns(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                   int width, float *out)
{
    const dml__conv_pixels *p = (const dml__conv_pixels *)source;
    for (ptrdiff_t k = 0; k < kc; k++, out += width) {
        dml__conv_copy(out, dml__conv_pixel(p, k0 + k) + first, lanes);
        dml__conv_zero(out + lanes, width - lanes);
    }
}

typedef struct dml__conv_factors {
    dml__matrix a, b;
    dml__conv_pixels x; /* in the place of one of them */
} dml__conv_factors;

static dml__product dml__conv_product(const dml__conv *conv, dml__conv_direction direction, const float *left,
                                      const float *right, dml__conv_factors *factors)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t pixels = s->batch * conv->out_h * conv->out_w, channels = s->channels,
                    filters = s->filters, line = s->width * channels;
    const dml__matrix rows = { left, direction == DML__CONV_FORWARD ? channels : filters, 1 };
    const dml__matrix columns = { left, 1, filters };
    const dml__matrix plain = { right, 1, channels }, transposed = { right, channels, 1 };
    const dml__conv_pixels x = { direction == DML__CONV_FORWARD ? left : right,
                                 conv->out_h,
                                 conv->out_w,
                                 s->height * line,
                                 s->stride_h * line,
                                 s->stride_w * channels };
    dml__product product;
    memset(&product, 0, sizeof product);
    factors->a = direction == DML__CONV_WEIGHTS ? columns : rows;
    factors->b = direction == DML__CONV_FORWARD ? transposed : plain;
    factors->x = x;
    product.m = direction == DML__CONV_WEIGHTS ? filters : pixels;
    product.n = direction == DML__CONV_FORWARD ? filters : channels;
    product.k = direction == DML__CONV_FORWARD ? channels : direction == DML__CONV_INPUT ? filters : pixels;
    product.a.pack = product.b.pack = dml__pack_matrix;
    product.a.source = &factors->a;
    product.b.source = &factors->b;
    if (s->stride_h > 1 || s->stride_w > 1) {
        dml__factor *strided = direction == DML__CONV_FORWARD ? &product.a : &product.b;
        strided->pack = direction == DML__CONV_FORWARD ? dml__conv_pack_rows : dml__conv_pack_columns;
        strided->source = &factors->x;
    }
    product.alpha = 1;
    product.ldc = product.n;
    return product;
}

static void dml__conv_multiply(dml_pool *pool, const dml__conv *conv, dml__conv_direction direction,
                               const float *left, const float *right, float beta,
                               const dml_epilogue *epilogue, float *c)
{
    dml__conv_factors factors;
    dml__product product = dml__conv_product(conv, direction, left, right, &factors);
    product.beta = beta;
    product.c = c;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
}

static dml_scratch dml__conv_product_scratch(const dml__conv *conv, dml__conv_direction direction)
{
    dml__conv_factors factors;
    const dml__product product = dml__conv_product(conv, direction, NULL, NULL, &factors);
    return dml__product_scratch(&product);
}

/* --- forward --- */

static dml__conv_pass dml__conv_forward_pass(const dml__conv *conv, int group, const float *x, const float *w,
                                             float beta, const dml_epilogue *epilogue, float *y)
{
    const dml_conv2d_shape *s = &conv->shape;
    dml__conv_pass p;
    memset(&p, 0, sizeof p);
    p.batch = s->batch, p.grid_h = conv->out_h, p.grid_w = conv->out_w, p.columns = conv->filters;
    p.stride_h = s->stride_h, p.stride_w = s->stride_w, p.dilation_h = s->dilation_h,
    p.dilation_w = s->dilation_w;
    p.taps_h = s->kernel_h, p.taps_w = s->kernel_w, p.depth = conv->channels;
    p.origin_y = -s->pad_h, p.origin_x = -s->pad_w;
    p.source = x ? x + group * conv->channels : NULL;
    p.source_h = s->height, p.source_w = s->width, p.source_pixel = s->channels;
    p.weights_column = conv->taps * conv->channels;
    p.weights_tap_h = (ptrdiff_t)s->kernel_w * conv->channels, p.weights_tap_w = conv->channels,
    p.weights_depth = 1;
    p.weights = w ? w + group * conv->filters * p.weights_column : NULL;
    p.target_pixel = s->filters, p.target_line = conv->out_w * s->filters;
    p.target_image = conv->out_h * p.target_line;
    p.target = y ? y + group * conv->filters : NULL;
    p.beta = beta;
    if (epilogue) {
        p.bias = epilogue->bias ? epilogue->bias + group * conv->filters : NULL;
        p.relu = epilogue->activation == DML_ACTIVATION_RELU;
    }
    return p;
}

/* An empty batch has no images. */
static bool dml__conv_has_arrays(const dml_conv2d_shape *shape, const float *a, const float *b,
                                 const float *c)
{
    return shape->batch == 0 || (a && b && c);
}

DML_API dml_status dml_conv2d_forward_fused(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status == DML_OK && (!dml__conv_has_arrays(shape, x, w, y) || !dml__epilogue_is_known(epilogue)))
        return DML_ERROR_ARGUMENT;
    if (status == DML_OK && dml__conv_is_product(&conv, DML__CONV_FORWARD)) {
        dml__conv_multiply(pool, &conv, DML__CONV_FORWARD, x, w, beta, epilogue, y);
        return DML_OK;
    }
    for (int group = 0; status == DML_OK && group < dml__conv_groups(&conv); group++) {
        dml__conv_pass pass = dml__conv_forward_pass(&conv, group, x, w, beta, epilogue, y);
        dml__conv_run(pool, &conv, &pass);
    }
    return status;
}

DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y)
{
    const dml_epilogue epilogue = { bias, DML_ACTIVATION_NONE };
    return dml_conv2d_forward_fused(pool, shape, x, w, 0, &epilogue, y);
}

/* --- the input gradient --- */

/* Along one axis, every stride-th input from `first` on. The outputs that they have gone into are those of
   every tap_step-th tap, and lie source_step apart. So each phase is a convolution of dy without strides. */
typedef struct dml__phase {
    ptrdiff_t count;          /* of the inputs */
    ptrdiff_t taps, last_tap; /* the taps, and the last of them, which meets the first output */
    ptrdiff_t tap_step, source_step;
    ptrdiff_t origin; /* the output that the first input meets at the last tap */
} dml__phase;

static ptrdiff_t dml__common_divisor(ptrdiff_t a, ptrdiff_t b)
{
    while (b) {
        const ptrdiff_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static dml__phase dml__phase_at(ptrdiff_t first, ptrdiff_t in, ptrdiff_t kernel, ptrdiff_t stride,
                                ptrdiff_t pad, ptrdiff_t dilation)
{
    dml__phase result;
    const ptrdiff_t divisor = dml__common_divisor(dilation, stride), phase = (first + pad) % stride;
    result.count = (in - 1 - first) / stride + 1;
    result.tap_step = stride / divisor;
    result.source_step = dilation / divisor;
    ptrdiff_t tap = 0;
    while (tap < kernel && tap < result.tap_step && tap * dilation % stride != phase) tap++;
    const bool none = tap >= kernel || tap >= result.tap_step;
    result.taps = none ? 0 : (kernel - 1 - tap) / result.tap_step + 1;
    result.last_tap = none ? 0 : tap + (result.taps - 1) * result.tap_step;
    result.origin = none ? 0 : (first + pad - result.last_tap * dilation) / stride; /* whole */
    return result;
}

static dml__conv_pass dml__conv_input_pass(const dml__conv *conv, int group, int y, int x, const float *dy,
                                           const float *w, float beta, float *dx)
{
    const dml_conv2d_shape *s = &conv->shape;
    const dml__phase v = dml__phase_at(y, s->height, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h);
    const dml__phase h = dml__phase_at(x, s->width, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w);
    const ptrdiff_t tap_h = (ptrdiff_t)s->kernel_w * conv->channels;
    dml__conv_pass p;
    memset(&p, 0, sizeof p);
    p.batch = s->batch, p.grid_h = v.count, p.grid_w = h.count, p.columns = conv->channels;
    p.stride_h = p.stride_w = 1, p.dilation_h = v.source_step, p.dilation_w = h.source_step;
    p.taps_h = v.taps, p.taps_w = h.taps, p.depth = conv->filters;
    p.origin_y = v.origin, p.origin_x = h.origin;
    p.source = dy ? dy + group * conv->filters : NULL;
    p.source_h = conv->out_h, p.source_w = conv->out_w, p.source_pixel = s->filters;
    p.weights_tap_h = -v.tap_step * tap_h, p.weights_tap_w = -h.tap_step * conv->channels;
    p.weights_depth = conv->taps * conv->channels, p.weights_column = 1;
    p.weights =
        w ? w + group * conv->filters * p.weights_depth + v.last_tap * tap_h + h.last_tap * conv->channels
          : NULL;
    p.target_pixel = (ptrdiff_t)s->stride_w * s->channels;
    const ptrdiff_t line = (ptrdiff_t)s->width * s->channels;
    p.target_line = s->stride_h * line, p.target_image = s->height * line;
    p.target = dx ? dx + y * line + (ptrdiff_t)x * s->channels + group * conv->channels : NULL;
    p.beta = beta;
    return p;
}

DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status != DML_OK) return status;
    if (!dml__conv_has_arrays(shape, dy, w, dx)) return DML_ERROR_ARGUMENT;
    if (dml__conv_is_product(&conv, DML__CONV_INPUT)) {
        dml__conv_multiply(pool, &conv, DML__CONV_INPUT, dy, w, beta, NULL, dx);
        return DML_OK;
    }
    const dml_conv2d_shape *s = &conv.shape;
    for (int group = 0; group < dml__conv_groups(&conv); group++)
        for (int y = 0; y < s->stride_h && y < s->height; y++)
            for (int x = 0; x < s->stride_w && x < s->width; x++) {
                dml__conv_pass pass = dml__conv_input_pass(&conv, group, y, x, dy, w, beta, dx);
                if (!dml__conv_is_depthwise(&conv) && dml__conv_planes_fits(pool, &pass))
                    dml__conv_planes_run(pool, &pass);
                else
                    dml__conv_run(pool, &conv, &pass);
            }
    return DML_OK;
}

/* --- the weight gradient --- */

static dml__wgrad dml__conv_weights_job(const dml__conv *conv, int group, const float *x, const float *dy,
                                        float beta, float *dw)
{
    const dml_conv2d_shape *s = &conv->shape;
    dml__wgrad job;
    job.batch = s->batch, job.out_h = conv->out_h, job.out_w = conv->out_w;
    job.filters = conv->filters, job.taps_h = s->kernel_h, job.taps_w = s->kernel_w,
    job.channels = conv->channels;
    job.stride_h = s->stride_h, job.stride_w = s->stride_w;
    job.dilation_h = s->dilation_h, job.dilation_w = s->dilation_w;
    job.pad_h = s->pad_h, job.pad_w = s->pad_w;
    job.x = x ? x + group * conv->channels : NULL;
    job.in_h = s->height, job.in_w = s->width, job.x_pixel = s->channels;
    job.dy = dy ? dy + group * conv->filters : NULL;
    job.dy_pixel = s->filters;
    job.dw = dw ? dw + group * conv->filters * conv->taps * conv->channels : NULL;
    job.beta = beta;
    return job;
}

DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status == DML_OK && (!dw || !dml__conv_has_arrays(shape, x, dy, dw))) return DML_ERROR_ARGUMENT;
    if (status == DML_OK && dml__conv_is_product(&conv, DML__CONV_WEIGHTS)) {
        dml__conv_multiply(pool, &conv, DML__CONV_WEIGHTS, dy, x, beta, NULL, dw);
        return DML_OK;
    }
    for (int group = 0; status == DML_OK && group < dml__conv_groups(&conv); group++) {
        dml__wgrad job = dml__conv_weights_job(&conv, group, x, dy, beta, dw);
        if (dml__conv_is_depthwise(&conv)) {
            job.filters = job.channels = conv.shape.channels;
            dml__depthwise_weights(pool, &job);
        } else {
            dml__wgrad_run(pool, &job);
        }
    }
    return status;
}

DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training)
{
    dml_scratch scratch = { 0, 0 };
    dml__conv conv;
    if (dml__conv_init(&conv, shape) != DML_OK) return scratch;
    if (dml__conv_is_depthwise(&conv)) return scratch;
    const dml_conv2d_shape *s = &conv.shape;
    const dml__conv_pass forward = dml__conv_forward_pass(&conv, 0, NULL, NULL, 0, NULL, NULL);
    scratch = dml__conv_is_product(&conv, DML__CONV_FORWARD)
                  ? dml__conv_product_scratch(&conv, DML__CONV_FORWARD)
                  : dml__conv_pass_scratch(&forward);
    if (!training) return scratch;
    const dml__wgrad weights = dml__conv_weights_job(&conv, 0, NULL, NULL, 0, NULL);
    scratch = dml__larger_scratch(scratch, dml__conv_is_product(&conv, DML__CONV_WEIGHTS)
                                               ? dml__conv_product_scratch(&conv, DML__CONV_WEIGHTS)
                                               : dml__wgrad_scratch(&weights));
    if (dml__conv_is_product(&conv, DML__CONV_INPUT))
        return dml__larger_scratch(scratch, dml__conv_product_scratch(&conv, DML__CONV_INPUT));
    for (int y = 0; y < s->stride_h && y < s->height; y++)
        for (int x = 0; x < s->stride_w && x < s->width; x++) {
            const dml__conv_pass pass = dml__conv_input_pass(&conv, 0, y, x, NULL, NULL, 0, NULL);
            scratch = dml__larger_scratch(scratch, dml__conv_planes_fits(NULL, &pass)
                                                       ? dml__conv_planes_scratch(&pass)
                                                       : dml__conv_pass_scratch(&pass));
        }
    return scratch;
}

#endif

/* ---- kernels/blocks.c ---- */

#ifndef DML_KERNELS_BLOCKS_C
#define DML_KERNELS_BLOCKS_C

#include <string.h>

typedef struct dml__map_job {
    dml_isa isa;
    size_t n;
    dml__map_kernel kernel;
    const dml__map_operands *operands;
} dml__map_job;

static dml__map_operands dml__operands_at(const dml__map_operands *operands, size_t offset)
{
    dml__map_operands at = *operands;
    for (int i = 0; i < DML__MAP_INPUTS; i++)
        if (at.in[i]) at.in[i] += offset;
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at.out[i]) at.out[i] += offset;
    return at;
}

static void dml__map_rest(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *at, size_t count)
{
    float in[DML__MAP_INPUTS][DML__LANES], out[DML__MAP_OUTPUTS][DML__LANES];
    dml__map_operands padded = *at;
    padded.stream = false;
    memset(in, 0, sizeof in);
    for (int i = 0; i < DML__MAP_INPUTS; i++) {
        if (!at->in[i]) continue;
        memcpy(in[i], at->in[i], count * sizeof(float));
        padded.in[i] = in[i];
    }
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at->out[i]) padded.out[i] = out[i];
    kernel(isa, DML__LANES, &padded);
    for (int i = 0; i < DML__MAP_OUTPUTS; i++)
        if (at->out[i]) memcpy(at->out[i], out[i], count * sizeof(float));
}

DML__LOCAL void dml__map_range(dml_isa isa, dml__map_kernel kernel, const dml__map_operands *operands,
                               size_t begin, size_t end)
{
    const size_t rest = (end - begin) % DML__LANES;
    if (end - begin > rest) {
        const dml__map_operands at = dml__operands_at(operands, begin);
        kernel(isa, end - begin - rest, &at);
    }
    if (rest) {
        const dml__map_operands at = dml__operands_at(operands, end - rest);
        dml__map_rest(isa, kernel, &at, rest);
    }
}

DML__LOCAL void dml__map_by_vectors(size_t n, const dml__map_operands *at, dml__map_vector vector)
{
    dml__vf value = { 0 };
    for (size_t i = 0; i < n; i += DML__LANES) {
        vector(at, i, &value);
        if (at->in[2]) value = value + at->number[0] * DML__LOAD(at->in[2] + i);
        DML__STORE(at->out[0] + i, value);
    }
}

static bool dml__map_streams(size_t n, const dml__map_operands *at)
{
    size_t arrays = 1;
    for (int i = 0; i < DML__MAP_INPUTS; i++) {
        if (at->in[i] == at->out[0]) return false;
        if (at->in[i]) arrays++;
    }
    return DML__STREAMS && n > DML__STREAM_FROM / sizeof(float) / arrays && (uintptr_t)at->out[0] % 16 == 0;
}

static void dml__map_task(void *argument, int task, int worker)
{
    const dml__map_job *job = (const dml__map_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK;
    (void)worker;
    dml__map_range(job->isa, job->kernel, job->operands, begin, dml__minimum(begin + DML__BLOCK, job->n));
}

DML__LOCAL void dml__map(dml_pool *pool, size_t n, dml__map_kernel kernel, const dml__map_operands *operands)
{
    dml__map_job job;
    dml__map_operands copy = *operands;
    copy.stream = dml__map_streams(n, operands);
    job.isa = dml__pool_machine(pool).isa;
    job.n = n;
    job.kernel = kernel;
    job.operands = &copy;
    if (n <= DML__BLOCK)
        dml__map_range(job.isa, kernel, &copy, 0, n);
    else
        dml_pool_run(pool, (int)dml__divide_up(n, DML__BLOCK), dml__map_task, &job);
}

typedef struct dml__reduce_job {
    dml_isa isa;
    size_t n, block;
    dml__reduce_kernel kernel;
    const float *x, *y;
    double *partial;
} dml__reduce_job;

static void dml__reduce_task(void *argument, int task, int worker)
{
    const dml__reduce_job *job = (const dml__reduce_job *)argument;
    const size_t begin = (size_t)task * job->block;
    (void)worker;
    job->kernel(job->isa, dml__minimum(job->block, job->n - begin), job->x + begin,
                job->y ? job->y + begin : NULL, &job->partial[task]);
}

DML__LOCAL int dml__reduce(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                           const float *y, double partial[DML__PARTIALS])
{
    dml__reduce_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.n = n;
    job.block = DML__BLOCK * dml__divide_up(n, DML__BLOCK * DML__PARTIALS);
    job.kernel = kernel;
    job.x = x;
    job.y = y;
    job.partial = partial;
    if (n == 0) return 0;
    const int tasks = (int)dml__divide_up(n, job.block);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__reduce_task, &job);
    return tasks;
}

#endif

/* ---- kernels/pool2d.c ---- */

#ifndef DML_KERNELS_POOL2D_C
#define DML_KERNELS_POOL2D_C

#include <string.h>

typedef struct dml__pool2d_job {
    dml_isa isa;
    const dml_pool2d_shape *shape;
    int out_height, out_width;
    const float *x;        /* forward: x; backward: dy */
    float *y;              /* forward: y; backward: dx */
    const int32_t *argmax; /* (N, OH, OW, C), for max_backward */
    int32_t *argmax_out;   /* the same for max_forward, or NULL */
    int32_t open;          /* of which a window counts whatever it holds: -1; if it is above 0: 0 */
    float beta;
    size_t rows, rows_per_task; /* a row is one (image, h) of the output: (W, C) floats */
} dml__pool2d_job;

#define DML__POOL_VECTORS 4 /* vectors of one pixel that are computed side by side */

/* Rows begin .. end - 1 of the output. */
typedef void (*dml__pool2d_kernel)(dml_isa isa, const dml__pool2d_job *job, size_t begin, size_t end);

typedef struct dml__window_span {
    int begin, end;
} dml__window_span;

/* The inputs that window `o` covers along one axis. Unsigned, since an input plus a pad need not fit an int.
 */
static inline dml__window_span dml__window(int o, int kernel, int stride, int pad, int in)
{
    dml__window_span span;
    const unsigned begin = (unsigned)o * (unsigned)stride, end = begin + (unsigned)(kernel - pad);
    span.begin = begin > (unsigned)pad ? (int)(begin - (unsigned)pad) : 0;
    span.end = end < (unsigned)in ? (int)end : in;
    return span;
}

/* The windows that cover input `i` along one axis: o * stride - pad <= i < o * stride - pad + kernel. */
static inline dml__window_span dml__windows_over(int i, int kernel, int stride, int pad, int out)
{
    dml__window_span span;
    const unsigned place = (unsigned)i + (unsigned)pad, size = (unsigned)kernel, step = (unsigned)stride;
    const unsigned last = place / step;
    span.begin = place < size ? 0 : (int)((place - size) / step + 1);
    span.end = last < (unsigned)out ? (int)last + 1 : out;
    return span;
}

/* How many inputs a window holds. */
static inline float dml__window_size(const dml__pool2d_job *job, int oh, int ow)
{
    const dml_pool2d_shape *s = job->shape;
    const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
    const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
    return (float)(h.end - h.begin) * (float)(w.end - w.begin);
}

/* A pixel's channels go in whole vectors, the last of which may reach into the next pixel: what it leaves
   there is overwritten when that one's turn comes, since a task's pixels are written in order. `reach` is
   where a pixel's vectors end: its channels in whole vectors, or, where these would reach beyond the array or
   into another task's part, its channels alone; those that fill no vector then go one by one. */
static inline size_t dml__pixel_reach(size_t channels)
{
    return dml__divide_up(channels, DML__LANES) * DML__LANES;
}

/* Takes `value` where it is larger, or the first NaN. */
DML__BODY void dml__max_take(dml__vf *largest, dml__vi *place, const float *from, int32_t here)
{
    const dml__vi zero = { 0 };
    const dml__vf value = DML__LOAD(from), before = *largest;
    const dml__vi take = ~(value <= before) & (before == before);
    *largest = DML__SELECT(take, value, before);
    *place = DML__SELECT_INT(take, zero + here, *place);
}

/* The place of a window's largest, or none. */
DML__BODY void dml__max_place(const dml__vf *largest, int32_t open, dml__vi *place)
{
    const dml__vi zero = { 0 };
    *place |= ~((*largest > 0.0f) | (zero + open)); /* -1 */
}

/* `count` vectors of a pixel's channels, side by side, since each waits for its last comparison. `x` is the
   image from their first channel on, `h` and `w` the window. */
DML__BODY void dml__max_vectors(int count, const dml_pool2d_shape *s, const float *x, dml__window_span h,
                                dml__window_span w, int32_t open, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    const int32_t first = h.begin * s->width + w.begin;
    dml__vf largest[DML__POOL_VECTORS] = { { 0 } };
    dml__vi place[DML__POOL_VECTORS] = { { 0 } }; /* from the first on */
    DML__UNROLLED
    for (int v = 0; v < count; v++)
        largest[v] = DML__LOAD(x + (size_t)first * channels + (size_t)v * DML__LANES);
    for (int ih = h.begin; ih < h.end; ih++)
        for (int iw = w.begin; iw < w.end; iw++) {
            const int32_t here = ih * s->width + iw;
            const float *from = x + (size_t)here * channels;
            DML__UNROLLED
            for (int v = 0; v < count; v++)
                dml__max_take(&largest[v], &place[v], from + v * DML__LANES, here - first);
        }
    DML__UNROLLED
    for (int v = 0; v < count; v++) {
        DML__STORE(y + v * DML__LANES, largest[v]);
        if (!argmax) continue;
        place[v] += first;
        dml__max_place(&largest[v], open, &place[v]);
        DML__STORE_INT(argmax + v * DML__LANES, place[v]);
    }
}

DML__BODY void dml__max_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, size_t reach, int32_t open, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    size_t c = 0;
    for (; c + DML__POOL_VECTORS * DML__LANES <= reach; c += DML__POOL_VECTORS * DML__LANES)
        dml__max_vectors(DML__POOL_VECTORS, s, x + c, h, w, open, y + c, argmax ? argmax + c : NULL);
    for (; c + DML__LANES <= reach; c += DML__LANES)
        dml__max_vectors(1, s, x + c, h, w, open, y + c, argmax ? argmax + c : NULL);
    for (; c < channels; c++) {
        int32_t place = h.begin * s->width + w.begin;
        float largest = x[(size_t)place * channels + c];
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const float value = x[(size_t)here * channels + c];
                const bool take = !(value <= largest) && largest == largest;
                largest = take ? value : largest;
                place = take ? here : place;
            }
        y[c] = largest;
        if (argmax) argmax[c] = largest > 0 || open ? place : -1;
    }
}

DML__BODY void dml__avg_vectors(int count, const dml_pool2d_shape *s, const float *x, dml__window_span h,
                                dml__window_span w, float *y)
{
    const size_t channels = (size_t)s->channels;
    const float size = (float)(h.end - h.begin) * (float)(w.end - w.begin);
    dml__vf sum[DML__POOL_VECTORS] = { { 0 } };
    for (int ih = h.begin; ih < h.end; ih++)
        for (int iw = w.begin; iw < w.end; iw++) {
            const float *from = x + (size_t)(ih * s->width + iw) * channels;
            DML__UNROLLED
            for (int v = 0; v < count; v++) sum[v] += DML__LOAD(from + v * DML__LANES);
        }
    DML__UNROLLED
    for (int v = 0; v < count; v++) DML__STORE(y + v * DML__LANES, sum[v] / size);
}

DML__BODY void dml__avg_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, size_t reach, float *y)
{
    const size_t channels = (size_t)s->channels;
    const float size = (float)(h.end - h.begin) * (float)(w.end - w.begin);
    size_t c = 0;
    for (; c + DML__POOL_VECTORS * DML__LANES <= reach; c += DML__POOL_VECTORS * DML__LANES)
        dml__avg_vectors(DML__POOL_VECTORS, s, x + c, h, w, y + c);
    for (; c + DML__LANES <= reach; c += DML__LANES) dml__avg_vectors(1, s, x + c, h, w, y + c);
    for (; c < channels; c++) {
        float sum = 0;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) sum += x[(size_t)(ih * s->width + iw) * channels + c];
        y[c] = sum / size;
    }
}

/* `count` pixels of one row of windows of 2 x 2 without padding, in whole vectors. `x` is the first window,
   `below` its second line, `place` where it lies in the image; the next is `step` pixels on. `with_argmax` is
   constant, here and with_beta below: a branch in the loop would cost more than the arithmetic. */
DML__BODY void dml__pool_row_of_2x2(bool max, bool with_argmax, size_t count, size_t channels, int32_t step,
                                    const float *x, const float *below, int32_t place, int32_t width,
                                    int32_t open, float *y, int32_t *argmax)
{
    const dml__vi zero = { 0 };
    dml__vi here = zero + place;
    for (size_t i = 0; i < count; i++, here += step) {
        for (size_t c = 0; c < channels; c += DML__LANES) {
            dml__vf value = DML__LOAD(x + c);
            if (max) {
                dml__vi offset = zero;
                dml__max_take(&value, &offset, x + channels + c, 1);
                dml__max_take(&value, &offset, below + c, width);
                dml__max_take(&value, &offset, below + channels + c, width + 1);
                offset += here;
                dml__max_place(&value, open, &offset);
                if (with_argmax) DML__STORE_INT(argmax + c, offset);
            } else {
                value = value + DML__LOAD(x + channels + c) + DML__LOAD(below + c);
                value = (value + DML__LOAD(below + channels + c)) / 4.0f;
            }
            DML__STORE(y + c, value);
        }
        x += (size_t)step * channels, below += (size_t)step * channels, y += channels;
        if (with_argmax) argmax += channels;
    }
}

/* How many pixels of `channels` floats, each `step` floats after the one before it, may be taken in whole
   vectors: the last ends within `left` floats of the first's beginning. */
static inline size_t dml__pixels_that_fit(size_t count, size_t step, size_t channels, size_t left)
{
    const size_t wide = dml__pixel_reach(channels);
    if (left >= count * step + wide) return count; /* nearly always, and needs no division */
    return left < wide ? 0 : dml__minimum(count, (left - wide) / step + 1);
}

DML__BODY void dml__pool_forward_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape shape = *job->shape, *s = &shape; /* a copy, which no store can change */
    const size_t channels = (size_t)s->channels, line = (size_t)s->width * channels;
    const size_t row_floats = (size_t)job->out_width * channels, wide = dml__pixel_reach(channels);
    const bool is_2x2 = s->kernel_h == 2 && s->kernel_w == 2 && s->pad_h == 0 && s->pad_w == 0;
    const float *x_end = job->x + (size_t)s->batch * (size_t)s->height * line;
    const float *y_end = job->y + end * row_floats;
    int oh = (int)(begin % (size_t)job->out_height);
    const float *x = job->x + begin / (size_t)job->out_height * (size_t)s->height * line;
    for (size_t row = begin; row < end; row++) {
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        float *y = job->y + row * row_floats;
        int32_t *argmax = job->argmax_out ? job->argmax_out + row * row_floats : NULL;
        int ow = 0;
        if (is_2x2) {
            const float *first = x + (size_t)h.begin * line, *last = first + line + channels;
            size_t count =
                dml__pixels_that_fit((size_t)job->out_width, channels, channels, (size_t)(y_end - y));
            count =
                dml__pixels_that_fit(count, (size_t)s->stride_w * channels, channels, (size_t)(x_end - last));
            if (max && argmax)
                dml__pool_row_of_2x2(true, true, count, channels, s->stride_w, first, first + line,
                                     h.begin * s->width, s->width, job->open, y, argmax);
            else
                dml__pool_row_of_2x2(max, false, count, channels, s->stride_w, first, first + line,
                                     h.begin * s->width, s->width, -1, y, NULL);
            ow = (int)count;
        }
        for (; ow < job->out_width; ow++) {
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            const size_t at = (size_t)ow * channels;
            const float *last = x + (size_t)(h.end - 1) * line + (size_t)(w.end - 1) * channels;
            const bool fits = (size_t)(y_end - y) >= at + wide && (size_t)(x_end - last) >= wide;
            if (max)
                dml__max_pixel(s, x, h, w, fits ? wide : channels, job->open, y + at,
                               argmax ? argmax + at : NULL);
            else
                dml__avg_pixel(s, x, h, w, fits ? wide : channels, y + at);
        }
        if (++oh == job->out_height) oh = 0, x += (size_t)s->height * line;
    }
}

DML__BODY void dml__max_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_forward_rows(true, job, begin, end);
}
DML__PER_ISA(dml__max_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

DML__BODY void dml__avg_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_forward_rows(false, job, begin, end);
}
DML__PER_ISA(dml__avg_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

/* The backward passes gather: each input sums over the windows that cover it, so no two tasks write the same
   place. `max`: a window counts where it was won here; else its share is one over its size. `image` is the
   first of the image's pixels in dy. */
DML__BODY void dml__pool_gradient_pixel(bool max, const dml__pool2d_job *job, size_t image, int32_t here,
                                        dml__window_span h, dml__window_span w, float *dx)
{
    const size_t channels = (size_t)job->shape->channels;
    const float beta = job->beta;
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf sum = { 0 };
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const size_t at = (image + (size_t)(oh * job->out_width + ow)) * channels + c;
                const dml__vf dy = DML__LOAD(job->x + at);
                if (max)
                    sum += (dml__vf)((dml__vi)dy & (DML__LOAD_INT(job->argmax + at) == here));
                else
                    sum += dy / dml__window_size(job, oh, ow);
            }
        if (beta != 0) sum = sum + beta * DML__LOAD(dx + c);
        DML__STORE(dx + c, sum);
    }
    for (; c < channels; c++) {
        float sum = 0;
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const size_t at = (image + (size_t)(oh * job->out_width + ow)) * channels + c;
                if (max)
                    sum += job->argmax[at] == here ? job->x[at] : 0;
                else
                    sum += job->x[at] / dml__window_size(job, oh, ow);
            }
        dx[c] = beta != 0 ? sum + beta * dx[c] : sum;
    }
}

/* `count` windows of one row that lie side by side, in whole vectors: the line of inputs that begins at place
   `here`, each covered by one window. `size` inputs are in a window. */
DML__BODY void dml__pool_gradient_of_tiles(bool max, bool with_beta, size_t count, int kernel,
                                           size_t channels, const float *dy, const int32_t *argmax,
                                           float size, int32_t here, float beta, float *dx)
{
    const dml__vf none = { 0 };
    const dml__vi zero = { 0 };
    dml__vi place = zero + here;
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < kernel; k++, dx += channels, place += 1)
            for (size_t c = 0; c < channels; c += DML__LANES) {
                dml__vf value = DML__LOAD(dy + c);
                if (max)
                    value = (dml__vf)((dml__vi)value & (DML__LOAD_INT(argmax + c) == place));
                else
                    value = value / size;
                value = none + value; /* makes 0 of -0, as a sum over windows does */
                if (with_beta) value = value + beta * DML__LOAD(dx + c);
                DML__STORE(dx + c, value);
            }
        dy += channels;
        if (max) argmax += channels;
    }
}

DML__BODY void dml__pool_gradient_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape shape = *job->shape, *s = &shape;
    const size_t channels = (size_t)s->channels, pixels = (size_t)job->out_height * (size_t)job->out_width;
    const size_t row_floats = (size_t)s->width * channels;
    const float *dy_end = job->x + (size_t)s->batch * pixels * channels, *dx_end = job->y + end * row_floats;
    /* Where it accumulates, a vector that reaches into the next pixel would spoil what is there. */
    const bool tiles =
        s->kernel_w == s->stride_w && s->pad_w == 0 && (job->beta == 0 || channels % DML__LANES == 0);
    int ih = (int)(begin % (size_t)s->height);
    size_t image = begin / (size_t)s->height * pixels;
    for (size_t row = begin; row < end; row++) {
        const dml__window_span h = dml__windows_over(ih, s->kernel_h, s->stride_h, s->pad_h, job->out_height);
        float *dx = job->y + row * row_floats;
        int iw = 0;
        if (tiles && h.end - h.begin == 1) {
            const size_t at = (image + (size_t)h.begin * (size_t)job->out_width) * channels;
            const float *dy = job->x + at;
            size_t count =
                dml__pixels_that_fit((size_t)job->out_width, channels, channels, (size_t)(dy_end - dy));
            /* the last pixel of each tile */
            const size_t others = (size_t)(s->kernel_w - 1) * channels;
            count = dml__pixels_that_fit(count, others + channels, channels, (size_t)(dx_end - dx) - others);
            const int32_t *argmax = max ? job->argmax + at : NULL;
            const float size = dml__window_size(job, h.begin, 0);
            if (job->beta != 0)
                dml__pool_gradient_of_tiles(max, true, count, s->kernel_w, channels, dy, argmax, size,
                                            ih * s->width, job->beta, dx);
            else
                dml__pool_gradient_of_tiles(max, false, count, s->kernel_w, channels, dy, argmax, size,
                                            ih * s->width, 0, dx);
            iw = (int)count * s->kernel_w;
        } else if (job->beta == 0 && h.begin >= h.end) {
            memset(dx, 0, row_floats * sizeof *dx);
            iw = s->width;
        }
        for (; iw < s->width; iw++) {
            const dml__window_span w =
                dml__windows_over(iw, s->kernel_w, s->stride_w, s->pad_w, job->out_width);
            dml__pool_gradient_pixel(max, job, image, ih * s->width + iw, h, w, dx + (size_t)iw * channels);
        }
        if (++ih == s->height) ih = 0, image += pixels;
    }
}

DML__BODY void dml__max_backward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_gradient_rows(true, job, begin, end);
}
DML__PER_ISA(dml__max_backward_rows, (const dml__pool2d_job *job, size_t begin, size_t end),
             (job, begin, end))

DML__BODY void dml__avg_backward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_gradient_rows(false, job, begin, end);
}
DML__PER_ISA(dml__avg_backward_rows, (const dml__pool2d_job *job, size_t begin, size_t end),
             (job, begin, end))

/* False for a shape that the header rules out. */
static bool dml__pool2d_start(dml__pool2d_job *job, const dml_pool2d_shape *s)
{
    if (s->batch < 0 || s->height < 1 || s->width < 1 || s->channels < 1 || s->kernel_h < 1 ||
        s->kernel_w < 1 || s->stride_h < 1 || s->stride_w < 1 || s->pad_h < 0 || s->pad_w < 0 ||
        s->pad_h >= s->kernel_h || s->pad_w >= s->kernel_w)
        return false;
    if (s->height > INT32_MAX / s->width) return false;
    memset(job, 0, sizeof *job);
    job->isa = dml_cpu_isa();
    job->shape = s;
    job->out_height = dml_conv2d_output_size(s->height, s->kernel_h, s->stride_h, s->pad_h);
    job->out_width = dml_conv2d_output_size(s->width, s->kernel_w, s->stride_w, s->pad_w);
    if (!job->out_height || !job->out_width || job->out_height > INT32_MAX / job->out_width) return false;
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, job->out_height, job->out_width, s->channels);
}

typedef struct dml__pool2d_run {
    const dml__pool2d_job *job;
    dml__pool2d_kernel kernel;
} dml__pool2d_run;

static void dml__pool2d_task(void *argument, int task, int worker)
{
    const dml__pool2d_run *run = (const dml__pool2d_run *)argument;
    const dml__pool2d_job *job = run->job;
    const size_t begin = (size_t)task * job->rows_per_task;
    (void)worker;
    run->kernel(job->isa, job, begin, dml__minimum(begin + job->rows_per_task, job->rows));
}

/* Runs over the rows of an output of `height` rows an image; each reads and writes about one row of x. */
static dml_status dml__pool2d_over_rows(dml_pool *pool, dml__pool2d_job *job, int height,
                                        dml__pool2d_kernel kernel)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t work = (size_t)s->height * (size_t)s->width * (size_t)s->channels / (size_t)height;
    dml__pool2d_run run;
    job->rows = (size_t)s->batch * (size_t)height;
    job->rows_per_task = dml__items_per_task(work);
    run.job = job;
    run.kernel = kernel;
    const int tasks = (int)dml__divide_up(job->rows, job->rows_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__pool2d_task, &run);
    return DML_OK;
}

static dml_status dml__max_pool2d(dml_pool *pool, const dml_pool2d_shape *shape, const float *x, int32_t open,
                                  float *y, int32_t *argmax)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    job.argmax_out = argmax;
    job.open = open;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__max_forward_rows);
}

DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax)
{
    return dml__max_pool2d(pool, shape, x, -1, y, argmax);
}

DML_API dml_status dml_max_pool2d_of_relu_forward(dml_pool *pool, const dml_pool2d_shape *shape,
                                                  const float *x, float *y, int32_t *argmax)
{
    return dml__max_pool2d(pool, shape, x, 0, y, argmax);
}

DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = dy;
    job.y = dx;
    job.argmax = argmax;
    job.beta = beta;
    return dml__pool2d_over_rows(pool, &job, shape->height, dml__max_backward_rows);
}

DML_API dml_status dml_avg_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__avg_forward_rows);
}

DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = dy;
    job.y = dx;
    job.beta = beta;
    return dml__pool2d_over_rows(pool, &job, shape->height, dml__avg_backward_rows);
}

#endif

/* ---- kernels/slice2d.c ---- */

#ifndef DML_KERNELS_SLICE2D_C
#define DML_KERNELS_SLICE2D_C

#include <string.h>

static bool dml__slice2d_axis_ok(const dml_slice2d_axis *a)
{
    return a->in >= 1 && a->out >= 1 && a->begin >= 0 && a->step >= 1 && a->count >= 0 && a->before >= 0 &&
           (a->count == 0 || (int64_t)a->begin + (int64_t)(a->count - 1) * a->step < a->in) &&
           (int64_t)a->before + a->count <= a->out;
}

static dml_status dml__slice2d_check(const dml_slice2d_shape *s)
{
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const bool ok = s->batch >= 0 && dml__slice2d_axis_ok(h) && dml__slice2d_axis_ok(w) &&
                    dml__slice2d_axis_ok(c) && dml__floats_fit(s->batch, h->in, w->in, c->in) &&
                    dml__floats_fit(s->batch, h->out, w->out, c->out) &&
                    (int64_t)s->batch * h->in <= INT32_MAX && (int64_t)s->batch * h->out <= INT32_MAX;
    return ok ? DML_OK : DML_ERROR_ARGUMENT;
}

typedef struct dml__slice2d_job {
    const dml_slice2d_shape *shape;
    const float *from;
    float *to;
    float beta;
    size_t lines, lines_per_task; /* lines of `to`, of all images */
} dml__slice2d_job;

static void dml__slice2d_run(dml_pool *pool, dml__slice2d_job *job, size_t line, dml_pool_task task)
{
    job->lines_per_task = dml__items_per_task(line);
    const size_t tasks = dml__divide_up(job->lines, job->lines_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, task, job);
}

static void dml__slice2d_copy_line(const dml_slice2d_shape *s, const float *x, float *y)
{
    const dml_slice2d_axis *w = &s->axis[1], *c = &s->axis[2];
    const size_t before = (size_t)c->before, count = (size_t)c->count, step = (size_t)c->step;
    const size_t out = (size_t)c->out;
    memset(y, 0, (size_t)w->before * out * sizeof *y);
    y += (size_t)w->before * out;
    for (int i = 0; i < w->count; i++, y += out) {
        const float *from = x + ((size_t)w->begin + (size_t)i * (size_t)w->step) * (size_t)c->in + c->begin;
        memset(y, 0, before * sizeof *y);
        if (step == 1)
            memcpy(y + before, from, count * sizeof *y);
        else
            for (size_t k = 0; k < count; k++) y[before + k] = from[k * step];
        memset(y + before + count, 0, (out - before - count) * sizeof *y);
    }
    memset(y, 0, (size_t)(w->out - w->before - w->count) * out * sizeof *y);
}

static void dml__slice2d_forward_task(void *argument, int task, int worker)
{
    const dml__slice2d_job *job = (const dml__slice2d_job *)argument;
    const dml_slice2d_shape *s = job->shape;
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const size_t in_line = (size_t)w->in * (size_t)c->in, out_line = (size_t)w->out * (size_t)c->out;
    const size_t begin = (size_t)task * job->lines_per_task;
    const size_t end = dml__minimum(begin + job->lines_per_task, job->lines);
    (void)worker;
    for (size_t line = begin; line < end; line++) {
        const size_t image = line / (size_t)h->out;
        const int i = (int)(line % (size_t)h->out) - h->before;
        float *y = job->to + line * out_line;
        if (i < 0 || i >= h->count) {
            memset(y, 0, out_line * sizeof *y);
            continue;
        }
        const size_t from = image * (size_t)h->in + (size_t)h->begin + (size_t)i * (size_t)h->step;
        dml__slice2d_copy_line(s, job->from + from * in_line, y);
    }
}

DML_API dml_status dml_slice2d_forward(dml_pool *pool, const dml_slice2d_shape *shape, const float *x,
                                       float *y)
{
    const dml_status status = dml__slice2d_check(shape);
    if (status != DML_OK) return status;
    const dml_slice2d_axis *axis = shape->axis;
    dml__slice2d_job job = { shape, x, y, 0, (size_t)shape->batch * (size_t)axis[0].out, 0 };
    dml__slice2d_run(pool, &job, (size_t)axis[1].out * (size_t)axis[2].out, dml__slice2d_forward_task);
    return DML_OK;
}

static void dml__slice2d_add_line(const dml_slice2d_shape *s, const float *dy, float *dx)
{
    const dml_slice2d_axis *w = &s->axis[1], *c = &s->axis[2];
    const size_t step = (size_t)c->step;
    for (int i = 0; i < w->count; i++) {
        const float *from = dy + ((size_t)w->before + (size_t)i) * (size_t)c->out + c->before;
        float *to = dx + ((size_t)w->begin + (size_t)i * (size_t)w->step) * (size_t)c->in + c->begin;
        for (size_t k = 0; k < (size_t)c->count; k++) to[k * step] += from[k];
    }
}

static void dml__slice2d_backward_task(void *argument, int task, int worker)
{
    const dml__slice2d_job *job = (const dml__slice2d_job *)argument;
    const dml_slice2d_shape *s = job->shape;
    const dml_slice2d_axis *h = &s->axis[0], *w = &s->axis[1], *c = &s->axis[2];
    const size_t in_line = (size_t)w->in * (size_t)c->in, out_line = (size_t)w->out * (size_t)c->out;
    const size_t begin = (size_t)task * job->lines_per_task;
    const size_t end = dml__minimum(begin + job->lines_per_task, job->lines);
    (void)worker;
    for (size_t line = begin; line < end; line++) {
        const size_t image = line / (size_t)h->in;
        const int at = (int)(line % (size_t)h->in) - h->begin, i = at / h->step;
        float *dx = job->to + line * in_line;
        if (job->beta == 0) memset(dx, 0, in_line * sizeof *dx);
        if (job->beta != 0 && job->beta != 1)
            for (size_t k = 0; k < in_line; k++) dx[k] *= job->beta;
        if (at < 0 || at % h->step || i >= h->count) continue;
        const size_t from = image * (size_t)h->out + (size_t)h->before + (size_t)i;
        dml__slice2d_add_line(s, job->from + from * out_line, dx);
    }
}

DML_API dml_status dml_slice2d_backward(dml_pool *pool, const dml_slice2d_shape *shape, const float *dy,
                                        float beta, float *dx)
{
    const dml_status status = dml__slice2d_check(shape);
    if (status != DML_OK) return status;
    const dml_slice2d_axis *axis = shape->axis;
    dml__slice2d_job job = { shape, dy, dx, beta, (size_t)shape->batch * (size_t)axis[0].in, 0 };
    dml__slice2d_run(pool, &job, (size_t)axis[1].in * (size_t)axis[2].in, dml__slice2d_backward_task);
    return DML_OK;
}

#endif

/* ---- kernels/norm.c ---- */

#ifndef DML_KERNELS_NORM_C
#define DML_KERNELS_NORM_C

#include <math.h>
#include <string.h>

/* Few channels fill no vectors, so several rows are taken as one wide row: how many, for whole vectors and at
   least `width` columns. 1 where there are channels enough. */
static size_t dml__norm_fold(size_t channels, size_t width)
{
    size_t fold = 1;
    if (channels >= width || channels >= 32) return 1;
    while (fold < DML__LANES && channels * fold % DML__LANES) fold *= 2;
    while (channels * fold < width) fold *= 2;
    return fold;
}

/* ---- two sums of each column ---- */

#define DML__NORM_BLOCKS ((size_t)16)     /* of rows, at most, each a task, */
#define DML__NORM_PARTIALS ((size_t)2048) /* and of blocks times columns */
#define DML__NORM_MOST ((size_t)512)      /* columns that are done at once */
#define DML__NORM_NEAR ((size_t)128)   /* columns of rows that are short enough to go down them in strips */
#define DML__NORM_CHUNK ((size_t)128)  /* rows summed in float */
#define DML__NORM_SAMPLES ((size_t)32) /* rows whose mean is what distances are taken from */

/* Backward through a relu: which elements dy counts for, by y = factor (x - mean) + shift, computed as
   forward computes it, bit for bit. */
typedef struct dml__norm_gate {
    const float *factor, *shift; /* of each column */
    int32_t open;                /* -1: there is no relu, and all count; else 0 */
} dml__norm_gate;

DML__BODY void dml__norm_pass(const dml__norm_gate *gate, size_t c, const dml__vf *distance, dml__vf *dy)
{
    const dml__vi zero = { 0 };
    const dml__vf y = DML__LOAD(gate->shift + c) + DML__LOAD(gate->factor + c) * *distance;
    *dy = (dml__vf)((dml__vi)*dy & ((y > 0.0f) | (zero + gate->open)));
}

DML__BODY float dml__norm_pass_one(const dml__norm_gate *gate, size_t c, float distance, float dy)
{
    const float y = gate->shift[c] + gate->factor[c] * distance;
    return y > 0 || gate->open ? dy : 0;
}

/* A matrix of rows that lie `stride` apart; the sums are added to first[c], second[c], c < width. */
typedef struct dml__norm_matrix {
    size_t rows, stride, width;
    const float *x, *dy;
    const float *center; /* (width) */
    dml__norm_gate gate;
    double *first, *second;
} dml__norm_matrix;

/* a += x - center, b += (x - center)^2; or, where there is a dy, a += dy, b += dy (x - center), the vectors
   of column c. */
DML__BODY void dml__norm_add(bool backward, const dml__norm_gate *gate, size_t c, dml__vf *a, dml__vf *b,
                             const dml__vf *center, const float *x, const float *dy)
{
    const dml__vf distance = DML__LOAD(x) - *center;
    dml__vf first = distance;
    if (backward) {
        first = DML__LOAD(dy);
        dml__norm_pass(gate, c, &distance, &first);
    }
    *a += first;
    *b += first * distance;
}

DML__BODY void dml__norm_add_lanes(double *sum, const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    for (int lane = 0; lane < DML__LANES; lane++) sum[lane] += (double)lanes[lane];
}

/* Four vectors of columns over a chunk of rows, their sums in registers. */
DML__BODY void dml__norm_strip(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf c0 = DML__LOAD(m->center + c), c1 = DML__LOAD(m->center + c + DML__LANES);
    const dml__vf c2 = DML__LOAD(m->center + c + 2 * DML__LANES);
    const dml__vf c3 = DML__LOAD(m->center + c + 3 * DML__LANES);
    dml__vf a0, a1, a2, a3, b0, b1, b2, b3;
    dml__splat(&a0, 0);
    a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride) {
        dml__norm_add(backward, &gate, c, &a0, &b0, &c0, x, dy);
        dml__norm_add(backward, &gate, c + DML__LANES, &a1, &b1, &c1, x + DML__LANES, dy + DML__LANES);
        dml__norm_add(backward, &gate, c + 2 * DML__LANES, &a2, &b2, &c2, x + 2 * DML__LANES,
                      dy + 2 * DML__LANES);
        dml__norm_add(backward, &gate, c + 3 * DML__LANES, &a3, &b3, &c3, x + 3 * DML__LANES,
                      dy + 3 * DML__LANES);
    }
    double *first = m->first + c, *second = m->second + c;
    dml__norm_add_lanes(first, &a0);
    dml__norm_add_lanes(first + DML__LANES, &a1);
    dml__norm_add_lanes(first + 2 * DML__LANES, &a2);
    dml__norm_add_lanes(first + 3 * DML__LANES, &a3);
    dml__norm_add_lanes(second, &b0);
    dml__norm_add_lanes(second + DML__LANES, &b1);
    dml__norm_add_lanes(second + 2 * DML__LANES, &b2);
    dml__norm_add_lanes(second + 3 * DML__LANES, &b3);
}

DML__BODY void dml__norm_vector(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    const dml__norm_gate gate = m->gate;
    const float *x = m->x + begin * m->stride + c, *dy = backward ? m->dy + begin * m->stride + c : x;
    const dml__vf center = DML__LOAD(m->center + c);
    dml__vf a, b;
    dml__splat(&a, 0);
    b = a;
    for (size_t r = 0; r < rows; r++, x += m->stride, dy += m->stride)
        dml__norm_add(backward, &gate, c, &a, &b, &center, x, dy);
    dml__norm_add_lanes(m->first + c, &a);
    dml__norm_add_lanes(m->second + c, &b);
}

DML__BODY void dml__norm_column(bool backward, const dml__norm_matrix *m, size_t c, size_t begin, size_t rows)
{
    float a = 0, b = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float distance = m->x[r * m->stride + c] - m->center[c];
        float value = distance;
        if (backward) value = dml__norm_pass_one(&m->gate, c, distance, m->dy[r * m->stride + c]);
        a += value;
        b += value * distance;
    }
    m->first[c] += (double)a;
    m->second[c] += (double)b;
}

DML__BODY void dml__norm_strips(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    size_t c = 0;
    for (; c + 4 * DML__LANES <= m->width; c += 4 * DML__LANES) dml__norm_strip(backward, m, c, begin, rows);
    for (; c + DML__LANES <= m->width; c += DML__LANES) dml__norm_vector(backward, m, c, begin, rows);
    for (; c < m->width; c++) dml__norm_column(backward, m, c, begin, rows);
}

/* Long rows are read from end to end, which memory does best. */
DML__BODY void dml__norm_rows(bool backward, size_t begin, size_t rows, const dml__norm_matrix *m)
{
    const dml__norm_gate gate = m->gate;
    float a[DML__NORM_MOST], b[DML__NORM_MOST];
    for (size_t c = 0; c < m->width; c++) a[c] = b[c] = 0;
    for (size_t r = begin; r < begin + rows; r++) {
        const float *x = m->x + r * m->stride, *dy = backward ? m->dy + r * m->stride : x;
        size_t c = 0;
        for (; c + DML__LANES <= m->width; c += DML__LANES) {
            const dml__vf center = DML__LOAD(m->center + c);
            dml__vf sum = DML__LOAD(a + c), product = DML__LOAD(b + c);
            dml__norm_add(backward, &gate, c, &sum, &product, &center, x + c, dy + c);
            DML__STORE(a + c, sum);
            DML__STORE(b + c, product);
        }
        for (; c < m->width; c++) {
            const float distance = x[c] - m->center[c];
            const float value = backward ? dml__norm_pass_one(&gate, c, distance, dy[c]) : distance;
            a[c] += value;
            b[c] += value * distance;
        }
    }
    for (size_t c = 0; c < m->width; c++) {
        m->first[c] += (double)a[c];
        m->second[c] += (double)b[c];
    }
}

DML__BODY void dml__norm_any(bool backward, const dml__norm_matrix *m)
{
    for (size_t begin = 0; begin < m->rows; begin += DML__NORM_CHUNK) {
        const size_t rows = dml__minimum(DML__NORM_CHUNK, m->rows - begin);
        if (m->stride <= DML__NORM_NEAR)
            dml__norm_strips(backward, begin, rows, m);
        else
            dml__norm_rows(backward, begin, rows, m);
    }
}

DML__BODY void dml__norm_moments_body(const dml__norm_matrix *m)
{
    dml__norm_any(false, m);
}
DML__PER_ISA(dml__norm_moments, (const dml__norm_matrix *m), (m))

DML__BODY void dml__norm_products_body(const dml__norm_matrix *m)
{
    dml__norm_any(true, m);
}
DML__PER_ISA(dml__norm_products, (const dml__norm_matrix *m), (m))

/* The sums of a group of columns. */
typedef struct dml__norm_job {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_block;
    const float *x, *dy; /* (rows, channels), from the group's first column on; dy NULL: the moments of x */
    const float *center; /* (columns) */
    dml__norm_gate gate; /* of the group's columns */
    double *partial;     /* (blocks, 2, columns) */
} dml__norm_job;

static void dml__norm_sum_matrix(const dml__norm_job *job, const dml__norm_matrix *m)
{
    if (job->dy)
        dml__norm_products(job->isa, m);
    else
        dml__norm_moments(job->isa, m);
}

static void dml__norm_task(void *argument, int task, int worker)
{
    const dml__norm_job *job = (const dml__norm_job *)argument;
    const size_t row = (size_t)task * job->rows_per_block, columns = job->columns;
    const size_t rows = dml__minimum(job->rows_per_block, job->rows - row);
    const size_t wide_rows = rows / job->fold, width = columns * job->fold;
    float center[DML__NORM_MOST], factor[DML__NORM_MOST], shift[DML__NORM_MOST];
    double first[DML__NORM_MOST], second[DML__NORM_MOST];
    (void)worker;
    for (size_t i = 0; i < width; i++) {
        center[i] = job->center[i % columns];
        factor[i] = job->dy ? job->gate.factor[i % columns] : 0;
        shift[i] = job->dy ? job->gate.shift[i % columns] : 0;
        first[i] = second[i] = 0;
    }
    const size_t at = row * job->channels, rest = at + wide_rows * job->fold * job->channels;
    dml__norm_matrix m = {
        wide_rows, job->channels * job->fold,         width, job->x + at, job->dy ? job->dy + at : NULL,
        center,    { factor, shift, job->gate.open }, first, second
    };
    dml__norm_sum_matrix(job, &m);
    m.rows = rows % job->fold;
    m.stride = job->channels;
    m.width = columns;
    m.x = job->x + rest;
    if (job->dy) m.dy = job->dy + rest;
    dml__norm_sum_matrix(job, &m);
    double *partial = job->partial + (size_t)task * 2 * columns;
    for (size_t c = 0; c < columns; c++) {
        partial[c] = partial[columns + c] = 0;
        for (size_t i = c; i < width; i += columns) {
            partial[c] += first[i];
            partial[columns + c] += second[i];
        }
    }
}

/* first[c] and second[c] of a group of columns. */
DML__NOINLINE static void dml__norm_sums(dml_pool *pool, dml__norm_job *job, double *first, double *second)
{
    double partial[DML__NORM_PARTIALS * 2];
    const size_t columns = job->columns;
    const size_t most = dml__minimum(DML__NORM_BLOCKS, DML__NORM_PARTIALS / columns);
    job->isa = dml__pool_machine(pool).isa;
    job->fold = columns == job->channels ? dml__norm_fold(columns, 4 * DML__LANES) : 1;
    job->rows_per_block = dml__divide_up(job->rows, most);
    if (job->rows_per_block * columns < DML__BLOCK) job->rows_per_block = dml__divide_up(DML__BLOCK, columns);
    job->rows_per_block = dml__divide_up(job->rows_per_block, job->fold) * job->fold;
    job->partial = partial;
    const size_t blocks = dml__divide_up(job->rows, job->rows_per_block);
    dml_pool_run(blocks > 1 ? pool : NULL, (int)blocks, dml__norm_task, job);
    for (size_t c = 0; c < columns; c++) {
        first[c] = second[c] = 0;
        for (size_t b = 0; b < blocks; b++) {
            first[c] += partial[2 * b * columns + c];
            second[c] += partial[(2 * b + 1) * columns + c];
        }
    }
}

/* What the distances are taken from: near enough to the mean that their squares lose no digits to it. Rows
   from all over x are taken, so a strange beginning doesn't decide. */
static void dml__norm_center(const dml__norm_job *job, float *center)
{
    const size_t samples = dml__minimum(DML__NORM_SAMPLES, job->rows);
    for (size_t c = 0; c < job->columns; c++) center[c] = 0;
    for (size_t i = 0; i < samples; i++) {
        const float *row = job->x + job->rows / samples * i * job->channels;
        for (size_t c = 0; c < job->columns; c++) center[c] += row[c] / (float)samples;
    }
}

static dml__norm_job dml__norm_group(size_t rows, size_t channels, size_t column, const float *x,
                                     const float *dy, const float *center)
{
    dml__norm_job job;
    memset(&job, 0, sizeof job);
    job.rows = rows;
    job.channels = channels;
    job.columns = dml__minimum(DML__NORM_MOST, channels - column);
    job.x = x + column;
    job.dy = dy ? dy + column : NULL;
    job.center = center;
    return job;
}

DML_API void dml_batch_statistics(dml_pool *pool, size_t rows, size_t channels, const float *x, float *mean,
                                  float *variance)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        float center[DML__NORM_MOST];
        double first[DML__NORM_MOST], second[DML__NORM_MOST];
        dml__norm_job job = dml__norm_group(rows, channels, column, x, NULL, center);
        dml__norm_center(&job, center);
        dml__norm_sums(pool, &job, first, second);
        const double count = rows ? (double)rows : 1;
        for (size_t c = 0; c < job.columns; c++) {
            const double distance = first[c] / count, square = second[c] / count - distance * distance;
            mean[column + c] = (float)((double)center[c] + distance);
            variance[column + c] = square < 0 ? 0.0f : (float)square;
        }
    }
}

/* 1 / sqrt(variance + epsilon) */
static double dml__norm_inverse(const dml_normalization *by, size_t c)
{
    return 1 / sqrt((double)by->variance[c] + (double)by->epsilon);
}

static float dml__norm_factor(const dml_normalization *by, size_t c)
{
    return (float)((double)by->scale[c] * dml__norm_inverse(by, c));
}

static int32_t dml__norm_open(const dml_normalization *by)
{
    return by->activation == DML_ACTIVATION_RELU ? 0 : -1;
}

DML_API void dml_batch_norm_backward_parameters(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                                const dml_normalization *by, const float *dy, float *dscale,
                                                float *dshift)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        float factor[DML__NORM_MOST];
        double first[DML__NORM_MOST], second[DML__NORM_MOST];
        dml__norm_job job = dml__norm_group(rows, channels, column, x, dy, by->mean + column);
        for (size_t c = 0; c < job.columns; c++) factor[c] = dml__norm_factor(by, column + c);
        job.gate.factor = factor;
        job.gate.shift = by->shift + column;
        job.gate.open = dml__norm_open(by);
        dml__norm_sums(pool, &job, first, second);
        for (size_t c = 0; c < job.columns; c++) {
            dshift[column + c] = (float)first[c];
            dscale[column + c] = (float)(second[c] * dml__norm_inverse(by, column + c));
        }
    }
}

/* ---- each element from those of its place and numbers of its channel ---- */

typedef struct dml__norm_map {
    dml_isa isa;
    size_t rows, channels, columns, fold, rows_per_task;
    const float *x, *dy; /* from the group's first column on; dy NULL: forward */
    float *out;
    float beta;
    int32_t open; /* -1: there is no relu; else 0 */
    /* For each column of a wide row: forward: factor (x - mean) + shift; backward: factor dy +
       distance (x - mean) + base, for dy that counts. */
    float mean[DML__NORM_MOST], factor[DML__NORM_MOST], shift[DML__NORM_MOST];
    float distance[DML__NORM_MOST], base[DML__NORM_MOST];
} dml__norm_map;

/* Elements [at, at + rows * stride) in rows of `width`. */
DML__BODY void dml__norm_map_any(bool backward, bool adds, const dml__norm_map *map, size_t at, size_t rows,
                                 size_t stride, size_t width)
{
    const dml__vi zero = { 0 }, open = zero + map->open;
    const dml__norm_gate gate = { map->factor, map->shift, map->open };
    for (size_t r = 0; r < rows; r++, at += stride) {
        const float *x = map->x + at, *dy = backward ? map->dy + at : x;
        float *out = map->out + at;
        size_t c = 0;
        for (; c + DML__LANES <= width; c += DML__LANES) {
            const dml__vf distance = DML__LOAD(x + c) - DML__LOAD(map->mean + c);
            dml__vf value;
            if (backward) {
                dml__vf d = DML__LOAD(dy + c);
                dml__norm_pass(&gate, c, &distance, &d);
                value = DML__LOAD(map->base + c);
                value += DML__LOAD(map->distance + c) * distance + DML__LOAD(map->factor + c) * d;
            } else {
                value = DML__LOAD(map->shift + c) + DML__LOAD(map->factor + c) * distance;
                value = (dml__vf)((dml__vi)value & (~(value <= 0.0f) | open)); /* keeps a NaN */
            }
            if (adds) value += map->beta * DML__LOAD(out + c);
            DML__STORE(out + c, value);
        }
        for (; c < width; c++) {
            const float distance = x[c] - map->mean[c];
            float value;
            if (backward) {
                const float d = dml__norm_pass_one(&gate, c, distance, dy[c]);
                value = map->base[c];
                value += map->distance[c] * distance + map->factor[c] * d;
            } else {
                value = map->shift[c] + map->factor[c] * distance;
                if (value <= 0 && !map->open) value = 0;
            }
            if (adds) value += map->beta * out[c];
            out[c] = value;
        }
    }
}

DML__BODY void dml__norm_map_rows_body(const dml__norm_map *map, size_t at, size_t rows, size_t stride,
                                       size_t width)
{
    if (!map->dy)
        dml__norm_map_any(false, false, map, at, rows, stride, width);
    else if (map->beta == 0)
        dml__norm_map_any(true, false, map, at, rows, stride, width);
    else
        dml__norm_map_any(true, true, map, at, rows, stride, width);
}
DML__PER_ISA(dml__norm_map_rows,
             (const dml__norm_map *map, size_t at, size_t rows, size_t stride, size_t width),
             (map, at, rows, stride, width))

static void dml__norm_map_task(void *argument, int task, int worker)
{
    const dml__norm_map *map = (const dml__norm_map *)argument;
    const size_t row = (size_t)task * map->rows_per_task;
    const size_t rows = dml__minimum(map->rows_per_task, map->rows - row), wide_rows = rows / map->fold;
    const size_t at = row * map->channels, wide = map->fold * map->channels;
    (void)worker;
    dml__norm_map_rows(map->isa, map, at, wide_rows, wide, map->fold * map->columns);
    dml__norm_map_rows(map->isa, map, at + wide_rows * wide, rows % map->fold, map->channels, map->columns);
}

static void dml__norm_map_run(dml_pool *pool, dml__norm_map *map)
{
    map->isa = dml__pool_machine(pool).isa;
    map->fold = map->columns == map->channels ? dml__norm_fold(map->columns, 128) : 1;
    for (size_t i = map->columns; i < map->fold * map->columns; i++) {
        map->mean[i] = map->mean[i - map->columns];
        map->factor[i] = map->factor[i - map->columns];
        map->shift[i] = map->shift[i - map->columns];
        map->distance[i] = map->distance[i - map->columns];
        map->base[i] = map->base[i - map->columns];
    }
    map->rows_per_task = dml__divide_up(dml__items_per_task(map->columns), map->fold) * map->fold;
    const size_t tasks = dml__divide_up(map->rows, map->rows_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__norm_map_task, map);
}

/* Of the channels from `column` on; what backward adds is left out. */
static void dml__norm_map_group(dml__norm_map *map, size_t rows, size_t channels, size_t column,
                                const float *x, const dml_normalization *by, float *out)
{
    map->rows = rows;
    map->channels = channels;
    map->columns = dml__minimum(DML__NORM_MOST, channels - column);
    map->x = x + column;
    map->dy = NULL;
    map->out = out + column;
    map->beta = 0;
    map->open = dml__norm_open(by);
    for (size_t c = 0; c < map->columns; c++) {
        map->mean[c] = by->mean[column + c];
        map->factor[c] = dml__norm_factor(by, column + c);
        map->shift[c] = by->shift[column + c];
        map->distance[c] = map->base[c] = 0;
    }
}

DML_API void dml_batch_norm_forward(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                    const dml_normalization *by, float *y)
{
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        dml__norm_map_group(&map, rows, channels, column, x, by, y);
        dml__norm_map_run(pool, &map);
    }
}

/* dx = scale inverse (dy - mean of dy - (x - mean) inverse^2 mean of dy (x - mean)), the two means being zero
   where the statistics are constants. */
DML_API void dml_batch_norm_backward_input(dml_pool *pool, size_t rows, size_t channels, const float *x,
                                           const dml_normalization *by, const float *dy, const float *dscale,
                                           const float *dshift, float beta, float *dx)
{
    const double count = rows ? (double)rows : 1;
    for (size_t column = 0; column < channels; column += DML__NORM_MOST) {
        dml__norm_map map;
        dml__norm_map_group(&map, rows, channels, column, x, by, dx);
        map.dy = dy + column;
        map.beta = beta;
        for (size_t c = 0; c < map.columns; c++) {
            const size_t at = column + c;
            const double inverse = dml__norm_inverse(by, at), factor = (double)by->scale[at] * inverse;
            if (dscale) map.distance[c] = (float)(-factor * inverse * (double)dscale[at] / count);
            if (dshift) map.base[c] = (float)(-factor * (double)dshift[at] / count);
        }
        dml__norm_map_run(pool, &map);
    }
}

#endif

/* ---- kernels/reduce.c ---- */

#ifndef DML_KERNELS_REDUCE_C
#define DML_KERNELS_REDUCE_C

#include <math.h>
#include <string.h>

/* Sums. A chunk is summed in four vectors of floats, which are then added up in double: each float takes part
   in a few dozen float additions at most, however long the array. */
#define DML__SUM_STRIDE (4 * DML__LANES)
#define DML__SUM_CHUNK ((size_t)32 * DML__SUM_STRIDE)

enum dml__sum_kind { DML__SUM_PLAIN, DML__SUM_PRODUCT, DML__SUM_SQUARED_DIFFERENCE };

DML__BODY void dml__sum_add(enum dml__sum_kind kind, dml__vf *sum, const float *x, const float *y)
{
    if (kind == DML__SUM_PLAIN) {
        *sum += DML__LOAD(x);
    } else if (kind == DML__SUM_PRODUCT) {
        *sum += DML__LOAD(x) * DML__LOAD(y);
    } else {
        const dml__vf difference = DML__LOAD(x) - DML__LOAD(y);
        *sum += difference * difference;
    }
}

DML__BODY double dml__sum_one(enum dml__sum_kind kind, const float *x, const float *y)
{
    if (kind == DML__SUM_PLAIN) return (double)*x;
    if (kind == DML__SUM_PRODUCT) return (double)*x * (double)*y;
    return ((double)*x - (double)*y) * ((double)*x - (double)*y);
}

/* The plain sum never reads `y`. */
DML__BODY double dml__sum_any(enum dml__sum_kind kind, size_t n, const float *x, const float *y)
{
    const size_t whole = n - n % DML__SUM_STRIDE;
    const size_t y_step = kind == DML__SUM_PLAIN ? 0 : 1;
    double total = 0;
    size_t i = 0;
    while (i < whole) {
        const size_t end = dml__minimum(i + DML__SUM_CHUNK, whole);
        dml__vf a, b, c, d;
        dml__splat(&a, 0);
        b = a, c = a, d = a;
        for (; i < end; i += DML__SUM_STRIDE) {
            dml__sum_add(kind, &a, x + i, y + i * y_step);
            dml__sum_add(kind, &b, x + i + DML__LANES, y + (i + DML__LANES) * y_step);
            dml__sum_add(kind, &c, x + i + 2 * DML__LANES, y + (i + 2 * DML__LANES) * y_step);
            dml__sum_add(kind, &d, x + i + 3 * DML__LANES, y + (i + 3 * DML__LANES) * y_step);
        }
        a = (a + b) + (c + d);
        total += dml__add_lanes(&a);
    }
    for (; i < n; i++) total += dml__sum_one(kind, x + i, y + i * y_step);
    return total;
}

DML__BODY void dml__sum_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_PLAIN, n, x, y);
}
DML__PER_ISA(dml__sum_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML__BODY void dml__dot_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_PRODUCT, n, x, y);
}
DML__PER_ISA(dml__dot_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML__BODY void dml__distance_block_body(size_t n, const float *x, const float *y, double *result)
{
    *result = dml__sum_any(DML__SUM_SQUARED_DIFFERENCE, n, x, y);
}
DML__PER_ISA(dml__distance_block, (size_t n, const float *x, const float *y, double *result),
             (n, x, y, result))

static double dml__sum_blocks(dml_pool *pool, size_t n, dml__reduce_kernel kernel, const float *x,
                              const float *y)
{
    double partial[DML__PARTIALS], sum = 0;
    const int count = dml__reduce(pool, n, kernel, x, y, partial);
    for (int i = 0; i < count; i++) sum += partial[i];
    return sum;
}

DML_API float dml_sum(dml_pool *pool, size_t n, const float *x)
{
    return (float)dml__sum_blocks(pool, n, dml__sum_block, x, x);
}

DML_API float dml_dot(dml_pool *pool, size_t n, const float *x, const float *y)
{
    return (float)dml__sum_blocks(pool, n, dml__dot_block, x, y);
}

DML_API float dml_squared_distance(dml_pool *pool, size_t n, const float *x, const float *y)
{
    return (float)dml__sum_blocks(pool, n, dml__distance_block, x, y);
}

/* The maximum, where a NaN counts as the largest: a lane that holds a NaN is never replaced by a number. */
DML__BODY void dml__raise(dml__vf *maximum, const dml__vf *x)
{
    *maximum = DML__SELECT((*x > *maximum) | (*x != *x), *x, *maximum);
}

static inline float dml__larger_float(float a, float b)
{
    return b > a || b != b ? b : a;
}

DML__BODY void dml__max_block_body(size_t n, const float *x, const float *y, double *result)
{
    dml__vf a, b;
    float largest = -HUGE_VALF;
    size_t i = 0;
    (void)y;
    dml__splat(&a, largest);
    b = a;
    for (; i + 2 * DML__LANES <= n; i += 2 * DML__LANES) {
        const dml__vf u = DML__LOAD(x + i), v = DML__LOAD(x + i + DML__LANES);
        dml__raise(&a, &u);
        dml__raise(&b, &v);
    }
    dml__raise(&a, &b);
    for (int lane = 0; lane < DML__LANES; lane++) largest = dml__larger_float(largest, a[lane]);
    for (; i < n; i++) largest = dml__larger_float(largest, x[i]);
    *result = (double)largest;
}
DML__PER_ISA(dml__max_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML_API float dml_max(dml_pool *pool, size_t n, const float *x)
{
    double partial[DML__PARTIALS];
    float largest = -HUGE_VALF;
    const int count = dml__reduce(pool, n, dml__max_block, x, NULL, partial);
    for (int i = 0; i < count; i++) largest = dml__larger_float(largest, (float)partial[i]);
    return largest;
}

/* Column sums. A task sums a block of rows for a group of columns; the sums of the blocks meet in a small
   array on the stack. How many of each there are depends on the shape alone. */
#define DML__SUM_ROWS_BLOCKS ((size_t)8)
#define DML__SUM_ROWS_SPLIT ((size_t)512) /* the most columns for which the rows are split */
#define DML__SUM_ROWS_GROUP ((size_t)256) /* columns of a group where there are more */
#define DML__SUM_ROWS_NARROW ((size_t)64) /* fewer columns are summed DML__LANES rows at a time */
#define DML__SUM_ROWS_CHUNK ((size_t)128) /* rows summed before they are added to the total */
#define DML__SUM_ROWS_WIDTH ((size_t)512) /* floats of a task's sums, at most */
#define DML__SUM_ROWS_VECTORS 8           /* summed side by side, in registers */

/* total[c] += the sums of `rows` rows from column c on, `count` vectors of them. */
DML__BODY void dml__sum_column_vectors(int count, size_t rows, size_t stride, const float *x, float *total)
{
    dml__vf sum[DML__SUM_ROWS_VECTORS] = { { 0 } };
    for (size_t r = 0; r < rows; r++, x += stride) {
        DML__UNROLLED
        for (int v = 0; v < count; v++) sum[v] += DML__LOAD(x + v * DML__LANES);
    }
    DML__UNROLLED
    for (int v = 0; v < count; v++)
        DML__STORE(total + v * DML__LANES, DML__LOAD(total + v * DML__LANES) + sum[v]);
}

/* total[c] = sum over r of x[r stride + c], c < width. */
DML__BODY void dml__sum_columns_body(size_t rows, size_t stride, size_t width, const float *x, float *total)
{
    for (size_t c = 0; c < width; c++) total[c] = 0;
    for (size_t begin = 0; begin < rows; begin += DML__SUM_ROWS_CHUNK) {
        const size_t count = dml__minimum(DML__SUM_ROWS_CHUNK, rows - begin);
        const float *from = x + begin * stride;
        size_t c = 0;
        for (; c + DML__SUM_ROWS_VECTORS * DML__LANES <= width; c += DML__SUM_ROWS_VECTORS * DML__LANES)
            dml__sum_column_vectors(DML__SUM_ROWS_VECTORS, count, stride, from + c, total + c);
        for (; c + 2 * DML__LANES <= width; c += 2 * DML__LANES)
            dml__sum_column_vectors(2, count, stride, from + c, total + c);
        for (; c + DML__LANES <= width; c += DML__LANES)
            dml__sum_column_vectors(1, count, stride, from + c, total + c);
        for (; c < width; c++) {
            float sum = 0;
            for (size_t r = 0; r < count; r++) sum += from[r * stride + c];
            total[c] += sum;
        }
    }
}
DML__PER_ISA(dml__sum_columns, (size_t rows, size_t stride, size_t width, const float *x, float *total),
             (rows, stride, width, x, total))

/* The same for a narrow matrix without gaps: DML__LANES rows are taken as one wide one, which fills whole
   vectors, and folded at the end. */
static void dml__sum_narrow(dml_isa isa, size_t rows, size_t columns, const float *x, float *total)
{
    const size_t width = columns * DML__LANES, wide_rows = rows / DML__LANES;
    const float *rest = x + wide_rows * width;
    dml__sum_columns(isa, wide_rows, width, width, x, total);
    for (size_t i = 0; i < rows % DML__LANES * columns; i++) total[i] += rest[i];
    for (size_t i = columns; i < width; i++) total[i % columns] += total[i];
}

typedef struct dml__sum_rows_job {
    dml_isa isa;
    size_t rows, columns, rows_per_block, blocks, group;
    const float *x; /* (rows, columns) */
    float beta;
    float *y;       /* (columns) */
    float *partial; /* (blocks, columns), where there are several blocks */
} dml__sum_rows_job;

static void dml__finish_columns(const dml__sum_rows_job *job, size_t column, size_t count, const float *total)
{
    float *y = job->y + column;
    for (size_t c = 0; c < count; c++) y[c] = job->beta != 0 ? total[c] + job->beta * y[c] : total[c];
}

static void dml__sum_rows_task(void *argument, int task, int worker)
{
    dml__sum_rows_job *job = (dml__sum_rows_job *)argument;
    const size_t row = (size_t)task % job->blocks * job->rows_per_block;
    const size_t column = (size_t)task / job->blocks * job->group;
    const size_t rows = dml__minimum(job->rows_per_block, job->rows - row);
    const size_t count = dml__minimum(job->group, job->columns - column);
    const float *x = job->x + row * job->columns + column;
    float total[DML__SUM_ROWS_WIDTH];
    (void)worker;
    if (job->columns < DML__SUM_ROWS_NARROW)
        dml__sum_narrow(job->isa, rows, count, x, total);
    else
        dml__sum_columns(job->isa, rows, job->columns, count, x, total);
    if (job->blocks > 1)
        memcpy(job->partial + row / job->rows_per_block * job->columns, total, count * sizeof *total);
    else
        dml__finish_columns(job, column, count, total);
}

/* The rows in blocks: on a stack frame of its own, since few calls need so much of it. */
DML__NOINLINE static void dml__sum_rows_split(dml_pool *pool, dml__sum_rows_job *job)
{
    float partial[DML__SUM_ROWS_BLOCKS * DML__SUM_ROWS_SPLIT];
    job->partial = partial;
    dml_pool_run(pool, (int)job->blocks, dml__sum_rows_task, job);
    for (size_t b = 1; b < job->blocks; b++)
        for (size_t c = 0; c < job->columns; c++) partial[c] += partial[b * job->columns + c];
    dml__finish_columns(job, 0, job->columns, partial);
}

DML_API void dml_sum_rows(dml_pool *pool, size_t rows, size_t columns, const float *x, float beta, float *y)
{
    const bool split = columns <= DML__SUM_ROWS_SPLIT && rows * columns > DML__BLOCK;
    dml__sum_rows_job job;
    if (columns == 0) return;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.columns = columns;
    job.group = columns <= DML__SUM_ROWS_SPLIT ? columns : DML__SUM_ROWS_GROUP;
    job.rows_per_block = split ? dml__divide_up(rows, DML__SUM_ROWS_BLOCKS) : rows;
    if (split && job.rows_per_block * columns < DML__BLOCK)
        job.rows_per_block = dml__divide_up(DML__BLOCK, columns);
    job.blocks = split ? dml__divide_up(rows, job.rows_per_block) : 1;
    job.x = x;
    job.beta = beta;
    job.y = y;
    job.partial = NULL;
    if (job.blocks > 1)
        dml__sum_rows_split(pool, &job);
    else
        dml_pool_run(rows * columns > DML__BLOCK ? pool : NULL, (int)dml__divide_up(columns, job.group),
                     dml__sum_rows_task, &job);
}

typedef struct dml__sum_axis_job {
    dml_isa isa;
    size_t outer, n, inner;
    const float *x; /* (outer, n, inner) */
    float beta;
    float *y; /* (outer, inner) */
} dml__sum_axis_job;

static void dml__sum_axis_task(void *argument, int task, int worker)
{
    const dml__sum_axis_job *job = (const dml__sum_axis_job *)argument;
    const size_t each = job->n * job->inner, step = dml__items_per_task(each);
    const size_t begin = (size_t)task * step, end = dml__minimum(begin + step, job->outer);
    (void)worker;
    for (size_t o = begin; o < end; o++) {
        float *y = job->y + o * job->inner;
        if (job->inner > 1) {
            dml_sum_rows(NULL, job->n, job->inner, job->x + o * each, job->beta, y);
            continue;
        }
        double sum = 0;
        if (job->n) dml__sum_block(job->isa, job->n, job->x + o * each, NULL, &sum);
        *y = job->beta == 0 ? (float)sum : (float)(sum + (double)job->beta * (double)*y);
    }
}

DML_API void dml_sum_axis(dml_pool *pool, size_t outer, size_t n, size_t inner, const float *x, float beta,
                          float *y)
{
    dml__sum_axis_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.outer = outer;
    job.n = n;
    job.inner = inner;
    job.x = x;
    job.beta = beta;
    job.y = y;
    if (outer == 1 && inner > 1)
        dml_sum_rows(pool, n, inner, x, beta, y);
    else if (outer == 1 && n > 0)
        *y = beta == 0 ? dml_sum(pool, n, x) : dml_sum(pool, n, x) + beta * *y;
    else if (inner > 0)
        dml_pool_run(pool, (int)dml__divide_up(outer, dml__items_per_task(n * inner)), dml__sum_axis_task,
                     &job);
}

typedef struct dml__argmax_job {
    dml_isa isa;
    size_t rows, columns;
    const float *x; /* (rows, columns) */
    int32_t *out;
} dml__argmax_job;

static void dml__argmax_task(void *argument, int task, int worker)
{
    const dml__argmax_job *job = (const dml__argmax_job *)argument;
    const size_t step = dml__items_per_task(job->columns), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        const float *row = job->x + r * job->columns;
        double largest;
        size_t c = 0;
        dml__max_block(job->isa, job->columns, row, NULL, &largest);
        const bool is_nan = largest != largest;
        while (c + 1 < job->columns && !(is_nan ? row[c] != row[c] : row[c] == (float)largest)) c++;
        job->out[r] = (int32_t)c;
    }
}

DML_API void dml_argmax(dml_pool *pool, size_t rows, size_t columns, const float *x, int32_t *out)
{
    dml__argmax_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.columns = columns;
    job.x = x;
    job.out = out;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(columns));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__argmax_task, &job);
}

#endif

/* ---- kernels/broadcast.c ---- */

#ifndef DML_KERNELS_BROADCAST_C
#define DML_KERNELS_BROADCAST_C

/* ---- kernels/broadcast.h ---- */

/* broadcast.h: operands that are smaller than the result, and the sums that are their gradients. */
#ifndef DML_KERNELS_BROADCAST_H
#define DML_KERNELS_BROADCAST_H

#define DML__BROADCAST_DIMS 6

/* Where the operand's element for each element of the result lies: the result's dimensions, outermost first,
   with the operand's stride in each, 0 where it is repeated. Neighbours that one stride serves are one. */
typedef struct dml__broadcast {
    int dims; /* at least 1 */
    size_t size[DML__BROADCAST_DIMS], stride[DML__BROADCAST_DIMS];
} dml__broadcast;

/* Of the result's `dims` sizes, and the operand's in the same places: the same, or 1. */
DML__LOCAL dml__broadcast dml__broadcast_of(int dims, const size_t *result, const size_t *operand);

/* Whether the operand has the result's elements in their order. */
static inline bool dml__broadcast_is_plain(const dml__broadcast *broadcast)
{
    return broadcast->dims == 1 && broadcast->stride[0] == 1;
}

/* to[0 .. count - 1] = the operand's for elements begin .. begin + count - 1 of the result. */
DML__LOCAL void dml__broadcast_copy(const dml__broadcast *broadcast, const float *operand, size_t begin,
                                    size_t count, float *to);

/* Sums over repeated dimensions happen one at a time, innermost first: y[o][i] = sum over k of x[o][k][i]. */
typedef struct dml__broadcast_sum {
    size_t outer, n, inner;
} dml__broadcast_sum;

/* The sums that make of an array like the result one like the operand, in order; returns how many. Each but
   the last is written elsewhere: it has outer x inner elements, at most half as many as it sums. */
DML__LOCAL int dml__broadcast_sums(const dml__broadcast *broadcast,
                                   dml__broadcast_sum sums[DML__BROADCAST_DIMS]);

/* How many floats of scratch dml__sum_broadcast takes. */
DML__LOCAL size_t dml__sum_broadcast_scratch(const dml__broadcast *broadcast);

/* y = the sum of x, which is like the result, over all elements that share one of the operand's, + beta y. */
DML__LOCAL void dml__sum_broadcast(dml_pool *pool, const dml__broadcast *broadcast, const float *x,
                                   float *scratch, float beta, float *y);

#endif

#include <string.h>

DML__LOCAL dml__broadcast dml__broadcast_of(int dims, const size_t *result, const size_t *operand)
{
    dml__broadcast b;
    size_t stride = 1;
    int last = -1;
    for (int d = 0; d < dims; d++) stride *= operand[d];
    for (int d = 0; d < dims; d++) {
        if (operand[d] > 1) stride /= operand[d];
        if (result[d] == 1) continue;
        const size_t step = operand[d] == 1 ? 0 : stride;
        if (last >= 0 && b.stride[last] == step * result[d])
            b.size[last] *= result[d];
        else
            b.size[++last] = result[d];
        b.stride[last] = step;
    }
    if (last < 0) {
        last = 0;
        b.size[0] = b.stride[0] = 1;
    }
    b.dims = last + 1;
    return b;
}

DML__LOCAL void dml__broadcast_copy(const dml__broadcast *broadcast, const float *operand, size_t begin,
                                    size_t count, float *to)
{
    const int last = broadcast->dims - 1;
    const size_t length = broadcast->size[last], stride = broadcast->stride[last];
    size_t at[DML__BROADCAST_DIMS], left = begin;
    for (int d = last; d >= 0; d--) {
        at[d] = left % broadcast->size[d];
        left /= broadcast->size[d];
    }
    while (count > 0) {
        const size_t run = dml__minimum(length - at[last], count);
        const float *from = operand;
        for (int d = 0; d <= last; d++) from += at[d] * broadcast->stride[d];
        if (stride == 1)
            memcpy(to, from, run * sizeof(float));
        else
            for (size_t i = 0; i < run; i++) to[i] = *from; /* innermost, it is else repeated */
        to += run;
        count -= run;
        at[last] = 0;
        for (int d = last - 1; d >= 0 && ++at[d] == broadcast->size[d]; d--) at[d] = 0;
    }
}

DML__LOCAL int dml__broadcast_sums(const dml__broadcast *broadcast,
                                   dml__broadcast_sum sums[DML__BROADCAST_DIMS])
{
    int count = 0;
    size_t inner = 1;
    for (int d = broadcast->dims - 1; d >= 0; d--) {
        if (broadcast->stride[d]) {
            inner *= broadcast->size[d];
            continue;
        }
        dml__broadcast_sum *sum = &sums[count++];
        sum->outer = 1;
        for (int k = 0; k < d; k++) sum->outer *= broadcast->size[k];
        sum->n = broadcast->size[d];
        sum->inner = inner;
    }
    return count;
}

DML__LOCAL size_t dml__sum_broadcast_scratch(const dml__broadcast *broadcast)
{
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(broadcast, sums);
    size_t floats = 0;
    for (int i = 0; i < count - 1; i++) floats += sums[i].outer * sums[i].inner;
    return floats;
}

DML__LOCAL void dml__sum_broadcast(dml_pool *pool, const dml__broadcast *broadcast, const float *x,
                                   float *scratch, float beta, float *y)
{
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(broadcast, sums);
    for (int i = 0; i < count; i++) {
        const dml__broadcast_sum *sum = &sums[i];
        const bool last = i == count - 1;
        dml_sum_axis(pool, sum->outer, sum->n, sum->inner, x, last ? beta : 0.0f, last ? y : scratch);
        x = scratch;
        scratch += last ? 0 : sum->outer * sum->inner;
    }
}

#endif

/* ---- kernels/formula.c ---- */

#ifndef DML_KERNELS_FORMULA_C
#define DML_KERNELS_FORMULA_C

/* ---- kernels/formula.h ---- */

/* formula.h: the functions of formulas.h over arrays, with operands that may be smaller than the result. */
#ifndef DML_KERNELS_FORMULA_H
#define DML_KERNELS_FORMULA_H

/* ---- kernels/formulas.h ---- */

/* formulas.h: the functions of one element, each a row: from it come the CPU's loops (kernels/formula.c), the
   case of the shared kernel (gpu/formula.cl) and the op (ops/op_formula.c).

   The words of a formula, which each of those defines for its own kind of number:

   VALUE              a number, for what is used twice: VALUE s = SIGMOID(a);
   a, b, c            the inputs; y the output, dy its gradient, d the gradient asked for
   P, Q               the op's own two numbers
   K(1.0f)            a constant, where a word takes a VALUE; beside an operator it may stand bare
   WHERE(m, x, y)     m ? x : y, both computed; m a comparison, or several joined by & and |
   EXP EXPM1 LOG LOG1P TANH SIGMOID ERF SQRT ABS(x), POW(x, y)

   `needs` is what the gradients read: A and B inputs, Y the output. */
#ifndef DML_KERNELS_FORMULAS_H
#define DML_KERNELS_FORMULAS_H

/* X(name, needs, forward, gradient of a). The relu of a NaN is NaN, so that it gets through. 0.7071 is
   sqrt(1/2), 0.3989 sqrt(1 / 2 pi), 1.5958 2 sqrt(2 / pi), 0.07135 0.044715 of that. */
#define DML__FORMULAS_1(X)                                                                                   \
    X(relu, DML__NEEDS_Y, y = WHERE(a <= 0.0f, K(0.0f), a), d = WHERE(y > 0.0f, dy, K(0.0f)))                \
    X(leaky_relu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * a), d = WHERE(a > 0.0f, dy, P * dy))              \
    X(elu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * EXPM1(a)), d = WHERE(a > 0.0f, dy, P * EXP(a) * dy))     \
    X(gelu, DML__NEEDS_A, y = 0.5f * a * (1.0f + ERF(a * 0.707106781f)),                                     \
      d = dy * (0.5f * (1.0f + ERF(a * 0.707106781f)) + a * (0.398942280f * EXP(-0.5f * a * a))))            \
    X(gelu_tanh, DML__NEEDS_A, y = a * SIGMOID(a * (1.59576912f + 0.0713548163f * a * a)),                   \
      VALUE s = SIGMOID(a * (1.59576912f + 0.0713548163f * a * a));                                          \
      d = dy * s * (1.0f + (1.0f - s) * a * (1.59576912f + 0.214064449f * a * a)))                           \
    X(silu, DML__NEEDS_A, y = a * SIGMOID(a), VALUE s = SIGMOID(a); d = dy * s * (1.0f + a * (1.0f - s)))    \
    X(sigmoid, DML__NEEDS_Y, y = SIGMOID(a), d = dy * y * (1.0f - y))                                        \
    X(tanh, DML__NEEDS_Y, y = TANH(a), d = dy * (1.0f - y * y))                                              \
    X(softplus, DML__NEEDS_A, y = WHERE(a > 0.0f, a, K(0.0f)) + LOG1P(EXP(-ABS(a))), d = dy * SIGMOID(a))    \
    X(exp, DML__NEEDS_Y, y = EXP(a), d = dy * y)                                                             \
    X(log, DML__NEEDS_A, y = LOG(a), d = dy / a)                                                             \
    X(sqrt, DML__NEEDS_Y, y = SQRT(a), d = 0.5f * dy / y)                                                    \
    X(abs, DML__NEEDS_A, y = ABS(a), d = WHERE(a > 0.0f, dy, WHERE(a < 0.0f, -dy, K(0.0f))))                 \
    X(square, DML__NEEDS_A, y = a * a, d = 2.0f * a * dy)                                                    \
    X(pow, DML__NEEDS_A, y = POW(a, P), d = P * POW(a, P - 1.0f) * dy)                                       \
    X(clamp, DML__NEEDS_A, y = WHERE(a < P, P, WHERE(a > Q, Q, a)),                                          \
      d = WHERE((a >= P) & (a <= Q), dy, K(0.0f)))                                                           \
    X(affine, 0, y = P * a + Q, d = P * dy)

/* X(name, inputs, first, needs, forward, gradient of input `first`, of the next). Of equals, each is half
   the maximum; what is not a number is the largest and the smallest. */
#define DML__FORMULAS_2(X)                                                                                   \
    X(add, 2, 0, 0, y = a + b, d = dy, d = dy)                                                               \
    X(sub, 2, 0, 0, y = a - b, d = dy, d = -dy)                                                              \
    X(mul, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a * b, d = dy * b, d = dy * a)                             \
    X(div, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a / b, d = dy / b, d = -(dy / b) * (a / b))                \
    X(maximum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a >= b, a, WHERE(a < b, b, a + b)),              \
      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \
      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \
    X(minimum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a <= b, a, WHERE(a > b, b, a + b)),              \
      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \
      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \
    X(where, 3, 1, DML__NEEDS_A, y = WHERE(a != 0.0f, b, c), d = WHERE(a != 0.0f, dy, K(0.0f)),              \
      d = WHERE(a != 0.0f, K(0.0f), dy))

/* X(name, forward): of two inputs, 1 or 0, through which no gradient flows. */
#define DML__FORMULAS_FLAT(X)                                                                                \
    X(equal, y = WHERE(a == b, K(1.0f), K(0.0f)))                                                            \
    X(not_equal, y = WHERE(a != b, K(1.0f), K(0.0f)))                                                        \
    X(less, y = WHERE(a < b, K(1.0f), K(0.0f)))                                                              \
    X(less_equal, y = WHERE(a <= b, K(1.0f), K(0.0f)))

#define DML__NEEDS_A 1u
#define DML__NEEDS_B 2u
#define DML__NEEDS_Y 4u

enum {
#define DML__FORMULA_ENUM_1(name, needs, forward, gradient) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_2(name, inputs, first, needs, forward, gradient0, gradient1) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_FLAT(name, forward) DML__FORMULA_##name,
    DML__FORMULAS_1(DML__FORMULA_ENUM_1) DML__FORMULAS_2(DML__FORMULA_ENUM_2)
        DML__FORMULAS_FLAT(DML__FORMULA_ENUM_FLAT) DML__FORMULA_COUNT
#undef DML__FORMULA_ENUM_1
#undef DML__FORMULA_ENUM_2
#undef DML__FORMULA_ENUM_FLAT
};

#endif

#define DML__FORMULA_INPUTS 3
#define DML__FORMULA_GRADIENTS 2

typedef struct dml__formula_row {
    const char *name;
    int inputs;
    int first, gradients; /* the first input that has a gradient, and how many have */
    unsigned needs;
} dml__formula_row;

/* NULL past the last. */
DML__LOCAL const dml__formula_row *dml__formula_row_of(int formula);

/* The operands of one call. Those that an output's memory may be are plain. */
typedef struct dml__formula_call {
    int formula;
    size_t n; /* elements of the result */
    float p, q;
    const float *in[DML__FORMULA_INPUTS]; /* NULL: not read */
    dml__broadcast layout[DML__FORMULA_INPUTS];
} dml__formula_call;

/* For arrays of n elements each, as the callers of the public functions have them. */
DML__LOCAL dml__formula_call dml__formula_plain(int formula, size_t n, const float *a, const float *b);

/* y = the formula, and of that the relu if asked for. */
DML__LOCAL void dml__formula_forward(dml_pool *pool, const dml__formula_call *call, bool relu, float *y);

/* gradient[i] = that of input first + i, (n) also where the input is smaller, + beta[i] x what is there;
   NULL: not wanted. One may be dy; the first is written before the second is added to it where they are the
   same. */
DML__LOCAL void dml__formula_backward(dml_pool *pool, const dml__formula_call *call, const float *y,
                                      const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                      const float beta[DML__FORMULA_GRADIENTS]);

#endif

/* ---- kernels/vector_math.h ---- */

/* vector_math.h: functions of a vector's lanes, as building blocks of kernels.

   Bounds are in units in the last place of the exact result (ulp), for every float, also those with a
   denormal result, with and without FMA; tests/kernels/vector_math_test.c holds them. Special values give
   what C's functions give; which NaN is not said. Polynomials are minimax (Remez) in their relative error,
   their coefficients rounded to floats. */
#ifndef DML_KERNELS_VECTOR_MATH_H
#define DML_KERNELS_VECTOR_MATH_H

#include <math.h>

#define DML__SIGN_BIT ((int32_t)-0x7fffffff - 1)

/* x = e^x to within 1.25 ulp; inf, 0 and NaN where they belong, gradual underflow kept.
   e^x = 2^k e^r with k = round(x / ln 2) and r = x - k ln 2, where ln 2 is cut into 355/512, which times k is
   exact, and the rest (Cody and Waite, "Software Manual for the Elementary Functions", 1980). For
   |r| <= ln 2 / 2, e^r = 1 + r + r^2 q(r): error 5e-9. */
DML__BODY void dml__vector_exp(dml__vf *x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    dml__vf v = *x, highest, lowest;
    dml__splat(&highest, 89.0f); /* e^89 overflows, e^-104 rounds to 0 */
    dml__splat(&lowest, -104.0f);
    v = DML__SELECT(v > highest, highest, v);
    v = DML__SELECT(v < lowest, lowest, v);
    const dml__vf shifted = v * 1.44269504f + shift;
    const dml__vf k = shifted - shift;
    const dml__vf r = (v - k * 0.693359375f) - k * -2.12194440e-4f;
    dml__vf q = r * 0.00138144672f + 0.00836878084f;
    q = q * r + 0.0416683927f;
    q = q * r + 0.166665196f;
    q = q * r + 0.49999994f;
    const dml__vf power = (q * (r * r) + r) + 1.0f;
    /* 2^k in two factors, since it may lie outside the range of floats where the product doesn't. */
    const dml__vi whole = (dml__vi)((dml__vu)shifted - 0x4B400000u);
    const dml__vi half = whole >> 1;
    const dml__vf scale_a = (dml__vf)(((dml__vu)half + 127u) << 23);
    const dml__vf scale_b = (dml__vf)(((dml__vu)whole - (dml__vu)half + 127u) << 23);
    *x = (power * scale_a) * scale_b;
}

/* x = the natural logarithm of x to within 1 ulp; -inf for 0, NaN below.
   x = 2^k m with m in sqrt(1/2) .. sqrt(2), and f = m - 1: log x = k ln 2 + (f - f^2 / 2 + f^3 q(f)), ln 2
   cut as in dml__vector_exp: error 7e-9. */
DML__BODY void dml__vector_log(dml__vf *x)
{
    const dml__vf v = *x, none = { 0 };
    const dml__vi tiny = v < 1.17549435e-38f; /* denormals are scaled by 2^23 */
    const dml__vu bits = (dml__vu)DML__SELECT(tiny, v * 8388608.0f, v);
    const dml__vi whole = (dml__vi)(bits - 0x3F3504F3u) >> 23;
    const dml__vf f = (dml__vf)(bits - ((dml__vu)whole << 23)) - 1.0f;
    const dml__vf shifted = (dml__vf)((whole - (tiny & 23)) + 0x4B400000);
    const dml__vf k = shifted - 12582912.0f, square = f * f;
    dml__vf q = f * -0.0763450265f + 0.12761578f;
    q = q * f - 0.13160181f;
    q = q * f + 0.142017573f;
    q = q * f - 0.166233569f;
    q = q * f + 0.200012267f;
    q = q * f - 0.250008196f;
    q = q * f + 0.333333313f;
    dml__vf y = q * (f * square) + k * -2.12194440e-4f;
    y = (f + (y - square * 0.5f)) + k * 0.693359375f;
    y = DML__SELECT(v == 0.0f, none - HUGE_VALF, y);
    y = DML__SELECT(v < 0.0f, none - NAN, y);
    *x = DML__SELECT(v < HUGE_VALF, y, v); /* inf and NaN stay */
}

/* x = tanh x to within 2 ulp. For m = |x| < 0.625, m + m^3 q(m^2) (error 5e-9), since the other form cancels
   there; else (1 - e) / (1 + e) with e = exp(-2 m); then the sign of x. */
DML__BODY void dml__vector_tanh(dml__vf *x)
{
    const dml__vf v = *x, m = (dml__vf)((dml__vi)v & ~DML__SIGN_BIT), square = v * v;
    dml__vf q = square * -0.00571704563f + 0.020650588f;
    q = q * square - 0.0537434965f;
    q = q * square + 0.133314908f;
    q = q * square - 0.333332837f;
    const dml__vf inner = q * (square * m) + m;
    dml__vf e = m * -2.0f;
    dml__vector_exp(&e);
    const dml__vf y = DML__SELECT(m < 0.625f, inner, (1.0f - e) / (1.0f + e));
    *x = (dml__vf)((dml__vi)y | ((dml__vi)v & DML__SIGN_BIT));
}

/* x = 1 / (1 + e^-x) to within 2.5 ulp, from e^-|x|, which doesn't overflow. */
DML__BODY void dml__vector_sigmoid(dml__vf *x)
{
    const dml__vf v = *x;
    dml__vf e = (dml__vf)((dml__vi)v | DML__SIGN_BIT), one;
    dml__vector_exp(&e);
    dml__splat(&one, 1.0f);
    *x = DML__SELECT(v < 0.0f, e, one) / (1.0f + e);
}

/* x = erf x to within 2 ulp. For m = |x| < 0.9, m + m q(m^2) (error 1e-9); else 1 - e^p(m), where e^p is
   erfc (error 7e-9 of erf), and 1 from 3.95 on; then the sign of x. */
DML__BODY void dml__vector_erf(dml__vf *x)
{
    const dml__vf v = *x, m = (dml__vf)((dml__vi)v & ~DML__SIGN_BIT), square = v * v;
    dml__vf q = square * 8.51310397e-05f - 0.000817563909f, most, e;
    q = q * square + 0.00520385895f;
    q = q * square - 0.0268605091f;
    q = q * square + 0.112837151f;
    q = q * square - 0.376126349f;
    q = q * square + 0.128379166f;
    const dml__vf inner = q * m + m;
    dml__splat(&most, 3.95f);
    const dml__vf t = DML__SELECT(m > most, most, m);
    e = t * 0.000198218928f - 0.00306548341f;
    e = e * t + 0.0223151855f;
    e = e * t - 0.104113623f;
    e = e * t - 0.636976123f;
    e = e * t - 1.12779725f;
    e = e * t - 0.00016645588f;
    dml__vector_exp(&e);
    const dml__vf y = DML__SELECT(m < 0.9f, inner, 1.0f - e);
    *x = (dml__vf)((dml__vi)y | ((dml__vi)v & DML__SIGN_BIT));
}

/* x = e^x - 1 for x <= 0, to within 5 ulp: for t = tanh(x / 2) it is 2 t / (1 - t). */
DML__BODY void dml__vector_expm1(dml__vf *x)
{
    dml__vf t = *x * 0.5f;
    dml__vector_tanh(&t);
    *x = (t + t) / (1.0f - t);
}

/* x = log(1 + x) for x in 0 .. 1, to within 3 ulp: what 1 + x loses of x is a factor of the result too
   (Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991, theorem 4).
 */
DML__BODY void dml__vector_log1p(dml__vf *x)
{
    const dml__vf v = *x, u = v + 1.0f, rounded = u - 1.0f;
    dml__vf y = u;
    dml__vector_log(&y);
    *x = DML__SELECT(rounded == 0.0f, v, y * (v / rounded));
}

DML__BODY void dml__vector_abs(dml__vf *x)
{
    *x = (dml__vf)((dml__vi)*x & ~DML__SIGN_BIT);
}

/* Lane by lane, by the C library. */
static void dml__sqrt_lanes(float lanes[DML__LANES])
{
    for (int i = 0; i < DML__LANES; i++) lanes[i] = sqrtf(lanes[i]);
}

DML__BODY void dml__vector_sqrt(dml__vf *x)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *x);
    dml__sqrt_lanes(lanes);
    *x = DML__LOAD(lanes);
}

static void dml__pow_lanes(float lanes[DML__LANES], const float power[DML__LANES])
{
    for (int i = 0; i < DML__LANES; i++) lanes[i] = powf(lanes[i], power[i]);
}

DML__BODY void dml__vector_pow(dml__vf *x, const dml__vf *power)
{
    float lanes[DML__LANES], powers[DML__LANES];
    DML__STORE(lanes, *x);
    DML__STORE(powers, *power);
    dml__pow_lanes(lanes, powers);
    *x = DML__LOAD(lanes);
}

#endif

#include <math.h>
#include <string.h>

/* ---- a loop for each formula and each gradient ---- */

/* What a loop reads and writes; what the formula doesn't need is NULL. */
typedef struct dml__formula_at {
    const float *in[DML__FORMULA_INPUTS];
    const float *y, *dy;
    float *out;
    float p, q;
} dml__formula_at;

/* Elements 0 .. n - 1, n a multiple of DML__LANES. */
typedef void dml__formula_loop(dml_isa isa, size_t n, const dml__formula_at *at);

/* The words of formulas.h for vectors. */
#define VALUE const dml__vf
#define DML__WORD(function, x)                                                                               \
    __extension__({                                                                                          \
        dml__vf dml__word = (x);                                                                             \
        function(&dml__word);                                                                                \
        dml__word;                                                                                           \
    })
#define K(constant) (zero + (constant))
#define WHERE(mask, x, y) DML__SELECT(mask, x, y)
#define EXP(x) DML__WORD(dml__vector_exp, x)
#define EXPM1(x) DML__WORD(dml__vector_expm1, x)
#define LOG(x) DML__WORD(dml__vector_log, x)
#define LOG1P(x) DML__WORD(dml__vector_log1p, x)
#define TANH(x) DML__WORD(dml__vector_tanh, x)
#define SIGMOID(x) DML__WORD(dml__vector_sigmoid, x)
#define ERF(x) DML__WORD(dml__vector_erf, x)
#define ABS(x) DML__WORD(dml__vector_abs, x)
#define SQRT(x) DML__WORD(dml__vector_sqrt, x)
#define POW(x, power)                                                                                        \
    __extension__({                                                                                          \
        dml__vf dml__word = (x), dml__power = (power);                                                       \
        dml__vector_pow(&dml__word, &dml__power);                                                            \
        dml__word;                                                                                           \
    })
#define P p
#define Q q

/* What the statements mention, beyond what a row's needs can be. */
#define DML__NEEDS_C 8u
#define DML__NEEDS_DY 16u

/* `unrolled`: DML__BY_FOUR where the body is short. */
#define DML__FORMULA_LOOP(name, unrolled, reads, result, ...)                                                \
    DML__BODY void name##_body(size_t n, const dml__formula_at *operands)                                    \
    {                                                                                                        \
        const dml__formula_at at = *operands;                                                                \
        const dml__vf zero = { 0 };                                                                          \
        const unsigned loads = (reads);                                                                      \
        dml__vf p, q, a = zero, b = zero, c = zero, y = zero, dy = zero, d = zero;                           \
        dml__splat(&p, at.p);                                                                                \
        dml__splat(&q, at.q);                                                                                \
        unrolled for (size_t i = 0; i < n; i += DML__LANES)                                                  \
        {                                                                                                    \
            if (loads & DML__NEEDS_A) a = DML__LOAD(at.in[0] + i);                                           \
            if (loads & DML__NEEDS_B) b = DML__LOAD(at.in[1] + i);                                           \
            if (loads & DML__NEEDS_Y) y = DML__LOAD(at.y + i);                                               \
            if (loads & DML__NEEDS_C) c = DML__LOAD(at.in[2] + i);                                           \
            if (loads & DML__NEEDS_DY) dy = DML__LOAD(at.dy + i);                                            \
            __VA_ARGS__;                                                                                     \
            DML__STORE(at.out + i, result);                                                                  \
        }                                                                                                    \
        (void)a, (void)b, (void)c, (void)y, (void)dy, (void)d;                                               \
    }                                                                                                        \
    DML__PER_ISA(name, (size_t n, const dml__formula_at *at), (n, at))

#define DML__READS_ALL(inputs) (DML__NEEDS_A | DML__NEEDS_B | ((inputs) > 2 ? DML__NEEDS_C : 0))

#define DML__FORMULA_LOOPS_1(name, needs, forward, gradient)                                                 \
    DML__FORMULA_LOOP(dml__##name##_values, , DML__NEEDS_A, y, forward)                                      \
    DML__FORMULA_LOOP(dml__##name##_gradient0, , (needs) | DML__NEEDS_DY, d, gradient)
#define DML__FORMULA_LOOPS_2(name, inputs, first, needs, forward, gradient0, gradient1)                      \
    DML__FORMULA_LOOP(dml__##name##_values, DML__BY_FOUR, DML__READS_ALL(inputs), y, forward)                \
    DML__FORMULA_LOOP(dml__##name##_gradient0, DML__BY_FOUR, (needs) | DML__NEEDS_DY, d, gradient0)          \
    DML__FORMULA_LOOP(dml__##name##_gradient1, DML__BY_FOUR, (needs) | DML__NEEDS_DY, d, gradient1)
#define DML__FORMULA_LOOPS_FLAT(name, forward)                                                               \
    DML__FORMULA_LOOP(dml__##name##_values, DML__BY_FOUR, DML__READS_ALL(2), y, forward)

DML__FORMULAS_1(DML__FORMULA_LOOPS_1)
DML__FORMULAS_2(DML__FORMULA_LOOPS_2)
DML__FORMULAS_FLAT(DML__FORMULA_LOOPS_FLAT)

#undef DML__FORMULA_LOOPS_1
#undef DML__FORMULA_LOOPS_2
#undef DML__FORMULA_LOOPS_FLAT
#undef DML__READS_ALL
#undef DML__FORMULA_LOOP
#undef VALUE
#undef DML__WORD
#undef K
#undef WHERE
#undef EXP
#undef EXPM1
#undef LOG
#undef LOG1P
#undef TANH
#undef SIGMOID
#undef ERF
#undef ABS
#undef SQRT
#undef POW
#undef P
#undef Q

typedef struct dml__formula_loops {
    dml__formula_row row;
    dml__formula_loop *values, *gradient[DML__FORMULA_GRADIENTS];
} dml__formula_loops;

static const dml__formula_loops *dml__formula_loops_of(int formula)
{
    static const dml__formula_loops loops[] = {
#define DML__FORMULA_ROW_1(name, needs, forward, gradient)                                                   \
    { { #name, 1, 0, 1, needs }, dml__##name##_values, { dml__##name##_gradient0, NULL } },
#define DML__FORMULA_ROW_2(name, inputs, first, needs, forward, gradient0, gradient1)                        \
    { { #name, inputs, first, 2, needs },                                                                    \
      dml__##name##_values,                                                                                  \
      { dml__##name##_gradient0, dml__##name##_gradient1 } },
#define DML__FORMULA_ROW_FLAT(name, forward) { { #name, 2, 0, 0, 0 }, dml__##name##_values, { NULL, NULL } },
        DML__FORMULAS_1(DML__FORMULA_ROW_1) DML__FORMULAS_2(DML__FORMULA_ROW_2)
            DML__FORMULAS_FLAT(DML__FORMULA_ROW_FLAT)
#undef DML__FORMULA_ROW_1
#undef DML__FORMULA_ROW_2
#undef DML__FORMULA_ROW_FLAT
    };
    return &loops[formula];
}

DML__LOCAL const dml__formula_row *dml__formula_row_of(int formula)
{
    return formula >= 0 && formula < DML__FORMULA_COUNT ? &dml__formula_loops_of(formula)->row : NULL;
}

/* ---- over arrays, in strips that stay in the first cache ---- */

#define DML__STRIP_FLOATS ((size_t)256)

/* What has no place in an array goes through here: a rest shorter than a vector, so that every element goes
   through the same instructions, an operand that is repeated, and a result that isn't simply stored. */
typedef struct dml__strip {
    float in[DML__FORMULA_INPUTS][DML__STRIP_FLOATS], y[DML__STRIP_FLOATS], dy[DML__STRIP_FLOATS];
    float out[DML__FORMULA_GRADIENTS][DML__STRIP_FLOATS];
} dml__strip;

typedef struct dml__formula_job {
    dml_isa isa;
    const dml__formula_call *call;
    const float *y, *dy;
    float *out[DML__FORMULA_GRADIENTS];
    float beta[DML__FORMULA_GRADIENTS];
    bool backward, relu, stream;
    bool whole; /* nothing but a rest needs strips */
} dml__formula_job;

/* to = from + beta to, or past the caches; `count` may be any. */
DML__BODY void dml__strip_store_body(size_t count, const float *from, float beta, bool stream, float *to)
{
    size_t i = 0;
    if (stream)
        for (; i + DML__LANES <= count; i += DML__LANES) {
            const dml__vf value = DML__LOAD(from + i);
            dml__stream(to + i, &value);
        }
    else if (beta == 0)
        for (; i + DML__LANES <= count; i += DML__LANES) DML__STORE(to + i, DML__LOAD(from + i));
    else
        for (; i + DML__LANES <= count; i += DML__LANES)
            DML__STORE(to + i, DML__LOAD(from + i) + beta * DML__LOAD(to + i));
    for (; i < count; i++) {
        dml__vf value, old;
        dml__splat(&value, from[i]);
        if (beta != 0) { /* in a vector, so that it is rounded as the others are */
            dml__splat(&old, to[i]);
            value = value + beta * old;
        }
        to[i] = value[0];
    }
}
DML__PER_ISA(dml__strip_store, (size_t count, const float *from, float beta, bool stream, float *to),
             (count, from, beta, stream, to))

/* `count` elements of an array, followed by what makes them whole vectors. */
static const float *dml__strip_plain(const float *x, size_t begin, size_t count, float *strip)
{
    if (!x) return NULL;
    if (count % DML__LANES == 0) return x + begin;
    memcpy(strip, x + begin, count * sizeof(float));
    memset(strip + count, 0, (DML__LANES - count % DML__LANES) * sizeof(float));
    return strip;
}

static const float *dml__strip_operand(const dml__formula_call *call, int i, size_t begin, size_t count,
                                       float *strip)
{
    if (!call->in[i] || dml__broadcast_is_plain(&call->layout[i]))
        return dml__strip_plain(call->in[i], begin, count, strip);
    dml__broadcast_copy(&call->layout[i], call->in[i], begin, count, strip);
    for (size_t k = count; k % DML__LANES; k++) strip[k] = 0;
    return strip;
}

/* `count` is a multiple of DML__LANES, or at most DML__STRIP_FLOATS. */
static void dml__formula_strip(const dml__formula_job *job, size_t begin, size_t count, dml__strip *strip)
{
    const dml__formula_call *call = job->call;
    const dml__formula_loops *loops = dml__formula_loops_of(call->formula);
    const size_t padded = count + (DML__LANES - count % DML__LANES) % DML__LANES;
    const bool direct = job->whole && count == padded;
    dml__formula_at at;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++)
        at.in[i] = dml__strip_operand(call, i, begin, count, strip->in[i]);
    at.y = dml__strip_plain(job->y, begin, count, strip->y);
    at.dy = dml__strip_plain(job->dy, begin, count, strip->dy);
    at.p = call->p;
    at.q = call->q;
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++) {
        if (!job->out[g]) continue;
        at.out = direct ? job->out[g] + begin : strip->out[g];
        (job->backward ? loops->gradient[g] : loops->values)(job->isa, padded, &at);
    }
    if (job->relu) {
        at.in[0] = at.out;
        dml__relu_values(job->isa, padded, &at);
    }
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++)
        if (job->out[g] && !direct)
            dml__strip_store(job->isa, count, strip->out[g], job->beta[g], job->stream, job->out[g] + begin);
}

static void dml__formula_task(void *argument, int task, int worker)
{
    const dml__formula_job *job = (const dml__formula_job *)argument;
    const size_t begin = (size_t)task * DML__BLOCK;
    const size_t end = dml__minimum(begin + DML__BLOCK, job->call->n);
    dml__strip strip;
    (void)worker;
    for (size_t i = begin, count; i < end; i += count) {
        count = end - i;
        if (job->whole && count >= DML__LANES)
            count -= count % DML__LANES;
        else if (count > DML__STRIP_FLOATS)
            count = DML__STRIP_FLOATS;
        dml__formula_strip(job, i, count, &strip);
    }
    if (job->stream) DML__STREAM_FENCE();
}

/* Whether `out`, which isn't read, goes past the caches (blocks.h). */
static bool dml__formula_streams(const dml__formula_job *job, const float *out)
{
    const dml__formula_call *call = job->call;
    size_t arrays = 1;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++) {
        if (call->in[i] == out) return false;
        if (call->in[i] && dml__broadcast_is_plain(&call->layout[i])) arrays++;
    }
    if (job->y == out || job->dy == out) return false;
    arrays += (job->y != NULL) + (job->dy != NULL);
    return DML__STREAMS && call->n > DML__STREAM_FROM / sizeof(float) / arrays && (uintptr_t)out % 16 == 0;
}

static void dml__formula_run(dml_pool *pool, dml__formula_job *job)
{
    const dml__formula_call *call = job->call;
    const int first = job->out[0] ? 0 : 1;
    const bool one = !job->out[1 - first];
    job->isa = dml__pool_machine(pool).isa;
    job->stream = one && job->beta[first] == 0 && dml__formula_streams(job, job->out[first]);
    job->whole = one && job->beta[first] == 0 && !job->relu && !job->stream;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++)
        job->whole = job->whole && (!call->in[i] || dml__broadcast_is_plain(&call->layout[i]));
    const int tasks = (int)dml__divide_up(call->n, DML__BLOCK);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__formula_task, job);
}

DML__LOCAL dml__formula_call dml__formula_plain(int formula, size_t n, const float *a, const float *b)
{
    dml__formula_call call;
    memset(&call, 0, sizeof call);
    call.formula = formula;
    call.n = n;
    call.in[0] = a;
    call.in[1] = b;
    for (int i = 0; i < DML__FORMULA_INPUTS; i++) {
        call.layout[i].dims = 1;
        call.layout[i].size[0] = n;
        call.layout[i].stride[0] = 1;
    }
    return call;
}

DML__LOCAL void dml__formula_forward(dml_pool *pool, const dml__formula_call *call, bool relu, float *y)
{
    dml__formula_job job;
    memset(&job, 0, sizeof job);
    job.call = call;
    job.out[0] = y;
    job.relu = relu;
    dml__formula_run(pool, &job);
}

DML__LOCAL void dml__formula_backward(dml_pool *pool, const dml__formula_call *call, const float *y,
                                      const float *dy, float *const gradient[DML__FORMULA_GRADIENTS],
                                      const float beta[DML__FORMULA_GRADIENTS])
{
    dml__formula_job job;
    if (!gradient[0] && !gradient[1]) return;
    memset(&job, 0, sizeof job);
    job.call = call;
    job.y = y;
    job.dy = dy;
    job.backward = true;
    for (int g = 0; g < DML__FORMULA_GRADIENTS; g++) {
        job.out[g] = gradient[g];
        job.beta[g] = beta[g];
    }
    dml__formula_run(pool, &job);
}

#endif

/* ---- kernels/elementwise.c ---- */

#ifndef DML_KERNELS_ELEMENTWISE_C
#define DML_KERNELS_ELEMENTWISE_C

static void dml__map_with_beta(dml_pool *pool, size_t n, dml__map_kernel kernel, const float *a,
                               const float *b, float beta, float alpha, float *out)
{
    const dml__map_operands operands = {
        { a, b, beta == 0 ? NULL : out }, { out, NULL }, { beta, alpha, 0, 0 }, false
    };
    dml__map(pool, n, kernel, &operands);
}

DML__BODY void dml__fill_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    dml__vf value;
    dml__splat(&value, at.number[1]); /* once: in a loop gcc builds it lane by lane, again and again */
    if (at.stream) {
        DML__BY_FOUR
        for (size_t i = 0; i < n; i += DML__LANES) dml__stream(at.out[0] + i, &value);
        DML__STREAM_FENCE();
    } else {
        DML__BY_FOUR
        for (size_t i = 0; i < n; i += DML__LANES) DML__STORE(at.out[0] + i, value);
    }
}
DML__PER_ISA(dml__fill_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_fill(dml_pool *pool, size_t n, float value, float *y)
{
    dml__map_with_beta(pool, n, dml__fill_map, NULL, NULL, 0, value, y);
}

DML__BODY void dml__axpby_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = at->number[1] * DML__LOAD(at->in[0] + i);
}
DML__MAP(dml__axpby)

DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, x, NULL, beta, alpha, y);
}

DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, y, NULL, 0, alpha, y);
}

/* ---- what formulas.h has, for callers of their own ---- */

static void dml__forward_of(dml_pool *pool, int formula, size_t n, const float *a, const float *b, bool relu,
                            float *y)
{
    const dml__formula_call call = dml__formula_plain(formula, n, a, b);
    dml__formula_forward(pool, &call, relu, y);
}

DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__forward_of(pool, DML__FORMULA_add, n, a, b, false, y);
}

DML_API void dml_add_relu_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__forward_of(pool, DML__FORMULA_add, n, a, b, true, y);
}

#define DML__FUNCTION(name)                                                                                  \
    DML_API void dml_##name##_forward(dml_pool *pool, size_t n, const float *x, float *y)                    \
    {                                                                                                        \
        dml__forward_of(pool, DML__FORMULA_##name, n, x, NULL, false, y);                                    \
    }

DML__FUNCTION(relu)
DML__FUNCTION(tanh)
DML__FUNCTION(sigmoid)
DML__FUNCTION(exp)
DML__FUNCTION(log)

#undef DML__FUNCTION

/* From the output. */
#define DML__FUNCTION_BACKWARD(name)                                                                         \
    DML_API void dml_##name##_backward(dml_pool *pool, size_t n, const float *y, const float *dy,            \
                                       float beta, float *dx)                                                \
    {                                                                                                        \
        const dml__formula_call call = dml__formula_plain(DML__FORMULA_##name, n, NULL, NULL);               \
        float *const gradient[] = { dx, NULL };                                                              \
        const float betas[] = { beta, 0 };                                                                   \
        dml__formula_backward(pool, &call, y, dy, gradient, betas);                                          \
    }

DML__FUNCTION_BACKWARD(relu)
DML__FUNCTION_BACKWARD(tanh)
DML__FUNCTION_BACKWARD(sigmoid)

#undef DML__FUNCTION_BACKWARD

DML__BODY void dml__erf_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = DML__LOAD(at->in[0] + i);
    dml__vector_erf(value);
}
DML__MAP(dml__erf)

DML_API void dml_erf_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__erf_map, x, NULL, 0, 0, y);
}

typedef struct dml__bias_job {
    dml_isa isa;
    size_t rows, columns;
    const float *bias;
    float *y; /* (rows, columns) */
} dml__bias_job;

#define DML__BIAS_NARROW ((size_t)32) /* fewer columns are taken DML__LANES rows at a time */

DML__BODY void dml__bias_rows_body(size_t rows, size_t columns, const float *bias, float *y)
{
    float wide[DML__BIAS_NARROW * DML__LANES]; /* the bias of DML__LANES rows, which fills whole vectors */
    if (columns < DML__BIAS_NARROW && rows >= 16 * DML__LANES) {
        for (size_t i = 0; i < columns * DML__LANES; i++) wide[i] = i < columns ? bias[i] : wide[i - columns];
        bias = wide;
        for (; rows >= DML__LANES; rows -= DML__LANES, y += columns * DML__LANES)
            for (size_t i = 0; i < columns * DML__LANES; i += DML__LANES)
                DML__STORE(y + i, DML__LOAD(y + i) + DML__LOAD(wide + i));
    }
    for (size_t r = 0; r < rows; r++, y += columns) {
        size_t c = 0;
        for (; c + DML__LANES <= columns; c += DML__LANES)
            DML__STORE(y + c, DML__LOAD(y + c) + DML__LOAD(bias + c));
        for (; c < columns; c++) y[c] += bias[c];
    }
}
DML__PER_ISA(dml__bias_rows, (size_t rows, size_t columns, const float *bias, float *y),
             (rows, columns, bias, y))

static void dml__bias_task(void *argument, int task, int worker)
{
    const dml__bias_job *job = (const dml__bias_job *)argument;
    const size_t step = dml__items_per_task(job->columns), begin = (size_t)task * step;
    (void)worker;
    dml__bias_rows(job->isa, dml__minimum(step, job->rows - begin), job->columns, job->bias,
                   job->y + begin * job->columns);
}

DML_API void dml_bias_add(dml_pool *pool, size_t rows, size_t columns, const float *bias, float *y)
{
    dml__bias_job job;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.columns = columns;
    job.bias = bias;
    job.y = y;
    const int tasks = columns ? (int)dml__divide_up(rows, dml__items_per_task(columns)) : 0;
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__bias_task, &job);
}

#endif

/* ---- kernels/loss.c ---- */

#ifndef DML_KERNELS_LOSS_C
#define DML_KERNELS_LOSS_C

#include <math.h>

/* Floats added up in a vector before its lanes go on in double. */
#define DML__SOFTMAX_CHUNK ((size_t)32 * DML__LANES)
#define DML__SOFTMAX_ROWS ((size_t)64) /* rows whose losses are finished together */

static inline float dml__greater(float a, float b)
{
    return b > a ? b : a;
}

/* The largest lane; none is a NaN. */
DML__BODY float dml__largest_lane(const dml__vf *vector)
{
    float lanes[DML__LANES];
    DML__STORE(lanes, *vector);
    const float low = dml__greater(dml__greater(lanes[0], lanes[1]), dml__greater(lanes[2], lanes[3]));
#if DML__LANES == 8
    return dml__greater(low,
                        dml__greater(dml__greater(lanes[4], lanes[5]), dml__greater(lanes[6], lanes[7])));
#else
    return low;
#endif
}

/* out = softmax(x) over n > 0 columns, for which it finds the maximum and sum(exp(x - maximum)). A NaN makes
   the sum and with it the whole row NaN. `room` floats of both arrays, from the row's first on, are this
   thread's: where they hold the row in whole vectors, its rest is read and written with what lies behind it,
   which stays as it is. */
DML__BODY void dml__softmax_row(size_t n, size_t room, const float *x, float *out, float *maximum, float *sum)
{
    const size_t whole = n - n % DML__LANES, rest = n - whole;
    const bool wide = room >= whole + DML__LANES;
    dml__vf lowest, last, largest, value, total = { 0 };
    dml__vi in_row;
    dml__splat(&lowest, -HUGE_VALF);
    dml__first_lanes(&in_row, rest);
    last = lowest;
    if (rest) {
        if (wide)
            value = DML__LOAD(x + whole);
        else
            dml__load_some(&value, x + whole, rest);
        last = DML__SELECT(in_row, value, lowest);
    }
    largest = DML__SELECT(last > lowest, last, lowest);
    for (size_t c = 0; c < whole; c += DML__LANES) {
        value = DML__LOAD(x + c);
        largest = DML__SELECT(value > largest, value, largest);
    }
    const float top = dml__largest_lane(&largest);

    last = last - top;
    dml__vector_exp(&last); /* 0 beyond the row */
    double sum64 = 0;
    total = last;
    for (size_t i = 0; i < whole;) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, whole);
        for (; i < end; i += DML__LANES) {
            value = DML__LOAD(x + i) - top;
            dml__vector_exp(&value);
            DML__STORE(out + i, value);
            total += value;
        }
        if (end == whole) break;
        sum64 += dml__add_lanes(&total);
        dml__splat(&total, 0);
    }
    sum64 += dml__add_lanes(&total);

    const float scale = (float)(1.0 / sum64);
    for (size_t i = 0; i < whole; i += DML__LANES) DML__STORE(out + i, DML__LOAD(out + i) * scale);
    last = last * scale;
    if (rest && wide)
        DML__STORE(out + whole, DML__SELECT(in_row, last, DML__LOAD(out + whole)));
    else if (rest)
        dml__store_some(out + whole, &last, rest);
    *maximum = top;
    *sum = (float)sum64;
}

/* The rows of one task; labels and row_loss are (rows). */
DML__BODY void dml__softmax_rows_body(size_t rows, size_t classes, const float *logits, const int32_t *labels,
                                      float *probabilities, float *row_loss)
{
    const size_t n = rows * classes;
    for (size_t begin = 0; begin < rows; begin += DML__SOFTMAX_ROWS) {
        const size_t end = dml__minimum(begin + DML__SOFTMAX_ROWS, rows);
        float sum[DML__SOFTMAX_ROWS], above[DML__SOFTMAX_ROWS]; /* of the largest logit above the label's */
        for (size_t r = begin; r < end; r++) {
            const size_t at = r * classes;
            const float logit = logits[at + (size_t)labels[r]]; /* now: probabilities may be logits */
            float maximum;
            dml__softmax_row(classes, n - at, logits + at, probabilities + at, &maximum, &sum[r - begin]);
            above[r - begin] = maximum - logit;
        }
        for (size_t r = begin; r < end; r += DML__LANES) {
            dml__vf loss, shift;
            dml__load_some(&loss, sum + (r - begin), end - r);
            dml__load_some(&shift, above + (r - begin), end - r);
            dml__vector_log(&loss);
            loss = loss + shift;
            dml__store_some(row_loss + r, &loss, end - r);
        }
    }
}
DML__PER_ISA(dml__softmax_rows,
             (size_t rows, size_t classes, const float *logits, const int32_t *labels, float *probabilities,
              float *row_loss),
             (rows, classes, logits, labels, probabilities, row_loss))

typedef struct dml__softmax_job {
    dml_isa isa;
    size_t rows, classes;
    const float *logits;   /* (rows, classes) */
    const int32_t *labels; /* (rows) */
    float *probabilities;  /* (rows, classes) */
    float *row_loss;       /* (rows) */
} dml__softmax_job;

static void dml__softmax_task(void *argument, int task, int worker)
{
    const dml__softmax_job *job = (const dml__softmax_job *)argument;
    const size_t step = dml__items_per_task(job->classes), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) DML_ASSERT((size_t)job->labels[r] < job->classes);
    dml__softmax_rows(job->isa, end - begin, job->classes, job->logits + begin * job->classes,
                      job->labels + begin, job->probabilities + begin * job->classes, job->row_loss + begin);
}

DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss)
{
    dml__softmax_job job;
    if (rows == 0 || classes == 0) return 0;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.classes = classes;
    job.logits = logits;
    job.labels = labels;
    job.probabilities = probabilities;
    job.row_loss = row_loss;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__softmax_task, &job);
    return dml_sum(pool, rows, row_loss) / (float)rows;
}

/* out = scale (p - onehot(label)) + beta out for the rows of one task: first as if there were no labels,
   which needs no rows, then at the labels, from what was there before. */
DML__BODY void dml__softmax_backward_rows_body(size_t rows, size_t classes, const float *p,
                                               const int32_t *labels, float scale, float beta, float *out)
{
    for (size_t begin = 0; begin < rows; begin += DML__SOFTMAX_ROWS) {
        const size_t count = dml__minimum(DML__SOFTMAX_ROWS, rows - begin), n = count * classes;
        float at_label[DML__SOFTMAX_ROWS], old[DML__SOFTMAX_ROWS];
        for (size_t r = 0; r < count; r++) {
            const size_t label = r * classes + (size_t)labels[r];
            at_label[r] = p[label];
            old[r] = beta != 0 ? out[label] : 0;
        }
        dml__vf value, before = { 0 };
        size_t i = 0;
        if (beta == 0)
            for (; i + DML__LANES <= n; i += DML__LANES) DML__STORE(out + i, DML__LOAD(p + i) * scale);
        for (; i < n; i += DML__LANES) {
            dml__load_some(&value, p + i, n - i);
            value = value * scale;
            if (beta != 0) {
                dml__load_some(&before, out + i, n - i);
                value = value + beta * before;
            }
            dml__store_some(out + i, &value, n - i);
        }
        for (size_t r = 0; r < count; r++)
            out[r * classes + (size_t)labels[r]] = scale * (at_label[r] - 1.0f) + beta * old[r];
        p += n, out += n, labels += count;
    }
}
DML__PER_ISA(dml__softmax_backward_rows,
             (size_t rows, size_t classes, const float *p, const int32_t *labels, float scale, float beta,
              float *out),
             (rows, classes, p, labels, scale, beta, out))

typedef struct dml__softmax_backward_job {
    dml_isa isa;
    size_t rows, classes;
    const float *probabilities; /* (rows, classes) */
    const int32_t *labels;      /* (rows) */
    float scale, beta;
    float *dlogits; /* (rows, classes) */
} dml__softmax_backward_job;

static void dml__softmax_backward_task(void *argument, int task, int worker)
{
    const dml__softmax_backward_job *job = (const dml__softmax_backward_job *)argument;
    const size_t step = dml__items_per_task(job->classes), begin = (size_t)task * step;
    const size_t end = dml__minimum(begin + step, job->rows);
    (void)worker;
    for (size_t r = begin; r < end; r++) DML_ASSERT((size_t)job->labels[r] < job->classes);
    dml__softmax_backward_rows(job->isa, end - begin, job->classes, job->probabilities + begin * job->classes,
                               job->labels + begin, job->scale, job->beta,
                               job->dlogits + begin * job->classes);
}

DML_API void dml_softmax_cross_entropy_backward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *probabilities, const int32_t *labels,
                                                float scale, float beta, float *dlogits)
{
    dml__softmax_backward_job job;
    if (classes == 0) return;
    job.isa = dml__pool_machine(pool).isa;
    job.rows = rows;
    job.classes = classes;
    job.probabilities = probabilities;
    job.labels = labels;
    job.scale = scale;
    job.beta = beta;
    job.dlogits = dlogits;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(classes));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__softmax_backward_task, &job);
}

DML_API float dml_mse_forward(dml_pool *pool, size_t n, const float *a, const float *b)
{
    return n ? dml_squared_distance(pool, n, a, b) / (float)n : 0;
}

DML__BODY void dml__mse_backward_at(const dml__map_operands *at, size_t i, dml__vf *value)
{
    *value = at->number[1] * (DML__LOAD(at->in[0] + i) - DML__LOAD(at->in[1] + i));
}
DML__MAP(dml__mse_backward)

DML_API void dml_mse_backward(dml_pool *pool, size_t n, const float *a, const float *b, float scale,
                              float beta, float *da)
{
    const dml__map_operands operands = {
        { a, b, beta == 0 ? NULL : da }, { da, NULL }, { beta, scale, 0, 0 }, false
    };
    dml__map(pool, n, dml__mse_backward_map, &operands);
}

#endif

/* ---- kernels/update.c ---- */

#ifndef DML_KERNELS_UPDATE_C
#define DML_KERNELS_UPDATE_C

DML__BODY void dml__sgd_loop(bool has_v, bool nesterov, size_t n, const dml__map_operands *at)
{
    const float lr = at->number[0], momentum = at->number[1], weight_decay = at->number[2];
    DML__BY_FOUR
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf w = DML__LOAD(at->in[0] + i);
        dml__vf step = DML__LOAD(at->in[1] + i) + weight_decay * w;
        if (has_v) {
            const dml__vf v = momentum * DML__LOAD(at->in[2] + i) + step;
            DML__STORE(at->out[1] + i, v);
            step = nesterov ? step + momentum * v : v;
        }
        DML__STORE(at->out[0] + i, w - lr * step);
    }
}

/* A loop for each case, as in DML__MAP. */
DML__BODY void dml__sgd_map_body(size_t n, const dml__map_operands *operands)
{
    const dml__map_operands at = *operands;
    if (!at.in[2])
        dml__sgd_loop(false, false, n, &at);
    else if (at.number[3] == 0)
        dml__sgd_loop(true, false, n, &at);
    else
        dml__sgd_loop(true, true, n, &at);
}
DML__PER_ISA(dml__sgd_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov)
{
    const dml__map_operands operands = {
        { w, g, v }, { w, v }, { lr, momentum, weight_decay, nesterov ? 1.0f : 0.0f }, false
    };
    DML_ASSERT(v || momentum == 0);
    dml__map(pool, n, dml__sgd_map, &operands);
}

#endif

/* ---- device/backend.c ---- */

#ifndef DML_DEVICE_BACKEND_C
#define DML_DEVICE_BACKEND_C

/* ---- device/cpu.h ---- */

/* cpu.h: the CPU as a device: memory is the host's, and the ops call the kernels themselves. */
#ifndef DML_DEVICE_CPU_H
#define DML_DEVICE_CPU_H

DML__LOCAL const dml_backend *dml__cpu_backend(void);

#endif

#include <stdio.h>
#include <string.h>

DML_API const dml_backend *dml_backend_at(int i)
{
    /* A new backend is one row here, ordered by preference. */
    static const dml_backend *(*const backends[])(void) = {
#ifdef DML_CUDA
        dml_cuda_backend,
#endif
#ifdef DML_OPENCL
        dml_opencl_backend,
#endif
        dml__cpu_backend,
    };
    const int count = (int)(sizeof backends / sizeof backends[0]);
    return i >= 0 && i < count ? backends[i]() : NULL;
}

/* Adds the devices for which `gpu` holds: a first pass for GPUs, a second for the others. */
static int dml__list_devices(dml_device_info *infos, int capacity, int count, bool gpu,
                             const dml_backend *backend)
{
    for (int index = 0, n = backend->count(); index < n; index++) {
        dml_device_info info;
        memset(&info, 0, sizeof info);
        backend->describe(index, &info);
        if (info.gpu != gpu) continue;
        if (strcmp(backend->name, "cpu") == 0)
            snprintf(info.id, sizeof info.id, "cpu");
        else
            snprintf(info.id, sizeof info.id, "%s:%d", backend->name, index);
        if (count < capacity) infos[count] = info;
        count++;
    }
    return count;
}

DML_API int dml_devices(dml_device_info *infos, int capacity)
{
    int count = 0;
    const dml_backend *backend;
    if (!infos) capacity = 0;
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++)
        count = dml__list_devices(infos, capacity, count, true, backend);
    count = dml__list_devices(infos, capacity, count, false, dml__cpu_backend());
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++)
        if (backend != dml__cpu_backend()) count = dml__list_devices(infos, capacity, count, false, backend);
    return count;
}

#endif

/* ---- device/cpu.c ---- */

#ifndef DML_DEVICE_CPU_C
#define DML_DEVICE_CPU_C

#include <stdio.h>
#include <string.h>

static int dml__cpu_device_count(void)
{
    return 1;
}

static void dml__cpu_describe(int index, dml_device_info *info)
{
    (void)index;
    snprintf(info->name, sizeof info->name, "CPU with %s kernels", dml_isa_name(dml_cpu_isa()));
    info->compute_units = dml_cpu_count();
}

static dml_status dml__cpu_open(dml_device *device)
{
    device->host_memory = true;
    return DML_OK;
}

static void dml__cpu_close(dml_device *device)
{
    (void)device;
}

static dml_status dml__cpu_buffer_create(dml_device *device, dml_buffer *buffer)
{
    buffer->host = dml_device_allocate(device, buffer->bytes);
    if (buffer->host) return DML_OK;
    return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left for a buffer of %zu bytes",
                           buffer->bytes);
}

static void dml__cpu_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    dml_device_release(device, buffer->host);
}

static dml_status dml__cpu_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes) memcpy(dml__host(to), from, bytes);
    return DML_OK;
}

static dml_status dml__cpu_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    (void)device;
    if (bytes) memcpy(to, dml__host(from), bytes);
    return DML_OK;
}

static dml_status dml__cpu_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    return dml__cpu_write(device, to, dml__host(from), bytes);
}

static dml_status dml__cpu_zero(dml_device *device, dml_ref to, size_t bytes)
{
    (void)device;
    if (bytes) memset(dml__host(to), 0, bytes);
    return DML_OK;
}

static dml_status dml__cpu_launch(dml_device *device, const dml_launch *launch)
{
    return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                           "kernel '%s' was launched on the CPU, where ops call kernels", launch->kernel);
}

static dml_status dml__cpu_finish(dml_device *device)
{
    (void)device;
    return DML_OK;
}

DML__LOCAL const dml_backend *dml__cpu_backend(void)
{
    static const dml_backend backend = {
        "cpu",          dml__cpu_device_count,  dml__cpu_describe,       dml__cpu_open,
        dml__cpu_close, dml__cpu_buffer_create, dml__cpu_buffer_destroy, dml__cpu_write,
        dml__cpu_read,  dml__cpu_copy,          dml__cpu_zero,           dml__cpu_launch,
        dml__cpu_finish
    };
    return &backend;
}

#endif

/* ---- device/context.c ---- */

#ifndef DML_DEVICE_CONTEXT_C
#define DML_DEVICE_CONTEXT_C

/* ---- device/context_internal.h ---- */

/* context_internal.h: what a context is made of, for the files that build on it. */
#ifndef DML_DEVICE_CONTEXT_INTERNAL_H
#define DML_DEVICE_CONTEXT_INTERNAL_H

/* Things that live until the context closes, newest first. */
typedef struct dml__owned {
    struct dml__owned *previous, *next;
    void (*destroy)(struct dml__owned *self);
} dml__owned;

struct dml_context {
    dml__memory memory;
    dml__error error;
    dml__logger logger;
    dml_pool *pool;
    dml_device device;
    bool device_open;
    uint64_t seed;
    dml__owned *owned; /* the newest, or NULL */
    uintptr_t inside;  /* the thread that is in a call now; 0: none */
    long process;      /* that opened it */
};

/* One thread at a time is in a context: calls that compute or change what others see enter it, and calls that
   those make again find it theirs. REFUSED: another thread is in it; nothing may be touched then, not even
   the context's error. Whatever else came of it is given to dml__leave. */
typedef enum dml__entry { DML__REFUSED, DML__ENTERED, DML__ENTERED_AGAIN } dml__entry;
DML__LOCAL dml__entry dml__enter(dml_context *context);
DML__LOCAL void dml__leave(dml_context *context, dml__entry entry);

/* dml_open on a device of a backend that need not be in dml_backend_at's list, as the test devices aren't;
   NULL backend: the one that options->device names. */
DML__LOCAL dml_context *dml__open_on(const dml_backend *backend, int index, const dml_options *options);

/* Links a thing to the context, which destroys it on close if nobody did before. */
DML__LOCAL void dml__own(dml_context *context, dml__owned *thing, void (*destroy)(dml__owned *self));
DML__LOCAL void dml__disown(dml_context *context, dml__owned *thing);

/* A buffer of `bytes` on the context's device, or NULL with the error recorded. NULL may be destroyed. */
DML__LOCAL dml_buffer *dml__buffer_create(dml_context *context, size_t bytes);
DML__LOCAL void dml__buffer_destroy(dml_context *context, dml_buffer *buffer);

#endif

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dml__open_pool(dml_context *context, const dml_options *options)
{
    dml_pool_options pool_options;
    memset(&pool_options, 0, sizeof pool_options);
    if (options->pool) pool_options = *options->pool;
    if (options->threads) pool_options.threads = options->threads;
    pool_options.allocator = dml__memory_allocator(&context->memory);
    if (!pool_options.pin) pool_options.pin = options->pin;
    if (pool_options.threads < 0)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "%d threads asked for: give 0 for one a core, or 1 or more", pool_options.threads);
    else if (!(context->pool = dml_pool_create(&pool_options)))
        dml__fail(&context->error, DML_ERROR_MEMORY,
                  "no memory or threads left for a pool of %d threads with %zu bytes of scratch each and %zu "
                  "together",
                  pool_options.threads ? pool_options.threads : dml_cpu_share(), pool_options.scratch.worker,
                  pool_options.scratch.shared);
}

/* False, with the error recorded, when the environment asks for an instruction set that there isn't. */
static bool dml__check_isa(dml_context *context)
{
    const char *wanted;
    if (dml__cpu_isa_known(&wanted)) return true;
    char known[96] = "";
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", isa ? ", " : "",
                 dml_isa_name((dml_isa)isa));
    dml__fail(&context->error, DML_ERROR_ARGUMENT,
              "the environment asks for DML_ISA=%s: there are %s, avx512_bf16, and this processor's best is "
              "%s; unset it "
              "for that",
              wanted, known, dml_isa_name(dml_cpu_isa()));
    return false;
}

static dml_status dml__open_device_at(dml_context *context, const dml_backend *backend, int index)
{
    context->device.backend = backend;
    context->device.index = index;
    context->device.context = context;
    const dml_status status = backend->open(&context->device);
    context->device_open = status == DML_OK;
    return status;
}

/* "name" or "name:index" -> backend and index. False, with the error recorded, for anything else. */
static bool dml__find_device(dml_context *context, const char *id, const dml_backend **found, int *index)
{
    const char *colon = strchr(id, ':');
    const size_t name_length = colon ? (size_t)(colon - id) : strlen(id);
    *index = 0;
    if (colon) {
        char *end;
        const long number = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || number < 0 || number > 999) {
            dml__fail(&context->error, DML_ERROR_ARGUMENT,
                      "device '%s': after the colon comes a number, as in 'opencl:1'", id);
            return false;
        }
        *index = (int)number;
    }
    char known[96] = "";
    const dml_backend *backend;
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++) {
        if (strlen(backend->name) == name_length && strncmp(backend->name, id, name_length) == 0) break;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", backend->name);
    }
    if (!backend) {
        const bool optional = strncmp(id, "opencl", 6) == 0 || strncmp(id, "cuda", 4) == 0;
        dml__fail(&context->error, DML_ERROR_DEVICE,
                  "no device '%s': this build has %s, or 'auto' for the best%s", id, known,
                  optional ? " (compile with -DDML_OPENCL and dml_opencl.c, or -DDML_CUDA and dml_cuda.cu)"
                           : "");
        return false;
    }
    const int count = backend->count();
    if (count == 0) {
        const char *maker =
            strcmp(backend->name, "cuda") == 0 ? "CUDA" : "OpenCL"; /* a CPU there always is */
        dml__fail(&context->error, DML_ERROR_DEVICE, "no device '%s': no %s device found", id, maker);
        return false;
    }
    if (*index >= count) {
        dml__fail(&context->error, DML_ERROR_DEVICE, "no device '%s': %d %s device%s found: %s:0 to %s:%d",
                  id, count, backend->name, count == 1 ? "" : "s", backend->name, backend->name, count - 1);
        return false;
    }
    *found = backend;
    return true;
}

static void dml__open_device(dml_context *context, const char *id)
{
    dml_device_info best;
    if (id && strcmp(id, "auto") == 0) {
        dml_devices(&best, 1);
        id = best.id;
    }
    const dml_backend *backend;
    int index;
    if (dml__find_device(context, id && *id ? id : "cpu", &backend, &index))
        dml__open_device_at(context, backend, index);
}

static void dml__log_opening(dml_context *context)
{
    dml_device_info info;
    memset(&info, 0, sizeof info);
    context->device.backend->describe(context->device.index, &info);
    dml__log(&context->logger, DML_LOG_INFO, "opened %s:%d (%s) with %d CPU threads",
             context->device.backend->name, context->device.index, info.name,
             dml_pool_threads(context->pool));
}

DML__LOCAL dml_context *dml__open_on(const dml_backend *backend, int index, const dml_options *options)
{
    static const dml_options defaults = { NULL, 0, 0, { NULL, NULL, NULL }, NULL, 0, NULL, NULL, NULL, 0 };
    if (!options) options = &defaults;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, options->memory, options->memory_bytes);
    dml_context *context = (dml_context *)dml__allocate(&memory, sizeof *context);
    if (!context) return NULL;
    context->memory = memory;
    context->logger.callback = options->log;
    context->logger.user = options->log_user;
    context->seed = options->seed;
    context->process = dml__process_id();
    if (!options->allocator.allocate != !options->allocator.release)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "an allocator with only one of allocate and release: give both, or neither for malloc");
    else if (dml__check_isa(context))
        dml__open_pool(context, options);
    if (context->error.status != DML_OK) return context;
    if (backend)
        dml__open_device_at(context, backend, index);
    else
        dml__open_device(context, options->device);
    if (context->device_open) dml__log_opening(context);
    return context;
}

DML_API dml_context *dml_open(const dml_options *options)
{
    return dml__open_on(NULL, 0, options);
}

/* After a fork() a driver's device is the parent's alone: the child may not so much as release what it has
   there. The CPU goes on working: see the pool. */
static bool dml__lost_by_fork(const dml_context *context)
{
    return !context->device.host_memory && context->process != dml__process_id();
}

DML_API void dml_close(dml_context *context)
{
    if (!context) return;
    while (context->owned) context->owned->destroy(context->owned);
    if (context->device_open && !dml__lost_by_fork(context)) context->device.backend->close(&context->device);
    dml_pool_destroy(context->pool);
    dml__memory memory = context->memory;
    dml__release(&memory, context);
}

DML__LOCAL dml__entry dml__enter(dml_context *context)
{
    const uintptr_t self = dml__thread_self();
    uintptr_t inside = 0;
    if (__atomic_compare_exchange_n(&context->inside, &inside, self, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
        if (dml__lost_by_fork(context))
            dml__fail(&context->error, DML_ERROR_STATE,
                      "this process was forked from the one that opened %s:%d, and a driver's device doesn't "
                      "come along; open a context in each process",
                      context->device.backend ? context->device.backend->name : "no device",
                      context->device.index);
        return DML__ENTERED;
    }
    if (inside == self) return DML__ENTERED_AGAIN;
    if (context->process == dml__process_id()) return DML__REFUSED;
    /* The other thread is the parent's, and stayed there. */
    __atomic_store_n(&context->inside, self, __ATOMIC_RELAXED);
    dml__fail(&context->error, DML_ERROR_STATE,
              "this process was forked while another thread was in the context, and what that was doing will "
              "never be done; open a context here");
    return DML__ENTERED;
}

DML__LOCAL void dml__leave(dml_context *context, dml__entry entry)
{
    if (entry == DML__ENTERED) __atomic_store_n(&context->inside, 0, __ATOMIC_RELEASE);
}

DML_API const char *dml_error(const dml_context *context)
{
    return context ? context->error.text : "no memory left to open a context";
}

DML_API dml_status dml_status_of(const dml_context *context)
{
    return context ? context->error.status : DML_ERROR_MEMORY;
}

DML_API void dml_clear_error(dml_context *context)
{
    if (!context || !context->device_open) return;
    context->error.status = DML_OK;
    context->error.text[0] = '\0';
}

DML_API size_t dml_memory_needed(const dml_context *context)
{
    return context ? dml__memory_needed(&context->memory) : 0;
}

DML_API dml_pool *dml_context_pool(dml_context *context)
{
    return context ? context->pool : NULL;
}

DML_API const dml_device *dml_context_device(const dml_context *context)
{
    return context && context->device_open ? &context->device : NULL;
}

DML_API dml_status dml_device_fail(dml_device *device, dml_status status, const char *format, ...)
{
    char text[sizeof device->context->error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dml__fail(&device->context->error, status, "%s", text);
}

DML_API void *dml_device_allocate(dml_device *device, size_t bytes)
{
    return dml__allocate(&device->context->memory, bytes);
}

DML_API void dml_device_release(dml_device *device, void *memory)
{
    dml__release(&device->context->memory, memory);
}

DML__LOCAL void dml__own(dml_context *context, dml__owned *thing, void (*destroy)(dml__owned *self))
{
    thing->destroy = destroy;
    thing->previous = NULL;
    thing->next = context->owned;
    if (thing->next) thing->next->previous = thing;
    context->owned = thing;
}

DML__LOCAL void dml__disown(dml_context *context, dml__owned *thing)
{
    if (thing->previous)
        thing->previous->next = thing->next;
    else
        context->owned = thing->next;
    if (thing->next) thing->next->previous = thing->previous;
}

DML__LOCAL dml_buffer *dml__buffer_create(dml_context *context, size_t bytes)
{
    dml_buffer *buffer = (dml_buffer *)dml__allocate(&context->memory, sizeof *buffer);
    if (!buffer) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a buffer's record");
        return NULL;
    }
    buffer->bytes = bytes ? bytes : DML__ALIGNMENT;
    if (context->device.backend->buffer_create(&context->device, buffer) == DML_OK) return buffer;
    dml__release(&context->memory, buffer);
    return NULL;
}

DML__LOCAL void dml__buffer_destroy(dml_context *context, dml_buffer *buffer)
{
    if (!buffer) return;
    if (!dml__lost_by_fork(context)) context->device.backend->buffer_destroy(&context->device, buffer);
    dml__release(&context->memory, buffer);
}

#endif

/* ---- graph/shape.c ---- */

#ifndef DML_GRAPH_SHAPE_C
#define DML_GRAPH_SHAPE_C

#include <stdio.h>
#include <string.h>

/* Of a shape that nobody has checked yet. */
static int dml__dimensions(const dml_shape *shape)
{
    return shape->ndim < 0 ? 0 : shape->ndim < DML_MAX_DIMS ? shape->ndim : DML_MAX_DIMS;
}

DML_API size_t dml_shape_count(const dml_shape *shape)
{
    size_t count = 1;
    for (int i = 0; i < dml__dimensions(shape); i++) count *= shape->dims[i] > 0 ? (size_t)shape->dims[i] : 0;
    return count;
}

DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, (size_t)dml__dimensions(a) * sizeof a->dims[0]) == 0;
}

DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT])
{
    size_t used = 0;
    snprintf(text, DML_SHAPE_TEXT, "scalar");
    for (int i = 0; i < dml__dimensions(shape) && used < DML_SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, DML_SHAPE_TEXT - used, i ? " x %d" : "%d", shape->dims[i]);
    return text;
}

#endif

/* ---- graph/graph.c ---- */

#ifndef DML_GRAPH_GRAPH_C
#define DML_GRAPH_GRAPH_C

/* ---- graph/node.h ---- */

/* node.h: what nodes and graphs are made of, for the files of this room and the trainer. */
#ifndef DML_GRAPH_NODE_H
#define DML_GRAPH_NODE_H

#define DML__MAX_INPUTS 5

struct dml__op;

/* A node, its attributes and its name are one block of memory. */
struct dml_node {
    dml_graph *graph;
    dml_node *next; /* in order of creation, which is a topological order */
    int index;      /* in that order */
    const struct dml__op *op;
    const char *name;
    dml_dtype dtype;
    dml_shape shape;
    bool batched; /* one such tensor for each sample; parameters and losses are not */
    int inputs;
    dml_node *input[DML__MAX_INPUTS];
    void *attributes; /* the op's own */
    int limit;        /* an op that indexes: the values of its i32 input must be in 0 .. limit - 1; 0: any */
    /* parameter: */
    dml_initializer init;
    bool used, frozen; /* by some op; gets no gradient */
    bool kept;         /* training passes change it: a running statistic, frozen for good */
    size_t place;      /* in the order of first use, in elements: what its initial values depend on */
    size_t offset;     /* in w and g, in elements; set when w is laid out */
    dml_node *next_parameter;
};

struct dml_graph {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_node *first, *last;
    int nodes;
    char scope[DML_NAME_BYTES]; /* what names begin with: "block.3.attn." */
    int scopes;
    unsigned char scope_bytes[DML_MAX_SCOPES]; /* how long each nested scope's part of it is */
    /* Parameters in order of their first use. */
    dml_node *first_parameter, *last_parameter;
    size_t parameter_count, trained_count; /* elements of w; those at its start that are trained */
    dml_buffer *w;                         /* on the device; NULL until it is laid out */
    float *mirror;                         /* w on the host, where the device has memory of its own */
    int programs;                          /* compiled and not destroyed */
    long process;                          /* whose threads `readers` counts */
    int readers; /* programs that predict on their own threads now; -1: w is being written */
};

/* Appends a node and lets its op check the inputs and set dtype, shape and batched; `attributes` are copied.
   NULL, with the error recorded, when an input is NULL or of another graph, or the op refuses. */
DML__LOCAL dml_node *dml__node_create(const struct dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes);

/* A parameter of the layer that `op` will be the next node of: named "conv2d_2.weight" if that node becomes
   "conv2d_2". NULL, with the error recorded, on failure. */
DML__LOCAL dml_node *dml__layer_parameter(dml_graph *graph, const struct dml__op *op, const char *part,
                                          dml_initializer init, dml_shape shape);

/* Takes back what was built after `last` (NULL: after nothing), which no other node may use: a layer's
   parameters when the layer itself is refused. */
DML__LOCAL void dml__graph_drop_after(dml_graph *graph, dml_node *last);

/* The node of that name, or NULL. */
DML__LOCAL dml_node *dml__graph_find(const dml_graph *graph, const char *name);

/* Records an error about building `node`, prefixed with its op and name. */
DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* Lays the parameters out in w, allocates and initialises it, unless that has been done. */
DML__LOCAL dml_status dml__graph_lay_out(dml_graph *graph);

/* w on the host as it was left: itself, or a copy where the device has memory of its own. NULL, with the
   error recorded, when it can't be had. */
DML__LOCAL float *dml__graph_host(dml_graph *graph);

/* Predicting on threads of their own (`reading`) and writing w exclude each other: whoever comes second is
   refused. What was claimed must be released. */
DML__LOCAL bool dml__graph_claim(dml_graph *graph, bool reading);
DML__LOCAL void dml__graph_release(dml_graph *graph, bool reading);

/* The claim to write w, with the error recorded on the context when it is refused. */
DML__LOCAL dml_status dml__graph_claim_writing(dml_graph *graph);

static inline dml_context *dml__node_context(const dml_node *node)
{
    return node->graph->context;
}

#endif

/* ---- graph/op.h ---- */

/* op.h: what an op is, and what it sees while a program runs.

   An op is one constant table. It works on references into device memory: on a host_memory device it calls
   the CPU kernels, on any other it launches the shared kernel of the same meaning. */
#ifndef DML_GRAPH_OP_H
#define DML_GRAPH_OP_H

struct dml_program;

/* One run of a program. */
typedef struct dml__run {
    struct dml_program *program;
    dml_context *context;
    dml_device *device;
    dml_pool *pool;
    dml__error *error; /* where a failure of this run is told */
    int rows;          /* samples in this run, 1 .. batch */
    bool training;     /* backward follows; dml_program_run only predicts, whatever the program is for */
    bool adds;         /* backward adds to the parameters' gradients and doesn't overwrite them */
    uint32_t step;     /* keys the random numbers of this run, with the context's seed and the node's index */
} dml__run;

/* What an op's backward reads besides its output's gradient; the memory plan keeps no more. */
#define DML__NEEDS_INPUT(i) (1u << (i))
#define DML__NEEDS_INPUTS 0x1Fu
#define DML__NEEDS_OUTPUT 0x100u
/* With what an op may become one, in the same word: a relu with an op whose forward does it in passing, where
   dml__ends_in_relu says so, and whose backward does too; or whose reader's backward does, where
   dml__begins_with_relu says so: it then gives no gradient to what isn't above 0. */
#define DML__IS_RELU 0x200u
#define DML__TAKES_RELU 0x400u
#define DML__TAKES_RELU_BACK 0x800u
#define DML__GATES_RELU 0x1000u
/* The gradient of each input is the output's, which may therefore be their place. */
#define DML__PASSES_GRADIENT 0x2000u
/* No gradient flows to input 0: it chooses. */
#define DML__CHOOSES_BY_FIRST 0x4000u

typedef struct dml__op {
    const char *name;
    /* Checks inputs and attributes; sets node->dtype, shape and batched. */
    dml_status (*infer)(dml_node *node);
    dml_status (*forward)(const dml__run *run, const dml_node *node);
    /* For each input i with dml__wants_gradient: its gradient = the op's share + dml__beta(i) x what is
       there. NULL for an op through which no gradient flows. */
    dml_status (*backward)(const dml__run *run, const dml_node *node);
    unsigned needs;
    /* Bytes that forward leaves for backward, for up to `rows` samples; NULL: none. */
    size_t (*saved_bytes)(const dml_node *node, int rows);
    bool view;     /* the output is input 0's memory under another shape: nothing runs */
    bool in_place; /* forward may write its output over input 0, backward its gradient over the output's */
    /* For people: what the attributes say, in words, and the operations of one sample's forward pass; NULL:
       nothing to say, and one an element of the output. */
    void (*describe)(const dml_node *node, char *text, size_t bytes);
    double (*flops)(const dml_node *node);
    /* What the CPU kernels use of the pool's scratch for up to `rows` samples; NULL: nothing. */
    dml_scratch (*scratch)(const dml_node *node, int rows, bool training);
} dml__op;

/* The flops of an op that computes nothing. */
DML__LOCAL double dml__no_flops(const dml_node *node);

/* Inputs and parameters are nodes too, whose tables do nothing. */
DML__LOCAL const dml__op *dml__input_op(void);
DML__LOCAL const dml__op *dml__parameter_op(void);

/* Where a node's value, its gradient, and what its forward saved lie in this run. */
DML__LOCAL dml_ref dml__value(const dml__run *run, const dml_node *node);
DML__LOCAL dml_ref dml__gradient(const dml__run *run, const dml_node *node);
DML__LOCAL dml_ref dml__saved(const dml__run *run, const dml_node *node);

/* Whether input i of the node takes a gradient, and the weight of what its gradient already holds: 0 for the
   first op that writes it in this backward pass, else 1. */
DML__LOCAL bool dml__wants_gradient(const dml__run *run, const dml_node *node, int i);
DML__LOCAL float dml__beta(const dml__run *run, const dml_node *node, int i);

/* Whether the node's value is that of the relu that follows, of an op with DML__TAKES_RELU: on a host_memory
   device. The relu's forward then doesn't run, and its backward, unless another op does that too, works in
   place. */
DML__LOCAL bool dml__ends_in_relu(const dml__run *run, const dml_node *node);
DML__LOCAL bool dml__begins_with_relu(const dml__run *run, const dml_node *node);

/* Elements of the node's value in this run. */
DML__LOCAL size_t dml__count(const dml__run *run, const dml_node *node);

/* For infer: input 0 is f32 images of height x width x channels, else an error that says what it is. */
DML__LOCAL dml_status dml__check_image_input(const dml_node *node);

/* The gradient of input i = the sum over rows of the output's gradient (rows, columns) + beta x what is
   there: how every bias gets its gradient. */
DML__LOCAL dml_status dml__sum_rows_into_gradient(const dml__run *run, const dml_node *node, int i,
                                                  size_t rows, size_t columns);

/* The addresses behind the references above, on a host_memory device. */
static inline float *dml__host_value(const dml__run *run, const dml_node *node)
{
    return (float *)dml__host(dml__value(run, node));
}
static inline float *dml__host_gradient(const dml__run *run, const dml_node *node)
{
    return (float *)dml__host(dml__gradient(run, node));
}

/* A launch of `kernel` over x by y units, to be filled in and passed to dml__submit, which refuses sizes that
   the kernels' 32-bit integers can't count. */
DML__LOCAL dml_launch dml__launch(const char *kernel, size_t x, size_t y);
DML__LOCAL dml_status dml__submit(dml_device *device, const dml_launch *launch);

#endif

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__graph_destroy_owned(dml__owned *owned)
{
    dml_graph *graph = (dml_graph *)(void *)owned;
    dml_context *context = graph->context;
    dml__disown(context, owned);
    for (dml_node *node = graph->first, *next; node; node = next) {
        next = node->next;
        dml__release(&context->memory, node);
    }
    dml__buffer_destroy(context, graph->w);
    dml__release(&context->memory, graph->mirror);
    dml__release(&context->memory, graph);
}

DML_API dml_graph *dml_graph_create(dml_context *context)
{
    if (!context || context->error.status != DML_OK) return NULL;
    dml_graph *graph = (dml_graph *)dml__allocate(&context->memory, sizeof *graph);
    if (!graph) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a graph");
        return NULL;
    }
    graph->context = context;
    graph->process = context->process;
    dml__own(context, &graph->owned, dml__graph_destroy_owned);
    return graph;
}

DML_API void dml_graph_destroy(dml_graph *graph)
{
    if (!graph) return;
    if (graph->programs > 0)
        dml__fail(&graph->context->error, DML_ERROR_STATE,
                  "a graph can't be destroyed before its %d programs and trainers", graph->programs);
    else
        dml__graph_destroy_owned(&graph->owned);
}

DML_API dml_context *dml_graph_context(const dml_graph *graph)
{
    return graph ? graph->context : NULL;
}

DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
{
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dml__fail(&dml__node_context(node)->error, status, "%s '%s': %s", node->op->name, node->name,
                     text);
}

/* ---- names ---- */

DML_API dml_status dml_push_scope(dml_graph *graph, const char *format, ...)
{
    if (!graph || !format) return DML_ERROR_ARGUMENT;
    dml__error *error = &graph->context->error;
    char name[DML_NAME_BYTES + 1];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const size_t used = strlen(graph->scope);
    if (length < 1 || used + (size_t)length + 2 > sizeof graph->scope)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a scope '%.64s%s' inside '%s': names are of 1 to %d bytes, scopes included", name,
                         length > 64 ? "..." : "", graph->scope, DML_NAME_BYTES - 1);
    if (graph->scopes == DML_MAX_SCOPES)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a scope '%.64s' inside '%s': they nest at most %d deep; is a pop missing?", name,
                         graph->scope, DML_MAX_SCOPES);
    memcpy(graph->scope + used, name, (size_t)length);
    memcpy(graph->scope + used + length, ".", 2);
    graph->scope_bytes[graph->scopes++] = (unsigned char)(length + 1);
    return DML_OK;
}

DML_API dml_status dml_pop_scope(dml_graph *graph)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (graph->scopes == 0)
        return dml__fail(&graph->context->error, DML_ERROR_STATE,
                         "a scope is popped, but none has been pushed");
    graph->scope[strlen(graph->scope) - graph->scope_bytes[--graph->scopes]] = '\0';
    return DML_OK;
}

DML__LOCAL dml_node *dml__graph_find(const dml_graph *graph, const char *name)
{
    for (dml_node *node = graph->first; node; node = node->next)
        if (strcmp(node->name, name) == 0) return node;
    return NULL;
}

DML_API dml_node *dml_graph_find(const dml_graph *graph, const char *name)
{
    if (!graph) return NULL;
    dml_node *node = name ? dml__graph_find(graph, name) : NULL;
    if (!node)
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
                  "the graph has no node '%.*s'; names come with their scopes, as dml_graph_print shows "
                  "them, and a parameter's after its layer's, such as conv2d_1.weight",
                  DML_NAME_BYTES, name ? name : "NULL");
    return node;
}

/* Whether the node stands in the scope itself, not in one inside or outside it. */
static bool dml__is_in_scope(const dml_node *node, const char *scope)
{
    const size_t length = strlen(scope);
    return strncmp(node->name, scope, length) == 0 && !strchr(node->name + length, '.');
}

/* The next free of "SCOPE.relu_1", "SCOPE.relu_2", ...; false when it is too long. */
static bool dml__next_name(const dml_graph *graph, const dml__op *op, char name[DML_NAME_BYTES])
{
    int number = 0;
    for (const dml_node *node = graph->first; node; node = node->next)
        number += node->op == op && dml__is_in_scope(node, graph->scope);
    do {
        const int length = snprintf(name, DML_NAME_BYTES, "%s%s_%d", graph->scope, op->name, ++number);
        if (length >= DML_NAME_BYTES) return false;
    } while (dml__graph_find(graph, name));
    return true;
}

/* The full name of a new node: `given`, or, where that is NULL or "", the op's with a number. */
static dml_status dml__make_name(dml_graph *graph, const dml__op *op, const char *given,
                                 char name[DML_NAME_BYTES])
{
    dml__error *error = &graph->context->error;
    const bool numbered = !given || !*given;
    const bool fits = numbered ? dml__next_name(graph, op, name)
                               : snprintf(name, DML_NAME_BYTES, "%s%s", graph->scope, given) < DML_NAME_BYTES;
    if (!fits)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%.64s' in the scope '%s': the whole name may have %d bytes", op->name,
                         numbered ? op->name : given, graph->scope, DML_NAME_BYTES - 1);
    if (!dml__is_utf8(name))
        return dml__fail(error, DML_ERROR_ARGUMENT, "%s: a name that isn't UTF-8, which files could not hold",
                         op->name);
    if (strncmp(name, "dml.", 4) == 0 || strcmp(name, "__metadata__") == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%s': names that begin with 'dml.', and '__metadata__', are the files' own",
                         op->name, name);
    if (dml__graph_find(graph, name))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%s': the graph has a node of that name; give another one, or tell repeated "
                         "blocks apart with dml_push_scope",
                         op->name, name);
    return DML_OK;
}

/* ---- building ---- */

/* Kernels count the elements of a sample with 32 bits. */
static dml_status dml__check_count(const dml_node *node)
{
    char text[DML_SHAPE_TEXT];
    size_t count = 1;
    for (int i = 0; i < node->shape.ndim; i++) {
        if (count > (size_t)INT32_MAX / (size_t)node->shape.dims[i])
            return dml__node_fail(node, DML_ERROR_SHAPE, "%s are more than %d elements",
                                  dml_shape_format(&node->shape, text), INT32_MAX);
        count *= (size_t)node->shape.dims[i];
    }
    return DML_OK;
}

static dml_status dml__refuse_new_parameter(const dml_node *node)
{
    return dml__node_fail(node, DML_ERROR_STATE,
                          "a new parameter, but the graph's parameters have been laid out, by the first "
                          "compile or the first use of their values; build the whole model first");
}

/* A node that nobody can see yet; NULL, with the error recorded, when its name or memory can't be had. */
static dml_node *dml__node_allocate(dml_graph *graph, const dml__op *op, const char *given,
                                    const void *attributes, size_t attribute_bytes)
{
    char name[DML_NAME_BYTES];
    if (dml__make_name(graph, op, given, name) != DML_OK) return NULL;
    const size_t attributes_at = (sizeof(dml_node) + 15) / 16 * 16;
    dml_node *node = (dml_node *)dml__allocate(&graph->context->memory,
                                               attributes_at + attribute_bytes + strlen(name) + 1);
    if (!node) {
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a node '%s'", name);
        return NULL;
    }
    char *behind = (char *)node + attributes_at;
    if (attribute_bytes) memcpy(behind, attributes, attribute_bytes);
    memcpy(behind + attribute_bytes, name, strlen(name) + 1);
    node->graph = graph;
    node->op = op;
    node->attributes = behind;
    node->name = behind + attribute_bytes;
    return node;
}

static void dml__node_append(dml_node *node)
{
    dml_graph *graph = node->graph;
    node->index = graph->nodes++;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
}

static void dml__note_first_use(dml_graph *graph, dml_node *parameter)
{
    if (parameter->used || parameter->op != dml__parameter_op()) return;
    parameter->used = true;
    if (graph->last_parameter)
        graph->last_parameter->next_parameter = parameter;
    else
        graph->first_parameter = parameter;
    graph->last_parameter = parameter;
    parameter->place = graph->parameter_count;
    graph->parameter_count += dml_shape_count(&parameter->shape);
}

DML__LOCAL dml_node *dml__node_create(const dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes)
{
    DML_ASSERT(inputs >= 1 && inputs <= DML__MAX_INPUTS);
    dml_graph *graph = NULL;
    int missing = -1;
    for (int i = inputs - 1; i >= 0; i--)
        if (input[i])
            graph = input[i]->graph;
        else
            missing = i;
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    if (missing >= 0) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "%s: its input %d of %d is NULL", op->name,
                  missing + 1, inputs);
        return NULL;
    }
    dml_node *node = dml__node_allocate(graph, op, NULL, attributes, attribute_bytes);
    if (!node) return NULL;
    node->inputs = inputs;
    bool same_graph = true, new_parameter = false;
    for (int i = 0; i < inputs; i++) {
        node->input[i] = input[i];
        same_graph = same_graph && input[i]->graph == graph;
        new_parameter = new_parameter || (input[i]->op == dml__parameter_op() && !input[i]->used);
    }
    dml_status status = DML_OK;
    if (!same_graph)
        status = dml__node_fail(node, DML_ERROR_ARGUMENT, "its inputs are of different graphs");
    else if (new_parameter && graph->w)
        status = dml__refuse_new_parameter(node);
    if (status == DML_OK) status = op->infer(node);
    if (status == DML_OK) status = dml__check_count(node);
    if (status != DML_OK) {
        dml__release(&graph->context->memory, node);
        return NULL;
    }
    for (int i = 0; i < inputs; i++) dml__note_first_use(graph, input[i]);
    dml__node_append(node);
    return node;
}

static dml_status dml__check_dimensions(const dml_node *node, const dml_shape *shape)
{
    if (shape->ndim < 0 || shape->ndim > DML_MAX_DIMS)
        return dml__node_fail(node, DML_ERROR_SHAPE, "%d dimensions asked for, 0 to %d are possible",
                              shape->ndim, DML_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++)
        if (shape->dims[i] < 1)
            return dml__node_fail(node, DML_ERROR_SHAPE, "dimension %d is %d, it must be 1 or more", i,
                                  shape->dims[i]);
    return DML_OK;
}

/* A node without inputs: an input or a parameter. */
static dml_node *dml__leaf_create(dml_graph *graph, const dml__op *op, const char *name, dml_dtype dtype,
                                  dml_shape shape)
{
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, name, NULL, 0);
    if (!node) return NULL;
    node->dtype = dtype;
    node->batched = op == dml__input_op();
    dml_status status = dml__check_dimensions(node, &shape);
    if (status == DML_OK) {
        /* Dimensions past the last are zero, however the caller left them. */
        node->shape.ndim = shape.ndim;
        for (int i = 0; i < DML_MAX_DIMS; i++) node->shape.dims[i] = i < shape.ndim ? shape.dims[i] : 0;
        status = dml__check_count(node);
    }
    if (status == DML_OK && graph->w && op == dml__parameter_op()) status = dml__refuse_new_parameter(node);
    if (status != DML_OK) {
        dml__release(&graph->context->memory, node);
        return NULL;
    }
    dml__node_append(node);
    return node;
}

DML_API dml_node *dml_input_shaped(dml_graph *graph, const char *name, dml_dtype dtype, dml_shape shape)
{
    if (graph && dtype != DML_F32 && dtype != DML_I32) {
        dml__fail(&graph->context->error, DML_ERROR_UNSUPPORTED,
                  "input '%s': dtype %s asked for, f32 and i32 are possible", name ? name : "",
                  dml_dtype_name(dtype));
        return NULL;
    }
    return dml__leaf_create(graph, dml__input_op(), name, dtype, shape);
}

DML_API dml_node *dml_parameter_shaped(dml_graph *graph, const char *name, dml_initializer init,
                                       dml_shape shape)
{
    if (graph && (unsigned)init.kind > DML_INIT_NORMAL) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "parameter '%s': no initializer of kind %d",
                  name ? name : "", (int)init.kind);
        return NULL;
    }
    dml_node *node = dml__leaf_create(graph, dml__parameter_op(), name, DML_F32, shape);
    if (node) node->init = init;
    return node;
}

DML__LOCAL dml_node *dml__layer_parameter(dml_graph *graph, const dml__op *op, const char *part,
                                          dml_initializer init, dml_shape shape)
{
    char layer[DML_NAME_BYTES], name[2 * DML_NAME_BYTES];
    if (graph->context->error.status != DML_OK || dml__make_name(graph, op, NULL, layer) != DML_OK)
        return NULL;
    snprintf(name, sizeof name, "%s.%s", layer + strlen(graph->scope), part);
    return dml_parameter_shaped(graph, name, init, shape);
}

DML__LOCAL void dml__graph_drop_after(dml_graph *graph, dml_node *last)
{
    dml_node *node = last ? last->next : graph->first;
    if (last)
        last->next = NULL;
    else
        graph->first = NULL;
    graph->last = last;
    graph->nodes = last ? last->index + 1 : 0;
    while (node) {
        dml_node *next = node->next;
        DML_ASSERT(!node->used);
        dml__release(&graph->context->memory, node);
        node = next;
    }
}

static dml_initializer dml__initializer(dml_initializer_kind kind, float a, float b)
{
    const dml_initializer init = { kind, a, b };
    return init;
}

DML_API dml_initializer dml_init_constant(float value)
{
    return dml__initializer(DML_INIT_CONSTANT, value, 0.0f);
}

DML_API dml_initializer dml_init_uniform(float low, float high)
{
    return dml__initializer(DML_INIT_UNIFORM, low, high);
}

DML_API dml_initializer dml_init_normal(float mean, float deviation)
{
    return dml__initializer(DML_INIT_NORMAL, mean, deviation);
}

DML_API dml_initializer dml_init_he(int fan_in)
{
    return dml__initializer(DML_INIT_NORMAL, 0.0f, sqrtf(2.0f / (float)(fan_in > 0 ? fan_in : 1)));
}

/* ---- walking ---- */

DML_API dml_node *dml_graph_first(const dml_graph *graph)
{
    return graph ? graph->first : NULL;
}

DML_API dml_node *dml_node_next(const dml_node *node)
{
    return node ? node->next : NULL;
}

DML_API dml_graph *dml_node_graph(const dml_node *node)
{
    return node ? node->graph : NULL;
}

DML_API const char *dml_node_name(const dml_node *node)
{
    return node ? node->name : "";
}

DML_API const char *dml_node_op(const dml_node *node)
{
    return node ? node->op->name : "";
}

DML_API dml_shape dml_node_shape(const dml_node *node)
{
    static const dml_shape none = { 0, { 0, 0, 0, 0, 0 } };
    return node ? node->shape : none;
}

DML_API dml_dtype dml_node_dtype(const dml_node *node)
{
    return node ? node->dtype : DML_F32;
}

DML_API bool dml_node_batched(const dml_node *node)
{
    return node && node->batched;
}

DML_API int dml_node_inputs(const dml_node *node)
{
    return node ? node->inputs : 0;
}

DML_API dml_node *dml_node_input(const dml_node *node, int i)
{
    return node && i >= 0 && i < node->inputs ? node->input[i] : NULL;
}

DML_API const char *dml_node_describe(const dml_node *node, char *text, size_t bytes)
{
    if (!text || !bytes) return "";
    text[0] = '\0';
    if (node && node->op->describe) node->op->describe(node, text, bytes);
    return text;
}

DML_API double dml_node_flops(const dml_node *node)
{
    if (!node) return 0;
    return node->op->flops ? node->op->flops(node) : (double)dml_shape_count(&node->shape);
}

#endif

/* ---- graph/weights.c ---- */

#ifndef DML_GRAPH_WEIGHTS_C
#define DML_GRAPH_WEIGHTS_C

#include <string.h>

/* ---- laying out ---- */

/* Stream numbers of the parameters' initial values: the place in the model, so that a parameter's numbers
   depend on the seed and the model alone. */
static void dml__initialise(const dml_node *parameter, uint64_t seed, float *w)
{
    const dml_random random = { seed, 0x57u /* 'W' */, 0 };
    const dml_initializer *init = &parameter->init;
    const size_t count = dml_shape_count(&parameter->shape);
    for (size_t i = 0; i < count; i++) {
        const uint64_t element = (uint64_t)(parameter->place + i);
        switch (init->kind) {
        case DML_INIT_CONSTANT: w[i] = init->a; break;
        case DML_INIT_UNIFORM:
            w[i] = init->a + (init->b - init->a) * dml_random_uniform(&random, element);
            break;
        case DML_INIT_NORMAL: w[i] = init->a + init->b * dml_random_normal(&random, element); break;
        }
    }
}

/* Trained parameters first, then the frozen ones. */
static void dml__give_offsets(dml_graph *graph)
{
    size_t offset = 0;
    for (int frozen = 0; frozen < 2; frozen++) {
        for (dml_node *p = graph->first_parameter; p; p = p->next_parameter) {
            if (p->frozen != (frozen == 1)) continue;
            p->offset = offset;
            offset += dml_shape_count(&p->shape);
        }
        if (!frozen) graph->trained_count = offset;
    }
}

/* Writes initial values; a device with memory of its own gets them by way of a piece of the host's. */
static dml_status dml__initialise_all(dml_graph *graph, dml_buffer *w)
{
    dml_context *context = graph->context;
    dml_device *device = &context->device;
    size_t largest = 1;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        if (dml_shape_count(&p->shape) > largest) largest = dml_shape_count(&p->shape);
    float *piece = NULL;
    if (!device->host_memory) {
        piece = (float *)dml__allocate_array(&context->memory, largest, sizeof *piece);
        if (!piece)
            return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to initialise %zu parameters",
                             largest);
    }
    dml_status status = DML_OK;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const dml_ref to = { w, p->offset * sizeof(float) };
        dml__initialise(p, context->seed, piece ? piece : (float *)dml__host(to));
        if (piece)
            status = device->backend->write(device, to, piece, dml_shape_count(&p->shape) * sizeof(float));
    }
    dml__release(&context->memory, piece);
    return status;
}

DML__LOCAL dml_status dml__graph_lay_out(dml_graph *graph)
{
    dml_context *context = graph->context;
    if (context->error.status != DML_OK) return context->error.status;
    if (graph->w) return DML_OK;
    if (graph->parameter_count > SIZE_MAX / sizeof(float) / 2)
        return dml__fail(&context->error, DML_ERROR_MEMORY,
                         "%zu parameters are more than there are addresses for", graph->parameter_count);
    dml__give_offsets(graph);
    dml_buffer *w = dml__buffer_create(context, graph->parameter_count * sizeof(float));
    if (!w) return context->error.status;
    const dml_status status = dml__initialise_all(graph, w);
    if (status == DML_OK)
        graph->w = w;
    else
        dml__buffer_destroy(context, w);
    return status;
}

/* ---- who may write ---- */

/* In a child of fork() whoever was in a run or a step has stayed with the parent. */
static bool dml__forget_parents_claims(dml_graph *graph)
{
    const long process = dml__process_id();
    if (graph->process == process) return false;
    graph->process = process;
    __atomic_store_n(&graph->readers, 0, __ATOMIC_RELAXED);
    return true;
}

static bool dml__try_claim(dml_graph *graph, bool reading)
{
    int readers = __atomic_load_n(&graph->readers, __ATOMIC_RELAXED);
    do {
        if (reading ? readers < 0 : readers != 0) return false;
    } while (!__atomic_compare_exchange_n(&graph->readers, &readers, reading ? readers + 1 : -1, true,
                                          __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
    return true;
}

DML__LOCAL bool dml__graph_claim(dml_graph *graph, bool reading)
{
    return dml__try_claim(graph, reading) ||
           (dml__forget_parents_claims(graph) && dml__try_claim(graph, reading));
}

DML__LOCAL void dml__graph_release(dml_graph *graph, bool reading)
{
    int readers = __atomic_load_n(&graph->readers, __ATOMIC_RELAXED);
    int left;
    do { /* never below zero: a child may have forgotten its parent's claims in between */
        left = reading && readers > 0 ? readers - 1 : 0;
    } while (!__atomic_compare_exchange_n(&graph->readers, &readers, left, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

DML__LOCAL dml_status dml__graph_claim_writing(dml_graph *graph)
{
    if (dml__graph_claim(graph, false)) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_STATE,
                     "the parameters can't be written while programs predict on other threads; wait until "
                     "their runs have ended");
}

/* ---- looking ---- */

DML_API size_t dml_graph_parameter_count(const dml_graph *graph)
{
    return graph ? graph->parameter_count : 0;
}

DML_API size_t dml_graph_trained_count(const dml_graph *graph)
{
    size_t count = 0;
    for (const dml_node *p = graph ? graph->first_parameter : NULL; p; p = p->next_parameter)
        if (!p->frozen) count += dml_shape_count(&p->shape);
    return count;
}

DML_API int dml_graph_parameters(const dml_graph *graph)
{
    int count = 0;
    for (const dml_node *p = graph ? graph->first_parameter : NULL; p; p = p->next_parameter) count++;
    return count;
}

DML_API dml_node *dml_graph_parameter(const dml_graph *graph, int i)
{
    dml_node *p = graph && i >= 0 ? graph->first_parameter : NULL;
    for (; p && i > 0; i--) p = p->next_parameter;
    return p;
}

DML_API size_t dml_parameter_offset(const dml_node *parameter)
{
    return parameter ? parameter->offset : 0;
}

DML_API bool dml_parameter_trained(const dml_node *parameter)
{
    return parameter && parameter->op == dml__parameter_op() && !parameter->frozen;
}

DML_API dml_status dml_parameter_train(dml_node *parameter, bool trained)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    if (parameter->op != dml__parameter_op())
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter can be trained or frozen");
    if (trained && parameter->kept)
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT,
                              "an op keeps it, as a running statistic: it can't be trained");
    if (parameter->graph->w && parameter->frozen == trained)
        return dml__node_fail(parameter, DML_ERROR_STATE,
                              "whether it is trained must be said before the parameters are laid out, by the "
                              "first compile or the first use of their values");
    parameter->frozen = !trained;
    return DML_OK;
}

/* ---- values ---- */

static dml_status dml__reach_parameter(dml_node *parameter, size_t count)
{
    if (parameter->op != dml__parameter_op())
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter has values of its own");
    if (!parameter->used)
        return dml__node_fail(parameter, DML_ERROR_STATE, "no op uses it, so it has no place in w");
    char text[DML_SHAPE_TEXT];
    if (count != dml_shape_count(&parameter->shape))
        return dml__node_fail(parameter, DML_ERROR_SHAPE, "%zu values given or asked for, it has %s", count,
                              dml_shape_format(&parameter->shape, text));
    return dml__graph_lay_out(parameter->graph);
}

/* Where a parameter's values are copied: out to `to`, or in from `from`. */
static dml_status dml__copy_parameter(dml_node *parameter, float *to, const float *from, size_t count)
{
    dml_graph *graph = parameter->graph;
    dml_device *device = &graph->context->device;
    dml_status status = dml__reach_parameter(parameter, count);
    if (status == DML_OK && from) status = dml__graph_claim_writing(graph);
    if (status != DML_OK) return status;
    const dml_ref place = { graph->w, parameter->offset * sizeof(float) };
    if (to) return device->backend->read(device, to, place, count * sizeof *to);
    status = device->backend->write(device, place, from, count * sizeof *from);
    dml__graph_release(graph, false);
    return status;
}

static dml_status dml__copy_parameter_alone(dml_node *parameter, float *to, const float *from, size_t count)
{
    if (!parameter || (!to && !from)) return DML_ERROR_ARGUMENT;
    dml_context *context = parameter->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__copy_parameter(parameter, to, from, count);
    dml__leave(context, entry);
    return status;
}

DML_API dml_status dml_parameter_read(dml_node *parameter, float *to, size_t count)
{
    return dml__copy_parameter_alone(parameter, to, NULL, count);
}

DML_API dml_status dml_parameter_write(dml_node *parameter, const float *from, size_t count)
{
    return dml__copy_parameter_alone(parameter, NULL, from, count);
}

/* w on the host as it was left: w itself, or its mirror, which the first call makes. */
DML__LOCAL float *dml__graph_host(dml_graph *graph)
{
    dml_context *context = graph->context;
    if (dml__graph_lay_out(graph) != DML_OK) return NULL;
    if (context->device.host_memory) return (float *)graph->w->host;
    if (!graph->mirror)
        graph->mirror = (float *)dml__allocate_array(&context->memory, graph->parameter_count, sizeof(float));
    if (!graph->mirror)
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for the host's copy of %zu parameters",
                  graph->parameter_count);
    return graph->mirror;
}

static bool dml__graph_range_ok(dml_graph *graph, size_t begin, size_t end)
{
    if (begin <= end && end <= graph->parameter_count) return true;
    dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of the parameters asked for; there are %zu", begin, end,
              graph->parameter_count);
    return false;
}

DML_API float *dml_graph_get(dml_graph *graph, size_t begin, size_t end)
{
    if (!graph || !dml__graph_range_ok(graph, begin, end)) return NULL;
    float *host = dml__graph_host(graph);
    dml_device *device = &graph->context->device;
    if (!host || device->host_memory || begin == end) return host ? host + begin : NULL;
    const dml_ref from = { graph->w, begin * sizeof(float) };
    const dml_status status =
        device->backend->read(device, host + begin, from, (end - begin) * sizeof(float));
    return status == DML_OK ? host + begin : NULL;
}

DML_API dml_status dml_graph_put(dml_graph *graph, size_t begin, size_t end)
{
    if (!graph || !dml__graph_range_ok(graph, begin, end)) return DML_ERROR_ARGUMENT;
    const float *host = dml__graph_host(graph);
    dml_device *device = &graph->context->device;
    if (!host) return graph->context->error.status;
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = { graph->w, begin * sizeof(float) };
    return device->backend->write(device, to, host + begin, (end - begin) * sizeof(float));
}

#endif

/* ---- graph/weights_file.c ---- */

#ifndef DML_GRAPH_WEIGHTS_FILE_C
#define DML_GRAPH_WEIGHTS_FILE_C

/* ---- graph/weights_file.h ---- */

/* weights_file.h: a graph's parameters as tensors of a file, for the files of this room and for checkpoints.
 */
#ifndef DML_GRAPH_WEIGHTS_FILE_H
#define DML_GRAPH_WEIGHTS_FILE_H

/* What files of the library's own have besides parameters begins with this. */
#define DML__OWN_TENSORS "dml."

/* Fills `tensors` with dml_graph_parameters(graph) of them: every parameter, with its values in `w`. */
DML__LOCAL void dml__graph_tensors(const dml_graph *graph, const float *w, dml__tensor *tensors);

/* Whether the file, which sentences call `path`, has the tensor `name` as f32 of that shape; *found is then
   its number. */
DML__LOCAL dml_status dml__file_has(const dml__safetensors *file, const char *path, const char *name,
                                    const dml_shape *shape, int *found, dml__error *error);

/* Whether the file holds each of the graph's parameters, and none that the graph hasn't. */
DML__LOCAL dml_status dml__graph_fits_file(dml_graph *graph, const dml__safetensors *file, const char *path);

/* Reads a file that fits into w. */
DML__LOCAL dml_status dml__graph_read_file(dml_graph *graph, dml__safetensors *file);

#endif

#include <string.h>

/* ---- writing ---- */

DML__LOCAL void dml__graph_tensors(const dml_graph *graph, const float *w, dml__tensor *tensors)
{
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter, tensors++) {
        tensors->name = p->name;
        tensors->dtype = DML_F32;
        tensors->ndim = p->shape.ndim;
        tensors->dims = p->shape.dims;
        tensors->data = w + p->offset;
    }
}

/* Where a graph is written to: a file, or, where `path` is NULL, memory. */
typedef struct dml__weights_target {
    const char *path;
    void *to;
    size_t capacity, *bytes;
} dml__weights_target;

static dml_status dml__graph_write(dml_graph *graph, const dml__weights_target *target)
{
    dml_context *context = graph->context;
    const int count = dml_graph_parameters(graph);
    const float *w = dml_graph_get(graph, 0, graph->parameter_count);
    if (!w) return context->error.status;
    dml__tensor *tensors =
        (dml__tensor *)dml__allocate_array(&context->memory, (size_t)count, sizeof *tensors);
    if (!tensors)
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to list %d parameters", count);
    dml__graph_tensors(graph, w, tensors);
    dml_status status;
#ifndef DML_NO_STDIO
    if (target->path)
        status =
            dml__safetensors_save(&context->memory, target->path, tensors, count, NULL, 0, &context->error);
    else
#endif
        status = dml__safetensors_store(&context->memory, target->to, target->capacity, target->bytes,
                                        tensors, count, NULL, 0, &context->error);
    dml__release(&context->memory, tensors);
    return status;
}

static dml_status dml__graph_write_guarded(dml_graph *graph, const dml__weights_target *target)
{
    const dml__entry entry = dml__enter(graph->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__graph_write(graph, target);
    dml__leave(graph->context, entry);
    return status;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_save(dml_graph *graph, const char *path)
{
    if (!graph || !path) return DML_ERROR_ARGUMENT;
    const dml__weights_target target = { path, NULL, 0, NULL };
    return dml__graph_write_guarded(graph, &target);
}
#endif

DML_API dml_status dml_graph_store(dml_graph *graph, void *to, size_t capacity, size_t *bytes)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!bytes)
        return dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
                         "dml_graph_store was given no place for the number of bytes");
    const dml__weights_target target = { NULL, to, capacity, bytes };
    return dml__graph_write_guarded(graph, &target);
}

/* ---- reading ---- */

static bool dml__entry_has_shape(const dml__safetensors_entry *entry, const dml_shape *shape)
{
    if (entry->ndim != shape->ndim) return false;
    for (int i = 0; i < shape->ndim; i++)
        if (entry->dims[i] != (uint64_t)shape->dims[i]) return false;
    return true;
}

/* "3 x 4" of a file's tensor, whose dimensions may be any. */
static const char *dml__entry_shape(const dml__safetensors_entry *entry, char text[DML_SHAPE_TEXT])
{
    dml_shape shape;
    memset(&shape, 0, sizeof shape);
    if (entry->ndim > DML_MAX_DIMS) return "more dimensions";
    shape.ndim = entry->ndim;
    for (int i = 0; i < entry->ndim; i++)
        shape.dims[i] = entry->dims[i] < INT32_MAX ? (int)entry->dims[i] : INT32_MAX;
    return dml_shape_format(&shape, text);
}

DML__LOCAL dml_status dml__file_has(const dml__safetensors *file, const char *path, const char *name,
                                    const dml_shape *shape, int *found, dml__error *error)
{
    char want[DML_SHAPE_TEXT], got[DML_SHAPE_TEXT];
    *found = dml__safetensors_find(file, name);
    if (*found < 0)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds another model: it has no '%s', which this model has as %s", path, name,
                         dml_shape_format(shape, want));
    const dml__safetensors_entry *entry = dml__safetensors_at(file, *found);
    if (!dml__entry_has_shape(entry, shape))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds another model: its '%s' is %s, this model's is %s", path, name,
                         dml__entry_shape(entry, got), dml_shape_format(shape, want));
    if (entry->dtype != DML_F32)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" has '%s' as %.16s; convert it to F32 before loading", path, name,
                         entry->dtype_text);
    return DML_OK;
}

/* A tensor of the file that no parameter takes. */
static dml_status dml__find_stranger(const dml_graph *graph, const dml__safetensors *file, const char *path)
{
    char shown[DML__SHOWN_BYTES];
    for (int i = 0; i < dml__safetensors_count(file); i++) {
        const char *name = dml__safetensors_at(file, i)->name;
        const dml_node *node = dml__graph_find(graph, name);
        if (strncmp(name, DML__OWN_TENSORS, strlen(DML__OWN_TENSORS)) == 0 || (node && node->used)) continue;
        return dml__fail(&graph->context->error, DML_ERROR_FORMAT,
                         "\"%s\" holds another model: its '%s' is no parameter of this one", path,
                         dml__shown(name, strlen(name), shown));
    }
    return DML_OK;
}

DML__LOCAL dml_status dml__graph_fits_file(dml_graph *graph, const dml__safetensors *file, const char *path)
{
    dml_status status = DML_OK;
    int found;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter)
        status = dml__file_has(file, path, p->name, &p->shape, &found, &graph->context->error);
    return status == DML_OK ? dml__find_stranger(graph, file, path) : status;
}

DML__LOCAL dml_status dml__graph_read_file(dml_graph *graph, dml__safetensors *file)
{
    float *w = dml__graph_host(graph);
    if (!w) return graph->context->error.status;
    dml_status status = DML_OK;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter)
        status = dml__safetensors_read(file, dml__safetensors_find(file, p->name), w + p->offset,
                                       &graph->context->error);
    return status == DML_OK ? dml_graph_put(graph, 0, graph->parameter_count) : status;
}

/* The open file into the graph; closes it. */
static dml_status dml__graph_load_open(dml_graph *graph, dml__safetensors *file, const char *path)
{
    dml_status status = dml__graph_lay_out(graph);
    if (status == DML_OK) status = dml__graph_fits_file(graph, file, path);
    if (status == DML_OK && (status = dml__graph_claim_writing(graph)) == DML_OK) {
        status = dml__graph_read_file(graph, file);
        dml__graph_release(graph, false);
    }
    dml__safetensors_close(file);
    return status;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_load(dml_graph *graph, const char *path)
{
    if (!graph || !path) return DML_ERROR_ARGUMENT;
    dml_context *context = graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK) status = dml__safetensors_open_file(&context->memory, path, &file, &context->error);
    if (status == DML_OK) status = dml__graph_load_open(graph, file, path);
    dml__leave(context, entry);
    return status;
}
#endif

DML_API dml_status dml_graph_load_memory(dml_graph *graph, const char *name, const void *bytes, size_t size)
{
    if (!graph || (!bytes && size)) return DML_ERROR_ARGUMENT;
    dml_context *context = graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    if (!name) name = "the model in memory";
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK)
        status = dml__safetensors_open_memory(&context->memory, name, bytes, size, &file, &context->error);
    if (status == DML_OK) status = dml__graph_load_open(graph, file, name);
    dml__leave(context, entry);
    return status;
}

#endif

/* ---- graph/op.c ---- */

#ifndef DML_GRAPH_OP_C
#define DML_GRAPH_OP_C

/* ---- graph/program_internal.h ---- */

/* program_internal.h: what the trainer needs of a program. */
#ifndef DML_GRAPH_PROGRAM_INTERNAL_H
#define DML_GRAPH_PROGRAM_INTERNAL_H

/* Where a node lives in a program. Views have the slot of the node they look at, a relu that the op before it
   does has that op's. */
typedef struct dml__slot {
    dml_node *node;
    int root;              /* the slot whose memory this one is: its own index, but for views and fused */
    bool fused, gone;      /* a relu that the op of its input does; that has nothing to do in backward too */
    bool ends_in_relu;     /* such an op */
    bool begins_with_relu; /* an op that does the backward of its input, a relu */
    bool has_gradient;     /* a parameter lies behind it */
    bool reached, written; /* while compiling: by the output's gradient; as a gradient, by some op */
    int limit;             /* input: values must be in 0 .. limit - 1 for the program's ops; 0: any */
    int given;             /* input: which of the program's */
    unsigned accumulates;  /* bit i: in backward, another op wrote the gradient of input i before this one */
    int value_at, gradient_at; /* the slot whose block of the arena holds them: another's where in place */
    size_t value, gradient, saved; /* bytes into the arena, of roots */
    size_t final_from;             /* after this node's backward, g[final_from ..] is final */
} dml__slot;

struct dml_program {
    dml__owned owned; /* first: the context destroys through it */
    dml_graph *graph;
    dml_node *output;
    int batch;
    bool training;
    bool changes_w; /* in training, forward changes parameters: running statistics */
    /* With a thread of its own: a pool of that one thread, errors of its own, and whether a run is going on.
     */
    bool own_thread;
    dml_pool *own_pool;
    dml__error error;
    int running;
    long process; /* whose thread `running` is */
    int slots;
    dml__slot *slot;   /* in order of execution */
    int *slot_of_node; /* by node index; -1: not in the program */
    int inputs;
    dml_node **input;
    dml_buffer *given; /* (inputs): the caller's arrays, which a host_memory device reads where they are;
                          NULL: they are written to the arena */
    size_t bytes;
    dml_buffer *arena;
    dml_buffer *g; /* of a training program: as long as w */
};

/* Called from the end of g towards its start, each time more of it has become final: g[begin .. end) now is.
 */
typedef struct dml__gradient_listener {
    dml_status (*ready)(void *user, size_t begin, size_t end);
    void *user;
} dml__gradient_listener;

/* Whether a run could begin: `rows` and `inputs` are what the program takes. An error is recorded. */
DML__LOCAL dml_status dml__program_check(dml_program *program, int rows, const void *const *inputs,
                                         int count);

/* What a training run does with gradients. */
typedef struct dml__training {
    uint32_t step;                          /* keys random numbers */
    float loss_scale;                       /* the gradient is of loss_scale x loss */
    bool adds;                              /* it is added to g, which it else overwrites */
    const dml__gradient_listener *listener; /* or NULL */
} dml__training;

/* Forward and backward of a training program on inputs that dml__program_check has passed. `loss` may be
 * NULL.
 */
DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         const dml__training *training, float *loss);

/* dml_compile where each op does its own work, and no two blocks of the arena share bytes: what tests compare
   a plan with. */
DML__LOCAL dml_program *dml__compile_disjoint(dml_node *output, const dml_program_options *options);

#endif

#include <string.h>

DML__LOCAL double dml__no_flops(const dml_node *node)
{
    (void)node;
    return 0;
}

DML__LOCAL const dml__op *dml__input_op(void)
{
    static const dml__op op = { "input", NULL, NULL, NULL, 0, NULL, false, false, NULL, dml__no_flops, NULL };
    return &op;
}

DML__LOCAL const dml__op *dml__parameter_op(void)
{
    static const dml__op op = { "parameter", NULL,  NULL, NULL,          0,   NULL,
                                false,       false, NULL, dml__no_flops, NULL };
    return &op;
}

static const dml__slot *dml__slot_of(const dml__run *run, const dml_node *node)
{
    return &run->program->slot[run->program->slot_of_node[node->index]];
}

static const dml__slot *dml__root_of(const dml__run *run, const dml_node *node)
{
    return &run->program->slot[dml__slot_of(run, node)->root];
}

static dml_ref dml__parameter_ref(dml_buffer *vector, const dml_node *parameter)
{
    const dml_ref ref = { vector, parameter->offset * sizeof(float) };
    return ref;
}

static dml_ref dml__arena_ref(const dml__run *run, size_t offset)
{
    const dml_ref ref = { run->program->arena, offset };
    return ref;
}

DML__LOCAL dml_ref dml__value(const dml__run *run, const dml_node *node)
{
    const dml__slot *root = dml__root_of(run, node);
    if (root->node->op == dml__parameter_op()) return dml__parameter_ref(run->program->graph->w, root->node);
    if (root->node->op == dml__input_op() && run->program->given) {
        const dml_ref ref = { &run->program->given[root->given], 0 };
        return ref;
    }
    return dml__arena_ref(run, root->value);
}

DML__LOCAL dml_ref dml__gradient(const dml__run *run, const dml_node *node)
{
    const dml__slot *root = dml__root_of(run, node);
    if (root->node->op == dml__parameter_op()) return dml__parameter_ref(run->program->g, root->node);
    return dml__arena_ref(run, root->gradient);
}

DML__LOCAL dml_ref dml__saved(const dml__run *run, const dml_node *node)
{
    return dml__arena_ref(run, dml__slot_of(run, node)->saved);
}

DML__LOCAL bool dml__wants_gradient(const dml__run *run, const dml_node *node, int i)
{
    return dml__slot_of(run, node->input[i])->has_gradient;
}

DML__LOCAL float dml__beta(const dml__run *run, const dml_node *node, int i)
{
    const bool adds = run->adds && dml__root_of(run, node->input[i])->node->op == dml__parameter_op();
    return adds || ((dml__slot_of(run, node)->accumulates >> i) & 1u) ? 1.0f : 0.0f;
}

DML__LOCAL bool dml__ends_in_relu(const dml__run *run, const dml_node *node)
{
    return dml__slot_of(run, node)->ends_in_relu;
}

DML__LOCAL bool dml__begins_with_relu(const dml__run *run, const dml_node *node)
{
    return dml__slot_of(run, node)->begins_with_relu;
}

DML__LOCAL size_t dml__count(const dml__run *run, const dml_node *node)
{
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)run->rows : 1);
}

DML__LOCAL dml_status dml__check_image_input(const dml_node *node)
{
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype == DML_F32 && x->batched && x->shape.ndim == 3) return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE,
                          "its input is %s %s; it takes f32 images of height x width x channels",
                          dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
}

DML__LOCAL dml_launch dml__launch(const char *kernel, size_t x, size_t y)
{
    dml_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.kernel = kernel;
    launch.size[0] = x;
    launch.size[1] = y;
    return launch;
}

DML__LOCAL dml_status dml__submit(dml_device *device, const dml_launch *launch)
{
    if (launch->size[0] > INT32_MAX || launch->size[1] > INT32_MAX)
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                               "%s over %zu x %zu: the kernels count to %d; use smaller batches",
                               launch->kernel, launch->size[0], launch->size[1], INT32_MAX);
    if (launch->size[0] == 0 || launch->size[1] == 0) return DML_OK;
    return device->backend->launch(device, launch);
}

DML__LOCAL dml_status dml__sum_rows_into_gradient(const dml__run *run, const dml_node *node, int i,
                                                  size_t rows, size_t columns)
{
    const float beta = dml__beta(run, node, i);
    if (run->device->host_memory) {
        dml_sum_rows(run->pool, rows, columns, dml__host_gradient(run, node), beta,
                     dml__host_gradient(run, node->input[i]));
        return DML_OK;
    }
    dml_launch launch = dml__launch("sum_rows", columns, 1);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__gradient(run, node->input[i]);
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = (int32_t)columns;
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

#endif

/* ---- graph/plan.c ---- */

#ifndef DML_GRAPH_PLAN_C
#define DML_GRAPH_PLAN_C

/* ---- graph/plan.h ---- */

/* plan.h: the memory plan: which blocks of an arena may share bytes, because they are never needed at once.
 */
#ifndef DML_GRAPH_PLAN_H
#define DML_GRAPH_PLAN_H

typedef struct dml__block_life {
    size_t bytes;
    int first, last; /* the times at which it is needed, both included */
    size_t offset;   /* out */
} dml__block_life;

/* Sets each block's offset so that blocks alive at the same time don't overlap, and returns the arena's size.
   Each offset is a multiple of DML__ALIGNMENT. Largest blocks first, each at the lowest free place (greedy by
   size: Pisarchyk, Lee, "Efficient memory management for deep neural net inference", 2020, section 5.2).
   `order` is scratch for `count` ints. */
DML__LOCAL size_t dml__plan_memory(dml__block_life *blocks, int count, int *order);

#endif

/* The lowest offset at which the block overlaps none of the `placed` ones that live when it does. */
static size_t dml__lowest_free_offset(const dml__block_life *blocks, const int *order, int placed,
                                      const dml__block_life *block)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < placed; i++) {
            const dml__block_life *other = &blocks[order[i]];
            const bool together = other->first <= block->last && block->first <= other->last;
            if (together && other->offset < offset + block->bytes && offset < other->offset + other->bytes) {
                offset = dml__align_up(other->offset + other->bytes);
                moved = true;
            }
        }
    }
    return offset;
}

DML__LOCAL size_t dml__plan_memory(dml__block_life *blocks, int count, int *order)
{
    /* Insertion sort, largest first; stable, so that plans repeat. */
    for (int i = 0; i < count; i++) {
        int j = i;
        for (; j > 0 && blocks[order[j - 1]].bytes < blocks[i].bytes; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        dml__block_life *block = &blocks[order[i]];
        block->offset = dml__lowest_free_offset(blocks, order, i, block);
        const size_t end = dml__align_up(block->offset + block->bytes);
        if (end > total) total = end;
    }
    return total;
}

#endif

/* ---- graph/compile.c ---- */

#ifndef DML_GRAPH_COMPILE_C
#define DML_GRAPH_COMPILE_C

#include <string.h>

static void dml__program_destroy_owned(dml__owned *owned)
{
    dml_program *program = (dml_program *)(void *)owned;
    dml_context *context = program->graph->context;
    dml__disown(context, owned);
    program->graph->programs--;
    dml__buffer_destroy(context, program->arena);
    dml__buffer_destroy(context, program->g);
    dml_pool_destroy(program->own_pool);
    dml__release(&context->memory, program->slot);
    dml__release(&context->memory, program->slot_of_node);
    dml__release(&context->memory, program->input);
    dml__release(&context->memory, program->given);
    dml__release(&context->memory, program);
}

DML_API void dml_program_destroy(dml_program *program)
{
    if (program) dml__program_destroy_owned(&program->owned);
}

static dml__slot *dml__input_slot(const dml_program *program, const dml__slot *slot, int i)
{
    return &program->slot[program->slot_of_node[slot->node->input[i]->index]];
}

/* What an op of the program indexes with must be in its range: of several, in the smallest. */
static void dml__limit_inputs(dml_program *program, const dml__slot *slot)
{
    for (int i = 0; slot->node->limit && i < slot->node->inputs; i++) {
        dml__slot *input = dml__input_slot(program, slot, i);
        if (input->node->dtype != DML_I32) continue;
        if (!input->limit || slot->node->limit < input->limit) input->limit = slot->node->limit;
    }
}

/* Compiling, step 1: a slot for each node that the output needs, in order of creation. */
static dml_status dml__collect_slots(dml_program *program)
{
    dml_context *context = program->graph->context;
    const int nodes = program->output->index + 1;
    dml_node **node = (dml_node **)dml__allocate_array(&context->memory, (size_t)nodes, sizeof *node);
    program->slot_of_node = (int *)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(int));
    program->slot = (dml__slot *)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(dml__slot));
    program->input = (dml_node **)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(dml_node *));
    if (!node || !program->slot_of_node || !program->slot || !program->input) {
        dml__release(&context->memory, node);
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to compile %d nodes", nodes);
    }
    dml_node *walk = program->graph->first;
    for (int i = 0; i < nodes; i++, walk = walk->next) node[i] = walk;

    int *needed = program->slot_of_node; /* 1 where needed, until it holds slots */
    needed[nodes - 1] = 1;
    for (int i = nodes - 1; i >= 0; i--)
        for (int k = 0; needed[i] && k < node[i]->inputs; k++) needed[node[i]->input[k]->index] = 1;
    for (int i = 0; i < nodes; i++) {
        if (!needed[i]) {
            program->slot_of_node[i] = -1;
            continue;
        }
        const int s = program->slots++;
        dml__slot *slot = &program->slot[s];
        slot->node = node[i];
        slot->value_at = slot->gradient_at = s;
        program->slot_of_node[i] = s;
        slot->root = node[i]->op->view ? dml__input_slot(program, slot, 0)->root : s;
        if (node[i]->op == dml__input_op()) {
            slot->given = program->inputs;
            program->input[program->inputs++] = node[i];
        }
        program->changes_w = program->changes_w || (program->training && node[i]->kept);
        dml__limit_inputs(program, slot);
    }
    dml__release(&context->memory, node);
    return DML_OK;
}

/* How many inputs of the program's ops a slot's node is. */
static int dml__count_uses(const dml_program *program, const dml__slot *slot)
{
    int uses = 0;
    for (int s = 0; s < program->slots; s++)
        for (int i = 0; i < program->slot[s].node->inputs; i++)
            uses += program->slot[s].node->input[i] == slot->node;
    return uses;
}

/* The only op that reads a slot's node, where there is one that gates a relu; else NULL. */
static dml__slot *dml__gate_behind(dml_program *program, const dml__slot *slot)
{
    if (dml__count_uses(program, slot) != 1) return NULL;
    for (int s = 0; s < program->slots; s++)
        if ((program->slot[s].node->op->needs & DML__GATES_RELU) &&
            program->slot[s].node->input[0] == slot->node)
            return &program->slot[s];
    return NULL;
}

/* Step 2: a relu and the op before it that nothing else reads become one. They share value and gradient,
   which the relu's backward, being the last to write there, makes that op's in place; unless it has nothing
   left to do, since the op before or behind it minds the relu. */
static void dml__fuse(dml_program *program)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->root = program->slot[slot->root].root;
        if (!(slot->node->op->needs & DML__IS_RELU)) continue;
        dml__slot *input = dml__input_slot(program, slot, 0);
        if (!(input->node->op->needs & DML__TAKES_RELU) || dml__count_uses(program, input) > 1) continue;
        slot->root = input->root;
        slot->fused = input->ends_in_relu = true;
        dml__slot *gate = dml__gate_behind(program, slot);
        slot->gone = (input->node->op->needs & DML__TAKES_RELU_BACK) || gate;
        if (gate && !(input->node->op->needs & DML__TAKES_RELU_BACK)) gate->begins_with_relu = true;
    }
}

/* Whether a gradient of the slot's node becomes one of its input i. */
static bool dml__flows_to(const dml__slot *slot, int i)
{
    const dml__op *op = slot->node->op;
    return (op->backward || op->view) && !(i == 0 && (op->needs & DML__CHOOSES_BY_FIRST));
}

/* Step 3: which gradients there are: those with a trained parameter behind them through which the output's
 * gradient flows. */
static void dml__find_gradients(dml_program *program)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->has_gradient = slot->node->op == dml__parameter_op() && !slot->node->frozen;
        for (int i = 0; i < slot->node->inputs; i++)
            slot->has_gradient = slot->has_gradient ||
                                 (dml__flows_to(slot, i) && dml__input_slot(program, slot, i)->has_gradient);
    }
    program->slot[program->slots - 1].reached = true;
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        for (int i = 0; slot->reached && i < slot->node->inputs; i++)
            if (dml__flows_to(slot, i)) dml__input_slot(program, slot, i)->reached = true;
        slot->has_gradient = slot->has_gradient && slot->reached;
    }
}

/* The first op in execution order that uses a parameter is the last to write its gradient. */
static int dml__first_use(const dml_program *program, const dml__slot *parameter)
{
    for (int s = 0; s < program->slots; s++)
        for (int i = 0; i < program->slot[s].node->inputs; i++)
            if (program->slot[s].node->input[i] == parameter->node) return s;
    return program->slots;
}

/* Step 4: who adds to a gradient that another op wrote before, and what is final after each op's backward. */
static void dml__order_gradients(dml_program *program)
{
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        if (!slot->has_gradient || slot->node->op->view || slot->fused) continue;
        for (int i = 0; i < slot->node->inputs; i++) {
            const dml__slot *input = dml__input_slot(program, slot, i);
            if (!input->has_gradient || !dml__flows_to(slot, i)) continue;
            dml__slot *root = &program->slot[input->root];
            if (root->written) slot->accumulates |= 1u << i;
            root->written = true;
        }
    }
    for (int p = 0; p < program->slots; p++) {
        const dml__slot *parameter = &program->slot[p];
        if (parameter->node->op != dml__parameter_op() || !parameter->has_gradient) continue;
        const size_t end = parameter->node->offset + dml_shape_count(&parameter->node->shape);
        for (int s = dml__first_use(program, parameter) + 1; s < program->slots; s++)
            if (program->slot[s].final_from < end) program->slot[s].final_from = end;
    }
}

static size_t dml__value_bytes(const dml_program *program, const dml_node *node)
{
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)program->batch : 1) *
           dml_dtype_size(node->dtype);
}

/* Stretches a block's life to include `time`. */
static void dml__live_at(dml__block_life *block, int time)
{
    if (time < block->first) block->first = time;
    if (time > block->last) block->last = time;
}

/* Step 5: when each value, gradient and saved block is needed. Slot s runs forward at time s and backward at
   time 2 slots - 1 - s. Block 3 s is its value, 3 s + 1 its gradient, 3 s + 2 what it saves. */
static void dml__find_lives(const dml_program *program, dml__block_life *blocks)
{
    const int end = 2 * program->slots - 1;
    for (int s = 0; s < program->slots; s++) {
        const dml__slot *slot = &program->slot[s];
        const dml_node *node = slot->node;
        dml__block_life *value = &blocks[3 * s], *gradient = &blocks[3 * s + 1], *saved = &blocks[3 * s + 2];
        value->first = value->last = node->op == dml__input_op() ? 0 : s;
        gradient->first = gradient->last = end - s;
        saved->first = s;
        saved->last = slot->has_gradient ? end - s : s;
        if (node->op == dml__parameter_op()) continue;
        if (node->op == dml__input_op() && program->given) continue;
        if (slot->root == s) value->bytes = dml__value_bytes(program, node);
        if (slot->root == s && slot->has_gradient) gradient->bytes = value->bytes;
        if (node->op->saved_bytes) saved->bytes = node->op->saved_bytes(node, program->batch);

        if (slot->has_gradient && (node->op->needs & DML__NEEDS_OUTPUT) && !slot->gone)
            dml__live_at(&blocks[3 * slot->root], end - s);
        for (int i = 0; i < node->inputs; i++) {
            const int root = dml__input_slot(program, slot, i)->root;
            dml__live_at(&blocks[3 * root], s);
            if (!slot->has_gradient) continue;
            dml__live_at(&blocks[3 * root + 1], end - s);
            if (node->op->needs & DML__NEEDS_INPUT(i)) dml__live_at(&blocks[3 * root], end - s);
        }
    }
    dml__live_at(&blocks[3 * program->slot[program->slots - 1].root], end);
}

/* Gives `part`, a block that begins to live when `whole` has been used for the last time, the bytes of
 * `whole`. */
static bool dml__continue_block(dml__block_life *whole, dml__block_life *part)
{
    if (!whole->bytes || whole->bytes != part->bytes || whole->last != part->first) return false;
    whole->last = part->last;
    part->bytes = 0;
    return true;
}

/* Whether all that write the gradient of input `i` of slot s, in backward, come before the op of slot `until`
   runs, but for s itself. */
static bool dml__written_after(const dml_program *program, int s, int root, int until)
{
    for (int u = 0; u < program->slots; u++) {
        const dml__slot *slot = &program->slot[u];
        if (u == s || slot->gone || slot->node->op->view || u < until) continue;
        for (int k = 0; k < slot->node->inputs; k++)
            if (dml__input_slot(program, slot, k)->root == root) return false;
    }
    return true;
}

/* Gives the gradients of both inputs of an op that passes its own on the place of that: the later input's op
   reads it first, and only then do other ops add to the earlier's. */
static void dml__pass_gradient(dml_program *program, int s, dml__block_life *blocks)
{
    const dml__slot *slot = &program->slot[s];
    const int a = dml__input_slot(program, slot, 0)->root, b = dml__input_slot(program, slot, 1)->root;
    dml__slot *early = &program->slot[a < b ? a : b], *late = &program->slot[a < b ? b : a];
    dml__block_life *whole = &blocks[3 * slot->gradient_at + 1];
    dml__block_life *first = &blocks[3 * (a < b ? b : a) + 1], *last = &blocks[3 * (a < b ? a : b) + 1];
    if (a == b || !early->has_gradient || !late->has_gradient || slot->accumulates) return;
    if (!whole->bytes || whole->bytes != first->bytes || whole->bytes != last->bytes) return;
    if (whole->last != first->first || whole->last != last->first) return;
    if (!dml__written_after(program, s, a < b ? b : a, 0) ||
        !dml__written_after(program, s, a < b ? a : b, a < b ? b : a))
        return;
    whole->last = last->last;
    first->bytes = last->bytes = 0;
    early->gradient_at = late->gradient_at = slot->gradient_at;
}

/* Step 6: where an op may write over what nobody needs after it, it does: its value over its input's, and in
   backward its input's gradient, which it is the first to write, over its own. */
static void dml__work_in_place(dml_program *program, dml__block_life *blocks)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        if (!slot->node->op->in_place) continue;
        const int from = program->slot[dml__input_slot(program, slot, 0)->root].value_at;
        if (dml__continue_block(&blocks[3 * from], &blocks[3 * s])) slot->value_at = from;
    }
    for (int s = program->slots - 1; s >= 0; s--) {
        const dml__slot *slot = &program->slot[s];
        if (slot->has_gradient && (slot->node->op->needs & DML__PASSES_GRADIENT))
            dml__pass_gradient(program, s, blocks);
        if (!slot->node->op->in_place || !slot->has_gradient || (slot->accumulates & 1u)) continue;
        const int input = dml__input_slot(program, slot, 0)->root;
        if (!program->slot[input].has_gradient) continue;
        if (dml__continue_block(&blocks[3 * slot->gradient_at + 1], &blocks[3 * input + 1]))
            program->slot[input].gradient_at = slot->gradient_at;
    }
}

/* Whether sizes can be counted: values, as many gradients, and what ops save, which is less than both. */
static bool dml__fits_in_memory(const dml_program *program)
{
    double bytes = 0;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        bytes += 4.0 * (double)dml_shape_count(&node->shape) * program->batch *
                 (double)dml_dtype_size(node->dtype);
    }
    return bytes < (double)(SIZE_MAX / 2);
}

/* All at once, none in another's place: what every plan must agree with. */
static void dml__live_for_ever(const dml_program *program, dml__block_life *blocks)
{
    for (int b = 0; b < 3 * program->slots; b++) {
        blocks[b].first = 0;
        blocks[b].last = 2 * program->slots - 1;
    }
}

static dml_status dml__place_blocks(dml_program *program, bool disjoint)
{
    dml_context *context = program->graph->context;
    if (!dml__fits_in_memory(program))
        return dml__node_fail(program->output, DML_ERROR_MEMORY,
                              "a batch of %d needs more memory than there are addresses", program->batch);
    const int count = 3 * program->slots;
    dml__block_life *blocks =
        (dml__block_life *)dml__allocate_array(&context->memory, (size_t)count, sizeof *blocks);
    int *order = (int *)dml__allocate_array(&context->memory, (size_t)count, sizeof *order);
    dml_status status = DML_OK;
    if (blocks && order) {
        dml__find_lives(program, blocks);
        if (disjoint)
            dml__live_for_ever(program, blocks);
        else
            dml__work_in_place(program, blocks);
        program->bytes = dml__plan_memory(blocks, count, order);
        for (int s = 0; s < program->slots; s++) {
            program->slot[s].value = blocks[3 * program->slot[s].value_at].offset;
            program->slot[s].gradient = blocks[3 * program->slot[s].gradient_at + 1].offset;
            program->slot[s].saved = blocks[3 * s + 2].offset;
        }
    } else {
        status = dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to plan %d blocks", count);
    }
    dml__release(&context->memory, blocks);
    dml__release(&context->memory, order);
    return status;
}

static dml_status dml__allocate_program(dml_program *program)
{
    dml_context *context = program->graph->context;
    program->arena = dml__buffer_create(context, program->bytes);
    if (!program->arena) return context->error.status;
    if (!program->training) return DML_OK;
    const size_t g_bytes = program->graph->trained_count * sizeof(float);
    program->g = dml__buffer_create(context, g_bytes);
    if (!program->g) return context->error.status;
    const dml_ref start = { program->g, 0 };
    return g_bytes ? context->device.backend->zero(&context->device, start, g_bytes) : DML_OK;
}

static dml_status dml__check_compile(dml_node *output, const dml_program_options *options)
{
    dml_context *context = output->graph->context;
    char text[DML_SHAPE_TEXT];
    if (context->error.status != DML_OK) return context->error.status;
    if (options && options->own_thread && (options->training || !context->device.host_memory))
        return dml__fail(
            &context->error, DML_ERROR_UNSUPPORTED,
            "a program with a thread of its own only predicts, and on the CPU: this one is %s on %s",
            options->training ? "to train" : "to predict", context->device.backend->name);
    if (!options || options->batch < 1)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "a batch of %d asked for: a program is compiled for 1 or more samples",
                         options ? options->batch : 0);
    if (output->op == dml__parameter_op() && !output->used)
        return dml__node_fail(output, DML_ERROR_ARGUMENT,
                              "no op uses it, so it has no place among the graph's parameters");
    if (options->training && (output->batched || output->shape.ndim != 0 || output->dtype != DML_F32))
        return dml__node_fail(output, DML_ERROR_SHAPE,
                              "it is %s%s %s; what is trained is one scalar loss for the batch",
                              dml_shape_format(&output->shape, text),
                              output->batched ? " a sample of" : " of", dml_dtype_name(output->dtype));
    return DML_OK;
}

/* A pool of no thread but the caller's, which holds a program's scratch. */
static dml_status dml__make_own_pool(dml_program *program)
{
    dml_context *context = program->graph->context;
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.allocator = dml__memory_allocator(&context->memory);
    program->own_pool = dml_pool_create(&options);
    if (program->own_pool) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a program's own scratch");
}

/* The scratch that the CPU's kernels work in: the largest need of any op. */
static dml_status dml__reserve_scratch(dml_program *program)
{
    dml_context *context = program->graph->context;
    dml_scratch most = { 0, 0 };
    if (!context->device.host_memory) return DML_OK;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        if (node->op->scratch)
            most = dml__larger_scratch(most, node->op->scratch(node, program->batch, program->training));
    }
    if (dml_pool_reserve(program->own_thread ? program->own_pool : context->pool, most) == DML_OK)
        return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY,
                     "no memory left for scratch of %zu bytes for each thread and %zu for all", most.worker,
                     most.shared);
}

/* Where the device can, it reads inputs from the caller's arrays: no copies, and no places in the arena. */
static dml_status dml__read_inputs_in_place(dml_program *program)
{
    dml_context *context = program->graph->context;
    program->given = (dml_buffer *)dml__allocate_array(&context->memory, (size_t)program->inputs + 1,
                                                       sizeof *program->given);
    if (program->given) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for %d inputs", program->inputs);
}

static dml_program *dml__compile_in(dml_node *output, const dml_program_options *options, bool disjoint)
{
    dml_graph *graph = output->graph;
    dml_context *context = graph->context;
    if (dml__check_compile(output, options) != DML_OK || dml__graph_lay_out(graph) != DML_OK) return NULL;
    dml_program *program = (dml_program *)dml__allocate(&context->memory, sizeof *program);
    if (!program) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a program");
        return NULL;
    }
    program->graph = graph;
    program->output = output;
    program->batch = options->batch;
    program->training = options->training;
    program->own_thread = options->own_thread;
    program->process = context->process;
    dml__own(context, &program->owned, dml__program_destroy_owned);
    graph->programs++;
    dml_status status = dml__collect_slots(program);
    if (status == DML_OK && context->device.host_memory && !disjoint) {
        dml__fuse(program);
        status = dml__read_inputs_in_place(program);
    }
    if (status == DML_OK && program->training) {
        dml__find_gradients(program);
        dml__order_gradients(program);
        if (!program->slot[program->slots - 1].has_gradient)
            status = dml__node_fail(output, DML_ERROR_ARGUMENT,
                                    "it depends on no trained parameter: there is nothing to train");
    }
    if (status == DML_OK) status = dml__place_blocks(program, disjoint);
    if (status == DML_OK) status = dml__allocate_program(program);
    if (status == DML_OK && program->own_thread) status = dml__make_own_pool(program);
    if (status == DML_OK) status = dml__reserve_scratch(program);
    if (status == DML_OK) {
        dml__log(&context->logger, DML_LOG_DEBUG, "compiled %d nodes for %d samples%s: %zu bytes",
                 program->slots, program->batch, program->training ? " to train" : "", program->bytes);
        return program;
    }
    dml_program_destroy(program);
    return NULL;
}

static dml_program *dml__compile_guarded(dml_node *output, const dml_program_options *options, bool disjoint)
{
    if (!output) return NULL;
    dml_context *context = output->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_program *program = dml__compile_in(output, options, disjoint);
    dml__leave(context, entry);
    return program;
}

DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options)
{
    return dml__compile_guarded(output, options, false);
}

DML__LOCAL dml_program *dml__compile_disjoint(dml_node *output, const dml_program_options *options)
{
    return dml__compile_guarded(output, options, true);
}

#endif

/* ---- graph/program.c ---- */

#ifndef DML_GRAPH_PROGRAM_C
#define DML_GRAPH_PROGRAM_C

#include <stdio.h>

DML_API size_t dml_program_bytes(const dml_program *program)
{
    return program ? program->bytes : 0;
}

DML_API int dml_program_inputs(const dml_program *program)
{
    return program ? program->inputs : 0;
}

DML_API dml_node *dml_program_input(const dml_program *program, int i)
{
    return program && i >= 0 && i < program->inputs ? program->input[i] : NULL;
}

/* ---- running ---- */

static dml__error *dml__program_error_of(dml_program *program)
{
    return program->own_thread ? &program->error : &program->graph->context->error;
}

/* Values that some op indexes with must be inside its range: checked here, on the host, for every device. */
static dml_status dml__check_labels(const dml_node *input, int limit, int rows, const int32_t *values,
                                    dml__error *error)
{
    const size_t each = dml_shape_count(&input->shape);
    for (size_t i = 0; i < each * (size_t)rows; i++)
        if (values[i] < 0 || values[i] >= limit)
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "input '%s': sample %d of the batch is %d, it must be in 0 .. %d", input->name,
                             (int)(i / each), (int)values[i], limit - 1);
    return DML_OK;
}

static dml_status dml__check_input_count(const dml_program *program, int count, dml__error *error)
{
    char names[256] = "";
    size_t used = 0;
    if (count == program->inputs) return DML_OK;
    for (int i = 0; i < program->inputs && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 program->input[i]->name);
    return dml__fail(error, DML_ERROR_ARGUMENT, "%d inputs were given, the program takes %d: %s", count,
                     program->inputs, names);
}

DML__LOCAL dml_status dml__program_check(dml_program *program, int rows, const void *const *inputs, int count)
{
    dml__error *error = dml__program_error_of(program);
    if (error->status != DML_OK) return error->status;
    if (rows < 1 || rows > program->batch)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a run of %d samples asked for; this program takes 1 to %d", rows, program->batch);
    dml_status status = dml__check_input_count(program, count, error);
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        const dml_node *input = program->input[i];
        if (!inputs || !inputs[i])
            return dml__fail(error, DML_ERROR_ARGUMENT, "input '%s': input %d of %d is NULL", input->name,
                             i + 1, program->inputs);
        if ((uintptr_t)inputs[i] % dml_dtype_size(input->dtype))
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "input '%s': its array must be aligned to %zu bytes, as an array of %s is",
                             input->name, dml_dtype_size(input->dtype), dml_dtype_name(input->dtype));
        const int limit = program->slot[program->slot_of_node[input->index]].limit;
        if (limit) status = dml__check_labels(input, limit, rows, (const int32_t *)inputs[i], error);
    }
    return status;
}

static dml_status dml__forward(const dml__run *run, const void *const *inputs)
{
    const dml_program *program = run->program;
    dml_status status = DML_OK;
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        if (program->given) {
            program->given[i].host = (void *)(uintptr_t)inputs[i]; /* which no op writes */
            continue;
        }
        const size_t bytes = dml__count(run, program->input[i]) * dml_dtype_size(program->input[i]->dtype);
        status =
            run->device->backend->write(run->device, dml__value(run, program->input[i]), inputs[i], bytes);
    }
    for (int s = 0; s < program->slots && status == DML_OK; s++) {
        const dml_node *node = program->slot[s].node;
        if (node->op->forward && !program->slot[s].fused) status = node->op->forward(run, node);
    }
    return status;
}

static dml_status dml__backward(const dml__run *run, const dml__training *training)
{
    const dml_program *program = run->program;
    const dml__gradient_listener *listener = training->listener;
    size_t final_from = program->graph->trained_count;
    dml_status status = run->device->backend->write(run->device, dml__gradient(run, program->output),
                                                    &training->loss_scale, sizeof training->loss_scale);
    for (int s = program->slots - 1; s >= 0 && status == DML_OK; s--) {
        const dml__slot *slot = &program->slot[s];
        if (slot->has_gradient && slot->node->op->backward && !slot->gone)
            status = slot->node->op->backward(run, slot->node);
        if (status != DML_OK || slot->final_from >= final_from) continue;
        if (listener) status = listener->ready(listener->user, slot->final_from, final_from);
        final_from = slot->final_from;
    }
    return status;
}

/* NULL: to predict. */
static dml__run dml__begin_run(dml_program *program, int rows, const dml__training *training)
{
    dml_context *context = program->graph->context;
    const dml__run run = { program,
                           context,
                           &context->device,
                           program->own_thread ? program->own_pool : context->pool,
                           dml__program_error_of(program),
                           rows,
                           training != NULL,
                           training && training->adds,
                           training ? training->step : 0 };
    return run;
}

static dml_status dml__read_output(const dml__run *run, void *output)
{
    const dml_node *node = run->program->output;
    const size_t bytes = dml__count(run, node) * dml_dtype_size(node->dtype);
    return run->device->backend->read(run->device, output, dml__value(run, node), bytes);
}

/* For a kernel that fails without a word. */
static dml_status dml__explain_run(const dml__run *run, dml_status status)
{
    return status == DML_OK ? status
                            : dml__fail(run->error, status, "the run failed: %s", dml_status_string(status));
}

static dml_status dml__predict(dml_program *program, int rows, const void *const *inputs, int count,
                               void *output)
{
    dml_status status = dml__program_check(program, rows, inputs, count);
    if (status != DML_OK) return status;
    const dml__run run = dml__begin_run(program, rows, NULL);
    status = dml__forward(&run, inputs);
    if (status == DML_OK && output) status = dml__read_output(&run, output);
    return dml__explain_run(&run, status);
}

/* Whoever is refused by another's presence leaves no sentence: there is no place of his own for it. */
static dml_status dml__predict_on_own_thread(dml_program *program, int rows, const void *const *inputs,
                                             int count, void *output)
{
    if (__atomic_exchange_n(&program->running, 1, __ATOMIC_ACQUIRE)) {
        if (program->process == dml__process_id()) return DML_ERROR_STATE;
        program->process = dml__process_id(); /* of a fork: the run goes on in the parent alone */
    }
    dml_status status;
    if (dml__graph_claim(program->graph, true)) {
        status = dml__predict(program, rows, inputs, count, output);
        dml__graph_release(program->graph, true);
    } else {
        status = dml__fail(&program->error, DML_ERROR_STATE,
                           "the parameters are being written; predict between a trainer's steps");
    }
    __atomic_store_n(&program->running, 0, __ATOMIC_RELEASE);
    return status;
}

DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, int count,
                                   void *output)
{
    if (!program) return DML_ERROR_ARGUMENT;
    if (program->own_thread) return dml__predict_on_own_thread(program, rows, inputs, count, output);
    dml_context *context = program->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__predict(program, rows, inputs, count, output);
    dml__leave(context, entry);
    return status;
}

DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         const dml__training *training, float *loss)
{
    const dml__run run = dml__begin_run(program, rows, training);
    dml_status status = dml__forward(&run, inputs);
    if (status == DML_OK) status = dml__backward(&run, training);
    if (status == DML_OK && loss) status = dml__read_output(&run, loss);
    return dml__explain_run(&run, status);
}

DML_API const char *dml_program_error(const dml_program *program)
{
    if (!program) return "no program";
    return program->own_thread ? program->error.text : program->graph->context->error.text;
}

DML_API dml_status dml_program_status(const dml_program *program)
{
    if (!program) return DML_ERROR_ARGUMENT;
    return program->own_thread ? program->error.status : program->graph->context->error.status;
}

DML_API void dml_program_clear_error(dml_program *program)
{
    if (!program) return;
    if (!program->own_thread) {
        dml_clear_error(program->graph->context);
        return;
    }
    program->error.status = DML_OK;
    program->error.text[0] = '\0';
}

#endif

/* ---- graph/print.c ---- */

#ifndef DML_GRAPH_PRINT_C
#define DML_GRAPH_PRINT_C

#ifndef DML_NO_STDIO

#include <string.h>

static dml_status dml__printed(const dml_graph *graph, FILE *file, const char *what)
{
    if (fflush(file) == 0 && !ferror(file)) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_IO, "can't write %s of the graph", what);
}

static bool dml__is_parameter(const dml_node *node)
{
    return node->op == dml__parameter_op();
}

/* The parameters that this node is the first to use, and how many of them are trained. */
static void dml__count_own(const dml_node *node, size_t *all, size_t *trained)
{
    *all = *trained = 0;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *p = node->input[i];
        bool first = dml__is_parameter(p);
        for (int k = 0; k < i; k++) first = first && node->input[k] != p;
        for (const dml_node *earlier = p->next; first && earlier != node; earlier = earlier->next)
            for (int k = 0; k < earlier->inputs; k++) first = first && earlier->input[k] != p;
        if (!first) continue;
        *all += dml_shape_count(&p->shape);
        if (!p->frozen) *trained += dml_shape_count(&p->shape);
    }
}

/* "input f32", or "conv2d, 6 filters, kernel 5 x 5, ..." */
static const char *dml__what_it_does(const dml_node *node, char *text, size_t bytes)
{
    char words[160];
    dml_node_describe(node, words, sizeof words);
    if (node->op == dml__input_op())
        snprintf(text, bytes, "input %s", dml_dtype_name(node->dtype));
    else
        snprintf(text, bytes, "%s%s%s", node->op->name, words[0] ? ", " : "", words);
    return text;
}

/* Columns as wide as their widest entry. */
typedef struct dml__widths {
    int name, does, output;
} dml__widths;

static void dml__widen(int *width, const char *text)
{
    const int length = (int)strlen(text);
    if (length > *width) *width = length;
}

static dml__widths dml__find_widths(const dml_graph *graph)
{
    dml__widths widths = { 4, 4, 6 };
    for (const dml_node *node = graph->first; node; node = node->next) {
        char does[256], output[DML_SHAPE_TEXT];
        if (dml__is_parameter(node)) continue;
        dml__widen(&widths.name, node->name);
        dml__widen(&widths.does, dml__what_it_does(node, does, sizeof does));
        dml__widen(&widths.output, dml_shape_format(&node->shape, output));
    }
    return widths;
}

DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file)
{
    if (!graph || !file) return DML_ERROR_ARGUMENT;
    const dml__widths w = dml__find_widths(graph);
    size_t all = 0, all_trained = 0;
    double all_flops = 0;
    fprintf(file, "%-*s  %-*s  %-*s  %12s  %14s\n", w.name, "node", w.does, "does", w.output, "output",
            "parameters", "flops");
    for (const dml_node *node = graph->first; node; node = node->next) {
        char does[256], output[DML_SHAPE_TEXT];
        size_t own, trained;
        if (dml__is_parameter(node)) continue;
        dml__count_own(node, &own, &trained);
        fprintf(file, "%-*s  %-*s  %-*s  %12llu  %14.0f\n", w.name, node->name, w.does,
                dml__what_it_does(node, does, sizeof does), w.output, dml_shape_format(&node->shape, output),
                (unsigned long long)own, dml_node_flops(node));
        all += own;
        all_trained += trained;
        all_flops += dml_node_flops(node);
    }
    fprintf(file, "%llu parameters, %llu of them trained; %.0f flops forward for one sample\n",
            (unsigned long long)all, (unsigned long long)all_trained, all_flops);
    return dml__printed(graph, file, "a table");
}

/* Text inside quotes of the dot language. */
static void dml__print_quoted(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
}

static void dml__print_dot_node(const dml_node *node, FILE *file)
{
    char does[256], output[DML_SHAPE_TEXT];
    const bool leaf = node->inputs == 0;
    fprintf(file, "    n%d [shape=%s, label=\"", node->index, leaf ? "ellipse" : "box");
    dml__print_quoted(file, node->name);
    fputs("\\n", file);
    dml__print_quoted(file, dml__what_it_does(node, does, sizeof does));
    fprintf(file, "\\n%s%s\"%s];\n", dml_shape_format(&node->shape, output),
            dml__is_parameter(node) && node->frozen ? ", frozen" : "",
            dml__is_parameter(node) ? ", style=dashed" : "");
    for (int i = 0; i < node->inputs; i++)
        fprintf(file, "    n%d -> n%d;\n", node->input[i]->index, node->index);
}

DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file)
{
    if (!graph || !file) return DML_ERROR_ARGUMENT;
    fputs("digraph model {\n    rankdir=TB;\n", file);
    for (const dml_node *node = graph->first; node; node = node->next) dml__print_dot_node(node, file);
    fputs("}\n", file);
    return dml__printed(graph, file, "a drawing");
}

#endif

#endif

/* ---- ops/table.c ---- */

#ifndef DML_OPS_TABLE_C
#define DML_OPS_TABLE_C

/* ---- ops/table.h ---- */

/* table.h: the op table: the ops that have code of their own, and after them those of one element, which are
   rows of kernels/formulas.h. Adding an op is its own file, a row here, and its shared kernels for the GPUs.
 */
#ifndef DML_OPS_TABLE_H
#define DML_OPS_TABLE_H

/* X(name): dml__<name>_op() in the op's file gives its table. The tests check every row on every backend. */
#define DML__OP_LIST(X)                                                                                      \
    X(flatten)                                                                                               \
    X(dense)                                                                                                 \
    X(conv2d)                                                                                                \
    X(max_pool2d)                                                                                            \
    X(avg_pool2d)                                                                                            \
    X(batch_norm)                                                                                            \
    X(slice2d)                                                                                               \
    X(softmax_cross_entropy)                                                                                 \
    X(mean_squared_error)

#define DML__OP_DECLARE(name) DML__LOCAL const dml__op *dml__##name##_op(void);
DML__OP_LIST(DML__OP_DECLARE)
#undef DML__OP_DECLARE

/* Row i of the table, NULL past the last. */
DML__LOCAL const dml__op *dml__op_at(int i);

#endif

/* ---- ops/op_formula.h ---- */

/* op_formula.h: the ops of the functions in kernels/formulas.h. */
#ifndef DML_OPS_OP_FORMULA_H
#define DML_OPS_OP_FORMULA_H

/* The attributes: the formula's P and Q. */
typedef struct dml__formula_numbers {
    float p, q;
} dml__formula_numbers;

DML__LOCAL dml_node *dml__formula_node(int formula, dml_node *a, dml_node *b, dml_node *c, float p, float q);

/* NULL for a formula that isn't there. */
DML__LOCAL const dml__op *dml__formula_op(int formula);

#endif

DML__LOCAL const dml__op *dml__op_at(int i)
{
    static const dml__op *(*const table[])(void) = {
#define DML__OP_ROW(name) dml__##name##_op,
        DML__OP_LIST(DML__OP_ROW)
#undef DML__OP_ROW
    };
    const int count = (int)(sizeof table / sizeof table[0]);
    return i >= 0 && i < count ? table[i]() : dml__formula_op(i - count);
}

#endif

/* ---- ops/op_formula.c ---- */

#ifndef DML_OPS_OP_FORMULA_C
#define DML_OPS_OP_FORMULA_C

#include <math.h>
#include <stdio.h>
#include <string.h>

static int dml__formula_of(const dml_node *node)
{
    return (int)(node->op - dml__formula_op(0));
}

/* ---- shapes ---- */

/* Dimension d, counted from the last, which is 0; 1 where there is none. */
static int dml__dimension_from_last(const dml_shape *shape, int d)
{
    return d < shape->ndim ? shape->dims[shape->ndim - 1 - d] : 1;
}

static dml_status dml__formula_refuse_shapes(const dml_node *node)
{
    char text[256] = "";
    size_t used = 0;
    for (int i = 0; i < node->inputs && used < sizeof text; i++) {
        char shape[DML_SHAPE_TEXT];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", i ? " and " : "",
                                 dml_shape_format(&node->input[i]->shape, shape),
                                 node->input[i]->batched ? "" : " for the whole batch");
    }
    return dml__node_fail(node, DML_ERROR_SHAPE,
                          "its inputs are %s: counted from the last, their dimensions must be the same or 1",
                          text);
}

static dml_status dml__formula_check_numbers(const dml_node *node)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    const double p = (double)number->p, q = (double)number->q;
    if (dml__formula_of(node) == DML__FORMULA_clamp)
        return p <= q
                   ? DML_OK
                   : dml__node_fail(node, DML_ERROR_ARGUMENT,
                                    "from %g to %g asked for; the first must not be above the second", p, q);
    return p - p == 0 && q - q == 0 ? DML_OK
                                    : dml__node_fail(node, DML_ERROR_ARGUMENT,
                                                     "its numbers are %g and %g, they must be finite", p, q);
}

static dml_status dml__formula_infer(dml_node *node)
{
    dml_shape *shape = &node->shape;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        if (input->dtype != DML_F32)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input %d is %s, it takes f32", i + 1,
                                  dml_dtype_name(input->dtype));
        if (input->shape.ndim > shape->ndim) shape->ndim = input->shape.ndim;
        node->batched = node->batched || input->batched;
    }
    for (int d = 0; d < shape->ndim; d++) {
        int size = 1;
        for (int i = 0; i < node->inputs; i++) {
            const int of_input = dml__dimension_from_last(&node->input[i]->shape, d);
            if (of_input != 1 && size != 1 && of_input != size) return dml__formula_refuse_shapes(node);
            if (of_input != 1) size = of_input;
        }
        shape->dims[shape->ndim - 1 - d] = size;
    }
    return dml__formula_check_numbers(node);
}

/* How input i lies in the result, for `rows` samples. */
static dml__broadcast dml__formula_layout(const dml_node *node, int i, int rows)
{
    const dml_node *input = node->input[i];
    const int dims = node->shape.ndim + 1;
    size_t result[DML_MAX_DIMS + 1], operand[DML_MAX_DIMS + 1];
    result[0] = node->batched ? (size_t)rows : 1;
    operand[0] = input->batched ? (size_t)rows : 1;
    for (int d = 1; d < dims; d++) {
        result[d] = (size_t)node->shape.dims[d - 1];
        operand[d] = (size_t)dml__dimension_from_last(&input->shape, dims - 1 - d);
    }
    return dml__broadcast_of(dims, result, operand);
}

/* Floats that a repeated input needs: the result's size, for its elements or their gradients, and what adding
   those up takes. */
static size_t dml__formula_spread(const dml_node *node, int i, int rows)
{
    const dml__broadcast layout = dml__formula_layout(node, i, rows);
    if (dml__broadcast_is_plain(&layout)) return 0;
    const size_t n = dml_shape_count(&node->shape) * (node->batched ? (size_t)rows : 1);
    return dml__align_up((n + dml__sum_broadcast_scratch(&layout)) * sizeof(float)) / sizeof(float);
}

/* ---- on the host ---- */

static dml__formula_call dml__formula_host_call(const dml__run *run, const dml_node *node, unsigned reads)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    dml__formula_call call;
    memset(&call, 0, sizeof call);
    call.formula = dml__formula_of(node);
    call.n = dml__count(run, node);
    call.p = number->p;
    call.q = number->q;
    for (int i = 0; i < node->inputs; i++) {
        call.layout[i] = dml__formula_layout(node, i, run->rows);
        if (reads & (1u << i)) call.in[i] = dml__host_value(run, node->input[i]);
    }
    return call;
}

static dml_status dml__formula_host_backward(const dml__run *run, const dml_node *node,
                                             const dml__formula_row *row, const bool *wanted)
{
    const dml__formula_call call = dml__formula_host_call(run, node, row->needs & DML__NEEDS_INPUTS);
    float *gradient[DML__FORMULA_GRADIENTS] = { NULL, NULL }, beta[DML__FORMULA_GRADIENTS] = { 0, 0 };
    float *spread = (float *)dml_pool_shared_scratch(run->pool),
          *spread_of[DML__FORMULA_GRADIENTS] = { NULL };
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        const size_t floats = wanted[g] ? dml__formula_spread(node, i, run->rows) : 0;
        if (!wanted[g]) continue;
        gradient[g] = dml__host_gradient(run, node->input[i]);
        beta[g] = dml__beta(run, node, i);
        if (!floats) continue;
        gradient[g] = spread_of[g] = spread;
        beta[g] = 0;
        spread += floats;
    }
    dml__formula_backward(run->pool, &call, row->needs & DML__NEEDS_Y ? dml__host_value(run, node) : NULL,
                          dml__host_gradient(run, node), gradient, beta);
    for (int g = 0; g < row->gradients; g++)
        if (spread_of[g])
            dml__sum_broadcast(run->pool, &call.layout[row->first + g], spread_of[g], spread_of[g] + call.n,
                               dml__beta(run, node, row->first + g),
                               dml__host_gradient(run, node->input[row->first + g]));
    return DML_OK;
}

/* ---- on any other device ---- */

/* Where what dml__formula_spread counts for input i lies. */
static dml_ref dml__formula_spread_ref(const dml__run *run, const dml_node *node, int i)
{
    dml_ref ref = dml__saved(run, node);
    for (int k = 0; k < i; k++) ref.offset += dml__formula_spread(node, k, run->rows) * sizeof(float);
    return ref;
}

/* Input i in the result's shape; the forward pass writes it there. */
static dml_ref dml__formula_operand(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    return dml__broadcast_is_plain(&layout) ? dml__value(run, node->input[i])
                                            : dml__formula_spread_ref(run, node, i);
}

static dml_status dml__launch_broadcast(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    if (dml__broadcast_is_plain(&layout)) return DML_OK;
    dml_launch launch = dml__launch("broadcast", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, node->input[i]);
    launch.buffer[1] = dml__formula_spread_ref(run, node, i);
    launch.integer[0] = (int32_t)dml__count(run, node);
    launch.integer[1] = layout.dims;
    for (int d = 0; d < layout.dims; d++) {
        launch.integer[2 + d] = (int32_t)layout.size[d];
        launch.integer[8 + d] = (int32_t)layout.stride[d];
    }
    return dml__submit(run->device, &launch);
}

static dml_launch dml__formula_launch(const dml__run *run, const dml_node *node, const char *kernel)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    dml_launch launch = dml__launch(kernel, dml__count(run, node), 1);
    launch.integer[0] = (int32_t)dml__count(run, node);
    launch.integer[1] = dml__formula_of(node);
    launch.real[0] = number->p;
    launch.real[1] = number->q;
    return launch;
}

static dml_status dml__launch_sums(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(&layout, sums);
    dml_ref from = dml__formula_spread_ref(run, node, i), to = from;
    dml_status status = DML_OK;
    to.offset += dml__count(run, node) * sizeof(float);
    for (int s = 0; s < count && status == DML_OK; s++) {
        dml_launch launch = dml__launch("sum_rows", sums[s].inner, sums[s].outer);
        launch.buffer[0] = from;
        launch.buffer[1] = s == count - 1 ? dml__gradient(run, node->input[i]) : to;
        launch.integer[0] = (int32_t)sums[s].n;
        launch.integer[1] = (int32_t)sums[s].inner;
        launch.real[0] = s == count - 1 ? dml__beta(run, node, i) : 0.0f;
        status = dml__submit(run->device, &launch);
        from = to;
        to.offset += sums[s].outer * sums[s].inner * sizeof(float);
    }
    return status;
}

static dml_status dml__formula_launch_backward(const dml__run *run, const dml_node *node,
                                               const dml__formula_row *row, const bool *wanted)
{
    dml_launch launch = dml__formula_launch(run, node, "formula_backward");
    bool spread[DML__FORMULA_GRADIENTS] = { false, false };
    for (int i = 0; i < 2; i++)
        if (row->needs & (1u << i)) launch.buffer[i] = dml__formula_operand(run, node, i);
    if (row->needs & DML__NEEDS_Y) launch.buffer[2] = dml__value(run, node);
    launch.buffer[3] = dml__gradient(run, node);
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        if (!wanted[g]) continue;
        spread[g] = dml__formula_spread(node, i, run->rows) > 0;
        launch.buffer[4 + g] =
            spread[g] ? dml__formula_spread_ref(run, node, i) : dml__gradient(run, node->input[i]);
        launch.real[2 + g] = spread[g] ? 0.0f : dml__beta(run, node, i);
    }
    dml_status status = dml__submit(run->device, &launch);
    for (int g = 0; g < row->gradients && status == DML_OK; g++)
        if (spread[g]) status = dml__launch_sums(run, node, row->first + g);
    return status;
}

/* ---- the op ---- */

static dml_status dml__formula_op_forward(const dml__run *run, const dml_node *node)
{
    if (run->device->host_memory) {
        const dml__formula_call call = dml__formula_host_call(run, node, DML__NEEDS_INPUTS);
        dml__formula_forward(run->pool, &call, dml__ends_in_relu(run, node), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__formula_launch(run, node, "formula_forward");
    dml_status status = DML_OK;
    for (int i = 0; i < node->inputs && status == DML_OK; i++) {
        status = dml__launch_broadcast(run, node, i);
        launch.buffer[i] = dml__formula_operand(run, node, i);
    }
    launch.buffer[3] = dml__value(run, node);
    return status == DML_OK ? dml__submit(run->device, &launch) : status;
}

/* Whether a sum's gradient lies already where that of input i belongs (DML__PASSES_GRADIENT). */
static bool dml__gradient_is_there(const dml__run *run, const dml_node *node, int i)
{
    const dml_ref from = dml__gradient(run, node), to = dml__gradient(run, node->input[i]);
    return (node->op->needs & DML__PASSES_GRADIENT) && dml__beta(run, node, i) == 0 &&
           from.buffer == to.buffer && from.offset == to.offset;
}

static dml_status dml__formula_op_backward(const dml__run *run, const dml_node *node)
{
    const dml__formula_row *row = dml__formula_row_of(dml__formula_of(node));
    bool wanted[DML__FORMULA_GRADIENTS] = { false, false }, any = false;
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        wanted[g] = dml__wants_gradient(run, node, i) && !dml__gradient_is_there(run, node, i);
        any = any || wanted[g];
    }
    if (!any) return DML_OK;
    return (run->device->host_memory ? dml__formula_host_backward
                                     : dml__formula_launch_backward)(run, node, row, wanted);
}

static size_t dml__formula_saved_bytes(const dml_node *node, int rows)
{
    size_t floats = 0;
    if (dml__node_context(node)->device.host_memory) return 0;
    for (int i = 0; i < node->inputs; i++) floats += dml__formula_spread(node, i, rows);
    return floats * sizeof(float);
}

static dml_scratch dml__formula_op_scratch(const dml_node *node, int rows, bool training)
{
    const dml__formula_row *row = dml__formula_row_of(dml__formula_of(node));
    dml_scratch scratch = { 0, 0 };
    for (int g = 0; training && g < row->gradients; g++)
        scratch.shared += dml__formula_spread(node, row->first + g, rows) * sizeof(float);
    return scratch;
}

static void dml__formula_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    const double p = (double)number->p, q = (double)number->q;
    switch (dml__formula_of(node)) {
    case DML__FORMULA_leaky_relu: snprintf(text, bytes, "slope %g", p); break;
    case DML__FORMULA_elu: snprintf(text, bytes, "alpha %g", p); break;
    case DML__FORMULA_pow: snprintf(text, bytes, "exponent %g", p); break;
    case DML__FORMULA_clamp: snprintf(text, bytes, "%g .. %g", p, q); break;
    case DML__FORMULA_affine: snprintf(text, bytes, "times %g, plus %g", p, q); break;
    default: snprintf(text, bytes, "%s", ""); break;
    }
}

/* A relu may follow where backward doesn't read the output, which is then the relu's. */
#define DML__FORMULA_OP(name, needs, backward, more)                                                         \
    { #name,                                                                                                 \
      dml__formula_infer,                                                                                    \
      dml__formula_op_forward,                                                                               \
      backward,                                                                                              \
      ((needs)&DML__NEEDS_INPUTS & ~(unsigned)DML__NEEDS_Y) |                                                \
          ((needs)&DML__NEEDS_Y ? DML__NEEDS_OUTPUT : DML__TAKES_RELU) | (more),                             \
      dml__formula_saved_bytes,                                                                              \
      false,                                                                                                 \
      true,                                                                                                  \
      dml__formula_describe,                                                                                 \
      NULL,                                                                                                  \
      dml__formula_op_scratch },
/* What is more in the word: the relu and the sum are known to the compiler of graphs. */
#define DML__FORMULA_MORE(formula, first)                                                                    \
    (((formula) == DML__FORMULA_relu ? DML__IS_RELU : 0u) |                                                  \
     ((formula) == DML__FORMULA_add ? DML__PASSES_GRADIENT : 0u) | ((first) ? DML__CHOOSES_BY_FIRST : 0u))
#define DML__FORMULA_OP_1(name, needs, forward, gradient)                                                    \
    DML__FORMULA_OP(name, needs, dml__formula_op_backward, DML__FORMULA_MORE(DML__FORMULA_##name, 0))
#define DML__FORMULA_OP_2(name, inputs, first, needs, forward, gradient0, gradient1)                         \
    DML__FORMULA_OP(name, needs, dml__formula_op_backward, DML__FORMULA_MORE(DML__FORMULA_##name, first))
#define DML__FORMULA_OP_FLAT(name, forward) DML__FORMULA_OP(name, 0, NULL, 0)

DML__LOCAL const dml__op *dml__formula_op(int formula)
{
    static const dml__op ops[] = { DML__FORMULAS_1(DML__FORMULA_OP_1) DML__FORMULAS_2(DML__FORMULA_OP_2)
                                       DML__FORMULAS_FLAT(DML__FORMULA_OP_FLAT) };
    return formula >= 0 && formula < DML__FORMULA_COUNT ? &ops[formula] : NULL;
}

#undef DML__FORMULA_OP
#undef DML__FORMULA_MORE
#undef DML__FORMULA_OP_1
#undef DML__FORMULA_OP_2
#undef DML__FORMULA_OP_FLAT

DML__LOCAL dml_node *dml__formula_node(int formula, dml_node *a, dml_node *b, dml_node *c, float p, float q)
{
    dml_node *const inputs[] = { a, b, c };
    const dml__formula_numbers numbers = { p, q };
    return dml__node_create(dml__formula_op(formula), dml__formula_row_of(formula)->inputs, inputs, &numbers,
                            sizeof numbers);
}

#endif

/* ---- ops/op_arithmetic.c ---- */

#ifndef DML_OPS_OP_ARITHMETIC_C
#define DML_OPS_OP_ARITHMETIC_C

#define DML__ARITHMETIC(name)                                                                                \
    DML_API dml_node *dml_##name(dml_node *a, dml_node *b)                                                   \
    {                                                                                                        \
        return dml__formula_node(DML__FORMULA_##name, a, b, NULL, 0, 0);                                     \
    }

DML__ARITHMETIC(add)
DML__ARITHMETIC(sub)
DML__ARITHMETIC(mul)
DML__ARITHMETIC(div)
DML__ARITHMETIC(maximum)
DML__ARITHMETIC(minimum)
DML__ARITHMETIC(equal)
DML__ARITHMETIC(not_equal)
DML__ARITHMETIC(less)
DML__ARITHMETIC(less_equal)

#undef DML__ARITHMETIC

DML_API dml_node *dml_where(dml_node *condition, dml_node *a, dml_node *b)
{
    return dml__formula_node(DML__FORMULA_where, condition, a, b, 0, 0);
}

static dml_status dml__flatten_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    node->dtype = x->dtype;
    node->batched = x->batched;
    node->shape.ndim = 1;
    node->shape.dims[0] = (int)dml_shape_count(&x->shape);
    return DML_OK;
}

DML__LOCAL const dml__op *dml__flatten_op(void)
{
    static const dml__op op = { "flatten", dml__flatten_infer, NULL, NULL, 0, NULL, true, false,
                                NULL,      dml__no_flops,      NULL };
    return &op;
}

DML_API dml_node *dml_flatten(dml_node *x)
{
    return dml__node_create(dml__flatten_op(), 1, &x, NULL, 0);
}

#endif

/* ---- ops/op_activation.c ---- */

#ifndef DML_OPS_OP_ACTIVATION_C
#define DML_OPS_OP_ACTIVATION_C

#define DML__ACTIVATION(name)                                                                                \
    DML_API dml_node *dml_##name(dml_node *x)                                                                \
    {                                                                                                        \
        return dml__formula_node(DML__FORMULA_##name, x, NULL, NULL, 0, 0);                                  \
    }

DML__ACTIVATION(relu)
DML__ACTIVATION(gelu)
DML__ACTIVATION(gelu_tanh)
DML__ACTIVATION(silu)
DML__ACTIVATION(sigmoid)
DML__ACTIVATION(tanh)
DML__ACTIVATION(softplus)
DML__ACTIVATION(exp)
DML__ACTIVATION(log)
DML__ACTIVATION(sqrt)
DML__ACTIVATION(abs)
DML__ACTIVATION(square)

#undef DML__ACTIVATION

DML_API dml_node *dml_leaky_relu(dml_node *x, float slope)
{
    return dml__formula_node(DML__FORMULA_leaky_relu, x, NULL, NULL, slope, 0);
}

DML_API dml_node *dml_elu(dml_node *x, float alpha)
{
    return dml__formula_node(DML__FORMULA_elu, x, NULL, NULL, alpha, 0);
}

DML_API dml_node *dml_pow(dml_node *x, float exponent)
{
    return dml__formula_node(DML__FORMULA_pow, x, NULL, NULL, exponent, 0);
}

DML_API dml_node *dml_clamp(dml_node *x, float low, float high)
{
    return dml__formula_node(DML__FORMULA_clamp, x, NULL, NULL, low, high);
}

DML_API dml_node *dml_affine(dml_node *x, float scale, float shift)
{
    return dml__formula_node(DML__FORMULA_affine, x, NULL, NULL, scale, shift);
}

#endif

/* ---- ops/op_dense.c ---- */

#ifndef DML_OPS_OP_DENSE_C
#define DML_OPS_OP_DENSE_C

static dml_status dml__dense_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    char x_text[DML_SHAPE_TEXT], w_text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim != 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s %s; it takes one row of f32 a sample (dml_flatten)",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, x_text));
    if (w->batched || w->shape.ndim != 2 || w->shape.dims[1] != x->shape.dims[0])
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s and its weights %s%s; they must be units x %d",
                              dml_shape_format(&x->shape, x_text), dml_shape_format(&w->shape, w_text),
                              w->batched ? " a sample" : "", x->shape.dims[0]);
    if (bias && (bias->batched || bias->shape.ndim != 1 || bias->shape.dims[0] != w->shape.dims[0]))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d",
                              dml_shape_format(&bias->shape, x_text), bias->batched ? " a sample" : "",
                              w->shape.dims[0]);
    node->batched = true;
    node->shape.ndim = 1;
    node->shape.dims[0] = w->shape.dims[0];
    return DML_OK;
}

/* c (m, n) = op(a) op(b) + beta c, all dense and row-major, k summed. */
static dml_status dml__dense_gemm(const dml__run *run, bool trans_a, bool trans_b, int m, int n, int k,
                                  dml_ref a, dml_ref b, float beta, dml_ref c)
{
    const int lda = trans_a ? m : k, ldb = trans_b ? k : n;
    if (run->device->host_memory)
        return dml_sgemm(run->pool, DML_ROW_MAJOR, trans_a ? DML_TRANS : DML_NO_TRANS,
                         trans_b ? DML_TRANS : DML_NO_TRANS, m, n, k, 1.0f, (const float *)dml__host(a), lda,
                         (const float *)dml__host(b), ldb, beta, (float *)dml__host(c), n);
    dml_launch launch = dml__launch("gemm", (size_t)n, (size_t)m);
    const int32_t integers[] = { m, n, k, trans_a, trans_b, lda, ldb, n };
    for (int i = 0; i < 8; i++) launch.integer[i] = integers[i];
    launch.buffer[0] = a;
    launch.buffer[1] = b;
    launch.buffer[2] = c;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__dense_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const int units = w->shape.dims[0], in = w->shape.dims[1];
    if (run->device->host_memory) {
        dml_epilogue epilogue = { NULL, DML_ACTIVATION_NONE };
        if (bias) epilogue.bias = dml__host_value(run, bias);
        if (dml__ends_in_relu(run, node)) epilogue.activation = DML_ACTIVATION_RELU;
        return dml_sgemm_fused(run->pool, DML_NO_TRANS, DML_TRANS, run->rows, units, in, 1.0f,
                               dml__host_value(run, x), in, dml__host_value(run, w), in, 0.0f,
                               dml__host_value(run, node), units, &epilogue);
    }
    const dml_status status = dml__dense_gemm(run, false, true, run->rows, units, in, dml__value(run, x),
                                              dml__value(run, w), 0.0f, dml__value(run, node));
    if (status != DML_OK || !bias) return status;
    dml_launch launch = dml__launch("bias_add", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, bias);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = run->rows;
    launch.integer[1] = units;
    return dml__submit(run->device, &launch);
}

static dml_status dml__dense_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const int units = w->shape.dims[0], in = w->shape.dims[1];
    dml_status status = DML_OK;
    if (dml__wants_gradient(run, node, 0)) /* dx (rows, in) = dy w */
        status = dml__dense_gemm(run, false, false, run->rows, in, units, dml__gradient(run, node),
                                 dml__value(run, w), dml__beta(run, node, 0), dml__gradient(run, x));
    if (status == DML_OK && dml__wants_gradient(run, node, 1)) /* dw (units, in) = dy^T x */
        status = dml__dense_gemm(run, true, false, units, in, run->rows, dml__gradient(run, node),
                                 dml__value(run, x), dml__beta(run, node, 1), dml__gradient(run, w));
    if (status == DML_OK && bias && dml__wants_gradient(run, node, 2))
        status = dml__sum_rows_into_gradient(run, node, 2, (size_t)run->rows, (size_t)units);
    return status;
}

static double dml__dense_flops(const dml_node *node)
{
    const dml_shape *w = &node->input[1]->shape;
    return 2.0 * w->dims[0] * w->dims[1] + (node->input[2] ? w->dims[0] : 0);
}

/* Of its three products. */
static dml_scratch dml__dense_scratch(const dml_node *node, int rows, bool training)
{
    const int units = node->input[1]->shape.dims[0], in = node->input[1]->shape.dims[1];
    dml_scratch most = dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, rows, units, in);
    if (!training) return most;
    most = dml__larger_scratch(most, dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, rows, in, units));
    return dml__larger_scratch(most, dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, units, in, rows));
}

DML__LOCAL const dml__op *dml__dense_op(void)
{
    static const dml__op op = { "dense",
                                dml__dense_infer,
                                dml__dense_op_forward,
                                dml__dense_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU,
                                NULL,
                                false,
                                false,
                                NULL,
                                dml__dense_flops,
                                dml__dense_scratch };
    return &op;
}

DML_API dml_node *dml_dense_with(dml_node *x, dml_node *w, dml_node *bias)
{
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(dml__dense_op(), bias ? 3 : 2, inputs, NULL, 0);
}

DML_API dml_node *dml_dense(dml_node *x, int units)
{
    if (!x) return NULL;
    if (units < 1) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "dense: %d units asked for, it takes 1 or more", units);
        return NULL;
    }
    const int in = x->shape.ndim == 1 ? x->shape.dims[0] : (int)dml_shape_count(&x->shape);
    dml_node *last = x->graph->last;
    dml_node *w =
        dml__layer_parameter(x->graph, dml__dense_op(), "weight", dml_init_he(in), dml_shape_of(units, in));
    dml_node *bias =
        dml__layer_parameter(x->graph, dml__dense_op(), "bias", dml_init_constant(0), dml_shape_of(units));
    dml_node *layer = bias ? dml_dense_with(x, w, bias) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif

/* ---- ops/op_conv2d.c ---- */

#ifndef DML_OPS_OP_CONV2D_C
#define DML_OPS_OP_CONV2D_C

#include <stdio.h>
#include <string.h>

static dml_status dml__check_conv2d_parameters(const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int *dims = w->shape.dims;
    char text[DML_SHAPE_TEXT];
    if (w->dtype != DML_F32 || w->batched || w->shape.ndim != 4 || dims[0] != o->filters ||
        dims[1] != o->kernel[0] || dims[2] != o->kernel[1] || dims[3] != x->shape.dims[2] / o->groups)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its weights are %s%s; for %d filters of %d x %d over %d channels they must be %d x "
            "%d x %d x %d",
            dml_shape_format(&w->shape, text), w->batched ? " a sample" : "", o->filters, o->kernel[0],
            o->kernel[1], x->shape.dims[2], o->filters, o->kernel[0], o->kernel[1],
            x->shape.dims[2] / o->groups);
    if (bias && (bias->dtype != DML_F32 || bias->batched || bias->shape.ndim != 1 ||
                 bias->shape.dims[0] != o->filters))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d",
                              dml_shape_format(&bias->shape, text), bias->batched ? " a sample" : "",
                              o->filters);
    return DML_OK;
}

static dml_status dml__conv2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_options *options = (const dml_conv2d_options *)node->attributes;
    char x_text[DML_SHAPE_TEXT];
    dml_status status = dml__check_image_input(node);
    if (status != DML_OK) return status;
    if (options->groups < 1 || x->shape.dims[2] % options->groups || options->filters % options->groups)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "%d groups asked for, of %d channels and %d filters: groups must divide both",
                              options->groups, x->shape.dims[2], options->filters);
    status = dml__check_conv2d_parameters(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = 3;
    node->shape.dims[2] = w->shape.dims[0];
    for (int axis = 0; axis < 2; axis++) {
        const int stride = options->stride[axis], padding = options->padding[axis];
        if (stride < 1 || padding < 0)
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "stride %d and padding %d asked for; a stride is 1 or more, a padding 0 or more", stride,
                padding);
        if (options->dilation[axis] < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "dilation %d asked for; it is 1 or more",
                                  options->dilation[axis]);
        node->shape.dims[axis] = dml_conv2d_output_size(
            x->shape.dims[axis], dml_conv2d_extent(options->kernel[axis], options->dilation[axis]), stride,
            padding);
        if (node->shape.dims[axis] < 1)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "a kernel of %d x %d doesn't fit an input of %s with padding %d x %d and dilation %d x %d",
                options->kernel[0], options->kernel[1], dml_shape_format(&x->shape, x_text),
                options->padding[0], options->padding[1], options->dilation[0], options->dilation[1]);
    }
    return DML_OK;
}

static dml_conv2d_shape dml__conv2d_shape_of(const dml_node *node, int rows)
{
    const int *x = node->input[0]->shape.dims;
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const dml_conv2d_shape shape = { rows,           x[0],          x[1],          x[2],
                                     o->filters,     o->kernel[0],  o->kernel[1],  o->stride[0],
                                     o->stride[1],   o->padding[0], o->padding[1], o->dilation[0],
                                     o->dilation[1], o->groups };
    return shape;
}

/* Along an axis of filters or channels, whose tiles of 64 (tiles.cl) don't reach from one group into another.
 */
static size_t dml__conv2d_tiled(int size, int groups)
{
    const size_t of_group = (size_t)(size / groups);
    return groups == 1 ? of_group : (size_t)groups * ((of_group + 63) / 64 * 64);
}

static dml_launch dml__conv2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size_x, size_t size_y)
{
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const int32_t integers[] = {
        s.batch,      s.height,   s.width, s.channels, s.filters,           s.kernel_h,          s.kernel_w,
        s.stride_h,   s.stride_w, s.pad_h, s.pad_w,    node->shape.dims[0], node->shape.dims[1], s.dilation_h,
        s.dilation_w, s.groups
    };
    dml_launch launch = dml__launch(kernel, size_x, size_y);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

static dml_status dml__conv2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    if (run->device->host_memory) {
        const dml_epilogue epilogue = { bias ? dml__host_value(run, bias) : NULL, dml__ends_in_relu(run, node)
                                                                                      ? DML_ACTIVATION_RELU
                                                                                      : DML_ACTIVATION_NONE };
        return dml_conv2d_forward_fused(run->pool, &s, dml__host_value(run, x), dml__host_value(run, w), 0,
                                        &epilogue, dml__host_value(run, node));
    }
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_forward", dml__conv2d_tiled(s.filters, s.groups),
                           dml__count(run, node) / (size_t)s.filters);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    if (bias) launch.buffer[2] = dml__value(run, bias);
    launch.buffer[3] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_conv2d_backward_input(run->pool, &s, dml__host_gradient(run, node),
                                         dml__host_value(run, w), beta, dml__host_gradient(run, x));
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_backward_input", dml__conv2d_tiled(s.channels, s.groups),
                           dml__count(run, x) / (size_t)s.channels);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_weight_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 1);
    if (run->device->host_memory)
        return dml_conv2d_backward_weights(run->pool, &s, dml__host_value(run, x),
                                           dml__host_gradient(run, node), beta, dml__host_gradient(run, w));
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_backward_weights", dml__count(run, w) / (size_t)s.filters,
                           dml__conv2d_tiled(s.filters, s.groups));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, w);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    const size_t filters = (size_t)node->shape.dims[2];
    if (dml__wants_gradient(run, node, 0)) status = dml__conv2d_input_gradient(run, node);
    if (status == DML_OK && dml__wants_gradient(run, node, 1))
        status = dml__conv2d_weight_gradient(run, node);
    if (status == DML_OK && node->input[2] && dml__wants_gradient(run, node, 2))
        status = dml__sum_rows_into_gradient(run, node, 2, dml__count(run, node) / filters, filters);
    return status;
}

static void dml__conv2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    char dilation[40] = "", groups[24] = "";
    if (o->dilation[0] != 1 || o->dilation[1] != 1)
        snprintf(dilation, sizeof dilation, ", dilation %d x %d", o->dilation[0], o->dilation[1]);
    if (o->groups != 1) snprintf(groups, sizeof groups, ", %d groups", o->groups);
    snprintf(text, bytes, "%d filters, kernel %d x %d, stride %d x %d, padding %d x %d%s%s%s", o->filters,
             o->kernel[0], o->kernel[1], o->stride[0], o->stride[1], o->padding[0], o->padding[1], dilation,
             groups, node->input[2] ? "" : ", no bias");
}

static double dml__conv2d_flops(const dml_node *node)
{
    const double outputs = (double)dml_shape_count(&node->shape);
    const double taps = (double)dml_shape_count(&node->input[1]->shape) / node->shape.dims[2];
    return outputs * (2 * taps + (node->input[2] ? 1 : 0));
}

static dml_scratch dml__conv2d_scratch_of(const dml_node *node, int rows, bool training)
{
    const dml_conv2d_shape shape = dml__conv2d_shape_of(node, rows);
    return dml_conv2d_scratch(&shape, training);
}

DML__LOCAL const dml__op *dml__conv2d_op(void)
{
    static const dml__op op = { "conv2d",
                                dml__conv2d_infer,
                                dml__conv2d_op_forward,
                                dml__conv2d_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU,
                                NULL,
                                false,
                                false,
                                dml__conv2d_describe,
                                dml__conv2d_flops,
                                dml__conv2d_scratch_of };
    return &op;
}

static dml_initializer dml__conv2d_init(const dml_conv2d_options *options, int channels)
{
    const int64_t pixels = (int64_t)options->kernel[0] * options->kernel[1];
    return dml_init_he(pixels > INT32_MAX / channels ? INT32_MAX : (int)pixels * channels);
}

static void dml__conv2d_defaults(dml_conv2d_options *o, const dml_conv2d_options *options)
{
    memset(o, 0, sizeof *o);
    if (options) *o = *options;
    for (int axis = 0; axis < 2; axis++) {
        if (!o->stride[axis]) o->stride[axis] = 1;
        if (!o->dilation[axis]) o->dilation[axis] = 1;
    }
    if (!o->groups) o->groups = 1;
}

DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias, const dml_conv2d_options *options)
{
    dml_conv2d_options o;
    dml__conv2d_defaults(&o, options);
    if (w && !o.filters) o.filters = w->shape.dims[0];
    for (int axis = 0; w && axis < 2; axis++)
        if (!o.kernel[axis]) o.kernel[axis] = w->shape.dims[1 + axis];
    o.no_bias = !bias;
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(dml__conv2d_op(), bias ? 3 : 2, inputs, &o, sizeof o);
}

DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options)
{
    if (!x) return NULL;
    dml_conv2d_options o;
    dml__conv2d_defaults(&o, options);
    for (int axis = 0; axis < 2; axis++)
        if (!o.kernel[axis]) o.kernel[axis] = 3;
    if (o.filters < 1 || o.kernel[0] < 1 || o.kernel[1] < 1) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "conv2d: %d filters of %d x %d asked for, each must be 1 or more", o.filters, o.kernel[0],
                  o.kernel[1]);
        return NULL;
    }
    const int all = x->shape.ndim == 3 ? x->shape.dims[2] : 1;
    const int channels =
        o.groups > 0 && all >= o.groups ? all / o.groups : all; /* dml__conv2d_infer complains */
    dml_node *last = x->graph->last;
    dml_node *w = dml__layer_parameter(x->graph, dml__conv2d_op(), "weight", dml__conv2d_init(&o, channels),
                                       dml_shape_of(o.filters, o.kernel[0], o.kernel[1], channels));
    dml_node *bias = NULL;
    if (!o.no_bias)
        bias = dml__layer_parameter(x->graph, dml__conv2d_op(), "bias", dml_init_constant(0),
                                    dml_shape_of(o.filters));
    dml_node *layer = o.no_bias || bias ? dml_conv2d_with(x, w, bias, &o) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif

/* ---- ops/op_pool2d.c ---- */

#ifndef DML_OPS_OP_POOL2D_C
#define DML_OPS_OP_POOL2D_C

#include <stdio.h>
#include <string.h>

static dml_status dml__pool2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_pool2d_options *options = (const dml_pool2d_options *)node->attributes;
    char x_text[DML_SHAPE_TEXT];
    const dml_status status = dml__check_image_input(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape = x->shape;
    for (int axis = 0; axis < 2; axis++) {
        const int kernel = options->kernel[axis], stride = options->stride[axis],
                  padding = options->padding[axis];
        if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "kernel %d, stride %d and padding %d asked for; a kernel and a stride are 1 or more, "
                "a padding is smaller than its kernel",
                kernel, stride, padding);
        node->shape.dims[axis] = dml_conv2d_output_size(x->shape.dims[axis], kernel, stride, padding);
        if (node->shape.dims[axis] < 1)
            return dml__node_fail(node, DML_ERROR_SHAPE, "a window of %d x %d doesn't fit an input of %s",
                                  options->kernel[0], options->kernel[1],
                                  dml_shape_format(&x->shape, x_text));
    }
    return DML_OK;
}

static void dml__pool2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    snprintf(text, bytes, "kernel %d x %d, stride %d x %d, padding %d x %d", o->kernel[0], o->kernel[1],
             o->stride[0], o->stride[1], o->padding[0], o->padding[1]);
}

static double dml__avg_pool2d_flops(const dml_node *node)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    return (double)dml_shape_count(&node->shape) * o->kernel[0] * o->kernel[1];
}

static dml_pool2d_shape dml__pool2d_run_shape(const dml__run *run, const dml_node *node)
{
    const int *x = node->input[0]->shape.dims;
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const dml_pool2d_shape shape = { run->rows,    x[0],         x[1],         x[2],          o->kernel[0],
                                     o->kernel[1], o->stride[0], o->stride[1], o->padding[0], o->padding[1] };
    return shape;
}

static dml_launch dml__pool2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size)
{
    const dml_pool2d_shape s = dml__pool2d_run_shape(run, node);
    const int32_t integers[] = { s.batch,
                                 s.height,
                                 s.width,
                                 s.channels,
                                 0,
                                 s.kernel_h,
                                 s.kernel_w,
                                 s.stride_h,
                                 s.stride_w,
                                 s.pad_h,
                                 s.pad_w,
                                 node->shape.dims[0],
                                 node->shape.dims[1] };
    dml_launch launch = dml__launch(kernel, size, 1);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

static size_t dml__max_pool2d_saved_bytes(const dml_node *node, int rows)
{
    return dml_shape_count(&node->shape) * (size_t)rows * sizeof(int32_t);
}

static dml_status dml__max_pool2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return (dml__begins_with_relu(run, node) ? dml_max_pool2d_of_relu_forward : dml_max_pool2d_forward)(
            run->pool, &shape, dml__host_value(run, x), dml__host_value(run, node),
            (int32_t *)dml__host(dml__saved(run, node)));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "max_pool2d_forward", dml__count(run, node));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, node);
    launch.buffer[2] = dml__saved(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__max_pool2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_max_pool2d_backward(run->pool, &shape, (const int32_t *)dml__host(dml__saved(run, node)),
                                       dml__host_gradient(run, node), beta, dml__host_gradient(run, x));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "max_pool2d_backward", dml__count(run, x));
    launch.buffer[0] = dml__saved(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

DML__LOCAL const dml__op *dml__max_pool2d_op(void)
{
    static const dml__op op = { "max_pool2d",
                                dml__pool2d_infer,
                                dml__max_pool2d_op_forward,
                                dml__max_pool2d_op_backward,
                                DML__GATES_RELU,
                                dml__max_pool2d_saved_bytes,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

static dml_status dml__avg_pool2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_avg_pool2d_forward(run->pool, &shape, dml__host_value(run, x), dml__host_value(run, node));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "avg_pool2d_forward", dml__count(run, node));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__avg_pool2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_avg_pool2d_backward(run->pool, &shape, dml__host_gradient(run, node), beta,
                                       dml__host_gradient(run, x));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "avg_pool2d_backward", dml__count(run, x));
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

DML__LOCAL const dml__op *dml__avg_pool2d_op(void)
{
    static const dml__op op = { "avg_pool2d",
                                dml__pool2d_infer,
                                dml__avg_pool2d_op_forward,
                                dml__avg_pool2d_op_backward,
                                0,
                                NULL,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__avg_pool2d_flops,
                                NULL };
    return &op;
}

static dml_node *dml__pool2d_create(const dml__op *op, dml_node *x, const dml_pool2d_options *options)
{
    dml_pool2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    for (int axis = 0; axis < 2; axis++) {
        if (!o.kernel[axis]) o.kernel[axis] = 2;
        if (!o.stride[axis]) o.stride[axis] = o.kernel[axis];
    }
    return dml__node_create(op, 1, &x, &o, sizeof o);
}

DML_API dml_node *dml_max_pool2d(dml_node *x, const dml_pool2d_options *options)
{
    return dml__pool2d_create(dml__max_pool2d_op(), x, options);
}

DML_API dml_node *dml_avg_pool2d(dml_node *x, const dml_pool2d_options *options)
{
    return dml__pool2d_create(dml__avg_pool2d_op(), x, options);
}

DML_API dml_node *dml_global_avg_pool2d(dml_node *x)
{
    dml_pool2d_options whole;
    memset(&whole, 0, sizeof whole);
    for (int axis = 0; axis < 2 && x && x->shape.ndim == 3; axis++) whole.kernel[axis] = x->shape.dims[axis];
    return dml_flatten(dml_avg_pool2d(x, &whole));
}

#endif

/* ---- ops/op_slice2d.c ---- */

#ifndef DML_OPS_OP_SLICE2D_C
#define DML_OPS_OP_SLICE2D_C

#include <stdio.h>
#include <string.h>

/* With its defaults set. */
static int dml__slice2d_taken(const dml_slice2d_options *o, int axis)
{
    return (o->end[axis] - o->begin[axis] - 1) / o->step[axis] + 1;
}

static dml_status dml__slice2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    const dml_status status = dml__check_image_input(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = 3;
    for (int axis = 0; axis < 3; axis++) {
        const int begin = o->begin[axis], end = o->end[axis], step = o->step[axis];
        const int before = o->before[axis], after = o->after[axis];
        if (begin < 0 || end <= begin || end > x->shape.dims[axis] || step < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "of an axis of %d, places %d to %d by steps of %d asked for; there must be "
                                  "at least one, and steps are 1 or more",
                                  x->shape.dims[axis], begin, end - 1, step);
        const int64_t size = (int64_t)before + after + dml__slice2d_taken(o, axis);
        if (before < 0 || after < 0 || size > INT32_MAX)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "%d zeros before and %d after %d places asked for; it takes 0 or more, and "
                                  "at most %d places in all",
                                  before, after, dml__slice2d_taken(o, axis), INT32_MAX);
        node->shape.dims[axis] = (int)size;
    }
    return DML_OK;
}

static dml_slice2d_shape dml__slice2d_shape_of(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    dml_slice2d_shape shape;
    shape.batch = run->rows;
    for (int axis = 0; axis < 3; axis++) {
        const dml_slice2d_axis a = {
            node->input[0]->shape.dims[axis], node->shape.dims[axis], o->begin[axis], o->step[axis],
            dml__slice2d_taken(o, axis),      o->before[axis]
        };
        shape.axis[axis] = a;
    }
    return shape;
}

/* Whose ints are set; `of_input` is then made to begin at the first place that is taken. */
static dml_launch dml__slice2d_launch(const dml_slice2d_shape *s, const char *kernel, size_t size,
                                      dml_ref *of_input)
{
    dml_launch launch = dml__launch(kernel, size, 1);
    size_t first = 0;
    launch.integer[0] = s->batch;
    for (int axis = 0; axis < 3; axis++) {
        const dml_slice2d_axis *a = &s->axis[axis];
        int32_t *integer = &launch.integer[1 + 5 * axis];
        integer[0] = a->in;
        integer[1] = a->out;
        integer[2] = a->step;
        integer[3] = a->count;
        integer[4] = a->before;
        first = first * (size_t)a->in + (size_t)a->begin;
    }
    of_input->offset += first * sizeof(float);
    return launch;
}

static dml_status dml__slice2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_shape shape = dml__slice2d_shape_of(run, node);
    if (run->device->host_memory)
        return dml_slice2d_forward(run->pool, &shape, dml__host_value(run, node->input[0]),
                                   dml__host_value(run, node));
    dml_ref x = dml__value(run, node->input[0]);
    dml_launch launch = dml__slice2d_launch(&shape, "slice2d_forward", dml__count(run, node), &x);
    launch.buffer[0] = x;
    launch.buffer[1] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__slice2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_shape shape = dml__slice2d_shape_of(run, node);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_slice2d_backward(run->pool, &shape, dml__host_gradient(run, node), beta,
                                    dml__host_gradient(run, node->input[0]));
    /* beta is 0 or 1; the kernel visits only what was taken. */
    dml_ref dx = dml__gradient(run, node->input[0]);
    dml_status status = DML_OK;
    if (beta == 0)
        status = run->device->backend->zero(run->device, dx, dml__count(run, node->input[0]) * sizeof(float));
    if (status != DML_OK) return status;
    size_t taken = (size_t)shape.batch;
    for (int axis = 0; axis < 3; axis++) taken *= (size_t)shape.axis[axis].count;
    dml_launch launch = dml__slice2d_launch(&shape, "slice2d_backward", taken, &dx);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dx;
    return dml__submit(run->device, &launch);
}

static void dml__slice2d_describe(const dml_node *node, char *text, size_t bytes)
{
    static const char *const name[] = { "height", "width", "channels" };
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    size_t used = 0;
    for (int axis = 0; axis < 3 && used < bytes; axis++) {
        const int written = snprintf(text + used, bytes - used, "%s%s %d to %d", used ? ", " : "", name[axis],
                                     o->begin[axis], o->end[axis] - 1);
        used += written > 0 ? (size_t)written : 0;
        if (o->step[axis] > 1 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " by %d", o->step[axis]);
        if ((o->before[axis] || o->after[axis]) && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " in %d + %d zeros", o->before[axis],
                                     o->after[axis]);
    }
}

DML__LOCAL const dml__op *dml__slice2d_op(void)
{
    static const dml__op op = { "slice2d",
                                dml__slice2d_infer,
                                dml__slice2d_op_forward,
                                dml__slice2d_op_backward,
                                0,
                                NULL,
                                false,
                                false,
                                dml__slice2d_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_slice2d(dml_node *x, const dml_slice2d_options *options)
{
    dml_slice2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    for (int axis = 0; axis < 3; axis++) {
        if (!o.step[axis]) o.step[axis] = 1;
        if (!o.end[axis] && x && x->shape.ndim == 3) o.end[axis] = x->shape.dims[axis];
    }
    return dml__node_create(dml__slice2d_op(), 1, &x, &o, sizeof o);
}

DML_API dml_node *dml_padded_shortcut2d(dml_node *x, int stride, int channels)
{
    if (!x) return NULL;
    const int more = x->shape.ndim == 3 ? channels - x->shape.dims[2] : 0;
    if (stride < 1 || more < 0) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "a shortcut of stride %d to %d channels asked for, %d fewer than there are; a stride is 1 "
                  "or more, and channels can't be left out",
                  stride, channels, more < 0 ? -more : 0);
        return NULL;
    }
    if (stride == 1 && more == 0 && x->shape.ndim == 3) return x;
    dml_slice2d_options o;
    memset(&o, 0, sizeof o);
    o.step[0] = o.step[1] = stride;
    o.before[2] = more / 2;
    o.after[2] = more - more / 2;
    return dml_slice2d(x, &o);
}

#endif

/* ---- ops/op_norm.c ---- */

#ifndef DML_OPS_OP_NORM_C
#define DML_OPS_OP_NORM_C

#include <stdio.h>
#include <string.h>

enum { DML__NORM_X, DML__NORM_WEIGHT, DML__NORM_BIAS, DML__NORM_MEAN, DML__NORM_VARIANCE, DML__NORM_INPUTS };

/* What forward leaves for backward, and backward for itself, in rows of channels: the batch's mean and
   variance, the gradients of weight and bias. On a GPU also what dx is made of, and the sums of the parts
   that the rows are cut into. */
enum {
    DML__NORM_SAVED_MEAN,
    DML__NORM_SAVED_VARIANCE,
    DML__NORM_SAVED_DWEIGHT,
    DML__NORM_SAVED_DBIAS,
    DML__NORM_SAVED_ROWS,
    DML__NORM_SAVED_PARTS = DML__NORM_SAVED_ROWS + 4
};
#define DML__NORM_PARTS ((size_t)64)
#define DML__NORM_PART_ROWS ((size_t)64) /* the fewest of a part */

static dml_status dml__check_channel_parameter(const dml_node *node, int i, const char *what)
{
    const dml_node *x = node->input[DML__NORM_X], *p = node->input[i];
    const int channels = x->shape.dims[x->shape.ndim - 1];
    char text[DML_SHAPE_TEXT];
    if (p->dtype == DML_F32 && !p->batched && p->shape.ndim == 1 && p->shape.dims[0] == channels)
        return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE, "its %s is %s %s%s, it must be f32 %d: one for each channel",
                          what, dml_dtype_name(p->dtype), dml_shape_format(&p->shape, text),
                          p->batched ? " a sample" : "", channels);
}

static dml_status dml__batch_norm_infer(dml_node *node)
{
    static const char *const what[] = { "input", "weight", "bias", "running mean", "running variance" };
    const dml_batch_norm_options *o = (const dml_batch_norm_options *)node->attributes;
    const dml_node *x = node->input[DML__NORM_X];
    char text[DML_SHAPE_TEXT];
    dml_status status = DML_OK;
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim < 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s %s%s; it takes f32 samples whose last dimension is channels",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text),
                              x->batched ? " a sample" : "");
    if (!(o->epsilon > 0 && o->epsilon <= 1e30f) || !(o->momentum > 0 && o->momentum <= 1))
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "epsilon %g and momentum %g asked for; an epsilon is above 0, a momentum above 0 and at most 1",
            (double)o->epsilon, (double)o->momentum);
    for (int i = DML__NORM_WEIGHT; i < DML__NORM_INPUTS && status == DML_OK; i++)
        status = dml__check_channel_parameter(node, i, what[i]);
    if (status != DML_OK) return status;
    for (int i = DML__NORM_MEAN; i < DML__NORM_INPUTS; i++)
        if (node->input[i]->op != dml__parameter_op() || !node->input[i]->frozen)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "its %s '%s' is %s; it must be a parameter for which "
                                  "dml_parameter_train(parameter, false) was called",
                                  what[i], node->input[i]->name,
                                  node->input[i]->op == dml__parameter_op() ? "trained" : "computed");
    for (int i = DML__NORM_MEAN; i < DML__NORM_INPUTS; i++)
        node->input[i]->kept = node->input[i]->kept || !o->frozen;
    node->shape = x->shape;
    node->batched = true;
    return DML_OK;
}

static size_t dml__batch_norm_channels(const dml_node *node)
{
    return (size_t)node->shape.dims[node->shape.ndim - 1];
}

static size_t dml__batch_norm_rows(const dml__run *run, const dml_node *node)
{
    return dml__count(run, node) / dml__batch_norm_channels(node);
}

static size_t dml__batch_norm_saved_bytes(const dml_node *node, int rows)
{
    const bool host = dml__node_context(node)->device.host_memory;
    (void)rows;
    return (host ? (size_t)DML__NORM_SAVED_ROWS : DML__NORM_SAVED_PARTS + 2 * DML__NORM_PARTS) *
           dml__batch_norm_channels(node) * sizeof(float);
}

static dml_ref dml__batch_norm_saved(const dml__run *run, const dml_node *node, int row)
{
    dml_ref ref = dml__saved(run, node);
    ref.offset += (size_t)row * dml__batch_norm_channels(node) * sizeof(float);
    return ref;
}

/* The statistics of this run: the batch's own, or the running ones. */
static bool dml__batch_norm_by_batch(const dml__run *run, const dml_node *node)
{
    return run->training && !((const dml_batch_norm_options *)node->attributes)->frozen;
}

static dml_ref dml__batch_norm_mean(const dml__run *run, const dml_node *node)
{
    return dml__batch_norm_by_batch(run, node) ? dml__batch_norm_saved(run, node, DML__NORM_SAVED_MEAN)
                                               : dml__value(run, node->input[DML__NORM_MEAN]);
}

static dml_ref dml__batch_norm_variance(const dml__run *run, const dml_node *node)
{
    return dml__batch_norm_by_batch(run, node) ? dml__batch_norm_saved(run, node, DML__NORM_SAVED_VARIANCE)
                                               : dml__value(run, node->input[DML__NORM_VARIANCE]);
}

/* On a GPU the rows are cut into parts, which depend on the shape alone. */
static size_t dml__batch_norm_part_rows(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__batch_norm_rows(run, node);
    const size_t part = rows / DML__NORM_PARTS + (rows % DML__NORM_PARTS != 0);
    return part > DML__NORM_PART_ROWS ? part : DML__NORM_PART_ROWS;
}

/* A launch with the ints rows, channels, rows of a part, parts, and epsilon. */
static dml_launch dml__batch_norm_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                         size_t x, size_t y)
{
    const size_t rows = dml__batch_norm_rows(run, node), part = dml__batch_norm_part_rows(run, node);
    dml_launch launch = dml__launch(kernel, x, y);
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = (int32_t)dml__batch_norm_channels(node);
    launch.integer[2] = (int32_t)part;
    launch.integer[3] = (int32_t)((rows + part - 1) / part);
    launch.real[0] = ((const dml_batch_norm_options *)node->attributes)->epsilon;
    return launch;
}

static dml_normalization dml__batch_norm_here(const dml__run *run, const dml_node *node)
{
    const dml_normalization by = { (const float *)dml__host(dml__batch_norm_mean(run, node)),
                                   (const float *)dml__host(dml__batch_norm_variance(run, node)),
                                   dml__host_value(run, node->input[DML__NORM_WEIGHT]),
                                   dml__host_value(run, node->input[DML__NORM_BIAS]),
                                   ((const dml_batch_norm_options *)node->attributes)->epsilon,
                                   dml__ends_in_relu(run, node) ? DML_ACTIVATION_RELU : DML_ACTIVATION_NONE };
    return by;
}

/* ---- forward ---- */

/* The share of the batch's mean and of its variance in the running ones, and the factor that makes the
   variance an unbiased one: of a single number there is none. */
typedef struct dml__norm_shares {
    float mean, variance, unbiased;
} dml__norm_shares;

static dml__norm_shares dml__batch_norm_shares(const dml_node *node, size_t rows)
{
    const float momentum = ((const dml_batch_norm_options *)node->attributes)->momentum;
    const dml__norm_shares shares = { momentum, rows > 1 ? momentum : 0.0f,
                                      rows > 1 ? (float)((double)rows / (double)(rows - 1)) : 1.0f };
    return shares;
}

static void dml__batch_norm_statistics_here(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__batch_norm_rows(run, node), channels = dml__batch_norm_channels(node);
    const dml__norm_shares shares = dml__batch_norm_shares(node, rows);
    float *mean = (float *)dml__host(dml__batch_norm_mean(run, node));
    float *variance = (float *)dml__host(dml__batch_norm_variance(run, node));
    float *running_mean = dml__host_value(run, node->input[DML__NORM_MEAN]);
    float *running_variance = dml__host_value(run, node->input[DML__NORM_VARIANCE]);
    dml_batch_statistics(run->pool, rows, channels, dml__host_value(run, node->input[DML__NORM_X]), mean,
                         variance);
    for (size_t c = 0; c < channels; c++) {
        const float unbiased = shares.unbiased * variance[c];
        running_mean[c] = (1 - shares.mean) * running_mean[c] + shares.mean * mean[c];
        running_variance[c] = (1 - shares.variance) * running_variance[c] + shares.variance * unbiased;
    }
}

static dml_status dml__batch_norm_statistics(const dml__run *run, const dml_node *node)
{
    if (run->device->host_memory) {
        dml__batch_norm_statistics_here(run, node);
        return DML_OK;
    }
    const size_t channels = dml__batch_norm_channels(node);
    const dml__norm_shares shares = dml__batch_norm_shares(node, dml__batch_norm_rows(run, node));
    const dml_ref parts = dml__batch_norm_saved(run, node, DML__NORM_SAVED_PARTS);
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_moments", channels, 0);
    launch.size[1] = (size_t)launch.integer[3];
    launch.buffer[0] = dml__value(run, node->input[DML__NORM_X]);
    launch.buffer[1] = parts;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__batch_norm_launch(run, node, "batch_norm_statistics", channels, 1);
    launch.buffer[0] = parts;
    launch.buffer[1] = dml__batch_norm_mean(run, node);
    launch.buffer[2] = dml__batch_norm_variance(run, node);
    launch.buffer[3] = dml__value(run, node->input[DML__NORM_MEAN]);
    launch.buffer[4] = dml__value(run, node->input[DML__NORM_VARIANCE]);
    launch.real[0] = shares.mean;
    launch.real[1] = shares.variance;
    launch.real[2] = shares.unbiased;
    return dml__submit(run->device, &launch);
}

static dml_status dml__batch_norm_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const dml_node *weight = node->input[DML__NORM_WEIGHT], *bias = node->input[DML__NORM_BIAS];
    const dml_ref mean = dml__batch_norm_mean(run, node), variance = dml__batch_norm_variance(run, node);
    if (dml__batch_norm_by_batch(run, node)) {
        const dml_status status = dml__batch_norm_statistics(run, node);
        if (status != DML_OK) return status;
    }
    if (run->device->host_memory) {
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_forward(run->pool, dml__batch_norm_rows(run, node), dml__batch_norm_channels(node),
                               dml__host_value(run, x), &by, dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_forward", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, weight);
    launch.buffer[2] = dml__value(run, bias);
    launch.buffer[3] = mean;
    launch.buffer[4] = variance;
    launch.buffer[5] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* ---- backward ---- */

/* The gradients of weight and bias, into the saved block: dx needs them as they are, w's may be added to. */
static dml_status dml__batch_norm_sums(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const size_t channels = dml__batch_norm_channels(node);
    const dml_ref mean = dml__batch_norm_mean(run, node), variance = dml__batch_norm_variance(run, node);
    const dml_ref dweight = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DWEIGHT);
    const dml_ref dbias = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DBIAS);
    if (run->device->host_memory) {
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_backward_parameters(run->pool, dml__batch_norm_rows(run, node), channels,
                                           dml__host_value(run, x), &by, dml__host_gradient(run, node),
                                           (float *)dml__host(dweight), (float *)dml__host(dbias));
        return DML_OK;
    }
    const dml_ref parts = dml__batch_norm_saved(run, node, DML__NORM_SAVED_PARTS);
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_products", channels, 0);
    launch.size[1] = (size_t)launch.integer[3];
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = mean;
    launch.buffer[3] = parts;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__batch_norm_launch(run, node, "batch_norm_gradients", channels, 1);
    launch.buffer[0] = parts;
    launch.buffer[1] = dml__value(run, node->input[DML__NORM_WEIGHT]);
    launch.buffer[2] = mean;
    launch.buffer[3] = variance;
    launch.buffer[4] = dweight;
    launch.integer[4] = dml__batch_norm_by_batch(run, node);
    return dml__submit(run->device, &launch);
}

/* The gradient of weight or bias = what the saved block has + beta x what is there. */
static dml_status dml__batch_norm_parameter_gradient(const dml__run *run, const dml_node *node, int i,
                                                     int saved)
{
    const size_t channels = dml__batch_norm_channels(node);
    const dml_ref from = dml__batch_norm_saved(run, node, saved);
    const float beta = dml__beta(run, node, i);
    if (!dml__wants_gradient(run, node, i)) return DML_OK;
    if (run->device->host_memory) {
        dml_axpby(run->pool, channels, 1.0f, (const float *)dml__host(from), beta,
                  dml__host_gradient(run, node->input[i]));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", channels, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = dml__gradient(run, node->input[i]);
    launch.integer[0] = (int32_t)channels;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__batch_norm_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[DML__NORM_X];
    const float beta = dml__beta(run, node, DML__NORM_X);
    if (run->device->host_memory) {
        const bool flows = dml__batch_norm_by_batch(run, node);
        const dml_ref dweight = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DWEIGHT);
        const dml_ref dbias = dml__batch_norm_saved(run, node, DML__NORM_SAVED_DBIAS);
        const dml_normalization by = dml__batch_norm_here(run, node);
        dml_batch_norm_backward_input(
            run->pool, dml__batch_norm_rows(run, node), dml__batch_norm_channels(node),
            dml__host_value(run, x), &by, dml__host_gradient(run, node),
            flows ? (const float *)dml__host(dweight) : NULL, flows ? (const float *)dml__host(dbias) : NULL,
            beta, dml__host_gradient(run, x));
        return DML_OK;
    }
    dml_launch launch = dml__batch_norm_launch(run, node, "batch_norm_backward", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__batch_norm_saved(run, node, DML__NORM_SAVED_ROWS);
    launch.buffer[3] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__batch_norm_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = dml__batch_norm_sums(run, node);
    if (status == DML_OK)
        status = dml__batch_norm_parameter_gradient(run, node, DML__NORM_WEIGHT, DML__NORM_SAVED_DWEIGHT);
    if (status == DML_OK)
        status = dml__batch_norm_parameter_gradient(run, node, DML__NORM_BIAS, DML__NORM_SAVED_DBIAS);
    if (status == DML_OK && dml__wants_gradient(run, node, DML__NORM_X))
        status = dml__batch_norm_input_gradient(run, node);
    return status;
}

static void dml__batch_norm_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_batch_norm_options *o = (const dml_batch_norm_options *)node->attributes;
    if (o->frozen)
        snprintf(text, bytes, "epsilon %g, frozen", (double)o->epsilon);
    else
        snprintf(text, bytes, "epsilon %g, momentum %g", (double)o->epsilon, (double)o->momentum);
}

static double dml__batch_norm_flops(const dml_node *node)
{
    return 4.0 * (double)dml_shape_count(&node->shape); /* what predicting takes */
}

DML__LOCAL const dml__op *dml__batch_norm_op(void)
{
    static const dml__op op = { "batch_norm",
                                dml__batch_norm_infer,
                                dml__batch_norm_op_forward,
                                dml__batch_norm_op_backward,
                                DML__NEEDS_INPUT(DML__NORM_X) | DML__NEEDS_INPUT(DML__NORM_WEIGHT) |
                                    DML__NEEDS_INPUT(DML__NORM_BIAS) | DML__TAKES_RELU | DML__TAKES_RELU_BACK,
                                dml__batch_norm_saved_bytes,
                                false,
                                true,
                                dml__batch_norm_describe,
                                dml__batch_norm_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_batch_norm_with(dml_node *x, dml_node *weight, dml_node *bias, dml_node *running_mean,
                                      dml_node *running_var, const dml_batch_norm_options *options)
{
    dml_batch_norm_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (o.epsilon == 0) o.epsilon = 1e-5f;
    if (o.momentum == 0) o.momentum = 0.1f;
    dml_node *const inputs[] = { x, weight, bias, running_mean, running_var };
    return dml__node_create(dml__batch_norm_op(), DML__NORM_INPUTS, inputs, &o, sizeof o);
}

DML_API dml_node *dml_batch_norm(dml_node *x, const dml_batch_norm_options *options)
{
    static const char *const part[] = { "weight", "bias", "running_mean", "running_var" };
    if (!x) return NULL;
    const int channels = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    dml_node *last = x->graph->last, *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] =
            dml__layer_parameter(x->graph, dml__batch_norm_op(), part[i],
                                 dml_init_constant(i == 0 || i == 3 ? 1.0f : 0.0f), dml_shape_of(channels));
        if (p[i]) p[i]->frozen = i >= 2;
    }
    dml_node *layer = dml_batch_norm_with(x, p[0], p[1], p[2], p[3], options);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif

/* ---- ops/op_loss.c ---- */

#ifndef DML_OPS_OP_LOSS_C
#define DML_OPS_OP_LOSS_C

static dml_status dml__softmax_cross_entropy_infer(dml_node *node)
{
    dml_node *logits = node->input[0], *labels = node->input[1];
    char logits_text[DML_SHAPE_TEXT], labels_text[DML_SHAPE_TEXT];
    if (logits->dtype != DML_F32 || !logits->batched || logits->shape.ndim != 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its logits are %s %s; they must be one row of f32 a sample",
                              dml_dtype_name(logits->dtype), dml_shape_format(&logits->shape, logits_text));
    if (labels->op != dml__input_op() || labels->dtype != DML_I32 || labels->shape.ndim != 0)
        return dml__node_fail(
            node, DML_ERROR_SHAPE, "its labels are %s %s %s; they must be an input of one i32 a sample",
            labels->op->name, dml_dtype_name(labels->dtype), dml_shape_format(&labels->shape, labels_text));
    node->limit = logits->shape.dims[0];
    return DML_OK; /* shape and batched are zero: one scalar */
}

/* Saved: the probabilities (rows, classes), then each row's loss (rows). */
static size_t dml__probability_bytes(const dml_node *node, int rows)
{
    return dml__align_up((size_t)node->input[0]->shape.dims[0] * (size_t)rows * sizeof(float));
}

static size_t dml__softmax_cross_entropy_saved_bytes(const dml_node *node, int rows)
{
    return dml__probability_bytes(node, rows) + (size_t)rows * sizeof(float);
}

static dml_status dml__softmax_cross_entropy_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *logits = node->input[0], *labels = node->input[1];
    const int classes = logits->shape.dims[0];
    const dml_ref probabilities = dml__saved(run, node);
    dml_ref row_loss = probabilities;
    row_loss.offset += dml__probability_bytes(node, run->rows);
    if (run->device->host_memory) {
        *dml__host_value(run, node) = dml_softmax_cross_entropy_forward(
            run->pool, (size_t)run->rows, (size_t)classes, dml__host_value(run, logits),
            (const int32_t *)dml__host(dml__value(run, labels)), (float *)dml__host(probabilities),
            (float *)dml__host(row_loss));
        return DML_OK;
    }
    dml_launch launch = dml__launch("softmax_cross_entropy_forward", (size_t)run->rows, 1);
    launch.buffer[0] = dml__value(run, logits);
    launch.buffer[1] = dml__value(run, labels);
    launch.buffer[2] = probabilities;
    launch.buffer[3] = row_loss;
    launch.integer[0] = run->rows;
    launch.integer[1] = classes;
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    launch = dml__launch("mean", 1, 1);
    launch.buffer[0] = row_loss;
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = run->rows;
    return dml__submit(run->device, &launch);
}

static dml_status dml__softmax_cross_entropy_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *logits = node->input[0], *labels = node->input[1];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const int classes = logits->shape.dims[0];
    const float scale = 1.0f / (float)run->rows, beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        dml_softmax_cross_entropy_backward(
            run->pool, (size_t)run->rows, (size_t)classes, (const float *)dml__host(dml__saved(run, node)),
            (const int32_t *)dml__host(dml__value(run, labels)), scale * *dml__host_gradient(run, node), beta,
            dml__host_gradient(run, logits));
        return DML_OK;
    }
    dml_launch launch = dml__launch("softmax_cross_entropy_backward", dml__count(run, logits), 1);
    launch.buffer[0] = dml__saved(run, node);
    launch.buffer[1] = dml__value(run, labels);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, logits);
    launch.integer[0] = run->rows;
    launch.integer[1] = classes;
    launch.real[0] = scale;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

/* Of each logit: minus the largest, exp, plus the others, divided. */
static double dml__softmax_cross_entropy_flops(const dml_node *node)
{
    return 4.0 * node->input[0]->shape.dims[0];
}

DML__LOCAL const dml__op *dml__softmax_cross_entropy_op(void)
{
    static const dml__op op = { "softmax_cross_entropy",
                                dml__softmax_cross_entropy_infer,
                                dml__softmax_cross_entropy_op_forward,
                                dml__softmax_cross_entropy_op_backward,
                                DML__NEEDS_INPUT(1),
                                dml__softmax_cross_entropy_saved_bytes,
                                false,
                                false,
                                NULL,
                                dml__softmax_cross_entropy_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels)
{
    dml_node *const inputs[] = { logits, labels };
    return dml__node_create(dml__softmax_cross_entropy_op(), 2, inputs, NULL, 0);
}

static dml_status dml__mean_squared_error_infer(dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    if (a->dtype != DML_F32 || b->dtype != DML_F32 || !dml_shape_equal(&a->shape, &b->shape) ||
        a->batched != b->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its inputs are %s %s and %s %s, they must be f32 of one shape",
                              dml_dtype_name(a->dtype), dml_shape_format(&a->shape, a_text),
                              dml_dtype_name(b->dtype), dml_shape_format(&b->shape, b_text));
    return DML_OK;
}

static dml_status dml__mean_squared_error_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    const size_t n = dml__count(run, a);
    if (run->device->host_memory) {
        *dml__host_value(run, node) =
            dml_mse_forward(run->pool, n, dml__host_value(run, a), dml__host_value(run, b));
        return DML_OK;
    }
    if (n > INT32_MAX)
        return dml_device_fail(run->device, DML_ERROR_UNSUPPORTED,
                               "mse_forward over %zu: the kernels count to %d; use smaller batches", n,
                               INT32_MAX);
    dml_launch launch = dml__launch("mse_forward", 1, 1);
    launch.buffer[0] = dml__value(run, a);
    launch.buffer[1] = dml__value(run, b);
    launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__mean_squared_error_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    for (int i = 0; i < 2 && status == DML_OK; i++) {
        if (!dml__wants_gradient(run, node, i)) continue;
        const dml_node *self = node->input[i], *other = node->input[1 - i];
        const size_t n = dml__count(run, self);
        const float scale = 2.0f / (float)n, beta = dml__beta(run, node, i);
        if (run->device->host_memory) {
            dml_mse_backward(run->pool, n, dml__host_value(run, self), dml__host_value(run, other),
                             scale * *dml__host_gradient(run, node), beta, dml__host_gradient(run, self));
            continue;
        }
        dml_launch launch = dml__launch("mse_backward", n, 1);
        launch.buffer[0] = dml__value(run, self);
        launch.buffer[1] = dml__value(run, other);
        launch.buffer[2] = dml__gradient(run, node);
        launch.buffer[3] = dml__gradient(run, self);
        launch.integer[0] = (int32_t)n;
        launch.real[0] = scale;
        launch.real[1] = beta;
        status = dml__submit(run->device, &launch);
    }
    return status;
}

static double dml__mean_squared_error_flops(const dml_node *node)
{
    return 3.0 * (double)dml_shape_count(&node->input[0]->shape);
}

DML__LOCAL const dml__op *dml__mean_squared_error_op(void)
{
    static const dml__op op = { "mean_squared_error",
                                dml__mean_squared_error_infer,
                                dml__mean_squared_error_op_forward,
                                dml__mean_squared_error_op_backward,
                                DML__NEEDS_INPUTS,
                                NULL,
                                false,
                                false,
                                NULL,
                                dml__mean_squared_error_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b)
{
    dml_node *const inputs[] = { a, b };
    return dml__node_create(dml__mean_squared_error_op(), 2, inputs, NULL, 0);
}

#endif

/* ---- train/optimizer.c ---- */

#ifndef DML_TRAIN_OPTIMIZER_C
#define DML_TRAIN_OPTIMIZER_C

/* ---- train/optimizer_internal.h ---- */

/* optimizer_internal.h: the optimizer table. Adding an optimizer is a kind, a row, and its shared kernel. */
#ifndef DML_TRAIN_OPTIMIZER_INTERNAL_H
#define DML_TRAIN_OPTIMIZER_INTERNAL_H

#define DML__MAX_STATES 2
#define DML__MAX_LR 1e6f /* far above any that is meant; it refuses infinity */

/* One fused pass over a range: w, g and each state vector at the range's start, n elements. */
typedef struct dml__update {
    dml_device *device;
    dml_pool *pool;
    size_t n;
    dml_ref w, g, state[DML__MAX_STATES];
    uint64_t step; /* how many updates came before */
} dml__update;

typedef struct dml__optimizer_row {
    const char *name;
    const char *state[DML__MAX_STATES]; /* what its vectors are called */
    /* How many of them, each as long as g, it keeps with these numbers. */
    int (*states)(const dml_optimizer *optimizer);
    dml_status (*update)(const dml_optimizer *optimizer, const dml__update *update);
} dml__optimizer_row;

/* What refuses an optimizer's numbers, with the error recorded. */
DML__LOCAL dml_status dml__check_optimizer(const dml_optimizer *optimizer, dml__error *error);

/* NULL for a kind that isn't there. */
DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind);

#endif

static int dml__sgd_states(const dml_optimizer *optimizer)
{
    return optimizer->momentum != 0.0f ? 1 : 0;
}

static dml_status dml__sgd_step(const dml_optimizer *optimizer, const dml__update *update)
{
    const bool has_velocity = optimizer->momentum != 0.0f;
    if (update->device->host_memory) {
        dml_sgd_update(update->pool, update->n, (float *)dml__host(update->w),
                       (const float *)dml__host(update->g),
                       has_velocity ? (float *)dml__host(update->state[0]) : NULL, optimizer->lr,
                       optimizer->momentum, optimizer->weight_decay, optimizer->nesterov);
        return DML_OK;
    }
    dml_launch launch = dml__launch("sgd_update", update->n, 1);
    launch.buffer[0] = update->w;
    launch.buffer[1] = update->g;
    if (has_velocity) launch.buffer[2] = update->state[0];
    launch.integer[0] = (int32_t)update->n;
    launch.integer[1] = optimizer->nesterov;
    launch.real[0] = optimizer->lr;
    launch.real[1] = optimizer->momentum;
    launch.real[2] = optimizer->weight_decay;
    return dml__submit(update->device, &launch);
}

DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind)
{
    static const dml__optimizer_row rows[] = {
        { "sgd", { "velocity", NULL }, dml__sgd_states, dml__sgd_step },
    };
    return (unsigned)kind < sizeof rows / sizeof rows[0] ? &rows[kind] : NULL;
}

DML__LOCAL dml_status dml__check_optimizer(const dml_optimizer *o, dml__error *error)
{
    if (!dml__optimizer_row_of(o->kind))
        return dml__fail(error, DML_ERROR_ARGUMENT, "no optimizer of kind %d", (int)o->kind);
    /* Written so that a NaN is refused too. */
    if (!(o->lr >= 0.0f && o->lr <= DML__MAX_LR) || !(o->momentum >= 0.0f && o->momentum < 1.0f) ||
        !(o->weight_decay >= 0.0f && o->weight_decay <= 1e6f))
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "optimizer with lr %g, momentum %g, weight decay %g: lr must be 0 or more, momentum in 0 .. 1 "
            "(below 1), weight decay 0 or more",
            (double)o->lr, (double)o->momentum, (double)o->weight_decay);
    if (o->nesterov && o->momentum == 0.0f)
        return dml__fail(error, DML_ERROR_ARGUMENT, "Nesterov momentum needs a momentum above 0");
    return DML_OK;
}

DML_API dml_optimizer dml_sgd(float lr, float momentum)
{
    const dml_optimizer optimizer = { DML_SGD, lr, momentum, 0.0f, false };
    return optimizer;
}

#endif

/* ---- train/trainer.c ---- */

#ifndef DML_TRAIN_TRAINER_C
#define DML_TRAIN_TRAINER_C

/* ---- train/trainer_internal.h ---- */

/* trainer_internal.h: what a trainer is made of, for checkpoints. */
#ifndef DML_TRAIN_TRAINER_INTERNAL_H
#define DML_TRAIN_TRAINER_INTERNAL_H

#define DML__MAX_VECTORS (DML_OPTIMIZER_STATE + DML__MAX_STATES)

struct dml_trainer {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_program *program;
    dml_optimizer optimizer;
    const dml__optimizer_row *row;
    dml_buffer *vector[DML__MAX_VECTORS]; /* w is the graph's, g the program's, the states are its own */
    float *mirror[DML__MAX_VECTORS];      /* host copies, where the device has memory of its own; w's is the
                                             graph's */
    int vectors;
    uint64_t steps;
    dml_sync sync;
    /* What g holds: the mean over this many samples of all ranks, or, while `pending`, the sum over this
       rank's. 0: nothing that could be added to. */
    double held;
    bool pending;
    bool spoiled; /* by a backward pass that failed: nothing to apply, until another one or dml_trainer_put */
};

#endif

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__trainer_drop_sync(dml_trainer *trainer)
{
    dml_sync sync = trainer->sync;
    memset(&trainer->sync, 0, sizeof trainer->sync);
    if (sync.destroy) sync.destroy(sync.state, trainer);
}

static void dml__trainer_destroy_owned(dml__owned *owned)
{
    dml_trainer *trainer = (dml_trainer *)(void *)owned;
    dml_context *context = trainer->context;
    dml__trainer_drop_sync(trainer);
    dml__disown(context, owned);
    for (int v = 0; v < DML__MAX_VECTORS; v++) {
        if (v != DML_PARAMETERS) dml__release(&context->memory, trainer->mirror[v]);
        if (v >= DML_OPTIMIZER_STATE) dml__buffer_destroy(context, trainer->vector[v]);
    }
    dml_program_destroy(trainer->program);
    dml__release(&context->memory, trainer);
}

DML_API void dml_trainer_destroy(dml_trainer *trainer)
{
    if (trainer) dml__trainer_destroy_owned(&trainer->owned);
}

static dml_status dml__trainer_allocate(dml_trainer *trainer)
{
    dml_context *context = trainer->context;
    const size_t count = trainer->program->graph->trained_count;
    const int states = trainer->row->states(&trainer->optimizer);
    trainer->vector[DML_PARAMETERS] = trainer->program->graph->w;
    trainer->vector[DML_GRADIENTS] = trainer->program->g;
    trainer->vectors = DML_OPTIMIZER_STATE + states;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors; v++) {
        trainer->vector[v] = dml__buffer_create(context, count * sizeof(float));
        if (!trainer->vector[v]) return context->error.status;
        const dml_ref start = { trainer->vector[v], 0 };
        const dml_status status =
            context->device.backend->zero(&context->device, start, count * sizeof(float));
        if (status != DML_OK) return status;
    }
    if (context->device.host_memory) return DML_OK;
    trainer->mirror[DML_PARAMETERS] = dml__graph_host(trainer->program->graph);
    if (!trainer->mirror[DML_PARAMETERS]) return context->error.status;
    for (int v = DML_GRADIENTS; v < trainer->vectors; v++) {
        trainer->mirror[v] = (float *)dml__allocate_array(&context->memory, count, sizeof(float));
        if (!trainer->mirror[v])
            return dml__fail(&context->error, DML_ERROR_MEMORY,
                             "no memory left for the host's copy of %zu gradients", count);
    }
    return DML_OK;
}

static dml_trainer *dml__trainer_create_in(dml_node *loss, const dml_trainer_options *options)
{
    dml_context *context = loss->graph->context;
    dml_optimizer optimizer;
    memset(&optimizer, 0, sizeof optimizer);
    if (options) optimizer = options->optimizer;
    if (optimizer.lr == 0.0f) optimizer.lr = 0.01f;
    if (context->error.status != DML_OK || dml__check_optimizer(&optimizer, &context->error) != DML_OK)
        return NULL;
    dml_program_options program_options;
    memset(&program_options, 0, sizeof program_options);
    program_options.batch = options ? options->batch : 0;
    program_options.training = true;
    dml_program *program = dml_compile(loss, &program_options);
    if (!program) return NULL;
    dml_trainer *trainer = (dml_trainer *)dml__allocate(&context->memory, sizeof *trainer);
    if (!trainer) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a trainer");
        dml_program_destroy(program);
        return NULL;
    }
    trainer->context = context;
    trainer->program = program;
    trainer->optimizer = optimizer;
    trainer->row = dml__optimizer_row_of(optimizer.kind);
    dml__own(context, &trainer->owned, dml__trainer_destroy_owned);
    if (dml__trainer_allocate(trainer) == DML_OK) return trainer;
    dml_trainer_destroy(trainer);
    return NULL;
}

DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_trainer *trainer = dml__trainer_create_in(loss, options);
    dml__leave(context, entry);
    return trainer;
}

/* ---- backward ---- */

static bool dml__sync_combines(const dml_sync *sync)
{
    return sync->ready || sync->finish;
}

static bool dml__sync_attached(const dml_sync *sync)
{
    return dml__sync_combines(sync) || sync->begin || sync->updated;
}

static dml_status dml__trainer_gradient_ready(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.ready ? trainer->sync.ready(trainer->sync.state, trainer, begin, end) : DML_OK;
}

/* g = factor g */
static dml_status dml__scale_gradient(dml_trainer *trainer, double factor)
{
    const size_t n = trainer->program->graph->trained_count;
    const dml_ref g = { trainer->vector[DML_GRADIENTS], 0 };
    dml_device *device = &trainer->context->device;
    if (factor == 1) return DML_OK;
    if (device->host_memory) {
        dml_scale(trainer->context->pool, n, (float)factor, (float *)dml__host(g));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", n, 1);
    launch.buffer[0] = g;
    launch.buffer[1] = g;
    launch.integer[0] = (int32_t)n;
    launch.real[0] = (float)factor;
    return dml__submit(device, &launch);
}

/* A call of backward: what g held, weighs, and becomes. */
typedef struct dml__pass {
    int rows;
    bool combines;     /* by a strategy that sees sums; else g is a mean throughout */
    bool adds, more;   /* DML_ADD to something; DML_MORE */
    double old_factor; /* of what g holds, before backward adds to it */
    double samples;    /* that this rank's g stands for after backward */
    float loss_scale;
} dml__pass;

static dml__pass dml__plan_pass(const dml_trainer *trainer, int rows, int flags)
{
    const dml_sync *sync = &trainer->sync;
    dml__pass pass;
    memset(&pass, 0, sizeof pass);
    pass.rows = rows;
    pass.combines = dml__sync_combines(sync);
    pass.adds = (flags & DML_ADD) && trainer->held > 0;
    pass.more = pass.combines && (flags & DML_MORE);
    double held = pass.adds ? trainer->held : 0;
    pass.old_factor = 1;
    if (pass.combines && !trainer->pending) {
        /* g is the mean over the samples of all ranks: each stands for its part of their sum. */
        held /= sync->ranks ? sync->ranks : 1;
        pass.old_factor = held;
    }
    pass.samples = held + rows;
    pass.loss_scale = (float)rows;
    if (!pass.combines && pass.samples > 0) {
        pass.old_factor = held / pass.samples;
        pass.loss_scale = (float)(rows / pass.samples);
    }
    return pass;
}

/* A rank without samples takes part in the sync with a gradient of zero, or with what it had before. Its
   ranges become final in the order in which other ranks' do: what is sent has to be the same on all. */
static dml_status dml__pass_on_nothing(dml_trainer *trainer, const dml__pass *pass,
                                       const dml__gradient_listener *listener)
{
    dml_device *device = &trainer->context->device;
    const dml_program *program = trainer->program;
    const dml_ref g = { trainer->vector[DML_GRADIENTS], 0 };
    size_t final_from = program->graph->trained_count;
    dml_status status = pass->adds ? DML_OK : device->backend->zero(device, g, final_from * sizeof(float));
    for (int s = program->slots - 1; s >= 0 && listener && status == DML_OK; s--) {
        if (program->slot[s].final_from >= final_from) continue;
        status = listener->ready(listener->user, program->slot[s].final_from, final_from);
        final_from = program->slot[s].final_from;
    }
    return status;
}

static dml_status dml__run_pass(dml_trainer *trainer, const dml__pass *pass, const void *const *inputs,
                                float *loss)
{
    const dml__gradient_listener listener = { dml__trainer_gradient_ready, trainer };
    const dml__training training = { (uint32_t)trainer->steps, pass->loss_scale, pass->adds,
                                     pass->more ? NULL : &listener };
    const dml_status status = pass->adds ? dml__scale_gradient(trainer, pass->old_factor) : DML_OK;
    if (status != DML_OK) return status;
    if (pass->rows > 0) return dml__program_train(trainer->program, pass->rows, inputs, &training, loss);
    if (loss) *loss = 0.0f;
    return dml__pass_on_nothing(trainer, pass, training.listener);
}

/* The sum over the ranks, and its mean. */
static dml_status dml__finish_pass(dml_trainer *trainer, dml__pass *pass)
{
    const dml_sync *sync = &trainer->sync;
    const dml_status status = sync->finish ? sync->finish(sync->state, trainer, &pass->samples) : DML_OK;
    if (status != DML_OK) return status;
    if (!(pass->samples > 0))
        return dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                         "a global batch of 0 samples: no rank was given any");
    return dml__scale_gradient(trainer, 1 / pass->samples);
}

static dml_status dml__trainer_backward_in(dml_trainer *trainer, int rows, const void *const *inputs,
                                           int count, int flags, float *loss)
{
    const dml_sync *sync = &trainer->sync;
    dml_status status = trainer->context->error.status;
    if (status != DML_OK) return status;
    if (flags & ~(DML_ADD | DML_MORE))
        return dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                         "backward was given flags %d; there are DML_ADD and DML_MORE", flags);
    if (rows != 0 || !dml__sync_attached(sync))
        status = dml__program_check(trainer->program, rows, inputs, count);
    if (status != DML_OK) return status;
    dml__pass pass = dml__plan_pass(trainer, rows, flags);
    trainer->spoiled = true;
    trainer->held = 0; /* whatever fails from here on leaves in g nothing to add to */
    trainer->pending = false;
    if (sync->begin && !pass.more) status = sync->begin(sync->state, trainer, pass.samples);
    if (status == DML_OK) status = dml__run_pass(trainer, &pass, inputs, loss);
    if (status == DML_OK && pass.combines && !pass.more) status = dml__finish_pass(trainer, &pass);
    if (status != DML_OK) {
        if (sync->failed && !pass.more) sync->failed(sync->state, trainer);
        return status;
    }
    trainer->spoiled = false;
    trainer->held = pass.samples;
    trainer->pending = (flags & DML_MORE) != 0;
    return DML_OK;
}

/* ---- update ---- */

static dml_ref dml__trainer_ref(const dml_trainer *trainer, int vector, size_t begin)
{
    const dml_ref ref = { trainer->vector[vector], begin * sizeof(float) };
    return ref;
}

static dml_status dml__check_whole(const dml_trainer *trainer)
{
    if (!trainer->pending) return DML_OK;
    return dml__fail(&trainer->context->error, DML_ERROR_STATE,
                     "an update while the gradient waits for more: the last backward before it comes without "
                     "DML_MORE");
}

static dml_status dml__trainer_update_in(dml_trainer *trainer, size_t begin, size_t end)
{
    dml_context *context = trainer->context;
    const size_t count = trainer->program->graph->trained_count;
    if (context->error.status != DML_OK) return context->error.status;
    if (begin > end || end > count)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "an update of elements %zu to %zu asked for; there are %zu trained ones", begin, end,
                         count);
    const dml_status status = dml__check_whole(trainer);
    if (status != DML_OK) return status;
    if (trainer->spoiled)
        return dml__fail(&context->error, DML_ERROR_STATE,
                         "an update, but the last backward pass failed and left no gradient; make it again");
    dml__update update;
    memset(&update, 0, sizeof update);
    update.device = &context->device;
    update.pool = context->pool;
    update.n = end - begin;
    update.w = dml__trainer_ref(trainer, DML_PARAMETERS, begin);
    update.g = dml__trainer_ref(trainer, DML_GRADIENTS, begin);
    for (int s = 0; s < trainer->vectors - DML_OPTIMIZER_STATE; s++)
        update.state[s] = dml__trainer_ref(trainer, DML_OPTIMIZER_STATE + s, begin);
    update.step = trainer->steps;
    return trainer->row->update(&trainer->optimizer, &update);
}

static dml_status dml__trainer_advance_in(dml_trainer *trainer)
{
    const dml_sync *sync = &trainer->sync;
    const dml_status status = dml__check_whole(trainer);
    if (status != DML_OK) return status;
    trainer->steps++;
    trainer->held = 0;
    return sync->updated ? sync->updated(sync->state, trainer) : DML_OK;
}

/* ---- the public parts of a step ---- */

/* For a strategy that fails without a word. */
static dml_status dml__explain(dml_trainer *trainer, dml_status status, const char *what)
{
    return status == DML_OK ? status
                            : dml__fail(&trainer->context->error, status, "%s failed: %s", what,
                                        dml_status_string(status));
}

/* A part of a step has the context to itself, and, where it writes w, the graph. */
typedef struct dml__part {
    dml__entry entry;
    bool writes;
} dml__part;

static dml_status dml__begin_part(dml_trainer *trainer, bool writes, dml__part *part)
{
    part->writes = false;
    part->entry = dml__enter(trainer->context);
    if (part->entry == DML__REFUSED) return DML_ERROR_STATE;
    dml_status status = trainer->context->error.status;
    if (status == DML_OK && writes) {
        status = dml__graph_claim_writing(trainer->program->graph);
        part->writes = status == DML_OK;
    }
    if (status != DML_OK) dml__leave(trainer->context, part->entry);
    return status;
}

static dml_status dml__end_part(dml_trainer *trainer, const dml__part *part, dml_status status,
                                const char *what)
{
    status = dml__explain(trainer, status, what);
    if (part->writes) dml__graph_release(trainer->program->graph, false);
    dml__leave(trainer->context, part->entry);
    return status;
}

DML_API dml_status dml_trainer_backward(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                        int flags, float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, trainer->program->changes_w, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_backward_in(trainer, rows, inputs, count, flags, loss);
    return dml__end_part(trainer, &part, status, "the backward pass");
}

DML_API dml_status dml_trainer_update_range(dml_trainer *trainer, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_update_in(trainer, begin, end);
    return dml__end_part(trainer, &part, status, "the update");
}

DML_API dml_status dml_trainer_advance(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the end of the training step");
}

DML_API dml_status dml_trainer_update(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_update_in(trainer, 0, trainer->program->graph->trained_count);
    if (status == DML_OK) status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the update");
}

DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                    float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) return status;
    status = dml__trainer_backward_in(trainer, rows, inputs, count, DML_OVERWRITE, loss);
    if (status == DML_OK) status = dml__trainer_update_in(trainer, 0, trainer->program->graph->trained_count);
    if (status == DML_OK) status = dml__trainer_advance_in(trainer);
    return dml__end_part(trainer, &part, status, "the training step");
}

DML_API dml_program *dml_trainer_program(dml_trainer *trainer)
{
    return trainer ? trainer->program : NULL;
}

DML_API dml_context *dml_trainer_context(const dml_trainer *trainer)
{
    return trainer ? trainer->context : NULL;
}

DML_API uint64_t dml_trainer_steps(const dml_trainer *trainer)
{
    return trainer ? trainer->steps : 0;
}

DML_API dml_trainer_run dml_trainer_get_run(const dml_trainer *trainer)
{
    dml_trainer_run run;
    memset(&run, 0, sizeof run);
    if (!trainer) return run;
    run.optimizer = trainer->optimizer;
    run.seed = trainer->context->seed;
    run.steps = trainer->steps;
    return run;
}

DML_API dml_status dml_trainer_set_run(dml_trainer *trainer, const dml_trainer_run *run)
{
    if (!trainer || !run) return DML_ERROR_ARGUMENT;
    dml__error *error = &trainer->context->error;
    const dml_status status = dml__check_optimizer(&run->optimizer, error);
    if (status != DML_OK) return status;
    const int states = trainer->vectors - DML_OPTIMIZER_STATE;
    const dml__optimizer_row *row = dml__optimizer_row_of(run->optimizer.kind);
    if (row != trainer->row || row->states(&run->optimizer) != states)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a run by %s with momentum %g can't go on by %s with momentum %g, which keeps other "
                         "state",
                         row->name, (double)run->optimizer.momentum, trainer->row->name,
                         (double)trainer->optimizer.momentum);
    trainer->optimizer = run->optimizer;
    trainer->context->seed = run->seed;
    trainer->steps = run->steps;
    return DML_OK;
}

DML_API float dml_trainer_lr(const dml_trainer *trainer)
{
    return trainer ? trainer->optimizer.lr : 0.0f;
}

DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr)
{
    if (!trainer) return;
    if (lr >= 0.0f && lr <= DML__MAX_LR)
        trainer->optimizer.lr = lr;
    else
        dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
                  "a learning rate of %g asked for, it must be 0 or more", (double)lr);
}

DML_API size_t dml_trainer_count(const dml_trainer *trainer, int vector)
{
    if (!trainer || vector < 0 || vector >= trainer->vectors) return 0;
    const dml_graph *graph = trainer->program->graph;
    return vector == DML_PARAMETERS ? graph->parameter_count : graph->trained_count;
}

DML_API int dml_trainer_vectors(const dml_trainer *trainer)
{
    return trainer ? trainer->vectors : 0;
}

static bool dml__trainer_range_ok(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    const size_t count = dml_trainer_count(trainer, vector);
    if (vector >= 0 && vector < trainer->vectors && begin <= end && end <= count) return true;
    dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of vector %d asked for; there are %d vectors, that one of %zu", begin, end,
              vector, trainer->vectors, count);
    return false;
}

DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer || !dml__trainer_range_ok(trainer, vector, begin, end)) return NULL;
    if (!trainer->context->device.host_memory) return trainer->mirror[vector] + begin;
    return (float *)dml__host(dml__trainer_ref(trainer, vector, begin));
}

DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    float *host = dml_trainer_host(trainer, vector, begin, end);
    if (!host || trainer->context->device.host_memory || begin == end) return host;
    dml_device *device = &trainer->context->device;
    const dml_ref from = dml__trainer_ref(trainer, vector, begin);
    return device->backend->read(device, host, from, (end - begin) * sizeof(float)) == DML_OK ? host : NULL;
}

DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!dml__trainer_range_ok(trainer, vector, begin, end)) return DML_ERROR_ARGUMENT;
    dml_device *device = &trainer->context->device;
    if (vector == DML_GRADIENTS) trainer->spoiled = false; /* the caller's own */
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = dml__trainer_ref(trainer, vector, begin);
    return device->backend->write(device, to, trainer->mirror[vector] + begin, (end - begin) * sizeof(float));
}

DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__part part;
    dml_status status = dml__begin_part(trainer, true, &part);
    if (status != DML_OK) { /* another thread may be in a step with the strategy that is attached: it stays */
        if (sync.destroy) sync.destroy(sync.state, trainer);
        return status;
    }
    dml__trainer_drop_sync(trainer);
    trainer->sync = sync;
    trainer->held = 0;
    trainer->pending = false;
    status = sync.start ? sync.start(sync.state, trainer) : DML_OK;
    if (status != DML_OK) dml__trainer_drop_sync(trainer);
    return dml__end_part(trainer, &part, status, "the start of the sync strategy");
}

DML_API dml_status dml_trainer_fail(dml_trainer *trainer, dml_status status, const char *format, ...)
{
    if (!trainer) return status;
    char text[sizeof trainer->context->error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dml__fail(&trainer->context->error, status, "%s", text);
}

#endif

/* ---- train/checkpoint.c ---- */

#ifndef DML_TRAIN_CHECKPOINT_C
#define DML_TRAIN_CHECKPOINT_C

#ifndef DML_NO_STDIO

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "dml.velocity.dense_1.weight": the part of an optimizer's state vector that belongs to a parameter. */
static void dml__state_name(const char *state, const char *parameter, char name[2 * DML_NAME_BYTES])
{
    snprintf(name, 2 * DML_NAME_BYTES, DML__OWN_TENSORS "%s.%s", state, parameter);
}

/* ---- numbers as texts, the same in every locale ---- */

enum { DML__NUMBER_BYTES = 32 };

/* What isn't of a number's characters is the locale's decimal point, of one byte or several. */
static void dml__write_real(float value, char text[DML__NUMBER_BYTES])
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

static bool dml__read_whole(const char *text, uint64_t *value)
{
    *value = 0;
    if (!text || !*text) return false;
    for (; *text; text++) {
        const unsigned digit = (unsigned char)*text - '0';
        if (digit > 9 || *value > (UINT64_MAX - digit) / 10) return false;
        *value = *value * 10 + digit;
    }
    return true;
}

/* Not negative, as in "0.1" or "1e-05". 9 digits and a double lead back to the very float. */
static bool dml__read_real(const char *text, float *value)
{
    double digits = 0;
    int scale = 0, power = 0, count = 0;
    bool point = false;
    for (; text && *text && *text != 'e'; text++) {
        if (*text == '.' && !point) {
            point = true;
            continue;
        }
        if (*text < '0' || *text > '9' || ++count > 40) return false;
        digits = digits * 10 + (*text - '0');
        scale -= point;
    }
    if (!count) return false;
    if (*text == 'e') {
        const bool negative = text[1] == '-';
        uint64_t magnitude;
        if (!dml__read_whole(text + (negative || text[1] == '+' ? 2 : 1), &magnitude) || magnitude > 99)
            return false;
        power = negative ? -(int)magnitude : (int)magnitude;
    }
    *value = (float)(digits * pow(10, scale + power));
    return true;
}

/* ---- writing ---- */

enum { DML__RUN_PAIRS = 7 };

static void dml__write_run(const dml_trainer *trainer, char text[DML__RUN_PAIRS][DML__NUMBER_BYTES],
                           dml__metadata pairs[DML__RUN_PAIRS])
{
    static const char *const keys[DML__RUN_PAIRS] = { "dml.optimizer",    "dml.lr",       "dml.momentum",
                                                      "dml.weight_decay", "dml.nesterov", "dml.seed",
                                                      "dml.step" };
    const dml_optimizer *o = &trainer->optimizer;
    snprintf(text[0], DML__NUMBER_BYTES, "%s", trainer->row->name);
    dml__write_real(o->lr, text[1]);
    dml__write_real(o->momentum, text[2]);
    dml__write_real(o->weight_decay, text[3]);
    snprintf(text[4], DML__NUMBER_BYTES, "%d", o->nesterov ? 1 : 0);
    snprintf(text[5], DML__NUMBER_BYTES, "%llu", (unsigned long long)trainer->context->seed);
    snprintf(text[6], DML__NUMBER_BYTES, "%llu", (unsigned long long)trainer->steps);
    for (int i = 0; i < DML__RUN_PAIRS; i++) {
        pairs[i].key = keys[i];
        pairs[i].value = text[i];
    }
}

/* The tensors of one state vector: as the parameters', for those that are trained. Returns how many. */
static int dml__state_tensors(const dml_trainer *trainer, int s, const float *vector, dml__tensor *tensors,
                              char (*names)[2 * DML_NAME_BYTES])
{
    int count = 0;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        if (p->frozen) continue;
        dml__state_name(trainer->row->state[s], p->name, names[count]);
        tensors[count].name = names[count];
        tensors[count].dtype = DML_F32;
        tensors[count].ndim = p->shape.ndim;
        tensors[count].dims = p->shape.dims;
        tensors[count].data = vector + p->offset;
        count++;
    }
    return count;
}

/* Everything that the file will hold. `tensors` and `names` have room for each vector's parameters. */
static dml_status dml__write_checkpoint(dml_trainer *trainer, const char *path, dml__tensor *tensors,
                                        char (*names)[2 * DML_NAME_BYTES])
{
    dml_context *context = trainer->context;
    int count = dml_graph_parameters(trainer->program->graph);
    for (int v = 0; v < trainer->vectors; v++) {
        if (v == DML_GRADIENTS) continue;
        const float *vector = dml_trainer_get(trainer, v, 0, dml_trainer_count(trainer, v));
        if (!vector) return context->error.status;
        if (v == DML_PARAMETERS)
            dml__graph_tensors(trainer->program->graph, vector, tensors);
        else
            count +=
                dml__state_tensors(trainer, v - DML_OPTIMIZER_STATE, vector, tensors + count, names + count);
    }
    char text[DML__RUN_PAIRS][DML__NUMBER_BYTES];
    dml__metadata pairs[DML__RUN_PAIRS];
    dml__write_run(trainer, text, pairs);
    return dml__safetensors_save(&context->memory, path, tensors, count, pairs, DML__RUN_PAIRS,
                                 &context->error);
}

static dml_status dml__trainer_save_in(dml_trainer *trainer, const char *path)
{
    dml_context *context = trainer->context;
    if (context->error.status != DML_OK) return context->error.status;
    const size_t most =
        (size_t)dml_graph_parameters(trainer->program->graph) * (size_t)(trainer->vectors - 1);
    dml__tensor *tensors = (dml__tensor *)dml__allocate_array(&context->memory, most, sizeof *tensors);
    char(*names)[2 * DML_NAME_BYTES] =
        (char(*)[2 * DML_NAME_BYTES]) dml__allocate_array(&context->memory, most, sizeof *names);
    const dml_status status = tensors && names
                                  ? dml__write_checkpoint(trainer, path, tensors, names)
                                  : dml__fail(&context->error, DML_ERROR_MEMORY,
                                              "no memory left to list a checkpoint's %zu tensors", most);
    dml__release(&context->memory, names);
    dml__release(&context->memory, tensors);
    return status;
}

DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path)
{
    if (!trainer || !path) return DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__trainer_save_in(trainer, path);
    dml__leave(trainer->context, entry);
    return status;
}

DML_API dml_status dml_trainer_check_save(dml_trainer *trainer, const char *path)
{
    if (!trainer || !path) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__file_check_writable(path, &context->error);
    dml__leave(context, entry);
    return status;
}

/* ---- reading ---- */

static dml_status dml__read_run(const dml_trainer *trainer, const dml__safetensors *file, const char *path,
                                dml_trainer_run *run)
{
    dml__error *error = &trainer->context->error;
    const char *kind = dml__safetensors_text(file, "dml.optimizer");
    uint64_t nesterov;
    memset(run, 0, sizeof *run);
    run->optimizer.kind = trainer->optimizer.kind;
    if (!kind)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds no training run; a model alone is loaded by dml_graph_load", path);
    if (strcmp(kind, trainer->row->name) != 0)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" was trained by %.32s, this trainer's optimizer is %s", path, kind,
                         trainer->row->name);
    if (!dml__read_real(dml__safetensors_text(file, "dml.lr"), &run->optimizer.lr) ||
        !dml__read_real(dml__safetensors_text(file, "dml.momentum"), &run->optimizer.momentum) ||
        !dml__read_real(dml__safetensors_text(file, "dml.weight_decay"), &run->optimizer.weight_decay) ||
        !dml__read_whole(dml__safetensors_text(file, "dml.nesterov"), &nesterov) || nesterov > 1 ||
        !dml__read_whole(dml__safetensors_text(file, "dml.seed"), &run->seed) ||
        !dml__read_whole(dml__safetensors_text(file, "dml.step"), &run->steps))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" lacks one of the numbers of a run (dml.lr, dml.momentum, dml.weight_decay, "
                         "dml.nesterov, dml.seed, dml.step), or has one that can't be",
                         path);
    run->optimizer.nesterov = nesterov == 1;
    return DML_OK;
}

/* Whether the run's optimizer keeps the state that the trainer's does, and the file has it. */
static dml_status dml__check_states(const dml_trainer *trainer, const dml__safetensors *file,
                                    const char *path, const dml_optimizer *optimizer)
{
    dml__error *error = &trainer->context->error;
    const int states = trainer->vectors - DML_OPTIMIZER_STATE, saved = trainer->row->states(optimizer);
    if (saved != states)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" was trained by %s with momentum %g and %d state vector%s, this trainer has "
                         "momentum %g and %d; is the momentum the same?",
                         path, trainer->row->name, (double)optimizer->momentum, saved, saved == 1 ? "" : "s",
                         (double)trainer->optimizer.momentum, states);
    dml_status status = DML_OK;
    for (int s = 0; s < states; s++)
        for (const dml_node *p = trainer->program->graph->first_parameter; p && status == DML_OK;
             p = p->next_parameter) {
            char name[2 * DML_NAME_BYTES];
            int found;
            dml__state_name(trainer->row->state[s], p->name, name);
            if (!p->frozen) status = dml__file_has(file, path, name, &p->shape, &found, error);
        }
    return status;
}

static dml_status dml__read_states(dml_trainer *trainer, dml__safetensors *file)
{
    dml_status status = DML_OK;
    for (int v = DML_OPTIMIZER_STATE; v < trainer->vectors && status == DML_OK; v++) {
        const size_t count = dml_trainer_count(trainer, v);
        float *vector = dml_trainer_host(trainer, v, 0, count);
        for (const dml_node *p = trainer->program->graph->first_parameter; p && status == DML_OK;
             p = p->next_parameter) {
            char name[2 * DML_NAME_BYTES];
            if (p->frozen) continue;
            dml__state_name(trainer->row->state[v - DML_OPTIMIZER_STATE], p->name, name);
            status = dml__safetensors_read(file, dml__safetensors_find(file, name), vector + p->offset,
                                           &trainer->context->error);
        }
        if (status == DML_OK) status = dml_trainer_put(trainer, v, 0, count);
    }
    return status;
}

static dml_status dml__load_open_checkpoint(dml_trainer *trainer, dml__safetensors *file, const char *path)
{
    dml_graph *graph = trainer->program->graph;
    dml_trainer_run run;
    dml_status status = dml__graph_fits_file(graph, file, path);
    if (status == DML_OK) status = dml__read_run(trainer, file, path, &run);
    if (status == DML_OK) status = dml__check_states(trainer, file, path, &run.optimizer);
    if (status == DML_OK && dml__check_optimizer(&run.optimizer, &trainer->context->error) != DML_OK)
        status = trainer->context->error.status = DML_ERROR_FORMAT;
    if (status != DML_OK || (status = dml__graph_claim_writing(graph)) != DML_OK) return status;
    status = dml__graph_read_file(graph, file);
    if (status == DML_OK) status = dml__read_states(trainer, file);
    dml__graph_release(graph, false);
    if (status != DML_OK) return status;
    trainer->held = 0;
    trainer->pending = false;
    return dml_trainer_set_run(trainer, &run); /* which has been checked */
}

DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path)
{
    if (!trainer || !path) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK) status = dml__safetensors_open_file(&context->memory, path, &file, &context->error);
    if (status == DML_OK) status = dml__load_open_checkpoint(trainer, file, path);
    dml__safetensors_close(file);
    dml__leave(context, entry);
    return status;
}

#endif

#endif

/* ---- train/progress.c ---- */

#ifndef DML_TRAIN_PROGRESS_C
#define DML_TRAIN_PROGRESS_C

#ifndef DML_NO_STDIO

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
#define DML__PROGRESS_TERMINALS
#elif defined(_WIN32)
#include <io.h>
#endif

#define DML__PROGRESS_INTERVAL 0.1 /* seconds between two drawings */
#define DML__PROGRESS_WINDOW 5.0   /* speeds are those of the last 5 to 10 seconds */
#define DML__PROGRESS_WIDEST 120
#define DML__PROGRESS_PART 40

static double dml__progress_now(const dml_progress *progress)
{
    const dml_progress_options *options = &progress->options;
    return options->seconds ? options->seconds(options->seconds_user) : dml_seconds();
}

static bool dml__progress_on_terminal(FILE *file)
{
#ifdef DML__PROGRESS_TERMINALS
    const int descriptor = fileno(file);
    const char *passed_on = getenv("DML_TERMINAL");
    if (descriptor < 0) return false;
    return isatty(descriptor) || (descriptor <= 9 && passed_on && strchr(passed_on, '0' + descriptor));
#elif defined(_WIN32)
    unsigned long mode; /* only of a console; _isatty also says so of NUL and of printers */
    const int descriptor = _fileno(file);
    const char *passed_on = getenv("DML_TERMINAL");
    if (descriptor < 0) return false;
    return dml__windows_GetConsoleMode((void *)_get_osfhandle(descriptor), &mode) ||
           (descriptor <= 9 && passed_on && strchr(passed_on, '0' + descriptor));
#else
    (void)file;
    return false;
#endif
}

static int dml__progress_width(const dml_progress *progress)
{
    int width = progress->options.width;
#ifdef DML__PROGRESS_TERMINALS
    struct winsize size;
    if (width <= 0 && ioctl(fileno(progress->file), TIOCGWINSZ, &size) == 0) width = size.ws_col;
#elif defined(_WIN32)
    short info[11];
    void *console = (void *)_get_osfhandle(_fileno(progress->file));
    if (width <= 0 && dml__windows_GetConsoleScreenBufferInfo(console, info))
        width = info[7] - info[5]; /* one less than there are: the last column would begin a new line */
#endif
    const char *columns = getenv("COLUMNS");
    if (width <= 0 && columns) width = atoi(columns);
    if (width <= 0) width = 80;
    return width < DML__PROGRESS_WIDEST ? width : DML__PROGRESS_WIDEST;
}

static void dml__progress_duration(char *text, size_t size, double seconds)
{
    if (seconds < 0) seconds = 0;
    if (seconds >= 100 * 3600.0) {
        snprintf(text, size, "  %.0f days left", seconds < 1e9 ? seconds / 86400 : 1e9 / 86400);
        return;
    }
    const int s = (int)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(text, size, "  %d:%02d:%02d left", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, size, "  %d:%02d left", s / 60, s % 60);
    }
}

static void dml__progress_rate(char *text, size_t size, double rate)
{
    if (rate >= 1e6) {
        snprintf(text, size, "  %.2fM samples/s", rate / 1e6);
    } else {
        snprintf(text, size, rate < 100 ? "  %.1f samples/s" : "  %.0f samples/s", rate);
    }
}

/* The parts of the line in the order in which they are shown. */
enum {
    DML__PROGRESS_LABEL,
    DML__PROGRESS_DONE,
    DML__PROGRESS_BAR,
    DML__PROGRESS_LOSS,
    DML__PROGRESS_RATE,
    DML__PROGRESS_LEFT,
    DML__PROGRESS_PARTS
};

static void dml__progress_bar(char *text, int columns, double done)
{
    const int inside = columns - 3; /* a blank and two brackets */
    const int full = (int)(done * inside);
    text[0] = ' ';
    text[1] = '[';
    for (int i = 0; i < inside; i++) text[2 + i] = i < full ? '=' : ' ';
    if (full < inside) text[2 + full] = '>';
    text[columns - 1] = ']';
    text[columns] = '\0';
}

/* Writes the line, at most `width` columns, and returns its length. What is worth most is fitted in first;
   the bar takes what room is left. */
static int dml__progress_compose(const dml_progress *progress, char *line, int width, double time,
                                 int64_t step, double loss, int64_t samples)
{
    static const int worth[] = { DML__PROGRESS_DONE, DML__PROGRESS_LOSS, DML__PROGRESS_LEFT,
                                 DML__PROGRESS_RATE, DML__PROGRESS_LABEL };
    enum { NARROWEST_BAR = 12, WIDEST_BAR = 53 };
    char part[DML__PROGRESS_PARTS][DML__PROGRESS_PART + WIDEST_BAR];
    memset(part, 0, sizeof part);
    const int64_t total = progress->options.total;
    const double elapsed = time - progress->mark[0].time;
    const double steps = (double)(step - progress->mark[0].step);
    const double counted = (double)(samples - progress->mark[0].samples);
    const double done = total > 0 && step < total ? (step > 0 ? (double)step / (double)total : 0) : 1;

    if (progress->options.label)
        snprintf(part[DML__PROGRESS_LABEL], DML__PROGRESS_PART, "%s  ", progress->options.label);
    if (total > 0) {
        snprintf(part[DML__PROGRESS_DONE], DML__PROGRESS_PART, "%3d %%", (int)(100 * done));
    } else {
        snprintf(part[DML__PROGRESS_DONE], DML__PROGRESS_PART, "step %lld", (long long)step);
    }
    const bool plain = loss < 1000 && loss > -1000; /* of one width, so that the bar stays where it is */
    snprintf(part[DML__PROGRESS_LOSS], DML__PROGRESS_PART, plain ? "  loss %.4f" : "  loss %.3g", loss);
    if (elapsed > 0 && counted > 0)
        dml__progress_rate(part[DML__PROGRESS_RATE], DML__PROGRESS_PART, counted / elapsed);
    if (elapsed > 0 && steps > 0 && total > 0)
        dml__progress_duration(part[DML__PROGRESS_LEFT], DML__PROGRESS_PART,
                               (double)(total - step) * elapsed / steps);

    int room = width;
    for (size_t i = 0; i < sizeof worth / sizeof worth[0]; i++) {
        const int length = (int)strlen(part[worth[i]]);
        if (length <= room) {
            room -= length;
        } else {
            part[worth[i]][0] = '\0';
        }
    }
    if (total > 0 && room >= NARROWEST_BAR)
        dml__progress_bar(part[DML__PROGRESS_BAR], room < WIDEST_BAR ? room : WIDEST_BAR, done);
    line[0] = '\0';
    for (int i = 0; i < DML__PROGRESS_PARTS; i++) strcat(line, part[i]);
    return (int)strlen(line);
}

/* Overwrites the bar with blanks: no terminal needs to know an escape sequence for it. */
static void dml__progress_wipe(dml_progress *progress)
{
    const int width = progress->drawn > 0 ? dml__progress_width(progress) - 1 : 0; /* it may have shrunk */
    const int blanks = progress->drawn < width ? progress->drawn : width;
    if (blanks > 0) fprintf(progress->file, "\r%*s\r", blanks, "");
    progress->drawn = 0;
    progress->next_draw = 0;
}

DML_API void dml_progress_begin(dml_progress *progress, FILE *file, const dml_progress_options *options)
{
    memset(progress, 0, sizeof *progress);
    progress->file = file;
    if (options) progress->options = *options;
    if (!file) return;
    const int asked = progress->options.terminal;
    progress->drawing = asked ? asked > 0 : dml__progress_on_terminal(file);
    progress->mark[0].time = progress->mark[1].time = dml__progress_now(progress);
}

DML_API void dml_progress_update(dml_progress *progress, int64_t step, double loss, int64_t samples)
{
    if (!progress->drawing) return;
    const double time = dml__progress_now(progress);
    if (time < progress->next_draw) return;
    progress->next_draw = time + DML__PROGRESS_INTERVAL;
    /* One column stays free: a terminal whose last column is written to may start a new line. */
    char line[2 * DML__PROGRESS_WIDEST];
    const int width = dml__progress_width(progress) - 1;
    const int length = dml__progress_compose(progress, line, width, time, step, loss, samples);
    const int before = progress->drawn < width ? progress->drawn : width;
    const int blanks = before > length ? before - length : 0;
    fprintf(progress->file, "\r%s%*s", line, blanks, "");
    fflush(progress->file);
    progress->drawn = length;
    if (time - progress->mark[1].time >= DML__PROGRESS_WINDOW) {
        progress->mark[0] = progress->mark[1];
        progress->mark[1].time = time;
        progress->mark[1].step = step;
        progress->mark[1].samples = samples;
    }
}

DML_API void dml_progress_line(dml_progress *progress, const char *format, ...)
{
    if (!progress->file) return;
    dml__progress_wipe(progress);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(progress->file, format, arguments);
    va_end(arguments);
    fputc('\n', progress->file);
    fflush(progress->file);
}

DML_API void dml_progress_end(dml_progress *progress)
{
    if (!progress->file) return;
    dml__progress_wipe(progress);
    fflush(progress->file);
    progress->drawing = false;
}

#endif
#endif

/* ---- train/idx.c ---- */

#ifndef DML_TRAIN_IDX_C
#define DML_TRAIN_IDX_C

#include <limits.h>
#include <string.h>

static uint32_t dml__idx_number(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* "signed bytes", ...; NULL for a number that is no type of the format. */
static const char *dml__idx_type_name(int type)
{
    switch (type) {
    case 0x08: return "unsigned bytes";
    case 0x09: return "signed bytes";
    case 0x0B: return "16-bit integers";
    case 0x0C: return "32-bit integers";
    case 0x0D: return "32-bit floats";
    case 0x0E: return "64-bit floats";
    default: return NULL;
    }
}

/* The four bytes that say what the file is. */
static dml_status dml__idx_magic(dml__error *error, const char *name, const unsigned char *at, size_t size)
{
    if (size >= 2 && at[0] == 0x1F && at[1] == 0x8B)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is packed with gzip: unpack it with make data, or gunzip", name);
    if (size < 4 || at[0] != 0 || at[1] != 0 || !dml__idx_type_name(at[2]))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is not an IDX file: %s", name,
                         size < 4 ? "it has less than 4 bytes" : "its first bytes are others");
    if (at[2] != 0x08)
        return dml__fail(error, DML_ERROR_FORMAT, "%s holds %s; only unsigned bytes can be read", name,
                         dml__idx_type_name(at[2]));
    if (at[3] < 1 || at[3] > DML_IDX_DIMS)
        return dml__fail(error, DML_ERROR_FORMAT, "%s has %d dimensions; 1 to %d can be read", name, at[3],
                         DML_IDX_DIMS);
    return DML_OK;
}

DML_API dml_status dml_idx_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                 dml_idx *out)
{
    if (!out) return DML_ERROR_ARGUMENT;
    memset(out, 0, sizeof *out);
    if (!context || (!bytes && size)) return DML_ERROR_ARGUMENT;
    const unsigned char *at = (const unsigned char *)bytes;
    dml__error *error = &context->error;
    const dml_status status = dml__idx_magic(error, name, at, size);
    if (status != DML_OK) return status;
    const int ndim = at[3];
    const size_t header = 4 + 4 * (size_t)ndim;
    if (size < header)
        return dml__fail(error, DML_ERROR_FORMAT, "%s is cut short: it ends inside its header", name);

    dml_idx idx;
    memset(&idx, 0, sizeof idx);
    idx.ndim = ndim;
    for (int i = 0; i < DML_IDX_DIMS; i++) idx.dims[i] = 1;
    const uint64_t present = size - header;
    uint64_t elements = 1;
    for (int i = 0; i < ndim; i++) {
        const uint32_t dim = dml__idx_number(at + 4 + 4 * i);
        if (dim == 0)
            return dml__fail(error, DML_ERROR_FORMAT, "%s holds nothing: its dimension %d is 0", name, i);
        if (dim > INT_MAX || dim > present / elements)
            return dml__fail(error, DML_ERROR_FORMAT,
                             "%s is cut short: its dimensions ask for more than the %llu bytes it holds",
                             name, (unsigned long long)present);
        idx.dims[i] = (int)dim;
        elements *= dim;
    }
    if (elements != present)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s goes on after its end: its dimensions ask for %llu bytes and "
                         "it holds %llu",
                         name, (unsigned long long)elements, (unsigned long long)present);
    idx.data = at + header;
    *out = idx;
    return DML_OK;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_idx_load(dml_context *context, const char *path, dml_idx *out)
{
    if (!out) return DML_ERROR_ARGUMENT;
    memset(out, 0, sizeof *out);
    if (!context || !path) return DML_ERROR_ARGUMENT;
    void *bytes;
    size_t size;
    dml_status status = dml__file_read(&context->memory, path, SIZE_MAX, &bytes, &size, &context->error);
    if (status != DML_OK) return status;
    status = dml_idx_parse(context, path, bytes, size, out);
    if (status == DML_OK) {
        out->block = bytes;
    } else {
        dml__release(&context->memory, bytes);
    }
    return status;
}
#endif

DML_API void dml_idx_free(dml_context *context, dml_idx *idx)
{
    if (!idx) return;
    if (context && idx->block) dml__release(&context->memory, idx->block);
    memset(idx, 0, sizeof *idx);
}

#endif

#endif
