/* opencl_library.h: the functions of OpenCL, found in the system's loader, and the names of errors. */
#ifndef DML_GPU_OPENCL_LIBRARY_H
#define DML_GPU_OPENCL_LIBRARY_H

#include "base/platform.h"

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <string.h>

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

/* False when there is no usable OpenCL. The loader stays open: closing it under a driver's threads crashes
   some drivers, and opening it again costs nothing. */
static inline bool dml__opencl_load(dml__opencl_library *cl)
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

static inline const char *dml__opencl_error_name(cl_int error)
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

static inline bool dml__opencl_lacks_memory(cl_int error)
{
    return error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY ||
           error == CL_INVALID_BUFFER_SIZE;
}

#endif
