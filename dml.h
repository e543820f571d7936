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
#if defined(__MINGW32__) && !defined(__clang__)
#define DML__PRINTF(position, first) __attribute__((format(gnu_printf, position, first)))
#else
#define DML__PRINTF(position, first) __attribute__((format(printf, position, first)))
#endif
#else
#define DML__UNUSED
#define DML__NOINLINE
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
   that names no instruction set.) */
DML_API dml_isa dml_cpu_isa(void);

/* How many processors this process may run on (its affinity mask), at least 1. */
DML_API int dml_cpu_count(void);

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
    int threads;             /* 0: one for each processor in the affinity mask; 1: none but the caller */
    int spin;                /* pauses a worker spins before it sleeps; 0: 1000, or none when there are
                                more threads than processors; -1: none */
    dml_allocator allocator; /* zero: malloc */
    dml_scratch scratch;     /* as by dml_pool_reserve; zero: none yet */
    /* A host that has threads of its own lends them: called with the number of tasks, it must call
       run(run_argument, task, worker) once for each task, on any threads, each worker number of
       0 .. workers - 1 on one thread at a time, and return when all have ended. A team of threads that is
       larger than `workers` leaves the rest idle. The pool then starts no threads. */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
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

/* Runs `task` for 0 .. tasks - 1 and returns when all have ended. NULL runs them in order on the caller. The
   tasks are handed out one at a time, so which worker runs which differs from run to run: a result that must
   repeat may depend on the task's number only. */
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
   leading dimension that is too small, or an unknown layout or transpose; C is then untouched. */
DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc);

/* The scratch with which the row-major product m x n x k is fastest, for dml_pool_reserve; it depends on
   dml_cpu_isa. (A column-major product is the row-major one n x m x k.) At most 0.8 MB a worker, and 256 KiB
   shared; little for small products; zeros where a size is below 1. */
DML_API dml_scratch dml_sgemm_scratch(int m, int n, int k);

#endif

/* ---- kernels/conv2d.h ---- */

/* conv2d.h: two-dimensional convolution on raw arrays. */
#ifndef DML_KERNELS_CONV2D_H
#define DML_KERNELS_CONV2D_H

/* x (N, H, W, C), w (F, KH, KW, C), bias (F), y (N, OH, OW, F). Padding is with zeros, the same on both
 * sides. */
typedef struct dml_conv2d_shape {
    int batch, height, width, channels; /* N, H, W, C */
    int filters;                        /* F */
    int kernel_h, kernel_w;
    int stride_h, stride_w;
    int pad_h, pad_w;
} dml_conv2d_shape;

/* (in + 2 pad - kernel) / stride + 1, or 0 when the kernel doesn't fit. */
DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad);

/* Each returns DML_ERROR_ARGUMENT for a shape with a size below 1 (batch may be 0, pads are 0 or more), a
   kernel that doesn't fit, or arrays larger than any memory, before anything is written. Bitwise the same for
   any number of threads and any scratch of the pool; allocates nothing. */

/* y = conv(x, w) + bias; bias may be NULL. */
DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y);

/* dx = dconv/dx^T dy + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx);

/* dw = dconv/dw^T dy + beta dw. (The bias gradient is dml_sum_rows of dy.) */
DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw);

/* The scratch with which the forward product is fastest, or, when training, each of the three, for
   dml_pool_reserve; it depends on dml_cpu_isa. Zeros for a bad shape. */
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

/* dx = the dy of the windows that each input won + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx);

/* y = the mean of each window's inputs; padding is not counted. */
DML_API dml_status dml_avg_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y);
DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx);

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

/* y = max(x, 0); dx = (y > 0 ? dy : 0) + beta dx */
DML_API void dml_relu_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_relu_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = tanh(x) to within 1e-6; dx = (1 - y^2) dy + beta dx */
DML_API void dml_tanh_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_tanh_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = 1 / (1 + exp(-x)); dx = y (1 - y) dy + beta dx */
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
   first, so no finite logit overflows. */
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
    int threads;   /* of the CPU pool; 0: one for each processor in the affinity mask */
    uint64_t seed; /* of every random number; 0 is a seed like any other */
    dml_allocator allocator; /* zero: malloc and free */
    void *memory; /* or: one buffer that everything on the host comes from, the caller's until close */
    size_t memory_bytes;
    dml_log_callback log; /* NULL: silence */
    void *log_user;
    const dml_pool_options *pool; /* NULL, or how the pool spins and whose threads it uses; its threads count
                                     when those above are 0, its allocator never */
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

/* Runs forward on `rows` samples, 1 .. batch. inputs[i] holds `rows` samples for dml_program_input(i), and
   `count` is how many inputs there are, else DML_ERROR_ARGUMENT; `output`, when not NULL, receives the output
   (for each sample, if it has one for each). Labels that are out of range are DML_ERROR_ARGUMENT, before
   anything is run. DML_ERROR_STATE, with nothing run, when another thread is in the program or, but for
   programs with a thread of their own, in its context, and while the parameters are being written. */
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
   again), and the floating-point operations of its forward pass for one sample; then the totals.
   DML_ERROR_IO, recorded on the context, when the file can't be written. */
DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file);

/* Writes the graph in the language of Graphviz: `dot -Tsvg` draws it. */
DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file);

#endif

#endif

/* ---- ops/op_arithmetic.h ---- */

/* op_arithmetic.h: sums and changes of shape. */
#ifndef DML_OPS_OP_ARITHMETIC_H
#define DML_OPS_OP_ARITHMETIC_H

/* a + b, of the same shape; also for scalar losses. DML_ERROR_SHAPE when they differ. */
DML_API dml_node *dml_add(dml_node *a, dml_node *b);

/* (d0, d1, ...) as (d0 d1 ...): no data moves. */
DML_API dml_node *dml_flatten(dml_node *x);

#endif

/* ---- ops/op_activation.h ---- */

/* op_activation.h: functions of one element. */
#ifndef DML_OPS_OP_ACTIVATION_H
#define DML_OPS_OP_ACTIVATION_H

DML_API dml_node *dml_relu(dml_node *x);    /* max(x, 0) */
DML_API dml_node *dml_tanh(dml_node *x);    /* tanh(x) */
DML_API dml_node *dml_sigmoid(dml_node *x); /* 1 / (1 + exp(-x)) */

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
} dml_conv2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [filters, kh, kw, C],
   He-initialised, bias zero. OH = (H + 2 padding - kh) / stride + 1. */
DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options);

/* The same on parameters of the caller's: shared with another layer, begun in another way, frozen. w
   [filters, kh, kw, C] says how many filters and how large a kernel, and the options must not say otherwise;
   bias (filters) or NULL for none. NULL options: all defaults. */
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

/* Forward and backward on `rows` samples; w stays. g is then the mean, over all samples that it holds, of the
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

/* cpu_internal.h: what the environment says of the processor. */
#ifndef DML_BASE_CPU_INTERNAL_H
#define DML_BASE_CPU_INTERNAL_H

/* False when the environment variable DML_ISA names no instruction set; *wanted is then what it says. Unset
   and empty are fine. */
DML__LOCAL bool dml__cpu_isa_known(const char **wanted);

#endif

#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

DML_API const char *dml_isa_name(dml_isa isa)
{
    static const char *const names[] = { "scalar", "neon", "avx2", "avx512" };
    return (unsigned)isa < DML__ISA_COUNT ? names[isa] : "?";
}

static dml_isa dml__detect_isa(void)
{
#if defined(DML__HAS_AVX2)
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
    if (!*wanted || !**wanted) return true;
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        if (strcmp(*wanted, dml_isa_name((dml_isa)isa)) == 0) return true;
    return false;
}

DML_API int dml_cpu_count(void)
{
#if defined(_WIN32)
    /* The mask is 0 for a process in several groups of processors (of more than 64). */
    size_t mine = 0, everyones = 0;
    int count = 0;
    if (dml__windows_GetProcessAffinityMask(dml__windows_GetCurrentProcess(), &mine, &everyones))
        for (; mine; mine &= mine - 1) count++;
    if (count == 0) count = (int)dml__windows_GetActiveProcessorCount(0xFFFF);
    if (count > 0) return count;
#endif
#if defined(__linux__) && defined(CPU_COUNT)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
#if defined(_SC_NPROCESSORS_ONLN)
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0) return (int)online;
#endif
    return 1;
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

/* How a loop runs. The caller writes `tasks`, `task` and `argument`, then publishes `unclaimed`. A worker
   claims a task by decrementing `unclaimed` from a positive value, and only then reads the other three: until
   that task is counted off `unfinished`, the loop can't end and they can't change. So a worker that is late
   for a loop does no harm, and nobody waits for a worker that has claimed nothing.

   In a process that fork() made, the workers are missing, which is just as if all were late; the mutex may be
   held by one that isn't there, so it and the condition are left alone there. Only who is about to make a
   system call asks what process it is in. */
struct dml_pool {
    dml__memory memory;
    int threads;
    int spin;
    int started;  /* threads running, at most threads - 1 */
    long process; /* where they run */
    void (*host_parallel)(void *host, int workers, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    dml_scratch scratch;
    char *scratch_memory; /* (threads, scratch.worker aligned), then scratch.shared; NULL: none */
    struct dml__pool_worker *workers;
    int tasks;
    dml_pool_task task;
    void *argument;
    dml__mutex mutex; /* these two where there is no futex */
    dml__cond cond;
    /* What the threads share is on cache lines of its own. */
    char pad0[DML__ALIGNMENT];
    int unclaimed; /* tasks not yet claimed; -1: the pool is being destroyed */
    int sleepers;  /* workers that sleep, or are about to, until unclaimed != 0 */
    char pad1[DML__ALIGNMENT];
    int unfinished;    /* tasks not yet ended */
    int caller_sleeps; /* until unfinished == 0 */
    char pad2[DML__ALIGNMENT];
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

/* Claims and runs tasks until none is left, and returns how many it ran. */
static int dml__pool_work(dml_pool *pool, int worker)
{
    int ran = 0;
    int unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED);
    while (unclaimed > 0) {
        if (!__atomic_compare_exchange_n(&pool->unclaimed, &unclaimed, unclaimed - 1, true, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        pool->task(pool->argument, pool->tasks - unclaimed, worker);
        ran++;
        unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED);
    }
    return ran;
}

static void dml__pool_worker_main(void *argument)
{
    const dml__pool_worker *self = (const dml__pool_worker *)argument;
    dml_pool *pool = self->pool;
    for (;;) {
        int unclaimed = 0;
        for (int i = 0; i < pool->spin; i++) {
            unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_RELAXED);
            if (unclaimed) break;
            dml__pause();
        }
        if (unclaimed == 0) {
            /* The count goes up before the kernel looks at the word, and the caller looks at the count after
               it has written the word: one of the two sees the other. */
            __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
            while ((unclaimed = __atomic_load_n(&pool->unclaimed, __ATOMIC_SEQ_CST)) == 0)
                dml__pool_sleep(pool, &pool->unclaimed, 0);
            __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
        }
        if (unclaimed < 0) return;
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
    for (int i = 0; i < pool->spin; i++) {
        if (__atomic_load_n(&pool->unfinished, __ATOMIC_ACQUIRE) == 0) return;
        dml__pause();
    }
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

static int dml__pool_count_threads(const dml_pool_options *options)
{
#ifdef DML_NO_THREADS
    if (!options->host_parallel) return 1;
#endif
    return options->threads ? options->threads : dml_cpu_count();
}

static int dml__pool_count_spins(const dml_pool_options *options, int threads)
{
    if (options->spin) return options->spin < 0 ? 0 : options->spin;
    /* With more threads than processors, who spins keeps from working who has work. */
    return threads > dml_cpu_count() ? 0 : 1000;
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
    const dml_pool_options defaults = { 0, 0, { NULL, NULL, NULL }, { 0, 0 }, NULL, NULL };
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
    pool->threads = dml__pool_count_threads(options);
    pool->spin = dml__pool_count_spins(options, pool->threads);
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

/* A panel of A times a panel of B into a tile of C:
       C[i][j] = alpha * sum over p < k of a[p * rows + i] * b[p * b_step + j]  +  beta * C[i][j]
   With beta = 0, C is not read. */
typedef struct dml__tile {
    int k;
    const float *a; /* (k, rows) */
    const float *b; /* (k, b_step), of which the first columns count */
    ptrdiff_t b_step;
    float alpha, beta;
    float *c; /* (rows, ldc) */
    ptrdiff_t ldc;
} dml__tile;

/* `run` takes any tile of 1 .. rows rows and 1 .. vectors times `lanes` columns. An element's bits depend on
   its own row of A and column of B alone, not on the tile it is computed in: it is one chain of multiply-adds
   over p in order. That is why results don't change with the number of threads. */
typedef struct dml__microkernel {
    int rows, vectors, lanes;
    void (*run)(const dml__tile *tile, int rows, int vectors);
} dml__microkernel;

/* Bounds over all instruction sets. */
#define DML__TILE_ROWS 14
#define DML__TILE_COLUMNS 32

/* The micro-kernel for dml_cpu_isa(). */
DML__LOCAL const dml__microkernel *dml__microkernel_get(void);

#endif

#if defined(DML__HAS_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Each instruction set has one function, written for any number of rows and vectors, and inlined with both
   constant into the cases of a switch. All its loops but the one over p are then unrolled, which puts the
   accumulators into registers. The targets are the functions' own, so that -O2 alone gives full speed; what
   is inlined must have the same target as what it is inlined into. */
#if defined(__clang__)
#define DML__UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DML__UNROLL _Pragma("GCC unroll 16")
#else
#define DML__UNROLL
#endif
#if defined(__GNUC__)
#define DML__INLINE static inline __attribute__((always_inline))
#define DML__TARGET(isa) __attribute__((target(isa)))
#else
#define DML__INLINE static inline
#define DML__TARGET(isa)
#endif

#define DML__TILE_CASE(compute, r)                                                                           \
    case r:                                                                                                  \
        if (vectors == 1)                                                                                    \
            compute(tile, r, 1);                                                                             \
        else                                                                                                 \
            compute(tile, r, 2);                                                                             \
        break;

/* Plain C; four columns make a vector for compilers that can see one. */
DML__INLINE void dml__compute_scalar(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    float sum[4][4] = { { 0 } };
    (void)vectors;
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            DML__UNROLL
            for (int j = 0; j < 4; j++) sum[i][j] += a[i] * b[j];
        }
    }
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < 4; j++) {
            const float old = tile->beta == 0 ? 0 : tile->beta * c[j];
            c[j] = tile->alpha * sum[i][j] + old;
        }
    }
}

static void dml__run_scalar(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_scalar, 1)
        DML__TILE_CASE(dml__compute_scalar, 2)
        DML__TILE_CASE(dml__compute_scalar, 3)
        DML__TILE_CASE(dml__compute_scalar, 4)
    }
}

#if defined(DML__HAS_AVX2)

/* 6 x 2 accumulators, 2 vectors of B and one broadcast of A: 15 of 16 registers. */
DML__TARGET("avx2,fma")
DML__INLINE void dml__compute_avx2(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    __m256 sum[6][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_setzero_ps();
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = _mm256_loadu_ps(b + 8 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            const __m256 value = _mm256_broadcast_ss(a + i);
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm256_fmadd_ps(value, row[j], sum[i][j]);
        }
    }
    const __m256 alpha = _mm256_set1_ps(tile->alpha), beta = _mm256_set1_ps(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            __m256 result = _mm256_mul_ps(alpha, sum[i][j]);
            if (tile->beta != 0) result = _mm256_fmadd_ps(beta, _mm256_loadu_ps(c + 8 * j), result);
            _mm256_storeu_ps(c + 8 * j, result);
        }
    }
}

DML__TARGET("avx2,fma") static void dml__run_avx2(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_avx2, 1)
        DML__TILE_CASE(dml__compute_avx2, 2)
        DML__TILE_CASE(dml__compute_avx2, 3)
        DML__TILE_CASE(dml__compute_avx2, 4)
        DML__TILE_CASE(dml__compute_avx2, 5)
        DML__TILE_CASE(dml__compute_avx2, 6)
    }
}

#endif
#if defined(DML__HAS_AVX512)

#define DML__AVX512 "avx512f,avx512vl,avx512bw,avx512dq"

/* 14 x 2 accumulators, 2 vectors of B and one broadcast of A: 31 of 32 registers. */
DML__TARGET(DML__AVX512)
DML__INLINE void dml__compute_avx512(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    __m512 sum[14][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_setzero_ps();
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = _mm512_loadu_ps(b + 16 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            const __m512 value = _mm512_set1_ps(a[i]);
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_fmadd_ps(value, row[j], sum[i][j]);
        }
    }
    const __m512 alpha = _mm512_set1_ps(tile->alpha), beta = _mm512_set1_ps(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            __m512 result = _mm512_mul_ps(alpha, sum[i][j]);
            if (tile->beta != 0) result = _mm512_fmadd_ps(beta, _mm512_loadu_ps(c + 16 * j), result);
            _mm512_storeu_ps(c + 16 * j, result);
        }
    }
}

DML__TARGET(DML__AVX512) static void dml__run_avx512(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_avx512, 1)
        DML__TILE_CASE(dml__compute_avx512, 2)
        DML__TILE_CASE(dml__compute_avx512, 3)
        DML__TILE_CASE(dml__compute_avx512, 4)
        DML__TILE_CASE(dml__compute_avx512, 5)
        DML__TILE_CASE(dml__compute_avx512, 6)
        DML__TILE_CASE(dml__compute_avx512, 7)
        DML__TILE_CASE(dml__compute_avx512, 8)
        DML__TILE_CASE(dml__compute_avx512, 9)
        DML__TILE_CASE(dml__compute_avx512, 10)
        DML__TILE_CASE(dml__compute_avx512, 11)
        DML__TILE_CASE(dml__compute_avx512, 12)
        DML__TILE_CASE(dml__compute_avx512, 13)
        DML__TILE_CASE(dml__compute_avx512, 14)
    }
}

#endif
#if defined(__aarch64__)

/* 12 x 2 accumulators, 2 vectors of B and 3 of A: 29 of 32 registers. */
DML__INLINE void dml__compute_neon(const dml__tile *tile, const int rows, const int vectors)
{
    const float *a = tile->a, *b = tile->b;
    float32x4_t sum[12][2], row[2];
    DML__UNROLL
    for (int i = 0; i < rows; i++) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) sum[i][j] = vdupq_n_f32(0);
    }
    for (int p = 0; p < tile->k; p++, a += rows, b += tile->b_step) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) row[j] = vld1q_f32(b + 4 * j);
        DML__UNROLL
        for (int i = 0; i < rows; i++) {
            DML__UNROLL
            for (int j = 0; j < vectors; j++) sum[i][j] = vfmaq_n_f32(sum[i][j], row[j], a[i]);
        }
    }
    const float32x4_t alpha = vdupq_n_f32(tile->alpha), beta = vdupq_n_f32(tile->beta);
    float *c = tile->c;
    DML__UNROLL
    for (int i = 0; i < rows; i++, c += tile->ldc) {
        DML__UNROLL
        for (int j = 0; j < vectors; j++) {
            float32x4_t result = vmulq_f32(alpha, sum[i][j]);
            if (tile->beta != 0) result = vfmaq_f32(result, beta, vld1q_f32(c + 4 * j));
            vst1q_f32(c + 4 * j, result);
        }
    }
}

static void dml__run_neon(const dml__tile *tile, int rows, int vectors)
{
    switch (rows) {
        DML__TILE_CASE(dml__compute_neon, 1)
        DML__TILE_CASE(dml__compute_neon, 2)
        DML__TILE_CASE(dml__compute_neon, 3)
        DML__TILE_CASE(dml__compute_neon, 4)
        DML__TILE_CASE(dml__compute_neon, 5)
        DML__TILE_CASE(dml__compute_neon, 6)
        DML__TILE_CASE(dml__compute_neon, 7)
        DML__TILE_CASE(dml__compute_neon, 8)
        DML__TILE_CASE(dml__compute_neon, 9)
        DML__TILE_CASE(dml__compute_neon, 10)
        DML__TILE_CASE(dml__compute_neon, 11)
        DML__TILE_CASE(dml__compute_neon, 12)
    }
}

#endif

DML__LOCAL const dml__microkernel *dml__microkernel_get(void)
{
    static const dml__microkernel scalar = { 4, 1, 4, dml__run_scalar };
#if defined(DML__HAS_AVX512)
    static const dml__microkernel avx512 = { 14, 2, 16, dml__run_avx512 };
    if (dml_cpu_isa() == DML_ISA_AVX512) return &avx512;
#endif
#if defined(DML__HAS_AVX2)
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2 };
    if (dml_cpu_isa() == DML_ISA_AVX2) return &avx2;
#elif defined(__aarch64__)
    static const dml__microkernel neon = { 12, 2, 4, dml__run_neon };
    if (dml_cpu_isa() == DML_ISA_NEON) return &neon;
#endif
    return &scalar;
}

#endif

/* ---- kernels/product.c ---- */

#ifndef DML_KERNELS_PRODUCT_C
#define DML_KERNELS_PRODUCT_C

/* ---- kernels/product.h ---- */

/* product.h: the blocked loop around the micro-kernel, which matrix products and convolutions share. */
#ifndef DML_KERNELS_PRODUCT_H
#define DML_KERNELS_PRODUCT_H

/* k is cut into blocks of this many, always, and C is their sum in order. */
#define DML__PRODUCT_KC 256

/* One factor of a product: `lane` counts the rows of A, or the columns of B. `pack` writes lanes
   first .. first + lanes - 1 for k0 <= k < k0 + kc as a panel, out[(k - k0) * width + lane - first], with
   zeros in lanes lanes .. width - 1; lanes <= width <= DML__TILE_COLUMNS, kc <= DML__PRODUCT_KC. */
typedef struct dml__factor {
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    const void *source;
} dml__factor;

/* A plain matrix as the source of a factor: element (lane, k) is x[lane * lane_step + k * k_step]. One of the
   two steps is 1. */
typedef struct dml__matrix {
    const float *x;
    ptrdiff_t lane_step, k_step;
} dml__matrix;

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out);

/* out[k * width + lane] = x[lane * lane_step + k], lane < lanes, k < kc: for packers. */
DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, int width,
                                     float *out);

/* C = alpha A B + beta C + bias */
typedef struct dml__product {
    ptrdiff_t m, n, k;
    dml__factor a; /* m lanes */
    dml__factor b; /* n lanes */
    float alpha, beta;
    const float *bias; /* (n), or NULL; beta is then 0 */
    float *c;          /* (m, ldc), of which n columns count */
    ptrdiff_t ldc;
} dml__product;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. With less scratch than
   dml__product_scratch says it packs on the stack, in smaller blocks, and so packs more often. */
DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product);

/* What a product of that size uses, on the instruction set that dml_cpu_isa says; zeros for an empty one. */
DML__LOCAL dml_scratch dml__product_scratch(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k);

#endif

#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* A small C under a long k has too few tiles to share among threads. Its k is then cut into at most
   DML__CHUNKS chunks, whose partial sums are added up in order. Whether and where to cut depends on the sizes
   alone. */
#define DML__CHUNKS 16
#define DML__CHUNKED_C 4096 /* elements of C, at most */

/* A worker's scratch holds a panel of A and behind it panels of B, of this many columns at most; the shared
   scratch holds the partial sums of the chunks. */
#define DML__PACK_COLUMNS 752

/* Where the scratch is too small, the stack of whoever computes holds one full panel of each factor; what
   needs little takes little of it. */
#define DML__STACK_FLOATS (DML__PRODUCT_KC * (DML__TILE_ROWS + DML__TILE_COLUMNS))
#define DML__SMALL_STACK_FLOATS 1536
#define DML__STACK_SLACK (DML__ALIGNMENT / sizeof(float))

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

static ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return a / b + (a % b != 0);
}

static ptrdiff_t dml__round_up(ptrdiff_t a, ptrdiff_t b)
{
    return dml__quotient_up(a, b) * b;
}

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
    for (; lane < lanes; lane++)
        for (int k = 0; k < kc; k++) out[k * width + lane] = x[lane * lane_step + k];
}

DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out)
{
    const dml__matrix *m = (const dml__matrix *)matrix;
    const float *x = m->x + first * m->lane_step + k0 * m->k_step;
    if (lanes < width) memset(out, 0, (size_t)kc * (size_t)width * sizeof *out);
    if (m->lane_step != 1)
        dml__pack_transposed(x, m->lane_step, lanes, kc, width, out);
    else
        for (int k = 0; k < kc; k++, x += m->k_step, out += width)
            memcpy(out, x, (size_t)lanes * sizeof *out);
}

/* The rows and columns of C, and the part of k, that one task computes. */
typedef struct dml__range {
    ptrdiff_t i0, i1, j0, j1, k0, k1;
} dml__range;

/* What is computed: the product, or, for a narrow C, the transposed one: vectors are then made of C's rows,
   which there are more of than of columns. The caller's C stays as it is. */
typedef struct dml__job {
    dml__product product;
    const dml__microkernel *kernel;
    bool transposed; /* product.c is then the transpose of the caller's C, and product.bias goes along rows */
} dml__job;

static dml__job dml__plan_product(const dml__product *product)
{
    const dml__job plain = { *product, dml__microkernel_get(), false };
    const dml__microkernel *kernel = plain.kernel;
    if (product->n > kernel->rows || product->n >= product->m) return plain;
    if (product->n * 4 > dml__round_up(product->n, kernel->lanes) * 3) return plain;
    dml__job job = plain;
    job.transposed = true;
    job.product.m = product->n;
    job.product.n = product->m;
    job.product.a = product->b;
    job.product.b = product->a;
    return job;
}

/* Where element (i, j) of the job's product lies. */
static inline float *dml__job_c(const dml__job *job, ptrdiff_t i, ptrdiff_t j)
{
    return job->product.c + (job->transposed ? j * job->product.ldc + i : i * job->product.ldc + j);
}

/* A tile that sticks out of C, or lies across it, is computed on the side by the very same instructions. */
static void dml__side_tile(const dml__job *job, const dml__tile *tile, int rows, int columns)
{
    float side[DML__TILE_ROWS * DML__TILE_COLUMNS];
    const int vectors = (columns + job->kernel->lanes - 1) / job->kernel->lanes;
    const ptrdiff_t width = (ptrdiff_t)vectors * job->kernel->lanes;
    const ptrdiff_t row_step = job->transposed ? 1 : tile->ldc, column_step = job->transposed ? tile->ldc : 1;
    dml__tile whole = *tile;
    whole.c = side;
    whole.ldc = width;
    if (tile->beta != 0) {
        memset(side, 0, (size_t)rows * (size_t)width * sizeof *side);
        for (int j = 0; j < columns; j++)
            for (int i = 0; i < rows; i++) side[i * width + j] = tile->c[i * row_step + j * column_step];
    }
    job->kernel->run(&whole, rows, vectors);
    for (int j = 0; j < columns; j++)
        for (int i = 0; i < rows; i++) tile->c[i * row_step + j * column_step] = side[i * width + j];
}

/* C = bias, in a tile. */
static void dml__bias_tile(const dml__job *job, ptrdiff_t i0, int rows, ptrdiff_t j0, int columns)
{
    const float *bias = job->product.bias + (job->transposed ? i0 : j0);
    const int lines = job->transposed ? columns : rows, length = job->transposed ? rows : columns;
    float *line = dml__job_c(job, i0, j0);
    for (int l = 0; l < lines; l++, line += job->product.ldc)
        memcpy(line, bias, (size_t)length * sizeof *bias);
}

/* The columns of B can be used in place; packing them pays only when several panels of A use them. */
static bool dml__use_in_place(const dml__job *job, const dml__range *range)
{
    const dml__factor *b = &job->product.b;
    return b->pack == dml__pack_matrix && ((const dml__matrix *)b->source)->lane_step == 1 &&
           range->i1 - range->i0 <= 2 * job->kernel->rows;
}

/* Floats of a panel of A of this height, up to where the panels of B begin: aligned, or loads would cross
   cache lines. */
static ptrdiff_t dml__panel_a_floats(ptrdiff_t kc, ptrdiff_t rows)
{
    return dml__round_up(kc * rows, DML__ALIGNMENT / (ptrdiff_t)sizeof(float));
}

/* How many columns of B to pack at most. Where A is a single panel, that is packed again for each piece of B,
   which with 16 columns a row is next to nothing; so not all of B, which may be a layer's weights, need be
   held. */
static ptrdiff_t dml__columns_at_most(const dml__job *job)
{
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, most = DML__PACK_COLUMNS / full * full;
    return job->product.m > kernel->rows ? most
                                         : dml__smaller(most, dml__round_up(16 * job->product.m, full));
}

/* Floats that a range takes when its columns are packed `columns` at a time. */
static ptrdiff_t dml__range_floats(const dml__microkernel *kernel, ptrdiff_t rows, ptrdiff_t columns,
                                   ptrdiff_t k)
{
    const ptrdiff_t kc = dml__smaller(k, DML__PRODUCT_KC);
    return dml__panel_a_floats(kc, dml__smaller(rows, kernel->rows)) +
           kc * dml__round_up(columns, kernel->lanes);
}

/* Computes a range whose panels of B for one block of k fit behind a panel of A in `panels`. */
static void dml__multiply_range(const dml__job *job, const dml__range *range, float *panels)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const int full = kernel->lanes * kernel->vectors;
    const bool in_place = dml__use_in_place(job, range);
    const ptrdiff_t most_k = dml__smaller(DML__PRODUCT_KC, range->k1 - range->k0);
    float *panel_a = panels; /* (kc, rows) */
    float *panels_b = panels + dml__panel_a_floats(most_k, dml__smaller(kernel->rows, range->i1 - range->i0));
    /* (columns / full, kc, full) */
    for (ptrdiff_t k0 = range->k0; k0 < range->k1; k0 += DML__PRODUCT_KC) {
        const bool first = k0 == range->k0;
        dml__tile tile;
        tile.k = (int)dml__smaller(DML__PRODUCT_KC, range->k1 - k0);
        tile.alpha = product->alpha;
        tile.beta = first && !product->bias ? product->beta : 1;
        tile.ldc = product->ldc;
        for (ptrdiff_t i = range->i0; i < range->i1; i += kernel->rows) {
            const int rows = (int)dml__smaller(kernel->rows, range->i1 - i);
            product->a.pack(product->a.source, i, rows, k0, tile.k, rows, panel_a);
            tile.a = panel_a;
            for (ptrdiff_t j = range->j0; j < range->j1; j += full) {
                const int columns = (int)dml__smaller(full, range->j1 - j);
                const int width = (int)dml__round_up(columns, kernel->lanes);
                float *panel_b = panels_b + (j - range->j0) * tile.k;
                tile.b = panel_b;
                tile.b_step = width;
                if (in_place && columns == width) {
                    const dml__matrix *b = (const dml__matrix *)product->b.source;
                    tile.b = b->x + j + k0 * b->k_step;
                    tile.b_step = b->k_step;
                } else if (i == range->i0) {
                    product->b.pack(product->b.source, j, columns, k0, tile.k, width, panel_b);
                }
                tile.c = dml__job_c(job, i, j);
                if (first && product->bias) dml__bias_tile(job, i, rows, j, columns);
                if (columns == width && !job->transposed)
                    kernel->run(&tile, rows, width / kernel->lanes);
                else
                    dml__side_tile(job, &tile, rows, columns);
            }
        }
    }
}

static float *dml__aligned_floats(float *memory)
{
    return memory + (size_t)(-(intptr_t)memory & (DML__ALIGNMENT - 1)) / sizeof *memory;
}

/* Computes any range with room for `floats`, which take at least one full panel of B: as many columns at a
   time as fit. */
static void dml__multiply_within(const dml__job *job, const dml__range *range, float *panels,
                                 ptrdiff_t floats)
{
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors;
    const ptrdiff_t kc = dml__smaller(DML__PRODUCT_KC, range->k1 - range->k0);
    const ptrdiff_t panel_a = dml__panel_a_floats(kc, dml__smaller(kernel->rows, range->i1 - range->i0));
    /* Whole vectors, since that is what a panel of fewer columns is padded to. */
    ptrdiff_t step = (floats - panel_a) / kc / kernel->lanes * kernel->lanes;
    step = dml__smaller(step, dml__columns_at_most(job));
    if (step < range->j1 - range->j0) step = step < full ? full : step / full * full;
    dml__range part = *range;
    for (part.j0 = range->j0; part.j0 < range->j1; part.j0 = part.j1) {
        part.j1 = dml__smaller(part.j0 + step, range->j1);
        dml__multiply_range(job, &part, panels);
    }
}

/* Stack frames that only who needs them pays for. */
DML__NOINLINE static void dml__multiply_on_stack(const dml__job *job, const dml__range *range)
{
    float panels[DML__STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, range, dml__aligned_floats(panels), DML__STACK_FLOATS);
}

DML__NOINLINE static void dml__multiply_on_small_stack(const dml__job *job, const dml__range *range)
{
    float panels[DML__SMALL_STACK_FLOATS + DML__STACK_SLACK];
    dml__multiply_within(job, range, dml__aligned_floats(panels), DML__SMALL_STACK_FLOATS);
}

/* Computes any range, with the worker's scratch if that is enough. */
static void dml__multiply_as(dml_pool *pool, int worker, const dml__job *job, const dml__range *range)
{
    const ptrdiff_t full = job->kernel->lanes * job->kernel->vectors, k = range->k1 - range->k0;
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    const ptrdiff_t whole = dml__range_floats(job->kernel, rows, columns, k);
    float *scratch = (float *)dml_pool_scratch(pool, worker);
    const ptrdiff_t floats = scratch ? (ptrdiff_t)(dml_pool_scratch_bytes(pool).worker / sizeof *scratch) : 0;
    if (floats >= whole && columns <= full)
        dml__multiply_range(job, range, scratch);
    else if (floats >= dml__range_floats(job->kernel, rows, dml__smaller(columns, full), k))
        dml__multiply_within(job, range, scratch, floats);
    else if (whole <= DML__SMALL_STACK_FLOATS)
        dml__multiply_on_small_stack(job, range);
    else
        dml__multiply_on_stack(job, range);
}

/* C = beta C + bias, for a product without terms. */
static void dml__scale_c(const dml__product *product)
{
    for (ptrdiff_t i = 0; i < product->m; i++) {
        float *row = product->c + i * product->ldc;
        for (ptrdiff_t j = 0; j < product->n; j++) {
            if (product->bias)
                row[j] = product->bias[j];
            else
                row[j] = product->beta == 0 ? 0 : product->beta * row[j];
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
                               j * loop->nc,
                               dml__smaller(product->n, (j + 1) * loop->nc),
                               0,
                               product->k };
    dml__multiply_as(loop->pool, worker, loop->job, &range);
}

/* The columns of C as even shares of what is packed at once, in panels. */
static ptrdiff_t dml__panels_at_once(const dml__job *job)
{
    const ptrdiff_t n = job->product.n;
    return dml__quotient_up(dml__quotient_up(n, job->kernel->lanes * job->kernel->vectors),
                            dml__quotient_up(n, dml__columns_at_most(job)));
}

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, rows = kernel->rows;
    /* Panels, not elements: even shares, then halves of the longer side until there is enough to share out.
     */
    ptrdiff_t wide = dml__panels_at_once(job);
    ptrdiff_t high = dml__quotient_up(product->m, rows);
    const double work = (double)product->m * (double)product->n * (double)product->k;
    const ptrdiff_t wanted =
        work < DML__SERIAL_WORK || dml_pool_threads(pool) == 1 ? 1 : 4 * dml_pool_threads(pool);
    while (dml__quotient_up(product->m, high * rows) * dml__quotient_up(product->n, wide * full) < wanted &&
           high * rows * wide * full > 4 * rows * full) {
        if (high * rows >= wide * full)
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
    return k >= 4 * DML__PRODUCT_KC && m <= DML__CHUNKED_C / n;
}

/* How much of k a chunk takes, a multiple of DML__PRODUCT_KC. */
static ptrdiff_t dml__chunk_size(ptrdiff_t k)
{
    const ptrdiff_t blocks = dml__quotient_up(k, DML__PRODUCT_KC);
    return dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__PRODUCT_KC;
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

/* Chunk c's partial sums (m, n) in a block of C; the range's k is set here. */
static void dml__compute_chunk(const dml__chunk_loop *loop, int c, dml__range range, float *partial,
                               int worker)
{
    dml__job job = loop->job;
    job.product.c = partial;
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

/* Adds chunk c's partial sums (m, n) to columns j0 .. j1 - 1 of row i of C; chunk 0 begins with
   beta C + bias. */
static void dml__add_chunk(const dml__product *product, int c, ptrdiff_t i, ptrdiff_t j0, ptrdiff_t j1,
                           const float *partial)
{
    float *row = product->c + i * product->ldc;
    for (ptrdiff_t j = j0; j < j1; j++) {
        float old = c || product->beta != 0 ? row[j] : 0;
        if (c == 0 && product->bias)
            old = product->bias[j];
        else if (c == 0)
            old *= product->beta;
        row[j] = old + product->alpha * partial[i * product->n + j];
    }
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    (void)worker;
    for (int c = 0; c < loop->chunks; c++)
        dml__add_chunk(product, c, task, 0, product->n, loop->partial + c * product->m * product->n);
}

/* A block of C through all chunks, their partial sums on the stack: packs more often than the chunks do. */
static void dml__chunked_block_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__job *job = &loop->job;
    const ptrdiff_t i = task / loop->columns_of_blocks * loop->mc,
                    j = task % loop->columns_of_blocks * loop->nc;
    const dml__range range = { i, dml__smaller(i + loop->mc, job->product.m),
                               j, dml__smaller(j + loop->nc, job->product.n),
                               0, 0 };
    float partial[DML__CHUNKED_C];
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(loop, c, range, partial, worker);
        if (job->transposed)
            for (ptrdiff_t row = range.j0; row < range.j1; row++)
                dml__add_chunk(loop->product, c, row, range.i0, range.i1, partial);
        else
            for (ptrdiff_t row = range.i0; row < range.i1; row++)
                dml__add_chunk(loop->product, c, row, range.j0, range.j1, partial);
    }
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    part.bias = NULL;
    part.ldc = part.n;
    const ptrdiff_t chunk = dml__chunk_size(product->k);
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = { product, dml__plan_product(&part), pool, chunk, chunks, NULL, 0, 0, 0 };
    const dml__job *job = &loop.job;
    const size_t partial_bytes = (size_t)chunks * (size_t)(product->m * product->n) * sizeof(float);
    if (dml_pool_scratch_bytes(pool).shared >= partial_bytes) {
        loop.partial = (float *)dml_pool_shared_scratch(pool);
        dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
        dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
        return;
    }
    const bool alone = dml_pool_threads(pool) == 1;
    loop.mc = alone ? job->product.m : job->kernel->rows;
    loop.nc = alone ? job->product.n : job->kernel->lanes * job->kernel->vectors;
    loop.columns_of_blocks = dml__quotient_up(job->product.n, loop.nc);
    dml_pool_run(pool, (int)(dml__quotient_up(job->product.m, loop.mc) * loop.columns_of_blocks),
                 dml__chunked_block_task, &loop);
}

DML__LOCAL dml_scratch dml__product_scratch(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    dml_scratch scratch = { 0, 0 };
    if (m <= 0 || n <= 0 || k <= 0) return scratch;
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    const dml__job job = dml__plan_product(&product);
    const ptrdiff_t full = job.kernel->lanes * job.kernel->vectors;
    ptrdiff_t columns = dml__panels_at_once(&job) * full;
    if (dml__is_chunked(m, n, k)) {
        columns = dml__columns_at_most(&job);
        scratch.shared = (size_t)(dml__quotient_up(k, dml__chunk_size(k)) * m * n) * sizeof(float);
    }
    columns = dml__smaller(job.product.n, columns);
    scratch.worker = (size_t)dml__range_floats(job.kernel, job.product.m, columns, k) * sizeof(float);
    return scratch;
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
    } else if (dml__is_chunked(product->m, product->n, product->k)) {
        dml__multiply_chunks(pool, product);
    } else {
        const dml__job job = dml__plan_product(product);
        dml__multiply_blocks(pool, &job);
    }
}

#endif

/* ---- kernels/gemm.c ---- */

#ifndef DML_KERNELS_GEMM_C
#define DML_KERNELS_GEMM_C

static bool dml__sgemm_fits(dml_transpose trans, int rows, int columns, int ld)
{
    const int inner = trans == DML_NO_TRANS ? columns : rows;
    return ld >= (inner > 1 ? inner : 1);
}

static bool dml__is_transpose(dml_transpose trans)
{
    return trans == DML_NO_TRANS || trans == DML_TRANS;
}

DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc)
{
    /* A matrix in column-major order is its transpose in row-major order: C^T = op(B)^T op(A)^T. */
    if (layout == DML_COL_MAJOR)
        return dml_sgemm(pool, DML_ROW_MAJOR, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
    if (layout != DML_ROW_MAJOR || !dml__is_transpose(trans_a) || !dml__is_transpose(trans_b) || m < 0 ||
        n < 0 || k < 0 || !dml__sgemm_fits(trans_a, m, k, lda) || !dml__sgemm_fits(trans_b, k, n, ldb) ||
        !dml__sgemm_fits(DML_NO_TRANS, m, n, ldc))
        return DML_ERROR_ARGUMENT;
    dml__matrix left = { a, lda, 1 }, right = { b, 1, ldb };
    if (trans_a == DML_TRANS) left.lane_step = 1, left.k_step = lda;
    if (trans_b == DML_TRANS) right.lane_step = ldb, right.k_step = 1;
    const dml__product product = {
        m, n, k, { dml__pack_matrix, &left }, { dml__pack_matrix, &right }, alpha, beta, NULL, c, ldc
    };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_sgemm_scratch(int m, int n, int k)
{
    return dml__product_scratch(m, n, k);
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

/* ---- kernels/vector.h ---- */

/* vector.h: how the memory-bound kernels are written once and compiled for each instruction set.

   A kernel's body is a DML__BODY function over dml__vf, a vector of DML__LANES floats, and
   DML__PER_ISA(name, (parameters), (arguments)) compiles `name_body` for each instruction set and defines
   `name(isa, ...)`, which picks one. Vectors are 32 bytes on x86, also with AVX-512, and 16 elsewhere: gcc
   takes a comparison of wider vectors than the target has apart into scalars, and for kernels that wait for
   memory wider vectors win nothing. Bodies and helpers pass vectors by pointer, since a vector parameter of a
   function without the instruction set is an ABI hazard that compilers warn of or refuse; everything is
   inlined.

   Plain cc contracts a * b + c to an FMA where there is one, so results may differ in the last bit between
   instruction sets, but never between places in an array: each element goes through the same loop (the ends
   of arrays too, see blocks.h). */
#ifndef DML_KERNELS_VECTOR_H
#define DML_KERNELS_VECTOR_H

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

#define DML__BODY static inline __attribute__((always_inline))

#define DML__STRIP(...) __VA_ARGS__
#ifdef DML__HAS_AVX512
#define DML__FOR_AVX512(name, parameters, arguments)                                                         \
    __attribute__((                                                                                          \
        target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))) static void name##_avx512 parameters         \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }
#define DML__TO_AVX512(name, arguments)                                                                      \
    if (isa == DML_ISA_AVX512) {                                                                             \
        name##_avx512 arguments;                                                                             \
        return;                                                                                              \
    }
#else
#define DML__FOR_AVX512(name, parameters, arguments)
#define DML__TO_AVX512(name, arguments)
#endif
#ifdef DML__HAS_AVX2
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    DML__FOR_AVX512(name, parameters, arguments)                                                             \
    __attribute__((target("avx2,fma"))) static void name##_avx2 parameters                                   \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    static void name##_base parameters                                                                       \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
    static void name(dml_isa isa, DML__STRIP parameters)                                                     \
    {                                                                                                        \
        DML__TO_AVX512(name, arguments)                                                                      \
        if (isa == DML_ISA_AVX2)                                                                             \
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

/* Lane by lane: where the mask is all ones `a`, where it is zero `b`. */
#define DML__SELECT(mask, a, b) ((dml__vf)(((mask) & (dml__vi)(a)) | (~(mask) & (dml__vi)(b))))
#define DML__SELECT_INT(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

DML__BODY void dml__splat(dml__vf *vector, float value)
{
    const dml__vf zero = { 0 };
    *vector = value - zero; /* not plus, which would make 0 of -0 */
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
    double sum = 0;
    for (int lane = 0; lane < DML__LANES; lane++) sum += (double)(*vector)[lane];
    return sum;
}

/* x = e^x, relative error below 2e-7; inf, 0 and NaN where they belong, gradual underflow kept.
   e^x = 2^k e^r with k = round(x / ln 2) and r = x - k ln 2, where ln 2 is cut into 355/512, which times k is
   exact, and the rest (Cody and Waite, "Software Manual for the Elementary Functions", 1980). For
   |r| <= ln 2 / 2, e^r = 1 + r + r^2 q(r), q interpolating at the five Chebyshev nodes: error 1e-8. */
DML__BODY void dml__exp(dml__vf *x)
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
    dml__vf q = r * 0.00139262508f + 0.00836323288f;
    q = q * r + 0.0416665542f;
    q = q * r + 0.166665767f;
    q = q * r + 0.5f;
    const dml__vf power = (q * (r * r) + r) + 1.0f;
    /* 2^k in two factors, since it may lie outside the range of floats where the product doesn't. */
    const dml__vi whole = (dml__vi)((dml__vu)shifted - 0x4B400000u);
    const dml__vi half = whole >> 1;
    const dml__vf scale_a = (dml__vf)(((dml__vu)half + 127u) << 23);
    const dml__vf scale_b = (dml__vf)(((dml__vu)whole - (dml__vu)half + 127u) << 23);
    *x = (power * scale_a) * scale_b;
}

#endif

/* How many floats make a task worth handing to a thread (16 K floats: about 5 us of memory traffic). */
#define DML__BLOCK ((size_t)16384)

/* What an elementwise kernel reads and writes; what isn't there is NULL. An output may be an input too. */
#define DML__MAP_INPUTS 3
#define DML__MAP_OUTPUTS 2
typedef struct dml__map_operands {
    const float *in[DML__MAP_INPUTS];
    float *out[DML__MAP_OUTPUTS];
    float number[4];
} dml__map_operands;

/* Elements 0 .. n - 1, n a multiple of DML__LANES. */
typedef void (*dml__map_kernel)(dml_isa isa, size_t n, const dml__map_operands *operands);

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

/* Convolution as a matrix product whose factors are gathered from the images while they are packed, so that
   no patch matrix is ever stored. With P = N OH OW output pixels and K = KH KW C:

     forward           y  (P, F)         = patches of x (P, K)              w^T (K, F)
     backward_input    dx (N H W, C)     = patches of dy (N H W, KH KW F)   w (KH KW F, C)
     backward_weights  dw (F, K)         = dy^T (F, P)                      patches of x (P, K)  */

typedef struct dml__conv {
    dml_conv2d_shape shape;
    ptrdiff_t out_h, out_w;
    const float *image;   /* x (N, H, W, C), or dy (N, OH, OW, F) */
    const float *weights; /* (F, KH, KW, C) */
} dml__conv;

DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad)
{
    if (in < 1 || kernel < 1 || stride < 1 || pad < 0) return 0;
    const int64_t room = (int64_t)in + 2 * (int64_t)pad - kernel;
    const int64_t size = room < 0 ? 0 : room / stride + 1;
    return size > INT32_MAX ? 0 : (int)size;
}

/* Whether x, y, w, and every place in a padded line of x or y, can be addressed. */
static bool dml__conv_fits(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    const int64_t padded_h = (int64_t)s->height + 2 * (int64_t)s->pad_h;
    const int64_t padded_w = (int64_t)s->width + 2 * (int64_t)s->pad_w;
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, conv->out_h, conv->out_w, s->filters) &&
           dml__floats_fit(s->filters, s->kernel_h, s->kernel_w, s->channels) &&
           dml__floats_fit(padded_w, s->channels, 1, 1) && dml__floats_fit(padded_w, s->filters, 1, 1) &&
           dml__floats_fit(padded_h, 1, 1, 1);
}

static dml_status dml__conv_init(dml__conv *conv, const dml_conv2d_shape *shape, const float *image,
                                 const float *weights)
{
    if (!shape || shape->batch < 0 || shape->channels < 1 || shape->filters < 1) return DML_ERROR_ARGUMENT;
    conv->shape = *shape;
    conv->out_h = dml_conv2d_output_size(shape->height, shape->kernel_h, shape->stride_h, shape->pad_h);
    conv->out_w = dml_conv2d_output_size(shape->width, shape->kernel_w, shape->stride_w, shape->pad_w);
    conv->image = image;
    conv->weights = weights;
    return conv->out_h && conv->out_w && dml__conv_fits(conv) ? DML_OK : DML_ERROR_ARGUMENT;
}

static void dml__copy_floats(float *to, const float *from, ptrdiff_t count)
{
    if (count >= 32) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    /* A call costs more than such a copy. */
    for (; count >= 4; count -= 4, to += 4, from += 4) memcpy(to, from, 4 * sizeof *to);
    if (count > 0) to[0] = from[0];
    if (count > 1) to[1] = from[1];
    if (count > 2) to[2] = from[2];
}

static void dml__zero_floats(float *to, ptrdiff_t count)
{
    if (count > 0) memset(to, 0, (size_t)count * sizeof *to);
}

/* Where a pixel of an output lies. */
typedef struct dml__pixel {
    ptrdiff_t n, y, x;
} dml__pixel;

static dml__pixel dml__pixel_at(ptrdiff_t index, ptrdiff_t height, ptrdiff_t width)
{
    const dml__pixel pixel = { index / width / height, index / width % height, index % width };
    return pixel;
}

static void dml__pixel_next(dml__pixel *pixel, ptrdiff_t height, ptrdiff_t width)
{
    if (++pixel->x < width) return;
    pixel->x = 0;
    if (++pixel->y < height) return;
    pixel->y = 0;
    pixel->n++;
}

/* `length` elements of a line of an image from `begin` on, which may lie before or behind it: zeros there. */
static inline void dml__gather_line(const float *line, ptrdiff_t line_size, ptrdiff_t begin, ptrdiff_t length,
                                    float *to)
{
    if (begin >= 0 && begin + length <= line_size) {
        dml__copy_floats(to, line + begin, length);
    } else if (begin + length <= 0 || begin >= line_size) {
        dml__zero_floats(to, length);
    } else {
        const ptrdiff_t before = begin < 0 ? -begin : 0;
        const ptrdiff_t behind = begin + length > line_size ? begin + length - line_size : 0;
        dml__zero_floats(to, before);
        dml__copy_floats(to + before, line + begin + before, length - before - behind);
        dml__zero_floats(to + length - behind, behind);
    }
}

/* Elements first .. first + count - 1 of the patch (KH, KW, C) of x under an output pixel. A row of a patch
   is contiguous in x, up to the padding. */
static void dml__gather_x(const dml__conv *conv, dml__pixel out, ptrdiff_t first, ptrdiff_t count, float *to)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t row_size = (ptrdiff_t)s->kernel_w * s->channels;
    const ptrdiff_t line_size = (ptrdiff_t)s->width * s->channels;
    const ptrdiff_t left = (out.x * s->stride_w - s->pad_w) * s->channels;
    ptrdiff_t y = out.y * s->stride_h - s->pad_h + first / row_size;
    ptrdiff_t from = first % row_size;
    for (; count > 0; y++, from = 0) {
        const ptrdiff_t length = count < row_size - from ? count : row_size - from;
        if (y < 0 || y >= s->height)
            dml__zero_floats(to, length);
        else
            dml__gather_line(conv->image + (out.n * s->height + y) * line_size, line_size, left + from,
                             length, to);
        to += length;
        count -= length;
    }
}

/* `length` elements, from `from` on, of a row (KW, F) of the patch below, when only every stride_w-th tap
   falls on an output. `x` is where the row's first tap lies, in steps of which stride_w make an output. */
static void dml__gather_strided(const dml__conv *conv, const float *line, ptrdiff_t x, ptrdiff_t from,
                                ptrdiff_t length, float *to)
{
    const ptrdiff_t filters = conv->shape.filters, stride = conv->shape.stride_w;
    x += from / filters;
    from %= filters;
    for (; length > 0; x++, from = 0) {
        const ptrdiff_t run = length < filters - from ? length : filters - from;
        if (x < 0 || x % stride || x / stride >= conv->out_w)
            dml__zero_floats(to, run);
        else
            dml__copy_floats(to, line + x / stride * filters + from, run);
        to += run;
        length -= run;
    }
}

/* Elements first .. first + count - 1 of the patch (KH, KW, F) of dy that an input pixel has gone into. Under
   tap (kh, kw) lies the output (y + pad - kh) / stride, where that is whole. The taps are taken backwards, so
   that the outputs are met forwards: with stride_w = 1, a row of the patch is contiguous in dy. */
static void dml__gather_dy(const dml__conv *conv, dml__pixel in, ptrdiff_t first, ptrdiff_t count, float *to)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t row_size = (ptrdiff_t)s->kernel_w * s->filters;
    const ptrdiff_t line_size = conv->out_w * s->filters;
    const ptrdiff_t left = in.x + s->pad_w - (s->kernel_w - 1);
    ptrdiff_t y = in.y + s->pad_h - (s->kernel_h - 1) + first / row_size;
    ptrdiff_t from = first % row_size;
    for (; count > 0; y++, from = 0) {
        const ptrdiff_t length = count < row_size - from ? count : row_size - from;
        if (y < 0 || y % s->stride_h || y / s->stride_h >= conv->out_h) {
            dml__zero_floats(to, length);
        } else {
            const float *line = conv->image + (in.n * conv->out_h + y / s->stride_h) * line_size;
            if (s->stride_w == 1)
                dml__gather_line(line, line_size, left * s->filters + from, length, to);
            else
                dml__gather_strided(conv, line, left, from, length, to);
        }
        to += length;
        count -= length;
    }
}

/* Packs the patches of pixels as lanes: four are gathered side by side, then transposed. */
static void dml__pack_patches(const dml__conv *conv,
                              void (*gather)(const dml__conv *conv, dml__pixel pixel, ptrdiff_t first,
                                             ptrdiff_t count, float *to),
                              ptrdiff_t height, ptrdiff_t width, ptrdiff_t first, int lanes, ptrdiff_t k0,
                              int kc, int panel_width, float *out)
{
    float patch[4][DML__PRODUCT_KC];
    dml__pixel pixel = dml__pixel_at(first, height, width);
    for (int lane = 0; lane < lanes; lane += 4) {
        const int group = lanes - lane < 4 ? lanes - lane : 4;
        for (int l = 0; l < group; l++) {
            gather(conv, pixel, k0, kc, patch[l]);
            dml__pixel_next(&pixel, height, width);
        }
        dml__pack_transposed(patch[0], DML__PRODUCT_KC, group, kc, panel_width, out + lane);
    }
    for (int k = 0; k < kc; k++) dml__zero_floats(out + k * panel_width + lanes, panel_width - lanes);
}

/* --- the packers of the three products --- */

/* Lanes are output pixels, k runs over (KH, KW, C). */
static void dml__pack_x(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                        float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pack_patches(conv, dml__gather_x, conv->out_h, conv->out_w, first, lanes, k0, kc, width, out);
}

/* Lanes are input pixels, k runs over (KH, KW, F), the taps backwards. */
static void dml__pack_dy(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                         float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pack_patches(conv, dml__gather_dy, conv->shape.height, conv->shape.width, first, lanes, k0, kc,
                      width, out);
}

/* Lanes run over (KH, KW, C), k over output pixels. */
static void dml__pack_x_columns(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                int width, float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pixel pixel = dml__pixel_at(k0, conv->out_h, conv->out_w);
    for (int k = 0; k < kc; k++, out += width) {
        dml__gather_x(conv, pixel, first, lanes, out);
        dml__zero_floats(out + lanes, width - lanes);
        dml__pixel_next(&pixel, conv->out_h, conv->out_w);
    }
}

/* Lanes are input channels, k runs over (KH, KW, F), the taps backwards: row k of the factor is w[f][tap]. */
static void dml__pack_w(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                        float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t taps = (ptrdiff_t)s->kernel_h * s->kernel_w;
    ptrdiff_t tap = taps - 1 - k0 / s->filters, f = k0 % s->filters;
    for (int k = 0; k < kc; k++, out += width) {
        dml__copy_floats(out, conv->weights + (f * taps + tap) * s->channels + first, lanes);
        dml__zero_floats(out + lanes, width - lanes);
        if (++f == s->filters) f = 0, tap--;
    }
}

/* --- the three products --- */

DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, x, w);
    if (status != DML_OK) return status;
    const ptrdiff_t patch = (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->channels;
    const dml__matrix weights = { w, patch, 1 };
    const dml__product product = { (ptrdiff_t)shape->batch * conv.out_h * conv.out_w,
                                   shape->filters,
                                   patch,
                                   { dml__pack_x, &conv },
                                   { dml__pack_matrix, &weights },
                                   1,
                                   0,
                                   bias,
                                   y,
                                   shape->filters };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, dy, w);
    if (status != DML_OK) return status;
    const dml__product product = { (ptrdiff_t)shape->batch * shape->height * shape->width,
                                   shape->channels,
                                   (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->filters,
                                   { dml__pack_dy, &conv },
                                   { dml__pack_w, &conv },
                                   1,
                                   beta,
                                   NULL,
                                   dx,
                                   shape->channels };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, x, NULL);
    if (status != DML_OK) return status;
    const ptrdiff_t patch = (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->channels;
    const dml__matrix gradient = { dy, 1, shape->filters };
    const dml__product product = { shape->filters,
                                   patch,
                                   (ptrdiff_t)shape->batch * conv.out_h * conv.out_w,
                                   { dml__pack_matrix, &gradient },
                                   { dml__pack_x_columns, &conv },
                                   1,
                                   beta,
                                   NULL,
                                   dw,
                                   patch };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training)
{
    const dml_scratch none = { 0, 0 };
    dml__conv conv;
    if (dml__conv_init(&conv, shape, NULL, NULL) != DML_OK) return none;
    const ptrdiff_t taps = (ptrdiff_t)shape->kernel_h * shape->kernel_w, patch = taps * shape->channels;
    const ptrdiff_t outputs = shape->batch * conv.out_h * conv.out_w;
    const ptrdiff_t inputs = (ptrdiff_t)shape->batch * shape->height * shape->width;
    const dml_scratch forward = dml__product_scratch(outputs, shape->filters, patch);
    if (!training) return forward;
    const dml_scratch input = dml__product_scratch(inputs, shape->channels, taps * shape->filters);
    const dml_scratch weights = dml__product_scratch(shape->filters, patch, outputs);
    return dml__larger_scratch(forward, dml__larger_scratch(input, weights));
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
    job.isa = dml_cpu_isa();
    job.n = n;
    job.kernel = kernel;
    job.operands = operands;
    if (n <= DML__BLOCK)
        dml__map_range(job.isa, kernel, operands, 0, n);
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
    job.isa = dml_cpu_isa();
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
    float beta;
    size_t rows, rows_per_task; /* a row is one (image, h) of the output: (W, C) floats */
} dml__pool2d_job;

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

/* One output pixel: `x` is its image, `h` and `w` its window. The channels that fill no vector go one by one.
 */
DML__BODY void dml__max_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    const int32_t first = h.begin * s->width + w.begin;
    const dml__vi zero = { 0 };
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf largest = DML__LOAD(x + (size_t)first * channels + c);
        dml__vi place = zero + first;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const dml__vf value = DML__LOAD(x + (size_t)here * channels + c);
                /* the second term lets the first NaN in and keeps it */
                const dml__vi take = (value > largest) | ((value != value) & (largest == largest));
                largest = DML__SELECT(take, value, largest);
                place = DML__SELECT_INT(take, zero + here, place);
            }
        DML__STORE(y + c, largest);
        if (argmax) DML__STORE_INT(argmax + c, place);
    }
    for (; c < channels; c++) {
        float largest = x[(size_t)first * channels + c];
        int32_t place = first;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const float value = x[(size_t)here * channels + c];
                const bool take = value > largest || (value != value && largest == largest);
                largest = take ? value : largest;
                place = take ? here : place;
            }
        y[c] = largest;
        if (argmax) argmax[c] = place;
    }
}

DML__BODY void dml__max_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t image = (size_t)s->height * (size_t)s->width * (size_t)s->channels;
    for (size_t row = begin; row < end; row++) {
        const int oh = (int)(row % (size_t)job->out_height);
        const float *x = job->x + row / (size_t)job->out_height * image;
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        for (int ow = 0; ow < job->out_width; ow++) {
            const size_t out = (row * (size_t)job->out_width + (size_t)ow) * (size_t)s->channels;
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            dml__max_pixel(s, x, h, w, job->y + out, job->argmax_out ? job->argmax_out + out : NULL);
        }
    }
}
DML__PER_ISA(dml__max_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

DML__BODY void dml__avg_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t channels = (size_t)s->channels, image = (size_t)s->height * (size_t)s->width * channels;
    for (size_t row = begin; row < end; row++) {
        const int oh = (int)(row % (size_t)job->out_height);
        const float *x = job->x + row / (size_t)job->out_height * image;
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        for (int ow = 0; ow < job->out_width; ow++) {
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            const float count = dml__window_size(job, oh, ow);
            float *y = job->y + (row * (size_t)job->out_width + (size_t)ow) * channels;
            size_t c = 0;
            for (; c + DML__LANES <= channels; c += DML__LANES) {
                dml__vf sum;
                dml__splat(&sum, 0);
                for (int ih = h.begin; ih < h.end; ih++)
                    for (int iw = w.begin; iw < w.end; iw++)
                        sum += DML__LOAD(x + (size_t)(ih * s->width + iw) * channels + c);
                DML__STORE(y + c, sum / count);
            }
            for (; c < channels; c++) {
                float sum = 0;
                for (int ih = h.begin; ih < h.end; ih++)
                    for (int iw = w.begin; iw < w.end; iw++)
                        sum += x[(size_t)(ih * s->width + iw) * channels + c];
                y[c] = sum / count;
            }
        }
    }
}
DML__PER_ISA(dml__avg_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

/* The backward passes gather: each input sums over the windows that cover it, so no two tasks write the same
   place. `max`: a window counts where it was won here; else its share is one over its size. */
DML__BODY void dml__pool_gradient_pixel(bool max, const dml__pool2d_job *job, size_t image, int32_t here,
                                        dml__window_span h, dml__window_span w, float *dx)
{
    const size_t channels = (size_t)job->shape->channels;
    const float beta = job->beta;
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf sum;
        dml__splat(&sum, 0);
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

DML__BODY void dml__pool_gradient_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    for (size_t row = begin; row < end; row++) {
        const int ih = (int)(row % (size_t)s->height);
        const size_t image = row / (size_t)s->height * (size_t)job->out_height * (size_t)job->out_width;
        const dml__window_span h = dml__windows_over(ih, s->kernel_h, s->stride_h, s->pad_h, job->out_height);
        for (int iw = 0; iw < s->width; iw++) {
            const dml__window_span w =
                dml__windows_over(iw, s->kernel_w, s->stride_w, s->pad_w, job->out_width);
            float *dx = job->y + (row * (size_t)s->width + (size_t)iw) * (size_t)s->channels;
            dml__pool_gradient_pixel(max, job, image, ih * s->width + iw, h, w, dx);
        }
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

DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    job.argmax_out = argmax;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__max_forward_rows);
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

/* ---- kernels/elementwise.c ---- */

#ifndef DML_KERNELS_ELEMENTWISE_C
#define DML_KERNELS_ELEMENTWISE_C

/* Every kernel with a beta takes the old output as in[2], or NULL for beta = 0, and beta as number[0]. */
DML__BODY void dml__store_with_beta(const dml__map_operands *at, size_t i, const dml__vf *value)
{
    if (at->in[2])
        DML__STORE(at->out[0] + i, *value + at->number[0] * DML__LOAD(at->in[2] + i));
    else
        DML__STORE(at->out[0] + i, *value);
}

static void dml__map_with_beta(dml_pool *pool, size_t n, dml__map_kernel kernel, const float *a,
                               const float *b, float beta, float alpha, float *out)
{
    const dml__map_operands operands = { { a, b, beta == 0 ? NULL : out },
                                         { out, NULL },
                                         { beta, alpha, 0, 0 } };
    dml__map(pool, n, kernel, &operands);
}

DML__BODY void dml__fill_map_body(size_t n, const dml__map_operands *at)
{
    dml__vf value;
    dml__splat(&value, at->number[1]);
    for (size_t i = 0; i < n; i += DML__LANES) DML__STORE(at->out[0] + i, value);
}
DML__PER_ISA(dml__fill_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_fill(dml_pool *pool, size_t n, float value, float *y)
{
    dml__map_with_beta(pool, n, dml__fill_map, NULL, NULL, 0, value, y);
}

DML__BODY void dml__axpby_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf value = at->number[1] * DML__LOAD(at->in[0] + i);
        dml__store_with_beta(at, i, &value);
    }
}
DML__PER_ISA(dml__axpby_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, x, NULL, beta, alpha, y);
}

DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y)
{
    dml__map_with_beta(pool, n, dml__axpby_map, y, NULL, 0, alpha, y);
}

DML__BODY void dml__add_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES)
        DML__STORE(at->out[0] + i, DML__LOAD(at->in[0] + i) + DML__LOAD(at->in[1] + i));
}
DML__PER_ISA(dml__add_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b, float *y)
{
    dml__map_with_beta(pool, n, dml__add_map, a, b, 0, 0, y);
}

DML__BODY void dml__relu_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf x = DML__LOAD(at->in[0] + i);
        DML__STORE(at->out[0] + i, (dml__vf)((dml__vi)x & ~(x <= 0.0f))); /* keeps a NaN */
    }
}
DML__PER_ISA(dml__relu_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_relu_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__relu_map, x, NULL, 0, 0, y);
}

DML__BODY void dml__relu_backward_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
        const dml__vf value = (dml__vf)((dml__vi)dy & (y > 0.0f));
        dml__store_with_beta(at, i, &value);
    }
}
DML__PER_ISA(dml__relu_backward_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_relu_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx)
{
    dml__map_with_beta(pool, n, dml__relu_backward_map, y, dy, beta, 0, dx);
}

/* For m = |x| < 0.625, m + m^3 q(m^2), q interpolating at five Chebyshev nodes (relative error 2e-8), since
   the other form cancels there; else (1 - e) / (1 + e) with e = exp(-2 m); then the sign of x. */
DML__BODY void dml__tanh_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf x = DML__LOAD(at->in[0] + i);
        const dml__vf magnitude = (dml__vf)((dml__vi)x & 0x7fffffff);
        const dml__vf square = x * x;
        dml__vf q = square * -0.00609671417f + 0.020997179f;
        q = q * square - 0.0538509096f;
        q = q * square + 0.133327697f;
        q = q * square - 0.333333289f;
        const dml__vf inner = q * (square * magnitude) + magnitude;
        dml__vf e = magnitude * -2.0f;
        dml__exp(&e);
        const dml__vf outer = (1.0f - e) / (1.0f + e);
        const dml__vf y = DML__SELECT(magnitude < 0.625f, inner, outer);
        DML__STORE(at->out[0] + i, (dml__vf)((dml__vi)y | ((dml__vi)x & ~0x7fffffff)));
    }
}
DML__PER_ISA(dml__tanh_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_tanh_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__tanh_map, x, NULL, 0, 0, y);
}

DML__BODY void dml__tanh_backward_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
        const dml__vf value = (1.0f - y * y) * dy;
        dml__store_with_beta(at, i, &value);
    }
}
DML__PER_ISA(dml__tanh_backward_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_tanh_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx)
{
    dml__map_with_beta(pool, n, dml__tanh_backward_map, y, dy, beta, 0, dx);
}

DML__BODY void dml__sigmoid_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf e = -DML__LOAD(at->in[0] + i);
        dml__exp(&e);
        DML__STORE(at->out[0] + i, 1.0f / (1.0f + e));
    }
}
DML__PER_ISA(dml__sigmoid_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_sigmoid_forward(dml_pool *pool, size_t n, const float *x, float *y)
{
    dml__map_with_beta(pool, n, dml__sigmoid_map, x, NULL, 0, 0, y);
}

DML__BODY void dml__sigmoid_backward_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf y = DML__LOAD(at->in[0] + i), dy = DML__LOAD(at->in[1] + i);
        const dml__vf value = y * (1.0f - y) * dy;
        dml__store_with_beta(at, i, &value);
    }
}
DML__PER_ISA(dml__sigmoid_backward_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_sigmoid_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                                  float *dx)
{
    dml__map_with_beta(pool, n, dml__sigmoid_backward_map, y, dy, beta, 0, dx);
}

typedef struct dml__bias_job {
    dml_isa isa;
    size_t rows, columns;
    const float *bias;
    float *y; /* (rows, columns) */
} dml__bias_job;

DML__BODY void dml__bias_rows_body(size_t rows, size_t columns, const float *bias, float *y)
{
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
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.columns = columns;
    job.bias = bias;
    job.y = y;
    const int tasks = columns ? (int)dml__divide_up(rows, dml__items_per_task(columns)) : 0;
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__bias_task, &job);
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

static inline float dml__larger(float a, float b)
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
    for (int lane = 0; lane < DML__LANES; lane++) largest = dml__larger(largest, a[lane]);
    for (; i < n; i++) largest = dml__larger(largest, x[i]);
    *result = (double)largest;
}
DML__PER_ISA(dml__max_block, (size_t n, const float *x, const float *y, double *result), (n, x, y, result))

DML_API float dml_max(dml_pool *pool, size_t n, const float *x)
{
    double partial[DML__PARTIALS];
    float largest = -HUGE_VALF;
    const int count = dml__reduce(pool, n, dml__max_block, x, NULL, partial);
    for (int i = 0; i < count; i++) largest = dml__larger(largest, (float)partial[i]);
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

/* total[c] = sum over r of x[r stride + c], c < width. */
DML__BODY void dml__sum_columns_body(size_t rows, size_t stride, size_t width, const float *x, float *total)
{
    float sum[DML__SUM_ROWS_WIDTH];
    for (size_t c = 0; c < width; c++) total[c] = 0;
    for (size_t begin = 0; begin < rows; begin += DML__SUM_ROWS_CHUNK) {
        const size_t end = dml__minimum(begin + DML__SUM_ROWS_CHUNK, rows);
        size_t c;
        for (c = 0; c < width; c++) sum[c] = 0;
        for (size_t r = begin; r < end; r++) {
            const float *row = x + r * stride;
            for (c = 0; c + DML__LANES <= width; c += DML__LANES)
                DML__STORE(sum + c, DML__LOAD(sum + c) + DML__LOAD(row + c));
            for (; c < width; c++) sum[c] += row[c];
        }
        for (c = 0; c < width; c++) total[c] += sum[c];
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
    job.isa = dml_cpu_isa();
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
    job.isa = dml_cpu_isa();
    job.rows = rows;
    job.columns = columns;
    job.x = x;
    job.out = out;
    const int tasks = (int)dml__divide_up(rows, dml__items_per_task(columns));
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__argmax_task, &job);
}

#endif

/* ---- kernels/loss.c ---- */

#ifndef DML_KERNELS_LOSS_C
#define DML_KERNELS_LOSS_C

#include <math.h>

/* Floats added up in a vector before its lanes go on in double. */
#define DML__SOFTMAX_CHUNK ((size_t)32 * DML__LANES)

/* out = softmax(x) over n > 0 columns, for which it finds the maximum and sum(exp(x - maximum)). A NaN makes
   the sum and with it the whole row NaN. */
DML__BODY void dml__softmax_row_body(size_t n, const float *x, float *out, float *maximum, float *sum)
{
    dml__vf largest, value, total = { 0 }; /* or gcc -O3 warns of it */
    dml__splat(&largest, -HUGE_VALF);
    for (size_t c = 0; c < n; c += DML__LANES) {
        dml__load_some(&value, x + c, n - c);
        largest = DML__SELECT(value > largest, value, largest);
    }
    float top = largest[0];
    for (int lane = 1; lane < DML__LANES; lane++) top = largest[lane] > top ? largest[lane] : top;

    const size_t whole = n - n % DML__LANES;
    double sum64 = 0;
    size_t i = 0;
    while (i < whole) {
        const size_t end = dml__minimum(i + DML__SOFTMAX_CHUNK, whole);
        dml__splat(&total, 0);
        for (; i < end; i += DML__LANES) {
            value = DML__LOAD(x + i) - top;
            dml__exp(&value);
            DML__STORE(out + i, value);
            total += value;
        }
        sum64 += dml__add_lanes(&total);
    }
    if (i < n) {
        dml__load_some(&value, x + i, n - i);
        value = value - top;
        dml__exp(&value);
        dml__store_some(out + i, &value, n - i);
        for (; i < n; i++) sum64 += (double)out[i];
    }

    const float scale = (float)(1.0 / sum64);
    for (i = 0; i < n; i += DML__LANES) {
        dml__load_some(&value, out + i, n - i);
        value = value * scale;
        dml__store_some(out + i, &value, n - i);
    }
    *maximum = top;
    *sum = (float)sum64;
}
DML__PER_ISA(dml__softmax_row, (size_t n, const float *x, float *out, float *maximum, float *sum),
             (n, x, out, maximum, sum))

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
    for (size_t r = begin; r < end; r++) {
        const size_t at = r * job->classes, label = (size_t)job->labels[r];
        DML_ASSERT(label < job->classes);
        const float logit = job->logits[at + label]; /* read before, since probabilities may be logits */
        float maximum, sum;
        dml__softmax_row(job->isa, job->classes, job->logits + at, job->probabilities + at, &maximum, &sum);
        job->row_loss[r] = logf(sum) + (maximum - logit);
    }
}

DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss)
{
    dml__softmax_job job;
    if (rows == 0 || classes == 0) return 0;
    job.isa = dml_cpu_isa();
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

/* out = scale (p - (column == label)) + beta out */
DML__BODY void dml__softmax_backward_row_body(size_t n, const float *p, size_t label, float scale, float beta,
                                              float *out)
{
    const float old = beta != 0 ? out[label] : 0, at_label = p[label];
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf value, before;
        dml__load_some(&value, p + i, n - i);
        value = value * scale;
        if (beta != 0) {
            dml__load_some(&before, out + i, n - i);
            value = value + beta * before;
        }
        dml__store_some(out + i, &value, n - i);
    }
    out[label] = scale * (at_label - 1.0f) + beta * old;
}
DML__PER_ISA(dml__softmax_backward_row,
             (size_t n, const float *p, size_t label, float scale, float beta, float *out),
             (n, p, label, scale, beta, out))

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
    for (size_t r = begin; r < end; r++) {
        const size_t at = r * job->classes, label = (size_t)job->labels[r];
        DML_ASSERT(label < job->classes);
        dml__softmax_backward_row(job->isa, job->classes, job->probabilities + at, label, job->scale,
                                  job->beta, job->dlogits + at);
    }
}

DML_API void dml_softmax_cross_entropy_backward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *probabilities, const int32_t *labels,
                                                float scale, float beta, float *dlogits)
{
    dml__softmax_backward_job job;
    if (classes == 0) return;
    job.isa = dml_cpu_isa();
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

DML__BODY void dml__mse_backward_map_body(size_t n, const dml__map_operands *at)
{
    for (size_t i = 0; i < n; i += DML__LANES) {
        dml__vf value = at->number[1] * (DML__LOAD(at->in[0] + i) - DML__LOAD(at->in[1] + i));
        if (at->in[2]) value = value + at->number[0] * DML__LOAD(at->in[2] + i);
        DML__STORE(at->out[0] + i, value);
    }
}
DML__PER_ISA(dml__mse_backward_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_mse_backward(dml_pool *pool, size_t n, const float *a, const float *b, float scale,
                              float beta, float *da)
{
    const dml__map_operands operands = { { a, b, beta == 0 ? NULL : da },
                                         { da, NULL },
                                         { beta, scale, 0, 0 } };
    dml__map(pool, n, dml__mse_backward_map, &operands);
}

#endif

/* ---- kernels/update.c ---- */

#ifndef DML_KERNELS_UPDATE_C
#define DML_KERNELS_UPDATE_C

DML__BODY void dml__sgd_map_body(size_t n, const dml__map_operands *at)
{
    const float lr = at->number[0], momentum = at->number[1], weight_decay = at->number[2];
    const bool nesterov = at->number[3] != 0;
    for (size_t i = 0; i < n; i += DML__LANES) {
        const dml__vf w = DML__LOAD(at->in[0] + i);
        dml__vf step = DML__LOAD(at->in[1] + i) + weight_decay * w;
        if (at->in[2]) {
            const dml__vf v = momentum * DML__LOAD(at->in[2] + i) + step;
            DML__STORE(at->out[1] + i, v);
            step = nesterov ? step + momentum * v : v;
        }
        DML__STORE(at->out[0] + i, w - lr * step);
    }
}
DML__PER_ISA(dml__sgd_map, (size_t n, const dml__map_operands *at), (n, at))

DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov)
{
    const dml__map_operands operands = { { w, g, v },
                                         { w, v },
                                         { lr, momentum, weight_decay, nesterov ? 1.0f : 0.0f } };
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
    const int threads = pool_options.threads ? pool_options.threads : dml_cpu_count();
    if (threads < 0)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "%d threads asked for: give 0 for one a core, or 1 or more", threads);
    else if (!(context->pool = dml_pool_create(&pool_options)))
        dml__fail(&context->error, DML_ERROR_MEMORY,
                  "no memory or threads left for a pool of %d threads with %zu bytes of scratch each and %zu "
                  "together",
                  threads, pool_options.scratch.worker, pool_options.scratch.shared);
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
              "the environment asks for DML_ISA=%s: there are %s, and this processor's best is %s; unset it "
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
    static const dml_options defaults = { NULL, 0, 0, { NULL, NULL, NULL }, NULL, 0, NULL, NULL, NULL };
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

#define DML__MAX_INPUTS 4

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
    bool training;
    bool adds;     /* backward adds to the parameters' gradients and doesn't overwrite them */
    uint32_t step; /* keys the random numbers of this run, with the context's seed and the node's index */
} dml__run;

/* What an op's backward reads besides its output's gradient; the memory plan keeps no more. */
#define DML__NEEDS_INPUT(i) (1u << (i))
#define DML__NEEDS_INPUTS 0xFu
#define DML__NEEDS_OUTPUT 0x100u

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
                  "the graph has no node '%.*s'; names come with their scopes, as dml_graph_print shows them",
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

/* Where a node lives in a program. Views have the slot of the node they look at. */
typedef struct dml__slot {
    dml_node *node;
    int root;              /* the slot whose memory this one is: its own index, unless the node is a view */
    bool has_gradient;     /* a parameter lies behind it */
    bool reached, written; /* while compiling: by the output's gradient; as a gradient, by some op */
    int limit;             /* input: values must be in 0 .. limit - 1 for the program's ops; 0: any */
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

/* dml_compile where no two blocks of the arena share bytes: for tests of the plan. */
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
        if (node[i]->op == dml__input_op()) program->input[program->inputs++] = node[i];
        dml__limit_inputs(program, slot);
    }
    dml__release(&context->memory, node);
    return DML_OK;
}

/* Step 2: which gradients there are: those with a trained parameter behind them through which the output's
 * gradient flows. */
static void dml__find_gradients(dml_program *program)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->has_gradient = slot->node->op == dml__parameter_op() && !slot->node->frozen;
        for (int i = 0; i < slot->node->inputs; i++)
            slot->has_gradient = slot->has_gradient || dml__input_slot(program, slot, i)->has_gradient;
    }
    program->slot[program->slots - 1].reached = true;
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        const bool flows = slot->reached && (slot->node->op->backward || slot->node->op->view);
        for (int i = 0; flows && i < slot->node->inputs; i++)
            dml__input_slot(program, slot, i)->reached = true;
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

/* Step 3: who adds to a gradient that another op wrote before, and what is final after each op's backward. */
static void dml__order_gradients(dml_program *program)
{
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        if (!slot->has_gradient || slot->node->op->view) continue;
        for (int i = 0; i < slot->node->inputs; i++) {
            const dml__slot *input = dml__input_slot(program, slot, i);
            if (!input->has_gradient) continue;
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

/* Step 4: when each value, gradient and saved block is needed. Slot s runs forward at time s and backward at
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
        if (slot->root == s) value->bytes = dml__value_bytes(program, node);
        if (slot->root == s && slot->has_gradient) gradient->bytes = value->bytes;
        if (node->op->saved_bytes) saved->bytes = node->op->saved_bytes(node, program->batch);

        if (slot->has_gradient && (node->op->needs & DML__NEEDS_OUTPUT))
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

/* Step 5: where an op may write over what nobody needs after it, it does: its value over its input's, and in
   backward its input's gradient, which it is the first to write, over its own. */
static void dml__work_in_place(const dml_program *program, dml__block_life *blocks)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        if (!slot->node->op->in_place) continue;
        const int from = program->slot[dml__input_slot(program, slot, 0)->root].value_at;
        if (dml__continue_block(&blocks[3 * from], &blocks[3 * s])) slot->value_at = from;
    }
    for (int s = program->slots - 1; s >= 0; s--) {
        const dml__slot *slot = &program->slot[s];
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
        const size_t bytes = dml__count(run, program->input[i]) * dml_dtype_size(program->input[i]->dtype);
        status =
            run->device->backend->write(run->device, dml__value(run, program->input[i]), inputs[i], bytes);
    }
    for (int s = 0; s < program->slots && status == DML_OK; s++) {
        const dml_node *node = program->slot[s].node;
        if (node->op->forward) status = node->op->forward(run, node);
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
        if (slot->has_gradient && slot->node->op->backward)
            status = slot->node->op->backward(run, slot->node);
        if (status != DML_OK || slot->final_from >= final_from) continue;
        if (listener) status = listener->ready(listener->user, slot->final_from, final_from);
        final_from = slot->final_from;
    }
    return status;
}

static dml__run dml__begin_run(dml_program *program, int rows, bool adds, uint32_t step)
{
    dml_context *context = program->graph->context;
    const dml__run run = { program,
                           context,
                           &context->device,
                           program->own_thread ? program->own_pool : context->pool,
                           dml__program_error_of(program),
                           rows,
                           program->training,
                           adds,
                           step };
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
    const dml__run run = dml__begin_run(program, rows, false, 0);
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
    const dml__run run = dml__begin_run(program, rows, training->adds, training->step);
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

/* table.h: the op table. Adding an op is its own file, a row here, and its shared kernels for the GPUs. */
#ifndef DML_OPS_TABLE_H
#define DML_OPS_TABLE_H

/* X(name): dml__<name>_op() in the op's file gives its table. The tests check every row on every backend. */
#define DML__OP_LIST(X)                                                                                      \
    X(add)                                                                                                   \
    X(flatten)                                                                                               \
    X(dense)                                                                                                 \
    X(conv2d)                                                                                                \
    X(max_pool2d)                                                                                            \
    X(avg_pool2d)                                                                                            \
    X(relu)                                                                                                  \
    X(tanh)                                                                                                  \
    X(sigmoid)                                                                                               \
    X(softmax_cross_entropy)                                                                                 \
    X(mean_squared_error)

#define DML__OP_DECLARE(name) DML__LOCAL const dml__op *dml__##name##_op(void);
DML__OP_LIST(DML__OP_DECLARE)
#undef DML__OP_DECLARE

/* Row i of the table, NULL past the last. */
DML__LOCAL const dml__op *dml__op_at(int i);

#endif

DML__LOCAL const dml__op *dml__op_at(int i)
{
    static const dml__op *(*const table[])(void) = {
#define DML__OP_ROW(name) dml__##name##_op,
        DML__OP_LIST(DML__OP_ROW)
#undef DML__OP_ROW
    };
    return i >= 0 && i < (int)(sizeof table / sizeof table[0]) ? table[i]() : NULL;
}

#endif

/* ---- ops/op_arithmetic.c ---- */

#ifndef DML_OPS_OP_ARITHMETIC_C
#define DML_OPS_OP_ARITHMETIC_C

static dml_status dml__add_infer(dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    if (a->dtype != DML_F32 || b->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "it adds f32, not %s and %s",
                              dml_dtype_name(a->dtype), dml_dtype_name(b->dtype));
    if (!dml_shape_equal(&a->shape, &b->shape) || a->batched != b->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its inputs are %s%s and %s%s, they must be the same",
                              dml_shape_format(&a->shape, a_text), a->batched ? "" : " for the whole batch",
                              dml_shape_format(&b->shape, b_text), b->batched ? "" : " for the whole batch");
    node->shape = a->shape;
    node->batched = a->batched;
    return DML_OK;
}

static dml_status dml__add_op_forward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node);
    if (run->device->host_memory) {
        dml_add_forward(run->pool, n, dml__host_value(run, node->input[0]),
                        dml__host_value(run, node->input[1]), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch("add", n, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node->input[1]);
    launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__add_op_backward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node);
    dml_status status = DML_OK;
    for (int i = 0; i < 2 && status == DML_OK; i++) {
        if (!dml__wants_gradient(run, node, i)) continue;
        const float beta = dml__beta(run, node, i);
        if (run->device->host_memory) {
            dml_axpby(run->pool, n, 1.0f, dml__host_gradient(run, node), beta,
                      dml__host_gradient(run, node->input[i]));
            continue;
        }
        dml_launch launch = dml__launch("axpby", n, 1);
        launch.buffer[0] = dml__gradient(run, node);
        launch.buffer[1] = dml__gradient(run, node->input[i]);
        launch.integer[0] = (int32_t)n;
        launch.real[0] = 1.0f;
        launch.real[1] = beta;
        status = dml__submit(run->device, &launch);
    }
    return status;
}

DML__LOCAL const dml__op *dml__add_op(void)
{
    static const dml__op op = {
        "add", dml__add_infer, dml__add_op_forward, dml__add_op_backward, 0, NULL, false, true, NULL, NULL,
        NULL
    };
    return &op;
}

DML_API dml_node *dml_add(dml_node *a, dml_node *b)
{
    dml_node *const inputs[] = { a, b };
    return dml__node_create(dml__add_op(), 2, inputs, NULL, 0);
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

static dml_status dml__activation_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                              dml_dtype_name(x->dtype));
    node->shape = x->shape;
    node->batched = x->batched;
    return DML_OK;
}

typedef void dml__activation_forward_kernel(dml_pool *pool, size_t n, const float *x, float *y);
typedef void dml__activation_backward_kernel(dml_pool *pool, size_t n, const float *y, const float *dy,
                                             float beta, float *dx);

static dml_status dml__activation_forward(const dml__run *run, const dml_node *node, const char *kernel,
                                          dml__activation_forward_kernel *cpu)
{
    const size_t n = dml__count(run, node);
    if (run->device->host_memory) {
        cpu(run->pool, n, dml__host_value(run, node->input[0]), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch(kernel, n, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__activation_backward(const dml__run *run, const dml_node *node, const char *kernel,
                                           dml__activation_backward_kernel *cpu)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const size_t n = dml__count(run, node);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        cpu(run->pool, n, dml__host_value(run, node), dml__host_gradient(run, node), beta,
            dml__host_gradient(run, node->input[0]));
        return DML_OK;
    }
    dml_launch launch = dml__launch(kernel, n, 1);
    launch.buffer[0] = dml__value(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, node->input[0]);
    launch.integer[0] = (int32_t)n;
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

/* Each activation is a name: its op, its CPU kernels and its shared kernels follow from it. */
#define DML__ACTIVATION(name)                                                                                \
    static dml_status dml__##name##_op_forward(const dml__run *run, const dml_node *node)                    \
    {                                                                                                        \
        return dml__activation_forward(run, node, #name "_forward", dml_##name##_forward);                   \
    }                                                                                                        \
    static dml_status dml__##name##_op_backward(const dml__run *run, const dml_node *node)                   \
    {                                                                                                        \
        return dml__activation_backward(run, node, #name "_backward", dml_##name##_backward);                \
    }                                                                                                        \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__activation_infer,                                                   \
                                    dml__##name##_op_forward,                                                \
                                    dml__##name##_op_backward,                                               \
                                    DML__NEEDS_OUTPUT,                                                       \
                                    NULL,                                                                    \
                                    false,                                                                   \
                                    true,                                                                    \
                                    NULL,                                                                    \
                                    NULL,                                                                    \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }                                                                                                        \
    DML_API dml_node *dml_##name(dml_node *x)                                                                \
    {                                                                                                        \
        return dml__node_create(dml__##name##_op(), 1, &x, NULL, 0);                                         \
    }

DML__ACTIVATION(relu)
DML__ACTIVATION(tanh)
DML__ACTIVATION(sigmoid)

#undef DML__ACTIVATION

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
    const dml_status status = dml__dense_gemm(run, false, true, run->rows, units, in, dml__value(run, x),
                                              dml__value(run, w), 0.0f, dml__value(run, node));
    if (status != DML_OK || !bias) return status;
    if (run->device->host_memory) {
        dml_bias_add(run->pool, (size_t)run->rows, (size_t)units, dml__host_value(run, bias),
                     dml__host_value(run, node));
        return DML_OK;
    }
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
    dml_scratch most = dml_sgemm_scratch(rows, units, in);
    if (!training) return most;
    most = dml__larger_scratch(most, dml_sgemm_scratch(rows, in, units));
    return dml__larger_scratch(most, dml_sgemm_scratch(units, in, rows));
}

DML__LOCAL const dml__op *dml__dense_op(void)
{
    static const dml__op op = { "dense",
                                dml__dense_infer,
                                dml__dense_op_forward,
                                dml__dense_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
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
        dims[1] != o->kernel[0] || dims[2] != o->kernel[1] || dims[3] != x->shape.dims[2])
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its weights are %s%s; for %d filters of %d x %d over %d channels they must be %d x "
            "%d x %d x %d",
            dml_shape_format(&w->shape, text), w->batched ? " a sample" : "", o->filters, o->kernel[0],
            o->kernel[1], x->shape.dims[2], o->filters, o->kernel[0], o->kernel[1], x->shape.dims[2]);
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
    if (status == DML_OK) status = dml__check_conv2d_parameters(node);
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
        node->shape.dims[axis] =
            dml_conv2d_output_size(x->shape.dims[axis], options->kernel[axis], stride, padding);
        if (node->shape.dims[axis] < 1)
            return dml__node_fail(node, DML_ERROR_SHAPE,
                                  "a kernel of %d x %d doesn't fit an input of %s with padding %d x %d",
                                  options->kernel[0], options->kernel[1], dml_shape_format(&x->shape, x_text),
                                  options->padding[0], options->padding[1]);
    }
    return DML_OK;
}

static dml_conv2d_shape dml__conv2d_shape_of(const dml_node *node, int rows)
{
    const int *x = node->input[0]->shape.dims;
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const dml_conv2d_shape shape = { rows,         x[0],          x[1],         x[2],
                                     o->filters,   o->kernel[0],  o->kernel[1], o->stride[0],
                                     o->stride[1], o->padding[0], o->padding[1] };
    return shape;
}

static dml_launch dml__conv2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size_x, size_t size_y)
{
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const int32_t integers[] = {
        s.batch,    s.height,   s.width, s.channels, s.filters,           s.kernel_h,         s.kernel_w,
        s.stride_h, s.stride_w, s.pad_h, s.pad_w,    node->shape.dims[0], node->shape.dims[1]
    };
    dml_launch launch = dml__launch(kernel, size_x, size_y);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

static dml_status dml__conv2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    if (run->device->host_memory)
        return dml_conv2d_forward(run->pool, &s, dml__host_value(run, x), dml__host_value(run, w),
                                  bias ? dml__host_value(run, bias) : NULL, dml__host_value(run, node));
    dml_launch launch = dml__conv2d_launch(run, node, "conv2d_forward", (size_t)s.filters,
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
    dml_launch launch = dml__conv2d_launch(run, node, "conv2d_backward_input", (size_t)s.channels,
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
    dml_launch launch = dml__conv2d_launch(run, node, "conv2d_backward_weights",
                                           dml__count(run, w) / (size_t)s.filters, (size_t)s.filters);
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
    snprintf(text, bytes, "%d filters, kernel %d x %d, stride %d x %d, padding %d x %d%s", o->filters,
             o->kernel[0], o->kernel[1], o->stride[0], o->stride[1], o->padding[0], o->padding[1],
             node->input[2] ? "" : ", no bias");
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
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
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
    for (int axis = 0; axis < 2; axis++)
        if (!o->stride[axis]) o->stride[axis] = 1;
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
    const int channels = x->shape.ndim == 3 ? x->shape.dims[2] : 1;
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
        return dml_max_pool2d_forward(run->pool, &shape, dml__host_value(run, x), dml__host_value(run, node),
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
                                0,
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
    dml_status status = dml__begin_part(trainer, false, &part);
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
