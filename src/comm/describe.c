#ifndef DML_COMM_DESCRIBE_C
#define DML_COMM_DESCRIBE_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/choice.h"
#include "comm/choice_table.h"
#include "comm/job.h"
#include "comm/measure.h"

/* A communicator in words. */

typedef struct dml__words {
    char *text; /* (bytes) */
    size_t bytes, used;
} dml__words;

static void dml__say(dml__words *words, const char *format, ...) DML__PRINTF(2, 3);
static void dml__say(dml__words *words, const char *format, ...)
{
    const size_t left = words->used < words->bytes ? words->bytes - words->used : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left ? words->text + words->used : NULL, left, format, arguments);
    va_end(arguments);
    if (length > 0) words->used += (size_t)length;
}

/* "256 KiB" */
static void dml__say_bytes(dml__words *words, uint64_t bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB" };
    int unit = 0;
    while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) bytes /= 1024, unit++;
    dml__say(words, "%llu %s", (unsigned long long)bytes, units[unit]);
}

static void dml__say_ranks(dml__words *words, const dml_comm *comm)
{
    static const char *const media[] = { "local", "shm", "tcp" };
    const dml__comm_job *job = comm->job;
    dml__say(words, "rank %d of %d on %d host%s", comm->rank, comm->size, comm->hosts,
             comm->hosts == 1 ? "" : "s");
    if (job->engine) dml__say(words, ", by %s", job->engine->name);
    for (int m = 0; m < 3 && job->transport && !job->engine; m++) {
        int count = 0;
        for (int r = 0; r < comm->size; r++)
            count +=
                comm->world_ranks[r] != job->rank &&
                strcmp(job->transport->calls->medium(job->transport, comm->world_ranks[r]), media[m]) == 0;
        if (count) dml__say(words, ", %d by %s", count, media[m]);
    }
    int readers = 0;
    for (int r = 0; r < comm->size && job->transport && !job->engine; r++)
        readers += comm->world_ranks[r] != job->rank && dml__is_reader(job, comm->world_ranks[r]);
    if (readers) dml__say(words, ", %d of them reading this one's memory", readers);
    dml__say(words, "\n");
}

static void dml__say_link(dml__words *words, const char *where, const dml__price_link *link)
{
    dml__say(words, "%s%.3g us, %.3g Gbit/s; ", where, (link->latency + 2 * link->overhead) * 1e6,
             dml__link_bandwidth(link) * 8e-9);
}

static void dml__say_model(dml__words *words, const dml_comm *comm)
{
    const dml__comm_job *job = comm->job;
    dml__say(words, "links, %s: ", job->latency > 0 ? "as given" : comm->measured ? "measured" : "assumed");
    const dml__price_model model = dml__choice_model(&comm->model, comm->size);
    if (comm->size > comm->hosts) dml__say_link(words, "of a host ", &model.inside);
    if (comm->hosts > 1) dml__say_link(words, "between hosts ", &model.between);
    dml__say(words, "sums %.3g GB/s, copies %.3g GB/s\n", model.reduce * 1e-9, model.copy * 1e-9);
}

static int dml__choice_at(const dml_comm *comm, int operation, int power)
{
    dml__comm_call call;
    memset(&call, 0, sizeof call);
    call.signature.operation = (dml__comm_operation)operation;
    call.signature.dtype = DML_F32;
    call.signature.count = (UINT64_C(1) << power) / sizeof(float);
    return dml__choose_algorithm(comm, &call);
}

/* "all_reduce: butterfly up to 32 KiB, ring" */
static void dml__say_choice(dml__words *words, const dml_comm *comm, int operation)
{
    const int first = 2, last = operation == DML__CALL_BARRIER ? first : 30;
    char text[DML__SIGNATURE_TEXT];
    dml__signature signature;
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    memset(&signature, 0, sizeof signature);
    signature.operation = (dml__comm_operation)operation;
    dml__signature_text(&signature, text);
    text[strcspn(text, "(")] = 0;
    dml__say(words, "%s:", text);
    for (int power = first; power <= last; power++) {
        const int choice = dml__choice_at(comm, operation, power);
        if (power < last && dml__choice_at(comm, operation, power + 1) == choice) continue;
        dml__say(words, " %s", choice < 0 ? "none" : algorithms[choice].name);
        if (power == last) break;
        dml__say(words, " up to ");
        dml__say_bytes(words, UINT64_C(1) << power);
        dml__say(words, ",");
    }
    dml__say(words, "\n");
}

/* What is run for each operation, and how. */
static void dml__say_schedules(dml__words *words, const dml_comm *comm)
{
    const dml__comm_job *job = comm->job;
    if (comm->size > 1) {
        dml__say_model(words, comm);
        if (comm->tuned) dml__say(words, "algorithms, by what they took in trials:\n");
        for (int operation = 0; operation <= DML__CALL_BARRIER; operation++)
            dml__say_choice(words, comm, operation);
    }
    dml__say(words, "%sin segments of ", job->deterministic ? "sums in the order of the ranks, " : "");
    dml__say_bytes(words, job->segment_bytes);
    dml__say(words, ", eager up to ");
    dml__say_bytes(words, job->eager_bytes);
    if (comm->shared) {
        dml__say(words, ", rounds through shared memory of ");
        dml__say_bytes(words, comm->model.shared);
    }
    dml__say(words, ", ");
}

DML_API size_t dml_comm_describe(const dml_comm *comm, char *text, size_t bytes)
{
    dml__words words;
    words.text = text;
    words.bytes = text ? bytes : 0;
    words.used = 0;
    if (words.bytes) text[0] = 0;
    if (!comm || dml__is_gone(comm)) return 0;
    const dml__comm_job *job = comm->job;
    dml__say_ranks(&words, comm);
    if (!job->engine) dml__say_schedules(&words, comm); /* another's are its own affair */
    dml__say(&words, "timeout %g s", job->timeout);
    return words.used;
}

DML__LOCAL void dml__log_description(const dml_comm *comm)
{
    char text[2048];
    if (!comm->job->logger.callback) return;
    dml_comm_describe(comm, text, sizeof text);
    for (char *line = text; *line;) {
        char *end = line + strcspn(line, "\n");
        const bool more = *end != 0;
        *end = 0;
        dml__log(&comm->job->logger, DML_LOG_INFO, "%s", line);
        line = end + more;
    }
}

#endif
