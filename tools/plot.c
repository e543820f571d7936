/* plot: draws training logs (the samples' --log) as one SVG picture. One file, POSIX only:
   cc -O2 -o plot plot.c -lm */
#define _POSIX_C_SOURCE 200809L /* stat */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define VERSION "0.1.0"

static const char USAGE[] =
    "usage: plot [options] [--label TEXT] LOG [[--label TEXT] LOG...]\n"
    "\n"
    "Draws the loss and the speed of training runs over their steps. A log has a JSON object a line:\n"
    "{\"step\":, \"epoch\":, \"loss\":, \"lr\":, \"samples_per_s\":}, and at its end {\"test_accuracy\":, "
    "\"correct\":,\n"
    "\"total\":}. Other members are passed over.\n"
    "\n"
    "  -o, --output FILE  the SVG file to write (default: standard output)\n"
    "      --label TEXT   what the legend calls the next log (default: its file's name)\n"
    "      --title TEXT   a heading\n"
    "      --log-y        a logarithmic axis for the loss\n"
    "      --log-x        a logarithmic axis for the steps\n"
    "      --x-name TEXT  what the step is (default: training step)\n"
    "      --y-name TEXT  what the loss is (default: training loss)\n"
    "      --smooth N     average the loss over about N points; 1: don't (default: by the log's length)\n"
    "      --version      print the version\n"
    "  -h, --help         print this\n"
    "\n"
    "Exit status: 0, 1 when a log can't be read or the picture not be written, 2 for wrong usage.\n";

enum { RUNS_MAX = 12, DEPTH_MAX = 32 };

/* Readable on white and on black alike. */
static const char *const COLOURS[RUNS_MAX] = { "#2f81f7", "#e8702a", "#2da44e", "#bf4bc9",
                                               "#c9960c", "#189a9a", "#e0446c", "#8a63d2",
                                               "#7d8590", "#a3741f", "#5f9e1a", "#c76ba0" };

typedef struct point {
    double step, loss, speed; /* NAN: not in the log */
} point;

typedef struct run {
    const char *path, *label;
    int label_length;
    point *points;
    size_t count, capacity;
    double accuracy, correct, total; /* NAN: not in the log */
} run;

typedef struct options {
    const char *output, *title, *x_name, *y_name;
    bool log_x, log_y;
    double smooth; /* 0: by the log's length */
    run runs[RUNS_MAX];
    int run_count;
} options;

static void die(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("plot: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

static void *grow(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (!grown) die(1, "no memory left");
    return grown;
}

/* ---- JSON, as much as a log needs: each function moves *at past what it takes; false: it isn't there ----
 */

static void skip_blanks(const char **at)
{
    *at += strspn(*at, " \t\r\n");
}

static bool take(const char **at, char c)
{
    skip_blanks(at);
    if (**at != c) return false;
    ++*at;
    return true;
}

/* A string's raw content, escapes and all: the members that we know have none. */
static bool take_string(const char **at, const char **text, size_t *length)
{
    if (!take(at, '"')) return false;
    *text = *at;
    for (; **at != '"'; ++*at) {
        if ((unsigned char)**at < 0x20) return false; /* the end, too */
        if (**at == '\\' && *++*at == '\0') return false;
    }
    *length = (size_t)(*at - *text);
    ++*at;
    return true;
}

/* strtod knows more numbers than JSON: hexadecimal ones, inf, nan, +1 and .5. */
static bool take_number(const char **at, double *value)
{
    const char *p = *at + (**at == '-');
    if (*p < '0' || *p > '9') return false;
    if (p[0] == '0' && p[1] && strchr("xX0123456789", p[1])) return false;
    char *end;
    *value = strtod(*at, &end);
    *at = end;
    return isfinite(*value);
}

static bool take_word(const char **at, const char *word)
{
    const size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0) return false;
    *at += length;
    return true;
}

/* Any value; a number's is stored, any other's is NAN: null, and what Python's json writes for numbers that
   aren't finite, though JSON has no such words. */
static bool take_value(const char **at, double *value, int depth)
{
    const char *text;
    size_t length;
    *value = NAN;
    skip_blanks(at);
    if (**at == '"') return take_string(at, &text, &length);
    if (take_word(at, "null") || take_word(at, "true") || take_word(at, "false")) return true;
    if (take_word(at, "NaN") || take_word(at, "Infinity") || take_word(at, "-Infinity")) return true;
    if (**at != '{' && **at != '[') return take_number(at, value);
    const bool object = **at == '{';
    const char close = object ? '}' : ']';
    double inner;
    ++*at;
    if (depth == DEPTH_MAX) return false;
    if (take(at, close)) return true;
    do {
        if (object && !(take_string(at, &text, &length) && take(at, ':'))) return false;
        if (!take_value(at, &inner, depth + 1)) return false;
    } while (take(at, ','));
    return take(at, close);
}

/* ---- a log ---- */

/* Reads one line's members into the run. */
static bool take_line(run *r, const char *line)
{
    double epoch_, lr_;
    point p = { NAN, NAN, NAN };
    const struct {
        const char *name;
        double *value;
    } members[] = { { "step", &p.step },        { "loss", &p.loss },   { "samples_per_s", &p.speed },
                    { "epoch", &epoch_ },       { "lr", &lr_ },        { "test_accuracy", &r->accuracy },
                    { "correct", &r->correct }, { "total", &r->total } };
    const char *at = line, *name;
    size_t length;
    double value;
    if (!take(&at, '{')) return false;
    if (!take(&at, '}')) {
        do {
            if (!take_string(&at, &name, &length) || !take(&at, ':') || !take_value(&at, &value, 0))
                return false;
            for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
                if (strlen(members[i].name) == length && strncmp(members[i].name, name, length) == 0)
                    *members[i].value = value;
        } while (take(&at, ','));
        if (!take(&at, '}')) return false;
    }
    skip_blanks(&at);
    if (*at) return false;
    if (isnan(p.step)) return true; /* the last line, or another program's */
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 1024;
        r->points = grow(r->points, r->capacity * sizeof *r->points);
    }
    r->points[r->count++] = p;
    return true;
}

static char *read_line(FILE *file, char **line, size_t *capacity)
{
    size_t used = 0;
    int c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (used + 2 > *capacity) *line = grow(*line, *capacity = 2 * *capacity + 256);
        (*line)[used++] = c ? (char)c : '\1'; /* a zero byte is no more JSON than this one */
    }
    if (c == EOF && used == 0) return NULL;
    if (used + 1 > *capacity) *line = grow(*line, *capacity = 256);
    (*line)[used] = '\0';
    return *line;
}

static void read_log(run *r, bool log_y)
{
    FILE *file = fopen(r->path, "r");
    if (!file) die(1, "can't open %s: %s", r->path, strerror(errno));
    r->accuracy = r->correct = r->total = NAN;
    char *line = NULL;
    size_t capacity = 0;
    bool any = false, positive = false;
    for (int number = 1; read_line(file, &line, &capacity); number++) {
        if (line[strspn(line, " \t\r")] == '\0') continue;
        if (!take_line(r, line))
            die(1, "%s:%d: not a JSON object with numbers in it: %.60s%s", r->path, number, line,
                strlen(line) > 60 ? "..." : "");
    }
    if (ferror(file)) die(1, "can't read %s: %s", r->path, strerror(errno));
    for (size_t i = 0; i < r->count; i++) {
        any = any || !isnan(r->points[i].loss);
        positive = positive || r->points[i].loss > 0;
        if (fabs(r->points[i].step) > 1e300 || fabs(r->points[i].loss) > 1e300 ||
            fabs(r->points[i].speed) > 1e300)
            die(1, "%s has a number beyond 1e300 in step %g, which no axis holds: leave that line out",
                r->path, r->points[i].step);
    }
    if (!any) die(1, "%s has no line with a \"step\" and a \"loss\"", r->path);
    if (log_y && !positive) die(1, "%s has no loss above 0: leave --log-y out", r->path);
    free(line);
    fclose(file);
}

/* ---- axes ---- */

typedef struct axis {
    double low, high; /* of the data */
    double from, to;  /* where these lie in the picture, in pixels */
    bool logarithmic;
} axis;

static double place(const axis *a, double value)
{
    const double low = a->logarithmic ? log(a->low) : a->low, high = a->logarithmic ? log(a->high) : a->high;
    const double at = ((a->logarithmic ? log(value) : value) - low) / (high - low);
    return a->from + at * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten, the smallest that cuts `span` into at most `most` pieces. */
static double nice_step(double span, int most)
{
    double power = pow(10, floor(log10(span / most)));
    static const double times[] = { 1, 2, 5, 10 };
    for (int i = 0; i < 4; i++)
        if (span / (times[i] * power) <= most * (1 + 1e-9)) return times[i] * power;
    return 10 * power;
}

/* Widens the axis to whole ticks, and writes the ticks. A logarithmic one with fewer than two of those that
   it should have gets some like any other, and keeps its ends. */
enum { TICKS_MAX = 32 };
static int make_ticks(axis *a, int most, bool widen, double ticks[TICKS_MAX])
{
    int count = 0;
    if (a->logarithmic) {
        const double decades = log10(a->high / a->low);
        for (int power = (int)floor(log10(a->low)); power <= (int)ceil(log10(a->high)); power++) {
            static const double times[] = { 1, 2, 5 };
            for (int i = 0; i < (decades > 4 ? 1 : 3); i++) {
                const double tick = times[i] * pow(10, power);
                if (tick >= a->low && tick <= a->high && count < TICKS_MAX) ticks[count++] = tick;
            }
        }
        if (count >= 2) return count;
        count = 0;
        widen = false;
    }
    const double step = nice_step(a->high - a->low, most);
    if (widen) {
        a->low = floor(a->low / step) * step;
        a->high = ceil(a->high / step) * step;
    }
    for (double k = ceil(a->low / step - 1e-9); k * step <= a->high + 1e-9 * step && count < TICKS_MAX; k++)
        ticks[count++] = k * step;
    return count;
}

/* All ticks of an axis are in one unit, by the `largest`. */
static const char *tick_text(double value, double largest)
{
    static char text[32];
    const double size = fabs(value);
    if (size < 1e-9 * fabs(largest)) return "0";
    if (fabs(largest) >= 1e7) {
        snprintf(text, sizeof text, "%gM", value / 1e6);
    } else if (fabs(largest) >= 1e4) {
        snprintf(text, sizeof text, "%gk", value / 1e3);
    } else {
        snprintf(text, sizeof text, "%g", value);
    }
    return text;
}

/* ---- the picture ---- */

enum {
    WIDTH = 860,
    LEFT = 70,
    RIGHT = WIDTH - 24,
    TITLE_HEIGHT = 36,
    LOSS_HEIGHT = 270,
    SPEED_HEIGHT = 80,
    GAP = 34,
    BOTTOM = 46
};

/* Grey text and lines that show on white and on black; a viewer that knows its colours gets better ones. */
static const char STYLE[] =
    "<style>\n"
    "text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif; "
    "fill: #6b7580; }\n"
    ".title { font-size: 17px; font-weight: 600; }\n"
    ".label { font-weight: 600; }\n"
    ".grid { stroke: #808a94; stroke-opacity: 0.25; stroke-width: 1; }\n"
    ".axis { stroke: #808a94; stroke-opacity: 0.8; stroke-width: 1; }\n"
    ".line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".thin { fill: none; stroke-width: 1.5; stroke-linejoin: round; }\n"
    ".raw { fill: none; stroke-width: 1; stroke-opacity: 0.28; stroke-linejoin: round; }\n"
    "@media (prefers-color-scheme: light) { text { fill: #3d444d; } }\n"
    "@media (prefers-color-scheme: dark) { text { fill: #c9d1d9; } }\n"
    "</style>\n";

static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default:
            if ((unsigned char)*text >= 0x20) putc(*text, out);
        }
    }
}

static void put_text(FILE *out, double x, double y, const char *attributes, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    put_escaped(out, text);
    fputs("</text>\n", out);
}

static void put_rule(FILE *out, const char *kind, double x0, double y0, double x1, double y1)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", kind, x0, y0, x1,
            y1);
}

/* Grid, axes, ticks and names of one panel. The x axis is labelled only where it has a name. */
static void put_panel(FILE *out, const axis *x, const axis *y, const double *x_ticks, int x_count,
                      const double *y_ticks, int y_count, const char *name, const char *x_name)
{
    for (int i = 0; i < x_count; i++) {
        const double at = place(x, x_ticks[i]);
        put_rule(out, "grid", at, y->from, at, y->to);
        if (x_name)
            put_text(out, at, y->from + 18, "text-anchor=\"middle\"",
                     tick_text(x_ticks[i], x->logarithmic ? x_ticks[i] : x->high));
    }
    for (int i = 0; i < y_count; i++) {
        const double at = place(y, y_ticks[i]);
        put_rule(out, "grid", x->from, at, x->to, at);
        put_text(out, x->from - 8, at + 4.5, "text-anchor=\"end\"",
                 tick_text(y_ticks[i], y->logarithmic ? y_ticks[i] : y->high));
    }
    put_rule(out, "axis", x->from, y->from, x->to, y->from);
    put_rule(out, "axis", x->from, y->from, x->from, y->to);
    const double middle = (y->from + y->to) / 2;
    char turned[96];
    snprintf(turned, sizeof turned,
             "class=\"label\" text-anchor=\"middle\" transform=\"rotate(-90 16 %.1f)\"", middle);
    put_text(out, 16, middle + 4, turned, name);
    if (x_name)
        put_text(out, (x->from + x->to) / 2, y->from + 38, "class=\"label\" text-anchor=\"middle\"", x_name);
}

/* A line through what `value` makes of the points; of many in one column of pixels, the lowest and highest.
 */
static void put_line(FILE *out, const char *kind, const char *colour, const run *r, const double *values,
                     const axis *x, const axis *y)
{
    fprintf(out, "<path class=\"%s\" stroke=\"%s\" d=\"", kind, colour);
    const double column = 1.5; /* pixels */
    bool pen_down = false;
    for (size_t i = 0; i < r->count;) {
        const double at = place(x, r->points[i].step);
        double low = NAN, high = NAN, first = NAN;
        size_t in_column = 0;
        for (; i < r->count && fabs(place(x, r->points[i].step) - at) < column; i++, in_column++) {
            const double v = values[i];
            if (isnan(v) || (y->logarithmic && v <= 0)) continue;
            if (isnan(first)) first = v;
            low = fmin(low, v);
            high = fmax(high, v);
        }
        if (isnan(first)) { /* a gap in the log is one in the line */
            pen_down = false;
            continue;
        }
        fprintf(out, "%c%.1f %.1f", pen_down ? 'L' : 'M', at, place(y, first));
        if (in_column > 1 && low < high) fprintf(out, "V%.1fV%.1f", place(y, low), place(y, high));
        pen_down = true;
    }
    fputs("\"/>\n", out);
}

/* An average over about `window` points on both sides, with weights that fall exponentially: so it neither
   lags behind nor is pulled anywhere at the ends. `weights` is scratch. */
static void smooth(const run *r, double window, double *out, double *weights)
{
    const double keep = 1 - 1 / window;
    for (size_t i = 0; i < r->count; i++) out[i] = weights[i] = 0;
    for (int side = 0; side < 2; side++) {
        double sum = 0, weight = 0;
        for (size_t k = 0; k < r->count; k++) {
            const size_t i = side ? r->count - 1 - k : k;
            const double loss = r->points[i].loss;
            const bool there = !isnan(loss);
            sum *= keep;
            weight *= keep;
            out[i] += sum; /* the point itself is counted once, from the second side */
            weights[i] += weight;
            if (there && side == 1) out[i] += loss, weights[i] += 1;
            if (there) sum += loss, weight += 1;
        }
    }
    for (size_t i = 0; i < r->count; i++) out[i] = isnan(r->points[i].loss) ? NAN : out[i] / weights[i];
}

static void put_legend(FILE *out, const options *o, double top)
{
    for (int i = 0; i < o->run_count; i++) {
        const run *r = &o->runs[i];
        const double y = top + 20 + 21 * i;
        char text[512], result[96] = "";
        if (!isnan(r->accuracy))
            snprintf(result, sizeof result, ": %.2f %% test accuracy", 100 * r->accuracy);
        if (result[0] && !isnan(r->correct) && !isnan(r->total))
            snprintf(result + strlen(result), sizeof result - strlen(result), " (%.0f/%.0f)", r->correct,
                     r->total);
        snprintf(text, sizeof text, "%.*s%s", r->label_length, r->label, result);
        /* (Losses fall; on a logarithmic axis of steps what is drawn rises.) */
        put_text(out, o->log_x ? LEFT + 48 : RIGHT - 44, y,
                 o->log_x ? "class=\"label\"" : "class=\"label\" text-anchor=\"end\"", text);
        fprintf(out, "<path class=\"line\" stroke=\"%s\" d=\"M%d %.1fh26\"/>\n", COLOURS[i],
                o->log_x ? LEFT + 14 : RIGHT - 36, y - 4.5);
    }
}

static void widen_to(axis *a, double value)
{
    if (isnan(value) || (a->logarithmic && value <= 0)) return;
    a->low = fmin(a->low, value);
    a->high = fmax(a->high, value);
}

/* An axis of no length can't be drawn. */
static void open_up(axis *a)
{
    if (isnan(a->low)) a->low = a->high = 1;
    if (a->low < a->high) return;
    a->high = a->low > 0 ? 1.5 * a->low : a->low + 1;
    a->low = a->low > 0 ? a->low / 2 : a->low - 1;
}

static void draw(FILE *out, const options *o)
{
    const double top = o->title ? TITLE_HEIGHT + 10 : 14;
    axis x = { NAN, NAN, LEFT, RIGHT, o->log_x };
    axis loss = { NAN, NAN, top + LOSS_HEIGHT, top, o->log_y };
    axis speed = { 0, NAN, top + LOSS_HEIGHT + GAP + SPEED_HEIGHT, top + LOSS_HEIGHT + GAP, false };
    if (!o->log_y) loss.low = 0;
    size_t longest = 0;
    bool any_speed = false;
    for (int i = 0; i < o->run_count; i++) {
        const run *r = &o->runs[i];
        if (r->count > longest) longest = r->count;
        for (size_t k = 0; k < r->count; k++) {
            widen_to(&x, r->points[k].step);
            widen_to(&loss, r->points[k].loss);
            widen_to(&speed, r->points[k].speed);
            any_speed = any_speed || !isnan(r->points[k].speed);
        }
    }
    if (!o->log_x && x.low > 0 && x.low < 0.05 * x.high) x.low = 0;
    open_up(&x), open_up(&loss), open_up(&speed);
    double x_ticks[TICKS_MAX], loss_ticks[TICKS_MAX], speed_ticks[TICKS_MAX];
    const int x_count = make_ticks(&x, 8, false, x_ticks),
              loss_count = make_ticks(&loss, 6, true, loss_ticks);
    const int speed_count = make_ticks(&speed, 3, true, speed_ticks);

    const int height = (int)(any_speed ? speed.from : loss.from) + BOTTOM;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "role=\"img\">\n",
            WIDTH, height, WIDTH, height);
    fputs("<title>", out);
    put_escaped(out, o->title ? o->title : "Training loss over steps");
    fputs("</title>\n", out);
    fputs(STYLE, out);
    if (o->title) put_text(out, LEFT, 26, "class=\"title\"", o->title);
    const char *x_name = o->x_name ? o->x_name : "training step";
    put_panel(out, &x, &loss, x_ticks, x_count, loss_ticks, loss_count,
              o->y_name ? o->y_name : "training loss", any_speed ? NULL : x_name);
    if (any_speed)
        put_panel(out, &x, &speed, x_ticks, x_count, speed_ticks, speed_count, "samples/s", x_name);

    double *values = grow(NULL, 2 * longest * sizeof *values);
    for (int pass = 0; pass < 3; pass++) { /* what was measured lies below every average */
        for (int i = 0; i < o->run_count; i++) {
            const run *r = &o->runs[i];
            const double window = o->smooth > 0 ? o->smooth : fmax(1, (double)r->count / 60);
            if (pass == 0 && window == 1) continue;
            for (size_t k = 0; k < r->count; k++)
                values[k] = pass == 0 ? r->points[k].loss : r->points[k].speed;
            if (pass == 1) smooth(r, window, values, values + longest);
            if (pass == 2 && !any_speed) continue;
            put_line(out,
                     pass == 0   ? "raw"
                     : pass == 1 ? "line"
                                 : "thin",
                     COLOURS[i], r, values, &x, pass == 2 ? &speed : &loss);
        }
    }
    free(values);
    put_legend(out, o, top);
    fputs("</svg>\n", out);
}

/* ---- the command line ---- */

static const char *value_of(char **argv, int *i)
{
    const char *option = argv[*i], *value = argv[++*i];
    if (!value) die(2, "%s needs a value (plot --help)", option);
    return value;
}

/* Calls a run by its file's name, without folder and ending. */
static void name_by_file(run *r)
{
    const char *slash = strrchr(r->path, '/');
    r->label = slash ? slash + 1 : r->path;
    const char *dot = strrchr(r->label, '.');
    r->label_length = (int)(dot && dot != r->label ? (size_t)(dot - r->label) : strlen(r->label));
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
    options o;
    memset(&o, 0, sizeof o);
    const char *label = NULL;
    for (int i = 1; argv[i]; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            print_and_exit(USAGE);
        } else if (strcmp(argv[i], "--version") == 0) {
            print_and_exit("plot " VERSION "\n");
        } else if (strcmp(argv[i], "-o") == 0 || strcmp(argv[i], "--output") == 0) {
            o.output = value_of(argv, &i);
        } else if (strcmp(argv[i], "--label") == 0) {
            label = value_of(argv, &i);
        } else if (strcmp(argv[i], "--title") == 0) {
            o.title = value_of(argv, &i);
        } else if (strcmp(argv[i], "--log-y") == 0) {
            o.log_y = true;
        } else if (strcmp(argv[i], "--log-x") == 0) {
            o.log_x = true;
        } else if (strcmp(argv[i], "--x-name") == 0) {
            o.x_name = value_of(argv, &i);
        } else if (strcmp(argv[i], "--y-name") == 0) {
            o.y_name = value_of(argv, &i);
        } else if (strcmp(argv[i], "--smooth") == 0) {
            const char *text = value_of(argv, &i);
            char *end;
            o.smooth = strtod(text, &end);
            if (*end || !(o.smooth >= 1 && o.smooth <= 1e9))
                die(2, "--smooth takes a number from 1, not '%s'", text);
        } else if (argv[i][0] == '-') {
            die(2, "there is no option '%s' (plot --help)", argv[i]);
        } else if (o.run_count == RUNS_MAX) {
            die(2, "at most %d logs fit one picture", RUNS_MAX);
        } else {
            run *r = &o.runs[o.run_count++];
            r->path = argv[i];
            name_by_file(r);
            if (label) {
                r->label = label;
                r->label_length = (int)strlen(label);
            }
            label = NULL;
        }
    }
    if (o.run_count == 0) die(2, "which log? (plot --help)");
    if (label) die(2, "--label '%s' stands before no log", label);
    return o;
}

int main(int argc, char **argv)
{
    if (argc < 1) return 2;
    options o = parse_options(argv);
    for (int i = 0; i < o.run_count; i++) {
        read_log(&o.runs[i], o.log_y);
        for (size_t k = 0; o.log_x && k < o.runs[i].count; k++)
            if (o.runs[i].points[k].step <= 0)
                die(1, "%s has a step that is not above 0: leave --log-x out", o.runs[i].path);
    }
    FILE *out = o.output ? fopen(o.output, "w") : stdout;
    if (!out) die(1, "can't write %s: %s", o.output, strerror(errno));
    draw(out, &o);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        const int reason = errno;
        struct stat info;
        if (o.output && stat(o.output, &info) == 0 && S_ISREG(info.st_mode)) remove(o.output); /* no device */
        die(1, "can't write %s: %s", o.output ? o.output : "the picture", strerror(reason));
    }
    for (int i = 0; i < o.run_count; i++) free(o.runs[i].points);
    return 0;
}
