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
