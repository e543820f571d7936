/* dml.h 0.1.0. DO NOT EDIT, generated from src/ by make amalgamate. */
/* dml.h - training and running neural networks from C.

   In exactly one source file of your program:

       #define DML_IMPLEMENTATION
       #include "dml.h"

   and in any other just the #include. Build with -lm -lpthread. Include every dml header that you use in that
   one file (dml.h, then dml_comm.h): what they share is compiled once.

   Switches, the same in every file of a program:
     DML_IMPLEMENTATION  (one file) the function bodies
     DML_STATIC          every function is static: the library is private to this file
     DML_NO_THREADS      no threads: every pool has one worker, no background communication
     DML_NO_STDIO        no files: no checkpoints, data files or progress lines
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
#define DML__PRINTF(position, first) __attribute__((format(printf, position, first)))
#else
#define DML__UNUSED
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

#if defined(__cplusplus) || defined(__GNUC__)
#define DML__RESTRICT __restrict
#else
#define DML__RESTRICT restrict
#endif

/* The entry points carry the version and the switches in their link name, so that two translation units
   compiled with different ones fail to link instead of corrupting memory. */
#ifdef DML_NO_THREADS
#define DML__ABI(name) name##_v0_1_no_threads
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
   environment variable DML_ISA ("scalar", "avx2", ...) lowers it; it never raises it. */
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

typedef struct dml_pool_options {
    int threads;             /* 0: one for each processor in the affinity mask; 1: none but the caller */
    int spin;                /* pauses a worker spins before it sleeps; 0: 1000, or none when there are
                                more threads than processors; -1: none */
    dml_allocator allocator; /* zero: malloc */
    /* A host that has threads of its own lends them: called with the number of tasks, it must call
       run(run_argument, task, worker) once for each task, on any threads, each worker number < threads on one
       thread at a time, and return when all have ended. The pool then starts no threads. */
    void (*host_parallel)(void *host, int tasks, dml_pool_task run, void *run_argument);
    void *host;
} dml_pool_options;

/* NULL options: all defaults. Returns NULL when memory or threads can't be had, or when
   `threads` is negative; nothing is then left behind. A pool is used by one thread
   at a time; a task must not call into its own pool. */
DML_API dml_pool *dml_pool_create(const dml_pool_options *options);
DML_API void dml_pool_destroy(dml_pool *pool);

/* How many workers share a loop, the caller included; 1 for NULL. */
DML_API int dml_pool_threads(const dml_pool *pool);

/* Runs `task` for 0 .. tasks - 1 and returns when all have ended. NULL runs them in order on the caller. The
   tasks are handed out one at a time, so which worker runs which differs from run to run: a result that must
   repeat may depend on the task's number only. */
DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument);

/* Each worker's own scratch, for packed panels and partial sums: DML_POOL_SCRATCH_BYTES, 64-byte aligned, its
   content undefined at the start of each loop. NULL for a NULL pool: a kernel then makes do with a small
   array on the stack. */
#define DML_POOL_SCRATCH_BYTES ((size_t)1 << 20)
DML_API void *dml_pool_scratch(dml_pool *pool, int worker);

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
   number of threads. Allocates nothing. DML_ERROR_ARGUMENT for a negative size, a leading dimension that is
   too small, or an unknown layout or transpose; C is then untouched. */
DML_API dml_status dml_sgemm(dml_pool *pool, dml_layout layout, dml_transpose trans_a, dml_transpose trans_b,
                             int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                             int ldb, float beta, float *c, int ldc);

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

/* Each returns DML_ERROR_ARGUMENT for a shape with a size below 1 (batch may be 0, pads are 0 or more) or a
   kernel that doesn't fit, before anything is written. Bitwise the same for any number of threads; allocates
   nothing. */

/* y = conv(x, w) + bias; bias may be NULL. */
DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y);

/* dx = dconv/dx^T dy + beta dx; with beta = 0, dx is not read. */
DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx);

/* dw = dconv/dw^T dy + beta dw. (The bias gradient is dml_sum_rows of dy.) */
DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw);

#endif

/* ---- kernels/pool2d.h ---- */

/* pool2d.h: max and average pooling on raw arrays. */
#ifndef DML_KERNELS_POOL2D_H
#define DML_KERNELS_POOL2D_H

/* x (N, H, W, C), y (N, OH, OW, C), OH = dml_conv2d_output_size(H, kernel_h, stride_h, pad_h). A pad must be
   smaller than its kernel, so that each window holds at least one input. */
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
DML__EXTERN_C const dml_backend *dml_opencl_backend(void);
DML__EXTERN_C const dml_backend *dml_cuda_backend(void);

/* Fills up to `capacity` infos with every device of every backend, best first ("auto" takes the first: a GPU
   before an OpenCL CPU, the CPU backend before an OpenCL CPU), and returns how many there are in all. */
DML_API int dml_devices(dml_device_info *infos, int capacity);

/* The address behind a reference on a host_memory device. */
static inline void *dml__host(dml_ref ref)
{
    return (char *)ref.buffer->host + ref.offset;
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
    const dml_pool_options *pool; /* NULL, or how the pool spins and whose threads it uses; its threads and
                                     allocator are overridden by the ones above */
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

/* How many elements: the product of the dimensions, 1 for a scalar. */
DML_API size_t dml_shape_count(const dml_shape *shape);
DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b);

/* Writes "28 x 28 x 1" ("scalar" for no dimensions) and returns `text`. */
#define DML_SHAPE_TEXT 64
DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT]);

#endif

/* ---- graph/graph.h ---- */

/* graph.h: a model is built as a graph of nodes, each one op on earlier nodes.

   A builder given NULL, or a graph whose context has an error, returns NULL; so a model is written without
   checks and checked once. Nodes belong to their graph, graphs to their context. The batch axis is implicit:
   shapes are those of one sample. */
#ifndef DML_GRAPH_GRAPH_H
#define DML_GRAPH_GRAPH_H

typedef struct dml_graph dml_graph;
typedef struct dml_node dml_node;

DML_API dml_graph *dml_graph_create(dml_context *context);

/* Releases the graph, its parameters and nodes; programs and trainers on it must be destroyed first. */
DML_API void dml_graph_destroy(dml_graph *graph);
DML_API dml_context *dml_graph_context(const dml_graph *graph);

/* What a caller feeds, for each sample: DML_F32 data or DML_I32 labels of `ndim` dimensions, which follow as
   ints: dml_input(g, "image", DML_F32, 3, 28, 28, 1). The name is copied. DML_ERROR_SHAPE for a dimension
   below 1. */
DML_API dml_node *dml_input(dml_graph *graph, const char *name, dml_dtype dtype, int ndim, ...);

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

/* Normal with standard deviation sqrt(2 / fan_in), for layers followed by a ReLU.
   Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015, section 2.2. */
DML_API dml_initializer dml_init_he(int fan_in);

/* A trainable f32 tensor, the same for each sample; its dimensions follow as ints. Parameters lie in the flat
   vector w in the order in which the graph first uses them. The name is copied. DML_ERROR_STATE once a
   program of the graph has been compiled. */
DML_API dml_node *dml_parameter(dml_graph *graph, const char *name, dml_initializer init, int ndim, ...);

DML_API dml_graph *dml_node_graph(const dml_node *node);
DML_API const char *dml_node_name(const dml_node *node); /* "" when it has none */
DML_API const char *dml_node_op(const dml_node *node);   /* "conv2d", "input", "parameter", ... */
DML_API dml_shape dml_node_shape(const dml_node *node);
DML_API dml_dtype dml_node_dtype(const dml_node *node);

/* How many elements the flat vector w has: all parameters of the graph so far. */
DML_API size_t dml_graph_parameter_count(const dml_graph *graph);

#endif

/* ---- graph/op_arithmetic.h ---- */

/* op_arithmetic.h: sums and changes of shape. */
#ifndef DML_GRAPH_OP_ARITHMETIC_H
#define DML_GRAPH_OP_ARITHMETIC_H

/* a + b, of the same shape; also for scalar losses. DML_ERROR_SHAPE when they differ. */
DML_API dml_node *dml_add(dml_node *a, dml_node *b);

/* (d0, d1, ...) as (d0 d1 ...): no data moves. */
DML_API dml_node *dml_flatten(dml_node *x);

#endif

/* ---- graph/op_activation.h ---- */

/* op_activation.h: functions of one element. */
#ifndef DML_GRAPH_OP_ACTIVATION_H
#define DML_GRAPH_OP_ACTIVATION_H

DML_API dml_node *dml_relu(dml_node *x);    /* max(x, 0) */
DML_API dml_node *dml_tanh(dml_node *x);    /* tanh(x) */
DML_API dml_node *dml_sigmoid(dml_node *x); /* 1 / (1 + exp(-x)) */

#endif

/* ---- graph/op_dense.h ---- */

/* op_dense.h: the fully connected layer. */
#ifndef DML_GRAPH_OP_DENSE_H
#define DML_GRAPH_OP_DENSE_H

/* x w^T + bias for x (in), w (units, in), bias (units) or NULL: the op on parameters of your own. */
DML_API dml_node *dml_linear(dml_node *x, dml_node *w, dml_node *bias);

/* A layer with parameters of its own: dml_linear on x (in) -> (units), He-initialised, bias zero. */
DML_API dml_node *dml_dense(dml_node *x, int units);

#endif

/* ---- graph/op_conv2d.h ---- */

/* op_conv2d.h: the convolution layer. */
#ifndef DML_GRAPH_OP_CONV2D_H
#define DML_GRAPH_OP_CONV2D_H

typedef struct dml_conv2d_options {
    int filters;    /* output channels, at least 1: there is no default */
    int kernel[2];  /* height, width; 0: 3 */
    int stride[2];  /* 0: 1 */
    int padding[2]; /* zeros on both sides; 0: none */
    bool no_bias;
} dml_conv2d_options;

/* A layer with parameters of its own: x (H, W, C) -> (OH, OW, filters), weights [filters, kh, kw, C],
   He-initialised, bias zero. OH = (H + 2 padding - kh) / stride + 1. */
DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options);

#endif

/* ---- graph/op_pool2d.h ---- */

/* op_pool2d.h: pooling layers. */
#ifndef DML_GRAPH_OP_POOL2D_H
#define DML_GRAPH_OP_POOL2D_H

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

/* ---- graph/op_loss.h ---- */

/* op_loss.h: losses, each one scalar for the whole batch. */
#ifndef DML_GRAPH_OP_LOSS_H
#define DML_GRAPH_OP_LOSS_H

/* The mean over the batch of -log softmax(logits)[label]: logits f32 (classes), labels an i32 scalar a
   sample, each in 0 .. classes - 1. */
DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels);

/* The mean over all elements of the batch of (a - b)^2, of the same shape. */
DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b);

#endif

/* ---- graph/program.h ---- */

/* program.h: a program is a graph compiled for one output and a largest batch: the ops to run, in order, and
   where each tensor lies in one arena. Several programs of one graph (one to train, one to predict) share its
   parameters.

   After compiling, a run allocates nothing. */
#ifndef DML_GRAPH_PROGRAM_H
#define DML_GRAPH_PROGRAM_H

typedef struct dml_program dml_program;

typedef struct dml_program_options {
    int batch;     /* the most samples of one run, at least 1: there is no default */
    bool training; /* also runs backward; the output must then be a scalar loss */
} dml_program_options;

/* Compiles what `output` needs. NULL, with the error on the context, for a NULL node, a batch below 1, a
   training program whose output is not a scalar f32, or when memory is short. The first compile of a graph
   lays out its parameters and initialises them. */
DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options);
DML_API void dml_program_destroy(dml_program *program);

/* Device bytes of the program's arena: activations, their gradients and what ops keep between forward and
   backward; parameters and their gradients are not counted. */
DML_API size_t dml_program_bytes(const dml_program *program);

/* The inputs that a run wants, in the order of dml_input: how many, and each. */
DML_API int dml_program_inputs(const dml_program *program);
DML_API dml_node *dml_program_input(const dml_program *program, int i);

/* Runs forward on `rows` samples, 1 .. batch. inputs[i] holds `rows` samples for dml_program_input(i);
   `output`, when not NULL, receives the output (for each sample, if it has one for each). Labels that are out
   of range are DML_ERROR_ARGUMENT, before anything is run. */
DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, void *output);

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
    float momentum;     /* sgd: 0 .. 1 */
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
   batch): forward, backward, sync, update. inputs[i] holds `rows` samples for dml_program_input(program, i),
   the inputs in the order of dml_input. `loss`, when not NULL, receives the mean loss of these samples before
   the update; asking for it waits for the device. */
DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, float *loss);

DML_API dml_program *dml_trainer_program(dml_trainer *trainer);
DML_API dml_context *dml_trainer_context(const dml_trainer *trainer);

/* Steps taken, those before a checkpoint included. */
DML_API uint64_t dml_trainer_steps(const dml_trainer *trainer);

/* The learning rate of the steps to come, for schedules: 0 or more, else DML_ERROR_ARGUMENT is recorded. */
DML_API float dml_trainer_lr(const dml_trainer *trainer);
DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr);

/* The flat vectors. Every parameter lies in one vector, its gradient at the same place of another, and the
   optimizer's state in vectors of the same length. */
enum { DML_PARAMETERS, DML_GRADIENTS, DML_OPTIMIZER_STATE /* the first; + i for the next */ };

/* How many elements each has, and how many vectors there are. */
DML_API size_t dml_trainer_parameter_count(const dml_trainer *trainer);
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
   sentence with dml_trainer_fail. */
typedef struct dml_sync {
    void *state;
    /* Once, when dml_trainer_sync attaches it: make all ranks' parameters the same. */
    dml_status (*start)(void *state, dml_trainer *trainer);
    /* Before forward, with this rank's samples of the step. */
    dml_status (*begin)(void *state, dml_trainer *trainer, int rows);
    /* During backward, from the end of g towards its start: g[begin, end) is final. With `ready` or `finish`,
       g holds the gradient of the sum over this rank's samples of their losses, so that shards of any sizes
       add up; else, of the mean. */
    dml_status (*ready)(void *state, dml_trainer *trainer, size_t begin, size_t end);
    /* After backward, before the update: g must hold the gradient to apply when it returns. */
    dml_status (*finish)(void *state, dml_trainer *trainer);
    /* After the update of w. */
    dml_status (*updated)(void *state, dml_trainer *trainer);
    /* When the trainer is destroyed or another strategy is attached. */
    void (*destroy)(void *state, dml_trainer *trainer);
} dml_sync;

/* Attaches a strategy, which the trainer then owns, and starts it. On failure the strategy is destroyed. */
DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync);

/* For strategies: records the error on the trainer's context if it has none; returns `status`. */
DML_API dml_status dml_trainer_fail(dml_trainer *trainer, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* For strategies: sets the number of steps taken, as rank 0 has it. */
DML_API void dml_trainer_set_steps(dml_trainer *trainer, uint64_t steps);

#endif

/* ---- train/checkpoint.h ---- */

/* checkpoint.h: a training run on disk: parameters, optimizer state, seed and step. */
#ifndef DML_TRAIN_CHECKPOINT_H
#define DML_TRAIN_CHECKPOINT_H

#ifndef DML_NO_STDIO

/* Writes the trainer to `path`: aside, synced, then renamed, so that a crash leaves the old file or the new
   one. The file is little-endian, names each parameter and its shape, and ends in a checksum. DML_ERROR_IO
   with a sentence when it can't be written. */
DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path);

/* Reads what dml_trainer_save wrote for the same model and optimizer; training then goes on as if it had
   never stopped (the context takes on the run's seed). DML_ERROR_IO when the file can't be read;
   DML_ERROR_FORMAT when it is no checkpoint, truncated, damaged, or of another model, with what differs; the
   trainer is then unchanged. */
DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path);

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

#include <time.h>

#if (defined(__unix__) || defined(__APPLE__)) && !defined(CLOCK_MONOTONIC)
#error "dml: compile with -D_GNU_SOURCE, or include the dml headers before any system header"
#endif

DML_API double dml_seconds(void)
{
#ifdef CLOCK_MONOTONIC
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
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
    /* __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return DML_ISA_AVX512;
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

DML_API int dml_cpu_count(void)
{
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
#include <pthread.h>
typedef pthread_t dml__thread;
typedef pthread_mutex_t dml__mutex;
typedef pthread_cond_t dml__cond;
#else
typedef int dml__thread;
typedef int dml__mutex;
typedef int dml__cond;
#endif

/* False when the thread can't be had. A thread has every signal blocked: signals are the host's business. */
DML__LOCAL bool dml__thread_start(dml__thread *thread, void (*run)(void *argument), void *argument);
DML__LOCAL void dml__thread_join(dml__thread *thread);

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

#ifndef DML_NO_THREADS

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

/* file.h: whole files in and out of memory. With DML_NO_STDIO there are none. */
#ifndef DML_BASE_FILE_H
#define DML_BASE_FILE_H

#ifndef DML_NO_STDIO

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

#endif

#endif

#ifndef DML_NO_STDIO

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DML__PATH_BYTES 4096

static dml_status dml__file_fail(dml__error *error, const char *what, const char *path)
{
    return dml__fail(error, DML_ERROR_IO, "can't %s \"%.300s\": %s", what, path, strerror(errno));
}

/* Up to `bytes` bytes; fewer at the end of the file, -1 and errno on failure. */
static ptrdiff_t dml__read_fully(int descriptor, char *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const size_t left = bytes - done;
        const ssize_t got = read(descriptor, to + done, left < (1u << 30) ? left : 1u << 30);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ptrdiff_t)done;
}

static bool dml__write_fully(int descriptor, const char *from, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t put = write(descriptor, from, bytes < (1u << 30) ? bytes : 1u << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

static dml_status dml__read_open_file(int descriptor, dml__memory *memory, const char *path, size_t limit,
                                      void **data, size_t *bytes, dml__error *error)
{
    struct stat info;
    if (fstat(descriptor, &info)) return dml__file_fail(error, "read", path);
    if (!S_ISREG(info.st_mode))
        return dml__fail(error, DML_ERROR_IO, "can't read \"%s\": it is no plain file", path);
    if ((uint64_t)info.st_size > limit)
        return dml__fail(error, DML_ERROR_FORMAT, "\"%s\" has %llu bytes, more than the %llu it may have",
                         path, (unsigned long long)info.st_size, (unsigned long long)limit);
    const size_t size = (size_t)info.st_size;
    char *content = (char *)dml__allocate(memory, size);
    if (!content)
        return dml__fail(error, DML_ERROR_MEMORY, "no memory for the %llu bytes of \"%s\"",
                         (unsigned long long)size, path);
    const ptrdiff_t got = dml__read_fully(descriptor, content, size);
    if (got != (ptrdiff_t)size) {
        dml__release(memory, content);
        if (got < 0) return dml__file_fail(error, "read", path);
        return dml__fail(error, DML_ERROR_IO, "\"%s\" became shorter while it was read", path);
    }
    *data = content;
    *bytes = size;
    return DML_OK;
}

DML__LOCAL dml_status dml__file_read(dml__memory *memory, const char *path, size_t limit, void **data,
                                     size_t *bytes, dml__error *error)
{
    *data = NULL;
    *bytes = 0;
    /* O_NONBLOCK: a named pipe must not keep us waiting for its writer before we see that it is one. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return dml__file_fail(error, "open", path);
    const dml_status status = dml__read_open_file(descriptor, memory, path, limit, data, bytes, error);
    close(descriptor);
    return status;
}

/* Opens a new file beside `path` and writes its name. */
static int dml__open_temporary(const char *path, char name[DML__PATH_BYTES])
{
    for (int attempt = 0; attempt < 100; attempt++) {
        const int length = snprintf(name, DML__PATH_BYTES, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        if (length < 0 || length >= DML__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

/* The new name itself must reach the disk; a file system that can't do that for folders says EINVAL. */
static bool dml__sync_folder_of(const char *path)
{
    char folder[DML__PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder) return false;
    memcpy(folder, path, length);
    folder[length] = '\0';
    const int descriptor = open(length ? folder : slash ? "/" : ".", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return errno == EACCES; /* a folder that we may write to but not list */
    const bool ok = fsync(descriptor) == 0 || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

static bool dml__write_parts(int descriptor, const dml__file_part *parts, int count)
{
    for (int i = 0; i < count; i++)
        if (!dml__write_fully(descriptor, (const char *)parts[i].data, parts[i].bytes)) return false;
    return fsync(descriptor) == 0;
}

DML__LOCAL dml_status dml__file_write(const char *path, const dml__file_part *parts, int count,
                                      dml__error *error)
{
    char temporary[DML__PATH_BYTES];
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return dml__fail(error, DML_ERROR_IO, "can't write \"%s\": it is there and no plain file", path);
    const int descriptor = dml__open_temporary(path, temporary);
    if (descriptor < 0) return dml__file_fail(error, "create", path);
    bool ok = dml__write_parts(descriptor, parts, count);
    const int reason = errno;
    if (close(descriptor) == 0 && !ok) errno = reason;
    ok = ok && rename(temporary, path) == 0;
    if (!ok) {
        const int why = errno;
        unlink(temporary);
        errno = why;
        return dml__file_fail(error, "write", path);
    }
    if (!dml__sync_folder_of(path)) return dml__file_fail(error, "write the folder of", path);
    return DML_OK;
}

#endif

#endif

/* ---- thread/pool.c ---- */

#ifndef DML_THREAD_POOL_C
#define DML_THREAD_POOL_C

#if defined(__linux__) && !defined(DML__NO_FUTEX)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(SYS_futex)
#define DML__FUTEX 1
#endif
#endif

/* How a loop runs. The caller writes `tasks`, `task` and `argument`, then publishes `unclaimed`. A worker
   claims a task by decrementing `unclaimed` from a positive value, and only then reads the other three: until
   that task is counted off `unfinished`, the loop can't end and they can't change. So a worker that is late
   for a loop does no harm, and nobody waits for a worker that has claimed nothing. */
struct dml_pool {
    dml__memory memory;
    int threads;
    int spin;
    int started; /* threads running, at most threads - 1 */
    void (*host_parallel)(void *host, int tasks, dml_pool_task run, void *run_argument);
    void *host;
    char *scratch; /* (threads, DML_POOL_SCRATCH_BYTES) */
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
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
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
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
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
    if (sleepers) dml__pool_wake(pool, &pool->unclaimed, sleepers < wanted ? sleepers : wanted);
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

DML_API dml_pool *dml_pool_create(const dml_pool_options *options)
{
    const dml_pool_options defaults = { 0, 0, { NULL, NULL, NULL }, NULL, NULL };
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
    pool->host_parallel = options->host_parallel;
    pool->host = options->host;
    const size_t threads = (size_t)pool->threads;
    pool->scratch = (char *)dml__allocate_array(&pool->memory, threads, DML_POOL_SCRATCH_BYTES);
    pool->workers = (dml__pool_worker *)dml__allocate_array(&pool->memory, threads, sizeof *pool->workers);
    if (!pool->scratch || !pool->workers || (!pool->host_parallel && !dml__pool_start_threads(pool))) {
        dml_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

DML_API void dml_pool_destroy(dml_pool *pool)
{
    if (!pool) return;
    dml__pool_stop_threads(pool);
    dml__cond_destroy(&pool->cond);
    dml__mutex_destroy(&pool->mutex);
    dml__memory memory = pool->memory;
    dml__release(&memory, pool->workers);
    dml__release(&memory, pool->scratch);
    dml__release(&memory, pool);
}

DML_API int dml_pool_threads(const dml_pool *pool)
{
    return pool ? pool->threads : 1;
}

DML_API void dml_pool_run(dml_pool *pool, int tasks, dml_pool_task task, void *argument)
{
    if (tasks > 1 && pool && pool->host_parallel) {
        pool->host_parallel(pool->host, tasks, task, argument);
    } else if (tasks > 1 && pool && pool->started) {
        dml__pool_run_threads(pool, tasks, task, argument);
    } else {
        for (int i = 0; i < tasks; i++) task(argument, i, 0);
    }
}

DML_API void *dml_pool_scratch(dml_pool *pool, int worker)
{
    return pool ? pool->scratch + (size_t)worker * DML_POOL_SCRATCH_BYTES : NULL;
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

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
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

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))

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

#elif defined(__aarch64__)

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
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    static const dml__microkernel avx2 = { 6, 2, 8, dml__run_avx2 };
    static const dml__microkernel avx512 = { 14, 2, 16, dml__run_avx512 };
    const dml_isa isa = dml_cpu_isa();
    if (isa == DML_ISA_AVX512) return &avx512;
    if (isa == DML_ISA_AVX2) return &avx2;
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

/* Bitwise the same for any number of threads; allocates nothing. A NULL pool packs on the stack, in smaller
   blocks, and so packs more often. */
DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product);

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

/* Each worker's scratch holds packed panels; behind them, the first worker's holds the partial sums. Without
   a pool, the stack holds one panel of each factor, or in chunked products a partial sum too. */
#define DML__PARTIAL_BYTES (DML__CHUNKED_C * sizeof(float))
#define DML__PACK_BYTES (DML_POOL_SCRATCH_BYTES - DML__CHUNKS * DML__PARTIAL_BYTES)
#define DML__STACK_FLOATS (DML__PRODUCT_KC * (DML__TILE_ROWS + DML__TILE_COLUMNS))

/* Fewer multiply-adds than this are not worth waking anybody. */
#define DML__SERIAL_WORK 100000.0

static ptrdiff_t dml__smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t dml__quotient_up(ptrdiff_t a, ptrdiff_t b)
{
    return (a + b - 1) / b;
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
    const ptrdiff_t width = dml__round_up(product->n, kernel->lanes);
    if (product->n > kernel->rows || product->n >= product->m || product->n * 4 > width * 3) return plain;
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

/* Computes a range whose panels of B for one block of k fit behind a panel of A in `panels`. */
static void dml__multiply_range(const dml__job *job, const dml__range *range, float *panels)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const int full = kernel->lanes * kernel->vectors;
    const bool in_place = dml__use_in_place(job, range);
    float *panel_a = panels;                                     /* (kc, rows) */
    float *panels_b = panels + DML__PRODUCT_KC * DML__TILE_ROWS; /* (columns / full, kc, full) */
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
    dml__multiply_range(loop->job, &range, (float *)dml_pool_scratch(loop->pool, worker));
}

/* Panels that `bytes` hold, given as the columns of B that fit behind a panel of A. */
static ptrdiff_t dml__columns_that_fit(size_t bytes, const dml__microkernel *kernel)
{
    const ptrdiff_t floats = (ptrdiff_t)(bytes / sizeof(float));
    const ptrdiff_t full = kernel->lanes * kernel->vectors;
    return (floats / DML__PRODUCT_KC - DML__TILE_ROWS) / full * full;
}

static void dml__multiply_blocks(dml_pool *pool, const dml__job *job)
{
    const dml__product *product = &job->product;
    const dml__microkernel *kernel = job->kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, rows = kernel->rows;
    const ptrdiff_t fit = dml__columns_that_fit(DML__PACK_BYTES, kernel);
    /* Panels, not elements: even shares, then halves of the longer side until there is enough to share out.
     */
    ptrdiff_t wide = dml__quotient_up(dml__quotient_up(product->n, full), dml__quotient_up(product->n, fit));
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

static void dml__multiply_alone(const dml__job *job)
{
    const dml__product *product = &job->product;
    float panels[DML__STACK_FLOATS];
    const ptrdiff_t nc = dml__columns_that_fit(sizeof panels, job->kernel);
    for (ptrdiff_t j = 0; j < product->n; j += nc) {
        const dml__range range = { 0, product->m, j, dml__smaller(product->n, j + nc), 0, product->k };
        dml__multiply_range(job, &range, panels);
    }
}

/* --- sharing k, in chunks --- */

typedef struct dml__chunk_loop {
    const dml__product *product;
    dml__job job; /* its partial sums, dense; C is set for each chunk */
    dml_pool *pool;
    ptrdiff_t chunk; /* of k, a multiple of DML__PRODUCT_KC */
    int chunks;
    float *partial; /* (chunks, m, n) */
} dml__chunk_loop;

static void dml__compute_chunk(const dml__chunk_loop *loop, int c, float *partial, float *panels,
                               size_t bytes)
{
    dml__job job = loop->job;
    job.product.c = partial;
    const ptrdiff_t m = job.product.m, n = job.product.n, nc = dml__columns_that_fit(bytes, job.kernel);
    const ptrdiff_t k0 = c * loop->chunk, k1 = dml__smaller(job.product.k, k0 + loop->chunk);
    for (ptrdiff_t j = 0; j < n; j += nc) {
        const dml__range range = { 0, m, j, dml__smaller(n, j + nc), k0, k1 };
        dml__multiply_range(&job, &range, panels);
    }
}

static void dml__chunk_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    dml__compute_chunk(loop, task, loop->partial + task * loop->product->m * loop->product->n,
                       (float *)dml_pool_scratch(loop->pool, worker), DML__PACK_BYTES);
}

/* Adds chunk c's partial sums of row i to C; chunk 0 begins with beta C + bias. */
static void dml__add_chunk(const dml__product *product, int c, ptrdiff_t i, const float *partial)
{
    float *row = product->c + i * product->ldc;
    for (ptrdiff_t j = 0; j < product->n; j++) {
        float old = c || product->beta != 0 ? row[j] : 0;
        if (c == 0 && product->bias)
            old = product->bias[j];
        else if (c == 0)
            old *= product->beta;
        row[j] = old + product->alpha * partial[j];
    }
}

static void dml__add_chunks_task(void *argument, int task, int worker)
{
    const dml__chunk_loop *loop = (const dml__chunk_loop *)argument;
    const dml__product *product = loop->product;
    (void)worker;
    for (int c = 0; c < loop->chunks; c++)
        dml__add_chunk(product, c, task, loop->partial + (c * product->m + task) * product->n);
}

static void dml__chunk_alone(const dml__chunk_loop *loop)
{
    float panels[DML__STACK_FLOATS], partial[DML__CHUNKED_C];
    for (int c = 0; c < loop->chunks; c++) {
        dml__compute_chunk(loop, c, partial, panels, sizeof panels);
        for (ptrdiff_t i = 0; i < loop->product->m; i++)
            dml__add_chunk(loop->product, c, i, partial + i * loop->product->n);
    }
}

static void dml__multiply_chunks(dml_pool *pool, const dml__product *product)
{
    dml__product part = *product;
    part.alpha = 1;
    part.beta = 0;
    part.bias = NULL;
    part.ldc = part.n;
    const ptrdiff_t blocks = dml__quotient_up(product->k, DML__PRODUCT_KC);
    const ptrdiff_t chunk = dml__quotient_up(blocks, dml__smaller(blocks, DML__CHUNKS)) * DML__PRODUCT_KC;
    const int chunks = (int)dml__quotient_up(product->k, chunk);
    dml__chunk_loop loop = { product, dml__plan_product(&part), pool, chunk, chunks, NULL };
    if (!pool) {
        dml__chunk_alone(&loop);
        return;
    }
    loop.partial = (float *)(void *)((char *)dml_pool_scratch(pool, 0) + DML__PACK_BYTES);
    dml_pool_run(pool, loop.chunks, dml__chunk_task, &loop);
    dml_pool_run(pool, (int)product->m, dml__add_chunks_task, &loop);
}

DML__LOCAL void dml__multiply(dml_pool *pool, const dml__product *product)
{
    if (product->m <= 0 || product->n <= 0) return;
    if (product->k <= 0 || product->alpha == 0) {
        dml__scale_c(product);
        return;
    }
    if (product->k >= 4 * DML__PRODUCT_KC && product->m <= DML__CHUNKED_C / product->n) {
        dml__multiply_chunks(pool, product);
        return;
    }
    const dml__job job = dml__plan_product(product);
    if (pool)
        dml__multiply_blocks(pool, &job);
    else
        dml__multiply_alone(&job);
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

#endif

/* ---- kernels/conv2d.c ---- */

#ifndef DML_KERNELS_CONV2D_C
#define DML_KERNELS_CONV2D_C

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

static dml_status dml__conv_init(dml__conv *conv, const dml_conv2d_shape *shape, const float *image,
                                 const float *weights)
{
    if (!shape || shape->batch < 0 || shape->channels < 1 || shape->filters < 1) return DML_ERROR_ARGUMENT;
    conv->shape = *shape;
    conv->out_h = dml_conv2d_output_size(shape->height, shape->kernel_h, shape->stride_h, shape->pad_h);
    conv->out_w = dml_conv2d_output_size(shape->width, shape->kernel_w, shape->stride_w, shape->pad_w);
    conv->image = image;
    conv->weights = weights;
    return conv->out_h && conv->out_w ? DML_OK : DML_ERROR_ARGUMENT;
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

#endif

/* ---- kernels/blocks.c ---- */

#ifndef DML_KERNELS_BLOCKS_C
#define DML_KERNELS_BLOCKS_C

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

#if defined(__x86_64__) || defined(__i386__)
#define DML__X86 1
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
#ifdef DML__X86
#define DML__PER_ISA(name, parameters, arguments)                                                            \
    __attribute__((                                                                                          \
        target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))) static void name##_avx512 parameters         \
    {                                                                                                        \
        name##_body arguments;                                                                               \
    }                                                                                                        \
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
        if (isa == DML_ISA_AVX512)                                                                           \
            name##_avx512 arguments;                                                                         \
        else if (isa == DML_ISA_AVX2)                                                                        \
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

static inline size_t dml__divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

#endif

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

/* False for a shape that the header rules out, or whose places or rows don't fit an int. */
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
    return job->out_height > 0 && job->out_width > 0;
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
    float *y; /* (columns) */
    float partial[DML__SUM_ROWS_BLOCKS][DML__SUM_ROWS_SPLIT];
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
        for (size_t c = 0; c < count; c++) job->partial[row / job->rows_per_block][c] = total[c];
    else
        dml__finish_columns(job, column, count, total);
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
    const size_t tasks = job.blocks * dml__divide_up(columns, job.group);
    dml_pool_run(rows * columns > DML__BLOCK ? pool : NULL, (int)tasks, dml__sum_rows_task, &job);
    if (job.blocks > 1) {
        for (size_t b = 1; b < job.blocks; b++)
            for (size_t c = 0; c < columns; c++) job.partial[0][c] += job.partial[b][c];
        dml__finish_columns(&job, 0, columns, job.partial[0]);
    }
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
};

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

/* The pool's view of the context's memory. */
static void *dml__context_allocate(void *user, size_t bytes)
{
    return dml__allocate((dml__memory *)user, bytes);
}

static void dml__context_release(void *user, void *memory)
{
    dml__release((dml__memory *)user, memory);
}

static void dml__open_pool(dml_context *context, const dml_options *options)
{
    dml_pool_options pool_options;
    memset(&pool_options, 0, sizeof pool_options);
    if (options->pool) pool_options = *options->pool;
    pool_options.threads = options->threads;
    pool_options.allocator.allocate = dml__context_allocate;
    pool_options.allocator.release = dml__context_release;
    pool_options.allocator.user = &context->memory;
    if (options->threads < 0)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "%d threads asked for: give 0 for one a core, or 1 or more", options->threads);
    else if (!(context->pool = dml_pool_create(&pool_options)))
        dml__fail(&context->error, DML_ERROR_MEMORY,
                  "no memory or threads left for a pool of %d threads, which takes %zu bytes for each",
                  options->threads ? options->threads : dml_cpu_count(), DML_POOL_SCRATCH_BYTES);
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
        dml__fail(&context->error, DML_ERROR_DEVICE, "no device '%s': this build has %s%s", id, known,
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
    if (!options->allocator.allocate != !options->allocator.release)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "an allocator with only one of allocate and release: give both, or neither for malloc");
    else
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

DML_API void dml_close(dml_context *context)
{
    if (!context) return;
    while (context->owned) context->owned->destroy(context->owned);
    if (context->device_open) context->device.backend->close(&context->device);
    dml_pool_destroy(context->pool);
    dml__memory memory = context->memory;
    dml__release(&memory, context);
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
    context->device.backend->buffer_destroy(&context->device, buffer);
    dml__release(&context->memory, buffer);
}

#endif

/* ---- graph/shape.c ---- */

#ifndef DML_GRAPH_SHAPE_C
#define DML_GRAPH_SHAPE_C

#include <stdio.h>
#include <string.h>

DML_API size_t dml_shape_count(const dml_shape *shape)
{
    size_t count = 1;
    for (int i = 0; i < shape->ndim; i++) count *= (size_t)shape->dims[i];
    return count;
}

DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b)
{
    return a->ndim == b->ndim && memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof a->dims[0]) == 0;
}

DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT])
{
    size_t used = 0;
    snprintf(text, DML_SHAPE_TEXT, "scalar");
    for (int i = 0; i < shape->ndim && used < DML_SHAPE_TEXT; i++)
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
#define DML__NAME_LENGTH 48

struct dml__op;

struct dml_node {
    dml_graph *graph;
    dml_node *next; /* in order of creation, which is a topological order */
    int index;      /* in that order */
    const struct dml__op *op;
    char name[DML__NAME_LENGTH];
    dml_dtype dtype;
    dml_shape shape;
    bool batched; /* one such tensor for each sample; parameters and losses are not */
    int inputs;
    dml_node *input[DML__MAX_INPUTS];
    void *attributes; /* the op's own */
    /* input: values must be in 0 .. limit - 1; 0: any (set by the op that indexes with them) */
    int limit;
    /* parameter: */
    dml_initializer init;
    bool used;     /* by some op */
    size_t offset; /* in w and g, in elements; set when the graph is frozen */
    dml_node *next_parameter;
};

struct dml_graph {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_node *first, *last;
    int nodes;
    /* Parameters in order of their first use, which is their order in w. */
    dml_node *first_parameter, *last_parameter;
    size_t parameter_count; /* elements of w */
    dml_buffer *w;          /* on the device; NULL until frozen */
};

/* Appends a node and lets its op check the inputs and set dtype, shape and batched; `attributes` are copied.
   NULL, with the error recorded, when an input is NULL or of another graph, or the op refuses. */
DML__LOCAL dml_node *dml__node_create(const struct dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes);

/* Records an error about building `node`, prefixed with its op and name. */
DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* Lays the parameters out in w, allocates and initialises it; called by the first compile. */
DML__LOCAL dml_status dml__graph_freeze(dml_graph *graph);

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
    int rows; /* samples in this run, 1 .. batch */
    bool training;
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
    bool view; /* the output is input 0's memory under another shape: nothing runs */
} dml__op;

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
    while (graph->first) {
        dml_node *node = graph->first;
        graph->first = node->next;
        dml__release(&context->memory, node->attributes);
        dml__release(&context->memory, node);
    }
    dml__buffer_destroy(context, graph->w);
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
    dml__own(context, &graph->owned, dml__graph_destroy_owned);
    return graph;
}

DML_API void dml_graph_destroy(dml_graph *graph)
{
    if (graph) dml__graph_destroy_owned(&graph->owned);
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
    return dml__fail(&dml__node_context(node)->error, status, "%s%s%s%s: %s", node->op->name,
                     node->name[0] ? " '" : "", node->name, node->name[0] ? "'" : "", text);
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
    parameter->offset = graph->parameter_count;
    graph->parameter_count += dml_shape_count(&parameter->shape);
}

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
                          "a new parameter, but the graph's parameters were laid out by its first compile; "
                          "build the whole model first");
}

/* A node that nobody can see yet. */
static dml_node *dml__node_allocate(dml_graph *graph, const dml__op *op, const void *attributes,
                                    size_t attribute_bytes)
{
    dml__memory *memory = &graph->context->memory;
    dml_node *node = (dml_node *)dml__allocate(memory, sizeof *node);
    void *copy = attribute_bytes ? dml__allocate(memory, attribute_bytes) : NULL;
    if (!node || (attribute_bytes && !copy)) {
        dml__release(memory, node);
        dml__release(memory, copy);
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a node '%s'", op->name);
        return NULL;
    }
    if (copy) memcpy(copy, attributes, attribute_bytes);
    node->graph = graph;
    node->op = op;
    node->attributes = copy;
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

static void dml__node_release(dml_node *node)
{
    dml__memory *memory = &node->graph->context->memory;
    dml__release(memory, node->attributes);
    dml__release(memory, node);
}

DML__LOCAL dml_node *dml__node_create(const dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes)
{
    DML_ASSERT(inputs >= 1 && inputs <= DML__MAX_INPUTS);
    for (int i = 0; i < inputs; i++)
        if (!input[i]) return NULL;
    dml_graph *graph = input[0]->graph;
    if (graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, attributes, attribute_bytes);
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
        dml__node_release(node);
        return NULL;
    }
    for (int i = 0; i < inputs; i++) dml__note_first_use(graph, input[i]);
    dml__node_append(node);
    return node;
}

/* A node without inputs: an input or a parameter. */
static dml_node *dml__leaf_create(dml_graph *graph, const dml__op *op, const char *name, dml_dtype dtype,
                                  int ndim, va_list dims)
{
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, NULL, 0);
    if (!node) return NULL;
    snprintf(node->name, sizeof node->name, "%s", name ? name : "");
    node->dtype = dtype;
    node->batched = op == dml__input_op();
    dml_status status = DML_OK;
    if (ndim < 0 || ndim > DML_MAX_DIMS) {
        status = dml__node_fail(node, DML_ERROR_SHAPE, "%d dimensions asked for, 0 to %d are possible", ndim,
                                DML_MAX_DIMS);
        ndim = 0;
    }
    node->shape.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        const int dim = va_arg(dims, int);
        node->shape.dims[i] = dim;
        if (dim < 1 && status == DML_OK)
            status =
                dml__node_fail(node, DML_ERROR_SHAPE, "dimension %d is %d, it must be 1 or more", i, dim);
    }
    if (status == DML_OK) status = dml__check_count(node);
    if (status == DML_OK && graph->w && op == dml__parameter_op()) status = dml__refuse_new_parameter(node);
    if (status == DML_OK) {
        dml__node_append(node);
        return node;
    }
    dml__node_release(node);
    return NULL;
}

DML_API dml_node *dml_input(dml_graph *graph, const char *name, dml_dtype dtype, int ndim, ...)
{
    if (graph && dtype != DML_F32 && dtype != DML_I32) {
        dml__fail(&graph->context->error, DML_ERROR_UNSUPPORTED,
                  "input '%s': dtype %s asked for, f32 and i32 are possible", name ? name : "",
                  dml_dtype_name(dtype));
        return NULL;
    }
    va_list dims;
    va_start(dims, ndim);
    dml_node *node = dml__leaf_create(graph, dml__input_op(), name, dtype, ndim, dims);
    va_end(dims);
    return node;
}

DML_API dml_node *dml_parameter(dml_graph *graph, const char *name, dml_initializer init, int ndim, ...)
{
    if (graph && (unsigned)init.kind > DML_INIT_NORMAL) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "parameter '%s': no initializer of kind %d",
                  name ? name : "", (int)init.kind);
        return NULL;
    }
    va_list dims;
    va_start(dims, ndim);
    dml_node *node = dml__leaf_create(graph, dml__parameter_op(), name, DML_F32, ndim, dims);
    va_end(dims);
    if (node) node->init = init;
    return node;
}

DML_API dml_initializer dml_init_he(int fan_in)
{
    const dml_initializer init = { DML_INIT_NORMAL, 0.0f, sqrtf(2.0f / (float)(fan_in > 0 ? fan_in : 1)) };
    return init;
}

/* Stream numbers of the parameters' initial values: the place in w, so that a parameter's numbers depend on
   the seed and the model alone. */
static void dml__initialise(const dml_node *parameter, uint64_t seed, float *w)
{
    const dml_random random = { seed, 0x57u /* 'W' */, 0 };
    const dml_initializer *init = &parameter->init;
    const size_t count = dml_shape_count(&parameter->shape);
    for (size_t i = 0; i < count; i++) {
        const uint64_t element = (uint64_t)(parameter->offset + i);
        switch (init->kind) {
        case DML_INIT_CONSTANT: w[i] = init->a; break;
        case DML_INIT_UNIFORM:
            w[i] = init->a + (init->b - init->a) * dml_random_uniform(&random, element);
            break;
        case DML_INIT_NORMAL: w[i] = init->a + init->b * dml_random_normal(&random, element); break;
        }
    }
}

DML__LOCAL dml_status dml__graph_freeze(dml_graph *graph)
{
    if (graph->w) return DML_OK;
    dml_context *context = graph->context;
    dml_device *device = &context->device;
    size_t largest = 1;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        if (dml_shape_count(&p->shape) > largest) largest = dml_shape_count(&p->shape);
    if (graph->parameter_count > SIZE_MAX / sizeof(float) / 2)
        return dml__fail(&context->error, DML_ERROR_MEMORY,
                         "%zu parameters are more than there are addresses for", graph->parameter_count);
    dml_buffer *w = dml__buffer_create(context, graph->parameter_count * sizeof(float));
    if (!w) return context->error.status;
    float *host = (float *)dml__allocate_array(&context->memory, largest, sizeof *host);
    dml_status status = DML_OK;
    if (!host)
        status = dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to initialise %zu parameters",
                           largest);
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        dml__initialise(p, context->seed, host);
        const dml_ref to = { w, p->offset * sizeof(float) };
        status = device->backend->write(device, to, host, dml_shape_count(&p->shape) * sizeof(float));
    }
    dml__release(&context->memory, host);
    if (status == DML_OK)
        graph->w = w;
    else
        dml__buffer_destroy(context, w);
    return status;
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

DML_API size_t dml_graph_parameter_count(const dml_graph *graph)
{
    return graph ? graph->parameter_count : 0;
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
    unsigned accumulates;  /* bit i: in backward, another op wrote the gradient of input i before this one */
    size_t value, gradient, saved; /* bytes into the arena, of roots */
    size_t final_from;             /* after this node's backward, g[final_from ..] is final */
} dml__slot;

struct dml_program {
    dml__owned owned; /* first: the context destroys through it */
    dml_graph *graph;
    dml_node *output;
    int batch;
    bool training;
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

/* Forward and backward of a training program: the gradient of loss_scale x loss. `loss` may be NULL. */
DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         uint32_t step, float loss_scale,
                                         const dml__gradient_listener *listener, float *loss);

#endif

#include <string.h>

DML__LOCAL const dml__op *dml__input_op(void)
{
    static const dml__op op = { "input", NULL, NULL, NULL, 0, NULL, false };
    return &op;
}

DML__LOCAL const dml__op *dml__parameter_op(void)
{
    static const dml__op op = { "parameter", NULL, NULL, NULL, 0, NULL, false };
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
    return (dml__slot_of(run, node)->accumulates >> i) & 1u ? 1.0f : 0.0f;
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

/* ---- graph/ops.c ---- */

#ifndef DML_GRAPH_OPS_C
#define DML_GRAPH_OPS_C

/* ---- graph/ops.h ---- */

/* ops.h: the op table. Adding an op is its own file, a row here, and its shared kernels for the GPUs. */
#ifndef DML_GRAPH_OPS_H
#define DML_GRAPH_OPS_H

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

/* ---- graph/op_arithmetic.c ---- */

#ifndef DML_GRAPH_OP_ARITHMETIC_C
#define DML_GRAPH_OP_ARITHMETIC_C

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
    static const dml__op op = { "add", dml__add_infer, dml__add_op_forward, dml__add_op_backward, 0,
                                NULL,  false };
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
    static const dml__op op = { "flatten", dml__flatten_infer, NULL, NULL, 0, NULL, true };
    return &op;
}

DML_API dml_node *dml_flatten(dml_node *x)
{
    return dml__node_create(dml__flatten_op(), 1, &x, NULL, 0);
}

#endif

/* ---- graph/op_activation.c ---- */

#ifndef DML_GRAPH_OP_ACTIVATION_C
#define DML_GRAPH_OP_ACTIVATION_C

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
                                    false };                                                                 \
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

/* ---- graph/op_dense.c ---- */

#ifndef DML_GRAPH_OP_DENSE_C
#define DML_GRAPH_OP_DENSE_C

static dml_status dml__dense_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    char x_text[DML_SHAPE_TEXT], w_text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim != 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its input is %s %s; it takes one row of f32 a sample (dml_flatten)",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, x_text));
    if (w->batched || w->shape.ndim != 2 || w->shape.dims[1] != x->shape.dims[0])
        return dml__node_fail(
            node, DML_ERROR_SHAPE, "its input is %s and its weights %s; they must be units x %d",
            dml_shape_format(&x->shape, x_text), dml_shape_format(&w->shape, w_text), x->shape.dims[0]);
    if (bias && (bias->batched || bias->shape.ndim != 1 || bias->shape.dims[0] != w->shape.dims[0]))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s, it must be %d",
                              dml_shape_format(&bias->shape, x_text), w->shape.dims[0]);
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

DML__LOCAL const dml__op *dml__dense_op(void)
{
    static const dml__op op = { "dense",
                                dml__dense_infer,
                                dml__dense_op_forward,
                                dml__dense_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false };
    return &op;
}

DML_API dml_node *dml_linear(dml_node *x, dml_node *w, dml_node *bias)
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
    const dml_initializer zero = { DML_INIT_CONSTANT, 0.0f, 0.0f };
    const int in = x->shape.ndim == 1 ? x->shape.dims[0] : (int)dml_shape_count(&x->shape);
    dml_node *w = dml_parameter(x->graph, "dense.weight", dml_init_he(in), 2, units, in);
    dml_node *bias = dml_parameter(x->graph, "dense.bias", zero, 1, units);
    return bias ? dml_linear(x, w, bias) : NULL;
}

#endif

/* ---- graph/op_conv2d.c ---- */

#ifndef DML_GRAPH_OP_CONV2D_C
#define DML_GRAPH_OP_CONV2D_C

#include <string.h>

static dml_status dml__conv2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_options *options = (const dml_conv2d_options *)node->attributes;
    char x_text[DML_SHAPE_TEXT];
    const dml_status status = dml__check_image_input(node);
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

static dml_conv2d_shape dml__conv2d_run_shape(const dml__run *run, const dml_node *node)
{
    const int *x = node->input[0]->shape.dims;
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const dml_conv2d_shape shape = { run->rows,    x[0],          x[1],         x[2],
                                     o->filters,   o->kernel[0],  o->kernel[1], o->stride[0],
                                     o->stride[1], o->padding[0], o->padding[1] };
    return shape;
}

static dml_launch dml__conv2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size_x, size_t size_y)
{
    const dml_conv2d_shape s = dml__conv2d_run_shape(run, node);
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
    const dml_conv2d_shape s = dml__conv2d_run_shape(run, node);
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
    const dml_conv2d_shape s = dml__conv2d_run_shape(run, node);
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
    const dml_conv2d_shape s = dml__conv2d_run_shape(run, node);
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

DML__LOCAL const dml__op *dml__conv2d_op(void)
{
    static const dml__op op = { "conv2d",
                                dml__conv2d_infer,
                                dml__conv2d_op_forward,
                                dml__conv2d_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false };
    return &op;
}

static dml_initializer dml__conv2d_init(const dml_conv2d_options *options, int channels)
{
    const int64_t pixels = (int64_t)options->kernel[0] * options->kernel[1];
    return dml_init_he(pixels > INT32_MAX / channels ? INT32_MAX : (int)pixels * channels);
}

DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options)
{
    if (!x) return NULL;
    dml_conv2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    for (int axis = 0; axis < 2; axis++) {
        if (!o.kernel[axis]) o.kernel[axis] = 3;
        if (!o.stride[axis]) o.stride[axis] = 1;
    }
    if (o.filters < 1 || o.kernel[0] < 1 || o.kernel[1] < 1) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "conv2d: %d filters of %d x %d asked for, each must be 1 or more", o.filters, o.kernel[0],
                  o.kernel[1]);
        return NULL;
    }
    const dml_initializer zero = { DML_INIT_CONSTANT, 0.0f, 0.0f };
    const int channels = x->shape.ndim == 3 ? x->shape.dims[2] : 1;
    dml_node *inputs[3];
    inputs[0] = x;
    inputs[1] = dml_parameter(x->graph, "conv2d.weight", dml__conv2d_init(&o, channels), 4, o.filters,
                              o.kernel[0], o.kernel[1], channels);
    inputs[2] = o.no_bias ? NULL : dml_parameter(x->graph, "conv2d.bias", zero, 1, o.filters);
    return dml__node_create(dml__conv2d_op(), o.no_bias ? 2 : 3, inputs, &o, sizeof o);
}

#endif

/* ---- graph/op_pool2d.c ---- */

#ifndef DML_GRAPH_OP_POOL2D_C
#define DML_GRAPH_OP_POOL2D_C

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
                                false };
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
    static const dml__op op = {
        "avg_pool2d", dml__pool2d_infer, dml__avg_pool2d_op_forward, dml__avg_pool2d_op_backward, 0, NULL,
        false
    };
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

/* ---- graph/op_loss.c ---- */

#ifndef DML_GRAPH_OP_LOSS_C
#define DML_GRAPH_OP_LOSS_C

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
    const int classes = logits->shape.dims[0];
    if (!labels->limit || classes < labels->limit) labels->limit = classes;
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

DML__LOCAL const dml__op *dml__softmax_cross_entropy_op(void)
{
    static const dml__op op = { "softmax_cross_entropy",
                                dml__softmax_cross_entropy_infer,
                                dml__softmax_cross_entropy_op_forward,
                                dml__softmax_cross_entropy_op_backward,
                                DML__NEEDS_INPUT(1),
                                dml__softmax_cross_entropy_saved_bytes,
                                false };
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

DML__LOCAL const dml__op *dml__mean_squared_error_op(void)
{
    static const dml__op op = { "mean_squared_error",
                                dml__mean_squared_error_infer,
                                dml__mean_squared_error_op_forward,
                                dml__mean_squared_error_op_backward,
                                DML__NEEDS_INPUTS,
                                NULL,
                                false };
    return &op;
}

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b)
{
    dml_node *const inputs[] = { a, b };
    return dml__node_create(dml__mean_squared_error_op(), 2, inputs, NULL, 0);
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

/* ---- graph/program.c ---- */

#ifndef DML_GRAPH_PROGRAM_C
#define DML_GRAPH_PROGRAM_C

#include <string.h>

static void dml__program_destroy_owned(dml__owned *owned)
{
    dml_program *program = (dml_program *)(void *)owned;
    dml_context *context = program->graph->context;
    dml__disown(context, owned);
    dml__buffer_destroy(context, program->arena);
    dml__buffer_destroy(context, program->g);
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
        program->slot_of_node[i] = s;
        slot->root = node[i]->op->view ? dml__input_slot(program, slot, 0)->root : s;
        if (node[i]->op == dml__input_op()) program->input[program->inputs++] = node[i];
    }
    dml__release(&context->memory, node);
    return DML_OK;
}

/* Step 2: which gradients there are: those with a parameter behind them through which the output's gradient
 * flows. */
static void dml__find_gradients(dml_program *program)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->has_gradient = slot->node->op == dml__parameter_op();
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

static dml_status dml__place_blocks(dml_program *program)
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
        program->bytes = dml__plan_memory(blocks, count, order);
        for (int s = 0; s < program->slots; s++) {
            program->slot[s].value = blocks[3 * s].offset;
            program->slot[s].gradient = blocks[3 * s + 1].offset;
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
    const size_t g_bytes = program->graph->parameter_count * sizeof(float);
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

DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options)
{
    if (!output || dml__check_compile(output, options) != DML_OK) return NULL;
    dml_graph *graph = output->graph;
    if (dml__graph_freeze(graph) != DML_OK) return NULL;
    dml_program *program = (dml_program *)dml__allocate(&graph->context->memory, sizeof *program);
    if (!program) {
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a program");
        return NULL;
    }
    program->graph = graph;
    program->output = output;
    program->batch = options->batch;
    program->training = options->training;
    dml__own(graph->context, &program->owned, dml__program_destroy_owned);
    dml_status status = dml__collect_slots(program);
    if (status == DML_OK && program->training) {
        dml__find_gradients(program);
        dml__order_gradients(program);
        if (!program->slot[program->slots - 1].has_gradient)
            status = dml__node_fail(output, DML_ERROR_ARGUMENT,
                                    "it depends on no parameter: there is nothing to train");
    }
    if (status == DML_OK) status = dml__place_blocks(program);
    if (status == DML_OK) status = dml__allocate_program(program);
    if (status == DML_OK) {
        dml__log(&graph->context->logger, DML_LOG_DEBUG, "compiled %d nodes for %d samples%s: %zu bytes",
                 program->slots, program->batch, program->training ? " to train" : "", program->bytes);
        return program;
    }
    dml_program_destroy(program);
    return NULL;
}

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

/* Values that some op indexes with must be inside its range: checked here, on the host, for every device. */
static dml_status dml__check_labels(const dml_node *input, int rows, const int32_t *values)
{
    const size_t each = dml_shape_count(&input->shape);
    for (size_t i = 0; input->limit && i < each * (size_t)rows; i++)
        if (values[i] < 0 || values[i] >= input->limit)
            return dml__node_fail(input, DML_ERROR_ARGUMENT,
                                  "sample %d of the batch is %d, it must be in 0 .. %d", (int)(i / each),
                                  (int)values[i], input->limit - 1);
    return DML_OK;
}

static dml_status dml__feed(const dml__run *run, const void *const *inputs)
{
    const dml_program *program = run->program;
    dml_status status = DML_OK;
    if (run->rows < 1 || run->rows > program->batch)
        return dml__fail(&run->context->error, DML_ERROR_ARGUMENT,
                         "a run of %d samples asked for; this program takes 1 to %d", run->rows,
                         program->batch);
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        const dml_node *input = program->input[i];
        if (!inputs || !inputs[i])
            return dml__node_fail(input, DML_ERROR_ARGUMENT, "input %d of %d is NULL", i + 1,
                                  program->inputs);
        if (input->limit) status = dml__check_labels(input, run->rows, (const int32_t *)inputs[i]);
    }
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        const size_t bytes = dml__count(run, program->input[i]) * dml_dtype_size(program->input[i]->dtype);
        status =
            run->device->backend->write(run->device, dml__value(run, program->input[i]), inputs[i], bytes);
    }
    return status;
}

static dml_status dml__forward(const dml__run *run, const void *const *inputs)
{
    dml_status status = dml__feed(run, inputs);
    for (int s = 0; s < run->program->slots && status == DML_OK; s++) {
        const dml_node *node = run->program->slot[s].node;
        if (node->op->forward) status = node->op->forward(run, node);
    }
    return status;
}

static dml_status dml__backward(const dml__run *run, float loss_scale, const dml__gradient_listener *listener)
{
    const dml_program *program = run->program;
    size_t final_from = program->graph->parameter_count;
    dml_status status = run->device->backend->write(run->device, dml__gradient(run, program->output),
                                                    &loss_scale, sizeof loss_scale);
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

static dml__run dml__begin_run(dml_program *program, int rows, uint32_t step)
{
    dml_context *context = program->graph->context;
    const dml__run run = { program, context, &context->device, context->pool, rows, program->training, step };
    return run;
}

static dml_status dml__read_output(const dml__run *run, void *output)
{
    const dml_node *node = run->program->output;
    const size_t bytes = dml__count(run, node) * dml_dtype_size(node->dtype);
    return run->device->backend->read(run->device, output, dml__value(run, node), bytes);
}

DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, void *output)
{
    if (!program) return DML_ERROR_ARGUMENT;
    const dml__run run = dml__begin_run(program, rows, 0);
    if (run.context->error.status != DML_OK) return run.context->error.status;
    const dml_status status = dml__forward(&run, inputs);
    return status == DML_OK && output ? dml__read_output(&run, output) : status;
}

DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         uint32_t step, float loss_scale,
                                         const dml__gradient_listener *listener, float *loss)
{
    const dml__run run = dml__begin_run(program, rows, step);
    if (run.context->error.status != DML_OK) return run.context->error.status;
    dml_status status = dml__forward(&run, inputs);
    if (status == DML_OK) status = dml__backward(&run, loss_scale, listener);
    return status == DML_OK && loss ? dml__read_output(&run, loss) : status;
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
    /* How many vectors as long as w it keeps. */
    int (*states)(const dml_optimizer *optimizer);
    dml_status (*update)(const dml_optimizer *optimizer, const dml__update *update);
} dml__optimizer_row;

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
        { "sgd", dml__sgd_states, dml__sgd_step },
    };
    return (unsigned)kind < sizeof rows / sizeof rows[0] ? &rows[kind] : NULL;
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
    float *mirror[DML__MAX_VECTORS];      /* host copies, where the device has memory of its own */
    int vectors;
    uint64_t steps;
    dml_sync sync;
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
        dml__release(&context->memory, trainer->mirror[v]);
        if (v >= DML_OPTIMIZER_STATE) dml__buffer_destroy(context, trainer->vector[v]);
    }
    dml_program_destroy(trainer->program);
    dml__release(&context->memory, trainer);
}

DML_API void dml_trainer_destroy(dml_trainer *trainer)
{
    if (trainer) dml__trainer_destroy_owned(&trainer->owned);
}

/* Far above any that is meant; it refuses infinity. */
#define DML__MAX_LR 1e6f

static dml_status dml__check_optimizer(dml_context *context, const dml_optimizer *o)
{
    if (!dml__optimizer_row_of(o->kind))
        return dml__fail(&context->error, DML_ERROR_ARGUMENT, "no optimizer of kind %d", (int)o->kind);
    /* Written so that a NaN is refused too. */
    if (!(o->lr > 0.0f && o->lr <= DML__MAX_LR) || !(o->momentum >= 0.0f && o->momentum < 1.0f) ||
        !(o->weight_decay >= 0.0f && o->weight_decay <= 1e6f))
        return dml__fail(
            &context->error, DML_ERROR_ARGUMENT,
            "optimizer with lr %g, momentum %g, weight decay %g: lr must be above 0, momentum in 0 .. 1 "
            "(below 1), weight decay 0 or more",
            (double)o->lr, (double)o->momentum, (double)o->weight_decay);
    if (o->nesterov && o->momentum == 0.0f)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT, "Nesterov momentum needs a momentum above 0");
    return DML_OK;
}

static dml_status dml__trainer_allocate(dml_trainer *trainer)
{
    dml_context *context = trainer->context;
    const size_t count = dml_trainer_parameter_count(trainer);
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
    for (int v = 0; v < trainer->vectors && !context->device.host_memory; v++) {
        trainer->mirror[v] = (float *)dml__allocate_array(&context->memory, count, sizeof(float));
        if (!trainer->mirror[v])
            return dml__fail(&context->error, DML_ERROR_MEMORY,
                             "no memory left for the host's copy of %zu parameters", count);
    }
    return DML_OK;
}

DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options)
{
    if (!loss) return NULL;
    dml_context *context = loss->graph->context;
    dml_optimizer optimizer;
    memset(&optimizer, 0, sizeof optimizer);
    if (options) optimizer = options->optimizer;
    if (optimizer.lr == 0.0f) optimizer.lr = 0.01f;
    if (context->error.status != DML_OK || dml__check_optimizer(context, &optimizer) != DML_OK) return NULL;
    dml_program_options program_options;
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

static dml_status dml__trainer_gradient_ready(void *user, size_t begin, size_t end)
{
    dml_trainer *trainer = (dml_trainer *)user;
    return trainer->sync.ready ? trainer->sync.ready(trainer->sync.state, trainer, begin, end) : DML_OK;
}

/* A rank without samples takes part in the sync with a gradient of zero. */
static dml_status dml__train_on_nothing(dml_trainer *trainer, const dml__gradient_listener *listener)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    const dml_ref g = { trainer->vector[DML_GRADIENTS], 0 };
    const dml_status status =
        trainer->context->device.backend->zero(&trainer->context->device, g, count * sizeof(float));
    return status == DML_OK ? listener->ready(listener->user, 0, count) : status;
}

static dml_status dml__trainer_update(dml_trainer *trainer)
{
    dml__update update;
    memset(&update, 0, sizeof update);
    update.device = &trainer->context->device;
    update.pool = trainer->context->pool;
    update.n = dml_trainer_parameter_count(trainer);
    update.w.buffer = trainer->vector[DML_PARAMETERS];
    update.g.buffer = trainer->vector[DML_GRADIENTS];
    for (int s = 0; s < trainer->vectors - DML_OPTIMIZER_STATE; s++)
        update.state[s].buffer = trainer->vector[DML_OPTIMIZER_STATE + s];
    update.step = trainer->steps;
    return trainer->row->update(&trainer->optimizer, &update);
}

/* Forward and backward: under a strategy that combines gradients g is the gradient of the sum over the rows.
 */
static dml_status dml__trainer_find_gradient(dml_trainer *trainer, int rows, const void *const *inputs,
                                             float *loss)
{
    const dml_sync *sync = &trainer->sync;
    const bool attached = sync->begin || sync->ready || sync->finish || sync->updated;
    const dml__gradient_listener listener = { dml__trainer_gradient_ready, trainer };
    if (attached && rows == 0) {
        if (loss) *loss = 0.0f;
        return dml__train_on_nothing(trainer, &listener);
    }
    const float loss_scale = sync->ready || sync->finish ? (float)rows : 1.0f;
    return dml__program_train(trainer->program, rows, inputs, (uint32_t)trainer->steps, loss_scale, &listener,
                              loss);
}

/* For a strategy, or a kernel, that fails without a word. */
static dml_status dml__explain(dml_trainer *trainer, dml_status status, const char *what)
{
    return status == DML_OK ? status
                            : dml__fail(&trainer->context->error, status, "%s failed: %s", what,
                                        dml_status_string(status));
}

DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, float *loss)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_sync *sync = &trainer->sync;
    dml_status status = trainer->context->error.status;
    if (status == DML_OK && sync->begin) status = sync->begin(sync->state, trainer, rows);
    if (status == DML_OK) status = dml__trainer_find_gradient(trainer, rows, inputs, loss);
    if (status == DML_OK && sync->finish) status = sync->finish(sync->state, trainer);
    if (status == DML_OK) status = dml__trainer_update(trainer);
    if (status == DML_OK) trainer->steps++;
    if (status == DML_OK && sync->updated) status = sync->updated(sync->state, trainer);
    return dml__explain(trainer, status, "the training step");
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

DML_API void dml_trainer_set_steps(dml_trainer *trainer, uint64_t steps)
{
    if (trainer) trainer->steps = steps;
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

DML_API size_t dml_trainer_parameter_count(const dml_trainer *trainer)
{
    return trainer ? trainer->program->graph->parameter_count : 0;
}

DML_API int dml_trainer_vectors(const dml_trainer *trainer)
{
    return trainer ? trainer->vectors : 0;
}

static bool dml__trainer_range_ok(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    if (vector >= 0 && vector < trainer->vectors && begin <= end && end <= count) return true;
    dml__fail(&trainer->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of vector %d asked for; there are %d vectors of %zu", begin, end, vector,
              trainer->vectors, count);
    return false;
}

DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer || !dml__trainer_range_ok(trainer, vector, begin, end)) return NULL;
    if (!trainer->context->device.host_memory) return trainer->mirror[vector] + begin;
    const dml_ref ref = { trainer->vector[vector], begin * sizeof(float) };
    return (float *)dml__host(ref);
}

DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    float *host = dml_trainer_host(trainer, vector, begin, end);
    if (!host || trainer->context->device.host_memory || begin == end) return host;
    dml_device *device = &trainer->context->device;
    const dml_ref from = { trainer->vector[vector], begin * sizeof(float) };
    return device->backend->read(device, host, from, (end - begin) * sizeof(float)) == DML_OK ? host : NULL;
}

DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!dml__trainer_range_ok(trainer, vector, begin, end)) return DML_ERROR_ARGUMENT;
    dml_device *device = &trainer->context->device;
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = { trainer->vector[vector], begin * sizeof(float) };
    return device->backend->write(device, to, trainer->mirror[vector] + begin, (end - begin) * sizeof(float));
}

DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml__trainer_drop_sync(trainer);
    trainer->sync = sync;
    const dml_status status = sync.start ? sync.start(sync.state, trainer) : DML_OK;
    if (status != DML_OK) dml__trainer_drop_sync(trainer);
    return dml__explain(trainer, status, "the start of the sync strategy");
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

#include <stdio.h>
#include <string.h>

/* The file, all little-endian:
     header      magic (8), version (4), vectors (4), steps (8), seed (8), elements (8), parameters (4),
   optimizer (16) parameters  each: name (48), dimensions (4), sizes (5 x 4) vectors     w, then each
   optimizer state: elements x f32 checksum    of everything before (4) */
static const char dml__checkpoint_magic[8] = { 'D', 'M', 'L', 'C', 'K', 'P', 'T', '\n' };
enum {
    DML__CHECKPOINT_VERSION = 1,
    DML__CHECKPOINT_OPTIMIZER = 16,
    DML__CHECKPOINT_HEADER = 60,
    DML__CHECKPOINT_SUM = 4
};
enum { DML__CHECKPOINT_PARAMETER = DML__NAME_LENGTH + 4 + 4 * DML_MAX_DIMS };

typedef struct dml__checkpoint_header {
    uint32_t version, vectors;
    uint64_t steps, seed, elements;
    uint32_t parameters;
    char optimizer[DML__CHECKPOINT_OPTIMIZER];
} dml__checkpoint_header;

static uint32_t dml__count_parameters(const dml_trainer *trainer)
{
    uint32_t count = 0;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) count++;
    return count;
}

static dml__checkpoint_header dml__checkpoint_header_of(const dml_trainer *trainer)
{
    dml__checkpoint_header header;
    memset(&header, 0, sizeof header);
    header.version = DML__CHECKPOINT_VERSION;
    header.vectors = (uint32_t)trainer->vectors - 1; /* all but the gradients */
    header.steps = trainer->steps;
    header.seed = trainer->context->seed;
    header.elements = dml_trainer_parameter_count(trainer);
    header.parameters = dml__count_parameters(trainer);
    snprintf(header.optimizer, sizeof header.optimizer, "%s", trainer->row->name);
    return header;
}

static size_t dml__checkpoint_bytes(const dml__checkpoint_header *header)
{
    return DML__CHECKPOINT_HEADER + (size_t)header->parameters * DML__CHECKPOINT_PARAMETER +
           (size_t)header->vectors * (size_t)header->elements * sizeof(float) + DML__CHECKPOINT_SUM;
}

static unsigned char *dml__write_header(unsigned char *to, const dml__checkpoint_header *header)
{
    memcpy(to, dml__checkpoint_magic, sizeof dml__checkpoint_magic);
    dml__store32(to + 8, header->version);
    dml__store32(to + 12, header->vectors);
    dml__store64(to + 16, header->steps);
    dml__store64(to + 24, header->seed);
    dml__store64(to + 32, header->elements);
    dml__store32(to + 40, header->parameters);
    memcpy(to + 44, header->optimizer, sizeof header->optimizer);
    return to + DML__CHECKPOINT_HEADER;
}

static dml__checkpoint_header dml__read_header(const unsigned char *from)
{
    dml__checkpoint_header header;
    header.version = dml__load32(from + 8);
    header.vectors = dml__load32(from + 12);
    header.steps = dml__load64(from + 16);
    header.seed = dml__load64(from + 24);
    header.elements = dml__load64(from + 32);
    header.parameters = dml__load32(from + 40);
    memcpy(header.optimizer, from + 44, sizeof header.optimizer);
    header.optimizer[sizeof header.optimizer - 1] = '\0';
    return header;
}

static void dml__write_parameter(unsigned char *to, const dml_node *parameter)
{
    memcpy(to, parameter->name, DML__NAME_LENGTH);
    dml__store32(to + DML__NAME_LENGTH, (uint32_t)parameter->shape.ndim);
    for (int i = 0; i < DML_MAX_DIMS; i++)
        dml__store32(to + DML__NAME_LENGTH + 4 + 4 * i, (uint32_t)parameter->shape.dims[i]);
}

static dml_status dml__write_vectors(dml_trainer *trainer, unsigned char *to)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    for (int v = 0; v < trainer->vectors; v++) {
        if (v == DML_GRADIENTS) continue;
        const float *from = dml_trainer_get(trainer, v, 0, count);
        if (!from) return trainer->context->error.status;
        for (size_t i = 0; i < count; i++, to += sizeof(float)) dml__store_f32(to, from[i]);
    }
    return DML_OK;
}

static dml_status dml__read_vectors(dml_trainer *trainer, const unsigned char *from)
{
    const size_t count = dml_trainer_parameter_count(trainer);
    dml_status status = DML_OK;
    for (int v = 0; v < trainer->vectors && status == DML_OK; v++) {
        if (v == DML_GRADIENTS) continue;
        float *to = dml_trainer_host(trainer, v, 0, count);
        for (size_t i = 0; i < count; i++, from += sizeof(float)) to[i] = dml__load_f32(from);
        status = dml_trainer_put(trainer, v, 0, count);
    }
    return status;
}

DML_API dml_status dml_trainer_save(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    const dml__checkpoint_header header = dml__checkpoint_header_of(trainer);
    const size_t bytes = dml__checkpoint_bytes(&header);
    unsigned char *image = (unsigned char *)dml__allocate(&context->memory, bytes);
    if (!image)
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a checkpoint of %zu bytes",
                         bytes);
    unsigned char *to = dml__write_header(image, &header);
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        dml__write_parameter(to, p);
        to += DML__CHECKPOINT_PARAMETER;
    }
    dml_status status = dml__write_vectors(trainer, to);
    dml__store32(image + bytes - DML__CHECKPOINT_SUM, dml__crc32c(0, image, bytes - DML__CHECKPOINT_SUM));
    const dml__file_part file = { image, bytes };
    if (status == DML_OK) status = dml__file_write(path, &file, 1, &context->error);
    dml__release(&context->memory, image);
    return status;
}

/* Whether the bytes are a whole checkpoint: of any model. */
static dml_status dml__check_image(dml__error *error, const char *path, const unsigned char *image,
                                   size_t bytes)
{
    if (bytes < sizeof dml__checkpoint_magic ||
        memcmp(image, dml__checkpoint_magic, sizeof dml__checkpoint_magic) != 0)
        return dml__fail(error, DML_ERROR_FORMAT, "%s is not a dml checkpoint", path);
    if (bytes < DML__CHECKPOINT_HEADER + DML__CHECKPOINT_SUM)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is truncated: it ends after %zu bytes, inside its header", path, bytes);
    const uint32_t version = dml__load32(image + 8);
    if (version != DML__CHECKPOINT_VERSION)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s is a checkpoint of version %u, this library reads version %d", path,
                         (unsigned)version, DML__CHECKPOINT_VERSION);
    return DML_OK;
}

/* Whether the checkpoint's tables are those of this trainer; each sentence says what differs. */
static dml_status dml__check_model(dml_trainer *trainer, const char *path, const unsigned char *image,
                                   size_t bytes)
{
    dml__error *error = &trainer->context->error;
    const dml__checkpoint_header got = dml__read_header(image), want = dml__checkpoint_header_of(trainer);
    if (got.parameters != want.parameters || got.elements != want.elements)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "%s holds another model: %u parameters with %llu elements, this model has %u with %llu", path,
            (unsigned)got.parameters, (unsigned long long)got.elements, (unsigned)want.parameters,
            (unsigned long long)want.elements);
    if (strcmp(got.optimizer, want.optimizer) != 0 || got.vectors != want.vectors)
        return dml__fail(error, DML_ERROR_FORMAT,
                         "%s was saved with optimizer %s and %u state vectors, this trainer has %s and %u "
                         "(is the momentum "
                         "the same?)",
                         path, got.optimizer, (unsigned)got.vectors - 1, want.optimizer,
                         (unsigned)want.vectors - 1);
    if (bytes != dml__checkpoint_bytes(&want))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is %s: it has %zu bytes, its header promises %zu", path,
                         bytes < dml__checkpoint_bytes(&want) ? "truncated" : "too long", bytes,
                         dml__checkpoint_bytes(&want));
    if (dml__load32(image + bytes - DML__CHECKPOINT_SUM) !=
        dml__crc32c(0, image, bytes - DML__CHECKPOINT_SUM))
        return dml__fail(error, DML_ERROR_FORMAT, "%s is damaged: its checksum doesn't match", path);
    const unsigned char *row = image + DML__CHECKPOINT_HEADER;
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        unsigned char expected[DML__CHECKPOINT_PARAMETER];
        dml__write_parameter(expected, p);
        char text[DML_SHAPE_TEXT];
        if (memcmp(row, expected, sizeof expected) != 0)
            return dml__fail(error, DML_ERROR_FORMAT,
                             "%s holds another model: where this model has '%s' of %s, it has '%.*s'", path,
                             p->name, dml_shape_format(&p->shape, text), DML__NAME_LENGTH - 1,
                             (const char *)row);
        row += DML__CHECKPOINT_PARAMETER;
    }
    return DML_OK;
}

DML_API dml_status dml_trainer_load(dml_trainer *trainer, const char *path)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    dml_context *context = trainer->context;
    void *file;
    size_t bytes;
    dml_status status = dml__file_read(&context->memory, path, SIZE_MAX, &file, &bytes, &context->error);
    if (status != DML_OK) return status;
    const unsigned char *image = (const unsigned char *)file;
    status = dml__check_image(&context->error, path, image, bytes);
    if (status == DML_OK) status = dml__check_model(trainer, path, image, bytes);
    if (status == DML_OK) {
        const dml__checkpoint_header header = dml__read_header(image);
        trainer->steps = header.steps;
        context->seed = header.seed;
        status = dml__read_vectors(trainer, image + DML__CHECKPOINT_HEADER +
                                                (size_t)header.parameters * DML__CHECKPOINT_PARAMETER);
    }
    dml__release(&context->memory, file);
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
    memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
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
    memset(out, 0, sizeof *out);
    if (!context) return DML_ERROR_ARGUMENT;
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
    if (context && idx->block) dml__release(&context->memory, idx->block);
    memset(idx, 0, sizeof *idx);
}

#endif

#endif
