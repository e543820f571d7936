/* cuda_runtime.h: a CUDA runtime of two small cards that live in this process, for testing
   src/gpu/cuda_host.cu where there is no NVIDIA driver. Kernels run as host C. A grid's y ends at 2, so that
   the host's layers are put to the test, and a call on another card's stream or memory is an error. */
#ifndef DML_TESTS_GPU_FAKE_CUDA_H
#define DML_TESTS_GPU_FAKE_CUDA_H

#include "gpu/host_device.c"

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
    cudaErrorInvalidResourceHandle = 400
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1 };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct fake_stream {
    int device;
};
typedef fake_stream *cudaStream_t;

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
} fake;

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

/* FAKE_CUDA=none: as without a driver; full: no memory left for code; other: code for other cards. */
static bool fake_is(const char *mode)
{
    const char *set = getenv("FAKE_CUDA");
    return set && strcmp(set, mode) == 0;
}

static cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake_is("none") ? 7 : 2; /* what it writes on an error means nothing */
    return fake_result(!fake_is("none"), (cudaError_t)35);
}

static cudaError_t cudaSetDevice(int device)
{
    if (device >= 0 && device < 2) fake.device = device;
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
}

static cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "fake card");
    properties->totalGlobalMem = 1u << 30;
    properties->multiProcessorCount = 2;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = 2;
    properties->maxGridSize[2] = 65535;
    return fake_result(device >= 0 && device < 2, cudaErrorInvalidDevice);
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
    return cudaSuccess;
}

static cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

static cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return fake_result(stream && stream->device == fake.device, cudaErrorInvalidResourceHandle);
}

static cudaError_t cudaMalloc(void **address, size_t bytes)
{
    if (bytes > 1u << 30) return fake_result(false, cudaErrorMemoryAllocation);
    *address = malloc(bytes);
    fake.memory[(char *)*address] = std::make_pair(bytes, fake.device);
    return cudaSuccess;
}

static cudaError_t cudaFree(void *address)
{
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
    if (ok) memcpy(to, from, bytes);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const bool ok = stream->device == fake.device && fake_owns(fake.device, to, bytes);
    if (ok) memset(to, value, bytes);
    return fake_result(ok, cudaErrorInvalidValue);
}

static cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream)
{
    const int kernel = fake_kernel(function);
    bool ok = kernel >= 0 && block.x == DML__GROUP_ITEMS && block.y == 1 && block.z == 1 && shared == 0;
    ok = ok && stream->device == fake.device && grid.x > 0 && grid.y > 0 && grid.y <= 2 && grid.z > 0;
    void *buffers[6];
    for (int i = 0; i < 6; i++) {
        buffers[i] = *(void **)arguments[i];
        ok = ok && (!buffers[i] || fake_owns(fake.device, buffers[i], 0));
    }
    if (ok)
        dml__host_run(kernel, grid.x, (size_t)grid.y * grid.z, buffers,
                      (dml__kernel_arguments *)arguments[6]);
    return fake_result(ok, cudaErrorInvalidValue);
}

#endif
