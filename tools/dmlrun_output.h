/* dmlrun_output.h: what the ranks print, line by line, each with its rank in front; on a terminal an
   unfinished line (a progress bar, a prompt) stays the last one of the screen. */
#ifndef DMLRUN_OUTPUT_H
#define DMLRUN_OUTPUT_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 1 << 20, /* a longer line is cut here, so that no rank can eat the memory */
    SINK_FULL = 1 << 20,      /* output waiting for a slow reader: past this the ranks wait too */
    CHUNK = 65536,
    PIPE_TAKES = 4096 /* what a pipe that polls as writable takes without blocking (PIPE_BUF, on Linux) */
};

/* dmlrun.c's: ends the job with a sentence. */
static void die(int status, const char *format, ...);

/* One of our outputs, with what waits to be written to it. */
typedef struct sink {
    int fd;
    bool terminal;
    bool broken; /* nothing more can be written: */
    int failure; /* why, as errno; EPIPE: its reader is gone */
    char *bytes; /* written up to `start`, filled up to `used` */
    size_t start, used, capacity;
    struct stream *live; /* on a terminal: whose unfinished line is the last one of the screen */
    bool live_shown;
} sink;

/* One output of one rank, with its line so far. */
typedef struct stream {
    int fd; /* -1: closed */
    int rank;
    sink *sink;
    char *line;
    size_t used, capacity;
} stream;

static void append(char **bytes, size_t *used, size_t *capacity, const char *more, size_t count)
{
    if (*capacity - *used < count) {
        size_t bigger = *capacity ? *capacity : 4096;
        while (bigger - *used < count) bigger *= 2;
        char *grown = realloc(*bytes, bigger);
        if (!grown) die(1, "no memory left for the ranks' output");
        *bytes = grown;
        *capacity = bigger;
    }
    memcpy(*bytes + *used, more, count);
    *used += count;
}

static void sink_put(sink *s, const char *text, size_t count)
{
    if (s->broken) return;
    if (s->start > SINK_FULL) { /* so that what has been written doesn't pile up */
        s->used -= s->start;
        memmove(s->bytes, s->bytes + s->start, s->used);
        s->start = 0;
    }
    append(&s->bytes, &s->used, &s->capacity, text, count);
}

static void sink_text(sink *s, const char *text)
{
    sink_put(s, text, strlen(text));
}

static void sink_hide_live(sink *s)
{
    if (s->live_shown) sink_text(s, "\r\033[K");
    s->live_shown = false;
}

static void sink_prefix(sink *s, int rank)
{
    char prefix[24];
    snprintf(prefix, sizeof prefix, "[%d] ", rank);
    sink_text(s, prefix);
}

/* What of a line fits a terminal's `columns`: escape sequences and UTF-8's later bytes take no room. */
static size_t visible_bytes(const char *text, size_t count, int columns)
{
    bool escape = false;
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == 033) {
            escape = true;
        } else if (escape) {
            escape = !(c >= '@' && c <= '~' && c != '[');
        } else if ((c & 0xC0) != 0x80 && columns-- <= 0) {
            return i;
        }
    }
    return count;
}

/* Draws the unfinished line again below what was printed meanwhile: a progress bar, or a prompt. */
static void sink_show_live(sink *s)
{
    stream *live = s->live;
    if (!live || s->live_shown) return;
    size_t length = live->used;
    while (length > 0 && strchr(" \r", live->line[length - 1])) length--; /* a bar is wiped with blanks */
    if (length == 0) return;
    struct winsize size;
    const int columns = ioctl(s->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    char prefix[24];
    const int width = columns - 1 - snprintf(prefix, sizeof prefix, "[%d] ", live->rank);
    sink_text(s, prefix);
    sink_put(s, live->line, visible_bytes(live->line, length, width));
    s->live_shown = true;
}

/* Writes what a pipe takes without making us wait; called when poll() says that there is room. */
static void sink_write(sink *s)
{
    const size_t waiting = s->used - s->start;
    const ssize_t written = write(s->fd, s->bytes + s->start, waiting < PIPE_TAKES ? waiting : PIPE_TAKES);
    if (written > 0) s->start += (size_t)written;
    if (written < 0 && errno != EINTR && errno != EAGAIN) {
        s->broken = true;
        s->failure = errno;
    }
    if (s->start == s->used || s->broken) s->start = s->used = 0;
}

static void stream_line(stream *s, const char *line, size_t count)
{
    sink_hide_live(s->sink);
    sink_prefix(s->sink, s->rank);
    sink_put(s->sink, line, count);
    sink_text(s->sink, "\n");
}

/* On a terminal a carriage return starts the line again: only what follows the last one is to be seen. */
static size_t restart_of_line(const char *line, size_t count)
{
    while (count > 0 && line[count - 1] == '\r') count--;
    while (count > 0 && line[count - 1] != '\r') count--;
    return count;
}

/* Takes new output: prints the lines that it completes, keeps the rest. */
static void stream_take(stream *s, const char *bytes, size_t count)
{
    const bool terminal = s->sink->terminal;
    const size_t seen = s->used;
    append(&s->line, &s->used, &s->capacity, bytes, count);
    size_t start = 0;
    for (size_t from = seen;;) {
        const char *end = memchr(s->line + from, '\n', s->used - from);
        if (!end) break;
        const size_t length = (size_t)(end - s->line) - start;
        const size_t skip = terminal ? restart_of_line(s->line + start, length) : 0;
        stream_line(s, s->line + start + skip, length - skip);
        from = start = start + length + 1;
    }
    if (terminal) start += restart_of_line(s->line + start, s->used - start);
    for (; s->used - start >= LINE_MAX_BYTES; start += LINE_MAX_BYTES)
        stream_line(s, s->line + start, LINE_MAX_BYTES);
    s->used -= start;
    memmove(s->line, s->line + start, s->used);
    if (!terminal) return;
    if (s->used > 0 || s->sink->live == s) {
        sink_hide_live(s->sink);
        s->sink->live = s->used > 0 ? s : NULL;
    }
}

static void stream_close(stream *s)
{
    if (s->fd < 0) return;
    if (s->sink->live == s) {
        sink_hide_live(s->sink);
        s->sink->live = NULL;
    }
    if (s->used > 0) stream_line(s, s->line, s->used);
    close(s->fd);
    free(s->line);
    s->fd = -1;
    s->line = NULL;
    s->used = s->capacity = 0;
}

/* Reads once. False when there is nothing more to read for now. */
static bool stream_read(stream *s)
{
    static char bytes[CHUNK];
    if (s->fd < 0) return false;
    const ssize_t count = read(s->fd, bytes, sizeof bytes);
    if (count > 0) {
        stream_take(s, bytes, (size_t)count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        stream_close(s);
    }
    return count > 0;
}

/* What a dead rank left in its pipe. A process that left the group may hold it open, and go on writing. */
static void stream_finish(stream *s)
{
    for (int i = 0; i < 64 && stream_read(s); i++) continue;
    stream_close(s);
}

#endif
