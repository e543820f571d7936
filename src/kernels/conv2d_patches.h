/* conv2d_patches.h: the patches of images as a factor of a product, for convolutions whose factors are
 * rounded.
 */
#ifndef DML_KERNELS_CONV2D_PATCHES_H
#define DML_KERNELS_CONV2D_PATCHES_H

#include "kernels/pack_pairs.h"

/* The pixels of a grid, each with those of an image that its taps meet: element (grid pixel, (tap, channel))
   of a matrix. Along an axis, tap t of pixel g meets what (g step + origin + t tap) / divisor is, where that
   is whole and inside of the image; elsewhere there is a zero. */
typedef struct dml__conv_axis {
    ptrdiff_t grid, taps, step, origin, tap, divisor, size, stride; /* stride: floats between two pixels */
} dml__conv_axis;

typedef struct dml__conv_patches {
    const float *image;
    ptrdiff_t image_step; /* from one image of the batch to the next */
    ptrdiff_t pixels;     /* of the grid, in all images */
    ptrdiff_t depth;      /* channels */
    dml__conv_axis v, h;
} dml__conv_patches;

/* Floats from the start of a line or column, -1 for a zero. */
static inline ptrdiff_t dml__conv_meets(const dml__conv_axis *axis, ptrdiff_t pixel, ptrdiff_t tap)
{
    ptrdiff_t at = pixel * axis->step + axis->origin + tap * axis->tap;
    if (at < 0) return -1;
    if (axis->divisor > 1) {
        if (at % axis->divisor) return -1;
        at /= axis->divisor;
    }
    return at < axis->size ? at * axis->stride : -1;
}

#if defined(DML__HAS_AVX512_BF16)

/* Patches as pairs of bf16: lanes are pixels, and k's taps and channels; or, across, the other way round. */
DML__LOCAL const dml__packers *dml__patches_as_pairs(bool across);

#endif
#endif
