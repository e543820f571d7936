#ifndef DML_COMM_COMM_C
#define DML_COMM_COMM_C

#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

/* ---- after a fork ---- */

/* In the child of the process that opened it: there is no background thread here, a lock may be held by a
   thread that isn't there, and the connections are the parent's. Nothing may be touched. */
static bool dml__is_copy(const dml_comm *comm)
{
    return comm->process != (long)getpid();
}

static const char *dml__copy_text(const dml_comm *comm)
{
    dml_comm *written = (dml_comm *)(uintptr_t)comm; /* this process's own memory, and its only thread's */
    snprintf(
        written->fork_error, sizeof written->fork_error,
        "rank %d's communicator was opened in process %ld and called in process %ld, after a fork: open one "
        "in each process",
        comm->rank, comm->process, (long)getpid());
    return written->fork_error;
}

/* ---- running one call ---- */

/* How many ranks' worth of elements each side of a call has. */
static dml_status dml__check_call(dml_comm *comm, const dml__comm_call *call)
{
    const dml__signature *signature = &call->signature;
    char text[DML__SIGNATURE_TEXT];
    dml__signature_text(signature, text);
    const int me = comm->rank;
    const dml__comm_operation operation = signature->operation;
    const bool reduces = operation == DML__CALL_ALL_REDUCE || operation == DML__CALL_REDUCE_SCATTER;
    const bool pairs = operation == DML__CALL_SEND || operation == DML__CALL_RECEIVE;
    const size_t size = dml_dtype_size(signature->dtype);
    if (!size || (reduces && signature->dtype > DML_I64))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s: the dtype must be %s", me,
                              text, reduces ? "f32, f64, i32 or i64" : "one of dml_dtype");
    if ((unsigned)signature->reduce >= DML__REDUCE_OP_COUNT)
        return dml__comm_fail(
            comm, me, DML_ERROR_ARGUMENT,
            "rank %d called %s: the op must be DML_SUM, DML_MEAN, DML_MIN, DML_MAX or DML_PROD", me, text);
    if (signature->count > SIZE_MAX / 2 / size / (size_t)comm->world)
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s: more than fits into memory",
                              me, text);
    if (signature->root < 0 || signature->root >= comm->world || (pairs && signature->root == me))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d of %d called %s: it must be %s rank", me,
                              comm->world, text, pairs ? "another" : "a");
    if (signature->count && (!call->in || !call->out))
        return dml__comm_fail(comm, me, DML_ERROR_ARGUMENT, "rank %d called %s with NULL for its data", me,
                              text);
    return DML_OK;
}

/* In a world of one, every collective only copies its own part. */
static void dml__run_alone(const dml__comm_call *call)
{
    const size_t bytes = (size_t)call->signature.count * dml_dtype_size(call->signature.dtype);
    if (bytes && call->in != call->out) memmove(call->out, call->in, bytes);
}

/* On the thread that has `busy`. */
static dml_status dml__execute(dml_comm *comm, const dml__comm_call *call)
{
    dml_status status = dml_comm_status(comm);
    if (!status) status = dml__check_call(comm, call);
    if (status) return status;
    if (comm->world == 1) {
        dml__run_alone(call);
        return DML_OK;
    }
    comm->deadline = dml_seconds() + comm->timeout;
    status = comm->engine->run(comm, call);
    const dml__comm_operation operation = call->signature.operation;
    if (operation != DML__CALL_SEND && operation != DML__CALL_RECEIVE) comm->sequence++;
    return status;
}

/* ---- taking turns: what was started runs in order, before any later call ---- */

/* Returns when everything that was started has ended, with `busy`. */
static void dml__take_turn(dml_comm *comm)
{
    dml__mutex_lock(&comm->mutex);
    while (comm->busy || comm->first_queued) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    comm->busy = true;
    dml__mutex_unlock(&comm->mutex);
}

static void dml__end_turn(dml_comm *comm)
{
    dml__mutex_lock(&comm->mutex);
    comm->busy = false;
    dml__cond_signal_all(&comm->changed);
    dml__mutex_unlock(&comm->mutex);
}

/* Runs the first of the queue; with the mutex, which is given up while it runs. */
static void dml__run_first(dml_comm *comm)
{
    dml_request *request = comm->first_queued;
    comm->busy = true;
    dml__mutex_unlock(&comm->mutex);
    const dml_status status = dml__execute(comm, &request->call);
    dml__mutex_lock(&comm->mutex);
    comm->first_queued = request->next;
    if (!comm->first_queued) comm->last_queued = NULL;
    request->status = status;
    request->state = DML__REQUEST_DONE;
    comm->busy = false;
    dml__cond_signal_all(&comm->changed);
}

#ifndef DML_NO_THREADS
/* The background thread. */
static void dml__comm_thread(void *argument)
{
    dml_comm *comm = (dml_comm *)argument;
    dml__mutex_lock(&comm->mutex);
    for (;;) {
        while (!comm->stop && (comm->busy || !comm->first_queued))
            dml__cond_wait(&comm->changed, &comm->mutex, -1);
        if (!comm->first_queued) break; /* stop, but only when all is done */
        dml__run_first(comm);
    }
    dml__mutex_unlock(&comm->mutex);
}
#endif

static dml_status dml__call_now(dml_comm *comm, const dml__comm_call *call)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm)) return DML_ERROR_STATE;
    dml__take_turn(comm);
    const dml_status status = dml__execute(comm, call);
    dml__end_turn(comm);
    return status;
}

/* With the mutex: what was put into the queue will be run. */
static bool dml__see_to_queue(dml_comm *comm)
{
#ifdef DML_NO_THREADS
    while (comm->first_queued) dml__run_first(comm);
    return true;
#else
    if (!comm->thread_started)
        comm->thread_started = dml__thread_start(&comm->thread, dml__comm_thread, comm);
    dml__cond_signal_all(&comm->changed);
    return comm->thread_started;
#endif
}

/* With the mutex. */
static void dml__free_request(dml_comm *comm, dml_request *request)
{
    request->state = DML__REQUEST_FREE;
    request->next = NULL;
    if (comm->last_free)
        comm->last_free->next = request;
    else
        comm->free_requests = request;
    comm->last_free = request;
}

/* With the mutex; NULL when all are out. */
static dml_request *dml__new_request(dml_comm *comm)
{
    dml_request *request = comm->free_requests;
    if (!request) return NULL;
    comm->free_requests = request->next;
    if (!comm->free_requests) comm->last_free = NULL;
    request->next = NULL;
    return request;
}

static dml_request *dml__call_later(dml_comm *comm, const dml__comm_call *call)
{
    if (dml_comm_status(comm)) return NULL;
    dml__mutex_lock(&comm->mutex);
    dml_request *request = dml__new_request(comm);
    if (request) {
        request->call = *call;
        request->state = DML__REQUEST_QUEUED;
        if (comm->last_queued)
            comm->last_queued->next = request;
        else
            comm->first_queued = request;
        comm->last_queued = request;
        if (!dml__see_to_queue(comm)) {
            /* The first request ever, and no thread for it: the queue holds nothing else. */
            comm->first_queued = comm->last_queued = NULL;
            dml__free_request(comm, request);
            dml__mutex_unlock(&comm->mutex);
            dml__take_turn(comm);
            dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d can't start its background thread",
                           comm->rank);
            dml__end_turn(comm);
            return NULL;
        }
    }
    dml__mutex_unlock(&comm->mutex);
    if (request) return request;
    char text[DML__SIGNATURE_TEXT];
    dml__take_turn(comm);
    dml__comm_fail(
        comm, comm->rank, DML_ERROR_STATE,
        "rank %d started %s while all %d requests were out: wait for those that were started, with "
        "dml_comm_wait or dml_comm_wait_all, or open the communicator with more max_requests",
        comm->rank, dml__signature_text(&call->signature, text), comm->max_requests);
    dml__end_turn(comm);
    return NULL;
}

/* ---- the public calls ---- */

static dml__comm_call dml__make_call(dml__comm_operation operation, const void *in, void *out, size_t count,
                                     dml_dtype dtype, dml_reduce_op reduce, int root)
{
    dml__comm_call call;
    call.signature.operation = operation;
    call.signature.dtype = dtype;
    call.signature.reduce = reduce;
    call.signature.root = root;
    call.signature.count = count;
    call.in = (void *)(uintptr_t)in; /* written only by the calls that took it as not const */
    call.out = out;
    return call;
}

DML_API dml_status dml_comm_all_reduce(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                       dml_reduce_op op)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE, data, data, count, dtype, op, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_request *dml_comm_all_reduce_start(dml_comm *comm, void *data, size_t count, dml_dtype dtype,
                                               dml_reduce_op op)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_REDUCE, data, data, count, dtype, op, 0);
    return dml__call_later(comm, &call);
}

DML_API dml_status dml_comm_broadcast(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int root)
{
    const dml__comm_call call = dml__make_call(DML__CALL_BROADCAST, data, data, count, dtype, DML_SUM, root);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_all_gather(dml_comm *comm, const void *in, size_t count, dml_dtype dtype,
                                       void *out)
{
    const dml__comm_call call = dml__make_call(DML__CALL_ALL_GATHER, in, out, count, dtype, DML_SUM, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_reduce_scatter(dml_comm *comm, void *in, size_t count_per_rank, dml_dtype dtype,
                                           dml_reduce_op op, void *out)
{
    const dml__comm_call call =
        dml__make_call(DML__CALL_REDUCE_SCATTER, in, out, count_per_rank, dtype, op, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_barrier(dml_comm *comm)
{
    const dml__comm_call call = dml__make_call(DML__CALL_BARRIER, NULL, NULL, 0, DML_U8, DML_SUM, 0);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_send(dml_comm *comm, const void *data, size_t count, dml_dtype dtype, int to)
{
    /* `out` isn't written: only checked, as `in` is. */
    const dml__comm_call call =
        dml__make_call(DML__CALL_SEND, data, (void *)(uintptr_t)data, count, dtype, DML_SUM, to);
    return dml__call_now(comm, &call);
}

DML_API dml_status dml_comm_receive(dml_comm *comm, void *data, size_t count, dml_dtype dtype, int from)
{
    const dml__comm_call call = dml__make_call(DML__CALL_RECEIVE, data, data, count, dtype, DML_SUM, from);
    return dml__call_now(comm, &call);
}

/* Whether it is a place in comm->requests. */
static bool dml__is_own_request(const dml_comm *comm, const dml_request *request)
{
    const uintptr_t offset = (uintptr_t)request - (uintptr_t)comm->requests;
    return offset < (uintptr_t)comm->max_requests * sizeof *request && offset % sizeof *request == 0;
}

DML_API bool dml_comm_done(dml_comm *comm, const dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm) || !dml__is_own_request(comm, request)) return true;
    dml__mutex_lock(&comm->mutex);
    const bool done = request->state != DML__REQUEST_QUEUED;
    dml__mutex_unlock(&comm->mutex);
    return done;
}

static dml_status dml__refuse_wait(dml_comm *comm, dml_status status, const char *format)
{
    dml__take_turn(comm);
    status = dml__comm_fail(comm, comm->rank, status, format, comm->rank);
    dml__end_turn(comm);
    return status;
}

DML_API dml_status dml_comm_wait(dml_comm *comm, dml_request *request)
{
    if (!comm || !request || dml__is_copy(comm)) return dml_comm_status(comm);
    if (!dml__is_own_request(comm, request))
        return dml__refuse_wait(comm, DML_ERROR_ARGUMENT,
                                "rank %d waited for a request that another communicator gave out");
    dml__mutex_lock(&comm->mutex);
    while (request->state == DML__REQUEST_QUEUED) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    const bool out = request->state == DML__REQUEST_DONE;
    const dml_status status = request->status;
    if (out) dml__free_request(comm, request);
    dml__mutex_unlock(&comm->mutex);
    if (out) return status;
    return dml__refuse_wait(comm, DML_ERROR_STATE, "rank %d waited twice for the same request");
}

DML_API dml_status dml_comm_wait_all(dml_comm *comm)
{
    if (!comm || dml__is_copy(comm)) return dml_comm_status(comm);
    dml__mutex_lock(&comm->mutex);
    while (comm->first_queued) dml__cond_wait(&comm->changed, &comm->mutex, -1);
    for (int i = 0; comm->requests && i < comm->max_requests; i++)
        if (comm->requests[i].state == DML__REQUEST_DONE) dml__free_request(comm, &comm->requests[i]);
    dml__mutex_unlock(&comm->mutex);
    return dml_comm_status(comm);
}

DML_API dml_status dml_comm_status(const dml_comm *comm)
{
    if (!comm) return DML_ERROR_MEMORY;
    if (dml__is_copy(comm)) return DML_ERROR_STATE;
    dml_comm *locked = (dml_comm *)(uintptr_t)comm;
    dml__mutex_lock(&locked->mutex);
    const dml_status status = comm->error.status;
    dml__mutex_unlock(&locked->mutex);
    return status;
}

DML_API const char *dml_comm_error(const dml_comm *comm)
{
    if (!comm) return dml_status_string(DML_ERROR_MEMORY);
    if (dml__is_copy(comm)) return dml__copy_text(comm);
    return dml_comm_status(comm) ? comm->error.text : "";
}

DML_API int dml_comm_rank(const dml_comm *comm)
{
    return comm ? comm->rank : 0;
}

DML_API int dml_comm_world_size(const dml_comm *comm)
{
    return comm ? comm->world : 1;
}

DML_API int dml_comm_strangers(const dml_comm *comm)
{
    return comm ? comm->strangers : 0;
}

/* ---- open and close ---- */

static bool dml__allocate_comm_parts(dml_comm *comm)
{
    comm->requests =
        (dml_request *)dml__allocate_array(&comm->memory, (size_t)comm->max_requests, sizeof *comm->requests);
    for (int i = 0; comm->requests && i < comm->max_requests; i++)
        dml__free_request(comm, &comm->requests[i]);
    if (comm->world == 1) return comm->requests != NULL;
    comm->peers = (dml__peer *)dml__allocate_array(&comm->memory, (size_t)comm->world, sizeof *comm->peers);
    comm->segment = (char *)dml__allocate(&comm->memory, comm->segment_bytes);
    if (!dml__wire_is_native()) {
        comm->outgoing = (char *)dml__allocate(&comm->memory, comm->segment_bytes);
        if (!comm->outgoing) return false;
    }
    return comm->requests && comm->peers && comm->segment;
}

static void dml__start_comm(dml_comm *comm, const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml__comm_settings settings;
    comm->world = 1;
    if (!dml__read_comm_settings(options, &settings, &comm->error)) return;
    comm->rank = settings.rank;
    comm->world = settings.world;
    comm->timeout = settings.timeout;
    comm->grace = settings.timeout / 4 < 0.05 ? 0.05 : settings.timeout / 4 > 1 ? 1 : settings.timeout / 4;
    comm->segment_bytes = settings.segment_bytes / 8 * 8;
    comm->max_requests = settings.max_requests;
    comm->engine = dml__ring_engine();
    if (!dml__allocate_comm_parts(comm)) {
        dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                       comm->rank);
        return;
    }
    if (comm->world > 1) dml__tcp_open(comm, &settings, sockets);
}

DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml_comm_options defaults;
    memset(&defaults, 0, sizeof defaults);
    if (!options) options = &defaults;
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml_comm *comm = (dml_comm *)dml__allocate(&memory, sizeof *comm);
    if (!comm) return NULL;
    comm->memory = memory;
    comm->process = (long)getpid();
    comm->logger.callback = options->log;
    comm->logger.user = options->log_user;
    if (!dml__mutex_init(&comm->mutex)) {
        dml__release(&memory, comm);
        return NULL;
    }
    if (!dml__cond_init(&comm->changed)) {
        dml__mutex_destroy(&comm->mutex);
        dml__release(&memory, comm);
        return NULL;
    }
    dml__start_comm(comm, options, sockets);
    return comm;
}

DML_API dml_comm *dml_comm_open(const dml_comm_options *options)
{
    return dml__comm_open_on(options, dml__system_sockets());
}

static void dml__release_comm(dml_comm *comm)
{
    dml__memory memory = comm->memory;
    dml__release(&memory, comm->outgoing);
    dml__release(&memory, comm->segment);
    dml__release(&memory, comm->peers);
    dml__release(&memory, comm->requests);
    dml__release(&memory, comm);
}

DML_API void dml_comm_close(dml_comm *comm)
{
    if (!comm) return;
    if (dml__is_copy(comm)) {
        /* The mutex and the condition stay as the fork found them: destroying them would wait for threads. */
        if (comm->transport) comm->transport->calls->abandon(comm->transport);
        dml__release_comm(comm);
        return;
    }
    dml__take_turn(comm);
    dml__mutex_lock(&comm->mutex);
    comm->busy = false;
    comm->stop = true;
    dml__cond_signal_all(&comm->changed);
    dml__mutex_unlock(&comm->mutex);
    if (comm->thread_started) dml__thread_join(&comm->thread);
    if (comm->transport) {
        if (!comm->error.status) dml__say_goodbye(comm);
        comm->transport->calls->close(comm->transport);
    }
    dml__cond_destroy(&comm->changed);
    dml__mutex_destroy(&comm->mutex);
    dml__release_comm(comm);
}

#endif
