/* conv2d_depthwise_line.h: a line of a convolution in which every channel has a kernel of its own. */
#ifndef DML_KERNELS_CONV2D_DEPTHWISE_LINE_H
#define DML_KERNELS_CONV2D_DEPTHWISE_LINE_H

#include "base/cpu.h"
#include "base/platform.h"

#define DML__DEPTHWISE_LINE 16 /* floats of a line of the caches */

typedef enum dml__depthwise_role {
    DML__DEPTHWISE_RESULT,  /* of weights and a source: the forward result, or the gradient of the input */
    DML__DEPTHWISE_GRADIENT /* of the weights */
} dml__depthwise_role;

/* A line of the grid, and those channels of it that a task computes. */
typedef struct dml__depthwise_row {
    ptrdiff_t channels, grid_w;
    const float *source_end; /* of the whole array */
    const float *source; /* where the first tap of the first line of taps in the image would find pixel 0 */
    ptrdiff_t source_pixel, source_w, origin; /* origin: of pixel 0, negative in the padding */
    ptrdiff_t tap_lines, taps, line;          /* line: from one tap's line of the source to the next one's */
    ptrdiff_t stride, dilation;
    bool ask;                     /* for what comes next */
    bool stream;                  /* past the caches, of which each pixel has whole lines; beta = 0 */
    ptrdiff_t source_line, ahead; /* ahead: from `source` to the first line that nothing has come from yet */
    float *weights;               /* (tap_lines, taps, width), or the gradient's sums */
    ptrdiff_t width;
    float *target; /* (grid_w, target_pixel), or dy, which is only read */
    ptrdiff_t target_pixel, target_line;
    const float *bias; /* (channels), or NULL */
    float beta;
    bool relu;
} dml__depthwise_row;

DML__LOCAL void dml__depthwise_line(dml_isa isa, const dml__depthwise_row *row, dml__depthwise_role role);

#endif
