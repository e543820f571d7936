/* tune.h: measures once which tiles are best on a device, and keeps it in a small file: a line that says what
   it is, then a line a device, which is the shapes of all classes of sizes and the device's name.

   The file is $DML_TUNE, or dml-tune.txt in $XDG_CACHE_HOME or $HOME/.cache. DML_TUNE=0, a file that can't be
   written or is something else, or too little memory: nothing is measured, and dml__choose_tile's rule holds.
   All shapes add an output's products in the same order, so the choice doesn't change a bit of a result. */
#ifndef DML_GPU_TUNE_H
#define DML_GPU_TUNE_H

#include "base/clock.h"
#include "device/backend.h"
#include "device/context.h"
#include "gpu/choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DML__TUNE_PATH = 1024, DML__TUNE_LINE = 256 };
/* The products that are timed: how deep, and of how many elements at most. */
enum { DML__TUNE_LAUNCHES = 4, DML__TUNE_DEPTH = 256, DML__TUNE_MOST = 4096 * 1024 };
#define DML__TUNE_TITLE "dml's tiles, by device: "
static const char dml__tune_title[] = DML__TUNE_TITLE
    "2\n"; /* of kernels that are tuned anew: another number, and files of others are as empty */

/* False: nothing is to be kept. */
static inline bool dml__tune_path(char *path, size_t capacity)
{
    const char *named = getenv("DML_TUNE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    if (named && *named)
        length = strcmp(named, "0") == 0 ? 0 : snprintf(path, capacity, "%s", named);
    else if (cache && *cache)
        length = snprintf(path, capacity, "%s/dml-tune.txt", cache);
    else if (home && *home)
        length = snprintf(path, capacity, "%s/.cache/dml-tune.txt", home);
    return length > 0 && (size_t)length < capacity;
}

/* Whether a line is whole: the shapes, a space and a name. */
static inline bool dml__tune_is_line(const char *line)
{
    enum { COUNT = DML__TUNE_CLASSES * DML__TUNE_CLASSES };
    const size_t length = strlen(line);
    return strspn(line, "012345") == COUNT && line[COUNT] == ' ' && length > COUNT + 2 &&
           line[length - 1] == '\n';
}

static inline bool dml__tune_is_of(const char *line, const char *device)
{
    const char *name = line + DML__TUNE_CLASSES * DML__TUNE_CLASSES + 1;
    return strncmp(name, device, strlen(device)) == 0 && name[strlen(device)] == '\n';
}

static inline void dml__tune_take(dml__choice *choice, const char *line)
{
    for (int i = 0; i < DML__TUNE_CLASSES * DML__TUNE_CLASSES; i++)
        choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES] = (unsigned char)(line[i] - '0');
    choice->measured = true;
}

/* What a file is to this library. */
typedef enum dml__tune_kind {
    DML__TUNE_OURS,
    DML__TUNE_BROKEN, /* ours, with lines that aren't whole */
    DML__TUNE_FOREIGN /* somebody's, who will want to keep it */
} dml__tune_kind;

/* Whether what is there, if anything is, isn't a plain file: it is neither read, which may wait, nor
   replaced. */
static inline bool dml__tune_is_special(const char *path)
{
    struct stat what;
    return stat(path, &what) == 0 && !S_ISREG(what.st_mode);
}

/* Takes the device's line, and copies the others that are whole to `aside`; each may be NULL. */
static inline dml__tune_kind dml__tune_read(dml__choice *choice, const char *path, const char *device,
                                            FILE *aside)
{
    char line[DML__TUNE_LINE];
    dml__tune_kind kind = DML__TUNE_OURS;
    if (dml__tune_is_special(path)) return DML__TUNE_FOREIGN;
    FILE *file = fopen(path, "r");
    const bool titled = file && fgets(line, sizeof line, file);
    const bool current = titled && strcmp(line, dml__tune_title) == 0;
    if (titled && strncmp(line, DML__TUNE_TITLE, strlen(DML__TUNE_TITLE)) != 0) kind = DML__TUNE_FOREIGN;
    while (current && fgets(line, sizeof line, file)) {
        if (!dml__tune_is_line(line))
            kind = DML__TUNE_BROKEN;
        else if (!dml__tune_is_of(line, device))
            (void)(aside && fputs(line, aside));
        else if (choice)
            dml__tune_take(choice, line);
    }
    if (file) fclose(file);
    return kind;
}

/* The least seconds of a launch of `kernel` for columns x rows; negative: it failed. */
typedef double (*dml__tune_clock)(void *argument, const char *kernel, int columns, int rows);

/* Fills the table; false: a launch failed. A shape is left for one that is a twentieth faster. */
static inline bool dml__tune_measure(dml__choice *choice, dml__tune_clock seconds_of, void *argument)
{
    static const char *const kernels[] = { "gemm_128x128", "gemm_128x64", "gemm_64x64",
                                           "gemm_64x16",   "gemm_16x64",  "gemm_16x16" };
    static const int sizes[DML__TUNE_CLASSES] = { 16, 64, 256, 1024, 4096, 16384, 65536 };
    for (int r = 0; r < DML__TUNE_CLASSES; r++) {
        for (int c = 0; c < DML__TUNE_CLASSES; c++) {
            const size_t size[2] = { (size_t)sizes[c], (size_t)sizes[r] };
            int best = (int)dml__choose_tile(choice, size, true);
            if (size[0] * size[1] > DML__TUNE_MOST) { /* a device is full of less */
                choice->tile[r][c] = r >= c ? choice->tile[r - 1][c] : choice->tile[r][c - 1];
                continue;
            }
            double least = seconds_of(argument, kernels[best], sizes[c], sizes[r]);
            for (int shape = 0; shape < DML__TILE_SHAPES && least >= 0; shape++) {
                const double seconds = seconds_of(argument, kernels[shape], sizes[c], sizes[r]);
                if (seconds < 0) least = seconds;
                if (seconds < 0.95 * least) least = seconds, best = shape;
            }
            if (least < 0) return false;
            choice->tile[r][c] = (unsigned char)best;
        }
    }
    choice->measured = true;
    return true;
}

/* Whether nothing is to be measured: it isn't wanted, the file has it, which is then in the table, or has
   something else. `note` is what there is to say about the file, or NULL. */
static inline bool dml__tune_is_settled(dml__choice *choice, const char *device, char path[DML__TUNE_PATH],
                                        const char **note)
{
    *note = NULL;
    if (!dml__tune_path(path, DML__TUNE_PATH)) return true;
    const dml__tune_kind kind = dml__tune_read(choice, path, device, NULL);
    if (kind == DML__TUNE_FOREIGN) *note = "is no file of tiles, so it is left alone and nothing is measured";
    if (kind == DML__TUNE_BROKEN) *note = "is damaged: its whole lines are kept";
    return choice->measured || kind == DML__TUNE_FOREIGN;
}

/* The file anew, with the table: whoever reads it meanwhile sees the old one or the new one. */
static inline void dml__tune_keep(const dml__choice *choice, const char *path, const char *device,
                                  FILE *aside, const char *aside_path)
{
    fputs(dml__tune_title, aside);
    (void)dml__tune_read(NULL, path, device, aside);
    for (int i = 0; i < DML__TUNE_CLASSES * DML__TUNE_CLASSES; i++)
        fputc('0' + choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES], aside);
    fprintf(aside, " %s\n", device);
    const bool failed = ferror(aside) != 0;
    if (fclose(aside) != 0 || failed || rename(aside_path, path) != 0) (void)remove(aside_path);
}

/* Measures the table and adds it to the file. False: a launch failed. */
static inline bool dml__tune_with(dml__choice *choice, const char *device, const char *path,
                                  dml__tune_clock seconds_of, void *argument)
{
    char aside_path[DML__TUNE_PATH + 48];
    snprintf(aside_path, sizeof aside_path, "%s.%ld.%llx", path,
             (long)getpid(), /* threads may open devices at once */
             (unsigned long long)(uintptr_t)choice);
    FILE *aside = fopen(aside_path, "w");
    if (!aside) return true;
    const bool ok = dml__tune_measure(choice, seconds_of, argument);
    if (ok) {
        dml__tune_keep(choice, path, device, aside, aside_path);
    } else {
        fclose(aside);
        (void)remove(aside_path);
    }
    return ok;
}

/* One buffer, of which all three operands of a product are parts: as much as the largest factor, and the
 * result. */
#define DML__TUNE_FACTOR ((size_t)65536 * DML__TUNE_DEPTH)
typedef struct dml__tune_job {
    dml_device *device;
    dml_buffer matrix;
} dml__tune_job;

static inline double dml__tune_seconds(void *argument, const char *kernel, int columns, int rows)
{
    dml__tune_job *job = (dml__tune_job *)argument;
    const dml_backend *backend = job->device->backend;
    const int32_t integers[] = { rows, columns, DML__TUNE_DEPTH, 0, 0, DML__TUNE_DEPTH, columns, columns };
    double least = 1e30;
    dml_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.kernel = kernel;
    launch.size[0] = (size_t)columns, launch.size[1] = (size_t)rows;
    memcpy(launch.integer, integers, sizeof integers);
    launch.real[0] = 0; /* C = 0, whatever A and B are */
    for (int i = 0; i < 3; i++) launch.buffer[i].buffer = &job->matrix;
    launch.buffer[2].offset = DML__TUNE_FACTOR * sizeof(float);
    for (int run = 0; run < 4; run++) { /* the first may compile */
        const double start = dml_seconds();
        for (int i = 0; i < DML__TUNE_LAUNCHES; i++) /* or waiting is most of it */
            if (backend->launch(job->device, &launch) != DML_OK) return -1;
        if (backend->finish(job->device) != DML_OK) return -1;
        const double seconds = dml_seconds() - start;
        if (run && seconds < least) least = seconds;
    }
    return least;
}

/* Of an open device; its status where a launch fails. Devices that are CPUs have nothing to choose. */
static inline dml_status dml__tune(dml_device *device, dml__choice *choice, const char *name)
{
    dml__tune_job job;
    char path[DML__TUNE_PATH];
    const char *note = NULL;
    const dml_ref all = { &job.matrix, 0 };
    if (choice->solo != DML__SOLO_NONE || dml_status_of(device->context) != DML_OK) return DML_OK;
    const bool settled = dml__tune_is_settled(choice, name, path, &note);
    if (note) dml_device_warn(device, "%s %s", path, note);
    if (settled) return DML_OK;
    memset(&job, 0, sizeof job);
    job.device = device;
    job.matrix.bytes = (DML__TUNE_FACTOR + DML__TUNE_MOST) * sizeof(float);
    dml_status status = device->backend->buffer_create(device, &job.matrix);
    if (status == DML_OK) status = device->backend->zero(device, all, job.matrix.bytes);
    if (status == DML_OK && !dml__tune_with(choice, name, path, dml__tune_seconds, &job))
        status = dml_status_of(device->context);
    device->backend->buffer_destroy(device, &job.matrix);
    if (status != DML_ERROR_MEMORY) return status;
    dml_device_forgive(device); /* models may fit where this doesn't */
    dml_device_warn(device, "%s: no memory to measure which tiles are best", name);
    return DML_OK;
}

#endif
