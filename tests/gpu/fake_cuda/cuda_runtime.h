/* cuda_runtime.h: a CUDA runtime of two small cards that live in this process, for testing
   src/gpu/cuda_host.cu where there is no NVIDIA driver. Kernels run as host C. A grid's y ends at 2, so that
   the host's layers are put to the test, and a call on another card's stream or memory is an error. What is
   queued is done when somebody waits for it and not before, and then from pinned memory as it is by then. */
#ifndef DML_TESTS_GPU_FAKE_CUDA_H
#define DML_TESTS_GPU_FAKE_CUDA_H

#include "base/clock.h"
#include "gpu/host_device.c"

#include "warp.h"

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#define CUDART_VERSION 13000
enum { FAKE_UNITS = 2 };                     /* processors of a card */
enum { FAKE_MAJOR_0 = 8, FAKE_MAJOR_1 = 7 }; /* compute capability: the first card has tensor cores */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorNotSupported = 801,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorECCUncorrectable = 214,
    cudaErrorIllegalAddress = 700,
    cudaErrorHardwareStackError = 714,
    cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaDeviceAttr {
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDisableTiming = 2,
    cudaHostAllocDefault = 0,
    cudaHostRegisterDefault = 0
};

struct fake_stream {
    int device;
    std::deque<std::function<void()>> work;
    uint64_t done; /* of all that was ever queued */
};
typedef fake_stream *cudaStream_t;
struct fake_event {
    int device;
    double time;         /* 0: never recorded, or not reached yet */
    fake_stream *stream; /* that it is yet to come in; NULL: none */
    uint64_t place;      /* there: how much is done by then */
    bool times;
};
typedef fake_event *cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int multiProcessorCount, major, minor, maxGridSize[3];
};
struct cudaFuncAttributes {
    int binaryVersion, numRegs;
};

static struct {
    std::map<char *, std::pair<size_t, int>> memory; /* address: bytes, device */
    std::map<char *, size_t> pinned;                 /* address: bytes */
    std::map<fake_stream *, bool> streams;
    int waits;                 /* of the host, for something that was still to do */
    int sent, graphs, changes; /* single launches; launches of graphs; nodes that were changed */
    int alive;                 /* graphs that there are */
    uint64_t read;             /* bytes, to the host */
} fake;
static thread_local int fake_device;
static thread_local cudaError_t fake_last;
static std::recursive_mutex fake_mutex; /* of everything here: a replica has a thread */
typedef std::lock_guard<std::recursive_mutex> fake_lock;

/* For the tests, which are C. */
extern "C" int fake_cuda_sent(void);
extern "C" int fake_cuda_sent(void)
{
    return fake.sent;
}

extern "C" int fake_cuda_graphs(void);
extern "C" int fake_cuda_graphs(void)
{
    return fake.graphs;
}

extern "C" int fake_cuda_changes(void);
extern "C" int fake_cuda_changes(void)
{
    return fake.changes;
}

extern "C" int fake_cuda_alive(void);
extern "C" int fake_cuda_alive(void)
{
    return fake.alive;
}

extern "C" int fake_cuda_waits(void);
extern "C" int fake_cuda_waits(void)
{
    return fake.waits;
}

extern "C" uint64_t fake_cuda_read(void);
extern "C" uint64_t fake_cuda_read(void)
{
    return fake.read;
}

static bool fake_is_pinned(const void *address, size_t bytes)
{
    std::map<char *, size_t>::iterator i = fake.pinned.upper_bound((char *)(uintptr_t)address);
    if (i == fake.pinned.begin()) return false;
    --i;
    return (const char *)address + bytes <= i->first + i->second;
}

static void fake_work_once(fake_stream *stream)
{
    const std::function<void()> next = stream->work.front();
    stream->work.pop_front();
    stream->done++;
    next();
}

/* Does what is queued, up to where the event was recorded last. */
static void fake_work(fake_stream *stream, const fake_event *until)
{
    if (!stream->work.empty()) fake.waits++;
    while (!stream->work.empty() && !(until && until->stream != stream)) fake_work_once(stream);
}

static cudaError_t fake_result(bool ok, cudaError_t error)
{
    if (ok) return cudaSuccess;
    return fake_last = error;
}

/* All of the bytes lie in one allocation on this device. */
static bool fake_owns(int device, const void *address, size_t bytes)
{
    std::map<char *, std::pair<size_t, int>>::iterator i =
        fake.memory.upper_bound((char *)(uintptr_t)address);
    if (i == fake.memory.begin()) return false;
    --i;
    return i->second.second == device && (const char *)address + bytes <= i->first + i->second.first;
}

/* For another instance of the runtime in this process, tests/comm/fake_nccl.c: the current device, which is
   set first unless it is -1; whose an address is, -1: none's; and doing what is queued. */
extern "C" int fake_cuda_current(int device);
extern "C" int fake_cuda_current(int device)
{
    fake_lock lock(fake_mutex);
    if (device >= 0) fake_device = device;
    return fake_device;
}

extern "C" int fake_cuda_device_of(const void *address);
extern "C" int fake_cuda_device_of(const void *address)
{
    fake_lock lock(fake_mutex);
    for (int device = 0; device < 2; device++)
        if (fake_owns(device, address, 1)) return device;
    return -1;
}

extern "C" bool fake_cuda_finish(void *stream);
extern "C" bool fake_cuda_finish(void *stream)
{
    fake_lock lock(fake_mutex);
    const bool ours = fake.streams.count((fake_stream *)stream) == 1;
    if (ours) fake_work((fake_stream *)stream, NULL);
    return ours;
}

static const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "another error";
}

static const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "something else";
}

static cudaError_t cudaGetLastError(void)
{
    fake_lock lock(fake_mutex);
    const cudaError_t last = fake_last;
    fake_last = cudaSuccess;
    return last;
}

/* FAKE_CUDA=none: as without a driver; old: with one older than the toolkit; hidden: without a card that the
   process may see; full: no memory left for code; other: code for other cards; taken: a card in exclusive
   mode, which another process has; lost: every launch ends on an illegal address; unpinned: no memory can be
   pinned; no graphs: none can be instantiated; fixed graphs: their nodes can't be changed; refused: no kernel
   can be launched. */
static bool fake_is(const char *mode)
{
    const char *set = getenv("FAKE_CUDA");
    return set && strcmp(set, mode) == 0;
}

static cudaError_t cudaGetDeviceCount(int *count)
{
    fake_lock lock(fake_mutex);
    const bool none = fake_is("none") || fake_is("old") || fake_is("hidden");
    *count = none ? 7 : 2; /* what it writes on an error means nothing */
    return fake_result(!none, (cudaError_t)(fake_is("hidden") ? 100 : 35));
}

static cudaError_t cudaDriverGetVersion(int *version)
{
    fake_lock lock(fake_mutex);
    *version = fake_is("none") ? 0 : fake_is("old") ? 12040 : CUDART_VERSION;
    return cudaSuccess;
}

static cudaError_t cudaSetDevice(int device)
{
    fake_lock lock(fake_mutex);
    if (device >= 0 && device < 2) fake_device = device;
    if (fake_is("taken")) return fake_result(false, cudaErrorDevicesUnavailable);
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
}

static cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    fake_lock lock(fake_mutex);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "fake card");
    properties->totalGlobalMem = 1u << 30;
    properties->multiProcessorCount = FAKE_UNITS;
    properties->major = device ? FAKE_MAJOR_1 : FAKE_MAJOR_0;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = 2;
    properties->maxGridSize[2] = 65535;
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
}

static cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    fake_lock lock(fake_mutex);
    *value = what == cudaDevAttrClockRate                ? 1500000
             : what == cudaDevAttrMultiProcessorCount    ? FAKE_UNITS
             : what == cudaDevAttrComputeCapabilityMajor ? (device ? FAKE_MAJOR_1 : FAKE_MAJOR_0)
                                                         : 0;
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidValue);
}

static cudaError_t cudaGetDevice(int *device)
{
    fake_lock lock(fake_mutex);
    *device = fake_device;
    return cudaSuccess;
}

static int fake_kernel(const void *function)
{
    static const void *const kernels[] = {
#define FAKE_KERNEL(name, covers_x, covers_y) (const void *)dml__kernel_##name,
        DML__KERNEL_LIST(FAKE_KERNEL)
#undef FAKE_KERNEL
    };
    for (int i = 0; i < DML__KERNEL_COUNT; i++)
        if (kernels[i] == function) return i;
    return -1;
}

static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *function)
{
    fake_lock lock(fake_mutex);
    if (fake_is("full")) return fake_result(false, cudaErrorMemoryAllocation);
    if (fake_is("other")) return fake_result(false, cudaErrorNoKernelImageForDevice);
    return fake_result(fake_kernel(function) >= 0, cudaErrorInvalidDeviceFunction);
}

/* Kernels that are given as what they are have arguments of their own, and a body on the first card. */
template <typename... P>
static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*)(P...))
{
    fake_lock lock(fake_mutex);
    attributes->numRegs = fake_device ? 8 : 100;
    return cudaSuccess;
}

template <typename... P> static cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute, int bytes)
{
    return fake_result(bytes <= FAKE_SHARED, cudaErrorInvalidValue);
}

static cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    fake_lock lock(fake_mutex);
    *stream = new fake_stream;
    (*stream)->device = fake_device;
    (*stream)->done = 0;
    fake.streams[*stream] = true;
    return cudaSuccess;
}

static cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    fake_work(stream, NULL);
    fake.streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

static cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool ok = stream && stream->device == fake_device;
    if (ok) fake_work(stream, NULL);
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned)
{
    fake_lock lock(fake_mutex);
    if (fake_is("unpinned")) return fake_result(false, cudaErrorMemoryAllocation);
    *address = malloc(bytes);
    fake.pinned[(char *)*address] = bytes;
    return cudaSuccess;
}

static cudaError_t cudaFreeHost(void *address)
{
    fake_lock lock(fake_mutex);
    const bool ok = fake.pinned.erase((char *)address) == 1;
    if (ok) free(address);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned)
{
    fake_lock lock(fake_mutex);
    const bool ok = !fake_is("unpinned") && !fake_is_pinned(address, 1);
    if (ok) fake.pinned[(char *)address] = bytes;
    return fake_result(ok, cudaErrorMemoryAllocation);
}

static cudaError_t cudaHostUnregister(void *address)
{
    fake_lock lock(fake_mutex);
    return fake_result(fake.pinned.erase((char *)address) == 1, cudaErrorInvalidValue);
}

static cudaError_t cudaMalloc(void **address, size_t bytes)
{
    fake_lock lock(fake_mutex);
    if (bytes > 1u << 30) return fake_result(false, cudaErrorMemoryAllocation);
    if (posix_memalign(address, 256, bytes) != 0) return fake_result(false, cudaErrorMemoryAllocation);
    fake.memory[(char *)*address] = std::make_pair(bytes, fake_device);
    return cudaSuccess;
}

static cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    fake_lock lock(fake_mutex);
    *all = 1u << 30;
    *left = *all;
    for (std::map<char *, std::pair<size_t, int>>::iterator i = fake.memory.begin(); i != fake.memory.end();
         ++i)
        if (i->second.second == fake_device) *left -= i->second.first;
    return cudaSuccess;
}

static cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    fake_lock lock(fake_mutex);
    *event = new fake_event;
    (*event)->device = fake_device;
    (*event)->time = 0;
    (*event)->stream = NULL;
    (*event)->place = 0;
    (*event)->times = flags != cudaEventDisableTiming;
    return cudaSuccess;
}

static cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    fake_lock lock(fake_mutex);
    return cudaEventCreateWithFlags(event, 0);
}

static cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    fake_lock lock(fake_mutex);
    if (event->stream) fake_work(event->stream, NULL);
    delete event;
    return cudaSuccess;
}

static cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool ok = event->device == fake_device && stream->device == fake_device;
    if (!ok) return fake_result(false, cudaErrorInvalidResourceHandle);
    event->stream = stream;
    event->place = stream->done + stream->work.size() + 1;
    event->time = 0;
    stream->work.push_back([event, stream]() {
        if (stream->done != event->place) return; /* it was recorded again */
        event->time = dml_seconds();
        event->stream = NULL;
    });
    return cudaSuccess;
}

/* Each look lets the card do a little. */
static cudaError_t cudaEventQuery(cudaEvent_t event)
{
    fake_lock lock(fake_mutex);
    const bool ok = event->device == fake_device;
    if (ok && event->stream) fake_work_once(event->stream);
    return fake_result(ok && !event->stream, ok ? cudaErrorNotReady : cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    fake_lock lock(fake_mutex);
    fake_stream *first = event->stream;
    const uint64_t place = event->place;
    const bool ok = event->device == fake_device && stream->device == fake_device;
    if (ok && first)
        stream->work.push_back([first, place]() {
            while (first->done < place) fake_work_once(first);
        });
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    fake_lock lock(fake_mutex);
    const bool ok = event->device == fake_device;
    if (ok && event->stream) fake_work(event->stream, event);
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    fake_lock lock(fake_mutex);
    *milliseconds = (float)(1e3 * (to->time - from->time));
    return fake_result(from->times && to->times && from->time > 0 && to->time > 0,
                       cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaFree(void *address)
{
    fake_lock lock(fake_mutex);
    for (std::map<fake_stream *, bool>::iterator i = fake.streams.begin(); i != fake.streams.end(); ++i)
        if (i->first->device == fake_device) fake_work(i->first, NULL);
    const bool ok = fake_owns(fake_device, address, 0) && fake.memory.erase((char *)address) == 1;
    if (ok) free(address);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool to_ours = fake_owns(stream->device, to, bytes) == (kind != cudaMemcpyDeviceToHost);
    const bool from_ours = fake_owns(stream->device, from, bytes) == (kind != cudaMemcpyHostToDevice);
    const bool ok = stream->device == fake_device && to_ours && from_ours;
    if (!ok) return fake_result(false, cudaErrorInvalidValue);
    stream->work.push_back([to, from, bytes]() { memcpy(to, from, bytes); });
    fake.read += kind == cudaMemcpyDeviceToHost ? bytes : 0;
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    if (kind != cudaMemcpyDeviceToDevice && !fake_is_pinned(host, bytes)) fake_work(stream, NULL);
    return cudaSuccess;
}

static cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool ok = stream->device == fake_device && fake_owns(fake_device, to, bytes);
    if (ok) stream->work.push_back([to, value, bytes]() { memset(to, value, bytes); });
    return fake_result(ok, cudaErrorInvalidValue);
}

/* A kernel with what it is given, or why it can't be launched. */
static cudaError_t fake_kernel_work(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, std::function<void()> *work)
{
    const int kernel = fake_kernel(function);
    bool ok = kernel >= 0 && block.x == DML__GROUP_ITEMS && block.y == 1 && block.z == 1 && shared == 0;
    ok = ok && grid.x > 0 && grid.y > 0 && grid.y <= 2 && grid.z > 0;
    struct {
        void *at[6];
    } buffers;
    for (int i = 0; i < 6; i++) {
        buffers.at[i] = *(void **)arguments[i];
        ok = ok && (!buffers.at[i] || fake_owns(fake_device, buffers.at[i], 0));
    }
    const dml__kernel_arguments values = *(dml__kernel_arguments *)arguments[6];
    *work = [kernel, grid, buffers, values]() {
        dml__host_run(kernel, grid.x, (size_t)grid.y * grid.z, buffers.at, &values);
    };
    return ok ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    std::function<void()> work;
    if (fake_is("lost")) return fake_result(false, cudaErrorIllegalAddress);
    if (fake_is("refused")) return fake_result(false, cudaErrorInvalidValue);
    const cudaError_t error = fake_kernel_work(function, grid, block, arguments, shared, &work);
    const bool ok = error == cudaSuccess && stream->device == fake_device;
    if (ok) stream->work.push_back(work);
    fake.sent += ok;
    return fake_result(ok, cudaErrorInvalidValue);
}

template <typename... P>
static cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream)
{
    fake_lock lock(fake_mutex);
    const bool ok = stream->device == fake_device && grid.x > 0 && grid.y > 0 && grid.z > 0 &&
                    block.x <= FAKE_ITEMS && block.y == 1 && block.z == 1 && shared <= FAKE_SHARED;
    if (fake_is("lost")) return fake_result(false, cudaErrorIllegalAddress);
    if (!ok || fake_is("refused")) return fake_result(false, cudaErrorInvalidValue);
    const std::function<void()> call =
        fake_bind(kernel, arguments, typename fake_count<(int)sizeof...(P)>::type());
    stream->work.push_back([grid, block, shared, call]() { fake_grid_run(grid, block, shared, call); });
    fake.sent++;
    return cudaSuccess;
}

#include "graphs.h"

#endif
