#ifndef DML_COMM_SETTINGS_C
#define DML_COMM_SETTINGS_C

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_internal.h"

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

static bool dml__read_rank(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    settings->rank = options->rank;
    settings->world = options->world_size;
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
    settings->world = 1;
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
    if (!dml__parse_whole(world, 1, DML__MOST_RANKS, &settings->world)) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: WORLD_SIZE is \"%s\", not a whole number from 1",
                  world);
        return false;
    }
    if (!dml__parse_whole(rank, 0, settings->world - 1, &settings->rank)) {
        dml__fail(error, DML_ERROR_ARGUMENT,
                  "dml_comm_open: RANK is \"%s\", not a whole number from 0 to WORLD_SIZE - 1, which is %d",
                  rank, settings->world - 1);
        return false;
    }
    return true;
}

static bool dml__read_place(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *address = dml__environment("MASTER_ADDR"), *port = dml__environment("MASTER_PORT");
    settings->master_addr = options->master_addr ? options->master_addr : address ? address : "127.0.0.1";
    settings->master_port = options->master_port ? options->master_port : 29500;
    settings->bind_addr = options->bind_addr;
    if (options->master_port < 0 || options->master_port > 65535) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: master_port is %d, not 1 to 65535",
                  options->master_port);
        return false;
    }
    if (!options->master_port && port && !dml__parse_whole(port, 1, 65535, &settings->master_port)) {
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
    settings->timeout = options->timeout_s;
    if (options->timeout_s == 0 && !text) settings->timeout = 30;
    if (options->timeout_s == 0 && text) {
        char *end;
        settings->timeout = strtod(text, &end);
        if (*end || !(settings->timeout > 0) || !(settings->timeout <= 1e9)) {
            dml__fail(error, DML_ERROR_ARGUMENT,
                      "dml_comm_open: DML_TIMEOUT is \"%s\", not a number of seconds above 0", text);
            return false;
        }
    }
    if (settings->timeout > 0 && settings->timeout <= 1e9) return true;
    dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: timeout_s is %g, not a number of seconds above 0",
              options->timeout_s);
    return false;
}

static bool dml__read_trust(const dml_comm_options *options, dml__comm_settings *settings, dml__error *error)
{
    const char *insecure = dml__environment("DML_INSECURE");
    settings->key = options->key && *options->key ? options->key : dml__environment("DML_KEY");
    settings->allow_insecure = options->allow_insecure || (insecure && strcmp(insecure, "1") == 0);
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
    settings->segment_bytes = options->segment_bytes ? options->segment_bytes : (size_t)256 << 10;
    settings->max_requests = options->max_requests ? options->max_requests : 256;
    if (settings->segment_bytes < 8 || settings->segment_bytes > (size_t)1 << 30) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: segment_bytes is %llu, not 8 to 2^30",
                  (unsigned long long)settings->segment_bytes);
        return false;
    }
    if (settings->max_requests < 1 || settings->max_requests > 1 << 20) {
        dml__fail(error, DML_ERROR_ARGUMENT, "dml_comm_open: max_requests is %d, not 1 to 2^20",
                  settings->max_requests);
        return false;
    }
    return true;
}

DML__LOCAL bool dml__read_comm_settings(const dml_comm_options *options, dml__comm_settings *settings,
                                        dml__error *error)
{
    memset(settings, 0, sizeof *settings);
    return dml__read_rank(options, settings, error) && dml__read_place(options, settings, error) &&
           dml__read_timeout(options, settings, error) && dml__read_trust(options, settings, error) &&
           dml__read_sizes(options, settings, error);
}

#endif
