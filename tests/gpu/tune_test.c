/* Which tiles a launch takes: the rule, the measured table, and the file that it is kept in. */
#include "gpu/tune.h"

#include "../test.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEASURED = 34 }; /* of the pairs of classes, those whose products are small enough */
static char path[] = "/tmp/dml-tune-XXXXXX";

/* Small tiles where there are few rows or columns, or fewer tiles than units. */
static void the_rule(void)
{
    static const struct {
        int units;
        size_t size[2]; /* columns, rows */
        dml__tile_shape want;
        bool is_one;
    } cases[] = {
        { 1, { 100, 100 }, DML__TILE_128x128, true },     { 1, { 100, 100 }, DML__TILE_64x64, false },
        { 1, { 16, 100 }, DML__TILE_64x16, true },        { 1, { 100, 16 }, DML__TILE_16x64, true },
        { 1, { 6, 10 }, DML__TILE_16x16, true },          { 1, { 64, 64 }, DML__TILE_64x64, true },
        { 4, { 128, 128 }, DML__TILE_64x64, true },       { 16, { 128, 128 }, DML__TILE_64x16, true },
        { 64, { 128, 128 }, DML__TILE_16x16, true },      { 132, { 6, 50176 }, DML__TILE_64x16, true },
        { 132, { 4096, 4096 }, DML__TILE_128x128, true }, { 132, { 4096, 4096 }, DML__TILE_64x64, false },
        { 1, { 17, 17 }, DML__TILE_64x64, true },         { 3, { 64, 192 }, DML__TILE_64x64, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dml__choice choice = { .units = cases[i].units };
        CHECK_INT(dml__choose_tile(&choice, cases[i].size, cases[i].is_one), cases[i].want);
    }
    static const int classes[][2] = { { 1, 0 },    { 16, 0 },    { 17, 1 },    { 64, 1 },
                                      { 1024, 3 }, { 16384, 5 }, { 16385, 6 }, { 1 << 30, 6 } };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        CHECK_INT(dml__tune_class((size_t)classes[i][0]), classes[i][1]);
}

/* A device on which 16 x 64 is best for 256 columns, and all are alike otherwise. */
static int asked, fails_after = 1000;
static double fake_seconds(void *argument, const char *kernel, int columns, int rows)
{
    (void)argument, (void)rows;
    if (asked++ >= fails_after) return -1;
    return columns == 256 && strcmp(kernel, "gemm_16x64") == 0 ? 0.5 : 1;
}

/* As a device that opens does. `note` is what was said of the file. */
static const char *note;
static bool tune(dml__choice *choice, const char *device)
{
    char file[DML__TUNE_PATH];
    if (dml__tune_is_settled(choice, device, file, &note)) return true;
    return dml__tune_with(choice, device, file, fake_seconds, NULL);
}

static dml__tile_shape chosen(const dml__choice *choice, size_t columns, size_t rows)
{
    const size_t size[2] = { columns, rows };
    return dml__choose_tile(choice, size, true);
}

static void measured_once_and_kept(void)
{
    setenv("DML_TUNE", path, 1);
    dml__choice first = { .units = 1 }, second = { .units = 1 }, other = { .units = 1 };
    CHECK(tune(&first, "Card 1") && first.measured);
    CHECK(asked > MEASURED);
    asked = 0;
    CHECK(tune(&second, "Card 1") && second.measured);
    CHECK_INT(asked, 0);
    CHECK(memcmp(first.tile, second.tile, sizeof first.tile) == 0);
    CHECK_INT(chosen(&second, 200, 4000), DML__TILE_16x64);
    CHECK_INT(chosen(&second, 65, 1), DML__TILE_16x64);
    CHECK_INT(chosen(&second, 64, 1000), DML__TILE_128x64); /* as the rule says */
    CHECK_INT(chosen(&second, 5, 1000), DML__TILE_64x16);
    CHECK(tune(&other, "Card 11")); /* another device */
    CHECK(asked > MEASURED);
}

static void told_not_to(void)
{
    dml__choice choice = { .units = 1 };
    asked = 0;
    setenv("DML_TUNE", "0", 1);
    CHECK(tune(&choice, "Card 1"));
    CHECK(!choice.measured);
    setenv("DML_TUNE", "/nowhere/to/be/kept", 1);
    CHECK(tune(&choice, "Card 1"));
    CHECK(!choice.measured);
    CHECK_INT(asked, 0);
}

static void put(const char *text)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static const char *get(void)
{
    static char text[2000];
    FILE *file = fopen(path, "r");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file) fclose(file);
    return text;
}

#define SHAPES "0000000000000000000000000000000000000000000000000"
#define TITLE "dml's tiles, by device: 2\n"

/* What isn't whole is told, measured again, and gone; other devices' lines stay. */
static void damage_is_measured_again(void)
{
    static const char *const lines[] = {
        "0123 Card 2\n",     "9999999999999999999999999999999999999999999999999 Card 2\n",
        SHAPES " Card 2",    "\n",
        SHAPES "0 Card 2\n", SHAPES "\n",
        SHAPES " \n",        ""
    };
    setenv("DML_TUNE", path, 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        dml__choice choice = { .units = 1 }, again = { .units = 1 };
        char text[300];
        snprintf(text, sizeof text, TITLE SHAPES " Card 9\n%s", lines[i]);
        put(text);
        asked = 0;
        CHECK(tune(&choice, "Card 2") && choice.measured);
        CHECK(asked > MEASURED);
        CHECK_INT(note != NULL, *lines[i] != '\0');
        if (note) CHECK_CONTAINS(note, "damaged");
        CHECK(strncmp(get(), TITLE SHAPES " Card 9\n", strlen(TITLE SHAPES " Card 9\n")) == 0);
        CHECK_INT(strlen(get()), strlen(TITLE SHAPES " Card 9\n" SHAPES " Card 2\n"));
        asked = 0;
        CHECK(tune(&again, "Card 2") && again.measured && !note);
        CHECK_INT(asked, 0);
    }
}

/* Nothing is taken from it, and nothing is done to it. */
static void a_file_of_others_is_left_alone(void)
{
    static const char *const texts[] = { "Dear Anna,\n", SHAPES " Card 2\n", "\n",
                                         "dml's tiles: 2\n" SHAPES " Card 2\n" };
    setenv("DML_TUNE", path, 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dml__choice choice = { .units = 1 };
        put(texts[i]);
        asked = 0;
        CHECK(tune(&choice, "Card 2") && !choice.measured);
        CHECK_INT(asked, 0);
        CHECK_CONTAINS(note, "left alone");
        CHECK_STRING(get(), texts[i]);
    }
    put("");
}

/* What isn't a plain file is neither waited for nor replaced. */
static void a_pipe_is_left_alone(void)
{
    dml__choice choice = { .units = 1 };
    char pipe[sizeof path + 8];
    struct stat what;
    snprintf(pipe, sizeof pipe, "%s.pipe", path);
    CHECK_INT(mkfifo(pipe, 0600), 0);
    setenv("DML_TUNE", pipe, 1);
    asked = 0;
    CHECK(tune(&choice, "Card 2") && !choice.measured);
    CHECK_INT(asked, 0);
    CHECK_CONTAINS(note, "left alone");
    CHECK(stat(pipe, &what) == 0 && S_ISFIFO(what.st_mode));
    remove(pipe);
}

/* A folder came in the file's place meanwhile: nothing is left beside it. */
static void what_cant_be_renamed_is_removed(void)
{
    dml__choice choice = { .units = 1 };
    char folder[sizeof path + 8], aside[sizeof path + 16];
    glob_t left;
    snprintf(folder, sizeof folder, "%s.d", path);
    snprintf(aside, sizeof aside, "%s.?*", folder);
    CHECK_INT(mkdir(folder, 0700), 0);
    CHECK(dml__tune_with(&choice, "Card 2", folder, fake_seconds, NULL) && choice.measured);
    CHECK_INT(glob(aside, 0, NULL, &left), GLOB_NOMATCH);
    globfree(&left);
    rmdir(folder);
}

/* Of a version whose kernels were others. */
static void an_older_file_is_written_anew(void)
{
    dml__choice choice = { .units = 1 };
    setenv("DML_TUNE", path, 1);
    put("dml's tiles, by device: 1\n0000000000000000000000000 Card 2\n");
    asked = 0;
    CHECK(tune(&choice, "Card 2") && choice.measured && !note);
    CHECK(asked > MEASURED);
    CHECK(strncmp(get(), TITLE, strlen(TITLE)) == 0);
    CHECK_INT(strlen(get()), strlen(TITLE SHAPES " Card 2\n"));
    put("");
}

/* Where the file is: each setting counts where those before it are missing. */
static void where_it_is_kept(void)
{
    static const struct {
        const char *tune, *cache, *home, *want;
    } cases[] = {
        { "a/b", "/cache", "/home", "a/b" },
        { NULL, "/cache", "/home", "/cache/dml-tune.txt" },
        { "", "/cache", "/home", "/cache/dml-tune.txt" },
        { NULL, "", "/home", "/home/.cache/dml-tune.txt" },
        { NULL, NULL, "/home", "/home/.cache/dml-tune.txt" },
        { NULL, NULL, "", NULL },
        { NULL, NULL, NULL, NULL },
        { "0", "/cache", "/home", NULL },
        { "00", "/cache", "/home", "00" },
        { "a", NULL, NULL, "a" },
    };
    static const char *const names[] = { "DML_TUNE", "XDG_CACHE_HOME", "HOME" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const values[] = { cases[i].tune, cases[i].cache, cases[i].home };
        char found[DML__TUNE_PATH] = "";
        for (int n = 0; n < 3; n++) values[n] ? setenv(names[n], values[n], 1) : unsetenv(names[n]);
        CHECK_INT(dml__tune_path(found, sizeof found), cases[i].want != NULL);
        if (cases[i].want) CHECK_STRING(found, cases[i].want);
    }
    char few[DML__TUNE_PATH];
    volatile size_t four = 4; /* or the compiler warns of what is tested */
    setenv("DML_TUNE", "abcd", 1);
    CHECK(!dml__tune_path(few, four));
    setenv("DML_TUNE", "abc", 1);
    CHECK(dml__tune_path(few, four));
}

static void a_launch_that_fails_is_told(void)
{
    dml__choice choice = { .units = 1 }, again = { .units = 1 };
    asked = 0, fails_after = 50;
    CHECK(!tune(&choice, "Card 3"));
    CHECK(!choice.measured);
    asked = 0, fails_after = 1000;
    CHECK(tune(&again, "Card 3"));
    CHECK(asked > MEASURED); /* it had kept nothing */
}

/* ---- what a device is asked to do ---- */

static int launches, buffers;
static dml_status launch_result;

static dml_status fake_create(dml_device *device, dml_buffer *buffer)
{
    (void)device;
    buffer->handle = &buffers;
    buffers++;
    return DML_OK;
}

static void fake_destroy(dml_device *device, dml_buffer *buffer)
{
    (void)device, (void)buffer;
    buffers--;
}

static dml_status fake_zero(dml_device *device, dml_ref to, size_t bytes)
{
    (void)device;
    CHECK(to.offset == 0 && bytes == to.buffer->bytes);
    return DML_OK;
}

/* A product of parts of one matrix, which don't overlap. */
static dml_status fake_launch(dml_device *device, const dml_launch *launch)
{
    const size_t columns = launch->size[0], rows = launch->size[1], depth = (size_t)launch->integer[2];
    const dml_ref *c = &launch->buffer[2];
    launches++;
    if (launch_result != DML_OK) return dml_device_fail(device, launch_result, "as told");
    CHECK(strncmp(launch->kernel, "gemm_", 5) == 0 && launch->real[0] == 0 && launch->real[1] == 0);
    CHECK((size_t)launch->integer[0] == rows && (size_t)launch->integer[1] == columns && depth == 256);
    CHECK((size_t)launch->integer[5] == depth && (size_t)launch->integer[6] == columns &&
          (size_t)launch->integer[7] == columns && launch->integer[8] == 0);
    CHECK(c->buffer && c->buffer == launch->buffer[0].buffer && c->buffer == launch->buffer[1].buffer);
    CHECK(rows * depth * 4 <= c->offset && depth * columns * 4 <= c->offset);
    CHECK(c->offset + rows * columns * 4 <= c->buffer->bytes && !launch->buffer[3].buffer);
    return DML_OK;
}

static dml_status fake_finish(dml_device *device)
{
    (void)device;
    return DML_OK;
}

static void what_a_device_is_asked_to_do(void)
{
    static const dml_backend backend = { .name = "fake",
                                         .buffer_create = fake_create,
                                         .buffer_destroy = fake_destroy,
                                         .zero = fake_zero,
                                         .launch = fake_launch,
                                         .finish = fake_finish };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_device device = { .backend = &backend, .context = context };
    dml__choice choice = { .units = 1 }, again = { .units = 1 }, cpu = { .solo = DML__SOLO_BEST, .units = 1 };
    setenv("DML_TUNE", path, 1);
    put("");
    CHECK_INT(dml__tune(&device, &choice, "Card 4"), DML_OK);
    CHECK(choice.measured && buffers == 0);
    CHECK_INT(launches, MEASURED * 7 * 4 * DML__TUNE_LAUNCHES);
    CHECK_INT(dml__tune(&device, &again, "Card 4"), DML_OK);
    CHECK(again.measured && launches == MEASURED * 7 * 4 * DML__TUNE_LAUNCHES);
    CHECK_INT(dml__tune(&device, &cpu, "Card 5"), DML_OK);
    CHECK(!cpu.measured && launches == MEASURED * 7 * 4 * DML__TUNE_LAUNCHES);
    dml__choice lost = { .units = 1 }, small = { .units = 1 };
    launch_result = DML_ERROR_MEMORY; /* for one thing it can do without */
    CHECK_INT(dml__tune(&device, &small, "Card 6"), DML_OK);
    CHECK(!small.measured && buffers == 0);
    CHECK_STRING(dml_error(context), "");
    launch_result = DML_ERROR_DEVICE;
    CHECK_INT(dml__tune(&device, &lost, "Card 6"), DML_ERROR_DEVICE);
    CHECK(!lost.measured && buffers == 0);
    CHECK_CONTAINS(dml_error(context), "as told");
    CHECK(!strstr(get(), "Card 6"));
    dml_close(context);
}

int main(void)
{
    const int file = mkstemp(path);
    if (file >= 0) close(file);
    RUN(the_rule);
    RUN(measured_once_and_kept);
    RUN(told_not_to);
    RUN(damage_is_measured_again);
    RUN(a_file_of_others_is_left_alone);
    RUN(a_pipe_is_left_alone);
    RUN(what_cant_be_renamed_is_removed);
    RUN(an_older_file_is_written_anew);
    RUN(a_launch_that_fails_is_told);
    RUN(where_it_is_kept);
    RUN(what_a_device_is_asked_to_do);
    unlink(path);
    return test_report("gpu/tune");
}
