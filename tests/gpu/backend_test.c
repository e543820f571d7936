/* The calls of every backend but the CPU's: buffers, transfers with offsets, order, errors. */
#include "device/context_internal.h"
#include "device/profile.h"

#include "devices.h"

#include <stdio.h>

static void bytes_make_the_round_trip(void)
{
    enum { N = 1000 };
    unsigned char data[N], got[N];
    dml_buffer a = { .bytes = N }, b = { .bytes = N };
    for (int i = 0; i < N; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    CHECK_INT(device.backend->buffer_create(&device, &a), DML_OK);
    CHECK_INT(device.backend->buffer_create(&device, &b), DML_OK);
    CHECK(!device.host_memory && !a.host && a.handle);
    CHECK_INT(device.backend->write(&device, (dml_ref){ &a, 0 }, data, N), DML_OK);
    CHECK_INT(device.backend->zero(&device, (dml_ref){ &b, 0 }, N), DML_OK);
    /* b = zeros, a[100 .. 399] at 500, zeros; odd sizes and places at the end */
    CHECK_INT(device.backend->copy(&device, (dml_ref){ &b, 500 }, (dml_ref){ &a, 100 }, 300), DML_OK);
    CHECK_INT(device.backend->write(&device, (dml_ref){ &b, 997 }, data + 1, 3), DML_OK);
    CHECK_INT(device.backend->zero(&device, (dml_ref){ &b, 501 }, 5), DML_OK);
    CHECK_INT(device.backend->zero(&device, (dml_ref){ &b, 508 }, 8), DML_OK);
    CHECK_INT(device.backend->read(&device, got, (dml_ref){ &b, 0 }, N), DML_OK);
    for (int i = 0; i < N; i++) {
        const bool copied = i >= 500 && i < 800 && !(i >= 501 && i < 506) && !(i >= 508 && i < 516);
        CHECK_INT(got[i], copied ? data[i - 400] : i >= 997 ? data[i - 996] : 0);
    }
    CHECK_INT(device.backend->read(&device, got, (dml_ref){ &a, 123 }, 7), DML_OK);
    CHECK(memcmp(got, data + 123, 7) == 0);
    CHECK_INT(device.backend->finish(&device), DML_OK);
    CHECK_STRING(dml_error(context), "");
    device.backend->buffer_destroy(&device, &a);
    device.backend->buffer_destroy(&device, &b);
}

static void nothing_to_do_is_done(void)
{
    float x[2] = { 1, 2 };
    array a = upload(x, 2);
    CHECK_INT(device.backend->write(&device, (dml_ref){ a.buffer, a.buffer->bytes }, x, 0), DML_OK);
    CHECK_INT(device.backend->read(&device, x, (dml_ref){ a.buffer, a.buffer->bytes }, 0), DML_OK);
    CHECK_INT(device.backend->copy(&device, at(a), at(a), 0), DML_OK);
    CHECK_INT(device.backend->zero(&device, at(a), 0), DML_OK);
    launch_ok((dml_launch){ .kernel = "axpby", .size = { 0, 1 }, .buffer = { at(a), at(a) } });
    launch_ok((dml_launch){
        .kernel = "axpby", .size = { 0, 1 }, .buffer = { { a.buffer, a.buffer->bytes }, at(a) } });
    launch_ok((dml_launch){ .kernel = "gemm", .size = { 4, 0 }, .buffer = { at(a), at(a), at(a) } });
    download(a, x);
    CHECK(x[0] == 1 && x[1] == 2);
}

/* Each step reads what the one before wrote, with nothing in between that waits. */
static void work_is_in_order(void)
{
    enum { N = 5000, STEPS = 50 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 0;
    array ax = upload(x, N), ay = upload(y, N);
    for (int step = 0; step < STEPS; step += 2) {
        if (strcmp(device.backend->name, "host-c") == 0 && step > 4)
            break; /* it starts 256 threads a launch */
        launch_ok((dml_launch){ .kernel = "axpby",
                                .size = { N, 1 },
                                .buffer = { at(ax), at(ay) },
                                .integer = { N },
                                .real = { 1, 1 } }); /* y += x */
        launch_ok((dml_launch){ .kernel = "axpby",
                                .size = { N, 1 },
                                .buffer = { at(ay), at(ax) },
                                .integer = { N },
                                .real = { 1, 0 } }); /* x = y */
        for (int i = 0; i < N; i++) y[i] += x[i], x[i] = y[i];
        device.backend->copy(&device, at(ay), at(ax), 40);
    }
    float got[N];
    download(ax, got);
    CHECK(memcmp(got, x, sizeof got) == 0);
    download(ay, got);
    CHECK(memcmp(got, y, sizeof got) == 0);
}

/* The call fails with this status and a sentence with this part in it. */
static void expect(dml_status got, dml_status want, const char *part)
{
    CHECK_INT(got, want);
    CHECK_INT(dml_status_of(context), want);
    CHECK_CONTAINS(dml_error(context), part);
    dml_clear_error(context);
}

static void bad_calls_are_told(void)
{
    float x[8] = { 0 };
    array a = upload(x, 8);
    const size_t bytes = a.buffer->bytes, huge = (size_t)-4;
    const dml_backend *b = device.backend;
    expect(b->write(&device, (dml_ref){ a.buffer, bytes - 4 }, x, 8), DML_ERROR_ARGUMENT, "write: 8 bytes");
    expect(b->read(&device, x, (dml_ref){ a.buffer, bytes + 4 }, 0), DML_ERROR_ARGUMENT, "read: 0 bytes");
    expect(b->read(&device, x, (dml_ref){ a.buffer, 4 }, huge), DML_ERROR_ARGUMENT, "don't fit");
    expect(b->zero(&device, (dml_ref){ a.buffer, huge }, 8), DML_ERROR_ARGUMENT, "zero: 8 bytes");
    expect(b->copy(&device, (dml_ref){ a.buffer, bytes }, at(a), 4), DML_ERROR_ARGUMENT, "copy to: 4 bytes");
    expect(b->copy(&device, at(a), (dml_ref){ a.buffer, bytes }, 4), DML_ERROR_ARGUMENT, "copy from");
    expect(b->write(&device, (dml_ref){ NULL, 0 }, x, 4), DML_ERROR_ARGUMENT, "no buffer");
    dml_launch launch = { .kernel = "no_such_kernel", .size = { 1, 1 } };
    expect(b->launch(&device, &launch), DML_ERROR_ARGUMENT, "no kernel is named 'no_such_kernel'");
    launch = (dml_launch){ .kernel = "axpby", .size = { (size_t)1 << 31, 1 } };
    expect(b->launch(&device, &launch), DML_ERROR_UNSUPPORTED, "make the batch smaller");
    launch = (dml_launch){ .kernel = "axpby", .size = { 1, 1 }, .buffer = { { a.buffer, bytes + 4 } } };
    expect(b->launch(&device, &launch), DML_ERROR_ARGUMENT, "axpby: ");
    download(a, NULL);
}

/* More than any machine has. The address sanitizer's malloc ends the program unless told otherwise. */
static void memory_can_run_out(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (strcmp(device.backend->name, "host-c") == 0) return;
#endif
    dml_buffer huge = { .bytes = (size_t)1 << 60 };
    const dml_status status = device.backend->buffer_create(&device, &huge);
    CHECK(huge.handle == NULL);
    expect(status, DML_ERROR_MEMORY, "1152921504606846976 bytes");
    device.backend->buffer_destroy(&device, &huge);
    float x = 3, y = 4; /* and the device still works */
    array a = upload(&x, 1), b = upload(&y, 1);
    launch_ok((dml_launch){ .kernel = "axpby",
                            .size = { 1, 1 },
                            .buffer = { at(a), at(b) },
                            .integer = { 1 },
                            .real = { 1, 1 } });
    download(a, NULL), download(b, &y);
    CHECK(y == 7);
}

/* Two devices at once, of one backend, don't meet. */
static void two_devices_dont_meet(void)
{
    dml_device first = device,
               second = { .backend = first.backend, .index = first.index, .context = context };
    float one = 1, two = 2, got;
    CHECK_INT(second.backend->open(&second), DML_OK);
    array a = upload(&one, 1);
    device = second;
    array b = upload(&two, 1);
    device = first;
    download(a, &got);
    CHECK(got == 1);
    device = second;
    download(b, &got);
    CHECK(got == 2);
    device.backend->close(&device);
    device = first;
}

/* More launches than are under way at once, each with its time, of a context of the device's own. */
static void launches_are_timed(void)
{
    const int launches = UNDER_TSAN ? 3 : 300;
    dml_device first = device;
    dml_context *first_context = context;
    float x = 1, y = 0;
    context = dml__open_on(first.backend, first.index, &(dml_options){ .threads = 1 });
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    device = context->device;
    array a = upload(&x, 1), b = upload(&y, 1);
    for (int i = 0; i < launches; i++)
        launch_ok((dml_launch){ .kernel = "axpby",
                                .size = { 1, 1 },
                                .buffer = { at(a), at(b) },
                                .integer = { 1 },
                                .real = { 1, 1 } });
    download(a, NULL), download(b, &y);
    CHECK(y == (float)launches);
    dml_profile_row rows[8];
    const int count = dml_profile_rows(context, rows, 8);
    bool found = false;
    for (int i = 0; i < count; i++) {
        CHECK(rows[i].seconds >= 0 && rows[i].seconds < 100 && strcmp(rows[i].pass, "step") == 0);
        found = found || (strcmp(rows[i].what, "axpby") == 0 && rows[i].calls == launches);
    }
    CHECK(found);
    dml_close(context);
    context = first_context;
    device = first;
}

static void everything(void)
{
    launches_are_timed();
    bytes_make_the_round_trip();
    nothing_to_do_is_done();
    work_is_in_order();
    bad_calls_are_told();
    memory_can_run_out();
    two_devices_dont_meet();
}

/* Needs no device: counts are never negative, and an index that isn't there is an error, not a crash. */
static void devices_that_are_not_there(void)
{
    const dml_backend *backend;
    for (int i = 0; (backend = backend_under_test(i)) != NULL; i++) {
        const int count = backend->count();
        const int bad[] = { -1, count, count + 1000 };
        CHECK(count >= 0);
        for (int b = 0; b < 3; b++) {
            dml_device_info info;
            memset(&info, 0, sizeof info);
            if (strcmp(backend->name, "host-c") != 0) {
                backend->describe(bad[b], &info);
                CHECK_STRING(info.name, "");
            }
            expect(open_device(backend, bad[b]), DML_ERROR_DEVICE, count || b == 0 ? "device" : "no ");
            CHECK(device.state == NULL);
            dml_close(context);
        }
    }
}

static void devices_describe_themselves(void)
{
    const dml_backend *backend;
    for (int i = 1; (backend = backend_under_test(i)) != NULL; i++) {
        bool cpu_seen = false;
        for (int index = 0, count = backend->count(); index < count; index++) {
            dml_device_info info;
            memset(&info, 0, sizeof info);
            backend->describe(index, &info);
            CHECK_MESSAGE(info.name[0] && info.memory > 0 && info.compute_units > 0,
                          "%s:%d: \"%s\", %llu bytes, %d units", backend->name, index, info.name,
                          (unsigned long long)info.memory, info.compute_units);
            CHECK(info.driver[0] && info.clock >= 0);
            if (strcmp(backend->name, "cuda") == 0) CHECK_CONTAINS(info.features, "compute capability ");
            CHECK(!(info.gpu && cpu_seen)); /* GPUs come first */
            cpu_seen = cpu_seen || !info.gpu;
        }
    }
}

/* The same through the front door. */
/* Ranks of a host share its devices out; an unset LOCAL_RANK is the first. */
static void a_rank_opens_its_own(void)
{
    const dml_backend *backend;
    for (int i = 1; (backend = backend_under_test(i)) != NULL; i++) {
        const int count = backend->count();
        for (int rank = -1; count > 0 && rank <= count; rank++) {
            char id[32], number[16];
            snprintf(id, sizeof id, "%s:local", backend->name);
            snprintf(number, sizeof number, "%d", rank);
            rank < 0 ? unsetenv("LOCAL_RANK") : setenv("LOCAL_RANK", number, 1);
            dml_context *opened = dml_open(&(dml_options){ .device = id, .threads = 1 });
            CHECK_STRING(dml_error(opened), "");
            if (dml_status_of(opened) == DML_OK)
                CHECK_INT(dml_context_device(opened)->index, rank < 0 ? 0 : rank % count);
            dml_close(opened);
        }
        unsetenv("LOCAL_RANK");
    }
}

static void a_context_opens_each_device(void)
{
    const dml_backend *backend;
    for (int i = 1; (backend = backend_under_test(i)) != NULL; i++) {
        const int count = backend->count();
        for (int index = 0; index <= count; index++) {
            char id[32];
            snprintf(id, sizeof id, "%s:%d", backend->name, index);
            const dml_options options = { .device = id, .threads = 1 };
            dml_context *opened = dml_open(&options);
            CHECK_MESSAGE(dml_status_of(opened) == (index < count ? DML_OK : DML_ERROR_DEVICE), "%s: %s", id,
                          dml_error(opened));
            dml_close(opened);
        }
    }
}

int main(void)
{
    RUN_ON_EVERY_DEVICE(everything);
    RUN(devices_that_are_not_there);
    RUN(devices_describe_themselves);
    RUN(a_context_opens_each_device);
    RUN(a_rank_opens_its_own);
    return test_report("gpu/backend");
}
