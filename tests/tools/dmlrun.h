/* dmlrun.h: runs dmlrun (of the folder that DML_BUILD names, else of build/) on the including program, which
   as `PROGRAM child MODE` plays a rank. Every run also checks that it left no process behind: each one holds
   the write end of a pipe, whose other end must read its end. Included after #define _GNU_SOURCE. */
#ifndef DML_TESTS_TOOLS_DMLRUN_H
#define DML_TESTS_TOOLS_DMLRUN_H

#include "../test.h"

#include "base/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

static char dmlrun_path[1024];
static const char *self_path;

typedef struct run {
    pid_t pid;
    FILE *out_file, *err_file;
    int alive; /* reads its end when no process of the run is left */
    int status;
    char *out, *err; /* what it printed, after finish() */
} run;

/* ---- what the ranks do ---- */

static int my_rank(void)
{
    const char *text = getenv("RANK");
    return text ? atoi(text) : -1;
}

static void wait_forever(void)
{
    for (;;) pause();
}

static void on_signal(int number)
{
    char text[] = "caught ?\n";
    text[7] = number == SIGINT ? 'I' : number == SIGTERM ? 'T' : number == SIGHUP ? 'H' : 'U';
    if (write(1, text, sizeof text - 1) < 0) _exit(99);
    _exit(number == SIGUSR1 ? 3 : 0);
}

static void print_lines(int count, int length, char end)
{
    for (int i = 0; i < count; i++) {
        FILE *to = i % 2 ? stderr : stdout;
        fprintf(to, "%d:", i);
        for (int k = 0; k < length; k++) fputc('a' + my_rank(), to);
        if (end) fputc(end, to);
    }
}

static int child(int argc, char **argv)
{
    const char *mode = argv[2];
    const int a = argc > 3 ? atoi(argv[3]) : 0, b = argc > 4 ? atoi(argv[4]) : 0;
    if (strcmp(mode, "env") == 0) {
        const char *names[] = { "RANK",        "LOCAL_RANK",  "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
                                "MASTER_ADDR", "MASTER_PORT", "DML_THREADS", "DML_TERMINAL",
                                "DML_KEY",     "DML_PS" };
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            printf("%s=%s ", names[i], getenv(names[i]) ? getenv(names[i]) : "-");
        printf("\n");
    } else if (strcmp(mode, "exit") == 0) { /* rank a exits with b, the others wait */
        if (my_rank() == a) return b;
        wait_forever();
    } else if (strcmp(mode, "last_words") == 0) { /* rank a exits with b, the others see it a little later */
        if (my_rank() == a) return b;
        nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
        printf("rank %d died\n", a);
        return 1;
    } else if (strcmp(mode, "exit_two") == 0) { /* ranks a and b exit at once, the others wait */
        if (my_rank() == a || my_rank() == b) return 7;
        wait_forever();
    } else if (strcmp(mode, "spare") == 0) { /* rank a exits with b, the others end a little later */
        if (my_rank() == a) return b;
        nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
        printf("went on\n");
    } else if (strcmp(mode, "kill") == 0) {
        if (my_rank() == a) kill(getpid(), b);
        wait_forever();
    } else if (strcmp(mode, "stubborn") == 0) { /* rank 0 fails when the others no longer hear SIGTERM */
        if (my_rank() == 0) {
            signal(SIGUSR1, on_signal);
        } else {
            signal(SIGTERM, SIG_IGN);
        }
        printf("pid %d\n", (int)getpid());
        fflush(stdout);
        wait_forever();
    } else if (strcmp(mode, "signals") == 0) {
        const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };
        for (int i = 0; i < 4; i++) signal(numbers[i], on_signal);
        printf("pid %d\n", (int)getpid());
        fflush(stdout);
        wait_forever();
    } else if (strcmp(mode, "lines") == 0) {
        print_lines(a, b, '\n');
    } else if (strcmp(mode, "tail") == 0) {
        print_lines(1, 3, '\0');
    } else if (strcmp(mode, "grandchild") == 0) { /* leaves a process behind */
        if (fork() == 0) wait_forever();
        return a;
    } else if (strcmp(mode, "bar") == 0) {
        if (my_rank() == 0) {
            printf("\rbar one, the long one\rbar two");
            fflush(stdout);
            wait_forever();
        }
        printf("pid %d\n", (int)getpid());
        fflush(stdout);
        wait_forever();
    } else if (strcmp(mode, "trace") == 0) { /* rank 1 is killed while it writes */
        char path[512];
        snprintf(path, sizeof path, "%s.%d", getenv("DML_TRACE"), my_rank());
        FILE *file = fopen(path, "w");
        fprintf(file, my_rank() == 1 ? "[\n{\"rank\":1},\n{\"half" : "[\n{\"rank\":%d},\n{\"last\":1}\n]\n",
                my_rank());
        fclose(file);
    } else if (strcmp(mode, "input") == 0) {
        char text[64] = "nothing";
        if (!fgets(text, sizeof text, stdin)) strcpy(text, "nothing");
        printf("read %s\n", text);
    }
    return 0;
}

/* ---- running dmlrun ---- */

TEST__UNUSED static void nap(void)
{
    const struct timespec t = { 0, 2000000 };
    nanosleep(&t, NULL);
}

/* What a file holds so far, without moving the offset that we share with whoever writes it. */
TEST__UNUSED static char *contents(FILE *file)
{
    struct stat info;
    const size_t size = fstat(fileno(file), &info) == 0 ? (size_t)info.st_size : 0;
    char *text = calloc(size + 1, 1);
    for (size_t used = 0; used < size;) {
        const ssize_t count = pread(fileno(file), text + used, size - used, (off_t)used);
        if (count <= 0) break;
        used += (size_t)count;
    }
    return text;
}

/* Starts dmlrun with the arguments, a list that ends with NULL; "@" stands for this program as a child. Its
   outputs go to files, or both to `terminal` when that isn't -1. */
static run start_on(int terminal, va_list list)
{
    run r = { 0 };
    char *arguments[32] = { dmlrun_path };
    int count = 1, alive[2];
    for (char *a; (a = va_arg(list, char *));) {
        if (strcmp(a, "@") == 0) {
            arguments[count++] = (char *)self_path;
            a = "child";
        }
        arguments[count++] = a;
    }
    arguments[count] = NULL;
    r.out_file = tmpfile();
    r.err_file = tmpfile();
    if (!r.out_file || !r.err_file || pipe(alive) != 0) {
        perror("dmlrun_test");
        exit(1);
    }
    fcntl(alive[0], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    r.pid = fork();
    if (r.pid == 0) {
        dup2(terminal >= 0 ? terminal : fileno(r.out_file), 1);
        dup2(terminal >= 0 ? terminal : fileno(r.err_file), 2);
        execv(dmlrun_path, arguments);
        perror(dmlrun_path);
        _exit(99);
    }
    close(alive[1]);
    r.alive = alive[0];
    return r;
}

TEST__UNUSED static run start(int ignored, ...)
{
    va_list list;
    va_start(list, ignored);
    const run r = start_on(-1, list);
    va_end(list);
    return r;
}

/* Waits until its output (of rank `rank`, or any for -1) has said "pid N", and returns N. */
TEST__UNUSED static pid_t pid_of(const run *r, int rank)
{
    char want[32];
    snprintf(want, sizeof want, "[%d] pid ", rank);
    for (int waited = 0; waited < PATIENCE_MS; waited += 2, nap()) {
        char *text = contents(r->out_file);
        const char *found = strstr(text, want);
        const bool complete = found && strchr(found, '\n');
        const pid_t pid = complete ? (pid_t)atoi(found + strlen(want)) : 0;
        free(text);
        if (pid) return pid;
    }
    CHECK_MESSAGE(false, "rank %d never said its pid", rank);
    return 0;
}

/* Waits until one of its outputs holds the text. */
TEST__UNUSED static void wait_until_said(FILE *file, const char *want)
{
    for (int waited = 0; waited < PATIENCE_MS; waited += 2, nap()) {
        char *text = contents(file);
        const bool said = strstr(text, want) != NULL;
        free(text);
        if (said) return;
    }
    CHECK_MESSAGE(false, "nobody said '%s'", want);
}

static void finish(run *r)
{
    int status = 0, waited = 0;
    while (waitpid(r->pid, &status, WNOHANG) == 0) {
        if (waited == PATIENCE_MS) {
            CHECK_MESSAGE(false, "dmlrun doesn't end");
            kill(r->pid, SIGKILL);
        }
        waited += 2;
        nap();
    }
    r->status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    struct pollfd poll_alive = { r->alive, POLLIN, 0 };
    char byte;
    CHECK_MESSAGE(poll(&poll_alive, 1, PATIENCE_MS) == 1 && read(r->alive, &byte, 1) == 0,
                  "dmlrun left a process behind");
    close(r->alive);
    r->out = contents(r->out_file);
    r->err = contents(r->err_file);
    fclose(r->out_file);
    fclose(r->err_file);
}

static void forget(run *r)
{
    free(r->out);
    free(r->err);
}

#define START(...) start(0, __VA_ARGS__, (char *)NULL)

TEST__UNUSED static run run_to_end(int ignored, ...)
{
    va_list list;
    va_start(list, ignored);
    run r = start_on(-1, list);
    va_end(list);
    finish(&r);
    return r;
}
#define DMLRUN(...) run_to_end(0, __VA_ARGS__, (char *)NULL)

TEST__UNUSED static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

/* The program itself, or, when dmlrun runs it, a rank. */
static int dmlrun_main(int argc, char **argv, void (*tests)(void), const char *name)
{
    if (argc > 2 && strcmp(argv[1], "child") == 0) return child(argc, argv);
    const char *build = getenv("DML_BUILD");
    snprintf(dmlrun_path, sizeof dmlrun_path, "%s/dmlrun", build ? build : "build");
    self_path = argv[0];
    const char *mine[] = { "DML_KEY", "DML_THREADS", "DML_TERMINAL" };
    for (int i = 0; i < 3; i++) unsetenv(mine[i]);
    tests();
    return test_report(name);
}

#endif
