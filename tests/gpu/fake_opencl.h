/* opencl.c: a libOpenCL.so.1 with one small GPU that lives in this process, for testing src/gpu/opencl_host.c
   where there is no driver, and where a driver would have to fail. Kernels run as host C, when they are
   enqueued; a write that doesn't block is done before the next other command, from the memory as it is by
   then; a read that doesn't block fills its place with ones, and brings what there was when somebody waits.

   FAKE_OPENCL, read at each call, says what goes wrong:
     none    no platform            old     a device of OpenCL 1.1
     build   the kernels don't build, with a log in the style of most drivers
     narrow  groups of 64 items at most
     full    no buffer of more than 1 MiB
     unmapped  nothing can be mapped
     late    memory that is missing only when a kernel is to run
     stuck   what was enqueued can't be flushed
     torn    reads that don't block fail on their way
     deaf    nobody can wait for an event
     lost    every command fails, as on a device that has gone */
#ifndef DML_TESTS_GPU_FAKE_OPENCL_H
#define DML_TESTS_GPU_FAKE_OPENCL_H

#include "base/clock.h"
#include "gpu/host_device.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdlib.h>
#include <string.h>

struct _cl_mem {
    size_t bytes;
    char *data;
};
struct _cl_kernel {
    int number;
    void *buffer[6];
    dml__kernel_arguments arguments;
};
struct _cl_command_queue {
    bool timed;
};
struct _cl_event {
    cl_ulong time[2];
    int holders;
    bool timed;
    cl_int status; /* of its execution */
};
typedef struct fake_write {
    cl_mem memory;
    size_t offset, bytes;
    const void *from;
    cl_event event;
} fake_write;
static fake_write fake_writes[64]; /* that are still to be done */
static int fake_writes_left, fake_waits, fake_flushes, fake_events;
typedef struct fake_read {
    void *to, *bytes;
    size_t count;
    cl_event event;
} fake_read;
static fake_read fake_reads[16]; /* on their way */
static int fake_reads_left;
static struct _cl_command_queue queues[16];
static int queues_made;
static char one[8]; /* what all other handles point to */

static bool fake_is(const char *mode)
{
    const char *set = getenv("FAKE_OPENCL");
    return set && strcmp(set, mode) == 0;
}

static cl_int answer(void *to, size_t capacity, size_t *needed, const void *from, size_t bytes)
{
    if (to && capacity < bytes) return CL_INVALID_VALUE;
    if (to) memcpy(to, from, bytes);
    if (needed) *needed = bytes;
    return CL_SUCCESS;
}

cl_int clGetPlatformIDs(cl_uint capacity, cl_platform_id *platforms, cl_uint *count)
{
    *count = fake_is("none") ? 0 : 1;
    if (capacity) platforms[0] = (cl_platform_id)(void *)one;
    return fake_is("none") ? -1001 : CL_SUCCESS; /* the loader's, where there is no driver */
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity, cl_device_id *ids,
                      cl_uint *count)
{
    (void)platform, (void)type;
    *count = 1;
    if (capacity) ids[0] = (cl_device_id)(void *)one;
    return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t capacity, void *to, size_t *needed)
{
    static const char extensions[] = "cl_khr_fp64 cl_khr_subgroups_x cl_khr_fp16", driver[] = "7.1";
    static const char name[] = "fake GPU", version[] = "OpenCL 1.2 fake", old[] = "OpenCL 1.1 fake";
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_ulong memory = 1u << 30;
    const cl_uint number = what == CL_DEVICE_MAX_COMPUTE_UNITS ? 2 : 1;
    (void)id;
    switch (what) {
    case CL_DEVICE_NAME: return answer(to, capacity, needed, name, sizeof name);
    case CL_DRIVER_VERSION: return answer(to, capacity, needed, driver, sizeof driver);
    case CL_DEVICE_EXTENSIONS: return answer(to, capacity, needed, extensions, sizeof extensions);
    case CL_DEVICE_VERSION:
        return fake_is("old") ? answer(to, capacity, needed, old, sizeof old)
                              : answer(to, capacity, needed, version, sizeof version);
    case CL_DEVICE_TYPE: return answer(to, capacity, needed, &type, sizeof type);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return answer(to, capacity, needed, &memory, sizeof memory);
    default: return answer(to, capacity, needed, &number, sizeof number);
    }
}

cl_context clCreateContext(const cl_context_properties *properties, cl_uint count, const cl_device_id *ids,
                           void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
                           cl_int *error)
{
    (void)properties, (void)count, (void)ids, (void)notify, (void)user;
    *error = CL_SUCCESS;
    return (cl_context)(void *)one;
}

cl_int clReleaseContext(cl_context context)
{
    (void)context;
    return CL_SUCCESS;
}

cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id id,
                                      cl_command_queue_properties properties, cl_int *error)
{
    (void)context, (void)id;
    *error = CL_SUCCESS;
    struct _cl_command_queue *queue = &queues[queues_made++ % 16];
    queue->timed = (properties & CL_QUEUE_PROFILING_ENABLE) != 0;
    return queue;
}

cl_int clReleaseCommandQueue(cl_command_queue queue)
{
    (void)queue;
    return CL_SUCCESS;
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **lines,
                                     const size_t *lengths, cl_int *error)
{
    (void)context, (void)count, (void)lines, (void)lengths;
    *error = CL_SUCCESS;
    return (cl_program)(void *)one;
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *ids, const char *options,
                      void(CL_CALLBACK *notify)(cl_program, void *), void *user)
{
    (void)program, (void)count, (void)ids, (void)options, (void)notify, (void)user;
    return fake_is("build") ? CL_BUILD_PROGRAM_FAILURE : CL_SUCCESS;
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id id, cl_program_build_info what, size_t capacity,
                             void *to, size_t *needed)
{
    static char log[5000];
    (void)program, (void)id, (void)what;
    memset(log, 0, sizeof log);
    for (int i = 0; i < 20; i++)
        snprintf(log + strlen(log), sizeof log - strlen(log),
                 "gpu/loss.cl:%d:9: warning: unused variable 'left'\n    int left = 0;\n", 10 + i);
    snprintf(log + strlen(log), sizeof log - strlen(log),
             "gpu/tiles.cl:57:5: error: use of undeclared identifier 'tile_rows'\r\n    for (int i = 0;\n"
             "gpu/tiles.cl:58:5: error: another one\n2 errors generated.\n");
    return answer(to, capacity, needed, log, strlen(log) + 1);
}

cl_int clReleaseProgram(cl_program program)
{
    (void)program;
    return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *error)
{
    (void)program;
    *error = CL_INVALID_KERNEL_NAME;
    for (int i = 0; i < DML__KERNEL_FIRST_SOLO; i++) {
        if (strcmp(name + strlen("dml__kernel_"), dml__kernel_row_at(i)->name) != 0) continue;
        struct _cl_kernel *kernel = calloc(1, sizeof *kernel);
        kernel->number = i;
        *error = CL_SUCCESS;
        return kernel;
    }
    return NULL;
}

cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id, cl_kernel_work_group_info what,
                                size_t capacity, void *to, size_t *needed)
{
    const size_t items = fake_is("narrow") ? 64 : 256;
    (void)kernel, (void)id, (void)what;
    return answer(to, capacity, needed, &items, sizeof items);
}

cl_int clReleaseKernel(cl_kernel kernel)
{
    free(kernel);
    return CL_SUCCESS;
}

cl_int clSetKernelArg(cl_kernel kernel, cl_uint i, size_t bytes, const void *value)
{
    if (i < 6) {
        if (bytes != sizeof(cl_mem)) return CL_INVALID_ARG_SIZE;
        kernel->buffer[i] = value ? (*(const cl_mem *)value)->data : NULL;
        return CL_SUCCESS;
    }
    if (i > 6 || bytes != sizeof kernel->arguments) return CL_INVALID_ARG_SIZE;
    memcpy(&kernel->arguments, value, bytes);
    return CL_SUCCESS;
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *error)
{
    (void)context, (void)flags, (void)host;
    *error = bytes > (1u << 30) ? CL_INVALID_BUFFER_SIZE : CL_MEM_OBJECT_ALLOCATION_FAILURE;
    if (bytes > (1u << 30) || (fake_is("full") && bytes > (1u << 20))) return NULL;
    struct _cl_mem *memory = calloc(1, sizeof *memory);
    memory->bytes = bytes;
    memory->data = malloc(bytes);
    *error = CL_SUCCESS;
    return memory;
}

static void do_writes(void);

cl_int clReleaseMemObject(cl_mem memory)
{
    do_writes();
    free(memory->data);
    free(memory);
    return CL_SUCCESS;
}

static cl_ulong now(void)
{
    return 1000 +
           (cl_ulong)(1e9 * dml_seconds()) / 2; /* another clock than the host's, and ticks of its own */
}

static void do_writes(void)
{
    for (int i = 0; i < fake_writes_left; i++) {
        const fake_write *w = &fake_writes[i];
        memcpy(w->memory->data + w->offset, w->from, w->bytes);
        w->event->time[1] = now();
    }
    fake_writes_left = 0;
}

static void do_reads(void)
{
    for (int i = 0; i < fake_reads_left; i++) {
        const fake_read *r = &fake_reads[i];
        if (r->event->status > CL_COMPLETE) {
            memcpy(r->to, r->bytes, r->count);
            r->event->status = CL_COMPLETE;
        }
        r->event->time[1] = now();
        free(r->bytes);
    }
    fake_reads_left = 0;
}

static void make_event(cl_command_queue queue, cl_event *event)
{
    *event = calloc(1, sizeof **event);
    (*event)->time[0] = now();
    (*event)->holders = 1;
    (*event)->timed = queue->timed;
    fake_events++;
}

/* Every command but a write that doesn't block: whether it goes on, and its event. */
static cl_int command(cl_command_queue queue, cl_event *event)
{
    if (fake_is("lost")) return CL_DEVICE_NOT_AVAILABLE;
    do_writes();
    if (event) make_event(queue, event);
    return CL_SUCCESS;
}

static cl_int done(cl_event *event)
{
    if (event) (*event)->time[1] = now();
    return CL_SUCCESS;
}

cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset,
                            size_t bytes, const void *from, cl_uint waits, const cl_event *wait,
                            cl_event *event)
{
    (void)waits, (void)wait;
    if (!blocking && !fake_is("lost") && fake_writes_left < 64) {
        make_event(queue, event);
        fake_writes[fake_writes_left++] = (fake_write){ memory, offset, bytes, from, *event };
        return CL_SUCCESS;
    }
    const cl_int error = command(queue, event);
    if (error != CL_SUCCESS) return error;
    fake_waits++;
    memcpy(memory->data + offset, from, bytes);
    return done(event);
}

void *clEnqueueMapBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, cl_map_flags flags,
                         size_t offset, size_t bytes, cl_uint waits, const cl_event *wait, cl_event *event,
                         cl_int *error)
{
    (void)queue, (void)blocking, (void)flags, (void)waits, (void)wait, (void)event;
    *error = fake_is("unmapped") ? CL_MAP_FAILURE : CL_SUCCESS;
    return *error == CL_SUCCESS && offset + bytes <= memory->bytes ? memory->data + offset : NULL;
}

cl_int clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem memory, void *at, cl_uint waits,
                               const cl_event *wait, cl_event *event)
{
    (void)queue, (void)waits, (void)wait, (void)event;
    return at == memory->data ? CL_SUCCESS : CL_INVALID_VALUE;
}

cl_int clRetainEvent(cl_event event)
{
    event->holders++;
    return CL_SUCCESS;
}

cl_int clWaitForEvents(cl_uint count, const cl_event *events)
{
    if (fake_is("lost")) return CL_DEVICE_NOT_AVAILABLE;
    if (fake_is("deaf")) return CL_OUT_OF_RESOURCES;
    if (count != 1) return CL_INVALID_VALUE;
    if (events[0]->time[1] == 0) fake_waits++;
    do_writes();
    do_reads();
    return events[0]->status < 0 ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : CL_SUCCESS;
}

cl_int clGetEventInfo(cl_event event, cl_event_info what, size_t capacity, void *to, size_t *needed)
{
    if (what != CL_EVENT_COMMAND_EXECUTION_STATUS) return CL_INVALID_VALUE;
    return answer(to, capacity, needed, &event->status, sizeof event->status);
}

cl_int clFlush(cl_command_queue queue)
{
    (void)queue;
    fake_flushes++;
    return fake_is("stuck") ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset,
                           size_t bytes, void *to, cl_uint waits, const cl_event *wait, cl_event *event)
{
    const cl_int error = command(queue, event);
    (void)waits, (void)wait;
    if (error != CL_SUCCESS) return error;
    if (!blocking && fake_reads_left < 16) {
        fake_read *r = &fake_reads[fake_reads_left++];
        *r = (fake_read){ to, malloc(bytes), bytes, *event };
        memcpy(r->bytes, memory->data + offset, bytes);
        memset(to, 0xff, bytes);
        r->event->status = fake_is("torn") ? CL_OUT_OF_RESOURCES : CL_SUBMITTED;
        return CL_SUCCESS;
    }
    do_reads();
    memcpy(to, memory->data + offset, bytes);
    return done(event);
}

cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset,
                           size_t to_offset, size_t bytes, cl_uint waits, const cl_event *wait,
                           cl_event *event)
{
    const cl_int error = command(queue, event);
    (void)waits, (void)wait;
    if (error != CL_SUCCESS) return error;
    memcpy(to->data + to_offset, from->data + from_offset, bytes);
    return done(event);
}

cl_int clEnqueueFillBuffer(cl_command_queue queue, cl_mem memory, const void *pattern, size_t size,
                           size_t offset, size_t bytes, cl_uint waits, const cl_event *wait, cl_event *event)
{
    const cl_int error = command(queue, event);
    (void)waits, (void)wait;
    if (error != CL_SUCCESS) return error;
    if (offset % size || bytes % size) return CL_INVALID_VALUE;
    for (size_t i = 0; i < bytes; i += size) memcpy(memory->data + offset + i, pattern, size);
    return done(event);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                              const size_t *offset, const size_t *global, const size_t *local, cl_uint waits,
                              const cl_event *wait, cl_event *event)
{
    if (fake_is("late")) return CL_MEM_OBJECT_ALLOCATION_FAILURE;
    const cl_int error = command(queue, event);
    (void)offset, (void)waits, (void)wait;
    if (error != CL_SUCCESS) return error;
    if (dimensions != 2 || local[0] != DML__GROUP_ITEMS || local[1] != 1 || global[0] % local[0])
        return CL_INVALID_WORK_GROUP_SIZE;
    dml__host_run(kernel->number, global[0] / local[0], global[1], kernel->buffer, &kernel->arguments);
    return done(event);
}

cl_int clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t capacity, void *to,
                               size_t *needed)
{
    if (!event->timed) return CL_PROFILING_INFO_NOT_AVAILABLE;
    return answer(to, capacity, needed, &event->time[what == CL_PROFILING_COMMAND_END], sizeof(cl_ulong));
}

cl_int clReleaseEvent(cl_event event)
{
    if (--event->holders > 0) return CL_SUCCESS;
    for (int i = 0; i < fake_writes_left; i++)
        if (fake_writes[i].event == event) do_writes();
    for (int i = 0; i < fake_reads_left; i++)
        if (fake_reads[i].event == event) do_reads();
    fake_events--;
    free(event);
    return CL_SUCCESS;
}

cl_int clFinish(cl_command_queue queue)
{
    do_reads(); /* also of a device that has gone: then they end without it */
    return command(queue, NULL);
}

#endif
