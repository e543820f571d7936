/* launch.h: what the hosts of the shared kernels have in common: finding a kernel, cutting its work into
   groups, and checking that references lie inside their buffers. */
#ifndef DML_GPU_LAUNCH_H
#define DML_GPU_LAUNCH_H

#include "device/backend.h"
#include "gpu/arguments.h"
#include "gpu/choice.h"
#include "gpu/kernel_list.h"

#include <string.h>

/* The most a launch may have along one axis: below 2^31 by enough that no group's or grid's surplus overflows
   an int. */
#define DML__LAUNCH_MOST (INT32_MAX - 0xfffff)

typedef struct dml__kernel_row {
    const char *name;
    int covers[2];
} dml__kernel_row;

/* A launch made ready: which kernel, how many groups (0 in either: nothing to do) of how many items, its
   arguments. */
typedef struct dml__kernel_launch {
    int kernel;
    size_t groups[2];
    size_t items;
    dml__kernel_arguments arguments;
} dml__kernel_launch;

static inline const dml__kernel_row *dml__kernel_row_at(int kernel)
{
    static const dml__kernel_row rows[] = {
#define DML__KERNEL_ROW(name, covers_x, covers_y) { #name, { covers_x, covers_y } },
        DML__KERNEL_LIST(DML__KERNEL_ROW) DML__SOLO_LIST(DML__KERNEL_ROW)
#undef DML__KERNEL_ROW
    };
    return &rows[kernel];
}

/* How much of a launch's size a group does along an axis, on a device of that choice. */
static inline size_t dml__kernel_covers(int kernel, int axis, const dml__choice *choice)
{
    const int covers = dml__kernel_row_at(kernel)->covers[axis];
    const bool run = covers == DML__COVERS_RUNS && choice->solo == DML__SOLO_BEST;
    return (size_t)(run ? DML__COVERS_RUNS_OF_ONE : covers);
}

/* How many items a group of the kernel has. */
static inline size_t dml__kernel_items(int kernel)
{
    return kernel < DML__KERNEL_FIRST_SOLO ? DML__GROUP_ITEMS : 1;
}

/* The bytes that `bytes` at `ref` need lie inside its buffer. */
static inline dml_status dml__check_ref(dml_device *device, dml_ref ref, size_t bytes, const char *what)
{
    if (!ref.buffer) return dml_device_fail(device, DML_ERROR_ARGUMENT, "%s: no buffer was given", what);
    if (ref.offset <= ref.buffer->bytes && bytes <= ref.buffer->bytes - ref.offset) return DML_OK;
    return dml_device_fail(
        device, DML_ERROR_ARGUMENT, "%s: %llu bytes at offset %llu don't fit in a buffer of %llu bytes", what,
        (unsigned long long)bytes, (unsigned long long)ref.offset, (unsigned long long)ref.buffer->bytes);
}

/* What a launch may name: a kernel, or a family, whose first kernel and whose solo one these are; of a kernel
   that has no family, both are itself. */
typedef struct dml__kernel_name {
    const char *name;
    int kernel, solo;
    bool tiles; /* then those of the other shapes are behind the first */
} dml__kernel_name;

#define DML__ONE_MORE(name) +1
enum { DML__KERNEL_NAMES = DML__KERNEL_COUNT DML__FAMILY_LIST(DML__ONE_MORE) DML__PAIR_LIST(DML__ONE_MORE) };
#undef DML__ONE_MORE

static inline const dml__kernel_name *dml__kernel_name_at(int i)
{
    static const dml__kernel_name names[] = {
#define DML__KERNEL_NAME(name, covers_x, covers_y) { #name, DML__KERNEL_##name, DML__KERNEL_##name, false },
        DML__KERNEL_LIST(DML__KERNEL_NAME) DML__SOLO_LIST(DML__KERNEL_NAME)
#undef DML__KERNEL_NAME
#define DML__FAMILY_NAME(family)                                                                             \
    { #family, DML__KERNEL_##family##_128x128, DML__KERNEL_##family##_solo, true },
            DML__FAMILY_LIST(DML__FAMILY_NAME)
#undef DML__FAMILY_NAME
#define DML__PAIR_NAME(pair) { #pair, DML__KERNEL_##pair##_team, DML__KERNEL_##pair##_solo, false },
                DML__PAIR_LIST(DML__PAIR_NAME)
#undef DML__PAIR_NAME
    };
    return &names[i];
}

/* The names by their hashes, which a device fills when it opens: hundreds of launches a millisecond can't
   compare each with a hundred names. */
enum { DML__KERNEL_PLACES = 512 };
typedef struct dml__kernel_index {
    uint16_t place[DML__KERNEL_PLACES]; /* a name's number, from 1 on, at its hash or the next free place */
} dml__kernel_index;

static inline unsigned dml__kernel_hash(const char *name)
{
    unsigned hash = 2166136261u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (hash ^ hash >> 16) % DML__KERNEL_PLACES;
}

static inline void dml__fill_kernel_index(dml__kernel_index *index)
{
    memset(index, 0, sizeof *index);
    for (int i = 0; i < DML__KERNEL_NAMES; i++) {
        unsigned at = dml__kernel_hash(dml__kernel_name_at(i)->name);
        while (index->place[at]) at = (at + 1) % DML__KERNEL_PLACES;
        index->place[at] = (uint16_t)(i + 1);
    }
}

/* Whether a launch of a family of tiles is one product, and not of several matrices or groups: only its tiles
   may be larger than 64. */
static inline bool dml__is_one_product(const dml_launch *launch, int family)
{
    return family == DML__KERNEL_gemm_128x128 ? launch->integer[8] == 0 : launch->integer[15] <= 1;
}

/* The kernel of that name, or the best of the family of that name; -1: there is none. */
static inline int dml__find_kernel(const dml__kernel_index *index, const dml_launch *launch,
                                   const dml__choice *choice)
{
    const char *name = launch->kernel;
    unsigned at = dml__kernel_hash(name);
    for (; index->place[at]; at = (at + 1) % DML__KERNEL_PLACES) {
        const dml__kernel_name *found = dml__kernel_name_at(index->place[at] - 1);
        if (strcmp(found->name, name) != 0) continue;
        if (choice->solo == DML__SOLO_BEST) return found->solo;
        if (!found->tiles) return found->kernel;
        return found->kernel +
               (int)dml__choose_tile(choice, launch->size, dml__is_one_product(launch, found->kernel));
    }
    return -1;
}

/* ---- products in shares of k ---- */

/* Into how many shares a launch of gemm is cut, where its result is few tiles and k is long: by its size
   alone, 1 for none. A share has 256 products or more, and all shares together are not more than 512 tiles
   (32 MiB). */
static inline int dml__gemm_shares(const dml_launch *launch)
{
    const int32_t *of = launch->integer; /* m, n, k, ... ldc, axes */
    if (strcmp(launch->kernel, "gemm") != 0 || of[2] < 512 || of[7] != of[1] || of[8] || of[13] > 1 ||
        launch->buffer[3].buffer || launch->real[2] != 0.0f)
        return 1;
    const double tiles = ((double)of[0] + 127) / 128 * (((double)of[1] + 127) / 128);
    const double most = 512 / tiles < of[2] / 256.0 ? 512 / tiles : of[2] / 256.0;
    return most > 1 ? (int)most : 1;
}

/* Launches the shares into a workspace of the device, which grows, and then their sum. False: there is no
   memory for it. */
static inline bool dml__launch_in_shares(dml_device *device, const dml_launch *launch, int shares,
                                         dml_buffer *workspace, dml_status *status)
{
    const size_t rows = ((size_t)launch->integer[0] + 127) / 128 * 128;
    const size_t count = (size_t)launch->integer[0] * (size_t)launch->integer[1];
    const size_t bytes = (size_t)shares * count * sizeof(float);
    dml_launch share = *launch, sum;
    if (workspace->bytes < bytes) {
        if (workspace->bytes) device->backend->buffer_destroy(device, workspace);
        workspace->bytes = bytes;
        *status = device->backend->buffer_create(device, workspace);
        if (*status != DML_OK) {
            workspace->bytes = 0;
            if (*status == DML_ERROR_MEMORY) dml_device_forgive(device);
            return *status != DML_ERROR_MEMORY;
        }
    }
    share.size[1] = (size_t)shares * rows;
    share.integer[13] = shares;
    share.buffer[2].buffer = workspace;
    share.buffer[2].offset = 0;
    share.real[1] = 0.0f;
    *status = device->backend->launch(device, &share);
    if (*status != DML_OK) return true;
    memset(&sum, 0, sizeof sum);
    sum.kernel = "sum_few";
    sum.size[0] = count, sum.size[1] = 1;
    sum.buffer[0] = share.buffer[2];
    sum.buffer[1] = launch->buffer[2];
    sum.integer[0] = sum.integer[2] = (int32_t)count, sum.integer[1] = shares;
    sum.real[0] = launch->real[1];
    *status = device->backend->launch(device, &sum);
    return true;
}

static inline dml_status dml__prepare_launch(dml_device *device, const dml_launch *launch,
                                             const dml__kernel_index *index, const dml__choice *choice,
                                             dml__kernel_launch *out)
{
    out->kernel = dml__find_kernel(index, launch, choice);
    if (out->kernel < 0)
        return dml_device_fail(device, DML_ERROR_ARGUMENT, "no kernel is named '%s'", launch->kernel);
    if (out->kernel >= DML__KERNEL_FIRST_SOLO && choice->solo == DML__SOLO_NONE)
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED, "only CPUs have the kernel '%s'",
                               launch->kernel);
    out->items = dml__kernel_items(out->kernel);
    for (int axis = 0; axis < 2; axis++) {
        const size_t size = launch->size[axis];
        const size_t covers = dml__kernel_covers(out->kernel, axis, choice);
        if (size > DML__LAUNCH_MOST)
            return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                                   "kernel '%s' was asked for %llu elements along one axis, and %d is the "
                                   "most: make the batch smaller",
                                   launch->kernel, (unsigned long long)size, DML__LAUNCH_MOST);
        out->groups[axis] = (size + covers - 1) / covers;
    }
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++) {
        const dml_ref ref = launch->buffer[i];
        out->arguments.offset[i] = (int64_t)ref.offset;
        if (!ref.buffer) continue;
        const dml_status status = dml__check_ref(device, ref, 0, launch->kernel);
        if (status != DML_OK) return status;
    }
    memcpy(out->arguments.integer, launch->integer, sizeof out->arguments.integer);
    memcpy(out->arguments.real, launch->real, sizeof out->arguments.real);
    return DML_OK;
}

#endif
