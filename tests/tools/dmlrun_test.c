/* Runs dmlrun (of the folder that DML_BUILD names, else of build/) on this very program, which as
   `dmlrun_test child MODE` plays a rank. Every run also checks that it left no process behind: each one holds
   the write end of a pipe, whose other end must read its end. */
#define _GNU_SOURCE

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
    } else if (strcmp(mode, "exit_two") == 0) { /* ranks a and b exit at once, the others wait */
        if (my_rank() == a || my_rank() == b) return 7;
        wait_forever();
    } else if (strcmp(mode, "spare") == 0) { /* the others end a little later */
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

static void nap(void)
{
    const struct timespec t = { 0, 2000000 };
    nanosleep(&t, NULL);
}

/* What a file holds so far, without moving the offset that we share with whoever writes it. */
static char *contents(FILE *file)
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

static run start(int ignored, ...)
{
    va_list list;
    va_start(list, ignored);
    const run r = start_on(-1, list);
    va_end(list);
    return r;
}

/* Waits until its output (of rank `rank`, or any for -1) has said "pid N", and returns N. */
static pid_t pid_of(const run *r, int rank)
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

static run run_to_end(int ignored, ...)
{
    va_list list;
    va_start(list, ignored);
    run r = start_on(-1, list);
    va_end(list);
    finish(&r);
    return r;
}
#define DMLRUN(...) run_to_end(0, __VA_ARGS__, (char *)NULL)

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

/* ---- the tests ---- */

static void all_ranks_end_well(void)
{
    run r = DMLRUN("-n", "9", "--", "@", "env");
    CHECK_INT(r.status, 0);
    CHECK_STRING(r.err, "");
    CHECK_INT(count_of(r.out, "\n"), 9);
    for (int i = 0; i < 9; i++) {
        char line[128];
        snprintf(line, sizeof line,
                 "[%d] RANK=%d LOCAL_RANK=%d WORLD_SIZE=9 LOCAL_WORLD_SIZE=9 MASTER_ADDR=127.0.0.1 ", i, i,
                 i);
        CHECK_CONTAINS(r.out, line);
    }
    const char *key = strstr(r.out, "DML_KEY="), *port = strstr(r.out, "MASTER_PORT=");
    CHECK(key && strspn(key + 8, "0123456789abcdef") == 64);
    CHECK(port && atoi(port + 12) > 0);
    if (key) {
        char same[80];
        snprintf(same, sizeof same, "%.72s", key);
        CHECK_INT(count_of(r.out, same), 9);
        run again = DMLRUN("-n2", "@", "env");
        CHECK_INT(count_of(again.out, same), 0);
        forget(&again);
    }
    CHECK_INT(count_of(r.out, "DML_TERMINAL=- "), 9);
    CHECK_INT(count_of(r.out, "DML_THREADS=- "), 0);
    forget(&r);
}

static void options_reach_the_ranks(void)
{
    setenv("DML_KEY", "mine", 1);
    run r =
        DMLRUN("--ranks=2", "--master-addr", "::1", "--master-port=4711", "--cpus-per-rank", "3", "@", "env");
    unsetenv("DML_KEY");
    CHECK_INT(r.status, 0);
    CHECK_INT(count_of(r.out, "MASTER_ADDR=::1 MASTER_PORT=4711 DML_THREADS=3 DML_TERMINAL=- DML_KEY=mine"),
              2);
    forget(&r);
    setenv("DML_THREADS", "7", 1);
    r = DMLRUN("-n", "2", "@", "env");
    unsetenv("DML_THREADS");
    CHECK_INT(count_of(r.out, "DML_THREADS=7"), 2);
    forget(&r);
}

static void workers_and_servers(void)
{
    run r = DMLRUN("--workers", "4", "--ps=2", "@", "env");
    CHECK_INT(r.status, 0);
    CHECK_INT(count_of(r.out, "WORLD_SIZE=6 LOCAL_WORLD_SIZE=6"), 6);
    CHECK_INT(count_of(r.out, "DML_PS=2"), 6);
    forget(&r);
    r = DMLRUN("-n2", "@", "env");
    CHECK_INT(count_of(r.out, "DML_PS=-"), 2);
    forget(&r);
}

/* The others end by themselves, and still nobody calls it a success. */
static void a_worker_can_be_spared(void)
{
    run r = DMLRUN("--workers", "2", "--ps", "1", "@", "spare", "1", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 1 exited with status 7; the others go on\n");
    CHECK_CONTAINS(r.out, "[0] went on");
    CHECK_CONTAINS(r.out, "[2] went on");
    forget(&r);
    r = DMLRUN("--workers", "1", "--ps", "1", "@", "exit", "0", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 7; ending the other rank\n");
    forget(&r);
    r = DMLRUN("--workers", "2", "--ps", "1", "@", "exit", "2", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 2 exited with status 7; ending the other 2 ranks\n");
    forget(&r);
    r = DMLRUN("--workers", "3", "--ps", "1", "@", "exit_two", "0", "3");
    CHECK_INT(r.status, 7);
    CHECK_CONTAINS(r.err, "dmlrun: rank 3 exited with status 7; ending the other 2 ranks\n");
    forget(&r);
}

static void one_rank_is_not_prefixed(void)
{
    run r = DMLRUN("-n", "1", "@", "env");
    CHECK_INT(r.status, 0);
    CHECK(strncmp(r.out, "RANK=0 ", 7) == 0);
    forget(&r);
    r = DMLRUN("-n", "2", "--no-prefix", "@", "env");
    CHECK_INT(count_of(r.out, "["), 0);
    CHECK_INT(count_of(r.out, "RANK=1 LOCAL_RANK=1"), 1);
    forget(&r);
}

static void a_failing_rank_is_named(void)
{
    run r = DMLRUN("-n", "4", "@", "exit", "2", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 2 exited with status 7; ending the other 3 ranks\n");
    forget(&r);
    r = DMLRUN("-n", "2", "@", "kill", "1", "9");
    CHECK_INT(r.status, 128 + 9);
    CHECK_STRING(r.err, "dmlrun: rank 1 was killed by signal 9 (Killed); ending the other rank\n");
    forget(&r);
    r = DMLRUN("-n", "1", "@", "exit", "0", "3");
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 3\n");
    forget(&r);
}

/* Waits until the kernel says that the process is stopped; without /proc there is nothing to ask. */
static void wait_until_stopped(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (int waited = 0; waited < PATIENCE_MS; waited += 2, nap()) {
        FILE *file = fopen(path, "r");
        if (!file) return;
        const char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        fclose(file);
        if (state && state[2] == 'T') return;
    }
}

static void a_stopped_rank_is_named_and_ended(void)
{
    run r = START("-n", "3", "--grace", "15", "@", "signals");
    const pid_t failing = pid_of(&r, 0), stopped = pid_of(&r, 2);
    pid_of(&r, 1);
    if (stopped > 0) kill(stopped, SIGSTOP), wait_until_stopped(stopped);
    if (failing > 0) kill(failing, SIGUSR1);
    finish(&r);
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err,
                 "dmlrun: rank 0 exited with status 3 (rank 2 is stopped); ending the other 2 ranks\n");
    CHECK_CONTAINS(r.out, "[2] caught T\n"); /* so it was woken, not killed */
    forget(&r);
}

static void a_stubborn_rank_is_killed(void)
{
    run r = START("-n", "2", "--grace", "0.05", "@", "stubborn");
    pid_of(&r, 1);
    const pid_t failing = pid_of(&r, 0);
    if (failing > 0) kill(failing, SIGUSR1);
    finish(&r);
    CHECK_INT(r.status, 3);
    forget(&r);
}

static void signals_are_passed_on(void)
{
    static const struct {
        int number;
        char letter;
    } cases[] = { { SIGINT, 'I' }, { SIGTERM, 'T' }, { SIGHUP, 'H' } };
    for (int c = 0; c < 3; c++) {
        run r = START("-n", "3", "--grace", "15", "@", "signals");
        for (int i = 0; i < 3; i++) pid_of(&r, i);
        kill(r.pid, cases[c].number);
        finish(&r);
        CHECK_INT(r.status, 0); /* they caught it and ended well */
        for (int i = 0; i < 3; i++) {
            char line[32];
            snprintf(line, sizeof line, "[%d] caught %c\n", i, cases[c].letter);
            CHECK_CONTAINS(r.out, line);
        }
        CHECK_CONTAINS(r.err, "dmlrun: got signal ");
        CHECK_CONTAINS(r.err, "; ending 3 ranks\n");
        forget(&r);
    }
    run r = START("-n", "2", "@", "bar");
    pid_of(&r, 1);
    kill(r.pid, SIGTERM); /* which these ranks don't catch */
    finish(&r);
    CHECK_INT(r.status, 128 + SIGTERM);
    forget(&r);
}

static void a_second_signal_kills(void)
{
    run r = START("-n", "2", "--grace", "1000", "@", "stubborn");
    pid_of(&r, 0), pid_of(&r, 1);
    kill(r.pid, SIGTERM);
    for (int waited = 0; waited < PATIENCE_MS; waited += 2, nap()) { /* until the first has been taken */
        char *text = contents(r.err_file);
        const bool said = strstr(text, "got signal") != NULL;
        free(text);
        if (said) break;
    }
    kill(r.pid, SIGINT);
    finish(&r);
    CHECK_INT(r.status, 128 + SIGINT);
    forget(&r);
}

static void no_rank_outlives_a_killed_dmlrun(void)
{
#ifdef __linux__
    run r = START("-n", "3", "@", "stubborn");
    for (int i = 0; i < 3; i++) pid_of(&r, i);
    kill(r.pid, SIGKILL);
    finish(&r); /* which checks it */
    CHECK_INT(r.status, -SIGKILL);
    forget(&r);
#else
    SKIP("only Linux ends children with their parent");
#endif
}

static void grandchildren_end_with_their_rank(void)
{
    run r = DMLRUN("-n", "2", "@", "grandchild", "0");
    CHECK_INT(r.status, 0);
    forget(&r);
    r = DMLRUN("-n", "2", "@", "grandchild", "5");
    CHECK_INT(r.status, 5);
    forget(&r);
}

static void wrong_usage_is_told(void)
{
    static const struct {
        const char *a, *b, *c, *says;
    } cases[] = {
        { "-n", "2", NULL, "which program?" },
        { "true", NULL, NULL, "how many ranks?" },
        { "-n", NULL, NULL, "-n needs a value" },
        { "-n", "0", "true", "not '0'" },
        { "-n", "2.5", "true", "a whole number, not '2.5'" },
        { "-n", "two", "true", "not 'two'" },
        { "-n2", "--wrong", "true", "there is no option '--wrong'" },
        { "-n2", "--master-port=70000", "true", "--master-port takes a number from 1 to 65535" },
        { "-n2", "--grace=-1", "true", "--grace takes a number" },
        { "--workers=2", "true", NULL, "--workers and --ps go together" },
        { "--ps=2", "true", NULL, "--workers and --ps go together" },
        { "--workers=0", "--ps=1", "true", "--workers takes a number from 1" },
        { "-n2", "--workers=2", "--ps=1", "2 workers and 1 parameter servers aren't 2 ranks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run r = DMLRUN(cases[i].a, cases[i].b, cases[i].c);
        CHECK_INT(r.status, 2);
        CHECK_CONTAINS(r.err, cases[i].says);
        CHECK_INT(count_of(r.err, "\n"), 1);
        CHECK_STRING(r.out, "");
        forget(&r);
    }
}

static void help_and_version_are_printed(void)
{
    run r = DMLRUN("--help");
    CHECK_INT(r.status, 0);
    CHECK_CONTAINS(r.out, "usage: dmlrun");
    forget(&r);
    r = DMLRUN("--version");
    CHECK_STRING(r.out, "dmlrun " DML_VERSION "\n");
    forget(&r);
}

static void a_program_that_cannot_run_is_told(void)
{
    run r = DMLRUN("-n", "3", "./there is no such program");
    CHECK_INT(r.status, 127);
    CHECK_STRING(r.err, "dmlrun: there is no program './there is no such program'\n");
    forget(&r);
    r = DMLRUN("-n", "3", "/");
    CHECK_INT(r.status, 126);
    CHECK_CONTAINS(r.err, "dmlrun: can't run '/': ");
    forget(&r);
}

/* Every line is whole, in its rank's order, and none is lost; 4 ranks at once, 12 MB in all. */
static void big_outputs_arrive_whole(void)
{
    enum { RANKS = 4, LINES = 1000, LENGTH = 3000 };
    run r = DMLRUN("-n", "4", "@", "lines", "1000", "3000");
    CHECK_INT(r.status, 0);
    int next[RANKS], wrong = 0;
    for (int stream = 0; stream < 2; stream++) {
        for (int i = 0; i < RANKS; i++) next[i] = stream;
        for (char *line = stream ? r.err : r.out; *line;) {
            char *end = strchr(line, '\n');
            if (!end) break;
            *end = '\0';
            const int rank = line[1] - '0', number = atoi(line + 4);
            const char *text = strchr(line, ':');
            const char letters[] = { (char)('a' + rank), '\0' };
            if (rank < 0 || rank >= RANKS || number != next[rank] || !text ||
                strspn(text + 1, letters) != LENGTH || text[1 + LENGTH]) {
                wrong++;
            } else {
                next[rank] = number + 2;
            }
            line = end + 1;
        }
        for (int i = 0; i < RANKS; i++) CHECK_INT(next[i], LINES + stream);
    }
    CHECK_INT(wrong, 0);
    forget(&r);
}

static void long_and_unfinished_lines(void)
{
    run r = DMLRUN("-n", "2", "@", "tail");
    CHECK_INT(count_of(r.out, "[0] 0:aaa\n"), 1);
    CHECK_INT(count_of(r.out, "[1] 0:bbb\n"), 1);
    CHECK_INT(count_of(r.out, "\n"), 2);
    forget(&r);
    r = DMLRUN("-n", "2", "@", "lines", "1", "2500000"); /* cut at 1 MiB */
    CHECK_INT(count_of(r.out, "\n"), 6);
    CHECK_INT(strlen(r.out), 2 * (2500000 + 2 + 3 * 5));
    forget(&r);
}

static void input_goes_to_rank_0(void)
{
    const int kept = dup(0);
    FILE *file = tmpfile();
    fputs("a word\n", file);
    fflush(file);
    rewind(file);
    dup2(fileno(file), 0);
    run r = DMLRUN("-n", "2", "@", "input");
    dup2(kept, 0);
    close(kept);
    fclose(file);
    CHECK_CONTAINS(r.out, "[0] read a word\n");
    CHECK_CONTAINS(r.out, "[1] read nothing\n");
    forget(&r);
}

static void traces_become_one(void)
{
    char path[64], old[72];
    snprintf(path, sizeof path, "/tmp/dmlrun-trace-%d", (int)getpid());
    snprintf(old, sizeof old, "%s.1", path);
    run r = start(0, "-n", "3", "--trace", path, "--", "@", "trace", (char *)NULL);
    finish(&r);
    CHECK_INT(r.status, 0);
    forget(&r);
    FILE *file = fopen(path, "r");
    CHECK(file);
    char *text = file ? contents(file) : NULL;
    if (text)
        CHECK_STRING(text,
                     "[\n{\"rank\":0},\n{\"last\":1},\n{\"rank\":1},\n{\"rank\":2},\n{\"last\":1}\n]\n");
    free(text);
    if (file) fclose(file);
    CHECK(access(old, F_OK) != 0);
    /* Of ranks that trace nothing, nothing: also not what an earlier job has left. */
    file = fopen(old, "w");
    if (file) fputs("[\n{\"old\":1}\n]\n", file), fclose(file);
    r = start(0, "-n", "2", "--trace", path, "--", "@", "env", (char *)NULL);
    finish(&r);
    forget(&r);
    file = fopen(path, "r");
    text = file ? contents(file) : NULL;
    if (text) CHECK_STRING(text, "[\n]\n");
    free(text);
    if (file) fclose(file);
    remove(path);
    r = start(0, "-n", "2", "--trace", "/nowhere/at/all", "--", "@", "env", (char *)NULL);
    finish(&r);
    CHECK_INT(r.status, 1);
    CHECK_CONTAINS(r.err, "can't write '/nowhere/at/all'");
    forget(&r);
}

static void a_reader_that_leaves_ends_the_job(void)
{
    int pair[2];
    if (pipe(pair) != 0) return;
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    signal(SIGPIPE, SIG_DFL);
    const int kept = dup(2);
    run r = { 0 };
    r.pid = fork();
    if (r.pid == 0) {
        dup2(pair[1], 1);
        close(2);
        execl(dmlrun_path, dmlrun_path, "-n", "2", "yes", (char *)NULL);
        _exit(99);
    }
    close(pair[1]);
    char text[4];
    CHECK(read(pair[0], text, 4) == 4 && strncmp(text, "[", 1) == 0);
    close(pair[0]);
    int status = 0, waited = 0;
    for (; waitpid(r.pid, &status, WNOHANG) == 0 && waited < PATIENCE_MS; waited += 2) nap();
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 128 + SIGPIPE);
    if (waited >= PATIENCE_MS) kill(r.pid, SIGKILL);
    close(kept);
}

/* Runs dmlrun by a shell, with redirections; what it says to the standard error. */
static int redirected(const char *arguments, char *err, size_t size)
{
    char command[2600];
    FILE *file = tmpfile();
    err[0] = '\0';
    if (!file) return -1;
    const int kept = dup(2);
    snprintf(command, sizeof command, "exec '%s' %s", dmlrun_path, arguments);
    fflush(stderr);
    dup2(fileno(file), 2);
    const int status = system(command);
    dup2(kept, 2);
    close(kept);
    rewind(file);
    err[fread(err, 1, size - 1, file)] = '\0';
    fclose(file);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void output_that_is_lost_is_told(void)
{
    static const struct {
        const char *arguments;
        int status;
        const char *says;
    } cases[] = {
        { "--help >/dev/full", 1, "dmlrun: can't write to the standard output: No space left on device\n" },
        { "--version >/dev/full", 1,
          "dmlrun: can't write to the standard output: No space left on device\n" },
        /* Only found out when the ranks have ended well, or all but. */
        { "-n 2 echo a >/dev/full", 1,
          "dmlrun: can't write to the standard output: No space left on device" },
        /* The ranks wouldn't end by themselves. */
        { "-n 2 sh -c 'echo a; exec sleep 600' >/dev/full", 1, "No space left on device; ending " },
        { "-n 2 sh -c 'echo a >&2; exec sleep 600' 2>/dev/full", 1, "" },
        { "-n 2 sh -c 'echo a; exec sleep 600' >/dev/full 2>&1", 1, "" },
        { "-n 2 echo a 1</dev/null", 1, "dmlrun: can't write to the standard output: Bad file descriptor" },
        /* A rank that fails is told of, as ever. */
        { "-n 1 sh -c 'echo a >&2; exit 7' >/dev/full", 7, "dmlrun: rank 0 exited with status 7\n" },
        { "-n 2 true >/dev/full", 0, "" }, /* nothing was lost */
    };
    if (access("/dev/full", W_OK) != 0) {
        SKIP("no /dev/full");
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char err[1024];
        CHECK_INT(redirected(cases[i].arguments, err, sizeof err), cases[i].status);
        CHECK_CONTAINS(err, cases[i].says);
        CHECK(cases[i].says[0] || !err[0]);
    }
}

/* As in any pipeline: what ends well but isn't read to its end has status 128 + SIGPIPE, and says nothing. */
static void a_reader_that_left_is_no_success(void)
{
    int pair[2];
    if (pipe(pair) != 0) return;
    close(pair[0]);
    char arguments[64], err[1024];
    snprintf(arguments, sizeof arguments, "-n 2 echo a >&%d", pair[1]);
    CHECK_INT(redirected(arguments, err, sizeof err), 128 + SIGPIPE);
    CHECK(!strstr(err, "can't write"));
    close(pair[1]);
}

static run start_on_terminal(int terminal, ...)
{
    va_list list;
    va_start(list, terminal);
    const run r = start_on(terminal, list);
    va_end(list);
    return r;
}

/* Reads from the terminal until `want` has come. */
static bool terminal_says(int fd, char *text, size_t size, const char *want)
{
    size_t used = strlen(text);
    struct pollfd ready = { fd, POLLIN, 0 };
    while (!strstr(text, want) && used + 1 < size && poll(&ready, 1, PATIENCE_MS) == 1) {
        const ssize_t count = read(fd, text + used, size - used - 1);
        if (count <= 0) break;
        used += (size_t)count;
        text[used] = '\0';
    }
    return strstr(text, want) != NULL;
}

/* On a terminal, rank 0's unfinished line stays the last one of the screen. */
static void a_bar_stays_below_other_lines(void)
{
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        SKIP("there is no pseudo-terminal to be had");
        return;
    }
    fcntl(master, F_SETFD, FD_CLOEXEC);
    const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    const struct winsize size = { 24, 100, 0, 0 };
    ioctl(terminal, TIOCSWINSZ, &size);
    setenv("TERM", "xterm", 1);
    char text[8192] = "";
    run r = start_on_terminal(terminal, "-n", "2", "--", "@", "bar", (char *)NULL);
    CHECK(terminal_says(master, text, sizeof text, "[0] bar two"));
    CHECK(terminal_says(master, text, sizeof text, "[1] pid"));
    const char *line = strstr(text, "[1] pid");
    if (line && line > strstr(text, "[0] bar two")) /* it came second: wiped the bar, drew it again */
        CHECK(terminal_says(master, text + (line - text), sizeof text - (size_t)(line - text),
                            "\n[0] bar two"));
    CHECK(!strstr(text, "bar one"));
    kill(r.pid, SIGTERM);
    finish(&r);
    forget(&r);
    text[0] = '\0';
    r = start_on_terminal(terminal, "-n", "2", "--", "@", "env", (char *)NULL);
    CHECK(terminal_says(master, text, sizeof text, "[0] RANK=0"));
    CHECK(terminal_says(master, text, sizeof text, "DML_TERMINAL=12"));
    finish(&r);
    forget(&r);
    close(terminal);
    close(master);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "child") == 0) return child(argc, argv);
    const char *build = getenv("DML_BUILD");
    snprintf(dmlrun_path, sizeof dmlrun_path, "%s/dmlrun", build ? build : "build");
    self_path = argv[0];
    const char *mine[] = { "DML_KEY", "DML_THREADS", "DML_TERMINAL" };
    for (int i = 0; i < 3; i++) unsetenv(mine[i]);
    RUN(all_ranks_end_well);
    RUN(options_reach_the_ranks);
    RUN(workers_and_servers);
    RUN(a_worker_can_be_spared);
    RUN(one_rank_is_not_prefixed);
    RUN(a_failing_rank_is_named);
    RUN(a_stopped_rank_is_named_and_ended);
    RUN(a_stubborn_rank_is_killed);
    RUN(signals_are_passed_on);
    RUN(a_second_signal_kills);
    RUN(no_rank_outlives_a_killed_dmlrun);
    RUN(grandchildren_end_with_their_rank);
    RUN(wrong_usage_is_told);
    RUN(help_and_version_are_printed);
    RUN(a_program_that_cannot_run_is_told);
    RUN(big_outputs_arrive_whole);
    RUN(long_and_unfinished_lines);
    RUN(input_goes_to_rank_0);
    RUN(traces_become_one);
    RUN(a_reader_that_leaves_ends_the_job);
    RUN(output_that_is_lost_is_told);
    RUN(a_reader_that_left_is_no_success);
    RUN(a_bar_stays_below_other_lines);
    return test_report("tools/dmlrun");
}
