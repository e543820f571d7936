/* test.h: the tests' own tools. A test program is a main() of RUN(function)s that ends with
   `return test_report("folder/name");`. It prints what failed or was skipped, then one line of totals that
   tests/run.sh adds up. */
#ifndef DML_TESTS_TEST_H
#define DML_TESTS_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define setenv(name, value, replace) ((void)(replace), _putenv_s(name, value))
#define unsetenv(name) _putenv_s(name, "")
#endif

static int test__passed, test__failed, test__skipped;
static bool test__ok;
static char test__skip[256];

#if defined(__GNUC__)
#define TEST__UNUSED __attribute__((unused))
#else
#define TEST__UNUSED
#endif

/* Fails the running test, with a printf message, unless the condition holds. The test goes on. */
#define CHECK_MESSAGE(condition, ...)                                                                        \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            test__ok = false;                                                                                \
            printf("%s:%d: ", __FILE__, __LINE__);                                                           \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
        }                                                                                                    \
    } while (0)
#define CHECK(condition) CHECK_MESSAGE(condition, "%s is false", #condition)
#define CHECK_INT(got, want)                                                                                 \
    do {                                                                                                     \
        const long long test__got = (long long)(got), test__want = (long long)(want);                        \
        CHECK_MESSAGE(test__got == test__want, "%s is %lld, not %lld", #got, test__got, test__want);         \
    } while (0)
#define CHECK_NEAR(got, want, tolerance)                                                                     \
    do {                                                                                                     \
        const double test__got = (double)(got), test__want = (double)(want);                                 \
        CHECK_MESSAGE(fabs(test__got - test__want) <= (tolerance), "%s is %.9g, not %.9g", #got, test__got,  \
                      test__want);                                                                           \
    } while (0)
#define CHECK_STRING(got, want)                                                                              \
    do {                                                                                                     \
        const char *test__got = (got), *test__want = (want);                                                 \
        CHECK_MESSAGE(test__got &&strcmp(test__got, test__want) == 0, "%s is \"%s\", not \"%s\"", #got,      \
                      test__got ? test__got : "(null)", test__want);                                         \
    } while (0)
/* `text` contains `part`: for error sentences. */
#define CHECK_CONTAINS(text, part)                                                                           \
    do {                                                                                                     \
        const char *test__text = (text);                                                                     \
        CHECK_MESSAGE(test__text &&strstr(test__text, part), "\"%s\" doesn't say \"%s\"",                    \
                      test__text ? test__text : "(null)", part);                                             \
    } while (0)

/* Inside a test: it doesn't count as passed, and the reason is shown. Return after it. */
#define SKIP(...) snprintf(test__skip, sizeof test__skip, __VA_ARGS__)

#define RUN(test) test__run(#test, test)

TEST__UNUSED static void test__run(const char *name, void (*test)(void))
{
    test__ok = true;
    test__skip[0] = '\0';
    test();
    if (!test__ok) {
        test__failed++;
        printf("FAIL %s\n", name);
    } else if (test__skip[0]) {
        test__skipped++;
        printf("skip %s: %s\n", name, test__skip);
    } else {
        test__passed++;
    }
    fflush(stdout);
}

TEST__UNUSED static int test_report(const char *program)
{
    printf("# %s: %d passed, %d failed, %d skipped\n", program, test__passed, test__failed, test__skipped);
    return test__failed ? 1 : 0;
}

/* In emulators, which take thirty times as long, less of the same; what is left reaches every path. */
#if defined(__x86_64__)
enum { TEST_EMULATOR = 0 };
#else
enum { TEST_EMULATOR = 1 };
#endif

/* And where each access to memory is looked at. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SLOW = 1 };
#else
enum { TEST_SLOW = TEST_EMULATOR };
#endif

/* A file that is gone when it is closed. (Windows' tmpfile() writes to the root of a disk, where one may
 * not.) */
TEST__UNUSED static FILE *test_file(void)
{
#ifdef _WIN32
    static int files;
    char path[512];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/file%d", folder ? folder : ".", files++);
    return fopen(path, "w+bD");
#else
    return tmpfile();
#endif
}

/* A xorshift generator, so that tests need nothing of what they test. */
TEST__UNUSED static unsigned test_random(unsigned *state)
{
    unsigned x = *state ? *state : 2463534242u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

/* n floats in [-1, 1). */
TEST__UNUSED static void test_fill(unsigned *state, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(test_random(state) >> 8) / 8388608.0f - 1.0f;
}

#endif
