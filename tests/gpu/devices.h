/* devices.h: for the tests of src/gpu: every device that isn't the CPU backend, and arrays on it with guards.
 */
#ifndef DML_TESTS_GPU_DEVICES_H
#define DML_TESTS_GPU_DEVICES_H

#include "device/backend.h"
#include "device/context.h"
#include "gpu/host_device.h"

#include "../test.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN true
#else
#define UNDER_TSAN false
#endif

/* What OpenCL's drivers lose on their own. */
#if defined(__SANITIZE_ADDRESS__)
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libintelocl\nleak:libOpenCL\nleak:libpocl\nleak:libtbb\n";
}
#endif

/* The device under test, on a context of its own that keeps the errors. */
static dml_context *context;
static dml_device device;

/* The backends under test, host C first; NULL past the last. */
static const dml_backend *backend_under_test(int i)
{
    if (i == 0) return dml__host_backend();
    const dml_backend *backend;
    for (int at = 0; (backend = dml_backend_at(at)) != NULL; at++)
        if (strcmp(backend->name, "cpu") != 0 && --i == 0) return backend;
    return NULL;
}

static dml_status open_device(const dml_backend *backend, int index)
{
    const dml_options options = { .threads = 1 };
    context = dml_open(&options);
    device = (dml_device){ .backend = backend, .index = index, .context = context };
    return backend->open(&device);
}

static void close_device(void)
{
    device.backend->close(&device);
    dml_close(context);
}

/* Runs a test on each backend's devices, a test a backend; at DML_TEST_DEVICES=opencl only on that one's. The
   thread sanitizer can't see into drivers, so under it, only on host C. */
#define RUN_ON_EVERY_DEVICE(test) run_on_every_device(#test, test)

static const dml_backend *backend_here;
static void (*test_here)(void);

static void on_its_devices(void)
{
    const int count = backend_here->count();
    if (count == 0) SKIP("no %s device here", backend_here->name);
    for (int index = 0; index < count; index++) {
        dml_device_info info;
        memset(&info, 0, sizeof info);
        backend_here->describe(index, &info);
        const dml_status status = open_device(backend_here, index);
        CHECK_MESSAGE(status == DML_OK, "%s:%d (%s) doesn't open: %s", backend_here->name, index, info.name,
                      dml_error(context));
        const bool ok = test__ok;
        if (status == DML_OK) test_here();
        if (ok && !test__ok) printf("that was on %s:%d (%s)\n", backend_here->name, index, info.name);
        if (status == DML_OK)
            close_device();
        else
            dml_close(context);
    }
}

static void run_on_every_device(const char *name, void (*test)(void))
{
    const char *only = UNDER_TSAN ? "host-c" : getenv("DML_TEST_DEVICES");
    test_here = test;
    for (int i = 0; (backend_here = backend_under_test(i)) != NULL; i++) {
        char label[128];
        snprintf(label, sizeof label, "%s_%s", name, backend_here->name);
        if (!only || !*only || strcmp(only, backend_here->name) == 0) test__run(label, on_its_devices);
    }
}

/* An array of 4-byte elements on the device, at an offset, between guards that no kernel may touch. */
enum { GUARD = 5 };
static const unsigned guard_word = 0xdeadbeefu;
typedef struct array {
    dml_buffer *buffer;
    size_t n;
} array;

static inline dml_ref at(array a)
{
    return (dml_ref){ a.buffer, a.buffer ? GUARD * 4 : 0 };
}

static inline array upload(const void *data, size_t n)
{
    array a = { calloc(1, sizeof(dml_buffer)), n };
    unsigned *words = malloc((n + 2 * GUARD) * 4);
    for (int i = 0; i < GUARD; i++) words[i] = words[GUARD + n + (size_t)i] = guard_word;
    if (n) memcpy(words + GUARD, data, n * 4);
    a.buffer->bytes = (n + 2 * GUARD) * 4;
    CHECK_INT(device.backend->buffer_create(&device, a.buffer), DML_OK);
    CHECK_INT(device.backend->write(&device, (dml_ref){ a.buffer, 0 }, words, a.buffer->bytes), DML_OK);
    free(words);
    return a;
}

/* Reads the array into `data` unless that is NULL, checks the guards and destroys the array. */
static inline void download(array a, void *data)
{
    unsigned *words = malloc(a.buffer->bytes);
    CHECK_INT(device.backend->read(&device, words, (dml_ref){ a.buffer, 0 }, a.buffer->bytes), DML_OK);
    for (int i = 0; i < GUARD; i++)
        CHECK_MESSAGE(words[i] == guard_word && words[GUARD + a.n + (size_t)i] == guard_word,
                      "a guard around an array was written to");
    if (data && a.n) memcpy(data, words + GUARD, a.n * 4);
    device.backend->buffer_destroy(&device, a.buffer);
    free(a.buffer);
    free(words);
}

static inline void launch_ok(dml_launch launch)
{
    CHECK_MESSAGE(device.backend->launch(&device, &launch) == DML_OK, "%s: %s", launch.kernel,
                  dml_error(context));
}

#endif
