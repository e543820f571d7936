#ifndef DML_DEVICE_CONTEXT_C
#define DML_DEVICE_CONTEXT_C

#include "device/context.h"

#include "base/cpu.h"
#include "base/cpu_internal.h"
#include "base/os_thread.h"
#include "device/context_internal.h"
#include "device/profile_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dml__open_pool(dml_context *context, const dml_options *options)
{
    dml_pool_options pool_options;
    memset(&pool_options, 0, sizeof pool_options);
    if (options->pool) pool_options = *options->pool;
    if (options->threads) pool_options.threads = options->threads;
    pool_options.allocator = dml__memory_allocator(&context->memory);
    if (!pool_options.pin) pool_options.pin = options->pin;
    if (pool_options.threads < 0 || pool_options.threads > DML_POOL_MOST)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "%d threads asked for: give 0 for one a core, or 1 to %d", pool_options.threads,
                  DML_POOL_MOST);
    else if (!(context->pool = dml_pool_create(&pool_options)))
        dml__fail(&context->error, DML_ERROR_MEMORY,
                  "no memory or threads left for a pool of %d threads with %zu bytes of scratch each and %zu "
                  "together",
                  pool_options.threads ? pool_options.threads : dml_cpu_share(), pool_options.scratch.worker,
                  pool_options.scratch.shared);
}

/* False, with the error recorded, when the environment asks for an instruction set that there isn't. */
static bool dml__check_isa(dml_context *context)
{
    const char *wanted;
    if (dml__cpu_isa_known(&wanted)) return true;
    char known[96] = "";
    for (int isa = 0; isa < (int)DML__ISA_COUNT; isa++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", isa ? ", " : "",
                 dml_isa_name((dml_isa)isa));
    dml__fail(&context->error, DML_ERROR_ARGUMENT,
              "the environment asks for DML_ISA=%s: there are %s, avx512_bf16, and this processor's best is "
              "%s; unset it "
              "for that",
              wanted, known, dml_isa_name(dml_cpu_isa()));
    return false;
}

/* False, with the error recorded, when what the environment says of threads means nothing: a pool by itself
   has nobody to tell it, and makes do as if it weren't said. */
static bool dml__check_pool_environment(dml_context *context)
{
    const char *pin = getenv("DML_PIN"), *ranks = getenv("LOCAL_WORLD_SIZE"), *rank = getenv("LOCAL_RANK");
    if (pin && *pin && strcmp(pin, "0") != 0 && strcmp(pin, "1") != 0)
        dml__fail(&context->error, DML_ERROR_ARGUMENT, "DML_PIN is \"%s\", not 0 or 1", pin);
    else if (ranks && *ranks && dml__cpu_environment("LOCAL_WORLD_SIZE") < 1)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "LOCAL_WORLD_SIZE is \"%s\", not a whole number from 1: how many ranks are on this host",
                  ranks);
    else if (rank && *rank && dml__cpu_environment("LOCAL_RANK") < 0)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "LOCAL_RANK is \"%s\", not a whole number from 0: which of the host's ranks this is", rank);
    return context->error.status == DML_OK;
}

static dml_status dml__open_device_at(dml_context *context, const dml_backend *backend, int index)
{
    context->device.backend = backend;
    context->device.index = index;
    context->device.context = context;
    const dml_status status = backend->open(&context->device);
    context->device_open = status == DML_OK;
    return status;
}

/* A backend without devices says why when one is opened. */
static void dml__explain_no_device(dml_context *context, const dml_backend *backend, const char *id)
{
    char why[sizeof context->error.text];
    dml__open_device_at(context, backend, 0);
    context->device_open = false;
    snprintf(why, sizeof why, "%s", context->error.text);
    dml_device_forgive(&context->device);
    dml__fail(&context->error, DML_ERROR_DEVICE, "no device '%s': %s", id, why);
}

/* "name", "name:index" or "name:local" -> backend and index. False, with the error recorded, for anything
   else. */
static bool dml__find_device(dml_context *context, const char *id, const dml_backend **found, int *index)
{
    const char *colon = strchr(id, ':');
    const size_t name_length = colon ? (size_t)(colon - id) : strlen(id);
    const bool local = colon && strcmp(colon, ":local") == 0;
    *index = 0;
    if (colon && !local) {
        char *end;
        const long number = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end || number < 0 || number > 999) {
            dml__fail(
                &context->error, DML_ERROR_ARGUMENT,
                "device '%s': after the colon comes a number, as in 'opencl:1', or 'local', for LOCAL_RANK's",
                id);
            return false;
        }
        *index = (int)number;
    }
    char known[96] = "";
    const dml_backend *backend;
    for (int i = 0; (backend = dml_backend_at(i)) != NULL; i++) {
        if (strlen(backend->name) == name_length && strncmp(backend->name, id, name_length) == 0) break;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", backend->name);
    }
    if (!backend) {
        const bool optional = strncmp(id, "opencl", 6) == 0 || strncmp(id, "cuda", 4) == 0;
        dml__fail(&context->error, DML_ERROR_DEVICE,
                  "no device '%s': this build has %s, or 'auto' for the best%s", id, known,
                  optional ? " (compile with -DDML_OPENCL and dml_opencl.c, or -DDML_CUDA and dml_cuda.cu)"
                           : "");
        return false;
    }
    const int count = backend->count();
    if (count == 0) {
        dml__explain_no_device(context, backend, id);
        return false;
    }
    if (local) {
        const int rank = dml__cpu_environment("LOCAL_RANK");
        *index = rank > 0 ? rank % count : 0;
    }
    if (*index >= count) {
        dml__fail(&context->error, DML_ERROR_DEVICE, "no device '%s': %d %s device%s found: %s:0 to %s:%d",
                  id, count, backend->name, count == 1 ? "" : "s", backend->name, backend->name, count - 1);
        return false;
    }
    *found = backend;
    return true;
}

static void dml__open_device(dml_context *context, const char *id)
{
    dml_device_info best;
    if (id && strcmp(id, "auto") == 0) {
        dml_devices(&best, 1);
        id = best.id;
    }
    const dml_backend *backend;
    int index;
    if (dml__find_device(context, id && *id ? id : "cpu", &backend, &index))
        dml__open_device_at(context, backend, index);
}

static void dml__log_opening(dml_context *context)
{
    dml_device_info info;
    memset(&info, 0, sizeof info);
    context->device.backend->describe(context->device.index, &info);
    dml__log(&context->logger, DML_LOG_INFO, "opened %s:%d (%s) with %d CPU threads",
             context->device.backend->name, context->device.index, info.name,
             dml_pool_threads(context->pool));
}

DML__LOCAL dml_context *dml__open_on(const dml_backend *backend, int index, const dml_options *options)
{
    static const dml_options defaults = { NULL, 0, 0,    { NULL, NULL, NULL }, NULL, 0, NULL, NULL,
                                          NULL, 0, false };
    if (!options) options = &defaults;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, options->memory, options->memory_bytes);
    dml_context *context = (dml_context *)dml__allocate(&memory, sizeof *context);
    if (!context) return NULL;
    context->memory = memory;
    context->error.buffer_bytes = options->memory ? options->memory_bytes : 0;
    context->logger.callback = options->log;
    context->logger.user = options->log_user;
    context->seed = options->seed;
    context->device.allow_tf32 = options->allow_tf32;
    context->process = dml__process_id();
    if (!options->allocator.allocate != !options->allocator.release)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "an allocator with only one of allocate and release: give both, or neither for malloc");
    else if (options->memory_bytes && !options->memory)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "memory_bytes of %zu with NULL for memory: give both, or neither for malloc",
                  options->memory_bytes);
    else if (options->pin < -1 || options->pin > 1)
        dml__fail(&context->error, DML_ERROR_ARGUMENT,
                  "pin of %d: give 1 to pin the threads, -1 not to, or 0 for what DML_PIN says",
                  options->pin);
    else if (dml__check_isa(context) && dml__check_pool_environment(context))
        dml__open_pool(context, options);
    if (context->error.status != DML_OK) return context;
    if (backend)
        dml__open_device_at(context, backend, index);
    else
        dml__open_device(context, options->device);
    if (context->device_open) dml__log_opening(context);
    return context;
}

DML_API dml_context *dml_open(const dml_options *options)
{
    return dml__open_on(NULL, 0, options);
}

DML__LOCAL bool dml__lost_by_fork(const dml_context *context)
{
    return !context->device.host_memory && context->process != dml__process_id();
}

DML_API void dml_close(dml_context *context)
{
    if (!context) return;
    while (context->owned) context->owned->destroy(context->owned);
    if (context->device_open && !dml__lost_by_fork(context)) context->device.backend->close(&context->device);
    dml__profile_release(context);
    dml_pool_destroy(context->pool);
    dml__memory memory = context->memory;
    dml__release(&memory, context);
}

/* Whether this thread is the refused one. What it is told can't lie in the context's error, at which the
   other thread is. */
static bool dml__was_refused(const dml_context *context)
{
    return __atomic_load_n(&context->refused, __ATOMIC_RELAXED) == dml__thread_self();
}

static dml__entry dml__take_context(dml_context *context)
{
    const uintptr_t self = dml__thread_self();
    uintptr_t inside = 0;
    if (__atomic_compare_exchange_n(&context->inside, &inside, self, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED)) {
        if (dml__was_refused(context)) __atomic_store_n(&context->refused, 0, __ATOMIC_RELAXED);
        if (dml__lost_by_fork(context))
            dml__fail(&context->error, DML_ERROR_STATE,
                      "this process was forked from the one that opened %s:%d, and a driver's device doesn't "
                      "come along; open a context in each process",
                      context->device.backend ? context->device.backend->name : "no device",
                      context->device.index);
        return DML__ENTERED;
    }
    if (inside == self) return DML__ENTERED_AGAIN;
    if (context->process == dml__process_id()) {
        __atomic_store_n(&context->refused, self, __ATOMIC_RELAXED);
        return DML__REFUSED;
    }
    /* The other thread is the parent's, and stayed there. */
    __atomic_store_n(&context->inside, self, __ATOMIC_RELAXED);
    dml__fail(&context->error, DML_ERROR_STATE,
              "this process was forked while another thread was in the context, and what that was doing will "
              "never be done; open a context here");
    return DML__ENTERED;
}

DML__LOCAL dml__entry dml__enter_late(dml_context *context, const void *user)
{
    const dml__entry entry = dml__take_context(context);
    if (entry == DML__ENTERED && context->late.settle && context->late.user != user)
        context->late.settle(context->late.user);
    return entry;
}

DML__LOCAL dml__entry dml__enter(dml_context *context)
{
    return dml__enter_late(context, NULL);
}

DML__LOCAL bool dml__begin_transfer(dml_context *context, dml__entry *entry)
{
    *entry = dml__enter(context);
    if (*entry != DML__REFUSED && !dml__lost_by_fork(context)) return true;
    dml__leave(context, *entry);
    return false;
}

DML__LOCAL void dml__settle(dml_context *context)
{
    if (__atomic_load_n(&context->late.settle, __ATOMIC_RELAXED)) dml__leave(context, dml__enter(context));
}

DML__LOCAL void dml__leave(dml_context *context, dml__entry entry)
{
    if (entry == DML__ENTERED) __atomic_store_n(&context->inside, 0, __ATOMIC_RELEASE);
}

DML_API const char *dml_error(const dml_context *context)
{
    if (!context)
        return "no memory left to open a context; if dml_options.memory was given, memory_bytes must be its "
               "size, and enough (dml_memory_needed)";
    if (dml__was_refused(context))
        return "another thread is in a call of this context, which one thread at a time may be in; open a "
               "context for each, or predict with programs that have a thread of their own (own_thread)";
    return context->error.text;
}

DML_API dml_status dml_status_of(const dml_context *context)
{
    if (!context) return DML_ERROR_MEMORY;
    return dml__was_refused(context) ? DML_ERROR_STATE : context->error.status;
}

DML_API void dml_clear_error(dml_context *context)
{
    if (!context || !context->device_open) return;
    if (dml__was_refused(context)) {
        __atomic_store_n(&context->refused, 0, __ATOMIC_RELAXED);
        return;
    }
    context->error.status = DML_OK;
    context->error.text[0] = '\0';
}

DML_API size_t dml_memory_needed(const dml_context *context)
{
    return context ? dml__memory_needed(&context->memory) : 0;
}

DML_API dml_pool *dml_context_pool(dml_context *context)
{
    return context ? context->pool : NULL;
}

DML_API const dml_device *dml_context_device(const dml_context *context)
{
    return context && context->device_open ? &context->device : NULL;
}

DML_API dml_status dml_device_fail(dml_device *device, dml_status status, const char *format, ...)
{
    char text[sizeof device->context->error.text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!device->node) return dml__fail(&device->context->error, status, "%s", text);
    return dml__fail(&device->context->error, status, "%s pass of '%s': %s", device->pass, device->node,
                     text);
}

DML_API void dml_device_forgive(dml_device *device)
{
    device->context->error.status = DML_OK;
    device->context->error.text[0] = '\0';
}

DML_API void dml_device_warn(dml_device *device, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dml__log(&device->context->logger, DML_LOG_WARNING, "%s", text);
}

DML_API void *dml_device_allocate(dml_device *device, size_t bytes)
{
    return dml__allocate(&device->context->memory, bytes);
}

DML_API void dml_device_release(dml_device *device, void *memory)
{
    dml__release(&device->context->memory, memory);
}

DML__LOCAL dml_status dml__flush(dml_context *context, dml_status status)
{
    dml_device *device = &context->device;
    if (!device->backend->flush) return status;
    const dml_status started = device->backend->flush(device);
    return status == DML_OK ? started : status;
}

DML__LOCAL void dml__own(dml_context *context, dml__owned *thing, void (*destroy)(dml__owned *self))
{
    thing->destroy = destroy;
    thing->previous = NULL;
    thing->next = context->owned;
    if (thing->next) thing->next->previous = thing;
    context->owned = thing;
}

DML__LOCAL void dml__disown(dml_context *context, dml__owned *thing)
{
    if (thing->previous)
        thing->previous->next = thing->next;
    else
        context->owned = thing->next;
    if (thing->next) thing->next->previous = thing->previous;
}

DML__LOCAL dml_buffer *dml__buffer_create(dml_context *context, size_t bytes)
{
    dml_buffer *buffer = (dml_buffer *)dml__allocate(&context->memory, sizeof *buffer);
    if (!buffer) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a buffer's record");
        return NULL;
    }
    buffer->bytes = bytes ? bytes : DML__ALIGNMENT;
    if (context->device.backend->buffer_create(&context->device, buffer) == DML_OK) return buffer;
    dml__release(&context->memory, buffer);
    return NULL;
}

DML__LOCAL dml_buffer *dml__buffer_create_zeroed(dml_context *context, size_t bytes)
{
    dml_buffer *buffer = dml__buffer_create(context, bytes);
    if (!buffer || context->device.host_memory) return buffer;
    const dml_ref start = { buffer, 0 };
    if (context->device.backend->zero(&context->device, start, buffer->bytes) == DML_OK) return buffer;
    dml__buffer_destroy(context, buffer);
    return NULL;
}

DML__LOCAL void dml__buffer_destroy(dml_context *context, dml_buffer *buffer)
{
    if (!buffer) return;
    if (!dml__lost_by_fork(context)) context->device.backend->buffer_destroy(&context->device, buffer);
    dml__release(&context->memory, buffer);
}

#endif
