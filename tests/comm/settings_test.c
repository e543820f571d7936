/* What a communicator is told, by its options and the environment. */
#include "ranks.h"

#include <limits.h>

static void clear_environment(void)
{
    static const char *const names[] = { "RANK",        "WORLD_SIZE", "MASTER_ADDR",  "MASTER_PORT",
                                         "DML_TIMEOUT", "DML_KEY",    "DML_INSECURE", "DML_TRACE_STEPS" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

/* Opening under such variables fails with a sentence that has `part` in it. */
static void check_environment(const char *rank, const char *world, const char *name, const char *value,
                              const char *part)
{
    clear_environment();
    if (rank) setenv("RANK", rank, 1);
    if (world) setenv("WORLD_SIZE", world, 1);
    if (name) setenv(name, value, 1);
    dml_comm *comm = dml_comm_open(NULL);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(comm), part);
    CHECK_INT(dml_comm_barrier(comm), DML_ERROR_ARGUMENT);
    dml_comm_close(comm);
    clear_environment();
}

static void bad_environment(void)
{
    check_environment("x", "4", NULL, NULL, "RANK is \"x\"");
    check_environment("4", "4", NULL, NULL, "0 to WORLD_SIZE - 1, which is 3");
    check_environment("-1", "4", NULL, NULL, "RANK is \"-1\"");
    check_environment("1 ", "4", NULL, NULL, "RANK is \"1 \"");
    check_environment("0", "0", NULL, NULL, "WORLD_SIZE is \"0\"");
    check_environment("0", "99999999999999999999", NULL, NULL, "WORLD_SIZE");
    check_environment("0", "two", NULL, NULL, "WORLD_SIZE is \"two\"");
    check_environment("0", NULL, NULL, NULL, "RANK is set, but WORLD_SIZE is not");
    check_environment(NULL, "2", NULL, NULL, "WORLD_SIZE is set, but RANK is not");
    check_environment("0", "2", "MASTER_PORT", "http", "MASTER_PORT is \"http\"");
    check_environment("0", "2", "MASTER_PORT", "70000", "MASTER_PORT is \"70000\"");
    check_environment("0", "2", "DML_TIMEOUT", "soon", "DML_TIMEOUT is \"soon\"");
    check_environment("0", "2", "DML_TIMEOUT", "-1", "DML_TIMEOUT is \"-1\"");
    check_environment("0", "2", "DML_TIMEOUT", "nan", "DML_TIMEOUT is \"nan\"");
    check_environment("0", "2", "DML_INSECURE", "yes", "DML_INSECURE is \"yes\"");
    check_environment("0", "2", "DML_TRACE_STEPS", "x", "DML_TRACE_STEPS is \"x\", not 0 or 1");
}

static void check_options(dml_comm_options options, const char *part)
{
    dml_comm *comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(comm), part);
    dml_comm_close(comm);
}

static void bad_options(void)
{
    check_options((dml_comm_options){ .rank = 2, .world_size = 2 }, "rank 2 of world_size 2");
    check_options((dml_comm_options){ .rank = -1, .world_size = 2 }, "rank -1");
    check_options((dml_comm_options){ .world_size = -1 }, "world_size -1");
    check_options((dml_comm_options){ .world_size = INT_MAX }, "world_size 2147483647");
    check_options((dml_comm_options){ .rank = 1 }, "without a world_size");
    check_options((dml_comm_options){ .master_port = 65536 }, "master_port is 65536");
    check_options((dml_comm_options){ .timeout_s = -3 }, "timeout_s is -3");
    check_options((dml_comm_options){ .key = "" }, "the key is empty");
    check_options((dml_comm_options){ .segment_bytes = 3 }, "segment_bytes is 3");
    check_options((dml_comm_options){ .max_requests = -1 }, "max_requests is -1");
}

/* What a number may be at most and at least is taken, one past it is not. */
static void check_limit(dml_comm_options options, const char *refusal)
{
    dml__comm_settings settings;
    dml__error error;
    memset(&error, 0, sizeof error);
    const bool taken = dml__read_comm_settings(&options, &settings, &error);
    CHECK_MESSAGE(taken == !refusal, "%s", refusal ? refusal : error.text);
    if (refusal) {
        CHECK_INT(error.status, DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(error.text, refusal);
    }
}

static void check_limit_of(const char *name, const char *value, const char *refusal)
{
    setenv(name, value, 1);
    check_limit((dml_comm_options){ 0 }, refusal);
    unsetenv(name);
}

static void limits(void)
{
    const int most = 1 << 20;
    clear_environment();
    check_limit((dml_comm_options){ .rank = most - 1, .world_size = most }, NULL);
    check_limit((dml_comm_options){ .rank = most, .world_size = most }, "rank 1048576 of world_size 1048576");
    check_limit((dml_comm_options){ .world_size = most + 1 }, "world_size 1048577");
    check_limit((dml_comm_options){ .rank = -1 }, "rank -1 without a world_size");
    check_limit((dml_comm_options){ .master_port = 65535 }, NULL);
    check_limit((dml_comm_options){ .master_port = 1 }, NULL);
    check_limit((dml_comm_options){ .master_port = -1 }, "master_port is -1");
    check_limit((dml_comm_options){ .timeout_s = 1e9 }, NULL);
    check_limit((dml_comm_options){ .timeout_s = 1.0001e9 }, "timeout_s is 1.0001e+09");
    check_limit((dml_comm_options){ .timeout_s = 1e-3 }, NULL);
    check_limit((dml_comm_options){ .timeout_s = NAN }, "timeout_s is nan");
    check_limit((dml_comm_options){ .segment_bytes = 7 }, "segment_bytes is 7");
    check_limit((dml_comm_options){ .segment_bytes = 8 }, NULL);
    check_limit((dml_comm_options){ .segment_bytes = 1 << 30 }, NULL);
    check_limit((dml_comm_options){ .segment_bytes = (1 << 30) + 1 }, "segment_bytes is 1073741825");
    check_limit((dml_comm_options){ .max_requests = 1 }, NULL);
    check_limit((dml_comm_options){ .max_requests = most }, NULL);
    check_limit((dml_comm_options){ .max_requests = most + 1 }, "max_requests is 1048577");
    check_limit_of("MASTER_PORT", "65535", NULL);
    check_limit_of("MASTER_PORT", "65536", "MASTER_PORT is \"65536\"");
    check_limit_of("MASTER_PORT", "1", NULL);
    check_limit_of("MASTER_PORT", "0", "MASTER_PORT is \"0\"");
    check_limit_of("DML_TIMEOUT", "1e9", NULL);
    check_limit_of("DML_TIMEOUT", "1.1e9",
                   "DML_TIMEOUT is \"1.1e9\", not a number of seconds above 0 and up to 1e9");
    check_limit_of("DML_TIMEOUT", "0", "DML_TIMEOUT is \"0\"");
    check_limit_of("DML_INSECURE", "0", NULL);
    check_limit_of("DML_INSECURE", "1", NULL);
    check_limit_of("DML_TRACE_STEPS", "0", NULL);
    check_limit_of("DML_TRACE_STEPS", "1", NULL);
    check_limit_of("DML_TRACE_STEPS", "2", "DML_TRACE_STEPS is \"2\", not 0 or 1");
    setenv("RANK", "0", 1);
    check_limit_of("WORLD_SIZE", "1", NULL);
    check_limit_of("WORLD_SIZE", "1048576", NULL);
    check_limit_of("WORLD_SIZE", "1048577", "WORLD_SIZE is \"1048577\", not a whole number from 1 to 2^20");
    setenv("RANK", "1048575", 1);
    check_limit_of("WORLD_SIZE", "1048576", NULL);
    check_limit_of("WORLD_SIZE", "1048575", "RANK is \"1048575\"");
    clear_environment();
}

/* What isn't said is as the header says; what is said goes before the environment. */
static void defaults(void)
{
    dml__comm_settings settings;
    dml__error error;
    dml_comm_options options = { .rank = 0 };
    memset(&error, 0, sizeof error);
    clear_environment();
    setenv("RANK", "", 1); /* as if it weren't there */
    setenv("DML_KEY", "", 1);
    CHECK(dml__read_comm_settings(&options, &settings, &error));
    CHECK(settings.net.rank == 0 && settings.net.world == 1 && settings.net.master_port == 29500);
    CHECK(settings.net.timeout == 30 && !settings.net.key && !settings.net.allow_insecure &&
          !settings.net.bind_addr);
    CHECK(settings.net.segment_bytes == 256 << 10 && settings.net.max_requests == 256);
    CHECK_STRING(settings.net.master_addr, "127.0.0.1");
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("MASTER_ADDR", "there", 1);
    setenv("MASTER_PORT", "77", 1);
    setenv("DML_TIMEOUT", "2.5", 1);
    setenv("DML_KEY", "key", 1);
    setenv("DML_INSECURE", "1", 1);
    CHECK(dml__read_comm_settings(&options, &settings, &error));
    CHECK(settings.net.rank == 2 && settings.net.world == 3 && settings.net.master_port == 77);
    CHECK(settings.net.timeout == 2.5 && settings.net.allow_insecure);
    CHECK_STRING(settings.net.key, "key");
    CHECK_STRING(settings.net.master_addr, "there");
    setenv("DML_INSECURE", "0", 1);
    options.rank = 4;
    options.world_size = 5;
    options.master_addr = "here";
    options.master_port = 88;
    options.timeout_s = 4;
    options.key = "mine";
    options.bind_addr = "eth7";
    options.segment_bytes = 1000;
    options.max_requests = 9;
    CHECK(dml__read_comm_settings(&options, &settings, &error));
    CHECK(settings.net.rank == 4 && settings.net.world == 5 && settings.net.master_port == 88 &&
          settings.net.timeout == 4);
    CHECK(!settings.net.allow_insecure && settings.net.segment_bytes == 1000 &&
          settings.net.max_requests == 9);
    CHECK_STRING(settings.net.key, "mine");
    CHECK_STRING(settings.net.master_addr, "here");
    CHECK_STRING(settings.net.bind_addr, "eth7");
    options.allow_insecure = true;
    CHECK(dml__read_comm_settings(&options, &settings, &error) && settings.net.allow_insecure);
    clear_environment();
}

static void alone(void)
{
    clear_environment();
    dml_comm *comm = dml_comm_open(NULL);
    float x[3] = { 1, 2, 3 }, out[3] = { 0, 0, 0 };
    CHECK_INT(dml_comm_status(comm), DML_OK);
    CHECK_STRING(dml_comm_error(comm), "");
    CHECK_INT(dml_comm_world_size(comm), 1);
    CHECK_INT(dml_comm_all_reduce(comm, x, 3, DML_F32, DML_MEAN), DML_OK);
    CHECK_INT(dml_comm_all_gather(comm, x, 3, DML_F32, out), DML_OK);
    CHECK_NEAR(out[2], 3, 0);
    CHECK_INT(dml_comm_wait(comm, dml_comm_all_reduce_start(comm, x, 3, DML_F32, DML_SUM)), DML_OK);
    CHECK_INT(dml_comm_barrier(comm), DML_OK);
    CHECK_INT(dml_comm_send(comm, x, 3, DML_F32, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(comm), "send(f32, 3, to 0): it must be another rank");
    dml_comm_close(comm);
    CHECK_INT(dml_comm_barrier(NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_comm_wait(NULL, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_comm_status(NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(NULL), "no communicator (NULL): dml_comm_split gives that to ranks of");
    CHECK(dml_comm_all_reduce_start(NULL, x, 3, DML_F32, DML_SUM) == NULL);
    dml_comm_close(NULL);
}

/* From the environment alone, as under dmlrun. */
static void from_environment(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, NULL, NULL);
    char port[16];
    snprintf(port, sizeof port, "%d", ranks[0].options.master_port);
    clear_environment();
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("DML_TIMEOUT", "20", 1);
    setenv("DML_KEY", "from the environment", 1);
    memset(&ranks[1].options, 0, sizeof ranks[1].options);
    ranks[0].options.master_addr = "localhost";
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    clear_environment();
}

int main(void)
{
    clear_environment();
    RUN(bad_environment);
    RUN(bad_options);
    RUN(limits);
    RUN(defaults);
    RUN(alone);
    RUN(from_environment);
    return test_report("comm/settings");
}
