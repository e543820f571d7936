/* conv2d_weights_plan.h: how the weight gradient of a convolution is cut, and the strips of x and dy that it
 * is computed from. */
#ifndef DML_KERNELS_CONV2D_WEIGHTS_PLAN_H
#define DML_KERNELS_CONV2D_WEIGHTS_PLAN_H

#include "kernels/conv2d_weights.h"
#include "kernels/microkernel.h"

#define DML__WGRAD_ADDED 2048 /* floats of dw whose partial sums a task adds */

typedef struct dml__wgrad_plan {
    const dml__wgrad *job;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t full, rows;       /* of a tile */
    ptrdiff_t row_tiles, patch; /* patch = taps_h taps_w channels: a line of dw */
    bool lines_of_taps;         /* a tile's columns run through (taps_w, channels), not channels */
    bool turned;                /* a tile's columns are filters: whole vectors, or one under a tall tile */
    int tall;                   /* rows of a group where turned tiles are tall, or 0 */
    ptrdiff_t
        patch_w; /* a tile's columns run through (taps_h, taps_w, channels), gathered in so many floats */
    ptrdiff_t panels;        /* of channels; of whole lines 1 */
    ptrdiff_t lines, pieces; /* a strip is that many lines of dy, or one of that many pieces of a line */
    ptrdiff_t strips, chunks;
    bool in_place;                      /* x is used where it is */
    bool stream;                        /* dw is written past the caches, but for what the stack computes */
    ptrdiff_t step_h, step_w;           /* strides in the copy */
    ptrdiff_t copy_w, copy_lines;       /* pixels of a line of the copy, lines at most */
    ptrdiff_t panels_at_once;           /* that are copied */
    ptrdiff_t filters_at_once;          /* that are packed, in whole tiles */
    ptrdiff_t panel_shares, row_shares; /* tasks: chunks times these */
    float *partial; /* (chunks, filters, patch), turned (chunks, patch, filters), of several chunks */
} dml__wgrad_plan;

/* Pixels x0 .. x0 + w - 1 of lines line0 .. of dy, all images' lines counted through. */
typedef struct dml__wgrad_strip {
    ptrdiff_t line0, lines, x0, w;
} dml__wgrad_strip;

/* Some columns of dw: those from `first` on of the line `tap_h` of its taps; where they are channels, of its
   tap `tap_w`. */
typedef struct dml__wgrad_columns {
    ptrdiff_t tap_h, tap_w, first;
    int count;
} dml__wgrad_columns;

/* A strip of x: where its panels lie, and where in them the first taps of the lines of dy are. */
typedef struct dml__wgrad_view {
    const float *base;
    ptrdiff_t panel_step, line_step, pixel_step, dilation_step; /* dilation_step: of a tap to the right */
    ptrdiff_t at[DML__WGRAD_STRIP];                             /* (strip.lines) */
} dml__wgrad_view;

DML__LOCAL dml__wgrad_plan dml__wgrad_plan_of(dml_pool *pool, const dml__wgrad *job, int threads);

/* Floats of a worker: of the copy of x, and with the packed dy behind it. */
DML__LOCAL ptrdiff_t dml__wgrad_copy_floats(const dml__wgrad_plan *plan);
DML__LOCAL ptrdiff_t dml__wgrad_worker_floats(const dml__wgrad_plan *plan);

/* Enough also for fewer images, whose panels are smaller, so that more of them may be copied at once. */
DML__LOCAL ptrdiff_t dml__wgrad_most_floats(const dml__wgrad_plan *plan);
DML__LOCAL dml__wgrad_strip dml__wgrad_strip_at(const dml__wgrad_plan *plan, ptrdiff_t index);

/* A panel's tiles, of each line of taps so many `across`; and where the one number `at` of a line lies. */
DML__LOCAL ptrdiff_t dml__wgrad_tiles(const dml__wgrad_plan *plan);
DML__LOCAL ptrdiff_t dml__wgrad_tiles_across(const dml__wgrad_plan *plan);
DML__LOCAL dml__wgrad_columns dml__wgrad_columns_at(const dml__wgrad_plan *plan, ptrdiff_t panel,
                                                    ptrdiff_t tap_h, ptrdiff_t at);

/* Columns that the micro-kernel computes for so many of dw. */
DML__LOCAL int dml__wgrad_tile_columns(const dml__wgrad_plan *plan, int count);

/* The first filter of a tile; each has an even share of them all. */
DML__LOCAL ptrdiff_t dml__wgrad_row(const dml__wgrad_plan *plan, ptrdiff_t tile);

/* Where a filter's weight at the first of the columns lies, in dw or in partial sums. */
DML__LOCAL float *dml__wgrad_element(const dml__wgrad_plan *plan, float *dw, ptrdiff_t filter,
                                     const dml__wgrad_columns *columns);

/* Copies panels `first` .. of a strip of x, or looks at it in place. */
DML__LOCAL void dml__wgrad_view_strip(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                      ptrdiff_t first, ptrdiff_t panels, float *copy, dml__wgrad_view *view);

/* Whether dy is packed, as panels of tiles, (pixels, rows of the tile) one behind the other. */
DML__LOCAL bool dml__wgrad_packs_dy(const dml__wgrad_plan *plan);
DML__LOCAL void dml__wgrad_pack_dy(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                   ptrdiff_t tile0, ptrdiff_t tile1, float *out);

#endif
