#ifndef DML_DEVICE_PROFILE_C
#define DML_DEVICE_PROFILE_C

#include "device/profile.h"

#include "base/clock.h"
#include "device/context_internal.h"
#include "device/profile_internal.h"

#include <stdio.h>
#include <string.h>

/* Names are as long as those of a graph: half a character would make the timeline no JSON. */
enum { DML__PROFILE_ROWS = 1024, DML__PROFILE_EVENTS = 65536, DML__PROFILE_NAME = 128 };

typedef struct dml__profile_event {
    int row;
    double begin, end; /* seconds of this host's clock */
} dml__profile_event;

struct dml__profile {
    double since;
    int rows, events, most_events;
    int64_t left_out; /* of the events */
    dml_profile_row row[DML__PROFILE_ROWS];
    char node[DML__PROFILE_ROWS][DML__PROFILE_NAME]; /* the rows' layers, whose graph may go before them */
    dml__profile_event *event;                       /* (most_events) */
};

/* The row of what is about to run, the last one for whatever comes when there are no more. */
DML_API int dml_device_begin_event(dml_device *device, const char *what)
{
    struct dml__profile *profile = device->profile;
    if (!profile) return -1;
    const char *node = device->node ? device->node : "", *pass = device->node ? device->pass : "step";
    int r = 0;
    for (; r < profile->rows; r++) {
        const dml_profile_row *row = &profile->row[r];
        if (strcmp(row->node, node) == 0 && strcmp(row->pass, pass) == 0 && strcmp(row->what, what) == 0)
            return r;
    }
    if (r == DML__PROFILE_ROWS) return r - 1;
    dml_profile_row *row = &profile->row[profile->rows++];
    memset(row, 0, sizeof *row);
    snprintf(profile->node[r], DML__PROFILE_NAME, "%s", r == DML__PROFILE_ROWS - 1 ? "" : node);
    row->node = profile->node[r];
    row->pass = r == DML__PROFILE_ROWS - 1 ? "step" : pass;
    row->what = r == DML__PROFILE_ROWS - 1 ? "all the rest" : what;
    return r;
}

DML_API void dml_device_end_event(dml_device *device, int event, double begin, double end)
{
    struct dml__profile *profile = device->profile;
    if (!profile || event < 0) return;
    profile->row[event].calls++;
    profile->row[event].seconds += end - begin;
    if (profile->events == profile->most_events) {
        profile->left_out++;
        return;
    }
    dml__profile_event *kept = &profile->event[profile->events++];
    kept->row = event;
    kept->begin = begin;
    kept->end = end;
}

DML__LOCAL double dml__profile_now(const dml_device *device)
{
    return device->profile ? dml_seconds() : 0;
}

DML__LOCAL void dml__profile_ran(dml_device *device, const char *what, double begin)
{
    if (device->profile)
        dml_device_end_event(device, dml_device_begin_event(device, what), begin, dml_seconds());
}

DML__LOCAL void dml__profile_release(dml_context *context)
{
    dml_device *device = &context->device;
    if (device->profile) dml__release(&context->memory, device->profile->event);
    dml__release(&context->memory, device->profile);
    device->profile = NULL;
}

static void dml__profile_stop(dml_context *context)
{
    dml_device *device = &context->device;
    if (device->profile && device->backend->profile && !dml__lost_by_fork(context))
        device->backend->profile(device, false);
    dml__profile_release(context);
}

/* Of a context that was entered. One that was there before ends when there is memory for this one. */
static dml_status dml__profile_start(dml_context *context, int events)
{
    dml_device *device = &context->device;
    if (events < 0)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "a profile of %d events asked for: give 0 for %d, or 1 or more", events,
                         DML__PROFILE_EVENTS);
    const size_t most = events > 0 ? (size_t)events : (size_t)DML__PROFILE_EVENTS;
    struct dml__profile *profile = (struct dml__profile *)dml__allocate(&context->memory, sizeof *profile);
    if (profile)
        profile->event =
            (dml__profile_event *)dml__allocate_array(&context->memory, most, sizeof *profile->event);
    if (!profile || !profile->event) {
        dml__release(&context->memory, profile);
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a profile of %zu events",
                         most);
    }
    dml__profile_stop(context);
    profile->most_events = (int)most;
    profile->since = dml_seconds();
    device->profile = profile;
    const dml_status status = device->backend->profile ? device->backend->profile(device, true) : DML_OK;
    if (status != DML_OK) dml__profile_stop(context);
    return status;
}

DML_API dml_status dml_profile_begin(dml_context *context, int events)
{
    if (!context || !context->device_open) return context ? context->error.status : DML_ERROR_ARGUMENT;
    dml__entry entry;
    if (!dml__begin_transfer(context, &entry)) return DML_ERROR_STATE;
    const dml_status status = dml__profile_start(context, events);
    dml__leave(context, entry);
    return status;
}

DML_API void dml_profile_end(dml_context *context)
{
    if (!context) return;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return;
    dml__profile_stop(context);
    dml__leave(context, entry);
}

/* Sorting would change the rows' numbers, so the longest is looked for once a row. */
static void dml__longest_rows(const struct dml__profile *profile, dml_profile_row *rows, int count)
{
    bool taken[DML__PROFILE_ROWS] = { false };
    for (int i = 0; i < count; i++) {
        int longest = -1;
        for (int r = 0; r < profile->rows; r++)
            if (!taken[r] && (longest < 0 || profile->row[r].seconds > profile->row[longest].seconds))
                longest = r;
        taken[longest] = true;
        rows[i] = profile->row[longest];
    }
}

DML_API int dml_profile_rows(dml_context *context, dml_profile_row *rows, int capacity)
{
    int count = 0;
    dml__entry entry;
    if (!context || !dml__begin_transfer(context, &entry)) return 0;
    const struct dml__profile *profile = context->device.profile;
    if (profile && context->device.backend->finish(&context->device) == DML_OK) {
        count = profile->rows;
        dml__longest_rows(profile, rows, !rows || capacity < 0 ? 0 : capacity < count ? capacity : count);
    }
    dml__leave(context, entry);
    return count;
}

#ifndef DML_NO_STDIO
/* As a JSON string holds it. */
static void dml__write_escaped(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(file, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            fprintf(file, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, file);
    }
}

static const char *const dml__profile_passes[] = { "forward", "backward", "step" };

/* Microseconds since the profile began, without the decimal comma that some locales have. */
static void dml__write_time(FILE *file, const char *name, double seconds)
{
    const unsigned long long ns = seconds > 0 ? (unsigned long long)(1e9 * seconds + 0.5) : 0;
    fprintf(file, ",\"%s\":%llu.%03u", name, ns / 1000, (unsigned)(ns % 1000));
}

/* A line of the timeline a pass. */
static void dml__write_event(FILE *file, const struct dml__profile *profile, const dml__profile_event *event)
{
    const dml_profile_row *row = &profile->row[event->row];
    int pass = 0;
    while (pass < 2 && strcmp(row->pass, dml__profile_passes[pass]) != 0) pass++;
    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"name\":\"", pass);
    dml__write_escaped(file, *row->node ? row->node : row->what);
    fputc('"', file);
    dml__write_time(file, "ts", event->begin - profile->since);
    dml__write_time(file, "dur", event->end - event->begin);
    fprintf(file, ",\"args\":{\"what\":\"%s\"}}", row->what);
}

static dml_status dml__write_profile(dml_context *context, const char *path)
{
    const struct dml__profile *profile = context->device.profile;
    if (!profile)
        return dml__fail(&context->error, DML_ERROR_STATE,
                         "there is no profile to write: dml_profile_begin begins one");
    const dml_status status = context->device.backend->finish(&context->device);
    if (status != DML_OK) return status;
    FILE *file = fopen(path, "w");
    if (!file) return dml__fail(&context->error, DML_ERROR_IO, "the profile can't be written to '%s'", path);
    fprintf(file, "{\"otherData\":{\"left_out\":%lld},\"traceEvents\":[\n", (long long)profile->left_out);
    fprintf(file, "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"%s:%d\"}}",
            context->device.backend->name, context->device.index);
    for (int pass = 0; pass < 3; pass++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                pass, dml__profile_passes[pass]);
    for (int i = 0; i < profile->events; i++) dml__write_event(file, profile, &profile->event[i]);
    fputs("\n]}\n", file);
    const bool failed = ferror(file) != 0;
    if (fclose(file) == 0 && !failed) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_IO, "the profile couldn't be written to '%s'", path);
}

DML_API dml_status dml_profile_write(dml_context *context, const char *path)
{
    if (!context) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&context->error, "dml_profile_write", "path");
    dml__entry entry;
    if (!dml__begin_transfer(context, &entry)) return DML_ERROR_STATE;
    const dml_status status = dml__write_profile(context, path);
    dml__leave(context, entry);
    return status;
}
#endif

#endif
