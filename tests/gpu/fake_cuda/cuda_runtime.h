/* cuda_runtime.h: a CUDA runtime of two small cards that live in this process, for testing
   src/gpu/cuda_host.cu where there is no NVIDIA driver. Kernels run as host C. A grid's y ends at 2, so that
   the host's layers are put to the test, and a call on another card's stream or memory is an error. What is
   queued is done when somebody waits for it and not before, and then from pinned memory as it is by then. */
#ifndef DML_TESTS_GPU_FAKE_CUDA_H
#define DML_TESTS_GPU_FAKE_CUDA_H

#include "base/clock.h"
#include "gpu/host_device.c"

#include <deque>
#include <functional>
#include <map>

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorECCUncorrectable = 214,
    cudaErrorIllegalAddress = 700,
    cudaErrorHardwareStackError = 714,
    cudaErrorLaunchFailure = 719
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaDeviceAttr { cudaDevAttrClockRate = 13 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct fake_stream {
    int device;
    std::deque<std::function<void()>> work;
};
typedef fake_stream *cudaStream_t;
struct fake_event {
    int device;
    double time;         /* 0: never recorded, or not reached yet */
    fake_stream *stream; /* that it is yet to come in; NULL: none */
    bool times;
};
typedef fake_event *cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int multiProcessorCount, major, minor, maxGridSize[3];
};
struct cudaFuncAttributes {
    int binaryVersion;
};

static struct {
    int device;
    cudaError_t last;
    std::map<char *, std::pair<size_t, int>> memory; /* address: bytes, device */
    std::map<char *, size_t> pinned;                 /* address: bytes */
    std::map<fake_stream *, bool> streams;
    int waits; /* of the host, for something that was still to do */
} fake;

extern "C" int fake_cuda_waits(void);
extern "C" int fake_cuda_waits(void)
{
    return fake.waits;
}

static bool fake_is_pinned(const void *address, size_t bytes)
{
    std::map<char *, size_t>::iterator i = fake.pinned.upper_bound((char *)(uintptr_t)address);
    if (i == fake.pinned.begin()) return false;
    --i;
    return (const char *)address + bytes <= i->first + i->second;
}

/* Does what is queued, up to where the event was recorded last. */
static void fake_work(fake_stream *stream, const fake_event *until)
{
    if (!stream->work.empty()) fake.waits++;
    while (!stream->work.empty() && !(until && until->stream != stream)) {
        const std::function<void()> next = stream->work.front();
        stream->work.pop_front();
        next();
    }
}

static cudaError_t fake_result(bool ok, cudaError_t error)
{
    if (ok) return cudaSuccess;
    return fake.last = error;
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
    const cudaError_t last = fake.last;
    fake.last = cudaSuccess;
    return last;
}

/* FAKE_CUDA=none: as without a driver; old: with one older than the toolkit; hidden: without a card that the
   process may see; full: no memory left for code; other: code for other cards; taken: a card in exclusive
   mode, which another process has; lost: every launch ends on an illegal address; unpinned: no memory can be
   pinned. */
static bool fake_is(const char *mode)
{
    const char *set = getenv("FAKE_CUDA");
    return set && strcmp(set, mode) == 0;
}

static cudaError_t cudaGetDeviceCount(int *count)
{
    const bool none = fake_is("none") || fake_is("old") || fake_is("hidden");
    *count = none ? 7 : 2; /* what it writes on an error means nothing */
    return fake_result(!none, (cudaError_t)(fake_is("hidden") ? 100 : 35));
}

static cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_is("none") ? 0 : fake_is("old") ? 12040 : CUDART_VERSION;
    return cudaSuccess;
}

static cudaError_t cudaSetDevice(int device)
{
    if (device >= 0 && device < 2) fake.device = device;
    if (fake_is("taken")) return fake_result(false, cudaErrorDevicesUnavailable);
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
}

static cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "fake card");
    properties->totalGlobalMem = 1u << 30;
    properties->multiProcessorCount = 2;
    properties->major = 9;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = 2;
    properties->maxGridSize[2] = 65535;
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
}

static cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    *value = 1500000;
    return fake_result(what == cudaDevAttrClockRate && device >= 0 && device < 2, cudaErrorInvalidValue);
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
    if (fake_is("full")) return fake_result(false, cudaErrorMemoryAllocation);
    if (fake_is("other")) return fake_result(false, cudaErrorNoKernelImageForDevice);
    return fake_result(fake_kernel(function) >= 0, cudaErrorInvalidDeviceFunction);
}

static cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new fake_stream;
    (*stream)->device = fake.device;
    fake.streams[*stream] = true;
    return cudaSuccess;
}

static cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_work(stream, NULL);
    fake.streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

static cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const bool ok = stream && stream->device == fake.device;
    if (ok) fake_work(stream, NULL);
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned)
{
    if (fake_is("unpinned")) return fake_result(false, cudaErrorMemoryAllocation);
    *address = malloc(bytes);
    fake.pinned[(char *)*address] = bytes;
    return cudaSuccess;
}

static cudaError_t cudaFreeHost(void *address)
{
    const bool ok = fake.pinned.erase((char *)address) == 1;
    if (ok) free(address);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaMalloc(void **address, size_t bytes)
{
    if (bytes > 1u << 30) return fake_result(false, cudaErrorMemoryAllocation);
    *address = malloc(bytes);
    fake.memory[(char *)*address] = std::make_pair(bytes, fake.device);
    return cudaSuccess;
}

static cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *all = 1u << 30;
    *left = *all;
    for (std::map<char *, std::pair<size_t, int>>::iterator i = fake.memory.begin(); i != fake.memory.end();
         ++i)
        if (i->second.second == fake.device) *left -= i->second.first;
    return cudaSuccess;
}

static cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = new fake_event;
    (*event)->device = fake.device;
    (*event)->time = 0;
    (*event)->stream = NULL;
    (*event)->times = flags != cudaEventDisableTiming;
    return cudaSuccess;
}

static cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

static cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event->stream) fake_work(event->stream, NULL);
    delete event;
    return cudaSuccess;
}

static cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const bool ok = event->device == fake.device && stream->device == fake.device;
    if (!ok) return fake_result(false, cudaErrorInvalidResourceHandle);
    event->stream = stream;
    event->time = 0;
    stream->work.push_back([event]() {
        event->time = dml_seconds();
        event->stream = NULL;
    });
    return cudaSuccess;
}

static cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const bool ok = event->device == fake.device;
    if (ok && event->stream) fake_work(event->stream, event);
    return fake_result(ok, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    *milliseconds = (float)(1e3 * (to->time - from->time));
    return fake_result(from->times && to->times && from->time > 0 && to->time > 0,
                       cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaFree(void *address)
{
    for (std::map<fake_stream *, bool>::iterator i = fake.streams.begin(); i != fake.streams.end(); ++i)
        if (i->first->device == fake.device) fake_work(i->first, NULL);
    const bool ok = fake_owns(fake.device, address, 0) && fake.memory.erase((char *)address) == 1;
    if (ok) free(address);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream)
{
    const bool to_ours = fake_owns(stream->device, to, bytes) == (kind != cudaMemcpyDeviceToHost);
    const bool from_ours = fake_owns(stream->device, from, bytes) == (kind != cudaMemcpyHostToDevice);
    const bool ok = stream->device == fake.device && to_ours && from_ours;
    if (!ok) return fake_result(false, cudaErrorInvalidValue);
    stream->work.push_back([to, from, bytes]() { memcpy(to, from, bytes); });
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    if (kind != cudaMemcpyDeviceToDevice && !fake_is_pinned(host, bytes)) fake_work(stream, NULL);
    return cudaSuccess;
}

static cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const bool ok = stream->device == fake.device && fake_owns(fake.device, to, bytes);
    if (ok) stream->work.push_back([to, value, bytes]() { memset(to, value, bytes); });
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream)
{
    const int kernel = fake_kernel(function);
    bool ok = kernel >= 0 && block.x == DML__GROUP_ITEMS && block.y == 1 && block.z == 1 && shared == 0;
    ok = ok && stream->device == fake.device && grid.x > 0 && grid.y > 0 && grid.y <= 2 && grid.z > 0;
    if (fake_is("lost")) return fake_result(false, cudaErrorIllegalAddress);
    struct {
        void *at[6];
    } buffers;
    for (int i = 0; i < 6; i++) {
        buffers.at[i] = *(void **)arguments[i];
        ok = ok && (!buffers.at[i] || fake_owns(fake.device, buffers.at[i], 0));
    }
    const dml__kernel_arguments values = *(dml__kernel_arguments *)arguments[6];
    if (ok)
        stream->work.push_back([kernel, grid, buffers, values]() {
            dml__host_run(kernel, grid.x, (size_t)grid.y * grid.z, buffers.at, &values);
        });
    return fake_result(ok, cudaErrorInvalidValue);
}

#endif
