/* Who is a worker and who a server: from numbers, from TF_CONFIG, from dmlrun's environment. */
#include "dist/cluster.h"
#include "dist/cluster_internal.h"

#include "../test.h"

#define CLUSTER(list) "{\"cluster\": {" list "}, \"task\": {\"type\": \"worker\", \"index\": 0}}"
#define GOOD_REST                                                                                            \
    "\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"worker\", \"index\": "  \
    "0}}"
#define LONG "123456789 123456789 123456789 123456789 123456789 123456789 "

static dml_cluster of_tf_config(const char *text)
{
    setenv("TF_CONFIG", text, 1);
    const dml_cluster cluster = dml_cluster_from_environment();
    unsetenv("TF_CONFIG");
    return cluster;
}

static void check(const dml_cluster *cluster, int rank, int workers, int servers)
{
    CHECK_STRING(cluster->error, "");
    CHECK_INT(cluster->status, DML_OK);
    CHECK_INT(cluster->rank, rank);
    CHECK_INT(cluster->workers, workers);
    CHECK_INT(cluster->servers, servers);
    CHECK_INT(dml_cluster_is_server(cluster), rank >= workers);
}

static void by_numbers(void)
{
    for (int rank = 0; rank < 5; rank++) {
        const dml_cluster cluster = dml_cluster_of(rank, 3, 2);
        check(&cluster, rank, 3, 2);
    }
}

static void by_tf_config(void)
{
    static const struct {
        const char *type;
        int index, rank;
    } tasks[] = { { "worker", 0, 0 }, { "worker", 2, 2 }, { "ps", 0, 3 }, { "ps", 1, 4 } };
    for (int i = 0; i < 4; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"environment\": [1, {\"a\": [\"}\", -2.5e3]}, null, true], \"cluster\": {\"ps\": "
                 "[\"d:1\", \"e:1\"],\n \"worker\": [\"a.b:2222\", \"b:1\", \"c:1\"]}, \"task\": {\"index\": "
                 "%d, \"type\": \"%s\", \"trial\": \"x\"}, \"rpc_layer\": \"grpc\"} ",
                 tasks[i].index, tasks[i].type);
        const dml_cluster cluster = of_tf_config(text);
        check(&cluster, tasks[i].rank, 3, 2);
        CHECK_STRING(cluster.master_addr, "a.b");
        CHECK_INT(cluster.master_port, 2222);
    }
    dml_cluster cluster = of_tf_config(
        "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:2\"], \"chief\": [\"[::1]:77\"]}, \"task\": "
        "{\"type\": \"worker\", \"index\": 0}}");
    check(&cluster, 1, 2, 1);
    CHECK_STRING(cluster.master_addr, "::1");
    CHECK_INT(cluster.master_port, 77);
}

/* Names and hosts may be written with escapes. */
static void by_escaped_tf_config(void)
{
    dml_cluster cluster =
        of_tf_config("{\"clust\\u0065r\": {\"\\u0077orker\": [\"\\u0061.b\\u003a22\"], \"ps\": [\"b:2\"]}, "
                     "\"task\": {\"type\": \"p\\u0073\", \"ind\\u0065x\": 0}}");
    check(&cluster, 1, 1, 1);
    CHECK_STRING(cluster.master_addr, "a.b");
    CHECK_INT(cluster.master_port, 22);
}

static void by_dmlrun(void)
{
    setenv("WORLD_SIZE", "6", 1);
    setenv("RANK", "4", 1);
    setenv("DML_PS", "2", 1);
    dml_cluster cluster = dml_cluster_from_environment();
    check(&cluster, 4, 4, 2);
    CHECK_STRING(cluster.master_addr, "");
    setenv("DML_PS", "6", 1);
    cluster = dml_cluster_from_environment();
    CHECK_STRING(cluster.error,
                 "of 6 ranks 6 are to be servers (DML_PS), which leaves none for workers: start "
                 "more ranks, as dmlrun --workers 2 --ps 6 does");
    unsetenv("RANK"); /* alone */
    unsetenv("WORLD_SIZE");
    setenv("DML_PS", "1", 1);
    cluster = dml_cluster_from_environment();
    CHECK_CONTAINS(cluster.error, "of 1 rank 1 is to be a server (DML_PS), which leaves none");
    CHECK_INT(cluster.status, DML_ERROR_ARGUMENT);
    setenv("WORLD_SIZE", "6", 1);
    setenv("RANK", "4", 1);
    setenv("DML_PS", "two", 1);
    cluster = dml_cluster_from_environment();
    CHECK_CONTAINS(cluster.error, "DML_PS is not a whole number from 1: two");
    unsetenv("DML_PS");
    cluster = dml_cluster_from_environment();
    CHECK_CONTAINS(cluster.error, "DML_PS is not set, it must say how many of the 6 ranks are servers");
    setenv("DML_PS", "2", 1);
    setenv("RANK", "7", 1);
    cluster = dml_cluster_from_environment();
    CHECK_CONTAINS(cluster.error, "RANK is \"7\"");
    unsetenv("DML_PS");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void bad_clusters(void)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { CLUSTER("\"worker\": [\"a:1\"]"), "it needs a server at least" },
        { CLUSTER("\"ps\": [\"a:1\"]"), "it needs a worker at least" },
        { CLUSTER("\"worker\": [\"a:1\", \"b:1\"], \"ps\": [\"b:1\"]"), "names the host \"b:1\" twice" },
        { CLUSTER("\"worker\": [\"a:1\", \"a:1\"], \"ps\": [\"b:1\"]"), "names the host \"a:1\" twice" },
        { CLUSTER("\"worker\": [\"a:1\"], \"ps\": [\"b:1\"], \"worker\": [\"c:1\"]"),
          "lists the job \"worker\" twice" },
        { CLUSTER("\"ps\": [\"a:1\"], \"worker\": [\"a:1\"]"), "names the host \"a:1\" twice" },
        { CLUSTER("\"worker\": [\"a:1\"], \"ps\": [\"\\u0061:1\"]"), "names the host \"\\u0061:1\" twice" },
        { CLUSTER("\"worker\": [\"a:1\"], \"ps\": [\"" LONG LONG LONG LONG LONG "b:1\"]"),
          "names a host of 303 characters" },
        { "{\"cluster\": {\"worker\": [\"a:1\"]}, \"cluster\": {\"ps\": [\"b:1\"]}, \"task\": {\"type\": "
          "\"ps\", \"index\": 0}}",
          "has \"cluster\" twice" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"ps\"}, "
          "\"t\\u0061sk\": {\"index\": 0}}",
          "has \"task\" twice" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"ps\", \"type\": "
          "\"worker\", \"index\": 0}}",
          "has \"type\" twice" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"ps\", \"index\": "
          "1, "
          "\"index\": 0}}",
          "has \"index\" twice" },
        { CLUSTER("\"worker\": [\"a\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a:x\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a:\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a: 22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a:+22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a:0\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a:65536\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\":22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"::1\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"[]:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"]:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"[:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"[::1:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"[a]]:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a b:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": [\"a\\u0009:22\"], \"ps\": [\"b:1\"]"), "it must be host:port" },
        { CLUSTER("\"worker\": \"a:1\""), "is not the JSON that it should be" },
        { CLUSTER("\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]") "x", "is not the JSON that it should be" },
        { "worker 0 of 3", "is not the JSON that it should be: at character 0" },
        { "{\"cluster\": {\"worker\": [\"a:1\"", "is not the JSON that it should be" },
        { "{\"x\": [[[", "is not the JSON that it should be" },
        { "{}", "TF_CONFIG has no cluster" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}}", "has no task with a type" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"ps\"}}",
          "has no index in its task" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"ps\", \"index\": "
          "1}}",
          "task is number 1 of the job \"ps\", which has 1" },
        { "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:1\"]}, \"task\": {\"type\": \"evaluator\", "
          "\"index\": 0}}",
          "of the job \"evaluator\", which is none of its cluster's" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dml_cluster cluster = of_tf_config(cases[i].text);
        CHECK_MESSAGE(cluster.status == DML_ERROR_ARGUMENT && strstr(cluster.error, cases[i].says),
                      "%s: \"%s\", not \"%s\"", cases[i].text, cluster.error, cases[i].says);
    }
    CHECK_CONTAINS(dml_cluster_of(5, 3, 2).error, "rank 5 is in no job of the cluster: ranks 0 to 2 are");
    CHECK_CONTAINS(dml_cluster_of(-1, 3, 2).error, "rank -1 is in no job");
    dml_cluster zeros; /* filled in by hand, or not at all */
    memset(&zeros, 0, sizeof zeros);
    CHECK_INT(dml__cluster_given(&zeros).status, DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_cluster_of(0, 0, 2).error, "needs a worker");
    CHECK_CONTAINS(dml_cluster_of(0, 2, 0).error, "needs a server");
    CHECK_CONTAINS(dml_cluster_of(0, 2147483647, 2147483647).error, "2^20");
}

/* What is none of the cluster's is JSON all the same, to a depth of 64. */
static void what_is_skipped(void)
{
    static const char *const good[] = {
        "0",  "-0.5e+10", "1E9",  "true",    "false",       "null",      "\"\\u00e9 }\"",
        "[]", "{}",       "[[]]", "[ 1 ,2]", "{\"a\": {}}", "[{}, [1]]", "{\"a\":[{\"b\":null}], \"c\" : -1}"
    };
    static const char *const bad[] = { "",
                                       "@@",
                                       "nul",
                                       "nullx",
                                       "True",
                                       "01",
                                       "-",
                                       "+1",
                                       ".5",
                                       "1.",
                                       "1e",
                                       "1e+",
                                       "0x1",
                                       "NaN",
                                       "1 2",
                                       "[1 2]",
                                       "[,]",
                                       "[1,]",
                                       "[1,,2]",
                                       "[1:2]",
                                       "[}",
                                       "[1}",
                                       "{]",
                                       "{,}",
                                       "{1:2}",
                                       "{\"a\"}",
                                       "{\"a\",1}",
                                       "{\"a\":}",
                                       "{\"a\":1,}",
                                       "{\"a\":1:2}",
                                       "[1 2,,:{\"a\"]",
                                       "\"\\x\"",
                                       "]",
                                       ":",
                                       "," };
    char text[600];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "{\"x\":%s," GOOD_REST, good[i]);
        const dml_cluster cluster = of_tf_config(text);
        check(&cluster, 0, 1, 1);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "{\"x\":%s," GOOD_REST, bad[i]);
        const dml_cluster cluster = of_tf_config(text);
        CHECK_MESSAGE(cluster.status == DML_ERROR_ARGUMENT && strstr(cluster.error, "is not the JSON"),
                      "%s: \"%s\"", text, cluster.error);
    }
    for (int depth = 64; depth <= 65; depth++) {
        char open[66] = "", close[66] = "";
        memset(open, '[', (size_t)depth);
        memset(close, ']', (size_t)depth);
        snprintf(text, sizeof text, "{\"x\":%s%s," GOOD_REST, open, close);
        const dml_cluster cluster = of_tf_config(text);
        CHECK_INT(cluster.status, depth > 64 ? DML_ERROR_ARGUMENT : DML_OK);
        if (depth > 64) CHECK_CONTAINS(cluster.error, "nested more than 64 deep");
    }
}

/* Cut off anywhere, it is no cluster; with any character changed, none or another, and nothing else. */
static void broken_text(void)
{
    const char *good =
        "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"], \"ps\": [\"c:1\"]}, \"task\": {\"type\": "
        "\"ps\", \"index\": 0}}";
    char text[256];
    const size_t length = strlen(good);
    unsigned state = 1;
    for (size_t cut = 1; cut < length; cut++) {
        memcpy(text, good, cut);
        text[cut] = '\0';
        const dml_cluster cluster = of_tf_config(text);
        CHECK_MESSAGE(cluster.status == DML_ERROR_ARGUMENT && cluster.error[0], "%s", text);
    }
    for (int i = 0; i < 5000; i++) {
        memcpy(text, good, length + 1);
        for (int k = 0; k < 2; k++)
            text[test_random(&state) % length] = (char)(1 + test_random(&state) % 255);
        const dml_cluster cluster = of_tf_config(text);
        CHECK((cluster.status == DML_OK) == (cluster.error[0] == '\0'));
    }
}

static void a_bad_cluster_opens_nothing(void)
{
    const dml_cluster cluster = dml_cluster_of(0, 1, 0);
    dml_comm *comm = dml_cluster_open(&cluster, NULL);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_comm_error(comm), cluster.error);
    dml_comm_close(comm);
}

/* Who was launched on several hosts needs to be told where rank 0 is: a cluster of as many ranks, too. */
static void a_cluster_is_what_was_launched(void)
{
    static const char *const said[] = { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES" };
    for (int i = 0; i < 3; i++) setenv(said[i], i ? "3" : "1", 1);
    const dml_cluster cluster = dml_cluster_of(1, 2, 1);
    dml_comm *comm = dml_cluster_open(&cluster, &(dml_comm_options){ .timeout_s = 0.1 });
    CHECK_CONTAINS(dml_comm_error(comm), "MASTER_ADDR must say where rank 0 is");
    dml_comm_close(comm);
    const dml_cluster own = dml_cluster_of(0, 1, 1);
    comm = dml_cluster_open(&own, &(dml_comm_options){ .timeout_s = 0.1 });
    CHECK_INT(dml_comm_status(comm), DML_ERROR_TIMEOUT);
    CHECK_INT(dml_comm_world_size(comm), 2);
    dml_comm_close(comm);
    for (int i = 0; i < 3; i++) unsetenv(said[i]);
}

int main(void)
{
    unsetenv("TF_CONFIG");
    RUN(by_numbers);
    RUN(by_tf_config);
    RUN(by_escaped_tf_config);
    RUN(by_dmlrun);
    RUN(bad_clusters);
    RUN(what_is_skipped);
    RUN(broken_text);
    RUN(a_bad_cluster_opens_nothing);
    RUN(a_cluster_is_what_was_launched);
    return test_report("dist/cluster");
}
