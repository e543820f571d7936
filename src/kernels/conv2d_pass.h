/* conv2d_pass.h: a convolution as a list of offsets into the micro-kernel; what the forward product is, and
   each phase of the input gradient. */
#ifndef DML_KERNELS_CONV2D_PASS_H
#define DML_KERNELS_CONV2D_PASS_H

#include "base/dtype.h"
#include "kernels/microkernel.h"
#include "kernels/sizes.h"
#include "thread/pool.h"

/* The sum over taps and depth at each pixel of a grid:
       target(n, y, x)[j] = relu(sum over ty, tx, d of source(n, origin_y + y stride_h + ty dilation_h,
   ...)[d]
                                                       * weights[ty, tx, d, j]
                                 + beta target(n, y, x)[j] + bias[j])
   where the source is 0 outside its image. */
typedef struct dml__conv_pass {
    ptrdiff_t batch, grid_h, grid_w, columns;
    ptrdiff_t stride_h, stride_w, dilation_h, dilation_w, taps_h, taps_w, depth;
    ptrdiff_t origin_y, origin_x; /* of the first pixel's first tap: negative in the padding */

    const float *source; /* (batch, source_h, source_w, source_pixel), of which `depth` count */
    ptrdiff_t source_h, source_w, source_pixel;

    const float *weights; /* element (ty, tx, d, j) lies at the sum of their steps */
    ptrdiff_t weights_tap_h, weights_tap_w, weights_depth, weights_column;

    float *target; /* pixel (n, y, x) lies at the sum of their steps */
    ptrdiff_t target_image, target_line, target_pixel;
    float beta;
    const float *bias; /* (columns), or NULL */
    bool relu;
    dml_dtype rounds_to; /* of source and weights: DML_F32, or DML_BF16 or DML_F16 */
} dml__conv_pass;

/* Bitwise the same for any number of threads and any scratch; allocates nothing. */
DML__LOCAL void dml__conv_pass_run(dml_pool *pool, const dml__conv_pass *pass);

/* What a pass of that size uses; the arrays aren't looked at. */
DML__LOCAL dml_scratch dml__conv_pass_scratch(const dml__conv_pass *pass);

/* Packs the weights of columns j0 .. for k0 <= k < k1, k in the order of (taps_h, taps_w, depth), as
   out[(k - k0) * width + column], with zeros behind the last column. */
DML__LOCAL void dml__conv_pass_pack(const dml__conv_pass *p, ptrdiff_t j0, ptrdiff_t columns, ptrdiff_t width,
                                    ptrdiff_t k0, ptrdiff_t k1, float *out);

/* --- for convolutions of every kind --- */

/* Fewer multiply-adds than this are not worth waking anybody, or making a task of. */
#define DML__CONV_SERIAL_WORK 200000.0

/* The widest tile that convolutions use; a multiple of any kernel's lanes * vectors. */
#define DML__CONV_COLUMNS 32
#define DML__CONV_ROWS 8 /* as many as any kernel on floats takes */

/* Copies, and sets to zero, short runs of floats: a call costs more than such a copy. */
DML__LOCAL void dml__conv_copy(float *to, const float *from, ptrdiff_t count);
DML__LOCAL void dml__conv_zero(float *to, ptrdiff_t count);

/* Rounds what has been copied where it is, to DML_BF16 or DML_F16; DML_F32: not at all. */
DML__LOCAL void dml__conv_round(dml_pool *pool, dml_dtype dtype, ptrdiff_t count, float *x);

/* Runs a tile of whole vectors of which only so many columns are in C: the others are computed on the side.
 */
DML__LOCAL void dml__conv_tile(const dml__microkernel *kernel, const dml__tile *tile, int columns);

#endif
