/* What dmlrun starts, passes on, waits for and ends. */
#define _GNU_SOURCE
#include "dmlrun.h"

/* Of the ports that connections get: a program may open another job at MASTER_PORT + 1. */
static int first_handed_out(void)
{
    int first = 32768;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    if (!file) return first;
    CHECK_INT(fscanf(file, "%d", &first), 1);
    fclose(file);
    return first > 10100 ? first : 65536;
}

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
    CHECK(port && atoi(port + 12) >= 10000 && atoi(port + 12) < first_handed_out());
    if (key) {
        char same[80];
        snprintf(same, sizeof same, "%.72s", key);
        CHECK_INT(count_of(r.out, same), 9);
        run again = DMLRUN("-n2", "@", "env");
        CHECK_INT(count_of(again.out, same), 0);
        forget(&again);
    }
    CHECK_INT(count_of(r.out, "DML_TERMINAL=- "), 9);
    CHECK_INT(count_of(r.out, "DML_THREADS=- "), 9); /* the library's share heeds quotas too */
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
    CHECK_STRING(r.err, "dmlrun: rank 1 exited with status 7; the other 2 ranks go on\n");
    CHECK_CONTAINS(r.out, "[0] went on");
    CHECK_CONTAINS(r.out, "[2] went on");
    forget(&r);
    r = DMLRUN("--workers", "1", "--ps", "1", "--grace", "0.2", "@", "exit", "0", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 7; ending the other rank in 0.08 s\n"
                        "dmlrun: 0.08 s are over; ending 1 rank\n");
    forget(&r);
    r = DMLRUN("--workers", "2", "--ps", "1", "--grace", "0.2", "@", "exit", "2", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 2 exited with status 7; ending the other 2 ranks in 0.08 s\n"
                        "dmlrun: 0.08 s are over; ending 2 ranks\n");
    forget(&r);
    r = DMLRUN("--workers", "3", "--ps", "1", "--grace", "0.2", "@", "exit_two", "0", "3");
    CHECK_INT(r.status, 7);
    CHECK_CONTAINS(r.err, "dmlrun: rank 3 exited with status 7; ending the other 2 ranks in 0.08 s\n");
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
    run r = DMLRUN("-n", "4", "--grace", "0.2", "@", "exit", "2", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 2 exited with status 7; ending the other 3 ranks in 0.08 s\n"
                        "dmlrun: 0.08 s are over; ending 3 ranks\n");
    forget(&r);
    r = DMLRUN("-n", "2", "--grace", "0.2", "@", "kill", "1", "9");
    CHECK_INT(r.status, 128 + 9);
    CHECK_STRING(r.err, "dmlrun: rank 1 was killed by signal 9 (Killed); ending the other rank in 0.08 s\n"
                        "dmlrun: 0.08 s are over; ending 1 rank\n");
    forget(&r);
    r = DMLRUN("-n", "2", "--grace", "0", "--kill-on-bad-exit=1", "@", "exit", "0", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 7; ending the other rank\n");
    forget(&r);
    r = DMLRUN("-n", "1", "@", "exit", "0", "3");
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 3\n");
    forget(&r);
}

/* What a library sees of a lost peer is worth more than our own sentence. */
static void the_others_have_last_words(void)
{
    run r = DMLRUN("-n", "3", "--grace", "25", "@", "last_words", "1", "7");
    CHECK_INT(r.status, 7);
    CHECK_STRING(r.err, "dmlrun: rank 1 exited with status 7; ending the other 2 ranks in 10 s\n");
    CHECK_CONTAINS(r.out, "[0] rank 1 died\n");
    CHECK_CONTAINS(r.out, "[2] rank 1 died\n");
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
    run r = START("-n", "3", "@", "signals");
    const pid_t failing = pid_of(&r, 0), stopped = pid_of(&r, 2);
    pid_of(&r, 1);
    if (stopped > 0) kill(stopped, SIGSTOP), wait_until_stopped(stopped);
    if (failing > 0) kill(failing, SIGUSR1);
    finish(&r);
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err,
                 "dmlrun: rank 0 exited with status 3 (rank 2 is stopped); ending the other 2 ranks in 2 s\n"
                 "dmlrun: 2 s are over; ending 2 ranks\n");
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
    wait_until_said(r.err_file, "got signal"); /* the first has been taken */
    kill(r.pid, SIGINT);
    finish(&r);
    CHECK_INT(r.status, 128 + SIGINT);
    forget(&r);
}

/* Starts ranks that end when they are told to, and kills rank 0. */
static run start_and_lose_rank_0(const char *one, const char *two, pid_t left[2])
{
    run r = START(one, two, "--kill-on-bad-exit", "0", "--grace", "0.05", "@", "signals");
    const pid_t lost = pid_of(&r, 0);
    for (int i = 0; i < 2; i++) left[i] = pid_of(&r, i + 1);
    if (lost > 0) kill(lost, SIGKILL);
    wait_until_said(r.err_file, "rank 0 was killed by signal 9 (Killed); the other 2 ranks go on\n");
    return r;
}

/* Returns when dmlrun has seen its end. */
static void end_rank(pid_t pid, int number)
{
    if (pid <= 0) return;
    kill(pid, number);
    for (int waited = 0; waited < PATIENCE_MS && kill(pid, 0) == 0; waited += 2) nap();
}

/* Who left first, though as if all were well, may be why another failed. */
static void who_left_is_named(void)
{
    run r = START("-n", "3", "@", "signals");
    pid_t ranks[3];
    for (int i = 0; i < 3; i++) ranks[i] = pid_of(&r, i);
    end_rank(ranks[2], SIGTERM);
    end_rank(ranks[0], SIGUSR1);
    finish(&r);
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err,
                 "dmlrun: rank 0 exited with status 3 (rank 2 had ended before, with status 0); ending the "
                 "other rank in 2 s\ndmlrun: 2 s are over; ending 1 rank\n");
    forget(&r);
}

/* They have as long as they want: the grace period is over long before they end. */
static void the_others_go_on(void)
{
    run r = DMLRUN("-n", "3", "--kill-on-bad-exit", "0", "--grace", "0.05", "@", "spare", "0", "7");
    CHECK_INT(r.status, 0);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 7; the other 2 ranks go on\n");
    CHECK_CONTAINS(r.out, "[1] went on");
    CHECK_CONTAINS(r.out, "[2] went on");
    forget(&r);
    r = DMLRUN("--workers=1", "--ps=1", "--kill-on-bad-exit=0", "--grace=0.05", "@", "spare", "0", "7");
    CHECK_INT(r.status, 0);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 7; the other rank goes on\n");
    CHECK_CONTAINS(r.out, "[1] went on");
    forget(&r);
}

static void the_last_rank_gives_the_status(void)
{
    pid_t left[2];
    run r = start_and_lose_rank_0("-n", "3", left);
    end_rank(left[0], SIGTERM); /* it ends well */
    end_rank(left[1], SIGUSR1); /* it fails */
    finish(&r);
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err, "dmlrun: rank 0 was killed by signal 9 (Killed); the other 2 ranks go on\n"
                        "dmlrun: rank 2 exited with status 3\n");
    forget(&r);
    r = start_and_lose_rank_0("--workers=2", "--ps=1", left);
    end_rank(left[1], SIGUSR1); /* a server, whose failure would end the others */
    end_rank(left[0], SIGTERM);
    finish(&r);
    CHECK_INT(r.status, 0);
    CHECK_STRING(r.err, "dmlrun: rank 0 was killed by signal 9 (Killed); the other 2 ranks go on\n"
                        "dmlrun: rank 2 exited with status 3; the other rank goes on\n");
    forget(&r);
    r = DMLRUN("-n", "1", "--kill-on-bad-exit=0", "@", "exit", "0", "3");
    CHECK_INT(r.status, 3);
    CHECK_STRING(r.err, "dmlrun: rank 0 exited with status 3\n");
    forget(&r);
}

static void signals_end_those_that_go_on(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    pid_t left[2];
    for (int i = 0; i < 3; i++) {
        run r = start_and_lose_rank_0("-n", "3", left);
        kill(r.pid, numbers[i]);
        finish(&r);
        CHECK_INT(r.status, 0); /* as many as went on caught it and ended well */
        CHECK_CONTAINS(r.err, "; ending 2 ranks\n");
        CHECK_INT(count_of(r.out, "caught "), 2);
        forget(&r);
    }
    run r = START("-n", "2", "--kill-on-bad-exit", "0", "@", "bar");
    pid_of(&r, 1);
    kill(r.pid, SIGINT); /* which these ranks don't catch */
    finish(&r);
    CHECK_INT(r.status, 128 + SIGINT);
    CHECK_INT(count_of(r.err, "\n"), 1);
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
        { "-n2", "--kill-on-bad-exit=2", "true", "dmlrun: --kill-on-bad-exit takes 0 or 1, not '2'\n" },
        { "-n2", "--kill-on-bad-exit", "true", "dmlrun: --kill-on-bad-exit takes 0 or 1, not 'true'\n" },
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

static void all(void)
{
    RUN(all_ranks_end_well);
    RUN(options_reach_the_ranks);
    RUN(workers_and_servers);
    RUN(a_worker_can_be_spared);
    RUN(one_rank_is_not_prefixed);
    RUN(a_failing_rank_is_named);
    RUN(the_others_have_last_words);
    RUN(a_stopped_rank_is_named_and_ended);
    RUN(who_left_is_named);
    RUN(a_stubborn_rank_is_killed);
    RUN(signals_are_passed_on);
    RUN(a_second_signal_kills);
    RUN(the_others_go_on);
    RUN(the_last_rank_gives_the_status);
    RUN(signals_end_those_that_go_on);
    RUN(no_rank_outlives_a_killed_dmlrun);
    RUN(grandchildren_end_with_their_rank);
    RUN(wrong_usage_is_told);
    RUN(help_and_version_are_printed);
    RUN(a_program_that_cannot_run_is_told);
}

int main(int argc, char **argv)
{
    return dmlrun_main(argc, argv, all, "tools/dmlrun");
}
