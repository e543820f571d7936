/* tune.h: measures once which tiles are best on a device, and keeps it in a small file: a line a device,
   which is the shapes of all classes of sizes and the device's name.

   The file is $DML_TUNE, or dml-tune.txt in $XDG_CACHE_HOME or $HOME/.cache. DML_TUNE=0, or a file that can't
   be written: nothing is measured, and dml__choose_tile's rule holds. All shapes add an output's products in
   the same order, so the choice doesn't change a bit of a result. */
#ifndef DML_GPU_TUNE_H
#define DML_GPU_TUNE_H

#include "base/clock.h"
#include "device/backend.h"
#include "gpu/choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Takes the line's shapes if it is that device's. */
static inline bool dml__tune_parse(dml__choice *choice, const char *line, const char *device)
{
    enum { COUNT = DML__TUNE_CLASSES * DML__TUNE_CLASSES };
    if (strspn(line, "0123") != COUNT || line[COUNT] != ' ') return false;
    const char *name = line + COUNT + 1;
    if (strncmp(name, device, strlen(device)) != 0 || name[strlen(device)] != '\n') return false;
    for (int i = 0; i < COUNT; i++)
        choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES] = (unsigned char)(line[i] - '0');
    return true;
}

static inline bool dml__tune_read(dml__choice *choice, const char *path, const char *device)
{
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && !choice->measured && fgets(line, sizeof line, file))
        choice->measured = dml__tune_parse(choice, line, device);
    if (file) fclose(file);
    return choice->measured;
}

/* The least seconds of a launch of `kernel` for columns x rows; negative: it failed. */
typedef double (*dml__tune_clock)(void *argument, const char *kernel, int columns, int rows);

/* Fills the table; false: a launch failed. A shape is left for one that is a twentieth faster. */
static inline bool dml__tune_measure(dml__choice *choice, dml__tune_clock seconds_of, void *argument)
{
    static const char *const kernels[] = { "gemm_64x64", "gemm_64x16", "gemm_16x64", "gemm_16x16" };
    static const int sizes[DML__TUNE_CLASSES] = { 16, 64, 256, 1024, 2048 };
    for (int r = 0; r < DML__TUNE_CLASSES; r++) {
        for (int c = 0; c < DML__TUNE_CLASSES; c++) {
            const size_t size[2] = { (size_t)sizes[c], (size_t)sizes[r] };
            int best = (int)dml__choose_tile(choice, size);
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

/* Whether nothing is to be measured: it isn't wanted, or the file has it, which is then in the table. */
static inline bool dml__tune_is_settled(dml__choice *choice, const char *device, char *path, size_t capacity)
{
    return !dml__tune_path(path, capacity) || dml__tune_read(choice, path, device);
}

/* Reads the table, or measures it and adds it to the file. False: a launch failed. */
static inline bool dml__tune_with(dml__choice *choice, const char *device, dml__tune_clock seconds_of,
                                  void *argument)
{
    char path[1024];
    if (dml__tune_is_settled(choice, device, path, sizeof path)) return true;
    FILE *file = fopen(path, "a");
    if (!file) return true;
    const bool ok = dml__tune_measure(choice, seconds_of, argument);
    for (int i = 0; ok && i < DML__TUNE_CLASSES * DML__TUNE_CLASSES; i++)
        fputc('0' + choice->tile[i / DML__TUNE_CLASSES][i % DML__TUNE_CLASSES], file);
    if (ok) fprintf(file, " %s\n", device);
    fclose(file);
    return ok;
}

/* A matrix of the largest class' size, of which all three operands of a product are parts. */
enum { DML__TUNE_DEPTH = 256, DML__TUNE_MOST = 2048 };
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
    launch.buffer[2].offset = (size_t)DML__TUNE_MOST * DML__TUNE_DEPTH * sizeof(float);
    for (int run = 0; run < 4; run++) { /* the first may compile */
        const double start = dml_seconds();
        if (backend->launch(job->device, &launch) != DML_OK || backend->finish(job->device) != DML_OK)
            return -1;
        const double seconds = dml_seconds() - start;
        if (run && seconds < least) least = seconds;
    }
    return least;
}

/* Of an open device; its status where a launch fails. Devices that are CPUs have nothing to choose. */
static inline dml_status dml__tune(dml_device *device, dml__choice *choice, const char *name)
{
    dml__tune_job job;
    char path[1024];
    const dml_ref all = { &job.matrix, 0 };
    if (choice->solo != DML__SOLO_NONE || dml__tune_is_settled(choice, name, path, sizeof path))
        return DML_OK;
    memset(&job, 0, sizeof job);
    job.device = device;
    job.matrix.bytes = (size_t)DML__TUNE_MOST * (DML__TUNE_DEPTH + DML__TUNE_MOST) * sizeof(float);
    dml_status status = device->backend->buffer_create(device, &job.matrix);
    if (status != DML_OK) return status;
    status = device->backend->zero(device, all, job.matrix.bytes);
    if (status == DML_OK && !dml__tune_with(choice, name, dml__tune_seconds, &job)) status = DML_ERROR_DEVICE;
    device->backend->buffer_destroy(device, &job.matrix);
    return status;
}

#endif
