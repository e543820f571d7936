/* report: makes tables and charts of the benchmarks' rows. Reads rows, prints Markdown, writes an SVG file
 * for each kind. */
#include "reasons.h"
#include "rows.h"

#include <math.h>
#include <stdarg.h>
#include <time.h>

static const char usage[] = "usage: report [FOLDER [REASONS]] <ROWS >REPORT.md\n"
                            "Makes tables of the rows that the benchmarks print, says which bars they meet, "
                            "and writes FOLDER/NAME.svg (.).\n"
                            "REASONS is a file that says why rows are short: a line of \"KEY=VALUE ... | "
                            "TEXT\" for all rows\nthat have these words; for a mean, name=NAME "
                            "mean=others, mkl or onednn.\n";

/* --- bars: what a row has to reach --- */

typedef struct verdict {
    bool asked; /* whether there is a bar for such a row */
    double bar, reached;
    bool met, judged; /* not judged: no peer, or something else ran beside it */
} verdict;

/* Ours by the fastest of the peers of these names (ends in NULL; NULL: the best one of all); 0: none was
 * there. */
static double ratio_to(const row *r, const char *const *names)
{
    double best = 0;
    if (!names) return number(r, "ratio_peer");
    for (; *names; names++)
        if (number(r, *names) > best) best = number(r, *names);
    return best > 0 ? number(r, "ours") / best : 0;
}

static const char *const bf16_peers[] = { "onednn", "torch", NULL }, *const mkl_peers[] = { "mkl", NULL };
static const char *const free_peers[] = { "openblas", "openblas_debian", "blis", "onednn", NULL };
static const char *const conv_peers[] = { "onednn", NULL }; /* the current release */

/* What each kind of row is about, where its name doesn't say so, and what is asked of it (NULL: nothing). */
static const struct {
    const char *name, *about, *bar;
} kinds[] = {
    { "gemm", NULL,
      "0.97 of the best of OpenBLAS, BLIS and oneDNN, and 1.15 in the mean; on Intel's processors 0.9 of "
      "MKL, and 1 in the mean" },
    { "conv", NULL, "of oneDNN's current release 0.8, and 1.1 in the mean; the best peer stands beside it" },
    { "gpu_products",
      "Ours and cuBLAS' are queued and then waited for (`waits=many`), beside CLBlast each is waited for. "
      "The limit is the card's peak of f32, where it is known",
      "the speed of cuBLAS or CLBlast on the same device" },
    { "gpu_memory", "The limit is a copy on the device of as large an array", NULL },
    { "gpu_attention", "The limit is the card's peak of f32, where it is known", NULL },
    { "gpu_lenet",
      "Ours is microseconds of a step, the limit what its kernels take by themselves, `by limit` their part "
      "of it: the nearer to 1 the better",
      NULL },
    { "gpu_gpt", "The limit is that of the multiply-adds at the card's peak of f32, where it is known",
      NULL },
    { "elementwise", NULL, "beyond the caches 0.9 of a copy's bandwidth, within them as fast as PyTorch" },
    { "layer", "The limit is the bandwidth of what is read and written, which most don't reach", NULL },
    { "optimizer", NULL, "beyond the caches 0.9 of a copy's bandwidth, within them as fast as PyTorch" },
    { "forkjoin",
      "Ours is microseconds: the fewer the better. The limit of `idle` is what a process without a pool uses",
      "1.5 us on 2 threads while spinning" },
    { "bf16gemm", NULL,
      "with AMX at 1024 cubed 0.9 of the best of oneDNN and PyTorch and 5 times our f32; none elsewhere" },
    { "numerics",
      "Ours and the peers' are errors, the limit is what the error may be, `by limit` the part of it that is "
      "reached: the less the better",
      "at most 1 of the limit" },
    { "train",
      "`of_peak` is the part of the peak of multiply-adds that is reached; it is what `by limit` says, "
      "unless "
      "the weights' way through memory takes longer than those",
      "the speed of the best of PyTorch, JAX and kann, times 1.15 for the MLPs, 2.5 for LeNet-5, 1.4 for "
      "Keras' CNN and ResNet-20, 1.15 for the char-LSTM, 1.3 for GPT, 1.15 for GPT-2; of the last three on "
      "two "
      "threads 1.4, 1.7, 1.5" },
    { "decode",
      "Ours is tokens a second; the limit is arithmetic, or reading the weights and what is kept once",
      "the speed of PyTorch, which keeps keys and values, too" },
    { "reduce_op", "The limit is the kernel that adds floats, on as many bytes", NULL },
    { "memory",
      "Ours is the most that a context has of the host's memory at once, the limit the size of the model's "
      "weights, `by limit` how many times those: the less the better",
      NULL },
    { "choice",
      "Ours is the chosen algorithm's microseconds, the best peer's those of the fastest one: the less the "
      "better. `by peer` is beside the one that is best in the other half of the rounds, both ways round; "
      "where that "
      "is short of the bar, of the two asked again by turns, and where that is, too, in a new job, of what "
      "that chooses and what was the best one before (asked_again=2)",
      "at most 1.1 times the best algorithm's time" },
    { "tuned", "As choice, of what dml_comm_tune chose", "at most 1.1 times the best algorithm's time" },
    { "all_reduce", "The limit is a bare exchange of as many bytes between the same processes",
      "the speed of the best of Open MPI and Gloo, over TCP 1.25 times it at 4 bytes and 1.3 from 64 MiB on, "
      "in shared memory 1.5 from 1 MiB on; none over TCP between 4 bytes and 256 KiB. From 1 MiB on over TCP "
      "also 0.85 of the limit" },
    { "links", "Ours is milliseconds, the limit those in which the links can carry the bytes",
      "0.95 of the limit, at a gigabit a second" },
    { "overlap",
      "Ours is a step whose gradients are exchanged, the limit the step alone, `share` what the exchange "
      "alone "
      "takes of that",
      "no more than 0.15 of the step is lost" },
    { "simulated", "Ours is the price of an algorithm, the limit what it took, seconds",
      "within 0.15 of what was measured; asked of nine rows in ten" },
};

static verdict judge(const report *all, const row *r)
{
    static const struct {
        const char *model;
        double bar, bar2; /* of one thread; of two, 0: the same */
    } steps[] = { { "mlp", 1.15, 0 },      { "mlp_wide", 1.15, 0 }, { "lenet5", 2.5, 0 },
                  { "keras_cnn", 1.4, 0 }, { "resnet20", 1.4, 0 },  { "char_lstm", 1.15, 1.4 },
                  { "gpt", 1.3, 1.7 },     { "gpt2", 1.15, 1.5 } };
    verdict v = { false, 0, 0, false, false };
    double mkl = 0;
    bool slow = false;               /* beside the limit */
    if (is(r, "name", "numerics")) { /* 0 is the best */
        v.asked = v.judged = true, v.bar = 1, v.reached = number(r, "ratio_limit");
        v.met = v.reached <= 1;
        return v;
    }
    if (is(r, "name", "bf16gemm")) {
        v.asked = is(r, "isa", "amx") && is(r, "m", "1024") && is(r, "n", "1024") && is(r, "k", "1024");
        v.bar = 0.9, v.reached = ratio_to(r, bf16_peers);
    } else if (is(r, "name", "gemm")) {
        v.asked = true, v.bar = 0.97, v.reached = ratio_to(r, free_peers);
        mkl = all->intel ? ratio_to(r, mkl_peers) : 0;
    } else if (is(r, "name", "conv")) {
        v.asked = true, v.bar = 0.8, v.reached = ratio_to(r, conv_peers);
    } else if (is(r, "name", "choice") || is(r, "name", "tuned")) {
        v.asked = true, v.bar = 1 / 1.1, v.reached = number(r, "ratio_peer");
    } else if (is(r, "name", "gpu_products") || (is(r, "name", "decode") && !is(r, "weights", "i8"))) {
        v.asked = true, v.bar = 1, v.reached = number(r, "ratio_peer");
    } else if (is(r, "name", "elementwise") || is(r, "name", "optimizer")) {
        const bool beyond = is(r, "level", "memory");
        v.asked = true, v.bar = beyond ? 0.9 : 1,
        v.reached = number(r, beyond ? "ratio_limit" : "ratio_peer");
    } else if (is(r, "name", "forkjoin") && is(r, "what", "spinning") && is(r, "threads", "2")) {
        v.asked = true, v.bar = 1, v.reached = number(r, "ours") > 0 ? 1.5 / number(r, "ours") : 0;
    } else if (is(r, "name", "train") && (!word(r, "dtype")[0] || is(r, "dtype", "f32"))) {
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            if (is(r, "what", steps[i].model))
                v.asked = true,
                v.bar = steps[i].bar2 > 0 && is(r, "threads", "2") ? steps[i].bar2 : steps[i].bar;
        v.reached = number(r, "ratio_peer");
    }
    if (is(r, "name", "all_reduce") && is(r, "chosen", "1")) {
        const bool tcp = is(r, "transport", "tcp");
        const double bytes = number(r, "bytes"), large = tcp ? 67108864 : 1048576;
        v.asked = tcp ? bytes == 4 || bytes >= 262144 : is(r, "transport", "shm");
        v.bar = bytes >= large ? (tcp ? 1.3 : 1.5) : tcp && bytes == 4 ? 1.25 : 1;
        v.reached = number(r, "ratio_peer");
        slow = tcp && bytes >= 1048576 && number(r, "ratio_limit") < 0.85;
    } else if (is(r, "name", "links") && is(r, "mbit", "1000")) {
        v.asked = true, v.bar = 0.95, v.reached = number(r, "ratio_limit");
    } else if (is(r, "name", "overlap")) {
        v.asked = true, v.bar = 0.85, v.reached = 1 - number(r, "loss");
    } else if (is(r, "name", "simulated")) {
        v.asked = true, v.bar = 0.85, v.reached = 1 - fabs(1 - number(r, "ratio_limit"));
    }
    v.judged = v.asked && v.reached > 0 && !is(r, "disturbed", "1");
    v.met = v.judged && v.reached >= v.bar && !slow && !(mkl > 0 && mkl < 0.9) &&
            !(is(r, "name", "bf16gemm") && number(r, "of_f32") < 5);
    return v;
}

/* Errors have no means and no chart. */
static bool is_error(const char *name)
{
    return strcmp(name, "numerics") == 0;
}

/* --- means --- */

typedef struct mean {
    double sum;
    int count;
} mean;

static void add(mean *m, double ratio)
{
    if (ratio > 0) m->sum += log(ratio), m->count++;
}

static double value(const mean *m)
{
    return m->count ? exp(m->sum / m->count) : 0;
}

/* Ours by a peer, and what it would be if every row ran at its limit. */
typedef struct comparison {
    mean is, most;
} comparison;

static void compare(comparison *c, const row *r, double ratio)
{
    add(&c->is, ratio);
    if (ratio > 0 && number(r, "ours") > 0) add(&c->most, ratio * number(r, "limit") / number(r, "ours"));
}

/* `kind` is the mean's name among the reasons. */
static void print_mean(const report *all, const char *name, const char *kind, const char *what,
                       const char *threads, const comparison *c, double bar)
{
    char why[24] = "";
    const double is = value(&c->is);
    if (!c->is.count) return;
    printf("| %s | %s | %d | %.2f | ", what, threads, c->is.count, is);
    if (bar <= 0) {
        printf("| | |\n");
        return;
    }
    if (is < bar) cite_reason(all->reasons, reason_of_mean(all->reasons, name, kind), why);
    if (c->most.count == c->is.count)
        printf("%.2f | ", value(&c->most));
    else
        printf("| ");
    printf("%.2f | %s%s |\n", bar, is >= bar ? "yes" : "**no**", why);
}

/* Which means there are of a kind's rows. */
static const struct {
    const char *name, *kind, *text; /* NULL: of every kind */
    const char *const *peers;
    double bar;
    bool on_intel, by_what; /* a bar of Intel's processors only; a mean for each of the rows' `what` */
} mean_kinds[] = {
    { NULL, "best", "the best peer of each row", NULL, 0, false, false },
    { "gemm", "others", "the best of OpenBLAS, BLIS, oneDNN", free_peers, 1.15, false, false },
    { "gemm", "mkl", "MKL", mkl_peers, 1, true, false },
    { "conv", "onednn", "oneDNN's current release", conv_peers, 1.1, false, false },
    { "conv", NULL, "oneDNN's current release: ", conv_peers, 0, false, true },
};

/* The different values of a word among a kind's rows that have a peer; how many. values (NAMES_MAX) */
static int list_values(const report *all, const char *name, const char *key, const char **values)
{
    int count = 0;
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        int k = 0;
        if (!is(r, "name", name) || number(r, "ratio_peer") <= 0) continue;
        while (k < count && strcmp(values[k], word(r, key)) != 0) k++;
        if (k == count && k < NAMES_MAX) values[count++] = word(r, key);
    }
    return count;
}

/* Of the rows of a number of threads, and of one `what` (NULL: of any). */
static comparison compare_rows(const report *all, const char *name, const char *threads, const char *what,
                               const char *const *peers)
{
    comparison c;
    memset(&c, 0, sizeof c);
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        if (is(r, "name", name) && is(r, "threads", threads) && (!what || is(r, "what", what)) &&
            !is(r, "disturbed", "1"))
            compare(&c, r, ratio_to(r, peers));
    }
    return c;
}

static void print_means(const report *all, const char *name)
{
    const char *threads[NAMES_MAX], *whats[NAMES_MAX];
    const int thread_count = list_values(all, name, "threads", threads);
    const int what_count = list_values(all, name, "what", whats);
    if (!thread_count || is_error(name)) return;
    printf("| geometric mean of ours by | threads | rows | is | at the limit | bar | met |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int t = 0; t < thread_count; t++)
        for (size_t k = 0; k < sizeof mean_kinds / sizeof *mean_kinds; k++) {
            const bool by_what = mean_kinds[k].by_what;
            if (mean_kinds[k].name && strcmp(mean_kinds[k].name, name) != 0) continue;
            for (int w = 0; w < (by_what ? what_count : 1); w++) {
                const char *what = by_what ? whats[w] : NULL;
                const comparison c = compare_rows(all, name, threads[t], what, mean_kinds[k].peers);
                char text[96];
                snprintf(text, sizeof text, "%s%s", mean_kinds[k].text, what ? what : "");
                print_mean(all, name, what ? what : mean_kinds[k].kind, text, threads[t], &c,
                           mean_kinds[k].on_intel && !all->intel ? 0 : mean_kinds[k].bar);
            }
        }
    printf("\n");
}

/* --- tables --- */

/* The words of the cases of a kind of rows: those that every row has, and differ, get columns. */
typedef struct columns {
    const char *key[COLUMNS_MAX], *first[COLUMNS_MAX];
    int seen[COLUMNS_MAX], count, rows;
    bool differs[COLUMNS_MAX], rest; /* rest: some rows have words of their own */
} columns;

static int column_of(const columns *table, const char *key)
{
    int c = 0;
    while (c < table->count && strcmp(table->key[c], key) != 0) c++;
    return c;
}

static bool is_shared(const columns *table, int c)
{
    return c < table->count && table->seen[c] == table->rows;
}

static columns find_columns(const report *all, const char *name)
{
    columns table;
    memset(&table, 0, sizeof table);
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        if (!is(r, "name", name)) continue;
        table.rows++;
        for (int k = 1; k < r->threads_at; k++) {
            const int c = column_of(&table, r->key[k]);
            if (c == COLUMNS_MAX) {
                table.rest = true;
                continue;
            }
            if (c == table.count)
                table.key[table.count] = r->key[k], table.first[table.count++] = r->value[k];
            table.differs[c] |= strcmp(table.first[c], r->value[k]) != 0;
            table.seen[c]++;
        }
    }
    for (int c = 0; c < table.count; c++) {
        table.differs[c] |= table.rows == 1;
        table.rest |= !is_shared(&table, c);
    }
    return table;
}

static void print_case(const columns *table, const row *r)
{
    for (int c = 0; c < table->count; c++)
        if (is_shared(table, c) && table->differs[c]) printf(" %s |", word(r, table->key[c]));
    if (!table->rest) return;
    for (int k = 1; k < r->threads_at; k++)
        if (!is_shared(table, column_of(table, r->key[k]))) printf(" %s=%s", r->key[k], r->value[k]);
    printf(" |");
}

static const char *s_of(int count)
{
    return count == 1 ? "" : "s";
}

/* What the rows are about and what is asked of them, and how many of them reach it. */
static void print_bar(const report *all, const char *name)
{
    int asked = 0, judged = 0, met = 0, disturbed = 0;
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        if (!is(r, "name", name)) continue;
        const verdict v = judge(all, r);
        disturbed += is(r, "disturbed", "1");
        if (!is(r, "disturbed", "1")) asked += v.asked;
        judged += v.judged, met += v.met;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].name, name) != 0) continue;
        if (kinds[k].about) printf("%s.\n", kinds[k].about);
        if (kinds[k].bar) printf("The bar: %s.\n", kinds[k].bar);
    }
    if (judged)
        printf("%d of %d row%s that could be judged meet%s it.\n", met, judged, s_of(judged),
               judged == 1 ? "s" : "");
    if (asked > judged)
        printf("No peer was there to judge %d row%s by: `make bench-peers` installs them.\n", asked - judged,
               s_of(asked - judged));
    if (disturbed)
        printf("During %d row%s something else had the processors: %s for nothing.\n", disturbed,
               s_of(disturbed), disturbed == 1 ? "it counts" : "they count");
    printf("\n");
}

static void print_table(const report *all, const char *name, bool chart)
{
    const columns table = find_columns(all, name);
    printf("## %s\n\n", name);
    print_bar(all, name);
    print_means(all, name);
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        if (!is(r, "name", "gemm") || strcmp(name, "gemm") != 0 || !is(r, "m", "1024") ||
            !is(r, "n", "1024") || !is(r, "k", "1024") || !is(r, "threads", "1") || is(r, "ta", "1") ||
            is(r, "tb", "1"))
            continue;
        const double share = number(r, "ratio_limit");
        printf("1024 cubed on one thread reaches %.2f of the peak of multiply-adds; the bar is 0.92: %s.\n\n",
               share, share >= 0.92 ? "met" : "**not met**");
    }
    if (chart) printf("![%s](%s.svg)\n\n", name, name);
    int alike = 0, shown = 0;
    for (int c = 0; c < table.count; c++) {
        if (!is_shared(&table, c)) continue;
        if (table.differs[c])
            shown++;
        else
            printf("%s%s=%s", alike++ ? ", " : "In all rows: ", table.key[c], table.first[c]);
    }
    printf("%s|", alike ? "\n\n" : "");
    for (int c = 0; c < table.count; c++)
        if (is_shared(&table, c) && table.differs[c]) printf(" %s |", table.key[c]);
    printf("%s threads | ours | best peer | limit | unit | by peer | by limit | bar |\n|",
           table.rest ? " case |" : "");
    for (int c = 0; c < shown + table.rest; c++) printf("---|");
    printf("---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        if (!is(r, "name", name)) continue;
        const verdict v = judge(all, r);
        printf("|");
        print_case(&table, r);
        printf(" %s | %s |", word(r, "threads"), word(r, "ours"));
        if (number(r, "best_peer") > 0)
            printf(" %s (%s) |", word(r, "best_peer"), word(r, "peer"));
        else
            printf(" |");
        printf(" %s | %s | %s | %s |", number(r, "limit") > 0 ? word(r, "limit") : "", word(r, "unit"),
               number(r, "ratio_peer") > 0 ? word(r, "ratio_peer") : "",
               number(r, "ratio_limit") > 0 ? word(r, "ratio_limit") : "");
        if (is(r, "disturbed", "1")) {
            printf(" disturbed |\n");
        } else if (v.judged) {
            char why[24] = "";
            if (!v.met) cite_reason(all->reasons, reason_of_row(all->reasons, r), why);
            printf(" %s%.2f of %.2f%s%s |\n", v.met ? "" : "**", v.reached, v.bar, v.met ? "" : ": no**",
                   why);
        } else {
            printf(" %s |\n", v.asked ? "no peer" : "");
        }
    }
    printf("\n");
    print_reasons(all->reasons);
}

/* --- charts --- */

typedef struct bar {
    char label[160];
    mean peer, limit; /* ratios */
} bar;

static void draw_text(FILE *svg, double x, double y, const char *anchor, const char *format, ...)
{
    va_list arguments;
    char text[200];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (const char *c = text; *c; c++)
        if (*c == '<' || *c == '&')
            fputs(*c == '<' ? "&lt;" : "&amp;", svg);
        else
            fputc(*c, svg);
    fprintf(svg, "</text>\n");
}

static bool among(const char *key, const char *const *keys)
{
    while (*keys && strcmp(*keys, key) != 0) keys++;
    return *keys != NULL;
}

/* What a row's bar is called; rows of one label share a bar: convolutions are many. */
static void label(const row *r, char *text, size_t size)
{
    static const char *const conv[] = { "what", "model", "batch", NULL };
    static const char *const case_words[] = { "what",  "level",  "m",        "n",       "k",     "ta",
                                              "tb",    "model",  "batch",    "use",     "ranks", "bytes",
                                              "dtype", "height", "channels", "filters", "mib",   "loss",
                                              "texts", "behind", NULL };
    const bool many = is(r, "name", "conv") && !is(r, "model", "asked"), train = is(r, "name", "train");
    size_t length = 0;
    for (int k = 1; k < r->threads_at; k++)
        if (among(r->key[k], many ? conv : case_words) && !(train && strcmp(r->key[k], "bytes") == 0)) {
            const int added = snprintf(text + length, size - length, "%s ", r->value[k]);
            if (added < 0 || length + (size_t)added >= size) break;
            length += (size_t)added;
        }
    snprintf(text + length, size - length, "x%s", word(r, "threads"));
}

/* A bar for each row, or group of rows, that has one: ours by the best peer (1 is level with it), or by the
   limit where no row has a peer. How many; -1: the file can't be written. */
static int draw(const report *all, const char *name, const char *folder)
{
    enum { LEFT = 330, WIDTH = 560, STEP = 15, TOP = 40 };
    bar *bars = NULL;
    size_t count = 0, peers = 0;
    char path[1024];
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        char text[160];
        if (!is(r, "name", name)) continue;
        label(r, text, sizeof text);
        size_t b = 0;
        while (b < count && strcmp(bars[b].label, text) != 0) b++;
        if (b == count) {
            bars = grow(bars, (count + 1) * sizeof *bars);
            memset(&bars[count], 0, sizeof *bars);
            memcpy(bars[count++].label, text, sizeof text);
        }
        if (is(r, "disturbed", "1")) continue;
        add(&bars[b].peer, number(r, "ratio_peer"));
        add(&bars[b].limit, number(r, "ratio_limit"));
        peers += number(r, "ratio_peer") > 0;
    }
    double most = 1;
    size_t drawn = 0;
    for (size_t b = 0; b < count; b++) {
        const double v = value(peers ? &bars[b].peer : &bars[b].limit);
        if (v > 0) bars[drawn++] = bars[b];
        if (v > most) most = v > 4 ? 4 : v;
    }
    count = drawn;
    snprintf(path, sizeof path, "%s/%s.svg", folder, name);
    if (!count) {
        remove(path); /* of an earlier run */
        free(bars);
        return 0;
    }
    FILE *svg = fopen(path, "w");
    if (!svg) {
        fprintf(stderr, "report: %s can't be written\n", path);
        free(bars);
        return -1;
    }
    const double height = TOP + STEP * (double)count + 20, scale = WIDTH / (1.05 * most);
    fprintf(svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\" "
            "font-size=\"11\" fill=\"#808080\">\n",
            LEFT + WIDTH + 60, height);
    if (strcmp(name, "memory") == 0)
        draw_text(svg, LEFT, 16, "start", "memory: times the size of the model's weights; smaller is better");
    else
        draw_text(svg, LEFT, 16, "start", "%s: ours by %s; larger is faster", name,
                  peers ? "the best peer" : "the limit");
    for (double tick = 0; tick <= 1.05 * most; tick += most > 2 ? 0.5 : 0.25) {
        const double x = LEFT + tick * scale;
        fprintf(svg, "<path d=\"M%.1f %d V%.1f\" stroke=\"#808080\" stroke-width=\"%s\"/>\n", x, TOP - 6,
                height - 14, fabs(tick - 1) < 1e-9 ? "1.5" : "0.3");
        draw_text(svg, x, TOP - 10, "middle", "%g", tick);
    }
    for (size_t b = 0; b < count; b++) {
        const double y = TOP + STEP * (double)b, v = value(peers ? &bars[b].peer : &bars[b].limit);
        draw_text(svg, LEFT - 6, y + 10, "end", "%s", bars[b].label);
        const double shown = v > 1.05 * most ? 1.05 * most : v;
        fprintf(svg, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", LEFT, y + 1,
                shown * scale, STEP - 4, v >= 1 || !peers ? "#2f81f7" : "#e8702a");
        draw_text(svg, LEFT + shown * scale + 4, y + 10, "start", "%.2f", v);
    }
    fprintf(svg, "</svg>\n");
    free(bars);
    return fclose(svg) == 0 ? (int)count : -1;
}

/* --- all of it --- */

/* Of the note "# PROGRAM: MARKPEER: WHAT" the last two, which end up in `text`; false: it is another. */
static bool peer_note(const char *note, const char *mark, char *text, size_t size)
{
    const char *at = strstr(note, mark);
    if (!at) return false;
    snprintf(text, size, "%s", at + strlen(mark));
    return true;
}

/* Peers that were there, or that were missing, each once. */
static int print_peers(const report *all, const char *title, const char *mark)
{
    char text[512], other[512];
    int count = 0;
    for (size_t i = 0; i < all->note_count; i++) {
        bool first = true;
        if (!peer_note(all->notes[i], mark, text, sizeof text)) continue;
        for (size_t k = 0; k < i && first; k++)
            first = !peer_note(all->notes[k], mark, other, sizeof other) || strcmp(text, other) != 0;
        if (!first) continue;
        char *missing = strstr(text, ": there is no "); /* where it was looked for, isn't worth a line */
        if (missing) *missing = '\0';
        printf("%s%s", count++ ? "; " : title, text);
    }
    if (count) printf("\n");
    return count;
}

/* The processor's name, and how many there are. */
static void print_processor(report *all)
{
    char line[256], name[256] = "";
    int count = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "processor", 9) == 0) count++;
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':'))
            snprintf(name, sizeof name, "%s", strchr(line, ':') + 2);
    }
    if (file) fclose(file);
    name[strcspn(name, "\n")] = '\0';
    all->intel = strstr(name, "Intel") != NULL;
    if (count) printf("- processor: %s, %d of them\n", name[0] ? name : "unknown", count);
}

static void print_header(report *all)
{
    static const char run[] = "# run: ";
    char date[32] = "";
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    printf("# Benchmarks, %s\n\n", date);
    print_processor(all);
    for (size_t i = 0; i < all->note_count; i++)
        if (strncmp(all->notes[i], run, sizeof run - 1) == 0)
            printf("- %s\n", all->notes[i] + sizeof run - 1);
    if (!print_peers(all, "- peers: ", ": peer "))
        printf(
            "- peers: none, so nothing is compared with another library; `make bench-peers` installs them\n");
    print_peers(all, "- missing peers: ", ": left out the peer ");
    printf("\n*By peer* and *by limit* are speeds: above 1 ours is faster than the best peer, or than the "
           "limit, "
           "which is what the\nmachine could do at best, measured in the same run. Where less is better, its "
           "section "
           "says so. In the column *bar*, \"1.13\nof 0.90\" means that the ratio that counts is 1.13 where "
           "the bar "
           "is 0.90; a row that is short of it says **no**.\n\n");
}

int main(int argc, char **argv)
{
    report all;
    memset(&all, 0, sizeof all);
    if (argc > 3 || (argc > 1 && argv[1][0] == '-')) {
        const bool help = strcmp(argv[1], "--help") == 0;
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    if (argc > 2 && !(all.reasons = read_reasons(argv[2]))) return 1;
    read_rows(&all);
    if (!all.count) {
        fprintf(stderr, "report: there are no rows\n");
        return 1;
    }
    print_header(&all);
    for (int n = 0; n < all.name_count; n++) {
        const int bars = is_error(all.names[n]) ? 0 : draw(&all, all.names[n], argc > 1 ? argv[1] : ".");
        if (bars < 0) return 1;
        print_table(&all, all.names[n], bars > 0);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
