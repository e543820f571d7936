/* opencl_devices.h: which devices of OpenCL there are here, and what they say of themselves. */
#ifndef DML_GPU_OPENCL_DEVICES_H
#define DML_GPU_OPENCL_DEVICES_H

#include "device/backend.h"
#include "gpu/opencl_library.h"

#ifndef DML_NO_THREADS
#include <pthread.h>
#endif
#include <stdio.h>
#include <string.h>

/* "OpenCL 1.2 ..." or later, with a compiler, switched on, of this machine's byte order. */
static inline bool dml__opencl_usable(const dml__opencl_library *cl, cl_device_id id)
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

static inline bool dml__opencl_is_gpu(const dml__opencl_library *cl, cl_device_id id)
{
    cl_device_type type = 0;
    cl->clGetDeviceInfo_(id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    return (type & CL_DEVICE_TYPE_GPU) != 0;
}

enum { DML__OPENCL_PLATFORMS = 16, DML__OPENCL_DEVICES = 64 };
static inline int dml__opencl_list_now(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
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
static inline void dml__opencl_begin(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    if (dml__opencl_load(&cl)) (void)dml__opencl_list_now(&cl, ids, DML__OPENCL_DEVICES);
}

/* The first calls of a process are one thread's: PoCL crashes where two threads find it at its beginning. */
static inline void dml__opencl_begin_once(void)
{
    static pthread_once_t begun = PTHREAD_ONCE_INIT;
    (void)pthread_once(&begun, dml__opencl_begin);
}
#endif

/* Lists up to `capacity` usable devices, GPUs first, else in the platforms' order; returns how many. */
static inline int dml__opencl_list(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
{
    dml__opencl_begin_once();
    return dml__opencl_list_now(cl, ids, capacity);
}

static inline int dml__opencl_count(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    return dml__opencl_load(&cl) ? dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES) : 0;
}

/* Of the extensions, those that say what kernels may compute with. */
static inline void dml__opencl_features(const dml__opencl_library *cl, cl_device_id id, dml_device_info *info)
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

static inline void dml__opencl_describe(int index, dml_device_info *info)
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

#endif
