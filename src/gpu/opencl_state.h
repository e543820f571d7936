/* opencl_state.h: an open device of OpenCL, and the sentences for what fails there. */
#ifndef DML_GPU_OPENCL_STATE_H
#define DML_GPU_OPENCL_STATE_H

#include "device/backend.h"
#include "gpu/choice.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"
#include "gpu/opencl_library.h"

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

static inline dml__opencl *dml__opencl_of(dml_device *device)
{
    return (dml__opencl *)device->state;
}

static inline cl_mem dml__opencl_memory(const dml_buffer *buffer)
{
    return (cl_mem)buffer->handle;
}

/* DML_OK for CL_SUCCESS, else a recorded sentence: which device, what was called, on what, and the error. */
static inline dml_status dml__opencl_check(dml_device *device, cl_int error, const char *call, const char *on)
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

#endif
