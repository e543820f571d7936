#define _GNU_SOURCE

#include "train/progress.h"

#include "../test.h"

#include <unistd.h>

static double time_now;

static double clock_of_test(void *user)
{
    (void)user;
    return time_now;
}

/* A progress line of 100 steps on a file that plays a terminal of `width` columns. */
static dml_progress begin(FILE *file, int width, int64_t total)
{
    dml_progress_options options = { 0 };
    options.total = total;
    options.label = "lenet";
    options.terminal = 1;
    options.width = width;
    options.seconds = clock_of_test;
    dml_progress progress;
    time_now = 100;
    dml_progress_begin(&progress, file, &options);
    return progress;
}

/* What was printed since the last call. */
static char *news(FILE *file)
{
    static char text[1 << 16];
    fflush(file);
    rewind(file);
    const size_t count = fread(text, 1, sizeof text - 1, file);
    text[count] = '\0';
    rewind(file);
    if (ftruncate(fileno(file), 0) != 0) CHECK(false);
    return text;
}

static void a_bar_tells_all(void)
{
    FILE *file = test_file();
    dml_progress progress = begin(file, 80, 100);
    time_now = 102;
    dml_progress_update(&progress, 25, 0.12345, 5000);
    CHECK_STRING(news(file),
                 "\rlenet   25 % [======>                 ]  loss 0.1235  2500 samples/s  0:06 left");
    dml_progress_end(&progress);
    news(file);
    progress = begin(file, 100, 0); /* how many steps there will be isn't known */
    time_now = 101;
    dml_progress_update(&progress, 25, 2, 50);
    CHECK_STRING(news(file), "\rlenet  step 25  loss 2.0000  50.0 samples/s");
    fclose(file);
}

static void it_is_redrawn_ten_times_a_second(void)
{
    FILE *file = test_file();
    dml_progress progress = begin(file, 80, 1000);
    int drawn = 0;
    for (int i = 0; i < 1000; i++) {
        time_now = 100 + 0.002 * i;
        dml_progress_update(&progress, i, 1, i);
        drawn += news(file)[0] != '\0';
    }
    CHECK(drawn >= 19 && drawn <= 20);
    fclose(file);
}

/* The speed is that of the last seconds, not of the whole run. */
static void speed_follows_the_run(void)
{
    FILE *file = test_file();
    dml_progress progress = begin(file, 80, 100000);
    int64_t samples = 0;
    for (int i = 1; i <= 300; i++) {
        time_now = 100 + 0.1 * i;
        samples += i <= 150 ? 100 : 10;
        news(file);
        dml_progress_update(&progress, i, 1, samples);
        if (i == 150) CHECK_CONTAINS(news(file), " 1000 samples/s");
        if (i == 300) CHECK_CONTAINS(news(file), " 100 samples/s");
    }
    fclose(file);
}

static void a_shorter_line_wipes_the_longer(void)
{
    FILE *file = test_file();
    dml_progress progress = begin(file, 200, 0);
    time_now = 101;
    dml_progress_update(&progress, 1, 123456.789, 1);
    const size_t before = strlen(news(file));
    time_now = 102;
    dml_progress_update(&progress, 2, 1, 2);
    CHECK_INT(strlen(news(file)), before);
    dml_progress_line(&progress, "epoch %d", 3);
    const char *text = news(file), *line = strrchr(text, '\r');
    CHECK(text[0] == '\r' && line && line - text >= (long)strlen("lenet  step 2  loss 1  1.0 samples/s"));
    if (line) CHECK_STRING(line, "\repoch 3\n");
    dml_progress_update(&progress, 3, 1, 3); /* at once, though it was drawn just now */
    CHECK_CONTAINS(news(file), "\rlenet  step 3");
    dml_progress_end(&progress);
    text = news(file);
    CHECK(text[0] == '\r' && strspn(text + 1, " ") == strlen(text) - 2 && text[strlen(text) - 1] == '\r');
    dml_progress_update(&progress, 4, 1, 4);
    dml_progress_end(&progress);
    CHECK_STRING(news(file), "");
    fclose(file);
}

static void it_fits_every_width(void)
{
    for (int width = 1; width < 200; width++) {
        FILE *file = test_file();
        dml_progress progress = begin(file, width, 100);
        time_now = 1e6;
        dml_progress_update(&progress, 1, -1.234e30, 1234567);
        const char *text = news(file);
        CHECK(text[0] == '\r');
        CHECK_MESSAGE((int)strlen(text + 1) < width, "%d columns: \"%s\"", width, text + 1);
        CHECK(width < 6 || strstr(text, "1 %"));
        fclose(file);
    }
}

static void odd_numbers_are_shown_too(void)
{
    static const struct {
        int64_t step;
        double loss;
        int64_t samples;
        double seconds;
        const char *says;
    } cases[] = {
        { 0, 2.3, 0, 0, "  0 %" },       { 50, 1, 0, 0, " 50 %" },        { 100, 1, 100, 1, "100 %" },
        { 100, 1, 100, 1, "====]" },     { 101, 1, 101, 1, "100 %" },     { -1, 1, -1, 1, "  0 %" },
        { 1, 1, 1, 60, "1:39:00 left" }, { 1, 1, 1, 1e7, "days left" },   { 1, HUGE_VAL, 1, 1, "loss inf" },
        { 1, NAN, 1, 1, "nan" },         { 99, 1, 1, 1e-9, "0:00 left" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *file = test_file();
        dml_progress progress = begin(file, 100, 100);
        time_now = 100 + cases[i].seconds;
        dml_progress_update(&progress, cases[i].step, cases[i].loss, cases[i].samples);
        CHECK_CONTAINS(news(file), cases[i].says);
        fclose(file);
    }
}

static void a_file_gets_lines_only(void)
{
    FILE *file = test_file();
    dml_progress progress;
    unsetenv("DML_TERMINAL");
    dml_progress_begin(&progress, file, NULL);
    dml_progress_update(&progress, 1, 1, 1);
    CHECK_STRING(news(file), "");
    dml_progress_line(&progress, "%d: %s", 1, "one");
    dml_progress_end(&progress);
    CHECK_STRING(news(file), "1: one\n");
    fclose(file);
    dml_progress_begin(&progress, NULL, NULL); /* and a rank without a file has nothing to say */
    dml_progress_update(&progress, 1, 1, 1);
    dml_progress_line(&progress, "%d", 1);
    dml_progress_end(&progress);
}

/* DML_TERMINAL names descriptors. */
static void a_launcher_can_pass_a_terminal_on(void)
{
    FILE *file = test_file();
    const int descriptor = fileno(file);
    if (descriptor > 9) {
        SKIP("the file's descriptor is %d, above 9", descriptor);
        fclose(file);
        return;
    }
    char digits[16];
    snprintf(digits, sizeof digits, "0%d", descriptor);
    dml_progress progress;
    for (int mine = 0; mine < 2; mine++) {
        setenv("DML_TERMINAL", mine ? digits : "0", 1);
        dml_progress_begin(&progress, file, NULL);
        dml_progress_update(&progress, 1, 1, 1);
        CHECK_INT(news(file)[0] != '\0', mine);
    }
    setenv("COLUMNS", "10", 1);
    dml_progress_begin(&progress, file, NULL);
    dml_progress_update(&progress, 1, 1, 1);
    CHECK_STRING(news(file), "\rstep 1");
    unsetenv("COLUMNS");
    unsetenv("DML_TERMINAL");
    fclose(file);
}

int main(void)
{
    RUN(a_bar_tells_all);
    RUN(it_is_redrawn_ten_times_a_second);
    RUN(speed_follows_the_run);
    RUN(a_shorter_line_wipes_the_longer);
    RUN(it_fits_every_width);
    RUN(odd_numbers_are_shown_too);
    RUN(a_file_gets_lines_only);
    RUN(a_launcher_can_pass_a_terminal_on);
    return test_report("train/progress");
}
