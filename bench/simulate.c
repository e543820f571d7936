/* simulate: what collectives would take on machines that aren't here, by running their schedules in virtual
 * time (src/comm/price.h), and how far that is from what was measured. */
#include "options.h"

#include "base/status.c"
#include "comm/algorithms.c"
#include "comm/bruck.c"
#include "comm/butterfly.c"
#include "comm/chain.c"
#include "comm/direct.c"
#include "comm/price.c"
#include "comm/price_group.c"
#include "comm/ring.c"
#include "comm/shared.c"
#include "comm/steps.c"
#include "comm/tree.c"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>

enum { ALGORITHMS_MAX = 64, SIZES_MAX = 32, WORDS_MAX = 32 };

typedef struct settings {
    const char *operation, *algorithm, *topology, *svg, *check;
    const char *ranks, *bytes;
    int ranks_per_host, processors;
    double latency_us, bandwidth_gbit, overhead_us, touch_ns, change_us, segment;
    const char *program; /* argv[0] */
} settings;

/* The algorithms that are asked for, and the sizes. */
typedef struct plan {
    int algorithm[ALGORITHMS_MAX], count; /* indices of dml__algorithms() */
    double ranks[SIZES_MAX], bytes[SIZES_MAX];
    int ranks_count, bytes_count;
    void *work;
    size_t work_bytes;
} plan;

static const char usage[] =
    "usage: simulate [options]\n"
    "  --op NAME         all_reduce, reduce, broadcast, scatter, gather, all_gather, reduce_scatter, "
    "all_to_all,\n"
    "                    barrier or all; all_reduce\n"
    "  --algo NAME       one algorithm only, as in DML_COMM_ALGO; all\n"
    "  --ranks A:B       powers of two from A to B, or one number; 2:4096\n"
    "  --bytes A:B       powers of four from A to B, or one number, of what the call's count counts: the "
    "whole\n"
    "                    array, or one rank's part of it; 4:268435456\n"
    "  --hosts-of R      ranks of a host, who share its port; 1\n"
    "  --latency US      between two hosts, one way; 30\n"
    "  --bandwidth GBIT  of a host's port, each way; 10\n"
    "  --overhead US     of a processor for a message, at each end; 3\n"
    "  --touch NS        of a processor for a KiB, at each end: copies into and out of sockets; 0\n"
    "  --processors N    that all ranks share: the hosts are emulated on one machine; 0: each has its own\n"
    "  --change US       until such a processor is with another rank; 2\n"
    "  --segment B       bytes of a segment; 262144\n"
    "  --topology NAME   flat: one switch. racks: of 16 hosts, 4 times as many as their uplinks carry, 10 us "
    "apart; flat\n"
    "  --svg DIR         draws time against bytes for a few numbers of ranks, and against ranks for a few "
    "sizes, "
    "with\n"
    "                    the plot that lies in this program's folder's parent\n"
    "  --check FILE      instead: rows of what was measured, words ranks= bytes= algo= seconds=, and op= "
    "latency=\n"
    "                    bandwidth= overhead= hosts_of= (in the units above) where they aren't as the "
    "options say; "
    "prints\n"
    "                    beside them what is predicted, and how many are within 15 %\n"
    "Prints a row for each operation, algorithm, number of ranks and size: the seconds until the last rank "
    "has "
    "ended.\n"
    "Within a host messages take 1 us and 5 GB/s; sums make 5 GB/s and copies 8. Up to 128 KiB a\n"
    "message needs no grant (less from 9 ranks on), and what needs more than 16 KiB of scratch is run in "
    "rounds.\n";

static void die(const char *format, const char *what)
{
    fputs("simulate: ", stderr);
    fprintf(stderr, format, what);
    fputc('\n', stderr);
    exit(2);
}

/* ---- the model ---- */

static dml__price_model model_of(const settings *s)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model.between.latency = 1e-6 * s->latency_us;
    model.between.bandwidth = 1e9 / 8 * s->bandwidth_gbit;
    model.between.overhead = 1e-6 * s->overhead_us;
    model.between.touch = 1e-9 / 1024 * s->touch_ns;
    model.inside.latency = 1e-6;
    model.inside.bandwidth = 5e9;
    model.inside.overhead = 0.5e-6;
    model.ranks_per_host = s->ranks_per_host;
    if (s->processors) {
        model.inside = model.between;
        model.ranks_per_host = 4096;
        model.processors = s->processors;
        model.change = 1e-6 * s->change_us;
    }
    model.reduce = 5e9;
    model.copy = 8e9;
    model.segment = (uint64_t)s->segment;
    model.eager = 128 << 10; /* as the engine has them */
    model.scratch = 16 << 10;
    model.most_segments = UINT64_C(1) << 22;
    if (strcmp(s->topology, "racks") == 0) {
        model.hosts_per_rack = 16;
        model.oversubscription = 4;
        model.rack_latency = 10e-6;
    } else if (strcmp(s->topology, "flat") != 0) {
        die("there is no topology \"%s\": flat or racks", s->topology);
    }
    return model;
}

/* As much memory as any case may have; what isn't touched costs nothing. It is enough for any algorithm up to
   512 ranks, and for 4096 where ranks are alike or have few steps. */
static void take_work(plan *p)
{
    for (p->work_bytes = (size_t)256 << 20; p->work_bytes > 1 << 20; p->work_bytes /= 2)
        if ((p->work = malloc(p->work_bytes)) != NULL) return;
    die("no memory%s", "");
}

/* The seconds of a call, or NAN where it can't be had, with the reason in *status. */
static double predict(const plan *p, const dml__price_model *model, const dml__algorithm_info *algorithm,
                      int ranks, double bytes, dml__price *price, dml_status *status)
{
    dml__collective call;
    memset(&call, 0, sizeof call);
    memset(price, 0, sizeof *price);
    call.operation = algorithm->operation;
    call.size = ranks;
    call.count = ((uint64_t)bytes + 3) / 4;
    /* A few elements more make parts equal, and ranks alike: far less to run. */
    const uint64_t odd = call.count % (uint64_t)ranks;
    if (odd && call.count >= 64 * (uint64_t)ranks) call.count += (uint64_t)ranks - odd;
    *status = dml__price_collective(model, algorithm, &call, 4, dml__most_steps(ranks), p->work,
                                    p->work_bytes, price);
    return *status == DML_OK ? price->seconds : NAN;
}

/* ---- what is asked for ---- */

static const char *operation_name(dml__comm_operation operation)
{
    static const char *const names[] = {
#define NAME(NAME, name, data, reduce, root) name,
        DML__COMM_OPERATION_LIST(NAME)
#undef NAME
    };
    return names[operation];
}

static int parse_sizes(const char *text, double factor, double low, double high, double sizes[SIZES_MAX])
{
    char *end;
    const double first = strtod(text, &end);
    double last = first;
    if (end != text && *end == ':') last = strtod(end + 1, &end);
    if (*end || !(first >= low && last <= high && first <= last)) die("no sizes in \"%s\": see --help", text);
    int count = 0;
    for (double size = first; size <= last && count < SIZES_MAX; size *= factor) sizes[count++] = size;
    return count;
}

static void find_algorithms(const settings *s, plan *p)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    for (int i = 0; i < count && p->count < ALGORITHMS_MAX; i++)
        if (!dml__is_shared(&table[i]) && /* (hosts have no memory in common) */
            (strcmp(s->operation, "all") == 0 ||
             strcmp(s->operation, operation_name(table[i].operation)) == 0) &&
            (strcmp(s->algorithm, "all") == 0 || strcmp(s->algorithm, table[i].name) == 0))
            p->algorithm[p->count++] = i;
    if (p->count == 0) die("no algorithm is called that, or no operation \"%s\": see --help", s->operation);
}

/* ---- the rows ---- */

/* The prices of all cases: [algorithm][ranks][bytes]. */
typedef struct prices {
    double seconds[ALGORITHMS_MAX][SIZES_MAX][SIZES_MAX];
} prices;

static void print_row(const settings *s, const dml__algorithm_info *algorithm, double ranks, double bytes,
                      const dml__price *price, dml_status status)
{
    printf(
        "name=simulate op=%s algo=%s ranks=%.0f bytes=%.0f hosts_of=%d topology=%s latency=%g bandwidth=%g ",
        operation_name(algorithm->operation), algorithm->name, ranks, bytes, s->ranks_per_host, s->topology,
        s->latency_us, s->bandwidth_gbit);
    if (status == DML_OK)
        printf("seconds=%.6g run=%d segment=%.0f\n", price->seconds, price->distinct, (double)price->segment);
    else
        printf("skipped=%s\n", status == DML_ERROR_MEMORY ? "too_large" : "stuck");
    fflush(stdout);
}

static void run_all(const settings *s, const plan *p, prices *all)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const dml__price_model model = model_of(s);
    for (int r = 0; r < p->ranks_count; r++)
        for (int b = 0; b < p->bytes_count; b++)
            for (int a = 0; a < p->count; a++) {
                const dml__algorithm_info *algorithm = &table[p->algorithm[a]];
                dml__price price;
                dml_status status = DML_ERROR_MEMORY;
                all->seconds[a][r][b] = NAN;
                if (b > 0 && algorithm->operation == DML__CALL_BARRIER) continue;
                if (b > 0 && isnan(all->seconds[a][r][b - 1])) continue; /* larger ones are no smaller */
                all->seconds[a][r][b] =
                    predict(p, &model, algorithm, (int)p->ranks[r], p->bytes[b], &price, &status);
                print_row(s, algorithm, p->ranks[r], p->bytes[b], &price, status);
            }
}

/* ---- charts: plot draws logs, so each line is written as one ---- */

/* One picture: along one axis, at a fixed place of the other. */
static void draw(const settings *s, const plan *p, const prices *all, dml__comm_operation operation,
                 bool over_bytes, int fixed)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    char folder[512], command[8192], path[700];
    const char *slash = strrchr(s->program, '/'), *name = operation_name(operation);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - s->program) : 1, slash ? s->program : ".");
    size_t length = (size_t)snprintf(
        command, sizeof command,
        "'%s/../plot' --log-x --log-y --smooth 1 --y-name seconds --x-name %s --title '%s: %.0f %s, %g us, "
        "%g Gbit/s' -o '%s/%s_%.0f_%s.svg'",
        folder, over_bytes ? "bytes" : "ranks", name, over_bytes ? p->ranks[fixed] : p->bytes[fixed],
        over_bytes ? "ranks" : "bytes", s->latency_us, s->bandwidth_gbit, s->svg, name,
        over_bytes ? p->ranks[fixed] : p->bytes[fixed], over_bytes ? "ranks" : "bytes");
    int lines = 0;
    for (int a = 0; a < p->count; a++) {
        if (table[p->algorithm[a]].operation != operation) continue;
        snprintf(path, sizeof path, "%s/%s.jsonl", s->svg, table[p->algorithm[a]].name);
        FILE *file = fopen(path, "w");
        if (!file) die("can't write to %s", s->svg);
        int points = 0;
        for (int i = 0; i < (over_bytes ? p->bytes_count : p->ranks_count); i++) {
            const double seconds = over_bytes ? all->seconds[a][fixed][i] : all->seconds[a][i][fixed];
            if (isnan(seconds)) continue;
            fprintf(file, "{\"step\": %.0f, \"loss\": %.9g}\n", over_bytes ? p->bytes[i] : p->ranks[i],
                    seconds);
            points++;
        }
        fclose(file);
        if (points < 2) continue;
        length += (size_t)snprintf(command + length, sizeof command - length, " '%s'", path);
        lines++;
    }
    if (lines && length < sizeof command && system(command) != 0)
        fprintf(stderr, "simulate: plot failed: %s\n", command);
    for (int a = 0; a < p->count; a++) {
        snprintf(path, sizeof path, "%s/%s.jsonl", s->svg, table[p->algorithm[a]].name);
        remove(path);
    }
}

static void draw_all(const settings *s, const plan *p, const prices *all)
{
    if (mkdir(s->svg, 0777) != 0 && errno != EEXIST) die("can't make the folder %s", s->svg);
    for (int o = 0; o <= DML__CALL_BARRIER; o++)
        for (int part = 0; part < 3; part++) { /* the smallest, the middle, the largest */
            const int r = part * (p->ranks_count - 1) / 2, b = part * (p->bytes_count - 1) / 2;
            if (p->bytes_count > 1 && o != DML__CALL_BARRIER)
                draw(s, p, all, (dml__comm_operation)o, true, r);
            if (p->ranks_count > 1) draw(s, p, all, (dml__comm_operation)o, false, b);
        }
}

/* ---- beside what was measured ---- */

static double number_of(char *const *words, int count, const char *key, double otherwise)
{
    const size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], key, length) == 0 && words[i][length] == '=')
            return strtod(words[i] + length + 1, NULL);
    return otherwise;
}

static const char *text_of(char *const *words, int count, const char *key, const char *otherwise)
{
    const size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], key, length) == 0 && words[i][length] == '=') return words[i] + length + 1;
    return otherwise;
}

/* Prints a measured row with its prediction; the prediction by what was measured, or 0 where there is none.
 */
static double check_row(const settings *s, const plan *p, char *line)
{
    char *words[WORDS_MAX];
    int count = 0, table_count;
    for (char *word = strtok(line, " \t\r\n"); word && count < WORDS_MAX; word = strtok(NULL, " \t\r\n"))
        words[count++] = word;
    settings own = *s;
    own.latency_us = number_of(words, count, "latency", s->latency_us);
    own.bandwidth_gbit = number_of(words, count, "bandwidth", s->bandwidth_gbit);
    own.overhead_us = number_of(words, count, "overhead", s->overhead_us);
    own.ranks_per_host = (int)number_of(words, count, "hosts_of", s->ranks_per_host);
    own.touch_ns = number_of(words, count, "touch", s->touch_ns);
    own.change_us = number_of(words, count, "change", s->change_us);
    own.processors = (int)number_of(words, count, "processors", s->processors);
    own.segment = number_of(words, count, "segment", s->segment);
    const double seconds = number_of(words, count, "seconds", 0);
    const int ranks = (int)number_of(words, count, "ranks", 0);
    const double bytes = number_of(words, count, "bytes", 0);
    const char *name = text_of(words, count, "algo", ""),
               *operation = text_of(words, count, "op", s->operation);
    const dml__algorithm_info *table = dml__algorithms(&table_count);
    if (!(seconds > 0) || ranks < 2 || own.ranks_per_host < 1) return 0; /* another program's row */
    for (int i = 0; i < table_count; i++) {
        if (strcmp(table[i].name, name) != 0 || strcmp(operation_name(table[i].operation), operation) != 0)
            continue;
        const dml__price_model model = model_of(&own);
        dml__price price;
        dml_status status;
        const double predicted = predict(p, &model, &table[i], ranks, bytes, &price, &status);
        if (isnan(predicted)) return 0;
        printf("name=simulated op=%s algo=%s ranks=%d bytes=%.0f latency=%g bandwidth=%g threads=1 ours=%.6g "
               "limit=%.6g ratio_limit=%.3f unit=s\n",
               operation, name, ranks, bytes, own.latency_us, own.bandwidth_gbit, predicted, seconds,
               predicted / seconds);
        return predicted / seconds;
    }
    fprintf(stderr, "simulate: %s has no algorithm \"%s\"\n", operation, name);
    return 0;
}

static int check_all(const settings *s, const plan *p)
{
    FILE *file = fopen(s->check, "r");
    if (!file) die("can't open %s", s->check);
    char line[4096];
    int count = 0, within = 0;
    double sum = 0, largest = 0;
    while (fgets(line, sizeof line, file)) {
        const double ratio = check_row(s, p, line);
        if (!(ratio > 0)) continue;
        count++;
        within += ratio > 0.85 && ratio < 1.15;
        sum += log(ratio);
        if (fabs(log(ratio)) > largest) largest = fabs(log(ratio));
    }
    fclose(file);
    if (count == 0) die("%s has no row with ranks=, bytes=, algo= and seconds=", s->check);
    printf(
        "# %d of %d cases (%.0f %%) within 15 %%; predicted by measured: %.2f in the geometric mean, off by "
        "%.2f at most\n",
        within, count, 100.0 * within / count, exp(sum / count), exp(largest));
    return 0;
}

int main(int argc, char **argv)
{
    settings s = { "all_reduce",
                   "all",
                   "flat",
                   NULL,
                   NULL,
                   "2:4096",
                   "4:268435456",
                   1,
                   0,
                   30,
                   10,
                   3,
                   0,
                   2,
                   262144,
                   argc > 0 ? argv[0] : "simulate" };
    const bench_option options[] = { { "--op", BENCH_TEXT, &s.operation, 0, 0 },
                                     { "--algo", BENCH_TEXT, &s.algorithm, 0, 0 },
                                     { "--ranks", BENCH_TEXT, &s.ranks, 0, 0 },
                                     { "--bytes", BENCH_TEXT, &s.bytes, 0, 0 },
                                     { "--hosts-of", BENCH_INT, &s.ranks_per_host, 1, 4096 },
                                     { "--latency", BENCH_NUMBER, &s.latency_us, 0, 1e7 },
                                     { "--bandwidth", BENCH_NUMBER, &s.bandwidth_gbit, 1e-6, 1e6 },
                                     { "--overhead", BENCH_NUMBER, &s.overhead_us, 0, 1e6 },
                                     { "--touch", BENCH_NUMBER, &s.touch_ns, 0, 1e6 },
                                     { "--change", BENCH_NUMBER, &s.change_us, 0, 1e6 },
                                     { "--processors", BENCH_INT, &s.processors, 0, 4096 },
                                     { "--segment", BENCH_NUMBER, &s.segment, 64, 1e12 },
                                     { "--topology", BENCH_TEXT, &s.topology, 0, 0 },
                                     { "--svg", BENCH_TEXT, &s.svg, 0, 0 },
                                     { "--check", BENCH_TEXT, &s.check, 0, 0 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    static plan p;
    static prices all;
    bench_parse(argc, argv, "simulate", usage, options);
    take_work(&p);
    if (s.check) return check_all(&s, &p);
    p.ranks_count = parse_sizes(s.ranks, 2, 2, 4096, p.ranks);
    p.bytes_count = parse_sizes(s.bytes, 4, 4, 1e12, p.bytes);
    find_algorithms(&s, &p);
    run_all(&s, &p, &all);
    if (s.svg) draw_all(&s, &p, &all);
    return 0;
}
