/* The timeline: JSON, all ranks in it, and nothing in a row that overlaps. */
#include "ranks.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { WORLD = 3, ROWS = 4096, MOST_EVENTS = 20000 };

static char folder[64];

/* ---- reading ---- */

typedef struct event {
    char phase, name[128], call[128];
    int rank, row;
    double begin, time, waited, bytes;
} event;

typedef struct timeline {
    event *events; /* (MOST_EVENTS) */
    int count;
} timeline;

static double read_number(dml__json *json)
{
    char *end;
    while (json->at < json->bytes && strchr(" \n", json->text[json->at])) json->at++;
    const double value = strtod(json->text + json->at, &end);
    if (end == json->text + json->at) dml__json_fail(json, json->at, "a number was expected");
    json->at = (size_t)(end - json->text);
    return value;
}

static void read_text(dml__json *json, char *to, size_t bytes)
{
    dml__json_string string;
    if (dml__json_read_string(json, &string)) snprintf(to, bytes, "%.*s", (int)string.bytes, string.from);
}

static void read_arguments(dml__json *json, event *e)
{
    dml__json_string name;
    bool first = true;
    char ignored[128];
    dml__json_expect(json, '{');
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return;
        if (dml__json_is(name, "call"))
            read_text(json, e->call, sizeof e->call);
        else if (dml__json_is(name, "waited_us"))
            e->waited = read_number(json);
        else if (dml__json_is(name, "bytes"))
            e->bytes = read_number(json);
        else if (dml__json_is(name, "name") || dml__json_is(name, "algorithm"))
            read_text(json, ignored, sizeof ignored);
        else
            read_number(json);
    }
}

static void read_event(dml__json *json, event *e)
{
    dml__json_string name;
    bool first = true;
    char phase[4] = "";
    memset(e, 0, sizeof *e);
    dml__json_expect(json, '{');
    while (dml__json_more(json, '}', &first)) {
        if (!dml__json_read_name(json, &name)) return;
        if (dml__json_is(name, "ph"))
            read_text(json, phase, sizeof phase);
        else if (dml__json_is(name, "name"))
            read_text(json, e->name, sizeof e->name);
        else if (dml__json_is(name, "pid"))
            e->rank = (int)read_number(json);
        else if (dml__json_is(name, "tid"))
            e->row = (int)read_number(json);
        else if (dml__json_is(name, "ts"))
            e->begin = read_number(json);
        else if (dml__json_is(name, "dur"))
            e->time = read_number(json);
        else if (dml__json_is(name, "args"))
            read_arguments(json, e);
        else
            dml__json_fail(json, json->at, "an unknown name");
    }
    e->phase = phase[0];
}

/* Appends a rank's file, and removes it. */
static void read_file(timeline *line, const char *path)
{
    static char text[1 << 22];
    FILE *file = fopen(path, "rb");
    CHECK_MESSAGE(file, "%s isn't there", path);
    if (!file) return;
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    remove(path);
    text[bytes] = '\0';
    dml__json json;
    bool first = true;
    dml__json_start(&json, text, bytes);
    dml__json_expect(&json, '[');
    while (dml__json_more(&json, ']', &first) && line->count < MOST_EVENTS)
        read_event(&json, &line->events[line->count++]);
    CHECK_MESSAGE(dml__json_end(&json), "%s: %s at %zu", path, json.problem ? json.problem : "more", json.at);
}

static timeline read_all(const char *name, int world)
{
    timeline line;
    line.count = 0;
    line.events = (event *)calloc(MOST_EVENTS, sizeof *line.events);
    for (int rank = 0; rank < world; rank++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s.%d", folder, name, rank);
        read_file(&line, path);
    }
    return line;
}

static int count_events(const timeline *line, int rank, const char *part)
{
    int count = 0;
    for (int i = 0; i < line->count; i++)
        if (line->events[i].phase == 'X' && line->events[i].rank == rank &&
            strstr(line->events[i].name, part))
            count++;
    return count;
}

/* Lines of a row are in the order in which they ended. */
static void check_rows(const timeline *line)
{
    static double ends[WORLD][ROWS];
    memset(ends, 0, sizeof ends);
    for (int i = 0; i < line->count; i++) {
        const event *e = &line->events[i];
        CHECK(e->rank >= 0 && e->rank < WORLD && e->row >= 0 && e->row < ROWS);
        if (e->phase != 'X' || e->rank >= WORLD || e->row >= ROWS) continue;
        CHECK_MESSAGE(e->time >= 0 && e->begin >= ends[e->rank][e->row] - 0.0005,
                      "rank %d, row %d: %s begins at %.3f, before what came before it ended: %.3f", e->rank,
                      e->row, e->name, e->begin, ends[e->rank][e->row]);
        ends[e->rank][e->row] = e->begin + e->time;
    }
}

/* ---- jobs ---- */

static void prepare(test_rank *ranks, const char *name, void (*body)(test_rank *), char path[128])
{
    snprintf(path, 128, "%s/%s", folder, name);
    ranks_prepare(ranks, WORLD, 30, body, NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        ranks[rank].options.trace = path;
        ranks[rank].options.algorithm = "all_reduce=ring";
    }
}

static void several_body(test_rank *me)
{
    static float data[WORLD][8][3000];
    dml_request *requests[8];
    const double begin = dml_seconds();
    if (me->rank == 1) ranks_sleep(0.05);
    dml_comm_barrier(me->comm);
    dml_comm_trace_span(me->comm, "compute \"it\"", begin, dml_seconds());
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 8; i++)
            requests[i] = dml_comm_all_reduce_start(me->comm, data[me->rank][i], 3000, DML_F32, DML_SUM);
        for (int i = 7; i >= 0; i--) dml_comm_wait(me->comm, requests[i]);
    }
    dml_comm_all_reduce(me->comm, data[me->rank][0], 3000, DML_F32, DML_SUM);
    if (me->rank == 0) dml_comm_send(me->comm, data[0][0], 10, DML_F32, 2, 5);
    if (me->rank == 2) dml_comm_receive(me->comm, data[2][0], 10, DML_F32, 0, 5, NULL);
    if (dml_comm_trace_write(me->comm)) me->bad++;
}

static void check_operations(bool steps)
{
    test_rank ranks[WORLD];
    char path[128];
    prepare(ranks, "several", several_body, path);
    for (int rank = 0; rank < WORLD; rank++) ranks[rank].options.trace_steps = steps;
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
    const timeline line = read_all("several", WORLD);
    check_rows(&line);
    for (int rank = 0; rank < WORLD; rank++) {
        CHECK_INT(count_events(&line, rank, "barrier"), 1);
        CHECK_INT(count_events(&line, rank, "compute _it_"), 1);
        CHECK_INT(count_events(&line, rank, "all_reduce ring 3000 f32 #"), 41);
        CHECK_INT(count_events(&line, rank, "send 10 f32"), rank == 0);
        CHECK_INT(count_events(&line, rank, "receive 10 f32"), rank == 2);
        /* A ring of three ranks sends and receives four chunks each. */
        const int each = steps ? 41 * 2 : 0;
        CHECK_INT(count_events(&line, rank, "receive and reduce from"), each);
        CHECK(count_events(&line, rank, "send to") >= 2 * each);
        if (!steps) CHECK_INT(count_events(&line, rank, "send to"), 0);
    }
    for (int i = 0; i < line.count; i++) {
        const event *e = &line.events[i];
        if (e->phase != 'X' || strncmp(e->name, "all_reduce", 10) != 0) continue;
        CHECK_STRING(e->call, "all_reduce(f32, 3000, sum)");
        CHECK(e->bytes == 12000 && e->waited >= 0 && e->waited <= e->time + 1);
    }
    free(line.events);
}

static void operations(void)
{
    check_operations(false);
}

static void steps(void)
{
    check_operations(true);
}

/* Each kind of step has a name: those through memory that all share, too, and the two halves of a sum. */
static void shared_body(test_rank *me)
{
    static float data[WORLD][3 * WORLD];
    float out[3];
    dml_comm_all_reduce(me->comm, data[me->rank], 3 * WORLD, DML_F32, DML_SUM);
    dml_comm_reduce_scatter(me->comm, data[me->rank], 3, DML_F32, DML_SUM, out);
    if (dml_comm_trace_write(me->comm)) me->bad++;
}

static void steps_through_shared_memory(void)
{
    test_rank ranks[WORLD];
    char path[128];
    prepare(ranks, "shared", shared_body, path);
    for (int rank = 0; rank < WORLD; rank++) {
        ranks[rank].options.trace_steps = true;
        ranks[rank].options.transport = "shm";
        ranks[rank].options.algorithm = "shared";
    }
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
    const timeline line = read_all("shared", WORLD);
    const bool shares = count_events(&line, 0, "all_reduce shared") == 1;
    for (int rank = 0; rank < WORLD && shares; rank++) {
        CHECK_INT(count_events(&line, rank, "reduce_scatter shared"), 1);
        CHECK_INT(count_events(&line, rank, "reduce and copy"), rank == WORLD - 1 ? 2 : 1);
        CHECK(count_events(&line, rank, "reduce") >= 4);
    }
    if (!shares) SKIP("ranks share no memory here");
    free(line.events);
}

/* Everybody leaves a barrier after everybody has come to it: also by the clocks of the file. */
static void barriers_body(test_rank *me)
{
    if (me->user) *(uint64_t *)me->user = me->comm->sequence;
    for (int i = 0; i < 20; i++) {
        if (i % me->world == me->rank) ranks_sleep(0.002);
        dml_comm_barrier(me->comm);
    }
}

static void clocks(void)
{
    test_rank ranks[WORLD];
    char path[128];
    uint64_t first = 0;
    prepare(ranks, "clocks", barriers_body, path);
    ranks[0].user = &first;
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
    const timeline line = read_all("clocks", WORLD);
    for (int i = 0; i < 20; i++) {
        char name[32];
        double last_begin = 0, first_end = 1e300;
        snprintf(name, sizeof name, "#%d", i + (int)first); /* behind those of opening */
        for (int e = 0; e < line.count; e++) {
            const char *number = strrchr(line.events[e].name, '#');
            if (line.events[e].phase != 'X' || !number || strcmp(number, name) != 0) continue;
            const double begin = line.events[e].begin, end = begin + line.events[e].time;
            if (begin > last_begin) last_begin = begin;
            if (end < first_end) first_end = end;
        }
        /* Ranks of one host share a clock: what the comparison is wrong by is at most a message's way. */
        CHECK_MESSAGE(first_end < 1e300 && last_begin <= first_end + 20e3,
                      "barrier %d: one came at %.1f us and one left at %.1f", i, last_begin, first_end);
    }
    free(line.events);
}

static void the_last_ones(void)
{
    test_rank ranks[WORLD];
    char path[128];
    prepare(ranks, "last", barriers_body, path);
    for (int rank = 0; rank < WORLD; rank++) ranks[rank].options.trace_events = 7;
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
    const timeline line = read_all("last", WORLD);
    check_rows(&line);
    for (int rank = 0; rank < WORLD; rank++) {
        CHECK_INT(count_events(&line, rank, "barrier"), 7);
        CHECK_INT(count_events(&line, rank, "#19"), 1);
    }
    free(line.events);
}

static void where_there_is_none(void)
{
    dml_comm *comm = dml_comm_open(NULL);
    CHECK_INT(dml_comm_trace_write(comm), DML_ERROR_STATE);
    dml_comm_trace_span(comm, "nothing", 0, 1);
    CHECK_INT(dml_comm_close(comm), DML_OK);
    dml_comm_options options = { .trace = "/nowhere/at/all" };
    comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_trace_write(comm), DML_ERROR_IO);
    CHECK_INT(dml_comm_status(comm), DML_OK);
    CHECK_INT(dml_comm_close(comm), DML_ERROR_IO);
    options.trace_events = -1;
    comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_status(comm), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_comm_error(comm), "trace_events is -1");
    dml_comm_close(comm);
}

/* What is lost only when the communicator closes is said there, unless there was an error before. */
static void on_a_full_disk(void)
{
    static const char full[] = "/dev/full";
    char path[128], link[140], text[512];
    if (access(full, W_OK) != 0) {
        SKIP("there is no %s", full);
        return;
    }
    snprintf(path, sizeof path, "%s/full", folder);
    snprintf(link, sizeof link, "%s.0", path);
    CHECK_INT(symlink(full, link), 0);
    dml_comm_options options = { .trace = path };
    dml_comm *comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_close_error(comm, text, sizeof text), DML_ERROR_IO);
    CHECK_CONTAINS(text, "rank 0 can't write its trace to ");
    CHECK_CONTAINS(text, "full.0: ");
    CHECK_CONTAINS(text, strerror(ENOSPC));
    comm = dml_comm_open(&options);
    CHECK_INT(dml_comm_send(comm, text, 1, DML_U8, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_comm_close_error(comm, text, sizeof text), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(text, "it must be another rank");
    remove(link);
}

/* A program that is started meanwhile doesn't get the file. */
static int files_of_others; /* that a program started by this one would have */
static void count_files(const char *path)
{
    for (int fd = 3; fd < 256; fd++) {
        char name[64], target[256];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(name, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = '\0';
        if (strcmp(target, path) == 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC)) files_of_others++;
    }
}

/* Both opens wait for each other, and what is written doesn't fit until somebody reads. */
static void *look_at_files(void *pipe)
{
    const int fd = open((const char *)pipe, O_RDONLY | O_CLOEXEC);
    char bytes[4096];
    ranks_sleep(0.1);
    count_files((const char *)pipe);
    while (read(fd, bytes, sizeof bytes) > 0) continue;
    close(fd);
    return NULL;
}

static void no_other_program_has_it(void)
{
    char path[128], name[140];
    snprintf(path, sizeof path, "%s/pipe", folder);
    snprintf(name, sizeof name, "%s.0", path);
    CHECK_INT(mkfifo(name, 0600), 0);
    dml_comm_options options = { .trace = path };
    dml_comm *comm = dml_comm_open(&options);
    for (int i = 0; i < 1500; i++) dml_comm_trace_span(comm, "more than a pipe holds", 0, 1);
    pthread_t thread;
    files_of_others = 0;
    pthread_create(&thread, NULL, look_at_files, name);
    dml_comm_close(comm);
    pthread_join(thread, NULL);
    CHECK_INT(files_of_others, 0);
    remove(name);
}

static void by_the_environment(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/environment", folder);
    setenv("DML_TRACE", path, 1);
    dml_comm *comm = dml_comm_open(NULL);
    dml_comm_barrier(comm);
    CHECK_INT(dml_comm_close(comm), DML_OK);
    unsetenv("DML_TRACE");
    const timeline line = read_all("environment", 1);
    CHECK_INT(count_events(&line, 0, "barrier"), 1);
    free(line.events);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/dml-trace-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    RUN(operations);
    RUN(steps);
    RUN(steps_through_shared_memory);
    RUN(clocks);
    RUN(the_last_ones);
    RUN(where_there_is_none);
    RUN(on_a_full_disk);
    RUN(no_other_program_has_it);
    RUN(by_the_environment);
    rmdir(folder);
    return test_report("comm/trace");
}
