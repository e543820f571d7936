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

/* The dimensions as arguments, outermost first, counted by the compiler: dml_shape_of(28, 28, 1). A scalar is
   a zeroed dml_shape. */
#define dml_shape_of(...) DML__REST_SHAPE(0, __VA_ARGS__)

/* How many elements: the product of the dimensions, 1 for a scalar, 0 for NULL. */
DML_API size_t dml_shape_count(const dml_shape *shape);
DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b); /* NULL is like none */

/* Writes "28 x 28 x 1" ("scalar" for no dimensions) and returns `text`. */
#define DML_SHAPE_TEXT 64
DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT]);

/* How the macros that take dimensions count them: those after the first argument, 0 to 9. More than
   DML_MAX_DIMS are refused, with a sentence, by whoever takes the shape. */
#define DML__FIRST(...) DML__ARGUMENT_1(__VA_ARGS__, 0)
#define DML__ARGUMENT_1(a, ...) a
#define DML__REST_COUNT(...) DML__ARGUMENT_11(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)
#define DML__ARGUMENT_11(a, b, c, d, e, f, g, h, i, j, count, ...) count
#define DML__REST_SHAPE(...)                                                                                 \
    dml__shape(DML__REST_COUNT(__VA_ARGS__), DML__ARGUMENTS_2_TO_6(__VA_ARGS__, 0, 0, 0, 0, 0, 0))
#define DML__ARGUMENTS_2_TO_6(a, b, c, d, e, f, ...) b, c, d, e, f

static inline dml_shape dml__shape(int ndim, int d0, int d1, int d2, int d3, int d4)
{
    const dml_shape shape = { ndim, { d0, d1, d2, d3, d4 } };
    return shape;
}

#endif
