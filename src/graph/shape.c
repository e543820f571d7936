#ifndef DML_GRAPH_SHAPE_C
#define DML_GRAPH_SHAPE_C

#include "graph/shape.h"

#include <stdio.h>
#include <string.h>

/* Of a shape that nobody has checked yet. */
static int dml__dimensions(const dml_shape *shape)
{
    return shape->ndim < 0 ? 0 : shape->ndim < DML_MAX_DIMS ? shape->ndim : DML_MAX_DIMS;
}

DML_API size_t dml_shape_count(const dml_shape *shape)
{
    size_t count = 1;
    if (!shape) return 0;
    for (int i = 0; i < dml__dimensions(shape); i++) count *= shape->dims[i] > 0 ? (size_t)shape->dims[i] : 0;
    return count;
}

DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b)
{
    return a && b && a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, (size_t)dml__dimensions(a) * sizeof a->dims[0]) == 0;
}

DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT])
{
    size_t used = 0;
    snprintf(text, DML_SHAPE_TEXT, "scalar");
    for (int i = 0; i < dml__dimensions(shape) && used < DML_SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, DML_SHAPE_TEXT - used, i ? " x %d" : "%d", shape->dims[i]);
    return text;
}

#endif
