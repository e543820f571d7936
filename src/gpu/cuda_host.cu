/* cuda_host.cu: the CUDA backend, over the runtime API, with the shared kernels compiled in. */
#ifndef DML_GPU_CUDA_HOST_CU
#define DML_GPU_CUDA_HOST_CU

#include "device/backend.h"
#include "gpu/arguments.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "gpu/kernels.cl"

/* An open device. Every call makes it the calling thread's current device, and it stays so. */
typedef struct dml__cuda {
    cudaStream_t stream;
    char name[128];
    dim3 most; /* groups along x, y and z in one launch */
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

/* DML_OK for cudaSuccess, else a recorded sentence: which device, what was called, on what, and the error. */
static dml_status dml__cuda_check(dml_device *device, cudaError_t error, const char *call, const char *on)
{
    if (error == cudaSuccess) return DML_OK;
    (void)cudaGetLastError(); /* or an error that passes, such as too large a malloc, is found again later */
    return dml_device_fail(device, error == cudaErrorMemoryAllocation ? DML_ERROR_MEMORY : DML_ERROR_DEVICE,
                           "cuda:%d (%s): %s(%s) failed with %s: %s", device->index,
                           device->state ? dml__cuda_of(device)->name : "?", call, on,
                           cudaGetErrorName(error), cudaGetErrorString(error));
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
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->memory = properties.totalGlobalMem;
    info->compute_units = properties.multiProcessorCount;
    info->gpu = true;
}

static void dml__cuda_close(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    if (!state) return;
    if (state->stream && cudaSetDevice(device->index) == cudaSuccess) {
        (void)cudaStreamSynchronize(state->stream);
        (void)cudaStreamDestroy(state->stream);
    }
    (void)cudaGetLastError();
    dml_device_release(device, state);
    device->state = NULL;
}

static dml_status dml__cuda_prepare(dml_device *device)
{
    dml__cuda *state = dml__cuda_of(device);
    cudaDeviceProp properties;
    const int count = dml__cuda_count();
    if (count == 0)
        return dml_device_fail(device, DML_ERROR_DEVICE,
                               "no CUDA device: there is no NVIDIA card, or its driver is missing or older "
                               "than CUDA %d.%d, with which this was compiled",
                               CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (device->index < 0 || device->index >= count)
        return dml_device_fail(device, DML_ERROR_DEVICE, "no device cuda:%d: %d were found", device->index,
                               count);
    dml_status status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    status = dml__cuda_check(device, cudaGetDeviceProperties(&properties, device->index),
                             "cudaGetDeviceProperties", "");
    if (status != DML_OK) return status;
    snprintf(state->name, sizeof state->name, "%.*s", (int)sizeof state->name - 1, properties.name);
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
    return dml__cuda_check(device, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking),
                           "cudaStreamCreateWithFlags", "");
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
    char size[32];
    buffer->host = NULL;
    buffer->handle = NULL;
    snprintf(size, sizeof size, "%llu bytes", (unsigned long long)buffer->bytes);
    const dml_status status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    return dml__cuda_check(device, cudaMalloc(&buffer->handle, buffer->bytes), "cudaMalloc", size);
}

static void dml__cuda_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
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

static dml_status dml__cuda_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    status = dml__cuda_check(device,
                             cudaMemcpyAsync(dml__cuda_address(to), from, bytes, cudaMemcpyHostToDevice,
                                             dml__cuda_of(device)->stream),
                             "cudaMemcpyAsync", "write");
    return status == DML_OK ? dml__cuda_wait(device, "write") : status;
}

static dml_status dml__cuda_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    status = dml__cuda_check(device,
                             cudaMemcpyAsync(to, dml__cuda_address(from), bytes, cudaMemcpyDeviceToHost,
                                             dml__cuda_of(device)->stream),
                             "cudaMemcpyAsync", "read");
    return status == DML_OK ? dml__cuda_wait(device, "read") : status;
}

static dml_status dml__cuda_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status == DML_OK) status = dml__check_ref(device, to, bytes, "copy to");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    return dml__cuda_check(device,
                           cudaMemcpyAsync(dml__cuda_address(to), dml__cuda_address(from), bytes,
                                           cudaMemcpyDeviceToDevice, dml__cuda_of(device)->stream),
                           "cudaMemcpyAsync", "copy");
}

static dml_status dml__cuda_zero(dml_device *device, dml_ref to, size_t bytes)
{
    dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status != DML_OK || bytes == 0) return status;
    status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    return dml__cuda_check(device,
                           cudaMemsetAsync(dml__cuda_address(to), 0, bytes, dml__cuda_of(device)->stream),
                           "cudaMemsetAsync", "zero");
}

/* The grid for groups along x and y: a grid's y is short (65535), so it is cut into z layers of equal height,
   which the kernels' GROUP_Y puts together again. The last layer's surplus, less than z groups, finds nothing
   to do, since every kernel checks its bounds. */
static dim3 dml__cuda_grid(const size_t groups[2], dim3 most)
{
    const size_t layers = (groups[1] + most.y - 1) / most.y;
    return dim3((unsigned)groups[0], (unsigned)((groups[1] + layers - 1) / layers), (unsigned)layers);
}

static dml_status dml__cuda_launch(dml_device *device, const dml_launch *launch)
{
    dml__cuda *state = dml__cuda_of(device);
    dml__kernel_launch ready;
    dml_status status = dml__prepare_launch(device, launch, DML__SOLO_NONE, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
    status = dml__cuda_enter(device);
    if (status != DML_OK) return status;
    char *buffers[DML_LAUNCH_BUFFERS];
    void *arguments[DML_LAUNCH_BUFFERS + 1]; /* the address of each argument */
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) {
        buffers[i] = launch->buffer[i].buffer ? (char *)launch->buffer[i].buffer->handle : NULL;
        arguments[i] = &buffers[i];
    }
    arguments[DML_LAUNCH_BUFFERS] = &ready.arguments;
    const cudaError_t error =
        cudaLaunchKernel(dml__cuda_kernel(ready.kernel), dml__cuda_grid(ready.groups, state->most),
                         dim3((unsigned)ready.items, 1, 1), arguments, 0, state->stream);
    return dml__cuda_check(device, error, "cudaLaunchKernel", launch->kernel);
}

static dml_status dml__cuda_finish(dml_device *device)
{
    const dml_status status = dml__cuda_enter(device);
    return status == DML_OK ? dml__cuda_wait(device, "finish") : status;
}

DML__EXTERN_C const dml_backend *dml_cuda_backend(void)
{
    static const dml_backend backend = {
        "cuda",          dml__cuda_count,         dml__cuda_describe,       dml__cuda_open,
        dml__cuda_close, dml__cuda_buffer_create, dml__cuda_buffer_destroy, dml__cuda_write,
        dml__cuda_read,  dml__cuda_copy,          dml__cuda_zero,           dml__cuda_launch,
        dml__cuda_finish
    };
    return &backend;
}

#endif
