/* opencl_program.h: the kernels, built from their source by the device's own compiler. */
#ifndef DML_GPU_OPENCL_PROGRAM_H
#define DML_GPU_OPENCL_PROGRAM_H

#include "gpu/opencl_state.h"

#include <stdio.h>
#include <string.h>

static const char *const dml__opencl_source[] = {
#include "gpu/kernels.cl.inc"
};

/* A line of the log as a part of a sentence: without its newline, and not beyond `most` bytes. */
static inline const char *dml__opencl_log_line(char *line, size_t most)
{
    line[strcspn(line, "\r\n")] = '\0';
    if (strlen(line) > most) memcpy(line + most - 3, "...", 4);
    return line;
}

/* The line of a compiler's log that names the first error, which has our file and line, since the source has
   its own #lines. Logs begin with warnings, and are longer than an error's text. */
static inline const char *dml__opencl_first_error(char *log)
{
    static const char *const words[] = { "error:", "error", "Error", "ERROR" };
    const char *found = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !found; i++) found = strstr(log, words[i]);
    char *line = found ? log + (found - log) : log + strspn(log, " \t\r\n");
    while (line > log && line[-1] != '\n') line--;
    return dml__opencl_log_line(line, 200);
}

/* Says why the kernels don't build, in the words of the device's compiler. */
static inline dml_status dml__opencl_build_failed(dml_device *device, cl_int error)
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

static inline dml_status dml__opencl_build(dml_device *device)
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

static inline dml_status dml__opencl_find_kernels(dml_device *device)
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

#endif
