/* Contexts and devices: opening them, what they say when they can't, and the memory that backends give. */
#include "device/context.h"

#include "base/os_thread.h"
#include "device/backend.h"
#include "device/context_internal.h"
#include "graph/graph.h"
#include "ops/op_dense.h"
#include "graph/program.h"

#include "../graph/backends.h"

static void defaults(void)
{
    dml_context *context = dml_open(NULL);
    CHECK(context);
    CHECK_STRING(dml_error(context), "");
    CHECK_INT(dml_status_of(context), DML_OK);
    CHECK(dml_context_device(context) && dml_context_device(context)->host_memory);
    CHECK(dml_pool_threads(dml_context_pool(context)) >= 1);
    dml_close(context);
    dml_close(NULL);
    context = dml_open(&(dml_options){ .threads = 3, .device = "" });
#ifndef DML_NO_THREADS
    CHECK_INT(dml_pool_threads(dml_context_pool(context)), 3);
#endif
    CHECK_STRING(dml_context_device(context)->backend->name, "cpu");
    dml_close(context);
}

static void null_context(void)
{
    char memory[64];
    CHECK(!dml_open(&(dml_options){ .memory = memory }));
    CHECK_CONTAINS(dml_error(NULL), "no memory left to open a context; if dml_options.memory was given, "
                                    "memory_bytes must be its size");
    CHECK_INT(dml_status_of(NULL), DML_ERROR_MEMORY);
    dml_clear_error(NULL);
    CHECK(!dml_context_pool(NULL) && !dml_context_device(NULL));
}

/* Opening must fail with this, stay failed, and be harmless. */
static void check_refused(const dml_options *options, dml_status status, const char *part)
{
    dml_context *context = dml_open(options);
    CHECK(context);
    CHECK_INT(dml_status_of(context), status);
    CHECK_CONTAINS(dml_error(context), part);
    CHECK(!dml_context_device(context));
    CHECK(!dml_graph_create(context));
    dml_clear_error(context);
    CHECK_INT(dml_status_of(context), status);
    CHECK(!dml_graph_create(context));
    dml_close(context);
}

static void *refuse(void *user, size_t bytes)
{
    (void)user, (void)bytes;
    return NULL;
}

static void keep(void *user, void *memory)
{
    (void)user, (void)memory;
}

static void bad_memory_and_pin(void)
{
    const dml_options bad[] = { { .memory_bytes = 100 }, { .pin = 99 }, { .pin = -2 } };
    static const char *const part[] = { "memory_bytes of 100", "pin of 99", "pin of -2" };
    for (int i = 0; i < 3; i++) {
        dml_context *context = dml_open(&bad[i]);
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), part[i]);
        dml_close(context);
    }
}

static void bad_options(void)
{
    static const struct {
        const char *device;
        dml_status status;
        const char *part;
    } devices[] = {
        { "tpu", DML_ERROR_DEVICE, "no device 'tpu': this build has" },
        { "CPU", DML_ERROR_DEVICE, "no device 'CPU'" },
        { "cp", DML_ERROR_DEVICE, "no device 'cp'" },
        { "cpu0", DML_ERROR_DEVICE, "no device 'cpu0'" },
        { "cpu:1", DML_ERROR_DEVICE, "no device 'cpu:1': 1 cpu device found" },
        { "cpu:999", DML_ERROR_DEVICE, "cpu:0 to cpu:0" },
        { "cpu:", DML_ERROR_ARGUMENT, "after the colon comes a number" },
        { "cpu:-1", DML_ERROR_ARGUMENT, "device 'cpu:-1'" },
        { "cpu:x", DML_ERROR_ARGUMENT, "number" },
        { "cpu:0x", DML_ERROR_ARGUMENT, "number" },
        { "cpu:locally", DML_ERROR_ARGUMENT, "or 'local', for LOCAL_RANK's" },
        { "cpu:99999999999999999999", DML_ERROR_ARGUMENT, "number" },
        { ":0", DML_ERROR_DEVICE, "no device ':0'" },
        { "opencl:99", DML_ERROR_DEVICE, "no device 'opencl:99'" },
        { "cuda:99", DML_ERROR_DEVICE, "no device 'cuda:99'" },
    };
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        check_refused(&(dml_options){ .device = devices[i].device }, devices[i].status, devices[i].part);
    check_refused(&(dml_options){ .threads = 1000000 }, DML_ERROR_ARGUMENT, "or 1 to 4096");
    check_refused(&(dml_options){ .threads = -1 }, DML_ERROR_ARGUMENT, "-1 threads asked for");
    check_refused(&(dml_options){ .allocator = { NULL, keep, NULL } }, DML_ERROR_ARGUMENT, "allocator");
    check_refused(&(dml_options){ .allocator = { refuse, NULL, NULL } }, DML_ERROR_ARGUMENT, "both");
    char name[3000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    check_refused(&(dml_options){ .device = name }, DML_ERROR_DEVICE, "xxx");
    dml_context *context = dml_open(&(dml_options){ .device = "cpu:0" });
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* The context's threads count first, then the pool's; the pool's other options go with both. */
static void options_of_the_pool(void)
{
    static const int threads[][3] = { { 0, 3, 3 }, { 2, 3, 2 }, { 2, 0, 2 } };
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        const dml_pool_options pool = { .threads = threads[i][1], .spin = -1, .scratch = { 640, 64 } };
        dml_context *context = dml_open(&(dml_options){ .threads = threads[i][0], .pool = &pool });
        CHECK_STRING(dml_error(context), "");
#ifndef DML_NO_THREADS
        CHECK_INT(dml_pool_threads(dml_context_pool(context)), threads[i][2]);
#endif
        CHECK_INT(dml_pool_scratch_bytes(dml_context_pool(context)).worker, 640);
        CHECK_INT(dml_pool_scratch_bytes(dml_context_pool(context)).shared, 64);
        dml_close(context);
    }
    check_refused(&(dml_options){ .pool = &(dml_pool_options){ .threads = -2 } }, DML_ERROR_ARGUMENT,
                  "-2 threads asked for");
    check_refused(&(dml_options){ .threads = 2, .pool = &(dml_pool_options){ .scratch = { SIZE_MAX, 0 } } },
                  DML_ERROR_MEMORY, "no memory or threads left for a pool of 2 threads");
}

/* A context without a pool of any size to speak of fits into little. */
static void a_context_is_small(void)
{
    static char memory[8192];
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = sizeof memory });
    CHECK_MESSAGE(dml_status_of(context) == DML_OK, "%s", dml_error(context));
    dml_close(context);
}

static void an_unknown_instruction_set(void)
{
    setenv("DML_ISA", "avx3", 1);
    check_refused(NULL, DML_ERROR_ARGUMENT, "DML_ISA=avx3: there are scalar, neon, avx2, avx512");
    setenv("DML_ISA", "avx512", 1); /* or the best there is */
    dml_context *context = dml_open(NULL);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
    unsetenv("DML_ISA");
}

static void an_environment_that_means_nothing(void)
{
    static const char *const bad[][3] = {
        { "DML_PIN", "x", "DML_PIN is \"x\", not 0 or 1" },
        { "DML_PIN", "2", "DML_PIN is \"2\"" },
        { "LOCAL_WORLD_SIZE", "abc", "LOCAL_WORLD_SIZE is \"abc\", not a whole number from 1" },
        { "LOCAL_WORLD_SIZE", "-1", "LOCAL_WORLD_SIZE is \"-1\"" },
        { "LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE is \"0\"" },
        { "LOCAL_RANK", "zz", "LOCAL_RANK is \"zz\", not a whole number from 0" },
        { "LOCAL_RANK", "-1", "LOCAL_RANK is \"-1\"" },
    };
    static const char *const good[][2] = {
        { "DML_PIN", "" }, { "DML_PIN", "0" }, { "LOCAL_WORLD_SIZE", "" }, { "LOCAL_WORLD_SIZE", "3" }
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv(bad[i][0], bad[i][1], 1);
        check_refused(NULL, DML_ERROR_ARGUMENT, bad[i][2]);
        unsetenv(bad[i][0]);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        setenv(good[i][0], good[i][1], 1);
        dml_context *context = dml_open(NULL);
        CHECK_STRING(dml_error(context), "");
        dml_close(context);
        unsetenv(good[i][0]);
    }
}

static void the_device_list(void)
{
    dml_device_info infos[32], one[2];
    const int count = dml_devices(infos, 32);
    int cpus = 0;
    CHECK(count >= 1 && count <= 32);
    CHECK_INT(dml_devices(NULL, 0), count);
    memset(one, 0x7F, sizeof one);
    CHECK_INT(dml_devices(one, 1), count);
    CHECK_STRING(one[0].id, infos[0].id);
    CHECK(one[1].id[0] == 0x7F); /* no more than was asked for */
    for (int i = 0; i < count; i++) {
        CHECK(infos[i].name[0] && infos[i].compute_units >= 0);
        cpus += strcmp(infos[i].id, "cpu") == 0;
        if (i > 0) CHECK(infos[i - 1].gpu || !infos[i].gpu); /* GPUs come first */
        dml_context *context = dml_open(&(dml_options){ .device = infos[i].id });
        CHECK_MESSAGE(dml_status_of(context) == DML_OK, "%s: %s", infos[i].id, dml_error(context));
        dml_close(context);
    }
    CHECK_INT(cpus, 1);
    dml_context *context = dml_open(&(dml_options){ .device = "auto" });
    CHECK_MESSAGE(dml_context_device(context), "%s", dml_error(context));
    if (dml_context_device(context))
        CHECK(strncmp(infos[0].id, dml_context_device(context)->backend->name, 3) == 0);
    dml_close(context);
    CHECK(!dml_backend_at(-1) && !dml_backend_at(99));
}

/* Bytes there and back, at odd offsets, and nothing beside them. */
static void memory_of_a_device(void)
{
    enum { SIZE = 1000 };
    unsigned char pattern[SIZE], want[SIZE], got[SIZE];
    dml_context *context = open_here(NULL);
    dml_device *device = &context->device;
    const dml_backend *backend = device->backend;
    dml_buffer *a = dml__buffer_create(context, SIZE), *b = dml__buffer_create(context, SIZE);
    dml_buffer *empty = dml__buffer_create(context, 0);
    CHECK_MESSAGE(a && b && empty, "%s", dml_error(context));
    CHECK(!a->host == !device->host_memory);
    for (int i = 0; i < SIZE; i++) pattern[i] = (unsigned char)(i * 7 + 3);
    memcpy(want, pattern, SIZE);
    CHECK_INT(backend->write(device, (dml_ref){ a, 0 }, pattern, SIZE), DML_OK);
    CHECK_INT(backend->copy(device, (dml_ref){ b, 0 }, (dml_ref){ a, 0 }, SIZE), DML_OK);
    CHECK_INT(backend->zero(device, (dml_ref){ b, 404 }, 20), DML_OK);
    memset(want + 404, 0, 20);
    CHECK_INT(backend->copy(device, (dml_ref){ b, 504 }, (dml_ref){ a, 4 }, 12), DML_OK);
    memcpy(want + 504, pattern + 4, 12);
    CHECK_INT(backend->write(device, (dml_ref){ b, 996 }, pattern, 4), DML_OK);
    memcpy(want + 996, pattern, 4);
    CHECK_INT(backend->write(device, (dml_ref){ b, 0 }, pattern, 0), DML_OK);
    CHECK_INT(backend->zero(device, (dml_ref){ b, 0 }, 0), DML_OK);
    CHECK_INT(backend->copy(device, (dml_ref){ b, 0 }, (dml_ref){ a, 8 }, 0), DML_OK);
    CHECK_INT(backend->read(device, got, (dml_ref){ b, 0 }, SIZE), DML_OK);
    CHECK(memcmp(got, want, SIZE) == 0);
    CHECK_INT(backend->read(device, got, (dml_ref){ a, 500 }, 100), DML_OK);
    CHECK(memcmp(got, pattern + 500, 100) == 0 && memcmp(got + 100, want + 100, SIZE - 100) == 0);
    CHECK_INT(backend->finish(device), DML_OK);
    dml_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.kernel = "no_such_kernel";
    launch.size[0] = launch.size[1] = 1;
    CHECK(backend->launch(device, &launch) != DML_OK);
    CHECK_CONTAINS(dml_error(context), "no_such_kernel");
    dml__buffer_destroy(context, a);
    dml__buffer_destroy(context, b);
    dml__buffer_destroy(context, empty);
    dml__buffer_destroy(context, NULL);
    dml_close(context);
}
EACH_BACKEND(memory_of_a_device)

static char logged[1024];

static void keep_log(void *user, dml_log_level level, const char *message)
{
    CHECK(user == logged && message && !strchr(message, '\n'));
    CHECK(level == DML_LOG_DEBUG || level == DML_LOG_INFO);
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

/* The library says what it does, to the callback alone. */
static void the_log_tells(void)
{
    logged[0] = '\0';
    dml_context *context = dml_open(&(dml_options){ .threads = 2, .log = keep_log, .log_user = logged });
    CHECK_CONTAINS(logged, "opened cpu:0 (CPU with");
#ifndef DML_NO_THREADS
    CHECK_CONTAINS(logged, "with 2 CPU threads\n");
#endif
    CHECK(dml_compile(dml_dense(dml_input(dml_graph_create(context), "x", DML_F32, 4), 3),
                      &(dml_program_options){ .batch = 2 }));
    CHECK_CONTAINS(logged, "compiled 4 nodes for 2 samples: ");
    dml_close(context);
}

/* The context releases what the caller left, in any order of creation; what the caller released is gone. */
static void close_releases_everything(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *graph[3];
    dml_program *program[3];
    for (int i = 0; i < 3; i++) {
        graph[i] = dml_graph_create(context);
        program[i] = dml_compile(dml_dense(dml_input(graph[i], "x", DML_F32, 4), 3),
                                 &(dml_program_options){ .batch = 2 });
        CHECK(program[i]);
    }
    dml_program_destroy(program[1]);
    dml_graph_destroy(graph[1]);
    dml_program_destroy(program[2]);
    dml_close(context); /* the leak check of the sanitizer says the rest */
}

/* ---- one thread at a time ---- */

static void the_same_thread_enters_again(void)
{
    dml_context *context = dml_open(NULL), *other = dml_open(NULL);
    CHECK_INT(dml__enter(context), DML__ENTERED);
    CHECK(context->inside == dml__thread_self());
    CHECK_INT(dml__enter(context), DML__ENTERED_AGAIN);
    dml__leave(context, DML__ENTERED_AGAIN); /* the inner call ends: the outer one goes on */
    CHECK(context->inside == dml__thread_self());
    CHECK_INT(dml__enter(other), DML__ENTERED); /* contexts don't meet */
    dml__leave(other, DML__ENTERED);
    dml__leave(context, DML__ENTERED);
    CHECK(context->inside == 0 && other->inside == 0);
    CHECK_INT(dml__enter(context), DML__ENTERED);
    dml__leave(context, DML__ENTERED);
    dml_close(context);
    dml_close(other);
}

#ifndef DML_NO_THREADS
static void try_to_enter(void *argument)
{
    dml_context *context = (dml_context *)argument;
    const uintptr_t inside = context->inside;
    const dml__entry entry = dml__enter(context);
    CHECK_INT(entry, DML__REFUSED);
    dml__leave(context, entry); /* which leaves the other one in */
    CHECK(context->inside == inside && inside != dml__thread_self());
}

static void another_thread_is_refused(void)
{
    dml__thread thread;
    dml_context *context = dml_open(NULL);
    CHECK_INT(dml__enter(context), DML__ENTERED);
    CHECK(dml__thread_start(&thread, try_to_enter, context));
    dml__thread_join(&thread);
    CHECK(context->inside == dml__thread_self());
    dml__leave(context, DML__ENTERED);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

typedef struct visitors {
    dml_context *context;
    int inside, entered, refused; /* only the first is written by those inside alone */
} visitors;

static void visit_often(void *argument)
{
    visitors *v = (visitors *)argument;
    for (int i = 0; i < 20000; i++) {
        const dml__entry entry = dml__enter(v->context);
        if (entry == DML__ENTERED) {
            if (v->inside++ == 0) __atomic_fetch_add(&v->entered, 1, __ATOMIC_RELAXED);
            v->inside--;
        } else {
            __atomic_fetch_add(&v->refused, 1, __ATOMIC_RELAXED);
        }
        dml__leave(v->context, entry);
    }
}

static void never_two_at_once(void)
{
    enum { THREADS = 4 };
    dml__thread thread[THREADS];
    visitors v = { dml_open(NULL), 0, 0, 0 };
    for (int i = 0; i < THREADS; i++) CHECK(dml__thread_start(&thread[i], visit_often, &v));
    for (int i = 0; i < THREADS; i++) dml__thread_join(&thread[i]);
    CHECK_INT(v.inside, 0);
    CHECK_INT(v.entered + v.refused, THREADS * 20000); /* whoever came in was alone */
    CHECK(v.context->inside == 0);
    dml_close(v.context);
}
#endif

int main(void)
{
#ifndef DML_NO_THREADS
    RUN(another_thread_is_refused);
    RUN(never_two_at_once);
#endif
    RUN(the_same_thread_enters_again);
    RUN(defaults);
    RUN(null_context);
    RUN(bad_options);
    RUN(bad_memory_and_pin);
    RUN(options_of_the_pool);
    RUN(a_context_is_small);
    RUN(an_unknown_instruction_set);
    RUN(an_environment_that_means_nothing);
    RUN(the_device_list);
    RUN(the_log_tells);
    RUN_EACH(memory_of_a_device);
    RUN(close_releases_everything);
    return test_report("device/context");
}
