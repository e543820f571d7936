/* dml_opencl.c 0.1.0. DO NOT EDIT, generated from src/ by make amalgamate. */
/* dml_opencl.c - OpenCL devices for dml: GPUs, and CPUs through PoCL or Intel's runtime.

   Compile it beside your program, with DML_OPENCL defined everywhere:

       cc -O2 -DDML_OPENCL program.c dml_opencl.c -lm -lpthread -ldl

   It needs OpenCL's headers (CL/cl.h) to compile, and libOpenCL.so.1 when it runs; without that it finds no
   device. "opencl:0" is the first device, GPUs before CPUs; dml_devices lists them. */
#include "dml.h"

/* ---- gpu/opencl_host.c ---- */

/* opencl_host.c: the OpenCL backend, over OpenCL 1.2 as the system's loader gives it (libOpenCL.so.1, opened
   when first needed: a program that has it linked in starts without it). */
#ifndef DML_GPU_OPENCL_HOST_C
#define DML_GPU_OPENCL_HOST_C

/* ---- gpu/kernel_list.h ---- */

/* kernel_list.h: every shared kernel, and how much of a launch's size one work-group does along x and y. The
   hosts look kernels up and compute their groups from this; tests/gpu/kernels_test.c has a case for each.

   A family of kernels computes the same of the same arguments, each in its way: a launch names the family,
   and what is best on the device is chosen (gpu/launch.h), or one of them by its own name. */
#ifndef DML_GPU_KERNEL_LIST_H
#define DML_GPU_KERNEL_LIST_H

/* The kernels of a family in all shapes of tiles, rows x columns of what they compute. */
#define DML__TILE_KERNELS(X, family)                                                                         \
    X(family##_128x128, 128, 128)                                                                            \
    X(family##_128x64, 64, 128)                                                                              \
    X(family##_64x64, 64, 64)                                                                                \
    X(family##_64x16, 16, 64)                                                                                \
    X(family##_16x64, 64, 16)                                                                                \
    X(family##_16x16, 16, 16)

/* What a group covers whose items do a run of elements each (gpu/elementwise.cl), and where they do one. */
enum { DML__COVERS_RUNS = 1024, DML__COVERS_RUNS_OF_ONE = 256 };

/* X(name, covers_x, covers_y) */
#define DML__KERNEL_LIST(X)                                                                                  \
    X(axpby, DML__COVERS_RUNS, 1)                                                                            \
    X(formula_forward, DML__COVERS_RUNS, 1)                                                                  \
    X(formula_backward, DML__COVERS_RUNS, 1)                                                                 \
    X(broadcast, DML__COVERS_RUNS, 1)                                                                        \
    X(sum_few, 256, 1)                                                                                       \
    X(bias_add, DML__COVERS_RUNS, 1)                                                                         \
    X(sgd_update, 256, 1)                                                                                    \
    X(adam_update, 256, 1)                                                                                   \
    X(rmsprop_update, 256, 1)                                                                                \
    X(adagrad_update, 256, 1)                                                                                \
    X(sum_squares, 1, 1)                                                                                     \
    X(clip_norm, 256, 1)                                                                                     \
    X(clip_values, 256, 1)                                                                                   \
    X(lamb_direction, 256, 1)                                                                                \
    X(trust, 256, 1)                                                                                         \
    DML__TILE_KERNELS(X, gemm)                                                                               \
    DML__TILE_KERNELS(X, conv2d_forward)                                                                     \
    DML__TILE_KERNELS(X, conv2d_backward_input)                                                              \
    DML__TILE_KERNELS(X, conv2d_backward_weights)                                                            \
    X(max_pool2d_forward, 256, 1)                                                                            \
    X(max_pool2d_backward, 256, 1)                                                                           \
    X(max_pool2d_backward_apart, 256, 1)                                                                     \
    X(avg_pool2d_forward, 256, 1)                                                                            \
    X(avg_pool2d_backward, 256, 1)                                                                           \
    X(local2d_forward, 256, 1)                                                                               \
    X(local2d_backward_input, 256, 1)                                                                        \
    X(local2d_backward_weights, 256, 1)                                                                      \
    X(slice2d_forward, 256, 1)                                                                               \
    X(slice2d_backward, 256, 1)                                                                              \
    X(sum_rows, 16, 1)                                                                                       \
    X(argmax, 16, 1)                                                                                         \
    X(cross_entropy_forward, 1, 1)                                                                           \
    X(cross_entropy_backward, 1, 8)                                                                          \
    X(cross_entropy_backward_target, 256, 1)                                                                 \
    X(loss_total, 1, 1)                                                                                      \
    X(loss_spread, 256, 1)                                                                                   \
    X(reduce_axis, 16, 1)                                                                                    \
    X(reduce_axis_backward, 256, 1)                                                                          \
    X(softmax_forward, 1, 1)                                                                                 \
    X(softmax_backward, 1, 1)                                                                                \
    X(batch_norm_moments, 16, 1)                                                                             \
    X(batch_norm_statistics, 16, 1)                                                                          \
    X(batch_norm_forward, DML__COVERS_RUNS, 1)                                                               \
    X(batch_norm_products, 16, 1)                                                                            \
    X(batch_norm_gradients, 16, 1)                                                                           \
    X(batch_norm_backward, DML__COVERS_RUNS, 1)                                                              \
    X(sample_norm_forward_team, 4, 1)                                                                        \
    X(sample_norm_backward_team, 4, 1)                                                                       \
    X(sample_norm_products, 16, 1)                                                                           \
    X(embedding_forward, DML__COVERS_RUNS, 1)                                                                \
    X(embedding_links_team, 16, 1)                                                                           \
    X(embedding_backward, DML__COVERS_RUNS, 1)                                                               \
    X(gather_forward, 256, 1)                                                                                \
    X(gather_backward, 256, 1)                                                                               \
    X(embedding_bag_forward, 256, 1)                                                                         \
    X(embedding_bag_backward, 256, 1)                                                                        \
    X(embedding_bag_weights, 256, 1)                                                                         \
    X(attention_forward_team, 64, 1)                                                                         \
    X(attention_levels, 256, 1)                                                                              \
    X(attention_backward_team, 64, 1)                                                                        \
    X(keep_rows, 256, 1)                                                                                     \
    X(rotary, 256, 1)                                                                                        \
    X(recurrent_copy, 256, 1)                                                                                \
    X(recurrent_forward, 256, 1)                                                                             \
    X(recurrent_backward, 256, 1)                                                                            \
    X(dropout, 256, 1)                                                                                       \
    X(strided_pack, 256, 1)                                                                                  \
    X(strided_unpack, 256, 1)                                                                                \
    X(half_narrow, DML__COVERS_RUNS, 1)                                                                      \
    X(half_widen, DML__COVERS_RUNS, 1)
/* Those of gpu/solo.cl, of which a group is one item. Devices that are no CPU don't have them. */
#define DML__SOLO_LIST(X)                                                                                    \
    X(gemm_solo, 64, 64)                                                                                     \
    X(conv2d_forward_solo, 64, 64)                                                                           \
    X(conv2d_backward_input_solo, 64, 64)                                                                    \
    X(conv2d_backward_weights_solo, 64, 64)                                                                  \
    X(sample_norm_forward_solo, 8, 1)                                                                        \
    X(sample_norm_backward_solo, 8, 1)                                                                       \
    X(embedding_links_solo, 256, 1)                                                                          \
    X(attention_forward_solo, 64, 1)                                                                         \
    X(attention_backward_solo, 64, 1)

/* Families of two: NAME_team, whose groups have many items, and NAME_solo. */
#define DML__PAIR_LIST(X)                                                                                    \
    X(sample_norm_forward)                                                                                   \
    X(sample_norm_backward)                                                                                  \
    X(embedding_links)                                                                                       \
    X(attention_forward)                                                                                     \
    X(attention_backward)

/* The others: each has DML__TILE_KERNELS, and one NAME_solo. */
#define DML__FAMILY_LIST(X)                                                                                  \
    X(gemm)                                                                                                  \
    X(conv2d_forward)                                                                                        \
    X(conv2d_backward_input)                                                                                 \
    X(conv2d_backward_weights)

enum {
#define DML__KERNEL_ENUM(name, covers_x, covers_y) DML__KERNEL_##name,
    DML__KERNEL_LIST(DML__KERNEL_ENUM) DML__SOLO_LIST(DML__KERNEL_ENUM)
#undef DML__KERNEL_ENUM
        DML__KERNEL_COUNT,
    DML__KERNEL_FIRST_SOLO = DML__KERNEL_gemm_solo
};

#endif

/* ---- gpu/launch.h ---- */

/* launch.h: what the hosts of the shared kernels have in common: finding a kernel, cutting its work into
   groups, and checking that references lie inside their buffers. */
#ifndef DML_GPU_LAUNCH_H
#define DML_GPU_LAUNCH_H

/* ---- gpu/arguments.h ---- */

/* arguments.h: what every shared kernel is given besides its buffers, the same bytes on host and device. */
#ifndef DML_GPU_ARGUMENTS_H
#define DML_GPU_ARGUMENTS_H

#ifdef __OPENCL_VERSION__
typedef long dml__kernel_offset;
typedef int dml__kernel_integer;
#else
#include <stdint.h>
typedef int64_t dml__kernel_offset;
typedef int32_t dml__kernel_integer;
#endif

/* 144 bytes without padding. The counts are DML_LAUNCH_BUFFERS, _INTS and _FLOATS. */
typedef struct dml__kernel_arguments {
    dml__kernel_offset offset[6]; /* in bytes, into each buffer */
    dml__kernel_integer integer[16];
    float real[8];
} dml__kernel_arguments;

/* Every kernel runs in work-groups of this many items, in one dimension. */
#define DML__GROUP_ITEMS 256

#endif

/* ---- gpu/choice.h ---- */

/* choice.h: which kernel of a family (gpu/kernel_list.h) is best on a device for how many rows and columns.
 */
#ifndef DML_GPU_CHOICE_H
#define DML_GPU_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

/* The shapes of tiles, in the order of DML__TILE_KERNELS. */
typedef enum dml__tile_shape {
    DML__TILE_128x128,
    DML__TILE_128x64,
    DML__TILE_64x64,
    DML__TILE_64x16,
    DML__TILE_16x64,
    DML__TILE_16x16,
    DML__TILE_SHAPES
} dml__tile_shape;

/* Whether a device has the solo kernels, and whether they are its best. */
typedef enum dml__solo_use { DML__SOLO_NONE, DML__SOLO_BY_NAME, DML__SOLO_BEST } dml__solo_use;

/* Classes of sizes of columns or rows: up to 16, 64, 256, ... 16384, and more. */
enum { DML__TUNE_CLASSES = 7 };

typedef struct dml__choice {
    dml__solo_use solo;
    int units;     /* how many groups it runs at once, at least */
    bool measured; /* then this is best for classes of rows and columns; else the rule below says */
    unsigned char tile[DML__TUNE_CLASSES][DML__TUNE_CLASSES];
} dml__choice;

static inline int dml__tune_class(size_t n)
{
    int c = 0;
    for (size_t most = 16; c + 1 < DML__TUNE_CLASSES && n > most; most *= 4) c++;
    return c;
}

/* What a shape is expected to take for `size`: its groups, as often as the device has to be filled with them,
   times what one takes, which isn't less in proportion where tiles are small. */
static inline double dml__tile_cost(const dml__choice *choice, const size_t size[2], dml__tile_shape shape)
{
    static const struct {
        size_t rows, columns;
        double cost;
    } of[DML__TILE_SHAPES] = { { 128, 128, 16 }, { 128, 64, 9 }, { 64, 64, 6 },
                               { 64, 16, 3 },    { 16, 64, 3 },  { 16, 16, 2 } };
    const size_t groups = ((size[0] + of[shape].columns - 1) / of[shape].columns) *
                          ((size[1] + of[shape].rows - 1) / of[shape].rows);
    const size_t units = choice->units > 0 ? (size_t)choice->units : 1;
    return (double)((groups + units - 1) / units) * of[shape].cost;
}

/* Of size{columns, rows}; `is_one`: larger tiles than 64 x 64 may be taken. */
static inline dml__tile_shape dml__choose_tile(const dml__choice *choice, const size_t size[2], bool is_one)
{
    const int first = is_one ? DML__TILE_128x128 : DML__TILE_64x64;
    int best = first;
    if (choice->measured) {
        best = choice->tile[dml__tune_class(size[1])][dml__tune_class(size[0])];
        return (dml__tile_shape)(best > first ? best : first);
    }
    for (int shape = first + 1; shape < DML__TILE_SHAPES; shape++)
        if (dml__tile_cost(choice, size, (dml__tile_shape)shape) <
            dml__tile_cost(choice, size, (dml__tile_shape)best))
            best = shape;
    return (dml__tile_shape)best;
}

#endif

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

/* ---- gpu/opencl_devices.h ---- */

/* opencl_devices.h: which devices of OpenCL there are here, and what they say of themselves. */
#ifndef DML_GPU_OPENCL_DEVICES_H
#define DML_GPU_OPENCL_DEVICES_H

/* ---- gpu/opencl_library.h ---- */

/* opencl_library.h: the functions of OpenCL, found in the system's loader, and the names of errors. */
#ifndef DML_GPU_OPENCL_LIBRARY_H
#define DML_GPU_OPENCL_LIBRARY_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <string.h>

/* The functions of OpenCL that are used here, each found in the loader by its name. */
#define DML__OPENCL_FUNCTIONS(X)                                                                             \
    X(clGetPlatformIDs)                                                                                      \
    X(clGetDeviceIDs)                                                                                        \
    X(clGetDeviceInfo)                                                                                       \
    X(clCreateContext)                                                                                       \
    X(clReleaseContext)                                                                                      \
    X(clCreateCommandQueue)                                                                                  \
    X(clReleaseCommandQueue)                                                                                 \
    X(clCreateProgramWithSource)                                                                             \
    X(clBuildProgram)                                                                                        \
    X(clGetProgramBuildInfo)                                                                                 \
    X(clReleaseProgram)                                                                                      \
    X(clCreateKernel)                                                                                        \
    X(clGetKernelWorkGroupInfo)                                                                              \
    X(clReleaseKernel)                                                                                       \
    X(clSetKernelArg)                                                                                        \
    X(clCreateBuffer)                                                                                        \
    X(clReleaseMemObject)                                                                                    \
    X(clEnqueueMapBuffer)                                                                                    \
    X(clEnqueueUnmapMemObject)                                                                               \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueCopyBuffer)                                                                                   \
    X(clEnqueueFillBuffer)                                                                                   \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clGetEventProfilingInfo)                                                                               \
    X(clGetEventInfo)                                                                                        \
    X(clRetainEvent)                                                                                         \
    X(clReleaseEvent)                                                                                        \
    X(clWaitForEvents)                                                                                       \
    X(clFlush)                                                                                               \
    X(clFinish)

typedef struct dml__opencl_library {
#define DML__OPENCL_MEMBER(function) __typeof__(&(function)) function##_;
    DML__OPENCL_FUNCTIONS(DML__OPENCL_MEMBER)
#undef DML__OPENCL_MEMBER
} dml__opencl_library;

/* False when there is no usable OpenCL. The loader stays open: closing it under a driver's threads crashes
   some drivers, and opening it again costs nothing. */
static inline bool dml__opencl_load(dml__opencl_library *cl)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    void *address;
#define DML__OPENCL_FIND(function)                                                                           \
    address = dlsym(library, #function);                                                                     \
    if (!address) return false;                                                                              \
    memcpy(&cl->function##_, &address, sizeof address);
    DML__OPENCL_FUNCTIONS(DML__OPENCL_FIND)
#undef DML__OPENCL_FIND
    return true;
}

static inline const char *dml__opencl_error_name(cl_int error)
{
#define DML__OPENCL_ERROR(name)                                                                              \
    case name: return #name;
    switch (error) {
        DML__OPENCL_ERROR(CL_DEVICE_NOT_FOUND)
        DML__OPENCL_ERROR(CL_DEVICE_NOT_AVAILABLE)
        DML__OPENCL_ERROR(CL_COMPILER_NOT_AVAILABLE)
        DML__OPENCL_ERROR(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        DML__OPENCL_ERROR(CL_OUT_OF_RESOURCES)
        DML__OPENCL_ERROR(CL_OUT_OF_HOST_MEMORY)
        DML__OPENCL_ERROR(CL_MEM_COPY_OVERLAP)
        DML__OPENCL_ERROR(CL_BUILD_PROGRAM_FAILURE)
        DML__OPENCL_ERROR(CL_MISALIGNED_SUB_BUFFER_OFFSET)
        DML__OPENCL_ERROR(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        DML__OPENCL_ERROR(CL_INVALID_VALUE)
        DML__OPENCL_ERROR(CL_INVALID_PLATFORM)
        DML__OPENCL_ERROR(CL_INVALID_DEVICE)
        DML__OPENCL_ERROR(CL_INVALID_CONTEXT)
        DML__OPENCL_ERROR(CL_INVALID_COMMAND_QUEUE)
        DML__OPENCL_ERROR(CL_INVALID_MEM_OBJECT)
        DML__OPENCL_ERROR(CL_INVALID_BUILD_OPTIONS)
        DML__OPENCL_ERROR(CL_INVALID_PROGRAM)
        DML__OPENCL_ERROR(CL_INVALID_PROGRAM_EXECUTABLE)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_NAME)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_DEFINITION)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL)
        DML__OPENCL_ERROR(CL_INVALID_ARG_INDEX)
        DML__OPENCL_ERROR(CL_INVALID_ARG_VALUE)
        DML__OPENCL_ERROR(CL_INVALID_ARG_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_KERNEL_ARGS)
        DML__OPENCL_ERROR(CL_INVALID_WORK_DIMENSION)
        DML__OPENCL_ERROR(CL_INVALID_WORK_GROUP_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_WORK_ITEM_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_GLOBAL_OFFSET)
        DML__OPENCL_ERROR(CL_INVALID_OPERATION)
        DML__OPENCL_ERROR(CL_INVALID_BUFFER_SIZE)
        DML__OPENCL_ERROR(CL_INVALID_GLOBAL_WORK_SIZE)
    default: return "an error that OpenCL 1.2 doesn't name";
    }
#undef DML__OPENCL_ERROR
}

static inline bool dml__opencl_lacks_memory(cl_int error)
{
    return error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY ||
           error == CL_INVALID_BUFFER_SIZE;
}

#endif

#ifndef DML_NO_THREADS
#include <pthread.h>
#endif
#include <stdio.h>
#include <string.h>

/* "OpenCL 1.2 ..." or later, with a compiler, switched on, of this machine's byte order. */
static inline bool dml__opencl_usable(const dml__opencl_library *cl, cl_device_id id)
{
    char version[256] = ""; /* PoCL appends its target, which is longer than the 64 that others need */
    cl_bool available = CL_FALSE, compiler = CL_FALSE, little = CL_FALSE;
    int major = 0, minor = 0;
    cl->clGetDeviceInfo_(id, CL_DEVICE_VERSION, sizeof version - 1, version, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_COMPILER_AVAILABLE, sizeof compiler, &compiler, NULL);
    cl->clGetDeviceInfo_(id, CL_DEVICE_ENDIAN_LITTLE, sizeof little, &little, NULL);
    if (sscanf(version, "OpenCL %d.%d", &major, &minor) != 2) return false;
    return (major > 1 || minor >= 2) && available && compiler && little;
}

static inline bool dml__opencl_is_gpu(const dml__opencl_library *cl, cl_device_id id)
{
    cl_device_type type = 0;
    cl->clGetDeviceInfo_(id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    return (type & CL_DEVICE_TYPE_GPU) != 0;
}

enum { DML__OPENCL_PLATFORMS = 16, DML__OPENCL_DEVICES = 64 };
static inline int dml__opencl_list_now(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
{
    cl_platform_id platforms[DML__OPENCL_PLATFORMS];
    cl_uint platform_count = 0;
    int count = 0;
    if (cl->clGetPlatformIDs_(DML__OPENCL_PLATFORMS, platforms, &platform_count) != CL_SUCCESS) return 0;
    if (platform_count > DML__OPENCL_PLATFORMS) platform_count = DML__OPENCL_PLATFORMS;
    for (int pass = 0; pass < 2; pass++) {
        for (cl_uint p = 0; p < platform_count; p++) {
            cl_device_id found[DML__OPENCL_DEVICES];
            cl_uint found_count = 0;
            if (cl->clGetDeviceIDs_(platforms[p], CL_DEVICE_TYPE_ALL, DML__OPENCL_DEVICES, found,
                                    &found_count) != CL_SUCCESS)
                continue;
            if (found_count > DML__OPENCL_DEVICES) found_count = DML__OPENCL_DEVICES;
            for (cl_uint d = 0; d < found_count && count < capacity; d++)
                if (dml__opencl_is_gpu(cl, found[d]) == (pass == 0) && dml__opencl_usable(cl, found[d]))
                    ids[count++] = found[d];
        }
    }
    return count;
}

#ifdef DML_NO_THREADS
#define dml__opencl_begin_once() ((void)0)
#else
static inline void dml__opencl_begin(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    if (dml__opencl_load(&cl)) (void)dml__opencl_list_now(&cl, ids, DML__OPENCL_DEVICES);
}

/* The first calls of a process are one thread's: PoCL crashes where two threads find it at its beginning. */
static inline void dml__opencl_begin_once(void)
{
    static pthread_once_t begun = PTHREAD_ONCE_INIT;
    (void)pthread_once(&begun, dml__opencl_begin);
}
#endif

/* Lists up to `capacity` usable devices, GPUs first, else in the platforms' order; returns how many. */
static inline int dml__opencl_list(const dml__opencl_library *cl, cl_device_id *ids, int capacity)
{
    dml__opencl_begin_once();
    return dml__opencl_list_now(cl, ids, capacity);
}

static inline int dml__opencl_count(void)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    return dml__opencl_load(&cl) ? dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES) : 0;
}

/* Of the extensions, those that say what kernels may compute with. */
static inline void dml__opencl_features(const dml__opencl_library *cl, cl_device_id id, dml_device_info *info)
{
    static const char *const wanted[] = { "cl_khr_fp16", "cl_khr_fp64", "cl_khr_subgroups" };
    char all[8192] = "";
    cl->clGetDeviceInfo_(id, CL_DEVICE_EXTENSIONS, sizeof all - 1, all, NULL);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const size_t used = strlen(info->features);
        const char *found = strstr(all, wanted[i]);
        if (found && strchr(" ", found[strlen(wanted[i])]))
            snprintf(info->features + used, sizeof info->features - used, "%s%s", used ? " " : "", wanted[i]);
    }
}

static inline void dml__opencl_describe(int index, dml_device_info *info)
{
    dml__opencl_library cl;
    cl_device_id ids[DML__OPENCL_DEVICES];
    cl_ulong memory = 0;
    cl_uint units = 0, clock = 0;
    char driver[256] = "";
    if (!dml__opencl_load(&cl)) return;
    if (index < 0 || index >= dml__opencl_list(&cl, ids, DML__OPENCL_DEVICES)) return;
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_NAME, sizeof info->name - 1, info->name, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    info->memory = memory;
    info->compute_units = (int)units;
    info->gpu = dml__opencl_is_gpu(&cl, ids[index]);
    cl.clGetDeviceInfo_(ids[index], CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof clock, &clock, NULL);
    cl.clGetDeviceInfo_(ids[index], CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
    info->clock = (int)clock;
    snprintf(info->driver, sizeof info->driver, "%.*s", (int)sizeof info->driver - 1, driver);
    dml__opencl_features(&cl, ids[index], info);
}

#endif

/* ---- gpu/opencl_profile.h ---- */

/* opencl_profile.h: what is timed of a device's work: each thing that is enqueued leaves an event. */
#ifndef DML_GPU_OPENCL_PROFILE_H
#define DML_GPU_OPENCL_PROFILE_H

/* ---- gpu/opencl_state.h ---- */

/* opencl_state.h: an open device of OpenCL, and the sentences for what fails there. */
#ifndef DML_GPU_OPENCL_STATE_H
#define DML_GPU_OPENCL_STATE_H

/* Something timed that is on its way, and the number that the profile has for it. */
typedef struct dml__opencl_mark {
    cl_event event;
    int number;
} dml__opencl_mark;

/* Memory of the host's that the device reads while the host goes on: what is written goes through a piece of
   it, and each piece is filled again when the copy that was made of it has ended. */
enum { DML__OPENCL_PIECES = 8, DML__OPENCL_PIECE = 1 << 20 /* bytes */ };
typedef struct dml__opencl_staging {
    cl_mem memory; /* which is mapped at `piece`; NULL: there is none, and writes wait */
    char *piece;   /* (DML__OPENCL_PIECES, DML__OPENCL_PIECE) */
    bool refused;
    int next;                            /* the piece to fill next */
    cl_event copied[DML__OPENCL_PIECES]; /* the last copy of each; NULL: there was none */
} dml__opencl_staging;

/* An open device. */
enum { DML__OPENCL_MARKS = 256 };
typedef struct dml__opencl {
    dml__opencl_library cl;
    cl_device_id id;
    char name[128];
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    dml__choice choice;
    dml__kernel_index index;
    int lanes; /* of the solo kernels' vectors */
    cl_kernel kernels[DML__KERNEL_COUNT];
    cl_ulong memory, largest; /* bytes that it has, and that one buffer may have */
    uint64_t held;            /* by buffers */
    bool timed;               /* the queue takes times */
    int marks;
    dml__opencl_mark mark[DML__OPENCL_MARKS];
    dml__opencl_staging staging;
    dml_buffer shares;   /* of products in shares of k */
    double first, ahead; /* when the first mark was made; how far this clock is ahead of the device's */
} dml__opencl;

static inline dml__opencl *dml__opencl_of(dml_device *device)
{
    return (dml__opencl *)device->state;
}

static inline cl_mem dml__opencl_memory(const dml_buffer *buffer)
{
    return (cl_mem)buffer->handle;
}

/* DML_OK for CL_SUCCESS, else a recorded sentence: which device, what was called, on what, and the error. */
static inline dml_status dml__opencl_check(dml_device *device, cl_int error, const char *call, const char *on)
{
    if (error == CL_SUCCESS) return DML_OK;
    return dml_device_fail(device, dml__opencl_lacks_memory(error) ? DML_ERROR_MEMORY : DML_ERROR_DEVICE,
                           "opencl:%d (%s): %s(%s) failed with %s (%d)%s", device->index,
                           device->state ? dml__opencl_of(device)->name : "?", call, on,
                           dml__opencl_error_name(error), (int)error,
                           error == CL_DEVICE_NOT_AVAILABLE
                               ? ": the device is lost; what is on the host is not, go on with it in another "
                                 "context"
                               : "");
}

#endif

/* Tells of all that was timed, of a queue that has finished. */
static inline void dml__opencl_settle(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    for (int i = 0; i < state->marks; i++) {
        const dml__opencl_mark mark = state->mark[i];
        cl_ulong queued = 0, begin = 0, end = 0;
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_QUEUED, sizeof queued, &queued,
                                           NULL);
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_START, sizeof begin, &begin,
                                           NULL);
        state->cl.clGetEventProfilingInfo_(mark.event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
        state->cl.clReleaseEvent_(mark.event);
        if (state->ahead == 0) state->ahead = state->first - 1e-9 * (double)queued;
        dml_device_end_event(device, mark.number, state->ahead + 1e-9 * (double)begin,
                             state->ahead + 1e-9 * (double)end);
    }
    state->marks = 0;
}

/* Where what is enqueued next leaves its event; NULL: nobody asks. */
static inline cl_event *dml__opencl_mark_of(dml_device *device, const char *what)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!state->timed) return NULL;
    if (state->marks == DML__OPENCL_MARKS && state->cl.clFinish_(state->queue) == CL_SUCCESS)
        dml__opencl_settle(device);
    if (state->marks == DML__OPENCL_MARKS) return NULL;
    if (state->first == 0) state->first = dml_seconds();
    dml__opencl_mark *mark = &state->mark[state->marks];
    mark->number = dml_device_begin_event(device, what);
    return &mark->event;
}

/* What was to be enqueued is, or isn't. */
static inline cl_int dml__opencl_marked(dml_device *device, const cl_event *event, cl_int error)
{
    if (event && error == CL_SUCCESS) dml__opencl_of(device)->marks++;
    return error;
}

/* Only a queue that was made for it takes times. */
static inline dml_status dml__opencl_profile(dml_device *device, bool on)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_int error = state->cl.clFinish_(state->queue);
    dml__opencl_settle(device);
    state->timed = false;
    state->first = state->ahead = 0;
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clFinish", "");
    const cl_command_queue queue = state->cl.clCreateCommandQueue_(
        state->context, state->id, on ? CL_QUEUE_PROFILING_ENABLE : 0, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateCommandQueue", "");
    state->cl.clReleaseCommandQueue_(state->queue);
    state->queue = queue;
    state->timed = on;
    return DML_OK;
}

#endif

/* ---- gpu/opencl_program.h ---- */

/* opencl_program.h: the kernels, built from their source by the device's own compiler. */
#ifndef DML_GPU_OPENCL_PROGRAM_H
#define DML_GPU_OPENCL_PROGRAM_H

#include <stdio.h>
#include <string.h>

static const char *const dml__opencl_source[] = {
"#line 1 \"gpu/kernels.cl\"\n",
"/* kernels.cl: the shared kernels, compiled as OpenCL C 1.2, as CUDA and as host C; gpu/dialect.h has the\n",
"   words they are written in, gpu/kernel_list.h their names and launch shapes. */\n",
"#ifndef DML_GPU_KERNELS_CL\n",
"#define DML_GPU_KERNELS_CL\n",
"\n",
"#line 1 \"gpu/arguments.h\"\n",
"/* arguments.h: what every shared kernel is given besides its buffers, the same bytes on host and device. */\n",
"#ifndef DML_GPU_ARGUMENTS_H\n",
"#define DML_GPU_ARGUMENTS_H\n",
"\n",
"#ifdef __OPENCL_VERSION__\n",
"typedef long dml__kernel_offset;\n",
"typedef int dml__kernel_integer;\n",
"#else\n",
"#include <stdint.h>\n",
"typedef int64_t dml__kernel_offset;\n",
"typedef int32_t dml__kernel_integer;\n",
"#endif\n",
"\n",
"/* 144 bytes without padding. The counts are DML_LAUNCH_BUFFERS, _INTS and _FLOATS. */\n",
"typedef struct dml__kernel_arguments {\n",
"    dml__kernel_offset offset[6]; /* in bytes, into each buffer */\n",
"    dml__kernel_integer integer[16];\n",
"    float real[8];\n",
"} dml__kernel_arguments;\n",
"\n",
"/* Every kernel runs in work-groups of this many items, in one dimension. */\n",
"#define DML__GROUP_ITEMS 256\n",
"\n",
"#endif\n",
"#line 7 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/dialect.h\"\n",
"/* dialect.h: the words that the shared kernels are written in, in OpenCL C 1.2, CUDA and host C.\n",
"\n",
"   - KERNEL(name) { ... }: a kernel of six buffers and a block of arguments, in groups of DML__GROUP_ITEMS\n",
"   items\n",
"   - BUFFER(i, type): buffer i at its offset, as GLOBAL type *; NULL when the launch gave none\n",
"   - INT(i), REAL(i): its integers and floats\n",
"   - ITEM: this item's number in its group\n",
"   - GROUP_X, GROUP_Y: the group's number along x and y\n",
"   - ELEMENT: GROUP_X * DML__GROUP_ITEMS + ITEM, for kernels with an item an element\n",
"   - LOCAL type name[n]; memory of the group; only at a kernel's outermost scope\n",
"   - LOCAL_QUADS float name[n]; the same, of which QUAD_AT(p) reads four floats x, y, z, w at once, a QUAD,\n",
"   where p is a multiple of four from its beginning\n",
"   - BARRIER(); all items of a group, or none, come here; never after a return\n",
"   - UNROLL: before a loop over an array that lies in registers\n",
"   - HELPER: before a function; where it uses ITEM, GROUP_X, GROUP_Y or BARRIER its parameters begin with\n",
"     HERE_PARAMETER, and its arguments with HERE, both of which bring their comma\n",
"   - SHARED type *: a pointer to LOCAL memory\n",
"   - MULTIPLY_HIGH(a, b): the upper half of the product of two unsigned\n",
"   - RECIPROCAL(x): 1 / x of at least 1, and RECIPROCAL_ROOT(x): 1 / sqrt(x), within two of their last bits\n",
"   - WARP_OTHER(x, reach): what x is in the item whose number differs by the bit `reach`, 1 to 16; all items\n",
"   come here. Only where it is there (CUDA, host C)\n",
"   - BITS_OF(x), FLOAT_OF(u): the bits of a float, and back\n",
"   - WIDE: a 64-bit integer, for offsets: one tensor may hold more than 2^31 bytes\n",
"\n",
"   Where an item is a processor core (host C, OpenCL devices that are CPUs), SOLO_KERNEL is defined:\n",
"\n",
"   - SOLO_KERNEL(name): a kernel in groups of one item\n",
"   - SOLO_LOCAL type x[n]; memory of its own, since such a device may have little of LOCAL\n",
"   - VECTOR, VECTOR_LANES: as many floats as it adds at once, and how many these are\n",
"   - VECTOR_OF(x): x in each lane\n",
"   - VECTOR_LOAD(p): those at p, in memory of its own; VECTOR_STORE(p, v)\n",
"   - VECTOR_READ(p): those at p in GLOBAL memory; VECTOR_WRITE(p, v)\n",
"   - VECTOR_ADD_PRODUCT(v, x, w): v + x w of a float x; VECTOR_ADD_PRODUCTS(v, u, w): v + u w lane by lane\n",
"   - VECTOR_MOST(v, w): the larger of two lanes, not the NaN; VECTOR_EXP(v): of each lane\n",
"\n",
"   Where a kernel NAME_solo does what NAME_team does, ops launch NAME (gpu/kernel_list.h).\n",
"\n",
"   All sizes along x and y are below 2^31 (the hosts see to it), so indices are unsigned; offsets are WIDE. */\n",
"#ifndef DML_GPU_DIALECT_H\n",
"#define DML_GPU_DIALECT_H\n",
"\n",
"#ifdef __CUDACC__ /* whose host has added the offsets: kernels had done so again at each use */\n",
"#define BUFFER(i, type) ((type *)buffer##i)\n",
"#else\n",
"#define BUFFER(i, type) ((GLOBAL type *)(buffer##i \? buffer##i + arguments.offset[i] : 0))\n",
"#endif\n",
"#define INT(i) (arguments.integer[i])\n",
"#define REAL(i) (arguments.real[i])\n",
"#define ELEMENT ((unsigned)GROUP_X * DML__GROUP_ITEMS + (unsigned)ITEM)\n",
"\n",
"#if defined(__OPENCL_VERSION__)\n",
"\n",
"#define GLOBAL __global\n",
"#define LOCAL __local\n",
"#define LOCAL_QUADS __local __attribute__((aligned(16)))\n",
"#define QUAD float4\n",
"#define QUAD_AT(p) (*(__local const float4 *)(p))\n",
"#define UNROLL __attribute__((opencl_unroll_hint))\n",
"#define SHARED __local\n",
"#define HERE_PARAMETER\n",
"#define HERE\n",
"#define HELPER static\n",
"HELPER float dml__tanh(float x)\n",
"{\n",
"    return fabs(x) > 9.02f \? copysign(1.0f, x) : tanh(x); /* PoCL's stays 2^-24 below 1 */\n",
"}\n",
"#define WIDE long\n",
"#define KERNEL(name)                                                                                         \\\n",
"    __kernel __attribute__((reqd_work_group_size(DML__GROUP_ITEMS, 1, 1))) void dml__kernel_##name(          \\\n",
"        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \\\n",
"        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)\n",
"#ifdef DML__SOLO_LANES /* 4, 8 or 16: the host's to say */\n",
"#define VECTOR_LANES DML__SOLO_LANES\n",
"#define VECTOR_NAME__(name, lanes) name##lanes\n",
"#define VECTOR_NAME_(name, lanes) VECTOR_NAME__(name, lanes)\n",
"#define VECTOR VECTOR_NAME_(float, VECTOR_LANES)\n",
"#define VECTOR_OF(x) ((VECTOR)(x))\n",
"#define VECTOR_LOAD(p) (*(const dml__vector_anywhere *)(p))\n",
"#define VECTOR_READ(p) (*(__global const dml__vector_anywhere *)(p))\n",
"#define VECTOR_STORE(p, v) (*(dml__vector_anywhere *)(p) = (v))\n",
"#define VECTOR_WRITE(p, v) (*(__global dml__vector_anywhere *)(p) = (v))\n",
"#define VECTOR_ADD_PRODUCT(sum, x, v) ((sum) + (x) * (v))\n",
"#define VECTOR_ADD_PRODUCTS(sum, u, v) ((sum) + (u) * (v))\n",
"#define VECTOR_MOST(u, v) fmax(u, v)\n",
"#define VECTOR_EXP(v) exp(v)\n",
"typedef VECTOR dml__vector_anywhere __attribute__((aligned(4))); /* PoCL splits what vload gives */\n",
"#define SOLO_LOCAL __attribute__((aligned(64)))\n",
"#define SOLO_KERNEL(name)                                                                                    \\\n",
"    __kernel __attribute__((reqd_work_group_size(1, 1, 1))) void dml__kernel_##name(                         \\\n",
"        __global char *buffer0, __global char *buffer1, __global char *buffer2, __global char *buffer3,      \\\n",
"        __global char *buffer4, __global char *buffer5, const dml__kernel_arguments arguments)\n",
"#endif\n",
"#define ITEM ((int)get_local_id(0))\n",
"#define GROUP_X ((int)get_group_id(0))\n",
"#define GROUP_Y ((int)get_group_id(1))\n",
"#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)\n",
"#define EXP(x) exp(x)\n",
"#define EXPM1(x) expm1(x)\n",
"#define LOG(x) log(x)\n",
"#define LOG1P(x) log1p(x)\n",
"#define TANH(x) dml__tanh(x)\n",
"#define ERF(x) erf(x)\n",
"#define ABS(x) fabs(x)\n",
"#ifdef DML__SOLO_LANES\n",
"#define MULTIPLY_HIGH(a, b) ((uint)((ulong)(a) * (b) >> 32)) /* PoCL's mul_hi takes ten times as long */\n",
"#else\n",
"#define MULTIPLY_HIGH(a, b) mul_hi(a, b)\n",
"#endif\n",
"#define SQRT(x) sqrt(x)\n",
"#define RECIPROCAL(x) (1.0f / (x))\n",
"#define RECIPROCAL_ROOT(x) rsqrt(x)\n",
"#define SIN(x) sin(x)\n",
"#define COS(x) cos(x)\n",
"#define POW(x, y) pow(x, y)\n",
"#define NOT_A_NUMBER NAN\n",
"#define MINUS_INFINITY (-INFINITY)\n",
"#define BITS_OF(x) as_uint(x)\n",
"#define FLOAT_OF(u) as_float(u)\n",
"\n",
"#elif defined(__CUDACC__)\n",
"\n",
"#define GLOBAL\n",
"#define LOCAL __shared__\n",
"#define LOCAL_QUADS __shared__ __align__(16)\n",
"#define QUAD float4\n",
"#define QUAD_AT(p) (*(const float4 *)(p))\n",
"#define UNROLL _Pragma(\"unroll\")\n",
"#define SHARED\n",
"#define HERE_PARAMETER\n",
"#define HERE\n",
"#define HELPER static __device__ __forceinline__\n",
"#define WIDE long long\n",
"#define KERNEL(name)                                                                                         \\\n",
"    static __global__ void __launch_bounds__(DML__GROUP_ITEMS)                                               \\\n",
"        dml__kernel_##name(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,        \\\n",
"                           char *buffer5, const dml__kernel_arguments arguments)\n",
"#define ITEM ((int)threadIdx.x)\n",
"#define GROUP_X ((int)blockIdx.x)\n",
"#define GROUP_Y ((int)(blockIdx.z * gridDim.y + blockIdx.y)) /* a grid's y ends at 65535, so z carries on */\n",
"#define BARRIER() __syncthreads()\n",
"#define WARP_OTHER(x, reach) __shfl_xor_sync(0xffffffffu, x, reach)\n",
"#define EXP(x) expf(x)\n",
"#define EXPM1(x) expm1f(x)\n",
"#define LOG(x) logf(x)\n",
"#define LOG1P(x) log1pf(x)\n",
"#define TANH(x) tanhf(x)\n",
"#define ERF(x) erff(x)\n",
"#define ABS(x) fabsf(x)\n",
"#define MULTIPLY_HIGH(a, b) __umulhi(a, b)\n",
"#define SQRT(x) sqrtf(x)\n",
"#define RECIPROCAL(x) __fdividef(1.0f, x)\n",
"#define RECIPROCAL_ROOT(x) rsqrtf(x)\n",
"#define SIN(x) sinf(x)\n",
"#define COS(x) cosf(x)\n",
"#define POW(x, y) powf(x, y)\n",
"#define NOT_A_NUMBER __int_as_float(0x7fffffff)\n",
"#define MINUS_INFINITY __int_as_float((int)0xff800000)\n",
"#define BITS_OF(x) ((unsigned)__float_as_int(x))\n",
"#define FLOAT_OF(u) __int_as_float((int)(u))\n",
"\n",
"#else /* host C: src/gpu/host_device.c runs one group at a time */\n",
"\n",
"#define GLOBAL\n",
"#define LOCAL static\n",
"#define LOCAL_QUADS static\n",
"#define QUAD dml__host_quad\n",
"#define QUAD_AT(p) (*(const dml__host_quad *)(p))\n",
"#define UNROLL\n",
"#define SHARED\n",
"#define HERE_PARAMETER const dml__host_item *self,\n",
"#define HERE self,\n",
"#define HELPER static\n",
"#define WIDE int64_t\n",
"#define KERNEL(name)                                                                                         \\\n",
"    static void dml__kernel_##name(const dml__host_item *self, char *buffer0, char *buffer1, char *buffer2,  \\\n",
"                                   char *buffer3, char *buffer4, char *buffer5,                              \\\n",
"                                   const dml__kernel_arguments arguments)\n",
"#define SOLO_KERNEL(name) KERNEL(name)\n",
"#define SOLO_LOCAL static\n",
"#define VECTOR dml__host_vector\n",
"#define VECTOR_LANES DML__HOST_LANES\n",
"#define VECTOR_OF(x) dml__host_vector_of(x)\n",
"#define VECTOR_LOAD(p) dml__host_vector_load(p)\n",
"#define VECTOR_READ(p) dml__host_vector_load(p)\n",
"#define VECTOR_STORE(p, v) dml__host_vector_store(p, v)\n",
"#define VECTOR_WRITE(p, v) dml__host_vector_store(p, v)\n",
"#define VECTOR_ADD_PRODUCT(sum, x, v) dml__host_vector_add_product(sum, x, v)\n",
"#define VECTOR_ADD_PRODUCTS(sum, u, v) dml__host_vector_add_products(sum, u, v)\n",
"#define VECTOR_MOST(u, v) dml__host_vector_most(u, v)\n",
"#define VECTOR_EXP(v) dml__host_vector_exp(v)\n",
"#define ITEM (self->item)\n",
"#define GROUP_X (self->group_x)\n",
"#define GROUP_Y (self->group_y)\n",
"#define BARRIER() dml__host_barrier(self)\n",
"#define WARP_OTHER(x, reach) dml__host_other(self, x, reach)\n",
"#define EXP(x) expf(x)\n",
"#define EXPM1(x) expm1f(x)\n",
"#define LOG(x) logf(x)\n",
"#define LOG1P(x) log1pf(x)\n",
"#define TANH(x) tanhf(x)\n",
"#define ERF(x) erff(x)\n",
"#define ABS(x) fabsf(x)\n",
"#define MULTIPLY_HIGH(a, b) ((uint32_t)((uint64_t)(a) * (b) >> 32))\n",
"#define SQRT(x) sqrtf(x)\n",
"#define RECIPROCAL(x) (1.0f / (x))\n",
"#define RECIPROCAL_ROOT(x) (1.0f / sqrtf(x))\n",
"#define SIN(x) sinf(x)\n",
"#define COS(x) cosf(x)\n",
"#define POW(x, y) powf(x, y)\n",
"#define NOT_A_NUMBER NAN\n",
"#define MINUS_INFINITY (-INFINITY)\n",
"#define BITS_OF(x) dml__host_bits(x)\n",
"#define FLOAT_OF(u) dml__host_float(u)\n",
"\n",
"#endif\n",
"\n",
"#endif\n",
"#line 8 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/elementwise.cl\"\n",
"/* elementwise.cl: kernels that do the same to each element. Launches give size{n}. beta = 0 never reads the\n",
"   output. */\n",
"#ifndef DML_GPU_ELEMENTWISE_CL\n",
"#define DML_GPU_ELEMENTWISE_CL\n",
"\n",
"/* An item does RUN elements, which lie a group's items apart, so that as many of its loads are on their way:\n",
"   with one each a GPU waits for memory more than it reads. Hence a kernel reads all of an item's elements,\n",
"   then computes, and then writes, since an output may be an input. On OpenCL devices that are CPUs it is one\n",
"   element: they do the items of a group many at once in vectors (gpu/kernel_list.h). */\n",
"#ifdef DML__RUN\n",
"#define RUN DML__RUN\n",
"#else\n",
"#define RUN 4\n",
"#endif\n",
"#define RUN_BEGIN ((unsigned)GROUP_X * (RUN * DML__GROUP_ITEMS) + (unsigned)ITEM)\n",
"/* At a kernel's begin: where an item has one element, the compiler then knows that it is below n. */\n",
"#define RUN_BEGINS(n)                                                                                        \\\n",
"    if (RUN == 1 && RUN_BEGIN >= (n)) return\n",
"/* Before a statement for each k below RUN, whose element, i, is below n. */\n",
"#define EACH_OF_RUN(k, i, n) EACH_OF(RUN, RUN_BEGIN, k, i, n)\n",
"#define EACH_OF(count, begin, k, i, n)                                                                       \\\n",
"    UNROLL for (unsigned k = 0, i = (begin); k < (count); k++, i += DML__GROUP_ITEMS) if (i < (n))\n",
"\n",
"/* Before a statement for each of what an item has in registers, also of what isn't there, where that does no\n",
"   harm: without a condition they are computed side by side. */\n",
"#define EACH_IN_REGISTERS(count, k) UNROLL for (int k = 0; k < (count); k++)\n",
"/* Before a statement for each of an item's elements, as the one of row r and column c of a matrix of so many\n",
"   columns; also of those that aren't there, whose rows are beyond the last. */\n",
"#define EACH_PLACE_OF_RUN(k, r, c, columns)                                                                  \\\n",
"    const unsigned rows_on = DML__GROUP_ITEMS / (columns), columns_on = DML__GROUP_ITEMS % (columns);        \\\n",
"    unsigned r = RUN_BEGIN / (columns), c = RUN_BEGIN % (columns);                                           \\\n",
"    UNROLL for (int k = 0; k < RUN;                                                                          \\\n",
"                k++, c += columns_on, r += rows_on + (c >= (columns)), c -= c >= (columns) \? (columns) : 0)\n",
"\n",
"/* new + beta old, where old is not read, and may hold anything, when beta is 0. */\n",
"HELPER float dml__with_beta(float value, float beta, GLOBAL const float *old)\n",
"{\n",
"    return beta == 0.0f \? value : value + beta * *old;\n",
"}\n",
"\n",
"/* The old output where it counts: it isn't read, and may hold anything, when beta is 0. */\n",
"HELPER float dml__old(float beta, GLOBAL const float *old)\n",
"{\n",
"    return beta == 0.0f \? 0.0f : *old;\n",
"}\n",
"\n",
"/* The relu of formulas.h, where it is on. */\n",
"HELPER float dml__with_relu(float value, int on)\n",
"{\n",
"    return on && value <= 0.0f \? 0.0f : value;\n",
"}\n",
"\n",
"/* In the choice of a largest element, whether `value` comes before `best`: a NaN counts as the largest. */\n",
"HELPER int dml__beats(float value, float best)\n",
"{\n",
"    return (value > best) | ((value != value) & (best == best));\n",
"}\n",
"\n",
"/* A number that much is divided by, whose quotients are products with its reciprocal. */\n",
"typedef struct dml__gpu_divisor {\n",
"    unsigned number, reciprocal;\n",
"} dml__gpu_divisor;\n",
"\n",
"HELPER dml__gpu_divisor dml__gpu_divisor_of(int number)\n",
"{\n",
"    dml__gpu_divisor d;\n",
"    d.number = (unsigned)number;\n",
"    d.reciprocal = 0xffffffffu / d.number;\n",
"    return d;\n",
"}\n",
"\n",
"/* Where the reciprocal serves many quotients. */\n",
"HELPER unsigned dml__gpu_divide(unsigned n, const dml__gpu_divisor d)\n",
"{\n",
"    const unsigned q = MULTIPLY_HIGH(n, d.reciprocal); /* the quotient, or one less */\n",
"    return n - q * d.number >= d.number \? q + 1 : q;\n",
"}\n",
"\n",
"/* Where an item has one quotient. On CPUs the reciprocal is the same for all items, so the compiler takes it\n",
"   out of their loop, if it isn't inside a condition. */\n",
"HELPER unsigned dml__gpu_quotient(unsigned n, const dml__gpu_divisor d)\n",
"{\n",
"#ifdef SOLO_KERNEL\n",
"    return dml__gpu_divide(n, d);\n",
"#else\n",
"    return n / d.number;\n",
"#endif\n",
"}\n",
"\n",
"/* y = alpha x + beta y. Buffers x, y; ints n; floats alpha, beta. */\n",
"KERNEL(axpby)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float alpha = REAL(0), beta = REAL(1);\n",
"    RUN_BEGINS(n);\n",
"    float from[RUN], old[RUN];\n",
"    EACH_OF_RUN(k, i, n)\n",
"    {\n",
"        from[k] = x[i];\n",
"        old[k] = dml__old(beta, y + i);\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) y[i] = alpha * from[k] + beta * old[k];\n",
"}\n",
"\n",
"/* y[o][c] = the sum of x[o][s][c] over few s, in their order, + beta y[o][c]. Buffers x, y; ints y's\n",
"   elements, how many s, how many c; floats beta; size{y's elements}. */\n",
"KERNEL(sum_few)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const int few = INT(1);\n",
"    const unsigned inner = (unsigned)INT(2), i = ELEMENT;\n",
"    if (i < n) {\n",
"        const unsigned o = i / inner;\n",
"        float sum = 0.0f;\n",
"        for (int s = 0; s < few; s++) sum += x[(o * (WIDE)few + s) * inner + (i - o * inner)];\n",
"        y[i] = dml__with_beta(sum, REAL(0), y + i);\n",
"    }\n",
"}\n",
"\n",
"/* y[r][c] += bias[c], and its relu. Buffers bias (may be NULL), y; ints rows, columns, whether with the relu;\n",
"   size{rows * columns}. */\n",
"KERNEL(bias_add)\n",
"{\n",
"    GLOBAL const float *bias = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned columns = (unsigned)INT(1), n = (unsigned)INT(0) * columns;\n",
"    RUN_BEGINS(n);\n",
"    float value[RUN], more[RUN];\n",
"    EACH_OF_RUN(k, i, n) value[k] = y[i];\n",
"    if (bias) {\n",
"        EACH_PLACE_OF_RUN(k, row, c, columns) more[k] = bias[c];\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) y[i] = dml__with_relu(bias \? value[k] + more[k] : value[k], INT(2));\n",
"}\n",
"\n",
"#endif\n",
"#line 9 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/formula.cl\"\n",
"/* formula.cl: the functions of kernels/formulas.h, all in two kernels: which one is the same for every item,\n",
"   and is chosen once for an item's RUN elements, which are computed side by side. */\n",
"#ifndef DML_GPU_FORMULA_CL\n",
"#define DML_GPU_FORMULA_CL\n",
"\n",
"#line 1 \"kernels/formulas.h\"\n",
"/* formulas.h: the functions of one element, each a row: from it come the CPU's loops (kernels/formula.c), the\n",
"   case of the shared kernel (gpu/formula.cl) and the op (ops/op_formula.c).\n",
"\n",
"   The words of a formula, which each of those defines for its own kind of number:\n",
"\n",
"   VALUE              a number, for what is used twice: VALUE s = SIGMOID(a);\n",
"   a, b, c            the inputs; y the output, dy its gradient, d the gradient asked for\n",
"   P, Q               the op's own two numbers\n",
"   K(1.0f)            a constant, where a word takes a VALUE; beside an operator it may stand bare\n",
"   WHERE(m, x, y)     m \? x : y, both computed; m a comparison, or several joined by & and |\n",
"   EXP EXPM1 LOG LOG1P TANH SIGMOID ERF SQRT SIN COS ABS(x), POW(x, y); none inside itself\n",
"\n",
"   `needs` is what the gradients read: A and B inputs, Y the output. */\n",
"#ifndef DML_KERNELS_FORMULAS_H\n",
"#define DML_KERNELS_FORMULAS_H\n",
"\n",
"/* X(name, needs, forward, gradient of a). The relu of a NaN is NaN, so that it gets through. 0.7071 is\n",
"   sqrt(1/2), 0.3989 sqrt(1 / 2 pi), 1.5958 2 sqrt(2 / pi), 0.07135 0.044715 of that. From 10 on a gelu is as\n",
"   flat as at 10, where its square would else be infinite. The long ones are bound by arithmetic, not by\n",
"   memory: for them the CPU's loops are compiled for wider vectors, too. */\n",
"#define DML__FORMULAS_LONG(X)                                                                                \\\n",
"    X(elu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * EXPM1(a)), d = WHERE(a > 0.0f, dy, P * EXP(a) * dy))     \\\n",
"    X(gelu, DML__NEEDS_A, y = 0.5f * a * (1.0f + ERF(a * 0.707106781f)),                                     \\\n",
"      d = dy * (0.5f * (1.0f + ERF(a * 0.707106781f)) + a * (0.398942280f * EXP(-0.5f * a * a))))            \\\n",
"    X(gelu_tanh, DML__NEEDS_A, y = a * SIGMOID(a * (1.59576912f + 0.0713548163f * a * a)),                   \\\n",
"      VALUE t = WHERE(a > 10.0f, K(10.0f), WHERE(a < -10.0f, K(-10.0f), a));                                 \\\n",
"      VALUE s = SIGMOID(t * (1.59576912f + 0.0713548163f * t * t));                                          \\\n",
"      d = dy * s * (1.0f + (1.0f - s) * t * (1.59576912f + 0.214064449f * t * t)))                           \\\n",
"    X(silu, DML__NEEDS_A, y = a * SIGMOID(a), VALUE s = SIGMOID(a); d = dy * s * (1.0f + a * (1.0f - s)))    \\\n",
"    X(sigmoid, DML__NEEDS_Y, y = SIGMOID(a), d = dy * y * (1.0f - y))                                        \\\n",
"    X(tanh, DML__NEEDS_Y, y = TANH(a), d = dy * (1.0f - y * y))                                              \\\n",
"    X(softplus, DML__NEEDS_A, y = WHERE(a > 0.0f, a, K(0.0f)) + LOG1P(EXP(-ABS(a))), d = dy * SIGMOID(a))    \\\n",
"    X(exp, DML__NEEDS_Y, y = EXP(a), d = dy * y)                                                             \\\n",
"    X(log, DML__NEEDS_A, y = LOG(a), d = dy / a)\n",
"\n",
"#define DML__FORMULAS_1(X)                                                                                   \\\n",
"    X(relu, DML__NEEDS_Y, y = WHERE(a <= 0.0f, K(0.0f), a), d = WHERE(y > 0.0f, dy, K(0.0f)))                \\\n",
"    X(leaky_relu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * a), d = WHERE(a > 0.0f, dy, P * dy))              \\\n",
"    DML__FORMULAS_LONG(X)                                                                                    \\\n",
"    X(sqrt, DML__NEEDS_Y, y = SQRT(a), d = 0.5f * dy / y)                                                    \\\n",
"    X(sin, DML__NEEDS_A, y = SIN(a), d = COS(a) * dy)                                                        \\\n",
"    X(cos, DML__NEEDS_A, y = COS(a), d = -(SIN(a) * dy))                                                     \\\n",
"    X(abs, DML__NEEDS_A, y = ABS(a), d = WHERE(a > 0.0f, dy, WHERE(a < 0.0f, -dy, K(0.0f))))                 \\\n",
"    X(square, DML__NEEDS_A, y = a * a, d = 2.0f * a * dy)                                                    \\\n",
"    X(pow, DML__NEEDS_A, y = POW(a, P), d = WHERE(P == 0.0f, K(0.0f), P * POW(a, P - 1.0f) * dy))            \\\n",
"    X(clamp, DML__NEEDS_A, y = WHERE(a < P, P, WHERE(a > Q, Q, a)),                                          \\\n",
"      d = WHERE((a >= P) & (a <= Q), dy, K(0.0f)))                                                           \\\n",
"    X(affine, 0, y = P * a + Q, d = P * dy)\n",
"\n",
"/* X(name, inputs, first, needs, forward, gradient of input `first`, of the next). Of equals, each is half\n",
"   the maximum; what is not a number is the largest and the smallest. */\n",
"#define DML__FORMULAS_2(X)                                                                                   \\\n",
"    X(add, 2, 0, 0, y = a + b, d = dy, d = dy)                                                               \\\n",
"    X(sub, 2, 0, 0, y = a - b, d = dy, d = -dy)                                                              \\\n",
"    X(mul, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a * b, d = dy * b, d = dy * a)                             \\\n",
"    X(div, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a / b, d = dy / b, d = -(dy / b) * (a / b))                \\\n",
"    X(maximum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a >= b, a, WHERE(a < b, b, a + b)),              \\\n",
"      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \\\n",
"      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \\\n",
"    X(minimum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a <= b, a, WHERE(a > b, b, a + b)),              \\\n",
"      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \\\n",
"      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \\\n",
"    X(where, 3, 1, DML__NEEDS_A, y = WHERE(a != 0.0f, b, c), d = WHERE(a != 0.0f, dy, K(0.0f)),              \\\n",
"      d = WHERE(a != 0.0f, K(0.0f), dy))\n",
"\n",
"/* X(name, forward): of two inputs, 1 or 0, through which no gradient flows. */\n",
"#define DML__FORMULAS_FLAT(X)                                                                                \\\n",
"    X(equal, y = WHERE(a == b, K(1.0f), K(0.0f)))                                                            \\\n",
"    X(not_equal, y = WHERE(a != b, K(1.0f), K(0.0f)))                                                        \\\n",
"    X(less, y = WHERE(a < b, K(1.0f), K(0.0f)))                                                              \\\n",
"    X(less_equal, y = WHERE(a <= b, K(1.0f), K(0.0f)))\n",
"\n",
"/* The same arguments: losses of a prediction a and a target b, which are summed where they are computed:\n",
"   their ops are those of ops/op_loss.c. */\n",
"#define DML__FORMULAS_LOSS(X)                                                                                \\\n",
"    X(mean_squared_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = (a - b) * (a - b), d = 2.0f * (a - b) * dy, \\\n",
"      d = 2.0f * (b - a) * dy)                                                                               \\\n",
"    X(mean_absolute_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = ABS(a - b),                                \\\n",
"      d = WHERE(a > b, dy, WHERE(a < b, -dy, K(0.0f))), d = WHERE(a > b, -dy, WHERE(a < b, dy, K(0.0f))))    \\\n",
"    X(huber, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE e = ABS(a - b);                                        \\\n",
"      y = Q * WHERE(e < P, 0.5f * e * e, P * (e - 0.5f * P)), VALUE e = a - b;                               \\\n",
"      d = dy * Q * WHERE(e > P, P, WHERE(e < -P, -P, e)), VALUE f = b - a;                                   \\\n",
"      d = dy * Q * WHERE(f > P, P, WHERE(f < -P, -P, f)))                                                    \\\n",
"    X(binary_cross_entropy, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = LOG1P(EXP(-ABS(a)));                \\\n",
"      y = (1.0f - b) * (s + WHERE(a > 0.0f, a, K(0.0f))) + P * b * (s - WHERE(a < 0.0f, a, K(0.0f))),        \\\n",
"      d = dy * ((1.0f - b) * SIGMOID(a) - P * b * SIGMOID(-a)), VALUE s = LOG1P(EXP(-ABS(a)));               \\\n",
"      d = dy * (P * (s - WHERE(a < 0.0f, a, K(0.0f))) - (s + WHERE(a > 0.0f, a, K(0.0f)))))                  \\\n",
"    X(hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a * b >= 1.0f, K(0.0f), 1.0f - a * b),             \\\n",
"      d = WHERE(a * b < 1.0f, -b * dy, K(0.0f)), d = WHERE(a * b < 1.0f, -a * dy, K(0.0f)))                  \\\n",
"    X(squared_hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = 1.0f - a * b;                              \\\n",
"      y = WHERE(s <= 0.0f, K(0.0f), s * s), VALUE s = 1.0f - a * b;                                          \\\n",
"      d = -2.0f * dy * b * WHERE(s <= 0.0f, K(0.0f), s), VALUE r = 1.0f - a * b;                             \\\n",
"      d = -2.0f * dy * a * WHERE(r <= 0.0f, K(0.0f), r))                                                     \\\n",
"    X(kl_divergence, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(b == 0.0f, K(0.0f), b * (LOG(b) - a)),     \\\n",
"      d = -b * dy, d = WHERE(b == 0.0f, K(0.0f), (LOG(b) + 1.0f - a) * dy))                                  \\\n",
"    X(batch_mean, 2, 0, 0, y = a, d = dy, d = K(0.0f))\n",
"\n",
"#define DML__NEEDS_A 1u\n",
"#define DML__NEEDS_B 2u\n",
"#define DML__NEEDS_Y 4u\n",
"\n",
"enum {\n",
"#define DML__FORMULA_ENUM_1(name, needs, forward, gradient) DML__FORMULA_##name,\n",
"#define DML__FORMULA_ENUM_2(name, inputs, first, needs, forward, gradient0, gradient1) DML__FORMULA_##name,\n",
"#define DML__FORMULA_ENUM_FLAT(name, forward) DML__FORMULA_##name,\n",
"    DML__FORMULAS_1(DML__FORMULA_ENUM_1) DML__FORMULAS_2(DML__FORMULA_ENUM_2)\n",
"        DML__FORMULAS_FLAT(DML__FORMULA_ENUM_FLAT) DML__FORMULAS_LOSS(DML__FORMULA_ENUM_2) DML__FORMULA_COUNT\n",
"#undef DML__FORMULA_ENUM_1\n",
"#undef DML__FORMULA_ENUM_2\n",
"#undef DML__FORMULA_ENUM_FLAT\n",
"};\n",
"#define DML__FORMULA_OPS DML__FORMULA_mean_squared_error /* as many have ops of one element */\n",
"\n",
"#endif\n",
"#line 7 \"gpu/formula.cl\"\n",
"\n",
"#define VALUE const float\n",
"#define K(constant) (constant)\n",
"#define WHERE(mask, x, y) ((mask) \? (x) : (y))\n",
"#define SIGMOID(x) RECIPROCAL(1.0f + EXP(-(x)))\n",
"#define P p\n",
"#define Q q\n",
"\n",
"/* y = the formula. Buffers a, b, c (what the formula lacks is NULL), y; ints n, formula; floats p, q. */\n",
"KERNEL(formula_forward)\n",
"{\n",
"    GLOBAL const float *in_a = BUFFER(0, const float);\n",
"    GLOBAL const float *in_b = BUFFER(1, const float);\n",
"    GLOBAL const float *in_c = BUFFER(2, const float);\n",
"    GLOBAL float *out = BUFFER(3, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float p = REAL(0), q = REAL(1);\n",
"    RUN_BEGINS(n);\n",
"    float as[RUN], bs[RUN], cs[RUN], ys[RUN];\n",
"    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = cs[k] = ys[k] = 0.0f;\n",
"    EACH_OF_RUN(k, i, n) as[k] = in_a[i];\n",
"    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];\n",
"    if (in_c) EACH_OF_RUN(k, i, n) cs[k] = in_c[i];\n",
"    switch (INT(1)) {\n",
"#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \\\n",
"    case DML__FORMULA_##name:                                                                                \\\n",
"        EACH_IN_REGISTERS(RUN, k)                                                                            \\\n",
"        {                                                                                                    \\\n",
"            const float a = as[k], b = bs[k], c = cs[k];                                                     \\\n",
"            float y;                                                                                         \\\n",
"            (void)a, (void)b, (void)c;                                                                       \\\n",
"            forward;                                                                                         \\\n",
"            ys[k] = y;                                                                                       \\\n",
"        }                                                                                                    \\\n",
"        break;\n",
"#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \\\n",
"    DML__FORMULA_CASE_1(name, needs, forward, gradient0)\n",
"#define DML__FORMULA_CASE_FLAT(name, forward) DML__FORMULA_CASE_1(name, 0, forward, 0)\n",
"        DML__FORMULAS_1(DML__FORMULA_CASE_1)\n",
"        DML__FORMULAS_2(DML__FORMULA_CASE_2)\n",
"        DML__FORMULAS_FLAT(DML__FORMULA_CASE_FLAT)\n",
"        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)\n",
"#undef DML__FORMULA_CASE_1\n",
"#undef DML__FORMULA_CASE_2\n",
"#undef DML__FORMULA_CASE_FLAT\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) out[i] = ys[k];\n",
"}\n",
"\n",
"/* g0, g1 = the gradients of the inputs that have one, + beta what is there; NULL: not wanted. Each may be dy,\n",
"   and both the same. Buffers a, b, y (NULL where not needed), dy, g0, g1; ints n, formula; floats p, q,\n",
"   beta0, beta1. */\n",
"KERNEL(formula_backward)\n",
"{\n",
"    GLOBAL const float *in_a = BUFFER(0, const float);\n",
"    GLOBAL const float *in_b = BUFFER(1, const float);\n",
"    GLOBAL const float *output = BUFFER(2, const float);\n",
"    GLOBAL const float *gradient = BUFFER(3, const float);\n",
"    GLOBAL float *g0 = BUFFER(4, float);\n",
"    GLOBAL float *g1 = BUFFER(5, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float p = REAL(0), q = REAL(1), beta0 = REAL(2), beta1 = REAL(3);\n",
"    RUN_BEGINS(n);\n",
"    float as[RUN], bs[RUN], ys[RUN], dys[RUN], ds[RUN], d1s[RUN];\n",
"    EACH_IN_REGISTERS(RUN, k) as[k] = bs[k] = ys[k] = dys[k] = ds[k] = d1s[k] = 0.0f;\n",
"    EACH_OF_RUN(k, i, n) dys[k] = gradient[i];\n",
"    if (in_a) EACH_OF_RUN(k, i, n) as[k] = in_a[i];\n",
"    if (in_b) EACH_OF_RUN(k, i, n) bs[k] = in_b[i];\n",
"    if (output) EACH_OF_RUN(k, i, n) ys[k] = output[i];\n",
"    switch (INT(1)) {\n",
"#define FORMULA_GRADIENTS(gradient0, gradient1)                                                              \\\n",
"    EACH_IN_REGISTERS(RUN, k)                                                                                \\\n",
"    {                                                                                                        \\\n",
"        const float a = as[k], b = bs[k], y = ys[k], dy = dys[k];                                            \\\n",
"        float d;                                                                                             \\\n",
"        (void)a, (void)b, (void)y, (void)dy;                                                                 \\\n",
"        gradient1;                                                                                           \\\n",
"        d1s[k] = d;                                                                                          \\\n",
"        gradient0;                                                                                           \\\n",
"        ds[k] = d;                                                                                           \\\n",
"    }                                                                                                        \\\n",
"    break;\n",
"#define DML__FORMULA_CASE_1(name, needs, forward, gradient)                                                  \\\n",
"    case DML__FORMULA_##name:                                                                                \\\n",
"        FORMULA_GRADIENTS(gradient, d = 0.0f)\n",
"#define DML__FORMULA_CASE_2(name, inputs, first, needs, forward, gradient0, gradient1)                       \\\n",
"    case DML__FORMULA_##name: FORMULA_GRADIENTS(gradient0, gradient1)\n",
"        DML__FORMULAS_1(DML__FORMULA_CASE_1)\n",
"        DML__FORMULAS_2(DML__FORMULA_CASE_2)\n",
"        DML__FORMULAS_LOSS(DML__FORMULA_CASE_2)\n",
"#undef FORMULA_GRADIENTS\n",
"#undef DML__FORMULA_CASE_1\n",
"#undef DML__FORMULA_CASE_2\n",
"    }\n",
"    if (g0) EACH_OF_RUN(k, i, n) g0[i] = dml__with_beta(ds[k], beta0, g0 + i);\n",
"    if (g1) EACH_OF_RUN(k, i, n) g1[i] = dml__with_beta(d1s[k], beta1, g1 + i);\n",
"}\n",
"\n",
"#undef VALUE\n",
"#undef K\n",
"#undef WHERE\n",
"#undef SIGMOID\n",
"#undef P\n",
"#undef Q\n",
"\n",
"/* y = x repeated. Buffers x, y; ints n, dimensions, then the size of each, outermost first, and from 8 on x's\n",
"   stride in each; size{n}. */\n",
"KERNEL(broadcast)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    RUN_BEGINS(n);\n",
"    unsigned left[RUN], from[RUN];\n",
"    float value[RUN];\n",
"    EACH_OF_RUN(k, i, n)\n",
"    {\n",
"        left[k] = i;\n",
"        from[k] = 0;\n",
"    }\n",
"    for (int d = INT(1) - 1; d >= 0; d--) {\n",
"        const dml__gpu_divisor by = dml__gpu_divisor_of(INT(2 + d));\n",
"        EACH_OF_RUN(k, i, n)\n",
"        {\n",
"            const unsigned before = dml__gpu_divide(left[k], by);\n",
"            from[k] += (left[k] - before * by.number) * (unsigned)INT(8 + d);\n",
"            left[k] = before;\n",
"        }\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) value[k] = x[from[k]];\n",
"    EACH_OF_RUN(k, i, n) y[i] = value[k];\n",
"}\n",
"\n",
"#endif\n",
"#line 10 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/tiles.cl\"\n",
"/* tiles.cl: sums of products through local memory, for gemm and the convolutions.\n",
"\n",
"   A group computes a tile of C = A B, TILE_K products at a time: its items fill a TILE_K x rows piece of A\n",
"   and a TILE_K x columns piece of B in local memory, then each adds up a piece of its own in registers. Item\n",
"   (tx, ty) of 16 x 16 owns the rows SPAN_ROWS ty and on, which its row of items reads as one broadcast, and\n",
"   of every 64 columns four neighbours, 4 tx and on: so both are read four floats at once. (Of 16 columns it\n",
"   owns one.) An output's products are added in the order of k, whatever the tile.\n",
"\n",
"   While a piece is multiplied the next one is on its way from memory into registers: a loop over pieces\n",
"   loads one, then multiplies the one before it (TILES_MULTIPLY), then puts down what it loaded.\n",
"\n",
"   Each kernel is there in TILE_SHAPES: large tiles read less, small ones waste less where there are few rows\n",
"   or columns, and are more groups where there are few of both (gpu/launch.h chooses). A tile larger than TILE\n",
"   is only for launches that are one product: of several, each begins at a multiple of TILE. */\n",
"#ifndef DML_GPU_TILES_CL\n",
"#define DML_GPU_TILES_CL\n",
"\n",
"#define TILE 64 /* what launches of several products pad each to */\n",
"/* How many products at a time: the largest tile needs the registers. */\n",
"#define TILE_K_OF(columns) ((columns) > TILE \? 8 : 16)\n",
"#define TILE_K TILE_K_OF(tile_columns)\n",
"#define TILE_PAD 4 /* floats between rows, so that a column's stores spread over the banks */\n",
"#define SPAN (TILE / 16)\n",
"#define MOST_TILE 128 /* the largest; what launches of several shares pad each to */\n",
"#define MOST_SPAN (MOST_TILE / 16)\n",
"\n",
"/* Rows and columns of a kernel's tile, constants wherever they are used, and its local memory. */\n",
"#define TILE_PARAMETERS                                                                                      \\\n",
"    HERE_PARAMETER const int tile_rows, const int tile_columns, SHARED float *a_tile, SHARED float *b_tile\n",
"#define SPAN_ROWS (tile_rows / 16)\n",
"#define SPAN_COLUMNS (tile_columns / 16)\n",
"#define TAKES_ROWS (tile_rows * TILE_K / DML__GROUP_ITEMS) /* how many elements of a piece an item fills */\n",
"#define TAKES_COLUMNS (tile_columns * TILE_K / DML__GROUP_ITEMS)\n",
"#define A_TILE(k, row) a_tile[(k) * (tile_rows + TILE_PAD) + (row)]\n",
"#define B_TILE(k, column) b_tile[(k) * (tile_columns + TILE_PAD) + (column)]\n",
"\n",
"/* Kernels NAME_64x64 ... that call BODY(TILE_ARGUMENTS ...), which the caller of this macro has as a helper.\n",
" */\n",
"#define TILE_KERNEL(name, rows, columns, body)                                                               \\\n",
"    KERNEL(name##_##rows##x##columns)                                                                        \\\n",
"    {                                                                                                        \\\n",
"        LOCAL_QUADS float a_tile[TILE_K_OF(columns) * (rows + TILE_PAD)];                                    \\\n",
"        LOCAL_QUADS float b_tile[TILE_K_OF(columns) * (columns + TILE_PAD)];                                 \\\n",
"        body(HERE rows, columns, a_tile, b_tile, TILE_BUFFERS, arguments);                                   \\\n",
"    }\n",
"#define TILE_BUFFERS BUFFER(0, const float), BUFFER(1, const float), BUFFER(2, float), BUFFER(3, float)\n",
"#define TILE_SHAPES(name, body)                                                                              \\\n",
"    TILE_KERNEL(name, 128, 128, body)                                                                        \\\n",
"    TILE_KERNEL(name, 128, 64, body)                                                                         \\\n",
"    TILE_KERNEL(name, 64, 64, body)                                                                          \\\n",
"    TILE_KERNEL(name, 64, 16, body)                                                                          \\\n",
"    TILE_KERNEL(name, 16, 64, body)                                                                          \\\n",
"    TILE_KERNEL(name, 16, 16, body)\n",
"\n",
"/* The item fills its elements of a piece of `size` rows, or columns, in one of two orders, whichever reads\n",
"   memory in sequence: ALONG_K: its k is fixed, its rows are 16 apart; ACROSS_K: its row is fixed, its ks are\n",
"   apart. */\n",
"#define ALONG_K_K (ITEM % TILE_K)\n",
"#define ALONG_K_ROW(j) (ITEM / TILE_K + (j) * (DML__GROUP_ITEMS / TILE_K))\n",
"#define ACROSS_K_K(j, size) (ITEM / (size) + (j) * (DML__GROUP_ITEMS / (size)))\n",
"#define ACROSS_K_ROW(size) (ITEM % (size))\n",
"\n",
"/* The rows and columns of the item's own piece. */\n",
"#define OWN_ROW(i) (ITEM / 16 * SPAN_ROWS + (i))\n",
"#define OWN_COLUMN(j) (SPAN_COLUMNS % 4 \? ITEM % 16 + (j)*16 : (j) / 4 * 64 + ITEM % 16 * 4 + (j) % 4)\n",
"\n",
"/* Declares the sums and clears them, and what is loaded of the next piece. */\n",
"#define TILES_BEGIN()                                                                                        \\\n",
"    float sum[MOST_SPAN][MOST_SPAN];                                                                         \\\n",
"    UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++) sum[i][j] = 0.0f\n",
"\n",
"#define TILES_NEXT() float a_next[MOST_SPAN], b_next[MOST_SPAN]\n",
"\n",
"/* own[i] = what the item has of row kk of a filled piece. */\n",
"#define TILES_OWN(own, span, TILE_AT, OWN)                                                                   \\\n",
"    do {                                                                                                     \\\n",
"        if ((span) % 4 == 0) {                                                                               \\\n",
"            UNROLL for (int q = 0; q < (span) / 4; q++)                                                      \\\n",
"            {                                                                                                \\\n",
"                const QUAD four = QUAD_AT(&TILE_AT(kk, OWN(4 * q)));                                         \\\n",
"                own[4 * q] = four.x, own[4 * q + 1] = four.y, own[4 * q + 2] = four.z,                       \\\n",
"                        own[4 * q + 3] = four.w;                                                             \\\n",
"            }                                                                                                \\\n",
"        } else {                                                                                             \\\n",
"            UNROLL for (int q = 0; q < (span); q++) own[q] = TILE_AT(kk, OWN(q));                            \\\n",
"        }                                                                                                    \\\n",
"    } while (0)\n",
"\n",
"/* Adds the products of the filled tiles to the sums, and waits until all items have. */\n",
"#define TILES_MULTIPLY()                                                                                     \\\n",
"    do {                                                                                                     \\\n",
"        BARRIER();                                                                                           \\\n",
"        UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                           \\\n",
"        {                                                                                                    \\\n",
"            float a_own[MOST_SPAN], b_own[MOST_SPAN];                                                        \\\n",
"            TILES_OWN(a_own, SPAN_ROWS, A_TILE, OWN_ROW);                                                    \\\n",
"            TILES_OWN(b_own, SPAN_COLUMNS, B_TILE, OWN_COLUMN);                                              \\\n",
"            UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)         \\\n",
"                sum[i][j] += a_own[i] * b_own[j];                                                            \\\n",
"        }                                                                                                    \\\n",
"        BARRIER();                                                                                           \\\n",
"    } while (0)\n",
"\n",
"/* Puts down what was loaded, in the order in which it was. */\n",
"#define TILES_FILL_A(across)                                                                                 \\\n",
"    UNROLL for (int j = 0; j < TAKES_ROWS; j++)                                                              \\\n",
"        A_TILE((across) \? ACROSS_K_K(j, tile_rows) : ALONG_K_K,                                              \\\n",
"               (across) \? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(j)) = a_next[j]\n",
"#define TILES_FILL_B(across)                                                                                 \\\n",
"    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)                                                           \\\n",
"        B_TILE((across) \? ACROSS_K_K(j, tile_columns) : ALONG_K_K,                                           \\\n",
"               (across) \? ACROSS_K_ROW(tile_columns) : ALONG_K_ROW(j)) = b_next[j]\n",
"\n",
"/* Where a group works in many matrices of C, laid one after the other: `matrices` of them, each the sum over\n",
"   `terms` products; a group below all of them has nothing to do. The arguments are gemm's. */\n",
"typedef struct dml__gpu_matrix {\n",
"    int matrices, terms, matrix, row;\n",
"} dml__gpu_matrix;\n",
"\n",
"HELPER dml__gpu_matrix dml__gpu_matrix_at(int tile, int tile_rows, const dml__kernel_arguments arguments)\n",
"{\n",
"    dml__gpu_matrix at;\n",
"    at.matrices = 1, at.terms = 1;\n",
"    at.matrix = 0, at.row = tile * tile_rows;\n",
"    if (tile_rows > TILE) return at;\n",
"    const int tiles = (INT(0) + TILE - 1) / TILE * (TILE / tile_rows);\n",
"    at.matrix = tile / tiles, at.row = tile % tiles * tile_rows;\n",
"    for (int d = 0; d < 4 && INT(8 + d); d++) {\n",
"        if (INT(12) >> 3 * d & 4)\n",
"            at.matrices *= INT(8 + d);\n",
"        else\n",
"            at.terms *= INT(8 + d);\n",
"    }\n",
"    return at;\n",
"}\n",
"\n",
"/* Where A and B of one of a matrix' terms begin, in floats. */\n",
"typedef struct dml__gpu_factors {\n",
"    WIDE a, b;\n",
"} dml__gpu_factors;\n",
"\n",
"HELPER dml__gpu_factors dml__gpu_factors_of(int matrix, int term, const dml__kernel_arguments arguments)\n",
"{\n",
"    WIDE a_step = (WIDE)INT(0) * INT(2), b_step = (WIDE)INT(2) * INT(1);\n",
"    dml__gpu_factors of;\n",
"    of.a = 0, of.b = 0;\n",
"    for (int d = 3; d >= 0; d--) {\n",
"        const int size = INT(8 + d), has = INT(12) >> 3 * d;\n",
"        int at = 0;\n",
"        if (size == 0) continue;\n",
"        if (has & 4) {\n",
"            at = matrix % size;\n",
"            matrix /= size;\n",
"        } else {\n",
"            at = term % size;\n",
"            term /= size;\n",
"        }\n",
"        if (has & 1) {\n",
"            of.a += at * a_step;\n",
"            a_step *= size;\n",
"        }\n",
"        if (has & 2) {\n",
"            of.b += at * b_step;\n",
"            b_step *= size;\n",
"        }\n",
"    }\n",
"    return of;\n",
"}\n",
"\n",
"/* A long sum's parts may be those of different groups, each with a C of its own, one after the other: which\n",
"   of these a group's is, its first column (or row), and its ks [from, to). A whole number of pieces each, so\n",
"   that it is the same sum in every kernel. */\n",
"#define SHARE_KS 64\n",
"typedef struct dml__gpu_share {\n",
"    int number, column, from, to;\n",
"} dml__gpu_share;\n",
"\n",
"HELPER dml__gpu_share dml__gpu_share_at(int tile, int tile_columns, int columns, int depth, int shares)\n",
"{\n",
"    const int tiles = (columns + MOST_TILE - 1) / MOST_TILE * (MOST_TILE / tile_columns);\n",
"    const int ks = ((depth - 1) / shares / SHARE_KS + 1) * SHARE_KS;\n",
"    dml__gpu_share s;\n",
"    s.number = tile / tiles;\n",
"    s.column = tile % tiles * tile_columns;\n",
"    s.from = s.number < shares && depth / ks >= s.number \? s.number * ks : depth;\n",
"    s.to = depth - s.from > ks \? s.from + ks : depth;\n",
"    return s;\n",
"}\n",
"\n",
"/* C = alpha op(A) op(B) + beta C, row-major, of one matrix or of all in up to four axes that they lie along,\n",
"   outermost first, each operand's one after the other. An axis that C hasn't is summed over, one that A or B\n",
"   hasn't repeats it. Buffers a, b, c, bias (of columns, or NULL), which is added; ints m, n, k, trans_a,\n",
"   trans_b, lda, ldb, ldc, 8 .. 11: the axes' sizes (0: no more), 12: for each three bits, whether A, B and C\n",
"   have it, 13: of one matrix, in how many shares of k (0 is 1), each with a C of its own; floats alpha, beta,\n",
"   1 with the relu; size{n, m}, of several matrices of C size{n, matrices * (m rounded up to TILE)}, in tiles\n",
"   of TILE at most; of several shares size{n, shares * (m rounded up to MOST_TILE)}. */\n",
"HELPER void dml__gemm_tile(TILE_PARAMETERS, GLOBAL const float *first_a, GLOBAL const float *first_b,\n",
"                           GLOBAL float *c, GLOBAL const float *bias, const dml__kernel_arguments arguments)\n",
"{\n",
"    const int m = INT(0), n = INT(1);\n",
"    const int trans_a = INT(3), trans_b = INT(4);\n",
"    const WIDE ldc = INT(7);\n",
"    const float alpha = REAL(0), beta = REAL(1);\n",
"    const int shares = INT(13) > 1 \? INT(13) : 1;\n",
"    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 \? 0 : GROUP_Y, tile_rows, arguments);\n",
"    dml__gpu_share share = { 0, at.row, 0, INT(2) };\n",
"    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, tile_rows, m, INT(2), shares);\n",
"    const int row0 = share.column, column0 = GROUP_X * tile_columns, from = share.from, depth = share.to;\n",
"    const int is_one = at.matrix < at.matrices && share.number < shares && row0 < m;\n",
"    /* Of what the item fills: its first k and how many rows are left from its first on, then what it has to\n",
"       step in memory, in rows and in ks from one element to its next, and in memory from one piece to the\n",
"       next. */\n",
"    const int a_k = trans_a \? ACROSS_K_K(0, tile_rows) : ALONG_K_K;\n",
"    const int a_left = m - row0 - (trans_a \? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(0));\n",
"    const int b_k = trans_b \? ALONG_K_K : ACROSS_K_K(0, tile_columns);\n",
"    const int b_left = n - column0 - (trans_b \? ALONG_K_ROW(0) : ACROSS_K_ROW(tile_columns));\n",
"    const int a_rows = trans_a \? 0 : ALONG_K_ROW(1) - ALONG_K_ROW(0);\n",
"    const int a_ks = trans_a \? ACROSS_K_K(1, tile_rows) - ACROSS_K_K(0, tile_rows) : 0;\n",
"    const int b_rows = trans_b \? ALONG_K_ROW(1) - ALONG_K_ROW(0) : 0;\n",
"    const int b_ks = trans_b \? 0 : ACROSS_K_K(1, tile_columns) - ACROSS_K_K(0, tile_columns);\n",
"    const WIDE a_step = (WIDE)(a_rows + a_ks) * INT(5), a_piece = (WIDE)TILE_K * (trans_a \? INT(5) : 1);\n",
"    const WIDE b_step = (WIDE)(b_rows + b_ks) * INT(6), b_piece = (WIDE)TILE_K * (trans_b \? 1 : INT(6));\n",
"    TILES_BEGIN();\n",
"    TILES_NEXT();\n",
"    for (int term = 0; term < at.terms && is_one; term++) {\n",
"        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);\n",
"        GLOBAL const float *a =\n",
"            first_a + of.a +\n",
"            (trans_a \? (WIDE)(from + a_k) * INT(5) + (m - a_left) : (WIDE)(m - a_left) * INT(5) + from + a_k);\n",
"        GLOBAL const float *b =\n",
"            first_b + of.b +\n",
"            (trans_b \? (WIDE)(n - b_left) * INT(6) + from + b_k : (WIDE)(from + b_k) * INT(6) + (n - b_left));\n",
"        for (int k0 = from; k0 < depth + TILE_K; k0 += TILE_K) {\n",
"            UNROLL for (int j = 0; j < TAKES_ROWS; j++) a_next[j] =\n",
"                j * a_rows < a_left && k0 + a_k + j * a_ks < depth \? a[j * a_step] : 0.0f;\n",
"            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] =\n",
"                j * b_rows < b_left && k0 + b_k + j * b_ks < depth \? b[j * b_step] : 0.0f;\n",
"            a += a_piece, b += b_piece;\n",
"            if (k0 > from) TILES_MULTIPLY();\n",
"            TILES_FILL_A(trans_a);\n",
"            TILES_FILL_B(!trans_b);\n",
"        }\n",
"    }\n",
"    UNROLL for (int i = 0; i < SPAN_ROWS; i++)\n",
"    {\n",
"        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)\n",
"        {\n",
"            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);\n",
"            if (is_one && row < m && column < n) {\n",
"                GLOBAL float *to = c + ((WIDE)(at.matrix + share.number) * m + row) * ldc + column;\n",
"                const float value = bias \? alpha * sum[i][j] + bias[column] : alpha * sum[i][j];\n",
"                *to = dml__with_relu(dml__with_beta(value, beta, to), REAL(2) != 0.0f);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"TILE_SHAPES(gemm, dml__gemm_tile)\n",
"\n",
"#endif\n",
"#line 11 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/conv2d.cl\"\n",
"/* conv2d.cl: convolution as products of matrices that are never stored (implicit GEMM).\n",
"\n",
"   All three kernels take the ints batch, height, width, channels, filters, kernel_h, kernel_w, stride_h,\n",
"   stride_w, pad_h, pad_w, out_h, out_w, dilation_h, dilation_w, groups (the last three: 0 is 1), and the\n",
"   layouts of src/kernels/conv2d.h: x (N, H, W, C), w (F, KH, KW, C / groups), y (N, OH, OW, F). With groups a\n",
"   tile lies in one of them: where a size is said to be `padded`, it is groups * (the group's part, rounded up\n",
"   to TILE). */\n",
"#ifndef DML_GPU_CONV2D_CL\n",
"#define DML_GPU_CONV2D_CL\n",
"\n",
"typedef struct dml__gpu_shape {\n",
"    int batch, height, width, channels, filters;\n",
"    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;\n",
"    int dilation_h, dilation_w;\n",
"    int group_channels, group_filters; /* of one group */\n",
"} dml__gpu_shape;\n",
"\n",
"HELPER dml__gpu_shape dml__gpu_shape_of(const dml__kernel_arguments arguments)\n",
"{\n",
"    dml__gpu_shape s;\n",
"    s.batch = INT(0), s.height = INT(1), s.width = INT(2), s.channels = INT(3), s.filters = INT(4);\n",
"    s.kernel_h = INT(5), s.kernel_w = INT(6), s.stride_h = INT(7), s.stride_w = INT(8);\n",
"    s.pad_h = INT(9), s.pad_w = INT(10), s.out_h = INT(11), s.out_w = INT(12);\n",
"    s.dilation_h = INT(13) \? INT(13) : 1, s.dilation_w = INT(14) \? INT(14) : 1;\n",
"    s.group_channels = s.channels / (INT(15) \? INT(15) : 1);\n",
"    s.group_filters = s.filters / (INT(15) \? INT(15) : 1);\n",
"    return s;\n",
"}\n",
"\n",
"/* Where tile number `tile`, of that size, begins: which group of channels, and where in it. */\n",
"typedef struct dml__gpu_part {\n",
"    int group, first;\n",
"} dml__gpu_part;\n",
"\n",
"HELPER dml__gpu_part dml__gpu_part_at(int tile, int size, int of_group)\n",
"{\n",
"    const int tiles = size > TILE \? tile + 1 : (of_group + TILE - 1) / TILE * (TILE / size);\n",
"    dml__gpu_part p;\n",
"    p.group = tile / tiles;\n",
"    p.first = tile % tiles * size;\n",
"    return p;\n",
"}\n",
"\n",
"/* A place in a batch of images; the image is -1 where there is none. */\n",
"typedef struct dml__gpu_place {\n",
"    int image, h, w;\n",
"} dml__gpu_place;\n",
"\n",
"/* Images of height x width, by whose sizes the number of a pixel in their batch is divided. */\n",
"typedef struct dml__gpu_images {\n",
"    dml__gpu_divisor height, width;\n",
"} dml__gpu_images;\n",
"\n",
"HELPER dml__gpu_images dml__gpu_images_of(int height, int width)\n",
"{\n",
"    dml__gpu_images images;\n",
"    images.height = dml__gpu_divisor_of(height);\n",
"    images.width = dml__gpu_divisor_of(width);\n",
"    return images;\n",
"}\n",
"\n",
"/* Pixel number `pixel` of `pixels` of them, scaled by a stride and moved by a pad. */\n",
"HELPER dml__gpu_place dml__gpu_pixel(int pixel, int pixels, const dml__gpu_images images, int stride_h,\n",
"                                     int stride_w, int move_h, int move_w)\n",
"{\n",
"    const int row = (int)dml__gpu_divide((unsigned)pixel, images.width);\n",
"    const int image = (int)dml__gpu_divide((unsigned)row, images.height);\n",
"    dml__gpu_place p;\n",
"    p.image = pixel < pixels \? image : -1;\n",
"    p.h = (row - image * (int)images.height.number) * stride_h + move_h;\n",
"    p.w = (pixel - row * (int)images.width.number) * stride_w + move_w;\n",
"    return p;\n",
"}\n",
"\n",
"/* Far outside of every image, as its sum and difference with twice as much is. */\n",
"#define NOWHERE (1 << 28)\n",
"\n",
"/* A weight's place in a window: number `k` of (KH, KW, last); `last` is channels or filters. h and w are\n",
"   dilated; h is twice NOWHERE behind the last. */\n",
"typedef struct dml__gpu_tap {\n",
"    int h, w, last;\n",
"} dml__gpu_tap;\n",
"\n",
"/* What taps are found by, of which there are `depth`. */\n",
"typedef struct dml__gpu_taps {\n",
"    dml__gpu_divisor last, kernel_w;\n",
"    int depth, dilation_h, dilation_w;\n",
"} dml__gpu_taps;\n",
"\n",
"HELPER dml__gpu_taps dml__gpu_taps_of(const dml__gpu_shape s, int last)\n",
"{\n",
"    dml__gpu_taps t;\n",
"    t.last = dml__gpu_divisor_of(last);\n",
"    t.kernel_w = dml__gpu_divisor_of(s.kernel_w);\n",
"    t.depth = s.kernel_h * s.kernel_w * last;\n",
"    t.dilation_h = s.dilation_h, t.dilation_w = s.dilation_w;\n",
"    return t;\n",
"}\n",
"\n",
"HELPER dml__gpu_tap dml__gpu_tap_at(int k, const dml__gpu_taps taps)\n",
"{\n",
"    const int number = (int)dml__gpu_divide((unsigned)k, taps.last);\n",
"    const int h = (int)dml__gpu_divide((unsigned)number, taps.kernel_w);\n",
"    dml__gpu_tap t;\n",
"    t.last = k - number * (int)taps.last.number;\n",
"    t.h = k < taps.depth \? h * taps.dilation_h : 2 * NOWHERE;\n",
"    t.w = (number - h * (int)taps.kernel_w.number) * taps.dilation_w;\n",
"    return t;\n",
"}\n",
"\n",
"/* Where a place and a tap meet is the sum or the difference of their h and w. `at`: the floats before the\n",
"   place, or before its image. */\n",
"typedef struct dml__gpu_corner {\n",
"    WIDE at;\n",
"    int h, w;\n",
"} dml__gpu_corner;\n",
"\n",
"/* y = conv(x, w) + bias + beta y, and its relu. Buffers x, w, bias (may be NULL), y; floats beta, 1 with the\n",
"   relu; size{filters (padded), batch * out_h * out_w}. */\n",
"HELPER void dml__conv2d_forward_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weights,\n",
"                                     GLOBAL const float *bias, GLOBAL float *y,\n",
"                                     const dml__kernel_arguments arguments)\n",
"{\n",
"    const float beta = REAL(0);\n",
"    const int relu = REAL(1) != 0.0f;\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const int pixels = s.batch * s.out_h * s.out_w;\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_filters);\n",
"    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and filter */\n",
"    const int filter0 = part.group * s.group_filters;           /* of the group */\n",
"    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);\n",
"    const int depth = taps.depth, left = s.group_filters - column0 - ALONG_K_ROW(0);\n",
"    GLOBAL const float *own = weights + (WIDE)(filter0 + s.group_filters - left) * depth;\n",
"    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);\n",
"    dml__gpu_corner corner[MOST_SPAN];\n",
"    TILES_BEGIN();\n",
"    TILES_NEXT();\n",
"    UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"    {\n",
"        const dml__gpu_place p = dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, outputs, s.stride_h,\n",
"                                                s.stride_w, -s.pad_h, -s.pad_w);\n",
"        corner[j].h = p.image < 0 \? NOWHERE : p.h, corner[j].w = p.w;\n",
"        corner[j].at = (((WIDE)p.image * s.height + p.h) * s.width + p.w) * s.channels;\n",
"    }\n",
"    x += part.group * s.group_channels;\n",
"    for (int k0 = 0; k0 < depth + TILE_K; k0 += TILE_K) {\n",
"        const int k = k0 + ALONG_K_K;\n",
"        const dml__gpu_tap tap = dml__gpu_tap_at(k, taps);\n",
"        const WIDE from = ((WIDE)tap.h * s.width + tap.w) * s.channels + tap.last;\n",
"        UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"        {\n",
"            const int h = corner[j].h + tap.h, w = corner[j].w + tap.w;\n",
"            const int inside = (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;\n",
"            a_next[j] = inside \? x[corner[j].at + from] : 0.0f;\n",
"        }\n",
"        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)\n",
"        {\n",
"            const int filter = ALONG_K_ROW(j) - ALONG_K_ROW(0);\n",
"            b_next[j] = k < depth && filter < left \? own[(WIDE)filter * depth + k] : 0.0f;\n",
"        }\n",
"        if (k0) TILES_MULTIPLY();\n",
"        TILES_FILL_A(0);\n",
"        TILES_FILL_B(0);\n",
"    }\n",
"    UNROLL for (int i = 0; i < SPAN_ROWS; i++)\n",
"    {\n",
"        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)\n",
"        {\n",
"            const int pixel = row0 + OWN_ROW(i), filter = column0 + OWN_COLUMN(j);\n",
"            if (pixel < pixels && filter < s.group_filters) {\n",
"                GLOBAL float *to = y + (WIDE)pixel * s.filters + filter0 + filter;\n",
"                const float value = bias \? sum[i][j] + bias[filter0 + filter] : sum[i][j];\n",
"                *to = dml__with_relu(dml__with_beta(value, beta, to), relu);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"TILE_SHAPES(conv2d_forward, dml__conv2d_forward_tile)\n",
"\n",
"/* dx = dconv/dx^T dy + beta dx. Buffers dy, w, dx; floats beta; size{channels (padded), batch *\n",
"   height * width}. */\n",
"HELPER void dml__conv2d_backward_input_tile(TILE_PARAMETERS, GLOBAL const float *dy,\n",
"                                            GLOBAL const float *weights, GLOBAL float *dx,\n",
"                                            GLOBAL float *unused, const dml__kernel_arguments arguments)\n",
"{\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const int pixels = s.batch * s.height * s.width;\n",
"    const int tap_count = s.kernel_h * s.kernel_w;\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_channels);\n",
"    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and channel */\n",
"    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_filters);\n",
"    const dml__gpu_divisor stride_h = dml__gpu_divisor_of(s.stride_h);\n",
"    const dml__gpu_divisor stride_w = dml__gpu_divisor_of(s.stride_w);\n",
"    const unsigned end_h = (unsigned)(s.out_h * s.stride_h), end_w = (unsigned)(s.out_w * s.stride_w);\n",
"    const int channel = column0 + ACROSS_K_ROW(tile_columns), filter0 = part.group * s.group_filters;\n",
"    const dml__gpu_images inputs = dml__gpu_images_of(s.height, s.width);\n",
"    const int strides = s.stride_h > 1 || s.stride_w > 1;\n",
"    dml__gpu_corner place[MOST_SPAN];\n",
"    TILES_BEGIN();\n",
"    TILES_NEXT();\n",
"    UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"    {\n",
"        const dml__gpu_place p =\n",
"            dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, inputs, 1, 1, s.pad_h, s.pad_w);\n",
"        place[j].h = p.image < 0 \? NOWHERE : p.h, place[j].w = p.w;\n",
"        place[j].at = (WIDE)p.image * s.out_h * s.out_w;\n",
"        if (!strides) place[j].at += (WIDE)p.h * s.out_w + p.w;\n",
"        place[j].at *= s.filters;\n",
"    }\n",
"    dy += filter0;\n",
"    for (int k0 = 0; k0 < taps.depth + TILE_K; k0 += TILE_K) {\n",
"        const dml__gpu_tap tap = dml__gpu_tap_at(k0 + ALONG_K_K, taps);\n",
"        if (strides) {\n",
"            UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"            {\n",
"                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);\n",
"                const unsigned out_h = dml__gpu_divide(h, stride_h), out_w = dml__gpu_divide(w, stride_w);\n",
"                const int meets =\n",
"                    h < end_h && w < end_w && out_h * stride_h.number == h && out_w * stride_w.number == w;\n",
"                const WIDE from = ((WIDE)out_h * s.out_w + out_w) * s.filters + tap.last;\n",
"                a_next[j] = meets \? dy[place[j].at + from] : 0.0f;\n",
"            }\n",
"        } else {\n",
"            const WIDE back = ((WIDE)tap.h * s.out_w + tap.w) * s.filters - tap.last;\n",
"            UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"            {\n",
"                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);\n",
"                a_next[j] = h < end_h && w < end_w \? dy[place[j].at - back] : 0.0f;\n",
"            }\n",
"        }\n",
"        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)\n",
"        {\n",
"            const int k = k0 + ACROSS_K_K(j, tile_columns);\n",
"            const int number = (int)dml__gpu_divide((unsigned)k, taps.last);\n",
"            const WIDE filter = filter0 + k - number * s.group_filters;\n",
"            b_next[j] = k < taps.depth && channel < s.group_channels\n",
"                            \? weights[(filter * tap_count + number) * s.group_channels + channel]\n",
"                            : 0.0f;\n",
"        }\n",
"        if (k0) TILES_MULTIPLY();\n",
"        TILES_FILL_A(0);\n",
"        TILES_FILL_B(1);\n",
"    }\n",
"    UNROLL for (int i = 0; i < SPAN_ROWS; i++)\n",
"    {\n",
"        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)\n",
"        {\n",
"            const int pixel = row0 + OWN_ROW(i), channel = column0 + OWN_COLUMN(j);\n",
"            if (pixel < pixels && channel < s.group_channels) {\n",
"                GLOBAL float *to = dx + (WIDE)pixel * s.channels + part.group * s.group_channels + channel;\n",
"                *to = dml__with_beta(sum[i][j], beta, to);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"TILE_SHAPES(conv2d_backward_input, dml__conv2d_backward_input_tile)\n",
"\n",
"/* dw = dconv/dw^T dy + beta dw, and the bias' gradient, the sums of dy, which are one more column of dw,\n",
"   whose x is 1. Buffers x, dy, dw (one for each share), db (likewise) or NULL; floats beta, shares (0 is 1),\n",
"   beta of db; size{kernel_h * kernel_w * channels / groups, and one more for db, of several shares rounded up\n",
"   to MOST_TILE and times them, filters (padded)}. */\n",
"HELPER void dml__conv2d_backward_weights_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,\n",
"                                              GLOBAL float *dw, GLOBAL float *db,\n",
"                                              const dml__kernel_arguments arguments)\n",
"{\n",
"    const int shares = REAL(1) > 1.0f \? (int)REAL(1) : 1;\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);\n",
"    const int depth = s.batch * s.out_h * s.out_w, columns = taps.depth, all = columns + (db \? 1 : 0);\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, tile_rows, s.group_filters);\n",
"    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, tile_columns, all, depth, shares);\n",
"    const int row0 = part.first, column0 = share.column;             /* the first filter and weight */\n",
"    const int filter0 = part.group * s.group_filters;                /* of the group */\n",
"    const int is_one = filter0 < s.filters && share.number < shares; /* groups may be more than there is */\n",
"    const int end = is_one && row0 < s.group_filters && column0 < all \? share.to : 0;\n",
"    const int filter = row0 + ACROSS_K_ROW(tile_rows), weight = column0 + ACROSS_K_ROW(tile_columns);\n",
"    const dml__gpu_tap tap = dml__gpu_tap_at(weight, taps);\n",
"    const float outside = weight == columns && db \? 1.0f : 0.0f; /* of the images */\n",
"    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);\n",
"    TILES_BEGIN();\n",
"    TILES_NEXT();\n",
"    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] = 0.0f;\n",
"    x += part.group * s.group_channels + tap.last;\n",
"    dy += filter0 + filter;\n",
"    for (int k0 = share.from; k0 < end + TILE_K; k0 += TILE_K) {\n",
"        UNROLL for (int j = 0; j < TAKES_ROWS; j++)\n",
"        {\n",
"            const int pixel = k0 + ACROSS_K_K(j, tile_rows);\n",
"            a_next[j] = pixel < end && filter < s.group_filters \? dy[(WIDE)pixel * s.filters] : 0.0f;\n",
"        }\n",
"        if (weight < all) { /* most items have nothing to read where weights are few */\n",
"            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)\n",
"            {\n",
"                const dml__gpu_place p = dml__gpu_pixel(k0 + ACROSS_K_K(j, tile_columns), end, outputs,\n",
"                                                        s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);\n",
"                const int h = p.h + tap.h, w = p.w + tap.w;\n",
"                const int inside =\n",
"                    p.image >= 0 && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;\n",
"                b_next[j] = inside \? x[((WIDE)(p.image * s.height + h) * s.width + w) * s.channels] : outside;\n",
"            }\n",
"        }\n",
"        if (k0 > share.from) TILES_MULTIPLY();\n",
"        TILES_FILL_A(1);\n",
"        TILES_FILL_B(1);\n",
"    }\n",
"    UNROLL for (int i = 0; i < SPAN_ROWS; i++)\n",
"    {\n",
"        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)\n",
"        {\n",
"            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);\n",
"            const WIDE of_filter = (WIDE)share.number * s.filters + filter0 + row;\n",
"            if (is_one && row < s.group_filters && column < all) {\n",
"                GLOBAL float *to = column < columns \? dw + of_filter * columns + column : db + of_filter;\n",
"                *to = dml__with_beta(sum[i][j], column < columns \? REAL(0) : REAL(2), to);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"TILE_SHAPES(conv2d_backward_weights, dml__conv2d_backward_weights_tile)\n",
"\n",
"#endif\n",
"#line 12 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/solo.cl\"\n",
"/* solo.cl: the kernels of tiles.cl and conv2d.cl where an item is a whole processor core: a group of one item\n",
"   computes the same TILE x TILE piece with vectors, and nobody waits at a barrier.\n",
"\n",
"   It fills SOLO_K products' pieces of A and B, and adds them up in blocks of SOLO_ROWS x 2 vectors that stay\n",
"   in registers. A lies as it is read at least cost, by rows or by k; of each element all lanes take a copy. B\n",
"   lies by k, its columns in sequence. As in tiles.cl an output's products are added in the order of k. */\n",
"#ifndef DML_GPU_SOLO_CL\n",
"#define DML_GPU_SOLO_CL\n",
"#ifdef SOLO_KERNEL\n",
"\n",
"#define SOLO_K 64\n",
"#define SOLO_ROWS 8\n",
"\n",
"/* The pieces, and how many rows and columns of them count. */\n",
"typedef struct dml__solo {\n",
"    float *a, *b, *sum; /* b[k][TILE], sum[TILE][TILE] */\n",
"    int a_row, a_k;     /* the steps of rows and ks in a: SOLO_K and 1, or 1 and TILE */\n",
"    int rows, columns;\n",
"} dml__solo;\n",
"\n",
"/* Declares a group's pieces; `by_k`: A lies by k. */\n",
"#define SOLO_BEGIN(by_k, row_count, column_count)                                                            \\\n",
"    SOLO_LOCAL float a_piece[TILE * SOLO_K + VECTOR_LANES];                                                  \\\n",
"    SOLO_LOCAL float b_piece[SOLO_K * TILE + VECTOR_LANES];                                                  \\\n",
"    SOLO_LOCAL float sum_piece[TILE * TILE];                                                                 \\\n",
"    dml__solo piece;                                                                                         \\\n",
"    piece.a = a_piece, piece.b = b_piece, piece.sum = sum_piece;                                             \\\n",
"    piece.a_row = (by_k) \? 1 : SOLO_K, piece.a_k = (by_k) \? TILE : 1;                                        \\\n",
"    piece.rows = (row_count), piece.columns = (column_count);                                                \\\n",
"    if (piece.rows > TILE) piece.rows = TILE;                                                                \\\n",
"    if (piece.columns > TILE) piece.columns = TILE;                                                          \\\n",
"    dml__solo_clear(piece)\n",
"\n",
"/* Both may write up to a vector past their n floats: what comes next there is filled later, or doesn't count.\n",
" */\n",
"HELPER void dml__solo_copy(float *to, GLOBAL const float *from, int n, GLOBAL const float *end)\n",
"{\n",
"    int i = 0;\n",
"    for (; i < n && end - (from + i) >= VECTOR_LANES; i += VECTOR_LANES)\n",
"        VECTOR_STORE(to + i, VECTOR_READ(from + i));\n",
"    for (; i < n; i++) to[i] = from[i]; /* within a vector of the end of its array */\n",
"}\n",
"\n",
"HELPER void dml__solo_zero(float *to, int n)\n",
"{\n",
"    for (int i = 0; i < n; i += VECTOR_LANES) VECTOR_STORE(to + i, VECTOR_OF(0.0f));\n",
"}\n",
"\n",
"/* Clears the sums, and what is read of A and B beyond their rows and columns. */\n",
"HELPER void dml__solo_clear(const dml__solo s)\n",
"{\n",
"    for (int row = 0; row < s.rows; row++) dml__solo_zero(s.sum + row * TILE, s.columns);\n",
"    if (s.columns % (2 * VECTOR_LANES))\n",
"        for (int k = 0; k < SOLO_K; k++) dml__solo_zero(s.b + k * TILE, s.columns);\n",
"    if (s.rows % SOLO_ROWS) {\n",
"        dml__solo_zero(s.a, TILE * SOLO_K);\n",
"        dml__solo_zero(s.sum + s.rows * TILE, (TILE - s.rows) * TILE);\n",
"    }\n",
"}\n",
"\n",
"/* B of rows that lie by k: b[k][column] = from[column * step + k]. */\n",
"HELPER void dml__solo_turn(const dml__solo s, GLOBAL const float *from, WIDE step, int depth)\n",
"{\n",
"    for (int column = 0; column < s.columns; column++)\n",
"        for (int k = 0; k < depth; k++) s.b[k * TILE + column] = from[column * step + k];\n",
"}\n",
"\n",
"/* Adds `depth` products to SOLO_ROWS rows and VECTORS vectors of columns. */\n",
"#define SOLO_BLOCK(name, VECTORS)                                                                            \\\n",
"    HELPER void name(const dml__solo s, int row, int column, int depth)                                      \\\n",
"    {                                                                                                        \\\n",
"        const float *a = s.a + row * s.a_row;                                                                \\\n",
"        const float *b = s.b + column;                                                                       \\\n",
"        float *sum = s.sum + row * TILE + column;                                                            \\\n",
"        VECTOR total[SOLO_ROWS][VECTORS];                                                                    \\\n",
"        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =    \\\n",
"            VECTOR_LOAD(sum + i * TILE + j * VECTOR_LANES);                                                  \\\n",
"        for (int k = 0; k < depth; k++) {                                                                    \\\n",
"            VECTOR own[VECTORS];                                                                             \\\n",
"            UNROLL for (int j = 0; j < VECTORS; j++) own[j] = VECTOR_LOAD(b + k * TILE + j * VECTOR_LANES);  \\\n",
"            UNROLL for (int i = 0; i < SOLO_ROWS; i++)                                                       \\\n",
"            {                                                                                                \\\n",
"                const float factor = a[i * s.a_row + k * s.a_k];                                             \\\n",
"                UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =                                       \\\n",
"                    VECTOR_ADD_PRODUCT(total[i][j], factor, own[j]);                                         \\\n",
"            }                                                                                                \\\n",
"        }                                                                                                    \\\n",
"        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)                  \\\n",
"            VECTOR_STORE(sum + i * TILE + j * VECTOR_LANES, total[i][j]);                                    \\\n",
"    }\n",
"SOLO_BLOCK(dml__solo_block, 2)\n",
"SOLO_BLOCK(dml__solo_last_block, 1)\n",
"\n",
"/* Adds the `depth` products of the filled pieces to the sums. */\n",
"HELPER void dml__solo_multiply(const dml__solo s, int depth)\n",
"{\n",
"    for (int column = 0; column < s.columns; column += 2 * VECTOR_LANES)\n",
"        for (int row = 0; row < s.rows; row += SOLO_ROWS) {\n",
"            if (column + VECTOR_LANES < s.columns)\n",
"                dml__solo_block(s, row, column, depth);\n",
"            else\n",
"                dml__solo_last_block(s, row, column, depth);\n",
"        }\n",
"}\n",
"\n",
"/* c = alpha sums + bias + beta c, and its relu. */\n",
"HELPER void dml__solo_write(const dml__solo s, GLOBAL float *c, WIDE step, float alpha, float beta,\n",
"                            GLOBAL const float *bias, int relu)\n",
"{\n",
"    for (int row = 0; row < s.rows; row++) {\n",
"        GLOBAL float *to = c + row * step;\n",
"        const float *sum = s.sum + row * TILE;\n",
"        if (bias)\n",
"            for (int j = 0; j < s.columns; j++)\n",
"                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j] + bias[j], beta, to + j), relu);\n",
"        else\n",
"            for (int j = 0; j < s.columns; j++)\n",
"                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j], beta, to + j), relu);\n",
"    }\n",
"}\n",
"\n",
"/* What the tiles of gemm compute, of the same arguments. */\n",
"SOLO_KERNEL(gemm_solo)\n",
"{\n",
"    GLOBAL const float *first_a = BUFFER(0, const float);\n",
"    GLOBAL const float *first_b = BUFFER(1, const float);\n",
"    GLOBAL const float *bias = BUFFER(3, const float);\n",
"    const int m = INT(0), n = INT(1), depth = INT(2);\n",
"    const int trans_a = INT(3), trans_b = INT(4);\n",
"    const WIDE lda = INT(5), ldb = INT(6), ldc = INT(7);\n",
"    const int shares = INT(13) > 1 \? INT(13) : 1;\n",
"    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 \? 0 : GROUP_Y, TILE, arguments);\n",
"    dml__gpu_share share = { 0, at.row, 0, depth };\n",
"    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, TILE, m, depth, shares);\n",
"    const int row0 = share.column, column0 = GROUP_X * TILE;\n",
"    if (at.matrix >= at.matrices || share.number >= shares || row0 >= m) return;\n",
"    SOLO_BEGIN(trans_a, m - row0, n - column0);\n",
"    for (int term = 0; term < at.terms; term++) {\n",
"        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);\n",
"        GLOBAL const float *a = first_a + of.a;\n",
"        GLOBAL const float *b = first_b + of.b;\n",
"        GLOBAL const float *a_end = a + (trans_a \? (depth - 1) * lda + m : (m - 1) * lda + depth);\n",
"        GLOBAL const float *b_end = b + (trans_b \? (n - 1) * ldb + depth : (depth - 1) * ldb + n);\n",
"        for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {\n",
"            const int ks = share.to - k0 < SOLO_K \? share.to - k0 : SOLO_K;\n",
"            if (trans_a)\n",
"                for (int k = 0; k < ks; k++)\n",
"                    dml__solo_copy(piece.a + k * TILE, a + (k0 + k) * lda + row0, piece.rows, a_end);\n",
"            else\n",
"                for (int row = 0; row < piece.rows; row++)\n",
"                    dml__solo_copy(piece.a + row * SOLO_K, a + (row0 + row) * lda + k0, ks, a_end);\n",
"            if (trans_b)\n",
"                dml__solo_turn(piece, b + column0 * ldb + k0, ldb, ks);\n",
"            else\n",
"                for (int k = 0; k < ks; k++)\n",
"                    dml__solo_copy(piece.b + k * TILE, b + (k0 + k) * ldb + column0, piece.columns, b_end);\n",
"            dml__solo_multiply(piece, ks);\n",
"        }\n",
"    }\n",
"    dml__solo_write(piece, BUFFER(2, float) + ((WIDE)(at.matrix + share.number) * m + row0) * ldc + column0,\n",
"                    ldc, REAL(0), REAL(1), bias \? bias + column0 : 0, REAL(2) != 0.0f);\n",
"}\n",
"\n",
"/* Where in a patch (KH, KW, last) a piece begins: `from` floats into the run of a tap, or of a row of them.\n",
" */\n",
"typedef struct dml__solo_start {\n",
"    int tap_h, tap_w, from;\n",
"} dml__solo_start;\n",
"\n",
"HELPER dml__solo_start dml__solo_start_at(int k, int run, int taps_w)\n",
"{\n",
"    dml__solo_start start;\n",
"    start.from = k % run;\n",
"    start.tap_h = k / run / taps_w;\n",
"    start.tap_w = k / run % taps_w;\n",
"    return start;\n",
"}\n",
"\n",
"/* Taps side by side are channels side by side, where all channels are the group's: then a row of them is one\n",
"   run. */\n",
"HELPER int dml__solo_joined(const dml__gpu_shape s)\n",
"{\n",
"    return s.dilation_w == 1 && s.channels == s.group_channels;\n",
"}\n",
"\n",
"HELPER dml__solo_start dml__solo_patch_start(const dml__gpu_shape s, int k)\n",
"{\n",
"    return dml__solo_joined(s) \? dml__solo_start_at(k, s.kernel_w * s.channels, 1)\n",
"                               : dml__solo_start_at(k, s.group_channels, s.kernel_w);\n",
"}\n",
"\n",
"/* n floats of the patch of x whose corner is `corner`. */\n",
"HELPER void dml__solo_patch(float *to, GLOBAL const float *x, GLOBAL const float *end, const dml__gpu_shape s,\n",
"                            int group, const dml__gpu_place corner, dml__solo_start start, int n)\n",
"{\n",
"    const int joined = dml__solo_joined(s), run = joined \? s.kernel_w * s.channels : s.group_channels;\n",
"    const int taps_w = joined \? 1 : s.kernel_w;\n",
"    const WIDE line = (WIDE)s.width * s.channels;\n",
"    GLOBAL const float *image = x + corner.image * s.height * line + group * s.group_channels;\n",
"    /* Most windows lie in the image, and then nothing is to be looked at: a row of taps after the other. */\n",
"    if (joined && corner.h >= 0 && corner.h + (s.kernel_h - 1) * s.dilation_h < s.height && corner.w >= 0 &&\n",
"        corner.w + s.kernel_w <= s.width) {\n",
"        GLOBAL const float *from =\n",
"            image + (corner.h + start.tap_h * s.dilation_h) * line + corner.w * s.channels + start.from;\n",
"        for (int k = 0; k < n;) {\n",
"            const int count = run - start.from < n - k \? run - start.from : n - k;\n",
"            dml__solo_copy(to + k, from, count, end);\n",
"            k += count;\n",
"            from += s.dilation_h * line - start.from;\n",
"            start.from = 0;\n",
"        }\n",
"        return;\n",
"    }\n",
"    for (int k = 0; k < n; start.from = 0) {\n",
"        const int h = corner.h + start.tap_h * s.dilation_h, w = corner.w + start.tap_w * s.dilation_w;\n",
"        const int count = run - start.from < n - k \? run - start.from : n - k;\n",
"        int low = 0, high = count; /* of these floats, what lies in the image */\n",
"        if (joined) {\n",
"            const int first = w * s.channels + start.from;\n",
"            if (first < 0) low = -first;\n",
"            if (high > line - first) high = (int)line - first;\n",
"        } else if (w < 0 || w >= s.width) {\n",
"            high = 0;\n",
"        }\n",
"        if (h < 0 || h >= s.height || high <= low) {\n",
"            dml__solo_zero(to + k, count);\n",
"        } else {\n",
"            GLOBAL const float *from = image + h * line + w * s.channels + start.from;\n",
"            if (low) dml__solo_zero(to + k, low);\n",
"            dml__solo_copy(to + k + low, from + low, high - low, end);\n",
"            if (high < count) dml__solo_zero(to + k + high, count - high);\n",
"        }\n",
"        k += count;\n",
"        if (++start.tap_w == taps_w) start.tap_w = 0, start.tap_h++;\n",
"    }\n",
"}\n",
"\n",
"/* The place behind `place` in its batch of images of outputs, or of inputs (stride 1, moved by the pad). */\n",
"HELPER dml__gpu_place dml__solo_next(dml__gpu_place place, int height, int width, int stride_h, int stride_w,\n",
"                                     int move_h, int move_w)\n",
"{\n",
"    place.w += stride_w;\n",
"    if (place.w == width * stride_w + move_w) {\n",
"        place.w = move_w;\n",
"        place.h += stride_h;\n",
"        if (place.h == height * stride_h + move_h) place.h = move_h, place.image++;\n",
"    }\n",
"    return place;\n",
"}\n",
"\n",
"/* What the tiles of conv2d_forward compute, of the same arguments. */\n",
"SOLO_KERNEL(conv2d_forward_solo)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    GLOBAL const float *bias = BUFFER(2, const float);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    GLOBAL const float *end = x + (WIDE)s.batch * s.height * s.width * s.channels;\n",
"    const int pixels = s.batch * s.out_h * s.out_w, depth = s.kernel_h * s.kernel_w * s.group_channels;\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_filters);\n",
"    const int row0 = GROUP_Y * TILE, filter0 = part.group * s.group_filters + part.first;\n",
"    const dml__gpu_place first = dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.out_h, s.out_w),\n",
"                                                s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);\n",
"    SOLO_BEGIN(0, pixels - row0, s.group_filters - part.first);\n",
"    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {\n",
"        const int ks = depth - k0 < SOLO_K \? depth - k0 : SOLO_K;\n",
"        const dml__solo_start start = dml__solo_patch_start(s, k0);\n",
"        dml__gpu_place corner = first;\n",
"        for (int row = 0; row < piece.rows; row++) {\n",
"            dml__solo_patch(piece.a + row * SOLO_K, x, end, s, part.group, corner, start, ks);\n",
"            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);\n",
"        }\n",
"        dml__solo_turn(piece, weights + (WIDE)filter0 * depth + k0, depth, ks);\n",
"        dml__solo_multiply(piece, ks);\n",
"    }\n",
"    dml__solo_write(piece, BUFFER(3, float) + (WIDE)row0 * s.filters + filter0, s.filters, 1.0f, REAL(0),\n",
"                    bias \? bias + filter0 : 0, REAL(1) != 0.0f);\n",
"}\n",
"\n",
"/* n floats of what of dy meets the input `place`, (KH, KW, filters of the group). */\n",
"HELPER void dml__solo_outputs(float *to, GLOBAL const float *dy, GLOBAL const float *end,\n",
"                              const dml__gpu_shape s, int group, const dml__gpu_place place,\n",
"                              dml__solo_start start, int n)\n",
"{\n",
"    const WIDE line = (WIDE)s.out_w * s.filters;\n",
"    GLOBAL const float *image = dy + place.image * s.out_h * line + group * s.group_filters;\n",
"    for (int k = 0; k < n; start.from = 0) {\n",
"        const int count = s.group_filters - start.from < n - k \? s.group_filters - start.from : n - k;\n",
"        const int h = place.h - start.tap_h * s.dilation_h, w = place.w - start.tap_w * s.dilation_w;\n",
"        const int out_h = s.stride_h == 1 \? h : h / s.stride_h, out_w = s.stride_w == 1 \? w : w / s.stride_w;\n",
"        if (h < 0 || w < 0 || out_h * s.stride_h != h || out_w * s.stride_w != w || out_h >= s.out_h ||\n",
"            out_w >= s.out_w)\n",
"            dml__solo_zero(to + k, count);\n",
"        else\n",
"            dml__solo_copy(to + k, image + out_h * line + out_w * s.filters + start.from, count, end);\n",
"        k += count;\n",
"        if (++start.tap_w == s.kernel_w) start.tap_w = 0, start.tap_h++;\n",
"    }\n",
"}\n",
"\n",
"/* What the tiles of conv2d_backward_input compute, of the same arguments. */\n",
"SOLO_KERNEL(conv2d_backward_input_solo)\n",
"{\n",
"    GLOBAL const float *dy = BUFFER(0, const float);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const int pixels = s.batch * s.height * s.width;\n",
"    const int taps = s.kernel_h * s.kernel_w, depth = taps * s.group_filters;\n",
"    GLOBAL const float *dy_end = dy + (WIDE)s.batch * s.out_h * s.out_w * s.filters;\n",
"    GLOBAL const float *weights_end = weights + (WIDE)s.filters * taps * s.group_channels;\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_channels);\n",
"    const int row0 = GROUP_Y * TILE;\n",
"    const dml__gpu_place first =\n",
"        dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.height, s.width), 1, 1, s.pad_h, s.pad_w);\n",
"    SOLO_BEGIN(0, pixels - row0, s.group_channels - part.first);\n",
"    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {\n",
"        const int ks = depth - k0 < SOLO_K \? depth - k0 : SOLO_K;\n",
"        const dml__solo_start start = dml__solo_start_at(k0, s.group_filters, s.kernel_w);\n",
"        int tap = k0 / s.group_filters, filter = k0 % s.group_filters;\n",
"        dml__gpu_place place = first;\n",
"        for (int row = 0; row < piece.rows; row++) {\n",
"            dml__solo_outputs(piece.a + row * SOLO_K, dy, dy_end, s, part.group, place, start, ks);\n",
"            place = dml__solo_next(place, s.height, s.width, 1, 1, s.pad_h, s.pad_w);\n",
"        }\n",
"        for (int k = 0; k < ks; k++) {\n",
"            const WIDE row = (WIDE)(part.group * s.group_filters + filter) * taps + tap;\n",
"            dml__solo_copy(piece.b + k * TILE, weights + row * s.group_channels + part.first, piece.columns,\n",
"                           weights_end);\n",
"            if (++filter == s.group_filters) filter = 0, tap++;\n",
"        }\n",
"        dml__solo_multiply(piece, ks);\n",
"    }\n",
"    dml__solo_write(piece,\n",
"                    BUFFER(2, float) + (WIDE)row0 * s.channels + part.group * s.group_channels + part.first,\n",
"                    s.channels, 1.0f, REAL(0), 0, 0);\n",
"}\n",
"\n",
"/* What the tiles of conv2d_backward_weights compute, of the same arguments. */\n",
"SOLO_KERNEL(conv2d_backward_weights_solo)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL float *db = BUFFER(3, float);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const int depth = s.batch * s.out_h * s.out_w, columns = s.kernel_h * s.kernel_w * s.group_channels;\n",
"    GLOBAL const float *x_end = x + (WIDE)s.batch * s.height * s.width * s.channels;\n",
"    GLOBAL const float *dy_end = dy + (WIDE)depth * s.filters;\n",
"    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, TILE, s.group_filters);\n",
"    const int shares = REAL(1) > 1.0f \? (int)REAL(1) : 1;\n",
"    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, TILE, columns + (db \? 1 : 0), depth, shares);\n",
"    const int column0 = share.column, filter0 = part.group * s.group_filters + part.first;\n",
"    const dml__solo_start start = dml__solo_patch_start(s, column0);\n",
"    const WIDE row0 = (WIDE)share.number * s.filters + filter0;\n",
"    if (column0 >= columns + (db \? 1 : 0)) return; /* of the surplus that shares are padded to */\n",
"    dml__gpu_place corner = dml__gpu_pixel(share.from, depth, dml__gpu_images_of(s.out_h, s.out_w),\n",
"                                           s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);\n",
"    SOLO_BEGIN(1, s.group_filters - part.first, columns + (db \? 1 : 0) - column0);\n",
"    const int weights = columns - column0 < TILE \? columns - column0 : TILE; /* of the piece's columns */\n",
"    const int sums = weights < piece.columns;                                /* the last is dy's sums */\n",
"    for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {\n",
"        const int ks = share.to - k0 < SOLO_K \? share.to - k0 : SOLO_K;\n",
"        for (int k = 0; k < ks; k++) {\n",
"            dml__solo_copy(piece.a + k * TILE, dy + (WIDE)(k0 + k) * s.filters + filter0, piece.rows, dy_end);\n",
"            dml__solo_patch(piece.b + k * TILE, x, x_end, s, part.group, corner, start, weights);\n",
"            if (sums) piece.b[k * TILE + weights] = 1.0f;\n",
"            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);\n",
"        }\n",
"        dml__solo_multiply(piece, ks);\n",
"    }\n",
"    for (int row = 0; row < piece.rows && sums; row++)\n",
"        db[row0 + row] = dml__with_beta(piece.sum[row * TILE + weights], REAL(2), db + row0 + row);\n",
"    piece.columns = weights;\n",
"    dml__solo_write(piece, BUFFER(2, float) + row0 * columns + column0, columns, 1.0f, REAL(0), 0, 0);\n",
"}\n",
"\n",
"#endif\n",
"#endif\n",
"#line 13 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/pool2d.cl\"\n",
"/* pool2d.cl: max and average pooling, an item an output (forward) or an input (backward, which gathers over\n",
"   the windows that cover the input, so it needs no atomics and repeats bitwise).\n",
"\n",
"   The ints are those of conv2d.cl, but in the place of filters whether a mean counts padding; the meaning is\n",
"   that of src/kernels/pool2d.h. */\n",
"#ifndef DML_GPU_POOL2D_CL\n",
"#define DML_GPU_POOL2D_CL\n",
"\n",
"/* The part of the axis 0 .. size - 1 that window `out` covers, [from, to). Unsigned, here and below, since a\n",
"   place plus a pad or a stride need not fit an int. */\n",
"typedef struct dml__gpu_range {\n",
"    int from, to;\n",
"} dml__gpu_range;\n",
"\n",
"HELPER dml__gpu_range dml__gpu_window(int out, int size, int window, int stride, int pad)\n",
"{\n",
"    dml__gpu_range r;\n",
"    const unsigned padded = (unsigned)out * (unsigned)stride, to = padded + (unsigned)(window - pad);\n",
"    const int from = (int)(padded - (unsigned)pad); /* -pad .. size: fits, though its parts need not */\n",
"    r.from = from > 0 \? from : 0;\n",
"    r.to = to < (unsigned)size \? (int)to : size;\n",
"    return r;\n",
"}\n",
"\n",
"/* How many of the places of window `out` are in the image, or in it and the pads. */\n",
"HELPER int dml__gpu_places(int out, int size, int window, int stride, int pad, int count_padding)\n",
"{\n",
"    const unsigned padded = (unsigned)out * (unsigned)stride, end = (unsigned)size + (unsigned)pad;\n",
"    const dml__gpu_range r = dml__gpu_window(out, size, window, stride, pad);\n",
"    if (!count_padding) return r.to - r.from;\n",
"    return padded + (unsigned)(window - pad) > end \? (int)(end + (unsigned)pad - padded) : window;\n",
"}\n",
"\n",
"/* What the sum over a window is divided by. */\n",
"HELPER float dml__gpu_window_size(const dml__gpu_shape s, int out_h, int out_w)\n",
"{\n",
"    return (float)dml__gpu_places(out_h, s.height, s.kernel_h, s.stride_h, s.pad_h, s.filters) *\n",
"           (float)dml__gpu_places(out_w, s.width, s.kernel_w, s.stride_w, s.pad_w, s.filters);\n",
"}\n",
"\n",
"/* The windows 0 .. outs - 1 that cover place `in` of the axis, [from, to). */\n",
"HELPER dml__gpu_range dml__gpu_windows_over(int in, int outs, int window, int stride, int pad)\n",
"{\n",
"    dml__gpu_range r;\n",
"    const unsigned place = (unsigned)in + (unsigned)pad, size = (unsigned)window;\n",
"    const dml__gpu_divisor step = dml__gpu_divisor_of(stride);\n",
"    const unsigned last = dml__gpu_quotient(place, step);\n",
"    r.from = place < size \? 0 : (int)(dml__gpu_quotient(place - size, step) + 1);\n",
"    r.to = last < (unsigned)outs \? (int)last + 1 : outs;\n",
"    return r;\n",
"}\n",
"\n",
"/* Element i of a tensor (batch, height, width, channels) taken apart. */\n",
"typedef struct dml__gpu_element {\n",
"    int image, h, w, channel;\n",
"} dml__gpu_element;\n",
"\n",
"HELPER dml__gpu_element dml__gpu_element_at(unsigned i, int height, int width, int channels)\n",
"{\n",
"    const unsigned rest = dml__gpu_quotient(i, dml__gpu_divisor_of(channels));\n",
"    const unsigned row = dml__gpu_quotient(rest, dml__gpu_divisor_of(width));\n",
"    const unsigned image = dml__gpu_quotient(row, dml__gpu_divisor_of(height));\n",
"    dml__gpu_element e;\n",
"    e.channel = (int)(i - rest * (unsigned)channels);\n",
"    e.w = (int)(rest - row * (unsigned)width);\n",
"    e.h = (int)(row - image * (unsigned)height);\n",
"    e.image = (int)image;\n",
"    return e;\n",
"}\n",
"\n",
"/* y = the largest input of the window, a NaN if there is one; argmax = its place h * W + w, and -1 where int\n",
"   13 says that x is a relu's and nothing is above 0: backward is then that relu's too. Buffers x, y, argmax\n",
"   (int, may be NULL); size{batch * out_h * out_w * channels}. */\n",
"KERNEL(max_pool2d_forward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    GLOBAL int *argmax = BUFFER(2, int);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);\n",
"    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);\n",
"    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);\n",
"    if (i < n) {\n",
"        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;\n",
"        int best = h.from * s.width + w.from;\n",
"        float largest = image[(WIDE)best * s.channels];\n",
"        for (int row = h.from; row < h.to; row++) {\n",
"            for (int column = w.from; column < w.to; column++) {\n",
"                const int place = row * s.width + column;\n",
"                const float value = image[(WIDE)place * s.channels];\n",
"                const int wins = dml__beats(value, largest); /* no branch: nobody can predict it */\n",
"                largest = wins \? value : largest;\n",
"                best = wins \? place : best;\n",
"            }\n",
"        }\n",
"        y[i] = largest;\n",
"        if (argmax) argmax[i] = largest > 0.0f || !INT(13) \? best : -1;\n",
"    }\n",
"}\n",
"\n",
"/* dx = the dy of the windows that the input won + beta dx. Buffers argmax (int), dy, dx; floats beta;\n",
"   size{batch * height * width * channels}. */\n",
"KERNEL(max_pool2d_backward)\n",
"{\n",
"    GLOBAL const int *argmax = BUFFER(0, const int);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL float *dx = BUFFER(2, float);\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);\n",
"    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);\n",
"    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);\n",
"    if (i < n) {\n",
"        float sum = 0.0f;\n",
"        for (int row = h.from; row < h.to; row++) {\n",
"            for (int column = w.from; column < w.to; column++) {\n",
"                const WIDE out =\n",
"                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;\n",
"                const float won = dy[out]; /* read anyway: a branch on argmax would be mispredicted */\n",
"                sum += argmax[out] == e.h * s.width + e.w \? won : 0.0f;\n",
"            }\n",
"        }\n",
"        dx[i] = dml__with_beta(sum, beta, dx + i);\n",
"    }\n",
"}\n",
"\n",
"/* What max_pool2d_backward computes, of the same buffers and floats, where no two windows have an input in\n",
"   common: an item an output, whose window's inputs and those up to the next window are its own, so that dy\n",
"   and argmax are read once. size{batch * out_h * out_w * channels}. */\n",
"KERNEL(max_pool2d_backward_apart)\n",
"{\n",
"    GLOBAL const int *argmax = BUFFER(0, const int);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL float *dx = BUFFER(2, float);\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);\n",
"    if (i < n) {\n",
"        const int top = e.h \? e.h * s.stride_h - s.pad_h : 0, left = e.w \? e.w * s.stride_w - s.pad_w : 0;\n",
"        const int bottom = e.h + 1 < s.out_h \? (e.h + 1) * s.stride_h - s.pad_h : s.height;\n",
"        const int right = e.w + 1 < s.out_w \? (e.w + 1) * s.stride_w - s.pad_w : s.width;\n",
"        const int best = argmax[i];\n",
"        const float won = dy[i];\n",
"        GLOBAL float *image = dx + (WIDE)e.image * s.height * s.width * s.channels + e.channel;\n",
"        for (int h = top; h < bottom; h++) {\n",
"            for (int w = left; w < right; w++) {\n",
"                const int place = h * s.width + w;\n",
"                GLOBAL float *to = image + (WIDE)place * s.channels;\n",
"                *to = dml__with_beta(place == best \? won : 0.0f, beta, to);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* y = the mean of the window's inputs. Buffers x, y;\n",
"   size{batch * out_h * out_w * channels}. */\n",
"KERNEL(avg_pool2d_forward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);\n",
"    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);\n",
"    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);\n",
"    if (i < n) {\n",
"        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;\n",
"        float sum = 0.0f;\n",
"        for (int row = h.from; row < h.to; row++)\n",
"            for (int column = w.from; column < w.to; column++)\n",
"                sum += image[(WIDE)(row * s.width + column) * s.channels];\n",
"        y[i] = sum / dml__gpu_window_size(s, e.h, e.w);\n",
"    }\n",
"}\n",
"\n",
"/* dx = each covering window's dy over its inputs + beta dx. Buffers dy, dx; floats beta;\n",
"   size{batch * height * width * channels}. */\n",
"KERNEL(avg_pool2d_backward)\n",
"{\n",
"    GLOBAL const float *dy = BUFFER(0, const float);\n",
"    GLOBAL float *dx = BUFFER(1, float);\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);\n",
"    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);\n",
"    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);\n",
"    if (i < n) {\n",
"        float sum = 0.0f;\n",
"        for (int row = h.from; row < h.to; row++) {\n",
"            for (int column = w.from; column < w.to; column++) {\n",
"                const WIDE out =\n",
"                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;\n",
"                sum += dy[out] / dml__gpu_window_size(s, row, column);\n",
"            }\n",
"        }\n",
"        dx[i] = dml__with_beta(sum, beta, dx + i);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 14 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/local2d.cl\"\n",
"/* local2d.cl: convolution whose weights differ from place to place, an item an output (forward), an input or\n",
"   a weight (backward). The ints are those of conv2d.cl, without pads; the meaning is that of\n",
"   src/kernels/local2d.h. */\n",
"#ifndef DML_GPU_LOCAL2D_CL\n",
"#define DML_GPU_LOCAL2D_CL\n",
"\n",
"/* y = the sums of the windows' products. Buffers x, w, y; size{batch * out_h * out_w * filters}. */\n",
"KERNEL(local2d_forward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.filters);\n",
"        const int run = s.kernel_w * s.channels;\n",
"        GLOBAL const float *w =\n",
"            weights + (((WIDE)e.h * s.out_w + e.w) * s.filters + e.channel) * s.kernel_h * run;\n",
"        float sum = 0.0f;\n",
"        for (int row = 0; row < s.kernel_h; row++) {\n",
"            GLOBAL const float *line =\n",
"                x + (((WIDE)e.image * s.height + e.h * s.stride_h + row) * s.width + e.w * s.stride_w) *\n",
"                        s.channels;\n",
"            for (int k = 0; k < run; k++) sum += line[k] * w[(WIDE)row * run + k];\n",
"        }\n",
"        y[i] = sum;\n",
"    }\n",
"}\n",
"\n",
"/* dx = each covering window's dy times its weights + beta dx. Buffers dy, w, dx; floats beta;\n",
"   size{batch * height * width * channels}. */\n",
"KERNEL(local2d_backward_input)\n",
"{\n",
"    GLOBAL const float *dy = BUFFER(0, const float);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    GLOBAL float *dx = BUFFER(2, float);\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);\n",
"        const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, 0);\n",
"        const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, 0);\n",
"        const WIDE taps = (WIDE)s.kernel_h * s.kernel_w * s.channels;\n",
"        float sum = 0.0f;\n",
"        for (int row = h.from; row < h.to; row++) {\n",
"            for (int column = w.from; column < w.to; column++) {\n",
"                const int tap = (e.h - row * s.stride_h) * s.kernel_w + e.w - column * s.stride_w;\n",
"                const WIDE place = (WIDE)row * s.out_w + column;\n",
"                GLOBAL const float *d = dy + ((WIDE)e.image * s.out_h * s.out_w + place) * s.filters;\n",
"                GLOBAL const float *by =\n",
"                    weights + place * s.filters * taps + (WIDE)tap * s.channels + e.channel;\n",
"                for (int f = 0; f < s.filters; f++) sum += d[f] * by[(WIDE)f * taps];\n",
"            }\n",
"        }\n",
"        dx[i] = dml__with_beta(sum, beta, dx + i);\n",
"    }\n",
"}\n",
"\n",
"/* dw = the sums over the batch of dy times x + beta dw. Buffers x, dy, dw; floats beta; size{out_h * out_w *\n",
"   filters * kernel_h * kernel_w * channels}. */\n",
"KERNEL(local2d_backward_weights)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL float *dw = BUFFER(2, float);\n",
"    const float beta = REAL(0);\n",
"    const dml__gpu_shape s = dml__gpu_shape_of(arguments);\n",
"    const unsigned run = (unsigned)s.kernel_w * (unsigned)s.channels, taps = (unsigned)s.kernel_h * run;\n",
"    const unsigned outs = (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < outs * taps) {\n",
"        const unsigned out = i / taps, tap = i % taps, place = out / (unsigned)s.filters;\n",
"        const int h = (int)(place / (unsigned)s.out_w) * s.stride_h + (int)(tap / run);\n",
"        const int w = (int)(place % (unsigned)s.out_w) * s.stride_w;\n",
"        GLOBAL const float *from = x + ((WIDE)h * s.width + w) * s.channels + tap % run;\n",
"        float sum = 0.0f;\n",
"        for (int image = 0; image < s.batch; image++)\n",
"            sum += dy[(WIDE)image * outs + out] * from[(WIDE)image * s.height * s.width * s.channels];\n",
"        dw[i] = dml__with_beta(sum, beta, dw + i);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 15 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/slice2d.cl\"\n",
"/* slice2d.cl: parts of images, strided, with zeros around them; the meaning is that of src/kernels/slice2d.h.\n",
"\n",
"   Ints: batch; then for height, width and channels each: in, out, step, count, before. The buffer of what\n",
"   came in begins at the first element that is taken. */\n",
"#ifndef DML_GPU_SLICE2D_CL\n",
"#define DML_GPU_SLICE2D_CL\n",
"\n",
"/* y from x. Buffers x, y; size{batch * out height * width * channels}. */\n",
"KERNEL(slice2d_forward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0) * (unsigned)INT(2) * (unsigned)INT(7) * (unsigned)INT(12);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const dml__gpu_element e = dml__gpu_element_at(i, INT(2), INT(7), INT(12));\n",
"        const int h = e.h - INT(5), w = e.w - INT(10), c = e.channel - INT(15);\n",
"        const int taken = h >= 0 && h < INT(4) && w >= 0 && w < INT(9) && c >= 0 && c < INT(14);\n",
"        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)h * INT(3);\n",
"        y[i] = taken \? x[(line * INT(6) + (WIDE)w * INT(8)) * INT(11) + (WIDE)c * INT(13)] : 0.0f;\n",
"    }\n",
"}\n",
"\n",
"/* dx += dy where x was taken. Buffers dy, dx; size{batch * counts of height, width and channels}. */\n",
"KERNEL(slice2d_backward)\n",
"{\n",
"    GLOBAL const float *dy = BUFFER(0, const float);\n",
"    GLOBAL float *dx = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0) * (unsigned)INT(4) * (unsigned)INT(9) * (unsigned)INT(14);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const dml__gpu_element e = dml__gpu_element_at(i, INT(4), INT(9), INT(14));\n",
"        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)e.h * INT(3);\n",
"        const WIDE out_line = (WIDE)e.image * INT(2) + e.h + INT(5);\n",
"        dx[(line * INT(6) + (WIDE)e.w * INT(8)) * INT(11) + (WIDE)e.channel * INT(13)] +=\n",
"            dy[(out_line * INT(7) + e.w + INT(10)) * INT(12) + e.channel + INT(15)];\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 16 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/reduce.cl\"\n",
"/* reduce.cl: many elements into one. Each sum's order is fixed by its length alone. */\n",
"#ifndef DML_GPU_REDUCE_CL\n",
"#define DML_GPU_REDUCE_CL\n",
"\n",
"/* Kernels that reduce rows split a group into 16 teams of 16 lanes, a team a row. */\n",
"#define LANES 16\n",
"#define LANE (ITEM % LANES)\n",
"#define TEAM (ITEM / LANES)\n",
"\n",
"/* Replaces part[ITEM], where `lane` is 0, by the combination over `lanes` (a power of two) neighbours `step`\n",
"   apart. Local memory can't be passed to a function, hence a macro. All items come here. */\n",
"#define REDUCE(part, lane, lanes, step, combine)                                                             \\\n",
"    do {                                                                                                     \\\n",
"        BARRIER();                                                                                           \\\n",
"        for (int reach = (lanes) / 2; reach > 0; reach /= 2) {                                               \\\n",
"            if ((lane) < reach) {                                                                            \\\n",
"                const int mine = ITEM, other = ITEM + reach * (step);                                        \\\n",
"                combine;                                                                                     \\\n",
"            }                                                                                                \\\n",
"            BARRIER();                                                                                       \\\n",
"        }                                                                                                    \\\n",
"    } while (0)\n",
"#define REDUCE_SUM(part, lane, lanes, step)                                                                  \\\n",
"    REDUCE(part, lane, lanes, step, part[mine] = part[mine] + part[other])\n",
"#define REDUCE_MAX(part, lane, lanes, step)                                                                  \\\n",
"    REDUCE(part, lane, lanes, step, part[mine] = part[other] > part[mine] \? part[other] : part[mine])\n",
"\n",
"/* Makes each item's `total` that of its whole team: of the `lanes` items (16 to 256, a power of two) `step`\n",
"   apart from item `first` on. `combine` is said of total and other, and is the same the other way round. All\n",
"   items come here. Where 32 neighbours can see each other's numbers, those are combined first, and then what\n",
"   each 32 have. Elsewhere a few items combine what several have, and then each what those few have, since a\n",
"   barrier takes longer than a few numbers of local memory. */\n",
"#ifdef WARP_OTHER\n",
"#define TEAM_NEIGHBOURS(total, part, first, lanes, combine)                                                  \\\n",
"    do {                                                                                                     \\\n",
"        UNROLL for (int reach = 1; reach < 32; reach *= 2)                                                   \\\n",
"        {                                                                                                    \\\n",
"            if (reach >= (lanes)) break;                                                                     \\\n",
"            const float other = WARP_OTHER(total, reach);                                                    \\\n",
"            total = combine;                                                                                 \\\n",
"        }                                                                                                    \\\n",
"        if ((lanes) <= 32) break;                                                                            \\\n",
"        if (ITEM % 32 == 0) (part)[ITEM / 32] = total;                                                       \\\n",
"        BARRIER();                                                                                           \\\n",
"        total = (part)[(first) / 32];                                                                        \\\n",
"        UNROLL for (int of = 1; of < 8; of++)                                                                \\\n",
"        {                                                                                                    \\\n",
"            if (of >= (lanes) / 32) break;                                                                   \\\n",
"            const float other = (part)[(first) / 32 + of];                                                   \\\n",
"            total = combine;                                                                                 \\\n",
"        }                                                                                                    \\\n",
"        BARRIER(); /* all have read it before its place is used again */                                     \\\n",
"    } while (0)\n",
"#endif\n",
"#define TEAM_APART(total, part, first, lane, lanes, step, combine)                                           \\\n",
"    do {                                                                                                     \\\n",
"        const int few = (lanes) > 64 \? 16 : (lanes) > 16 \? 8 : 4;                                            \\\n",
"        (part)[ITEM] = total;                                                                                \\\n",
"        BARRIER();                                                                                           \\\n",
"        if ((lane) < few) {                                                                                  \\\n",
"            for (int of = (lane) + few; of < (lanes); of += few) {                                           \\\n",
"                const float other = (part)[(first) + of * (step)];                                           \\\n",
"                total = combine;                                                                             \\\n",
"            }                                                                                                \\\n",
"            (part)[ITEM] = total;                                                                            \\\n",
"        }                                                                                                    \\\n",
"        BARRIER();                                                                                           \\\n",
"        total = (part)[first];                                                                               \\\n",
"        for (int of = 1; of < few; of++) {                                                                   \\\n",
"            const float other = (part)[(first) + of * (step)];                                               \\\n",
"            total = combine;                                                                                 \\\n",
"        }                                                                                                    \\\n",
"        BARRIER(); /* all have read it before its place is used again */                                     \\\n",
"    } while (0)\n",
"#ifdef WARP_OTHER\n",
"#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \\\n",
"    do {                                                                                                     \\\n",
"        if ((step) == 1)                                                                                     \\\n",
"            TEAM_NEIGHBOURS(total, part, first, lanes, combine);                                             \\\n",
"        else                                                                                                 \\\n",
"            TEAM_APART(total, part, first, lane, lanes, step, combine);                                      \\\n",
"    } while (0)\n",
"#else\n",
"#define TEAM_TOTAL(total, part, first, lane, lanes, step, combine)                                           \\\n",
"    TEAM_APART(total, part, first, lane, lanes, step, combine)\n",
"#endif\n",
"#define TEAM_SUM(total, part, first, lane, lanes, step)                                                      \\\n",
"    TEAM_TOTAL(total, part, first, lane, lanes, step, (total) + other)\n",
"#define TEAM_MOST(total, part, first, lane, lanes, step)                                                     \\\n",
"    TEAM_TOTAL(total, part, first, lane, lanes, step, other > (total) \? other : (total))\n",
"\n",
"/* How many numbers of a row an item keeps in registers, and how many it reads at once of what is longer. A\n",
"   CPU has its caches for the first, and does the items of a group in vectors instead of the second. */\n",
"#ifdef DML__RUN\n",
"#define ROW_KEPT 1\n",
"#define ROW_AHEAD 1\n",
"#else\n",
"#define ROW_KEPT 16\n",
"#define ROW_AHEAD 8\n",
"#endif\n",
"#define EXPONENTIALS_AHEAD 8 /* where those of a largest number are added up */\n",
"/* Before a statement for each k below `count`, of number i, from `begin` on in steps; i is below n. */\n",
"#define EACH_AHEAD(count, k, i, begin, step, n)                                                              \\\n",
"    UNROLL for (int k = 0, i = (begin); k < (count); k++, i += (step)) if (i < (n))\n",
"/* The same of a row that `lanes` items do: number k of this item's lies k * lanes behind its first, and of\n",
"   the row `left` are there from that one on. */\n",
"#define EACH_LEFT(count, k, left) UNROLL for (int k = 0; k < (count); k++) if (k * lanes < (left))\n",
"\n",
"/* Calls what does a row with its lanes, 16, 64 or 256 (dml__row_lanes of graph/op.h), as a constant: then\n",
"   loads and stores have room for the distances between an item's numbers, which would else be an instruction\n",
"   or two for each. */\n",
"#ifdef DML__RUN\n",
"#define BY_LANES(lanes, call) call(lanes)\n",
"#else\n",
"#define BY_LANES(lanes, call)                                                                                \\\n",
"    do {                                                                                                     \\\n",
"        if ((lanes) == 16)                                                                                   \\\n",
"            call(16);                                                                                        \\\n",
"        else if ((lanes) == 64)                                                                              \\\n",
"            call(64);                                                                                        \\\n",
"        else                                                                                                 \\\n",
"            call(256);                                                                                       \\\n",
"    } while (0)\n",
"#endif\n",
"\n",
"/* y[o][c] = sum over r of x[o][r][c] + beta y[o][c]. Buffers x, y; ints rows, columns, outer, and, where the\n",
"   outer ones are parts of the rows of one, how many that one has, else 0; floats beta; size{columns, outer}.\n",
"   A group does 16 columns; neighbouring items do neighbouring columns, so rows are read in sequence. */\n",
"KERNEL(sum_rows)\n",
"{\n",
"    const int columns = INT(1), across = columns > 8 \? 16 : columns > 4 \? 8 : columns > 2 \? 4 : columns;\n",
"    const int lanes = DML__GROUP_ITEMS / across;\n",
"    const WIDE on = (WIDE)lanes * columns;\n",
"    const WIDE left = INT(3) - (WIDE)GROUP_Y * INT(0); /* rows of the one that aren't of a part before */\n",
"    const int rows = INT(3) && left < INT(0) \? (int)left : INT(0);\n",
"    GLOBAL const float *x = BUFFER(0, const float) + (WIDE)GROUP_Y * INT(0) * columns;\n",
"    GLOBAL float *y = BUFFER(1, float) + (WIDE)GROUP_Y * columns;\n",
"    const float beta = REAL(0);\n",
"    const int column = GROUP_X * 16 + ITEM % across, lane = ITEM / across;\n",
"    const int inside = column < columns && GROUP_Y < INT(2); /* groups may be more than there is */\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = 0.0f;\n",
"    if (inside)\n",
"        for (int first = lane; first < rows; first += ROW_AHEAD * lanes) {\n",
"            float value[ROW_AHEAD];\n",
"            GLOBAL const float *from = x + (WIDE)first * columns + column;\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;\n",
"            EACH_AHEAD(ROW_AHEAD, k, row, first, lanes, rows)\n",
"            {\n",
"                value[k] = *from;\n",
"                from += on;\n",
"            }\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];\n",
"        }\n",
"    TEAM_SUM(sum, part, ITEM % across, lane, lanes, across);\n",
"    if (lane == 0 && inside) y[column] = dml__with_beta(sum, beta, y + column);\n",
"}\n",
"\n",
"/* out[r] = the column of the largest x[r][c], the first of equals. Buffers x, out (int); ints rows, columns;\n",
"   size{rows}. */\n",
"KERNEL(argmax)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL int *out = BUFFER(1, int);\n",
"    const int rows = INT(0), columns = INT(1);\n",
"    const int row = GROUP_X * LANES + TEAM;\n",
"    LOCAL float largest[DML__GROUP_ITEMS];\n",
"    LOCAL int place[DML__GROUP_ITEMS];\n",
"    float best = MINUS_INFINITY;\n",
"    int where = 0; /* of an empty lane too: it can tie only with minus infinity, and column 0 is first then */\n",
"    if (row < rows && LANE < columns) {\n",
"        GLOBAL const float *from = x + (WIDE)row * columns;\n",
"        best = from[LANE], where = LANE;\n",
"        for (int column = LANE + LANES; column < columns; column += LANES)\n",
"            if (dml__beats(from[column], best)) best = from[column], where = column;\n",
"    }\n",
"    largest[ITEM] = best;\n",
"    place[ITEM] = where;\n",
"    REDUCE(largest, LANE, LANES, 1, {\n",
"        const int tie =\n",
"            !dml__beats(largest[other], largest[mine]) && !dml__beats(largest[mine], largest[other]);\n",
"        if (tie \? place[other] < place[mine] : dml__beats(largest[other], largest[mine])) {\n",
"            largest[mine] = largest[other];\n",
"            place[mine] = place[other];\n",
"        }\n",
"    });\n",
"    if (LANE == 0 && row < rows) out[row] = place[ITEM];\n",
"}\n",
"\n",
"/* y[o][i] = scale times what is made of x[o][k][i] over all k: 0 their sum, 1 the largest, 2 the smallest, 3\n",
"   the sum of sizes, 4 the root of the sum of squares, 5 how many are of[o][i]. NaNs get through. Buffers x,\n",
"   y, of; ints kind, n, inner, outer * inner; floats scale; size{outer * inner}. A group makes 16 of them,\n",
"   each with 16 items; neighbouring items read neighbours. */\n",
"KERNEL(reduce_axis)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    GLOBAL const float *of = BUFFER(2, const float);\n",
"    const int kind = INT(0), n = INT(1), inner = INT(2);\n",
"    const int lane = inner == 1 \? ITEM % 16 : ITEM / 16, step = inner == 1 \? 1 : 16;\n",
"    const int result = GROUP_X * 16 + (inner == 1 \? ITEM / 16 : ITEM % 16);\n",
"    const int inside = result < INT(3), extreme = kind == 1 || kind == 2;\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = extreme \? MINUS_INFINITY : 0.0f;\n",
"    if (inside) {\n",
"        GLOBAL const float *from = x + (WIDE)(result / inner) * n * inner + result % inner;\n",
"        const float other = kind == 5 \? of[result] : 0.0f;\n",
"        for (int k = lane; k < n; k += 16) {\n",
"            const float v = from[(WIDE)k * inner];\n",
"            if (extreme) {\n",
"                const float turned = kind == 2 \? -v : v;\n",
"                if (dml__beats(turned, sum)) sum = turned;\n",
"            } else\n",
"                sum += kind == 0 \? v : kind == 3 \? ABS(v) : kind == 4 \? v * v : v == other \? 1.0f : 0.0f;\n",
"        }\n",
"    }\n",
"    part[ITEM] = sum;\n",
"    REDUCE(part, lane, 16, step, {\n",
"        if (!extreme)\n",
"            part[mine] = part[mine] + part[other];\n",
"        else if (dml__beats(part[other], part[mine]))\n",
"            part[mine] = part[other];\n",
"    });\n",
"    if (lane == 0 && inside) {\n",
"        const float all = kind == 2 \? -part[ITEM] : kind == 4 \? SQRT(part[ITEM]) : part[ITEM];\n",
"        y[result] = REAL(0) * all;\n",
"    }\n",
"}\n",
"\n",
"/* dx = its gradient + beta dx; of an extreme's, each of its ties gets the same. Buffers x, y, ties, dy, dx;\n",
"   ints kind, n, inner, elements of x; floats scale, beta; size{elements}. */\n",
"KERNEL(reduce_axis_backward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *y = BUFFER(1, const float);\n",
"    GLOBAL const float *ties = BUFFER(2, const float);\n",
"    GLOBAL const float *dy = BUFFER(3, const float);\n",
"    GLOBAL float *dx = BUFFER(4, float);\n",
"    const int kind = INT(0);\n",
"    const unsigned inner = (unsigned)INT(2), i = ELEMENT;\n",
"    if (i < (unsigned)INT(3)) {\n",
"        const unsigned from = i / inner / (unsigned)INT(1) * inner + i % inner;\n",
"        float d = REAL(0) * dy[from];\n",
"        if (kind == 3) d = x[i] > 0.0f \? d : x[i] < 0.0f \? -d : 0.0f;\n",
"        if (kind == 4) d = y[from] != 0.0f \? x[i] * (d / y[from]) : 0.0f;\n",
"        if (kind == 1 || kind == 2) d = x[i] == y[from] \? d / ties[from] : 0.0f;\n",
"        dx[i] = dml__with_beta(d, REAL(1), dx + i);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 17 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/softmax.cl\"\n",
"/* softmax.cl: softmax along an axis of arrays (outer, n, inner), or its logarithm.\n",
"\n",
"   A row is the n numbers that share a sum. Where inner is 1, `lanes` items (16, 64 or 256) do a row, else 16,\n",
"   of 16 rows side by side, so that neighbours read neighbours. A row of up to ROW_KEPT numbers an item is\n",
"   read once; a longer one again, from its end on, which caches have last. Ints of all: n, inner, rows\n",
"   (outer * inner), logs, lanes; size{groups}. */\n",
"#ifndef DML_GPU_SOFTMAX_CL\n",
"#define DML_GPU_SOFTMAX_CL\n",
"\n",
"/* Both kernels are helpers with constants: lanes, and whether inner is 1, where a row is `flat`. */\n",
"#define SOFTMAX_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part\n",
"\n",
"/* The item's place, for the statements behind it: its first number lies `begin` behind the array's, and what\n",
"   is i further in the row SOFTMAX_ON(i) behind that. */\n",
"#define SOFTMAX_BEGIN()                                                                                      \\\n",
"    const int n = INT(0), inner = flat \? 1 : INT(1), logs = INT(3), step = flat \? 1 : 16;                    \\\n",
"    const int lane = flat \? ITEM & (lanes - 1) : ITEM / 16;                                                  \\\n",
"    const int row_here = flat \? (int)((unsigned)ITEM / (unsigned)lanes) : ITEM % 16;                         \\\n",
"    const int row = GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + row_here;                          \\\n",
"    const int first = flat \? row_here * lanes : row_here;                                                    \\\n",
"    const int most = row < INT(2) \? n : 0, kept = n <= lanes * ROW_KEPT;                                     \\\n",
"    const int outer = flat \? row : (int)((unsigned)row / (unsigned)inner);                                   \\\n",
"    const WIDE begin = ((WIDE)outer * n + lane) * inner + (row - outer * inner)\n",
"#define SOFTMAX_ON(i) (flat \? (i) : (i)*inner)\n",
"\n",
"/* Before what reads a longer row again, ROW_AHEAD numbers from `from` on. */\n",
"#ifdef DML__RUN\n",
"#define SOFTMAX_AGAIN(from) for (int from = lane; from < most; from += ROW_AHEAD * lanes)\n",
"#else\n",
"#define SOFTMAX_AGAIN(from)                                                                                  \\\n",
"    for (int from = (n - 1) / (ROW_AHEAD * lanes) * (ROW_AHEAD * lanes) + lane; from >= 0;                   \\\n",
"         from -= ROW_AHEAD * lanes)\n",
"#endif\n",
"\n",
"/* Adds the exponentials of `count` numbers to a sum of such that is relative to the largest so far. Where\n",
"   that is -infinity there may be NaNs, which count. Source: Milakov, Gimelshein, \"Online normalizer\n",
"   calculation for softmax\", 2018. */\n",
"#define ADD_EXPONENTIALS(value, count, largest, sum)                                                         \\\n",
"    do {                                                                                                     \\\n",
"        float larger = largest;                                                                              \\\n",
"        UNROLL for (int of = 0; of < (count); of++) if ((value)[of] > larger) larger = (value)[of];          \\\n",
"        if (larger > (largest)) sum *= EXP((largest)-larger);                                                \\\n",
"        largest = larger;                                                                                    \\\n",
"        larger = larger > MINUS_INFINITY \? larger : 0.0f;                                                    \\\n",
"        UNROLL for (int of = 0; of < (count); of++) sum += EXP((value)[of] - larger);                        \\\n",
"    } while (0)\n",
"\n",
"/* Which of them a launch is for. (PoCL computes some groups wrong, at times, behind a branch with barriers on\n",
"   both sides.) */\n",
"#ifdef DML__RUN\n",
"#define SOFTMAX_CHOICE(call) call(INT(1) == 1, INT(4))\n",
"#else\n",
"#define SOFTMAX_CHOICE(call)                                                                                 \\\n",
"    do {                                                                                                     \\\n",
"        if (INT(1) != 1)                                                                                     \\\n",
"            call(0, 16);                                                                                     \\\n",
"        else if (INT(4) == 16)                                                                               \\\n",
"            call(1, 16);                                                                                     \\\n",
"        else if (INT(4) == 64)                                                                               \\\n",
"            call(1, 64);                                                                                     \\\n",
"        else                                                                                                 \\\n",
"            call(1, 256);                                                                                    \\\n",
"    } while (0)\n",
"#endif\n",
"\n",
"HELPER void dml__softmax_forward_as(SOFTMAX_PARAMETERS, GLOBAL const float *x, GLOBAL float *y,\n",
"                                    const dml__kernel_arguments arguments)\n",
"{\n",
"    SOFTMAX_BEGIN();\n",
"    float value[ROW_KEPT], largest = MINUS_INFINITY, sum = 0.0f;\n",
"    x += begin, y += begin;\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = MINUS_INFINITY;\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[SOFTMAX_ON(k * lanes)];\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) if (value[k] > largest) largest = value[k];\n",
"    } else {\n",
"#ifdef DML__RUN\n",
"        for (int i = lane; i < most; i += lanes) {\n",
"            const float some = x[SOFTMAX_ON(i - lane)];\n",
"            if (some > largest) largest = some;\n",
"        }\n",
"#else\n",
"        for (int from = lane; from < most; from += EXPONENTIALS_AHEAD * lanes) {\n",
"            float some[EXPONENTIALS_AHEAD];\n",
"            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) some[k] = MINUS_INFINITY;\n",
"            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);\n",
"            EACH_LEFT(EXPONENTIALS_AHEAD, k, most - from) some[k] = piece[SOFTMAX_ON(k * lanes)];\n",
"            ADD_EXPONENTIALS(some, EXPONENTIALS_AHEAD, largest, sum);\n",
"        }\n",
"#endif\n",
"    }\n",
"#ifndef DML__RUN\n",
"    const float own = largest;\n",
"#endif\n",
"    TEAM_MOST(largest, part, first, lane, lanes, step);\n",
"    if (kept) { /* the exponential of what isn't there is 0 */\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k)\n",
"        {\n",
"            value[k] -= largest;\n",
"            const float e = EXP(value[k]);\n",
"            if (!logs) value[k] = e;\n",
"            sum += e;\n",
"        }\n",
"    } else {\n",
"#ifdef DML__RUN /* a cache takes them, and they take longer to make again */\n",
"        for (int i = lane; i < most; i += lanes) {\n",
"            const float e = EXP(x[SOFTMAX_ON(i - lane)] - largest);\n",
"            if (!logs) y[SOFTMAX_ON(i - lane)] = e;\n",
"            sum += e;\n",
"        }\n",
"#else\n",
"        if (own < largest) sum *= EXP(own - largest);\n",
"#endif\n",
"    }\n",
"    TEAM_SUM(sum, part, first, lane, lanes, step);\n",
"    const float shift = logs \? -LOG(sum) : 0.0f, factor = logs \? 1.0f : 1.0f / sum;\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = value[k] * factor + shift;\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane) y[SOFTMAX_ON(k * lanes)] = value[k];\n",
"    } else {\n",
"#ifdef DML__RUN\n",
"        for (int i = lane; i < most; i += lanes) {\n",
"            const int at = SOFTMAX_ON(i - lane);\n",
"            y[at] = (logs \? x[at] - largest : y[at]) * factor + shift;\n",
"        }\n",
"#else\n",
"        SOFTMAX_AGAIN(from)\n",
"        {\n",
"            GLOBAL const float *piece = x + SOFTMAX_ON(from - lane);\n",
"            GLOBAL float *to = y + SOFTMAX_ON(from - lane);\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SOFTMAX_ON(k * lanes)];\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k)\n",
"            {\n",
"                value[k] -= largest;\n",
"                value[k] = (logs \? value[k] : EXP(value[k])) * factor + shift;\n",
"            }\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) to[SOFTMAX_ON(k * lanes)] = value[k];\n",
"        }\n",
"#endif\n",
"    }\n",
"}\n",
"\n",
"/* Buffers x, y, which may be the same. */\n",
"KERNEL(softmax_forward)\n",
"{\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"#define SOFTMAX_FORWARD_AS(flat, lanes)                                                                      \\\n",
"    dml__softmax_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, float), arguments)\n",
"    SOFTMAX_CHOICE(SOFTMAX_FORWARD_AS);\n",
"#undef SOFTMAX_FORWARD_AS\n",
"}\n",
"\n",
"#define SOFTMAX_GRADIENT(y, dy) (logs \? (dy)-EXP(y) * sum : (y) * ((dy)-sum))\n",
"\n",
"HELPER void dml__softmax_backward_as(SOFTMAX_PARAMETERS, GLOBAL const float *y, GLOBAL const float *dy,\n",
"                                     GLOBAL float *dx, const dml__kernel_arguments arguments)\n",
"{\n",
"    SOFTMAX_BEGIN();\n",
"    float value[ROW_KEPT], d[ROW_KEPT], sum = 0.0f;\n",
"    const float beta = REAL(0);\n",
"    y += begin, dy += begin, dx += begin;\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = d[k] = 0.0f;\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane)\n",
"        {\n",
"            value[k] = y[SOFTMAX_ON(k * lanes)];\n",
"            d[k] = dy[SOFTMAX_ON(k * lanes)];\n",
"        }\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) sum += logs \? d[k] : value[k] * d[k];\n",
"    } else {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),\n",
"                               *dy_piece = dy + SOFTMAX_ON(from - lane);\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                value[k] = logs \? 1.0f : y_piece[SOFTMAX_ON(k * lanes)];\n",
"                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];\n",
"            }\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k] * d[k];\n",
"        }\n",
"    }\n",
"    TEAM_SUM(sum, part, first, lane, lanes, step);\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane)\n",
"        {\n",
"            const int at = SOFTMAX_ON(k * lanes);\n",
"            dx[at] = dml__with_beta(value[k], beta, dx + at);\n",
"        }\n",
"    } else {\n",
"        SOFTMAX_AGAIN(from)\n",
"        {\n",
"            GLOBAL const float *y_piece = y + SOFTMAX_ON(from - lane),\n",
"                               *dy_piece = dy + SOFTMAX_ON(from - lane);\n",
"            GLOBAL float *to = dx + SOFTMAX_ON(from - lane);\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                value[k] = y_piece[SOFTMAX_ON(k * lanes)];\n",
"                d[k] = dy_piece[SOFTMAX_ON(k * lanes)];\n",
"            }\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = SOFTMAX_GRADIENT(value[k], d[k]);\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                const int at = SOFTMAX_ON(k * lanes);\n",
"                to[at] = dml__with_beta(value[k], beta, to + at);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* dx = y (dy - sum(y dy)) + beta dx, with logs dy - exp(y) sum(dy) + beta dx. Buffers y, dy, dx, which may be\n",
"   dy; floats beta. */\n",
"KERNEL(softmax_backward)\n",
"{\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"#define SOFTMAX_BACKWARD_AS(flat, lanes)                                                                     \\\n",
"    dml__softmax_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),         \\\n",
"                             BUFFER(2, float), arguments)\n",
"    SOFTMAX_CHOICE(SOFTMAX_BACKWARD_AS);\n",
"#undef SOFTMAX_BACKWARD_AS\n",
"}\n",
"\n",
"#endif\n",
"#line 18 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/loss.cl\"\n",
"/* loss.cl: losses and their gradients. */\n",
"#ifndef DML_GPU_LOSS_CL\n",
"#define DML_GPU_LOSS_CL\n",
"\n",
"#define CLASSES_AHEAD 8 /* of a row, which an item reads before it computes */\n",
"\n",
"/* What the classes c of a row weigh, but for a label's own part (kernels/cross_entropy.h). */\n",
"HELPER float dml__class_weight(GLOBAL const float *target, GLOBAL const float *weights, int c, int classes,\n",
"                               float smoothing)\n",
"{\n",
"    float weight = smoothing / (float)classes;\n",
"    if (target) weight += (1.0f - smoothing) * target[c];\n",
"    return weights \? weight * weights[c] : weight;\n",
"}\n",
"\n",
"/* Both kernels are helpers with the lanes as a constant: the items that do a row, of which a group does 256 /\n",
"   lanes. */\n",
"#define CROSS_ENTROPY_PARAMETERS HERE_PARAMETER const int lanes, SHARED float *part\n",
"#define CROSS_ENTROPY_ROW                                                                                    \\\n",
"    (GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + (int)((unsigned)ITEM / (unsigned)lanes))\n",
"\n",
"HELPER void dml__cross_entropy_forward_as(CROSS_ENTROPY_PARAMETERS, GLOBAL const float *logits,\n",
"                                          GLOBAL const float *target, GLOBAL const int *labels,\n",
"                                          GLOBAL const float *class_weights, GLOBAL const float *row_weights,\n",
"                                          GLOBAL float *kept, const dml__kernel_arguments arguments)\n",
"{\n",
"    const int rows = INT(0), classes = INT(1), all = INT(8) \? INT(8) : classes;\n",
"    const float smoothing = REAL(0);\n",
"    const int lane = ITEM & (lanes - 1), team = ITEM - lane, row = CROSS_ENTROPY_ROW, inside = row < rows;\n",
"    float largest = MINUS_INFINITY, sum = 0.0f, whole = 0.0f, product = 0.0f;\n",
"    float weight = inside && row_weights \? row_weights[row / INT(2)] : 1.0f;\n",
"    if (inside && labels && INT(4) && labels[row] == INT(5)) weight = 0.0f;\n",
"    if (inside && labels && class_weights && smoothing == 0.0f && weight != 0.0f && labels[row] >= 0 &&\n",
"        labels[row] < classes && class_weights[labels[row]] == 0.0f)\n",
"        weight = 0.0f;\n",
"    const int counts = inside && weight != 0.0f;\n",
"    logits += (WIDE)row * classes;\n",
"    if (counts)\n",
"        for (int from = lane; from < classes; from += EXPONENTIALS_AHEAD * lanes) {\n",
"            float value[EXPONENTIALS_AHEAD];\n",
"            GLOBAL const float *piece = logits + from;\n",
"            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) value[k] = MINUS_INFINITY;\n",
"            EACH_LEFT(EXPONENTIALS_AHEAD, k, classes - from) value[k] = piece[k * lanes];\n",
"            ADD_EXPONENTIALS(value, EXPONENTIALS_AHEAD, largest, sum);\n",
"        }\n",
"    const float own_largest = largest;\n",
"    TEAM_MOST(largest, part, team, lane, lanes, 1);\n",
"    if (own_largest < largest) sum *= EXP(own_largest - largest);\n",
"    TEAM_SUM(sum, part, team, lane, lanes, 1);\n",
"    if (counts && (target || smoothing != 0.0f))\n",
"        for (int c = lane; c < classes; c += lanes) {\n",
"            const float of_class = dml__class_weight(target \? target + (WIDE)row * classes : 0, class_weights,\n",
"                                                     c, all, smoothing);\n",
"            whole += of_class;\n",
"            product += of_class * (largest - logits[c]);\n",
"        }\n",
"    if (target || smoothing != 0.0f) {\n",
"        TEAM_SUM(whole, part, team, lane, lanes, 1);\n",
"        TEAM_SUM(product, part, team, lane, lanes, 1);\n",
"    }\n",
"    if (lane == 0 && inside) {\n",
"        float share = weight;\n",
"        if (counts && labels) {\n",
"            const int label = labels[row], known = label >= 0 && label < all;\n",
"            const int place = label - INT(7), here = known && place >= 0 && place < classes;\n",
"            const float own = !known \? NOT_A_NUMBER : class_weights \? class_weights[label] : 1.0f;\n",
"            if (here || !known) {\n",
"                whole += (1.0f - smoothing) * own;\n",
"                product += (1.0f - smoothing) * own * (here \? largest - logits[place] : 0.0f);\n",
"            }\n",
"            share *= own;\n",
"        }\n",
"        kept[row] = counts \? largest : 0.0f;\n",
"        kept[(WIDE)rows + row] = !counts \? 1.0f : INT(8) \? sum : 1.0f / sum;\n",
"        kept[(WIDE)rows * 2 + row] = whole;\n",
"        kept[(WIDE)rows * 3 + row] = !counts  \? 0.0f\n",
"                                     : INT(8) \? (largest > MINUS_INFINITY \? product : 0.0f)\n",
"                                              : weight * (whole * LOG(sum) + product);\n",
"        kept[(WIDE)rows * 4 + row] = share;\n",
"        kept[(WIDE)rows * 5 + row] = weight;\n",
"    }\n",
"}\n",
"\n",
"/* For each row, kept (6, rows) = the largest logit, 1 / sum(exp(logit - largest)), the sum of what the\n",
"   classes weigh, its loss, what it counts in the divisor, its weight. A label outside 0 .. classes - 1 that\n",
"   isn't the ignored one gives a loss of NaN and reads nothing. Buffers logits, labels (int) or the target,\n",
"   class weights, row weights (NULL: 1), kept; ints rows, classes, rows of a row weight, whether there are\n",
"   labels, whether one is ignored, which, lanes (16, 64 or 256), and, of a part of the classes, its first one\n",
"   and how many all are (0: it is all of them); floats smoothing; size{groups}. Of a part the sum itself is\n",
"   kept, and the sum of weight x (largest - logit) (kernels/cross_entropy.h). */\n",
"KERNEL(cross_entropy_forward)\n",
"{\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"#define CROSS_ENTROPY_FORWARD(lanes)                                                                         \\\n",
"    dml__cross_entropy_forward_as(HERE lanes, part, BUFFER(0, const float),                                  \\\n",
"                                  INT(3) \? 0 : BUFFER(1, const float), INT(3) \? BUFFER(1, const int) : 0,    \\\n",
"                                  BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),          \\\n",
"                                  arguments)\n",
"    BY_LANES(INT(6), CROSS_ENTROPY_FORWARD);\n",
"#undef CROSS_ENTROPY_FORWARD\n",
"}\n",
"\n",
"HELPER void dml__cross_entropy_backward_as(HERE_PARAMETER const int lanes, GLOBAL const float *logits,\n",
"                                           GLOBAL const float *target, GLOBAL const int *labels,\n",
"                                           GLOBAL const float *class_weights, GLOBAL const float *kept,\n",
"                                           GLOBAL const float *dloss, GLOBAL float *dlogits,\n",
"                                           const dml__kernel_arguments arguments)\n",
"{\n",
"    const int rows = INT(0), classes = INT(1), all = INT(5) \? INT(5) : classes;\n",
"    const int row = CROSS_ENTROPY_ROW, inside = row < rows;\n",
"    const int from = GROUP_Y * CLASSES_AHEAD * lanes + (ITEM & (lanes - 1)),\n",
"              left = inside \? classes - from : 0;\n",
"    const float smoothing = REAL(0), beta = REAL(1);\n",
"    const WIDE first = (WIDE)row * classes + from;\n",
"    float logit[CLASSES_AHEAD], old[CLASSES_AHEAD];\n",
"    logits += first, dlogits += first;\n",
"    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = old[k] = 0.0f;\n",
"    EACH_LEFT(CLASSES_AHEAD, k, left) logit[k] = logits[k * lanes];\n",
"    if (beta != 0.0f) EACH_LEFT(CLASSES_AHEAD, k, left) old[k] = dlogits[k * lanes];\n",
"    const float weight = inside \? kept[(WIDE)rows * 5 + row] : 0.0f, largest = inside \? kept[row] : 0.0f;\n",
"    const float factor = inside \? kept[(WIDE)rows + row] * kept[(WIDE)rows * 2 + row] : 0.0f;\n",
"    const float scale = dloss[0] * kept[(WIDE)rows * 6] * weight;\n",
"    const int label = inside && labels \? labels[row] - INT(4) - from : -1; /* of this item's classes */\n",
"    if (labels && !class_weights) {\n",
"        const float of_each = smoothing / (float)all, of_label = of_each + (1.0f - smoothing);\n",
"        EACH_IN_REGISTERS(CLASSES_AHEAD, k)\n",
"        {\n",
"            const float of_class = label == k * lanes \? of_label : of_each;\n",
"            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;\n",
"        }\n",
"    } else {\n",
"        EACH_LEFT(CLASSES_AHEAD, k, left)\n",
"        {\n",
"            float of_class = dml__class_weight(target \? target + (WIDE)row * classes : 0, class_weights,\n",
"                                               from + k * lanes, all, smoothing);\n",
"            if (label == k * lanes)\n",
"                of_class += (1.0f - smoothing) * (class_weights \? class_weights[from + k * lanes] : 1.0f);\n",
"            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;\n",
"        }\n",
"    }\n",
"    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = (weight != 0.0f \? logit[k] : 0.0f) + beta * old[k];\n",
"    EACH_LEFT(CLASSES_AHEAD, k, left) dlogits[k * lanes] = logit[k];\n",
"}\n",
"\n",
"/* dlogits = dloss[0] scale[0] x the gradient of each row's loss + beta dlogits, which may be the logits.\n",
"   Buffers logits, labels (int) or the target, class weights (NULL: 1), kept (6, rows) with the scale behind\n",
"   it, dloss, dlogits; ints rows, classes, whether there are labels, lanes (16, 64 or 256), and of a part the\n",
"   same two as forward's; floats smoothing, beta; size{groups of rows, classes / lanes, rounded up}. */\n",
"KERNEL(cross_entropy_backward)\n",
"{\n",
"#define CROSS_ENTROPY_BACKWARD(lanes)                                                                        \\\n",
"    dml__cross_entropy_backward_as(HERE lanes, BUFFER(0, const float), INT(2) \? 0 : BUFFER(1, const float),  \\\n",
"                                   INT(2) \? BUFFER(1, const int) : 0, BUFFER(2, const float),                \\\n",
"                                   BUFFER(3, const float), BUFFER(4, const float), BUFFER(5, float),         \\\n",
"                                   arguments)\n",
"    BY_LANES(INT(3), CROSS_ENTROPY_BACKWARD);\n",
"#undef CROSS_ENTROPY_BACKWARD\n",
"}\n",
"\n",
"/* dtarget = the same for the target. Buffers logits, class weights (NULL: 1), kept as above, dloss, dtarget;\n",
"   ints rows, classes; floats smoothing, beta; size{rows * classes}. */\n",
"KERNEL(cross_entropy_backward_target)\n",
"{\n",
"    GLOBAL const float *logits = BUFFER(0, const float);\n",
"    GLOBAL const float *class_weights = BUFFER(1, const float);\n",
"    GLOBAL const float *kept = BUFFER(2, const float);\n",
"    GLOBAL const float *dloss = BUFFER(3, const float);\n",
"    GLOBAL float *dtarget = BUFFER(4, float);\n",
"    const unsigned rows = (unsigned)INT(0), classes = (unsigned)INT(1);\n",
"    const float beta = REAL(1);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < rows * classes) {\n",
"        const unsigned row = i / classes;\n",
"        const float weight = kept[(WIDE)rows * 5 + row];\n",
"        float value = 0.0f;\n",
"        if (weight != 0.0f) {\n",
"            value = kept[row] - logits[i] - LOG(kept[rows + row]);\n",
"            value *= dloss[0] * kept[(WIDE)rows * 6] * weight * (1.0f - REAL(0));\n",
"            if (class_weights) value *= class_weights[i - row * classes];\n",
"        }\n",
"        dtarget[i] = dml__with_beta(value, beta, dtarget + i);\n",
"    }\n",
"}\n",
"\n",
"/* scale[0] = 1, or for a mean 1 / (factor x the sum of shares), 0 where that is 0; y[0] = scale[0] x the sum\n",
"   of x[i] weights[i / each]. Buffers x, weights (NULL: 1), shares (NULL: 1 each), y, scale; ints n, each, how\n",
"   many shares, whether it is a mean; floats factor; size{1}: one group does it all. */\n",
"KERNEL(loss_total)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    GLOBAL const float *shares = BUFFER(2, const float);\n",
"    GLOBAL float *y = BUFFER(3, float);\n",
"    GLOBAL float *scale = BUFFER(4, float);\n",
"    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1), count = (unsigned)INT(2);\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = 0.0f, divisor = 0.0f;\n",
"    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS)\n",
"        sum += weights \? x[i] * weights[i / each] : x[i];\n",
"    part[ITEM] = sum;\n",
"    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    sum = part[0];\n",
"    BARRIER(); /* all have read it before its place is used again */\n",
"    if (shares)\n",
"        for (unsigned i = (unsigned)ITEM; i < count; i += DML__GROUP_ITEMS) divisor += shares[i];\n",
"    part[ITEM] = divisor;\n",
"    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    if (ITEM == 0) {\n",
"        divisor = INT(3) \? REAL(0) * (shares \? part[0] : (float)count) : 1.0f;\n",
"        scale[0] = divisor != 0.0f \? 1.0f / divisor : 0.0f;\n",
"        y[0] = divisor != 0.0f \? sum / divisor : 0.0f;\n",
"    }\n",
"}\n",
"\n",
"/* dx[i] = dloss[0] scale[0] weights[i / each] + beta dx[i]. Buffers weights (NULL: 1), scale, dloss, dx; ints\n",
"   n, each; floats beta; size{n}. */\n",
"KERNEL(loss_spread)\n",
"{\n",
"    GLOBAL const float *weights = BUFFER(0, const float);\n",
"    GLOBAL const float *scale = BUFFER(1, const float);\n",
"    GLOBAL const float *dloss = BUFFER(2, const float);\n",
"    GLOBAL float *dx = BUFFER(3, float);\n",
"    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1);\n",
"    const float beta = REAL(0);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const float value = dloss[0] * scale[0] * (weights \? weights[i / each] : 1.0f);\n",
"        dx[i] = dml__with_beta(value, beta, dx + i);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 19 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/update.cl\"\n",
"/* update.cl: one step of an optimizer, an item an element. The rules are in src/kernels/update.h, what their\n",
"   floats are at the kernels of src/kernels/update.c. Buffers w, g, state vectors; ints n, and of a sparse\n",
"   parameter the length of its rows and where in one it begins; launches give size{n}. */\n",
"#ifndef DML_GPU_UPDATE_CL\n",
"#define DML_GPU_UPDATE_CL\n",
"\n",
"/* Whether element i is in a row, of `width` elements, whose gradient is zero throughout: of a sparse\n",
"   parameter, which is updated from its row's element `column` on. 0: it isn't one. */\n",
"HELPER int dml__is_absent(GLOBAL const float *g, unsigned i, int width, int column)\n",
"{\n",
"    if (width == 0) return 0;\n",
"    GLOBAL const float *row = g + i - (i + (unsigned)column) % (unsigned)width;\n",
"    for (int c = 0; c < width; c++)\n",
"        if (row[c] != 0.0f) return 0;\n",
"    return 1;\n",
"}\n",
"\n",
"/* State v, which may be NULL. */\n",
"KERNEL(sgd_update)\n",
"{\n",
"    GLOBAL float *w = BUFFER(0, float);\n",
"    GLOBAL const float *g = BUFFER(1, const float);\n",
"    GLOBAL float *v = BUFFER(2, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float lr = REAL(0), momentum = REAL(1), weight_decay = REAL(2), nesterov = REAL(3);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {\n",
"        const float d = g[i] + weight_decay * w[i];\n",
"        float step = d;\n",
"        if (v) {\n",
"            const float velocity = momentum * v[i] + d;\n",
"            v[i] = velocity;\n",
"            step = nesterov != 0.0f \? d + momentum * velocity : velocity;\n",
"        }\n",
"        w[i] -= lr * step;\n",
"    }\n",
"}\n",
"\n",
"/* State m, v. */\n",
"KERNEL(adam_update)\n",
"{\n",
"    GLOBAL float *w = BUFFER(0, float);\n",
"    GLOBAL const float *g = BUFFER(1, const float);\n",
"    GLOBAL float *m = BUFFER(2, float);\n",
"    GLOBAL float *v = BUFFER(3, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),\n",
"                decay = REAL(5), shrink = REAL(6);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {\n",
"        const float d = g[i] + decay * w[i];\n",
"        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;\n",
"        m[i] = mean;\n",
"        v[i] = square;\n",
"        w[i] = shrink * w[i] - size * mean / (SQRT(square) + epsilon);\n",
"    }\n",
"}\n",
"\n",
"/* State v, b; b may be NULL. */\n",
"KERNEL(rmsprop_update)\n",
"{\n",
"    GLOBAL float *w = BUFFER(0, float);\n",
"    GLOBAL const float *g = BUFFER(1, const float);\n",
"    GLOBAL float *v = BUFFER(2, float);\n",
"    GLOBAL float *b = BUFFER(3, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2), keep = REAL(3), add = REAL(4),\n",
"                momentum = REAL(5);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {\n",
"        const float d = g[i] + decay * w[i];\n",
"        const float square = keep * v[i] + add * d * d;\n",
"        float step = d / (SQRT(square) + epsilon);\n",
"        v[i] = square;\n",
"        if (b) {\n",
"            step = momentum * b[i] + step;\n",
"            b[i] = step;\n",
"        }\n",
"        w[i] -= lr * step;\n",
"    }\n",
"}\n",
"\n",
"/* State v. */\n",
"KERNEL(adagrad_update)\n",
"{\n",
"    GLOBAL float *w = BUFFER(0, float);\n",
"    GLOBAL const float *g = BUFFER(1, const float);\n",
"    GLOBAL float *v = BUFFER(2, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n && !dml__is_absent(g, i, INT(1), INT(2))) {\n",
"        const float d = g[i] + decay * w[i];\n",
"        const float sum = v[i] + d * d;\n",
"        v[i] = sum;\n",
"        w[i] -= lr * d / (SQRT(sum) + epsilon);\n",
"    }\n",
"}\n",
"\n",
"/* g becomes LAMB's direction. State m, v; floats as Adam's. */\n",
"KERNEL(lamb_direction)\n",
"{\n",
"    GLOBAL const float *w = BUFFER(0, const float);\n",
"    GLOBAL float *g = BUFFER(1, float);\n",
"    GLOBAL float *m = BUFFER(2, float);\n",
"    GLOBAL float *v = BUFFER(3, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),\n",
"                decay = REAL(5);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const float d = g[i];\n",
"        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;\n",
"        m[i] = mean;\n",
"        v[i] = square;\n",
"        g[i] = size * mean / (SQRT(square) + epsilon) + decay * w[i];\n",
"    }\n",
"}\n",
"\n",
"/* y[k]: the sum of the squares of every groups-th run of 256 elements of x, from the k-th on.\n",
"   Buffers x, y; ints n, groups; size{groups}: a group a sum. */\n",
"KERNEL(sum_squares)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0), groups = (unsigned)INT(1);\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = 0.0f;\n",
"    for (unsigned i = ELEMENT; i < n; i += groups * DML__GROUP_ITEMS) sum += x[i] * x[i];\n",
"    part[ITEM] = sum;\n",
"    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    if (ITEM == 0) y[GROUP_X] = part[0];\n",
"}\n",
"\n",
"/* x times most / (norm + 1e-6) where that is below 1 or NaN, norm the root of the sum of the sums that\n",
"   sum_squares left, at most 256. Buffers x, sums; ints n, groups; floats most. */\n",
"KERNEL(clip_norm)\n",
"{\n",
"    GLOBAL float *x = BUFFER(0, float);\n",
"    GLOBAL const float *sums = BUFFER(1, const float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const int groups = INT(1);\n",
"    const unsigned i = ELEMENT;\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    part[ITEM] = ITEM < groups \? sums[ITEM] : 0.0f;\n",
"    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    const float factor = REAL(0) / (SQRT(part[0]) + 1e-6f);\n",
"    if (i < n && !(factor >= 1.0f)) x[i] *= factor;\n",
"}\n",
"\n",
"/* g = f (g + decay w), f = trust |w| / (|g| + decay |w| + epsilon), the norms' squares being what sum_squares\n",
"   left; 1 for no groups and where a norm is 0. Buffers w, g, sums of w's squares, of g's; ints n, groups;\n",
"   floats trust, decay, epsilon. */\n",
"KERNEL(trust)\n",
"{\n",
"    GLOBAL const float *w = BUFFER(0, const float);\n",
"    GLOBAL float *g = BUFFER(1, float);\n",
"    GLOBAL const float *w_sums = BUFFER(2, const float);\n",
"    GLOBAL const float *g_sums = BUFFER(3, const float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const int groups = INT(1);\n",
"    const float decay = REAL(1);\n",
"    const unsigned i = ELEMENT;\n",
"    LOCAL float w_part[DML__GROUP_ITEMS];\n",
"    LOCAL float g_part[DML__GROUP_ITEMS];\n",
"    w_part[ITEM] = ITEM < groups \? w_sums[ITEM] : 0.0f;\n",
"    g_part[ITEM] = ITEM < groups \? g_sums[ITEM] : 0.0f;\n",
"    REDUCE_SUM(w_part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    REDUCE_SUM(g_part, ITEM, DML__GROUP_ITEMS, 1);\n",
"    const float w_norm = SQRT(w_part[0]), g_norm = SQRT(g_part[0]);\n",
"    const int plain = w_norm == 0.0f || g_norm == 0.0f;\n",
"    const float factor = plain \? 1.0f : REAL(0) * w_norm / (g_norm + decay * w_norm + REAL(2));\n",
"    if (i < n) g[i] = factor * (g[i] + decay * w[i]);\n",
"}\n",
"\n",
"/* x cut to -most .. most. Buffers x; ints n; floats most. */\n",
"KERNEL(clip_values)\n",
"{\n",
"    GLOBAL float *x = BUFFER(0, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    const float most = REAL(0);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        if (x[i] > most) x[i] = most;\n",
"        if (x[i] < -most) x[i] = -most;\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 20 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/norm.cl\"\n",
"/* norm.cl: batch normalization of x (rows, channels). What belongs to a channel is summed in parts of the\n",
"   rows, so that few channels keep a whole GPU busy; the parts depend on the shape alone.\n",
"\n",
"   Ints of all: rows, channels, rows of a part, parts. Parts are (parts, 2, channels). */\n",
"#ifndef DML_GPU_NORM_CL\n",
"#define DML_GPU_NORM_CL\n",
"\n",
"/* How many numbers, their mean, and the sum of their squared distances from it. */\n",
"typedef struct dml__moments {\n",
"    int count;\n",
"    float mean, squares;\n",
"} dml__moments;\n",
"\n",
"/* Those of all numbers of two; the second has some. (From none, its mean's square might be infinite.)\n",
"   Source: Chan, Golub, LeVeque, \"Updating formulae and a pairwise algorithm for computing sample variances\",\n",
"   1979. */\n",
"HELPER dml__moments dml__moments_of_both(dml__moments a, const dml__moments b)\n",
"{\n",
"    if (a.count == 0) return b;\n",
"    const float share = (float)b.count / ((float)a.count + (float)b.count), distance = b.mean - a.mean;\n",
"    a.mean += distance * share;\n",
"    a.squares += b.squares + distance * distance * (float)a.count * share;\n",
"    a.count += b.count;\n",
"    return a;\n",
"}\n",
"\n",
"/* The mean of each part and the sum of squared distances from it. Buffers x, parts; size{channels, parts}.\n",
"   A group does 16 columns of a part; neighbouring items do neighbouring columns. */\n",
"KERNEL(batch_norm_moments)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *parts = BUFFER(1, float);\n",
"    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);\n",
"    const int to = rows - from < INT(2) \? rows : from + INT(2);\n",
"    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;\n",
"    LOCAL float means[DML__GROUP_ITEMS];\n",
"    LOCAL float squares_part[DML__GROUP_ITEMS];\n",
"    LOCAL int counts[DML__GROUP_ITEMS];\n",
"    /* Means are those of distances from one of the numbers, so that what they differ in isn't rounded off. */\n",
"    const float pivot = column < channels && from < rows \? x[(WIDE)from * channels + column] : 0.0f;\n",
"    dml__moments all;\n",
"    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;\n",
"#ifdef DML__RUN /* once more from the cache */\n",
"    if (column < channels) {\n",
"        for (int row = from + lane; row < to; row += 16) {\n",
"            all.mean += x[(WIDE)row * channels + column] - pivot;\n",
"            all.count++;\n",
"        }\n",
"        if (all.count) all.mean /= (float)all.count;\n",
"        for (int row = from + lane; row < to; row += 16) {\n",
"            const float distance = x[(WIDE)row * channels + column] - pivot - all.mean;\n",
"            all.squares += distance * distance;\n",
"        }\n",
"    }\n",
"#else\n",
"    if (column < channels)\n",
"        for (int first = from + lane; first < to; first += ROW_KEPT * 16) {\n",
"            float value[ROW_KEPT], sum = 0.0f;\n",
"            dml__moments more;\n",
"            const int left = (to - first + 15) / 16; /* rows of this item */\n",
"            more.count = left < ROW_KEPT \? left : ROW_KEPT, more.squares = 0.0f;\n",
"            GLOBAL const float *x_from = x + (WIDE)first * channels + column;\n",
"            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)\n",
"            {\n",
"                value[k] = *x_from;\n",
"                x_from += (WIDE)16 * channels;\n",
"            }\n",
"            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)\n",
"            {\n",
"                value[k] -= pivot;\n",
"                sum += value[k];\n",
"            }\n",
"            more.mean = sum / (float)more.count;\n",
"            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)\n",
"            {\n",
"                const float distance = value[k] - more.mean;\n",
"                more.squares += distance * distance;\n",
"            }\n",
"            all = dml__moments_of_both(all, more);\n",
"        }\n",
"#endif\n",
"    means[ITEM] = all.mean;\n",
"    squares_part[ITEM] = all.squares;\n",
"    counts[ITEM] = all.count;\n",
"    BARRIER();\n",
"    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */\n",
"        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;\n",
"        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {\n",
"            dml__moments more;\n",
"            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];\n",
"            all = dml__moments_of_both(all, more);\n",
"        }\n",
"        to_part[0] = pivot + all.mean;\n",
"        to_part[channels] = all.squares;\n",
"    }\n",
"}\n",
"\n",
"/* Mean and variance from the parts, and the running ones moved towards them. Buffers parts, mean, variance,\n",
"   running mean, running variance; floats: the shares of the new mean and variance in the running ones, and\n",
"   the factor of the variance there; size{channels}. A group does 16 channels. */\n",
"KERNEL(batch_norm_statistics)\n",
"{\n",
"    GLOBAL const float *parts = BUFFER(0, const float);\n",
"    GLOBAL float *mean = BUFFER(1, float);\n",
"    GLOBAL float *variance = BUFFER(2, float);\n",
"    GLOBAL float *running_mean = BUFFER(3, float);\n",
"    GLOBAL float *running_variance = BUFFER(4, float);\n",
"    const int rows = INT(0), channels = INT(1), part_rows = INT(2), count = INT(3);\n",
"    const float mean_share = REAL(0), variance_share = REAL(1), unbiased = REAL(2);\n",
"    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;\n",
"    LOCAL float means[DML__GROUP_ITEMS];\n",
"    LOCAL float squares_part[DML__GROUP_ITEMS];\n",
"    LOCAL int counts[DML__GROUP_ITEMS];\n",
"    dml__moments all, more;\n",
"    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;\n",
"    if (c < channels)\n",
"        for (int i = lane; i < count; i += 16) {\n",
"            more.count = rows - i * part_rows < part_rows \? rows - i * part_rows : part_rows;\n",
"            more.mean = parts[(WIDE)2 * i * channels + c];\n",
"            more.squares = parts[((WIDE)2 * i + 1) * channels + c];\n",
"            all = dml__moments_of_both(all, more);\n",
"        }\n",
"    means[ITEM] = all.mean;\n",
"    squares_part[ITEM] = all.squares;\n",
"    counts[ITEM] = all.count;\n",
"    BARRIER();\n",
"    if (lane == 0 && c < channels) {\n",
"        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {\n",
"            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];\n",
"            all = dml__moments_of_both(all, more);\n",
"        }\n",
"        const float middle = all.mean, v = all.squares / (float)rows;\n",
"        mean[c] = middle;\n",
"        variance[c] = v;\n",
"        if (ABS(middle) <= 3.40282347e38f && ABS(unbiased * v) <= 3.40282347e38f) { /* finite */\n",
"            running_mean[c] = (1.0f - mean_share) * running_mean[c] + mean_share * middle;\n",
"            running_variance[c] =\n",
"                (1.0f - variance_share) * running_variance[c] + variance_share * (unbiased * v);\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* y = scale (x - mean) / sqrt(variance + epsilon) + shift. Buffers x, scale, shift, mean, variance, y; floats\n",
"   epsilon; size{rows * channels}. */\n",
"KERNEL(batch_norm_forward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *scale = BUFFER(1, const float);\n",
"    GLOBAL const float *shift = BUFFER(2, const float);\n",
"    GLOBAL const float *mean = BUFFER(3, const float);\n",
"    GLOBAL const float *variance = BUFFER(4, const float);\n",
"    GLOBAL float *y = BUFFER(5, float);\n",
"    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;\n",
"    const float epsilon = REAL(0);\n",
"    RUN_BEGINS(n);\n",
"    float value[RUN], level[RUN], factor[RUN], bias[RUN];\n",
"    EACH_OF_RUN(k, i, n) value[k] = x[i];\n",
"    EACH_PLACE_OF_RUN(k, row, c, channels)\n",
"    {\n",
"        level[k] = mean[c];\n",
"        factor[k] = scale[c] * RECIPROCAL_ROOT(variance[c] + epsilon);\n",
"        bias[k] = shift[c];\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) y[i] = (value[k] - level[k]) * factor[k] + bias[k];\n",
"}\n",
"\n",
"/* The sums of dy and of dy (x - mean) of each part. Buffers x, dy, mean, parts; size{channels, parts}. */\n",
"KERNEL(batch_norm_products)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL const float *mean = BUFFER(2, const float);\n",
"    GLOBAL float *parts = BUFFER(3, float);\n",
"    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);\n",
"    const int to = rows - from < INT(2) \? rows : from + INT(2);\n",
"    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = 0.0f, products = 0.0f;\n",
"    if (column < channels) {\n",
"        const float middle = mean[column];\n",
"        const WIDE on = (WIDE)16 * channels;\n",
"        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {\n",
"            float value[ROW_AHEAD], d[ROW_AHEAD];\n",
"            GLOBAL const float *x_from = x + (WIDE)first * channels + column;\n",
"            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;\n",
"            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)\n",
"            {\n",
"                value[k] = *x_from - middle;\n",
"                d[k] = *dy_from;\n",
"                x_from += on, dy_from += on;\n",
"            }\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k)\n",
"            {\n",
"                sum += d[k];\n",
"                products += d[k] * value[k];\n",
"            }\n",
"        }\n",
"    }\n",
"    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);\n",
"    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);\n",
"    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */\n",
"        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;\n",
"        to_part[0] = sum;\n",
"        to_part[channels] = products;\n",
"    }\n",
"}\n",
"\n",
"/* The gradients of scale and shift from those sums, and what dx is made of. Buffers parts, scale, mean,\n",
"   variance, and six rows of channels: dscale, dshift, then the mean and the factors of dy, of x - mean and of\n",
"   1. Ints also: whether mean and variance are those of x; floats epsilon; size{channels}. A group does 16\n",
"   channels. */\n",
"KERNEL(batch_norm_gradients)\n",
"{\n",
"    GLOBAL const float *parts = BUFFER(0, const float);\n",
"    GLOBAL const float *scale = BUFFER(1, const float);\n",
"    GLOBAL const float *mean = BUFFER(2, const float);\n",
"    GLOBAL const float *variance = BUFFER(3, const float);\n",
"    GLOBAL float *out = BUFFER(4, float);\n",
"    const int rows = INT(0), channels = INT(1), count = INT(3), by_batch = INT(4);\n",
"    const float epsilon = REAL(0);\n",
"    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    float sum = 0.0f, products = 0.0f;\n",
"    if (c < channels)\n",
"        for (int i = lane; i < count; i += 16) {\n",
"            sum += parts[(WIDE)2 * i * channels + c];\n",
"            products += parts[((WIDE)2 * i + 1) * channels + c];\n",
"        }\n",
"    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);\n",
"    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);\n",
"    if (lane == 0 && c < channels) {\n",
"        const float inverse = 1.0f / SQRT(variance[c] + epsilon), factor = scale[c] * inverse;\n",
"        out[c] = products * inverse;\n",
"        out[(WIDE)channels + c] = sum;\n",
"        out[(WIDE)2 * channels + c] = mean[c];\n",
"        out[(WIDE)3 * channels + c] = factor;\n",
"        out[(WIDE)4 * channels + c] = by_batch \? -factor * inverse * inverse * products / (float)rows : 0.0f;\n",
"        out[(WIDE)5 * channels + c] = by_batch \? -factor * sum / (float)rows : 0.0f;\n",
"    }\n",
"}\n",
"\n",
"/* dx = what follows from the last four of those rows + beta dx. Buffers x, dy, the rows, dx; floats beta;\n",
"   size{rows * channels}. */\n",
"KERNEL(batch_norm_backward)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL const float *by_channel = BUFFER(2, const float);\n",
"    GLOBAL float *dx = BUFFER(3, float);\n",
"    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;\n",
"    const float beta = REAL(0);\n",
"    RUN_BEGINS(n);\n",
"    float value[RUN], d[RUN], old[RUN], level[RUN], of_dy[RUN], of_x[RUN], rest[RUN];\n",
"    EACH_OF_RUN(k, i, n)\n",
"    {\n",
"        value[k] = x[i];\n",
"        d[k] = dy[i];\n",
"        old[k] = dml__old(beta, dx + i);\n",
"    }\n",
"    EACH_PLACE_OF_RUN(k, row, c, channels)\n",
"    {\n",
"        level[k] = by_channel[c];\n",
"        of_dy[k] = by_channel[channels + c];\n",
"        of_x[k] = by_channel[2 * channels + c];\n",
"        rest[k] = by_channel[3 * channels + c];\n",
"    }\n",
"    EACH_OF_RUN(k, i, n)\n",
"    dx[i] = of_dy[k] * d[k] + of_x[k] * (value[k] - level[k]) + rest[k] + beta * old[k];\n",
"}\n",
"\n",
"#endif\n",
"#line 21 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/sample_norm.cl\"\n",
"/* sample_norm.cl: layer, RMS and group norm: numbers of a sample that are normalized together. x is (rows,\n",
"   channels); a row is a pixel, `pixels` of them a sample, and `width` neighbouring channels a group.\n",
"\n",
"   Ints of all: rows, channels, pixels, width, whether by square (no mean is subtracted), rows of a part,\n",
"   parts, whether groups of samples are long, groups, samples * groups. Statistics are (samples, groups, 2):\n",
"   the mean, and 1 / sqrt(variance + epsilon).\n",
"\n",
"   A work-group does four groups of samples with 64 items each, or a long one with all, where size{, 4} is\n",
"   launched. A sample of one row that fits into ROW_KEPT numbers an item is read once. */\n",
"#ifndef DML_GPU_SAMPLE_NORM_CL\n",
"#define DML_GPU_SAMPLE_NORM_CL\n",
"\n",
"/* Both kernels are helpers with constants: lanes, and whether a sample is one row, which is `flat`. */\n",
"#define SAMPLE_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part\n",
"\n",
"/* The item's place, for the statements behind it: it has numbers lane, lane + lanes, ... below most. What is\n",
"   kept is flat. */\n",
"#define SAMPLE_BEGIN()                                                                                       \\\n",
"    const int channels = INT(1), width = INT(3), groups = INT(8), n = width * INT(2);                        \\\n",
"    const int lane = ITEM & (lanes - 1), team = ITEM - lane;                                                 \\\n",
"    const int number = GROUP_X * 4 + (lanes > 64 \? GROUP_Y : ITEM / 64);                                     \\\n",
"    const int inside = number < INT(9) && GROUP_Y < (lanes > 64 \? 4 : 1), most = inside \? n : 0;             \\\n",
"    const dml__gpu_divisor by_width = dml__gpu_divisor_of(width);                                            \\\n",
"    const int kept = flat && n <= lanes * ROW_KEPT, sample = groups == 1 \? number : number / groups;         \\\n",
"    const int channel = (number - sample * groups) * width + (flat \? lane : 0);                              \\\n",
"    const WIDE first = (WIDE)sample * INT(2) * channels + channel\n",
"\n",
"/* From number `from` on: where that is, of an array or of a parameter at `first` or `channel`; and how far\n",
"   behind it, and for how many channels, number k * lanes further. */\n",
"#define SAMPLE_PIECE(p) ((p) + (flat \? from - lane : 0))\n",
"#define SAMPLE_ON(k)                                                                                         \\\n",
"    (flat \? (WIDE)((k)*lanes) : (WIDE)SAMPLE_PIXEL(from + (k)*lanes) * channels + SAMPLE_CHANNEL_ON(k))\n",
"#define SAMPLE_CHANNEL_ON(k) (flat \? (k)*lanes : from + (k)*lanes - SAMPLE_PIXEL(from + (k)*lanes) * width)\n",
"#define SAMPLE_PIXEL(i) ((int)dml__gpu_divide((unsigned)(i), by_width))\n",
"\n",
"HELPER void dml__sample_norm_forward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weight,\n",
"                                        GLOBAL const float *bias, GLOBAL float *statistics, GLOBAL float *y,\n",
"                                        const dml__kernel_arguments arguments)\n",
"{\n",
"    SAMPLE_BEGIN();\n",
"    const float epsilon = REAL(0);\n",
"    float value[ROW_KEPT], mean = 0.0f, sum = 0.0f, squares = 0.0f;\n",
"    x += first, y += first;\n",
"    if (weight) weight += channel;\n",
"    if (bias) bias += channel;\n",
"    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = 0.0f;\n",
"    if (kept) {\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[k * lanes];\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) sum += value[k];\n",
"    } else if (!INT(4)) {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *piece = SAMPLE_PIECE(x);\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];\n",
"        }\n",
"    }\n",
"    if (!INT(4)) {\n",
"        TEAM_SUM(sum, part, team, lane, lanes, 1);\n",
"        mean = sum / (float)n;\n",
"    }\n",
"    if (kept) {\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane)\n",
"        {\n",
"            value[k] -= mean;\n",
"            squares += value[k] * value[k];\n",
"        }\n",
"    } else {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *piece = SAMPLE_PIECE(x);\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = mean;\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) squares += (value[k] - mean) * (value[k] - mean);\n",
"        }\n",
"    }\n",
"    TEAM_SUM(squares, part, team, lane, lanes, 1);\n",
"    const float inverse = 1.0f / SQRT(squares / (float)n + epsilon);\n",
"    if (lane == 0 && inside) {\n",
"        statistics[(WIDE)2 * number] = mean;\n",
"        statistics[(WIDE)2 * number + 1] = inverse;\n",
"    }\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] *= inverse;\n",
"        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] *= weight[k * lanes];\n",
"        if (bias) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] += bias[k * lanes];\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane) y[k * lanes] = value[k];\n",
"    } else {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *piece = SAMPLE_PIECE(x), *scale = SAMPLE_PIECE(weight);\n",
"            GLOBAL const float *shift = SAMPLE_PIECE(bias);\n",
"            GLOBAL float *to = SAMPLE_PIECE(y);\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = (piece[SAMPLE_ON(k)] - mean) * inverse;\n",
"            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] *= scale[SAMPLE_CHANNEL_ON(k)];\n",
"            if (bias) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] += shift[SAMPLE_CHANNEL_ON(k)];\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = value[k];\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"HELPER void dml__sample_norm_backward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,\n",
"                                         GLOBAL const float *weight, GLOBAL const float *statistics,\n",
"                                         GLOBAL float *dx, const dml__kernel_arguments arguments)\n",
"{\n",
"    SAMPLE_BEGIN();\n",
"    const float beta = REAL(0);\n",
"    const float mean = inside \? statistics[(WIDE)2 * number] : 0.0f;\n",
"    const float inverse = inside \? statistics[(WIDE)2 * number + 1] : 0.0f;\n",
"    float value[ROW_KEPT], g[ROW_KEPT], sum = 0.0f, products = 0.0f;\n",
"    x += first, dy += first, dx += first;\n",
"    if (weight) weight += channel;\n",
"    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = g[k] = 0.0f;\n",
"    if (kept) {\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane)\n",
"        {\n",
"            value[k] = x[k * lanes];\n",
"            g[k] = dy[k * lanes];\n",
"        }\n",
"        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] *= weight[k * lanes];\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane)\n",
"        {\n",
"            value[k] -= mean;\n",
"            sum += g[k];\n",
"            products += g[k] * value[k];\n",
"        }\n",
"    } else {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);\n",
"            GLOBAL const float *scale = SAMPLE_PIECE(weight);\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                value[k] = x_piece[SAMPLE_ON(k)];\n",
"                g[k] = dy_piece[SAMPLE_ON(k)];\n",
"            }\n",
"            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                sum += g[k];\n",
"                products += g[k] * (value[k] - mean);\n",
"            }\n",
"        }\n",
"    }\n",
"    TEAM_SUM(sum, part, team, lane, lanes, 1);\n",
"    TEAM_SUM(products, part, team, lane, lanes, 1);\n",
"    const float level = INT(4) \? 0.0f : sum / (float)n;\n",
"    const float along = inverse * inverse * (products / (float)n);\n",
"    if (kept) {\n",
"        EACH_IN_REGISTERS(ROW_KEPT, k) g[k] = inverse * ((g[k] - level) - value[k] * along);\n",
"        if (beta != 0.0f) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] += beta * dx[k * lanes];\n",
"        EACH_LEFT(ROW_KEPT, k, most - lane) dx[k * lanes] = g[k];\n",
"    } else {\n",
"        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {\n",
"            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);\n",
"            GLOBAL const float *scale = SAMPLE_PIECE(weight);\n",
"            GLOBAL float *to = SAMPLE_PIECE(dx);\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            {\n",
"                value[k] = x_piece[SAMPLE_ON(k)];\n",
"                g[k] = dy_piece[SAMPLE_ON(k)];\n",
"            }\n",
"            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from)\n",
"            g[k] = inverse * ((g[k] - level) - (value[k] - mean) * along);\n",
"            if (beta != 0.0f) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] += beta * to[SAMPLE_ON(k)];\n",
"            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = g[k];\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* Which of them a launch is for. */\n",
"#ifdef DML__RUN\n",
"#define SAMPLE_CHOICE(call) call(INT(2) == 1, INT(7) \? 256 : 64)\n",
"#else\n",
"#define SAMPLE_CHOICE(call)                                                                                  \\\n",
"    do {                                                                                                     \\\n",
"        if (INT(2) == 1 && !INT(7))                                                                          \\\n",
"            call(1, 64);                                                                                     \\\n",
"        else if (INT(2) == 1)                                                                                \\\n",
"            call(1, 256);                                                                                    \\\n",
"        else if (!INT(7))                                                                                    \\\n",
"            call(0, 64);                                                                                     \\\n",
"        else                                                                                                 \\\n",
"            call(0, 256);                                                                                    \\\n",
"    } while (0)\n",
"#endif\n",
"\n",
"/* y = weight (x - mean) inverse + bias. Buffers x, weight or NULL, bias or NULL, statistics, y; floats\n",
"   epsilon; size{samples * groups}, of long ones also 4. y may be x. */\n",
"KERNEL(sample_norm_forward_team)\n",
"{\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"#define SAMPLE_FORWARD(flat, lanes)                                                                          \\\n",
"    dml__sample_norm_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),      \\\n",
"                                BUFFER(2, const float), BUFFER(3, float), BUFFER(4, float), arguments)\n",
"    SAMPLE_CHOICE(SAMPLE_FORWARD);\n",
"#undef SAMPLE_FORWARD\n",
"}\n",
"\n",
"/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) + beta dx for g = weight dy, by\n",
"   square without the mean of g. Buffers x, dy, weight or NULL, statistics, dx; floats beta;\n",
"   size{samples * groups}, of long ones also 4. dx may be dy. */\n",
"KERNEL(sample_norm_backward_team)\n",
"{\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"#define SAMPLE_BACKWARD(flat, lanes)                                                                         \\\n",
"    dml__sample_norm_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),     \\\n",
"                                 BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),           \\\n",
"                                 arguments)\n",
"    SAMPLE_CHOICE(SAMPLE_BACKWARD);\n",
"#undef SAMPLE_BACKWARD\n",
"}\n",
"\n",
"/* The sums of dy and of dy (x - mean) inverse of each channel over the rows of a part: parts (2, parts,\n",
"   channels). Buffers x, dy, statistics, parts; size{channels, parts}. A group does 16 columns of a part. */\n",
"KERNEL(sample_norm_products)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL const float *statistics = BUFFER(2, const float);\n",
"    GLOBAL float *parts = BUFFER(3, float);\n",
"    const int rows = INT(0), channels = INT(1), pixels = INT(2), groups = INT(8);\n",
"    const int from = GROUP_Y * INT(5), to = rows - from < INT(5) \? rows : from + INT(5);\n",
"    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16, group = column / INT(3);\n",
"    const dml__gpu_divisor by_pixels = dml__gpu_divisor_of(pixels);\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    const WIDE on = (WIDE)16 * channels;\n",
"    float sum = 0.0f, products = 0.0f;\n",
"    if (column < channels) {\n",
"        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {\n",
"            float value[ROW_AHEAD], d[ROW_AHEAD], mean[ROW_AHEAD], inverse[ROW_AHEAD];\n",
"            GLOBAL const float *x_from = x + (WIDE)first * channels + column;\n",
"            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = mean[k] = inverse[k] = 0.0f;\n",
"            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)\n",
"            {\n",
"                const int sample = pixels == 1 \? row : (int)dml__gpu_divide((unsigned)row, by_pixels);\n",
"                GLOBAL const float *of = statistics + 2 * ((WIDE)sample * groups + group);\n",
"                mean[k] = of[0], inverse[k] = of[1];\n",
"                value[k] = *x_from, d[k] = *dy_from;\n",
"                x_from += on, dy_from += on;\n",
"            }\n",
"            EACH_IN_REGISTERS(ROW_AHEAD, k)\n",
"            {\n",
"                sum += d[k];\n",
"                products += d[k] * ((value[k] - mean[k]) * inverse[k]);\n",
"            }\n",
"        }\n",
"    }\n",
"    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);\n",
"    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);\n",
"    if (lane == 0 && column < channels && GROUP_Y < INT(6)) { /* groups may be more than parts */\n",
"        parts[(WIDE)GROUP_Y * channels + column] = sum;\n",
"        parts[(WIDE)(INT(6) + GROUP_Y) * channels + column] = products;\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 22 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/sample_norm_solo.cl\"\n",
"/* sample_norm_solo.cl: the teams of sample_norm.cl where an item is a whole processor core: it does\n",
"   SAMPLES_SOLO groups of samples, one after the other, with vectors. A group is a run of `width` numbers a\n",
"   pixel. */\n",
"#ifndef DML_GPU_SAMPLE_NORM_SOLO_CL\n",
"#define DML_GPU_SAMPLE_NORM_SOLO_CL\n",
"#ifdef SOLO_KERNEL\n",
"\n",
"#define SAMPLES_SOLO 8\n",
"\n",
"/* One group of a sample: where its numbers are, and its place in the parameters. */\n",
"typedef struct dml__solo_sample {\n",
"    int pixels, width, channel;\n",
"    WIDE first, step; /* of the first pixel, and between pixels */\n",
"    float count;\n",
"} dml__solo_sample;\n",
"\n",
"HELPER dml__solo_sample dml__solo_sample_at(int number, const dml__kernel_arguments arguments)\n",
"{\n",
"    const int groups = INT(8);\n",
"    dml__solo_sample s;\n",
"    s.pixels = INT(2), s.width = INT(3), s.step = INT(1);\n",
"    s.channel = number % groups * s.width;\n",
"    s.first = (WIDE)(number / groups) * s.pixels * s.step + s.channel;\n",
"    s.count = (float)s.pixels * (float)s.width;\n",
"    return s;\n",
"}\n",
"\n",
"HELPER float dml__solo_total(VECTOR v)\n",
"{\n",
"    float lane[VECTOR_LANES], total = 0.0f;\n",
"    VECTOR_STORE(lane, v);\n",
"    for (int i = 0; i < VECTOR_LANES; i++) total += lane[i];\n",
"    return total;\n",
"}\n",
"\n",
"/* The sum of the distances from `middle`, or of their squares. */\n",
"HELPER float dml__solo_distances(GLOBAL const float *x, const dml__solo_sample s, float middle, int squares)\n",
"{\n",
"    const VECTOR middles = VECTOR_OF(middle);\n",
"    VECTOR total = VECTOR_OF(0.0f);\n",
"    float rest = 0.0f;\n",
"    for (int pixel = 0; pixel < s.pixels; pixel++) {\n",
"        GLOBAL const float *from = x + s.first + pixel * s.step;\n",
"        int i = 0;\n",
"        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES) {\n",
"            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(from + i), -1.0f, middles);\n",
"            total = squares \? VECTOR_ADD_PRODUCTS(total, distance, distance)\n",
"                            : VECTOR_ADD_PRODUCT(total, 1.0f, distance);\n",
"        }\n",
"        for (; i < s.width; i++) {\n",
"            const float distance = from[i] - middle;\n",
"            rest += squares \? distance * distance : distance;\n",
"        }\n",
"    }\n",
"    return dml__solo_total(total) + rest;\n",
"}\n",
"\n",
"/* What sample_norm_forward_team computes, of the same arguments. */\n",
"SOLO_KERNEL(sample_norm_forward_solo)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *weight = BUFFER(1, const float);\n",
"    GLOBAL const float *bias = BUFFER(2, const float);\n",
"    GLOBAL float *statistics = BUFFER(3, float);\n",
"    GLOBAL float *y = BUFFER(4, float);\n",
"    const int all = GROUP_Y \? 0 : INT(9); /* along y there are teams only */\n",
"    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO \? (GROUP_X + 1) * SAMPLES_SOLO : all;\n",
"    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {\n",
"        const dml__solo_sample s = dml__solo_sample_at(number, arguments);\n",
"        const float origin = x[s.first]; /* a sum of distances from it loses less */\n",
"        const float mean = INT(4) \? 0.0f : origin + dml__solo_distances(x, s, origin, 0) / s.count;\n",
"        const float inverse = 1.0f / SQRT(dml__solo_distances(x, s, mean, 1) / s.count + REAL(0));\n",
"        statistics[(WIDE)2 * number] = mean;\n",
"        statistics[(WIDE)2 * number + 1] = inverse;\n",
"        for (int pixel = 0; pixel < s.pixels; pixel++) {\n",
"            const WIDE at = s.first + pixel * s.step;\n",
"            int i = 0, c = s.channel;\n",
"            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {\n",
"                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));\n",
"                const VECTOR scale = weight \? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);\n",
"                const VECTOR shift = bias \? VECTOR_READ(bias + c) : VECTOR_OF(0.0f);\n",
"                const VECTOR value = VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), inverse, distance);\n",
"                VECTOR_WRITE(y + at + i, VECTOR_ADD_PRODUCTS(shift, value, scale));\n",
"            }\n",
"            for (; i < s.width; i++, c++) {\n",
"                const float value = (x[at + i] - mean) * inverse;\n",
"                y[at + i] = (weight \? value * weight[c] : value) + (bias \? bias[c] : 0.0f);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* The sums of g = weight dy, and of g (x - mean). */\n",
"typedef struct dml__solo_slopes {\n",
"    float sum, products;\n",
"} dml__solo_slopes;\n",
"\n",
"HELPER dml__solo_slopes dml__solo_slopes_of(GLOBAL const float *x, GLOBAL const float *dy,\n",
"                                            GLOBAL const float *weight, const dml__solo_sample s, float mean)\n",
"{\n",
"    VECTOR sum = VECTOR_OF(0.0f), products = VECTOR_OF(0.0f);\n",
"    dml__solo_slopes rest;\n",
"    rest.sum = 0.0f, rest.products = 0.0f;\n",
"    for (int pixel = 0; pixel < s.pixels; pixel++) {\n",
"        const WIDE at = s.first + pixel * s.step;\n",
"        int i = 0, c = s.channel;\n",
"        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {\n",
"            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));\n",
"            const VECTOR scale = weight \? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);\n",
"            const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_READ(dy + at + i), scale);\n",
"            sum = VECTOR_ADD_PRODUCT(sum, 1.0f, g);\n",
"            products = VECTOR_ADD_PRODUCTS(products, g, distance);\n",
"        }\n",
"        for (; i < s.width; i++, c++) {\n",
"            const float g = weight \? dy[at + i] * weight[c] : dy[at + i];\n",
"            rest.sum += g;\n",
"            rest.products += g * (x[at + i] - mean);\n",
"        }\n",
"    }\n",
"    rest.sum += dml__solo_total(sum);\n",
"    rest.products += dml__solo_total(products);\n",
"    return rest;\n",
"}\n",
"\n",
"/* What sample_norm_backward_team computes, of the same arguments. */\n",
"SOLO_KERNEL(sample_norm_backward_solo)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL const float *weight = BUFFER(2, const float);\n",
"    GLOBAL const float *statistics = BUFFER(3, const float);\n",
"    GLOBAL float *dx = BUFFER(4, float);\n",
"    const float beta = REAL(0);\n",
"    const int all = GROUP_Y \? 0 : INT(9); /* along y there are teams only */\n",
"    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO \? (GROUP_X + 1) * SAMPLES_SOLO : all;\n",
"    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {\n",
"        const dml__solo_sample s = dml__solo_sample_at(number, arguments);\n",
"        const float mean = statistics[(WIDE)2 * number], inverse = statistics[(WIDE)2 * number + 1];\n",
"        const dml__solo_slopes slopes = dml__solo_slopes_of(x, dy, weight, s, mean);\n",
"        const float level = INT(4) \? 0.0f : slopes.sum / s.count;\n",
"        const float along = inverse * inverse * (slopes.products / s.count);\n",
"        for (int pixel = 0; pixel < s.pixels; pixel++) {\n",
"            const WIDE at = s.first + pixel * s.step;\n",
"            int i = 0, c = s.channel;\n",
"            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {\n",
"                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));\n",
"                const VECTOR scale = weight \? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);\n",
"                const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(-level), VECTOR_READ(dy + at + i), scale);\n",
"                const VECTOR old = beta == 0.0f \? VECTOR_OF(0.0f) : VECTOR_READ(dx + at + i);\n",
"                const VECTOR slope = VECTOR_ADD_PRODUCT(g, -along, distance);\n",
"                VECTOR_WRITE(dx + at + i, VECTOR_ADD_PRODUCT(VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), beta, old),\n",
"                                                             inverse, slope));\n",
"            }\n",
"            for (; i < s.width; i++, c++) {\n",
"                const float g = weight \? dy[at + i] * weight[c] : dy[at + i];\n",
"                const float slope = (g - level) - (x[at + i] - mean) * along;\n",
"                dx[at + i] = dml__with_beta(inverse * slope, beta, dx + at + i);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#endif\n",
"#line 23 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/embedding.cl\"\n",
"/* embedding.cl: rows of a table (rows, width) by number. Indices are (count), in range: the host sees to it.\n",
"\n",
"   Ints of all: count, width; and where a table is a part of one, the number of its first row there and how\n",
"   many it has (0: it is all of the table): the rows of other parts are zeros, and left alone. */\n",
"#ifndef DML_GPU_EMBEDDING_CL\n",
"#define DML_GPU_EMBEDDING_CL\n",
"\n",
"/* Where a row is in such a part, -1 where it isn't. */\n",
"HELPER int dml__row_here(int index, int first, int rows)\n",
"{\n",
"    const int row = index - first;\n",
"    return rows > 0 && (row < 0 || row >= rows) \? -1 : row;\n",
"}\n",
"\n",
"/* y[i] = table[indices[i]]. Buffers indices (int), table, y; size{count * width}. */\n",
"KERNEL(embedding_forward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const float *table = BUFFER(1, const float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;\n",
"    RUN_BEGINS(n);\n",
"    int row[RUN];\n",
"    unsigned column[RUN];\n",
"    float value[RUN];\n",
"    EACH_PLACE_OF_RUN(k, place, c, width)\n",
"    {\n",
"        row[k] = place < (unsigned)INT(0) \? dml__row_here(indices[place], INT(2), INT(3)) : -1;\n",
"        column[k] = c;\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) value[k] = row[k] < 0 \? 0.0f : table[(WIDE)row[k] * INT(1) + column[k]];\n",
"    EACH_OF_RUN(k, i, n) y[i] = value[k];\n",
"}\n",
"\n",
"/* For each place the next one with the same index, or -1; and, behind these, whether it is the first. So the\n",
"   sum of each row can be made by one item, in order. Buffers indices (int), links (int); size{count}.\n",
"\n",
"   A group does LINKED places: each item looks through its share of all others, for all of these at once. */\n",
"#define LINKED 16\n",
"KERNEL(embedding_links_team)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL int *links = BUFFER(1, int);\n",
"    const int count = INT(0), begin = GROUP_X * LINKED;\n",
"    LOCAL int\n",
"        nexts[LINKED * DML__GROUP_ITEMS]; /* what each item found: twice the next, less 1 if one is before */\n",
"    int mine[LINKED], found[LINKED];\n",
"    UNROLL for (int l = 0; l < LINKED; l++)\n",
"    {\n",
"        mine[l] = begin + l < count \? indices[begin + l] : -1;\n",
"        found[l] = count;\n",
"    }\n",
"    unsigned befores = 0;\n",
"    for (int first = ITEM; first < count; first += ROW_AHEAD * DML__GROUP_ITEMS) {\n",
"        int index[ROW_AHEAD];\n",
"        UNROLL for (int k = 0; k < ROW_AHEAD; k++) index[k] = mine[0];\n",
"        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count) index[k] = indices[at];\n",
"        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count)\n",
"        {\n",
"            int any = 0;\n",
"            UNROLL for (int l = 0; l < LINKED; l++) any |= index[k] == mine[l];\n",
"            if (any) {\n",
"                UNROLL for (int l = 0; l < LINKED; l++)\n",
"                {\n",
"                    if (index[k] != mine[l]) continue;\n",
"                    if (at < begin + l) befores |= 1u << l;\n",
"                    if (at > begin + l && at < found[l]) found[l] = at;\n",
"                }\n",
"            }\n",
"        }\n",
"    }\n",
"    UNROLL for (int l = 0; l < LINKED; l++) nexts[l * DML__GROUP_ITEMS + ITEM] =\n",
"        2 * found[l] + (int)(befores >> l & 1u);\n",
"    BARRIER();\n",
"    const int l = ITEM / (DML__GROUP_ITEMS / LINKED), lane = ITEM % (DML__GROUP_ITEMS / LINKED);\n",
"    int next = count, before = 0;\n",
"    for (int of = lane; of < DML__GROUP_ITEMS; of += DML__GROUP_ITEMS / LINKED) {\n",
"        const int other = nexts[l * DML__GROUP_ITEMS + of];\n",
"        if (other / 2 < next) next = other / 2;\n",
"        before |= other & 1;\n",
"    }\n",
"    BARRIER(); /* all have read them before their places are used again */\n",
"    nexts[ITEM] = 2 * next + before;\n",
"    BARRIER();\n",
"    if (lane == 0 && begin + l < count) {\n",
"        for (int of = 1; of < DML__GROUP_ITEMS / LINKED; of++) {\n",
"            const int other = nexts[ITEM + of];\n",
"            if (other / 2 < next) next = other / 2;\n",
"            before |= other & 1;\n",
"        }\n",
"        links[begin + l] = next < count \? next : -1;\n",
"        links[(WIDE)count + begin + l] = !before;\n",
"    }\n",
"}\n",
"\n",
"#ifdef SOLO_KERNEL\n",
"/* The same, where an item is a whole processor core: it looks from each place to the nearest. */\n",
"SOLO_KERNEL(embedding_links_solo)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL int *links = BUFFER(1, int);\n",
"    const int count = INT(0), begin = GROUP_X * 256, end = count - begin < 256 \? count : begin + 256;\n",
"    for (int i = begin; i < end; i++) {\n",
"        const int mine = indices[i];\n",
"        int next = i + 1, before = i - 1;\n",
"        while (next < count && indices[next] != mine) next++;\n",
"        while (before >= 0 && indices[before] != mine) before--;\n",
"        links[i] = next < count \? next : -1;\n",
"        links[(WIDE)count + i] = before < 0;\n",
"    }\n",
"}\n",
"#endif\n",
"\n",
"/* dtable[r] += the sum of those dy[i] whose index is r. Buffers indices (int), links (int), dy, dtable;\n",
"   size{count * width}. */\n",
"#ifdef DML__RUN\n",
"#define LINKS_AHEAD 1\n",
"#else\n",
"#define LINKS_AHEAD 4\n",
"#endif\n",
"KERNEL(embedding_backward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const int *links = BUFFER(1, const int);\n",
"    GLOBAL const float *dy = BUFFER(2, const float);\n",
"    GLOBAL float *dtable = BUFFER(3, float);\n",
"    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;\n",
"    RUN_BEGINS(n);\n",
"    int next[RUN], row[RUN];\n",
"    unsigned column[RUN];\n",
"    float sum[RUN], d[RUN];\n",
"    EACH_OF_RUN(k, i, n) d[k] = dy[i];\n",
"    EACH_PLACE_OF_RUN(k, place, c, width)\n",
"    {\n",
"        const int inside = place < (unsigned)INT(0);\n",
"        row[k] = inside && links[(WIDE)INT(0) + place] \? dml__row_here(indices[place], INT(2), INT(3)) : -1;\n",
"        next[k] = inside \? links[place] : -1;\n",
"        column[k] = c;\n",
"    }\n",
"    EACH_OF_RUN(k, i, n) if (row[k] >= 0) sum[k] = dtable[(WIDE)row[k] * INT(1) + column[k]];\n",
"    EACH_OF_RUN(k, i, n)\n",
"    {\n",
"        if (row[k] < 0) continue;\n",
"        sum[k] += d[k];\n",
"        for (int at = next[k]; at >= 0;) { /* so many of them are read before the first is added */\n",
"            float more[LINKS_AHEAD];\n",
"            UNROLL for (int of = 0; of < LINKS_AHEAD; of++)\n",
"            {\n",
"                more[of] = at >= 0 \? dy[(WIDE)at * INT(1) + column[k]] : 0.0f;\n",
"                at = at >= 0 \? links[at] : -1;\n",
"            }\n",
"            UNROLL for (int of = 0; of < LINKS_AHEAD; of++) sum[k] += more[of];\n",
"        }\n",
"        dtable[(WIDE)row[k] * INT(1) + column[k]] = sum[k];\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 24 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/gather.cl\"\n",
"/* gather.cl: places along an axis by number: x (outer, n, inner) -> y (outer, m, inner). Of whole rows,\n",
"   `group` of the outer share a list of indices (outer / group, m); of single elements, indices are (outer, m,\n",
"   inner). They are in range: the host sees to it.\n",
"\n",
"   Ints of both: n, inner, m, group, elements (0 or 1), count of what is written. */\n",
"#ifndef DML_GPU_GATHER_CL\n",
"#define DML_GPU_GATHER_CL\n",
"\n",
"/* The index for y[o][j][i]. */\n",
"HELPER WIDE dml__gather_place(int o, int j, int i, int m, int inner, int group, int elements)\n",
"{\n",
"    return elements \? ((WIDE)o * m + j) * inner + i : (WIDE)(o / group) * m + j;\n",
"}\n",
"\n",
"/* Buffers indices (int), x, y; size{outer * m * inner}. */\n",
"KERNEL(gather_forward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const float *x = BUFFER(1, const float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    const int n = INT(0), inner = INT(1), m = INT(2);\n",
"    const unsigned at = ELEMENT;\n",
"    if (at < (unsigned)INT(5)) {\n",
"        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), j = row % m,\n",
"                  o = row / m;\n",
"        const int k = indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))];\n",
"        y[at] = x[((WIDE)o * n + k) * inner + i];\n",
"    }\n",
"}\n",
"\n",
"/* dx = the sum of those dy that were taken from it, in the order of j, + beta dx. Buffers indices (int), dy,\n",
"   dx; floats beta; size{outer * n * inner}: an item looks for what is its own. */\n",
"KERNEL(gather_backward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const float *dy = BUFFER(1, const float);\n",
"    GLOBAL float *dx = BUFFER(2, float);\n",
"    const int n = INT(0), inner = INT(1), m = INT(2);\n",
"    const unsigned at = ELEMENT;\n",
"    if (at < (unsigned)INT(5)) {\n",
"        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), k = row % n,\n",
"                  o = row / n;\n",
"        float sum = 0.0f;\n",
"        for (int j = 0; j < m; j++)\n",
"            if (indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))] == k)\n",
"                sum += dy[((WIDE)o * m + j) * inner + i];\n",
"        dx[at] = dml__with_beta(sum, REAL(0), dx + at);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 25 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/embedding_bag.cl\"\n",
"/* embedding_bag.cl: sums of rows of a table (rows, width) by number. A bag is `length` places of indices, in\n",
"   range or -1 for none: the host sees to it. Weights are like the indices, or NULL.\n",
"\n",
"   Ints of all: places (of all bags), width, length, mean. */\n",
"#ifndef DML_GPU_EMBEDDING_BAG_CL\n",
"#define DML_GPU_EMBEDDING_BAG_CL\n",
"\n",
"/* How much each place of a bag counts that has no weight. */\n",
"HELPER float dml__bag_share(GLOBAL const int *indices, int length, int mean)\n",
"{\n",
"    int count = 0;\n",
"    if (!mean) return 1.0f;\n",
"    for (int i = 0; i < length; i++) count += indices[i] >= 0;\n",
"    return count \? 1.0f / (float)count : 0.0f;\n",
"}\n",
"\n",
"/* y[bag] = the sum of its rows. Buffers indices (int), weights, table, y; size{bags * width}. */\n",
"KERNEL(embedding_bag_forward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const float *weights = BUFFER(1, const float);\n",
"    GLOBAL const float *table = BUFFER(2, const float);\n",
"    GLOBAL float *y = BUFFER(3, float);\n",
"    const int length = INT(2);\n",
"    const unsigned width = (unsigned)INT(1), n = (unsigned)(INT(0) / length) * width;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const WIDE first = (WIDE)(i / width) * length;\n",
"        const float part = dml__bag_share(indices + first, length, weights \? 0 : INT(3));\n",
"        float sum = 0.0f;\n",
"        for (int k = 0; k < length; k++) {\n",
"            const int row = indices[first + k];\n",
"            if (row >= 0)\n",
"                sum += (weights \? weights[first + k] : part) * table[(WIDE)row * INT(1) + i % width];\n",
"        }\n",
"        y[i] = sum;\n",
"    }\n",
"}\n",
"\n",
"/* dtable[r] += the sum of the dy of r's bags, each place as much as it counts. Buffers indices (int), links\n",
"   (int, of embedding_links), weights, dy, dtable; size{places * width}. */\n",
"KERNEL(embedding_bag_backward)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const int *links = BUFFER(1, const int);\n",
"    GLOBAL const float *weights = BUFFER(2, const float);\n",
"    GLOBAL const float *dy = BUFFER(3, const float);\n",
"    GLOBAL float *dtable = BUFFER(4, float);\n",
"    const int length = INT(2);\n",
"    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < n) {\n",
"        const int first = (int)(i / width), column = (int)(i % width);\n",
"        if (indices[first] >= 0 && links[(WIDE)INT(0) + first]) {\n",
"            GLOBAL float *to = dtable + (WIDE)indices[first] * INT(1) + column;\n",
"            float sum = *to;\n",
"            for (int at = first; at >= 0; at = links[at]) {\n",
"                const int bag = at / length;\n",
"                const float scale =\n",
"                    weights \? weights[at] : dml__bag_share(indices + (WIDE)bag * length, length, INT(3));\n",
"                sum += scale * dy[(WIDE)bag * INT(1) + column];\n",
"            }\n",
"            *to = sum;\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* dweights = beta dweights + each place's row times its bag's dy. Buffers indices (int), table, dy, dweights;\n",
"   floats beta; size{places}. */\n",
"KERNEL(embedding_bag_weights)\n",
"{\n",
"    GLOBAL const int *indices = BUFFER(0, const int);\n",
"    GLOBAL const float *table = BUFFER(1, const float);\n",
"    GLOBAL const float *dy = BUFFER(2, const float);\n",
"    GLOBAL float *dweights = BUFFER(3, float);\n",
"    const int width = INT(1), row = (int)ELEMENT < INT(0) \? indices[ELEMENT] : -1;\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < (unsigned)INT(0)) {\n",
"        const WIDE bag = (WIDE)(i / (unsigned)INT(2)) * width;\n",
"        float sum = 0.0f;\n",
"        for (int c = 0; c < width && row >= 0; c++) sum += table[(WIDE)row * width + c] * dy[bag + c];\n",
"        dweights[i] = dml__with_beta(sum, REAL(0), dweights + i);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 26 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/recurrent.cl\"\n",
"/* recurrent.cl: a step of a recurrent cell (kernels/recurrent.h says what each computes), an item a unit of a\n",
"   sample. The work lies as kernels/recurrent_layout.h has it: `gates` (batch, steps, width); `states`: those\n",
"   before each step (batch, steps, units), of lstm c's behind h's, then the last (batch, units) in the same\n",
"   way.\n",
"\n",
"   Ints of both: cell, batch, steps, units, step, the step whose state is the result (outside of them: the\n",
"   last), floats from a sample's y to the next; size{batch * units}. */\n",
"#ifndef DML_GPU_RECURRENT_CL\n",
"#define DML_GPU_RECURRENT_CL\n",
"\n",
"#define CELL_RELU 1\n",
"#define CELL_LSTM 2\n",
"#define CELL_GRU 3\n",
"#define SIGMOID(x) (1.0f / (1.0f + EXP(-(x))))\n",
"\n",
"/* to[b][j] = from[b][j], zeros without a from. Buffers from, to; ints batch, units, the steps from a row to\n",
"   the next of both. */\n",
"KERNEL(recurrent_copy)\n",
"{\n",
"    GLOBAL const float *from = BUFFER(0, const float);\n",
"    GLOBAL float *to = BUFFER(1, float);\n",
"    const unsigned units = (unsigned)INT(1), i = ELEMENT;\n",
"    if (i < (unsigned)INT(0) * units) {\n",
"        const unsigned b = i / units, j = i % units;\n",
"        to[(WIDE)b * INT(3) + j] = from \? from[(WIDE)b * INT(2) + j] : 0.0f;\n",
"    }\n",
"}\n",
"\n",
"/* Where the h of unit j of sample b before a step lies; its c, if it has one, is `c_behind` further. */\n",
"HELPER WIDE dml__state_place(int cell, int batch, int steps, int units, int step, unsigned b, unsigned j)\n",
"{\n",
"    const WIDE all = (WIDE)batch * steps * units * (cell == CELL_LSTM \? 2 : 1);\n",
"    if (step < 0 || step >= steps) return all + (WIDE)b * units + j;\n",
"    return ((WIDE)b * steps + step) * units + j;\n",
"}\n",
"\n",
"HELPER WIDE dml__c_behind(int batch, int steps, int units, int step)\n",
"{\n",
"    return (WIDE)batch * units * (step < 0 || step >= steps \? 1 : steps);\n",
"}\n",
"\n",
"HELPER float dml__bias_of(GLOBAL const float *bias, WIDE at)\n",
"{\n",
"    return bias \? bias[at] : 0.0f;\n",
"}\n",
"\n",
"/* Of gates, which hold the products, it makes what follows. Buffers gates, states, y, lengths (int), b_ih,\n",
"   b_hh; all but the first two may be missing. */\n",
"KERNEL(recurrent_forward)\n",
"{\n",
"    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);\n",
"    GLOBAL float *states = BUFFER(1, float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    GLOBAL const int *lengths = BUFFER(3, const int);\n",
"    GLOBAL const float *b_ih = BUFFER(4, const float);\n",
"    GLOBAL const float *b_hh = BUFFER(5, const float);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < (unsigned)batch * (unsigned)units) {\n",
"        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;\n",
"        const int width = cell >= CELL_LSTM \? 4 * units : units;\n",
"        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;\n",
"        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);\n",
"        GLOBAL float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);\n",
"        const WIDE c_before = dml__c_behind(batch, steps, units, step);\n",
"        const WIDE c_behind = dml__c_behind(batch, steps, units, next);\n",
"        const int counts = !lengths || step < lengths[b];\n",
"        float h = *before;\n",
"        if (!counts) {\n",
"            if (cell == CELL_LSTM) behind[c_behind] = before[c_before];\n",
"        } else if (cell == CELL_LSTM) {\n",
"            const float gi = SIGMOID(z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));\n",
"            const float gf =\n",
"                SIGMOID(z[units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));\n",
"            const float gg =\n",
"                TANH(z[2 * units] + dml__bias_of(b_ih, 2 * units + j) + dml__bias_of(b_hh, 2 * units + j));\n",
"            const float go =\n",
"                SIGMOID(z[3 * units] + dml__bias_of(b_ih, 3 * units + j) + dml__bias_of(b_hh, 3 * units + j));\n",
"            const float c = gf * before[c_before] + gi * gg;\n",
"            z[0] = gi, z[units] = gf, z[2 * units] = gg, z[3 * units] = go;\n",
"            behind[c_behind] = c;\n",
"            h = go * TANH(c);\n",
"        } else if (cell == CELL_GRU) { /* n r z and the state's part of n */\n",
"            const float r = SIGMOID(z[units] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j));\n",
"            const float u =\n",
"                SIGMOID(z[2 * units] + dml__bias_of(b_ih, units + j) + dml__bias_of(b_hh, units + j));\n",
"            const float by_h = z[3 * units] + dml__bias_of(b_hh, 2 * units + j);\n",
"            const float n = TANH(z[0] + dml__bias_of(b_ih, 2 * units + j) + r * by_h);\n",
"            z[0] = n, z[units] = r, z[2 * units] = u, z[3 * units] = by_h;\n",
"            h = n + u * (h - n);\n",
"        } else {\n",
"            const float a = z[0] + dml__bias_of(b_ih, j) + dml__bias_of(b_hh, j);\n",
"            h = cell == CELL_RELU \? (a <= 0.0f \? 0.0f : a) : TANH(a);\n",
"            z[0] = h;\n",
"        }\n",
"        *behind = h;\n",
"        if (y) y[(WIDE)b * INT(6) + (WIDE)step * units + j] = counts \? h : 0.0f;\n",
"    }\n",
"}\n",
"\n",
"/* The gates become their gradients; `carried`, those of h and, behind all of them, of c behind the step,\n",
"   become what they are without the product of h. Buffers gates, states, dy, lengths (int), carried; dy and\n",
"   lengths may be missing. */\n",
"KERNEL(recurrent_backward)\n",
"{\n",
"    const int cell = INT(0), batch = INT(1), steps = INT(2), units = INT(3), step = INT(4), next = INT(5);\n",
"    GLOBAL const float *states = BUFFER(1, const float);\n",
"    GLOBAL const float *dy = BUFFER(2, const float);\n",
"    GLOBAL const int *lengths = BUFFER(3, const int);\n",
"    const unsigned i = ELEMENT;\n",
"    if (i < (unsigned)batch * (unsigned)units) {\n",
"        const unsigned b = i / (unsigned)units, j = i % (unsigned)units;\n",
"        const int width = cell >= CELL_LSTM \? 4 * units : units;\n",
"        GLOBAL float *z = BUFFER(0, float) + ((WIDE)b * steps + step) * width + j;\n",
"        GLOBAL float *dh = BUFFER(4, float) + i;\n",
"        GLOBAL const float *before = states + dml__state_place(cell, batch, steps, units, step, b, j);\n",
"        GLOBAL const float *behind = states + dml__state_place(cell, batch, steps, units, next, b, j);\n",
"        if (lengths && step >= lengths[b]) {\n",
"            for (int g = 0; g < width; g += units) z[g] = 0.0f;\n",
"        } else {\n",
"            const float d = *dh + (dy \? dy[(WIDE)b * INT(6) + (WIDE)step * units + j] : 0.0f);\n",
"            *dh = 0.0f;\n",
"            if (cell == CELL_LSTM) {\n",
"                GLOBAL float *dc = dh + (WIDE)batch * units;\n",
"                const float gi = z[0], gf = z[units], gg = z[2 * units], go = z[3 * units];\n",
"                const float tanh_c = TANH(behind[dml__c_behind(batch, steps, units, next)]);\n",
"                const float of_c = *dc + d * go * (1.0f - tanh_c * tanh_c);\n",
"                z[0] = of_c * gg * gi * (1.0f - gi);\n",
"                z[units] = of_c * before[dml__c_behind(batch, steps, units, step)] * gf * (1.0f - gf);\n",
"                z[2 * units] = of_c * gi * (1.0f - gg * gg);\n",
"                z[3 * units] = d * tanh_c * go * (1.0f - go);\n",
"                *dc = of_c * gf;\n",
"            } else if (cell == CELL_GRU) {\n",
"                const float n = z[0], r = z[units], u = z[2 * units];\n",
"                const float dn = d * (1.0f - u) * (1.0f - n * n);\n",
"                z[0] = dn;\n",
"                z[units] = dn * z[3 * units] * r * (1.0f - r);\n",
"                z[2 * units] = d * (*before - n) * u * (1.0f - u);\n",
"                z[3 * units] = dn * r;\n",
"                *dh = d * u;\n",
"            } else {\n",
"                const float h = z[0];\n",
"                z[0] = cell == CELL_RELU \? (h > 0.0f \? d : 0.0f) : d * (1.0f - h * h);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"#undef SIGMOID\n",
"\n",
"#endif\n",
"#line 27 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/dropout.cl\"\n",
"/* dropout.cl: leaving elements out at random, by the numbers of base/philox.h. */\n",
"#ifndef DML_GPU_DROPOUT_CL\n",
"#define DML_GPU_DROPOUT_CL\n",
"\n",
"/* y = what is kept of x times scale, else 0, + beta y. An item makes one block of four numbers, and does\n",
"   elements that lie a group's items apart: neighbours read neighbours. Buffers x, y; ints n, the two halves\n",
"   of the seed, stream, step, the bits below which an element is left out, which 2^32 blocks these are; floats\n",
"   scale, beta; size{n / 4, rounded up}. y may be x. */\n",
"KERNEL(dropout)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0), threshold = (unsigned)INT(5);\n",
"    const float scale = REAL(0), beta = REAL(1);\n",
"    LOCAL unsigned kept[DML__GROUP_ITEMS]; /* of each block a bit for each of its elements */\n",
"    unsigned c[4] = { ELEMENT, (unsigned)INT(6), (unsigned)INT(3), (unsigned)INT(4) };\n",
"    unsigned k0 = (unsigned)INT(1), k1 = (unsigned)INT(2);\n",
"    UNROLL for (int turn = 0; turn < 10; turn++)\n",
"    {\n",
"        const unsigned high0 = MULTIPLY_HIGH(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];\n",
"        const unsigned high1 = MULTIPLY_HIGH(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];\n",
"        c[0] = high1 ^ c[1] ^ k0;\n",
"        c[1] = low1;\n",
"        c[2] = high0 ^ c[3] ^ k1;\n",
"        c[3] = low0;\n",
"        k0 += 0x9E3779B9u;\n",
"        k1 += 0xBB67AE85u;\n",
"    }\n",
"    kept[ITEM] = (unsigned)(c[0] >= threshold) | (unsigned)(c[1] >= threshold) << 1 |\n",
"                 (unsigned)(c[2] >= threshold) << 2 | (unsigned)(c[3] >= threshold) << 3;\n",
"    BARRIER();\n",
"    const unsigned begin = 4u * (ELEMENT - (unsigned)ITEM) + (unsigned)ITEM;\n",
"    float value[4], old[4];\n",
"    EACH_OF(4, begin, k, i, n)\n",
"    {\n",
"        value[k] = x[i];\n",
"        old[k] = dml__old(beta, y + i);\n",
"    }\n",
"    EACH_OF(4, begin, k, i, n)\n",
"    {\n",
"        const unsigned keeps = kept[i % (4u * DML__GROUP_ITEMS) / 4u] >> i % 4u & 1u;\n",
"        y[i] = (keeps \? value[k] * scale : 0.0f) + beta * old[k];\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 28 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/attention.cl\"\n",
"/* attention.cl: scaled dot-product attention in tiles, of which a group keeps one of TILE x TILE scores; and\n",
"   rotary positions. Source: Dao, \"FlashAttention-2\", 2023, section 3.1.\n",
"\n",
"   Heads lie beside each other in rows of q, k, v and y; those of q, k and v are some step long. `saved` is\n",
"   (samples, heads, queries) log_sums, as many levels (each query's sum of y dy), and (samples) lengths as\n",
"   ints. Ints of all: samples, queries, keys, heads, kv_heads, width, q_step, k_step, v_step, how many keys\n",
"   before and after its own position a query sees, whether there are lengths; floats: the scale of scores. Int\n",
"   13, of forward: the lengths are of keys that queries stand behind, and of none after itself a query sees;\n",
"   int 14: floats from a head's keys or values to the next head's, 0: they lie beside each other. A group does\n",
"   TILE rows, and TILE columns of a head: wider heads compute their scores once for each. */\n",
"#ifndef DML_GPU_ATTENTION_CL\n",
"#define DML_GPU_ATTENTION_CL\n",
"\n",
"/* sum = X Y^T of rows `row0` and on of x (rows, x_step), and `column0` and on of y (columns, y_step). */\n",
"#define ATTENTION_SCORES(x, x_step, row0, rows, y, y_step, column0, columns)                                 \\\n",
"    do {                                                                                                     \\\n",
"        for (int i = 0; i < SPAN; i++)                                                                       \\\n",
"            for (int j = 0; j < SPAN; j++) sum[i][j] = 0.0f;                                                 \\\n",
"        for (int k0 = 0; k0 < width; k0 += TILE_K) {                                                         \\\n",
"            for (int j = 0; j < SPAN; j++) {                                                                 \\\n",
"                const int kk = k0 + ALONG_K_K, row = (row0) + ALONG_K_ROW(j);                                \\\n",
"                const int column = (column0) + ALONG_K_ROW(j);                                               \\\n",
"                A_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \\\n",
"                    row < (rows) && kk < width \? (x)[(WIDE)row * (x_step) + kk] : 0.0f;                      \\\n",
"                B_TILE(ALONG_K_K, ALONG_K_ROW(j)) =                                                          \\\n",
"                    column < (columns) && kk < width \? (y)[(WIDE)column * (y_step) + kk] : 0.0f;             \\\n",
"            }                                                                                                \\\n",
"            TILES_MULTIPLY();                                                                                \\\n",
"        }                                                                                                    \\\n",
"    } while (0)\n",
"\n",
"/* mixed += the transpose of `scores` (TILE, TILE) times columns `piece` and on of rows `row0` and on of\n",
"   x (rows, x_step). All items have written their scores. */\n",
"#define MIX_SCORE(kk, row) scores[k0 + (kk)][row]\n",
"#define ATTENTION_MIX(x, x_step, row0, rows)                                                                 \\\n",
"    do {                                                                                                     \\\n",
"        for (int k0 = 0; k0 < TILE; k0 += TILE_K) {                                                          \\\n",
"            for (int j = 0; j < SPAN; j++) {                                                                 \\\n",
"                const int row = (row0) + k0 + ACROSS_K_K(j, TILE), column = piece + ACROSS_K_ROW(TILE);      \\\n",
"                B_TILE(ACROSS_K_K(j, TILE), ACROSS_K_ROW(TILE)) =                                            \\\n",
"                    row < (rows) && column < width \? (x)[(WIDE)row * (x_step) + column] : 0.0f;              \\\n",
"            }                                                                                                \\\n",
"            BARRIER();                                                                                       \\\n",
"            UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                       \\\n",
"            {                                                                                                \\\n",
"                float a_own[SPAN], b_own[SPAN];                                                              \\\n",
"                TILES_OWN(a_own, SPAN, MIX_SCORE, OWN_ROW);                                                  \\\n",
"                TILES_OWN(b_own, SPAN, B_TILE, OWN_COLUMN);                                                  \\\n",
"                UNROLL for (int i = 0; i < SPAN; i++) UNROLL for (int j = 0; j < SPAN; j++) mixed[i][j] +=   \\\n",
"                    a_own[i] * b_own[j];                                                                     \\\n",
"            }                                                                                                \\\n",
"            BARRIER();                                                                                       \\\n",
"        }                                                                                                    \\\n",
"    } while (0)\n",
"\n",
"/* Whether query t sees key s of `length`. */\n",
"HELPER int dml__attention_sees(int t, int s, int length, int before, int after)\n",
"{\n",
"    return s < length && (WIDE)t - s <= before && (WIDE)s - t <= after;\n",
"}\n",
"\n",
"/* The first and the end of the places from - before .. to + after, of 0 .. limit - 1; the first at the\n",
"   beginning of a tile. */\n",
"HELPER int dml__attention_first(int from, int before)\n",
"{\n",
"    return from > before \? (from - before) / TILE * TILE : 0;\n",
"}\n",
"\n",
"HELPER int dml__attention_end(int to, int after, int limit)\n",
"{\n",
"    return (WIDE)to + after + 1 < limit \? to + after + 1 : limit;\n",
"}\n",
"\n",
"HELPER int dml__attention_length(GLOBAL const float *saved, WIDE lines, int sample, int there, int keys)\n",
"{\n",
"    int length = keys;\n",
"    if (there) length = ((GLOBAL const int *)saved)[2 * lines + sample];\n",
"    return length < keys \? length : keys;\n",
"}\n",
"\n",
"/* How many keys a sample's queries stand behind. */\n",
"HELPER int dml__attention_past(GLOBAL const float *saved, WIDE lines, int sample, int behind)\n",
"{\n",
"    return behind \? ((GLOBAL const int *)saved)[2 * lines + sample] : 0;\n",
"}\n",
"\n",
"/* Where the keys or values of the group's head begin. */\n",
"#define ATTENTION_HEAD_AT(step)                                                                              \\\n",
"    (INT(14) \? ((WIDE)sample * INT(4) + kv_head) * INT(14) : (WIDE)sample * keys * (step) + kv_head * width)\n",
"\n",
"/* y = softmax(scale q k^T) v, and log_sums. Buffers q, k, v, saved, y; size{queries, samples * heads * pieces\n",
"   of TILE columns}. */\n",
"KERNEL(attention_forward_team)\n",
"{\n",
"    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);\n",
"    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;\n",
"    const int inside = line < samples * heads; /* groups may be more than there is */\n",
"    const int sample = inside \? line / heads : 0, head = line % heads, kv_head = head / (heads / INT(4));\n",
"    const WIDE lines = (WIDE)samples * heads * queries;\n",
"    GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;\n",
"    GLOBAL const float *k = BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7));\n",
"    GLOBAL const float *v = BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8));\n",
"    GLOBAL float *saved = BUFFER(3, float);\n",
"    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width;\n",
"    const int past = dml__attention_past(saved, lines, sample, INT(13));\n",
"    const int length = INT(13) \? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);\n",
"    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;\n",
"    const int end = inside \? dml__attention_end(t0 + TILE - 1, after, length) : 0;\n",
"    const float scale = REAL(0);\n",
"    const int own = ITEM / 4, lane = ITEM % 4;       /* of a row of scores, 4 items */\n",
"    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (keys, queries) */\n",
"    LOCAL float part[DML__GROUP_ITEMS];\n",
"    LOCAL float largest[TILE];\n",
"    LOCAL float total[TILE];\n",
"    LOCAL float factor[TILE];\n",
"    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];\n",
"    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];\n",
"    const int tile_rows = TILE, tile_columns = TILE;\n",
"    TILES_BEGIN();\n",
"    float mixed[SPAN][SPAN];\n",
"    for (int i = 0; i < SPAN; i++)\n",
"        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;\n",
"    if (lane == 0) largest[own] = MINUS_INFINITY, total[own] = 0.0f;\n",
"    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {\n",
"        ATTENTION_SCORES(q, INT(6), t0, queries, k, INT(7), s0, length);\n",
"        for (int i = 0; i < SPAN; i++)\n",
"            for (int j = 0; j < SPAN; j++)\n",
"                scores[OWN_COLUMN(j)][OWN_ROW(i)] =\n",
"                    dml__attention_sees(t0 + OWN_ROW(i), s0 + OWN_COLUMN(j), length, before, after)\n",
"                        \? scale * sum[i][j]\n",
"                        : MINUS_INFINITY;\n",
"        BARRIER();\n",
"        float most = largest[own], added = 0.0f;\n",
"        for (int c = lane; c < TILE; c += 4)\n",
"            if (scores[c][own] > most) most = scores[c][own];\n",
"        part[ITEM] = most;\n",
"        REDUCE_MAX(part, lane, 4, 1);\n",
"        most = part[ITEM - lane];\n",
"        BARRIER(); /* all have read it before its place is used again */\n",
"        const float base = most > MINUS_INFINITY \? most : 0.0f;\n",
"        for (int c = lane; c < TILE; c += 4) {\n",
"            const float e = EXP(scores[c][own] - base);\n",
"            scores[c][own] = e;\n",
"            added += e;\n",
"        }\n",
"        part[ITEM] = added;\n",
"        REDUCE_SUM(part, lane, 4, 1);\n",
"        if (lane == 0) {\n",
"            factor[own] = largest[own] > MINUS_INFINITY \? EXP(largest[own] - base) : 1.0f;\n",
"            total[own] = total[own] * factor[own] + part[ITEM];\n",
"            largest[own] = most;\n",
"        }\n",
"        BARRIER();\n",
"        for (int i = 0; i < SPAN; i++)\n",
"            for (int j = 0; j < SPAN; j++) mixed[i][j] *= factor[OWN_ROW(i)];\n",
"        ATTENTION_MIX(v, INT(8), s0, length);\n",
"    }\n",
"    BARRIER();\n",
"    for (int i = 0; i < SPAN; i++) {\n",
"        const int t = t0 + OWN_ROW(i);\n",
"        const float of_row = total[OWN_ROW(i)];\n",
"        for (int j = 0; j < SPAN; j++) {\n",
"            const int column = piece + OWN_COLUMN(j);\n",
"            if (inside && t < queries && column < width)\n",
"                y[(WIDE)t * heads * width + column] = of_row == 0.0f \? 0.0f : mixed[i][j] / of_row;\n",
"        }\n",
"    }\n",
"    if (lane == 0 && piece == 0 && inside && t0 + own < queries)\n",
"        saved[(WIDE)line * queries + t0 + own] =\n",
"            total[own] == 0.0f \? -MINUS_INFINITY : largest[own] + LOG(total[own]);\n",
"}\n",
"\n",
"/* levels = the sums of y dy of each head of each query. Buffers y, dy, nothing, saved; size{samples * heads *\n",
"   queries}. */\n",
"KERNEL(attention_levels)\n",
"{\n",
"    const unsigned queries = (unsigned)INT(1), heads = (unsigned)INT(3), width = (unsigned)INT(5);\n",
"    const unsigned lines = (unsigned)INT(0) * heads * queries;\n",
"    if (ELEMENT < lines) {\n",
"        const unsigned t = ELEMENT % queries, head = ELEMENT / queries % heads;\n",
"        const WIDE from = (((WIDE)(ELEMENT / queries / heads) * queries + t) * heads + head) * width;\n",
"        GLOBAL const float *y = BUFFER(0, const float) + from;\n",
"        GLOBAL const float *dy = BUFFER(1, const float) + from;\n",
"        float sum = 0.0f;\n",
"        for (unsigned c = 0; c < width; c++) sum += y[c] * dy[c];\n",
"        BUFFER(3, float)[(WIDE)lines + ELEMENT] = sum;\n",
"    }\n",
"}\n",
"\n",
"/* The gradient of q, k or v, as int 12 is 0, 1 or 2: += beta x what is there. Rows are queries, or keys, and\n",
"   then the scores are those of keys by queries, of all heads that share them. Buffers q, k, v, saved, dy, the\n",
"   gradient; floats beta after the scale; size{queries or keys, samples * heads or kv_heads * pieces}. */\n",
"KERNEL(attention_backward_team)\n",
"{\n",
"    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);\n",
"    const int of_keys = INT(12) > 0, group = of_keys \? heads / INT(4) : 1, own_heads = heads / group;\n",
"    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, piece = GROUP_Y % pieces * TILE;\n",
"    const int inside = line < samples * own_heads;\n",
"    const int sample = inside \? line / own_heads : 0;\n",
"    const int kv_head = of_keys \? line % own_heads : line % own_heads / (heads / INT(4));\n",
"    const WIDE lines = (WIDE)samples * heads * queries;\n",
"    GLOBAL const float *k = BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width;\n",
"    GLOBAL const float *v = BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width;\n",
"    GLOBAL const float *saved = BUFFER(3, const float);\n",
"    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);\n",
"    const int row0 = GROUP_X * TILE, before = of_keys \? INT(10) : INT(9), after = of_keys \? INT(9) : INT(10);\n",
"    const int limit = of_keys \? queries : length, y_step = heads * width;\n",
"    const int end =\n",
"        inside && (!of_keys || row0 < length) \? dml__attention_end(row0 + TILE - 1, after, limit) : 0;\n",
"    const int mixed_step = INT(12) == 0 \? INT(7) : INT(12) == 1 \? INT(6) : y_step;\n",
"    const float scale = REAL(0), beta = REAL(1);\n",
"    LOCAL_QUADS float scores[TILE][TILE + TILE_PAD]; /* (columns, rows) */\n",
"    LOCAL_QUADS float a_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];\n",
"    LOCAL_QUADS float b_tile[TILE_K_OF(TILE) * (TILE + TILE_PAD)];\n",
"    const int tile_rows = TILE, tile_columns = TILE;\n",
"    TILES_BEGIN();\n",
"    float mixed[SPAN][SPAN], p[SPAN][SPAN];\n",
"    for (int i = 0; i < SPAN; i++)\n",
"        for (int j = 0; j < SPAN; j++) mixed[i][j] = 0.0f;\n",
"    for (int of_group = 0; of_group < group; of_group++) {\n",
"        const int head = line % own_heads * group + of_group;\n",
"        const WIDE first = ((WIDE)sample * heads + head) * queries;\n",
"        GLOBAL const float *q = BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width;\n",
"        GLOBAL const float *dy = BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width;\n",
"        GLOBAL const float *mixes = INT(12) == 0 \? k : INT(12) == 1 \? q : dy;\n",
"        for (int column0 = dml__attention_first(row0, before); column0 < end; column0 += TILE) {\n",
"            /* The probabilities, and then the slopes of the scores: of queries and keys, and of dy and\n",
"             * values. */\n",
"            for (int slopes = 0; slopes < (INT(12) < 2 \? 2 : 1); slopes++) {\n",
"                GLOBAL const float *by_query = slopes \? dy : q;\n",
"                GLOBAL const float *by_key = slopes \? v : k;\n",
"                GLOBAL const float *own = of_keys \? by_key : by_query;\n",
"                GLOBAL const float *other = of_keys \? by_query : by_key;\n",
"                const int query_step = slopes \? y_step : INT(6), key_step = slopes \? INT(8) : INT(7);\n",
"                const int own_step = of_keys \? key_step : query_step;\n",
"                const int other_step = of_keys \? query_step : key_step;\n",
"                ATTENTION_SCORES(own, own_step, row0, of_keys \? length : queries, other, other_step, column0,\n",
"                                 limit);\n",
"                for (int i = 0; i < SPAN; i++)\n",
"                    for (int j = 0; j < SPAN; j++) {\n",
"                        const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);\n",
"                        const int t = of_keys \? column : row, s = of_keys \? row : column;\n",
"                        const int seen = t < queries && dml__attention_sees(t, s, length, INT(9), INT(10));\n",
"                        if (!seen)\n",
"                            p[i][j] = 0.0f;\n",
"                        else if (!slopes)\n",
"                            p[i][j] = EXP(scale * sum[i][j] - saved[first + t]);\n",
"                        else\n",
"                            p[i][j] *= scale * (sum[i][j] - saved[lines + first + t]);\n",
"                    }\n",
"            }\n",
"            for (int i = 0; i < SPAN; i++)\n",
"                for (int j = 0; j < SPAN; j++) scores[OWN_COLUMN(j)][OWN_ROW(i)] = p[i][j];\n",
"            BARRIER();\n",
"            ATTENTION_MIX(mixes, mixed_step, column0, limit);\n",
"        }\n",
"    }\n",
"    const int step = INT(12) == 0 \? INT(6) : INT(12) == 1 \? INT(7) : INT(8);\n",
"    const int rows = of_keys \? keys : queries, head = line % own_heads;\n",
"    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + head * width;\n",
"    for (int i = 0; i < SPAN; i++) {\n",
"        for (int j = 0; j < SPAN; j++) {\n",
"            const int row = row0 + OWN_ROW(i), column = piece + OWN_COLUMN(j);\n",
"            if (inside && row < rows && column < width) {\n",
"                GLOBAL float *at = to + (WIDE)row * step + column;\n",
"                *at = dml__with_beta(mixed[i][j], beta, at);\n",
"            }\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"/* The heads of rows of x (samples, rows, x_step) into y (samples, heads, y_step), each row of a head behind\n",
"   as many as buffer 1, of ints, says of its sample. Buffers x, the ints, y; ints samples x rows x heads x\n",
"   width, rows, heads, width, x_step, y_step; size{the first}. */\n",
"KERNEL(keep_rows)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    const unsigned rows = (unsigned)INT(1), heads = (unsigned)INT(2), width = (unsigned)INT(3);\n",
"    if (ELEMENT < (unsigned)INT(0)) {\n",
"        const unsigned column = ELEMENT % width, head = ELEMENT / width % heads;\n",
"        const unsigned row = ELEMENT / width / heads % rows, sample = ELEMENT / width / heads / rows;\n",
"        const WIDE place = (WIDE)BUFFER(1, const int)[sample] + row;\n",
"        y[((WIDE)sample * heads + head) * INT(5) + place * width + column] =\n",
"            x[((WIDE)sample * rows + row) * INT(4) + head * width + column];\n",
"    }\n",
"}\n",
"\n",
"/* y = the pairs of x turned + beta y. Buffers x, table (positions, 2, width / 2), y; ints pairs, positions,\n",
"   heads, width, heads that are turned, whether pairs are neighbours, whether buffer 3 says which position\n",
"   each row has; floats 1 or, to turn back, -1, and beta; size{pairs}. y may be x. */\n",
"KERNEL(rotary)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL const float *table = BUFFER(1, const float);\n",
"    GLOBAL float *y = BUFFER(2, float);\n",
"    const unsigned heads = (unsigned)INT(2), width = (unsigned)INT(3), half_width = width / 2;\n",
"    const float beta = REAL(1);\n",
"    if (ELEMENT < (unsigned)INT(0)) {\n",
"        const unsigned pair = ELEMENT % half_width, head = ELEMENT / half_width % heads;\n",
"        const unsigned row = ELEMENT / half_width / heads;\n",
"        const unsigned position = INT(6) \? (unsigned)BUFFER(3, const int)[row] : row % (unsigned)INT(1);\n",
"        const WIDE first = ((WIDE)row * heads + head) * width;\n",
"        const WIDE a = first + (INT(5) \? 2 * pair : pair), b = INT(5) \? a + 1 : a + half_width;\n",
"        const float from_a = x[a], from_b = x[b];\n",
"        const int turned = head < (unsigned)INT(4);\n",
"        const float cosine = turned \? table[(WIDE)position * width + pair] : 1.0f;\n",
"        const float sine = turned \? REAL(0) * table[(WIDE)position * width + half_width + pair] : 0.0f;\n",
"        const float to_a = turned \? from_a * cosine - from_b * sine : from_a;\n",
"        const float to_b = turned \? from_b * cosine + from_a * sine : from_b;\n",
"        y[a] = dml__with_beta(to_a, beta, y + a);\n",
"        y[b] = dml__with_beta(to_b, beta, y + b);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 29 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/attention_solo.cl\"\n",
"/* attention_solo.cl: the kernels of attention.cl where an item is a whole processor core: the products of\n",
"   scores and of what is mixed by them are those of solo.cl, and a row of scores is a few vectors. */\n",
"#ifndef DML_GPU_ATTENTION_SOLO_CL\n",
"#define DML_GPU_ATTENTION_SOLO_CL\n",
"#ifdef SOLO_KERNEL\n",
"\n",
"/* Rows of a head: of its queries, keys or values, or of their gradients. */\n",
"typedef struct dml__solo_head {\n",
"    GLOBAL const float *first, *end;\n",
"    WIDE step;\n",
"} dml__solo_head;\n",
"\n",
"HELPER dml__solo_head dml__solo_head_of(GLOBAL const float *first, WIDE step, int rows, int width)\n",
"{\n",
"    dml__solo_head head;\n",
"    head.first = first, head.step = step;\n",
"    head.end = first + (rows - 1) * step + width;\n",
"    return head;\n",
"}\n",
"\n",
"/* s.sum = X Y^T of x's rows `row0` and on and y's rows `column0` and on. */\n",
"HELPER void dml__solo_scores(const dml__solo s, const dml__solo_head x, int row0, const dml__solo_head y,\n",
"                             int column0, int width)\n",
"{\n",
"    dml__solo_clear(s);\n",
"    for (int k0 = 0; k0 < width; k0 += SOLO_K) {\n",
"        const int ks = width - k0 < SOLO_K \? width - k0 : SOLO_K;\n",
"        for (int row = 0; row < s.rows; row++)\n",
"            dml__solo_copy(s.a + row * SOLO_K, x.first + (row0 + row) * x.step + k0, ks, x.end);\n",
"        dml__solo_turn(s, y.first + column0 * y.step + k0, y.step, ks);\n",
"        dml__solo_multiply(s, ks);\n",
"    }\n",
"}\n",
"\n",
"/* The piece where shares (TILE, SOLO_K) mix up to TILE of `columns`; B's place is that of s. */\n",
"HELPER dml__solo dml__solo_mix_of(const dml__solo s, float *shares, float *mixed, int columns)\n",
"{\n",
"    dml__solo m = s;\n",
"    m.a = shares, m.sum = mixed;\n",
"    m.columns = columns < TILE \? columns : TILE;\n",
"    return m;\n",
"}\n",
"\n",
"/* m.sum += the shares m.a (TILE, SOLO_K), times columns `piece` and on of x's rows `row0` and on. */\n",
"HELPER void dml__solo_mix(const dml__solo m, const dml__solo_head x, int row0, int rows, int piece)\n",
"{\n",
"    for (int k = 0; k < rows; k++)\n",
"        dml__solo_copy(m.b + k * TILE, x.first + (row0 + k) * x.step + piece, m.columns, x.end);\n",
"    dml__solo_multiply(m, rows);\n",
"}\n",
"\n",
"/* Sets what lies outside of from .. to - 1 of a row of TILE. */\n",
"HELPER void dml__solo_mask(float *line, int from, int to, float value)\n",
"{\n",
"    for (int c = 0; c < from && c < TILE; c++) line[c] = value;\n",
"    for (int c = to < 0 \? 0 : to; c < TILE; c++) line[c] = value;\n",
"}\n",
"\n",
"/* Turns a row of scores into exponentials of what they are above `most`, the largest so far, which it\n",
"   becomes; returns their sum. */\n",
"HELPER float dml__solo_exponentials(float *line, float scale, int from, int to, float *most)\n",
"{\n",
"    float lane[VECTOR_LANES];\n",
"    VECTOR largest = VECTOR_OF(*most), sum = VECTOR_OF(0.0f);\n",
"    for (int c = 0; c < TILE; c += VECTOR_LANES)\n",
"        VECTOR_STORE(line + c, VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), scale, VECTOR_LOAD(line + c)));\n",
"    dml__solo_mask(line, from, to, MINUS_INFINITY);\n",
"    for (int c = 0; c < TILE; c += VECTOR_LANES) largest = VECTOR_MOST(largest, VECTOR_LOAD(line + c));\n",
"    VECTOR_STORE(lane, largest);\n",
"    for (int i = 0; i < VECTOR_LANES; i++)\n",
"        if (lane[i] > *most) *most = lane[i];\n",
"    const VECTOR base = VECTOR_OF(*most > MINUS_INFINITY \? *most : 0.0f);\n",
"    for (int c = 0; c < TILE; c += VECTOR_LANES) {\n",
"        const VECTOR e = VECTOR_EXP(VECTOR_ADD_PRODUCT(VECTOR_LOAD(line + c), -1.0f, base));\n",
"        VECTOR_STORE(line + c, e);\n",
"        sum = VECTOR_ADD_PRODUCT(sum, 1.0f, e);\n",
"    }\n",
"    return dml__solo_total(sum);\n",
"}\n",
"\n",
"/* What attention_forward_team computes, of the same arguments. The scores (TILE, SOLO_K) are what mixes. */\n",
"SOLO_KERNEL(attention_forward_solo)\n",
"{\n",
"    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);\n",
"    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;\n",
"    if (line >= samples * heads) return; /* groups may be more than there is */\n",
"    const int sample = line / heads, head = line % heads, kv_head = head / (heads / INT(4));\n",
"    const WIDE lines = (WIDE)samples * heads * queries;\n",
"    const dml__solo_head q = dml__solo_head_of(\n",
"        BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);\n",
"    const dml__solo_head k =\n",
"        dml__solo_head_of(BUFFER(1, const float) + ATTENTION_HEAD_AT(INT(7)), INT(7), keys, width);\n",
"    const dml__solo_head v =\n",
"        dml__solo_head_of(BUFFER(2, const float) + ATTENTION_HEAD_AT(INT(8)), INT(8), keys, width);\n",
"    GLOBAL float *saved = BUFFER(3, float);\n",
"    GLOBAL float *y = BUFFER(4, float) + (WIDE)sample * queries * heads * width + head * width + column0;\n",
"    const int past = dml__attention_past(saved, lines, sample, INT(13));\n",
"    const int length = INT(13) \? past + queries : dml__attention_length(saved, lines, sample, INT(11), keys);\n",
"    const int t0 = GROUP_X * TILE, before = INT(9) - past, after = INT(10) + past;\n",
"    const int end = dml__attention_end(t0 + TILE - 1, after, length);\n",
"    SOLO_LOCAL float mixed_piece[TILE * TILE];\n",
"    SOLO_LOCAL float largest[TILE];\n",
"    SOLO_LOCAL float total[TILE];\n",
"    SOLO_BEGIN(0, queries - t0, length);\n",
"    const dml__solo mix = dml__solo_mix_of(piece, piece.sum, mixed_piece, width - column0);\n",
"    dml__solo_zero(mixed_piece, TILE * TILE);\n",
"    for (int row = 0; row < piece.rows; row++) largest[row] = MINUS_INFINITY, total[row] = 0.0f;\n",
"    for (int s0 = dml__attention_first(t0, before); s0 < end; s0 += TILE) {\n",
"        piece.columns = length - s0 < TILE \? length - s0 : TILE;\n",
"        dml__solo_scores(piece, q, t0, k, s0, width);\n",
"        for (int row = 0; row < piece.rows; row++) {\n",
"            const int t = t0 + row, from = (t > before \? t - before : 0) - s0;\n",
"            const float old = largest[row];\n",
"            const float sum =\n",
"                dml__solo_exponentials(piece.sum + row * TILE, REAL(0), from,\n",
"                                       dml__attention_end(t, after, length) - s0, largest + row);\n",
"            if (largest[row] > old && old > MINUS_INFINITY) {\n",
"                const float factor = EXP(old - largest[row]);\n",
"                total[row] *= factor;\n",
"                for (int j = 0; j < mix.columns; j++) mix.sum[row * TILE + j] *= factor;\n",
"            }\n",
"            total[row] += sum;\n",
"        }\n",
"        dml__solo_mix(mix, v, s0, piece.columns, column0);\n",
"    }\n",
"    for (int row = 0; row < piece.rows; row++) {\n",
"        const float of_row = total[row];\n",
"        GLOBAL float *to = y + (WIDE)(t0 + row) * heads * width;\n",
"        for (int j = 0; j < mix.columns; j++)\n",
"            to[j] = of_row == 0.0f \? 0.0f : mix.sum[row * TILE + j] / of_row;\n",
"        if (column0 == 0)\n",
"            saved[(WIDE)line * queries + t0 + row] =\n",
"                of_row == 0.0f \? -MINUS_INFINITY : largest[row] + LOG(of_row);\n",
"    }\n",
"}\n",
"\n",
"/* What a tile of scores is told of its queries: minus their log_sums, or minus their levels times the scale.\n",
" */\n",
"HELPER void dml__solo_of_queries(float *to, GLOBAL const float *from, int n, float factor)\n",
"{\n",
"    for (int i = 0; i < n; i++) to[i] = factor * from[i];\n",
"    for (int i = n; i < TILE; i++) to[i] = 0.0f;\n",
"}\n",
"\n",
"/* Turns a row of scores into shares, or, of scores of dy and values, shares into slopes. Of each column there\n",
"   is an `own`, or of the row alone one. */\n",
"HELPER void dml__solo_shares(float *line, float *shares, float scale, const float *own, int by_column,\n",
"                             int slopes)\n",
"{\n",
"    for (int c = 0; c < TILE; c += VECTOR_LANES) {\n",
"        const VECTOR base = by_column \? VECTOR_LOAD(own + c) : VECTOR_OF(*own);\n",
"        const VECTOR value = VECTOR_ADD_PRODUCT(base, scale, VECTOR_LOAD(line + c));\n",
"        VECTOR_STORE(shares + c, slopes \? VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_LOAD(shares + c), value)\n",
"                                        : VECTOR_EXP(value));\n",
"    }\n",
"}\n",
"\n",
"/* What attention_backward_team computes, of the same arguments. */\n",
"SOLO_KERNEL(attention_backward_solo)\n",
"{\n",
"    const int samples = INT(0), queries = INT(1), keys = INT(2), heads = INT(3), width = INT(5);\n",
"    const int of_keys = INT(12) > 0, group = of_keys \? heads / INT(4) : 1, own_heads = heads / group;\n",
"    const int pieces = (width + TILE - 1) / TILE, line = GROUP_Y / pieces, column0 = GROUP_Y % pieces * TILE;\n",
"    if (line >= samples * own_heads) return;\n",
"    const int sample = line / own_heads, y_step = heads * width;\n",
"    const int kv_head = of_keys \? line % own_heads : line % own_heads / (heads / INT(4));\n",
"    const WIDE lines = (WIDE)samples * heads * queries;\n",
"    const dml__solo_head k = dml__solo_head_of(\n",
"        BUFFER(1, const float) + (WIDE)sample * keys * INT(7) + kv_head * width, INT(7), keys, width);\n",
"    const dml__solo_head v = dml__solo_head_of(\n",
"        BUFFER(2, const float) + (WIDE)sample * keys * INT(8) + kv_head * width, INT(8), keys, width);\n",
"    GLOBAL const float *saved = BUFFER(3, const float);\n",
"    const int length = dml__attention_length(saved, lines, sample, INT(11), keys);\n",
"    const int row0 = GROUP_X * TILE, before = of_keys \? INT(10) : INT(9), after = of_keys \? INT(9) : INT(10);\n",
"    const int rows = of_keys \? keys : queries, limit = of_keys \? queries : length;\n",
"    const int row_end = of_keys \? length : queries; /* of those that see, or are seen by, anything */\n",
"    const int end = row0 < row_end \? dml__attention_end(row0 + TILE - 1, after, limit) : 0;\n",
"    const float scale = REAL(0), beta = REAL(1);\n",
"    SOLO_LOCAL float shares[TILE * SOLO_K];\n",
"    SOLO_LOCAL float mixed_piece[TILE * TILE];\n",
"    SOLO_LOCAL float own[TILE];\n",
"    SOLO_BEGIN(0, rows - row0, limit);\n",
"    const dml__solo mix = dml__solo_mix_of(piece, shares, mixed_piece, width - column0);\n",
"    dml__solo_zero(mixed_piece, TILE * TILE);\n",
"    dml__solo_zero(shares, TILE * SOLO_K); /* of rows that nothing is known of, too */\n",
"    if (piece.rows > row_end - row0) piece.rows = row_end > row0 \? row_end - row0 : 0;\n",
"    for (int of_group = 0; of_group < group; of_group++) {\n",
"        const int head = line % own_heads * group + of_group;\n",
"        const WIDE first = ((WIDE)sample * heads + head) * queries;\n",
"        const dml__solo_head q = dml__solo_head_of(\n",
"            BUFFER(0, const float) + (WIDE)sample * queries * INT(6) + head * width, INT(6), queries, width);\n",
"        const dml__solo_head dy = dml__solo_head_of(\n",
"            BUFFER(4, const float) + (WIDE)sample * queries * y_step + head * width, y_step, queries, width);\n",
"        for (int s0 = dml__attention_first(row0, before); s0 < end; s0 += TILE) {\n",
"            const int t0 = of_keys \? s0 : row0; /* the first query */\n",
"            piece.columns = limit - s0 < TILE \? limit - s0 : TILE;\n",
"            for (int slopes = 0; slopes < (INT(12) < 2 \? 2 : 1); slopes++) {\n",
"                dml__solo_scores(piece,\n",
"                                 of_keys  \? (slopes \? v : k)\n",
"                                 : slopes \? dy\n",
"                                          : q,\n",
"                                 row0,\n",
"                                 of_keys  \? (slopes \? dy : q)\n",
"                                 : slopes \? v\n",
"                                          : k,\n",
"                                 s0, width);\n",
"                dml__solo_of_queries(own, saved + (slopes \? lines : 0) + first + t0,\n",
"                                     of_keys \? piece.columns : piece.rows, slopes \? -scale : -1.0f);\n",
"                for (int row = 0; row < piece.rows; row++) {\n",
"                    const int at = row0 + row;\n",
"                    dml__solo_shares(piece.sum + row * TILE, shares + row * SOLO_K, scale,\n",
"                                     of_keys \? own : own + row, of_keys, slopes);\n",
"                    dml__solo_mask(shares + row * SOLO_K, (at > before \? at - before : 0) - s0,\n",
"                                   dml__attention_end(at, after, limit) - s0, 0.0f);\n",
"                }\n",
"            }\n",
"            dml__solo_mix(mix, INT(12) == 0 \? k : INT(12) == 1 \? q : dy, s0, piece.columns, column0);\n",
"        }\n",
"    }\n",
"    const int step = INT(12) == 0 \? INT(6) : INT(12) == 1 \? INT(7) : INT(8);\n",
"    GLOBAL float *to = BUFFER(5, float) + (WIDE)sample * rows * step + line % own_heads * width + column0 +\n",
"                       (WIDE)row0 * step;\n",
"    dml__solo_write(mix, to, step, 1.0f, beta, 0, 0);\n",
"}\n",
"\n",
"#endif\n",
"#endif\n",
"#line 30 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/strided.cl\"\n",
"/* strided.cl: dense arrays to and from parts of others. Element (i0, ..., i5) of a dense array lies in the\n",
"   other at i0 step[0] + ... + i5 step[5].\n",
"\n",
"   Ints of both: elements, the counts along dimensions 1 to 5, the steps along 0 to 5; floats beta;\n",
"   size{elements}. */\n",
"#ifndef DML_GPU_STRIDED_CL\n",
"#define DML_GPU_STRIDED_CL\n",
"\n",
"/* Where the dense array's element i lies in the other. */\n",
"#define STRIDED_PLACE(place, i)                                                                              \\\n",
"    do {                                                                                                     \\\n",
"        unsigned rest = (i);                                                                                 \\\n",
"        for (int d = 5; d > 0; d--) {                                                                        \\\n",
"            const unsigned count = (unsigned)INT(d), before = rest / count;                                  \\\n",
"            (place) += (WIDE)(rest - before * count) * INT(6 + d);                                           \\\n",
"            rest = before;                                                                                   \\\n",
"        }                                                                                                    \\\n",
"        (place) += (WIDE)rest * INT(6);                                                                      \\\n",
"    } while (0)\n",
"\n",
"/* dense = part + beta dense. Buffers part, dense. */\n",
"KERNEL(strided_pack)\n",
"{\n",
"    GLOBAL const float *part = BUFFER(0, const float);\n",
"    GLOBAL float *dense = BUFFER(1, float);\n",
"    const float beta = REAL(0);\n",
"    const unsigned i = ELEMENT;\n",
"    WIDE place = 0;\n",
"    if (i < (unsigned)INT(0)) {\n",
"        STRIDED_PLACE(place, i);\n",
"        dense[i] = dml__with_beta(part[place], beta, dense + i);\n",
"    }\n",
"}\n",
"\n",
"/* part = dense + beta part. Buffers dense, part. */\n",
"KERNEL(strided_unpack)\n",
"{\n",
"    GLOBAL const float *dense = BUFFER(0, const float);\n",
"    GLOBAL float *part = BUFFER(1, float);\n",
"    const float beta = REAL(0);\n",
"    const unsigned i = ELEMENT;\n",
"    WIDE place = 0;\n",
"    if (i < (unsigned)INT(0)) {\n",
"        STRIDED_PLACE(place, i);\n",
"        part[place] = dml__with_beta(dense[i], beta, part + place);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 31 \"gpu/kernels.cl\"\n",
"#line 1 \"gpu/half.cl\"\n",
"/* half.cl: floats in 16 bits, bf16 or f16, as kernels/half.c has them. */\n",
"#ifndef DML_GPU_HALF_CL\n",
"#define DML_GPU_HALF_CL\n",
"\n",
"HELPER unsigned dml__bf16_from(unsigned x)\n",
"{\n",
"    if ((x & 0x7FFFFFFFu) > 0x7F800000u) return x >> 16 | 0x40u;\n",
"    return (x + 0x7FFFu + (x >> 16 & 1u)) >> 16;\n",
"}\n",
"\n",
"/* On the bits, since a device may take denormals for 0: 2^-24 is the last bit of what is from 0.5 to 1. */\n",
"HELPER unsigned dml__f16_from(unsigned x)\n",
"{\n",
"    const unsigned size = x & 0x7FFFFFFFu, sign = x >> 16 & 0x8000u;\n",
"    if (size > 0x7F800000u) return sign | 0x7E00u | (size >> 13 & 0x3FFu);\n",
"    if (size >= 0x477FF000u) return sign | 0x7C00u;\n",
"    if (size < 0x38800000u) return sign | (BITS_OF(FLOAT_OF(size) + 0.5f) - 0x3F000000u);\n",
"    return sign | (((size + 0xFFFu + (size >> 13 & 1u)) >> 13) - (112u << 10));\n",
"}\n",
"\n",
"HELPER float dml__f16_to(unsigned x)\n",
"{\n",
"    const unsigned size = x & 0x7FFFu, sign = (x & 0x8000u) << 16;\n",
"    if (size < 0x400u) return FLOAT_OF(BITS_OF(FLOAT_OF(size | 0x3F000000u) - 0.5f) | sign);\n",
"    return FLOAT_OF(((size << 13) + ((size >= 0x7C00u \? 224u : 112u) << 23)) | sign);\n",
"}\n",
"\n",
"/* y = x in 16 bits, to nearest, ties to even. Buffers x, y; ints n, whether it is f16, whether what is beyond\n",
"   f16's largest number becomes that; size{n}. */\n",
"KERNEL(half_narrow)\n",
"{\n",
"    GLOBAL const float *x = BUFFER(0, const float);\n",
"    GLOBAL unsigned short *y = BUFFER(1, unsigned short);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    RUN_BEGINS(n);\n",
"    unsigned bits[RUN];\n",
"    EACH_OF_RUN(k, i, n) bits[k] = BITS_OF(x[i]);\n",
"    if (INT(1)) {\n",
"        EACH_OF_RUN(k, i, n)\n",
"        {\n",
"            const unsigned size = bits[k] & 0x7FFFFFFFu, narrow = dml__f16_from(bits[k]);\n",
"            const int beyond = INT(2) && size >= 0x477FF000u && size < 0x7F800000u;\n",
"            y[i] = (unsigned short)(beyond \? narrow - 1u : narrow);\n",
"        }\n",
"    } else {\n",
"        EACH_OF_RUN(k, i, n) y[i] = (unsigned short)dml__bf16_from(bits[k]);\n",
"    }\n",
"}\n",
"\n",
"/* y = x of 16 bits. Buffers x, y; ints n, whether it is f16; size{n}. */\n",
"KERNEL(half_widen)\n",
"{\n",
"    GLOBAL const unsigned short *x = BUFFER(0, const unsigned short);\n",
"    GLOBAL float *y = BUFFER(1, float);\n",
"    const unsigned n = (unsigned)INT(0);\n",
"    RUN_BEGINS(n);\n",
"    unsigned bits[RUN];\n",
"    EACH_OF_RUN(k, i, n) bits[k] = x[i];\n",
"    if (INT(1)) {\n",
"        EACH_OF_RUN(k, i, n) y[i] = dml__f16_to(bits[k]);\n",
"    } else {\n",
"        EACH_OF_RUN(k, i, n) y[i] = FLOAT_OF(bits[k] << 16);\n",
"    }\n",
"}\n",
"\n",
"#endif\n",
"#line 32 \"gpu/kernels.cl\"\n",
"\n",
"#endif\n",
};

/* A line of the log as a part of a sentence: without its newline, and not beyond `most` bytes. */
static inline const char *dml__opencl_log_line(char *line, size_t most)
{
    line[strcspn(line, "\r\n")] = '\0';
    if (strlen(line) > most) memcpy(line + most - 3, "...", 4);
    return line;
}

/* The line of a compiler's log that names the first error, which has our file and line, since the source has
   its own #lines. Logs begin with warnings, and are longer than an error's text. */
static inline const char *dml__opencl_first_error(char *log)
{
    static const char *const words[] = { "error:", "error", "Error", "ERROR" };
    const char *found = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !found; i++) found = strstr(log, words[i]);
    char *line = found ? log + (found - log) : log + strspn(log, " \t\r\n");
    while (line > log && line[-1] != '\n') line--;
    return dml__opencl_log_line(line, 200);
}

/* Says why the kernels don't build, in the words of the device's compiler. */
static inline dml_status dml__opencl_build_failed(dml_device *device, cl_int error)
{
    dml__opencl *state = dml__opencl_of(device);
    size_t bytes = 0;
    char *log = NULL;
    state->cl.clGetProgramBuildInfo_(state->program, state->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if (bytes) log = (char *)dml_device_allocate(device, bytes + 1);
    if (log)
        state->cl.clGetProgramBuildInfo_(state->program, state->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    const char *first = log ? dml__opencl_first_error(log) : "";
    const dml_status status = dml_device_fail(
        device, DML_ERROR_DEVICE, "opencl:%d (%s): the kernels don't build, %s (%d): %s", device->index,
        state->name, dml__opencl_error_name(error), (int)error, *first ? first : "it gave no log");
    dml_device_release(device, log);
    return status;
}

static inline dml_status dml__opencl_build(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_uint lines = (cl_uint)(sizeof dml__opencl_source / sizeof dml__opencl_source[0]);
    cl_int error;
    state->program = state->cl.clCreateProgramWithSource_(
        state->context, lines, (const char **)(uintptr_t)dml__opencl_source, NULL, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateProgramWithSource", "");
    char options[64] = "-cl-std=CL1.2";
    if (state->choice.solo)
        snprintf(options, sizeof options, "-cl-std=CL1.2 -DDML__SOLO_LANES=%d%s", state->lanes,
                 state->choice.solo == DML__SOLO_BEST ? " -DDML__RUN=1" : "");
    error = state->cl.clBuildProgram_(state->program, 1, &state->id, options, NULL, NULL);
    return error == CL_SUCCESS ? DML_OK : dml__opencl_build_failed(device, error);
}

static inline dml_status dml__opencl_find_kernels(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const int count = state->choice.solo ? DML__KERNEL_COUNT : DML__KERNEL_FIRST_SOLO;
    for (int i = 0; i < count; i++) {
        char name[64];
        size_t items = 0;
        cl_int error;
        snprintf(name, sizeof name, "dml__kernel_%s", dml__kernel_row_at(i)->name);
        state->kernels[i] = state->cl.clCreateKernel_(state->program, name, &error);
        if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateKernel", name);
        state->cl.clGetKernelWorkGroupInfo_(state->kernels[i], state->id, CL_KERNEL_WORK_GROUP_SIZE,
                                            sizeof items, &items, NULL);
        if (items < dml__kernel_items(i))
            return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                                   "opencl:%d (%s) runs kernel '%s' with %d items a group; dml needs %d",
                                   device->index, state->name, name, (int)items, (int)dml__kernel_items(i));
    }
    return DML_OK;
}

#endif

/* ---- gpu/opencl_reads.h ---- */

/* opencl_reads.h: reads, and those that the host doesn't wait for. */
#ifndef DML_GPU_OPENCL_READS_H
#define DML_GPU_OPENCL_READS_H

static inline dml_status dml__opencl_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *event = dml__opencl_mark_of(device, "read");
    const cl_int error = state->cl.clEnqueueReadBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                        CL_TRUE, from.offset, bytes, to, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueReadBuffer", "");
}

/* Waits for a read that was started, and lets go of it. A wait that fails otherwise than by the read's own
   failure says nothing of the read, which may still be on its way. */
static inline cl_int dml__opencl_await_read(dml__opencl *state, cl_event event)
{
    cl_int error = state->cl.clWaitForEvents_(1, &event), end = CL_COMPLETE;
    if (error == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) {
        (void)state->cl.clGetEventInfo_(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof end, &end, NULL);
        if (end < 0) error = end;
    } else if (error != CL_SUCCESS) {
        (void)state->cl.clFinish_(state->queue);
    }
    (void)state->cl.clReleaseEvent_(event);
    return error;
}

/* The ticket is the event. What isn't flushed may wait in the driver until somebody waits for it. */
static inline dml_status dml__opencl_read_start(dml_device *device, void *to, dml_ref from, size_t bytes,
                                                void **ticket)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_event event;
    *ticket = NULL;
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *mark = dml__opencl_mark_of(device, "read");
    cl_int error = state->cl.clEnqueueReadBuffer_(state->queue, dml__opencl_memory(from.buffer), CL_FALSE,
                                                  from.offset, bytes, to, 0, NULL, &event);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clEnqueueReadBuffer", "");
    if (mark && state->cl.clRetainEvent_(event) == CL_SUCCESS) {
        *mark = event;
        state->marks++;
    }
    error = state->cl.clFlush_(state->queue);
    if (error == CL_SUCCESS)
        *ticket = event;
    else
        (void)dml__opencl_await_read(state, event);
    return dml__opencl_check(device, error, "clFlush", "read");
}

/* An event that says it is complete is waited for all the same: only that makes the bytes this thread's. */
static inline dml_status dml__opencl_read_end(dml_device *device, void *ticket, bool wait, bool *ended)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_event event = (cl_event)ticket;
    cl_int end = CL_COMPLETE;
    *ended = wait ||
             state->cl.clGetEventInfo_(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof end, &end, NULL) !=
                 CL_SUCCESS ||
             end <= CL_COMPLETE;
    if (!*ended) return DML_OK;
    return dml__opencl_check(device, dml__opencl_await_read(state, event), "clWaitForEvents", "read");
}

#endif

/* ---- gpu/opencl_staging.h ---- */

/* opencl_staging.h: writes that the host doesn't wait for. */
#ifndef DML_GPU_OPENCL_STAGING_H
#define DML_GPU_OPENCL_STAGING_H

#include <string.h>

static inline void dml__opencl_destroy_staging(dml__opencl *state)
{
    dml__opencl_staging *staging = &state->staging;
    for (int i = 0; i < DML__OPENCL_PIECES; i++)
        if (staging->copied[i]) state->cl.clReleaseEvent_(staging->copied[i]);
    if (staging->piece)
        state->cl.clEnqueueUnmapMemObject_(state->queue, staging->memory, staging->piece, 0, NULL, NULL);
    if (staging->memory) state->cl.clReleaseMemObject_(staging->memory);
    memset(staging, 0, sizeof *staging);
}

/* Whether there is memory to write through, which the first write asks for. */
static inline bool dml__opencl_has_staging(dml__opencl *state)
{
    dml__opencl_staging *staging = &state->staging;
    const size_t bytes = (size_t)DML__OPENCL_PIECES * DML__OPENCL_PIECE;
    cl_int error;
    if (staging->piece || staging->refused) return staging->piece != NULL;
    staging->memory = state->cl.clCreateBuffer_(state->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                                bytes, NULL, &error);
    if (staging->memory)
        staging->piece = (char *)state->cl.clEnqueueMapBuffer_(state->queue, staging->memory, CL_TRUE,
                                                               CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &error);
    if (staging->piece) return true;
    dml__opencl_destroy_staging(state);
    staging->refused = true;
    return false;
}

/* Of at most a piece: waits only for the copy that was made of its place before. */
static inline cl_int dml__opencl_write_piece(dml_device *device, dml_ref to, const char *from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    dml__opencl_staging *staging = &state->staging;
    cl_event *copied = &staging->copied[staging->next], event;
    char *piece = staging->piece + (size_t)staging->next * DML__OPENCL_PIECE;
    if (*copied) {
        const cl_int error = state->cl.clWaitForEvents_(1, copied);
        state->cl.clReleaseEvent_(*copied);
        *copied = NULL;
        if (error != CL_SUCCESS) return error;
    }
    memcpy(piece, from, bytes);
    cl_event *mark = dml__opencl_mark_of(device, "write");
    const cl_int error = state->cl.clEnqueueWriteBuffer_(state->queue, dml__opencl_memory(to.buffer),
                                                         CL_FALSE, to.offset, bytes, piece, 0, NULL, &event);
    if (error != CL_SUCCESS) return error;
    *copied = event;
    staging->next = (staging->next + 1) % DML__OPENCL_PIECES;
    if (mark && state->cl.clRetainEvent_(event) == CL_SUCCESS) {
        *mark = event;
        state->marks++;
    }
    return state->cl.clFlush_(state->queue);
}

static inline dml_status dml__opencl_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status != DML_OK || bytes == 0) return status;
    cl_int error = CL_SUCCESS;
    if (dml__opencl_has_staging(state)) {
        for (size_t done = 0; done < bytes && error == CL_SUCCESS; done += DML__OPENCL_PIECE) {
            const size_t left = bytes - done;
            const dml_ref part = { to.buffer, to.offset + done };
            error = dml__opencl_write_piece(device, part, (const char *)from + done,
                                            left < DML__OPENCL_PIECE ? left : (size_t)DML__OPENCL_PIECE);
        }
        return dml__opencl_check(device, error, "clEnqueueWriteBuffer", "");
    }
    cl_event *event = dml__opencl_mark_of(device, "write");
    error = state->cl.clEnqueueWriteBuffer_(state->queue, dml__opencl_memory(to.buffer), CL_TRUE, to.offset,
                                            bytes, from, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueWriteBuffer", "");
}

#endif

/* ---- gpu/tune.h ---- */

/* tune.h: measures once which tiles are best on a device, and keeps it in a small file: a line that says what
   it is, then a line a device, which is the shapes of all classes of sizes and the device's name.

   The file is $DML_TUNE, or dml-tune.txt in $XDG_CACHE_HOME or $HOME/.cache. DML_TUNE=0, a file that can't be
   written or is something else, or too little memory: nothing is measured, and dml__choose_tile's rule holds.
   All shapes add an output's products in the same order, so the choice doesn't change a bit of a result. */
#ifndef DML_GPU_TUNE_H
#define DML_GPU_TUNE_H

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

/* ---- opening and closing ---- */

/* Whether the device's items are a CPU's, and how wide its vectors are. */
static void dml__opencl_choose(dml__opencl *state)
{
    cl_device_type type = 0;
    cl_uint lanes = 0, units = 0;
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof lanes, &lanes, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof state->memory, &state->memory,
                               NULL);
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof state->largest,
                               &state->largest, NULL);
    state->choice.units = (int)units;
    state->lanes = lanes >= 16 ? 16 : lanes >= 8 ? 8 : 4;
    if (type & CL_DEVICE_TYPE_CPU) /* Oclgrind is every type at once */
        state->choice.solo = type & CL_DEVICE_TYPE_GPU ? DML__SOLO_BY_NAME : DML__SOLO_BEST;
}

static dml_status dml__opencl_prepare(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_device_id ids[DML__OPENCL_DEVICES];
    cl_int error;
    if (!dml__opencl_load(&state->cl))
        return dml_device_fail(
            device, DML_ERROR_DEVICE,
            "no OpenCL here: libOpenCL.so.1 (1.2 or later) was not found; install a loader "
            "(ocl-icd) and a driver");
    const int count = dml__opencl_list(&state->cl, ids, DML__OPENCL_DEVICES);
    if (count == 0)
        return dml_device_fail(
            device, DML_ERROR_DEVICE,
            "no OpenCL device found: there is no driver for one of OpenCL 1.2 or later with a "
            "compiler (clinfo lists what there is)");
    if (device->index < 0 || device->index >= count)
        return dml_device_fail(device, DML_ERROR_DEVICE, "no device opencl:%d: %d were found", device->index,
                               count);
    state->id = ids[device->index];
    state->cl.clGetDeviceInfo_(state->id, CL_DEVICE_NAME, sizeof state->name - 1, state->name, NULL);
    state->context = state->cl.clCreateContext_(NULL, 1, &state->id, NULL, NULL, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateContext", "");
    state->queue = state->cl.clCreateCommandQueue_(state->context, state->id, 0, &error);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clCreateCommandQueue", "");
    dml__opencl_choose(state);
    dml__fill_kernel_index(&state->index);
    dml_status status = dml__opencl_build(device);
    if (status == DML_OK) status = dml__opencl_find_kernels(device);
    return status == DML_OK ? dml__tune(device, &state->choice, state->name) : status;
}

/* Releases what an open, or half open, device holds. */
static void dml__opencl_close(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!state) return;
    if (state->queue) state->cl.clFinish_(state->queue);
    for (int i = 0; i < state->marks; i++) state->cl.clReleaseEvent_(state->mark[i].event);
    dml__opencl_destroy_staging(state);
    if (state->shares.handle) state->cl.clReleaseMemObject_((cl_mem)state->shares.handle);
    for (int i = 0; i < DML__KERNEL_COUNT; i++)
        if (state->kernels[i]) state->cl.clReleaseKernel_(state->kernels[i]);
    if (state->program) state->cl.clReleaseProgram_(state->program);
    if (state->queue) state->cl.clReleaseCommandQueue_(state->queue);
    if (state->context) state->cl.clReleaseContext_(state->context);
    dml_device_release(device, state);
    device->state = NULL;
}

static dml_status dml__opencl_open(dml_device *device)
{
    device->host_memory = false;
    device->state = dml_device_allocate(device, sizeof(dml__opencl));
    if (!device->state)
        return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left to open opencl:%d", device->index);
    const dml_status status = dml__opencl_prepare(device);
    if (status != DML_OK) dml__opencl_close(device);
    return status;
}

/* ---- buffers ---- */

static dml_status dml__opencl_buffer_create(dml_device *device, dml_buffer *buffer)
{
    dml__opencl *state = dml__opencl_of(device);
    cl_int error;
    buffer->host = NULL;
    buffer->handle = NULL;
    error = CL_INVALID_BUFFER_SIZE; /* some drivers find out later, when it is used */
    if (buffer->bytes <= state->memory || state->memory == 0)
        buffer->handle =
            state->cl.clCreateBuffer_(state->context, CL_MEM_READ_WRITE, buffer->bytes, NULL, &error);
    if (error == CL_SUCCESS) {
        state->held += buffer->bytes;
        return DML_OK;
    }
    buffer->handle = NULL;
    if (!dml__opencl_lacks_memory(error)) return dml__opencl_check(device, error, "clCreateBuffer", "");
    return dml_device_fail(
        device, DML_ERROR_MEMORY,
        "opencl:%d (%s): no memory left for a buffer of %llu bytes, %s (%d): of its %llu bytes, "
        "%llu at most in one buffer, this context holds %llu",
        device->index, state->name, (unsigned long long)buffer->bytes, dml__opencl_error_name(error),
        (int)error, (unsigned long long)state->memory, (unsigned long long)state->largest,
        (unsigned long long)state->held);
}

static void dml__opencl_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    dml__opencl *state = dml__opencl_of(device);
    if (!buffer->handle) return;
    state->cl.clReleaseMemObject_(dml__opencl_memory(buffer));
    state->held -= buffer->bytes;
    buffer->handle = NULL;
}

static dml_status dml__opencl_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status == DML_OK) status = dml__check_ref(device, to, bytes, "copy to");
    if (status != DML_OK || bytes == 0) return status;
    cl_event *event = dml__opencl_mark_of(device, "copy");
    const cl_int error = state->cl.clEnqueueCopyBuffer_(state->queue, dml__opencl_memory(from.buffer),
                                                        dml__opencl_memory(to.buffer), from.offset, to.offset,
                                                        bytes, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueCopyBuffer", "");
}

static dml_status dml__opencl_zero(dml_device *device, dml_ref to, size_t bytes)
{
    dml__opencl *state = dml__opencl_of(device);
    const dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status != DML_OK || bytes == 0) return status;
    static const cl_uint zero = 0;
    const size_t pattern = (to.offset | bytes) % sizeof zero ? 1 : sizeof zero; /* both must be multiples */
    cl_event *event = dml__opencl_mark_of(device, "zero");
    const cl_int error = state->cl.clEnqueueFillBuffer_(state->queue, dml__opencl_memory(to.buffer), &zero,
                                                        pattern, to.offset, bytes, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueFillBuffer", "");
}

/* ---- launches ---- */

static dml_status dml__opencl_launch(dml_device *device, const dml_launch *launch)
{
    dml__opencl *state = dml__opencl_of(device);
    dml__kernel_launch ready;
    dml_status status = dml__prepare_launch(device, launch, &state->index, &state->choice, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
    const int shares = state->choice.solo == DML__SOLO_BEST ? 1 : dml__gemm_shares(launch);
    if (shares > 1 && dml__launch_in_shares(device, launch, shares, &state->shares, &status)) return status;
    const cl_kernel kernel = state->kernels[ready.kernel];
    cl_int error = CL_SUCCESS;
    for (cl_uint i = 0; i < DML_LAUNCH_BUFFERS && error == CL_SUCCESS; i++) {
        const cl_mem memory = launch->buffer[i].buffer ? dml__opencl_memory(launch->buffer[i].buffer) : NULL;
        error = state->cl.clSetKernelArg_(kernel, i, sizeof memory, memory ? &memory : NULL);
    }
    if (error == CL_SUCCESS)
        error =
            state->cl.clSetKernelArg_(kernel, DML_LAUNCH_BUFFERS, sizeof ready.arguments, &ready.arguments);
    if (error != CL_SUCCESS) return dml__opencl_check(device, error, "clSetKernelArg", launch->kernel);
    const size_t local[2] = { ready.items, 1 };
    const size_t global[2] = { ready.groups[0] * ready.items, ready.groups[1] };
    cl_event *event = dml__opencl_mark_of(device, dml__kernel_row_at(ready.kernel)->name);
    error = state->cl.clEnqueueNDRangeKernel_(state->queue, kernel, 2, NULL, global, local, 0, NULL, event);
    return dml__opencl_check(device, dml__opencl_marked(device, event, error), "clEnqueueNDRangeKernel",
                             launch->kernel);
}

static dml_status dml__opencl_finish(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    const cl_int error = state->cl.clFinish_(state->queue);
    if (error == CL_SUCCESS) dml__opencl_settle(device);
    return dml__opencl_check(device, error, "clFinish", "");
}

/* What is enqueued may wait in the driver until somebody does. */
static dml_status dml__opencl_flush(dml_device *device)
{
    dml__opencl *state = dml__opencl_of(device);
    return dml__opencl_check(device, state->cl.clFlush_(state->queue), "clFlush", "");
}

DML__EXTERN_C const dml_backend *dml_opencl_backend(void)
{
    static const dml_backend backend = { "opencl",
                                         dml__opencl_count,
                                         dml__opencl_describe,
                                         dml__opencl_open,
                                         dml__opencl_close,
                                         dml__opencl_buffer_create,
                                         dml__opencl_buffer_destroy,
                                         dml__opencl_write,
                                         dml__opencl_read,
                                         dml__opencl_copy,
                                         dml__opencl_zero,
                                         dml__opencl_launch,
                                         dml__opencl_finish,
                                         dml__opencl_flush,
                                         dml__opencl_profile,
                                         dml__opencl_read_start,
                                         dml__opencl_read_end,
                                         NULL,
                                         NULL,
                                         NULL };
    return &backend;
}

#endif
