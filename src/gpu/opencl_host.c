/* opencl_host.c: the OpenCL backend, over OpenCL 1.2 as the system's loader gives it (libOpenCL.so.1, opened
   when first needed: a program that has it linked in starts without it). */
#ifndef DML_GPU_OPENCL_HOST_C
#define DML_GPU_OPENCL_HOST_C

#include "base/clock.h"
#include "device/backend.h"
#include "gpu/arguments.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"
#include "gpu/tune.h"

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#ifndef DML_NO_THREADS
#include <pthread.h>
#endif
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
    X(clEnqueueMapBuffer)                                                                                    \
    X(clEnqueueUnmapMemObject)                                                                               \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueCopyBuffer)                                                                                   \
    X(clEnqueueFillBuffer)                                                                                   \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clGetEventProfilingInfo)                                                                               \
    X(clGetEventInfo)                                                                                        \
    X(clRetainEvent)                                                                                         \
    X(clReleaseEvent)                                                                                        \
    X(clWaitForEvents)                                                                                       \
    X(clFlush)                                                                                               \
    X(clFinish)

typedef struct dml__opencl_library {
#define DML__OPENCL_MEMBER(function) __typeof__(&(function)) function##_;
    DML__OPENCL_FUNCTIONS(DML__OPENCL_MEMBER)
#undef DML__OPENCL_MEMBER
} dml__opencl_library;

/* Something timed that is on its way, and the number that the profile has for it. */
typedef struct dml__opencl_mark {
    cl_event event;
    int number;
} dml__opencl_mark;

/* Memory of the host's that the device reads while the host goes on: what is written goes through a piece of
   it, and each piece is filled again when the copy that was made of it has ended. */
enum { DML__OPENCL_PIECES = 8, DML__OPENCL_PIECE = 1 << 20 /* bytes */ };
typedef struct dml__opencl_staging {
    cl_mem memory; /* which is mapped at `piece`; NULL: there is none, and writes wait */
    char *piece;   /* (DML__OPENCL_PIECES, DML__OPENCL_PIECE) */
    bool refused;
    int next;                            /* the piece to fill next */
    cl_event copied[DML__OPENCL_PIECES]; /* the last copy of each; NULL: there was none */
} dml__opencl_staging;

/* An open device. */
enum { DML__OPENCL_MARKS = 256 };
typedef struct dml__opencl {
    dml__opencl_library cl;
    cl_device_id id;
    char name[128];
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    dml__choice choice;
    dml__kernel_index index;
    int lanes; /* of the solo kernels' vectors */
    cl_kernel kernels[DML__KERNEL_COUNT];
    cl_ulong memory, largest; /* bytes that it has, and that one buffer may have */
    uint64_t held;            /* by buffers */
    bool timed;               /* the queue takes times */
    int marks;
    dml__opencl_mark mark[DML__OPENCL_MARKS];
    dml__opencl_staging staging;
    dml_buffer shares;   /* of products in shares of k */
    double first, ahead; /* when the first mark was made; how far this clock is ahead of the device's */
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

static bool dml__opencl_lacks_memory(cl_int error)
{
    return error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY ||
           error == CL_INVALID_BUFFER_SIZE;
}

/* DML_OK for CL_SUCCESS, else a recorded sentence: which device, what was called, on what, and the error. */
static dml_status dml__opencl_check(dml_device *device, cl_int error, const char *call, const char *on)
{
    if (error == CL_SUCCESS) return DML_OK;
    return dml_device_fail(device, dml__opencl_lacks_memory(error) ? DML_ERROR_MEMORY : DML_ERROR_DEVICE,
                           "opencl:%d (%s): %s(%s) failed with %s (%d)%s", device->index,
                           device->state ? dml__opencl_of(device)->name : "?", call, on,
                           dml__opencl_error_name(error), (int)error,
                           error == CL_DEVICE_NOT_AVAILABLE
                               ? ": the device is lost; what is on the host is not, go on with it in another "
                                 "context"
                               : "");
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

enum { DML__OPENCL_PLATFORMS = 16, DML__OPENCL_DEVICES = 64 };
static int dml__opencl_list_now(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
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

#ifdef DML_NO_THREADS
#define dml__opencl_begin_once() ((void)0)
#else
static void dml__opencl_begin(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    if (dml__opencl_load(&cl)) (void)dml__opencl_list_now(&cl, ids, DML__OPENCL_DEVICES);
}

/* The first calls of a process are one thread's: PoCL crashes where two threads find it at its beginning. */
static void dml__opencl_begin_once(void)
{
    static pthread_once_t begun = PTHREAD_ONCE_INIT;
    (void)pthread_once(&begun, dml__opencl_begin);
}
#endif

/* Lists up to `capacity` usable devices, GPUs first, else in the platforms' order; returns how many. */
static int dml__opencl_list(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
{
    dml__opencl_begin_once();
    return dml__opencl_list_now(cl, ids, capacity);
}

static int dml__opencl_count(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    return dml__opencl_load(&cl) ? dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES) : 0;
}

/* Of the extensions, those that say what kernels may compute with. */
static void dml__opencl_features(const dml__opencl_library *cl, cl_device_id id, dml_device_info *info)
{
    static const char *const wanted[] = { "cl_khr_fp16", "cl_khr_fp64", "cl_khr_subgroups" };
    char all[8192] = "";
    cl->clGetDeviceInfo_(id, CL_DEVICE_EXTENSIONS, sizeof all - 1, all, NULL);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const size_t used = strlen(info->features);
        const char *found = strstr(all, wanted[i]);
        if (found && strchr(" ", found[strlen(wanted[i])]))
            snprintf(info->features + used, sizeof info->features - used, "%s%s", used ? " " : "", wanted[i]);
    }
}

static void dml__opencl_describe(int index, dml_device_info *info)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    cl_ulong memory = 0;
    cl_uint units = 0, clock = 0;
    char driver[256] = "";
    if (!dml__opencl_load(&cl)) return;
    if (index < 0 || index >= dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES)) return;
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_NAME, sizeof info->name - 1, info->name, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    info->memory = memory;
    info->compute_units = (int)units;
    info->gpu = dml__opencl_is_gpu(&cl, ids[index]);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof clock, &clock, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
    info->clock = (int)clock;
    snprintf(info->driver, sizeof info->driver, "%.*s", (int)sizeof info->driver - 1, driver);
    dml__opencl_features(&cl, ids[index], info);
}

/* ---- the profile ---- */

/* Tells of all that was timed, of a queue that has finished. */
static void dml__opencl_settle(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    for (int i = 0; i < state->marks; i++) {
        const dml__opencl_mark mark = state->mark[i];
        cl_ulong queued = 0, begin = 0, end = 0;
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_QUEUED, sizeof queued, &queued,
                                           NULL);
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_START, sizeof begin, &begin,
                                           NULL);
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
        state->cl.clReleaseEvent_(mark.event);
        if (state->ahead == 0) state->ahead = state->first - 1e-9 * (double)queued;
        dml_device_end_event(device, mark.number, state->ahead + 1e-9 * (double)begin,
                             state->ahead + 1e-9 * (double)end);
    }
    state->marks = 0;
}

/* Where what is enqueued next leaves its event; NULL: nobody asks. */
static cl_event *dml__opencl_mark_of(dml_device *device, const char *what)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!state->timed) return NULL;
    if (state->marks == DML__OPENCL_MARKS && state->cl.clFinish_(state->queue) == CL_SUCCESS)
        dml__opencl_settle(device);
    if (state->marks == DML__OPENCL_MARKS) return NULL;
    if (state->first == 0) state->first = dml_seconds();
    dml__opencl_mark *mark = &state->mark[state->marks];
    mark->number = dml_device_begin_event(device, what);
    return &mark->event;
}

/* What was to be enqueued is, or isn't. */
static cl_int dml__opencl_marked(dml_device *device, const cl_event *event, cl_int error)
{
    if (event && error == CL_SUCCESS) dml__opencl_of(device)->marks++;
    return error;
}

/* Only a queue that was made for it takes times. */
static dml_status dml__opencl_profile(dml_device *device, bool on)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_int error = state->cl.clFinish_(state->queue);
    dml__opencl_settle(device);
    state->timed = false;
    state->first = state->ahead = 0;
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clFinish", "");
    const cl_command_queue queue = state->cl.clCreateCommandQueue_(
        state->context, state->id, on ? CL_QUEUE_PROFILING_ENABLE : 0, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateCommandQueue", "");
    state->cl.clReleaseCommandQueue_(state->queue);
    state->queue = queue;
    state->timed = on;
    return DML_OK;
}

static void dml__opencl_destroy_staging(dml__opencl *state)
{
    dml__opencl_staging *staging = &state->staging;
    for (int i = 0; i < DML__OPENCL_PIECES; i++)
        if (staging->copied[i]) state->cl.clReleaseEvent_(staging->copied[i]);
    if (staging->piece)
        state->cl.clEnqueueUnmapMemObject_(state->queue, staging->memory, staging->piece, 0, NULL, NULL);
    if (staging->memory) state->cl.clReleaseMemObject_(staging->memory);
    memset(staging, 0, sizeof *staging);
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

/* A line of the log as a part of a sentence: without its newline, and not beyond `most` bytes. */
static const char *dml__opencl_log_line(char *line, size_t most)
{
    line[strcspn(line, "\r\n")] = '\0';
    if (strlen(line) > most) memcpy(line + most - 3, "...", 4);
    return line;
}

/* The line of a compiler's log that names the first error, which has our file and line, since the source has
   its own #lines. Logs begin with warnings, and are longer than an error's text. */
static const char *dml__opencl_first_error(char *log)
{
    static const char *const words[] = { "error:", "error", "Error", "ERROR" };
    const char *found = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !found; i++) found = strstr(log, words[i]);
    char *line = found ? log + (found - log) : log + strspn(log, " \t\r\n");
    while (line > log && line[-1] != '\n') line--;
    return dml__opencl_log_line(line, 200);
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
    const char *first = log ? dml__opencl_first_error(log) : "";
    const dml_status status = dml_device_fail(
        device, DML_ERROR_DEVICE, "opencl:%d (%s): the kernels don't build, %s (%d): %s", device->index,
        state->name, dml__opencl_error_name(error), (int)error, *first ? first : "it gave no log");
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
    if (state->choice.solo)
        snprintf(options, sizeof options, "-cl-std=CL1.2 -DDML__SOLO_LANES=%d%s", state->lanes,
                 state->choice.solo == DML__SOLO_BEST ? " -DDML__RUN=1" : "");
    error = state->cl.clBuildProgram_(state->program, 1, &state->id, options, NULL, NULL);
    return error == CL_SUCCESS ? DML_OK : dml__opencl_build_failed(device, error);
}

static dml_status dml__opencl_find_kernels(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const int count = state->choice.solo ? DML__KERNEL_COUNT : DML__KERNEL_FIRST_SOLO;
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

/* Whether there is memory to write through, which the first write asks for. */
static bool dml__opencl_has_staging(dml__opencl *state)
{
    dml__opencl_staging *staging = &state->staging;
    const size_t bytes = (size_t)DML__OPENCL_PIECES * DML__OPENCL_PIECE;
    cl_int error;
    if (staging->piece || staging->refused) return staging->piece != NULL;
    staging->memory = state->cl.clCreateBuffer_(state->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                                bytes, NULL, &error);
    if (staging->memory)
        staging->piece = (char *)state->cl.clEnqueueMapBuffer_(state->queue, staging->memory, CL_TRUE,
                                                               CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &error);
    if (staging->piece) return true;
    dml__opencl_destroy_staging(state);
    staging->refused = true;
    return false;
}

/* Of at most a piece: waits only for the copy that was made of its place before. */
static cl_int dml__opencl_write_piece(dml_device *device, dml_ref to, const char *from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    dml__opencl_staging *staging = &state->staging;
    cl_event *copied = &staging->copied[staging->next], event;
    char *piece = staging->piece + (size_t)staging->next * DML__OPENCL_PIECE;
    if (*copied) {
        const cl_int error = state->cl.clWaitForEvents_(1, copied);
        state->cl.clReleaseEvent_(*copied);
        *copied = NULL;
        if (error != CL_SUCCESS) return error;
    }
    memcpy(piece, from, bytes);
    cl_event *mark = dml__opencl_mark_of(device, "write");
    const cl_int error = state->cl.clEnqueueWriteBuffer_(state->queue, dml__opencl_memory(to.buffer),
                                                         CL_FALSE, to.offset, bytes, piece, 0, NULL, &event);
    if (error != CL_SUCCESS) return error;
    *copied = event;
    staging->next = (staging->next + 1) % DML__OPENCL_PIECES;
    if (mark && state->cl.clRetainEvent_(event) == CL_SUCCESS) {
        *mark = event;
        state->marks++;
    }
    return state->cl.clFlush_(state->queue);
}

static dml_status dml__opencl_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status != DML_OK || bytes == 0) return status;
    cl_int error = CL_SUCCESS;
    if (dml__opencl_has_staging(state)) {
        for (size_t done = 0; done < bytes && error == CL_SUCCESS; done += DML__OPENCL_PIECE) {
            const size_t left = bytes - done;
            const dml_ref part = { to.buffer, to.offset + done };
            error = dml__opencl_write_piece(device, part, (const char *)from + done,
                                            left < DML__OPENCL_PIECE ? left : (size_t)DML__OPENCL_PIECE);
        }
        return dml__opencl_check(device, error, "clEnqueueWriteBuffer", "");
    }
    cl_event *event = dml__opencl_mark_of(device, "write");
    error = state->cl.clEnqueueWriteBuffer_(state->queue, dml__opencl_memory(to.buffer), CL_TRUE, to.offset,
                                            bytes, from, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueWriteBuffer", "");
}

static dml_status dml__opencl_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *event = dml__opencl_mark_of(device, "read");
    const cl_int error = state->cl.clEnqueueReadBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                        CL_TRUE, from.offset, bytes, to, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueReadBuffer", "");
}

/* Waits for a read that was started, and lets go of it. A wait that fails otherwise than by the read's own
   failure says nothing of the read, which may still be on its way. */
static cl_int dml__opencl_await_read(dml__opencl *state, cl_event event)
{
    cl_int error = state->cl.clWaitForEvents_(1, &event), end = CL_COMPLETE;
    if (error == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) {
        (void)state->cl.clGetEventInfo_(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof end, &end, NULL);
        if (end < 0) error = end;
    } else if (error != CL_SUCCESS) {
        (void)state->cl.clFinish_(state->queue);
    }
    (void)state->cl.clReleaseEvent_(event);
    return error;
}

/* The ticket is the event. What isn't flushed may wait in the driver until somebody waits for it. */
static dml_status dml__opencl_read_start(dml_device *device, void *to, dml_ref from, size_t bytes,
                                         void **ticket)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_event event;
    *ticket = NULL;
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *mark = dml__opencl_mark_of(device, "read");
    cl_int error = state->cl.clEnqueueReadBuffer_(state->queue, dml__opencl_memory(from.buffer), CL_FALSE,
                                                  from.offset, bytes, to, 0, NULL, &event);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clEnqueueReadBuffer", "");
    if (mark && state->cl.clRetainEvent_(event) == CL_SUCCESS) {
        *mark = event;
        state->marks++;
    }
    error = state->cl.clFlush_(state->queue);
    if (error == CL_SUCCESS)
        *ticket = event;
    else
        (void)dml__opencl_await_read(state, event);
    return dml__opencl_check(device, error, "clFlush", "read");
}

/* An event that says it is complete is waited for all the same: only that makes the bytes this thread's. */
static dml_status dml__opencl_read_end(dml_device *device, void *ticket, bool wait, bool *ended)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_event event = (cl_event)ticket;
    cl_int end = CL_COMPLETE;
    *ended = wait ||
             state->cl.clGetEventInfo_(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof end, &end, NULL) !=
                 CL_SUCCESS ||
             end <= CL_COMPLETE;
    if (!*ended) return DML_OK;
    return dml__opencl_check(device, dml__opencl_await_read(state, event), "clWaitForEvents", "read");
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
