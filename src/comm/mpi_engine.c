#ifndef DML_COMM_MPI_ENGINE_C
#define DML_COMM_MPI_ENGINE_C

#include "comm/mpi_engine_internal.h"

#ifdef DML_MPI

/* The engine that leaves everything to MPI, 3.1 or later: each call becomes one of its non-blocking ones, or
   several, all of which are posted at once, since the collectives of a communicator have to be posted in the
   same order everywhere. */

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/* ---- a call from its beginning to its end ---- */

/* Counts and places are read before a call returns, but MPI's own calls may begin later. */
static void dml__mpi_keep_parts(dml_request *request)
{
    dml__comm_call *asked = &request->call;
    const size_t **parts[] = { &asked->counts, &asked->offsets, &asked->in_counts, &asked->in_offsets };
    const size_t size = (size_t)request->comm->size;
    for (size_t i = 0; i < 4; i++) {
        size_t *kept = dml__mpi_call_of(request)->kept + i * size;
        if (!*parts[i]) continue;
        memcpy(kept, *parts[i], size * sizeof *kept);
        *parts[i] = kept;
    }
}

static void dml__mpi_start(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_ALL_REDUCE_LEAVES) {
        dml__job_fail(job, job->rank, DML_ERROR_UNSUPPORTED,
                      "rank %d called dml_comm_all_reduce_leaves, which MPI has nothing like: set "
                      "DML_COMM_ENGINE=dml",
                      job->rank);
        return;
    }
    dml__mpi_keep_parts(request);
    call->pending = call->type_count = 0;
    call->result = NULL;
    call->checking = mpi->check && !dml__is_pair(request->call.signature.operation);
    call->checked = false;
    mpi->started_at = dml_seconds();
    if (!call->checking) {
        dml__mpi_begin(request);
        return;
    }
    dml__encode_signature(&request->call.signature, call->said);
    dml__mpi_call_ok(request, MPI_Ibcast(call->said, sizeof call->said, MPI_BYTE, 0,
                                         dml__mpi_group_of(request->comm)->aux, dml__mpi_handle(request)));
}

/* Compares what rank 0 of the group does. */
static void dml__mpi_checked(dml_request *request)
{
    const dml_comm *comm = request->comm;
    dml__mpi_call *call = dml__mpi_call_of(request);
    const dml__signature *mine = &request->call.signature;
    dml__signature theirs;
    uint8_t bytes[DML__SIGNATURE_BYTES];
    char my_text[DML__SIGNATURE_TEXT], their_text[DML__SIGNATURE_TEXT] = "something else";
    const char *apart = "";
    call->checked = true;
    dml__encode_signature(mine, bytes);
    if (memcmp(bytes, call->said, sizeof bytes) == 0) return;
    if (dml__decode_signature(call->said, &theirs)) {
        dml__signature_text(&theirs, their_text);
        apart = dml__apart_text(&theirs, mine);
    }
    dml__job_fail(comm->job, comm->job->rank, DML_ERROR_MISMATCH,
                  "rank %d called %s while rank %d called %s%s", comm->world_ranks[0], their_text,
                  comm->job->rank, dml__signature_text(mine, my_text), apart);
}

/* Whether an earlier collective of the same communicator is still being checked. */
static bool dml__mpi_is_behind(const dml__comm_job *job, const dml_request *request)
{
    for (const dml_request *r = job->active; r && r != request; r = r->next)
        if (r->comm == request->comm && dml__mpi_call_of(r)->checking) return true;
    return false;
}

static void dml__mpi_begin_checked(dml__comm_job *job)
{
    for (dml_request *r = job->active, *next; r && !job->error.status; r = next) {
        dml__mpi_call *call = dml__mpi_call_of(r);
        next = r->next;
        if (!call->checking || !call->checked || dml__mpi_is_behind(job, r)) continue;
        call->checking = false;
        dml__mpi_begin(r);
    }
}

static void dml__mpi_handle_done(dml_request *request, const MPI_Status *status, int code)
{
    dml__mpi_call *call = dml__mpi_call_of(request);
    if (request->call.signature.operation == DML__CALL_RECEIVE) {
        if (!dml__mpi_take_message(request, status, code)) return;
    } else if (!dml__mpi_call_ok(request, code)) {
        return;
    }
    if (--call->pending) return;
    if (call->checking)
        dml__mpi_checked(request);
    else
        dml__mpi_end(request);
}

/* What is over makes room. */
static void dml__mpi_close_ranks(dml__mpi *mpi)
{
    int used = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->handles[i] == MPI_REQUEST_NULL) continue;
        mpi->handles[used] = mpi->handles[i];
        mpi->owners[used++] = mpi->owners[i];
    }
    mpi->used = used;
}

static void dml__mpi_progress(dml__comm_job *job)
{
    dml__mpi *mpi = dml__mpi_of(job);
    int done = 0;
    if (job->error.status || !mpi->used) return;
    const int code = MPI_Testsome(mpi->used, mpi->handles, &done, mpi->indices, mpi->statuses);
    if (code && code != MPI_ERR_IN_STATUS && !dml__mpi_ok(job, "MPI_Testsome", code)) return;
    if (done == MPI_UNDEFINED || done == 0) return;
    for (int i = 0; i < done && !job->error.status; i++)
        dml__mpi_handle_done(mpi->owners[mpi->indices[i]], &mpi->statuses[i],
                             code ? mpi->statuses[i].MPI_ERROR : MPI_SUCCESS);
    dml__mpi_close_ranks(mpi);
    if (mpi->check) dml__mpi_begin_checked(job);
}

static bool dml__mpi_cancel(dml__comm_job *job, dml_request *request)
{
    dml__mpi *mpi = dml__mpi_of(job);
    MPI_Status status;
    int cancelled = 0;
    for (int i = 0; i < mpi->used; i++) {
        if (mpi->owners[i] != request) continue;
        MPI_Cancel(&mpi->handles[i]);
        const int code = MPI_Wait(&mpi->handles[i], &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (!cancelled) dml__mpi_handle_done(request, &status, code);
        dml__mpi_close_ranks(mpi);
        break;
    }
    dml__mpi_call *call = dml__mpi_call_of(request);
    for (int i = 0; cancelled && i < call->type_count; i++) MPI_Type_free(&call->types[i]);
    return cancelled != 0;
}

static bool dml__mpi_probe(dml__comm_job *job, dml_comm *comm, int from, int tag, dml_message *message)
{
    dml__mpi *mpi = dml__mpi_of(job);
    const MPI_Comm group = comm ? dml__mpi_group_of(comm)->main : mpi->group.main;
    const int source = from == DML_ANY_SOURCE ? MPI_ANY_SOURCE : from;
    MPI_Status status;
    int found = 0;
    if (tag > mpi->most_tag / DML__MPI_DTYPES - 1) return false;
    for (int dtype = 0; dtype < DML__MPI_DTYPES && !found; dtype++) {
        const int code = MPI_Iprobe(source, tag == DML_ANY_TAG ? MPI_ANY_TAG : tag * DML__MPI_DTYPES + dtype,
                                    group, &found, &status);
        if (!dml__mpi_ok(job, "MPI_Iprobe", code)) return false;
        if (tag == DML_ANY_TAG) break;
    }
    if (found) dml__mpi_read_status(&status, message);
    return found != 0;
}

/* ---- groups ---- */

static bool dml__mpi_make_group(dml__comm_job *job, MPI_Comm main, dml__mpi_group *group)
{
    group->main = main;
    return dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(main, &group->aux)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(main, MPI_ERRORS_RETURN)) &&
           dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                       MPI_Comm_set_errhandler(group->aux, MPI_ERRORS_RETURN));
}

static bool dml__mpi_split(dml__comm_job *job, dml_comm *comm, dml_comm *group, int color, int key)
{
    MPI_Comm part;
    const int code =
        MPI_Comm_split(dml__mpi_group_of(comm)->main, color < 0 ? MPI_UNDEFINED : color, key, &part);
    if (!dml__mpi_ok(job, "MPI_Comm_split", code)) return false;
    if (!group) return true;
    group->beneath = dml__allocate(&job->memory, sizeof(dml__mpi_group));
    if (group->beneath) return dml__mpi_make_group(job, part, (dml__mpi_group *)group->beneath);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator", job->rank);
    return false;
}

static void dml__mpi_leave(dml__comm_job *job, dml_comm *comm)
{
    dml__mpi_group *group = (dml__mpi_group *)comm->beneath;
    if (!dml__is_copy(job) && !job->error.status) {
        MPI_Comm_free(&group->aux);
        MPI_Comm_free(&group->main);
    }
    dml__release(&job->memory, group);
}

/* ---- control ---- */

static ptrdiff_t dml__mpi_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    for (int i = 0; i < mpi->letters; i++) {
        int free_now = 0;
        uint8_t *letter = mpi->outbox + (size_t)i * DML__CONTROL_BYTES;
        MPI_Test(&mpi->posts[i], &free_now, MPI_STATUS_IGNORE);
        if (!free_now) continue;
        memcpy(letter, spans->data, DML__CONTROL_BYTES);
        return MPI_Isend(letter, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, &mpi->posts[i])
                   ? DML__GONE
                   : DML__CONTROL_BYTES;
    }
    return 0;
}

static ptrdiff_t dml__mpi_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    if (channel != DML__CHANNEL_CONTROL || count != 1 || spans->bytes != DML__CONTROL_BYTES) return DML__GONE;
    if (MPI_Iprobe(rank, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (!found) return 0;
    return MPI_Recv(spans->data, DML__CONTROL_BYTES, MPI_BYTE, rank, 0, mpi->control, MPI_STATUS_IGNORE)
               ? DML__GONE
               : DML__CONTROL_BYTES;
}

/* MPI has nothing to sleep in: first others of this processor get their turn, then it naps for a small part
   of the time that has passed already. */
static void dml__mpi_nap(const dml__mpi *mpi, double seconds)
{
    const double since = mpi->job->moved_at > mpi->started_at ? mpi->job->moved_at : mpi->started_at;
    double nap = (dml_seconds() - since) / 16;
    struct timespec time;
    if (nap < 50e-6) {
        sched_yield();
        return;
    }
    if (nap > 1e-3) nap = 1e-3;
    if (nap > seconds) nap = seconds;
    time.tv_sec = 0;
    time.tv_nsec = (long)(nap * 1e9);
    nanosleep(&time, NULL);
}

static int dml__mpi_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    int found = 0;
    (void)wishes;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, mpi->control, &found, MPI_STATUS_IGNORE)) return DML__GONE;
    if (found) return DML__READY_CONTROL;
    if (seconds > 0) dml__mpi_nap(mpi, seconds);
    return 0;
}

/* Nobody sleeps for longer than a millisecond. */
static void dml__mpi_wake(dml__transport *transport)
{
    (void)transport;
}

static const char *dml__mpi_medium(const dml__transport *transport, int rank)
{
    (void)transport;
    (void)rank;
    return "mpi";
}

static void dml__mpi_release(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    dml__memory *memory = mpi->memory;
    dml__release(memory, mpi->posts);
    dml__release(memory, mpi->outbox);
    dml__release(memory, mpi->statuses);
    dml__release(memory, mpi->indices);
    dml__release(memory, mpi->owners);
    dml__release(memory, mpi->handles);
    dml__release(memory, mpi->all_kept);
    dml__release(memory, mpi->all_counts);
    dml__release(memory, mpi->calls);
    dml__release(memory, mpi);
}

/* The last words of this rank have gone, or there is no more time. */
static void dml__mpi_post_rest(dml__mpi *mpi)
{
    const double until = dml_seconds() + mpi->job->grace;
    int gone = 0;
    while (!gone && dml_seconds() < until)
        if (MPI_Testall(mpi->letters, mpi->posts, &gone, MPI_STATUSES_IGNORE)) break;
}

/* After an error something may be under way that never ends, for which MPI_Finalize would wait: then MPI is
   left as it is. */
static void dml__mpi_close(dml__transport *transport)
{
    dml__mpi *mpi = (dml__mpi *)(void *)transport;
    if (mpi->posts) dml__mpi_post_rest(mpi);
    if (!mpi->job->error.status) {
        MPI_Op_free(&mpi->op);
        MPI_Comm_free(&mpi->control);
        MPI_Comm_free(&mpi->group.aux);
        MPI_Comm_free(&mpi->group.main);
        if (mpi->owned) MPI_Finalize();
    }
    dml__mpi_release(transport);
}

/* ---- opening ---- */

static bool dml__mpi_allocate(dml__mpi *mpi, int max_requests)
{
    const size_t calls = (size_t)max_requests + 1, world = (size_t)mpi->world;
    dml__memory *memory = mpi->memory;
    if (calls * (2 * world + 1) > INT_MAX) return false;
    mpi->most = (int)(calls * (2 * world + 1));
    mpi->letters = 2 * mpi->world + 6;
    const size_t most = (size_t)mpi->most, letters = (size_t)mpi->letters;
    mpi->calls = (dml__mpi_call *)dml__allocate_array(memory, calls, sizeof *mpi->calls);
    mpi->all_counts = (int *)dml__allocate_unset(memory, calls * 2 * world * sizeof *mpi->all_counts);
    mpi->all_kept = (size_t *)dml__allocate_unset(memory, calls * 4 * world * sizeof *mpi->all_kept);
    mpi->handles = (MPI_Request *)dml__allocate_unset(memory, most * sizeof *mpi->handles);
    mpi->owners = (dml_request **)dml__allocate_unset(memory, most * sizeof *mpi->owners);
    mpi->indices = (int *)dml__allocate_unset(memory, most * sizeof *mpi->indices);
    mpi->statuses = (MPI_Status *)dml__allocate_unset(memory, most * sizeof *mpi->statuses);
    mpi->outbox = (uint8_t *)dml__allocate_unset(memory, letters * DML__CONTROL_BYTES);
    mpi->posts = (MPI_Request *)dml__allocate_unset(memory, letters * sizeof *mpi->posts);
    if (!mpi->calls || !mpi->all_counts || !mpi->all_kept || !mpi->handles || !mpi->owners || !mpi->indices ||
        !mpi->statuses || !mpi->outbox || !mpi->posts)
        return false;
    for (size_t i = 0; i < calls; i++) {
        mpi->calls[i].counts = mpi->all_counts + 2 * i * world;
        mpi->calls[i].offsets = mpi->calls[i].counts + world;
        mpi->calls[i].kept = mpi->all_kept + 4 * i * world;
    }
    for (size_t i = 0; i < letters; i++) mpi->posts[i] = MPI_REQUEST_NULL;
    return true;
}

/* MPI itself, unless the program has it already. */
static bool dml__mpi_initialise(dml__comm_job *job, bool *owned)
{
    int initialised = 0, finalised = 0, level = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised) {
        dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "dml_comm_open: MPI was finalised already, and can't be initialised twice: call MPI_Init "
            "before the first communicator is opened and MPI_Finalize after the last one is closed");
        return false;
    }
    *owned = !initialised;
    if (!initialised &&
        !dml__mpi_ok(job, "MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level)))
        return false;
    MPI_Query_thread(&level);
    job->alone = level < MPI_THREAD_SERIALIZED;
    return true;
}

static bool dml__mpi_meet(dml__comm_job *job, dml__mpi *mpi)
{
    MPI_Comm main;
    void *most_tag;
    int has_tag = 0;
    if (!dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &main)) ||
        !dml__mpi_make_group(job, main, &mpi->group) ||
        !dml__mpi_ok(job, "MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control)) ||
        !dml__mpi_ok(job, "MPI_Comm_set_errhandler",
                     MPI_Comm_set_errhandler(mpi->control, MPI_ERRORS_RETURN)) ||
        !dml__mpi_ok(job, "MPI_Op_create", MPI_Op_create(dml__mpi_reduce, 1, &mpi->op)))
        return false;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tag, &has_tag);
    mpi->most_tag = has_tag ? *(int *)most_tag : 32767;
    return true;
}

static dml__transport *dml__mpi_open(dml__comm_job *job, dml__comm_settings *settings)
{
    static const dml__transport_calls calls = {
        "mpi",
        dml__mpi_send,
        dml__mpi_receive,
        NULL,
        NULL,
        NULL,
        dml__mpi_wait,
        dml__mpi_wake,
        dml__mpi_medium,
        dml__mpi_close,
        dml__mpi_release,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
    };
    const int given_rank = settings->net.rank, given_world = settings->net.world;
    const char *check = getenv("DML_COMM_CHECK");
    bool owned;
    if (!dml__mpi_initialise(job, &owned)) return NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &settings->net.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &settings->net.world);
    if (given_world > 1 && (given_world != settings->net.world || given_rank != settings->net.rank)) {
        dml__job_fail(job, job->rank, DML_ERROR_ARGUMENT,
                      "dml_comm_open: rank %d of %d was asked for, but MPI says rank %d of %d", given_rank,
                      given_world, settings->net.rank, settings->net.world);
        return NULL;
    }
    dml__mpi *mpi = (dml__mpi *)dml__allocate(&job->memory, sizeof *mpi);
    if (mpi) {
        mpi->transport.calls = &calls;
        mpi->job = job;
        mpi->memory = &job->memory;
        mpi->world = settings->net.world;
        mpi->owned = owned;
        mpi->check = check && strcmp(check, "1") == 0;
        if (dml__mpi_allocate(mpi, settings->net.max_requests)) {
            if (dml__mpi_meet(job, mpi)) return &mpi->transport;
        } else {
            dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY,
                          "rank %d has no memory for its communicator", settings->net.rank);
        }
        dml__mpi_release(&mpi->transport);
    } else {
        dml__job_fail(job, settings->net.rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      settings->net.rank);
    }
    return NULL;
}

DML__LOCAL const dml__engine *dml__mpi_engine(void)
{
    static const dml__engine engine = { "mpi",           dml__mpi_open,  dml__mpi_start, dml__mpi_progress,
                                        dml__mpi_cancel, dml__mpi_probe, dml__mpi_split, dml__mpi_leave };
    return &engine;
}

#endif

#endif
