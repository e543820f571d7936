/* What the OpenCL host says and does when its driver fails: on a fake one, mode by mode. */
#include "../test.h"

#if defined(__has_include)
#if __has_include(<CL/cl.h>)
#define HAS_OPENCL_HEADERS
#endif
#endif

#ifdef HAS_OPENCL_HEADERS

#include "device/context_internal.h"
#include "device/profile.h"
#include "graph/weights.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "fake_opencl.h"

#include <dlfcn.h>

/* The host, which looks its functions up in the fake loader. */
static void *fake_function(const char *name)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
#define FAKE_FUNCTION(function) { #function, (void (*)(void))function },
        FAKE_FUNCTION(clGetPlatformIDs) FAKE_FUNCTION(clGetDeviceIDs) FAKE_FUNCTION(clGetDeviceInfo)
            FAKE_FUNCTION(clCreateContext) FAKE_FUNCTION(clReleaseContext) FAKE_FUNCTION(clCreateCommandQueue)
                FAKE_FUNCTION(clReleaseCommandQueue) FAKE_FUNCTION(clCreateProgramWithSource) FAKE_FUNCTION(
                    clBuildProgram) FAKE_FUNCTION(clGetProgramBuildInfo) FAKE_FUNCTION(clReleaseProgram)
                    FAKE_FUNCTION(clCreateKernel) FAKE_FUNCTION(clGetKernelWorkGroupInfo) FAKE_FUNCTION(
                        clReleaseKernel) FAKE_FUNCTION(clSetKernelArg) FAKE_FUNCTION(clCreateBuffer)
                        FAKE_FUNCTION(clReleaseMemObject) FAKE_FUNCTION(clEnqueueWriteBuffer)
                            FAKE_FUNCTION(clEnqueueReadBuffer) FAKE_FUNCTION(clEnqueueCopyBuffer)
                                FAKE_FUNCTION(clEnqueueFillBuffer) FAKE_FUNCTION(clEnqueueNDRangeKernel)
                                    FAKE_FUNCTION(clGetEventProfilingInfo) FAKE_FUNCTION(clReleaseEvent)
                                        FAKE_FUNCTION(clFinish) FAKE_FUNCTION(clEnqueueMapBuffer)
                                            FAKE_FUNCTION(clEnqueueUnmapMemObject)
                                                FAKE_FUNCTION(clRetainEvent) FAKE_FUNCTION(clWaitForEvents)
                                                    FAKE_FUNCTION(clFlush) FAKE_FUNCTION(clGetEventInfo)
    };
    void *address = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0) memcpy(&address, &functions[i].function, sizeof address);
    return address;
}
#define dlopen(name, flags) (fake_is("no loader") ? NULL : (void *)functions_of)
#define dlsym(library, name) fake_function(name)
static char functions_of[1];
#include "gpu/opencl_host.c"
#undef dlopen
#undef dlsym

static dml_context *open_as(const char *mode)
{
    setenv("FAKE_OPENCL", mode, 1);
    return dml__open_on(dml_opencl_backend(), 0, &(dml_options){ .threads = 1 });
}

/* Opening fails with this status and words, and the next program's doesn't. */
static void refused(const char *mode, dml_status status, const char *part)
{
    dml_context *context = open_as(mode);
    CHECK_INT(dml_status_of(context), status);
    CHECK_CONTAINS(dml_error(context), part);
    dml_close(context);
    context = open_as("");
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void no_device(void)
{
    refused("no loader", DML_ERROR_DEVICE, "libOpenCL.so.1");
    refused("none", DML_ERROR_DEVICE, "no OpenCL device found");
    refused("old", DML_ERROR_DEVICE, "no OpenCL device found");
    refused("narrow", DML_ERROR_UNSUPPORTED, "with 64 items a group; dml needs 256");
}

static void what_it_says_of_itself(void)
{
    dml_device_info info;
    memset(&info, 0, sizeof info);
    setenv("FAKE_OPENCL", "", 1);
    dml_opencl_backend()->describe(0, &info);
    CHECK_STRING(info.name, "fake GPU");
    CHECK_STRING(info.features, "cl_khr_fp16 cl_khr_fp64");
    CHECK_STRING(info.driver, "7.1");
    CHECK(info.clock == 1 && info.compute_units == 2 && info.memory == 1u << 30 && info.gpu);
}

/* The first error, of our file and line, and neither what comes before nor what comes after. */
static void kernels_that_do_not_build(void)
{
    dml_context *context = open_as("build");
    const char *text = dml_error(context);
    CHECK_INT(dml_status_of(context), DML_ERROR_DEVICE);
    CHECK_CONTAINS(text, "fake GPU");
    CHECK_CONTAINS(text, "CL_BUILD_PROGRAM_FAILURE");
    const char *at = strstr(text, "gpu/tiles.cl:57:5: error: use of undeclared identifier 'tile_rows'");
    CHECK(at && strlen(at) == strlen("gpu/tiles.cl:57:5: error: use of undeclared identifier 'tile_rows'"));
    CHECK(!strstr(text, "warning"));
    dml_close(context);
}

static dml_trainer *make_trainer(dml_context *context, int batch, int units)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 6), *t = dml_input(graph, "t", DML_F32, 2);
    dml_node *h = dml_dense(dml_dense(x, units), 2);
    return dml_trainer_create(dml_mean_squared_error(h, t),
                              &(dml_trainer_options){ .batch = batch, .optimizer = dml_sgd(0.1f, 0.9f) });
}

static const float inputs[12] = { 1, 2, 3 }, targets[4] = { 1 };

/* What was asked for, what there is, and whose it is. */
static void no_memory_left(void)
{
    dml_context *context = open_as("full");
    CHECK_STRING(dml_error(context), "");
    CHECK(!make_trainer(context, 20000, 100));
    CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
    CHECK_CONTAINS(dml_error(context), "CL_MEM_OBJECT_ALLOCATION_FAILURE");
    CHECK_CONTAINS(dml_error(context), "of its 1073741824 bytes");
    CHECK_CONTAINS(dml_error(context), "this context holds");
    CHECK_CONTAINS(dml_error(context), "for a batch of 20000 'dense_1' alone takes 8000000");
    dml_clear_error(context);
    dml_trainer *trainer = make_trainer(context, 2, 5); /* a smaller one goes */
    CHECK_MESSAGE(trainer && dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL) == DML_OK, "%s",
                  dml_error(context));
    dml_close(context);
}

/* Drivers that allocate when a kernel first needs it. */
static void no_memory_left_in_the_middle(void)
{
    dml_context *context = open_as("");
    dml_trainer *trainer = make_trainer(context, 2, 5);
    setenv("FAKE_OPENCL", "late", 1);
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_ERROR_MEMORY);
    CHECK_CONTAINS(dml_error(context), "forward pass of 'dense_1'");
    CHECK_CONTAINS(dml_error(context), "gemm");
    dml_close(context);
}

/* The host's copies, and the caller's arrays, are what they were. */
static void a_device_that_is_lost(void)
{
    dml_context *context = open_as("");
    dml_trainer *trainer = make_trainer(context, 2, 5);
    const size_t count = dml_trainer_count(trainer, DML_PARAMETERS);
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_OK);
    float *kept = malloc(count * sizeof *kept);
    memcpy(kept, dml_trainer_get(trainer, DML_PARAMETERS, 0, count), count * sizeof *kept);
    CHECK_INT(dml_profile_begin(context, 0), DML_OK); /* and its events aren't lost either */
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_OK);
    setenv("FAKE_OPENCL", "lost", 1);
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_ERROR_DEVICE);
    CHECK_CONTAINS(dml_error(context), "CL_DEVICE_NOT_AVAILABLE");
    CHECK_CONTAINS(dml_error(context), "the device is lost");
    CHECK(!dml_trainer_get(trainer, DML_PARAMETERS, 0, count));
    CHECK(memcmp(kept, dml_trainer_host(trainer, DML_PARAMETERS, 0, count), count * sizeof *kept) == 0);
    CHECK(inputs[1] == 2 && targets[0] == 1);
    dml_profile_row row;
    CHECK_INT(dml_profile_rows(context, &row, 1), 0);
    dml_close(context);
    free(kept);
    context = open_as("");
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* More launches than are under way at once keep their times, which are the host's. */
static void times_of_many_launches(void)
{
    enum { STEPS = 60 };
    dml_profile_row rows[64];
    dml_context *context = open_as("");
    dml_trainer *trainer = make_trainer(context, 2, 5);
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    for (int step = 0; step < STEPS; step++)
        CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_OK);
    const int count = dml_profile_rows(context, rows, 64);
    int64_t calls = 0;
    for (int i = 0; i < count; i++) {
        calls += rows[i].calls;
        CHECK_MESSAGE(rows[i].calls % STEPS == 0 && rows[i].seconds > 0, "%s %s", rows[i].node, rows[i].what);
    }
    CHECK(count > 5 && calls > 10 * STEPS);
    dml_close(context);
}

/* What is written may be used again when the call returns, which waits for nothing but a piece of memory that
   is still on its way; where there is no such memory, for the write. */
static void writes_wait_for_nobody(void)
{
    enum { MANY = 3 * (DML__OPENCL_PIECE / 4) + 5, ROUNDS = 3 * DML__OPENCL_PIECES };
    static float given[MANY], got[MANY];
    for (int mapped = 0; mapped < 2; mapped++) {
        dml_context *context = open_as(mapped ? "" : "unmapped");
        dml_device *device = &context->device;
        dml_buffer x = { .bytes = sizeof given };
        CHECK_INT(device->backend->buffer_create(device, &x), DML_OK);
        if (mapped) CHECK_INT(dml_profile_begin(context, 0), DML_OK);
        fake_waits = 0;
        for (int round = 0; round < ROUNDS; round++) {
            given[0] = given[1] = (float)round;
            const dml_ref to = { &x, 8 * (size_t)round };
            CHECK_INT(device->backend->write(device, to, given, 8), DML_OK);
            if (round + 1 == DML__OPENCL_PIECES) CHECK_INT(fake_waits, mapped ? 0 : DML__OPENCL_PIECES);
        }
        CHECK(mapped ? fake_waits > 0 && fake_waits <= ROUNDS - DML__OPENCL_PIECES : fake_waits == ROUNDS);
        CHECK_INT(device->backend->read(device, got, (dml_ref){ &x, 0 }, 8 * ROUNDS), DML_OK);
        for (int i = 0; i < 2 * ROUNDS; i++) CHECK(got[i] == (float)(i / 2));
        for (int i = 0; i < MANY; i++) given[i] = (float)i; /* three pieces and a part of one */
        CHECK_INT(device->backend->write(device, (dml_ref){ &x, 0 }, given, sizeof given), DML_OK);
        memset(given, 0xff, sizeof given);
        CHECK_INT(device->backend->read(device, got, (dml_ref){ &x, 0 }, sizeof got), DML_OK);
        for (int i = 0; i < MANY && test__ok; i++) CHECK(got[i] == (float)i);
        dml_profile_row rows[2];
        if (mapped) {
            CHECK_INT(dml_profile_rows(context, rows, 2), 2);
            for (int i = 0; i < 2; i++)
                CHECK_INT(rows[i].calls, strcmp(rows[i].what, "write") == 0 ? ROUNDS + 4 : 2);
        }
        device->backend->buffer_destroy(device, &x);
        CHECK_STRING(dml_error(context), "");
        dml_close(context);
    }
    CHECK_INT(fake_events, 0);
}

/* A read that was started brings what there was then, when it is waited for or says that it has ended. */
static void reads_that_nobody_waits_for(void)
{
    static const float first[2] = { 1, 2 }, second[2] = { 3, 4 };
    float got[2], all[2];
    void *ticket;
    bool ended;
    dml_profile_row row[3];
    dml_context *context = open_as("");
    dml_device *device = &context->device;
    const dml_backend *b = device->backend;
    dml_buffer x = { .bytes = sizeof first };
    const dml_ref at = { &x, 0 };
    CHECK_INT(b->buffer_create(device, &x), DML_OK);
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    for (int waits = 0; waits < 2; waits++) {
        CHECK_INT(b->write(device, at, first, sizeof first), DML_OK);
        const int flushes = fake_flushes, waited = fake_waits;
        CHECK_INT(b->read_start(device, got, at, sizeof got, &ticket), DML_OK);
        CHECK(ticket && fake_flushes > flushes && fake_waits == waited);
        CHECK_INT(b->read_end(device, ticket, false, &ended), DML_OK);
        CHECK(!ended && fake_waits == waited);
        CHECK_INT(b->write(device, at, second, sizeof second), DML_OK);
        if (!waits) CHECK_INT(b->read(device, all, at, sizeof all), DML_OK); /* behind which all has ended */
        CHECK_INT(b->read_end(device, ticket, waits, &ended), DML_OK);
        CHECK(ended && memcmp(got, first, sizeof got) == 0);
    }
    CHECK(memcmp(all, second, sizeof all) == 0);
    CHECK_INT(b->read_start(device, got, at, 0, &ticket), DML_OK);
    CHECK(!ticket);
    const int rows = dml_profile_rows(context, row, 3);
    for (int i = 0; i < rows; i++) CHECK_INT(row[i].calls, strcmp(row[i].what, "read") == 0 ? 3 : 4);
    CHECK_INT(rows, 2);
    b->buffer_destroy(device, &x);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
    CHECK_INT(fake_events, 0);
}

/* Whatever fails of one, nothing is on its way afterwards. */
static void reads_that_fail_on_their_way(void)
{
    static const struct {
        const char *before, *after, *words; /* how the driver is when one is started, and then */
    } ways[] = { { "lost", "lost", "clEnqueueReadBuffer() failed with CL_DEVICE_NOT_AVAILABLE" },
                 { "stuck", "stuck", "clFlush(read) failed with CL_OUT_OF_RESOURCES" },
                 { "torn", "torn", "clWaitForEvents(read) failed with CL_OUT_OF_RESOURCES" },
                 { "", "deaf", "clWaitForEvents(read) failed with CL_OUT_OF_RESOURCES" },
                 { "", "lost", "the device is lost" } };
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        float got[2] = { 0 };
        void *ticket = NULL;
        bool ended = false;
        dml_context *context = open_as("");
        dml_device *device = &context->device;
        dml_buffer x = { .bytes = sizeof got };
        CHECK_INT(device->backend->buffer_create(device, &x), DML_OK);
        setenv("FAKE_OPENCL", ways[i / 2].before, 1);
        dml_status status = device->backend->read_start(device, got, (dml_ref){ &x, 0 }, sizeof got, &ticket);
        setenv("FAKE_OPENCL", ways[i / 2].after, 1);
        CHECK((status == DML_OK) == (ticket != NULL));
        if (ticket && i % 2) { /* as one that has ended, by its own account */
            status = device->backend->read_end(device, ticket, false, &ended);
            if (!ended) status = device->backend->read_end(device, ticket, true, &ended);
        } else if (ticket) {
            status = device->backend->read_end(device, ticket, true, &ended);
        }
        CHECK_INT(status, DML_ERROR_DEVICE);
        CHECK_CONTAINS(dml_error(context), ways[i / 2].words);
        CHECK(fake_reads_left == 0 && fake_events == 0);
        setenv("FAKE_OPENCL", "", 1);
        device->backend->buffer_destroy(device, &x);
        dml_close(context);
    }
}

/* Calls end by having the driver start what they queued; its refusal is theirs. */
static void calls_start_what_they_queue(void)
{
    dml_context *context = open_as("");
    dml_trainer *trainer = make_trainer(context, 2, 5);
    CHECK_INT(dml_trainer_backward(trainer, 2, DML_INPUTS(inputs, targets), 0, NULL), DML_OK);
    const int flushes = fake_flushes;
    CHECK_INT(dml_trainer_update(trainer), DML_OK);
    CHECK_INT(fake_flushes, flushes + 1);
    CHECK_INT(dml_trainer_backward(trainer, 2, DML_INPUTS(inputs, targets), 0, NULL), DML_OK);
    setenv("FAKE_OPENCL", "stuck", 1);
    CHECK_INT(dml_trainer_update(trainer), DML_ERROR_DEVICE);
    CHECK_CONTAINS(dml_error(context), "clFlush() failed with CL_OUT_OF_RESOURCES");
    dml_close(context);
}

/* What tuning can't have is no reason not to open. */
static void tuning_without_memory(void)
{
    setenv("DML_TUNE", "/tmp/dml-tune-of-nobody", 1);
    dml_context *context = open_as("full");
    CHECK_STRING(dml_error(context), "");
    dml_trainer *trainer = make_trainer(context, 2, 5);
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(inputs, targets), NULL), DML_OK);
    dml_close(context);
    FILE *file = fopen("/tmp/dml-tune-of-nobody", "r");
    CHECK(!file);
    setenv("DML_TUNE", "0", 1);
}

/* Which is what whoever asks for a device by name is told. */
static void through_the_front_door(void)
{
#ifdef DML_OPENCL
    setenv("FAKE_OPENCL", "none", 1);
    dml_context *context = dml_open(&(dml_options){ .device = "opencl:1" });
    CHECK_INT(dml_status_of(context), DML_ERROR_DEVICE);
    CHECK_CONTAINS(dml_error(context), "no device 'opencl:1': no OpenCL device found: there is no driver");
    CHECK(!dml_context_device(context));
    dml_close(context);
#else
    SKIP("built without OpenCL");
#endif
}

int main(void)
{
    setenv("DML_TUNE", "0", 1);
    RUN(no_device);
    RUN(what_it_says_of_itself);
    RUN(through_the_front_door);
    RUN(kernels_that_do_not_build);
    RUN(no_memory_left);
    RUN(no_memory_left_in_the_middle);
    RUN(a_device_that_is_lost);
    RUN(times_of_many_launches);
    RUN(writes_wait_for_nobody);
    RUN(reads_that_nobody_waits_for);
    RUN(reads_that_fail_on_their_way);
    RUN(calls_start_what_they_queue);
    RUN(tuning_without_memory);
    return test_report("gpu/opencl_faults");
}

#else

static void everything(void)
{
    SKIP("no CL/cl.h here");
}

int main(void)
{
    RUN(everything);
    return test_report("gpu/opencl_faults");
}

#endif
