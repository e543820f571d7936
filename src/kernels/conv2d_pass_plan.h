/* conv2d_pass_plan.h: how a pass (conv2d_pass.h) is cut into bands and chunks, and which taps its pixels
 * meet. */
#ifndef DML_KERNELS_CONV2D_PASS_PLAN_H
#define DML_KERNELS_CONV2D_PASS_PLAN_H

#include "kernels/conv2d_pass.h"

/* What an element's bits depend on is how k is cut into chunks, each of which is one chain of multiply-adds.
   It is cut by the shape alone, so that one chunk of a panel always fits the stack. */
#define DML__CONV_KC 256

/* A copied band's floats, about half of a level-2 cache. */
#define DML__CONV_BAND 65536

#define DML__CONV_FEW_IMAGES 4 /* fewer have few pixels that lack the same taps */

typedef struct dml__conv_pass_plan {
    const dml__conv_pass *pass;
    dml_pool *pool;
    const dml__microkernel *kernel;
    ptrdiff_t full;           /* columns of a panel */
    ptrdiff_t panels, k;      /* in all */
    ptrdiff_t runs, run;      /* k is that many runs of elements that lie side by side */
    ptrdiff_t chunks, pieces; /* chunks are whole runs, or a run is cut into that many pieces */
    bool copy;                /* the source has to be padded, or rounded */
    bool exact;               /* taps outside of the image are left out, on all sides: no copy is needed */
    bool spill;       /* a pixel's vectors may reach into the next pixels, which are written after it */
    bool stream;      /* the target is written past the caches */
    bool clips;       /* lines' taps above and below the image are left out */
    ptrdiff_t copy_w; /* pixels of a padded line */
    ptrdiff_t images, lines; /* of a band: whole images, or lines of one */
    ptrdiff_t most_images;   /* of a band of any smaller batch */
    ptrdiff_t bands, groups; /* tasks: bands times groups of panels */
    float *packed;           /* (panels, k, full), or NULL */
} dml__conv_pass_plan;

DML__LOCAL dml__conv_pass_plan dml__conv_pass_plan_of(dml_pool *pool, const dml__conv_pass *pass,
                                                      int threads);

/* Lines of the source under some lines of the grid, and floats of their copy. */
DML__LOCAL ptrdiff_t dml__conv_pass_source_lines(const dml__conv_pass *p, ptrdiff_t lines);
DML__LOCAL ptrdiff_t dml__conv_pass_band_floats(const dml__conv_pass_plan *plan, ptrdiff_t images,
                                                ptrdiff_t lines);

/* Which taps a pixel of the grid meets inside of the image, along an axis: t0 <= t < t1. */
typedef struct dml__conv_pass_taps {
    ptrdiff_t t0, t1;
} dml__conv_pass_taps;

DML__LOCAL dml__conv_pass_taps dml__conv_pass_taps_of_line(const dml__conv_pass *p, ptrdiff_t y);
DML__LOCAL dml__conv_pass_taps dml__conv_pass_taps_of_column(const dml__conv_pass *p, ptrdiff_t x);

/* Some of a pass' k, which the micro-kernel goes through at once. */
typedef struct dml__conv_pass_chunk {
    ptrdiff_t run0, offset; /* begins with that element of that run */
    int runs, length;       /* so many runs, or, of one run, so many elements */
    ptrdiff_t k0, k1;
} dml__conv_pass_chunk;

DML__LOCAL dml__conv_pass_chunk dml__conv_pass_chunk_at(const dml__conv_pass_plan *plan, ptrdiff_t c);

/* The runs of a chunk that a line of the grid meets inside of the image; the others are zeros, and left out.
 */
DML__LOCAL dml__conv_pass_chunk dml__conv_pass_chunk_of_line(const dml__conv_pass_plan *plan,
                                                             const dml__conv_pass_chunk *chunk,
                                                             ptrdiff_t line);

#endif
