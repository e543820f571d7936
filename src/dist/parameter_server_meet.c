#ifndef DML_DIST_PARAMETER_SERVER_MEET_C
#define DML_DIST_PARAMETER_SERVER_MEET_C

#include "dist/parameter_server_internal.h"

#include "base/clock.h"
#include "comm/job.h"
#include "dist/same_strategy.h"

#include <stdarg.h>
#include <stdio.h>

/* How workers and servers begin, and how they end. */

static dml_status dml__ps_fail_job(dml_comm *comm, int rank, dml_status status, const char *format,
                                   va_list arguments)
{
    char text[384];
    dml__comm_job *job = comm->job;
    vsnprintf(text, sizeof text, format, arguments);
    dml__enter_job(job);
    status = dml__job_fail(job, comm->world_ranks[rank], status, "rank %d: %s", job->rank, text);
    dml__leave_job(job);
    return status;
}

DML__LOCAL dml_status dml__ps_fail(dml_comm *comm, dml_status status, const char *format, ...)
{
    va_list arguments;
    if (!comm || dml__is_gone(comm)) return status;
    va_start(arguments, format);
    status = dml__ps_fail_job(comm, comm->rank, status, format, arguments);
    va_end(arguments);
    return status;
}

DML__LOCAL dml_status dml__ps_blame(dml_comm *comm, int rank, dml_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = dml__ps_fail_job(comm, rank, status, format, arguments);
    va_end(arguments);
    return status;
}

static bool dml__ps_wire_dtype(dml_dtype dtype)
{
    return dtype == DML_F32 || dtype == DML_BF16 || dtype == DML_F16;
}

/* NULL, or what is wrong with a worker's options. */
static const char *dml__ps_fault(const dml_ps_options *o, const dml_cluster *cluster)
{
    if ((unsigned)o->consistency > DML_PS_STALE) return "the consistency must be one of dml_ps_consistency";
    if (o->staleness < 0) return "the staleness must be 0 or more";
    if (o->backup < 0 || o->backup >= cluster->workers)
        return "there must be fewer backup workers than workers, and not less than 0";
    if (o->backup && o->consistency != DML_PS_SYNCHRONOUS) return "backup workers are for DML_PS_SYNCHRONOUS";
    if (!(o->threshold >= 0) || !(o->threshold <= 3e38f)) return "the threshold must be 0 or more";
    if (!dml__ps_wire_dtype(o->push_dtype) || !dml__ps_wire_dtype(o->pull_dtype))
        return "what is sent is DML_F32, DML_BF16 or DML_F16";
    if (!(o->idle_s >= 0) || !(o->idle_s <= 1e9)) return "idle_s must be 0 or more";
    if (o->vectors < 0 || o->vectors > DML__PS_MOST_VECTORS) return "there may be 0 to 256 more vectors";
    if (o->setup_count > DML__PS_MOST_SETUP || (o->setup_count && !o->setup))
        return "the setup must be given, and have at most 65536 numbers";
    return NULL;
}

static void dml__ps_write_terms(int64_t *terms, const dml_cluster *cluster, size_t count,
                                const dml_ps_options *o, size_t runs)
{
    terms[DML__PS_COUNT] = (int64_t)count;
    terms[DML__PS_CONSISTENCY] = (int64_t)o->consistency;
    terms[DML__PS_STALENESS] = o->staleness;
    terms[DML__PS_BACKUP] = o->backup;
    terms[DML__PS_THRESHOLD] = dml__ps_bits((double)o->threshold);
    terms[DML__PS_IDLE] = dml__ps_bits(o->idle_s);
    terms[DML__PS_PUSH_DTYPE] = (int64_t)o->push_dtype;
    terms[DML__PS_PULL_DTYPE] = (int64_t)o->pull_dtype;
    terms[DML__PS_VECTORS] = o->vectors;
    terms[DML__PS_SETUP] = (int64_t)o->setup_count;
    terms[DML__PS_RUNS] = (int64_t)runs;
    terms[DML__PS_WORKERS] = cluster->workers;
    terms[DML__PS_SERVERS] = cluster->servers;
}

static void dml__ps_term_text(int term, int64_t value, char text[32])
{
    static const char *const consistencies[] = { "synchronous", "asynchronous", "stale" };
    if (term == DML__PS_THRESHOLD || term == DML__PS_IDLE)
        snprintf(text, 32, "%g", dml__ps_real(value));
    else if (term == DML__PS_PUSH_DTYPE || term == DML__PS_PULL_DTYPE)
        snprintf(text, 32, "%s", dml_dtype_name((dml_dtype)value));
    else if (term == DML__PS_CONSISTENCY && value >= 0 && value <= DML_PS_STALE)
        snprintf(text, 32, "%s", consistencies[value]);
    else
        snprintf(text, 32, "%lld", (long long)value);
}

/* Whether this rank's terms are worker 0's, of which its setup counts. */
static dml_status dml__ps_compare(dml_comm *comm, const int64_t *mine, const int64_t *first, bool server)
{
    static const char *const names[DML__PS_TERMS] = {
        "count",      "consistency", "staleness",   "backup", "threshold", "idle_s",  "push_dtype",
        "pull_dtype", "vectors",     "setup_count", "runs",   "workers",   "servers",
    };
    char mine_text[32], first_text[32];
    for (int i = server ? DML__PS_WORKERS : 0; i < DML__PS_TERMS; i++) {
        if (mine[i] == first[i] || i == DML__PS_SETUP || i == DML__PS_RUNS) continue;
        dml__ps_term_text(i, mine[i], mine_text);
        dml__ps_term_text(i, first[i], first_text);
        return dml__ps_fail(comm, DML_ERROR_MISMATCH,
                            "a parameter server with %s %s, where worker 0 has %s; all ranks need the same",
                            names[i], mine_text, first_text);
    }
    return DML_OK;
}

DML__LOCAL size_t dml__ps_between_rows(const dml__ps_link *link, size_t at)
{
    for (int64_t r = 0; r < link->terms[DML__PS_RUNS]; r++) {
        const double *run = link->runs + r * DML__PS_RUN;
        const size_t begin = (size_t)run[DML__PS_RUN_BEGIN], width = (size_t)run[DML__PS_RUN_WIDTH];
        if (width && at > begin && at < (size_t)run[DML__PS_RUN_END])
            return begin + (at - begin + width - 1) / width * width;
    }
    return at;
}

DML__LOCAL size_t dml__ps_border(const dml__ps_link *link, int s)
{
    return dml__ps_between_rows(
        link, dml__ps_range((size_t)link->terms[DML__PS_COUNT], (int)link->terms[DML__PS_SERVERS], s));
}

DML__LOCAL size_t dml__ps_push_piece(const dml__ps_link *link, size_t at, size_t end)
{
    if (end - at <= link->piece) return end;
    const size_t whole = dml__ps_between_rows(link, at + link->piece);
    return whole < end ? whole : end;
}

static size_t dml__ps_widest(const dml__ps_link *link)
{
    size_t widest = 0;
    for (int64_t r = 0; r < link->terms[DML__PS_RUNS]; r++) {
        const size_t width = (size_t)link->runs[r * DML__PS_RUN + DML__PS_RUN_WIDTH];
        if (width > widest) widest = width;
    }
    return widest;
}

static dml_status dml__ps_agree(dml__ps_link *link, dml__memory *memory, const dml_cluster *cluster,
                                size_t count, const dml_ps_options *o, size_t runs)
{
    const bool server = dml_cluster_is_server(cluster);
    int64_t mine[DML__PS_TERMS];
    dml__ps_write_terms(mine, cluster, count, o, runs);
    memcpy(link->terms, mine, sizeof mine);
    dml_status status = dml_comm_broadcast(link->all, link->terms, DML__PS_TERMS, DML_I64, 0);
    if (status == DML_OK) status = dml__ps_compare(link->all, mine, link->terms, server);
    if (status != DML_OK) return status;
    const size_t ranks = (size_t)(cluster->workers + cluster->servers);
    const size_t setup = (size_t)link->terms[DML__PS_SETUP], n = (size_t)link->terms[DML__PS_COUNT];
    link->setup = (double *)dml__allocate_array(memory, setup + 1, sizeof *link->setup);
    link->counts = (size_t *)dml__allocate_array(memory, ranks, sizeof *link->counts);
    if (!link->setup || !link->counts)
        return dml__ps_fail(link->all, DML_ERROR_MEMORY, "no memory for a parameter server");
    if (cluster->rank == 0 && setup) memcpy(link->setup, o->setup, setup * sizeof *link->setup);
    status = dml_comm_broadcast(link->all, link->setup, setup, DML_F64, 0);
    if (status != DML_OK) return status;
    link->runs = link->setup + setup - (size_t)link->terms[DML__PS_RUNS] * DML__PS_RUN;
    for (int s = 0; s < cluster->servers; s++)
        link->counts[cluster->workers + s] = dml__ps_border(link, s + 1) - dml__ps_border(link, s);
    const int s = cluster->rank - cluster->workers;
    link->begin = server ? dml__ps_border(link, s) : 0;
    link->end = server ? dml__ps_border(link, s + 1) : n;
    link->piece = dml__ps_piece(n);
    link->longest = link->piece + dml__ps_widest(link);
    link->push_dtype = (dml_dtype)link->terms[DML__PS_PUSH_DTYPE];
    link->pull_dtype = (dml_dtype)link->terms[DML__PS_PULL_DTYPE];
    return DML_OK;
}

DML__LOCAL dml_status dml__ps_meet(dml__ps_link *link, dml__memory *memory, dml_comm *comm,
                                   const dml_cluster *cluster, size_t count, const dml_ps_options *options,
                                   size_t runs)
{
    memset(link, 0, sizeof *link);
    if (!comm || dml_comm_status(comm)) return dml_comm_status(comm);
    if (cluster->status != DML_OK) return dml__ps_fail(comm, cluster->status, "%s", cluster->error);
    if (dml_comm_world_size(comm) != cluster->workers + cluster->servers ||
        dml_comm_rank(comm) != cluster->rank)
        return dml__ps_fail(
            comm, DML_ERROR_ARGUMENT,
            "a cluster of %d workers and %d servers with rank %d on a communicator of %d ranks",
            cluster->workers, cluster->servers, cluster->rank, dml_comm_world_size(comm));
    if (!dml_cluster_is_server(cluster) && count < (size_t)cluster->servers)
        return dml__ps_fail(comm, DML_ERROR_ARGUMENT,
                            "a parameter server of %d servers for %zu elements: each keeps one at least",
                            cluster->servers, count);
    const char *fault = dml_cluster_is_server(cluster) ? NULL : dml__ps_fault(options, cluster);
    if (fault) return dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a parameter server: %s", fault);
    char sentence[DML__SAME_STRATEGY_BYTES];
    const dml_status status = dml__same_strategy(comm, "a parameter server", sentence);
    if (status != DML_OK) return sentence[0] ? dml__ps_fail(comm, status, "%s", sentence) : status;
    link->all = dml_comm_split(comm, 0, cluster->rank);
    link->peers = dml_comm_split(comm, dml_cluster_is_server(cluster), cluster->rank);
    if (!link->all || !link->peers)
        return dml_comm_status(comm)
                   ? dml_comm_status(comm)
                   : dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server");
    return dml__ps_agree(link, memory, cluster, count, options, runs);
}

typedef struct dml__ps_any {
    dml_request *const *requests;
    int count;
} dml__ps_any;

static bool dml__ps_any_done(dml__comm_job *job, void *user)
{
    const dml__ps_any *any = (const dml__ps_any *)user;
    bool waits = false;
    (void)job;
    for (int i = 0; i < any->count; i++) {
        if (any->requests[i] && any->requests[i]->state != DML__REQUEST_ACTIVE) return true;
        waits = waits || any->requests[i];
    }
    return !waits;
}

DML__LOCAL bool dml__ps_any_within(dml_comm *comm, dml_request *const *requests, int count, double seconds)
{
    dml__ps_any any;
    if (!(seconds > 0)) return true;
    any.requests = requests;
    any.count = count;
    dml__enter_job(comm->job);
    comm->job->waits_for_any = count > 1;
    const bool done = dml__wait_until(comm->job, dml__ps_any_done, &any, dml_seconds() + seconds) ||
                      comm->job->error.status != DML_OK;
    comm->job->waits_for_any = false;
    dml__leave_job(comm->job);
    return done;
}

DML__LOCAL void dml__ps_part(dml__ps_link *link, dml__memory *memory)
{
    dml__release(memory, link->setup);
    dml__release(memory, link->counts);
    dml_comm_close(link->peers);
    dml_comm_close(link->all);
}

#endif
