/* opencl_reads.h: reads, and those that the host doesn't wait for. */
#ifndef DML_GPU_OPENCL_READS_H
#define DML_GPU_OPENCL_READS_H

#include "gpu/opencl_profile.h"
#include "gpu/opencl_state.h"

static inline dml_status dml__opencl_read(dml_device *device, void *to, dml_ref from, size_t bytes)
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
static inline cl_int dml__opencl_await_read(dml__opencl *state, cl_event event)
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
static inline dml_status dml__opencl_read_start(dml_device *device, void *to, dml_ref from, size_t bytes,
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
static inline dml_status dml__opencl_read_end(dml_device *device, void *ticket, bool wait, bool *ended)
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

#endif
