/* rotary.h: numbers turned in pairs by angles that grow with their position. Source: Su et al., "RoFormer:
   enhanced transformer with rotary position embedding", 2021. */
#ifndef DML_KERNELS_ROTARY_H
#define DML_KERNELS_ROTARY_H

#include "thread/pool.h"

typedef struct dml_rotary_shape {
    size_t rows, positions; /* row r has the angles of position r % positions */
    size_t heads, width;    /* of a row: heads beside each other, of an even width */
    size_t rotated;         /* so many heads, from the first on; the others stay as they are */
    bool interleaved;       /* pairs are neighbours; else numbers half a head apart */
    const int32_t *places;  /* (rows), or NULL: the position of each, below `positions` */
} dml_rotary_shape;

/* table (positions, 2, width / 2): for pair i of position p the cosine and, behind those, the sine of
   (p + offset) base^(-2 i / width), computed in double. */
DML_API void dml_rotary_table(size_t positions, size_t width, int offset, double base, float *table);

/* y = the pairs (a, b) of x turned, (a cos - b sin, b cos + a sin), or back where `back` is set, + beta y.
   x and y are (rows, heads, width); y may be x. */
DML_API void dml_rotary_apply(dml_pool *pool, const dml_rotary_shape *shape, const float *table, bool back,
                              const float *x, float beta, float *y);

#endif
