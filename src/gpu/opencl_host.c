/* opencl_host.c: the OpenCL backend, over OpenCL 1.2 as the system's loader gives it (libOpenCL.so.1, opened
   when first needed: a program that has it linked in starts without it). */
#ifndef DML_GPU_OPENCL_HOST_C
#define DML_GPU_OPENCL_HOST_C

#include "device/backend.h"
#include "gpu/arguments.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const dml__opencl_source[] = {
#include "gpu/kernels.cl.inc"
};

/* The functions of OpenCL that are used here, each found in the loader by its name. */
#define DML__OPENCL_FUNCTIONS(X)                                                                             \
    X(clGetPlatformIDs)                                                                                      \
    X(clGetDeviceIDs)                                                                                        \
    X(clGetDeviceInfo)                                                                                       \
    X(clCreateContext)                                                                                       \
    X(clReleaseContext)                                                                                      \
    X(clCreateCommandQueue)                                                                                  \
    X(clReleaseCommandQueue)                                                                                 \
    X(clCreateProgramWithSource)                                                                             \
    X(clBuildProgram)                                                                                        \
    X(clGetProgramBuildInfo)                                                                                 \
    X(clReleaseProgram)                                                                                      \
    X(clCreateKernel)                                                                                        \
    X(clGetKernelWorkGroupInfo)                                                                              \
    X(clReleaseKernel)                                                                                       \
    X(clSetKernelArg)                                                                                        \
    X(clCreateBuffer)                                                                                        \
    X(clReleaseMemObject)                                                                                    \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueCopyBuffer)                                                                                   \
    X(clEnqueueFillBuffer)                                                                                   \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clFinish)

typedef struct dml__opencl_library {
#define DML__OPENCL_MEMBER(function) __typeof__(&(function)) function##_;
    DML__OPENCL_FUNCTIONS(DML__OPENCL_MEMBER)
#undef DML__OPENCL_MEMBER
} dml__opencl_library;

/* An open device. */
typedef struct dml__opencl {
    dml__opencl_library cl;
    cl_device_id id;
    char name[128];
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    dml__solo_use solo;
    int lanes; /* of the solo kernels' vectors */
    cl_kernel kernels[DML__KERNEL_COUNT];
} dml__opencl;

static const char *dml__opencl_error_name(cl_int error)
{
#define DML__OPENCL_ERROR(name)                                                                              \
    case name: return #name;
    switch (error) {
        DML__OPENCL_ERROR(CL_DEVICE_NOT_FOUND)
        DML__OPENCL_ERROR(CL_DEVICE_NOT_AVAILABLE)
        DML__OPENCL_ERROR(CL_COMPILER_NOT_AVAILABLE)
        DML__OPENCL_ERROR(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        DML__OPENCL_ERROR(CL_OUT_OF_RESOURCES)
        DML__OPENCL_ERROR(CL_OUT_OF_HOST_MEMORY)
        DML__OPENCL_ERROR(CL_MEM_COPY_OVERLAP)
        DML__OPENCL_ERROR(CL_BUILD_PROGRAM_FAILURE)
        DML__OPENCL_ERROR(CL_MISALIGNED_SUB_BUFFER_OFFSET)
        DML__OPENCL_ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        DML__OPENCL_ERROR(CL_INVALID_VALUE)
        DML__OPENCL_ERROR(CL_INVALID_PLATFORM)
        DML__OPENCL_ERROR(CL_INVALID_DEVICE)
        DML__OPENCL_ERROR(CL_INVALID_CONTEXT)
        DML__OPENCL_ERROR(CL_INVALID_COMMAND_QUEUE)
        DML__OPENCL_ERROR(CL_INVALID_MEM_OBJECT)
        DML__OPENCL_ERROR(CL_INVALID_BUILD_OPTIONS)
        DML__OPENCL_ERROR(CL_INVALID_PROGRAM)
        DML__OPENCL_ERROR(CL_INVALID_PROGRAM_EXECUTABLE)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_NAME)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_DEFINITION)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL)
        DML__OPENCL_ERROR(CL_INVALID_ARG_INDEX)
        DML__OPENCL_ERROR(CL_INVALID_ARG_VALUE)
        DML__OPENCL_ERROR(CL_INVALID_ARG_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_ARGS)
        DML__OPENCL_ERROR(CL_INVALID_WORK_DIMENSION)
        DML__OPENCL_ERROR(CL_INVALID_WORK_GROUP_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_WORK_ITEM_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_GLOBAL_OFFSET)
        DML__OPENCL_ERROR(CL_INVALID_OPERATION)
        DML__OPENCL_ERROR(CL_INVALID_BUFFER_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_GLOBAL_WORK_SIZE)
    default: return "an error that OpenCL 1.2 doesn't name";
    }
#undef DML__OPENCL_ERROR
}

static dml__opencl *dml__opencl_of(dml_device *device)
{
    return (dml__opencl *)device->state;
}

/* DML_OK for CL_SUCCESS, else a recorded sentence: which device, what was called, on what, and the error. */
static dml_status dml__opencl_check(dml_device *device, cl_int error, const char *call, const char *on)
{
    if (error == CL_SUCCESS) return DML_OK;
    const bool memory = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY ||
                        error == CL_INVALID_BUFFER_SIZE;
    return dml_device_fail(device, memory ? DML_ERROR_MEMORY : DML_ERROR_DEVICE,
                           "opencl:%d (%s): %s(%s) failed with %s (%d)", device->index,
                           device->state ? dml__opencl_of(device)->name : "?", call, on,
                           dml__opencl_error_name(error), (int)error);
}

/* False when there is no usable OpenCL. The loader stays open: closing it under a driver's threads crashes
   some drivers, and opening it again costs nothing. */
static bool dml__opencl_load(dml__opencl_library *cl)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    void *address;
#define DML__OPENCL_FIND(function)                                                                           \
    address = dlsym(library, #function);                                                                     \
    if (!address) return false;                                                                              \
    memcpy(&cl->function##_, &address, sizeof address);
    DML__OPENCL_FUNCTIONS(DML__OPENCL_FIND)
#undef DML__OPENCL_FIND
    return true;
}

/* "OpenCL 1.2 ..." or later, with a compiler, switched on, of this machine's byte order. */
static bool dml__opencl_usable(const dml__opencl_library *cl, cl_device_id id)
{
    char version[256] = ""; /* PoCL appends its target, which is longer than the 64 that others need */
    cl_bool available = CL_FALSE, compiler = CL_FALSE, little = CL_FALSE;
    int major = 0, minor = 0;
    cl->clGetDeviceInfo_(id, CL_DEVICE_VERSION, sizeof version - 1, version, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_COMPILER_AVAILABLE, sizeof compiler, &compiler, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_ENDIAN_LITTLE, sizeof little, &little, NULL);
    if (sscanf(version, "OpenCL %d.%d", &major, &minor) != 2) return false;
    return (major > 1 || minor >= 2) && available && compiler && little;
}

static bool dml__opencl_is_gpu(const dml__opencl_library *cl, cl_device_id id)
{
    cl_device_type type = 0;
    cl->clGetDeviceInfo_(id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    return (type & CL_DEVICE_TYPE_GPU) != 0;
}

/* Lists up to `capacity` usable devices, GPUs first, else in the platforms' order; returns how many. */
enum { DML__OPENCL_PLATFORMS = 16, DML__OPENCL_DEVICES = 64 };
static int dml__opencl_list(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
{
    cl_platform_id platforms[DML__OPENCL_PLATFORMS];
    cl_uint platform_count = 0;
    int count = 0;
    if (cl->clGetPlatformIDs_(DML__OPENCL_PLATFORMS, platforms, &platform_count) != CL_SUCCESS) return 0;
    if (platform_count > DML__OPENCL_PLATFORMS) platform_count = DML__OPENCL_PLATFORMS;
    for (int pass = 0; pass < 2; pass++) {
        for (cl_uint p = 0; p < platform_count; p++) {
            cl_device_id found[DML__OPENCL_DEVICES];
            cl_uint found_count = 0;
            if (cl->clGetDeviceIDs_(platforms[p], CL_DEVICE_TYPE_ALL, DML__OPENCL_DEVICES, found,
                                    &found_count) != CL_SUCCESS)
                continue;
            if (found_count > DML__OPENCL_DEVICES) found_count = DML__OPENCL_DEVICES;
            for (cl_uint d = 0; d < found_count && count < capacity; d++)
                if (dml__opencl_is_gpu(cl, found[d]) == (pass == 0) && dml__opencl_usable(cl, found[d]))
                    ids[count++] = found[d];
        }
    }
    return count;
}

static int dml__opencl_count(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    return dml__opencl_load(&cl) ? dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES) : 0;
}

static void dml__opencl_describe(int index, dml_device_info *info)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    cl_ulong memory = 0;
    cl_uint units = 0;
    if (!dml__opencl_load(&cl)) return;
    if (index < 0 || index >= dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES)) return;
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_NAME, sizeof info->name - 1, info->name, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    info->memory = memory;
    info->compute_units = (int)units;
    info->gpu = dml__opencl_is_gpu(&cl, ids[index]);
}

/* Releases what an open, or half open, device holds. */
static void dml__opencl_close(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!state) return;
    if (state->queue) state->cl.clFinish_(state->queue);
    for (int i = 0; i < DML__KERNEL_COUNT; i++)
        if (state->kernels[i]) state->cl.clReleaseKernel_(state->kernels[i]);
    if (state->program) state->cl.clReleaseProgram_(state->program);
    if (state->queue) state->cl.clReleaseCommandQueue_(state->queue);
    if (state->context) state->cl.clReleaseContext_(state->context);
    dml_device_release(device, state);
    device->state = NULL;
}

/* Says why the kernels don't build, in the words of the device's compiler. */
static dml_status dml__opencl_build_failed(dml_device *device, cl_int error)
{
    dml__opencl *state = dml__opencl_of(device);
    size_t bytes = 0;
    char *log = NULL;
    state->cl.clGetProgramBuildInfo_(state->program, state->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if (bytes) log = (char *)dml_device_allocate(device, bytes + 1);
    if (log)
        state->cl.clGetProgramBuildInfo_(state->program, state->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    const dml_status status = dml_device_fail(
        device, DML_ERROR_DEVICE, "opencl:%d (%s): the kernels don't build, %s (%d): %s", device->index,
        state->name, dml__opencl_error_name(error), (int)error, log ? log : "it gave no log");
    dml_device_release(device, log);
    return status;
}

static dml_status dml__opencl_build(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_uint lines = (cl_uint)(sizeof dml__opencl_source / sizeof dml__opencl_source[0]);
    cl_int error;
    state->program = state->cl.clCreateProgramWithSource_(
        state->context, lines, (const char **)(uintptr_t)dml__opencl_source, NULL, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateProgramWithSource", "");
    char options[64] = "-cl-std=CL1.2";
    if (state->solo) snprintf(options, sizeof options, "-cl-std=CL1.2 -DDML__SOLO_LANES=%d", state->lanes);
    error = state->cl.clBuildProgram_(state->program, 1, &state->id, options, NULL, NULL);
    return error == CL_SUCCESS ? DML_OK : dml__opencl_build_failed(device, error);
}

static dml_status dml__opencl_find_kernels(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const int count = state->solo ? DML__KERNEL_COUNT : DML__KERNEL_FIRST_SOLO;
    for (int i = 0; i < count; i++) {
        char name[64];
        size_t items = 0;
        cl_int error;
        snprintf(name, sizeof name, "dml__kernel_%s", dml__kernel_row_at(i)->name);
        state->kernels[i] = state->cl.clCreateKernel_(state->program, name, &error);
        if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateKernel", name);
        state->cl.clGetKernelWorkGroupInfo_(state->kernels[i], state->id, CL_KERNEL_WORK_GROUP_SIZE,
                                            sizeof items, &items, NULL);
        if (items < dml__kernel_items(i))
            return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                                   "opencl:%d (%s) runs kernel '%s' with %d items a group; dml needs %d",
                                   device->index, state->name, name, (int)items, (int)dml__kernel_items(i));
    }
    return DML_OK;
}

/* Whether the device's items are a CPU's, and how wide its vectors are. */
static void dml__opencl_choose(dml__opencl *state)
{
    cl_device_type type = 0;
    cl_uint lanes = 0;
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof lanes, &lanes, NULL);
    state->lanes = lanes >= 16 ? 16 : lanes >= 8 ? 8 : 4;
    if (type & CL_DEVICE_TYPE_CPU) /* Oclgrind is every type at once */
        state->solo = type & CL_DEVICE_TYPE_GPU ? DML__SOLO_BY_NAME : DML__SOLO_BEST;
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
    const dml_status status = dml__opencl_build(device);
    return status == DML_OK ? dml__opencl_find_kernels(device) : status;
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

static cl_mem dml__opencl_memory(const dml_buffer *buffer)
{
    return (cl_mem)buffer->handle;
}

static dml_status dml__opencl_buffer_create(dml_device *device, dml_buffer *buffer)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_int error;
    char size[32];
    buffer->host = NULL;
    buffer->handle =
        state->cl.clCreateBuffer_(state->context, CL_MEM_READ_WRITE, buffer->bytes, NULL, &error);
    snprintf(size, sizeof size, "%llu bytes", (unsigned long long)buffer->bytes);
    if (error != CL_SUCCESS) buffer->handle = NULL;
    return dml__opencl_check(device, error, "clCreateBuffer", size);
}

static void dml__opencl_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    if (buffer->handle) dml__opencl_of(device)->cl.clReleaseMemObject_(dml__opencl_memory(buffer));
    buffer->handle = NULL;
}

static dml_status dml__opencl_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status != DML_OK || bytes == 0) return status;
    return dml__opencl_check(device,
                             state->cl.clEnqueueWriteBuffer_(state->queue, dml__opencl_memory(to.buffer),
                                                             CL_TRUE, to.offset, bytes, from, 0, NULL, NULL),
                             "clEnqueueWriteBuffer", "");
}

static dml_status dml__opencl_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    return dml__opencl_check(device,
                             state->cl.clEnqueueReadBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                            CL_TRUE, from.offset, bytes, to, 0, NULL, NULL),
                             "clEnqueueReadBuffer", "");
}

static dml_status dml__opencl_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status == DML_OK) status = dml__check_ref(device, to, bytes, "copy to");
    if (status != DML_OK || bytes == 0) return status;
    return dml__opencl_check(device,
                             state->cl.clEnqueueCopyBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                            dml__opencl_memory(to.buffer), from.offset,
                                                            to.offset, bytes, 0, NULL, NULL),
                             "clEnqueueCopyBuffer", "");
}

static dml_status dml__opencl_zero(dml_device *device, dml_ref to, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status != DML_OK || bytes == 0) return status;
    static const cl_uint zero = 0;
    const size_t pattern = (to.offset | bytes) % sizeof zero ? 1 : sizeof zero; /* both must be multiples */
    return dml__opencl_check(device,
                             state->cl.clEnqueueFillBuffer_(state->queue, dml__opencl_memory(to.buffer),
                                                            &zero, pattern, to.offset, bytes, 0, NULL, NULL),
                             "clEnqueueFillBuffer", "");
}

static dml_status dml__opencl_launch(dml_device *device, const dml_launch *launch)
{
    dml__opencl *state = dml__opencl_of(device);
    dml__kernel_launch ready;
    const dml_status status = dml__prepare_launch(device, launch, state->solo, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
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
    error = state->cl.clEnqueueNDRangeKernel_(state->queue, kernel, 2, NULL, global, local, 0, NULL, NULL);
    return dml__opencl_check(device, error, "clEnqueueNDRangeKernel", launch->kernel);
}

static dml_status dml__opencl_finish(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    return dml__opencl_check(device, state->cl.clFinish_(state->queue), "clFinish", "");
}

DML__EXTERN_C const dml_backend *dml_opencl_backend(void)
{
    static const dml_backend backend = {
        "opencl",          dml__opencl_count,         dml__opencl_describe,       dml__opencl_open,
        dml__opencl_close, dml__opencl_buffer_create, dml__opencl_buffer_destroy, dml__opencl_write,
        dml__opencl_read,  dml__opencl_copy,          dml__opencl_zero,           dml__opencl_launch,
        dml__opencl_finish
    };
    return &backend;
}

#endif
