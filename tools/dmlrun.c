/* dmlrun: starts N processes of one program as the ranks of a job, shows their output, and ends them all when
   one fails, unless the others are to go on. POSIX only, no library: cc -O2 -o dmlrun dmlrun.c
   (dmlrun_options.h, dmlrun_environment.h and dmlrun_output.h lie beside it)

   One poll() loop does everything. Signals arrive through a pipe of our own, the ranks' output through two
   pipes a rank. Each rank leads a process group of its own, so that what it started ends with it. */
#define _GNU_SOURCE /* prctl, SIGWINCH and TIOCGWINSZ beside POSIX */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "dmlrun_environment.h"
#include "dmlrun_options.h"
#include "dmlrun_output.h"

enum {
    SETTLE_MS = 20,
    EXIT_CANNOT_EXECUTE = 126, /* as shells have it */
    EXIT_NOT_FOUND = 127,
    EXIT_SIGNAL = 128
};

/* The part of the grace period for which the others may end by themselves when a rank failed: 2 s of 5. */
#define ALONE 0.4

typedef struct rank {
    pid_t pid; /* also its process group; 0: has ended, or never started */
    int status;
    stream out, err;
} rank;

/* How a job ends: once a rank has failed the others may say what they have seen of it and end by themselves,
   are then asked to end, and killed. */
typedef enum stage { RUNNING, FAILED, ASKED, KILLED } stage;

typedef struct job {
    options options;
    rank *ranks;
    int living;
    sink sinks[2];
    sink *out, *err; /* the same one when both are the same file */
    stage stage;
    double until;    /* FAILED, ASKED: when the next stage comes */
    bool silenced;   /* a signal came when only output was left */
    int exit_status; /* of the first failure that isn't for the others to go on from */
    int last_status; /* --kill-on-bad-exit 0: of the rank that ended last */
    int ended_by;    /* the signal that we were sent, or 0 */
} job;

/* What signals were set to before, for the ranks to inherit: nohup and & mean them too. */
static const int PASSED_ON[] = { SIGINT, SIGTERM, SIGHUP };
static const int HANDLED[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGTSTP, SIGCONT, SIGPIPE };
enum { HANDLED_COUNT = sizeof HANDLED / sizeof HANDLED[0] };
static struct sigaction inherited[HANDLED_COUNT];
static int signal_pipe[2];
static job the_job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void signal_ranks(const job *j, int number)
{
    for (int r = 0; j->ranks && r < j->options.ranks; r++)
        if (j->ranks[r].pid > 0) kill(-j->ranks[r].pid, number);
}

/* For what leaves us unable to go on: takes the ranks with it. */
static void die(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("dmlrun: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    signal_ranks(&the_job, SIGKILL);
    exit(status);
}

/* dmlrun's own sentences, in order with the ranks' lines. */
static void say(job *j, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sink_hide_live(j->err);
    sink_text(j->err, "dmlrun: ");
    sink_text(j->err, text);
    sink_text(j->err, "\n");
}

/* ---- starting ---- */

static void set_close_on_exec(int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* In the new process: everything up to exec. */
static void become_rank(const job *j, int r, int out, int err, pid_t parent)
{
    setpgid(0, 0);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* so that a killed dmlrun leaves no rank behind */
#endif
    if (getppid() != parent) _exit(1);
    for (int i = 0; i < HANDLED_COUNT; i++) sigaction(HANDLED[i], &inherited[i], NULL);
    set_number("RANK", r);
    set_number("LOCAL_RANK", r);
    if (r > 0 || isatty(0)) { /* a terminal's input would stop a process group in the background */
        const int nothing = open("/dev/null", O_RDONLY);
        if (nothing > 0) dup2(nothing, 0), close(nothing);
    }
    if (out < 0) return;
    dup2(out, 1);
    dup2(err, 2);
    unsetenv("DML_TERMINAL");
    if (r > 0) return;
    const char *terminals[] = { NULL, "2", "1", "12" };
    const char *mine = terminals[2 * j->out->terminal + j->err->terminal];
    if (!mine) return;
    setenv("DML_TERMINAL", mine, 1);
    struct winsize size;
    if (ioctl(j->out->terminal ? j->out->fd : j->err->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 24)
        set_number("COLUMNS", size.ws_col - (int)strlen("[0] "));
}

static bool make_pipe(int pair[2])
{
    if (pipe(pair) != 0) return false;
    set_close_on_exec(pair[0]);
    set_close_on_exec(pair[1]);
    return true;
}

/* Starts rank r on this machine; 0, or the errno that says why not, with what was being done in *what.
   This is the seam for ranks elsewhere: a --host option would choose for each rank between this function and
   one that runs `ssh HOST env RANK=... program`, with the same three results: a pid, and two streams. */
static int start_rank(job *j, int r, const char **what)
{
    rank *self = &j->ranks[r];
    int out[2] = { -1, -1 }, err[2] = { -1, -1 }, failure[2];
    *what = "open a pipe";
    if (!make_pipe(failure)) return errno;
    if (j->options.prefix && (!make_pipe(out) || !make_pipe(err))) return errno;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* our handlers must not run in the child */
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        become_rank(j, r, out[1], err[1], parent);
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(j->options.program[0], j->options.program);
        const int reason = errno;
        if (write(failure[1], &reason, sizeof reason) < 0) _exit(1);
        _exit(EXIT_NOT_FOUND);
    }
    const int reason = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(failure[1]);
    if (j->options.prefix) {
        close(out[1]);
        close(err[1]);
    }
    if (pid < 0) {
        *what = "start a process";
        return reason;
    }
    setpgid(pid, pid); /* here as well, so that it is done whoever comes first */
    self->pid = pid;
    self->out.fd = out[0];
    self->err.fd = err[0];
    j->living++;
    if (j->options.prefix) {
        fcntl(out[0], F_SETFL, O_NONBLOCK);
        fcntl(err[0], F_SETFL, O_NONBLOCK);
    }
    int why = 0;
    ssize_t count;
    do count = read(failure[0], &why, sizeof why);
    while (count < 0 && errno == EINTR);
    close(failure[0]);
    *what = "run the program";
    return count == (ssize_t)sizeof why ? why : 0;
}

/* ---- the timeline ---- */

enum { TRACE_PATH = 1024 };

/* Each rank writes a file of its own, FILE.RANK (comm/trace.c): an array of JSON with an event on each line
   between its first and its last. */
static void trace_path(const options *o, int r, char path[TRACE_PATH])
{
    if (snprintf(path, TRACE_PATH, "%s.%d", o->trace, r) >= TRACE_PATH)
        die(EXIT_USAGE, "--trace: the path '%s' is too long", o->trace);
}

/* So that nothing of an earlier job gets into this one's. */
static void begin_trace(const options *o)
{
    char path[TRACE_PATH];
    for (int r = 0; r < o->ranks; r++) {
        trace_path(o, r, path);
        unlink(path);
    }
    setenv("DML_TRACE", o->trace, 1);
}

/* Copies a rank's events behind those that are there; what a killed rank has left is as good as whole lines.
 */
static void append_trace(FILE *to, FILE *from, bool *first)
{
    char line[4096];
    while (fgets(line, sizeof line, from)) {
        size_t length = strcspn(line, "\n");
        if (line[0] != '{' || line[length] != '\n') continue;
        if (line[length - 1] == ',') length--;
        fprintf(to, "%s%.*s", *first ? "[\n" : ",\n", (int)length, line);
        *first = false;
    }
}

/* All ranks' files become one. */
static void end_trace(job *j)
{
    char path[TRACE_PATH];
    bool first = true;
    FILE *to = fopen(j->options.trace, "w");
    for (int r = 0; to && r < j->options.ranks; r++) {
        trace_path(&j->options, r, path);
        FILE *from = fopen(path, "r");
        if (!from) continue;
        append_trace(to, from, &first);
        fclose(from);
        unlink(path);
    }
    const bool written = to && fputs(first ? "[\n]\n" : "\n]\n", to) >= 0 && fflush(to) == 0;
    if (to) fclose(to);
    if (written) return;
    fprintf(stderr, "dmlrun: can't write '%s': %s\n", j->options.trace, strerror(errno));
    if (j->exit_status == 0) j->exit_status = 1;
}

/* ---- ending ---- */

static void kill_ranks(job *j)
{
    if (j->stage != KILLED) signal_ranks(j, SIGKILL);
    j->stage = KILLED;
}

/* Ranks that lose a connection have a sentence to say, which a signal at once would cut off. */
static void let_end(job *j)
{
    j->stage = FAILED;
    j->until = now() + ALONE * j->options.grace;
}

/* Asks every rank to end, and wakes the stopped ones to hear it. */
static void begin_ending(job *j, int number)
{
    j->stage = ASKED;
    j->until = now() + j->options.grace;
    signal_ranks(j, number);
    signal_ranks(j, SIGCONT);
}

static int exit_status_of(int status)
{
    return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A frozen rank makes others fail, by their deadlines, and so does one that has left: the sentence about them
   had better name it. */
static void describe_absent(const job *j, bool spared, char *text, size_t size)
{
    text[0] = '\0';
    for (int r = 0; r < j->options.ranks; r++) {
        siginfo_t info;
        memset(&info, 0, sizeof info);
        if (j->ranks[r].pid == 0 ||
            waitid(P_PID, (id_t)j->ranks[r].pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        snprintf(text, size, " (rank %d is stopped)", r);
        return;
    }
    for (int r = 0; r < j->options.ranks && !spared; r++) /* whom the others may have missed */
        if (j->ranks[r].pid == 0 && j->ranks[r].status == 0 && !*text)
            snprintf(text, size, " (rank %d had ended before, with status 0)", r);
}

/* Servers and other workers go on without a worker, and where it was asked for, all ranks without any. */
static bool can_be_spared(const job *j, int r)
{
    if (!j->options.kill_on_bad_exit) return true;
    int workers = 0;
    for (int w = 0; w < j->options.workers; w++) workers += j->ranks[w].pid != 0;
    return r < j->options.workers && workers > 0;
}

/* Of a worker that can be spared and a server that failed beside it, the server ends the job. */
static int gravest(const job *j, int cause)
{
    if (!can_be_spared(j, cause)) return cause;
    for (int r = j->options.workers; r < j->options.ranks; r++)
        if (j->ranks[r].pid == 0 && j->ranks[r].status != 0) return r;
    return cause;
}

static void rank_failed(job *j, int r)
{
    const int status = j->ranks[r].status;
    const double alone = ALONE * j->options.grace;
    char how[128], ranks[32] = "rank", others[96] = "", stopped[64];
    if (WIFSIGNALED(status)) {
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        snprintf(how, sizeof how, "exited with status %d", WEXITSTATUS(status));
    }
    const bool spared = can_be_spared(j, r);
    if (j->living > 1) snprintf(ranks, sizeof ranks, "%d ranks", j->living);
    if (j->living > 0 && spared)
        snprintf(others, sizeof others, "; the other %s go%s on", ranks, j->living == 1 ? "es" : "");
    else if (j->living > 0 && alone > 0)
        snprintf(others, sizeof others, "; ending the other %s in %g s", ranks, alone);
    else if (j->living > 0)
        snprintf(others, sizeof others, "; ending the other %s", ranks);
    describe_absent(j, spared, stopped, sizeof stopped);
    say(j, "rank %d %s%s%s", r, how, stopped, others);
    if (!spared) let_end(j);
}

/* The others have had their time. They may have been going on, so it is said who ends them. */
static void end_others(job *j)
{
    const double alone = ALONE * j->options.grace;
    const int n = j->living;
    if (alone > 0) say(j, "%g s are over; ending %d rank%s", alone, n, n == 1 ? "" : "s");
    begin_ending(j, SIGTERM);
}

static int rank_of(const job *j, pid_t pid)
{
    for (int r = 0; r < j->options.ranks; r++)
        if (j->ranks[r].pid == pid) return r;
    return -1;
}

/* Buries a rank that has ended and returns it; -1: there is none. */
static int bury_one(job *j)
{
    for (;;) {
        siginfo_t info;
        memset(&info, 0, sizeof info);
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return -1;
        const int r = rank_of(j, info.si_pid);
        if (r >= 0) kill(-info.si_pid, SIGKILL); /* what it started; its number isn't free before waitpid */
        int status;
        waitpid(info.si_pid, &status, 0);
        if (r < 0) continue;
        rank *dead = &j->ranks[r];
        dead->pid = 0;
        dead->status = status;
        j->living--;
        stream_finish(&dead->out);
        stream_finish(&dead->err);
        return r;
    }
}

/* Buries the dead. Of several that failed together, a signal's victim is the cause and the others, whose
   connections it broke, the consequence. Takes and returns the cause so far, -1 when nobody failed. */
static int bury(job *j, int cause)
{
    for (int r; (r = bury_one(j)) >= 0;) {
        const int status = j->ranks[r].status;
        if (status != 0 && (cause < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(j->ranks[cause].status))))
            cause = r;
    }
    return cause;
}

/* Where the others go on, each failure is one of its own. Of ranks found at once nobody knows which ended
   last: a failure among them counts. Once the job is being ended, any failure does. */
static void reap_each(job *j)
{
    int r = bury_one(j), failure = 0;
    if (r < 0) return;
    for (; r >= 0; r = bury_one(j)) {
        if (j->ranks[r].status == 0) continue;
        if (failure == 0) failure = exit_status_of(j->ranks[r].status);
        if (j->stage == RUNNING) rank_failed(j, r);
    }
    j->last_status = failure;
    if (j->stage != RUNNING && j->exit_status == 0) j->exit_status = failure;
}

static void reap(job *j)
{
    if (!j->options.kill_on_bad_exit) {
        reap_each(j);
        return;
    }
    int cause = bury(j, -1);
    if (cause < 0) return;
    if (j->stage == RUNNING && j->living > 0 && !WIFSIGNALED(j->ranks[cause].status)) {
        poll(NULL, 0, SETTLE_MS); /* a dying process closes its connections before it counts as dead */
        cause = bury(j, cause);
    }
    cause = gravest(j, cause);
    if (j->exit_status == 0) j->exit_status = exit_status_of(j->ranks[cause].status);
    if (j->stage == RUNNING) rank_failed(j, cause);
}

/* ---- signals ---- */

static void on_signal(int number)
{
    const int kept = errno;
    const unsigned char byte = (unsigned char)number;
    if (write(signal_pipe[1], &byte, 1) < 0)
        errno = 0; /* the pipe is full of signals: one more says nothing */
    errno = kept;
}

static void install_handlers(void)
{
    if (!make_pipe(signal_pipe)) die(1, "can't open a pipe: %s", strerror(errno));
    fcntl(signal_pipe[0], F_SETFL, O_NONBLOCK);
    fcntl(signal_pipe[1], F_SETFL, O_NONBLOCK);
    for (int i = 0; i < HANDLED_COUNT; i++) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        sigemptyset(&action.sa_mask);
        action.sa_handler = HANDLED[i] == SIGPIPE ? SIG_IGN : on_signal;
        sigaction(HANDLED[i], NULL, &inherited[i]);
        const bool stays_ignored = inherited[i].sa_handler == SIG_IGN && HANDLED[i] != SIGCHLD;
        if (!stays_ignored) sigaction(HANDLED[i], &action, NULL);
    }
}

static bool is_passed_on(int number)
{
    for (size_t i = 0; i < sizeof PASSED_ON / sizeof PASSED_ON[0]; i++)
        if (PASSED_ON[i] == number) return true;
    return false;
}

static void take_signal(job *j, int number)
{
    if (number == SIGTSTP) { /* Ctrl-Z stops the whole job, fg and bg wake it */
        signal_ranks(j, SIGTSTP);
        raise(SIGSTOP);
    } else if (number == SIGCONT) {
        signal_ranks(j, SIGCONT);
    } else if (is_passed_on(number)) {
        j->ended_by = number;
        j->silenced = j->living == 0;
        if (j->stage >= ASKED || j->silenced) {
            kill_ranks(j);
            return;
        }
        const int n = j->living;
        say(j, "got signal %d (%s); ending %d rank%s", number, strsignal(number), n, n == 1 ? "" : "s");
        begin_ending(j, number);
    }
}

static void take_signals(job *j)
{
    unsigned char numbers[256];
    const ssize_t count = read(signal_pipe[0], numbers, sizeof numbers);
    for (ssize_t i = 0; i < count; i++) take_signal(j, numbers[i]);
    reap(j);
}

/* ---- the loop ---- */

/* What is left of the output would be lost, so the job ends: by SIGPIPE, as in any pipeline, when a reader
   has left, and otherwise with a sentence, if that can still be written. */
static void output_failed(job *j, const sink *s)
{
    const bool reader_left = s->failure == EPIPE;
    if (j->exit_status == 0) j->exit_status = reader_left ? EXIT_SIGNAL + SIGPIPE : 1;
    if (reader_left) return;
    char others[64] = "";
    if (j->living == 1) snprintf(others, sizeof others, "; ending the rank");
    if (j->living > 1) snprintf(others, sizeof others, "; ending %d ranks", j->living);
    say(j, "can't write to the standard %s: %s%s", s == j->err && s != j->out ? "error" : "output",
        strerror(s->failure), j->stage >= ASKED ? "" : others);
    if (j->stage < ASKED) begin_ending(j, SIGTERM);
}

static bool anything_to_write(const job *j)
{
    return j->sinks[0].used > 0 || j->sinks[1].used > 0;
}

static int poll_timeout(const job *j)
{
    if (j->stage == RUNNING || j->stage == KILLED || j->living == 0) return -1;
    const double left = j->until - now();
    return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1;
}

/* Runs until every rank has ended and all is written. A signal then stops the writing. */
static void run(job *j, struct pollfd *polls, stream **polled)
{
    while (j->living > 0 || (anything_to_write(j) && !j->silenced)) {
        int count = 0;
        for (int i = 0; i < 2; i++) sink_show_live(&j->sinks[i]);
        polls[count++] = (struct pollfd){ .fd = signal_pipe[0], .events = POLLIN };
        for (int i = 0; i < 2; i++) {
            const sink *s = &j->sinks[i];
            polls[count++] = (struct pollfd){ .fd = s->used > 0 ? s->fd : -1, .events = POLLOUT };
        }
        for (int r = 0; r < j->options.ranks; r++) {
            stream *both[] = { &j->ranks[r].out, &j->ranks[r].err };
            for (int i = 0; i < 2; i++) {
                if (both[i]->fd >= 0 && both[i]->sink->broken) stream_close(both[i]);
                if (both[i]->fd < 0 || both[i]->sink->used - both[i]->sink->start >= SINK_FULL) continue;
                polled[count] = both[i];
                polls[count++] = (struct pollfd){ .fd = both[i]->fd, .events = POLLIN };
            }
        }
        if (poll(polls, (nfds_t)count, poll_timeout(j)) < 0)
            continue; /* a signal, which the pipe tells too */
        for (int i = 3; i < count; i++)
            if (polls[i].revents) stream_read(polled[i]);
        for (int i = 0; i < 2; i++) {
            if (polls[1 + i].revents) sink_write(&j->sinks[i]);
            if (polls[1 + i].revents && j->sinks[i].broken) output_failed(j, &j->sinks[i]);
        }
        if (polls[0].revents) take_signals(j);
        if (poll_timeout(j) != 0) continue;
        if (j->stage == FAILED)
            end_others(j);
        else
            kill_ranks(j);
    }
}

static void open_sinks(job *j)
{
    struct stat out, err;
    const char *kind = getenv("TERM");
    const bool dumb = !kind || strcmp(kind, "dumb") == 0;
    const bool same = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
                      out.st_ino == err.st_ino && out.st_rdev == err.st_rdev;
    for (int i = 0; i < 2; i++) {
        j->sinks[i].fd = 1 + i;
        j->sinks[i].terminal = !dumb && isatty(1 + i);
    }
    j->out = &j->sinks[0];
    j->err = same ? j->out : &j->sinks[1];
}

/* Whoever closed one of our standard files gets nothing in it, rather than a pipe that we open next. */
static void open_standard_files(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd < 2);
    if (fd > 2) close(fd);
}

/* Starts every rank, or none. */
static void start_all(job *j)
{
    for (int r = 0; r < j->options.ranks; r++) {
        rank *self = &j->ranks[r];
        self->out = (stream){ .fd = -1, .rank = r, .sink = j->out };
        self->err = (stream){ .fd = -1, .rank = r, .sink = j->err };
        const char *what;
        const int failure = start_rank(j, r, &what);
        if (failure == 0) continue;
        const char *name = j->options.program[0];
        if (strcmp(what, "run the program") != 0)
            die(1, "can't %s for rank %d of %d: %s", what, r, j->options.ranks, strerror(failure));
        if (failure == ENOENT) die(EXIT_NOT_FOUND, "there is no program '%s'", name);
        die(EXIT_CANNOT_EXECUTE, "can't run '%s': %s", name, strerror(failure));
    }
}

int main(int argc, char **argv)
{
    if (argc < 1) return EXIT_USAGE;
    job *j = &the_job;
    j->options = parse_options(argv);
    const size_t n = (size_t)j->options.ranks;
    open_standard_files();
    j->ranks = calloc(n, sizeof *j->ranks);
    struct pollfd *polls = calloc(3 + 2 * n, sizeof *polls);
    stream **polled = calloc(3 + 2 * n, sizeof *polled);
    if (!j->ranks || !polls || !polled) die(1, "no memory left for %d ranks", j->options.ranks);
    open_sinks(j);
    install_handlers();
    set_environment(&j->options);
    if (j->options.trace) begin_trace(&j->options);
    start_all(j);
    run(j, polls, polled);
    if (j->exit_status == 0) j->exit_status = j->last_status;
    if (j->options.trace) end_trace(j);
    free(polls);
    free(polled);
    free(j->ranks);
    for (int i = 0; i < 2; i++) free(j->sinks[i].bytes);
    if (j->ended_by && j->exit_status != 0) return EXIT_SIGNAL + j->ended_by;
    return j->exit_status;
}
