/* opencl_staging.h: writes that the host doesn't wait for. */
#ifndef DML_GPU_OPENCL_STAGING_H
#define DML_GPU_OPENCL_STAGING_H

#include "gpu/opencl_profile.h"
#include "gpu/opencl_state.h"

#include <string.h>

static inline void dml__opencl_destroy_staging(dml__opencl *state)
{
    dml__opencl_staging *staging = &state->staging;
    for (int i = 0; i < DML__OPENCL_PIECES; i++)
        if (staging->copied[i]) state->cl.clReleaseEvent_(staging->copied[i]);
    if (staging->piece)
        state->cl.clEnqueueUnmapMemObject_(state->queue, staging->memory, staging->piece, 0, NULL, NULL);
    if (staging->memory) state->cl.clReleaseMemObject_(staging->memory);
    memset(staging, 0, sizeof *staging);
}

/* Whether there is memory to write through, which the first write asks for. */
static inline bool dml__opencl_has_staging(dml__opencl *state)
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
static inline cl_int dml__opencl_write_piece(dml_device *device, dml_ref to, const char *from, size_t bytes)
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

static inline dml_status dml__opencl_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
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

#endif
