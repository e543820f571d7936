#ifndef DML_COMM_TRACE_C
#define DML_COMM_TRACE_C

#include "comm/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* The format is that of Chrome's tracing, "Trace Event Format" (Duca, Sinclair, 2016), as an array of events,
   one a line, so that the files of several ranks are one when their lines are put together. A rank is a
   process there and a lane a thread: what lies in a lane never overlaps. */

#define DML__TRACE_STEP_LANES 1000 /* where the steps' begin; the operations' begin at 1 */
#define DML__TRACE_CLOCK_ROUNDS 8

/* ---- noting down ---- */

static int dml__take_lane(dml__trace_lanes *lanes)
{
    uint8_t *free_one = (uint8_t *)memchr(lanes->taken, 0, (size_t)lanes->count);
    if (!free_one) return lanes->count;
    *free_one = 1;
    return (int)(free_one - lanes->taken);
}

static void dml__give_lane(dml__trace_lanes *lanes, int lane)
{
    if (lane < lanes->count) lanes->taken[lane] = 0;
}

static dml__trace_event *dml__new_event(dml__trace *trace, dml__trace_kind kind, double begin, double end)
{
    dml__trace_event *event = &trace->events[trace->count++ % trace->capacity];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->begin = begin;
    event->end = end;
    return event;
}

static void dml__describe_event(dml__trace_event *event, const dml_request *request)
{
    event->signature = request->call.signature;
    event->communicator = request->comm->id;
    event->sequence = request->sequence;
    event->algorithm = request->algorithm;
    event->count = request->call.signature.count;
}

DML__LOCAL void dml__trace_start(dml__comm_job *job, dml_request *request, double now)
{
    request->begun = now;
    request->lane = dml__take_lane(&job->trace->operations);
    request->event = 0;
}

DML__LOCAL void dml__trace_end(dml__comm_job *job, dml_request *request, dml_status status)
{
    dml__trace *trace = job->trace;
    for (int f = 0; f < request->flow_count; f++)
        if (request->flows[f].begun > 0) dml__give_lane(&trace->steps, request->flows[f].lane);
    dml__trace_event *event = dml__new_event(trace, DML__TRACE_OPERATION, request->begun, dml_seconds());
    dml__describe_event(event, request);
    event->status = status;
    event->lane = request->lane;
    dml__give_lane(&trace->operations, request->lane);
    request->event = trace->count;
}

DML__LOCAL void dml__trace_waited(dml__comm_job *job, const dml_request *request, double seconds)
{
    dml__trace *trace = job->trace;
    if (!request->event || trace->count - request->event >= trace->capacity) return;
    dml__trace_event *event = &trace->events[(request->event - 1) % trace->capacity];
    const double time = event->end - event->begin; /* the wait's end is noticed a little after that */
    event->waited = seconds < time ? seconds : time;
}

static void dml__note_step(dml__trace *trace, const dml_request *request, int step, int peer, double begin,
                           double end)
{
    const dml__step *s = &request->schedule.steps[step];
    dml__trace_event *event = dml__new_event(trace, DML__TRACE_STEP, begin, end);
    dml__describe_event(event, request);
    event->count = s->count;
    event->step_kind = (dml__step_kind)s->kind;
    event->step = step;
    event->peer = peer;
}

DML__LOCAL void dml__trace_step_begins(dml__comm_job *job, dml__flow *flow)
{
    if (!job->trace->with_steps || flow->begun > 0) return;
    flow->begun = dml_seconds();
    flow->lane = dml__take_lane(&job->trace->steps);
}

DML__LOCAL void dml__trace_step_past(dml__comm_job *job, dml__flow *flow, double now)
{
    dml__trace *trace = job->trace;
    if (!trace->with_steps) return;
    if (flow->begun <= 0) { /* it came early: it was there at once */
        flow->begun = now;
        flow->lane = dml__take_lane(&trace->steps);
    }
    dml__note_step(trace, flow->request, flow->step, flow->rank, flow->begun, now);
    trace->events[(trace->count - 1) % trace->capacity].lane = flow->lane;
    dml__give_lane(&trace->steps, flow->lane);
    flow->begun = 0;
}

DML__LOCAL void dml__trace_local(dml__comm_job *job, const dml_request *request, int step, double begin)
{
    dml__trace *trace = job->trace;
    if (!trace->with_steps) return;
    const int lane = dml__take_lane(&trace->steps);
    dml__note_step(trace, request, step, -1, begin, dml_seconds());
    trace->events[(trace->count - 1) % trace->capacity].lane = lane;
    dml__give_lane(&trace->steps, lane);
}

DML_API void dml_comm_trace_span(dml_comm *comm, const char *name, double begin, double end)
{
    if (!comm || !name || !comm->job->trace || dml__is_gone(comm)) return;
    dml__enter_job(comm->job);
    dml__new_event(comm->job->trace, DML__TRACE_SPAN, begin, end)->name = name;
    dml__leave_job(comm->job);
}

/* ---- clocks ---- */

/* How far the clock of rank 0 is behind this one's. Of a few questions the one that was answered first says
   it best: half of the time is the answer's way (Cristian, "Probabilistic clock synchronization",
   Distributed Computing 3, 1989). */
static dml_status dml__compare_clocks(dml_comm *comm, double *behind)
{
    double theirs = 0;
    *behind = 0;
    if (comm->rank) {
        for (int i = 0; i < DML__TRACE_CLOCK_ROUNDS; i++) {
            dml_comm_receive(comm, &theirs, 1, DML_F64, 0, 0, NULL);
            theirs = dml_seconds();
            dml_comm_send(comm, &theirs, 1, DML_F64, 0, 0);
        }
        return dml_comm_receive(comm, behind, 1, DML_F64, 0, 0, NULL);
    }
    for (int rank = 1; rank < comm->size && !dml_comm_status(comm); rank++) {
        double best = 0, offset = 0;
        for (int i = 0; i < DML__TRACE_CLOCK_ROUNDS; i++) {
            const double asked = dml_seconds();
            dml_comm_send(comm, &asked, 1, DML_F64, rank, 0);
            dml_comm_receive(comm, &theirs, 1, DML_F64, rank, 0, NULL);
            const double answered = dml_seconds();
            if (i && answered - asked >= best) continue;
            best = answered - asked;
            offset = theirs - (asked + answered) / 2;
        }
        dml_comm_send(comm, &offset, 1, DML_F64, rank, 0);
    }
    return dml_comm_status(comm);
}

/* ---- opening ---- */

static bool dml__allocate_lanes(dml__memory *memory, dml__trace_lanes *lanes, size_t count)
{
    lanes->count = (int)count;
    lanes->taken = (uint8_t *)dml__allocate(memory, count);
    return lanes->taken != NULL;
}

static dml__trace *dml__new_trace(dml__comm_job *job, const dml__trace_settings *settings)
{
    const size_t requests = (size_t)job->max_requests + 1;
    job->trace = (dml__trace *)dml__allocate(&job->memory, sizeof *job->trace);
    if (!job->trace) return NULL;
    job->trace->capacity = (uint64_t)settings->events;
    job->trace->with_steps = settings->steps;
    job->trace->events = (dml__trace_event *)dml__allocate_array(&job->memory, (size_t)settings->events,
                                                                 sizeof *job->trace->events);
    const size_t steps = settings->steps ? requests * (size_t)job->most_flows + 1 : 1;
    if (job->trace->events && dml__allocate_lanes(&job->memory, &job->trace->operations, requests) &&
        dml__allocate_lanes(&job->memory, &job->trace->steps, steps < 1 << 20 ? steps : 1 << 20))
        return job->trace;
    dml__release_trace(job);
    return NULL;
}

DML__LOCAL void dml__release_trace(dml__comm_job *job)
{
    if (!job->trace) return;
    dml__release(&job->memory, job->trace->steps.taken);
    dml__release(&job->memory, job->trace->operations.taken);
    dml__release(&job->memory, job->trace->events);
    dml__release(&job->memory, job->trace);
    job->trace = NULL;
}

static dml_status dml__trace_failed(dml__comm_job *job, dml_status status, const char *why)
{
    dml__enter_job(job);
    status = dml__job_fail(job, job->rank, status, "rank %d %s", job->rank, why);
    dml__leave_job(job);
    return status;
}

DML__LOCAL dml_status dml__open_trace(dml_comm *comm, const dml__trace_settings *settings)
{
    dml__comm_job *job = comm->job;
    double behind = 0;
    if (!settings->path || job->error.status) return job->error.status;
    if (!job->local && dml__compare_clocks(comm, &behind)) return job->error.status;
    dml__trace *trace = dml__new_trace(job, settings);
    if (!trace) return dml__trace_failed(job, DML_ERROR_MEMORY, "has no memory for its trace");
    const int length = snprintf(trace->path, sizeof trace->path, "%s.%d", settings->path, job->rank);
    if (length < 0 || (size_t)length >= sizeof trace->path)
        return dml__trace_failed(job, DML_ERROR_ARGUMENT, "was given a path for its trace that is too long");
    trace->behind = behind;
    memset(&job->stats, 0, sizeof job->stats);
    return DML_OK;
}

/* ---- writing ---- */

/* A few lines at a time, without memory of its own. */
typedef struct dml__trace_file {
    int descriptor;
    int error; /* errno of the first failure; 0: none */
    size_t used;
    char text[4096];
} dml__trace_file;

static void dml__flush_trace(dml__trace_file *file)
{
    size_t done = 0;
    while (done < file->used && !file->error) {
        const ssize_t written = write(file->descriptor, file->text + done, file->used - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR)
            file->error = written == 0 ? ENOSPC : errno;
    }
    file->used = 0;
}

DML__PRINTF(2, 3)
static void dml__put_trace(dml__trace_file *file, const char *format, ...)
{
    va_list arguments;
    if (sizeof file->text - file->used < 1024) dml__flush_trace(file);
    va_start(arguments, format);
    const int length = vsnprintf(file->text + file->used, sizeof file->text - file->used, format, arguments);
    va_end(arguments);
    if (length > 0 && (size_t)length < sizeof file->text - file->used) file->used += (size_t)length;
}

/* What lies in a string of JSON as it is; the rest of it doesn't. */
static void dml__plain_text(const char *from, char *to, size_t bytes)
{
    size_t i = 0;
    for (; from[i] && i + 1 < bytes; i++)
        to[i] = from[i] < ' ' || from[i] > '~' || from[i] == '"' || from[i] == '\\' ? '_' : from[i];
    to[i] = '\0';
}

/* "all_reduce ring" */
static void dml__event_title(const dml__trace_event *event, char *text, size_t bytes)
{
    static const char *const names[DML__STEP_KIND_COUNT] = {
        "send to", "receive from",    "receive and reduce from", "copy",
        "reduce",  "reduce and copy", "reduce and copy"
    };
    char call[DML__SIGNATURE_TEXT];
    int count;
    if (event->kind == DML__TRACE_SPAN) {
        dml__plain_text(event->name, text, bytes);
    } else if (event->kind == DML__TRACE_STEP) {
        char peer[16] = "";
        if (event->peer >= 0) snprintf(peer, sizeof peer, " %d", event->peer);
        snprintf(text, bytes, "%s%s", names[event->step_kind], peer);
    } else {
        dml__signature_text(&event->signature, call);
        call[strcspn(call, "(")] = '\0';
        const char *algorithm = event->algorithm < 0 ? "" : dml__algorithms(&count)[event->algorithm].name;
        snprintf(text, bytes, "%s%s%s %llu %s #%llu", call, *algorithm ? " " : "", algorithm,
                 (unsigned long long)event->signature.count, dml_dtype_name(event->signature.dtype),
                 (unsigned long long)event->sequence);
    }
}

static uint64_t dml__trace_time(const dml__trace *trace, double seconds)
{
    const double at = (seconds - trace->behind) * 1e9;
    return at > 0 ? (uint64_t)at : 0; /* ns */
}

static int dml__event_row(const dml__trace_event *event)
{
    switch (event->kind) {
    case DML__TRACE_OPERATION: return 1 + event->lane;
    case DML__TRACE_STEP: return DML__TRACE_STEP_LANES + event->lane;
    default: return 0;
    }
}

static void dml__put_event(dml__trace_file *file, const dml__comm_job *job, const dml__trace_event *event)
{
    const uint64_t begin = dml__trace_time(job->trace, event->begin),
                   end = dml__trace_time(job->trace, event->end);
    const uint64_t time = end > begin ? end - begin : 0;
    char title[256], call[DML__SIGNATURE_TEXT];
    int count;
    dml__event_title(event, title, sizeof title);
    dml__put_trace(
        file, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%llu.%03u,\"dur\":%llu.%03u",
        job->rank, dml__event_row(event), title, (unsigned long long)(begin / 1000), (unsigned)(begin % 1000),
        (unsigned long long)(time / 1000), (unsigned)(time % 1000));
    if (event->kind != DML__TRACE_SPAN) {
        const uint64_t bytes = event->count * dml_dtype_size(event->signature.dtype);
        dml__put_trace(file, ",\"args\":{\"call\":\"%s\",\"communicator\":%u,\"number\":%llu,\"bytes\":%llu",
                       dml__signature_text(&event->signature, call), (unsigned)event->communicator,
                       (unsigned long long)event->sequence, (unsigned long long)bytes);
        if (event->algorithm >= 0)
            dml__put_trace(file, ",\"algorithm\":\"%s\"", dml__algorithms(&count)[event->algorithm].name);
        if (event->kind == DML__TRACE_STEP)
            dml__put_trace(file, ",\"step\":%d", event->step);
        else
            dml__put_trace(file, ",\"waited_us\":%llu,\"status\":%d",
                           (unsigned long long)(event->waited * 1e6), (int)event->status);
        dml__put_trace(file, "}");
    }
    dml__put_trace(file, "}");
}

/* What rows are called: as many as have something in them. */
static void dml__put_rows(dml__trace_file *file, const dml__comm_job *job)
{
    static const char *const kinds[] = { "operations", "steps", "compute" };
    const dml__trace *trace = job->trace;
    const uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
    int lanes[3] = { 0, 0, 0 };
    for (uint64_t i = 0; i < kept; i++)
        if (trace->events[i].lane >= lanes[trace->events[i].kind])
            lanes[trace->events[i].kind] = trace->events[i].lane + 1;
    dml__put_trace(file,
                   "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}",
                   job->rank, job->rank);
    dml__put_trace(
        file, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}",
        job->rank, job->rank);
    for (int kind = 0; kind < 3; kind++)
        for (int lane = 0; lane < lanes[kind]; lane++) {
            dml__trace_event event;
            memset(&event, 0, sizeof event);
            event.kind = (dml__trace_kind)kind;
            event.lane = lane;
            dml__put_trace(
                file,
                ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                job->rank, dml__event_row(&event), kinds[kind]);
        }
}

DML__LOCAL dml_status dml__write_trace(dml__comm_job *job, dml__error *error)
{
    dml__trace *trace = job->trace;
    dml__trace_file file;
    file.descriptor = open(trace->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    file.error = file.descriptor < 0 ? errno : 0;
    file.used = 0;
    if (!file.error) {
        const uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
        dml__put_trace(&file, "[\n");
        dml__put_rows(&file, job);
        for (uint64_t i = trace->count - kept; i < trace->count; i++)
            dml__put_event(&file, job, &trace->events[i % trace->capacity]);
        dml__put_trace(&file, "\n]\n");
        dml__flush_trace(&file);
    }
    if (file.descriptor >= 0 && close(file.descriptor) && !file.error) file.error = errno;
    if (!file.error) return DML_OK;
    dml__error lost;
    memset(&lost, 0, sizeof lost);
    dml__fail(&lost, DML_ERROR_IO, "rank %d can't write its trace to %s: %s", job->rank, trace->path,
              strerror(file.error));
    dml__log(&job->logger, DML_LOG_WARNING, "%s", lost.text);
    return dml__fail(error, lost.status, "%s", lost.text);
}

DML_API dml_status dml_comm_trace_write(dml_comm *comm)
{
    if (!comm || dml__is_gone(comm)) return dml_comm_status(comm);
    if (!comm->job->trace) return DML_ERROR_STATE;
    dml__enter_job(comm->job);
    const dml_status status = dml__write_trace(comm->job, NULL);
    dml__leave_job(comm->job);
    return status;
}

#endif
