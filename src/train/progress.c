#ifndef DML_TRAIN_PROGRESS_C
#define DML_TRAIN_PROGRESS_C

#include "train/progress.h"

#ifndef DML_NO_STDIO

#include "base/clock.h"
#include "base/windows.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
#define DML__PROGRESS_TERMINALS
#elif defined(_WIN32)
#include <io.h>
#endif

#define DML__PROGRESS_INTERVAL 0.1 /* seconds between two drawings */
#define DML__PROGRESS_WINDOW 5.0   /* speeds are those of the last 5 to 10 seconds */
#define DML__PROGRESS_WIDEST 120
#define DML__PROGRESS_PART 40

static double dml__progress_now(const dml_progress *progress)
{
    const dml_progress_options *options = &progress->options;
    return options->seconds ? options->seconds(options->seconds_user) : dml_seconds();
}

static bool dml__progress_on_terminal(FILE *file)
{
#ifdef DML__PROGRESS_TERMINALS
    const int descriptor = fileno(file);
    const char *passed_on = getenv("DML_TERMINAL");
    if (descriptor < 0) return false;
    return isatty(descriptor) || (descriptor <= 9 && passed_on && strchr(passed_on, '0' + descriptor));
#elif defined(_WIN32)
    unsigned long mode; /* only of a console; _isatty also says so of NUL and of printers */
    const int descriptor = _fileno(file);
    const char *passed_on = getenv("DML_TERMINAL");
    if (descriptor < 0) return false;
    return dml__windows_GetConsoleMode((void *)_get_osfhandle(descriptor), &mode) ||
           (descriptor <= 9 && passed_on && strchr(passed_on, '0' + descriptor));
#else
    (void)file;
    return false;
#endif
}

static int dml__progress_width(const dml_progress *progress)
{
    int width = progress->options.width;
#ifdef DML__PROGRESS_TERMINALS
    struct winsize size;
    if (width <= 0 && ioctl(fileno(progress->file), TIOCGWINSZ, &size) == 0) width = size.ws_col;
#elif defined(_WIN32)
    short info[11];
    void *console = (void *)_get_osfhandle(_fileno(progress->file));
    if (width <= 0 && dml__windows_GetConsoleScreenBufferInfo(console, info))
        width = info[7] - info[5]; /* one less than there are: the last column would begin a new line */
#endif
    const char *columns = getenv("COLUMNS");
    if (width <= 0 && columns) width = atoi(columns);
    if (width <= 0) width = 80;
    return width < DML__PROGRESS_WIDEST ? width : DML__PROGRESS_WIDEST;
}

static void dml__progress_duration(char *text, size_t size, double seconds)
{
    if (seconds < 0) seconds = 0;
    if (seconds >= 100 * 3600.0) {
        snprintf(text, size, "  %.0f days left", seconds < 1e9 ? seconds / 86400 : 1e9 / 86400);
        return;
    }
    const int s = (int)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(text, size, "  %d:%02d:%02d left", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, size, "  %d:%02d left", s / 60, s % 60);
    }
}

static void dml__progress_rate(char *text, size_t size, double rate)
{
    if (rate >= 1e6) {
        snprintf(text, size, "  %.2fM samples/s", rate / 1e6);
    } else {
        snprintf(text, size, rate < 100 ? "  %.1f samples/s" : "  %.0f samples/s", rate);
    }
}

/* The parts of the line in the order in which they are shown. */
enum {
    DML__PROGRESS_LABEL,
    DML__PROGRESS_DONE,
    DML__PROGRESS_BAR,
    DML__PROGRESS_LOSS,
    DML__PROGRESS_RATE,
    DML__PROGRESS_LEFT,
    DML__PROGRESS_PARTS
};

static void dml__progress_bar(char *text, int columns, double done)
{
    const int inside = columns - 3; /* a blank and two brackets */
    const int full = (int)(done * inside);
    text[0] = ' ';
    text[1] = '[';
    for (int i = 0; i < inside; i++) text[2 + i] = i < full ? '=' : ' ';
    if (full < inside) text[2 + full] = '>';
    text[columns - 1] = ']';
    text[columns] = '\0';
}

/* Writes the line, at most `width` columns, and returns its length. What is worth most is fitted in first;
   the bar takes what room is left. */
static int dml__progress_compose(const dml_progress *progress, char *line, int width, double time,
                                 int64_t step, double loss, int64_t samples)
{
    static const int worth[] = { DML__PROGRESS_DONE, DML__PROGRESS_LOSS, DML__PROGRESS_LEFT,
                                 DML__PROGRESS_RATE, DML__PROGRESS_LABEL };
    enum { NARROWEST_BAR = 12, WIDEST_BAR = 53 };
    char part[DML__PROGRESS_PARTS][DML__PROGRESS_PART + WIDEST_BAR];
    memset(part, 0, sizeof part);
    const int64_t total = progress->options.total;
    const double elapsed = time - progress->mark[0].time;
    const double steps = (double)(step - progress->mark[0].step);
    const double counted = (double)(samples - progress->mark[0].samples);
    const double done = total > 0 && step < total ? (step > 0 ? (double)step / (double)total : 0) : 1;

    if (progress->options.label)
        snprintf(part[DML__PROGRESS_LABEL], DML__PROGRESS_PART, "%s  ", progress->options.label);
    if (total > 0) {
        snprintf(part[DML__PROGRESS_DONE], DML__PROGRESS_PART, "%3d %%", (int)(100 * done));
    } else {
        snprintf(part[DML__PROGRESS_DONE], DML__PROGRESS_PART, "step %lld", (long long)step);
    }
    const bool plain = loss < 1000 && loss > -1000; /* of one width, so that the bar stays where it is */
    snprintf(part[DML__PROGRESS_LOSS], DML__PROGRESS_PART, plain ? "  loss %.4f" : "  loss %.3g", loss);
    if (elapsed > 0 && counted > 0)
        dml__progress_rate(part[DML__PROGRESS_RATE], DML__PROGRESS_PART, counted / elapsed);
    if (elapsed > 0 && steps > 0 && total > 0)
        dml__progress_duration(part[DML__PROGRESS_LEFT], DML__PROGRESS_PART,
                               (double)(total - step) * elapsed / steps);

    int room = width;
    for (size_t i = 0; i < sizeof worth / sizeof worth[0]; i++) {
        const int length = (int)strlen(part[worth[i]]);
        if (length <= room) {
            room -= length;
        } else {
            part[worth[i]][0] = '\0';
        }
    }
    if (total > 0 && room >= NARROWEST_BAR)
        dml__progress_bar(part[DML__PROGRESS_BAR], room < WIDEST_BAR ? room : WIDEST_BAR, done);
    line[0] = '\0';
    for (int i = 0; i < DML__PROGRESS_PARTS; i++) strcat(line, part[i]);
    return (int)strlen(line);
}

/* Overwrites the bar with blanks: no terminal needs to know an escape sequence for it. */
static void dml__progress_wipe(dml_progress *progress)
{
    const int width = progress->drawn > 0 ? dml__progress_width(progress) - 1 : 0; /* it may have shrunk */
    const int blanks = progress->drawn < width ? progress->drawn : width;
    if (blanks > 0) fprintf(progress->file, "\r%*s\r", blanks, "");
    progress->drawn = 0;
    progress->next_draw = 0;
}

DML_API void dml_progress_begin(dml_progress *progress, FILE *file, const dml_progress_options *options)
{
    memset(progress, 0, sizeof *progress);
    progress->file = file;
    if (options) progress->options = *options;
    if (!file) return;
    const int asked = progress->options.terminal;
    progress->drawing = asked ? asked > 0 : dml__progress_on_terminal(file);
    progress->mark[0].time = progress->mark[1].time = dml__progress_now(progress);
}

DML_API void dml_progress_update(dml_progress *progress, int64_t step, double loss, int64_t samples)
{
    if (!progress->drawing) return;
    const double time = dml__progress_now(progress);
    if (time < progress->next_draw) return;
    progress->next_draw = time + DML__PROGRESS_INTERVAL;
    /* One column stays free: a terminal whose last column is written to may start a new line. */
    char line[2 * DML__PROGRESS_WIDEST];
    const int width = dml__progress_width(progress) - 1;
    const int length = dml__progress_compose(progress, line, width, time, step, loss, samples);
    const int before = progress->drawn < width ? progress->drawn : width;
    const int blanks = before > length ? before - length : 0;
    fprintf(progress->file, "\r%s%*s", line, blanks, "");
    fflush(progress->file);
    progress->drawn = length;
    if (time - progress->mark[1].time >= DML__PROGRESS_WINDOW) {
        progress->mark[0] = progress->mark[1];
        progress->mark[1].time = time;
        progress->mark[1].step = step;
        progress->mark[1].samples = samples;
    }
}

DML_API void dml_progress_line(dml_progress *progress, const char *format, ...)
{
    if (!progress->file) return;
    dml__progress_wipe(progress);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(progress->file, format, arguments);
    va_end(arguments);
    fputc('\n', progress->file);
    fflush(progress->file);
}

DML_API void dml_progress_end(dml_progress *progress)
{
    if (!progress->file) return;
    dml__progress_wipe(progress);
    fflush(progress->file);
    progress->drawing = false;
}

#endif
#endif
