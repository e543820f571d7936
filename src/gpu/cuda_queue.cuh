/* cuda_queue.cuh: what a card was given to do and wasn't sent yet, and sending it as a graph. A training step
   is the same launches each time, so after it was sent twice one by one the whole is one call. */
#ifndef DML_GPU_CUDA_QUEUE_CUH
#define DML_GPU_CUDA_QUEUE_CUH

#include "device/backend.h"
#include "gpu/arguments.h"

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
