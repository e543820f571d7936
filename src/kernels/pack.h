/* pack.h: the factors of a product, and copying parts of them into panels that a micro-kernel reads in order.
 */
#ifndef DML_KERNELS_PACK_H
#define DML_KERNELS_PACK_H

#include "base/cpu.h"
#include "base/platform.h"

/* Copies of a factor's part, of lanes first .. first + lanes - 1 and k0 <= k < k0 + kc. */
typedef struct dml__packers {
    /* A panel, out[(k - k0) * width + lane - first], with zeros in lanes lanes .. width - 1; lanes <= width.
     */
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    /* Lines, out[(lane - first) * line + k - k0], of any number of lanes, for a micro-kernel that wants
       lines; NULL: `pack` is asked for a line at a time, of width 1. */
    void (*pack_lines)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, ptrdiff_t line,
                       float *out);
    /* So many panels that are whole vectors, with beginnings `apart`, where lanes are best read side by side;
       NULL: `pack` is asked for one at a time. */
    void (*pack_panels)(const void *source, ptrdiff_t first, ptrdiff_t panels, ptrdiff_t k0, int kc,
                        int width, ptrdiff_t apart, float *out);
} dml__packers;

/* One factor of a product: `lane` counts the rows of A, or the columns of B. */
typedef struct dml__factor {
    void (*pack)(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width, float *out);
    const void *source;
    const dml__packers *packers;  /* of which `pack` is one; NULL: there is no other */
    const dml__packers *as_pairs; /* of the same source, whose floats become pairs of bf16 of two k's, which
                                     k0 and kc then count; NULL: there are none */
} dml__factor;

/* A plain matrix as the source of a factor, which is then used where it lies if that is as fast: element
   (lane, k) is x[lane * lane_step + k * k_step]. One of the two steps is 1. */
typedef struct dml__matrix {
    const float *x;
    ptrdiff_t lane_step, k_step;
} dml__matrix;

/* A panel wider than 16 is one of AVX-512, which the processor then has. */
DML__LOCAL void dml__pack_matrix(const void *matrix, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                 int width, float *out);

/* Panels beside each other of lanes that lie side by side, line by line, since lines are best read from end
   to end: out[(panel * kc + k) * width + lane] = x[k * k_step + panel * width + lane]. A width of 32 is that
   of two vectors of AVX-512. */
DML__LOCAL void dml__pack_panels(const float *x, ptrdiff_t k_step, ptrdiff_t panels, ptrdiff_t kc,
                                 ptrdiff_t width, float *out);

/* out[k * width + lane] = x[lane * lane_step + k], lane < lanes, k < kc: for packers. */
DML__LOCAL void dml__pack_transposed(const float *x, ptrdiff_t lane_step, int lanes, int kc, ptrdiff_t width,
                                     float *out);

/* The same by vectors of 8 lanes, where the instruction set has them, for fours of k's. */
DML__LOCAL void dml__pack_fours_transposed(dml_isa isa, const float *x, ptrdiff_t lane_step, int lanes,
                                           int kc, ptrdiff_t width, float *out);

#endif
