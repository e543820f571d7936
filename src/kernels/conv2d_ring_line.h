/* conv2d_ring_line.h: a line of a convolution whose source lies in a ring (conv2d_ring.c). */
#ifndef DML_KERNELS_CONV2D_RING_LINE_H
#define DML_KERNELS_CONV2D_RING_LINE_H

#include "base/cpu.h"
#include "base/platform.h"

#define DML__CONV2D_RING_UNIT 16
#define DML__CONV2D_RING_TAPS 128 /* the most, of kernels and lines */
#define DML__CONV2D_RING_PIXELS 7 /* the sides of images are often multiples of it: 224, 112, ... */

typedef enum dml__conv2d_ring_role {
    DML__CONV2D_RING_RESULT,  /* of weights and a source: the forward result, or the gradient of the input */
    DML__CONV2D_RING_GRADIENT /* of the weights */
} dml__conv2d_ring_role;

/* Taps whose pixels and weights lie behind each other. */
#define DML__CONV2D_RING_RUN 3

typedef struct dml__conv2d_ring_run {
    const float *source; /* what the first tap finds for pixel 0 of the first unit */
    float *weights;      /* (taps, unit), or the gradient's sums */
} dml__conv2d_ring_run;

typedef struct dml__conv2d_ring_runs {
    ptrdiff_t count;
    dml__conv2d_ring_run run[DML__CONV2D_RING_TAPS];
} dml__conv2d_ring_runs;

/* Pixels of a line of the result, or of dy, for some units; the last of them may have fewer channels. */
typedef struct dml__conv2d_ring_row {
    dml__conv2d_ring_runs runs[DML__CONV2D_RING_RUN]; /* of 1, 2, ... taps */
    ptrdiff_t unit_source, unit_weights;              /* floats from a unit's to the next one's */
    ptrdiff_t channels, pixels;
    float *target; /* (pixels, target_pixel); dy is only read */
    ptrdiff_t target_pixel;
    const float *bias; /* (channels), or NULL */
    float beta;
    bool relu;
} dml__conv2d_ring_row;

typedef struct dml__conv2d_ring_kernels {
    void (*result)(const dml__conv2d_ring_row *row);
    void (*gradient)(const dml__conv2d_ring_row *row);
    void (*copy)(const float *from, ptrdiff_t step, ptrdiff_t ahead, ptrdiff_t count, ptrdiff_t units,
                 float *to, ptrdiff_t pitch);
} dml__conv2d_ring_kernels;

DML__LOCAL dml__conv2d_ring_kernels dml__conv2d_ring_kernels_of(dml_isa isa);

/* The first `channels`, fewer than a unit, of pixels. */
DML__LOCAL void dml__conv2d_ring_move(const float *from, ptrdiff_t from_pixel, ptrdiff_t pixels,
                                      ptrdiff_t channels, float *to, ptrdiff_t to_pixel);

#endif
