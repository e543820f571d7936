/* Which tiles a launch takes: the rule, the measured table, and the file that it is kept in. */
#include "gpu/tune.h"

#include "../test.h"

#include <unistd.h>

static char path[] = "/tmp/dml-tune-XXXXXX";

/* Small tiles where there are few rows or columns, or fewer tiles than units. */
static void the_rule(void)
{
    static const struct {
        int units;
        size_t size[2]; /* columns, rows */
        dml__tile_shape want;
    } cases[] = {
        { 1, { 100, 100 }, DML__TILE_64x64 },     { 1, { 16, 100 }, DML__TILE_64x16 },
        { 1, { 100, 16 }, DML__TILE_16x64 },      { 1, { 6, 10 }, DML__TILE_16x16 },
        { 4, { 128, 128 }, DML__TILE_64x64 },     { 5, { 128, 128 }, DML__TILE_64x16 },
        { 17, { 128, 128 }, DML__TILE_16x16 },    { 132, { 6, 50176 }, DML__TILE_64x16 },
        { 132, { 4096, 4096 }, DML__TILE_64x64 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dml__choice choice = { .units = cases[i].units };
        CHECK_INT(dml__choose_tile(&choice, cases[i].size), cases[i].want);
    }
}

/* A device on which 16 x 64 is best for 256 columns, and all are alike otherwise. */
static int asked, fails_after = 1000;
static double fake_seconds(void *argument, const char *kernel, int columns, int rows)
{
    (void)argument, (void)rows;
    if (asked++ >= fails_after) return -1;
    return columns == 256 && strcmp(kernel, "gemm_16x64") == 0 ? 0.5 : 1;
}

static dml__tile_shape chosen(const dml__choice *choice, size_t columns, size_t rows)
{
    const size_t size[2] = { columns, rows };
    return dml__choose_tile(choice, size);
}

static void measured_once_and_kept(void)
{
    setenv("DML_TUNE", path, 1);
    dml__choice first = { .units = 1 }, second = { .units = 1 }, other = { .units = 1 };
    CHECK(dml__tune_with(&first, "Card 1", fake_seconds, NULL) && first.measured);
    CHECK(asked > 25);
    asked = 0;
    CHECK(dml__tune_with(&second, "Card 1", fake_seconds, NULL) && second.measured);
    CHECK_INT(asked, 0);
    CHECK(memcmp(first.tile, second.tile, sizeof first.tile) == 0);
    CHECK_INT(chosen(&second, 200, 4000), DML__TILE_16x64);
    CHECK_INT(chosen(&second, 65, 1), DML__TILE_16x64);
    CHECK_INT(chosen(&second, 64, 1000), DML__TILE_64x64); /* as the rule says */
    CHECK_INT(chosen(&second, 5, 1000), DML__TILE_64x16);
    CHECK(dml__tune_with(&other, "Card 11", fake_seconds, NULL)); /* another device */
    CHECK(asked > 25);
}

static void told_not_to(void)
{
    dml__choice choice = { .units = 1 };
    asked = 0;
    setenv("DML_TUNE", "0", 1);
    CHECK(dml__tune_with(&choice, "Card 1", fake_seconds, NULL));
    CHECK(!choice.measured);
    setenv("DML_TUNE", "/nowhere/to/be/kept", 1);
    CHECK(dml__tune_with(&choice, "Card 1", fake_seconds, NULL));
    CHECK(!choice.measured);
    CHECK_INT(asked, 0);
}

static void damage_is_measured_again(void)
{
    static const char *const lines[] = { "0123 Card 2\n", "9999999999999999999999999 Card 2\n",
                                         "0000000000000000000000000 Card 2", "\n", "" };
    setenv("DML_TUNE", path, 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        dml__choice choice = { .units = 1 };
        FILE *file = fopen(path, "w");
        fputs(lines[i], file);
        fclose(file);
        asked = 0;
        CHECK(dml__tune_with(&choice, "Card 2", fake_seconds, NULL) && choice.measured);
        CHECK(asked > 25);
    }
}

static void a_launch_that_fails_is_told(void)
{
    dml__choice choice = { .units = 1 }, again = { .units = 1 };
    asked = 0, fails_after = 50;
    CHECK(!dml__tune_with(&choice, "Card 3", fake_seconds, NULL));
    CHECK(!choice.measured);
    asked = 0, fails_after = 1000;
    CHECK(dml__tune_with(&again, "Card 3", fake_seconds, NULL));
    CHECK(asked > 25); /* it had kept nothing */
}

int main(void)
{
    const int file = mkstemp(path);
    if (file >= 0) close(file);
    RUN(the_rule);
    RUN(measured_once_and_kept);
    RUN(told_not_to);
    RUN(damage_is_measured_again);
    RUN(a_launch_that_fails_is_told);
    unlink(path);
    return test_report("gpu/tune");
}
