/* opencl_profile.h: what is timed of a device's work: each thing that is enqueued leaves an event. */
#ifndef DML_GPU_OPENCL_PROFILE_H
#define DML_GPU_OPENCL_PROFILE_H

#include "base/clock.h"
#include "gpu/opencl_state.h"

/* Tells of all that was timed, of a queue that has finished. */
static inline void dml__opencl_settle(dml_device *device)
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
static inline cl_event *dml__opencl_mark_of(dml_device *device, const char *what)
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
static inline cl_int dml__opencl_marked(dml_device *device, const cl_event *event, cl_int error)
{
    if (event && error == CL_SUCCESS) dml__opencl_of(device)->marks++;
    return error;
}

/* Only a queue that was made for it takes times. */
static inline dml_status dml__opencl_profile(dml_device *device, bool on)
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

#endif
