/* opencl_host.c: the OpenCL backend, over OpenCL 1.2 as the system's loader gives it (libOpenCL.so.1, opened
   when first needed: a program that has it linked in starts without it). */
#ifndef DML_GPU_OPENCL_HOST_C
#define DML_GPU_OPENCL_HOST_C

#include "base/clock.h"
#include "device/backend.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"
#include "gpu/opencl_devices.h"
#include "gpu/opencl_library.h"
#include "gpu/opencl_profile.h"
#include "gpu/opencl_program.h"
#include "gpu/opencl_reads.h"
#include "gpu/opencl_staging.h"
#include "gpu/opencl_state.h"
#include "gpu/tune.h"

/* ---- opening and closing ---- */

/* Whether the device's items are a CPU's, and how wide its vectors are. */
static void dml__opencl_choose(dml__opencl *state)
{
    cl_device_type type = 0;
    cl_uint lanes = 0, units = 0;
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof lanes, &lanes, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof state->memory, &state->memory,
                               NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof state->largest,
                               &state->largest, NULL);
    state->choice.units = (int)units;
    state->lanes = lanes >= 16 ? 16 : lanes >= 8 ? 8 : 4;
    if (type & CL_DEVICE_TYPE_CPU) /* Oclgrind is every type at once */
        state->choice.solo = type & CL_DEVICE_TYPE_GPU ? DML__SOLO_BY_NAME : DML__SOLO_BEST;
}

static dml_status dml__opencl_prepare(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_device_id ids[DML__OPENCL_DEVICES];
    cl_int error;
    if (!dml__opencl_load(&state->cl))
        return dml_device_fail(
            device, DML_ERROR_DEVICE,
            "no OpenCL here: libOpenCL.so.1 (1.2 or later) was not found; install a loader "
            "(ocl-icd) and a driver");
    const int count = dml__opencl_list(&state->cl, ids, DML__OPENCL_DEVICES);
    if (count == 0)
        return dml_device_fail(
            device, DML_ERROR_DEVICE,
            "no OpenCL device found: there is no driver for one of OpenCL 1.2 or later with a "
            "compiler (clinfo lists what there is)");
    if (device->index < 0 || device->index >= count)
        return dml_device_fail(device, DML_ERROR_DEVICE, "no device opencl:%d: %d were found", device->index,
                               count);
    state->id = ids[device->index];
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_NAME, sizeof state->name - 1, state->name, NULL);
    state->context = state->cl.clCreateContext_(NULL, 1, &state->id, NULL, NULL, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateContext", "");
    state->queue = state->cl.clCreateCommandQueue_(state->context, state->id, 0, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateCommandQueue", "");
    dml__opencl_choose(state);
    dml__fill_kernel_index(&state->index);
    dml_status status = dml__opencl_build(device);
    if (status == DML_OK) status = dml__opencl_find_kernels(device);
    return status == DML_OK ? dml__tune(device, &state->choice, state->name) : status;
}

/* Releases what an open, or half open, device holds. */
static void dml__opencl_close(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!state) return;
    if (state->queue) state->cl.clFinish_(state->queue);
    for (int i = 0; i < state->marks; i++) state->cl.clReleaseEvent_(state->mark[i].event);
    dml__opencl_destroy_staging(state);
    if (state->shares.handle) state->cl.clReleaseMemObject_((cl_mem)state->shares.handle);
    for (int i = 0; i < DML__KERNEL_COUNT; i++)
        if (state->kernels[i]) state->cl.clReleaseKernel_(state->kernels[i]);
    if (state->program) state->cl.clReleaseProgram_(state->program);
    if (state->queue) state->cl.clReleaseCommandQueue_(state->queue);
    if (state->context) state->cl.clReleaseContext_(state->context);
    dml_device_release(device, state);
    device->state = NULL;
}

static dml_status dml__opencl_open(dml_device *device)
{
    device->host_memory = false;
    device->state = dml_device_allocate(device, sizeof(dml__opencl));
    if (!device->state)
        return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left to open opencl:%d", device->index);
    const dml_status status = dml__opencl_prepare(device);
    if (status != DML_OK) dml__opencl_close(device);
    return status;
}

/* ---- buffers ---- */

static dml_status dml__opencl_buffer_create(dml_device *device, dml_buffer *buffer)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_int error;
    buffer->host = NULL;
    buffer->handle = NULL;
    error = CL_INVALID_BUFFER_SIZE; /* some drivers find out later, when it is used */
    if (buffer->bytes <= state->memory || state->memory == 0)
        buffer->handle =
            state->cl.clCreateBuffer_(state->context, CL_MEM_READ_WRITE, buffer->bytes, NULL, &error);
    if (error == CL_SUCCESS) {
        state->held += buffer->bytes;
        return DML_OK;
    }
    buffer->handle = NULL;
    if (!dml__opencl_lacks_memory(error)) return dml__opencl_check(device, error, "clCreateBuffer", "");
    return dml_device_fail(
        device, DML_ERROR_MEMORY,
        "opencl:%d (%s): no memory left for a buffer of %llu bytes, %s (%d): of its %llu bytes, "
        "%llu at most in one buffer, this context holds %llu",
        device->index, state->name, (unsigned long long)buffer->bytes, dml__opencl_error_name(error),
        (int)error, (unsigned long long)state->memory, (unsigned long long)state->largest,
        (unsigned long long)state->held);
}

static void dml__opencl_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!buffer->handle) return;
    state->cl.clReleaseMemObject_(dml__opencl_memory(buffer));
    state->held -= buffer->bytes;
    buffer->handle = NULL;
}

static dml_status dml__opencl_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status == DML_OK) status = dml__check_ref(device, to, bytes, "copy to");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *event = dml__opencl_mark_of(device, "copy");
    const cl_int error = state->cl.clEnqueueCopyBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                        dml__opencl_memory(to.buffer), from.offset, to.offset,
                                                        bytes, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueCopyBuffer", "");
}

static dml_status dml__opencl_zero(dml_device *device, dml_ref to, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status != DML_OK || bytes == 0) return status;
    static const cl_uint zero = 0;
    const size_t pattern = (to.offset | bytes) % sizeof zero ? 1 : sizeof zero; /* both must be multiples */
    cl_event *event = dml__opencl_mark_of(device, "zero");
    const cl_int error = state->cl.clEnqueueFillBuffer_(state->queue, dml__opencl_memory(to.buffer), &zero,
                                                        pattern, to.offset, bytes, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueFillBuffer", "");
}

/* ---- launches ---- */

static dml_status dml__opencl_launch(dml_device *device, const dml_launch *launch)
{
    dml__opencl *state = dml__opencl_of(device);
    dml__kernel_launch ready;
    dml_status status = dml__prepare_launch(device, launch, &state->index, &state->choice, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
    const int shares = state->choice.solo == DML__SOLO_BEST ? 1 : dml__gemm_shares(launch);
    if (shares > 1 && dml__launch_in_shares(device, launch, shares, &state->shares, &status)) return status;
    const cl_kernel kernel = state->kernels[ready.kernel];
    cl_int error = CL_SUCCESS;
    for (cl_uint i = 0; i < DML_LAUNCH_BUFFERS && error == CL_SUCCESS; i++) {
        const cl_mem memory = launch->buffer[i].buffer ? dml__opencl_memory(launch->buffer[i].buffer) : NULL;
        error = state->cl.clSetKernelArg_(kernel, i, sizeof memory, memory ? &memory : NULL);
    }
    if (error == CL_SUCCESS)
        error =
            state->cl.clSetKernelArg_(kernel, DML_LAUNCH_BUFFERS, sizeof ready.arguments, &ready.arguments);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clSetKernelArg", launch->kernel);
    const size_t local[2] = { ready.items, 1 };
    const size_t global[2] = { ready.groups[0] * ready.items, ready.groups[1] };
    cl_event *event = dml__opencl_mark_of(device, dml__kernel_row_at(ready.kernel)->name);
    error = state->cl.clEnqueueNDRangeKernel_(state->queue, kernel, 2, NULL, global, local, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueNDRangeKernel",
                             launch->kernel);
}

static dml_status dml__opencl_finish(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_int error = state->cl.clFinish_(state->queue);
    if (error == CL_SUCCESS) dml__opencl_settle(device);
    return dml__opencl_check(device, error, "clFinish", "");
}

/* What is enqueued may wait in the driver until somebody does. */
static dml_status dml__opencl_flush(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    return dml__opencl_check(device, state->cl.clFlush_(state->queue), "clFlush", "");
}

DML__EXTERN_C const dml_backend *dml_opencl_backend(void)
{
    static const dml_backend backend = { "opencl",
                                         dml__opencl_count,
                                         dml__opencl_describe,
                                         dml__opencl_open,
                                         dml__opencl_close,
                                         dml__opencl_buffer_create,
                                         dml__opencl_buffer_destroy,
                                         dml__opencl_write,
                                         dml__opencl_read,
                                         dml__opencl_copy,
                                         dml__opencl_zero,
                                         dml__opencl_launch,
                                         dml__opencl_finish,
                                         dml__opencl_flush,
                                         dml__opencl_profile,
                                         dml__opencl_read_start,
                                         dml__opencl_read_end,
                                         NULL,
                                         NULL,
                                         NULL };
    return &backend;
}

#endif
