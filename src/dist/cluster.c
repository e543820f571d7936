#ifndef DML_DIST_CLUSTER_C
#define DML_DIST_CLUSTER_C

#include "dist/cluster.h"

#include "base/error.h"
#include "base/json.h"
#include "comm/job.h"
#include "comm/settings.h"
#include "dist/cluster_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dml__no_cluster(dml_cluster *cluster, const char *format, ...) DML__PRINTF(2, 3);

/* The first thing that is wrong. */
static void dml__no_cluster(dml_cluster *cluster, const char *format, ...)
{
    va_list arguments;
    if (cluster->status != DML_OK) return;
    cluster->status = DML_ERROR_ARGUMENT;
    va_start(arguments, format);
    vsnprintf(cluster->error, sizeof cluster->error, format, arguments);
    va_end(arguments);
}

DML_API dml_cluster dml_cluster_of(int rank, int workers, int servers)
{
    dml_cluster cluster;
    memset(&cluster, 0, sizeof cluster);
    cluster.rank = rank;
    cluster.workers = workers;
    cluster.servers = servers;
    if (workers < 1)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: it needs a worker at least",
                        workers, servers);
    else if (servers < 1)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: it needs a server at least",
                        workers, servers);
    else if (workers > (1 << 20) || servers > (1 << 20) - workers)
        dml__no_cluster(&cluster, "a cluster of %d workers and %d servers: there may be 2^20 ranks", workers,
                        servers);
    else if (rank < 0 || rank >= workers + servers)
        dml__no_cluster(&cluster,
                        "rank %d is in no job of the cluster: ranks 0 to %d are its workers, %d to %d its "
                        "servers",
                        rank, workers - 1, workers, workers + servers - 1);
    return cluster;
}

DML_API bool dml_cluster_is_server(const dml_cluster *cluster)
{
    return cluster && cluster->status == DML_OK && cluster->rank >= cluster->workers;
}

DML__LOCAL dml_cluster dml__cluster_given(const dml_cluster *cluster)
{
    if (!cluster) return dml_cluster_of(0, 0, 0);
    const dml_cluster made = dml_cluster_of(cluster->rank, cluster->workers, cluster->servers);
    return cluster->status == DML_OK && made.status != DML_OK ? made : *cluster; /* filled in by hand */
}

/* ---- TF_CONFIG ---- */

typedef enum dml__cluster_job {
    DML__JOB_CHIEF,
    DML__JOB_WORKER,
    DML__JOB_PS,
    DML__CLUSTER_JOBS
} dml__cluster_job;

static const char *const dml__job_names[DML__CLUSTER_JOBS] = { "chief", "worker", "ps" };

typedef struct dml__tf_config {
    dml__json json;
    size_t hosts_at[DML__CLUSTER_JOBS]; /* behind the [ of each job's list; 0: it has none */
    int hosts[DML__CLUSTER_JOBS];
    dml__json_string type; /* of the task */
    bool has_cluster, has_task, has_type, has_index;
    uint64_t index;
} dml__tf_config;

/* Readers of JSON differ in which of several they take. */
static void dml__note_key(dml_cluster *cluster, const char *name, bool *seen)
{
    if (*seen) dml__no_cluster(cluster, "TF_CONFIG has \"%s\" twice: give it once", name);
    *seen = true;
}

/* -1: another. */
static int dml__find_job(dml__json_string name)
{
    for (int j = 0; j < DML__CLUSTER_JOBS; j++)
        if (dml__json_is(name, dml__job_names[j])) return j;
    return -1;
}

/* Whether a host of one of the lists that are known, before offset `end`, means `host`. */
static bool dml__host_is_known(const dml__tf_config *config, const char *host, const char *end)
{
    for (int j = 0; j < DML__CLUSTER_JOBS; j++) {
        dml__json json = config->json;
        bool first = true;
        json.at = config->hosts_at[j];
        if (!json.at) continue;
        dml__json_string other;
        while (dml__json_more(&json, ']', &first) && dml__json_read_string(&json, &other) && other.from < end)
            if (dml__json_is(other, host)) return true;
    }
    return false;
}

static void dml__check_host(const dml__tf_config *config, dml_cluster *cluster, dml__json_string host)
{
    char text[sizeof cluster->master_addr], shown[DML__SHOWN_BYTES];
    if (host.bytes >= sizeof text) {
        dml__no_cluster(cluster, "TF_CONFIG names a host of %zu characters; there may be %zu", host.bytes,
                        sizeof text - 1);
        return;
    }
    dml__json_unescape(text, host);
    if (dml__host_is_known(config, text, host.from))
        dml__no_cluster(cluster,
                        "TF_CONFIG names the host \"%s\" twice: give each task an address of its own",
                        dml__shown(host.from, host.bytes, shown));
}

static bool dml__read_hosts(dml__tf_config *config, dml_cluster *cluster, int job)
{
    dml__json *json = &config->json;
    bool first = true;
    if (!dml__json_expect(json, '[')) return false;
    config->hosts_at[job] = json->at;
    while (dml__json_more(json, ']', &first)) {
        dml__json_string host;
        if (!dml__json_read_string(json, &host)) return false;
        dml__check_host(config, cluster, host);
        config->hosts[job]++;
    }
    return !json->problem;
}

static bool dml__read_jobs(dml__tf_config *config, dml_cluster *cluster)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    dml__note_key(cluster, "cluster", &config->has_cluster);
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        const int job = dml__find_job(name);
        if (job >= 0 && config->hosts_at[job])
            dml__no_cluster(cluster, "TF_CONFIG lists the job \"%s\" twice: give all its tasks in one list",
                            dml__job_names[job]);
        if (job >= 0 ? !dml__read_hosts(config, cluster, job) : !dml__json_skip(json)) return false;
    }
    return !json->problem;
}

static bool dml__read_task(dml__tf_config *config, dml_cluster *cluster)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    dml__note_key(cluster, "task", &config->has_task);
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        if (dml__json_is(name, "type")) {
            dml__note_key(cluster, "type", &config->has_type);
            if (!dml__json_read_string(json, &config->type)) return false;
        } else if (dml__json_is(name, "index")) {
            dml__note_key(cluster, "index", &config->has_index);
            if (!dml__json_read_count(json, &config->index)) return false;
        } else if (!dml__json_skip(json)) {
            return false;
        }
    }
    return !json->problem;
}

static bool dml__read_tf_config(dml__tf_config *config, dml_cluster *cluster)
{
    dml__json *json = &config->json;
    dml__json_string name;
    bool first = true;
    if (!dml__json_expect(json, '{')) return false;
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return false;
        if (dml__json_is(name, "cluster") ? !dml__read_jobs(config, cluster)
            : dml__json_is(name, "task")  ? !dml__read_task(config, cluster)
                                          : !dml__json_skip(json))
            return false;
    }
    return !json->problem && dml__json_end(json);
}

/* Of "host:port", or "[address]:port" as addresses of IPv6 are written, the host, cut out of the text; NULL:
   it is neither. */
static const char *dml__cut_address(char *text, int *port)
{
    char *colon = strrchr(text, ':'), *end = NULL;
    if (!colon || colon[1] < '0' || colon[1] > '9') return NULL;
    const long number = strtol(colon + 1, &end, 10);
    if (*end || number < 1 || number > 65535) return NULL;
    const bool bracketed = text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    const char *host = text + bracketed;
    colon[-(int)bracketed] = '\0';
    *port = (int)number;
    return *host && !host[strcspn(host, bracketed ? "[] \t\r\n" : "[]: \t\r\n")] ? host : NULL;
}

/* The first worker's "host:port" is where the ranks meet. */
static void dml__read_master(const dml__tf_config *config, dml_cluster *cluster)
{
    const int job = config->hosts[DML__JOB_CHIEF] ? DML__JOB_CHIEF : DML__JOB_WORKER;
    dml__json json = config->json;
    dml__json_string host;
    char text[sizeof cluster->master_addr], shown[DML__SHOWN_BYTES];
    json.at = config->hosts_at[job];
    if (!dml__json_read_string(&json, &host)) return;
    dml__json_unescape(text, host); /* which was checked to fit */
    const char *address = dml__cut_address(text, &cluster->master_port);
    if (address)
        snprintf(cluster->master_addr, sizeof cluster->master_addr, "%s", address);
    else
        dml__no_cluster(cluster, "TF_CONFIG has \"%s\" for the first worker: it must be host:port",
                        dml__shown(host.from, host.bytes, shown));
}

static void dml__place_task(const dml__tf_config *config, dml_cluster *cluster)
{
    const int *hosts = config->hosts, job = dml__find_job(config->type);
    const int before[DML__CLUSTER_JOBS] = { 0, hosts[DML__JOB_CHIEF],
                                            hosts[DML__JOB_CHIEF] + hosts[DML__JOB_WORKER] };
    char shown[DML__SHOWN_BYTES];
    if (job < 0 || !hosts[job]) {
        dml__no_cluster(cluster,
                        "TF_CONFIG's task is of the job \"%s\", which is none of its cluster's: a task is a "
                        "\"worker\", \"chief\" or \"ps\"",
                        dml__shown(config->type.from, config->type.bytes, shown));
    } else if (config->index >= (uint64_t)hosts[job]) {
        dml__no_cluster(cluster,
                        "TF_CONFIG's task is number %llu of the job \"%s\", which has %d, counted from 0",
                        (unsigned long long)config->index, dml__job_names[job], hosts[job]);
    } else {
        cluster->rank = before[job] + (int)config->index;
    }
}

static dml_cluster dml__cluster_of_tf_config(const char *text)
{
    dml__tf_config config;
    dml_cluster cluster, made;
    memset(&config, 0, sizeof config);
    memset(&cluster, 0, sizeof cluster);
    dml__json_start(&config.json, text, strlen(text));
    if (!dml__read_tf_config(&config, &cluster)) {
        dml__no_cluster(&cluster, "TF_CONFIG is not the JSON that it should be: at character %zu %s",
                        config.json.at, config.json.problem ? config.json.problem : "it goes on");
        return cluster;
    }
    if (!config.has_cluster || !config.has_type || !config.has_index)
        dml__no_cluster(&cluster, "TF_CONFIG has no %s: it needs a cluster, and a task with type and index",
                        !config.has_cluster ? "cluster"
                        : !config.has_type  ? "task with a type"
                                            : "index in its task");
    if (cluster.status != DML_OK) return cluster;
    made = dml_cluster_of(0, config.hosts[DML__JOB_CHIEF] + config.hosts[DML__JOB_WORKER],
                          config.hosts[DML__JOB_PS]);
    if (made.status == DML_OK) dml__place_task(&config, &made);
    if (made.status == DML_OK) dml__read_master(&config, &made);
    return made;
}

/* ---- the environment ---- */

DML_API dml_cluster dml_cluster_from_environment(void)
{
    dml_cluster cluster;
    dml_comm_options options;
    dml__comm_settings settings;
    dml__error error;
    const char *config = getenv("TF_CONFIG"), *ps = getenv("DML_PS");
    if (config && *config) return dml__cluster_of_tf_config(config);
    memset(&cluster, 0, sizeof cluster);
    memset(&options, 0, sizeof options);
    memset(&error, 0, sizeof error);
    if (!dml__read_comm_settings(&options, &settings, &error)) {
        dml__no_cluster(&cluster, "%s", error.text);
        return cluster;
    }
    char *end = NULL;
    const long servers = ps ? strtol(ps, &end, 10) : 0;
    if (!ps || end == ps || *end || servers < 1 || servers > (1 << 20)) {
        dml__no_cluster(
            &cluster,
            "no cluster: DML_PS is %s%s, it must say how many of the %d ranks are servers (dmlrun "
            "--workers and --ps set it; or set TF_CONFIG)",
            ps ? "not a whole number from 1: " : "not set", ps ? ps : "", settings.net.world);
        return cluster;
    }
    if (servers >= settings.net.world) {
        dml__no_cluster(&cluster,
                        "of %d rank%s %ld %s (DML_PS), which leaves none for workers: start more ranks, as "
                        "dmlrun --workers 2 --ps %ld does",
                        settings.net.world, settings.net.world > 1 ? "s" : "", servers,
                        servers > 1 ? "are to be servers" : "is to be a server", servers);
        return cluster;
    }
    return dml_cluster_of(settings.net.rank, settings.net.world - (int)servers, (int)servers);
}

/* Whether dml_comm_open with these options, which name no rank, finds the cluster's by itself. An engine of
   others then carries the job, and hosts are looked for, as a launcher says. */
static bool dml__is_found(const dml_cluster *cluster, const dml_comm_options *options)
{
    dml__comm_settings settings;
    dml__error error; /* dml_comm_open finds it again */
    memset(&settings, 0, sizeof settings);
    memset(&error, 0, sizeof error);
    dml__read_comm_settings(options, &settings, &error);
    return settings.net.rank == cluster->rank && settings.net.world == cluster->workers + cluster->servers;
}

DML_API dml_comm *dml_cluster_open(const dml_cluster *given, const dml_comm_options *options)
{
    const dml_cluster own = dml__cluster_given(given), *const cluster = &own;
    dml_comm_options o;
    const bool good = cluster->status == DML_OK;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    o.rank = o.world_size = 0;
    if (good && cluster->master_addr[0]) {
        o.master_addr = cluster->master_addr;
        o.master_port = cluster->master_port;
    }
    if (!good || cluster->master_addr[0] || !dml__is_found(cluster, &o)) {
        o.rank = good ? cluster->rank : 0;
        o.world_size = good ? cluster->workers + cluster->servers : 1;
    }
    dml_comm *comm = dml_comm_open(&o);
    if (comm && !good) dml__fail(&comm->job->error, cluster->status, "%s", cluster->error);
    return comm;
}

#endif
