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

/* The kernel of that name, or the best of the family of that name; -1: there is none. */
static inline int dml__find_kernel(const dml_launch *launch, const dml__choice *choice)
{
    const char *name = launch->kernel;
#define DML__FAMILY_KERNEL(family, is_one)                                                                   \
    if (strcmp(#family, name) == 0)                                                                          \
        return choice->solo == DML__SOLO_BEST                                                                \
                   ? DML__KERNEL_##family##_solo                                                             \
                   : DML__KERNEL_##family##_128x128 + (int)dml__choose_tile(choice, launch->size, is_one);
    DML__FAMILY_LIST(DML__FAMILY_KERNEL)
#undef DML__FAMILY_KERNEL
#define DML__PAIR_KERNEL(pair)                                                                               \
    if (strcmp(#pair, name) == 0)                                                                            \
        return choice->solo == DML__SOLO_BEST ? DML__KERNEL_##pair##_solo : DML__KERNEL_##pair##_team;
    DML__PAIR_LIST(DML__PAIR_KERNEL)
#undef DML__PAIR_KERNEL
    for (int kernel = 0; kernel < DML__KERNEL_COUNT; kernel++)
        if (strcmp(dml__kernel_row_at(kernel)->name, name) == 0) return kernel;
    return -1;
}

static inline dml_status dml__prepare_launch(dml_device *device, const dml_launch *launch,
                                             const dml__choice *choice, dml__kernel_launch *out)
{
    out->kernel = dml__find_kernel(launch, choice);
    if (out->kernel < 0)
        return dml_device_fail(device, DML_ERROR_ARGUMENT, "no kernel is named '%s'", launch->kernel);
    if (out->kernel >= DML__KERNEL_FIRST_SOLO && choice->solo == DML__SOLO_NONE)
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED, "only CPUs have the kernel '%s'",
                               launch->kernel);
    out->items = dml__kernel_items(out->kernel);
    for (int axis = 0; axis < 2; axis++) {
        const size_t size = launch->size[axis];
        const size_t covers = (size_t)dml__kernel_row_at(out->kernel)->covers[axis];
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
