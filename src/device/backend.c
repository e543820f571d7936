#ifndef DML_DEVICE_BACKEND_C
#define DML_DEVICE_BACKEND_C

#include "device/backend.h"

#include "device/cpu.h"

#include <stdio.h>
#include <string.h>

DML_API const dml_backend *dml_backend_at(int i)
{
    /* A new backend is one row here, ordered by preference. */
    static const dml_backend *(*const backends[])(void) = {
#ifdef DML_CUDA
        dml_cuda_backend,
#endif
#ifdef DML_OPENCL
        dml_opencl_backend,
#endif
        dml__cpu_backend,
    };
    const int count = (int)(sizeof backends / sizeof backends[0]);
    return i >= 0 && i < count ? backends[i]() : NULL;
}

/* Adds the devices for which `gpu` holds: a first pass for GPUs, a second for the others. */
static int dml__list_devices(dml_device_info *infos, int capacity, int count, bool gpu,
                             const dml_backend *backend)
{
    for (int index = 0, n = backend->count(); index < n; index++) {
        dml_device_info info;
        memset(&info, 0, sizeof info);
        backend->describe(index, &info);
        if (info.gpu != gpu) continue;
        if (strcmp(backend->name, "cpu") == 0)
            snprintf(info.id, sizeof info.id, "cpu");
        else
            snprintf(info.id, sizeof info.id, "%s:%d", backend->name, index);
        if (count < capacity) infos[count] = info;
        count++;
    }
    return count;
}

DML_API int dml_devices(dml_device_info *infos, int capacity)
{
    int count = 0;
    const dml_backend *backend;
    if (!infos) capacity = 0;
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++)
        count = dml__list_devices(infos, capacity, count, true, backend);
    count = dml__list_devices(infos, capacity, count, false, dml__cpu_backend());
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++)
        if (backend != dml__cpu_backend()) count = dml__list_devices(infos, capacity, count, false, backend);
    return count;
}

#endif
