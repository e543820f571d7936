/* shape.h: the shape of a tensor, without its batch axis. */
#ifndef DML_GRAPH_SHAPE_H
#define DML_GRAPH_SHAPE_H

#include "base/platform.h"

#define DML_MAX_DIMS 5

/* The dimensions of one sample, outermost first; ndim = 0 is a scalar. */
typedef struct dml_shape {
    int ndim;
    int dims[DML_MAX_DIMS];
} dml_shape;

/* How many elements: the product of the dimensions, 1 for a scalar. */
DML_API size_t dml_shape_count(const dml_shape *shape);
DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b);

/* Writes "28 x 28 x 1" ("scalar" for no dimensions) and returns `text`. */
#define DML_SHAPE_TEXT 64
DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT]);

#endif
