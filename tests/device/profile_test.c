/* The profile: whose time is whose, on every backend, and the timeline. */
#include "device/profile.h"

#include "device/context_internal.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"

#include <stdio.h>
#include <unistd.h>

enum { ROWS = 4, STEPS = 3 };

static dml_trainer *make_trainer_on(dml_graph *graph)
{
    dml_node *x = dml_input(graph, "x", DML_F32, 6), *t = dml_input(graph, "t", DML_F32, 2);
    dml_node *h = dml_tanh(dml_dense(x, 5));
    dml_trainer_options options = { .batch = ROWS, .optimizer = dml_sgd(0.1f, 0.0f) };
    return dml_trainer_create(dml_mean_squared_error(dml_dense(h, 2), t), &options);
}

static dml_trainer *make_trainer(dml_context *context)
{
    return make_trainer_on(dml_graph_create(context));
}

static void train(dml_trainer *trainer)
{
    static const float x[ROWS * 6] = { 1, 2, 3 }, t[ROWS * 2] = { 1 };
    for (int step = 0; step < STEPS; step++)
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(x, t), NULL), DML_OK);
}

static const dml_profile_row *row_of(const dml_profile_row *rows, int count, const char *node,
                                     const char *pass)
{
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i].node, node) == 0 && strcmp(rows[i].pass, pass) == 0) return &rows[i];
    return NULL;
}

/* The graph may go before the profile, which has its layers' names; and a profile that finds no memory leaves
   the one that there is as it was. */
static void profiles_last(void)
{
    static char memory[1 << 20];
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = sizeof memory });
    dml_profile_row rows[64];
    CHECK_INT(dml_profile_begin(context, 10), DML_OK);
    for (int again = 0; again < 2; again++) {
        dml_graph *graph = dml_graph_create(context);
        dml_trainer *trainer = make_trainer_on(graph);
        train(trainer);
        dml_trainer_destroy(trainer);
        dml_graph_destroy(graph);
    }
    for (int times = 0; times < 20; times++) { /* what it had taken by then it gives back */
        CHECK_INT(dml_profile_begin(context, 100000), DML_ERROR_MEMORY);
        dml_clear_error(context);
    }
    const int count = dml_profile_rows(context, rows, 64);
    const dml_profile_row *row = row_of(rows, count, "dense_1", "forward");
    CHECK(row && row->calls == 2 * STEPS);
    CHECK_INT(dml_profile_begin(context, 10), DML_OK);
    dml_close(context);
}

/* ---- a backend's own events ---- */

/* The file that it writes, and removes again. */
static const char *written_by(dml_context *context)
{
    static char text[1 << 16];
    char path[512];
    const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : getenv("TEMP");
    snprintf(path, sizeof path, "%s/dml_profile_test.%ld", folder ? folder : "/tmp", (long)getpid());
    CHECK_MESSAGE(dml_profile_write(context, path) == DML_OK, "%s", dml_error(context));
    FILE *file = fopen(path, "r");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file) fclose(file);
    remove(path);
    return text;
}

static void an_event(dml_context *context, const char *node, const char *pass, const char *what,
                     double seconds)
{
    dml_device *device = &context->device;
    device->node = node, device->pass = pass;
    dml_device_end_event(device, dml_device_begin_event(device, what), 0, seconds);
    device->node = NULL;
}

/* By the last byte of the longest names, too; what one layer takes is added up. */
static void rows_are_told_apart(void)
{
    char name[2][DML_NAME_BYTES];
    for (int i = 0; i < 2; i++) memset(name[i], 'n', DML_NAME_BYTES - 1), name[i][DML_NAME_BYTES - 1] = '\0';
    name[1][DML_NAME_BYTES - 2] = 'b';
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_profile_row rows[8];
    CHECK_INT(dml_profile_begin(context, -1), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_profile_begin(context, 8), DML_OK);
    CHECK(context->inside == 0);
    an_event(context, name[0], "forward", "k", 1);
    an_event(context, name[1], "forward", "k", 2);
    an_event(context, name[0], "forward", "k", 4);
    an_event(context, name[0], "backward", "k", 16);
    an_event(context, name[0], "forward", "l", 32);
    an_event(context, NULL, NULL, "k", 64);
    const double want[] = { 64, 32, 16, 5, 2 };
    CHECK_INT(dml_profile_rows(context, rows, 8), 5);
    CHECK(context->inside == 0);
    for (int i = 0; i < 5; i++) CHECK(rows[i].seconds == want[i] && rows[i].calls == 1 + (i == 3));
    CHECK_STRING(rows[3].node, name[0]);
    CHECK_STRING(rows[4].node, name[1]);
    CHECK_STRING(rows[0].node, "");
    CHECK_STRING(rows[0].pass, "step");
    dml_close(context);
}

/* More than there are rows for. */
static void the_last_row_is_all_the_rest(void)
{
    enum { ROWS_AT_MOST = 1024, NAMES = ROWS_AT_MOST + 100 };
    static dml_profile_row rows[NAMES];
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    CHECK_INT(dml_profile_begin(context, 1), DML_OK);
    for (int i = 0; i < NAMES; i++) {
        char name[24];
        snprintf(name, sizeof name, "layer %d", i);
        an_event(context, name, "forward", "k", 1);
    }
    CHECK_INT(dml_profile_rows(context, rows, NAMES), ROWS_AT_MOST);
    CHECK_STRING(rows[0].what, "all the rest");
    CHECK_STRING(rows[0].node, "");
    CHECK_STRING(rows[0].pass, "step");
    CHECK_INT(rows[0].calls, NAMES - ROWS_AT_MOST + 1);
    dml_close(context);
}

/* A line for each pass, and times to the nanosecond. */
static void the_timeline_of_events(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    CHECK_INT(dml_profile_begin(context, 8), DML_OK);
    an_event(context, "a \"name\"\n", "forward", "k", 1.7e-9);
    an_event(context, "second", "backward", "k", 12.3456789);
    an_event(context, NULL, NULL, "third", -1);
    const char *text = written_by(context);
    CHECK(context->inside == 0);
    CHECK_CONTAINS(text, "\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"forward\"}");
    CHECK_CONTAINS(text, "\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"backward\"}");
    CHECK_CONTAINS(text, "\"tid\":2,\"name\":\"thread_name\",\"args\":{\"name\":\"step\"}");
    CHECK_CONTAINS(text, "\"tid\":0,\"name\":\"a \\\"name\\\"\\u000a\",\"ts\":0.000,\"dur\":0.002");
    CHECK_CONTAINS(text, "\"tid\":1,\"name\":\"second\",\"ts\":0.000,\"dur\":12345678.900");
    CHECK_CONTAINS(text, "\"tid\":2,\"name\":\"third\",\"ts\":0.000,\"dur\":0.000");
    CHECK_CONTAINS(text, "\"what\":\"third\"");
    CHECK_CONTAINS(text, "\"left_out\":0}");
    dml_profile_end(context);
    CHECK(context->inside == 0);
    dml_close(context);
}

/* The longest that a graph takes, of characters of two bytes. */
static void long_names_stay_whole(void)
{
    enum { SCOPE = DML_NAME_BYTES - 1 - 7 };
    char name[DML_NAME_BYTES];
    for (int i = 0; i < SCOPE; i += 2) memcpy(name + i, "\xC3\xA9", 3);
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    CHECK_INT(dml_push_scope(graph, "%s", name), DML_OK);
    strcpy(name + SCOPE, ".tanh_1");
    dml_node *y = dml_tanh(dml_input(graph, "x", DML_F32, 6));
    dml_program *program = dml_compile(y, &(dml_program_options){ .batch = 1 });
    const float in[6] = { 0 };
    float out[6];
    dml_profile_row row;
    CHECK_INT(dml_profile_begin(context, 8), DML_OK);
    CHECK_INT(dml_program_run(program, 1, DML_INPUTS(in), out), DML_OK);
    CHECK_INT(dml_profile_rows(context, &row, 1), 1);
    CHECK_STRING(row.node, name);
    CHECK_CONTAINS(written_by(context), name);
    dml_close(context);
}

/* The driver's threads are the parent's. */
static void a_forked_device_is_left_alone(void)
{
    dml_context *context = open_here(NULL);
    dml_trainer *trainer = make_trainer(context);
    dml_profile_row rows[64];
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    train(trainer);
    const int count = dml_profile_rows(context, rows, 64);
    CHECK(count > 6);
    if (!context->device.host_memory) {
        context->process ^= 1;
        CHECK_INT(dml_profile_rows(context, rows, 64), 0);
        CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "forked");
        dml_clear_error(context);
        CHECK_INT(dml_profile_write(context, "/nowhere/at/all"), DML_ERROR_STATE);
        CHECK_INT(dml_profile_begin(context, 0), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "forked");
        context->process ^= 1;
        dml_clear_error(context);
        CHECK_INT(dml_profile_rows(context, rows, 64), count); /* the parent's goes on */
        context->process ^= 1;
        dml_profile_end(context);
        CHECK(!context->device.profile);
        context->process ^= 1;
        dml_clear_error(context);
    }
    dml_close(context);
}
EACH_BACKEND(a_forked_device_is_left_alone)

/* Values that are kept in 16 bits are their layers', not the step's. */
static void conversions_are_their_layers(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 6), *t = dml_input(graph, "t", DML_F32, 2);
    dml_node *h = dml_tanh(dml_dense(dml_tanh(dml_dense(x, 5)), 4));
    dml_trainer_options options = { .batch = ROWS, .optimizer = dml_sgd(0.1f, 0.0f), .dtype = DML_BF16 };
    dml_trainer *trainer = dml_trainer_create(dml_mean_squared_error(dml_dense(h, 2), t), &options);
    dml_profile_row rows[64];
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    train(trainer);
    const int count = dml_profile_rows(context, rows, 64);
    int narrowed = 0, widened = 0;
    CHECK(count > 0 && count < 64);
    for (int i = 0; i < count; i++) {
        const bool narrows = strcmp(rows[i].what, "half_narrow") == 0;
        if (!narrows && strcmp(rows[i].what, "half_widen") != 0) continue;
        *(narrows ? &narrowed : &widened) += 1;
        CHECK_MESSAGE(strncmp(rows[i].node, "tanh_", 5) == 0, "%s of '%s'", rows[i].what, rows[i].node);
        CHECK_STRING(rows[i].pass, narrows ? "forward" : "backward");
    }
    CHECK_INT(narrowed, widened);
    CHECK(context->device.host_memory ? narrowed == 0 : narrowed > 0);
    dml_close(context);
}
EACH_BACKEND(conversions_are_their_layers)

/* Each layer's name is among the rows, as often as it ran, whatever the device calls its parts. */
static void layers_are_told_apart(void)
{
    static const struct {
        const char *node, *pass;
    } wanted[] = { { "dense_1", "forward" }, { "dense_1", "backward" }, { "tanh_1", "forward" },
                   { "tanh_1", "backward" }, { "dense_2", "forward" },  { "dense_2", "backward" } };
    dml_context *context = open_here(NULL);
    dml_trainer *trainer = make_trainer(context);
    dml_profile_row rows[64];
    CHECK_INT(dml_profile_rows(context, rows, 64), 0); /* nobody asked */
    train(trainer);
    CHECK_INT(dml_profile_begin(context, 0), DML_OK);
    CHECK_INT(dml_profile_rows(context, rows, 64), 0);
    train(trainer);
    const int count = dml_profile_rows(context, rows, 64);
    CHECK(count > 6 && count < 64);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const dml_profile_row *row = row_of(rows, count, wanted[i].node, wanted[i].pass);
        CHECK_MESSAGE(row && row->calls % STEPS == 0 && row->calls > 0 && row->seconds >= 0 && row->what[0],
                      "%s %s", wanted[i].node, wanted[i].pass);
    }
    bool updated = false;
    for (int i = 0; i < count; i++) {
        updated = updated || (strcmp(rows[i].what, "sgd_update") == 0 && strcmp(rows[i].pass, "step") == 0 &&
                              rows[i].calls == STEPS);
        if (i > 0) CHECK(rows[i - 1].seconds >= rows[i].seconds);
    }
    CHECK(updated);
    dml_profile_row few[2];
    CHECK_INT(dml_profile_rows(context, few, 2), count);
    CHECK_INT(dml_profile_rows(context, NULL, 0), count);
    CHECK(few[0].node == rows[0].node && few[1].seconds == rows[1].seconds);
    CHECK_INT(dml_profile_begin(context, 0), DML_OK); /* anew */
    CHECK_INT(dml_profile_rows(context, rows, 64), 0);
    dml_profile_end(context);
    train(trainer);
    CHECK_INT(dml_profile_rows(context, rows, 64), 0);
    CHECK_STRING(dml_error(context), "");
    CHECK_INT(dml_profile_begin(context, 0), DML_OK); /* closing ends it too */
    train(trainer);
    dml_close(context);
}
EACH_BACKEND(layers_are_told_apart)

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text++) count++;
    return count;
}

/* The first events, in order, and how many there was no room for. */
static void the_timeline(void)
{
    enum { KEPT = 7 };
    dml_context *context = open_here(NULL);
    dml_trainer *trainer = make_trainer(context);
    CHECK_INT(dml_profile_write(context, "unused"), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "dml_profile_begin");
    dml_clear_error(context);
    CHECK_INT(dml_profile_begin(context, KEPT), DML_OK);
    train(trainer);
    dml_profile_row rows[64];
    const int count = dml_profile_rows(context, rows, 64);
    int64_t calls = 0;
    for (int i = 0; i < count; i++) calls += rows[i].calls;
    const char *text = written_by(context);
    char left_out[64];
    snprintf(left_out, sizeof left_out, "\"left_out\":%lld", (long long)(calls - KEPT));
    CHECK_CONTAINS(text, left_out);
    CHECK_INT(count_of(text, "\"ph\":\"X\""), KEPT);
    CHECK_INT(count_of(text, "\"dur\":"), KEPT);
    CHECK_CONTAINS(text, "\"name\":\"dense_1\"");
    CHECK_INT(count_of(text, "{"), count_of(text, "}"));
    const char *first = strstr(text, "\"ts\":");
    CHECK(first && strtod(first + 5, NULL) < 60e6); /* the device's clock is brought to the host's */
    CHECK_INT(dml_profile_write(context, "/nowhere/at/all"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(context), "/nowhere/at/all");
    dml_close(context);
}
EACH_BACKEND(the_timeline)

static void without_memory_or_context(void)
{
    dml_profile_row row;
    CHECK_INT(dml_profile_begin(NULL, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_profile_rows(NULL, &row, 1), 0);
    CHECK_INT(dml_profile_write(NULL, "x"), DML_ERROR_ARGUMENT);
    dml_profile_end(NULL);
    static char memory[65536];
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = sizeof memory });
    CHECK_INT(dml_profile_begin(context, 0), DML_ERROR_MEMORY);
    CHECK_CONTAINS(dml_error(context), "65536 events");
    CHECK_INT(dml_profile_rows(context, &row, 1), 0);
    dml_close(context);
    context = dml_open(&(dml_options){ .device = "cpu:7" });
    CHECK_INT(dml_profile_begin(context, 0), DML_ERROR_DEVICE);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(layers_are_told_apart);
    RUN_EACH(conversions_are_their_layers);
    RUN_EACH(the_timeline);
    RUN_EACH(a_forked_device_is_left_alone);
    RUN(profiles_last);
    RUN(rows_are_told_apart);
    RUN(long_names_stay_whole);
    RUN(the_last_row_is_all_the_rest);
    RUN(the_timeline_of_events);
    RUN(without_memory_or_context);
    return test_report("device/profile");
}
