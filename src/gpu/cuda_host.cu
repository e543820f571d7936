/* cuda_host.cu: the CUDA backend, over the runtime API, with the shared kernels compiled in. */
#ifndef DML_GPU_CUDA_HOST_CU
#define DML_GPU_CUDA_HOST_CU

#include "base/clock.h"
#include "base/dtype.h"
#include "device/backend.h"
#include "gpu/arguments.h"
#include "gpu/cuda_queue.cuh"
#include "gpu/cuda_reads.cuh"
#include "gpu/cuda_staging.cuh"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"
#include "gpu/tune.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "gpu/kernels.cl"
#include "gpu/tensor_launch.cuh"

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
