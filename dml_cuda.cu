/* dml_cuda.cu 0.1.0. DO NOT EDIT, generated from src/ by make amalgamate. */
/* dml_cuda.cu - NVIDIA GPUs for dml.

   Compile it with nvcc for the cards you have, and link it with your program, DML_CUDA defined everywhere:

       nvcc -O2 -arch=native -c dml_cuda.cu
       cc -O2 -DDML_CUDA program.c dml_cuda.o -lcudart_static -lrt -ldl -lstdc++ -lm -lpthread

   (-L of CUDA's lib64 may be needed. A Hopper's matrix units, which own kernels use where cuBLASLt can't be
   opened, want -gencode arch=compute_90a,code=sm_90a in the place of -arch=native.) With the static runtime
   the program also starts where there is no driver, and then finds no device. "cuda:0" is the first device;
   dml_devices lists them. */
#include "dml.h"

/* ---- gpu/cuda_host.cu ---- */

/* cuda_host.cu: the CUDA backend, over the runtime API, with the shared kernels compiled in. */
#ifndef DML_GPU_CUDA_HOST_CU
#define DML_GPU_CUDA_HOST_CU

/* ---- gpu/arguments.h ---- */

/* arguments.h: what every shared kernel is given besides its buffers, the same bytes on host and device. */
#ifndef DML_GPU_ARGUMENTS_H
#define DML_GPU_ARGUMENTS_H

#ifdef __OPENCL_VERSION__
typedef long dml__kernel_offset;
typedef int dml__kernel_integer;
#else
#include <stdint.h>
typedef int64_t dml__kernel_offset;
typedef int32_t dml__kernel_integer;
#endif

/* 144 bytes without padding. The counts are DML_LAUNCH_BUFFERS, _INTS and _FLOATS. */
typedef struct dml__kernel_arguments {
    dml__kernel_offset offset[6]; /* in bytes, into each buffer */
    dml__kernel_integer integer[16];
    float real[8];
} dml__kernel_arguments;

/* Every kernel runs in work-groups of this many items, in one dimension. */
#define DML__GROUP_ITEMS 256

#endif

/* ---- gpu/cuda_queue.cuh ---- */

/* cuda_queue.cuh: what a card was given to do and wasn't sent yet, and sending it as a graph. A training step
   is the same launches each time, so after it was sent twice one by one the whole is one call. */
#ifndef DML_GPU_CUDA_QUEUE_CUH
#define DML_GPU_CUDA_QUEUE_CUH

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

enum {
    DML__CUDA_RECORDS = 1024, /* a sequence is sent when it has this many */
    DML__CUDA_LEAST = 4,      /* what is shorter isn't worth a graph */
    DML__CUDA_GRAPHS = 8,
    DML__CUDA_SEEN = 16, /* shapes that came once */
    DML__CUDA_KEPT = 64  /* sequences that a graph stays for, unused, when another wants its place */
};

/* What a graph can't change: sequences that have this in common share one. */
typedef enum dml__cuda_kind {
    DML__CUDA_RUN,  /* a kernel, of groups of DML__GROUP_ITEMS */
    DML__CUDA_ZERO, /* bytes, by elements of grid[0] bytes */
    DML__CUDA_WORD, /* four bytes become arguments.integer[0] */
    DML__CUDA_COPY  /* buffer[1] to buffer[0] */
} dml__cuda_kind;
typedef struct dml__cuda_shape {
    const void *kernel;
    uint64_t bytes;
    uint32_t grid[3], kind;
} dml__cuda_shape; /* without padding: it is compared and hashed as bytes */

/* And what it can, without padding, too. */
typedef struct dml__cuda_values {
    char *buffer[DML_LAUNCH_BUFFERS];
    dml__kernel_arguments arguments;
} dml__cuda_values;

static_assert(sizeof(dml__cuda_shape) == 32 && sizeof(dml__cuda_values) == 192, "there is padding");

typedef struct dml__cuda_work {
    dml__cuda_shape shape;
    dml__cuda_values values;
} dml__cuda_work;

/* Something to do, with words for its failure, which may come when the layer it is of runs no longer. */
typedef struct dml__cuda_record {
    dml__cuda_work work;
    const char *what; /* the kernel's name, "zero", "write", "copy" */
    const char *pass;
    char node[48]; /* "": of no layer */
} dml__cuda_record;

typedef struct dml__cuda_node {
    cudaGraphNode_t node;
    dml__cuda_work work; /* as the executable graph has it */
} dml__cuda_node;

typedef struct dml__cuda_graph {
    uint64_t shape; /* the hash of its sequence's; 0: there is none */
    uint64_t used;  /* the number of the sequence that it was used for last */
    int count;
    dml__cuda_node *node; /* (count) */
    cudaGraph_t graph;
    cudaGraphExec_t run; /* NULL: it can't be made */
} dml__cuda_graph;

typedef struct dml__cuda_queue {
    dml__cuda_record *record; /* (DML__CUDA_RECORDS); NULL: nothing is held back */
    int count;
    uint64_t sequences; /* so far, of those long enough */
    uint64_t seen[DML__CUDA_SEEN];
    dml__cuda_graph graph[DML__CUDA_GRAPHS];
} dml__cuda_queue;

/* DML_CUDA_GRAPHS=0, or too little memory: each launch is sent when it comes. */
static void dml__cuda_queue_open(dml_device *device, dml__cuda_queue *queue)
{
    const char *wanted = getenv("DML_CUDA_GRAPHS");
    if (wanted && strcmp(wanted, "0") == 0) return;
    queue->record =
        (dml__cuda_record *)dml_device_allocate(device, DML__CUDA_RECORDS * sizeof(dml__cuda_record));
}

/* Leaves what it was a graph of, so that it isn't tried again. */
static void dml__cuda_graph_drop(dml_device *device, dml__cuda_graph *graph)
{
    if (graph->run) (void)cudaGraphExecDestroy(graph->run);
    if (graph->graph) (void)cudaGraphDestroy(graph->graph);
    dml_device_release(device, graph->node);
    graph->run = NULL, graph->graph = NULL, graph->node = NULL;
    (void)cudaGetLastError();
}

/* Of a stream that has finished. */
static void dml__cuda_queue_close(dml_device *device, dml__cuda_queue *queue)
{
    for (int i = 0; i < DML__CUDA_GRAPHS; i++) dml__cuda_graph_drop(device, &queue->graph[i]);
    dml_device_release(device, queue->record);
    queue->record = NULL;
}

/* ---- a graph's nodes ---- */

static cudaKernelNodeParams dml__cuda_kernel_node(dml__cuda_work *work,
                                                  void *arguments[DML_LAUNCH_BUFFERS + 1])
{
    cudaKernelNodeParams node = cudaKernelNodeParams();
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) arguments[i] = &work->values.buffer[i];
    arguments[DML_LAUNCH_BUFFERS] = &work->values.arguments;
    node.func = (void *)(uintptr_t)work->shape.kernel;
    node.gridDim = dim3(work->shape.grid[0], work->shape.grid[1], work->shape.grid[2]);
    node.blockDim = dim3(DML__GROUP_ITEMS, 1, 1);
    node.kernelParams = arguments;
    return node;
}

static cudaMemsetParams dml__cuda_memset_node(const dml__cuda_work *work)
{
    cudaMemsetParams node = cudaMemsetParams();
    node.dst = work->values.buffer[0];
    node.value = (unsigned)work->values.arguments.integer[0];
    node.elementSize = work->shape.grid[0];
    node.width = work->shape.bytes / node.elementSize;
    node.height = 1;
    return node;
}

/* Behind `after`; NULL: first. */
static cudaError_t dml__cuda_add_node(cudaGraph_t graph, const cudaGraphNode_t *after, dml__cuda_node *node)
{
    dml__cuda_work *work = &node->work;
    const size_t count = after ? 1 : 0;
    if (work->shape.kind == DML__CUDA_RUN) {
        void *arguments[DML_LAUNCH_BUFFERS + 1];
        const cudaKernelNodeParams params = dml__cuda_kernel_node(work, arguments);
        return cudaGraphAddKernelNode(&node->node, graph, after, count, &params);
    }
    if (work->shape.kind == DML__CUDA_COPY)
        return cudaGraphAddMemcpyNode1D(&node->node, graph, after, count, work->values.buffer[0],
                                        work->values.buffer[1], work->shape.bytes, cudaMemcpyDeviceToDevice);
    const cudaMemsetParams params = dml__cuda_memset_node(work);
    return cudaGraphAddMemsetNode(&node->node, graph, after, count, &params);
}

/* Launches from now on do this; those on their way do what they did. */
static cudaError_t dml__cuda_set_node(cudaGraphExec_t run, dml__cuda_node *node)
{
    dml__cuda_work *work = &node->work;
    if (work->shape.kind == DML__CUDA_RUN) {
        void *arguments[DML_LAUNCH_BUFFERS + 1];
        const cudaKernelNodeParams params = dml__cuda_kernel_node(work, arguments);
        return cudaGraphExecKernelNodeSetParams(run, node->node, &params);
    }
    if (work->shape.kind == DML__CUDA_COPY)
        return cudaGraphExecMemcpyNodeSetParams1D(run, node->node, work->values.buffer[0],
                                                  work->values.buffer[1], work->shape.bytes,
                                                  cudaMemcpyDeviceToDevice);
    const cudaMemsetParams params = dml__cuda_memset_node(work);
    return cudaGraphExecMemsetNodeSetParams(run, node->node, &params);
}

/* ---- graphs ---- */

/* Never 0. */
static uint64_t dml__cuda_hash(const dml__cuda_record *record, int count)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int i = 0; i < count; i++) {
        uint64_t part[sizeof(dml__cuda_shape) / sizeof(uint64_t)];
        memcpy(part, &record[i].work.shape, sizeof part);
        for (size_t p = 0; p < sizeof part / sizeof *part; p++) {
            hash = (hash ^ part[p]) * UINT64_C(0x9e3779b97f4a7c15);
            hash ^= hash >> 29;
        }
    }
    return hash ? hash : 1;
}

/* Whether it came before; it has now. */
static bool dml__cuda_was_seen(dml__cuda_queue *queue, uint64_t shape)
{
    for (int i = 0; i < DML__CUDA_SEEN; i++)
        if (queue->seen[i] == shape) return true;
    queue->seen[queue->sequences % DML__CUDA_SEEN] = shape;
    return false;
}

static dml__cuda_graph *dml__cuda_find_graph(dml__cuda_queue *queue, uint64_t shape, int count)
{
    for (int i = 0; i < DML__CUDA_GRAPHS; i++)
        if (queue->graph[i].shape == shape && queue->graph[i].count == count) return &queue->graph[i];
    return NULL;
}

/* A place for another graph: a free one, or that of one which hasn't been used for long. NULL: all are in
   use, and would only take turns. */
static dml__cuda_graph *dml__cuda_free_graph(dml_device *device, dml__cuda_queue *queue, cudaStream_t stream)
{
    dml__cuda_graph *oldest = &queue->graph[0];
    for (int i = 1; i < DML__CUDA_GRAPHS; i++)
        if (queue->graph[i].used < oldest->used) oldest = &queue->graph[i];
    if (!oldest->shape) return oldest;
    if (queue->sequences - oldest->used < DML__CUDA_KEPT) return NULL;
    if (oldest->run && cudaStreamSynchronize(stream) != cudaSuccess) return NULL; /* it may be on its way */
    dml__cuda_graph_drop(device, oldest);
    return oldest;
}

static cudaError_t dml__cuda_assemble(dml__cuda_graph *graph, const dml__cuda_record *record)
{
    cudaError_t error = cudaGraphCreate(&graph->graph, 0);
    if (error != cudaSuccess) graph->graph = NULL;
    for (int i = 0; i < graph->count && error == cudaSuccess; i++) {
        graph->node[i].work = record[i].work;
        error = dml__cuda_add_node(graph->graph, i ? &graph->node[i - 1].node : NULL, &graph->node[i]);
    }
    if (error != cudaSuccess) return error;
    error = cudaGraphInstantiateWithFlags(&graph->run, graph->graph, 0);
    if (error != cudaSuccess) graph->run = NULL;
    return error;
}

/* Of what is queued. NULL: there is no place for it. */
static dml__cuda_graph *dml__cuda_make_graph(dml_device *device, dml__cuda_queue *queue, uint64_t shape,
                                             cudaStream_t stream)
{
    dml__cuda_graph *graph = dml__cuda_free_graph(device, queue, stream);
    if (!graph) return NULL;
    graph->shape = shape;
    graph->count = queue->count;
    graph->node = (dml__cuda_node *)dml_device_allocate(device, (size_t)graph->count * sizeof *graph->node);
    if (!graph->node || dml__cuda_assemble(graph, queue->record) != cudaSuccess)
        dml__cuda_graph_drop(device, graph);
    return graph;
}

/* What differs from the last time, such as a rate or a buffer, is set anew. Nodes of freed memory with it. */
static cudaError_t dml__cuda_update_graph(dml__cuda_graph *graph, const dml__cuda_record *record)
{
    for (int i = 0; i < graph->count; i++) {
        dml__cuda_node *node = &graph->node[i];
        if (memcmp(&node->work.shape, &record[i].work.shape, sizeof node->work.shape) != 0)
            return cudaErrorInvalidValue; /* another shape of the same hash */
        if (memcmp(&node->work.values, &record[i].work.values, sizeof node->work.values) == 0) continue;
        node->work.values = record[i].work.values;
        const cudaError_t error = dml__cuda_set_node(graph->run, node);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

/* Sends what is queued as a graph. False: nothing was sent, because there is no graph for it; one that fails
   is given up, for the same work may do as single launches, or else say better what is wrong. */
static bool dml__cuda_replay(dml_device *device, dml__cuda_queue *queue, cudaStream_t stream)
{
    if (queue->count < DML__CUDA_LEAST) return false;
    const uint64_t shape = dml__cuda_hash(queue->record, queue->count);
    queue->sequences++;
    dml__cuda_graph *graph = dml__cuda_find_graph(queue, shape, queue->count);
    if (!graph && !dml__cuda_was_seen(queue, shape)) return false;
    if (!graph) graph = dml__cuda_make_graph(device, queue, shape, stream);
    if (!graph) return false;
    graph->used = queue->sequences;
    if (!graph->run) return false;
    if (dml__cuda_update_graph(graph, queue->record) == cudaSuccess &&
        cudaGraphLaunch(graph->run, stream) == cudaSuccess)
        return true;
    dml__cuda_graph_drop(device, graph);
    return false;
}

#endif

/* ---- gpu/cuda_reads.cuh ---- */

/* cuda_reads.cuh: reads that the host doesn't wait for. */
#ifndef DML_GPU_CUDA_READS_CUH
#define DML_GPU_CUDA_READS_CUH

#include <cuda_runtime.h>

/* They go in a stream of their own, so that they don't hold up what the card computes, and into memory of the
   caller's that is pinned: a card copies to any other while the host waits. */
enum { DML__CUDA_PINS = 16 };
typedef struct dml__cuda_reads {
    cudaStream_t stream; /* NULL: there is none yet */
    cudaEvent_t ready;   /* in the device's stream: what is to be read is there */
    struct {
        char *begin;
        size_t bytes; /* 0: free */
    } pin[DML__CUDA_PINS];
} dml__cuda_reads;

static bool dml__cuda_pin_memory(dml__cuda_reads *reads, void *memory, size_t bytes)
{
    int i = 0;
    while (i < DML__CUDA_PINS && reads->pin[i].bytes) i++;
    if (i == DML__CUDA_PINS || bytes == 0) return false;
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
        (void)cudaGetLastError(); /* the system lets a process pin so much, or another pin shares its pages */
        return false;
    }
    reads->pin[i].begin = (char *)memory;
    reads->pin[i].bytes = bytes;
    return true;
}

static void dml__cuda_unpin_memory(dml__cuda_reads *reads, void *memory)
{
    for (int i = 0; i < DML__CUDA_PINS; i++) {
        if (!reads->pin[i].bytes || reads->pin[i].begin != memory) continue;
        if (reads->stream) (void)cudaStreamSynchronize(reads->stream);
        (void)cudaHostUnregister(memory);
        (void)cudaGetLastError();
        reads->pin[i].bytes = 0;
    }
}

static bool dml__cuda_is_pinned(const dml__cuda_reads *reads, const void *memory, size_t bytes)
{
    const char *begin = (const char *)memory;
    for (int i = 0; i < DML__CUDA_PINS; i++)
        if (begin >= reads->pin[i].begin && begin + bytes <= reads->pin[i].begin + reads->pin[i].bytes)
            return true;
    return false;
}

static void dml__cuda_destroy_reads(dml__cuda_reads *reads)
{
    if (!reads->stream) return;
    (void)cudaStreamSynchronize(reads->stream);
    (void)cudaEventDestroy(reads->ready);
    (void)cudaStreamDestroy(reads->stream);
    reads->stream = NULL;
}

/* The first read makes the stream. */
static cudaError_t dml__cuda_have_reads(dml__cuda_reads *reads)
{
    if (reads->stream) return cudaSuccess;
    cudaError_t error = cudaEventCreateWithFlags(&reads->ready, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
    error = cudaStreamCreateWithFlags(&reads->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) return error;
    (void)cudaEventDestroy(reads->ready);
    reads->stream = NULL;
    return error;
}

/* Whatever comes next in the reads' stream sees what the device's stream has done so far. */
static cudaError_t dml__cuda_read_behind(dml__cuda_reads *reads, cudaStream_t stream)
{
    const cudaError_t error = cudaEventRecord(reads->ready, stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(reads->stream, reads->ready, 0) : error;
}

/* An event behind what the reads' stream has been given. On failure it has ended. */
static cudaError_t dml__cuda_mark_read(dml__cuda_reads *reads, cudaEvent_t *event)
{
    cudaError_t error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        error = cudaEventRecord(*event, reads->stream);
        if (error == cudaSuccess) return error;
        (void)cudaEventDestroy(*event);
    }
    (void)cudaStreamSynchronize(reads->stream);
    return error;
}

#endif

/* ---- gpu/cuda_staging.cuh ---- */

/* cuda_staging.cuh: writes that the host doesn't wait for. */
#ifndef DML_GPU_CUDA_STAGING_CUH
#define DML_GPU_CUDA_STAGING_CUH

#include <cuda_runtime.h>
#include <string.h>

/* Memory that the card reads while the host goes on: what is written goes through a piece of it, and each
   piece is filled again when the copy that was made of it has ended. */
enum { DML__CUDA_PIECES = 8, DML__CUDA_PIECE = 1 << 20 /* bytes */ };
typedef struct dml__cuda_staging {
    char *memory; /* (DML__CUDA_PIECES, DML__CUDA_PIECE), pinned; NULL: there is none, and writes wait */
    bool refused;
    int made, next;                       /* events that there are; the piece to fill next */
    cudaEvent_t copied[DML__CUDA_PIECES]; /* after the last copy of each */
} dml__cuda_staging;

static void dml__cuda_destroy_staging(dml__cuda_staging *staging)
{
    for (int i = 0; i < staging->made; i++) (void)cudaEventDestroy(staging->copied[i]);
    if (staging->memory) (void)cudaFreeHost(staging->memory);
    staging->memory = NULL, staging->made = 0;
}

/* Whether there is pinned memory, which the first write asks for. */
static bool dml__cuda_has_staging(dml__cuda_staging *staging)
{
    if (staging->memory || staging->refused) return staging->memory != NULL;
    void *memory = NULL;
    bool ok = cudaHostAlloc(&memory, (size_t)DML__CUDA_PIECES * DML__CUDA_PIECE, cudaHostAllocDefault) ==
              cudaSuccess;
    staging->memory = ok ? (char *)memory : NULL;
    while (ok && staging->made < DML__CUDA_PIECES) {
        ok = cudaEventCreateWithFlags(&staging->copied[staging->made], cudaEventDisableTiming) == cudaSuccess;
        if (ok) staging->made++;
    }
    staging->refused = !ok;
    if (ok) return true;
    dml__cuda_destroy_staging(staging);
    (void)cudaGetLastError();
    return false;
}

/* Of at most a piece: waits only for the copy that was made of its place before. */
static cudaError_t dml__cuda_write_piece(dml__cuda_staging *staging, cudaStream_t stream, char *to,
                                         const char *from, size_t bytes)
{
    const cudaEvent_t copied = staging->copied[staging->next];
    char *piece = staging->memory + (size_t)staging->next * DML__CUDA_PIECE;
    cudaError_t error = cudaEventSynchronize(copied);
    if (error != cudaSuccess) return error;
    memcpy(piece, from, bytes);
    error = cudaMemcpyAsync(to, piece, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess) error = cudaEventRecord(copied, stream);
    staging->next = (staging->next + 1) % DML__CUDA_PIECES;
    return error;
}

static cudaError_t dml__cuda_write_pieces(dml__cuda_staging *staging, cudaStream_t stream, char *to,
                                          const char *from, size_t bytes)
{
    cudaError_t error = cudaSuccess;
    for (size_t done = 0; done < bytes && error == cudaSuccess; done += DML__CUDA_PIECE) {
        const size_t left = bytes - done;
        error = dml__cuda_write_piece(staging, stream, to + done, from + done,
                                      left < DML__CUDA_PIECE ? left : (size_t)DML__CUDA_PIECE);
    }
    return error;
}

#endif

/* ---- gpu/kernel_list.h ---- */

/* kernel_list.h: every shared kernel, and how much of a launch's size one work-group does along x and y. The
   hosts look kernels up and compute their groups from this; tests/gpu/kernels_test.c has a case for each.

   A family of kernels computes the same of the same arguments, each in its way: a launch names the family,
   and what is best on the device is chosen (gpu/launch.h), or one of them by its own name. */
#ifndef DML_GPU_KERNEL_LIST_H
#define DML_GPU_KERNEL_LIST_H

/* The kernels of a family in all shapes of tiles, rows x columns of what they compute. */
#define DML__TILE_KERNELS(X, family)                                                                         \
    X(family##_128x128, 128, 128)                                                                            \
    X(family##_128x64, 64, 128)                                                                              \
    X(family##_64x64, 64, 64)                                                                                \
    X(family##_64x16, 16, 64)                                                                                \
    X(family##_16x64, 64, 16)                                                                                \
    X(family##_16x16, 16, 16)

/* What a group covers whose items do a run of elements each (gpu/elementwise.cl), and where they do one. */
enum { DML__COVERS_RUNS = 1024, DML__COVERS_RUNS_OF_ONE = 256 };

/* X(name, covers_x, covers_y) */
#define DML__KERNEL_LIST(X)                                                                                  \
    X(axpby, DML__COVERS_RUNS, 1)                                                                            \
    X(formula_forward, DML__COVERS_RUNS, 1)                                                                  \
    X(formula_backward, DML__COVERS_RUNS, 1)                                                                 \
    X(broadcast, DML__COVERS_RUNS, 1)                                                                        \
    X(sum_few, 256, 1)                                                                                       \
    X(bias_add, DML__COVERS_RUNS, 1)                                                                         \
    X(sgd_update, 256, 1)                                                                                    \
    X(adam_update, 256, 1)                                                                                   \
    X(rmsprop_update, 256, 1)                                                                                \
    X(adagrad_update, 256, 1)                                                                                \
    X(sum_squares, 1, 1)                                                                                     \
    X(clip_norm, 256, 1)                                                                                     \
    X(clip_values, 256, 1)                                                                                   \
    X(lamb_direction, 256, 1)                                                                                \
    X(trust, 256, 1)                                                                                         \
    DML__TILE_KERNELS(X, gemm)                                                                               \
    DML__TILE_KERNELS(X, conv2d_forward)                                                                     \
    DML__TILE_KERNELS(X, conv2d_backward_input)                                                              \
    DML__TILE_KERNELS(X, conv2d_backward_weights)                                                            \
    X(max_pool2d_forward, 256, 1)                                                                            \
    X(max_pool2d_backward, 256, 1)                                                                           \
    X(max_pool2d_backward_apart, 256, 1)                                                                     \
    X(avg_pool2d_forward, 256, 1)                                                                            \
    X(avg_pool2d_backward, 256, 1)                                                                           \
    X(local2d_forward, 256, 1)                                                                               \
    X(local2d_backward_input, 256, 1)                                                                        \
    X(local2d_backward_weights, 256, 1)                                                                      \
    X(slice2d_forward, 256, 1)                                                                               \
    X(slice2d_backward, 256, 1)                                                                              \
    X(sum_rows, 16, 1)                                                                                       \
    X(argmax, 16, 1)                                                                                         \
    X(cross_entropy_forward, 1, 1)                                                                           \
    X(cross_entropy_backward, 1, 8)                                                                          \
    X(cross_entropy_backward_target, 256, 1)                                                                 \
    X(loss_total, 1, 1)                                                                                      \
    X(loss_spread, 256, 1)                                                                                   \
    X(reduce_axis, 16, 1)                                                                                    \
    X(reduce_axis_backward, 256, 1)                                                                          \
    X(softmax_forward, 1, 1)                                                                                 \
    X(softmax_backward, 1, 1)                                                                                \
    X(batch_norm_moments, 16, 1)                                                                             \
    X(batch_norm_statistics, 16, 1)                                                                          \
    X(batch_norm_forward, DML__COVERS_RUNS, 1)                                                               \
    X(batch_norm_products, 16, 1)                                                                            \
    X(batch_norm_gradients, 16, 1)                                                                           \
    X(batch_norm_backward, DML__COVERS_RUNS, 1)                                                              \
    X(sample_norm_forward_team, 4, 1)                                                                        \
    X(sample_norm_backward_team, 4, 1)                                                                       \
    X(sample_norm_products, 16, 1)                                                                           \
    X(embedding_forward, DML__COVERS_RUNS, 1)                                                                \
    X(embedding_links_team, 16, 1)                                                                           \
    X(embedding_backward, DML__COVERS_RUNS, 1)                                                               \
    X(gather_forward, 256, 1)                                                                                \
    X(gather_backward, 256, 1)                                                                               \
    X(embedding_bag_forward, 256, 1)                                                                         \
    X(embedding_bag_backward, 256, 1)                                                                        \
    X(embedding_bag_weights, 256, 1)                                                                         \
    X(attention_forward_team, 64, 1)                                                                         \
    X(attention_levels, 256, 1)                                                                              \
    X(attention_backward_team, 64, 1)                                                                        \
    X(keep_rows, 256, 1)                                                                                     \
    X(rotary, 256, 1)                                                                                        \
    X(recurrent_copy, 256, 1)                                                                                \
    X(recurrent_forward, 256, 1)                                                                             \
    X(recurrent_backward, 256, 1)                                                                            \
    X(dropout, 256, 1)                                                                                       \
    X(strided_pack, 256, 1)                                                                                  \
    X(strided_unpack, 256, 1)                                                                                \
    X(half_narrow, DML__COVERS_RUNS, 1)                                                                      \
    X(half_widen, DML__COVERS_RUNS, 1)
/* Those of gpu/solo.cl, of which a group is one item. Devices that are no CPU don't have them. */
#define DML__SOLO_LIST(X)                                                                                    \
    X(gemm_solo, 64, 64)                                                                                     \
    X(conv2d_forward_solo, 64, 64)                                                                           \
    X(conv2d_backward_input_solo, 64, 64)                                                                    \
    X(conv2d_backward_weights_solo, 64, 64)                                                                  \
    X(sample_norm_forward_solo, 8, 1)                                                                        \
    X(sample_norm_backward_solo, 8, 1)                                                                       \
    X(embedding_links_solo, 256, 1)                                                                          \
    X(attention_forward_solo, 64, 1)                                                                         \
    X(attention_backward_solo, 64, 1)

/* Families of two: NAME_team, whose groups have many items, and NAME_solo. */
#define DML__PAIR_LIST(X)                                                                                    \
    X(sample_norm_forward)                                                                                   \
    X(sample_norm_backward)                                                                                  \
    X(embedding_links)                                                                                       \
    X(attention_forward)                                                                                     \
    X(attention_backward)

/* The others: each has DML__TILE_KERNELS, and one NAME_solo. */
#define DML__FAMILY_LIST(X)                                                                                  \
    X(gemm)                                                                                                  \
    X(conv2d_forward)                                                                                        \
    X(conv2d_backward_input)                                                                                 \
    X(conv2d_backward_weights)

enum {
#define DML__KERNEL_ENUM(name, covers_x, covers_y) DML__KERNEL_##name,
    DML__KERNEL_LIST(DML__KERNEL_ENUM) DML__SOLO_LIST(DML__KERNEL_ENUM)
#undef DML__KERNEL_ENUM
        DML__KERNEL_COUNT,
    DML__KERNEL_FIRST_SOLO = DML__KERNEL_gemm_solo
};

#endif

/* ---- gpu/launch.h ---- */

/* launch.h: what the hosts of the shared kernels have in common: finding a kernel, cutting its work into
   groups, and checking that references lie inside their buffers. */
#ifndef DML_GPU_LAUNCH_H
#define DML_GPU_LAUNCH_H

/* ---- gpu/choice.h ---- */

/* choice.h: which kernel of a family (gpu/kernel_list.h) is best on a device for how many rows and columns.
 */
#ifndef DML_GPU_CHOICE_H
#define DML_GPU_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

/* The shapes of tiles, in the order of DML__TILE_KERNELS. */
typedef enum dml__tile_shape {
    DML__TILE_128x128,
    DML__TILE_128x64,
    DML__TILE_64x64,
    DML__TILE_64x16,
    DML__TILE_16x64,
    DML__TILE_16x16,
    DML__TILE_SHAPES
} dml__tile_shape;

/* Whether a device has the solo kernels, and whether they are its best. */
typedef enum dml__solo_use { DML__SOLO_NONE, DML__SOLO_BY_NAME, DML__SOLO_BEST } dml__solo_use;

/* Classes of sizes of columns or rows: up to 16, 64, 256, ... 16384, and more. */
enum { DML__TUNE_CLASSES = 7 };

typedef struct dml__choice {
    dml__solo_use solo;
    int units;     /* how many groups it runs at once, at least */
    bool measured; /* then this is best for classes of rows and columns; else the rule below says */
    unsigned char tile[DML__TUNE_CLASSES][DML__TUNE_CLASSES];
} dml__choice;

static inline int dml__tune_class(size_t n)
{
    int c = 0;
    for (size_t most = 16; c + 1 < DML__TUNE_CLASSES && n > most; most *= 4) c++;
    return c;
}

/* What a shape is expected to take for `size`: its groups, as often as the device has to be filled with them,
   times what one takes, which isn't less in proportion where tiles are small. */
static inline double dml__tile_cost(const dml__choice *choice, const size_t size[2], dml__tile_shape shape)
{
    static const struct {
        size_t rows, columns;
        double cost;
    } of[DML__TILE_SHAPES] = { { 128, 128, 16 }, { 128, 64, 9 }, { 64, 64, 6 },
                               { 64, 16, 3 },    { 16, 64, 3 },  { 16, 16, 2 } };
    const size_t groups = ((size[0] + of[shape].columns - 1) / of[shape].columns) *
                          ((size[1] + of[shape].rows - 1) / of[shape].rows);
    const size_t units = choice->units > 0 ? (size_t)choice->units : 1;
    return (double)((groups + units - 1) / units) * of[shape].cost;
}

/* Of size{columns, rows}; `is_one`: larger tiles than 64 x 64 may be taken. */
static inline dml__tile_shape dml__choose_tile(const dml__choice *choice, const size_t size[2], bool is_one)
{
    const int first = is_one ? DML__TILE_128x128 : DML__TILE_64x64;
    int best = first;
    if (choice->measured) {
        best = choice->tile[dml__tune_class(size[1])][dml__tune_class(size[0])];
        return (dml__tile_shape)(best > first ? best : first);
    }
    for (int shape = first + 1; shape < DML__TILE_SHAPES; shape++)
        if (dml__tile_cost(choice, size, (dml__tile_shape)shape) <
            dml__tile_cost(choice, size, (dml__tile_shape)best))
            best = shape;
    return (dml__tile_shape)best;
}

#endif

#include <string.h>

/* The most a launch may have along one axis: below 2^31 by enough that no group's or grid's surplus overflows
   an int. */
#define DML__LAUNCH_MOST (INT32_MAX - 0xfffff)

typedef struct dml__kernel_row {
    const char *name;
    int covers[2];
} dml__kernel_row;

/* A launch made ready: which kernel, how many groups (0 in either: nothing to do) of how many items, its
   arguments. */
typedef struct dml__kernel_launch {
    int kernel;
    size_t groups[2];
    size_t items;
    dml__kernel_arguments arguments;
} dml__kernel_launch;

static inline const dml__kernel_row *dml__kernel_row_at(int kernel)
{
    static const dml__kernel_row rows[] = {
#define DML__KERNEL_ROW(name, covers_x, covers_y) { #name, { covers_x, covers_y } },
        DML__KERNEL_LIST(DML__KERNEL_ROW) DML__SOLO_LIST(DML__KERNEL_ROW)
#undef DML__KERNEL_ROW
    };
    return &rows[kernel];
}

/* How much of a launch's size a group does along an axis, on a device of that choice. */
static inline size_t dml__kernel_covers(int kernel, int axis, const dml__choice *choice)
{
    const int covers = dml__kernel_row_at(kernel)->covers[axis];
    const bool run = covers == DML__COVERS_RUNS && choice->solo == DML__SOLO_BEST;
    return (size_t)(run ? DML__COVERS_RUNS_OF_ONE : covers);
}

/* How many items a group of the kernel has. */
static inline size_t dml__kernel_items(int kernel)
{
    return kernel < DML__KERNEL_FIRST_SOLO ? DML__GROUP_ITEMS : 1;
}

/* The bytes that `bytes` at `ref` need lie inside its buffer. */
static inline dml_status dml__check_ref(dml_device *device, dml_ref ref, size_t bytes, const char *what)
{
    if (!ref.buffer) return dml_device_fail(device, DML_ERROR_ARGUMENT, "%s: no buffer was given", what);
    if (ref.offset <= ref.buffer->bytes && bytes <= ref.buffer->bytes - ref.offset) return DML_OK;
    return dml_device_fail(
        device, DML_ERROR_ARGUMENT, "%s: %llu bytes at offset %llu don't fit in a buffer of %llu bytes", what,
        (unsigned long long)bytes, (unsigned long long)ref.offset, (unsigned long long)ref.buffer->bytes);
}

/* What a launch may name: a kernel, or a family, whose first kernel and whose solo one these are; of a kernel
   that has no family, both are itself. */
typedef struct dml__kernel_name {
    const char *name;
    int kernel, solo;
    bool tiles; /* then those of the other shapes are behind the first */
} dml__kernel_name;

#define DML__ONE_MORE(name) +1
enum { DML__KERNEL_NAMES = DML__KERNEL_COUNT DML__FAMILY_LIST(DML__ONE_MORE) DML__PAIR_LIST(DML__ONE_MORE) };
#undef DML__ONE_MORE

static inline const dml__kernel_name *dml__kernel_name_at(int i)
{
    static const dml__kernel_name names[] = {
#define DML__KERNEL_NAME(name, covers_x, covers_y) { #name, DML__KERNEL_##name, DML__KERNEL_##name, false },
        DML__KERNEL_LIST(DML__KERNEL_NAME) DML__SOLO_LIST(DML__KERNEL_NAME)
#undef DML__KERNEL_NAME
#define DML__FAMILY_NAME(family)                                                                             \
    { #family, DML__KERNEL_##family##_128x128, DML__KERNEL_##family##_solo, true },
            DML__FAMILY_LIST(DML__FAMILY_NAME)
#undef DML__FAMILY_NAME
#define DML__PAIR_NAME(pair) { #pair, DML__KERNEL_##pair##_team, DML__KERNEL_##pair##_solo, false },
                DML__PAIR_LIST(DML__PAIR_NAME)
#undef DML__PAIR_NAME
    };
    return &names[i];
}

/* The names by their hashes, which a device fills when it opens: hundreds of launches a millisecond can't
   compare each with a hundred names. */
enum { DML__KERNEL_PLACES = 512 };
typedef struct dml__kernel_index {
    uint16_t place[DML__KERNEL_PLACES]; /* a name's number, from 1 on, at its hash or the next free place */
} dml__kernel_index;

static inline unsigned dml__kernel_hash(const char *name)
{
    unsigned hash = 2166136261u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (hash ^ hash >> 16) % DML__KERNEL_PLACES;
}

static inline void dml__fill_kernel_index(dml__kernel_index *index)
{
    memset(index, 0, sizeof *index);
    for (int i = 0; i < DML__KERNEL_NAMES; i++) {
        unsigned at = dml__kernel_hash(dml__kernel_name_at(i)->name);
        while (index->place[at]) at = (at + 1) % DML__KERNEL_PLACES;
        index->place[at] = (uint16_t)(i + 1);
    }
}

/* Whether a launch of a family of tiles is one product, and not of several matrices or groups: only its tiles
   may be larger than 64. */
static inline bool dml__is_one_product(const dml_launch *launch, int family)
{
    return family == DML__KERNEL_gemm_128x128 ? launch->integer[8] == 0 : launch->integer[15] <= 1;
}

/* The kernel of that name, or the best of the family of that name; -1: there is none. */
static inline int dml__find_kernel(const dml__kernel_index *index, const dml_launch *launch,
                                   const dml__choice *choice)
{
    const char *name = launch->kernel;
    unsigned at = dml__kernel_hash(name);
    for (; index->place[at]; at = (at + 1) % DML__KERNEL_PLACES) {
        const dml__kernel_name *found = dml__kernel_name_at(index->place[at] - 1);
        if (strcmp(found->name, name) != 0) continue;
        if (choice->solo == DML__SOLO_BEST) return found->solo;
        if (!found->tiles) return found->kernel;
        return found->kernel +
               (int)dml__choose_tile(choice, launch->size, dml__is_one_product(launch, found->kernel));
    }
    return -1;
}

/* ---- products in shares of k ---- */

/* Into how many shares a launch of gemm is cut, where its result is few tiles and k is long: by its size
   alone, 1 for none. A share has 256 products or more, and all shares together are not more than 512 tiles
   (32 MiB). */
static inline int dml__gemm_shares(const dml_launch *launch)
{
    const int32_t *of = launch->integer; /* m, n, k, ... ldc, axes */
    if (strcmp(launch->kernel, "gemm") != 0 || of[2] < 512 || of[7] != of[1] || of[8] || of[13] > 1 ||
        launch->buffer[3].buffer || launch->real[2] != 0.0f)
        return 1;
    const double tiles = ((double)of[0] + 127) / 128 * (((double)of[1] + 127) / 128);
    const double most = 512 / tiles < of[2] / 256.0 ? 512 / tiles : of[2] / 256.0;
    return most > 1 ? (int)most : 1;
}

/* Launches the shares into a workspace of the device, which grows, and then their sum. False: there is no
   memory for it. */
static inline bool dml__launch_in_shares(dml_device *device, const dml_launch *launch, int shares,
                                         dml_buffer *workspace, dml_status *status)
{
    const size_t rows = ((size_t)launch->integer[0] + 127) / 128 * 128;
    const size_t count = (size_t)launch->integer[0] * (size_t)launch->integer[1];
    const size_t bytes = (size_t)shares * count * sizeof(float);
    dml_launch share = *launch, sum;
    if (workspace->bytes < bytes) {
        if (workspace->bytes) device->backend->buffer_destroy(device, workspace);
        workspace->bytes = bytes;
        *status = device->backend->buffer_create(device, workspace);
        if (*status != DML_OK) {
            workspace->bytes = 0;
            if (*status == DML_ERROR_MEMORY) dml_device_forgive(device);
            return *status != DML_ERROR_MEMORY;
        }
    }
    share.size[1] = (size_t)shares * rows;
    share.integer[13] = shares;
    share.buffer[2].buffer = workspace;
    share.buffer[2].offset = 0;
    share.real[1] = 0.0f;
    *status = device->backend->launch(device, &share);
    if (*status != DML_OK) return true;
    memset(&sum, 0, sizeof sum);
    sum.kernel = "sum_few";
    sum.size[0] = count, sum.size[1] = 1;
    sum.buffer[0] = share.buffer[2];
    sum.buffer[1] = launch->buffer[2];
    sum.integer[0] = sum.integer[2] = (int32_t)count, sum.integer[1] = shares;
    sum.real[0] = launch->real[1];
    *status = device->backend->launch(device, &sum);
    return true;
}

static inline dml_status dml__prepare_launch(dml_device *device, const dml_launch *launch,
                                             const dml__kernel_index *index, const dml__choice *choice,
                                             dml__kernel_launch *out)
{
    out->kernel = dml__find_kernel(index, launch, choice);
    if (out->kernel < 0)
        return dml_device_fail(device, DML_ERROR_ARGUMENT, "no kernel is named '%s'", launch->kernel);
    if (out->kernel >= DML__KERNEL_FIRST_SOLO && choice->solo == DML__SOLO_NONE)
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED, "only CPUs have the kernel '%s'",
                               launch->kernel);
    out->items = dml__kernel_items(out->kernel);
    for (int axis = 0; axis < 2; axis++) {
        const size_t size = launch->size[axis];
        const size_t covers = dml__kernel_covers(out->kernel, axis, choice);
        if (size > DML__LAUNCH_MOST)
            return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                                   "kernel '%s' was asked for %llu elements along one axis, and %d is the "
                                   "most: make the batch smaller",
                                   launch->kernel, (unsigned long long)size, DML__LAUNCH_MOST);
        out->groups[axis] = (size + covers - 1) / covers;
    }
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) {
        const dml_ref ref = launch->buffer[i];
        out->arguments.offset[i] = (int64_t)ref.offset;
        if (!ref.buffer) continue;
        const dml_status status = dml__check_ref(device, ref, 0, launch->kernel);
        if (status != DML_OK) return status;
    }
    memcpy(out->arguments.integer, launch->integer, sizeof out->arguments.integer);
    memcpy(out->arguments.real, launch->real, sizeof out->arguments.real);
    return DML_OK;
}

#endif

/* ---- gpu/tune.h ---- */

/* tune.h: measures once which tiles are best on a device, and keeps it in a small file: a line that says what
   it is, then a line a device, which is the shapes of all classes of sizes and the device's name.

   The file is $DML_TUNE, or dml-tune.txt in $XDG_CACHE_HOME or $HOME/.cache. DML_TUNE=0, a file that can't be
   written or is something else, or too little memory: nothing is measured, and dml__choose_tile's rule holds.
   All shapes add an output's products in the same order, so the choice doesn't change a bit of a result. */
#ifndef DML_GPU_TUNE_H
#define DML_GPU_TUNE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DML__TUNE_PATH = 1024, DML__TUNE_LINE = 256 };
/* The products that are timed: how deep, and of how many elements at most. */
enum { DML__TUNE_LAUNCHES = 4, DML__TUNE_DEPTH = 256, DML__TUNE_MOST = 4096 * 1024 };
#define DML__TUNE_TITLE "dml's tiles, by device: "
static const char dml__tune_title[] = DML__TUNE_TITLE
    "2\n"; /* of kernels that are tuned anew: another number, and files of others are as empty */

/* False: nothing is to be kept. */
static inline bool dml__tune_path(char *path, size_t capacity)
{
    const char *named = getenv("DML_TUNE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    if (named && *named)
        length = strcmp(named, "0") == 0 ? 0 : snprintf(path, capacity, "%s", named);
    else if (cache && *cache)
        length = snprintf(path, capacity, "%s/dml-tune.txt", cache);
    else if (home && *home)
        length = snprintf(path, capacity, "%s/.cache/dml-tune.txt", home);
    return length > 0 && (size_t)length < capacity;
}

/* Whether a line is whole: the shapes, a space and a name. */
static inline bool dml__tune_is_line(const char *line)
{
    enum { COUNT = DML__TUNE_CLASSES * DML__TUNE_CLASSES };
    const size_t length = strlen(line);
    return strspn(line, "012345") == COUNT && line[COUNT] == ' ' && length > COUNT + 2 &&
           line[length - 1] == '\n';
}

static inline bool dml__tune_is_of(const char *line, const char *device)
{
    const char *name = line + DML__TUNE_CLASSES * DML__TUNE_CLASSES + 1;
    return strncmp(name, device, strlen(device)) == 0 && name[strlen(device)] == '\n';
}

static inline void dml__tune_take(dml__choice *choice, const char *line)
{
    for (int i = 0; i < DML__TUNE_CLASSES * DML__TUNE_CLASSES; i++)
        choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES] = (unsigned char)(line[i] - '0');
    choice->measured = true;
}

/* What a file is to this library. */
typedef enum dml__tune_kind {
    DML__TUNE_OURS,
    DML__TUNE_BROKEN, /* ours, with lines that aren't whole */
    DML__TUNE_FOREIGN /* somebody's, who will want to keep it */
} dml__tune_kind;

/* Whether what is there, if anything is, isn't a plain file: it is neither read, which may wait, nor
   replaced. */
static inline bool dml__tune_is_special(const char *path)
{
    struct stat what;
    return stat(path, &what) == 0 && !S_ISREG(what.st_mode);
}

/* Takes the device's line, and copies the others that are whole to `aside`; each may be NULL. */
static inline dml__tune_kind dml__tune_read(dml__choice *choice, const char *path, const char *device,
                                            FILE *aside)
{
    char line[DML__TUNE_LINE];
    dml__tune_kind kind = DML__TUNE_OURS;
    if (dml__tune_is_special(path)) return DML__TUNE_FOREIGN;
    FILE *file = fopen(path, "r");
    const bool titled = file && fgets(line, sizeof line, file);
    const bool current = titled && strcmp(line, dml__tune_title) == 0;
    if (titled && strncmp(line, DML__TUNE_TITLE, strlen(DML__TUNE_TITLE)) != 0) kind = DML__TUNE_FOREIGN;
    while (current && fgets(line, sizeof line, file)) {
        if (!dml__tune_is_line(line))
            kind = DML__TUNE_BROKEN;
        else if (!dml__tune_is_of(line, device))
            (void)(aside && fputs(line, aside));
        else if (choice)
            dml__tune_take(choice, line);
    }
    if (file) fclose(file);
    return kind;
}

/* The least seconds of a launch of `kernel` for columns x rows; negative: it failed. */
typedef double (*dml__tune_clock)(void *argument, const char *kernel, int columns, int rows);

/* Fills the table; false: a launch failed. A shape is left for one that is a twentieth faster. */
static inline bool dml__tune_measure(dml__choice *choice, dml__tune_clock seconds_of, void *argument)
{
    static const char *const kernels[] = { "gemm_128x128", "gemm_128x64", "gemm_64x64",
                                           "gemm_64x16",   "gemm_16x64",  "gemm_16x16" };
    static const int sizes[DML__TUNE_CLASSES] = { 16, 64, 256, 1024, 4096, 16384, 65536 };
    for (int r = 0; r < DML__TUNE_CLASSES; r++) {
        for (int c = 0; c < DML__TUNE_CLASSES; c++) {
            const size_t size[2] = { (size_t)sizes[c], (size_t)sizes[r] };
            int best = (int)dml__choose_tile(choice, size, true);
            if (size[0] * size[1] > DML__TUNE_MOST) { /* a device is full of less */
                choice->tile[r][c] = r >= c ? choice->tile[r - 1][c] : choice->tile[r][c - 1];
                continue;
            }
            double least = seconds_of(argument, kernels[best], sizes[c], sizes[r]);
            for (int shape = 0; shape < DML__TILE_SHAPES && least >= 0; shape++) {
                const double seconds = seconds_of(argument, kernels[shape], sizes[c], sizes[r]);
                if (seconds < 0) least = seconds;
                if (seconds < 0.95 * least) least = seconds, best = shape;
            }
            if (least < 0) return false;
            choice->tile[r][c] = (unsigned char)best;
        }
    }
    choice->measured = true;
    return true;
}

/* Whether nothing is to be measured: it isn't wanted, the file has it, which is then in the table, or has
   something else. `note` is what there is to say about the file, or NULL. */
static inline bool dml__tune_is_settled(dml__choice *choice, const char *device, char path[DML__TUNE_PATH],
                                        const char **note)
{
    *note = NULL;
    if (!dml__tune_path(path, DML__TUNE_PATH)) return true;
    const dml__tune_kind kind = dml__tune_read(choice, path, device, NULL);
    if (kind == DML__TUNE_FOREIGN) *note = "is no file of tiles, so it is left alone and nothing is measured";
    if (kind == DML__TUNE_BROKEN) *note = "is damaged: its whole lines are kept";
    return choice->measured || kind == DML__TUNE_FOREIGN;
}

/* The file anew, with the table: whoever reads it meanwhile sees the old one or the new one. */
static inline void dml__tune_keep(const dml__choice *choice, const char *path, const char *device,
                                  FILE *aside, const char *aside_path)
{
    fputs(dml__tune_title, aside);
    (void)dml__tune_read(NULL, path, device, aside);
    for (int i = 0; i < DML__TUNE_CLASSES * DML__TUNE_CLASSES; i++)
        fputc('0' + choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES], aside);
    fprintf(aside, " %s\n", device);
    const bool failed = ferror(aside) != 0;
    if (fclose(aside) != 0 || failed || rename(aside_path, path) != 0) (void)remove(aside_path);
}

/* Measures the table and adds it to the file. False: a launch failed. */
static inline bool dml__tune_with(dml__choice *choice, const char *device, const char *path,
                                  dml__tune_clock seconds_of, void *argument)
{
    char aside_path[DML__TUNE_PATH + 48];
    snprintf(aside_path, sizeof aside_path, "%s.%ld.%llx", path,
             (long)getpid(), /* threads may open devices at once */
             (unsigned long long)(uintptr_t)choice);
    FILE *aside = fopen(aside_path, "w");
    if (!aside) return true;
    const bool ok = dml__tune_measure(choice, seconds_of, argument);
    if (ok) {
        dml__tune_keep(choice, path, device, aside, aside_path);
    } else {
        fclose(aside);
        (void)remove(aside_path);
    }
    return ok;
}

/* One buffer, of which all three operands of a product are parts: as much as the largest factor, and the
 * result. */
#define DML__TUNE_FACTOR ((size_t)65536 * DML__TUNE_DEPTH)
typedef struct dml__tune_job {
    dml_device *device;
    dml_buffer matrix;
} dml__tune_job;

static inline double dml__tune_seconds(void *argument, const char *kernel, int columns, int rows)
{
    dml__tune_job *job = (dml__tune_job *)argument;
    const dml_backend *backend = job->device->backend;
    const int32_t integers[] = { rows, columns, DML__TUNE_DEPTH, 0, 0, DML__TUNE_DEPTH, columns, columns };
    double least = 1e30;
    dml_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.kernel = kernel;
    launch.size[0] = (size_t)columns, launch.size[1] = (size_t)rows;
    memcpy(launch.integer, integers, sizeof integers);
    launch.real[0] = 0; /* C = 0, whatever A and B are */
    for (int i = 0; i < 3; i++) launch.buffer[i].buffer = &job->matrix;
    launch.buffer[2].offset = DML__TUNE_FACTOR * sizeof(float);
    for (int run = 0; run < 4; run++) { /* the first may compile */
        const double start = dml_seconds();
        for (int i = 0; i < DML__TUNE_LAUNCHES; i++) /* or waiting is most of it */
            if (backend->launch(job->device, &launch) != DML_OK) return -1;
        if (backend->finish(job->device) != DML_OK) return -1;
        const double seconds = dml_seconds() - start;
        if (run && seconds < least) least = seconds;
    }
    return least;
}

/* Of an open device; its status where a launch fails. Devices that are CPUs have nothing to choose. */
static inline dml_status dml__tune(dml_device *device, dml__choice *choice, const char *name)
{
    dml__tune_job job;
    char path[DML__TUNE_PATH];
    const char *note = NULL;
    const dml_ref all = { &job.matrix, 0 };
    if (choice->solo != DML__SOLO_NONE || dml_status_of(device->context) != DML_OK) return DML_OK;
    const bool settled = dml__tune_is_settled(choice, name, path, &note);
    if (note) dml_device_warn(device, "%s %s", path, note);
    if (settled) return DML_OK;
    memset(&job, 0, sizeof job);
    job.device = device;
    job.matrix.bytes = (DML__TUNE_FACTOR + DML__TUNE_MOST) * sizeof(float);
    dml_status status = device->backend->buffer_create(device, &job.matrix);
    if (status == DML_OK) status = device->backend->zero(device, all, job.matrix.bytes);
    if (status == DML_OK && !dml__tune_with(choice, name, path, dml__tune_seconds, &job))
        status = dml_status_of(device->context);
    device->backend->buffer_destroy(device, &job.matrix);
    if (status != DML_ERROR_MEMORY) return status;
    dml_device_forgive(device); /* models may fit where this doesn't */
    dml_device_warn(device, "%s: no memory to measure which tiles are best", name);
    return DML_OK;
}

#endif

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

/* ---- gpu/kernels.cl ---- */

/* kernels.cl: the shared kernels, compiled as OpenCL C 1.2, as CUDA and as host C; gpu/dialect.h has the
   words they are written in, gpu/kernel_list.h their names and launch shapes. */
#ifndef DML_GPU_KERNELS_CL
#define DML_GPU_KERNELS_CL

/* ---- gpu/dialect.h ---- */

/* dialect.h: the words that the shared kernels are written in, in OpenCL C 1.2, CUDA and host C.

   - KERNEL(name) { ... }: a kernel of six buffers and a block of arguments, in groups of DML__GROUP_ITEMS
   items
   - BUFFER(i, type): buffer i at its offset, as GLOBAL type *; NULL when the launch gave none
   - INT(i), REAL(i): its integers and floats
   - ITEM: this item's number in its group
   - GROUP_X, GROUP_Y: the group's number along x and y
   - ELEMENT: GROUP_X * DML__GROUP_ITEMS + ITEM, for kernels with an item an element
   - LOCAL type name[n]; memory of the group; only at a kernel's outermost scope
   - LOCAL_QUADS float name[n]; the same, of which QUAD_AT(p) reads four floats x, y, z, w at once, a QUAD,
   where p is a multiple of four from its beginning
   - BARRIER(); all items of a group, or none, come here; never after a return
   - UNROLL: before a loop over an array that lies in registers
   - HELPER: before a function; where it uses ITEM, GROUP_X, GROUP_Y or BARRIER its parameters begin with
     HERE_PARAMETER, and its arguments with HERE, both of which bring their comma
   - SHARED type *: a pointer to LOCAL memory
   - MULTIPLY_HIGH(a, b): the upper half of the product of two unsigned
   - RECIPROCAL(x): 1 / x of at least 1, and RECIPROCAL_ROOT(x): 1 / sqrt(x), within two of their last bits
   - WARP_OTHER(x, reach): what x is in the item whose number differs by the bit `reach`, 1 to 16; all items
   come here. Only where it is there (CUDA, host C)
   - BITS_OF(x), FLOAT_OF(u): the bits of a float, and back
   - WIDE: a 64-bit integer, for offsets: one tensor may hold more than 2^31 bytes

   Where an item is a processor core (host C, OpenCL devices that are CPUs), SOLO_KERNEL is defined:

   - SOLO_KERNEL(name): a kernel in groups of one item
   - SOLO_LOCAL type x[n]; memory of its own, since such a device may have little of LOCAL
   - VECTOR, VECTOR_LANES: as many floats as it adds at once, and how many these are
   - VECTOR_OF(x): x in each lane
   - VECTOR_LOAD(p): those at p, in memory of its own; VECTOR_STORE(p, v)
   - VECTOR_READ(p): those at p in GLOBAL memory; VECTOR_WRITE(p, v)
   - VECTOR_ADD_PRODUCT(v, x, w): v + x w of a float x; VECTOR_ADD_PRODUCTS(v, u, w): v + u w lane by lane
   - VECTOR_MOST(v, w): the larger of two lanes, not the NaN; VECTOR_EXP(v): of each lane

   Where a kernel NAME_solo does what NAME_team does, ops launch NAME (gpu/kernel_list.h).

   All sizes along x and y are below 2^31 (the hosts see to it), so indices are unsigned; offsets are WIDE. */
#ifndef DML_GPU_DIALECT_H
#define DML_GPU_DIALECT_H

#ifdef __CUDACC__ /* whose host has added the offsets: kernels had done so again at each use */
#define BUFFER(i, type) ((type *)buffer##i)
#else
#define BUFFER(i, type) ((GLOBAL type *)(buffer##i ? buffer##i + arguments.offset[i] : 0))
#endif
#define INT(i) (arguments.integer[i])
#define REAL(i) (arguments.real[i])
#define ELEMENT ((unsigned)GROUP_X * DML__GROUP_ITEMS + (unsigned)ITEM)

#if defined(__OPENCL_VERSION__)

#define GLOBAL __global
#define LOCAL __local
#define LOCAL_QUADS __local __attribute__((aligned(16)))
#define QUAD float4
#define QUAD_AT(p) (*(__local const float4 *)(p))
#define UNROLL __attribute__((opencl_unroll_hint))
#define SHARED __local
#define HERE_PARAMETER
#define HERE
#define HELPER static
HELPER float dml__tanh(float x)
{
    return fabs(x) > 9.02f ? copysign(1.0f, x) : tanh(x); /* PoCL's stays 2^-24 below 1 */
}
#define WIDE long
#define KERNEL(name)                                                                                         \
    __kernel __attribute__((reqd_work_group_size(DML__GROUP_ITEMS, 1, 1))) void dml__kernel_##name(          \
        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \
        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)
#ifdef DML__SOLO_LANES /* 4, 8 or 16: the host's to say */
#define VECTOR_LANES DML__SOLO_LANES
#define VECTOR_NAME__(name, lanes) name##lanes
#define VECTOR_NAME_(name, lanes) VECTOR_NAME__(name, lanes)
#define VECTOR VECTOR_NAME_(float, VECTOR_LANES)
#define VECTOR_OF(x) ((VECTOR)(x))
#define VECTOR_LOAD(p) (*(const dml__vector_anywhere *)(p))
#define VECTOR_READ(p) (*(__global const dml__vector_anywhere *)(p))
#define VECTOR_STORE(p, v) (*(dml__vector_anywhere *)(p) = (v))
#define VECTOR_WRITE(p, v) (*(__global dml__vector_anywhere *)(p) = (v))
#define VECTOR_ADD_PRODUCT(sum, x, v) ((sum) + (x) * (v))
#define VECTOR_ADD_PRODUCTS(sum, u, v) ((sum) + (u) * (v))
#define VECTOR_MOST(u, v) fmax(u, v)
#define VECTOR_EXP(v) exp(v)
typedef VECTOR dml__vector_anywhere __attribute__((aligned(4))); /* PoCL splits what vload gives */
#define SOLO_LOCAL __attribute__((aligned(64)))
#define SOLO_KERNEL(name)                                                                                    \
    __kernel __attribute__((reqd_work_group_size(1, 1, 1))) void dml__kernel_##name(                         \
        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \
        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)
#endif
#define ITEM ((int)get_local_id(0))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define EXP(x) exp(x)
#define EXPM1(x) expm1(x)
#define LOG(x) log(x)
#define LOG1P(x) log1p(x)
#define TANH(x) dml__tanh(x)
#define ERF(x) erf(x)
#define ABS(x) fabs(x)
#ifdef DML__SOLO_LANES
#define MULTIPLY_HIGH(a, b) ((uint)((ulong)(a) * (b) >> 32)) /* PoCL's mul_hi takes ten times as long */
#else
#define MULTIPLY_HIGH(a, b) mul_hi(a, b)
#endif
#define SQRT(x) sqrt(x)
#define RECIPROCAL(x) (1.0f / (x))
#define RECIPROCAL_ROOT(x) rsqrt(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define POW(x, y) pow(x, y)
#define NOT_A_NUMBER NAN
#define MINUS_INFINITY (-INFINITY)
#define BITS_OF(x) as_uint(x)
#define FLOAT_OF(u) as_float(u)

#elif defined(__CUDACC__)

#define GLOBAL
#define LOCAL __shared__
#define LOCAL_QUADS __shared__ __align__(16)
#define QUAD float4
#define QUAD_AT(p) (*(const float4 *)(p))
#define UNROLL _Pragma("unroll")
#define SHARED
#define HERE_PARAMETER
#define HERE
#define HELPER static __device__ __forceinline__
#define WIDE long long
#define KERNEL(name)                                                                                         \
    static __global__ void __launch_bounds__(DML__GROUP_ITEMS)                                               \
        dml__kernel_##name(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,        \
                           char *buffer5, const dml__kernel_arguments arguments)
#define ITEM ((int)threadIdx.x)
#define GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)(blockIdx.z * gridDim.y + blockIdx.y)) /* a grid's y ends at 65535, so z carries on */
#define BARRIER() __syncthreads()
#define WARP_OTHER(x, reach) __shfl_xor_sync(0xffffffffu, x, reach)
#define EXP(x) expf(x)
#define EXPM1(x) expm1f(x)
#define LOG(x) logf(x)
#define LOG1P(x) log1pf(x)
#define TANH(x) tanhf(x)
#define ERF(x) erff(x)
#define ABS(x) fabsf(x)
#define MULTIPLY_HIGH(a, b) __umulhi(a, b)
#define SQRT(x) sqrtf(x)
#define RECIPROCAL(x) __fdividef(1.0f, x)
#define RECIPROCAL_ROOT(x) rsqrtf(x)
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define POW(x, y) powf(x, y)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define MINUS_INFINITY __int_as_float((int)0xff800000)
#define BITS_OF(x) ((unsigned)__float_as_int(x))
#define FLOAT_OF(u) __int_as_float((int)(u))

#else /* host C: src/gpu/host_device.c runs one group at a time */

#define GLOBAL
#define LOCAL static
#define LOCAL_QUADS static
#define QUAD dml__host_quad
#define QUAD_AT(p) (*(const dml__host_quad *)(p))
#define UNROLL
#define SHARED
#define HERE_PARAMETER const dml__host_item *self,
#define HERE self,
#define HELPER static
#define WIDE int64_t
#define KERNEL(name)                                                                                         \
    static void dml__kernel_##name(const dml__host_item *self, char *buffer0, char *buffer1, char *buffer2,  \
                                   char *buffer3, char *buffer4, char *buffer5,                              \
                                   const dml__kernel_arguments arguments)
#define SOLO_KERNEL(name) KERNEL(name)
#define SOLO_LOCAL static
#define VECTOR dml__host_vector
#define VECTOR_LANES DML__HOST_LANES
#define VECTOR_OF(x) dml__host_vector_of(x)
#define VECTOR_LOAD(p) dml__host_vector_load(p)
#define VECTOR_READ(p) dml__host_vector_load(p)
#define VECTOR_STORE(p, v) dml__host_vector_store(p, v)
#define VECTOR_WRITE(p, v) dml__host_vector_store(p, v)
#define VECTOR_ADD_PRODUCT(sum, x, v) dml__host_vector_add_product(sum, x, v)
#define VECTOR_ADD_PRODUCTS(sum, u, v) dml__host_vector_add_products(sum, u, v)
#define VECTOR_MOST(u, v) dml__host_vector_most(u, v)
#define VECTOR_EXP(v) dml__host_vector_exp(v)
#define ITEM (self->item)
#define GROUP_X (self->group_x)
#define GROUP_Y (self->group_y)
#define BARRIER() dml__host_barrier(self)
#define WARP_OTHER(x, reach) dml__host_other(self, x, reach)
#define EXP(x) expf(x)
#define EXPM1(x) expm1f(x)
#define LOG(x) logf(x)
#define LOG1P(x) log1pf(x)
#define TANH(x) tanhf(x)
#define ERF(x) erff(x)
#define ABS(x) fabsf(x)
#define MULTIPLY_HIGH(a, b) ((uint32_t)((uint64_t)(a) * (b) >> 32))
#define SQRT(x) sqrtf(x)
#define RECIPROCAL(x) (1.0f / (x))
#define RECIPROCAL_ROOT(x) (1.0f / sqrtf(x))
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define POW(x, y) powf(x, y)
#define NOT_A_NUMBER NAN
#define MINUS_INFINITY (-INFINITY)
#define BITS_OF(x) dml__host_bits(x)
#define FLOAT_OF(u) dml__host_float(u)

#endif

#endif

/* ---- gpu/elementwise.cl ---- */

/* elementwise.cl: kernels that do the same to each element. Launches give size{n}. beta = 0 never reads the
   output. */
#ifndef DML_GPU_ELEMENTWISE_CL
#define DML_GPU_ELEMENTWISE_CL

/* An item does RUN elements, which lie a group's items apart, so that as many of its loads are on their way:
   with one each a GPU waits for memory more than it reads. Hence a kernel reads all of an item's elements,
   then computes, and then writes, since an output may be an input. On OpenCL devices that are CPUs it is one
   element: they do the items of a group many at once in vectors (gpu/kernel_list.h). */
#ifdef DML__RUN
#define RUN DML__RUN
#else
#define RUN 4
#endif
#define RUN_BEGIN ((unsigned)GROUP_X * (RUN * DML__GROUP_ITEMS) + (unsigned)ITEM)
/* At a kernel's begin: where an item has one element, the compiler then knows that it is below n. */
#define RUN_BEGINS(n)                                                                                        \
    if (RUN == 1 && RUN_BEGIN >= (n)) return
/* Before a statement for each k below RUN, whose element, i, is below n. */
#define EACH_OF_RUN(k, i, n) EACH_OF(RUN, RUN_BEGIN, k, i, n)
#define EACH_OF(count, begin, k, i, n)                                                                       \
    UNROLL for (unsigned k = 0, i = (begin); k < (count); k++, i += DML__GROUP_ITEMS) if (i < (n))

/* Before a statement for each of what an item has in registers, also of what isn't there, where that does no
   harm: without a condition they are computed side by side. */
#define EACH_IN_REGISTERS(count, k) UNROLL for (int k = 0; k < (count); k++)
/* Before a statement for each of an item's elements, as the one of row r and column c of a matrix of so many
   columns; also of those that aren't there, whose rows are beyond the last. */
#define EACH_PLACE_OF_RUN(k, r, c, columns)                                                                  \
    const unsigned rows_on = DML__GROUP_ITEMS / (columns), columns_on = DML__GROUP_ITEMS % (columns);        \
    unsigned r = RUN_BEGIN / (columns), c = RUN_BEGIN % (columns);                                           \
    UNROLL for (int k = 0; k < RUN;                                                                          \
                k++, c += columns_on, r += rows_on + (c >= (columns)), c -= c >= (columns) ? (columns) : 0)

/* new + beta old, where old is not read, and may hold anything, when beta is 0. */
HELPER float dml__with_beta(float value, float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? value : value + beta * *old;
}

/* The old output where it counts: it isn't read, and may hold anything, when beta is 0. */
HELPER float dml__old(float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? 0.0f : *old;
}

/* The relu of formulas.h, where it is on. */
HELPER float dml__with_relu(float value, int on)
{
    return on && value <= 0.0f ? 0.0f : value;
}

/* In the choice of a largest element, whether `value` comes before `best`: a NaN counts as the largest. */
HELPER int dml__beats(float value, float best)
{
    return (value > best) | ((value != value) & (best == best));
}

/* A number that much is divided by, whose quotients are products with its reciprocal. */
typedef struct dml__gpu_divisor {
    unsigned number, reciprocal;
} dml__gpu_divisor;

HELPER dml__gpu_divisor dml__gpu_divisor_of(int number)
{
    dml__gpu_divisor d;
    d.number = (unsigned)number;
    d.reciprocal = 0xffffffffu / d.number;
    return d;
}

/* Where the reciprocal serves many quotients. */
HELPER unsigned dml__gpu_divide(unsigned n, const dml__gpu_divisor d)
{
    const unsigned q = MULTIPLY_HIGH(n, d.reciprocal); /* the quotient, or one less */
    return n - q * d.number >= d.number ? q + 1 : q;
}

/* Where an item has one quotient. On CPUs the reciprocal is the same for all items, so the compiler takes it
   out of their loop, if it isn't inside a condition. */
HELPER unsigned dml__gpu_quotient(unsigned n, const dml__gpu_divisor d)
{
#ifdef SOLO_KERNEL
    return dml__gpu_divide(n, d);
#else
    return n / d.number;
#endif
}

/* y = alpha x + beta y. Buffers x, y; ints n; floats alpha, beta. */
KERNEL(axpby)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    const float alpha = REAL(0), beta = REAL(1);
    RUN_BEGINS(n);
    float from[RUN], old[RUN];
    EACH_OF_RUN(k, i, n)
    {
        from[k] = x[i];
        old[k] = dml__old(beta, y + i);
    }
    EACH_OF_RUN(k, i, n) y[i] = alpha * from[k] + beta * old[k];
}

/* y[o][c] = the sum of x[o][s][c] over few s, in their order, + beta y[o][c]. Buffers x, y; ints y's
   elements, how many s, how many c; floats beta; size{y's elements}. */
KERNEL(sum_few)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    const int few = INT(1);
    const unsigned inner = (unsigned)INT(2), i = ELEMENT;
    if (i < n) {
        const unsigned o = i / inner;
        float sum = 0.0f;
        for (int s = 0; s < few; s++) sum += x[(o * (WIDE)few + s) * inner + (i - o * inner)];
        y[i] = dml__with_beta(sum, REAL(0), y + i);
    }
}

/* y[r][c] += bias[c], and its relu. Buffers bias (may be NULL), y; ints rows, columns, whether with the relu;
   size{rows * columns}. */
KERNEL(bias_add)
{
    GLOBAL const float *bias = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned columns = (unsigned)INT(1), n = (unsigned)INT(0) * columns;
    RUN_BEGINS(n);
    float value[RUN], more[RUN];
    EACH_OF_RUN(k, i, n) value[k] = y[i];
    if (bias) {
        EACH_PLACE_OF_RUN(k, row, c, columns) more[k] = bias[c];
    }
    EACH_OF_RUN(k, i, n) y[i] = dml__with_relu(bias ? value[k] + more[k] : value[k], INT(2));
}

#endif

/* ---- gpu/formula.cl ---- */

/* formula.cl: the functions of kernels/formulas.h, all in two kernels: which one is the same for every item,
   and is chosen once for an item's RUN elements, which are computed side by side. */
#ifndef DML_GPU_FORMULA_CL
#define DML_GPU_FORMULA_CL

/* ---- kernels/formulas.h ---- */

/* formulas.h: the functions of one element, each a row: from it come the CPU's loops (kernels/formula.c), the
   case of the shared kernel (gpu/formula.cl) and the op (ops/op_formula.c).

   The words of a formula, which each of those defines for its own kind of number:

   VALUE              a number, for what is used twice: VALUE s = SIGMOID(a);
   a, b, c            the inputs; y the output, dy its gradient, d the gradient asked for
   P, Q               the op's own two numbers
   K(1.0f)            a constant, where a word takes a VALUE; beside an operator it may stand bare
   WHERE(m, x, y)     m ? x : y, both computed; m a comparison, or several joined by & and |
   EXP EXPM1 LOG LOG1P TANH SIGMOID ERF SQRT SIN COS ABS(x), POW(x, y); none inside itself

   `needs` is what the gradients read: A and B inputs, Y the output. */
#ifndef DML_KERNELS_FORMULAS_H
#define DML_KERNELS_FORMULAS_H

/* X(name, needs, forward, gradient of a). The relu of a NaN is NaN, so that it gets through. 0.7071 is
   sqrt(1/2), 0.3989 sqrt(1 / 2 pi), 1.5958 2 sqrt(2 / pi), 0.07135 0.044715 of that. From 10 on a gelu is as
   flat as at 10, where its square would else be infinite. The long ones are bound by arithmetic, not by
   memory: for them the CPU's loops are compiled for wider vectors, too. */
#define DML__FORMULAS_LONG(X)                                                                                \
    X(elu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * EXPM1(a)), d = WHERE(a > 0.0f, dy, P * EXP(a) * dy))     \
    X(gelu, DML__NEEDS_A, y = 0.5f * a * (1.0f + ERF(a * 0.707106781f)),                                     \
      d = dy * (0.5f * (1.0f + ERF(a * 0.707106781f)) + a * (0.398942280f * EXP(-0.5f * a * a))))            \
    X(gelu_tanh, DML__NEEDS_A, y = a * SIGMOID(a * (1.59576912f + 0.0713548163f * a * a)),                   \
      VALUE t = WHERE(a > 10.0f, K(10.0f), WHERE(a < -10.0f, K(-10.0f), a));                                 \
      VALUE s = SIGMOID(t * (1.59576912f + 0.0713548163f * t * t));                                          \
      d = dy * s * (1.0f + (1.0f - s) * t * (1.59576912f + 0.214064449f * t * t)))                           \
    X(silu, DML__NEEDS_A, y = a * SIGMOID(a), VALUE s = SIGMOID(a); d = dy * s * (1.0f + a * (1.0f - s)))    \
    X(sigmoid, DML__NEEDS_Y, y = SIGMOID(a), d = dy * y * (1.0f - y))                                        \
    X(tanh, DML__NEEDS_Y, y = TANH(a), d = dy * (1.0f - y * y))                                              \
    X(softplus, DML__NEEDS_A, y = WHERE(a > 0.0f, a, K(0.0f)) + LOG1P(EXP(-ABS(a))), d = dy * SIGMOID(a))    \
    X(exp, DML__NEEDS_Y, y = EXP(a), d = dy * y)                                                             \
    X(log, DML__NEEDS_A, y = LOG(a), d = dy / a)

#define DML__FORMULAS_1(X)                                                                                   \
    X(relu, DML__NEEDS_Y, y = WHERE(a <= 0.0f, K(0.0f), a), d = WHERE(y > 0.0f, dy, K(0.0f)))                \
    X(leaky_relu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * a), d = WHERE(a > 0.0f, dy, P * dy))              \
    DML__FORMULAS_LONG(X)                                                                                    \
    X(sqrt, DML__NEEDS_Y, y = SQRT(a), d = 0.5f * dy / y)                                                    \
    X(sin, DML__NEEDS_A, y = SIN(a), d = COS(a) * dy)                                                        \
    X(cos, DML__NEEDS_A, y = COS(a), d = -(SIN(a) * dy))                                                     \
    X(abs, DML__NEEDS_A, y = ABS(a), d = WHERE(a > 0.0f, dy, WHERE(a < 0.0f, -dy, K(0.0f))))                 \
    X(square, DML__NEEDS_A, y = a * a, d = 2.0f * a * dy)                                                    \
    X(pow, DML__NEEDS_A, y = POW(a, P), d = WHERE(P == 0.0f, K(0.0f), P * POW(a, P - 1.0f) * dy))            \
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

/* The same arguments: losses of a prediction a and a target b, which are summed where they are computed:
   their ops are those of ops/op_loss.c. */
#define DML__FORMULAS_LOSS(X)                                                                                \
    X(mean_squared_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = (a - b) * (a - b), d = 2.0f * (a - b) * dy, \
      d = 2.0f * (b - a) * dy)                                                                               \
    X(mean_absolute_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = ABS(a - b),                                \
      d = WHERE(a > b, dy, WHERE(a < b, -dy, K(0.0f))), d = WHERE(a > b, -dy, WHERE(a < b, dy, K(0.0f))))    \
    X(huber, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE e = ABS(a - b);                                        \
      y = Q * WHERE(e < P, 0.5f * e * e, P * (e - 0.5f * P)), VALUE e = a - b;                               \
      d = dy * Q * WHERE(e > P, P, WHERE(e < -P, -P, e)), VALUE f = b - a;                                   \
      d = dy * Q * WHERE(f > P, P, WHERE(f < -P, -P, f)))                                                    \
    X(binary_cross_entropy, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = LOG1P(EXP(-ABS(a)));                \
      y = (1.0f - b) * (s + WHERE(a > 0.0f, a, K(0.0f))) + P * b * (s - WHERE(a < 0.0f, a, K(0.0f))),        \
      d = dy * ((1.0f - b) * SIGMOID(a) - P * b * SIGMOID(-a)), VALUE s = LOG1P(EXP(-ABS(a)));               \
      d = dy * (P * (s - WHERE(a < 0.0f, a, K(0.0f))) - (s + WHERE(a > 0.0f, a, K(0.0f)))))                  \
    X(hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a * b >= 1.0f, K(0.0f), 1.0f - a * b),             \
      d = WHERE(a * b < 1.0f, -b * dy, K(0.0f)), d = WHERE(a * b < 1.0f, -a * dy, K(0.0f)))                  \
    X(squared_hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = 1.0f - a * b;                              \
      y = WHERE(s <= 0.0f, K(0.0f), s * s), VALUE s = 1.0f - a * b;                                          \
      d = -2.0f * dy * b * WHERE(s <= 0.0f, K(0.0f), s), VALUE r = 1.0f - a * b;                             \
      d = -2.0f * dy * a * WHERE(r <= 0.0f, K(0.0f), r))                                                     \
    X(kl_divergence, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(b == 0.0f, K(0.0f), b * (LOG(b) - a)),     \
      d = -b * dy, d = WHERE(b == 0.0f, K(0.0f), (LOG(b) + 1.0f - a) * dy))                                  \
    X(batch_mean, 2, 0, 0, y = a, d = dy, d = K(0.0f))

#define DML__NEEDS_A 1u
#define DML__NEEDS_B 2u
#define DML__NEEDS_Y 4u

enum {
#define DML__FORMULA_ENUM_1(name, needs, forward, gradient) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_2(name, inputs, first, needs, forward, gradient0, gradient1) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_FLAT(name, forward) DML__FORMULA_##name,
    DML__FORMULAS_1(DML__FORMULA_ENUM_1) DML__FORMULAS_2(DML__FORMULA_ENUM_2)
        DML__FORMULAS_FLAT(DML__FORMULA_ENUM_FLAT) DML__FORMULAS_LOSS(DML__FORMULA_ENUM_2) DML__FORMULA_COUNT
#undef DML__FORMULA_ENUM_1
#undef DML__FORMULA_ENUM_2
#undef DML__FORMULA_ENUM_FLAT
};
#define DML__FORMULA_OPS DML__FORMULA_mean_squared_error /* as many have ops of one element */

#endif

#define VALUE const float
#define K(constant) (constant)
#define WHERE(mask, x, y) ((mask) ? (x) : (y))
#define SIGMOID(x) RECIPROCAL(1.0f + EXP(-(x)))
#define P p
#define Q q

/* y = the formula. Buffers a, b, c (what the formula lacks is NULL), y; ints n, formula; floats p, q. */
KERNEL(formula_forward)
{
    GLOBAL const float *in_a = BUFFER(0, const float);
    GLOBAL const float *in_b = BUFFER(1, const float);
    GLOBAL const float *in_c = BUFFER(2, const float);
    GLOBAL float *out = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float p = REAL(0), q = REAL(1);
    RUN_BEGINS(n);
    float as[RUN], bs[RUN], cs[RUN], ys[RUN];
    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = cs[k] = ys[k] = 0.0f;
    EACH_OF_RUN(k, i, n) as[k] = in_a[i];
    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];
    if (in_c) EACH_OF_RUN(k, i, n) cs[k] = in_c[i];
    switch (INT(1)) {
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name:                                                                                \
        EACH_IN_REGISTERS(RUN, k)                                                                            \
        {                                                                                                    \
            const float a = as[k], b = bs[k], c = cs[k];                                                     \
            float y;                                                                                         \
            (void)a, (void)b, (void)c;                                                                       \
            forward;                                                                                         \
            ys[k] = y;                                                                                       \
        }                                                                                                    \
        break;
#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \
    DML__FORMULA_CASE_1(name, needs, forward, gradient0)
#define DML__FORMULA_CASE_FLAT(name, forward) DML__FORMULA_CASE_1(name, 0, forward, 0)
        DML__FORMULAS_1(DML__FORMULA_CASE_1)
        DML__FORMULAS_2(DML__FORMULA_CASE_2)
        DML__FORMULAS_FLAT(DML__FORMULA_CASE_FLAT)
        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)
#undef DML__FORMULA_CASE_1
#undef DML__FORMULA_CASE_2
#undef DML__FORMULA_CASE_FLAT
    }
    EACH_OF_RUN(k, i, n) out[i] = ys[k];
}

/* g0, g1 = the gradients of the inputs that have one, + beta what is there; NULL: not wanted. Each may be dy,
   and both the same. Buffers a, b, y (NULL where not needed), dy, g0, g1; ints n, formula; floats p, q,
   beta0, beta1. */
KERNEL(formula_backward)
{
    GLOBAL const float *in_a = BUFFER(0, const float);
    GLOBAL const float *in_b = BUFFER(1, const float);
    GLOBAL const float *output = BUFFER(2, const float);
    GLOBAL const float *gradient = BUFFER(3, const float);
    GLOBAL float *g0 = BUFFER(4, float);
    GLOBAL float *g1 = BUFFER(5, float);
    const unsigned n = (unsigned)INT(0);
    const float p = REAL(0), q = REAL(1), beta0 = REAL(2), beta1 = REAL(3);
    RUN_BEGINS(n);
    float as[RUN], bs[RUN], ys[RUN], dys[RUN], ds[RUN], d1s[RUN];
    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = ys[k] = dys[k] = ds[k] = d1s[k] = 0.0f;
    EACH_OF_RUN(k, i, n) dys[k] = gradient[i];
    if (in_a) EACH_OF_RUN(k, i, n) as[k] = in_a[i];
    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];
    if (output) EACH_OF_RUN(k, i, n) ys[k] = output[i];
    switch (INT(1)) {
#define FORMULA_GRADIENTS(gradient0, gradient1)                                                              \
    EACH_IN_REGISTERS(RUN, k)                                                                                \
    {                                                                                                        \
        const float a = as[k], b = bs[k], y = ys[k], dy = dys[k];                                            \
        float d;                                                                                             \
        (void)a, (void)b, (void)y, (void)dy;                                                                 \
        gradient1;                                                                                           \
        d1s[k] = d;                                                                                          \
        gradient0;                                                                                           \
        ds[k] = d;                                                                                           \
    }                                                                                                        \
    break;
#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \
    case DML__FORMULA_##name:                                                                                \
        FORMULA_GRADIENTS(gradient, d = 0.0f)
#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \
    case DML__FORMULA_##name: FORMULA_GRADIENTS(gradient0, gradient1)
        DML__FORMULAS_1(DML__FORMULA_CASE_1)
        DML__FORMULAS_2(DML__FORMULA_CASE_2)
        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)
#undef FORMULA_GRADIENTS
#undef DML__FORMULA_CASE_1
#undef DML__FORMULA_CASE_2
    }
    if (g0) EACH_OF_RUN(k, i, n) g0[i] = dml__with_beta(ds[k], beta0, g0 + i);
    if (g1) EACH_OF_RUN(k, i, n) g1[i] = dml__with_beta(d1s[k], beta1, g1 + i);
}

#undef VALUE
#undef K
#undef WHERE
#undef SIGMOID
#undef P
#undef Q

/* y = x repeated. Buffers x, y; ints n, dimensions, then the size of each, outermost first, and from 8 on x's
   stride in each; size{n}. */
KERNEL(broadcast)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned left[RUN], from[RUN];
    float value[RUN];
    EACH_OF_RUN(k, i, n)
    {
        left[k] = i;
        from[k] = 0;
    }
    for (int d = INT(1) - 1; d >= 0; d--) {
        const dml__gpu_divisor by = dml__gpu_divisor_of(INT(2 + d));
        EACH_OF_RUN(k, i, n)
        {
            const unsigned before = dml__gpu_divide(left[k], by);
            from[k] += (left[k] - before * by.number) * (unsigned)INT(8 + d);
            left[k] = before;
        }
    }
    EACH_OF_RUN(k, i, n) value[k] = x[from[k]];
    EACH_OF_RUN(k, i, n) y[i] = value[k];
}

#endif

/* ---- gpu/tiles.cl ---- */

/* tiles.cl: sums of products through local memory, for gemm and the convolutions.

   A group computes a tile of C = A B, TILE_K products at a time: its items fill a TILE_K x rows piece of A
   and a TILE_K x columns piece of B in local memory, then each adds up a piece of its own in registers. Item
   (tx, ty) of 16 x 16 owns the rows SPAN_ROWS ty and on, which its row of items reads as one broadcast, and
   of every 64 columns four neighbours, 4 tx and on: so both are read four floats at once. (Of 16 columns it
   owns one.) An output's products are added in the order of k, whatever the tile.

   While a piece is multiplied the next one is on its way from memory into registers: a loop over pieces
   loads one, then multiplies the one before it (TILES_MULTIPLY), then puts down what it loaded.

   Each kernel is there in TILE_SHAPES: large tiles read less, small ones waste less where there are few rows
   or columns, and are more groups where there are few of both (gpu/launch.h chooses). A tile larger than TILE
   is only for launches that are one product: of several, each begins at a multiple of TILE. */
#ifndef DML_GPU_TILES_CL
#define DML_GPU_TILES_CL

#define TILE 64 /* what launches of several products pad each to */
/* How many products at a time: the largest tile needs the registers. */
#define TILE_K_OF(columns) ((columns) > TILE ? 8 : 16)
#define TILE_K TILE_K_OF(tile_columns)
#define TILE_PAD 4 /* floats between rows, so that a column's stores spread over the banks */
#define SPAN (TILE / 16)
#define MOST_TILE 128 /* the largest; what launches of several shares pad each to */
#define MOST_SPAN (MOST_TILE / 16)

/* Rows and columns of a kernel's tile, constants wherever they are used, and its local memory. */
#define TILE_PARAMETERS                                                                                      \
    HERE_PARAMETER const int tile_rows, const int tile_columns, SHARED float *a_tile, SHARED float *b_tile
#define SPAN_ROWS (tile_rows / 16)
#define SPAN_COLUMNS (tile_columns / 16)
#define TAKES_ROWS (tile_rows * TILE_K / DML__GROUP_ITEMS) /* how many elements of a piece an item fills */
#define TAKES_COLUMNS (tile_columns * TILE_K / DML__GROUP_ITEMS)
#define A_TILE(k, row) a_tile[(k) * (tile_rows + TILE_PAD) + (row)]
#define B_TILE(k, column) b_tile[(k) * (tile_columns + TILE_PAD) + (column)]

/* Kernels NAME_64x64 ... that call BODY(TILE_ARGUMENTS ...), which the caller of this macro has as a helper.
 */
#define TILE_KERNEL(name, rows, columns, body)                                                               \
    KERNEL(name##_##rows##x##columns)                                                                        \
    {                                                                                                        \
        LOCAL_QUADS float a_tile[TILE_K_OF(columns) * (rows + TILE_PAD)];                                    \
        LOCAL_QUADS float b_tile[TILE_K_OF(columns) * (columns + TILE_PAD)];                                 \
        body(HERE rows, columns, a_tile, b_tile, TILE_BUFFERS, arguments);                                   \
    }
#define TILE_BUFFERS BUFFER(0, const float), BUFFER(1, const float), BUFFER(2, float), BUFFER(3, float)
#define TILE_SHAPES(name, body)                                                                              \
    TILE_KERNEL(name, 128, 128, body)                                                                        \
    TILE_KERNEL(name, 128, 64, body)                                                                         \
    TILE_KERNEL(name, 64, 64, body)                                                                          \
    TILE_KERNEL(name, 64, 16, body)                                                                          \
    TILE_KERNEL(name, 16, 64, body)                                                                          \
    TILE_KERNEL(name, 16, 16, body)

/* The item fills its elements of a piece of `size` rows, or columns, in one of two orders, whichever reads
   memory in sequence: ALONG_K: its k is fixed, its rows are 16 apart; ACROSS_K: its row is fixed, its ks are
   apart. */
#define ALONG_K_K (ITEM % TILE_K)
#define ALONG_K_ROW(j) (ITEM / TILE_K + (j) * (DML__GROUP_ITEMS / TILE_K))
#define ACROSS_K_K(j, size) (ITEM / (size) + (j) * (DML__GROUP_ITEMS / (size)))
#define ACROSS_K_ROW(size) (ITEM % (size))

/* The rows and columns of the item's own piece. */
#define OWN_ROW(i) (ITEM / 16 * SPAN_ROWS + (i))
#define OWN_COLUMN(j) (SPAN_COLUMNS % 4 ? ITEM % 16 + (j)*16 : (j) / 4 * 64 + ITEM % 16 * 4 + (j) % 4)

/* Declares the sums and clears them, and what is loaded of the next piece. */
#define TILES_BEGIN()                                                                                        \
    float sum[MOST_SPAN][MOST_SPAN];                                                                         \
    UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++) sum[i][j] = 0.0f

#define TILES_NEXT() float a_next[MOST_SPAN], b_next[MOST_SPAN]

/* own[i] = what the item has of row kk of a filled piece. */
#define TILES_OWN(own, span, TILE_AT, OWN)                                                                   \
    do {                                                                                                     \
        if ((span) % 4 == 0) {                                                                               \
            UNROLL for (int q = 0; q < (span) / 4; q++)                                                      \
            {                                                                                                \
                const QUAD four = QUAD_AT(&TILE_AT(kk, OWN(4 * q)));                                         \
                own[4 * q] = four.x, own[4 * q + 1] = four.y, own[4 * q + 2] = four.z,                       \
                        own[4 * q + 3] = four.w;                                                             \
            }                                                                                                \
        } else {                                                                                             \
            UNROLL for (int q = 0; q < (span); q++) own[q] = TILE_AT(kk, OWN(q));                            \
        }                                                                                                    \
    } while (0)

/* Adds the products of the filled tiles to the sums, and waits until all items have. */
#define TILES_MULTIPLY()                                                                                     \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                           \
        {                                                                                                    \
            float a_own[MOST_SPAN], b_own[MOST_SPAN];                                                        \
            TILES_OWN(a_own, SPAN_ROWS, A_TILE, OWN_ROW);                                                    \
            TILES_OWN(b_own, SPAN_COLUMNS, B_TILE, OWN_COLUMN);                                              \
            UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)         \
                sum[i][j] += a_own[i] * b_own[j];                                                            \
        }                                                                                                    \
        BARRIER();                                                                                           \
    } while (0)

/* Puts down what was loaded, in the order in which it was. */
#define TILES_FILL_A(across)                                                                                 \
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)                                                              \
        A_TILE((across) ? ACROSS_K_K(j, tile_rows) : ALONG_K_K,                                              \
               (across) ? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(j)) = a_next[j]
#define TILES_FILL_B(across)                                                                                 \
    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)                                                           \
        B_TILE((across) ? ACROSS_K_K(j, tile_columns) : ALONG_K_K,                                           \
               (across) ? ACROSS_K_ROW(tile_columns) : ALONG_K_ROW(j)) = b_next[j]

/* Where a group works in many matrices of C, laid one after the other: `matrices` of them, each the sum over
   `terms` products; a group below all of them has nothing to do. The arguments are gemm's. */
typedef struct dml__gpu_matrix {
    int matrices, terms, matrix, row;
} dml__gpu_matrix;

HELPER dml__gpu_matrix dml__gpu_matrix_at(int tile, int tile_rows, const dml__kernel_arguments arguments)
{
    dml__gpu_matrix at;
    at.matrices = 1, at.terms = 1;
    at.matrix = 0, at.row = tile * tile_rows;
    if (tile_rows > TILE) return at;
    const int tiles = (INT(0) + TILE - 1) / TILE * (TILE / tile_rows);
    at.matrix = tile / tiles, at.row = tile % tiles * tile_rows;
    for (int d = 0; d < 4 && INT(8 + d); d++) {
        if (INT(12) >> 3 * d & 4)
            at.matrices *= INT(8 + d);
        else
            at.terms *= INT(8 + d);
    }
    return at;
}

/* Where A and B of one of a matrix' terms begin, in floats. */
typedef struct dml__gpu_factors {
    WIDE a, b;
} dml__gpu_factors;

HELPER dml__gpu_factors dml__gpu_factors_of(int matrix, int term, const dml__kernel_arguments arguments)
{
    WIDE a_step = (WIDE)INT(0) * INT(2), b_step = (WIDE)INT(2) * INT(1);
    dml__gpu_factors of;
    of.a = 0, of.b = 0;
    for (int d = 3; d >= 0; d--) {
        const int size = INT(8 + d), has = INT(12) >> 3 * d;
        int at = 0;
        if (size == 0) continue;
        if (has & 4) {
            at = matrix % size;
            matrix /= size;
        } else {
            at = term % size;
            term /= size;
        }
        if (has & 1) {
            of.a += at * a_step;
            a_step *= size;
        }
        if (has & 2) {
            of.b += at * b_step;
            b_step *= size;
        }
    }
    return of;
}

/* A long sum's parts may be those of different groups, each with a C of its own, one after the other: which
   of these a group's is, its first column (or row), and its ks [from, to). A whole number of pieces each, so
   that it is the same sum in every kernel. */
#define SHARE_KS 64
typedef struct dml__gpu_share {
    int number, column, from, to;
} dml__gpu_share;

HELPER dml__gpu_share dml__gpu_share_at(int tile, int tile_columns, int columns, int depth, int shares)
{
    const int tiles = (columns + MOST_TILE - 1) / MOST_TILE * (MOST_TILE / tile_columns);
    const int ks = ((depth - 1) / shares / SHARE_KS + 1) * SHARE_KS;
    dml__gpu_share s;
    s.number = tile / tiles;
    s.column = tile % tiles * tile_columns;
    s.from = s.number < shares && depth / ks >= s.number ? s.number * ks : depth;
    s.to = depth - s.from > ks ? s.from + ks : depth;
    return s;
}

/* C = alpha op(A) op(B) + beta C, row-major, of one matrix or of all in up to four axes that they lie along,
   outermost first, each operand's one after the other. An axis that C hasn't is summed over, one that A or B
   hasn't repeats it. Buffers a, b, c, bias (of columns, or NULL), which is added; ints m, n, k, trans_a,
   trans_b, lda, ldb, ldc, 8 .. 11: the axes' sizes (0: no more), 12: for each three bits, whether A, B and C
   have it, 13: of one matrix, in how many shares of k (0 is 1), each with a C of its own; floats alpha, beta,
   1 with the relu; size{n, m}, of several matrices of C size{n, matrices * (m rounded up to TILE)}, in tiles
   of TILE at most; of several shares size{n, shares * (m rounded up to MOST_TILE)}. */
HELPER void dml__gemm_tile(TILE_PARAMETERS, GLOBAL const float *first_a, GLOBAL const float *first_b,
                           GLOBAL float *c, GLOBAL const float *bias, const dml__kernel_arguments arguments)
{
    const int m = INT(0), n = INT(1);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE ldc = INT(7);
    const float alpha = REAL(0), beta = REAL(1);
    const int shares = INT(13) > 1 ? INT(13) : 1;
    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 ? 0 : GROUP_Y, tile_rows, arguments);
    dml__gpu_share share = { 0, at.row, 0, INT(2) };
    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, tile_rows, m, INT(2), shares);
    const int row0 = share.column, column0 = GROUP_X * tile_columns, from = share.from, depth = share.to;
    const int is_one = at.matrix < at.matrices && share.number < shares && row0 < m;
    /* Of what the item fills: its first k and how many rows are left from its first on, then what it has to
       step in memory, in rows and in ks from one element to its next, and in memory from one piece to the
       next. */
    const int a_k = trans_a ? ACROSS_K_K(0, tile_rows) : ALONG_K_K;
    const int a_left = m - row0 - (trans_a ? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(0));
    const int b_k = trans_b ? ALONG_K_K : ACROSS_K_K(0, tile_columns);
    const int b_left = n - column0 - (trans_b ? ALONG_K_ROW(0) : ACROSS_K_ROW(tile_columns));
    const int a_rows = trans_a ? 0 : ALONG_K_ROW(1) - ALONG_K_ROW(0);
    const int a_ks = trans_a ? ACROSS_K_K(1, tile_rows) - ACROSS_K_K(0, tile_rows) : 0;
    const int b_rows = trans_b ? ALONG_K_ROW(1) - ALONG_K_ROW(0) : 0;
    const int b_ks = trans_b ? 0 : ACROSS_K_K(1, tile_columns) - ACROSS_K_K(0, tile_columns);
    const WIDE a_step = (WIDE)(a_rows + a_ks) * INT(5), a_piece = (WIDE)TILE_K * (trans_a ? INT(5) : 1);
    const WIDE b_step = (WIDE)(b_rows + b_ks) * INT(6), b_piece = (WIDE)TILE_K * (trans_b ? 1 : INT(6));
    TILES_BEGIN();
    TILES_NEXT();
    for (int term = 0; term < at.terms && is_one; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a =
            first_a + of.a +
            (trans_a ? (WIDE)(from + a_k) * INT(5) + (m - a_left) : (WIDE)(m - a_left) * INT(5) + from + a_k);
        GLOBAL const float *b =
            first_b + of.b +
            (trans_b ? (WIDE)(n - b_left) * INT(6) + from + b_k : (WIDE)(from + b_k) * INT(6) + (n - b_left));
        for (int k0 = from; k0 < depth + TILE_K; k0 += TILE_K) {
            UNROLL for (int j = 0; j < TAKES_ROWS; j++) a_next[j] =
                j * a_rows < a_left && k0 + a_k + j * a_ks < depth ? a[j * a_step] : 0.0f;
            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] =
                j * b_rows < b_left && k0 + b_k + j * b_ks < depth ? b[j * b_step] : 0.0f;
            a += a_piece, b += b_piece;
            if (k0 > from) TILES_MULTIPLY();
            TILES_FILL_A(trans_a);
            TILES_FILL_B(!trans_b);
        }
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            if (is_one && row < m && column < n) {
                GLOBAL float *to = c + ((WIDE)(at.matrix + share.number) * m + row) * ldc + column;
                const float value = bias ? alpha * sum[i][j] + bias[column] : alpha * sum[i][j];
                *to = dml__with_relu(dml__with_beta(value, beta, to), REAL(2) != 0.0f);
            }
        }
    }
}
TILE_SHAPES(gemm, dml__gemm_tile)

#endif

/* ---- gpu/conv2d.cl ---- */

/* conv2d.cl: convolution as products of matrices that are never stored (implicit GEMM).

   All three kernels take the ints batch, height, width, channels, filters, kernel_h, kernel_w, stride_h,
   stride_w, pad_h, pad_w, out_h, out_w, dilation_h, dilation_w, groups (the last three: 0 is 1), and the
   layouts of src/kernels/conv2d.h: x (N, H, W, C), w (F, KH, KW, C / groups), y (N, OH, OW, F). With groups a
   tile lies in one of them: where a size is said to be `padded`, it is groups * (the group's part, rounded up
   to TILE). */
#ifndef DML_GPU_CONV2D_CL
#define DML_GPU_CONV2D_CL

typedef struct dml__gpu_shape {
    int batch, height, width, channels, filters;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;
    int dilation_h, dilation_w;
    int group_channels, group_filters; /* of one group */
} dml__gpu_shape;

HELPER dml__gpu_shape dml__gpu_shape_of(const dml__kernel_arguments arguments)
{
    dml__gpu_shape s;
    s.batch = INT(0), s.height = INT(1), s.width = INT(2), s.channels = INT(3), s.filters = INT(4);
    s.kernel_h = INT(5), s.kernel_w = INT(6), s.stride_h = INT(7), s.stride_w = INT(8);
    s.pad_h = INT(9), s.pad_w = INT(10), s.out_h = INT(11), s.out_w = INT(12);
    s.dilation_h = INT(13) ? INT(13) : 1, s.dilation_w = INT(14) ? INT(14) : 1;
    s.group_channels = s.channels / (INT(15) ? INT(15) : 1);
    s.group_filters = s.filters / (INT(15) ? INT(15) : 1);
    return s;
}

/* Where tile number `tile`, of that size, begins: which group of channels, and where in it. */
typedef struct dml__gpu_part {
    int group, first;
} dml__gpu_part;

HELPER dml__gpu_part dml__gpu_part_at(int tile, int size, int of_group)
{
    const int tiles = size > TILE ? tile + 1 : (of_group + TILE - 1) / TILE * (TILE / size);
    dml__gpu_part p;
    p.group = tile / tiles;
    p.first = tile % tiles * size;
    return p;
}

/* A place in a batch of images; the image is -1 where there is none. */
typedef struct dml__gpu_place {
    int image, h, w;
} dml__gpu_place;

/* Images of height x width, by whose sizes the number of a pixel in their batch is divided. */
typedef struct dml__gpu_images {
    dml__gpu_divisor height, width;
} dml__gpu_images;

HELPER dml__gpu_images dml__gpu_images_of(int height, int width)
{
    dml__gpu_images images;
    images.height = dml__gpu_divisor_of(height);
    images.width = dml__gpu_divisor_of(width);
    return images;
}

/* Pixel number `pixel` of `pixels` of them, scaled by a stride and moved by a pad. */
HELPER dml__gpu_place dml__gpu_pixel(int pixel, int pixels, const dml__gpu_images images, int stride_h,
                                     int stride_w, int move_h, int move_w)
{
    const int row = (int)dml__gpu_divide((unsigned)pixel, images.width);
    const int image = (int)dml__gpu_divide((unsigned)row, images.height);
    dml__gpu_place p;
    p.image = pixel < pixels ? image : -1;
    p.h = (row - image * (int)images.height.number) * stride_h + move_h;
    p.w = (pixel - row * (int)images.width.number) * stride_w + move_w;
    return p;
}

/* Far outside of every image, as its sum and difference with twice as much is. */
#define NOWHERE (1 << 28)

/* A weight's place in a window: number `k` of (KH, KW, last); `last` is channels or filters. h and w are
   dilated; h is twice NOWHERE behind the last. */
typedef struct dml__gpu_tap {
    int h, w, last;
} dml__gpu_tap;

/* What taps are found by, of which there are `depth`. */
typedef struct dml__gpu_taps {
    dml__gpu_divisor last, kernel_w;
    int depth, dilation_h, dilation_w;
} dml__gpu_taps;

HELPER dml__gpu_taps dml__gpu_taps_of(const dml__gpu_shape s, int last)
{
    dml__gpu_taps t;
    t.last = dml__gpu_divisor_of(last);
    t.kernel_w = dml__gpu_divisor_of(s.kernel_w);
    t.depth = s.kernel_h * s.kernel_w * last;
    t.dilation_h = s.dilation_h, t.dilation_w = s.dilation_w;
    return t;
}

HELPER dml__gpu_tap dml__gpu_tap_at(int k, const dml__gpu_taps taps)
{
    const int number = (int)dml__gpu_divide((unsigned)k, taps.last);
    const int h = (int)dml__gpu_divide((unsigned)number, taps.kernel_w);
    dml__gpu_tap t;
    t.last = k - number * (int)taps.last.number;
    t.h = k < taps.depth ? h * taps.dilation_h : 2 * NOWHERE;
    t.w = (number - h * (int)taps.kernel_w.number) * taps.dilation_w;
    return t;
}

/* Where a place and a tap meet is the sum or the difference of their h and w. `at`: the floats before the
   place, or before its image. */
typedef struct dml__gpu_corner {
    WIDE at;
    int h, w;
} dml__gpu_corner;

/* y = conv(x, w) + bias + beta y, and its relu. Buffers x, w, bias (may be NULL), y; floats beta, 1 with the
   relu; size{filters (padded), batch * out_h * out_w}. */
HELPER void dml__conv2d_forward_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weights,
                                     GLOBAL const float *bias, GLOBAL float *y,
                                     const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const int relu = REAL(1) != 0.0f;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.out_h * s.out_w;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_filters);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and filter */
    const int filter0 = part.group * s.group_filters;           /* of the group */
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);
    const int depth = taps.depth, left = s.group_filters - column0 - ALONG_K_ROW(0);
    GLOBAL const float *own = weights + (WIDE)(filter0 + s.group_filters - left) * depth;
    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);
    dml__gpu_corner corner[MOST_SPAN];
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)
    {
        const dml__gpu_place p = dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, outputs, s.stride_h,
                                                s.stride_w, -s.pad_h, -s.pad_w);
        corner[j].h = p.image < 0 ? NOWHERE : p.h, corner[j].w = p.w;
        corner[j].at = (((WIDE)p.image * s.height + p.h) * s.width + p.w) * s.channels;
    }
    x += part.group * s.group_channels;
    for (int k0 = 0; k0 < depth + TILE_K; k0 += TILE_K) {
        const int k = k0 + ALONG_K_K;
        const dml__gpu_tap tap = dml__gpu_tap_at(k, taps);
        const WIDE from = ((WIDE)tap.h * s.width + tap.w) * s.channels + tap.last;
        UNROLL for (int j = 0; j < TAKES_ROWS; j++)
        {
            const int h = corner[j].h + tap.h, w = corner[j].w + tap.w;
            const int inside = (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            a_next[j] = inside ? x[corner[j].at + from] : 0.0f;
        }
        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
        {
            const int filter = ALONG_K_ROW(j) - ALONG_K_ROW(0);
            b_next[j] = k < depth && filter < left ? own[(WIDE)filter * depth + k] : 0.0f;
        }
        if (k0) TILES_MULTIPLY();
        TILES_FILL_A(0);
        TILES_FILL_B(0);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int pixel = row0 + OWN_ROW(i), filter = column0 + OWN_COLUMN(j);
            if (pixel < pixels && filter < s.group_filters) {
                GLOBAL float *to = y + (WIDE)pixel * s.filters + filter0 + filter;
                const float value = bias ? sum[i][j] + bias[filter0 + filter] : sum[i][j];
                *to = dml__with_relu(dml__with_beta(value, beta, to), relu);
            }
        }
    }
}

TILE_SHAPES(conv2d_forward, dml__conv2d_forward_tile)

/* dx = dconv/dx^T dy + beta dx. Buffers dy, w, dx; floats beta; size{channels (padded), batch *
   height * width}. */
HELPER void dml__conv2d_backward_input_tile(TILE_PARAMETERS, GLOBAL const float *dy,
                                            GLOBAL const float *weights, GLOBAL float *dx,
                                            GLOBAL float *unused, const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.height * s.width;
    const int tap_count = s.kernel_h * s.kernel_w;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_channels);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and channel */
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_filters);
    const dml__gpu_divisor stride_h = dml__gpu_divisor_of(s.stride_h);
    const dml__gpu_divisor stride_w = dml__gpu_divisor_of(s.stride_w);
    const unsigned end_h = (unsigned)(s.out_h * s.stride_h), end_w = (unsigned)(s.out_w * s.stride_w);
    const int channel = column0 + ACROSS_K_ROW(tile_columns), filter0 = part.group * s.group_filters;
    const dml__gpu_images inputs = dml__gpu_images_of(s.height, s.width);
    const int strides = s.stride_h > 1 || s.stride_w > 1;
    dml__gpu_corner place[MOST_SPAN];
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)
    {
        const dml__gpu_place p =
            dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, inputs, 1, 1, s.pad_h, s.pad_w);
        place[j].h = p.image < 0 ? NOWHERE : p.h, place[j].w = p.w;
        place[j].at = (WIDE)p.image * s.out_h * s.out_w;
        if (!strides) place[j].at += (WIDE)p.h * s.out_w + p.w;
        place[j].at *= s.filters;
    }
    dy += filter0;
    for (int k0 = 0; k0 < taps.depth + TILE_K; k0 += TILE_K) {
        const dml__gpu_tap tap = dml__gpu_tap_at(k0 + ALONG_K_K, taps);
        if (strides) {
            UNROLL for (int j = 0; j < TAKES_ROWS; j++)
            {
                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);
                const unsigned out_h = dml__gpu_divide(h, stride_h), out_w = dml__gpu_divide(w, stride_w);
                const int meets =
                    h < end_h && w < end_w && out_h * stride_h.number == h && out_w * stride_w.number == w;
                const WIDE from = ((WIDE)out_h * s.out_w + out_w) * s.filters + tap.last;
                a_next[j] = meets ? dy[place[j].at + from] : 0.0f;
            }
        } else {
            const WIDE back = ((WIDE)tap.h * s.out_w + tap.w) * s.filters - tap.last;
            UNROLL for (int j = 0; j < TAKES_ROWS; j++)
            {
                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);
                a_next[j] = h < end_h && w < end_w ? dy[place[j].at - back] : 0.0f;
            }
        }
        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
        {
            const int k = k0 + ACROSS_K_K(j, tile_columns);
            const int number = (int)dml__gpu_divide((unsigned)k, taps.last);
            const WIDE filter = filter0 + k - number * s.group_filters;
            b_next[j] = k < taps.depth && channel < s.group_channels
                            ? weights[(filter * tap_count + number) * s.group_channels + channel]
                            : 0.0f;
        }
        if (k0) TILES_MULTIPLY();
        TILES_FILL_A(0);
        TILES_FILL_B(1);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int pixel = row0 + OWN_ROW(i), channel = column0 + OWN_COLUMN(j);
            if (pixel < pixels && channel < s.group_channels) {
                GLOBAL float *to = dx + (WIDE)pixel * s.channels + part.group * s.group_channels + channel;
                *to = dml__with_beta(sum[i][j], beta, to);
            }
        }
    }
}

TILE_SHAPES(conv2d_backward_input, dml__conv2d_backward_input_tile)

/* dw = dconv/dw^T dy + beta dw, and the bias' gradient, the sums of dy, which are one more column of dw,
   whose x is 1. Buffers x, dy, dw (one for each share), db (likewise) or NULL; floats beta, shares (0 is 1),
   beta of db; size{kernel_h * kernel_w * channels / groups, and one more for db, of several shares rounded up
   to MOST_TILE and times them, filters (padded)}. */
HELPER void dml__conv2d_backward_weights_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,
                                              GLOBAL float *dw, GLOBAL float *db,
                                              const dml__kernel_arguments arguments)
{
    const int shares = REAL(1) > 1.0f ? (int)REAL(1) : 1;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);
    const int depth = s.batch * s.out_h * s.out_w, columns = taps.depth, all = columns + (db ? 1 : 0);
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, tile_rows, s.group_filters);
    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, tile_columns, all, depth, shares);
    const int row0 = part.first, column0 = share.column;             /* the first filter and weight */
    const int filter0 = part.group * s.group_filters;                /* of the group */
    const int is_one = filter0 < s.filters && share.number < shares; /* groups may be more than there is */
    const int end = is_one && row0 < s.group_filters && column0 < all ? share.to : 0;
    const int filter = row0 + ACROSS_K_ROW(tile_rows), weight = column0 + ACROSS_K_ROW(tile_columns);
    const dml__gpu_tap tap = dml__gpu_tap_at(weight, taps);
    const float outside = weight == columns && db ? 1.0f : 0.0f; /* of the images */
    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] = 0.0f;
    x += part.group * s.group_channels + tap.last;
    dy += filter0 + filter;
    for (int k0 = share.from; k0 < end + TILE_K; k0 += TILE_K) {
        UNROLL for (int j = 0; j < TAKES_ROWS; j++)
        {
            const int pixel = k0 + ACROSS_K_K(j, tile_rows);
            a_next[j] = pixel < end && filter < s.group_filters ? dy[(WIDE)pixel * s.filters] : 0.0f;
        }
        if (weight < all) { /* most items have nothing to read where weights are few */
            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
            {
                const dml__gpu_place p = dml__gpu_pixel(k0 + ACROSS_K_K(j, tile_columns), end, outputs,
                                                        s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
                const int h = p.h + tap.h, w = p.w + tap.w;
                const int inside =
                    p.image >= 0 && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
                b_next[j] = inside ? x[((WIDE)(p.image * s.height + h) * s.width + w) * s.channels] : outside;
            }
        }
        if (k0 > share.from) TILES_MULTIPLY();
        TILES_FILL_A(1);
        TILES_FILL_B(1);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            const WIDE of_filter = (WIDE)share.number * s.filters + filter0 + row;
            if (is_one && row < s.group_filters && column < all) {
                GLOBAL float *to = column < columns ? dw + of_filter * columns + column : db + of_filter;
                *to = dml__with_beta(sum[i][j], column < columns ? REAL(0) : REAL(2), to);
            }
        }
    }
}
TILE_SHAPES(conv2d_backward_weights, dml__conv2d_backward_weights_tile)

#endif

/* ---- gpu/solo.cl ---- */

/* solo.cl: the kernels of tiles.cl and conv2d.cl where an item is a whole processor core: a group of one item
   computes the same TILE x TILE piece with vectors, and nobody waits at a barrier.

   It fills SOLO_K products' pieces of A and B, and adds them up in blocks of SOLO_ROWS x 2 vectors that stay
   in registers. A lies as it is read at least cost, by rows or by k; of each element all lanes take a copy. B
   lies by k, its columns in sequence. As in tiles.cl an output's products are added in the order of k. */
#ifndef DML_GPU_SOLO_CL
#define DML_GPU_SOLO_CL
#ifdef SOLO_KERNEL

#define SOLO_K 64
#define SOLO_ROWS 8

/* The pieces, and how many rows and columns of them count. */
typedef struct dml__solo {
    float *a, *b, *sum; /* b[k][TILE], sum[TILE][TILE] */
    int a_row, a_k;     /* the steps of rows and ks in a: SOLO_K and 1, or 1 and TILE */
    int rows, columns;
} dml__solo;

/* Declares a group's pieces; `by_k`: A lies by k. */
#define SOLO_BEGIN(by_k, row_count, column_count)                                                            \
    SOLO_LOCAL float a_piece[TILE * SOLO_K + VECTOR_LANES];                                                  \
    SOLO_LOCAL float b_piece[SOLO_K * TILE + VECTOR_LANES];                                                  \
    SOLO_LOCAL float sum_piece[TILE * TILE];                                                                 \
    dml__solo piece;                                                                                         \
    piece.a = a_piece, piece.b = b_piece, piece.sum = sum_piece;                                             \
    piece.a_row = (by_k) ? 1 : SOLO_K, piece.a_k = (by_k) ? TILE : 1;                                        \
    piece.rows = (row_count), piece.columns = (column_count);                                                \
    if (piece.rows > TILE) piece.rows = TILE;                                                                \
    if (piece.columns > TILE) piece.columns = TILE;                                                          \
    dml__solo_clear(piece)

/* Both may write up to a vector past their n floats: what comes next there is filled later, or doesn't count.
 */
HELPER void dml__solo_copy(float *to, GLOBAL const float *from, int n, GLOBAL const float *end)
{
    int i = 0;
    for (; i < n && end - (from + i) >= VECTOR_LANES; i += VECTOR_LANES)
        VECTOR_STORE(to + i, VECTOR_READ(from + i));
    for (; i < n; i++) to[i] = from[i]; /* within a vector of the end of its array */
}

HELPER void dml__solo_zero(float *to, int n)
{
    for (int i = 0; i < n; i += VECTOR_LANES) VECTOR_STORE(to + i, VECTOR_OF(0.0f));
}

/* Clears the sums, and what is read of A and B beyond their rows and columns. */
HELPER void dml__solo_clear(const dml__solo s)
{
    for (int row = 0; row < s.rows; row++) dml__solo_zero(s.sum + row * TILE, s.columns);
    if (s.columns % (2 * VECTOR_LANES))
        for (int k = 0; k < SOLO_K; k++) dml__solo_zero(s.b + k * TILE, s.columns);
    if (s.rows % SOLO_ROWS) {
        dml__solo_zero(s.a, TILE * SOLO_K);
        dml__solo_zero(s.sum + s.rows * TILE, (TILE - s.rows) * TILE);
    }
}

/* B of rows that lie by k: b[k][column] = from[column * step + k]. */
HELPER void dml__solo_turn(const dml__solo s, GLOBAL const float *from, WIDE step, int depth)
{
    for (int column = 0; column < s.columns; column++)
        for (int k = 0; k < depth; k++) s.b[k * TILE + column] = from[column * step + k];
}

/* Adds `depth` products to SOLO_ROWS rows and VECTORS vectors of columns. */
#define SOLO_BLOCK(name, VECTORS)                                                                            \
    HELPER void name(const dml__solo s, int row, int column, int depth)                                      \
    {                                                                                                        \
        const float *a = s.a + row * s.a_row;                                                                \
        const float *b = s.b + column;                                                                       \
        float *sum = s.sum + row * TILE + column;                                                            \
        VECTOR total[SOLO_ROWS][VECTORS];                                                                    \
        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =    \
            VECTOR_LOAD(sum + i * TILE + j * VECTOR_LANES);                                                  \
        for (int k = 0; k < depth; k++) {                                                                    \
            VECTOR own[VECTORS];                                                                             \
            UNROLL for (int j = 0; j < VECTORS; j++) own[j] = VECTOR_LOAD(b + k * TILE + j * VECTOR_LANES);  \
            UNROLL for (int i = 0; i < SOLO_ROWS; i++)                                                       \
            {                                                                                                \
                const float factor = a[i * s.a_row + k * s.a_k];                                             \
                UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =                                       \
                    VECTOR_ADD_PRODUCT(total[i][j], factor, own[j]);                                         \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)                  \
            VECTOR_STORE(sum + i * TILE + j * VECTOR_LANES, total[i][j]);                                    \
    }
SOLO_BLOCK(dml__solo_block, 2)
SOLO_BLOCK(dml__solo_last_block, 1)

/* Adds the `depth` products of the filled pieces to the sums. */
HELPER void dml__solo_multiply(const dml__solo s, int depth)
{
    for (int column = 0; column < s.columns; column += 2 * VECTOR_LANES)
        for (int row = 0; row < s.rows; row += SOLO_ROWS) {
            if (column + VECTOR_LANES < s.columns)
                dml__solo_block(s, row, column, depth);
            else
                dml__solo_last_block(s, row, column, depth);
        }
}

/* c = alpha sums + bias + beta c, and its relu. */
HELPER void dml__solo_write(const dml__solo s, GLOBAL float *c, WIDE step, float alpha, float beta,
                            GLOBAL const float *bias, int relu)
{
    for (int row = 0; row < s.rows; row++) {
        GLOBAL float *to = c + row * step;
        const float *sum = s.sum + row * TILE;
        if (bias)
            for (int j = 0; j < s.columns; j++)
                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j] + bias[j], beta, to + j), relu);
        else
            for (int j = 0; j < s.columns; j++)
                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j], beta, to + j), relu);
    }
}

/* What the tiles of gemm compute, of the same arguments. */
SOLO_KERNEL(gemm_solo)
{
    GLOBAL const float *first_a = BUFFER(0, const float);
    GLOBAL const float *first_b = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(3, const float);
    const int m = INT(0), n = INT(1), depth = INT(2);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE lda = INT(5), ldb = INT(6), ldc = INT(7);
    const int shares = INT(13) > 1 ? INT(13) : 1;
    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 ? 0 : GROUP_Y, TILE, arguments);
    dml__gpu_share share = { 0, at.row, 0, depth };
    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, TILE, m, depth, shares);
    const int row0 = share.column, column0 = GROUP_X * TILE;
    if (at.matrix >= at.matrices || share.number >= shares || row0 >= m) return;
    SOLO_BEGIN(trans_a, m - row0, n - column0);
    for (int term = 0; term < at.terms; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a = first_a + of.a;
        GLOBAL const float *b = first_b + of.b;
        GLOBAL const float *a_end = a + (trans_a ? (depth - 1) * lda + m : (m - 1) * lda + depth);
        GLOBAL const float *b_end = b + (trans_b ? (n - 1) * ldb + depth : (depth - 1) * ldb + n);
        for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {
            const int ks = share.to - k0 < SOLO_K ? share.to - k0 : SOLO_K;
            if (trans_a)
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.a + k * TILE, a + (k0 + k) * lda + row0, piece.rows, a_end);
            else
                for (int row = 0; row < piece.rows; row++)
                    dml__solo_copy(piece.a + row * SOLO_K, a + (row0 + row) * lda + k0, ks, a_end);
            if (trans_b)
                dml__solo_turn(piece, b + column0 * ldb + k0, ldb, ks);
            else
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.b + k * TILE, b + (k0 + k) * ldb + column0, piece.columns, b_end);
            dml__solo_multiply(piece, ks);
        }
    }
    dml__solo_write(piece, BUFFER(2, float) + ((WIDE)(at.matrix + share.number) * m + row0) * ldc + column0,
                    ldc, REAL(0), REAL(1), bias ? bias + column0 : 0, REAL(2) != 0.0f);
}

/* Where in a patch (KH, KW, last) a piece begins: `from` floats into the run of a tap, or of a row of them.
 */
typedef struct dml__solo_start {
    int tap_h, tap_w, from;
} dml__solo_start;

HELPER dml__solo_start dml__solo_start_at(int k, int run, int taps_w)
{
    dml__solo_start start;
    start.from = k % run;
    start.tap_h = k / run / taps_w;
    start.tap_w = k / run % taps_w;
    return start;
}

/* Taps side by side are channels side by side, where all channels are the group's: then a row of them is one
   run. */
HELPER int dml__solo_joined(const dml__gpu_shape s)
{
    return s.dilation_w == 1 && s.channels == s.group_channels;
}

HELPER dml__solo_start dml__solo_patch_start(const dml__gpu_shape s, int k)
{
    return dml__solo_joined(s) ? dml__solo_start_at(k, s.kernel_w * s.channels, 1)
                               : dml__solo_start_at(k, s.group_channels, s.kernel_w);
}

/* n floats of the patch of x whose corner is `corner`. */
HELPER void dml__solo_patch(float *to, GLOBAL const float *x, GLOBAL const float *end, const dml__gpu_shape s,
                            int group, const dml__gpu_place corner, dml__solo_start start, int n)
{
    const int joined = dml__solo_joined(s), run = joined ? s.kernel_w * s.channels : s.group_channels;
    const int taps_w = joined ? 1 : s.kernel_w;
    const WIDE line = (WIDE)s.width * s.channels;
    GLOBAL const float *image = x + corner.image * s.height * line + group * s.group_channels;
    /* Most windows lie in the image, and then nothing is to be looked at: a row of taps after the other. */
    if (joined && corner.h >= 0 && corner.h + (s.kernel_h - 1) * s.dilation_h < s.height && corner.w >= 0 &&
        corner.w + s.kernel_w <= s.width) {
        GLOBAL const float *from =
            image + (corner.h + start.tap_h * s.dilation_h) * line + corner.w * s.channels + start.from;
        for (int k = 0; k < n;) {
            const int count = run - start.from < n - k ? run - start.from : n - k;
            dml__solo_copy(to + k, from, count, end);
            k += count;
            from += s.dilation_h * line - start.from;
            start.from = 0;
        }
        return;
    }
    for (int k = 0; k < n; start.from = 0) {
        const int h = corner.h + start.tap_h * s.dilation_h, w = corner.w + start.tap_w * s.dilation_w;
        const int count = run - start.from < n - k ? run - start.from : n - k;
        int low = 0, high = count; /* of these floats, what lies in the image */
        if (joined) {
            const int first = w * s.channels + start.from;
            if (first < 0) low = -first;
            if (high > line - first) high = (int)line - first;
        } else if (w < 0 || w >= s.width) {
            high = 0;
        }
        if (h < 0 || h >= s.height || high <= low) {
            dml__solo_zero(to + k, count);
        } else {
            GLOBAL const float *from = image + h * line + w * s.channels + start.from;
            if (low) dml__solo_zero(to + k, low);
            dml__solo_copy(to + k + low, from + low, high - low, end);
            if (high < count) dml__solo_zero(to + k + high, count - high);
        }
        k += count;
        if (++start.tap_w == taps_w) start.tap_w = 0, start.tap_h++;
    }
}

/* The place behind `place` in its batch of images of outputs, or of inputs (stride 1, moved by the pad). */
HELPER dml__gpu_place dml__solo_next(dml__gpu_place place, int height, int width, int stride_h, int stride_w,
                                     int move_h, int move_w)
{
    place.w += stride_w;
    if (place.w == width * stride_w + move_w) {
        place.w = move_w;
        place.h += stride_h;
        if (place.h == height * stride_h + move_h) place.h = move_h, place.image++;
    }
    return place;
}

/* What the tiles of conv2d_forward compute, of the same arguments. */
SOLO_KERNEL(conv2d_forward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    GLOBAL const float *end = x + (WIDE)s.batch * s.height * s.width * s.channels;
    const int pixels = s.batch * s.out_h * s.out_w, depth = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_filters);
    const int row0 = GROUP_Y * TILE, filter0 = part.group * s.group_filters + part.first;
    const dml__gpu_place first = dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.out_h, s.out_w),
                                                s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    SOLO_BEGIN(0, pixels - row0, s.group_filters - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        const dml__solo_start start = dml__solo_patch_start(s, k0);
        dml__gpu_place corner = first;
        for (int row = 0; row < piece.rows; row++) {
            dml__solo_patch(piece.a + row * SOLO_K, x, end, s, part.group, corner, start, ks);
            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
        }
        dml__solo_turn(piece, weights + (WIDE)filter0 * depth + k0, depth, ks);
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece, BUFFER(3, float) + (WIDE)row0 * s.filters + filter0, s.filters, 1.0f, REAL(0),
                    bias ? bias + filter0 : 0, REAL(1) != 0.0f);
}

/* n floats of what of dy meets the input `place`, (KH, KW, filters of the group). */
HELPER void dml__solo_outputs(float *to, GLOBAL const float *dy, GLOBAL const float *end,
                              const dml__gpu_shape s, int group, const dml__gpu_place place,
                              dml__solo_start start, int n)
{
    const WIDE line = (WIDE)s.out_w * s.filters;
    GLOBAL const float *image = dy + place.image * s.out_h * line + group * s.group_filters;
    for (int k = 0; k < n; start.from = 0) {
        const int count = s.group_filters - start.from < n - k ? s.group_filters - start.from : n - k;
        const int h = place.h - start.tap_h * s.dilation_h, w = place.w - start.tap_w * s.dilation_w;
        const int out_h = s.stride_h == 1 ? h : h / s.stride_h, out_w = s.stride_w == 1 ? w : w / s.stride_w;
        if (h < 0 || w < 0 || out_h * s.stride_h != h || out_w * s.stride_w != w || out_h >= s.out_h ||
            out_w >= s.out_w)
            dml__solo_zero(to + k, count);
        else
            dml__solo_copy(to + k, image + out_h * line + out_w * s.filters + start.from, count, end);
        k += count;
        if (++start.tap_w == s.kernel_w) start.tap_w = 0, start.tap_h++;
    }
}

/* What the tiles of conv2d_backward_input compute, of the same arguments. */
SOLO_KERNEL(conv2d_backward_input_solo)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.height * s.width;
    const int taps = s.kernel_h * s.kernel_w, depth = taps * s.group_filters;
    GLOBAL const float *dy_end = dy + (WIDE)s.batch * s.out_h * s.out_w * s.filters;
    GLOBAL const float *weights_end = weights + (WIDE)s.filters * taps * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_channels);
    const int row0 = GROUP_Y * TILE;
    const dml__gpu_place first =
        dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.height, s.width), 1, 1, s.pad_h, s.pad_w);
    SOLO_BEGIN(0, pixels - row0, s.group_channels - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        const dml__solo_start start = dml__solo_start_at(k0, s.group_filters, s.kernel_w);
        int tap = k0 / s.group_filters, filter = k0 % s.group_filters;
        dml__gpu_place place = first;
        for (int row = 0; row < piece.rows; row++) {
            dml__solo_outputs(piece.a + row * SOLO_K, dy, dy_end, s, part.group, place, start, ks);
            place = dml__solo_next(place, s.height, s.width, 1, 1, s.pad_h, s.pad_w);
        }
        for (int k = 0; k < ks; k++) {
            const WIDE row = (WIDE)(part.group * s.group_filters + filter) * taps + tap;
            dml__solo_copy(piece.b + k * TILE, weights + row * s.group_channels + part.first, piece.columns,
                           weights_end);
            if (++filter == s.group_filters) filter = 0, tap++;
        }
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece,
                    BUFFER(2, float) + (WIDE)row0 * s.channels + part.group * s.group_channels + part.first,
                    s.channels, 1.0f, REAL(0), 0, 0);
}

/* What the tiles of conv2d_backward_weights compute, of the same arguments. */
SOLO_KERNEL(conv2d_backward_weights_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *db = BUFFER(3, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int depth = s.batch * s.out_h * s.out_w, columns = s.kernel_h * s.kernel_w * s.group_channels;
    GLOBAL const float *x_end = x + (WIDE)s.batch * s.height * s.width * s.channels;
    GLOBAL const float *dy_end = dy + (WIDE)depth * s.filters;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, TILE, s.group_filters);
    const int shares = REAL(1) > 1.0f ? (int)REAL(1) : 1;
    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, TILE, columns + (db ? 1 : 0), depth, shares);
    const int column0 = share.column, filter0 = part.group * s.group_filters + part.first;
    const dml__solo_start start = dml__solo_patch_start(s, column0);
    const WIDE row0 = (WIDE)share.number * s.filters + filter0;
    if (column0 >= columns + (db ? 1 : 0)) return; /* of the surplus that shares are padded to */
    dml__gpu_place corner = dml__gpu_pixel(share.from, depth, dml__gpu_images_of(s.out_h, s.out_w),
                                           s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    SOLO_BEGIN(1, s.group_filters - part.first, columns + (db ? 1 : 0) - column0);
    const int weights = columns - column0 < TILE ? columns - column0 : TILE; /* of the piece's columns */
    const int sums = weights < piece.columns;                                /* the last is dy's sums */
    for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {
        const int ks = share.to - k0 < SOLO_K ? share.to - k0 : SOLO_K;
        for (int k = 0; k < ks; k++) {
            dml__solo_copy(piece.a + k * TILE, dy + (WIDE)(k0 + k) * s.filters + filter0, piece.rows, dy_end);
            dml__solo_patch(piece.b + k * TILE, x, x_end, s, part.group, corner, start, weights);
            if (sums) piece.b[k * TILE + weights] = 1.0f;
            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
        }
        dml__solo_multiply(piece, ks);
    }
    for (int row = 0; row < piece.rows && sums; row++)
        db[row0 + row] = dml__with_beta(piece.sum[row * TILE + weights], REAL(2), db + row0 + row);
    piece.columns = weights;
    dml__solo_write(piece, BUFFER(2, float) + row0 * columns + column0, columns, 1.0f, REAL(0), 0, 0);
}

#endif
#endif

/* ---- gpu/pool2d.cl ---- */

/* pool2d.cl: max and average pooling, an item an output (forward) or an input (backward, which gathers over
   the windows that cover the input, so it needs no atomics and repeats bitwise).

   The ints are those of conv2d.cl, but in the place of filters whether a mean counts padding; the meaning is
   that of src/kernels/pool2d.h. */
#ifndef DML_GPU_POOL2D_CL
#define DML_GPU_POOL2D_CL

/* The part of the axis 0 .. size - 1 that window `out` covers, [from, to). Unsigned, here and below, since a
   place plus a pad or a stride need not fit an int. */
typedef struct dml__gpu_range {
    int from, to;
} dml__gpu_range;

HELPER dml__gpu_range dml__gpu_window(int out, int size, int window, int stride, int pad)
{
    dml__gpu_range r;
    const unsigned padded = (unsigned)out * (unsigned)stride, to = padded + (unsigned)(window - pad);
    const int from = (int)(padded - (unsigned)pad); /* -pad .. size: fits, though its parts need not */
    r.from = from > 0 ? from : 0;
    r.to = to < (unsigned)size ? (int)to : size;
    return r;
}

/* How many of the places of window `out` are in the image, or in it and the pads. */
HELPER int dml__gpu_places(int out, int size, int window, int stride, int pad, int count_padding)
{
    const unsigned padded = (unsigned)out * (unsigned)stride, end = (unsigned)size + (unsigned)pad;
    const dml__gpu_range r = dml__gpu_window(out, size, window, stride, pad);
    if (!count_padding) return r.to - r.from;
    return padded + (unsigned)(window - pad) > end ? (int)(end + (unsigned)pad - padded) : window;
}

/* What the sum over a window is divided by. */
HELPER float dml__gpu_window_size(const dml__gpu_shape s, int out_h, int out_w)
{
    return (float)dml__gpu_places(out_h, s.height, s.kernel_h, s.stride_h, s.pad_h, s.filters) *
           (float)dml__gpu_places(out_w, s.width, s.kernel_w, s.stride_w, s.pad_w, s.filters);
}

/* The windows 0 .. outs - 1 that cover place `in` of the axis, [from, to). */
HELPER dml__gpu_range dml__gpu_windows_over(int in, int outs, int window, int stride, int pad)
{
    dml__gpu_range r;
    const unsigned place = (unsigned)in + (unsigned)pad, size = (unsigned)window;
    const dml__gpu_divisor step = dml__gpu_divisor_of(stride);
    const unsigned last = dml__gpu_quotient(place, step);
    r.from = place < size ? 0 : (int)(dml__gpu_quotient(place - size, step) + 1);
    r.to = last < (unsigned)outs ? (int)last + 1 : outs;
    return r;
}

/* Element i of a tensor (batch, height, width, channels) taken apart. */
typedef struct dml__gpu_element {
    int image, h, w, channel;
} dml__gpu_element;

HELPER dml__gpu_element dml__gpu_element_at(unsigned i, int height, int width, int channels)
{
    const unsigned rest = dml__gpu_quotient(i, dml__gpu_divisor_of(channels));
    const unsigned row = dml__gpu_quotient(rest, dml__gpu_divisor_of(width));
    const unsigned image = dml__gpu_quotient(row, dml__gpu_divisor_of(height));
    dml__gpu_element e;
    e.channel = (int)(i - rest * (unsigned)channels);
    e.w = (int)(rest - row * (unsigned)width);
    e.h = (int)(row - image * (unsigned)height);
    e.image = (int)image;
    return e;
}

/* y = the largest input of the window, a NaN if there is one; argmax = its place h * W + w, and -1 where int
   13 says that x is a relu's and nothing is above 0: backward is then that relu's too. Buffers x, y, argmax
   (int, may be NULL); size{batch * out_h * out_w * channels}. */
KERNEL(max_pool2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    GLOBAL int *argmax = BUFFER(2, int);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        int best = h.from * s.width + w.from;
        float largest = image[(WIDE)best * s.channels];
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const int place = row * s.width + column;
                const float value = image[(WIDE)place * s.channels];
                const int wins = dml__beats(value, largest); /* no branch: nobody can predict it */
                largest = wins ? value : largest;
                best = wins ? place : best;
            }
        }
        y[i] = largest;
        if (argmax) argmax[i] = largest > 0.0f || !INT(13) ? best : -1;
    }
}

/* dx = the dy of the windows that the input won + beta dx. Buffers argmax (int), dy, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(max_pool2d_backward)
{
    GLOBAL const int *argmax = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const WIDE out =
                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;
                const float won = dy[out]; /* read anyway: a branch on argmax would be mispredicted */
                sum += argmax[out] == e.h * s.width + e.w ? won : 0.0f;
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

/* What max_pool2d_backward computes, of the same buffers and floats, where no two windows have an input in
   common: an item an output, whose window's inputs and those up to the next window are its own, so that dy
   and argmax are read once. size{batch * out_h * out_w * channels}. */
KERNEL(max_pool2d_backward_apart)
{
    GLOBAL const int *argmax = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    if (i < n) {
        const int top = e.h ? e.h * s.stride_h - s.pad_h : 0, left = e.w ? e.w * s.stride_w - s.pad_w : 0;
        const int bottom = e.h + 1 < s.out_h ? (e.h + 1) * s.stride_h - s.pad_h : s.height;
        const int right = e.w + 1 < s.out_w ? (e.w + 1) * s.stride_w - s.pad_w : s.width;
        const int best = argmax[i];
        const float won = dy[i];
        GLOBAL float *image = dx + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        for (int h = top; h < bottom; h++) {
            for (int w = left; w < right; w++) {
                const int place = h * s.width + w;
                GLOBAL float *to = image + (WIDE)place * s.channels;
                *to = dml__with_beta(place == best ? won : 0.0f, beta, to);
            }
        }
    }
}

/* y = the mean of the window's inputs. Buffers x, y;
   size{batch * out_h * out_w * channels}. */
KERNEL(avg_pool2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++)
            for (int column = w.from; column < w.to; column++)
                sum += image[(WIDE)(row * s.width + column) * s.channels];
        y[i] = sum / dml__gpu_window_size(s, e.h, e.w);
    }
}

/* dx = each covering window's dy over its inputs + beta dx. Buffers dy, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(avg_pool2d_backward)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL float *dx = BUFFER(1, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const WIDE out =
                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;
                sum += dy[out] / dml__gpu_window_size(s, row, column);
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

#endif

/* ---- gpu/local2d.cl ---- */

/* local2d.cl: convolution whose weights differ from place to place, an item an output (forward), an input or
   a weight (backward). The ints are those of conv2d.cl, without pads; the meaning is that of
   src/kernels/local2d.h. */
#ifndef DML_GPU_LOCAL2D_CL
#define DML_GPU_LOCAL2D_CL

/* y = the sums of the windows' products. Buffers x, w, y; size{batch * out_h * out_w * filters}. */
KERNEL(local2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.filters);
        const int run = s.kernel_w * s.channels;
        GLOBAL const float *w =
            weights + (((WIDE)e.h * s.out_w + e.w) * s.filters + e.channel) * s.kernel_h * run;
        float sum = 0.0f;
        for (int row = 0; row < s.kernel_h; row++) {
            GLOBAL const float *line =
                x + (((WIDE)e.image * s.height + e.h * s.stride_h + row) * s.width + e.w * s.stride_w) *
                        s.channels;
            for (int k = 0; k < run; k++) sum += line[k] * w[(WIDE)row * run + k];
        }
        y[i] = sum;
    }
}

/* dx = each covering window's dy times its weights + beta dx. Buffers dy, w, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(local2d_backward_input)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
        const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, 0);
        const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, 0);
        const WIDE taps = (WIDE)s.kernel_h * s.kernel_w * s.channels;
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const int tap = (e.h - row * s.stride_h) * s.kernel_w + e.w - column * s.stride_w;
                const WIDE place = (WIDE)row * s.out_w + column;
                GLOBAL const float *d = dy + ((WIDE)e.image * s.out_h * s.out_w + place) * s.filters;
                GLOBAL const float *by =
                    weights + place * s.filters * taps + (WIDE)tap * s.channels + e.channel;
                for (int f = 0; f < s.filters; f++) sum += d[f] * by[(WIDE)f * taps];
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

/* dw = the sums over the batch of dy times x + beta dw. Buffers x, dy, dw; floats beta; size{out_h * out_w *
   filters * kernel_h * kernel_w * channels}. */
KERNEL(local2d_backward_weights)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dw = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned run = (unsigned)s.kernel_w * (unsigned)s.channels, taps = (unsigned)s.kernel_h * run;
    const unsigned outs = (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;
    const unsigned i = ELEMENT;
    if (i < outs * taps) {
        const unsigned out = i / taps, tap = i % taps, place = out / (unsigned)s.filters;
        const int h = (int)(place / (unsigned)s.out_w) * s.stride_h + (int)(tap / run);
        const int w = (int)(place % (unsigned)s.out_w) * s.stride_w;
        GLOBAL const float *from = x + ((WIDE)h * s.width + w) * s.channels + tap % run;
        float sum = 0.0f;
        for (int image = 0; image < s.batch; image++)
            sum += dy[(WIDE)image * outs + out] * from[(WIDE)image * s.height * s.width * s.channels];
        dw[i] = dml__with_beta(sum, beta, dw + i);
    }
}

#endif

/* ---- gpu/slice2d.cl ---- */

/* slice2d.cl: parts of images, strided, with zeros around them; the meaning is that of src/kernels/slice2d.h.

   Ints: batch; then for height, width and channels each: in, out, step, count, before. The buffer of what
   came in begins at the first element that is taken. */
#ifndef DML_GPU_SLICE2D_CL
#define DML_GPU_SLICE2D_CL

/* y from x. Buffers x, y; size{batch * out height * width * channels}. */
KERNEL(slice2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0) * (unsigned)INT(2) * (unsigned)INT(7) * (unsigned)INT(12);
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, INT(2), INT(7), INT(12));
        const int h = e.h - INT(5), w = e.w - INT(10), c = e.channel - INT(15);
        const int taken = h >= 0 && h < INT(4) && w >= 0 && w < INT(9) && c >= 0 && c < INT(14);
        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)h * INT(3);
        y[i] = taken ? x[(line * INT(6) + (WIDE)w * INT(8)) * INT(11) + (WIDE)c * INT(13)] : 0.0f;
    }
}

/* dx += dy where x was taken. Buffers dy, dx; size{batch * counts of height, width and channels}. */
KERNEL(slice2d_backward)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL float *dx = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0) * (unsigned)INT(4) * (unsigned)INT(9) * (unsigned)INT(14);
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, INT(4), INT(9), INT(14));
        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)e.h * INT(3);
        const WIDE out_line = (WIDE)e.image * INT(2) + e.h + INT(5);
        dx[(line * INT(6) + (WIDE)e.w * INT(8)) * INT(11) + (WIDE)e.channel * INT(13)] +=
            dy[(out_line * INT(7) + e.w + INT(10)) * INT(12) + e.channel + INT(15)];
    }
}

#endif

/* ---- gpu/reduce.cl ---- */

/* reduce.cl: many elements into one. Each sum's order is fixed by its length alone. */
#ifndef DML_GPU_REDUCE_CL
#define DML_GPU_REDUCE_CL

/* Kernels that reduce rows split a group into 16 teams of 16 lanes, a team a row. */
#define LANES 16
#define LANE (ITEM % LANES)
#define TEAM (ITEM / LANES)

/* Replaces part[ITEM], where `lane` is 0, by the combination over `lanes` (a power of two) neighbours `step`
   apart. Local memory can't be passed to a function, hence a macro. All items come here. */
#define REDUCE(part, lane, lanes, step, combine)                                                             \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        for (int reach = (lanes) / 2; reach > 0; reach /= 2) {                                               \
            if ((lane) < reach) {                                                                            \
                const int mine = ITEM, other = ITEM + reach * (step);                                        \
                combine;                                                                                     \
            }                                                                                                \
            BARRIER();                                                                                       \
        }                                                                                                    \
    } while (0)
#define REDUCE_SUM(part, lane, lanes, step)                                                                  \
    REDUCE(part, lane, lanes, step, part[mine] = part[mine] + part[other])
#define REDUCE_MAX(part, lane, lanes, step)                                                                  \
    REDUCE(part, lane, lanes, step, part[mine] = part[other] > part[mine] ? part[other] : part[mine])

/* Makes each item's `total` that of its whole team: of the `lanes` items (16 to 256, a power of two) `step`
   apart from item `first` on. `combine` is said of total and other, and is the same the other way round. All
   items come here. Where 32 neighbours can see each other's numbers, those are combined first, and then what
   each 32 have. Elsewhere a few items combine what several have, and then each what those few have, since a
   barrier takes longer than a few numbers of local memory. */
#ifdef WARP_OTHER
#define TEAM_NEIGHBOURS(total, part, first, lanes, combine)                                                  \
    do {                                                                                                     \
        UNROLL for (int reach = 1; reach < 32; reach *= 2)                                                   \
        {                                                                                                    \
            if (reach >= (lanes)) break;                                                                     \
            const float other = WARP_OTHER(total, reach);                                                    \
            total = combine;                                                                                 \
        }                                                                                                    \
        if ((lanes) <= 32) break;                                                                            \
        if (ITEM % 32 == 0) (part)[ITEM / 32] = total;                                                       \
        BARRIER();                                                                                           \
        total = (part)[(first) / 32];                                                                        \
        UNROLL for (int of = 1; of < 8; of++)                                                                \
        {                                                                                                    \
            if (of >= (lanes) / 32) break;                                                                   \
            const float other = (part)[(first) / 32 + of];                                                   \
            total = combine;                                                                                 \
        }                                                                                                    \
        BARRIER(); /* all have read it before its place is used again */                                     \
    } while (0)
#endif
#define TEAM_APART(total, part, first, lane, lanes, step, combine)                                           \
    do {                                                                                                     \
        const int few = (lanes) > 64 ? 16 : (lanes) > 16 ? 8 : 4;                                            \
        (part)[ITEM] = total;                                                                                \
        BARRIER();                                                                                           \
        if ((lane) < few) {                                                                                  \
            for (int of = (lane) + few; of < (lanes); of += few) {                                           \
                const float other = (part)[(first) + of * (step)];                                           \
                total = combine;                                                                             \
            }                                                                                                \
            (part)[ITEM] = total;                                                                            \
        }                                                                                                    \
        BARRIER();                                                                                           \
        total = (part)[first];                                                                               \
        for (int of = 1; of < few; of++) {                                                                   \
            const float other = (part)[(first) + of * (step)];                                               \
            total = combine;                                                                                 \
        }                                                                                                    \
        BARRIER(); /* all have read it before its place is used again */                                     \
    } while (0)
#ifdef WARP_OTHER
#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \
    do {                                                                                                     \
        if ((step) == 1)                                                                                     \
            TEAM_NEIGHBOURS(total, part, first, lanes, combine);                                             \
        else                                                                                                 \
            TEAM_APART(total, part, first, lane, lanes, step, combine);                                      \
    } while (0)
#else
#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \
    TEAM_APART(total, part, first, lane, lanes, step, combine)
#endif
#define TEAM_SUM(total, part, first, lane, lanes, step)                                                      \
    TEAM_TOTAL(total, part, first, lane, lanes, step, (total) + other)
#define TEAM_MOST(total, part, first, lane, lanes, step)                                                     \
    TEAM_TOTAL(total, part, first, lane, lanes, step, other > (total) ? other : (total))

/* How many numbers of a row an item keeps in registers, and how many it reads at once of what is longer. A
   CPU has its caches for the first, and does the items of a group in vectors instead of the second. */
#ifdef DML__RUN
#define ROW_KEPT 1
#define ROW_AHEAD 1
#else
#define ROW_KEPT 16
#define ROW_AHEAD 8
#endif
#define EXPONENTIALS_AHEAD 8 /* where those of a largest number are added up */
/* Before a statement for each k below `count`, of number i, from `begin` on in steps; i is below n. */
#define EACH_AHEAD(count, k, i, begin, step, n)                                                              \
    UNROLL for (int k = 0, i = (begin); k < (count); k++, i += (step)) if (i < (n))
/* The same of a row that `lanes` items do: number k of this item's lies k * lanes behind its first, and of
   the row `left` are there from that one on. */
#define EACH_LEFT(count, k, left) UNROLL for (int k = 0; k < (count); k++) if (k * lanes < (left))

/* Calls what does a row with its lanes, 16, 64 or 256 (dml__row_lanes of graph/op.h), as a constant: then
   loads and stores have room for the distances between an item's numbers, which would else be an instruction
   or two for each. */
#ifdef DML__RUN
#define BY_LANES(lanes, call) call(lanes)
#else
#define BY_LANES(lanes, call)                                                                                \
    do {                                                                                                     \
        if ((lanes) == 16)                                                                                   \
            call(16);                                                                                        \
        else if ((lanes) == 64)                                                                              \
            call(64);                                                                                        \
        else                                                                                                 \
            call(256);                                                                                       \
    } while (0)
#endif

/* y[o][c] = sum over r of x[o][r][c] + beta y[o][c]. Buffers x, y; ints rows, columns, outer, and, where the
   outer ones are parts of the rows of one, how many that one has, else 0; floats beta; size{columns, outer}.
   A group does 16 columns; neighbouring items do neighbouring columns, so rows are read in sequence. */
KERNEL(sum_rows)
{
    const int columns = INT(1), across = columns > 8 ? 16 : columns > 4 ? 8 : columns > 2 ? 4 : columns;
    const int lanes = DML__GROUP_ITEMS / across;
    const WIDE on = (WIDE)lanes * columns;
    const WIDE left = INT(3) - (WIDE)GROUP_Y * INT(0); /* rows of the one that aren't of a part before */
    const int rows = INT(3) && left < INT(0) ? (int)left : INT(0);
    GLOBAL const float *x = BUFFER(0, const float) + (WIDE)GROUP_Y * INT(0) * columns;
    GLOBAL float *y = BUFFER(1, float) + (WIDE)GROUP_Y * columns;
    const float beta = REAL(0);
    const int column = GROUP_X * 16 + ITEM % across, lane = ITEM / across;
    const int inside = column < columns && GROUP_Y < INT(2); /* groups may be more than there is */
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    if (inside)
        for (int first = lane; first < rows; first += ROW_AHEAD * lanes) {
            float value[ROW_AHEAD];
            GLOBAL const float *from = x + (WIDE)first * columns + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, lanes, rows)
            {
                value[k] = *from;
                from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];
        }
    TEAM_SUM(sum, part, ITEM % across, lane, lanes, across);
    if (lane == 0 && inside) y[column] = dml__with_beta(sum, beta, y + column);
}

/* out[r] = the column of the largest x[r][c], the first of equals. Buffers x, out (int); ints rows, columns;
   size{rows}. */
KERNEL(argmax)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL int *out = BUFFER(1, int);
    const int rows = INT(0), columns = INT(1);
    const int row = GROUP_X * LANES + TEAM;
    LOCAL float largest[DML__GROUP_ITEMS];
    LOCAL int place[DML__GROUP_ITEMS];
    float best = MINUS_INFINITY;
    int where = 0; /* of an empty lane too: it can tie only with minus infinity, and column 0 is first then */
    if (row < rows && LANE < columns) {
        GLOBAL const float *from = x + (WIDE)row * columns;
        best = from[LANE], where = LANE;
        for (int column = LANE + LANES; column < columns; column += LANES)
            if (dml__beats(from[column], best)) best = from[column], where = column;
    }
    largest[ITEM] = best;
    place[ITEM] = where;
    REDUCE(largest, LANE, LANES, 1, {
        const int tie =
            !dml__beats(largest[other], largest[mine]) && !dml__beats(largest[mine], largest[other]);
        if (tie ? place[other] < place[mine] : dml__beats(largest[other], largest[mine])) {
            largest[mine] = largest[other];
            place[mine] = place[other];
        }
    });
    if (LANE == 0 && row < rows) out[row] = place[ITEM];
}

/* y[o][i] = scale times what is made of x[o][k][i] over all k: 0 their sum, 1 the largest, 2 the smallest, 3
   the sum of sizes, 4 the root of the sum of squares, 5 how many are of[o][i]. NaNs get through. Buffers x,
   y, of; ints kind, n, inner, outer * inner; floats scale; size{outer * inner}. A group makes 16 of them,
   each with 16 items; neighbouring items read neighbours. */
KERNEL(reduce_axis)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    GLOBAL const float *of = BUFFER(2, const float);
    const int kind = INT(0), n = INT(1), inner = INT(2);
    const int lane = inner == 1 ? ITEM % 16 : ITEM / 16, step = inner == 1 ? 1 : 16;
    const int result = GROUP_X * 16 + (inner == 1 ? ITEM / 16 : ITEM % 16);
    const int inside = result < INT(3), extreme = kind == 1 || kind == 2;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = extreme ? MINUS_INFINITY : 0.0f;
    if (inside) {
        GLOBAL const float *from = x + (WIDE)(result / inner) * n * inner + result % inner;
        const float other = kind == 5 ? of[result] : 0.0f;
        for (int k = lane; k < n; k += 16) {
            const float v = from[(WIDE)k * inner];
            if (extreme) {
                const float turned = kind == 2 ? -v : v;
                if (dml__beats(turned, sum)) sum = turned;
            } else
                sum += kind == 0 ? v : kind == 3 ? ABS(v) : kind == 4 ? v * v : v == other ? 1.0f : 0.0f;
        }
    }
    part[ITEM] = sum;
    REDUCE(part, lane, 16, step, {
        if (!extreme)
            part[mine] = part[mine] + part[other];
        else if (dml__beats(part[other], part[mine]))
            part[mine] = part[other];
    });
    if (lane == 0 && inside) {
        const float all = kind == 2 ? -part[ITEM] : kind == 4 ? SQRT(part[ITEM]) : part[ITEM];
        y[result] = REAL(0) * all;
    }
}

/* dx = its gradient + beta dx; of an extreme's, each of its ties gets the same. Buffers x, y, ties, dy, dx;
   ints kind, n, inner, elements of x; floats scale, beta; size{elements}. */
KERNEL(reduce_axis_backward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *y = BUFFER(1, const float);
    GLOBAL const float *ties = BUFFER(2, const float);
    GLOBAL const float *dy = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    const int kind = INT(0);
    const unsigned inner = (unsigned)INT(2), i = ELEMENT;
    if (i < (unsigned)INT(3)) {
        const unsigned from = i / inner / (unsigned)INT(1) * inner + i % inner;
        float d = REAL(0) * dy[from];
        if (kind == 3) d = x[i] > 0.0f ? d : x[i] < 0.0f ? -d : 0.0f;
        if (kind == 4) d = y[from] != 0.0f ? x[i] * (d / y[from]) : 0.0f;
        if (kind == 1 || kind == 2) d = x[i] == y[from] ? d / ties[from] : 0.0f;
        dx[i] = dml__with_beta(d, REAL(1), dx + i);
    }
}

#endif

/* ---- gpu/softmax.cl ---- */

/* softmax.cl: softmax along an axis of arrays (outer, n, inner), or its logarithm.

   A row is the n numbers that share a sum. Where inner is 1, `lanes` items (16, 64 or 256) do a row, else 16,
   of 16 rows side by side, so that neighbours read neighbours. A row of up to ROW_KEPT numbers an item is
   read once; a longer one again, from its end on, which caches have last. Ints of all: n, inner, rows
   (outer * inner), logs, lanes; size{groups}. */
#ifndef DML_GPU_SOFTMAX_CL
#define DML_GPU_SOFTMAX_CL

/* Both kernels are helpers with constants: lanes, and whether inner is 1, where a row is `flat`. */
#define SOFTMAX_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part

/* The item's place, for the statements behind it: its first number lies `begin` behind the array's, and what
   is i further in the row SOFTMAX_ON(i) behind that. */
#define SOFTMAX_BEGIN()                                                                                      \
    const int n = INT(0), inner = flat ? 1 : INT(1), logs = INT(3), step = flat ? 1 : 16;                    \
    const int lane = flat ? ITEM & (lanes - 1) : ITEM / 16;                                                  \
    const int row_here = flat ? (int)((unsigned)ITEM / (unsigned)lanes) : ITEM % 16;                         \
    const int row = GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + row_here;                          \
    const int first = flat ? row_here * lanes : row_here;                                                    \
    const int most = row < INT(2) ? n : 0, kept = n <= lanes * ROW_KEPT;                                     \
    const int outer = flat ? row : (int)((unsigned)row / (unsigned)inner);                                   \
    const WIDE begin = ((WIDE)outer * n + lane) * inner + (row - outer * inner)
#define SOFTMAX_ON(i) (flat ? (i) : (i)*inner)

/* Before what reads a longer row again, ROW_AHEAD numbers from `from` on. */
#ifdef DML__RUN
#define SOFTMAX_AGAIN(from) for (int from = lane; from < most; from += ROW_AHEAD * lanes)
#else
#define SOFTMAX_AGAIN(from)                                                                                  \
    for (int from = (n - 1) / (ROW_AHEAD * lanes) * (ROW_AHEAD * lanes) + lane; from >= 0;                   \
         from -= ROW_AHEAD * lanes)
#endif

/* Adds the exponentials of `count` numbers to a sum of such that is relative to the largest so far. Where
   that is -infinity there may be NaNs, which count. Source: Milakov, Gimelshein, "Online normalizer
   calculation for softmax", 2018. */
#define ADD_EXPONENTIALS(value, count, largest, sum)                                                         \
    do {                                                                                                     \
        float larger = largest;                                                                              \
        UNROLL for (int of = 0; of < (count); of++) if ((value)[of] > larger) larger = (value)[of];          \
        if (larger > (largest)) sum *= EXP((largest)-larger);                                                \
        largest = larger;                                                                                    \
        larger = larger > MINUS_INFINITY ? larger : 0.0f;                                                    \
        UNROLL for (int of = 0; of < (count); of++) sum += EXP((value)[of] - larger);                        \
    } while (0)

/* Which of them a launch is for. (PoCL computes some groups wrong, at times, behind a branch with barriers on
   both sides.) */
#ifdef DML__RUN
#define SOFTMAX_CHOICE(call) call(INT(1) == 1, INT(4))
#else
#define SOFTMAX_CHOICE(call)                                                                                 \
    do {                                                                                                     \
        if (INT(1) != 1)                                                                                     \
            call(0, 16);                                                                                     \
        else if (INT(4) == 16)                                                                               \
            call(1, 16);                                                                                     \
        else if (INT(4) == 64)                                                                               \
            call(1, 64);                                                                                     \
        else                                                                                                 \
            call(1, 256);                                                                                    \
    } while (0)
#endif

HELPER void dml__softmax_forward_as(SOFTMAX_PARAMETERS, GLOBAL const float *x, GLOBAL float *y,
                                    const dml__kernel_arguments arguments)
{
    SOFTMAX_BEGIN();
    float value[ROW_KEPT], largest = MINUS_INFINITY, sum = 0.0f;
    x += begin, y += begin;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = MINUS_INFINITY;
        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[SOFTMAX_ON(k * lanes)];
        EACH_IN_REGISTERS(ROW_KEPT, k) if (value[k] > largest) largest = value[k];
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const float some = x[SOFTMAX_ON(i - lane)];
            if (some > largest) largest = some;
        }
#else
        for (int from = lane; from < most; from += EXPONENTIALS_AHEAD * lanes) {
            float some[EXPONENTIALS_AHEAD];
            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) some[k] = MINUS_INFINITY;
            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);
            EACH_LEFT(EXPONENTIALS_AHEAD, k, most - from) some[k] = piece[SOFTMAX_ON(k * lanes)];
            ADD_EXPONENTIALS(some, EXPONENTIALS_AHEAD, largest, sum);
        }
#endif
    }
#ifndef DML__RUN
    const float own = largest;
#endif
    TEAM_MOST(largest, part, first, lane, lanes, step);
    if (kept) { /* the exponential of what isn't there is 0 */
        EACH_IN_REGISTERS(ROW_KEPT, k)
        {
            value[k] -= largest;
            const float e = EXP(value[k]);
            if (!logs) value[k] = e;
            sum += e;
        }
    } else {
#ifdef DML__RUN /* a cache takes them, and they take longer to make again */
        for (int i = lane; i < most; i += lanes) {
            const float e = EXP(x[SOFTMAX_ON(i - lane)] - largest);
            if (!logs) y[SOFTMAX_ON(i - lane)] = e;
            sum += e;
        }
#else
        if (own < largest) sum *= EXP(own - largest);
#endif
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    const float shift = logs ? -LOG(sum) : 0.0f, factor = logs ? 1.0f : 1.0f / sum;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = value[k] * factor + shift;
        EACH_LEFT(ROW_KEPT, k, most - lane) y[SOFTMAX_ON(k * lanes)] = value[k];
    } else {
#ifdef DML__RUN
        for (int i = lane; i < most; i += lanes) {
            const int at = SOFTMAX_ON(i - lane);
            y[at] = (logs ? x[at] - largest : y[at]) * factor + shift;
        }
#else
        SOFTMAX_AGAIN(from)
        {
            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);
            GLOBAL float *to = y + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SOFTMAX_ON(k * lanes)];
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                value[k] -= largest;
                value[k] = (logs ? value[k] : EXP(value[k])) * factor + shift;
            }
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SOFTMAX_ON(k * lanes)] = value[k];
        }
#endif
    }
}

/* Buffers x, y, which may be the same. */
KERNEL(softmax_forward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SOFTMAX_FORWARD_AS(flat, lanes)                                                                      \
    dml__softmax_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, float), arguments)
    SOFTMAX_CHOICE(SOFTMAX_FORWARD_AS);
#undef SOFTMAX_FORWARD_AS
}

#define SOFTMAX_GRADIENT(y, dy) (logs ? (dy)-EXP(y) * sum : (y) * ((dy)-sum))

HELPER void dml__softmax_backward_as(SOFTMAX_PARAMETERS, GLOBAL const float *y, GLOBAL const float *dy,
                                     GLOBAL float *dx, const dml__kernel_arguments arguments)
{
    SOFTMAX_BEGIN();
    float value[ROW_KEPT], d[ROW_KEPT], sum = 0.0f;
    const float beta = REAL(0);
    y += begin, dy += begin, dx += begin;
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = d[k] = 0.0f;
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] = y[SOFTMAX_ON(k * lanes)];
            d[k] = dy[SOFTMAX_ON(k * lanes)];
        }
        EACH_IN_REGISTERS(ROW_KEPT, k) sum += logs ? d[k] : value[k] * d[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),
                               *dy_piece = dy + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = logs ? 1.0f : y_piece[SOFTMAX_ON(k * lanes)];
                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k] * d[k];
        }
    }
    TEAM_SUM(sum, part, first, lane, lanes, step);
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            const int at = SOFTMAX_ON(k * lanes);
            dx[at] = dml__with_beta(value[k], beta, dx + at);
        }
    } else {
        SOFTMAX_AGAIN(from)
        {
            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),
                               *dy_piece = dy + SOFTMAX_ON(from - lane);
            GLOBAL float *to = dx + SOFTMAX_ON(from - lane);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = y_piece[SOFTMAX_ON(k * lanes)];
                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                const int at = SOFTMAX_ON(k * lanes);
                to[at] = dml__with_beta(value[k], beta, to + at);
            }
        }
    }
}

/* dx = y (dy - sum(y dy)) + beta dx, with logs dy - exp(y) sum(dy) + beta dx. Buffers y, dy, dx, which may be
   dy; floats beta. */
KERNEL(softmax_backward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SOFTMAX_BACKWARD_AS(flat, lanes)                                                                     \
    dml__softmax_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),         \
                             BUFFER(2, float), arguments)
    SOFTMAX_CHOICE(SOFTMAX_BACKWARD_AS);
#undef SOFTMAX_BACKWARD_AS
}

#endif

/* ---- gpu/loss.cl ---- */

/* loss.cl: losses and their gradients. */
#ifndef DML_GPU_LOSS_CL
#define DML_GPU_LOSS_CL

#define CLASSES_AHEAD 8 /* of a row, which an item reads before it computes */

/* What the classes c of a row weigh, but for a label's own part (kernels/cross_entropy.h). */
HELPER float dml__class_weight(GLOBAL const float *target, GLOBAL const float *weights, int c, int classes,
                               float smoothing)
{
    float weight = smoothing / (float)classes;
    if (target) weight += (1.0f - smoothing) * target[c];
    return weights ? weight * weights[c] : weight;
}

/* Both kernels are helpers with the lanes as a constant: the items that do a row, of which a group does 256 /
   lanes. */
#define CROSS_ENTROPY_PARAMETERS HERE_PARAMETER const int lanes, SHARED float *part
#define CROSS_ENTROPY_ROW                                                                                    \
    (GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + (int)((unsigned)ITEM / (unsigned)lanes))

HELPER void dml__cross_entropy_forward_as(CROSS_ENTROPY_PARAMETERS, GLOBAL const float *logits,
                                          GLOBAL const float *target, GLOBAL const int *labels,
                                          GLOBAL const float *class_weights, GLOBAL const float *row_weights,
                                          GLOBAL float *kept, const dml__kernel_arguments arguments)
{
    const int rows = INT(0), classes = INT(1), all = INT(8) ? INT(8) : classes;
    const float smoothing = REAL(0);
    const int lane = ITEM & (lanes - 1), team = ITEM - lane, row = CROSS_ENTROPY_ROW, inside = row < rows;
    float largest = MINUS_INFINITY, sum = 0.0f, whole = 0.0f, product = 0.0f;
    float weight = inside && row_weights ? row_weights[row / INT(2)] : 1.0f;
    if (inside && labels && INT(4) && labels[row] == INT(5)) weight = 0.0f;
    if (inside && labels && class_weights && smoothing == 0.0f && weight != 0.0f && labels[row] >= 0 &&
        labels[row] < classes && class_weights[labels[row]] == 0.0f)
        weight = 0.0f;
    const int counts = inside && weight != 0.0f;
    logits += (WIDE)row * classes;
    if (counts)
        for (int from = lane; from < classes; from += EXPONENTIALS_AHEAD * lanes) {
            float value[EXPONENTIALS_AHEAD];
            GLOBAL const float *piece = logits + from;
            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) value[k] = MINUS_INFINITY;
            EACH_LEFT(EXPONENTIALS_AHEAD, k, classes - from) value[k] = piece[k * lanes];
            ADD_EXPONENTIALS(value, EXPONENTIALS_AHEAD, largest, sum);
        }
    const float own_largest = largest;
    TEAM_MOST(largest, part, team, lane, lanes, 1);
    if (own_largest < largest) sum *= EXP(own_largest - largest);
    TEAM_SUM(sum, part, team, lane, lanes, 1);
    if (counts && (target || smoothing != 0.0f))
        for (int c = lane; c < classes; c += lanes) {
            const float of_class = dml__class_weight(target ? target + (WIDE)row * classes : 0, class_weights,
                                                     c, all, smoothing);
            whole += of_class;
            product += of_class * (largest - logits[c]);
        }
    if (target || smoothing != 0.0f) {
        TEAM_SUM(whole, part, team, lane, lanes, 1);
        TEAM_SUM(product, part, team, lane, lanes, 1);
    }
    if (lane == 0 && inside) {
        float share = weight;
        if (counts && labels) {
            const int label = labels[row], known = label >= 0 && label < all;
            const int place = label - INT(7), here = known && place >= 0 && place < classes;
            const float own = !known ? NOT_A_NUMBER : class_weights ? class_weights[label] : 1.0f;
            if (here || !known) {
                whole += (1.0f - smoothing) * own;
                product += (1.0f - smoothing) * own * (here ? largest - logits[place] : 0.0f);
            }
            share *= own;
        }
        kept[row] = counts ? largest : 0.0f;
        kept[(WIDE)rows + row] = !counts ? 1.0f : INT(8) ? sum : 1.0f / sum;
        kept[(WIDE)rows * 2 + row] = whole;
        kept[(WIDE)rows * 3 + row] = !counts  ? 0.0f
                                     : INT(8) ? (largest > MINUS_INFINITY ? product : 0.0f)
                                              : weight * (whole * LOG(sum) + product);
        kept[(WIDE)rows * 4 + row] = share;
        kept[(WIDE)rows * 5 + row] = weight;
    }
}

/* For each row, kept (6, rows) = the largest logit, 1 / sum(exp(logit - largest)), the sum of what the
   classes weigh, its loss, what it counts in the divisor, its weight. A label outside 0 .. classes - 1 that
   isn't the ignored one gives a loss of NaN and reads nothing. Buffers logits, labels (int) or the target,
   class weights, row weights (NULL: 1), kept; ints rows, classes, rows of a row weight, whether there are
   labels, whether one is ignored, which, lanes (16, 64 or 256), and, of a part of the classes, its first one
   and how many all are (0: it is all of them); floats smoothing; size{groups}. Of a part the sum itself is
   kept, and the sum of weight x (largest - logit) (kernels/cross_entropy.h). */
KERNEL(cross_entropy_forward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define CROSS_ENTROPY_FORWARD(lanes)                                                                         \
    dml__cross_entropy_forward_as(HERE lanes, part, BUFFER(0, const float),                                  \
                                  INT(3) ? 0 : BUFFER(1, const float), INT(3) ? BUFFER(1, const int) : 0,    \
                                  BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),          \
                                  arguments)
    BY_LANES(INT(6), CROSS_ENTROPY_FORWARD);
#undef CROSS_ENTROPY_FORWARD
}

HELPER void dml__cross_entropy_backward_as(HERE_PARAMETER const int lanes, GLOBAL const float *logits,
                                           GLOBAL const float *target, GLOBAL const int *labels,
                                           GLOBAL const float *class_weights, GLOBAL const float *kept,
                                           GLOBAL const float *dloss, GLOBAL float *dlogits,
                                           const dml__kernel_arguments arguments)
{
    const int rows = INT(0), classes = INT(1), all = INT(5) ? INT(5) : classes;
    const int row = CROSS_ENTROPY_ROW, inside = row < rows;
    const int from = GROUP_Y * CLASSES_AHEAD * lanes + (ITEM & (lanes - 1)),
              left = inside ? classes - from : 0;
    const float smoothing = REAL(0), beta = REAL(1);
    const WIDE first = (WIDE)row * classes + from;
    float logit[CLASSES_AHEAD], old[CLASSES_AHEAD];
    logits += first, dlogits += first;
    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = old[k] = 0.0f;
    EACH_LEFT(CLASSES_AHEAD, k, left) logit[k] = logits[k * lanes];
    if (beta != 0.0f) EACH_LEFT(CLASSES_AHEAD, k, left) old[k] = dlogits[k * lanes];
    const float weight = inside ? kept[(WIDE)rows * 5 + row] : 0.0f, largest = inside ? kept[row] : 0.0f;
    const float factor = inside ? kept[(WIDE)rows + row] * kept[(WIDE)rows * 2 + row] : 0.0f;
    const float scale = dloss[0] * kept[(WIDE)rows * 6] * weight;
    const int label = inside && labels ? labels[row] - INT(4) - from : -1; /* of this item's classes */
    if (labels && !class_weights) {
        const float of_each = smoothing / (float)all, of_label = of_each + (1.0f - smoothing);
        EACH_IN_REGISTERS(CLASSES_AHEAD, k)
        {
            const float of_class = label == k * lanes ? of_label : of_each;
            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;
        }
    } else {
        EACH_LEFT(CLASSES_AHEAD, k, left)
        {
            float of_class = dml__class_weight(target ? target + (WIDE)row * classes : 0, class_weights,
                                               from + k * lanes, all, smoothing);
            if (label == k * lanes)
                of_class += (1.0f - smoothing) * (class_weights ? class_weights[from + k * lanes] : 1.0f);
            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;
        }
    }
    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = (weight != 0.0f ? logit[k] : 0.0f) + beta * old[k];
    EACH_LEFT(CLASSES_AHEAD, k, left) dlogits[k * lanes] = logit[k];
}

/* dlogits = dloss[0] scale[0] x the gradient of each row's loss + beta dlogits, which may be the logits.
   Buffers logits, labels (int) or the target, class weights (NULL: 1), kept (6, rows) with the scale behind
   it, dloss, dlogits; ints rows, classes, whether there are labels, lanes (16, 64 or 256), and of a part the
   same two as forward's; floats smoothing, beta; size{groups of rows, classes / lanes, rounded up}. */
KERNEL(cross_entropy_backward)
{
#define CROSS_ENTROPY_BACKWARD(lanes)                                                                        \
    dml__cross_entropy_backward_as(HERE lanes, BUFFER(0, const float), INT(2) ? 0 : BUFFER(1, const float),  \
                                   INT(2) ? BUFFER(1, const int) : 0, BUFFER(2, const float),                \
                                   BUFFER(3, const float), BUFFER(4, const float), BUFFER(5, float),         \
                                   arguments)
    BY_LANES(INT(3), CROSS_ENTROPY_BACKWARD);
#undef CROSS_ENTROPY_BACKWARD
}

/* dtarget = the same for the target. Buffers logits, class weights (NULL: 1), kept as above, dloss, dtarget;
   ints rows, classes; floats smoothing, beta; size{rows * classes}. */
KERNEL(cross_entropy_backward_target)
{
    GLOBAL const float *logits = BUFFER(0, const float);
    GLOBAL const float *class_weights = BUFFER(1, const float);
    GLOBAL const float *kept = BUFFER(2, const float);
    GLOBAL const float *dloss = BUFFER(3, const float);
    GLOBAL float *dtarget = BUFFER(4, float);
    const unsigned rows = (unsigned)INT(0), classes = (unsigned)INT(1);
    const float beta = REAL(1);
    const unsigned i = ELEMENT;
    if (i < rows * classes) {
        const unsigned row = i / classes;
        const float weight = kept[(WIDE)rows * 5 + row];
        float value = 0.0f;
        if (weight != 0.0f) {
            value = kept[row] - logits[i] - LOG(kept[rows + row]);
            value *= dloss[0] * kept[(WIDE)rows * 6] * weight * (1.0f - REAL(0));
            if (class_weights) value *= class_weights[i - row * classes];
        }
        dtarget[i] = dml__with_beta(value, beta, dtarget + i);
    }
}

/* scale[0] = 1, or for a mean 1 / (factor x the sum of shares), 0 where that is 0; y[0] = scale[0] x the sum
   of x[i] weights[i / each]. Buffers x, weights (NULL: 1), shares (NULL: 1 each), y, scale; ints n, each, how
   many shares, whether it is a mean; floats factor; size{1}: one group does it all. */
KERNEL(loss_total)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *shares = BUFFER(2, const float);
    GLOBAL float *y = BUFFER(3, float);
    GLOBAL float *scale = BUFFER(4, float);
    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1), count = (unsigned)INT(2);
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, divisor = 0.0f;
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS)
        sum += weights ? x[i] * weights[i / each] : x[i];
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    sum = part[0];
    BARRIER(); /* all have read it before its place is used again */
    if (shares)
        for (unsigned i = (unsigned)ITEM; i < count; i += DML__GROUP_ITEMS) divisor += shares[i];
    part[ITEM] = divisor;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    if (ITEM == 0) {
        divisor = INT(3) ? REAL(0) * (shares ? part[0] : (float)count) : 1.0f;
        scale[0] = divisor != 0.0f ? 1.0f / divisor : 0.0f;
        y[0] = divisor != 0.0f ? sum / divisor : 0.0f;
    }
}

/* dx[i] = dloss[0] scale[0] weights[i / each] + beta dx[i]. Buffers weights (NULL: 1), scale, dloss, dx; ints
   n, each; floats beta; size{n}. */
KERNEL(loss_spread)
{
    GLOBAL const float *weights = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *dloss = BUFFER(2, const float);
    GLOBAL float *dx = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float value = dloss[0] * scale[0] * (weights ? weights[i / each] : 1.0f);
        dx[i] = dml__with_beta(value, beta, dx + i);
    }
}

#endif

/* ---- gpu/update.cl ---- */

/* update.cl: one step of an optimizer, an item an element. The rules are in src/kernels/update.h, what their
   floats are at the kernels of src/kernels/update.c. Buffers w, g, state vectors; ints n, and of a sparse
   parameter the length of its rows and where in one it begins; launches give size{n}. */
#ifndef DML_GPU_UPDATE_CL
#define DML_GPU_UPDATE_CL

/* Whether element i is in a row, of `width` elements, whose gradient is zero throughout: of a sparse
   parameter, which is updated from its row's element `column` on. 0: it isn't one. */
HELPER int dml__is_absent(GLOBAL const float *g, unsigned i, int width, int column)
{
    if (width == 0) return 0;
    GLOBAL const float *row = g + i - (i + (unsigned)column) % (unsigned)width;
    for (int c = 0; c < width; c++)
        if (row[c] != 0.0f) return 0;
    return 1;
}

/* State v, which may be NULL. */
KERNEL(sgd_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), momentum = REAL(1), weight_decay = REAL(2), nesterov = REAL(3);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + weight_decay * w[i];
        float step = d;
        if (v) {
            const float velocity = momentum * v[i] + d;
            v[i] = velocity;
            step = nesterov != 0.0f ? d + momentum * velocity : velocity;
        }
        w[i] -= lr * step;
    }
}

/* State m, v. */
KERNEL(adam_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *m = BUFFER(2, float);
    GLOBAL float *v = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),
                decay = REAL(5), shrink = REAL(6);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;
        m[i] = mean;
        v[i] = square;
        w[i] = shrink * w[i] - size * mean / (SQRT(square) + epsilon);
    }
}

/* State v, b; b may be NULL. */
KERNEL(rmsprop_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    GLOBAL float *b = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2), keep = REAL(3), add = REAL(4),
                momentum = REAL(5);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float square = keep * v[i] + add * d * d;
        float step = d / (SQRT(square) + epsilon);
        v[i] = square;
        if (b) {
            step = momentum * b[i] + step;
            b[i] = step;
        }
        w[i] -= lr * step;
    }
}

/* State v. */
KERNEL(adagrad_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2);
    const unsigned i = ELEMENT;
    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {
        const float d = g[i] + decay * w[i];
        const float sum = v[i] + d * d;
        v[i] = sum;
        w[i] -= lr * d / (SQRT(sum) + epsilon);
    }
}

/* g becomes LAMB's direction. State m, v; floats as Adam's. */
KERNEL(lamb_direction)
{
    GLOBAL const float *w = BUFFER(0, const float);
    GLOBAL float *g = BUFFER(1, float);
    GLOBAL float *m = BUFFER(2, float);
    GLOBAL float *v = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),
                decay = REAL(5);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i];
        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;
        m[i] = mean;
        v[i] = square;
        g[i] = size * mean / (SQRT(square) + epsilon) + decay * w[i];
    }
}

/* y[k]: the sum of the squares of every groups-th run of 256 elements of x, from the k-th on.
   Buffers x, y; ints n, groups; size{groups}: a group a sum. */
KERNEL(sum_squares)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0), groups = (unsigned)INT(1);
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f;
    for (unsigned i = ELEMENT; i < n; i += groups * DML__GROUP_ITEMS) sum += x[i] * x[i];
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    if (ITEM == 0) y[GROUP_X] = part[0];
}

/* x times most / (norm + 1e-6) where that is below 1 or NaN, norm the root of the sum of the sums that
   sum_squares left, at most 256. Buffers x, sums; ints n, groups; floats most. */
KERNEL(clip_norm)
{
    GLOBAL float *x = BUFFER(0, float);
    GLOBAL const float *sums = BUFFER(1, const float);
    const unsigned n = (unsigned)INT(0);
    const int groups = INT(1);
    const unsigned i = ELEMENT;
    LOCAL float part[DML__GROUP_ITEMS];
    part[ITEM] = ITEM < groups ? sums[ITEM] : 0.0f;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    const float factor = REAL(0) / (SQRT(part[0]) + 1e-6f);
    if (i < n && !(factor >= 1.0f)) x[i] *= factor;
}

/* g = f (g + decay w), f = trust |w| / (|g| + decay |w| + epsilon), the norms' squares being what sum_squares
   left; 1 for no groups and where a norm is 0. Buffers w, g, sums of w's squares, of g's; ints n, groups;
   floats trust, decay, epsilon. */
KERNEL(trust)
{
    GLOBAL const float *w = BUFFER(0, const float);
    GLOBAL float *g = BUFFER(1, float);
    GLOBAL const float *w_sums = BUFFER(2, const float);
    GLOBAL const float *g_sums = BUFFER(3, const float);
    const unsigned n = (unsigned)INT(0);
    const int groups = INT(1);
    const float decay = REAL(1);
    const unsigned i = ELEMENT;
    LOCAL float w_part[DML__GROUP_ITEMS];
    LOCAL float g_part[DML__GROUP_ITEMS];
    w_part[ITEM] = ITEM < groups ? w_sums[ITEM] : 0.0f;
    g_part[ITEM] = ITEM < groups ? g_sums[ITEM] : 0.0f;
    REDUCE_SUM(w_part, ITEM, DML__GROUP_ITEMS, 1);
    REDUCE_SUM(g_part, ITEM, DML__GROUP_ITEMS, 1);
    const float w_norm = SQRT(w_part[0]), g_norm = SQRT(g_part[0]);
    const int plain = w_norm == 0.0f || g_norm == 0.0f;
    const float factor = plain ? 1.0f : REAL(0) * w_norm / (g_norm + decay * w_norm + REAL(2));
    if (i < n) g[i] = factor * (g[i] + decay * w[i]);
}

/* x cut to -most .. most. Buffers x; ints n; floats most. */
KERNEL(clip_values)
{
    GLOBAL float *x = BUFFER(0, float);
    const unsigned n = (unsigned)INT(0);
    const float most = REAL(0);
    const unsigned i = ELEMENT;
    if (i < n) {
        if (x[i] > most) x[i] = most;
        if (x[i] < -most) x[i] = -most;
    }
}

#endif

/* ---- gpu/norm.cl ---- */

/* norm.cl: batch normalization of x (rows, channels). What belongs to a channel is summed in parts of the
   rows, so that few channels keep a whole GPU busy; the parts depend on the shape alone.

   Ints of all: rows, channels, rows of a part, parts. Parts are (parts, 2, channels). */
#ifndef DML_GPU_NORM_CL
#define DML_GPU_NORM_CL

/* How many numbers, their mean, and the sum of their squared distances from it. */
typedef struct dml__moments {
    int count;
    float mean, squares;
} dml__moments;

/* Those of all numbers of two; the second has some. (From none, its mean's square might be infinite.)
   Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
   1979. */
HELPER dml__moments dml__moments_of_both(dml__moments a, const dml__moments b)
{
    if (a.count == 0) return b;
    const float share = (float)b.count / ((float)a.count + (float)b.count), distance = b.mean - a.mean;
    a.mean += distance * share;
    a.squares += b.squares + distance * distance * (float)a.count * share;
    a.count += b.count;
    return a;
}

/* The mean of each part and the sum of squared distances from it. Buffers x, parts; size{channels, parts}.
   A group does 16 columns of a part; neighbouring items do neighbouring columns. */
KERNEL(batch_norm_moments)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *parts = BUFFER(1, float);
    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);
    const int to = rows - from < INT(2) ? rows : from + INT(2);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float means[DML__GROUP_ITEMS];
    LOCAL float squares_part[DML__GROUP_ITEMS];
    LOCAL int counts[DML__GROUP_ITEMS];
    /* Means are those of distances from one of the numbers, so that what they differ in isn't rounded off. */
    const float pivot = column < channels && from < rows ? x[(WIDE)from * channels + column] : 0.0f;
    dml__moments all;
    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;
#ifdef DML__RUN /* once more from the cache */
    if (column < channels) {
        for (int row = from + lane; row < to; row += 16) {
            all.mean += x[(WIDE)row * channels + column] - pivot;
            all.count++;
        }
        if (all.count) all.mean /= (float)all.count;
        for (int row = from + lane; row < to; row += 16) {
            const float distance = x[(WIDE)row * channels + column] - pivot - all.mean;
            all.squares += distance * distance;
        }
    }
#else
    if (column < channels)
        for (int first = from + lane; first < to; first += ROW_KEPT * 16) {
            float value[ROW_KEPT], sum = 0.0f;
            dml__moments more;
            const int left = (to - first + 15) / 16; /* rows of this item */
            more.count = left < ROW_KEPT ? left : ROW_KEPT, more.squares = 0.0f;
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                value[k] = *x_from;
                x_from += (WIDE)16 * channels;
            }
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                value[k] -= pivot;
                sum += value[k];
            }
            more.mean = sum / (float)more.count;
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                const float distance = value[k] - more.mean;
                more.squares += distance * distance;
            }
            all = dml__moments_of_both(all, more);
        }
#endif
    means[ITEM] = all.mean;
    squares_part[ITEM] = all.squares;
    counts[ITEM] = all.count;
    BARRIER();
    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */
        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;
        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {
            dml__moments more;
            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];
            all = dml__moments_of_both(all, more);
        }
        to_part[0] = pivot + all.mean;
        to_part[channels] = all.squares;
    }
}

/* Mean and variance from the parts, and the running ones moved towards them. Buffers parts, mean, variance,
   running mean, running variance; floats: the shares of the new mean and variance in the running ones, and
   the factor of the variance there; size{channels}. A group does 16 channels. */
KERNEL(batch_norm_statistics)
{
    GLOBAL const float *parts = BUFFER(0, const float);
    GLOBAL float *mean = BUFFER(1, float);
    GLOBAL float *variance = BUFFER(2, float);
    GLOBAL float *running_mean = BUFFER(3, float);
    GLOBAL float *running_variance = BUFFER(4, float);
    const int rows = INT(0), channels = INT(1), part_rows = INT(2), count = INT(3);
    const float mean_share = REAL(0), variance_share = REAL(1), unbiased = REAL(2);
    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float means[DML__GROUP_ITEMS];
    LOCAL float squares_part[DML__GROUP_ITEMS];
    LOCAL int counts[DML__GROUP_ITEMS];
    dml__moments all, more;
    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;
    if (c < channels)
        for (int i = lane; i < count; i += 16) {
            more.count = rows - i * part_rows < part_rows ? rows - i * part_rows : part_rows;
            more.mean = parts[(WIDE)2 * i * channels + c];
            more.squares = parts[((WIDE)2 * i + 1) * channels + c];
            all = dml__moments_of_both(all, more);
        }
    means[ITEM] = all.mean;
    squares_part[ITEM] = all.squares;
    counts[ITEM] = all.count;
    BARRIER();
    if (lane == 0 && c < channels) {
        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {
            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];
            all = dml__moments_of_both(all, more);
        }
        const float middle = all.mean, v = all.squares / (float)rows;
        mean[c] = middle;
        variance[c] = v;
        if (ABS(middle) <= 3.40282347e38f && ABS(unbiased * v) <= 3.40282347e38f) { /* finite */
            running_mean[c] = (1.0f - mean_share) * running_mean[c] + mean_share * middle;
            running_variance[c] =
                (1.0f - variance_share) * running_variance[c] + variance_share * (unbiased * v);
        }
    }
}

/* y = scale (x - mean) / sqrt(variance + epsilon) + shift. Buffers x, scale, shift, mean, variance, y; floats
   epsilon; size{rows * channels}. */
KERNEL(batch_norm_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *shift = BUFFER(2, const float);
    GLOBAL const float *mean = BUFFER(3, const float);
    GLOBAL const float *variance = BUFFER(4, const float);
    GLOBAL float *y = BUFFER(5, float);
    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;
    const float epsilon = REAL(0);
    RUN_BEGINS(n);
    float value[RUN], level[RUN], factor[RUN], bias[RUN];
    EACH_OF_RUN(k, i, n) value[k] = x[i];
    EACH_PLACE_OF_RUN(k, row, c, channels)
    {
        level[k] = mean[c];
        factor[k] = scale[c] * RECIPROCAL_ROOT(variance[c] + epsilon);
        bias[k] = shift[c];
    }
    EACH_OF_RUN(k, i, n) y[i] = (value[k] - level[k]) * factor[k] + bias[k];
}

/* The sums of dy and of dy (x - mean) of each part. Buffers x, dy, mean, parts; size{channels, parts}. */
KERNEL(batch_norm_products)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *mean = BUFFER(2, const float);
    GLOBAL float *parts = BUFFER(3, float);
    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);
    const int to = rows - from < INT(2) ? rows : from + INT(2);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        const float middle = mean[column];
        const WIDE on = (WIDE)16 * channels;
        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {
            float value[ROW_AHEAD], d[ROW_AHEAD];
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                value[k] = *x_from - middle;
                d[k] = *dy_from;
                x_from += on, dy_from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                sum += d[k];
                products += d[k] * value[k];
            }
        }
    }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */
        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;
        to_part[0] = sum;
        to_part[channels] = products;
    }
}

/* The gradients of scale and shift from those sums, and what dx is made of. Buffers parts, scale, mean,
   variance, and six rows of channels: dscale, dshift, then the mean and the factors of dy, of x - mean and of
   1. Ints also: whether mean and variance are those of x; floats epsilon; size{channels}. A group does 16
   channels. */
KERNEL(batch_norm_gradients)
{
    GLOBAL const float *parts = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *mean = BUFFER(2, const float);
    GLOBAL const float *variance = BUFFER(3, const float);
    GLOBAL float *out = BUFFER(4, float);
    const int rows = INT(0), channels = INT(1), count = INT(3), by_batch = INT(4);
    const float epsilon = REAL(0);
    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (c < channels)
        for (int i = lane; i < count; i += 16) {
            sum += parts[(WIDE)2 * i * channels + c];
            products += parts[((WIDE)2 * i + 1) * channels + c];
        }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && c < channels) {
        const float inverse = 1.0f / SQRT(variance[c] + epsilon), factor = scale[c] * inverse;
        out[c] = products * inverse;
        out[(WIDE)channels + c] = sum;
        out[(WIDE)2 * channels + c] = mean[c];
        out[(WIDE)3 * channels + c] = factor;
        out[(WIDE)4 * channels + c] = by_batch ? -factor * inverse * inverse * products / (float)rows : 0.0f;
        out[(WIDE)5 * channels + c] = by_batch ? -factor * sum / (float)rows : 0.0f;
    }
}

/* dx = what follows from the last four of those rows + beta dx. Buffers x, dy, the rows, dx; floats beta;
   size{rows * channels}. */
KERNEL(batch_norm_backward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *by_channel = BUFFER(2, const float);
    GLOBAL float *dx = BUFFER(3, float);
    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;
    const float beta = REAL(0);
    RUN_BEGINS(n);
    float value[RUN], d[RUN], old[RUN], level[RUN], of_dy[RUN], of_x[RUN], rest[RUN];
    EACH_OF_RUN(k, i, n)
    {
        value[k] = x[i];
        d[k] = dy[i];
        old[k] = dml__old(beta, dx + i);
    }
    EACH_PLACE_OF_RUN(k, row, c, channels)
    {
        level[k] = by_channel[c];
        of_dy[k] = by_channel[channels + c];
        of_x[k] = by_channel[2 * channels + c];
        rest[k] = by_channel[3 * channels + c];
    }
    EACH_OF_RUN(k, i, n)
    dx[i] = of_dy[k] * d[k] + of_x[k] * (value[k] - level[k]) + rest[k] + beta * old[k];
}

#endif

/* ---- gpu/sample_norm.cl ---- */

/* sample_norm.cl: layer, RMS and group norm: numbers of a sample that are normalized together. x is (rows,
   channels); a row is a pixel, `pixels` of them a sample, and `width` neighbouring channels a group.

   Ints of all: rows, channels, pixels, width, whether by square (no mean is subtracted), rows of a part,
   parts, whether groups of samples are long, groups, samples * groups. Statistics are (samples, groups, 2):
   the mean, and 1 / sqrt(variance + epsilon).

   A work-group does four groups of samples with 64 items each, or a long one with all, where size{, 4} is
   launched. A sample of one row that fits into ROW_KEPT numbers an item is read once. */
#ifndef DML_GPU_SAMPLE_NORM_CL
#define DML_GPU_SAMPLE_NORM_CL

/* Both kernels are helpers with constants: lanes, and whether a sample is one row, which is `flat`. */
#define SAMPLE_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part

/* The item's place, for the statements behind it: it has numbers lane, lane + lanes, ... below most. What is
   kept is flat. */
#define SAMPLE_BEGIN()                                                                                       \
    const int channels = INT(1), width = INT(3), groups = INT(8), n = width * INT(2);                        \
    const int lane = ITEM & (lanes - 1), team = ITEM - lane;                                                 \
    const int number = GROUP_X * 4 + (lanes > 64 ? GROUP_Y : ITEM / 64);                                     \
    const int inside = number < INT(9) && GROUP_Y < (lanes > 64 ? 4 : 1), most = inside ? n : 0;             \
    const dml__gpu_divisor by_width = dml__gpu_divisor_of(width);                                            \
    const int kept = flat && n <= lanes * ROW_KEPT, sample = groups == 1 ? number : number / groups;         \
    const int channel = (number - sample * groups) * width + (flat ? lane : 0);                              \
    const WIDE first = (WIDE)sample * INT(2) * channels + channel

/* From number `from` on: where that is, of an array or of a parameter at `first` or `channel`; and how far
   behind it, and for how many channels, number k * lanes further. */
#define SAMPLE_PIECE(p) ((p) + (flat ? from - lane : 0))
#define SAMPLE_ON(k)                                                                                         \
    (flat ? (WIDE)((k)*lanes) : (WIDE)SAMPLE_PIXEL(from + (k)*lanes) * channels + SAMPLE_CHANNEL_ON(k))
#define SAMPLE_CHANNEL_ON(k) (flat ? (k)*lanes : from + (k)*lanes - SAMPLE_PIXEL(from + (k)*lanes) * width)
#define SAMPLE_PIXEL(i) ((int)dml__gpu_divide((unsigned)(i), by_width))

HELPER void dml__sample_norm_forward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weight,
                                        GLOBAL const float *bias, GLOBAL float *statistics, GLOBAL float *y,
                                        const dml__kernel_arguments arguments)
{
    SAMPLE_BEGIN();
    const float epsilon = REAL(0);
    float value[ROW_KEPT], mean = 0.0f, sum = 0.0f, squares = 0.0f;
    x += first, y += first;
    if (weight) weight += channel;
    if (bias) bias += channel;
    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = 0.0f;
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[k * lanes];
        EACH_IN_REGISTERS(ROW_KEPT, k) sum += value[k];
    } else if (!INT(4)) {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];
        }
    }
    if (!INT(4)) {
        TEAM_SUM(sum, part, team, lane, lanes, 1);
        mean = sum / (float)n;
    }
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] -= mean;
            squares += value[k] * value[k];
        }
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = mean;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];
            EACH_IN_REGISTERS(ROW_AHEAD, k) squares += (value[k] - mean) * (value[k] - mean);
        }
    }
    TEAM_SUM(squares, part, team, lane, lanes, 1);
    const float inverse = 1.0f / SQRT(squares / (float)n + epsilon);
    if (lane == 0 && inside) {
        statistics[(WIDE)2 * number] = mean;
        statistics[(WIDE)2 * number + 1] = inverse;
    }
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] *= inverse;
        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] *= weight[k * lanes];
        if (bias) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] += bias[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane) y[k * lanes] = value[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x), *scale = SAMPLE_PIECE(weight);
            GLOBAL const float *shift = SAMPLE_PIECE(bias);
            GLOBAL float *to = SAMPLE_PIECE(y);
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = (piece[SAMPLE_ON(k)] - mean) * inverse;
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            if (bias) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] += shift[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = value[k];
        }
    }
}

HELPER void dml__sample_norm_backward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,
                                         GLOBAL const float *weight, GLOBAL const float *statistics,
                                         GLOBAL float *dx, const dml__kernel_arguments arguments)
{
    SAMPLE_BEGIN();
    const float beta = REAL(0);
    const float mean = inside ? statistics[(WIDE)2 * number] : 0.0f;
    const float inverse = inside ? statistics[(WIDE)2 * number + 1] : 0.0f;
    float value[ROW_KEPT], g[ROW_KEPT], sum = 0.0f, products = 0.0f;
    x += first, dy += first, dx += first;
    if (weight) weight += channel;
    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = g[k] = 0.0f;
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] = x[k * lanes];
            g[k] = dy[k * lanes];
        }
        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] *= weight[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] -= mean;
            sum += g[k];
            products += g[k] * value[k];
        }
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);
            GLOBAL const float *scale = SAMPLE_PIECE(weight);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = x_piece[SAMPLE_ON(k)];
                g[k] = dy_piece[SAMPLE_ON(k)];
            }
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                sum += g[k];
                products += g[k] * (value[k] - mean);
            }
        }
    }
    TEAM_SUM(sum, part, team, lane, lanes, 1);
    TEAM_SUM(products, part, team, lane, lanes, 1);
    const float level = INT(4) ? 0.0f : sum / (float)n;
    const float along = inverse * inverse * (products / (float)n);
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) g[k] = inverse * ((g[k] - level) - value[k] * along);
        if (beta != 0.0f) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] += beta * dx[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane) dx[k * lanes] = g[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);
            GLOBAL const float *scale = SAMPLE_PIECE(weight);
            GLOBAL float *to = SAMPLE_PIECE(dx);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = x_piece[SAMPLE_ON(k)];
                g[k] = dy_piece[SAMPLE_ON(k)];
            }
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from)
            g[k] = inverse * ((g[k] - level) - (value[k] - mean) * along);
            if (beta != 0.0f) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] += beta * to[SAMPLE_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = g[k];
        }
    }
}

/* Which of them a launch is for. */
#ifdef DML__RUN
#define SAMPLE_CHOICE(call) call(INT(2) == 1, INT(7) ? 256 : 64)
#else
#define SAMPLE_CHOICE(call)                                                                                  \
    do {                                                                                                     \
        if (INT(2) == 1 && !INT(7))                                                                          \
            call(1, 64);                                                                                     \
        else if (INT(2) == 1)                                                                                \
            call(1, 256);                                                                                    \
        else if (!INT(7))                                                                                    \
            call(0, 64);                                                                                     \
        else                                                                                                 \
            call(0, 256);                                                                                    \
    } while (0)
#endif

/* y = weight (x - mean) inverse + bias. Buffers x, weight or NULL, bias or NULL, statistics, y; floats
   epsilon; size{samples * groups}, of long ones also 4. y may be x. */
KERNEL(sample_norm_forward_team)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SAMPLE_FORWARD(flat, lanes)                                                                          \
    dml__sample_norm_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),      \
                                BUFFER(2, const float), BUFFER(3, float), BUFFER(4, float), arguments)
    SAMPLE_CHOICE(SAMPLE_FORWARD);
#undef SAMPLE_FORWARD
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) + beta dx for g = weight dy, by
   square without the mean of g. Buffers x, dy, weight or NULL, statistics, dx; floats beta;
   size{samples * groups}, of long ones also 4. dx may be dy. */
KERNEL(sample_norm_backward_team)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SAMPLE_BACKWARD(flat, lanes)                                                                         \
    dml__sample_norm_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),     \
                                 BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),           \
                                 arguments)
    SAMPLE_CHOICE(SAMPLE_BACKWARD);
#undef SAMPLE_BACKWARD
}

/* The sums of dy and of dy (x - mean) inverse of each channel over the rows of a part: parts (2, parts,
   channels). Buffers x, dy, statistics, parts; size{channels, parts}. A group does 16 columns of a part. */
KERNEL(sample_norm_products)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *statistics = BUFFER(2, const float);
    GLOBAL float *parts = BUFFER(3, float);
    const int rows = INT(0), channels = INT(1), pixels = INT(2), groups = INT(8);
    const int from = GROUP_Y * INT(5), to = rows - from < INT(5) ? rows : from + INT(5);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16, group = column / INT(3);
    const dml__gpu_divisor by_pixels = dml__gpu_divisor_of(pixels);
    LOCAL float part[DML__GROUP_ITEMS];
    const WIDE on = (WIDE)16 * channels;
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {
            float value[ROW_AHEAD], d[ROW_AHEAD], mean[ROW_AHEAD], inverse[ROW_AHEAD];
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = mean[k] = inverse[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                const int sample = pixels == 1 ? row : (int)dml__gpu_divide((unsigned)row, by_pixels);
                GLOBAL const float *of = statistics + 2 * ((WIDE)sample * groups + group);
                mean[k] = of[0], inverse[k] = of[1];
                value[k] = *x_from, d[k] = *dy_from;
                x_from += on, dy_from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                sum += d[k];
                products += d[k] * ((value[k] - mean[k]) * inverse[k]);
            }
        }
    }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && column < channels && GROUP_Y < INT(6)) { /* groups may be more than parts */
        parts[(WIDE)GROUP_Y * channels + column] = sum;
        parts[(WIDE)(INT(6) + GROUP_Y) * channels + column] = products;
    }
}

#endif

/* ---- gpu/sample_norm_solo.cl ---- */

/* sample_norm_solo.cl: the teams of sample_norm.cl where an item is a whole processor core: it does
   SAMPLES_SOLO groups of samples, one after the other, with vectors. A group is a run of `width` numbers a
   pixel. */
#ifndef DML_GPU_SAMPLE_NORM_SOLO_CL
#define DML_GPU_SAMPLE_NORM_SOLO_CL
#ifdef SOLO_KERNEL

#define SAMPLES_SOLO 8

/* One group of a sample: where its numbers are, and its place in the parameters. */
typedef struct dml__solo_sample {
    int pixels, width, channel;
    WIDE first, step; /* of the first pixel, and between pixels */
    float count;
} dml__solo_sample;

HELPER dml__solo_sample dml__solo_sample_at(int number, const dml__kernel_arguments arguments)
{
    const int groups = INT(8);
    dml__solo_sample s;
    s.pixels = INT(2), s.width = INT(3), s.step = INT(1);
    s.channel = number % groups * s.width;
    s.first = (WIDE)(number / groups) * s.pixels * s.step + s.channel;
    s.count = (float)s.pixels * (float)s.width;
    return s;
}

HELPER float dml__solo_total(VECTOR v)
{
    float lane[VECTOR_LANES], total = 0.0f;
    VECTOR_STORE(lane, v);
    for (int i = 0; i < VECTOR_LANES; i++) total += lane[i];
    return total;
}

/* The sum of the distances from `middle`, or of their squares. */
HELPER float dml__solo_distances(GLOBAL const float *x, const dml__solo_sample s, float middle, int squares)
{
    const VECTOR middles = VECTOR_OF(middle);
    VECTOR total = VECTOR_OF(0.0f);
    float rest = 0.0f;
    for (int pixel = 0; pixel < s.pixels; pixel++) {
        GLOBAL const float *from = x + s.first + pixel * s.step;
        int i = 0;
        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES) {
            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(from + i), -1.0f, middles);
            total = squares ? VECTOR_ADD_PRODUCTS(total, distance, distance)
                            : VECTOR_ADD_PRODUCT(total, 1.0f, distance);
        }
        for (; i < s.width; i++) {
            const float distance = from[i] - middle;
            rest += squares ? distance * distance : distance;
        }
    }
    return dml__solo_total(total) + rest;
}

/* What sample_norm_forward_team computes, of the same arguments. */
SOLO_KERNEL(sample_norm_forward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weight = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    GLOBAL float *statistics = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float);
    const int all = GROUP_Y ? 0 : INT(9); /* along y there are teams only */
    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO ? (GROUP_X + 1) * SAMPLES_SOLO : all;
    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {
        const dml__solo_sample s = dml__solo_sample_at(number, arguments);
        const float origin = x[s.first]; /* a sum of distances from it loses less */
        const float mean = INT(4) ? 0.0f : origin + dml__solo_distances(x, s, origin, 0) / s.count;
        const float inverse = 1.0f / SQRT(dml__solo_distances(x, s, mean, 1) / s.count + REAL(0));
        statistics[(WIDE)2 * number] = mean;
        statistics[(WIDE)2 * number + 1] = inverse;
        for (int pixel = 0; pixel < s.pixels; pixel++) {
            const WIDE at = s.first + pixel * s.step;
            int i = 0, c = s.channel;
            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
                const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
                const VECTOR shift = bias ? VECTOR_READ(bias + c) : VECTOR_OF(0.0f);
                const VECTOR value = VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), inverse, distance);
                VECTOR_WRITE(y + at + i, VECTOR_ADD_PRODUCTS(shift, value, scale));
            }
            for (; i < s.width; i++, c++) {
                const float value = (x[at + i] - mean) * inverse;
                y[at + i] = (weight ? value * weight[c] : value) + (bias ? bias[c] : 0.0f);
            }
        }
    }
}

/* The sums of g = weight dy, and of g (x - mean). */
typedef struct dml__solo_slopes {
    float sum, products;
} dml__solo_slopes;

HELPER dml__solo_slopes dml__solo_slopes_of(GLOBAL const float *x, GLOBAL const float *dy,
                                            GLOBAL const float *weight, const dml__solo_sample s, float mean)
{
    VECTOR sum = VECTOR_OF(0.0f), products = VECTOR_OF(0.0f);
    dml__solo_slopes rest;
    rest.sum = 0.0f, rest.products = 0.0f;
    for (int pixel = 0; pixel < s.pixels; pixel++) {
        const WIDE at = s.first + pixel * s.step;
        int i = 0, c = s.channel;
        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
            const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
            const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_READ(dy + at + i), scale);
            sum = VECTOR_ADD_PRODUCT(sum, 1.0f, g);
            products = VECTOR_ADD_PRODUCTS(products, g, distance);
        }
        for (; i < s.width; i++, c++) {
            const float g = weight ? dy[at + i] * weight[c] : dy[at + i];
            rest.sum += g;
            rest.products += g * (x[at + i] - mean);
        }
    }
    rest.sum += dml__solo_total(sum);
    rest.products += dml__solo_total(products);
    return rest;
}

/* What sample_norm_backward_team computes, of the same arguments. */
SOLO_KERNEL(sample_norm_backward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *weight = BUFFER(2, const float);
    GLOBAL const float *statistics = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    const float beta = REAL(0);
    const int all = GROUP_Y ? 0 : INT(9); /* along y there are teams only */
    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO ? (GROUP_X + 1) * SAMPLES_SOLO : all;
    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {
        const dml__solo_sample s = dml__solo_sample_at(number, arguments);
        const float mean = statistics[(WIDE)2 * number], inverse = statistics[(WIDE)2 * number + 1];
        const dml__solo_slopes slopes = dml__solo_slopes_of(x, dy, weight, s, mean);
        const float level = INT(4) ? 0.0f : slopes.sum / s.count;
        const float along = inverse * inverse * (slopes.products / s.count);
        for (int pixel = 0; pixel < s.pixels; pixel++) {
            const WIDE at = s.first + pixel * s.step;
            int i = 0, c = s.channel;
            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
                const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
                const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(-level), VECTOR_READ(dy + at + i), scale);
                const VECTOR old = beta == 0.0f ? VECTOR_OF(0.0f) : VECTOR_READ(dx + at + i);
                const VECTOR slope = VECTOR_ADD_PRODUCT(g, -along, distance);
                VECTOR_WRITE(dx + at + i, VECTOR_ADD_PRODUCT(VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), beta, old),
                                                             inverse, slope));
            }
            for (; i < s.width; i++, c++) {
                const float g = weight ? dy[at + i] * weight[c] : dy[at + i];
                const float slope = (g - level) - (x[at + i] - mean) * along;
                dx[at + i] = dml__with_beta(inverse * slope, beta, dx + at + i);
            }
        }
    }
}

#endif
#endif

/* ---- gpu/embedding.cl ---- */

/* embedding.cl: rows of a table (rows, width) by number. Indices are (count), in range: the host sees to it.

   Ints of all: count, width; and where a table is a part of one, the number of its first row there and how
   many it has (0: it is all of the table): the rows of other parts are zeros, and left alone. */
#ifndef DML_GPU_EMBEDDING_CL
#define DML_GPU_EMBEDDING_CL

/* Where a row is in such a part, -1 where it isn't. */
HELPER int dml__row_here(int index, int first, int rows)
{
    const int row = index - first;
    return rows > 0 && (row < 0 || row >= rows) ? -1 : row;
}

/* y[i] = table[indices[i]]. Buffers indices (int), table, y; size{count * width}. */
KERNEL(embedding_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    RUN_BEGINS(n);
    int row[RUN];
    unsigned column[RUN];
    float value[RUN];
    EACH_PLACE_OF_RUN(k, place, c, width)
    {
        row[k] = place < (unsigned)INT(0) ? dml__row_here(indices[place], INT(2), INT(3)) : -1;
        column[k] = c;
    }
    EACH_OF_RUN(k, i, n) value[k] = row[k] < 0 ? 0.0f : table[(WIDE)row[k] * INT(1) + column[k]];
    EACH_OF_RUN(k, i, n) y[i] = value[k];
}

/* For each place the next one with the same index, or -1; and, behind these, whether it is the first. So the
   sum of each row can be made by one item, in order. Buffers indices (int), links (int); size{count}.

   A group does LINKED places: each item looks through its share of all others, for all of these at once. */
#define LINKED 16
KERNEL(embedding_links_team)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL int *links = BUFFER(1, int);
    const int count = INT(0), begin = GROUP_X * LINKED;
    LOCAL int
        nexts[LINKED * DML__GROUP_ITEMS]; /* what each item found: twice the next, less 1 if one is before */
    int mine[LINKED], found[LINKED];
    UNROLL for (int l = 0; l < LINKED; l++)
    {
        mine[l] = begin + l < count ? indices[begin + l] : -1;
        found[l] = count;
    }
    unsigned befores = 0;
    for (int first = ITEM; first < count; first += ROW_AHEAD * DML__GROUP_ITEMS) {
        int index[ROW_AHEAD];
        UNROLL for (int k = 0; k < ROW_AHEAD; k++) index[k] = mine[0];
        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count) index[k] = indices[at];
        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count)
        {
            int any = 0;
            UNROLL for (int l = 0; l < LINKED; l++) any |= index[k] == mine[l];
            if (any) {
                UNROLL for (int l = 0; l < LINKED; l++)
                {
                    if (index[k] != mine[l]) continue;
                    if (at < begin + l) befores |= 1u << l;
                    if (at > begin + l && at < found[l]) found[l] = at;
                }
            }
        }
    }
    UNROLL for (int l = 0; l < LINKED; l++) nexts[l * DML__GROUP_ITEMS + ITEM] =
        2 * found[l] + (int)(befores >> l & 1u);
    BARRIER();
    const int l = ITEM / (DML__GROUP_ITEMS / LINKED), lane = ITEM % (DML__GROUP_ITEMS / LINKED);
    int next = count, before = 0;
    for (int of = lane; of < DML__GROUP_ITEMS; of += DML__GROUP_ITEMS / LINKED) {
        const int other = nexts[l * DML__GROUP_ITEMS + of];
        if (other / 2 < next) next = other / 2;
        before |= other & 1;
    }
    BARRIER(); /* all have read them before their places are used again */
    nexts[ITEM] = 2 * next + before;
    BARRIER();
    if (lane == 0 && begin + l < count) {
        for (int of = 1; of < DML__GROUP_ITEMS / LINKED; of++) {
            const int other = nexts[ITEM + of];
            if (other / 2 < next) next = other / 2;
            before |= other & 1;
        }
        links[begin + l] = next < count ? next : -1;
        links[(WIDE)count + begin + l] = !before;
    }
}

#ifdef SOLO_KERNEL
/* The same, where an item is a whole processor core: it looks from each place to the nearest. */
SOLO_KERNEL(embedding_links_solo)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL int *links = BUFFER(1, int);
    const int count = INT(0), begin = GROUP_X * 256, end = count - begin < 256 ? count : begin + 256;
    for (int i = begin; i < end; i++) {
        const int mine = indices[i];
        int next = i + 1, before = i - 1;
        while (next < count && indices[next] != mine) next++;
        while (before >= 0 && indices[before] != mine) before--;
        links[i] = next < count ? next : -1;
        links[(WIDE)count + i] = before < 0;
    }
}
#endif

/* dtable[r] += the sum of those dy[i] whose index is r. Buffers indices (int), links (int), dy, dtable;
   size{count * width}. */
#ifdef DML__RUN
#define LINKS_AHEAD 1
#else
#define LINKS_AHEAD 4
#endif
KERNEL(embedding_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const int *links = BUFFER(1, const int);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL float *dtable = BUFFER(3, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    RUN_BEGINS(n);
    int next[RUN], row[RUN];
    unsigned column[RUN];
    float sum[RUN], d[RUN];
    EACH_OF_RUN(k, i, n) d[k] = dy[i];
    EACH_PLACE_OF_RUN(k, place, c, width)
    {
        const int inside = place < (unsigned)INT(0);
        row[k] = inside && links[(WIDE)INT(0) + place] ? dml__row_here(indices[place], INT(2), INT(3)) : -1;
        next[k] = inside ? links[place] : -1;
        column[k] = c;
    }
    EACH_OF_RUN(k, i, n) if (row[k] >= 0) sum[k] = dtable[(WIDE)row[k] * INT(1) + column[k]];
    EACH_OF_RUN(k, i, n)
    {
        if (row[k] < 0) continue;
        sum[k] += d[k];
        for (int at = next[k]; at >= 0;) { /* so many of them are read before the first is added */
            float more[LINKS_AHEAD];
            UNROLL for (int of = 0; of < LINKS_AHEAD; of++)
            {
                more[of] = at >= 0 ? dy[(WIDE)at * INT(1) + column[k]] : 0.0f;
                at = at >= 0 ? links[at] : -1;
            }
            UNROLL for (int of = 0; of < LINKS_AHEAD; of++) sum[k] += more[of];
        }
        dtable[(WIDE)row[k] * INT(1) + column[k]] = sum[k];
    }
}

#endif

/* ---- gpu/gather.cl ---- */

/* gather.cl: places along an axis by number: x (outer, n, inner) -> y (outer, m, inner). Of whole rows,
   `group` of the outer share a list of indices (outer / group, m); of single elements, indices are (outer, m,
   inner). They are in range: the host sees to it.

   Ints of both: n, inner, m, group, elements (0 or 1), count of what is written. */
#ifndef DML_GPU_GATHER_CL
#define DML_GPU_GATHER_CL

/* The index for y[o][j][i]. */
HELPER WIDE dml__gather_place(int o, int j, int i, int m, int inner, int group, int elements)
{
    return elements ? ((WIDE)o * m + j) * inner + i : (WIDE)(o / group) * m + j;
}

/* Buffers indices (int), x, y; size{outer * m * inner}. */
KERNEL(gather_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *x = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const int n = INT(0), inner = INT(1), m = INT(2);
    const unsigned at = ELEMENT;
    if (at < (unsigned)INT(5)) {
        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), j = row % m,
                  o = row / m;
        const int k = indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))];
        y[at] = x[((WIDE)o * n + k) * inner + i];
    }
}

/* dx = the sum of those dy that were taken from it, in the order of j, + beta dx. Buffers indices (int), dy,
   dx; floats beta; size{outer * n * inner}: an item looks for what is its own. */
KERNEL(gather_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const int n = INT(0), inner = INT(1), m = INT(2);
    const unsigned at = ELEMENT;
    if (at < (unsigned)INT(5)) {
        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), k = row % n,
                  o = row / n;
        float sum = 0.0f;
        for (int j = 0; j < m; j++)
            if (indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))] == k)
                sum += dy[((WIDE)o * m + j) * inner + i];
        dx[at] = dml__with_beta(sum, REAL(0), dx + at);
    }
}

#endif

/* ---- gpu/embedding_bag.cl ---- */

/* embedding_bag.cl: sums of rows of a table (rows, width) by number. A bag is `length` places of indices, in
   range or -1 for none: the host sees to it. Weights are like the indices, or NULL.

   Ints of all: places (of all bags), width, length, mean. */
#ifndef DML_GPU_EMBEDDING_BAG_CL
#define DML_GPU_EMBEDDING_BAG_CL

/* How much each place of a bag counts that has no weight. */
HELPER float dml__bag_share(GLOBAL const int *indices, int length, int mean)
{
    int count = 0;
    if (!mean) return 1.0f;
    for (int i = 0; i < length; i++) count += indices[i] >= 0;
    return count ? 1.0f / (float)count : 0.0f;
}

/* y[bag] = the sum of its rows. Buffers indices (int), weights, table, y; size{bags * width}. */
KERNEL(embedding_bag_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *table = BUFFER(2, const float);
    GLOBAL float *y = BUFFER(3, float);
    const int length = INT(2);
    const unsigned width = (unsigned)INT(1), n = (unsigned)(INT(0) / length) * width;
    const unsigned i = ELEMENT;
    if (i < n) {
        const WIDE first = (WIDE)(i / width) * length;
        const float part = dml__bag_share(indices + first, length, weights ? 0 : INT(3));
        float sum = 0.0f;
        for (int k = 0; k < length; k++) {
            const int row = indices[first + k];
            if (row >= 0)
                sum += (weights ? weights[first + k] : part) * table[(WIDE)row * INT(1) + i % width];
        }
        y[i] = sum;
    }
}

/* dtable[r] += the sum of the dy of r's bags, each place as much as it counts. Buffers indices (int), links
   (int, of embedding_links), weights, dy, dtable; size{places * width}. */
KERNEL(embedding_bag_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const int *links = BUFFER(1, const int);
    GLOBAL const float *weights = BUFFER(2, const float);
    GLOBAL const float *dy = BUFFER(3, const float);
    GLOBAL float *dtable = BUFFER(4, float);
    const int length = INT(2);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    const unsigned i = ELEMENT;
    if (i < n) {
        const int first = (int)(i / width), column = (int)(i % width);
        if (indices[first] >= 0 && links[(WIDE)INT(0) + first]) {
            GLOBAL float *to = dtable + (WIDE)indices[first] * INT(1) + column;
            float sum = *to;
            for (int at = first; at >= 0; at = links[at]) {
                const int bag = at / length;
                const float scale =
                    weights ? weights[at] : dml__bag_share(indices + (WIDE)bag * length, length, INT(3));
                sum += scale * dy[(WIDE)bag * INT(1) + column];
            }
            *to = sum;
        }
    }
}

/* dweights = beta dweights + each place's row times its bag's dy. Buffers indices (int), table, dy, dweights;
   floats beta; size{places}. */
KERNEL(embedding_bag_weights)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL float *dweights = BUFFER(3, float);
    const int width = INT(1), row = (int)ELEMENT < INT(0) ? indices[ELEMENT] : -1;
    const unsigned i = ELEMENT;
    if (i < (unsigned)INT(0)) {
        const WIDE bag = (WIDE)(i / (unsigned)INT(2)) * width;
        float sum = 0.0f;
        for (int c = 0; c < width && row >= 0; c++) sum += table[(WIDE)row * width + c] * dy[bag + c];
        dweights[i] = dml__with_beta(sum, REAL(0), dweights + i);
    }
}

#endif

/* ---- gpu/recurrent.cl ---- */

/* recurrent.cl: a step of a recurrent cell (kernels/recurrent.h says what each computes), an item a unit of a
   sample. The work lies as kernels/recurrent_layout.h has it: `gates` (batch, steps, width); `states`: those
   before each step (batch, steps, units), of lstm c's behind h's, then the last (batch, units) in the same
   way.

   Ints of both: cell, batch, steps, units, step, the step whose state is the result (outside of them: the
   last), floats from a sample's y to the next; size{batch * units}. */
#ifndef DML_GPU_RECURRENT_CL
#define DML_GPU_RECURRENT_CL

#define CELL_RELU 1
#define CELL_LSTM 2
#define CELL_GRU 3
#define SIGMOID(x) (1.0f / (1.0f + EXP(-(x))))

/* to[b][j] = from[b][j], zeros without a from. Buffers from, to; ints batch, units, the steps from a row to
   the next of both. */
KERNEL(recurrent_copy)
{
    GLOBAL const float *from = BUFFER(0, const float);
    GLOBAL float *to = BUFFER(1, float);
    const unsigned units = (unsigned)INT(1), i = ELEMENT;
    if (i < (unsigned)INT(0) * units) {
        const unsigned b = i / units, j = i % units;
        to[(WIDE)b * INT(3) + j] = from ? from[(WIDE)b * INT(2) + j] : 0.0f;
    }
}

/* Where the h of unit j of sample b before a step lies; its c, if it has one, is `c_behind` further. */
HELPER WIDE dml__state_place(int cell, int batch, int steps, int units, int step, unsigned b, unsigned j)
{
    const WIDE all = (WIDE)batch * steps * units * (cell == CELL_LSTM ? 2 : 1);
    if (step < 0 || step >= steps) return all + (WIDE)b * units + j;
    return ((WIDE)b * steps + step) * units + j;
}

HELPER WIDE dml__c_behind(int batch, int steps, int units, int step)
{
    return (WIDE)batch * units * (step < 0 || step >= steps ? 1 : steps);
}

HELPER float dml__bias_of(GLOBAL const float *bias, WIDE at)
{
    return bias ? bias[at] : 0.0f;
}

/* Of gates, which hold the products, it makes what follows. Buffers gates, states, y, lengths (int), b_ih,
   b_hh; all but the first two may be missing. */
KERNEL(recurrent_forward)
{
    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);
    GLOBAL float *states = BUFFER(1, float);
    GLOBAL float *y = BUFFER(2, float);
    GLOBAL const int *lengths = BUFFER(3, const int);
    GLOBAL const float *b_ih = BUFFER(4, const float);
    GLOBAL const float *b_hh = BUFFER(5, const float);
    const unsigned i = ELEMENT;
    if (i < (unsigned)batch * (unsigned)units) {
        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;
        const int width = cell >= CELL_LSTM ? 4 * units : units;
        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;
        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);
        GLOBAL float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);
        const WIDE c_before = dml__c_behind(batch, steps, units, step);
        const WIDE c_behind = dml__c_behind(batch, steps, units, next);
        const int counts = !lengths || step < lengths[b];
        float h = *before;
        if (!counts) {
            if (cell == CELL_LSTM) behind[c_behind] = before[c_before];
        } else if (cell == CELL_LSTM) {
            const float gi = SIGMOID(z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));
            const float gf =
                SIGMOID(z[units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));
            const float gg =
                TANH(z[2 * units] + dml__bias_of(b_ih, 2 * units + j) + dml__bias_of(b_hh, 2 * units + j));
            const float go =
                SIGMOID(z[3 * units] + dml__bias_of(b_ih, 3 * units + j) + dml__bias_of(b_hh, 3 * units + j));
            const float c = gf * before[c_before] + gi * gg;
            z[0] = gi, z[units] = gf, z[2 * units] = gg, z[3 * units] = go;
            behind[c_behind] = c;
            h = go * TANH(c);
        } else if (cell == CELL_GRU) { /* n r z and the state's part of n */
            const float r = SIGMOID(z[units] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));
            const float u =
                SIGMOID(z[2 * units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));
            const float by_h = z[3 * units] + dml__bias_of(b_hh, 2 * units + j);
            const float n = TANH(z[0] + dml__bias_of(b_ih, 2 * units + j) + r * by_h);
            z[0] = n, z[units] = r, z[2 * units] = u, z[3 * units] = by_h;
            h = n + u * (h - n);
        } else {
            const float a = z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j);
            h = cell == CELL_RELU ? (a <= 0.0f ? 0.0f : a) : TANH(a);
            z[0] = h;
        }
        *behind = h;
        if (y) y[(WIDE)b * INT(6) + (WIDE)step * units + j] = counts ? h : 0.0f;
    }
}

/* The gates become their gradients; `carried`, those of h and, behind all of them, of c behind the step,
   become what they are without the product of h. Buffers gates, states, dy, lengths (int), carried; dy and
   lengths may be missing. */
KERNEL(recurrent_backward)
{
    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);
    GLOBAL const float *states = BUFFER(1, const float);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL const int *lengths = BUFFER(3, const int);
    const unsigned i = ELEMENT;
    if (i < (unsigned)batch * (unsigned)units) {
        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;
        const int width = cell >= CELL_LSTM ? 4 * units : units;
        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;
        GLOBAL float *dh = BUFFER(4, float) + i;
        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);
        GLOBAL const float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);
        if (lengths && step >= lengths[b]) {
            for (int g = 0; g < width; g += units) z[g] = 0.0f;
        } else {
            const float d = *dh + (dy ? dy[(WIDE)b * INT(6) + (WIDE)step * units + j] : 0.0f);
            *dh = 0.0f;
            if (cell == CELL_LSTM) {
                GLOBAL float *dc = dh + (WIDE)batch * units;
                const float gi = z[0], gf = z[units], gg = z[2 * units], go = z[3 * units];
                const float tanh_c = TANH(behind[dml__c_behind(batch, steps, units, next)]);
                const float of_c = *dc + d * go * (1.0f - tanh_c * tanh_c);
                z[0] = of_c * gg * gi * (1.0f - gi);
                z[units] = of_c * before[dml__c_behind(batch, steps, units, step)] * gf * (1.0f - gf);
                z[2 * units] = of_c * gi * (1.0f - gg * gg);
                z[3 * units] = d * tanh_c * go * (1.0f - go);
                *dc = of_c * gf;
            } else if (cell == CELL_GRU) {
                const float n = z[0], r = z[units], u = z[2 * units];
                const float dn = d * (1.0f - u) * (1.0f - n * n);
                z[0] = dn;
                z[units] = dn * z[3 * units] * r * (1.0f - r);
                z[2 * units] = d * (*before - n) * u * (1.0f - u);
                z[3 * units] = dn * r;
                *dh = d * u;
            } else {
                const float h = z[0];
                z[0] = cell == CELL_RELU ? (h > 0.0f ? d : 0.0f) : d * (1.0f - h * h);
            }
        }
    }
}
#undef SIGMOID

#endif

/* ---- gpu/dropout.cl ---- */

/* dropout.cl: leaving elements out at random, by the numbers of base/philox.h. */
#ifndef DML_GPU_DROPOUT_CL
#define DML_GPU_DROPOUT_CL

/* y = what is kept of x times scale, else 0, + beta y. An item makes one block of four numbers, and does
   elements that lie a group's items apart: neighbours read neighbours. Buffers x, y; ints n, the two halves
   of the seed, stream, step, the bits below which an element is left out, which 2^32 blocks these are; floats
   scale, beta; size{n / 4, rounded up}. y may be x. */
KERNEL(dropout)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0), threshold = (unsigned)INT(5);
    const float scale = REAL(0), beta = REAL(1);
    LOCAL unsigned kept[DML__GROUP_ITEMS]; /* of each block a bit for each of its elements */
    unsigned c[4] = { ELEMENT, (unsigned)INT(6), (unsigned)INT(3), (unsigned)INT(4) };
    unsigned k0 = (unsigned)INT(1), k1 = (unsigned)INT(2);
    UNROLL for (int turn = 0; turn < 10; turn++)
    {
        const unsigned high0 = MULTIPLY_HIGH(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
        const unsigned high1 = MULTIPLY_HIGH(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    kept[ITEM] = (unsigned)(c[0] >= threshold) | (unsigned)(c[1] >= threshold) << 1 |
                 (unsigned)(c[2] >= threshold) << 2 | (unsigned)(c[3] >= threshold) << 3;
    BARRIER();
    const unsigned begin = 4u * (ELEMENT - (unsigned)ITEM) + (unsigned)ITEM;
    float value[4], old[4];
    EACH_OF(4, begin, k, i, n)
    {
        value[k] = x[i];
        old[k] = dml__old(beta, y + i);
    }
    EACH_OF(4, begin, k, i, n)
    {
        const unsigned keeps = kept[i % (4u * DML__GROUP_ITEMS) / 4u] >> i % 4u & 1u;
        y[i] = (keeps ? value[k] * scale : 0.0f) + beta * old[k];
    }
}

#endif

/* ---- gpu/attention.cl ---- */

/* attention.cl: scaled dot-product attention in tiles, of which a group keeps one of TILE x TILE scores; and
   rotary positions. Source: Dao, "FlashAttention-2", 2023, section 3.1.

   Heads lie beside each other in rows of q, k, v and y; those of q, k and v are some step long. `saved` is
   (samples, heads, queries) log_sums, as many levels (each query's sum of y dy), and (samples) lengths as
   ints. Ints of all: samples, queries, keys, heads, kv_heads, width, q_step, k_step, v_step, how many keys
   before and after its own position a query sees, whether there are lengths; floats: the scale of scores. Int
   13, of forward: the lengths are of keys that queries stand behind, and of none after itself a query sees;
   int 14: floats from a head's keys or values to the next head's, 0: they lie beside each other. A group does
   TILE rows, and TILE columns of a head: wider heads compute their scores once for each. */
#ifndef DML_GPU_ATTENTION_CL
#define DML_GPU_ATTENTION_CL

/* sum = X Y^T of rows `row0` and on of x (rows, x_step), and `column0` and on of y (columns, y_step). */
#define ATTENTION_SCORES(x, x_step, row0, rows, y, y_step, column0, columns)                                 \
    do {                                                                                                     \
        for (int i = 0; i < SPAN; i++)                                                                       \
            for (int j = 0; j < SPAN; j++) sum[i][j] = 0.0f;                                                 \
        for (int k0 = 0; k0 < width; k0 += TILE_K) {                                                         \
            for (int j = 0; j < SPAN; j++) {                                                                 \
                const int kk = k0 + ALONG_K_K, row = (row0) + ALONG_K_ROW(j);                                \
                const int column = (column0) + ALONG_K_ROW(j);                                               \
                A_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \
                    row < (rows) && kk < width ? (x)[(WIDE)row * (x_step) + kk] : 0.0f;                      \
                B_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \
                    column < (columns) && kk < width ? (y)[(WIDE)column * (y_step) + kk] : 0.0f;             \
            }                                                                                                \
            TILES_MULTIPLY();                                                                                \
        }                                                                                                    \
    } while (0)

/* mixed += the transpose of `scores` (TILE, TILE) times columns `piece` and on of rows `row0` and on of
   x (rows, x_step). All items have written their scores. */
#define MIX_SCORE(kk, row) scores[k0 + (kk)][row]
#define ATTENTION_MIX(x, x_step, row0, rows)                                                                 \
    do {                                                                                                     \
        for (int k0 = 0; k0 < TILE; k0 += TILE_K) {                                                          \
            for (int j = 0; j < SPAN; j++) {                                                                 \
                const int row = (row0) + k0 + ACROSS_K_K(j, TILE), column = piece + ACROSS_K_ROW(TILE);      \
                B_TILE(ACROSS_K_K(j, TILE), ACROSS_K_ROW(TILE)) =                                            \
                    row < (rows) && column < width ? (x)[(WIDE)row * (x_step) + column] : 0.0f;              \
            }                                                                                                \
            BARRIER();                                                                                       \
            UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                       \
            {                                                                                                \
                float a_own[SPAN], b_own[SPAN];                                                              \
                TILES_OWN(a_own, SPAN, MIX_SCORE, OWN_ROW);                                                  \
                TILES_OWN(b_own, SPAN, B_TILE, OWN_COLUMN);                                                  \
                UNROLL for (int i = 0; i < SPAN; i++) UNROLL for (int j = 0; j < SPAN; j++) mixed[i][j] +=   \
                    a_own[i] * b_own[j];                                                                     \
            }                                                                                                \
            BARRIER();                                                                                       \
        }                                                                                                    \
    } while (0)

/* Whether query t sees key s of `length`. */
HELPER int dml__attention_sees(int t, int s, int length, int before, int after)
{
    return s < length && (WIDE)t - s <= before && (WIDE)s - t <= after;
}

/* The first and the end of the places from - before .. to + after, of 0 .. limit - 1; the first at the
   beginning of a tile. */
HELPER int dml__attention_first(int from, int before)
{
    return from > before ? (from - before) / TILE * TILE : 0;
}

HELPER int dml__attention_end(int to, int after, int limit)
{
    return (WIDE)to + after + 1 < limit ? to + after + 1 : limit;
}

HELPER int dml__attention_length(GLOBAL const float *saved, WIDE lines, int sample, int there, int keys)
{
    int length = keys;
    if (there) length = ((GLOBAL const int *)saved)[2 * lines + sample];
    return length < keys ? length : keys;
}

/* How many keys a sample's queries stand behind. */
HELPER int dml__attention_past(GLOBAL const float *saved, WIDE lines, int sample, int behind)
{
    return behind ? ((GLOBAL const int *)saved)[2 * lines + sample] : 0;
}

/* Where the keys or values of the group's head begin. */
#define ATTENTION_HEAD_AT(step)                                                                              \
    (INT(14) ? ((WIDE)sample * INT(4) + kv_head) * INT(14) : (WIDE)sample * keys * (step) + kv_head * width)

/* y = softmax(scale q k^T) v, and log_sums. Buffers q, k, v, saved, y; size{queries, samples * heads * pieces
   of TILE columns}. */
KERNEL(attention_forward_team)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;
    const int inside = line < samples * heads; /* groups may be more than there is */
    const int sample = inside ? line / heads : 0, head = line % heads, kv_head = head / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;
    GLOBAL const float *k = BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7));
    GLOBAL const float *v = BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8));
    GLOBAL float *saved = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width;
    const int past = dml__attention_past(saved, lines, sample, INT(13));
    const int length = INT(13) ? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);
    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;
    const int end = inside ? dml__attention_end(t0 + TILE - 1, after, length) : 0;
    const float scale = REAL(0);
    const int own = ITEM / 4, lane = ITEM % 4;       /* of a row of scores, 4 items */
    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (keys, queries) */
    LOCAL float part[DML__GROUP_ITEMS];
    LOCAL float largest[TILE];
    LOCAL float total[TILE];
    LOCAL float factor[TILE];
    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    const int tile_rows = TILE, tile_columns = TILE;
    TILES_BEGIN();
    float mixed[SPAN][SPAN];
    for (int i = 0; i < SPAN; i++)
        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;
    if (lane == 0) largest[own] = MINUS_INFINITY, total[own] = 0.0f;
    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {
        ATTENTION_SCORES(q, INT(6), t0, queries, k, INT(7), s0, length);
        for (int i = 0; i < SPAN; i++)
            for (int j = 0; j < SPAN; j++)
                scores[OWN_COLUMN(j)][OWN_ROW(i)] =
                    dml__attention_sees(t0 + OWN_ROW(i), s0 + OWN_COLUMN(j), length, before, after)
                        ? scale * sum[i][j]
                        : MINUS_INFINITY;
        BARRIER();
        float most = largest[own], added = 0.0f;
        for (int c = lane; c < TILE; c += 4)
            if (scores[c][own] > most) most = scores[c][own];
        part[ITEM] = most;
        REDUCE_MAX(part, lane, 4, 1);
        most = part[ITEM - lane];
        BARRIER(); /* all have read it before its place is used again */
        const float base = most > MINUS_INFINITY ? most : 0.0f;
        for (int c = lane; c < TILE; c += 4) {
            const float e = EXP(scores[c][own] - base);
            scores[c][own] = e;
            added += e;
        }
        part[ITEM] = added;
        REDUCE_SUM(part, lane, 4, 1);
        if (lane == 0) {
            factor[own] = largest[own] > MINUS_INFINITY ? EXP(largest[own] - base) : 1.0f;
            total[own] = total[own] * factor[own] + part[ITEM];
            largest[own] = most;
        }
        BARRIER();
        for (int i = 0; i < SPAN; i++)
            for (int j = 0; j < SPAN; j++) mixed[i][j] *= factor[OWN_ROW(i)];
        ATTENTION_MIX(v, INT(8), s0, length);
    }
    BARRIER();
    for (int i = 0; i < SPAN; i++) {
        const int t = t0 + OWN_ROW(i);
        const float of_row = total[OWN_ROW(i)];
        for (int j = 0; j < SPAN; j++) {
            const int column = piece + OWN_COLUMN(j);
            if (inside && t < queries && column < width)
                y[(WIDE)t * heads * width + column] = of_row == 0.0f ? 0.0f : mixed[i][j] / of_row;
        }
    }
    if (lane == 0 && piece == 0 && inside && t0 + own < queries)
        saved[(WIDE)line * queries + t0 + own] =
            total[own] == 0.0f ? -MINUS_INFINITY : largest[own] + LOG(total[own]);
}

/* levels = the sums of y dy of each head of each query. Buffers y, dy, nothing, saved; size{samples * heads *
   queries}. */
KERNEL(attention_levels)
{
    const unsigned queries = (unsigned)INT(1), heads = (unsigned)INT(3), width = (unsigned)INT(5);
    const unsigned lines = (unsigned)INT(0) * heads * queries;
    if (ELEMENT < lines) {
        const unsigned t = ELEMENT % queries, head = ELEMENT / queries % heads;
        const WIDE from = (((WIDE)(ELEMENT / queries / heads) * queries + t) * heads + head) * width;
        GLOBAL const float *y = BUFFER(0, const float) + from;
        GLOBAL const float *dy = BUFFER(1, const float) + from;
        float sum = 0.0f;
        for (unsigned c = 0; c < width; c++) sum += y[c] * dy[c];
        BUFFER(3, float)[(WIDE)lines + ELEMENT] = sum;
    }
}

/* The gradient of q, k or v, as int 12 is 0, 1 or 2: += beta x what is there. Rows are queries, or keys, and
   then the scores are those of keys by queries, of all heads that share them. Buffers q, k, v, saved, dy, the
   gradient; floats beta after the scale; size{queries or keys, samples * heads or kv_heads * pieces}. */
KERNEL(attention_backward_team)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int of_keys = INT(12) > 0, group = of_keys ? heads / INT(4) : 1, own_heads = heads / group;
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;
    const int inside = line < samples * own_heads;
    const int sample = inside ? line / own_heads : 0;
    const int kv_head = of_keys ? line % own_heads : line % own_heads / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    GLOBAL const float *k = BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width;
    GLOBAL const float *v = BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width;
    GLOBAL const float *saved = BUFFER(3, const float);
    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);
    const int row0 = GROUP_X * TILE, before = of_keys ? INT(10) : INT(9), after = of_keys ? INT(9) : INT(10);
    const int limit = of_keys ? queries : length, y_step = heads * width;
    const int end =
        inside && (!of_keys || row0 < length) ? dml__attention_end(row0 + TILE - 1, after, limit) : 0;
    const int mixed_step = INT(12) == 0 ? INT(7) : INT(12) == 1 ? INT(6) : y_step;
    const float scale = REAL(0), beta = REAL(1);
    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (columns, rows) */
    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];
    const int tile_rows = TILE, tile_columns = TILE;
    TILES_BEGIN();
    float mixed[SPAN][SPAN], p[SPAN][SPAN];
    for (int i = 0; i < SPAN; i++)
        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;
    for (int of_group = 0; of_group < group; of_group++) {
        const int head = line % own_heads * group + of_group;
        const WIDE first = ((WIDE)sample * heads + head) * queries;
        GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;
        GLOBAL const float *dy = BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width;
        GLOBAL const float *mixes = INT(12) == 0 ? k : INT(12) == 1 ? q : dy;
        for (int column0 = dml__attention_first(row0, before); column0 < end; column0 += TILE) {
            /* The probabilities, and then the slopes of the scores: of queries and keys, and of dy and
             * values. */
            for (int slopes = 0; slopes < (INT(12) < 2 ? 2 : 1); slopes++) {
                GLOBAL const float *by_query = slopes ? dy : q;
                GLOBAL const float *by_key = slopes ? v : k;
                GLOBAL const float *own = of_keys ? by_key : by_query;
                GLOBAL const float *other = of_keys ? by_query : by_key;
                const int query_step = slopes ? y_step : INT(6), key_step = slopes ? INT(8) : INT(7);
                const int own_step = of_keys ? key_step : query_step;
                const int other_step = of_keys ? query_step : key_step;
                ATTENTION_SCORES(own, own_step, row0, of_keys ? length : queries, other, other_step, column0,
                                 limit);
                for (int i = 0; i < SPAN; i++)
                    for (int j = 0; j < SPAN; j++) {
                        const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
                        const int t = of_keys ? column : row, s = of_keys ? row : column;
                        const int seen = t < queries && dml__attention_sees(t, s, length, INT(9), INT(10));
                        if (!seen)
                            p[i][j] = 0.0f;
                        else if (!slopes)
                            p[i][j] = EXP(scale * sum[i][j] - saved[first + t]);
                        else
                            p[i][j] *= scale * (sum[i][j] - saved[lines + first + t]);
                    }
            }
            for (int i = 0; i < SPAN; i++)
                for (int j = 0; j < SPAN; j++) scores[OWN_COLUMN(j)][OWN_ROW(i)] = p[i][j];
            BARRIER();
            ATTENTION_MIX(mixes, mixed_step, column0, limit);
        }
    }
    const int step = INT(12) == 0 ? INT(6) : INT(12) == 1 ? INT(7) : INT(8);
    const int rows = of_keys ? keys : queries, head = line % own_heads;
    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + head * width;
    for (int i = 0; i < SPAN; i++) {
        for (int j = 0; j < SPAN; j++) {
            const int row = row0 + OWN_ROW(i), column = piece + OWN_COLUMN(j);
            if (inside && row < rows && column < width) {
                GLOBAL float *at = to + (WIDE)row * step + column;
                *at = dml__with_beta(mixed[i][j], beta, at);
            }
        }
    }
}

/* The heads of rows of x (samples, rows, x_step) into y (samples, heads, y_step), each row of a head behind
   as many as buffer 1, of ints, says of its sample. Buffers x, the ints, y; ints samples x rows x heads x
   width, rows, heads, width, x_step, y_step; size{the first}. */
KERNEL(keep_rows)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned rows = (unsigned)INT(1), heads = (unsigned)INT(2), width = (unsigned)INT(3);
    if (ELEMENT < (unsigned)INT(0)) {
        const unsigned column = ELEMENT % width, head = ELEMENT / width % heads;
        const unsigned row = ELEMENT / width / heads % rows, sample = ELEMENT / width / heads / rows;
        const WIDE place = (WIDE)BUFFER(1, const int)[sample] + row;
        y[((WIDE)sample * heads + head) * INT(5) + place * width + column] =
            x[((WIDE)sample * rows + row) * INT(4) + head * width + column];
    }
}

/* y = the pairs of x turned + beta y. Buffers x, table (positions, 2, width / 2), y; ints pairs, positions,
   heads, width, heads that are turned, whether pairs are neighbours, whether buffer 3 says which position
   each row has; floats 1 or, to turn back, -1, and beta; size{pairs}. y may be x. */
KERNEL(rotary)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned heads = (unsigned)INT(2), width = (unsigned)INT(3), half_width = width / 2;
    const float beta = REAL(1);
    if (ELEMENT < (unsigned)INT(0)) {
        const unsigned pair = ELEMENT % half_width, head = ELEMENT / half_width % heads;
        const unsigned row = ELEMENT / half_width / heads;
        const unsigned position = INT(6) ? (unsigned)BUFFER(3, const int)[row] : row % (unsigned)INT(1);
        const WIDE first = ((WIDE)row * heads + head) * width;
        const WIDE a = first + (INT(5) ? 2 * pair : pair), b = INT(5) ? a + 1 : a + half_width;
        const float from_a = x[a], from_b = x[b];
        const int turned = head < (unsigned)INT(4);
        const float cosine = turned ? table[(WIDE)position * width + pair] : 1.0f;
        const float sine = turned ? REAL(0) * table[(WIDE)position * width + half_width + pair] : 0.0f;
        const float to_a = turned ? from_a * cosine - from_b * sine : from_a;
        const float to_b = turned ? from_b * cosine + from_a * sine : from_b;
        y[a] = dml__with_beta(to_a, beta, y + a);
        y[b] = dml__with_beta(to_b, beta, y + b);
    }
}

#endif

/* ---- gpu/attention_solo.cl ---- */

/* attention_solo.cl: the kernels of attention.cl where an item is a whole processor core: the products of
   scores and of what is mixed by them are those of solo.cl, and a row of scores is a few vectors. */
#ifndef DML_GPU_ATTENTION_SOLO_CL
#define DML_GPU_ATTENTION_SOLO_CL
#ifdef SOLO_KERNEL

/* Rows of a head: of its queries, keys or values, or of their gradients. */
typedef struct dml__solo_head {
    GLOBAL const float *first, *end;
    WIDE step;
} dml__solo_head;

HELPER dml__solo_head dml__solo_head_of(GLOBAL const float *first, WIDE step, int rows, int width)
{
    dml__solo_head head;
    head.first = first, head.step = step;
    head.end = first + (rows - 1) * step + width;
    return head;
}

/* s.sum = X Y^T of x's rows `row0` and on and y's rows `column0` and on. */
HELPER void dml__solo_scores(const dml__solo s, const dml__solo_head x, int row0, const dml__solo_head y,
                             int column0, int width)
{
    dml__solo_clear(s);
    for (int k0 = 0; k0 < width; k0 += SOLO_K) {
        const int ks = width - k0 < SOLO_K ? width - k0 : SOLO_K;
        for (int row = 0; row < s.rows; row++)
            dml__solo_copy(s.a + row * SOLO_K, x.first + (row0 + row) * x.step + k0, ks, x.end);
        dml__solo_turn(s, y.first + column0 * y.step + k0, y.step, ks);
        dml__solo_multiply(s, ks);
    }
}

/* The piece where shares (TILE, SOLO_K) mix up to TILE of `columns`; B's place is that of s. */
HELPER dml__solo dml__solo_mix_of(const dml__solo s, float *shares, float *mixed, int columns)
{
    dml__solo m = s;
    m.a = shares, m.sum = mixed;
    m.columns = columns < TILE ? columns : TILE;
    return m;
}

/* m.sum += the shares m.a (TILE, SOLO_K), times columns `piece` and on of x's rows `row0` and on. */
HELPER void dml__solo_mix(const dml__solo m, const dml__solo_head x, int row0, int rows, int piece)
{
    for (int k = 0; k < rows; k++)
        dml__solo_copy(m.b + k * TILE, x.first + (row0 + k) * x.step + piece, m.columns, x.end);
    dml__solo_multiply(m, rows);
}

/* Sets what lies outside of from .. to - 1 of a row of TILE. */
HELPER void dml__solo_mask(float *line, int from, int to, float value)
{
    for (int c = 0; c < from && c < TILE; c++) line[c] = value;
    for (int c = to < 0 ? 0 : to; c < TILE; c++) line[c] = value;
}

/* Turns a row of scores into exponentials of what they are above `most`, the largest so far, which it
   becomes; returns their sum. */
HELPER float dml__solo_exponentials(float *line, float scale, int from, int to, float *most)
{
    float lane[VECTOR_LANES];
    VECTOR largest = VECTOR_OF(*most), sum = VECTOR_OF(0.0f);
    for (int c = 0; c < TILE; c += VECTOR_LANES)
        VECTOR_STORE(line + c, VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), scale, VECTOR_LOAD(line + c)));
    dml__solo_mask(line, from, to, MINUS_INFINITY);
    for (int c = 0; c < TILE; c += VECTOR_LANES) largest = VECTOR_MOST(largest, VECTOR_LOAD(line + c));
    VECTOR_STORE(lane, largest);
    for (int i = 0; i < VECTOR_LANES; i++)
        if (lane[i] > *most) *most = lane[i];
    const VECTOR base = VECTOR_OF(*most > MINUS_INFINITY ? *most : 0.0f);
    for (int c = 0; c < TILE; c += VECTOR_LANES) {
        const VECTOR e = VECTOR_EXP(VECTOR_ADD_PRODUCT(VECTOR_LOAD(line + c), -1.0f, base));
        VECTOR_STORE(line + c, e);
        sum = VECTOR_ADD_PRODUCT(sum, 1.0f, e);
    }
    return dml__solo_total(sum);
}

/* What attention_forward_team computes, of the same arguments. The scores (TILE, SOLO_K) are what mixes. */
SOLO_KERNEL(attention_forward_solo)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;
    if (line >= samples * heads) return; /* groups may be more than there is */
    const int sample = line / heads, head = line % heads, kv_head = head / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    const dml__solo_head q = dml__solo_head_of(
        BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);
    const dml__solo_head k =
        dml__solo_head_of(BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7)), INT(7), keys, width);
    const dml__solo_head v =
        dml__solo_head_of(BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8)), INT(8), keys, width);
    GLOBAL float *saved = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width + column0;
    const int past = dml__attention_past(saved, lines, sample, INT(13));
    const int length = INT(13) ? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);
    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;
    const int end = dml__attention_end(t0 + TILE - 1, after, length);
    SOLO_LOCAL float mixed_piece[TILE * TILE];
    SOLO_LOCAL float largest[TILE];
    SOLO_LOCAL float total[TILE];
    SOLO_BEGIN(0, queries - t0, length);
    const dml__solo mix = dml__solo_mix_of(piece, piece.sum, mixed_piece, width - column0);
    dml__solo_zero(mixed_piece, TILE * TILE);
    for (int row = 0; row < piece.rows; row++) largest[row] = MINUS_INFINITY, total[row] = 0.0f;
    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {
        piece.columns = length - s0 < TILE ? length - s0 : TILE;
        dml__solo_scores(piece, q, t0, k, s0, width);
        for (int row = 0; row < piece.rows; row++) {
            const int t = t0 + row, from = (t > before ? t - before : 0) - s0;
            const float old = largest[row];
            const float sum =
                dml__solo_exponentials(piece.sum + row * TILE, REAL(0), from,
                                       dml__attention_end(t, after, length) - s0, largest + row);
            if (largest[row] > old && old > MINUS_INFINITY) {
                const float factor = EXP(old - largest[row]);
                total[row] *= factor;
                for (int j = 0; j < mix.columns; j++) mix.sum[row * TILE + j] *= factor;
            }
            total[row] += sum;
        }
        dml__solo_mix(mix, v, s0, piece.columns, column0);
    }
    for (int row = 0; row < piece.rows; row++) {
        const float of_row = total[row];
        GLOBAL float *to = y + (WIDE)(t0 + row) * heads * width;
        for (int j = 0; j < mix.columns; j++)
            to[j] = of_row == 0.0f ? 0.0f : mix.sum[row * TILE + j] / of_row;
        if (column0 == 0)
            saved[(WIDE)line * queries + t0 + row] =
                of_row == 0.0f ? -MINUS_INFINITY : largest[row] + LOG(of_row);
    }
}

/* What a tile of scores is told of its queries: minus their log_sums, or minus their levels times the scale.
 */
HELPER void dml__solo_of_queries(float *to, GLOBAL const float *from, int n, float factor)
{
    for (int i = 0; i < n; i++) to[i] = factor * from[i];
    for (int i = n; i < TILE; i++) to[i] = 0.0f;
}

/* Turns a row of scores into shares, or, of scores of dy and values, shares into slopes. Of each column there
   is an `own`, or of the row alone one. */
HELPER void dml__solo_shares(float *line, float *shares, float scale, const float *own, int by_column,
                             int slopes)
{
    for (int c = 0; c < TILE; c += VECTOR_LANES) {
        const VECTOR base = by_column ? VECTOR_LOAD(own + c) : VECTOR_OF(*own);
        const VECTOR value = VECTOR_ADD_PRODUCT(base, scale, VECTOR_LOAD(line + c));
        VECTOR_STORE(shares + c, slopes ? VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_LOAD(shares + c), value)
                                        : VECTOR_EXP(value));
    }
}

/* What attention_backward_team computes, of the same arguments. */
SOLO_KERNEL(attention_backward_solo)
{
    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);
    const int of_keys = INT(12) > 0, group = of_keys ? heads / INT(4) : 1, own_heads = heads / group;
    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;
    if (line >= samples * own_heads) return;
    const int sample = line / own_heads, y_step = heads * width;
    const int kv_head = of_keys ? line % own_heads : line % own_heads / (heads / INT(4));
    const WIDE lines = (WIDE)samples * heads * queries;
    const dml__solo_head k = dml__solo_head_of(
        BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width, INT(7), keys, width);
    const dml__solo_head v = dml__solo_head_of(
        BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width, INT(8), keys, width);
    GLOBAL const float *saved = BUFFER(3, const float);
    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);
    const int row0 = GROUP_X * TILE, before = of_keys ? INT(10) : INT(9), after = of_keys ? INT(9) : INT(10);
    const int rows = of_keys ? keys : queries, limit = of_keys ? queries : length;
    const int row_end = of_keys ? length : queries; /* of those that see, or are seen by, anything */
    const int end = row0 < row_end ? dml__attention_end(row0 + TILE - 1, after, limit) : 0;
    const float scale = REAL(0), beta = REAL(1);
    SOLO_LOCAL float shares[TILE * SOLO_K];
    SOLO_LOCAL float mixed_piece[TILE * TILE];
    SOLO_LOCAL float own[TILE];
    SOLO_BEGIN(0, rows - row0, limit);
    const dml__solo mix = dml__solo_mix_of(piece, shares, mixed_piece, width - column0);
    dml__solo_zero(mixed_piece, TILE * TILE);
    dml__solo_zero(shares, TILE * SOLO_K); /* of rows that nothing is known of, too */
    if (piece.rows > row_end - row0) piece.rows = row_end > row0 ? row_end - row0 : 0;
    for (int of_group = 0; of_group < group; of_group++) {
        const int head = line % own_heads * group + of_group;
        const WIDE first = ((WIDE)sample * heads + head) * queries;
        const dml__solo_head q = dml__solo_head_of(
            BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);
        const dml__solo_head dy = dml__solo_head_of(
            BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width, y_step, queries, width);
        for (int s0 = dml__attention_first(row0, before); s0 < end; s0 += TILE) {
            const int t0 = of_keys ? s0 : row0; /* the first query */
            piece.columns = limit - s0 < TILE ? limit - s0 : TILE;
            for (int slopes = 0; slopes < (INT(12) < 2 ? 2 : 1); slopes++) {
                dml__solo_scores(piece,
                                 of_keys  ? (slopes ? v : k)
                                 : slopes ? dy
                                          : q,
                                 row0,
                                 of_keys  ? (slopes ? dy : q)
                                 : slopes ? v
                                          : k,
                                 s0, width);
                dml__solo_of_queries(own, saved + (slopes ? lines : 0) + first + t0,
                                     of_keys ? piece.columns : piece.rows, slopes ? -scale : -1.0f);
                for (int row = 0; row < piece.rows; row++) {
                    const int at = row0 + row;
                    dml__solo_shares(piece.sum + row * TILE, shares + row * SOLO_K, scale,
                                     of_keys ? own : own + row, of_keys, slopes);
                    dml__solo_mask(shares + row * SOLO_K, (at > before ? at - before : 0) - s0,
                                   dml__attention_end(at, after, limit) - s0, 0.0f);
                }
            }
            dml__solo_mix(mix, INT(12) == 0 ? k : INT(12) == 1 ? q : dy, s0, piece.columns, column0);
        }
    }
    const int step = INT(12) == 0 ? INT(6) : INT(12) == 1 ? INT(7) : INT(8);
    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + line % own_heads * width + column0 +
                       (WIDE)row0 * step;
    dml__solo_write(mix, to, step, 1.0f, beta, 0, 0);
}

#endif
#endif

/* ---- gpu/strided.cl ---- */

/* strided.cl: dense arrays to and from parts of others. Element (i0, ..., i5) of a dense array lies in the
   other at i0 step[0] + ... + i5 step[5].

   Ints of both: elements, the counts along dimensions 1 to 5, the steps along 0 to 5; floats beta;
   size{elements}. */
#ifndef DML_GPU_STRIDED_CL
#define DML_GPU_STRIDED_CL

/* Where the dense array's element i lies in the other. */
#define STRIDED_PLACE(place, i)                                                                              \
    do {                                                                                                     \
        unsigned rest = (i);                                                                                 \
        for (int d = 5; d > 0; d--) {                                                                        \
            const unsigned count = (unsigned)INT(d), before = rest / count;                                  \
            (place) += (WIDE)(rest - before * count) * INT(6 + d);                                           \
            rest = before;                                                                                   \
        }                                                                                                    \
        (place) += (WIDE)rest * INT(6);                                                                      \
    } while (0)

/* dense = part + beta dense. Buffers part, dense. */
KERNEL(strided_pack)
{
    GLOBAL const float *part = BUFFER(0, const float);
    GLOBAL float *dense = BUFFER(1, float);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    WIDE place = 0;
    if (i < (unsigned)INT(0)) {
        STRIDED_PLACE(place, i);
        dense[i] = dml__with_beta(part[place], beta, dense + i);
    }
}

/* part = dense + beta part. Buffers dense, part. */
KERNEL(strided_unpack)
{
    GLOBAL const float *dense = BUFFER(0, const float);
    GLOBAL float *part = BUFFER(1, float);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    WIDE place = 0;
    if (i < (unsigned)INT(0)) {
        STRIDED_PLACE(place, i);
        part[place] = dml__with_beta(dense[i], beta, part + place);
    }
}

#endif

/* ---- gpu/half.cl ---- */

/* half.cl: floats in 16 bits, bf16 or f16, as kernels/half.c has them. */
#ifndef DML_GPU_HALF_CL
#define DML_GPU_HALF_CL

HELPER unsigned dml__bf16_from(unsigned x)
{
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) return x >> 16 | 0x40u;
    return (x + 0x7FFFu + (x >> 16 & 1u)) >> 16;
}

/* On the bits, since a device may take denormals for 0: 2^-24 is the last bit of what is from 0.5 to 1. */
HELPER unsigned dml__f16_from(unsigned x)
{
    const unsigned size = x & 0x7FFFFFFFu, sign = x >> 16 & 0x8000u;
    if (size > 0x7F800000u) return sign | 0x7E00u | (size >> 13 & 0x3FFu);
    if (size >= 0x477FF000u) return sign | 0x7C00u;
    if (size < 0x38800000u) return sign | (BITS_OF(FLOAT_OF(size) + 0.5f) - 0x3F000000u);
    return sign | (((size + 0xFFFu + (size >> 13 & 1u)) >> 13) - (112u << 10));
}

HELPER float dml__f16_to(unsigned x)
{
    const unsigned size = x & 0x7FFFu, sign = (x & 0x8000u) << 16;
    if (size < 0x400u) return FLOAT_OF(BITS_OF(FLOAT_OF(size | 0x3F000000u) - 0.5f) | sign);
    return FLOAT_OF(((size << 13) + ((size >= 0x7C00u ? 224u : 112u) << 23)) | sign);
}

/* y = x in 16 bits, to nearest, ties to even. Buffers x, y; ints n, whether it is f16, whether what is beyond
   f16's largest number becomes that; size{n}. */
KERNEL(half_narrow)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL unsigned short *y = BUFFER(1, unsigned short);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned bits[RUN];
    EACH_OF_RUN(k, i, n) bits[k] = BITS_OF(x[i]);
    if (INT(1)) {
        EACH_OF_RUN(k, i, n)
        {
            const unsigned size = bits[k] & 0x7FFFFFFFu, narrow = dml__f16_from(bits[k]);
            const int beyond = INT(2) && size >= 0x477FF000u && size < 0x7F800000u;
            y[i] = (unsigned short)(beyond ? narrow - 1u : narrow);
        }
    } else {
        EACH_OF_RUN(k, i, n) y[i] = (unsigned short)dml__bf16_from(bits[k]);
    }
}

/* y = x of 16 bits. Buffers x, y; ints n, whether it is f16; size{n}. */
KERNEL(half_widen)
{
    GLOBAL const unsigned short *x = BUFFER(0, const unsigned short);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned bits[RUN];
    EACH_OF_RUN(k, i, n) bits[k] = x[i];
    if (INT(1)) {
        EACH_OF_RUN(k, i, n) y[i] = dml__f16_to(bits[k]);
    } else {
        EACH_OF_RUN(k, i, n) y[i] = FLOAT_OF(bits[k] << 16);
    }
}

#endif

#endif

/* ---- gpu/tensor_launch.cuh ---- */

/* tensor_launch.cuh: which launches tensor cores do, and how: each has the shared kernel of its name, which
   does what isn't taken here. */
#ifndef DML_GPU_TENSOR_LAUNCH_CUH
#define DML_GPU_TENSOR_LAUNCH_CUH

/* ---- gpu/tensor_attention.cuh ---- */

/* tensor_attention.cuh: attention_forward_team and attention_backward_team of gpu/attention.cl on tensor
   cores, with the same buffers and numbers: factors rounded to bf16 or f16, sums and all else in f32, for
   sm_80 and later and heads of a width that is a multiple of 8, up to 128. Source: Dao, "FlashAttention-2",
   2023, section 3.1.

   A warp has 16 or 32 rows of a group's: of queries, or of keys where the gradient is of keys or values. They
   are its first factor, and the sums that it makes are in its registers. The group goes through the others
   (keys, or queries) in tiles of 64, which are its second factor: read as f32 while the tile before is
   multiplied, rounded, and stored in one of two places of shared memory. A row of WIDTH numbers of 16 bits is
   WIDTH / 8 chunks of 16 bytes, and chunk c of row r lies at c xor r % 8: so eight rows of the same chunk,
   which ldmatrix reads, are in different banks. Scores become the first factor of the second product where
   they are, since an accumulator's pairs lie in the threads that a factor's do.

   Narrower heads are padded with zeros, to a WIDTH of 64 or 128. A negative scale turns the first factor's
   sign, so that the largest score is always that with the largest product. */
#ifndef DML_GPU_TENSOR_ATTENTION_CUH
#define DML_GPU_TENSOR_ATTENTION_CUH

/* ---- gpu/tensor_attention_tiles.cuh ---- */

/* tensor_attention_tiles.cuh: what forward and backward of gpu/tensor_attention.cuh are made of. */
#ifndef DML_GPU_TENSOR_ATTENTION_TILES_CUH
#define DML_GPU_TENSOR_ATTENTION_TILES_CUH

/* ---- gpu/tensor_mma.cuh ---- */

/* tensor_mma.cuh: products of rounded factors by the instructions of a warp (mma.sync), for sm_80 and later.

   A group of four warps makes a tile of C (128, 128), each warp (64, 64) of it in registers. Tiles of 32
   words of A and B are copied into a ring of three stages by cp.async, two ahead of the one that is
   multiplied; a row of 64 bytes is four chunks of 16, and two rows make a line of all banks, in which a chunk
   lies at its number xor half the row's: so eight rows of the same chunk, which ldmatrix reads, are in
   different banks.
 */
#ifndef DML_GPU_TENSOR_MMA_CUH
#define DML_GPU_TENSOR_MMA_CUH

/* ---- gpu/tensor_common.cuh ---- */

/* tensor_common.cuh: what the ways of multiplying rounded factors on tensor cores share.

   All of them compute C (m, n) = alpha A B^T + beta C + bias of f32, row-major, with f32 sums, or the relu of
   that, from copies of A (m, k) and B (n, k) in bf16, f16 or TF32 that gpu/tensor_pack.cuh made: k runs along
   memory, rows are padded to a multiple of DML__TENSOR_ROWS and their words of 16 bits to one of
   DML__TENSOR_WORDS, with zeros. So the ways load whole tiles, and only what writes C looks at its bounds. A
   number of TF32 is two words, those of a float: beside its instruction, which takes as many words, nothing
   differs. */
#ifndef DML_GPU_TENSOR_COMMON_CUH
#define DML_GPU_TENSOR_COMMON_CUH

/* ---- gpu/tensor_warp.cuh ---- */

/* tensor_warp.cuh: the instructions of sm_80 and later that kernels on tensor cores are made of (PTX ISA,
   "Warp Level Matrix Instructions" and "Data Movement and Conversion Instructions"), and nothing else.

   Where they are there DML__TENSOR_WARP is defined, and elsewhere these kernels have no body. A runtime that
   has them as functions of its own defines it first: tests/gpu/fake_cuda does, in plain C++. */
#ifndef DML_GPU_TENSOR_WARP_CUH
#define DML_GPU_TENSOR_WARP_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { DML__TENSOR_BF16 = 1, DML__TENSOR_F16 = 2, DML__TENSOR_TF32 = 3 };

#if !defined(DML__TENSOR_WARP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define DML__TENSOR_WARP

/* ---- memory ---- */

/* An address in shared memory, as the instructions below name it. */
static __device__ __forceinline__ __attribute__((unused)) uint32_t dml__tensor_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Has 16 bytes copied into shared memory, both at multiples of 16, by when the group is waited for that
   dml__mma_commit ends next. */
static __device__ __forceinline__ void dml__mma_copy(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void dml__mma_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until the thread's groups but the last `left` are copied. */
template <int left> static __device__ __forceinline__ void dml__mma_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Four floats from *p on, a multiple of 16 bytes, or zeros where they aren't there; then *p is `on` bytes
   further. It stays where it is written, ahead of the products behind which its latency hides, and the
   compiler doesn't keep a row's distance in registers for each of many reads. */
static __device__ __forceinline__ float4 dml__tensor_take(const float **p, long long on, bool there)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.b32 there, %6, 0;\n\t"
                 "@there ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n\tadd.s64 %4, %4, %5;\n\t}"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w), "+l"(*p)
                 : "l"(on), "r"((int)there)
                 : "memory");
    return x;
}

/* ---- numbers ---- */

/* Two floats rounded to bf16 or f16, to nearest, ties to even; `first` is the one at the lower address. */
template <int type> static __device__ __forceinline__ uint32_t dml__tensor_narrow(float first, float second)
{
    uint32_t both;
    if (type == DML__TENSOR_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

/* A float rounded to the 10 bits of TF32, to nearest, ties away from zero. */
static __device__ __forceinline__ uint32_t dml__tensor_narrow_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* 2^x, and 0 where that would be less than the least normal number. */
static __device__ __forceinline__ float dml__tensor_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- products, by all of a warp ---- */

/* Four 8 x 8 matrices of 16 bits, of which each thread names a row. */
static __device__ __forceinline__ void dml__mma_load(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* The same, transposed on the way: a thread gets two neighbours of a column. */
static __device__ __forceinline__ void dml__mma_load_across(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* d (16, 8) += a (16, k) b (8, k)^T, of 32 bytes of k: 16 numbers, or 8 of TF32. */
template <int type>
static __device__ __forceinline__ void dml__mma_multiply(float *d, const uint32_t (&a)[4], uint32_t b0,
                                                         uint32_t b1)
{
#define DML__MMA(shape, types)                                                                               \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." types ".f32 "                                     \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (type == DML__TENSOR_BF16)
        DML__MMA("m16n8k16", "bf16.bf16");
    else if (type == DML__TENSOR_F16)
        DML__MMA("m16n8k16", "f16.f16");
    else
        DML__MMA("m16n8k8", "tf32.tf32");
#undef DML__MMA
}

#endif

#endif

#include <stdbool.h>
#include <stdint.h>

enum { DML__TENSOR_ROWS = 128, DML__TENSOR_WORDS = 64 };

/* Where a product goes, and what is done to it on the way. */
typedef struct dml__tensor_out {
    float *c;          /* (m, n), ldc floats from each row to the next */
    const float *bias; /* (n), or NULL */
    int ldc, relu;     /* relu: what isn't above 0 becomes 0; a NaN stays one */
    float alpha, beta; /* beta 0: C isn't read */
} dml__tensor_out;

typedef struct dml__tensor_product {
    int type;          /* DML__TENSOR_BF16, DML__TENSOR_F16 or DML__TENSOR_TF32 */
    int m, n, words;   /* m and n of C; words of a row of the copies, padded */
    const uint16_t *a; /* (m padded, words) */
    const uint16_t *b; /* (n padded, words) */
    dml__tensor_out out;
    int pairs; /* two neighbours of C and of the bias may be read and written at once, at even columns */
} dml__tensor_product;

static inline int dml__tensor_padded(int size, int to)
{
    return size <= to ? to : (int)(((unsigned)size + (unsigned)to - 1) / (unsigned)to * (unsigned)to);
}

/* Words of a number. */
static __host__ __device__ __forceinline__ constexpr int dml__tensor_words_of(int type)
{
    return type == DML__TENSOR_TF32 ? 2 : 1;
}

/* Words of a copy's row of k numbers, of which there are at most DML__TENSOR_MOST_K. */
enum { DML__TENSOR_MOST_K = 1 << 29 };
static inline int dml__tensor_words(int type, int k)
{
    return dml__tensor_padded(k * dml__tensor_words_of(type), DML__TENSOR_WORDS);
}

/* A kernel's body is compiled only for cards that have its instructions; elsewhere the kernel is there, and
   empty. The registers tell: no way does with as few as an empty one. */
template <typename T> static inline bool dml__tensor_has_body(T *kernel)
{
    cudaFuncAttributes attributes;
    const bool has = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.numRegs > 64;
    if (!has) (void)cudaGetLastError();
    return has;
}

/* Where tile `number` of rows x columns of them is: down `band` rows of tiles, then to the next column, so
   that what runs at the same time reads few rows of A and of B, and finds them in the L2 cache. */
typedef struct dml__tensor_place {
    int row, column;
} dml__tensor_place;

static __device__ __forceinline__ __attribute__((unused)) dml__tensor_place
dml__tensor_place_of(int number, int rows, int columns, int band)
{
    const int first = number / (band * columns) * band;
    const int height = rows - first < band ? rows - first : band;
    const int within = number - first * columns;
    dml__tensor_place place;
    place.row = first + within % height;
    place.column = within / height;
    return place;
}

static __device__ __forceinline__ float dml__tensor_relu(float x, int on)
{
    return on && x <= 0.0f ? 0.0f : x;
}

/* Writes a thread's part of a row of sums, as the tensor cores leave them: of each 8 columns it has two, the
   first at `column`; `half` picks the upper or lower of the two rows that it holds in each four. */
template <int blocks>
static __device__ __forceinline__ void dml__tensor_put(const float (&sum)[4 * blocks], int half, int row,
                                                       int column, const dml__tensor_product &p)
{
    enum { AHEAD = blocks < 8 ? blocks : 8 }; /* reads of C on their way before the first is used */
    const float alpha = p.out.alpha, beta = p.out.beta;
    const int left = p.n - column, relu = p.out.relu; /* left: columns of C that are there from this one on */
    if (row >= p.m) return;
    float *c = p.out.c + (size_t)row * (size_t)p.out.ldc + column;
    const float *bias = p.out.bias ? p.out.bias + column : NULL;
    if (p.pairs && left >= 8 * blocks - 6) {
#pragma unroll
        for (int j0 = 0; j0 < blocks; j0 += AHEAD) {
            float2 old[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                old[j] = beta == 0.0f ? make_float2(0.0f, 0.0f) : *(const float2 *)(c + 8 * (j0 + j));
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int at = 4 * (j0 + j) + 2 * half;
                const float2 add = bias ? *(const float2 *)(bias + 8 * (j0 + j)) : make_float2(0.0f, 0.0f);
                *(float2 *)(c + 8 * (j0 + j)) =
                    make_float2(dml__tensor_relu(alpha * sum[at] + beta * old[j].x + add.x, relu),
                                dml__tensor_relu(alpha * sum[at + 1] + beta * old[j].y + add.y, relu));
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 2 * blocks; j++) {
        const int at = 8 * (j / 2) + j % 2;
        if (at < left) {
            float value = alpha * sum[4 * (j / 2) + 2 * half + j % 2];
            if (beta != 0.0f) value += beta * c[at];
            c[at] = dml__tensor_relu(bias ? value + bias[at] : value, relu);
        }
    }
}

#endif

enum {
    DML__MMA_ITEMS = 128,
    DML__MMA_SIZE = 128, /* rows and columns of a tile */
    DML__MMA_WORDS = 32,
    DML__MMA_STAGES = 3,
    DML__MMA_BYTES = DML__MMA_SIZE * DML__MMA_WORDS * 2, /* of a factor's tile */
    DML__MMA_BAND = 16
};

#ifdef DML__TENSOR_WARP

/* Where chunk `chunk` of a row lies in a tile, in bytes. */
static __device__ __forceinline__ uint32_t dml__mma_at(int row, int chunk)
{
    return (uint32_t)(row * 64 + (chunk ^ row / 2 % 4) * 16);
}

/* Brings a tile of 128 rows from `from` on, `words` between them: a thread every 32nd row's same chunk. */
static __device__ __forceinline__ void dml__mma_fetch(uint32_t to, const uint16_t *from, int words)
{
    const int row = (int)threadIdx.x / 4, chunk = (int)threadIdx.x % 4;
    from += (size_t)row * (size_t)words + 8 * chunk;
#pragma unroll
    for (int i = 0; i < DML__MMA_SIZE / 32; i++)
        dml__mma_copy(to + dml__mma_at(row + 32 * i, chunk), from + (size_t)(32 * i) * (size_t)words);
}

#endif

template <int type>
static __global__ void __launch_bounds__(DML__MMA_ITEMS, 2)
    dml__tensor_mma_kernel(const dml__tensor_product p)
{
#ifdef DML__TENSOR_WARP
    static __shared__ __align__(128) char memory[DML__MMA_STAGES * 2 * DML__MMA_BYTES];
    const uint32_t stages = dml__tensor_shared(memory);
    const int rows = (p.m + DML__MMA_SIZE - 1) / DML__MMA_SIZE,
              columns = (p.n + DML__MMA_SIZE - 1) / DML__MMA_SIZE;
    const dml__tensor_place place = dml__tensor_place_of((int)blockIdx.x, rows, columns, DML__MMA_BAND);
    const int row0 = place.row * DML__MMA_SIZE, column0 = place.column * DML__MMA_SIZE;
    const int steps = p.words / DML__MMA_WORDS; /* at least two */
    const uint16_t *a = p.a + (size_t)row0 * (size_t)p.words, *b = p.b + (size_t)column0 * (size_t)p.words;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int top = warp / 2 * 64, left = warp % 2 * 64;
    float sum[4][32]; /* of 16 rows each, 8 columns four by four */
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 32; j++) sum[i][j] = 0.0f;
    }
#pragma unroll
    for (int stage = 0; stage < DML__MMA_STAGES - 1; stage++) {
        const uint32_t to = stages + (uint32_t)(stage * 2 * DML__MMA_BYTES);
        dml__mma_fetch(to, a + stage * DML__MMA_WORDS, p.words);
        dml__mma_fetch(to + DML__MMA_BYTES, b + stage * DML__MMA_WORDS, p.words);
        dml__mma_commit();
    }
    int stage = 0, ahead = DML__MMA_STAGES - 1;
    for (int step = 0; step < steps; step++) {
        const uint32_t at = stages + (uint32_t)(stage * 2 * DML__MMA_BYTES);
        dml__mma_wait<DML__MMA_STAGES - 2>();
        __syncthreads(); /* all have this stage's copies, and have read the one that is filled next */
        if (step + DML__MMA_STAGES - 1 < steps) {
            const uint32_t to = stages + (uint32_t)(ahead * 2 * DML__MMA_BYTES);
            dml__mma_fetch(to, a + (step + DML__MMA_STAGES - 1) * DML__MMA_WORDS, p.words);
            dml__mma_fetch(to + DML__MMA_BYTES, b + (step + DML__MMA_STAGES - 1) * DML__MMA_WORDS, p.words);
        }
        dml__mma_commit(); /* an empty one too, so that the count stays right */
#pragma unroll
        for (int kk = 0; kk < DML__MMA_WORDS / 16; kk++) {
            uint32_t own_a[4][4], own_b[4][4];
#pragma unroll
            for (int i = 0; i < 4;
                 i++) /* 16 rows: its upper and lower 8 of the first 8 words, then of the others */
                dml__mma_load(own_a[i], at + dml__mma_at(top + 16 * i + lane % 16, 2 * kk + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) /* 16 columns: both 8 words of the first 8, then of the others */
                dml__mma_load(own_b[j], at + DML__MMA_BYTES +
                                            dml__mma_at(left + 16 * j + lane / 16 * 8 + lane % 8,
                                                        2 * kk + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    dml__mma_multiply<type>(&sum[i][4 * j], own_a[i], own_b[j / 2][j % 2 * 2],
                                            own_b[j / 2][j % 2 * 2 + 1]);
            }
        }
        if (++stage == DML__MMA_STAGES) stage = 0;
        if (++ahead == DML__MMA_STAGES) ahead = 0;
    }
    const int column = column0 + left + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = row0 + top + 16 * i + lane / 4;
        dml__tensor_put<8>(sum[i], 0, row, column, p);
        dml__tensor_put<8>(sum[i], 1, row + 8, column, p);
    }
#else
    (void)p;
#endif
}

typedef void (*dml__mma_kernel)(const dml__tensor_product p);

static inline dml__mma_kernel dml__mma_kernel_of(int type)
{
    return type == DML__TENSOR_BF16  ? dml__tensor_mma_kernel<DML__TENSOR_BF16>
           : type == DML__TENSOR_F16 ? dml__tensor_mma_kernel<DML__TENSOR_F16>
                                     : dml__tensor_mma_kernel<DML__TENSOR_TF32>;
}

/* Whether the current device can. */
static inline bool dml__mma_has(int major)
{
    bool all = major >= 8;
    for (int type = DML__TENSOR_BF16; type <= DML__TENSOR_TF32; type++)
        all = all && dml__tensor_has_body(dml__mma_kernel_of(type));
    return all;
}

static inline cudaError_t dml__mma_run(cudaStream_t stream, const dml__tensor_product *product)
{
    dml__tensor_product p = *product;
    const int64_t tiles = (((int64_t)p.m + DML__MMA_SIZE - 1) / DML__MMA_SIZE) *
                          (((int64_t)p.n + DML__MMA_SIZE - 1) / DML__MMA_SIZE);
    if (tiles > INT32_MAX) return cudaErrorInvalidValue;
    void *arguments[] = { &p };
    return cudaLaunchKernel(dml__mma_kernel_of(p.type), dim3((unsigned)tiles), dim3(DML__MMA_ITEMS),
                            arguments, 0, stream);
}

#endif

/* ---- gpu/tensor_pack.cuh ---- */

/* tensor_pack.cuh: rounded copies of factors, laid out for tensor cores (gpu/tensor_common.cuh).

   What is copied is a source: numbers in rows, of which four neighbours are read at once. A matrix is one;
   the patches of a convolution, which are nowhere in memory, are another (gpu/tensor_conv2d.cuh). A source
   has

       prepare()            what a thread finds out before it reads
       whole(rows, columns) whether it has so many, read at once, so that no read needs a bound
       read(row, column)    four numbers, where it is whole
       some(row, column)    the same anywhere, zeros outside. */
#ifndef DML_GPU_TENSOR_PACK_CUH
#define DML_GPU_TENSOR_PACK_CUH

enum { DML__TENSOR_PACK_ITEMS = 256 };

/* Four floats from p on, of which `left` are there; zeros for the others. Four: p is a multiple of 16 bytes.
 */
static __device__ __forceinline__ __attribute__((unused)) float4 dml__tensor_read(const float *p, int left,
                                                                                  bool four)
{
    if (four && left >= 4) return *(const float4 *)p;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) x.x = p[0];
    if (left > 1) x.y = p[1];
    if (left > 2) x.z = p[2];
    if (left > 3) x.w = p[3];
    return x;
}

/* (rows, columns), `step` floats from each row to the next. */
struct dml__tensor_matrix {
    const float *x;
    int rows, columns, step;
    bool four; /* each row begins at a multiple of 16 bytes */

    __device__ __forceinline__ void prepare()
    {
    }
    __device__ __forceinline__ bool whole(int some_rows, int some_columns) const
    {
        return four && some_rows <= rows && some_columns <= columns;
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return *(const float4 *)(x + (size_t)row * (size_t)step + column);
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        return dml__tensor_read(x + (size_t)row * (size_t)step + column, row < rows ? columns - column : 0,
                                four);
    }
};

static inline bool dml__tensor_fours(const float *x, int step)
{
    return (uintptr_t)x % 16 == 0 && step % 4 == 0;
}

static inline dml__tensor_matrix dml__tensor_matrix_of(const float *x, int rows, int columns, int step)
{
    dml__tensor_matrix matrix;
    matrix.x = x, matrix.rows = rows, matrix.columns = columns, matrix.step = step;
    matrix.four = dml__tensor_fours(x, step);
    return matrix;
}

#ifdef DML__TENSOR_WARP

/* 16 bytes of a copy: eight numbers, or the first four where they are of TF32. */
template <int type> static __device__ __forceinline__ uint4 dml__tensor_chunk(float4 low, float4 high)
{
    if (type == DML__TENSOR_TF32)
        return make_uint4(dml__tensor_narrow_tf32(low.x), dml__tensor_narrow_tf32(low.y),
                          dml__tensor_narrow_tf32(low.z), dml__tensor_narrow_tf32(low.w));
    return make_uint4(dml__tensor_narrow<type>(low.x, low.y), dml__tensor_narrow<type>(low.z, low.w),
                      dml__tensor_narrow<type>(high.x, high.y), dml__tensor_narrow<type>(high.z, high.w));
}

/* 4 bytes of it: two neighbours in k, or the first of them. */
template <int type> static __device__ __forceinline__ uint32_t dml__tensor_pair(float even, float odd)
{
    return type == DML__TENSOR_TF32 ? dml__tensor_narrow_tf32(even) : dml__tensor_narrow<type>(even, odd);
}

#endif

/* y (rows padded, words) = source (rows, k). A group copies 128 rows of 64 words: 8 threads write the 128
   bytes of a row. */
template <int type, typename Source>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_rows(const Source source, uint16_t *__restrict__ y, int words)
{
#ifdef DML__TENSOR_WARP
    enum {
        STEPS = 4, /* rows a thread copies, and between them: */
        STEP = DML__TENSOR_PACK_ITEMS / 8,
        EACH = 8 / dml__tensor_words_of(type), /* numbers it copies of a row */
        HIGH = EACH == 8,                      /* those from the fifth on are read */
        KS = 8 * EACH
    };
    const int across = words / DML__TENSOR_WORDS, part = (int)threadIdx.x % 8;
    const int tile = (int)(blockIdx.x % (unsigned)across), column = tile * KS + part * EACH;
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int row = row0 + (int)threadIdx.x / 8;
    float4 low[STEPS], high[STEPS];
    Source own = source;
    own.prepare();
    if (own.whole(row0 + DML__TENSOR_ROWS, (tile + 1) * KS)) { /* no branch between the loads */
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = own.read(row + i * STEP, column);
            high[i] = HIGH ? own.read(row + i * STEP, column + 4) : low[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = own.some(row + i * STEP, column);
            high[i] = HIGH ? own.some(row + i * STEP, column + 4) : low[i];
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        *(uint4 *)(y + (size_t)(row + i * STEP) * (size_t)words + tile * DML__TENSOR_WORDS + 8 * part) =
            dml__tensor_chunk<type>(low[i], high[i]);
#else
    (void)source, (void)y, (void)words;
#endif
}

/* y (rows padded, words) = the transpose of source (k, rows). A group transposes 64 words of 128 rows through
   shared memory, as 128 rows of 32 pairs of words, each two neighbours in k, or one. A warp reads the ks of
   four pairs of 32 rows, a thread four rows of one pair; the eight chunks of four pairs of a row lie in an
   order of its own, so that neither the stores of a warp, a pair for each of 8 rows apart and 4 pairs, nor
   its loads, a chunk each, meet in a bank. */
template <int type, typename Source>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_columns(const Source source, uint16_t *__restrict__ y, int words)
{
#ifdef DML__TENSOR_WARP
    enum { EACH = 2 / dml__tensor_words_of(type), KS = 32 * EACH, ODD = EACH == 2 };
    static __shared__ uint4 chunks[DML__TENSOR_ROWS * 8];
    uint32_t *pairs = (uint32_t *)chunks;
    const int across = words / DML__TENSOR_WORDS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int tile = (int)(blockIdx.x % (unsigned)across);
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int k = tile * KS + EACH * (4 * warp + lane / 8), first = row0 + lane % 8 * 4;
    float4 even[4], odd[4];
    Source own = source;
    own.prepare();
    if (own.whole((tile + 1) * KS, row0 + DML__TENSOR_ROWS)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = own.read(k, first + 32 * i);
            odd[i] = ODD ? own.read(k + 1, first + 32 * i) : even[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = own.some(k, first + 32 * i);
            odd[i] = ODD ? own.some(k + 1, first + 32 * i) : even[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 32 * i + lane % 8 * 4; /* row / 4 % 8 is lane % 8 for all four */
        uint32_t *to = pairs + row * 32 + (warp ^ lane % 8) * 4 + lane / 8;
        to[0] = dml__tensor_pair<type>(even[i].x, odd[i].x);
        to[32] = dml__tensor_pair<type>(even[i].y, odd[i].y);
        to[64] = dml__tensor_pair<type>(even[i].z, odd[i].z);
        to[96] = dml__tensor_pair<type>(even[i].w, odd[i].w);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = (int)threadIdx.x / 8 + 32 * i, chunk = (int)threadIdx.x % 8;
        *(uint4 *)(y + (size_t)(row0 + row) * (size_t)words + tile * DML__TENSOR_WORDS + 8 * chunk) =
            chunks[row * 8 + (chunk ^ row / 4 % 8)];
    }
#else
    (void)source, (void)y, (void)words;
#endif
}

/* Where a copy of a source is to lie, and of how many rows and ks. */
typedef struct dml__tensor_copy {
    int type, rows, k;
    uint16_t *to; /* dml__tensor_copy_bytes */
} dml__tensor_copy;

static inline size_t dml__tensor_copy_bytes(int type, int rows, int k)
{
    return (size_t)dml__tensor_padded(rows, DML__TENSOR_ROWS) * (size_t)dml__tensor_words(type, k) *
           sizeof(uint16_t);
}

template <typename Source>
static inline cudaError_t dml__tensor_launch_pack(void (*const (&kernels)[3])(const Source, uint16_t *, int),
                                                  cudaStream_t stream, const dml__tensor_copy &copy,
                                                  Source source)
{
    int words = dml__tensor_words(copy.type, copy.k);
    uint16_t *to = copy.to;
    const size_t groups = (size_t)(dml__tensor_padded(copy.rows, DML__TENSOR_ROWS) / DML__TENSOR_ROWS) *
                          (size_t)(words / DML__TENSOR_WORDS);
    if (groups > INT32_MAX) return cudaErrorInvalidValue;
    void *arguments[] = { &source, &to, &words };
    return cudaLaunchKernel(kernels[copy.type - DML__TENSOR_BF16], dim3((unsigned)groups),
                            dim3(DML__TENSOR_PACK_ITEMS), arguments, 0, stream);
}

/* Makes it, of source (rows, k). */
template <typename Source>
static inline cudaError_t dml__tensor_pack(cudaStream_t stream, const dml__tensor_copy &copy, Source source)
{
    void (*const kernels[3])(const Source, uint16_t *,
                             int) = { dml__tensor_pack_rows<DML__TENSOR_BF16, Source>,
                                      dml__tensor_pack_rows<DML__TENSOR_F16, Source>,
                                      dml__tensor_pack_rows<DML__TENSOR_TF32, Source> };
    return dml__tensor_launch_pack(kernels, stream, copy, source);
}

/* Makes it, of the transpose of source (k, rows). */
template <typename Source>
static inline cudaError_t dml__tensor_pack_transpose(cudaStream_t stream, const dml__tensor_copy &copy,
                                                     Source source)
{
    void (*const kernels[3])(const Source, uint16_t *,
                             int) = { dml__tensor_pack_columns<DML__TENSOR_BF16, Source>,
                                      dml__tensor_pack_columns<DML__TENSOR_F16, Source>,
                                      dml__tensor_pack_columns<DML__TENSOR_TF32, Source> };
    return dml__tensor_launch_pack(kernels, stream, copy, source);
}

#endif

#include <string.h>

enum {
    DML__FLASH_TILE = 64, /* others at a time */
    DML__FLASH_CHUNK = 32 /* scores of a row at a time, in backward */
};

#ifdef DML__TENSOR_WARP

#define DML__FLASH_LOG2E 1.4426950408889634f
#define DML__FLASH_INFINITY __int_as_float(0x7f800000)
#define DML__FLASH_BUFFER(i, type) ((type *)(buffer##i + arguments.offset[i]))

/* What a launch is about, from its numbers. */
typedef struct dml__flash_sizes {
    int samples, queries, keys, heads, group, width; /* group: heads that share one of keys and values */
    int q_step, k_step, v_step, y_step;
    long long lines;
} dml__flash_sizes;

static __device__ __forceinline__ dml__flash_sizes dml__flash_sizes_of(const dml__kernel_arguments &arguments)
{
    dml__flash_sizes s;
    s.samples = arguments.integer[0], s.queries = arguments.integer[1], s.keys = arguments.integer[2];
    s.heads = arguments.integer[3], s.group = s.heads / arguments.integer[4], s.width = arguments.integer[5];
    s.q_step = arguments.integer[6], s.k_step = arguments.integer[7], s.v_step = arguments.integer[8];
    s.y_step = s.heads * s.width;
    s.lines = (long long)s.samples * s.heads * s.queries;
    return s;
}

static __device__ __forceinline__ int dml__flash_length(const float *saved, const dml__flash_sizes &s,
                                                        int sample, int there)
{
    const int length = there ? ((const int *)saved)[2 * s.lines + sample] : s.keys;
    return length < s.keys ? length : s.keys;
}

/* Of query t of one head: the log_sum to the base of 2, or the level. Those that aren't there have no
   probabilities: 2^-infinity is 0. */
static __device__ __forceinline__ float dml__flash_number(const float *sums, long long lines, int which,
                                                          int t, int queries)
{
    if (t >= queries) return which ? 0.0f : DML__FLASH_INFINITY;
    return which ? sums[t + lines] : sums[t] * DML__FLASH_LOG2E;
}

/* The others from `first` to before `end` are what row `row` sees of `limit`, some before and some after it.
 */
static __device__ __forceinline__ int dml__flash_first(int row, int before)
{
    return row > before ? row - before : 0;
}

static __device__ __forceinline__ int dml__flash_end(int row, int after, int limit)
{
    return after < limit - row ? row + after + 1 : limit;
}

/* What `count` rows from `row` on see of others column .. column + columns - 1: 0 nothing, 1 some, 2 all. */
static __device__ __forceinline__ int dml__flash_seen(int row, int count, int column, int columns, int before,
                                                      int after, int rows, int limit)
{
    const int last = row + count - 1, end = column + columns - 1;
    if (row >= rows || column >= limit || column - last > after || row - end > before) return 0;
    return last < rows && end < limit && last - column <= before && end - row <= after ? 2 : 1;
}

/* Some of a matrix on its way: the thread's quads, STRIDE rows apart, of rows `row` and on of x (limit,
   step). WIDTH / 4 threads share a row. */
template <int WIDTH, int STRIDE, int QUADS>
static __device__ __forceinline__ void dml__flash_fetch(float4 (&quad)[QUADS], const float *x, int step,
                                                        int row, int limit, int width)
{
    const int own = (int)threadIdx.x / (WIDTH / 4), column = (int)threadIdx.x % (WIDTH / 4) * 4;
    const int left = column < width ? limit - row - own : 0;
    const float *from = x + (long long)(row + own) * step + column;
    const long long on = (long long)STRIDE * step * (long long)sizeof(float);
#pragma unroll
    for (int i = 0; i < QUADS; i++) quad[i] = dml__tensor_take(&from, on, i * STRIDE < left);
}

/* Stores them rounded, and their signs turned where `signs` are those of a pair. */
template <int type, int WIDTH, int STRIDE, int QUADS>
static __device__ __forceinline__ void dml__flash_store(char *tile, const float4 (&quad)[QUADS],
                                                        uint32_t signs)
{
    const int own = (int)threadIdx.x / (WIDTH / 4), column = (int)threadIdx.x % (WIDTH / 4) * 4;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int row = own + i * STRIDE;
        *(uint2 *)(tile + row * 2 * WIDTH + (column / 8 ^ row % 8) * 16 + column % 8 * 2) =
            make_uint2(dml__tensor_narrow<type>(quad[i].x, quad[i].y) ^ signs,
                       dml__tensor_narrow<type>(quad[i].z, quad[i].w) ^ signs);
    }
}

/* Where a thread reads 16 rows of a tile for ldmatrix: first both 8 columns of the upper 8 rows, then of the
   others; or first both 8 rows of 8 columns, as a first factor has them, and a second one transposed. In
   bytes from the first row on: 16 columns on are 32 bytes, by an xor, and 16 rows on 32 WIDTH, by a sum. */
template <int WIDTH> static __device__ __forceinline__ uint32_t dml__flash_along(int lane)
{
    return (uint32_t)((lane / 16 * 8 + lane % 8) * 2 * WIDTH + (lane / 8 % 2 ^ lane % 8) * 16);
}

template <int WIDTH> static __device__ __forceinline__ uint32_t dml__flash_across(int lane)
{
    return (uint32_t)(lane % 16 * 2 * WIDTH + (lane / 16 ^ lane % 8) * 16);
}

template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_clear(float (&mixed)[BLOCKS][WIDTH / 8][4])
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            mixed[i][j][0] = 0.0f, mixed[i][j][1] = 0.0f, mixed[i][j][2] = 0.0f, mixed[i][j][3] = 0.0f;
    }
}

/* 16 columns of a warp's first factor (16 BLOCKS, WIDTH), of which the thread's place is `at`. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_own(uint32_t (&own)[BLOCKS][4], uint32_t at, int kk)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        dml__mma_load(own[i], (at ^ (uint32_t)(32 * kk)) + (uint32_t)(i * 32 * WIDTH));
}

/* sum (16 BLOCKS, 8 COLUMNS8) = own (16 BLOCKS, WIDTH) times the transpose of a tile's rows at `at`. Own is
   in registers, or else in shared memory at own_at. */
template <int type, int WIDTH, int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_scores(float (&sum)[BLOCKS][COLUMNS8][4],
                                                         const uint32_t (&own)[WIDTH / 16][BLOCKS][4],
                                                         bool in_registers, uint32_t own_at, uint32_t at)
{
    dml__flash_clear<8 * COLUMNS8, BLOCKS>(sum);
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16; kk++) {
        uint32_t mine[BLOCKS][4];
        if (in_registers)
            memcpy(mine, own[kk], sizeof mine);
        else
            dml__flash_own<WIDTH, BLOCKS>(mine, own_at, kk);
#pragma unroll
        for (int jj = 0; jj < COLUMNS8 / 2; jj++) {
            uint32_t other[4];
            dml__mma_load(other, (at ^ (uint32_t)(32 * kk)) + (uint32_t)(jj * 32 * WIDTH));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                dml__mma_multiply<type>(sum[i][2 * jj], mine[i], other[0], other[1]);
                dml__mma_multiply<type>(sum[i][2 * jj + 1], mine[i], other[2], other[3]);
            }
        }
    }
}

/* mixed (16 BLOCKS, WIDTH) += score (16 BLOCKS, 8 COLUMNS8), rounded, times a tile's rows at `at`. */
template <int type, int WIDTH, int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_mix(float (&mixed)[BLOCKS][WIDTH / 8][4],
                                                      const float (&score)[BLOCKS][COLUMNS8][4], uint32_t at)
{
    uint32_t own[BLOCKS][COLUMNS8 / 2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS8; j++) {
            own[i][j / 2][j % 2 * 2] = dml__tensor_narrow<type>(score[i][j][0], score[i][j][1]);
            own[i][j / 2][j % 2 * 2 + 1] = dml__tensor_narrow<type>(score[i][j][2], score[i][j][3]);
        }
    }
#pragma unroll
    for (int kk = 0; kk < COLUMNS8 / 2; kk++) {
#pragma unroll
        for (int jj = 0; jj < WIDTH / 16; jj++) {
            uint32_t other[4];
            dml__mma_load_across(other, (at ^ (uint32_t)(32 * jj)) + (uint32_t)(kk * 32 * WIDTH));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                dml__mma_multiply<type>(mixed[i][2 * jj], own[i][kk], other[0], other[1]);
                dml__mma_multiply<type>(mixed[i][2 * jj + 1], own[i][kk], other[2], other[3]);
            }
        }
    }
}

/* Minus infinity for the scores of what isn't seen: of others `column` and on by rows `row` and on. */
template <int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_hide(float (&sum)[BLOCKS][COLUMNS8][4], int row, int column,
                                                       int before, int after, int rows, int limit)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + 16 * i + 8 * half + lane / 4;
            const int first = dml__flash_first(at, before);
            const int end = at < rows ? dml__flash_end(at, after, limit) : 0;
#pragma unroll
            for (int j = 0; j < 2 * COLUMNS8; j++) {
                const int other = column + 8 * (j / 2) + lane % 4 * 2 + j % 2;
                if (other < first || other >= end) sum[i][j / 2][2 * half + j % 2] = -DML__FLASH_INFINITY;
            }
        }
    }
}

/* The warp's number, as one that the compiler knows to be the same in all of a warp. */
static __device__ __forceinline__ int dml__flash_warp(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
}

/* The largest, or the sum, of a row's four threads. */
static __device__ __forceinline__ float dml__flash_most(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float dml__flash_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Scores become e^(scale score - the largest so far), and what was summed of a row fades as that grows. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void
dml__flash_soften(float (&sum)[BLOCKS][DML__FLASH_TILE / 8][4], float (&mixed)[BLOCKS][WIDTH / 8][4],
                  float (&largest)[BLOCKS][2], float (&total)[BLOCKS][2], float factor)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = largest[i][half], added = 0.0f;
#pragma unroll
            for (int j = 0; j < DML__FLASH_TILE / 8; j++)
                most = fmaxf(most, fmaxf(sum[i][j][2 * half], sum[i][j][2 * half + 1]));
            most = dml__flash_most(most);
            const float base = most > -DML__FLASH_INFINITY ? most * factor : 0.0f;
            const float faded = dml__tensor_exp2(largest[i][half] * factor - base);
#pragma unroll
            for (int j = 0; j < DML__FLASH_TILE / 4; j++) {
                float *score = &sum[i][j / 2][2 * half + j % 2];
                *score = dml__tensor_exp2(*score * factor - base);
                added += *score;
            }
            largest[i][half] = most;
            total[i][half] = total[i][half] * faded + added;
#pragma unroll
            for (int j = 0; j < WIDTH / 4; j++) mixed[i][j / 2][2 * half + j % 2] *= faded;
        }
    }
}

/* Rows `row` and on of to (rows, step) = factor mixed + beta to. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_put(const float (&mixed)[BLOCKS][WIDTH / 8][4], float *to,
                                                      int step, int row, int rows, int width,
                                                      const float (&factor)[BLOCKS][2], float beta)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + 16 * i + 8 * half + lane / 4;
            if (at >= rows) continue;
            float *line = to + (long long)at * step + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j++) {
                float2 value = make_float2(factor[i][half] * mixed[i][j][2 * half],
                                           factor[i][half] * mixed[i][j][2 * half + 1]);
                if (8 * j >= width) continue;
                if (beta != 0.0f) {
                    const float2 old = *(const float2 *)(line + 8 * j);
                    value.x += beta * old.x, value.y += beta * old.y;
                }
                *(float2 *)(line + 8 * j) = value;
            }
        }
    }
}

#endif

#endif

/* Groups that a multiprocessor is to have at once, each with as many registers as that leaves. */
#define DML__FLASH_GROUPS(width, blocks, warps) ((width) * (blocks) * (warps) <= 64 * 8 ? 2 : 1)

/* Bytes of shared memory: two stages of a tile of each of two matrices, then of two numbers of each of its
   rows; and the first factor of `rows` rows. */
static inline unsigned dml__flash_bytes(int width, int rows)
{
    return (unsigned)(4 * DML__FLASH_TILE * (2 * width + 4) + rows * 2 * width);
}

/* y = softmax(scale q k^T) v, and log_sums. Blocks of 16 BLOCKS WARPS queries along x, the last first since
   it sees most where later keys aren't seen; samples * heads along y and z. Q_KEPT: q in registers. */
template <int type, int WIDTH, int BLOCKS, int WARPS, bool Q_KEPT>
static __global__ void __launch_bounds__(32 * WARPS, DML__FLASH_GROUPS(WIDTH, BLOCKS, WARPS))
    dml__flash_forward(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,
                       char *buffer5, const dml__kernel_arguments arguments)
{
#ifdef DML__TENSOR_WARP
    enum {
        ROWS = 16 * BLOCKS * WARPS,
        BYTES = DML__FLASH_TILE * 2 * WIDTH,
        STRIDE = 128 * WARPS / WIDTH,
        QUADS = DML__FLASH_TILE / STRIDE
    };
    extern __shared__ __align__(1024) char dml__flash_memory[]; /* two of: keys, values; numbers; q */
    const dml__flash_sizes s = dml__flash_sizes_of(arguments);
    const int line = (int)(blockIdx.z * gridDim.y + blockIdx.y), sample = line / s.heads;
    const int head = line % s.heads, kv_head = head / s.group;
    if (sample >= s.samples) return; /* groups may be more than there is */
    const int lane = (int)threadIdx.x % 32, warp = dml__flash_warp();
    const int before = arguments.integer[9], after = arguments.integer[10];
    const int block = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, row = block + warp * 16 * BLOCKS;
    const float *q =
        DML__FLASH_BUFFER(0, const float) + (long long)sample * s.queries * s.q_step + head * s.width;
    const float *k =
        DML__FLASH_BUFFER(1, const float) + (long long)sample * s.keys * s.k_step + kv_head * s.width;
    const float *v =
        DML__FLASH_BUFFER(2, const float) + (long long)sample * s.keys * s.v_step + kv_head * s.width;
    float *saved = DML__FLASH_BUFFER(3, float);
    float *y = DML__FLASH_BUFFER(4, float) + (long long)sample * s.queries * s.y_step + head * s.width;
    const int length = dml__flash_length(saved, s, sample, arguments.integer[11]);
    const int end = dml__flash_end(block + ROWS - 1, after, length);
    const float scale = fmaxf(fabsf(arguments.real[0]), 1e-30f); /* not 0, or what is hidden would be NaN */
    const float factor = scale * DML__FLASH_LOG2E;
    char *const q_at = dml__flash_memory + 4 * BYTES + 16 * DML__FLASH_TILE;
    const uint32_t along = dml__tensor_shared(dml__flash_memory) + dml__flash_along<WIDTH>(lane);
    const uint32_t across = dml__tensor_shared(dml__flash_memory) + BYTES + dml__flash_across<WIDTH>(lane);
    const uint32_t own_at =
        dml__tensor_shared(q_at) + (uint32_t)(warp * 32 * BLOCKS * WIDTH) + dml__flash_across<WIDTH>(lane);
    uint32_t own[WIDTH / 16][BLOCKS][4];
    float mixed[BLOCKS][WIDTH / 8][4], largest[BLOCKS][2], total[BLOCKS][2]; /* total: the thread's part */
    int column = dml__flash_first(block, before) / DML__FLASH_TILE * DML__FLASH_TILE, stage = 0;
    {
        float4 queries[ROWS / STRIDE], keys[QUADS], values[QUADS];
        const int left = column < end ? length : 0;
        dml__flash_fetch<WIDTH, STRIDE>(queries, q, s.q_step, block, s.queries, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(keys, k, s.k_step, column, left, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(values, v, s.v_step, column, left, s.width);
        dml__flash_store<type, WIDTH, STRIDE>(q_at, queries, arguments.real[0] < 0.0f ? 0x80008000u : 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory, keys, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + BYTES, values, 0);
    }
    dml__flash_clear<WIDTH, BLOCKS>(mixed);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        largest[i][0] = largest[i][1] = -DML__FLASH_INFINITY, total[i][0] = total[i][1] = 0.0f;
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16 && Q_KEPT; kk++) dml__flash_own<WIDTH, BLOCKS>(own[kk], own_at, kk);
    for (; column < end; column += DML__FLASH_TILE, stage ^= 1) {
        const int next = column + DML__FLASH_TILE, left = next < end ? length : 0;
        const uint32_t at = (uint32_t)(stage * 2 * BYTES);
        char *to = dml__flash_memory + (stage ^ 1) * 2 * BYTES;
        const int seen = dml__flash_seen(row, 16 * BLOCKS, column, DML__FLASH_TILE, before, after, s.queries,
                                         length); /* the same in all of a warp */
        float4 coming[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(coming, k, s.k_step, next, left, s.width);
        if (seen) {
            float sum[BLOCKS][DML__FLASH_TILE / 8][4];
            dml__flash_scores<type, WIDTH, BLOCKS>(sum, own, Q_KEPT, own_at, along + at);
            dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
            dml__flash_fetch<WIDTH, STRIDE>(coming, v, s.v_step, next, left, s.width);
            if (seen == 1) dml__flash_hide(sum, row, column, before, after, s.queries, length);
            dml__flash_soften<WIDTH, BLOCKS>(sum, mixed, largest, total, factor);
            dml__flash_mix<type, WIDTH, BLOCKS>(mixed, sum, across + at);
        } else {
            dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
            dml__flash_fetch<WIDTH, STRIDE>(coming, v, s.v_step, next, left, s.width);
        }
        dml__flash_store<type, WIDTH, STRIDE>(to + BYTES, coming, 0);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row + 16 * i + 8 * half + lane / 4;
            const float all = dml__flash_sum(total[i][half]);
            total[i][half] = all == 0.0f ? 0.0f : __fdividef(1.0f, all);
            if (lane % 4 == 0 && t < s.queries)
                saved[(long long)line * s.queries + t] =
                    all == 0.0f ? DML__FLASH_INFINITY : largest[i][half] * scale + logf(all);
        }
    }
    dml__flash_put<WIDTH, BLOCKS>(mixed, y, s.y_step, row, s.queries, s.width, total, 0.0f);
    (void)buffer5;
#else
    (void)buffer0, (void)buffer1, (void)buffer2, (void)buffer3, (void)buffer4, (void)buffer5, (void)arguments;
#endif
}

/* The gradient of q, k or v, as `part` is 0, 1 or 2: += beta x what is there. Rows are queries, or keys, and
   then the scores are those of keys by queries, of all heads that share them. Blocks of 16 BLOCKS WARPS rows
   along x, those that see most first; samples * heads or kv_heads along y and z. Of the first factors that of
   the scores is kept in registers, that of the slopes, dy or v, stays in shared memory. */
template <int type, int part, int WIDTH, int BLOCKS, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, DML__FLASH_GROUPS(WIDTH, BLOCKS, WARPS))
    dml__flash_backward(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,
                        char *buffer5, const dml__kernel_arguments arguments)
{
#ifdef DML__TENSOR_WARP
    enum {
        ROWS = 16 * BLOCKS * WARPS,
        BYTES = DML__FLASH_TILE * 2 * WIDTH,
        STRIDE = 128 * WARPS / WIDTH,
        QUADS = DML__FLASH_TILE / STRIDE,
        CHUNK8 = DML__FLASH_CHUNK / 8
    };
    constexpr bool OF_KEYS = part > 0;
    static_assert(ROWS <= 2 * DML__FLASH_TILE, "the scores' first factor passes through the second stage");
    /* Two of: q and dy, or k and v; two of: the queries' log_sums and levels; the slopes' first factor. */
    extern __shared__ __align__(1024) char dml__flash_memory[];
    const dml__flash_sizes s = dml__flash_sizes_of(arguments);
    const int own_heads = OF_KEYS ? s.heads / s.group : s.heads;
    const int line = (int)(blockIdx.z * gridDim.y + blockIdx.y), sample = line / own_heads;
    if (sample >= s.samples) return;
    const int head = OF_KEYS ? line % own_heads * s.group : line % own_heads, kv_head = head / s.group;
    const int lane = (int)threadIdx.x % 32, warp = dml__flash_warp();
    const int before = arguments.integer[OF_KEYS ? 10 : 9], after = arguments.integer[OF_KEYS ? 9 : 10];
    const int block = (int)(OF_KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * ROWS;
    const int row = block + warp * 16 * BLOCKS;
    const float *q =
        DML__FLASH_BUFFER(0, const float) + (long long)sample * s.queries * s.q_step + head * s.width;
    const float *k =
        DML__FLASH_BUFFER(1, const float) + (long long)sample * s.keys * s.k_step + kv_head * s.width;
    const float *v =
        DML__FLASH_BUFFER(2, const float) + (long long)sample * s.keys * s.v_step + kv_head * s.width;
    const float *saved = DML__FLASH_BUFFER(3, const float);
    const float *dy =
        DML__FLASH_BUFFER(4, const float) + (long long)sample * s.queries * s.y_step + head * s.width;
    const float *sums = saved + ((long long)sample * s.heads + head) * s.queries;
    const int length = dml__flash_length(saved, s, sample, arguments.integer[11]);
    const int rows = OF_KEYS ? length : s.queries, limit = OF_KEYS ? s.queries : length;
    const int first = dml__flash_first(block, before) / DML__FLASH_TILE * DML__FLASH_TILE;
    const int end = block < rows ? dml__flash_end(block + ROWS - 1, after, limit) : 0;
    const float scale = fmaxf(fabsf(arguments.real[0]), 1e-30f), factor = scale * DML__FLASH_LOG2E;
    const uint32_t memory = dml__tensor_shared(dml__flash_memory);
    const uint32_t along = memory + dml__flash_along<WIDTH>(lane);
    const uint32_t across = memory + (part == 2 ? BYTES : 0) + dml__flash_across<WIDTH>(lane);
    float *const numbers = (float *)(dml__flash_memory + 4 * BYTES); /* of a stage: log_sums, levels */
    char *const sloper = (char *)(numbers + 4 * DML__FLASH_TILE);
    const uint32_t own_at = (uint32_t)(warp * 32 * BLOCKS * WIDTH) + dml__flash_across<WIDTH>(lane);
    const uint32_t sloper_at = dml__tensor_shared(sloper) + own_at;
    uint32_t scorer[WIDTH / 16][BLOCKS][4];
    float mixed[BLOCKS][WIDTH / 8][4], sum_of[BLOCKS][2], level_of[BLOCKS][2];
    /* The thread's number of a tile of queries: a log_sum, to the base of 2, or a level. */
    const int own = (int)threadIdx.x % DML__FLASH_TILE, which = (int)threadIdx.x / DML__FLASH_TILE;
    const bool own_number = OF_KEYS && which < (part == 1 ? 2 : 1);
    float number = 0.0f;
    if (first < end) {
        float4 scorers[ROWS / STRIDE], slopers[ROWS / STRIDE], ones[QUADS], others[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(scorers, OF_KEYS ? k : q, OF_KEYS ? s.k_step : s.q_step, block, rows,
                                        s.width);
        if (part < 2)
            dml__flash_fetch<WIDTH, STRIDE>(slopers, OF_KEYS ? v : dy, OF_KEYS ? s.v_step : s.y_step, block,
                                            rows, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(ones, OF_KEYS ? q : k, OF_KEYS ? s.q_step : s.k_step, first, limit,
                                        s.width);
        dml__flash_fetch<WIDTH, STRIDE>(others, OF_KEYS ? dy : v, OF_KEYS ? s.y_step : s.v_step, first, limit,
                                        s.width);
        if (own_number) numbers[threadIdx.x] = dml__flash_number(sums, s.lines, which, first + own, limit);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + 2 * BYTES, scorers,
                                              arguments.real[0] < 0.0f ? 0x80008000u : 0);
        if (part < 2) dml__flash_store<type, WIDTH, STRIDE>(sloper, slopers, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory, ones, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + BYTES, others, 0);
    }
    dml__flash_clear<WIDTH, BLOCKS>(mixed);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2 && !OF_KEYS; half++) {
            const int t = row + 16 * i + 8 * half + lane / 4;
            sum_of[i][half] = dml__flash_number(sums, s.lines, 0, t, s.queries);
            level_of[i][half] = dml__flash_number(sums, s.lines, 1, t, s.queries);
        }
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16; kk++)
        dml__flash_own<WIDTH, BLOCKS>(scorer[kk], memory + 2 * BYTES + own_at, kk);
    __syncthreads();                              /* all have it before its place is filled again */
    int heads = OF_KEYS ? s.group : 1, stage = 0; /* heads: to do, with this one */
    for (int column = first; column < end; stage ^= 1) {
        int next = column + DML__FLASH_TILE;
        if (next >= end && heads > 1) { /* to the next head of those that share these keys */
            next = first, heads--;
            q += s.width, dy += s.width, sums += s.queries;
        }
        const int left = next < end ? limit : 0;
        const uint32_t at = (uint32_t)(stage * 2 * BYTES);
        char *to = dml__flash_memory + (stage ^ 1) * 2 * BYTES;
        float4 coming[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(coming, OF_KEYS ? q : k, OF_KEYS ? s.q_step : s.k_step, next, left,
                                        s.width);
        if (own_number) number = dml__flash_number(sums, s.lines, which, next + own, left);
#pragma unroll
        for (int chunk = 0; chunk < DML__FLASH_TILE / DML__FLASH_CHUNK; chunk++) {
            const int from = chunk * DML__FLASH_CHUNK;
            const uint32_t skipped = at + (uint32_t)(from * 2 * WIDTH);
            const int seen = dml__flash_seen(row, 16 * BLOCKS, column + from, DML__FLASH_CHUNK, before, after,
                                             rows, limit);
            if (seen) {
                float sum[BLOCKS][CHUNK8][4], slope[BLOCKS][CHUNK8][4];
                dml__flash_scores<type, WIDTH, BLOCKS>(sum, scorer, true, 0, along + skipped);
                if (part < 2)
                    dml__flash_scores<type, WIDTH, BLOCKS>(slope, scorer, false, sloper_at,
                                                           along + BYTES + skipped);
                if (seen == 1) dml__flash_hide(sum, row, column + from, before, after, rows, limit);
#pragma unroll
                for (int j = 0; j < CHUNK8; j++) {
                    const float *two = numbers + stage * 2 * DML__FLASH_TILE + from + 8 * j + lane % 4 * 2;
                    float2 sums_of = make_float2(0.0f, 0.0f), levels_of = make_float2(0.0f, 0.0f);
                    if (OF_KEYS) sums_of = *(const float2 *)two;
                    if (part == 1) levels_of = *(const float2 *)(two + DML__FLASH_TILE);
#pragma unroll
                    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            const float of_keys = c % 2 ? sums_of.y : sums_of.x;
                            const float level = c % 2 ? levels_of.y : levels_of.x;
                            sum[i][j][c] = dml__tensor_exp2(sum[i][j][c] * factor -
                                                            (OF_KEYS ? of_keys : sum_of[i][c / 2]));
                            if (part < 2)
                                sum[i][j][c] *= slope[i][j][c] - (OF_KEYS ? level : level_of[i][c / 2]);
                        }
                    }
                }
                dml__flash_mix<type, WIDTH, BLOCKS>(mixed, sum, across + skipped);
            }
            if (chunk == 0) {
                dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
                if (own_number) numbers[(stage ^ 1) * 2 * DML__FLASH_TILE + (int)threadIdx.x] = number;
                dml__flash_fetch<WIDTH, STRIDE>(coming, OF_KEYS ? dy : v, OF_KEYS ? s.y_step : s.v_step, next,
                                                left, s.width);
            }
        }
        dml__flash_store<type, WIDTH, STRIDE>(to + BYTES, coming, 0);
        __syncthreads();
        column = next;
    }
    float factors[BLOCKS][2];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) factors[i][0] = factors[i][1] = part == 2 ? 1.0f : arguments.real[0];
    const int step = part == 0 ? s.q_step : part == 1 ? s.k_step : s.v_step, all = OF_KEYS ? s.keys : rows;
    float *result =
        DML__FLASH_BUFFER(5, float) + (long long)sample * all * step + (OF_KEYS ? kv_head : head) * s.width;
    dml__flash_put<WIDTH, BLOCKS>(mixed, result, step, row, all, s.width, factors, arguments.real[1]);
#else
    (void)buffer0, (void)buffer1, (void)buffer2, (void)buffer3, (void)buffer4, (void)buffer5, (void)arguments;
#endif
}

typedef void (*dml__flash_kernel)(char *, char *, char *, char *, char *, char *,
                                  const dml__kernel_arguments);

/* A launch, but for its arguments: the six buffers and the numbers. */
typedef struct dml__flash_launch {
    dml__flash_kernel kernel;
    dim3 grid;
    unsigned block, shared; /* items; bytes of dynamic shared memory */
} dml__flash_launch;

/* Of forward, or of the gradient of q, k or v (which: 0, or 1, 2 or 3). */
static inline dml__flash_kernel dml__flash_kernel_of(int type, bool wide, int which)
{
#define DML__FLASH_KERNELS(type, kept, ...)                                                                  \
    {                                                                                                        \
        dml__flash_forward<type, __VA_ARGS__, kept>, dml__flash_backward<type, 0, __VA_ARGS__>,              \
            dml__flash_backward<type, 1, __VA_ARGS__>, dml__flash_backward<type, 2, __VA_ARGS__>             \
    }
    static const dml__flash_kernel kernels[2][2][4] = {
        { DML__FLASH_KERNELS(DML__TENSOR_BF16, false, 64, 2, 4),
          DML__FLASH_KERNELS(DML__TENSOR_BF16, true, 128, 1, 8) },
        { DML__FLASH_KERNELS(DML__TENSOR_F16, false, 64, 2, 4),
          DML__FLASH_KERNELS(DML__TENSOR_F16, true, 128, 1, 8) }
    };
#undef DML__FLASH_KERNELS
    return kernels[type == DML__TENSOR_F16][wide][which];
}

/* Whether `count` numbers may be read or written at once, at every row's beginning. */
static inline bool dml__flash_even(const char *buffer, int64_t offset, int step, int count)
{
    return ((uintptr_t)buffer + (uintptr_t)offset) % ((uintptr_t)count * sizeof(float)) == 0 &&
           step % count == 0;
}

/* The launch that does what the shared kernel does with these arguments; cudaErrorNotSupported: none does, as
   of TF32. It queues nothing, but tells the current device of the kernel's shared memory. */
static inline cudaError_t dml__tensor_attention_plan(int type, bool backward, char *const buffers[6],
                                                     const dml__kernel_arguments *arguments,
                                                     dml__flash_launch *launch)
{
    const int32_t *n = arguments->integer;
    const int part = backward ? n[12] : -1, width = n[5];
    const int rows = part > 0 ? n[2] : n[1], step[] = { n[6], n[7], n[8] };
    const int64_t lines = (int64_t)n[0] * (part > 0 ? n[4] : n[3]), most = 65535; /* of a grid's y and z */
    if (width <= 0 || width % 8 || width > 128 || n[1] <= 0 || n[2] <= 0 || lines <= 0 ||
        n[1] > INT32_MAX / 2 || n[2] > INT32_MAX / 2 || lines > INT32_MAX)
        return cudaErrorNotSupported;
    for (int i = 0; i < 6; i++) {
        const int of_row = i < 3 ? step[i] : i == 5 && backward ? step[part] : 4;
        if (i != 3 && (i != 5 || backward) &&
            !dml__flash_even(buffers[i], arguments->offset[i], of_row,
                             i == 5 || (i == 4 && !backward) ? 2 : 4))
            return cudaErrorNotSupported;
    }
    const bool wide = width > 64;
    const int64_t layers = (lines + most - 1) / most;
    launch->kernel = dml__flash_kernel_of(type, wide, part + 1);
    if (!dml__tensor_has_body(launch->kernel)) return cudaErrorNotSupported;
    launch->block = wide ? 256 : 128; /* both of 128 rows */
    launch->grid =
        dim3((unsigned)(rows + 127) / 128, (unsigned)((lines + layers - 1) / layers), (unsigned)layers);
    launch->shared = dml__flash_bytes(wide ? 128 : 64, 128);
    return cudaFuncSetAttribute(launch->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)launch->shared);
}

/* Queues it. */
static inline cudaError_t dml__tensor_attention(cudaStream_t stream, int type, bool backward,
                                                char *const buffers[6],
                                                const dml__kernel_arguments *arguments)
{
    dml__flash_launch launch;
    char *own[6];
    dml__kernel_arguments numbers = *arguments;
    void *all[7];
    const cudaError_t error = dml__tensor_attention_plan(type, backward, buffers, arguments, &launch);
    if (error != cudaSuccess) return error;
    for (int i = 0; i < 6; i++) own[i] = buffers[i], all[i] = &own[i];
    all[6] = &numbers;
    return cudaLaunchKernel(launch.kernel, launch.grid, dim3(launch.block), all, launch.shared, stream);
}

#endif

/* ---- gpu/tensor_conv2d.cuh ---- */

/* tensor_conv2d.cuh: convolutions of rounded factors on tensor cores: conv2d_forward, conv2d_backward_input
   and conv2d_backward_weights of gpu/conv2d.cl, with the same arguments, as products of matrices
   (gpu/tensor.cuh) of which one is gathered from images while it is copied. Where there are many pixels that
   is done in pieces of DML__TENSOR_PATCHES bytes, so that a copy is multiplied while it is in the card's
   cache. */
#ifndef DML_GPU_TENSOR_CONV2D_CUH
#define DML_GPU_TENSOR_CONV2D_CUH

/* ---- gpu/tensor.cuh ---- */

/* tensor.cuh: matrix products on tensor cores: factors rounded to bf16, f16 or TF32, sums, and C, in f32.

   The factors, which are f32 and lie anyhow, are first copied, rounded, into a workspace
   (gpu/tensor_pack.cuh); then cuBLASLt multiplies the copies, or the kernels of gpu/tensor_wgmma.cuh or
   gpu/tensor_mma.cuh do. Everything is queued in one stream, whose order the workspace relies on. */
#ifndef DML_GPU_TENSOR_H
#define DML_GPU_TENSOR_H

/* ---- gpu/tensor_lt.cuh ---- */

/* tensor_lt.cuh: products of rounded factors by cuBLASLt, where the machine has it. It is opened when it is
   wanted, never linked, and nothing of its headers is needed: what is declared here is part of its interface
   since CUDA 11. */
#ifndef DML_GPU_TENSOR_LT_H
#define DML_GPU_TENSOR_LT_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { /* of cublas_api.h, library_types.h and cublasLt.h */
       DML__LT_COMPUTE_32F = 68,
       DML__LT_COMPUTE_32F_FAST_TF32 = 77,
       DML__LT_R_32F = 0,
       DML__LT_R_16F = 2,
       DML__LT_R_16BF = 14,
       DML__LT_OP_T = 1,
       DML__LT_DESC_TRANSA = 3,
       DML__LT_DESC_EPILOGUE = 7, /* uint32_t */
       DML__LT_DESC_BIAS = 8,     /* a pointer */
       DML__LT_EPILOGUE_BIAS = 4,
       DML__LT_PREFERENCE_WORKSPACE = 1,   /* uint64_t */
       DML__LT_PREFERENCE_ALIGNMENT_A = 5, /* uint32_t, bytes */
       DML__LT_PREFERENCE_ALIGNMENT_B = 6,
       DML__LT_PREFERENCE_ALIGNMENT_C = 7,
       DML__LT_PREFERENCE_ALIGNMENT_D = 8
};
enum { DML__LT_WORKSPACE = 32 << 20 /* bytes */, DML__LT_PLANS = 64 };

typedef struct dml__lt_algorithm {
    uint64_t data[8];
} dml__lt_algorithm;

typedef struct dml__lt_found {
    dml__lt_algorithm algorithm;
    size_t workspace;
    int state; /* 0: it can be used */
    float waves;
    int reserved[4];
} dml__lt_found;

/* The functions: name, arguments; each gives 0 where all is well. */
#define DML__LT_FUNCTIONS(ROW)                                                                               \
    ROW(cublasLtCreate, (void **handle))                                                                     \
    ROW(cublasLtDestroy, (void *handle))                                                                     \
    ROW(cublasLtMatmulDescCreate, (void **desc, int compute, int scale))                                     \
    ROW(cublasLtMatmulDescDestroy, (void *desc))                                                             \
    ROW(cublasLtMatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t size))         \
    ROW(cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))  \
    ROW(cublasLtMatrixLayoutDestroy, (void *layout))                                                         \
    ROW(cublasLtMatmulPreferenceCreate, (void **preference))                                                 \
    ROW(cublasLtMatmulPreferenceDestroy, (void *preference))                                                 \
    ROW(cublasLtMatmulPreferenceSetAttribute,                                                                \
        (void *preference, int attribute, const void *value, size_t size))                                   \
    ROW(cublasLtMatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d,       \
                                         void *preference, int wanted, dml__lt_found *found, int *count))    \
    ROW(cublasLtMatmul,                                                                                      \
        (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,          \
         void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,           \
         const dml__lt_algorithm *algorithm, void *workspace, size_t workspace_size, cudaStream_t stream))

/* What a product's size and C's place lead to. */
typedef struct dml__lt_plan {
    int type, m, n, words, ldc; /* the key; type 0: none is here */
    int aligned, bias;          /* also the key: of how many bytes C's and the bias' places are multiples */
    void *desc, *a, *b, *c;
    bool refused; /* there is no algorithm */
    dml__lt_algorithm algorithm;
} dml__lt_plan;

typedef struct dml__lt {
    void *library, *handle; /* handle NULL: there is none */
#define DML__LT_MEMBER(function, arguments) int(*function) arguments;
    DML__LT_FUNCTIONS(DML__LT_MEMBER)
#undef DML__LT_MEMBER
    int next; /* the plan that gives way */
    dml__lt_plan plan[DML__LT_PLANS];
} dml__lt;

static inline void dml__lt_forget(dml__lt *lt, dml__lt_plan *plan)
{
    if (plan->desc) (void)lt->cublasLtMatmulDescDestroy(plan->desc);
    if (plan->a) (void)lt->cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b) (void)lt->cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c) (void)lt->cublasLtMatrixLayoutDestroy(plan->c);
    memset(plan, 0, sizeof *plan);
}

/* The library stays open: other devices may use it, and it can't be unloaded under the driver's threads. */
static inline void dml__lt_close(dml__lt *lt)
{
    for (int i = 0; i < DML__LT_PLANS && lt->handle; i++) dml__lt_forget(lt, &lt->plan[i]);
    if (lt->handle) (void)lt->cublasLtDestroy(lt->handle);
    lt->handle = NULL;
}

/* For the current device. Without the library, or with one that is too new for the driver, there is no
   handle; DML_CUBLAS=0 in the environment leaves it out. */
static inline void dml__lt_open(dml__lt *lt)
{
    static const char *const names[] = {
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "libcublasLt.so.11",
        "libcublasLt.so",
        "/usr/local/cuda/lib64/libcublasLt.so",
    };
    const char *asked = getenv("DML_CUBLAS");
    memset(lt, 0, sizeof *lt);
    if (asked && strcmp(asked, "0") == 0) return;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lt->handle; i++) {
        void *address;
        lt->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!lt->library) continue;
        bool all = true;
#define DML__LT_FIND(function, arguments)                                                                    \
    address = dlsym(lt->library, #function);                                                                 \
    all = all && address != NULL;                                                                            \
    memcpy(&lt->function, &address, sizeof address);
        DML__LT_FUNCTIONS(DML__LT_FIND)
#undef DML__LT_FIND
        if (!all || lt->cublasLtCreate(&lt->handle) != 0) lt->handle = NULL;
    }
    (void)cudaGetLastError();
}

static inline bool dml__lt_set_bias(dml__lt *lt, dml__lt_plan *plan, const float *bias)
{
    return !bias ||
           lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_BIAS, &bias, sizeof bias) == 0;
}

/* Row-major C = A B^T is, by columns, C^T = B A^T: its first factor is B's copy, whose columns are its rows
   here, transposed, its second A's. Its rows are our columns, and the bias has one number for each. */
static inline bool dml__lt_make(dml__lt *lt, dml__lt_plan *plan, const float *bias)
{
    const bool tf32 = plan->type == DML__TENSOR_TF32;
    const int type = tf32 ? DML__LT_R_32F : plan->type == DML__TENSOR_F16 ? DML__LT_R_16F : DML__LT_R_16BF;
    const int compute = tf32 ? DML__LT_COMPUTE_32F_FAST_TF32 : DML__LT_COMPUTE_32F;
    const int32_t transposed = DML__LT_OP_T;
    const uint32_t aligned = (uint32_t)plan->aligned, packed = 256, epilogue = DML__LT_EPILOGUE_BIAS;
    const uint64_t workspace = DML__LT_WORKSPACE;
    const uint64_t m = (uint64_t)plan->m, n = (uint64_t)plan->n;
    const int k = plan->words / dml__tensor_words_of(plan->type);
    void *preference = NULL;
    dml__lt_found found;
    int count = 0;
    memset(&found, 0, sizeof found);
    bool ok = lt->cublasLtMatmulDescCreate(&plan->desc, compute, DML__LT_R_32F) == 0 &&
              lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_TRANSA, &transposed,
                                                 sizeof transposed) == 0 &&
              (!bias || lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_EPILOGUE, &epilogue,
                                                           sizeof epilogue) == 0) &&
              dml__lt_set_bias(lt, plan, bias) &&
              lt->cublasLtMatrixLayoutCreate(&plan->a, type, (uint64_t)k, n, k) == 0 &&
              lt->cublasLtMatrixLayoutCreate(&plan->b, type, (uint64_t)k, m, k) == 0 &&
              lt->cublasLtMatrixLayoutCreate(&plan->c, DML__LT_R_32F, n, m, plan->ldc) == 0 &&
              lt->cublasLtMatmulPreferenceCreate(&preference) == 0;
#define DML__LT_PREFER(attribute, value)                                                                     \
    ok = ok && lt->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &(value), sizeof(value)) == 0
    DML__LT_PREFER(DML__LT_PREFERENCE_WORKSPACE, workspace);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_A, packed);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_B, packed);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_C, aligned);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_D, aligned);
#undef DML__LT_PREFER
    ok = ok &&
         lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, plan->desc, plan->a, plan->b, plan->c, plan->c,
                                            preference, 1, &found, &count) == 0 &&
         count == 1 && found.state == 0;
    if (preference) (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    plan->algorithm = found.algorithm;
    plan->refused = !ok;
    return ok;
}

/* The largest power of two up to `most` that the address is a multiple of; 0 of none. */
static inline int dml__lt_aligned(const void *address, int most)
{
    while ((uintptr_t)address % (unsigned)most) most /= 2;
    return address ? most : 0;
}

static inline dml__lt_plan *dml__lt_plan_of(dml__lt *lt, const dml__tensor_product *p)
{
    const int aligned = dml__lt_aligned(p->out.c, 256), bias = dml__lt_aligned(p->out.bias, 16);
    for (int i = 0; i < DML__LT_PLANS; i++) {
        dml__lt_plan *plan = &lt->plan[i];
        if (plan->type == p->type && plan->m == p->m && plan->n == p->n && plan->words == p->words &&
            plan->ldc == p->out.ldc && plan->aligned == aligned && plan->bias == bias)
            return plan;
    }
    dml__lt_plan *plan = &lt->plan[lt->next];
    lt->next = (lt->next + 1) % DML__LT_PLANS;
    dml__lt_forget(lt, plan);
    plan->type = p->type, plan->m = p->m, plan->n = p->n, plan->words = p->words;
    plan->ldc = p->out.ldc, plan->aligned = aligned, plan->bias = bias;
    (void)dml__lt_make(lt, plan, p->out.bias);
    return plan;
}

/* `workspace`: DML__LT_WORKSPACE bytes of the device, for this stream. cudaErrorNotSupported: it has no way
   for this product, and nothing was queued. It has none for a relu: its own is said to be max(x, 0), which
   may lose a NaN. */
static inline cudaError_t dml__lt_run(dml__lt *lt, cudaStream_t stream, void *workspace,
                                      const dml__tensor_product *p)
{
    if (!lt->handle || p->out.relu) return cudaErrorNotSupported;
    dml__lt_plan *plan = dml__lt_plan_of(lt, p);
    if (plan->refused || !dml__lt_set_bias(lt, plan, p->out.bias)) return cudaErrorNotSupported;
    const int status = lt->cublasLtMatmul(lt->handle, plan->desc, &p->out.alpha, p->b, plan->a, p->a, plan->b,
                                          &p->out.beta, p->out.c, plan->c, p->out.c, plan->c,
                                          &plan->algorithm, workspace, DML__LT_WORKSPACE, stream);
    if (status == 0) return cudaSuccess;
    const cudaError_t error = cudaGetLastError(); /* of a device that is lost, perhaps */
    plan->refused = error == cudaSuccess;
    return error == cudaSuccess ? cudaErrorNotSupported : error;
}

#endif

/* ---- gpu/tensor_wgmma.cuh ---- */

/* tensor_wgmma.cuh: products of rounded factors by Hopper's warpgroup instructions (PTX ISA, "Asynchronous
   Warpgroup Level Matrix Instructions"), for sm_90a alone.

   A group is a producer and two consumers, of four warps each. One thread of the producer has the copy engine
   bring tiles of A (128 rows, 64 words) and of B (`columns` rows, 64 words) into a ring of stages; a consumer
   multiplies 64 of the rows of A by all of B's and keeps the (64, columns) sums in its registers, of which
   the producer gives it its own. Each stage has two barriers: `full`, which the engine completes when all
   bytes are there, and `empty`, where each consumer warp says that it has read them. Groups stay and take one
   tile of C after the other, so that the next tile's first stages are on their way while C is written.

   Where `cluster` is 2, two groups on neighbouring processors take tiles below each other: each loads its own
   A and half of their B, which the engine writes into the shared memory of both. A stage is empty then when
   the consumers of both groups have read it. */
#ifndef DML_GPU_TENSOR_WGMMA_CUH
#define DML_GPU_TENSOR_WGMMA_CUH

#if CUDART_VERSION >= 12000 && defined(__CUDACC__)
#define DML__WGMMA_INCLUDED
#include <cuda.h> /* types alone: nothing of the driver is linked */

enum {
    DML__WGMMA_ITEMS = 384,                      /* the producer and two consumers */
    DML__WGMMA_ROWS = 128,                       /* of a tile */
    DML__WGMMA_WORDS = 64,                       /* 128 bytes, the widest swizzle */
    DML__WGMMA_MEMORY = 196608,                  /* bytes of all stages together */
    DML__WGMMA_SHARED = DML__WGMMA_MEMORY + 1024 /* what a swizzle is aligned to */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Waits until the barrier's phase of this parity has ended. A fresh barrier's phase "before" has. Where
   DML__TENSOR_SPIN is defined, waiting for more clocks than that is an error of the kernel. */
static __device__ __forceinline__ uint32_t dml__wgmma_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

static __device__ __forceinline__ void dml__wgmma_wait(uint32_t barrier, uint32_t parity)
{
#ifdef DML__TENSOR_SPIN
    if (dml__wgmma_try(barrier, parity)) return;
    const long long begin = clock64();
    while (!dml__wgmma_try(barrier, parity))
        if (clock64() - begin > (long long)(DML__TENSOR_SPIN)) __trap();
#else
    while (!dml__wgmma_try(barrier, parity)) {
    }
#endif
}

static __device__ __forceinline__ void dml__wgmma_barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* The producer's arrival, and how many bytes are to come in this phase. */
static __device__ __forceinline__ void dml__wgmma_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Arrives at the barrier at this place in a group of the cluster. What is read was read by the tensor cores,
   for which has been waited, so nothing has to be fenced for the cluster: that would take long. */
static __device__ __forceinline__ void dml__wgmma_arrive(uint32_t barrier, int group)
{
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
                 "r"(group)
                 : "memory");
}

/* A box of the map, from word `word` of row `row` on, into shared memory of this group, or of both. */
static __device__ __forceinline__ void dml__wgmma_load(uint32_t to, const CUtensorMap *map, int word, int row,
                                                       uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(word), "r"(row), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void dml__wgmma_load_both(uint32_t to, const CUtensorMap *map, int word,
                                                            int row, uint32_t barrier)
{
    const uint16_t groups = 3;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(word), "r"(row), "r"(barrier), "h"(groups)
                 : "memory");
}

static __device__ __forceinline__ void dml__wgmma_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* A tile in shared memory, rows of 128 swizzled bytes: its address in units of 16 bytes, 1024 bytes from each
   8 rows to the next, the 128-byte swizzle; 16 words further are 2 units on. */
static __device__ __forceinline__ uint64_t dml__wgmma_tile(uint32_t address)
{
    return (uint64_t)((address & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define DML__WGMMA_8(d, i)                                                                                   \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),  \
        "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define DML__WGMMA_32(d, i)                                                                                  \
    DML__WGMMA_8(d, i), DML__WGMMA_8(d, i + 8), DML__WGMMA_8(d, i + 16), DML__WGMMA_8(d, i + 24)

#define DML__WGMMA_128_COLUMNS(k, types, order)                                                              \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n128" k ".f32." types " {"                                 \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "          \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "          \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"            \
                 "}, %64, %65, adds, 1, 1" order ";\n}\n"                                                    \
                 : DML__WGMMA_32(d, 0), DML__WGMMA_32(d, 32)                                                 \
                 : "l"(a), "l"(b), "r"(adds))
#define DML__WGMMA_256_COLUMNS(k, types, order)                                                              \
    asm volatile(                                                                                            \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                                  \
        "wgmma.mma_async.sync.aligned.m64n256" k ".f32." types " {"                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                   \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                   \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                   \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "       \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"     \
        "}, %128, %129, adds, 1, 1" order ";\n}\n"                                                           \
        : DML__WGMMA_32(d, 0), DML__WGMMA_32(d, 32), DML__WGMMA_32(d, 64), DML__WGMMA_32(d, 96)              \
        : "l"(a), "l"(b), "r"(adds))

/* d (64, columns) = a b^T, added to d where `adds` isn't 0, of 16 words of k. Only factors of 16 bits may lie
   the other way round (`order`). */
template <int type>
static __device__ __forceinline__ void dml__wgmma_multiply(float (&d)[64], uint64_t a, uint64_t b, int adds)
{
    if (type == DML__TENSOR_BF16)
        DML__WGMMA_128_COLUMNS("k16", "bf16.bf16", ", 0, 0");
    else if (type == DML__TENSOR_F16)
        DML__WGMMA_128_COLUMNS("k16", "f16.f16", ", 0, 0");
    else
        DML__WGMMA_128_COLUMNS("k8", "tf32.tf32", "");
}

template <int type>
static __device__ __forceinline__ void dml__wgmma_multiply(float (&d)[128], uint64_t a, uint64_t b, int adds)
{
    if (type == DML__TENSOR_BF16)
        DML__WGMMA_256_COLUMNS("k16", "bf16.bf16", ", 0, 0");
    else if (type == DML__TENSOR_F16)
        DML__WGMMA_256_COLUMNS("k16", "f16.f16", ", 0, 0");
    else
        DML__WGMMA_256_COLUMNS("k8", "tf32.tf32", "");
}

template <int count> static __device__ __forceinline__ void dml__wgmma_keep(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#endif

/* (Compilers refuse the word for cards before compute capability 7.0, for which the kernel is empty.) */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
#define DML__GRID_CONSTANT __grid_constant__
#else
#define DML__GRID_CONSTANT
#endif

/* Tiles of C in the order that the groups of a cluster take them: `cluster` below each other each time. */
template <int type, int columns, int cluster>
static __global__ void __launch_bounds__(DML__WGMMA_ITEMS, 1)
    dml__tensor_wgmma_kernel(const DML__GRID_CONSTANT CUtensorMap a_map,
                             const DML__GRID_CONSTANT CUtensorMap b_map, const dml__tensor_product p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    enum {
        A_BYTES = DML__WGMMA_ROWS * DML__WGMMA_WORDS * 2,
        B_BYTES = columns * DML__WGMMA_WORDS * 2,
        BYTES = A_BYTES + B_BYTES,
        STAGES = DML__WGMMA_MEMORY / BYTES,
        BAND = 16 / cluster
    };
    extern __shared__ char dml__wgmma_memory[];
    static __shared__ uint64_t full_barriers[STAGES], empty_barriers[STAGES];
    const uint32_t stages = (dml__tensor_shared(dml__wgmma_memory) + 1023u) & ~1023u;
    const uint32_t full = dml__tensor_shared(full_barriers), empty = dml__tensor_shared(empty_barriers);
    const int team = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0), lane = (int)threadIdx.x % 32;
    const int rank = cluster > 1 ? (int)blockIdx.x % cluster : 0;
    const int rows = (p.m + DML__WGMMA_ROWS * cluster - 1) / (DML__WGMMA_ROWS * cluster);
    const int across = (p.n + columns - 1) / columns, steps = p.words / DML__WGMMA_WORDS;
    const int tiles = rows * across, clusters = (int)gridDim.x / cluster;
    int stage = 0;
    uint32_t phase = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dml__wgmma_barrier_init(full + 8 * i, 1);
            dml__wgmma_barrier_init(empty + 8 * i, 8 * cluster);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (cluster > 1) dml__wgmma_cluster_sync();
    if (team == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int tile = (int)blockIdx.x / cluster; tile < tiles; tile += clusters) {
                const dml__tensor_place place = dml__tensor_place_of(tile, rows, across, BAND);
                const int row = (place.row * cluster + rank) * DML__WGMMA_ROWS;
                const int column = place.column * columns + rank * (columns / cluster);
                for (int step = 0; step < steps; step++) {
                    const uint32_t to = stages + (uint32_t)(stage * BYTES),
                                   ready = full + 8u * (uint32_t)stage;
                    dml__wgmma_wait(empty + 8u * (uint32_t)stage, phase ^ 1u);
                    dml__wgmma_expect(ready, BYTES);
                    dml__wgmma_load(to, &a_map, step * DML__WGMMA_WORDS, row, ready);
                    if (cluster > 1)
                        dml__wgmma_load_both(to + A_BYTES + (uint32_t)(rank * (B_BYTES / cluster)), &b_map,
                                             step * DML__WGMMA_WORDS, column, ready);
                    else
                        dml__wgmma_load(to + A_BYTES, &b_map, step * DML__WGMMA_WORDS, column, ready);
                    if (++stage == STAGES) stage = 0, phase ^= 1u;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int top = (team - 1) * 64; /* this consumer's first row of the tile */
        float sum[columns / 2];
#pragma unroll
        for (int i = 0; i < columns / 2; i++) sum[i] = 0.0f;
        for (int tile = (int)blockIdx.x / cluster; tile < tiles; tile += clusters) {
            const dml__tensor_place place = dml__tensor_place_of(tile, rows, across, BAND);
            int before = 0; /* the stage that the products under way still read */
            for (int step = 0; step < steps; step++) {
                const uint32_t at = stages + (uint32_t)(stage * BYTES);
                const uint64_t a = dml__wgmma_tile(at + (uint32_t)(top * DML__WGMMA_WORDS * 2));
                const uint64_t b = dml__wgmma_tile(at + A_BYTES);
                dml__wgmma_wait(full + 8u * (uint32_t)stage, phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                dml__wgmma_multiply<type>(sum, a, b, step);
                dml__wgmma_multiply<type>(sum, a + 2, b + 2, 1);
                dml__wgmma_multiply<type>(sum, a + 4, b + 4, 1);
                dml__wgmma_multiply<type>(sum, a + 6, b + 6, 1);
                asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::
                                 : "memory");
                if (step > 0 && lane < cluster) dml__wgmma_arrive(empty + 8u * (uint32_t)before, lane);
                before = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1u;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < cluster) dml__wgmma_arrive(empty + 8u * (uint32_t)before, lane);
            dml__wgmma_keep(sum);
            const int row = (place.row * cluster + rank) * DML__WGMMA_ROWS + top +
                            (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
            const int column = place.column * columns + 2 * (lane % 4);
            dml__tensor_put<columns / 8>(sum, 0, row, column, p);
            dml__tensor_put<columns / 8>(sum, 1, row + 8, column, p);
        }
    }
    if (cluster > 1) dml__wgmma_cluster_sync(); /* the other may still write here, or arrive */
#else
    (void)a_map, (void)b_map, (void)p;
#endif
}

/* ---- on the host ---- */

/* The tiles there are: columns, and groups in a cluster. */
enum { DML__WGMMA_SHAPES = 4 };
typedef struct dml__wgmma_shape {
    int columns, cluster;
} dml__wgmma_shape;

static inline dml__wgmma_shape dml__wgmma_shape_of(int shape)
{
    static const dml__wgmma_shape shapes[DML__WGMMA_SHAPES] = {
        { 256, 2 }, { 256, 1 }, { 128, 2 }, { 128, 1 }
    };
    return shapes[shape];
}

typedef void (*dml__wgmma_kernel)(const CUtensorMap a_map, const CUtensorMap b_map,
                                  const dml__tensor_product p);

static inline dml__wgmma_kernel dml__wgmma_kernel_of(int type, int shape)
{
#define DML__WGMMA_KERNELS(type)                                                                             \
    {                                                                                                        \
        dml__tensor_wgmma_kernel<type, 256, 2>, dml__tensor_wgmma_kernel<type, 256, 1>,                      \
            dml__tensor_wgmma_kernel<type, 128, 2>, dml__tensor_wgmma_kernel<type, 128, 1>                   \
    }
    static const dml__wgmma_kernel kernels[3][DML__WGMMA_SHAPES] = { DML__WGMMA_KERNELS(DML__TENSOR_BF16),
                                                                     DML__WGMMA_KERNELS(DML__TENSOR_F16),
                                                                     DML__WGMMA_KERNELS(DML__TENSOR_TF32) };
#undef DML__WGMMA_KERNELS
    return kernels[type - DML__TENSOR_BF16][shape];
}

typedef CUresult(CUDAAPI *dml__wgmma_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                             const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                             const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

typedef struct dml__wgmma {
    dml__wgmma_encode encode; /* NULL: there is no such way here */
    int units;                /* processors of the card */
} dml__wgmma;

/* For the current device. */
static inline void dml__wgmma_open(dml__wgmma *wgmma, int major, int minor, int units)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    wgmma->encode = NULL, wgmma->units = units;
    if (major != 9 || minor != 0) return;
    for (int type = DML__TENSOR_BF16; type <= DML__TENSOR_TF32; type++)
        for (int shape = 0; shape < DML__WGMMA_SHAPES; shape++) {
            const dml__wgmma_kernel kernel = dml__wgmma_kernel_of(type, shape);
            if (!dml__tensor_has_body(kernel)) return;
            if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     DML__WGMMA_SHARED) != cudaSuccess) {
                (void)cudaGetLastError();
                return;
            }
        }
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) (void)cudaGetLastError();
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess)
        wgmma->encode = (dml__wgmma_encode)entry;
}

/* Of a packed factor (rows padded, words), in boxes of `box` rows of 64 words: what they mean, only the
   instruction says. */
static inline cudaError_t dml__wgmma_map(const dml__wgmma *wgmma, CUtensorMap *map, const uint16_t *factor,
                                         int rows, int words, int box)
{
    const cuuint64_t sizes[2] = { (cuuint64_t)words, (cuuint64_t)dml__tensor_padded(rows, DML__TENSOR_ROWS) };
    const cuuint64_t strides[1] = { (cuuint64_t)words * sizeof *factor };
    const cuuint32_t boxes[2] = { DML__WGMMA_WORDS, (cuuint32_t)box }, ones[2] = { 1, 1 };
    const CUresult result =
        wgmma->encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)factor, sizes, strides, boxes, ones,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The shape that is thought to take the least time: rounds of tiles, each as long as it has columns, of which
   narrow ones take more for each, and tiles of a cluster that have no rows are paid for too. */
static inline int dml__wgmma_choose(const dml__wgmma *wgmma, int m, int n)
{
    int best = 0;
    double least = 0;
    for (int shape = 0; shape < DML__WGMMA_SHAPES; shape++) {
        const dml__wgmma_shape s = dml__wgmma_shape_of(shape);
        const double rows = (double)(((int64_t)m + 128 * s.cluster - 1) / (128 * s.cluster));
        const double tiles = rows * (double)(((int64_t)n + s.columns - 1) / s.columns);
        const double at_once = (double)(wgmma->units / s.cluster);
        const double rounds = (double)(int64_t)((tiles + at_once - 1) / at_once);
        const double took = rounds * (s.columns == 256 ? 1.0 : 0.6) * (s.cluster == 2 ? 1.0 : 1.05);
        if (shape == 0 || took < least) best = shape, least = took;
    }
    return best;
}

static inline cudaError_t dml__wgmma_run(const dml__wgmma *wgmma, cudaStream_t stream, int shape,
                                         const dml__tensor_product *product)
{
    const dml__wgmma_shape s = dml__wgmma_shape_of(shape);
    CUtensorMap a_map, b_map;
    dml__tensor_product p = *product;
    if (!wgmma->encode) return cudaErrorNotSupported;
    const int64_t tiles = (((int64_t)p.m + DML__WGMMA_ROWS * s.cluster - 1) / (DML__WGMMA_ROWS * s.cluster)) *
                          (((int64_t)p.n + s.columns - 1) / s.columns);
    if (tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
    cudaError_t error = dml__wgmma_map(wgmma, &a_map, p.a, p.m, p.words, DML__WGMMA_ROWS);
    if (error == cudaSuccess) error = dml__wgmma_map(wgmma, &b_map, p.b, p.n, p.words, s.columns / s.cluster);
    if (error != cudaSuccess) return error;
    const int64_t at_once = wgmma->units / s.cluster > 0 ? wgmma->units / s.cluster : 1;
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((tiles < at_once ? tiles : at_once) * s.cluster));
    config.blockDim = dim3(DML__WGMMA_ITEMS);
    config.dynamicSmemBytes = DML__WGMMA_SHARED;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)s.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = s.cluster > 1 ? 1 : 0;
    void *arguments[] = { &a_map, &b_map, &p };
    return cudaLaunchKernelExC(&config, (const void *)dml__wgmma_kernel_of(p.type, shape), arguments);
}

#endif
#endif

typedef enum dml__tensor_way {
    DML__TENSOR_ANY, /* the first of these that there is */
    DML__TENSOR_LT,
    DML__TENSOR_WGMMA, /* of the shape that dml__wgmma_choose chooses */
    DML__TENSOR_MMA,
    DML__TENSOR_WGMMA_SHAPE /* and on: shape 0, 1, ... of dml__wgmma_shape_of */
} dml__tensor_way;

typedef struct dml__tensor {
    int way;      /* a dml__tensor_way that is forced, for tests and benchmarks; else DML__TENSOR_ANY */
    bool has_mma; /* the least there is: without it there is no packing either */
    bool no_tf32; /* the environment forbids it, as it does NVIDIA's libraries */
#ifdef DML__WGMMA_INCLUDED
    dml__wgmma wgmma;
#endif
    dml__lt lt;
    void *workspace; /* of `bytes`: the copies of A and B */
    size_t bytes;
    void *lt_workspace; /* DML__LT_WORKSPACE bytes, from the first use on */
} dml__tensor;

/* Finds out what the current device can do; it doesn't fail, but there may be nothing. All zero is a closed
   one. */
static inline void dml__tensor_open(dml__tensor *tensor)
{
    int device = 0, major = 0, minor = 0, units = 0;
    memset(tensor, 0, sizeof *tensor);
    const bool known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    if (!known) {
        (void)cudaGetLastError();
        return;
    }
    tensor->has_mma = dml__mma_has(major);
    if (!tensor->has_mma) return;
#ifdef DML__WGMMA_INCLUDED
    dml__wgmma_open(&tensor->wgmma, major, minor, units);
#else
    (void)minor;
#endif
    const char *tf32 = getenv("NVIDIA_TF32_OVERRIDE");
    tensor->no_tf32 = tf32 && strcmp(tf32, "0") == 0;
    dml__lt_open(&tensor->lt);
}

/* After the stream has finished, the device being current. */
static inline void dml__tensor_close(dml__tensor *tensor)
{
    dml__lt_close(&tensor->lt);
    if (tensor->workspace) (void)cudaFree(tensor->workspace);
    if (tensor->lt_workspace) (void)cudaFree(tensor->lt_workspace);
    (void)cudaGetLastError();
    memset(tensor, 0, sizeof *tensor);
}

/* Makes the workspace large enough for copies, and cuBLASLt's, where it is wanted: what was queued is waited
   for when it grows. */
static inline cudaError_t dml__tensor_reserve(dml__tensor *tensor, cudaStream_t stream, size_t bytes)
{
    const size_t piece = (size_t)1 << 21;
    if (tensor->lt.handle && !tensor->lt_workspace) {
        const cudaError_t error = cudaMalloc(&tensor->lt_workspace, DML__LT_WORKSPACE);
        if (error != cudaSuccess) {
            tensor->lt_workspace = NULL;
            return error;
        }
    }
    if (bytes <= tensor->bytes) return cudaSuccess;
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) return error;
    if (tensor->workspace) (void)cudaFree(tensor->workspace);
    tensor->workspace = NULL, tensor->bytes = 0;
    const size_t whole = (bytes + piece - 1) / piece * piece;
    error = cudaMalloc(&tensor->workspace, whole);
    if (error == cudaSuccess)
        tensor->bytes = whole;
    else
        tensor->workspace = NULL;
    return error;
}

/* By the way that is wanted, or the first that there is, of copies that are made. */
static inline cudaError_t dml__tensor_multiply(dml__tensor *tensor, cudaStream_t stream,
                                               const dml__tensor_product *p)
{
    const int way = tensor->way;
    cudaError_t error = cudaErrorNotSupported;
    if (way == DML__TENSOR_ANY || way == DML__TENSOR_LT)
        error = dml__lt_run(&tensor->lt, stream, tensor->lt_workspace, p);
#ifdef DML__WGMMA_INCLUDED
    if ((error == cudaErrorNotSupported && way == DML__TENSOR_ANY) || way == DML__TENSOR_WGMMA)
        error = dml__wgmma_run(&tensor->wgmma, stream, dml__wgmma_choose(&tensor->wgmma, p->m, p->n), p);
    if (way >= DML__TENSOR_WGMMA_SHAPE && way < DML__TENSOR_WGMMA_SHAPE + DML__WGMMA_SHAPES)
        error = dml__wgmma_run(&tensor->wgmma, stream, way - DML__TENSOR_WGMMA_SHAPE, p);
#endif
    if ((error == cudaErrorNotSupported && way == DML__TENSOR_ANY) || way == DML__TENSOR_MMA)
        error = dml__mma_run(stream, p);
    return error;
}

/* Whether products of k such factors can be made here. */
static inline bool dml__tensor_can(const dml__tensor *tensor, int type, int k)
{
    return tensor->has_mma && k <= DML__TENSOR_MOST_K && !(type == DML__TENSOR_TF32 && tensor->no_tf32);
}

/* Of copies of A (m, k) and B (n, k). */
static inline dml__tensor_product dml__tensor_product_of(const dml__tensor_copy &a, const dml__tensor_copy &b,
                                                         const dml__tensor_out &out)
{
    dml__tensor_product p;
    p.type = a.type, p.m = a.rows, p.n = b.rows, p.words = dml__tensor_words(a.type, a.k);
    p.a = a.to, p.b = b.to, p.out = out;
    p.pairs = (uintptr_t)out.c % 8 == 0 && out.ldc % 2 == 0 && (uintptr_t)out.bias % 8 == 0;
    return p;
}

/* out.c (m, n) = alpha op(A) op(B) + beta out.c and what else is done to it, row-major, with ld floats from
   each row to the next: op(A) is (m, k), op(B) (k, n), and what is transposed lies the other way round. type:
   DML__TENSOR_BF16, DML__TENSOR_F16 or DML__TENSOR_TF32. cudaErrorNotSupported: there is no way here, and
   nothing was queued that matters. */
static inline cudaError_t dml__tensor_gemm(dml__tensor *tensor, cudaStream_t stream, int type, int m, int n,
                                           int k, bool trans_a, bool trans_b, const float *a, int lda,
                                           const float *b, int ldb, const dml__tensor_out &out)
{
    if (!dml__tensor_can(tensor, type, k)) return cudaErrorNotSupported;
    if (m <= 0 || n <= 0) return cudaSuccess;
    const size_t a_bytes = dml__tensor_copy_bytes(type, m, k);
    cudaError_t error = dml__tensor_reserve(tensor, stream, a_bytes + dml__tensor_copy_bytes(type, n, k));
    if (error != cudaSuccess) return error;
    const dml__tensor_copy left = { type, m, k, (uint16_t *)tensor->workspace };
    const dml__tensor_copy right = { type, n, k, (uint16_t *)((char *)tensor->workspace + a_bytes) };
    error = trans_a ? dml__tensor_pack_transpose(stream, left, dml__tensor_matrix_of(a, k, m, lda))
                    : dml__tensor_pack(stream, left, dml__tensor_matrix_of(a, m, k, lda));
    if (error == cudaSuccess)
        error = trans_b ? dml__tensor_pack(stream, right, dml__tensor_matrix_of(b, n, k, ldb))
                        : dml__tensor_pack_transpose(stream, right, dml__tensor_matrix_of(b, k, n, ldb));
    if (error != cudaSuccess) return error;
    const dml__tensor_product p = dml__tensor_product_of(left, right, out);
    return dml__tensor_multiply(tensor, stream, &p);
}

#endif

#ifndef DML__TENSOR_PATCHES /* tests have smaller ones */
#define DML__TENSOR_PATCHES (32 << 20)
#endif

/* A source (gpu/tensor_pack.cuh): row i is what the window of pixel `first` + i meets, column (tap, channel).
   Forward the pixels are those of y and meet x (N, H, W, C); back, those of x and meet dy (N, OH, OW, F). */
template <bool back> struct dml__tensor_patches {
    const float *images;
    dml__kernel_arguments arguments;
    int first, end; /* pixels: the first, and behind the last */
    bool four;      /* four neighbours are of one tap, and may be read at once */
    bool plain;     /* windows are pixels: the patches are the images */
    /* What a thread finds out: */
    dml__gpu_shape s;
    dml__gpu_images pixels;
    dml__gpu_taps taps;
    dml__gpu_divisor stride_h, stride_w;

    __device__ __forceinline__ void prepare()
    {
        s = dml__gpu_shape_of(arguments);
        pixels = dml__gpu_images_of(back ? s.height : s.out_h, back ? s.width : s.out_w);
        taps = dml__gpu_taps_of(s, back ? s.filters : s.channels);
        stride_h = dml__gpu_divisor_of(s.stride_h), stride_w = dml__gpu_divisor_of(s.stride_w);
    }
    __device__ __forceinline__ dml__gpu_place place(int row) const
    {
        return back ? dml__gpu_pixel(first + row, end, pixels, 1, 1, s.pad_h, s.pad_w)
                    : dml__gpu_pixel(first + row, end, pixels, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    }
    /* Where a place and a tap meet; NULL: nowhere. */
    __device__ __forceinline__ const float *at(const dml__gpu_place p, const dml__gpu_tap tap) const
    {
        unsigned h = (unsigned)(back ? p.h - tap.h : p.h + tap.h);
        unsigned w = (unsigned)(back ? p.w - tap.w : p.w + tap.w);
        if (back) {
            const unsigned out_h = dml__gpu_divide(h, stride_h), out_w = dml__gpu_divide(w, stride_w);
            if (out_h * stride_h.number != h || out_w * stride_w.number != w) return NULL;
            h = out_h, w = out_w;
        }
        const int height = back ? s.out_h : s.height, width = back ? s.out_w : s.width;
        if (p.image < 0 || h >= (unsigned)height || w >= (unsigned)width) return NULL;
        const long long pixel = ((long long)p.image * height + (int)h) * width + (int)w;
        return images + pixel * (back ? s.filters : s.channels) + tap.last;
    }
    __device__ __forceinline__ float one(const dml__gpu_place p, int column) const
    {
        const float *from = at(p, dml__gpu_tap_at(column, taps));
        return from ? *from : 0.0f;
    }
    __device__ __forceinline__ bool whole(int rows, int columns) const
    {
        return plain && four && rows <= end - first && columns <= taps.depth;
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return *(const float4 *)(images + (long long)(first + row) * taps.depth + column);
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        const dml__gpu_place p = place(row);
        if (!four)
            return make_float4(one(p, column), one(p, column + 1), one(p, column + 2), one(p, column + 3));
        const float *from = at(p, dml__gpu_tap_at(column, taps));
        return from ? *(const float4 *)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
};

/* Another: the weights (F, taps, C) as they meet patches of dy: row (tap, filter), a column each channel. */
struct dml__tensor_weights {
    const float *weights;
    int filters, taps, channels;
    bool four;

    __device__ __forceinline__ void prepare()
    {
    }
    __device__ __forceinline__ bool whole(int, int) const
    {
        return false;
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        const int tap = row / filters, filter = row - tap * filters;
        return dml__tensor_read(weights + ((size_t)filter * (size_t)taps + (size_t)tap) * (size_t)channels +
                                    column,
                                tap < taps ? channels - column : 0, four);
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return some(row, column);
    }
};

/* ---- on the host ---- */

typedef struct dml__tensor_conv {
    int type;
    const dml__kernel_arguments *arguments;
    const float *images, *other; /* what patches are of; weights, or dy where it is the weights' gradient */
    dml__tensor_out out;         /* to y, dx or dw; ldc is that of the product */
    int shares;                  /* of dw: so many gradients are written, of which the sum counts */
} dml__tensor_conv;

/* Sizes of a convolution as a product. */
typedef struct dml__tensor_conv_sizes {
    int pixels, taps, channels, filters; /* pixels: of y, or of x where `back` */
} dml__tensor_conv_sizes;

static inline dml__tensor_conv_sizes dml__tensor_conv_sizes_of(const int32_t *of, bool back)
{
    dml__tensor_conv_sizes s;
    s.pixels = of[0] * (back ? of[1] * of[2] : of[11] * of[12]);
    s.taps = of[5] * of[6], s.channels = of[3], s.filters = of[4];
    return s;
}

/* How many of the pixels at once have a copy of so many rows or ks each in DML__TENSOR_PATCHES bytes. */
static inline int dml__tensor_piece(int type, int pixels, int each)
{
    const int64_t most = DML__TENSOR_PATCHES / ((int64_t)each * dml__tensor_words_of(type) * 2);
    const int64_t piece = most / DML__TENSOR_ROWS * DML__TENSOR_ROWS;
    return piece < DML__TENSOR_ROWS ? (pixels < DML__TENSOR_ROWS ? pixels : DML__TENSOR_ROWS)
           : piece < pixels         ? (int)piece
                                    : pixels;
}

template <bool back>
static inline dml__tensor_patches<back> dml__tensor_patches_of(const dml__tensor_conv *c, int first, int end)
{
    const int32_t *of = c->arguments->integer;
    dml__tensor_patches<back> patches;
    memset((void *)&patches, 0, sizeof patches);
    patches.images = c->images, patches.arguments = *c->arguments;
    patches.first = first, patches.end = end;
    patches.four = dml__tensor_fours(c->images, of[back ? 4 : 3]);
    patches.plain =
        of[5] * of[6] == 1 && of[7] * of[8] == 1 && !of[9] && !of[10] && of[11] == of[1] && of[12] == of[2];
    return patches;
}

/* There was a way for what came before, so there is one for this; what is queued can't be taken back. */
static inline cudaError_t dml__tensor_no_way_back(cudaError_t error, int pieces)
{
    return error == cudaErrorNotSupported && pieces > 0 ? cudaErrorInvalidValue : error;
}

/* y, or dx: a piece of its pixels after the other, each times the weights, which are copied once. */
template <bool back>
static inline cudaError_t dml__tensor_conv_pixels(dml__tensor *tensor, cudaStream_t stream,
                                                  const dml__tensor_conv *c)
{
    const dml__tensor_conv_sizes s = dml__tensor_conv_sizes_of(c->arguments->integer, back);
    const int columns = back ? s.channels : s.filters, depth = s.taps * (back ? s.filters : s.channels);
    const int piece = dml__tensor_piece(c->type, s.pixels, dml__tensor_padded(depth, DML__TENSOR_WORDS));
    const size_t right_bytes = dml__tensor_copy_bytes(c->type, columns, depth);
    if (!dml__tensor_can(tensor, c->type, depth)) return cudaErrorNotSupported;
    cudaError_t error =
        dml__tensor_reserve(tensor, stream, right_bytes + dml__tensor_copy_bytes(c->type, piece, depth));
    if (error != cudaSuccess) return error;
    const dml__tensor_copy right = { c->type, columns, depth, (uint16_t *)tensor->workspace };
    if (back) {
        const dml__tensor_weights weights = { c->other, s.filters, s.taps, s.channels,
                                              dml__tensor_fours(c->other, s.channels) };
        error = dml__tensor_pack_transpose(stream, right, weights);
    } else {
        error = dml__tensor_pack(stream, right, dml__tensor_matrix_of(c->other, columns, depth, depth));
    }
    for (int first = 0; first < s.pixels && error == cudaSuccess; first += piece) {
        const int count = s.pixels - first < piece ? s.pixels - first : piece;
        const dml__tensor_copy left = { c->type, count, depth,
                                        (uint16_t *)((char *)tensor->workspace + right_bytes) };
        error = dml__tensor_pack(stream, left, dml__tensor_patches_of<back>(c, first, first + count));
        dml__tensor_out out = c->out;
        out.c += (size_t)first * (size_t)columns;
        const dml__tensor_product p = dml__tensor_product_of(left, right, out);
        if (error == cudaSuccess)
            error = dml__tensor_no_way_back(dml__tensor_multiply(tensor, stream, &p), first);
    }
    return error;
}

/* dw: dy's transpose times the patches of x, whose pixels are what is summed. Pieces go round the shares. */
static inline cudaError_t dml__tensor_conv_weights(dml__tensor *tensor, cudaStream_t stream,
                                                   const dml__tensor_conv *c)
{
    const dml__tensor_conv_sizes s = dml__tensor_conv_sizes_of(c->arguments->integer, false);
    const int columns = s.taps * s.channels, rows = dml__tensor_padded(s.filters, DML__TENSOR_ROWS) +
                                                    dml__tensor_padded(columns, DML__TENSOR_ROWS);
    const int piece = dml__tensor_piece(c->type, s.pixels, rows);
    const size_t left_bytes = dml__tensor_copy_bytes(c->type, s.filters, piece);
    const size_t count = (size_t)s.filters * (size_t)columns;
    if (!dml__tensor_can(tensor, c->type, piece)) return cudaErrorNotSupported;
    cudaError_t error =
        dml__tensor_reserve(tensor, stream, left_bytes + dml__tensor_copy_bytes(c->type, columns, piece));
    int done = 0;
    for (int first = 0; first < s.pixels && error == cudaSuccess; first += piece, done++) {
        const int k = s.pixels - first < piece ? s.pixels - first : piece;
        const dml__tensor_copy left = { c->type, s.filters, k, (uint16_t *)tensor->workspace };
        const dml__tensor_copy right = { c->type, columns, k,
                                         (uint16_t *)((char *)tensor->workspace + left_bytes) };
        error = dml__tensor_pack_transpose(
            stream, left,
            dml__tensor_matrix_of(c->other + (size_t)first * (size_t)s.filters, k, s.filters, s.filters));
        if (error == cudaSuccess)
            error =
                dml__tensor_pack_transpose(stream, right, dml__tensor_patches_of<false>(c, first, first + k));
        dml__tensor_out out = c->out;
        out.c += (size_t)(done % c->shares) * count;
        out.beta = done < c->shares ? c->out.beta : 1.0f;
        const dml__tensor_product p = dml__tensor_product_of(left, right, out);
        if (error == cudaSuccess)
            error = dml__tensor_no_way_back(dml__tensor_multiply(tensor, stream, &p), done);
    }
    if (error == cudaSuccess && done < c->shares) /* their beta is 0 */
        error = cudaMemsetAsync(c->out.c + (size_t)done * count, 0,
                                (size_t)(c->shares - done) * count * sizeof(float), stream);
    return error;
}

#endif

#include <string.h>

/* Of fewer multiply-adds a product isn't worth the copies of its factors. Nor is a convolution that a step's
   graph would otherwise hold; tests go lower. */
enum { DML__TENSOR_GEMM_LEAST = 1 << 22 };
#ifndef DML__TENSOR_CONV_LEAST
#define DML__TENSOR_CONV_LEAST (1 << 27)
#endif

typedef enum dml__tensor_job {
    DML__TENSOR_NOTHING, /* for tensor cores */
    DML__TENSOR_GEMM,
    DML__TENSOR_ATTENTION,
    DML__TENSOR_ATTENTION_BACK,
    DML__TENSOR_CONV,
    DML__TENSOR_CONV_INPUT,
    DML__TENSOR_CONV_WEIGHTS,
    DML__TENSOR_JOBS
} dml__tensor_job;

/* The launch's name, and that of what is done instead. */
static inline const char *dml__tensor_job_name(int job, bool own)
{
    static const char *const names[DML__TENSOR_JOBS][2] = {
        { "", "" },
        { "gemm", "gemm_tensor" },
        { "attention_forward", "attention_forward_tensor" },
        { "attention_backward", "attention_backward_tensor" },
        { "conv2d_forward", "conv2d_forward_tensor" },
        { "conv2d_backward_input", "conv2d_backward_input_tensor" },
        { "conv2d_backward_weights", "conv2d_backward_weights_tensor" },
    };
    return names[job][own];
}

/* What the factors of products may be rounded to now; 0: to nothing. */
static inline int dml__tensor_type_of(const dml_device *device)
{
    if (device->factors == (int)DML_BF16) return DML__TENSOR_BF16;
    if (device->factors == (int)DML_F16) return DML__TENSOR_F16;
    return device->allow_tf32 ? DML__TENSOR_TF32 : 0;
}

/* Which job a launch is with factors of that type: one that is worth it, and of a kind that is there. */
static inline dml__tensor_job dml__tensor_job_of(const dml_launch *launch, int type)
{
    const int32_t *of = launch->integer;
    int job = DML__TENSOR_GEMM;
    while (job < DML__TENSOR_JOBS && strcmp(launch->kernel, dml__tensor_job_name(job, false)) != 0) job++;
    if (job == DML__TENSOR_JOBS) return DML__TENSOR_NOTHING;
    const double product = (double)of[0] * of[1] * of[2];
    const double conv = (double)of[0] * of[11] * of[12] * of[4] * of[5] * of[6] * of[3];
    const bool several = job == DML__TENSOR_GEMM && (of[8] || of[13] > 1); /* matrices */
    const bool in_groups = job >= DML__TENSOR_CONV && of[15] > 1;
    const bool attention = job == DML__TENSOR_ATTENTION || job == DML__TENSOR_ATTENTION_BACK;
    const bool small = job == DML__TENSOR_GEMM   ? product < DML__TENSOR_GEMM_LEAST
                       : job >= DML__TENSOR_CONV ? conv < DML__TENSOR_CONV_LEAST
                                                 : false;
    const bool none = several || in_groups || small || (attention && (type == DML__TENSOR_TF32 || of[13]));
    return none ? DML__TENSOR_NOTHING : (dml__tensor_job)job;
}

/* Queues it, but for what dml__tensor_end does; cudaErrorNotSupported: there is no way here, and nothing was
   queued that matters. */
static inline cudaError_t dml__tensor_run(dml__tensor *tensor, cudaStream_t stream, int type,
                                          dml__tensor_job job, const dml_launch *launch,
                                          const dml__kernel_arguments *arguments)
{
    const int32_t *of = launch->integer;
    const float *real = launch->real;
    char *base[DML_LAUNCH_BUFFERS];
    float *at[DML_LAUNCH_BUFFERS];
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) {
        base[i] = launch->buffer[i].buffer ? (char *)launch->buffer[i].buffer->handle : NULL;
        at[i] = base[i] ? (float *)(base[i] + launch->buffer[i].offset) : NULL;
    }
    if (job == DML__TENSOR_GEMM) { /* m, n, k, trans_a, trans_b, lda, ldb, ldc */
        const dml__tensor_out out = { at[2], at[3], of[7], real[2] != 0.0f, real[0], real[1] };
        return dml__tensor_gemm(tensor, stream, type, of[0], of[1], of[2], of[3] != 0, of[4] != 0, at[0],
                                of[5], at[1], of[6], out);
    }
    if (job < DML__TENSOR_CONV)
        return dml__tensor_attention(stream, type, job == DML__TENSOR_ATTENTION_BACK, base, arguments);
    const dml__tensor_out y = { at[3], at[2], of[4], real[1] != 0.0f, 1.0f, real[0] };
    const dml__tensor_out dx = { at[2], NULL, of[3], 0, 1.0f, real[0] };
    const dml__tensor_out dw = { at[2], NULL, of[5] * of[6] * of[3], 0, 1.0f, real[0] };
    const int shares = job == DML__TENSOR_CONV_WEIGHTS && real[1] > 1.0f ? (int)real[1] : 1;
    const dml__tensor_conv conv = {
        type,  arguments, at[0], at[1], job == DML__TENSOR_CONV ? y : job == DML__TENSOR_CONV_INPUT ? dx : dw,
        shares
    };
    return job == DML__TENSOR_CONV         ? dml__tensor_conv_pixels<false>(tensor, stream, &conv)
           : job == DML__TENSOR_CONV_INPUT ? dml__tensor_conv_pixels<true>(tensor, stream, &conv)
                                           : dml__tensor_conv_weights(tensor, stream, &conv);
}

/* to (outer, columns) = the sums of from (outer, n, columns) + beta to. */
static inline dml_status dml__tensor_sums(dml_device *device, dml_ref from, int outer, int n, int columns,
                                          float beta, dml_ref to)
{
    dml_launch sums;
    memset(&sums, 0, sizeof sums);
    sums.kernel = "sum_rows";
    sums.size[0] = (size_t)columns, sums.size[1] = (size_t)outer;
    sums.buffer[0] = from, sums.buffer[1] = to;
    sums.integer[0] = n, sums.integer[1] = columns, sums.integer[2] = outer;
    sums.real[0] = beta;
    return device->backend->launch(device, &sums);
}

/* db, the sums of dy, in as many shares as dw: each of so many pixels, and the first of what is left. */
static inline dml_status dml__tensor_bias_gradient(dml_device *device, const dml_launch *launch)
{
    const int32_t *of = launch->integer;
    const int pixels = of[0] * of[11] * of[12], filters = of[4];
    const int shares = launch->real[1] > 1.0f ? (int)launch->real[1] : 1, each = pixels / shares;
    const dml_ref db = launch->buffer[3];
    dml_ref dy = launch->buffer[1];
    dml_status status =
        each ? dml__tensor_sums(device, dy, shares, each, filters, launch->real[2], db)
             : device->backend->zero(device, db, (size_t)shares * (size_t)filters * sizeof(float));
    dy.offset += (size_t)shares * (size_t)each * (size_t)filters * sizeof(float);
    if (status == DML_OK && pixels > shares * each)
        status = dml__tensor_sums(device, dy, 1, pixels - shares * each, filters, 1.0f, db);
    return status;
}

/* What a job that was queued leaves for shared kernels: the bias' gradient. */
static inline dml_status dml__tensor_end(dml_device *device, dml__tensor_job job, const dml_launch *launch)
{
    return job == DML__TENSOR_CONV_WEIGHTS && launch->buffer[3].buffer
               ? dml__tensor_bias_gradient(device, launch)
               : DML_OK;
}

#endif

/* Something timed that is on its way, between two events, and the number that the profile has for it. */
typedef struct dml__cuda_mark {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int number;
} dml__cuda_mark;

/* An open device. Every call makes it the calling thread's current device, and it stays so. */
enum { DML__CUDA_MARKS = 256 };
typedef struct dml__cuda {
    cudaStream_t stream;
    char name[128];
    dim3 most; /* groups along x, y and z in one launch */
    dml__choice choice;
    dml__kernel_index index;
    dml__cuda_queue queue;
    dml__cuda_record alone; /* what isn't held back, on its way to the stream */
    bool timed;
    int made, marks; /* marks whose events there are, and that are on their way */
    dml__cuda_mark mark[DML__CUDA_MARKS];
    double since; /* when the first of them was made, in seconds of the host's clock */
    dml__cuda_staging staging;
    dml__cuda_reads reads;
    dml_buffer shares; /* of products in shares of k */
    bool tensor_open;  /* from the first product of rounded factors on */
    dml__tensor tensor;
} dml__cuda;

static const void *dml__cuda_kernel(int kernel)
{
    static const void *const kernels[] = {
#define DML__CUDA_KERNEL(name, covers_x, covers_y) (const void *)dml__kernel_##name,
        DML__KERNEL_LIST(DML__CUDA_KERNEL)
#undef DML__CUDA_KERNEL
    };
    return kernels[kernel];
}

static dml__cuda *dml__cuda_of(dml_device *device)
{
    return (dml__cuda *)device->state;
}

/* What there is to do about an error that its name doesn't say. */
static const char *dml__cuda_advice(cudaError_t error)
{
    switch (error) {
    case cudaErrorDevicesUnavailable:
        return "; where the card's compute mode is exclusive, one process has it: a card for each rank, or "
               "nvidia-smi "
               "-c 0";
    case cudaErrorLaunchFailure:
    case cudaErrorIllegalAddress:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
        return "; the device is lost for this process; what is on the host is not";
    default: return "";
    }
}

/* DML_OK for cudaSuccess, else a recorded sentence: which device, what was called, on what, and the error. */
static dml_status dml__cuda_check(dml_device *device, cudaError_t error, const char *call, const char *on)
{
    if (error == cudaSuccess) return DML_OK;
    (void)cudaGetLastError(); /* or an error that passes, such as too large a malloc, is found again later */
    return dml_device_fail(device, error == cudaErrorMemoryAllocation ? DML_ERROR_MEMORY : DML_ERROR_DEVICE,
                           "cuda:%d (%s): %s(%s) failed with %s: %s%s", device->index,
                           device->state ? dml__cuda_of(device)->name : "?", call, on,
                           cudaGetErrorName(error), cudaGetErrorString(error), dml__cuda_advice(error));
}

static dml_status dml__cuda_enter(dml_device *device)
{
    return dml__cuda_check(device, cudaSetDevice(device->index), "cudaSetDevice", "");
}

/* No driver, one too old for this runtime, or no card: no device. */
static int dml__cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
}

static void dml__cuda_describe(int index, dml_device_info *info)
{
    cudaDeviceProp properties;
    int clock = 0, driver = 0; /* kHz; thousands and tens of a version */
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->memory = properties.totalGlobalMem;
    info->compute_units = properties.multiProcessorCount;
    info->gpu = true;
    snprintf(info->features, sizeof info->features, "compute capability %d.%d", properties.major,
             properties.minor);
    if (cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, index) == cudaSuccess)
        info->clock = clock / 1000;
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        snprintf(info->driver, sizeof info->driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    (void)cudaGetLastError();
}

/* ---- the profile ---- */

/* Tells of all that was timed, of a stream that has finished. Times between neighbours are exact, those since
   the first mark only as exact as a float. */
static void dml__cuda_settle(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    if (state->reads.stream) (void)cudaStreamSynchronize(state->reads.stream);
    for (int i = 0; i < state->marks; i++) {
        const dml__cuda_mark *mark = &state->mark[i];
        float before = 0, took = 0; /* milliseconds */
        (void)cudaEventElapsedTime(&before, state->mark[0].begin, mark->begin);
        (void)cudaEventElapsedTime(&took, mark->begin, mark->end);
        const double begin = state->since + 1e-3 * (double)before;
        dml_device_end_event(device, mark->number, begin, begin + 1e-3 * (double)took);
    }
    state->marks = 0;
    (void)cudaGetLastError();
}

static bool dml__cuda_make_mark(dml__cuda *state)
{
    dml__cuda_mark *mark = &state->mark[state->made];
    if (state->marks < state->made) return true;
    if (cudaEventCreate(&mark->begin) != cudaSuccess) return false;
    if (cudaEventCreate(&mark->end) != cudaSuccess) {
        (void)cudaEventDestroy(mark->begin);
        return false;
    }
    state->made++;
    return true;
}

/* Before something is queued; NULL: nobody asks, or there are no events left. */
static dml__cuda_mark *dml__cuda_mark_begins_in(dml_device *device, cudaStream_t stream, const char *what)
{
    dml__cuda *state = dml__cuda_of(device);
    if (!state->timed) return NULL;
    if (state->marks == DML__CUDA_MARKS && cudaStreamSynchronize(state->stream) == cudaSuccess)
        dml__cuda_settle(device);
    if (state->marks == DML__CUDA_MARKS || !dml__cuda_make_mark(state)) {
        (void)cudaGetLastError();
        return NULL;
    }
    dml__cuda_mark *mark = &state->mark[state->marks];
    if (state->marks == 0) state->since = dml_seconds();
    mark->stream = stream;
    mark->number = dml_device_begin_event(device, what);
    return cudaEventRecord(mark->begin, stream) == cudaSuccess ? mark : NULL;
}

static dml__cuda_mark *dml__cuda_mark_begins(dml_device *device, const char *what)
{
    return dml__cuda_mark_begins_in(device, dml__cuda_of(device)->stream, what);
}

static cudaError_t dml__cuda_mark_ends(dml_device *device, dml__cuda_mark *mark, cudaError_t error)
{
    dml__cuda *state = dml__cuda_of(device);
    if (mark && error == cudaSuccess && cudaEventRecord(mark->end, mark->stream) == cudaSuccess)
        state->marks++;
    return error;
}

static void dml__cuda_destroy_marks(dml__cuda *state)
{
    for (int i = 0; i < state->made; i++) {
        (void)cudaEventDestroy(state->mark[i].begin);
        (void)cudaEventDestroy(state->mark[i].end);
    }
    state->made = state->marks = 0;
}

/* ---- the queue ---- */

static cudaError_t dml__cuda_send_work(dml__cuda *state, dml__cuda_work *work)
{
    char *const *buffer = work->values.buffer;
    const uint64_t bytes = work->shape.bytes;
    if (work->shape.kind == DML__CUDA_ZERO) return cudaMemsetAsync(buffer[0], 0, bytes, state->stream);
    if (work->shape.kind == DML__CUDA_WORD)
        return dml__cuda_write_pieces(&state->staging, state->stream, buffer[0],
                                      (const char *)&work->values.arguments.integer[0], bytes);
    if (work->shape.kind == DML__CUDA_COPY)
        return cudaMemcpyAsync(buffer[0], buffer[1], bytes, cudaMemcpyDeviceToDevice, state->stream);
    void *arguments[DML_LAUNCH_BUFFERS + 1];
    const cudaKernelNodeParams node = dml__cuda_kernel_node(work, arguments);
    return cudaLaunchKernel(work->shape.kernel, node.gridDim, node.blockDim, arguments, 0, state->stream);
}

/* By itself. A failure is told of the layer that it was for. */
static dml_status dml__cuda_send(dml_device *device, dml__cuda_record *record)
{
    static const char *const calls[] = { "cudaLaunchKernel", "cudaMemsetAsync", "cudaMemcpyAsync",
                                         "cudaMemcpyAsync" }; /* in the order of dml__cuda_kind */
    dml__cuda *state = dml__cuda_of(device);
    dml__cuda_mark *mark = dml__cuda_mark_begins(device, record->what);
    const cudaError_t error = dml__cuda_mark_ends(device, mark, dml__cuda_send_work(state, &record->work));
    if (error == cudaSuccess) return DML_OK;
    const char *node = device->node, *pass = device->pass;
    device->node = record->node[0] ? record->node : NULL;
    device->pass = record->pass;
    const dml_status status = dml__cuda_check(device, error, calls[record->work.shape.kind], record->what);
    device->node = node;
    device->pass = pass;
    return status;
}

/* Sends what was held back. */
static dml_status dml__cuda_flush(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    const int count = state->queue.count;
    if (count == 0) return DML_OK;
    dml_status status = dml__cuda_enter(device);
    if (status == DML_OK && !dml__cuda_replay(device, &state->queue, state->stream))
        for (int i = 0; i < count && status == DML_OK; i++)
            status = dml__cuda_send(device, &state->queue.record[i]);
    state->queue.count = 0;
    return status;
}

/* Before whatever isn't held back. */
static dml_status dml__cuda_enter_in_order(dml_device *device)
{
    const dml_status status = dml__cuda_flush(device);
    return status == DML_OK ? dml__cuda_enter(device) : status;
}

static bool dml__cuda_holds_back(const dml__cuda *state)
{
    return state->queue.record && !state->timed; /* times are those of single launches */
}

/* Where to say what comes next, all of it zero but what is given here. */
static dml__cuda_record *dml__cuda_begin_record(dml_device *device, dml__cuda_kind kind, const char *what)
{
    dml__cuda *state = dml__cuda_of(device);
    dml__cuda_record *record =
        dml__cuda_holds_back(state) ? &state->queue.record[state->queue.count] : &state->alone;
    memset(&record->work, 0, sizeof record->work);
    record->work.shape.kind = (uint32_t)kind;
    record->what = what;
    record->pass = device->pass;
    const size_t length = device->node ? strlen(device->node) : 0, most = sizeof record->node - 1;
    if (length) memcpy(record->node, device->node, length < most ? length : most);
    record->node[length < most ? length : most] = '\0';
    return record;
}

static dml_status dml__cuda_end_record(dml_device *device, dml__cuda_record *record)
{
    dml__cuda *state = dml__cuda_of(device);
    if (record != &state->alone)
        return ++state->queue.count == DML__CUDA_RECORDS ? dml__cuda_flush(device) : DML_OK;
    const dml_status status = dml__cuda_enter(device);
    return status == DML_OK ? dml__cuda_send(device, record) : status;
}

static void dml__cuda_close(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    if (!state) return;
    if (state->stream && cudaSetDevice(device->index) == cudaSuccess) {
        (void)dml__cuda_flush(device);
        (void)cudaStreamSynchronize(state->stream);
        if (state->shares.handle) (void)cudaFree(state->shares.handle);
        dml__cuda_destroy_marks(state);
        dml__cuda_destroy_staging(&state->staging);
        dml__cuda_destroy_reads(&state->reads);
        if (state->tensor_open) dml__tensor_close(&state->tensor);
        (void)cudaStreamDestroy(state->stream);
    }
    dml__cuda_queue_close(device, &state->queue);
    (void)cudaGetLastError();
    dml_device_release(device, state);
    device->state = NULL;
}

/* Why there is no device. */
static dml_status dml__cuda_none(dml_device *device)
{
    int driver = 0; /* 0: none is installed */
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    (void)cudaGetLastError();
    if (driver == 0)
        return dml_device_fail(device, DML_ERROR_DEVICE,
                               "no CUDA device: there is no NVIDIA driver (libcuda.so.1)");
    if (driver / 1000 < CUDART_VERSION / 1000)
        return dml_device_fail(
            device, DML_ERROR_DEVICE,
            "no CUDA device: the driver is one for CUDA %d.%d, and this was compiled with %d.%d: "
            "a newer driver, or an older toolkit",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return dml_device_fail(device, DML_ERROR_DEVICE,
                           "no CUDA device: the driver shows no card to this process (nvidia-smi lists them, "
                           "CUDA_VISIBLE_DEVICES hides them)");
}

static dml_status dml__cuda_prepare(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    cudaDeviceProp properties;
    const int count = dml__cuda_count();
    if (count == 0) return dml__cuda_none(device);
    if (device->index < 0 || device->index >= count)
        return dml_device_fail(device, DML_ERROR_DEVICE, "no device cuda:%d: %d were found", device->index,
                               count);
    dml_status status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    status = dml__cuda_check(device, cudaGetDeviceProperties(&properties, device->index),
                             "cudaGetDeviceProperties", "");
    if (status != DML_OK) return status;
    snprintf(state->name, sizeof state->name, "%.*s", (int)sizeof state->name - 1, properties.name);
    state->choice.solo = DML__SOLO_NONE;
    state->choice.units = properties.multiProcessorCount;
    state->most = dim3((unsigned)properties.maxGridSize[0], (unsigned)properties.maxGridSize[1],
                       (unsigned)properties.maxGridSize[2]);
    cudaFuncAttributes attributes; /* of any kernel: is there code for this card at all? */
    const cudaError_t error = cudaFuncGetAttributes(&attributes, dml__cuda_kernel(0));
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
        error == cudaErrorUnsupportedPtxVersion) {
        (void)cudaGetLastError();
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                               "cuda:%d (%s) has compute capability %d.%d, for which dml_cuda.cu was not "
                               "compiled: add -gencode arch=compute_%d%d,code=sm_%d%d to nvcc",
                               device->index, state->name, properties.major, properties.minor,
                               properties.major, properties.minor, properties.major, properties.minor);
    }
    status = dml__cuda_check(device, error, "cudaFuncGetAttributes", "");
    if (status != DML_OK) return status;
    status = dml__cuda_check(device, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking),
                             "cudaStreamCreateWithFlags", "");
    if (status != DML_OK) return status;
    dml__fill_kernel_index(&state->index);
    status =
        dml__tune(device, &state->choice, state->name); /* launches one by one, none of them as a graph */
    if (status == DML_OK) dml__cuda_queue_open(device, &state->queue);
    return status;
}

static dml_status dml__cuda_open(dml_device *device)
{
    device->host_memory = false;
    device->state = dml_device_allocate(device, sizeof(dml__cuda));
    if (!device->state)
        return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left to open cuda:%d", device->index);
    const dml_status status = dml__cuda_prepare(device);
    if (status != DML_OK) dml__cuda_close(device);
    return status;
}

static dml_status dml__cuda_buffer_create(dml_device *device, dml_buffer *buffer)
{
    size_t left = 0, all = 0;
    buffer->host = NULL;
    buffer->handle = NULL;
    const dml_status status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    const cudaError_t error = cudaMalloc(&buffer->handle, buffer->bytes);
    if (error != cudaErrorMemoryAllocation) return dml__cuda_check(device, error, "cudaMalloc", "");
    buffer->handle = NULL;
    (void)cudaMemGetInfo(&left, &all);
    (void)cudaGetLastError();
    return dml_device_fail(
        device, DML_ERROR_MEMORY,
        "cuda:%d (%s): no memory left for a buffer of %llu bytes: of its %llu bytes %llu are free",
        device->index, dml__cuda_of(device)->name, (unsigned long long)buffer->bytes, (unsigned long long)all,
        (unsigned long long)left);
}

static void dml__cuda_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    if (buffer->handle) (void)dml__cuda_flush(device); /* which may be about it */
    if (buffer->handle && cudaSetDevice(device->index) == cudaSuccess)
        (void)cudaFree(buffer->handle); /* waits for what uses it */
    (void)cudaGetLastError();
    buffer->handle = NULL;
}

static char *dml__cuda_address(dml_ref ref)
{
    return (char *)ref.buffer->handle + ref.offset;
}

/* Waits for the stream, so that the caller may use its memory again. */
static dml_status dml__cuda_wait(dml_device *device, const char *what)
{
    return dml__cuda_check(device, cudaStreamSynchronize(dml__cuda_of(device)->stream),
                           "cudaStreamSynchronize", what);
}

/* A number, such as the scale of the loss, is kept in a record: a step stays one sequence. */
static dml_status dml__cuda_write_word(dml_device *device, dml_ref to, const void *from)
{
    dml__cuda_record *record = dml__cuda_begin_record(device, DML__CUDA_WORD, "write");
    dml__cuda_work *work = &record->work;
    work->shape.bytes = work->shape.grid[0] = sizeof work->values.arguments.integer[0];
    work->values.buffer[0] = dml__cuda_address(to);
    memcpy(&work->values.arguments.integer[0], from, sizeof work->values.arguments.integer[0]);
    return dml__cuda_end_record(device, record);
}

static dml_status dml__cuda_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    dml__cuda *state = dml__cuda_of(device);
    dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status != DML_OK || bytes == 0) return status;
    if (bytes == sizeof(int32_t) && to.offset % bytes == 0 && state->staging.memory &&
        dml__cuda_holds_back(state))
        return dml__cuda_write_word(device, to, from);
    status = dml__cuda_enter_in_order(device);
    if (status != DML_OK) return status;
    const bool staged = dml__cuda_has_staging(&state->staging);
    dml__cuda_mark *mark = dml__cuda_mark_begins(device, "write");
    const cudaError_t error =
        staged ? dml__cuda_write_pieces(&state->staging, state->stream, dml__cuda_address(to),
                                        (const char *)from, bytes)
               : cudaMemcpyAsync(dml__cuda_address(to), from, bytes, cudaMemcpyHostToDevice, state->stream);
    status = dml__cuda_check(device, dml__cuda_mark_ends(device, mark, error), "cudaMemcpyAsync", "write");
    return status == DML_OK && !staged ? dml__cuda_wait(device, "write") : status;
}

static dml_status dml__cuda_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter_in_order(device);
    if (status != DML_OK) return status;
    dml__cuda_mark *mark = dml__cuda_mark_begins(device, "read");
    const cudaError_t error = cudaMemcpyAsync(to, dml__cuda_address(from), bytes, cudaMemcpyDeviceToHost,
                                              dml__cuda_of(device)->stream);
    status = dml__cuda_check(device, dml__cuda_mark_ends(device, mark, error), "cudaMemcpyAsync", "read");
    return status == DML_OK ? dml__cuda_wait(device, "read") : status;
}

/* The ticket is an event. To memory that isn't pinned it is a read as any other. */
static dml_status dml__cuda_read_start(dml_device *device, void *to, dml_ref from, size_t bytes,
                                       void **ticket)
{
    dml__cuda *state = dml__cuda_of(device);
    dml__cuda_reads *reads = &state->reads;
    *ticket = NULL;
    if (!dml__cuda_is_pinned(reads, to, bytes)) return dml__cuda_read(device, to, from, bytes);
    dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter_in_order(device);
    if (status == DML_OK)
        status = dml__cuda_check(device, dml__cuda_have_reads(reads), "cudaStreamCreateWithFlags", "read");
    if (status == DML_OK)
        status = dml__cuda_check(device, dml__cuda_read_behind(reads, state->stream), "cudaStreamWaitEvent",
                                 "read");
    if (status != DML_OK) return status;
    dml__cuda_mark *mark = dml__cuda_mark_begins_in(device, reads->stream, "read");
    cudaError_t error =
        cudaMemcpyAsync(to, dml__cuda_address(from), bytes, cudaMemcpyDeviceToHost, reads->stream);
    status = dml__cuda_check(device, dml__cuda_mark_ends(device, mark, error), "cudaMemcpyAsync", "read");
    if (status != DML_OK) return status;
    cudaEvent_t event;
    error = dml__cuda_mark_read(reads, &event);
    if (error == cudaSuccess) *ticket = event;
    return dml__cuda_check(device, error, "cudaEventRecord", "read");
}

static dml_status dml__cuda_read_end(dml_device *device, void *ticket, bool wait, bool *ended)
{
    const cudaEvent_t event = (cudaEvent_t)ticket;
    const dml_status status = dml__cuda_enter(device);
    cudaError_t error = status != DML_OK ? cudaSuccess
                        : wait           ? cudaEventSynchronize(event)
                                         : cudaEventQuery(event);
    *ended = error != cudaErrorNotReady;
    if (!*ended) {
        (void)cudaGetLastError();
        return DML_OK;
    }
    (void)cudaEventDestroy(event);
    return status != DML_OK ? status : dml__cuda_check(device, error, "cudaEventSynchronize", "read");
}

static bool dml__cuda_pin(dml_device *device, void *memory, size_t bytes)
{
    return cudaSetDevice(device->index) == cudaSuccess &&
           dml__cuda_pin_memory(&dml__cuda_of(device)->reads, memory, bytes);
}

static void dml__cuda_unpin(dml_device *device, void *memory)
{
    if (cudaSetDevice(device->index) == cudaSuccess)
        dml__cuda_unpin_memory(&dml__cuda_of(device)->reads, memory);
}

static dml_status dml__cuda_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status == DML_OK) status = dml__check_ref(device, to, bytes, "copy to");
    if (status != DML_OK || bytes == 0) return status;
    dml__cuda_record *record = dml__cuda_begin_record(device, DML__CUDA_COPY, "copy");
    record->work.shape.bytes = bytes;
    record->work.values.buffer[0] = dml__cuda_address(to);
    record->work.values.buffer[1] = dml__cuda_address(from);
    return dml__cuda_end_record(device, record);
}

static dml_status dml__cuda_zero(dml_device *device, dml_ref to, size_t bytes)
{
    const dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status != DML_OK || bytes == 0) return status;
    dml__cuda_record *record = dml__cuda_begin_record(device, DML__CUDA_ZERO, "zero");
    record->work.shape.bytes = bytes;
    record->work.shape.grid[0] = (to.offset | bytes) % 4 ? 1 : 4;
    record->work.values.buffer[0] = dml__cuda_address(to);
    return dml__cuda_end_record(device, record);
}

/* The grid for groups along x and y: a grid's y is short (65535), so it is cut into z layers of equal height,
   which the kernels' GROUP_Y puts together again. The last layer's surplus, less than z groups, finds nothing
   to do, since every kernel checks its bounds. */
static dim3 dml__cuda_grid(const size_t groups[2], dim3 most)
{
    const size_t layers = (groups[1] + most.y - 1) / most.y;
    return dim3((unsigned)groups[0], (unsigned)((groups[1] + layers - 1) / layers), (unsigned)layers);
}

/* On tensor cores, with rounded factors; false: the shared kernel is to do it, with those of f32. */
static bool dml__cuda_launch_tensor(dml_device *device, const dml_launch *launch,
                                    const dml__kernel_launch *ready, dml_status *status)
{
    dml__cuda *state = dml__cuda_of(device);
    const int type = dml__tensor_type_of(device);
    const dml__tensor_job job = type ? dml__tensor_job_of(launch, type) : DML__TENSOR_NOTHING;
    if (!job) return false;
    if (state->tensor_open && !dml__tensor_can(&state->tensor, type, 1))
        return false; /* nor is anything sent */
    *status = dml__cuda_enter_in_order(device);
    if (*status != DML_OK) return true;
    if (!state->tensor_open) dml__tensor_open(&state->tensor);
    state->tensor_open = true;
    dml__cuda_mark *mark = dml__cuda_mark_begins(device, dml__tensor_job_name(job, true));
    const cudaError_t error = dml__cuda_mark_ends(
        device, mark, dml__tensor_run(&state->tensor, state->stream, type, job, launch, &ready->arguments));
    if (error == cudaErrorNotSupported || error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return false;
    }
    *status = dml__cuda_check(device, error, "cudaLaunchKernel", launch->kernel);
    if (*status == DML_OK) *status = dml__tensor_end(device, job, launch);
    return true;
}

static dml_status dml__cuda_launch(dml_device *device, const dml_launch *launch)
{
    dml__cuda *state = dml__cuda_of(device);
    dml__kernel_launch ready;
    dml_status status = dml__prepare_launch(device, launch, &state->index, &state->choice, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
    if (dml__cuda_launch_tensor(device, launch, &ready, &status)) return status;
    const int shares = dml__gemm_shares(launch);
    if (shares > 1 && dml__launch_in_shares(device, launch, shares, &state->shares, &status)) return status;
    dml__cuda_record *record =
        dml__cuda_begin_record(device, DML__CUDA_RUN, dml__kernel_row_at(ready.kernel)->name);
    dml__cuda_work *work = &record->work;
    const dim3 grid = dml__cuda_grid(ready.groups, state->most);
    work->shape.kernel = dml__cuda_kernel(ready.kernel);
    work->shape.grid[0] = grid.x, work->shape.grid[1] = grid.y, work->shape.grid[2] = grid.z;
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++)
        if (launch->buffer[i].buffer) work->values.buffer[i] = dml__cuda_address(launch->buffer[i]);
    work->values.arguments = ready.arguments;
    memset(work->values.arguments.offset, 0, sizeof work->values.arguments.offset); /* they are added */
    return dml__cuda_end_record(device, record);
}

static dml_status dml__cuda_finish(dml_device *device)
{
    dml_status status = dml__cuda_enter_in_order(device);
    if (status == DML_OK) status = dml__cuda_wait(device, "finish");
    if (status == DML_OK) dml__cuda_settle(device);
    return status;
}

static dml_status dml__cuda_lend(dml_device *device, dml_ref ref, void **address, void **stream)
{
    *address = dml__cuda_address(ref);
    *stream = dml__cuda_of(device)->stream;
    return dml__cuda_enter_in_order(device);
}

static dml_status dml__cuda_profile(dml_device *device, bool on)
{
    dml__cuda *state = dml__cuda_of(device);
    const dml_status status = dml__cuda_finish(device);
    state->timed = on && status == DML_OK;
    if (!on) dml__cuda_destroy_marks(state);
    return status;
}

DML__EXTERN_C const dml_backend *dml_cuda_backend(void)
{
    static const dml_backend backend = { "cuda",
                                         dml__cuda_count,
                                         dml__cuda_describe,
                                         dml__cuda_open,
                                         dml__cuda_close,
                                         dml__cuda_buffer_create,
                                         dml__cuda_buffer_destroy,
                                         dml__cuda_write,
                                         dml__cuda_read,
                                         dml__cuda_copy,
                                         dml__cuda_zero,
                                         dml__cuda_launch,
                                         dml__cuda_finish,
                                         dml__cuda_flush,
                                         dml__cuda_profile,
                                         dml__cuda_read_start,
                                         dml__cuda_read_end,
                                         dml__cuda_pin,
                                         dml__cuda_unpin,
                                         dml__cuda_lend };
    return &backend;
}

#endif
