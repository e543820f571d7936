/* backends.h: runs a test on every backend of this build: the CPU, the shared kernels as host C, OpenCL,
   CUDA. A backend without a device here is a skip; what a build leaves out, the Makefile says. */
#ifndef DML_TESTS_GRAPH_BACKENDS_H
#define DML_TESTS_GRAPH_BACKENDS_H

#include "device/backend.h"
#include "device/context_internal.h"

#include "../test.h"

/* The shared kernels as host C are in the builds of the library that hold src/gpu. Once with gcc and glibc is
   enough of them (and of OpenCL), and once with AddressSanitizer; for ThreadSanitizer, under which a launch
   takes 256 threads, tests/gpu uses every kernel. */
#if !defined(DML_NO_THREADS) && !defined(DML__EMULATED) && !defined(__SANITIZE_THREAD__) &&                  \
    defined(__x86_64__) && !defined(_WIN32) && !defined(__clang__) && defined(__GLIBC__)
#define HOST_C
#include "gpu/host_device.h"
#include <pthread.h>
#endif

static const dml_backend *backend_here; /* the one under test, and which of its devices */
static int device_here;

/* A context on the device under test. */
TEST__UNUSED static dml_context *open_here(const dml_options *options)
{
    return dml__open_on(backend_here, device_here, options);
}

/* A launch takes long there, so tests do less of the same. */
TEST__UNUSED static bool slow_here(void)
{
    return strcmp(backend_here->name, "host-c") == 0;
}

TEST__UNUSED static bool cpu_here(void)
{
    return strcmp(backend_here->name, "cpu") == 0;
}

static const dml_backend *find_backend(const char *name)
{
#ifdef HOST_C
    if (strcmp(name, "host-c") == 0) return dml__host_backend();
#endif
#if defined(__clang__)
    if (strcmp(name, "opencl") == 0) return NULL;
#endif
    const dml_backend *backend;
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++)
        if (strcmp(backend->name, name) == 0) return backend;
    return NULL;
}

#ifdef HOST_C
/* Kernels as host C have their local memory in static arrays, so of ranks that are threads one at a time
   launches. */
TEST__UNUSED static dml_status launch_alone(dml_device *device, const dml_launch *launch)
{
    static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&launching);
    const dml_status status = dml__host_backend()->launch(device, launch);
    pthread_mutex_unlock(&launching);
    return status;
}

TEST__UNUSED static const dml_backend *host_c_for_threads(void)
{
    static dml_backend locked;
    locked = *dml__host_backend();
    locked.launch = launch_alone;
    return &locked;
}
#endif

TEST__UNUSED static void on_backend(const char *name, void (*test)(void))
{
    backend_here = find_backend(name);
    const int count = backend_here->count();
    if (count == 0) SKIP("no %s device found", name);
    for (device_here = 0; device_here < count; device_here++) {
        test();
        if (!test__ok) printf("that was on %s:%d\n", name, device_here);
    }
}

#define EACH_BACKEND(test)                                                                                   \
    static void test##_cpu(void)                                                                             \
    {                                                                                                        \
        on_backend("cpu", test);                                                                             \
    }                                                                                                        \
    static void test##_host_c(void)                                                                          \
    {                                                                                                        \
        on_backend("host-c", test);                                                                          \
    }                                                                                                        \
    static void test##_opencl(void)                                                                          \
    {                                                                                                        \
        on_backend("opencl", test);                                                                          \
    }                                                                                                        \
    static void test##_cuda(void)                                                                            \
    {                                                                                                        \
        on_backend("cuda", test);                                                                            \
    }

#define RUN_EACH(test)                                                                                       \
    do {                                                                                                     \
        RUN(test##_cpu);                                                                                     \
        if (find_backend("host-c")) RUN(test##_host_c);                                                      \
        if (find_backend("opencl")) RUN(test##_opencl);                                                      \
        if (find_backend("cuda")) RUN(test##_cuda);                                                          \
    } while (0)

/* Moves `count` floats between the host and a buffer on the context's device. */
TEST__UNUSED static void write_floats(dml_context *context, dml_buffer *to, const float *from, size_t count)
{
    const dml_ref ref = { to, 0 };
    CHECK_INT(context->device.backend->write(&context->device, ref, from, count * sizeof *from), DML_OK);
}

TEST__UNUSED static void read_floats(dml_context *context, float *to, dml_buffer *from, size_t count)
{
    const dml_ref ref = { from, 0 };
    CHECK_INT(context->device.backend->read(&context->device, to, ref, count * sizeof *to), DML_OK);
}

/* Fills a whole buffer with NaNs, so that whoever reads what nobody wrote is found out. */
TEST__UNUSED static void poison(dml_context *context, dml_buffer *buffer)
{
    void *nans = malloc(buffer->bytes);
    const dml_ref ref = { buffer, 0 };
    memset(nans, 0xFF, buffer->bytes);
    CHECK_INT(context->device.backend->write(&context->device, ref, nans, buffer->bytes), DML_OK);
    free(nans);
}

#endif
