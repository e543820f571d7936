#ifndef DML_GRAPH_SHAPE_C
#define DML_GRAPH_SHAPE_C

#include "graph/shape.h"

#include <stdio.h>
#include <string.h>

DML_API size_t dml_shape_count(const dml_shape *shape)
{
    size_t count = 1;
    for (int i = 0; i < shape->ndim; i++) count *= (size_t)shape->dims[i];
    return count;
}

DML_API bool dml_shape_equal(const dml_shape *a, const dml_shape *b)
{
    return a->ndim == b->ndim && memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof a->dims[0]) == 0;
}

DML_API const char *dml_shape_format(const dml_shape *shape, char text[DML_SHAPE_TEXT])
{
    size_t used = 0;
    snprintf(text, DML_SHAPE_TEXT, "scalar");
    for (int i = 0; i < shape->ndim && used < DML_SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, DML_SHAPE_TEXT - used, i ? " x %d" : "%d", shape->dims[i]);
    return text;
}

#endif
