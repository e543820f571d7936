/* Runs plot (of the folder that DML_BUILD names, else of build/) on logs written here. */
#define _GNU_SOURCE

#include "../test.h"

#include <sys/wait.h>
#include <unistd.h>

static char build[512] = "build";

typedef struct result {
    int status;
    char out[1 << 18], err[4096];
} result;

static const char *in_build(const char *name)
{
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", build, name);
    return path;
}

static void read_all(const char *path, char *text, size_t size)
{
    text[0] = '\0';
    FILE *file = fopen(path, "r");
    if (!file) return;
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

/* Runs plot with the arguments, words of a shell command, and its standard output going to a file. */
static const result *plot_to(const char *output, const char *arguments)
{
    static result r;
    char command[2048];
    snprintf(command, sizeof command, "'%s/plot' %s >'%s' 2>'%s'", build, arguments, output,
             in_build("plot_test.err"));
    const int status = system(command);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_all(in_build("plot_test.err"), r.err, sizeof r.err);
    return &r;
}

static const result *plot(const char *arguments)
{
    result *r = (result *)plot_to(in_build("plot_test.out"), arguments);
    read_all(in_build("plot_test.out"), r->out, sizeof r->out);
    return r;
}

/* Runs plot on a log with this text; `options` come before it. */
static const result *plot_log(const char *options, const char *log)
{
    FILE *file = fopen(in_build("plot_test.jsonl"), "w");
    CHECK(file && fputs(log, file) >= 0);
    if (file) fclose(file);
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "%s '%s'", options, in_build("plot_test.jsonl"));
    return plot(arguments);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

#define LINE(step, loss)                                                                                     \
    "{\"step\": " step ", \"epoch\": 1, \"loss\": " loss ", \"lr\": 0.1, \"samples_per_s\": 1e3}\n"
#define LOSS(step, loss) "{\"step\": " step ", \"loss\": " loss "}\n"
#define LAST "{\"test_accuracy\": 0.9812, \"correct\": 9812, \"total\": 10000}\n"

static void a_log_becomes_a_picture(void)
{
    const result *r =
        plot_log("--title 'a <b> & \"c\"' --smooth 1", LINE("0", "2.5") LINE("100", "0.5") LAST);
    CHECK_INT(r->status, 0);
    CHECK_STRING(r->err, "");
    CHECK(strncmp(r->out, "<svg ", 5) == 0);
    CHECK_CONTAINS(r->out, "</svg>\n");
    CHECK_CONTAINS(r->out, ">a &lt;b&gt; &amp; &quot;c&quot;</text>");
    CHECK_CONTAINS(r->out, "plot_test: 98.12 % test accuracy (9812/10000)");
    CHECK_CONTAINS(r->out, ">samples/s</text>");
    CHECK_CONTAINS(r->out, "d=\"M70.0 46.0L836.0 262.0\""); /* from 2.5, the top, to 0.5, a fifth of it */
    CHECK_INT(count_of(r->out, "nan"), 0);
}

static void odd_logs_are_drawn_too(void)
{
    static const struct {
        const char *options, *log;
    } cases[] = {
        { "", LINE("5", "1") },                         /* one point */
        { "", LINE("5", "0") LINE("5", "0") },          /* no range at all */
        { "", LINE("1", "-1") LINE("2", "-3") },        /* below zero */
        { "", LINE("1", "1e300") LINE("2", "1e-300") }, /* the ends of a double */
        { "--log-y", LINE("1", "1e300") LINE("2", "1e-300") },
        { "--log-y", LINE("1", "0.5") LINE("2", "0") LINE("3", "0.6") },
        { "--log-y", LINE("1", "0.5") LINE("2", "0.5") },
        { "", LINE("1", "1") LINE("2", "null") LINE("3", "1") }, /* a gap */
        { "", LINE("1", "1") LINE("2", "NaN") LINE("3", "Infinity") LINE("4", "-Infinity") LINE("5", "1") },
        { "", "{}\n\n" LINE("1", "1") "{\"step\": 2}" }, /* lines that say little; no last newline */
        { "", "{\"step\":1,\"loss\":1,\"more\":[{\"a\":[]},\"\\\"}\",true]}\r\n" },
        { "", "{\"loss\":-0.5e+0,\"step\":1E0}" },
        { "--smooth 50", LINE("9", "1") LINE("3", "2") }, /* steps that go back */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const result *r = plot_log(cases[i].options, cases[i].log);
        CHECK_MESSAGE(r->status == 0 && !r->err[0], "case %zu: %s", i, r->err);
        CHECK_CONTAINS(r->out, "</svg>\n");
        CHECK_INT(count_of(r->out, "nan") + count_of(r->out, "inf"), 0);
    }
}

static void logarithmic_steps_have_their_names(void)
{
    const result *r =
        plot_log("--log-x --log-y --smooth 1 --x-name bytes --y-name seconds",
                 "{\"step\":1,\"loss\":1}\n{\"step\":10,\"loss\":10}\n{\"step\":100,\"loss\":100}\n");
    CHECK_INT(r->status, 0);
    CHECK_CONTAINS(r->out, ">bytes</text>");
    CHECK_CONTAINS(r->out, ">seconds</text>");
    CHECK_CONTAINS(r->out, "d=\"M70.0 284.0L453.0 149.0L836.0 14.0\""); /* straight, as a power is */
    CHECK_INT(plot_log("--log-x", LINE("0", "1"))->status, 1);
}

/* How many texts are left of the axis of losses. */
static int loss_ticks(const char *picture)
{
    return count_of(picture, "text-anchor=\"end\">") -
           count_of(picture, "class=\"label\" text-anchor=\"end\">");
}

static void logarithmic_ticks_say_where_they_are(void)
{
    const result *r = plot_log("--log-y", LOSS("1", "1e-13") LOSS("2", "1e-9"));
    CHECK_CONTAINS(r->out, ">1e-10</text>");
    CHECK_CONTAINS(r->out, ">1e-12</text>");
    CHECK_INT(count_of(r->out, ">0</text>"), 0);
    r = plot_log("--log-y", LOSS("1", "0.21") LOSS("2", "0.34")); /* no 1, 2 or 5 times a power between */
    CHECK_CONTAINS(r->out, ">0.25</text>");
    CHECK(loss_ticks(r->out) >= 2);
    CHECK(loss_ticks(plot_log("--log-y", LOSS("1", "0.4") LOSS("2", "0.6"))->out) >= 2); /* 0.5 alone */
    CHECK_INT(loss_ticks(plot_log("--log-y", LOSS("1", "0.2") LOSS("2", "0.5"))->out), 2);
}

static void what_no_axis_holds(void)
{
    static const char *const logs[] = { LOSS("1e308", "1") LOSS("-1e308", "1"),
                                        LOSS("1", "1e308") LOSS("2", "-1e308"),
                                        LOSS("1", "1") LINE("2", "1e301") };
    for (int i = 0; i < 3; i++) {
        const result *r = plot_log("", logs[i]);
        CHECK_INT(r->status, 1);
        CHECK_CONTAINS(r->err, "plot_test.jsonl has a number beyond 1e300 in step ");
    }
}

static void many_points_make_a_small_file(void)
{
    FILE *file = fopen(in_build("plot_test.long"), "w");
    unsigned state = 1;
    for (int i = 0; file && i < 100000; i++)
        fprintf(file, "{\"step\": %d, \"loss\": %u}\n", i, test_random(&state) % 1000);
    if (file) fclose(file);
    char arguments[1200];
    snprintf(arguments, sizeof arguments, "--label 'run 1' '%s' --label 'run 2' '%s'",
             in_build("plot_test.long"), in_build("plot_test.long"));
    const result *r = plot(arguments);
    CHECK_INT(r->status, 0);
    CHECK(strlen(r->out) > 1000 && strlen(r->out) < 100000);
    CHECK_CONTAINS(r->out, ">run 2</text>");
    CHECK_INT(count_of(r->out, "samples/s"), 0); /* the logs don't tell it */
    remove(in_build("plot_test.long"));
}

static void bad_lines_are_named(void)
{
    static const char *const bad[] = {
        "x",
        "[1]",
        "{\"step\": 1",
        "{\"step\": 1}}",
        "{\"step\": 1,}",
        "{\"step\" 1}",
        "{step: 1}",
        "{\"step\": }",
        "{\"step\": nan}",
        "{\"step\": inf}",
        "{\"step\": 0x10}",
        "{\"step\": 01}",
        "{\"step\": .5}",
        "{\"step\": 1e999}",
        "{\"step: 1}",
        "{\"a\": \"\\",
        "{\"a\": [1 2]}",
        "{\"a\": "
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"
        "]]]]]]]]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char log[512];
        snprintf(log, sizeof log, LINE("1", "1") "\n%s\n" LINE("2", "1"), bad[i]);
        const result *r = plot_log("", log);
        CHECK_INT(r->status, 1);
        CHECK_CONTAINS(r->err, "plot_test.jsonl:3: ");
        CHECK_INT(count_of(r->err, "\n"), 1);
        CHECK_STRING(r->out, "");
    }
}

static void failures_leave_no_picture(void)
{
    char arguments[1300];
    remove(in_build("plot_test.svg"));
    snprintf(arguments, sizeof arguments, "-o '%s' /no/such/log", in_build("plot_test.svg"));
    const result *r = plot(arguments);
    CHECK_INT(r->status, 1);
    CHECK_CONTAINS(r->err, "plot: can't open /no/such/log: ");
    FILE *file = fopen(in_build("plot_test.svg"), "r");
    CHECK(!file);
    if (file) fclose(file);

    r = plot_log("", LAST);
    CHECK_INT(r->status, 1);
    CHECK_CONTAINS(r->err, "plot_test.jsonl has no line with a \"step\" and a \"loss\"");
    r = plot_log("--log-y", LINE("1", "0"));
    CHECK_INT(r->status, 1);
    CHECK_CONTAINS(r->err, "leave --log-y out");
    r = plot_log("-o /no/such/folder/a.svg", LINE("1", "1"));
    CHECK_INT(r->status, 1);
    CHECK_CONTAINS(r->err, "plot: can't write /no/such/folder/a.svg: ");
    if (access("/dev/full", W_OK) == 0) {
        r = plot_log("-o /dev/full", LINE("1", "1"));
        CHECK_INT(r->status, 1);
        CHECK_CONTAINS(r->err, "plot: can't write /dev/full: ");
        plot_log("", LINE("1", "1"));
        snprintf(arguments, sizeof arguments, "'%s'", in_build("plot_test.jsonl"));
        const char *const lost[] = { "--help", "--version", arguments };
        for (int i = 0; i < 3; i++) {
            r = plot_to("/dev/full", lost[i]);
            CHECK_INT(r->status, 1);
            CHECK_CONTAINS(r->err, "No space left on device");
            CHECK_INT(count_of(r->err, "\n"), 1);
        }
    }
}

static void usage_is_told(void)
{
    static const char *const wrong[] = {
        "", "--nonsense x", "-o", "--smooth 0 x", "--smooth two x", "--label x", "a b c d e f g h i j k l m"
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const result *r = plot(wrong[i]);
        CHECK_INT(r->status, 2);
        CHECK_INT(count_of(r->err, "\n"), 1);
    }
    CHECK_INT(plot("--help")->status, 0);
    CHECK_CONTAINS(plot("--help")->out, "usage: plot");
}

int main(void)
{
    if (getenv("DML_BUILD")) snprintf(build, sizeof build, "%s", getenv("DML_BUILD"));
    RUN(a_log_becomes_a_picture);
    RUN(odd_logs_are_drawn_too);
    RUN(logarithmic_steps_have_their_names);
    RUN(logarithmic_ticks_say_where_they_are);
    RUN(what_no_axis_holds);
    RUN(many_points_make_a_small_file);
    RUN(bad_lines_are_named);
    RUN(failures_leave_no_picture);
    RUN(usage_is_told);
    static const char *const files[] = { "plot_test.out", "plot_test.err", "plot_test.jsonl",
                                         "plot_test.svg" };
    for (int i = 0; i < 4; i++) remove(in_build(files[i]));
    return test_report("tools/plot");
}
