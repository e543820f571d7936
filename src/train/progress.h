/* progress.h: a line that shows how far a training run has come. */
#ifndef DML_TRAIN_PROGRESS_H
#define DML_TRAIN_PROGRESS_H

#include "base/platform.h"

#ifndef DML_NO_STDIO
#include <stdio.h>

typedef struct dml_progress_options {
    int64_t total;     /* steps of the whole; 0: unknown, so no bar and no time left */
    const char *label; /* shown first, such as "lenet"; NULL: nothing. The caller's until dml_progress_end */
    int terminal;      /* 1: the file is a terminal; -1: it isn't; 0: find out (see below) */
    int width;         /* in columns; 0: as wide as the terminal, else what COLUMNS says, else 80 */
    double (*seconds)(void *user); /* a clock that never runs backwards; NULL: dml_seconds */
    void *seconds_user;
} dml_progress_options;

/* The state of a progress line. It lies where the caller wants it and owns nothing; its fields are private.
 */
typedef struct dml_progress {
    FILE *file;
    dml_progress_options options;
    bool drawing;
    int drawn;        /* columns of the bar on the screen, 0 when there is none */
    double next_draw; /* not before this time */
    struct {
        double time;
        int64_t step, samples;
    } mark[2]; /* two moments of the last seconds, older first: speeds are measured from the older */
} dml_progress;

/* Starts a progress line on `file`; NULL options: all defaults. A NULL file makes every call do nothing, for
   ranks that have nothing to say. On a terminal a bar is drawn, elsewhere only the lines below appear. A file
   is a terminal when isatty says so, or when the environment variable DML_TERMINAL holds the digit of its
   descriptor ("1", "2", "12"): dmlrun sets it for a rank whose output it passes on to one. */
DML_API void dml_progress_begin(dml_progress *progress, FILE *file, const dml_progress_options *options);

/* Tells that `step` steps are done, with the loss of the last and `samples` samples since the beginning (0:
   not counted). Draws at most 10 times a second, so it may be called at each step:

       lenet  42 % [==============>                    ]  loss 0.1234  12345 samples/s  0:12 left

   What doesn't fit the width is left out. Plain ASCII, without colour. */
DML_API void dml_progress_update(dml_progress *progress, int64_t step, double loss, int64_t samples);

/* Prints one line that stays, such as an epoch's result, above the bar; a newline is added. */
DML_API void dml_progress_line(dml_progress *progress, const char *format, ...) DML__PRINTF(2, 3);

/* Takes the bar off the screen. Nothing more is drawn. */
DML_API void dml_progress_end(dml_progress *progress);

#endif
#endif
