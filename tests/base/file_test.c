#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "base/file.h"

#ifndef _WIN32

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include "../test.h"

static char folder[64];
static dml__memory memory;

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void)
{
    DIR *dir = opendir(folder);
    int count = -2; /* . and .. */
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

static dml_status write_text(const char *path, const char *text, dml__error *error)
{
    dml__file_part parts[2];
    const size_t half = strlen(text) / 2;
    parts[0].data = text, parts[0].bytes = half;
    parts[1].data = text + half, parts[1].bytes = strlen(text) - half;
    return dml__file_write(path, parts, 2, error);
}

static void check_content(const char *path, const char *want)
{
    void *data;
    size_t bytes;
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(dml__file_read(&memory, path, 1000, &data, &bytes, &error), DML_OK);
    CHECK_INT(bytes, strlen(want));
    CHECK(data && bytes == strlen(want) && memcmp(data, want, bytes) == 0);
    dml__release(&memory, data);
}

static void round_trip_and_replace(void)
{
    const char *path = in_folder("a");
    CHECK_INT(write_text(path, "first", NULL), DML_OK);
    check_content(path, "first");
    CHECK_INT(write_text(path, "second, longer", NULL), DML_OK);
    check_content(path, "second, longer");
    struct stat found;
    CHECK(chmod(path, 0600) == 0);
    CHECK_INT(write_text(path, "third", NULL), DML_OK);
    CHECK(stat(path, &found) == 0 && (found.st_mode & 07777) == 0600); /* nobody else may read it now */
    CHECK_INT(write_text(path, "", NULL), DML_OK);
    check_content(path, "");
    CHECK_INT(dml__file_write(path, NULL, 0, NULL), DML_OK);
    check_content(path, "");
    CHECK_INT(files_in_folder(), 1);
    unlink(path);
}

static void a_name_without_a_folder(void)
{
    char before[4096];
    CHECK(getcwd(before, sizeof before) != NULL);
    CHECK(chdir(folder) == 0);
    CHECK_INT(write_text("plain", "here", NULL), DML_OK);
    check_content("plain", "here");
    unlink("plain");
    CHECK(chdir(before) == 0);
}

static void check_read_fails(const char *path, size_t limit, dml_status want, const char *part)
{
    void *data = &data;
    size_t bytes = 1;
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(dml__file_read(&memory, path, limit, &data, &bytes, &error), want);
    CHECK(data == NULL && bytes == 0);
    CHECK_INT(error.status, want);
    CHECK_CONTAINS(error.text, path);
    CHECK_CONTAINS(error.text, part);
}

static void reading_says_what_is_wrong(void)
{
    check_read_fails(in_folder("missing"), 10, DML_ERROR_IO, "No such file");
    check_read_fails(folder, 10, DML_ERROR_IO, "no plain file");
    check_read_fails("/dev/null", 10, DML_ERROR_IO, "no plain file");
    const char *path = in_folder("pipe");
    CHECK(mkfifo(path, 0600) == 0);
    check_read_fails(path, 10, DML_ERROR_IO, "no plain file");
    unlink(path);
    path = in_folder("eleven");
    CHECK_INT(write_text(path, "hello world", NULL), DML_OK);
    check_read_fails(path, 10, DML_ERROR_FORMAT, "11 bytes, more than the 10");
    char buffer[256];
    dml__memory small;
    dml__error error = { DML_OK, "", 0 };
    void *data;
    size_t bytes;
    dml__memory_init(&small, NULL, buffer, 65);
    CHECK_INT(dml__file_read(&small, path, 11, &data, &bytes, &error), DML_ERROR_MEMORY);
    CHECK_CONTAINS(error.text, "no memory");
    unlink(path);
}

static void check_write_fails(const char *path, const char *part)
{
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(write_text(path, "text", &error), DML_ERROR_IO);
    CHECK_INT(error.status, DML_ERROR_IO);
    CHECK_CONTAINS(error.text, part);
}

static void writing_says_what_is_wrong(void)
{
    char *endless = (char *)malloc(6000);
    memset(endless, 'x', 5999);
    endless[5999] = '\0';
    check_write_fails(in_folder("missing/file"), "No such file");
    check_write_fails(folder, "no plain file");
    check_write_fails("/dev/null", "no plain file"); /* renaming over a device would destroy it */
    check_write_fails(endless, "too long");
    CHECK_INT(files_in_folder(), 0);
    free(endless);
}

/* A full disk, played by a limit on the size of files. */
static void a_failed_write_keeps_the_old_file(void)
{
    struct rlimit old, low;
    const size_t n = 1 << 20;
    char *big = (char *)calloc(n, 1);
    const dml__file_part part = { big, n };
    dml__error error = { DML_OK, "", 0 };
    const char *path = in_folder("kept");
    CHECK_INT(write_text(path, "old", NULL), DML_OK);
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    low = old;
    low.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
    const dml_status status = dml__file_write(path, &part, 1, &error);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_INT(status, DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "kept");
    CHECK_CONTAINS(error.text, "too large");
    check_content(path, "old");
    CHECK_INT(files_in_folder(), 1);
    unlink(path);
    free(big);
}

static void a_stale_temporary_is_no_obstacle(void)
{
    char stale[160];
    const char *path = in_folder("b");
    snprintf(stale, sizeof stale, "%s.%ld-0.tmp", path, (long)getpid());
    CHECK_INT(write_text(stale, "someone else's", NULL), DML_OK);
    CHECK_INT(write_text(path, "mine", NULL), DML_OK);
    check_content(path, "mine");
    check_content(stale, "someone else's");
    unlink(stale);
    unlink(path);
}

static void make_stale(const char *path, int begin, int end, bool there)
{
    for (int i = begin; i < end; i++) {
        char stale[160];
        snprintf(stale, sizeof stale, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        FILE *file = there ? fopen(stale, "w") : NULL;
        if (file) fclose(file);
        if (!there) unlink(stale);
    }
}

/* A container's processes have the same numbers each time that it starts. */
static void many_stale_temporaries(void)
{
    const char *path = in_folder("often");
    dml__error error = { DML_OK, "", 0 };
    make_stale(path, 0, 999, true);
    CHECK_INT(write_text(path, "written", &error), DML_OK);
    check_content(path, "written");
    make_stale(path, 999, 1000, true);
    CHECK_INT(write_text(path, "more", &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "-999.tmp\": it and the 999 before it");
    CHECK_CONTAINS(error.text, "remove them");
    check_content(path, "written");
    make_stale(path, 0, 1000, false);
    unlink(path);
    CHECK_INT(files_in_folder(), 0);
}

/* The file's own may have as many bytes as the system allows; the temporary's has fewer, of whole characters.
 */
static void the_longest_names(void)
{
    char path[400], name[256] = "n";
    dml__file_writer to;
    for (int wide = 0; wide < 2; wide++) {
        for (int i = 1; i < 255; i += 1 + wide) memcpy(name + i, wide ? "\xC3\xA9" : "n", 1 + (size_t)wide);
        name[255] = '\0';
        snprintf(path, sizeof path, "%s/%s", folder, name);
        CHECK_INT(dml__file_check_writable(path, NULL), DML_OK);
        CHECK_INT(dml__file_create(&to, path, NULL), DML_OK);
        CHECK_CONTAINS(to.temporary, wide ? "\xA9." : "n.");
        dml__file_abandon(&to);
        CHECK_INT(write_text(path, "old", NULL), DML_OK);
        CHECK_INT(write_text(path, "new", NULL), DML_OK);
        check_content(path, "new");
        CHECK_INT(files_in_folder(), 1);
        unlink(path);
    }
}

/* ---- in pieces ---- */

static void pieces(void)
{
    const char *path = in_folder("pieces");
    dml__file_writer to;
    dml__file_reader from;
    dml__error error = { DML_OK, "", 0 };
    char got[8] = "";
    CHECK_INT(write_text(path, "old", NULL), DML_OK);
    CHECK_INT(dml__file_create(&to, path, NULL), DML_OK);
    CHECK_INT(dml__file_append(&to, "ab", 2, NULL), DML_OK);
    CHECK_INT(dml__file_append(&to, NULL, 0, NULL), DML_OK);
    CHECK_INT(files_in_folder(), 2);
    check_content(path, "old");
    dml__file_abandon(&to);
    CHECK_INT(files_in_folder(), 1);
    check_content(path, "old");
    CHECK_INT(dml__file_create(&to, path, NULL), DML_OK);
    CHECK_INT(dml__file_append(&to, "abc", 3, NULL), DML_OK);
    CHECK_INT(dml__file_append(&to, "defg", 4, NULL), DML_OK);
    CHECK_INT(dml__file_commit(&to, NULL), DML_OK);
    CHECK_INT(files_in_folder(), 1);
    check_content(path, "abcdefg");
    CHECK_INT(dml__file_open(&from, path, NULL), DML_OK);
    CHECK_INT(from.bytes, 7);
    CHECK_INT(dml__file_read_at(&from, 4, got, 3, NULL), DML_OK);
    CHECK_STRING(got, "efg");
    CHECK_INT(dml__file_read_at(&from, 1, got, 2, NULL), DML_OK);
    CHECK_STRING(got, "bcg");
    CHECK_INT(dml__file_read_at(&from, 7, NULL, 0, NULL), DML_OK);
    CHECK_INT(dml__file_read_at(&from, 5, got, 3, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "pieces\" became shorter");
    dml__file_close(&from);
    error.status = DML_OK;
    CHECK_INT(dml__file_open(&from, folder, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "no plain file");
    unlink(path);
}

/* A folder takes the file's place while it is written: the last step fails. */
static void a_failed_commit_cleans_up(void)
{
    const char *path = in_folder("taken");
    dml__file_writer to;
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(dml__file_create(&to, path, NULL), DML_OK);
    CHECK(mkdir(path, 0700) == 0);
    CHECK_INT(dml__file_commit(&to, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, "taken\"");
    CHECK_INT(files_in_folder(), 1);
    CHECK(rmdir(path) == 0);
}

/* ---- before a long run ---- */

static void check_unwritable(const char *path, const char *part)
{
    dml__error error = { DML_OK, "", 0 };
    CHECK_INT(dml__file_check_writable(path, &error), DML_ERROR_IO);
    CHECK_CONTAINS(error.text, part);
    CHECK_INT(write_text(path, "text", NULL), DML_ERROR_IO); /* what it foretells */
}

static void whether_a_file_could_be_written(void)
{
    const char *path = in_folder("new");
    CHECK_INT(dml__file_check_writable(path, NULL), DML_OK);
    CHECK_INT(files_in_folder(), 0);
    CHECK_INT(write_text(path, "old", NULL), DML_OK);
    CHECK(chmod(path, 0400) == 0); /* it is replaced, not changed */
    CHECK_INT(dml__file_check_writable(path, NULL), DML_OK);
    CHECK_INT(files_in_folder(), 1);
    check_content(path, "old");
    CHECK_INT(write_text(path, "new", NULL), DML_OK);
    char longer[400];
    snprintf(longer, sizeof longer, "%s/%0256d", folder, 0);
    check_unwritable(longer, "too long");
    check_unwritable("", "without a name");
    check_unwritable(in_folder("new/file"), "Not a directory");
    unlink(in_folder("new"));
    check_unwritable(in_folder("missing/file"), "No such file");
    check_unwritable(folder, "no plain file");
    check_unwritable("/dev/null", "no plain file");
    path = in_folder("pipe");
    CHECK(mkfifo(path, 0600) == 0);
    check_unwritable(path, "no plain file");
    unlink(path);
    CHECK_INT(files_in_folder(), 0);
}

static void a_folder_that_forbids_it(void)
{
    const bool root = geteuid() == 0;
    CHECK(chmod(folder, 0555) == 0);
    if (root) CHECK(seteuid(65534) == 0);
    check_unwritable(in_folder("file"), "Permission denied");
    if (root) CHECK(seteuid(0) == 0);
    CHECK(chmod(folder, 0700) == 0);
    CHECK_INT(files_in_folder(), 0);
}

/* In a folder like /tmp only a file's owner may replace it. */
static void a_file_of_someone_else(void)
{
    const char *path = in_folder("theirs");
    if (geteuid() != 0) {
        SKIP("only root can have someone else's file");
        return;
    }
    CHECK_INT(write_text(path, "old", NULL), DML_OK);
    CHECK(chmod(path, 0666) == 0);
    CHECK(chmod(folder, 01777) == 0);
    CHECK_INT(dml__file_check_writable(path, NULL), DML_OK); /* by root */
    CHECK(seteuid(65534) == 0);
    check_unwritable(path, "may not be replaced");
    CHECK_INT(dml__file_check_writable(in_folder("mine"), NULL), DML_OK);
    CHECK(seteuid(0) == 0);
    CHECK(chown(in_folder("theirs"), 65534, 65534) == 0);
    CHECK(seteuid(65534) == 0);
    CHECK_INT(dml__file_check_writable(in_folder("theirs"), NULL), DML_OK); /* their own */
    CHECK_INT(write_text(in_folder("theirs"), "new", NULL), DML_OK);
    CHECK(seteuid(0) == 0);
    CHECK_INT(write_text(in_folder("theirs"), "root's", NULL), DML_OK);
    CHECK(chown(folder, 65534, 65534) == 0);
    CHECK(seteuid(65534) == 0);
    CHECK_INT(dml__file_check_writable(in_folder("theirs"), NULL), DML_OK); /* their folder */
    CHECK_INT(write_text(in_folder("theirs"), "new", NULL), DML_OK);
    CHECK(seteuid(0) == 0);
    CHECK(chown(folder, 0, 0) == 0 && chmod(folder, 0700) == 0);
    CHECK_INT(files_in_folder(), 1);
    unlink(in_folder("theirs"));
}

int main(void)
{
    strcpy(folder, "/tmp/dml-file-test-XXXXXX");
    if (!mkdtemp(folder)) {
        printf("can't make a folder in /tmp\n");
        return 1;
    }
    dml__memory_init(&memory, NULL, NULL, 0);
    RUN(round_trip_and_replace);
    RUN(a_name_without_a_folder);
    RUN(reading_says_what_is_wrong);
    RUN(writing_says_what_is_wrong);
    RUN(a_failed_write_keeps_the_old_file);
    RUN(a_stale_temporary_is_no_obstacle);
    RUN(many_stale_temporaries);
    RUN(the_longest_names);
    RUN(pieces);
    RUN(a_failed_commit_cleans_up);
    RUN(whether_a_file_could_be_written);
    RUN(a_folder_that_forbids_it);
    RUN(a_file_of_someone_else);
    rmdir(folder);
    return test_report("base/file");
}

#else

#include "../test.h"

static void every_file_test(void)
{
    SKIP("they use pipes, limits and permissions of POSIX; train/checkpoint reads and writes files");
}

int main(void)
{
    RUN(every_file_test);
    return test_report("base/file");
}

#endif
