/* dmlrun_options.h: what dmlrun's command line asks for. */
#ifndef DMLRUN_OPTIONS_H
#define DMLRUN_OPTIONS_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION "0.1.0"

enum { RANKS_MAX = 4096, EXIT_USAGE = 2 };

/* dmlrun.c's: ends the job with a sentence. */
static void die(int status, const char *format, ...);

static const char USAGE[] =
    "usage: dmlrun -n RANKS [options] [--] program [arguments...]\n"
    "       dmlrun --workers N --ps P [options] [--] program [arguments...]\n"
    "\n"
    "Starts RANKS processes of a program on this machine, each with RANK, LOCAL_RANK, WORLD_SIZE,\n"
    "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment. When one fails, the others may end "
    "by\n"
    "themselves for a moment, so that they can say what they have seen of it, and are then ended.\n"
    "\n"
    "  -n, --ranks N          how many processes\n"
    "      --workers N --ps P N workers and behind them P parameter servers (DML_PS); a worker that fails\n"
    "                         doesn't end the others\n"
    "      --master-addr A    MASTER_ADDR, where rank 0 listens (default 127.0.0.1)\n"
    "      --master-port P    MASTER_PORT (default: a free port)\n"
    "      --cpus-per-rank C  DML_THREADS, the threads of each rank; otherwise it stays as it is, and where "
    "it\n"
    "                         isn't set each rank takes its share of the processors\n"
    "      --grace S          seconds between asking a rank to end and killing it (default 5); after a\n"
    "                         failure 0.4 of them go by before the others are asked\n"
    "      --kill-on-bad-exit 0|1\n"
    "                         0: a rank that fails doesn't end the others, and the exit status is that of\n"
    "                         the rank that ended last; 1: it does (default)\n"
    "      --trace FILE       a timeline of all ranks' collectives in FILE, for ui.perfetto.dev (DML_TRACE)\n"
    "      --no-prefix        don't collect the output: the ranks write to ours themselves\n"
    "      --version          print the version\n"
    "  -h, --help             print this\n"
    "\n"
    "Each line of output is prefixed with its rank, \"[0] \"; with one rank there is no prefix.\n"
    "A rank writes to a pipe, for which C's stdio keeps lines back: setvbuf(stdout, NULL, _IOLBF, 0) shows "
    "them.\n"
    "Also set for the ranks, unless set already: DML_KEY, a fresh random key that the ranks of a job know "
    "each\n"
    "other by. DML_TERMINAL tells rank 0 which of its outputs (\"1\", \"2\") end on a terminal, though it "
    "writes\n"
    "to a pipe; COLUMNS then tells how wide.\n"
    "\n"
    "SIGINT, SIGTERM and SIGHUP are passed on to every rank; ranks still there after the grace period, or "
    "at\n"
    "a second signal, are killed. Standard input goes to rank 0, except from a terminal.\n"
    "\n"
    "Exit status: 0 when every rank ended with 0, else that of the rank that failed first, or, with\n"
    "--kill-on-bad-exit 0, that of the rank that ended last (128 + N when signal N killed it or ended the\n"
    "job); 1 when its output can't be written, 2 for wrong usage, 126 and 127 for a program that can't be\n"
    "run.\n";

typedef struct options {
    int ranks;
    int workers, servers; /* 0: unset; else ranks is their sum */
    const char *master_address;
    int master_port; /* 0: a free one */
    int threads;     /* 0: unset */
    double grace;    /* seconds */
    bool kill_on_bad_exit;
    bool prefix;
    const char *trace; /* NULL: none */
    char **program;    /* with its arguments, NULL at the end */
} options;

static double number_of(const char *option, const char *text, double least, double most)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        die(EXIT_USAGE, "%s takes a number from %.0f to %.0f, not '%s'", option, least, most, text);
    return value;
}

static int whole_number_of(const char *option, const char *text, int least, int most)
{
    const double value = number_of(option, text, least, most);
    if (value != (int)value) die(EXIT_USAGE, "%s takes a whole number, not '%s'", option, text);
    return (int)value;
}

/* Is argv[*i] this option? "--name value" and "--name=value", "-n value" and "-nvalue". */
static bool option_value(char **argv, int *i, const char *letter, const char *name, const char **value)
{
    const char *argument = argv[*i];
    const size_t length = strlen(name);
    const bool is_letter = letter && strncmp(argument, letter, 2) == 0;
    if (strncmp(argument, name, length) == 0 && argument[length] == '=')
        *value = argument + length + 1;
    else if (is_letter && argument[2])
        *value = argument + 2;
    else if (is_letter || strcmp(argument, name) == 0)
        *value = argv[++*i];
    else
        return false;
    if (!*value || !**value) die(EXIT_USAGE, "%s needs a value (dmlrun --help)", argument);
    return true;
}

static bool switch_of(const char *option, const char *text)
{
    const bool on = strcmp(text, "1") == 0;
    if (!on && strcmp(text, "0") != 0) die(EXIT_USAGE, "%s takes 0 or 1, not '%s'", option, text);
    return on;
}

/* Does nothing but print this. */
static void print_and_exit(const char *text)
{
    if (fputs(text, stdout) < 0 || fflush(stdout) != 0)
        die(1, "can't write to the standard output: %s", strerror(errno));
    exit(0);
}

static options parse_options(char **argv)
{
    options o = { .master_address = "127.0.0.1", .grace = 5, .kill_on_bad_exit = true, .prefix = true };
    int i = 1;
    for (; argv[i] && argv[i][0] == '-'; i++) {
        const char *value;
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        } else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            print_and_exit(USAGE);
        } else if (strcmp(argv[i], "--version") == 0) {
            print_and_exit("dmlrun " VERSION "\n");
        } else if (strcmp(argv[i], "--no-prefix") == 0) {
            o.prefix = false;
        } else if (option_value(argv, &i, "-n", "--ranks", &value)) {
            o.ranks = whole_number_of("-n", value, 1, RANKS_MAX);
        } else if (option_value(argv, &i, NULL, "--workers", &value)) {
            o.workers = whole_number_of("--workers", value, 1, RANKS_MAX - 1);
        } else if (option_value(argv, &i, NULL, "--ps", &value)) {
            o.servers = whole_number_of("--ps", value, 1, RANKS_MAX - 1);
        } else if (option_value(argv, &i, NULL, "--master-addr", &value)) {
            o.master_address = value;
        } else if (option_value(argv, &i, NULL, "--master-port", &value)) {
            o.master_port = whole_number_of("--master-port", value, 1, 65535);
        } else if (option_value(argv, &i, NULL, "--cpus-per-rank", &value)) {
            o.threads = whole_number_of("--cpus-per-rank", value, 1, 65535);
        } else if (option_value(argv, &i, NULL, "--trace", &value)) {
            o.trace = value;
        } else if (option_value(argv, &i, NULL, "--grace", &value)) {
            o.grace = number_of("--grace", value, 0, 1e6);
        } else if (option_value(argv, &i, NULL, "--kill-on-bad-exit", &value)) {
            o.kill_on_bad_exit = switch_of("--kill-on-bad-exit", value);
        } else {
            die(EXIT_USAGE, "there is no option '%s' (dmlrun --help)", argv[i]);
        }
    }
    o.program = argv + i;
    if ((o.workers > 0) != (o.servers > 0))
        die(EXIT_USAGE, "--workers and --ps go together: a cluster has at least one of each (dmlrun --help)");
    if (o.workers > 0 && o.ranks > 0 && o.ranks != o.workers + o.servers)
        die(EXIT_USAGE, "%d workers and %d parameter servers aren't %d ranks; leave -n out", o.workers,
            o.servers, o.ranks);
    if (o.workers + o.servers > RANKS_MAX)
        die(EXIT_USAGE, "%d workers and %d parameter servers are more than %d ranks", o.workers, o.servers,
            RANKS_MAX);
    if (o.workers > 0) o.ranks = o.workers + o.servers;
    if (o.ranks == 0) die(EXIT_USAGE, "how many ranks? Say -n RANKS (dmlrun --help)");
    if (!o.program[0]) die(EXIT_USAGE, "which program? It follows the options (dmlrun --help)");
    if (o.ranks == 1) o.prefix = false;
    return o;
}

#endif
