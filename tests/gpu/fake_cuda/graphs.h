/* graphs.h: graphs of the fake runtime: chains of nodes, each behind the one before. */
#ifndef DML_TESTS_GPU_FAKE_CUDA_GRAPHS_H
#define DML_TESTS_GPU_FAKE_CUDA_GRAPHS_H

struct cudaKernelNodeParams {
    void *func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams;
    void **extra;
};
struct cudaMemsetParams {
    void *dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
};
struct fake_node {
    struct fake_graph *graph;
    size_t place;
    char kind; /* 'k'ernel, 's'et, 'c'opy */
};
typedef fake_node *cudaGraphNode_t;
struct fake_graph {
    int device;
    std::vector<fake_node *> nodes;
    std::vector<std::function<void()>> work;
};
typedef fake_graph *cudaGraph_t;
struct fake_run {
    fake_graph *graph;
    std::vector<std::function<void()>> work; /* as it has been changed to */
};
typedef fake_run *cudaGraphExec_t;

static cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned)
{
    fake_lock lock(fake_mutex);
    *graph = new fake_graph;
    (*graph)->device = fake_device;
    fake.alive++;
    return cudaSuccess;
}

static cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    fake_lock lock(fake_mutex);
    for (size_t i = 0; i < graph->nodes.size(); i++) delete graph->nodes[i];
    delete graph;
    fake.alive--;
    return cudaSuccess;
}

static cudaError_t fake_add(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                            size_t count, char kind, const std::function<void()> &work, cudaError_t error)
{
    const size_t place = graph->nodes.size();
    const bool chained = place == 0 ? count == 0 : count == 1 && *after == graph->nodes[place - 1];
    if (error != cudaSuccess || !chained) return fake_result(false, cudaErrorInvalidValue);
    *node = new fake_node;
    (*node)->graph = graph, (*node)->place = place, (*node)->kind = kind;
    graph->nodes.push_back(*node);
    graph->work.push_back(work);
    return cudaSuccess;
}

static cudaError_t fake_change(cudaGraphExec_t run, cudaGraphNode_t node, char kind,
                               const std::function<void()> &work, cudaError_t error)
{
    const bool ok = error == cudaSuccess && node->graph == run->graph && node->kind == kind;
    if (ok && !fake_is("fixed graphs")) run->work[node->place] = work;
    fake.changes++;
    return fake_result(ok && !fake_is("fixed graphs"), cudaErrorInvalidValue);
}

static cudaError_t fake_set_work(const cudaMemsetParams *p, std::function<void()> *work)
{
    const cudaMemsetParams params = *p;
    const size_t bytes = params.width * params.elementSize;
    *work = [params]() {
        for (size_t i = 0; i < params.width; i++) /* little-endian */
            memcpy((char *)params.dst + i * params.elementSize, &params.value, params.elementSize);
    };
    const bool ok = (params.elementSize == 1 || params.elementSize == 4) && params.height == 1 &&
                    (uintptr_t)params.dst % params.elementSize == 0 &&
                    fake_owns(fake_device, params.dst, bytes);
    return ok ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t fake_copy_work(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                  std::function<void()> *work)
{
    *work = [to, from, bytes]() { memcpy(to, from, bytes); };
    const bool ok = kind == cudaMemcpyDeviceToDevice && fake_owns(fake_device, to, bytes) &&
                    fake_owns(fake_device, from, bytes);
    return ok ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *after, size_t count,
                                          const cudaKernelNodeParams *p)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error =
        fake_kernel_work(p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, &work);
    return fake_add(node, graph, after, count, 'k', work, p->extra ? cudaErrorInvalidValue : error);
}

static cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t run, cudaGraphNode_t node,
                                                    const cudaKernelNodeParams *p)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error =
        fake_kernel_work(p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, &work);
    return fake_change(run, node, 'k', work, error);
}

static cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *after, size_t count,
                                          const cudaMemsetParams *params)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error = fake_set_work(params, &work);
    return fake_add(node, graph, after, count, 's', work, error);
}

static cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t run, cudaGraphNode_t node,
                                                    const cudaMemsetParams *params)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error = fake_set_work(params, &work);
    return fake_change(run, node, 's', work, error);
}

static cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph,
                                            const cudaGraphNode_t *after, size_t count, void *to,
                                            const void *from, size_t bytes, cudaMemcpyKind kind)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error = fake_copy_work(to, from, bytes, kind, &work);
    return fake_add(node, graph, after, count, 'c', work, error);
}

static cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t run, cudaGraphNode_t node, void *to,
                                                      const void *from, size_t bytes, cudaMemcpyKind kind)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    const cudaError_t error = fake_copy_work(to, from, bytes, kind, &work);
    return fake_change(run, node, 'c', work, error);
}

static cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *run, cudaGraph_t graph, unsigned long long)
{
    fake_lock lock(fake_mutex);
    if (fake_is("no graphs")) return fake_result(false, cudaErrorMemoryAllocation);
    *run = new fake_run;
    (*run)->graph = graph;
    (*run)->work = graph->work;
    fake.alive++;
    return cudaSuccess;
}

static cudaError_t cudaGraphExecDestroy(cudaGraphExec_t run)
{
    fake_lock lock(fake_mutex);
    delete run;
    fake.alive--;
    return cudaSuccess;
}

static cudaError_t cudaGraphLaunch(cudaGraphExec_t run, cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool ok = stream->device == fake_device && run->graph->device == fake_device;
    if (fake_is("lost")) return fake_result(false, cudaErrorIllegalAddress);
    for (size_t i = 0; ok && i < run->work.size(); i++) stream->work.push_back(run->work[i]);
    fake.graphs += ok;
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

#endif
