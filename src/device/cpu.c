#ifndef DML_DEVICE_CPU_C
#define DML_DEVICE_CPU_C

#include "device/cpu.h"

#include "base/copy.h"
#include "base/cpu.h"

#include <stdio.h>
#include <string.h>
#ifndef _WIN32
#include <unistd.h>
#endif

static int dml__cpu_device_count(void)
{
    return 1;
}

static void dml__cpu_describe(int index, dml_device_info *info)
{
    (void)index;
    snprintf(info->name, sizeof info->name, "CPU with %s kernels", dml_isa_name(dml_cpu_isa()));
    info->compute_units = dml_cpu_count();
    snprintf(info->features, sizeof info->features, "%s", dml_isa_name(dml_cpu_isa()));
#if !defined(_WIN32) && defined(_SC_PHYS_PAGES)
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) info->memory = (uint64_t)pages * (uint64_t)page;
#endif
}

static dml_status dml__cpu_open(dml_device *device)
{
    device->host_memory = true;
    return DML_OK;
}

static void dml__cpu_close(dml_device *device)
{
    (void)device;
}

static dml_status dml__cpu_buffer_create(dml_device *device, dml_buffer *buffer)
{
    buffer->host = dml_device_allocate(device, buffer->bytes);
    if (buffer->host) return DML_OK;
    return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left for a buffer of %zu bytes",
                           buffer->bytes);
}

static void dml__cpu_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    dml_device_release(device, buffer->host);
}

static dml_status dml__cpu_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes) dml__copy_bytes(dml__host(to), from, bytes);
    return DML_OK;
}

static dml_status dml__cpu_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    (void)device;
    if (bytes) dml__copy_bytes(to, dml__host(from), bytes);
    return DML_OK;
}

static dml_status dml__cpu_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    return dml__cpu_write(device, to, dml__host(from), bytes);
}

static dml_status dml__cpu_zero(dml_device *device, dml_ref to, size_t bytes)
{
    (void)device;
    if (bytes) memset(dml__host(to), 0, bytes);
    return DML_OK;
}

static dml_status dml__cpu_launch(dml_device *device, const dml_launch *launch)
{
    return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                           "kernel '%s' was launched on the CPU, where ops call kernels", launch->kernel);
}

static dml_status dml__cpu_finish(dml_device *device)
{
    (void)device;
    return DML_OK;
}

DML__LOCAL const dml_backend *dml__cpu_backend(void)
{
    static const dml_backend backend = { "cpu",
                                         dml__cpu_device_count,
                                         dml__cpu_describe,
                                         dml__cpu_open,
                                         dml__cpu_close,
                                         dml__cpu_buffer_create,
                                         dml__cpu_buffer_destroy,
                                         dml__cpu_write,
                                         dml__cpu_read,
                                         dml__cpu_copy,
                                         dml__cpu_zero,
                                         dml__cpu_launch,
                                         dml__cpu_finish,
                                         NULL,
                                         NULL,
                                         NULL,
                                         NULL,
                                         NULL,
                                         NULL,
                                         NULL };
    return &backend;
}

#endif
