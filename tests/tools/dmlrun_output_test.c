/* What dmlrun does with what its ranks read and print. */
#define _GNU_SOURCE
#include "dmlrun.h"

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

static void all(void)
{
    RUN(big_outputs_arrive_whole);
    RUN(long_and_unfinished_lines);
    RUN(input_goes_to_rank_0);
    RUN(traces_become_one);
    RUN(a_reader_that_leaves_ends_the_job);
    RUN(output_that_is_lost_is_told);
    RUN(a_reader_that_left_is_no_success);
    RUN(a_bar_stays_below_other_lines);
}

int main(int argc, char **argv)
{
    return dmlrun_main(argc, argv, all, "tools/dmlrun_output");
}
