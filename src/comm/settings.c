#ifndef DML_COMM_SETTINGS_C
#define DML_COMM_SETTINGS_C

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/choice.h"
#include "comm/engine.h"
#include "comm/settings.h"

#define DML__MOST_RANKS (1 << 20)

/* An environment variable; NULL if it is unset or empty. */
static const char *dml__environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The whole text as a number in [least, most]. */
static bool dml__parse_whole(const char *text, long least, long most, int *out)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most) return false;
    *out = (int)value;
    return true;
}

/* What tells a process that it is one of several: the variables of those who launch such. The number of ranks
   on this host, or of hosts. Slurm's are those of a step: a batch script, which is none, has the others too.
 */
typedef struct dml__launcher {
    const char *rank, *world, *on_host, *hosts;
} dml__launcher;

static const dml__launcher *dml__find_launcher(void)
{
    static const dml__launcher launchers[] = {
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_NODES" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES" },
    };
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (dml__environment(launchers[i].rank) && dml__environment(launchers[i].world)) return &launchers[i];
    return NULL;
}

/* False: nobody did, or what is said makes no sense. */
static bool dml__read_launcher(dml__comm_settings *settings)
{
    const dml__launcher *launcher = dml__find_launcher();
    int rank, world;
    if (!launcher || !dml__parse_whole(dml__environment(launcher->world), 1, DML__MOST_RANKS, &world) ||
        !dml__parse_whole(dml__environment(launcher->rank), 0, world - 1, &rank))
        return false;
    settings->net.rank = rank;
    settings->net.world = world;
    settings->launched = true;
    return true;
}

static bool dml__launched_on_one_host(int world)
{
    const dml__launcher *launcher = dml__find_launcher();
    const char *on_host = dml__environment(launcher->on_host), *hosts = dml__environment(launcher->hosts);
    int count;
    if (on_host) return dml__parse_whole(on_host, 1, DML__MOST_RANKS, &count) && count == world;
    return world == 1 || (hosts && strcmp(hosts, "1") == 0);
}

static bool dml__read_engine(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *text = options->engine ? options->engine : dml__environment("DML_COMM_ENGINE");
    const char *name = options->engine ? "engine" : "DML_COMM_ENGINE";
    const bool mpi = text ? strcmp(text, "mpi") == 0 : settings->launched;
    settings->nccl = text && strcmp(text, "nccl") == 0;
    if (text && !mpi && !settings->nccl && strcmp(text, "dml") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not \"dml\", \"mpi\" or \"nccl\"",
                  name, text);
        return false;
    }
#ifndef DML_NCCL
    if (settings->nccl) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: %s is \"nccl\", but dml_comm.h was compiled without -DDML_NCCL", name);
        return false;
    }
#endif
#ifdef DML_MPI
    if (mpi && !settings->nccl) settings->engine = dml__mpi_engine();
#else
    if (text && mpi) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: %s is \"mpi\", but dml_comm.h was compiled without -DDML_MPI", name);
        return false;
    }
#endif
    return true;
}

static bool dml__read_rank(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->net.rank = options->rank;
    settings->net.world = options->world_size;
    if (options->world_size) {
        if (options->rank >= 0 && options->rank < options->world_size &&
            options->world_size <= DML__MOST_RANKS)
            return true;
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: rank %d of world_size %d: the rank must be 0 to world_size - 1, the "
                  "world_size at most 2^20",
                  options->rank, options->world_size);
        return false;
    }
    const char *rank = dml__environment("RANK"), *world = dml__environment("WORLD_SIZE");
    settings->net.world = 1;
    if (!rank && !world && dml__read_launcher(settings)) return true;
    if (!rank && !world) {
        if (options->rank == 0) return true;
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: rank %d without a world_size", options->rank);
        return false;
    }
    if (!rank || !world) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is set, but %s is not: set both or neither",
                  rank ? "RANK" : "WORLD_SIZE", rank ? "WORLD_SIZE" : "RANK");
        return false;
    }
    if (!dml__parse_whole(world, 1, DML__MOST_RANKS, &settings->net.world)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: WORLD_SIZE is \"%s\", not a whole number from 1 to 2^20", world);
        return false;
    }
    if (!dml__parse_whole(rank, 0, settings->net.world - 1, &settings->net.rank)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: RANK is \"%s\", not a whole number from 0 to WORLD_SIZE - 1, which is %d",
                  rank, settings->net.world - 1);
        return false;
    }
    return true;
}

static bool dml__read_place(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *address = dml__environment("MASTER_ADDR"), *port = dml__environment("MASTER_PORT");
    settings->net.master_addr = options->master_addr ? options->master_addr : address ? address : "127.0.0.1";
    settings->net.master_port = options->master_port ? options->master_port : 29500;
    settings->net.bind_addr = options->bind_addr;
    if (settings->launched && !settings->engine && !options->master_addr && !address &&
        !dml__launched_on_one_host(settings->net.world)) {
        dml__fail(
            error, DML_ERROR_ARGUMENT,
            "dml_comm_open: MASTER_ADDR must say where rank 0 is, since not all %d ranks that were launched "
            "are on this host",
            settings->net.world);
        return false;
    }
    if (options->master_port < 0 || options->master_port > 65535) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: master_port is %d, not 1 to 65535",
                  options->master_port);
        return false;
    }
    if (!options->master_port && port && !dml__parse_whole(port, 1, 65535, &settings->net.master_port)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: MASTER_PORT is \"%s\", not a whole number from 1 to 65535", port);
        return false;
    }
    return true;
}

static bool dml__read_timeout(const dml_comm_options *options, dml__comm_settings *settings,
                              dml__error *error)
{
    const char *text = dml__environment("DML_TIMEOUT");
    settings->net.timeout = options->timeout_s;
    if (options->timeout_s == 0 && !text) settings->net.timeout = 30;
    if (options->timeout_s == 0 && text) {
        char *end;
        settings->net.timeout = strtod(text, &end);
        if (*end || !(settings->net.timeout > 0) || !(settings->net.timeout <= 1e9)) {
            dml__fail(error, DML_ERROR_ARGUMENT,
                      "dml_comm_open: DML_TIMEOUT is \"%s\", not a number of seconds above 0 and up to 1e9",
                      text);
            return false;
        }
    }
    const double quarter = settings->net.timeout / 4;
    settings->net.grace = quarter < 0.05 ? 0.05 : quarter > 1 ? 1 : quarter;
    if (settings->net.timeout > 0 && settings->net.timeout <= 1e9) return true;
    dml__fail(error, DML_ERROR_ARGUMENT,
              "dml_comm_open: timeout_s is %g, not a number of seconds above 0 and up to 1e9",
              options->timeout_s);
    return false;
}

static bool dml__read_trust(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *insecure = dml__environment("DML_INSECURE");
    settings->net.key = options->key && *options->key ? options->key : dml__environment("DML_KEY");
    settings->net.allow_insecure = options->allow_insecure || (insecure && strcmp(insecure, "1") == 0);
    if (options->key && !*options->key) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: the key is empty; for none, pass NULL");
        return false;
    }
    if (insecure && strcmp(insecure, "0") != 0 && strcmp(insecure, "1") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_INSECURE is \"%s\", not 0 or 1", insecure);
        return false;
    }
    return true;
}

static bool dml__read_sizes(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->usual_segments = !options->segment_bytes;
    settings->net.segment_bytes = options->segment_bytes ? options->segment_bytes : (size_t)256 << 10;
    settings->net.max_requests = options->max_requests ? options->max_requests : 256;
    if (settings->net.segment_bytes < 8 || settings->net.segment_bytes > (size_t)1 << 30) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: segment_bytes is %llu, not 8 to 2^30",
                  (unsigned long long)settings->net.segment_bytes);
        return false;
    }
    settings->net.segment_bytes -= settings->net.segment_bytes % 8;
    if (settings->net.max_requests < 1 || settings->net.max_requests > 1 << 20) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: max_requests is %d, not 1 to 2^20",
                  settings->net.max_requests);
        return false;
    }
    return true;
}

static bool dml__read_algorithm(const dml_comm_options *options, dml__comm_settings *settings,
                                dml__error *error)
{
    const char *text = options->algorithm ? options->algorithm : dml__environment("DML_COMM_ALGO");
    char unknown[DML__ALGORITHM_NAME];
    settings->algorithm = text && *text ? text : NULL;
    if (settings->algorithm && strlen(text) >= DML__ALGORITHM_NAMES) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is longer than %d characters",
                  options->algorithm ? "algorithm" : "DML_COMM_ALGO", DML__ALGORITHM_NAMES - 1);
        return false;
    }
    if (!settings->algorithm || dml__check_algorithm_names(text, unknown)) return true;
    dml__fail(error, DML_ERROR_ARGUMENT,
              "dml_comm_open: %s is \"%s\": there is no algorithm \"%s\"; name one, like \"ring\", or one an "
              "operation, like \"all_reduce=ring,broadcast=chain\"",
              options->algorithm ? "algorithm" : "DML_COMM_ALGO", text, unknown);
    return false;
}

static bool dml__read_transport(const dml_comm_options *options, dml__comm_settings *settings,
                                dml__error *error)
{
    const char *text = options->transport ? options->transport : dml__environment("DML_COMM_TRANSPORT");
    const char *reads = dml__environment("DML_COMM_CMA");
    settings->only_tcp = text && strcmp(text, "tcp") == 0;
    settings->no_reads = reads && strcmp(reads, "0") == 0;
    settings->reads_if_fast = !reads;
    if (reads && !settings->no_reads && strcmp(reads, "1") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_COMM_CMA is \"%s\", not 0 or 1", reads);
        return false;
    }
    if (!text || settings->only_tcp || strcmp(text, "shm") == 0) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not \"tcp\" or \"shm\"",
              options->transport ? "transport" : "DML_COMM_TRANSPORT", text);
    return false;
}

/* A number of options, or of the environment; 0: neither. */
static bool dml__read_number(double given, const char *option, const char *variable, double most, double *out,
                             dml__error *error)
{
    const char *text = given == 0 ? dml__environment(variable) : NULL;
    char *end = NULL;
    *out = text ? strtod(text, &end) : given;
    if ((!text && given == 0) || ((!text || !*end) && *out > 0 && *out <= most)) return true;
    if (text)
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is \"%s\", not a number above 0 and up to %g",
                  variable, text, most);
    else
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: %s is %g, not a number above 0 and up to %g",
                  option, given, most);
    return false;
}

static bool dml__read_link(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    double microseconds, gigabits;
    if (!dml__read_number(options->link_latency_us, "link_latency_us", "DML_COMM_LATENCY", 1e9, &microseconds,
                          error) ||
        !dml__read_number(options->link_bandwidth_gbit, "link_bandwidth_gbit", "DML_COMM_BANDWIDTH", 1e9,
                          &gigabits, error))
        return false;
    settings->latency = microseconds * 1e-6;
    settings->bandwidth = gigabits * 1e9 / 8;
    if ((microseconds > 0) == (gigabits > 0)) return true;
    dml__fail(error, DML_ERROR_ARGUMENT,
              "dml_comm_open: a link's latency (link_latency_us, DML_COMM_LATENCY) and its bandwidth "
              "(link_bandwidth_gbit, DML_COMM_BANDWIDTH) are given together, or neither");
    return false;
}

static bool dml__read_tuning(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    return dml__read_number(options->tune_s, "tune_s", "DML_COMM_TUNE", DML__LONGEST_TUNE, &settings->tune,
                            error);
}

static bool dml__read_determinism(const dml_comm_options *options, dml__comm_settings *settings,
                                  dml__error *error)
{
    const char *text = dml__environment("DML_COMM_DETERMINISTIC");
    settings->deterministic = options->deterministic || (text && strcmp(text, "1") == 0);
    if (!text || strcmp(text, "0") == 0 || strcmp(text, "1") == 0) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_COMM_DETERMINISTIC is \"%s\", not 0 or 1", text);
    return false;
}

static bool dml__read_trace(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *steps = dml__environment("DML_TRACE_STEPS");
    settings->trace.path = options->trace ? options->trace : dml__environment("DML_TRACE");
    if (settings->trace.path && !*settings->trace.path) settings->trace.path = NULL;
    settings->trace.events = options->trace_events ? options->trace_events : 65536;
    settings->trace.steps = options->trace_steps || (steps && strcmp(steps, "1") == 0);
    if (steps && strcmp(steps, "0") != 0 && strcmp(steps, "1") != 0) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: DML_TRACE_STEPS is \"%s\", not 0 or 1", steps);
        return false;
    }
    if (settings->trace.events >= 1 && settings->trace.events <= 1 << 24) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: trace_events is %d, not 1 to 2^24",
              settings->trace.events);
    return false;
}

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error)
{
    memset(settings, 0, sizeof *settings);
    return dml__read_rank(options, settings, error) && dml__read_engine(options, settings, error) &&
           dml__read_place(options, settings, error) && dml__read_timeout(options, settings, error) &&
           dml__read_trust(options, settings, error) && dml__read_sizes(options, settings, error) &&
           dml__read_algorithm(options, settings, error) && dml__read_transport(options, settings, error) &&
           dml__read_link(options, settings, error) && dml__read_tuning(options, settings, error) &&
           dml__read_determinism(options, settings, error) && dml__read_trace(options, settings, error);
}

#endif
